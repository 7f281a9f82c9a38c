//! One partition as its leader runs it, without I/O: judges batches, gives them offsets, packs them
//! into blobs, and answers when they are committed.
//!
//! ```text
//! produce -> admit -> producers: new? duplicate? -> offsets -> open blob -> leader.put
//!               \-> transaction not known here: verify, hold     committed <- leader
//! answers wait, by offset, for the high watermark:  new and duplicate alike (rule 45)
//! ```
//!
//! A blob is put at once while few are in flight; under load batches gather in the open blob until
//! a commit makes room or the blob is full, so that one fsync serves many.

mod aborted;
mod checkpoint;
mod clean;
mod dedupe;
mod endings;
mod error;
mod judge;
mod limits;
mod mirrored;
pub mod source;
mod state;
mod strangers;
mod tail;
mod transactions;
mod verification;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::env::Instant;
use meridian_base::position::{LeaderEpoch, Offset, Step};
use meridian_base::topology::{GroupConfig, Slot};
use meridian_protocol::records::{BatchHeader, EndTxnMarker};
use meridian_storage::blob::{BlobHeader, BlobKind, Payload};
use meridian_storage::leader::{Draft, Leader, LeaderConfig, LeaderOutput, LossCause, PutError};
use meridian_storage::manifest::Manifest;
use meridian_storage::message::{Beacon, CommitMark, Put, PutReply};
use meridian_storage::mutation::{Mutation, Mutations};
use meridian_storage::placement::SlotHealth;
use meridian_storage::takeover::TakeoverPlan;

pub use self::aborted::{AbortedTransaction, AbortedTransactions};
pub use self::clean::{CleanRange, ManifestError};
use self::endings::Endings;
pub use self::error::{ProduceError, TransactionError};
use self::judge::Judgement;
pub use self::limits::PartitionLimits;
pub use self::mirrored::{MirrorError, batch_id};
use self::source::SourcedBatch;
pub use self::state::{LogTimes, PartitionState, ReplayError, Retention, RunTime, batches_in};
use self::strangers::Strangers;
pub use self::tail::{BatchSlice, RecordBlob, TailCache, Taken, take_batches};
use self::transactions::StableOffset;
pub use self::transactions::{Marker, Ongoing, TransactionVersion, Transactions};
use self::verification::{HeldRequest, Verifications};
pub use self::verification::{InTransaction, Ticket, Verification, VerifyError};
use crate::producer::{Producers, Sequenced};

/// Bytes of a record batch before its leader epoch ends: base offset, length, epoch.
const BATCH_HEAD_SIZE_BYTES: usize = 16;

/// One record batch of a producer, checked and ready to append. Its bytes are never copied.
#[derive(Clone, Debug)]
pub struct RecordBatch {
    /// The whole batch, header included.
    pub bytes: Bytes,
    /// Number of offsets it takes.
    pub record_count: u32,
    /// Largest record timestamp, or when it came if its records have none.
    pub max_timestamp_ms: i64,
    /// Its producer, if it is idempotent.
    pub sequenced: Option<Sequenced>,
    /// The transaction it belongs to, if any. What a group coordinator writes in one has no
    /// sequence.
    pub transaction: Option<InTransaction>,
    /// The sources of its records, if duplicates are to be dropped.
    pub sourced: Option<SourcedBatch>,
}

impl RecordBatch {
    fn producer_id(&self) -> Option<i64> {
        let transactional = self.transaction.as_ref().map(|transaction| transaction.producer_id);
        transactional.or(self.sequenced.as_ref().map(|sequenced| sequenced.producer_id))
    }
}

/// Where a produce request's batches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record; unknown for an old duplicate of a source.
    pub base_offset: Offset,
    /// First offset that can be read.
    pub log_start_offset: Offset,
}

/// What the embedder is to do. `T` names whoever waits for an answer.
#[derive(Debug)]
pub enum PartitionOutput<T> {
    /// Send a put to a slot.
    Put {
        /// Where to.
        slot: Slot,
        /// What.
        put: Put,
    },
    /// Answer a produce request.
    Answer {
        /// Whose.
        waiter: T,
        /// What became of it.
        result: Result<Appended, ProduceError>,
    },
    /// Ask the coordinator, and give its answer to [`Partition::on_verified`].
    Verify {
        /// Goes with the answer.
        ticket: Ticket,
        /// What to ask.
        verification: Verification,
    },
    /// More can be read.
    Progress(CommitMark),
    /// Tell the slots.
    Beacon(Beacon),
    /// This leader is done; everything it holds is void.
    Lost(LossCause),
}

