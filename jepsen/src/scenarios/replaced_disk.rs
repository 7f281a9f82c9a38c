//! A slot gets another disk, or one that it had before, while a leader that does not know it counts the old
//! one's ack (rules S1, L1, S7).

use std::time::Duration;

use meridian_base::topology::{Slot, SlotState};
use meridian_consensus::mutation::Mutation as MetadataMutation;
use meridian_storage::mutation::Mutations;

use super::{PARTITION, READ_WITHIN, config, go_on, read_all, until, world};
use crate::check::{Promise, Verdict, Violation};
use crate::net::Endpoint;
use crate::world::{World, WorldConfig};

/// The leader's node, the slot whose disk is replaced, and one in the third datacenter.
const LEADER: usize = 0;
const REPLACED: usize = 4;
const THIRD: usize = 7;
/// The node that leads after it.
const HEIR: usize = 1;
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
    let config = world.group().slot(slot).copied();
    assert_eq!(config.map(|config| config.state), Some(SlotState::Good), "the new disk has synced");

    world.network.mend_one_way(Endpoint(LEADER), Endpoint(THIRD));
    world.network.mend_one_way(Endpoint(THIRD), Endpoint(LEADER));
    go_on(world, Duration::from_secs(4))?;

    for lost in [LEADER, 6, THIRD, 8] {
        world.stop_node(lost);
    }
    world.network.heal();
    world.assign(PARTITION, HEIR);
    go_on(world, Duration::from_secs(4))?;
    if world.is_served(PARTITION) {
        return Ok(());
    }
    let detail = "five slots hold a fence quorum, but the partition is not served".to_owned();
    Err(Violation { promise: Promise::ServesAgain, detail })
}

/// The slot goes to a spare, which answers a takeover, and comes back to the disk that had acked before, while
/// the leader hears of nothing. When it reaches a slot in the third datacenter, which the takeover has not fenced,
/// the ack of before the moves must not complete its quorum: the spare has said that there is no such record.
pub fn slot_that_comes_back(metadata_mutation: Option<MetadataMutation>) -> Verdict {
    let calm = config(Mutations::NONE);
    let mut world = world(WorldConfig { spare_count: 1, metadata_mutation, ..calm })?;
    for peer in (0..world.nodes.len()).filter(|peer| ![LEADER, REPLACED].contains(peer)) {
        cut(&mut world, peer);
    }
    world.rouse_producers();
    go_on(&mut world, Duration::from_millis(200))?;
    cut(&mut world, REPLACED);

    move_slot(&mut world, SPARE)?;
    cut_between(&mut world, HEIR, THIRD);
    world.assign(PARTITION, HEIR);
    until(&mut world, READ_WITHIN, "the partition is served", |world| world.is_served(PARTITION))?;
    move_slot(&mut world, REPLACED)?;

    world.network.mend_one_way(Endpoint(LEADER), Endpoint(THIRD));
    world.network.mend_one_way(Endpoint(THIRD), Endpoint(LEADER));
    go_on(&mut world, Duration::from_secs(4))?;
    world.network.heal();
    go_on(&mut world, Duration::from_secs(4))?;
    read_all(&mut world)
}

/// Gives the slot to another node, and waits until its disk has synced.
fn move_slot(world: &mut World, to: usize) -> Verdict {
    let slot = Slot::new(REPLACED as u8);
    assert!(world.replace(slot, world.nodes[to].id), "all slots are good");
    until(world, READ_WITHIN, "the disk has synced", |world| {
        let config = world.group().slot(slot).copied();
        config.is_some_and(|config| config.state == SlotState::Good)
    })
}

fn cut(world: &mut World, peer: usize) {
    cut_between(world, LEADER, peer);
}

fn cut_between(world: &mut World, one: usize, other: usize) {
    world.network.cut_one_way(Endpoint(one), Endpoint(other));
    world.network.cut_one_way(Endpoint(other), Endpoint(one));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_of_the_disk_before_does_not_count() {
        assert_eq!(replaced_disk(Mutations::NONE), Ok(()));
        assert_eq!(moved_slot(Mutations::NONE), Ok(()));
    }

    #[test]
    fn an_ack_of_before_two_moves_does_not_count() {
        assert_eq!(slot_that_comes_back(None), Ok(()));
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
