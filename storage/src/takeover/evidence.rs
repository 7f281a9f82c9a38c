//! What a fence quorum's answers say: which generation the log goes on from, where it is cut, and what of it is in doubt
//! (rules T3 to T5, T9).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use meridian_base::position::{Generation, LogPoint, Offset, Step};
use meridian_base::quorum::PARTS_NEEDED;
use meridian_base::topology::{Geometry, Slot, SlotSet};

use super::{Contradiction, Decision, TailBlob, TakeoverConfig, TakeoverPlan};
use crate::blob::{BlobHeader, BlobInfo, BlobKind};
use crate::lineage::{EpochStart, Lineage, Past, Start};
use crate::message::{CommitMark, PartitionView};
use crate::mutation::{Mutation, Mutations};

/// The union of what a fence quorum holds.
pub(super) struct Evidence {
    mark: Option<CommitMark>,
    log_start_offset: Offset,
    blobs: BTreeMap<LogPoint, Seen>,
    starts: BTreeMap<Generation, Start>,
    checkpoints: BTreeMap<LogPoint, BlobInfo>,
}

/// What a fence quorum holds of one blob.
pub(super) struct Seen {
    /// That of the whole.
    pub(super) header: BlobHeader,
    pub(super) in_parts: bool,
    pub(super) holders: SlotSet,
    /// Which parts, a bit each.
    numbers: u8,
}

impl Seen {
    fn new(header: &BlobHeader) -> Self {
        let in_parts = header.part.is_some();
        Self { header: header.whole(), in_parts, holders: SlotSet::EMPTY, numbers: 0 }
    }

    /// Adds a holder; false if what it holds is of another blob.
    fn add(&mut self, slot: Slot, header: &BlobHeader) -> bool {
        self.holders.insert(slot);
        self.numbers |= header.part.map_or(0, |part| 1 << part.number);
        self.header == header.whole() && self.in_parts == header.part.is_some()
    }

    /// Whether the blob can be had from its holders: if not, it was never acknowledged.
    fn is_whole(&self, mutations: Mutations) -> bool {
        let part_count = self.numbers.count_ones() as usize;
        let needed = if Mutation::FewPartsKept.active(mutations) {
            1
        } else if Mutation::AllPartsAsked.active(mutations) {
            PARTS_NEEDED + 2
        } else {
            PARTS_NEEDED
        };
        !self.in_parts || part_count >= needed
    }
}

/// The generation whose log the new leader continues, and from where on it is in doubt (T3, T4).
struct Cut {
    generation: Generation,
    previous: Option<LogPoint>,
    base_offset: Offset,
    first_in_doubt: Step,
    past: Vec<Past>,
}

impl Evidence {
    /// What is said of the generations of `span`. Checkpoints count wherever they are of: whether they do
    /// is the lineage's to say.
    pub(super) fn gather<'a>(
        views: impl Iterator<Item = (Slot, &'a PartitionView)>,
        span: &RangeInclusive<Generation>,
        mutations: Mutations,
    ) -> Result<Self, Contradiction> {
        let mut evidence = Self {
            mark: None,
            log_start_offset: Offset::ZERO,
            blobs: BTreeMap::new(),
            starts: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
        };
        for (slot, view) in views {
            let mark = view.mark.filter(|mark| span.contains(&mark.point.generation));
            evidence.mark = evidence.mark.max(mark);
            evidence.log_start_offset = evidence.log_start_offset.max(view.log_start_offset);
            for info in view.blobs.iter().filter(|info| span.contains(&info.point.generation)) {
                let seen = evidence.blobs.entry(info.point);
                if !seen.or_insert_with(|| Seen::new(&info.header)).add(slot, &info.header) {
                    return Err(Contradiction::TwoValues(info.point));
                }
            }
            let starts = view.starts.iter().filter(|(generation, _)| span.contains(generation));
            evidence.starts.extend(starts.cloned());
            evidence.checkpoints.extend(view.checkpoints.iter().map(|info| (info.point, *info)));
        }
        evidence.blobs.retain(|_, seen| seen.is_whole(mutations));
        Ok(evidence)
    }

