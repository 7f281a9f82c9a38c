//! The metadata state machine: what the cluster has decided so far.
//!
//! A pure function of the log: [`Metadata::apply`] depends on nothing but the state and the entry,
//! so that every node holds the same state after the same entry. Lookups are what the gateway
//! serves clients from.

mod apply;
mod group;
mod row_changes;
mod rows;
mod topic;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use meridian_base::id::{ClusterId, GroupId, Incarnation, NodeId, PartitionId, TopicId};
use meridian_base::position::{Generation, LeaderEpoch};
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotState};
use serde::{Deserialize, Serialize};

use crate::command::{
    ConfigResource, FeatureLevel, Liveness, MountEpoch, NodeEpoch, NodeRegistration, RequestId,
    RowKind,
};
use crate::error::Refusal;
use crate::membership::RaftLife;
use crate::mutation::Mutation;

use self::row_changes::RowChanges;
pub use apply::producer_id_prefix;
pub use group::MountedAs;
pub use row_changes::{RowsSeen, RowsUnseen};
pub use rows::{RowError, RowKey};
pub(crate) use topic::holds_parts;
pub use topic::{MIN_INSYNC_DATACENTERS, STORAGE_CLASS, STORAGE_CLASS_PARTS, names_collide};

/// Limits that every node must agree on: to change one is to raise the feature level.
pub mod limits {
    /// Partitions of one topic.
    pub const PARTITIONS_PER_TOPIC_MAX: u32 = 100_000;
    /// Partitions of the cluster.
    pub const PARTITIONS_MAX: u32 = 1_000_000;
    /// Nodes of the cluster.
    pub const NODES_MAX: usize = 1_000;
    /// Entries of one batched command.
    pub const BATCH_COUNT_MAX: usize = 10_000;
    /// Bytes of one config or row value, and of one name: a row fits in sled's inline 8 KiB.
    pub const VALUE_SIZE_BYTES_MAX: usize = 4_096;
    /// Bytes of a topic name.
    pub const TOPIC_NAME_SIZE_BYTES_MAX: usize = 249;
    /// Times that a partition may be moved to another group.
    pub const MOVES_MAX: usize = 64;
    /// Requests whose results are remembered.
    pub const REQUESTS_REMEMBERED_MAX: usize = 8_192;
    /// Producer ids handed out at once.
    pub const PRODUCER_ID_BLOCK_COUNT: u32 = 1_000;
}

/// A registered node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What it said about itself.
    pub registration: NodeRegistration,
    /// Which registration this is.
    pub epoch: NodeEpoch,
    /// The cluster's verdict.
    pub liveness: Liveness,
}

/// The disk a node mounted last. Its life is another than at its mount if it was given a slot since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedDisk {
    /// The life of its contents.
    pub incarnation: Incarnation,
    /// Its last mount; a disk that shows an older one is stale.
    pub mount_epoch: MountEpoch,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its id.
    pub id: TopicId,
    /// Its name.
    pub name: String,
    /// Whether the cluster keeps its own state in it.
    pub internal: bool,
    /// Its partitions in index order.
    pub partitions: Vec<PartitionId>,
}

/// A partition: who owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Its topic.
    pub topic: TopicId,
    /// Its index in the topic.
    pub index: u32,
    /// Where its blobs are.
    pub group: GroupId,
    /// The present ownership.
    pub generation: Generation,
    /// The owner.
    pub leader: NodeId,
    /// The epoch Kafka clients see.
    pub leader_epoch: LeaderEpoch,
}

/// A group that a partition is or was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// The first generation there; the last is the one before the next home's first.
    pub first: Generation,
    /// The group.
    pub group: GroupId,
}

/// A row whose meaning belongs to the gateway or the mirror.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Index of the log entry that last wrote it.
    pub version: u64,
    /// Its bytes.
    pub value: Vec<u8>,
}

/// Without the value, which may be a secret.
impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value_size_bytes = self.value.len();
        write!(f, "Row {{ version: {}, {value_size_bytes} bytes }}", self.version)
    }
}

/// Producer ids from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerIdBlock {
    /// The first of them.
    pub first: i64,
    /// How many.
    pub count: u32,
}

/// What a command achieved. Persisted with its request's id: **append only**.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// It was done; there is nothing to say about it.
    Done,
    /// The node is registered.
    Registered {
        /// Names this registration.
        epoch: NodeEpoch,
    },
    /// The disk is known; the node writes `incarnation` to it before it serves.
    Mounted {
        /// The life the disk is in from now on.
        incarnation: Incarnation,
        /// Whether it may count: a `LostData` disk syncs first.
        state: SlotState,
        /// The slot it fills, if the group exists.
        slot: Option<(GroupId, Slot)>,
    },
    /// Leaders were assigned.
    Assigned {
        /// How many partitions have a new leader.
        assigned_count: u32,
        /// How many entries were skipped as stale.
        skipped_count: u32,
    },
    /// These producer ids are the node's.
    ProducerIds(ProducerIdBlock),
    /// The node's new life in Raft.
    RaftLife(RaftLife),
}

