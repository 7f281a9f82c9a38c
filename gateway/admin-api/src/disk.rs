//! A node's disk: `disk.*`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Besides;
use crate::words::words;

words! {
    /// What a disk is in its group, as far as its node knows.
    Standing {
        /// No configuration was given since the mount.
        Unconfigured = "Unknown",
        /// The group has no slot of this node.
        NotMember = "NotMember",
        /// The group knows another life of this disk.
        OtherLife = "OtherLife",
        /// This life is known, but has yet to sync.
        LostData = "LostData",
        /// It counts.
        Good = "Good",
    }
    /// A word of a newer node.
    else Other
}

words! {
    /// What the scrub of a disk does.
    ScrubState {
        /// Nothing: it is not due.
        Idle = "idle",
        /// It waits for its turn.
        Waiting = "waiting",
        /// It reads.
        Running = "running",
    }
}

/// What a disk was found to be when it was mounted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MountedAs {
    /// The node's disk, as it was left.
    Same,
    /// The node's first disk.
    First,
    /// An empty disk in place of the one that was known.
    Blank,
    /// An older copy of the disk.
    Stale,
    /// The node's disk, whose node ended before the disk had begun the life that it was given with its slot.
    LifeNotBegun,
    /// The node's disk, which has found durable records of its own missing or unreadable.
    Damaged,
    /// The disk of another node.
    OfNode(u32),
    /// What a newer node says.
    #[serde(untagged)]
    Unknown(Value),
}

impl std::fmt::Display for MountedAs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Same => f.write_str("same"),
            Self::First => f.write_str("first"),
            Self::Blank => f.write_str("blank"),
            Self::Stale => f.write_str("stale"),
            Self::LifeNotBegun => f.write_str("life-not-begun"),
            Self::Damaged => f.write_str("damaged"),
            Self::OfNode(node) => write!(f, "disk of node {node}"),
            Self::Unknown(Value::String(text)) => f.write_str(text),
            Self::Unknown(value) => value.fmt(f),
        }
    }
}

/// Begins a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    /// Do not wait while another disk of the group is being scrubbed.
    pub now: bool,
}

/// A disk, as its node knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its node.
    pub node: u32,
    /// What it is in its group.
    pub standing: Standing,
    /// What it was found to be when it was mounted.
    pub mounted_as: Option<MountedAs>,
    /// Which life it is in.
    pub incarnation: u64,
    /// Which mount of this life it is.
    pub mount_epoch: u64,
    /// Bytes of journal files.
    pub used_bytes: u64,
    /// Bytes of them that are still needed.
    pub live_bytes: u64,
    /// Bytes that the file system has left.
    pub free_bytes: u64,
    /// Checksum failures since the start.
    pub corrupt: u64,
    /// Damaged blobs that were written anew.
    pub repaired: u64,
    /// Damaged blobs that are not mended yet.
    pub unreadable: u32,
    /// Whether some of them are being fetched from peers.
    pub mending: bool,
    /// Whether a file with a damaged head is being emptied.
    pub emptying: bool,
    /// How far its scrub is.
    pub scrub: ScrubProgress,
    /// Where it lies, if there is a capacity disk too.
    #[serde(default)]
    pub tiers: Option<Tiers>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// A disk that is two: a fast one, and one of capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tiers {
    /// Bytes that the fast one may hold.
    pub fast_bytes: u64,
    /// Bytes that it holds.
    pub fast_used_bytes: u64,
    /// Bytes that the capacity disk holds.
    pub capacity_used_bytes: u64,
    /// Files moved to it since the start.
    pub moved_files: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Files begun on it, because the fast one was full.
    pub spilled_files: u64,
    /// Moves that failed.
    pub failed_moves: u64,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// How far a scrub is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScrubProgress {
    /// What it does.
    pub state: ScrubState,
    /// The journal file that is being read.
    pub file: u32,
    /// The last one of this pass.
    pub last_file: u32,
    /// Bytes checked since the start, over all passes.
    pub checked_bytes: u64,
    /// Passes ended since the start.
    pub passes: u64,
    /// When the pass under way began, in milliseconds since 1970.
    pub began_at_ms: Option<i64>,
    /// When the last pass ended, or the disk was first seen, in milliseconds since 1970.
    pub ended_at_ms: i64,
    /// When the next pass is due, in milliseconds since 1970.
    pub due_at_ms: Option<i64>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}
