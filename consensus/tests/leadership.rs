//! Who leads partitions and who votes: placement, supervision, membership plans.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::registration;
use meridian_base::env::Instant;
use meridian_base::id::{ClusterId, Incarnation, NodeId, PartitionId, TopicId};
use meridian_base::position::Generation;
use meridian_base::topology::Geometry;
use meridian_consensus::command::{
    Command, ConfigChange, ConfigResource, Liveness, MountEpoch, Proposal, RequestId, Roles,
};
use meridian_consensus::config::Config;
use meridian_consensus::membership::{
    Formation, FormationStep, MemberRole, Membership, PeerStanding, RaftId, RaftLife, plan_change,
};
use meridian_consensus::placement::{
    PREFERRED_LEADER_DC, Placement, Preference, Sweep, plan_reclaim,
};
use meridian_consensus::state::Metadata;
use meridian_consensus::supervisor::Supervisor;

const TOPIC: TopicId = TopicId::new(1);
/// The node that leads the metadata log.
const OWN: NodeId = NodeId::new(9);

struct World {
    metadata: Metadata,
    index: u64,
}

impl World {
    /// Nine nodes in three datacenters and one topic of `partition_count` partitions.
    fn new(partition_count: u32) -> Self {
        let mut world = Self { metadata: Metadata::default(), index: 0 };
        let cluster_id = ClusterId::from_entropy(5);
        world.apply(Command::Bootstrap { cluster_id, geometry: Geometry::Mirror3Dc });
        for node in 0..9 {
            world.apply(Command::RegisterNode(registration(node + 1, node / 3, node % 3)));
            world.apply(Command::MountDisk {
                node: NodeId::new(node + 1),
                incarnation: Incarnation::new(0),
                mount_epoch: MountEpoch::new(1),
                found_data: false,
            });
        }
        let mut placement = Placement::new(&world.metadata, &BTreeSet::new());
        let leaders =
            placement.initial_leaders(partition_count, &Preference::default(), None).unwrap();
        world.apply(Command::CreateTopic {
            topic: TOPIC,
            name: "t".to_owned(),
            leaders,
            configs: Vec::new(),
            internal: false,
        });
        world
    }

    fn apply(&mut self, command: Command) {
        self.index += 1;
        let request_id = RequestId::new(u128::from(self.index));
        let applied = self.metadata.apply(self.index, &Proposal { request_id, command });
        applied.result.unwrap();
    }

    fn apply_all(&mut self, commands: Vec<Command>) {
        commands.into_iter().for_each(|command| self.apply(command));
    }

    fn prefer(&mut self, datacenters: &str) {
        self.apply(Command::SetConfigs {
            resource: ConfigResource::Topic(TOPIC),
            changes: vec![ConfigChange {
                name: PREFERRED_LEADER_DC.to_owned(),
                value: Some(datacenters.to_owned()),
            }],
        });
    }

    fn mark(&mut self, node: u32, liveness: Liveness) {
        let node = NodeId::new(node);
        let epoch = self.metadata.node(node).unwrap().epoch;
        self.apply(Command::MarkNode { node, epoch, liveness });
    }

    /// How many partitions each node leads.
    fn loads(&self) -> BTreeMap<u32, u32> {
        let mut loads = BTreeMap::new();
        for (_, partition) in self.metadata.partitions() {
            *loads.entry(partition.leader.get()).or_default() += 1;
        }
        loads
    }

    fn rebalance(&mut self, moves_max: usize) -> usize {
        let plan = Placement::new(&self.metadata, &BTreeSet::new())
            .plan_rebalance(&mut Sweep::default(), moves_max);
        let count = moves(&plan);
        self.apply_all(plan);
        count
    }
}

fn moves(plan: &[Command]) -> usize {
    plan.iter()
        .map(|command| match command {
            Command::AssignLeaders(assignments) => assignments.len(),
            other => panic!("{other:?} moves nothing"),
        })
        .sum()
}

fn nodes<const COUNT: usize>(ids: [u32; COUNT]) -> BTreeSet<NodeId> {
    ids.into_iter().map(NodeId::new).collect()
}

#[test]
fn new_partitions_are_spread_evenly() {
    let world = World::new(90);
    assert_eq!(world.loads(), (1..=9).map(|node| (node, 10)).collect());
}

