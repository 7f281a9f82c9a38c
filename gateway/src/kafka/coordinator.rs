//! Which node coordinates a group, and the groups this node coordinates.
//!
//! A group belongs to the partition of `__consumer_offsets` that its id hashes to, and is
//! coordinated by that partition's leader. What groups commit, and who is in them, are records of
//! that partition: they are acknowledged when the record is, and a new leader reads them back before
//! it answers, so that members go on in their generation.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use meridian_access::{Operation, Resource};
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_consensus::command::ConfigChange;
use meridian_consensus::state::Partition;
use meridian_protocol::messages::{
    Coordinator as FoundCoordinator, FindCoordinatorRequest, FindCoordinatorResponse,
};
use meridian_protocol::{ErrorCode, Str};
use meridian_storage::leader::PutError;
use tokio::sync::{Notify, oneshot};

use super::dispatch::Call;
use super::error::{self, ApiError};
use super::group_state::{self, Effect, Loading, Outcome};
use super::journal::Write;
use super::offset_compaction::{CompactionRest, RECORD_COUNT_MIN};
use super::pace::Pace;
use super::transactions::TRANSACTIONS_TOPIC;
use super::{Front, internal_state, lock, lookup, topics};
use crate::coordination::{Limits, RECORD_SIZE_BYTES_MAX, batches};
use crate::group::consumer::ConsumerGroupLimits;
use crate::group::{GroupError, GroupLimits, Joined, Output};
use crate::log::{FetchError, PartitionLog};
use crate::partition::ProduceError;

/// Where groups keep their offsets.
pub(super) const OFFSETS_TOPIC: &str = "__consumer_offsets";
/// From this version on several coordinators can be asked for at once.
const KEYS_FROM_VERSION: i16 = 4;
/// How often deadlines of groups are looked at, if none is due before.
const TICK_EVERY: Duration = Duration::from_millis(50);
/// How often at most.
const TICK_EVERY_MIN: Duration = Duration::from_millis(2);
/// How long a list of all groups waits for coordinators that load: many clients take the answer
/// that one loads for an error.
const LIST_WAIT_MAX: Duration = Duration::from_secs(2);
const LIST_RETRY_AFTER: Duration = Duration::from_millis(10);
/// Bytes read at once while loading.
const LOAD_BYTES: usize = 4 << 20;
const LOAD_RETRY_AFTER: Duration = Duration::from_millis(100);
/// When it is looked again whether what another coordinator has staged is in the log.
const STAGING_RETRY_AFTER: Duration = Duration::from_millis(5);
/// Bytes of our own records written at once.
pub(super) const BATCH_SIZE_BYTES: usize = 1 << 20;
/// How long records are offered to a log that has no room for them.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const BUSY_RETRY_AFTER: Duration = Duration::from_millis(20);

/// What whoever waits is told in the end.
#[derive(Debug)]
pub(super) enum Told {
    Joined(Result<Joined, GroupError>),
    Synced(Result<Bytes, GroupError>),
    Written(Result<(), ErrorCode>),
}

/// Whoever waits.
pub(super) type Waiter = oneshot::Sender<Told>;

/// The groups of one partition, and who waits for them.
pub(super) type Groups = group_state::Groups<Waiter>;

/// A group and its offsets.
pub(super) type GroupEntry = group_state::GroupEntry<Waiter>;

/// Waits until what was asked is in the log, or is known not to get there.
pub(super) async fn committed(answer: oneshot::Receiver<Told>) -> Result<(), ErrorCode> {
    match answer.await {
        Ok(Told::Written(result)) => result,
        Ok(Told::Joined(_) | Told::Synced(_)) | Err(_) => Err(ErrorCode::NotCoordinator),
    }
}

/// The coordinator of one partition's groups, for as long as this node leads the partition.
pub(super) struct Coordinator {
    pub(super) log: Arc<PartitionLog>,
    groups: Mutex<Groups>,
    /// Rings when there is something to write, or nothing ever more.
    bell: Notify,
    /// Offsets on their way into transactions, in this log.
    staging: Arc<AtomicUsize>,
    pub(super) rest: CompactionRest,
}

/// Offsets on their way into a transaction. A coordinator does not count as loaded meanwhile: it would
/// not hear of what another before it has sent.
pub(super) struct Staging(Arc<AtomicUsize>);

