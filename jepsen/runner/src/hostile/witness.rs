//! The other client: polite, and timed. It produces, asks for metadata and probes `/health`, all the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use meridian_protocol::messages::{
    FetchPartition, FetchRequest, FetchTopic, MetadataRequest, MetadataRequestTopic,
    ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::records::{BatchBuilder, batches};

use super::attacks::{Target, create_topic};
use super::judge::{Seen, Testimony};
use crate::client::connection::Connection;
use crate::client::{CallError, Tape};
use crate::clock;
use crate::failure::Failure;

const TOPIC: &str = "witness";
/// What it asks for.
const EVERY: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(10);
/// More than most requests have, so that its requests need memory, too.
const VALUE_SIZE_BYTES: usize = 4 << 10;
const ACKS_ALL: i16 = -1;
const FETCH_SIZE_BYTES: i32 = 8 << 20;

struct State {
    stop: AtomicBool,
    testimony: Mutex<Testimony>,
}

pub(super) struct Witness {
    state: Arc<State>,
    asking: JoinHandle<()>,
}

impl Witness {
    pub(super) fn start(target: &Target) -> Result<Self, Failure> {
        create_topic(target, TOPIC, 1)?;
        let connection = connect(target).map_err(|error| Failure::Cluster(error.to_string()))?;
        let state = Arc::new(State { stop: AtomicBool::new(false), testimony: Mutex::default() });
        let (shared, target) = (Arc::clone(&state), target.clone());
        let asking = std::thread::spawn(move || shared.ask(&target, connection));
        Ok(Self { state, asking })
    }

    /// What it sees from here on, it sees under this attack.
    pub(super) fn begin(&self, attack: &'static str) {
        self.state.testimony().seen.push(Seen { attack, ..Seen::default() });
    }

    /// Stops, and reads what there is.
    pub(super) fn end(self, target: &Target) -> Testimony {
        self.state.stop.store(true, Ordering::Release);
        let ended = self.asking.join().is_ok();
        let mut testimony = self.state.testimony().clone();
        match read_all(target) {
            Ok(read) if ended => testimony.read = read,
            Ok(_) => testimony.unread = Some("the other client panicked".to_owned()),
            Err(error) => testimony.unread = Some(error.to_string()),
        }
        testimony
    }
}

impl State {
    fn testimony(&self) -> std::sync::MutexGuard<'_, Testimony> {
        self.testimony.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, target: &Target, connection: Connection) {
        let mut connection = Some(connection);
        let mut number = 0u64;
        while !self.stop.load(Ordering::Acquire) {
            number += 1;
            let begun = clock::now();
            let (result, is_write) = match &mut connection {
                None => (connect(target).map(|opened| connection = Some(opened)), false),
                Some(_) if number.is_multiple_of(8) => (target.health(TIMEOUT), false),
                Some(connection) if number.is_multiple_of(2) => (describe(connection), false),
                Some(connection) => (produce(connection, number), true),
            };
            let took = begun.elapsed();
            let mut testimony = self.testimony();
            match &result {
                Ok(()) if is_write => {
                    testimony.acked.insert(number);
                }
                Ok(()) => {}
                Err(_) => connection = None,
            }
            if let Some(seen) = testimony.seen.last_mut() {
                seen.took.push(took);
                seen.failures.extend(result.err().map(|error| error.to_string()));
            }
            drop(testimony);
            clock::sleep(EVERY);
        }
    }
}

fn connect(target: &Target) -> Result<Connection, CallError> {
    Connection::open(target.kafka, "witness", &Arc::new(Tape::default()))
}

fn describe(connection: &mut Connection) -> Result<(), CallError> {
    let topic = MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let answer = connection.call(&request, TIMEOUT)?;
    let code = answer.topics.first().map(|topic| topic.error_code).unwrap_or_default();
    CallError::check("describe the topic", code)
}

fn produce(connection: &mut Connection, number: u64) -> Result<(), CallError> {
    let mut value = number.to_be_bytes().to_vec();
    value.resize(VALUE_SIZE_BYTES, 0);
    let mut batch = BatchBuilder::new();
    batch.append(clock::wall_ms(), None, Some(&value), &[]);
    let partition = ProducePartition { index: 0, records: Some(batch.build()) };
    let topic =
        ProduceTopic { name: TOPIC.into(), partition_data: vec![partition], ..Default::default() };
    let request = ProduceRequest {
        acks: ACKS_ALL,
        timeout_ms: 10_000,
        topic_data: vec![topic],
        ..Default::default()
    };
    let answer = connection.call(&request, TIMEOUT)?;
    let told = answer.responses.first().and_then(|topic| topic.partition_responses.first());
    CallError::check("produce", told.map(|told| told.error_code).unwrap_or_default())
}

/// The numbers in the topic, in its order.
fn read_all(target: &Target) -> Result<Vec<u64>, CallError> {
    let mut connection = connect(target)?;
    let mut numbers = Vec::new();
    let mut offset = 0;
    loop {
        let partition = FetchPartition {
            fetch_offset: offset,
            partition_max_bytes: FETCH_SIZE_BYTES,
            ..Default::default()
        };
        let topic =
            FetchTopic { topic: TOPIC.into(), partitions: vec![partition], ..Default::default() };
        let request = FetchRequest {
            max_bytes: FETCH_SIZE_BYTES,
            session_epoch: -1,
            topics: vec![topic],
            ..Default::default()
        };
        let answer = connection.call(&request, TIMEOUT)?;
        let told = answer.responses.into_iter().flat_map(|topic| topic.partitions).next();
        let told = told.unwrap_or_default();
        CallError::check("fetch", told.error_code)?;
        let records = told.records.unwrap_or_default().into_bytes();
        let before = offset;
        for batch in batches(records).flatten() {
            for record in batch.records(1 << 20).into_iter().flatten().flatten() {
                offset = record.offset + 1;
                let number = record.value.as_ref().and_then(|value| value.first_chunk().copied());
                numbers.extend(number.map(u64::from_be_bytes));
            }
        }
        if offset == before {
            return Ok(numbers);
        }
    }
}
