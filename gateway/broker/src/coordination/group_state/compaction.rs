//! When the log of a coordinator is worth shortening, and to what. Pure.
//!
//! All that holds is written once more, and the log starts there: but for offsets that a transaction
//! is about to change. What it has staged is decided by a marker to come, and is void if the same
//! partition has a later record. So these stay where they are, and the log starts no later.
//!
//! ```text
//! log   ... a  b  a  [b]  a  b'...a | a  c     written once more: a, c
//!                     |      +-- staged, not decided: b stays where it is
//!                     +-- the log starts here
//! ```
//!
//! Transactions go on while the pieces are written. An offset that one of them stages before its piece
//! is written stays where it is too, and the log starts no later than that; one that has changed by then
//! has a later record, which its old value must not follow. Neither ends the attempt: where transactions
//! overlap all the time, no attempt would ever come to its end.

use std::collections::BTreeSet;

use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_storage::mutation::Mutation;

use super::{Effect, GroupEntry, Groups};
use crate::coordination::Limits;
use crate::coordination::group_record::{self, RecordKey};
use crate::coordination::journal::{Entry, Write};
use crate::coordination::offset_record::{self, OffsetKey};

/// How many times as long as what holds a log may get.
const LENGTH_RATIO_MAX: i64 = 4;

/// All that holds, to be appended before anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The records.
    pub records: Vec<Entry>,
    /// The log starts no later once they are committed; see [`Groups::start_of`].
    pub start: Offset,
}

/// When to look at the log again.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotState {
    is_running: bool,
    /// What was in the log below when it began is in memory, and what has changed since is not below.
    begun_at: Offset,
    /// The number of records from which on it is worth a look.
    record_count_min: i64,
}

impl SnapshotState {
    pub(super) fn new(limits: Limits) -> Self {
        let record_count_min = limits.compacted_count_min;
        Self { is_running: false, begun_at: Offset::ZERO, record_count_min }
    }
}

impl<W> Groups<W> {
    /// Whether memory holds all that the log says and is not staged: no batch is on its way, and none
    /// of the queued writes changes a group.
    fn is_as_written(&self) -> bool {
        let is_offsets = |write: &Write<Effect<W>>| {
            write.records.is_empty() || matches!(write.effect, Effect::Offsets { .. })
        };
        !self.journal.is_in_flight() && self.journal.queued().all(is_offsets)
    }

    /// Whether it may be worth shortening the log, which is this long, and memory holds what it says.
    pub fn is_compaction_due(&self, log_start: Offset, high_watermark: Offset) -> bool {
        let freed_count = || self.start_max(high_watermark).get() - log_start.get();
        self.is_loaded
            && !self.snapshot.is_running
            && high_watermark.get() - log_start.get() >= self.snapshot.record_count_min
            && freed_count() >= self.snapshot.record_count_min
            && self.is_as_written()
    }

    /// The topics that offsets are committed of.
    pub fn topics(&self) -> BTreeSet<TopicId> {
        self.by_id.values().flat_map(|entry| entry.offsets.keys().map(|key| key.topic)).collect()
    }

    /// What is to be written of a piece now: not the offsets that a transaction is about to change,
    /// which would void what it has staged, nor those that have changed since it was begun.
    pub fn still_holding(&self, records: &[Entry]) -> Vec<Entry> {
        let holds = |(key, _): &&Entry| match group_record::decode_key(key.clone()) {
            Ok(RecordKey::Offset(id, key)) => self.is_unchanged(&id, key),
            _ => true,
        };
        records.iter().filter(holds).cloned().collect()
    }

    fn is_unchanged(&self, id: &str, key: OffsetKey) -> bool {
        if Mutation::StaleWrittenAgain.active(self.limits.mutations) {
            return !self.pending.is_pending(id, key);
        }
        let written = self.by_id.get(id).and_then(|entry| entry.offsets.get(&key));
        let is_old = written.is_some_and(|written| written.at < self.snapshot.begun_at);
        is_old && !self.pending.is_pending(id, key)
    }

