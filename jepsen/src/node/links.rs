//! A node as one end of a link: what comes from the other cluster, and to whom it goes here.

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_mirror::partition::{Failure, NoView, SourceView};

use super::{Node, NodeOutput};
use crate::link::{LinkPacket, Peer};
use crate::topics::topic_of;

impl Node {
    pub(super) fn on_link(&mut self, now: Instant, packet: LinkPacket, out: &mut Vec<NodeOutput>) {
        match packet {
            LinkPacket::Look { asker, partition } => {
                let found = self.found(partition);
                out.push(NodeOutput::Link(Some(asker.node), LinkPacket::Seen { asker, found }));
            }
            LinkPacket::Ask { asker, to, partition, leader_epoch, question, goes_on } => {
                // It was sent over a connection to a process that is gone.
                if to.boot != self.boot {
                    return;
                }
                let Some(key) = self.newest(partition) else {
                    let answer = Err(Failure::Unreachable("it leads no such partition".to_owned()));
                    let answer = LinkPacket::Answer { asker, answer };
                    return out.push(NodeOutput::Link(Some(asker.node), answer));
                };
                self.with_broker(now, key, out, |broker, _, out| {
                    broker.on_link_ask(now, asker, leader_epoch, (question, goes_on), out);
                });
            }
            LinkPacket::Seen { asker, .. } | LinkPacket::Answer { asker, .. } => {
                let key = (asker.partition, asker.generation);
                self.with_broker(now, key, out, |broker, health, out| {
                    broker.on_link(now, health, packet, out);
                });
            }
        }
    }

    /// What this node knows of a partition and its leader.
    fn found(&self, partition: PartitionId) -> Result<(SourceView, Peer), NoView> {
        let leaderless = || NoView::Unreachable("it has no leader".to_owned());
        let owner = self.owner(partition).ok_or_else(leaderless)?;
        let topic = topic_of(partition);
        let view = SourceView {
            topic,
            leader_epoch: owner.leader_epoch,
            is_compacted: false,
            delete_retention: None,
        };
        Ok((view, Peer { node: owner.node.get() as usize, boot: 0 }))
    }
}
