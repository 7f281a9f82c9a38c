//! The metadata plane: one Raft group that decides ownership and configuration.

pub mod command;
pub mod config;
pub mod detector;
pub mod error;
pub mod log;
pub mod membership;
pub mod metrics;
pub mod node;
pub mod placement;
pub mod snapshot;
pub mod state;
pub mod store;
pub mod supervisor;
