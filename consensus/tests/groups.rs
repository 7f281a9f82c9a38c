//! Several storage groups in a cluster: how the second one is made, and what lands in it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;

use common::registration;
use meridian_base::id::{ClusterId, GroupId, Incarnation, NodeId, TopicId};
use meridian_base::position::LeaderEpoch;
use meridian_base::topology::{Geometry, Slot};
use meridian_consensus::command::{
    Command, ConfigChange, ConfigResource, FeatureLevel, LeaderAssignment, Liveness, MountEpoch,
    NodeRegistration, Proposal, RequestId,
};
use meridian_consensus::error::Refusal;
use meridian_consensus::lifecycle::{Lease, Purpose, grant, plan_group, plan_heal};
use meridian_consensus::placement::{Placement, Preference, Sweep};
use meridian_consensus::snapshot;
use meridian_consensus::state::{Decision, Home, Metadata, STORAGE_CLASS, STORAGE_CLASS_PARTS};

const MIRRORED: GroupId = GroupId::new(1);
const BLOCK: GroupId = GroupId::new(2);
const WANTED: &[Geometry] = &[Geometry::Block42];

struct World {
    metadata: Metadata,
    index: u64,
}

impl World {
    /// Nodes 1 to 9 fill three racks in each of three datacenters, nodes 10 to 17 are in eight racks more
    /// of the first, node 18 is a spare there.
    fn new() -> Self {
        let mut world = Self { metadata: Metadata::default(), index: 0 };
        let cluster_id = ClusterId::from_entropy(5);
        world.apply(Command::Bootstrap { cluster_id, geometry: Geometry::Mirror3Dc }).unwrap();
        for node in 0..9 {
            world.start(node + 1, node / 3, node % 3, FeatureLevel::LATEST);
        }
        for rack in 3..12 {
            world.start(rack + 7, 0, rack, FeatureLevel::LATEST);
        }
        world
    }

    /// The world when the supervisor has made both groups.
    fn with_both() -> Self {
        let mut world = Self::new();
        while let Some(step) = plan_group(&world.metadata, WANTED) {
            world.apply(step).unwrap();
        }
        world.apply(Command::SetFeatureLevel(FeatureLevel::LATEST)).unwrap();
        world
    }

