//! A storage group as this node sees it: its configuration, and which slots are well.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{GroupId, NodeId};
use meridian_base::position::Generation;
use meridian_base::sync::RwLock;
use meridian_base::topology::{GroupConfig, SLOT_COUNT_MAX, Slot, SlotSet};
use meridian_broker::replica::slots::{SlotWatches, reading_order};
use meridian_consensus::state::Home;
use meridian_storage::placement::SlotHealth;
use meridian_storage::takeover::Former;

use super::lock;
use super::partition_log::Ownership;
use super::reader::ReadFailed;
use crate::runtime::histogram::{Histogram, HistogramSample};

/// A storage group as this node sees it.
#[derive(Debug)]
pub struct Group {
    pub(super) id: GroupId,
    node: NodeId,
    config: RwLock<GroupConfig>,
    watches: Mutex<SlotWatches>,
    return_count: AtomicU64,
    /// How long puts to each slot took.
    puts_took: [Histogram; SLOT_COUNT_MAX],
}

impl Group {
    pub(super) fn new(node: NodeId, config: &GroupConfig) -> Self {
        // Version 0 is older than any the metadata log gives, so that the first one is adopted.
        let unknown =
            GroupConfig { version: meridian_base::id::ConfigVersion::new(0), ..config.clone() };
        let (config, id) = (RwLock::new(unknown), config.group);
        let return_count = AtomicU64::new(0);
        let (watches, puts_took) = Default::default();
        Self { id, node, config, watches, return_count, puts_took }
    }

    /// Takes a newer configuration; false if it is not newer.
    pub(super) fn adopt(&self, config: &GroupConfig) -> bool {
        let mut current = self.config.write();
        let newer = config.version > current.version;
        if newer {
            // What was learned of a node is nothing to the one that fills its slot now.
            lock(&self.watches).adopt(&current, config);
            *current = config.clone();
        }
        newer
    }

    /// The configuration.
    pub fn config(&self) -> GroupConfig {
        self.config.read().clone()
    }

    /// The node that fills `slot`.
    pub(super) fn node_of(&self, slot: Slot) -> Option<NodeId> {
        let config = self.config.read();
        config.slot(slot).map(|slot| slot.node)
    }

    /// The slot that `node` fills.
    pub(super) fn slot_of(&self, node: NodeId) -> Option<Slot> {
        self.config.read().slot_of(node)
    }

    /// The slot of this node.
    pub(super) fn own_slot(&self) -> Option<Slot> {
        self.slot_of(self.node)
    }

    /// Which slots are taken for dead, and how long each may take.
    pub fn health(&self, now: Instant) -> SlotHealth {
        lock(&self.watches).health(now)
    }

    pub(super) fn on_sent(&self, now: Instant, slot: Slot) {
        lock(&self.watches).on_sent(now, slot);
    }

    pub(super) fn on_answer(&self, slot: Slot, took: Option<Duration>) {
        if let (Some(took), Some(puts_took)) = (took, self.puts_took.get(slot.index())) {
            puts_took.note(took);
        }
        lock(&self.watches).on_answer(slot, took);
    }

    /// How long puts took, by the node that has the slot now.
    pub(super) fn put_durations(&self) -> Vec<(NodeId, HistogramSample)> {
        let config = self.config.read();
        let samples = config.slots.iter().zip(&self.puts_took);
        let samples = samples.map(|(slot, took)| (slot.node, took.sample()));
        samples.filter(|(_, sample)| sample.count() > 0).collect()
    }

    pub(super) fn on_refused(&self, now: Instant, slot: Slot) {
        lock(&self.watches).on_refused(now, slot);
    }

    pub(super) fn on_late_read(&self, now: Instant, slot: Slot) {
        lock(&self.watches).on_late_read(now, slot);
    }

    pub(super) fn on_read_answer(&self, slot: Slot) {
        lock(&self.watches).on_read_answer(slot);
    }

