//! Positions of consumer groups: read from the source's coordinators, committed here as a consumer
//! without members does (generation -1), so that a group with members here refuses it by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use meridian_admin_api::{Besides, mirror};
use meridian_base::env::Instant;
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

use super::Steward;
use crate::background::Backoff;
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
/// Settled groups that one look reads here again: what was carried may be lost here.
const RECHECK_COUNT: usize = 20;
/// Pauses between two looks at a group that was not carried.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// After so many groups that were not carried a look ends; the next one goes on behind them.
const FAILURE_COUNT_MAX: usize = 10;

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
#[derive(Clone, Debug)]
struct CarriedPosition {
    group: String,
    topic: String,
    partition: i32,
    source_offset: i64,
    /// Here, if it has one.
    offset: Option<i64>,
    state: Carried,
}

impl From<CarriedPosition> for mirror::CarriedPosition {
    fn from(position: CarriedPosition) -> Self {
        let CarriedPosition { group, topic, partition, source_offset, offset, state } = position;
        let (state, besides) = (state.into(), Besides::new());
        Self { group, topic, partition, source_offset, offset, state, besides }
    }
}

/// What is known of the groups of a link's source.
#[derive(Default)]
pub(super) struct Groups {
    own: Option<Client>,
    /// What was last carried, by group and place here.
    carried: BTreeMap<(String, Place), i64>,
    /// Positions about which nothing is to be done until they change at the source, or here.
    settled: BTreeMap<String, BTreeMap<Place, Position>>,
    /// Groups that were not carried: when they are tried again, and for which offsets they were tried.
    resting: BTreeMap<String, Rest>,
    /// Where the settled groups begin that the next look reads here again.
    recheck_from: String,
    /// Where the next look begins.
    look_from: String,
    shown: BTreeMap<String, Vec<CarriedPosition>>,
}

/// The pause of a group that was not carried.
struct Rest {
    until: Instant,
    backoff: Backoff,
    tried: BTreeMap<Place, Position>,
}

impl Groups {
    /// The groups whose positions are carried.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.shown.keys().cloned().collect()
    }

    /// The groups that a look is to carry, in its order: those that are not settled, and a few of the
    /// others.
    fn due(
        &mut self,
        now: Instant,
        positions: &BTreeMap<String, BTreeMap<Place, Position>>,
    ) -> Vec<String> {
        // News at the source is carried at once.
        self.resting.retain(|group, rest| positions.get(group) == Some(&rest.tried));
        self.settled.retain(|group, settled| positions.get(group) == Some(settled));
        let settled = turned(&self.settled, &self.recheck_from);
        let rechecked: Vec<String> = settled.take(RECHECK_COUNT + 1).map(str::to_owned).collect();
        let (rechecked, next) = match rechecked.split_at_checked(RECHECK_COUNT) {
            Some((rechecked, next)) => (rechecked, next.first()),
            None => (&rechecked[..], None),
        };
        self.recheck_from = next.cloned().unwrap_or_default();
        let is_due = |group: &&str| {
            let rests = self.resting.get(*group).is_some_and(|rest| now < rest.until);
            let is_settled = self.settled.contains_key(*group);
            !rests && (!is_settled || rechecked.iter().any(|it| it == group))
        };
        turned(positions, &self.look_from).filter(is_due).map(str::to_owned).collect()
    }

    /// What a look has come to for a group.
    fn on_carried(
        &mut self,
        group: &str,
        positions: &BTreeMap<Place, Position>,
        now: Instant,
        carried: Vec<CarriedPosition>,
    ) {
        match carried.iter().any(|it| it.state.is_refused()) {
            true => self.on_refused(group, positions, now),
            false => drop(self.resting.remove(group)),
        }
        match carried.iter().all(|it| it.state.is_settled()) {
            true => drop(self.settled.insert(group.to_owned(), positions.clone())),
            false => drop(self.settled.remove(group)),
        }
        self.shown.insert(group.to_owned(), carried);
    }

    /// A group was not carried: it is tried again after a pause that grows, or when its source has news.
    fn on_refused(&mut self, group: &str, positions: &BTreeMap<Place, Position>, now: Instant) {
        let rest = self.resting.entry(group.to_owned()).or_insert_with(|| Rest {
            until: now,
            backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            tried: positions.clone(),
        });
        rest.until = now + rest.backoff.pause();
    }
}

