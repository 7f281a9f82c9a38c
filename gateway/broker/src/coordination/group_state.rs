//! What a coordinator holds of its groups, and how changes of it reach the log.
//!
//! A decision of a group takes effect in memory at once, and its record is queued by the
//! [`Coordinator`](crate::coordinator::Coordinator); nobody is told of it before the record is committed. If it cannot
//! be, the whole coordinator is given up and loaded anew, so that memory is never ahead of the log for long.
//! Committed offsets are the other way round: they are in memory once they are committed. Which of
//! two counts is decided by where they are in the log, not by when they are heard of, so that a
//! coordinator that loads the log holds what one that wrote it holds.

mod expiry;
mod kept;
mod loading;
mod shares;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_storage::mutation::Mutation;

use self::loading::Loading;
pub use self::snapshot::SnapshotPlace;
use self::snapshot::SnapshotState;
use super::Limits;
use super::any_group::AnyGroup;
use super::group_record;
use super::offset_record::{self, Committed, OffsetKey};
use super::pending_offsets::{Decided, PendingOffsets, Staged};
use crate::coordinator::queue::{Entry, Write, entry_size_bytes};
use crate::group::consumer::ConsumerGroup;
use crate::group::{Caller, ClassicImage, Group, Output};
use crate::share::ShareState;

/// Bytes of committed offsets in one write.
const WRITE_SIZE_BYTES: usize = 1 << 20;

/// Positions of one group to write, or tombstones for `None`.
pub type Changes = Vec<(OffsetKey, Option<Committed>)>;

/// What somebody who waited is to be told. `W` names who.
#[derive(Debug)]
pub enum Outcome<W> {
    /// The answer to a join or sync.
    Member(Output<W>),
    /// Whether what was asked is in the log.
    Written(W, Result<(), ErrorCode>),
}

/// What happens once a write is committed.
#[derive(Debug)]
pub enum Effect<W> {
    /// Nobody waits for it.
    Nothing,
    /// The members are told.
    Tell(Vec<Output<W>>),
    /// Whoever waits is told.
    Answer(W),
    /// The positions hold, and whoever waits is told.
    Offsets {
        /// Whose.
        group: String,
        /// The positions.
        changes: Changes,
        /// Who waits.
        waiter: Option<W>,
    },
}

/// What was last written for a partition, and where.
#[derive(Clone, Debug)]
struct Written {
    at: Offset,
    committed: Committed,
}

/// A group and its offsets.
#[derive(Debug)]
pub struct GroupEntry<W> {
    /// The group.
    pub group: AnyGroup<W>,
    limits: Limits,
    offsets: BTreeMap<OffsetKey, Written>,
    /// What a share group keeps of partitions.
    shares: BTreeMap<OffsetKey, ShareState>,
    /// The group's own record, if there is one.
    record: Option<Entry>,
    /// When that was written.
    pub(crate) recorded_at_ms: i64,
    /// Keys of what the group was before, to be deleted with the next change.
    obsolete: Vec<Bytes>,
    last_write: WriteNumber,
    /// The last write that removes committed offsets.
    last_removal: WriteNumber,
}

impl<W> GroupEntry<W> {
    fn new(limits: Limits) -> Self {
        Self {
            group: AnyGroup::Classic(Group::new(limits.classic)),
            limits,
            offsets: BTreeMap::new(),
            shares: BTreeMap::new(),
            record: None,
            recorded_at_ms: 0,
            obsolete: Vec::new(),
            last_write: WriteNumber::default(),
            last_removal: WriteNumber::default(),
        }
    }

    /// The positions, by partition.
    pub fn offsets(&self) -> impl Iterator<Item = (OffsetKey, &Committed)> {
        self.offsets.iter().map(|(key, written)| (*key, &written.committed))
    }

    fn offset_keys(&self) -> impl Iterator<Item = OffsetKey> {
        self.offsets.keys().copied()
    }

    fn share_keys(&self) -> impl Iterator<Item = OffsetKey> {
        self.shares.keys().copied()
    }

    /// One position.
    pub fn offset(&self, key: OffsetKey) -> Option<&Committed> {
        self.offsets.get(&key).map(|written| &written.committed)
    }

