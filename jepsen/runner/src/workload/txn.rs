//! `txn`: transactions over several partitions and a group's position, committed and aborted; producers
//! that write on after they were replaced.
//!
//! ```text
//!   send to partitions -> ask how far all is decided -> read -> take a position along -> commit or abort
//! ```
//!
//! Each worker commits positions of a group of its own: registers, which change with its transactions.

use std::collections::BTreeMap;
use std::time::Instant;

use meridian_protocol::ErrorCode;
use meridian_protocol::messages::ListOffsetsPartition;

use super::consumers::{Assigned, Last};
use super::log::{Verdict, verdict};
use super::{Pen, Stage, Worker, Workload, rack_of, transactional_id};
use crate::client::consumer::Reader;
use crate::client::group::Member;
use crate::client::producer::{self, Outcome};
use crate::client::transaction::Transactional;
use crate::client::{CALL_TIMEOUT, CallError, Client};
use crate::clock;
use crate::history::{Body, Key, Kind, Micro, Notes, Offset, Polled, Value};

const PARTITION_COUNT_MAX: usize = 4;
/// For all positions to be read at the end.
const LAST_WITHIN: std::time::Duration = std::time::Duration::from_secs(60);

pub(super) fn workload() -> Workload {
    Workload {
        name: "txn",
        about: "transactions over partitions and positions, aborts, producers that were replaced",
        prepare: |_, _| Ok(()),
        worker: |stage, worker| match worker % 4 {
            3 => Box::new(Assigned::new(stage, worker)),
            _ => Box::new(Transactor::new(stage, worker)),
        },
        last: |stage| {
            let mut all = Last::all(stage);
            all.push(Box::new(LastPositions::new(stage)));
            all
        },
    }
}

/// What a transaction is to do.
struct Wanted {
    sends: BTreeMap<Key, Vec<Value>>,
    position: Option<Value>,
    asks_stable: bool,
    reads: bool,
}

/// What came of it before its end.
#[derive(Default)]
struct Done {
    outcomes: BTreeMap<Key, Vec<Outcome>>,
    stable: Vec<(Key, Offset)>,
    polled: Option<Polled>,
    /// Whether all that was wanted is in the transaction.
    is_whole: bool,
}

struct Transactor {
    client: Client,
    producer: Transactional,
    reader: Reader,
    /// The register of its positions.
    register: Key,
}

/// The register of a worker's positions.
fn register(worker: usize) -> Key {
    i64::try_from(worker).unwrap_or(i64::MAX)
}

/// The group whose position is a register.
fn group(register: Key) -> String {
    format!("positions-{register}")
}

impl Transactor {
    fn new(stage: &Stage<'_>, worker: usize) -> Self {
        Self {
            client: stage.client(worker),
            producer: Transactional::new(transactional_id(worker)),
            reader: Reader::new(&rack_of(worker), true),
            register: register(worker),
        }
    }

    fn transact(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let wanted = Wanted::draw(stage, pen);
        let position = wanted.position.map(|position| (self.register, position));
        let notes = Notes { position, ..Notes::default() };
        pen.note(Kind::Invoke, wanted.body(&Done::default()), notes.clone());
        let done = self.fill(stage, &wanted, clock::now() + stage.patience);
        let body = wanted.body(&done);
        let notes = Notes { stable: done.stable, ..notes };
        let commit = done.is_whole && !pen.chance.per_mille(100);
        match self.producer.end(&mut self.client, commit, clock::now() + stage.patience) {
            Ok(()) if commit => pen.note(Kind::Ok, body, notes),
            Ok(()) => {
                pen.note(Kind::Fail, body, Notes { error: Some("aborted".to_owned()), ..notes });
                if !done.is_whole {
                    self.producer.identity = None;
                }
            }
            Err(error) => {
                self.producer.identity = None;
                let notes = Notes { error: Some(error.to_string()), ..notes };
                // Without a commit asked for, it never commits.
                if commit && error.may_have_happened() {
                    pen.in_doubt(body, notes);
                } else {
                    pen.note(Kind::Fail, body, notes);
                }
            }
        }
    }

    /// Does all of a transaction but its end.
    fn fill(&mut self, stage: &Stage<'_>, wanted: &Wanted, deadline: Instant) -> Done {
        let mut done = Done::default();
        for (key, values) in &wanted.sends {
            let Some(identity) = &mut self.producer.identity else { return done };
            let sent = producer::send(&mut self.client, identity, *key, values, deadline);
            done.outcomes.insert(*key, sent);
        }
        let all: Vec<Outcome> = done.outcomes.values().flatten().cloned().collect();
        done.is_whole = matches!(verdict(&all), Verdict::Acked);
        if wanted.asks_stable {
            for key in wanted.sends.keys() {
                let latest = ListOffsetsPartition::TIMESTAMP_LATEST;
                // A leader that does not answer tells nothing.
                done.stable.extend(self.client.list_offset(*key, latest).ok().map(|it| (*key, it)));
            }
        }
        if wanted.reads {
            if self.reader.positions.is_empty() {
                self.reader.positions = stage.keys().into_iter().map(|key| (key, 0)).collect();
            }
            done.polled = Some(self.reader.poll(&mut self.client).polled);
        }
        if let (true, Some(position)) = (done.is_whole, wanted.position) {
            let (client, group) = (&mut self.client, group(self.register));
            let taken = self.producer.commit_position(client, &group, position, deadline);
            done.is_whole = taken.is_ok();
        }
        done
    }

