//! The promises, checked at every event that shows something to anyone.
//!
//! A checker is told what leaders commit and serve, what clients are told, and what disks fence. It
//! keeps the only log that all of it agrees with, and reports the first event that does not fit:
//!
//! * one value per offset for ever, over all leaders and readers;
//! * acknowledged at its offset for ever; in a compacted partition, or a later record of its key is;
//! * each value (producer, epoch, sequence) at most once, a producer's values in order;
//! * what was visible stays visible: the high watermark never goes back within a generation, and a
//!   generation starts at or above all that older ones ever showed;
//! * a transaction is visible to readers of committed records as it was decided, whole, and no last
//!   stable offset passes one that is not, or goes back;
//! * a group's positions are stored by members of its generation alone, and stay; its generation goes
//!   forward, each partition has one owner, and each step of a transactional group is done once;
//! * no message between nodes is longer than a frame, and no partition stands still that could go on;
//! * in the end slots hold a quorum's copies of what is committed, and hardly more;
//! * what is written, stored and tried again has a bound by what clients send;
//! * fences only grow during one life of a disk, and a leader that was refused puts nothing more.

mod groups;
mod keyed;
mod prefix;
mod transactions;

pub(crate) use self::prefix::Prefix;
pub(crate) use self::transactions::TransactionId;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use meridian_base::id::{Incarnation, NodeId, PartitionId};
use meridian_base::position::{Generation, Offset};

use self::groups::Groups;
use self::transactions::Transactions;
use crate::value::{Batch, Kind, PlacedBatch, Value};

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// One value per offset.
    OneValuePerOffset,
    /// One offset per value.
    ExactlyOnce,
    /// A producer's values are in the log in the order of their sequence numbers, without gaps.
    ProducerOrder,
    /// What was visible stays visible.
    VisibleForEver,
    /// What was acknowledged is read in the end.
    AcknowledgedForEver,
    /// What was deleted does not come back.
    DeletedForEver,
    /// A transaction is visible whole or not at all, as it was decided.
    AtomicTransactions,
    /// Who is not in a group's generation stores no position of it.
    GroupsAreFenced,
    /// A group's generation never goes back.
    GroupsGoForward,
    /// A partition has one owner in each generation of a group.
    OneOwner,
    /// Fences only grow.
    FencesGrow,
    /// A leader that was refused once puts nothing more.
    StopsWhenFenced,
    /// After everything has healed, the partition is served and every producer is answered.
    ServesAgain,
    /// Every message between nodes has room in a frame.
    FitsAFrame,
    /// What a leader has put is committed within a bound while its slots can be reached, and a partition is served.
    GoesOn,
    /// What is written, stored and tried again has a bound by what clients send, whatever fails.
    CostsNoMore,
    /// A mirror is a prefix of its source, byte for byte.
    ExactPrefix,
    /// Who has mirrored a partition mirrors no more once it is promoted.
    OneWriter,
    /// Two sides that have both taken records are never made one.
    NeverMerged,
    /// A mirror stops only for what its source has done, and says so.
    MirrorsOn,
    /// When all has settled, the object store has what manifests name, and nothing else; and nothing of topics that
    /// were deleted is anywhere.
    NothingIsLeftBehind,
    /// When all has settled, slots hold of what is committed as many copies as a quorum needs, and
    /// hardly more.
    CopiesAreEnoughAndFew,
    /// All nodes together use no more of a quota than its rate.
    QuotaIsKept,
    /// Where clients want more than a quota, nearly all of it is used.
    QuotaIsUsed,
    /// A run that is to show something does.
    IsMade,
    /// No state machine finds its own invariants broken.
    Invariant,
}

/// Which promise was broken, where and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The promise.
    pub promise: Promise,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.detail)
    }
}

/// What a check gives: nothing, or the violation found.
pub type Verdict = Result<(), Violation>;

