//! ShareGroupHeartbeat and ShareGroupDescribe: the members of share groups (KIP-932).

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_access::{Operation, Resource};
use meridian_broker::share::{ShareGroup, ShareGroupLimits, ShareHeartbeat, ShareMember};
use meridian_consensus::command::FeatureLevel;
use meridian_consensus::state::Metadata;
use meridian_protocol::messages::{
    DescribedShareGroup, DescribedShareGroupAssignment, DescribedShareGroupMember,
    DescribedShareGroupTopic, ShareGroupAssignment, ShareGroupDescribeRequest,
    ShareGroupDescribeResponse, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse,
    ShareGroupTopic,
};
use meridian_protocol::{ErrorCode, Str, Uuid};
use tokio::sync::oneshot;

use super::configs::share::ShareSettings;
use super::consumer_groups::{Directory, by_topic};
use super::coordinator;
use super::dispatch::Call;
use super::error::{self, ApiError};
use super::repeated::unique;
use super::{groups, lookup};
use crate::coordination::AnyGroup;
use crate::features::agree;
use crate::group::consumer::{ConsumerReply, JOIN_EPOCH, LEAVE_EPOCH};

/// Kafka's name for how partitions are shared out.
const ASSIGNOR: &str = "simple";
const DEAD: &str = "Dead";

/// Takes a member in, hears from it or lets it go.
pub(super) async fn heartbeat(
    call: Call,
    request: ShareGroupHeartbeatRequest,
) -> ShareGroupHeartbeatResponse {
    let member_id = request.member_id.clone();
    match try_heartbeat(&call, request).await {
        Ok((interval, reply)) => ShareGroupHeartbeatResponse {
            member_id: Some(member_id),
            member_epoch: reply.epoch,
            heartbeat_interval_ms: i32::try_from(interval.as_millis()).unwrap_or(i32::MAX),
            assignment: reply.assignment.map(|assigned| ShareGroupAssignment {
                topic_partitions: by_topic(&assigned)
                    .into_iter()
                    .map(|(topic_id, partitions)| ShareGroupTopic { topic_id, partitions })
                    .collect(),
            }),
            ..Default::default()
        },
        Err(error) => {
            call.front.metrics.on_error(error.code);
            ShareGroupHeartbeatResponse {
                error_code: error.code,
                error_message: error.message(),
                ..Default::default()
            }
        }
    }
}

async fn try_heartbeat(
    call: &Call,
    request: ShareGroupHeartbeatRequest,
) -> Result<(Duration, ConsumerReply), ApiError> {
    groups::check_member(call, &request.group_id)?;
    let mut names = request.subscribed_topic_names.iter().flatten();
    names.try_for_each(|name| call.check(Operation::Describe, Resource::topic(name)))?;
    check(&request).map_err(|text| ApiError::new(ErrorCode::InvalidRequest, text))?;
    let beat = beat_of(call, &request)?;
    let coordinator = call.front.coordinator_of(&request.group_id)?;
    if beat.epoch == JOIN_EPOCH {
        agree(&*call.front.broker, FeatureLevel::SHARE_GROUPS).await?;
    }
    call.front.charge_member(beat.brought_size_bytes())?;
    let (interval, reply, answer) = {
        // In this order everywhere: the metadata, then groups.
        let metadata = call.front.broker.metadata();
        let mut groups = coordinator.state()?;
        if beat.epoch != JOIN_EPOCH && !groups.by_id.contains_key(&*request.group_id) {
            return Err(ApiError::new(
                ErrorCode::UnknownMemberId,
                "the group is empty and forgotten; join again with epoch 0",
            ));
        }
        let group = groups.share_group(&request.group_id).map_err(|code| match code {
            ErrorCode::GroupIdNotFound => ApiError::new(code, "the group is not a share group"),
            code => code.into(),
        })?;
        let settings = ShareSettings::of(&metadata, &request.group_id);
        group.set_limits(ShareGroupLimits {
            session_timeout: settings.session_timeout,
            member_count_max: call.front.config.group.member_count_max,
        });
        let topics = Directory { metadata: &metadata, call };
        let reply = group.heartbeat(call.front.now(), beat, &topics);
        let reply = reply
            .map_err(|cause| ApiError::new(error::of_consumer_group(&cause), cause.to_string()));
        groups.tell(&request.group_id, Vec::new(), call.front.broker.wall_time_ms());
        let (waiter, answer) = oneshot::channel();
        groups.when_settled(&request.group_id, waiter);
        (settings.heartbeat_interval, reply?, answer)
    };
    call.front.note_assigned(reply.held_size_bytes());
    coordinator::committed(answer).await?;
    Ok((interval, reply))
}

