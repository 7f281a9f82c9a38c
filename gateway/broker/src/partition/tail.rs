//! The newest committed records of a partition, kept in memory for readers at its end.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use meridian_base::position::Offset;

/// One record batch, in up to two pieces: the rewritten head and the untouched rest.
#[derive(Clone, Debug)]
pub struct BatchSlice {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset of its last record.
    pub last_offset: Offset,
    /// Largest record timestamp; as it is appended or replayed, the time of the append if its records
    /// have none.
    pub max_timestamp_ms: i64,
    /// The first bytes.
    pub head: Bytes,
    /// The bytes after them; empty if `head` is the whole batch.
    pub body: Bytes,
}

impl BatchSlice {
    /// Length of both pieces.
    pub fn size_bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Both pieces as one.
    pub fn bytes(&self) -> Bytes {
        if self.body.is_empty() {
            return self.head.clone();
        }
        [&self.head[..], &self.body[..]].concat().into()
    }
}

/// The batches of one blob of records.
#[derive(Clone, Debug)]
pub struct RecordBlob {
    base_offset: Offset,
    size_bytes: usize,
    batches: Vec<BatchSlice>,
}

impl RecordBlob {
    /// A blob of `batches`, the first of which begins at `base_offset`.
    pub fn new(base_offset: Offset, batches: Vec<BatchSlice>) -> Self {
        let size_bytes = batches.iter().map(BatchSlice::size_bytes).sum();
        Self { base_offset, size_bytes, batches }
    }

    /// Its batches in order.
    pub fn batches(&self) -> &[BatchSlice] {
        &self.batches
    }

    /// Bytes of all its batches.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    fn next_offset(&self) -> Offset {
        self.batches.last().map_or(self.base_offset, |last| last.last_offset.advance(1))
    }
}

/// Batches taken for a fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Whole batches, in pieces.
    pub pieces: Vec<Bytes>,
    /// Offset after their last record; `None` if there are none.
    pub end_offset: Option<Offset>,
}

/// Takes whole batches from `batches` on behalf of a fetch: those that hold `range.start` or come
/// after it, and begin before `range.end`, up to `size_bytes_max`; the first always, so that a
/// reader never gets stuck.
pub fn take_batches<'a>(
    batches: impl Iterator<Item = &'a BatchSlice>,
    range: Range<Offset>,
    size_bytes_max: usize,
) -> Taken {
    let mut taken = Taken::default();
    let mut size_bytes = 0;
    let batches = batches.skip_while(|batch| batch.last_offset < range.start);
    for batch in batches.take_while(|batch| batch.base_offset < range.end) {
        size_bytes += batch.size_bytes();
        if size_bytes > size_bytes_max && !taken.pieces.is_empty() {
            break;
        }
        taken.end_offset = Some(batch.last_offset.advance(1));
        taken.pieces.push(batch.head.clone());
        if !batch.body.is_empty() {
            taken.pieces.push(batch.body.clone());
        }
    }
    taken
}

/// Less is not worth keeping when memory is short.
const SHRUNK_SIZE_BYTES_MIN: usize = 64 << 10;

/// A bounded run of the newest committed blobs, without gaps.
#[derive(Debug)]
pub struct TailCache {
    blobs: VecDeque<RecordBlob>,
    size_bytes: usize,
    size_bytes_max: usize,
}

impl TailCache {
    /// An empty cache of at most `size_bytes_max` (one blob always fits).
    pub fn new(size_bytes_max: usize) -> Self {
        Self { blobs: VecDeque::new(), size_bytes: 0, size_bytes_max }
    }

    /// Adds the next committed blob; the oldest go when it gets too large.
    pub fn push(&mut self, blob: RecordBlob) {
        debug_assert!(self.blobs.back().is_none_or(|last| last.next_offset() == blob.base_offset));
        self.size_bytes += blob.size_bytes;
        self.blobs.push_back(blob);
        while self.size_bytes > self.size_bytes_max && self.blobs.len() > 1 {
            if let Some(oldest) = self.blobs.pop_front() {
                self.size_bytes -= oldest.size_bytes;
            }
        }
    }

    /// Reads from `from` on; `None` if that offset is not in the cache.
    pub fn read(&self, from: Offset, size_bytes_max: usize) -> Option<Vec<Bytes>> {
        let end = self.blobs.back()?.next_offset();
        Some(self.read_range(from..end, size_bytes_max)?.pieces)
    }

