//! Looks at a source cluster: which topics it has, who leads their partitions, how they are
//! configured.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meridian_base::id::{ClusterId, TopicId};
use meridian_base::position::LeaderEpoch;
use meridian_protocol::messages::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribedConfig,
};

use crate::client::{Client, ClientError, Connection, Lane};

/// Connections of links carry nothing else.
const LANE: Lane = Lane(1);
/// The kind of resource that a topic is, for its configuration.
const RESOURCE_TOPIC: i8 = 2;
/// Kafka's code for "set on this topic".
const SOURCE_TOPIC: i8 = 1;
const CLEANUP_POLICY: &str = "cleanup.policy";

/// A source cluster at one moment.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) cluster: Option<ClusterId>,
    /// The topics asked for that exist.
    pub(super) topics: BTreeMap<String, SurveyedTopic>,
    /// Connections to those who lead their partitions, or why there is none.
    pub(super) leaders: BTreeMap<i32, Result<Arc<Connection>, String>>,
}

/// A topic of the source.
#[derive(Clone, Debug)]
pub(super) struct SurveyedTopic {
    pub(super) id: TopicId,
    pub(super) is_compacted: bool,
    pub(super) partitions: Vec<SurveyedPartition>,
}

/// A partition of the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct SurveyedPartition {
    pub(super) leader: Option<i32>,
    pub(super) leader_epoch: LeaderEpoch,
}

/// Looks at these topics, and connects to their leaders.
pub(super) async fn survey(client: &Client, names: &[String]) -> Result<Survey, ClientError> {
    let mut survey = topics(client, names).await?;
    let leaders: BTreeSet<i32> = survey
        .topics
        .values()
        .flat_map(|topic| &topic.partitions)
        .filter_map(|partition| partition.leader)
        .collect();
    for leader in leaders {
        let connection = client.node(leader, LANE).await.map_err(|error| error.to_string());
        survey.leaders.insert(leader, connection);
    }
    Ok(survey)
}

async fn topics(client: &Client, names: &[String]) -> Result<Survey, ClientError> {
    let asked: Vec<&str> = names.iter().map(String::as_str).collect();
    let view = client.refresh(Some(&asked)).await?;
    let mut topics = BTreeMap::new();
    for name in names {
        let Ok(found) = view.topic(name) else { continue };
        let partitions = found.partitions.iter().map(|partition| SurveyedPartition {
            leader: partition.leader,
            leader_epoch: LeaderEpoch::new(partition.leader_epoch),
        });
        let partitions = partitions.collect();
        let id = TopicId::new(u128::from_be_bytes(found.id.0));
        topics.insert(name.clone(), SurveyedTopic { id, is_compacted: false, partitions });
    }
    let found: Vec<String> = topics.keys().cloned().collect();
    for (name, configs) in configs(client, &found, Some(CLEANUP_POLICY)).await? {
        let policy = configs.iter().find(|config| config.name == CLEANUP_POLICY);
        let policy = policy.and_then(|config| config.value.as_ref());
        if let (Some(topic), Some(policy)) = (topics.get_mut(&name), policy) {
            topic.is_compacted = policy.contains("compact");
        }
    }
    let cluster = view.cluster_id.as_deref().map(ClusterId::from_text);
    Ok(Survey { cluster, topics, leaders: BTreeMap::new() })
}

async fn configs(
    client: &Client,
    topics: &[String],
    only: Option<&str>,
) -> Result<BTreeMap<String, Vec<DescribedConfig>>, ClientError> {
    if topics.is_empty() {
        return Ok(BTreeMap::new());
    }
    let resource = |name: &String| DescribeConfigsResource {
        resource_type: RESOURCE_TOPIC,
        resource_name: name.as_str().into(),
        configuration_keys: only.map(|key| vec![key.into()]),
    };
    let resources = topics.iter().map(resource).collect();
    let request = DescribeConfigsRequest { resources, ..Default::default() };
    let response = client.query(&request).await?;
    let described = response.results.into_iter().filter(|result| result.error_code.is_none());
    Ok(described.map(|result| (result.resource_name.to_string(), result.configs)).collect())
}

/// The configs that were set on a topic of the source.
pub(super) async fn set_configs(
    client: &Client,
    topic: &str,
) -> Result<Vec<(String, String)>, ClientError> {
    let described = configs(client, &[topic.to_owned()], None).await?;
    let set = described.into_values().flatten().filter(|it| it.config_source == SOURCE_TOPIC);
    Ok(set.filter_map(|it| Some((it.name.to_string(), it.value?.to_string()))).collect())
}
