//! Parts of stripes: what a slot says that it holds, and how it lets go of them.
//!
//! A part is put and read like any blob, under its stripe's key in the partition's cold companion.
//! Nothing of a slot's own frees one: not the log start, which is a matter of stripes, nor a sync, as
//! no other slot has the bytes. The partition's leader lists what the slots hold, has made again what
//! is missing, and frees what no manifest names.

use super::{Origin, Store, StoreOutput};
use crate::blob::{BlobHeader, BlobKind};
use crate::erasure::Part;
use crate::message::{FreeParts, HeldPart, ListParts, PartList, StorageMessage};

/// Most parts in one answer.
const LIST_COUNT_MAX: usize = 16 << 10;

impl Store {
    pub(super) fn list_parts(
        &self,
        to: Origin,
        tag: u64,
        request: ListParts,
        outputs: &mut Vec<StoreOutput>,
    ) {
        let copies = self.index.get(request.partition);
        let copies_size_bytes = copies.map_or(0, |partition| {
            partition.blobs().map(|(_, entry)| u64::from(entry.payload_size_bytes)).sum()
        });
        let companion = self.index.get(request.partition.cold());
        let mut held = companion
            .into_iter()
            .flat_map(|partition| partition.blobs_after(request.after))
            .filter(|(_, entry)| entry.kind == BlobKind::Part)
            .map(|(point, entry)| HeldPart {
                point,
                size_bytes: entry.payload_size_bytes,
                is_readable: !entry.unreadable && self.is_own_part(&entry.header()),
            });
        let parts = held.by_ref().take(LIST_COUNT_MAX).collect();
        let complete = held.next().is_none();
        let incarnation = self.incarnation();
        let list = PartList { incarnation, copies_size_bytes, parts, complete };
        outputs.push(StoreOutput::Send { to, message: StorageMessage::PartList { tag, list } });
    }

    /// Whether a part was made for this slot, as far as it says so and the slot is known. A disk that filled another
    /// slot before has that one's.
    pub(super) fn is_own_part(&self, header: &BlobHeader) -> bool {
        let own = self.group.as_ref().and_then(|config| config.slot_of(self.config.node));
        Part::slot_in(header).is_none_or(|slot| own.is_none_or(|own| own == slot))
    }

    /// Lets go of parts. A restart before their file is gone brings them back, to be listed and
    /// freed again.
    pub(super) fn free_parts(&mut self, freed: &FreeParts) {
        let id = freed.partition.cold();
        let Some(partition) = self.index.get_mut(id) else { return };
        let entries: Vec<_> =
            freed.points.iter().filter_map(|point| partition.remove(*point)).collect();
        self.count_freed(&entries);
    }
}
