//! `txn`: transactions over several partitions, committed and aborted; producers that write on
//! after they were replaced.
//!
//! The client speaks version 2 of transactions (KIP-890): partitions join by being written to, and
//! every end gives the producer a new epoch.

use std::collections::BTreeMap;

use meridian_protocol::messages::{EndTxnRequest, FindCoordinatorRequest, InitProducerIdRequest};
use meridian_protocol::{ErrorCode, Str};

use super::consumers::{Assigned, Last};
use super::log::{Verdict, verdict};
use super::{Pen, Stage, Worker, Workload, create_topic, rack_of};
use crate::client::consumer::Reader;
use crate::client::producer::{self, Identity, Outcome};
use crate::client::{CALL_TIMEOUT, CallError, Client};
use crate::clock;
use crate::history::{Body, Key, Micro, Value};

const PARTITION_COUNT_MAX: usize = 4;
const TIMEOUT_MS: i32 = 10_000;

pub(super) fn workload() -> Workload {
    Workload {
        name: "txn",
        about: "transactions over several partitions, aborts, and producers that were replaced",
        prepare: create_topic,
        worker: |stage, worker| match worker % 4 {
            3 => Box::new(Assigned::new(stage, worker)),
            _ => Box::new(Transactor::new(stage, worker)),
        },
        last: Last::all,
    }
}

struct Transactor {
    client: Client,
    transactional_id: Str,
    identity: Option<Identity>,
    reader: Reader,
}

impl Transactor {
    fn new(stage: &Stage<'_>, worker: usize) -> Self {
        Self {
            client: stage.client(worker),
            transactional_id: format!("jepsen-{worker}").into(),
            identity: None,
            reader: Reader::new(&rack_of(worker), true),
        }
    }

    /// Takes the transactional id over: whoever had it is fenced.
    fn begin(&mut self) -> Result<Identity, CallError> {
        let request = InitProducerIdRequest {
            transactional_id: Some(self.transactional_id.clone()),
            transaction_timeout_ms: TIMEOUT_MS,
            ..InitProducerIdRequest::default()
        };
        let kind = FindCoordinatorRequest::KEY_TYPE_TRANSACTION;
        let coordinator = self.client.coordinator(&self.transactional_id, kind)?;
        let response = self.client.call_at(coordinator, &request, CALL_TIMEOUT)?;
        CallError::check("begin", response.error_code)?;
        Ok(Identity {
            id: response.producer_id,
            epoch: response.producer_epoch,
            sequences: BTreeMap::new(),
            transactional_id: Some(self.transactional_id.clone()),
        })
    }

    /// Commits or aborts; tried again until the outcome is known, for it can be repeated.
    fn end(&mut self, stage: &Stage<'_>, committed: bool) -> Result<(), CallError> {
        let Some(identity) = self.identity.clone() else {
            return Err(CallError::NoLeader("a producer without identity".to_owned()));
        };
        let request = EndTxnRequest {
            transactional_id: self.transactional_id.clone(),
            producer_id: identity.id,
            producer_epoch: identity.epoch,
            committed,
        };
        let deadline = clock::now() + stage.patience;
        loop {
            let result = self.try_end(&request);
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

    fn try_end(&mut self, request: &EndTxnRequest) -> Result<(), CallError> {
        let kind = FindCoordinatorRequest::KEY_TYPE_TRANSACTION;
        let coordinator = self.client.coordinator(&self.transactional_id, kind)?;
        let response = self.client.call_at(coordinator, request, CALL_TIMEOUT)?;
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

    fn transact(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let mut wanted: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
        for _ in 0..=pen.chance.below(PARTITION_COUNT_MAX) {
            let key = stage.key(&mut pen.chance);
            wanted.entry(key).or_default().push(stage.value());
        }
        let reads = pen.chance.per_mille(300);
        pen.invoke(body(&wanted, &BTreeMap::new(), reads.then_some(None)));
        let deadline = clock::now() + stage.patience;
        let mut outcomes = BTreeMap::new();
        for (key, values) in &wanted {
            let Some(identity) = &mut self.identity else { break };
            let sent = producer::send(&mut self.client, identity, *key, values, deadline);
            outcomes.insert(*key, sent);
        }
        let polled = reads.then(|| {
            if self.reader.positions.is_empty() {
                self.reader.positions = stage.keys().into_iter().map(|key| (key, 0)).collect();
            }
            Some(self.reader.poll(&mut self.client).polled)
        });
        let body = body(&wanted, &outcomes, polled);
        let all: Vec<Outcome> = outcomes.into_values().flatten().collect();
        let commit = match verdict(&all) {
            Verdict::Acked => !pen.chance.per_mille(100),
            Verdict::Refused(_) | Verdict::Unknown(_) => false,
        };
        match self.end(stage, commit) {
            Ok(()) if commit => pen.ok(body),
            Ok(()) => {
                pen.fail(body, "aborted".to_owned());
                if !matches!(verdict(&all), Verdict::Acked) {
                    self.identity = None;
                }
            }
            Err(error) => {
                self.identity = None;
                // Without a commit asked for, it never commits.
                if commit {
                    pen.failed(body, &error);
                } else {
                    pen.fail(body, error.to_string());
                }
            }
        }
    }

    /// Another instance takes the transactional id; the old one writes on, and commits.
    fn rise_from_the_dead(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let Some(mut old) = self.identity.take() else { return };
        let Ok(new) = self.begin() else { return };
        let key = stage.key(&mut pen.chance);
        let value = stage.value();
        let zombie = |offset| Body::Zombie { key, offset, value };
        pen.invoke(zombie(None));
        let deadline = clock::now() + CALL_TIMEOUT;
        let outcome = producer::send(&mut self.client, &mut old, key, &[value], deadline);
        self.identity = Some(old);
        let ended = self.end(stage, true);
        match (outcome.first(), ended) {
            (Some(Outcome::Acked(offset)), Ok(())) => pen.ok(zombie(Some(*offset))),
            (_, Err(error)) if error.code().is_some_and(is_fenced) => {
                pen.fail(zombie(None), error.to_string());
            }
            (_, Err(error)) => pen.failed(zombie(None), &error),
            (_, Ok(())) => pen.info(zombie(None), "its write was refused".to_owned()),
        }
        self.identity = Some(new);
    }
}

fn is_fenced(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::InvalidProducerEpoch | ErrorCode::ProducerFenced)
}

fn body(
    wanted: &BTreeMap<Key, Vec<Value>>,
    outcomes: &BTreeMap<Key, Vec<Outcome>>,
    polled: Option<Option<crate::history::Polled>>,
) -> Body {
    let sends = wanted.iter().flat_map(|(key, values)| {
        values.iter().enumerate().map(|(index, value)| {
            let outcome = outcomes.get(key).and_then(|of| of.get(index));
            let offset = match outcome {
                Some(Outcome::Acked(offset)) => Some(*offset),
                _ => None,
            };
            Micro::Send { key: *key, offset, value: *value }
        })
    });
    Body::Txn(sends.chain(polled.map(Micro::Poll)).collect())
}

impl Worker for Transactor {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        if self.identity.is_none() {
            // Nothing is written without one: no operation.
            self.identity = self.begin().ok();
        }
        if self.identity.is_none() {
            return;
        }
        if pen.chance.per_mille(50) {
            self.rise_from_the_dead(stage, pen);
        } else {
            self.transact(stage, pen);
        }
    }
}
