//! All disks of a group whose records are in parts are replaced, one after another (rule H3).

use std::time::Duration;

use meridian_base::topology::{Geometry, Slot, SlotState};
use meridian_storage::mutation::Mutations;

use super::{PARTITION, config, go_on, read_all, restart_all, until, world, write};
use crate::check::{Promise, Verdict, Violation};
use crate::topics::Class;
use crate::world::{World, WorldConfig};

/// Several batches wait for slow disks at a time, so that blobs are large enough for parts.
const PRODUCER_COUNT: usize = 4;
const SLOWDOWN: u32 = 60;
/// How long a disk may take to make its parts again.
const SYNCED_WITHIN: Duration = Duration::from_secs(60);

/// Each disk is replaced when the one before has made its parts again. In the end nothing is left of
/// what the leader put; all nodes restart, and the whole log is read.
pub fn replaced_racks(mutations: Mutations) -> Verdict {
    let mut world = world(WorldConfig {
        geometry: Geometry::Block42,
        classes: &[Class::Parts],
        producer_count: PRODUCER_COUNT,
        ..config(mutations)
    })?;
    world.nodes.iter_mut().for_each(|node| node.disk.set_slowdown(SLOWDOWN));
    write(&mut world)?;
    world.nodes.iter_mut().for_each(|node| node.disk.set_slowdown(1));
    for node in 0..world.nodes.len() {
        world.stop_node(node);
        world.nodes[node].disk.wipe();
        world.start_node(node)?;
        go_on(&mut world, Duration::from_millis(100))?;
        until(&mut world, SYNCED_WITHIN, "a replaced disk has synced", |world| {
            state_of(world, node) == Some(SlotState::Good)
        })?;
    }
    restart_all(&mut world)?;
    read_all(&mut world)?;
    if world.counters.decoded_count > 0 {
        return Ok(());
    }
    let detail = format!("no blob of {PARTITION:?} was in parts");
    Err(Violation { promise: Promise::Invariant, detail })
}

fn state_of(world: &World, node: usize) -> Option<SlotState> {
    world.group().slot(Slot::new(node as u8)).map(|slot| slot.state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disk_may_be_replaced_in_its_turn() {
        assert_eq!(replaced_racks(Mutations::NONE), Ok(()));
    }

    #[cfg(feature = "mutations")]
    #[test]
    fn parts_of_peers_are_no_parts_of_ones_own() {
        use meridian_storage::mutation::Mutation;
        let broken = replaced_racks(Mutations(Some(Mutation::PartOfPeerKept)));
        let violation = broken.expect_err("the broken rule must show");
        assert!(!violation.detail.contains("was in parts"), "{violation}");
    }
}
