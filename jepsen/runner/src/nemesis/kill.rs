//! SIGKILL, and a start some time later. What was written stays in the page cache.

use std::time::Duration;

use super::{Entry, Nemesis, Scene};
use crate::clock;
use crate::cluster::place::{self, NodeIndex, names, nodes_of};
use crate::failure::Failure;

enum Whom {
    Node,
    Leader,
    MetadataLeader,
    Datacenter,
    DatacenterAndRack,
    /// One in each datacenter.
    Racks,
    All,
}

/// For the cluster to say that it does not serve.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// For it to go on when the first of three racks is back.
const GOES_ON_WITHIN: Duration = Duration::from_secs(30);

struct Kill {
    whom: Whom,
    hit: Vec<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    let racks = "SIGKILL of a rack in each datacenter; one comes back before the others";
    vec![
        Entry::within("kill", "SIGKILL of a node", || new(Whom::Node)).back_within_s(5),
        Entry::within("kill-leader", "SIGKILL of a partition's leader", || new(Whom::Leader))
            .back_within_s(5),
        Entry::within("kill-metadata", "SIGKILL of the metadata leader", || {
            new(Whom::MetadataLeader)
        })
        .back_within_s(5),
        Entry::within("kill-dc", "SIGKILL of a datacenter", || new(Whom::Datacenter))
            .back_within_s(10),
        Entry::within("kill-dc-rack", "SIGKILL of a datacenter and a rack elsewhere", || {
            new(Whom::DatacenterAndRack)
        })
        .back_within_s(10),
        Entry::beyond("kill-racks", racks, || new(Whom::Racks)),
        Entry::beyond("kill-all", "SIGKILL of all nodes at once", || new(Whom::All))
            .back_within_s(30),
    ]
}

fn new(whom: Whom) -> Box<dyn Nemesis> {
    Box::new(Kill { whom, hit: Vec::new() })
}

/// A datacenter and a rack of another.
pub(super) fn datacenter_and_rack(scene: &mut Scene<'_>) -> Vec<NodeIndex> {
    let datacenter = scene.chance.below(place::DATACENTER_COUNT);
    let mut hit = nodes_of(datacenter);
    let others: Vec<NodeIndex> =
        NodeIndex::all().filter(|node| node.datacenter() != datacenter).collect();
    hit.extend(scene.chance.pick(&others));
    hit
}

/// Whether some node says that the cluster does not serve: who loses its leader gets no other.
fn says_that_it_stopped(scene: &Scene<'_>) -> bool {
    let mut client = scene.cluster.client(0);
    let told = clock::until(TOLD_WITHIN, || {
        let status = scene.cluster.status(&mut client)?;
        status.has_stopped().then_some(())
    });
    told.is_some()
}

impl Nemesis for Kill {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let wanted = match self.whom {
            Whom::Node => {
                self.hit = scene.claim_one().into_iter().collect();
                scene.cluster.kill(&self.hit)?;
                return Ok(self.hit.first().map(|node| node.rack_name()));
            }
            Whom::Leader => scene.some_leader().into_iter().collect(),
            Whom::MetadataLeader => scene.metadata_leader().into_iter().collect(),
            Whom::Datacenter => nodes_of(scene.chance.below(place::DATACENTER_COUNT)),
            Whom::DatacenterAndRack => datacenter_and_rack(scene),
            Whom::Racks => (0..place::DATACENTER_COUNT)
                .filter_map(|datacenter| scene.chance.pick(&nodes_of(datacenter)))
                .collect(),
            Whom::All => NodeIndex::all().collect(),
        };
        if matches!(self.whom, Whom::All | Whom::Racks) {
            scene.claim_anyway(&wanted);
        } else if wanted.is_empty() || !scene.claim(&wanted) {
            return Ok(None);
        }
        scene.cluster.kill(&wanted)?;
        self.hit = wanted;
        Ok(Some(names(&self.hit)))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        if matches!(self.whom, Whom::Racks) {
            let what = format!("it says that it does not serve without {}", names(&self.hit));
            scene.demand(&what, says_that_it_stopped(scene));
            let first = self.hit.swap_remove(scene.chance.below(self.hit.len()));
            scene.bring_back(&[first])?;
            let what =
                format!("it goes on with {} back, without {}", first.rack_name(), names(&self.hit));
            scene.demand(&what, scene.all_led_within(GOES_ON_WITHIN));
        }
        scene.bring_back(&std::mem::take(&mut self.hit))
    }
}
