//! What operators are told: the methods of the private admin API.

use std::sync::Arc;

use bytes::Bytes;
use meridian_admin_api::cluster::{
    self, Condition, GroupStatus, NodeStatus, PartitionStatus, RaftStatus, Tolerance,
};
use meridian_admin_api::node::{DiskUse, OwnStatus, Peer};
use meridian_admin_api::{Besides, Method, NoArguments, disk, methods};
use meridian_base::id::NodeId;
use meridian_base::topology::Slot;
use meridian_consensus::command::Liveness;
use meridian_storage::store::Standing;

use super::Node;
use crate::admin_api::{AdminError, AdminHandler, answered, answered_now};
use crate::health::tolerance::group_status;
use crate::mirror::AdminCall;
use crate::peers::BoxFuture;

impl Node {
    pub(crate) fn cluster_status(&self) -> Result<cluster::Status, AdminError> {
        let leadership = self.meta.leadership();
        let voters = self.meta.voters();
        let metadata = self.meta.metadata();
        let unformed = || AdminError::Unavailable("the cluster has not formed yet".to_owned());
        let cluster_id = metadata.cluster_id().ok_or_else(unformed)?.to_string();
        let geometry = metadata.geometry().ok_or_else(unformed)?.into();
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
                liveness: liveness(node.liveness),
                group: filled.map(|(group, _)| group.get()),
                slot: slot.map(Slot::index),
                slot_state: filled
                    .and_then(|(group, slot)| metadata.group(group)?.slot(slot))
                    .map(|slot| slot.state.into()),
                leaders: metadata.led_count(id),
                version: node.registration.binary_version.clone(),
                besides: Besides::new(),
            }
        });
        let is_dead = |node| metadata.node(node).is_none_or(|n| n.liveness == Liveness::Dead);
        let leaderless = metadata.partitions().filter(|(_, it)| is_dead(it.leader)).count();
        let tolerates = groups.first().map(|group| group.tolerates.clone());
        Ok(cluster::Status {
            cluster_id,
            geometry,
            tolerates: tolerates.unwrap_or(Tolerance::NotServing),
            groups,
            nodes: nodes.collect(),
            raft: RaftStatus {
                leader: leadership.and_then(|it| it.leader).map(|leader| leader.node.get()),
                term: leadership.map_or(0, |it| it.term),
                voters: voters.into_iter().map(NodeId::get).collect(),
                applied_index: self.meta.applied_index(),
                besides: Besides::new(),
            },
            partitions: PartitionStatus {
                total: metadata.partitions().count(),
                leaderless,
                opening: 0,
                besides: Besides::new(),
            },
            conditions: None,
            besides: Besides::new(),
        })
    }

    fn own_status(&self) -> OwnStatus {
        let owned = self.logs.owned_logs();
        let leads = owned.iter().filter(|log| log.is_serving()).count();
        let disk = self.logs.store().map(|store| {
            let usage = store.usage();
            DiskUse {
                standing: standing(store.standing()),
                incarnation: store.identity().incarnation.get(),
                used_bytes: usage.used_bytes,
                live_bytes: usage.live_bytes,
                free_bytes: usage.free_bytes,
                besides: Besides::new(),
            }
        });
        let peers = self.switch.stats().map(|stats| stats.peers).unwrap_or_default();
        let peers = peers.into_iter().map(|(id, stats)| Peer {
            id: id.get(),
            up: stats.state == crate::runtime::quic::PeerState::Up,
            rtt_us: u64::try_from(stats.rtt.as_micros()).unwrap_or(u64::MAX),
            queued_bytes: stats.queued_bytes,
            sent_bytes: stats.sent_bytes,
            received_bytes: stats.received_bytes,
            lost_packets: stats.lost_packets,
            besides: Besides::new(),
        });
        OwnStatus {
            id: self.config.node.get(),
            leads,
            taking_over: owned.len() - leads,
            opening: self.logs.opening_count(),
            disk,
            peers: peers.collect(),
            conditions: self.findings_of(&self.conditions().own),
            besides: Besides::new(),
        }
    }

    /// The cluster, as this node knows it, and what all nodes say stops or threatens writes.
    async fn whole_status(&self) -> Result<cluster::Status, AdminError> {
        let mut status = self.cluster_status()?;
        let conditions = self.findings().await;
        status.partitions.opening = leave_out_opening(&mut status.nodes, &conditions);
        status.conditions = Some(conditions);
        Ok(status)
    }

    /// Answers a method of the admin API.
    pub(crate) async fn answer(&self, method: &str, body: &[u8]) -> Result<Bytes, AdminError> {
        match method {
            methods::ClusterStatus::NAME => {
                answered::<methods::ClusterStatus, _>(body, |NoArguments {}| self.whole_status())
                    .await
            }
            methods::NodeStatus::NAME => {
                answered_now::<methods::NodeStatus>(body, |NoArguments {}| Ok(self.own_status()))
            }
            methods::SourceList::NAME => {
                answered::<methods::SourceList, _>(body, |request| self.list_sources(request)).await
            }
            methods::TopicStorage::NAME => {
                answered::<methods::TopicStorage, _>(body, |request| self.describe_storage(request))
                    .await
            }
            _ => Err(AdminError::UnknownMethod(method.to_owned())),
        }
    }
}

