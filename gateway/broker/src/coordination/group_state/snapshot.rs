//! What a snapshot of groups and their offsets leaves out, and where the log may start after it.
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
//! Requests and transactions go on while the pieces are written. An offset that a transaction stages before its piece
//! is written stays where it is too, and the log starts no later than that; one that has changed by then
//! has a later record, which its old value must not follow. Neither ends the attempt: where transactions
//! overlap all the time, no attempt would ever come to its end.

use std::collections::BTreeSet;
use std::ops::Bound;

use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_storage::mutation::Mutation;

use super::{GroupEntry, Groups, Written};
use crate::coordination::group_record::{self, RecordKey};
use crate::coordination::offset_record::{self, OffsetKey};
use crate::coordinator::Piece;
use crate::coordinator::queue::{Entry, entry_size_bytes};

/// Where a piece begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotPlace {
    /// At this group.
    Group(String),
    /// At the offsets of this group after this one, or at all of them.
    Offsets(String, Option<OffsetKey>),
}

/// What a snapshot goes by.
#[derive(Debug, Default)]
pub(super) struct SnapshotState {
    /// What was in the log below when it began is in memory, and what has changed since is not below.
    begun_at: Offset,
    /// Topics that were deleted: their offsets go with the old part of the log.
    gone: BTreeSet<TopicId>,
}

impl SnapshotState {
    pub(super) fn begin(&mut self, begun_at: Offset, gone: BTreeSet<TopicId>) {
        *self = Self { begun_at, gone };
    }

    fn goes(&self, key: OffsetKey, written: &Written) -> bool {
        written.at < self.begun_at && self.gone.contains(&key.topic)
    }
}

impl<W> Groups<W> {
    /// How many records say all that holds of a group.
    pub(super) fn held_of(entry: &GroupEntry<W>) -> usize {
        let own = usize::from(entry.record.is_some());
        own + entry.group.member_record_count() + entry.offsets.len()
    }

    /// The records of what holds from this place on.
    pub(super) fn cut(
        &self,
        from: Option<SnapshotPlace>,
        size_bytes_max: usize,
    ) -> Piece<SnapshotPlace> {
        let (first, mut after) = match from {
            None => (String::new(), None),
            Some(SnapshotPlace::Group(id)) => (id, None),
            Some(SnapshotPlace::Offsets(id, after)) => (id, Some(after)),
        };
        let (mut records, mut size_bytes) = (Vec::new(), 0);
        let mut add = |entry: Entry| {
            size_bytes += entry_size_bytes(&entry);
            records.push(entry);
            size_bytes >= size_bytes_max
        };
        let mut next = None;
        'groups: for (id, entry) in self.by_id.range(first.clone()..) {
            let is_begun = *id == first;
            let (mut last, is_whole) = match after.take().filter(|_| is_begun) {
                Some(after) => (after, false),
                None => (None, true),
            };
            let mut is_full = false;
            if is_whole {
                // The members of a group and its epoch belong together.
                let own = entry.group.member_records(id).into_iter().chain(entry.record.clone());
                is_full = own.fold(false, |_, record| add(record));
            }
            let after = last.map_or(Bound::Unbounded, Bound::Excluded);
            for (key, written) in entry.offsets.range((after, Bound::Unbounded)) {
                if is_full {
                    next = Some(SnapshotPlace::Offsets(id.clone(), last));
                    break 'groups;
                }
                last = Some(*key);
                if !self.pending.is_pending(id, *key) && !self.snapshot.goes(*key, written) {
                    let value = offset_record::encode_value(&written.committed);
                    is_full = add((offset_record::encode_key(id, *key), Some(value)));
                }
            }
            if is_full {
                let after = (Bound::Excluded(id.as_str()), Bound::Unbounded);
                let following = self.by_id.range::<str, _>(after).next();
                next = following.map(|(id, _)| SnapshotPlace::Group(id.clone()));
                break;
            }
        }
        Piece { records, next }
    }

    /// What is to be written of a piece now: not the offsets that a transaction is about to change,
    /// which would void what it has staged, nor those that have changed since the snapshot was begun.
    pub(super) fn unchanged(&self, mut records: Vec<Entry>) -> Vec<Entry> {
        records.retain(|(key, _)| match group_record::decode_key(key.clone()) {
            Ok(RecordKey::Offset(id, key)) => self.is_unchanged(&id, key),
            _ => true,
        });
        records
    }

    fn is_unchanged(&self, id: &str, key: OffsetKey) -> bool {
        if Mutation::StaleWrittenAgain.active(self.limits.mutations) {
            return !self.pending.is_pending(id, key);
        }
        let written = self.by_id.get(id).and_then(|entry| entry.offsets.get(&key));
        let is_old = written.is_some_and(|written| written.at < self.snapshot.begun_at);
        is_old && !self.pending.is_pending(id, key)
    }

    /// What was [`unchanged`](Self::unchanged) of a piece is committed, its first record at `base_offset`.
    pub(super) fn on_written_again(&mut self, base_offset: Offset, records: &[Entry]) {
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
    pub(super) fn start_after_pieces(&self, began_at: Offset) -> Offset {
        if Mutation::StartAboveStaged.active(self.limits.mutations) {
            return began_at;
        }
        let held = self.by_id.values().flat_map(|entry| &entry.offsets);
        let held = held.filter(|(key, written)| !self.snapshot.goes(**key, written));
        let held = held.map(|(_, written)| written.at);
        held.chain(self.pending.lowest()).chain([began_at]).min().unwrap_or(began_at)
    }

    /// The latest start of the log that leaves all that is staged, and what holds meanwhile.
    pub(super) fn latest_start(&self, high_watermark: Offset) -> Offset {
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

    /// The log starts there: offsets of deleted topics are no longer in it.
    pub(super) fn forget_gone(&mut self, start: Offset) {
        let gone = std::mem::take(&mut self.snapshot.gone);
        for (id, entry) in &mut self.by_id {
            let count = entry.offsets.len();
            entry.offsets.retain(|key, it| it.at >= start || !gone.contains(&key.topic));
            if entry.offsets.len() < count {
                self.active.insert(id.clone());
            }
        }
    }
}
