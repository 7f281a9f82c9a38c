//! The leaf every other crate stands on: ids, log positions, topology, the quorum predicates and
//! the seams to clock, disk and chance.
//!
//! Owns: the vocabulary. Never does: I/O, threads, clocks, randomness, logging.
//! A type enters here only when two crates need it.
//!
//! Source of the quorum predicates: `docs/architecture.md`, section "Quorums".

pub mod env;
#[cfg(feature = "test-support")]
pub mod fuzz;
pub mod id;
pub mod position;
pub mod quorum;
pub mod retry;
pub mod sync;
pub mod topology;
