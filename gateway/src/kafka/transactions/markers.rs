//! Telling the partitions of a transaction how it ended.
//!
//! The coordinator asks each partition's leader, this node or another, until all have the marker
//! durable. A marker that is written twice ends nothing the second time. Nobody waits for it but the
//! producer's next transaction, so that a partition that is away delays only those who wrote to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::LeaderEpoch;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::Coordinator;
use crate::kafka::{Front, error};
use crate::partition::{Appended, Marker, ProduceError, TransactionError};
use crate::peers::wire::{MarkerOutcome, PeerReply, PeerRequest};
use crate::transaction::Ending;

/// A leader that has not answered by then is asked again.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// Partitions asked for in one message.
const PARTITION_COUNT_MAX: usize = 1_000;
const RETRY_AFTER_MIN: Duration = Duration::from_millis(10);
const RETRY_AFTER_MAX: Duration = Duration::from_millis(250);

/// Begins to write the markers of a transaction.
pub(super) fn deliver(coordinator: &Arc<Coordinator>, ending: Ending) {
    if let Some(front) = coordinator.front() {
        tokio::spawn(run(front, Arc::clone(coordinator), ending));
    }
}

async fn run(front: Arc<Front>, coordinator: Arc<Coordinator>, ending: Ending) {
    let marker = Marker {
        producer_id: ending.producer.id,
        producer_epoch: ending.producer.epoch,
        coordinator_epoch: coordinator.log.leader_epoch().get(),
        commit: ending.commit,
        version: ending.version,
        number: coordinator.log.next_ending(),
    };
    let mut left: BTreeSet<PartitionId> = ending.partitions.into_iter().collect();
    let mut retry_after = RETRY_AFTER_MIN;
    loop {
        round(&front, marker, &mut left).await;
        if left.is_empty() {
            break;
        }
        tokio::time::sleep(retry_after).await;
        retry_after = (retry_after * 2).min(RETRY_AFTER_MAX);
        // The next coordinator goes on with it.
        if !coordinator.log.is_serving() {
            return;
        }
    }
    let now_ms = front.broker.wall_time_ms();
    if let Ok(mut transactions) = coordinator.state() {
        transactions.on_ended(now_ms, &ending.id, ending.producer);
    }
}

/// Asks the leaders of all partitions once, at the same time. Those that have the marker are left
/// out of `left` afterwards.
async fn round(front: &Arc<Front>, marker: Marker, left: &mut BTreeSet<PartitionId>) {
    let mut asking = JoinSet::new();
    for (leader, partitions) in by_leader(front, left) {
        for partitions in partitions.chunks(PARTITION_COUNT_MAX) {
            let (front, partitions) = (Arc::clone(front), partitions.to_vec());
            asking.spawn(async move {
                // Never closed; bounds what all transactions together ask at once.
                let _permit = front.marker_asks.acquire().await;
                let request = PeerRequest::WriteMarkers { marker, partitions: partitions.clone() };
                match front.broker.peers().ask(leader, request, ASK_TIMEOUT).await {
                    Ok(PeerReply::MarkersWritten(outcomes)) => (partitions, outcomes),
                    Ok(_) | Err(_) => (partitions, Vec::new()),
                }
            });
        }
    }
    while let Some(asked) = asking.join_next().await {
        let Ok((partitions, outcomes)) = asked else { continue };
        for (partition, outcome) in partitions.into_iter().zip(outcomes) {
            if outcome == MarkerOutcome::Written {
                left.remove(&partition);
            }
        }
    }
}

/// Whom to ask. Partitions that were deleted need no marker.
fn by_leader(
    front: &Front,
    left: &mut BTreeSet<PartitionId>,
) -> BTreeMap<NodeId, Vec<PartitionId>> {
    let metadata = front.broker.metadata();
    let mut by_leader: BTreeMap<NodeId, Vec<PartitionId>> = BTreeMap::new();
    left.retain(|id| match metadata.partition(*id) {
        Some(partition) => {
            by_leader.entry(partition.leader).or_default().push(*id);
            true
        }
        None => false,
    });
    by_leader
}

impl Front {
    /// Writes a marker to partitions that this node leads; says for each whether it is committed.
    pub(super) async fn write_markers(
        self: &Arc<Self>,
        marker: Marker,
        partitions: &[PartitionId],
    ) -> Vec<MarkerOutcome> {
        let appends: Vec<_> = partitions.iter().map(|id| self.append_marker(*id, marker)).collect();
        let mut outcomes = Vec::with_capacity(partitions.len());
        for (id, append) in partitions.iter().zip(appends) {
            outcomes.push(match append {
                Append::Elsewhere => MarkerOutcome::Retry,
                Append::NotNeeded => MarkerOutcome::Written,
                Append::Waiting(answer) => {
                    let written = answer.await.unwrap_or(Err(ProduceError::InDoubt));
                    if let Ok(appended) = &written {
                        self.on_marker_written(*id, appended.base_offset, &marker);
                    }
                    outcome(*id, written)
                }
            });
        }
        outcomes
    }

    /// Appends a marker. To a topic that clients may not write to, only if it ends something: one
    /// that is being switched over has the same records on both sides, and a marker that is written
    /// once more would be on this side only.
    fn append_marker(&self, id: PartitionId, marker: Marker) -> Append {
        let is_closed = {
            let metadata = self.broker.metadata();
            let partition = metadata.partition(id);
            partition.is_some_and(|it| error::mirror(&metadata, it.topic).is_err())
        };
        match self.broker.led(id) {
            None => Append::Elsewhere,
            Some(log) if is_closed && !log.has_open_transaction(marker.producer_id) => {
                Append::NotNeeded
            }
            Some(log) => Append::Waiting(log.write_marker(marker, self.broker.agreed_time_ms())),
        }
    }

    /// Aborts what is open in partitions of promoted mirrors; says for each whether nothing is.
    pub(super) async fn abort_open(
        self: &Arc<Self>,
        above: LeaderEpoch,
        partitions: &[PartitionId],
    ) -> Vec<MarkerOutcome> {
        let abort = |id: &PartitionId| {
            let log = self.broker.led(*id).filter(|log| log.leader_epoch() > above);
            log.map(|log| log.abort_open_transactions(self.broker.agreed_time_ms()))
        };
        let aborts: Vec<_> = partitions.iter().map(abort).collect();
        let mut outcomes = Vec::with_capacity(partitions.len());
        for (id, abort) in partitions.iter().zip(aborts) {
            outcomes.push(match abort {
                None => MarkerOutcome::Retry,
                Some(answer) => outcome(*id, answer.await.unwrap_or(Err(ProduceError::InDoubt))),
            });
        }
        outcomes
    }
}

/// A marker on its way to one partition.
enum Append {
    /// Another node leads it.
    Elsewhere,
    /// There is nothing to end.
    NotNeeded,
    Waiting(oneshot::Receiver<Result<Appended, ProduceError>>),
}

fn outcome<T>(partition: PartitionId, written: Result<T, ProduceError>) -> MarkerOutcome {
    match written {
        Ok(_) => MarkerOutcome::Written,
        // It was written before: the producer's next transaction is open there already.
        Err(ProduceError::Transaction(TransactionError::LateMarker { .. })) => {
            MarkerOutcome::Written
        }
        Err(error) => {
            tracing::debug!(%partition, %error, "marker not written");
            MarkerOutcome::Retry
        }
    }
}
