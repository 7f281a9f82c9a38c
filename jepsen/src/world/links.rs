//! The world as one of two clusters: what goes to the other one, and what is compared with it.

use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LeaderEpoch, Offset};
use meridian_mirror::partition::{NoView, Status};
use meridian_mirror::rows::Stage;

use super::World;
use crate::broker::{Broker, RawBatch};
use crate::link::{LinkPacket, Peer};
use crate::net::Endpoint;
use crate::node::{Packet, endpoint_of};
use crate::topics::set_stage;
use crate::value::Value;

/// What whoever has both clusters has to take from one.
#[derive(Debug, Default)]
pub(crate) struct Abroad {
    /// Packets that have left it: from which of its nodes, to which of the other's.
    pub(crate) packets: Vec<(usize, usize, LinkPacket)>,
    /// Batches that were served to a mirror, or are committed in one.
    pub(crate) raw: Vec<(PartitionId, RawBatch)>,
    /// Nodes that have just begun to append what they mirror, and where.
    pub(crate) mirroring: Vec<(usize, PartitionId, Generation)>,
    /// What was left open is aborted: by which generation, and above which epoch.
    pub(crate) aborted: Vec<(PartitionId, Generation, LeaderEpoch)>,
    /// Batches that were refused as not the next ones.
    pub(crate) out_of_order: Vec<(PartitionId, Value)>,
    /// Transactions that were decided: producer, epoch, and whether they count.
    pub(crate) decided: Vec<(u32, u16, bool)>,
}

impl World {
    /// The other cluster's node that is behind an endpoint.
    pub(super) fn foreign(&self, endpoint: Endpoint) -> Option<usize> {
        endpoint.0.checked_sub(self.foreign_from())
    }

    fn foreign_from(&self) -> usize {
        self.nodes.len() + self.clients.len() + self.applications.len()
    }

    /// Where a node of the other cluster is on this one's network.
    pub(crate) fn foreign_endpoint(&self, peer: usize) -> Endpoint {
        Endpoint(self.foreign_from() + peer)
    }

    pub(super) fn send_abroad(&mut self, node: usize, to: Option<usize>, packet: LinkPacket) {
        if self.foreign_count == 0 {
            return;
        }
        let peer = to.unwrap_or_else(|| self.chance.below(self.foreign_count));
        let to = self.foreign_endpoint(peer);
        self.send(Endpoint(node), to, Packet::Link(packet));
    }

    /// What has come to the edge of this cluster. A view comes with a connection to the leader, or with none.
    pub(super) fn hand_over(&mut self, from: Endpoint, peer: usize, packet: Packet) {
        let Packet::Link(mut packet) = packet else { return };
        if let LinkPacket::Seen { found, .. } = &mut packet
            && let Ok((_, Peer { node, boot })) = found
        {
            *boot = self.nodes[*node].boot;
            let edge = self.foreign_endpoint(peer);
            if !self.is_running(*node) || self.network.is_cut(Endpoint(*node), edge) {
                *found = Err(NoView::Unreachable("its leader does not answer".to_owned()));
            }
        }
        self.abroad.packets.push((from.0, peer, packet));
    }

    /// Makes a partition a mirror, or moves it to another stage.
    pub(crate) fn mirror(&mut self, partition: PartitionId, stage: Stage) {
        let result = self.decide(set_stage(self.decisions.latest(), partition, stage));
        self.trace.event(self.now, format_args!("metadata: {partition:?} {stage:?}: {result:?}"));
    }

    /// A mirror's leader takes on its source's epoch: with the next generation, unless there is one already.
    pub(super) fn raise_epoch(
        &mut self,
        node: usize,
        partition: PartitionId,
        generation: Generation,
        epoch: LeaderEpoch,
    ) {
        let is_owner = self.owner(partition).is_some_and(|it| it.generation == generation);
        if is_owner && self.reaches_majority(node) {
            let epoch_floor = LeaderEpoch::new(epoch.get() - 1);
            self.assign_above(partition, self.nodes[node].id, epoch_floor);
        }
    }

    /// Gives a mirror that is being promoted a new generation, whose epoch is above all that it had.
    pub(crate) fn fence_mirror(&mut self, partition: PartitionId) {
        if let Some(owner) = self.owner(partition) {
            self.assign_above(partition, owner.node, owner.leader_epoch);
        }
    }

    /// Asks the leader of a mirror that is being promoted to abort what is open.
    pub(crate) fn ask_to_abort(&mut self, partition: PartitionId, above: LeaderEpoch) {
        let Some(owner) = self.owner(partition) else { return };
        let to = endpoint_of(owner.node);
        let from = Endpoint(self.chance.below(self.nodes.len()));
        self.send(from, to, Packet::AbortOpen { partition, above });
    }

    /// How a mirror is, as its newest leader has it.
    pub(crate) fn mirror_status(&self, partition: PartitionId) -> Option<Status> {
        self.newest_broker(partition)?.mirror_status(self.now)
    }

    /// How a mirror is that does nothing more.
    pub(crate) fn stopped_mirror(&self, partition: PartitionId) -> Option<Status> {
        self.newest_broker(partition)?.stopped_mirror(self.now)
    }

    /// The bounds of a partition, as its newest leader has them.
    pub(crate) fn bounds(&self, partition: PartitionId) -> Option<(Offset, Offset)> {
        self.newest_broker(partition)?.bounds()
    }

    pub(super) fn newest_broker(&self, partition: PartitionId) -> Option<&Broker> {
        let owner = self.owner(partition)?;
        self.nodes[owner.node.get() as usize].broker(partition, owner.generation)
    }
}
