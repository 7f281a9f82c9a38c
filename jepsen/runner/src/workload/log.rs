//! `log`: idempotent producers; consumers with partitions of their own and in a group.

use super::consumers::{Assigned, Last, Subscribed};
use super::{Pen, Stage, Worker, Workload};
use crate::client::Client;
use crate::client::producer::{self, Identity, Outcome};
use crate::clock;
use crate::history::{Body, Key, Micro, Value};

/// Batches in flight that a partition can tell from repeats.
const IN_FLIGHT_MAX: usize = 5;

pub(super) fn workload() -> Workload {
    Workload {
        name: "log",
        about: "idempotent producers, consumers with assigned partitions and in a group",
        prepare: |_, _| Ok(()),
        worker: |stage, worker| match worker % 4 {
            0 | 1 => Box::new(Producer::new(stage, worker)),
            2 => Box::new(Assigned::new(stage, worker)),
            _ => Box::new(Subscribed::new(stage, worker)),
        },
        last: Last::all,
    }
}

/// Sends records, several at a time to one partition.
pub(super) struct Producer {
    client: Client,
    identity: Option<Identity>,
}

impl Producer {
    pub(super) fn new(stage: &Stage<'_>, worker: usize) -> Self {
        Self { client: stage.client(worker), identity: None }
    }
}

impl Worker for Producer {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let identity = match &mut self.identity {
            Some(identity) => identity,
            // Nothing is sent without one: no operation.
            None => match Identity::acquire(&mut self.client) {
                Ok(identity) => self.identity.insert(identity),
                Err(_) => return,
            },
        };
        let key = stage.key(&mut pen.chance);
        let count = 1 + pen.chance.below(IN_FLIGHT_MAX);
        let values: Vec<Value> = (0..count).map(|_| stage.value()).collect();
        pen.invoke(body(key, &values, &[]));
        let deadline = clock::now() + stage.patience;
        let outcomes = producer::send(&mut self.client, identity, key, &values, deadline);
        let body = body(key, &values, &outcomes);
        match verdict(&outcomes) {
            Verdict::Acked => pen.ok(body),
            Verdict::Refused(why) => {
                // Sequences were given out: what comes next would leave a gap.
                self.identity = None;
                pen.fail(body, why);
            }
            Verdict::Unknown(why) => {
                self.identity = None;
                pen.info(body, why);
            }
        }
    }
}

pub(super) enum Verdict {
    Acked,
    Refused(String),
    Unknown(String),
}

/// The outcome of an operation of several records: one that is in doubt puts it all in doubt.
pub(super) fn verdict(outcomes: &[Outcome]) -> Verdict {
    let mut refused = None;
    for outcome in outcomes {
        match outcome {
            Outcome::Unknown(why) => return Verdict::Unknown(why.clone()),
            Outcome::Refused(why) => refused = Some(why.clone()),
            Outcome::Acked(_) => {}
        }
    }
    let some_acked = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Acked(_)));
    match refused {
        None => Verdict::Acked,
        Some(why) if some_acked => Verdict::Unknown(why),
        Some(why) => Verdict::Refused(why),
    }
}

pub(super) fn body(key: Key, values: &[Value], outcomes: &[Outcome]) -> Body {
    let micro = |(index, value): (usize, &Value)| {
        let offset = match outcomes.get(index) {
            Some(Outcome::Acked(offset)) => Some(*offset),
            _ => None,
        };
        Micro::Send { key, offset, value: *value }
    };
    Body::Send(values.iter().enumerate().map(micro).collect())
}
