//! What may be freed: blobs that no reader and no takeover can need (rule T8).

use std::collections::BTreeSet;

use meridian_base::position::{Generation, LogPoint, Offset, Step};

use super::partition::{Entry, Partition};
use crate::blob::BlobKind;
use crate::lineage::{Lineage, Past, Start};
use crate::message::CommitMark;
use crate::mutation::{Mutation, Mutations};

/// Checkpoints kept at or below the mark: the newest may turn out unreadable.
const CHECKPOINT_COUNT: usize = 2;

/// What a leader says may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectRule {
    /// First offset that can still be read.
    pub(crate) log_start_offset: Offset,
    /// Records wholly below it go.
    pub(crate) free_below: Offset,
    /// Clean blobs and manifests below it go.
    pub(crate) clean_from: LogPoint,
    /// First generation that can still be read.
    pub(crate) generation_min: Generation,
}

impl Partition {
    /// Takes what a leader says may go; gives the blobs that are freed by it. Nothing above the mark is ever
    /// freed, nor what the next takeover starts from: the newest `Start`, the blob at the mark and
    /// the newest checkpoints.
    pub(crate) fn collect(&mut self, rule: CollectRule) -> Vec<Entry> {
        self.log_start_offset = self.log_start_offset.max(rule.log_start_offset);
        self.free_below = self.free_below.max(rule.free_below);
        self.clean_from = self.clean_from.max(rule.clean_from);
        self.generation_min = self.generation_min.max(rule.generation_min);
        let Some(mark) = self.mark else { return Vec::new() };
        let kept = self.kept_points(mark);
        let (free_below, generation_min) = (self.free_below, self.generation_min);
        let mut freed = self.collect_clean(mark);
        for (generation, entries) in self.generations.range_mut(..=mark.point.generation) {
            // What comes after the last records below stays, whatever its offset: a `Trim` behind the
            // newest checkpoint is still to be replayed.
            let old = *generation < generation_min;
            let last = if old {
                Step::new(u64::MAX)
            } else if let Some(records) = entries.records_below(free_below) {
                records.step
            } else {
                continue;
            };
            freed.extend(entries.take_through(last, |entry| {
                let point = LogPoint::new(*generation, entry.step);
                let useless = old || entry.next_offset() <= free_below;
                let goes =
                    !is_clean(entry) && useless && point <= mark.point && !kept.contains(&point);
                debug_assert!(goes || entry.kind != BlobKind::Start || entry.step.get() == 0);
                goes
            }));
        }
        self.forget_freed();
        freed
    }

    /// Frees clean blobs and manifests of runs that are no longer in force, whatever their
    /// generation: the run in force may well be older than the log's other blobs.
    fn collect_clean(&mut self, mark: CommitMark) -> Vec<Entry> {
        let mut freed = Vec::new();
        let mut kept = self.clean.split_off(&self.clean_from);
        let below = std::mem::take(&mut self.clean);
        let generations: BTreeSet<Generation> =
            below.iter().map(|point| point.generation).collect();
        for generation in generations {
            let Some(entries) = self.generations.get_mut(&generation) else { continue };
            let clean_from = self.clean_from;
            freed.extend(entries.take_through(Step::new(u64::MAX), |entry| {
                let point = LogPoint::new(generation, entry.step);
                // Nothing above the mark is known committed, and the blob at it is a takeover's.
                is_clean(entry) && point < clean_from && point < mark.point
            }));
        }
        kept.extend(below.into_iter().filter(|point| *point >= mark.point));
        self.clean = kept;
        freed
    }

    /// Frees every generation below `generation`, committed or not: what rule T8 forbids.
    pub(crate) fn collect_before_commit(&mut self, generation: Generation) -> Vec<Entry> {
        let newer = self.generations.split_off(&generation);
        let freed = std::mem::replace(&mut self.generations, newer);
        self.clean = self.clean.split_off(&LogPoint::new(generation, Default::default()));
        self.forget_freed();
        freed.into_values().flatten().collect()
    }