    /// Whether the caller may store positions. Members of KIP-848 must ask in a way that has member
    /// epochs.
    pub fn check_commit(
        &mut self,
        now: Instant,
        caller: &Caller,
        has_member_epochs: bool,
        changes: &Changes,
    ) -> Result<(), ErrorCode> {
        let checked = self.group.check_commit(now, caller, has_member_epochs, changes);
        let is_taken = Mutation::GenerationUnchecked.active(self.limits.mutations);
        if is_taken { Ok(()) } else { checked }
    }

    /// Applies a record of the log, in whatever order commits are heard of.
    fn apply(&mut self, at: Offset, key: OffsetKey, committed: Option<Committed>) {
        if self.offsets.get(&key).is_some_and(|written| at < written.at) {
            return;
        }
        match committed {
            Some(committed) => drop(self.offsets.insert(key, Written { at, committed })),
            None => drop(self.offsets.remove(&key)),
        }
    }

    /// Whether it has neither members nor committed offsets, nor keeps anything of partitions that it shares.
    fn is_bare(&self) -> bool {
        let has_none = self.offsets.is_empty() && self.shares.is_empty();
        self.group.is_empty() && !self.group.has_deadlines() && has_none
    }

    /// The group for who speaks the classic protocol. One of KIP-848 becomes one if it is empty.
    pub fn classic(&mut self, now: Instant) -> Result<&mut Group<W>, ErrorCode> {
        if let AnyGroup::Consumer(group) = &self.group {
            if !group.is_empty() {
                return Err(ErrorCode::InconsistentGroupProtocol);
            }
            let image = ClassicImage { generation: group.epoch(), ..Default::default() };
            let group = Group::restore(self.limits.classic, image, now);
            self.become_another(AnyGroup::Classic(group));
        }
        match &mut self.group {
            AnyGroup::Classic(group) => Ok(group),
            AnyGroup::Consumer(_) | AnyGroup::Share(_) => Err(ErrorCode::InconsistentGroupProtocol),
        }
    }

    /// The group for who speaks the protocol of KIP-848. A classic one becomes one if it is empty;
    /// `None` if its members speak the classic protocol.
    pub fn consumer(&mut self) -> Option<&mut ConsumerGroup> {
        if let AnyGroup::Classic(group) = &self.group {
            if !(self.group.is_empty() && group.is_vacant()) {
                return None;
            }
            // Epochs go on from generations, so that none is used twice.
            let group = ConsumerGroup::new(self.limits.consumer, group.generation());
            self.become_another(AnyGroup::Consumer(group));
        }
        match &mut self.group {
            AnyGroup::Consumer(group) => Some(group),
            AnyGroup::Classic(_) | AnyGroup::Share(_) => None,
        }
    }

    /// Makes the group another one; the records of what it was are to be deleted.
    fn become_another(&mut self, group: AnyGroup<W>) {
        self.group = group;
        self.obsolete.extend(self.record.take().map(|(key, _)| key));
    }

    /// The records of what changed in the group, its own the last.
    fn take_changes(&mut self, id: &str, now_ms: i64) -> Vec<Entry> {
        let (mut entries, own) = self.group.take_changes(id, now_ms);
        if let Some(own) = own {
            self.record = Some(own.clone());
            self.recorded_at_ms = now_ms;
            entries.push(own);
        }
        if !entries.is_empty() {
            entries.extend(self.take_obsolete());
        }
        entries
    }

    fn take_obsolete(&mut self) -> impl Iterator<Item = Entry> + use<W> {
        std::mem::take(&mut self.obsolete).into_iter().map(|key| (key, None))
    }
}

/// The number of a decision, in order; zero is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct WriteNumber(u64);

/// What was decided, until the coordinator takes it; and how much of all that is committed.
#[derive(Debug)]
struct Decisions<W> {
    writes: Vec<Write<Effect<W>>>,
    pushed: WriteNumber,
    committed: WriteNumber,
}

