//! Every disk rots in every block: one after another, each mended from the others before the next one
//! goes, and all at once, at different places (rules S5, S6).

use std::time::Duration;

use meridian_storage::mutation::Mutations;

use super::{config, read_all, restart_all, until, world, write};
use crate::check::Verdict;
use crate::world::World;

/// How long two scrubs, each in its disk's turn, and all they mend may take.
const MENDED_WITHIN: Duration = Duration::from_secs(200);
/// Time for all disks, whose turns come one after another.
const ALL_MENDED_WITHIN: Duration = Duration::from_secs(900);

/// Bits flip in every 4 KiB of a disk in use, heads and payloads alike; once its scrub says that
/// all is mended, the same happens to the next. Then a bit flips in every block of all of them, so that
/// no blob has a whole copy. In the end all nodes restart, and the whole log is read from the disks.
pub fn bit_rot(mutations: Mutations) -> Verdict {
    let mut world = world(config(mutations))?;
    write(&mut world)?;
    for node in 0..world.nodes.len() {
        let passes = passes(&world, node);
        assert!(world.nodes[node].disk.rot("journal", 8) > 0, "something was written");
        until(&mut world, MENDED_WITHIN, "a rotten disk is mended", |world| {
            passes_when_whole(world, node).is_some_and(|now| now >= passes + 2)
        })?;
    }
    let all = 0..world.nodes.len();
    let before: Vec<u64> = all.clone().map(|node| passes(&world, node)).collect();
    for node in &mut world.nodes {
        assert!(node.disk.rot("journal", 1) > 0, "something was written");
    }
    until(&mut world, ALL_MENDED_WITHIN, "disks that are all rotten mend each other", |world| {
        let mut nodes = all.clone();
        nodes.all(|it| passes_when_whole(world, it).is_some_and(|now| now >= before[it] + 2))
    })?;
    restart_all(&mut world)?;
    read_all(&mut world)
}

fn passes(world: &World, node: usize) -> u64 {
    world.nodes[node].seat.as_ref().map_or(0, |seat| seat.scrub_status().passes)
}

fn passes_when_whole(world: &World, node: usize) -> Option<u64> {
    let status = world.nodes[node].seat.as_ref()?.scrub_status();
    (status.unreadable == 0 && !status.emptying).then_some(status.passes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disk_may_rot_in_its_turn_and_all_at_once() {
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