/// The keys of a map, from this one on and around.
fn turned<'m, T>(map: &'m BTreeMap<String, T>, from: &str) -> impl Iterator<Item = &'m str> {
    let behind = map.range::<str, _>((Bound::Included(from), Bound::Unbounded));
    let before = map.range::<str, _>((Bound::Unbounded, Bound::Excluded(from)));
    behind.chain(before).map(|(key, _)| key.as_str())
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
            self.tell(|report| {
                report.groups.clear();
                report.groups_left_out = None;
            });
            return Ok(());
        }
        let (positions, left_out) = positions(&self.client, &rules, &names).await?;
        let left_out = (left_out > 0).then_some((left_out, GROUP_COUNT_MAX));
        self.tell(|report| report.groups_left_out = left_out);
        let own = self.own_cluster();
        self.groups.shown.retain(|group, _| positions.contains_key(group));
        let mut failed: Option<(String, ClientError)> = None;
        let mut failure_count = 0;
        let now = self.clock.now();
        for group in self.groups.due(now, &positions) {
            if failure_count >= FAILURE_COUNT_MAX {
                self.groups.look_from = group;
                break;
            }
            let Some(positions) = positions.get(&group) else { continue };
            match carry(&own, &group, positions, &mut self.groups.carried).await {
                Ok(carried) => self.groups.on_carried(&group, positions, now, carried),
                // One group's trouble is not the others'.
                Err(error) => {
                    failure_count += 1;
                    self.groups.settled.remove(&group);
                    self.groups.on_refused(&group, positions, now);
                    failed.get_or_insert((group, error));
                }
            }
        }
        let shown = self.groups.shown.values().flatten().cloned();
        let shown = shown.map(mirror::CarriedPosition::from).collect();
        self.tell(|report| report.groups = shown);
        match failed {
            None => Ok(()),
            Some((group, error)) => {
                tracing::warn!(link = %self.link, group, failure_count, %error, "groups not carried");
                Err(error)
            }
        }
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

/// As many groups as a look takes care of, in the order of their names so that each look takes the same ones, and how
/// many more there are.
fn bounded(mut groups: Vec<Str>, count_max: usize) -> (Vec<Str>, usize) {
    groups.sort_unstable();
    let left_out = groups.len().saturating_sub(count_max);
    groups.truncate(count_max);
    (groups, left_out)
}

/// The positions at the source, by group and place here; and the number of groups that are left out.
async fn positions(
    source: &Client,
    rules: &[Matcher],
    names: &BTreeMap<String, String>,
) -> Result<(BTreeMap<String, BTreeMap<Place, Position>>, usize), ClientError> {
    let view = source.view();
    let mut left_out = 0;
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
        let groups = groups.map(|group| group.group_id).collect();
        let (groups, more) = bounded(groups, GROUP_COUNT_MAX);
        left_out += more;
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
    Ok((positions, left_out))
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
        let own_offset = current.get(place).copied();
        let key = (group.to_owned(), place.clone());
        let decided = ends.get(place).map(|end| {
            let sides = Sides {
                source: Offset::new(position.offset),
                own: own_offset.map(Offset::new),
                carried: carried.get(&key).copied().map(Offset::new),
                high_watermark: Offset::new(*end),
            };
            sides.decide()
        });
        // Without a leader there is no end to clamp to: the next look finds one.
        let (commit, state) = decided.unwrap_or((None, Carried::NotHere));
        if let Some(offset) = commit.map(Offset::get) {
            commits.insert(place.clone(), Commit { offset, expected: own_offset, position });
        }
        shown.push(CarriedPosition {
            group: group.to_owned(),
            topic: place.0.clone(),
            partition: place.1,
            source_offset: position.offset,
            offset: own_offset,
            state,
        });
    }
    if commits.is_empty() {
        return Ok(shown);
    }
    let results = commit(own, group, &commits).await?;
    for it in &mut shown {
        let place = (it.topic.clone(), it.partition);
        let Some(commit) = commits.get(&place) else { continue };
        // One that was not sent, or not answered, is tried again.
        match results.get(&place).copied().unwrap_or(ErrorCode::UnknownServerError) {
            ErrorCode::None => {
                it.offset = Some(commit.offset);
                carried.insert((group.to_owned(), place), commit.offset);
            }
            code => it.state = of_refusal(code),
        }
    }
    Ok(shown)
}

/// What it means that a coordinator here did not take an offset.
fn of_refusal(code: ErrorCode) -> Carried {
    match code {
        ErrorCode::UnknownMemberId
        | ErrorCode::IllegalGeneration
        | ErrorCode::RebalanceInProgress
        | ErrorCode::StaleMemberEpoch
        | ErrorCode::FencedMemberEpoch
        | ErrorCode::UnsupportedVersion => Carried::ActiveHere,
        ErrorCode::UnstableOffsetCommit => Carried::ChangedHere,
        ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId => Carried::NotHere,
        _ => Carried::Refused,
    }
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

/// An offset to commit here.
struct Commit<'p> {
    offset: i64,
    /// What it replaces, if anything: a consumer here may commit between the look and this.
    expected: Option<i64>,
    position: &'p Position,
}

