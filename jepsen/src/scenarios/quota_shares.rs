//! A quota of the whole cluster, with clients that move between nodes, while nodes die, are cut off and come back, and
//! messages are late or lost: the nodes and homes are the product's, time and the network are this file's.

use std::time::Duration;

use meridian_base::env::{Instant, Rng as _, SplitMix};
use meridian_base::id::NodeId;
use meridian_broker::quota::home::Home;
use meridian_broker::quota::message::{Report, Shares};
use meridian_broker::quota::node::{NodeShares, Owed, Quota, Scope};
use meridian_broker::quota::view::home_of;
use meridian_broker::quota::{EntityId, REPORT_EVERY, floor};
use meridian_storage::mutation::Mutations;

use crate::check::{Promise, Verdict, Violation};

const SEED_COUNT: u64 = 24;
const LASTS: Duration = Duration::from_secs(90);
const TICK: Duration = Duration::from_millis(5);
/// The quota, in units in a second, and what one request takes.
const RATE: f64 = 1_000_000.0;
const REQUEST_UNITS: u64 = 10_000;
/// Connections of the clients at each node.
const CONNECTION_COUNT: usize = 3;
/// How often a node asks whether its view is that of the cluster.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// A node that the metadata leader does not hear counts as dead.
const DEAD_AFTER: Duration = Duration::from_millis(700);
/// Clients go elsewhere about this often, and something breaks.
const MOVE_EVERY: Duration = Duration::from_secs(5);
const BREAK_EVERY: Duration = Duration::from_secs(15);
/// A quota is used well this long after clients have moved, and after the last fault has passed.
const USED_AFTER_MOVE: Duration = Duration::from_secs(1);
const USED_AFTER_FAULT: Duration = Duration::from_secs(6);
/// For so long after a fault nodes may still go by their parts, while homes lend to those that they hear.
const PARTS_AFTER_FAULT: Duration = Duration::from_secs(4);
const USED_PART: f64 = 0.95;
/// Where some nodes need little, and in lumps, they have more for a while than they use.
const USED_PART_OF_MIXED: f64 = 0.9;
const USED_OVER: Duration = Duration::from_secs(1);
/// Clocks of hosts gain or lose up to this part.
const CLOCK_ERROR: f64 = 0.02;

/// What clients at a node want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    None,
    /// A request now and then.
    Little,
    /// More than there is.
    All,
}

/// A node while it runs.
struct Process {
    shares: NodeShares<()>,
    home: Home,
    connections: Vec<Option<Owed>>,
    reported_at: Duration,
    asked_at: Duration,
    little_at: Duration,
}

struct Host {
    node: NodeId,
    process: Option<Process>,
    demand: Demand,
    clock_rate: f64,
    clock_start: u64,
    /// From the metadata leader.
    is_cut_off: bool,
    heard_at: Duration,
}

enum Message {
    Report(Report, Instant),
    Shares(Shares, Instant),
    /// What the cluster is now: to the question of that local time.
    View(Instant),
}

struct Sent {
    at: Duration,
    from: usize,
    to: usize,
    message: Message,
}

struct Run {
    rng: SplitMix,
    mutations: Mutations,
    now: Duration,
    hosts: Vec<Host>,
    /// What the metadata says.
    alive: Vec<NodeId>,
    /// Two hosts that do not reach each other.
    cut: Option<(usize, usize)>,
    sent: Vec<Sent>,
    lives: u64,
    moved_at: Duration,
    broken_at: Duration,
    fault_ends_at: Option<Duration>,
    /// The end of the last fault.
    healed_at: Duration,
    /// What was used beyond the rate in the worst window that ends now.
    excess: f64,
    /// Since the quota should be used well: when that began, and what was used since.
    settled: Option<(Duration, f64)>,
}

impl Host {
    /// Its monotonic clock.
    fn clock(&self, now: Duration) -> Instant {
        let elapsed_us = (now.as_micros() as f64 * self.clock_rate) as u64;
        Instant::from_micros(self.clock_start + elapsed_us)
    }
}

