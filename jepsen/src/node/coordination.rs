//! What a node does between coordinators, the leaders of partitions, and applications.

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::Generation;
use meridian_broker::partition::TransactionVersion;
use meridian_storage::mutation::Mutation;

use super::{Node, NodeOutput, Packet, endpoint_of};
use crate::broker::Coordinate;
use crate::desk::{Ask, MarkerOrigin, TransactionWaiter};
use crate::net::Endpoint;
use crate::topics::TRANSACTIONS;

impl Node {
    /// Takes a packet for a coordinator, or of one.
    pub(super) fn on_coordination(
        &mut self,
        now: Instant,
        from: Endpoint,
        packet: Packet,
        out: &mut Vec<NodeOutput>,
    ) {
        // What is answered without a record in the log.
        let is_read = match &packet {
            Packet::Ask { ask, .. } => {
                let is_positions = matches!(**ask, Ask::Positions(_));
                is_positions && !Mutation::PositionsUnconfirmed.active(self.mutations)
            }
            Packet::Vouch { verification, .. } => {
                verification.transaction.version == TransactionVersion::V1
            }
            _ => false,
        };
        if is_read {
            out.push(NodeOutput::Confirm(from, Box::new(packet)));
        } else {
            self.on_confirmed(now, from, packet, out);
        }
    }

    /// Takes a packet that waits for no decision.
    pub(crate) fn on_confirmed(
        &mut self,
        now: Instant,
        from: Endpoint,
        packet: Packet,
        out: &mut Vec<NodeOutput>,
    ) {
        let to = match &packet {
            Packet::Ask { partition, .. } | Packet::WriteMarker { partition, .. } => {
                self.newest(*partition)
            }
            Packet::Vouch { .. } => self.newest(TRANSACTIONS),
            Packet::Marked { origin, .. } => Some((TRANSACTIONS, origin.generation)),
            _ => None,
        };
        // Who is not answered asks again, perhaps elsewhere.
        let Some(key) = to else { return };
        self.with_broker(now, key, out, |broker, health, out| match packet {
            Packet::Ask { asker, ask, .. } => broker.on_ask(now, health, asker, *ask, out),
            Packet::Vouch { generation, ticket, verification } => {
                let partition = verification.partition;
                let waiter =
                    TransactionWaiter::Leader { node: from, partition, generation, ticket };
                broker.on_vouch(now, health, *verification, waiter, out);
            }
            Packet::WriteMarker { marker, origin, .. } => {
                broker.on_coordinated_marker(now, health, marker, origin, out);
            }
            Packet::Marked { partition, origin } => broker.on_marked(now, origin.number, partition),
            _ => {}
        });
    }

    /// Carries out what the broker of `partition` in `generation` wants.
    pub(super) fn coordinate(
        &mut self,
        (partition, generation): (PartitionId, Generation),
        what: Coordinate,
        out: &mut Vec<NodeOutput>,
    ) {
        match what {
            Coordinate::Vouch { ticket, verification } => {
                let verification = Box::new(verification);
                let packet = Packet::Vouch { generation, ticket, verification };
                self.send_to_leader(TRANSACTIONS, packet, out);
            }
            Coordinate::Verified { node, partition, generation, ticket, result } => {
                let packet = Packet::Verified { partition, generation, ticket, result };
                out.push(NodeOutput::Send(node, packet));
            }
            Coordinate::Mark { partition, marker, number } => {
                let origin = MarkerOrigin { node: self.endpoint(), generation, number };
                let packet = Packet::WriteMarker { partition, marker, origin };
                self.send_to_leader(partition, packet, out);
            }
            Coordinate::Marked(origin) => {
                out.push(NodeOutput::Send(origin.node, Packet::Marked { partition, origin }));
            }
            Coordinate::WantIds => match self.producer_ids.next() {
                Some(id) => {
                    if let Some(broker) = self.brokers.get_mut(&(partition, generation)) {
                        broker.take_id(i64::from(id));
                    }
                }
                None => out.push(NodeOutput::WantIds),
            },
            Coordinate::Tell(asker, told) => {
                let packet = Packet::Told { request: asker.request, told: Box::new(told) };
                out.push(NodeOutput::Send(asker.client, packet));
            }
        }
    }

    /// Sends a packet to whoever leads `partition`, as far as this node knows.
    fn send_to_leader(&self, partition: PartitionId, packet: Packet, out: &mut Vec<NodeOutput>) {
        let owner = self.owner(partition);
        out.extend(owner.map(|owner| NodeOutput::Send(endpoint_of(owner.node), packet)));
    }
}
