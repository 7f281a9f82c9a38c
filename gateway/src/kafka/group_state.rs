//! What a coordinator holds of its groups, and how changes of it reach the log.
//!
//! A decision of a group takes effect in memory at once, and its record is pushed to the
//! [`Journal`]; nobody is told of it before the record is committed. If it cannot be, the whole
//! coordinator is given up and loaded anew, so that memory is never ahead of the log for long.
//! Positions are the other way round: they are in memory once they are committed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_protocol::records::{BatchHeader, EndTxnMarker, Record};
use meridian_storage::codec::DecodeError;
use meridian_storage::mutation::Mutation;
use tokio::sync::{Notify, oneshot};

use super::Front;
pub(super) use super::any_group::AnyGroup;
use super::error::ApiError;
use super::group_record::{self, ClassicRecord, ConsumerRecord, RecordKey};
use super::journal::{Entry, Journal, Write, WriteNumber};
use super::offset_compaction::Compaction;
use super::offset_record::{self, Committed, OffsetKey};
use super::pending_offsets::{PendingOffsets, PendingWrite};
use crate::group::consumer::{ConsumerGroup, ConsumerGroupLimits};
use crate::group::{ClassicImage, Group, GroupError, GroupLimits, Joined, Output};

/// What a member that waits is told in the end.
#[derive(Debug)]
pub(super) enum Told {
    Joined(Result<Joined, GroupError>),
    Synced(Result<Bytes, GroupError>),
}

/// A member that waits.
pub(super) type Waiter = oneshot::Sender<Told>;

/// Who waits for a write.
pub(super) type Answer = oneshot::Receiver<Result<(), ErrorCode>>;

/// Positions of one group to write, or tombstones for `None`.
pub(super) type Changes = Vec<(OffsetKey, Option<Committed>)>;

/// What happens once a write is committed.
#[derive(Debug)]
pub(super) enum Effect {
    /// Nobody waits for it.
    Nothing,
    /// The members are told.
    Tell(Vec<Output<Waiter>>),
    /// Whoever waits is told.
    Answer(oneshot::Sender<Result<(), ErrorCode>>),
    /// The positions hold, and whoever waits is told.
    Offsets { group: String, changes: Changes, answer: oneshot::Sender<Result<(), ErrorCode>> },
}

impl Effect {
    /// It will not come to it.
    pub(super) fn fail(self, code: ErrorCode) {
        match self {
            // Members that wait are told as their waiters are dropped.
            Self::Nothing | Self::Tell(_) => {}
            Self::Answer(answer) | Self::Offsets { answer, .. } => {
                let _client_is_gone = answer.send(Err(code));
            }
        }
    }
}

/// Answers members. One that is gone is none of our business.
fn deliver(outputs: Vec<Output<Waiter>>) {
    for output in outputs {
        let _gone = match output {
            Output::Joined(waiter, result) => waiter.send(Told::Joined(result)),
            Output::Synced(waiter, result) => waiter.send(Told::Synced(result)),
        };
    }
}

/// Waits for what [`Groups::settled`] gave.
pub(super) async fn committed(answer: Option<Answer>) -> Result<(), ErrorCode> {
    match answer {
        None => Ok(()),
        Some(answer) => answer.await.unwrap_or(Err(ErrorCode::NotCoordinator)),
    }
}

/// What was last written for a partition, and where; `None` for a tombstone.
#[derive(Clone, Debug)]
struct Written {
    at: Offset,
    committed: Option<Committed>,
}

/// A group and its offsets.
#[derive(Debug)]
pub(super) struct GroupEntry {
    pub(super) group: AnyGroup,
    offsets: BTreeMap<OffsetKey, Written>,
    /// The group's own record, if there is one.
    record: Option<Entry>,
    /// When that was written.
    pub(super) recorded_at_ms: i64,
    /// Keys of what the group was before, to be deleted with the next change.
    obsolete: Vec<Bytes>,
    last_write: WriteNumber,
}

