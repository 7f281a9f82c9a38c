//! The metadata plane: one Raft group that decides ownership and configuration.

pub mod command;
pub mod error;
pub mod membership;
pub mod state;
