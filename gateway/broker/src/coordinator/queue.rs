//! What a coordinator is to write: the records of many requests in one batch, and one batch at a time.
//!
//! ```text
//! decisions, pieces -- push --> queue -- take --> one batch -- committed --> what comes of them, in order
//!                                 ^                   |
//!                                 +-- gathers while --+
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
pub(crate) fn entry_size_bytes((key, value): &Entry) -> usize {
    key.len() + value.as_ref().map_or(0, Bytes::len)
}

#[derive(Debug)]
enum Queued<E> {
    Decision(Write<E>),
    Piece(Vec<Entry>),
}

/// What is written at once.
#[derive(Debug)]
pub(super) enum Batch<E> {
    /// Decisions, in their order.
    Decisions(Vec<Write<E>>),
    /// A piece of a snapshot.
    Piece(Vec<Entry>),
}

/// What was not taken yet.
#[derive(Debug)]
pub(super) struct WriteQueue<E> {
    queue: VecDeque<Queued<E>>,
}

impl<E> Default for WriteQueue<E> {
    fn default() -> Self {
        Self { queue: VecDeque::new() }
    }
}

impl<E> WriteQueue<E> {
    /// Adds a decision after all else.
    pub(super) fn push(&mut self, write: Write<E>) {
        self.queue.push_back(Queued::Decision(write));
    }

    /// Adds a piece of a snapshot after all else.
    pub(super) fn push_piece(&mut self, records: Vec<Entry>) {
        self.queue.push_back(Queued::Piece(records));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes what is written next: a piece, or as many whole decisions before the next piece as fit, one at least.
    pub(super) fn take(&mut self, size_bytes_max: usize) -> Option<Batch<E>> {
        let mut taken = Vec::new();
        let mut size_bytes = 0;
        while let Some(next) = self.queue.pop_front() {
            match next {
                Queued::Piece(records) if taken.is_empty() => return Some(Batch::Piece(records)),
                Queued::Decision(write)
                    if taken.is_empty() || size_bytes + write.size_bytes() <= size_bytes_max =>
                {
                    size_bytes += write.size_bytes();
                    taken.push(write);
                }
                next => {
                    self.queue.push_front(next);
                    break;
                }
            }
        }
        (!taken.is_empty()).then_some(Batch::Decisions(taken))
    }

    /// Gives up what was not taken.
    pub(super) fn close(&mut self) -> Vec<Write<E>> {
        let decision = |queued| match queued {
            Queued::Decision(write) => Some(write),
            Queued::Piece(_) => None,
        };
        self.queue.drain(..).filter_map(decision).collect()
    }

    /// Drops the piece that waits for its turn.
    pub(super) fn drop_piece(&mut self) {
        self.queue.retain(|queued| matches!(queued, Queued::Decision(_)));
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

    fn take(queue: &mut WriteQueue<u32>) -> Vec<u32> {
        match queue.take(100) {
            Some(Batch::Decisions(writes)) => writes.iter().map(|write| write.effect).collect(),
            Some(Batch::Piece(_)) => panic!("a piece"),
            None => Vec::new(),
        }
    }

    #[test]
    fn a_decision_is_never_split_and_a_large_one_goes_alone() {
        let mut queue = WriteQueue::default();
        for (size_bytes, effect) in [(40, 1), (40, 2), (40, 3), (400, 4), (0, 5), (1, 6)] {
            queue.push(write(size_bytes, effect));
        }
        for expected in [&[1, 2][..], &[3], &[4], &[5, 6], &[]] {
            assert_eq!(take(&mut queue), expected);
        }
    }

    #[test]
    fn a_piece_keeps_its_place_and_goes_alone() {
        let mut queue = WriteQueue::default();
        let piece = || vec![(Bytes::from_static(b"piece"), None)];
        queue.push(write(1, 1));
        queue.push_piece(piece());
        queue.push(write(1, 2));
        assert_eq!(take(&mut queue), [1]);
        let taken = queue.take(100);
        assert!(matches!(taken, Some(Batch::Piece(records)) if records == piece()));
        assert_eq!(take(&mut queue), [2]);
        queue.push_piece(piece());
        queue.push(write(1, 3));
        queue.drop_piece();
        assert_eq!(take(&mut queue), [3]);
    }

    #[test]
    fn closing_gives_back_what_was_not_taken() {
        let mut queue = WriteQueue::default();
        queue.push(write(1, 1));
        assert_eq!(take(&mut queue), [1]);
        queue.push(write(1, 2));
        queue.push_piece(Vec::new());
        let closed: Vec<u32> = queue.close().into_iter().map(|write| write.effect).collect();
        assert_eq!(closed, [2]);
        assert!(queue.is_empty());
    }
}
