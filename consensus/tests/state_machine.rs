//! The metadata state machine: what each command decides, idempotence, and the round trip of its
//! rows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;

use common::registration;
use meridian_base::id::{ClusterId, GroupId, Incarnation, NodeId, PartitionId, TopicId};
use meridian_base::position::{Generation, LeaderEpoch};
use meridian_base::topology::{Geometry, Slot, SlotState};
use meridian_consensus::command::{
    Command, ConfigChange, ConfigResource, ExpectedVersion, FeatureLevel, LeaderAssignment,
    Liveness, MountEpoch, NodeEpoch, NodeRegistration, PartitionMove, Proposal, RequestId,
    RowChange, RowKind,
};
use meridian_consensus::error::Refusal;
use meridian_consensus::snapshot;
use meridian_consensus::state::{
    Applied, Change, Decision, Metadata, ProducerIdBlock, limits, producer_id_prefix,
};
use proptest::prelude::*;

/// A state machine that is given commands one by one.
#[derive(Default)]
struct Machine {
    metadata: Metadata,
    index: u64,
}

const GROUP: GroupId = GroupId::new(1);
const TOPIC: TopicId = TopicId::new(77);

impl Machine {
    fn apply(&mut self, command: Command) -> Applied {
        self.index += 1;
        let request_id = RequestId::new(u128::from(self.index));
        self.metadata.apply(self.index, &Proposal { request_id, command })
    }

    fn decide(&mut self, command: Command) -> Result<Decision, Refusal> {
        self.apply(command).result
    }

    fn mount(&mut self, node: u32, incarnation: u64, epoch: u64, found_data: bool) -> Decision {
        self.decide(Command::MountDisk {
            node: NodeId::new(node),
            incarnation: Incarnation::new(incarnation),
            mount_epoch: MountEpoch::new(epoch),
            found_data,
        })
        .unwrap()
    }

    fn assign(&mut self, partition: u64, expected: u32, leader: u32) -> Applied {
        self.apply(Command::AssignLeaders(vec![LeaderAssignment {
            partition: PartitionId::new(partition),
            expected: Generation::new(expected),
            leader: NodeId::new(leader),
            epoch_floor: LeaderEpoch::UNKNOWN,
        }]))
    }
}

/// Nine nodes in three datacenters of three racks, all registered and mounted.
fn full_cluster() -> Machine {
    let mut machine = Machine::default();
    let cluster_id = ClusterId::from_entropy(5);
    machine.decide(Command::Bootstrap { cluster_id, geometry: Geometry::Mirror3Dc }).unwrap();
    for node in 0..9 {
        let registered = registration(node + 1, node / 3, node % 3);
        machine.decide(Command::RegisterNode(registered)).unwrap();
        assert_eq!(machine.metadata.groups().count(), 0);
        machine.mount(node + 1, 0, 1, false);
    }
    assert_eq!(machine.metadata.groups().count(), 1);
    machine
}

/// Three datacenters, eight more racks in the first of them, which are a second group, and a topic.
fn cluster_of_two_groups() -> Machine {
    let mut machine = Machine::default();
    let cluster_id = ClusterId::from_entropy(5);
    machine.decide(Command::Bootstrap { cluster_id, geometry: Geometry::Mirror3Dc }).unwrap();
    let places = (0..9).map(|node| (node / 3, node % 3)).chain((10..18).map(|rack| (0, rack)));
    for (node, (datacenter, rack)) in (1..).zip(places) {
        let feature_level_max = FeatureLevel::LATEST;
        let registered = registration(node, datacenter, rack);
        let registered = NodeRegistration { feature_level_max, ..registered };
        machine.decide(Command::RegisterNode(registered)).unwrap();
        machine.mount(node, 0, 1, false);
    }
    machine.decide(Command::SetFeatureLevel(FeatureLevel::GROUPS)).unwrap();
    let (expected_count, geometry) = (1, Geometry::Block42);
    let nodes = (10..18).map(NodeId::new).collect();
    machine.decide(Command::CreateGroup { expected_count, geometry, nodes }).unwrap();
    machine.decide(create_topic("orders", TOPIC, &[1, 2, 3])).unwrap();
    machine
}

