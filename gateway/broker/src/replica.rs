//! One partition on one node, from its appointment to its replacement.
//!
//! ```text
//! Opening ---> TakingOver ----> Leading: state rebuilt, Start committed --> serves
//!    |             |               |
//!    '-------------'-- replaced ---'-- fenced by a newer leader ----------> Stopped
//! ```
//!
//! The first generation has nothing to take over: it leads at once. Produce requests that come before the
//! partition serves are parked, and appended before whatever else may come.
//!
//! | module | decides |
//! | --- | --- |
//! | [`fences`] | which fences go in one request |
//! | [`rebuild`] | what is read to rebuild a new leader's state |
//! | [`parked`] | which produce requests wait until the partition serves, and for how long |
//! | [`slots`] | which slots of a storage group are taken for dead, and which are asked first |
//! | [`follow`] | what a node may show of a partition that another one leads |
//! | [`view`] | what a reader may see, and where those records lie |
//! | [`ahead`] | what is read before readers ask for it, how much, and whether they are shown it |
//! | [`read`] | which slots are asked for a run of blobs, when the next one is, and what their answers come to |

pub mod ahead;
pub mod fences;
pub mod follow;
pub mod parked;
pub mod read;
pub mod rebuild;
pub mod slots;
pub mod view;

use meridian_base::env::Instant;
use meridian_base::id::{Incarnation, NodeId, PartitionId};
use meridian_base::position::{Generation, LeaderEpoch};
use meridian_base::topology::{GroupConfig, Slot};
use meridian_storage::hot::Layout;
use meridian_storage::leader::{LeaderConfig, PutError};
use meridian_storage::lineage::Lineage;
use meridian_storage::message::{FenceAnswer, Read, ReadReply};
use meridian_storage::mutation::Mutations;
use meridian_storage::placement::SlotHealth;
use meridian_storage::takeover::{
    Contradiction, Former, Takeover, TakeoverConfig, TakeoverOutput, TakeoverPlan,
};

use self::fences::Fence;
use self::parked::Parked;
use self::rebuild::{Rebuild, RebuildPlan};
use crate::partition::{Partition, PartitionLimits, PartitionOutput, RecordBatch, ReplayError};

/// What a replica is made of.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The partition.
    pub partition: PartitionId,
    /// The generation, from the applied metadata log (rule T1).
    pub generation: Generation,
    /// The epoch that clients see.
    pub leader_epoch: LeaderEpoch,
    /// This node.
    pub node: NodeId,
    /// Bounds of the partition.
    pub limits: PartitionLimits,
    /// Most bytes put but not committed.
    pub pending_size_bytes_max: usize,
    /// Largest blob.
    pub blob_size_bytes_max: usize,
    /// Datacenters a record must be in before it is acknowledged.
    pub datacenter_count_min: usize,
    /// Whether records are put as copies or in parts.
    pub layout: Layout,
    /// Whether the sources of records are remembered.
    pub tracks_sources: bool,
    /// Broken rules, for tests.
    pub mutations: Mutations,
}

/// What the embedder does while the partition is taken over and its state is rebuilt.
#[derive(Debug)]
pub enum ReplicaOutput<T> {
    /// Ask for a fence, together with others ([`fences::Fences`]).
    Fence(Fence),
    /// Read a part of the tail in doubt; its answer is for [`Replica::on_tail`].
    ReadTail {
        /// The node that fills the slot.
        node: NodeId,
        /// Where.
        slot: Slot,
        /// What.
        request: Read,
    },
    /// Rebuild the state behind the cut, and give it to [`Replica::recover`].
    Rebuild(RebuildPlan),
    /// What the partition's leader wants, and answers to who waits.
    Led(PartitionOutput<T>),
    /// It has stopped for good.
    Stopped(StopCause),
}

