//! A transactional producer. It speaks version 2 of transactions (KIP-890): partitions join by being
//! written to, and every end gives the producer a new epoch.

use std::collections::BTreeMap;
use std::time::Instant;

use meridian_protocol::messages::{
    EndTxnRequest, FindCoordinatorRequest, InitProducerIdRequest, TxnOffsetCommitPartition,
    TxnOffsetCommitRequest, TxnOffsetCommitTopic,
};
use meridian_protocol::{ErrorCode, Str};

use super::cluster::CALL_TIMEOUT;
use super::producer::Identity;
use super::{CallError, Client};
use crate::clock;
use crate::history::Value;

/// What a transaction may take before its coordinator aborts it.
const TIMEOUT_MS: i32 = 10_000;
/// Commits of positions are about one partition of the topic; its log knows nothing of them.
const POSITION_PARTITION: i32 = 0;

/// Who has transactions, under a name that lasts.
pub(crate) struct Transactional {
    id: Str,
    /// None while it must begin anew.
    pub(crate) identity: Option<Identity>,
}

impl Transactional {
    pub(crate) fn new(id: String) -> Self {
        Self { id: id.into(), identity: None }
    }

    /// Takes the transactional id over: whoever had it is fenced.
    pub(crate) fn acquire(&self, client: &mut Client) -> Result<Identity, CallError> {
        let request = InitProducerIdRequest {
            transactional_id: Some(self.id.clone()),
            transaction_timeout_ms: TIMEOUT_MS,
            ..InitProducerIdRequest::default()
        };
        let kind = FindCoordinatorRequest::KEY_TYPE_TRANSACTION;
        let coordinator = client.coordinator(&self.id, kind)?;
        let response = client.call_at(coordinator, &request, CALL_TIMEOUT)?;
        CallError::check("begin", response.error_code)?;
        Ok(Identity {
            id: response.producer_id,
            epoch: response.producer_epoch,
            sequences: BTreeMap::new(),
            transactional_id: Some(self.id.clone()),
        })
    }

    /// Commits or aborts; tried again until the outcome is known, for it can be repeated.
    pub(crate) fn end(
        &mut self,
        client: &mut Client,
        committed: bool,
        deadline: Instant,
    ) -> Result<(), CallError> {
        let identity = self.identity()?;
        let request = EndTxnRequest {
            transactional_id: self.id.clone(),
            producer_id: identity.id,
            producer_epoch: identity.epoch,
            committed,
        };
        until_final(deadline, || self.try_end(client, &request))
    }

    fn try_end(&mut self, client: &mut Client, request: &EndTxnRequest) -> Result<(), CallError> {
        let kind = FindCoordinatorRequest::KEY_TYPE_TRANSACTION;
        let coordinator = client.coordinator(&self.id, kind)?;
        let response = client.call_at(coordinator, request, CALL_TIMEOUT)?;
        CallError::check("end", response.error_code)?;
        if let Some(identity) = &mut self.identity
            && response.producer_epoch >= 0
        {
            if (identity.id, identity.epoch) != (response.producer_id, response.producer_epoch) {
                identity.sequences.clear();
            }
            (identity.id, identity.epoch) = (response.producer_id, response.producer_epoch);
        }
        Ok(())
    }

    /// Takes a position of a group into the transaction.
    pub(crate) fn commit_position(
        &self,
        client: &mut Client,
        group: &str,
        position: Value,
        deadline: Instant,
    ) -> Result<(), CallError> {
        let identity = self.identity()?;
        let partition = TxnOffsetCommitPartition {
            partition_index: POSITION_PARTITION,
            committed_offset: position,
            ..TxnOffsetCommitPartition::default()
        };
        let topic = TxnOffsetCommitTopic { name: client.topic.into(), partitions: vec![partition] };
        let request = TxnOffsetCommitRequest {
            transactional_id: self.id.clone(),
            group_id: group.into(),
            producer_id: identity.id,
            producer_epoch: identity.epoch,
            topics: vec![topic],
            ..TxnOffsetCommitRequest::default()
        };
        until_final(deadline, || {
            let kind = FindCoordinatorRequest::KEY_TYPE_GROUP;
            let coordinator = client.coordinator(group, kind)?;
            let response = client.call_at(coordinator, &request, CALL_TIMEOUT)?;
            let mut partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            let code = partitions.next().map_or(ErrorCode::InvalidRequest, |it| it.error_code);
            CallError::check("commit a position", code)
        })
    }

    fn identity(&self) -> Result<&Identity, CallError> {
        let nobody = || CallError::NoLeader("a producer without identity".to_owned());
        self.identity.as_ref().ok_or_else(nobody)
    }
}

/// Tries again until it succeeds, is refused for good, or there is no time left.
fn until_final(
    deadline: Instant,
    mut attempt: impl FnMut() -> Result<(), CallError>,
) -> Result<(), CallError> {
    loop {
        let result = attempt();
        let is_final = match &result {
            Ok(()) => true,
            Err(error) => error.code().is_some_and(|code| !code.is_retriable()),
        };
        if is_final || clock::now() > deadline {
            return result;
        }
        clock::sleep(CALL_TIMEOUT / 40);
    }
}
