//! One partition's writer: orders blobs, puts them, and says when each is committed (rules L1-L4).
//!
//! The leader sends each blob to one slot in every datacenter, its own node's slot first. A blob is
//! *committed* when it and every step before it lie on a put quorum of disks whose incarnation is
//! current. A slot that is late is hedged around: the next rack of its datacenter, and if that
//! stays silent too, two racks in each of the other datacenters. What counts is always the *set* of
//! acks, never which attempt they belong to. Where records are in parts ([`crate::hot`]) each slot is
//! sent its own, and the set has to hold enough of them.

mod copies;
mod hedge;
mod manifests;
mod pending;
mod surplus;

use std::collections::VecDeque;
use std::time::Duration;

pub use self::copies::{Asked, Judged, Listed};
use self::pending::Pending;
pub use self::pending::Waiting;
use self::surplus::{LateAnswers, Surplus};

use meridian_base::env::Instant;
use meridian_base::id::{Incarnation, PartitionId};
use meridian_base::position::{Generation, LogPoint, Offset, Step};
use meridian_base::quorum::PARTS_NEEDED;
use meridian_base::topology::{GroupConfig, SLOT_COUNT_MAX, Slot, SlotSet, SlotState};

use crate::blob::{Blob, BlobHeader, BlobInfo, BlobKey, BlobKind, Payload};
use crate::hot::{Layout, cut};
use crate::lineage::{Lineage, free_below};
use crate::message::{Beacon, CommitMark, Put, PutReply, PutResult};
use crate::mutation::{Mutation, Mutations};
use crate::placement::SlotHealth;
use crate::takeover::TakeoverPlan;

/// What would be refused here, were it not for the rule that is broken before.
const UNCHECKED: [Mutation; 3] =
    [Mutation::OversizeStep, Mutation::BatchesUnsplit, Mutation::StateUnbounded];

/// What a leader is made of.
#[derive(Clone, Debug)]
pub struct LeaderConfig {
    /// The partition.
    pub partition: PartitionId,
    /// This leader's generation, from the applied metadata log (rule T1).
    pub generation: Generation,
    /// The storage group.
    pub group: GroupConfig,
    /// The slot on this leader's own node, if it has one: reached without the network.
    pub own_slot: Option<Slot>,
    /// Datacenters that must hold a blob before it counts (`min.insync.datacenters`); 1 asks for
    /// no more than the put quorum.
    pub datacenter_count_min: usize,
    /// How records are put.
    pub layout: Layout,
    /// Most bytes put but not committed; above, [`PutError::Busy`].
    pub pending_size_bytes_max: usize,
    /// Largest payload of a blob; above, [`PutError::TooLarge`].
    pub blob_size_bytes_max: usize,
    /// Broken rules, for tests.
    pub mutations: Mutations,
}

/// A blob to be put. Offsets of records must continue the log.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What it is.
    pub kind: BlobKind,
    /// For records, [`Leader::next_offset`]; for others see [`BlobKind`].
    pub base_offset: Offset,
    /// Number of offsets it takes.
    pub record_count: u32,
    /// Largest record timestamp, -1 if none.
    pub max_timestamp_ms: i64,
    /// Its bytes.
    pub payload: Payload,
}

/// Why a blob was not put. None of these leaves a trace in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// This leader has been replaced; ask the metadata for the next.
    #[error("the partition has a newer leader; look it up and retry there")]
    Lost,
    /// The takeover is not finished.
    #[error("the leader is still taking over; retry")]
    NotServing,
    /// Too much is waiting for slow disks.
    #[error("too many bytes wait for acknowledgement; retry later")]
    Busy,
    /// No slot would ever take it.
    #[error("a blob of {size_bytes} bytes is larger than {size_bytes_max}; split what is in it")]
    TooLarge {
        /// Its size.
        size_bytes: usize,
        /// The limit.
        size_bytes_max: usize,
    },
    /// Too few datacenters are reachable for the topic's `min.insync.datacenters`, or for any quorum.
    #[error("too few datacenters are reachable to make a record durable; retry when one is back")]
    NotEnoughDatacenters,
}

/// What the embedder is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderOutput {
    /// Send this put to the slot.
    Put {
        /// Where to.
        slot: Slot,
        /// What.
        put: Put,
    },
    /// `Start` and the copied tail are committed: the partition may be served.
    Serving {
        /// What is visible.
        mark: CommitMark,
    },
    /// All steps up to the mark are committed; answer whoever waits for them.
    Committed {
        /// What is visible.
        mark: CommitMark,
    },
    /// Tell every slot what is committed.
    Beacon(Beacon),
    /// This leader is done: answer nothing more, drop all caches (rule L3).
    Lost(LossCause),
}