/// A node that was away leads little; a new topic must not go to it alone.
#[test]
fn a_new_topic_is_spread_over_busy_and_idle_nodes_alike() {
    let mut world = World::new(90);
    let dead = nodes([9]);
    for command in Placement::new(&world.metadata, &dead).plan_takeover(&dead, |_, _| true) {
        world.apply(command);
    }
    let mut placement = Placement::new(&world.metadata, &BTreeSet::new());
    let leaders = placement.initial_leaders(9, &Preference::default(), None).unwrap();
    assert_eq!(leaders.into_iter().collect::<BTreeSet<_>>(), nodes([1, 2, 3, 4, 5, 6, 7, 8, 9]));
}

#[test]
fn new_partitions_go_where_they_are_wanted() {
    let world = World::new(0x10);
    let mut placement = Placement::new(&world.metadata, &nodes([4]));
    let leaders = placement.initial_leaders(20, &Preference::parse(" dc1, dc0 "), None).unwrap();
    let chosen: BTreeSet<NodeId> = leaders.into_iter().collect();
    assert_eq!(chosen, nodes([5, 6]));
}

#[test]
fn nodes_without_a_slot_lead_only_when_no_other_can() {
    let mut world = World::new(9);
    let mut apart = registration(30, 0, 0);
    apart.roles = Roles { meta: false, storage: false, gateway: true };
    world.apply(Command::RegisterNode(apart));
    let mut placement = Placement::new(&world.metadata, &BTreeSet::new());
    let leaders = placement.initial_leaders(30, &Preference::default(), None).unwrap();
    assert!(!leaders.contains(&NodeId::new(30)));
    let slots: BTreeSet<NodeId> = (1..=9).map(NodeId::new).collect();
    let mut placement = Placement::new(&world.metadata, &slots);
    let leaders = placement.initial_leaders(2, &Preference::default(), None).unwrap();
    assert_eq!(leaders, [NodeId::new(30), NodeId::new(30)]);
    let everyone = slots.iter().copied().chain([NodeId::new(30)]).collect();
    let mut placement = Placement::new(&world.metadata, &everyone);
    assert_eq!(placement.initial_leaders(1, &Preference::default(), None), None);
}

#[test]
fn a_takeover_spreads_the_dead_nodes_partitions() {
    let mut world = World::new(90);
    let dead = nodes([1, 2]);
    let plan = Placement::new(&world.metadata, &dead).plan_takeover(&dead, |_, _| true);
    assert_eq!((plan.len(), moves(&plan)), (1, 20));
    world.apply_all(plan);
    let loads = world.loads();
    assert!(!loads.contains_key(&1) && !loads.contains_key(&2));
    assert!(loads.values().all(|count| (12..=13).contains(count)), "{loads:?}");
}

#[test]
fn a_takeover_stays_in_the_preferred_datacenter() {
    let mut world = World::new(90);
    world.prefer("dc2");
    while world.rebalance(1_000) > 0 {}
    assert_eq!(world.loads(), BTreeMap::from([(7, 30), (8, 30), (9, 30)]));
    let dead = nodes([7]);
    let plan = Placement::new(&world.metadata, &dead).plan_takeover(&dead, |_, _| true);
    world.apply_all(plan);
    assert_eq!(world.loads(), BTreeMap::from([(8, 45), (9, 45)]));
}

#[test]
fn rebalancing_is_bounded_and_comes_to_rest() {
    let mut world = World::new(90);
    let dead = nodes([1]);
    let plan = Placement::new(&world.metadata, &dead).plan_takeover(&dead, |_, _| true);
    world.apply_all(plan);
    assert_eq!(world.rebalance(3), 3);
    let mut rounds = 0;
    while world.rebalance(3) > 0 {
        rounds += 1;
        assert!(rounds < 20, "rebalancing goes on for ever: {:?}", world.loads());
    }
    let loads = world.loads();
    assert!(loads[&1] >= 8, "{loads:?}");
}

