//! Those who read: assigned partitions, as a member of a group, and everything at the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meridian_protocol::messages::ListOffsetsPartition;

use super::{GROUP, Pen, Stage, Worker, datacenter_of, rack_of};
use crate::client::Client;
use crate::client::consumer::Reader;
use crate::client::group::Member;
use crate::clock;
use crate::history::{Body, Key, Kind, Micro, Notes, Offset};

/// Reads partitions that it picks itself, now and then others; asks for ends in between.
pub(super) struct Assigned {
    client: Client,
    reader: Reader,
    worker: usize,
}

/// Reads what its group gives it.
pub(super) struct Subscribed {
    client: Client,
    reader: Reader,
    member: Option<Member>,
    worker: usize,
    /// What it committed last.
    committed: BTreeMap<Key, Offset>,
}

/// Reads everything from the beginning to the end that leaders tell, once the faults are over.
pub(super) struct Last {
    client: Client,
    reader: Reader,
    keys: Vec<Key>,
    /// Partitions that may hold open transactions, and those whose epochs are not known.
    undecided: Vec<Key>,
    untold: Vec<Key>,
    ends: BTreeMap<Key, Offset>,
    begun: bool,
    /// Until then it waits for transactions to end.
    patience: Instant,
    deadline: Instant,
}

/// For all partitions to be read whole.
const LAST_WITHIN: Duration = Duration::from_secs(60);
/// For transactions that nobody ends to be aborted by their coordinators, before everything is read.
const DECIDED_WITHIN: Duration = Duration::from_secs(30);

impl Assigned {
    pub(super) fn new(stage: &Stage<'_>, worker: usize) -> Self {
        let rack = rack_of(worker);
        Self { client: stage.client(worker), reader: Reader::new(&rack, true), worker }
    }

    fn assign(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let keys: Vec<Key> =
            stage.keys().into_iter().filter(|_| pen.chance.per_mille(500)).collect();
        let body = Body::Assign { keys: keys.clone(), from_beginning: false };
        pen.invoke(body.clone());
        let mut reader = Reader::new(&rack_of(self.worker), true);
        for key in keys {
            // Where it was, or somewhere near the end.
            let position = match self.reader.positions.get(&key) {
                Some(position) => Ok(*position),
                None => self.client.list_offset(key, ListOffsetsPartition::TIMESTAMP_LATEST),
            };
            match position {
                Ok(position) => reader.positions.insert(key, position),
                Err(error) => return pen.fail(body, error.to_string()),
            };
        }
        self.reader = reader;
        pen.ok(body);
    }

    fn ends(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let key = stage.key(&mut pen.chance);
        pen.invoke(Body::Ends(None));
        match self.client.list_offset(key, ListOffsetsPartition::TIMESTAMP_LATEST) {
            Ok(end) => pen.ok(Body::Ends(Some([(key, end)].into()))),
            Err(error) => pen.fail(Body::Ends(None), error.to_string()),
        }
    }
}

/// Asks how far a partition goes and how far it is decided; whether that is the same.
fn ask_stable(client: &mut Client, key: Key, pen: &Pen<'_>) -> bool {
    pen.invoke(Body::Stable(None));
    match client.stable(key) {
        Ok((stable, high)) => {
            pen.ok(Body::Stable(Some([(key, (stable, high))].into())));
            stable >= high
        }
        Err(error) => {
            pen.fail(Body::Stable(None), error.to_string());
            false
        }
    }
}

/// Asks which epochs a partition's log has; whether there was an answer.
fn ask_lineage(client: &mut Client, key: Key, pen: &Pen<'_>) -> bool {
    let body = |epochs| Body::Lineage { key, epochs };
    pen.invoke(body(None));
    let told = client.lineage(key);
    let is_told = told.is_ok();
    match told {
        Ok(epochs) => pen.ok(body(Some(epochs))),
        Err(error) => pen.fail(body(None), error.to_string()),
    }
    is_told
}

impl Worker for Assigned {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        if self.reader.positions.is_empty() || pen.chance.per_mille(15) {
            self.assign(stage, pen);
        } else if pen.chance.per_mille(200) {
            self.ends(stage, pen);
        } else if pen.chance.per_mille(100) {
            ask_stable(&mut self.client, stage.key(&mut pen.chance), pen);
        } else if pen.chance.per_mille(50) {
            ask_lineage(&mut self.client, stage.key(&mut pen.chance), pen);
        } else {
            poll(&mut self.reader, &mut self.client, pen, false);
        }
    }
}

/// Polls once, and tells how far it is if so.
fn poll(reader: &mut Reader, client: &mut Client, pen: &Pen<'_>, tells_read_to: bool) {
    pen.invoke(Body::Poll(vec![Micro::Poll(None)]));
    let taken = reader.poll(client);
    let error = taken.problem.map(|error| error.to_string());
    // Something was read, though perhaps not everywhere.
    let mut notes = Notes { error, gaps: taken.gaps, epochs: taken.epochs, ..Notes::default() };
    if tells_read_to {
        notes.read_to = reader.positions.iter().map(|(key, offset)| (*key, *offset)).collect();
    }
    pen.note(Kind::Ok, Body::Poll(vec![Micro::Poll(Some(taken.polled))]), notes);
}

impl Subscribed {
    pub(super) fn new(stage: &Stage<'_>, worker: usize) -> Self {
        let rack = rack_of(worker);
        let (client, reader) = (stage.client(worker), Reader::new(&rack, true));
        Self { client, reader, member: None, worker, committed: BTreeMap::new() }
    }