/// Why a leader stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// A newer leader fenced the partition.
    Fenced {
        /// Its generation.
        by: Generation,
    },
    /// A slot holds other bytes under one of this leader's keys: an invariant is broken.
    Conflict {
        /// The key.
        point: LogPoint,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Serving,
    Lost,
}

/// A manifest, as far as what may be freed depends on it.
#[derive(Clone, Copy, Debug)]
struct Replaced {
    /// Where it is; what it names lies below.
    manifest: LogPoint,
    /// Its end: no reader needs records below.
    end: Offset,
    /// The first of the blobs that it names.
    clean_from: LogPoint,
}

/// One partition's writer.
#[derive(Debug)]
pub struct Leader {
    config: LeaderConfig,
    state: State,
    lineage: Lineage,
    /// Steps sent and not yet committed, dense, the first being `first_pending`.
    pending: VecDeque<Pending>,
    pending_size_bytes: usize,
    surplus: Surplus,
    late_answers: LateAnswers,
    first_pending: Step,
    next_offset: Offset,
    log_start_offset: Offset,
    tail_length: u64,
    /// Newest committed checkpoint.
    newest_checkpoint: Option<BlobInfo>,
    /// Newest checkpoint that a put quorum knows committed, so that every takeover will use it.
    checkpoint: Option<BlobInfo>,
    /// Manifests that no such checkpoint holds yet, oldest first.
    manifests: VecDeque<Replaced>,
    /// The newest that one holds.
    replaced: Option<Replaced>,
    mark: Option<CommitMark>,
    advertised: Option<CommitMark>,
}

impl Leader {
    /// Starts the generation: puts `Start` and the copies of the in-doubt tail (rule T6).
    pub fn start(
        config: LeaderConfig,
        plan: TakeoverPlan,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<LeaderOutput>,
    ) -> Self {
        let lineage = Lineage::from_start(config.generation, &plan.start);
        let mut leader = Self {
            state: State::Starting,
            lineage,
            pending: VecDeque::new(),
            pending_size_bytes: 0,
            surplus: Surplus::new(config.pending_size_bytes_max),
            late_answers: LateAnswers::default(),
            first_pending: Step::START,
            next_offset: plan.start.base_offset,
            log_start_offset: plan.start.log_start_offset,
            tail_length: plan.tail.len() as u64,
            newest_checkpoint: None,
            checkpoint: plan.checkpoint,
            manifests: VecDeque::new(),
            replaced: None,
            mark: None,
            advertised: None,
            config,
        };
        let start = Payload::from(plan.start.encode());
        let header = BlobHeader::describe(BlobKind::Start, plan.start.base_offset, 0, -1, &start);
        leader.send_new(now, health, header, start, out);
        for (header, payload) in plan.tail {
            leader.send_new(now, health, header, payload, out);
        }
        if Mutation::ServeBeforeCommitted.active(leader.config.mutations) {
            leader.state = State::Serving;
            let point = LogPoint::new(leader.config.generation, Step::START);
            let mark = CommitMark { point, high_watermark: leader.next_offset };
            out.push(LeaderOutput::Serving { mark });
        }
        leader
    }

    /// Whether a blob would be taken now.
    pub fn admit(&self, health: &SlotHealth) -> Result<(), PutError> {
        match self.state {
            State::Serving => {}
            State::Starting => return Err(PutError::NotServing),
            State::Lost => return Err(PutError::Lost),
        }
        if self.pending_size_bytes > self.config.pending_size_bytes_max {
            return Err(PutError::Busy);
        }
        let reachable = self.config.group.good_slots().difference(health.suspect);
        let geometry = self.config.group.geometry;
        let in_parts = self.config.layout.is_in_parts(geometry, BlobKind::Records, usize::MAX);
        if !self.is_enough(in_parts, reachable) {
            return Err(PutError::NotEnoughDatacenters);
        }
        Ok(())
    }

    /// Puts a blob; it is committed when a later [`LeaderOutput::Committed`] covers its step.
    /// Callers ask [`Leader::admit`] first; what was admitted may be put later all the same.
    ///
    /// # Panics
    /// If the offsets of a records blob do not continue the log.
    pub fn put(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        draft: Draft,
        out: &mut Vec<LeaderOutput>,
    ) -> Result<Step, PutError> {
        match self.state {
            State::Serving => {}
            State::Starting => return Err(PutError::NotServing),
            State::Lost => return Err(PutError::Lost),
        }
        let (size_bytes, size_bytes_max) =
            (draft.payload.size_bytes(), self.config.blob_size_bytes_max);
        let is_unchecked = UNCHECKED.iter().any(|it| it.active(self.config.mutations));
        if size_bytes > size_bytes_max && !is_unchecked {
            return Err(PutError::TooLarge { size_bytes, size_bytes_max });
        }
        if draft.kind == BlobKind::Records {
            assert_eq!(draft.base_offset, self.next_offset, "records must continue the log");
        }
        let header = BlobHeader::describe(
            draft.kind,
            draft.base_offset,
            draft.record_count,
            draft.max_timestamp_ms,
            &draft.payload,
        );
        Ok(self.send_new(now, health, header, draft.payload, out))
    }

