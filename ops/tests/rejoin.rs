//! Two clusters of real processes after a failover: the old side rejoins, what only it had is kept, and
//! it becomes the writer again. And how a source bounds what a failover can lose.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::collections::BTreeMap;
use std::process::Stdio;

use bytes::Bytes;
use meridian_client::{Client, Lane, REQUEST_TIMEOUT, clock};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic, MeridianAdminRequest,
    ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::records::BatchBuilder;
use serde_json::Value;

use self::cluster::{
    Cluster, consumed, ends, lines, produce, refused, said, status, wait, wait_for_end,
    wait_for_state,
};
use self::common::{Scratch, json, meridian, ok};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

const PARTITIONS: usize = 3;
/// Records that only the old side has, and only the promoted one.
const ONLY_OLD: u32 = 250;
const ONLY_PROMOTED: u32 = 400;
/// What both have is much larger: records of so many bytes.
const LARGE_COUNT: u32 = 2000;
const LARGE_SIZE_BYTES: u64 = 1000;

/// The west was cut off with records that the east has not, and the east was promoted and has written
/// on. Both take records; each has a link to the other.
fn failed_over(folder: &Scratch) -> [Cluster; 2] {
    let [mut west, east] = ["west", "east"].map(|name| Cluster::start(folder.path(), name));
    let (a, b) = (west.address.clone(), east.address.clone());
    ok(&["topic", "create", "t", "-p", "3", "-b", &a]);
    ok(&["link", "create", "west", "--source", &a, "-b", &b]);
    ok(&["link", "create", "east", "--source", &b, "-b", &a]);
    ok(&["mirror", "create", "t", "--link", "west", "-b", &b]);
    produce(&a, "t", &lines(0..600));
    produce(&a, "t", &large_lines());
    wait_for_end(&a, "t", &b, "t");
    ok(&["link", "pause", "west", "-b", &b]);
    wait_for_state(&b, "t", "paused");
    produce(&a, "t", &lines(10_000..10_000 + ONLY_OLD));
    west.kill();
    ok(&["mirror", "failover", "t", "--yes", "-b", &b]);
    ok(&["link", "resume", "west", "-b", &b]);
    produce(&b, "t", &lines(20_000..20_000 + ONLY_PROMOTED));
    west.restart();
    wait_for_state(&b, "t", "both-promoted");
    [west, east]
}

/// Lines that can hardly be compressed.
fn large_lines() -> String {
    let mut state: u64 = 1;
    let mut digit = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + ((state >> 33) % 75) as u8)
    };
    let mut line = |_| (1..LARGE_SIZE_BYTES).map(|_| digit()).chain(['\n']).collect::<String>();
    (0..LARGE_COUNT).map(&mut line).collect()
}

/// Bytes of records that have come over a link, which are told a moment later, once they are as many as this.
fn crossed_bytes(bootstrap: &str, link: &str, min: u64) -> u64 {
    let mut crossed = 0;
    wait(&format!("{min} bytes have come over link {link}"), || {
        let told = said(&["link", "describe", link, "-b", bootstrap]);
        crossed = told[0]["fetched_bytes"].as_u64().unwrap();
        crossed >= min
    });
    crossed
}

/// What was set aside is deleted once its mirror has taken all of it.
fn wait_until_nothing_is_set_aside(bootstrap: &str) {
    wait("what was set aside is deleted", || {
        !ok(&["topic", "list", "--internal", "-b", bootstrap]).contains("__seed.")
    });
}

/// The records of a topic, each with all that a consumer sees of it, by partition and offset.
fn records(bootstrap: &str, topic: &str) -> BTreeMap<(i64, i64), Value> {
    let consumed = ok(&["topic", "consume", topic, "-b", bootstrap, "-o", "json"]);
    let record = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        let place = |name: &str| record[name].as_i64().unwrap();
        ((place("partition"), place("offset")), record)
    };
    consumed.lines().map(record).collect()
}

