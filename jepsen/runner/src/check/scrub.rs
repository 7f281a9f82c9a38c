//! After each run every disk is read whole: what it keeps is what was written, and nothing on it is damaged
//! for long.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Anomaly;
use crate::history::{Body, Op};

/// Faults that damage what a disk keeps, or reads of it.
const ROTS: &[&str] = &[
    "bit-flip",
    "zero-page",
    "misdirect",
    "truncate",
    "eio-read",
    "eio-write",
    "eio-fsync",
    "any-call",
    "stale-disk",
    "swap-disks",
];

/// What a node says of its disk (`disk.status`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    standing: String,
    /// It is another one after a restart.
    mount_epoch: Option<u64>,
    /// Scrubs that came to their end since the node's start.
    pass_count: u64,
    /// What is damaged now, and what was since the node's start.
    damaged_count: u64,
    found_count: u64,
    is_mending: bool,
}

/// A node that was asked to read its disk whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scrubbed {
    pub(crate) node: String,
    /// How it answered that; `None` if it never did.
    pub(crate) begun: Option<Disk>,
    /// What it said last, if it answered.
    pub(crate) now: Option<Disk>,
}

impl Disk {
    pub(crate) fn of(status: &Value) -> Self {
        // What it does not tell is not in order.
        let count = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
        Self {
            standing: status["standing"].as_str().unwrap_or("unknown").to_owned(),
            mount_epoch: status["mount_epoch"].as_u64(),
            pass_count: status["scrub"]["passes"].as_u64().unwrap_or(0),
            damaged_count: count(&status["unreadable"]),
            found_count: count(&status["corrupt"]),
            is_mending: status["mending"] != false || status["emptying"] != false,
        }
    }

    /// Whether it fills no slot: nothing on it counts.
    fn is_spare(&self) -> bool {
        self.standing == "NotMember"
    }
}

impl Scrubbed {
    /// What is not in order, if anything: it was not read whole since that was asked for, or is damaged.
    pub(crate) fn complaint(&self) -> Option<String> {
        let node = &self.node;
        let Some(begun) = &self.begun else {
            return Some(format!("{node} did not answer when its disk was to be scrubbed"));
        };
        let Some(now) = &self.now else {
            return Some(format!("{node} did not tell how its scrub ended"));
        };
        if begun.is_spare() && now.is_spare() {
            return None;
        }
        let is_same = begun.mount_epoch.is_some() && begun.mount_epoch == now.mount_epoch;
        if !is_same || now.pass_count <= begun.pass_count {
            return Some(format!("{node} was not scrubbed to its end"));
        }
        if now.standing != "Good" {
            return Some(format!("{node}: its disk is {}", now.standing));
        }
        (now.damaged_count > 0 || now.is_mending)
            .then(|| format!("{node}: {} blobs are damaged, and are not mended", now.damaged_count))
    }

    fn found_count(&self) -> u64 {
        self.now.as_ref().map_or(0, |disk| disk.found_count)
    }
}

/// What is wrong with disks after a scrub. Damage is excused on nodes only whose disks a fault of the run
/// had damaged.
pub(crate) fn check(disks: &[Scrubbed], history: &[Op]) -> Vec<Anomaly> {
    let hit = hit(history);
    let anomaly = |disk: &Scrubbed| {
        let without_fault = || {
            let (node, count) = (&disk.node, disk.found_count());
            (count > 0 && !hit.contains(node.as_str()))
                .then(|| format!("{node}: {count} checksums were wrong, without a fault there"))
        };
        let text = disk.complaint().or_else(without_fault)?;
        Some(Anomaly::new("scrub", text, []))
    };
    disks.iter().filter_map(anomaly).collect()
}

