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

/// The nodes that may lead, and how much each leads already.
#[derive(Clone, Debug)]
pub struct Placement<'a> {
    metadata: &'a Metadata,
    candidates: BTreeMap<NodeId, Candidate<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    datacenter: &'a Datacenter,
    /// Whose slot it fills.
    group: Option<GroupId>,
    /// Its disk gets its copies back: what it would lead waits behind them.
    is_refilled: bool,
    partition_count: u32,
}

impl<'a> Placement<'a> {
    /// Counts what each node leads. Nodes in `avoided` lead nothing new, whatever the metadata
    /// says of them.
    pub fn new(metadata: &'a Metadata, avoided: &BTreeSet<NodeId>) -> Self {
        let gateways: Vec<NodeId> = metadata
            .nodes()
            .filter(|(id, node)| {
                node.liveness == Liveness::Alive
                    && node.registration.roles.gateway
                    && !avoided.contains(id)
            })
            .map(|(id, _)| id)
            .collect();
        let filling: Vec<NodeId> = gateways
            .iter()
            .copied()
            .filter(|node| metadata.slot_filled_by(*node).is_some())
            .collect();
        let chosen = if filling.is_empty() { gateways } else { filling };
        let mut candidates: BTreeMap<NodeId, Candidate<'a>> = chosen
            .into_iter()
            .filter_map(|id| {
                let datacenter = &metadata.node(id)?.registration.datacenter;
                let slot = metadata.slot_filled_by(id);
                let group = slot.map(|(group, _)| group);
                let is_refilled = slot
                    .and_then(|(group, slot)| metadata.group(group)?.slot(slot))
                    .is_some_and(|slot| slot.state == SlotState::LostData);
                Some((id, Candidate { datacenter, group, is_refilled, partition_count: 0 }))
            })
            .collect();
        for (_, partition) in metadata.partitions() {
            if let Some(leader) = candidates.get_mut(&partition.leader) {
                leader.partition_count += 1;
            }
        }
        Self { metadata, candidates }
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
        let group = self.metadata.group_for_class(class);
        let mut of_topic: BTreeMap<NodeId, u32> = BTreeMap::new();
        let mut choose = |_| {
            let share = |node| of_topic.get(&node).copied().unwrap_or(0);
            let node = self.choose_by(group, preferred, share)?;
            *of_topic.entry(node).or_default() += 1;
            Some(node)
        };
        (0..count).map(&mut choose).collect()
    }

    /// Takes the best candidate and counts the partition as its own.
    fn choose(&mut self, group: GroupId, preferred: &Preference) -> Option<NodeId> {
        self.choose_by(Some(group), preferred, |_| 0)
    }

    /// Chooses a node; among equally preferred ones that with the smallest `share`.
    fn choose_by(
        &mut self,
        group: Option<GroupId>,
        preferred: &Preference,
        share: impl Fn(NodeId) -> u32,
    ) -> Option<NodeId> {
        let key = |(node, it): &(&NodeId, &mut Candidate<'_>)| {
            let rank = preferred.rank(it.datacenter);
            let order = (share(**node), it.partition_count, **node);
            (it.group != group, rank, it.is_refilled, order)
        };
        let (node, candidate) = self.candidates.iter_mut().min_by_key(key)?;
        candidate.partition_count += 1;
        Some(*node)
    }

    /// New leaders for all partitions of `dead` nodes that `may_take` lets pass, batched.
    pub fn plan_takeover(
        &mut self,
        dead: &BTreeSet<NodeId>,
        mut may_take: impl FnMut(PartitionId, &Partition) -> bool,
    ) -> Vec<Command> {
        let mut preferences = Preferences::new(self.metadata);
        let mut assignments = Vec::new();
        for (id, partition) in self.metadata.partitions() {
            let is_due = dead.contains(&partition.leader) && !self.candidates.is_empty();
            if !is_due || !may_take(id, partition) {
                continue;
            }
            let preferred = preferences.of(partition.topic);
            if let Some(leader) = self.choose(partition.group, preferred) {
                assignments.push(assignment(id, partition, leader));
            }
        }
        batched(&assignments)
    }

    /// At most `moves_max` planned moves: first to the partitions' groups, to the datacenters that topics
    /// prefer and away from nodes that are drained, then from crowded nodes to idle ones.
    pub fn plan_rebalance(&mut self, moves_max: usize) -> Vec<Command> {
        let mut preferences = Preferences::new(self.metadata);
        let mut moves = Vec::new();
        for (id, partition) in self.metadata.partitions() {
            if moves.len() == moves_max {
                break;
            }
            let is_served = self
                .metadata
                .node(partition.leader)
                .is_some_and(|leader| leader.liveness != Liveness::Dead);
            let preferred = preferences.of(partition.topic);
            if is_served && self.is_better_elsewhere(partition, preferred) {
                let Some(leader) = self.choose(partition.group, preferred) else { break };
                if let Some(previous) = self.candidates.get_mut(&partition.leader) {
                    previous.partition_count -= 1;
                }
                moves.push(assignment(id, partition, leader));
            }
        }
        batched(&moves)
    }

    /// At most `moves_max` moves of partitions that are not in the group of their topic's storage class. Those
    /// of dead leaders wait for their takeover, and all while the one group or the other does not serve.
    pub fn plan_conversion(&mut self, moves_max: usize) -> Option<Command> {
        let metadata = self.metadata;
        let serving: BTreeSet<GroupId> =
            metadata.groups().filter(|it| serves(metadata, it)).map(|it| it.group).collect();
        if serving.len() < 2 {
            return None;
        }
        let mut preferences = Preferences::new(metadata);
        let mut wanted: BTreeMap<TopicId, Option<GroupId>> = BTreeMap::new();
        let mut moves = Vec::new();
        for (id, partition) in metadata.partitions() {
            let group = *wanted.entry(partition.topic).or_insert_with(|| {
                let topic = ConfigResource::Topic(partition.topic);
                metadata.group_for_class(metadata.config(&topic, STORAGE_CLASS))
            });
            let Some(group) = group.filter(|group| *group != partition.group) else { continue };
            let leader = metadata.node(partition.leader);
            let is_led = leader.is_some_and(|leader| leader.liveness != Liveness::Dead);
            let is_spent = metadata.homes(id).len() > MOVES_MAX;
            if !is_led
                || is_spent
                || !serving.contains(&group)
                || !serving.contains(&partition.group)
            {
                continue;
            }
            let Some(leader) = self.choose(group, preferences.of(partition.topic)) else { break };
            if let Some(previous) = self.candidates.get_mut(&partition.leader) {
                previous.partition_count -= 1;
            }
            moves.push(PartitionMove { assignment: assignment(id, partition, leader), group });
            if moves.len() == moves_max.min(BATCH_COUNT_MAX) {
                break;
            }
        }
        (!moves.is_empty()).then_some(Command::MovePartitions(moves))
    }

    fn is_better_elsewhere(&self, partition: &Partition, preferred: &Preference) -> bool {
        let Some(current) = self.candidates.get(&partition.leader) else { return true };
        let group = Some(partition.group);
        let place = |it: &Candidate<'_>| (it.group != group, preferred.rank(it.datacenter));
        let open = self.candidates.values().filter(|it| !it.is_refilled);
        let best = open.map(|it| (place(it), it.partition_count)).min();
        let Some((best_place, best_count)) = best else { return false };
        let tolerated_count = best_count + (best_count / 10).max(IMBALANCE_MIN);
        best_place < place(current)
            || (best_place == place(current) && current.partition_count > tolerated_count)
    }
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
