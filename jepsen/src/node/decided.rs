//! A node follows the metadata: it applies the log to a state machine of its own, and does what the real node does
//! because of what has changed.

use std::collections::BTreeSet;
use std::slice;

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId, TopicId};
use meridian_base::position::Generation;
use meridian_base::topology::GroupConfig;
use meridian_consensus::command::{
    Command, Endpoint, FeatureLevel, MountEpoch, NodeRegistration, Proposal, Roles, RowKind,
};
use meridian_consensus::events::{NodeEvent, NodeEvents};
use meridian_consensus::mutation::Mutation as MetadataMutation;
use meridian_consensus::node::AppliedEntry;
use meridian_consensus::placement::plan_reclaim;
use meridian_consensus::state::{
    Applied, Change, Decision, Metadata, ProducerIdBlock, producer_id_prefix,
};
use meridian_mirror::rows::MirrorTopic;
use meridian_storage::mutation::Mutation;

use super::{Node, NodeOutput, SWEEP_EVERY};
use crate::decisions::{GROUP, Once, request_of, state_machine};
use crate::seat::Seat;
use crate::topics::{self, Owner, PRODUCER_ID_MIN, class_of, is_deleted, mirror_of};

/// How many ids of a block are given away, so that more are often asked for.
const IDS_OF_BLOCK: u32 = 3;

/// What a node knows of the metadata, and what it has done about it.
pub(super) struct Decided {
    metadata: Metadata,
    /// The last entry that was applied.
    index: u64,
    events: NodeEvents,
    /// The last block of producer ids that it was given.
    ids: Option<ProducerIdBlock>,
}

impl Decided {
    pub(super) fn new(node: NodeId, mutation: Option<MetadataMutation>) -> Self {
        let events = NodeEvents::new(node, request_of(node, 0, Once::Register));
        Self { metadata: state_machine(mutation), index: 0, events, ids: None }
    }
}

impl Node {
    /// The metadata, as far as this node has applied the log.
    pub fn metadata(&self) -> &Metadata {
        &self.decided.metadata
    }

    /// The last entry that it has applied.
    pub fn applied_index(&self) -> u64 {
        self.decided.index
    }

    /// Who leads a partition, as far as this node knows.
    pub fn owner(&self, partition: PartitionId) -> Option<Owner> {
        topics::owner_of(&self.decided.metadata, partition)
    }

    /// The storage group, once this node has heard of it.
    pub(super) fn group(&self) -> Option<&GroupConfig> {
        self.decided.metadata.group(GROUP)
    }

    /// Whether a partition was, and is no more, as far as this node knows.
    pub(crate) fn knows_deleted(&self, partition: PartitionId) -> bool {
        is_deleted(&self.decided.metadata, partition, self.mutations)
    }

    /// What a process does first: it goes by the metadata that is there, and registers.
    pub(super) fn join(&mut self, now: Instant, out: &mut Vec<NodeOutput>) {
        let mut events = Vec::new();
        let mut seen = NodeEvents::new(self.id, request_of(self.id, self.boot, Once::Register));
        seen.on_replaced(&self.decided.metadata, &mut events);
        self.decided.events = seen;
        for event in events {
            self.on_event(now, event, out);
        }
        let proposal = self.registration();
        out.push(NodeOutput::Propose(proposal));
    }

    /// How this process registers.
    pub(crate) fn registration(&self) -> Proposal {
        let endpoint = Endpoint { host: format!("node-{}", self.id), port: 1 };
        let registration = NodeRegistration {
            node: self.id,
            datacenter: self.place.0.clone(),
            rack: self.place.1.clone(),
            roles: Roles::ALL,
            kafka: endpoint.clone(),
            peer: endpoint.clone(),
            admin: endpoint,
            binary_version: String::new(),
            feature_level_min: FeatureLevel::FIRST,
            feature_level_max: FeatureLevel::LATEST,
        };
        let request_id = request_of(self.id, self.boot, Once::Register);
        Proposal { request_id, command: Command::RegisterNode(registration) }
    }

