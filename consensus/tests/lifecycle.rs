//! Nodes that rest, leave or are lost: leases keep what is away tolerated, slots move to spares.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::registration;
use meridian_base::env::Instant;
use meridian_base::id::{ClusterId, Incarnation, NodeId, TopicId};
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotState};
use meridian_consensus::command::{
    Command, FeatureLevel, Liveness, MountEpoch, NodeRegistration, Proposal, RequestId,
};
use meridian_consensus::config::Config;
use meridian_consensus::error::Refusal;
use meridian_consensus::lifecycle::{
    Denial, Lease, Leases, Purpose, grant, plan_farewell, plan_heal, plan_replacement,
};
use meridian_consensus::membership::{MemberRole, Membership, RaftId, plan_change};
use meridian_consensus::placement::{Placement, Preference};
use meridian_consensus::state::{Decision, Metadata, MountedAs};
use meridian_consensus::supervisor::Supervisor;
use proptest::prelude::*;

/// The node that leads the metadata log.
const OWN: NodeId = NodeId::new(9);

struct World {
    metadata: Metadata,
    index: u64,
}

impl World {
    /// Nodes 1 to 9 fill the slots of three racks in each of three datacenters; each datacenter
    /// has a spare in a fourth rack, node 10, 11 and 12. One topic of nine partitions.
    fn new() -> Self {
        let mut world = Self { metadata: Metadata::default(), index: 0 };
        let cluster_id = ClusterId::from_entropy(5);
        world.apply(Command::Bootstrap { cluster_id, geometry: Geometry::Mirror3Dc }).unwrap();
        for node in 0..9 {
            world.start(registration(node + 1, node / 3, node % 3));
        }
        for dc in 0..3 {
            world.start(registration(10 + dc, dc, 3));
        }
        let mut placement = Placement::new(&world.metadata, &BTreeSet::new());
        let leaders = placement.initial_leaders(9, &Preference::default(), None).unwrap();
        world.create_topic(leaders);
        world
    }

    /// Nodes 1 to 8 fill the slots of eight racks in one datacenter, node 9 is a spare in a ninth.
    fn of_eight_racks() -> Self {
        let mut world = Self { metadata: Metadata::default(), index: 0 };
        let cluster_id = ClusterId::from_entropy(5);
        world.apply(Command::Bootstrap { cluster_id, geometry: Geometry::Block42 }).unwrap();
        for node in 0..9 {
            let registration = registration(node + 1, 0, node);
            let feature_level_max = FeatureLevel::LATEST;
            world.start(NodeRegistration { feature_level_max, ..registration });
        }
        world.apply(Command::SetFeatureLevel(FeatureLevel::LATEST)).unwrap();
        world.create_topic(vec![NodeId::new(1)]);
        world
    }

    fn create_topic(&mut self, leaders: Vec<NodeId>) {
        let create = Command::CreateTopic {
            topic: TopicId::new(1),
            name: "t".to_owned(),
            leaders,
            configs: Vec::new(),
            internal: false,
        };
        self.apply(create).unwrap();
    }

    fn start(&mut self, registration: NodeRegistration) {
        let node = registration.node;
        self.apply(Command::RegisterNode(registration)).unwrap();
        let mount = Command::MountDisk {
            node,
            incarnation: Incarnation::new(0),
            mount_epoch: MountEpoch::new(1),
            found_data: false,
        };
        self.apply(mount).unwrap();
    }

    fn apply(&mut self, command: Command) -> Result<Decision, Refusal> {
        self.index += 1;
        let request_id = RequestId::new(u128::from(self.index));
        self.metadata.apply(self.index, &Proposal { request_id, command }).result
    }

    fn mark(&mut self, node: u32, liveness: Liveness) {
        let node = NodeId::new(node);
        let epoch = self.metadata.node(node).unwrap().epoch;
        self.apply(Command::MarkNode { node, epoch, liveness }).unwrap();
    }

    fn group(&self) -> &GroupConfig {
        self.metadata.groups().next().unwrap()
    }

    fn lease(&mut self, node: u32, purpose: Purpose) -> Result<(), Denial> {
        let command = grant(&self.metadata, Lease { node: NodeId::new(node), purpose })?;
        self.apply(command).unwrap();
        Ok(())
    }

