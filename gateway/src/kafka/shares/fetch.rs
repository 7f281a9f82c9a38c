//! ShareFetch: acknowledges records, and gives a member others.
//!
//! Records are read from where the window has something free, and given out in whole batches; those of a batch that
//! are not the member's are left out by its client. A fetch that finds nothing waits until the log grows or something
//! becomes free; one that has acknowledged something does not, for that is answered with it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_broker::share::{AcquireMode, Acquired, ReadBatch, Wanted};
use meridian_protocol::messages::{
    AcquiredRecords, ShareFetchPartitionResponse, ShareFetchRequest, ShareFetchResponse,
    ShareFetchTopicResponse,
};
use meridian_protocol::records::{self, Batch, BatchHeader};
use meridian_protocol::{ErrorCode, Records};
use tokio::sync::Notify;

use super::acknowledge::{self, Acknowledgement, Outcomes};
use super::session::{Change, EPOCH_FINAL, EPOCH_INITIAL};
use super::window::Window;
use super::{Member, Target, leader_of, settings, window_of};
use crate::kafka::configs::share::ShareSettings;
use crate::kafka::dispatch::Call;
use crate::kafka::error;
use crate::kafka::memory::{Charge, Kind};
use crate::kafka::pace::Pace;
use crate::kafka::quotas::{self, Traffic};
use crate::log::{FetchError, Fetched};
use crate::partition::AbortedTransaction;

/// Record bytes of one partition that are read at once.
const PIECE_BYTES_MAX: usize = 4 << 20;
/// Times that a window is read for one fetch: what was free when it was read may be another's by then.
const TRY_COUNT_MAX: usize = 3;

/// What a fetch got of one partition.
#[derive(Default)]
struct Given {
    records: Records,
    acquired: Vec<Acquired>,
    error: ErrorCode,
}

impl Given {
    fn is_empty(&self) -> bool {
        self.acquired.is_empty() && self.error.is_none()
    }
}

/// Answers ShareFetch.
pub(in crate::kafka) async fn fetch(call: Call, request: ShareFetchRequest) -> ShareFetchResponse {
    match try_fetch(&call, request).await {
        Ok(response) => response,
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            ShareFetchResponse { error_code, ..Default::default() }
        }
    }
}

async fn try_fetch(
    call: &Call,
    request: ShareFetchRequest,
) -> Result<ShareFetchResponse, ErrorCode> {
    let member = Member::of(call, request.group_id.as_ref(), request.member_id.as_ref())?;
    let wanted = wanted_of(&request)?;
    let epoch = request.share_session_epoch;
    let (added, acknowledgements) = targets_of(&request);
    if epoch == EPOCH_INITIAL && !acknowledgements.is_empty() {
        return Err(ErrorCode::InvalidRequest);
    }
    let forgotten = request.forgotten_topics_data.iter().flat_map(|topic| {
        topic.partitions.iter().map(|index| Target { topic: topic.topic_id, index: *index })
    });
    let change = Change { epoch, added, forgotten: forgotten.collect() };
    let targets = call.front.shares.sessions.take(&member, &call.client, change)?;
    let has_acknowledged = !acknowledgements.is_empty();
    let outcomes =
        acknowledge::take_all(call, &member, acknowledgements, request.is_renew_ack).await;
    if epoch == EPOCH_FINAL {
        call.front.shares.end_session(&member);
    }
    let is_prompt = has_acknowledged || request.is_renew_ack || epoch == EPOCH_FINAL;
    let wait = match is_prompt {
        true => Duration::ZERO,
        false => Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0)),
    };
    let limit = quotas::limit(call, Traffic::Fetch);
    let bytes_max = usize::try_from(request.max_bytes).unwrap_or(0);
    let bytes_max = bytes_max
        .min(call.front.config.fetch_size_bytes_max)
        .min(limit.as_ref().map_or(usize::MAX, |limit| quotas::burst(call, limit)));
    let settings = settings(&call.front, &member.group);
    let fetcher = Fetcher { call, member: &member, wanted, bytes_max, settings };
    let (given, charge) = match request.is_renew_ack {
        true => (Vec::new(), call.client.holder.charge(Kind::Answers)),
        false => fetcher.fetch(&targets, wait).await,
    };
    let throttle_time_ms = quotas::charge(call, limit.as_ref(), charge.size_bytes());
    call.client.hold_answer(charge);
    let mut response = respond(call, given, outcomes);
    response.throttle_time_ms = throttle_time_ms;
    response.acquisition_lock_timeout_ms = settings.lock_ms();
    Ok(response)
}