    pub(super) fn on_peer(&self, now: Instant, node: NodeId, reachable: bool) {
        if let Some(slot) = self.slot_of(node) {
            lock(&self.watches).on_reachable(now, slot, reachable);
            self.return_count.fetch_add(u64::from(reachable), Ordering::Relaxed);
        }
    }

    /// How often a node of the group was found to be reachable.
    pub(super) fn return_count(&self) -> u64 {
        self.return_count.load(Ordering::Relaxed)
    }

    /// The slots in the order to read from, and those among them that come last because they are slow.
    pub(super) fn reading_order(&self, now: Instant, first: Option<Slot>) -> (Vec<Slot>, SlotSet) {
        let slow = lock(&self.watches).slow_to_read(now);
        let config = self.config.read();
        (reading_order(&config, config.slot_of(self.node), slow, first), slow)
    }
}

/// The groups that hold a partition's blobs: which of its generations are where. A partition that was
/// moved keeps in the group it left what it had put there.
#[derive(Clone, Debug)]
pub(super) struct Homes(Vec<(Generation, Arc<Group>)>);

impl Homes {
    /// Of a partition that is in `group`, and was in these before; `None` if one of them is not known here
    /// yet.
    pub(super) fn new(
        ownership: &Ownership,
        group_of: impl Fn(GroupId) -> Option<Arc<Group>>,
    ) -> Option<Self> {
        if ownership.homes.is_empty() {
            return Some(Self(vec![(Generation::FIRST, group_of(ownership.group)?)]));
        }
        let home = |home: &Home| Some((home.first, group_of(home.group)?));
        ownership.homes.iter().map(home).collect::<Option<_>>().map(Self)
    }

    /// The group that holds the blobs of `generation`.
    pub(super) fn of(&self, generation: Generation) -> Result<&Group, ReadFailed> {
        let home = self.0.iter().rev().find(|(first, _)| *first <= generation);
        home.map(|(_, group)| group.as_ref()).ok_or(ReadFailed::UnknownGroup(generation))
    }

    /// The group that the partition is in now.
    pub(super) fn present(&self) -> Option<&Arc<Group>> {
        self.0.last().map(|(_, group)| group)
    }

    /// Every group that may hold a blob, each once.
    pub(super) fn every(&self) -> BTreeMap<GroupId, &Arc<Group>> {
        self.0.iter().map(|(_, group)| (group.id, group)).collect()
    }

    /// The groups before the present one, for a takeover.
    pub(super) fn former(&self) -> Vec<Former> {
        let left = self.0.iter().zip(self.0.iter().skip(1));
        let former = |((_, group), (next, _)): (&(Generation, Arc<Group>), &(Generation, _))| {
            Former { last: Generation::new(next.get() - 1), group: group.config() }
        };
        left.map(former).collect()
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::{ConfigVersion, Incarnation};
    use meridian_base::topology::{Geometry, SlotConfig, SlotState};

    use super::*;

    fn config(version: u64, nodes: [u32; 3]) -> GroupConfig {
        let slot = |node| SlotConfig {
            node: NodeId::new(node),
            incarnation: Incarnation::new(u64::from(node)),
            state: SlotState::Good,
        };
        GroupConfig {
            group: GroupId::new(1),
            version: ConfigVersion::new(version),
            geometry: Geometry::OnePerDc,
            slots: nodes.map(slot).to_vec(),
        }
    }

    #[test]
    fn a_slot_that_moved_is_not_taken_for_the_node_that_was_lost() {
        let group = Group::new(NodeId::new(1), &config(1, [1, 2, 3]));
        assert!(group.adopt(&config(1, [1, 2, 3])));
        let now = Instant::from_micros(1_000_000);
        group.on_peer(now, NodeId::new(2), false);
        group.on_peer(now, NodeId::new(3), false);
        assert!(group.adopt(&config(2, [1, 7, 3])));
        let suspect = group.health(now).suspect;
        assert_eq!(suspect, SlotSet::EMPTY.with(Slot::new(2)), "node 7 was never away");
    }
}
