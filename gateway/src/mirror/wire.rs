//! What the clusters of a link tell each other about a topic that changes hands: arguments and
//! answers of the methods `mirror.standing`, `.fence`, `.release` and `.reverse`, in JSON.

use meridian_base::id::TopicId;
use serde::{Deserialize, Serialize};

/// A topic's id as JSON: 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopicKey(pub(super) TopicId);

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

/// Asks how a topic stands.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) topic: String,
}

/// How a topic stands here.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StandingReport {
    pub(super) cluster: String,
    pub(super) topic: String,
    pub(super) topic_id: TopicKey,
    /// Whether clients may write to it.
    pub(super) takes_records: bool,
    pub(super) link_epoch: u64,
    /// `settled`, `yielding`, `yielded`, `taking-over` or `giving-way`.
    pub(super) act: String,
    /// The attempt under way, and its step.
    pub(super) attempt: Option<u64>,
    pub(super) step: Option<String>,
    pub(super) reason: Option<String>,
    /// How the last switchover to this side ended.
    pub(super) last: Option<LastReport>,
    /// The cluster without whose lease no records are taken.
    #[serde(default)]
    pub(super) needs_lease_of: Option<String>,
    /// What it mirrors, or mirrored before it was promoted.
    pub(super) mirrors: Option<MirrorsReport>,
}

/// How a switchover ended.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LastReport {
    pub(super) attempt: u64,
    /// Why it was rolled back; `None` if it was not.
    pub(super) rolled_back: Option<String>,
}

/// What a topic mirrors.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MirrorsReport {
    pub(super) link: String,
    pub(super) cluster: String,
    pub(super) topic_id: TopicKey,
    pub(super) stage: String,
    /// The latest leader epoch that its source's records may have, if it was promoted.
    #[serde(default)]
    pub(super) epoch_floor: Option<i32>,
}

/// Refuse clients, for an attempt of cluster `to`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fence {
    pub(super) topic: String,
    pub(super) topic_id: TopicKey,
    pub(super) to: String,
    pub(super) attempt: u64,
}

/// Clients are refused: what leaders with later epochs than this one have is all there will be.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fenced {
    pub(super) epoch_floor: i32,
}

/// Serve clients again.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Release {
    pub(super) topic: String,
    pub(super) topic_id: TopicKey,
    pub(super) attempt: u64,
}

/// Mirror the topic that was a mirror until now.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reverse {
    pub(super) topic: String,
    pub(super) topic_id: TopicKey,
    pub(super) by: String,
    pub(super) attempt: u64,
    pub(super) source_topic: String,
    pub(super) source_topic_id: TopicKey,
    /// Where its cluster is, if there is no link to it yet.
    pub(super) bootstrap: String,
}

/// Done; nothing to say.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Nothing {}