/// Why a replica stopped before it served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopCause {
    /// A newer leader was faster.
    #[error("superseded by {0}")]
    Superseded(Generation),
    /// The slots' contents contradict the log's rules.
    #[error("{0}")]
    Broken(#[from] Contradiction),
    /// The copied tail does not replay.
    #[error("{0}")]
    Replay(#[from] ReplayError),
}

#[derive(Debug)]
enum Role<T> {
    /// Owned; the takeover has yet to begin.
    Opening,
    TakingOver(Box<Takeover>),
    Leading(Box<Partition<T>>),
    Stopped,
}

/// One partition on one node. `T` names who waits for an answer.
#[derive(Debug)]
pub struct Replica<T> {
    config: ReplicaConfig,
    role: Role<T>,
    parked: Parked<T>,
}

impl<T> Replica<T> {
    /// Owned, and not taken over yet.
    pub fn new(config: ReplicaConfig) -> Self {
        let parked = Parked::new(config.mutations);
        Self { config, role: Role::Opening, parked }
    }

    /// Begins to take the partition over. `group` is where the generation is put, `former` are the groups that the
    /// partition was in before.
    pub fn begin(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        group: GroupConfig,
        former: Vec<Former>,
        out: &mut Vec<ReplicaOutput<T>>,
    ) {
        if !matches!(self.role, Role::Opening) {
            return;
        }
        let ReplicaConfig { partition, generation, leader_epoch, mutations, .. } = self.config;
        if generation == Generation::FIRST {
            return self.lead(now, health, group, TakeoverPlan::first(leader_epoch), out);
        }
        let config =
            TakeoverConfig { partition, generation, leader_epoch, group, former, mutations };
        let mut outputs = Vec::new();
        self.role = Role::TakingOver(Box::new(Takeover::begin(config, now, &mut outputs)));
        self.carry_out(now, health, outputs, out);
    }

    /// Takes the answer of `from`'s slot to a fence.
    pub fn on_fence_answer(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        (from, incarnation): (NodeId, Incarnation),
        answer: FenceAnswer,
        out: &mut Vec<ReplicaOutput<T>>,
    ) {
        let generation = self.config.generation;
        self.take_over(now, health, out, |takeover, outputs| {
            // One of another group than is asked now is late.
            if let Some(slot) = takeover.group().slot_of(from)
                && answer.generation == generation
            {
                takeover.on_answer(now, slot, incarnation, answer.result, outputs);
            }
        });
    }

    /// Takes a slot's answer to a read of the tail.
    pub fn on_tail(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        slot: Slot,
        reply: ReadReply,
        out: &mut Vec<ReplicaOutput<T>>,
    ) {
        self.take_over(now, health, out, |takeover, outputs| {
            takeover.on_read(now, slot, reply, outputs);
        });
    }

    /// Takes a newer configuration of a group that the partition is in, or was.
    pub fn on_config(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        group: &GroupConfig,
        out: &mut Vec<ReplicaOutput<T>>,
    ) {
        self.take_over(now, health, out, |takeover, outputs| {
            takeover.on_config(now, group.clone(), outputs);
        });
        let mut outputs = Vec::new();
        self.act(now, health, &mut outputs, |partition, outputs| {
            if partition.leader().group().group == group.group {
                partition.on_config(now, health, group.clone(), outputs);
            }
        });
        out.extend(outputs.into_iter().map(ReplicaOutput::Led));
    }

    /// Asks again for what the takeover was not answered; refuses what has waited too long for it. Call every 100 ms or
    /// so while the replica [is opening](Self::is_opening).
    pub fn tick_opening(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<ReplicaOutput<T>>,
    ) {
        self.take_over(now, health, out, |takeover, outputs| takeover.tick(now, outputs));
        let mut outputs = Vec::new();
        self.parked.expire(now, &mut outputs);
        out.extend(outputs.into_iter().map(ReplicaOutput::Led));
    }

    /// Takes the state behind the cut, once all that is wanted for it was read.
    pub fn recover(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        rebuilt: Rebuild,
        out: &mut Vec<ReplicaOutput<T>>,
    ) {
        let state = rebuilt.into_state(self.config.tracks_sources);
        let mut outputs = Vec::new();
        let recovered = self
            .act(now, health, &mut outputs, |partition, outputs| partition.recover(state, outputs));
        out.extend(outputs.into_iter().map(ReplicaOutput::Led));
        if let Some(Err(error)) = recovered {
            self.give_up(error.into(), out);
        }
    }

    /// Appends batches, or parks them until the partition serves. `waiter` is answered when they are committed, or
    /// refused.
    pub fn produce(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        batches: Vec<RecordBatch>,
        waiter: T,
        out: &mut Vec<PartitionOutput<T>>,
    ) {
        match &mut self.role {
            Role::Leading(partition) if partition.is_serving() => {
                partition.produce(now, health, batches, waiter, out);
            }
            Role::Opening | Role::TakingOver(_) | Role::Leading(_) => {
                self.parked.push(now, batches, waiter, out);
            }
            Role::Stopped => {
                let result = Err(PutError::Lost.into());
                out.push(PartitionOutput::Answer { waiter, result });
            }
        }
    }

    /// Runs `decide` on the partition, if this node leads it; what was parked is appended as soon as it serves.
    pub fn act<R>(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<PartitionOutput<T>>,
        decide: impl FnOnce(&mut Partition<T>, &mut Vec<PartitionOutput<T>>) -> R,
    ) -> Option<R> {
        let Role::Leading(partition) = &mut self.role else { return None };
        let result = decide(partition, out);
        self.parked.release(now, health, partition, out);
        if partition.leader().is_lost() {
            self.stop(out);
        }
        Some(result)
    }

    /// Stops for good: the metadata log named another leader, or the topic is gone. Who waits is told that the outcome
    /// is in doubt (rule L3).
    pub fn stop(&mut self, out: &mut Vec<PartitionOutput<T>>) {
        if let Role::Leading(partition) = &mut self.role {
            partition.stop(out);
        }
        self.role = Role::Stopped;
        self.parked.stop(out);
    }

    /// A batch of this producer was refused before it came here: what it sends next must not come first (rule P1).
    pub fn note_refused(&mut self, producer_id: i64) {
        match &mut self.role {
            Role::Leading(partition) if partition.is_serving() => {
                partition.note_refused_before(producer_id);
            }
            _ => self.parked.note_refused(),
        }
    }

    /// Changes in how many datacenters a record must be before it is acknowledged.
    pub fn set_datacenter_count_min(&mut self, datacenter_count_min: usize) {
        self.config.datacenter_count_min = datacenter_count_min;
        if let Role::Leading(partition) = &mut self.role {
            partition.leader_mut().set_datacenter_count_min(datacenter_count_min);
        }
    }

    /// Changes how records are put from now on.
    pub fn set_layout(&mut self, layout: Layout) {
        self.config.layout = layout;
        if let Role::Leading(partition) = &mut self.role {
            partition.leader_mut().set_layout(layout);
        }
    }

    /// Changes whether the sources of records are remembered.
    pub fn track_sources(&mut self, tracks_sources: bool, now_ms: i64) {
        self.config.tracks_sources = tracks_sources;
        if let Role::Leading(partition) = &mut self.role {
            partition.track_sources(tracks_sources, now_ms);
        }
    }

    /// The partition, while this node leads it: it may not serve yet.
    pub fn partition(&self) -> Option<&Partition<T>> {
        match &self.role {
            Role::Leading(partition) => Some(partition),
            Role::Opening | Role::TakingOver(_) | Role::Stopped => None,
        }
    }

    /// The partition, to change it in ways that neither make it serve nor end it; all others are for [`Replica::act`].
    pub fn partition_mut(&mut self) -> Option<&mut Partition<T>> {
        match &mut self.role {
            Role::Leading(partition) => Some(partition),
            Role::Opening | Role::TakingOver(_) | Role::Stopped => None,
        }
    }

    /// Whether clients are served.
    pub fn is_serving(&self) -> bool {
        self.partition().is_some_and(Partition::is_serving)
    }

    /// Whether it is not served yet, and is to be.
    pub fn is_opening(&self) -> bool {
        match &self.role {
            Role::Opening | Role::TakingOver(_) => true,
            Role::Leading(partition) => !partition.is_serving(),
            Role::Stopped => false,
        }
    }

    /// Whether requests wait until it is served.
    pub fn is_waited_for(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Bytes of records that wait: for the partition to serve, or to be committed.
    pub fn pending_size_bytes(&self) -> usize {
        let appended = self.partition().map_or(0, Partition::pending_size_bytes);
        appended + self.parked.size_bytes()
    }

    /// The group configuration that is counted by: what is to be sent goes there.
    pub fn group(&self) -> Option<&GroupConfig> {
        match &self.role {
            Role::TakingOver(takeover) => Some(takeover.group()),
            Role::Leading(partition) => Some(partition.leader().group()),
            Role::Opening | Role::Stopped => None,
        }
    }

    /// What the replica is doing, in a word.
    pub fn phase_name(&self) -> &'static str {
        match &self.role {
            Role::Opening => "opening",
            Role::TakingOver(_) => "taking over",
            Role::Leading(partition) if partition.is_serving() => "serving",
            Role::Leading(_) => "recovering",
            Role::Stopped => "stopped",
        }
    }

    fn take_over(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        out: &mut Vec<ReplicaOutput<T>>,
        decide: impl FnOnce(&mut Takeover, &mut Vec<TakeoverOutput>),
    ) {
        let Role::TakingOver(takeover) = &mut self.role else { return };
        let mut outputs = Vec::new();
        decide(takeover, &mut outputs);
        self.carry_out(now, health, outputs, out);
    }

    fn carry_out(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        outputs: Vec<TakeoverOutput>,
        out: &mut Vec<ReplicaOutput<T>>,
    ) {
        for output in outputs {
            let Role::TakingOver(takeover) = &self.role else { return };
            let asked = takeover.group();
            let node_of = |slot: Slot| asked.slot(slot).map(|slot| slot.node);
            match output {
                TakeoverOutput::FenceRead { slot, above } => {
                    let fence = |node| Fence {
                        node,
                        group: asked.group,
                        config_version: asked.version,
                        partition: self.config.partition,
                        generation: self.config.generation,
                        above,
                    };
                    out.extend(node_of(slot).map(fence).map(ReplicaOutput::Fence));
                }
                TakeoverOutput::Read { slot, request } => {
                    let read = |node| ReplicaOutput::ReadTail { node, slot, request };
                    out.extend(node_of(slot).map(read));
                }
                TakeoverOutput::Decided(plan) => {
                    let group = takeover.target().clone();
                    self.lead(now, health, group, *plan, out);
                }
                TakeoverOutput::Superseded { by } => self.give_up(StopCause::Superseded(by), out),
                TakeoverOutput::Broken(contradiction) => self.give_up(contradiction.into(), out),
            }
        }
    }

    /// Starts the generation, and has the state behind it rebuilt.
    fn lead(
        &mut self,
        now: Instant,
        health: &SlotHealth,
        group: GroupConfig,
        plan: TakeoverPlan,
        out: &mut Vec<ReplicaOutput<T>>,
    ) {
        let ReplicaConfig { partition, generation, leader_epoch, node, limits, .. } = self.config;
        let config = LeaderConfig {
            partition,
            generation,
            own_slot: group.slot_of(node),
            group,
            datacenter_count_min: self.config.datacenter_count_min,
            layout: self.config.layout,
            pending_size_bytes_max: self.config.pending_size_bytes_max,
            blob_size_bytes_max: self.config.blob_size_bytes_max,
            mutations: self.config.mutations,
        };
        let checkpoint = plan.checkpoint.map(|info| info.point);
        let lineage = Lineage::from_start(generation, &plan.start);
        let segments = lineage.segments_after(checkpoint);
        let tracks_sources = self.config.tracks_sources;
        let mut outputs = Vec::new();
        let led = Partition::start(config, leader_epoch, limits, plan, now, health, &mut outputs);
        self.role = Role::Leading(Box::new(led));
        out.extend(outputs.into_iter().map(ReplicaOutput::Led));
        let plan = RebuildPlan { partition, checkpoint, segments, tracks_sources };
        out.push(ReplicaOutput::Rebuild(plan));
    }

    fn give_up(&mut self, cause: StopCause, out: &mut Vec<ReplicaOutput<T>>) {
        let mut outputs = Vec::new();
        self.stop(&mut outputs);
        out.extend(outputs.into_iter().map(ReplicaOutput::Led));
        out.push(ReplicaOutput::Stopped(cause));
    }
}

#[cfg(test)]
mod tests;
