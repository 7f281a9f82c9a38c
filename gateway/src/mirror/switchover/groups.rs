//! Where consumer groups go on after a switchover: their positions in the topic at the source, which
//! are the same offsets here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meridian_protocol::messages::{
    FindCoordinatorRequest, ListGroupsRequest, OffsetCommitPartition, OffsetCommitRequest,
    OffsetCommitTopic, OffsetFetchGroup, OffsetFetchPartitionResponse, OffsetFetchRequest,
};
use meridian_protocol::{ErrorCode, RequestMessage, Str};

use crate::client::{Client, ClientError, Lane};
use crate::mirror::peer::{self, PeerError};

const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A position that a group committed in one partition.
#[derive(Clone, Debug)]
struct Position {
    offset: i64,
    /// What it replaces, if anything: a consumer here may commit meanwhile.
    expected: Option<i64>,
    leader_epoch: i32,
    metadata: Option<Str>,
}

/// Copies the positions of all groups of the source in a topic, clamped to what is mirrored, never
/// backwards. A group that has members here is left alone: it goes on from its own positions.
/// Returns how many groups were carried.
pub(super) async fn carry(
    source: &Client,
    source_topic: &str,
    own: &Client,
    topic: &str,
) -> Result<usize, PeerError> {
    let ends = peer::ends(own, topic, false).await?;
    let mut carried = 0;
    for group in groups(source).await? {
        let there = positions(source, &group, source_topic).await?;
        if there.is_empty() {
            continue;
        }
        let here = positions(own, &group, topic).await?;
        let mut news = BTreeMap::new();
        for (index, mut position) in there {
            let end = usize::try_from(index).ok().and_then(|at| ends.get(at));
            let Some(end) = end else { continue };
            position.offset = position.offset.min(end.offset.get());
            position.expected = here.get(&index).map(|known| known.offset);
            if here.get(&index).is_none_or(|known| known.offset < position.offset) {
                news.insert(index, position);
            }
        }
        if !news.is_empty() && commit(own, &group, topic, news).await? {
            carried += 1;
        }
    }
    Ok(carried)
}

/// The groups of all brokers.
async fn groups(client: &Client) -> Result<BTreeSet<Str>, PeerError> {
    let mut groups = BTreeSet::new();
    let view = client.refresh(Some(&[])).await?;
    for broker in view.brokers.keys() {
        let connection = client.node(*broker, Lane::CONTROL).await?;
        let listed = connection.call(&ListGroupsRequest::default(), ANSWER_WITHIN).await?;
        ClientError::check(|| format!("groups of broker {broker}"), listed.error_code, None)?;
        groups.extend(listed.groups.into_iter().map(|group| group.group_id));
    }
    Ok(groups)
}

/// The positions of a group in a topic.
async fn positions(
    client: &Client,
    group: &Str,
    topic: &str,
) -> Result<BTreeMap<i32, Position>, PeerError> {
    let wanted = OffsetFetchGroup { group_id: group.clone(), ..Default::default() };
    let request =
        OffsetFetchRequest { group_id: group.clone(), groups: vec![wanted], ..Default::default() };
    let response = ask(client, group, &request).await?;
    let code = response.groups.first().map_or(response.error_code, |found| found.error_code);
    if code == ErrorCode::GroupIdNotFound {
        return Ok(BTreeMap::new());
    }
    ClientError::check(|| format!("positions of group {group}"), code, None)?;
    let id = client.topic(topic).await?.id;
    let topics = response.groups.into_iter().flat_map(|it| it.topics).chain(response.topics);
    let of_topic =
        topics.filter(|it| *it.name == *topic || it.name.is_empty() && it.topic_id == id);
    let committed = of_topic.flat_map(|it| it.partitions).filter(|it| it.committed_offset >= 0);
    let position = |it: OffsetFetchPartitionResponse| {
        let (offset, leader_epoch) = (it.committed_offset, it.committed_leader_epoch);
        let metadata = it.metadata;
        (it.partition_index, Position { offset, expected: None, leader_epoch, metadata })
    };
    Ok(committed.map(position).collect())
}

/// Commits positions for a group without members; false if it has some.
async fn commit(
    client: &Client,
    group: &Str,
    topic: &str,
    positions: BTreeMap<i32, Position>,
) -> Result<bool, PeerError> {
    let partition = |(partition_index, it): (i32, Position)| OffsetCommitPartition {
        partition_index,
        committed_offset: it.offset,
        committed_leader_epoch: it.leader_epoch,
        committed_metadata: it.metadata,
        expected_offset: it.expected.unwrap_or(-1),
    };
    let topic_id = client.topic(topic).await?.id;
    let partitions = positions.into_iter().map(partition).collect();
    let request = OffsetCommitRequest {
        group_id: group.clone(),
        topics: vec![OffsetCommitTopic { name: topic.into(), topic_id, partitions }],
        ..Default::default()
    };
    let response = ask(client, group, &request).await?;
    let codes = response.topics.iter().flat_map(|it| &it.partitions).map(|it| it.error_code);
    for code in codes {
        match code {
            ErrorCode::UnknownMemberId
            | ErrorCode::IllegalGeneration
            | ErrorCode::StaleMemberEpoch
            | ErrorCode::RebalanceInProgress => return Ok(false),
            ErrorCode::UnstableOffsetCommit => {
                let text = format!("somebody commits offsets of group {group} here meanwhile");
                return Err(PeerError::Later(text));
            }
            code => ClientError::check(|| format!("positions of group {group}"), code, None)?,
        }
    }
    Ok(true)
}

/// Calls the coordinator of a group.
async fn ask<R: RequestMessage>(
    client: &Client,
    group: &Str,
    request: &R,
) -> Result<R::Response, PeerError> {
    let find = FindCoordinatorRequest {
        key: group.clone(),
        coordinator_keys: vec![group.clone()],
        ..Default::default()
    };
    let found = client.query(&find).await?;
    let (code, node) = match found.coordinators.first() {
        Some(found) => (found.error_code, found.node_id),
        None => (found.error_code, found.node_id),
    };
    ClientError::check(|| format!("the coordinator of group {group}"), code, None)?;
    if client.view().address(node).is_err() {
        client.refresh(Some(&[])).await?;
    }
    Ok(client.node(node, Lane::CONTROL).await?.call(request, ANSWER_WITHIN).await?)
}
