//! Vouching for transactional batches (KIP-890): the leader of a partition asks the coordinator,
//! here or on another node, whether the partition belongs to the producer's transaction.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use meridian_base::id::PartitionId;

use crate::broker::Broker;
use crate::kafka::internal_state::locate;
use crate::kafka::{Front, spread};
use crate::log::TransactionVerifier;
use crate::partition::{TransactionVersion, Verification, VerifyError};
use crate::peers::BoxFuture;
use crate::peers::PeerService;
use crate::peers::wire::{PeerReply, PeerRequest};
use crate::transaction::{Input, Producer};

use super::TRANSACTIONS_TOPIC;

/// One question to a coordinator, which may have to write a record first.
const ASK_TIMEOUT: Duration = Duration::from_millis(1500);
/// How often it is asked while it moves: batches wait for the answer.
const ASK_COUNT_MAX: usize = 3;
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Asks coordinators for the partitions of this node.
pub struct Verifier {
    /// Not kept alive for the logs, which it keeps alive.
    broker: Weak<dyn Broker>,
}

impl Verifier {
    /// For the partitions of `broker`.
    pub fn new(broker: Weak<dyn Broker>) -> Self {
        Self { broker }
    }
}

impl TransactionVerifier for Verifier {
    fn verify(&self, verification: Verification) -> BoxFuture<'_, Result<(), VerifyError>> {
        Box::pin(async move {
            let broker = self.broker.upgrade().ok_or(VerifyError::Unavailable)?;
            let mut result = ask(&*broker, &verification).await;
            for _ in 1..ASK_COUNT_MAX {
                if result != Err(VerifyError::Unavailable) {
                    break;
                }
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
                result = ask(&*broker, &verification).await;
            }
            result
        })
    }
}

impl PeerService for Front {
    fn answer(self: Arc<Self>, request: PeerRequest) -> BoxFuture<'static, PeerReply> {
        match request {
            PeerRequest::WriteMarkers { marker, partitions } => Box::pin(async move {
                PeerReply::MarkersWritten(self.write_markers(marker, &partitions).await)
            }),
            PeerRequest::AbortOpen { above, partitions } => Box::pin(async move {
                PeerReply::MarkersWritten(self.abort_open(above, &partitions).await)
            }),
            PeerRequest::Leads { above, partitions } => Box::pin(async move {
                let leads = |id: &PartitionId| {
                    self.broker.led(*id).is_some_and(|log| log.leader_epoch() > above)
                };
                PeerReply::Leading(partitions.iter().map(leads).collect())
            }),
            PeerRequest::Applied(index) => Box::pin(async move {
                PeerReply::HasApplied(spread::applied(&*self.broker, index).await)
            }),
            PeerRequest::DescribeQuorum => {
                Box::pin(async move { PeerReply::Quorum(self.broker.quorum().await) })
            }
            PeerRequest::Health => {
                Box::pin(std::future::ready(PeerReply::Health(self.broker.own_findings())))
            }
            PeerRequest::Ends(partitions) => Box::pin(async move {
                let end = |id: &PartitionId| Some(self.broker.led(*id)?.high_watermark());
                PeerReply::Ends(partitions.iter().map(end).collect())
            }),
            PeerRequest::QuotaReport(report) => {
                Box::pin(async move { PeerReply::QuotaShares(self.lend(report).await) })
            }
            PeerRequest::Share(question) => {
                Box::pin(async move { PeerReply::Share(self.keep_share(*question).await) })
            }
            PeerRequest::Verify(verification) => {
                Box::pin(async move { PeerReply::Verified(self.vouch(verification).await) })
            }
        }
    }
}

impl Front {
    /// Answers other nodes, and the partitions of this one, about transactions.
    pub fn serve_peers(self: &Arc<Self>) {
        let service: Weak<dyn PeerService> = Arc::downgrade(self) as Weak<dyn PeerService>;
        self.broker.peers().serve(service);
    }

    /// Answers as the coordinator.
    async fn vouch(self: &Arc<Self>, verification: Verification) -> Result<(), VerifyError> {
        let Verification { transaction, partition } = verification;
        let id = transaction.transactional_id.to_string();
        let producer = Producer { id: transaction.producer_id, epoch: transaction.producer_epoch };
        let input = match transaction.version {
            TransactionVersion::V1 => {
                // Nothing is written, and the epoch does not tell this transaction from the next: a
                // coordinator that was replaced would vouch for one that has ended.
                self.broker.catch_up().await.map_err(|_| VerifyError::Unavailable)?;
                Input::Verify { id, producer, partition }
            }
            version @ TransactionVersion::V2 => {
                Input::Add { id, producer, version, partitions: BTreeSet::from([partition]) }
            }
        };
        self.transact(input).await.map(drop).map_err(VerifyError::from)
    }
}

async fn ask(broker: &dyn Broker, verification: &Verification) -> Result<(), VerifyError> {
    let leader = {
        let metadata = broker.metadata();
        let id = &verification.transaction.transactional_id;
        let found = locate(&metadata, TRANSACTIONS_TOPIC, id);
        found.map(|(_, partition)| partition.leader).ok_or(VerifyError::Unavailable)?
    };
    let request = PeerRequest::Verify(verification.clone());
    match broker.peers().ask(leader, request, ASK_TIMEOUT).await {
        Ok(PeerReply::Verified(result)) => result,
        Ok(_) | Err(_) => Err(VerifyError::Unavailable),
    }
}
