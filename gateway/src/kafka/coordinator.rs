//! Which node coordinates a group, and the groups this node coordinates.
//!
//! A group belongs to the partition of `__consumer_offsets` that its id hashes to, and is
//! coordinated by that partition's leader. What groups commit, and who is in them, are records of
//! that partition: they are acknowledged when the record is, and a new leader reads them back before
//! it answers, so that members go on in their generation.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_access::{Operation, Resource};
use meridian_broker::share::ShareGroupLimits;
use meridian_protocol::messages::{
    Coordinator as FoundCoordinator, FindCoordinatorRequest, FindCoordinatorResponse,
};
use meridian_protocol::{ErrorCode, Str};
use tokio::sync::oneshot;

use super::dispatch::Call;
use super::error::ApiError;
use super::group_state::{self, Outcome};
use super::internal_state::{InternalPartition, InternalPartitions, InternalState};
use super::pace::Pace;
use super::transactions::TRANSACTIONS_TOPIC;
use super::{Front, internal_state, lookup};
use crate::background::Chore;
use crate::coordination::{Limits, RECORD_SIZE_BYTES_MAX};
use crate::group::consumer::ConsumerGroupLimits;
use crate::group::{GroupError, GroupLimits, Joined, Output};

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
pub(super) type GroupCoordinator = InternalPartition<Groups>;

impl InternalState for Groups {
    const TOPIC: &'static str = OFFSETS_TOPIC;
    const CHORE: Option<Chore> = Some(Chore::OffsetCompaction);

    fn empty(front: &Front) -> Self {
        Self::new(limits(front))
    }

    fn partitions(front: &Front) -> &InternalPartitions<Self> {
        &front.coordinators
    }

    fn deliver(_partition: &Arc<GroupCoordinator>, outcome: Outcome<Waiter>) {
        // One that is gone is none of our business.
        let _gone = match outcome {
            Outcome::Member(Output::Joined(waiter, it)) => waiter.send(Told::Joined(it)),
            Outcome::Member(Output::Synced(waiter, it)) => waiter.send(Told::Synced(it)),
            Outcome::Written(waiter, it) => waiter.send(Told::Written(it)),
        };
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
        share: ShareGroupLimits {
            session_timeout: config.consumer_session_timeout,
            member_count_max: config.member_count_max,
        },
        group_count_max: config.group_count_max,
        mutations: front.config.mutations,
    }
}

impl Front {
    /// The coordinator of a group, if it is this node and has loaded what the group committed.
    pub(super) fn coordinator_of(
        self: &Arc<Self>,
        group: &str,
    ) -> Result<Arc<GroupCoordinator>, ErrorCode> {
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
    ) -> Result<Arc<GroupCoordinator>, ErrorCode> {
        self.internal_partition(group)
    }

    /// The coordinators of all groups of this node.
    pub(super) fn coordinators_here(
        self: &Arc<Self>,
    ) -> Result<Vec<Arc<GroupCoordinator>>, ErrorCode> {
        let found = self.internal_partitions::<Groups>();
        // The groups of one that another node has become meanwhile are listed there.
        found.into_iter().filter(|it| !matches!(it, Err(ErrorCode::NotCoordinator))).collect()
    }

    /// The coordinators of all groups of this node, once they have loaded.
    pub(super) async fn loaded_coordinators(
        self: &Arc<Self>,
    ) -> Result<Vec<Arc<GroupCoordinator>>, ErrorCode> {
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
            for coordinator in self.coordinators.serving() {
                let Ok(mut groups) = coordinator.state() else { continue };
                let next = groups.tick(self.now(), self.broker.wall_time_ms());
                let until_next = next.map(|deadline| deadline.since(self.now()));
                pause = until_next.map_or(pause, |it| pause.min(it.max(TICK_EVERY_MIN)));
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
            let count = call.front.config.offsets_partition_count;
            let created = internal_state::create_topic(&call.front, OFFSETS_TOPIC, count);
            created.await.map(|()| OFFSETS_TOPIC)
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
