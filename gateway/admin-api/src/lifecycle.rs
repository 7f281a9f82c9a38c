//! Nodes that rest, leave or are replaced: `lifecycle.*`.

use serde::{Deserialize, Serialize};

use crate::Besides;
use crate::cluster::Liveness;
use crate::words::words;

words! {
    /// What a node's lease is for.
    Purpose {
        /// It will be back: it leads nothing meanwhile, and keeps its slot.
        Rest = "rest",
        /// It leaves for good: its slot moves too, and then it is forgotten.
        Leave = "leave",
    }
}

/// Gives a node's slot to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replace {
    /// The node whose slot it is.
    pub node: u32,
    /// The node that takes the slot; the best spare if absent.
    pub with: Option<u32>,
}

/// Where a node stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stand {
    /// Its id.
    pub node: u32,
    /// Whether the cluster knows it still.
    pub registered: bool,
    /// What the cluster thinks of it.
    pub liveness: Option<Liveness>,
    /// Its permission to be away.
    pub lease: Option<Purpose>,
    /// The index of its slot.
    pub slot: Option<usize>,
    /// Partitions that it leads.
    pub leaders: usize,
    /// The node that took the slot, by `lifecycle.replace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<u32>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

impl Stand {
    /// Whether the cluster has forgotten it. While its lease is held it would be removed again as soon as it came
    /// back.
    pub fn is_forgotten(&self) -> bool {
        !self.registered && self.lease.is_none()
    }
}