    /// All nodes are given a binary that knows the latest level.
    fn know_all_levels(&mut self) {
        for node in (1..=12).map(NodeId::new) {
            let known = self.metadata.node(node).unwrap().registration.clone();
            let feature_level_max = FeatureLevel::LATEST;
            let registration = NodeRegistration { feature_level_max, ..known };
            self.apply(Command::RegisterNode(registration)).unwrap();
        }
    }

    fn node_of(&self, slot: u8) -> u32 {
        self.group().slot(Slot::new(slot)).unwrap().node.get()
    }

    /// The disk in `slot` has filled itself.
    fn sync(&mut self, slot: u8) {
        let slot = Slot::new(slot);
        let (group, incarnation) =
            (self.group().group, self.group().slot(slot).unwrap().incarnation);
        self.apply(Command::SlotSynced { group, slot, incarnation }).unwrap();
    }

    fn lost(&self, nodes: &[u32]) -> Option<Command> {
        plan_heal(&self.metadata, &nodes.iter().copied().map(NodeId::new).collect())
    }
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

#[test]
fn leases_keep_what_is_stopped_and_what_has_failed_tolerated() {
    let mut world = World::new();
    assert_eq!(world.lease(77, Purpose::Rest), Err(Denial::UnknownNode(NodeId::new(77))));
    for node in [1, 2, 3] {
        world.lease(node, Purpose::Rest).unwrap();
    }
    world.mark(4, Liveness::Dead);
    // A datacenter rests and a rack of another has failed: nothing more may go.
    let denied = world.lease(5, Purpose::Rest);
    let away = vec![0, 1, 2, 3, 4];
    assert_eq!(denied, Err(Denial::AtRisk { node: NodeId::new(5), away }));
    world.lease(10, Purpose::Rest).unwrap();
    let leases = Leases::read(&world.metadata).unwrap();
    world.apply(leases.without(NodeId::new(1))).unwrap();
    assert!(world.lease(7, Purpose::Rest).is_err(), "that would touch three datacenters");
    world.mark(4, Liveness::Alive);
    world.lease(7, Purpose::Rest).unwrap();
}

#[test]
fn of_eight_racks_two_may_be_away_and_a_lost_one_moves_to_the_spare() {
    let mut world = World::of_eight_racks();
    world.lease(1, Purpose::Rest).unwrap();
    world.lease(6, Purpose::Rest).unwrap();
    let denied = world.lease(8, Purpose::Rest);
    let away = vec![0, 5, 7];
    assert_eq!(denied, Err(Denial::AtRisk { node: NodeId::new(8), away }));
    for node in [1, 6] {
        let leases = Leases::read(&world.metadata).unwrap();
        world.apply(leases.without(NodeId::new(node))).unwrap();
    }
    for node in [4, 5] {
        world.mark(node, Liveness::Dead);
    }
    let heal = world.lost(&[4, 5]).unwrap();
    world.apply(heal).unwrap();
    assert_eq!((world.node_of(3), world.node_of(4)), (9, 5));
    world.sync(3);
    // The first comes back, in a rack that has no slot now.
    world.mark(4, Liveness::Alive);
    let heal = world.lost(&[5]).unwrap();
    world.apply(heal).unwrap();
    assert_eq!(world.node_of(4), 4);
    // With that one syncing, one more may be lost, and no slot may move away from a third.
    world.mark(5, Liveness::Alive);
    world.mark(6, Liveness::Dead);
    assert_eq!(world.lost(&[6]), None, "one at a time");
    let plan = plan_replacement(&world.metadata, NodeId::new(7), Some(NodeId::new(5)));
    let away = vec![4, 5, 6];
    assert_eq!(plan, Err(Denial::AtRisk { node: NodeId::new(7), away }));
}

#[test]
fn of_two_leases_decided_at_once_one_is_refused() {
    let mut world = World::new();
    let of = |world: &World, node| {
        grant(&world.metadata, Lease { node: NodeId::new(node), purpose: Purpose::Rest }).unwrap()
    };
    let (first, second) = (of(&world, 1), of(&world, 4));
    world.apply(first).unwrap();
    assert_eq!(world.apply(second), Err(Refusal::StaleRow { index: 0 }));
}

#[test]
fn a_lease_is_refused_if_a_node_has_died_or_a_slot_has_moved_since() {
    let with_level = |level| {
        let mut world = World::new();
        world.know_all_levels();
        world.apply(Command::SetFeatureLevel(level)).unwrap();
        for node in [1, 2, 3] {
            world.lease(node, Purpose::Rest).unwrap();
        }
        let lease = Lease { node: NodeId::new(4), purpose: Purpose::Rest };
        let granted = grant(&world.metadata, lease).unwrap();
        (world, granted)
    };
    let (mut world, granted) = with_level(FeatureLevel::LEASES_CHECKED);
    world.mark(5, Liveness::Dead);
    assert_eq!(world.apply(granted.clone()), Err(Refusal::GroupAtRisk));
    world.mark(5, Liveness::Alive);
    let (from, to) = (NodeId::new(6), NodeId::new(11));
    let replace = plan_replacement(&world.metadata, from, Some(to)).unwrap();
    world.apply(replace).unwrap();
    assert_eq!(world.apply(granted.clone()), Err(Refusal::GroupAtRisk), "its disk has yet to sync");
    world.sync(5);
    world.apply(granted).unwrap();

    let (mut world, granted) = with_level(FeatureLevel::SEEDS);
    world.mark(5, Liveness::Dead);
    world.apply(granted).expect("there are nodes that would not look");
}

#[test]
fn a_lost_slot_moves_to_the_spare_of_its_datacenter_one_at_a_time() {
    let mut world = World::new();
    assert_eq!(world.lost(&[]), None);
    for node in [4, 5] {
        world.mark(node, Liveness::Dead);
    }
    let heal = world.lost(&[4, 5]).unwrap();
    world.apply(heal).unwrap();
    assert_eq!((world.node_of(3), world.node_of(4)), (11, 5));
    assert_eq!(world.group().slot(Slot::new(3)).unwrap().state, SlotState::LostData);
    assert_eq!(world.lost(&[4, 5]), None, "the first has yet to sync");
    world.sync(3);
    assert_eq!(world.lost(&[4, 5]), None, "there is no other spare");
    // The node that was lost comes back: its disk is a spare now, and in no taken rack.
    world.mark(4, Liveness::Alive);
    let heal = world.lost(&[5]).unwrap();
    world.apply(heal).unwrap();
    assert_eq!(world.node_of(4), 4);
}

#[test]
fn a_disk_that_is_given_a_slot_begins_a_new_life() {
    let (slot, owner, spare) = (3, NodeId::new(4), NodeId::new(11));
    let give = |world: &mut World, from, to| {
        let replace = plan_replacement(&world.metadata, from, Some(to)).unwrap();
        world.apply(replace).unwrap();
        world.sync(slot);
    };
    let life = |world: &World| world.group().slot(Slot::new(slot)).unwrap().incarnation;
    let mut world = World::new();
    let first = (life(&world), world.metadata.disk(owner).unwrap());
    give(&mut world, owner, spare);
    give(&mut world, spare, owner);
    let kept = (life(&world), world.metadata.disk(owner).unwrap());
    assert_eq!(kept, first, "there are nodes that would not take it on");

    world.know_all_levels();
    world.mark(4, Liveness::Dead);
    let agreement = Command::SetFeatureLevel(FeatureLevel::SLOT_LIVES);
    assert_eq!(world.lost(&[4]), Some(agreement.clone()));
    world.apply(agreement).unwrap();
    let heal = world.lost(&[4]).unwrap();
    world.apply(heal).unwrap();
    world.sync(slot);
    world.mark(4, Liveness::Alive);
    let back = plan_replacement(&world.metadata, spare, Some(owner)).unwrap();
    world.apply(back).unwrap();
    let disk = world.metadata.disk(owner).unwrap();
    assert!(disk.incarnation > first.0, "an ack of before the moves counts no more");
    assert_eq!((life(&world), disk.mount_epoch), (disk.incarnation, first.1.mount_epoch));

    // Its process ended before it had heard of that: what it says of itself is of a life that has ended.
    let judge = |world: &World, mount_epoch| {
        world.metadata.judge_mount(owner, first.0, MountEpoch::new(mount_epoch))
    };
    assert_eq!(judge(&world, 2), MountedAs::LifeNotBegun);
    assert_eq!(judge(&world, 3), MountedAs::Stale, "not the mount after the one that is known");
    let mut synced = World { metadata: world.metadata.clone(), index: world.index };
    synced.sync(slot);
    assert_eq!(judge(&synced, 2), MountedAs::Stale, "a disk that has synced had begun its life");
    let mount = Command::MountDisk {
        node: owner,
        incarnation: first.0,
        mount_epoch: MountEpoch::new(2),
        found_data: true,
    };
    let mounted = world.apply(mount).unwrap();
    assert!(matches!(mounted, Decision::Mounted { state: SlotState::LostData, .. }), "{mounted:?}");
    assert!(life(&world) > disk.incarnation);
}

#[test]
fn the_vote_of_a_lost_node_goes_to_a_learner_of_its_datacenter() {
    let mut world = World::new();
    let members = |nodes: std::ops::RangeInclusive<u32>| {
        nodes.map(|node| RaftId::first(NodeId::new(node))).collect::<BTreeSet<_>>()
    };
    let membership = Membership {
        voters: members(1..=9),
        learners: members(10..=12),
        voters_outgoing: BTreeSet::new(),
    };
    let change = |world: &World| {
        plan_change(&world.metadata, &membership, RaftId::first(NodeId::new(1)), |_| true)
    };
    world.mark(4, Liveness::Dead);
    assert_eq!(change(&world), [], "it may come back");
    let heal = world.lost(&[4]).unwrap();
    world.apply(heal).unwrap();
    let swap = [(11, MemberRole::Voter), (4, MemberRole::Learner)];
    let swap = swap.map(|(node, role)| (RaftId::first(NodeId::new(node)), role));
    assert_eq!(change(&world), swap);
    world.mark(11, Liveness::Dead);
    assert_ne!(change(&world), swap, "a dead node is no heir");
}

#[test]
fn a_spare_that_is_lost_while_it_fills_itself_is_replaced_too() {
    let mut world = World::new();
    world.start(registration(13, 1, 4));
    world.mark(4, Liveness::Dead);
    let heal = world.lost(&[4]).unwrap();
    world.apply(heal).unwrap();
    assert_eq!(world.node_of(3), 11);
    world.mark(11, Liveness::Dead);
    let heal = world.lost(&[4, 11]).unwrap();
    world.apply(heal).unwrap();
    assert_eq!(world.node_of(3), 13);
}

#[test]
fn no_slot_moves_into_the_rack_of_another() {
    let mut world = World::new();
    // A second node in rack 1 of datacenter 1, beside node 5.
    world.start(registration(20, 1, 1));
    world.lease(11, Purpose::Rest).unwrap();
    world.mark(4, Liveness::Dead);
    assert_eq!(world.lost(&[4]), None, "a rack with two slots would take both with it");
    let (from, to) = (NodeId::new(4), NodeId::new(20));
    let refused = plan_replacement(&world.metadata, from, Some(to));
    assert_eq!(refused, Err(Denial::UnsuitableSpare { from, to }));
    world.mark(4, Liveness::Alive);
    world.mark(5, Liveness::Dead);
    let heal = world.lost(&[5]).unwrap();
    world.apply(heal).unwrap();
    assert_eq!(world.node_of(4), 20, "the same rack will do");
}

#[test]
fn a_node_that_leaves_is_emptied_and_then_forgotten() {
    let mut world = World::new();
    world.lease(4, Purpose::Leave).unwrap();
    let mut supervisor = Supervisor::new(&Config::default(), at(0), &world.metadata, None);
    for now_ms in (0..60_000).step_by(100) {
        for node in (1..=12).map(NodeId::new) {
            supervisor.heard(at(now_ms), node);
        }
        for command in supervisor.poll(at(now_ms), OWN, &world.metadata) {
            world.apply(command).unwrap();
        }
        if now_ms == 30_000 {
            assert_eq!(world.node_of(3), 11);
            assert!(world.metadata.node(NodeId::new(4)).is_some(), "the new disk has yet to sync");
            assert_eq!(world.metadata.partitions_led_by(NodeId::new(4)).count(), 0);
            world.sync(3);
        }
    }
    assert!(world.metadata.node(NodeId::new(4)).is_none());
    assert_eq!(Leases::read(&world.metadata).unwrap().iter().count(), 0);
}

#[test]
fn without_a_spare_none_may_leave_and_the_leader_waits_for_the_next() {
    let mut world = World::new();
    world.lease(11, Purpose::Rest).unwrap();
    assert_eq!(world.lease(4, Purpose::Leave), Err(Denial::NoSpare(NodeId::new(4))));
    world.lease(10, Purpose::Leave).unwrap();
    assert_eq!(plan_farewell(&world.metadata, NodeId::new(10)), None);
    let farewell = plan_farewell(&world.metadata, OWN);
    assert_eq!(farewell, Some(Command::RemoveNode { node: NodeId::new(10) }));
}

#[test]
fn a_dead_node_is_given_time_before_its_slot_moves() {
    let mut world = World::new();
    let config = Config { heal_after: Some(Duration::from_secs(20)), ..Config::default() };
    let mut supervisor = Supervisor::new(&config, at(0), &world.metadata, None);
    for now_ms in (0..40_000).step_by(100) {
        for node in (1..=12).filter(|node| *node != 4 || now_ms < 5_000).map(NodeId::new) {
            supervisor.heard(at(now_ms), node);
        }
        for command in supervisor.poll(at(now_ms), OWN, &world.metadata) {
            world.apply(command).unwrap();
        }
        let expected = if now_ms < 26_000 { 4 } else { 11 };
        if !(26_000..29_000).contains(&now_ms) {
            assert_eq!(world.node_of(3), expected, "at {now_ms} ms");
        }
    }
}

/// Replaced, wiped, stale, damaged and swapped disks are told apart.
#[test]
fn a_disk_is_known_by_what_it_says_of_itself() {
    let mut world = World::new();
    let epoch = MountEpoch::new;
    let judge = |world: &World, node, incarnation, mount_epoch| {
        world.metadata.judge_mount(NodeId::new(node), incarnation, epoch(mount_epoch))
    };
    let of = |world: &World, node| world.metadata.disk(NodeId::new(node)).unwrap().incarnation;
    let drawn = Incarnation::new(u64::MAX / 3);
    let first_life = of(&world, 4);
    assert_eq!(judge(&world, 99, drawn, 1), MountedAs::First);
    assert_eq!(judge(&world, 4, first_life, 2), MountedAs::Same);
    assert_eq!(judge(&world, 4, first_life, 1), MountedAs::Stale, "it was mounted since");
    assert_eq!(judge(&world, 4, of(&world, 5), 2), MountedAs::OfNode(NodeId::new(5)));
    assert_eq!(judge(&world, 4, drawn, 1), MountedAs::Blank);
    assert_eq!(judge(&world, 4, drawn, 7), MountedAs::Damaged);
    let mount = Command::MountDisk {
        node: NodeId::new(4),
        incarnation: drawn,
        mount_epoch: epoch(7),
        found_data: true,
    };
    world.apply(mount).unwrap();
    assert_eq!(judge(&world, 4, first_life, 9), MountedAs::Stale, "a life that has ended");
}

proptest! {
    /// Whatever fails and whatever is asked: a move and a lease never leave more away than may be.
    #[test]
    fn nothing_granted_is_more_than_tolerated(
        dead in proptest::collection::btree_set(1u32..=12, 0..5),
        asked in proptest::collection::vec((1u32..=12, any::<bool>()), 0..8),
    ) {
        let mut world = World::new();
        for node in &dead {
            world.mark(*node, Liveness::Dead);
        }
        for (node, leaves) in asked {
            let purpose = if leaves { Purpose::Leave } else { Purpose::Rest };
            if world.lease(node, purpose).is_ok() {
                prop_assert!(is_tolerated(&world) || world.metadata.slot_filled_by(NodeId::new(node)).is_none());
            }
            let lost: BTreeSet<NodeId> = dead.iter().copied().map(NodeId::new).collect();
            if let Some(Command::ReplaceSlot { group, slot, from, to }) = plan_heal(&world.metadata, &lost) {
                let before = world.group().clone();
                world.apply(Command::ReplaceSlot { group, slot, from, to }).unwrap();
                let racks: BTreeSet<_> = world.group().slots.iter().map(|slot| {
                    let place = &world.metadata.node(slot.node).unwrap().registration;
                    (place.datacenter.clone(), place.rack.clone())
                }).collect();
                prop_assert_eq!(racks.len(), 9);
                prop_assert!(before.geometry.tolerated(before.geometry.slots().difference(world.group().good_slots())));
            }
        }
    }
}

fn is_tolerated(world: &World) -> bool {
    let leases = Leases::read(&world.metadata).unwrap();
    let group = world.group();
    let is_away = |slot: &Slot| {
        let node = group.slot(*slot).unwrap().node;
        let is_dead = world.metadata.node(node).unwrap().liveness == Liveness::Dead;
        is_dead || leases.purpose(node).is_some() || !group.good_slots().contains(*slot)
    };
    group.geometry.tolerated(group.geometry.slots().iter().filter(is_away).collect())
}
