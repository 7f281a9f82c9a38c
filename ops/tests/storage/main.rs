//! What the disks of real processes hold: spares that take over from those that are lost, records that
//! become stripes, bits that flip.
//!
//! ```text
//! groups two groups, and topics that move from one to the other
//! heal   nodes are lost, replaced, rest, leave, and come back
//! cold   bytes on disk per byte written, and what may be lost then
//! object cold records in an object store, while nodes are killed
//! lines  what was written, and must be read back
//! racks  eight racks in one datacenter, of which two are lost
//! rot    bits that flip
//! surplus a slot that stutters, and the copies that it leaves
//! tiers  a node with two disks is killed while files move
//! ```

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]
#![allow(clippy::disallowed_methods, reason = "these tests watch real processes in real time")]

#[path = "../cluster/check.rs"]
mod check;
mod cold;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../common/mod.rs"]
mod common;
mod groups;
mod heal;
mod lines;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../cluster/load.rs"]
mod load;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../cluster/nodes.rs"]
mod nodes;
mod object;
mod racks;
mod rot;
mod surplus;
mod tiers;

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// For what nodes do by themselves, on a slow machine.
const WITHIN: Duration = Duration::from_secs(120);

/// One cluster at a time: a machine of two cores is full with it.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells whoever watches the tests, whether they fail or not.
#[allow(clippy::explicit_write, reason = "what is printed is hidden until a test fails")]
fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").unwrap();
}
