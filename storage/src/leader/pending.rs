//! Blobs that are put and not yet committed.

use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_base::topology::{SLOT_COUNT_MAX, Slot, SlotSet};

use crate::blob::{Blob, BlobHeader, Payload};
use crate::hot::number_on;
use crate::message::CommitMark;

/// What the oldest blob that is not committed waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// When it was put.
    pub since: Instant,
    /// Slots that refused it.
    pub refused: SlotSet,
    /// Slots that it was sent to and that have not answered.
    pub silent: SlotSet,
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) blob: Blob,
    /// All its parts, by number, if that is how it is put.
    pub(super) parts: Option<Vec<(BlobHeader, Payload)>>,
    pub(super) high_watermark: Offset,
    /// What every slot that acks this step knows committed, for the put told it.
    pub(super) mark: Option<CommitMark>,
    pub(super) sent: SlotSet,
    pub(super) acked: SlotSet,
    pub(super) refused: SlotSet,
    pub(super) put_at: Instant,
    /// Since when each slot owes an answer.
    pub(super) asked_at: [Instant; SLOT_COUNT_MAX],
    /// When it was sent there last.
    pub(super) sent_at: [Instant; SLOT_COUNT_MAX],
}

impl Pending {
    pub(super) fn is_in_parts(&self) -> bool {
        self.parts.is_some()
    }

    /// How much of it goes to one slot.
    pub(super) fn slot_size_bytes(&self) -> usize {
        let part = self.parts.as_ref().and_then(|parts| parts.first());
        part.map_or(self.blob.payload.size_bytes(), |(_, payload)| payload.size_bytes())
    }

    /// What of the blob goes to `slot`.
    pub(super) fn for_slot(&self, slot: Slot) -> Blob {
        let Some(parts) = &self.parts else { return self.blob.clone() };
        let key = self.blob.key;
        let (header, payload) = parts[usize::from(number_on(key.partition, slot))].clone();
        Blob { key, header, payload }
    }
}
