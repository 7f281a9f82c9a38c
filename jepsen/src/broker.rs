//! One partition on one node, from its appointment to its replacement.
//!
//! Embeds the product's [`Replica`]; adds what the node does around it: it reads from slot to slot,
//! and answers clients.

mod cold;
mod compaction;
mod coordination;
mod copies;
mod mirror;
mod objects;
mod reads;
mod rests;
mod source;
mod transactions;

use std::collections::BTreeMap;
use std::time::Duration;

use self::cold::Cold;
use self::compaction::Compaction;
use self::coordination::AtDesk;
pub use self::coordination::Coordinate;
use self::copies::Copies;
use self::mirror::{Appending, Mirroring};
use self::objects::Objects;
use self::rests::Rests;
use self::source::{Runs, raw_batches};
pub use self::transactions::CommittedRead;
use self::transactions::Verifying;
use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::{Incarnation, NodeId, PartitionId};
use meridian_base::position::{Generation, LeaderEpoch, Offset};
use meridian_base::topology::{GroupConfig, Slot, SlotSet};
use meridian_broker::partition::{
    Appended, Marker, PartitionLimits, PartitionOutput, ProduceError, RecordBatch, Ticket,
    TransactionError, VerifyError,
};
use meridian_broker::producer::SequenceError;
use meridian_broker::replica::fences::Fence;
use meridian_broker::replica::follow::{FollowMessage, FollowerSet};
use meridian_broker::replica::rebuild::Rebuild;
use meridian_broker::replica::{Replica, ReplicaConfig, ReplicaOutput, StopCause};
use meridian_storage::hot::Layout;
use meridian_storage::leader::LossCause;
use meridian_storage::limits::SizeLimits;
use meridian_storage::message::{
    Beacon, CommitMark, FenceAnswer, FreeCopies, FreeParts, ListCopies, ListParts, Put, PutReply,
    Read,
};
use meridian_storage::mutation::Mutations;
use meridian_storage::placement::SlotHealth;

use crate::cost::Chore;
use crate::desk::{Desk, MarkerOrigin, Piece};
use crate::link::LinkPacket;
use crate::net::Endpoint;
use crate::objects::ObjectRequest;
use crate::read::ReadTask;
use crate::topics::{Class, Owner, is_internal};
use crate::value::{Batch, Kind, PlacedBatch};

/// Small bounds, so that all of them are met: a few batches per blob, a checkpoint every dozen or
/// so, and only the newest blobs in memory.
fn limits(partition: PartitionId) -> PartitionLimits {
    PartitionLimits {
        blob_size_bytes: 300,
        eager_blob_count: 3,
        // The checker is to see every record of a coordinator as it is committed.
        tail_size_bytes_max: if is_internal(partition) { 50_000 } else { 1_000 },
        checkpoint_every_bytes: 900,
        // The network reorders what clients send.
        arrives_in_order: false,
        ..PartitionLimits::default()
    }
}
/// A blob of one small batch is copies, most others are in parts.
const PARTS: Layout = Layout::Parts { blob_size_bytes_min: 160 };
/// Most bytes in doubt.
const PENDING_SIZE_BYTES_MAX: usize = 4_000;
/// Most bytes of one answer to a reader.
pub(crate) const FETCH_SIZE_BYTES_MAX: u32 = 1_500;

/// Who asked, and which of its requests it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The client.
    pub client: Endpoint,
    /// Its number for the request.
    pub request: u64,
}

/// Who waits for something to be safe.
#[derive(Clone, Copy, Debug)]
enum Waiter {
    /// A producer, for its batch.
    Producer { asker: Asker, batch: Batch },
    /// The desk, if it is this one still.
    Desk(u64, ForDesk),
    /// The link's worker.
    Mirror(Appending),
    /// Whoever promotes the mirror, whose epochs so far end here.
    Promoter(LeaderEpoch),
    /// A coordinator, for its marker.
    Marker { origin: MarkerOrigin, marker: Marker },
}

