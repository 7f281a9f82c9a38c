//! A broker of an internal partition: reads the log for its desk, and writes what that has decided.

use std::collections::VecDeque;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, Offset};
use meridian_broker::coordination;
use meridian_broker::coordinator::{AppendError, Input as Happening, LogView};
use meridian_broker::partition::{
    Appended, InTransaction, Marker, ProduceError, Ticket, TransactionError, Verification,
    VerifyError,
};
use meridian_protocol::ErrorCode;
use meridian_protocol::records::BatchHeader;
use meridian_storage::blob::Blob;
use meridian_storage::leader::PutError;
use meridian_storage::message::Read;
use meridian_storage::placement::SlotHealth;

use super::{Asker, Broker, BrokerOutput, FETCH_SIZE_BYTES_MAX, ForDesk, Shown, Waiter, is_final};
use crate::cost::Chore;
use crate::desk::{Ask, Desk, DeskOutput, DeskTime, MarkerOrigin, Piece, Told, TransactionWaiter};
use crate::net::Endpoint;
use crate::read::{Purpose, answers};

/// What a broker knows of its desk.
#[derive(Debug, Default)]
pub(super) struct AtDesk {
    /// What has happened in the log that the desk has not heard of.
    happenings: VecDeque<Happening>,
    /// From where on the log is being read.
    reading: Option<Offset>,
    /// Batches of transactions on their way, of desks that were given up too.
    batch_count: usize,
    /// How many desks there have been before this one.
    pub(super) desk_count: u64,
}

/// What a node is to do for coordinators, and for those who ask them.
#[derive(Debug)]
pub enum Coordinate {
    /// Ask the coordinator of transactions about a batch.
    Vouch {
        /// Goes with the answer.
        ticket: Ticket,
        /// What to ask.
        verification: Verification,
    },
    /// Answer as the coordinator of transactions.
    Verified {
        /// Whom.
        node: Endpoint,
        /// What it leads.
        partition: PartitionId,
        /// In which generation.
        generation: Generation,
        /// Came with the question.
        ticket: Ticket,
        /// The answer.
        result: Result<(), VerifyError>,
    },
    /// Have a transaction ended.
    Mark {
        /// Where.
        partition: PartitionId,
        /// How.
        marker: Marker,
        /// Which of this coordinator's endings it is.
        number: u64,
    },
    /// A coordinator's marker is in the log.
    Marked(MarkerOrigin),
    /// A producer id that nobody has is wanted.
    WantIds,
    /// Tell an application.
    Tell(Asker, Told),
}

impl Broker {
    /// An application asks. Who can't be answered now is not answered, and asks again.
    pub fn on_ask(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        asker: Asker,
        ask: Ask,
        out: &mut Vec<BrokerOutput>,
    ) {
        if let Ask::Append(transactional_id, batch) = ask {
            let mut records = batch.to_record_batch();
            if let Some(transaction) = &mut records.transaction {
                *transaction = InTransaction {
                    transactional_id: transactional_id.into(),
                    ..transaction.clone()
                };
            }
            return self.on_produce(now, health, asker, batch, records, out);
        }
        self.have_desk(now, health, out, |desk, time, outputs| desk.ask(time, asker, ask, outputs));
    }

    /// Has the desk act, if this broker serves, and carries out what follows.
    fn have_desk(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
        act: impl FnOnce(&mut Desk, DeskTime, &mut Vec<DeskOutput>),
    ) {
        let time = self.desk_time(now);
        if !self.is_serving() {
            return;
        }
        let Some(desk) = &mut self.desk else { return };
        let mut outputs = Vec::new();
        act(desk, time, &mut outputs);
        self.carry_out_desk(now, health, outputs, out);
        self.tend_desk(now, health, out);
    }

    /// The leader of a partition asks about a batch.
    pub(crate) fn on_vouch(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        verification: Verification,
        waiter: TransactionWaiter,
        out: &mut Vec<BrokerOutput>,
    ) {
        let act = |desk: &mut Desk, time, outputs: &mut Vec<DeskOutput>| {
            desk.verify(time, verification, waiter, outputs);
        };
        self.have_desk(now, health, out, act);
    }

    /// A coordinator has a transaction ended here.
    pub(crate) fn on_coordinated_marker(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        marker: Marker,
        origin: MarkerOrigin,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(partition) = self.replica.partition_mut() else { return };
        let mut outputs = Vec::new();
        let waiter = Waiter::Marker { origin, marker };
        partition.write_marker(now, health, &marker, 0, waiter, &mut outputs);
        self.carry_out_partition(outputs, out);
    }

