//! A steady idempotent producer that remembers every acknowledgement.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use crate::nodes::until;

pub(crate) const PARTITION_COUNT: i32 = 12;
/// Each partition gets a record that often.
const RECORD_EVERY: Duration = Duration::from_millis(20);
/// Longer than any failure of these tests lasts.
const DELIVERY_TIMEOUT_MS: &str = "300000";
const FLUSH_WITHIN: Duration = Duration::from_secs(120);
const LEADER_WITHIN: Duration = Duration::from_secs(60);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Offset -> value of the records of a partition.
pub(crate) type Records = BTreeMap<i64, u64>;

/// What is known of the records of a partition.
struct Acks {
    acked: Records,
    last_at: Instant,
    longest_gap: Duration,
    /// Values are counted through in each partition, from 0.
    sent_count: u64,
    /// One more than the highest value acked.
    acked_end: u64,
}

#[derive(Default)]
struct Outcomes {
    partitions: Vec<Acks>,
    problems: Vec<String>,
}

/// What became of each record, as librdkafka reports it.
#[derive(Default)]
struct Ledger {
    outcomes: Mutex<Outcomes>,
    changed: Condvar,
}

struct Context {
    ledger: Arc<Ledger>,
    /// What the client says of its idempotence: kept with the nodes' logs when a test fails.
    log: Mutex<File>,
}

type Sender = ThreadedProducer<Context>;

/// The producer, at work until it is finished.
pub(crate) struct Load {
    topic: String,
    ledger: Arc<Ledger>,
    producer: Arc<Sender>,
    /// Dropped to stop it.
    running: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Outcomes> {
        // Also after a failed assertion: its message is the one to see.
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Context {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, message: &str) {
        let at_ms = UNIX_EPOCH.elapsed().unwrap().as_millis();
        // A disk that is full fails the test by itself.
        let _unlogged = writeln!(self.log.lock().unwrap(), "{at_ms} {facility} {message}");
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let mut outcomes = self.ledger.lock();
        match result {
            Ok(message) => outcomes.record(
                usize::try_from(message.partition()).unwrap(),
                message.offset(),
                value(message.payload()),
            ),
            Err((error, message)) => outcomes.problems.push(format!(
                "record {} of partition {} failed: {error}",
                value(message.payload()),
                message.partition()
            )),
        }
        self.ledger.changed.notify_all();
    }
}

impl Outcomes {
    fn record(&mut self, partition: usize, offset: i64, value: u64) {
        let now = Instant::now();
        let acks = &mut self.partitions[partition];
        acks.longest_gap = acks.longest_gap.max(now - acks.last_at);
        acks.last_at = now;
        acks.acked_end = acks.acked_end.max(value + 1);
        // The ack may have been lost with a connection, and a later one have implied it: without an
        // offset. The record is where its number says, for no other producer writes here.
        let offset = if offset < 0 { i64::try_from(value).unwrap() } else { offset };
        if let Some(other) = acks.acked.insert(offset, value) {
            self.problems.push(format!(
                "records {other} and {value} of partition {partition} were both acked at {offset}"
            ));
        }
    }
}

/// The value that a payload stands for.
pub(crate) fn value(payload: Option<&[u8]>) -> u64 {
    std::str::from_utf8(payload.unwrap()).unwrap().parse().unwrap()
}

/// The node that leads a partition, if a node answers and knows one.
pub(crate) fn leader<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    partition: i32,
) -> Option<i32> {
    let metadata = client.fetch_metadata(Some(topic), REQUEST_TIMEOUT).ok()?;
    let mut partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
    let leader = partitions.find(|it| it.id() == partition)?.leader();
    (leader >= 0).then_some(leader)
}

