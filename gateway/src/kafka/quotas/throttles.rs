//! How far those who have quotas are at this node, and what this node lends others as the home of some: the machines
//! of [`meridian_broker::quota`] behind locks.

use std::sync::Mutex;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::NodeId;
use meridian_broker::quota::EntityId;
use meridian_broker::quota::home::Home;
use meridian_broker::quota::message::{Report, Shares};
use meridian_broker::quota::node::{Charged, Holding, NodeShares, Owed, Quota, Scope};
use meridian_storage::mutation::Mutations;

use super::Traffic;
use super::entity::Entity;
use crate::kafka::lock;

/// Set in the number of a kind of traffic for those that find no room.
const OVERFLOW: u8 = 0x80;

/// A quota that holds for a client.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::kafka) struct Limit {
    traffic: Traffic,
    shared_by: Entity,
    quota: Quota,
}

impl Limit {
    pub(super) fn new(traffic: Traffic, shared_by: Entity, per_second: f64) -> Self {
        let number = traffic as u8;
        let quota = Quota {
            entity: EntityId::of(number, &shared_by.key()),
            overflow: EntityId::of(number | OVERFLOW, &[]),
            per_second,
            scope: traffic.scope(),
        };
        Self { traffic, shared_by, quota }
    }
}

impl Traffic {
    /// As in Kafka an address is held back by each node for itself: its connections cost that node alone.
    const fn scope(self) -> Scope {
        match self {
            Self::Produce | Self::Fetch | Self::Mutations => Scope::Cluster,
            Self::Connections => Scope::Node,
        }
    }
}

/// Who shares a quota.
#[derive(Clone, Debug)]
pub(super) struct Label {
    pub(super) traffic: Traffic,
    pub(super) shared_by: Entity,
}

/// The buckets of this node, and what it lends.
#[derive(Debug)]
pub(in crate::kafka) struct Throttles {
    shares: Mutex<NodeShares<Label>>,
    /// Locked before the metadata is read for it, so that what is older never comes after what is newer.
    pub(super) home: Mutex<Home>,
    /// When the metadata leader was last asked whether this node has missed anything; `None` while it is asked.
    pub(super) asked_at: Mutex<Option<Instant>>,
}

impl Throttles {
    /// `life` is drawn at each start, and not 0.
    pub(in crate::kafka) fn new(
        now: Instant,
        node: NodeId,
        life: u64,
        mutations: Mutations,
    ) -> Self {
        Self {
            shares: Mutex::new(NodeShares::new(node, life, mutations)),
            home: Mutex::new(Home::new(now, node, life, mutations)),
            asked_at: Mutex::new(Some(now)),
        }
    }

    pub(super) fn charge(&self, now: Instant, limit: &Limit, amount: usize) -> Charged {
        let label = || Label { traffic: limit.traffic, shared_by: limit.shared_by.clone() };
        lock(&self.shares).charge(now, &limit.quota, amount as u64, label)
    }

    /// What may be had at once after a pause.
    pub(super) fn burst(&self, now: Instant, limit: &Limit) -> usize {
        let label = || Label { traffic: limit.traffic, shared_by: limit.shared_by.clone() };
        // Saturates: a quota of more than there are numbers for is none.
        lock(&self.shares).burst(now, &limit.quota, label) as usize
    }

    /// After how long to look again whether something is paid: zero when it is.
    pub(super) fn pause(&self, now: Instant, owed: Owed) -> Duration {
        lock(&self.shares).pause(now, owed)
    }

    /// What homes are to hear.
    pub(super) fn report(
        &self,
        now: Instant,
        nodes: &[NodeId],
        applied_index: u64,
    ) -> Vec<(NodeId, Report)> {
        let mut shares = lock(&self.shares);
        shares.set_nodes(nodes);
        shares.report(now, applied_index)
    }

    pub(super) fn on_shares(&self, now: Instant, home: NodeId, sent_at: Instant, shares: &Shares) {
        lock(&self.shares).on_shares(now, home, sent_at, shares);
    }

    /// What this node holds of each quota.
    pub(super) fn holdings(&self, now: Instant) -> Vec<Holding<Label>> {
        let shares = lock(&self.shares);
        let owned = |it: Holding<&Label>| Holding {
            label: it.label.clone(),
            per_second: it.per_second,
            share: it.share,
            lease_left: it.lease_left,
            demand: it.demand,
            used_per_second: it.used_per_second,
            debt: it.debt,
            home: it.home,
        };
        shares.holdings(now).map(owned).collect()
    }

    /// Of how many entities this node divides the rates.
    pub(super) fn homed_count(&self) -> usize {
        lock(&self.home).entity_count()
    }
}
