//! Positions of consumer groups: read from the source's coordinators, committed here as a consumer
//! without members does (generation -1), so that a group with members here refuses it by itself.

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::position::Offset;
use meridian_mirror::groups::{Carried, Sides};
use meridian_mirror::rows::Stage;
use meridian_protocol::messages::{
    FindCoordinatorRequest, ListGroupsRequest, ListOffsetsPartition, ListOffsetsRequest,
    ListOffsetsTopic, OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic,
    OffsetFetchGroup, OffsetFetchGroupResponse, OffsetFetchPartitionResponse, OffsetFetchRequest,
    OffsetFetchTopicResponse,
};
use meridian_protocol::{ErrorCode, Str};
use serde::Serialize;

use super::Steward;
use crate::client::{Client, ClientError, Lane, REQUEST_TIMEOUT};
use crate::mirror::plan;
use crate::mirror::rules::Matcher;

/// Requests about groups have a connection of their own: they wait for coordinators.
const LANE: Lane = Lane(2);
/// Groups asked for at once.
const GROUPS_PER_REQUEST: usize = 100;
/// OffsetFetch takes several groups from this version on (Kafka 3.0).
const OFFSET_FETCH_VERSION_MIN: i16 = 8;
/// Groups that consumers form; simple consumers have none.
const CONSUMER_PROTOCOLS: [&str; 2] = ["consumer", ""];
/// Groups that one look takes care of.
const GROUP_COUNT_MAX: usize = 10_000;

/// A partition of a topic here.
type Place = (String, i32);

/// A position as the source has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    offset: i64,
    leader_epoch: i32,
    metadata: Option<Str>,
}

/// One position and what was done about it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CarriedPosition {
    group: String,
    topic: String,
    partition: i32,
    source_offset: i64,
    /// Here, if it has one.
    offset: Option<i64>,
    state: &'static str,
}

/// What is known of the groups of a link's source.
#[derive(Default)]
pub(super) struct Groups {
    own: Option<Client>,
    /// What was last carried, by group and place here.
    carried: BTreeMap<(String, Place), i64>,
    /// Positions about which nothing is to be done until they change at the source.
    settled: BTreeMap<String, BTreeMap<Place, Position>>,
    shown: BTreeMap<String, Vec<CarriedPosition>>,
}

impl Steward {
    /// Carries the positions of the groups that a rule takes.
    pub(super) async fn carry_groups(&mut self) -> Result<(), ClientError> {
        let (rules, names) = {
            let metadata = self.node.meta.metadata();
            let mut rules = super::super::rules::matchers(&metadata, &self.link);
            rules.retain(|rule| !rule.is_of_topics());
            let mirrors = plan::mirrors(&metadata).into_iter().filter(|(_, mirror, _)| {
                mirror.link == self.link && matches!(mirror.stage, Stage::Mirroring | Stage::Paused)
            });
            let names = mirrors.map(|(_, mirror, _)| (mirror.source_name, mirror.name));
            (rules, names.collect::<BTreeMap<String, String>>())
        };
        if rules.is_empty() || names.is_empty() {
            self.groups = Groups::default();
            self.tell(|report| report.groups.clear());
            return Ok(());
        }
        let positions = positions(&self.client, &rules, &names).await?;
        let own = self.own_cluster();
        self.groups.shown.retain(|group, _| positions.contains_key(group));
        self.groups.settled.retain(|group, _| positions.contains_key(group));
        for (group, positions) in positions {
            if self.groups.settled.get(&group) == Some(&positions) {
                continue;
            }
            let carried = carry(&own, &group, &positions, &mut self.groups.carried).await?;
            let is_settled = carried.iter().all(|it| {
                it.state == Carried::Carried.name() || it.state == Carried::AheadHere.name()
            });
            match is_settled {
                true => drop(self.groups.settled.insert(group.clone(), positions)),
                false => drop(self.groups.settled.remove(&group)),
            }
            self.groups.shown.insert(group, carried);
        }
        let shown = self.groups.shown.values().flatten().cloned().collect();
        self.tell(|report| report.groups = shown);
        Ok(())
    }

