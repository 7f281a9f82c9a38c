//! A quota of nine real nodes: a client has its rate once, wherever it goes and whatever fails, and not once at each node.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]
#![allow(clippy::disallowed_methods, reason = "these tests watch real processes in real time")]

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use meridian_client::Client;
use meridian_protocol::messages::{
    AlterClientQuotasRequest, QuotaAlteration, QuotaEntityPart, QuotaOp,
};
use meridian_protocol::{ErrorCode, Float64};
use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use serde_json::Value;

use self::common::{json, ok};
use self::nodes::{Nodes, until};

#[allow(dead_code, reason = "shared with other tests")]
mod common;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "cluster/nodes.rs"]
mod nodes;

const RATE: f64 = 2_000_000.0;
const RECORD_SIZE_BYTES: usize = 10_000;
/// A client that begins has a second's worth at once.
const WARM_UP: Duration = Duration::from_secs(4);
const WINDOW: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(14);
/// What a window may be off: a busy machine acknowledges late, in lumps.
const ABOVE: f64 = 1.07;
const BELOW: f64 = 0.85;
/// Clients stand still while leaders move, or records wait for a disk that has died, and do not catch up: what nodes had
/// saved for a burst stays there. Without a home a node would have a ninth.
const BELOW_MOVING: f64 = 0.6;
const MANY: i32 = 27;
const WITHIN: Duration = Duration::from_secs(60);

type Acked = Arc<Mutex<Vec<(Instant, usize)>>>;

struct Context(Acked);

impl ClientContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let message = result.as_ref().map_err(|(error, _)| error.to_string()).unwrap();
        self.0.lock().unwrap().push((Instant::now(), message.payload_len()));
    }
}

/// A producer that sends as much as it may.
struct Flow {
    producer: Arc<ThreadedProducer<Context>>,
    acked: Acked,
    runs: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Flow {
    fn start(nodes: &Nodes, client_id: &str, topic: &str, partition_count: i32) -> Self {
        let acked = Acked::default();
        let producer: ThreadedProducer<Context> = ClientConfig::new()
            .set("bootstrap.servers", &nodes.bootstrap)
            .set("client.id", client_id)
            .set("acks", "all")
            .set("linger.ms", "20")
            .set("batch.size", "40000")
            .set("queue.buffering.max.kbytes", "3000")
            .set("topic.metadata.refresh.interval.ms", "500")
            .create_with_context(Context(Arc::clone(&acked)))
            .unwrap();
        let (producer, runs) = (Arc::new(producer), Arc::new(AtomicBool::new(true)));
        let thread = {
            let (producer, runs) = (Arc::clone(&producer), Arc::clone(&runs));
            let topic = topic.to_owned();
            std::thread::spawn(move || send(&producer, &runs, &topic, partition_count))
        };
        Self { producer, acked, runs, thread }
    }

    /// The node that leads partition 0.
    fn leader(&self, topic: &str) -> i32 {
        let metadata = self.producer.client().fetch_metadata(Some(topic), WITHIN).unwrap();
        metadata.topics()[0].partitions()[0].leader()
    }

    fn stop(self) {
        self.runs.store(false, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.producer.flush(WITHIN).unwrap();
    }

    /// Lets it go on; gives what was acknowledged meanwhile.
    fn watch(&self, lasts: Duration) -> Watched {
        let begun = Instant::now();
        std::thread::sleep(lasts);
        let acked = self.acked.lock().unwrap();
        let since = acked.iter().filter(|(at, _)| *at >= begun);
        Watched { lasts, acked: since.map(|(at, size_bytes)| (*at - begun, *size_bytes)).collect() }
    }
}

fn send(
    producer: &ThreadedProducer<Context>,
    runs: &AtomicBool,
    topic: &str,
    partition_count: i32,
) {
    let payload = vec![b'x'; RECORD_SIZE_BYTES];
    for partition in (0..partition_count).cycle() {
        let record = || BaseRecord::<(), [u8]>::to(topic).partition(partition).payload(&payload);
        while let Err((error, _)) = producer.send(record()) {
            let is_full = error == KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull);
            assert!(is_full, "{error}");
            if !runs.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        if !runs.load(Ordering::Relaxed) {
            return;
        }
    }
}

struct Watched {
    lasts: Duration,
    acked: Vec<(Duration, usize)>,
}

impl Watched {
    /// The least and the most of any window, as parts of what the rate allows.
    fn windows(&self, window: Duration) -> (f64, f64) {
        let step = Duration::from_millis(250);
        let (mut begin, mut least, mut most) = (Duration::ZERO, f64::MAX, 0.0f64);
        while begin + window <= self.lasts {
            let inside = |(at, _): &&(Duration, usize)| *at >= begin && *at < begin + window;
            let sum: usize = self.acked.iter().filter(inside).map(|(_, size)| size).sum();
            let part = sum as f64 / RATE / window.as_secs_f64();
            (least, most) = (least.min(part), most.max(part));
            begin += step;
        }
        (least, most)
    }
}

/// Gives each client id without a quota of its own this rate.
fn set_quota(bootstrap: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(bootstrap).await.unwrap();
        client.refresh(None).await.unwrap();
        let any = QuotaEntityPart { entity_type: "client-id".into(), entity_name: None };
        let op = QuotaOp { key: "producer_byte_rate".into(), value: Float64(RATE), remove: false };
        let entries = vec![QuotaAlteration { entity: vec![any], ops: vec![op] }];
        let request = AlterClientQuotasRequest { entries, validate_only: false };
        let told = client.command(&request).await.unwrap();
        assert_eq!(told.entries[0].error_code, ErrorCode::None);
    });
}

