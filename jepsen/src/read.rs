//! A read that goes from slot to slot until one has what it asks for.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_base::topology::{SLOT_COUNT_MAX, Slot, SlotSet};
use meridian_storage::blob::{Blob, BlobKind};
use meridian_storage::message::{Read, ReadFrom};

use crate::broker::Asker;
use crate::value::PlacedBatch;

/// How long a slot is waited for before the next one is asked.
const LATE_AFTER: Duration = Duration::from_millis(150);

/// What a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The takeover's tail; the takeover itself asks elsewhere.
    Tail,
    /// The checkpoint that recovery begins with.
    Checkpoint,
    /// The records after it.
    Replay,
    /// A reader's fetch.
    Fetch {
        /// The reader.
        asker: Asker,
        /// What it asked for.
        from: Offset,
        /// Where the manifest's piece that is read ends, if it is one.
        piece_end: Option<Offset>,
    },
    /// A pass of compaction.
    Compact {
        /// What it asked for.
        from: Offset,
        /// Where the manifest's piece that is read ends, if it is one.
        piece_end: Option<Offset>,
    },
    /// A coordinator's log.
    Load {
        /// What it asked for.
        from: Offset,
    },
    /// A reader's fetch of committed records.
    FetchCommitted {
        /// The reader.
        asker: Asker,
        /// What it asked for.
        from: Offset,
    },
}

/// A read under way.
#[derive(Debug)]
pub(crate) struct ReadTask {
    /// What it is for.
    pub(crate) purpose: Purpose,
    /// What is asked.
    pub(crate) request: Read,
    slot: Slot,
    tried: SlotSet,
    asked_at: Instant,
}

impl ReadTask {
    /// A read that asks `slot` first.
    pub(crate) fn new(now: Instant, purpose: Purpose, slot: Slot, request: Read) -> Self {
        Self { purpose, request, slot, tried: SlotSet::EMPTY.with(slot), asked_at: now }
    }

    /// Whether the slot has been silent for too long.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.purpose != Purpose::Tail && now.since(self.asked_at) >= LATE_AFTER
    }

    /// Whether `slot` is the one being asked.
    pub(crate) fn is_asking(&self, slot: Slot) -> bool {
        self.slot == slot
    }

    /// The next slot to ask. Recovery begins anew when all were asked; a reader gives up.
    pub(crate) fn next_slot(&mut self, now: Instant) -> Option<Slot> {
        if self.tried.count() == SLOT_COUNT_MAX {
            if self.asker().is_some() {
                return None;
            }
            self.tried = SlotSet::EMPTY;
        }
        let after = (1..=SLOT_COUNT_MAX)
            .map(|distance| Slot::new(((self.slot.index() + distance) % SLOT_COUNT_MAX) as u8));
        let next = after.into_iter().find(|slot| !self.tried.contains(*slot))?;
        self.slot = next;
        self.tried.insert(next);
        self.asked_at = now;
        Some(next)
    }

    /// The reader that waits for the answer, if it is one.
    pub(crate) fn asker(&self) -> Option<Asker> {
        match self.purpose {
            Purpose::Fetch { asker, .. } | Purpose::FetchCommitted { asker, .. } => Some(asker),
            Purpose::Tail
            | Purpose::Checkpoint
            | Purpose::Replay
            | Purpose::Load { .. }
            | Purpose::Compact { .. } => None,
        }
    }
}

/// The blobs that answer a read of records: those of a run are asked for by their step.
pub(crate) fn answers<'a>(request: &Read, blobs: &'a [Blob]) -> impl Iterator<Item = &'a Blob> {
    let kind = match request.from {
        ReadFrom::Offset(_) => BlobKind::Records,
        ReadFrom::Step(_) => BlobKind::Clean,
    };
    blobs.iter().filter(move |blob| blob.header.kind == kind)
}

/// The record batches in `blobs`, or what is wrong with them.
pub(crate) fn batches_of(request: &Read, blobs: &[Blob]) -> Result<Vec<PlacedBatch>, String> {
    let mut batches = Vec::new();
    for blob in answers(request, blobs) {
        let decoded = PlacedBatch::read_all(blob.payload.to_contiguous())
            .ok_or_else(|| format!("{} holds no batches", blob.key.point))?;
        let has_gaps = blob.header.kind == BlobKind::Clean;
        if !has_gaps
            && decoded.first().is_none_or(|first| first.base_offset != blob.header.base_offset)
        {
            return Err(format!("{} does not begin where its header says", blob.key.point));
        }
        batches.extend(decoded);
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use meridian_base::id::PartitionId;
    use meridian_base::position::{Generation, Step};
    use meridian_storage::message::ReadFrom;

    use super::*;

    fn task(purpose: Purpose) -> ReadTask {
        let request = Read {
            partition: PartitionId::new(1),
            generation: Generation::FIRST,
            from: ReadFrom::Step(Step::START),
            last_step: Step::START,
            size_bytes_max: 1,
        };
        ReadTask::new(Instant::ZERO, purpose, Slot::new(7), request)
    }

    #[test]
    fn a_reader_asks_every_slot_once() {
        let asker = Asker { client: crate::net::Endpoint(9), request: 1 };
        let mut task = task(Purpose::Fetch { asker, from: Offset::ZERO, piece_end: None });
        let asked: Vec<usize> =
            std::iter::from_fn(|| task.next_slot(Instant::ZERO)).map(Slot::index).collect();
        assert_eq!(asked, [8, 0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn recovery_never_gives_up() {
        let mut task = task(Purpose::Replay);
        assert!((0..50).all(|_| task.next_slot(Instant::ZERO).is_some()));
    }
}
