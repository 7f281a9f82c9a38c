//! A slot that stops and goes on: what is put beside what is needed, and that it goes again.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::json;
use crate::lines::Lines;
use crate::nodes::{Nodes, until};
use crate::{WITHIN, say, turn};

const SIZE_BYTES: usize = 30_000_000;
/// How long the slot's node stands still, of how long.
const STOPPED_FOR: Duration = Duration::from_millis(60);
const EVERY: Duration = Duration::from_millis(200);
/// Bytes on the disks for each byte, once all is well.
const SETTLED: f64 = 3.15;

/// A node that is stopped again and again, as a machine that swaps is. It goes on in the end,
/// whatever happens.
struct Stutter {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stutter {
    fn of(pid: u64) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                signal(pid, "-STOP");
                std::thread::sleep(STOPPED_FOR);
                signal(pid, "-CONT");
                std::thread::sleep(EVERY.saturating_sub(STOPPED_FOR));
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Stutter {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has failed if the node is gone, and then the test fails of that.
            let _node_is_gone = thread.join();
        }
    }
}

fn signal(pid: u64, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn live_bytes(nodes: &Nodes) -> f64 {
    let disks = json(&["disk", "list", "-b", &nodes.bootstrap, "-o", "json"]);
    disks.as_array().unwrap().iter().filter_map(|disk| disk["live_bytes"].as_f64()).sum()
}

#[test]
fn copies_that_a_stuttering_slot_leaves_go_when_it_is_well() {
    let _turn = turn();
    let nodes = Nodes::start_with("surplus", &[]);
    let before = live_bytes(&nodes);
    let stuttering = nodes.places().into_iter().find(|place| place.rack == "B1").unwrap();
    let stutter = Stutter::of(stuttering.pid.unwrap());
    let lines = Lines::write(&nodes, "hedged", 3, SIZE_BYTES);
    let per_byte = || (live_bytes(&nodes) - before) / lines.size_bytes() as f64;
    let mut most = per_byte();
    drop(stutter);
    until("there are three copies of each record, and hardly more", WITHIN, || {
        let now = per_byte();
        most = most.max(now);
        (2.95..=SETTLED).contains(&now)
    });
    let settled = per_byte();
    say(&format!("{most:.3} bytes on the disks for each byte at most, {settled:.3} in the end"));
    lines.check(&nodes, "when copies are few");
    nodes.stop();
}
