//! What one node knows of itself: `node.status`.

use serde::{Deserialize, Serialize};

use crate::Besides;
use crate::cluster::Condition;
use crate::disk::Standing;

/// A node, by its own account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnStatus {
    /// Its id.
    pub id: u32,
    /// Partitions that it leads and serves.
    pub leads: usize,
    /// Partitions that it owns and does not serve.
    pub taking_over: usize,
    /// Those of them whose logs are being taken over or rebuilt; the others have stopped.
    pub opening: usize,
    /// Its disk, if it has the storage role.
    pub disk: Option<DiskUse>,
    /// Its connections to the other nodes.
    pub peers: Vec<Peer>,
    /// What it finds of itself that stops or threatens writes.
    pub conditions: Vec<Condition>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// A node's disk, in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskUse {
    /// What it is in its group.
    pub standing: Standing,
    /// Which life it is in.
    pub incarnation: u64,
    /// Bytes of journal files.
    pub used_bytes: u64,
    /// Bytes of them that are still needed.
    pub live_bytes: u64,
    /// Bytes that the file system has left.
    pub free_bytes: u64,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// A connection to another node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// The other node.
    pub id: u32,
    /// Whether it answers.
    pub up: bool,
    /// Round-trip time in microseconds.
    pub rtt_us: u64,
    /// Bytes that wait to be sent.
    pub queued_bytes: usize,
    /// Bytes sent so far.
    pub sent_bytes: u64,
    /// Bytes received so far.
    pub received_bytes: u64,
    /// Packets lost so far.
    pub lost_packets: u64,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}
