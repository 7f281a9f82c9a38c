//! The coordinator of groups at its desk.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_broker::coordination::group_state::{Changes, Groups, Outcome};
use meridian_broker::coordination::offset_record::{self, Committed, OffsetKey};
use meridian_broker::coordination::{AnyGroup, Limits, own_batch};
use meridian_broker::coordinator::Coordinator;
use meridian_broker::group::consumer::{
    ConsumerGroupError, ConsumerHeartbeat, ConsumerReply, JOIN_EPOCH, TopicCount, Topics,
    TopicsVersion,
};
use meridian_broker::group::{Caller, GroupError, Output};
use meridian_broker::partition::{InTransaction, RecordBatch};
use meridian_protocol::ErrorCode;
use meridian_protocol::records::{BatchBuilder, NO_SEQUENCE};
use meridian_storage::mutation::Mutations;

use super::{Ask, DeskOutput, DeskTime, OfTransaction, Told, config, settled};
use crate::broker::Asker;

/// After this long without a word a member is dropped.
pub(crate) const GROUP_SESSION: Duration = Duration::from_millis(2_500);
/// How many partitions the topic has that all groups read.
pub(crate) const INPUT_COUNT: u32 = 4;
/// That topic.
const INPUT: TopicId = TopicId::new(77);
/// How often deadlines are looked at.
const TICK_EVERY: Duration = Duration::from_millis(50);
/// How often, and when, offsets expire of groups without members.
const EXPIRE_EVERY: Duration = Duration::from_millis(500);
const RETENTION_MS: i64 = 1_000;

/// A step of a group in one partition: what lies between two positions has been worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The partition.
    pub index: u32,
    /// The position it began at.
    pub from: u64,
    /// The position stored.
    pub to: u64,
    /// A number that no other has.
    pub serial: u64,
}

/// Bits of a stored offset that hold the number of the step.
const SERIAL_BITS: u32 = 32;

impl Position {
    /// The number of the step that stored this.
    pub fn serial(stored: u64) -> u64 {
        stored & ((1 << SERIAL_BITS) - 1)
    }

    /// The position in what is stored.
    pub fn to(stored: u64) -> u64 {
        stored >> SERIAL_BITS
    }

    /// As it is stored, by this caller.
    fn committed(self, caller: &Caller, committed_at_ms: i64) -> Committed {
        let Caller { member_id, generation, .. } = caller;
        let metadata = format!("{} {generation} {member_id}", self.from);
        let offset = (self.to << SERIAL_BITS | self.serial) as i64;
        Committed { offset, leader_epoch: -1, metadata, committed_at_ms }
    }
}

fn key(index: u32) -> OffsetKey {
    OffsetKey { topic: INPUT, index }
}

/// The only topic there is.
struct OneTopic;

impl OneTopic {
    const COUNT: TopicCount = TopicCount { topic: INPUT, partition_count: INPUT_COUNT };
}

impl Topics for OneTopic {
    fn version(&self) -> TopicsVersion {
        TopicsVersion { partition_count: u64::from(INPUT_COUNT), topic_count: 1 }
    }

    fn find(&self, _name: &str) -> Option<TopicCount> {
        Some(Self::COUNT)
    }

    fn for_each(&self, look: &mut dyn FnMut(&str, TopicCount)) {
        look("input", Self::COUNT);
    }
}

/// Who waits for a group.
#[derive(Debug)]
pub(super) enum Waiter {
    Plain(Asker),
    /// What it is told if what it was decided from is committed.
    Beat(Asker, ConsumerReply),
}

pub(super) struct GroupDesk {
    pub(super) coordinator: Coordinator<Groups<Waiter>>,
    /// Who waits for positions on their way into a transaction of a producer.
    appending: BTreeMap<u64, (Asker, i64)>,
    tick_at: Instant,
    expire_at: Instant,
}

impl GroupDesk {
    pub(super) fn new(mutations: Mutations) -> Self {
        let groups = Groups::new(Limits::small(GROUP_SESSION, mutations));
        Self {
            coordinator: Coordinator::new(groups, config(mutations)),
            appending: BTreeMap::new(),
            tick_at: Instant::ZERO,
            expire_at: Instant::ZERO,
        }
    }