/// What changed, for those who keep something derived from the metadata. Look the thing up for its
/// new contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The cluster got its id, or the feature level rose.
    Cluster,
    /// A node registered, or its liveness changed.
    Node(NodeId),
    /// A node was removed.
    NodeRemoved(NodeId),
    /// A group was created or has a new configuration.
    Group(GroupId),
    /// A topic was created.
    TopicCreated(TopicId),
    /// A topic is gone, and with it its partitions and configs.
    TopicDeleted(Topic),
    /// A topic has another name and is the cluster's own now.
    TopicSetAside(TopicId),
    /// A partition was created, its first leader appointed.
    PartitionCreated(PartitionId),
    /// A partition has a new generation.
    LeaderAssigned {
        /// The partition.
        partition: PartitionId,
        /// Its leader before: it stops serving.
        previous: NodeId,
    },
    /// Configs of a resource changed.
    Configs(ConfigResource),
    /// A row was written or deleted.
    Row(RowKind, Vec<u8>),
}

/// What applying one entry did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// What the proposer is told.
    pub result: Result<Decision, Refusal>,
    /// What changed; empty for a refusal and for a request applied before.
    pub changes: Vec<Change>,
    /// Rows whose persisted form changed (see [`Metadata::row`]).
    pub rows: Vec<RowKey>,
}

/// Scalars of the cluster: one row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    cluster: Option<(ClusterId, Geometry)>,
    feature_level: FeatureLevel,
    /// How many groups, partitions and incarnations were ever created: ids are never reused.
    group_count: u32,
    partition_count: u64,
    incarnation_count: u64,
    producer_id_count: u64,
}

/// The partitions that each node leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Led(BTreeMap<NodeId, BTreeSet<PartitionId>>);

impl Led {
    fn add(&mut self, partition: PartitionId, leader: NodeId) {
        self.0.entry(leader).or_default().insert(partition);
    }

    fn remove(&mut self, partition: PartitionId, leader: NodeId) {
        if let Some(led) = self.0.get_mut(&leader) {
            led.remove(&partition);
            if led.is_empty() {
                self.0.remove(&leader);
            }
        }
    }
}

/// All the cluster has decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    header: Header,
    nodes: BTreeMap<NodeId, Node>,
    disks: BTreeMap<NodeId, MountedDisk>,
    raft_lives: BTreeMap<NodeId, RaftLife>,
    groups: BTreeMap<GroupId, GroupConfig>,
    topics: BTreeMap<TopicId, Topic>,
    topic_names: BTreeMap<String, TopicId>,
    /// Names of topics behind what metrics show of them, so that a collision is found at once.
    shown_names: BTreeSet<(String, String)>,
    partitions: BTreeMap<PartitionId, Partition>,
    /// The partitions that each node leads: a node that goes, of hundreds, must not cost a look at all.
    led: Led,
    /// Of partitions that were ever moved.
    homes: BTreeMap<PartitionId, Vec<Home>>,
    configs: BTreeMap<ConfigResource, BTreeMap<String, String>>,
    rows: BTreeMap<(RowKind, Vec<u8>), Row>,
    row_changes: RowChanges,
    /// Results of the last requests by the log index that decided them.
    requests: BTreeMap<u64, (RequestId, Result<Decision, Refusal>)>,
    request_indexes: BTreeMap<RequestId, u64>,
    /// The rule that is broken, in tests.
    mutation: Option<Mutation>,
}

impl Metadata {
    /// Nothing decided yet, and one rule broken from the beginning.
    #[cfg(feature = "mutations")]
    pub fn breaking(mutation: Mutation) -> Self {
        Self { mutation: Some(mutation), ..Self::default() }
    }

    pub(crate) fn mutation(&self) -> Option<Mutation> {
        self.mutation
    }

    /// The cluster's id, once it is bootstrapped.
    pub fn cluster_id(&self) -> Option<&ClusterId> {
        self.header.cluster.as_ref().map(|(id, _)| id)
    }

    /// The shape of the cluster's first storage group, once it is bootstrapped.
    pub fn geometry(&self) -> Option<Geometry> {
        self.header.cluster.as_ref().map(|(_, geometry)| *geometry)
    }

    /// The level of features in use.
    pub fn feature_level(&self) -> FeatureLevel {
        self.header.feature_level
    }

