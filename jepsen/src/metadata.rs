//! The metadata log as the partitions see it: an ordered list of decisions that each node applies
//! in its own time. A node that is slow, paused or cut off goes on with what it knew: that is where
//! zombie leaders come from (rule T1).

use std::collections::BTreeMap;
use std::ops::Range;

use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId, TopicId};
use meridian_base::position::{Generation, LeaderEpoch};
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotConfig, SlotState};
use meridian_mirror::rows::Stage;
use meridian_storage::deleted::is_deleted;
use meridian_storage::erasure::Code;
use meridian_storage::journal::Identity;
use meridian_storage::mutation::{Mutation, Mutations};

use crate::desk::{GROUPS, PRODUCER_ID_MIN};

/// The only storage group of a simulation.
pub const GROUP: GroupId = GroupId::new(1);

/// Producer ids that a node gets at once: few, so that it often asks for more.
const BLOCK_SIZE: u32 = 3;

/// Partitions from this one on are of a topic that is deleted and created anew.
const RECREATED_MIN: u64 = 1_000;

/// The only partition of the topic's life with this number.
pub fn recreated(number: u64) -> PartitionId {
    PartitionId::new(RECREATED_MIN + number)
}

/// Whether a partition is of the topic that is deleted and created anew.
pub fn is_recreated(partition: PartitionId) -> bool {
    (RECREATED_MIN..GROUPS.get()).contains(&partition.hot().get())
}

/// Who owns a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The leader's generation.
    pub generation: Generation,
    /// The epoch that its batches carry.
    pub leader_epoch: LeaderEpoch,
    /// The node.
    pub node: NodeId,
}

/// A partition that mirrors one of another cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorRow {
    /// The partition there.
    pub source: PartitionId,
    /// The topic that it was of when the mirror was made.
    pub topic: TopicId,
    /// Where the mirror is in its life.
    pub stage: Stage,
}

/// How the records of a partition are put from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// As whole copies.
    Copies,
    /// The larger blobs in parts.
    Parts,
    /// As copies, until they are packed into stripes of this code.
    Cold(Code),
    /// As copies, until they are put into the object store.
    Objects,
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
    /// The topic that is created anew has its next partition.
    Create(PartitionId),
    /// It is deleted.
    Delete(PartitionId),
    /// A partition becomes a mirror, or its stage changes.
    Mirror {
        /// The partition.
        partition: PartitionId,
        /// What it is now.
        row: MirrorRow,
    },
    /// A disk was mounted, and may serve, or has been given a slot.
    Disk {
        /// The node that holds it.
        node: NodeId,
        /// Which of the node's processes mounted it.
        boot: u64,
        /// The life it is in from now on.
        incarnation: Incarnation,
    },
}

/// The metadata after some prefix of the log.
#[derive(Clone, Debug)]
pub struct View {
    /// How many entries were applied.
    pub applied_count: usize,
    /// How many nodes there are.
    pub node_count: usize,
    /// The storage group.
    pub group: GroupConfig,
    /// Every partition's owner.
    pub owners: BTreeMap<PartitionId, Owner>,
    /// The newest block of producer ids of each node.
    pub producer_ids: BTreeMap<NodeId, Range<u32>>,
    /// The class of every partition that was ever converted.
    classes: BTreeMap<PartitionId, Class>,
    /// The partition of the topic that is created anew, if it is there, and how many it has had.
    pub recreated: (Option<PartitionId>, u64),
    /// Every partition that is a mirror, or was.
    pub mirrors: BTreeMap<PartitionId, MirrorRow>,
}

impl View {
    /// The cluster as it was founded, by the incarnations of its disks.
    /// Nodes beyond those that the slots need are spares.
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
            slots: incarnations.iter().take(geometry.slot_count()).enumerate().map(slot).collect(),
        };
        Self {
            applied_count: 0,
            node_count: incarnations.len(),
            group,
            owners: BTreeMap::new(),
            producer_ids: BTreeMap::new(),
            classes: BTreeMap::new(),
            recreated: (None, 0),
            mirrors: BTreeMap::new(),
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
            Entry::Class { partition, class } => {
                self.classes.insert(*partition, *class);
            }
            Entry::Mirror { partition, row } => {
                self.mirrors.insert(*partition, *row);
            }
            Entry::Create(partition) => {
                self.recreated = (Some(*partition), self.recreated.1 + 1);
            }
            Entry::Delete(partition) => {
                self.recreated.0 = None;
                self.owners.remove(partition);
            }
            Entry::Disk { .. } => {}
        }
    }

    /// Whether a partition was, and is no more, as far as this is known here.
    pub fn is_deleted(&self, partition: PartitionId, mutations: Mutations) -> bool {
        let (present, count) = self.recreated;
        let given_out = (RECREATED_MIN + count).saturating_sub(1);
        let is_there = present == Some(partition) || !is_recreated(partition);
        is_deleted(partition, given_out, is_there, mutations)
    }

    /// How the records of `partition` are put.
    pub fn class_of(&self, partition: PartitionId) -> Class {
        self.classes.get(&partition).copied().unwrap_or(Class::Copies)
    }
}

