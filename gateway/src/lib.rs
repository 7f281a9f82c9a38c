//! The node: Kafka front, partition leaders and the real runtime.
//!
//! Owns: the one server process. `runtime` holds the only real effects (clock, disk, QUIC);
//! `partition`, `producer`, `group`, `transaction`, `coordination` and `health` decide without I/O; `log` and `meta`
//! carry their decisions out; `kafka` speaks to clients, `admin` to operators; `node` wires them.

mod admin;
mod background;
pub mod broker;
pub mod cleaner;
pub mod client;
mod compact;
pub mod config;
pub mod coordination;
mod features;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod group;
mod health;
pub mod kafka;
pub mod log;
mod meta;
mod mirror;
mod node;
pub mod partition;
pub mod peers;
pub mod producer;
pub mod runtime;
mod storage_class;
pub mod transaction;

pub use admin::AdminBindError;
pub use node::{CompactionConfig, RunningNode, StartError, start};
