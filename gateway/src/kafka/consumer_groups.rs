//! ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups of KIP-848.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_access::{Operation, Resource};
use meridian_consensus::state::{Metadata, Topic};
use meridian_protocol::messages::{
    ConsumerGroupAssignment, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, ConsumerGroupTopic,
    DescribedConsumerGroup, DescribedConsumerGroupAssignment, DescribedConsumerGroupMember,
    DescribedConsumerGroupTopic,
};
use meridian_protocol::{ErrorCode, Str, Uuid};
use tokio::sync::oneshot;

use super::configs::groups::Timeouts;
use super::coordinator;
use super::dispatch::Call;
use super::error::{self, ApiError};
use super::repeated::unique;
use super::{groups, lookup};
use crate::coordination::AnyGroup;
use crate::group::consumer::{
    Assignor, ConsumerGroup, ConsumerHeartbeat, ConsumerMember, ConsumerReply, JOIN_EPOCH,
    LEAVE_EPOCH, LEAVE_STATIC_EPOCH, Partitions, TopicCount, TopicPartition, Topics, TopicsVersion,
};

/// From this version on clients draw their member ids themselves (KIP-1082).
const OWN_MEMBER_ID_FROM_VERSION: i16 = 1;
/// How a member that speaks this protocol is described.
const MEMBER_TYPE_CONSUMER: i8 = 1;
const DEAD: &str = "Dead";

/// The topics of the cluster, as groups see them, and those that the client sees.
pub(super) struct Directory<'m> {
    pub(super) metadata: &'m Metadata,
    pub(super) call: &'m Call,
}

impl Directory<'_> {
    fn count(topic: &Topic) -> TopicCount {
        let partition_count = u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX);
        TopicCount { topic: topic.id, partition_count }
    }
}

impl Topics for Directory<'_> {
    fn version(&self) -> TopicsVersion {
        let (partition_count, topic_count) = self.metadata.topics_version();
        TopicsVersion { partition_count, topic_count }
    }

    fn find(&self, name: &str) -> Option<TopicCount> {
        self.metadata.topic_named(name).map(Self::count)
    }

    fn for_each(&self, look: &mut dyn FnMut(&str, TopicCount)) {
        for topic in self.metadata.topics() {
            look(&topic.name, Self::count(topic));
        }
    }

    fn sight(&self) -> Option<u64> {
        self.call.rights.sight()
    }

    fn is_seen(&self, name: &str) -> bool {
        self.call.sees(Operation::Describe, Resource::topic(name))
    }
}

/// Takes a member in, hears from it or lets it go.
pub(super) async fn heartbeat(
    call: Call,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    match try_heartbeat(&call, request).await {
        Ok((member_id, interval, reply)) => ConsumerGroupHeartbeatResponse {
            member_id: Some(member_id),
            member_epoch: reply.epoch,
            heartbeat_interval_ms: i32::try_from(interval.as_millis()).unwrap_or(i32::MAX),
            assignment: reply.assignment.map(|assigned| ConsumerGroupAssignment {
                topic_partitions: by_topic(&assigned)
                    .into_iter()
                    .map(|(topic_id, partitions)| ConsumerGroupTopic { topic_id, partitions })
                    .collect(),
            }),
            ..Default::default()
        },
        Err(error) => {
            call.front.metrics.on_error(error.code);
            ConsumerGroupHeartbeatResponse {
                error_code: error.code,
                error_message: error.message(),
                ..Default::default()
            }
        }
    }
}

async fn try_heartbeat(
    call: &Call,
    request: ConsumerGroupHeartbeatRequest,
) -> Result<(Str, Duration, ConsumerReply), ApiError> {
    check_rights(call, &request)?;
    check(call.version, &request).map_err(|text| ApiError::new(ErrorCode::InvalidRequest, text))?;
    let beat = beat_of(call, &request)?;
    let member_id = Str::from(beat.member_id.as_str());
    let coordinator = call.front.coordinator_of(&request.group_id)?;
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
        let group = groups.entry(&request.group_id)?.consumer().ok_or_else(|| {
            let text = "the group's members speak the classic protocol; stop them first";
            ApiError::new(ErrorCode::GroupIdNotFound, text)
        })?;
        let timeouts = Timeouts::of(&metadata, &call.front.config.group, &request.group_id);
        group.set_session_timeout(timeouts.session_timeout);
        let topics = Directory { metadata: &metadata, call };
        let reply = group.heartbeat(call.front.now(), beat, &topics);
        let reply = reply
            .map_err(|cause| ApiError::new(error::of_consumer_group(&cause), cause.to_string()));
        groups.tell(&request.group_id, Vec::new(), call.front.broker.wall_time_ms());
        let (waiter, answer) = oneshot::channel();
        groups.when_settled(&request.group_id, waiter);
        (timeouts.heartbeat_interval, reply?, answer)
    };
    call.front.note_assigned(reply.held_size_bytes());
    coordinator::committed(answer).await?;
    Ok((member_id, interval, reply))
}

