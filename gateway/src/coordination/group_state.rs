//! What a coordinator holds of its groups, and how changes of it reach the log.
//!
//! A decision of a group takes effect in memory at once, and its record is pushed to the
//! [`Journal`]; nobody is told of it before the record is committed. If it cannot be, the whole
//! coordinator is given up and loaded anew, so that memory is never ahead of the log for long.
//! Positions are the other way round: they are in memory once they are committed.

mod loading;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_storage::mutation::Mutation;

pub use self::loading::Loading;
use super::Limits;
use super::any_group::AnyGroup;
use super::journal::{Entry, Journal, Write, WriteNumber};
use super::offset_record::{self, Committed, OffsetKey};
use super::pending_offsets::{PendingOffsets, PendingWrite};
use crate::group::consumer::ConsumerGroup;
use crate::group::{Caller, ClassicImage, Group, Output};

/// How many times as long as what holds a log may get.
const LENGTH_RATIO_MAX: i64 = 4;

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

/// What was last written for a partition, and where; `None` for a tombstone.
#[derive(Clone, Debug)]
struct Written {
    at: Offset,
    committed: Option<Committed>,
}

/// A group and its offsets.
#[derive(Debug)]
pub struct GroupEntry<W> {
    /// The group.
    pub group: AnyGroup<W>,
    limits: Limits,
    offsets: BTreeMap<OffsetKey, Written>,
    /// The group's own record, if there is one.
    record: Option<Entry>,
    /// When that was written.
    pub(crate) recorded_at_ms: i64,
    /// Keys of what the group was before, to be deleted with the next change.
    obsolete: Vec<Bytes>,
    last_write: WriteNumber,
}

impl<W> GroupEntry<W> {
    fn new(limits: Limits) -> Self {
        Self {
            group: AnyGroup::Classic(Group::new(limits.classic)),
            limits,
            offsets: BTreeMap::new(),
            record: None,
            recorded_at_ms: 0,
            obsolete: Vec::new(),
            last_write: WriteNumber::default(),
        }
    }

    /// The positions, by partition.
    pub fn offsets(&self) -> impl Iterator<Item = (OffsetKey, &Committed)> {
        self.offsets.iter().filter_map(|(key, written)| Some((*key, written.committed.as_ref()?)))
    }

    /// One position.
    pub fn offset(&self, key: OffsetKey) -> Option<&Committed> {
        self.offsets.get(&key)?.committed.as_ref()
    }

    /// Whether the caller may store positions. Members of KIP-848 must ask in a way that has member
    /// epochs.
    pub fn check_commit(
        &mut self,
        now: Instant,
        caller: &Caller,
        has_member_epochs: bool,
    ) -> Result<(), ErrorCode> {
        let checked = self.group.check_commit(now, caller, has_member_epochs, changes);
        let is_taken = Mutation::GenerationUnchecked.active(self.limits.mutations);
        if is_taken { Ok(()) } else { checked }
    }

    /// Forgets the positions in topics that are gone.
    fn forget_topics(&mut self, is_gone: impl Fn(TopicId) -> bool) {
        changes: &Changes,
        self.offsets.retain(|key, _| !is_gone(key.topic));
    }

    /// Applies a record of the log, in whatever order commits are heard of.
    fn apply(&mut self, at: Offset, key: OffsetKey, committed: Option<Committed>) {
        let written = self.offsets.get(&key);
        if written.is_none_or(|written| written.at < at) {
            self.offsets.insert(key, Written { at, committed });
        }
    }

