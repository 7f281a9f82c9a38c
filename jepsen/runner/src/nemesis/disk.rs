//! Disks that fail, are full, or are slow, under a running node.
//!
//! The node may stop by itself. When the fault ends it is started again; what a failed fsync left
//! behind is lost then, as ext4 loses it.

use std::time::Duration;

use super::{Entry, Nemesis, Scene};
use crate::cluster::place::NodeIndex;
use crate::disk::control::Operation;
use crate::disk::undo::Cut;
use crate::failure::Failure;

#[derive(Clone, Copy)]
enum Fault {
    Error(Operation),
    Full,
    Slow,
}

struct Disk {
    fault: Fault,
    hit: Option<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::within("eio-write", "a node's writes fail", || new(Fault::Error(Operation::Write))),
        Entry::within("eio-fsync", "a node's fsyncs fail, and lose what they should keep", || {
            new(Fault::Error(Operation::Sync))
        }),
        Entry::within("eio-read", "a node's reads fail", || new(Fault::Error(Operation::Read))),
        Entry::within("disk-full", "a node's disk has no room for anything new", || {
            new(Fault::Full)
        }),
        Entry::within("slow-disk", "each fsync of a node takes 200 ms more", || new(Fault::Slow)),
        Entry::within("slow-disks", "each fsync of all nodes takes 100 ms more", || {
            Box::new(AllSlow)
        }),
    ]
}

/// Fences and puts stay on their way for long: what happens in between happens often.
struct AllSlow;

const ALL_SLOW_BY: Duration = Duration::from_millis(100);

/// Makes each fsync of all nodes take so much more.
pub(super) fn slow_all(scene: &Scene<'_>, delay: Duration) {
    for node in NodeIndex::all() {
        scene.cluster.control(node).slow(Operation::Sync, delay);
    }
}

impl Nemesis for AllSlow {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        slow_all(scene, ALL_SLOW_BY);
        Ok(Some("all".to_owned()))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        slow_all(scene, Duration::ZERO);
        Ok(())
    }
}

fn new(fault: Fault) -> Box<dyn Nemesis> {
    Box::new(Disk { fault, hit: None })
}

impl Nemesis for Disk {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let leader = if scene.chance.per_mille(500) { scene.some_leader() } else { None };
        let node = match leader {
            Some(leader) if scene.claim(&[leader]) => Some(leader),
            _ => scene.claim_one(),
        };
        let Some(node) = node else { return Ok(None) };
        self.hit = Some(node);
        let control = scene.cluster.control(node);
        let told = match self.fault {
            Fault::Error(operation) => {
                scene.cluster.expect_end(node);
                let share = scene.chance.pick(&[1000, 300, 20]).unwrap_or(1000);
                control.fail(operation, share);
                format!("{} at {} %", node.rack_name(), share / 10)
            }
            Fault::Full => {
                scene.cluster.expect_end(node);
                control.fill(true);
                node.rack_name()
            }
            Fault::Slow => {
                control.slow(Operation::Sync, Duration::from_millis(200));
                node.rack_name()
            }
        };
        Ok(Some(told))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.hit.take() else { return Ok(()) };
        scene.cluster.control(node).heal_disk();
        if matches!(self.fault, Fault::Error(Operation::Sync)) {
            // A process that goes on after a failed fsync would keep it in the page cache; on a
            // real disk it is gone from there at any time.
            scene.cluster.kill(&[node])?;
            scene.cluster.lose_unsynced(node, Cut::OnlyFailed, &mut scene.chance)?;
        }
        scene.bring_back(&[node])
    }
}
