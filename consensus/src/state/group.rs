//! Disks, slots and the storage groups (rules S4, 10 to 15).

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId};
use meridian_base::topology::{
    Datacenter, Geometry, GroupConfig, Rack, Slot, SlotConfig, SlotSet, SlotState,
};

use serde::{Deserialize, Serialize};

use super::apply::Effects;
use super::{Change, Decision, Metadata, MountedDisk, RowKey};
use crate::command::{FeatureLevel, MountEpoch};
use crate::error::{Refusal, RoleName};
use crate::lifecycle::{Leases, away};
use crate::mutation::Mutation;

/// What a disk is that a node says it has mounted. For operators: what follows is the same for all
/// but [`MountedAs::Same`], a new life that counts for nothing until it has synced (rule S4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MountedAs {
    /// The node's disk, as it was left.
    Same,
    /// The node's first disk.
    First,
    /// An empty disk in place of the one that was known: wiped, or replaced by a new one.
    Blank,
    /// An older copy of the disk (rule 12).
    Stale,
    /// The node's disk, whose node ended before the disk had begun the life that it was given with its slot.
    LifeNotBegun,
    /// The node's disk, which has found durable records of its own missing or unreadable.
    Damaged,
    /// The disk of another node.
    OfNode(NodeId),
}

impl Metadata {
    /// Tells what a disk is by what it says of itself, before its mount is decided.
    pub fn judge_mount(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        mount_epoch: MountEpoch,
    ) -> MountedAs {
        let of_other = self
            .disks
            .iter()
            .find(|(id, disk)| **id != node && disk.incarnation == incarnation)
            .map(|(id, _)| MountedAs::OfNode(*id));
        match self.disks.get(&node) {
            Some(known) if known.incarnation == incarnation => {
                let is_newer = mount_epoch > known.mount_epoch;
                if is_newer { MountedAs::Same } else { MountedAs::Stale }
            }
            None => of_other.unwrap_or(MountedAs::First),
            Some(_) if of_other.is_some() => of_other.unwrap_or(MountedAs::Stale),
            Some(_) if mount_epoch <= MountEpoch::new(1) => MountedAs::Blank,
            // The cluster counts the lives it gives; a disk that finds damage draws one by chance.
            Some(known) if incarnation.get() <= self.header.incarnation_count => {
                let is_next_mount = mount_epoch.get() == known.mount_epoch.get() + 1;
                if is_next_mount && self.has_yet_to_sync(node, known.incarnation) {
                    MountedAs::LifeNotBegun
                } else {
                    MountedAs::Stale
                }
            }
            Some(_) => MountedAs::Damaged,
        }
    }

    /// Whether the node's disk fills a slot in this life, and has told of no sync in it.
    fn has_yet_to_sync(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let filled = self.slot_filled_by(node);
        let config = filled.and_then(|(group, slot)| self.groups.get(&group)?.slot(slot));
        config.is_some_and(|slot| {
            slot.incarnation == incarnation && slot.state == SlotState::LostData
        })
    }

    pub(super) fn mount_disk(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        mount_epoch: MountEpoch,
        found_data: bool,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        let registered = self.nodes.get(&node).ok_or(Refusal::UnknownNode(node))?;
        if !registered.registration.roles.storage {
            return Err(Refusal::MissingRole { node, role: RoleName::Storage });
        }
        let copy_counts = Mutation::OldCopyCounts.active(self);
        let same_life = self.disks.get(&node).is_some_and(|disk| {
            let is_newer = mount_epoch > disk.mount_epoch || copy_counts;
            found_data && disk.incarnation == incarnation && is_newer
        });
        let incarnation = if same_life { incarnation } else { self.next_incarnation(effects) };
        self.disks.insert(node, MountedDisk { incarnation, mount_epoch });
        effects.rows.push(RowKey::Disk(node));
        if !same_life {
            self.lose_slot_data(node, incarnation, effects);
        }
        self.create_group_when_complete(effects);
        let slot = self.slot_filled_by(node);
        let state = slot
            .and_then(|(group, slot)| self.groups.get(&group)?.slot(slot))
            .map_or(SlotState::Good, |slot| slot.state);
        Ok(Decision::Mounted { incarnation, state, slot })
    }

    fn next_incarnation(&mut self, effects: &mut Effects) -> Incarnation {
        self.header.incarnation_count += 1;
        effects.rows.push(RowKey::Header);
        Incarnation::new(self.header.incarnation_count)
    }

