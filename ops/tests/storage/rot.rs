//! Bits that flip on disks, and the scrub that finds them.

use std::fs;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::common::{ok, run};
use crate::nodes::Nodes;

/// From one flipped bit to the next.
const EVERY_BYTES: usize = 64 << 10;

/// Flips bits all over the journals of nodes, others of each, and scrubs them: afterwards nothing is
/// damaged any more.
pub(crate) fn flip_and_scrub(nodes: &Nodes, ids: &[i32]) {
    for (index, id) in ids.iter().enumerate() {
        let flipped_count = flip(nodes, *id, 20_000 * index + 999, 1 << index);
        assert!(flipped_count > 0, "node {id} has written nothing");
    }
    for id in ids {
        let name = format!("{id}/disk");
        ok(&["disk", "scrub", &name, "--now", "--wait", "-b", &nodes.bootstrap]);
        // What leaders make again was waited for, too.
        let disk = status(nodes, *id);
        assert_eq!(disk["unreadable"], 0, "{disk}");
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

fn flip(nodes: &Nodes, id: i32, first: usize, bit: u8) -> usize {
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
                file.write_all_at(&[contents[at] ^ bit], at as u64).unwrap();
                flipped_count += 1;
            }
        }
    }
    flipped_count
}