/// What was exported: the old place of each record, and its value.
fn diverged(bootstrap: &str) -> Vec<((i64, i64), String)> {
    let header = |record: &Value, name: &str| {
        let headers = record["headers"].to_string();
        let (_, rest) = headers.split_once(name).unwrap_or_else(|| panic!("{name} in {headers}"));
        let digits = rest.trim_start_matches(|it: char| !it.is_ascii_digit() && it != '-');
        let end = digits.find(|it: char| !it.is_ascii_digit() && it != '-').unwrap();
        digits[..end].parse::<i64>().unwrap()
    };
    let place = |((partition, _), record): ((i64, i64), Value)| {
        assert!(header(&record, "meridian-diverged-producer-id") >= 0);
        let offset = header(&record, "meridian-diverged-offset");
        ((partition, offset), record["value"].as_str().unwrap().to_owned())
    };
    records(bootstrap, "t.diverged").into_iter().map(place).collect()
}

/// Both sides have the same records at the same offsets, and comparing their digests finds nothing.
fn check_equal(writer: &str, mirror: &str) {
    wait_for_end(writer, "t", mirror, "t");
    wait_for_state(mirror, "t", "mirroring");
    assert_eq!(records(writer, "t"), records(mirror, "t"));
    ok(&["mirror", "verify", "t", "-b", mirror]);
}

/// Exactly what the west alone had is in the topic for it, each record once.
fn check_diverged(west: &str, only_west: &BTreeMap<(i64, i64), String>) {
    let exported = diverged(west);
    assert_eq!(exported.len(), ONLY_OLD as usize, "none is doubled");
    assert_eq!(&exported.into_iter().collect::<BTreeMap<_, _>>(), only_west);
}

/// What the west has and the east has not, by its place.
fn only_in(west: &str) -> BTreeMap<(i64, i64), String> {
    let value = |record: Value| record["value"].as_str().unwrap().to_owned();
    let all = records(west, "t").into_iter().map(|(place, record)| (place, value(record)));
    let only: BTreeMap<_, _> = all.filter(|(_, value)| value.starts_with("record 10")).collect();
    // `record 10` and `record 100` to `record 109` were mirrored.
    let only: BTreeMap<_, _> = only.into_iter().filter(|(_, it)| it.len() > 10).collect();
    assert_eq!(only.len(), ONLY_OLD as usize);
    only
}

#[test]
fn the_old_side_rejoins_and_what_only_it_had_is_kept() {
    let folder = Scratch::new("rejoin");
    let [west, east] = failed_over(&folder);
    let (a, b) = (west.address.as_str(), east.address.as_str());
    let (only_west, promoted) = (only_in(a), records(b, "t"));

    // The promoted side has nothing to give way to.
    let wrong = refused(1, &["mirror", "rejoin", "t", "--link", "west", "-b", b]);
    assert!(wrong.contains("was not promoted from this one"), "{wrong}");
    let forecast = said(&["mirror", "rejoin", "t", "--link", "east", "--dry-run", "-b", a]);
    assert_eq!((&forecast["records"], &forecast["is_done"]), (&ONLY_OLD.into(), &false.into()));
    assert_eq!(ends(a, "t").len(), PARTITIONS);
    assert_eq!(only_in(a), only_west, "only looked at");

    let done = json(&["mirror", "rejoin", "t", "--link", "east", "--yes", "-b", a, "-o", "json"]);
    assert_eq!((&done["records"], &done["is_done"]), (&ONLY_OLD.into(), &true.into()), "{done}");
    check_diverged(a, &only_west);
    check_equal(b, a);
    // The promoted log is intact.
    assert_eq!(records(b, "t"), promoted);
    wait_for_state(b, "t", "promoted");
    // What both sides have did not cross the link again.
    let size = u64::from(LARGE_COUNT) * LARGE_SIZE_BYTES;
    let crossed = crossed_bytes(a, "east", u64::from(ONLY_PROMOTED) * 10);
    println!("{crossed} bytes have come over the link, of {size} and more");
    assert!(crossed < size / 10, "{crossed} of {size} bytes");
    wait_until_nothing_is_set_aside(a);
    // Again: it is done, and nothing is exported twice.
    let again = json(&["mirror", "rejoin", "t", "--link", "east", "--yes", "-b", a, "-o", "json"]);
    assert_eq!((&again["records"], &again["is_done"]), (&Value::Null, &true.into()));
    check_diverged(a, &only_west);

    // The mirror knows the link epoch of its source: when it is promoted, its own is later.
    drop(east);
    ok(&["mirror", "failover", "t", "--yes", "-b", a]);
    assert_eq!(standing(a)["link_epoch"], 2);
}

