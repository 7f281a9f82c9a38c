//! Producers of which a partition has no state (rule P1): which of them may begin in the midst of
//! their sequence.
//!
//! One whose topic was recreated does: what it numbered before went to the log that is gone. Kafka
//! takes whatever comes of a producer that it does not know. Here a batch that was in the log
//! already, and whose producer was forgotten, would be in it twice; and one that was sent, and is
//! not in the log, would come after its successors. A log in its first generation knows that
//! neither is so: its leader has heard of all that was ever sent to it.

use std::collections::BTreeSet;

use meridian_base::position::Generation;
use meridian_storage::mutation::Mutation;

use super::{Partition, PartitionState, RecordBatch};
use crate::producer::Producers;

/// Producers that are remembered because a batch of them was refused. Beyond, all are taken to be.
const REFUSED_COUNT_MAX: usize = 10_000;

/// What a leader knows of producers that the state does not have.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// No batch that was appended here is unknown to the state.
    remembers_all: bool,
    /// Those who sent what was not appended. They begin at 0.
    refused: BTreeSet<i64>,
}

impl Strangers {
    /// Those of a log whose leader begins with `state`. Who wrote to an earlier leader may have
    /// sent it what was void after it.
    pub(super) fn of(generation: Generation, state: &PartitionState) -> Self {
        let is_new = generation == Generation::FIRST && state.is_untouched();
        Self { remembers_all: is_new, refused: BTreeSet::new() }
    }

    /// Whether a producer without state may begin with any sequence.
    pub(super) fn may_begin_anywhere(&self, producer_id: i64) -> bool {
        self.remembers_all && !self.refused.contains(&producer_id)
    }

    /// Somebody's state has gone, or was never here.
    pub(super) fn on_forgotten(&mut self) {
        self.remembers_all = false;
        self.refused.clear();
    }

    /// Batches of these producers were not appended: what they send next may have to wait for them.
    fn on_refused(&mut self, producers: &Producers, ids: impl Iterator<Item = i64>) {
        let unknown = ids.filter(|id| !producers.knows(*id));
        if self.remembers_all {
            self.refused.extend(unknown);
        }
        if self.refused.len() > REFUSED_COUNT_MAX {
            self.on_forgotten();
        }
    }
}

impl<T> Partition<T> {
    /// The state of producers was made smaller.
    pub(super) fn note_forgotten(&mut self) {
        if !Mutation::ForgottenProducerAccepted.active(self.mutations) {
            self.strangers.on_forgotten();
        }
    }

    /// A request is not appended.
    pub(super) fn note_refused(&mut self, batches: &[RecordBatch]) {
        let ids = batches.iter().filter_map(|batch| batch.sequenced.map(|it| it.producer_id));
        self.strangers.on_refused(&self.state.producers, ids);
    }

    /// Who serves clients has refused a batch of this producer.
    pub fn note_refused_before(&mut self, producer_id: i64) {
        self.strangers.on_refused(&self.state.producers, std::iter::once(producer_id));
    }

    /// Something was refused before this partition served, of whichever producer.
    pub fn note_all_refused(&mut self) {
        self.strangers.on_forgotten();
    }
}
