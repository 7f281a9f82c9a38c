//! What a coordinator keeps in its log.

use std::collections::BTreeSet;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_protocol::records::{BatchHeader, Record};
use meridian_storage::codec::DecodeError;

use super::queue::{Entry, Write};

/// A part of all that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<P> {
    /// Its records.
    pub records: Vec<Entry>,
    /// Where the next one begins; `None` after the last.
    pub next: Option<P>,
}

/// What a coordinator keeps, and how it gets into the log and back.
pub trait State {
    /// What happens once a decision is committed.
    type Effect;
    /// What is to be done then: answers, markers.
    type Outcome;
    /// Where a piece of a snapshot begins.
    type Place: Clone;

    /// Applies a record of the log, in the log's order.
    fn replay(&mut self, batch: &BatchHeader, record: Record) -> Result<(), DecodeError>;

    /// The whole log has been replayed.
    fn on_loaded(&mut self, now: Instant);

    /// What was decided since the last call, in order.
    fn take_decisions(&mut self) -> Vec<Write<Self::Effect>>;

    /// A decision, and all before it, are committed, its first record there.
    fn on_committed(&mut self, at: Offset, effect: Self::Effect);

    /// A decision is not known to get into the log.
    fn refuse(&mut self, effect: Self::Effect, code: ErrorCode);

    /// What is to be done now.
    fn take_outcomes(&mut self) -> Vec<Self::Outcome>;

    /// Forgets all: the log is another's.
    fn clear(&mut self);

    /// How many records would say all that holds.
    fn held_count(&self) -> usize;

    /// The records of what holds from this place on, or from the first, about as many as fit; all that was decided,
    /// committed or not, but offsets only as they were committed.
    fn piece(&self, from: Option<Self::Place>, size_bytes_max: usize) -> Piece<Self::Place>;

    /// The topics that snapshots have records of.
    fn topics(&self) -> BTreeSet<TopicId> {
        BTreeSet::new()
    }

    /// The latest start of the log, which ends there, that a snapshot begun now may give it.
    fn start_max(&self, high_watermark: Offset) -> Offset {
        high_watermark
    }

    /// A snapshot begins while nothing is on its way, and leaves out what is of these topics.
    fn begin_snapshot(&mut self, _high_watermark: Offset, _gone: BTreeSet<TopicId>) {}

    /// What is to be written of a piece now.
    fn still_holding(&self, records: Vec<Entry>) -> Vec<Entry> {
        records
    }

    /// That is committed, its first record there.
    fn on_piece_committed(&mut self, _at: Offset, _records: &[Entry]) {}

    /// Where the log may start now that all pieces of a snapshot are committed which began there.
    fn start_of(&self, began_at: Offset) -> Offset {
        began_at
    }

    /// The log starts there.
    fn on_trimmed(&mut self, _start: Offset) {}
}