    /// The slot of `node`, if it has one, goes on with an empty disk. A disk cannot have lost
    /// anything while no partition was ever created.
    fn lose_slot_data(&mut self, node: NodeId, incarnation: Incarnation, effects: &mut Effects) {
        let Some((group, slot)) = self.slot_filled_by(node) else { return };
        let nothing_was_stored = self.header.partition_count == 0;
        let state = if nothing_was_stored { SlotState::Good } else { SlotState::LostData };
        self.change_slot(group, slot, SlotConfig { node, incarnation, state }, effects);
    }

    fn change_slot(
        &mut self,
        group: GroupId,
        slot: Slot,
        changed: SlotConfig,
        effects: &mut Effects,
    ) {
        let config = self.groups.get_mut(&group).expect("the group was looked up just now");
        config.slots[slot.index()] = changed;
        config.version = ConfigVersion::new(config.version.get() + 1);
        effects.record(Change::Group(group), RowKey::Group(group));
    }

    /// The group and slot that `node` fills.
    pub fn slot_filled_by(&self, node: NodeId) -> Option<(GroupId, Slot)> {
        self.groups.values().find_map(|group| Some((group.group, group.slot_of(node)?)))
    }

    pub(super) fn slot_synced(
        &mut self,
        group: GroupId,
        slot: Slot,
        incarnation: Incarnation,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        let config = self.groups.get(&group).ok_or(Refusal::UnknownGroup(group))?;
        let current = *config.slot(slot).ok_or(Refusal::StaleSlot)?;
        if current.incarnation != incarnation && !Mutation::OtherLifeSynced.active(self) {
            return Err(Refusal::StaleSlot);
        }
        if current.state == SlotState::LostData {
            let good = SlotConfig { state: SlotState::Good, ..current };
            self.change_slot(group, slot, good, effects);
        }
        Ok(Decision::Done)
    }

    /// One slot at a time, and only while the group survives the loss of the disk that leaves.
    pub(super) fn replace_slot(
        &mut self,
        group: GroupId,
        slot: Slot,
        from: NodeId,
        to: NodeId,
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        let config = self.groups.get(&group).ok_or(Refusal::UnknownGroup(group))?;
        let current = *config.slot(slot).ok_or(Refusal::StaleSlot)?;
        if current.node != from && !Mutation::MovedFromAnother.active(self) {
            return Err(Refusal::StaleSlot);
        }
        let away = self.away(config)?.with(slot);
        if !config.geometry.tolerated(away) && !Mutation::MoveUnchecked.active(self) {
            return Err(Refusal::GroupAtRisk);
        }
        let leaving = self.nodes.get(&from).ok_or(Refusal::UnknownNode(from))?;
        let entering = self.nodes.get(&to).ok_or(Refusal::UnknownNode(to))?;
        let same_place = leaving.registration.datacenter == entering.registration.datacenter;
        let (Some(disk), None, true) = (self.disk(to), self.slot_filled_by(to), same_place) else {
            return Err(Refusal::UnsuitableNode(to));
        };
        let incarnation = self.begin_life_in_slot(to, disk, effects);
        let counts = Mutation::FilledCounts.active(self);
        let state = if counts { SlotState::Good } else { SlotState::LostData };
        let filled = SlotConfig { node: to, incarnation, state };
        self.change_slot(group, slot, filled, effects);
        Ok(Decision::Done)
    }

    /// Slots that can't be counted on while another moves, as whoever decided on the move has seen them: what was
    /// granted or has failed since is seen here. Nodes of before that level look at disks alone.
    fn away(&self, config: &GroupConfig) -> Result<SlotSet, Refusal> {
        if self.header.feature_level < FeatureLevel::SLOT_LIVES {
            return Ok(config.geometry.slots().difference(config.good_slots()));
        }
        let leases = Leases::read(self).map_err(|_unreadable| Refusal::GroupAtRisk)?;
        Ok(away(self, config, &leases))
    }

    /// What the disk said when it filled this slot before, or another, counts for nothing in this one
    /// (rule S7). Nodes that know nothing of it would not take the new life on.
    fn begin_life_in_slot(
        &mut self,
        node: NodeId,
        disk: MountedDisk,
        effects: &mut Effects,
    ) -> Incarnation {
        let is_agreed = self.header.feature_level >= FeatureLevel::SLOT_LIVES;
        if !is_agreed || Mutation::LifeOutlivesSlot.active(self) {
            return disk.incarnation;
        }
        let incarnation = self.next_incarnation(effects);
        self.disks.insert(node, MountedDisk { incarnation, ..disk });
        effects.rows.push(RowKey::Disk(node));
        incarnation
    }

    /// Creates the cluster's first group once mounted disks fill its geometry.
    pub(super) fn create_group_when_complete(&mut self, effects: &mut Effects) {
        let Some(geometry) = self.geometry().filter(|_| self.groups.is_empty()) else { return };
        if let Some(nodes) = self.nodes_that_fill(geometry, |_| true) {
            self.add_group(geometry, &nodes, effects);
        }
    }