    fn kept_points(&self, mark: CommitMark) -> BTreeSet<LogPoint> {
        let start = self.starts.range(..=mark.point.generation).next_back();
        let lineage = start.and_then(|(generation, payload)| {
            let start = Start::decode(payload.clone()).ok()?;
            (*generation == mark.point.generation).then(|| Lineage::from_start(*generation, &start))
        });
        let start_point =
            start.map(|(generation, _)| LogPoint::new(*generation, Default::default()));
        // A checkpoint that its successor cut off must not push out one that counts.
        let counting = |point: &&LogPoint| {
            lineage.as_ref().is_some_and(|lineage| lineage.contains(**point, mark.point.step))
        };
        let committed = self.checkpoints.range(..=mark.point);
        let checkpoints: Vec<LogPoint> = if lineage.is_some() {
            committed.rev().filter(counting).take(CHECKPOINT_COUNT).copied().collect()
        } else {
            committed.copied().collect()
        };
        checkpoints.into_iter().chain(start_point).chain([mark.point]).collect()
    }

    /// The oldest checkpoint that a takeover may start from: the second newest that is certain to be committed. Its
    /// cut is no lower, so it takes no older one; and a long log has more of them than a message holds.
    pub(super) fn first_checkpoint_needed(&self, mutations: Mutations) -> LogPoint {
        if Mutation::EveryCheckpointListed.active(mutations) {
            return LogPoint::default();
        }
        let chain = self.starts.values().next_back();
        let past = chain.and_then(|payload| Start::decode(payload.clone()).ok()).map(|it| it.past);
        let past = past.unwrap_or_default();
        let is_committed = |point: &&LogPoint| {
            let marked = self.mark.is_some_and(|mark| {
                mark.point.generation == point.generation && point.step <= mark.point.step
            });
            // The chain before a `Start` was known committed when its leader began, whatever became of that.
            let counts =
                |it: &Past| it.generation == point.generation && point.step <= it.last_step;
            marked || past.iter().any(counts)
        };
        let committed = self.checkpoints.iter().rev().filter(is_committed);
        committed.take(CHECKPOINT_COUNT).last().copied().unwrap_or_default()
    }

    fn forget_freed(&mut self) {
        self.generations.retain(|_, entries| !entries.is_empty());
        let held = |point: LogPoint| self.generations.get(&point.generation)?.get(point.step);
        self.starts
            .retain(|generation, _| held(LogPoint::new(*generation, Default::default())).is_some());
        self.checkpoints.retain(|point| held(*point).is_some());
    }
}