    /// A client of this cluster.
    fn own_cluster(&mut self) -> Client {
        let connect = || {
            let metadata = self.node.meta.metadata();
            let kafka = metadata.nodes().map(|(_, node)| node.registration.kafka.to_string());
            Client::unconnected(&kafka.collect::<Vec<_>>().join(","))
        };
        self.groups.own.get_or_insert_with(connect).clone()
    }
}

/// The positions at the source, by group and place here.
async fn positions(
    source: &Client,
    rules: &[Matcher],
    names: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, BTreeMap<Place, Position>>, ClientError> {
    let view = source.view();
    let by_id: BTreeMap<[u8; 16], &str> =
        view.topics.iter().map(|(name, topic)| (topic.id.0, name.as_str())).collect();
    let mut positions = BTreeMap::new();
    for broker in view.brokers.keys() {
        let connection = source.node(*broker, LANE).await?;
        let listed = connection.call(&ListGroupsRequest::default(), REQUEST_TIMEOUT).await?;
        let what = || format!("groups of broker {broker}");
        ClientError::check(what, listed.error_code, None)?;
        let groups = listed.groups.into_iter().filter(|group| {
            CONSUMER_PROTOCOLS.contains(&&*group.protocol_type)
                && rules.iter().any(|rule| rule.takes(&group.group_id))
        });
        let groups: Vec<Str> = groups.map(|group| group.group_id).take(GROUP_COUNT_MAX).collect();
        for groups in groups.chunks(GROUPS_PER_REQUEST) {
            let ask = |group_id: &Str| OffsetFetchGroup {
                group_id: group_id.clone(),
                ..Default::default()
            };
            let request = OffsetFetchRequest {
                groups: groups.iter().map(ask).collect(),
                require_stable: true,
                ..Default::default()
            };
            let called = connection.call_from(OFFSET_FETCH_VERSION_MIN, &request, REQUEST_TIMEOUT);
            for group in called.await?.groups {
                let found = places(&group, &by_id, names);
                positions.insert(group.group_id.to_string(), found);
            }
        }
    }
    positions.retain(|_, places: &mut BTreeMap<Place, Position>| !places.is_empty());
    Ok(positions)
}

/// The positions of a group in topics that are mirrored, under their names here. One that a
/// transaction is about to change is left for the next look.
fn places(
    group: &OffsetFetchGroupResponse,
    by_id: &BTreeMap<[u8; 16], &str>,
    names: &BTreeMap<String, String>,
) -> BTreeMap<Place, Position> {
    let mut places = BTreeMap::new();
    for topic in &group.topics {
        let name = match topic.name.is_empty() {
            true => by_id.get(&topic.topic_id.0).copied().unwrap_or_default(),
            false => &topic.name,
        };
        let Some(name) = names.get(name) else { continue };
        for it in topic.partitions.iter().filter(|it| is_known(it)) {
            let position = Position {
                offset: it.committed_offset,
                leader_epoch: it.committed_leader_epoch,
                metadata: it.metadata.clone(),
            };
            places.insert((name.clone(), it.partition_index), position);
        }
    }
    places
}

fn is_known(position: &OffsetFetchPartitionResponse) -> bool {
    position.error_code.is_none() && position.committed_offset >= 0
}

/// Carries the positions of one group.
async fn carry(
    own: &Client,
    group: &str,
    positions: &BTreeMap<Place, Position>,
    carried: &mut BTreeMap<(String, Place), i64>,
) -> Result<Vec<CarriedPosition>, ClientError> {
    let topics: BTreeSet<&str> = positions.keys().map(|(topic, _)| topic.as_str()).collect();
    let topics: Vec<&str> = topics.into_iter().collect();
    own.refresh(Some(&topics)).await?;
    let ends = ends(own, positions.keys()).await?;
    let current = current(own, group).await?;
    let mut shown = Vec::with_capacity(positions.len());
    let mut commits = BTreeMap::new();
    for (place, position) in positions {
        // Without a leader there is no end to clamp to: the next look finds one.
        let Some(end) = ends.get(place) else { continue };
        let own_offset = current.get(place).copied();
        let key = (group.to_owned(), place.clone());
        let sides = Sides {
            source: Offset::new(position.offset),
            own: own_offset.map(Offset::new),
            carried: carried.get(&key).copied().map(Offset::new),
            high_watermark: Offset::new(*end),
        };
        let (commit, state) = sides.decide();
        if let Some(commit) = commit {
            commits.insert(place.clone(), (commit.get(), position));
        }
        shown.push(CarriedPosition {
            group: group.to_owned(),
            topic: place.0.clone(),
            partition: place.1,
            source_offset: position.offset,
            offset: commit.map(Offset::get).or(own_offset),
            state: state.name(),
        });
    }
    let is_active = !commits.is_empty() && !commit(own, group, &commits).await?;
    for it in &mut shown {
        let place = (it.topic.clone(), it.partition);
        let Some((offset, _)) = commits.get(&place) else { continue };
        match is_active {
            true => {
                it.state = Carried::ActiveHere.name();
                it.offset = current.get(&place).copied();
            }
            false => drop(carried.insert((group.to_owned(), place), *offset)),
        }
    }
    Ok(shown)
}

/// The ends of partitions here.
async fn ends(
    own: &Client,
    places: impl Iterator<Item = &Place>,
) -> Result<BTreeMap<Place, i64>, ClientError> {
    let mut by_leader: BTreeMap<i32, BTreeMap<&str, Vec<i32>>> = BTreeMap::new();
    let view = own.view();
    for (topic, index) in places {
        if let Ok(leader) = view.leader(topic, *index) {
            by_leader.entry(leader).or_default().entry(topic).or_default().push(*index);
        }
    }
    let mut ends = BTreeMap::new();
    for (leader, topics) in by_leader {
        let ask = |index: i32| ListOffsetsPartition {
            partition_index: index,
            timestamp: ListOffsetsPartition::TIMESTAMP_LATEST,
            ..Default::default()
        };
        let topics = topics.into_iter().map(|(name, indexes)| ListOffsetsTopic {
            name: name.into(),
            partitions: indexes.into_iter().map(ask).collect(),
        });
        let request = ListOffsetsRequest { topics: topics.collect(), ..Default::default() };
        let connection = own.node(leader, LANE).await?;
        for topic in connection.call(&request, REQUEST_TIMEOUT).await?.topics {
            let found = topic.partitions.iter().filter(|it| it.error_code.is_none());
            let name = topic.name.to_string();
            ends.extend(found.map(|it| ((name.clone(), it.partition_index), it.offset)));
        }
    }
    Ok(ends)
}

/// The connection to whoever coordinates a group here.
async fn coordinator(
    own: &Client,
    group: &str,
) -> Result<std::sync::Arc<crate::client::Connection>, ClientError> {
    let request = FindCoordinatorRequest {
        key: group.into(),
        coordinator_keys: vec![group.into()],
        ..Default::default()
    };
    let response = own.query(&request).await?;
    let (code, node) = match response.coordinators.first() {
        Some(found) => (found.error_code, found.node_id),
        None => (response.error_code, response.node_id),
    };
    ClientError::check(|| format!("the coordinator of group {group}"), code, None)?;
    own.node(node, LANE).await
}

/// The positions of a group here.
async fn current(own: &Client, group: &str) -> Result<BTreeMap<Place, i64>, ClientError> {
    let wanted = OffsetFetchGroup { group_id: group.into(), ..Default::default() };
    let request = OffsetFetchRequest { groups: vec![wanted], ..Default::default() };
    let connection = coordinator(own, group).await?;
    let called = connection.call_from(OFFSET_FETCH_VERSION_MIN, &request, REQUEST_TIMEOUT);
    let view = own.view();
    let mut current = BTreeMap::new();
    for found in called.await?.groups {
        ClientError::check(|| format!("positions of group {group}"), found.error_code, None)?;
        for topic in found.topics {
            let name = name_of(&view, &topic);
            let Some(name) = name else { continue };
            let known = topic.partitions.iter().filter(|it| is_known(it));
            current
                .extend(known.map(|it| ((name.clone(), it.partition_index), it.committed_offset)));
        }
    }
    Ok(current)
}

fn name_of(
    view: &crate::client::metadata::ClusterView,
    topic: &OffsetFetchTopicResponse,
) -> Option<String> {
    if !topic.name.is_empty() {
        return Some(topic.name.to_string());
    }
    let found = view.topics.iter().find(|(_, known)| known.id == topic.topic_id);
    found.map(|(name, _)| name.clone())
}

/// Commits positions here; false if the group has members, and nothing was committed.
async fn commit(
    own: &Client,
    group: &str,
    commits: &BTreeMap<Place, (i64, &Position)>,
) -> Result<bool, ClientError> {
    let view = own.view();
    let mut topics: BTreeMap<&str, OffsetCommitTopic> = BTreeMap::new();
    for ((name, index), (offset, position)) in commits {
        let Ok(topic) = view.topic(name) else { continue };
        let entry = topics.entry(name).or_insert_with(|| OffsetCommitTopic {
            name: name.as_str().into(),
            topic_id: topic.id,
            partitions: Vec::new(),
        });
        entry.partitions.push(OffsetCommitPartition {
            partition_index: *index,
            committed_offset: *offset,
            committed_leader_epoch: position.leader_epoch,
            committed_metadata: position.metadata.clone(),
        });
    }
    let request = OffsetCommitRequest {
        group_id: group.into(),
        topics: topics.into_values().collect(),
        ..Default::default()
    };
    let connection = coordinator(own, group).await?;
    let response = connection.call(&request, REQUEST_TIMEOUT).await?;
    let codes = response.topics.iter().flat_map(|topic| &topic.partitions);
    for code in codes.map(|it| it.error_code) {
        match code {
            ErrorCode::None => {}
            ErrorCode::UnknownMemberId
            | ErrorCode::IllegalGeneration
            | ErrorCode::RebalanceInProgress
            | ErrorCode::StaleMemberEpoch
            | ErrorCode::FencedMemberEpoch
            | ErrorCode::UnsupportedVersion => return Ok(false),
            code => ClientError::check(|| format!("positions of group {group}"), code, None)?,
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use meridian_protocol::Uuid;

    use super::*;

    #[test]
    fn positions_are_taken_under_the_names_here_and_only_of_mirrors() {
        let partition =
            |partition_index, committed_offset, error_code| OffsetFetchPartitionResponse {
                partition_index,
                committed_offset,
                error_code,
                ..Default::default()
            };
        let topic = |name: &'static str, id, partitions| OffsetFetchTopicResponse {
            name: name.into(),
            topic_id: Uuid([id; 16]),
            partitions,
        };
        let group = OffsetFetchGroupResponse {
            topics: vec![
                topic("", 7, vec![partition(0, 5, ErrorCode::None)]),
                topic(
                    "named",
                    0,
                    vec![
                        partition(1, 9, ErrorCode::UnstableOffsetCommit),
                        partition(2, -1, ErrorCode::None),
                        partition(3, 4, ErrorCode::None),
                    ],
                ),
                topic("elsewhere", 0, vec![partition(0, 5, ErrorCode::None)]),
            ],
            ..Default::default()
        };
        let by_id = BTreeMap::from([([7; 16], "by-id")]);
        let names = [("by-id", "w.by-id"), ("named", "named")];
        let names = names.map(|(there, here)| (there.to_owned(), here.to_owned())).into();
        let found = places(&group, &by_id, &names);
        let found: Vec<_> =
            found.iter().map(|((name, index), it)| (name.as_str(), *index, it.offset)).collect();
        assert_eq!(found, [("named", 3, 4), ("w.by-id", 0, 5)]);
    }
}