/// The nodes whose disks were damaged by faults.
fn hit(history: &[Op]) -> BTreeSet<&str> {
    let rots = history.iter().filter_map(|op| match &op.body {
        Body::Fault { name, begins: true, detail } if ROTS.contains(&name.as_str()) => {
            Some(detail.as_str())
        }
        _ => None,
    });
    // Said as in `A1 B2`, `A1 at 30 %`, `A1: a bit of /disk/7`.
    let nodes = rots.filter_map(|detail| {
        let Some((nodes, what)) = detail.split_once(':') else { return Some(detail.split(' ')) };
        // The data folder holds the metadata log too.
        what.contains("/disk/").then(|| nodes.split(' '))
    });
    nodes.flatten().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::Script;
    use super::*;

    fn status(passes: u64, unreadable: u64, corrupt: u64, mending: bool) -> Value {
        json!({
            "standing": "Good", "corrupt": corrupt, "unreadable": unreadable, "mending": mending,
            "emptying": false, "mount_epoch": 3, "scrub": { "passes": passes },
        })
    }

    fn scrubbed(begun: &Value, now: &Value) -> Scrubbed {
        let disk = |status: &Value| status.is_object().then(|| Disk::of(status));
        Scrubbed { node: "A1".to_owned(), begun: disk(begun), now: disk(now) }
    }

    fn finds(begun: &Value, now: &Value, faults: &[(&str, &str)]) -> usize {
        let script = Script::default().acked(1, 5, 0, 10);
        let add = |script: Script, (name, detail): &(&str, &str)| script.fault(name, detail);
        check(&[scrubbed(begun, now)], &faults.iter().fold(script, add).ops).len()
    }

    #[test]
    fn every_disk_is_read_and_in_order() {
        let begun = status(2, 0, 0, false);
        assert_eq!(finds(&begun, &status(3, 0, 0, false), &[]), 0);
        assert_eq!(finds(&begun, &status(2, 0, 0, false), &[]), 1, "not read");
        let rot = [("bit-flip", "A1: a bit of /disk/7")];
        assert_eq!(finds(&begun, &status(3, 1, 1, false), &rot), 1, "damaged");
        assert_eq!(finds(&begun, &status(3, 0, 1, true), &rot), 1, "not mended yet");
        let mut lost = status(3, 0, 0, false);
        lost["standing"] = json!("LostData");
        assert_eq!(finds(&begun, &lost, &[]), 1, "it does not count");
        let mut again = status(3, 0, 0, false);
        again["mount_epoch"] = json!(4);
        assert_eq!(finds(&begun, &again, &[]), 1, "it was restarted on the way");
    }

    #[test]
    fn who_is_silent_is_not_in_order() {
        let read = status(3, 0, 0, false);
        assert_eq!(finds(&Value::Null, &read, &[]), 1, "those may be passes of before");
        assert_eq!(finds(&status(2, 0, 0, false), &Value::Null, &[]), 1);
        assert_eq!(finds(&json!({}), &json!({}), &[]), 1);
        for missing in ["corrupt", "unreadable", "mending", "emptying", "mount_epoch", "scrub"] {
            let mut part = read.clone();
            part[missing].take();
            assert_eq!(finds(&status(2, 0, 0, false), &part, &[]), 1, "{missing}");
        }
    }

    #[test]
    fn damage_has_a_cause() {
        let (begun, found) = (status(0, 0, 0, false), status(1, 0, 1, false));
        assert_eq!(finds(&begun, &found, &[("kill", "A1"), ("power", "A1 lost 3 writes")]), 1);
        for (fault, detail) in [
            ("zero-page", "A1: a page of /disk/7"),
            ("eio-fsync", "A1 at 30 %"),
            ("stale-disk", "A1"),
            ("swap-disks", "B2 A1"),
        ] {
            assert_eq!(finds(&begun, &found, &[("kill", "B1"), (fault, detail)]), 0, "{fault}");
        }
        let mut spare = status(0, 0, 0, false);
        spare["standing"] = json!("NotMember");
        assert_eq!(finds(&spare, &spare, &[]), 0);
    }

    #[test]
    fn a_fault_excuses_no_other_node() {
        let (begun, found) = (status(0, 0, 0, false), status(1, 0, 1, false));
        for (fault, detail) in [
            ("eio-fsync", "B1 at 100 %"),
            ("zero-page", "B1: a page of /disk/A1"),
            ("swap-disks", "B2 C1"),
            ("bit-flip", "A1: nothing"),
            ("bit-flip", "A1: a bit of /meta/raft/1"),
        ] {
            assert_eq!(finds(&begun, &found, &[(fault, detail)]), 1, "{fault}");
        }
        assert_eq!(
            finds(&begun, &found, &[("eio-read", "B1 at 2 %"), ("eio-read", "A1 at 2 %")]),
            0
        );
    }
}