/// How many records a request asks for, if it makes sense.
fn wanted_of(request: &ShareFetchRequest) -> Result<Wanted, ErrorCode> {
    let ShareFetchRequest { max_wait_ms, min_bytes, max_bytes, max_records, .. } = *request;
    // Who renews asks for nothing else (KIP-1222).
    let asks = max_wait_ms != 0 || min_bytes != 0 || max_bytes != 0 || max_records != 0;
    if request.is_renew_ack && asks {
        return Err(ErrorCode::InvalidRequest);
    }
    let mode = match request.share_acquire_mode {
        0 => AcquireMode::Batches,
        1 => AcquireMode::Records,
        _ => return Err(ErrorCode::InvalidRequest),
    };
    Ok(Wanted {
        record_count_max: u32::try_from(max_records).unwrap_or(0),
        piece_record_count: u32::try_from(request.batch_size).unwrap_or(0).max(1),
        mode,
    })
}

/// The partitions that a request names, and what it says of their records.
fn targets_of(request: &ShareFetchRequest) -> (Vec<Target>, Vec<Acknowledgement>) {
    let mut added = Vec::new();
    let mut acknowledgements = Vec::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            let target = Target { topic: topic.topic_id, index: partition.partition_index };
            added.push(target);
            if !partition.acknowledgement_batches.is_empty() {
                let batches = partition.acknowledgement_batches.clone();
                acknowledgements.push(Acknowledgement { target, batches });
            }
        }
    }
    (added, acknowledgements)
}

struct Fetcher<'a> {
    call: &'a Call,
    member: &'a Member,
    wanted: Wanted,
    bytes_max: usize,
    settings: ShareSettings,
}

impl Fetcher<'_> {
    /// Reads until something is found, or time is up.
    async fn fetch(&self, targets: &[Target], wait: Duration) -> (Vec<(Target, Given)>, Charge) {
        let bell = Arc::new(Notify::new());
        let mut time_is_up = std::pin::pin!(tokio::time::sleep(wait));
        let mut waiting = !wait.is_zero();
        loop {
            // Rung between the look at a window and the wait, the bell is heard.
            let (given, charge) = self.round(targets, &bell, !waiting).await;
            if !waiting || !given.is_empty() {
                return (given, charge);
            }
            drop(charge);
            tokio::select! {
                () = bell.notified() => {}
                () = &mut time_is_up => waiting = false,
            }
        }
    }

    async fn round(
        &self,
        targets: &[Target],
        bell: &Arc<Notify>,
        is_last: bool,
    ) -> (Vec<(Target, Given)>, Charge) {
        let mut all = Vec::new();
        let mut charge = self.call.client.holder.charge(Kind::Answers);
        let (mut size_bytes, mut wanted) = (0, self.wanted);
        let mut pace = Pace::default();
        for target in targets {
            pace.step().await;
            let room = self.bytes_max.saturating_sub(size_bytes);
            // One batch is given even if it is too large, or the group would never get past it.
            let room = if size_bytes == 0 { room.max(1) } else { room };
            if room == 0 || wanted.record_count_max == 0 {
                break;
            }
            let room = room.min(PIECE_BYTES_MAX);
            if size_bytes == 0 {
                charge.take(room).await;
            } else if !charge.try_take(room) {
                break;
            }
            let given = match window_of(self.call, self.member, *target, bell) {
                Ok(Some(window)) => self.give(&window, room, wanted).await,
                Ok(None) if is_last => Err(ErrorCode::NotLeaderOrFollower),
                Ok(None) => Ok(Given::default()),
                Err(code) => Err(code),
            };
            let given =
                given.unwrap_or_else(|code| Given { error: fetch_error(code), ..Given::default() });
            size_bytes += given.records.size_bytes();
            charge.set(size_bytes);
            let count = given.acquired.iter().map(|it| it.end.get().abs_diff(it.start.get()));
            let count = u32::try_from(count.sum::<u64>()).unwrap_or(u32::MAX);
            wanted.record_count_max = wanted.record_count_max.saturating_sub(count);
            if !given.is_empty() {
                all.push((*target, given));
            }
        }
        charge.set(size_bytes);
        (all, charge)
    }

    /// Gives the member something of a partition, if anything is free.
    async fn give(
        &self,
        window: &Arc<Window>,
        bytes_max: usize,
        wanted: Wanted,
    ) -> Result<Given, ErrorCode> {
        for _ in 0..TRY_COUNT_MAX {
            let at = window.with(|partition| {
                partition.set_limits(self.settings.limits);
                partition.next_fetch()
            })?;
            let Some(Some(from)) = at else { return Ok(Given::default()) };
            let log = window.log();
            let fetched = match log.fetch_as(self.settings.isolation, from, bytes_max).await {
                Ok(fetched) => fetched,
                Err(FetchError::OutOfRange { log_start_offset, .. }) if from < log_start_offset => {
                    window.with(|partition| partition.on_log_start(log_start_offset))?;
                    continue;
                }
                Err(cause) => return Err(error::of_fetch(&cause)),
            };
            let batches = batches_of(fetched);
            if batches.is_empty() {
                return Ok(Given::default());
            }
            if !window.confirm_led(&self.call.front).await {
                return Err(ErrorCode::NotLeaderOrFollower);
            }
            let read: Vec<ReadBatch> = batches.iter().map(|(read, _)| *read).collect();
            let now = self.call.front.now();
            let acquired = window.with(|partition| {
                let before = partition.redelivered_count();
                let acquired = partition.acquire(now, &self.member.id, from, &read, wanted);
                self.call.front.shares.note_redelivered(partition.redelivered_count() - before);
                acquired
            })?;
            let acquired = acquired.unwrap_or_default();
            if !acquired.is_empty() {
                let records = records_of(batches, &acquired);
                return Ok(Given { records, acquired, error: ErrorCode::None });
            }
        }
        Ok(Given::default())
    }
}

