//! Every disk rots, one after another, in every block: each is mended from the others before the
//! next one goes (rules S5, S6).

use std::time::Duration;

use meridian_storage::mutation::Mutations;

use super::{PARTITION, go_on, world};
use crate::check::{Promise, Verdict, Violation};
use crate::world::World;

/// How long two scrubs, each in its disk's turn, and all they mend may take.
const MENDED_WITHIN: Duration = Duration::from_secs(200);
/// How long the whole log may take to be read.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// Bits flip in every 4 KiB of a disk in use, heads and payloads alike; once its scrub says that
/// all is mended, the same happens to the next. In the end all nodes restart, and the whole log is
/// read from the disks.
pub fn bit_rot(mutations: Mutations) -> Verdict {
    let mut world = world(mutations)?;
    for _ in 0..20 {
        world.rouse_producers();
        go_on(&mut world, Duration::from_millis(200))?;
    }
    world.clients.iter_mut().for_each(crate::workload::Client::stop);
    go_on(&mut world, Duration::from_secs(3))?;
    for node in 0..world.nodes.len() {
        let passes = passes(&world, node);
        assert!(world.nodes[node].disk.rot("journal") > 0, "something was written");
        until(&mut world, MENDED_WITHIN, "a rotten disk is mended", |world| {
            passes_when_whole(world, node).is_some_and(|now| now >= passes + 2)
        })?;
    }
    for node in 0..world.nodes.len() {
        world.stop_node(node);
    }
    for node in 0..world.nodes.len() {
        world.start_node(node)?;
    }
    go_on(&mut world, Duration::from_secs(2))?;
    world.metadata.appoint(PARTITION, world.nodes[1].id);
    world.announce_metadata();
    until(&mut world, READ_WITHIN, "the partition is served", |world| world.is_served(PARTITION))?;
    read_all(&mut world)
}

fn passes(world: &World, node: usize) -> u64 {
    world.nodes[node].seat.as_ref().map_or(0, |seat| seat.scrub_status().passes)
}

fn passes_when_whole(world: &World, node: usize) -> Option<u64> {
    let status = world.nodes[node].seat.as_ref()?.scrub_status();
    (status.unreadable == 0 && !status.emptying).then_some(status.passes)
}

fn read_all(world: &mut World) -> Verdict {
    for client in 0..world.clients.len() {
        let until = world.checker.visible_end(PARTITION);
        world.clients[client].begin_final_read(until);
        world.wake_client(client, Duration::ZERO);
    }
    until(world, READ_WITHIN, "the log is read to its end", |world| {
        world.clients.iter().any(|client| client.final_log().is_some())
    })?;
    let World { clients, checker, .. } = world;
    clients
        .iter()
        .filter_map(|client| client.final_log())
        .try_for_each(|(start, log)| checker.final_log(PARTITION, start, log))
}

fn until(
    world: &mut World,
    within: Duration,
    what: &str,
    done: impl Fn(&World) -> bool,
) -> Verdict {
    let deadline = world.now + within;
    while !done(world) {
        if world.now >= deadline {
            let disks: Vec<_> = world.nodes.iter().map(|node| node.seat.as_ref()).collect();
            let disks: Vec<_> =
                disks.into_iter().map(|seat| seat.map(crate::seat::Seat::scrub_status)).collect();
            let detail = format!("not within {within:?}: {what}; {disks:?}");
            return Err(Violation { promise: Promise::ServesAgain, detail });
        }
        go_on(world, Duration::from_millis(100))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disk_may_rot_in_its_turn() {
        assert_eq!(bit_rot(Mutations::NONE), Ok(()));
    }

    #[cfg(feature = "mutations")]
    #[test]
    fn each_broken_rule_shows() {
        use meridian_storage::mutation::Mutation;
        let broken =
            [Mutation::RepairUnchecked, Mutation::AbsenceIsProof, Mutation::ScrubForgetsFiles];
        for mutation in broken {
            assert!(bit_rot(Mutations(Some(mutation))).is_err(), "{mutation:?}");
        }
    }
}
