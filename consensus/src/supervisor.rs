//! What the Raft leader decides by itself: deaths, takeovers, moves back. Pure; its commands are
//! proposed like anybody's, each under a new request id.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::NodeId;
use meridian_base::topology::Geometry;

use crate::command::{Command, Liveness, NodeEpoch};
use crate::config::Config;
use crate::detector::{Detector, TakeoverBudget};
use crate::lifecycle::{plan_drains, plan_farewell, plan_group, plan_heal};
use crate::placement::{Placement, Sweep};
use crate::state::Metadata;

/// How long a plan is given to be applied before it is made again.
const PLAN_PATIENCE: Duration = Duration::from_secs(1);
/// A look that comes later than so many heartbeats was held up. Three of four of the shortest silence of a death must
/// be left, or a leader that is always late would find nobody dead.
const POLL_INTERVALS_MAX: u32 = 3;
/// Time between two looks at nodes that rest, leave or are lost.
const CARE_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two looks at the balance of leaders.
const REBALANCE_INTERVAL: Duration = Duration::from_secs(10);

/// One look plans no more takeovers, but for a node that leads more: the thread that looks has heartbeats of Raft to
/// send.
const TAKEOVERS_PER_LOOK_MAX: usize = 25_000;

/// Watches over the nodes while this node is the Raft leader.
#[derive(Clone, Debug)]
pub struct Supervisor {
    detector: Detector,
    budget: TakeoverBudget,
    polled_at: Instant,
    /// What comes later was held up: others were not listened to meanwhile.
    poll_interval_max: Duration,
    moves_per_plan_max: usize,
    /// When a takeover was last planned for a dead node.
    planned_at: BTreeMap<NodeId, Instant>,
    /// What was last found of a node, and not applied yet, and when.
    marked_at: BTreeMap<NodeId, (Liveness, Instant)>,
    /// The process of each node.
    epochs: BTreeMap<NodeId, NodeEpoch>,
    rebalance_at: Instant,
    rebalance: Sweep,
    care_at: Instant,
    conversion: Sweep,
    heal_after: Option<Duration>,
    further_groups: Vec<Geometry>,
    /// Since when nodes have been dead, as far as this supervisor has seen.
    dead_since: BTreeMap<NodeId, Instant>,
}

impl Supervisor {
    /// Starts to watch: this node has just become the Raft leader. The budget begins anew, which
    /// at worst allows one more round of takeovers.
    ///
    /// `deposed` is the leader before it and when it was last heard from: its silence has lasted for
    /// an election already, and its partitions need not wait for as long again.
    pub fn new(
        config: &Config,
        now: Instant,
        metadata: &Metadata,
        deposed: Option<(NodeId, Instant)>,
    ) -> Self {
        let mut detector = Detector::new(config.dead_after);
        if let Some((node, heard_at)) = deposed.filter(|(node, _)| metadata.node(*node).is_some()) {
            detector.watch(heard_at.min(now), node);
        }
        for (node, _) in metadata.nodes() {
            detector.watch(now, node);
        }
        Self {
            detector,
            budget: TakeoverBudget::new(config.takeovers_at_once_max),
            polled_at: now,
            poll_interval_max: config.node_heartbeat * POLL_INTERVALS_MAX,
            moves_per_plan_max: config.moves_per_plan_max,
            planned_at: BTreeMap::new(),
            marked_at: BTreeMap::new(),
            epochs: BTreeMap::new(),
            rebalance_at: now + REBALANCE_INTERVAL,
            rebalance: Sweep::default(),
            care_at: now + CARE_INTERVAL,
            conversion: Sweep::default(),
            heal_after: config.heal_after,
            further_groups: config.further_groups.clone(),
            dead_since: BTreeMap::new(),
        }
    }

    /// A heartbeat of a node arrived.
    pub fn heard(&mut self, now: Instant, node: NodeId) {
        self.detector.heard(now, node);
    }

    /// The detector, for metrics.
    pub fn detector(&self) -> &Detector {
        &self.detector
    }

    /// What is to be proposed now by `own`, the node that leads. Call it about as often as nodes send
    /// heartbeats.
    pub fn poll(&mut self, now: Instant, own: NodeId, metadata: &Metadata) -> Vec<Command> {
        // A process that was stopped wakes with the heartbeats of that time on their way to it.
        let interval = now.since(std::mem::replace(&mut self.polled_at, now));
        if let Some(deaf) = interval.checked_sub(self.poll_interval_max) {
            self.detector.excuse(now, deaf);
        }
        for (id, node) in metadata.nodes() {
            self.detector.watch(now, id);
            let known = self.epochs.insert(id, node.epoch);
            if known.is_some_and(|known| known != node.epoch) {
                self.detector.renew(id);
            }
        }
        self.detector.retain(|node| metadata.node(node).is_some());
        self.epochs.retain(|node, _| metadata.node(*node).is_some());
        let epoch = |node| metadata.node(node).map(|node| node.epoch);
        self.budget.prune(now, |node, of| epoch(node) != Some(of));
        let mut commands = self.mark_nodes(now, metadata);
        commands.extend(self.take_over(now, metadata));
        self.note_dead(now, metadata);
        if now >= self.care_at && commands.is_empty() {
            self.care_at = now + CARE_INTERVAL;
            commands = self.care(now, own, metadata);
        }
        if now >= self.rebalance_at && commands.is_empty() {
            let mut placement = Placement::new(metadata, &BTreeSet::new());
            commands = placement.plan_rebalance(&mut self.rebalance, self.moves_per_plan_max);
            if !self.rebalance.is_under_way() {
                self.rebalance_at = now + REBALANCE_INTERVAL;
            }
        }
        commands
    }