    pub(super) fn ask(
        &mut self,
        time: DeskTime,
        asker: Asker,
        ask: Ask,
        out: &mut Vec<DeskOutput>,
    ) {
        let Ok(groups) = self.coordinator.serving_mut() else { return };
        let answered = match ask {
            Ask::Join(id, join) => {
                let mut outputs = Vec::new();
                if let Ok(entry) = groups.entry(&id)
                    && let Ok(group) = entry.classic(time.now)
                {
                    group.join(time.now, join, Waiter::Plain(asker), &mut outputs);
                }
                groups.tell(&id, outputs, time.now_ms());
                None
            }
            Ask::Sync(id, sync) => {
                let mut outputs = Vec::new();
                match groups.by_id.get_mut(&id).map(|entry| &mut entry.group) {
                    Some(AnyGroup::Classic(group)) => {
                        group.sync(time.now, sync, Waiter::Plain(asker), &mut outputs);
                        groups.tell(&id, outputs, time.now_ms());
                        None
                    }
                    _ => Some(Told::Synced(Err(GroupError::UnknownMember))),
                }
            }
            Ask::Heartbeat(id, caller) => {
                let judged = match groups.by_id.get_mut(&id).map(|entry| &mut entry.group) {
                    Some(AnyGroup::Classic(group)) => group.heartbeat(time.now, &caller),
                    _ => Err(GroupError::UnknownMember),
                };
                Some(Told::Done(judged.map_err(|error| code_of(&error))))
            }
            Ask::Leave(id, member_id) => {
                let mut outputs = Vec::new();
                if let Some(entry) = groups.by_id.get_mut(&id)
                    && let AnyGroup::Classic(group) = &mut entry.group
                {
                    // Who is gone already has left.
                    let _gone = group.leave(time.now, &member_id, None, &mut outputs);
                }
                groups.tell(&id, outputs, time.now_ms());
                groups.when_settled(&id, Waiter::Plain(asker));
                None
            }
            Ask::Beat(id, beat) => self.beat(time, asker, &id, beat),
            Ask::Commit(id, caller, position) => self.commit(time, asker, id, &caller, position),
            Ask::Positions(id) => self.positions(time, &id),
            Ask::CommitWith(id, caller, position, of) => {
                self.commit_with(time, asker, (id, caller), position, of, out)
            }
            Ask::Transact(_) | Ask::Append(..) => None,
        };
        out.extend(answered.map(|told| DeskOutput::Tell(asker, told)));
        let outcomes = settled(&mut self.coordinator);
        Self::deliver(outcomes, out);
    }

    fn beat(
        &mut self,
        time: DeskTime,
        asker: Asker,
        id: &str,
        beat: ConsumerHeartbeat,
    ) -> Option<Told> {
        let groups = self.coordinator.serving_mut().ok()?;
        if beat.epoch != JOIN_EPOCH && !groups.by_id.contains_key(id) {
            return Some(Told::Beat(Err(ErrorCode::UnknownMemberId)));
        }
        let group = match groups.entry(id).map(|entry| entry.consumer()) {
            Ok(Some(group)) => group,
            Ok(None) => return Some(Told::Beat(Err(ErrorCode::GroupIdNotFound))),
            Err(code) => return Some(Told::Beat(Err(code))),
        };
        let reply = group.heartbeat(time.now, beat, &OneTopic);
        groups.tell(id, Vec::new(), time.now_ms());
        match reply {
            Ok(reply) => {
                groups.when_settled(id, Waiter::Beat(asker, reply));
                None
            }
            Err(error) => Some(Told::Beat(Err(code_of_consumer(&error)))),
        }
    }

    fn commit(
        &mut self,
        time: DeskTime,
        asker: Asker,
        id: String,
        caller: &Caller,
        position: Position,
    ) -> Option<Told> {
        let committed = position.committed(caller, time.now_ms());
        let changes = vec![(key(position.index), Some(committed))];
        let groups = self.coordinator.serving_mut().ok()?;
        let entry = groups.entry(&id).ok()?;
        if let Err(code) = entry.check_commit(time.now, caller, true, &changes) {
            return Some(Told::Done(Err(code)));
        }
        groups.write_offsets(&id, changes, Some(Waiter::Plain(asker)));
        None
    }

    /// As OffsetFetch does with `require_stable`: nothing while one of them is not stable.
    fn positions(&mut self, time: DeskTime, id: &str) -> Option<Told> {
        let groups = self.coordinator.serving().ok()?;
        if !groups.pending.keys_of(id).is_empty() {
            return Some(Told::Done(Err(ErrorCode::UnstableOffsetCommit)));
        }
        let entry = groups.by_id.get(id);
        let held = entry.into_iter().flat_map(|entry| entry.offsets());
        let positions = held.map(|(key, committed)| (key.index, committed.offset as u64)).collect();
        Some(Told::Positions(positions, time.generation))
    }

