//! Looks at a source cluster: which topics it has, who leads their partitions, how they are
//! configured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{ClusterId, TopicId};
use meridian_base::position::LeaderEpoch;
use meridian_protocol::messages::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribedConfig,
};
use tokio::task::JoinSet;

use crate::client::{Client, ClientError, Connection, Lane};
use crate::topic_config::{
    COMPACTED_ONCE, DEDUP, DELETE_RETENTION_MS, MIRROR_MAX_LAG_MS, MIRROR_SOURCE,
};

/// Connections of links carry nothing else.
const LANE: Lane = Lane(1);
/// The kind of resource that a topic is, for its configuration.
const RESOURCE_TOPIC: i8 = 2;
/// Kafka's code for "set on this topic".
const SOURCE_TOPIC: i8 = 1;
const CLEANUP_POLICY: &str = "cleanup.policy";
/// Topics whose configs are asked for at once.
const TOPICS_PER_REQUEST: usize = 200;
/// Time for the leaders of a source to be connected to, before those that are there are worked with.
const CONNECTED_WITHIN: Duration = Duration::from_secs(1);

/// A source cluster at one moment.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) cluster: Option<ClusterId>,
    /// The topics asked for that exist.
    pub(super) topics: BTreeMap<String, SurveyedTopic>,
    /// Those that the source does not let the link see, and what it said.
    pub(super) refused: BTreeMap<String, String>,
    /// Connections to those who lead their partitions, or why there is none.
    pub(super) leaders: BTreeMap<i32, Result<Arc<Connection>, String>>,
}

/// A topic of the source.
#[derive(Clone, Debug)]
pub(super) struct SurveyedTopic {
    pub(super) id: TopicId,
    pub(super) is_compacted: bool,
    /// Whether it was compacted once, as far as the source says.
    pub(super) was_compacted: bool,
    /// How long it keeps tombstones.
    pub(super) delete_retention: Option<Duration>,
    /// Whether the source has said how it is configured: only then is known what follows.
    pub(super) is_described: bool,
    /// Whether the source is a meridian cluster.
    pub(super) is_meridian: bool,
    /// How far its mirrors may be behind (`mirror.max.lag.ms`).
    pub(super) lag_max_ms: Option<u64>,
    pub(super) partitions: Vec<SurveyedPartition>,
}

/// A partition of the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct SurveyedPartition {
    pub(super) leader: Option<i32>,
    pub(super) leader_epoch: LeaderEpoch,
}

/// Looks at these topics, and connects to their leaders: at once to those that were last known, for on a
/// long way each answer that is waited for costs a round trip.
pub(super) async fn survey(client: &Client, names: &[String]) -> Result<Survey, ClientError> {
    let known = client.view();
    let known = names.iter().filter_map(|name| known.topics.get(name));
    let known = known.flat_map(|topic| &topic.partitions).filter_map(|it| it.leader);
    let mut connecting = JoinSet::new();
    connect(client, known.collect(), &mut connecting);
    let mut survey = topics(client, names).await?;
    let leaders: BTreeSet<i32> = survey
        .topics
        .values()
        .flat_map(|topic| &topic.partitions)
        .filter_map(|partition| partition.leader)
        .collect();
    connect(client, leaders.clone(), &mut connecting);
    let patience = tokio::time::sleep(CONNECTED_WITHIN);
    tokio::pin!(patience);
    while leaders.iter().any(|leader| !matches!(survey.leaders.get(leader), Some(Ok(_)))) {
        tokio::select! {
            connected = connecting.join_next() => match connected {
                Some(Ok((leader, Ok(connection)))) => {
                    survey.leaders.insert(leader, Ok(connection));
                }
                Some(Ok((leader, Err(error)))) => {
                    survey.leaders.entry(leader).or_insert(Err(error));
                }
                Some(Err(_this_node_ends)) => {}
                None => break,
            },
            () = &mut patience => break,
        }
    }
    // A broker that does not answer holds up nobody but itself; the attempt goes on for the next look.
    connecting.detach_all();
    for leader in leaders {
        let slow = || Err(format!("broker {leader} has not answered yet"));
        survey.leaders.entry(leader).or_insert_with(slow);
    }
    Ok(survey)
}

