//! Topics that change hands: how they stand, switchover, and rejoining after a failover.

use meridian_base::id::TopicId;
use serde::{Deserialize, Serialize};

use super::Stage;
use crate::Besides;
use crate::words::words;

/// A topic's id as JSON: 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicKey(pub TopicId);

impl From<TopicId> for TopicKey {
    fn from(topic: TopicId) -> Self {
        Self(topic)
    }
}

impl Serialize for TopicKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", self.0.get()))
    }
}

impl<'de> Deserialize<'de> for TopicKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let raw = u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)?;
        Ok(Self(TopicId::new(raw)))
    }
}

words! {
    /// Who writes to a topic next.
    Act {
        /// Nothing is under way.
        Settled = "settled",
        /// It refuses clients while its mirror takes over.
        Yielding = "yielding",
        /// Its mirror has taken over.
        Yielded = "yielded",
        /// It takes over from its source.
        TakingOver = "taking-over",
        /// It gives way to the side that was promoted.
        GivingWay = "giving-way",
    }
}

words! {
    /// How far a switchover is.
    Step {
        /// The source is to refuse its clients.
        Fencing = "fencing",
        /// The mirror gets the rest; open transactions end.
        Draining = "draining",
        /// Committed offsets are carried over.
        CarryingOver = "carrying-over",
        /// The mirror becomes the writer. It is decided.
        Promoting = "promoting",
        /// The source becomes the mirror.
        Reversing = "reversing",
        /// The source serves its clients again.
        RollingBack = "rolling-back",
    }
}

/// How a topic stands at one of its clusters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StandingReport {
    /// The cluster.
    pub cluster: String,
    /// The topic's name there.
    pub topic: String,
    /// Its id there.
    pub topic_id: TopicKey,
    /// Whether clients may write to it.
    pub takes_records: bool,
    /// Grows with each change of hands.
    pub link_epoch: u64,
    /// Who writes to it next.
    pub act: Act,
    /// The attempt under way.
    pub attempt: Option<u64>,
    /// Its step.
    pub step: Option<Step>,
    /// Why it is rolled back.
    pub reason: Option<String>,
    /// How the last switchover to this side ended.
    pub last: Option<LastReport>,
    /// The cluster without whose lease no records are taken.
    #[serde(default)]
    pub needs_lease_of: Option<String>,
    /// What it mirrors, or mirrored before it was promoted.
    pub mirrors: Option<MirrorsReport>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// How a switchover ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReport {
    /// The attempt.
    pub attempt: u64,
    /// Why it was rolled back; `None` if it was not.
    pub rolled_back: Option<String>,
}

/// What a topic mirrors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MirrorsReport {
    /// The link.
    pub link: String,
    /// The cluster that the link is to.
    pub cluster: String,
    /// The id of the source.
    pub topic_id: TopicKey,
    /// What operators want of the mirror.
    pub stage: Stage,
    /// The latest leader epoch that its source's records may have, if it was promoted.
    #[serde(default)]
    pub epoch_floor: Option<i32>,
}

/// Makes a mirror the writer and its source the mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switchover {
    /// The mirror.
    pub topic: String,
    /// Time within which it is decided or rolled back, in milliseconds.
    pub within_ms: Option<u64>,
}

/// Refuse clients, for an attempt of cluster `to`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The topic.
    pub topic: String,
    /// Its id.
    pub topic_id: TopicKey,
    /// The cluster that takes over.
    pub to: String,
    /// Its attempt.
    pub attempt: u64,
}

/// Clients are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    /// What leaders with later epochs than this one have is all there will be.
    pub epoch_floor: i32,
}

/// Serve clients again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The topic.
    pub topic: String,
    /// Its id.
    pub topic_id: TopicKey,
    /// The attempt that is rolled back.
    pub attempt: u64,
}

/// Mirror the topic that was a mirror until now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reverse {
    /// The topic.
    pub topic: String,
    /// Its id.
    pub topic_id: TopicKey,
    /// The cluster that has taken over.
    pub by: String,
    /// Its attempt.
    pub attempt: u64,
    /// The topic's name there.
    pub source_topic: String,
    /// The topic's id there.
    pub source_topic_id: TopicKey,
    /// Where that cluster is, if there is no link to it yet.
    pub bootstrap: String,
}

/// A topic that is to follow the side that was promoted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejoin {
    /// The topic.
    pub topic: String,
    /// To the cluster that was promoted.
    pub link: String,
    /// Up to where each partition was exported, once it was.
    pub exported: Option<Vec<i64>>,
    /// All of the topic is to cross the link again.
    #[serde(default)]
    pub over_link: bool,
}

words! {
    /// How far a rejoin is.
    Progress {
        /// Both sides take records.
        Diverged = "diverged",
        /// This side takes none any more.
        GivingWay = "giving-way",
        /// The topic is deleted, and its mirror not there yet.
        Replacing = "replacing",
        /// This side mirrors the other.
        Following = "following",
        /// This side takes records, and the other mirrors it.
        Writing = "writing",
    }
}

words! {
    /// What comes next in a rejoin.
    WhatNext {
        /// Refuse clients and fence what is in flight.
        GiveWay = "give-way",
        /// Export what only this side has.
        Export = "export",
        /// Delete the topic and mirror the other side's.
        Replace = "replace",
        /// Wait: the mirror comes about.
        Wait = "wait",
        /// Nothing.
        Done = "done",
    }
}

/// How far a rejoin is, and what comes next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejoinReport {
    /// The topic.
    pub topic: String,
    /// The promoted side.
    pub cluster: String,
    /// Its link epoch.
    pub link_epoch: u64,
    /// How far it is.
    pub progress: Progress,
    /// What comes next.
    pub next: WhatNext,
    /// What only this side has; empty once it follows.
    pub partitions: Vec<Divergent>,
}

/// What one partition has that the promoted side does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergent {
    /// Its index.
    pub partition: i32,
    /// The first offset at which the sides differ.
    pub from_offset: i64,
    /// Offset after the last record here.
    pub end_offset: i64,
    /// What exported records name as their source.
    pub source: String,
}