fn described(nodes: &Nodes, client_id: &str) -> Value {
    let which = ["quota", "describe", "--client-id", client_id, "-o", "json"];
    json(&[&which[..], &["-b", &nodes.bootstrap]].concat())
}

/// The home of the quota of a client that is at work.
fn home(nodes: &Nodes, client_id: &str) -> i32 {
    let mut home = None;
    until("the quota has a home", WITHIN, || {
        home = described(nodes, client_id)["quotas"][0]["home"].as_i64();
        home.is_some()
    });
    i32::try_from(home.unwrap()).unwrap()
}

/// Tells whoever watches the tests, whether they fail or not.
#[allow(clippy::explicit_write, reason = "what is printed is hidden until a test fails")]
fn say(what: &str, (least, most): (f64, f64)) {
    writeln!(std::io::stderr(), "{what}: {least:.3} to {most:.3} of the rate").unwrap();
}

/// Measures windows of ten seconds.
fn keeps_the_rate(what: &str, flow: &Flow, below: f64) {
    std::thread::sleep(WARM_UP);
    let (least, most) = flow.watch(MEASURED).windows(WINDOW);
    say(what, (least, most));
    assert!(most <= ABOVE, "{what}: {most} of the rate");
    assert!(least >= below, "{what}: {least} of the rate");
}

#[test]
fn a_client_has_its_quota_once_wherever_it_goes() {
    let nodes = Nodes::start();
    for (topic, count) in [("one", 1), ("many", MANY), ("moving", MANY)] {
        let count = count.to_string();
        ok(&["topic", "create", topic, "-p", &count, "-b", &nodes.bootstrap]);
    }
    set_quota(&nodes.bootstrap);

    let flow = Flow::start(&nodes, "one", "one", 1);
    keeps_the_rate("one partition", &flow, BELOW);
    assert_eq!(described(&nodes, "one")["nodes"][0]["scope"], "cluster");
    flow.stop();

    let flow = Flow::start(&nodes, "many", "many", MANY);
    keeps_the_rate("27 partitions", &flow, BELOW);
    let quotas = described(&nodes, "many")["quotas"].as_array().unwrap().clone();
    assert_eq!(quotas.len(), 9, "each node has a share: {quotas:?}");
    flow.stop();

    let flow = Flow::start(&nodes, "moving", "moving", MANY);
    std::thread::sleep(WARM_UP);
    let moves = AtomicBool::new(true);
    let windows = std::thread::scope(|scope| {
        scope.spawn(|| {
            for dc in ["A", "B", "C"].iter().cycle() {
                if !moves.load(Ordering::Relaxed) {
                    return;
                }
                let config = format!("preferred.leader.dc={dc}");
                ok(&["topic", "alter", "moving", "--config", &config, "-b", &nodes.bootstrap]);
                std::thread::sleep(Duration::from_secs(5));
            }
        });
        let windows = flow.watch(MEASURED + Duration::from_secs(6)).windows(WINDOW);
        moves.store(false, Ordering::Relaxed);
        windows
    });
    say("leaders that move", windows);
    assert!(windows.1 <= ABOVE && windows.0 >= BELOW_MOVING, "{windows:?}");
    flow.stop();
    home_is_killed(&nodes);
    nodes.stop();
}

fn home_is_killed(nodes: &Nodes) {
    let mut found = None;
    for number in 0.. {
        let client_id = format!("orphan-{number}");
        let flow = Flow::start(nodes, &client_id, "one", 1);
        let home = home(nodes, &client_id);
        if home != flow.leader("one") {
            found = Some((flow, home, client_id));
            break;
        }
        flow.stop();
    }
    let (flow, home, client_id) = found.unwrap();
    std::thread::sleep(WARM_UP);
    nodes.kill(&["--node", &home.to_string()]);
    let watched = flow.watch(Duration::from_secs(6));
    say("home killed", watched.windows(Duration::from_secs(2)));
    let most = watched.windows(Duration::from_secs(2)).1;
    assert!(most <= 1.2, "{most} of the rate");
    until("another node is the home", WITHIN, || {
        let held = described(nodes, &client_id)["quotas"][0].clone();
        held["home"].as_i64().is_some_and(|it| it != i64::from(home)) && held["lease_ms"].is_u64()
    });
    keeps_the_rate("after the home was killed", &flow, BELOW_MOVING);
    flow.stop();
    nodes.restart(&["--node", &home.to_string()]);
}