fn create_topic(name: &str, topic: TopicId, leaders: &[u32]) -> Command {
    Command::CreateTopic {
        topic,
        name: name.to_owned(),
        leaders: leaders.iter().copied().map(NodeId::new).collect(),
        configs: vec![ConfigChange {
            name: "retention.ms".to_owned(),
            value: Some("1000".to_owned()),
        }],
        internal: false,
    }
}

fn cluster_with_topic() -> Machine {
    let mut machine = full_cluster();
    machine.decide(create_topic("orders", TOPIC, &[1, 2, 3])).unwrap();
    machine
}

#[test]
fn nothing_is_decided_before_the_bootstrap() {
    let mut machine = Machine::default();
    let refused = machine.decide(Command::RegisterNode(registration(1, 1, 1)));
    assert_eq!(refused, Err(Refusal::NotBootstrapped));
    let bootstrap =
        Command::Bootstrap { cluster_id: ClusterId::from_entropy(1), geometry: Geometry::None };
    machine.decide(bootstrap.clone()).unwrap();
    assert_eq!(machine.decide(bootstrap), Err(Refusal::AlreadyBootstrapped));
}

#[test]
fn the_group_is_created_when_its_geometry_is_filled() {
    let machine = full_cluster();
    let group = machine.metadata.group(GROUP).unwrap();
    assert_eq!(group.geometry, Geometry::Mirror3Dc);
    let nodes: Vec<u32> = group.slots.iter().map(|slot| slot.node.get()).collect();
    assert_eq!(nodes, (1..=9).collect::<Vec<_>>());
    assert_eq!(group.good_slots(), Geometry::Mirror3Dc.slots());
    let incarnations: BTreeSet<_> = group.slots.iter().map(|slot| slot.incarnation).collect();
    assert_eq!(incarnations.len(), 9);
}

#[test]
fn a_topic_needs_a_group() {
    let mut machine = Machine::default();
    let cluster_id = ClusterId::from_entropy(5);
    machine.decide(Command::Bootstrap { cluster_id, geometry: Geometry::None }).unwrap();
    machine.decide(Command::RegisterNode(registration(1, 1, 1))).unwrap();
    let command = create_topic("orders", TOPIC, &[1]);
    assert_eq!(machine.decide(command.clone()), Err(Refusal::NotEnoughNodes));
    machine.mount(1, 0, 1, false);
    assert_eq!(machine.decide(command), Ok(Decision::Done));
}

#[test]
fn a_known_disk_is_accepted_and_a_stale_or_wiped_one_is_not() {
    let mut machine = cluster_with_topic();
    let good = machine.mount(1, 1, 2, true);
    let slot = Some((GROUP, Slot::new(0)));
    let accepted =
        Decision::Mounted { incarnation: Incarnation::new(1), state: SlotState::Good, slot };
    assert_eq!(good, accepted);
    assert_eq!(machine.metadata.group(GROUP).unwrap().version.get(), 1);

    // (incarnation, mount epoch, found data): an older image, a wiped disk, another node's disk.
    for (round, (incarnation, epoch, found_data)) in
        [(1, 2, true), (0, 3, false), (2, 9, true)].into_iter().enumerate()
    {
        let mounted = machine.mount(1, incarnation, epoch, found_data);
        let Decision::Mounted { incarnation, state, .. } = mounted else { panic!() };
        assert_eq!(incarnation.get(), 10 + round as u64, "a life never lived before");
        assert_eq!(state, SlotState::LostData);
        let group = machine.metadata.group(GROUP).unwrap();
        assert_eq!(group.version.get(), 2 + round as u64);
        assert!(!group.good_slots().contains(Slot::new(0)));
    }
}

#[test]
fn a_lost_slot_counts_again_once_its_present_life_has_synced() {
    let mut machine = cluster_with_topic();
    machine.mount(1, 0, 1, false);
    let synced = |incarnation| Command::SlotSynced {
        group: GROUP,
        slot: Slot::new(0),
        incarnation: Incarnation::new(incarnation),
    };
    assert_eq!(machine.decide(synced(1)), Err(Refusal::StaleSlot));
    assert_eq!(machine.decide(synced(10)), Ok(Decision::Done));
    let group = machine.metadata.group(GROUP).unwrap();
    assert_eq!((group.version.get(), group.good_slots().count()), (3, 9));
    // Said twice is said once.
    assert!(machine.apply(synced(10)).changes.is_empty());
}