    fn note_dead(&mut self, now: Instant, metadata: &Metadata) {
        let is_dead =
            |node| metadata.node(node).is_some_and(|node| node.liveness == Liveness::Dead);
        self.dead_since.retain(|node, _| is_dead(*node));
        for (node, _) in metadata.nodes().filter(|(node, _)| is_dead(*node)) {
            self.dead_since.entry(node).or_insert(now);
        }
    }

    /// One step for nodes that rest, leave or are lost, that make a further group, or for topics that are to
    /// be in another one.
    fn care(&mut self, now: Instant, own: NodeId, metadata: &Metadata) -> Vec<Command> {
        let drains = plan_drains(metadata);
        if !drains.is_empty() {
            return drains;
        }
        let is_lost = |(_, since): &(&NodeId, &Instant)| {
            self.heal_after.is_some_and(|heal_after| now.since(**since) >= heal_after)
        };
        let lost = self.dead_since.iter().filter(is_lost).map(|(node, _)| *node).collect();
        let step = plan_heal(metadata, &lost)
            .or_else(|| plan_farewell(metadata, own))
            .or_else(|| plan_group(metadata, &self.further_groups))
            .or_else(|| {
                let mut placement = Placement::new(metadata, &BTreeSet::new());
                placement.plan_conversion(&mut self.conversion, self.moves_per_plan_max)
            });
        step.into_iter().collect()
    }

    fn mark_nodes(&mut self, now: Instant, metadata: &Metadata) -> Vec<Command> {
        let found: Vec<(NodeId, NodeEpoch, Liveness)> = self.verdicts(now, metadata).collect();
        self.marked_at.retain(|node, _| found.iter().any(|(id, _, _)| id == node));
        let mut commands = Vec::new();
        for (node, epoch, liveness) in found {
            // On its way already: a metadata log that is slow does not get faster by more of the same.
            let is_planned = self.marked_at.get(&node).is_some_and(|(planned, at)| {
                *planned == liveness && now.since(*at) < PLAN_PATIENCE
            });
            if !is_planned {
                self.marked_at.insert(node, (liveness, now));
                commands.push(Command::MarkNode { node, epoch, liveness });
            }
        }
        commands
    }

    fn verdicts(
        &self,
        now: Instant,
        metadata: &Metadata,
    ) -> impl Iterator<Item = (NodeId, NodeEpoch, Liveness)> {
        metadata.nodes().filter_map(move |(id, node)| {
            let liveness = match (self.detector.is_dead(now, id), node.liveness) {
                (true, Liveness::Alive | Liveness::Draining) => Liveness::Dead,
                // A node that was only paused goes on without registering again.
                (false, Liveness::Dead) if self.was_heard_lately(now, id) => Liveness::Alive,
                _ => return None,
            };
            Some((id, node.epoch, liveness))
        })
    }

    fn was_heard_lately(&self, now: Instant, node: NodeId) -> bool {
        self.detector.was_heard(node) && !self.detector.is_dead(now, node)
    }

    fn take_over(&mut self, now: Instant, metadata: &Metadata) -> Vec<Command> {
        let dead: BTreeSet<NodeId> = metadata
            .nodes()
            .filter(|(id, node)| {
                self.detector.is_dead(now, *id)
                    || (node.liveness == Liveness::Dead && !self.was_heard_lately(now, *id))
            })
            .map(|(id, _)| id)
            .collect();
        self.planned_at.retain(|node, _| dead.contains(node));
        let is_due = |node: &&NodeId| {
            let planned_at = self.planned_at.get(*node);
            planned_at.is_none_or(|planned_at| now.since(*planned_at) >= PLAN_PATIENCE)
        };
        let mut due = BTreeSet::new();
        let mut led_count = 0;
        for node in dead.iter().filter(is_due) {
            led_count += metadata.led_count(*node);
            if led_count > TAKEOVERS_PER_LOOK_MAX && !due.is_empty() {
                break;
            }
            due.insert(*node);
        }
        if due.is_empty() {
            return Vec::new();
        }
        self.planned_at.extend(due.iter().map(|node| (*node, now)));
        let budget = &mut self.budget;
        Placement::new(metadata, &dead).plan_takeover(&due, |id, partition| {
            let (leader, of) = (partition.leader, (id, partition.generation));
            metadata.node(leader).is_none_or(|node| budget.take(now, of, (leader, node.epoch)))
        })
    }
}