impl GroupEntry {
    fn new(limits: GroupLimits) -> Self {
        Self {
            group: AnyGroup::Classic(Group::new(limits)),
            offsets: BTreeMap::new(),
            record: None,
            recorded_at_ms: 0,
            obsolete: Vec::new(),
            last_write: WriteNumber::default(),
        }
    }

    /// The positions, by partition.
    pub(super) fn offsets(&self) -> impl Iterator<Item = (OffsetKey, &Committed)> {
        self.offsets.iter().filter_map(|(key, written)| Some((*key, written.committed.as_ref()?)))
    }

    /// One position.
    pub(super) fn offset(&self, key: OffsetKey) -> Option<&Committed> {
        self.offsets.get(&key)?.committed.as_ref()
    }

    /// Forgets the positions in topics that are gone.
    pub(super) fn forget_topics(&mut self, is_gone: impl Fn(TopicId) -> bool) {
        self.offsets.retain(|key, _| !is_gone(key.topic));
    }

    /// Applies a record of the log, in whatever order commits are heard of.
    pub(super) fn apply(&mut self, at: Offset, key: OffsetKey, committed: Option<Committed>) {
        let written = self.offsets.get(&key);
        if written.is_none_or(|written| written.at < at) {
            self.offsets.insert(key, Written { at, committed });
        }
    }

    /// Whether nothing would be lost with it.
    pub(super) fn is_forgettable(&self) -> bool {
        self.group.is_empty() && !self.group.has_deadlines() && self.offsets().next().is_none()
    }

    /// The group for who speaks the classic protocol. One of KIP-848 becomes one if it is empty.
    pub(super) fn classic(&mut self, front: &Front) -> Result<&mut Group<Waiter>, ErrorCode> {
        if let AnyGroup::Consumer(group) = &self.group {
            if !group.is_empty() {
                return Err(ErrorCode::InconsistentGroupProtocol);
            }
            let image = ClassicImage { generation: group.epoch(), ..Default::default() };
            self.become_another(AnyGroup::Classic(Group::restore(
                limits(front),
                image,
                front.now(),
            )));
        }
        match &mut self.group {
            AnyGroup::Classic(group) => Ok(group),
            AnyGroup::Consumer(_) => Err(ErrorCode::InconsistentGroupProtocol),
        }
    }

    /// The group for who speaks the protocol of KIP-848. A classic one becomes one if it is empty.
    pub(super) fn consumer(&mut self, front: &Front) -> Result<&mut ConsumerGroup, ApiError> {
        if let AnyGroup::Classic(group) = &self.group {
            if !(self.group.is_empty() && group.is_vacant()) {
                let text = "the group's members speak the classic protocol; stop them first";
                return Err(ApiError::new(ErrorCode::GroupIdNotFound, text));
            }
            // Epochs go on from generations, so that none is used twice.
            let epoch = group.generation();
            self.become_another(AnyGroup::Consumer(ConsumerGroup::new(
                consumer_limits(front),
                epoch,
            )));
        }
        match &mut self.group {
            AnyGroup::Consumer(group) => Ok(group),
            AnyGroup::Classic(_) => Err(ErrorCode::GroupIdNotFound.into()),
        }
    }

    /// Makes the group another one; the records of what it was are to be deleted.
    fn become_another(&mut self, group: AnyGroup) {
        self.group = group;
        self.obsolete.extend(self.record.take().map(|(key, _)| key));
    }

    /// All records that hold for this group.
    pub(super) fn records(&self, id: &str) -> impl Iterator<Item = Entry> {
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

    fn take_obsolete(&mut self) -> impl Iterator<Item = Entry> + use<> {
        std::mem::take(&mut self.obsolete).into_iter().map(|key| (key, None))
    }
}

/// The groups of one partition.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) by_id: HashMap<String, GroupEntry>,
    /// Those with deadlines to look at.
    active: BTreeSet<String>,
    pub(super) is_loaded: bool,
    /// Whether the log is worth shortening: see [`offset_compaction`](super::offset_compaction).
    pub(super) compaction: Compaction,
    pub(super) journal: Journal<Effect>,
    /// What transactions that are still open have committed.
    pub(super) pending: PendingOffsets,
    /// Rings when there is something to write, or nothing ever more.
    pub(super) bell: Arc<Notify>,
    /// Why this coordinator was given up.
    closed: Option<ErrorCode>,
}