    /// Reads batches that begin in `range`, the one before that holds its start included; `None`
    /// if the start is not in the cache.
    pub fn read_range(&self, range: Range<Offset>, size_bytes_max: usize) -> Option<Taken> {
        let from = range.start;
        if self.blobs.front()?.base_offset > from || self.blobs.back()?.next_offset() <= from {
            return None;
        }
        let first = self.blobs.partition_point(|blob| blob.next_offset() <= from);
        let batches = self.blobs.range(first..).flat_map(|blob| blob.batches.iter());
        Some(take_batches(batches, range, size_bytes_max))
    }

    /// Forgets the older half, or all if that is little.
    pub fn shrink(&mut self) {
        let size_bytes =
            if self.size_bytes < SHRUNK_SIZE_BYTES_MIN { 0 } else { self.size_bytes / 2 };
        while self.size_bytes > size_bytes
            && let Some(oldest) = self.blobs.pop_front()
        {
            self.size_bytes -= oldest.size_bytes;
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.blobs.clear();
        self.size_bytes = 0;
    }

    /// Offset of the first record.
    pub fn base_offset(&self) -> Option<Offset> {
        Some(self.blobs.front()?.base_offset)
    }

    /// Bytes held.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(base: i64, batches: &[(u32, usize)]) -> RecordBlob {
        let mut next = Offset::new(base);
        let slices = batches
            .iter()
            .map(|(records, size_bytes)| {
                let base_offset = next;
                next = next.advance(*records);
                BatchSlice {
                    base_offset,
                    last_offset: Offset::new(next.get() - 1),
                    max_timestamp_ms: 0,
                    head: vec![0; *size_bytes].into(),
                    body: Bytes::new(),
                }
            })
            .collect();
        RecordBlob::new(Offset::new(base), slices)
    }

    fn sizes(pieces: Option<Vec<Bytes>>) -> Option<Vec<usize>> {
        pieces.map(|pieces| pieces.iter().map(Bytes::len).collect())
    }

    #[test]
    fn reads_whole_batches_from_the_one_that_holds_the_offset() {
        let mut cache = TailCache::new(1000);
        cache.push(blob(10, &[(5, 100), (5, 101)]));
        cache.push(blob(20, &[(1, 102)]));
        assert_eq!(sizes(cache.read(Offset::new(17), 1000)), Some(vec![101, 102]));
        assert_eq!(sizes(cache.read(Offset::new(17), 1)), Some(vec![101]));
        assert_eq!(sizes(cache.read(Offset::new(9), 1000)), None);
        assert_eq!(sizes(cache.read(Offset::new(21), 1000)), None);
    }

    #[test]
    fn nothing_that_begins_at_the_end_of_the_range_is_read() {
        let mut cache = TailCache::new(1000);
        cache.push(blob(10, &[(5, 100), (5, 101), (1, 102)]));
        let read = |until| {
            let taken = cache.read_range(Offset::new(12)..Offset::new(until), 1000);
            taken.map(|taken| (taken.pieces.len(), taken.end_offset.map(Offset::get)))
        };
        assert_eq!(read(21), Some((3, Some(21))));
        assert_eq!(read(20), Some((2, Some(20))));
        assert_eq!(read(15), Some((1, Some(15))));
        assert_eq!(read(10), Some((0, None)));
    }

    #[test]
    fn a_cache_that_shrinks_keeps_the_newest() {
        let mut cache = TailCache::new(1 << 20);
        for base in 0..8 {
            cache.push(blob(base, &[(1, 16 << 10)]));
        }
        cache.shrink();
        assert_eq!(cache.size_bytes(), 64 << 10);
        assert!(cache.read(Offset::new(3), 1).is_none());
        assert!(cache.read(Offset::new(4), 1).is_some());
        cache.shrink();
        cache.shrink();
        assert_eq!(cache.size_bytes(), 0);
        assert!(cache.read(Offset::new(7), 1).is_none());
        cache.push(blob(8, &[(1, 100)]));
        assert!(cache.read(Offset::new(8), 1).is_some());
    }

    #[test]
    fn the_oldest_blobs_go_first() {
        let mut cache = TailCache::new(250);
        for base in 0..5 {
            cache.push(blob(base, &[(1, 100)]));
        }
        assert_eq!(cache.size_bytes(), 200);
        assert!(cache.read(Offset::new(2), 1).is_none());
        assert!(cache.read(Offset::new(3), 1).is_some());
    }
}
