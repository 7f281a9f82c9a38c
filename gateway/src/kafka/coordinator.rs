//! Which node coordinates a group, and the groups this node coordinates.
//!
//! A group belongs to the partition of `__consumer_offsets` that its id hashes to, and is
//! coordinated by that partition's leader. What groups commit are records of that partition: they
//! are acknowledged when the record is, and a new leader reads them back before it answers.
//! Membership is not recorded: after a move of the coordinator members join again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::{PartitionId, TopicId};
use meridian_base::position::Offset;
use meridian_consensus::command::ConfigChange;
use meridian_consensus::state::Partition;
use meridian_protocol::messages::{
    Coordinator as FoundCoordinator, FindCoordinatorRequest, FindCoordinatorResponse,
};
use meridian_protocol::records::{self, Record};
use meridian_protocol::{ErrorCode, Str};
use tokio::sync::oneshot;

use super::dispatch::Call;
use super::error::{self, ApiError};
use super::offset_compaction::Compaction;
use super::offset_record::{self, Committed, OffsetKey};
use super::{Front, lock, lookup, topics};
use crate::group::{Group, GroupError, GroupLimits, GroupState, Joined, Output};
use crate::log::{FetchError, PartitionLog};

/// Where groups keep their offsets.
pub(super) const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// From this version on several coordinators can be asked for at once.
const KEYS_FROM_VERSION: i16 = 4;
/// How often deadlines of groups are looked at.
const TICK_EVERY: Duration = Duration::from_millis(50);
/// Bytes read at once while loading.
const LOAD_BYTES: usize = 4 << 20;
/// Uncompressed size of one batch of our own records.
const BATCH_SIZE_BYTES_MAX: usize = 64 << 20;
const LOAD_RETRY_AFTER: Duration = Duration::from_millis(100);

/// What a member that waits is told in the end.
#[derive(Debug)]
pub(super) enum Told {
    Joined(Result<Joined, GroupError>),
    Synced(Result<Bytes, GroupError>),
}

/// A member that waits.
pub(super) type Waiter = oneshot::Sender<Told>;

