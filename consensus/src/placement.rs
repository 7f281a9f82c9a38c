//! Which node leads which partition (rule M5). Pure: plans are commands that say what they were
//! made from, so that a plan made on stale knowledge does no harm.
//!
//! A leader is an alive gateway node that fills a slot, so that one of its three puts is local, if it
//! can be one of the partition's own group; if no gateway fills a slot, any alive gateway. Topics name
//! the datacenters they want their leaders in; within those, leaders are spread evenly, and a node whose disk is
//! being refilled comes last.

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::id::{GroupId, NodeId, PartitionId, TopicId};
use meridian_base::position::LeaderEpoch;
use meridian_base::topology::{Datacenter, GroupConfig, Slot, SlotState};

use crate::command::{Command, ConfigResource, LeaderAssignment, Liveness, PartitionMove};
use crate::state::limits::{BATCH_COUNT_MAX, MOVES_MAX};
use crate::state::{Metadata, Partition, STORAGE_CLASS};

/// Config of topic or cluster: datacenters that should hold the leaders, best first, separated by
/// commas.
pub const PREFERRED_LEADER_DC: &str = "preferred.leader.dc";

/// Leaders may differ by a tenth and by this many before they are moved for balance.
const IMBALANCE_MIN: u32 = 2;

/// One look goes over no more partitions: the thread that looks has heartbeats of Raft to send.
const SWEEP_COUNT_MAX: usize = 25_000;

/// A look at all partitions, a part of them at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Where the next look goes on; `None` begins anew.
    next: Option<PartitionId>,
}

impl Sweep {
    /// Whether some partitions were looked at, and not yet all.
    pub fn is_under_way(&self) -> bool {
        self.next.is_some()
    }

    /// The partitions of this look; where the next one goes on is set at once.
    fn part<'a>(&mut self, metadata: &'a Metadata) -> Vec<(PartitionId, &'a Partition)> {
        let mut from = metadata.partitions_from(self.next.unwrap_or(PartitionId::new(0)));
        let part = from.by_ref().take(SWEEP_COUNT_MAX).collect();
        self.next = from.next().map(|(id, _)| id);
        part
    }
}

/// The nodes that may lead, and how much each leads already.
#[derive(Clone, Debug)]
pub struct Placement<'a> {
    metadata: &'a Metadata,
    candidates: BTreeMap<NodeId, Candidate<'a>>,
    /// The candidates of each group, by datacenter.
    of_groups: BTreeMap<Option<GroupId>, Places<'a>>,
}

/// What nodes in each datacenter have to do; the first of one leads next.
type Places<'a> = BTreeMap<&'a Datacenter, BTreeSet<Load>>;

#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    datacenter: &'a Datacenter,
    /// Whose slot it fills.
    group: Option<GroupId>,
    load: Load,
}

/// How much a node has to do, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Load {
    /// Its disk gets its copies back: what it would lead waits behind them.
    is_refilled: bool,
    partition_count: u32,
    node: NodeId,
}

impl<'a> Placement<'a> {
    /// Counts what each node leads. Nodes in `avoided` lead nothing new, whatever the metadata
    /// says of them.
    pub fn new(metadata: &'a Metadata, avoided: &BTreeSet<NodeId>) -> Self {
        let slots: BTreeMap<NodeId, (GroupId, SlotState)> = metadata
            .groups()
            .flat_map(|it| it.slots.iter().map(|slot| (slot.node, (it.group, slot.state))))
            .collect();
        let gateways: Vec<NodeId> = metadata
            .nodes()
            .filter(|(id, node)| {
                node.liveness == Liveness::Alive
                    && node.registration.roles.gateway
                    && !avoided.contains(id)
            })
            .map(|(id, _)| id)
            .collect();
        let filling: Vec<NodeId> =
            gateways.iter().copied().filter(|node| slots.contains_key(node)).collect();
        let chosen = if filling.is_empty() { gateways } else { filling };
        let mut placement =
            Self { metadata, candidates: BTreeMap::new(), of_groups: BTreeMap::new() };
        for node in chosen {
            let Some(known) = metadata.node(node) else { continue };
            let slot = slots.get(&node);
            let is_refilled = slot.is_some_and(|(_, state)| *state == SlotState::LostData);
            let partition_count = u32::try_from(metadata.led_count(node)).unwrap_or(u32::MAX);
            placement.enter(Candidate {
                datacenter: &known.registration.datacenter,
                group: slot.map(|(group, _)| *group),
                load: Load { is_refilled, partition_count, node },
            });
        }
        placement
    }

