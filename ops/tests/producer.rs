//! Persistent producers with real processes: a file is in the topic once, whatever is killed.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use meridian_base::env::{Rng, SplitMix};
use serde_json::Value;

use self::common::{Running, Scratch, json, meridian, ok, run, text};

#[allow(dead_code, reason = "each test file needs its own part of it")]
mod common;

/// Lines of the file: enough that it takes several lives to write them, on a fast machine too.
const LINE_COUNT: u64 = 500_000;
const KILL_COUNT: usize = 12;

/// Waits for a random moment, or until the process ends by itself.
fn ends_within(child: &mut Child, rng: &mut SplitMix) -> bool {
    let (_alive, never) = mpsc::channel::<()>();
    let slices = 1 + rng.next_u64() % 30;
    for _ in 0..slices {
        let _elapsed = never.recv_timeout(Duration::from_millis(10));
        if child.try_wait().unwrap().is_some() {
            return true;
        }
    }
    false
}

fn write(at: &str, file: &str, separator: Option<&str>) -> Child {
    let separator = separator.map(|it| ["--key-separator", it]);
    meridian(&["topic", "produce", "t", "-b", at, "-o", "json", "--file", file])
        .args(["--producer-id", "the file", "--compression", "lz4"])
        .args(separator.iter().flatten())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The numbers of the lines in each partition, in order.
fn lines_in(at: &str) -> BTreeMap<u64, Vec<u64>> {
    let mut found: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for line in ok(&["topic", "consume", "t", "-b", at, "-o", "json"]).lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let number = record["value"].as_str().unwrap().parse().unwrap();
        assert_eq!(record["headers"][1][1].as_str(), Some(number_text(number).as_str()));
        found.entry(record["partition"].as_u64().unwrap()).or_default().push(number);
    }
    found
}

fn number_text(number: u64) -> String {
    number.to_string()
}

fn survives_kills(name: &str, separator: Option<&str>, seed: u64) {
    let folder = Scratch::new(name);
    let file = folder.path().join("lines");
    let line = |number: u64| match separator {
        Some(separator) => format!("key {}{separator}{number}\n", number % 50),
        None => format!("{number}\n"),
    };
    fs::write(&file, (1..=LINE_COUNT).map(line).collect::<String>()).unwrap();
    let file = file.to_str().unwrap();
    let mut node = Running::start(&["serve", "--listen", "127.0.0.1:0"], folder.path());
    let at = &node.wait_for("ready: serving Kafka clients on ");
    ok(&["topic", "create", "t", "-p", "3", "-b", at, "-c", "meridian.dedup=source"]);

    let mut rng = SplitMix::new(seed);
    let mut killed = 0;
    for round in 0..KILL_COUNT {
        let mut writer = write(at, file, separator);
        if ends_within(&mut writer, &mut rng) {
            assert!(writer.wait().unwrap().success());
            break;
        }
        if round % 3 == 2 {
            // Its leader dies with it, in the midst of the same batches.
            drop(node);
            node = Running::start(&["serve", "--listen", at], folder.path());
            node.wait_for("ready: serving Kafka clients on ");
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        killed += 1;
    }
    let last = write(at, file, separator).wait_with_output().unwrap();
    assert!(last.status.success());
    let last: Value = serde_json::from_slice(&last.stdout).unwrap();
    assert!(killed > 3, "killed {killed} times only");
    let (written, passed_over) = (last["records"].as_u64(), last["passed_over"].as_u64());
    assert_eq!(written.zip(passed_over).map(|(a, b)| a + b), Some(LINE_COUNT));
    assert!(passed_over > Some(0), "an earlier life had written something");

    let found = lines_in(at);
    for (partition, numbers) in &found {
        assert!(numbers.is_sorted(), "partition {partition} is in order");
    }
    let mut all: Vec<u64> = found.values().flatten().copied().collect();
    all.sort_unstable();
    assert!(all.iter().copied().eq(1..=LINE_COUNT), "{} records", all.len());

    let seqno =
        json(&["producer", "seqno", "t", "--producer-id", "the file", "-b", at, "-o", "json"]);
    for (partition, numbers) in &found {
        let last = &seqno["last_seqno"][partition.to_string()];
        assert_eq!(last.as_u64(), numbers.last().copied());
    }
    assert_eq!(json(&["producer", "list", "t", "-b", at, "-o", "json"])[0]["partitions"], 3);
}

#[test]
fn a_file_without_keys_is_resumed_after_kill_9() {
    survives_kills("resume-lines", None, 11);
}

#[test]
fn a_file_with_keys_is_resumed_after_kill_9() {
    survives_kills("resume-keys", Some(":"), 12);
}

#[test]
fn what_a_producer_wrote_can_be_asked_for() {
    let folder = Scratch::new("producers");
    let mut node = Running::start(&["serve", "--listen", "127.0.0.1:0"], folder.path());
    let at = &node.wait_for("ready: serving Kafka clients on ");
    ok(&["topic", "create", "t", "-p", "2", "-b", at, "-c", "meridian.dedup=source"]);
    ok(&["topic", "create", "plain", "-p", "1", "-b", at]);
    let seqno =
        |arguments: &[&str]| ok(&[&["producer", "seqno", "t", "-b", at], arguments].concat());
    assert_eq!(seqno(&["--producer-id", "shop"]), "0\n");

    let lines = folder.path().join("lines");
    fs::write(&lines, "a\nb\nc\nd\ne\n").unwrap();
    let file = ["--file", lines.to_str().unwrap(), "--producer-id", "shop"];
    let produce = [&["topic", "produce", "t", "-b", at], &file[..]].concat();
    assert!(ok(&produce).starts_with("wrote 5 records to t\n"));
    assert_eq!(ok(&produce), "wrote 0 records to t\n5 lines were there already\n");
    assert_eq!(seqno(&["--producer-id", "shop"]), "5\n", "line 5 may be the last of one only");
    assert_eq!(seqno(&["--producer-id", "shop", "-p", "1"]), "6\n");

    let described = json(&["producer", "describe", "t", "-b", at, "-o", "json"]);
    let places: Vec<_> = described.as_array().unwrap().iter().collect();
    assert_eq!(places.len(), 2);
    assert_eq!((&places[0]["last_seqno"], &places[0]["last_offset"]), (&4.into(), &1.into()));
    assert_eq!((&places[1]["last_seqno"], &places[1]["last_offset"]), (&5.into(), &2.into()));
    assert!(ok(&["producer", "list", "t", "-b", at]).contains("shop"));

    let plain = run(&["producer", "list", "plain", "-b", at]);
    assert_eq!(plain.status.code(), Some(1));
    assert!(text(&plain.stderr).contains("meridian.dedup=source"), "{}", text(&plain.stderr));
    let without = run(&["topic", "produce", "t", "-b", at, "--file", lines.to_str().unwrap()]);
    assert!(text(&without.stderr).contains("meridian-producer-id"), "{}", text(&without.stderr));
}