    /// Joins if it must; false if it has nothing to read.
    fn tend(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) -> bool {
        let Some(member) = &mut self.member else {
            pen.invoke(Body::Subscribe);
            self.member = Some(Member::new(GROUP, stage.partition_count));
            pen.ok(Body::Subscribe);
            return false;
        };
        let had = member.keys.len();
        match member.tend(&mut self.client) {
            Ok(false) => return had > 0,
            Ok(true) => {}
            Err(_) => {
                self.reader.positions.clear();
                return false;
            }
        }
        // New partitions: go on where the group is.
        let (generation, keys) = (i64::from(member.generation), member.keys.clone());
        let body = Body::Assigned { generation, keys: keys.clone() };
        pen.invoke(body.clone());
        match member.committed(&mut self.client, &keys) {
            Ok(offsets) => {
                self.reader = Reader::new(&rack_of(self.worker), true);
                for key in keys {
                    let start = offsets.get(&key).copied().unwrap_or(0);
                    self.reader.positions.insert(key, start);
                }
                self.committed = offsets;
                pen.ok(body);
                true
            }
            Err(error) => {
                // It must not read before it knows where.
                self.reader.positions.clear();
                self.member = None;
                pen.fail(body, error.to_string());
                false
            }
        }
    }

    fn commit(&mut self, pen: &mut Pen<'_>) {
        let Some(member) = &mut self.member else { return };
        let offsets = self.reader.positions.clone();
        if offsets.is_empty() || offsets == self.committed {
            return;
        }
        let generation = i64::from(member.generation);
        let body = Body::Commit { generation, offsets: offsets.clone() };
        pen.invoke(body.clone());
        match member.commit(&mut self.client, &offsets) {
            Ok(()) => {
                self.committed = offsets;
                pen.ok(body);
            }
            Err(error) => {
                let is_refused = error.code().is_some_and(is_definite_refusal);
                if is_refused {
                    pen.fail(body, error.to_string());
                } else {
                    pen.failed(body, &error);
                }
            }
        }
        if member.keys.is_empty() {
            self.reader.positions.clear();
        }
    }
}

/// Whether a commit that was answered so is certain not to count.
pub(super) fn is_definite_refusal(code: meridian_protocol::ErrorCode) -> bool {
    use meridian_protocol::ErrorCode::{
        FencedInstanceId, IllegalGeneration, NotCoordinator, RebalanceInProgress, UnknownMemberId,
    };
    matches!(
        code,
        FencedInstanceId
            | IllegalGeneration
            | NotCoordinator
            | RebalanceInProgress
            | UnknownMemberId
    )
}

impl Worker for Subscribed {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        if !self.tend(stage, pen) {
            return;
        }
        if pen.chance.per_mille(10) {
            // It goes away without a word, or with one.
            if let Some(mut member) = self.member.take()
                && pen.chance.per_mille(500)
            {
                // If it is not heard its session ends by itself.
                let _unheard = member.leave(&mut self.client);
            }
            self.reader.positions.clear();
        } else if pen.chance.per_mille(250) {
            self.commit(pen);
        } else {
            poll(&mut self.reader, &mut self.client, pen, false);
        }
    }
}

impl Last {
    pub(super) fn new(stage: &Stage<'_>, datacenter: usize, keys: Vec<Key>) -> Self {
        Self {
            client: stage.client(datacenter),
            reader: Reader::new(&rack_of(datacenter_of(datacenter)), true),
            undecided: keys.clone(),
            untold: keys.clone(),
            keys,
            ends: BTreeMap::new(),
            begun: false,
            patience: clock::now() + DECIDED_WITHIN,
            deadline: clock::now() + DECIDED_WITHIN + LAST_WITHIN,
        }
    }

    /// All partitions, shared among three readers.
    pub(super) fn all(stage: &Stage<'_>) -> Vec<Box<dyn Worker>> {
        let share = |number: i64| -> Vec<Key> {
            stage.keys().into_iter().filter(|key| key % 3 == number).collect()
        };
        let reader = |number: i64| -> Box<dyn Worker> {
            Box::new(Self::new(stage, usize::try_from(number).unwrap_or(0), share(number)))
        };
        (0..3).map(reader).collect()
    }
}

impl Worker for Last {
    fn step(&mut self, _stage: &Stage<'_>, pen: &mut Pen<'_>) {
        if !self.begun {
            let body = Body::Assign { keys: self.keys.clone(), from_beginning: true };
            pen.invoke(body.clone());
            self.reader.positions = self.keys.iter().map(|key| (*key, 0)).collect();
            pen.ok(body);
            self.begun = true;
        }
        let undecided = self.undecided.last().copied().filter(|_| clock::now() < self.patience);
        if let Some(key) = undecided {
            if ask_stable(&mut self.client, key, pen) {
                self.undecided.pop();
            }
            return;
        }
        if let Some(key) = self.untold.last().copied() {
            if ask_lineage(&mut self.client, key, pen) {
                self.untold.pop();
            }
            return;
        }
        if let Some(key) = self.keys.iter().find(|key| !self.ends.contains_key(key)).copied() {
            pen.invoke(Body::Ends(None));
            match self.client.list_offset(key, ListOffsetsPartition::TIMESTAMP_LATEST) {
                Ok(end) => {
                    self.ends.insert(key, end);
                    pen.ok(Body::Ends(Some([(key, end)].into())));
                }
                Err(error) => pen.fail(Body::Ends(None), error.to_string()),
            }
            return;
        }
        poll(&mut self.reader, &mut self.client, pen, true);
    }

    fn is_done(&self) -> bool {
        let is_read = |(key, end): (&Key, &Offset)| self.reader.positions.get(key) >= Some(end);
        let is_told = self.untold.is_empty() && self.ends.len() == self.keys.len();
        let all = is_told && self.ends.iter().all(is_read);
        all || clock::now() > self.deadline
    }
}
