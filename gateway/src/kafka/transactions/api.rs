//! InitProducerId with a transactional id, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.

use std::collections::BTreeSet;

use meridian_access::{Operation, Resource};
use meridian_base::id::PartitionId;
use meridian_consensus::state::Metadata;
use meridian_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic, AddPartitionsToTxnTopicResult, AddPartitionsToTxnTransaction,
    EndTxnRequest, EndTxnResponse, InitProducerIdRequest,
};
use meridian_protocol::{ErrorCode, Str};

use super::admin;
use crate::kafka::coordinator::OFFSETS_TOPIC;
use crate::kafka::dispatch::Call;
use crate::kafka::error::{self, ApiError};
use crate::kafka::{groups, internal_state, lookup};
use crate::partition::TransactionVersion;
use crate::transaction::{Input, Producer};

/// From these versions on clients know `PRODUCER_FENCED` (KIP-588).
const INIT_FENCED_FROM_VERSION: i16 = 4;
const FENCED_FROM_VERSION: i16 = 2;
/// From this version on brokers ask, for several transactions at once.
const BATCHED_FROM_VERSION: i16 = 4;
/// From this version on every end bumps the epoch (KIP-890).
const END_V2_FROM_VERSION: i16 = 5;

/// Gives a transactional producer its id and epoch, and fences whoever had the id before.
pub(crate) async fn init(
    call: &Call,
    id: &Str,
    request: &InitProducerIdRequest,
) -> Result<Producer, ApiError> {
    let expected = Producer { id: request.producer_id, epoch: request.producer_epoch };
    admin::check_end(call, id)?;
    if id.is_empty() {
        return Err(ErrorCode::InvalidRequest.into());
    }
    let timeout_max_ms = call.front.config.transaction.timeout_max.as_millis();
    let timeout_ms = u128::try_from(request.transaction_timeout_ms).unwrap_or(0);
    if timeout_ms == 0 || timeout_ms > timeout_max_ms {
        let message = format!("transaction.timeout.ms must be from 1 to {timeout_max_ms}");
        return Err(ApiError::new(ErrorCode::InvalidTransactionTimeout, message));
    }
    let input = Input::Init {
        id: id.to_string(),
        timeout_ms: request.transaction_timeout_ms,
        expected: (expected != Producer::NONE).then_some(expected),
        fresh_id: None,
    };
    let answer = call.front.transact(input).await;
    answer.map_err(|error| {
        let code = error::of_coordinator(&error, call.version >= INIT_FENCED_FROM_VERSION);
        ApiError::new(code, error.to_string())
    })
}

/// Adds partitions to a transaction, or for brokers to several.
pub(crate) async fn add_partitions(
    call: Call,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    if call.version >= BATCHED_FROM_VERSION {
        if let Err(error_code) = call.check(Operation::ClusterAction, Resource::CLUSTER) {
            call.front.metrics.on_error(error_code);
            return AddPartitionsToTxnResponse { error_code, ..Default::default() };
        }
        let mut results_by_transaction = Vec::with_capacity(request.transactions.len());
        for transaction in request.transactions {
            results_by_transaction.push(AddPartitionsToTxnResult {
                transactional_id: transaction.transactional_id.clone(),
                topic_results: add_one(&call, transaction, TransactionVersion::V2).await,
            });
        }
        return AddPartitionsToTxnResponse { results_by_transaction, ..Default::default() };
    }
    let id = Resource::transactional_id(&request.transactional_id);
    if let Err(code) = call.check(Operation::Write, id) {
        call.front.metrics.on_error(code);
        let results_by_topic = refused(&request.topics, code);
        return AddPartitionsToTxnResponse { results_by_topic, ..Default::default() };
    }
    let transaction = AddPartitionsToTxnTransaction {
        transactional_id: request.transactional_id,
        producer_id: request.producer_id,
        producer_epoch: request.producer_epoch,
        verify_only: false,
        topics: request.topics,
    };
    let results_by_topic = add_one(&call, transaction, TransactionVersion::V1).await;
    AddPartitionsToTxnResponse { results_by_topic, ..Default::default() }
}

/// The answer for topics of which nothing is added.
fn refused(
    topics: &[AddPartitionsToTxnTopic],
    partition_error_code: ErrorCode,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let partition = |partition_index: &i32| AddPartitionsToTxnPartitionResult {
        partition_index: *partition_index,
        partition_error_code,
    };
    let topic = |topic: &AddPartitionsToTxnTopic| AddPartitionsToTxnTopicResult {
        name: topic.name.clone(),
        results_by_partition: topic.partitions.iter().map(partition).collect(),
    };
    topics.iter().map(topic).collect()
}

