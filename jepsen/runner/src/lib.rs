//! Breaks clusters of real processes, and judges what their clients saw.
//!
//! ```text
//!   workload ---- clients ----> nine `meridian serve` <---- nemesis
//!      |      (own protocol)     in namespaces, joined     (signals, switch,
//!      v                         by a userspace switch      shim for disk and clock)
//!   history (EDN, as Jepsen's) ---> checkers ---> verdict, report.html
//! ```
//!
//! **Owns** real time, real processes, real sockets; everything by chance is drawn from the seed, but
//! what the cluster makes of it is not repeatable: the simulator (`meridian-jepsen sim`) is.
//!
//! **Never does** anything to the binary under test: it is the one that is shipped. Faults of disks and
//! clocks come from a shim in front of the C library, those of the network from the switch.

pub mod chance;
pub mod command;
pub mod hostile;
pub mod pair;
pub mod scale;
pub mod teeth;

mod check;
mod client;
mod clock;
mod cluster;
mod cost;
mod disk;
mod edn;
mod failure;
mod history;
mod nemesis;
mod net;
mod report;
mod run;
mod workload;

pub use failure::Failure;
