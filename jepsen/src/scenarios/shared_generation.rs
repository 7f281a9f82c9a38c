//! Two nodes lead under one generation: what no metadata log would do, and a restored backup might.
//! The stores must notice before two values are shown (rule S2).

use std::time::Duration;

use meridian_storage::mutation::Mutations;

use super::{PARTITION, config, go_on, world};
use crate::check::{Promise, Verdict, Violation};
use crate::metadata::Owner;
use crate::world::{Event, World};

/// The node that leads, and the one that should not.
const LEADER: usize = 0;
const RIVAL: usize = 4;

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
    // The first generation has nothing to take over: it shows an empty log, and a later one asks the slots.
    let owner = world.metadata.appoint(PARTITION, world.nodes[LEADER].id);
    world.announce_metadata();
    go_on(world, Duration::from_secs(2))?;
    let rival = Owner { node: world.nodes[RIVAL].id, ..owner };
    world.schedule(Duration::ZERO, Event::Lead { node: RIVAL, partition: PARTITION, owner });
    // Half of the cluster sends its clients to the second leader.
    for node in world.nodes.iter_mut().step_by(2) {
        node.view.owners.insert(PARTITION, rival);
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