pub(super) fn liveness(liveness: Liveness) -> cluster::Liveness {
    match liveness {
        Liveness::Alive => cluster::Liveness::Alive,
        Liveness::Dead => cluster::Liveness::Dead,
        Liveness::Draining => cluster::Liveness::Draining,
    }
}

pub(super) fn standing(standing: Standing) -> disk::Standing {
    match standing {
        Standing::Unknown => disk::Standing::Unconfigured,
        Standing::NotMember => disk::Standing::NotMember,
        Standing::OtherLife => disk::Standing::OtherLife,
        Standing::LostData => disk::Standing::LostData,
        Standing::Good => disk::Standing::Good,
    }
}

/// A leader that does not serve yet is none for clients. Gives how many such there are.
fn leave_out_opening(nodes: &mut [NodeStatus], findings: &[Condition]) -> usize {
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
                let call = AdminCall::new(Arc::clone(&self.mirrors));
                Box::pin(async move { call.run(&method, &body).await })
            }
            Some(node) if method.starts_with("lifecycle.") => {
                Box::pin(async move { node.answer_lifecycle(&method, &body).await })
            }
            _ if method.starts_with("disk.") => {
                Box::pin(std::future::ready(self.answer_disk(&method, &body)))
            }
            _ => Box::pin(async move { self.answer(&method, &body).await }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{merge, opening as opening_of};

    fn node(id: u32, leaders: usize) -> NodeStatus {
        NodeStatus {
            id,
            dc: "A".to_owned(),
            rack: "A1".to_owned(),
            kafka: "a:1".to_owned(),
            liveness: cluster::Liveness::Alive,
            group: None,
            slot: None,
            slot_state: None,
            leaders,
            version: "1".to_owned(),
            besides: Besides::new(),
        }
    }

    #[tokio::test]
    async fn a_node_serves_every_method_that_is_not_about_clients() {
        let data = std::env::temp_dir().join(format!("meridian-methods-{}", std::process::id()));
        let free_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let config = crate::config::NodeConfig::single(data.clone(), free_port);
        let running = crate::start(config).await.unwrap();
        for name in methods::NAMES {
            let (body, node) = (Bytes::new(), &*running.node);
            let of_clients = ["access.", "client.", "quota."];
            let is_of_clients = of_clients.iter().any(|family| name.starts_with(family));
            let answer = AdminHandler::call(node, (*name).to_owned(), body).await;
            let is_unknown = matches!(answer, Err(AdminError::UnknownMethod(_)));
            assert_eq!(is_unknown, is_of_clients, "{name}: {answer:?}");
        }
        running.shutdown().await;
        let is_busy = |error: std::io::Error| error.kind() == std::io::ErrorKind::DirectoryNotEmpty;
        while std::fs::remove_dir_all(&data).is_err_and(is_busy) {}
    }

    #[test]
    fn only_leaders_that_serve_count() {
        let opening = |node, count| opening_of(NodeId::new(node), count);
        let findings = merge(
            [opening(1, 4), opening(2, 4), opening(3, 1), opening(4, 0)].into_iter().flatten(),
        );
        assert_eq!(findings.len(), 2, "nodes that say the same share a line");
        let mut nodes = [node(1, 4), node(2, 9), node(3, 9), node(4, 9)];
        assert_eq!(leave_out_opening(&mut nodes, &findings), 9);
        assert_eq!(nodes.map(|node| node.leaders), [0, 5, 8, 9]);
    }
}
