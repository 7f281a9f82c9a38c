//! What is known of a cluster: its brokers, its topics and who leads their partitions.

use std::collections::{BTreeMap, BTreeSet};

use meridian_protocol::messages::{MetadataResponse, MetadataTopic};
use meridian_protocol::{ErrorCode, Uuid};

use super::ClientError;

/// A cluster as its last metadata answer described it.
#[derive(Debug, Clone, Default)]
pub struct ClusterView {
    /// Its id, if it has one.
    pub cluster_id: Option<String>,
    /// The broker that takes commands.
    pub controller: i32,
    /// Its brokers, by id.
    pub brokers: BTreeMap<i32, Broker>,
    /// The topics that were asked for, by name.
    pub topics: BTreeMap<String, Topic>,
    /// Topics that were asked for by name and that the client may not see, if they are there at all.
    pub refused: BTreeSet<String>,
}

/// A broker clients may turn to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// Host and port.
    pub address: String,
    /// Its rack, if it says.
    pub rack: Option<String>,
}

/// A topic and its partitions, by index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Its id; zero from a broker that has none.
    pub id: Uuid,
    /// Whether it is the cluster's own.
    pub is_internal: bool,
    /// Its partitions, by index.
    pub partitions: Vec<Partition>,
}

/// Who leads a partition and who holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The broker that leads it, if one does.
    pub leader: Option<i32>,
    /// The leader's epoch; -1 from a broker that does not say.
    pub leader_epoch: i32,
    /// Brokers that hold it.
    pub replicas: Vec<i32>,
    /// Those of them that are up to date.
    pub in_sync: Vec<i32>,
}

impl ClusterView {
    /// Takes in an answer. Topics it does not speak of stay as they were known.
    pub fn merge(&mut self, response: MetadataResponse) {
        self.cluster_id = response.cluster_id.map(|id| id.to_string());
        self.controller = response.controller_id;
        self.brokers = response.brokers.iter().map(|b| (b.node_id, Broker::from(b))).collect();
        for topic in response.topics {
            let Some(name) = topic.name.as_ref().map(|name| name.to_string()) else { continue };
            match topic.error_code {
                ErrorCode::None => {
                    self.refused.remove(&name);
                    self.topics.insert(name, Topic::from(topic));
                }
                ErrorCode::UnknownTopicOrPartition => {
                    self.refused.remove(&name);
                    self.topics.remove(&name);
                }
                ErrorCode::TopicAuthorizationFailed => {
                    self.topics.remove(&name);
                    self.refused.insert(name);
                }
                _ => {}
            }
        }
    }

    /// The topic of this name.
    pub fn topic(&self, topic: &str) -> Result<&Topic, ClientError> {
        self.topics.get(topic).ok_or_else(|| match self.refused.contains(topic) {
            true => ClientError::RefusedTopic { topic: topic.to_owned() },
            false => ClientError::UnknownTopic { topic: topic.to_owned() },
        })
    }

    /// The broker that leads a partition.
    pub fn leader(&self, topic: &str, partition: i32) -> Result<i32, ClientError> {
        let known = self.topic(topic)?;
        let index = usize::try_from(partition).unwrap_or(usize::MAX);
        let found = known.partitions.get(index).ok_or_else(|| ClientError::UnknownPartition {
            topic: topic.to_owned(),
            partition,
            count: known.partitions.len(),
        })?;
        found.leader.ok_or_else(|| ClientError::NoLeader { topic: topic.to_owned(), partition })
    }

    /// Where a broker is.
    pub fn address(&self, node: i32) -> Result<&str, ClientError> {
        let broker = self.brokers.get(&node).ok_or(ClientError::UnknownBroker { node })?;
        Ok(&broker.address)
    }

    /// How many partitions each broker leads, and how many have no leader.
    pub fn leader_counts(&self) -> (BTreeMap<i32, usize>, usize) {
        let mut counts = BTreeMap::new();
        let mut leaderless_count = 0;
        for partition in self.topics.values().flat_map(|topic| &topic.partitions) {
            match partition.leader {
                Some(leader) => *counts.entry(leader).or_default() += 1,
                None => leaderless_count += 1,
            }
        }
        (counts, leaderless_count)
    }
}

