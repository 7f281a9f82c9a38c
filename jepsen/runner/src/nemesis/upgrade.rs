//! Nodes of two versions side by side: each begin moves a node to the other binary, each end back.

use super::{Entry, Needs, Nemesis, Scene};
use crate::cluster::place::NodeIndex;
use crate::failure::Failure;

struct Upgrade {
    moved: Option<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    let about = "a node is restarted with the other binary, and later back";
    let entry = Entry::within("upgrade", about, || Box::new(Upgrade { moved: None }));
    vec![entry.needing(Needs::OtherBinary)]
}

impl Nemesis for Upgrade {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(node) = scene.claim_one() else { return Ok(None) };
        scene.cluster.stop(&[node])?;
        scene.cluster.use_other_binary(node, true);
        scene.bring_back(&[node])?;
        self.moved = Some(node);
        Ok(Some(node.rack_name()))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.moved.take() else { return Ok(()) };
        scene.cluster.stop(&[node])?;
        scene.cluster.use_other_binary(node, false);
        scene.cluster.start(&[node])
    }
}
