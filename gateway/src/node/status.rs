//! What operators are told: the methods of the private admin API.

use std::sync::Arc;

use bytes::Bytes;
use meridian_base::id::NodeId;
use meridian_base::topology::{Geometry, Slot, SlotState};
use meridian_consensus::command::Liveness;
use serde::Serialize;

use super::Node;
use crate::admin_api::json;
use crate::admin_api::{AdminError, AdminHandler};
use crate::health::Finding;
use crate::health::tolerance::{GroupStatus, NOT_SERVING, group_status};
use crate::mirror::AdminCall;
use crate::peers::BoxFuture;

/// Answer of `cluster.status`.
#[derive(Debug, Serialize)]
pub(crate) struct ClusterStatus {
    cluster_id: String,
    /// The first group's.
    geometry: Geometry,
    /// What can be lost right now of the first group without losing records or service.
    tolerates: &'static str,
    pub(crate) groups: Vec<GroupStatus>,
    nodes: Vec<NodeStatus>,
    raft: RaftStatus,
    pub(crate) partitions: PartitionStatus,
    /// What stops or threatens writes, worst first; asked of all nodes for `cluster.status`.
    conditions: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct NodeStatus {
    id: u32,
    dc: String,
    rack: String,
    kafka: String,
    liveness: Liveness,
    /// The group that has a slot of it.
    group: Option<u32>,
    slot: Option<usize>,
    slot_state: Option<SlotState>,
    leaders: usize,
    version: String,
}

#[derive(Debug, Serialize)]
struct RaftStatus {
    leader: Option<u32>,
    term: u64,
    /// Nodes that vote.
    voters: Vec<u32>,
    /// Entries of the metadata log that this node has applied.
    applied_index: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct PartitionStatus {
    pub(crate) total: usize,
    pub(crate) leaderless: usize,
    /// Those that have a leader which does not serve them yet, as far as nodes were asked.
    pub(crate) opening: usize,
}

/// Answer of `node.status`: what this one node knows of itself.
#[derive(Debug, Serialize)]
struct OwnStatus {
    id: u32,
    leads: usize,
    taking_over: usize,
    /// Those of them whose logs are being taken over or rebuilt; the others have stopped.
    opening: usize,
    disk: Option<DiskStatus>,
    peers: Vec<PeerStatus>,
    /// What this node finds of itself that stops or threatens writes.
    conditions: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct DiskStatus {
    standing: String,
    incarnation: u64,
    used_bytes: u64,
    live_bytes: u64,
    free_bytes: u64,
}

#[derive(Debug, Serialize)]
struct PeerStatus {
    id: u32,
    up: bool,
    rtt_us: u128,
    queued_bytes: usize,
    sent_bytes: u64,
    received_bytes: u64,
    lost_packets: u64,
}

impl Node {
    pub(crate) fn cluster_status(&self) -> Result<ClusterStatus, AdminError> {
        let leadership = self.meta.leadership();
        let voters = self.meta.voters();
        let metadata = self.meta.metadata();
        let unformed = || AdminError::Unavailable("the cluster has not formed yet".to_owned());
        let cluster_id = metadata.cluster_id().ok_or_else(unformed)?.to_string();
        let geometry = metadata.geometry().ok_or_else(unformed)?;
        let groups: Vec<GroupStatus> =
            metadata.groups().map(|group| group_status(&metadata, group, &voters)).collect();
        let nodes = metadata.nodes().map(|(id, node)| {
            let filled = metadata.slot_filled_by(id);
            let slot = filled.map(|(_, slot)| slot);
            NodeStatus {
                id: id.get(),
                dc: node.registration.datacenter.to_string(),
                rack: node.registration.rack.to_string(),
                kafka: node.registration.kafka.to_string(),
                liveness: node.liveness,
                group: filled.map(|(group, _)| group.get()),
                slot: slot.map(Slot::index),
                slot_state: filled
                    .and_then(|(group, slot)| metadata.group(group)?.slot(slot))
                    .map(|slot| slot.state),
                leaders: metadata.led_count(id),
                version: node.registration.binary_version.clone(),
            }
        });
        let is_dead = |node| metadata.node(node).is_none_or(|n| n.liveness == Liveness::Dead);
        let leaderless = metadata.partitions().filter(|(_, it)| is_dead(it.leader)).count();
        Ok(ClusterStatus {
            cluster_id,
            geometry,
            tolerates: groups.first().map_or(NOT_SERVING, |group| group.tolerates),
            groups,
            nodes: nodes.collect(),
            raft: RaftStatus {
                leader: leadership.and_then(|it| it.leader).map(|leader| leader.node.get()),
                term: leadership.map_or(0, |it| it.term),
                voters: voters.into_iter().map(NodeId::get).collect(),
                applied_index: self.meta.applied_index(),
            },
            partitions: PartitionStatus {
                total: metadata.partitions().count(),
                leaderless,
                opening: 0,
            },
            conditions: Vec::new(),
        })
    }