/// What a desk has had written.
#[derive(Clone, Copy, Debug)]
enum ForDesk {
    /// What its coordinator appends.
    Decisions,
    /// A batch of a transaction.
    Batch(u64),
}

/// Answers to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientReply {
    /// The batch is safe at this offset.
    Acknowledged(Offset),
    /// Not appended now, or in doubt; the same batch may be sent again, here or elsewhere.
    Retry,
    /// The producer has been replaced by one with a newer epoch.
    Fenced,
    /// Of a mirror that was promoted: what came before the batch is not here. The producer begins a new epoch.
    OutOfOrder,
    /// Committed batches from the asked offset on, and the end of what is visible.
    Fetched {
        /// The batches.
        batches: Vec<PlacedBatch>,
        /// The high watermark.
        high_watermark: Offset,
    },
    /// What was asked for has been deleted.
    Deleted {
        /// First offset that can still be read.
        log_start_offset: Offset,
    },
}

/// A batch as it lies in the log, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawBatch {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset after its last record.
    pub next_offset: Offset,
    /// All of it.
    pub bytes: Bytes,
}

/// What a broker shows to anyone, for the checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It begins to serve.
    Serving(Offset),
    /// Its high watermark.
    HighWatermark(Offset),
    /// Its last stable offset.
    Stable {
        /// First offset that can be read.
        log_start_offset: Offset,
        /// Up to here every transaction is decided.
        last_stable_offset: Offset,
    },
    /// Committed records.
    Committed(CommittedRead),
    /// Everything below has been deleted.
    LogStart(Offset),
    /// What a coordinator has written.
    Log(Piece),
    /// A pass of compaction has come to an end.
    Compacted,
    /// Stripes or objects are named, and what they replace may go.
    Packed,
    /// An object that nobody needs is gone.
    ObjectDeleted,
    /// So many parts of a stripe are made again.
    Mended(u64),
    /// So many blobs were made whole from their parts.
    Decoded(u64),
    /// A run of cold records, from the first offset to before the second, is stored for the next manifest.
    Stored(Offset, Offset),
    /// The log of a coordinator starts where all that holds was written once more.
    Shortened,
    /// Work begins.
    Begun(Chore),
    /// Work was refused, and is tried again after a rest.
    Refused(Chore),
    /// A committed batch.
    Batch(PlacedBatch),
    /// A committed batch that another cluster mirrors, or that is mirrored here.
    Raw(RawBatch),
    /// Batches of a source are on their way into the log, up to this offset.
    Mirroring(Offset),
    /// What the source of a mirror left open is aborted, by a leader whose epoch is above this one.
    AbortedOpen(LeaderEpoch),
    /// A batch whose producer is told that it is safe.
    Acknowledged(PlacedBatch),
    /// A batch of a persistent source, whose client is told that all of it is safe, and where the
    /// first value is, if it says so.
    Told(Offset, Batch),
    /// Something that no rule-abiding log can hold.
    Broken(String),
}

/// What the node is to do.
#[derive(Debug)]
pub enum BrokerOutput {
    /// Send a put.
    Put(Slot, Put),
    /// Ask for a fence, or for the rest of what a slot holds.
    Fence(Fence),
    /// Send a read; its answer comes back with this number.
    Read(Slot, u64, Read),
    /// A slot is late with a read.
    LateRead(Slot),
    /// Tell every slot.
    Beacon(Beacon),
    /// Ask a slot which parts of stripes it holds.
    ListParts(Slot, ListParts),
    /// Tell a slot which of them may go.
    FreeParts(Slot, FreeParts),
    /// Ask a slot which records it holds; its answer comes back with this number.
    ListCopies(Slot, u64, ListCopies),
    /// Tell a slot which of them nobody needs.
    FreeCopies(Slot, FreeCopies),
    /// Ask the object store; its answer comes back with this number.
    Objects(u64, ObjectRequest),
    /// Ask a producer's coordinator whether this partition is in its transaction.
    Verify {
        /// Goes with the answer.
        ticket: Ticket,
        /// The producer.
        producer: u32,
        /// Its epoch.
        epoch: u16,
    },
    /// On behalf of a coordinator, or to ask one.
    Coordinate(Coordinate),
    /// To a node that serves readers of the partition.
    Follow(NodeId, FollowMessage),
    /// To a node of the other cluster, or to any of them.
    Link(Option<usize>, LinkPacket),
    /// Have the metadata log give the partition a leader epoch that is not below this one.
    RaiseEpoch(LeaderEpoch),
    /// Answer a client.
    Answer(Asker, ClientReply),
    /// Tell the checker.
    Shown(Shown),
}