    /// The leader of `partition` has a marker of this coordinator.
    pub(crate) fn on_marked(&mut self, now: Instant, number: u64, partition: PartitionId) {
        let time = self.desk_time(now);
        if let Some(desk) = &mut self.desk {
            desk.on_marked(time, number, partition);
        }
    }

    /// Takes a producer id that nobody has.
    pub(crate) fn take_id(&mut self, id: i64) {
        self.fresh_id = Some(id);
    }

    /// Whether the desk, if there is one, is served and has nothing under way.
    pub(crate) fn is_desk_idle(&self) -> bool {
        self.desk.as_ref().is_none_or(|desk| desk.is_serving() && desk.is_idle())
    }

    fn desk_time(&self, now: Instant) -> DeskTime {
        let (generation, fresh_id) = (self.generation, self.fresh_id);
        DeskTime { now, generation, leader_epoch: self.leader_epoch, fresh_id }
    }

    /// What the desk is to do now: read on, write on, look at deadlines.
    pub(super) fn tend_desk(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
    ) {
        if self.desk.is_none() || !self.is_serving() {
            return;
        }
        let time = self.desk_time(now);
        let Some(desk) = &mut self.desk else { return };
        let mut outputs = Vec::new();
        if desk.wants_ids() && self.fresh_id.is_none() {
            outputs.push(DeskOutput::WantIds);
        }
        desk.tick(time, &mut outputs);
        self.carry_out_desk(now, health, outputs, out);
        self.at_desk.happenings.push_back(Happening::Wake);
        while let Some(happening) = self.at_desk.happenings.pop_front() {
            let Some(log) = self.log_view() else { return };
            let Some(desk) = &mut self.desk else { return };
            let mut outputs = Vec::new();
            desk.on_happening(now, log, happening, &mut outputs);
            self.carry_out_desk(now, health, outputs, out);
            if self.desk.as_ref().is_some_and(Desk::is_over) {
                self.clear_desk();
            }
        }
    }

    fn log_view(&self) -> Option<LogView> {
        let partition = self.replica.partition()?;
        Some(LogView {
            start: partition.leader().log_start_offset(),
            high_watermark: partition.high_watermark(),
            is_serving: self.is_serving(),
            has_others: self.at_desk.batch_count > 0,
            rests: self.chores_are_off(),
        })
    }

    fn read_for_desk(&mut self, now: Instant, from: Offset, out: &mut Vec<BrokerOutput>) {
        let Some(partition) = self.replica.partition() else { return };
        if let Some(pieces) = partition.tail().read(from, FETCH_SIZE_BYTES_MAX as usize) {
            return self.on_read_for_desk(from, pieces.concat().into(), out);
        }
        let Some(mark) = partition.leader().mark() else { return };
        let Some(request) = self.records_request(from, mark) else {
            return self.broken(format!("no generation holds offset {from}"), out);
        };
        self.at_desk.reading = Some(from);
        self.ask(now, Purpose::Load { from }, request, out);
    }

    /// Takes what was read for the desk.
    pub(super) fn on_desk_read(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        from: Offset,
        (request, blobs): (&Read, &[Blob]),
        out: &mut Vec<BrokerOutput>,
    ) {
        if self.at_desk.reading.take_if(|reading| *reading == from).is_none() {
            return;
        }
        let records = answers(request, blobs).map(|blob| blob.payload.to_contiguous());
        let bytes = records.collect::<Vec<Bytes>>().concat().into();
        self.on_read_for_desk(from, bytes, out);
        self.tend_desk(now, health, out);
    }

    fn on_read_for_desk(&mut self, from: Offset, bytes: Bytes, out: &mut Vec<BrokerOutput>) {
        let bytes = from_batch(bytes, from);
        self.at_desk.happenings.push_back(Happening::Read(Ok(bytes.clone())));
        out.push(BrokerOutput::Shown(Shown::Log(Piece { from, bytes })));
    }

    /// What the desk has decided is in the log, or is not.
    pub(super) fn on_desk_written(&mut self, result: Result<Appended, ProduceError>) {
        let appended = result.map(|appended| appended.base_offset).map_err(|error| match error {
            ProduceError::Put(PutError::Busy) => AppendError::Busy(ErrorCode::NotCoordinator),
            _ => AppendError::Failed(ErrorCode::NotCoordinator),
        });
        self.at_desk.happenings.push_back(Happening::Appended(appended));
    }

    /// Gives the desk up: all of it is read anew.
    fn clear_desk(&mut self) {
        self.desk = self.desk.as_ref().map(Desk::anew);
        let AtDesk { batch_count, desk_count, .. } = self.at_desk;
        self.at_desk = AtDesk { batch_count, desk_count: desk_count + 1, ..AtDesk::default() };
        self.reads.retain(|_, task| !matches!(task.purpose(), Some(Purpose::Load { .. })));
    }