fn violation(promise: Promise, detail: String) -> Verdict {
    Err(Violation { promise, detail })
}

#[derive(Debug, Default)]
struct PartitionHistory {
    /// The value at every offset that anyone was ever shown or told.
    values: BTreeMap<Offset, (Value, Generation)>,
    /// The offset of every such value.
    offsets: BTreeMap<Value, Offset>,
    /// Values whose producer was told that they are safe.
    acknowledged: BTreeMap<Value, Offset>,
    /// Values of sources whose clients were told that they are safe, wherever they are.
    told: BTreeSet<Value>,
    /// Highest high watermark each generation showed.
    shown: BTreeMap<Generation, Offset>,
    /// High watermark at which each generation began to serve.
    served_from: BTreeMap<Generation, Offset>,
    /// Highest log start that anyone was told.
    log_start_offset: Offset,
}

/// Checks one run.
#[derive(Debug, Default)]
pub struct Checker {
    partitions: BTreeMap<PartitionId, PartitionHistory>,
    transactions: Transactions,
    groups: Groups,
    fences: BTreeMap<(NodeId, Incarnation, PartitionId), Generation>,
    /// Leaders that were told of a newer one.
    refused: BTreeSet<(NodeId, PartitionId, Generation)>,
}

impl Checker {
    /// A checker that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// A leader of `generation` shows a batch: it committed it, or sent it to a reader.
    pub fn shown(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        placed: PlacedBatch,
    ) -> Verdict {
        self.transactions.shown(partition, placed);
        let is_marker = matches!(placed.batch.kind, Kind::Marker { .. });
        placed.values().try_for_each(|(offset, value)| {
            self.place(partition, generation, offset, value, is_marker)
        })
    }

    /// A producer is told that its batch is safe at its offsets.
    pub fn acknowledged(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        placed: PlacedBatch,
    ) -> Verdict {
        self.shown(partition, generation, placed)?;
        let history = self.partitions.entry(partition).or_default();
        history.acknowledged.extend(placed.values().map(|(offset, value)| (value, offset)));
        Ok(())
    }

    /// A source's client is told that its batch is safe, each value at whatever offset it has, and
    /// perhaps where the first value is. A mixed batch has a hole there.
    pub fn told(&mut self, partition: PartitionId, base_offset: Offset, batch: Batch) -> Verdict {
        let history = self.partitions.entry(partition).or_default();
        if let Some((value, by)) = history.values.get(&base_offset)
            && *value != batch.first
        {
            let first = batch.first;
            return violation(
                Promise::OneValuePerOffset,
                format!(
                    "{partition:?} {first} is said to be at {base_offset}: {by} showed {value}"
                ),
            );
        }
        history.told.extend(batch.values());
        Ok(())
    }

    fn place(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        offset: Offset,
        value: Value,
        is_marker: bool,
    ) -> Verdict {
        let history = self.partitions.entry(partition).or_default();
        if let Some((before, by)) = history.values.get(&offset)
            && *before != value
        {
            return violation(
                Promise::OneValuePerOffset,
                format!(
                    "{partition:?} offset {offset}: {generation} shows {value}, {by} showed {before}"
                ),
            );
        }
        // A marker that is repeated ends nothing, and is not numbered.
        if let Some(before) = history.offsets.get(&value)
            && *before != offset
            && !is_marker
        {
            return violation(
                Promise::ExactlyOnce,
                format!(
                    "{partition:?} {value}: {generation} shows it at {offset}, it is at {before} too"
                ),
            );
        }
        history.values.entry(offset).or_insert((value, generation));
        history.offsets.insert(value, offset);
        Ok(())
    }