    /// How this process says which disk it has mounted.
    pub(crate) fn mount(&self) -> Option<Proposal> {
        let identity = self.seat.as_ref()?.identity();
        let command = Command::MountDisk {
            node: self.id,
            incarnation: identity.incarnation,
            mount_epoch: MountEpoch::new(identity.mount_epoch),
            found_data: true,
        };
        Some(Proposal { request_id: request_of(self.id, self.boot, Once::Mount), command })
    }

    /// Applies the next entry of the metadata log.
    pub fn apply(&mut self, now: Instant, proposal: &Proposal, out: &mut Vec<NodeOutput>) {
        let index = self.decided.index + 1;
        let before = self.group().cloned();
        let Applied { result, changes, .. } = self.decided.metadata.apply(index, proposal);
        self.decided.index = index;
        let entry = AppliedEntry { index, request_id: proposal.request_id, result, changes };
        let mut events = Vec::new();
        let Decided { events: seen, metadata, .. } = &mut self.decided;
        seen.on_applied(metadata, slice::from_ref(&entry), &mut events);
        if let (Some(before), Some(group)) = (before, self.decided.metadata.group(GROUP)) {
            self.watches.adopt(&before, group);
        }
        for event in events {
            self.on_event(now, event, out);
        }
        for change in &entry.changes {
            if let Change::Row(RowKind::MirrorTopic, key) = change {
                self.on_mirror_row(key);
            }
        }
        self.on_result(now, proposal, entry.result.ok(), out);
    }

    fn on_event(&mut self, now: Instant, event: NodeEvent, out: &mut Vec<NodeOutput>) {
        match event {
            NodeEvent::Group(group) => {
                self.begin_life(now, out);
                self.adopt(now, &group, out);
                self.send_fences(out);
                let mut outputs = Vec::new();
                if let Some(seat) = &mut self.seat {
                    seat.on_config(now, &group, &mut outputs);
                }
                self.carry_out_seat(outputs, out);
            }
            NodeEvent::Ownership { owned, lost } => {
                for partition in lost {
                    self.end_before_present(now, partition, out);
                }
                for partition in owned {
                    self.end_before_present(now, partition, out);
                    if let Some(owner) = self.owner(partition) {
                        self.lead(now, partition, owner, out);
                    }
                }
            }
            NodeEvent::TopicDeleted(topic) => {
                for partition in topic.partitions {
                    self.end(now, partition, |_| true, out);
                    self.forget(now, partition, out);
                }
            }
            NodeEvent::TopicConfigs(topic) => self.on_topic_configs(topic),
            // Where nodes are is known here, and none is removed.
            NodeEvent::Node(_) | NodeEvent::Replaced | NodeEvent::Removed => {}
        }
    }

    /// What an entry says to who proposed it.
    fn on_result(
        &mut self,
        now: Instant,
        proposal: &Proposal,
        decision: Option<Decision>,
        out: &mut Vec<NodeOutput>,
    ) {
        let is_own = |what| proposal.request_id == request_of(self.id, self.boot, what);
        match (&proposal.command, decision) {
            (Command::RegisterNode(_), Some(_)) if is_own(Once::Register) => {
                out.extend(self.mount().map(NodeOutput::Propose));
            }
            (Command::MountDisk { .. }, Some(Decision::Mounted { incarnation, .. }))
                if is_own(Once::Mount) =>
            {
                let mut outputs = Vec::new();
                let is_first = match &mut self.seat {
                    Some(seat) => seat.confirm_mount(now, incarnation, &mut outputs),
                    None => false,
                };
                self.carry_out_seat(outputs, out);
                if is_first {
                    self.begin_life(now, out);
                    let reclaims = plan_reclaim(&self.decided.metadata, self.id, &BTreeSet::new());
                    out.extend(reclaims.into_iter().map(NodeOutput::Reclaim));
                }
            }
            (Command::AllocateProducerIds { node }, Some(Decision::ProducerIds(block)))
                if *node == self.id =>
            {
                self.decided.ids = Some(block);
                self.use_last_block();
            }
            _ => {}
        }
    }