impl Groups {
    /// No groups, as far as is known: `is_loaded` if the log says so.
    pub(super) fn new(is_loaded: bool) -> Self {
        Self { is_loaded, ..Self::default() }
    }

    /// A group, made if there is none and there is room.
    pub(super) fn entry(&mut self, front: &Front, id: &str) -> Result<&mut GroupEntry, ErrorCode> {
        let config = &front.config.group;
        if !self.by_id.contains_key(id) {
            if self.by_id.len() >= config.group_count_max {
                return Err(ErrorCode::PolicyViolation);
            }
            self.by_id.insert(id.to_owned(), GroupEntry::new(limits(front)));
        }
        self.active.insert(id.to_owned());
        self.by_id.get_mut(id).ok_or(ErrorCode::UnknownServerError)
    }

    /// Writes positions of a group.
    pub(super) fn write_offsets(&mut self, id: &str, changes: Changes) -> Answer {
        let (sender, answer) = oneshot::channel();
        let record = |(key, committed): &(OffsetKey, Option<Committed>)| {
            let value = committed.as_ref().map(offset_record::encode_value);
            (offset_record::encode_key(id, *key), value)
        };
        let records = changes.iter().map(record).collect();
        let effect = Effect::Offsets { group: id.to_owned(), changes, answer: sender };
        self.push(id, Write { records, effect });
        answer
    }

    /// Writes what changed in a group, and tells its members once that is committed.
    pub(super) fn tell(&mut self, front: &Front, id: &str, outputs: Vec<Output<Waiter>>) {
        let records = self.take_changes(front, id);
        if outputs.is_empty() && records.is_empty() {
            return;
        }
        if records.is_empty() && self.is_settled(id) {
            return deliver(outputs);
        }
        self.push(id, Write { records, effect: Effect::Tell(outputs) });
    }