/// The committed log and the state after all of it.
#[derive(Debug)]
pub struct Metadata {
    entries: Vec<Entry>,
    latest: View,
    /// The disk of every node.
    disks: Vec<MountedDisk>,
    next_producer_id: u32,
    /// How many lives disks were given.
    incarnation_count: u64,
}

/// A disk, as it was when it was mounted last.
#[derive(Clone, Copy, Debug)]
struct MountedDisk {
    incarnation: Incarnation,
    /// The highest one seen of this life.
    mount_epoch: u64,
    /// Which of the node's processes mounted it.
    boot: u64,
}

impl Metadata {
    /// The log of a cluster that has just been founded.
    pub fn new(founded: View, incarnations: &[Incarnation]) -> Self {
        let unmounted = |incarnation: &Incarnation| MountedDisk {
            incarnation: *incarnation,
            mount_epoch: 0,
            boot: 0,
        };
        Self {
            entries: Vec::new(),
            latest: founded,
            disks: incarnations.iter().map(unmounted).collect(),
            next_producer_id: PRODUCER_ID_MIN,
            incarnation_count: 0,
        }
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
        self.next_owner_above(partition, node, LeaderEpoch::UNKNOWN)
    }

    fn next_owner_above(
        &self,
        partition: PartitionId,
        node: NodeId,
        epoch_floor: LeaderEpoch,
    ) -> Owner {
        let known = self.latest.owners.get(&partition);
        let generation = known.map_or(Generation::FIRST, |owner| owner.generation.next());
        let latest = known.map_or(LeaderEpoch::new(0), |owner| owner.leader_epoch);
        let leader_epoch = LeaderEpoch::new(latest.max(epoch_floor).get() + 1);
        Owner { generation, leader_epoch, node }
    }

    /// Commits the appointment of `node`.
    pub fn appoint(&mut self, partition: PartitionId, node: NodeId) -> Owner {
        self.appoint_above(partition, node, LeaderEpoch::UNKNOWN)
    }

    /// Commits the appointment of `node`, whose leader epoch is to be above `epoch_floor`.
    pub fn appoint_above(
        &mut self,
        partition: PartitionId,
        node: NodeId,
        epoch_floor: LeaderEpoch,
    ) -> Owner {
        let owner = self.next_owner_above(partition, node, epoch_floor);
        self.commit(Entry::Appoint { partition, owner });
        owner
    }

    /// Changes how the records of `partition` are put.
    pub fn convert(&mut self, partition: PartitionId, class: Class) {
        self.commit(Entry::Class { partition, class });
    }

    /// Creates the topic anew; gives its partition.
    pub fn create(&mut self) -> PartitionId {
        let partition = recreated(self.latest.recreated.1);
        self.commit(Entry::Create(partition));
        partition
    }

    /// Deletes it.
    pub fn delete(&mut self, partition: PartitionId) {
        self.commit(Entry::Delete(partition));
    }

    /// Makes a partition a mirror, or moves it to another stage.
    pub fn mirror(&mut self, partition: PartitionId, row: MirrorRow) {
        self.commit(Entry::Mirror { partition, row });
    }

    /// Gives producer ids to a node that no other has, or had.
    pub fn allocate_producer_ids(&mut self, node: NodeId) {
        let first = self.next_producer_id;
        self.next_producer_id += BLOCK_SIZE;
        self.commit(Entry::ProducerIds { node, block: first..first + BLOCK_SIZE });
    }

    /// Hears of a mount and decides what the disk is: as it was left, or another one (new, wiped,
    /// damaged, or an old copy of itself), which begins a new life (rules S4, 12).
    pub fn mounted(&mut self, node: NodeId, boot: u64, identity: Identity) {
        let Identity { incarnation, mount_epoch, .. } = identity;
        let known = self.disks[node.get() as usize];
        let is_same = known.incarnation == incarnation && mount_epoch > known.mount_epoch;
        let incarnation = if is_same { incarnation } else { self.next_incarnation() };
        self.disks[node.get() as usize] = MountedDisk { incarnation, mount_epoch, boot };
        if let Some(slot) = self.latest.group.slot_of(node)
            && !is_same
        {
            self.set_slot(slot, SlotConfig { node, incarnation, state: SlotState::LostData });
        }
        self.commit(Entry::Disk { node, boot, incarnation });
    }

    fn next_incarnation(&mut self) -> Incarnation {
        self.incarnation_count += 1;
        Incarnation::new(self.incarnation_count)
    }

    /// The highest mount epoch seen of the node's disk.
    pub fn mount_epoch(&self, node: NodeId) -> u64 {
        self.disks[node.get() as usize].mount_epoch
    }

