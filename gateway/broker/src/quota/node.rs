//! What clients use at one node, and how fast they may be there. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::NodeId;
use meridian_storage::mutation::{Mutation, Mutations};

use super::bucket::{Bucket, Position, capacity, time_to_pay};
use super::message::{Held, Report, Share, Shares, Want};
use super::view::home_of;
use super::{EntityId, FALL, IDLE_AFTER, LEASE, SHARED_COUNT_MAX, floor};

/// Entities that have a bucket. Clients choose their ids: those that find no room share one bucket, so that an id for
/// each request neither takes memory nor escapes the quota.
pub const ENTITY_COUNT_MAX: usize = 10_000;
/// How often buckets that are full again make room.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// What was used so long ago hardly counts for the demand any more.
const SMOOTH_OVER: Duration = Duration::from_millis(200);
/// In this time a debt is to be paid.
const PAY_WITHIN: Duration = Duration::from_millis(500);
/// Who is held back would use more than it does, and who is not may use a little more.
const HELD_BACK_FACTOR: f64 = 1.5;
const FREE_FACTOR: f64 = 1.1;
/// A client may be told to wait for longer than it has to, because a share may grow; but not for longer than this.
const WAIT_IN_DOUBT_MAX: Duration = Duration::from_secs(1);
/// A share that may grow is looked at again after this time, and after this part of the time that is left.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);
const LOOK_AGAIN_PART: u32 = 4;

/// Where a quota holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// At each node by itself.
    Node,
    /// Over all nodes together, if the cluster has it so.
    Cluster,
}

/// A quota that something is charged to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// Who shares it.
    pub entity: EntityId,
    /// Who shares it with all that find no room.
    pub overflow: EntityId,
    /// Units in a second.
    pub per_second: f64,
    /// Where it holds.
    pub scope: Scope,
}

/// What was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// What is to be paid before whoever was charged goes on.
    pub owed: Owed,
    /// How long it is told to wait: no longer than it will have to, or a second.
    pub told: Duration,
}

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    entity: EntityId,
    position: Position,
}

impl Owed {
    /// Whether who has paid that has paid this, too.
    pub fn is_part_of(&self, other: &Self) -> bool {
        self.entity == other.entity
    }
}

/// What a node holds of an entity's rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Holding<L> {
    /// Who it is.
    pub label: L,
    /// The quota, in units in a second.
    pub per_second: f64,
    /// How fast this node may be now.
    pub share: f64,
    /// How long its lease holds, if it has one.
    pub lease_left: Option<Duration>,
    /// What it would use, as of its last report.
    pub demand: f64,
    /// What it has used lately.
    pub used_per_second: f64,
    /// What it has still to pay.
    pub debt: f64,
    /// Who divides the rate; `None` where each node does so for itself.
    pub home: Option<NodeId>,
}

/// All buckets of a node. `L` names an entity for people.
#[derive(Debug)]
pub struct NodeShares<L> {
    node: NodeId,
    life: u64,
    number: u64,
    /// Those that are alive; none if quotas hold at each node by itself.
    nodes: Vec<NodeId>,
    held: BTreeMap<EntityId, Entity<L>>,
    /// Those of `held` that are talked about.
    shared: BTreeSet<EntityId>,
    /// The newest answer of each home, and when it came. Also of one that is none any more: what it has said before may
    /// still be on the way.
    answers: BTreeMap<NodeId, (Held, Instant)>,
    forgot_at: Option<Instant>,
    mutations: Mutations,
}

/// How much of the rate a node has.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// All of it.
    Whole,
    /// As much as each other node has.
    Equal,
    /// What its home says, or what holds until it does.
    Shared { per_second: f64, until: Instant, is_lease: bool },
}

#[derive(Debug)]
struct Entity<L> {
    label: L,
    per_second: f64,
    part: Part,
    bucket: Bucket,
    charged_at: Instant,
    reported_at: Instant,
    used_since: f64,
    used_per_second: f64,
    demand: f64,
}

impl<L> Entity<L> {
    fn new(now: Instant, label: L, per_second: f64, part: Part, node_count: usize) -> Self {
        let mut entity = Self {
            label,
            per_second,
            part,
            bucket: Bucket::new(now, 0.0),
            charged_at: now,
            reported_at: now,
            used_since: 0.0,
            used_per_second: 0.0,
            demand: 0.0,
        };
        entity.bucket = Bucket::new(now, entity.allowed(now, node_count));
        entity
    }

    /// How fast the node may be.
    fn allowed(&self, now: Instant, node_count: usize) -> f64 {
        let equal = self.per_second / node_count.max(1) as f64;
        match self.part {
            _ if node_count <= 1 => self.per_second,
            Part::Whole => self.per_second,
            Part::Equal => equal,
            Part::Shared { per_second, until, .. } => {
                let share = per_second.min(self.per_second);
                let fallen = (now.since(until).as_secs_f64() / FALL.as_secs_f64()).min(1.0);
                share + (equal - share) * fallen
            }
        }
    }