    /// Creates another group. Which nodes is the proposer's choice: they must have a disk that fills
    /// no slot, and be where the geometry says.
    pub(super) fn create_group(
        &mut self,
        expected_count: u32,
        geometry: Geometry,
        nodes: &[NodeId],
        effects: &mut Effects,
    ) -> Result<Decision, Refusal> {
        let (current, needed) = (self.header.feature_level, FeatureLevel::GROUPS);
        if current < needed {
            return Err(Refusal::FeatureLevelTooLow { current, needed });
        }
        let current = self.groups.len() as u32;
        if current == 0 {
            return Err(Refusal::NotEnoughNodes);
        }
        if current != expected_count {
            return Err(Refusal::StaleGroupCount { current });
        }
        let mut racks: BTreeMap<&Datacenter, BTreeSet<&Rack>> = BTreeMap::new();
        for chunk in nodes.chunks(geometry.rack_count()) {
            let datacenter = chunk.first().and_then(|node| self.nodes.get(node));
            for id in chunk {
                let node = self.nodes.get(id).ok_or(Refusal::UnknownNode(*id))?;
                if !self.disks.contains_key(id) || self.slot_filled_by(*id).is_some() {
                    return Err(Refusal::UnsuitableNode(*id));
                }
                let here = &node.registration;
                if datacenter.is_some_and(|it| it.registration.datacenter == here.datacenter) {
                    racks.entry(&here.datacenter).or_default().insert(&here.rack);
                }
            }
        }
        let is_full = racks.len() == geometry.datacenter_count()
            && racks.values().all(|racks| racks.len() == geometry.rack_count())
            && nodes.len() == geometry.slot_count();
        if !is_full {
            return Err(Refusal::NotTheGeometry);
        }
        self.add_group(geometry, nodes, effects);
        Ok(Decision::Done)
    }

    fn add_group(&mut self, geometry: Geometry, nodes: &[NodeId], effects: &mut Effects) {
        let slots = nodes.iter().filter_map(|node| {
            let incarnation = self.disks.get(node)?.incarnation;
            Some(SlotConfig { node: *node, incarnation, state: SlotState::Good })
        });
        self.header.group_count += 1;
        let group = GroupId::new(self.header.group_count);
        let config =
            GroupConfig { group, version: ConfigVersion::new(1), geometry, slots: slots.collect() };
        self.groups.insert(group, config);
        effects.rows.push(RowKey::Header);
        effects.record(Change::Group(group), RowKey::Group(group));
    }

    /// The first datacenters, racks and nodes in order of name and id that fill `geometry`, of those
    /// that have a disk and `suit`.
    pub(crate) fn nodes_that_fill(
        &self,
        geometry: Geometry,
        suits: impl Fn(NodeId) -> bool,
    ) -> Option<Vec<NodeId>> {
        self.fill(geometry, suits, |racks| racks)
    }

    /// As [`nodes_that_fill`](Self::nodes_that_fill), of the racks with the most such nodes: else the last racks' nodes
    /// would be left over for want of others.
    pub(crate) fn nodes_that_fill_evenly(
        &self,
        geometry: Geometry,
        suits: impl Fn(NodeId) -> bool,
    ) -> Option<Vec<NodeId>> {
        self.fill(geometry, suits, |mut racks| {
            racks.sort_by_key(|nodes| std::cmp::Reverse(nodes.len()));
            racks
        })
    }

    fn fill(
        &self,
        geometry: Geometry,
        suits: impl Fn(NodeId) -> bool,
        order: impl Fn(Vec<Vec<NodeId>>) -> Vec<Vec<NodeId>>,
    ) -> Option<Vec<NodeId>> {
        let mut grid: BTreeMap<&Datacenter, BTreeMap<&Rack, Vec<NodeId>>> = BTreeMap::new();
        for (id, node) in &self.nodes {
            if node.registration.roles.storage && self.disks.contains_key(id) && suits(*id) {
                let racks = grid.entry(&node.registration.datacenter).or_default();
                racks.entry(&node.registration.rack).or_default().push(*id);
            }
        }
        let rack_count = geometry.rack_count();
        let nodes: Vec<NodeId> = grid
            .into_values()
            .filter(|racks| racks.len() >= rack_count)
            .take(geometry.datacenter_count())
            .flat_map(|racks| order(racks.into_values().collect()).into_iter().take(rack_count))
            .filter_map(|nodes| nodes.first().copied())
            .collect();
        (nodes.len() == geometry.slot_count()).then_some(nodes)
    }
}
