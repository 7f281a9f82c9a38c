//! A partition that this node owns: being taken over, led, or stopped.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::{GroupId, NodeId, PartitionId};
use meridian_base::position::{Generation, LeaderEpoch, Offset};
use meridian_base::topology::Slot;
use meridian_broker::replica::fences::Fences;
use meridian_broker::replica::follow::{FollowMessage, FollowerSet};
use meridian_broker::replica::view::{Isolation, ReadView};
use meridian_broker::replica::{Replica, ReplicaConfig, ReplicaOutput, StopCause};
use meridian_consensus::state::Home;
use meridian_mirror::contract::Contract;
use meridian_mirror::lease::WriterLease;
use meridian_protocol::records::NO_TIMESTAMP;
use meridian_storage::cold::Packed;
use meridian_storage::hot::Layout;
use meridian_storage::leader::LossCause;
use meridian_storage::message::{Beacon, CommitMark, PutReply, PutResult, StorageMessage};
use meridian_storage::placement::SlotHealth;
use tokio::sync::{Notify, oneshot};

use super::bells::Bells;
use super::budget::Share;
use super::group::{Group, Homes};
use super::reader::{ReadFailed, check, fetched};
use super::rebuild::Job;
use super::rounds::Unseen;
use super::{Logs, lock};
use crate::partition::source::Sources;
use crate::partition::{
    AbortedTransaction, Appended, BatchSlice, Partition, PartitionOutput, ProduceError,
    RecordBatch, Retention, RunTime, Taken,
};

/// Who waits for a produce request.
pub type Waiter = oneshot::Sender<Result<Appended, ProduceError>>;
/// No slot served a read last.
const NO_SLOT: u8 = u8::MAX;

/// What the metadata log says of a partition this node owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The partition.
    pub partition: PartitionId,
    /// Where its blobs are put.
    pub group: GroupId,
    /// The groups that it was in, that one last; none if it was never moved.
    pub homes: Arc<[Home]>,
    /// The ownership's number.
    pub generation: Generation,
    /// The epoch clients see.
    pub leader_epoch: LeaderEpoch,
    /// Datacenters a record must be in before it is acknowledged (`min.insync.datacenters`).
    pub datacenter_count_min: usize,
    /// Whether duplicates of source ids are dropped (`meridian.dedup=source`).
    pub dedups_sources: bool,
    /// Whether records are put as copies or in parts (`meridian.storage.class`).
    pub layout: Layout,
}

/// What a fetch returns.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Whole record batches, in pieces; may begin before the offset asked for.
    pub records: Vec<Bytes>,
    /// Offset after the last of them, unless there are none.
    pub end_offset: Option<Offset>,
    /// The aborted transactions that have records among them, for [`Isolation::ReadCommitted`].
    pub aborted: Vec<AbortedTransaction>,
    /// Offset after the last committed record.
    pub high_watermark: Offset,
    /// Offset up to which all transactions are decided.
    pub last_stable_offset: Offset,
    /// First offset that can be read.
    pub log_start_offset: Offset,
}

/// Why a fetch failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The offset is not in the log.
    #[error("offset {offset} is not in the log ({log_start_offset} to {high_watermark})")]
    OutOfRange {
        /// The offset asked for.
        offset: Offset,
        /// First offset that can be read.
        log_start_offset: Offset,
        /// Offset after the last committed record.
        high_watermark: Offset,
    },
    /// This node does not serve the partition now.
    #[error("this node does not lead the partition (any more); look the leader up")]
    NotLeader,
    /// No reachable slot could give the records now.
    #[error("no reachable disk could give the records now; retry")]
    Unavailable,
}

impl From<ReadFailed> for FetchError {
    fn from(_: ReadFailed) -> Self {
        Self::Unavailable
    }
}

pub(super) struct Inner {
    pub(super) replica: Replica<Waiter>,
    readers: Bells,
    followers: FollowerSet,
    share: Share,
}