    fn enter(&mut self, candidate: Candidate<'a>) {
        let places = self.of_groups.entry(candidate.group).or_default();
        places.entry(candidate.datacenter).or_default().insert(candidate.load);
        self.candidates.insert(candidate.load.node, candidate);
    }

    /// A candidate is to lead one more partition, or one less.
    fn recount(&mut self, node: NodeId, recounted: impl Fn(u32) -> u32) {
        let Some(candidate) = self.candidates.get_mut(&node) else { return };
        let places = self.of_groups.get_mut(&candidate.group);
        let Some(loads) = places.and_then(|it| it.get_mut(candidate.datacenter)) else { return };
        loads.remove(&candidate.load);
        candidate.load.partition_count = recounted(candidate.load.partition_count);
        loads.insert(candidate.load);
    }

    /// First leaders of `count` new partitions of one topic of this storage class that prefer these
    /// datacenters; `None` if no node can lead. The topic is spread over all nodes before any of them
    /// gets its second: after takeovers the idlest few would otherwise lead all of it.
    pub fn initial_leaders(
        &mut self,
        count: u32,
        preferred: &Preference,
        class: Option<&str>,
    ) -> Option<Vec<NodeId>> {
        let groups = self.metadata.groups_of_new(class);
        let fits = |it: &&Candidate<'_>| it.group.is_some_and(|group| groups.contains(&group));
        let fitting: Vec<Candidate<'a>> = self.candidates.values().filter(fits).copied().collect();
        let all = || self.candidates.values().copied().collect();
        let chosen: Vec<Candidate<'a>> = if fitting.is_empty() { all() } else { fitting };
        let turn = |it: Candidate<'_>| {
            let Load { is_refilled, partition_count, node } = it.load;
            let of_topic = 0_u32;
            (preferred.rank(it.datacenter), is_refilled, of_topic, partition_count, node)
        };
        let mut turns: BTreeSet<_> = chosen.into_iter().map(turn).collect();
        let mut leaders = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let (rank, is_refilled, of_topic, partition_count, node) = turns.pop_first()?;
            turns.insert((rank, is_refilled, of_topic + 1, partition_count + 1, node));
            self.recount(node, |count| count + 1);
            leaders.push(node);
        }
        Some(leaders)
    }

    /// Takes the best candidate of these groups, or of all if they have none, and counts the partition as its own.
    fn choose(&mut self, groups: &[GroupId], preferred: &Preference) -> Option<NodeId> {
        let own = groups.iter().filter_map(|group| self.of_groups.get(&Some(*group)));
        let best = best_of(own, preferred).or_else(|| best_of(self.of_groups.values(), preferred));
        let node = best?.node;
        self.recount(node, |count| count + 1);
        Some(node)
    }

    /// New leaders for all partitions of `dead` nodes that `may_take` lets pass, batched.
    pub fn plan_takeover(
        &mut self,
        dead: &BTreeSet<NodeId>,
        mut may_take: impl FnMut(PartitionId, &Partition) -> bool,
    ) -> Vec<Command> {
        let mut preferences = Preferences::new(self.metadata);
        let mut assignments = Vec::new();
        if self.candidates.is_empty() {
            return Vec::new();
        }
        for (id, partition) in dead.iter().flat_map(|node| self.metadata.partitions_led_by(*node)) {
            if !may_take(id, partition) {
                continue;
            }
            let preferred = preferences.of(partition.topic);
            if let Some(leader) = self.choose(&[partition.group], preferred) {
                assignments.push(assignment(id, partition, leader));
            }
        }
        batched(&assignments)
    }

    /// At most `moves_max` planned moves: first to the partitions' groups, to the datacenters that topics
    /// prefer and away from nodes that are drained, then from crowded nodes to idle ones. With the last of them
    /// the sweep ends.
    pub fn plan_rebalance(&mut self, sweep: &mut Sweep, moves_max: usize) -> Vec<Command> {
        let mut preferences = Preferences::new(self.metadata);
        let mut moves = Vec::new();
        for (id, partition) in sweep.part(self.metadata) {
            if moves.len() == moves_max {
                *sweep = Sweep::default();
                break;
            }
            let is_served = self
                .metadata
                .node(partition.leader)
                .is_some_and(|leader| leader.liveness != Liveness::Dead);
            let preferred = preferences.of(partition.topic);
            if is_served && self.is_better_elsewhere(partition, preferred) {
                let Some(leader) = self.choose(&[partition.group], preferred) else { break };
                self.recount(partition.leader, |count| count - 1);
                moves.push(assignment(id, partition, leader));
            }
        }
        batched(&moves)
    }

    /// At most `moves_max` moves of partitions that are in no group of their topic's storage class. Those
    /// of dead leaders wait for their takeover, and all while the one group or the other does not serve.
    pub fn plan_conversion(&mut self, sweep: &mut Sweep, moves_max: usize) -> Option<Command> {
        let metadata = self.metadata;
        let serving: BTreeSet<GroupId> =
            metadata.groups().filter(|it| serves(metadata, it)).map(|it| it.group).collect();
        if serving.len() < 2 {
            return None;
        }
        let mut preferences = Preferences::new(metadata);
        // Of each topic where its partitions may be, and where they may go.
        let mut of_topics: BTreeMap<TopicId, (Vec<GroupId>, Vec<GroupId>)> = BTreeMap::new();
        let mut moves = Vec::new();
        for (id, partition) in sweep.part(metadata) {
            let (fitting, targets) = of_topics.entry(partition.topic).or_insert_with(|| {
                let topic = ConfigResource::Topic(partition.topic);
                let class = metadata.config(&topic, STORAGE_CLASS);
                let mut targets = metadata.groups_of_new(class);
                targets.retain(|group| serving.contains(group));
                (metadata.groups_of_class(class), targets)
            });
            if fitting.contains(&partition.group) {
                continue;
            }
            let leader = metadata.node(partition.leader);
            let is_led = leader.is_some_and(|leader| leader.liveness != Liveness::Dead);
            let is_spent = metadata.homes(id).len() > MOVES_MAX;
            if !is_led || is_spent || !serving.contains(&partition.group) {
                continue;
            }
            let Some(first) = targets.first() else { continue };
            if moves.len() == moves_max.min(BATCH_COUNT_MAX) {
                // The next look begins with those that are left.
                sweep.next = Some(id);
                break;
            }
            let preferred = preferences.of(partition.topic);
            let Some(leader) = self.choose(targets, preferred) else { break };
            let of_leader = self.candidates.get(&leader).and_then(|it| it.group);
            let group = of_leader.filter(|group| targets.contains(group)).unwrap_or(*first);
            self.recount(partition.leader, |count| count - 1);
            moves.push(PartitionMove { assignment: assignment(id, partition, leader), group });
        }
        (!moves.is_empty()).then_some(Command::MovePartitions(moves))
    }

    fn is_better_elsewhere(&self, partition: &Partition, preferred: &Preference) -> bool {
        let Some(current) = self.candidates.get(&partition.leader) else { return true };
        let open = |(group, places): (&Option<GroupId>, &Places<'_>)| {
            let is_other = *group != Some(partition.group);
            let loads = places.iter().filter_map(|(datacenter, loads)| {
                let first = loads.first().filter(|load| !load.is_refilled)?;
                Some((preferred.rank(datacenter), first.partition_count))
            });
            loads.min().map(|(rank, count)| ((is_other, rank), count))
        };
        let own = self.of_groups.get_key_value(&Some(partition.group)).and_then(open);
        let best = own.or_else(|| self.of_groups.iter().filter_map(open).min());
        let Some((best_place, best_count)) = best else { return false };
        let place = (current.group != Some(partition.group), preferred.rank(current.datacenter));
        let tolerated_count = best_count + (best_count / 10).max(IMBALANCE_MIN);
        best_place < place
            || (best_place == place && current.load.partition_count > tolerated_count)
    }
}

