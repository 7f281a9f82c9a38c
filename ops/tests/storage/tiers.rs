//! A node with a fast disk and a capacity disk is killed while files move between them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Running, Scratch, free_port, ok, run, text};
use crate::lines::numbered;
use crate::nodes::until;
use crate::{WITHIN, say, turn};

const LINE_COUNT: usize = 120_000;
const KILL_COUNT: usize = 3;
/// A file of 16 MiB is on its way for 16 s: long enough to be killed meanwhile.
const SLOW_BYTES_PER_SECOND: u64 = 1 << 20;
const BYTES_PER_SECOND: u64 = 64 << 20;

#[test]
fn a_node_that_is_killed_while_files_move_loses_nothing() {
    let _turn = turn();
    let scratch = Scratch::new("tiers");
    let folder = scratch.path();
    let port = free_port();
    let bootstrap = format!("127.0.0.1:{port}");
    fs::create_dir_all(folder.join("hdd")).unwrap();
    configure(folder, port, SLOW_BYTES_PER_SECOND);
    let mut node = start(folder);
    let lines = numbered(LINE_COUNT);
    let file = folder.join("lines");
    fs::write(&file, lines.join("\n") + "\n").unwrap();
    // One partition, so that lines are read in the order they were written in.
    ok(&["topic", "create", "t", "-p", "1", "-b", &bootstrap]);
    ok(&["topic", "produce", "t", "-b", &bootstrap, "--file", file.to_str().unwrap()]);

    for kill in 1..=KILL_COUNT {
        until("a file is on its way", WITHIN, || is_moving(folder));
        drop(node);
        if kill == KILL_COUNT {
            configure(folder, port, BYTES_PER_SECOND);
        }
        node = start(folder);
    }
    check(&bootstrap, &lines, &format!("after {KILL_COUNT} kills"));
    until("the reserve is free", WITHIN, || {
        let tiers = tiers(&bootstrap);
        let used_bytes = tiers["fast_used_bytes"].as_u64();
        used_bytes.is_some_and(|used| used <= tiers["fast_bytes"].as_u64().unwrap() / 2)
    });
    let tiers = tiers(&bootstrap);
    say(&format!("tiers: {tiers}"));
    assert!(tiers["moved_files"].as_u64() > Some(0), "{tiers}");
    assert!(tiers["capacity_used_bytes"].as_u64() > tiers["fast_used_bytes"].as_u64(), "{tiers}");
    check(&bootstrap, &lines, "from both disks");
    assert!(node.interrupt().success());

    fs::rename(folder.join("hdd"), folder.join("unmounted")).unwrap();
    let refused = run(&["serve", "--config", folder.join("node.toml").to_str().unwrap()]);
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(said.contains("storage.tiers.capacity_folder"), "{said}");
}

/// Whether there is a copy under way. Where there is always a file that is to move, this is soon so.
fn is_moving(folder: &Path) -> bool {
    let entries = fs::read_dir(folder.join("hdd")).unwrap();
    entries.flatten().any(|entry| entry.path().extension().is_some_and(|it| it == "moving"))
}

fn configure(folder: &Path, port: u16, bytes_per_second: u64) {
    let text = format!(
        "[node]\nid = 1\ndatacenter = \"A\"\nrack = \"A1\"\ndata = \"data\"\n\
         [listen]\nkafka = \"127.0.0.1:{port}\"\n\
         [cluster]\nid = \"hYPimP9IdGVheSABTQQQAA\"\ngeometry = \"none\"\n\
         [[cluster.nodes]]\nid = 1\ndatacenter = \"A\"\npeer = \"127.0.0.1:1\"\n\
         [storage.tiers]\ncapacity_folder = \"hdd\"\nfast_bytes = 67108864\n\
         migrate_threshold = 1.0\nmigrate_bytes_per_second = {bytes_per_second}\n"
    );
    fs::write(folder.join("node.toml"), text).unwrap();
}

fn start(folder: &Path) -> Running {
    let config = folder.join("node.toml");
    let mut node = Running::start(&["serve", "--config", config.to_str().unwrap()], folder);
    node.wait_for("ready: serving Kafka clients on ");
    node
}

fn tiers(bootstrap: &str) -> Value {
    let output = run(&["disk", "status", "--node", "1", "-b", bootstrap, "-o", "json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    status["tiers"].clone()
}

/// Every line can be read, once, in order.
fn check(bootstrap: &str, lines: &[String], when: &str) {
    let mut read = String::new();
    until(&format!("the topic can be read {when}"), WITHIN, || {
        let output = run(&["topic", "consume", "t", "-b", bootstrap]);
        read = text(&output.stdout);
        output.status.success()
    });
    let read: Vec<&str> = read.lines().collect();
    let differs = read.iter().zip(lines).position(|(read, written)| read != written);
    assert_eq!(differs, None, "{when}: the first line that differs");
    assert_eq!(read.len(), lines.len(), "lines {when}");
}
