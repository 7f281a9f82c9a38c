//! Who votes: identities in Raft and changes of the set of voters.

use std::fmt;

use meridian_base::id::NodeId;
use serde::{Deserialize, Serialize};

/// One life of a node's Raft log. A voter that lost its log comes back in a new life, because it
/// may have voted or acknowledged what it does not remember (rules M3, 36; KIP-853).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RaftLife(u32);

impl RaftLife {
    /// The life of the voters the cluster is bootstrapped with.
    pub const FIRST: Self = Self(1);

    /// Wraps a raw number.
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// The raw number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The life after this one.
    ///
    /// # Panics
    /// After 2^32 lives of one node.
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("raft life overflow"))
    }
}

/// A member of the Raft group: a node in one of its lives. Unique for all time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RaftId {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub life: RaftLife,
}

impl RaftId {
    /// The id of `node` among the voters of a new cluster.
    pub const fn first(node: NodeId) -> Self {
        Self { node, life: RaftLife::FIRST }
    }

    /// Builds the id from Raft's number, unless it is none.
    pub const fn from_raft(raw: u64) -> Option<Self> {
        let life = (raw >> 32) as u32;
        if life == 0 {
            return None;
        }
        Some(Self { node: NodeId::new(raw as u32), life: RaftLife(life) })
    }

    /// The number Raft knows the member by; never 0.
    pub const fn to_raft(self) -> u64 {
        (self.life.0 as u64) << 32 | self.node.get() as u64
    }
}

impl fmt::Debug for RaftId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}.{}", self.node, self.life.0)
    }
}

impl fmt::Display for RaftId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.life.0)
    }
}
