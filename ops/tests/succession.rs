//! Two clusters of real processes, and who of them writes: promotion, failover, switchover there and
//! back with the coordinator killed on the way. Clients are librdkafka and the protocol itself.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use meridian_client::{Client, Lane, REQUEST_TIMEOUT, clock};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    InitProducerIdRequest, ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::records::BatchBuilder;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::Value;

use self::cluster::{Cluster, PATIENCE, consumed, wait, wait_for_end, wait_for_state};
use self::common::{Scratch, json, meridian, ok, run, text};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

/// Two clusters and topic `t` of one partition, mirrored from the first to the second.
fn mirrored(folder: &Scratch) -> [Cluster; 2] {
    let [from, to] = ["west", "east"].map(|name| Cluster::start(folder.path(), name));
    ok(&["topic", "create", "t", "-p", "1", "-b", &from.address]);
    ok(&["link", "create", "west", "--source", &from.address, "-b", &to.address]);
    ok(&["mirror", "create", "t", "--link", "west", "-b", &to.address]);
    [from, to]
}

/// What is found in the end.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    wait(what, || {
        found = look();
        found.is_some()
    });
    found.unwrap()
}

fn consume(bootstrap: &str) -> Vec<String> {
    consumed(bootstrap, "t").lines().map(str::to_owned).collect()
}

fn lines(range: std::ops::Range<u32>) -> Vec<String> {
    cluster::lines(range).lines().map(str::to_owned).collect()
}

fn produce(bootstrap: &str, lines: &[String]) {
    cluster::produce(bootstrap, "t", &(lines.join("\n") + "\n"));
}