#[test]
fn a_disk_replaced_before_any_partition_existed_lost_nothing() {
    let mut machine = full_cluster();
    let mounted = machine.mount(1, 0, 1, false);
    assert!(matches!(mounted, Decision::Mounted { state: SlotState::Good, .. }));
    assert_eq!(machine.metadata.group(GROUP).unwrap().version.get(), 2);
}

#[test]
fn a_slot_moves_only_within_its_datacenter_and_only_in_safety() {
    let mut machine = cluster_with_topic();
    for (node, datacenter) in [(10, 0), (11, 1)] {
        machine.decide(Command::RegisterNode(registration(node, datacenter, 9))).unwrap();
        machine.mount(node, 0, 1, false);
    }
    let replace = |from, to| Command::ReplaceSlot {
        group: GROUP,
        slot: Slot::new(0),
        from: NodeId::new(from),
        to: NodeId::new(to),
    };
    let unsuitable = |node| Err(Refusal::UnsuitableNode(NodeId::new(node)));
    assert_eq!(machine.decide(replace(1, 11)), unsuitable(11));
    assert_eq!(machine.decide(replace(1, 2)), unsuitable(2));
    assert_eq!(machine.decide(replace(2, 10)), Err(Refusal::StaleSlot));
    for node in [4, 5, 7, 8] {
        machine.mount(node, 0, 1, false);
    }
    assert_eq!(machine.decide(replace(1, 10)), Err(Refusal::GroupAtRisk));
    let mut machine = cluster_with_topic();
    machine.decide(Command::RegisterNode(registration(10, 0, 9))).unwrap();
    machine.mount(10, 0, 1, false);
    assert_eq!(machine.decide(replace(1, 10)), Ok(Decision::Done));
    let slot = machine.metadata.group(GROUP).unwrap().slots[0];
    assert_eq!((slot.node.get(), slot.state), (10, SlotState::LostData));
}

#[test]
fn topics_are_created_looked_up_and_deleted() {
    let mut machine = cluster_with_topic();
    let topic = machine.metadata.topic_named("orders").unwrap();
    assert_eq!(topic.partitions.len(), 3);
    let (id, partition) = machine.metadata.partition_at(TOPIC, 2).unwrap();
    assert_eq!((id, partition.leader.get()), (PartitionId::new(3), 3));
    assert_eq!(partition.generation, Generation::FIRST);
    let resource = ConfigResource::Topic(TOPIC);
    assert_eq!(machine.metadata.config(&resource, "retention.ms"), Some("1000"));

    let deleted = machine.apply(Command::DeleteTopic { topic: TOPIC });
    assert!(matches!(&deleted.changes[..], [Change::TopicDeleted(topic)] if topic.id == TOPIC));
    assert!(machine.metadata.topic_named("orders").is_none());
    assert_eq!(machine.metadata.partitions().count(), 0);
    assert_eq!(machine.metadata.configs(&resource).count(), 0);
    let again = machine.decide(Command::DeleteTopic { topic: TOPIC });
    assert_eq!(again, Err(Refusal::UnknownTopic(TOPIC)));

    machine.decide(create_topic("orders", TopicId::new(78), &[1])).unwrap();
    let (id, _) = machine.metadata.partition_at(TopicId::new(78), 0).unwrap();
    assert_eq!(id, PartitionId::new(4), "partition ids are never reused");
}

#[test]
fn a_topic_that_is_set_aside_keeps_all_but_its_name() {
    let mut machine = cluster_with_topic();
    let before = machine.metadata.topics_version();
    let aside = |name: &str| Command::SetAside { topic: TOPIC, name: name.to_owned() };
    machine.decide(create_topic("other", TopicId::new(78), &[1])).unwrap();
    assert_eq!(machine.decide(aside("other")), Err(Refusal::TopicExists));
    assert_eq!(machine.decide(aside("")), Err(Refusal::InvalidTopicName));
    let done = machine.apply(aside("__aside"));
    assert_eq!(done.changes, [Change::TopicSetAside(TOPIC)]);
    assert!(machine.metadata.topic_named("orders").is_none());
    let topic = machine.metadata.topic_named("__aside").unwrap();
    assert_eq!((topic.id, topic.partitions.len(), topic.internal), (TOPIC, 3, true));
    assert_eq!(machine.metadata.configs(&ConfigResource::Topic(TOPIC)).count(), 1);
    assert_ne!(machine.metadata.topics_version(), before, "groups look at their topics anew");
    // Again: nothing happens, also to whoever has taken the name.
    machine.decide(create_topic("orders", TopicId::new(79), &[1])).unwrap();
    assert_eq!(machine.apply(aside("__aside")).changes, []);
    assert_eq!(machine.metadata.topic_named("orders").unwrap().id, TopicId::new(79));
}

