//! Federation: mirrors of remote topics that keep every offset and every byte.
//!
//! **Owns** what a link and a mirror topic are ([`rows`], [`options`]), the state machine of one
//! mirrored partition ([`partition`]), the names of its states ([`state`]), what follows a source by
//! itself: topics by pattern ([`rules`]), deletions ([`vigil`]), positions of groups ([`groups`]),
//! quotas, access rules and users ([`quotas`], [`rights`]); and
//! who writes to a topic next ([`succession`], [`switchover`], [`rejoin`], [`seed`]); and how far a mirror may be
//! behind before its source refuses records ([`contract`]), and how a writer knows that it is the only
//! one ([`lease`]). **Never does** I/O, reads no clock, speaks no protocol: the embedder fetches, appends
//! and tells what came of it.
//!
//! ```text
//! source cluster -> Input::Fetched -> +-----------------+ -> Output::Append(expected) -> own log
//!                <- Output::Fetch   <- | MirrorPartition | <- Input::Committed
//!                                      +-----------------+
//!                                      identity, lineage, overlap, gaps: rules F2, F4
//! ```
//!
//! The position is the end of the own log and nothing else (rule F2): there is no checkpoint that
//! could be ahead of it or behind.
//!
//! **Source**: DESIGN.md section 9; OffsetForLeaderEpoch as in KIP-101, KIP-279 and KIP-320.

pub mod allowance;
pub mod contract;
pub mod digest;
pub mod groups;
mod lag;
pub mod lease;
pub mod mutation;
pub mod options;
pub mod partition;
mod pipeline;
mod portion;
pub mod quotas;
pub mod rejoin;
pub mod rights;
pub mod rows;
pub mod rules;
pub mod seed;
pub mod state;
pub mod succession;
pub mod switchover;
mod throttle;
pub mod vigil;

pub use lag::{Lag, Pace};
pub use pipeline::{Answered, Pipeline};
pub use portion::Portion;
pub use throttle::Throttle;
