//! The metadata log as the partitions see it: an ordered list of decisions that each node applies
//! in its own time. A node that is slow, paused or cut off goes on with what it knew: that is where
//! zombie leaders come from (rule T1).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::position::Generation;
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotConfig, SlotState};
use meridian_storage::journal::Identity;

use crate::desk::PRODUCER_ID_MIN;

/// The only storage group of a simulation.
pub const GROUP: GroupId = GroupId::new(1);

/// Producer ids that a node gets at once: few, so that it often asks for more.
const BLOCK_SIZE: u32 = 3;

/// Who owns a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The leader's generation.
    pub generation: Generation,
    /// The node.
    pub node: NodeId,
}

/// How the records of a partition are put from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// As whole copies.
    Copies,
    /// The larger blobs in parts.
    Parts,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A partition gets a new leader.
    Appoint {
        /// The partition.
        partition: PartitionId,
        /// Its new owner.
        owner: Owner,
    },
    /// The storage group changes.
    Group(GroupConfig),
    /// A node may give producer ids away.
    ProducerIds {
        /// The node.
        node: NodeId,
        /// The ids.
        block: Range<u32>,
    },
    /// A partition is converted.
    Class {
        /// The partition.
        partition: PartitionId,
        /// What to.
        class: Class,
    },
    /// A disk was mounted, and may serve.
    Mounted {
        /// The node that holds it.
        node: NodeId,
        /// Which of the node's processes mounted it.
        boot: u64,
        /// The new life it has to begin, if it was found to be an old copy of itself.
        reincarnated: Option<Incarnation>,
    },
}

/// The metadata after some prefix of the log.
#[derive(Clone, Debug)]
pub struct View {
    /// How many entries were applied.
    pub applied_count: usize,
    /// The storage group.
    pub group: GroupConfig,
    /// Every partition's owner.
    pub owners: BTreeMap<PartitionId, Owner>,
    /// The newest block of producer ids of each node.
    pub producer_ids: BTreeMap<NodeId, Range<u32>>,
    /// The partitions whose records are put in parts.
    in_parts: BTreeSet<PartitionId>,
}

impl View {
    /// The cluster as it was founded, by the incarnations of its disks.
    pub fn founded(geometry: Geometry, incarnations: &[Incarnation]) -> Self {
        let slot = |(index, incarnation): (usize, &Incarnation)| SlotConfig {
            node: NodeId::new(index as u32),
            incarnation: *incarnation,
            state: SlotState::Good,
        };
        let group = GroupConfig {
            group: GROUP,
            version: ConfigVersion::new(1),
            geometry,
            slots: incarnations.iter().enumerate().map(slot).collect(),
        };
        Self {
            applied_count: 0,
            group,
            owners: BTreeMap::new(),
            producer_ids: BTreeMap::new(),
            in_parts: BTreeSet::new(),
        }
    }

    /// Applies the next entry of the log.
    pub fn apply(&mut self, entry: &Entry) {
        self.applied_count += 1;
        match entry {
            Entry::Appoint { partition, owner } => {
                self.owners.insert(*partition, *owner);
            }
            Entry::Group(group) => self.group = group.clone(),
            Entry::ProducerIds { node, block } => {
                self.producer_ids.insert(*node, block.clone());
            }
            Entry::Class { partition, class: Class::Parts } => {
                self.in_parts.insert(*partition);
            }
            Entry::Class { partition, class: Class::Copies } => {
                self.in_parts.remove(partition);
            }
            Entry::Mounted { .. } => {}
        }
    }

    /// How the records of `partition` are put.
    pub fn class_of(&self, partition: PartitionId) -> Class {
        if self.in_parts.contains(&partition) { Class::Parts } else { Class::Copies }
    }
}

/// The committed log and the state after all of it.
#[derive(Debug)]
pub struct Metadata {
    entries: Vec<Entry>,
    latest: View,
    /// The highest mount epoch seen of every slot's present incarnation.
    mount_epochs: Vec<u64>,
    next_producer_id: u32,
}

impl Metadata {
    /// The log of a cluster that has just been founded.
    pub fn new(founded: View) -> Self {
        let mount_epochs = vec![0; founded.group.slots.len()];
        let next_producer_id = PRODUCER_ID_MIN;
        Self { entries: Vec::new(), latest: founded, mount_epochs, next_producer_id }
    }

    /// The state after every committed entry.
    pub fn latest(&self) -> &View {
        &self.latest
    }

    /// The entries that a node which applied `applied_count` has yet to apply.
    pub fn entries_after(&self, applied_count: usize) -> &[Entry] {
        self.entries.get(applied_count..).unwrap_or_default()
    }

    /// The owner that the next appointment of `partition` to `node` would make.
    pub fn next_owner(&self, partition: PartitionId, node: NodeId) -> Owner {
        let generation = self
            .latest
            .owners
            .get(&partition)
            .map_or(Generation::FIRST, |owner| owner.generation.next());
        Owner { generation, node }
    }