/// One partition on one node.
pub struct Broker {
    partition: PartitionId,
    generation: Generation,
    leader_epoch: LeaderEpoch,
    node: NodeId,
    mutations: Mutations,
    replica: Replica<Waiter>,
    /// The state that is being rebuilt.
    rebuild: Option<Rebuild>,
    /// The high watermark that was shown last.
    shown: Option<Offset>,
    reads: BTreeMap<u64, ReadTask>,
    next_read: u64,
    followers: FollowerSet,
    /// More is committed than followers have heard of.
    has_progress: bool,
    /// Slots that are read from last.
    slow: SlotSet,
    /// The one that served the last read.
    last_slot: Option<Slot>,
    verifying: Verifying,
    compaction: Compaction,
    cold: Cold,
    copies: Copies,
    objects: Objects,
    mirroring: Mirroring,
    runs: Runs,
    /// Of the coordinator, if the partition is internal.
    desk: Option<Desk>,
    at_desk: AtDesk,
    rests: Rests,
    /// A producer id for it to give away.
    fresh_id: Option<i64>,
}

impl Broker {
    /// Of a partition that its node has been appointed to lead.
    pub fn new(
        partition: PartitionId,
        owner: Owner,
        (sizes, datacenter_count_min): (SizeLimits, usize),
        mutations: Mutations,
    ) -> Self {
        let Owner { generation, leader_epoch, node } = owner;
        let config = ReplicaConfig {
            partition,
            generation,
            leader_epoch,
            node,
            limits: limits(partition),
            pending_size_bytes_max: PENDING_SIZE_BYTES_MAX,
            blob_size_bytes_max: sizes.blob_size_bytes_max,
            datacenter_count_min,
            layout: Layout::Copies,
            tracks_sources: true,
            mutations,
        };
        Self {
            partition,
            generation,
            leader_epoch,
            node,
            mutations,
            replica: Replica::new(config),
            rebuild: None,
            shown: None,
            reads: BTreeMap::new(),
            next_read: 1,
            followers: FollowerSet::new(mutations),
            has_progress: false,
            slow: SlotSet::EMPTY,
            last_slot: None,
            verifying: Verifying::default(),
            compaction: Compaction::default(),
            cold: Cold::default(),
            copies: Copies::default(),
            objects: Objects::default(),
            mirroring: Mirroring::default(),
            runs: Runs::default(),
            desk: Desk::of(partition, mutations),
            at_desk: AtDesk::default(),
            rests: Rests::new(),
            fresh_id: None,
        }
    }

    /// Begins to take the partition over.
    pub fn begin(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        group: GroupConfig,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.step(now, health, out, |replica, outputs| {
            replica.begin(now, health, group, Vec::new(), outputs);
        });
    }

    /// Puts records in another way from now on.
    pub fn convert(&mut self, class: Class) {
        self.replica.set_layout(match class {
            Class::Copies | Class::Cold(_) | Class::Objects => Layout::Copies,
            Class::Parts => PARTS,
        });
        self.convert_cold(class);
    }

    /// In how many datacenters a record must be from now on before it is acknowledged.
    pub fn set_datacenter_count_min(&mut self, datacenter_count_min: usize) {
        self.replica.set_datacenter_count_min(datacenter_count_min);
    }

    /// Whether clients are served.
    pub fn is_serving(&self) -> bool {
        self.replica.is_serving()
    }

