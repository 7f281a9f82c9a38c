//! A source partition as simple as can be, and all that can happen to one.

use bytes::Bytes;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_mirror::partition::{Answer, BatchId, Failure, Question, SourceBatch};

/// Batches of one answer to a fetch.
const FETCH_COUNT_MAX: usize = 3;

/// The source.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) topic: u128,
    pub(crate) is_deleted: bool,
    pub(crate) is_compacted: bool,
    pub(crate) epoch: i32,
    pub(crate) batches: Vec<BatchId>,
    pub(crate) start: i64,
    pub(crate) end: i64,
    /// What it says is committed.
    pub(crate) high_watermark: i64,
    /// What is committed: a new leader may not know yet.
    committed: i64,
    next_crc: u32,
}

impl Source {
    pub(crate) fn new(topic: u128, is_compacted: bool) -> Self {
        Self {
            topic,
            is_deleted: false,
            is_compacted,
            epoch: 0,
            batches: Vec::new(),
            start: 0,
            end: 0,
            high_watermark: 0,
            committed: 0,
            next_crc: 1,
        }
    }

    pub(crate) fn produce(&mut self, records: u8) {
        self.batches.push(BatchId {
            base_offset: Offset::new(self.end),
            last_offset: Offset::new(self.end + i64::from(records) - 1),
            leader_epoch: LeaderEpoch::new(self.epoch),
            crc: self.next_crc,
        });
        self.next_crc += 1;
        self.end += i64::from(records);
    }

    pub(crate) fn commit(&mut self) {
        self.committed = self.end;
        self.high_watermark = self.end;
    }

    /// A clean election: what was not committed may be gone.
    pub(crate) fn restart(&mut self) {
        let keep = self.committed;
        self.truncate_to(keep);
        self.epoch += 1;
    }

    /// Loses its last batches; returns how many of them were committed.
    pub(crate) fn lose(&mut self, count: u8) -> usize {
        let keep = self.batches.len().saturating_sub(usize::from(count));
        let lost = self.batches.split_off(keep);
        let committed = lost.iter().filter(|id| id.last_offset.get() < self.committed);
        let committed_count = committed.count();
        if let Some(first) = lost.first() {
            let end = first.base_offset.get().max(self.start);
            self.truncate_to(end);
        }
        committed_count
    }

    fn truncate_to(&mut self, end: i64) {
        self.batches.retain(|id| id.last_offset.get() < end);
        self.end = self.end.min(end);
        self.committed = self.committed.min(end);
        self.high_watermark = self.high_watermark.min(end);
    }

    /// Removes one committed batch that is not the last.
    pub(crate) fn compact(&mut self, chance: u8) {
        let candidates = self.batches.len().saturating_sub(1);
        if let Some(index) = usize::from(chance).checked_rem(candidates)
            && self.batches[index].last_offset.get() < self.high_watermark
        {
            self.batches.remove(index);
        }
    }

    /// Moves the log start somewhere up to the high watermark, also into a batch.
    pub(crate) fn let_go(&mut self, chance: u8) {
        let room = self.high_watermark - self.start;
        self.start += i64::from(chance).checked_rem(room + 1).unwrap_or(0);
        let start = self.start;
        self.batches.retain(|id| id.last_offset.get() >= start);
    }

    /// The end of the last batch that ends at `offset` or below; at least that of the first, if its log begins amid it.
    pub(crate) fn boundary_at_most(&self, offset: i64) -> i64 {
        let ends = self.batches.iter().map(|id| id.last_offset.get() + 1);
        let first = self.batches.first().filter(|id| id.base_offset.get() < self.start);
        let least = first.map_or(self.start, |id| id.last_offset.get() + 1);
        ends.filter(|end| *end <= offset).max().unwrap_or(least).max(least)
    }

    pub(crate) fn recreate(&mut self) {
        let next_crc = self.next_crc;
        *self = Self { next_crc, ..Self::new(self.topic + 1, self.is_compacted) };
    }

    pub(crate) fn answer(&self, epoch: i32, question: Question) -> Result<Answer, Failure> {
        if epoch != self.epoch || self.is_deleted {
            return Err(Failure::Unreachable("another epoch".to_owned()));
        }
        match question {
            Question::EpochEnd { epoch } => Ok(Answer::EpochEnd(self.epoch_end(epoch.get()))),
            Question::Bounds => Ok(Answer::Bounds {
                start: Offset::new(self.start),
                high_watermark: Offset::new(self.high_watermark),
            }),
            Question::Fetch { from } => self.fetch(from.get()),
        }
    }

    /// As Kafka's leader epoch cache answers.
    fn epoch_end(&self, epoch: i32) -> Option<(LeaderEpoch, Offset)> {
        let mut starts: Vec<(i32, i64)> = Vec::new();
        for id in &self.batches {
            let epoch = id.leader_epoch.get();
            if starts.last().is_none_or(|(last, _)| *last < epoch) {
                starts.push((epoch, id.base_offset.get().max(self.start)));
            }
        }
        if starts.last().is_none_or(|(last, _)| *last < self.epoch) {
            starts.push((self.epoch, self.end));
        }
        if epoch > self.epoch {
            return None;
        }
        let later = starts.iter().find(|(other, _)| *other > epoch);
        let found = starts.iter().rev().find(|(other, _)| *other <= epoch);
        let end = later.map_or(self.end, |(_, start)| *start);
        let found = found.map_or(epoch, |(found, _)| *found);
        Some((LeaderEpoch::new(found), Offset::new(end)))
    }

    fn fetch(&self, from: i64) -> Result<Answer, Failure> {
        if from < self.start || from > self.end {
            return Err(Failure::OutOfRange);
        }
        let found = self.batches.iter().filter(|id| id.last_offset.get() >= from);
        let batch = |id: &BatchId| SourceBatch { id: *id, bytes: Bytes::from_static(b"batch") };
        Ok(Answer::Fetched {
            from: Some(Offset::new(from)),
            goes_on: false,
            batches: found.take(FETCH_COUNT_MAX).map(batch).collect(),
            start: Offset::new(self.start),
            high_watermark: Offset::new(self.high_watermark),
        })
    }
}
