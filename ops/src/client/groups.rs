//! Consumer groups: finding their coordinators, and asking them.

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerProtocolAssignment, DeleteGroupsRequest,
    DescribeGroupsRequest, DescribedConsumerGroupAssignment, FindCoordinatorRequest,
    ListGroupsRequest, ListedGroup, OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic,
    OffsetDeletePartition, OffsetDeleteRequest, OffsetDeleteTopic, OffsetFetchGroup,
    OffsetFetchRequest,
};
use meridian_protocol::{ErrorCode, RequestMessage, Str};

use super::clock::Backoff;
use super::{Client, ClientError, Connection, Lane, REQUEST_TIMEOUT};

/// A topic's name and a partition of it.
pub(crate) type TopicPartition = (String, i32);

/// A position that a group committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) offset: i64,
    pub(crate) metadata: String,
}

/// A group and its members.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    pub(crate) state: String,
    /// `classic` or `consumer`.
    pub(crate) kind: String,
    pub(crate) assignor: String,
    /// The group epoch; a classic group does not tell its generation.
    pub(crate) epoch: Option<i32>,
    pub(crate) members: Vec<Member>,
}

/// A member of a group.
#[derive(Debug, Clone, Default)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) client_id: String,
    pub(crate) host: String,
    pub(crate) epoch: Option<i32>,
    pub(crate) partitions: Vec<TopicPartition>,
}

/// The broker that coordinates a group.
pub(crate) async fn coordinator(client: &Client, group: &str) -> Result<i32, ClientError> {
    let request = FindCoordinatorRequest {
        key: group.into(),
        coordinator_keys: vec![group.into()],
        ..Default::default()
    };
    let response = client.query(&request).await?;
    let what = || format!("the coordinator of group {group}");
    let (code, node) = match response.coordinators.first() {
        Some(found) => (found.error_code, found.node_id),
        None => (response.error_code, response.node_id),
    };
    ClientError::check(what, code, None)?;
    Ok(node)
}

/// Calls the coordinator of a group; finds it again while it moves.
pub(crate) async fn ask<R: RequestMessage>(
    client: &Client,
    group: &str,
    request: &R,
    code: impl Fn(&R::Response) -> ErrorCode,
) -> Result<R::Response, ClientError> {
    let mut backoff = Backoff::until(REQUEST_TIMEOUT);
    loop {
        let result = ask_once(client, group, request).await.and_then(|response| {
            let what = || format!("group {group}");
            match code(&response) {
                moved if moved.is_retriable() => ClientError::check(what, moved, None)?,
                _ => {}
            }
            Ok(response)
        });
        match result {
            Err(error) if error.is_retriable() && backoff.pause().await => {}
            result => return result,
        }
    }
}

async fn ask_once<R: RequestMessage>(
    client: &Client,
    group: &str,
    request: &R,
) -> Result<R::Response, ClientError> {
    let node = coordinator(client, group).await?;
    connection(client, node).await?.call(request, REQUEST_TIMEOUT).await
}

async fn connection(client: &Client, node: i32) -> Result<Arc<Connection>, ClientError> {
    if client.view().address(node).is_err() {
        client.refresh(Some(&[])).await?;
    }
    client.node(node, Lane::CONTROL).await
}

/// The groups of all brokers, by id.
pub(crate) async fn list(
    client: &Client,
    states: &[String],
    kinds: &[String],
) -> Result<Vec<ListedGroup>, ClientError> {
    let texts = |list: &[String]| list.iter().map(|text| Str::from(text.as_str())).collect();
    let request = ListGroupsRequest { states_filter: texts(states), types_filter: texts(kinds) };
    let mut groups = Vec::new();
    let brokers: Vec<i32> = client.refresh(Some(&[])).await?.brokers.keys().copied().collect();
    for broker in brokers {
        let mut backoff = Backoff::until(REQUEST_TIMEOUT);
        loop {
            let listed = connection(client, broker).await?.call(&request, REQUEST_TIMEOUT).await?;
            let what = || format!("groups of broker {broker}");
            match ClientError::check(what, listed.error_code, None) {
                Ok(()) => {
                    groups.extend(listed.groups);
                    break;
                }
                Err(error) if error.is_retriable() && backoff.pause().await => {}
                Err(error) => return Err(error),
            }
        }
    }
    groups.sort_by(|a, b| a.group_id.cmp(&b.group_id));
    Ok(groups)
}

