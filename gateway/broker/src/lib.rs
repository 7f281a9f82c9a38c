//! What the leaders of partitions and the coordinators of groups and transactions decide, without I/O.
//!
//! Each module is a state machine: time and input come in, outputs come out. The node (`gateway/src`) carries
//! them out, and the simulator (`jepsen/src`) runs them on a clock, disks and a network of its own. The crate
//! depends on nothing that knows threads, sockets or files; `cargo xtask tidy` holds that.
//!
//! | module | decides |
//! | --- | --- |
//! | [`partition`], [`producer`] | what a leader appends, which batches repeat, what readers may see |
//! | [`replica`] | what is around the log of one partition on one node: where its blobs are read |
//! | [`cleaner`] | which records of a log are the last of their key |
//! | [`group`] | consumer groups of both protocols |
//! | [`share`] | share groups: members, and which records of a partition are in flight |
//! | [`transaction`] | transactions of producers |
//! | [`coordinator`] | what coordinators do around their logs: loading, writing, snapshots |
//! | [`coordination`] | what coordinators keep in internal partitions |
//! | [`quota`] | who may use how much of a quota at which node |

pub mod cleaner;
mod compact;
pub mod coordination;
pub mod coordinator;
pub mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod group;
pub mod partition;
pub mod producer;
pub mod quota;
pub mod replica;
pub mod share;
pub mod transaction;
