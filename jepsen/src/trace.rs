//! What happened, as a count, and if asked for as a running hash or as text.
//!
//! Two runs of one seed must give the same hash: that is how determinism is tested, and why a
//! failing seed can be replayed with text switched on.

use std::fmt::{self, Write as _};

use meridian_base::env::Instant;

/// What a run keeps of its events. To put all of them into words takes a good part of its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// How many there were.
    Count,
    /// A hash of their words, too.
    Digest,
    /// And the words, on standard output.
    Print,
}

/// The trace of one run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    event_count: u64,
    detail: Detail,
    line: String,
}

impl Trace {
    /// A trace without events.
    pub fn new(detail: Detail) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, event_count: 0, detail, line: String::new() }
    }

    /// Adds an event.
    pub fn event(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        self.event_count += 1;
        if self.detail == Detail::Count {
            return;
        }
        self.line.clear();
        // Writing to a String can't fail.
        let _ = write!(self.line, "{:>12.6} {what}", now.as_micros() as f64 / 1e6);
        for chunk in self.line.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.hash = (self.hash.rotate_left(5) ^ u64::from_le_bytes(word))
                .wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        if self.detail == Detail::Print {
            println!("{}", self.line);
        }
    }

    /// Digest of all events so far, unless they are only counted.
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
        let mut trace = Trace::new(Detail::Digest);
        for event in events {
            trace.event(Instant::ZERO, format_args!("{event}"));
        }
        trace.digest()
    }

    #[test]
    fn events_are_counted_whatever_is_kept_of_them() {
        for detail in [Detail::Count, Detail::Digest] {
            let mut trace = Trace::new(detail);
            trace.event(Instant::ZERO, format_args!("a"));
            assert_eq!(trace.event_count(), 1);
        }
    }

    #[test]
    fn order_and_contents_matter() {
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["b", "a"]));
        assert_ne!(digest(&["a"]), digest(&["a", "a"]));
    }
}