fn config(bootstrap: &str, more: &[(&str, &str)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    for (name, value) in more {
        config.set(*name, *value);
    }
    config
}

fn send(producer: &BaseProducer, values: &[String]) {
    for value in values {
        producer.send(BaseRecord::<str, str>::to("t").payload(value)).map_err(|(e, _)| e).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

/// What a stock consumer that reads what is committed gets, until it has `count` records.
fn read_committed(bootstrap: &str, group: &str, count: usize) -> Vec<String> {
    let more = [
        ("group.id", group),
        ("auto.offset.reset", "earliest"),
        ("isolation.level", "read_committed"),
    ];
    let consumer: BaseConsumer = config(bootstrap, &more).create().unwrap();
    consumer.subscribe(&["t"]).unwrap();
    let mut got = Vec::new();
    until("records that are committed", || {
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
            got.push(String::from_utf8_lossy(message.payload().unwrap()).into_owned());
        }
        (got.len() >= count).then_some(())
    });
    consumer.commit_consumer_state(CommitMode::Sync).unwrap();
    got
}

#[test]
fn what_the_source_left_open_is_aborted_when_its_mirror_is_failed_over() {
    let folder = Scratch::new("open");
    let [mut west, east] = mirrored(&folder);
    let (from, to) = (west.address.clone(), east.address.as_str());
    produce(&from, &lines(0..3));
    let open: BaseProducer = config(&from, &[("transactional.id", "left")]).create().unwrap();
    open.init_transactions(PATIENCE).unwrap();
    open.begin_transaction().unwrap();
    send(&open, &["open 1".to_owned(), "open 2".to_owned()]);
    produce(&from, &lines(3..6));
    wait_for_end(&from, "t", to, "t");
    // Nobody knows yet what becomes of the transaction.
    assert_eq!(read_committed(to, "before", 3), lines(0..3));

    let refused = run(&["mirror", "failover", "t", "-b", to]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("its source answers"), "{}", text(&refused.stderr));
    west.kill();
    wait_for_state(to, "t", "source-unreachable");
    let forecast = json(&["mirror", "failover", "t", "--dry-run", "-b", to, "-o", "json"]);
    assert_eq!(forecast["lost"]["seen_records"], 0, "{forecast}");
    assert_eq!(forecast["lost"]["records"], Value::Null, "nobody here can know: {forecast}");
    let told = ok(&["mirror", "failover", "t", "--dry-run", "-b", to]);
    assert!(told.contains("unknown for 1 partitions: the source was last heard of"), "{told}");
    assert_eq!(forecast["is_source_reachable"], false);
    // All after the position of the group is what it would see again at most.
    let before = &forecast["groups"][0];
    assert_eq!((&before["group"], &before["duplicates_max"]), (&"before".into(), &5.into()));
    let done = json(&["mirror", "failover", "t", "--yes", "-b", to, "-o", "json"]);
    assert_eq!(done["is_promoted"], true);

    assert_eq!(read_committed(to, "after", 6), lines(0..6));
    produce(to, &lines(6..9));
    assert_eq!(read_committed(to, "last", 9), lines(0..9));
    // The producer of the aborted transaction is nobody here.
    let again: BaseProducer = config(to, &[("transactional.id", "left")]).create().unwrap();
    again.init_transactions(PATIENCE).unwrap();
    again.begin_transaction().unwrap();
    send(&again, &["again".to_owned()]);
    again.commit_transaction(PATIENCE).unwrap();
    assert_eq!(read_committed(to, "again", 10).last().unwrap(), "again");

    // The old source comes back and takes records, as before: that is seen, and nothing is merged.
    west.restart();
    wait_for_state(to, "t", "both-promoted");
    let status = run(&["mirror", "status", "t", "-b", to]);
    assert_eq!(status.status.code(), Some(2));
    assert!(text(&status.stdout).contains("link epoch is 0, that of this side 1"));
    assert_eq!(read_committed(to, "unmerged", 10).len(), 10);
}

/// A producer that is numbered, as the protocol has it.
struct Numbered {
    runtime: tokio::runtime::Runtime,
    producer_id: i64,
}

impl Numbered {
    fn start(bootstrap: &str) -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let request = InitProducerIdRequest { transaction_timeout_ms: 1000, ..Default::default() };
        let answered = runtime.block_on(async {
            Client::connect(bootstrap).await.unwrap().command(&request).await.unwrap()
        });
        assert_eq!(answered.error_code, ErrorCode::None);
        Self { runtime, producer_id: answered.producer_id }
    }

    /// Sends one record; gives what it is told, and where the record is.
    fn send(&self, bootstrap: &str, sequence: i32) -> (ErrorCode, i64) {
        let mut batch = BatchBuilder::new().producer(self.producer_id, 0, sequence);
        batch.append(clock::wall_time_ms(), None, Some(b"numbered"), &[]);
        let partition = ProducePartition { index: 0, records: Some(batch.build()) };
        self.runtime.block_on(async {
            let client = Client::connect(bootstrap).await.unwrap();
            let (name, topic_id) = ("t".into(), client.topic("t").await.unwrap().id);
            let partition_data = vec![partition];
            let request = ProduceRequest {
                acks: -1,
                timeout_ms: 10_000,
                topic_data: vec![ProduceTopic { name, topic_id, partition_data }],
                ..Default::default()
            };
            let leader = client.leader("t", 0).await.unwrap();
            let connection = client.node(leader, Lane::CONTROL).await.unwrap();
            let told = connection.call(&request, REQUEST_TIMEOUT).await.unwrap();
            let told = &told.responses[0].partition_responses[0];
            (told.error_code, told.base_offset)
        })
    }
}

#[test]
fn producers_that_resend_to_the_promoted_side_are_known_there() {
    let folder = Scratch::new("resend");
    let [mut west, east] = mirrored(&folder);
    let (from, to) = (west.address.clone(), east.address.as_str());
    let producer = Numbered::start(&from);
    for sequence in 0..4 {
        assert_eq!(producer.send(&from, sequence), (ErrorCode::None, i64::from(sequence)));
    }
    wait_for_end(&from, "t", to, "t");
    assert_eq!(producer.send(to, 4).0, ErrorCode::PolicyViolation, "only the link writes");
    west.kill();
    ok(&["mirror", "failover", "t", "--yes", "-b", to]);
    // What was acknowledged there is acknowledged here, at the same offset, and not written again.
    for sequence in 0..4 {
        assert_eq!(producer.send(to, sequence), (ErrorCode::None, i64::from(sequence)));
    }
    assert_eq!(producer.send(to, 5).0, ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(producer.send(to, 4), (ErrorCode::None, 4));
    assert_eq!(consume(to).len(), 5);
}

/// Waits until the lease of topic `t` is so at its writer.
fn wait_for_lease(bootstrap: &str, state: &str) {
    wait(state, || {
        let said = cluster::said(&["mirror", "status", "t", "-b", bootstrap]);
        said["leases"][0]["state"] == state
    });
}

/// Waits until the source of topic `t` has said that it needs the lease of this cluster.
fn wait_for_grant(bootstrap: &str) {
    wait("the source needs the lease", || {
        let said = run(&["mirror", "status", "t", "-b", bootstrap]);
        text(&said.stdout).contains("lease of its source over link west: granted\n")
    });
}

#[test]
fn a_writer_that_cannot_prove_to_be_the_only_one_takes_nothing() {
    let folder = Scratch::new("lease");
    let [west, mut east] = mirrored(&folder);
    let (from, to) = (west.address.as_str(), east.address.clone());
    let refused = run(&["link", "alter", "west", "-c", "lease.ms=10", "-b", &to]);
    assert!(text(&refused.stderr).contains("2000 to 15000"), "{}", text(&refused.stderr));
    ok(&["link", "alter", "west", "-c", "lease.ms=2000", "-b", &to]);
    // Until then leaders that know nothing of the need are fenced off, with what was sent to them.
    wait_for_grant(&to);
    wait_for_lease(from, "lease-held");
    let producer = Numbered::start(from);
    assert_eq!(producer.send(from, 0), (ErrorCode::None, 0));

    // Without its mirror, nobody can say that it was not promoted.
    east.kill();
    wait_for_lease(from, "lease-missing");
    assert_eq!(producer.send(from, 1).0, ErrorCode::NotEnoughReplicas);
    let status = run(&["mirror", "status", "t", "-b", from]);
    assert_eq!(status.status.code(), Some(2));
    let told = text(&status.stdout);
    assert!(told.contains("`meridian mirror drop-lease t` here"), "{told}");
    east.restart();
    wait_for_lease(from, "lease-held");
    assert_eq!(producer.send(from, 1), (ErrorCode::None, 1));
    wait_for_end(from, "t", &to, "t");
    wait_for_grant(&to);
    let forecast = json(&["mirror", "failover", "t", "--dry-run", "-b", &to, "-o", "json"]);
    assert_eq!(forecast["lease_wait_ms"], 2578, "{forecast}");
    assert_eq!(forecast["needs_force"], false, "{forecast}");

    // Its mirror is promoted while the writer sleeps: it wakes up as no writer.
    west.pause();
    let asked = clock::now();
    ok(&["mirror", "promote", "t", "--accept-loss", "--yes", "-b", &to]);
    assert!(asked.elapsed() >= Duration::from_millis(2578), "{:?}", asked.elapsed());
    west.wake();
    assert_eq!(producer.send(from, 2).0, ErrorCode::NotEnoughReplicas);
    assert_eq!(Numbered::start(&to).send(&to, 0), (ErrorCode::None, 2));
    assert_eq!(status_of(&to), Some(0), "the old side takes no records");
    // Unless its operators say so, which is seen.
    ok(&["mirror", "drop-lease", "t", "--yes", "-b", from]);
    assert_eq!(producer.send(from, 2), (ErrorCode::None, 2));
    wait_for_state(&to, "t", "both-promoted");
    assert_eq!(status_of(&to), Some(2));
}

/// The exit code of `mirror status`.
fn status_of(bootstrap: &str) -> Option<i32> {
    run(&["mirror", "status", "t", "-b", bootstrap]).status.code()
}

/// Where group `g` goes on.
fn position(bootstrap: &str) -> i64 {
    let group = json(&["group", "describe", "g", "-b", bootstrap, "-o", "json"]);
    group["partitions"][0]["committed"].as_i64().unwrap()
}

/// Waits for a switchover's end; gives the cluster that is the writer then.
fn writer_after(bootstrap: &str) -> (String, String) {
    until("the switchover has ended", || {
        let output = run(&["mirror", "switchover", "t", "--resume", "-b", bootstrap, "-o", "json"]);
        let outcome: Value = serde_json::from_slice(&output.stdout).ok()?;
        let field = |name: &str| outcome[name].as_str().map(str::to_owned);
        Some((field("outcome")?, field("writer_cluster")?))
    })
}

#[test]
fn a_switchover_there_and_back_loses_and_doubles_nothing() {
    let folder = Scratch::new("switchover");
    let [west, east] = mirrored(&folder);
    let (a, b) = (west.address.as_str(), east.address.as_str());
    produce(a, &lines(0..100));
    assert_eq!(read_committed(a, "g", 40).len(), 40);
    let plan = json(&["mirror", "switchover", "t", "--dry-run", "-b", b, "-o", "json"]);
    assert_eq!(plan["obstacles"], Value::Array(Vec::new()), "{plan}");
    // A transaction that stays open does not keep the topic from moving.
    let open: BaseProducer = config(a, &[("transactional.id", "open")]).create().unwrap();
    open.init_transactions(PATIENCE).unwrap();
    open.begin_transaction().unwrap();
    send(&open, &["open".to_owned()]);

    let done = json(&["mirror", "switchover", "t", "-b", b, "-o", "json"]);
    assert_eq!(done["outcome"], "switched", "{done}");
    produce(b, &lines(100..200));
    wait_for_end(b, "t", a, "t");
    let (here, there) = (consume(b), consume(a));
    assert_eq!(here, there);
    assert_eq!(read_committed(b, "all", 200), lines(0..200));
    // A group goes on where it was.
    assert!(position(a) >= 40, "{}", position(a));
    assert_eq!(position(b), position(a));
    // The former source is a mirror: clients are told to look elsewhere, and may read.
    assert_eq!(Numbered::start(a).send(a, 0).0, ErrorCode::NotLeaderOrFollower);
    wait_for_state(a, "t", "mirroring");

    let back = json(&["mirror", "switchover", "t", "-b", a, "-o", "json"]);
    assert_eq!(back["outcome"], "switched", "{back}");
    produce(a, &lines(200..300));
    wait_for_end(a, "t", b, "t");
    assert_eq!(consume(b), consume(a));
    assert_eq!(read_committed(b, "both", 300), lines(0..300));
    wait_for_state(b, "t", "mirroring");
}

#[test]
fn a_switchover_whose_coordinator_is_killed_ends_in_one_of_two_states() {
    let folder = Scratch::new("coordinator");
    let mut sides = mirrored(&folder);
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    let (mut written, mut writer) = (0, 0);
    for round in 0..12 {
        let mirror = 1 - writer;
        let [a, b] = [sides[writer].address.clone(), sides[mirror].address.clone()];
        produce(&a, &lines(written..written + 20));
        written += 20;
        wait_for_state(&b, "t", "mirroring");
        let is_source_lost = round % 4 == 3;
        let within = if is_source_lost { "1" } else { "20" };
        let mut asking = meridian(&["mirror", "switchover", "t", "--within-s", within, "-b", &b])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Whoever dies does so a few steps later in each round.
        for _ in 0..=round / 2 {
            ok(&["link", "list", "-b", &b]);
        }
        if is_source_lost {
            sides[writer].kill();
            // Nothing answers for longer than it may take: it is rolled back, unless it is decided.
            run(&["mirror", "switchover", "t", "--dry-run", "-b", &b]);
            sides[writer].restart();
        } else {
            sides[mirror].kill();
            sides[mirror].restart();
        }
        let _it_may_have_failed = asking.wait().unwrap();
        let standing = run(&["mirror", "switchover", "t", "--resume", "-b", &b, "-o", "json"]);
        if text(&standing.stderr).contains("never switched over") {
            continue;
        }
        let (outcome, _) = writer_after(&b);
        if outcome == "switched" {
            writer = mirror;
        }
        *outcomes.entry(outcome).or_default() += 1;
        // One side takes records, and the other does not.
        let [a, b] = [&sides[writer].address, &sides[1 - writer].address];
        let producer = Numbered::start(a);
        assert_eq!(producer.send(a, 0).0, ErrorCode::None);
        assert_ne!(producer.send(b, 1).0, ErrorCode::None);
        wait_for_end(a, "t", b, "t");
        assert_eq!(consume(a), consume(b));
    }
    eprintln!("outcomes: {outcomes:?}");
    let got = consume(&sides[writer].address);
    let got: Vec<_> = got.into_iter().filter(|value| value != "numbered").collect();
    assert_eq!(got, lines(0..written));
}
