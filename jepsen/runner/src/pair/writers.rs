//! Idempotent producers that follow a topic from one cluster to the other.
//!
//! ```text
//!  window:  [acked] [acked] [acked] [sent]      the last batches, each as its bytes were sent first
//!  failover:   resends all of it: what was mirrored is known there, the rest is written
//!              a sequence that is missing there: nothing of the window was mirrored; a new id
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::ProduceRequest;
use meridian_protocol::records::BatchBuilder;

use super::clusters::Pair;
use super::judge::Ack;
use crate::chance::Chance;
use crate::client::producer::{self, Identity};
use crate::client::{CALL_TIMEOUT, CallError, Client};
use crate::clock;
use crate::history::{Key, Offset, Value};

/// Batches that a partition remembers of each producer.
const WINDOW_COUNT: usize = 5;
/// Records of a batch.
pub(super) const BATCH_RECORD_COUNT: usize = 5;
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Where producers may write now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// How many failovers there were.
    pub(super) era: u32,
    pub(super) open: Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    Nowhere,
    Only(usize),
    /// They look for themselves who takes their records, as with addresses that lead to both.
    Both,
}

/// What producers share with whoever moves the topic.
pub(super) struct Desk {
    way: Mutex<Way>,
    acks: Mutex<Vec<Ack>>,
    /// When records were acknowledged: how old each is when a mirror shows it.
    latest: Mutex<VecDeque<(Value, Instant)>>,
    surprises: Mutex<Vec<String>>,
    /// Of each producer: the longest time between two acknowledgements, in microseconds.
    pauses_us: Vec<AtomicU64>,
    /// Of each producer: batches that were acknowledged.
    acked_counts: Vec<AtomicU64>,
    next_value: AtomicI64,
    /// What each record has beside its number.
    padding_bytes: usize,
    is_over: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    pub(super) fn new(writer_count: usize, padding_bytes: usize) -> Self {
        Self {
            way: Mutex::new(Way { era: 0, open: Open::Only(0) }),
            acks: Mutex::default(),
            latest: Mutex::default(),
            surprises: Mutex::default(),
            pauses_us: (0..writer_count).map(|_| AtomicU64::new(0)).collect(),
            acked_counts: (0..writer_count).map(|_| AtomicU64::new(0)).collect(),
            next_value: AtomicI64::new(0),
            padding_bytes,
            is_over: AtomicBool::new(false),
        }
    }

    pub(super) fn lead(&self, era: u32, open: Open) {
        *lock(&self.way) = Way { era, open };
    }

    fn way(&self) -> Way {
        *lock(&self.way)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Acknowledgements since this was last asked.
    pub(super) fn take_acks(&self) -> Vec<Ack> {
        std::mem::take(&mut lock(&self.acks))
    }

    pub(super) fn take_surprises(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.surprises))
    }

    /// How long each producer waited at most since this was last asked.
    pub(super) fn take_pauses(&self) -> Vec<Duration> {
        self.pauses_us
            .iter()
            .map(|it| Duration::from_micros(it.swap(0, Ordering::Relaxed)))
            .collect()
    }

    /// Records that were acknowledged lately, and when; the oldest are forgotten.
    pub(super) fn take_latest(&self) -> VecDeque<(Value, Instant)> {
        std::mem::take(&mut lock(&self.latest))
    }

    /// Waits until every producer has had so many batches acknowledged from now on.
    pub(super) fn wait_for_batches(&self, count: u64, patience: Duration) -> bool {
        let counts = || -> Vec<u64> {
            self.acked_counts.iter().map(|it| it.load(Ordering::Relaxed)).collect()
        };
        let before = counts();
        let is_done = || counts().iter().zip(&before).all(|(now, then)| now - then >= count);
        clock::until(patience, || is_done().then_some(())).is_some()
    }
}

/// A batch, and where it was said to be.
struct Sent {
    bytes: Bytes,
    values: Vec<Value>,
    is_acked: bool,
}

