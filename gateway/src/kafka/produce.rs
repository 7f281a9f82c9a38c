//! Produce: appending record batches.
//!
//! A request is started as soon as it is read, so that the batches of a pipelining producer reach
//! the log in its order without waiting for each other. Records are read once (see [`examine`]) and
//! go to the log as they came, as a slice of the request; a batch whose header gives other times than
//! its records is copied, and one that is little of its request. `acks=1` is served as `acks=all`, because there is no
//! leader here whose disk alone would count.

mod contract;
mod examine;
mod lease;
mod timestamps;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_access::{Operation, Resource};
use meridian_base::id::PartitionId;
use meridian_base::position::Generation;
use meridian_consensus::state::{Metadata, Topic};
use meridian_protocol::messages::{
    ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceResponse, ProduceTopic,
    ProduceTopicResponse, RecordError,
};
use meridian_protocol::records::{Batch, BatchHeader, NO_TIMESTAMP, RecordRules};
use meridian_protocol::{ErrorCode, Str};
use meridian_storage::leader::PutError;
use tokio::sync::oneshot;

use self::contract::Bound;
pub(crate) use self::contract::limit as lag_limit;
pub(super) use self::examine::examine_count_max;
use self::examine::{Candidate, Refused, Stated};
use self::lease::Leased;
use self::timestamps::TimestampBounds;
use super::dispatch::{Call, Reply};
use super::error::{self, ApiError};
use super::lookup::{self, TopicKey};
use super::quotas::{self, Traffic};
use super::usage::TopicUsage;
use crate::log::PartitionLog;
use crate::partition::{
    Appended, InTransaction, ProduceError, RecordBatch, TransactionError, TransactionVersion,
};
use crate::producer::Sequenced;
use crate::topic_config;