    /// What to wait for before anybody is told how a group stands; `None` if that is committed.
    pub(super) fn settled(&mut self, id: &str) -> Option<Answer> {
        if self.is_settled(id) {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        self.push(id, Write { records: Vec::new(), effect: Effect::Answer(sender) });
        Some(answer)
    }

    /// Removes a group that has no members, once its tombstones are committed.
    pub(super) fn delete(&mut self, front: &Front, id: &str) -> Option<Answer> {
        let entry = self.by_id.get_mut(id)?;
        let changes = entry.offsets().map(|(key, _)| (key, None)).collect();
        entry.become_another(AnyGroup::Classic(Group::new(limits(front))));
        let records: Vec<Entry> = entry.take_obsolete().collect();
        if !records.is_empty() {
            self.push(id, Write { records, effect: Effect::Nothing });
        }
        Some(self.write_offsets(id, changes))
    }

    fn take_changes(&mut self, front: &Front, id: &str) -> Vec<Entry> {
        let now_ms = front.broker.wall_time_ms();
        self.by_id.get_mut(id).map(|entry| entry.take_changes(id, now_ms)).unwrap_or_default()
    }

    /// Looks at a group at the next tick.
    pub(super) fn watch(&mut self, id: String) {
        self.active.insert(id);
    }

    pub(super) fn is_settled(&self, id: &str) -> bool {
        self.by_id.get(id).is_none_or(|entry| self.journal.is_committed(entry.last_write))
    }

    fn push(&mut self, id: &str, write: Write<Effect>) {
        if let Some(code) = self.closed {
            return write.effect.fail(code);
        }
        let number = self.journal.push(write);
        if let Some(entry) = self.by_id.get_mut(id) {
            entry.last_write = number;
        }
        self.bell.notify_one();
    }

    /// Whether memory holds exactly what the log says: no batch is on its way, none of the queued
    /// writes changes a group, and no transaction is about to change positions.
    pub(super) fn is_as_written(&self) -> bool {
        let is_offsets = |write: &Write<Effect>| {
            write.records.is_empty() || matches!(write.effect, Effect::Offsets { .. })
        };
        !self.journal.is_in_flight()
            && self.journal.queued().all(is_offsets)
            && self.pending.is_empty()
    }

    /// Why this coordinator was given up, if it was.
    pub(super) fn closed(&self) -> Option<ErrorCode> {
        self.closed
    }

    /// Gives this coordinator up: whoever waits is told `code`.
    pub(super) fn close(&mut self, code: ErrorCode) {
        self.closed.get_or_insert(code);
        for write in self.journal.close() {
            write.effect.fail(code);
        }
        self.by_id.clear();
        self.pending = PendingOffsets::default();
        self.active.clear();
        self.bell.notify_one();
    }

    /// A batch of writes is committed, its first record at `base_offset`.
    pub(super) fn on_committed(
        &mut self,
        front: &Front,
        base_offset: Offset,
        writes: Vec<Write<Effect>>,
    ) {
        self.journal.on_committed();
        let mut at = base_offset;
        for Write { records, effect } in writes {
            match effect {
                Effect::Nothing => {}
                Effect::Tell(outputs) => deliver(outputs),
                Effect::Answer(answer) => {
                    let _client_is_gone = answer.send(Ok(()));
                }
                Effect::Offsets { group, changes, answer } => {
                    self.apply(front, at, group, changes);
                    let _client_is_gone = answer.send(Ok(()));
                }
            }
            at = at.advance(u32::try_from(records.len()).unwrap_or(u32::MAX));
        }
    }

    fn apply(&mut self, front: &Front, base_offset: Offset, group: String, changes: Changes) {
        let entry = self.by_id.entry(group).or_insert_with(|| GroupEntry::new(limits(front)));
        for (delta, (key, committed)) in (0u32..).zip(changes) {
            entry.apply(base_offset.advance(delta), key, committed);
        }
    }

    /// Applies positions whose transaction has committed.
    pub(super) fn apply_pending(
        &mut self,
        front: &Front,
        holds: impl IntoIterator<Item = PendingWrite>,
    ) {
        for PendingWrite { base_offset, group, changes } in holds {
            self.apply(front, base_offset, group, changes);
        }
    }

    /// Looks at the deadlines of all groups, and forgets groups that are not worth keeping.
    pub(super) fn tick(&mut self, front: &Front) {
        let now = front.now();
        for id in std::mem::take(&mut self.active) {
            let Some(entry) = self.by_id.get_mut(&id) else { continue };
            let mut outputs = Vec::new();
            entry.group.tick(now, &mut outputs);
            self.tell(front, &id, outputs);
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

fn limits(front: &Front) -> GroupLimits {
    GroupLimits {
        initial_rebalance_delay: front.config.group.initial_rebalance_delay,
        member_count_max: front.config.group.member_count_max,
    }
}

fn consumer_limits(front: &Front) -> ConsumerGroupLimits {
    ConsumerGroupLimits {
        session_timeout: front.config.group.consumer_session_timeout,
        member_count_max: front.config.group.member_count_max,
    }
}

/// What a log says of its groups, as it is read.
#[derive(Debug, Default)]
pub(super) struct Loading {
    classic: HashMap<String, Bytes>,
    consumer: HashMap<String, Bytes>,
    members: HashMap<String, HashMap<String, Bytes>>,
}

impl Loading {
    /// Applies a record of a batch.
    pub(super) fn apply(
        &mut self,
        front: &Front,
        groups: &mut Groups,
        batch: &BatchHeader,
        record: Record,
    ) -> Result<(), DecodeError> {
        let at = Offset::new(record.offset);
        if batch.attributes.is_control() {
            if let Some(marker) = EndTxnMarker::from_record(&record) {
                let holds = groups.pending.on_marker(batch.producer_id, at, marker.committed);
                groups.apply_pending(front, holds);
            }
            return Ok(());
        }
        match group_record::decode_key(record.key.unwrap_or_default())? {
            RecordKey::Offset(group, key) => {
                let committed = record.value.map(offset_record::decode_value).transpose()?;
                let changes = vec![(key, committed)];
                if batch.attributes.is_transactional() {
                    let write = PendingWrite { base_offset: at, group, changes };
                    groups.pending.on_found(batch.producer_id, write);
                } else if !(Mutation::PositionsForgotten.active(front.config.mutations)
                    && groups.by_id.get(&group).is_some_and(|it| it.offset(key).is_some()))
                {
                    groups.apply(front, at, group, changes);
                }
            }
            RecordKey::Classic(group) => put(&mut self.classic, group, record.value),
            RecordKey::Consumer(group) => put(&mut self.consumer, group, record.value),
            RecordKey::Member(group, member) => {
                put(self.members.entry(group).or_default(), member, record.value);
            }
        }
        Ok(())
    }

    /// The log ends here: groups go on from what it says.
    pub(super) fn finish(mut self, front: &Front, groups: &mut Groups) {
        for (id, value) in std::mem::take(&mut self.classic) {
            let restored = restore_classic(front, &id, value);
            add_restored(front, groups, id, restored);
        }
        for (id, value) in std::mem::take(&mut self.consumer) {
            let members = self.members.remove(&id).unwrap_or_default();
            let restored = restore_consumer(front, &id, value, members);
            add_restored(front, groups, id, restored);
        }
        groups.by_id.retain(|_, entry| !entry.is_forgettable() || entry.record.is_some());
        groups.is_loaded = true;
    }
}

/// A group as its record has it, that record, and when it was written.
type Restored = (AnyGroup, Entry, i64);

fn put(map: &mut HashMap<String, Bytes>, key: String, value: Option<Bytes>) {
    match value {
        // Bytes of its own, not a view of all that was read.
        Some(value) => drop(map.insert(key, Bytes::copy_from_slice(&value))),
        None => drop(map.remove(&key)),
    }
}

fn restore_classic(front: &Front, id: &str, value: Bytes) -> Result<Restored, DecodeError> {
    let record: ClassicRecord = group_record::decode_value(value.clone())?;
    let group = Group::restore(limits(front), record.image, front.now());
    Ok((AnyGroup::Classic(group), (group_record::classic_key(id), Some(value)), record.at_ms))
}

fn restore_consumer(
    front: &Front,
    id: &str,
    value: Bytes,
    members: HashMap<String, Bytes>,
) -> Result<Restored, DecodeError> {
    let record: ConsumerRecord = group_record::decode_value(value.clone())?;
    let member = |(id, value)| Ok((id, group_record::decode_value(value)?));
    let members: Result<Vec<_>, DecodeError> = members.into_iter().map(member).collect();
    let limits = consumer_limits(front);
    let group = ConsumerGroup::restore(limits, record.image, members?, front.now());
    Ok((AnyGroup::Consumer(group), (group_record::consumer_key(id), Some(value)), record.at_ms))
}

fn add_restored(
    front: &Front,
    groups: &mut Groups,
    id: String,
    restored: Result<Restored, DecodeError>,
) {
    match restored {
        Ok((group, record, at_ms)) => {
            let new = || GroupEntry::new(limits(front));
            let entry = groups.by_id.entry(id.clone()).or_insert_with(new);
            entry.group = group;
            entry.record = Some(record);
            entry.recorded_at_ms = at_ms;
            groups.active.insert(id);
        }
        Err(error) => tracing::error!(group = id, %error, "a group's record cannot be read"),
    }
}
