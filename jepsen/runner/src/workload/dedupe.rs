//! `dedupe`: producers that crash and come back, repeat themselves, and write on after they were
//! replaced.
//!
//! Each batch is in the log once, whoever sends it how often; a batch of an epoch that is over is
//! never in it.

use std::collections::VecDeque;

use bytes::Bytes;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{InitProducerIdRequest, ProduceRequest};

use super::consumers::{Assigned, Last};
use super::log::{Verdict, body, verdict};
use super::{Pen, Stage, Worker, Workload};
use crate::client::CallError;
use crate::client::Client;
use crate::client::producer::{self, Identity, Outcome};
use crate::clock;
use crate::history::{Body, Key, Offset, Value};

/// What a partition remembers of each producer.
const REMEMBERED_COUNT: usize = 5;

pub(super) fn workload() -> Workload {
    Workload {
        name: "dedupe",
        about: "producers that come back, repeat themselves, and go on though they are replaced",
        prepare: |_, _| Ok(()),
        worker: |stage, worker| match worker % 4 {
            3 => Box::new(Assigned::new(stage, worker)),
            _ => Box::new(Repeater::new(stage, worker)),
        },
        last: Last::all,
    }
}

struct Repeater {
    client: Client,
    identity: Option<Identity>,
    /// Of the partition of its last send: batches that were acked, where, and what they hold.
    acked: VecDeque<(Key, Bytes, Offset, Value)>,
}

impl Repeater {
    fn new(stage: &Stage<'_>, worker: usize) -> Self {
        Self { client: stage.client(worker), identity: None, acked: VecDeque::new() }
    }

    /// Sends batches and closes the connection before the answers come; then sends them again, as
    /// a client does that comes back.
    fn send(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let Some(identity) = &mut self.identity else { return };
        let key = stage.key(&mut pen.chance);
        let count = 1 + pen.chance.below(REMEMBERED_COUNT);
        let values: Vec<Value> = (0..count).map(|_| stage.value()).collect();
        let batches: Vec<Bytes> =
            (0..).zip(&values).map(|(ahead, value)| identity.batch(key, ahead, *value)).collect();
        pen.invoke(body(key, &values, &[]));
        if pen.chance.per_mille(400) {
            shout(&mut self.client, key, &batches);
        }
        let deadline = clock::now() + stage.patience;
        let outcomes = producer::send(&mut self.client, identity, key, &values, deadline);
        self.acked.retain(|(other, ..)| *other == key);
        for ((batch, value), outcome) in batches.into_iter().zip(&values).zip(&outcomes) {
            if let Outcome::Acked(offset) = outcome {
                self.acked.push_back((key, batch, *offset, *value));
            }
        }
        while self.acked.len() > REMEMBERED_COUNT {
            self.acked.pop_front();
        }
        let body = body(key, &values, &outcomes);
        match verdict(&outcomes) {
            Verdict::Acked => return pen.ok(body),
            Verdict::Refused(why) => pen.fail(body, why),
            Verdict::Unknown(why) => pen.info(body, why),
        }
        self.identity = None;
        self.acked.clear();
    }

    /// Sends a batch again that was acked, byte for byte.
    fn replay(&mut self, pen: &mut Pen<'_>) {
        let Some((key, batch, _, value)) = self.acked.get(pen.chance.below(self.acked.len()))
        else {
            return;
        };
        let (key, batch, value) = (*key, batch.clone(), *value);
        let replay = |offset| Body::Replay { key, offset, value };
        pen.invoke(replay(None));
        match produce(&mut self.client, key, batch) {
            Ok(offset) => pen.ok(replay(Some(offset))),
            Err(error) => pen.failed(replay(None), &error),
        }
    }

    /// Gets a new epoch, writes with it, and then with the old one.
    fn rise_from_the_dead(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let Some(old) = self.identity.take() else { return };
        self.acked.clear();
        let request = InitProducerIdRequest {
            transaction_timeout_ms: i32::MAX,
            producer_id: old.id,
            producer_epoch: old.epoch,
            ..InitProducerIdRequest::default()
        };
        let Ok(response) = self.client.call_any(&request) else { return };
        let is_bumped = response.error_code.is_none()
            && response.producer_id == old.id
            && response.producer_epoch > old.epoch;
        if !is_bumped {
            return;
        }
        let mut new = Identity {
            id: response.producer_id,
            epoch: response.producer_epoch,
            sequences: std::collections::BTreeMap::new(),
            transactional_id: None,
        };
        let key = stage.key(&mut pen.chance);
        let values = [stage.value()];
        pen.invoke(body(key, &values, &[]));
        let deadline = clock::now() + stage.patience;
        let outcomes = producer::send(&mut self.client, &mut new, key, &values, deadline);
        let sent = body(key, &values, &outcomes);
        match verdict(&outcomes) {
            Verdict::Acked => pen.ok(sent),
            Verdict::Refused(why) => return pen.fail(sent, why),
            Verdict::Unknown(why) => return pen.info(sent, why),
        }
        // Only now does the partition know that the old epoch is over.
        let value = stage.value();
        let zombie = |offset| Body::Zombie { key, offset, value };
        pen.invoke(zombie(None));
        match produce(&mut self.client, key, old.batch(key, 0, value)) {
            Ok(offset) => pen.ok(zombie(Some(offset))),
            Err(CallError::Server { code, .. }) if is_fenced(code) => {
                pen.fail(zombie(None), format!("{code:?}"));
            }
            Err(error) => pen.failed(zombie(None), &error),
        }
        self.identity = Some(new);
    }
}

fn is_fenced(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::InvalidProducerEpoch | ErrorCode::ProducerFenced)
}

/// Sends batches on a connection of its own, and is gone before they are answered.
fn shout(client: &mut Client, key: Key, batches: &[Bytes]) {
    let topic = client.topic;
    let Ok(leader) = client.leader(key) else { return };
    let Ok(mut connection) = client.another_connection(leader) else { return };
    for batch in batches {
        let request = producer::request(topic, key, batch.clone(), None);
        if connection.send(&request).is_err() {
            return;
        }
    }
}

/// Sends one batch once.
fn produce(client: &mut Client, key: Key, batch: Bytes) -> Result<Offset, CallError> {
    let request: ProduceRequest = producer::request(client.topic, key, batch, None);
    let leader = client.leader(key)?;
    let response = client.call_at(leader, &request, crate::client::CALL_TIMEOUT);
    let result = response.and_then(|response| {
        producer::verdict(&response).map_err(|code| CallError::Server { what: "produce", code })
    });
    if result.is_err() {
        client.forget_leader(key);
    }
    result
}

impl Worker for Repeater {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        if self.identity.is_none() {
            // Nothing is sent without one: no operation.
            self.identity = Identity::acquire(&mut self.client).ok();
        }
        if pen.chance.per_mille(250) && !self.acked.is_empty() {
            self.replay(pen);
        } else if pen.chance.per_mille(100) {
            self.rise_from_the_dead(stage, pen);
        } else {
            self.send(stage, pen);
        }
    }
}
