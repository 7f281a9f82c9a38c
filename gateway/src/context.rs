//! What the parts of a node share, and so the node as handlers and links see it.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::{ClusterId, NodeId, PartitionId};
use meridian_base::sync::ReadGuard;
use meridian_consensus::command::Command;
use meridian_consensus::state::{Decision, Metadata};
use tokio::sync::{Notify, watch};

use crate::broker::Broker;
use crate::cluster_time::ClusterTime;
use crate::config::NodeConfig;
use crate::log::{FollowerLog, Logs, PartitionLog};
use crate::meta::{Deleted, Meta, ProposeError, ownership_of};
use crate::peers::wire::Quorum;
use crate::peers::{BoxFuture, Peers};
use crate::runtime::clock;
use crate::runtime::secrets::Keyring;

/// What this cluster brings to its links.
#[derive(Debug)]
pub(crate) struct OwnEnd {
    /// They open the secrets of links.
    pub(crate) keys: Keyring,
    pub(crate) cluster: ClusterId,
}

/// Who knows what a node finds of itself.
pub(crate) trait OwnFindings: Send + Sync {
    /// What stops or threatens writes: JSON.
    fn own_findings(&self) -> Bytes;
}

/// What the parts of a node share.
pub(crate) struct NodeContext {
    pub(crate) config: NodeConfig,
    pub(crate) logs: Arc<Logs>,
    pub(crate) meta: Meta,
    pub(crate) peers: Arc<Peers>,
    pub(crate) time: Arc<ClusterTime>,
    pub(crate) own_end: Arc<OwnEnd>,
    deleted: Arc<Deleted>,
    findings: OnceLock<Weak<dyn OwnFindings>>,
}

impl NodeContext {
    pub(crate) fn new(
        config: NodeConfig,
        logs: Arc<Logs>,
        meta: Meta,
        peers: Arc<Peers>,
        time: Arc<ClusterTime>,
        own_end: Arc<OwnEnd>,
        deleted: Arc<Deleted>,
    ) -> Self {
        let findings = OnceLock::new();
        Self { config, logs, meta, peers, time, own_end, deleted, findings }
    }

    /// Has other nodes hear what `findings` knows.
    pub(crate) fn show(&self, findings: Weak<dyn OwnFindings>) {
        let _set_once_at_start = self.findings.set(findings);
    }
}

impl Broker for NodeContext {
    fn node(&self) -> NodeId {
        self.config.node
    }

    #[track_caller]
    fn metadata(&self) -> ReadGuard<'_, Metadata> {
        self.meta.metadata()
    }

    fn applied(&self) -> watch::Receiver<u64> {
        self.meta.applied()
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Decision, ProposeError>> {
        Box::pin(self.meta.propose(command))
    }

    fn catch_up_within(&self, within: Duration) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(self.meta.catch_up(within))
    }

    fn metadata_leader(&self) -> Option<NodeId> {
        Some(self.meta.leadership()?.leader?.node)
    }

    fn quorum(&self) -> BoxFuture<'_, Option<Quorum>> {
        Box::pin(self.meta.quorum())
    }

    fn owned(&self, partition: PartitionId) -> Option<Arc<PartitionLog>> {
        self.logs.owned(partition)
    }

    fn led(&self, partition: PartitionId) -> Option<Arc<PartitionLog>> {
        self.logs.led(partition)
    }

    fn notify_on_ownership(&self, bell: &Arc<Notify>) {
        self.logs.notify_on_ownership(bell);
    }

    fn followed(&self, partition: PartitionId) -> Option<Arc<FollowerLog>> {
        let (leader, ownership) = ownership_of(&self.meta.metadata(), partition)?;
        (leader != self.config.node).then(|| self.logs.followed(ownership, leader)).flatten()
    }

    fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    fn wall_time_ms(&self) -> i64 {
        self.agreed_time_ms().unwrap_or_else(clock::wall_time_ms)
    }

    fn agreed_time_ms(&self) -> Option<i64> {
        self.time.agreed_ms()
    }

    fn secrets(&self) -> &Keyring {
        &self.own_end.keys
    }

    fn was_just_deleted(&self, topic: &str) -> bool {
        self.deleted.has(topic)
    }

    fn own_findings(&self) -> Bytes {
        let node = self.findings.get().and_then(Weak::upgrade);
        node.map_or_else(|| Bytes::from_static(b"[]"), |node| node.own_findings())
    }
}
