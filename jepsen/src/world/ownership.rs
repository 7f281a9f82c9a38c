//! The metadata plane of the world: mounts, appointments, and each node's late view of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{Incarnation, NodeId, PartitionId};
use meridian_base::position::LeaderEpoch;
use meridian_base::topology::{Slot, SlotSet};
use meridian_consensus::command::{Command, ConfigResource, LeaderAssignment, Proposal};
use meridian_consensus::error::Refusal;
use meridian_consensus::lifecycle::plan_replacement;
use meridian_consensus::state::Decision;
use meridian_storage::erasure::Code;
use meridian_storage::message::CommitMark;
use meridian_storage::mutation::Mutation;

use super::{APPLY_AGAIN_AFTER, APPLY_DELAY, Event, World};
use crate::broker::Broker;
use crate::check::Verdict;
use crate::net::Endpoint;
use crate::seat::SeatOutput;
use crate::topics::{Class, Owner, topic_of};

impl World {
    /// The metadata plane hears what a store says of its disk.
    pub(super) fn on_seat_report(&mut self, node: usize, report: SeatOutput) {
        match report {
            SeatOutput::Synced(incarnation) => self.report_synced(node, incarnation),
            SeatOutput::Failed(reason) => {
                self.trace.event(self.now, format_args!("N{node} disk: {reason}"));
                self.stop_node(node);
                let delay = self.chance.around(Duration::from_secs(1));
                self.schedule(delay, Event::Restart { node });
            }
            SeatOutput::Send(..) | SeatOutput::SendToSlot(..) | SeatOutput::Disk(_) => {}
        }
    }

    /// Its disk has synced. What is lost on its way, or refused, is said again.
    fn report_synced(&mut self, node: usize, incarnation: Incarnation) {
        let filled = self.nodes[node].metadata().slot_filled_by(self.nodes[node].id);
        let Some((group, slot)) = filled.filter(|_| self.reaches_majority(node)) else { return };
        let result = self.decide(Command::SlotSynced { group, slot, incarnation });
        self.trace.event(
            self.now,
            format_args!("N{node} disk: synced {incarnation}: {:?}", result.err()),
        );
    }

    /// A node proposes something, and does so again until it is decided.
    pub(super) fn propose_soon(&mut self, node: usize, proposal: Arc<Proposal>) {
        let boot = self.nodes[node].boot;
        self.schedule(APPLY_DELAY, Event::Propose { node, boot, proposal });
    }

    /// What a process proposes comes to the leader of the metadata log, if there is one for it.
    pub(super) fn propose(&mut self, node: usize, boot: u64, proposal: Arc<Proposal>) {
        if !self.nodes[node].is_up() || self.nodes[node].boot != boot {
            return;
        }
        if !self.reaches_majority(node) {
            self.schedule(APPLY_AGAIN_AFTER, Event::Propose { node, boot, proposal });
            return;
        }
        let command = &proposal.command;
        self.trace.event(self.now, format_args!("N{node} boot {boot} proposes {command:?}"));
        // A node hears of a refusal as it applies the entry.
        let _applied_there = self.decide_as(proposal);
    }

    /// Decides something, of which every node hears in its own time.
    pub(crate) fn decide(&mut self, command: Command) -> Result<Decision, Refusal> {
        let proposal = self.decisions.proposal(command);
        self.decide_as(proposal)
    }

    fn decide_as(&mut self, proposal: Arc<Proposal>) -> Result<Decision, Refusal> {
        let result = self.decisions.decide(proposal);
        if let Ok(Decision::Assigned { assigned_count, .. }) = result {
            self.counters.appointment_count += u64::from(assigned_count);
        }
        self.announce_metadata();
        result
    }

    /// A node that the metadata plane hears gets producer ids, once it hears of it.
    pub(super) fn give_producer_ids(&mut self, node: usize) {
        let id = self.nodes[node].id;
        let is_on_its_way =
            self.decisions.after(self.nodes[node].applied_index()).iter().any(|proposal| {
                matches!(proposal.command, Command::AllocateProducerIds { node } if node == id)
            });
        if self.reaches_majority(node) && !is_on_its_way {
            let result = self.decide(Command::AllocateProducerIds { node: id });
            self.trace.event(self.now, format_args!("N{node} producer ids: {result:?}"));
        }
    }

    /// Gives a partition a new leader, whose epoch is above this one and all before.
    pub(crate) fn assign_above(
        &mut self,
        partition: PartitionId,
        leader: NodeId,
        epoch_floor: LeaderEpoch,
    ) -> Option<Owner> {
        let expected = self.owner(partition)?.generation;
        let assignment = LeaderAssignment { partition, expected, leader, epoch_floor };
        let result = self.decide(Command::AssignLeaders(vec![assignment]));
        self.trace.event(self.now, format_args!("metadata: {assignment:?}: {result:?}"));
        self.owner(partition)
    }

    /// Gives a partition a new leader.
    pub(crate) fn assign(&mut self, partition: PartitionId, node: usize) -> Option<Owner> {
        self.assign_above(partition, self.nodes[node].id, LeaderEpoch::UNKNOWN)
    }

    /// Appoints a leader. Now and then the proposal is lost and another node is appointed under the
    /// same generation: a node that acts before the entry is applied shares it (rule T1).
    pub(crate) fn appoint(&mut self, partition: PartitionId, node: usize) {
        let Some(present) = self.owner(partition) else { return };
        let lost_proposal = self.chance.per_mille(200);
        let heir = self.chance.below(self.nodes.len());
        if lost_proposal && Mutation::ActBeforeApplied.active(self.mutations) {
            let owner = Owner {
                generation: present.generation.next(),
                leader_epoch: present.leader_epoch.next(),
                node: self.nodes[node].id,
            };
            self.schedule(APPLY_DELAY, Event::Lead { node, partition, owner });
        }
        self.assign(partition, if lost_proposal { heir } else { node });
    }

