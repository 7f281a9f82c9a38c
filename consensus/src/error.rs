//! What can go wrong, one enum per operation.

use meridian_base::id::{GroupId, NodeId, TopicId};
use meridian_base::retry::{Outcome, Retry};
use serde::{Deserialize, Serialize};

use crate::command::{FeatureLevel, NodeEpoch};

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There were no bytes.
    #[error("no bytes where a record was expected")]
    Empty,
    /// Written by another version of the software.
    #[error("encoding version {found}, this binary knows {known}; run the newer binary")]
    Version {
        /// The version in the bytes.
        found: u8,
        /// The version this binary reads.
        known: u8,
    },
    /// Not an encoding at all.
    #[error("malformed bytes: {detail}")]
    Malformed {
        /// What the decoder said.
        detail: String,
    },
}

impl DecodeError {
    pub(crate) fn malformed(error: impl std::fmt::Display) -> Self {
        Self::Malformed { detail: error.to_string() }
    }
}

/// Why the cluster decided not to do what a command asked. Remembered with the request's id, hence
/// persisted: **append only**.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The first command must name the cluster.
    #[error("the cluster has no id yet; wait for its bootstrap")]
    NotBootstrapped,
    /// The cluster has an id already.
    #[error("the cluster is bootstrapped already")]
    AlreadyBootstrapped,
    /// No such node.
    #[error("node {0} is not registered; start it")]
    UnknownNode(NodeId),
    /// The node registered anew since the verdict was formed.
    #[error("node {node} registered anew at {current:?}; judge it again")]
    StaleNode {
        /// The node.
        node: NodeId,
        /// Its present registration.
        current: NodeEpoch,
    },
    /// The node lacks the role the command needs.
    #[error("node {node} does not run the {role} role")]
    MissingRole {
        /// The node.
        node: NodeId,
        /// The role.
        role: RoleName,
    },
    /// The node cannot be removed.
    #[error("node {0} still fills a slot or leads partitions; drain it first")]
    NodeInUse(NodeId),
    /// The node's binary does not run at the cluster's feature level.
    #[error("node {node} does not support feature level {level:?}; upgrade its binary")]
    UnsupportedFeatureLevel {
        /// The node.
        node: NodeId,
        /// The level.
        level: FeatureLevel,
    },
    /// Feature levels only rise.
    #[error("the feature level is {current:?} already and never sinks")]
    FeatureLevelSinks {
        /// The present level.
        current: FeatureLevel,
    },
    /// No such group.
    #[error("group {0} does not exist")]
    UnknownGroup(GroupId),
    /// No storage group yet.
    #[error("too few storage nodes have mounted a disk for the cluster's geometry; start more")]
    NotEnoughNodes,
    /// The slot or its disk is not what the proposer thought.
    #[error("the slot changed meanwhile; read the group's configuration again")]
    StaleSlot,
    /// The change would leave too few good slots.
    #[error("the group would not survive this change; wait until its other slots have synced")]
    GroupAtRisk,
    /// The new disk cannot fill the slot.
    #[error("node {0} has no free disk mounted in the slot's datacenter")]
    UnsuitableNode(NodeId),
    /// A topic of that name exists.
    #[error("a topic of this name exists")]
    TopicExists,
    /// The name differs from another topic's only in `.` and `_`.
    #[error("the name collides with topic {0}: `.` and `_` are one in metric names")]
    TopicCollides(String),
    /// Not a legal name.
    #[error("topic names are 1 to 249 of [a-zA-Z0-9._-], not `.` or `..`")]
    InvalidTopicName,
    /// No such topic.
    #[error("topic {0} does not exist")]
    UnknownTopic(TopicId),
    /// The partition count is not possible.
    #[error("a topic has 1 to {per_topic_max} partitions, a cluster {cluster_max}")]
    InvalidPartitions {
        /// Most partitions of one topic.
        per_topic_max: u32,
        /// Most partitions of the cluster.
        cluster_max: u32,
    },
    /// The topic's partition count changed meanwhile.
    #[error("the topic has {current} partitions now; look again")]
    StalePartitionCount {
        /// The present count.
        current: u32,
    },
    /// A config, row or batch is over a limit.
    #[error("{what} exceeds its limit of {limit}")]
    TooLarge {
        /// What was too large.
        what: Limit,
        /// The limit.
        limit: u32,
    },
    /// A row is not at the version the proposer saw.
    #[error("row {index} of the command changed meanwhile; read it again")]
    StaleRow {
        /// Which row of the command.
        index: u32,
    },
    /// All producer ids of the cluster are used up.
    #[error("no producer ids left")]
    ProducerIdsExhausted,
    /// The cluster has not agreed yet on what the command needs.
    #[error("the cluster's feature level is {current:?}, this needs {needed:?}; raise it first")]
    FeatureLevelTooLow {
        /// The present level.
        current: FeatureLevel,
        /// The level from which on all nodes know it.
        needed: FeatureLevel,
    },
    /// The number of groups changed meanwhile.
    #[error("there are {current} storage groups now; look again")]
    StaleGroupCount {
        /// The present count.
        current: u32,
    },
    /// The nodes are not in the datacenters and racks of the geometry.
    #[error(
        "these nodes do not fill the geometry: each slot is a rack of its own, in its datacenter"
    )]
    NotTheGeometry,
}

/// A role, as named in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RoleName {
    /// Fills a slot.
    Storage,
    /// Leads partitions.
    Gateway,
}

impl std::fmt::Display for RoleName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Storage => "storage",
            Self::Gateway => "gateway",
        })
    }
}

/// What has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// Entries of one command.
    Batch,
    /// Bytes of one config, row, address or name.
    Value,
    /// Nodes of the cluster.
    Nodes,
    /// Bytes of one command: refused where it is made, as no leader takes it.
    Command,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Batch => "the number of entries of one command",
            Self::Value => "the size in bytes of one value",
            Self::Nodes => "the number of nodes",
            Self::Command => "the size in bytes of one command",
        })
    }
}

impl Outcome for Refusal {
    fn retry(&self) -> Retry {
        match self {
            Self::NotBootstrapped | Self::NotEnoughNodes | Self::GroupAtRisk => Retry::Later,
            Self::AlreadyBootstrapped
            | Self::UnknownNode(_)
            | Self::StaleNode { .. }
            | Self::MissingRole { .. }
            | Self::NodeInUse(_)
            | Self::UnsupportedFeatureLevel { .. }
            | Self::FeatureLevelSinks { .. }
            | Self::UnknownGroup(_)
            | Self::StaleSlot
            | Self::UnsuitableNode(_)
            | Self::TopicExists
            | Self::TopicCollides(_)
            | Self::InvalidTopicName
            | Self::UnknownTopic(_)
            | Self::InvalidPartitions { .. }
            | Self::StalePartitionCount { .. }
            | Self::TooLarge { .. }
            | Self::StaleRow { .. }
            | Self::ProducerIdsExhausted
            | Self::FeatureLevelTooLow { .. }
            | Self::StaleGroupCount { .. }
            | Self::NotTheGeometry => Retry::Never,
        }
    }

    /// A refusal is a decision of the cluster: nothing happened.
    fn may_have_happened(&self) -> bool {
        false
    }
}
