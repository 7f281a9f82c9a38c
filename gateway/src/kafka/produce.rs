//! Produce: appending record batches.
//!
//! A request is started as soon as it is read, so that the batches of a pipelining producer reach
//! the log in its order without waiting for each other. Records are never copied or decompressed:
//! what goes to the log is a slice of the request. `acks=1` is served as `acks=all`, because there
//! is no leader here whose disk alone would count.

mod contract;
mod lease;
mod timestamps;

use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::PartitionId;
use meridian_base::position::Generation;
use meridian_consensus::state::{Metadata, Topic};
use meridian_protocol::messages::{
    ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceResponse, ProduceTopic,
    ProduceTopicResponse,
};
use meridian_protocol::records::{self, Batch, Stamp};
use meridian_protocol::{ErrorCode, Str};
use tokio::sync::oneshot;

use self::contract::Bound;
pub(crate) use self::contract::limit as lag_limit;
use self::lease::Leased;
use self::timestamps::TimestampBounds;
use super::dispatch::{Call, Reply};
use super::error::{self, ApiError};
use super::lookup::{self, TopicKey};
use super::quotas::{self, Traffic};
use super::topic_config;
use crate::partition::source::{BATCH_SIZE_BYTES_MAX, SourcedBatch};
use crate::partition::{
    Appended, InTransaction, ProduceError, RecordBatch, TransactionError, TransactionVersion,
};
use crate::producer::Sequenced;

/// From this version on topics are named by id.
const IDS_FROM_VERSION: i16 = 13;
/// From this version on the first batch in a partition adds it to the transaction (KIP-890).
const ADDS_PARTITIONS_FROM_VERSION: i16 = 12;
/// From this version on the right leader is told to whoever asked the wrong one.
const LEADER_FROM_VERSION: i16 = 10;
const ACKS_NONE: i16 = 0;
/// What a client may ask for.
const ACKS: [i16; 3] = [-1, ACKS_NONE, 1];

/// What a topic demands of a batch.
#[derive(Clone, Copy)]
struct Rules {
    batch_size_bytes_max: usize,
    log_append_time: bool,
    dedups_sources: bool,
    is_compacted: bool,
    /// How far mirrors may be behind.
    lag_max: Option<Duration>,
    /// Whether the side that does not know that it is the only writer takes nothing.
    needs_lease: bool,
    timestamps: TimestampBounds,
}

impl Rules {
    fn of(metadata: &Metadata, topic: &Topic) -> Result<Self, ApiError> {
        if topic.internal {
            let message = "only the cluster itself writes to its internal topics";
            return Err(ApiError::new(ErrorCode::InvalidTopicException, message));
        }
        error::mirror(metadata, topic.id)?;
        let size = lookup::topic_config(metadata, topic.id, topic_config::MAX_MESSAGE_BYTES);
        let time: Option<String> =
            lookup::topic_config(metadata, topic.id, topic_config::MESSAGE_TIMESTAMP_TYPE);
        Ok(Self {
            batch_size_bytes_max: size.unwrap_or(topic_config::MAX_MESSAGE_BYTES_DEFAULT),
            log_append_time: time.as_deref() == Some(topic_config::LOG_APPEND_TIME),
            dedups_sources: crate::meta::dedups_sources(metadata, topic.id),
            is_compacted: crate::meta::is_compacted(metadata, topic.id),
            lag_max: lag_limit(metadata, topic.id),
            needs_lease: crate::mirror::needs_lease(metadata, topic.id),
            timestamps: TimestampBounds::of(metadata, topic),
        })
    }
}

/// A partition, and its generation when the topic was found to take records. Whoever closes a topic
/// gives its partitions new generations after that: what was judged before never gets into those.
#[derive(Clone, Copy)]
struct Target {
    id: PartitionId,
    generation: Generation,
}

/// What a request says of the transaction that its batches may be part of.
struct Transactional {
    id: Option<Str>,
    version: TransactionVersion,
}

impl Transactional {
    fn of(&self, producer_id: i64, producer_epoch: i16) -> Result<InTransaction, ApiError> {
        let Some(transactional_id) = self.id.clone() else {
            let message = "a transactional batch needs the transactional id in its request";
            return Err(ApiError::new(ErrorCode::TransactionalIdAuthorizationFailed, message));
        };
        let version = self.version;
        Ok(InTransaction { transactional_id, producer_id, producer_epoch, version })
    }
}

/// One partition of a request on its way.
struct Append {
    index: i32,
    partition: Option<PartitionId>,
    log_append_time_ms: Option<i64>,
    bound: Option<Bound>,
    lease: Option<Leased>,
    state: State,
}