impl Run {
    fn new(seed: u64, mutations: Mutations) -> Self {
        let mut rng = SplitMix::new(seed);
        let count = 3 + rng.below(7) as usize;
        let hosts = (1..=count as u32).map(|id| Host {
            node: NodeId::new(id),
            process: None,
            demand: Demand::None,
            clock_rate: 1.0 + CLOCK_ERROR * (rng.below(2001) as f64 / 1000.0 - 1.0),
            clock_start: rng.below(1 << 40),
            is_cut_off: false,
            heard_at: Duration::ZERO,
        });
        let hosts: Vec<Host> = hosts.collect();
        let mut run = Self {
            rng,
            mutations,
            now: Duration::ZERO,
            alive: hosts.iter().map(|host| host.node).collect(),
            hosts,
            cut: None,
            sent: Vec::new(),
            lives: 0,
            moved_at: Duration::ZERO,
            broken_at: Duration::ZERO,
            fault_ends_at: None,
            healed_at: Duration::ZERO,
            excess: 0.0,
            settled: None,
        };
        (0..count).for_each(|index| run.start(index));
        run.move_clients();
        run
    }

    fn quota() -> Quota {
        let [entity, overflow] = ["shop", ""].map(|key| EntityId::of(1, key.as_bytes()));
        Quota { entity, overflow, per_second: RATE, scope: Scope::Cluster }
    }

    fn start(&mut self, index: usize) {
        self.lives += 1;
        let (life, mutations, now) = (self.lives, self.mutations, self.now);
        let nodes: Vec<NodeId> = self.hosts.iter().map(|host| host.node).collect();
        let Some(host) = self.hosts.get_mut(index) else { return };
        let clock = host.clock(now);
        let mut shares = NodeShares::new(host.node, life, mutations);
        // By the metadata on its disk, which may be old.
        shares.set_nodes(&nodes);
        host.process = Some(Process {
            shares,
            home: Home::new(clock, host.node, life, mutations),
            connections: vec![None; CONNECTION_COUNT],
            reported_at: now,
            asked_at: now,
            little_at: now,
        });
    }

    fn chance(&mut self, per_cent: u64) -> bool {
        self.rng.below(100) < per_cent
    }

    fn any_host(&mut self) -> usize {
        self.rng.below(self.hosts.len() as u64) as usize
    }

    fn between(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(from_ms + self.rng.below(to_ms - from_ms))
    }

    /// The clients want something else, of other nodes.
    fn move_clients(&mut self) {
        let greedy = self.any_host();
        let many = self.chance(50);
        for index in 0..self.hosts.len() {
            let demand = match self.rng.below(4) {
                _ if index == greedy => Demand::All,
                0 if many => Demand::All,
                1 => Demand::Little,
                _ => Demand::None,
            };
            if let Some(host) = self.hosts.get_mut(index) {
                host.demand = demand;
            }
        }
        self.moved_at = self.now;
        self.settled = None;
    }

    /// The home dies, or is cut off from the metadata, or another node is, or two nodes from each other.
    fn break_something(&mut self) {
        let home = home_of(Self::quota().entity, &self.alive);
        let home = self.hosts.iter().position(|host| Some(host.node) == home).unwrap_or_default();
        let victim = if self.chance(60) { home } else { self.any_host() };
        match self.rng.below(3) {
            0 => {
                if let Some(host) = self.hosts.get_mut(victim) {
                    host.process = None;
                }
            }
            1 => {
                if let Some(host) = self.hosts.get_mut(victim) {
                    host.is_cut_off = true;
                }
            }
            _ => self.cut = Some((victim, self.any_host())),
        }
        self.fault_ends_at = Some(self.now + self.between(200, 6_000));
    }

    fn heal(&mut self) {
        self.fault_ends_at = None;
        self.cut = None;
        for index in 0..self.hosts.len() {
            let is_down = self.hosts.get(index).is_some_and(|host| host.process.is_none());
            if is_down {
                self.start(index);
            }
            if let Some(host) = self.hosts.get_mut(index) {
                host.is_cut_off = false;
            }
        }
        self.healed_at = self.now;
    }