    fn fill(&mut self, now: Instant, node_count: usize) -> f64 {
        let allowed = self.allowed(now, node_count);
        self.bucket.fill(now, allowed);
        allowed
    }

    /// Whether its share may grow before it is paid.
    fn may_grow(&self, node_count: usize) -> bool {
        node_count > 1 && matches!(self.part, Part::Shared { .. })
    }

    fn charge(&mut self, now: Instant, amount: u64, node_count: usize) -> (Position, Duration) {
        let allowed = self.fill(now, node_count);
        let position = self.bucket.take(amount, self.per_second);
        if amount > 0 {
            self.charged_at = now;
            self.used_since += amount as f64;
        }
        let owed = self.bucket.owed(position);
        let wait = time_to_pay(owed, allowed);
        let told = match self.may_grow(node_count) {
            true => wait.min(WAIT_IN_DOUBT_MAX).max(time_to_pay(owed, self.per_second)),
            false => wait,
        };
        (position, told)
    }

    /// Measures what is wanted since the last time.
    fn measure(&mut self, now: Instant) {
        let elapsed = now.since(self.reported_at).as_secs_f64();
        if elapsed <= 0.0 {
            return;
        }
        let sample = self.used_since / elapsed;
        let weight = 1.0 - (-elapsed / SMOOTH_OVER.as_secs_f64()).exp();
        self.used_per_second += (sample - self.used_per_second) * weight;
        let debt = self.bucket.debt();
        self.demand = if debt > 0.0 {
            self.used_per_second * HELD_BACK_FACTOR + debt / PAY_WITHIN.as_secs_f64()
        } else {
            self.used_per_second * FREE_FACTOR
        };
        self.used_since = 0.0;
        self.reported_at = now;
    }

    /// Whether nothing is lost if it is forgotten: one that is new has all of the burst, or that of the floor.
    fn is_idle(&self, now: Instant, node_count: usize) -> bool {
        let is_paid = match self.may_grow(node_count) {
            true => self.bucket.debt() <= 0.0,
            false => self.bucket.is_full(),
        };
        is_paid && now.since(self.charged_at) > IDLE_AFTER
    }
}

impl<L> NodeShares<L> {
    /// `life` is drawn at each start.
    pub fn new(node: NodeId, life: u64, mutations: Mutations) -> Self {
        Self {
            node,
            life,
            number: 0,
            nodes: Vec::new(),
            held: BTreeMap::new(),
            shared: BTreeSet::new(),
            answers: BTreeMap::new(),
            forgot_at: None,
            mutations,
        }
    }

    /// The nodes among which rates are divided; none if each has all of them.
    pub fn set_nodes(&mut self, nodes: &[NodeId]) {
        if self.nodes != nodes {
            self.nodes = nodes.to_vec();
        }
    }

    /// Whether it has nothing to report.
    pub fn is_quiet(&self) -> bool {
        self.shared.is_empty()
    }

    /// Charges `amount` to a quota, whatever is left of it.
    pub fn charge(
        &mut self,
        now: Instant,
        quota: &Quota,
        amount: u64,
        label: impl FnOnce() -> L,
    ) -> Charged {
        let node_count = self.nodes.len();
        let (entity, held) = self.entity(now, quota, label);
        held.per_second = quota.per_second;
        let (position, told) = held.charge(now, amount, node_count);
        Charged { owed: Owed { entity, position }, told }
    }

    /// What may be taken at once when the bucket is full.
    pub fn burst(&mut self, now: Instant, quota: &Quota, label: impl FnOnce() -> L) -> f64 {
        let node_count = self.nodes.len();
        let (_, held) = self.entity(now, quota, label);
        held.per_second = quota.per_second;
        capacity(held.fill(now, node_count))
    }

    /// After how long to look again whether something is paid: zero when it is.
    pub fn pause(&mut self, now: Instant, owed: Owed) -> Duration {
        let node_count = self.nodes.len();
        let Some(held) = self.held.get_mut(&owed.entity) else { return Duration::ZERO };
        let allowed = held.fill(now, node_count);
        let units = held.bucket.owed(owed.position);
        let wait = time_to_pay(units, allowed);
        if !held.may_grow(node_count) {
            return wait;
        }
        let least = time_to_pay(units, held.per_second).max(LOOK_AGAIN_AFTER);
        wait.min(least.max(wait / LOOK_AGAIN_PART))
    }

