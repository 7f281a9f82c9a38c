//! What of a group outlives its coordinator. Persisted through postcard: **append only**, and a
//! changed meaning needs a new version in `coordination/group_record.rs`.

use serde::{Deserialize, Serialize};

/// A group of the classic protocol as of its last assignment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassicImage {
    /// The generation.
    pub generation: i32,
    /// Kind of the group, such as `consumer`.
    pub protocol_type: String,
    /// The way of assignment that was chosen.
    pub protocol: String,
    /// The member that assigned.
    pub leader: Option<String>,
    /// Its members; none if it is empty.
    pub members: Vec<ClassicMemberImage>,
}

/// A member of such a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassicMemberImage {
    /// The member.
    pub member_id: String,
    /// What it is called across restarts, if it is static.
    pub instance_id: Option<String>,
    /// What the client calls itself.
    pub client_id: String,
    /// Where it is.
    pub client_host: String,
    /// Without a heartbeat for this long it is dropped.
    pub session_timeout_ms: u32,
    /// How long others wait for it in a rebalance.
    pub rebalance_timeout_ms: u32,
    /// What it wants, in the way of assignment that was chosen.
    pub subscription: Vec<u8>,
    /// What it is to do.
    pub assignment: Vec<u8>,
}