/// The first of the datacenters that are preferred most.
fn best_of<'a: 'p, 'p>(
    places: impl Iterator<Item = &'p Places<'a>>,
    preferred: &Preference,
) -> Option<Load> {
    let first = |(datacenter, loads): (&&Datacenter, &BTreeSet<Load>)| {
        Some((preferred.rank(datacenter), *loads.first()?))
    };
    let best = places.flat_map(|places| places.iter().filter_map(first)).min()?;
    Some(best.1)
}

/// Whether a group's slots that live and count are enough for takeovers and puts.
fn serves(metadata: &Metadata, group: &GroupConfig) -> bool {
    let lives = |slot: &Slot| {
        let node = group.slot(*slot).and_then(|slot| metadata.node(slot.node));
        node.is_some_and(|node| node.liveness != Liveness::Dead)
    };
    let well = group.good_slots().iter().filter(lives).collect();
    group.geometry.put_quorum(well) && group.geometry.fence_quorum(well)
}

/// A node that restarted takes its own partitions again: it has forgotten where it was in their
/// generations. Not those that it has kept in this life.
pub fn plan_reclaim(
    metadata: &Metadata,
    node: NodeId,
    kept: &BTreeSet<PartitionId>,
) -> Vec<Command> {
    let assignments: Vec<LeaderAssignment> = metadata
        .partitions_led_by(node)
        .filter(|(id, _)| !kept.contains(id))
        .map(|(id, partition)| assignment(id, partition, node))
        .collect();
    batched(&assignments)
}

