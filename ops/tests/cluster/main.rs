//! Nine real processes and a real client: nothing that was acknowledged is lost, doubled or moved,
//! whatever breaks.
//!
//! ```text
//! scenarios  what is broken, and what must hold
//! nodes      the cluster
//! load       a steady producer that remembers every acknowledgement
//! check      reads everything back, and compares
//! group      a member of a consumer group
//! zombie     a client that keeps to a node which was replaced
//! wire       bytes on a socket
//! ```
//!
//! One line for each scenario goes to standard error. When one fails, the nodes' logs are kept.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]
#![allow(clippy::disallowed_methods, reason = "these tests watch real processes in real time")]

mod check;
#[path = "../common/mod.rs"]
mod common;
mod group;
mod load;
mod nodes;
mod scenarios;
mod wire;
mod zombie;

use self::scenarios::World;

#[test]
fn nothing_acknowledged_is_lost_whatever_breaks() {
    let world = World::start();
    world.scenario("a leader is killed", World::leader_is_killed);
    world.scenario("the rack of the metadata leader is killed", World::rack_is_killed);
    world.scenario("a DC and a rack of another are killed", World::dc_and_rack_are_killed);
    world.scenario("a frozen leader is replaced, and wakes up", World::leader_is_frozen);
    world.scenario("all nodes are killed", World::all_are_killed);
    world.scenario("a group's coordinator is killed", World::coordinator_is_killed);
    world.scenario("a disk is wiped, and then others are lost", World::disk_is_wiped);
    world.scenario("clients send nonsense", World::clients_send_nonsense);
    world.stop();
}