/// Answers members. One that is gone is none of our business.
pub(super) fn deliver(outputs: Vec<Output<Waiter>>) {
    for output in outputs {
        let _gone = match output {
            Output::Joined(waiter, result) => waiter.send(Told::Joined(result)),
            Output::Synced(waiter, result) => waiter.send(Told::Synced(result)),
        };
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
    pub(super) group: Group<Waiter>,
    offsets: BTreeMap<OffsetKey, Written>,
    /// Records on their way to the log.
    pub(super) writing_count: usize,
}

impl GroupEntry {
    fn new(limits: GroupLimits) -> Self {
        Self { group: Group::new(limits), offsets: BTreeMap::new(), writing_count: 0 }
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
        self.group.is_vacant()
            && self.group.state() == GroupState::Empty
            && self.writing_count == 0
            && self.offsets().next().is_none()
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
}

impl Groups {
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
}

fn limits(front: &Front) -> GroupLimits {
    GroupLimits {
        initial_rebalance_delay: front.config.group.initial_rebalance_delay,
        member_count_max: front.config.group.member_count_max,
    }
}

/// The coordinator of one partition's groups, for as long as this node leads the partition.
pub(super) struct Coordinator {
    pub(super) log: Arc<PartitionLog>,
    groups: Mutex<Groups>,
}

impl Coordinator {
    pub(super) fn groups(&self) -> MutexGuard<'_, Groups> {
        lock(&self.groups)
    }

    /// Reads all records of the partition.
    async fn load(&self, front: &Front) -> Result<(), FetchError> {
        let mut from = self.log.log_start_offset();
        while from < self.log.high_watermark() {
            let fetched = match self.log.fetch(from, LOAD_BYTES).await {
                Ok(fetched) => fetched,
                Err(FetchError::Unavailable) => {
                    tokio::time::sleep(LOAD_RETRY_AFTER).await;
                    continue;
                }
                Err(FetchError::OutOfRange { log_start_offset, .. }) if from < log_start_offset => {
                    from = log_start_offset;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let next = self.replay(front, fetched.records.concat().into(), from);
            if next <= from {
                return Err(FetchError::Unavailable);
            }
            from = next;
        }
        // A log that is not led any more looks empty.
        if !self.log.is_serving() {
            return Err(FetchError::NotLeader);
        }
        let mut groups = self.groups();
        groups.by_id.retain(|_, entry| !entry.is_forgettable());
        groups.is_loaded = true;
        Ok(())
    }

    /// Applies batches; returns the offset after them.
    fn replay(&self, front: &Front, bytes: Bytes, from: Offset) -> Offset {
        let mut next = from;
        let mut groups = self.groups();
        for batch in records::batches(bytes) {
            let Ok(batch) = batch else { break };
            next = Offset::new(batch.header().last_offset().saturating_add(1));
            let Ok(records) = batch.records(BATCH_SIZE_BYTES_MAX) else {
                tracing::error!(offset = %next, "a batch of group offsets cannot be read");
                continue;
            };
            for record in records.flatten() {
                if let Err(error) = replay_record(front, &mut groups, record) {
                    tracing::error!(%error, "a record of group offsets cannot be read");
                }
            }
        }
        next
    }
}

fn replay_record(
    front: &Front,
    groups: &mut Groups,
    record: Record,
) -> Result<(), meridian_storage::codec::DecodeError> {
    let (group, key) = offset_record::decode_key(record.key.unwrap_or_default())?;
    let committed = record.value.map(offset_record::decode_value).transpose()?;
    let entry = groups.by_id.entry(group).or_insert_with(|| GroupEntry::new(limits(front)));
    entry.apply(Offset::new(record.offset), key, committed);
    Ok(())
}

/// The coordinators of this node.
#[derive(Default)]
pub(super) struct Coordinators {
    by_partition: Mutex<HashMap<PartitionId, Arc<Coordinator>>>,
}

impl Coordinators {
    /// The coordinator of a partition that this node leads. The first who asks makes it load.
    fn get(
        &self,
        front: &Arc<Front>,
        id: PartitionId,
        partition_leader_is_here: bool,
    ) -> Result<Arc<Coordinator>, ErrorCode> {
        let Some(log) = front.broker.led(id) else {
            let taking_over = ErrorCode::CoordinatorLoadInProgress;
            return Err(if partition_leader_is_here {
                taking_over
            } else {
                ErrorCode::NotCoordinator
            });
        };
        let mut by_partition = lock(&self.by_partition);
        if let Some(known) = by_partition.get(&id)
            && Arc::ptr_eq(&known.log, &log)
        {
            let is_loaded = known.groups().is_loaded;
            let loading = ErrorCode::CoordinatorLoadInProgress;
            return if is_loaded { Ok(Arc::clone(known)) } else { Err(loading) };
        }
        let is_empty = log.log_start_offset() >= log.high_watermark() && log.is_serving();
        let groups = Mutex::new(Groups { is_loaded: is_empty, ..Default::default() });
        let coordinator = Arc::new(Coordinator { log, groups });
        by_partition.insert(id, Arc::clone(&coordinator));
        if is_empty {
            return Ok(coordinator);
        }
        let front = Arc::clone(front);
        tokio::spawn(async move {
            if let Err(error) = coordinator.load(&front).await {
                tracing::warn!(partition = %id, %error, "group offsets were not loaded");
                lock(&front.coordinators.by_partition).retain(|_, c| !Arc::ptr_eq(c, &coordinator));
            }
        });
        Err(ErrorCode::CoordinatorLoadInProgress)
    }

    fn all(&self) -> Vec<(PartitionId, Arc<Coordinator>)> {
        lock(&self.by_partition).iter().map(|(id, it)| (*id, Arc::clone(it))).collect()
    }
}

impl Front {
    /// The coordinator of a group, if it is this node and has loaded what the group committed.
    pub(super) fn coordinator_of(
        self: &Arc<Self>,
        group: &str,
    ) -> Result<Arc<Coordinator>, ErrorCode> {
        if group.is_empty() {
            return Err(ErrorCode::InvalidGroupId);
        }
        let (id, is_here) = {
            let metadata = self.broker.metadata();
            let topic = metadata.topic_named(OFFSETS_TOPIC).ok_or(ErrorCode::NotCoordinator)?;
            let index = partition_index(group, topic.partitions.len());
            let (id, partition) =
                metadata.partition_at(topic.id, index).ok_or(ErrorCode::NotCoordinator)?;
            (id, partition.leader == self.broker.node())
        };
        self.coordinators.get(self, id, is_here)
    }

    /// The coordinators of all groups of this node.
    pub(super) fn coordinators_here(self: &Arc<Self>) -> Result<Vec<Arc<Coordinator>>, ErrorCode> {
        let node = self.broker.node();
        let led: Vec<PartitionId> = {
            let metadata = self.broker.metadata();
            let topic = metadata.topic_named(OFFSETS_TOPIC);
            let ids = topic.into_iter().flat_map(|topic| topic.partitions.iter().copied());
            let is_here = |partition: &Partition| partition.leader == node;
            ids.filter(|id| metadata.partition(*id).is_some_and(is_here)).collect()
        };
        led.into_iter().map(|id| self.coordinators.get(self, id, true)).collect()
    }

    /// Watches the deadlines of all groups; never returns.
    pub(super) async fn tick_groups(self: Arc<Self>) {
        let mut interval = tokio::time::interval(TICK_EVERY);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            for (id, coordinator) in self.coordinators.all() {
                if !coordinator.log.is_serving() {
                    // Members that wait are told as their waiters are dropped with it.
                    lock(&self.coordinators.by_partition).remove(&id);
                    coordinator.groups().by_id.clear();
                    continue;
                }
                self.tick_coordinator(&coordinator);
                self.compact_offsets(&coordinator);
            }
        }
    }

    fn tick_coordinator(&self, coordinator: &Coordinator) {
        let now = self.now();
        let mut out = Vec::new();
        {
            let mut groups = coordinator.groups();
            let Groups { by_id, active, .. } = &mut *groups;
            active.retain(|id| {
                let Some(entry) = by_id.get_mut(id) else { return false };
                entry.group.tick(now, &mut out);
                if entry.is_forgettable() {
                    by_id.remove(id);
                    return false;
                }
                !entry.group.is_vacant() || entry.group.state() != GroupState::Empty
            });
        }
        deliver(out);
    }
}

/// The partition that a group belongs to, as Kafka has it: by Java's hash of strings.
pub(super) fn partition_index(group: &str, partition_count: usize) -> u32 {
    let hash = group.encode_utf16().fold(0i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit.cast_signed()) & 0xffff)
    });
    let positive = hash.checked_abs().unwrap_or(0).unsigned_abs();
    positive.checked_rem(u32::try_from(partition_count).unwrap_or(u32::MAX)).unwrap_or(0)
}

