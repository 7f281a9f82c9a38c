//! Two nodes lead under one generation: what no metadata log would do, and a restored backup might.
//! The stores must notice before two values are shown (rule S2).

use std::time::Duration;

use meridian_base::position::{Generation, LeaderEpoch};
use meridian_consensus::command::{Command, LeaderAssignment};
use meridian_storage::mutation::Mutations;

use super::{PARTITION, config, go_on, world};
use crate::check::{Promise, Verdict, Violation};
use crate::world::World;

/// The node that leads, and the one that should not.
const LEADER: usize = 0;
const RIVAL: usize = 5;
/// Longer than it takes them to notice.
const LATE: Duration = Duration::from_secs(20);

/// A second node leads under the first one's generation, both under load. It is as it should be if
/// the second leader stops because a key holds other bytes.
pub fn shared_generation(mutations: Mutations) -> Verdict {
    let mut world = world(config(mutations))?;
    match two_leaders(&mut world) {
        Err(Violation { promise: Promise::Invariant, .. }) => Ok(()),
        Err(violation) => Err(violation),
        Ok(()) => Err(Violation {
            promise: Promise::Invariant,
            detail: "two leaders share a generation, and nobody noticed".to_owned(),
        }),
    }
}

fn two_leaders(world: &mut World) -> Verdict {
    let expected = world.owner(PARTITION).map_or(Generation::NONE, |owner| owner.generation);
    // Half of the cluster does not hear of it, and then goes by a log in which another one leads.
    let half: Vec<usize> = (1..world.nodes.len()).step_by(2).collect();
    half.iter().for_each(|node| world.metadata_lag[*node] = LATE);
    world.assign(PARTITION, LEADER);
    go_on(world, Duration::from_secs(2))?;
    let (partition, epoch_floor) = (PARTITION, LeaderEpoch::UNKNOWN);
    let leader = world.nodes[RIVAL].id;
    let assignment = LeaderAssignment { partition, expected, leader, epoch_floor };
    let rival = world.decisions.proposal(Command::AssignLeaders(vec![assignment]));
    for node in half {
        world.with_node(node, |node, now, out| node.apply(now, &rival, out))?;
    }
    for _ in 0..10 {
        world.rouse_producers();
        go_on(world, Duration::from_secs(1))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_notice() {
        assert_eq!(shared_generation(Mutations::NONE), Ok(()));
    }
}