/// From this version on topics are named by id.
const IDS_FROM_VERSION: i16 = 13;
/// From this version on the first batch in a partition adds it to the transaction (KIP-890).
const ADDS_PARTITIONS_FROM_VERSION: i16 = 12;
/// From this version on the right leader is told to whoever asked the wrong one.
const LEADER_FROM_VERSION: i16 = 10;
const ACKS_NONE: i16 = 0;
/// Partitions of one request: all are begun in one go.
const PARTITION_COUNT_MAX: usize = 10_000;
/// Smaller batches are copied: requests of some bytes share a buffer.
const COPIED_SIZE_BYTES_MAX: usize = 8 << 10;
/// A batch that is a smaller share of its request is copied, too.
const KEPT_SHARE: usize = 4;
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
        let size: Option<usize> =
            lookup::topic_config(metadata, topic.id, topic_config::MAX_MESSAGE_BYTES);
        let size = size.unwrap_or(topic_config::MAX_MESSAGE_BYTES_DEFAULT);
        let time: Option<String> =
            lookup::topic_config(metadata, topic.id, topic_config::MESSAGE_TIMESTAMP_TYPE);
        Ok(Self {
            batch_size_bytes_max: size.min(topic_config::MAX_MESSAGE_BYTES_MAX),
            log_append_time: time.as_deref() == Some(topic_config::LOG_APPEND_TIME),
            dedups_sources: crate::meta::dedups_sources(metadata, topic.id),
            is_compacted: crate::meta::is_compacted(metadata, topic.id),
            lag_max: lag_limit(metadata, topic.id),
            needs_lease: crate::linked_topics::needs_lease(metadata, topic.id),
            timestamps: TimestampBounds::of(metadata, topic),
        })
    }

    /// What it demands of each record.
    fn of_records(&self, now_ms: i64) -> RecordRules {
        let timestamps_ms = (!self.log_append_time).then(|| self.timestamps.range(now_ms));
        RecordRules { timestamps_ms, needs_key: self.is_compacted }
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

/// What a client sent for one partition, read as far as it was at once.
struct Wanted {
    index: i32,
    partition: Option<PartitionId>,
    usage: Option<TopicUsage>,
    now_ms: i64,
    read: Result<(Target, Rules, Candidate), Refused>,
}

/// One partition of a request on its way.
struct Append {
    index: i32,
    partition: Option<PartitionId>,
    /// Of its topic, if there is one that the client may write to.
    usage: Option<TopicUsage>,
    log_append_time_ms: Option<i64>,
    bound: Option<Bound>,
    lease: Option<Leased>,
    record_errors: Vec<RecordError>,
    state: State,
}

enum State {
    Refused(ApiError),
    Appending(oneshot::Receiver<Result<Appended, ProduceError>>),
    Appended(Appended),
}

/// Starts a request. It takes time only if large batches are to be read.
pub(super) async fn start(call: &Call, request: ProduceRequest) -> Reply {
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
    let count = request.topic_data.iter().map(|topic| topic.partition_data.len()).sum::<usize>();
    let refusal = if !ACKS.contains(&acks) {
        Some(ErrorCode::InvalidRequiredAcks)
    } else if count > PARTITION_COUNT_MAX {
        Some(ErrorCode::InvalidRequest)
    } else {
        let id = transactional.id.as_deref().map(Resource::transactional_id);
        id.and_then(|id| call.check(Operation::Write, id).err())
    };
    let mut topics = Vec::with_capacity(request.topic_data.len());
    for topic in request.topic_data {
        let key = TopicKey::new(by_id, &topic.name, topic.topic_id);
        let appends = if let Some(code) = refusal {
            let refuse = |data: ProducePartition| {
                refused(data.index, None, None, ApiError::from(code).into())
            };
            topic.partition_data.into_iter().map(refuse).collect()
        } else {
            let mut wanted = read_topic(call, &key, topic.partition_data);
            examine_large(call, &mut wanted).await;
            let append = |wanted| start_partition(call, wanted, &transactional);
            wanted.into_iter().map(append).collect()
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

/// Reads what is small enough of what came for a topic.
fn read_topic(call: &Call, key: &TopicKey, data: Vec<ProducePartition>) -> Vec<Wanted> {
    // What the metadata says is copied out, so that its lock is not held while reading.
    let (topic, targets) = {
        let metadata = call.front.broker.metadata();
        let found = call.find(&metadata, key, Operation::Write).map_err(ApiError::from);
        let topic_id = found.as_ref().ok().map(|topic| topic.id);
        let found = found.and_then(|topic| Ok((topic, Rules::of(&metadata, topic)?)));
        let target = |index| {
            let (topic, rules) = found.clone()?;
            let (id, partition) = lookup::partition(&metadata, topic, index)?;
            Ok((Target { id, generation: partition.generation }, rules))
        };
        let targets: Vec<Result<_, _>> = data.iter().map(|data| target(data.index)).collect();
        (topic_id, targets)
    };
    let usage = topic.map(|topic| call.front.topic_usage(topic));
    let read = |(data, target): (ProducePartition, Result<(Target, Rules), ApiError>)| {
        let now_ms = call.front.broker.wall_time_ms();
        let partition = target.as_ref().ok().map(|(target, _)| target.id);
        let read = target.map_err(Refused::from).and_then(|(target, rules)| {
            led(call, target)?;
            Ok((target, rules, Candidate::read(data.records, &rules, now_ms)?))
        });
        Wanted { index: data.index, partition, usage: usage.clone(), now_ms, read }
    };
    data.into_iter().zip(targets).map(read).collect()
}

/// Reads what was too large for that.
async fn examine_large(call: &Call, wanted: &mut [Wanted]) {
    for Wanted { read, .. } in wanted {
        if let Ok((_, _, candidate)) = read
            && candidate.is_unread()
            && let Err(refused) = candidate.examine(&call.front.examining).await
        {
            *read = Err(refused);
        }
    }
}

/// The partition's log, if this node leads it in the generation that was looked up or an earlier one.
fn led(call: &Call, target: Target) -> Result<Arc<PartitionLog>, ApiError> {
    let owned = call.front.broker.owned(target.id);
    let log = owned.filter(|log| log.ownership().generation <= target.generation);
    log.ok_or_else(|| ErrorCode::NotLeaderOrFollower.into())
}

fn start_partition(call: &Call, wanted: Wanted, transactional: &Transactional) -> Append {
    let Wanted { index, partition, usage, now_ms, read } = wanted;
    let begun = read.and_then(|(target, rules, candidate)| {
        let log = led(call, target)?;
        let header = candidate.batch.header();
        let producer_id = header.is_idempotent().then_some(header.producer_id);
        let admitted = Admitted::of(call, &log, &rules, candidate, transactional, now_ms);
        let Admitted { lease, bound, batch } = admitted.inspect_err(|_| {
            producer_id.into_iter().for_each(|id| log.note_refused(id));
        })?;
        call.front.metrics.on_produced(batch.bytes.len());
        if let Some(usage) = &usage {
            usage.on_produced(batch.bytes.len(), batch.record_count);
        }
        Ok(Append {
            index,
            partition,
            usage: usage.clone(),
            log_append_time_ms: rules.log_append_time.then_some(now_ms),
            bound,
            lease,
            record_errors: Vec::new(),
            state: State::Appending(log.produce(vec![batch])),
        })
    });
    begun.unwrap_or_else(|error| refused(index, partition, usage, error))
}

/// A batch that may go to its log, and what holds for its answer.
struct Admitted {
    lease: Option<Leased>,
    bound: Option<Bound>,
    batch: RecordBatch,
}

impl Admitted {
    fn of(
        call: &Call,
        log: &Arc<PartitionLog>,
        rules: &Rules,
        candidate: Candidate,
        transactional: &Transactional,
        now_ms: i64,
    ) -> Result<Self, Refused> {
        let lease = rules.needs_lease.then(|| lease::admit(log)).transpose()?;
        let bound = rules.lag_max.map(|limit| contract::admit(log, limit)).transpose()?;
        let mut batch = to_append(candidate, rules, transactional, now_ms)?;
        batch.bytes = kept(batch.bytes, call.size_bytes);
        // The client may have its answer long before the batch is committed: it is the log that
        // holds it.
        if !log.has_room(batch.bytes.len()) {
            let busy = ProduceError::from(PutError::Busy);
            return Err(ApiError::new(error::of_produce(&busy), busy.to_string()).into());
        }
        Ok(Self { lease, bound, batch })
    }
}

fn refused(
    index: i32,
    partition: Option<PartitionId>,
    usage: Option<TopicUsage>,
    refused: Refused,
) -> Append {
    let (state, record_errors) = (State::Refused(refused.error), refused.records);
    let (log_append_time_ms, bound, lease) = (None, None, None);
    Append { index, partition, usage, log_append_time_ms, bound, lease, record_errors, state }
}

/// A batch as the log keeps it. A slice of a request keeps all of the request, which a small batch is not worth.
fn kept(batch: Bytes, request_bytes: usize) -> Bytes {
    let is_small = batch.len() < COPIED_SIZE_BYTES_MAX || batch.len() < request_bytes / KEPT_SHARE;
    if is_small { Bytes::copy_from_slice(&batch) } else { batch }
}

/// What goes to the log of a batch that was read.
fn to_append(
    mut candidate: Candidate,
    rules: &Rules,
    transactional: &Transactional,
    now_ms: i64,
) -> Result<RecordBatch, Refused> {
    let Stated { max_timestamp_ms: stated_ms, sourced } = candidate.stated()?;
    let batch = &candidate.batch;
    let header = batch.header();
    let transaction = if header.attributes.is_transactional() {
        Some(transactional.of(header.producer_id, header.producer_epoch)?)
    } else {
        None
    };
    let record_count = header.records_count.unsigned_abs();
    let log_append_time_ms = rules.log_append_time.then_some(now_ms);
    let sequenced = header.is_idempotent().then_some(Sequenced {
        producer_id: header.producer_id,
        epoch: header.producer_epoch,
        base_sequence: header.base_sequence,
        record_count,
        max_timestamp_ms: log_append_time_ms.unwrap_or(stated_ms),
    });
    // Records without a time are as old as their append.
    let max_timestamp_ms = log_append_time_ms.unwrap_or(match stated_ms {
        NO_TIMESTAMP => now_ms,
        stated_ms => stated_ms,
    });
    let bytes = with_times(batch, log_append_time_ms, stated_ms);
    Ok(RecordBatch { bytes, record_count, max_timestamp_ms, sequenced, transaction, sourced })
}

/// The batch, with a header that gives the time of the append or that of its latest record. The
/// checksum covers that: where it is another than the producer wrote the batch is copied.
fn with_times(batch: &Batch, log_append_time_ms: Option<i64>, stated_ms: i64) -> Bytes {
    let records = batch.record_bytes();
    let header = match log_append_time_ms {
        Some(time_ms) => Some(batch.header().with_log_append_time(time_ms, &records)),
        None => batch.header().with_create_time(stated_ms, &records),
    };
    let Some(header) = header.as_ref().map(BatchHeader::to_bytes) else {
        return batch.bytes().clone();
    };
    [&header[..], &records[..]].concat().into()
}

/// Nobody waits for the appends; an error that is known by now closes the connection, so that the
/// producer looks for the right leader.
fn unacknowledged(call: &Call, topics: &[(TopicKey, Vec<Append>)]) -> Reply {
    let refused =
        topics.iter().flat_map(|(_, appends)| appends).filter_map(|append| match &append.state {
            State::Refused(error) => Some((append, error.code)),
            State::Appending(_) | State::Appended(_) => None,
        });
    let mut first = None;
    for (append, code) in refused {
        call.front.metrics.on_error(code);
        append.usage.as_ref().inspect(|usage| usage.on_refused());
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

/// Waits for appends. A lease may end after its own partition has appended, while others are waited for:
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
            let Append { index, partition, usage, log_append_time_ms, bound, state, .. } = append;
            let record_errors = append.record_errors;
            let result = match state {
                State::Refused(error) => Err(error),
                State::Appended(appended) => Ok(appended),
                State::Appending(_) => Err(ErrorCode::RequestTimedOut.into()),
            };
            let mut told = partition_response(index, log_append_time_ms, &result);
            told.record_errors = record_errors;
            if let Some(bound) = bound.filter(|_| result.is_ok()) {
                bound.on_appended();
                let throttle_ms = i32::try_from(bound.throttle.as_millis()).unwrap_or(i32::MAX);
                response.throttle_time_ms = response.throttle_time_ms.max(throttle_ms);
            }
            if let Err(error) = &result {
                call.front.metrics.on_error(error.code);
                usage.inspect(TopicUsage::on_refused);
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
    let listener = call.client.listener_name();
    let endpoints = &mut response.node_endpoints;
    lookup::add_endpoint(&metadata, partition.leader, listener, endpoints);
}

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod tests;
