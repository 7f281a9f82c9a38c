//! Finding topics, partitions and nodes for clients.

use meridian_base::id::{NodeId, PartitionId, TopicId};
use meridian_base::topology::Slot;
use meridian_consensus::command::Liveness;
use meridian_consensus::state::{Metadata, Node, Partition, Topic};
use meridian_protocol::messages::{LeaderIdAndEpoch, NodeEndpoint};
use meridian_protocol::{ErrorCode, Str, Uuid};

use super::listener;

/// How a client names a topic: by name, or since KIP-516 by id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TopicKey {
    Name(Str),
    Id(Uuid),
}

impl TopicKey {
    /// What a message names, given whether its version has ids.
    pub(super) fn new(by_id: bool, name: &Str, id: Uuid) -> Self {
        if by_id { Self::Id(id) } else { Self::Name(name.clone()) }
    }

    /// The name and the id for a response, of which its version sends one.
    pub(super) fn into_parts(self) -> (Str, Uuid) {
        match self {
            Self::Name(name) => (name, Uuid::ZERO),
            Self::Id(id) => (Str::new(), id),
        }
    }

    /// A copy that does not keep the request's memory.
    pub(super) fn to_owned(&self) -> Self {
        match self {
            Self::Name(name) => Self::Name(Str::from(name.to_string())),
            Self::Id(id) => Self::Id(*id),
        }
    }

    /// The topic.
    pub(super) fn find<'m>(&self, metadata: &'m Metadata) -> Result<&'m Topic, ErrorCode> {
        match self {
            Self::Name(name) => {
                metadata.topic_named(name).ok_or(ErrorCode::UnknownTopicOrPartition)
            }
            Self::Id(id) => metadata.topic(topic_id(*id)).ok_or(ErrorCode::UnknownTopicId),
        }
    }
}

pub(super) fn topic_id(id: Uuid) -> TopicId {
    TopicId::new(u128::from_be_bytes(id.0))
}

pub(super) fn uuid(id: TopicId) -> Uuid {
    Uuid(id.get().to_be_bytes())
}

/// A partition by what a client calls it.
pub(super) fn partition<'m>(
    metadata: &'m Metadata,
    topic: &Topic,
    index: i32,
) -> Result<(PartitionId, &'m Partition), ErrorCode> {
    u32::try_from(index)
        .ok()
        .and_then(|index| metadata.partition_at(topic.id, index))
        .ok_or(ErrorCode::UnknownTopicOrPartition)
}

/// A config of a topic, if it was set for the topic or for all, and parses.
pub(super) fn topic_config<T: std::str::FromStr>(
    metadata: &Metadata,
    topic: TopicId,
    name: &str,
) -> Option<T> {
    metadata.topic_config(topic, name)?.parse().ok()
}

/// The number clients know a node by.
pub(super) fn broker_id(node: NodeId) -> i32 {
    i32::try_from(node.get()).unwrap_or(i32::MAX)
}

/// What is reported as `broker.rack`: the datacenter, so that a consumer with `client.rack` set to
/// its datacenter reads there (KIP-392), whatever rack of it has the data.
pub(super) fn rack(node: &Node) -> Str {
    Str::from(node.registration.datacenter.0.as_str())
}

/// Nodes that serve clients and are not known to be dead.
pub(super) fn brokers(metadata: &Metadata) -> impl Iterator<Item = (NodeId, &Node)> {
    metadata.nodes().filter(|(_, node)| serves(node))
}

fn serves(node: &Node) -> bool {
    node.registration.roles.gateway && node.liveness != Liveness::Dead
}

/// Whether clients can turn to this node.
pub(super) fn is_serving(metadata: &Metadata, node: NodeId) -> bool {
    metadata.node(node).is_some_and(serves)
}

/// The leader to tell a client that came to the wrong node (KIP-951).
pub(super) fn current_leader(partition: &Partition) -> LeaderIdAndEpoch {
    LeaderIdAndEpoch {
        leader_id: broker_id(partition.leader),
        leader_epoch: partition.leader_epoch.get(),
    }
}

/// Where clients of a listener reach a node, if it has that listener; without a name, that of `listen.kafka`.
pub(super) fn endpoint(
    metadata: &Metadata,
    node: NodeId,
    listener: Option<&str>,
) -> Option<NodeEndpoint> {
    let known = metadata.node(node)?;
    let endpoint = listener::endpoint(metadata, node, listener)?;
    Some(NodeEndpoint {
        node_id: broker_id(node),
        host: endpoint.host.as_str().into(),
        port: i32::from(endpoint.port),
        rack: Some(rack(known)),
    })
}

/// The nodes to show as a partition's replicas: its leader, and in every other datacenter the node
/// that serves readers there. Each record is in as many datacenters as this says.
pub(super) fn replicas(metadata: &Metadata, partition: &Partition) -> Vec<NodeId> {
    let mut replicas = vec![partition.leader];
    let Some(group) = metadata.group(partition.group) else { return replicas };
    let home = datacenter_of(metadata, partition.leader);
    for datacenter in 0..group.geometry.datacenter_count() {
        let slots = group.geometry.slots_of(datacenter);
        let nodes: Vec<NodeId> = slots
            .iter()
            .filter_map(|slot: Slot| Some(group.slot(slot)?.node))
            .filter(|node| datacenter_of(metadata, *node) != home)
            .collect();
        let serving: Vec<NodeId> =
            nodes.iter().copied().filter(|node| is_serving(metadata, *node)).collect();
        let candidates = if serving.is_empty() { nodes } else { serving };
        let turn = (partition.index as usize).checked_rem(candidates.len());
        replicas.extend(turn.and_then(|turn| candidates.get(turn)));
    }
    replicas
}

/// The replica that serves readers of `rack` instead of the leader, if there is one.
pub(super) fn reader_in(metadata: &Metadata, partition: &Partition, rack: &str) -> Option<NodeId> {
    let nearby = |node: NodeId| datacenter_of(metadata, node) == Some(rack);
    if rack.is_empty() || nearby(partition.leader) {
        return None;
    }
    let replicas = replicas(metadata, partition);
    replicas.into_iter().find(|node| nearby(*node) && is_serving(metadata, *node))
}

fn datacenter_of(metadata: &Metadata, node: NodeId) -> Option<&str> {
    Some(metadata.node(node)?.registration.datacenter.0.as_str())
}

/// Adds where a node can be reached, once.
pub(super) fn add_endpoint(
    metadata: &Metadata,
    node: NodeId,
    listener: Option<&str>,
    endpoints: &mut Vec<NodeEndpoint>,
) {
    if endpoints.iter().all(|known| known.node_id != broker_id(node)) {
        endpoints.extend(endpoint(metadata, node, listener));
    }
}
