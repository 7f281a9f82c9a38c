//! The power fails: nodes are killed, and what they had not fsynced is lost, wholly or from a
//! moment that chance picks, perhaps with a torn write there.

use std::time::Duration;

use super::disk::slow_all;
use super::{Entry, Nemesis, Scene};
use crate::clock;
use crate::cluster::place::NodeIndex;
use crate::disk::undo::Cut;
use crate::failure::Failure;

enum Whom {
    Node,
    DatacenterAndRack,
    All,
    /// All, while each fsync takes long: every moment has records on their way to the disk.
    AllBusy,
}

/// Many times what a write takes.
const BUSY_SYNC_DELAY: Duration = Duration::from_millis(300);
/// For every disk to be busy.
const BUSY_AFTER: Duration = Duration::from_secs(1);

struct Power {
    whom: Whom,
    hit: Vec<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::within("power", "a node loses power and its unsynced writes", || new(Whom::Node)),
        Entry::within("power-dc-rack", "a datacenter and a rack elsewhere lose power", || {
            new(Whom::DatacenterAndRack)
        }),
        Entry::beyond("power-all", "all nodes lose power at once", || new(Whom::All))
            .back_within_s(30),
        Entry::beyond("power-busy", "all nodes lose power while their disks are slow", || {
            new(Whom::AllBusy)
        })
        .back_within_s(30),
    ]
}

fn new(whom: Whom) -> Box<dyn Nemesis> {
    Box::new(Power { whom, hit: Vec::new() })
}

impl Nemesis for Power {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        self.hit = match self.whom {
            Whom::Node => scene.claim_one().into_iter().collect(),
            Whom::DatacenterAndRack => {
                let wanted = super::kill::datacenter_and_rack(scene);
                if scene.claim(&wanted) { wanted } else { Vec::new() }
            }
            Whom::All | Whom::AllBusy => {
                let all: Vec<NodeIndex> = NodeIndex::all().collect();
                scene.claim_anyway(&all);
                all
            }
        };
        let is_busy = matches!(self.whom, Whom::AllBusy);
        if is_busy {
            slow_all(scene, BUSY_SYNC_DELAY);
            clock::sleep(BUSY_AFTER);
        }
        scene.cluster.kill(&self.hit)?;
        if is_busy {
            slow_all(scene, Duration::ZERO);
        }
        let mut told = Vec::new();
        for node in &self.hit {
            let whole = is_busy || scene.chance.per_mille(500);
            let cut = if whole { Cut::Whole } else { Cut::FromSomeMoment };
            let lost = scene.cluster.lose_unsynced(*node, cut, &mut scene.chance)?;
            let torn = if lost.was_torn { ", one torn" } else { "" };
            let more = if lost.is_incomplete { ", more than was noted" } else { "" };
            let (name, count) = (node.rack_name(), lost.write_count);
            told.push(format!("{name} lost {count} writes{torn}{more}"));
        }
        Ok((!told.is_empty()).then(|| told.join("; ")))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        scene.bring_back(&std::mem::take(&mut self.hit))
    }
}
