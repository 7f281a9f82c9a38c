//! A slot gets another disk while a leader that does not know it counts the old one's ack (rules S1, L1).

use std::time::Duration;

use meridian_base::topology::{Slot, SlotState};
use meridian_storage::mutation::Mutations;

use super::{PARTITION, config, go_on, world};
use crate::check::{Promise, Verdict, Violation};
use crate::net::Endpoint;
use crate::world::{World, WorldConfig};

/// The leader's node, the slot whose disk is replaced, and one in the third datacenter.
const LEADER: usize = 0;
const REPLACED: usize = 4;
const THIRD: usize = 7;
/// A node of the slot's datacenter that fills none.
const SPARE: usize = 10;

/// The disk of the slot that has acked is replaced by an empty one.
pub fn replaced_disk(mutations: Mutations) -> Verdict {
    let mut world = world(config(mutations))?;
    an_ack_of_before(&mut world, |world| {
        world.stop_node(REPLACED);
        world.nodes[REPLACED].disk.wipe();
        cut(world, REPLACED);
        world.start_node(REPLACED)
    })
}

/// The slot is given to a spare, while the disk that has acked is whole, and its node alive.
pub fn moved_slot(mutations: Mutations) -> Verdict {
    let mut world = world(WorldConfig { spare_count: 1, ..config(mutations) })?;
    an_ack_of_before(&mut world, |world| {
        cut(world, SPARE);
        let spare = world.nodes[SPARE].id;
        assert!(world.replace(Slot::new(REPLACED as u8), spare), "all slots are good");
        Ok(())
    })
}

/// The leader is cut off but for one slot, which acks; then another disk fills that slot, synced from the
/// others. When the leader reaches a slot in the third datacenter, the old ack must not complete its
/// quorum: the datacenter and the leader's rack are lost next.
fn an_ack_of_before(world: &mut World, replace: impl Fn(&mut World) -> Verdict) -> Verdict {
    for peer in (0..world.nodes.len()).filter(|peer| ![LEADER, REPLACED].contains(peer)) {
        cut(world, peer);
    }
    let before = world.checker.acknowledged_count();
    world.rouse_producers();
    go_on(world, Duration::from_millis(200))?;
    assert_eq!(world.checker.acknowledged_count(), before, "two slots are no quorum");

    replace(world)?;
    go_on(world, Duration::from_secs(8))?;
    let slot = Slot::new(REPLACED as u8);
    let config = world.metadata.latest().group.slot(slot).copied();
    assert_eq!(config.map(|config| config.state), Some(SlotState::Good), "the new disk has synced");

    world.network.mend_one_way(Endpoint(LEADER), Endpoint(THIRD));
    world.network.mend_one_way(Endpoint(THIRD), Endpoint(LEADER));
    go_on(world, Duration::from_secs(4))?;

    for lost in [LEADER, 6, THIRD, 8] {
        world.stop_node(lost);
    }
    world.network.heal();
    world.metadata.appoint(PARTITION, world.nodes[1].id);
    world.announce_metadata();
    go_on(world, Duration::from_secs(4))?;
    if world.is_served(PARTITION) {
        return Ok(());
    }
    let detail = "five slots hold a fence quorum, but the partition is not served".to_owned();
    Err(Violation { promise: Promise::ServesAgain, detail })
}

fn cut(world: &mut World, peer: usize) {
    world.network.cut_one_way(Endpoint(LEADER), Endpoint(peer));
    world.network.cut_one_way(Endpoint(peer), Endpoint(LEADER));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_of_the_disk_before_does_not_count() {
        assert_eq!(replaced_disk(Mutations::NONE), Ok(()));
        assert_eq!(moved_slot(Mutations::NONE), Ok(()));
    }

    #[cfg(feature = "mutations")]
    #[test]
    fn each_broken_rule_shows_when_a_slot_is_moved() {
        use meridian_storage::mutation::Mutation;
        for mutation in [Mutation::StaleConfigAccepted, Mutation::IncarnationIgnored] {
            assert!(moved_slot(Mutations(Some(mutation))).is_err(), "{mutation:?}");
        }
    }
}