    /// What [`Groups::still_holding`] gave of a piece is committed, its first record at `base_offset`.
    pub fn on_piece_written(&mut self, base_offset: Offset, records: &[Entry]) {
        for (delta, (key, _)) in (0u32..).zip(records) {
            let at = base_offset.advance(delta);
            self.hear(at);
            let Ok(RecordKey::Offset(id, key)) = group_record::decode_key(key.clone()) else {
                continue;
            };
            let entry = self.by_id.get_mut(&id);
            if let Some(written) = entry.and_then(|entry| entry.offsets.get_mut(&key)) {
                written.at = written.at.max(at);
            }
        }
    }

    /// Where the log may start now that all pieces are committed: before every offset that holds and
    /// was not written again, and before all that is staged.
    pub fn start_of(&self, snapshot_start: Offset) -> Offset {
        if Mutation::StartAboveStaged.active(self.limits.mutations) {
            return snapshot_start;
        }
        let held = self.by_id.values().flat_map(|entry| entry.offsets.values());
        let held = held.map(|written| written.at);
        held.chain(self.pending.lowest()).chain([snapshot_start]).min().unwrap_or(snapshot_start)
    }

    /// All that holds, if it is worth shortening the log, which is this long, to that, and memory
    /// holds what the log says. It is to be appended before anything else, as far as it is
    /// [still holding](Self::still_holding), and [`Groups::end_compaction`] called when that is over.
    pub fn begin_compaction(
        &mut self,
        log_start: Offset,
        high_watermark: Offset,
        is_gone: impl Fn(TopicId) -> bool,
    ) -> Option<Snapshot> {
        if !self.is_compaction_due(log_start, high_watermark) {
            return None;
        }
        let start = self.start_max(high_watermark);
        let freed_count = start.get() - log_start.get();
        self.by_id.values_mut().for_each(|entry| entry.forget_topics(&is_gone));
        let held: usize = self.by_id.iter().map(|(id, it)| self.records_of(id, it).count()).sum();
        let worth = (held as i64).saturating_mul(LENGTH_RATIO_MAX);
        self.snapshot.record_count_min = worth.max(self.limits.compacted_count_min);
        if freed_count < self.snapshot.record_count_min {
            return None;
        }
        self.snapshot.is_running = true;
        self.snapshot.begun_at = high_watermark;
        let records = self.by_id.iter().flat_map(|(id, entry)| self.records_of(id, entry));
        Some(Snapshot { records: records.collect(), start })
    }

    /// What was to be written once more is, or could not be.
    pub fn end_compaction(&mut self) {
        self.snapshot.is_running = false;
    }

    /// The latest start of the log that leaves all that is staged, and what holds meanwhile.
    fn start_max(&self, high_watermark: Offset) -> Offset {
        if Mutation::StartAboveStaged.active(self.limits.mutations) {
            return high_watermark;
        }
        let held = self.pending.keys().filter_map(|(id, key)| {
            let entry = self.by_id.get(id)?;
            entry.offsets.get(&key).map(|written| written.at)
        });
        let first = held.chain(self.pending.lowest()).min();
        first.map_or(high_watermark, |first| first.min(high_watermark))
    }

    /// All records that hold for a group, but for the offsets that a transaction is about to change.
    fn records_of<'g>(
        &'g self,
        id: &'g str,
        entry: &'g GroupEntry<W>,
    ) -> impl Iterator<Item = Entry> + 'g {
        let is_staged = |key: OffsetKey| self.pending.is_pending(id, key);
        let offsets = entry.offsets().filter(move |(key, _)| !is_staged(*key));
        let offsets = offsets.map(move |(key, committed)| {
            (offset_record::encode_key(id, key), Some(offset_record::encode_value(committed)))
        });
        entry.group.member_records(id).into_iter().chain(entry.record.clone()).chain(offsets)
    }
}
