//! Transactions at a broker: markers, questions to coordinators, reads of committed records.

use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_broker::partition::{
    AbortedTransaction, Marker, PartitionOutput, Ticket, TransactionVersion, Verification,
    VerifyError,
};
use meridian_broker::replica::view::{Isolation, Source};
use meridian_storage::placement::SlotHealth;

use super::{
    Asker, Broker, BrokerOutput, ClientReply, Coordinate, FETCH_SIZE_BYTES_MAX, Shown, Waiter,
};
use crate::read::Purpose;
use crate::topics::PRODUCER_ID_MIN;
use crate::value::{Batch, Kind, PlacedBatch};

/// What a reader of committed records gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedRead {
    /// The batches.
    pub batches: Vec<PlacedBatch>,
    /// The aborted transactions among them: producer and first offset.
    pub aborted: Vec<(u32, Offset)>,
}

impl CommittedRead {
    /// Batches, and those of the aborted transactions that one of them belongs to: of a transaction whose records
    /// were compacted away the marker may be gone too, and all that its producer wrote after it would be skipped.
    pub(crate) fn of(batches: Vec<PlacedBatch>, aborted: &[AbortedTransaction]) -> Self {
        let is_of = |placed: &PlacedBatch, it: &AbortedTransaction| {
            matches!(placed.batch.kind, Kind::Transactional { .. })
                && placed.batch.first.producer == it.producer_id as u32
                && (it.first_offset..it.last_offset).contains(&placed.base_offset)
        };
        let is_given = |it: &&AbortedTransaction| batches.iter().any(|placed| is_of(placed, it));
        let shown = |it: &AbortedTransaction| (it.producer_id as u32, it.first_offset);
        let aborted = aborted.iter().filter(is_given).map(shown).collect();
        Self { batches, aborted }
    }
}

/// Ticks after which a coordinator that has not answered can't be reached.
const PATIENCE_TICKS: u32 = 50;

/// Questions that have not been answered, with the ticks that are left.
#[derive(Default)]
pub(super) struct Verifying(Vec<(Ticket, u32)>);

impl Broker {
    /// A coordinator ends a transaction.
    pub(super) fn on_marker(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        asker: Asker,
        (batch, commit): (Batch, bool),
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(partition) = self.replica.partition_mut() else {
            out.push(BrokerOutput::Answer(asker, ClientReply::Retry));
            return;
        };
        let marker = Marker {
            producer_id: i64::from(batch.first.producer),
            producer_epoch: batch.first.epoch as i16,
            coordinator_epoch: 0,
            commit,
            version: TransactionVersion::V2,
            number: 0,
        };
        let mut outputs = Vec::new();
        let waiter = Waiter::Producer { asker, batch };
        partition.write_marker(now, health, &marker, 0, waiter, &mut outputs);
        self.carry_out_partition(outputs, out);
    }

    pub(super) fn verify(
        &mut self,
        ticket: Ticket,
        verification: &Verification,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.verifying.0.push((ticket, PATIENCE_TICKS));
        let producer = verification.transaction.producer_id as u32;
        if producer >= PRODUCER_ID_MIN {
            let verification = verification.clone();
            return out.push(BrokerOutput::Coordinate(Coordinate::Vouch { ticket, verification }));
        }
        let epoch = verification.transaction.producer_epoch as u16;
        out.push(BrokerOutput::Verify { ticket, producer, epoch });
    }

    /// Takes a coordinator's answer.
    pub fn on_verified(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        ticket: Ticket,
        result: Result<(), VerifyError>,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.verifying.0.retain(|(asked, _)| *asked != ticket);
        let Some(partition) = self.replica.partition_mut() else { return };
        let mut outputs: Vec<PartitionOutput<Waiter>> = Vec::new();
        partition.on_verified(now, health, ticket, result, &mut outputs);
        self.carry_out_partition(outputs, out);
    }

    /// Gives up on coordinators that do not answer.
    pub(super) fn tick_verifications(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.verifying.0.iter_mut().for_each(|(_, left)| *left -= 1);
        let late: Vec<Ticket> =
            self.verifying.0.iter().filter(|(_, left)| *left == 0).map(|(it, _)| *it).collect();
        for ticket in late {
            self.on_verified(now, health, ticket, Err(VerifyError::Unavailable), out);
        }
    }

    /// A reader asks for committed records. It is not answered: the checker sees what it would
    /// get.
    pub fn on_fetch_committed(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        asker: Asker,
        from: Offset,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(view) = self.read_view() else { return };
        let range = view.range(from, Isolation::ReadCommitted);
        if from < view.log_start_offset || range.is_empty() {
            return;
        }
        if let Some(bytes) = self.in_memory(&view, range.clone()) {
            match PlacedBatch::read_all(bytes) {
                Some(batches) => self.show_committed(from, batches, out),
                None => self.broken(format!("the tail at {from} holds no batch"), out),
            }
            return;
        }
        let purpose = Purpose::FetchCommitted { asker, from };
        match view.source(self.partition, range, FETCH_SIZE_BYTES_MAX) {
            // There are no transactions in partitions that are compacted.
            Ok(Some((_, Source::Clean { .. })) | None) => {}
            Ok(Some((_, source))) => self.read_source(now, health, source, purpose, out),
            Err(error) => self.broken(error.to_string(), out),
        }
    }

    pub(super) fn show_committed(
        &self,
        from: Offset,
        mut batches: Vec<PlacedBatch>,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(partition) = self.replica.partition() else { return };
        if !partition.is_serving() {
            return;
        }
        let stable = partition.last_stable_offset();
        batches.retain(|placed| placed.next_offset() > from && placed.base_offset < stable);
        let Some(end) = batches.last().map(|last| last.next_offset()) else { return };
        let aborted = partition.state().transactions.aborted();
        let Some(aborted) = aborted.between(from, end) else { return };
        let shown = Shown::Committed(CommittedRead::of(batches, &aborted));
        out.push(BrokerOutput::Shown(shown));
    }
}
