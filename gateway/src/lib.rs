//! The node: Kafka front, partition leaders and the real runtime.
//!
//! Owns: the one server process. `runtime` holds the only real effects (clock, disk, QUIC);
//! `meridian-broker` and `health` decide without I/O; `log` and `meta` carry their decisions out; `kafka` speaks to
//! clients, `admin` to operators; `node` wires them.

mod admin;
pub mod broker;
pub mod config;
mod features;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod health;
pub mod kafka;
pub mod log;
pub mod meta;
mod mirror;
mod node;
pub mod peers;
mod topic_config;

use meridian_broker::{cleaner, coordination, group, partition, producer, transaction};
use meridian_runtime::background;
use {meridian_client as client, meridian_runtime as runtime};

pub use admin::AdminBindError;
pub use kafka::first_start::{FirstStart, FirstStartError};
pub use node::{RunningNode, StartError, start};