impl Inner {
    /// Says what it takes of the node's memory; returns whether it keeps records where it kept none.
    fn account(&mut self) -> bool {
        let tail_bytes = self.replica.partition().map_or(0, |led| led.tail().size_bytes());
        self.share.set(self.replica.pending_size_bytes(), tail_bytes)
    }

    fn has_work(&self) -> bool {
        self.replica.partition().is_some_and(Partition::has_work)
    }
}

/// A partition that this node owns.
pub struct PartitionLog {
    pub(super) logs: Weak<Logs>,
    /// Where its blobs are put.
    pub(super) group: Arc<Group>,
    /// Where those are that were put.
    pub(super) homes: Homes,
    ownership: Ownership,
    /// When the metadata log made it this node's.
    pub(super) begun_at: Instant,
    pub(super) inner: Mutex<Inner>,
    /// The slot that served the last read from disk.
    pub(super) last_slot: Arc<AtomicU8>,
    /// How far its mirrors are, if they are bound to be near.
    pub(super) contract: Mutex<Contract>,
    /// The writer's lease, if its topic needs one.
    pub(super) lease: Mutex<WriterLease>,
    /// Endings of transactions that were numbered in this epoch.
    pub(super) ending_count: AtomicU64,
    /// How many stripes were begun: their keys are numbered.
    pub(super) stripe_count: AtomicU64,
    /// What is packed and not named yet.
    pub(super) packed: Mutex<Option<Packed>>,
    /// Which chores have yet to look at what has changed.
    pub(super) unseen: Unseen,
}

impl PartitionLog {
    /// `None` while one of its groups is not known here.
    pub(super) fn new(logs: &Arc<Logs>, ownership: Ownership) -> Option<Arc<Self>> {
        let homes = Homes::new(&ownership, |group| logs.group(group))?;
        let config = ReplicaConfig {
            partition: ownership.partition,
            generation: ownership.generation,
            leader_epoch: ownership.leader_epoch,
            node: logs.settings.node,
            limits: logs.settings.limits,
            pending_size_bytes_max: logs.settings.pending_size_bytes_max,
            blob_size_bytes_max: logs.settings.sizes.blob_size_bytes_max,
            datacenter_count_min: ownership.datacenter_count_min,
            layout: ownership.layout,
            tracks_sources: ownership.dedups_sources,
            mutations: logs.settings.mutations,
        };
        Some(Arc::new(Self {
            logs: Arc::downgrade(logs),
            group: Arc::clone(homes.present()?),
            homes,
            ownership,
            begun_at: logs.now(),
            inner: Mutex::new(Inner {
                replica: Replica::new(config),
                readers: Bells::default(),
                followers: FollowerSet::default(),
                share: Share::new(Arc::clone(&logs.budget)),
            }),
            last_slot: Arc::new(AtomicU8::new(NO_SLOT)),
            contract: Mutex::default(),
            lease: Mutex::default(),
            ending_count: AtomicU64::new(0),
            stripe_count: AtomicU64::new(0),
            packed: Mutex::default(),
            unseen: Unseen::default(),
        }))
    }

    /// What the metadata log says of it.
    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    pub(super) fn logs(&self) -> Option<Arc<Logs>> {
        self.logs.upgrade()
    }

    /// Whether clients may be served.
    pub fn is_serving(&self) -> bool {
        lock(&self.inner).replica.is_serving()
    }

    /// Whether it is not served yet, and is to be.
    pub(crate) fn is_opening(&self) -> bool {
        lock(&self.inner).replica.is_opening()
    }

    /// Whether requests wait until it is served.
    pub(super) fn is_waited_for(&self) -> bool {
        lock(&self.inner).replica.is_waited_for()
    }

