//! What may be appended: by the leader's own state, the order of producers and their transactions.

use meridian_base::position::Offset;
use meridian_storage::leader::PutError;
use meridian_storage::mutation::Mutation;
use meridian_storage::placement::SlotHealth;

use super::{
    InTransaction, Marker, Partition, ProduceError, RecordBatch, TransactionError,
    TransactionVersion,
};
use crate::producer::{Producers, SequenceError, Sequenced, Verdict};

/// What is to become of a request.
pub(super) enum Judgement {
    Append,
    /// It is in the log already.
    Duplicate {
        base_offset: Offset,
        end_offset: Offset,
    },
    /// Its transaction is not known here.
    Verify(InTransaction),
}

impl<T> Partition<T> {
    /// Whether anything may be appended now.
    pub(super) fn admit(&self, health: &SlotHealth) -> Result<(), ProduceError> {
        if !self.recovered && !Mutation::ReleasedEarly.active(self.mutations) {
            return Err(PutError::NotServing.into());
        }
        Ok(self.leader.admit(health)?)
    }

    /// Judges all batches of a request; changes nothing.
    pub(super) fn judge(
        &self,
        health: &SlotHealth,
        batches: &[RecordBatch],
        verified: Option<i16>,
    ) -> Result<Judgement, ProduceError> {
        self.admit(health)?;
        self.check_sizes(batches)?;
        if let [batch] = batches
            && let Some(sequenced) = &batch.sequenced
            && let Verdict::Duplicate { base_offset } =
                self.check_sequence(&self.state.producers, sequenced)?
        {
            let end_offset = base_offset.advance(batch.record_count);
            let base_offset = self.original_offset(batch).unwrap_or(base_offset);
            return Ok(Judgement::Duplicate { base_offset, end_offset });
        }
        let mut judged = None;
        let mut unverified = None;
        for batch in batches {
            unverified = unverified.or(self.judge_transaction(batch, verified)?);
            let Some(sequenced) = &batch.sequenced else { continue };
            // Several idempotent batches in one request are judged as if each followed the last.
            let producers = judged.get_or_insert_with(|| self.state.producers.only(sequenced));
            self.check_sequence(producers, sequenced)?;
            producers.apply(sequenced, Offset::UNKNOWN);
        }
        if unverified.is_none() {
            self.check_opened(batches)?;
        }
        Ok(unverified.map_or(Judgement::Append, |of| Judgement::Verify(InTransaction::clone(of))))
    }

    /// Refuses what no blob holds, before it gets an offset (rule Z1).
    fn check_sizes(&self, batches: &[RecordBatch]) -> Result<(), PutError> {
        let size_bytes_max = self.leader.blob_size_bytes_max();
        let mut sizes = batches.iter().map(|batch| batch.bytes.len());
        match sizes.find(|size_bytes| *size_bytes > size_bytes_max) {
            Some(size_bytes) => Err(PutError::TooLarge { size_bytes, size_bytes_max }),
            None => Ok(()),
        }
    }

    /// Refuses to open a transaction that would have no room among the aborted ones (rule Z3).
    fn check_opened(&self, batches: &[RecordBatch]) -> Result<(), TransactionError> {
        let is_open =
            |of: &&InTransaction| self.state.transactions.ongoing(of.producer_id).is_some();
        let all = batches.iter().filter_map(|batch| batch.transaction.as_ref());
        match all.filter(|of| !is_open(of)).count() {
            0 => Ok(()),
            opened => self.check_transaction_room(opened),
        }
    }

    fn check_sequence(
        &self,
        producers: &Producers,
        batch: &Sequenced,
    ) -> Result<Verdict, SequenceError> {
        match producers.check(batch) {
            Err(SequenceError::UnknownProducer { producer_id })
                if self.strangers.may_begin_anywhere(producer_id) =>
            {
                Ok(Verdict::New)
            }
            Err(
                SequenceError::UnknownProducer { .. } | SequenceError::OutOfOrder { last: -1, .. },
            ) if Mutation::UnknownProducerAccepted.active(self.mutations) => Ok(Verdict::New),
            Ok(Verdict::New)
                if Mutation::SequenceNeverWraps.active(self.mutations)
                    && batch.base_sequence == 0
                    && producers.describe().any(|known| {
                        (known.producer_id, known.epoch, known.last_sequence)
                            == (batch.producer_id, batch.epoch, i32::MAX)
                    }) =>
            {
                Err(SequenceError::OutOfOrder { found: 0, last: i32::MAX })
            }
            judged => judged,
        }
    }

    /// The transaction of a batch, if the coordinator must vouch for it first.
    fn judge_transaction<'a>(
        &self,
        batch: &'a RecordBatch,
        verified: Option<i16>,
    ) -> Result<Option<&'a InTransaction>, ProduceError> {
        let ongoing = |producer_id| self.state.transactions.ongoing(producer_id);
        let Some(transaction) = &batch.transaction else {
            let open = batch.producer_id().filter(|id| ongoing(*id).is_some());
            return match open {
                None => Ok(None),
                Some(producer_id) => Err(TransactionError::NotTransactional { producer_id }.into()),
            };
        };
        let InTransaction { producer_id, producer_epoch, .. } = *transaction;
        self.state.producers.check_epoch(producer_id, producer_epoch)?;
        if Mutation::TransactionUnverified.active(self.mutations) {
            return Ok(None);
        }
        let is_open = ongoing(producer_id).is_some_and(|of| of.producer_epoch == producer_epoch);
        let is_known = is_open || verified == Some(producer_epoch);
        Ok((!is_known).then_some(transaction))
    }

    /// Whether a marker may be appended: of a live coordinator, and of the transaction that is open.
    pub(super) fn admit_marker(
        &self,
        health: &SlotHealth,
        marker: &Marker,
    ) -> Result<(), ProduceError> {
        self.admit(health)?;
        let Marker { producer_id, producer_epoch, coordinator_epoch, .. } = *marker;
        self.state.producers.check_epoch(producer_id, producer_epoch)?;
        let current = self.state.producers.coordinator_epoch(producer_id);
        let takes_old = Mutation::OldCoordinatorAccepted.active(self.mutations);
        if coordinator_epoch < current && !takes_old {
            let found = coordinator_epoch;
            return Err(TransactionError::CoordinatorFenced { found, current }.into());
        }
        if self.endings.is_superseded(marker) {
            let (found, current) = (producer_epoch, producer_epoch);
            return Err(TransactionError::LateMarker { found, current }.into());
        }
        // With V2 a marker has a newer epoch than its transaction. One that has the same is of the
        // transaction before, whose marker brought this epoch (KIP-1228).
        let ongoing = self.state.transactions.ongoing(producer_id);
        match ongoing.map(|ongoing| ongoing.producer_epoch) {
            Some(current)
                if marker.version == TransactionVersion::V2
                    && producer_epoch <= current
                    && !Mutation::LateMarkerAccepted.active(self.mutations) =>
            {
                Err(TransactionError::LateMarker { found: producer_epoch, current }.into())
            }
            _ => Ok(()),
        }
    }
}
