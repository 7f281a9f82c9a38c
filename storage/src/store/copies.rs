//! Copies that nobody needs: what a slot lists of the records that it holds, and how it frees what
//! a leader names (rule K3).

use std::collections::BTreeMap;

use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LogPoint};

use super::{Origin, Standing, Store, StoreOutput};
use crate::blob::{BlobInfo, BlobKind};
use crate::hot;
use crate::message::{CopyList, FreeCopies, HeldCopy, ListCopies, StorageMessage};
use crate::mutation::Mutation;
use crate::wire::listed_count_max;

/// Most copies in one list.
const LIST_COUNT_MAX: usize = 16 << 10;
/// Partitions whose last list is remembered, at most: leaders go through theirs one by one.
const PARTITION_COUNT_MAX: usize = 1024;

/// By partition, the last list that was given: to the leader of which generation, under which tag.
#[derive(Debug, Default)]
pub(super) struct CopyLists(BTreeMap<PartitionId, (Generation, u64)>);

impl CopyLists {
    fn given(&mut self, partition: PartitionId, list: (Generation, u64)) {
        if self.0.len() >= PARTITION_COUNT_MAX && !self.0.contains_key(&partition) {
            self.0.pop_first();
        }
        self.0.insert(partition, list);
    }

    /// Whether this is the last list; it is used once.
    fn take(&mut self, partition: PartitionId, list: (Generation, u64)) -> bool {
        let is_last = self.0.get(&partition) == Some(&list);
        if is_last {
            self.0.remove(&partition);
        }
        is_last
    }
}

impl Store {
    pub(super) fn list_copies(
        &mut self,
        to: Origin,
        tag: u64,
        request: &ListCopies,
        outputs: &mut Vec<StoreOutput>,
    ) {
        let ListCopies { partition: id, generation, after, count_max, .. } = *request;
        let Some(group) = self.group.as_ref().filter(|group| group.group == request.group) else {
            return;
        };
        let config_version = group.version;
        if self.standing() != Standing::Good || config_version != request.config_version {
            return;
        }
        let room_count = listed_count_max(self.config.sizes.message_size_bytes_max);
        let count_max = LIST_COUNT_MAX.min(room_count).min(count_max as usize);
        let mut list = CopyList {
            incarnation: self.incarnation(),
            config_version,
            mark: None,
            records_size_bytes: 0,
            copies: Vec::new(),
            complete: true,
        };
        if let Some(partition) = self.index.get(id) {
            if generation < partition.fence_effective() {
                return;
            }
            list.mark = partition.mark;
            if count_max == 0 {
                let size_bytes = |info: BlobInfo| u64::from(info.header.payload_size_bytes);
                list.records_size_bytes = self.records_after(id, None).map(size_bytes).sum();
            }
            let mut held = self.records_after(id, after);
            let copies = held.by_ref().take(count_max).map(|info| HeldCopy {
                point: info.point,
                size_bytes: info.header.payload_size_bytes,
                is_part: info.header.part.is_some(),
            });
            list.copies = copies.collect();
            list.complete = held.next().is_none();
        }
        self.copy_lists.given(id, (generation, tag));
        outputs.push(StoreOutput::Send { to, message: StorageMessage::CopyList { tag, list } });
    }

    /// The blobs of records that are here and, as far as known, can be read: of those in parts this
    /// slot's own.
    pub fn records_after(
        &self,
        id: PartitionId,
        after: Option<LogPoint>,
    ) -> impl Iterator<Item = BlobInfo> {
        let own = self.group.as_ref().and_then(|group| group.slot_of(self.config.node));
        let partition = self.index.get(id).filter(|partition| !partition.forgotten);
        let blobs = partition.into_iter().flat_map(move |partition| partition.blobs_after(after));
        blobs
            .filter(|(_, entry)| entry.kind == BlobKind::Records && !entry.unreadable)
            .map(|(point, entry)| BlobInfo { point, header: entry.header() })
            .filter(move |info| own.is_some_and(|own| hot::is_own(&info.header, id, own)))
    }

    /// Frees copies. A restart before their file is gone brings them back, to be listed and freed
    /// again.
    pub(super) fn free_copies(&mut self, freed: &FreeCopies) {
        let FreeCopies { partition: id, config_version, generation, list, .. } = *freed;
        let version = self.group.as_ref().map(|group| group.version);
        let is_last = self.copy_lists.take(id, (generation, list));
        let is_valid = is_last && version == Some(config_version);
        if !is_valid && !Mutation::OldListFreed.active(self.config.mutations) {
            return;
        }
        let Some(partition) = self.index.get_mut(id) else { return };
        if generation < partition.fence_effective() || partition.forgotten {
            return;
        }
        partition.mark = partition.mark.max(Some(freed.mark));
        let Some(mark) = partition.mark else { return };
        let mut entries = Vec::new();
        for point in freed.points.iter().filter(|point| **point < mark.point) {
            if partition.at(*point).is_some_and(|entry| entry.kind == BlobKind::Records) {
                entries.extend(partition.remove(*point));
            }
        }
        if entries.is_empty() {
            return;
        }
        self.counters.freed_copies += entries.len() as u64;
        self.counters.freed_copies_bytes +=
            entries.iter().map(|entry| u64::from(entry.payload_size_bytes)).sum::<u64>();
        self.count_freed(&entries);
        // The mark is durable before a file goes that had any of them.
        if !self.is_below(2) {
            self.stage_partition(id);
        } else if let Some(partition) = self.index.get_mut(id) {
            partition.is_unrecorded = true;
        }
    }
}
