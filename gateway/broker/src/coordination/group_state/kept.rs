//! Groups as the state of a coordinator.

use std::collections::BTreeSet;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_protocol::records::{BatchHeader, Record};
use meridian_storage::codec::DecodeError;

use super::snapshot::SnapshotPlace;
use super::{Effect, GroupEntry, Groups, Outcome};
use crate::coordination::PendingOffsets;
use crate::coordinator::queue::{Entry, Write};
use crate::coordinator::{Piece, State};

impl<W> State for Groups<W> {
    type Effect = Effect<W>;
    type Outcome = Outcome<W>;
    type Place = SnapshotPlace;

    fn replay(&mut self, batch: &BatchHeader, record: Record) -> Result<(), DecodeError> {
        let mut loading = std::mem::take(&mut self.loading);
        let applied = loading.apply(self, batch, record);
        self.loading = loading;
        applied
    }

    fn on_loaded(&mut self, now: Instant) {
        std::mem::take(&mut self.loading).finish(self, now);
    }

    fn take_decisions(&mut self) -> Vec<Write<Effect<W>>> {
        std::mem::take(&mut self.decisions.writes)
    }

    fn on_committed(&mut self, at: Offset, effect: Effect<W>) {
        self.decisions.committed.0 += 1;
        match effect {
            Effect::Nothing => {}
            Effect::Tell(outputs) => {
                self.outcomes.extend(outputs.into_iter().map(Outcome::Member));
            }
            Effect::Answer(waiter) => self.outcomes.push(Outcome::Written(waiter, Ok(()))),
            Effect::Offsets { group, changes, waiter } => {
                for (delta, (key, committed)) in (0u32..).zip(changes) {
                    self.apply(at.advance(delta), &group, key, committed);
                }
                let told = |waiter| Outcome::Written(waiter, Ok(()));
                self.outcomes.extend(waiter.map(told));
            }
        }
    }

    fn refuse(&mut self, effect: Effect<W>, code: ErrorCode) {
        match effect {
            // Members that wait are told as their waiters are dropped.
            Effect::Nothing | Effect::Tell(_) => {}
            Effect::Answer(waiter) => self.outcomes.push(Outcome::Written(waiter, Err(code))),
            Effect::Offsets { waiter, .. } => {
                let told = |waiter| Outcome::Written(waiter, Err(code));
                self.outcomes.extend(waiter.map(told));
            }
        }
    }

    fn take_outcomes(&mut self) -> Vec<Outcome<W>> {
        std::mem::take(&mut self.outcomes)
    }

    fn clear(&mut self) {
        self.by_id.clear();
        self.pending = PendingOffsets::default();
        self.active.clear();
    }

    fn held_count(&self) -> usize {
        self.by_id.values().map(Self::held_of).sum()
    }

    fn piece(&self, from: Option<SnapshotPlace>, size_bytes_max: usize) -> Piece<SnapshotPlace> {
        self.cut(from, size_bytes_max)
    }

    fn topics(&self) -> BTreeSet<TopicId> {
        let keys = |entry| GroupEntry::offset_keys(entry).chain(GroupEntry::share_keys(entry));
        self.by_id.values().flat_map(keys).map(|key| key.topic).collect()
    }

    fn start_max(&self, high_watermark: Offset) -> Offset {
        self.latest_start(high_watermark)
    }

    fn begin_snapshot(&mut self, high_watermark: Offset, gone: BTreeSet<TopicId>) {
        self.snapshot.begin(high_watermark, gone);
    }

    fn still_holding(&self, records: Vec<Entry>) -> Vec<Entry> {
        self.unchanged(records)
    }

    fn on_piece_committed(&mut self, at: Offset, records: &[Entry]) {
        self.on_written_again(at, records);
    }

    fn start_of(&self, began_at: Offset) -> Offset {
        self.start_after_pieces(began_at)
    }

    fn on_trimmed(&mut self, start: Offset) {
        self.forget_gone(start);
    }
}