impl Staging {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The groups of a coordinator while nobody else has them. What is decided meanwhile takes its
/// course when this is dropped.
pub(super) struct GroupsGuard<'c> {
    groups: MutexGuard<'c, Groups>,
    bell: &'c Notify,
}

impl Deref for GroupsGuard<'_> {
    type Target = Groups;

    fn deref(&self) -> &Groups {
        &self.groups
    }
}

impl DerefMut for GroupsGuard<'_> {
    fn deref_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }
}

impl Drop for GroupsGuard<'_> {
    fn drop(&mut self) {
        for outcome in self.groups.take_outcomes() {
            // One that is gone is none of our business.
            let _gone = match outcome {
                Outcome::Member(Output::Joined(waiter, it)) => waiter.send(Told::Joined(it)),
                Outcome::Member(Output::Synced(waiter, it)) => waiter.send(Told::Synced(it)),
                Outcome::Written(waiter, it) => waiter.send(Told::Written(it)),
            };
        }
        if self.groups.has_work() {
            self.bell.notify_one();
        }
    }
}

impl Coordinator {
    fn new(
        front: &Front,
        log: Arc<PartitionLog>,
        is_loaded: bool,
        staging: Arc<AtomicUsize>,
    ) -> Self {
        let groups = Mutex::new(Groups::new(limits(front), is_loaded));
        Self { log, groups, bell: Notify::new(), staging, rest: CompactionRest::default() }
    }

    /// To be held while offsets are on their way into a transaction.
    pub(super) fn stage(&self) -> Staging {
        Staging::begin(&self.staging)
    }

    pub(super) fn groups(&self) -> GroupsGuard<'_> {
        GroupsGuard { groups: lock(&self.groups), bell: &self.bell }
    }

    /// Reads the log, then writes to it until this coordinator is closed.
    async fn run(self: Arc<Self>, front: Arc<Front>) {
        if !self.groups().is_loaded
            && let Err(error) = self.load(&front).await
        {
            tracing::warn!(%error, "group offsets were not loaded");
            return self.give_up(&front, ErrorCode::NotCoordinator);
        }
        if let Err(error) = self.write(&front).await {
            tracing::warn!(%error, "group records were not written; they are loaded anew");
            self.give_up(&front, error::of_commit(&error));
        }
    }

    fn give_up(self: &Arc<Self>, front: &Front, code: ErrorCode) {
        // In this order: nothing is staged here once another one loads.
        self.groups().close(code);
        front.coordinators.forget(self);
    }

    /// Reads all records of the partition.
    async fn load(&self, front: &Front) -> Result<(), FetchError> {
        let mut loading = Loading::default();
        let mut from = self.log.log_start_offset();
        // Markers are appended without asking this coordinator: the log has been read when there is
        // nothing more under the lock that tells who wrote them that they need not be applied.
        loop {
            if from >= self.log.high_watermark() {
                let mut groups = self.groups();
                // A log that is not led any more looks empty.
                if !self.log.is_serving() {
                    return Err(FetchError::NotLeader);
                }
                if from >= self.log.high_watermark() {
                    if self.staging.load(Ordering::Acquire) == 0 {
                        loading.finish(&mut groups, front.now());
                        return Ok(());
                    }
                    drop(groups);
                    tokio::time::sleep(STAGING_RETRY_AFTER).await;
                    continue;
                }
            }
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
            let next = loading.replay(&mut self.groups(), fetched.records.concat().into(), from);
            if next <= from {
                return Err(FetchError::Unavailable);
            }
            from = next;
        }
    }

    /// Writes what is pushed, batch by batch, until this coordinator is closed.
    async fn write(self: &Arc<Self>, front: &Arc<Front>) -> Result<(), ProduceError> {
        loop {
            let writes = {
                let mut groups = self.groups();
                if groups.closed().is_some() {
                    return Ok(());
                }
                groups.take_writes(BATCH_SIZE_BYTES)
            };
            if writes.is_empty() {
                self.compact(front).await;
                self.bell.notified().await;
                continue;
            }
            match append(front, &self.log, &writes).await {
                Ok(base_offset) => self.groups().on_committed(base_offset, writes),
                Err(error) => {
                    let code = error::of_commit(&error);
                    let mut groups = self.groups();
                    writes.into_iter().for_each(|write| groups.refuse(write, code));
                    return Err(error);
                }
            }
            self.compact(front).await;
        }
    }
}

