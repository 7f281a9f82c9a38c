//! SIGKILL, and a start some time later. What was written stays in the page cache.

use super::{Entry, Nemesis, Scene};
use crate::cluster::place::{self, NodeIndex, names, nodes_of};
use crate::failure::Failure;

enum Whom {
    Node,
    Leader,
    MetadataLeader,
    Datacenter,
    DatacenterAndRack,
    All,
}

struct Kill {
    whom: Whom,
    hit: Vec<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::within("kill", "SIGKILL of a node", || new(Whom::Node)),
        Entry::within("kill-leader", "SIGKILL of a partition's leader", || new(Whom::Leader)),
        Entry::within("kill-metadata", "SIGKILL of the metadata leader", || {
            new(Whom::MetadataLeader)
        }),
        Entry::within("kill-dc", "SIGKILL of a datacenter", || new(Whom::Datacenter)),
        Entry::within("kill-dc-rack", "SIGKILL of a datacenter and a rack elsewhere", || {
            new(Whom::DatacenterAndRack)
        }),
        Entry::beyond("kill-all", "SIGKILL of all nodes at once", || new(Whom::All)),
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
            Whom::All => NodeIndex::all().collect(),
        };
        if matches!(self.whom, Whom::All) {
            scene.claim_anyway(&wanted);
        } else if wanted.is_empty() || !scene.claim(&wanted) {
            return Ok(None);
        }
        scene.cluster.kill(&wanted)?;
        self.hit = wanted;
        Ok(Some(names(&self.hit)))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        scene.bring_back(&std::mem::take(&mut self.hit))
    }
}