async fn add_one(
    call: &Call,
    transaction: AddPartitionsToTxnTransaction,
    version: TransactionVersion,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let resolved = resolve(call, &transaction.topics);
    let id = transaction.transactional_id.to_string();
    let producer = Producer { id: transaction.producer_id, epoch: transaction.producer_epoch };
    let all: Result<Vec<PartitionId>, ErrorCode> =
        resolved.iter().flat_map(|(_, partitions)| partitions).map(|(_, id)| *id).collect();
    let code = |result: Result<Producer, _>| match result {
        Ok(_) => ErrorCode::None,
        Err(error) => error::of_coordinator(&error, call.version >= FENCED_FROM_VERSION),
    };
    let mut results = Vec::new();
    match all {
        // All or none: what could have been added is not.
        Err(_) => {
            let attempted = |id: &Result<PartitionId, ErrorCode>| {
                id.err().unwrap_or(ErrorCode::OperationNotAttempted)
            };
            results.extend(resolved.iter().flat_map(|(_, it)| it).map(|(_, id)| attempted(id)));
        }
        Ok(_) if id.is_empty() => {
            results
                .extend(resolved.iter().flat_map(|(_, it)| it).map(|_| ErrorCode::InvalidRequest));
        }
        Ok(partitions) if transaction.verify_only => {
            for partition in partitions {
                let input = Input::Verify { id: id.clone(), producer, partition };
                results.push(code(call.front.transact(input).await));
            }
        }
        Ok(partitions) => {
            let added: BTreeSet<PartitionId> = partitions.iter().copied().collect();
            let input = Input::Add { id, producer, version, partitions: added };
            let code = code(call.front.transact(input).await);
            results.extend(partitions.iter().map(|_| code));
        }
    }
    let failures = results.iter().filter(|code| !code.is_none());
    failures.for_each(|code| call.front.metrics.on_error(*code));
    let mut results = results.into_iter();
    let told = |(name, partitions): Resolved| {
        let results_by_partition = partitions.into_iter().zip(&mut results);
        let results_by_partition = results_by_partition
            .map(|((partition_index, _), partition_error_code)| AddPartitionsToTxnPartitionResult {
                partition_index,
                partition_error_code,
            })
            .collect();
        AddPartitionsToTxnTopicResult { name, results_by_partition }
    };
    resolved.into_iter().map(told).collect()
}

/// A topic as it was named, and each of its partitions by index and id.
type Resolved = (Str, Vec<(i32, Result<PartitionId, ErrorCode>)>);

fn resolve(call: &Call, topics: &[AddPartitionsToTxnTopic]) -> Vec<Resolved> {
    let metadata: &Metadata = &call.front.broker.metadata();
    // Brokers act for clients whose rights they have looked at.
    let may = |name: &str| {
        call.version >= BATCHED_FROM_VERSION || call.may(Operation::Write, Resource::topic(name))
    };
    let resolve = |topic: &AddPartitionsToTxnTopic| {
        let found = match metadata.topic_named(&topic.name) {
            _ if !may(&topic.name) => Err(ErrorCode::TopicAuthorizationFailed),
            None => Err(ErrorCode::UnknownTopicOrPartition),
            // Clients write to none of them; groups are added by AddOffsetsToTxn.
            Some(found) if found.internal => Err(ErrorCode::TopicAuthorizationFailed),
            // Its markers come from the source, as its records do.
            Some(found) => {
                match error::mirror(metadata, found.id).map_err(|refused| refused.code) {
                    // Until the topic is elsewhere; producers ask again.
                    Err(ErrorCode::NotLeaderOrFollower) => Err(ErrorCode::ConcurrentTransactions),
                    Err(code) => Err(code),
                    Ok(()) => Ok(found),
                }
            }
        };
        let partition = |index: &i32| {
            let id = found.and_then(|found| Ok(lookup::partition(metadata, found, *index)?.0));
            (*index, id)
        };
        (topic.name.clone(), topic.partitions.iter().map(partition).collect())
    };
    topics.iter().map(resolve).collect()
}

/// Adds the positions of a group to a transaction.
pub(crate) async fn add_offsets(
    call: Call,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse {
    let error_code = match try_add_offsets(&call, &request).await {
        Ok(()) => ErrorCode::None,
        Err(code) => {
            call.front.metrics.on_error(code);
            code
        }
    };
    AddOffsetsToTxnResponse { error_code, ..Default::default() }
}

async fn try_add_offsets(call: &Call, request: &AddOffsetsToTxnRequest) -> Result<(), ErrorCode> {
    call.check(Operation::Write, Resource::transactional_id(&request.transactional_id))?;
    groups::check_member(call, &request.group_id)?;
    if request.transactional_id.is_empty() {
        return Err(ErrorCode::InvalidRequest);
    }
    let count = call.front.config.offsets_partition_count;
    let created = internal_state::create_topic(&call.front, OFFSETS_TOPIC, count).await;
    created.map_err(|error| error.code)?;
    let partition = {
        let metadata = call.front.broker.metadata();
        let found = internal_state::locate(&metadata, OFFSETS_TOPIC, &request.group_id);
        found.ok_or(ErrorCode::CoordinatorNotAvailable)?.0
    };
    let input = Input::Add {
        id: request.transactional_id.to_string(),
        producer: Producer { id: request.producer_id, epoch: request.producer_epoch },
        version: TransactionVersion::V1,
        partitions: BTreeSet::from([partition]),
    };
    let answer = call.front.transact(input).await;
    let knows_fenced = call.version >= FENCED_FROM_VERSION;
    answer.map(drop).map_err(|error| error::of_coordinator(&error, knows_fenced))
}

/// Commits or aborts a transaction.
pub(crate) async fn end(call: Call, request: EndTxnRequest) -> EndTxnResponse {
    match try_end(&call, &request).await {
        Ok(next) => EndTxnResponse {
            producer_id: next.id,
            producer_epoch: next.epoch,
            ..Default::default()
        },
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            EndTxnResponse { error_code, ..Default::default() }
        }
    }
}

async fn try_end(call: &Call, request: &EndTxnRequest) -> Result<Producer, ErrorCode> {
    call.check(Operation::Write, Resource::transactional_id(&request.transactional_id))?;
    if request.transactional_id.is_empty() {
        return Err(ErrorCode::InvalidRequest);
    }
    let is_v2 = call.version >= END_V2_FROM_VERSION;
    let input = Input::End {
        id: request.transactional_id.to_string(),
        producer: Producer { id: request.producer_id, epoch: request.producer_epoch },
        version: if is_v2 { TransactionVersion::V2 } else { TransactionVersion::V1 },
        commit: request.committed,
        fresh_id: None,
    };
    let answer = call.front.transact(input).await;
    let knows_fenced = call.version >= FENCED_FROM_VERSION;
    answer.map_err(|error| error::of_coordinator(&error, knows_fenced))
}