/// To a leader, or why not.
type Connected = (i32, Result<Arc<Connection>, String>);

fn connect(client: &Client, leaders: BTreeSet<i32>, connecting: &mut JoinSet<Connected>) {
    for leader in leaders {
        let client = client.clone();
        connecting.spawn(async move {
            let connection = client.node(leader, LANE).await;
            (leader, connection.map_err(|error| error.to_string()))
        });
    }
}

/// Looks at these topics, and connects to nobody.
pub(super) async fn topics(client: &Client, names: &[String]) -> Result<Survey, ClientError> {
    let asked: Vec<&str> = names.iter().map(String::as_str).collect();
    let asked_configs =
        [CLEANUP_POLICY, MIRROR_MAX_LAG_MS, DEDUP, DELETE_RETENTION_MS, COMPACTED_ONCE];
    let configs = configs(client, names, &asked_configs);
    let (view, configs) = tokio::try_join!(client.refresh(Some(&asked)), configs)?;
    let (mut topics, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for name in names {
        let found = match view.topic(name) {
            Ok(found) => found,
            Err(ClientError::UnknownTopic { .. }) => continue,
            Err(error) => {
                refused.insert(name.clone(), error.to_string());
                continue;
            }
        };
        let partitions = found.partitions.iter().map(|partition| SurveyedPartition {
            leader: partition.leader,
            leader_epoch: LeaderEpoch::new(partition.leader_epoch),
        });
        let partitions = partitions.collect();
        let id = TopicId::new(u128::from_be_bytes(found.id.0));
        topics.insert(
            name.clone(),
            SurveyedTopic {
                id,
                is_compacted: false,
                was_compacted: false,
                delete_retention: None,
                is_described: false,
                is_meridian: false,
                lag_max_ms: None,
                partitions,
            },
        );
    }
    for (name, configs) in configs {
        let Some(topic) = topics.get_mut(&name) else { continue };
        let value =
            |name: &str| configs.iter().find(|config| config.name == name)?.value.as_deref();
        topic.is_compacted = value(CLEANUP_POLICY).is_some_and(|policy| policy.contains("compact"));
        topic.was_compacted = value(COMPACTED_ONCE) == Some("true");
        let retention_ms = value(DELETE_RETENTION_MS).and_then(|it| it.parse().ok());
        topic.delete_retention = retention_ms.map(Duration::from_millis);
        topic.is_described = true;
        topic.is_meridian = tells_of_meridian(&configs);
        let limit_ms = value(MIRROR_MAX_LAG_MS).and_then(|limit| limit.parse().ok());
        topic.lag_max_ms = limit_ms.filter(|limit| *limit > 0);
    }
    let cluster = view.cluster_id.as_deref().map(ClusterId::from_text);
    Ok(Survey { cluster, topics, refused, leaders: BTreeMap::new() })
}

async fn configs(
    client: &Client,
    topics: &[String],
    only: &[&str],
) -> Result<BTreeMap<String, Vec<DescribedConfig>>, ClientError> {
    if topics.is_empty() {
        return Ok(BTreeMap::new());
    }
    let resource = |name: &String| DescribeConfigsResource {
        resource_type: RESOURCE_TOPIC,
        resource_name: name.as_str().into(),
        configuration_keys: (!only.is_empty())
            .then(|| only.iter().map(|it| (*it).into()).collect()),
    };
    let resources = topics.iter().map(resource).collect();
    let request = DescribeConfigsRequest { resources, ..Default::default() };
    let response = client.query(&request).await?;
    let described = response.results.into_iter().filter(|result| result.error_code.is_none());
    Ok(described.map(|result| (result.resource_name.to_string(), result.configs)).collect())
}

/// The configs that were set on topics of the source, by topic.
pub(super) async fn all_set_configs(
    client: &Client,
    topics: &[String],
) -> Result<BTreeMap<String, Vec<(String, String)>>, ClientError> {
    let mut set = BTreeMap::new();
    for topics in topics.chunks(TOPICS_PER_REQUEST) {
        for (topic, described) in configs(client, topics, &[]).await? {
            let own = described.into_iter().filter(|it| it.config_source == SOURCE_TOPIC);
            let pairs = own.filter_map(|it| Some((it.name.to_string(), it.value?.to_string())));
            set.insert(topic, pairs.collect());
        }
    }
    Ok(set)
}

/// The configs that were set on a topic of the source.
pub(super) async fn set_configs(
    client: &Client,
    topic: &str,
) -> Result<Vec<(String, String)>, ClientError> {
    let mut set = all_set_configs(client, &[topic.to_owned()]).await?;
    Ok(set.remove(topic).unwrap_or_default())
}

/// Those of these topics that are mirrors themselves: of a meridian cluster, which says so.
pub(super) async fn mirrors(
    client: &Client,
    topics: &[String],
) -> Result<BTreeSet<String>, ClientError> {
    let mut mirrors = BTreeSet::new();
    for topics in topics.chunks(TOPICS_PER_REQUEST) {
        let described = configs(client, topics, &[MIRROR_SOURCE]).await?;
        let is_set = |described: &[DescribedConfig]| {
            let value = described.iter().find(|it| it.name == MIRROR_SOURCE);
            value.and_then(|it| it.value.as_ref()).is_some_and(|value| !value.is_empty())
        };
        mirrors.extend(described.into_iter().filter(|(_, it)| is_set(it)).map(|(name, _)| name));
    }
    Ok(mirrors)
}

/// Whether the source that described a topic is a meridian cluster: Kafka does not describe what it does not know.
fn tells_of_meridian(described: &[DescribedConfig]) -> bool {
    described.iter().any(|config| config.name == DEDUP)
}

/// Whether a source is a meridian cluster, by how it describes one of its topics. One that has no such topic is
/// taken for one.
pub(super) async fn is_meridian(client: &Client, topic: &str) -> Result<bool, ClientError> {
    if client.is_known_meridian() {
        return Ok(true);
    }
    let described = configs(client, &[topic.to_owned()], &[DEDUP]).await?;
    let Some(configs) = described.get(topic) else { return Ok(true) };
    let is_meridian = tells_of_meridian(configs);
    if is_meridian {
        client.remember_meridian();
    }
    Ok(is_meridian)
}

/// One partition of a source.
pub(super) struct FoundPartition {
    pub(super) topic: TopicId,
    /// Whether the source is a meridian cluster.
    pub(super) is_meridian: bool,
    /// To its leader.
    pub(super) connection: Arc<Connection>,
}

/// Looks one partition up; `None` if there is no such topic or partition.
pub(super) async fn find(
    client: &Client,
    topic: &str,
    lane: Lane,
    index: u32,
) -> Result<Option<FoundPartition>, ClientError> {
    let view = client.refresh(Some(&[topic])).await?;
    let found = match view.topic(topic) {
        Ok(found) => found,
        Err(ClientError::UnknownTopic { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(partition) = found.partitions.get(index as usize) else { return Ok(None) };
    let partition_index = i32::try_from(index).unwrap_or(i32::MAX);
    let leaderless =
        || ClientError::NoLeader { topic: topic.to_owned(), partition: partition_index };
    let leader = partition.leader.ok_or_else(leaderless)?;
    let described = configs(client, &[topic.to_owned()], &[DEDUP]).await?;
    let configs = described.into_values().next().unwrap_or_default();
    Ok(Some(FoundPartition {
        topic: TopicId::new(u128::from_be_bytes(found.id.0)),
        is_meridian: tells_of_meridian(&configs),
        connection: client.node(leader, lane).await?,
    }))
}
