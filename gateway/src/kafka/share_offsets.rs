//! DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets: where share groups are in partitions.
//!
//! Only a group without members is set anew, or forgets topics: the windows that leaders have open are void then.

use std::collections::BTreeMap;

use meridian_access::{Operation, Resource};
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::Offset;
use meridian_broker::share::{Delivery, ShareError, ShareState};
use meridian_consensus::command::FeatureLevel;
use meridian_protocol::messages::{
    AlterShareGroupOffsetsPartitionResponse, AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse, AlterShareGroupOffsetsTopic,
    AlterShareGroupOffsetsTopicResponse, DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse, DeleteShareGroupOffsetsTopicResponse,
    DescribeShareGroupOffsetsGroup, DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse, DescribedShareGroupOffset, DescribedShareGroupOffsets,
    DescribedShareGroupOffsetsTopic,
};
use meridian_protocol::{ErrorCode, Str};
use tokio::sync::oneshot;

use super::coordinator::{self, Groups};
use super::dispatch::Call;
use super::error::ApiError;
use super::lookup::{self, TopicKey};
use super::pace::Pace;
use crate::coordination::AnyGroup;
use crate::coordination::offset_record::OffsetKey;
use crate::features::agree;

/// Of a partition that the group has not begun with.
const NO_OFFSET: i64 = -1;
/// From this version on it is said how many records are left (KIP-1226).
const LAG_FROM_VERSION: i16 = 1;

/// Where a group is in a partition.
struct Found {
    answer: DescribedShareGroupOffset,
    /// Who leads the partition, and how many records there are no more to be delivered from the start on.
    led: Option<(NodeId, PartitionId, u64)>,
}

/// Says where groups are.
pub(super) async fn describe(
    call: Call,
    request: DescribeShareGroupOffsetsRequest,
) -> DescribeShareGroupOffsetsResponse {
    let mut groups = Vec::with_capacity(request.groups.len());
    let mut pace = Pace::default();
    for wanted in request.groups {
        pace.step().await;
        let described = describe_group(&call, &wanted).await.unwrap_or_else(|error| {
            call.front.metrics.on_error(error.code);
            DescribedShareGroupOffsets {
                error_code: error.code,
                error_message: error.message(),
                ..Default::default()
            }
        });
        groups.push(DescribedShareGroupOffsets { group_id: wanted.group_id, ..described });
    }
    DescribeShareGroupOffsetsResponse { groups, ..Default::default() }
}

async fn describe_group(
    call: &Call,
    wanted: &DescribeShareGroupOffsetsGroup,
) -> Result<DescribedShareGroupOffsets, ApiError> {
    call.check(Operation::Describe, Resource::group(&wanted.group_id))?;
    let mut found = find_all(call, wanted)?;
    if call.version >= LAG_FROM_VERSION {
        let led = found.iter().flat_map(|(_, all)| all).filter_map(|it| it.led);
        let led: Vec<_> = led.map(|(leader, partition, _)| (leader, partition)).collect();
        let ends = call.front.ends(led).await;
        for Found { answer, led } in found.iter_mut().flat_map(|(_, all)| all) {
            let Some((_, partition, decided_count)) = *led else { continue };
            let Some(end) = ends.get(&partition) else { continue };
            let ahead = end.get().saturating_sub(answer.start_offset).max(0);
            let decided = i64::try_from(decided_count).unwrap_or(i64::MAX);
            answer.lag = ahead.saturating_sub(decided).max(0);
        }
    }
    let topics = found.into_iter().map(|(topic, all)| DescribedShareGroupOffsetsTopic {
        partitions: all.into_iter().map(|it| it.answer).collect(),
        ..topic
    });
    Ok(DescribedShareGroupOffsets { topics: topics.collect(), ..Default::default() })
}