    fn commit_with(
        &mut self,
        time: DeskTime,
        asker: Asker,
        (group, caller): (String, Caller),
        position: Position,
        of: OfTransaction,
        out: &mut Vec<DeskOutput>,
    ) -> Option<Told> {
        let committed = position.committed(&caller, time.now_ms());
        let changes: Changes = vec![(key(position.index), Some(committed))];
        let groups = self.coordinator.serving_mut().ok()?;
        let entry = groups.entry(&group).ok()?;
        match entry.check_commit(time.now, &caller, true, &changes) {
            Ok(()) | Err(ErrorCode::RebalanceInProgress) => {}
            Err(code) => return Some(Told::Done(Err(code))),
        }
        if groups.is_removing(&group) {
            return Some(Told::Done(Err(ErrorCode::CoordinatorLoadInProgress)));
        }
        let producer_id = of.producer.id;
        let batch = transactional(&group, &changes, of);
        let number = groups.on_transactional_sent(producer_id, &group, changes);
        self.appending.insert(number, (asker, producer_id));
        out.push(DeskOutput::Append(Box::new(batch), number));
        None
    }

    pub(super) fn on_appended(
        &mut self,
        number: u64,
        result: Result<Offset, ErrorCode>,
        out: &mut Vec<DeskOutput>,
    ) {
        let Some((asker, producer_id)) = self.appending.remove(&number) else { return };
        if let Ok(groups) = self.coordinator.serving_mut() {
            groups.on_transactional_written(producer_id, number, result.ok());
        }
        out.push(DeskOutput::Tell(asker, Told::Done(result.map(drop))));
    }

    pub(super) fn on_marker(&mut self, producer_id: i64, at: Offset, commit: bool) {
        // Until the log has been read, its markers are found there.
        if let Ok(groups) = self.coordinator.serving_mut() {
            groups.on_marker(producer_id, at, commit);
        }
    }

    pub(super) fn tick(&mut self, time: DeskTime, out: &mut Vec<DeskOutput>) {
        let Ok(groups) = self.coordinator.serving_mut() else { return };
        if time.now < self.tick_at {
            return;
        }
        self.tick_at = time.now + TICK_EVERY;
        groups.tick(time.now, time.now_ms());
        if time.now >= self.expire_at {
            self.expire_at = time.now + EXPIRE_EVERY;
            let name = |_| Some("input".to_owned());
            groups.expire(time.now_ms(), RETENTION_MS, name);
        }
        let outcomes = settled(&mut self.coordinator);
        Self::deliver(outcomes, out);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.appending.is_empty() && self.coordinator.is_settled()
    }

    pub(super) fn deliver(outcomes: Vec<Outcome<Waiter>>, out: &mut Vec<DeskOutput>) {
        for outcome in outcomes {
            let (waiter, told) = match outcome {
                Outcome::Member(Output::Joined(waiter, result)) => (waiter, Told::Joined(result)),
                Outcome::Member(Output::Synced(waiter, result)) => (waiter, Told::Synced(result)),
                Outcome::Written(waiter, result) => (waiter, Told::Done(result)),
            };
            out.push(match (waiter, told) {
                (Waiter::Beat(asker, reply), Told::Done(result)) => {
                    DeskOutput::Tell(asker, Told::Beat(result.map(|()| reply)))
                }
                (Waiter::Plain(asker) | Waiter::Beat(asker, _), told) => {
                    DeskOutput::Tell(asker, told)
                }
            });
        }
    }
}

/// Positions as a batch of a transaction.
fn transactional(
    group: &str,
    changes: &Changes,
    OfTransaction { id, producer, version }: OfTransaction,
) -> RecordBatch {
    let mut builder =
        BatchBuilder::new().producer(producer.id, producer.epoch, NO_SEQUENCE).transactional();
    for (key, committed) in changes {
        let key = offset_record::encode_key(group, *key);
        let value = committed.as_ref().map(offset_record::encode_value);
        builder.append(0, Some(&key), value.as_deref(), &[]);
    }
    RecordBatch {
        transaction: Some(InTransaction {
            transactional_id: id.into(),
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            version,
        }),
        ..own_batch(builder)
    }
}

/// As much of an error as members here go by.
fn code_of(error: &GroupError) -> ErrorCode {
    match error {
        GroupError::RebalanceInProgress => ErrorCode::RebalanceInProgress,
        GroupError::IllegalGeneration => ErrorCode::IllegalGeneration,
        _ => ErrorCode::UnknownMemberId,
    }
}

fn code_of_consumer(error: &ConsumerGroupError) -> ErrorCode {
    match error {
        ConsumerGroupError::FencedEpoch { .. } => ErrorCode::FencedMemberEpoch,
        ConsumerGroupError::StaleEpoch { .. } => ErrorCode::StaleMemberEpoch,
        _ => ErrorCode::UnknownMemberId,
    }
}
