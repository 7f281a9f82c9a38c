//! A node comes back with another disk than it left with: an empty one, an old copy, or another's.

use super::{Entry, Nemesis, Scene};
use crate::cluster::place::{NodeIndex, names};
use crate::disk::damage;
use crate::failure::Failure;

enum With {
    Nothing,
    /// Its metadata log is gone, too: its vote goes to a new member of the Raft group.
    NoMemory,
    OldCopy,
    Another,
}

struct Replaced {
    with: With,
    hit: Vec<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::within("wipe", "a node comes back with an empty disk", || new(With::Nothing)),
        Entry::within("new-member", "a node comes back without disk and metadata log", || {
            new(With::NoMemory)
        }),
        Entry::within("stale-disk", "a node comes back with an older copy of its disk", || {
            new(With::OldCopy)
        }),
        Entry::within("swap-disks", "two nodes come back with each other's disk", || {
            new(With::Another)
        }),
    ]
}

fn new(with: With) -> Box<dyn Nemesis> {
    Box::new(Replaced { with, hit: Vec::new() })
}

impl Nemesis for Replaced {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        self.hit.extend(scene.claim_one());
        if matches!(self.with, With::Another) {
            self.hit.extend(scene.claim_one());
            if self.hit.len() < 2 {
                scene.release(&std::mem::take(&mut self.hit));
            }
        }
        let Some(first) = self.hit.first().copied() else { return Ok(None) };
        scene.cluster.kill(&self.hit)?;
        // The log partition's disk; metadata has a life of its own.
        let disk = |node: NodeIndex| scene.cluster.data_folder(node).join("disk");
        if !matches!(self.with, With::OldCopy) {
            self.hit.iter().try_for_each(|node| scene.cluster.forget_unsynced(*node))?;
        }
        match self.with {
            With::Nothing => damage::wipe(&disk(first))?,
            With::NoMemory => {
                damage::wipe(&disk(first))?;
                damage::wipe(&scene.cluster.data_folder(first).join("meta"))?;
            }
            With::Another => {
                if let Some(second) = self.hit.get(1) {
                    damage::swap(&disk(first), &disk(*second))?;
                }
            }
            With::OldCopy => {
                // It lives on with its disk while the copy grows old.
                damage::copy(&disk(first), &disk(first).with_extension("old"))?;
                scene.cluster.start(&self.hit)?;
            }
        }
        Ok(Some(names(&self.hit)))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let hit = std::mem::take(&mut self.hit);
        if let (With::OldCopy, Some(node)) = (&self.with, hit.first()) {
            scene.cluster.kill(&hit)?;
            let disk = scene.cluster.data_folder(*node).join("disk");
            damage::wipe(&disk)?;
            scene.cluster.forget_unsynced(*node)?;
            std::fs::rename(disk.with_extension("old"), &disk).map_err(Failure::file(&disk))?;
        }
        scene.bring_back_refilled(&hit)
    }
}
