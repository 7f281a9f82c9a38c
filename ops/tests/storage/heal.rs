//! Nodes are lost for good, rest, leave and come back; spares take their slots.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json as value};

use crate::common::{json, ok, run, text};
use crate::lines::Lines;
use crate::nodes::{Nodes, until};
use crate::rot::status as disk;
use crate::{WITHIN, say, turn};

const SIZE_BYTES: usize = 24_000_000;

#[test]
fn slots_of_nodes_that_are_lost_or_leave_move_to_spares() {
    let _turn = turn();
    // Node 10 in rack A4, node 11 in rack B4.
    let nodes = Nodes::start_with("heal", &["--spares", "2", "--heal-after-s", "4"]);
    until("the spares are there", WITHIN, || spares(&nodes).len() == 2);
    let lines = Lines::write(&nodes, "t", 6, SIZE_BYTES);

    let lost = a_node_is_lost(&nodes, &lines);
    it_comes_back(&nodes, lost);
    disks_are_told_apart(&nodes, &lines, lost);
    nodes_rest(&nodes);
    a_slot_is_given_to_another(&nodes);
    lines.check(&nodes, "after a slot was given to another");
    a_node_leaves(&nodes);
    lines.check(&nodes, "after a node has left");
    nodes.stop();
}

/// A node is killed, and a spare of its datacenter takes its slot. What it held is on the spare: it is
/// read from there with all others away that have it.
fn a_node_is_lost(nodes: &Nodes, lines: &Lines) -> i32 {
    let lost = holder(nodes, 3).unwrap();
    let began = Instant::now();
    nodes.kill(&node(lost));
    until("a spare has taken the slot", WITHIN, || holder(nodes, 3).is_some_and(|it| it != lost));
    let spare = holder(nodes, 3).unwrap();
    say(&format!("node {lost} killed, node {spare} good: {:.1} s", began.elapsed().as_secs_f64()));
    // Its vote is another's as well.
    nodes.wait_until_whole();
    let listed = json(&["node", "list", "-b", &nodes.bootstrap, "-o", "json"]);
    let of = |id: i32| listed.as_array().unwrap().iter().find(|node| node["id"] == id).unwrap();
    assert_eq!((&of(lost)["liveness"], &of(lost)["slot"]), (&value!("dead"), &Value::Null));
    assert_eq!((&of(spare)["slot"], &of(spare)["slot_state"]), (&value!(3), &value!("good")));
    let disks = json(&["disk", "list", "-b", &nodes.bootstrap, "-o", "json"]);
    let disks = disks.as_array().unwrap();
    assert!(disks.iter().all(|disk| disk["node"] != lost), "{disks:?}");
    assert!(disks.iter().any(|disk| disk["node"] == spare && disk["standing"] == "Good"));
    lines.check(nodes, "after a node was lost");

    // Of the row of racks that it is in, only the spare is left.
    let twin = holder(nodes, 0).unwrap();
    let away = [vec!["--dc".to_owned(), "C".to_owned()], node(twin)].concat();
    nodes.kill(&away);
    lines.check(nodes, "with the spare alone");
    nodes.restart(&away);
    nodes.wait_until_whole();
    lost
}

fn it_comes_back(nodes: &Nodes, lost: i32) {
    nodes.restart(&node(lost));
    until("the lost node is a spare", WITHIN, || spares(nodes).contains(&lost));
    until("its disk is mounted", WITHIN, || !disk(nodes, lost)["mounted_as"].is_null());
    let disk = disk(nodes, lost);
    assert_eq!((&disk["mounted_as"], &disk["standing"]), (&value!("same"), &value!("NotMember")));
}

/// Each disk that is not what it was is known for what it is, and counts for nothing until it has synced.
fn disks_are_told_apart(nodes: &Nodes, lines: &Lines, spare: i32) {
    let folder = |id: i32| nodes.data().join(format!("node-{id}/data/disk"));
    let mounted_as = |id: i32, expected: Value| {
        nodes.restart(&node(id));
        let mut seen = Value::Null;
        until(&format!("node {id} has mounted its disk"), WITHIN, || {
            seen = disk(nodes, id)["mounted_as"].clone();
            !seen.is_null()
        });
        assert_eq!(seen, expected, "node {id}");
    };
    nodes.kill(&node(spare));
    nodes.wipe_disk(spare);
    mounted_as(spare, value!("blank"));

    let id = holder(nodes, 7).unwrap();
    let saved = nodes.data().join("saved");
    nodes.kill(&node(id));
    copy(&folder(id), &saved);
    mounted_as(id, value!("same"));
    nodes.wait_until_whole();
    nodes.kill(&node(id));
    fs::remove_dir_all(folder(id)).unwrap();
    copy(&saved, &folder(id));
    mounted_as(id, value!("stale"));
    nodes.wait_until_whole();

    let other = holder(nodes, 8).unwrap();
    nodes.kill(&node(id));
    fs::remove_dir_all(&saved).unwrap();
    copy(&folder(id), &saved);
    mounted_as(id, value!("same"));
    nodes.wait_until_whole();
    nodes.kill(&node(other));
    fs::remove_dir_all(folder(other)).unwrap();
    copy(&saved, &folder(other));
    mounted_as(other, value!({ "of-node": id }));
    nodes.wait_until_whole();
    lines.check(nodes, "after disks were wiped, put back and exchanged");
}

