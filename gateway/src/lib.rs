//! The node: Kafka front, partition leaders and the real runtime.
//!
//! Owns: the one server process. `runtime` holds the only real effects (clock, disk, QUIC);
//! `meridian-broker` and `health` decide without I/O; `log` and `meta` carry their decisions out; `kafka` speaks to
//! clients, `mirror` to other clusters, `admin` to operators; `node` is what a node does by itself, `start` puts all
//! together. Each room imports only those below it (`cargo xtask tidy` holds the list).

mod admin;
mod admin_api;
pub mod broker;
mod cluster_time;
pub mod config;
mod context;
mod features;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod health;
pub mod kafka;
mod linked_topics;
pub mod log;
pub mod meta;
mod mirror;
mod node;
pub mod peers;
mod start;
mod topic_config;

use meridian_broker::{cleaner, coordination, group, partition, producer, transaction};
use meridian_runtime::background;
use {meridian_client as client, meridian_runtime as runtime};

pub use admin::AdminBindError;
pub use kafka::first_start::{FirstStart, FirstStartError};
pub use start::{RunningNode, StartError, check, start};
