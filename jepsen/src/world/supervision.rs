//! Who leads the metadata log, and what it decides by itself: the real supervisor, on heartbeats that the network delays
//! and loses, and on the clocks of nodes, none of which goes as fast as another. The election is a stand-in: after a
//! while without a leader that reaches a majority, some voter that does leads.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::NodeId;
use meridian_consensus::config::Config;
use meridian_consensus::supervisor::Supervisor;
use meridian_jepsen_runner::chance::Chance;

use super::{Event, World};
use crate::net::Endpoint;

/// Sets its chance apart from all others.
const SEED: u64 = 0x7375_7065_7276_6973;
/// Each node's clock is slow or fast by this many thousandths at most.
const CLOCK_PER_MILLE_MAX: usize = 50;

/// What is known of the leader of the metadata log.
pub(crate) struct Supervision {
    config: Config,
    chance: Chance,
    /// The process that leads.
    leading: Option<Leading>,
    /// When another one is elected, if this one does not come back until then.
    elected_at: Option<Instant>,
    /// Between two heartbeats of each node.
    beats: Vec<Duration>,
}

struct Leading {
    node: usize,
    boot: u64,
    /// When others heard from it last.
    heard_at: Instant,
    supervisor: Supervisor,
}

impl Supervision {
    pub(super) fn new(seed: u64, node_count: usize) -> Self {
        let mut chance = Chance::new(seed ^ SEED);
        // Slots are given to spares by the nemesis, which knows which disks may be lost.
        let config = Config { heal_after: None, ..Config::default() };
        let mut beat = || {
            let per_mille = 1_000 - CLOCK_PER_MILLE_MAX + chance.below(2 * CLOCK_PER_MILLE_MAX);
            config.node_heartbeat * per_mille as u32 / 1_000
        };
        let beats = (0..node_count).map(|_| beat()).collect();
        Self { config, chance, leading: None, elected_at: None, beats }
    }
}

impl World {
    /// From now on nodes send heartbeats, and who leads the log decides who is dead and who leads what.
    pub(crate) fn begin_supervision(&mut self) {
        for node in 0..self.nodes.len() {
            self.schedule(Duration::ZERO, Event::Beat { node });
        }
    }

    /// No leader of a partition is moved for balance.
    pub(crate) fn keep_leaders(&mut self) {
        self.supervision.config.moves_per_plan_max = 0;
    }

    /// It is time for a heartbeat of a node.
    pub(super) fn beat(&mut self, node: usize) {
        self.schedule(self.supervision.beats[node], Event::Beat { node });
        self.elect();
        let Some(leading) = &self.supervision.leading else { return };
        let (leader, boot) = (leading.node, leading.boot);
        if !self.is_running(node) {
            return;
        }
        if leader == node {
            if self.nodes[node].boot == boot {
                self.supervise();
            }
            return;
        }
        let (from, to) = (Endpoint(node), Endpoint(leader));
        for delay in self.network.send(from, to).into_iter().flatten() {
            self.schedule(delay, Event::Heartbeat { from: node, to: leader });
        }
    }

    /// A heartbeat has come.
    pub(super) fn heartbeat(&mut self, from: usize, to: usize) {
        let (id, to_node) = (self.nodes[from].id, &self.nodes[to]);
        if let Some(leading) = &mut self.supervision.leading
            && (leading.node, leading.boot) == (to, to_node.boot)
            && to_node.is_up()
        {
            leading.supervisor.heard(self.now, id);
        }
    }

    fn supervise(&mut self) {
        let Self { supervision, nodes, now, .. } = self;
        let Some(Leading { node, supervisor, .. }) = &mut supervision.leading else { return };
        let (node, leader) = (*node, &nodes[*node]);
        supervisor.heard(*now, leader.id);
        let commands = supervisor.poll(*now, leader.id, leader.metadata());
        for command in commands {
            if self.reaches_majority(node) {
                self.trace.event(self.now, format_args!("N{node} supervises: {command:?}"));
                // What is refused was decided on what is not so any more, and is decided anew.
                let _decided_anew = self.decide(command);
            }
        }
    }

    /// Has a voter lead the log, if nobody has for a while.
    fn elect(&mut self) {
        let now = self.now;
        let is_led = self.supervision.leading.as_ref().is_some_and(|it| {
            let is_it = self.nodes[it.node].boot == it.boot;
            is_it && self.is_running(it.node) && self.reaches_majority(it.node)
        });
        let Supervision { config, chance, leading, elected_at, .. } = &mut self.supervision;
        if is_led {
            *elected_at = None;
            leading.iter_mut().for_each(|it| it.heard_at = now);
            return;
        }
        let patience = config.tick * config.election_ticks;
        let due = *elected_at.get_or_insert_with(|| match leading {
            Some(_) => now + patience + chance.between(Duration::ZERO, patience),
            None => now,
        });
        if now < due {
            return;
        }
        let voters = 0..self.geometry.slot_count();
        let able: Vec<usize> =
            voters.filter(|it| self.is_running(*it) && self.reaches_majority(*it)).collect();
        let Supervision { config, chance, leading, elected_at, .. } = &mut self.supervision;
        let Some(node) = chance.pick(&able) else { return };
        *elected_at = None;
        let deposed = leading.take();
        let deposed: Option<(NodeId, Instant)> =
            deposed.filter(|it| it.node != node).map(|it| (self.nodes[it.node].id, it.heard_at));
        let metadata = self.nodes[node].metadata();
        let supervisor = Supervisor::new(config, now, metadata, deposed);
        let boot = self.nodes[node].boot;
        *leading = Some(Leading { node, boot, heard_at: now, supervisor });
        self.trace.event(now, format_args!("N{node} leads the metadata log"));
    }
}