/// The groups of one partition. `W` names whoever waits for an answer.
#[derive(Debug)]
pub struct Groups<W> {
    /// The groups.
    pub by_id: BTreeMap<String, GroupEntry<W>>,
    limits: Limits,
    /// Those with deadlines to look at.
    active: BTreeSet<String>,
    loading: Loading,
    snapshot: SnapshotState,
    /// The offset after the last record that was heard of.
    heard_to: Offset,
    decisions: Decisions<W>,
    /// What transactions that are still open have committed.
    pub pending: PendingOffsets,
    outcomes: Vec<Outcome<W>>,
}

impl<W> Groups<W> {
    /// No groups: what an empty log says.
    pub fn new(limits: Limits) -> Self {
        let (pushed, committed) = (WriteNumber::default(), WriteNumber::default());
        Self {
            by_id: BTreeMap::new(),
            limits,
            active: BTreeSet::new(),
            loading: Loading::default(),
            snapshot: SnapshotState::default(),
            heard_to: Offset::ZERO,
            decisions: Decisions { writes: Vec::new(), pushed, committed },
            pending: PendingOffsets::default(),
            outcomes: Vec::new(),
        }
    }

    /// A group, made if there is none and there is room.
    pub fn entry(&mut self, id: &str) -> Result<&mut GroupEntry<W>, ErrorCode> {
        if !self.by_id.contains_key(id) {
            if self.by_id.len() >= self.limits.group_count_max && !self.make_room() {
                return Err(ErrorCode::PolicyViolation);
            }
            self.by_id.insert(id.to_owned(), GroupEntry::new(self.limits));
        }
        self.active.insert(id.to_owned());
        self.by_id.get_mut(id).ok_or(ErrorCode::UnknownServerError)
    }

    /// Forgets a group that has neither members nor offsets, if there is one.
    fn make_room(&mut self) -> bool {
        let is_over = |(id, entry): &(&String, &GroupEntry<W>)| {
            entry.is_bare() && !self.pending.is_pending_of(id) && self.is_settled(id)
        };
        let found = self.by_id.iter().find(is_over).map(|(id, _)| id.clone());
        found.inspect(|id| self.forget(id)).is_some()
    }

    /// Whether the caller may store positions of a group, which may be unknown yet; see
    /// [`GroupEntry::check_commit`].
    pub fn check_commit(
        &mut self,
        id: &str,
        now: Instant,
        caller: &Caller,
        has_member_epochs: bool,
        changes: &Changes,
    ) -> Result<(), ErrorCode> {
        match self.by_id.get_mut(id) {
            Some(entry) => entry.check_commit(now, caller, has_member_epochs, changes),
            // Who is no member may be the first to store anything.
            None if caller.generation < 0 => Ok(()),
            None if Mutation::GenerationUnchecked.active(self.limits.mutations) => Ok(()),
            None if has_member_epochs => Err(ErrorCode::GroupIdNotFound),
            None => Err(ErrorCode::IllegalGeneration),
        }
    }

    /// A group, if it is there for clients: it has or had members, or something is committed or
    /// about to be.
    pub fn existing(&self, id: &str) -> Option<&GroupEntry<W>> {
        self.by_id.get(id).filter(|entry| self.exists(id, entry))
    }

    /// The groups that are there for clients.
    pub fn all_existing(&self) -> impl Iterator<Item = (&str, &GroupEntry<W>)> {
        let exists = |(id, entry): &(&String, &GroupEntry<W>)| self.exists(id, entry);
        self.by_id.iter().filter(exists).map(|(id, entry)| (id.as_str(), entry))
    }

    fn exists(&self, id: &str, entry: &GroupEntry<W>) -> bool {
        !entry.is_bare() || entry.record.is_some() || self.pending.is_pending_of(id)
    }