/// Where a group is in the partitions that are asked for, or in all that it shares and the client may see.
fn find_all(
    call: &Call,
    wanted: &DescribeShareGroupOffsetsGroup,
) -> Result<Vec<(DescribedShareGroupOffsetsTopic, Vec<Found>)>, ApiError> {
    let coordinator = call.front.coordinator_of(&wanted.group_id)?;
    let metadata = call.front.broker.metadata();
    let groups = coordinator.state()?;
    let shares = shares_of(&groups, &wanted.group_id)?;
    let mut all: Vec<(DescribedShareGroupOffsetsTopic, Vec<Found>)> = Vec::new();
    let found = |key: OffsetKey| {
        let led = metadata.partition_at(key.topic, key.index);
        found(key, shares.get(&key), led.map(|(id, it)| (it.leader, id)))
    };
    let Some(topics) = &wanted.topics else {
        for key in shares.keys() {
            // Of a topic that was deleted there is nothing left to consume.
            let Some(topic) = metadata.topic(key.topic) else { continue };
            if !call.sees(Operation::Describe, Resource::topic(&topic.name)) {
                continue;
            }
            let topic_id = lookup::uuid(topic.id);
            match all.last_mut().filter(|(last, _)| last.topic_id == topic_id) {
                Some((_, partitions)) => partitions.push(found(*key)),
                None => {
                    let topic_name = topic.name.as_str().into();
                    let topic = DescribedShareGroupOffsetsTopic {
                        topic_name,
                        topic_id,
                        ..Default::default()
                    };
                    all.push((topic, vec![found(*key)]));
                }
            }
        }
        return Ok(all);
    };
    for wanted in topics {
        let key = TopicKey::Name(wanted.topic_name.clone());
        let topic = call.find(&metadata, &key, Operation::Describe);
        let partitions = wanted.partitions.iter().map(|index| {
            let code = match topic.and_then(|topic| lookup::partition(&metadata, topic, *index)) {
                Ok((_, known)) => {
                    return found(OffsetKey { topic: known.topic, index: known.index });
                }
                Err(code) => code,
            };
            call.front.metrics.on_error(code);
            let answer = DescribedShareGroupOffset {
                partition_index: *index,
                start_offset: NO_OFFSET,
                error_code: code,
                ..Default::default()
            };
            Found { answer, led: None }
        });
        let partitions = partitions.collect();
        let topic = DescribedShareGroupOffsetsTopic {
            topic_name: wanted.topic_name.clone(),
            topic_id: topic.map(|topic| lookup::uuid(topic.id)).unwrap_or_default(),
            ..Default::default()
        };
        all.push((topic, partitions));
    }
    Ok(all)
}

fn found(key: OffsetKey, state: Option<&ShareState>, led: Option<(NodeId, PartitionId)>) -> Found {
    let start = state.and_then(ShareState::start);
    let is_decided = |delivery: &Delivery| !matches!(delivery, Delivery::Available(_));
    let runs = state.into_iter().flat_map(|state| state.deliveries().iter());
    let decided_count = runs.filter(|run| is_decided(run.value)).map(|run| run.count()).sum();
    Found {
        answer: DescribedShareGroupOffset {
            partition_index: key.index.cast_signed(),
            start_offset: start.map_or(NO_OFFSET, Offset::get),
            leader_epoch: state.map_or(0, |state| state.leader_epoch().get()),
            ..Default::default()
        },
        led: start.and(led).map(|(leader, partition)| (leader, partition, decided_count)),
    }
}

fn shares_of<'g>(
    groups: &'g Groups,
    id: &str,
) -> Result<&'g BTreeMap<OffsetKey, ShareState>, ApiError> {
    let entry = groups.existing(id);
    match entry.filter(|entry| matches!(entry.group, AnyGroup::Share(_))) {
        Some(entry) => Ok(entry.shares()),
        None => {
            let text = format!("there is no share group {id}");
            Err(ApiError::new(ErrorCode::GroupIdNotFound, text))
        }
    }
}

/// The shares of a group that has no members.
fn shares_of_empty<'g>(
    groups: &'g Groups,
    id: &str,
) -> Result<&'g BTreeMap<OffsetKey, ShareState>, ApiError> {
    let shares = shares_of(groups, id)?;
    match groups.existing(id).is_some_and(|entry| entry.group.is_empty()) {
        true => Ok(shares),
        false => {
            let text = "the group has members; stop them first";
            Err(ApiError::new(ErrorCode::NonEmptyGroup, text))
        }
    }
}

/// Sets where a group goes on.
pub(super) async fn alter(
    call: Call,
    request: AlterShareGroupOffsetsRequest,
) -> AlterShareGroupOffsetsResponse {
    match try_alter(&call, &request).await {
        Ok(responses) => AlterShareGroupOffsetsResponse { responses, ..Default::default() },
        Err(error) => {
            call.front.metrics.on_error(error.code);
            AlterShareGroupOffsetsResponse {
                error_code: error.code,
                error_message: error.message(),
                ..Default::default()
            }
        }
    }
}