#[test]
fn topics_that_cannot_be_are_refused() {
    let mut machine = cluster_with_topic();
    let other = TopicId::new(5);
    let too_long = "x".repeat(250);
    for name in ["", ".", "..", "a b", "ö", "a/b", too_long.as_str()] {
        let refused = machine.decide(create_topic(name, other, &[1]));
        assert_eq!(refused, Err(Refusal::InvalidTopicName), "{name}");
    }
    machine.decide(create_topic("a.b_c", TopicId::new(6), &[1])).unwrap();
    let collides = machine.decide(create_topic("a_b.c", other, &[1]));
    assert_eq!(collides, Err(Refusal::TopicCollides("a.b_c".to_owned())));
    assert_eq!(machine.metadata.name_shown_as("a.b.c"), Some("a.b_c"));
    assert_eq!(machine.metadata.name_shown_as("a.b"), None);
    machine.decide(Command::DeleteTopic { topic: TopicId::new(6) }).unwrap();
    assert_eq!(machine.metadata.name_shown_as("a.b.c"), None);
    let exists = machine.decide(create_topic("orders", other, &[1]));
    assert_eq!(exists, Err(Refusal::TopicExists));
    assert_eq!(machine.decide(create_topic("n", TOPIC, &[1])), Err(Refusal::TopicExists));
    let none = machine.decide(create_topic("n", other, &[]));
    assert!(matches!(none, Err(Refusal::InvalidPartitions { .. })));
    let unknown = machine.decide(create_topic("n", other, &[99]));
    assert_eq!(unknown, Err(Refusal::UnknownNode(NodeId::new(99))));
}

#[test]
fn partitions_are_added_to_what_was_seen() {
    let mut machine = cluster_with_topic();
    let more = |expected_count| Command::CreatePartitions {
        topic: TOPIC,
        expected_count,
        leaders: vec![NodeId::new(4)],
    };
    let stale = Err(Refusal::StalePartitionCount { current: 3 });
    assert_eq!(machine.decide(more(2)), stale);
    machine.decide(more(3)).unwrap();
    let (_, partition) = machine.metadata.partition_at(TOPIC, 3).unwrap();
    assert_eq!((partition.index, partition.leader.get()), (3, 4));
}

#[test]
fn a_stale_assignment_is_skipped() {
    let mut machine = cluster_with_topic();
    let applied = machine.assign(1, 1, 5);
    assert_eq!(applied.result, Ok(Decision::Assigned { assigned_count: 1, skipped_count: 0 }));
    let previous = NodeId::new(1);
    let partition = PartitionId::new(1);
    assert_eq!(applied.changes, [Change::LeaderAssigned { partition, previous }]);
    let partition = *machine.metadata.partition(partition).unwrap();
    assert_eq!(partition.generation, Generation::new(2));
    assert_eq!(partition.leader_epoch, LeaderEpoch::new(1));
    for (expected, leader) in [(1, 6), (3, 6), (2, 99)] {
        let applied = machine.assign(1, expected, leader);
        let skipped = Decision::Assigned { assigned_count: 0, skipped_count: 1 };
        assert_eq!(applied.result, Ok(skipped));
        assert!(applied.changes.is_empty());
    }
}

#[test]
fn a_promoted_mirror_continues_its_sources_epochs() {
    let mut machine = cluster_with_topic();
    machine
        .decide(Command::AssignLeaders(vec![LeaderAssignment {
            partition: PartitionId::new(1),
            expected: Generation::FIRST,
            leader: NodeId::new(1),
            epoch_floor: LeaderEpoch::new(41),
        }]))
        .unwrap();
    let partition = machine.metadata.partition(PartitionId::new(1)).unwrap();
    assert_eq!(partition.leader_epoch, LeaderEpoch::new(42));
}

