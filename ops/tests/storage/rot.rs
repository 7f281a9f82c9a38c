//! Bits that flip on disks, and the scrub that finds them.

use std::fs;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::WITHIN;
use crate::common::{run, text};
use crate::nodes::{Nodes, until};

/// From one flipped bit to the next.
const EVERY_BYTES: usize = 64 << 10;

/// Flips bits all over the journals of nodes, at other places of each, and scrubs them: afterwards
/// nothing is damaged any more.
pub(crate) fn flip_and_scrub(nodes: &Nodes, ids: &[i32]) {
    for (index, id) in ids.iter().enumerate() {
        let flipped_count = flip(nodes, *id, 20_000 * index + 999);
        assert!(flipped_count > 0, "node {id} has written nothing");
    }
    for id in ids {
        // Exit code 2 says that a leader has yet to make parts of stripes again.
        let id = id.to_string();
        let scrub = ["disk", "scrub", "--node", &id, "--now", "--wait", "-b", &nodes.bootstrap];
        let output = run(&scrub);
        assert!(matches!(output.status.code(), Some(0 | 2)), "{}", text(&output.stderr));
    }
    for id in ids {
        let mut disk = Value::Null;
        until("all that rotted is mended", WITHIN, || {
            disk = status(nodes, *id);
            disk["unreadable"] == 0
        });
        let (found, mended) = (disk["corrupt"].as_u64(), disk["repaired"].as_u64());
        assert!(found > Some(0) && mended > Some(0), "{disk}");
    }
}

/// What a node says of its disk.
pub(crate) fn status(nodes: &Nodes, id: i32) -> Value {
    let id = id.to_string();
    let output = run(&["disk", "status", "--node", &id, "-b", &nodes.bootstrap, "-o", "json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn flip(nodes: &Nodes, id: i32, first: usize) -> usize {
    let mut flipped_count = 0;
    for entry in fs::read_dir(nodes.data().join(format!("node-{id}/data/disk"))).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        // A file whose records have all become stripes may go meanwhile.
        let Ok(contents) = fs::read(&path) else { continue };
        let Ok(file) = fs::OpenOptions::new().write(true).open(&path) else { continue };
        for at in (first..contents.len()).step_by(EVERY_BYTES) {
            // What is zero was not written yet.
            if contents[at] != 0 {
                file.write_all_at(&[contents[at] ^ 4], at as u64).unwrap();
                flipped_count += 1;
            }
        }
    }
    flipped_count
}