    /// Has the records of a partition put in another way, once its leader hears of it.
    pub(crate) fn convert(&mut self, partition: PartitionId, class: Class) {
        self.counters.conversion_count += 1;
        let (resource, changes) =
            (ConfigResource::Topic(topic_of(partition)), vec![class.config()]);
        let result = self.decide(Command::SetConfigs { resource, changes });
        self.trace
            .event(self.now, format_args!("metadata: {partition:?} to {class:?}: {result:?}"));
    }

    /// Gives a slot to a spare, if it may have it.
    pub(crate) fn replace(&mut self, slot: Slot, to: NodeId) -> bool {
        let from = self.group().slots[slot.index()].node;
        let planned = plan_replacement(self.decisions.latest(), from, Some(to));
        let Ok(command) = planned else { return false };
        let result = self.decide(command);
        self.trace.event(self.now, format_args!("metadata: {slot:?} to {to:?}: {result:?}"));
        self.counters.replacement_count += u64::from(result.is_ok());
        result.is_ok()
    }

    /// Every node hears of new entries in its own time.
    pub(crate) fn announce_metadata(&mut self) {
        for node in 0..self.nodes.len() {
            let delay = APPLY_DELAY + self.chance.around(APPLY_DELAY) + self.metadata_lag[node];
            self.schedule(delay, Event::ApplyMetadata { node });
        }
    }

    pub(super) fn apply_metadata(&mut self, node: usize) -> Verdict {
        if !self.nodes[node].is_up() {
            return Ok(());
        }
        if !self.reaches_majority(node) {
            self.schedule(APPLY_AGAIN_AFTER, Event::ApplyMetadata { node });
            return Ok(());
        }
        for proposal in self.decisions.after(self.nodes[node].applied_index()).to_vec() {
            self.with_node(node, |node, now, out| node.apply(now, &proposal, out))?;
        }
        Ok(())
    }

    /// Whether a node can hear the metadata log: from a majority of the voters that is up, both ways. Spares do not
    /// vote.
    pub(crate) fn reaches_majority(&self, node: usize) -> bool {
        let here = Endpoint(node);
        let voter_count = self.geometry().slot_count();
        let reached = (0..voter_count)
            .filter(|&peer| {
                let there = Endpoint(peer);
                self.is_running(peer)
                    && !self.network.is_cut(here, there)
                    && !self.network.is_cut(there, here)
            })
            .count();
        reached > voter_count / 2
    }

    /// Whether the leaders of all partitions have found every part of what is cold where it belongs, by
    /// asking after `since`.
    pub(crate) fn is_cold_whole_since(&self, since: Instant) -> bool {
        self.convertible().into_iter().all(|partition| {
            self.newest_broker(partition).is_some_and(|broker| broker.is_cold_whole_since(since))
        })
    }

    /// The codes of all stripes that there may be: of those that leaders know of, and of those that they pack.
    pub(crate) fn codes(&self) -> impl Iterator<Item = Code> {
        let may_be = move |code: Code| {
            self.convertible().into_iter().any(|partition| {
                let packs = self.class_of(partition) == Class::Cold(code);
                packs || self.newest_broker(partition).is_none_or(|it| it.may_have_stripes_of(code))
            })
        };
        let codes = Code::ALL.into_iter();
        codes.filter(move |code| self.classes.contains(&Class::Cold(*code)) && may_be(*code))
    }

    /// What a partition waits for: the next step after this one to be committed, or (`None`) to be served. Nothing if it
    /// has nothing to do.
    pub(crate) fn waits(&self, partition: PartitionId) -> Option<Option<CommitMark>> {
        let broker = self.newest_broker(partition)?;
        if broker.is_serving() { broker.waits_after().map(Some) } else { Some(None) }
    }

    /// Whether its leader runs and reaches slots, there and back, that may be all it needs: a fence quorum that counts, in
    /// as many datacenters as each record must be in.
    pub(crate) fn could_go_on(&self, partition: PartitionId) -> bool {
        let Some(owner) = self.owner(partition) else { return false };
        let leader = owner.node.get() as usize;
        let reached: SlotSet = self
            .group()
            .good_slots()
            .iter()
            .filter(|slot| self.reaches_well(leader, self.node_of(*slot)))
            .collect();
        let datacenters = reached.iter().map(|slot| self.geometry().datacenter_of(slot));
        self.is_running(leader)
            && self.geometry().fence_quorum(reached)
            && datacenters.collect::<BTreeSet<_>>().len() >= self.datacenter_count_min
    }

    /// The highest mount epoch seen of the node's disk.
    pub(crate) fn mount_epoch(&self, node: NodeId) -> u64 {
        self.decisions.latest().disk(node).map_or(0, |disk| disk.mount_epoch.get())
    }

    /// Whether a node fills a slot that counts.
    pub(crate) fn is_good(&self, node: usize) -> bool {
        let good = self.group().good_slots();
        self.slot_of(node).is_some_and(|slot| good.contains(slot))
    }

    /// Whether a node reaches another, there and back, which runs and whose disk is well.
    pub(crate) fn reaches_well(&self, node: usize, peer: usize) -> bool {
        let (here, there) = (Endpoint(node), Endpoint(peer));
        self.is_running(peer)
            && self.nodes[peer].disk.is_itself()
            && !self.network.is_cut(here, there)
            && !self.network.is_cut(there, here)
    }

    /// Whether the newest leader of `partition` serves clients.
    pub(crate) fn is_served(&self, partition: PartitionId) -> bool {
        self.newest_broker(partition).is_some_and(Broker::is_serving)
    }
}