    /// Whether nothing would be lost with it.
    pub fn is_forgettable(&self) -> bool {
        self.group.is_empty() && !self.group.has_deadlines() && self.offsets().next().is_none()
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
            AnyGroup::Consumer(_) => Err(ErrorCode::InconsistentGroupProtocol),
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
            AnyGroup::Classic(_) => None,
        }
    }

    /// Makes the group another one; the records of what it was are to be deleted.
    fn become_another(&mut self, group: AnyGroup<W>) {
        self.group = group;
        self.obsolete.extend(self.record.take().map(|(key, _)| key));
    }

    /// All records that hold for this group.
    fn records(&self, id: &str) -> impl Iterator<Item = Entry> {
        let offset = |(key, committed)| {
            (offset_record::encode_key(id, key), Some(offset_record::encode_value(committed)))
        };
        let members = self.group.member_records(id).into_iter();
        members.chain(self.record.clone()).chain(self.offsets().map(offset))
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

/// When to look at a log again.
#[derive(Clone, Copy, Debug)]
struct Compaction {
    is_running: bool,
    /// The number of records from which on it is worth a look.
    record_count_min: i64,
}

/// The groups of one partition. `W` names whoever waits for an answer.
#[derive(Debug)]
pub struct Groups<W> {
    /// The groups.
    pub by_id: BTreeMap<String, GroupEntry<W>>,
    limits: Limits,
    /// Those with deadlines to look at.
    active: BTreeSet<String>,
    /// Whether the log has been read.
    pub is_loaded: bool,
    compaction: Compaction,
    journal: Journal<Effect<W>>,
    /// What transactions that are still open have committed.
    pub pending: PendingOffsets,
    outcomes: Vec<Outcome<W>>,
    /// Why this coordinator was given up.
    closed: Option<ErrorCode>,
}

impl<W> Groups<W> {
    /// No groups, as far as is known: `is_loaded` if the log says so.
    pub fn new(limits: Limits, is_loaded: bool) -> Self {
        let record_count_min = limits.compacted_count_min;
        Self {
            by_id: BTreeMap::new(),
            limits,
            active: BTreeSet::new(),
            is_loaded,
            compaction: Compaction { is_running: false, record_count_min },
            journal: Journal::default(),
            pending: PendingOffsets::default(),
            outcomes: Vec::new(),
            closed: None,
        }
    }

    /// A group, made if there is none and there is room.
    pub fn entry(&mut self, id: &str) -> Result<&mut GroupEntry<W>, ErrorCode> {
        if !self.by_id.contains_key(id) {
            if self.by_id.len() >= self.limits.group_count_max {
                return Err(ErrorCode::PolicyViolation);
            }
            self.by_id.insert(id.to_owned(), GroupEntry::new(self.limits));
        }
        self.active.insert(id.to_owned());
        self.by_id.get_mut(id).ok_or(ErrorCode::UnknownServerError)
    }

    /// Whether the caller may store positions of a group, which may be unknown yet; see
    /// [`GroupEntry::check_commit`].
    pub fn check_commit(
        &mut self,
        id: &str,
        now: Instant,
        caller: &Caller,
        has_member_epochs: bool,
    ) -> Result<(), ErrorCode> {
        match self.by_id.get_mut(id) {
            Some(entry) => entry.check_commit(now, caller, has_member_epochs, changes),
            // Who is no member may be the first to store anything.
            None if caller.generation < 0 => Ok(()),
        changes: &Changes,
            None if Mutation::GenerationUnchecked.active(self.limits.mutations) => Ok(()),
            None if has_member_epochs => Err(ErrorCode::GroupIdNotFound),
            None => Err(ErrorCode::IllegalGeneration),
        }
    }

    /// What those who waited are to be told now.
    pub fn take_outcomes(&mut self) -> Vec<Outcome<W>> {
        std::mem::take(&mut self.outcomes)
    }

    /// Writes positions of a group.
    pub fn write_offsets(&mut self, id: &str, changes: Changes, mut waiter: Option<W>) {
        let record = |(key, committed): &(OffsetKey, Option<Committed>)| {
            let value = committed.as_ref().map(offset_record::encode_value);
            (offset_record::encode_key(id, *key), value)
        };
        if Mutation::CommitToldEarly.active(self.limits.mutations) {
            self.outcomes.extend(waiter.take().map(|waiter| Outcome::Written(waiter, Ok(()))));
        }
        let records = changes.iter().map(record).collect();
        let effect = Effect::Offsets { group: id.to_owned(), changes, waiter };
        self.push(id, Write { records, effect });
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
        entry.is_some_and(|entry| !self.journal.is_committed(entry.last_removal))
        if self.is_settled(id) {
            return self.outcomes.push(Outcome::Written(waiter, Ok(())));
        }
        self.push(id, Write { records: Vec::new(), effect: Effect::Answer(waiter) });
    }

    /// Removes a group that has no members, once its tombstones are committed.
    pub fn delete(&mut self, id: &str, waiter: W) {
        let limits = self.limits.classic;
        let Some(entry) = self.by_id.get_mut(id) else {
            return self.outcomes.push(Outcome::Written(waiter, Ok(())));
        };
        let changes = entry.offsets().map(|(key, _)| (key, None)).collect();
        entry.become_another(AnyGroup::Classic(Group::new(limits)));
        let records: Vec<Entry> = entry.take_obsolete().collect();
        if !records.is_empty() {
            self.push(id, Write { records, effect: Effect::Nothing });
        }
        self.write_offsets(id, changes, Some(waiter));
    }

    /// Looks at a group at the next tick.
    pub fn watch(&mut self, id: String) {
        self.active.insert(id);
    }

    /// Whether all that was decided of a group is committed.
    pub fn is_settled(&self, id: &str) -> bool {
        self.by_id.get(id).is_none_or(|entry| self.journal.is_committed(entry.last_write))
    }

    fn push(&mut self, id: &str, write: Write<Effect<W>>) {
        if let Some(code) = self.closed {
            return self.refuse(write, code);
        }
        let number = self.journal.push(write);
        if let Some(entry) = self.by_id.get_mut(id) {
            entry.last_write = number;
        }
    }

    /// Whether there is something to write, or nothing ever more.
    pub fn has_work(&self) -> bool {
        self.closed.is_some() || self.journal.queued().next().is_some()
    }

    /// Takes the writes of the next batch; see [`Journal::take`].
    pub fn take_writes(&mut self, size_bytes_max: usize) -> Vec<Write<Effect<W>>> {
        self.journal.take(size_bytes_max)
    }

    /// Whether memory holds exactly what the log says: no batch is on its way, none of the queued
    /// writes changes a group, and no transaction is about to change positions.
    fn is_as_written(&self) -> bool {
        let is_offsets = |write: &Write<Effect<W>>| {
            write.records.is_empty() || matches!(write.effect, Effect::Offsets { .. })
        };
        !self.journal.is_in_flight()
            && self.journal.queued().all(is_offsets)
            && self.pending.is_empty()
    }

    /// All that holds, if a log of `record_count` records is worth shortening to that and memory
    /// holds what the log says. It is to be appended before anything else, and
    /// [`Groups::end_compaction`] called when that is over.
    pub fn begin_compaction(
        &mut self,
        record_count: i64,
        is_gone: impl Fn(TopicId) -> bool,
    ) -> Option<Vec<Entry>> {
        let is_due = self.is_loaded
            && !self.compaction.is_running
            && record_count >= self.compaction.record_count_min
            && self.is_as_written();
        if !is_due {
            return None;
        }
        self.by_id.values_mut().for_each(|entry| entry.forget_topics(&is_gone));
        let held: usize = self.by_id.iter().map(|(id, it)| it.records(id).count()).sum();
        let worth = (held as i64).saturating_mul(LENGTH_RATIO_MAX);
        self.compaction.record_count_min = worth.max(self.limits.compacted_count_min);
        if record_count < self.compaction.record_count_min {
            return None;
        }
        self.compaction.is_running = true;
        Some(self.by_id.iter().flat_map(|(id, entry)| entry.records(id)).collect())
    }

    /// What was to be written once more is, or could not be.
    pub fn end_compaction(&mut self) {
        self.compaction.is_running = false;
    }

    /// Why this coordinator was given up, if it was.
    pub fn closed(&self) -> Option<ErrorCode> {
        self.closed
    }

    /// Gives this coordinator up: whoever waits is told `code`.
    pub fn close(&mut self, code: ErrorCode) {
        self.closed.get_or_insert(code);
        for write in self.journal.close() {
            self.refuse(write, code);
        }
        self.by_id.clear();
        self.pending = PendingOffsets::default();
        self.active.clear();
    }

    /// A write will not come to it.
    pub fn refuse(&mut self, write: Write<Effect<W>>, code: ErrorCode) {
        match write.effect {
            // Members that wait are told as their waiters are dropped.
            Effect::Nothing | Effect::Tell(_) => {}
            Effect::Answer(waiter) => self.outcomes.push(Outcome::Written(waiter, Err(code))),
            Effect::Offsets { waiter, .. } => {
                let told = |waiter| Outcome::Written(waiter, Err(code));
                self.outcomes.extend(waiter.map(told));
            }
        }
    }

    /// A batch of writes is committed, its first record at `base_offset`.
    pub fn on_committed(&mut self, base_offset: Offset, writes: Vec<Write<Effect<W>>>) {
        self.journal.on_committed();
        let mut at = base_offset;
        for Write { records, effect } in writes {
            match effect {
                Effect::Nothing => {}
                Effect::Tell(outputs) => {
                    self.outcomes.extend(outputs.into_iter().map(Outcome::Member));
                }
                Effect::Answer(waiter) => self.outcomes.push(Outcome::Written(waiter, Ok(()))),
                Effect::Offsets { group, changes, waiter } => {
                    self.apply(at, group, changes);
                    let told = |waiter| Outcome::Written(waiter, Ok(()));
                    self.outcomes.extend(waiter.map(told));
                }
            }
            at = at.advance(u32::try_from(records.len()).unwrap_or(u32::MAX));
        }
    }

    fn apply(&mut self, base_offset: Offset, group: String, changes: Changes) {
        let limits = self.limits;
        let entry = self.by_id.entry(group).or_insert_with(|| GroupEntry::new(limits));
        for (delta, (key, committed)) in (0u32..).zip(changes) {
            entry.apply(base_offset.advance(delta), key, committed);
        }
    }

    /// A transaction's positions are on their way to the log; gives their number.
    pub fn on_transactional_sent(&mut self, producer_id: i64, id: &str, changes: Changes) -> u64 {
        self.pending.on_sent(producer_id, id.to_owned(), changes)
    }

    /// They are there, the first at this offset, or (`None`) are not.
    pub fn on_transactional_written(
        &mut self,
        producer_id: i64,
        number: u64,
        base_offset: Option<Offset>,
    ) {
        let holds = self.pending.on_written(producer_id, number, base_offset);
        self.apply_pending(holds);
        if Mutation::PositionsBeforeMarker.active(self.limits.mutations) {
            let early = self.pending.on_marker(producer_id, Offset::new(i64::MAX), true);
            self.apply_pending(early);
        }
    }

    /// A marker is in the log.
    pub fn on_marker(&mut self, producer_id: i64, at: Offset, commit: bool) {
        let holds = self.pending.on_marker(producer_id, at, commit);
        self.apply_pending(holds);
    }

    fn apply_pending(&mut self, holds: impl IntoIterator<Item = PendingWrite>) {
        for PendingWrite { base_offset, group, changes } in holds {
            self.apply(base_offset, group, changes);
        }
    }

    /// Looks at the deadlines of all groups, and forgets groups that are not worth keeping.
    pub fn tick(&mut self, now: Instant, now_ms: i64) {
        for id in std::mem::take(&mut self.active) {
            let Some(entry) = self.by_id.get_mut(&id) else { continue };
            let mut outputs = Vec::new();
            entry.group.tick(now, &mut outputs);
            self.tell(&id, outputs, now_ms);
            let Some(entry) = self.by_id.get(&id) else { continue };
            if !entry.is_forgettable() {
                if entry.group.has_deadlines() {
                    self.active.insert(id);
                }
            } else if !self.journal.is_committed(entry.last_write) {
                self.active.insert(id);
            } else if let Some(mut entry) = self.by_id.remove(&id) {
                entry.obsolete.extend(entry.record.take().map(|(key, _)| key));
                let records: Vec<Entry> = entry.take_obsolete().collect();
                if !records.is_empty() {
                    self.push(&id, Write { records, effect: Effect::Nothing });
                }
            }
        }
    }
}