async fn try_alter(
    call: &Call,
    request: &AlterShareGroupOffsetsRequest,
) -> Result<Vec<AlterShareGroupOffsetsTopicResponse>, ApiError> {
    call.check(Operation::Read, Resource::group(&request.group_id))?;
    let coordinator = call.front.coordinator_of(&request.group_id)?;
    agree(&*call.front.broker, FeatureLevel::SHARE_GROUPS).await?;
    let (responses, answer) = {
        // In this order everywhere: the metadata, then groups.
        let metadata = call.front.broker.metadata();
        let mut groups = coordinator.state()?;
        // It may be said where a group begins before its first member comes.
        groups.share_group(&request.group_id)?;
        groups.tell(&request.group_id, Vec::new(), call.front.broker.wall_time_ms());
        shares_of_empty(&groups, &request.group_id)?;
        let mut responses = Vec::with_capacity(request.topics.len());
        for AlterShareGroupOffsetsTopic { topic_name, partitions } in &request.topics {
            let key = TopicKey::Name(topic_name.clone());
            let topic = call.find(&metadata, &key, Operation::Read);
            let partitions = partitions.iter().map(|wanted| {
                let found = topic
                    .and_then(|topic| lookup::partition(&metadata, topic, wanted.partition_index));
                let set = found.and_then(|(_, known)| {
                    if wanted.start_offset < 0 {
                        return Err(ErrorCode::InvalidRequest);
                    }
                    let key = OffsetKey { topic: known.topic, index: known.index };
                    let start = Offset::new(wanted.start_offset);
                    groups.seek_share(&request.group_id, key, start).map_err(of_seek)
                });
                AlterShareGroupOffsetsPartitionResponse {
                    partition_index: wanted.partition_index,
                    error_code: set.err().unwrap_or_default(),
                    ..Default::default()
                }
            });
            let partitions = partitions.collect();
            responses.push(AlterShareGroupOffsetsTopicResponse {
                topic_name: topic_name.clone(),
                topic_id: topic.map(|topic| lookup::uuid(topic.id)).unwrap_or_default(),
                partitions,
            });
        }
        let (waiter, answer) = oneshot::channel();
        groups.when_settled(&request.group_id, waiter);
        (responses, answer)
    };
    coordinator::committed(answer).await?;
    let codes = responses.iter().flat_map(|it| &it.partitions).map(|it| it.error_code);
    codes.filter(|code| !code.is_none()).for_each(|code| call.front.metrics.on_error(code));
    Ok(responses)
}

fn of_seek(error: ShareError) -> ErrorCode {
    match error {
        ShareError::TooMany => ErrorCode::PolicyViolation,
        ShareError::UnknownGroup => ErrorCode::GroupIdNotFound,
        ShareError::FencedLeader | ShareError::FencedState | ShareError::Unavailable => {
            ErrorCode::CoordinatorNotAvailable
        }
    }
}

/// Has a group forget topics: it begins with them anew.
pub(super) async fn delete(
    call: Call,
    request: DeleteShareGroupOffsetsRequest,
) -> DeleteShareGroupOffsetsResponse {
    match try_delete(&call, &request).await {
        Ok(responses) => DeleteShareGroupOffsetsResponse { responses, ..Default::default() },
        Err(error) => {
            call.front.metrics.on_error(error.code);
            DeleteShareGroupOffsetsResponse {
                error_code: error.code,
                error_message: error.message(),
                ..Default::default()
            }
        }
    }
}

async fn try_delete(
    call: &Call,
    request: &DeleteShareGroupOffsetsRequest,
) -> Result<Vec<DeleteShareGroupOffsetsTopicResponse>, ApiError> {
    call.check(Operation::Delete, Resource::group(&request.group_id))?;
    let coordinator = call.front.coordinator_of(&request.group_id)?;
    let (responses, answer) = {
        // In this order everywhere: the metadata, then groups.
        let metadata = call.front.broker.metadata();
        let mut groups = coordinator.state()?;
        let keys: Vec<OffsetKey> =
            shares_of_empty(&groups, &request.group_id)?.keys().copied().collect();
        let mut responses = Vec::with_capacity(request.topics.len());
        for wanted in &request.topics {
            let topic_name: Str = wanted.topic_name.clone();
            let key = TopicKey::Name(topic_name.clone());
            let topic = call.find(&metadata, &key, Operation::Read);
            if let Ok(topic) = topic {
                for key in keys.iter().filter(|key| key.topic == topic.id) {
                    groups.forget_share(&request.group_id, *key);
                }
            }
            let error_code = topic.err().unwrap_or_default();
            if !error_code.is_none() {
                call.front.metrics.on_error(error_code);
            }
            responses.push(DeleteShareGroupOffsetsTopicResponse {
                topic_name,
                topic_id: topic.map(|topic| lookup::uuid(topic.id)).unwrap_or_default(),
                error_code,
                ..Default::default()
            });
        }
        let (waiter, answer) = oneshot::channel();
        groups.when_settled(&request.group_id, waiter);
        (responses, answer)
    };
    coordinator::committed(answer).await?;
    Ok(responses)
}