#[derive(Debug)]
struct OpenBlob {
    base_offset: Offset,
    record_count: u32,
    max_timestamp_ms: i64,
    size_bytes: usize,
    parts: Vec<Bytes>,
    batches: Vec<BatchSlice>,
}

#[derive(Debug)]
enum InFlight {
    Records { step: Step, blob: RecordBlob },
    Trim { step: Step, log_start_offset: Offset },
    Manifest { step: Step, manifest: Arc<Manifest> },
}

impl InFlight {
    fn step(&self) -> Step {
        match self {
            Self::Records { step, .. } | Self::Trim { step, .. } | Self::Manifest { step, .. } => {
                *step
            }
        }
    }
}

/// Offset that the high watermark must reach, and a number that keeps equal ones apart.
type WaitKey = (Offset, u64);

/// One partition as its leader runs it.
#[derive(Debug)]
pub struct Partition<T> {
    leader: Leader,
    leader_epoch: LeaderEpoch,
    limits: PartitionLimits,
    mutations: Mutations,
    state: PartitionState,
    strangers: Strangers,
    /// The newest manifest that is committed.
    manifest: Option<Arc<Manifest>>,
    /// Whether `state` is complete: checkpoint, replay and tail have been applied.
    recovered: bool,
    tail_to_apply: Vec<(BlobHeader, Payload)>,
    /// Full ones, to be put before the open one.
    sealed: Vec<OpenBlob>,
    open: OpenBlob,
    in_flight: VecDeque<InFlight>,
    in_flight_size_bytes: usize,
    waiting: BTreeMap<WaitKey, (T, Offset)>,
    waiting_count: u64,
    verifications: Verifications<T>,
    endings: Endings,
    stable: StableOffset,
    tail: TailCache,
    bytes_since_checkpoint: u64,
    /// The size of a checkpoint that no blob holds, since there is one.
    oversize_checkpoint_bytes: Option<usize>,
    leader_out: Vec<LeaderOutput>,
}

