//! Quotas that hold for the whole cluster (ADR 0059): who may use how much of a rate at which node. Pure.
//!
//! ```text
//! node: what clients use, a bucket for each entity ([`node`])
//!    | every 100 ms: demand               ^ share of the rate, for a second
//!    v                                    |
//! home: the node that divides the rate ([`home`]), found by the hash of the entity ([`view`])
//! ```
//!
//! * A home lends no more than the rate: a share grows only by what others are known to have given up.
//! * A share is a lease: it counts from when the node asked, and its home counts it for longer than the node does.
//! * A home that is new, or may have missed that another was one, lends nothing until the leases of any other have ended.
//! * A node without a lease begins with a small part of the rate. If its home is silent, it goes over to the rate divided
//!   by the number of nodes.
//! * What somebody has used beyond its share is paid out of later shares: a bucket in debt is never emptied or forgotten.

pub mod bucket;
pub mod fill;
pub mod home;
pub mod message;
pub mod node;
pub mod view;

use std::time::Duration;

/// How often a node tells homes what it needs.
pub const REPORT_EVERY: Duration = Duration::from_millis(100);
/// How long a share holds, from when the node asked for it.
pub const LEASE: Duration = Duration::from_secs(1);
/// A home counts a lease for longer, by this much: clocks of two hosts do not go equally fast.
const CLOCK_MARGIN: Duration = Duration::from_millis(100);
/// A home lends only while it knows that it had all that was decided so long ago at most.
pub const VIEW_AGE_MAX: Duration = Duration::from_secs(1);
/// In this time a node whose home is silent goes from its share to its part of the rate.
pub const FALL: Duration = Duration::from_secs(2);
/// An entity without traffic for this long is not talked about.
const IDLE_AFTER: Duration = Duration::from_secs(2);
/// Entities that a node asks shares for. For those beyond it has the rate divided by the number of nodes.
pub const SHARED_COUNT_MAX: usize = 1000;
/// A node that needs little has this part of the rate, divided by the number of nodes.
const FLOOR_PART: f64 = 1.0 / 20.0;

/// What a node may use that its home has not answered yet, or that needs hardly anything: units in a second.
pub fn floor(per_second: f64, node_count: usize) -> f64 {
    per_second * FLOOR_PART / node_count.max(1) as f64
}

/// What a quota is shared by, as nodes name it to each other: the head of a SHA-256, because clients choose the
/// names behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId([u8; Self::SIZE_BYTES]);

impl EntityId {
    /// Size of an id.
    pub const SIZE_BYTES: usize = 16;

    /// The id of a kind of traffic, by its number, and the key of who shares the quota.
    pub fn of(kind: u8, key: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, &[&[kind], key].concat());
        let mut id = [0; Self::SIZE_BYTES];
        id.iter_mut().zip(digest.as_ref()).for_each(|(to, from)| *to = *from);
        Self(id)
    }

    /// Wraps the bytes of an id.
    pub const fn from_bytes(bytes: [u8; Self::SIZE_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes of the id.
    pub const fn to_bytes(self) -> [u8; Self::SIZE_BYTES] {
        self.0
    }
}