    /// Appends batches, once the partition is taken over. The receiver is answered when they are
    /// committed, or refused; if it is dropped unanswered, the node is going down and the outcome
    /// is in doubt.
    pub fn produce(
        self: &Arc<Self>,
        batches: Vec<RecordBatch>,
    ) -> oneshot::Receiver<Result<Appended, ProduceError>> {
        let (waiter, answer) = oneshot::channel();
        let Some(logs) = self.logs.upgrade() else { return answer };
        let now = logs.now();
        let health = self.group.health(now);
        let mut out = Vec::new();
        let (has_work, is_parked, is_new) = {
            let mut inner = lock(&self.inner);
            inner.replica.produce(now, &health, batches, waiter, &mut out);
            (inner.has_work(), inner.replica.is_waited_for(), inner.account())
        };
        if has_work {
            logs.activate(self.ownership.partition);
        }
        if is_parked {
            logs.urge(self.ownership.partition);
        }
        self.share_memory(&logs, is_new);
        self.carry_out(out, None);
        answer
    }

    /// Whether a client may write so much more, of all that this node has memory for.
    pub fn has_room(&self, size_bytes: usize) -> bool {
        self.logs.upgrade().is_none_or(|logs| logs.budget.has_room(size_bytes))
    }

    /// Takes part in what the partitions of a node share. It must not be locked.
    fn share_memory(self: &Arc<Self>, logs: &Logs, is_new: bool) {
        if is_new {
            logs.budget.add(Arc::downgrade(self));
        }
        logs.budget.shrink();
    }

    /// Keeps fewer of its newest records; returns whether any are left.
    pub(super) fn shrink_tail(&self) -> bool {
        let mut inner = lock(&self.inner);
        let Some(partition) = inner.replica.partition_mut() else { return false };
        let keeps_some = partition.shrink_tail();
        inner.account();
        keeps_some
    }

    /// Reads from `from` on, whatever becomes of open transactions. See [`PartitionLog::fetch_as`].
    pub async fn fetch(&self, from: Offset, size_bytes_max: usize) -> Result<Fetched, FetchError> {
        self.fetch_as(Isolation::ReadUncommitted, from, size_bytes_max).await
    }

    /// Reads from `from` on, at least one whole batch if there is any. Does not wait for more.
    pub async fn fetch_as(
        &self,
        isolation: Isolation,
        from: Offset,
        size_bytes_max: usize,
    ) -> Result<Fetched, FetchError> {
        let logs = self.logs.upgrade().ok_or(FetchError::NotLeader)?;
        let (view, cached, ahead_end) = {
            let inner = lock(&self.inner);
            let partition = inner.replica.partition().ok_or(FetchError::NotLeader)?;
            let view = ReadView::of(partition).ok_or(FetchError::NotLeader)?;
            let range = view.range(from, isolation);
            let ahead_end = view.end_on_slots(partition, range.end);
            let cached = view.in_memory(partition, range, size_bytes_max);
            (view, cached, ahead_end)
        };
        check(&view, from)?;
        let range = view.range(from, isolation);
        let taken = match cached {
            Some(taken) => taken,
            None => {
                let log = self.readable();
                let read =
                    || logs.read_records(&log, &view, range.clone(), size_bytes_max, ahead_end);
                logs.read_patiently(log.partition, read).await?
            }
        };
        let aborted = match (isolation, taken.end_offset) {
            (Isolation::ReadCommitted, Some(end)) => self.aborted_between(from, end)?,
            (Isolation::ReadCommitted, None) | (Isolation::ReadUncommitted, _) => Vec::new(),
        };
        // What was read may be void if a newer leader took over meanwhile; the view it was read
        // by is a committed prefix all the same.
        Ok(fetched(&view, taken, aborted))
    }

    /// What a read from `from` on says of the log, without a record.
    pub fn peek(&self, from: Offset) -> Result<Fetched, FetchError> {
        let view = self.with(None, ReadView::of).ok_or(FetchError::NotLeader)?;
        check(&view, from)?;
        Ok(fetched(&view, Taken::default(), Vec::new()))
    }

    /// Offset after the last committed record.
    pub fn high_watermark(&self) -> Offset {
        self.with(Offset::ZERO, Partition::high_watermark)
    }

