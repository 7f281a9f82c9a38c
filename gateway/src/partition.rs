//! One partition as its leader runs it, without I/O: judges batches, gives them offsets, packs them
//! into blobs, and answers when they are committed.
//!
//! ```text
//! produce -> admit -> producers: new? duplicate? -> offsets -> open blob -> leader.put
//!                                                          committed <- leader
//! answers wait, by offset, for the high watermark:  new and duplicate alike (rule 45)
//! ```
//!
//! A blob is put at once while few are in flight; under load batches gather in the open blob until
//! a commit makes room or the blob is full, so that one fsync serves many.

mod state;
mod tail;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::env::Instant;
use meridian_base::position::{LeaderEpoch, Offset, Step};
use meridian_base::topology::{GroupConfig, Slot};
use meridian_storage::blob::{BlobHeader, BlobKind, Payload};
use meridian_storage::leader::{Draft, Leader, LeaderConfig, LeaderOutput, LossCause, PutError};
use meridian_storage::message::{Beacon, CommitMark, Put, PutReply};
use meridian_storage::mutation::{Mutation, Mutations};
use meridian_storage::placement::SlotHealth;
use meridian_storage::takeover::TakeoverPlan;

pub use self::state::{PartitionState, ReplayError, Retention, batches_in};
pub use self::tail::{BatchSlice, RecordBlob, TailCache, take_batches};
use crate::producer::{SequenceError, Sequenced, Verdict};

/// Bytes of a record batch before its leader epoch ends: base offset, length, epoch.
const BATCH_HEAD_SIZE_BYTES: usize = 16;

/// Bounds of one partition.
#[derive(Clone, Copy, Debug)]
pub struct PartitionLimits {
    /// A blob is put when it has reached this size.
    pub blob_size_bytes: usize,
    /// While fewer blobs are in flight, and they are small, a blob is put without waiting.
    pub eager_blob_count: usize,
    /// Bytes in flight above which batches gather until a commit: large blobs cost less per byte.
    pub eager_size_bytes: usize,
    /// Bytes of the newest records kept in memory for readers at the end of the log.
    pub tail_size_bytes_max: usize,
    /// Bytes after which a checkpoint bounds the replay of the next takeover.
    pub checkpoint_every_bytes: u64,
}

impl Default for PartitionLimits {
    fn default() -> Self {
        Self {
            blob_size_bytes: 512 << 10,
            eager_blob_count: 4,
            eager_size_bytes: 16 << 10,
            tail_size_bytes_max: 4 << 20,
            checkpoint_every_bytes: 16 << 20,
        }
    }
}

/// One record batch of a producer, checked and ready to append. Its bytes are never copied.
#[derive(Clone, Debug)]
pub struct RecordBatch {
    /// The whole batch, header included.
    pub bytes: Bytes,
    /// Number of offsets it takes.
    pub record_count: u32,
    /// Largest record timestamp.
    pub max_timestamp_ms: i64,
    /// Its producer, if it is idempotent.
    pub sequenced: Option<Sequenced>,
}

/// Where a produce request's batches are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// First offset that can be read.
    pub log_start_offset: Offset,
}