fn is_clean(entry: &Entry) -> bool {
    matches!(entry.kind, BlobKind::Clean | BlobKind::Manifest)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use meridian_base::position::Step;

    use super::*;
    use crate::blob::{BlobHeader, BlobInfo};
    use crate::journal::{FileSequence, Location};

    fn put(partition: &mut Partition, kind: BlobKind, point: (u32, u64), base: i64, count: u32) {
        let header = BlobHeader {
            kind,
            base_offset: Offset::new(base),
            record_count: count,
            max_timestamp_ms: -1,
            payload_size_bytes: 1,
            payload_crc: 0,
            part: None,
        };
        let location = Location { file: FileSequence::FIRST, offset_bytes: 0 };
        let entry = Entry::new(Step::new(point.1), &header, location);
        partition.insert(Generation::new(point.0), entry, &Bytes::new());
    }

    fn left(partition: &Partition) -> Vec<(BlobKind, u32, u64)> {
        let line = |(point, entry): (LogPoint, &Entry)| {
            (entry.kind, point.generation.get(), point.step.get())
        };
        partition.blobs().map(line).collect()
    }

    fn point(generation: u32, step: u64) -> LogPoint {
        LogPoint::new(Generation::new(generation), Step::new(step))
    }

    /// Points of the checkpoints that a takeover hears of.
    fn listed(partition: &Partition) -> Vec<(u32, u64)> {
        let view = partition.view(Mutations::NONE).expect("every Start can be read");
        let point = |info: &BlobInfo| (info.point.generation.get(), info.point.step.get());
        view.checkpoints.iter().map(point).collect()
    }

    fn with_checkpoints(points: &[(u32, u64)]) -> Partition {
        let mut partition = Partition::default();
        points.iter().for_each(|at| put(&mut partition, BlobKind::Checkpoint, *at, 0, 0));
        partition
    }

    #[test]
    fn a_view_leaves_out_checkpoints_older_than_two_that_a_mark_covers() {
        let mut partition = with_checkpoints(&[(1, 3), (2, 2), (2, 4), (2, 6), (2, 8), (3, 1)]);
        assert_eq!(listed(&partition).len(), 6, "none is certain");
        partition.mark = Some(CommitMark { point: point(2, 7), high_watermark: Offset::ZERO });
        assert_eq!(listed(&partition), [(2, 4), (2, 6), (2, 8), (3, 1)]);
    }

    #[test]
    fn a_checkpoint_that_its_successor_cut_off_hides_none_that_counts() {
        let mut partition = with_checkpoints(&[(1, 3), (1, 5), (2, 2), (2, 4), (3, 2), (3, 4)]);
        partition.mark = Some(CommitMark { point: point(4, 0), high_watermark: Offset::ZERO });
        assert_eq!(listed(&partition).len(), 6, "the mark is of another generation");
        // The chain of generation 4 goes over 1, up to step 4, and 2, up to step 3; 3 was cut off.
        let past = |generation, last_step| Past {
            generation: Generation::new(generation),
            base_offset: Offset::ZERO,
            last_step: Step::new(last_step),
        };
        let start = Start {
            previous: Some(point(2, 3)),
            base_offset: Offset::ZERO,
            tail_length: 0,
            log_start_offset: Offset::ZERO,
            past: vec![past(1, 4), past(2, 3)],
            epochs: Vec::new(),
            checkpoint: None,
        };
        partition.starts.insert(Generation::new(4), start.encode());
        assert_eq!(listed(&partition), [(1, 3), (1, 5), (2, 2), (2, 4), (3, 2), (3, 4)]);
        put(&mut partition, BlobKind::Checkpoint, (2, 3), 0, 0);
        assert_eq!(listed(&partition), [(2, 2), (2, 3), (2, 4), (3, 2), (3, 4)]);
    }

    #[test]
    fn clean_blobs_go_by_their_own_rule_whatever_their_generation() {
        use BlobKind::{Clean, Manifest, Records};
        let mut partition = Partition::default();
        for (kind, at, base, count) in [
            (Records, (1, 1), 0, 5),
            (Clean, (1, 2), 0, 5),
            (Manifest, (1, 3), 5, 0),
            (Records, (2, 1), 5, 5),
            (Clean, (2, 2), 0, 10),
            (Manifest, (2, 3), 10, 0),
            (Records, (3, 1), 10, 5),
        ] {
            put(&mut partition, kind, at, base, count);
        }
        let mark = CommitMark { point: point(3, 1), high_watermark: Offset::new(15) };
        partition.mark = Some(mark);
        let rule = |free_below, clean_from, generation_min| CollectRule {
            log_start_offset: Offset::ZERO,
            free_below: Offset::new(free_below),
            clean_from,
            generation_min: Generation::new(generation_min),
        };
        let freed = partition.collect(rule(10, LogPoint::default(), 3));
        assert_eq!(freed.len(), 2, "the records of old generations");
        assert_eq!(left(&partition).len(), 5);
        let freed = partition.collect(rule(10, point(2, 2), 3));
        assert_eq!(freed.len(), 2, "the run of old, and its manifest");
        let expected = [(Clean, 2, 2), (Manifest, 2, 3), (Records, 3, 1)];
        assert_eq!(left(&partition), expected);
        assert_eq!(partition.log_start_offset, Offset::ZERO);
    }
}