/// A group and its members, whichever protocol they speak.
pub(crate) async fn describe(client: &Client, group: &str) -> Result<Group, ClientError> {
    match describe_consumer(client, group).await {
        Err(
            ClientError::Server { code: ErrorCode::GroupIdNotFound, .. }
            | ClientError::Unsupported { .. },
        ) => describe_classic(client, group).await,
        described => described,
    }
}

async fn describe_consumer(client: &Client, group: &str) -> Result<Group, ClientError> {
    let request =
        ConsumerGroupDescribeRequest { group_ids: vec![group.into()], ..Default::default() };
    let first = |groups: &[meridian_protocol::messages::DescribedConsumerGroup]| {
        groups.first().map_or(ErrorCode::UnknownServerError, |group| group.error_code)
    };
    let response = ask(client, group, &request, |it| first(&it.groups)).await?;
    let found = response.groups.into_iter().next().unwrap_or_default();
    let message = found.error_message.as_deref();
    ClientError::check(|| format!("group {group}"), found.error_code, message)?;
    let member = |it: meridian_protocol::messages::DescribedConsumerGroupMember| Member {
        id: it.member_id.to_string(),
        instance_id: it.instance_id.map(|id| id.to_string()),
        client_id: it.client_id.to_string(),
        host: it.client_host.to_string(),
        epoch: Some(it.member_epoch),
        partitions: partitions_of(&it.assignment),
    };
    Ok(Group {
        state: found.group_state.to_string(),
        kind: "consumer".to_owned(),
        assignor: found.assignor_name.to_string(),
        epoch: Some(found.group_epoch),
        members: found.members.into_iter().map(member).collect(),
    })
}

fn partitions_of(assignment: &DescribedConsumerGroupAssignment) -> Vec<TopicPartition> {
    let topics = assignment.topic_partitions.iter();
    let partitions = topics.flat_map(|topic| {
        topic.partitions.iter().map(|index| (topic.topic_name.to_string(), *index))
    });
    partitions.collect()
}

async fn describe_classic(client: &Client, group: &str) -> Result<Group, ClientError> {
    let request = DescribeGroupsRequest { groups: vec![group.into()], ..Default::default() };
    let code = |it: &meridian_protocol::messages::DescribeGroupsResponse| {
        it.groups.first().map_or(ErrorCode::UnknownServerError, |group| group.error_code)
    };
    let response = ask(client, group, &request, code).await?;
    let found = response.groups.into_iter().next().unwrap_or_default();
    ClientError::check(|| format!("group {group}"), found.error_code, None)?;
    let member = |it: meridian_protocol::messages::DescribedGroupMember| {
        let assignment = ConsumerProtocolAssignment::from_bytes(it.member_assignment);
        let topics = assignment.map(|it| it.assigned_partitions).unwrap_or_default();
        let partitions = topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|index| (topic.topic.to_string(), *index))
        });
        Member {
            id: it.member_id.to_string(),
            instance_id: it.group_instance_id.map(|id| id.to_string()),
            client_id: it.client_id.to_string(),
            host: it.client_host.to_string(),
            epoch: None,
            partitions: partitions.collect(),
        }
    };
    Ok(Group {
        state: found.group_state.to_string(),
        kind: "classic".to_owned(),
        assignor: found.protocol_data.to_string(),
        epoch: None,
        members: found.members.into_iter().map(member).collect(),
    })
}

