//! The seam between the Kafka front and the node: what a request handler may ask for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::sync::ReadGuard;
use meridian_consensus::command::Command;
use meridian_consensus::state::{Decision, Metadata};
use tokio::sync::{Notify, watch};

use crate::log::{FollowerLog, PartitionLog};
use crate::meta::{CATCH_UP_WITHIN, ProposeError};
use crate::peers::wire::Quorum;
use crate::peers::{BoxFuture, Peers};
use crate::runtime::secrets::Keyring;

/// What the front needs of its node.
pub trait Broker: Send + Sync + 'static {
    /// This node.
    fn node(&self) -> NodeId;

    /// The applied metadata. Hold the guard briefly, never across an await.
    fn metadata(&self) -> ReadGuard<'_, Metadata>;

    /// Changes whenever the applied metadata may have.
    fn applied(&self) -> watch::Receiver<u64>;

    /// Has `command` decided by the metadata log; retried under one request id until it is seen
    /// applied on this node, or time is up.
    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Decision, ProposeError>>;

    /// Waits until this node has applied everything that was decided before the call (ReadIndex): what
    /// it then knows is no older than the question, though it may have been cut off or asleep.
    fn catch_up(&self) -> BoxFuture<'_, Result<(), ProposeError>> {
        self.catch_up_within(CATCH_UP_WITHIN)
    }

    /// Like [`Broker::catch_up`], for so long at most.
    fn catch_up_within(&self, within: Duration) -> BoxFuture<'_, Result<(), ProposeError>>;

    /// Who leads the metadata log, as far as this node knows.
    fn metadata_leader(&self) -> Option<NodeId>;

    /// How far the members of the metadata log are; `None` unless this node leads it.
    fn quorum(&self) -> BoxFuture<'_, Option<Quorum>>;

    /// The log of a partition that this node owns: it serves, or is being taken over.
    fn owned(&self, partition: PartitionId) -> Option<Arc<PartitionLog>>;

    /// The log of a partition that this node leads and serves.
    fn led(&self, partition: PartitionId) -> Option<Arc<PartitionLog>>;

    /// Rings `bell` whenever this node has become the owner of partitions, or is no longer.
    fn notify_on_ownership(&self, bell: &Arc<Notify>);

    /// The log of a partition led elsewhere that this node can serve to readers of its own
    /// datacenter (KIP-392).
    fn followed(&self, partition: PartitionId) -> Option<Arc<FollowerLog>>;

    /// Whether a topic of this name was deleted a moment ago.
    fn was_just_deleted(&self, topic: &str) -> bool;

    /// The other nodes.
    fn peers(&self) -> &Arc<Peers>;

    /// Wall-clock time in milliseconds since 1970: the cluster's, or the host's while that is not
    /// known.
    fn wall_time_ms(&self) -> i64;

    /// The time that the cluster's clocks agree on, in milliseconds since 1970. What deletes by age
    /// goes by this one, and waits while it is not known.
    fn agreed_time_ms(&self) -> Option<i64>;

    /// The keys that seal what the cluster keeps secret.
    fn secrets(&self) -> &Keyring;

    /// What this node finds of itself that stops or threatens writes, for another node: JSON.
    fn own_findings(&self) -> Bytes {
        Bytes::from_static(b"[]")
    }
}
