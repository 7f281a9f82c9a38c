//! Mirrors of topics of other clusters: `mirror.*`.

mod lease;
mod rules;
mod succession;

use std::collections::{BTreeMap, VecDeque};

use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_mirror::digest::{BatchSum, Digest};
use serde::{Deserialize, Serialize};

pub use self::lease::{
    ContractReport, Granted, Heard, LeaseReport, LeaseState, Leased, MirrorPosition, Needed,
    Position, Positions, SourceLease, Verdict,
};
pub use self::rules::{DeleteRule, Policy, PutRule, RuleReport, Subject};
pub use self::succession::{
    Act, Divergent, Fence, Fenced, LastReport, MirrorsReport, Progress, Rejoin, RejoinReport,
    Release, Reverse, StandingReport, Step, Switchover, TopicKey, WhatNext,
};
use crate::Besides;
use crate::words::words;

words! {
    /// What operators want of a mirror.
    Stage {
        /// Its topic is about to be created.
        Creating = "creating",
        /// It follows its source.
        Mirroring = "mirroring",
        /// An operator paused it.
        Paused = "paused",
        /// It is being promoted: no client writes to it.
        Promoting = "promoting",
        /// It is being promoted, and never follows its source again.
        Detached = "detached",
        /// It is a topic like any other.
        Promoted = "promoted",
    }
}

/// Creates a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// Its name here.
    pub topic: String,
    /// The link to its source.
    pub link: String,
    /// Its name at the source, if that is another.
    pub source_topic: Option<String>,
    /// What becomes of it when its source is deleted: it stops, if not said.
    pub on_delete: Option<Policy>,
    /// What becomes of it when its source is recreated: it stops, if not said.
    pub on_recreate: Option<Policy>,
}

/// Makes a mirror a topic like any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promote {
    /// Its name.
    pub topic: String,
    /// Even if nothing keeps the source from taking records.
    #[serde(default)]
    pub is_forced: bool,
}

/// A mirror.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MirrorReport {
    /// Its name.
    pub topic: String,
    /// The link to its source.
    pub link: String,
    /// Its name at the source.
    pub source_topic: String,
    /// The id of the topic that had this name when the mirror was created.
    pub source_topic_id: String,
    /// What operators want of it.
    pub stage: Stage,
    /// Whether its link rests.
    pub is_link_paused: bool,
    /// How many partitions it has here.
    pub partitions: usize,
    /// Configs of the source that this cluster does not know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored_configs: Vec<String>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

words! {
    /// What a mirrored partition does, or why it does nothing.
    PartitionState {
        /// It compares identity and lineage with the source before it fetches.
        Verifying = "verifying",
        /// It fetches, and is not at the end of the source yet.
        CatchingUp = "catching-up",
        /// It has all the source has committed, or is a moment behind.
        Mirroring = "mirroring",
        /// An operator paused the link or the mirror.
        Paused = "paused",
        /// Its own log cannot be opened or read.
        Unreadable = "unreadable",
        /// The source does not answer, or has no leader.
        SourceUnreachable = "source-unreachable",
        /// The source does not let the link read the topic.
        SourceRefused = "source-refused",
        /// The source has no such topic or partition any more.
        SourceDeleted = "source-deleted",
        /// The source's topic of this name is another one, or another cluster answers.
        SourceRecreated = "source-recreated",
        /// The source's log ends before the mirror's.
        SourceTruncated = "source-truncated",
        /// The source has other records at offsets that the mirror has too.
        Diverged = "diverged",
        /// The source has no records any more that the mirror needs next.
        Gap = "gap",
        /// What the source sends can't be kept.
        Unsupported = "unsupported",
    }
}

/// A mirrored partition, as the node that leads it says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartitionReport {
    /// The mirror's name.
    pub topic: String,
    /// Its index.
    pub partition: u32,
    /// The node that says it.
    pub node: u32,
    /// What it does.
    pub state: PartitionState,
    /// In words.
    pub reason: String,
    /// What to do about it, if anything.
    pub advice: Option<String>,
    /// Offset after the last mirrored record; `None` while that cannot be read.
    pub end_offset: Option<i64>,
    /// Where the source was last seen to end.
    pub source_end_offset: Option<i64>,
    /// How long ago that was, at most: what the source took since is in no figure.
    #[serde(default)]
    pub source_seen_ms_ago: Option<u64>,
    /// Records that are missing here.
    pub lag_records: u64,
    /// Their bytes, about.
    pub lag_bytes: u64,
    /// How long the oldest of them has been missing, in milliseconds.
    pub lag_ms: u64,
    /// Bytes of batches since the node began to follow.
    #[serde(default)]
    pub mirrored_bytes: u64,
    /// How far the source lets its mirrors be behind (`mirror.max.lag.ms`).
    #[serde(default)]
    pub source_lag_max_ms: Option<u64>,
    /// How the lease of its source is, if its link has one.
    #[serde(default)]
    pub source_lease: Option<SourceLease>,
    /// Records a second that the source has taken lately.
    #[serde(default)]
    pub source_records_per_second: Option<f64>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

