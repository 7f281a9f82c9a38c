//! A broker of an internal partition: reads the log for its desk, and writes what that has decided.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, Offset};
use meridian_broker::coordination::group_state::Snapshot;
use meridian_broker::coordination::journal::Entry;
use meridian_broker::coordination::{self, shortening};
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

/// Bytes of what holds that are written once more at once.
const PIECE_SIZE_BYTES: usize = 400;
/// How long they are offered to a log that has no room for them.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// How far all that holds of groups is written once more.
#[derive(Debug, Default)]
pub(super) struct Shortening {
    /// What is not in the log yet, while it is written.
    pieces: Option<VecDeque<Vec<Entry>>>,
    /// Where the log may start then.
    start: Offset,
    /// What is on its way of the first piece.
    writing: Option<Vec<Entry>>,
    /// A log without room is offered the next piece until then.
    busy_until: Instant,
    answer: Option<Result<Appended, ProduceError>>,
}

impl Shortening {
    /// The next piece is in the log, or is not.
    pub(super) fn on_answer(&mut self, result: Result<Appended, ProduceError>) {
        self.answer = Some(result);
    }
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
        self.at_desk(now, health, out, |desk, time, outputs| desk.ask(time, asker, ask, outputs));
    }

    /// Has the desk act, if this broker serves, and carries out what follows.
    fn at_desk(
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
        self.at_desk(now, health, out, act);
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
        self.desk.as_ref().is_none_or(|desk| desk.is_loaded && desk.is_idle())
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
        self.load_desk(now, out);
        let time = self.desk_time(now);
        self.move_log_start(now, health, out);
        let Some(desk) = &mut self.desk else { return };
        let mut outputs = Vec::new();
        if desk.wants_ids() && self.fresh_id.is_none() {
            outputs.push(DeskOutput::WantIds);
        }
        desk.tick(time, &mut outputs);
        self.carry_out_desk(now, health, outputs, out);
        self.write_desk(now, health, out);
        self.compact_desk(now, health, out);
    }

    fn load_desk(&mut self, now: Instant, out: &mut Vec<BrokerOutput>) {
        loop {
            let time = self.desk_time(now);
            let (Some(desk), Some(partition)) = (&mut self.desk, self.replica.partition()) else {
                return;
            };
            if desk.is_loaded || desk.is_reading {
                return;
            }
            let Some(mark) = partition.leader().mark() else { return };
            desk.read_to = desk.read_to.max(partition.leader().log_start_offset());
            let from = desk.read_to;
            if from >= mark.high_watermark {
                return desk.on_loaded(time);
            }
            if let Some(pieces) = partition.tail().read(from, FETCH_SIZE_BYTES_MAX as usize) {
                self.replay_desk(pieces.concat().into(), out);
                continue;
            }
            desk.is_reading = true;
            let Some(request) = self.records_request(from, mark) else {
                return self.broken(format!("no generation holds offset {from}"), out);
            };
            return self.ask(now, Purpose::Load { from }, request, out);
        }
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
        match &mut self.desk {
            Some(desk) if desk.is_reading && desk.read_to == from => desk.is_reading = false,
            _ => return,
        }
        let records = answers(request, blobs).map(|blob| blob.payload.to_contiguous());
        self.replay_desk(records.collect::<Vec<Bytes>>().concat().into(), out);
        self.tend_desk(now, health, out);
    }

    fn replay_desk(&mut self, bytes: Bytes, out: &mut Vec<BrokerOutput>) {
        let Some(desk) = &mut self.desk else { return };
        let bytes = from_batch(bytes, desk.read_to);
        let piece = Piece { from: desk.read_to, bytes: bytes.clone() };
        desk.replay(bytes);
        out.push(BrokerOutput::Shown(Shown::Log(piece)));
    }

    fn write_desk(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        loop {
            let (Some(desk), Some(partition)) = (&mut self.desk, self.replica.partition_mut())
            else {
                return;
            };
            // Nothing else is written while all that holds is.
            if desk.is_writing || self.shortening.pieces.is_some() {
                return;
            }
            let mut outputs = Vec::new();
            let records = match self.unwritten.take() {
                Some(records) => Some(records),
                None => desk.take(&mut outputs),
            };
            let Some(records) = records else { return };
            desk.is_writing = true;
            if records.is_empty() {
                desk.on_written(partition.high_watermark(), &mut outputs);
                self.carry_out_desk(now, health, outputs, out);
                continue;
            }
            self.unwritten = Some(records.clone());
            let batches = coordination::batches(0, records);
            let waiter = Waiter::Desk(self.desk_count, ForDesk::Decisions);
            let mut appended = Vec::new();
            partition.produce(now, health, batches, waiter, &mut appended);
            self.carry_out_desk(now, health, outputs, out);
            return self.carry_out_partition(appended, out);
        }
    }

    /// What the desk has decided is in the log, or is not.
    pub(super) fn on_desk_written(
        &mut self,
        result: Result<Appended, ProduceError>,
        out: &mut Vec<BrokerOutput>,
    ) {
        let Some(desk) = &mut self.desk else { return };
        match result {
            Ok(appended) => {
                self.unwritten = None;
                let mut outputs = Vec::new();
                desk.on_written(appended.base_offset, &mut outputs);
                self.tell(outputs, out);
            }
            // Nothing was written: tried again.
            Err(ProduceError::Put(PutError::Busy)) => desk.is_writing = false,
            Err(_) => self.clear_desk(),
        }
    }

    /// Gives the desk up: all of it is read anew.
    pub(super) fn clear_desk(&mut self) {
        self.unwritten = None;
        self.shortening = Shortening::default();
        self.desk = self.desk.as_ref().map(Desk::anew);
        self.desk_count += 1;
        self.reads.retain(|_, task| !matches!(task.purpose(), Some(Purpose::Load { .. })));
    }

    /// Shortens the log if it is worth it, in the way of `kafka/offset_compaction.rs`.
    fn compact_desk(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        self.take_shortening_answer(now, out);
        let rests = self.rests(now, Chore::Shortening);
        let (Some(desk), Some(partition)) = (&mut self.desk, self.replica.partition_mut()) else {
            return;
        };
        if self.shortening.pieces.is_none() {
            let log_start = partition.leader().log_start_offset();
            if rests {
                return;
            }
            let snapshot = desk.begin_compaction(log_start, partition.high_watermark());
            let Some(Snapshot { records, start }) = snapshot else { return };
            out.push(BrokerOutput::Shown(Shown::Begun(Chore::Shortening)));
            let pieces = shortening::pieces(records, PIECE_SIZE_BYTES).into();
            let busy_until = now + BUSY_FOR;
            self.shortening =
                Shortening { pieces: Some(pieces), start, busy_until, ..Shortening::default() };
        }
        let Shortening { pieces: Some(pieces), writing: None, start, .. } = &mut self.shortening
        else {
            return;
        };
        let records = loop {
            let Some(piece) = pieces.front() else {
                let start = desk.start_of(*start);
                if start <= partition.leader().log_start_offset() {
                    return self.give_up_shortening(now, out);
                }
                self.trim_to = Some(start);
                self.shortening = Shortening::default();
                return;
            };
            let records = desk.still_holding(piece);
            if !records.is_empty() {
                break records;
            }
            pieces.pop_front();
        };
        let batches = coordination::batches(0, records.clone());
        self.shortening.writing = Some(records);
        let waiter = Waiter::Desk(self.desk_count, ForDesk::Snapshot);
        let mut appended = Vec::new();
        partition.produce(now, health, batches, waiter, &mut appended);
        self.carry_out_partition(appended, out);
    }

    /// A piece is in the log once more, or is not.
    fn take_shortening_answer(&mut self, now: Instant, out: &mut Vec<BrokerOutput>) {
        let Some(answer) = self.shortening.answer.take() else { return };
        let records = self.shortening.writing.take().unwrap_or_default();
        match answer {
            Ok(appended) => {
                if let Some(desk) = &mut self.desk {
                    desk.on_piece_written(appended.base_offset, &records);
                }
                self.shortening.busy_until = now + BUSY_FOR;
                if let Some(pieces) = &mut self.shortening.pieces {
                    pieces.pop_front();
                }
            }
            // Nothing was written.
            Err(ProduceError::Put(PutError::Busy)) if now < self.shortening.busy_until => {}
            Err(_) => self.give_up_shortening(now, out),
        }
    }

    fn give_up_shortening(&mut self, now: Instant, out: &mut Vec<BrokerOutput>) {
        self.shortening = Shortening::default();
        self.desk.iter_mut().for_each(Desk::end_compaction);
        self.chore_is_refused(now, Chore::Shortening, out);
    }

    /// All that holds is in the log once more: it starts there.
    fn move_log_start(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        let Some(before) = self.trim_to.take() else { return };
        if self.trim(now, health, before, out) {
            self.desk.iter_mut().for_each(Desk::end_compaction);
            self.chore_is_done(Chore::Shortening);
            out.push(BrokerOutput::Shown(Shown::Shortened));
        } else {
            self.give_up_shortening(now, out);
        }
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
        number: u64,
        result: Result<Appended, ProduceError>,
        out: &mut Vec<BrokerOutput>,
    ) {
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
            let DeskOutput::Append(batch, number) = output else {
                told.push(output);
                continue;
            };
            let waiter = Waiter::Desk(self.desk_count, ForDesk::Batch(number));
            let Some(partition) = self.replica.partition_mut() else { continue };
            let mut appended = Vec::new();
            partition.produce(now, health, vec![*batch], waiter, &mut appended);
            self.carry_out_partition(appended, out);
        }
        self.tell(told, out);
    }

    fn tell(&mut self, outputs: Vec<DeskOutput>, out: &mut Vec<BrokerOutput>) {
        for output in outputs {
            out.push(BrokerOutput::Coordinate(match output {
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
                // Only questions lead to it, and those are carried out with the partition at hand.
                DeskOutput::Append(..) => continue,
            }));
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