    /// Takes a slot's answer; returns how long the slot took to store the blob.
    pub fn on_reply(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        slot: Slot,
        reply: PutReply,
        out: &mut Vec<LeaderOutput>,
    ) -> Option<Duration> {
        let ours = reply.key.partition == self.config.partition
            && reply.key.point.generation == self.config.generation;
        if !ours || self.state == State::Lost {
            return None;
        }
        match reply.result {
            PutResult::Fenced { by } => {
                if !Mutation::KeepOnFenced.active(self.config.mutations) {
                    self.lose(LossCause::Fenced { by }, out);
                }
            }
            PutResult::Conflict if self.is_in_life(slot, reply.incarnation) => {
                self.lose(LossCause::Conflict { point: reply.key.point }, out);
            }
            PutResult::Stale { config } if config.group == self.config.group.group => {
                self.on_config(now, health, config, out);
                self.ask(now, slot, reply.key.point.step, out);
            }
            // One that goes by another group, whose versions say nothing here, has not heard that it is of this one.
            // What a disk holds of another slot, before it has begun its life in this one, is no conflict (rule S7).
            PutResult::Stale { .. } | PutResult::Refused { .. } | PutResult::Conflict => {
                if let Some(pending) = self.pending_mut(reply.key.point.step) {
                    pending.refused.insert(slot);
                    self.hedge_step(now, health, reply.key.point.step, out);
                }
            }
            PutResult::Stored => {
                if !self.counts(slot, reply.incarnation) {
                    return None;
                }
                let step = reply.key.point.step;
                let Some(pending) = self.pending_mut(step) else {
                    return self.late_answers.take(now, step, slot);
                };
                pending.acked.insert(slot);
                let took = now.since(pending.asked_at[slot.index()]);
                self.commit(out);
                return Some(took);
            }
        }
        None
    }

    /// Takes a newer group configuration: acks of disks whose life changed are dropped, and what is
    /// pending is sent again under the new version (rule L2).
    pub fn on_config(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        config: GroupConfig,
        out: &mut Vec<LeaderOutput>,
    ) {
        let known = &self.config.group;
        let is_newer = config.group == known.group && config.version > known.version;
        if !is_newer || self.state == State::Lost {
            return;
        }
        let ignore = Mutation::IncarnationIgnored.active(self.config.mutations);
        let changed: SlotSet = config
            .geometry
            .slots()
            .iter()
            .filter(|slot| {
                let life = |config: &GroupConfig| config.slot(*slot).map(|s| s.incarnation);
                life(&config) != life(&self.config.group) && !ignore
            })
            .collect();
        self.config.own_slot = self
            .config
            .own_slot
            .and_then(|slot| self.config.group.slot(slot))
            .and_then(|own| config.slot_of(own.node));
        self.config.group = config;
        for index in 0..self.pending.len() {
            let step = Step::new(self.first_pending.get() + index as u64);
            let pending = &mut self.pending[index];
            pending.acked = pending.acked.difference(changed);
            let refused = std::mem::replace(&mut pending.refused, SlotSet::EMPTY);
            let again = pending.sent.difference(pending.acked);
            for slot in again.iter() {
                if changed.union(refused).contains(slot) {
                    self.ask(now, slot, step, out);
                } else {
                    self.send(now, slot, step, out);
                }
            }
            self.hedge_step(now, health, step, out);
        }
    }

    /// Hedges what is late, sends again what may be lost, and tells the slots what is committed.
    /// Call every few milliseconds while [`Leader::has_work`].
    pub fn tick(&mut self, now: Instant, health: &SlotHealth, out: &mut Vec<LeaderOutput>) {
        if self.state == State::Lost {
            return;
        }
        self.tick_pending(now, health, out);
        // Puts carry the mark; only beacons say what may be freed, so that does not wait for quiet.
        let is_freeing = self.advertised.is_none();
        if self.mark != self.advertised && (self.pending.is_empty() || is_freeing) {
            self.advertised = self.mark;
            out.extend(self.beacon().map(LeaderOutput::Beacon));
        }
    }

