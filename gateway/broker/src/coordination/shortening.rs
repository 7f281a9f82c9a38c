//! How the log of a coordinator is made shorter: what holds is written once more, batch by batch, and the log is left
//! alone for a while when it refuses that: each attempt makes it longer (rule G8). Pure.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::retry::Backoff;
use meridian_storage::mutation::{Mutation, Mutations};

use super::journal::{Entry, entry_size_bytes};

/// When a log may be looked at again.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    until: Option<Instant>,
    backoff: Backoff,
    mutations: Mutations,
}

impl Rest {
    /// None yet. After a refusal it lasts for `pause_min`, and for twice as long after each one that follows, up to
    /// `pause_max`.
    pub fn new(pause_min: Duration, pause_max: Duration, mutations: Mutations) -> Self {
        Self { until: None, backoff: Backoff::new(pause_min, pause_max), mutations }
    }

    /// Whether the log is to be left alone.
    pub fn lasts(&self, now: Instant) -> bool {
        let never = Mutation::NeverRests.active(self.mutations);
        self.until.is_some_and(|until| now < until) && !never
    }

    /// The log has refused; gives how long it is left alone.
    pub fn on_refused(&mut self, now: Instant) -> Duration {
        let pause = self.backoff.pause();
        self.until = Some(now + pause);
        pause
    }

    /// The log was made shorter.
    pub fn on_done(&mut self) {
        self.until = None;
        self.backoff.reset();
    }
}

/// The records in their order, in pieces of a batch each.
pub fn pieces(records: Vec<Entry>, size_bytes_max: usize) -> Vec<Vec<Entry>> {
    let mut pieces: Vec<Vec<Entry>> = Vec::new();
    let mut size_bytes = 0;
    for entry in records {
        let entry_size_bytes = entry_size_bytes(&entry);
        size_bytes += entry_size_bytes;
        match pieces.last_mut() {
            Some(piece) if size_bytes <= size_bytes_max => piece.push(entry),
            _ => {
                size_bytes = entry_size_bytes;
                pieces.push(vec![entry]);
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE_BYTES_MAX: usize = 1000;

    #[test]
    fn pieces_are_no_larger_than_a_batch_and_keep_the_order() {
        let entry = |number: u32, size_bytes: usize| {
            let key = bytes::Bytes::copy_from_slice(&number.to_be_bytes());
            (key, Some(bytes::Bytes::from(vec![0; size_bytes])))
        };
        let sizes = [1, 450, 450, 7, SIZE_BYTES_MAX * 2, 3];
        let records: Vec<Entry> = (0..).zip(sizes).map(|(n, size)| entry(n, size)).collect();
        let cut = pieces(records.clone(), SIZE_BYTES_MAX);
        let counts: Vec<usize> = cut.iter().map(Vec::len).collect();
        assert_eq!(cut.concat(), records);
        assert_eq!(counts, [4, 1, 1]);
        assert_eq!(pieces(Vec::new(), SIZE_BYTES_MAX).len(), 0);
    }

    #[test]
    fn rests_grow_with_each_refusal_and_end_with_success() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(3));
        let mut rest = Rest::new(first, longest, Mutations::NONE);
        let now = Instant::from_micros(1_000_000);
        assert!(!rest.lasts(now));
        let pauses: Vec<Duration> = (0..3).map(|_| rest.on_refused(now)).collect();
        assert_eq!(pauses, [first, first * 2, longest]);
        assert!(rest.lasts(now + first * 2) && !rest.lasts(now + longest));
        rest.on_done();
        assert!(!rest.lasts(now));
        assert_eq!(rest.on_refused(now), first);
    }
}
