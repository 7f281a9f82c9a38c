//! Is the source still the one this mirror is a prefix of? Identity, lineage, overlap (rule F4).

use meridian_base::env::Instant;
use meridian_base::position::{LeaderEpoch, Offset};

use super::{
    BatchId, BoundsFor, MirrorPartition, NoView, Output, Phase, Question, SourceBatch, SourceView,
};
use crate::mutation::Mutation;
use crate::state::State;

impl MirrorPartition {
    /// The source's metadata has come.
    pub(super) fn on_view(&mut self, now: Instant, mut view: SourceView, out: &mut Vec<Output>) {
        // What is missing in a seed may be there at the promoted side.
        view.is_compacted &= self.settings.seed.is_none();
        view.delete_retention = view.delete_retention.filter(|_| view.is_compacted);
        if matches!(self.phase, Phase::Stopped(_)) {
            return;
        }
        if view.topic != self.settings.source_topic && !self.breaks(Mutation::IgnoreIdentity) {
            let (expected, found) = (self.settings.source_topic, view.topic);
            let detail = format!("the mirror is of topic {expected}, the source now has {found}");
            return self.retry(now, State::SourceRecreated { detail });
        }
        let is_working = !matches!(self.phase, Phase::Lost | Phase::Retry { .. });
        let working_under = self.view.filter(|_| is_working).map(|known| known.leader_epoch);
        if working_under.is_some_and(|epoch| epoch > view.leader_epoch) {
            return;
        }
        self.view = Some(view);
        if working_under == Some(view.leader_epoch) {
            return;
        }
        if view.leader_epoch > self.settings.leader_epoch {
            out.push(Output::RaiseEpoch(view.leader_epoch));
            let detail = format!("taking on leader epoch {}", view.leader_epoch.get());
            // With the new epoch comes a new machine; this one only goes on if that fails.
            return self.retry(now, State::SourceUnreachable { detail });
        }
        self.verify(out);
    }

    /// The source's metadata has nothing for us. None of it is final: a broker that just started
    /// may not know its topics yet.
    pub(super) fn on_no_view(&mut self, now: Instant, no_view: NoView) {
        if matches!(self.phase, Phase::Stopped(_)) {
            return;
        }
        self.retry(
            now,
            match no_view {
                NoView::Unreachable(detail) => State::SourceUnreachable { detail },
                NoView::Refused(detail) => State::SourceRefused { detail },
                NoView::Deleted => State::SourceDeleted,
                NoView::OtherCluster(detail) => State::SourceRecreated { detail },
            },
        );
    }

    fn verify(&mut self, out: &mut Vec<Output>) {
        self.unverified.clone_from(&self.open);
        match self.own.last {
            Some(_) if self.breaks(Mutation::IgnoreLineage) => self.compare_last(out),
            Some(last) => {
                self.phase = Phase::EpochEnd;
                self.ask(Question::EpochEnd { epoch: last.leader_epoch }, out);
            }
            None if self.is_unbegun() => self.ask_bounds(BoundsFor::Seek, out),
            // Retention here has let go of all records: the position is all there is.
            None => self.follow(out),
        }
    }

    /// Nothing was ever appended; a gap before the first batch is no gap.
    pub(super) fn is_unbegun(&self) -> bool {
        self.own.last.is_none() && self.own.start == Offset::ZERO
    }

    pub(super) fn ask_bounds(&mut self, cause: BoundsFor, out: &mut Vec<Output>) {
        self.phase = Phase::Bounds(cause);
        self.ask(Question::Bounds, out);
    }

    /// Where the epoch of our last record ends at the source: it must not be before our end.
    pub(super) fn on_epoch_end(
        &mut self,
        now: Instant,
        end: Option<(LeaderEpoch, Offset)>,
        out: &mut Vec<Output>,
    ) {
        let Some(last) = self.own.last else { return };
        match end {
            Some((_, end)) if end >= self.own.end => self.compare_last(out),
            Some((epoch, end)) if epoch == last.leader_epoch && self.is_newest(epoch) => {
                let state = State::SourceTruncated { source_end: end, end: self.own.end };
                self.mistrust(now, state);
            }
            Some((epoch, end)) => {
                let at = end.min(last.last_offset);
                self.mistrust(now, State::Diverged { at, epoch });
            }
            None => self.ask_bounds(BoundsFor::UnknownEpoch, out),
        }
    }

    fn is_newest(&self, epoch: LeaderEpoch) -> bool {
        self.view.is_some_and(|view| view.leader_epoch == epoch)
    }

    /// Fetches our last batch: the source's must be the same.
    fn compare_last(&mut self, out: &mut Vec<Output>) {
        match self.own.last {
            Some(last) if !self.breaks(Mutation::IgnoreOverlap) => {
                self.phase = Phase::Overlap;
                self.ask(Question::Fetch { from: last.base_offset }, out);
            }
            _ => self.follow(out),
        }
    }

