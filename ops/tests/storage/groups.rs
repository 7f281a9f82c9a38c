//! Two storage groups in one cluster: a topic is in that of its class, and moves to the other while it is written.

use std::time::Duration;

use serde_json::Value;

use crate::check::{Verdict, read_all};
use crate::common::{ok, run};
use crate::lines::Lines;
use crate::load::{Load, PARTITION_COUNT};
use crate::nodes::{Nodes, until};
use crate::{WITHIN, say, turn};

const SIZE_BYTES: usize = 4_000_000;
const MIRRORED: i64 = 1;
const BLOCK: i64 = 2;
/// Records of each partition before and after each event.
const ACK_COUNT: u64 = 50;

#[test]
fn a_topic_moves_to_another_group_and_back_while_it_is_written() {
    let _turn = turn();
    // A rack in each of three datacenters, and eight more in the first.
    let nodes = Nodes::start_ready("groups", &["--dcs", "3", "--racks", "1", "--block-group"]);
    assert_eq!(groups(&nodes).len(), 2, "who is ready has all its groups");
    nodes.wait_until_whole();
    let copies = Lines::write(&nodes, "copies", 3, SIZE_BYTES);
    let in_parts = "meridian.storage.class=block-4-2";
    let parts = Lines::write_with(&nodes, "parts", in_parts, 3, SIZE_BYTES);
    assert_eq!(homes(&nodes, "copies").unwrap(), vec![(MIRRORED, vec![]); 3]);
    assert_eq!(homes(&nodes, "parts").unwrap(), vec![(BLOCK, vec![]); 3]);

    let count = PARTITION_COUNT.to_string();
    ok(&["topic", "create", "live", "-p", &count, "-b", &nodes.bootstrap]);
    let load = Load::start(&nodes.bootstrap, "live", &nodes.data().join("load.log"));
    load.wait_for_acks(ACK_COUNT, "at first", WITHIN);
    let records = records_of(&nodes, "copies");
    load.take_longest_gap();

    // There, with nothing else amiss.
    for topic in ["live", "copies"] {
        convert(&nodes, topic, "hot-block-4-2");
        until("all is in the second group", WITHIN, || all_in(&nodes, topic, BLOCK, MIRRORED));
        load.wait_for_acks(ACK_COUNT, "in the second group", WITHIN);
    }
    say(&format!("moved while it was written; {} without an ack", gap(&load)));
    assert_eq!(records_of(&nodes, "copies"), records, "what was read before is read after");

    // Back, and there again, while nodes that lead it are killed.
    for (class, group, other) in
        [("mirror-3-dc", MIRRORED, BLOCK), ("hot-block-4-2", BLOCK, MIRRORED)]
    {
        convert(&nodes, "live", class);
        until("a partition has moved", WITHIN, || {
            let homes = homes(&nodes, "live").unwrap_or_default();
            homes.iter().any(|(home, _)| *home == group)
        });
        let victim = nodes.place(load.leader(0)).rack;
        nodes.kill(&["--rack", victim.as_str()]);
        load.wait_for_acks(ACK_COUNT, "with a leader killed", WITHIN);
        until("all has moved", WITHIN, || all_in(&nodes, "live", group, other));
        nodes.restart(&["--rack", victim.as_str()]);
        nodes.wait_until_whole();
        say(&format!("{class}, {victim} killed: {} without an ack", gap(&load)));
    }
    convert(&nodes, "copies", "mirror-3-dc");
    until("the other is back", WITHIN, || all_in(&nodes, "copies", MIRRORED, BLOCK));
    assert_eq!(records_of(&nodes, "copies"), records, "what was read before is read after");

    // Of both groups goes what each may lose: a datacenter that has no rack of the second, and two racks of that.
    let racks = racks_of(&nodes, BLOCK);
    let lost = ["--dc", "C", "--rack", &racks[0], "--rack", &racks[5]];
    nodes.kill(&lost);
    load.wait_for_acks(ACK_COUNT, "with a datacenter and two racks lost", WITHIN);
    let acked = load.finish();
    for (lines, when) in [(&copies, "after its moves"), (&parts, "where it always was")] {
        lines.check(&nodes, when);
    }
    let verdict = Verdict::of(&acked, &read_all(&nodes.bootstrap, "live", PARTITION_COUNT));
    say(&format!("live: {verdict}"));
    assert!(verdict.is_clean(), "{verdict}");
    nodes.restart(&lost);
    nodes.wait_until_whole();
    nodes.stop();
}

