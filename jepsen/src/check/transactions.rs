//! Transactions: visible whole or not at all, and only when they are committed.
//!
//! The checker is told each decision before the first marker is sent. From then on a reader of
//! committed records must see the transaction as it was decided; until then it must see none of it,
//! and no last stable offset may pass it.

use std::collections::{BTreeMap, BTreeSet};

use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, Offset};

use super::{Checker, Promise, Verdict, violation};
use crate::broker::CommittedRead;
use crate::value::{Batch, Kind, PlacedBatch};

/// A transaction: its producer, the epoch, and with version 1 which of those with it it is.
pub(crate) type TransactionId = (u32, u16, u32);

/// The transaction of a batch, if it is in one.
fn transaction_of(batch: Batch) -> Option<TransactionId> {
    let Kind::Transactional { number } = batch.kind else { return None };
    Some((batch.first.producer, batch.first.epoch, number))
}

/// The last stable offsets that the leaders of one partition have shown.
#[derive(Debug, Default)]
struct Stable {
    first: BTreeMap<Generation, Offset>,
    last: BTreeMap<Generation, Offset>,
}

#[derive(Debug, Default)]
struct PartitionTransactions {
    /// Batches of transactions that are not decided.
    undecided: BTreeSet<(Offset, TransactionId)>,
    stable: Stable,
}

/// What is known of all transactions.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    /// Whether it commits.
    decided: BTreeMap<TransactionId, bool>,
    partitions: BTreeMap<PartitionId, PartitionTransactions>,
}

impl Transactions {
    pub(super) fn shown(&mut self, partition: PartitionId, placed: PlacedBatch) {
        if let Some(id) = transaction_of(placed.batch)
            && !self.decided.contains_key(&id)
        {
            let known = self.partitions.entry(partition).or_default();
            known.undecided.insert((placed.base_offset, id));
        }
    }

    /// The log has each transaction ended as it was decided, by one marker with the next epoch (with
    /// version 1 with its own, unless it was aborted by time), and nothing of it after that.
    pub(super) fn final_log(&self, partition: PartitionId, log: &[PlacedBatch]) -> Verdict {
        let torn = |detail| violation(Promise::AtomicTransactions, detail);
        let mut open: BTreeMap<u32, TransactionId> = BTreeMap::new();
        // The epoch of each producer's last marker, and the last of its transactions with it.
        let mut ended: BTreeMap<u32, (u16, u32)> = BTreeMap::new();
        for placed in log {
            let first = placed.batch.first;
            match placed.batch.kind {
                Kind::Plain | Kind::Keyed => {}
                Kind::Transactional { number } => {
                    let id = (first.producer, first.epoch, number);
                    let within = *open.entry(first.producer).or_insert(id);
                    let is_late = ended.get(&first.producer).is_some_and(|(epoch, last)| {
                        first.epoch < *epoch
                            || first.epoch == *epoch && number > 0 && number <= *last
                    });
                    if within != id || is_late {
                        let at = placed.base_offset;
                        return torn(format!(
                            "{partition:?} {at}: {first} of {id:?} in {within:?}"
                        ));
                    }
                }
                Kind::Marker { commit } => {
                    let id = open.remove(&first.producer);
                    let last = match id {
                        Some((_, epoch, number)) if epoch == first.epoch => number,
                        _ => 0,
                    };
                    let before = ended.get(&first.producer).filter(|(of, _)| *of == first.epoch);
                    let last = before.map_or(last, |(_, before)| last.max(*before));
                    ended.insert(first.producer, (first.epoch, last));
                    let Some(id) = id else { continue };
                    let (_, epoch, number) = id;
                    let decided = self.decided.get(&id);
                    let ends_it = first.epoch == epoch + 1 || number > 0 && first.epoch == epoch;
                    if !ends_it || decided != Some(&commit) {
                        let at = placed.base_offset;
                        return torn(format!(
                            "{partition:?} {at}: {id:?}, decided {decided:?}, ended by {first} with \
                             {commit}"
                        ));
                    }
                }
            }
        }
        match open.first_key_value() {
            None => Ok(()),
            Some((_, id)) => torn(format!("{partition:?}: {id:?} hangs")),
        }
    }
}

impl Checker {
    /// A coordinator decides a transaction.
    pub(crate) fn decided(&mut self, id: TransactionId, commit: bool) {
        self.transactions.decided.insert(id, commit);
        for partition in self.transactions.partitions.values_mut() {
            partition.undecided.retain(|(_, of)| *of != id);
        }
    }

    /// How a transaction was decided, if it is.
    pub(super) fn is_decided(&self, id: TransactionId) -> Option<bool> {
        self.transactions.decided.get(&id).copied()
    }

    /// A leader shows its last stable offset.
    pub fn stable(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        log_start_offset: Offset,
        last_stable_offset: Offset,
    ) -> Verdict {
        let known = self.transactions.partitions.entry(partition).or_default();
        let passed = known
            .undecided
            .range((log_start_offset, (0, 0, 0))..)
            .next()
            .filter(|(offset, _)| *offset < last_stable_offset);
        if let Some((offset, id)) = passed {
            return violation(
                Promise::AtomicTransactions,
                format!(
                    "{partition:?}: {generation} is stable up to {last_stable_offset}, \
                     {id:?} at {offset} is not decided"
                ),
            );
        }
        let Stable { first, last } = &mut known.stable;
        let begins = first.entry(generation).or_insert(last_stable_offset);
        let older = last.range(..generation).find(|(_, shown)| **shown > *begins);
        let newer = first.range(generation.next()..).find(|(_, of)| **of < last_stable_offset);
        let own = last.get_key_value(&generation).filter(|(_, of)| **of > last_stable_offset);
        if let Some((by, other)) = older.or(newer).or(own) {
            return violation(
                Promise::VisibleForEver,
                format!(
                    "{partition:?}: {generation} is stable up to {last_stable_offset}, \
                     {by} up to {other}"
                ),
            );
        }
        last.insert(generation, last_stable_offset);
        Ok(())
    }

    /// A reader of committed records is given batches, and does with them what Kafka's consumer
    /// does.
    pub fn read_committed(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        read: &CommittedRead,
    ) -> Verdict {
        let mut aborted = read.aborted.clone();
        aborted.sort_unstable_by_key(|(_, first_offset)| std::cmp::Reverse(*first_offset));
        let mut skipped: BTreeSet<u32> = BTreeSet::new();
        for placed in &read.batches {
            self.shown(partition, generation, *placed)?;
            while let Some((producer, _)) =
                aborted.pop_if(|(_, first_offset)| *first_offset < placed.next_offset())
            {
                skipped.insert(producer);
            }
            let first = placed.batch.first;
            let decided = transaction_of(placed.batch).and_then(|id| self.is_decided(id));
            let is_skipped = skipped.contains(&first.producer);
            let is_right = match placed.batch.kind {
                Kind::Plain | Kind::Keyed => true,
                Kind::Transactional { .. } => decided == Some(!is_skipped),
                Kind::Marker { commit } => {
                    if !commit {
                        skipped.remove(&first.producer);
                    }
                    true
                }
            };
            if !is_right {
                let shown = if is_skipped { "skips" } else { "shows" };
                let at = placed.base_offset;
                return violation(
                    Promise::AtomicTransactions,
                    format!(
                        "{partition:?} {at}: {generation} {shown} {first}, decided {decided:?}"
                    ),
                );
            }
        }
        Ok(())
    }

    /// How many transactions were committed.
    pub fn transaction_count(&self) -> u64 {
        self.transactions.decided.values().filter(|commit| **commit).count() as u64
    }
}

#[cfg(test)]
mod tests;
