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

use super::shares::share_entry;
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
    /// At what this share group keeps of partitions, after this one.
    Shares(String, Option<OffsetKey>),
}

/// What a piece has so far.
struct Cut {
    records: Vec<Entry>,
    size_bytes: usize,
    size_bytes_max: usize,
}

impl Cut {
    fn add(&mut self, entry: Entry) {
        self.size_bytes += entry_size_bytes(&entry);
        self.records.push(entry);
    }

    fn is_full(&self) -> bool {
        self.size_bytes >= self.size_bytes_max && !self.records.is_empty()
    }
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

    /// What share groups keep of deleted topics goes too.
    fn is_gone(&self, key: OffsetKey) -> bool {
        self.gone.contains(&key.topic)
    }

    fn goes(&self, key: OffsetKey, written: &Written) -> bool {
        written.at < self.begun_at && self.gone.contains(&key.topic)
    }
}

impl<W> Groups<W> {
    /// How many records say all that holds of a group.
    pub(super) fn held_of(entry: &GroupEntry<W>) -> usize {
        let own = usize::from(entry.record.is_some());
        own + entry.group.member_record_count() + entry.offsets.len() + entry.shares.len()
    }

    /// The records of what holds from this place on.
    pub(super) fn cut(
        &self,
        from: Option<SnapshotPlace>,
        size_bytes_max: usize,
    ) -> Piece<SnapshotPlace> {
        let first = match &from {
            None => "",
            Some(
                SnapshotPlace::Group(id)
                | SnapshotPlace::Offsets(id, _)
                | SnapshotPlace::Shares(id, _),
            ) => id,
        };
        let mut cut = Cut { records: Vec::new(), size_bytes: 0, size_bytes_max };
        let mut groups = self.by_id.range::<str, _>((Bound::Included(first), Bound::Unbounded));
        let mut from = from.clone();
        while let Some((id, entry)) = groups.next() {
            let from = from.take().filter(|_| id == first);
            let next = self.cut_group(id, entry, from, &mut cut).or_else(|| {
                let following = groups.clone().next().filter(|_| cut.is_full());
                following.map(|(id, _)| SnapshotPlace::Group(id.clone()))
            });
            if next.is_some() || cut.is_full() {
                return Piece { records: cut.records, next };
            }
        }
        Piece { records: cut.records, next: None }
    }

    /// The records of one group; gives where to go on if there is no room for all.
    fn cut_group(
        &self,
        id: &str,
        entry: &GroupEntry<W>,
        from: Option<SnapshotPlace>,
        cut: &mut Cut,
    ) -> Option<SnapshotPlace> {
        let (mut last_offset, mut last_share) = (None, None);
        let mut has_offsets = true;
        match from {
            None | Some(SnapshotPlace::Group(_)) => {
                // The members of a group and its epoch belong together.
                let own = entry.group.member_records(id).into_iter().chain(entry.record.clone());
                own.for_each(|record| cut.add(record));
            }
            Some(SnapshotPlace::Offsets(_, after)) => last_offset = after,
            Some(SnapshotPlace::Shares(_, after)) => (has_offsets, last_share) = (false, after),
        }
        let after = last_offset.map_or(Bound::Unbounded, Bound::Excluded);
        let offsets = entry.offsets.range((after, Bound::Unbounded)).filter(|_| has_offsets);
        for (key, written) in offsets {
            if cut.is_full() {
                return Some(SnapshotPlace::Offsets(id.to_owned(), last_offset));
            }
            last_offset = Some(*key);
            if !self.pending.is_pending(id, *key) && !self.snapshot.goes(*key, written) {
                let value = offset_record::encode_value(&written.committed);
                cut.add((offset_record::encode_key(id, *key), Some(value)));
            }
        }
        let after = last_share.map_or(Bound::Unbounded, Bound::Excluded);
        for (key, state) in entry.shares.range((after, Bound::Unbounded)) {
            if cut.is_full() {
                return Some(SnapshotPlace::Shares(id.to_owned(), last_share));
            }
            last_share = Some(*key);
            if !self.snapshot.is_gone(*key) {
                cut.add(share_entry(id, *key, state));
            }
        }
        None
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
            let count = entry.offsets.len() + entry.shares.len();
            entry.offsets.retain(|key, it| it.at >= start || !gone.contains(&key.topic));
            entry.shares.retain(|key, _| !gone.contains(&key.topic));
            if entry.offsets.len() + entry.shares.len() < count {
                self.active.insert(id.clone());
            }
        }
    }
}