/// The code of a fetch that failed; of one whose window was opened by another, the one that has it fetch again.
fn fetch_error(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::FencedStateEpoch => ErrorCode::NotLeaderOrFollower,
        code => code,
    }
}

/// The batches that were read, and whether they have anything for consumers.
fn batches_of(fetched: Fetched) -> Vec<(ReadBatch, Bytes)> {
    let Fetched { records: pieces, aborted, .. } = fetched;
    let bytes = pieces.into_iter().collect::<Records>().into_bytes();
    let read = |batch: Batch| {
        let header = batch.header();
        let read = ReadBatch {
            start: Offset::new(header.base_offset),
            end: Offset::new(header.last_offset().saturating_add(1)),
            is_dead: header.attributes.is_control() || is_aborted(header, &aborted),
        };
        (read, batch.bytes().clone())
    };
    records::batches(bytes).map_while(Result::ok).map(read).collect()
}

fn is_aborted(header: &BatchHeader, aborted: &[AbortedTransaction]) -> bool {
    let base_offset = Offset::new(header.base_offset);
    let is_its = |of: &AbortedTransaction| {
        of.producer_id == header.producer_id
            && (of.first_offset..of.last_offset).contains(&base_offset)
    };
    header.attributes.is_transactional() && aborted.iter().any(is_its)
}

/// The batches that have a record that was acquired.
fn records_of(batches: Vec<(ReadBatch, Bytes)>, acquired: &[Acquired]) -> Records {
    let mut rest = acquired;
    let mut records = Records::default();
    for (read, bytes) in batches {
        while let Some((first, others)) = rest.split_first()
            && first.end <= read.start
        {
            rest = others;
        }
        if rest.first().is_some_and(|first| first.start < read.end) {
            records.push(bytes);
        }
    }
    records
}

fn respond(call: &Call, given: Vec<(Target, Given)>, mut outcomes: Outcomes) -> ShareFetchResponse {
    let mut response = ShareFetchResponse::default();
    let mut partitions: Vec<(Target, ShareFetchPartitionResponse)> = Vec::new();
    for (target, given) in given {
        let code = given.error;
        if !code.is_none() {
            call.front.metrics.on_error(code);
        }
        call.front.metrics.on_fetched(given.records.size_bytes());
        let acquired = |it: &Acquired| AcquiredRecords {
            first_offset: it.start.get(),
            last_offset: it.end.get() - 1,
            delivery_count: i16::try_from(it.delivery_count).unwrap_or(i16::MAX),
        };
        let partition = ShareFetchPartitionResponse {
            partition_index: target.index,
            error_code: code,
            acknowledge_error_code: outcomes
                .remove(&target)
                .and_then(Result::err)
                .unwrap_or_default(),
            current_leader: leader_of(call, target, code, &mut response.node_endpoints),
            acquired_records: given.acquired.iter().map(acquired).collect(),
            records: Some(given.records),
            ..Default::default()
        };
        partitions.push((target, partition));
    }
    for (target, outcome) in outcomes {
        let code = outcome.err().unwrap_or_default();
        let partition = ShareFetchPartitionResponse {
            partition_index: target.index,
            acknowledge_error_code: code,
            current_leader: leader_of(call, target, code, &mut response.node_endpoints),
            ..Default::default()
        };
        partitions.push((target, partition));
    }
    partitions.sort_by_key(|(target, _)| *target);
    for (target, partition) in partitions {
        match response.responses.last_mut().filter(|last| last.topic_id == target.topic) {
            Some(last) => last.partitions.push(partition),
            None => response.responses.push(ShareFetchTopicResponse {
                topic_id: target.topic,
                partitions: vec![partition],
            }),
        }
    }
    response
}