    /// Gives a slot to a spare, if its disk was ever mounted and the group survives what is away then; to be filled
    /// from the others. Its disk begins a new life there (rule S7). Returns whether it does.
    pub fn replace(&mut self, slot: Slot, to: NodeId, mutations: Mutations) -> bool {
        let group = &self.latest.group;
        let away = group.geometry.slots().difference(group.good_slots()).with(slot);
        let disk = self.disks[to.get() as usize];
        let may_fill = group.slot_of(to).is_none() && disk.mount_epoch > 0;
        if !may_fill || !group.geometry.tolerated(away) {
            return false;
        }
        let MountedDisk { boot, mut incarnation, .. } = disk;
        if !Mutation::LifeOutlivesSlot.active(mutations) {
            incarnation = self.next_incarnation();
            self.disks[to.get() as usize].incarnation = incarnation;
        }
        self.set_slot(slot, SlotConfig { node: to, incarnation, state: SlotState::LostData });
        self.commit(Entry::Disk { node: to, boot, incarnation });
        true
    }

    /// A disk says that it has refilled itself. Returns whether that was news.
    pub fn synced(&mut self, node: NodeId, incarnation: Incarnation) -> bool {
        let Some(slot) = self.latest.group.slot_of(node) else { return false };
        let known = self.latest.group.slots[slot.index()];
        let is_news = known.incarnation == incarnation && known.state == SlotState::LostData;
        if is_news {
            self.set_slot(slot, SlotConfig { state: SlotState::Good, ..known });
        }
        is_news
    }

    fn set_slot(&mut self, slot: Slot, config: SlotConfig) {
        let mut group = self.latest.group.clone();
        group.version = ConfigVersion::new(group.version.get() + 1);
        group.slots[slot.index()] = config;
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

    /// The first life that the metadata log gives.
    const FIRST_GIVEN: Incarnation = Incarnation::new(1);

    fn founded_life(node: u64) -> Incarnation {
        Incarnation::new(1_000 + node)
    }

    fn metadata() -> Metadata {
        let incarnations: Vec<Incarnation> = (0..9).map(founded_life).collect();
        Metadata::new(View::founded(Geometry::Mirror3Dc, &incarnations), &incarnations)
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
        metadata.mounted(NodeId::new(2), 1, identity(77, 1));
        let owner = metadata.appoint(partition, NodeId::new(5));
        assert_eq!(owner.generation, Generation::new(2));
        for entry in metadata.entries_after(0) {
            view.apply(entry);
        }
        assert_eq!(view.owners, metadata.latest().owners);
        assert_eq!(view.group, metadata.latest().group);
        assert_eq!(view.group.slots[2].incarnation, FIRST_GIVEN);
        assert!(metadata.entries_after(view.applied_count).is_empty());
    }

    #[test]
    fn a_disk_that_mounts_with_an_old_epoch_begins_a_new_life() {
        let (node, life) = (NodeId::new(0), founded_life(0).get());
        let mut metadata = metadata();
        let version = metadata.latest().group.version;
        metadata.mounted(node, 1, identity(life, 5));
        metadata.mounted(node, 2, identity(life, 6));
        assert_eq!(metadata.latest().group.version, version);
        metadata.mounted(node, 3, identity(life, 6));
        let config = metadata.latest().group.slots[0];
        assert_eq!((config.incarnation, config.state), (FIRST_GIVEN, SlotState::LostData));
        assert!(!metadata.synced(node, Incarnation::new(life)));
        assert!(metadata.synced(node, FIRST_GIVEN));
        assert_eq!(metadata.latest().group.slots[0].state, SlotState::Good);
    }

    #[test]
    fn a_spare_fills_a_slot_and_the_disk_that_left_may_come_back() {
        let incarnations: Vec<Incarnation> = (0..10).map(founded_life).collect();
        let founded = View::founded(Geometry::Mirror3Dc, &incarnations);
        let mut metadata = Metadata::new(founded, &incarnations);
        let (slot, old, spare) = (Slot::new(4), NodeId::new(4), NodeId::new(9));
        let replace = |metadata: &mut Metadata, to| metadata.replace(slot, to, Mutations::NONE);
        assert!(!replace(&mut metadata, spare), "its disk was never mounted");
        metadata.mounted(old, 1, identity(founded_life(4).get(), 1));
        metadata.mounted(spare, 1, identity(founded_life(9).get(), 1));
        assert!(replace(&mut metadata, spare));
        let filled = metadata.latest().group.slots[4];
        assert_eq!((filled.node, filled.incarnation), (spare, FIRST_GIVEN));
        assert!(!metadata.synced(old, founded_life(4)), "it fills no slot");
        assert!(metadata.synced(spare, FIRST_GIVEN));
        assert!(replace(&mut metadata, old));
        let back = metadata.latest().group.slots[4];
        assert_eq!((back.incarnation.get(), back.state), (2, SlotState::LostData));
        assert!(!replace(&mut metadata, old), "it is there");
    }
}
