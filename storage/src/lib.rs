//! The quorum log of one storage group, as state machines without I/O.
//!
//! Owns: what a disk stores and refuses ([`store`], rules S1-S5), what a partition's leader writes
//! and acknowledges ([`leader`], rules L1-L4), how the next leader takes over ([`takeover`],
//! rules T1-T9), and the journal format they rest on ([`journal`]).
//!
//! Never does: network, disk, clock, randomness, threads. Every machine is
//! `step(now, input) -> outputs`; the node (`gateway`) and the simulator (`jepsen`) carry the
//! outputs out.
//!
//! The rules are written down in `docs/protocol.md`.

pub mod blob;
pub mod codec;
pub mod cold;
pub mod config;
pub mod deleted;
pub mod erasure;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod hot;
mod index;
pub mod journal;
pub mod leader;
pub mod limits;
pub mod lineage;
pub mod manifest;
pub mod message;
pub mod mutation;
pub mod placement;
pub mod store;
pub mod takeover;
#[cfg(test)]
mod testing;
pub mod tier;
mod view;
mod wire;