#[test]
fn producer_ids_are_positive_unique_and_the_clusters_own() {
    let mut machine = cluster_with_topic();
    let allocate = Command::AllocateProducerIds { node: NodeId::new(1) };
    let mut next = None;
    for _ in 0..10 {
        let Ok(Decision::ProducerIds(ProducerIdBlock { first, count })) =
            machine.decide(allocate.clone())
        else {
            panic!()
        };
        assert!(first >= 0);
        assert!(next.is_none_or(|next| next == first));
        next = Some(first + i64::from(count));
    }
    let prefixes: BTreeSet<i64> = (0..2_000u128)
        .map(|entropy| producer_id_prefix(&ClusterId::from_entropy(entropy * 7_919)))
        .collect();
    assert_eq!(prefixes.len(), 2_000);
    assert!(prefixes.iter().all(|prefix| *prefix >= 0 && prefix % (1 << 36) == 0));
}

#[test]
fn a_verdict_on_an_old_registration_is_refused() {
    let mut machine = full_cluster();
    let node = NodeId::new(1);
    let old = machine.metadata.node(node).unwrap().epoch;
    machine.decide(Command::RegisterNode(registration(1, 0, 0))).unwrap();
    let current = NodeEpoch::new(machine.index);
    let mark = |epoch| Command::MarkNode { node, epoch, liveness: Liveness::Dead };
    assert_eq!(machine.decide(mark(old)), Err(Refusal::StaleNode { node, current }));
    machine.decide(mark(current)).unwrap();
    assert_eq!(machine.metadata.node(node).unwrap().liveness, Liveness::Dead);
    machine.decide(Command::RegisterNode(registration(1, 0, 0))).unwrap();
    assert_eq!(machine.metadata.node(node).unwrap().liveness, Liveness::Alive);
}

#[test]
fn the_feature_level_rises_only_when_all_nodes_can() {
    let mut machine = full_cluster();
    let raise = |level| Command::SetFeatureLevel(FeatureLevel::new(level));
    machine.decide(raise(2)).unwrap();
    let current = FeatureLevel::new(2);
    assert_eq!(machine.decide(raise(1)), Err(Refusal::FeatureLevelSinks { current }));
    assert!(matches!(machine.decide(raise(3)), Err(Refusal::UnsupportedFeatureLevel { .. })));
    let mut old = registration(1, 0, 0);
    old.feature_level_max = FeatureLevel::new(1);
    let refused = machine.decide(Command::RegisterNode(old));
    assert!(matches!(refused, Err(Refusal::UnsupportedFeatureLevel { .. })));
}

#[test]
fn a_cluster_of_eight_racks_lets_in_only_nodes_that_know_such() {
    let mut machine = Machine::default();
    let (cluster_id, geometry) = (ClusterId::from_entropy(5), Geometry::Block42);
    machine.decide(Command::Bootstrap { cluster_id, geometry }).unwrap();
    let level = FeatureLevel::EIGHT_RACKS;
    assert_eq!(machine.metadata.feature_level(), level);
    let node = NodeId::new(1);
    let old =
        NodeRegistration { feature_level_max: FeatureLevel::OBJECTS, ..registration(1, 0, 0) };
    let refused = machine.decide(Command::RegisterNode(old));
    assert_eq!(refused, Err(Refusal::UnsupportedFeatureLevel { node, level }));
    for rack in 0..8 {
        assert_eq!(machine.metadata.groups().count(), 0);
        let new = NodeRegistration {
            feature_level_max: FeatureLevel::LATEST,
            ..registration(rack + 1, 0, rack)
        };
        machine.decide(Command::RegisterNode(new)).unwrap();
        machine.mount(rack + 1, 0, 1, false);
    }
    let group = machine.metadata.group(GROUP).unwrap();
    assert_eq!((group.geometry, group.good_slots()), (geometry, geometry.slots()));
}

#[test]
fn only_idle_nodes_are_removed() {
    let mut machine = cluster_with_topic();
    let node = NodeId::new(1);
    let remove = |node| Command::RemoveNode { node };
    assert_eq!(machine.decide(remove(node)), Err(Refusal::NodeInUse(node)));
    let spare = NodeId::new(20);
    assert_eq!(machine.decide(remove(spare)), Err(Refusal::UnknownNode(spare)));
    machine.decide(Command::RegisterNode(registration(20, 0, 0))).unwrap();
    let life = machine.metadata.raft_life(spare);
    machine.decide(remove(spare)).unwrap();
    assert!(machine.metadata.node(spare).is_none());
    assert!(machine.metadata.raft_life(spare) > life, "it leaves the raft group as well");
}