    fn change_weather(&mut self) {
        if self.now >= self.moved_at + MOVE_EVERY {
            self.move_clients();
        }
        match self.fault_ends_at {
            Some(ends_at) if self.now >= ends_at => self.heal(),
            Some(_) => {}
            None if self.now >= self.broken_at + BREAK_EVERY => {
                self.broken_at = self.now;
                self.break_something();
            }
            None => {}
        }
        for host in &mut self.hosts {
            if host.process.is_some() && !host.is_cut_off {
                host.heard_at = self.now;
            }
        }
        let (hosts, now) = (&self.hosts, self.now);
        let is_alive = |host: &&Host| now <= host.heard_at + DEAD_AFTER;
        self.alive = hosts.iter().filter(is_alive).map(|host| host.node).collect();
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let is_cut = self.cut.is_some_and(|cut| cut == (from, to) || cut == (to, from));
        let is_lost = self.chance(1);
        let late = if self.chance(3) { 900 } else { 30 };
        let at = self.now + self.between(1, late);
        if !is_cut && !is_lost {
            self.sent.push(Sent { at, from, to, message });
        }
    }

    fn index_of(&self, node: NodeId) -> Option<usize> {
        self.hosts.iter().position(|host| host.node == node)
    }

    /// What nodes do by their clocks.
    fn tick_nodes(&mut self) {
        let now = self.now;
        let mut out = Vec::new();
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let clock = host.clock(now);
            let Some(process) = &mut host.process else { continue };
            if now >= process.reported_at + REPORT_EVERY {
                process.reported_at = now;
                for (home, report) in process.shares.report(clock, 1) {
                    out.push((index, home, report, clock));
                }
            }
            if now >= process.asked_at + ASK_EVERY && !host.is_cut_off {
                process.asked_at = now;
                let (at, message) = (now + TICK * 10, Message::View(clock));
                self.sent.push(Sent { at, from: index, to: index, message });
            }
        }
        for (from, home, report, clock) in out {
            if let Some(to) = self.index_of(home) {
                self.send(from, to, Message::Report(report, clock));
            }
        }
    }

    fn deliver(&mut self) {
        let (due, later) = self.sent.drain(..).partition(|sent| sent.at <= self.now);
        self.sent = later;
        let due: Vec<Sent> = due;
        for Sent { from, to, message, .. } in due {
            let sender = self.hosts.get(from).map(|host| host.node);
            let Some(host) = self.hosts.get_mut(to) else { continue };
            let clock = host.clock(self.now);
            let is_cut_off = host.is_cut_off;
            let (Some(process), Some(sender)) = (&mut host.process, sender) else { continue };
            match message {
                Message::View(asked_at) if !is_cut_off => {
                    process.shares.set_nodes(&self.alive);
                    process.home.note_nodes(clock, &self.alive, Some(asked_at));
                }
                Message::View(_) => {}
                Message::Report(report, asked_at) => {
                    if let Some(shares) = process.home.on_report(clock, &report) {
                        self.send(to, from, Message::Shares(shares, asked_at));
                    }
                }
                Message::Shares(shares, asked_at) => {
                    process.shares.on_shares(clock, sender, asked_at, &shares);
                }
            }
        }
    }

    /// Clients send what they may; gives how much.
    fn use_quota(&mut self) -> f64 {
        let (now, quota) = (self.now, Self::quota());
        let mut used = 0.0;
        for host in &mut self.hosts {
            let clock = host.clock(now);
            let Some(process) = &mut host.process else { continue };
            for connection in &mut process.connections {
                let is_paid =
                    connection.is_none_or(|owed| process.shares.pause(clock, owed).is_zero());
                let is_due = match host.demand {
                    Demand::None => false,
                    Demand::Little => now >= process.little_at + Duration::from_secs(1),
                    Demand::All => true,
                };
                if is_paid && is_due {
                    process.little_at = now;
                    let charged = process.shares.charge(clock, &quota, REQUEST_UNITS, || ());
                    *connection = Some(charged.owed);
                    used += REQUEST_UNITS as f64;
                }
            }
        }
        used
    }

    /// Leases that hold never add up to more than the rate.
    fn check_leases(&self) -> Verdict {
        let leased = self.hosts.iter().filter_map(|host| {
            let shares = &host.process.as_ref()?.shares;
            let holding = shares.holdings(host.clock(self.now)).next()?;
            holding.lease_left.map(|_| (host.node, holding.share))
        });
        let leased: Vec<(NodeId, f64)> = leased.collect();
        let sum: f64 = leased.iter().map(|(_, share)| share).sum();
        if sum <= RATE * 1.000_001 {
            return Ok(());
        }
        Err(self.violation(Promise::QuotaIsKept, format!("leases of {sum} in all: {leased:?}")))
    }

    /// In no window more is used than the rate allows, a second's worth, the floors, and what is overdrawn once.
    fn check_use(&mut self, used: f64) -> Verdict {
        let count = self.hosts.len() as f64;
        let is_faulty =
            self.fault_ends_at.is_some() || self.now < self.healed_at + PARTS_AFTER_FAULT;
        // Who does not reach the home has its part of the rate, which the home does not know of.
        let parts = if is_faulty { 1.0 + (count - 1.0) / count } else { 1.0 };
        self.excess = (self.excess + used - RATE * parts * TICK.as_secs_f64()).max(0.0);
        let overdrawn = count * CONNECTION_COUNT as f64 * REQUEST_UNITS as f64;
        let floors = count * floor(RATE, self.hosts.len());
        if self.excess <= RATE + floors + overdrawn {
            return Ok(());
        }
        let detail = format!("{} more was used than the rate allows", self.excess);
        Err(self.violation(Promise::QuotaIsKept, detail))
    }

    /// Where clients want more than there is, nearly all is used.
    fn check_waste(&mut self, used: f64) -> Verdict {
        let is_calm = self.fault_ends_at.is_none()
            && self.now >= self.healed_at + USED_AFTER_FAULT
            && self.now >= self.moved_at + USED_AFTER_MOVE;
        if !is_calm {
            self.settled = None;
            return Ok(());
        }
        let (since, before) = self.settled.unwrap_or((self.now, 0.0));
        let sum = before + used;
        self.settled = Some((since, sum));
        let lasted = (self.now - since).as_secs_f64();
        let in_flight = (CONNECTION_COUNT as u64 * REQUEST_UNITS) as f64;
        // Of less time single requests would be seen, and not what is used.
        let is_long = lasted >= USED_OVER.as_secs_f64();
        let needs_little = self.hosts.iter().any(|host| host.demand == Demand::Little);
        let part = if needs_little { USED_PART_OF_MIXED } else { USED_PART };
        if !is_long || sum >= RATE * lasted * part - in_flight {
            return Ok(());
        }
        let detail = format!("{sum} was used in {lasted} s");
        Err(self.violation(Promise::QuotaIsUsed, detail))
    }

    fn violation(&self, promise: Promise, detail: String) -> Violation {
        let demands: Vec<Demand> = self.hosts.iter().map(|host| host.demand).collect();
        let detail = format!("after {:?}: {detail}; clients want {demands:?}", self.now);
        Violation { promise, detail }
    }

    fn run(mut self) -> Verdict {
        while self.now < LASTS {
            self.now += TICK;
            self.change_weather();
            self.tick_nodes();
            self.deliver();
            let used = self.use_quota();
            self.check_leases()?;
            self.check_use(used)?;
            self.check_waste(used)?;
        }
        Ok(())
    }
}

/// A quota is kept and used, whatever fails.
pub fn quota_shares(mutations: Mutations) -> Verdict {
    (1..=SEED_COUNT).try_for_each(|seed| {
        Run::new(seed, mutations).run().map_err(|Violation { promise, detail }| {
            let detail = format!("seed {seed}, {detail}");
            Violation { promise, detail }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_of_the_cluster_is_kept_and_used() {
        assert_eq!(quota_shares(Mutations::NONE), Ok(()));
    }
}