    /// A node by id.
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(&node)
    }

    /// All nodes, by id.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// The disk a node mounted last.
    pub fn disk(&self, node: NodeId) -> Option<MountedDisk> {
        self.disks.get(&node).copied()
    }

    /// The life a node has in Raft.
    pub fn raft_life(&self, node: NodeId) -> RaftLife {
        self.raft_lives.get(&node).copied().unwrap_or(RaftLife::FIRST)
    }

    /// A group's configuration.
    pub fn group(&self, group: GroupId) -> Option<&GroupConfig> {
        self.groups.get(&group)
    }

    /// All groups, by id.
    pub fn groups(&self) -> impl Iterator<Item = &GroupConfig> {
        self.groups.values()
    }

    /// A topic by id.
    pub fn topic(&self, topic: TopicId) -> Option<&Topic> {
        self.topics.get(&topic)
    }

    /// A topic by name.
    pub fn topic_named(&self, name: &str) -> Option<&Topic> {
        self.topics.get(self.topic_names.get(name)?)
    }

    /// The name of the first topic that metrics show as one with `name`.
    pub fn name_shown_as(&self, name: &str) -> Option<&str> {
        let shown = topic::shown(name);
        let first = self.shown_names.range((shown.clone(), String::new())..).next();
        first.filter(|(found, _)| *found == shown).map(|(_, name)| name.as_str())
    }

    /// All topics, by name.
    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.topic_names.values().filter_map(|id| self.topics.get(id))
    }

    /// Changes whenever topics or partitions come or go: how many ids of partitions were ever given out,
    /// and how many topics there are.
    pub fn topics_version(&self) -> (u64, usize) {
        (self.header.partition_count, self.topics.len())
    }

    /// A partition by id.
    pub fn partition(&self, partition: PartitionId) -> Option<&Partition> {
        self.partitions.get(&partition)
    }

    /// The groups that a partition was in, oldest first, the present one last; none if it was never moved.
    pub fn homes(&self, partition: PartitionId) -> &[Home] {
        self.homes.get(&partition).map_or(&[], Vec::as_slice)
    }

    /// A partition by its index in a topic.
    pub fn partition_at(&self, topic: TopicId, index: u32) -> Option<(PartitionId, &Partition)> {
        let id = *self.topics.get(&topic)?.partitions.get(index as usize)?;
        Some((id, self.partitions.get(&id)?))
    }

    /// All partitions, by id.
    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, &Partition)> {
        self.partitions.iter().map(|(id, partition)| (*id, partition))
    }

    /// The partitions a node leads, by id.
    pub fn partitions_led_by(
        &self,
        node: NodeId,
    ) -> impl Iterator<Item = (PartitionId, &Partition)> {
        let led = self.led.0.get(&node).into_iter().flatten();
        led.filter_map(|id| Some((*id, self.partitions.get(id)?)))
    }

    /// How many partitions a node leads.
    pub fn led_count(&self, node: NodeId) -> usize {
        self.led.0.get(&node).map_or(0, BTreeSet::len)
    }

    /// The partitions from this one on, by id.
    pub fn partitions_from(
        &self,
        first: PartitionId,
    ) -> impl Iterator<Item = (PartitionId, &Partition)> {
        self.partitions.range(first..).map(|(id, partition)| (*id, partition))
    }

    /// One config of a resource, if it was set.
    pub fn config(&self, resource: &ConfigResource, name: &str) -> Option<&str> {
        self.configs.get(resource)?.get(name).map(String::as_str)
    }

    /// One config of a topic: as it was set for the topic, or else for the whole cluster. The cluster's
    /// own topics have only what is set for them.
    pub fn topic_config(&self, topic: TopicId, name: &str) -> Option<&str> {
        let follows = || self.topics.get(&topic).is_some_and(|topic| !topic.internal);
        self.config(&ConfigResource::Topic(topic), name)
            .or_else(|| follows().then(|| self.config(&ConfigResource::Cluster, name)).flatten())
    }

    /// All configs set for a resource, by name.
    pub fn configs(&self, resource: &ConfigResource) -> impl Iterator<Item = (&str, &str)> {
        let set = self.configs.get(resource).into_iter().flatten();
        set.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The consumer groups that have configs of their own.
    pub fn configured_groups(&self) -> impl Iterator<Item = &str> {
        self.configs.keys().filter_map(|resource| match resource {
            ConfigResource::Group(group) => Some(group.as_str()),
            _ => None,
        })
    }

    /// A row of the gateway's or the mirror's own.
    pub fn extra_row(&self, kind: RowKind, key: &[u8]) -> Option<&Row> {
        self.rows.get(&(kind, key.to_vec()))
    }

    /// All rows of a kind, by key.
    pub fn extra_rows(&self, kind: RowKind) -> impl Iterator<Item = (&[u8], &Row)> {
        self.rows
            .range((kind, Vec::new())..)
            .take_while(move |((other, _), _)| *other == kind)
            .map(|((_, key), row)| (key.as_slice(), row))
    }

    /// The result of a request applied not long ago.
    pub fn result_of(&self, request_id: RequestId) -> Option<&Result<Decision, Refusal>> {
        let index = self.request_indexes.get(&request_id)?;
        self.requests.get(index).map(|(_, result)| result)
    }
}