/// Appends the records of these writes; returns the offset of the first.
async fn append(
    front: &Front,
    log: &Arc<PartitionLog>,
    writes: &[Write<Effect<Waiter>>],
) -> Result<Offset, ProduceError> {
    let records = writes.iter().flat_map(|write| &write.records);
    let batches = batches(front.broker.wall_time_ms(), records.cloned());
    if batches.is_empty() {
        return Ok(log.high_watermark());
    }
    let deadline = front.now() + BUSY_TIMEOUT;
    loop {
        let appended = log.produce(batches.clone()).await.unwrap_or(Err(ProduceError::InDoubt));
        match appended {
            Ok(appended) => return Ok(appended.base_offset),
            // Nothing was written.
            Err(ProduceError::Put(PutError::Busy)) if front.now() < deadline => {
                tokio::time::sleep(BUSY_RETRY_AFTER).await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn limits(front: &Front) -> Limits {
    let config = &front.config.group;
    Limits {
        classic: GroupLimits {
            initial_rebalance_delay: config.initial_rebalance_delay,
            member_count_max: config.member_count_max,
            image_size_bytes_max: RECORD_SIZE_BYTES_MAX,
        },
        consumer: ConsumerGroupLimits {
            session_timeout: config.consumer_session_timeout,
            member_count_max: config.member_count_max,
        },
        group_count_max: config.group_count_max,
        compacted_count_min: RECORD_COUNT_MIN,
        mutations: front.config.mutations,
    }
}

/// The coordinators of this node.
#[derive(Default)]
pub(super) struct Coordinators {
    by_partition: Mutex<HashMap<PartitionId, Arc<Coordinator>>>,
    /// How many offsets are on their way into transactions; they outlive a coordinator.
    staging: Mutex<HashMap<PartitionId, Arc<AtomicUsize>>>,
}

impl Coordinators {
    /// The coordinator of a partition that this node leads. The first who asks makes it load.
    fn get(&self, front: &Arc<Front>, id: PartitionId) -> Result<Arc<Coordinator>, ErrorCode> {
        let log = internal_state::led(front, id)?;
        let mut by_partition = lock(&self.by_partition);
        if let Some(known) = by_partition.get(&id)
            && Arc::ptr_eq(&known.log, &log)
        {
            let is_loaded = known.groups().is_loaded;
            let loading = ErrorCode::CoordinatorLoadInProgress;
            return if is_loaded { Ok(Arc::clone(known)) } else { Err(loading) };
        }
        let staging = Arc::clone(lock(&self.staging).entry(id).or_default());
        let is_empty = log.log_start_offset() >= log.high_watermark()
            && log.is_serving()
            && staging.load(Ordering::Acquire) == 0;
        let coordinator = Arc::new(Coordinator::new(front, log, is_empty, staging));
        by_partition.insert(id, Arc::clone(&coordinator));
        tokio::spawn(Arc::clone(&coordinator).run(Arc::clone(front)));
        if is_empty { Ok(coordinator) } else { Err(ErrorCode::CoordinatorLoadInProgress) }
    }

    pub(super) fn forget(&self, coordinator: &Arc<Coordinator>) {
        lock(&self.by_partition).retain(|_, known| !Arc::ptr_eq(known, coordinator));
    }

    /// The coordinator of a partition, if anybody has asked for it yet.
    pub(super) fn known(&self, id: PartitionId) -> Option<Arc<Coordinator>> {
        lock(&self.by_partition).get(&id).cloned()
    }

    pub(super) fn all(&self) -> Vec<(PartitionId, Arc<Coordinator>)> {
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
        self.coordinator_of_any(group)
    }

    /// Like [`Self::coordinator_of`], for what is allowed to the group without a name too: it has no
    /// members, but old consumers that were given no group store positions under it.
    pub(super) fn coordinator_of_any(
        self: &Arc<Self>,
        group: &str,
    ) -> Result<Arc<Coordinator>, ErrorCode> {
        let id = {
            let metadata = self.broker.metadata();
            let found = internal_state::locate(&metadata, OFFSETS_TOPIC, group);
            found.ok_or(ErrorCode::NotCoordinator)?.0
        };
        self.coordinators.get(self, id)
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
        // All of them load at once, not each when the one before it has.
        let found: Vec<_> = led.into_iter().map(|id| self.coordinators.get(self, id)).collect();
        // The groups of one that another node has become meanwhile are listed there.
        found.into_iter().filter(|it| !matches!(it, Err(ErrorCode::NotCoordinator))).collect()
    }

    /// The coordinators of all groups of this node, once they have loaded.
    pub(super) async fn loaded_coordinators(
        self: &Arc<Self>,
    ) -> Result<Vec<Arc<Coordinator>>, ErrorCode> {
        let until = self.now() + LIST_WAIT_MAX;
        loop {
            match self.coordinators_here() {
                Err(ErrorCode::CoordinatorLoadInProgress) if self.now() < until => {
                    tokio::time::sleep(LIST_RETRY_AFTER).await;
                }
                found => return found,
            }
        }
    }

    /// Watches the deadlines of all groups; never returns.
    pub(super) async fn tick_groups(self: Arc<Self>) {
        let mut pause = TICK_EVERY;
        loop {
            tokio::time::sleep(pause).await;
            pause = TICK_EVERY;
            self.count_members_when_due();
            for (id, coordinator) in self.coordinators.all() {
                if !coordinator.log.is_serving() {
                    coordinator.groups().close(ErrorCode::NotCoordinator);
                    lock(&self.coordinators.by_partition).remove(&id);
                    continue;
                }
                let next = coordinator.groups().tick(self.now(), self.broker.wall_time_ms());
                let until_next = next.map(|deadline| deadline.since(self.now()));
                pause = until_next.map_or(pause, |it| pause.min(it.max(TICK_EVERY_MIN)));
                if coordinator.is_long(&self) {
                    coordinator.bell.notify_one();
                }
            }
        }
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
    let check = |key: &Str| check_key(&call, request.key_type, key);
    let allowed: Vec<Result<(), ErrorCode>> = keys.iter().map(check).collect();
    let available = match request.key_type {
        // Who may know of none makes no topic either.
        _ if allowed.iter().all(Result::is_err) => Err(ErrorCode::CoordinatorNotAvailable.into()),
        FindCoordinatorRequest::KEY_TYPE_GROUP => {
            create_offsets_topic(&call.front).await.map(|()| OFFSETS_TOPIC)
        }
        FindCoordinatorRequest::KEY_TYPE_TRANSACTION => {
            let count = call.front.config.transaction.partition_count;
            let created = internal_state::create_topic(&call.front, TRANSACTIONS_TOPIC, count);
            created.await.map(|()| TRANSACTIONS_TOPIC)
        }
        _ => Err(ApiError::new(ErrorCode::InvalidRequest, "unknown kind of coordinator")),
    };
    let mut coordinators = Vec::with_capacity(keys.len());
    let mut pace = Pace::default();
    for (key, allowed) in keys.into_iter().zip(allowed) {
        pace.step().await;
        let allowed = allowed.map_err(ApiError::from);
        let result =
            allowed.and_then(|()| available.clone()).and_then(|topic| find_one(&call, topic, &key));
        coordinators.push(result.unwrap_or_else(|error| {
            call.front.metrics.on_error(error.code);
            FoundCoordinator {
                key,
                node_id: -1,
                port: -1,
                error_code: error.code,
                error_message: error.message(),
                ..Default::default()
            }
        }));
    }
    if is_batched {
        return FindCoordinatorResponse { coordinators, ..Default::default() };
    }
    let only = coordinators.pop().unwrap_or_default();
    FindCoordinatorResponse {
        error_code: only.error_code,
        error_message: only.error_message,
        node_id: only.node_id,
        host: only.host,
        port: only.port,
        ..Default::default()
    }
}

/// Whether the client may know of a coordinator.
fn check_key(call: &Call, key_type: i8, key: &str) -> Result<(), ErrorCode> {
    match key_type {
        FindCoordinatorRequest::KEY_TYPE_GROUP => {
            call.check(Operation::Describe, Resource::group(key))
        }
        FindCoordinatorRequest::KEY_TYPE_TRANSACTION => {
            call.check(Operation::Describe, Resource::transactional_id(key))
        }
        // There is none of another kind.
        _ => call.check(Operation::ClusterAction, Resource::CLUSTER),
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

fn find_one(call: &Call, topic: &str, key: &Str) -> Result<FoundCoordinator, ApiError> {
    let metadata = call.front.broker.metadata();
    let unavailable = || ApiError::from(ErrorCode::CoordinatorNotAvailable);
    let (_, partition) = internal_state::locate(&metadata, topic, key).ok_or_else(unavailable)?;
    let is_alive = lookup::is_serving(&metadata, partition.leader);
    let endpoint = lookup::endpoint(&metadata, partition.leader, call.client.listener_name())
        .filter(|_| is_alive);
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
