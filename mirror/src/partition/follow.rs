//! Fetching and appending: which batches go into the own log, and which gaps are explained
//! (rule F2).

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::Offset;

use super::{BatchId, MirrorPartition, Output, Phase, Question, SourceBatch};
use crate::mutation::Mutation;
use crate::state::State;

impl MirrorPartition {
    /// Goes on at the own end.
    pub(super) fn follow(&mut self, out: &mut Vec<Output>) {
        self.phase = Phase::Following { is_asked: false };
        self.ask_for_more(out);
    }

    /// Asks for the next batches, unless that was done or too much is in flight.
    pub(super) fn ask_for_more(&mut self, out: &mut Vec<Output>) {
        if self.phase == (Phase::Following { is_asked: false }) && self.wants_more() {
            self.phase = Phase::Following { is_asked: true };
            self.ask(Question::Fetch { from: self.next() }, out);
        }
    }

    /// Whether there is room for more, and more to be had.
    pub(super) fn wants_more(&self) -> bool {
        let has_all = self.settings.seed.is_some_and(|part| self.next() >= part.until);
        self.in_flight_size_bytes < self.settings.in_flight_size_bytes_max && !has_all
    }

    /// Where the next batch is to come from.
    pub(super) fn next(&self) -> Offset {
        if self.is_unbegun() { self.seek } else { self.own.end }
    }

    pub(super) fn on_fetched(
        &mut self,
        now: Instant,
        asked_at: Instant,
        batches: Vec<SourceBatch>,
        start: Offset,
        high_watermark: Offset,
        out: &mut Vec<Output>,
    ) {
        self.failure = None;
        self.lost_since = None;
        self.retry_after = self.settings.retry_after_min;
        // An answer that others have filled says nothing of where the partition ends.
        if high_watermark >= Offset::ZERO {
            self.lag.on_source(now, asked_at, self.reached(), high_watermark);
        }
        if let Some(late) = self.late_beginning(&batches) {
            return self.stop(late);
        }
        self.begin(&batches, out);
        let stopped = self.append(now, batches, high_watermark, out);
        if high_watermark >= Offset::ZERO && self.own.end >= high_watermark {
            self.had_all = Some((asked_at, Duration::ZERO));
        }
        // What the source let go of goes here too, once our log reaches so far.
        if start > self.own.start && start <= self.committed {
            self.own.start = start;
            out.push(Output::Trim(start));
        }
        match stopped {
            Some(state) => self.stop(state),
            None => self.ask_for_more(out),
        }
    }

    /// A seed must have what the mirror is to begin with: a link might.
    fn late_beginning(&self, batches: &[SourceBatch]) -> Option<State> {
        let (from, to) = (self.settings.seed?.from, batches.first()?.id.base_offset);
        (self.is_unbegun() && to > from).then_some(State::Gap { from, to })
    }

    /// An empty log begins where the first batch does.
    fn begin(&mut self, batches: &[SourceBatch], out: &mut Vec<Output>) {
        let Some(first) = batches.first() else { return };
        let base_offset = first.id.base_offset;
        if self.is_unbegun() && base_offset > self.own.end && !self.breaks(Mutation::Renumber) {
            self.own.end = base_offset;
            out.push(Output::Begin(base_offset));
        }
    }

    /// The source has let go of all it had: what comes next is not at an offset that was used before.
    pub(super) fn begin_empty(&mut self, at: Offset, out: &mut Vec<Output>) {
        if !self.breaks(Mutation::StayBeforeStart) {
            self.own.end = at;
            out.push(Output::Begin(at));
        }
    }

    /// Appends what is new. Returns why nothing more can be appended, if so.
    fn append(
        &mut self,
        now: Instant,
        batches: Vec<SourceBatch>,
        high_watermark: Offset,
        out: &mut Vec<Output>,
    ) -> Option<State> {
        let expected = self.own.end;
        let mut accepted = Vec::with_capacity(batches.len());
        let mut size_bytes = 0;
        let mut stopped = None;
        for mut batch in batches {
            if self.breaks(Mutation::Renumber) {
                let records = batch.id.last_offset.get() - batch.id.base_offset.get();
                batch.id.base_offset = self.own.end;
                batch.id.last_offset = Offset::new(self.own.end.get() + records);
            }
            let is_uncommitted = batch.id.last_offset >= high_watermark;
            if is_uncommitted && !self.breaks(Mutation::BeyondHighWatermark) {
                stopped = self.seed_ends_early(&batch.id);
                break;
            }
            if batch.id.last_offset < self.own.end && !self.breaks(Mutation::AppendAgain) {
                continue;
            }
            if let Err(state) = self.check(&batch.id).and_then(|()| self.check_hole(now, &batch)) {
                stopped = Some(state);
                break;
            }
            size_bytes += batch.bytes.len() as u64;
            self.own.end = batch.id.last_offset.advance(1).max(self.own.end);
            self.own.last = Some(batch.id);
            accepted.push(batch);
        }
        if !accepted.is_empty() {
            let offsets = u64::try_from(self.own.end.get() - expected.get()).unwrap_or(0);
            self.lag.on_mirrored(offsets, size_bytes);
            self.in_flight_size_bytes += size_bytes;
            out.push(Output::Append { expected, batches: accepted });
        }
        stopped
    }

    /// A batch of the seed that is not wholly of the part to be taken must come where that ends.
    fn seed_ends_early(&self, batch: &BatchId) -> Option<State> {
        let until = self.settings.seed?.until;
        let is_missed = batch.last_offset >= until && self.own.end < until;
        is_missed.then_some(State::Gap { from: self.own.end, to: until })
    }

    /// Compaction leaves holes, and what was there may have been a tombstone: the mirror would keep what it deleted. As
    /// with Kafka's consumers, who reads all within `delete.retention.ms` has seen each of them.
    fn check_hole(&self, now: Instant, batch: &SourceBatch) -> Result<(), State> {
        let BatchId { base_offset, last_offset, .. } = batch.id;
        let has_hole = base_offset > self.own.end || batch.is_sparse();
        let behind = self.had_all.map_or(Duration::ZERO, |(at, before)| now.since(at) + before);
        let is_late = self
            .view
            .and_then(|view| view.delete_retention)
            .is_some_and(|retention| behind > retention);
        // Nothing is here that a tombstone could delete.
        let is_first = self.own.last.is_none() && self.is_unbegun();
        if has_hole && is_late && !is_first && !self.breaks(Mutation::MissTombstones) {
            let to = if base_offset > self.own.end { base_offset } else { last_offset.advance(1) };
            return Err(State::Gap { from: self.own.end, to });
        }
        Ok(())
    }

    /// Whether a batch may follow the own log.
    fn check(&self, batch: &BatchId) -> Result<(), State> {
        let BatchId { base_offset, leader_epoch, .. } = *batch;
        if self.breaks(Mutation::AppendAgain) && base_offset < self.own.end {
            return Ok(());
        }
        let is_older = self.own.last.is_some_and(|last| leader_epoch < last.leader_epoch);
        if base_offset < self.own.end || is_older {
            return Err(State::Diverged { at: base_offset, epoch: leader_epoch });
        }
        let is_explained =
            self.view.is_some_and(|view| view.is_compacted) || self.breaks(Mutation::SkipGap);
        if base_offset > self.own.end && !is_explained {
            return Err(State::Gap { from: self.own.end, to: base_offset });
        }
        Ok(())
    }
}