    /// Commits the appointment of `node`.
    pub fn appoint(&mut self, partition: PartitionId, node: NodeId) -> Owner {
        let owner = self.next_owner(partition, node);
        self.commit(Entry::Appoint { partition, owner });
        owner
    }

    /// Changes how the records of `partition` are put.
    pub fn convert(&mut self, partition: PartitionId, class: Class) {
        self.commit(Entry::Class { partition, class });
    }

    /// Gives producer ids to a node that no other has, or had.
    pub fn allocate_producer_ids(&mut self, node: NodeId) {
        let first = self.next_producer_id;
        self.next_producer_id += BLOCK_SIZE;
        self.commit(Entry::ProducerIds { node, block: first..first + BLOCK_SIZE });
    }

    /// Hears of a mount and decides what the disk is: as it was left, another one (new, wiped,
    /// damaged), or an old copy of itself, which begins a new life as `fresh` (rules S4, 12).
    pub fn mounted(&mut self, slot: Slot, boot: u64, identity: Identity, fresh: Incarnation) {
        let known = self.latest.group.slots[slot.index()];
        let is_known = known.incarnation == identity.incarnation;
        let is_older = is_known && identity.mount_epoch <= self.mount_epochs[slot.index()];
        let reincarnated = is_older.then_some(fresh);
        if !is_known || is_older {
            let incarnation = reincarnated.unwrap_or(identity.incarnation);
            self.set_slot(slot, incarnation, SlotState::LostData);
        }
        self.mount_epochs[slot.index()] = identity.mount_epoch;
        self.commit(Entry::Mounted { node: known.node, boot, reincarnated });
    }

    /// The highest mount epoch seen of the slot's present incarnation.
    pub fn mount_epoch(&self, slot: Slot) -> u64 {
        self.mount_epochs[slot.index()]
    }

    /// A disk says that it has refilled itself. Returns whether that was news.
    pub fn synced(&mut self, slot: Slot, incarnation: Incarnation) -> bool {
        let known = self.latest.group.slots[slot.index()];
        let is_news = known.incarnation == incarnation && known.state == SlotState::LostData;
        if is_news {
            self.set_slot(slot, incarnation, SlotState::Good);
        }
        is_news
    }

    fn set_slot(&mut self, slot: Slot, incarnation: Incarnation, state: SlotState) {
        let mut group = self.latest.group.clone();
        group.version = ConfigVersion::new(group.version.get() + 1);
        let config = &mut group.slots[slot.index()];
        *config = SlotConfig { incarnation, state, ..*config };
        self.commit(Entry::Group(group));
    }

    fn commit(&mut self, entry: Entry) {
        self.latest.apply(&entry);
        self.entries.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        let incarnations: Vec<Incarnation> = (1..=9).map(Incarnation::new).collect();
        Metadata::new(View::founded(Geometry::Mirror3Dc, &incarnations))
    }

    fn identity(incarnation: u64, mount_epoch: u64) -> Identity {
        Identity { disk: 1, incarnation: Incarnation::new(incarnation), mount_epoch }
    }

    #[test]
    fn a_view_that_applies_everything_is_the_latest() {
        let mut metadata = metadata();
        let mut view = metadata.latest().clone();
        let partition = PartitionId::new(3);
        metadata.appoint(partition, NodeId::new(4));
        metadata.mounted(Slot::new(2), 1, identity(77, 1), Incarnation::new(99));
        let owner = metadata.appoint(partition, NodeId::new(5));
        assert_eq!(owner.generation, Generation::new(2));
        for entry in metadata.entries_after(0) {
            view.apply(entry);
        }
        assert_eq!(view.owners, metadata.latest().owners);
        assert_eq!(view.group, metadata.latest().group);
        assert_eq!(view.group.slots[2].incarnation, Incarnation::new(77));
        assert!(metadata.entries_after(view.applied_count).is_empty());
    }

    #[test]
    fn a_disk_that_mounts_with_an_old_epoch_begins_a_new_life() {
        let (slot, fresh) = (Slot::new(0), Incarnation::new(99));
        let mut metadata = metadata();
        let version = metadata.latest().group.version;
        metadata.mounted(slot, 1, identity(1, 5), fresh);
        metadata.mounted(slot, 2, identity(1, 6), fresh);
        assert_eq!(metadata.latest().group.version, version);
        metadata.mounted(slot, 3, identity(1, 6), fresh);
        let config = metadata.latest().group.slots[0];
        assert_eq!((config.incarnation, config.state), (fresh, SlotState::LostData));
        assert!(!metadata.synced(slot, Incarnation::new(1)));
        assert!(metadata.synced(slot, fresh));
        assert_eq!(metadata.latest().group.slots[0].state, SlotState::Good);
    }
}
