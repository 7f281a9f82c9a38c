//! A rolling restart: one node after the other is ended in good order and started again.

use super::{Entry, Nemesis, Scene};
use crate::cluster::place::NodeIndex;
use crate::failure::Failure;

struct Rolling {
    hit: Vec<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    let about = "SIGTERM and start of one node after the other";
    vec![Entry::within("rolling", about, || Box::new(Rolling { hit: Vec::new() }))]
}

impl Nemesis for Rolling {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(node) = scene.claim_next() else { return Ok(None) };
        self.hit = vec![node];
        scene.cluster.stop(&self.hit)?;
        Ok(Some(node.rack_name()))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        scene.bring_back(&std::mem::take(&mut self.hit))
    }
}