#[test]
fn what_rows_hold_is_not_printed() {
    let change = RowChange {
        kind: RowKind::LinkOptions,
        key: b"west".to_vec(),
        value: Some(b"hush".to_vec()),
        expected: ExpectedVersion::Absent,
    };
    let row = meridian_consensus::state::Row { version: 7, value: b"hush".to_vec() };
    let hidden = format!("{:?}", b"hush");
    let printed = format!("{:?} {row:?}", Command::PutRows(vec![change]));
    assert!(printed.contains("west") && printed.contains("version: 7"), "{printed}");
    assert!(
        !printed.contains("hush") && !printed.contains(&hidden[1..hidden.len() - 1]),
        "{printed}"
    );
}

#[test]
fn rows_are_written_only_at_the_version_seen() {
    let mut machine = full_cluster();
    let put = |value: &[u8], expected| {
        Command::PutRows(vec![RowChange {
            kind: RowKind::Acl,
            key: b"k".to_vec(),
            value: Some(value.to_vec()),
            expected,
        }])
    };
    machine.decide(put(b"1", ExpectedVersion::Absent)).unwrap();
    let version = machine.index;
    let stale = Err(Refusal::StaleRow { index: 0 });
    assert_eq!(machine.decide(put(b"2", ExpectedVersion::Absent)), stale);
    assert_eq!(machine.decide(put(b"2", ExpectedVersion::Exactly(version + 1))), stale);
    machine.decide(put(b"2", ExpectedVersion::Exactly(version))).unwrap();
    machine.decide(put(b"3", ExpectedVersion::Any)).unwrap();
    assert_eq!(machine.metadata.extra_row(RowKind::Acl, b"k").unwrap().value, b"3");
    assert_eq!(machine.metadata.extra_rows(RowKind::Acl).count(), 1);
    assert_eq!(machine.metadata.extra_rows(RowKind::Quota).count(), 0);
    let large = vec![0; limits::VALUE_SIZE_BYTES_MAX + 1];
    let refused = machine.decide(put(&large, ExpectedVersion::Any));
    assert!(matches!(refused, Err(Refusal::TooLarge { .. })));
}

#[test]
fn old_requests_are_forgotten_in_order() {
    let mut machine = full_cluster();
    for _ in 0..limits::REQUESTS_REMEMBERED_MAX {
        machine.decide(Command::AllocateRaftLife { node: NodeId::new(1) }).unwrap();
    }
    assert!(machine.metadata.result_of(RequestId::new(1)).is_none());
    let last = RequestId::new(u128::from(machine.index));
    assert!(machine.metadata.result_of(last).is_some());
}

#[test]
fn a_hundred_thousand_partitions_are_taken_over_quickly() {
    let mut machine = full_cluster();
    let leaders: Vec<u32> = (0..100_000).map(|index| index % 9 + 1).collect();
    machine.decide(create_topic("large", TOPIC, &leaders)).unwrap();
    let assignments = (1..=limits::BATCH_COUNT_MAX as u64).map(|partition| LeaderAssignment {
        partition: PartitionId::new(partition),
        expected: Generation::FIRST,
        leader: NodeId::new(2),
        epoch_floor: LeaderEpoch::UNKNOWN,
    });
    let command = Command::AssignLeaders(assignments.collect());
    let proposal = Proposal { request_id: RequestId::new(1 << 90), command };
    assert!(proposal.encode().len() < 200_000, "a batch fits well into one message");
    let assigned_count = limits::BATCH_COUNT_MAX as u32;
    let applied = machine.metadata.apply(machine.index + 1, &proposal);
    assert_eq!(applied.result, Ok(Decision::Assigned { assigned_count, skipped_count: 0 }));
    let snapshot = snapshot::encode(&machine.metadata);
    assert!(snapshot.len() < 100_000 * 150, "{} bytes", snapshot.len());
    assert!(snapshot::decode(&snapshot).unwrap() == machine.metadata);
}