    fn entity(
        &mut self,
        now: Instant,
        quota: &Quota,
        label: impl FnOnce() -> L,
    ) -> (EntityId, &mut Entity<L>) {
        let is_known = self.held.contains_key(&quota.entity);
        let has_room = is_known || self.has_room(now);
        let id = if has_room { quota.entity } else { quota.overflow };
        let is_shared = has_room && self.shared.len() < SHARED_COUNT_MAX;
        let node_count = self.nodes.len();
        let part = match quota.scope {
            Scope::Node => Part::Whole,
            Scope::Cluster if !is_shared => Part::Equal,
            Scope::Cluster => Part::Shared {
                per_second: floor(quota.per_second, node_count),
                until: now + LEASE,
                is_lease: false,
            },
        };
        if !self.held.contains_key(&id) && matches!(part, Part::Shared { .. }) {
            self.shared.insert(id);
        }
        let new = || Entity::new(now, label(), quota.per_second, part, node_count);
        (id, self.held.entry(id).or_insert_with(new))
    }

    /// Whether one more finds room; makes some now and then.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.held.len() < ENTITY_COUNT_MAX {
            return true;
        }
        if self.forgot_at.is_none_or(|at| now.since(at) >= FORGET_EVERY) {
            self.forgot_at = Some(now);
            let node_count = self.nodes.len();
            let shared = &self.shared;
            // Those that are shared go when they are idle.
            self.held.retain(|id, held| {
                held.fill(now, node_count);
                shared.contains(id) || !held.bucket.is_full()
            });
        }
        self.held.len() < ENTITY_COUNT_MAX
    }

    /// What homes are to hear: call it every [`super::REPORT_EVERY`].
    pub fn report(&mut self, now: Instant, applied_index: u64) -> Vec<(NodeId, Report)> {
        self.forget_idle(now);
        let nodes = &self.nodes;
        // What was sent before has ended by then.
        self.answers.retain(|node, (_, at)| nodes.contains(node) || now.since(*at) <= LEASE);
        if self.nodes.len() <= 1 {
            return Vec::new();
        }
        let mut by_home: BTreeMap<NodeId, Vec<Want>> = BTreeMap::new();
        for id in &self.shared {
            let (Some(held), Some(home)) = (self.held.get_mut(id), home_of(*id, &self.nodes))
            else {
                continue;
            };
            held.measure(now);
            let want = Want { entity: *id, per_second: held.per_second, demand: held.demand };
            by_home.entry(home).or_default().push(want);
        }
        let (node, life) = (self.node, self.life);
        let mut report = |(home, wants): (NodeId, Vec<Want>)| {
            self.number += 1;
            let held = self.answers.get(&home).map(|(held, _)| *held).unwrap_or_default();
            (home, Report { node, life, number: self.number, applied_index, held, wants })
        };
        by_home.into_iter().map(&mut report).collect()
    }

    fn forget_idle(&mut self, now: Instant) {
        let (held, node_count) = (&mut self.held, self.nodes.len());
        self.shared.retain(|id| {
            let Some(entity) = held.get_mut(id) else { return false };
            entity.fill(now, node_count);
            let is_idle = entity.is_idle(now, node_count);
            if is_idle {
                held.remove(id);
            }
            !is_idle
        });
    }

    /// Takes the answer to a report that was sent at `sent_at`.
    pub fn on_shares(&mut self, now: Instant, home: NodeId, sent_at: Instant, answer: &Shares) {
        let until = sent_at + LEASE;
        let is_old = self.answers.get(&home).is_some_and(|(before, _)| {
            before.life == answer.life && answer.number <= before.number
        });
        if now >= until || is_old || !self.nodes.contains(&home) {
            return;
        }
        self.answers.insert(home, (Held { life: answer.life, number: answer.number }, now));
        let node_count = self.nodes.len();
        for (id, share) in &answer.shares {
            let Some(held) = self.held.get_mut(id) else { continue };
            if !matches!(held.part, Part::Shared { .. }) {
                continue;
            }
            held.fill(now, node_count);
            held.part = match *share {
                Share::Lease(per_second) => Part::Shared { per_second, until, is_lease: true },
                // The home is there, so that this node does not help itself to more.
                Share::Wait => Part::Shared {
                    per_second: floor(held.per_second, node_count),
                    until,
                    is_lease: false,
                },
            };
            if Mutation::DebtDropped.active(self.mutations) {
                held.bucket.forgive();
            }
            held.fill(now, node_count);
        }
    }

    /// What holds now, for people.
    pub fn holdings(&self, now: Instant) -> impl Iterator<Item = Holding<&L>> {
        let node_count = self.nodes.len();
        self.held.iter().map(move |(id, held)| {
            let lease_left = match held.part {
                Part::Shared { until, is_lease: true, .. } if now < until && node_count > 1 => {
                    Some(until.since(now))
                }
                Part::Whole | Part::Equal | Part::Shared { .. } => None,
            };
            let home = self.shared.contains(id).then(|| home_of(*id, &self.nodes)).flatten();
            Holding {
                label: &held.label,
                per_second: held.per_second,
                share: held.allowed(now, node_count),
                lease_left,
                demand: held.demand,
                used_per_second: held.used_per_second,
                debt: held.bucket.debt(),
                home,
            }
        })
    }
}

#[cfg(test)]
mod tests;