    /// Whether [`Leader::tick`] has anything to do.
    pub fn has_work(&self) -> bool {
        self.state != State::Lost && (!self.pending.is_empty() || self.mark != self.advertised)
    }

    /// What slots are told of this partition, once it is served. What they may free never passes
    /// the newest checkpoint that every takeover will know committed: state must stay a checkpoint
    /// plus replay (rule T9), and a manifest that the checkpoint does not hold may yet be cut.
    pub fn beacon(&self) -> Option<Beacon> {
        let oldest = self.lineage.past.first().map(|past| past.generation);
        let checkpoint = self.checkpoint.as_ref();
        let log_start_offset = free_below(self.log_start_offset, checkpoint);
        Some(Beacon {
            partition: self.config.partition,
            mark: self.mark?,
            log_start_offset,
            free_below: free_below(self.kept_from(), checkpoint),
            clean_from: self.clean_from(log_start_offset),
            generation_min: oldest.unwrap_or(self.config.generation),
        })
    }

    /// Moves the log start after a committed `Trim`, and forgets generations wholly below it.
    pub fn set_log_start(&mut self, log_start_offset: Offset) {
        self.log_start_offset = self.log_start_offset.max(log_start_offset);
        self.trim_lineage();
    }

    fn trim_lineage(&mut self) {
        let (kept_from, log_start_offset) = (self.kept_from(), self.log_start_offset);
        self.lineage.trim(kept_from, log_start_offset, self.checkpoint.as_ref());
        self.advertised = None;
    }

    /// Changes `min.insync.datacenters`.
    pub fn set_datacenter_count_min(&mut self, datacenter_count_min: usize) {
        self.config.datacenter_count_min = datacenter_count_min;
    }

    /// Changes how records are put from now on.
    pub fn set_layout(&mut self, layout: Layout) {
        self.config.layout = layout;
    }

    /// The offset of the next record.
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// First offset that can still be read.
    pub fn log_start_offset(&self) -> Offset {
        self.log_start_offset
    }

    /// What is committed, once the partition is served.
    pub fn mark(&self) -> Option<CommitMark> {
        self.mark
    }

    /// Where every offset lives.
    pub fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// The partition that is written.
    pub fn partition(&self) -> PartitionId {
        self.config.partition
    }

    /// The generation that it is written in.
    pub fn generation(&self) -> Generation {
        self.config.generation
    }

    /// The group configuration that this leader counts by.
    pub fn group(&self) -> &GroupConfig {
        &self.config.group
    }

    /// Whether `Start` and the tail are committed and nobody has fenced this leader.
    pub fn is_serving(&self) -> bool {
        self.state == State::Serving
    }

    /// Whether it has stopped for good.
    pub fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// What the oldest blob that is not committed waits for, if there is one.
    pub fn waiting(&self) -> Option<Waiting> {
        let Pending { put_at, sent, acked, refused, .. } = self.pending.front()?;
        let refused = refused.difference(*acked);
        let silent = sent.difference(*acked).difference(refused);
        Some(Waiting { since: *put_at, refused, silent })
    }

    /// Largest payload of a blob that is put.
    pub fn blob_size_bytes_max(&self) -> usize {
        self.config.blob_size_bytes_max
    }

    /// Bytes put and not yet committed.
    pub fn pending_size_bytes(&self) -> usize {
        self.pending_size_bytes
    }

    /// Bytes that were put beside what the committed steps needed; they only grow.
    pub fn surplus_made_bytes(&self) -> u64 {
        self.surplus.made_bytes()
    }

    fn send_new(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        header: BlobHeader,
        payload: Payload,
        out: &mut Vec<LeaderOutput>,
    ) -> Step {
        let step = Step::new(self.first_pending.get() + self.pending.len() as u64);
        if header.kind == BlobKind::Records {
            self.next_offset = header.next_offset();
        }
        let point = LogPoint::new(self.config.generation, step);
        let key = BlobKey { partition: self.config.partition, point };
        let size_bytes = payload.size_bytes();
        self.pending_size_bytes += size_bytes;
        let geometry = self.config.group.geometry;
        let in_parts = self.config.layout.is_in_parts(geometry, header.kind, size_bytes);
        self.pending.push_back(Pending {
            parts: in_parts.then(|| cut(&header, &payload)),
            blob: Blob { key, header, payload },
            high_watermark: self.next_offset,
            mark: self.mark,
            sent: SlotSet::EMPTY,
            acked: SlotSet::EMPTY,
            refused: SlotSet::EMPTY,
            put_at: now,
            asked_at: [now; SLOT_COUNT_MAX],
            sent_at: [now; SLOT_COUNT_MAX],
        });
        self.hedge_step(now, health, step, out);
        step
    }

