//! Fetch: reading record batches.
//!
//! A request is read at once; if that gives less than `min_bytes`, it waits for the logs to ring a
//! bell, never by polling, and reads again. Records are passed on as they are stored.
//!
//! A consumer that says where it is (`client.rack`, a datacenter here) is sent to the reader in its
//! own datacenter (KIP-392). If it comes back from there without having read anything, the leader
//! serves it for the rest of the connection: two nodes that disagree must not play ping-pong.

mod aborted;
mod internal;
mod pack;
mod read;
mod run;
mod session;

use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::PartitionId;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{FetchRequest, FetchResponse, FetchTopicResponse};
use tokio::sync::Notify;

pub(super) use self::pack::PACK_COUNT_MAX;
use self::read::{Answer, Reader};
pub(super) use self::run::Runs;
pub(super) use self::session::Sessions;
use self::session::{Opened, Target};
use super::dispatch::Call;
use super::list_offsets::isolation;
use super::quotas::{self, Traffic};
use super::{lock, lookup};

/// From this version on topics are named by id.
const IDS_FROM_VERSION: i16 = 13;
/// From this version on endpoints of leaders are told.
const ENDPOINTS_FROM_VERSION: i16 = 16;

/// Rest between two rounds of one request, for each partition: as long as a round takes, or so.
const REST_PER_PARTITION: Duration = Duration::from_micros(4);
const REST_MAX: Duration = Duration::from_millis(100);

/// Answers a Fetch request, whose turn on its connection may come later.
pub(super) async fn fetch(call: Call, request: FetchRequest) -> FetchResponse {
    // A stranger must not be taken for a replica, whatever it says (CVE-2018-1288): `replica_id`
    // is not looked at.
    let mut opened = match call.front.sessions.open(&call.front, &request, call.version) {
        Ok(opened) => opened,
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            return FetchResponse { error_code, ..Default::default() };
        }
    };
    let limit = quotas::limit(&call, Traffic::Fetch);
    let bytes_max = limit.as_ref().map_or(usize::MAX, |limit| quotas::burst(&call, limit));
    let goes_on = lock(&call.client.runs).go_on(&mut opened.targets);
    // Requests that wait for each other do not wait one after another.
    let waited = if goes_on { call.front.now().since(call.asked_at) } else { Duration::ZERO };
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
    let wait = wait.saturating_sub(waited);
    let mut answers = read(&call, &request, &opened.targets, wait, bytes_max).await;
    lock(&call.client.runs).remember(&opened.targets, &mut answers);
    let size_bytes = answers.iter().map(|answer| answer.size_bytes).sum();
    let throttle_time_ms = quotas::charge(&call, limit.as_ref(), size_bytes);
    let answers = pack::packed(&call.front, &request, answers).await;
    FetchResponse { throttle_time_ms, ..respond(&call, opened, answers) }
}

/// Reads no more than `quota_bytes_max`, but one batch at least.
async fn read(
    call: &Call,
    request: &FetchRequest,
    targets: &[Target],
    wait: Duration,
    quota_bytes_max: usize,
) -> Vec<Answer> {
    let bytes_min = usize::try_from(request.min_bytes).unwrap_or(0);
    let bytes_max = usize::try_from(request.max_bytes).unwrap_or(0);
    let reader = Reader {
        call,
        rack: &request.rack_id,
        bytes_max: bytes_max.min(call.front.config.fetch_size_bytes_max).min(quota_bytes_max),
        isolation: isolation(request.isolation_level),
    };
    let bell = Arc::new(Notify::new());
    let mut time_is_up = std::pin::pin!(tokio::time::sleep(wait));
    let mut waiting = !wait.is_zero() && bytes_min > 0;
    let mut is_first = true;
    loop {
        if waiting {
            // Rung between this and the end of the read, the bell is heard below.
            reader.register(targets, &bell).await;
        }
        let round = reader.read(targets, !waiting).await;
        if !waiting || round.size_bytes >= bytes_min || round.is_urgent {
            call.client.hold_answer(round.charge);
            return round.answers;
        }
        // What was read is read again, and not held meanwhile.
        drop(round);
        tokio::select! {
            () = bell.notified() => {}
            () = &mut time_is_up => waiting = false,
        }
        // Who waits for more than there is does not have all partitions read with each record.
        if waiting && !is_first {
            let rest = REST_PER_PARTITION * u32::try_from(targets.len()).unwrap_or(u32::MAX);
            tokio::time::sleep(rest.min(REST_MAX)).await;
        }
        is_first = false;
    }
}

fn respond(call: &Call, opened: Opened, answers: Vec<Answer>) -> FetchResponse {
    let mut response = FetchResponse { session_id: opened.session_id, ..Default::default() };
    let kept = call.front.sessions.keep(&opened, &answers);
    for ((target, mut answer), kept) in opened.targets.into_iter().zip(answers).zip(kept) {
        if !kept {
            continue;
        }
        let code = answer.response.error_code;
        if !code.is_none() {
            call.front.metrics.on_error(code);
        }
        note_usage(call, &target, &answer);
        if code == ErrorCode::NotLeaderOrFollower {
            let metadata = call.front.broker.metadata();
            let partition = answer.partition.and_then(|id: PartitionId| metadata.partition(id));
            if let Some(partition) = partition {
                answer.response.current_leader = lookup::current_leader(partition);
                if call.version >= ENDPOINTS_FROM_VERSION {
                    let endpoints = &mut response.node_endpoints;
                    let listener = call.client.listener_name();
                    lookup::add_endpoint(&metadata, partition.leader, listener, endpoints);
                }
            }
        }
        call.front.metrics.on_fetched(answer.size_bytes);
        let (topic, topic_id) = target.topic.into_parts();
        let is_same = |last: &FetchTopicResponse| last.topic == topic && last.topic_id == topic_id;
        match response.responses.last_mut().filter(|last| is_same(last)) {
            Some(last) => last.partitions.push(answer.response),
            None => response.responses.push(FetchTopicResponse {
                topic,
                topic_id,
                partitions: vec![answer.response],
            }),
        }
    }
    response
}

/// Counts what a topic's readers get.
fn note_usage(call: &Call, target: &Target, answer: &Answer) {
    let Some(topic) = answer.topic else { return };
    let is_refused = !answer.response.error_code.is_none();
    if answer.size_bytes == 0 && !is_refused {
        return;
    }
    let usage = call.front.topic_usage(topic);
    if is_refused {
        usage.on_refused();
    }
    let end = answer.end_offset.map_or(target.offset, |end| end.max(target.offset));
    usage.on_fetched(answer.size_bytes, end.get().abs_diff(target.offset.get()));
}

/// Whether requests of this version name topics by id.
fn names_by_id(version: i16) -> bool {
    version >= IDS_FROM_VERSION
}

/// The session id of those who have none.
const NO_SESSION: i32 = 0;

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transaction_tests;