    /// The evidence without what could not be read and was never acknowledged (rule T5): no quorum holds it, not even
    /// with all slots that are silent.
    pub(super) fn without(
        mut self,
        unread: &BTreeSet<LogPoint>,
        geometry: Geometry,
        silent: SlotSet,
    ) -> Self {
        self.blobs.retain(|point, seen| {
            let most = seen.holders.union(silent);
            let may_be_acknowledged =
                if seen.in_parts { geometry.part_quorum(most) } else { geometry.put_quorum(most) };
            may_be_acknowledged || !unread.contains(point)
        });
        self
    }

    /// What the new generation begins with; `None` if no generation was ever established.
    pub(super) fn decide(
        &self,
        config: &TakeoverConfig,
    ) -> Result<Option<Decision>, Contradiction> {
        let Some((generation, start)) = self.established(config.mutations)? else {
            return Ok(None);
        };
        let mut cut = self.cut(generation, start);
        let mut tail = self.tail(&cut)?;
        if Mutation::DropTail.active(config.mutations) {
            tail.clear();
        }
        if Mutation::LinkInDoubt.active(config.mutations)
            && let Some(last) = tail.last()
        {
            cut.link_to(start, last.info);
            tail.clear();
        }
        let end = end_of(&tail, cut.base_offset);
        let mut lineage = Lineage {
            past: std::mem::take(&mut cut.past),
            generation: config.generation,
            base_offset: cut.base_offset,
            epochs: start.epochs.iter().copied().filter(|e| e.start_offset < end).collect(),
        };
        lineage.epochs.push(EpochStart { epoch: config.leader_epoch, start_offset: end });
        let log_start_offset = self.log_start(start, &tail, &lineage);
        let checkpoint = self.checkpoint(start, &lineage, config.mutations);
        let was_moved = !config.former.is_empty();
        lineage.trim(log_start_offset, log_start_offset, checkpoint.as_ref());
        let plan = TakeoverPlan {
            start: Start {
                previous: cut.previous,
                base_offset: cut.base_offset,
                tail_length: tail.len() as u64,
                log_start_offset,
                past: lineage.past,
                epochs: lineage.epochs,
                checkpoint: checkpoint.filter(|_| was_moved),
            },
            tail: Vec::new(),
            checkpoint,
        };
        Ok(Some(Decision { plan, tail }))
    }

    /// The highest generation that is known committed, or whose `Start` and whole copied tail are
    /// seen (rule T3).
    fn established(
        &self,
        mutations: Mutations,
    ) -> Result<Option<(Generation, &Start)>, Contradiction> {
        let committed = self.mark.map(|mark| mark.point.generation);
        for (generation, start) in self.starts.range(committed.unwrap_or_default()..).rev() {
            let known = committed == Some(*generation);
            let whole = (1..=start.tail_length)
                .all(|step| self.blobs.contains_key(&LogPoint::new(*generation, Step::new(step))));
            if known || whole || Mutation::HalfStartEstablished.active(mutations) {
                return Ok(Some((*generation, start)));
            }
        }
        match committed {
            Some(generation) => Err(Contradiction::StartMissing(generation)),
            None => Ok(None),
        }
    }

    /// The latest point known committed on the established chain (rule T4).
    fn cut(&self, generation: Generation, start: &Start) -> Cut {
        match self.mark {
            Some(mark) if mark.point.generation == generation => {
                let mut past = start.past.clone();
                past.push(Past {
                    generation,
                    base_offset: start.base_offset,
                    last_step: mark.point.step,
                });
                Cut {
                    generation,
                    previous: Some(mark.point),
                    base_offset: mark.high_watermark,
                    first_in_doubt: mark.point.step.next(),
                    past,
                }
            }
            _ => Cut {
                generation,
                previous: start.previous,
                base_offset: start.base_offset,
                first_in_doubt: Step::START.next(),
                past: start.past.clone(),
            },
        }
    }