    /// A marker is in the log here, or is not.
    pub(super) fn on_marker_written(
        &mut self,
        marker: Marker,
        origin: MarkerOrigin,
        result: Result<Appended, ProduceError>,
        out: &mut Vec<BrokerOutput>,
    ) {
        if let (Some(desk), Ok(appended)) = (&mut self.desk, &result) {
            desk.on_marker(marker.producer_id, appended.base_offset, marker.commit);
        }
        let is_written = match result {
            Ok(_) => true,
            // It was written before: the producer's next transaction is open here already.
            Err(ProduceError::Transaction(TransactionError::LateMarker { .. })) => true,
            Err(_) => false,
        };
        if is_written {
            out.push(BrokerOutput::Coordinate(Coordinate::Marked(origin)));
        }
    }

    /// A batch of a transaction is in the log, or is not.
    pub(super) fn on_desk_appended(
        &mut self,
        (of_desk, number): (u64, u64),
        result: Result<Appended, ProduceError>,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.at_desk.batch_count = self.at_desk.batch_count.saturating_sub(1);
        if of_desk != self.at_desk.desk_count {
            return;
        }
        let Some(desk) = &mut self.desk else { return };
        let mut outputs = Vec::new();
        let code = |error: ProduceError| {
            if is_final(&error) { ErrorCode::InvalidTxnState } else { ErrorCode::NotCoordinator }
        };
        let result = result.map(|appended| appended.base_offset).map_err(code);
        desk.on_appended(number, result, &mut outputs);
        self.tell(outputs, out);
    }

    fn carry_out_desk(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        outputs: Vec<DeskOutput>,
        out: &mut Vec<BrokerOutput>,
    ) {
        let mut told = Vec::new();
        for output in outputs {
            let of_desk = self.at_desk.desk_count;
            let (batches, of) = match output {
                DeskOutput::Append(batch, number) => (vec![*batch], ForDesk::Batch(number)),
                DeskOutput::Write(records) => {
                    (coordination::batches(0, records), ForDesk::Decisions)
                }
                DeskOutput::Read(from) => {
                    self.read_for_desk(now, from, out);
                    continue;
                }
                DeskOutput::Trim(start) => {
                    let is_done = self.trim(now, health, start, out);
                    self.at_desk.happenings.push_back(Happening::Trimmed(is_done));
                    continue;
                }
                other => {
                    told.push(other);
                    continue;
                }
            };
            let Some(partition) = self.replica.partition_mut() else { continue };
            self.at_desk.batch_count += usize::from(matches!(of, ForDesk::Batch(_)));
            let mut appended = Vec::new();
            partition.produce(now, health, batches, Waiter::Desk(of_desk, of), &mut appended);
            self.carry_out_partition(appended, out);
        }
        self.tell(told, out);
    }

    fn tell(&mut self, outputs: Vec<DeskOutput>, out: &mut Vec<BrokerOutput>) {
        for output in outputs {
            let what = match output {
                DeskOutput::Tell(asker, told) => Coordinate::Tell(asker, told),
                DeskOutput::Vouch(node, partition, generation, ticket, result) => {
                    Coordinate::Verified { node, partition, generation, ticket, result }
                }
                DeskOutput::Mark(partition, marker, number) => {
                    Coordinate::Mark { partition, marker, number }
                }
                DeskOutput::WantIds => {
                    self.fresh_id = None;
                    Coordinate::WantIds
                }
                DeskOutput::SnapshotBegun => {
                    out.push(BrokerOutput::Shown(Shown::Begun(Chore::Shortening)));
                    continue;
                }
                DeskOutput::SnapshotDone => {
                    out.push(BrokerOutput::Shown(Shown::Shortened));
                    continue;
                }
                DeskOutput::SnapshotRefused => {
                    out.push(BrokerOutput::Shown(Shown::Refused(Chore::Shortening)));
                    continue;
                }
                // Carried out with the partition at hand.
                DeskOutput::Append(..)
                | DeskOutput::Write(_)
                | DeskOutput::Read(_)
                | DeskOutput::Trim(_) => continue,
            };
            out.push(BrokerOutput::Coordinate(what));
        }
    }
}

/// The batches from the one on that holds `from`.
fn from_batch(mut bytes: Bytes, from: Offset) -> Bytes {
    while let Ok(header) = BatchHeader::parse(&bytes) {
        if header.last_offset() >= from.get() || header.size_bytes > bytes.len() {
            break;
        }
        let _before = bytes.split_to(header.size_bytes);
    }
    bytes
}