/// Why not all of the window is acknowledged.
enum Trouble {
    /// It may be soon.
    Later,
    /// What comes before the first batch is not known there.
    Gap,
}

/// A producer of one partition.
pub(super) struct Writer<'a> {
    desk: &'a Desk,
    number: usize,
    key: Key,
    clients: [Client; 2],
    identity: Option<Identity>,
    window: VecDeque<Sent>,
    way: Way,
    side: usize,
    /// A failover may have cut off what comes before the window.
    may_gap: bool,
    last_acked: Option<Instant>,
    chance: Chance,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        pair: &Pair,
        desk: &'a Desk,
        topic: &'static str,
        number: usize,
        key: Key,
        chance: Chance,
    ) -> Self {
        let clients = [0, 1].map(|side| pair.client(side, number, topic));
        Self {
            desk,
            number,
            key,
            clients,
            identity: None,
            window: VecDeque::new(),
            way: desk.way(),
            side: 0,
            may_gap: false,
            last_acked: None,
            chance,
        }
    }

    /// Writes a batch about once in `pause` until all is over.
    pub(super) fn run(mut self, pause: Duration) {
        while !self.desk.is_over() {
            let begun = clock::now();
            if self.window.iter().all(|it| it.is_acked) {
                self.add();
            }
            self.follow();
            let rest = match self.attempt() {
                Ok(()) => self.chance.between(pause / 2, pause * 3 / 2),
                Err(Trouble::Gap) => {
                    self.begin_again();
                    continue;
                }
                Err(Trouble::Later) => {
                    self.clients[self.side].forget_leader(self.key);
                    if self.way.open == Open::Both {
                        self.side = 1 - self.side;
                    }
                    RETRY_AFTER
                }
            };
            clock::sleep(rest.saturating_sub(begun.elapsed()));
        }
    }

    fn add(&mut self) {
        let first = self.desk.next_value.fetch_add(BATCH_RECORD_COUNT as i64, Ordering::Relaxed);
        let values: Vec<Value> = (first..).take(BATCH_RECORD_COUNT).collect();
        let Some(identity) = self.identity.as_mut() else { return };
        let bytes = batch(identity, self.key, &values, self.desk.padding_bytes, &mut self.chance);
        self.window.push_back(Sent { bytes, values, is_acked: false });
        if self.window.len() > WINDOW_COUNT {
            self.window.pop_front();
        }
    }

    /// Goes where it may write. Nobody who was promoted after a failover knows what was acknowledged
    /// before: all of the window is sent again.
    fn follow(&mut self) {
        let way = self.desk.way();
        if way.era != self.way.era {
            self.window.iter_mut().for_each(|it| it.is_acked = false);
            self.may_gap = true;
        }
        if let Open::Only(side) = way.open {
            self.side = side;
        }
        self.way = way;
    }

    /// Takes a new id for all of the window.
    fn begin_again(&mut self) {
        self.identity = None;
        let Ok(mut identity) = Identity::acquire(&mut self.clients[self.side]) else { return };
        for sent in &mut self.window {
            let size_bytes = self.desk.padding_bytes;
            sent.bytes = batch(&mut identity, self.key, &sent.values, size_bytes, &mut self.chance);
        }
        self.identity = Some(identity);
        self.may_gap = false;
    }

    /// Sends what has no answer, all at once, and takes the answers.
    fn attempt(&mut self) -> Result<(), Trouble> {
        if self.way.open == Open::Nowhere {
            return Err(Trouble::Later);
        }
        if self.identity.is_none() {
            self.begin_again();
            return if self.identity.is_some() { Ok(()) } else { Err(Trouble::Later) };
        }
        let client = &mut self.clients[self.side];
        let leader = client.leader(self.key).map_err(|_| Trouble::Later)?;
        let unanswered: Vec<usize> =
            (0..self.window.len()).filter(|index| !self.window[*index].is_acked).collect();
        match exchange(client, leader, self.key, &self.window, &unanswered) {
            Ok(answers) => {
                let taken = self.take(&unanswered, answers);
                self.may_gap &= taken.is_err();
                taken
            }
            Err(_) => {
                client.disconnect(leader);
                Err(Trouble::Later)
            }
        }
    }

    fn take(
        &mut self,
        unanswered: &[usize],
        answers: Vec<Result<Offset, ErrorCode>>,
    ) -> Result<(), Trouble> {
        let mut trouble = Ok(());
        for (index, answer) in unanswered.iter().zip(answers) {
            match (answer, &trouble) {
                (Ok(offset), _) => self.acked(*index, offset),
                (Err(_), Err(_)) => {}
                (Err(ErrorCode::OutOfOrderSequenceNumber), Ok(())) => {
                    let is_explained = self.may_gap && *index == 0;
                    if !is_explained {
                        self.surprise("a sequence is missing where none was lost");
                    }
                    trouble = Err(if is_explained { Trouble::Gap } else { Trouble::Later });
                }
                (Err(ErrorCode::DuplicateSequenceNumber), Ok(())) => {
                    self.surprise("a batch is a duplicate, and nobody knows where it is");
                    trouble = Err(Trouble::Later);
                }
                (Err(_), Ok(())) => trouble = Err(Trouble::Later),
            }
        }
        trouble
    }

    fn acked(&mut self, index: usize, base_offset: Offset) {
        let Way { era, .. } = self.way;
        let now = clock::now();
        let sent = &mut self.window[index];
        sent.is_acked = true;
        let key = self.key;
        let acks = (base_offset..).zip(&sent.values);
        lock(&self.desk.acks).extend(acks.map(|(offset, value)| Ack {
            era,
            key,
            offset,
            value: *value,
        }));
        lock(&self.desk.latest).extend(sent.values.iter().map(|value| (*value, now)));
        if let Some(last) = self.last_acked.replace(now) {
            let pause_us = u64::try_from((now - last).as_micros()).unwrap_or(u64::MAX);
            self.desk.pauses_us[self.number].fetch_max(pause_us, Ordering::Relaxed);
        }
        self.desk.acked_counts[self.number].fetch_add(1, Ordering::Relaxed);
    }

    fn surprise(&self, what: &str) {
        let (number, key, Way { era, open }) = (self.number, self.key, self.way);
        let text = format!("producer {number} of partition {key}, era {era}, {open:?}: {what}");
        lock(&self.desk.surprises).push(text);
    }
}

