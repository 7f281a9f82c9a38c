//! The coordinator of the group under test is killed: in the middle of joins and commits.

use meridian_protocol::messages::FindCoordinatorRequest;

use super::{Entry, Needs, Nemesis, Scene, Scope};
use crate::cluster::place::NodeIndex;
use crate::failure::Failure;
use crate::workload::GROUP;

struct Coordinator {
    hit: Vec<NodeIndex>,
}

pub(super) fn entries() -> Vec<Entry> {
    vec![Entry {
        name: "coordinator",
        about: "SIGKILL of the group's coordinator",
        scope: Scope::Within,
        needs: Needs::Nothing,
        make: || Box::new(Coordinator { hit: Vec::new() }),
    }]
}

impl Nemesis for Coordinator {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let mut client = scene.cluster.client(0);
        let address = client.coordinator(GROUP, FindCoordinatorRequest::KEY_TYPE_GROUP).ok();
        let node = address.and_then(|address| scene.cluster.node_at(address));
        let Some(node) = node.filter(|node| scene.claim(&[*node])) else { return Ok(None) };
        self.hit = vec![node];
        scene.cluster.kill(&self.hit)?;
        Ok(Some(node.rack_name()))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        scene.bring_back(&std::mem::take(&mut self.hit))
    }
}
