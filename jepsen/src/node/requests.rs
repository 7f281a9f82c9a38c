//! What clients ask of a node.

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_broker::replica::view::Isolation;

use super::following::Fetch;
use super::{Node, NodeOutput, Packet};
use crate::broker::{Asker, ClientReply};
use crate::sourced;
use crate::workload::ClientRequest;

impl Node {
    pub(super) fn on_request(
        &mut self,
        now: Instant,
        partition: PartitionId,
        asker: Asker,
        request: ClientRequest,
        out: &mut Vec<NodeOutput>,
    ) {
        let Some(key) = self.newest(partition) else {
            let (from, isolation) = match request {
                ClientRequest::Fetch(from) => (from, Isolation::ReadUncommitted),
                ClientRequest::FetchCommitted(from) => (from, Isolation::ReadCommitted),
                ClientRequest::Produce(_)
                | ClientRequest::ProduceSourced(..)
                | ClientRequest::Trim(_) => {
                    let reply = Packet::Reply { request: asker.request, reply: ClientReply::Retry };
                    return out.push(NodeOutput::Send(asker.client, reply));
                }
            };
            let fetch = Fetch { asker, from, isolation };
            return self.on_followed_fetch(now, partition, fetch, out);
        };
        self.with_broker(now, key, out, |broker, health, out| match request {
            ClientRequest::Produce(batch) => {
                broker.on_produce(now, health, asker, batch, batch.to_record_batch(), out);
            }
            ClientRequest::ProduceSourced(batch, session) => {
                let records = sourced::to_record_batch(batch, session);
                broker.on_produce(now, health, asker, batch, records, out);
            }
            ClientRequest::Fetch(from) => broker.on_fetch(now, health, asker, from, out),
            ClientRequest::FetchCommitted(from) => {
                broker.on_fetch_committed(now, health, asker, from, out);
            }
            ClientRequest::Trim(before) => broker.on_trim(now, health, before, out),
        });
    }
}