words! {
    /// What was done about a committed offset of the source.
    Carried {
        /// It is here as it is at the source.
        Carried = "carried",
        /// The source's is beyond what is mirrored: it is at the end of the mirror.
        Clamped = "clamped",
        /// Consumers here have gone further: it was left alone.
        AheadHere = "ahead-here",
        /// The group has members here: it was left alone.
        ActiveHere = "active-here",
        /// It was committed here meanwhile: the next look judges it anew.
        ChangedHere = "changed-here",
        /// The partition is not here, or has no leader: the next look tries again.
        NotHere = "not-here",
        /// The coordinator here refused it: the next look tries again.
        Refused = "refused",
    }
}

/// A committed offset of the source, and what was done about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CarriedPosition {
    /// The group.
    pub group: String,
    /// The topic here.
    pub topic: String,
    /// The partition's index.
    pub partition: i32,
    /// At the source.
    pub source_offset: i64,
    /// Here, if it has one.
    pub offset: Option<i64>,
    /// What was done.
    pub state: Carried,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// Something that followed by itself, or could not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// What it is about.
    pub topic: String,
    /// What happened.
    pub what: String,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// What follows over a link besides records, as the node says that sees to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StewardReport {
    /// The link.
    pub link: String,
    /// The node.
    pub node: u32,
    /// Why the last look failed, if it did.
    pub failure: Option<String>,
    /// Topics that a rule takes and that cannot be mirrored, with the reason.
    #[serde(default)]
    pub refused: BTreeMap<String, String>,
    /// What happened, oldest first.
    #[serde(default)]
    pub events: VecDeque<Event>,
    /// Committed offsets.
    #[serde(default)]
    pub groups: Vec<CarriedPosition>,
    /// Why committed offsets were not carried in the last look, if they were not.
    #[serde(default)]
    pub groups_failure: Option<String>,
    /// Groups of the source that are not looked at, and how many of one of its brokers are at most.
    #[serde(default)]
    pub groups_left_out: Option<(usize, usize)>,
    /// For whom quotas are others at the source and this cluster's own here, and which they are.
    #[serde(default)]
    pub own_quotas: BTreeMap<String, String>,
    /// Why quotas were not followed in the last look, if they were not.
    #[serde(default)]
    pub quotas_failure: Option<String>,
    /// Access rules of the source that are not set here, and why.
    #[serde(default)]
    pub acls_left_out: BTreeMap<String, String>,
    /// Why access rules were not followed in the last look, if they were not.
    #[serde(default)]
    pub acls_failure: Option<String>,
    /// Credentials of the source's users that are not set here, and why.
    #[serde(default)]
    pub users_left_out: BTreeMap<String, String>,
    /// Why users were not followed in the last look, if they were not.
    #[serde(default)]
    pub users_failure: Option<String>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

words! {
    /// What is different.
    DifferenceKind {
        /// Both have a batch there, of other bytes.
        OtherBytes = "other-bytes",
        /// Only the mirror has it.
        OnlyHere = "only-here",
        /// Only the source has it.
        OnlyAtSource = "only-at-source",
    }
}

/// Where a mirror differs from its source, to the batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// First offset of the batches.
    pub from: i64,
    /// Last offset of the batches.
    pub to: i64,
    /// What is different.
    pub kind: DifferenceKind,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// What comparing a partition with its source has found so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditReport {
    /// The mirror's name.
    pub topic: String,
    /// The partition's index.
    pub partition: u32,
    /// Up to where what was mirrored last is equal.
    pub verified_offset: Option<i64>,
    /// How often all of the log was found to be equal.
    pub passes_count: u64,
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Where it differs.
    pub differences: Vec<Difference>,
    /// Why nothing is compared, if so.
    pub failure: Option<String>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// Compares a partition with its source for some seconds. Asked of its leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verify {
    /// The mirror's name.
    pub topic: String,
    /// The partition's index.
    pub partition: u32,
    /// Where to begin: where the log begins, if not said.
    pub from: Option<i64>,
    /// Where to end: where the log ends, if not said.
    pub to: Option<i64>,
}

/// What was compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifyReport {
    /// The mirror's name.
    pub topic: String,
    /// The partition's index.
    pub partition: u32,
    /// First offset that was compared.
    pub from: i64,
    /// Where to go on, unless it is `to`.
    pub next: i64,
    /// Offset after the last one that is to be compared.
    pub to: i64,
    /// Batches compared.
    pub batches: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Where they differ.
    pub differences: Vec<Difference>,
    /// Whether the source digested its records itself, and they did not cross the link.
    pub is_digested: bool,
}

/// Digests a stretch of a partition's log. Asked of its leader by the cluster that mirrors it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestStretch {
    /// The topic's id.
    pub topic: TopicId,
    /// The partition's index.
    pub partition: u32,
    /// Batches that begin from here on ...
    pub from: Offset,
    /// ... and before this.
    pub to: Offset,
    /// Whether the sum of each batch is wanted.
    pub has_sums: bool,
}

/// The digest of a stretch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StretchDigest {
    /// First offset that can be read.
    pub start: Offset,
    /// Of all its batches.
    pub digest: Digest,
    /// Of each batch, if they are wanted.
    pub sums: Vec<BatchSum>,
}