impl Load {
    /// Starts it; it keeps a log.
    pub(crate) fn start(bootstrap: &str, topic: &str, log: &Path) -> Self {
        let now = Instant::now();
        let partitions = (0..PARTITION_COUNT).map(|_| Acks {
            acked: Records::new(),
            last_at: now,
            longest_gap: Duration::ZERO,
            sent_count: 0,
            acked_end: 0,
        });
        let outcomes = Outcomes { partitions: partitions.collect(), problems: Vec::new() };
        let ledger = Arc::new(Ledger { outcomes: Mutex::new(outcomes), ..Ledger::default() });
        let log = Mutex::new(File::create(log).unwrap());
        let context = Context { ledger: Arc::clone(&ledger), log };
        let producer: Sender = ClientConfig::new()
            .set("bootstrap.servers", bootstrap)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("linger.ms", "2")
            .set("message.timeout.ms", DELIVERY_TIMEOUT_MS)
            .set("retry.backoff.ms", "50")
            .set("retry.backoff.max.ms", "200")
            .set("reconnect.backoff.max.ms", "500")
            .set("topic.metadata.refresh.interval.ms", "2000")
            .set("socket.timeout.ms", "5000")
            .set("debug", "eos")
            .set_log_level(RDKafkaLogLevel::Debug)
            .create_with_context(context)
            .unwrap();
        let producer = Arc::new(producer);
        let (running, stopped) = sync_channel(0);
        let work = {
            let (producer, ledger, topic) =
                (Arc::clone(&producer), Arc::clone(&ledger), topic.to_owned());
            move || {
                while stopped.recv_timeout(RECORD_EVERY) == Err(RecvTimeoutError::Timeout) {
                    send_one_to_each(&producer, &ledger, &topic);
                }
            }
        };
        let thread = std::thread::spawn(work);
        Self { topic: topic.to_owned(), ledger, producer, running, thread }
    }

    /// Waits until each partition has acked so many records that were sent after this call.
    pub(crate) fn wait_for_acks(&self, count: u64, why: &str, within: Duration) {
        let deadline = Instant::now() + within;
        let mut outcomes = self.ledger.lock();
        let goals: Vec<u64> =
            outcomes.partitions.iter().map(|acks| acks.sent_count + count).collect();
        loop {
            assert_eq!(outcomes.problems, Vec::<String>::new(), "{why}");
            let behind = (0..).zip(outcomes.partitions.iter().zip(&goals));
            let behind: Vec<i32> = behind
                .filter(|(_, (acks, goal))| acks.acked_end < **goal)
                .map(|(partition, _)| partition)
                .collect();
            if behind.is_empty() {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{why}: partitions {behind:?} ack too little in {within:?}");
            outcomes = self.ledger.changed.wait_timeout(outcomes, left).unwrap().0;
        }
    }

    /// All that is acked until now, by partition.
    pub(crate) fn acked(&self) -> Vec<Records> {
        self.ledger.lock().partitions.iter().map(|acks| acks.acked.clone()).collect()
    }

    /// The longest time without an ack in any partition since the last call.
    pub(crate) fn take_longest_gap(&self) -> Duration {
        let now = Instant::now();
        let mut outcomes = self.ledger.lock();
        let gaps = outcomes.partitions.iter_mut().map(|acks| {
            let open = now.saturating_duration_since(acks.last_at);
            std::mem::take(&mut acks.longest_gap).max(open)
        });
        gaps.max().unwrap()
    }

    /// The node that leads a partition of the topic.
    pub(crate) fn leader(&self, partition: i32) -> i32 {
        let mut known = None;
        until("the partition has a leader", LEADER_WITHIN, || {
            known = leader(self.producer.client(), &self.topic, partition);
            known.is_some()
        });
        known.unwrap()
    }

    /// Stops; all that was sent must be acked. The acks, by partition.
    pub(crate) fn finish(self) -> Vec<Records> {
        drop(self.running);
        self.thread.join().unwrap();
        self.producer.flush(FLUSH_WITHIN).unwrap();
        let outcomes = self.ledger.lock();
        assert_eq!(outcomes.problems, Vec::<String>::new());
        for (partition, acks) in outcomes.partitions.iter().enumerate() {
            let acked_count = u64::try_from(acks.acked.len()).unwrap();
            assert_eq!(acked_count, acks.sent_count, "acked of partition {partition}");
        }
        outcomes.partitions.iter().map(|acks| acks.acked.clone()).collect()
    }
}

fn send_one_to_each(producer: &Sender, ledger: &Ledger, topic: &str) {
    for (index, partition) in (0..PARTITION_COUNT).enumerate() {
        // Locked until it is counted: who waits for what is sent from now on never takes this
        // record for it.
        let mut outcomes = ledger.lock();
        let payload = outcomes.partitions[index].sent_count.to_string();
        let record = BaseRecord::<(), str>::to(topic).partition(partition).payload(&payload);
        match producer.send(record) {
            Ok(()) => outcomes.partitions[index].sent_count += 1,
            // The same value is sent at the next turn.
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {}
            Err((error, _)) => outcomes.problems.push(format!("not sent: {error}")),
        }
    }
}