    /// Where the log begins and ends, if this broker may say so.
    pub fn bounds(&self) -> Option<(Offset, Offset)> {
        let partition = self.replica.partition()?;
        let start = partition.leader().log_start_offset();
        self.served_mark().map(|mark| (start, mark.high_watermark))
    }

    /// The last step that is committed, if others wait for it to be their turn.
    pub fn waits_after(&self) -> Option<CommitMark> {
        let partition = self.replica.partition()?;
        let leader = partition.leader();
        leader.mark().filter(|_| leader.pending_size_bytes() > 0)
    }

    /// What the broker is doing, in a word.
    pub fn phase_name(&self) -> &'static str {
        self.replica.phase_name()
    }

    /// The group configuration that the broker counts by, unless it has stopped.
    pub fn group(&self) -> Option<&GroupConfig> {
        self.replica.group()
    }

    /// The slot of the broker's own node, if it fills one.
    fn own_slot(&self) -> Option<Slot> {
        self.group()?.slot_of(self.node)
    }

    /// Takes the answer of a node's slot to a fence.
    pub fn on_fence_answer(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        from: (NodeId, Incarnation),
        answer: FenceAnswer,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.step(now, health, out, |replica, outputs| {
            replica.on_fence_answer(now, health, from, answer, outputs);
        });
    }

    /// Takes a slot's answer to a put; how long it took, if it is durable there.
    pub fn on_put_reply(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        slot: Slot,
        reply: PutReply,
        out: &mut Vec<BrokerOutput>,
    ) -> Option<Duration> {
        let mut outputs = Vec::new();
        let took = self.replica.act(now, health, &mut outputs, |partition, outputs| {
            partition.on_reply(now, health, slot, reply, outputs)
        });
        self.carry_out_partition(outputs, out);
        self.tend_desk(now, health, out);
        self.tend_mirror(now, health, out);
        took.flatten()
    }

    /// These slots are read from last.
    pub fn set_slow(&mut self, slow: SlotSet) {
        self.slow = slow;
    }

    /// Takes a newer group configuration.
    pub fn on_config(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        group: &GroupConfig,
        out: &mut Vec<BrokerOutput>,
    ) {
        self.step(now, health, out, |replica, outputs| {
            replica.on_config(now, health, group, outputs)
        });
    }

    /// Does what is due. Call every few milliseconds.
    pub fn tick(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<BrokerOutput>) {
        if self.replica.is_opening() {
            self.step(now, health, out, |replica, outputs| {
                replica.tick_opening(now, health, outputs)
            });
        }
        let mut outputs = Vec::new();
        self.replica.act(now, health, &mut outputs, |partition, outputs| {
            if partition.has_work() {
                partition.tick(now, health, outputs);
            }
        });
        self.carry_out_partition(outputs, out);
        self.tick_verifications(now, health, out);
        self.tick_compaction(now, health, out);
        self.tick_cold(now, health, out);
        self.tick_copies(now, out);
        self.tick_mirror(now, health, out);
        self.tick_source(now, out);
        self.tend_desk(now, health, out);
        self.tick_reads(now, health, out);
    }

    /// A producer sends a batch, or a coordinator a marker.
    pub fn on_produce(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        asker: Asker,
        batch: Batch,
        records: RecordBatch,
        out: &mut Vec<BrokerOutput>,
    ) {
        if let Kind::Marker { commit } = batch.kind {
            return self.on_marker(now, health, asker, (batch, commit), out);
        }
        if self.refuses_clients() {
            out.push(BrokerOutput::Answer(asker, ClientReply::Retry));
            return;
        }
        let mut outputs = Vec::new();
        let waiter = Waiter::Producer { asker, batch };
        self.replica.produce(now, health, vec![records], waiter, &mut outputs);
        self.carry_out_partition(outputs, out);
    }

    /// A client deletes everything below `before`.
    pub fn on_trim(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        before: Offset,
        out: &mut Vec<BrokerOutput>,
    ) {
        if !self.refuses_clients() {
            // A refused trim is not tried again: the next one deletes as much and more.
            self.trim(now, health, before, out);
        }
    }

    /// Whether it was not refused.
    fn trim(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        before: Offset,
        out: &mut Vec<BrokerOutput>,
    ) -> bool {
        let Some(partition) = self.replica.partition_mut() else { return false };
        let mut outputs = Vec::new();
        let is_taken = partition.trim(now, health, before, &mut outputs).is_ok();
        self.carry_out_partition(outputs, out);
        is_taken
    }

    /// Runs `decide` on the replica, then carries out what it decided.
    fn step(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<BrokerOutput>,
        decide: impl FnOnce(&mut Replica<Waiter>, &mut Vec<ReplicaOutput<Waiter>>),
    ) {
        let mut outputs = Vec::new();
        decide(&mut self.replica, &mut outputs);
        let mut led = Vec::new();
        for output in outputs {
            match output {
                ReplicaOutput::Led(output) => led.push(output),
                ReplicaOutput::Fence(fence) => out.push(BrokerOutput::Fence(fence)),
                ReplicaOutput::ReadTail { slot, request, .. } => {
                    self.read_tail(slot, request, out);
                }
                ReplicaOutput::Rebuild(plan) => {
                    self.reads.clear();
                    self.rebuild = Some(Rebuild::begin(&plan, 0));
                    self.read_state(now, health, out);
                }
                ReplicaOutput::Stopped(cause) => {
                    if !matches!(cause, StopCause::Superseded(_)) {
                        self.broken(cause.to_string(), out);
                    }
                    self.end(out);
                }
            }
        }
        self.carry_out_partition(led, out);
    }

    fn carry_out_partition(
        &mut self,
        outputs: Vec<PartitionOutput<Waiter>>,
        out: &mut Vec<BrokerOutput>,
    ) {
        for output in outputs {
            match output {
                PartitionOutput::Put { slot, put } => out.push(BrokerOutput::Put(slot, put)),
                PartitionOutput::Progress(mark) => {
                    self.has_progress = true;
                    self.show(mark, out);
                }
                PartitionOutput::Beacon(beacon) => out.push(BrokerOutput::Beacon(beacon)),
                PartitionOutput::Answer { waiter, result } => self.on_answer(waiter, result, out),
                PartitionOutput::Verify { ticket, verification } => {
                    self.verify(ticket, &verification, out);
                }
                PartitionOutput::Lost(cause) => {
                    if let LossCause::Conflict { point } = cause {
                        self.broken(format!("{point}: the key holds other bytes"), out);
                    }
                    self.end(out);
                }
            }
        }
    }

    fn on_answer(
        &mut self,
        waiter: Waiter,
        result: Result<Appended, ProduceError>,
        out: &mut Vec<BrokerOutput>,
    ) {
        let (asker, batch) = match waiter {
            Waiter::Producer { asker, batch } => (asker, batch),
            Waiter::Desk(desk, ForDesk::Batch(number)) => {
                return self.on_desk_appended((desk, number), result, out);
            }
            Waiter::Desk(desk, _) if desk != self.at_desk.desk_count => return,
            Waiter::Desk(_, ForDesk::Decisions) => return self.on_desk_written(result),
            Waiter::Promoter(above) => {
                let is_done = result.is_ok();
                return out
                    .extend(is_done.then_some(BrokerOutput::Shown(Shown::AbortedOpen(above))));
            }
            Waiter::Mirror(appending) => return self.on_mirror_written(appending, &result),
            Waiter::Marker { origin, marker } => {
                return self.on_marker_written(marker, origin, result, out);
            }
        };
        let reply = match result {
            Ok(appended) => {
                let base_offset = appended.base_offset;
                out.push(BrokerOutput::Shown(if batch.first.is_sourced() {
                    Shown::Told(base_offset, batch)
                } else {
                    Shown::Acknowledged(PlacedBatch::whole(base_offset, batch))
                }));
                ClientReply::Acknowledged(base_offset)
            }
            Err(error) if is_final(&error) => ClientReply::Fenced,
            Err(ProduceError::Sequence(_)) if self.was_mirror() => ClientReply::OutOfOrder,
            // A leader that was replaced while it slept may have missed what a source wrote since, and
            // find its order broken. A leader in office must not: the source would never be answered.
            Err(_) => ClientReply::Retry,
        };
        out.push(BrokerOutput::Answer(asker, reply));
    }

    /// More is visible: the checker sees every batch of it.
    fn show(&mut self, mark: CommitMark, out: &mut Vec<BrokerOutput>) {
        let high_watermark = mark.high_watermark;
        let Some(mut from) = self.shown.replace(high_watermark) else {
            out.push(BrokerOutput::Shown(Shown::Serving(high_watermark)));
            self.check_manifest(out);
            return self.show_stable(out);
        };
        let Some(partition) = self.replica.partition() else { return };
        if is_internal(self.partition) && from < high_watermark {
            let pieces = partition.tail().read(from, usize::MAX).unwrap_or_default();
            let piece = Piece { from, bytes: pieces.concat().into() };
            out.push(BrokerOutput::Shown(Shown::Log(piece)));
            from = high_watermark;
        }
        while from < high_watermark {
            let Some(pieces) = partition.tail().read(from, 0) else { break };
            let bytes = Bytes::from(pieces.concat());
            if self.refuses_clients() {
                let raw = raw_batches(bytes.clone()).first().map(RawBatch::of);
                out.extend(raw.map(|raw| BrokerOutput::Shown(Shown::Raw(raw))));
            }
            let batches = PlacedBatch::read_all(bytes);
            let Some(placed) = batches.and_then(|batches| batches.first().copied()) else { break };
            out.push(BrokerOutput::Shown(Shown::Batch(placed)));
            from = placed.next_offset();
        }
        out.push(BrokerOutput::Shown(Shown::HighWatermark(high_watermark)));
        self.show_stable(out);
    }

    fn show_stable(&self, out: &mut Vec<BrokerOutput>) {
        let Some(partition) = self.replica.partition() else { return };
        out.push(BrokerOutput::Shown(Shown::Stable {
            log_start_offset: partition.leader().log_start_offset(),
            last_stable_offset: partition.last_stable_offset(),
        }));
    }

    fn broken(&self, what: String, out: &mut Vec<BrokerOutput>) {
        let what = format!("{:?} {}: {what}", self.partition, self.generation);
        out.push(BrokerOutput::Shown(Shown::Broken(what)));
    }

    /// Stops for good: what is in doubt stays so for those who wait for it (rule L3).
    pub fn end(&mut self, out: &mut Vec<BrokerOutput>) {
        let mut outputs = Vec::new();
        self.replica.stop(&mut outputs);
        self.carry_out_partition(outputs, out);
        self.rebuild = None;
        self.desk = None;
        self.at_desk = AtDesk::default();
        self.verifying = Verifying::default();
        self.compaction = Compaction::default();
        let waiting: Vec<Asker> = self.end_cold().chain(self.end_objects()).collect();
        let reads = std::mem::take(&mut self.reads);
        let askers = reads.values().filter_map(ReadTask::asker).chain(waiting);
        out.extend(askers.map(|asker| BrokerOutput::Answer(asker, ClientReply::Retry)));
    }
}

/// Whether a write can never succeed: its epoch, or its transaction, is over.
fn is_final(error: &ProduceError) -> bool {
    match error {
        ProduceError::Sequence(SequenceError::OldEpoch { .. }) => true,
        ProduceError::Transaction(TransactionError::Unverified(cause)) => {
            !matches!(cause, VerifyError::Unavailable | VerifyError::Concurrent)
        }
        // There is room again when the log is shortened.
        ProduceError::Transaction(TransactionError::NoRoom { .. }) => false,
        ProduceError::Transaction(_) => true,
        _ => false,
    }
}