/// Takeovers on such a node wait behind the copies that its disk asks for, and producers for them.
#[test]
fn a_node_whose_disk_is_refilled_gets_its_share_when_it_is_whole() {
    let mut world = World::new(90);
    let dead = nodes([1]);
    let plan = Placement::new(&world.metadata, &dead).plan_takeover(&dead, |_, _| true);
    world.apply_all(plan);
    world.apply(Command::MountDisk {
        node: NodeId::new(1),
        incarnation: Incarnation::new(0),
        mount_epoch: MountEpoch::new(2),
        found_data: false,
    });
    assert_eq!(world.rebalance(1_000), 0);
    let slot = world.metadata.slot_filled_by(NodeId::new(1)).unwrap();
    let filled = world.metadata.group(slot.0).unwrap().slot(slot.1).unwrap();
    let incarnation = filled.incarnation;
    world.apply(Command::SlotSynced { group: slot.0, slot: slot.1, incarnation });
    while world.rebalance(1_000) > 0 {}
    assert!(world.loads()[&1] >= 8, "{:?}", world.loads());
}

#[test]
fn a_draining_node_is_emptied_and_a_dead_one_left_to_takeover() {
    let mut world = World::new(90);
    world.mark(1, Liveness::Draining);
    world.mark(2, Liveness::Dead);
    while world.rebalance(1_000) > 0 {}
    let loads = world.loads();
    assert!(!loads.contains_key(&1));
    assert_eq!(loads[&2], 10);
}

#[test]
fn a_restarted_node_takes_its_own_again() {
    let mut world = World::new(90);
    let own = world.metadata.partitions_led_by(NodeId::new(4)).map(|(id, _)| id);
    let kept: BTreeSet<PartitionId> = own.take(7).collect();
    assert_eq!(moves(&plan_reclaim(&world.metadata, NodeId::new(4), &kept)), 3);
    let plan = plan_reclaim(&world.metadata, NodeId::new(4), &BTreeSet::new());
    assert_eq!(moves(&plan), 10);
    world.apply_all(plan);
    for (_, partition) in world.metadata.partitions_led_by(NodeId::new(4)) {
        assert_eq!(partition.generation, Generation::new(2));
    }
    assert_eq!(world.loads()[&4], 10);
}

/// With partitions beyond what one look goes over.
fn crowded_world() -> World {
    let mut world = World::new(9);
    for number in 2..8 {
        let mut placement = Placement::new(&world.metadata, &BTreeSet::new());
        let leaders = placement.initial_leaders(10_000, &Preference::default(), None).unwrap();
        world.apply(Command::CreateTopic {
            topic: TopicId::new(number),
            name: format!("t{number}"),
            leaders,
            configs: Vec::new(),
            internal: false,
        });
    }
    world
}

#[test]
fn balance_looks_at_a_part_of_many_partitions_at_a_time() {
    let mut world = crowded_world();
    world.mark(1, Liveness::Draining);
    let mut sweep = Sweep::default();
    let mut looks = 0;
    loop {
        let plan = Placement::new(&world.metadata, &BTreeSet::new())
            .plan_rebalance(&mut sweep, usize::MAX);
        assert!(moves(&plan) < 3_000, "a part of them: {}", moves(&plan));
        world.apply_all(plan);
        looks += 1;
        if !sweep.is_under_way() {
            break;
        }
    }
    assert_eq!(looks, 3);
    assert!(!world.loads().contains_key(&1), "and all of them in the end");
    // With as many moves as it may plan it ends, and begins anew.
    world.mark(2, Liveness::Draining);
    let mut placement = Placement::new(&world.metadata, &BTreeSet::new());
    assert_eq!(moves(&placement.plan_rebalance(&mut sweep, 5)), 5);
    assert!(!sweep.is_under_way());
}

#[test]
fn takeovers_of_many_nodes_are_planned_by_several_looks() {
    let mut world = crowded_world();
    let mut supervisor = Supervisor::new(&Config::default(), at(0), &world.metadata, None);
    watch(&mut world, &mut supervisor, 0, 1_000, &BTreeSet::new());
    let silent = nodes([1, 2, 3, 4]);
    let mut planned = Vec::new();
    for from_ms in (1_000..2_500).step_by(100) {
        let commands = watch(&mut world, &mut supervisor, from_ms, from_ms + 100, &silent);
        let is_takeover = |it: &Command| matches!(it, Command::AssignLeaders(_));
        let takeovers: Vec<Command> = commands.into_iter().filter(is_takeover).collect();
        if !takeovers.is_empty() {
            planned.push((from_ms, moves(&takeovers)));
        }
    }
    // Three nodes lead 20 000, and one more would be above the bound.
    let counts: Vec<usize> = planned.iter().map(|(_, count)| *count / 1_000).collect();
    assert_eq!(counts, [20, 6], "{planned:?}");
    assert_eq!(planned[1].0 - planned[0].0, 100, "the next look plans the rest");
    assert_eq!(world.loads().keys().copied().collect::<Vec<u32>>(), [5, 6, 7, 8, 9]);
}

