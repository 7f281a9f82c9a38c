//! What may be freed: blobs that no reader and no takeover can need (rule T8).

use std::collections::{BTreeSet, VecDeque};

use meridian_base::position::{Generation, LogPoint, Offset};

use super::partition::{Entry, Partition, first_above};
use crate::blob::BlobKind;
use crate::lineage::{Lineage, Start};
use crate::message::CommitMark;

/// Checkpoints kept at or below the mark: the newest may turn out unreadable.
const CHECKPOINT_COUNT: usize = 2;

/// What a leader says may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CollectRule {
    /// First offset that can still be read.
    pub(crate) log_start_offset: Offset,
    /// First generation that can still be read.
    pub(crate) generation_min: Generation,
}

impl Partition {
    /// Raises the log start; gives the blobs that are freed by it. Nothing above the mark is ever
    /// freed, nor what the next takeover starts from: the newest `Start`, the blob at the mark and
    /// the newest checkpoints.
    pub(crate) fn collect(&mut self, rule: CollectRule) -> Vec<Entry> {
        self.log_start_offset = self.log_start_offset.max(rule.log_start_offset);
        self.generation_min = self.generation_min.max(rule.generation_min);
        let Some(mark) = self.mark else { return Vec::new() };
        let kept = self.kept_points(mark);
        let (log_start_offset, generation_min) = (self.log_start_offset, self.generation_min);
        let mut freed = Vec::new();
        for (generation, entries) in self.generations.range_mut(..=mark.point.generation) {
            let passed = if *generation < generation_min {
                entries.len()
            } else {
                wholly_below(entries, log_start_offset)
            };
            let old = *generation < generation_min;
            drain(entries, passed, &mut freed, |entry| {
                let point = LogPoint::new(*generation, entry.step);
                let useless = old || entry.next_offset() <= log_start_offset;
                useless && point <= mark.point && !kept.contains(&point)
            });
        }
        self.forget_freed();
        freed
    }

    /// Frees every generation below `generation`, committed or not: what rule T8 forbids.
    pub(crate) fn collect_before_commit(&mut self, generation: Generation) -> Vec<Entry> {
        let newer = self.generations.split_off(&generation);
        let freed = std::mem::replace(&mut self.generations, newer);
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

    fn forget_freed(&mut self) {
        self.generations.retain(|_, entries| !entries.is_empty());
        let held = |point: LogPoint| {
            let entries = self.generations.get(&point.generation)?;
            entries.binary_search_by_key(&point.step, |entry| entry.step).ok()
        };
        self.starts
            .retain(|generation, _| held(LogPoint::new(*generation, Default::default())).is_some());
        self.checkpoints.retain(|point| held(*point).is_some());
    }
}

/// How many entries go with the last records that lie wholly below `offset`. What comes after them
/// stays, whatever its offset: a `Trim` behind the newest checkpoint is still to be replayed.
fn wholly_below(entries: &VecDeque<Entry>, offset: Offset) -> usize {
    let is_below = |entry: &Entry| entry.kind == BlobKind::Records && entry.next_offset() <= offset;
    let above = first_above(entries, offset);
    entries.range(..above).rposition(is_below).map_or(0, |last| last + 1)
}

/// Moves the entries among the first `passed` that are `useless` to `freed`.
fn drain(
    entries: &mut VecDeque<Entry>,
    passed: usize,
    freed: &mut Vec<Entry>,
    useless: impl Fn(&Entry) -> bool,
) {
    let mut kept = Vec::new();
    for entry in entries.drain(..passed) {
        if useless(&entry) {
            freed.push(entry);
        } else {
            debug_assert!(entry.kind != BlobKind::Start || entry.step.get() == 0);
            kept.push(entry);
        }
    }
    for entry in kept.into_iter().rev() {
        entries.push_front(entry);
    }
}
