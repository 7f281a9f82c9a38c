//! TxnOffsetCommit: positions of a group that hold when a transaction commits (KIP-98, KIP-447).
//!
//! They are written to the group's partition as a batch of the transaction, which is what fences
//! and verifies them like any other batch of it (KIP-890); [`PendingOffsets`] keeps them until the
//! marker comes.
//!
//! [`PendingOffsets`]: crate::coordination::PendingOffsets

use std::sync::Arc;

use meridian_access::{Operation, Resource};
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    TxnOffsetCommitPartitionResponse, TxnOffsetCommitRequest, TxnOffsetCommitResponse,
    TxnOffsetCommitTopicResponse,
};
use meridian_protocol::records::{BatchBuilder, NO_SEQUENCE};

use super::coordinator::{GroupCoordinator, GroupEntry, OFFSETS_TOPIC};
use super::dispatch::Call;
use super::group_state::Changes;
use super::lookup::TopicKey;
use super::offset_record;
use super::{Front, error, groups, offsets};
use crate::coordination::own_batch;
use crate::group::Caller;
use crate::partition::{InTransaction, Marker, ProduceError, RecordBatch, TransactionVersion};

/// From this version on the coordinator adds the group to the transaction by itself.
const V2_FROM_VERSION: i16 = 5;

/// Takes positions into a transaction.
pub(super) async fn commit(call: Call, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse {
    if let Err(code) = check_rights(&call, &request) {
        return refused(&call, &request, code);
    }
    let (mut topics, changes) = resolve(&call, &request);
    if let Err(code) = write(&call, &request, changes).await {
        for partition in topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
            offsets::refuse(&mut partition.error_code, code);
        }
    }
    for partition in topics.iter().flat_map(|topic| &topic.partitions) {
        if !partition.error_code.is_none() {
            call.front.metrics.on_error(partition.error_code);
        }
    }
    TxnOffsetCommitResponse { topics, ..Default::default() }
}

/// Whether the client may commit for the group in a transaction of this id.
fn check_rights(call: &Call, request: &TxnOffsetCommitRequest) -> Result<(), ErrorCode> {
    call.check(Operation::Write, Resource::transactional_id(&request.transactional_id))?;
    groups::check_member(call, &request.group_id)
}

/// The answer to a request of which nothing is done.
fn refused(
    call: &Call,
    request: &TxnOffsetCommitRequest,
    error_code: ErrorCode,
) -> TxnOffsetCommitResponse {
    call.front.metrics.on_error(error_code);
    let topics = request.topics.iter().map(|topic| {
        let partition =
            |partition_index| TxnOffsetCommitPartitionResponse { partition_index, error_code };
        TxnOffsetCommitTopicResponse {
            name: topic.name.clone(),
            partitions: topic.partitions.iter().map(|it| partition(it.partition_index)).collect(),
        }
    });
    TxnOffsetCommitResponse { topics: topics.collect(), ..Default::default() }
}

/// The answer so far, and what there is to write.
fn resolve(
    call: &Call,
    request: &TxnOffsetCommitRequest,
) -> (Vec<TxnOffsetCommitTopicResponse>, Changes) {
    let mut commit = offsets::Commit::new(call);
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let key = TopicKey::Name(topic.name.clone());
        commit.begin(&key);
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in &topic.partitions {
            let partition_index = wanted.partition_index;
            let position = (wanted.committed_offset, wanted.committed_leader_epoch);
            let text = wanted.committed_metadata.as_deref();
            let error_code = commit.add(&key, partition_index, position, text);
            partitions.push(TxnOffsetCommitPartitionResponse { partition_index, error_code });
        }
        topics.push(TxnOffsetCommitTopicResponse { name: topic.name.clone(), partitions });
    }
    (topics, commit.changes)
}