/// Lets a supervisor watch for a while; nodes in `silent` send nothing.
fn watch(
    world: &mut World,
    supervisor: &mut Supervisor,
    from_ms: u64,
    until_ms: u64,
    silent: &BTreeSet<NodeId>,
) -> Vec<Command> {
    let mut proposed = Vec::new();
    for now_ms in (from_ms..until_ms).step_by(100) {
        let now = at(now_ms);
        for node in (1..=9).map(NodeId::new).filter(|node| !silent.contains(node)) {
            supervisor.heard(now, node);
        }
        let commands = supervisor.poll(now, OWN, &world.metadata);
        world.apply_all(commands.clone());
        proposed.extend(commands);
    }
    proposed
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

#[test]
fn the_supervisor_takes_over_from_a_silent_node_and_gives_back_later() {
    let mut world = World::new(90);
    let mut supervisor = Supervisor::new(&Config::default(), at(0), &world.metadata, None);
    assert_eq!(watch(&mut world, &mut supervisor, 0, 5_000, &BTreeSet::new()), []);

    let silent = nodes([3]);
    let commands = watch(&mut world, &mut supervisor, 5_000, 6_200, &silent);
    assert_eq!(commands.len(), 2, "one verdict, one batched takeover: {commands:?}");
    assert_eq!(world.metadata.node(NodeId::new(3)).unwrap().liveness, Liveness::Dead);
    assert!(!world.loads().contains_key(&3));
    assert_eq!(watch(&mut world, &mut supervisor, 6_200, 9_000, &silent), []);

    watch(&mut world, &mut supervisor, 9_000, 60_000, &BTreeSet::new());
    assert_eq!(world.metadata.node(NodeId::new(3)).unwrap().liveness, Liveness::Alive);
    assert!(world.loads()[&3] >= 8);
}

#[test]
fn who_was_stopped_itself_takes_nobody_for_dead() {
    let mut world = World::new(90);
    let mut supervisor = Supervisor::new(&Config::default(), at(0), &world.metadata, None);
    assert_eq!(watch(&mut world, &mut supervisor, 0, 5_000, &BTreeSet::new()), []);
    // It goes on before it has read what came meanwhile.
    assert_eq!(supervisor.poll(at(9_000), OWN, &world.metadata), []);
    assert_eq!(watch(&mut world, &mut supervisor, 9_100, 9_300, &BTreeSet::new()), []);

    let silent = nodes([3]);
    watch(&mut world, &mut supervisor, 9_300, 10_500, &silent);
    assert!(!world.loads().contains_key(&3), "a death after that is seen as soon as any");
}

#[test]
fn who_is_late_each_time_still_finds_the_dead() {
    let mut world = World::new(90);
    let mut supervisor = Supervisor::new(&Config::default(), at(0), &world.metadata, None);
    for now_ms in (0..10_000).step_by(500) {
        for node in (1..=9).filter(|node| *node != 3).map(NodeId::new) {
            supervisor.heard(at(now_ms), node);
        }
        let commands = supervisor.poll(at(now_ms), OWN, &world.metadata);
        world.apply_all(commands);
    }
    assert!(!world.loads().contains_key(&3));
    assert_eq!(world.loads().len(), 8, "and nobody else");
}

#[test]
fn a_verdict_that_is_not_applied_yet_is_not_proposed_again_at_once() {
    let world = World::new(9);
    let mut supervisor = Supervisor::new(&Config::default(), at(0), &world.metadata, None);
    let mut marks = Vec::new();
    for now_ms in (0..4_000).step_by(100) {
        for node in (1..=9).filter(|node| *node != 3).map(NodeId::new) {
            supervisor.heard(at(now_ms), node);
        }
        // The metadata log is slow: nothing of it is applied.
        let commands = supervisor.poll(at(now_ms), OWN, &world.metadata);
        let is_mark = |command: &&Command| matches!(command, Command::MarkNode { .. });
        marks.extend(commands.iter().filter(is_mark).map(|_| now_ms));
    }
    assert_eq!(marks, [800, 1_800, 2_800, 3_800]);
}

#[test]
fn the_deposed_leader_is_taken_over_from_as_soon_as_it_is_deposed() {
    let mut world = World::new(90);
    let (elected_ms, deposed) = (5_800, NodeId::new(3));
    let supervisor = |world: &World, deposed| {
        Supervisor::new(&Config::default(), at(elected_ms), &world.metadata, deposed)
    };
    let silent = nodes([3]);
    let mut late = supervisor(&world, None);
    assert_eq!(watch(&mut world, &mut late, elected_ms, elected_ms + 500, &silent), []);
    let mut early = supervisor(&world, Some((deposed, at(5_000))));
    watch(&mut world, &mut early, elected_ms, elected_ms + 100, &silent);
    assert!(!world.loads().contains_key(&3), "silent for an election already");

    let mut world = World::new(90);
    let mut heard = supervisor(&world, Some((deposed, at(5_000))));
    heard.heard(at(elected_ms), deposed);
    assert_eq!(watch(&mut world, &mut heard, elected_ms, 9_000, &BTreeSet::new()), []);
}

/// The leader of one and the same partition falls silent ten times in 30 seconds, for two seconds each. Gives how
/// often the partition had got another one by the end of that.
fn taken_over(then: impl Fn(&mut World, NodeId)) -> usize {
    let mut world = World::new(9);
    let mut supervisor = Supervisor::new(&Config::default(), at(0), &world.metadata, None);
    let leader = |world: &World| world.metadata.partitions().next().unwrap().1.leader;
    let mut taken_count = 0;
    for round in 0..10 {
        let (from_ms, silent) = (round * 3_000, leader(&world));
        watch(&mut world, &mut supervisor, from_ms, from_ms + 2_000, &BTreeSet::from([silent]));
        taken_count += usize::from(leader(&world) != silent);
        then(&mut world, silent);
        watch(&mut world, &mut supervisor, from_ms + 2_000, from_ms + 3_000, &BTreeSet::new());
    }
    taken_count
}

#[test]
fn a_flapping_cluster_runs_out_of_takeovers() {
    let count = taken_over(|_, _| {});
    assert!((4..=7).contains(&count), "{count}");
}

#[test]
fn a_row_of_deaths_does_not() {
    let count = taken_over(|world, dead| {
        world.apply(Command::RegisterNode(world.metadata.node(dead).unwrap().registration.clone()));
    });
    assert_eq!(count, 10);
}

#[test]
fn a_new_supervisor_finishes_what_another_began() {
    let mut world = World::new(90);
    world.mark(3, Liveness::Dead);
    let mut supervisor = Supervisor::new(&Config::default(), at(0), &world.metadata, None);
    let commands = supervisor.poll(at(0), OWN, &world.metadata);
    assert_eq!(moves(&commands), 10);
}

fn membership(voters: &[(u32, u32)], learners: &[(u32, u32)]) -> Membership {
    let members = |ids: &[(u32, u32)]| ids.iter().copied().map(member).collect();
    Membership { voters: members(voters), learners: members(learners), ..Membership::default() }
}

fn member((node, life): (u32, u32)) -> RaftId {
    RaftId { node: NodeId::new(node), life: RaftLife::new(life) }
}

/// Applies plans to a membership until there is none.
fn settle(world: &World, mut members: Membership, leader: RaftId) -> Membership {
    for _ in 0..100 {
        let plan = plan_change(&world.metadata, &members, leader, |_| true);
        if plan.is_empty() {
            return members;
        }
        for (changed, role) in plan {
            members.voters.remove(&changed);
            members.learners.remove(&changed);
            match role {
                MemberRole::Voter => drop(members.voters.insert(changed)),
                MemberRole::Learner => drop(members.learners.insert(changed)),
                MemberRole::Removed => {}
            }
        }
    }
    panic!("plans go on for ever: {members:?}");
}

#[test]
fn the_voters_grow_to_nine_places() {
    let world = World::new(9);
    let members = settle(&world, membership(&[(1, 1)], &[]), member((1, 1)));
    assert_eq!(members.voters.len(), 9);
    assert!(members.learners.is_empty());
}

#[test]
fn five_voters_are_spread_over_the_datacenters() {
    let mut world = World::new(9);
    for node in [6, 8, 9] {
        let mut registered = registration(node, (node - 1) / 3, (node - 1) % 3);
        registered.roles.meta = false;
        world.apply(Command::RegisterNode(registered));
    }
    let members = settle(&world, membership(&[(1, 1)], &[]), member((1, 1)));
    assert_eq!(members.voters.len(), 5);
    assert_eq!(members.learners.len(), 4);
    let datacenters: BTreeSet<u32> =
        members.voters.iter().map(|voter| (voter.node.get() - 1) / 3).collect();
    assert_eq!(datacenters.len(), 3, "{members:?}");
}

#[test]
fn a_past_life_is_removed_and_the_new_one_promoted() {
    let mut world = World::new(9);
    world.apply(Command::AllocateRaftLife { node: NodeId::new(2) });
    let voters: Vec<_> = (1..=9).map(|node| (node, 1)).collect();
    let members = membership(&voters, &[]);
    let leader = member((1, 1));
    let first = plan_change(&world.metadata, &members, leader, |_| true);
    assert_eq!(first, [(member((2, 1)), MemberRole::Removed)]);
    let settled = settle(&world, members, leader);
    assert!(settled.voters.contains(&member((2, 2))));
    assert_eq!(settled.voters.len(), 9);
}

/// Eight racks more in one datacenter, for a second group: their nodes stay learners.
#[test]
fn a_datacenter_of_many_nodes_does_not_get_half_of_the_votes() {
    let mut world = World { metadata: Metadata::default(), index: 0 };
    let cluster_id = ClusterId::from_entropy(5);
    world.apply(Command::Bootstrap { cluster_id, geometry: Geometry::OnePerDc });
    for node in 0..3 {
        world.apply(Command::RegisterNode(registration(node + 1, node, 0)));
    }
    for rack in 1..9 {
        world.apply(Command::RegisterNode(registration(rack + 3, 0, rack)));
    }
    let first = membership(&[(1, 1), (2, 1), (3, 1)], &[]);
    let settled = settle(&world, first.clone(), member((1, 1)));
    assert_eq!(settled.voters, first.voters);
    assert_eq!(settled.learners.len(), 8);
    // With another in each of the others there are votes for five.
    for (node, datacenter) in [(20, 1), (21, 2)] {
        world.apply(Command::RegisterNode(registration(node, datacenter, 1)));
    }
    let settled = settle(&world, first, member((1, 1)));
    let voters: Vec<u32> = settled.voters.iter().map(|voter| voter.node.get()).collect();
    assert_eq!(voters.len(), 5);
    assert!([1, 2, 3].iter().all(|voter| voters.contains(voter)));
}

#[test]
fn nothing_changes_while_a_change_is_under_way_or_a_learner_lags() {
    let world = World::new(9);
    let mut members = membership(&[(1, 1), (2, 1), (3, 1)], &[(4, 1), (5, 1)]);
    members.learners.extend((6..=9).map(|node| member((node, 1))));
    let leader = member((1, 1));
    assert_eq!(plan_change(&world.metadata, &members, leader, |_| false), []);
    members.voters_outgoing.insert(member((1, 1)));
    assert_eq!(plan_change(&world.metadata, &members, leader, |_| true), []);
}

#[test]
fn a_cluster_forms_only_when_no_voter_knows_of_one() {
    let voters: Vec<NodeId> = (1..=3).map(NodeId::new).collect();
    let [own, second, third] = [voters[0], voters[1], voters[2]];
    let mut formation = Formation::new(own, &voters);
    assert_eq!(formation.step(), FormationStep::Wait);
    assert_eq!(formation.hear(second, PeerStanding::Empty), FormationStep::Wait);
    assert_eq!(formation.hear(second, PeerStanding::Empty), FormationStep::Wait);
    assert_eq!(formation.hear(third, PeerStanding::Forming), FormationStep::Bootstrap);
    assert_eq!(formation.hear(third, PeerStanding::Formed), FormationStep::Rejoin);
    assert_eq!(Formation::new(own, &[own]).step(), FormationStep::Bootstrap);
    // A node that is no voter only ever joins.
    let mut other = Formation::new(NodeId::new(9), &voters);
    for voter in voters {
        assert_eq!(other.hear(voter, PeerStanding::Empty), FormationStep::Wait);
    }
    assert_eq!(other.hear(own, PeerStanding::Formed), FormationStep::Rejoin);
}