/// Why a produce request was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProduceError {
    /// Nothing was written.
    #[error(transparent)]
    Put(#[from] PutError),
    /// The producer's order does not allow it; nothing was written.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// Leadership was lost before the records were committed. They may be in the log or not: the
    /// same request to the next leader settles it.
    #[error("leadership moved before the records were committed; retry at the new leader")]
    InDoubt,
    /// An offset asked for is not in the log.
    #[error("offset {0} is not in the log")]
    OutOfRange(Offset),
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
    /// Whether `state` is complete: checkpoint, replay and tail have been applied.
    recovered: bool,
    tail_to_apply: Vec<(BlobHeader, Payload)>,
    open: OpenBlob,
    in_flight: VecDeque<InFlight>,
    in_flight_size_bytes: usize,
    waiting: BTreeMap<WaitKey, (T, Offset)>,
    waiting_count: u64,
    tail: TailCache,
    bytes_since_checkpoint: u64,
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
            recovered: false,
            tail_to_apply,
            open: OpenBlob::at(next_offset),
            in_flight: VecDeque::new(),
            in_flight_size_bytes: 0,
            waiting: BTreeMap::new(),
            waiting_count: 0,
            tail: TailCache::new(limits.tail_size_bytes_max),
            bytes_since_checkpoint: 0,
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
        // A slot may not have heard of the last `Trim`; the log itself has.
        self.leader.set_log_start(state.log_start_offset);
        self.state = state;
        self.recovered = true;
        if self.is_serving() {
            out.extend(self.leader.mark().map(PartitionOutput::Progress));
        }
        Ok(())
    }

    /// Appends batches; `waiter` is answered when they are committed, or at once if refused.
    pub fn produce(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        batches: Vec<RecordBatch>,
        waiter: T,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        match self.append(health, batches) {
            Ok((base_offset, end_offset)) => {
                self.wait_for(waiter, base_offset, end_offset);
                self.flush(now, health, false, out);
                self.answer_committed(out);
            }
            Err(error) => out.push(PartitionOutput::Answer { waiter, result: Err(error) }),
        }
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
        self.checkpoint(now, health);
        self.state.trim(before);
        let draft = Draft {
            kind: BlobKind::Trim,
            base_offset: before,
            record_count: 0,
            max_timestamp_ms: -1,
            payload: Payload::default(),
        };
        let step = self.leader.put(now, health, draft, &mut self.leader_out)?;
        self.in_flight.push_back(InFlight::Trim { step, log_start_offset: before });
        self.drain_leader(now, health, out);
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
        self.recovered = false;
        self.tail.clear();
        self.in_flight.clear();
        self.in_flight_size_bytes = 0;
        self.open = OpenBlob::at(self.open.base_offset);
    }

    /// Whether [`Partition::tick`] has anything to do.
    pub fn has_work(&self) -> bool {
        self.leader.has_work() || !self.open.parts.is_empty()
    }

    /// Whether clients may be served.
    pub fn is_serving(&self) -> bool {
        self.recovered && self.leader.is_serving()
    }

    /// Offset after the last committed record; 0 before the partition is served.
    pub fn high_watermark(&self) -> Offset {
        self.leader.mark().map_or(Offset::ZERO, |mark| mark.high_watermark)
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

    fn admit(&self, health: &SlotHealth) -> Result<(), ProduceError> {
        if !self.recovered {
            return Err(PutError::NotServing.into());
        }
        Ok(self.leader.admit(health)?)
    }

    /// Judges all batches, then appends them to the open blob. Returns the offset of the first
    /// and the offset after the last record.
    fn append(
        &mut self,
        health: &SlotHealth,
        batches: Vec<RecordBatch>,
    ) -> Result<(Offset, Offset), ProduceError> {
        self.admit(health)?;
        if let [batch] = batches.as_slice()
            && let Some(sequenced) = &batch.sequenced
            && let Verdict::Duplicate { base_offset } = self.state.producers.check(sequenced)?
        {
            return Ok((base_offset, base_offset.advance(batch.record_count)));
        }
        let mut judged = None;
        for batch in &batches {
            let Some(sequenced) = &batch.sequenced else { continue };
            // Several idempotent batches in one request are judged as if each followed the last.
            let producers = judged.get_or_insert_with(|| self.state.producers.only(sequenced));
            producers.check(sequenced)?;
            producers.apply(sequenced, Offset::UNKNOWN);
        }
        let base_offset = self.open.next_offset();
        for batch in batches {
            self.append_one(batch);
        }
        Ok((base_offset, self.open.next_offset()))
    }

    fn append_one(&mut self, batch: RecordBatch) {
        let base_offset = self.open.next_offset();
        if let Some(sequenced) = &batch.sequenced {
            self.state.producers.apply(sequenced, base_offset);
        }
        let end = base_offset.advance(batch.record_count);
        self.state.note(base_offset, batch.bytes.len() as u64, batch.max_timestamp_ms);
        self.bytes_since_checkpoint += batch.bytes.len() as u64;
        // Base offset and leader epoch lie outside the batch's CRC: only they are written anew.
        let mut head = BytesMut::with_capacity(BATCH_HEAD_SIZE_BYTES);
        head.put_i64(base_offset.get());
        head.put_slice(&batch.bytes[8..12]);
        head.put_i32(self.leader_epoch.get());
        let head = head.freeze();
        let body = batch.bytes.slice(BATCH_HEAD_SIZE_BYTES..);
        self.open.size_bytes += batch.bytes.len();
        self.open.record_count += batch.record_count;
        self.open.max_timestamp_ms = self.open.max_timestamp_ms.max(batch.max_timestamp_ms);
        self.open.parts.push(head.clone());
        self.open.parts.push(body.clone());
        let last_offset = Offset::new(end.get() - 1);
        let max_timestamp_ms = batch.max_timestamp_ms;
        self.open.batches.push(BatchSlice {
            base_offset,
            last_offset,
            max_timestamp_ms,
            head,
            body,
        });
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

    /// Puts the open blob if it is time to.
    fn flush(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        at_once: bool,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        let eager = self.in_flight.len() < self.limits.eager_blob_count
            && self.in_flight_size_bytes < self.limits.eager_size_bytes;
        let full = self.open.size_bytes >= self.limits.blob_size_bytes;
        if self.open.parts.is_empty() || !(at_once || eager || full) {
            return;
        }
        let next = OpenBlob::at(self.open.next_offset());
        let open = std::mem::replace(&mut self.open, next);
        let draft = Draft {
            kind: BlobKind::Records,
            base_offset: open.base_offset,
            record_count: open.record_count,
            max_timestamp_ms: open.max_timestamp_ms,
            payload: Payload::from_parts(open.parts),
        };
        // A leader that was lost meanwhile has told so already; its waiters are answered by `stop`.
        if let Ok(step) = self.leader.put(now, health, draft, &mut self.leader_out) {
            let blob = RecordBlob::new(open.base_offset, open.batches);
            self.in_flight_size_bytes += blob.size_bytes();
            self.in_flight.push_back(InFlight::Records { step, blob });
        }
        if self.bytes_since_checkpoint >= self.limits.checkpoint_every_bytes {
            self.checkpoint(now, health);
        }
        self.drain_leader(now, health, out);
    }

    /// Puts the state as of the last step put: exactly a function of the steps before it.
    fn checkpoint(&mut self, now: Instant, health: &SlotHealth) {
        self.bytes_since_checkpoint = 0;
        let draft = Draft {
            kind: BlobKind::Checkpoint,
            base_offset: self.leader.next_offset(),
            record_count: 0,
            max_timestamp_ms: -1,
            payload: self.state.encode().into(),
        };
        let _lost_meanwhile = self.leader.put(now, health, draft, &mut self.leader_out);
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
            let (InFlight::Records { step, .. } | InFlight::Trim { step, .. }) = front;
            if *step > mark.point.step {
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
                None => break,
            }
        }
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
