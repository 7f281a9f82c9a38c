//! An idempotent producer that tells exactly what it knows of each record.

use std::time::{Duration, Instant};

use bytes::Bytes;
use meridian_protocol::messages::{
    InitProducerIdRequest, ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic,
};
use meridian_protocol::records::BatchBuilder;
use meridian_protocol::{ErrorCode, Str};

use super::cluster::CALL_TIMEOUT;
use super::{CallError, Client};
use crate::clock;
use crate::history::{Key, Offset, Value};

const RETRY_AFTER: Duration = Duration::from_millis(100);
/// All copies: what is acknowledged is safe.
const ACKS_ALL: i16 = -1;

/// Who writes: sequences count through the records of each partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
    pub(crate) sequences: std::collections::BTreeMap<Key, i32>,
    /// Set in every batch of a transaction.
    pub(crate) transactional_id: Option<Str>,
}

/// What became of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Acked(Offset),
    /// It is not in the log, and never will be.
    Refused(String),
    /// Nobody knows. Its producer's next sequence is in doubt, too.
    Unknown(String),
}

impl Identity {
    /// A new one from the cluster.
    pub(crate) fn acquire(client: &mut Client) -> Result<Self, CallError> {
        let request = InitProducerIdRequest {
            transaction_timeout_ms: i32::MAX,
            ..InitProducerIdRequest::default()
        };
        let response = client.call_any(&request)?;
        CallError::check("get a producer id", response.error_code)?;
        Ok(Self {
            id: response.producer_id,
            epoch: response.producer_epoch,
            sequences: std::collections::BTreeMap::new(),
            transactional_id: None,
        })
    }

    /// The batch of one value, at a distance from the next sequence.
    pub(crate) fn batch(&self, key: Key, ahead: i32, value: Value) -> Bytes {
        let next = self.sequences.get(&key).copied().unwrap_or(0);
        let sequence = next.wrapping_add(ahead) & i32::MAX;
        let mut batch = BatchBuilder::new().producer(self.id, self.epoch, sequence);
        if self.transactional_id.is_some() {
            batch = batch.transactional();
        }
        let text = value.to_string();
        batch.append(clock::wall_ms(), None, Some(text.as_bytes()), &[]);
        batch.build()
    }

    pub(crate) fn advance(&mut self, key: Key, by: i32) {
        let next = self.sequences.entry(key).or_insert(0);
        *next = next.wrapping_add(by) & i32::MAX;
    }
}

/// A request that writes one batch.
pub(crate) fn request(
    topic: &'static str,
    key: Key,
    batch: Bytes,
    transactional_id: Option<Str>,
) -> ProduceRequest {
    let index = i32::try_from(key).unwrap_or(i32::MAX);
    let topic = ProduceTopic {
        name: topic.into(),
        partition_data: vec![ProducePartition { index, records: Some(batch) }],
        ..ProduceTopic::default()
    };
    ProduceRequest {
        transactional_id,
        acks: ACKS_ALL,
        timeout_ms: i32::try_from(CALL_TIMEOUT.as_millis()).unwrap_or(i32::MAX),
        topic_data: vec![topic],
    }
}

/// What the answer to [`request`] says.
pub(crate) fn verdict(response: &ProduceResponse) -> Result<Offset, ErrorCode> {
    let mut partitions = response.responses.iter().flat_map(|it| &it.partition_responses);
    match partitions.next() {
        None => Err(ErrorCode::UnknownServerError),
        Some(it) if it.error_code.is_none() => Ok(it.base_offset),
        Some(it) => Err(it.error_code),
    }
}

/// A record on its way.
struct Pending {
    batch: Bytes,
    outcome: Option<Outcome>,
    was_sent: bool,
    problem: String,
}

/// Writes values to a partition, each in a batch of its own, all in flight at once; tries again
/// what failed, in order, until the deadline. Outcomes come in the order of the values.
pub(crate) fn send(
    client: &mut Client,
    identity: &mut Identity,
    key: Key,
    values: &[Value],
    deadline: Instant,
) -> Vec<Outcome> {
    let mut pending: Vec<Pending> = (0..)
        .zip(values)
        .map(|(ahead, value)| Pending {
            batch: identity.batch(key, ahead, *value),
            outcome: None,
            was_sent: false,
            problem: String::new(),
        })
        .collect();
    while pending.iter().any(|it| it.outcome.is_none()) && clock::now() < deadline {
        if let Err(error) = attempt(client, identity, key, &mut pending, deadline) {
            for it in pending.iter_mut().filter(|it| it.outcome.is_none()) {
                it.problem = error.to_string();
            }
            client.forget_leader(key);
            clock::sleep(RETRY_AFTER);
        }
    }
    identity.advance(key, i32::try_from(values.len()).unwrap_or(0));
    let outcome = |it: Pending| match it.outcome {
        Some(outcome) => outcome,
        None if it.was_sent => Outcome::Unknown(it.problem),
        None => Outcome::Refused(it.problem),
    };
    pending.into_iter().map(outcome).collect()
}

/// Sends all that have no outcome yet, and takes the answers.
fn attempt(
    client: &mut Client,
    identity: &Identity,
    key: Key,
    pending: &mut [Pending],
    deadline: Instant,
) -> Result<(), CallError> {
    let topic = client.topic;
    let leader = client.leader(key)?;
    let connection = client.connection(leader)?;
    let deadline = deadline.min(clock::now() + CALL_TIMEOUT);
    let mut exchange = || {
        let mut sent = Vec::new();
        for it in pending.iter_mut().filter(|it| it.outcome.is_none()) {
            it.was_sent = true;
            let transactional_id = identity.transactional_id.clone();
            let request = request(topic, key, it.batch.clone(), transactional_id);
            sent.push((connection.send(&request)?, it));
        }
        let mut failed = None;
        for (sent, it) in sent {
            let response = connection.answer::<ProduceRequest>(sent, deadline)?;
            match verdict(&response) {
                Ok(offset) => it.outcome = Some(Outcome::Acked(offset)),
                // One before it is to be sent again.
                Err(ErrorCode::OutOfOrderSequenceNumber) if failed.is_some() => {}
                Err(code) if code.is_retriable() => failed = Some(code),
                Err(code) => it.outcome = Some(Outcome::Unknown(format!("refused: {code:?}"))),
            }
        }
        match failed {
            Some(code) => Err(CallError::Server { what: "produce", code }),
            None => Ok(()),
        }
    };
    let result = exchange();
    if let Err(error) = &result
        && error.code().is_none()
    {
        client.disconnect(leader);
    }
    result
}