#[test]
fn a_rejoin_that_is_interrupted_anywhere_can_be_run_again() {
    let folder = Scratch::new("rejoin-again");
    let [mut west, east] = failed_over(&folder);
    let (a, b) = (west.address.clone(), east.address.as_str());
    let (only_west, promoted) = (only_in(&a), records(b, "t"));
    for round in 0..14 {
        let mut rejoin = meridian(&["mirror", "rejoin", "t", "--link", "east", "--yes", "-b", &a])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Whoever dies does so a little later in each round.
        for _ in 0..round / 2 {
            ok(&["link", "list", "-b", b]);
        }
        if round % 2 == 0 {
            rejoin.kill().unwrap();
        } else {
            west.kill();
            west.restart();
        }
        let _it_may_have_failed = rejoin.wait().unwrap();
    }
    let done = json(&["mirror", "rejoin", "t", "--link", "east", "--yes", "-b", &a, "-o", "json"]);
    assert_eq!(done["is_done"], true, "{done}");
    check_diverged(&a, &only_west);
    check_equal(b, &a);
    assert_eq!(records(b, "t"), promoted);
    wait_until_nothing_is_set_aside(&a);
}

#[test]
fn what_the_old_side_let_go_of_or_may_not_use_comes_over_the_link() {
    let folder = Scratch::new("rejoin-over-link");
    let [west, east] = failed_over(&folder);
    let (a, b) = (west.address.as_str(), east.address.as_str());
    let promoted = records(b, "t");
    delete_records(a, 0, 10);
    ok(&["mirror", "rejoin", "t", "--link", "east", "--yes", "-b", a]);
    check_equal(b, a);
    assert_eq!(records(b, "t"), promoted);
    let size = u64::from(LARGE_COUNT) * LARGE_SIZE_BYTES;
    let a_third = crossed_bytes(a, "east", size / 5);
    println!("{a_third} bytes have come over the link, of {size} and more");
    assert!(a_third < size / 2, "{a_third} of {size} bytes");
    wait_until_nothing_is_set_aside(a);

    // A mirror that is made anew takes nothing from what was set aside.
    ok(&["mirror", "repair", "t", "--recreate", "--yes", "-b", a]);
    check_equal(b, a);
    let all = crossed_bytes(a, "east", size);
    println!("{all} bytes have come over the link by now, of {size} and more");
}

#[test]
fn a_failback_makes_the_old_side_the_writer_again() {
    let folder = Scratch::new("failback");
    let [west, east] = failed_over(&folder);
    let (a, b) = (west.address.as_str(), east.address.as_str());
    let (only_west, promoted) = (only_in(a), records(b, "t"));
    // An operator may change his mind as long as nothing is deleted.
    let not_yet = refused(1, &["mirror", "rejoin", "t", "--link", "east", "--take-back", "-b", a]);
    assert!(not_yet.contains("gives way to nobody"), "{not_yet}");

    let back = json(&["mirror", "failback", "t", "--link", "east", "--yes", "-b", a, "-o", "json"]);
    assert_eq!(back["outcome"], "switched", "{back}");
    check_diverged(a, &only_west);
    produce(a, "t", &lines(300_000..300_100));
    check_equal(a, b);
    let now = records(a, "t");
    assert!(promoted.iter().all(|(place, record)| now.get(place) == Some(record)));
    assert_eq!(consumed(a, "t").lines().filter(|it| it.starts_with("record 3000")).count(), 100);
    // Again: it is done.
    let again =
        json(&["mirror", "failback", "t", "--link", "east", "--yes", "-b", a, "-o", "json"]);
    assert_eq!(again["progress"], "writing", "{again}");
}

