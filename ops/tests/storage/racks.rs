//! One datacenter of eight racks, with copies and with parts: any two may be lost, and a spare takes a slot over.

use serde_json::{Value, json as value};

use crate::common::{ok, run, text};
use crate::lines::Lines;
use crate::nodes::{Nodes, until};
use crate::{WITHIN, say, turn};

const SIZE_BYTES: usize = 8_000_000;
const IN_PARTS: &str = "meridian.storage.class=block-4-2";

#[test]
fn of_eight_racks_any_two_may_be_lost() {
    let _turn = turn();
    // Nodes 1 to 8 in racks A1 to A8, the spare in A9.
    let shape = ["--dcs", "1", "--racks", "8", "--spares", "1", "--heal-after-s", "4"];
    let nodes = Nodes::start_with("racks", &shape);
    until("the spare has mounted its disk", WITHIN, || disks(&nodes).len() == 9);
    let early = Lines::write(&nodes, "early", 3, SIZE_BYTES);
    until("three copies are on the disks", WITHIN, || live_bytes(&nodes) >= 3 * SIZE_BYTES as i64);
    let in_parts = written_in_parts(&nodes);
    two_may_rest(&nodes);

    let lost = ["--rack", "A2", "--rack", "A7"];
    nodes.kill(&lost);
    let late = Lines::write_with(&nodes, "late", IN_PARTS, 3, SIZE_BYTES);
    let both_read = |when: &str| {
        early.check(&nodes, when);
        in_parts.check(&nodes, when);
        late.check(&nodes, when);
    };
    both_read("with two racks lost");
    until("the spare has taken a slot", WITHIN, || {
        of_node(&nodes, 9).is_some_and(|spare| spare["slot_state"] == "good")
    });
    until("one more may be lost", WITHIN, || {
        nodes.status().is_some_and(|status| status["tolerates"] == "rack")
    });
    // It holds what the disk held whose slot it has: with two others lost, it is needed.
    nodes.kill(&["--rack", "A4"]);
    both_read("with the spare in place of one");
    nodes.restart(&["--rack", "A2", "--rack", "A4", "--rack", "A7"]);
    nodes.wait_until_whole();
    both_read("with all racks back");
    nodes.stop();
}

/// A topic whose records take one and a half times their bytes on the disks.
fn written_in_parts(nodes: &Nodes) -> Lines {
    let before = live_bytes(nodes);
    let lines = Lines::write_with(nodes, "parts", IN_PARTS, 3, SIZE_BYTES);
    let seen = || (live_bytes(nodes) - before) as f64 / lines.size_bytes() as f64;
    until("six parts are on the disks", WITHIN, || seen() >= 1.49);
    let seen = seen();
    say(&format!("block-4-2: {seen:.3} bytes on the disks for each byte"));
    assert!(seen <= 1.6, "{seen}");
    lines
}

/// Two racks may rest; a third may not.
fn two_may_rest(nodes: &Nodes) {
    let at = nodes.bootstrap.as_str();
    for id in ["3", "8"] {
        ok(&["node", "drain", id, "--wait", "-b", at]);
    }
    let refused = run(&["node", "drain", "1", "-b", at]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    for id in ["3", "8"] {
        ok(&["node", "undrain", id, "-b", at]);
    }
}

fn of_node(nodes: &Nodes, id: i32) -> Option<Value> {
    let status = nodes.status()?;
    status["nodes"].as_array()?.iter().find(|node| node["id"] == value!(id)).cloned()
}

fn disks(nodes: &Nodes) -> Vec<Value> {
    let output = run(&["disk", "list", "-b", &nodes.bootstrap, "-o", "json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn live_bytes(nodes: &Nodes) -> i64 {
    disks(nodes).iter().filter_map(|disk| disk["live_bytes"].as_i64()).sum()
}
