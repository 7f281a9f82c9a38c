//! What happened, as a running hash and, if asked for, as text.
//!
//! Two runs of one seed must give the same hash: that is how determinism is tested, and why a
//! failing seed can be replayed with text switched on.

use std::fmt::{self, Write as _};

use meridian_base::env::Instant;

/// The trace of one run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    event_count: u64,
    print: bool,
    line: String,
}

impl Trace {
    /// A trace; `print` also writes every event to standard output.
    pub fn new(print: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, event_count: 0, print, line: String::new() }
    }

    /// Adds an event.
    pub fn event(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        self.line.clear();
        // Writing to a String can't fail.
        let _ = write!(self.line, "{:>12.6} {what}", now.as_micros() as f64 / 1e6);
        self.event_count += 1;
        for chunk in self.line.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.hash = (self.hash.rotate_left(5) ^ u64::from_le_bytes(word))
                .wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        if self.print {
            println!("{}", self.line);
        }
    }

    /// Digest of all events so far.
    pub fn digest(&self) -> u64 {
        self.hash
    }

    /// How many events there were.
    pub fn event_count(&self) -> u64 {
        self.event_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(events: &[&str]) -> u64 {
        let mut trace = Trace::new(false);
        for event in events {
            trace.event(Instant::ZERO, format_args!("{event}"));
        }
        trace.digest()
    }

    #[test]
    fn order_and_contents_matter() {
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["b", "a"]));
        assert_ne!(digest(&["a"]), digest(&["a", "a"]));
    }
}