#[test]
fn the_encoding_of_proposals_is_stable() {
    let proposal = Proposal {
        request_id: RequestId::new(300),
        command: Command::AllocateProducerIds { node: NodeId::new(7) },
    };
    assert_eq!(proposal.encode(), [1, 0xAC, 0x02, 10, 7]);
    let proposal = Proposal {
        request_id: RequestId::new(1),
        command: Command::PutRows(vec![RowChange {
            kind: RowKind::MirrorTopic,
            key: vec![9],
            value: None,
            expected: ExpectedVersion::Exactly(5),
        }]),
    };
    assert_eq!(proposal.encode(), [1, 1, 15, 1, 4, 1, 9, 0, 2, 5]);
    let nodes = vec![NodeId::new(4), NodeId::new(5)];
    let create = Command::CreateGroup { expected_count: 1, geometry: Geometry::Block42, nodes };
    let assignment = LeaderAssignment {
        partition: PartitionId::new(7),
        expected: Generation::new(3),
        leader: NodeId::new(2),
        epoch_floor: LeaderEpoch::UNKNOWN,
    };
    let moves = vec![PartitionMove { assignment, group: GroupId::new(6) }];
    let encoded = |command| Proposal { request_id: RequestId::new(1), command }.encode();
    assert_eq!(encoded(create), [1, 1, 16, 1, 3, 2, 4, 5]);
    assert_eq!(encoded(Command::MovePartitions(moves)), [1, 1, 17, 1, 7, 3, 2, 1, 6]);
    let aside = Command::SetAside { topic: TopicId::new(5), name: "s".to_owned() };
    assert_eq!(encoded(aside), [1, 1, 18, 5, 1, b's']);
}

fn any_rows() -> impl Strategy<Value = Command> {
    (0..3u8, prop::option::of(any::<u8>()), 0..3u64).prop_map(|(key, value, version)| {
        let expected = match version {
            0 => ExpectedVersion::Any,
            1 => ExpectedVersion::Absent,
            version => ExpectedVersion::Exactly(version),
        };
        Command::PutRows(vec![RowChange {
            kind: RowKind::Link,
            key: vec![key],
            value: value.map(|value| vec![value]),
            expected,
        }])
    })
}

fn any_command() -> impl Strategy<Value = Command> {
    let node = || (1..12u32).prop_map(NodeId::new);
    let topic = || (1..4u128).prop_map(TopicId::new);
    let liveness =
        prop_oneof![Just(Liveness::Alive), Just(Liveness::Dead), Just(Liveness::Draining)];
    prop_oneof![
        (1..12u32, 0..3u32, 0..3u32)
            .prop_map(|(node, dc, rack)| Command::RegisterNode(registration(node, dc, rack))),
        (node(), 0..15u64, 0..5u64, any::<bool>()).prop_map(
            |(node, incarnation, epoch, found_data)| Command::MountDisk {
                node,
                incarnation: Incarnation::new(incarnation),
                mount_epoch: MountEpoch::new(epoch),
                found_data,
            }
        ),
        (0..9u8, 0..20u64).prop_map(|(slot, incarnation)| Command::SlotSynced {
            group: GROUP,
            slot: Slot::new(slot),
            incarnation: Incarnation::new(incarnation),
        }),
        (0..9u8, node(), node()).prop_map(|(slot, from, to)| Command::ReplaceSlot {
            group: GROUP,
            slot: Slot::new(slot),
            from,
            to,
        }),
        (topic(), "[a-c]{1,2}", prop::collection::vec(1..10u32, 0..4))
            .prop_map(|(topic, name, leaders)| create_topic(&name, topic, &leaders)),
        topic().prop_map(|topic| Command::DeleteTopic { topic }),
        (topic(), "[a-c]{1,2}").prop_map(|(topic, name)| Command::SetAside { topic, name }),
        (topic(), 0..4u32, prop::collection::vec(node(), 1..3)).prop_map(
            |(topic, expected_count, leaders)| Command::CreatePartitions {
                topic,
                expected_count,
                leaders,
            }
        ),
        (topic(), "[a-c]", prop::option::of("[x-z]{0,3}")).prop_map(|(topic, name, value)| {
            let changes = vec![ConfigChange { name, value }];
            Command::SetConfigs { resource: ConfigResource::Topic(topic), changes }
        }),
        prop::collection::vec((1..12u64, 1..4u32, node(), -1..50i32), 0..5).prop_map(|entries| {
            let assign = |(partition, expected, leader, floor)| LeaderAssignment {
                partition: PartitionId::new(partition),
                expected: Generation::new(expected),
                leader,
                epoch_floor: LeaderEpoch::new(floor),
            };
            Command::AssignLeaders(entries.into_iter().map(assign).collect())
        }),
        node().prop_map(|node| Command::AllocateProducerIds { node }),
        (node(), 0..40u64, liveness).prop_map(|(node, epoch, liveness)| Command::MarkNode {
            node,
            epoch: NodeEpoch::new(epoch),
            liveness,
        }),
        (1..3u16).prop_map(|level| Command::SetFeatureLevel(FeatureLevel::new(level))),
        node().prop_map(|node| Command::RemoveNode { node }),
        node().prop_map(|node| Command::AllocateRaftLife { node }),
        any_rows(),
        any_group(),
        any_moves(),
    ]
}