fn batch(
    identity: &mut Identity,
    key: Key,
    values: &[Value],
    padding_bytes: usize,
    chance: &mut Chance,
) -> Bytes {
    let sequence = identity.sequences.get(&key).copied().unwrap_or(0);
    let mut builder = BatchBuilder::new().producer(identity.id, identity.epoch, sequence);
    for value in values {
        let padding = chance.bytes(padding_bytes);
        let padding = (padding_bytes > 0).then_some(padding.as_slice());
        builder.append(clock::wall_ms(), padding, Some(value.to_string().as_bytes()), &[]);
    }
    identity.advance(key, i32::try_from(values.len()).unwrap_or(0));
    builder.build()
}

/// Sends batches of a window on one connection; gives the answers.
fn exchange(
    client: &mut Client,
    leader: std::net::SocketAddr,
    key: Key,
    window: &VecDeque<Sent>,
    indices: &[usize],
) -> Result<Vec<Result<Offset, ErrorCode>>, CallError> {
    let topic = client.topic;
    let connection = client.connection(leader)?;
    let deadline = clock::now() + CALL_TIMEOUT;
    let mut calls = Vec::new();
    for index in indices {
        let request = producer::request(topic, key, window[*index].bytes.clone(), None);
        calls.push(connection.send(&request)?);
    }
    let answer = |call| {
        let response = connection.answer::<ProduceRequest>(call, deadline)?;
        Ok(producer::verdict(&response))
    };
    calls.into_iter().map(answer).collect()
}