/// Commits offsets here; says what became of each.
async fn commit(
    own: &Client,
    group: &str,
    commits: &BTreeMap<Place, Commit<'_>>,
) -> Result<BTreeMap<Place, ErrorCode>, ClientError> {
    let view = own.view();
    let mut topics: BTreeMap<&str, OffsetCommitTopic> = BTreeMap::new();
    for ((name, index), Commit { offset, expected, position }) in commits {
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
            expected_offset: expected.unwrap_or(-1),
        });
    }
    let request = OffsetCommitRequest {
        group_id: group.into(),
        topics: topics.into_values().collect(),
        ..Default::default()
    };
    let connection = coordinator(own, group).await?;
    let response = connection.call(&request, REQUEST_TIMEOUT).await?;
    let mut results = BTreeMap::new();
    for topic in response.topics {
        let named = Some(topic.name.to_string()).filter(|name| !name.is_empty());
        let found = || view.topics.iter().find(|(_, known)| known.id == topic.topic_id);
        let Some(name) = named.or_else(|| found().map(|(name, _)| name.clone())) else { continue };
        let codes = topic.partitions.into_iter().map(|it| (it.partition_index, it.error_code));
        results.extend(codes.map(|(index, code)| ((name.clone(), index), code)));
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use meridian_protocol::Uuid;

    use super::*;

    const NOW: Instant = Instant::ZERO;

    fn at_source(offset: i64) -> BTreeMap<Place, Position> {
        let position = Position { offset, leader_epoch: -1, metadata: None };
        [("t", 0), ("t", 1)]
            .map(|(topic, index)| ((topic.to_owned(), index), position.clone()))
            .into()
    }

    fn shown(group: &str, states: [Carried; 2]) -> Vec<CarriedPosition> {
        let of = |(partition, state)| CarriedPosition {
            group: group.to_owned(),
            topic: "t".to_owned(),
            partition,
            source_offset: 5,
            offset: Some(5),
            state,
        };
        (0..).zip(states).map(of).collect()
    }

    #[test]
    fn a_group_with_an_offset_that_did_not_arrive_is_carried_again() {
        let mut groups = Groups::default();
        let positions = BTreeMap::from([("g".to_owned(), at_source(5))]);
        for missing in [Carried::NotHere, Carried::Refused, Carried::ChangedHere] {
            groups.on_carried("g", &positions["g"], NOW, shown("g", [Carried::Carried, missing]));
            assert!(!groups.settled.contains_key("g"), "{missing} is tried again");
        }
        groups.on_carried("g", &positions["g"], NOW, shown("g", [Carried::Carried; 2]));
        assert!(groups.settled.contains_key("g"));
        let changed = BTreeMap::from([("g".to_owned(), at_source(6))]);
        assert_eq!(groups.due(NOW, &changed), ["g"]);
        assert!(!groups.settled.contains_key("g"));
    }

    #[test]
    fn settled_groups_are_looked_at_here_in_turn() {
        let mut groups = Groups::default();
        let names = (0..3 * RECHECK_COUNT + 5).map(|number| format!("g{number:03}"));
        let positions: BTreeMap<_, _> = names.map(|name| (name, at_source(5))).collect();
        for (name, places) in &positions {
            groups.on_carried(name, places, NOW, shown(name, [Carried::Carried; 2]));
        }
        let looked: BTreeSet<String> = (0..4).flat_map(|_| groups.due(NOW, &positions)).collect();
        assert!(looked.iter().eq(positions.keys()), "what was lost here is found");
    }

    #[test]
    fn a_look_goes_on_behind_the_groups_that_could_not_be_carried() {
        let mut groups = Groups::default();
        let names = ["a", "b", "c"].map(str::to_owned);
        let positions = names.clone().map(|name| (name, at_source(5))).into();
        assert_eq!(groups.due(NOW, &positions), names);
        groups.look_from = "b".to_owned();
        assert_eq!(groups.due(NOW, &positions), ["b", "c", "a"]);
    }

    /// Each look at a group that is refused costs four requests here.
    #[test]
    fn a_group_that_is_refused_is_tried_again_after_pauses_that_grow() {
        let mut groups = Groups::default();
        let names = ["a", "refused", "z"].map(str::to_owned);
        let mut positions = names.clone().map(|name| (name, at_source(5))).into();
        let mut tries = Vec::new();
        for second in 0..300 {
            let now = NOW + Duration::from_secs(second);
            let due = groups.due(now, &positions);
            assert!(due.contains(&"z".to_owned()), "one that is refused stops none behind it");
            if due.contains(&"refused".to_owned()) {
                tries.push(second);
                let states = [Carried::Carried, Carried::Refused];
                groups.on_carried("refused", &positions["refused"], now, shown("refused", states));
            }
        }
        let pauses: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.is_sorted() && pauses.last() >= Some(&30), "{pauses:?}");
        positions.insert("refused".to_owned(), at_source(6));
        let now = NOW + Duration::from_secs(300);
        assert_eq!(groups.due(now, &positions), names, "there is news");
    }

    #[test]
    fn groups_beyond_the_bound_are_counted() {
        let names = |names: &[&'static str]| names.iter().map(|name| Str::from(*name)).collect();
        assert_eq!(bounded(names(&["b", "a"]), 2), (names(&["a", "b"]), 0));
        assert_eq!(bounded(names(&["c", "b", "a"]), 2), (names(&["a", "b"]), 1));
    }

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