    /// Whether this is the life of the disk that fills the slot.
    fn is_in_life(&self, slot: Slot, incarnation: Incarnation) -> bool {
        self.config.group.slot(slot).is_some_and(|own| own.incarnation == incarnation)
    }

    /// Whether an ack from this life of the slot's disk counts. One of a disk that has yet to sync
    /// does not: it may have been given before the disk knew its fence (rule S4).
    fn counts(&self, slot: Slot, incarnation: Incarnation) -> bool {
        Mutation::IncarnationIgnored.active(self.config.mutations)
            || self.config.group.slot(slot).is_some_and(|config| {
                config.incarnation == incarnation && config.state == SlotState::Good
            })
    }

    /// Whether a blob on `holders` may be acknowledged.
    fn is_enough(&self, in_parts: bool, holders: SlotSet) -> bool {
        let geometry = self.config.group.geometry;
        let holders = holders.intersection(geometry.slots());
        let datacenter_count = geometry.datacenters_touched(holders);
        if Mutation::PutQuorumIsTwoDatacenters.active(self.config.mutations) {
            return datacenter_count >= 2
                || geometry.datacenter_count() == 1 && holders.count() >= 2;
        }
        let of_copies = !in_parts || Mutation::PartsCountedAsCopies.active(self.config.mutations);
        let is_durable = if of_copies {
            geometry.put_quorum(holders)
        } else if Mutation::FivePartsAcked.active(self.config.mutations) {
            holders.count() > PARTS_NEEDED
        } else {
            geometry.part_quorum(holders)
        };
        is_durable
            && datacenter_count >= self.config.datacenter_count_min.min(geometry.datacenter_count())
    }

    /// Commits steps strictly in order (rule L1).
    fn commit(&mut self, out: &mut Vec<LeaderOutput>) {
        let mut high_watermark = None;
        let mut checkpointed = false;
        while let Some(front) = self.pending.front() {
            let any_later = Mutation::AckOutOfOrder.active(self.config.mutations)
                && self
                    .pending
                    .iter()
                    .any(|later| self.is_enough(later.is_in_parts(), later.acked));
            if !self.is_enough(front.is_in_parts(), front.acked) && !any_later {
                break;
            }
            high_watermark = Some(front.high_watermark);
            let told = front.mark.map(|mark| mark.point);
            if self.newest_checkpoint.is_some_and(|info| Some(info.point) <= told) {
                self.checkpoint = self.newest_checkpoint.take();
                checkpointed = true;
            }
            if front.blob.header.kind == BlobKind::Checkpoint {
                let Blob { key, header, .. } = &front.blob;
                self.newest_checkpoint = Some(BlobInfo { point: key.point, header: *header });
            }
            self.on_front_committed();
        }
        if checkpointed {
            self.on_checkpoint_safe();
        }
        let Some(high_watermark) = high_watermark else { return };
        let committed = Step::new(self.first_pending.get() - 1);
        let starting = self.state == State::Starting;
        if starting && committed.get() < self.tail_length {
            return;
        }
        let mark =
            CommitMark { point: LogPoint::new(self.config.generation, committed), high_watermark };
        self.mark = Some(mark);
        self.state = State::Serving;
        out.push(if starting {
            LeaderOutput::Serving { mark }
        } else {
            LeaderOutput::Committed { mark }
        });
    }

    /// The oldest step that was pending is committed.
    fn on_front_committed(&mut self) {
        let Some(front) = self.pending.pop_front() else { return };
        let size_bytes = front.blob.payload.size_bytes();
        self.pending_size_bytes -= size_bytes;
        self.surplus.on_committed(size_bytes, self.surplus_bytes(&front));
        self.late_answers.on_committed(self.first_pending, &front);
        self.first_pending = self.first_pending.next();
    }

    fn lose(&mut self, cause: LossCause, out: &mut Vec<LeaderOutput>) {
        self.state = State::Lost;
        self.pending.clear();
        self.pending_size_bytes = 0;
        self.late_answers.clear();
        out.push(LeaderOutput::Lost(cause));
    }

    fn pending_ref(&self, step: Step) -> Option<&Pending> {
        let index = step.get().checked_sub(self.first_pending.get())?;
        self.pending.get(usize::try_from(index).ok()?)
    }

    fn pending_mut(&mut self, step: Step) -> Option<&mut Pending> {
        let index = step.get().checked_sub(self.first_pending.get())?;
        self.pending.get_mut(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod parts_tests;
#[cfg(test)]
mod tests;
