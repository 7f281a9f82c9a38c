//! Asking the leaders of all partitions of a topic for something, until each of them has done it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{NodeId, PartitionId, TopicId};
use tokio::task::JoinSet;

use crate::client::clock::Backoff;
use crate::context::NodeContext;
use crate::peers::wire::{MarkerOutcome, PeerReply, PeerRequest};

/// A leader that has not answered by then is asked again.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks the leaders of a topic's partitions, whoever they are by then, until all of them have done what is
/// asked for. In vain, it gives the number of partitions that are left.
pub(super) async fn ask_all(
    node: &NodeContext,
    topic: TopicId,
    within: Duration,
    request: impl Fn(Vec<PartitionId>) -> PeerRequest,
) -> Result<(), usize> {
    let mut left: BTreeSet<PartitionId> = {
        let metadata = node.meta.metadata();
        metadata.topic(topic).into_iter().flat_map(|it| it.partitions.iter().copied()).collect()
    };
    let mut backoff = Backoff::until(within);
    loop {
        // All at once: one that is silent holds up nobody but itself.
        let mut asking = JoinSet::new();
        for (leader, partitions) in by_leader(node, &left) {
            let (peers, request) = (Arc::clone(&node.peers), request(partitions.clone()));
            asking.spawn(async move {
                let asked = peers.ask(leader, request, ASK_TIMEOUT).await;
                let done = asked.map(done).unwrap_or_default();
                partitions.into_iter().zip(done).filter(|(_, is_done)| *is_done).collect::<Vec<_>>()
            });
        }
        while let Some(Ok(done)) = asking.join_next().await {
            for (partition, _) in done {
                left.remove(&partition);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        if !backoff.pause().await {
            return Err(left.len());
        }
    }
}

/// What a leader has done, in the order of the question.
fn done(reply: PeerReply) -> Vec<bool> {
    match reply {
        PeerReply::MarkersWritten(outcomes) => {
            outcomes.into_iter().map(|outcome| outcome == MarkerOutcome::Written).collect()
        }
        PeerReply::Leading(leading) => leading,
        _ => Vec::new(),
    }
}

fn by_leader(
    node: &NodeContext,
    left: &BTreeSet<PartitionId>,
) -> BTreeMap<NodeId, Vec<PartitionId>> {
    let metadata = node.meta.metadata();
    let mut by_leader: BTreeMap<NodeId, Vec<PartitionId>> = BTreeMap::new();
    for id in left {
        if let Some(partition) = metadata.partition(*id) {
            by_leader.entry(partition.leader).or_default().push(*id);
        }
    }
    by_leader
}