enum State {
    Refused(ApiError),
    Appending(oneshot::Receiver<Result<Appended, ProduceError>>),
    Appended(Appended),
}

/// Starts a request.
pub(super) fn start(call: &Call, request: ProduceRequest) -> Reply {
    let acks = request.acks;
    let by_id = call.version >= IDS_FROM_VERSION;
    let transactional = Transactional {
        id: request.transactional_id.filter(|id| !id.is_empty()),
        version: if call.version >= ADDS_PARTITIONS_FROM_VERSION {
            TransactionVersion::V2
        } else {
            TransactionVersion::V1
        },
    };
    let throttle_time_ms = charge(call, &request.topic_data);
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for topic in request.topic_data {
        let key = TopicKey::new(by_id, &topic.name, topic.topic_id);
        let appends = if ACKS.contains(&acks) {
            start_topic(call, &key, &transactional, topic.partition_data)
        } else {
            let refuse = |data: ProducePartition| {
                refused(data.index, None, ErrorCode::InvalidRequiredAcks.into())
            };
            topic.partition_data.into_iter().map(refuse).collect()
        };
        topics.push((key, appends));
    }
    if acks == ACKS_NONE {
        return unacknowledged(call, &topics);
    }
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let call = call.clone();
    Reply::Begun(Box::pin(async move {
        let mut response = finish(&call, topics, timeout).await;
        response.throttle_time_ms = response.throttle_time_ms.max(throttle_time_ms);
        response.into()
    }))
}

/// Charges the producer's quota, whatever becomes of the records; how long it is to wait.
fn charge(call: &Call, topics: &[ProduceTopic]) -> i32 {
    let Some(limit) = quotas::limit(call, Traffic::Produce) else { return 0 };
    let data = topics.iter().flat_map(|topic| &topic.partition_data);
    let size_bytes = data.filter_map(|data| data.records.as_ref()).map(Bytes::len).sum();
    quotas::charge(call, Some(&limit), size_bytes)
}

fn start_topic(
    call: &Call,
    key: &TopicKey,
    transactional: &Transactional,
    data: Vec<ProducePartition>,
) -> Vec<Append> {
    // What the metadata says is copied out, so that its lock is not held while appending.
    let targets: Vec<Result<(Target, Rules), ApiError>> = {
        let metadata = call.front.broker.metadata();
        let found = key.find(&metadata).map_err(ApiError::from);
        let found = found.and_then(|topic| Ok((topic, Rules::of(&metadata, topic)?)));
        let target = |index| {
            let (topic, rules) = found.clone()?;
            let (id, partition) = lookup::partition(&metadata, topic, index)?;
            Ok((Target { id, generation: partition.generation }, rules))
        };
        data.iter().map(|data| target(data.index)).collect()
    };
    let append = |(data, target): (ProducePartition, Result<_, ApiError>)| match target {
        Ok((target, rules)) => start_partition(call, target, rules, transactional, data),
        Err(error) => refused(data.index, None, error),
    };
    data.into_iter().zip(targets).map(append).collect()
}

fn start_partition(
    call: &Call,
    target: Target,
    rules: Rules,
    transactional: &Transactional,
    data: ProducePartition,
) -> Append {
    let (index, partition) = (data.index, target.id);
    let owned = call.front.broker.owned(partition);
    let Some(log) = owned.filter(|log| log.ownership().generation <= target.generation) else {
        return refused(index, Some(partition), ErrorCode::NotLeaderOrFollower.into());
    };
    let now_ms = call.front.broker.wall_time_ms();
    let log_append_time_ms = rules.log_append_time.then_some(now_ms);
    let lease = match rules.needs_lease.then(|| lease::admit(&log)).transpose() {
        Ok(lease) => lease,
        Err(error) => return refused(index, Some(partition), error),
    };
    let bound = match rules.lag_max.map(|limit| contract::admit(&log, limit)).transpose() {
        Ok(bound) => bound,
        Err(error) => return refused(index, Some(partition), error),
    };
    match check(data.records, rules, transactional, now_ms) {
        Ok(batch) => {
            call.front.metrics.on_produced(batch.bytes.len());
            let state = State::Appending(log.produce(vec![batch]));
            Append { index, partition: Some(partition), log_append_time_ms, bound, lease, state }
        }
        Err(error) => refused(index, Some(partition), error),
    }
}