impl From<&meridian_protocol::messages::MetadataBroker> for Broker {
    fn from(broker: &meridian_protocol::messages::MetadataBroker) -> Self {
        let host = &broker.host;
        let is_ipv6 = host.contains(':');
        let address = match is_ipv6 {
            true => format!("[{host}]:{}", broker.port),
            false => format!("{host}:{}", broker.port),
        };
        Self { address, rack: broker.rack.as_ref().map(|rack| rack.to_string()) }
    }
}

impl From<MetadataTopic> for Topic {
    fn from(mut topic: MetadataTopic) -> Self {
        topic.partitions.sort_by_key(|partition| partition.partition_index);
        let partitions = topic.partitions.into_iter().map(|partition| Partition {
            leader: Some(partition.leader_id)
                .filter(|&leader| leader >= 0 && partition.error_code.is_none()),
            leader_epoch: partition.leader_epoch,
            replicas: partition.replica_nodes,
            in_sync: partition.isr_nodes,
        });
        Self {
            id: topic.topic_id,
            is_internal: topic.is_internal,
            partitions: partitions.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_protocol::messages::{MetadataBroker, MetadataPartition};

    use super::*;

    fn response() -> MetadataResponse {
        let partition = |partition_index, leader_id| MetadataPartition {
            partition_index,
            leader_id,
            ..Default::default()
        };
        let broker = |node_id, host: &'static str| MetadataBroker {
            node_id,
            host: host.into(),
            port: 9092,
            rack: None,
        };
        MetadataResponse {
            brokers: vec![broker(1, "one"), broker(2, "::1")],
            topics: vec![MetadataTopic {
                name: Some("t".into()),
                partitions: vec![partition(1, -1), partition(0, 2)],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    #[test]
    fn leaders_are_found_or_their_absence_is_explained() {
        let mut view = ClusterView::default();
        view.merge(response());
        assert_eq!(view.leader("t", 0).unwrap(), 2);
        assert_eq!(view.address(2).unwrap(), "[::1]:9092");
        assert_eq!(view.address(1).unwrap(), "one:9092");
        assert!(matches!(view.leader("t", 1), Err(ClientError::NoLeader { .. })));
        assert!(matches!(view.leader("t", 2), Err(ClientError::UnknownPartition { count: 2, .. })));
        assert!(matches!(view.leader("t", -1), Err(ClientError::UnknownPartition { .. })));
        assert!(matches!(view.leader("u", 0), Err(ClientError::UnknownTopic { .. })));
        assert!(matches!(view.address(3), Err(ClientError::UnknownBroker { node: 3 })));
        assert_eq!(view.leader_counts(), (BTreeMap::from([(2, 1)]), 1));
    }

    #[test]
    fn a_topic_that_is_gone_is_forgotten_and_an_error_keeps_what_was_known() {
        let mut view = ClusterView::default();
        view.merge(response());
        let mut again = response();
        again.topics[0].error_code = ErrorCode::LeaderNotAvailable;
        view.merge(again.clone());
        assert!(view.topic("t").is_ok());
        again.topics[0].error_code = ErrorCode::UnknownTopicOrPartition;
        view.merge(again);
        assert!(matches!(view.topic("t"), Err(ClientError::UnknownTopic { .. })));
    }

    #[test]
    fn a_topic_that_the_client_may_not_see_is_not_taken_for_one_that_is_gone() {
        let mut view = ClusterView::default();
        view.merge(response());
        let mut again = response();
        again.topics[0].error_code = ErrorCode::TopicAuthorizationFailed;
        view.merge(again);
        assert!(matches!(view.topic("t"), Err(ClientError::RefusedTopic { .. })));
        view.merge(response());
        assert!(view.topic("t").is_ok() && view.refused.is_empty());
    }
}