    /// What is left of a block when its process ends is never used.
    pub(super) fn begin_ids(&mut self) {
        self.producer_ids = 0..0;
        if Mutation::ProducerIdReused.active(self.mutations) {
            self.use_last_block();
        }
    }

    /// Values name their producer in 32 bits: what sets the ids of this cluster apart from another's is left out.
    fn use_last_block(&mut self) {
        let Some(cluster) = self.decided.metadata.cluster_id() else { return };
        if let Some(block) = self.decided.ids {
            let number = block.first - producer_id_prefix(cluster);
            let first = PRODUCER_ID_MIN + number as u32;
            self.producer_ids = first..first + IDS_OF_BLOCK.min(block.count);
        }
    }

    /// Has the disk take on the life that it was given with its slot.
    fn begin_life(&mut self, now: Instant, out: &mut Vec<NodeOutput>) {
        let known = self.decided.metadata.disk(self.id);
        let mut outputs = Vec::new();
        if let (Some(seat), Some(known)) = (&mut self.seat, known) {
            seat.begin_life(now, known, &mut outputs);
        }
        self.carry_out_seat(outputs, out);
    }

    /// Ends what this node leads of earlier generations than the present one.
    fn end_before_present(
        &mut self,
        now: Instant,
        partition: PartitionId,
        out: &mut Vec<NodeOutput>,
    ) {
        let present = self.owner(partition).map(|owner| owner.generation);
        self.end(now, partition, |generation| Some(generation) < present, out);
    }

    fn end(
        &mut self,
        now: Instant,
        partition: PartitionId,
        ends: impl Fn(Generation) -> bool,
        out: &mut Vec<NodeOutput>,
    ) {
        let led = self.brokers.keys().filter(|(led, at)| *led == partition && ends(*at));
        for key in led.copied().collect::<Vec<_>>() {
            self.with_broker(now, key, out, |broker, _, out| broker.end(out));
            self.brokers.remove(&key);
        }
    }

    fn on_topic_configs(&mut self, topic: TopicId) {
        let metadata = &self.decided.metadata;
        for ((partition, _), broker) in &mut self.brokers {
            if metadata.partition(*partition).is_some_and(|it| it.topic == topic) {
                broker.set_datacenter_count_min(metadata.datacenter_count_min(topic));
                broker.convert(class_of(metadata, *partition));
            }
        }
    }

    fn on_mirror_row(&mut self, key: &[u8]) {
        let (metadata, mutation) = (&self.decided.metadata, self.mirror_mutation);
        let topic = MirrorTopic::topic_of(key);
        for ((partition, _), broker) in &mut self.brokers {
            if metadata.partition(*partition).map(|it| it.topic) == topic {
                broker.follow(mirror_of(metadata, *partition), mutation);
            }
        }
    }

    fn forget(&mut self, now: Instant, partition: PartitionId, out: &mut Vec<NodeOutput>) {
        let mut outputs = Vec::new();
        if let Some(seat) = &mut self.seat {
            seat.forget(now, partition, &mut outputs);
        }
        self.carry_out_seat(outputs, out);
    }

    /// Frees what the disk has of partitions that are no more, now and then.
    pub(super) fn sweep_disk(&mut self, now: Instant, out: &mut Vec<NodeOutput>) {
        if now < self.sweep_at || Mutation::ToldOnceOfDeletion.active(self.mutations) {
            return;
        }
        self.sweep_at = now + SWEEP_EVERY;
        let found = self.seat.as_ref().map(Seat::partitions).unwrap_or_default();
        for partition in found {
            if self.knows_deleted(partition) {
                self.forget(now, partition, out);
            }
        }
    }
}
