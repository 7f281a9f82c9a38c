//! What mirrors tell their source while they follow it: how far they are, and the lease that it writes under.

use meridian_mirror::lease::Stamp;
use serde::{Deserialize, Serialize};

use super::TopicKey;
use crate::Besides;
use crate::words::words;

/// Up to where a cluster has partitions of this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Positions {
    /// The cluster.
    pub cluster: String,
    /// Those of partitions that the node leads.
    pub positions: Vec<Position>,
    /// What it grants, if its link has a lease.
    #[serde(default)]
    pub lease: Option<Granted>,
}

/// Up to where one partition is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The topic here.
    pub topic_id: TopicKey,
    /// The partition's index.
    pub partition: u32,
    /// Offset after the last durable record.
    pub end_offset: i64,
}

/// What a mirror's node grants to a leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// For these.
    pub partitions: Vec<Leased>,
    /// For how long.
    pub length_ms: u64,
    /// What that leader answered last; `None` if nothing is granted now, and a stamp is asked for.
    pub stamp: Option<Stamp>,
}

/// A partition, as the writer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leased {
    /// The topic here.
    pub topic_id: TopicKey,
    /// The partition's index.
    pub partition: u32,
}

/// What the leader answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// When it heard, by its own clock.
    #[serde(default)]
    pub stamp: Option<Stamp>,
    /// The topics asked for that are written to under a lease only.
    #[serde(default)]
    pub needs: Vec<Needed>,
}

/// A topic that needs a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needed {
    /// The topic.
    pub topic_id: TopicKey,
    /// The cluster that grants it.
    pub of: String,
}

words! {
    /// How the lease of a partition is.
    LeaseState {
        /// Producers are let in.
        Held = "lease-held",
        /// Producers are refused.
        Missing = "lease-missing",
    }
}

/// The lease of a partition, as its leader has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// The topic.
    pub topic: String,
    /// The partition's index.
    pub partition: u32,
    /// The cluster that grants it.
    pub cluster: String,
    /// How it is.
    pub state: LeaseState,
    /// For how long it is held still.
    pub left_ms: Option<u64>,
    /// For how long it has been missing, unless this leader never had one.
    pub missing_ms: Option<u64>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// How the lease of a mirror's source is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum SourceLease {
    /// This cluster grants it, so the mirror may be promoted.
    Granted,
    /// Another cluster grants it.
    GrantedBy(String),
    /// The source takes records without one.
    NotNeededYet,
    /// What a newer node says.
    Unknown(String),
}

const GRANTED: &str = "granted";
const GRANTED_BY: &str = "granted-by ";
const NOT_NEEDED_YET: &str = "not-needed-yet";

impl From<String> for SourceLease {
    fn from(text: String) -> Self {
        match text.as_str() {
            GRANTED => Self::Granted,
            NOT_NEEDED_YET => Self::NotNeededYet,
            _ => match text.strip_prefix(GRANTED_BY) {
                Some(cluster) => Self::GrantedBy(cluster.to_owned()),
                None => Self::Unknown(text),
            },
        }
    }
}

impl From<SourceLease> for String {
    fn from(lease: SourceLease) -> Self {
        lease.to_string()
    }
}

impl std::fmt::Display for SourceLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Granted => f.write_str(GRANTED),
            Self::GrantedBy(cluster) => write!(f, "{GRANTED_BY}{cluster}"),
            Self::NotNeededYet => f.write_str(NOT_NEEDED_YET),
            Self::Unknown(text) => f.write_str(text),
        }
    }
}

words! {
    /// Whether producers of a topic with `mirror.max.lag.ms` are let in.
    Verdict {
        /// They are.
        Free = "free",
        /// They are slowed.
        Throttled = "throttled",
        /// They are not: its mirrors are too far behind.
        Refused = "refused",
    }
}

/// How far the mirrors of a partition are that are bound to be near, as its leader knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContractReport {
    /// The topic.
    pub topic: String,
    /// The partition's index.
    pub partition: u32,
    /// How far it may be ahead of its mirrors.
    pub max_lag_ms: u64,
    /// How far it is.
    pub lag_ms: u64,
    /// What that means for producers.
    pub verdict: Verdict,
    /// What mirrors have said.
    pub mirrors: Vec<MirrorPosition>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// What a mirror has said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MirrorPosition {
    /// Its cluster.
    pub cluster: String,
    /// Offset after its last durable record.
    pub end_offset: i64,
    /// When it said so.
    pub heard_ms_ago: u64,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}
