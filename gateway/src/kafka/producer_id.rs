//! InitProducerId: ids of producers, from blocks that the metadata log hands to nodes.

use meridian_access::{Operation, Resource, ResourceType};
use meridian_consensus::command::Command;
use meridian_consensus::state::{Decision, ProducerIdBlock};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};
use tokio::sync::Mutex;

use super::Front;
use super::dispatch::Call;
use super::error::ApiError;
use super::transactions;
use crate::transaction::Producer;

/// The ids this node may still hand out. Those lost in a restart are never used: there are enough.
#[derive(Debug, Default)]
pub(super) struct ProducerIds {
    /// Asynchronous, so that one proposal serves all who wait for the next block.
    left: Mutex<Option<ProducerIdBlock>>,
}

impl ProducerIds {
    /// An id that nobody has.
    pub(super) async fn next(&self, front: &Front) -> Result<i64, ApiError> {
        let mut left = self.left.lock().await;
        let block = match left.take().filter(|block| block.count > 0) {
            Some(block) => block,
            None => {
                let command = Command::AllocateProducerIds { node: front.broker.node() };
                match front.broker.propose(command).await? {
                    Decision::ProducerIds(block) => block,
                    other => {
                        let message = format!("asked for producer ids, got {other:?}");
                        return Err(ApiError::new(ErrorCode::UnknownServerError, message));
                    }
                }
            }
        };
        *left = Some(ProducerIdBlock { first: block.first + 1, count: block.count - 1 });
        Ok(block.first)
    }
}

/// Whether the client may write as an idempotent producer: all may that may write at all (KIP-679).
fn may_be_idempotent(call: &Call) -> bool {
    call.rights.has(Operation::IdempotentWrite, Resource::CLUSTER)
        || call.rights.allow_any(Operation::Write, ResourceType::Topic)
}

/// Hands out an id. An idempotent producer that comes back with an id and epoch gets a new id, never a higher
/// epoch: only the partitions it wrote to know its epoch, and a new id needs none of them. Of a
/// transactional one the coordinator knows it.
pub(super) async fn init(call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse {
    let has_id = request.producer_id != Producer::NONE.id;
    let has_epoch = request.producer_epoch != Producer::NONE.epoch;
    let result = match &request.transactional_id {
        _ if has_id != has_epoch => Err(ErrorCode::InvalidRequest.into()),
        Some(id) => transactions::init(&call, id, &request).await,
        None if may_be_idempotent(&call) => {
            call.front.producer_ids.next(&call.front).await.map(Producer::first)
        }
        None => Err(ErrorCode::ClusterAuthorizationFailed.into()),
    };
    match result {
        Ok(producer) => InitProducerIdResponse {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            ..Default::default()
        },
        Err(error) => {
            let error_code = match error.code {
                // Clients retry this one, and not a time-out, when they ask for an id.
                ErrorCode::RequestTimedOut => ErrorCode::CoordinatorNotAvailable,
                code => code,
            };
            call.front.metrics.on_error(error_code);
            InitProducerIdResponse { error_code, producer_epoch: -1, ..Default::default() }
        }
    }
}