/// Whether the client may be a member of the group, and may know of all topics that it names.
fn check_rights(call: &Call, request: &ConsumerGroupHeartbeatRequest) -> Result<(), ErrorCode> {
    groups::check_member(call, &request.group_id)?;
    let mut names = request.subscribed_topic_names.iter().flatten();
    names.try_for_each(|name| call.check(Operation::Describe, Resource::topic(name)))
}

/// What Kafka refuses before it looks at the group.
fn check(version: i16, request: &ConsumerGroupHeartbeatRequest) -> Result<(), &'static str> {
    let is_empty = |text: &Option<Str>| text.as_ref().is_some_and(|text| text.is_empty());
    let epoch = request.member_epoch;
    if request.member_id.is_empty()
        && (version >= OWN_MEMBER_ID_FROM_VERSION || epoch != JOIN_EPOCH)
    {
        return Err("MemberId can't be empty");
    }
    if is_empty(&request.instance_id) {
        return Err("InstanceId can't be empty");
    }
    if is_empty(&request.rack_id) {
        return Err("RackId can't be empty");
    }
    match epoch {
        JOIN_EPOCH if request.rebalance_timeout_ms == -1 => {
            Err("RebalanceTimeoutMs must be provided in first request")
        }
        JOIN_EPOCH if !request.topic_partitions.as_ref().is_some_and(Vec::is_empty) => {
            Err("TopicPartitions must be empty when (re-)joining")
        }
        JOIN_EPOCH
            if request.subscribed_topic_names.is_none()
                && request.subscribed_topic_regex.is_none() =>
        {
            Err("SubscribedTopicNames or SubscribedTopicRegex must be set in first request")
        }
        LEAVE_STATIC_EPOCH if request.instance_id.is_none() => {
            Err("InstanceId can't be null when leaving to come back")
        }
        JOIN_EPOCH.. | LEAVE_EPOCH | LEAVE_STATIC_EPOCH => Ok(()),
        _ => Err("MemberEpoch is invalid"),
    }
}

/// What a request says, in memory of its own: members outlive requests.
fn beat_of(
    call: &Call,
    request: &ConsumerGroupHeartbeatRequest,
) -> Result<ConsumerHeartbeat, ApiError> {
    let config = &call.front.config.group;
    let names = request.subscribed_topic_names.as_ref();
    let size_bytes = names.map_or(0, |names| names.iter().map(|name| name.len()).sum())
        + request.subscribed_topic_regex.as_ref().map_or(0, |text| text.len());
    if size_bytes > config.member_size_bytes_max {
        let text = format!("a subscription may take {} bytes", config.member_size_bytes_max);
        return Err(ApiError::new(ErrorCode::InvalidRequest, text));
    }
    let assignor = match request.server_assignor.as_deref() {
        None => None,
        Some(name) => Some(Assignor::named(name).ok_or_else(|| {
            let known = Assignor::ALL.map(Assignor::name).join(", ");
            let text = format!("assignor {name} is not supported; use one of {known}");
            ApiError::new(ErrorCode::UnsupportedAssignor, text)
        })?),
    };
    let client_id = groups::client_id(call);
    let member_id = match request.member_id.is_empty() {
        true => format!("{client_id}-{:032x}", call.front.random_u128()),
        false => request.member_id.to_string(),
    };
    let rebalance_timeout = u64::try_from(request.rebalance_timeout_ms).ok();
    Ok(ConsumerHeartbeat {
        member_id,
        epoch: request.member_epoch,
        instance_id: request.instance_id.as_ref().map(Str::to_string),
        rack_id: request.rack_id.as_ref().map(Str::to_string),
        rebalance_timeout: rebalance_timeout
            .map(|ms| Duration::from_millis(ms).min(config.session_timeout_max)),
        names: names.map(|names| names.iter().map(Str::to_string).collect()),
        pattern: request.subscribed_topic_regex.as_ref().map(Str::to_string),
        assignor,
        owned: request.topic_partitions.as_deref().map(owned_of),
        client_id,
        client_host: groups::client_host(call),
    })
}

fn owned_of(topics: &[ConsumerGroupTopic]) -> Partitions {
    let partitions = topics.iter().flat_map(|topic| {
        let id = lookup::topic_id(topic.topic_id);
        let indexes = topic.partitions.iter().filter_map(|index| u32::try_from(*index).ok());
        indexes.map(move |index| TopicPartition { topic: id, index })
    });
    partitions.collect()
}