    /// A leader begins to serve: everything below `high_watermark` is visible.
    pub fn serving(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        high_watermark: Offset,
    ) -> Verdict {
        let history = self.partitions.entry(partition).or_default();
        let older = history.shown.range(..generation).max_by_key(|(_, shown)| **shown);
        if let Some((by, shown)) = older
            && *shown > high_watermark
        {
            return violation(
                Promise::VisibleForEver,
                format!(
                    "{partition:?}: {generation} serves up to {high_watermark}, {by} showed up to {shown}"
                ),
            );
        }
        history.served_from.insert(generation, high_watermark);
        self.high_watermark(partition, generation, high_watermark)
    }

    /// A leader shows a high watermark.
    pub fn high_watermark(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        high_watermark: Offset,
    ) -> Verdict {
        let history = self.partitions.entry(partition).or_default();
        let newer = history
            .served_from
            .range(generation.next()..)
            .find(|(_, served_from)| **served_from < high_watermark);
        if let Some((newer, served_from)) = newer {
            return violation(
                Promise::VisibleForEver,
                format!(
                    "{partition:?}: {generation} shows up to {high_watermark} after {newer} cut it at {served_from}"
                ),
            );
        }
        let shown = history.shown.entry(generation).or_insert(high_watermark);
        if *shown > high_watermark {
            return violation(
                Promise::VisibleForEver,
                format!("{partition:?}: {generation} goes back from {shown} to {high_watermark}"),
            );
        }
        *shown = high_watermark;
        Ok(())
    }

    /// A disk answers a fence: the highest generation it refuses others below.
    pub fn fenced(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        partition: PartitionId,
        fence: Generation,
    ) -> Verdict {
        let known = self.fences.entry((node, incarnation, partition)).or_insert(fence);
        if *known > fence {
            return violation(
                Promise::FencesGrow,
                format!("{partition:?} {node:?} {incarnation:?}: fence was {known}, is {fence}"),
            );
        }
        *known = fence;
        Ok(())
    }

    /// A leader hears that it was fenced.
    pub fn refused(&mut self, node: NodeId, partition: PartitionId, generation: Generation) {
        self.refused.insert((node, partition, generation));
    }

    /// A leader puts a blob.
    pub fn put(&mut self, node: NodeId, partition: PartitionId, generation: Generation) -> Verdict {
        if self.refused.contains(&(node, partition, generation)) {
            return violation(
                Promise::StopsWhenFenced,
                format!("{node:?} {partition:?}: {generation} puts after it was refused"),
            );
        }
        Ok(())
    }

    /// A client is told that everything below has been deleted.
    pub fn deleted(&mut self, partition: PartitionId, log_start_offset: Offset) {
        let history = self.partitions.entry(partition).or_default();
        history.log_start_offset = history.log_start_offset.max(log_start_offset);
    }

    /// The whole log of a partition, read after everything healed.
    pub fn final_log(
        &mut self,
        partition: PartitionId,
        log_start_offset: Offset,
        log: &[PlacedBatch],
    ) -> Verdict {
        let history = self.partitions.entry(partition).or_default();
        if log_start_offset < history.log_start_offset {
            let known = history.log_start_offset;
            return violation(
                Promise::DeletedForEver,
                format!("{partition:?}: starts at {log_start_offset}, was deleted up to {known}"),
            );
        }
        if crate::keyed::is_keyed(partition) {
            return self.final_keyed_log(partition, log_start_offset, log);
        }
        // A log start may lie amid a batch.
        let mut expected = log.first().map_or(log_start_offset, |placed| {
            if placed.next_offset() > log_start_offset {
                placed.base_offset
            } else {
                log_start_offset
            }
        });
        let mut next: BTreeMap<(u32, u16), u32> = BTreeMap::new();
        for placed in log {
            if placed.base_offset != expected {
                return violation(
                    Promise::OneValuePerOffset,
                    format!("{partition:?}: offset {} follows {expected}", placed.base_offset),
                );
            }
            expected = placed.next_offset();
            if matches!(placed.batch.kind, Kind::Marker { .. }) {
                self.shown(partition, Generation::new(u32::MAX), *placed)?;
                continue;
            }
            for (offset, value) in placed.values() {
                let begun = self.begins_behind(partition, offset, value);
                let sequence = next.entry((value.producer, value.epoch)).or_insert(if begun {
                    value.sequence
                } else {
                    0
                });
                if *sequence != value.sequence {
                    return violation(
                        Promise::ProducerOrder,
                        format!("{partition:?}: {value} where #{sequence} belongs"),
                    );
                }
                *sequence += 1;
            }
            self.shown(partition, Generation::new(u32::MAX), *placed)?;
        }
        self.nothing_is_missing(partition, expected)?;
        self.transactions.final_log(partition, log)
    }