/// Lets go of the records of a partition before an offset.
fn delete_records(bootstrap: &str, partition_index: i32, offset: i64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let partitions = vec![DeleteRecordsPartition { partition_index, offset }];
    let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
    let request = DeleteRecordsRequest { topics, timeout_ms: 10_000 };
    runtime.block_on(async {
        let client = Client::connect(bootstrap).await.unwrap();
        let leader = client.leader("t", partition_index).await.unwrap();
        let connection = client.node(leader, Lane::CONTROL).await.unwrap();
        let told = connection.call(&request, REQUEST_TIMEOUT).await.unwrap();
        assert_eq!(told.topics[0].partitions[0].error_code, ErrorCode::None);
    });
}

/// How the topic stands.
fn standing(bootstrap: &str) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let body = Bytes::from_static(b"{\"topic\": \"t\"}");
    let request = MeridianAdminRequest { method: "mirror.standing".into(), body };
    let response = runtime.block_on(async {
        Client::connect(bootstrap).await.unwrap().query(&request).await.unwrap()
    });
    serde_json::from_slice(&response.body).unwrap()
}

/// Sends one record; gives how long its producer is to wait, and what it is told.
fn send(bootstrap: &str) -> (i32, ErrorCode) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut batch = BatchBuilder::new();
    batch.append(clock::wall_time_ms(), None, Some(b"bound"), &[]);
    let records = Some(batch.build());
    runtime.block_on(async {
        let client = Client::connect(bootstrap).await.unwrap();
        let (name, topic_id) = ("t".into(), client.topic("t").await.unwrap().id);
        let partition_data = vec![ProducePartition { index: 0, records }];
        let request = ProduceRequest {
            acks: -1,
            timeout_ms: 10_000,
            topic_data: vec![ProduceTopic { name, topic_id, partition_data }],
            ..Default::default()
        };
        let leader = client.leader("t", 0).await.unwrap();
        let connection = client.node(leader, Lane::CONTROL).await.unwrap();
        let told = connection.call(&request, REQUEST_TIMEOUT).await.unwrap();
        (told.throttle_time_ms, told.responses[0].partition_responses[0].error_code)
    })
}

#[test]
fn a_source_slows_its_producers_down_and_refuses_them_when_its_mirror_is_too_far_behind() {
    const FREE: (i32, ErrorCode) = (0, ErrorCode::None);
    let folder = Scratch::new("contract");
    let [west, east] = ["west", "east"].map(|name| Cluster::start(folder.path(), name));
    let (a, b) = (west.address.as_str(), east.address.as_str());
    ok(&["topic", "create", "t", "-p", "1", "--config", "mirror.max.lag.ms=6000", "-b", a]);
    ok(&["link", "create", "west", "--source", a, "-b", b]);
    ok(&["mirror", "create", "t", "--link", "west", "-b", b]);
    wait_for_state(b, "t", "mirroring");
    for _ in 0..20 {
        assert_eq!(send(a), FREE);
        wait_for_end(a, "t", b, "t");
    }
    let contract =
        |field: &str| said(&["mirror", "status", "t", "-b", a])["contracts"][0][field].clone();
    wait("the source knows that nothing is missing", || contract("lag_ms") == 0);
    assert_eq!(contract("verdict"), "free");
    assert_eq!(contract("mirrors")[0]["end_offset"], 20);

    // The mirror stops: what is written from here on is missing there.
    ok(&["link", "pause", "west", "-b", b]);
    wait_for_state(b, "t", "paused");
    assert_eq!(send(a), FREE);
    let mut throttles = Vec::new();
    wait("producers are slowed down and then refused", || {
        let (throttle_ms, code) = send(a);
        throttles.push(throttle_ms);
        code == ErrorCode::NotEnoughReplicas
    });
    assert!(throttles.iter().any(|it| *it > 0), "{throttles:?}");
    assert_eq!(contract("verdict"), "refused");
    assert_eq!(common::run(&["mirror", "status", "t", "-b", a]).status.code(), Some(2));
    // The mirror knows what that means for a failover.
    let promised = ok(&["mirror", "failover", "t", "--dry-run", "-b", b]);
    assert!(promised.contains("would be lost: unknown"), "{promised}");

    ok(&["link", "resume", "west", "-b", b]);
    wait("producers are let in again", || send(a) == FREE);
    wait_for_end(a, "t", b, "t");
    assert_eq!(status(b, "t").len(), 1);
}