/// The indexes of partitions, by topic.
pub(super) fn by_topic(partitions: &Partitions) -> BTreeMap<Uuid, Vec<i32>> {
    let mut topics: BTreeMap<Uuid, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        let indexes = topics.entry(lookup::uuid(partition.topic)).or_default();
        indexes.push(partition.index.cast_signed());
    }
    topics
}

/// Describes groups.
pub(super) async fn describe(
    call: Call,
    request: ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let is_wanted = request.include_authorized_operations;
    let describe = |group_id: Str| {
        let authorized_operations = groups::operations(&call, &group_id, is_wanted);
        let described = describe_one(&call, &group_id).unwrap_or_else(|error| {
            call.front.metrics.on_error(error.code);
            DescribedConsumerGroup {
                error_code: error.code,
                error_message: error.message(),
                group_state: DEAD.into(),
                ..Default::default()
            }
        });
        DescribedConsumerGroup { group_id, authorized_operations, ..described }
    };
    let groups = unique(request.group_ids, Str::clone).into_iter().map(describe).collect();
    ConsumerGroupDescribeResponse { groups, ..Default::default() }
}

fn describe_one(call: &Call, group_id: &str) -> Result<DescribedConsumerGroup, ApiError> {
    call.check(Operation::Describe, Resource::group(group_id))?;
    let coordinator = call.front.coordinator_of(group_id)?;
    let metadata = call.front.broker.metadata();
    let groups = coordinator.state()?;
    let entry = groups.existing(group_id);
    let group = match entry.map(|entry| &entry.group) {
        Some(AnyGroup::Consumer(group)) => group,
        Some(AnyGroup::Classic(_) | AnyGroup::Share(_)) => {
            let text = format!("group {group_id} is not a consumer group");
            return Err(ApiError::new(ErrorCode::GroupIdNotFound, text));
        }
        None => {
            let text = format!("group {group_id} not found");
            return Err(ApiError::new(ErrorCode::GroupIdNotFound, text));
        }
    };
    let described = describe_group(&metadata, group);
    if described.members.iter().all(|member| may_describe(call, member)) {
        return Ok(described);
    }
    let text = "the group has topics that the client may not describe";
    Err(ApiError::new(ErrorCode::TopicAuthorizationFailed, text))
}

/// Whether the client may know of all topics that a member reads or is about to read.
fn may_describe(call: &Call, member: &DescribedConsumerGroupMember) -> bool {
    let assignments = [&member.assignment, &member.target_assignment];
    let mut topics = assignments.into_iter().flat_map(|it| &it.topic_partitions);
    topics.all(|it| call.may(Operation::Describe, Resource::topic(&it.topic_name)))
}

fn describe_group(metadata: &Metadata, group: &ConsumerGroup) -> DescribedConsumerGroup {
    let member = |(id, member): (&str, &ConsumerMember)| DescribedConsumerGroupMember {
        member_id: id.into(),
        instance_id: member.instance_id.as_deref().map(Str::from),
        rack_id: member.rack_id.as_deref().map(Str::from),
        member_epoch: member.epoch,
        client_id: member.client_id.as_str().into(),
        client_host: member.client_host.as_str().into(),
        subscribed_topic_names: member.names.iter().map(|name| name.as_str().into()).collect(),
        subscribed_topic_regex: member.pattern.as_deref().map(Str::from),
        assignment: describe_assignment(metadata, &member.assigned),
        target_assignment: describe_assignment(metadata, &member.target),
        member_type: MEMBER_TYPE_CONSUMER,
    };
    DescribedConsumerGroup {
        group_state: group.state().name().into(),
        group_epoch: group.epoch(),
        assignment_epoch: group.target_epoch(),
        assignor_name: group.assignor().name().into(),
        members: group.members().map(member).collect(),
        ..Default::default()
    }
}

fn describe_assignment(
    metadata: &Metadata,
    partitions: &Partitions,
) -> DescribedConsumerGroupAssignment {
    let topics = by_topic(partitions).into_iter().filter_map(|(topic_id, partitions)| {
        // Of a topic that was deleted there is nothing left to consume.
        let topic = metadata.topic(lookup::topic_id(topic_id))?;
        let topic_name = topic.name.as_str().into();
        Some(DescribedConsumerGroupTopic { topic_id, topic_name, partitions })
    });
    DescribedConsumerGroupAssignment { topic_partitions: topics.collect() }
}

#[cfg(test)]
mod tests;
