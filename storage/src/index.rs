//! What a slot holds, in memory: for each partition its fence, its marks and where its blobs are.
//!
//! 56 bytes per blob. A generation's blobs are kept in step order ([`entries`]), with holes where other
//! slots were used; offsets rise with steps, so both are found by binary search.

mod entries;
mod partition;
mod retention;

pub(crate) use partition::{Entry, Partition};
pub(crate) use retention::CollectRule;

use std::collections::BTreeMap;
use std::ops::Bound;

use meridian_base::id::PartitionId;
use meridian_base::topology::Slot;

use crate::blob::BlobKey;
use crate::hot;
use crate::journal::{FileSequence, Location, PartitionRecord};

/// All partitions of a slot, in order of their id.
#[derive(Debug, Default)]
pub(crate) struct Index {
    partitions: BTreeMap<PartitionId, Partition>,
}

impl Index {
    pub(crate) fn get(&self, partition: PartitionId) -> Option<&Partition> {
        self.partitions.get(&partition)
    }

    pub(crate) fn get_mut(&mut self, partition: PartitionId) -> Option<&mut Partition> {
        self.partitions.get_mut(&partition)
    }

    pub(crate) fn entry(&mut self, partition: PartitionId) -> &mut Partition {
        self.partitions.entry(partition).or_default()
    }

    pub(crate) fn blob(&self, key: BlobKey) -> Option<&Entry> {
        self.partitions.get(&key.partition)?.at(key.point)
    }

    /// Whether what `slot` is to hold of the blob is here and, as far as known, can be read: of one in parts only
    /// its own (rule H3). A disk that held another slot before has that one's.
    pub(crate) fn holds_of(&self, key: BlobKey, slot: Slot) -> bool {
        let is_own = |entry: &Entry| hot::is_own(&entry.header(), key.partition, slot);
        self.blob(key).is_some_and(|entry| !entry.unreadable && is_own(entry))
    }

    /// Partitions above `after`, in order.
    pub(crate) fn after(
        &self,
        after: Option<PartitionId>,
    ) -> impl Iterator<Item = (PartitionId, &Partition)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.partitions.range((from, Bound::Unbounded)).map(|(id, partition)| (*id, partition))
    }

    /// Merges a journal record, which was found in `file`. Gives the blobs that it makes useless.
    pub(crate) fn merge(&mut self, record: &PartitionRecord, file: FileSequence) -> Vec<Entry> {
        let partition = self.entry(record.partition);
        partition.merge(record, file);
        if record.forgotten { partition.forget() } else { Vec::new() }
    }

    /// Drops a deleted partition's blobs and lets nobody put there again.
    pub(crate) fn forget(&mut self, id: PartitionId) -> Vec<Entry> {
        self.get_mut(id).map_or(Vec::new(), Partition::forget)
    }

    /// The record that holds all that is known of a partition, fences in flight included: an older
    /// file may go once a newer one has such a record.
    pub(crate) fn record(&self, id: PartitionId) -> Option<PartitionRecord> {
        let partition = self.get(id)?;
        Some(PartitionRecord {
            partition: id,
            fence: partition.fence_effective(),
            log_start_offset: partition.log_start_offset,
            free_below: partition.free_below,
            clean_from: partition.clean_from,
            generation_min: partition.generation_min,
            mark: partition.mark,
            forgotten: partition.forgotten,
        })
    }

    /// Drops the trace of a deleted partition once no older file can hold its blobs.
    pub(crate) fn drop_forgotten(&mut self, id: PartitionId) {
        if self.get(id).is_some_and(|partition| partition.forgotten) {
            self.partitions.remove(&id);
        }
    }

    /// Marks a blob whose bytes do not match their checksum, if it still stands at `location`. Says
    /// whether that is news.
    pub(crate) fn mark_unreadable(&mut self, key: BlobKey, location: Location) -> bool {
        self.get_mut(key.partition)
            .and_then(|partition| partition.at_mut(key.point))
            .filter(|entry| entry.location() == location)
            .is_some_and(|entry| !std::mem::replace(&mut entry.unreadable, true))
    }
}