    /// Another instance takes the transactional id; the old one writes on, and commits.
    fn rise_from_the_dead(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let Some(mut old) = self.producer.identity.take() else { return };
        let Ok(new) = self.producer.acquire(&mut self.client) else { return };
        let key = stage.key(&mut pen.chance);
        let value = stage.value();
        let zombie = |offset| Body::Zombie { key, offset, value };
        pen.invoke(zombie(None));
        let deadline = clock::now() + CALL_TIMEOUT;
        let outcome = producer::send(&mut self.client, &mut old, key, &[value], deadline);
        self.producer.identity = Some(old);
        let ended = self.producer.end(&mut self.client, true, clock::now() + stage.patience);
        match (outcome.first(), ended) {
            (Some(Outcome::Acked(offset)), Ok(())) => pen.ok(zombie(Some(*offset))),
            (_, Err(error)) if error.code().is_some_and(is_fenced) => {
                pen.fail(zombie(None), error.to_string());
            }
            (_, Err(error)) => pen.failed(zombie(None), &error),
            (_, Ok(())) => pen.info(zombie(None), "its write was refused".to_owned()),
        }
        self.producer.identity = Some(new);
    }
}

fn is_fenced(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::InvalidProducerEpoch | ErrorCode::ProducerFenced)
}

impl Wanted {
    fn draw(stage: &Stage<'_>, pen: &mut Pen<'_>) -> Self {
        let mut sends: BTreeMap<Key, Vec<Value>> = BTreeMap::new();
        for _ in 0..=pen.chance.below(PARTITION_COUNT_MAX) {
            let key = stage.key(&mut pen.chance);
            sends.entry(key).or_default().push(stage.value());
        }
        Self {
            sends,
            position: pen.chance.per_mille(500).then(|| stage.value()),
            asks_stable: pen.chance.per_mille(300),
            reads: pen.chance.per_mille(300),
        }
    }

    /// The operation, with what is known of it.
    fn body(&self, done: &Done) -> Body {
        let sends = self.sends.iter().flat_map(|(key, values)| {
            values.iter().enumerate().map(|(index, value)| {
                let outcome = done.outcomes.get(key).and_then(|of| of.get(index));
                let offset = match outcome {
                    Some(Outcome::Acked(offset)) => Some(*offset),
                    _ => None,
                };
                Micro::Send { key: *key, offset, value: *value }
            })
        });
        let polls = self.reads.then(|| Micro::Poll(done.polled.clone()));
        Body::Txn(sends.chain(polls).collect())
    }
}

impl Worker for Transactor {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        if self.producer.identity.is_none() {
            // Nothing is written without one: no operation.
            self.producer.identity = self.producer.acquire(&mut self.client).ok();
        }
        if self.producer.identity.is_none() {
            return;
        }
        if pen.chance.per_mille(50) {
            self.rise_from_the_dead(stage, pen);
        } else if pen.chance.per_mille(150) {
            let others = register(pen.chance.below(stage.worker_count));
            let key = if pen.chance.per_mille(500) { self.register } else { others };
            read(&mut self.client, key, pen);
        } else {
            self.transact(stage, pen);
        }
    }
}

/// Asks where a group is, and waits for no transaction that is about to move it.
fn read(client: &mut Client, key: Key, pen: &Pen<'_>) -> bool {
    pen.invoke(Body::Read { key, value: None });
    let found: Result<_, CallError> = Member::new(&group(key), 1).committed(client, &[0]);
    match found {
        Ok(positions) => {
            pen.ok(Body::Read { key, value: positions.get(&0).copied() });
            true
        }
        Err(error) => {
            pen.fail(Body::Read { key, value: None }, error.to_string());
            false
        }
    }
}

/// Reads all positions once the faults are over.
struct LastPositions {
    client: Client,
    left: Vec<Key>,
    deadline: Instant,
}

impl LastPositions {
    fn new(stage: &Stage<'_>) -> Self {
        let left = (0..stage.worker_count).map(register).collect();
        Self { client: stage.client(0), left, deadline: clock::now() + LAST_WITHIN }
    }
}

impl Worker for LastPositions {
    fn step(&mut self, _stage: &Stage<'_>, pen: &mut Pen<'_>) {
        if let Some(key) = self.left.last().copied()
            && read(&mut self.client, key, pen)
        {
            self.left.pop();
        }
    }

    fn is_done(&self) -> bool {
        self.left.is_empty() || clock::now() > self.deadline
    }
}