/// Says where coordinators are.
pub(super) async fn find(call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let is_batched = call.version >= KEYS_FROM_VERSION;
    let keys = if is_batched { request.coordinator_keys } else { vec![request.key] };
    let available = match request.key_type {
        FindCoordinatorRequest::KEY_TYPE_GROUP => create_offsets_topic(&call.front).await,
        FindCoordinatorRequest::KEY_TYPE_TRANSACTION => Err(error::no_transactions()),
        _ => Err(ApiError::new(ErrorCode::InvalidRequest, "unknown kind of coordinator")),
    };
    let mut found = keys.into_iter().map(|key| {
        let result = available.clone().and_then(|()| find_one(&call, &key));
        result.unwrap_or_else(|error| {
            call.front.metrics.on_error(error.code);
            FoundCoordinator {
                key,
                node_id: -1,
                port: -1,
                error_code: error.code,
                error_message: error.message(),
                ..Default::default()
            }
        })
    });
    if is_batched {
        return FindCoordinatorResponse { coordinators: found.collect(), ..Default::default() };
    }
    let only = found.next().unwrap_or_default();
    FindCoordinatorResponse {
        error_code: only.error_code,
        error_message: only.error_message,
        node_id: only.node_id,
        host: only.host,
        port: only.port,
        ..Default::default()
    }
}

async fn create_offsets_topic(front: &Front) -> Result<(), ApiError> {
    if front.broker.metadata().topic_named(OFFSETS_TOPIC).is_some() {
        return Ok(());
    }
    let compact =
        ConfigChange { name: "cleanup.policy".to_owned(), value: Some("compact".to_owned()) };
    let count = front.config.offsets_partition_count;
    let created = topics::create_internal(front, OFFSETS_TOPIC, count, vec![compact]).await;
    created.map_err(|error| ApiError { code: ErrorCode::CoordinatorNotAvailable, ..error })
}

fn find_one(call: &Call, key: &Str) -> Result<FoundCoordinator, ApiError> {
    if key.is_empty() {
        return Err(ErrorCode::InvalidGroupId.into());
    }
    let metadata = call.front.broker.metadata();
    let unavailable = || ApiError::from(ErrorCode::CoordinatorNotAvailable);
    let topic = metadata.topic_named(OFFSETS_TOPIC).ok_or_else(unavailable)?;
    let index = partition_index(key, topic.partitions.len());
    let (_, partition) = metadata.partition_at(topic.id, index).ok_or_else(unavailable)?;
    let is_alive = lookup::is_serving(&metadata, partition.leader);
    let endpoint = lookup::endpoint(&metadata, partition.leader).filter(|_| is_alive);
    let endpoint = endpoint.ok_or_else(unavailable)?;
    Ok(FoundCoordinator {
        key: key.clone(),
        node_id: endpoint.node_id,
        host: endpoint.host,
        port: endpoint.port,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hash_as_in_kafka() {
        // "console-consumer".hashCode() and others, by Java.
        for (group, hash) in
            [("", 0u32), ("a", 97), ("ab", 3105), ("hello", 99_162_322), ("é", 233)]
        {
            assert_eq!(partition_index(group, 50), hash % 50, "{group}");
        }
        // Its hash is i32::MIN, which has no absolute value.
        assert_eq!(partition_index("polygenelubricants", 50), 0);
        assert_eq!(partition_index("any", 0), 0);
    }
}