/// A datacenter and a rack may rest; one more may not.
fn nodes_rest(nodes: &Nodes) {
    let at = nodes.bootstrap.as_str();
    let resting: Vec<String> =
        (0..4).map(|slot| holder(nodes, slot).unwrap().to_string()).collect();
    for id in &resting {
        ok(&["node", "drain", id, "--wait", "-b", at]);
    }
    let one_more = holder(nodes, 4).unwrap().to_string();
    let refused = run(&["node", "drain", &one_more, "-b", at]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    for id in &resting {
        ok(&["node", "undrain", id, "-b", at]);
    }
}

/// And back: a disk begins a new life in each slot that it is given.
fn a_slot_is_given_to_another(nodes: &Nodes) {
    let (from, spares_there) = (holder(nodes, 1).unwrap(), spares(nodes));
    let to = spares_there.into_iter().find(|spare| nodes.place(*spare).dc == nodes.place(from).dc);
    let to = to.unwrap();
    let life = |id: i32| disk(nodes, id)["incarnation"].as_u64().unwrap();
    let (before, life_of_spare) = (life(from), life(to));
    let give = |from: i32, to: i32| {
        let (giver, taker) = (from.to_string(), to.to_string());
        ok(&[
            "node",
            "replace",
            &giver,
            "--with",
            &taker,
            "--wait",
            "--yes",
            "-b",
            &nodes.bootstrap,
        ]);
        assert_eq!(holder(nodes, 1), Some(to));
        assert!(spares(nodes).contains(&from), "node {from} is a spare");
    };
    give(from, to);
    // What it said as it had the slot before counts for nothing as it has it again.
    give(to, from);
    assert!(life(to) > life_of_spare && life(from) > before.max(life(to)), "lives of slot 1");
}

/// A node leaves for good. Started once more it says what is the matter; without its old data it joins
/// as any new node.
fn a_node_leaves(nodes: &Nodes) {
    // The leader of the metadata log would wait for the next.
    let slot = if holder(nodes, 4) == Some(nodes.metadata_leader()) { 5 } else { 4 };
    let leaving = holder(nodes, slot).unwrap();
    let id = leaving.to_string();
    ok(&["node", "decommission", &id, "--wait", "--yes", "-b", &nodes.bootstrap]);
    assert!(holder(nodes, slot).is_some_and(|it| it != leaving));
    let listed = json(&["node", "list", "-b", &nodes.bootstrap, "-o", "json"]);
    assert!(listed.as_array().unwrap().iter().all(|node| node["id"] != leaving));
    until("it votes no more", WITHIN, || {
        let status = nodes.status().unwrap_or_default();
        let voters = status["raft"]["voters"].as_array();
        voters.is_some_and(|voters| voters.iter().all(|voter| *voter != leaving))
    });

    let arguments = ["dev", "restart", "--node", &id, "--data", nodes.data().to_str().unwrap()];
    assert!(!run(&arguments).status.success(), "node {id} has left, and serves");
    let log = fs::read_to_string(nodes.data().join(format!("node-{id}/node.log"))).unwrap();
    assert!(log.contains("let it join anew"), "{log}");
    fs::remove_dir_all(nodes.data().join(format!("node-{id}/data"))).unwrap();
    nodes.restart(&node(leaving));
    until("the node that left is a spare", WITHIN, || spares(nodes).contains(&leaving));
    assert_eq!(disk(nodes, leaving)["mounted_as"], "first");
}

/// The node that fills a slot, if its disk counts.
fn holder(nodes: &Nodes, slot: u64) -> Option<i32> {
    let status = nodes.status()?;
    let node = status["nodes"].as_array()?.iter().find(|node| node["slot"] == slot)?;
    let id = i32::try_from(node["id"].as_i64()?).ok()?;
    (node["slot_state"] == "good").then_some(id)
}

/// Nodes that are alive and fill no slot.
fn spares(nodes: &Nodes) -> Vec<i32> {
    let status = nodes.status().unwrap_or_default();
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    let is_spare = |node: &&Value| node["liveness"] == "alive" && node["slot"].is_null();
    let id = |node: &Value| i32::try_from(node["id"].as_i64().unwrap()).unwrap();
    nodes.iter().filter(is_spare).map(id).collect()
}

fn node(id: i32) -> Vec<String> {
    vec!["--node".to_owned(), id.to_string()]
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-r").args([from, to]).status().unwrap();
    assert!(copied.success());
}