async fn write(
    call: &Call,
    request: &TxnOffsetCommitRequest,
    changes: Changes,
) -> Result<(), ErrorCode> {
    if request.transactional_id.is_empty() {
        return Err(ErrorCode::InvalidRequest);
    }
    let group = request.group_id.to_string();
    let coordinator = call.front.coordinator_of(&group)?;
    let caller =
        groups::caller(&request.member_id, &request.group_instance_id, request.generation_id);
    let producer_id = request.producer_id;
    let (number, staging, answer) = {
        let mut groups = coordinator.state()?;
        check(call, groups.by_id.get_mut(&group), &caller, &changes)?;
        if changes.is_empty() {
            return Ok(());
        }
        if groups.is_removing(&group) {
            // Tombstones of what expired are on their way. Clients try again after this.
            return Err(ErrorCode::CoordinatorLoadInProgress);
        }
        groups.entry(&group)?;
        let batch = batch(call, request, &changes)?;
        let number = groups.on_transactional_sent(producer_id, &group, changes);
        (number, coordinator.around(), coordinator.log.produce(vec![batch]))
    };
    // Goes on if the client goes: what is in the log must be known here.
    let written = tokio::spawn(async move {
        let written = answer.await.unwrap_or(Err(ProduceError::InDoubt));
        let base_offset = written.as_ref().ok().map(|appended| appended.base_offset);
        // One that was closed knows nothing of it any more: the next one reads it.
        if let Ok(mut groups) = coordinator.state() {
            groups.on_transactional_written(producer_id, number, base_offset);
        }
        drop(staging);
        written
    });
    let written = written.await.unwrap_or(Err(ProduceError::InDoubt));
    written.map(drop).map_err(|cause| error::of_txn_commit(&cause, call.version))
}

/// Who is no member may commit in a transaction: it is fenced by its epoch. Members may also while
/// their group rebalances.
fn check(
    call: &Call,
    entry: Option<&mut GroupEntry>,
    caller: &Caller,
    changes: &Changes,
) -> Result<(), ErrorCode> {
    let is_member =
        caller.generation >= 0 || !caller.member_id.is_empty() || caller.instance_id.is_some();
    let Some(entry) = entry.filter(|_| is_member) else {
        // In a group that nobody knows there is no generation to be in.
        let is_in_unknown = caller.generation >= 0;
        return if is_in_unknown { Err(ErrorCode::IllegalGeneration) } else { Ok(()) };
    };
    match entry.check_commit(call.front.now(), caller, true, changes) {
        Ok(()) | Err(ErrorCode::RebalanceInProgress) => Ok(()),
        // A code that producers know.
        Err(ErrorCode::StaleMemberEpoch) => Err(ErrorCode::IllegalGeneration),
        Err(code) => Err(code),
    }
}

/// The records of these positions, as a batch of the transaction.
fn batch(
    call: &Call,
    request: &TxnOffsetCommitRequest,
    changes: &Changes,
) -> Result<RecordBatch, ErrorCode> {
    let now_ms = call.front.broker.wall_time_ms();
    let mut builder = BatchBuilder::new()
        .producer(request.producer_id, request.producer_epoch, NO_SEQUENCE)
        .transactional();
    for (key, committed) in changes {
        let key = offset_record::encode_key(&request.group_id, *key);
        let value = committed.as_ref().map(offset_record::encode_value);
        builder.append(now_ms, Some(&key), value.as_deref(), &[]);
    }
    if builder.size_bytes() > offsets::CHANGES_SIZE_BYTES_MAX {
        return Err(ErrorCode::InvalidCommitOffsetSize);
    }
    let is_v2 = call.version >= V2_FROM_VERSION;
    Ok(RecordBatch {
        transaction: Some(InTransaction {
            // A copy that does not keep the request's memory.
            transactional_id: request.transactional_id.to_string().into(),
            producer_id: request.producer_id,
            producer_epoch: request.producer_epoch,
            version: if is_v2 { TransactionVersion::V2 } else { TransactionVersion::V1 },
        }),
        ..own_batch(builder)
    })
}

impl Front {
    /// A marker is committed in a partition that this node leads.
    pub(super) fn on_marker_written(
        self: &Arc<Self>,
        partition: PartitionId,
        at: Offset,
        marker: &Marker,
    ) {
        let is_offsets = {
            let metadata = self.broker.metadata();
            let topic = metadata.partition(partition).and_then(|it| metadata.topic(it.topic));
            topic.is_some_and(|topic| topic.internal && topic.name == OFFSETS_TOPIC)
        };
        if is_offsets && let Some(coordinator) = self.coordinators.known(partition) {
            on_marker(&coordinator, at, marker);
        }
    }
}

fn on_marker(coordinator: &Arc<GroupCoordinator>, at: Offset, marker: &Marker) {
    // Until the log has been read, its markers are found there.
    if let Ok(mut groups) = coordinator.state() {
        groups.on_marker(marker.producer_id, at, marker.commit);
    }
}

#[cfg(test)]
mod tests;
