//! A read that goes from slot to slot until one has what it asks for.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_base::topology::{SLOT_COUNT_MAX, Slot, SlotSet};
use meridian_storage::blob::{Blob, BlobKind};
use meridian_storage::hot::{AssembleError, Gathering, Given};
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
    /// Records that are to be packed into a stripe.
    Pack {
        /// What it asked for.
        from: Offset,
    },
    /// A stripe of which parts are missing.
    Mend,
    /// A fetch of a mirror.
    Link {
        /// The node that asks, of the other cluster.
        node: usize,
        /// From where on.
        from: Offset,
    },
    /// The batch that ends a mirror's own log.
    OwnEnd {
        /// Where that ends.
        end: Offset,
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
    slots: SlotSet,
    slot: Slot,
    tried: SlotSet,
    asked_at: Instant,
    /// Parts, if that is what was given first.
    gathering: Option<Gathering>,
}

/// What has come of a read by an answer.
#[derive(Debug)]
pub(crate) enum Taken {
    /// All that can be had of it.
    Whole(Vec<Blob>),
    /// Parts: further slots have to be asked for those that are missing.
    Parts,
    /// One of those; the others that were asked have to answer.
    Part,
    /// Nothing: another slot has to be asked instead.
    Nothing,
}

impl ReadTask {
    /// A read that asks `slot` first, of all `slots`.
    pub(crate) fn new(
        now: Instant,
        purpose: Purpose,
        slots: SlotSet,
        slot: Slot,
        request: Read,
    ) -> Self {
        let tried = SlotSet::EMPTY.with(slot);
        Self { purpose, request, slots, slot, tried, asked_at: now, gathering: None }
    }

    /// What the next slot is asked for.
    pub(crate) fn asking(&self) -> Read {
        self.gathering.as_ref().map_or(self.request, Gathering::request)
    }

    /// How many slots have to answer still.
    pub(crate) fn missing_count(&self) -> usize {
        self.gathering.as_ref().map_or(1, Gathering::missing_count)
    }

    /// Whether parts are being gathered.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gathering.is_some()
    }

    /// Takes what a slot gave.
    pub(crate) fn take(&mut self, blobs: Vec<Blob>) -> Result<Taken, AssembleError> {
        let taken = match &mut self.gathering {
            None => match Given::of(blobs) {
                Some(Given::Whole(blobs)) => return Ok(Taken::Whole(blobs)),
                Some(Given::Parts(gathering)) => {
                    self.gathering = Some(gathering);
                    Taken::Parts
                }
                None => Taken::Nothing,
            },
            Some(gathering) => {
                let missing_count = gathering.missing_count();
                gathering.add(&blobs);
                let is_news = gathering.missing_count() < missing_count;
                if is_news { Taken::Part } else { Taken::Nothing }
            }
        };
        let whole = self.gathering.take_if(|gathering| gathering.missing_count() == 0);
        whole.map_or(Ok(taken), |gathering| Ok(Taken::Whole(gathering.join()?)))
    }

    /// Whether the slot has been silent for too long.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.purpose != Purpose::Tail && now.since(self.asked_at) >= LATE_AFTER
    }

    /// Whether `slot` is the one being asked.
    pub(crate) fn is_asking(&self, slot: Slot) -> bool {
        self.slot == slot || self.is_gathering()
    }

    /// The next slot to ask. Recovery begins anew when all were asked; a reader gives up.
    pub(crate) fn next_slot(&mut self, now: Instant) -> Option<Slot> {
        if self.tried == self.slots {
            if self.asker().is_some() {
                return None;
            }
            self.tried = SlotSet::EMPTY;
        }
        let after = (1..=SLOT_COUNT_MAX)
            .map(|distance| Slot::new(((self.slot.index() + distance) % SLOT_COUNT_MAX) as u8));
        let untried = self.slots.difference(self.tried);
        let next = after.into_iter().find(|slot| untried.contains(*slot))?;
        self.slot = next;
        self.tried.insert(next);
        self.asked_at = now;
        Some(next)
    }

    /// The reader that waits for the answer, if it is one.
    pub(crate) fn asker(&self) -> Option<Asker> {
        self.purpose.asker()
    }
}

impl Purpose {
    /// The reader that waits for the answer, if it is one.
    pub(crate) fn asker(&self) -> Option<Asker> {
        match *self {
            Self::Fetch { asker, .. } | Self::FetchCommitted { asker, .. } => Some(asker),
            Self::Tail
            | Self::Checkpoint
            | Self::Replay
            | Self::Link { .. }
            | Self::OwnEnd { .. }
            | Self::Load { .. }
            | Self::Pack { .. }
            | Self::Mend
            | Self::Compact { .. } => None,
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
        ReadTask::new(Instant::ZERO, purpose, SlotSet::first(9), Slot::new(7), request)
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