    /// What follows the cut, up to the first gap (rule T5). Checkpoints are left out: the new
    /// leader writes its own. So are clean blobs: their pass ended with its leader. A manifest is
    /// kept, as what it names lies below the cut: a slot that holds it knows a mark that says so.
    fn tail(&self, cut: &Cut) -> Result<Vec<TailBlob>, Contradiction> {
        let mut tail = Vec::new();
        let mut next_offset = cut.base_offset;
        let mut step = cut.first_in_doubt;
        loop {
            let point = LogPoint::new(cut.generation, step);
            let Some(seen) = self.blobs.get(&point) else { break };
            if seen.header.kind == BlobKind::Records {
                if seen.header.base_offset != next_offset {
                    return Err(Contradiction::OffsetGap(point));
                }
                next_offset = seen.header.next_offset();
            }
            if !matches!(seen.header.kind, BlobKind::Checkpoint | BlobKind::Clean) {
                tail.push(TailBlob::new(point, seen));
            }
            step = step.next();
        }
        Ok(tail)
    }

    /// The log start, moved by every `Trim` that is known committed or kept. The slots' own
    /// knowledge is not enough: a slot whose mark is old lists a `Trim` that others know committed.
    fn log_start(&self, start: &Start, tail: &[TailBlob], lineage: &Lineage) -> Offset {
        let committed = self.blobs.iter();
        let committed = committed.filter(|(point, _)| lineage.contains(**point, Step::START));
        tail.iter()
            .map(|blob| &blob.info.header)
            .chain(committed.map(|(_, seen)| &seen.header))
            .filter(|header| header.kind == BlobKind::Trim)
            .map(|header| header.base_offset)
            .fold(self.log_start_offset.max(start.log_start_offset), Offset::max)
    }

    /// The newest checkpoint at or below the cut (rule T9): one that the slots have, or that `start` says is
    /// in a former group (rule H5).
    fn checkpoint(
        &self,
        start: &Start,
        lineage: &Lineage,
        mutations: Mutations,
    ) -> Option<BlobInfo> {
        let counts = |point: LogPoint| {
            Mutation::CheckpointInDoubt.active(mutations) || lineage.contains(point, Step::START)
        };
        let here = self.checkpoints.values().rev().find(|info| counts(info.point)).copied();
        let told = start.checkpoint.filter(|_| !Mutation::CheckpointLeftBehind.active(mutations));
        here.into_iter().chain(told).max_by_key(|info| info.point)
    }
}

/// The newest generation that a slot has heard of.
pub(super) fn newest(view: &PartitionView) -> Generation {
    let marked = view.mark.map(|mark| mark.point.generation);
    let put = view.blobs.iter().map(|info| info.point.generation);
    put.chain(marked).max().unwrap_or(Generation::NONE)
}

/// The offset after the tail's last record.
fn end_of(tail: &[TailBlob], base_offset: Offset) -> Offset {
    tail.iter()
        .map(|blob| &blob.info.header)
        .filter(|header| header.kind == BlobKind::Records)
        .map(BlobHeader::next_offset)
        .fold(base_offset, Offset::max)
}

impl Cut {
    /// Takes the in-doubt blobs up to `last` for committed: the broken rule of `LinkInDoubt`.
    fn link_to(&mut self, start: &Start, last: BlobInfo) {
        self.past.retain(|past| past.generation != self.generation);
        self.past.push(Past {
            generation: self.generation,
            base_offset: start.base_offset,
            last_step: last.point.step,
        });
        self.previous = Some(last.point);
        if last.header.kind == BlobKind::Records {
            self.base_offset = last.header.next_offset();
        }
    }
}