/// All positions of a group.
pub(crate) async fn positions(
    client: &Client,
    group: &str,
) -> Result<BTreeMap<TopicPartition, Position>, ClientError> {
    let wanted = OffsetFetchGroup { group_id: group.into(), ..Default::default() };
    let request =
        OffsetFetchRequest { group_id: group.into(), groups: vec![wanted], ..Default::default() };
    let code = |it: &meridian_protocol::messages::OffsetFetchResponse| {
        it.groups.first().map_or(it.error_code, |group| group.error_code)
    };
    let response = ask(client, group, &request, code).await?;
    ClientError::check(|| format!("positions of group {group}"), code(&response), None)?;
    let view = client.refresh(None).await?;
    let topics = response.groups.into_iter().flat_map(|group| group.topics);
    let mut positions = BTreeMap::new();
    for topic in topics.chain(response.topics) {
        let by_id = || view.topics.iter().find(|(_, known)| known.id == topic.topic_id);
        let name = match topic.name.is_empty() {
            true => by_id().map(|(name, _)| name.clone()),
            false => Some(topic.name.to_string()),
        };
        let Some(name) = name else { continue };
        for partition in topic.partitions.iter().filter(|it| it.committed_offset >= 0) {
            let metadata = partition.metadata.as_ref().map(|it| it.to_string());
            let position = Position {
                offset: partition.committed_offset,
                metadata: metadata.unwrap_or_default(),
            };
            positions.insert((name.clone(), partition.partition_index), position);
        }
    }
    Ok(positions)
}

/// Sets positions of a group that has no members.
pub(crate) async fn set_positions(
    client: &Client,
    group: &str,
    positions: &BTreeMap<TopicPartition, i64>,
) -> Result<(), ClientError> {
    let mut topics: BTreeMap<&str, Vec<OffsetCommitPartition>> = BTreeMap::new();
    for ((topic, partition_index), committed_offset) in positions {
        topics.entry(topic).or_default().push(OffsetCommitPartition {
            partition_index: *partition_index,
            committed_offset: *committed_offset,
            ..Default::default()
        });
    }
    let mut committed = Vec::with_capacity(topics.len());
    for (name, partitions) in topics {
        let topic_id = client.topic(name).await?.id;
        committed.push(OffsetCommitTopic { name: name.into(), topic_id, partitions });
    }
    let request =
        OffsetCommitRequest { group_id: group.into(), topics: committed, ..Default::default() };
    let codes = |it: &meridian_protocol::messages::OffsetCommitResponse| {
        let partitions = it.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|it| it.error_code).find(|code| !code.is_none()).unwrap_or_default()
    };
    let response = ask(client, group, &request, codes).await?;
    ClientError::check(|| format!("positions of group {group}"), codes(&response), None)
}

/// Forgets positions of a group.
pub(crate) async fn delete_positions(
    client: &Client,
    group: &str,
    partitions: &[TopicPartition],
) -> Result<(), ClientError> {
    let mut topics: BTreeMap<&str, Vec<OffsetDeletePartition>> = BTreeMap::new();
    for (topic, partition_index) in partitions {
        let partition = OffsetDeletePartition { partition_index: *partition_index };
        topics.entry(topic).or_default().push(partition);
    }
    let topic = |(name, partitions): (&str, _)| OffsetDeleteTopic { name: name.into(), partitions };
    let request = OffsetDeleteRequest {
        group_id: group.into(),
        topics: topics.into_iter().map(topic).collect(),
    };
    let code = |it: &meridian_protocol::messages::OffsetDeleteResponse| {
        let partitions = it.topics.iter().flat_map(|topic| &topic.partitions);
        let codes = std::iter::once(it.error_code).chain(partitions.map(|it| it.error_code));
        codes.into_iter().find(|code| !code.is_none()).unwrap_or_default()
    };
    let response = ask(client, group, &request, code).await?;
    ClientError::check(|| format!("positions of group {group}"), code(&response), None)
}

/// Deletes a group that has no members.
pub(crate) async fn delete(client: &Client, group: &str) -> Result<(), ClientError> {
    let request = DeleteGroupsRequest { groups_names: vec![group.into()] };
    let code = |it: &meridian_protocol::messages::DeleteGroupsResponse| {
        it.results.first().map_or(ErrorCode::UnknownServerError, |result| result.error_code)
    };
    let response = ask(client, group, &request, code).await?;
    ClientError::check(|| format!("group {group} cannot be deleted"), code(&response), None)
}