fn refused(index: i32, partition: Option<PartitionId>, error: ApiError) -> Append {
    let state = State::Refused(error);
    Append { index, partition, log_append_time_ms: None, bound: None, lease: None, state }
}

/// Judges what a client sent for one partition by its header and checksum.
fn check(
    records: Option<Bytes>,
    rules: Rules,
    transactional: &Transactional,
    now_ms: i64,
) -> Result<RecordBatch, ApiError> {
    let batch = Batch::produced(records).map_err(|batch_error| {
        ApiError::new(error::of_batch(&batch_error), batch_error.to_string())
    })?;
    let header = batch.header();
    if header.size_bytes > rules.batch_size_bytes_max {
        let (size, limit) = (header.size_bytes, rules.batch_size_bytes_max);
        let message = format!("a batch of {size} bytes is over max.message.bytes, {limit}");
        return Err(ApiError::new(ErrorCode::MessageTooLarge, message));
    }
    if !rules.log_append_time {
        rules.timestamps.check(&batch, now_ms)?;
    }
    if rules.is_compacted {
        check_keys(&batch)?;
    }
    let sourced = rules.dedups_sources.then(|| sources_of(&batch, now_ms)).transpose()?;
    let transaction = if header.attributes.is_transactional() {
        Some(transactional.of(header.producer_id, header.producer_epoch)?)
    } else {
        None
    };
    let log_append_time_ms = rules.log_append_time.then_some(now_ms);
    let record_count = header.records_count.unsigned_abs();
    let max_timestamp_ms = log_append_time_ms.unwrap_or(header.max_timestamp_ms);
    let sequenced = header.is_idempotent().then_some(Sequenced {
        producer_id: header.producer_id,
        epoch: header.producer_epoch,
        base_sequence: header.base_sequence,
        record_count,
        max_timestamp_ms,
    });
    let bytes = match log_append_time_ms {
        None => batch.bytes().clone(),
        Some(_) => stamped(&batch, log_append_time_ms)?,
    };
    Ok(RecordBatch { bytes, record_count, max_timestamp_ms, sequenced, transaction, sourced })
}

/// Refuses a record without a key where only the last record of each key is kept.
fn check_keys(batch: &Batch) -> Result<(), ApiError> {
    let of_batch = |error| ApiError::new(error::of_batch(&error), error.to_string());
    let records = batch.raw_records(BATCH_SIZE_BYTES_MAX).map_err(of_batch)?;
    for (index, record) in records.iter().enumerate() {
        if !record.map_err(of_batch)?.has_key {
            let message = format!("record {index} has no key, and the topic is compacted by key");
            return Err(ApiError::new(ErrorCode::InvalidRecord, message));
        }
    }
    Ok(())
}

/// The sources of a batch's records. A record without one is refused rather than let through: in a
/// topic that promises each record once, nobody would notice that it is not covered.
fn sources_of(batch: &Batch, now_ms: i64) -> Result<SourcedBatch, ApiError> {
    if batch.header().attributes.is_transactional() {
        let message = "with meridian.dedup=source records are written without transactions: what \
                       is aborted would count as written";
        return Err(ApiError::new(ErrorCode::InvalidRecord, message));
    }
    SourcedBatch::produced(batch, now_ms)
        .map_err(|cause| ApiError::new(error::of_headers(&cause), cause.to_string()))
}

/// The batch with the time of its append, which its checksum covers: the one case of a copy.
fn stamped(batch: &Batch, log_append_time_ms: Option<i64>) -> Result<Bytes, ApiError> {
    let mut bytes = batch.bytes().to_vec();
    let stamp = Stamp {
        base_offset: batch.header().base_offset,
        partition_leader_epoch: batch.header().partition_leader_epoch,
        log_append_time_ms,
    };
    records::stamp(&mut bytes, &stamp).map_err(|_| ApiError::from(ErrorCode::CorruptMessage))?;
    Ok(bytes.into())
}

/// Nobody waits for the appends; an error that is known by now closes the connection, so that the
/// producer looks for the right leader.
fn unacknowledged(call: &Call, topics: &[(TopicKey, Vec<Append>)]) -> Reply {
    let codes =
        topics.iter().flat_map(|(_, appends)| appends).filter_map(|append| match &append.state {
            State::Refused(error) => Some(error.code),
            State::Appending(_) | State::Appended(_) => None,
        });
    let mut first = None;
    for code in codes {
        call.front.metrics.on_error(code);
        first.get_or_insert(code);
    }
    first.map_or(Reply::None, Reply::Close)
}

