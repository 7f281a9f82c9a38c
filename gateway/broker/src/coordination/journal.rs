//! What a coordinator writes to its partition: the records of many requests in one batch, and one
//! batch at a time. Pure.
//!
//! ```text
//! handlers -- push --> queue -- take --> one batch -- committed --> effects, in order of the pushes
//!                        ^                   |
//!                        +-- gathers while --+
//! ```
//!
//! While a batch is on its way, all that comes gathers for the next one: a commit made alone waits
//! for nobody, and under load one write to the disks serves as many requests as came in its time.

use std::collections::VecDeque;

use bytes::Bytes;

/// A key and its value; `None` deletes it.
pub type Entry = (Bytes, Option<Bytes>);

/// Records that belong together, and what happens once they are committed. Without records the
/// effect waits for what was pushed before it.
#[derive(Debug)]
pub struct Write<E> {
    /// The records.
    pub records: Vec<Entry>,
    /// What happens then.
    pub effect: E,
}

impl<E> Write<E> {
    fn size_bytes(&self) -> usize {
        self.records.iter().map(entry_size_bytes).sum()
    }
}

/// What a key and its value take, about.
pub(super) fn entry_size_bytes((key, value): &Entry) -> usize {
    key.len() + value.as_ref().map_or(0, Bytes::len)
}

/// The number of a write, in order; zero is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteNumber(u64);

/// The writes of one coordinator that are not committed yet.
#[derive(Debug)]
pub struct Journal<E> {
    queue: VecDeque<Write<E>>,
    pushed: WriteNumber,
    committed: WriteNumber,
    /// Writes in the batch that is on its way.
    in_flight_count: u64,
}

impl<E> Default for Journal<E> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            pushed: WriteNumber::default(),
            committed: WriteNumber::default(),
            in_flight_count: 0,
        }
    }
}

impl<E> Journal<E> {
    /// Adds a write after all others.
    pub fn push(&mut self, write: Write<E>) -> WriteNumber {
        self.queue.push_back(write);
        self.pushed.0 += 1;
        self.pushed
    }

    /// Whether this write, and all before it, are committed.
    pub fn is_committed(&self, number: WriteNumber) -> bool {
        number <= self.committed
    }

    /// Whether a batch is on its way.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight_count > 0
    }

    /// The writes that wait for their turn.
    pub fn queued(&self) -> impl Iterator<Item = &Write<E>> {
        self.queue.iter()
    }

    /// Takes the writes of the next batch: as many whole ones as fit, at least one. None while
    /// another batch is on its way.
    pub fn take(&mut self, size_bytes_max: usize) -> Vec<Write<E>> {
        let mut taken: Vec<Write<E>> = Vec::new();
        if self.is_in_flight() {
            return taken;
        }
        let mut size_bytes = 0;
        while let Some(next) = self.queue.front() {
            size_bytes += next.size_bytes();
            if size_bytes > size_bytes_max && !taken.is_empty() {
                break;
            }
            taken.extend(self.queue.pop_front());
        }
        self.in_flight_count = taken.len() as u64;
        taken
    }

    /// The batch on its way is committed.
    pub fn on_committed(&mut self) {
        self.committed.0 += std::mem::take(&mut self.in_flight_count);
    }

    /// Gives up what waits for its turn.
    pub fn close(&mut self) -> Vec<Write<E>> {
        self.queue.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(size_bytes: usize, effect: u32) -> Write<u32> {
        let records = match size_bytes {
            0 => Vec::new(),
            _ => vec![(Bytes::from(vec![0; size_bytes]), None)],
        };
        Write { records, effect }
    }

    fn effects(writes: &[Write<u32>]) -> Vec<u32> {
        writes.iter().map(|write| write.effect).collect()
    }

    #[test]
    fn what_comes_while_a_batch_is_on_its_way_makes_the_next_one() {
        let mut journal = Journal::default();
        let first = journal.push(write(1, 1));
        assert_eq!(effects(&journal.take(100)), [1]);
        let second = journal.push(write(1, 2));
        let third = journal.push(write(0, 3));
        assert!(journal.take(100).is_empty(), "one at a time");
        assert!(!journal.is_committed(first));
        journal.on_committed();
        assert!(journal.is_committed(first) && !journal.is_committed(second));
        assert_eq!(effects(&journal.take(100)), [2, 3]);
        journal.on_committed();
        assert!(journal.is_committed(third) && !journal.is_in_flight());
    }

    #[test]
    fn a_write_is_never_split_and_a_large_one_goes_alone() {
        let mut journal = Journal::default();
        for (size_bytes, effect) in [(40, 1), (40, 2), (40, 3), (400, 4), (1, 5)] {
            journal.push(write(size_bytes, effect));
        }
        for expected in [&[1, 2][..], &[3], &[4], &[5]] {
            assert_eq!(effects(&journal.take(100)), expected);
            journal.on_committed();
        }
    }

    #[test]
    fn closing_gives_back_what_was_not_taken() {
        let mut journal = Journal::default();
        journal.push(write(1, 1));
        journal.take(100);
        let late = journal.push(write(1, 2));
        assert_eq!(effects(&journal.close()), [2]);
        assert!(!journal.is_committed(late));
    }
}