    /// Offset below which every transaction is decided.
    pub fn last_stable_offset(&self) -> Offset {
        self.with(Offset::ZERO, Partition::last_stable_offset)
    }

    /// First offset that can be read.
    pub fn log_start_offset(&self) -> Offset {
        self.with(Offset::ZERO, |partition| partition.leader().log_start_offset())
    }

    /// The epoch clients see.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.ownership.leader_epoch
    }

    /// The epoch asked for, or the greatest below it, and where it ends.
    pub fn end_of_epoch(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        self.with(None, |partition| {
            partition.leader().lineage().end_of_epoch(epoch, partition.high_watermark())
        })
    }

    /// Bytes of all records in the log.
    pub fn size_bytes(&self) -> u64 {
        self.with(0, |partition| partition.state().size_bytes())
    }

    /// Whether its state has outgrown its checkpoint.
    pub(crate) fn has_oversize_checkpoint(&self) -> bool {
        self.with(false, |partition| partition.oversize_checkpoint_bytes().is_some())
    }

    /// Number of idempotent producers remembered.
    pub fn producer_count(&self) -> usize {
        self.with(0, |partition| partition.state().producers.count())
    }

    /// Rings `bell` whenever more can be read, or nothing more will come from here. Register, look
    /// again, then wait.
    pub fn notify_on_progress(&self, bell: &Arc<Notify>) {
        lock(&self.inner).readers.add(bell);
    }

    /// The first batch with a record at or after `timestamp_ms`, of those that reach to `from` or
    /// beyond.
    pub async fn batch_for_timestamp(
        &self,
        timestamp_ms: i64,
        mut from: Offset,
    ) -> Result<Option<BatchSlice>, FetchError> {
        loop {
            let seek = |partition: &Partition<Waiter>| {
                let from = from.max(partition.leader().log_start_offset());
                partition.state().seek_timestamp(timestamp_ms, from)
            };
            let Some(found) = self.with(None, seek) else { return Ok(None) };
            let batches = self.batches_from(found).await?;
            if let Some(found) = batches.iter().find(|b| b.max_timestamp_ms >= timestamp_ms) {
                return Ok(Some(found.clone()));
            }
            let Some(last) = batches.last() else { return Ok(None) };
            from = last.last_offset.advance(1);
        }
    }

    /// The first of the batches whose header gives the largest time, as far as runs that are not
    /// later than `before` say; with it the time of the run that it is in.
    pub async fn latest_batch(
        &self,
        before: Option<RunTime>,
    ) -> Result<Option<(RunTime, Option<BatchSlice>)>, FetchError> {
        let run = self.with(None, |partition| partition.state().latest_run(before));
        let Some((time, Range { start, end })) = run else { return Ok(None) };
        let mut latest: Option<BatchSlice> = None;
        let mut from = start.max(self.log_start_offset());
        while from < end {
            let batches = self.batches_from(from).await?;
            let Some(last) = batches.last() else { break };
            from = last.last_offset.advance(1);
            for batch in batches.into_iter().take_while(|batch| batch.base_offset < end) {
                let known_ms = latest.as_ref().map_or(NO_TIMESTAMP, |it| it.max_timestamp_ms);
                if batch.max_timestamp_ms > known_ms {
                    latest = Some(batch);
                }
            }
        }
        Ok(Some((time, latest)))
    }

    /// Some batches from the one that holds `from`; none at the end of the log.
    async fn batches_from(&self, from: Offset) -> Result<Vec<BatchSlice>, FetchError> {
        if from >= self.high_watermark() {
            return Ok(Vec::new());
        }
        let fetched = self.fetch(from, 1 << 20).await?;
        let records = Bytes::from(fetched.records.concat());
        let base_offset = base_offset_of(&records).unwrap_or(from);
        crate::partition::batches_in(base_offset, records).map_err(|_| FetchError::Unavailable)
    }

    /// Makes `before` the first offset that can be read; returns the log start.
    pub async fn delete_records(self: &Arc<Self>, before: Offset) -> Result<Offset, ProduceError> {
        let bell = Arc::new(Notify::new());
        self.notify_on_progress(&bell);
        self.act(|partition, now, health, out| partition.trim(now, health, before, out))
            .unwrap_or(Err(ProduceError::InDoubt))?;
        while self.log_start_offset() < before {
            if !self.is_serving() {
                return Err(ProduceError::InDoubt);
            }
            bell.notified().await;
        }
        Ok(self.log_start_offset())
    }

    /// Moves the log start past what `retention` no longer keeps; whether there was anything.
    pub fn retain(self: &Arc<Self>, retention: &Retention) -> Result<bool, ProduceError> {
        let retained = self.act(|partition, now, health, out| {
            let high_watermark = partition.high_watermark();
            let end_offset = (!partition.has_work()).then_some(high_watermark);
            let before = partition.state().expired_before(retention, end_offset);
            match before.filter(|before| *before <= high_watermark) {
                Some(before) => partition.trim(now, health, before, out).map(|()| true),
                None => Ok(false),
            }
        });
        retained.unwrap_or(Ok(false))
    }

    /// The time of the oldest run of records: at what age that goes is for `retention.ms` to say.
    pub(crate) fn oldest_timestamp_ms(&self) -> Option<i64> {
        self.with(None, |partition| partition.state().oldest_timestamp_ms())
    }

    /// Changes `min.insync.datacenters`.
    pub fn set_datacenter_count_min(&self, datacenter_count_min: usize) {
        lock(&self.inner).replica.set_datacenter_count_min(datacenter_count_min);
    }

    /// Changes how records are put from now on.
    pub fn set_layout(&self, layout: Layout) {
        lock(&self.inner).replica.set_layout(layout);
    }

    /// Changes `meridian.dedup`.
    pub fn track_sources(&self, track: bool, now_ms: i64) {
        lock(&self.inner).replica.track_sources(track, now_ms);
    }

    /// Tells the wall-clock time: what is appended from now on was seen then.
    pub fn set_time(self: &Arc<Self>, now_ms: i64) {
        self.act(|partition, _, _, _| partition.set_time(now_ms));
    }

    /// Forgets producers and sources that were last seen before these times.
    pub fn expire(self: &Arc<Self>, producers_ms: i64, sources_ms: i64) {
        self.act(|partition, _, _, _| partition.expire(producers_ms, sources_ms));
    }

    /// Looks at the sources that are remembered; `None` if there are none to be, or this node does
    /// not serve the partition.
    pub fn with_sources<R>(&self, look: impl FnOnce(&Sources) -> R) -> Option<R> {
        let inner = lock(&self.inner);
        let served = inner.replica.partition().filter(|partition| partition.is_serving())?;
        served.state().sources.as_ref().map(look)
    }

    /// Stops for good: the metadata log named another leader, or the topic is gone.
    pub(super) fn stop(self: &Arc<Self>) {
        let mut out = Vec::new();
        lock(&self.inner).replica.stop(&mut out);
        self.carry_out(out, None);
        self.on_stopped();
    }

    fn on_stopped(&self) {
        lock(&self.inner).account();
        self.wake_readers();
        if let Some(logs) = self.logs.upgrade() {
            lock(&logs.stopped).insert(self.ownership.partition);
        }
    }

    /// Runs `decide` on the replica, then carries out what it decided; fences are gathered in `fences`.
    pub(super) fn step(
        self: &Arc<Self>,
        fences: &mut Fences,
        decide: impl FnOnce(&mut Replica<Waiter>, Instant, &SlotHealth, &mut Vec<ReplicaOutput<Waiter>>),
    ) {
        let Some(logs) = self.logs.upgrade() else { return };
        let now = logs.now();
        let health = self.group.health(now);
        let mut out = Vec::new();
        let (has_work, is_new) = {
            let mut inner = lock(&self.inner);
            decide(&mut inner.replica, now, &health, &mut out);
            (inner.has_work(), inner.account())
        };
        if has_work {
            logs.activate(self.ownership.partition);
        }
        self.share_memory(&logs, is_new);
        self.carry_out_lifecycle(&logs, out, fences);
    }

    fn carry_out_lifecycle(
        self: &Arc<Self>,
        logs: &Arc<Logs>,
        outputs: Vec<ReplicaOutput<Waiter>>,
        fences: &mut Fences,
    ) {
        let partition = self.ownership.partition;
        let mut led = Vec::new();
        for output in outputs {
            match output {
                ReplicaOutput::Led(output) => led.push(output),
                ReplicaOutput::Fence(fence) => fences.add(fence),
                ReplicaOutput::ReadTail { node, slot, request } => {
                    logs.read_for_takeover(partition, slot, node, request);
                }
                ReplicaOutput::Rebuild(plan) => logs.rebuild(Job { log: Arc::clone(self), plan }),
                ReplicaOutput::Stopped(cause) => self.on_given_up(cause),
            }
        }
        self.carry_out(led, None);
    }

    /// Runs `decide` on the partition if it is led here, then carries out what it decided.
    pub(super) fn act<R>(
        self: &Arc<Self>,
        decide: impl FnOnce(
            &mut Partition<Waiter>,
            Instant,
            &SlotHealth,
            &mut Vec<PartitionOutput<Waiter>>,
        ) -> R,
    ) -> Option<R> {
        let logs = self.logs.upgrade()?;
        let now = logs.now();
        let health = self.group.health(now);
        let mut out = Vec::new();
        let (result, has_work, is_new) = {
            let mut inner = lock(&self.inner);
            let result = inner.replica.act(now, &health, &mut out, |partition, out| {
                decide(partition, now, &health, out)
            })?;
            (result, inner.has_work(), inner.account())
        };
        if has_work {
            logs.activate(self.ownership.partition);
        }
        self.share_memory(&logs, is_new);
        self.carry_out(out, None);
        Some(result)
    }

    /// Ticks; beacons go into `beacons` instead of out. Returns whether there is more to do.
    pub(super) fn tick(self: &Arc<Self>, beacons: &mut Vec<Beacon>) -> bool {
        let Some(logs) = self.logs.upgrade() else { return false };
        let now = logs.now();
        let health = self.group.health(now);
        let mut out = Vec::new();
        let (has_work, is_new) = {
            let mut inner = lock(&self.inner);
            let led = inner.replica.act(now, &health, &mut out, |partition, out| {
                partition.tick(now, &health, out);
            });
            if led.is_none() {
                return false;
            }
            (inner.has_work(), inner.account())
        };
        self.share_memory(&logs, is_new);
        self.carry_out(out, Some(beacons));
        has_work
    }

    pub(super) fn has_work(&self) -> bool {
        self.with(false, Partition::has_work)
    }

    pub(super) fn on_put_reply(self: &Arc<Self>, from: NodeId, reply: PutReply) {
        let Some(slot) = self.group.slot_of(from) else { return };
        if let (PutResult::Refused { .. }, Some(logs)) = (&reply.result, self.logs.upgrade()) {
            self.group.on_refused(logs.now(), slot);
        }
        let led = self.act(|partition, now, health, out| {
            let took = partition.on_reply(now, health, slot, reply, out);
            // Before a producer hears of it: what it sends next is to go by this.
            self.group.on_answer(slot, took);
        });
        if led.is_none() {
            self.group.on_answer(slot, None);
        }
    }

    /// Adds a reader in another datacenter that knows the first `aborted_count` aborted
    /// transactions; returns what it is to know at once.
    pub(super) fn follow(
        &self,
        now: Instant,
        follower: NodeId,
        aborted_count: u64,
    ) -> Option<FollowMessage> {
        let Inner { replica, followers, .. } = &mut *lock(&self.inner);
        let led = (self.ownership.partition, replica.partition()?);
        followers.add(now, led, follower, aborted_count)
    }

    /// Carries out what a partition decided. Called without its lock.
    pub(super) fn carry_out(
        self: &Arc<Self>,
        outputs: Vec<PartitionOutput<Waiter>>,
        mut beacons: Option<&mut Vec<Beacon>>,
    ) {
        let Some(logs) = self.logs.upgrade() else { return };
        let mut progress: Option<CommitMark> = None;
        for output in outputs {
            match output {
                PartitionOutput::Put { slot, put } => self.send_put(&logs, slot, put),
                PartitionOutput::Answer { waiter, result } => {
                    if let Err(error) = &result {
                        self.note_error(error);
                    }
                    let _client_is_gone = waiter.send(result);
                }
                PartitionOutput::Verify { ticket, verification } => {
                    self.verify(&logs, ticket, verification);
                }
                PartitionOutput::Progress(mark) => {
                    progress = Some(mark);
                    self.note_change();
                }
                PartitionOutput::Beacon(beacon) => match beacons.as_deref_mut() {
                    Some(beacons) => beacons.push(beacon),
                    None => {
                        for group in self.homes.every().into_values() {
                            logs.send_beacons(group, vec![beacon]);
                        }
                    }
                },
                PartitionOutput::Lost(cause) => self.on_lost(cause),
            }
        }
        if progress.is_some() {
            self.wake_readers();
            self.tell_followers(&logs);
        }
    }

    fn send_put(&self, logs: &Arc<Logs>, slot: Slot, put: meridian_storage::message::Put) {
        let Some(node) = self.group.node_of(slot) else { return };
        self.group.on_sent(logs.now(), slot);
        // A put that can't be sent is hedged around like one that is late.
        let _hedged_if_lost = logs.deliver(node, StorageMessage::Put(put));
    }

    fn on_lost(&self, cause: LossCause) {
        let Ownership { partition, generation, .. } = self.ownership;
        match cause {
            LossCause::Fenced { by } => {
                tracing::info!(?partition, %generation, %by, "fenced by a newer leader");
            }
            LossCause::Conflict { point } => {
                tracing::error!(?partition, %point, "a slot holds other bytes under our key; stopped");
            }
        }
        self.on_stopped();
    }

    fn on_given_up(&self, cause: StopCause) {
        let partition = self.ownership.partition;
        match cause {
            StopCause::Superseded(by) => {
                tracing::info!(?partition, %by, "takeover superseded");
            }
            StopCause::Broken(contradiction) => {
                tracing::error!(
                    ?partition,
                    %contradiction,
                    "takeover stopped: the slots' contents contradict the log's rules; \
                     the partition stays unavailable until they are examined"
                );
            }
            StopCause::Replay(error) => {
                tracing::error!(?partition, %error, "the copied tail does not replay; stopped");
            }
        }
        self.on_stopped();
    }

    fn wake_readers(&self) {
        lock(&self.inner).readers.ring();
    }

    fn tell_followers(&self, logs: &Arc<Logs>) {
        let progress = {
            let Inner { replica, followers, .. } = &mut *lock(&self.inner);
            let Some(partition) = replica.partition() else { return };
            followers.progress(logs.now(), (self.ownership.partition, partition))
        };
        let Some((followers, message)) = progress else { return };
        for follower in followers {
            logs.deliver_follow(follower, &message);
        }
    }

    pub(super) fn with<R>(&self, otherwise: R, look: impl FnOnce(&Partition<Waiter>) -> R) -> R {
        lock(&self.inner).replica.partition().map_or(otherwise, look)
    }
}

fn base_offset_of(records: &Bytes) -> Option<Offset> {
    let bytes = records.first_chunk::<8>()?;
    Some(Offset::new(i64::from_be_bytes(*bytes)))
}

#[cfg(test)]
mod tests;
