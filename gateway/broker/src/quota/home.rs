//! The node that divides rates among all nodes. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::NodeId;
use meridian_storage::mutation::{Mutation, Mutations};

use super::fill::fill;
use super::message::{Report, Share, Shares, Want};
use super::view::{Views, home_of};
use super::{CLOCK_MARGIN, EntityId, IDLE_AFTER, LEASE, floor};

/// Entities that a home divides rates of. For those beyond nodes have the rate divided by their number.
const ENTITY_COUNT_MAX: usize = 10_000;
/// A node that is silent for this long needs nothing. What it holds counts until its lease ends.
const SILENT_AFTER: Duration = Duration::from_millis(500);
/// A report that comes sooner after the one before is passed over, which bounds the leases that are remembered.
const REPORT_GAP_MIN: Duration = Duration::from_millis(40);

/// The home of some entities.
#[derive(Debug)]
pub struct Home {
    node: NodeId,
    life: u64,
    number: u64,
    views: Views,
    entities: BTreeMap<EntityId, Entity>,
    /// The newest report of each node.
    heard: BTreeMap<NodeId, Heard>,
    mutations: Mutations,
}

#[derive(Debug, Default)]
struct Entity {
    per_second: f64,
    /// Of who said so.
    applied_index: u64,
    members: BTreeMap<NodeId, Member>,
}

/// A report that was answered.
#[derive(Clone, Copy, Debug)]
struct Heard {
    life: u64,
    number: u64,
    at: Instant,
}

/// A node with clients of the entity.
#[derive(Debug)]
struct Member {
    demand: f64,
    heard_at: Instant,
    leases: VecDeque<Lease>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    number: u64,
    per_second: f64,
    until: Instant,
}

impl Member {
    /// The most that it may go by now.
    fn lent(&self, now: Instant) -> f64 {
        let valid = self.leases.iter().filter(|lease| now < lease.until);
        valid.map(|lease| lease.per_second).fold(0.0, f64::max)
    }
}

impl Entity {
    fn lent_to_others(&self, now: Instant, node: NodeId) -> f64 {
        let others = self.members.iter().filter(|(id, _)| **id != node);
        others.map(|(_, member)| member.lent(now)).sum()
    }

    /// What a node should have.
    fn target(&self, now: Instant, node: NodeId, floor: f64) -> f64 {
        let is_heard = |(_, it): &(&NodeId, &Member)| now.since(it.heard_at) <= SILENT_AFTER;
        let heard: Vec<_> = self.members.iter().filter(is_heard).collect();
        let demands: Vec<f64> = heard.iter().map(|(_, member)| member.demand).collect();
        let shares = fill(self.per_second, floor, &demands);
        let at = heard.iter().position(|(id, _)| **id == node);
        at.and_then(|at| shares.get(at)).copied().unwrap_or_default()
    }

    /// Lends a node what it should have, as far as others do not have it still.
    fn lend(
        &mut self,
        now: Instant,
        node: NodeId,
        number: u64,
        floor: f64,
        mutations: Mutations,
    ) -> Option<Share> {
        let target = self.target(now, node, floor);
        let free = self.per_second - self.lent_to_others(now, node);
        let member = self.members.get_mut(&node)?;
        let mut per_second = target.min(free.max(member.lent(now)));
        if Mutation::FloorUnsubtracted.active(mutations) {
            per_second = per_second.max(floor);
        }
        if per_second < floor && free < target {
            return Some(Share::Wait);
        }
        let until = now + LEASE + CLOCK_MARGIN;
        member.leases.push_back(Lease { number, per_second, until });
        Some(Share::Lease(per_second))
    }
}

impl Home {
    /// `life` is drawn at each start, and not 0.
    pub fn new(now: Instant, node: NodeId, life: u64, mutations: Mutations) -> Self {
        Self {
            node,
            life,
            number: 0,
            views: Views::new(now),
            entities: BTreeMap::new(),
            heard: BTreeMap::new(),
            mutations,
        }
    }

    /// Takes which nodes are alive, as this node knows it now. `asked_at`: all that was decided before then is in it.
    pub fn note_nodes(&mut self, now: Instant, nodes: &[NodeId], asked_at: Option<Instant>) {
        self.views.note(now, nodes, asked_at);
        self.heard.retain(|node, _| nodes.contains(node));
        self.forget(now);
    }

    /// Whether it may lend: it knows that it has missed no decision for long.
    pub fn is_fresh(&self, now: Instant) -> bool {
        self.views.is_fresh(now)
    }

    /// Of how many entities this is the home.
    pub fn entity_count(&self) -> usize {
        self.entities.len()
    }

    /// What is lent of an entity's rate in all.
    pub fn lent(&self, now: Instant, entity: EntityId) -> f64 {
        let members = self.entities.get(&entity).into_iter().flat_map(|it| it.members.values());
        members.map(|member| member.lent(now)).sum()
    }

    fn forget(&mut self, now: Instant) {
        let (node, nodes) = (self.node, self.views.nodes());
        self.entities.retain(|id, entity| {
            for member in entity.members.values_mut() {
                member.leases.retain(|lease| now < lease.until);
            }
            let is_used =
                |it: &mut Member| now.since(it.heard_at) <= IDLE_AFTER || !it.leases.is_empty();
            entity.members.retain(|_, member| is_used(member));
            !entity.members.is_empty() && home_of(*id, nodes) == Some(node)
        });
    }

    /// Answers a report. `None` if it is not the newest of its node, comes too soon after that one, or nothing may be lent.
    pub fn on_report(&mut self, now: Instant, report: &Report) -> Option<Shares> {
        let is_out_of_turn = self.heard.get(&report.node).is_some_and(|heard| {
            let is_old = heard.life == report.life && report.number <= heard.number;
            is_old || now.since(heard.at) < REPORT_GAP_MIN
        });
        let is_known = self.views.nodes().contains(&report.node);
        // An answer says all that there is of each entity, or there is none.
        if is_out_of_turn || !is_known || !self.views.is_fresh(now) {
            return None;
        }
        let heard = Heard { life: report.life, number: report.number, at: now };
        self.heard.insert(report.node, heard);
        self.number += 1;
        let share = |want: &Want| Some((want.entity, self.on_want(now, report, want)?));
        let shares = report.wants.iter().filter_map(share).collect();
        Some(Shares { life: self.life, number: self.number, shares })
    }

    fn on_want(&mut self, now: Instant, report: &Report, want: &Want) -> Option<Share> {
        let id = want.entity;
        let nodes = self.views.nodes();
        if home_of(id, nodes) != Some(self.node) {
            return None;
        }
        let floor = floor(want.per_second, nodes.len());
        if self.entities.len() >= ENTITY_COUNT_MAX && !self.entities.contains_key(&id) {
            return None;
        }
        let entity = self.entities.entry(id).or_default();
        if report.applied_index >= entity.applied_index {
            entity.applied_index = report.applied_index;
            entity.per_second = want.per_second;
        }
        let new = Member { demand: 0.0, heard_at: now, leases: VecDeque::new() };
        let member = entity.members.entry(report.node).or_insert(new);
        (member.demand, member.heard_at) = (want.demand, now);
        let held = report.held.number;
        let is_own = report.held.life == self.life;
        // It goes by that one, and by none before.
        member.leases.retain(|lease| now < lease.until && !(is_own && lease.number < held));
        let is_settled = self.views.is_settled(now, id, self.node)
            || Mutation::NewHomeSpeaks.active(self.mutations);
        if !is_settled {
            return None;
        }
        entity.lend(now, report.node, self.number, floor, self.mutations)
    }
}

#[cfg(test)]
mod tests;