    /// Writes committed offsets of a group, or tombstones of them.
    pub fn write_offsets(&mut self, id: &str, changes: Changes, mut waiter: Option<W>) {
        let record = |(key, committed): &(OffsetKey, Option<Committed>)| {
            let value = committed.as_ref().map(offset_record::encode_value);
            (offset_record::encode_key(id, *key), value)
        };
        if Mutation::CommitToldEarly.active(self.limits.mutations) {
            self.outcomes.extend(waiter.take().map(|waiter| Outcome::Written(waiter, Ok(()))));
        }
        let removes = changes.iter().any(|(_, committed)| committed.is_none());
        // Each is written whole, and a batch has room for one: many go in several, the last of which has the answer.
        let (mut records, mut taken, mut size_bytes) = (Vec::new(), Vec::new(), 0);
        let mut changes = changes.into_iter().peekable();
        while let Some(change) = changes.next() {
            let entry = record(&change);
            size_bytes += entry_size_bytes(&entry);
            records.push(entry);
            taken.push(change);
            if size_bytes >= WRITE_SIZE_BYTES && changes.peek().is_some() {
                let records = std::mem::take(&mut records);
                let changes = std::mem::take(&mut taken);
                size_bytes = 0;
                let effect = Effect::Offsets { group: id.to_owned(), changes, waiter: None };
                self.push(id, Write { records, effect });
            }
        }
        let effect = Effect::Offsets { group: id.to_owned(), changes: taken, waiter };
        self.push(id, Write { records, effect });
        if removes && let Some(entry) = self.by_id.get_mut(id) {
            entry.last_removal = entry.last_write;
        }
    }

    /// Whether this is committed of a group, or nothing if it is negative, and nothing is about to
    /// change that.
    pub fn is_committed(&self, id: &str, key: OffsetKey, offset: i64) -> bool {
        let entry = self.by_id.get(id);
        let committed = entry.and_then(|entry| entry.offset(key)).map(|it| it.offset);
        let is_about_to_change = !self.is_settled(id) || self.pending.is_pending(id, key);
        !is_about_to_change && committed == Some(offset).filter(|offset| *offset >= 0)
    }

    /// Whether committed offsets of a group are being removed. Nothing is to be staged meanwhile: it
    /// would be in the log before the tombstones, which void what is before them.
    pub fn is_removing(&self, id: &str) -> bool {
        let ignored = Mutation::StagedBeforeTombstone.active(self.limits.mutations);
        let entry = self.by_id.get(id).filter(|_| !ignored);
        entry.is_some_and(|entry| entry.last_removal > self.decisions.committed)
    }

    /// Writes what changed in a group, and tells its members once that is committed.
    pub fn tell(&mut self, id: &str, outputs: Vec<Output<W>>, now_ms: i64) {
        let entry = self.by_id.get_mut(id);
        let records = entry.map(|entry| entry.take_changes(id, now_ms)).unwrap_or_default();
        if outputs.is_empty() && records.is_empty() {
            return;
        }
        let is_settled = records.is_empty() && self.is_settled(id);
        if is_settled || Mutation::AssignmentToldEarly.active(self.limits.mutations) {
            self.outcomes.extend(outputs.into_iter().map(Outcome::Member));
            if is_settled {
                return;
            }
            return self.push(id, Write { records, effect: Effect::Nothing });
        }
        self.push(id, Write { records, effect: Effect::Tell(outputs) });
    }

    /// Tells whoever asks how a group stands when that is committed.
    pub fn when_settled(&mut self, id: &str, waiter: W) {
        if self.is_settled(id) {
            return self.outcomes.push(Outcome::Written(waiter, Ok(())));
        }
        self.push(id, Write { records: Vec::new(), effect: Effect::Answer(waiter) });
    }

    /// Removes a group that has no members, with what transactions have staged for it, once its
    /// tombstones are committed.
    pub fn delete(&mut self, id: &str, waiter: W) {
        let limits = self.limits.classic;
        let Some(entry) = self.by_id.get_mut(id) else {
            return self.outcomes.push(Outcome::Written(waiter, Ok(())));
        };
        let mut keys = self.pending.keys_of(id);
        keys.extend(entry.offsets().map(|(key, _)| key));
        let changes = keys.into_iter().map(|key| (key, None)).collect();
        entry.become_another(AnyGroup::Classic(Group::new(limits)));
        let shares = std::mem::take(&mut entry.shares).into_keys();
        let shares = shares.map(|key| (group_record::share_state_key(id, key), None));
        let records: Vec<Entry> = shares.chain(entry.take_obsolete()).collect();
        if !records.is_empty() {
            self.push(id, Write { records, effect: Effect::Nothing });
        }
        self.write_offsets(id, changes, Some(waiter));
    }

    /// What the members of all groups make this coordinator hold, about.
    pub fn members_size_bytes(&self) -> usize {
        self.by_id.values().map(|entry| entry.group.members_size_bytes()).sum()
    }