/// Waits until all appends are committed or refused, or time is up.
async fn finish(
    call: &Call,
    mut topics: Vec<(TopicKey, Vec<Append>)>,
    timeout: Duration,
) -> ProduceResponse {
    settle(&mut topics, call.version, timeout).await;
    answer(call, topics)
}

/// The same. A lease may have ended after its own partition had appended, while others were waited for:
/// it is looked at when nothing is waited for any more, since nothing is acknowledged after its end.
async fn settle(topics: &mut [(TopicKey, Vec<Append>)], version: i16, timeout: Duration) {
    let mut time_is_up = std::pin::pin!(tokio::time::sleep(timeout));
    for append in topics.iter_mut().flat_map(|(_, appends)| appends) {
        if let State::Appending(answer) = &mut append.state {
            let result = tokio::select! {
                biased;
                answer = answer => told(answer.unwrap_or(Err(ProduceError::InDoubt)), version),
                () = &mut time_is_up => Err(ErrorCode::RequestTimedOut.into()),
            };
            append.state = result.map_or_else(State::Refused, State::Appended);
        }
    }
    for Append { lease, state, .. } in topics.iter_mut().flat_map(|(_, appends)| appends) {
        if let (State::Appended(_), Some(Err(error))) = (&state, lease.as_ref().map(Leased::check))
        {
            *state = State::Refused(error);
        }
    }
}

/// The answer, now that nothing is waited for any more.
fn answer(call: &Call, topics: Vec<(TopicKey, Vec<Append>)>) -> ProduceResponse {
    let mut response = ProduceResponse::default();
    for (key, appends) in topics {
        let (name, topic_id) = key.into_parts();
        let mut partition_responses = Vec::with_capacity(appends.len());
        for append in appends {
            let Append { index, partition, log_append_time_ms, bound, state, .. } = append;
            let result = match state {
                State::Refused(error) => Err(error),
                State::Appended(appended) => Ok(appended),
                State::Appending(_) => Err(ErrorCode::RequestTimedOut.into()),
            };
            let mut told = partition_response(index, log_append_time_ms, &result);
            if let Some(bound) = bound.filter(|_| result.is_ok()) {
                bound.on_appended();
                let throttle_ms = i32::try_from(bound.throttle.as_millis()).unwrap_or(i32::MAX);
                response.throttle_time_ms = response.throttle_time_ms.max(throttle_ms);
            }
            if let Err(error) = &result {
                call.front.metrics.on_error(error.code);
                // Without it, Java's producer never recovers from `UNKNOWN_PRODUCER_ID`.
                let led = partition.and_then(|partition| call.front.broker.led(partition));
                told.log_start_offset = led.map_or(-1, |log| log.log_start_offset().get());
                point_to_leader(call, partition, &mut told, &mut response);
            }
            partition_responses.push(told);
        }
        response.responses.push(ProduceTopicResponse { name, topic_id, partition_responses });
    }
    response
}

fn told(result: Result<Appended, ProduceError>, version: i16) -> Result<Appended, ApiError> {
    result.map_err(|cause| {
        let code = match cause {
            ProduceError::Transaction(TransactionError::Unverified(cause)) => {
                error::of_verify(cause, version)
            }
            cause => error::of_produce(&cause),
        };
        ApiError::new(code, cause.to_string())
    })
}

fn partition_response(
    index: i32,
    log_append_time_ms: Option<i64>,
    result: &Result<Appended, ApiError>,
) -> ProducePartitionResponse {
    match result {
        Ok(appended) => ProducePartitionResponse {
            index,
            base_offset: appended.base_offset.get(),
            log_append_time_ms: log_append_time_ms.unwrap_or(-1),
            log_start_offset: appended.log_start_offset.get(),
            ..Default::default()
        },
        Err(error) => ProducePartitionResponse {
            index,
            error_code: error.code,
            base_offset: -1,
            error_message: error.message(),
            ..Default::default()
        },
    }
}

/// Tells a client that came to the wrong node where to go (KIP-951).
fn point_to_leader(
    call: &Call,
    partition: Option<PartitionId>,
    told: &mut ProducePartitionResponse,
    response: &mut ProduceResponse,
) {
    let moved = told.error_code == ErrorCode::NotLeaderOrFollower;
    if !moved || call.version < LEADER_FROM_VERSION {
        return;
    }
    let metadata = call.front.broker.metadata();
    let Some(partition) = partition.and_then(|partition| metadata.partition(partition)) else {
        return;
    };
    told.current_leader = lookup::current_leader(partition);
    lookup::add_endpoint(&metadata, partition.leader, &mut response.node_endpoints);
}

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod tests;