    fn start(&mut self, node: u32, datacenter: u32, rack: u32, feature_level_max: FeatureLevel) {
        let registration =
            NodeRegistration { feature_level_max, ..registration(node, datacenter, rack) };
        self.apply(Command::RegisterNode(registration)).unwrap();
        let mount = Command::MountDisk {
            node: NodeId::new(node),
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

    fn create_topic(&mut self, id: u128, class: Option<&str>, partition_count: u32) -> TopicId {
        let topic = TopicId::new(id);
        let leaders = Placement::new(&self.metadata, &BTreeSet::new())
            .initial_leaders(partition_count, &Preference::default(), class)
            .unwrap();
        let config = |value: &str| ConfigChange {
            name: STORAGE_CLASS.to_owned(),
            value: Some(value.to_owned()),
        };
        let create = Command::CreateTopic {
            topic,
            name: format!("t{id}"),
            leaders,
            configs: class.map(config).into_iter().collect(),
            internal: false,
        };
        self.apply(create).unwrap();
        topic
    }

    fn set_class(&mut self, topic: TopicId, class: &str) {
        let (name, value) = (STORAGE_CLASS.to_owned(), Some(class.to_owned()));
        let changes = vec![ConfigChange { name, value }];
        let resource = ConfigResource::Topic(topic);
        self.apply(Command::SetConfigs { resource, changes }).unwrap();
    }

    fn mark(&mut self, node: u32, liveness: Liveness) {
        let node = NodeId::new(node);
        let epoch = self.metadata.node(node).unwrap().epoch;
        self.apply(Command::MarkNode { node, epoch, liveness }).unwrap();
    }

    /// The groups of a topic's partitions and the nodes that lead them.
    fn places(&self, topic: TopicId) -> Vec<(GroupId, u32)> {
        let partitions = &self.metadata.topic(topic).unwrap().partitions;
        let of = |id| self.metadata.partition(id).unwrap();
        partitions.iter().map(|id| (of(*id).group, of(*id).leader.get())).collect()
    }
}

fn create(nodes: &[u32]) -> Command {
    let nodes = nodes.iter().copied().map(NodeId::new).collect();
    Command::CreateGroup { expected_count: 1, geometry: Geometry::Block42, nodes }
}

#[test]
fn a_second_group_is_made_once_all_nodes_know_of_groups() {
    let mut world = World::new();
    let raise = plan_group(&world.metadata, WANTED).unwrap();
    assert_eq!(raise, Command::SetFeatureLevel(FeatureLevel::GROUPS));
    let (current, needed) = (FeatureLevel::FIRST, FeatureLevel::GROUPS);
    let early = world.apply(create(&[10, 11, 12, 13, 14, 15, 16, 17]));
    assert_eq!(early, Err(Refusal::FeatureLevelTooLow { current, needed }));
    world.apply(raise).unwrap();
    world.apply(plan_group(&world.metadata, WANTED).unwrap()).unwrap();

    let group = world.metadata.group(BLOCK).unwrap();
    assert_eq!((group.geometry, group.version.get()), (Geometry::Block42, 1));
    assert_eq!(group.good_slots(), Geometry::Block42.slots());
    // Racks by name: r10 and r11 come before r3.
    let nodes: Vec<u32> = group.slots.iter().map(|slot| slot.node.get()).collect();
    assert_eq!(nodes, [17, 18, 10, 11, 12, 13, 14, 15]);
    assert_eq!(world.metadata.slot_filled_by(NodeId::new(17)), Some((BLOCK, Slot::new(0))));
    assert_eq!(plan_group(&world.metadata, WANTED), None, "it is there");
    let encoded = snapshot::encode(&world.metadata);
    assert!(snapshot::decode(&encoded).unwrap() == world.metadata);
}

#[test]
fn a_shape_that_has_no_nodes_yet_holds_back_none_that_has() {
    let mut world = World::new();
    world.apply(Command::SetFeatureLevel(FeatureLevel::GROUPS)).unwrap();
    let wanted = [Geometry::Mirror3Dc, Geometry::Block42];
    let planned = plan_group(&world.metadata, &wanted);
    let is_block =
        |it: &Command| matches!(it, Command::CreateGroup { geometry: Geometry::Block42, .. });
    assert!(planned.as_ref().is_some_and(is_block), "{planned:?}");
}

#[test]
fn no_second_group_while_a_node_does_not_know_of_them_or_racks_are_missing() {
    let mut world = World::new();
    world.start(30, 1, 7, FeatureLevel::EIGHT_RACKS);
    assert_eq!(plan_group(&world.metadata, WANTED), None);
    let mut world = World::new();
    for node in [10, 11] {
        world.mark(node, Liveness::Dead);
    }
    assert_eq!(plan_group(&world.metadata, WANTED), None);
    world.mark(10, Liveness::Alive);
    assert!(plan_group(&world.metadata, WANTED).is_some());
    assert_eq!(plan_group(&Metadata::default(), WANTED), None, "there is no first one");
}

#[test]
fn a_group_of_nodes_that_do_not_fill_its_geometry_is_refused() {
    let mut world = World::new();
    world.apply(Command::SetFeatureLevel(FeatureLevel::GROUPS)).unwrap();
    let unsuitable = |node| Err(Refusal::UnsuitableNode(NodeId::new(node)));
    assert_eq!(world.apply(create(&[1, 11, 12, 13, 14, 15, 16, 17])), unsuitable(1));
    let seven = [10, 11, 12, 13, 14, 15, 16];
    assert_eq!(world.apply(create(&seven)), Err(Refusal::NotTheGeometry));
    let twice = [10, 10, 11, 12, 13, 14, 15, 16];
    assert_eq!(world.apply(create(&twice)), Err(Refusal::NotTheGeometry));
    world.start(20, 1, 9, FeatureLevel::LATEST);
    let elsewhere = [10, 11, 12, 13, 14, 15, 16, 20];
    assert_eq!(world.apply(create(&elsewhere)), Err(Refusal::NotTheGeometry));
    let eight = [10, 11, 12, 13, 14, 15, 16, 17];
    world.apply(create(&eight)).unwrap();
    assert_eq!(world.apply(create(&eight)), Err(Refusal::StaleGroupCount { current: 2 }));
}

#[test]
fn a_topic_lands_in_the_group_of_its_class_and_is_led_there() {
    let mut world = World::with_both();
    let copies = world.create_topic(1, None, 9);
    let parts = world.create_topic(2, Some(STORAGE_CLASS_PARTS), 8);
    let cold = world.create_topic(3, Some("mirror-3-dc,cold=rs-5-4"), 1);
    let in_group = |world: &World, topic, group: GroupId| {
        let slots = &world.metadata.group(group).unwrap().slots;
        let members: BTreeSet<u32> = slots.iter().map(|slot| slot.node.get()).collect();
        let places = world.places(topic);
        places.iter().all(|(of, leader)| *of == group && members.contains(leader))
    };
    assert!(in_group(&world, copies, MIRRORED));
    assert!(in_group(&world, cold, MIRRORED));
    assert!(in_group(&world, parts, BLOCK));
    let leaders: BTreeSet<u32> = world.places(parts).into_iter().map(|(_, it)| it).collect();
    assert_eq!(leaders.len(), 8, "each leads one");

    // More partitions go where the topic's class says.
    let leaders = vec![NodeId::new(10)];
    let more = Command::CreatePartitions { topic: parts, expected_count: 8, leaders };
    world.apply(more).unwrap();
    assert!(in_group(&world, parts, BLOCK));

    // What a dead node led is led within the group, and balance does not lead it out.
    world.mark(10, Liveness::Dead);
    let dead = BTreeSet::from([NodeId::new(10)]);
    for command in Placement::new(&world.metadata, &dead).plan_takeover(&dead, |_, _| true) {
        world.apply(command).unwrap();
    }
    assert!(in_group(&world, parts, BLOCK));
    for command in
        Placement::new(&world.metadata, &BTreeSet::new()).plan_rebalance(&mut Sweep::default(), 100)
    {
        world.apply(command).unwrap();
    }
    assert!(in_group(&world, copies, MIRRORED) && in_group(&world, parts, BLOCK));
}

/// With the whole group gone its partitions are led elsewhere, and come back to it.
#[test]
fn leaders_return_to_their_group() {
    let mut world = World::with_both();
    let parts = world.create_topic(2, Some(STORAGE_CLASS_PARTS), 2);
    let members: Vec<NodeId> =
        world.metadata.group(BLOCK).unwrap().slots.iter().map(|slot| slot.node).collect();
    for node in &members {
        world.mark(node.get(), Liveness::Dead);
    }
    let dead: BTreeSet<NodeId> = members.iter().copied().collect();
    for command in Placement::new(&world.metadata, &dead).plan_takeover(&dead, |_, _| true) {
        world.apply(command).unwrap();
    }
    assert!(world.places(parts).iter().all(|(_, leader)| !dead.contains(&NodeId::new(*leader))));
    world.mark(members[3].get(), Liveness::Alive);
    for command in
        Placement::new(&world.metadata, &BTreeSet::new()).plan_rebalance(&mut Sweep::default(), 100)
    {
        world.apply(command).unwrap();
    }
    let home = (BLOCK, members[3].get());
    assert_eq!(world.places(parts), [home, home]);
}

#[test]
fn a_topic_whose_class_changes_moves_to_the_group_of_the_new_one_and_back() {
    let mut world = World::with_both();
    let topic = world.create_topic(1, None, 4);
    let other = world.create_topic(2, None, 2);
    let id = world.metadata.topic(topic).unwrap().partitions[0];
    let plan = |world: &World, max| {
        Placement::new(&world.metadata, &BTreeSet::new())
            .plan_conversion(&mut Sweep::default(), max)
    };
    assert_eq!(plan(&world, 9), None);
    assert_eq!(world.metadata.homes(id), []);
    let before = *world.metadata.partition(id).unwrap();

    world.set_class(topic, STORAGE_CLASS_PARTS);
    let step = plan(&world, 3).unwrap();
    world.apply(step.clone()).unwrap();
    let rest = plan(&world, 3).unwrap();
    let Command::MovePartitions(moves) = &rest else { panic!("{rest:?}") };
    assert_eq!(moves.len(), 1, "three at a time, so one is left");
    world.apply(rest).unwrap();
    assert_eq!(plan(&world, 9), None);
    assert!(world.places(topic).iter().all(|(group, _)| *group == BLOCK));
    assert!(world.places(other).iter().all(|(group, _)| *group == MIRRORED));
    let after = *world.metadata.partition(id).unwrap();
    assert_eq!(after.generation, before.generation.next());
    assert_eq!(after.leader_epoch, before.leader_epoch.next());
    let home = |group, first| Home { first, group };
    let there = [home(MIRRORED, before.generation), home(BLOCK, after.generation)];
    assert_eq!(world.metadata.homes(id), there);
    // What was planned before is stale by now.
    let stale = Decision::Assigned { assigned_count: 0, skipped_count: 3 };
    assert_eq!(world.apply(step), Ok(stale));

    // Takeovers there are of the same home.
    let assignment = LeaderAssignment {
        partition: id,
        expected: after.generation,
        leader: after.leader,
        epoch_floor: LeaderEpoch::UNKNOWN,
    };
    world.apply(Command::AssignLeaders(vec![assignment])).unwrap();
    assert_eq!(world.metadata.homes(id), there);
    world.set_class(topic, "mirror-3-dc");
    world.apply(plan(&world, 9).unwrap()).unwrap();
    let back = home(MIRRORED, after.generation.next().next());
    assert_eq!(world.metadata.homes(id), [there[0], there[1], back]);
    let encoded = snapshot::encode(&world.metadata);
    assert!(snapshot::decode(&encoded).unwrap() == world.metadata);
    world.apply(Command::DeleteTopic { topic }).unwrap();
    assert_eq!(world.metadata.homes(id), []);
}

#[test]
fn nothing_moves_to_or_from_a_group_that_does_not_serve() {
    for lost in [[10, 11, 12], [4, 5, 6], [1, 5, 9]] {
        let mut world = World::with_both();
        let topic = world.create_topic(1, None, 8);
        world.set_class(topic, STORAGE_CLASS_PARTS);
        for node in lost {
            world.mark(node, Liveness::Dead);
        }
        let plan = Placement::new(&world.metadata, &BTreeSet::new())
            .plan_conversion(&mut Sweep::default(), 99);
        let count = match plan {
            None => 0,
            Some(Command::MovePartitions(moves)) => moves.len(),
            Some(other) => panic!("{other:?}"),
        };
        let alive = world.places(topic).iter().filter(|(_, it)| !lost.contains(it)).count();
        let serves = lost == [4, 5, 6];
        assert_eq!(count, if serves { alive } else { 0 }, "{lost:?}");
    }
}

/// What is away of one group is nothing to the other.
#[test]
fn leases_and_healing_ask_the_group_of_the_node() {
    let mut world = World::with_both();
    let rest = |world: &World, node| {
        grant(&world.metadata, Lease { node: NodeId::new(node), purpose: Purpose::Rest })
    };
    for node in [17, 18] {
        let command = rest(&world, node).unwrap();
        world.apply(command).unwrap();
    }
    assert!(rest(&world, 10).is_err(), "a third rack of the eight");
    let command = rest(&world, 1).unwrap();
    world.apply(command).unwrap();
    // Node 16 fills no slot: it takes one of either group, in its datacenter.
    world.mark(12, Liveness::Dead);
    assert_eq!(plan_heal(&world.metadata, &BTreeSet::from([NodeId::new(12)])), None, "three away");
    let mut world = World::with_both();
    for (lost, group) in [(12, BLOCK), (2, MIRRORED)] {
        world.mark(lost, Liveness::Dead);
        let heal = plan_heal(&world.metadata, &BTreeSet::from([NodeId::new(lost)])).unwrap();
        let Command::ReplaceSlot { group: healed, to, .. } = heal else { panic!("{heal:?}") };
        assert_eq!((healed, to.get()), (group, 16));
    }
}

const SECOND: GroupId = GroupId::new(3);

/// The world with nodes 31 to 39, which make a second group of copies.
fn with_two_of_a_shape() -> World {
    let mut world = World::with_both();
    for node in 0..9 {
        world.start(node + 31, node / 3, 20 + node % 3, FeatureLevel::LATEST);
    }
    let wanted = [Geometry::Block42, Geometry::Mirror3Dc];
    world.apply(plan_group(&world.metadata, &wanted).unwrap()).unwrap();
    assert_eq!(world.metadata.group(SECOND).unwrap().geometry, Geometry::Mirror3Dc);
    world
}

#[test]
fn a_topic_is_spread_over_all_groups_of_its_shape() {
    let mut world = with_two_of_a_shape();
    let copies = world.create_topic(1, None, 36);
    let places = world.places(copies);
    for group in [MIRRORED, SECOND] {
        assert_eq!(places.iter().filter(|(of, _)| *of == group).count(), 18);
    }
    for (group, leader) in &places {
        let slots = &world.metadata.group(*group).unwrap().slots;
        assert!(slots.iter().any(|slot| slot.node.get() == *leader), "{group:?} {leader}");
    }
    let parts = world.create_topic(2, Some(STORAGE_CLASS_PARTS), 18);
    assert!(world.places(parts).iter().all(|(group, _)| *group == BLOCK));

    // Each is where its class may be, so that nothing is moved; and of what changes its class, each partition goes to a
    // node that has less to do.
    let plan = |world: &World| {
        Placement::new(&world.metadata, &BTreeSet::new()).plan_conversion(&mut Sweep::default(), 99)
    };
    assert_eq!(plan(&world), None);
    world.set_class(parts, "mirror-3-dc");
    world.apply(plan(&world).unwrap()).unwrap();
    for group in [MIRRORED, SECOND] {
        assert_eq!(world.places(parts).iter().filter(|(of, _)| *of == group).count(), 9);
    }
    let encoded = snapshot::encode(&world.metadata);
    assert!(snapshot::decode(&encoded).unwrap() == world.metadata);
}

/// A leader outside of all groups that fit says nothing of which one: the first takes it.
#[test]
fn a_partition_led_from_elsewhere_is_in_the_first_group_that_fits() {
    let mut world = with_two_of_a_shape();
    let topic = TopicId::new(1);
    world
        .apply(Command::CreateTopic {
            topic,
            name: "t".to_owned(),
            leaders: vec![NodeId::new(17), NodeId::new(31)],
            configs: Vec::new(),
            internal: false,
        })
        .unwrap();
    assert_eq!(world.places(topic), [(MIRRORED, 17), (SECOND, 31)]);
}

#[test]
fn a_second_group_of_a_shape_waits_until_all_nodes_know_how_it_is_used() {
    let level = FeatureLevel::new(FeatureLevel::GROUPS_SPREAD.get() - 1);
    let mut world = World::new();
    world.apply(Command::SetFeatureLevel(level)).unwrap();
    for node in 0..9 {
        world.start(node + 31, node / 3, 20 + node % 3, level);
    }
    assert_eq!(plan_group(&world.metadata, &[Geometry::Mirror3Dc]), None);
    // An earlier build makes it, and leaves it empty.
    let nodes = (31..40).map(NodeId::new).collect();
    let geometry = Geometry::Mirror3Dc;
    world.apply(Command::CreateGroup { expected_count: 1, geometry, nodes }).unwrap();
    let is_first = |(group, leader): &(GroupId, u32)| *group == MIRRORED && *leader < 10;
    let topic = world.create_topic(1, None, 36);
    assert!(world.places(topic).iter().all(is_first));
    assert_eq!(plan_group(&world.metadata, &[Geometry::Mirror3Dc]), None);

    for node in 0..9 {
        let registration = registration(node + 31, node / 3, 20 + node % 3);
        let feature_level_max = FeatureLevel::LATEST;
        let upgraded = NodeRegistration { feature_level_max, ..registration };
        world.apply(Command::RegisterNode(upgraded)).unwrap();
    }
    let raise = Command::SetFeatureLevel(FeatureLevel::GROUPS_SPREAD);
    assert_eq!(plan_group(&world.metadata, &[Geometry::Mirror3Dc]), Some(raise.clone()));
    world.apply(raise).unwrap();
    assert_eq!(plan_group(&world.metadata, &[Geometry::Mirror3Dc]), None);
    let topic = world.create_topic(2, None, 36);
    assert!(!world.places(topic).iter().all(is_first));
}

/// By name, the first three racks would be used up, and the nodes of the fourth left over.
#[test]
fn groups_are_made_of_the_racks_with_the_most_free_nodes() {
    let mut world = World { metadata: Metadata::default(), index: 0 };
    let cluster_id = ClusterId::from_entropy(5);
    world.apply(Command::Bootstrap { cluster_id, geometry: Geometry::Mirror3Dc }).unwrap();
    for node in 0..36 {
        world.start(node + 1, node % 3, node / 3 % 4, FeatureLevel::LATEST);
    }
    world.apply(Command::SetFeatureLevel(FeatureLevel::LATEST)).unwrap();
    while let Some(step) = plan_group(&world.metadata, &[Geometry::Mirror3Dc; 3]) {
        world.apply(step).unwrap();
    }
    assert_eq!(world.metadata.groups().count(), 4);
}
