//! The metadata plane of the world: mounts, appointments, and each node's late view of them.

use std::collections::BTreeSet;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::topology::{Slot, SlotSet};
use meridian_storage::erasure::Code;
use meridian_storage::message::CommitMark;
use meridian_storage::mutation::Mutation;

use super::{APPLY_AGAIN_AFTER, APPLY_DELAY, Event, World};
use crate::broker::Broker;
use crate::check::Verdict;
use crate::metadata::{Class, Entry};
use crate::net::Endpoint;
use crate::seat::SeatOutput;

impl World {
    /// The metadata plane hears what a store says of its disk.
    pub(super) fn on_seat_report(&mut self, node: usize, report: SeatOutput) {
        match report {
            SeatOutput::Synced(incarnation) => {
                let id = self.nodes[node].id;
                if self.reaches_majority(node) && self.metadata.synced(id, incarnation) {
                    self.trace.event(self.now, format_args!("N{node} disk: synced {incarnation}"));
                    self.announce_metadata();
                }
            }
            SeatOutput::Failed(reason) => {
                self.trace.event(self.now, format_args!("N{node} disk: {reason}"));
                self.stop_node(node);
                let delay = self.chance.around(Duration::from_secs(1));
                self.schedule(delay, Event::Restart { node });
            }
            SeatOutput::Send(..) | SeatOutput::SendToSlot(..) | SeatOutput::Disk(_) => {}
        }
    }

    /// Tells the metadata plane which disk a process has mounted.
    pub(super) fn report_mount(&mut self, node: usize, boot: u64) {
        let mounted = &self.nodes[node];
        let Some(seat) = mounted.seat.as_ref().filter(|_| mounted.boot == boot) else { return };
        let (identity, id) = (seat.identity(), mounted.id);
        if !self.reaches_majority(node) {
            self.schedule(APPLY_AGAIN_AFTER, Event::ReportMount { node, boot });
            return;
        }
        self.trace.event(self.now, format_args!("N{node} mounted {identity:?}"));
        self.metadata.mounted(id, boot, identity);
        self.announce_metadata();
    }

    /// A node that the metadata plane hears gets producer ids, once it hears of it.
    pub(super) fn give_producer_ids(&mut self, node: usize) {
        let id = self.nodes[node].id;
        let is_on_its_way = self
            .metadata
            .entries_after(self.nodes[node].view.applied_count)
            .iter()
            .any(|entry| matches!(entry, Entry::ProducerIds { node, .. } if *node == id));
        if self.reaches_majority(node) && !is_on_its_way {
            self.metadata.allocate_producer_ids(id);
            self.announce_metadata();
        }
    }

    /// Appoints a leader. Now and then the proposal is lost and another node is appointed under the
    /// same generation: a node that acts before the entry is applied shares it (rule T1).
    pub(crate) fn appoint(&mut self, partition: PartitionId, node: usize) {
        if self.is_deleted(partition) {
            return;
        }
        let lost_proposal = self.chance.per_mille(200);
        let heir = self.chance.below(self.nodes.len());
        let id = self.nodes[node].id;
        if lost_proposal && Mutation::ActBeforeApplied.active(self.mutations) {
            let owner = self.metadata.next_owner(partition, id);
            self.schedule(APPLY_DELAY, Event::Lead { node, partition, owner });
        }
        let appointed = if lost_proposal { self.nodes[heir].id } else { id };
        let owner = self.metadata.appoint(partition, appointed);
        self.counters.appointment_count += 1;
        let generation = owner.generation;
        self.trace
            .event(self.now, format_args!("metadata: {partition:?} {generation} to {appointed:?}"));
        self.announce_metadata();
    }

    /// Has the records of a partition put in another way, once its leader hears of it.
    pub(crate) fn convert(&mut self, partition: PartitionId, class: Class) {
        self.trace.event(self.now, format_args!("metadata: {partition:?} to {class:?}"));
        self.counters.conversion_count += 1;
        self.metadata.convert(partition, class);
        self.announce_metadata();
    }

    /// Gives a slot to a spare, if it may have it.
    pub(crate) fn replace(&mut self, slot: Slot, to: NodeId) -> bool {
        let is_replaced = self.metadata.replace(slot, to, self.mutations);
        if is_replaced {
            self.trace.event(self.now, format_args!("metadata: {slot:?} to {to:?}"));
            self.counters.replacement_count += 1;
            self.announce_metadata();
        }
        is_replaced
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
        let entries = self.metadata.entries_after(self.nodes[node].view.applied_count).to_vec();
        for entry in &entries {
            self.with_node(node, |node, now, out| node.apply(now, entry, out))?;
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
                let packs = self.metadata.latest().class_of(partition) == Class::Cold(code);
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
        let latest = self.metadata.latest();
        let Some(owner) = latest.owners.get(&partition) else { return false };
        let leader = owner.node.get() as usize;
        let reached: SlotSet = latest
            .group
            .good_slots()
            .iter()
            .filter(|slot| self.reaches_well(leader, self.node_of(*slot)))
            .collect();
        let datacenters = reached.iter().map(|slot| self.geometry().datacenter_of(slot));
        self.is_running(leader)
            && self.geometry().fence_quorum(reached)
            && datacenters.collect::<BTreeSet<_>>().len() >= self.datacenter_count_min
    }

    /// Whether a node fills a slot that counts.
    pub(crate) fn is_good(&self, node: usize) -> bool {
        let good = self.metadata.latest().group.good_slots();
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