    /// All that was shown or acknowledged lies below `end`, and is there.
    fn nothing_is_missing(&mut self, partition: PartitionId, end: Offset) -> Verdict {
        let history = self.partitions.entry(partition).or_default();
        // Whatever was deleted had been read before, and so seen here.
        if let Some(lost) = history.told.iter().find(|value| !history.offsets.contains_key(value)) {
            return violation(
                Promise::AcknowledgedForEver,
                format!("{partition:?}: {lost} was said to be safe, and is nowhere"),
            );
        }
        let missing = history.values.range(end..).next();
        if let Some((offset, (value, by))) = missing {
            let promise = if history.acknowledged.contains_key(value) {
                Promise::AcknowledgedForEver
            } else {
                Promise::VisibleForEver
            };
            return violation(
                promise,
                format!("{partition:?}: log ends at {end}, {by} showed {value} at {offset}"),
            );
        }
        Ok(())
    }

    /// Whether the value before `value` was seen where it belongs: at a lower offset.
    fn begins_behind(&self, partition: PartitionId, offset: Offset, value: Value) -> bool {
        let before = value.sequence.checked_sub(1).map(|sequence| Value { sequence, ..value });
        let seen = self.partitions.get(&partition).zip(before);
        seen.and_then(|(history, before)| history.offsets.get(&before))
            .is_some_and(|known| *known < offset)
    }

    /// What its source has shown below `end` was shown by a mirror too: it may have let go of it before anybody read it
    /// there.
    pub(crate) fn inherit(&mut self, partition: PartitionId, source: &Self, end: Option<Offset>) {
        let Some(of_source) = source.partitions.get(&partition) else { return };
        let history = self.partitions.entry(partition).or_default();
        for (value, offset) in &of_source.offsets {
            if end.is_none_or(|end| *offset < end) {
                history.offsets.entry(*value).or_insert(*offset);
            }
        }
    }

    /// Whether all that was shown here from `from` on was shown there too.
    pub(crate) fn agrees_from(&self, partition: PartitionId, other: &Self, from: Offset) -> bool {
        let (here, there) = (self.partitions.get(&partition), other.partitions.get(&partition));
        let (Some(here), Some(there)) = (here, there) else { return true };
        let mut shown = here.values.range(from..);
        shown.all(|(offset, (value, _))| {
            there.values.get(offset).is_some_and(|(other, _)| other == value)
        })
    }

    /// Where a value is, if anybody has shown it.
    pub(crate) fn offset_of(&self, partition: PartitionId, value: Value) -> Option<Offset> {
        self.partitions.get(&partition)?.offsets.get(&value).copied()
    }

    /// How many records were acknowledged.
    pub fn acknowledged_count(&self) -> u64 {
        let count = |history: &PartitionHistory| history.acknowledged.len() + history.told.len();
        self.partitions.values().map(|history| count(history) as u64).sum()
    }

    /// Highest offset of `partition` that was ever shown, plus one.
    pub fn visible_end(&self, partition: PartitionId) -> Offset {
        let shown = self.partitions.get(&partition).map(|history| history.shown.values().max());
        shown.flatten().copied().unwrap_or(Offset::ZERO)
    }
}

#[cfg(test)]
mod tests;
