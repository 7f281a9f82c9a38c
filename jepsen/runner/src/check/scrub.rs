//! After each run every disk is read whole: what it keeps is what was written, and nothing on it is damaged
//! for long.

use serde_json::Value;

use super::Anomaly;

/// Faults that damage what a disk keeps, or reads of it.
const ROTS: &[&str] = &[
    "bit-flip",
    "zero-page",
    "misdirect",
    "truncate",
    "eio-read",
    "eio-write",
    "eio-fsync",
    "stale-disk",
    "swap-disks",
];

/// What a node says of its disk (`disk.status`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) name: String,
    /// Whether it holds a slot, and counts.
    pub(crate) is_good: bool,
    /// Scrubs that came to their end since the node's start.
    pub(crate) pass_count: u64,
    /// What is damaged now, and what was since the node's start.
    pub(crate) damaged_count: u64,
    pub(crate) found_count: u64,
    pub(crate) is_mending: bool,
}

impl Disk {
    pub(crate) fn of(name: String, status: &Value) -> Self {
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        Self {
            name,
            is_good: status["standing"] == "Good",
            pass_count: count(&status["scrub"]["passes"]),
            damaged_count: count(&status["unreadable"]),
            found_count: count(&status["corrupt"]),
            is_mending: status["mending"] == true || status["emptying"] == true,
        }
    }

    /// Whether it was read whole since there were so many passes, and is in order.
    pub(crate) fn is_clean(&self, passes_before: u64) -> bool {
        !self.is_good
            || (self.pass_count > passes_before && self.damaged_count == 0 && !self.is_mending)
    }
}

/// What is wrong with disks after a scrub: each as it was before, and as it is.
pub(crate) fn check<'a>(
    disks: &[(Disk, Disk)],
    faults: impl Iterator<Item = &'a str>,
) -> Vec<Anomaly> {
    let rot = faults.into_iter().find(|fault| ROTS.contains(fault));
    let mut found = Vec::new();
    for (before, disk) in disks {
        let name = &disk.name;
        if !disk.is_clean(before.pass_count) {
            let text = if disk.pass_count > before.pass_count {
                format!("{name}: {} blobs are damaged, and are not mended", disk.damaged_count)
            } else {
                format!("{name} was not scrubbed to its end")
            };
            found.push(Anomaly::new("scrub", text, []));
        } else if disk.is_good && disk.found_count > 0 && rot.is_none() {
            let text =
                format!("{name}: {} checksums were wrong, without a fault", disk.found_count);
            found.push(Anomaly::new("scrub", text, []));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(passes: u64, unreadable: u64, corrupt: u64, mending: bool) -> Value {
        json!({
            "standing": "Good", "corrupt": corrupt, "unreadable": unreadable, "mending": mending,
            "emptying": false, "scrub": { "passes": passes },
        })
    }

    fn finds(before: &Value, after: &Value, faults: &[&str]) -> usize {
        let disk = |status| Disk::of("A1".to_owned(), status);
        check(&[(disk(before), disk(after))], faults.iter().copied()).len()
    }

    #[test]
    fn every_disk_is_read_and_in_order() {
        let before = status(2, 0, 0, false);
        assert_eq!(finds(&before, &status(3, 0, 0, false), &["kill"]), 0);
        assert_eq!(finds(&before, &status(2, 0, 0, false), &["kill"]), 1, "not read");
        assert_eq!(finds(&before, &status(3, 1, 1, false), &["bit-flip"]), 1, "damaged");
        assert_eq!(finds(&before, &status(3, 0, 1, true), &["bit-flip"]), 1, "not mended yet");
    }

    #[test]
    fn damage_has_a_cause() {
        let before = status(0, 0, 0, false);
        assert_eq!(finds(&before, &status(1, 0, 1, false), &["kill", "zero-page"]), 0);
        assert_eq!(finds(&before, &status(1, 0, 1, false), &["kill", "power"]), 1);
        let mut spare = status(0, 0, 0, false);
        spare["standing"] = json!("NotMember");
        assert_eq!(finds(&spare, &spare, &["kill"]), 0);
    }
}
