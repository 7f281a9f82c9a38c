//! Acknowledging records: ShareAcknowledge, and what ShareFetch says of records before it asks for more.
//!
//! All partitions are looked at first, so that their deltas are kept side by side; then each is waited for.

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::position::Offset;
use meridian_broker::share::{AckRange, AckType};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    AcknowledgementBatch, ShareAcknowledgePartitionResponse, ShareAcknowledgeRequest,
    ShareAcknowledgeResponse, ShareAcknowledgeTopicResponse,
};
use tokio::sync::oneshot;

use super::session::{Change, EPOCH_FINAL, EPOCH_INITIAL};
use super::{Member, Target, leader_of, locate, settings};
use crate::kafka::dispatch::Call;
use crate::kafka::error;
use crate::kafka::opening::Standing;

/// What is said of the records of one partition.
pub(super) struct Acknowledgement {
    pub(super) target: Target,
    pub(super) batches: Vec<AcknowledgementBatch>,
}

/// What became of acknowledgements, by partition.
pub(super) type Outcomes = BTreeMap<Target, Result<(), ErrorCode>>;

/// An acknowledgement that was taken, and is kept when this says so; `None` if nothing has to be.
type Taken = Option<oneshot::Receiver<Result<(), ErrorCode>>>;

/// Answers ShareAcknowledge.
pub(in crate::kafka) async fn acknowledge(
    call: Call,
    request: ShareAcknowledgeRequest,
) -> ShareAcknowledgeResponse {
    match try_acknowledge(&call, request).await {
        Ok(response) => response,
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            ShareAcknowledgeResponse { error_code, ..Default::default() }
        }
    }
}

async fn try_acknowledge(
    call: &Call,
    request: ShareAcknowledgeRequest,
) -> Result<ShareAcknowledgeResponse, ErrorCode> {
    let member = Member::of(call, request.group_id.as_ref(), request.member_id.as_ref())?;
    let epoch = request.share_session_epoch;
    if epoch == EPOCH_INITIAL {
        return Err(ErrorCode::InvalidShareSessionEpoch);
    }
    let change = Change { epoch, added: Vec::new(), forgotten: BTreeSet::new() };
    call.front.shares.sessions.take(&member, &call.client, change)?;
    let acknowledgements = request.topics.into_iter().flat_map(|topic| {
        topic.partitions.into_iter().map(move |partition| Acknowledgement {
            target: Target { topic: topic.topic_id, index: partition.partition_index },
            batches: partition.acknowledgement_batches,
        })
    });
    let outcomes = take_all(call, &member, acknowledgements.collect(), request.is_renew_ack).await;
    if epoch == EPOCH_FINAL {
        call.front.shares.end_session(&member);
    }
    Ok(respond(call, &member, outcomes))
}

fn respond(call: &Call, member: &Member, outcomes: Outcomes) -> ShareAcknowledgeResponse {
    let mut response = ShareAcknowledgeResponse {
        acquisition_lock_timeout_ms: settings(&call.front, &member.group).lock_ms(),
        ..Default::default()
    };
    for (target, outcome) in outcomes {
        let error_code = outcome.err().unwrap_or_default();
        let endpoints = &mut response.node_endpoints;
        let partition = ShareAcknowledgePartitionResponse {
            partition_index: target.index,
            error_code,
            current_leader: leader_of(call, target, error_code, endpoints),
            ..Default::default()
        };
        match response.responses.last_mut().filter(|last| last.topic_id == target.topic) {
            Some(last) => last.partitions.push(partition),
            None => response.responses.push(ShareAcknowledgeTopicResponse {
                topic_id: target.topic,
                partitions: vec![partition],
            }),
        }
    }
    response
}

/// Takes what a member says of records, and gives what became of it when that is kept.
pub(super) async fn take_all(
    call: &Call,
    member: &Member,
    acknowledgements: Vec<Acknowledgement>,
    renews: bool,
) -> Outcomes {
    let renews = renews && settings(&call.front, &member.group).renews;
    let mut taken: Vec<(Target, Result<Taken, ErrorCode>)> = Vec::new();
    for Acknowledgement { target, batches } in acknowledgements {
        taken.push((target, take(call, member, target, &batches, renews)));
    }
    let mut outcomes = Outcomes::new();
    for (target, taken) in taken {
        let outcome = match taken {
            Ok(None) => Ok(()),
            // The window was given up: what it said last is not known to be kept.
            Ok(Some(kept)) => kept.await.unwrap_or(Err(ErrorCode::NotLeaderOrFollower)),
            Err(code) => Err(code),
        };
        if let Err(code) = outcome {
            call.front.metrics.on_error(code);
        }
        // Of what is said twice of one partition the first refusal counts.
        let known = outcomes.entry(target).or_insert(Ok(()));
        *known = known.and(outcome);
    }
    outcomes
}

fn take(
    call: &Call,
    member: &Member,
    target: Target,
    batches: &[AcknowledgementBatch],
    renews: bool,
) -> Result<Taken, ErrorCode> {
    let ranges: Option<Vec<AckRange>> = batches.iter().map(range_of).collect();
    let ranges = ranges.ok_or(ErrorCode::InvalidRequest)?;
    let located = locate(call, target)?;
    let front = &call.front;
    let Standing::Served(log) = Standing::of(&*front.broker, located.partition) else {
        return Err(ErrorCode::NotLeaderOrFollower);
    };
    let window = front.shares.known(&member.group, located.partition);
    let window = window.filter(|it| it.is_of(&log)).ok_or(ErrorCode::InvalidRecordState)?;
    let now = front.now();
    let taken = window.with(|partition| {
        partition.acknowledge(now, &member.id, &ranges, renews)?;
        let (waiter, answer) = oneshot::channel();
        Ok(partition.when_kept(waiter).is_none().then_some(answer))
    })?;
    // Nobody holds anything of a window that is being opened.
    let taken = taken.ok_or(ErrorCode::InvalidRecordState)?.map_err(error::of_acknowledgement)?;
    window.wake_fetches();
    Ok(taken)
}

fn range_of(batch: &AcknowledgementBatch) -> Option<AckRange> {
    let types = batch.acknowledge_types.iter().map(|kind| match kind {
        0 => Some(AckType::Gap),
        1 => Some(AckType::Accept),
        2 => Some(AckType::Release),
        3 => Some(AckType::Reject),
        4 => Some(AckType::Renew),
        _ => None,
    });
    Some(AckRange {
        first: Offset::new(batch.first_offset),
        last: Offset::new(batch.last_offset),
        types: types.collect::<Option<_>>()?,
    })
}