    /// Looks at a group at the next tick.
    pub fn watch(&mut self, id: String) {
        self.active.insert(id);
    }

    /// Whether all that was decided of a group is committed.
    pub fn is_settled(&self, id: &str) -> bool {
        self.by_id.get(id).is_none_or(|entry| entry.last_write <= self.decisions.committed)
    }

    fn push(&mut self, id: &str, write: Write<Effect<W>>) {
        self.decisions.writes.push(write);
        self.decisions.pushed.0 += 1;
        if let Some(entry) = self.by_id.get_mut(id) {
            entry.last_write = self.decisions.pushed;
        }
    }

    fn hear(&mut self, at: Offset) {
        self.heard_to = self.heard_to.max(at.advance(1));
    }

    /// Applies a record of the log, as its writer and as one who reads it.
    fn apply(&mut self, at: Offset, group: &str, key: OffsetKey, committed: Option<Committed>) {
        self.hear(at);
        let limits = self.limits;
        if committed.is_none() && !Mutation::TombstoneForgotten.active(limits.mutations) {
            self.pending.void(group, key, at);
        }
        let entry = match self.by_id.get_mut(group) {
            Some(entry) => entry,
            None => self.by_id.entry(group.to_owned()).or_insert_with(|| GroupEntry::new(limits)),
        };
        entry.apply(at, key, committed);
        if entry.is_bare() {
            self.watch(group.to_owned());
        }
    }

    /// A transaction's offsets are on their way to the log; gives their number. Not to be called
    /// while the group [is removing](Self::is_removing) any.
    pub fn on_transactional_sent(&mut self, producer_id: i64, id: &str, changes: Changes) -> u64 {
        self.pending.on_sent(producer_id, id, changes, self.heard_to)
    }

    /// They are there, the first at this offset, or (`None`) are not.
    pub fn on_transactional_written(
        &mut self,
        producer_id: i64,
        number: u64,
        base_offset: Option<Offset>,
    ) {
        let decided = self.pending.on_written(producer_id, number, base_offset);
        self.apply_decided(decided);
        if Mutation::PositionsBeforeMarker.active(self.limits.mutations) {
            let early = self.pending.on_marker(producer_id, Offset::new(i64::MAX), true);
            self.apply_decided(early);
        }
    }

    /// A marker is in the log.
    pub fn on_marker(&mut self, producer_id: i64, at: Offset, commit: bool) {
        self.hear(at);
        let decided = self.pending.on_marker(producer_id, at, commit);
        self.apply_decided(decided);
    }

    fn apply_decided(&mut self, decided: Decided) {
        for Staged { at, group, key, committed } in decided.held {
            self.apply(at, &group, key, committed);
        }
        // One with nothing else is forgotten.
        for (group, _) in decided.keys {
            self.watch(group.to_string());
        }
    }

    /// Looks at the deadlines of all groups, and drops what a question left of groups that there
    /// never were. One that was there stays until [`Groups::expire`] finds it empty. Gives the next
    /// deadline, as far as is known now.
    pub fn tick(&mut self, now: Instant, now_ms: i64) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for id in std::mem::take(&mut self.active) {
            let Some(entry) = self.by_id.get_mut(&id) else { continue };
            let mut outputs = Vec::new();
            entry.group.tick(now, &mut outputs);
            self.tell(&id, outputs, now_ms);
            let Some(entry) = self.by_id.get(&id) else { continue };
            if self.exists(&id, entry) {
                if entry.group.has_deadlines() {
                    let deadline = entry.group.next_deadline();
                    next = next.into_iter().chain(deadline).min();
                    self.active.insert(id);
                }
            } else if entry.last_write > self.decisions.committed {
                self.active.insert(id);
            } else {
                self.forget(&id);
            }
        }
        next
    }

    /// Forgets a group, with its record if it has one.
    fn forget(&mut self, id: &str) {
        let Some(mut entry) = self.by_id.remove(id) else { return };
        entry.obsolete.extend(entry.record.take().map(|(key, _)| key));
        let records: Vec<Entry> = entry.take_obsolete().collect();
        if !records.is_empty() {
            self.push(id, Write { records, effect: Effect::Nothing });
        }
    }
}