/// What Kafka refuses before it looks at the group.
fn check(request: &ShareGroupHeartbeatRequest) -> Result<(), &'static str> {
    if request.member_id.is_empty() {
        return Err("MemberId can't be empty");
    }
    if request.rack_id.as_ref().is_some_and(|it| it.is_empty()) {
        return Err("RackId can't be empty");
    }
    let names = request.subscribed_topic_names.as_ref();
    match request.member_epoch {
        JOIN_EPOCH if names.is_none_or(Vec::is_empty) => {
            Err("SubscribedTopicNames must be set in first request")
        }
        LEAVE_EPOCH.. => Ok(()),
        _ => Err("MemberEpoch is invalid"),
    }
}

/// What a request says, in memory of its own: members outlive requests.
fn beat_of(call: &Call, request: &ShareGroupHeartbeatRequest) -> Result<ShareHeartbeat, ApiError> {
    let size_bytes_max = call.front.config.group.member_size_bytes_max;
    let names = request.subscribed_topic_names.as_ref();
    if names.into_iter().flatten().map(|name| name.len()).sum::<usize>() > size_bytes_max {
        let text = format!("a subscription may take {size_bytes_max} bytes");
        return Err(ApiError::new(ErrorCode::InvalidRequest, text));
    }
    Ok(ShareHeartbeat {
        member_id: request.member_id.to_string(),
        epoch: request.member_epoch,
        rack_id: request.rack_id.as_ref().map(Str::to_string),
        names: names.map(|names| names.iter().map(Str::to_string).collect()),
        client_id: groups::client_id(call),
        client_host: groups::client_host(call),
    })
}

/// Describes groups.
pub(super) async fn describe(
    call: Call,
    request: ShareGroupDescribeRequest,
) -> ShareGroupDescribeResponse {
    let is_wanted = request.include_authorized_operations;
    let describe = |group_id: Str| {
        let authorized_operations = groups::operations(&call, &group_id, is_wanted);
        let described = describe_one(&call, &group_id).unwrap_or_else(|error| {
            call.front.metrics.on_error(error.code);
            DescribedShareGroup {
                error_code: error.code,
                error_message: error.message(),
                group_state: DEAD.into(),
                ..Default::default()
            }
        });
        DescribedShareGroup { group_id, authorized_operations, ..described }
    };
    let groups = unique(request.group_ids, Str::clone).into_iter().map(describe).collect();
    ShareGroupDescribeResponse { groups, ..Default::default() }
}

fn describe_one(call: &Call, group_id: &str) -> Result<DescribedShareGroup, ApiError> {
    call.check(Operation::Describe, Resource::group(group_id))?;
    let coordinator = call.front.coordinator_of(group_id)?;
    let metadata = call.front.broker.metadata();
    let groups = coordinator.state()?;
    let entry = groups.existing(group_id);
    let Some(AnyGroup::Share(group)) = entry.map(|entry| &entry.group) else {
        let text = format!("there is no share group {group_id}");
        return Err(ApiError::new(ErrorCode::GroupIdNotFound, text));
    };
    let described = describe_group(&metadata, group);
    let mut topics =
        described.members.iter().flat_map(|member| &member.assignment.topic_partitions);
    if topics.all(|it| call.may(Operation::Describe, Resource::topic(&it.topic_name))) {
        return Ok(described);
    }
    let text = "the group has topics that the client may not describe";
    Err(ApiError::new(ErrorCode::TopicAuthorizationFailed, text))
}

fn describe_group(metadata: &Metadata, group: &ShareGroup) -> DescribedShareGroup {
    let member = |(id, member): (&str, &ShareMember)| {
        let assigned: BTreeMap<Uuid, Vec<i32>> = by_topic(&member.assigned);
        let topics = assigned.into_iter().filter_map(|(topic_id, partitions)| {
            // Of a topic that was deleted there is nothing left to consume.
            let topic = metadata.topic(lookup::topic_id(topic_id))?;
            let topic_name = topic.name.as_str().into();
            Some(DescribedShareGroupTopic { topic_id, topic_name, partitions })
        });
        let image = &member.image;
        DescribedShareGroupMember {
            member_id: id.into(),
            rack_id: image.rack_id.as_deref().map(Str::from),
            member_epoch: image.epoch,
            client_id: image.client_id.as_str().into(),
            client_host: image.client_host.as_str().into(),
            subscribed_topic_names: image.names.iter().map(|name| name.as_str().into()).collect(),
            assignment: DescribedShareGroupAssignment { topic_partitions: topics.collect() },
        }
    };
    DescribedShareGroup {
        group_state: group.state_name().into(),
        group_epoch: group.epoch(),
        assignment_epoch: group.epoch(),
        assignor_name: ASSIGNOR.into(),
        members: group.members().map(member).collect(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;