    pub(super) fn on_overlap(
        &mut self,
        now: Instant,
        asked_at: Instant,
        batches: Vec<SourceBatch>,
        start: Offset,
        high_watermark: Offset,
        out: &mut Vec<Output>,
    ) {
        let Some(last) = self.own.last else { return };
        let same = |id: &BatchId| {
            (id.base_offset, id.last_offset, id.crc)
                == (last.base_offset, last.last_offset, last.crc)
        };
        let first = batches.first().map(|batch| batch.id);
        let is_compacted = self.view.is_some_and(|view| view.is_compacted);
        match first {
            Some(_) if is_compacted && !self.unverified.is_empty() => self.verify_open(out),
            Some(first) if same(&first) || is_compacted => {
                self.phase = Phase::Following { is_asked: false };
                self.on_fetched(now, asked_at, batches, start, high_watermark, out);
            }
            Some(_) => {
                self.stop(State::Diverged { at: last.base_offset, epoch: last.leader_epoch });
            }
            None if is_compacted && high_watermark >= self.own.end => self.verify_open(out),
            // A new leader of the source may not know yet how much is committed.
            None => {
                let detail = format!(
                    "the source shows nothing at offset {} yet: committed up to {high_watermark}",
                    last.base_offset
                );
                self.retry(now, State::SourceUnreachable { detail });
            }
        }
    }

    /// A transaction that is open here may have been decided meanwhile, and compaction have removed its
    /// records, and later its marker: then the next marker of its producer would decide it wrongly. As
    /// long as the source has records of it, it has the marker too.
    pub(super) fn verify_open(&mut self, out: &mut Vec<Output>) {
        let next = self.unverified.pop().filter(|_| !self.breaks(Mutation::OpenUnverified));
        match next {
            Some(first) => {
                self.phase = Phase::Open { first };
                self.ask(Question::Fetch { from: first }, out);
            }
            None => self.follow(out),
        }
    }

    pub(super) fn on_first_of_open(
        &mut self,
        now: Instant,
        first: Offset,
        batches: Vec<SourceBatch>,
        start: Offset,
        out: &mut Vec<Output>,
    ) {
        match batches.first() {
            Some(found) if found.id.base_offset <= first || start > first => self.verify_open(out),
            Some(found) => {
                let to = found.id.base_offset.max(self.own.end);
                self.stop(State::Gap { from: first, to });
            }
            None => {
                let detail = format!("the source shows nothing at offset {first} yet");
                self.retry(now, State::SourceUnreachable { detail });
            }
        }
    }

    pub(super) fn on_bounds(
        &mut self,
        now: Instant,
        cause: BoundsFor,
        start: Offset,
        high_watermark: Offset,
        out: &mut Vec<Output>,
    ) {
        let end = self.own.end;
        // Also if the source let go of more since it was asked: nothing is missing here yet.
        if cause == BoundsFor::Seek || self.is_unbegun() && start > end {
            if let Some(part) = self.settings.seed
                && start > part.from
            {
                return self.stop(State::Gap { from: part.from, to: start });
            }
            self.seek = start.max(end);
            if start > end && start == high_watermark && self.settings.seed.is_none() {
                self.begin_empty(start, out);
            }
            self.lag.on_end(self.reached());
            return self.follow(out);
        }
        if start > end {
            if self.breaks(Mutation::SkipGap) {
                self.own.end = start;
                return self.follow(out);
            }
            return self.stop(State::Gap { from: end, to: start });
        }
        // A new leader's high watermark may lag, but by now its log was seen to reach our end.
        if high_watermark < end && cause != BoundsFor::Overlap {
            let state = State::SourceTruncated { source_end: high_watermark, end };
            return self.mistrust(now, state);
        }
        match (cause, self.own.last) {
            // It has let go of the beginning of our last batch only.
            (BoundsFor::Overlap, Some(last)) if start <= last.last_offset => {
                self.phase = Phase::Overlap;
                self.ask(Question::Fetch { from: start }, out);
            }
            // Our last batch is gone at the source, the lineage holds, and so does our end.
            (BoundsFor::Overlap, _) => self.follow(out),
            // The source has records where ours are, all of them of later epochs.
            (BoundsFor::UnknownEpoch, Some(last)) if start < end => {
                let state = State::Diverged { at: last.base_offset, epoch: last.leader_epoch };
                self.mistrust(now, state);
            }
            (BoundsFor::UnknownEpoch, _) => self.follow(out),
            (BoundsFor::OutOfRange | BoundsFor::Seek, _) => {
                let detail = format!("the source did not serve offset {end}, which it has");
                self.retry(now, State::SourceUnreachable { detail });
            }
        }
    }
}
