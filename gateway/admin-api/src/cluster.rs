//! The state of the whole cluster: `cluster.status`.

use serde::{Deserialize, Serialize};

use crate::Besides;
use crate::words::words;

words! {
    /// The shape of a storage group.
    Geometry {
        /// One disk.
        None = "none",
        /// Three datacenters with one slot each.
        OnePerDc = "one-per-dc",
        /// Three datacenters of three racks.
        Mirror3Dc = "mirror-3-dc",
        /// One datacenter of eight racks.
        Block42 = "block-4-2",
    }
}

words! {
    /// What can be lost without losing records or service, from best to worst.
    Tolerance {
        /// Any datacenter and any rack of another.
        DatacenterAndRack = "DC + rack",
        /// Any datacenter.
        Datacenter = "DC",
        /// Any two racks.
        TwoRacks = "2 racks",
        /// Any rack.
        Rack = "rack",
        /// Nothing more.
        Nothing = "nothing",
        /// It does not serve now.
        NotServing = "not serving",
    }
}

words! {
    /// What the cluster thinks of a node.
    Liveness {
        /// It serves, and may be given partitions.
        Alive = "alive",
        /// It was not heard from: its partitions are taken over.
        Dead = "dead",
        /// It serves what it has, and is given nothing new.
        Draining = "draining",
    }
}

words! {
    /// What a slot's disk is good for.
    SlotState {
        /// It counts.
        Good = "good",
        /// It takes puts, and counts for nothing until it has synced.
        LostData = "lost-data",
    }
}

words! {
    /// How bad a condition is.
    Severity {
        /// It stops writes.
        Stops = "stops",
        /// It will, or something else may, stop writes.
        Threatens = "threatens",
        /// It is as it is meant to be for a while, such as amid an upgrade.
        Notes = "notes",
    }
}

/// The state of the cluster, as one of its nodes knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its id.
    pub cluster_id: String,
    /// The first group's.
    pub geometry: Geometry,
    /// What can be lost right now of the first group.
    pub tolerates: Tolerance,
    /// All groups, the first one too.
    #[serde(default)]
    pub groups: Vec<GroupStatus>,
    /// All nodes.
    pub nodes: Vec<NodeStatus>,
    /// The metadata log.
    pub raft: RaftStatus,
    /// The partitions of all topics.
    pub partitions: PartitionStatus,
    /// What stops or threatens writes, worst first, asked of all nodes. A node of an older build does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// A storage group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its id.
    pub id: u32,
    /// Its shape.
    pub geometry: Geometry,
    /// What can be lost of it right now.
    pub tolerates: Tolerance,
    /// What can be lost of it when all is well.
    pub built_for: Tolerance,
    /// How many partitions it holds.
    pub partitions: usize,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// A node, as the cluster sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its id.
    pub id: u32,
    /// Its datacenter.
    pub dc: String,
    /// Its rack.
    pub rack: String,
    /// Where Kafka clients find it.
    pub kafka: String,
    /// What the cluster thinks of it.
    pub liveness: Liveness,
    /// The group that has a slot of it.
    #[serde(default)]
    pub group: Option<u32>,
    /// The slot's index.
    pub slot: Option<usize>,
    /// Whether its disk counts there.
    pub slot_state: Option<SlotState>,
    /// Partitions that it leads and serves.
    pub leaders: usize,
    /// Of its binary.
    pub version: String,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

impl NodeStatus {
    /// Whether the cluster hears of it, and gives it partitions.
    pub fn is_alive(&self) -> bool {
        self.liveness == Liveness::Alive
    }
}

/// The metadata log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RaftStatus {
    /// The node that leads it, if one is known.
    pub leader: Option<u32>,
    /// The term.
    pub term: u64,
    /// Nodes that vote.
    #[serde(default)]
    pub voters: Vec<u32>,
    /// Index of the last entry that this node has applied.
    #[serde(default)]
    pub applied_index: u64,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// The partitions of all topics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartitionStatus {
    /// How many there are.
    pub total: usize,
    /// Those without a leader that is heard of.
    pub leaderless: usize,
    /// Those that have a leader which does not serve them yet, as far as nodes were asked.
    #[serde(default)]
    pub opening: usize,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// A state that stops or threatens writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// Its name.
    pub condition: String,
    /// How bad it is.
    pub severity: Severity,
    /// The nodes that say so of themselves; none if it is said of the cluster.
    #[serde(default)]
    pub nodes: Vec<u32>,
    /// What it is.
    pub what: String,
    /// What an operator does about it.
    pub mend: String,
    /// What nodes say of one thing that they share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,
    /// Partitions that each of the nodes leads and does not serve yet, if it is about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<usize>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// One thing of the cluster that several nodes see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Its name.
    pub subject: String,
    /// How many partitions of the node it stops, if that is counted.
    #[serde(default)]
    pub partitions: usize,
}