    fn own_status(&self) -> OwnStatus {
        let owned = self.logs.owned_logs();
        let leads = owned.iter().filter(|log| log.is_serving()).count();
        let disk = self.logs.store().map(|store| {
            let usage = store.usage();
            DiskStatus {
                standing: format!("{:?}", store.standing()),
                incarnation: store.identity().incarnation.get(),
                used_bytes: usage.used_bytes,
                live_bytes: usage.live_bytes,
                free_bytes: usage.free_bytes,
            }
        });
        let peers = self.switch.stats().map(|stats| stats.peers).unwrap_or_default();
        let peers = peers.into_iter().map(|(id, stats)| PeerStatus {
            id: id.get(),
            up: stats.state == crate::runtime::quic::PeerState::Up,
            rtt_us: stats.rtt.as_micros(),
            queued_bytes: stats.queued_bytes,
            sent_bytes: stats.sent_bytes,
            received_bytes: stats.received_bytes,
            lost_packets: stats.lost_packets,
        });
        OwnStatus {
            id: self.config.node.get(),
            leads,
            taking_over: owned.len() - leads,
            opening: self.logs.opening_count(),
            disk,
            peers: peers.collect(),
            conditions: self.findings_of(&self.conditions().own),
        }
    }

    /// The cluster, as this node knows it, and what all nodes say stops or threatens writes.
    async fn whole_status(&self) -> Result<ClusterStatus, AdminError> {
        let mut status = self.cluster_status()?;
        status.conditions = self.findings().await;
        status.partitions.opening = leave_out_opening(&mut status.nodes, &status.conditions);
        Ok(status)
    }

    /// Answers a method of the admin API.
    pub(crate) async fn answer(&self, method: &str) -> Result<Bytes, AdminError> {
        match method {
            "cluster.status" => self.whole_status().await.and_then(|status| json(&status)),
            "node.status" => json(&self.own_status()),
            _ => Err(AdminError::UnknownMethod(method.to_owned())),
        }
    }
}

/// A leader that does not serve yet is none for clients. Gives how many such there are.
fn leave_out_opening(nodes: &mut [NodeStatus], findings: &[Finding]) -> usize {
    let mut total = 0;
    for finding in findings {
        let Some(count) = finding.opening else { continue };
        for node in nodes.iter_mut().filter(|node| finding.nodes.contains(&node.id)) {
            node.leaders = node.leaders.saturating_sub(count);
            total += count;
        }
    }
    total
}

impl AdminHandler for Node {
    fn call(&self, method: String, body: Bytes) -> BoxFuture<'_, Result<Bytes, AdminError>> {
        match self.switch.node() {
            _ if AdminCall::is_mine(&method) => {
                let call = AdminCall::new(Arc::clone(&self.mirrors), body);
                Box::pin(async move { call.run(&method).await })
            }
            Some(node) if method.starts_with("lifecycle.") => {
                Box::pin(async move { node.answer_lifecycle(&method, &body).await })
            }
            _ if method.starts_with("disk.") => {
                Box::pin(std::future::ready(self.answer_disk(&method, &body)))
            }
            _ if method == "topic.storage" => Box::pin(self.describe_storage(body)),
            _ if method == "source.list" => Box::pin(self.list_sources(body)),
            _ => Box::pin(async move { self.answer(&method).await }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::merge;

    fn node(id: u32, leaders: usize) -> NodeStatus {
        NodeStatus {
            id,
            dc: "A".to_owned(),
            rack: "A1".to_owned(),
            kafka: "a:1".to_owned(),
            liveness: Liveness::Alive,
            group: None,
            slot: None,
            slot_state: None,
            leaders,
            version: "1".to_owned(),
        }
    }

    #[test]
    fn only_leaders_that_serve_count() {
        let opening = |node, count| Finding::opening(NodeId::new(node), count);
        let findings = merge(
            [opening(1, 4), opening(2, 4), opening(3, 1), opening(4, 0)].into_iter().flatten(),
        );
        assert_eq!(findings.len(), 2, "nodes that say the same share a line");
        let mut nodes = [node(1, 4), node(2, 9), node(3, 9), node(4, 9)];
        assert_eq!(leave_out_opening(&mut nodes, &findings), 9);
        assert_eq!(nodes.map(|node| node.leaders), [0, 5, 8, 9]);
    }
}
