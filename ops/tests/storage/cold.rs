//! Records become stripes: what they take on disk, and what may be lost then.

use std::time::Instant;

use serde_json::Value;

use crate::common::{ok, run};
use crate::lines::Lines;
use crate::nodes::{Nodes, until};
use crate::rot::flip_and_scrub;
use crate::{WITHIN, say, turn};

const SIZE_BYTES: usize = 24_000_000;
/// How far what is on the disks may be from what the class promises.
const MARGIN: f64 = 0.1;

#[test]
fn classes_take_what_they_promise_and_survive_what_they_promise() {
    let _turn = turn();
    let nodes = Nodes::start_with("cold", &[]);
    let mirrored = store_in_copies(&nodes);
    let striped = store(&nodes, "striped", "rs-5-4", 1.8);
    let both_read = |when: &str| {
        mirrored.check(&nodes, when);
        striped.check(&nodes, when);
    };
    both_read("at rest");

    let lost = ["--dc", "C", "--rack", "B1"];
    nodes.kill(&lost);
    both_read("with a datacenter and a rack lost");
    nodes.restart(&lost);
    nodes.wait_until_whole();

    // Three of these hold all copies of some partitions, none of which is whole then.
    flip_and_scrub(&nodes, &[1, 4, 5, 8]);
    both_read("after bits have flipped on four nodes");
    assert_whole(&nodes, "striped");

    let block = store(&nodes, "block", "block-4-2", 1.5);
    block.check(&nodes, "at rest");
    let lost = ["--rack", "A1", "--rack", "B2"];
    nodes.kill(&lost);
    block.check(&nodes, "with two racks lost");
    nodes.restart(&lost);
    nodes.wait_until_whole();
    flip_and_scrub(&nodes, &[5, 9]);
    block.check(&nodes, "after bits have flipped on two nodes");
    assert_whole(&nodes, "block");
    nodes.stop();
}

/// Writes a topic in three copies, and no more: what a busy machine hedges goes when all slots are
/// well.
fn store_in_copies(nodes: &Nodes) -> Lines {
    let before = bytes(nodes, "live_bytes");
    let lines = Lines::write(nodes, "mirrored", 3, SIZE_BYTES);
    let mut seen = 0.0;
    until("three copies are on the disks, and no more", WITHIN, || {
        seen = (bytes(nodes, "live_bytes") - before) as f64 / lines.size_bytes() as f64;
        (seen - 3.0).abs() <= MARGIN
    });
    say(&format!("mirror-3-dc: {seen:.3} bytes on the disks for each byte"));
    lines
}

/// Writes a topic, has it stored in a class, and waits until the disks hold as much more as they
/// should.
fn store(nodes: &Nodes, topic: &'static str, class: &str, per_byte: f64) -> Lines {
    let before = bytes(nodes, "live_bytes");
    let lines = Lines::write(nodes, topic, 3, SIZE_BYTES);
    let began = Instant::now();
    let convert = ["topic", "storage", "convert", topic, "--class", class];
    let cold = ["--after-ms", "0", "--wait", "120", "-b", &nodes.bootstrap];
    ok(&convert.into_iter().chain(cold).collect::<Vec<_>>());
    let mut seen = 0.0;
    until(&format!("{class} takes {per_byte} bytes for each"), WITHIN, || {
        seen = (bytes(nodes, "live_bytes") - before) as f64 / lines.size_bytes() as f64;
        (seen - per_byte).abs() <= MARGIN
    });
    let took = began.elapsed().as_secs_f64();
    let dead = bytes(nodes, "used_bytes") - bytes(nodes, "live_bytes");
    say(&format!(
        "{class}: {seen:.3} bytes on the disks for each byte, after {took:.0} s; {dead} dead"
    ));
    lines
}

/// What all disks say of themselves, in sum. Dead bytes stay in a file for as long as it is written to: so how many
/// there are beside this little data is chance.
fn bytes(nodes: &Nodes, which: &str) -> i64 {
    let output = run(&["disk", "list", "-b", &nodes.bootstrap, "-o", "json"]);
    let disks: Value = serde_json::from_slice(&output.stdout).unwrap();
    disks.as_array().unwrap().iter().map(|disk| disk[which].as_i64().unwrap()).sum()
}

/// Every part of every stripe is there, and readable.
fn assert_whole(nodes: &Nodes, topic: &str) {
    until(&format!("all parts of {topic} are there"), WITHIN, || {
        let describe = ["topic", "storage", "describe", topic, "-b", &nodes.bootstrap];
        run(&describe).status.success()
    });
}