fn any_group() -> impl Strategy<Value = Command> {
    (1..3u32, prop::collection::vec(9..20u32, 8..9)).prop_map(|(expected_count, nodes)| {
        let nodes = nodes.into_iter().map(NodeId::new).collect();
        Command::CreateGroup { expected_count, geometry: Geometry::Block42, nodes }
    })
}

fn any_moves() -> impl Strategy<Value = Command> {
    prop::collection::vec((1..12u64, 1..4u32, 1..10u32, 1..4u32), 0..5).prop_map(|entries| {
        let moved = |(partition, expected, leader, group)| PartitionMove {
            assignment: LeaderAssignment {
                partition: PartitionId::new(partition),
                expected: Generation::new(expected),
                leader: NodeId::new(leader),
                epoch_floor: LeaderEpoch::UNKNOWN,
            },
            group: GroupId::new(group),
        };
        Command::MovePartitions(entries.into_iter().map(moved).collect())
    })
}

proptest! {
    #[test]
    fn commands_survive_their_encoding(command in any_command(), id in any::<u128>()) {
        let proposal = Proposal { request_id: RequestId::new(id), command };
        prop_assert_eq!(Proposal::decode(&proposal.encode()), Ok(proposal));
    }

    #[test]
    fn arbitrary_bytes_are_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Proposal::decode(&bytes);
        let _ = snapshot::decode(&bytes);
    }

    /// Applying is deterministic and idempotent; rows hold all of the state; fences only grow.
    #[test]
    fn applying_keeps_its_promises(
        commands in prop::collection::vec((any_command(), any::<bool>()), 1..60),
        has_two_groups in any::<bool>(),
    ) {
        let mut machine = if has_two_groups { cluster_of_two_groups() } else { full_cluster() };
        let mut rows: std::collections::BTreeMap<_, _> = machine
            .metadata
            .row_keys()
            .map(|key| (key.clone(), machine.metadata.row(&key).unwrap()))
            .collect();
        for (command, twice) in commands {
            let generations: Vec<_> = machine
                .metadata
                .partitions()
                .map(|(id, partition)| (id, partition.generation, partition.leader_epoch))
                .collect();
            let applied = machine.apply(command.clone());
            if applied.result.is_err() {
                prop_assert!(applied.changes.is_empty());
            }
            for key in &applied.rows {
                match machine.metadata.row(key) {
                    Some(value) => rows.insert(key.clone(), value),
                    None => rows.remove(key),
                };
            }
            if twice {
                let request_id = RequestId::new(u128::from(machine.index));
                let before = machine.metadata.clone();
                machine.index += 1;
                let again =
                    machine.metadata.apply(machine.index, &Proposal { request_id, command });
                prop_assert_eq!(again.result, applied.result);
                prop_assert!(again.changes.is_empty() && again.rows.is_empty());
                prop_assert!(machine.metadata == before);
            }
            for (id, generation, leader_epoch) in generations {
                if let Some(partition) = machine.metadata.partition(id) {
                    prop_assert!(partition.generation >= generation);
                    prop_assert!(partition.leader_epoch >= leader_epoch);
                    let homes = machine.metadata.homes(id);
                    prop_assert!(homes.last().is_none_or(|home| home.group == partition.group));
                    prop_assert!(homes.windows(2).all(|pair| pair[0].first < pair[1].first));
                    prop_assert!(homes.last().is_none_or(|it| it.first <= partition.generation));
                }
            }
        }
        let rebuilt = Metadata::from_rows(rows).unwrap();
        prop_assert!(rebuilt == machine.metadata, "the rows reported are all that changed");
        let encoded = snapshot::encode(&machine.metadata);
        prop_assert!(snapshot::decode(&encoded).unwrap() == machine.metadata);
        prop_assert_eq!(snapshot::encode(&rebuilt), encoded);
    }
}