fn assignment(id: PartitionId, partition: &Partition, leader: NodeId) -> LeaderAssignment {
    LeaderAssignment {
        partition: id,
        expected: partition.generation,
        leader,
        epoch_floor: LeaderEpoch::UNKNOWN,
    }
}

fn batched(assignments: &[LeaderAssignment]) -> Vec<Command> {
    assignments
        .chunks(BATCH_COUNT_MAX)
        .map(|batch| Command::AssignLeaders(batch.to_vec()))
        .collect()
}

/// Datacenters in order of preference; those not named come last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preference(Vec<Datacenter>);

impl Preference {
    /// Reads the value of [`PREFERRED_LEADER_DC`].
    pub fn parse(value: &str) -> Self {
        let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self(names.map(|name| Datacenter(name.to_owned())).collect())
    }

    fn rank(&self, datacenter: &Datacenter) -> usize {
        self.0.iter().position(|it| it == datacenter).unwrap_or(self.0.len())
    }
}

/// The preference of each topic, read once.
struct Preferences<'a> {
    metadata: &'a Metadata,
    of_topics: BTreeMap<TopicId, Preference>,
}

impl<'a> Preferences<'a> {
    fn new(metadata: &'a Metadata) -> Self {
        Self { metadata, of_topics: BTreeMap::new() }
    }

    fn of(&mut self, topic: TopicId) -> &Preference {
        let metadata = self.metadata;
        self.of_topics.entry(topic).or_insert_with(|| {
            let own = metadata.config(&ConfigResource::Topic(topic), PREFERRED_LEADER_DC);
            let default = || metadata.config(&ConfigResource::Cluster, PREFERRED_LEADER_DC);
            own.or_else(default).map(Preference::parse).unwrap_or_default()
        })
    }
}