impl<T> Partition<T> {
    /// Starts to lead with what the takeover decided. The partition serves once the leader's
    /// `Start` is committed and [`Partition::recover`] was given the state behind it.
    pub fn start(
        config: LeaderConfig,
        leader_epoch: LeaderEpoch,
        limits: PartitionLimits,
        plan: TakeoverPlan,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Self {
        let mutations = config.mutations;
        let tail_to_apply = plan.tail.clone();
        let mut leader_out = Vec::new();
        let leader = Leader::start(config, plan, now, health, &mut leader_out);
        let next_offset = leader.next_offset();
        let mut partition = Self {
            leader,
            leader_epoch,
            limits,
            mutations,
            state: PartitionState::default(),
            strangers: Strangers::default(),
            manifest: None,
            recovered: false,
            tail_to_apply,
            sealed: Vec::new(),
            open: OpenBlob::at(next_offset),
            in_flight: VecDeque::new(),
            in_flight_size_bytes: 0,
            waiting: BTreeMap::new(),
            waiting_count: 0,
            verifications: Verifications::default(),
            endings: Endings::default(),
            stable: StableOffset::default(),
            tail: TailCache::new(limits.tail_size_bytes_max),
            bytes_since_checkpoint: 0,
            oversize_checkpoint_bytes: None,
            leader_out,
        };
        partition.drain_leader(now, health, out);
        partition
    }

    /// Gives the state as of the cut: checkpoint plus replay (rule T9). The copied tail is applied
    /// on top of it here.
    pub fn recover(
        &mut self,
        mut state: PartitionState,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Result<(), ReplayError> {
        for (header, payload) in std::mem::take(&mut self.tail_to_apply) {
            state.apply_blob(&header, payload.to_contiguous())?;
        }
        if Mutation::ProducersForgotten.active(self.mutations) {
            state.producers = Producers::default();
        }
        if Mutation::TransactionsForgotten.active(self.mutations) {
            state.transactions = Transactions::default();
        }
        if Mutation::AbortedForgotten.active(self.mutations) {
            state.transactions.forget_aborted();
        }
        if self.limits.arrives_in_order {
            self.strangers = Strangers::of(self.leader.generation(), &state);
        }
        // A slot may not have heard of the last `Trim`; the log itself has.
        self.leader.set_log_start(state.log_start_offset);
        if Mutation::SourcesForgotten.active(self.mutations) {
            state.sources = state.sources.map(|_| source::Sources::default());
        }
        // The tail is committed before anything is served.
        self.manifest.clone_from(&state.manifest);
        if let Some(manifest) = &self.manifest {
            self.leader.adopt_manifest(manifest);
        }
        self.state = state;
        self.recovered = true;
        if self.is_serving() {
            out.extend(self.leader.mark().map(PartitionOutput::Progress));
        }
        Ok(())
    }

    /// Appends batches; `waiter` is answered when they are committed, or at once if refused. What
    /// must be verified first is held, and whatever its producer sends after it.
    pub fn produce(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        batches: Vec<RecordBatch>,
        waiter: T,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        let producer_id = batches.iter().find_map(RecordBatch::producer_id);
        let waiting = producer_id.filter(|id| self.verifications.is_waiting(*id));
        let request = HeldRequest { batches, waiter };
        match waiting {
            Some(producer_id) => self.hold(producer_id, request, out),
            None => self.judge_and_append(now, health, request, None, out),
        }
    }

    /// Takes a coordinator's answer: appends or refuses what waited for it.
    pub fn on_verified(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        ticket: Ticket,
        result: Result<(), VerifyError>,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        let Some(ended) = self.verifications.end(ticket) else { return };
        for request in ended.requests {
            let transaction = request.batches.iter().find_map(|batch| batch.transaction.as_ref());
            let verified = transaction.filter(|of| of.producer_epoch == ended.producer_epoch);
            let producer_id = verified.map(|of| of.producer_id);
            let refusal = match (producer_id, result) {
                (None, _) => {
                    self.produce(now, health, request.batches, request.waiter, out);
                    continue;
                }
                (Some(producer_id), Ok(())) if ended.is_void => {
                    TransactionError::NotOngoing { producer_id }
                }
                (Some(_), Ok(())) => {
                    let epoch = Some(ended.producer_epoch);
                    self.judge_and_append(now, health, request, epoch, out);
                    continue;
                }
                (Some(_), Err(error)) => error.into(),
            };
            self.note_refused(&request.batches);
            let result = Err(refusal.into());
            out.push(PartitionOutput::Answer { waiter: request.waiter, result });
        }
    }

    /// Ends a producer's transaction here; `waiter` is answered when the marker is committed. Like
    /// Kafka, writes a marker that is repeated once more: it ends nothing then.
    pub fn write_marker(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        marker: &Marker,
        timestamp_ms: i64,
        waiter: T,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        if let Err(error) = self.admit_marker(health, marker) {
            out.push(PartitionOutput::Answer { waiter, result: Err(error) });
            return;
        }
        if let Some(base_offset) = self.endings.committed_at(marker, self.high_watermark()) {
            // Whoever asked before may be gone without having done what follows from it.
            let log_start_offset = self.leader.log_start_offset();
            let result = Ok(Appended { base_offset, log_start_offset });
            out.push(PartitionOutput::Answer { waiter, result });
            return;
        }
        let offset = self.append_marker(marker, timestamp_ms);
        self.wait_for(waiter, offset, offset.advance(1));
        self.flush(now, health, false, out);
        self.answer_committed(out);
    }

    /// Adds a marker to the open blob; returns its offset.
    fn append_marker(&mut self, marker: &Marker, timestamp_ms: i64) -> Offset {
        let Marker { producer_id, producer_epoch, coordinator_epoch, commit, .. } = *marker;
        let control = EndTxnMarker { committed: commit, coordinator_epoch };
        let bytes = control.to_batch(producer_id, producer_epoch, timestamp_ms);
        let offset = self.push(bytes, 1, timestamp_ms);
        let ended = self.state.apply_marker(offset, marker, timestamp_ms);
        self.endings.on_appended(marker, offset);
        self.verifications.on_marker(marker);
        ended.into_iter().for_each(|ended| self.stable.on_ended(ended));
        offset
    }

    /// Moves the log start to `before` (Kafka's DeleteRecords, and retention): a checkpoint first,
    /// so that replay never needs what is freed, then a `Trim`.
    pub fn trim(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        before: Offset,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Result<(), ProduceError> {
        self.admit(health)?;
        if before > self.high_watermark() {
            return Err(ProduceError::OutOfRange(before));
        }
        if before <= self.leader.log_start_offset() {
            return Ok(());
        }
        self.flush(now, health, true, out);
        self.checkpoint(now, health)?;
        self.state.trim(before);
        self.put_trim(now, health, before)?;
        self.drain_leader(now, health, out);
        Ok(())
    }

    fn put_trim(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        log_start_offset: Offset,
    ) -> Result<(), ProduceError> {
        let draft = Draft {
            kind: BlobKind::Trim,
            base_offset: log_start_offset,
            record_count: 0,
            max_timestamp_ms: -1,
            payload: Payload::default(),
        };
        let step = self.leader.put(now, health, draft, &mut self.leader_out)?;
        self.in_flight.push_back(InFlight::Trim { step, log_start_offset });
        Ok(())
    }

    /// Takes a slot's answer; returns how long the slot took.
    pub fn on_reply(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        slot: Slot,
        reply: PutReply,
        out: &mut Vec<PartitionOutput<T>>,
    ) -> Option<Duration> {
        let took = self.leader.on_reply(now, health, slot, reply, &mut self.leader_out);
        self.drain_leader(now, health, out);
        took
    }

    /// Takes a newer group configuration.
    pub fn on_config(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        config: GroupConfig,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        self.leader.on_config(now, health, config, &mut self.leader_out);
        self.drain_leader(now, health, out);
    }

    /// Hedges, resends and flushes. Call every few milliseconds while [`Partition::has_work`].
    pub fn tick(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<PartitionOutput<T>>) {
        self.leader.tick(now, health, &mut self.leader_out);
        self.drain_leader(now, health, out);
        if self.is_serving() {
            self.flush(now, health, true, out);
        }
    }

    /// Stops for good, as when the metadata names another leader: whoever waits is told that the
    /// outcome is in doubt (rule L3).
    pub fn stop(&mut self, out: &mut Vec<PartitionOutput<T>>) {
        for (_, (waiter, _)) in std::mem::take(&mut self.waiting) {
            out.push(PartitionOutput::Answer { waiter, result: Err(ProduceError::InDoubt) });
        }
        out.extend(self.verifications.end_all().map(|request| PartitionOutput::Answer {
            waiter: request.waiter,
            result: Err(PutError::Lost.into()),
        }));
        self.stable.clear();
        self.recovered = false;
        self.tail.clear();
        self.in_flight.clear();
        self.in_flight_size_bytes = 0;
        self.sealed.clear();
        self.open = OpenBlob::at(self.open.base_offset);
    }

    /// Whether [`Partition::tick`] has anything to do.
    pub fn has_work(&self) -> bool {
        self.leader.has_work() || !self.open.parts.is_empty() || !self.sealed.is_empty()
    }

    /// Whether clients may be served.
    pub fn is_serving(&self) -> bool {
        self.recovered && self.leader.is_serving()
    }

    /// Offset after the last committed record; 0 before the partition is served.
    pub fn high_watermark(&self) -> Offset {
        self.leader.mark().map_or(Offset::ZERO, |mark| mark.high_watermark)
    }

    /// Offset below which every transaction is decided; 0 before the partition is served.
    pub fn last_stable_offset(&self) -> Offset {
        let (start, end) = (self.leader.log_start_offset(), self.high_watermark());
        if Mutation::StableOffsetIgnored.active(self.mutations) {
            return end;
        }
        self.stable.get(&self.state.transactions, start, end)
    }

    /// The epoch clients see.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    /// The writer.
    pub fn leader(&self) -> &Leader {
        &self.leader
    }

    /// The writer, to change its settings.
    pub fn leader_mut(&mut self) -> &mut Leader {
        &mut self.leader
    }

    /// What the log's batches amount to.
    pub fn state(&self) -> &PartitionState {
        &self.state
    }

    /// The newest committed records.
    pub fn tail(&self) -> &TailCache {
        &self.tail
    }

    /// Keeps fewer of them; returns whether any are left.
    pub fn shrink_tail(&mut self) -> bool {
        self.tail.shrink();
        self.tail.size_bytes() > 0
    }

    /// Bytes that were appended and are not committed yet.
    pub fn pending_size_bytes(&self) -> usize {
        self.in_flight_size_bytes + self.open.size_bytes
    }

    /// `verified` is the producer epoch that the coordinator has just vouched for.
    fn judge_and_append(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        request: HeldRequest<T>,
        verified: Option<i16>,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        let judged = match self.judge(health, &request.batches, verified) {
            Ok(Judgement::Append) => self.append_new(request.batches),
            Ok(Judgement::Duplicate { base_offset, end_offset }) => Ok((base_offset, end_offset)),
            Ok(Judgement::Verify(transaction)) => return self.verify(transaction, request, out),
            Err(error) => {
                self.note_refused(&request.batches);
                Err(error)
            }
        };
        let (base_offset, end_offset) = match judged {
            Ok(offsets) => offsets,
            Err(error) => {
                let waiter = request.waiter;
                out.push(PartitionOutput::Answer { waiter, result: Err(error) });
                return;
            }
        };
        self.wait_for(request.waiter, base_offset, end_offset);
        self.flush(now, health, false, out);
        self.answer_committed(out);
    }

    /// Has a request's transaction verified, and holds the request until then.
    fn verify(
        &mut self,
        transaction: InTransaction,
        request: HeldRequest<T>,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        let InTransaction { producer_id, producer_epoch, .. } = transaction;
        if let Some(ticket) = self.verifications.begin(producer_id, producer_epoch) {
            let partition = self.leader.partition();
            let verification = Verification { transaction, partition };
            out.push(PartitionOutput::Verify { ticket, verification });
        }
        self.hold(producer_id, request, out);
    }

    fn hold(
        &mut self,
        producer_id: i64,
        request: HeldRequest<T>,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        if let Err(HeldRequest { waiter, batches }) = self.verifications.hold(producer_id, request)
        {
            self.note_refused(&batches);
            out.push(PartitionOutput::Answer { waiter, result: Err(PutError::Busy.into()) });
        }
    }

    fn append(&mut self, batch: RecordBatch) {
        let RecordBatch { bytes, record_count, max_timestamp_ms, sequenced, .. } = batch;
        let RecordBatch { transaction, sourced, .. } = batch;
        self.note_sources(sourced.as_ref(), &bytes);
        let base_offset = self.push(bytes, record_count, max_timestamp_ms);
        let transaction = transaction.map(|of| (of.producer_id, of.producer_epoch));
        self.state.apply_batch(base_offset, max_timestamp_ms, sequenced.as_ref(), transaction);
    }

    /// Adds a batch to the open blob; returns the offset of its first record.
    fn push(&mut self, bytes: Bytes, record_count: u32, max_timestamp_ms: i64) -> Offset {
        self.seal_before(bytes.len());
        let base_offset = self.open.next_offset();
        let end = base_offset.advance(record_count);
        let stated_ms = BatchHeader::parse(&bytes).map_or(-1, |header| header.max_timestamp_ms);
        self.state.note(base_offset, bytes.len() as u64, stated_ms, max_timestamp_ms);
        self.bytes_since_checkpoint += bytes.len() as u64;
        // Base offset and leader epoch lie outside the batch's CRC: only they are written anew.
        let mut head = BytesMut::with_capacity(BATCH_HEAD_SIZE_BYTES);
        head.put_i64(base_offset.get());
        head.put_slice(&bytes[8..12]);
        head.put_i32(self.leader_epoch.get());
        let head = head.freeze();
        let body = bytes.slice(BATCH_HEAD_SIZE_BYTES..);
        self.open.size_bytes += bytes.len();
        self.open.record_count += record_count;
        self.open.max_timestamp_ms = self.open.max_timestamp_ms.max(max_timestamp_ms);
        self.open.parts.push(head.clone());
        self.open.parts.push(body.clone());
        let last_offset = Offset::new(end.get() - 1);
        self.open.batches.push(BatchSlice {
            base_offset,
            last_offset,
            max_timestamp_ms,
            head,
            body,
        });
        base_offset
    }

    fn wait_for(&mut self, waiter: T, base_offset: Offset, end_offset: Offset) {
        self.waiting_count += 1;
        let needed = if Mutation::DuplicateAckedInFlight.active(self.mutations)
            && end_offset <= self.open.base_offset
        {
            self.high_watermark()
        } else {
            end_offset
        };
        self.waiting.insert((needed, self.waiting_count), (waiter, base_offset));
    }

    /// Begins another blob if the open one has no room for a batch of this size (rule Z2).
    fn seal_before(&mut self, size_bytes: usize) {
        let is_over = self.open.size_bytes + size_bytes > self.leader.blob_size_bytes_max();
        let is_broken = Mutation::BatchesUnsplit.active(self.mutations);
        if is_over && !self.open.parts.is_empty() && !is_broken {
            let next = OpenBlob::at(self.open.next_offset());
            self.sealed.push(std::mem::replace(&mut self.open, next));
        }
    }

    /// Puts what is sealed, and the open blob if it is time to.
    fn flush(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        at_once: bool,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        let mut ready = std::mem::take(&mut self.sealed);
        let eager = self.in_flight.len() < self.limits.eager_blob_count
            && self.in_flight_size_bytes < self.limits.eager_size_bytes;
        let full = self.open.size_bytes >= self.limits.blob_size_bytes;
        if !self.open.parts.is_empty() && (at_once || eager || full) {
            let next = OpenBlob::at(self.open.next_offset());
            ready.push(std::mem::replace(&mut self.open, next));
        }
        if ready.is_empty() {
            return;
        }
        ready.into_iter().for_each(|blob| self.put_records(now, health, blob));
        // The state is that of the steps put only while no batch waits for a blob to be put.
        let is_as_put = self.open.parts.is_empty();
        if is_as_put && self.bytes_since_checkpoint >= self.limits.checkpoint_every_bytes {
            let _told_and_tried_again_later = self.checkpoint(now, health);
        }
        self.drain_leader(now, health, out);
    }

    fn put_records(&mut self, now: Instant, health: &SlotHealth, open: OpenBlob) {
        let draft = Draft {
            kind: BlobKind::Records,
            base_offset: open.base_offset,
            record_count: open.record_count,
            max_timestamp_ms: open.max_timestamp_ms,
            payload: Payload::from_parts(open.parts),
        };
        // A leader that was lost meanwhile has told so already; its waiters are answered by `stop`. That it is too large
        // was ruled out when it was judged, and when it was sealed.
        if let Ok(step) = self.leader.put(now, health, draft, &mut self.leader_out) {
            let blob = RecordBlob::new(open.base_offset, open.batches);
            self.in_flight_size_bytes += blob.size_bytes();
            self.in_flight.push_back(InFlight::Records { step, blob });
        }
    }

    fn drain_leader(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        let mut room = false;
        for output in std::mem::take(&mut self.leader_out) {
            match output {
                LeaderOutput::Put { slot, put } => out.push(PartitionOutput::Put { slot, put }),
                LeaderOutput::Beacon(beacon) => out.push(PartitionOutput::Beacon(beacon)),
                LeaderOutput::Serving { mark } | LeaderOutput::Committed { mark } => {
                    self.on_committed(mark);
                    room = true;
                    if self.recovered {
                        out.push(PartitionOutput::Progress(mark));
                    }
                }
                LeaderOutput::Lost(cause) => {
                    self.stop(out);
                    out.push(PartitionOutput::Lost(cause));
                }
            }
        }
        if room {
            self.answer_committed(out);
            self.flush(now, health, false, out);
        }
    }

    fn on_committed(&mut self, mark: CommitMark) {
        while let Some(front) = self.in_flight.front() {
            if front.step() > mark.point.step {
                break;
            }
            match self.in_flight.pop_front() {
                Some(InFlight::Records { blob, .. }) => {
                    self.in_flight_size_bytes -= blob.size_bytes();
                    self.tail.push(blob);
                }
                Some(InFlight::Trim { log_start_offset, .. }) => {
                    self.leader.set_log_start(log_start_offset);
                }
                Some(InFlight::Manifest { manifest, .. }) => self.manifest = Some(manifest),
                None => break,
            }
        }
        self.stable.on_committed(mark.high_watermark);
    }

    fn answer_committed(&mut self, out: &mut Vec<PartitionOutput<T>>) {
        let beyond = (Offset::new(self.high_watermark().get() + 1), 0);
        let later = self.waiting.split_off(&beyond);
        let log_start_offset = self.leader.log_start_offset();
        for (_, (waiter, base_offset)) in std::mem::replace(&mut self.waiting, later) {
            let result = Ok(Appended { base_offset, log_start_offset });
            out.push(PartitionOutput::Answer { waiter, result });
        }
    }
}

impl OpenBlob {
    fn at(base_offset: Offset) -> Self {
        Self {
            base_offset,
            record_count: 0,
            max_timestamp_ms: -1,
            size_bytes: 0,
            parts: Vec::new(),
            batches: Vec::new(),
        }
    }

    fn next_offset(&self) -> Offset {
        self.base_offset.advance(self.record_count)
    }
}

#[cfg(test)]
mod tests;
