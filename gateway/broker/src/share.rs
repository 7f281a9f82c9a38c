//! Share groups (KIP-932): partitions whose records any member of a group may take, one by one.
//!
//! ```text
//! log          ... 4 5 6 7 8 9 ...
//! leader           [ SharePartition: who holds which record, and until when ]
//!                       | Delta, numbered          ^ ShareState at a takeover
//!                       v                          |
//! coordinator      [ ShareState: a record in the group's log for each partition ]
//! ```
//!
//! The leader of a partition owns the window of records in flight ([`SharePartition`]), and writes what must outlive
//! it through to the group's coordinator ([`ShareState`]). An acknowledgement is answered when its delta is
//! committed there. See `docs/decisions/0058-share-groups.md`.

mod group;
mod keeping;
mod partition;
mod ranges;
mod state;
#[cfg(test)]
mod tests;

pub use self::group::{
    ShareGroup, ShareGroupImage, ShareGroupLimits, ShareHeartbeat, ShareMember, ShareMemberImage,
};
pub use self::keeping::{ShareAnswer, ShareAsk, ShareQuestion};
pub use self::partition::{
    AckError, AckRange, AckType, AcquireMode, Acquired, Answer, ReadBatch, ShareLimits,
    SharePartition, Wanted,
};
pub use self::ranges::{Ranges, Run};
pub use self::state::{Delivery, Delta, Opening, ShareError, ShareImage, ShareState};