/// Where one group of a shape is all that a class has, a larger cluster is no faster.
#[test]
fn a_topic_is_spread_over_groups_of_one_shape_and_survives_what_each_of_them_does() {
    let _turn = turn();
    let nodes = Nodes::start_ready("alike", &["--dcs", "3", "--racks", "1", "--groups", "2"]);
    nodes.wait_until_whole();
    let count = PARTITION_COUNT.to_string();
    ok(&["topic", "create", "live", "-p", &count, "-b", &nodes.bootstrap]);
    let load = Load::start(&nodes.bootstrap, "live", &nodes.data().join("load.log"));
    load.wait_for_acks(ACK_COUNT, "at first", WITHIN);
    let of_group = |group: i64| {
        let homes = homes(&nodes, "live").unwrap_or_default();
        homes.iter().filter(|(home, former)| *home == group && former.is_empty()).count()
    };
    let half = PARTITION_COUNT as usize / 2;
    until("partitions are in both groups", WITHIN, || {
        of_group(1).abs_diff(half) <= 1 && of_group(2).abs_diff(half) <= 1
    });
    // A node of each group, of one datacenter: each may lose that one.
    let lost = ["--dc", "B"];
    nodes.kill(&lost);
    load.wait_for_acks(ACK_COUNT, "with a datacenter lost", WITHIN);
    let acked = load.finish();
    let verdict = Verdict::of(&acked, &read_all(&nodes.bootstrap, "live", PARTITION_COUNT));
    say(&format!("live, in two groups: {verdict}"));
    assert!(verdict.is_clean(), "{verdict}");
    nodes.restart(&lost);
    nodes.wait_until_whole();
    nodes.stop();
}

fn convert(nodes: &Nodes, topic: &str, class: &str) {
    ok(&["topic", "storage", "convert", topic, "--class", class, "-b", &nodes.bootstrap]);
}

fn gap(load: &Load) -> String {
    let gap: Duration = load.take_longest_gap();
    format!("{:.2} s", gap.as_secs_f64())
}

/// The group of each partition, and those that it was in before; `None` while one has no leader.
fn homes(nodes: &Nodes, topic: &str) -> Option<Vec<(i64, Vec<i64>)>> {
    let describe = ["topic", "storage", "describe", topic, "-b", &nodes.bootstrap, "-o", "json"];
    let described: Value = serde_json::from_slice(&run(&describe).stdout).ok()?;
    let home = |partition: &Value| {
        let former = partition["former_groups"].as_array()?.iter().filter_map(Value::as_i64);
        Some((partition["group"].as_i64()?, former.collect()))
    };
    described["partitions"].as_array()?.iter().map(home).collect()
}

fn all_in(nodes: &Nodes, topic: &str, group: i64, before: i64) -> bool {
    let homes = homes(nodes, topic);
    homes.is_some_and(|homes| homes.iter().all(|home| *home == (group, vec![before])))
}

/// Every record, with its offset and its time.
fn records_of(nodes: &Nodes, topic: &str) -> Vec<String> {
    let mut records = Vec::new();
    until(&format!("{topic} is read"), WITHIN, || {
        let consume = ["topic", "consume", topic, "-b", &nodes.bootstrap, "-o", "json"];
        let output = run(&consume);
        records = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        output.status.success()
    });
    records.sort_unstable();
    assert_eq!(records.len(), SIZE_BYTES / 1000);
    records
}

fn groups(nodes: &Nodes) -> Vec<Value> {
    let status = nodes.status().unwrap_or_default();
    status["groups"].as_array().cloned().unwrap_or_default()
}

/// The racks whose nodes fill slots of a group, but for those that vote on metadata: which nine of the nodes in the
/// first datacenter are which group is chance.
fn racks_of(nodes: &Nodes, group: i64) -> Vec<String> {
    let status = nodes.status().unwrap();
    let voters = status["raft"]["voters"].as_array().unwrap();
    let of_group = status["nodes"].as_array().unwrap().iter();
    let of_group = of_group.filter(|it| it["group"] == group && !voters.contains(&it["id"]));
    of_group.map(|node| node["rack"].as_str().unwrap().to_owned()).collect()
}
