//! The simulator: a whole cluster in one thread on virtual time, with faults and checkers.
//!
//! Owns: the simulated world ([`world`]: network, disks, metadata log), what breaks it ([`faults`]),
//! what uses it ([`workload`]), and what it promises ([`check`]). The code under test is the real
//! one: stores, takeovers and leaders of `meridian-storage`, partitions and coordinators of
//! `meridian-broker`, the state machine and the supervisor of `meridian-consensus`.
//!
//! Never does: real time, real I/O, randomness that is not grown from the seed. The same seed gives
//! the same trace, byte for byte ([`trace`]).

mod application;
pub mod broken;
pub mod broker;
pub mod check;
pub mod command;
pub mod cost;
pub mod decisions;
mod describe;
pub mod desk;
pub mod disk;
pub mod faults;
mod federation;
pub mod keyed;
pub mod link;
pub mod matrix;
#[cfg(feature = "mutations")]
pub mod mutations;
pub mod net;
pub mod node;
pub mod objects;
pub mod queue;
mod read;
pub mod report;
pub mod scenarios;
pub mod seat;
pub mod sim;
pub mod sourced;
pub mod topics;
pub mod trace;
mod transactor;
pub mod value;
pub mod workload;
pub mod world;
