//! What the cluster says of itself.

use serde_json::Value;

use super::place::{NODE_COUNT, NodeIndex};

/// An answer to `cluster.status`.
#[derive(Clone, Debug)]
pub(crate) struct Status(pub(crate) Value);

impl Status {
    /// Whether all nodes are there and all slots good: it tolerates what it was built for.
    pub(crate) fn is_whole(&self) -> bool {
        let nodes = self.0["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        // A spare holds no slot.
        let good_count = nodes.iter().filter(|it| it["slot_state"] == "good").count();
        self.0["tolerates"] == "DC + rack"
            && good_count == NODE_COUNT
            && nodes.iter().all(|it| it["liveness"] == "alive")
            && self.0["partitions"]["leaderless"] == 0
    }

    fn of(&self, node: NodeIndex) -> Option<&Value> {
        let is_it = |it: &&Value| it["id"].as_u64() == u64::try_from(node.id()).ok();
        self.0["nodes"].as_array()?.iter().find(is_it)
    }

    pub(crate) fn is_alive(&self, node: NodeIndex) -> bool {
        self.of(node).is_some_and(|it| it["liveness"] == "alive")
    }

    /// Whether a node is there, with a good disk.
    pub(crate) fn is_good(&self, node: NodeIndex) -> bool {
        self.is_alive(node) && self.of(node).is_some_and(|it| it["slot_state"] == "good")
    }

    /// Whether it says that not enough slots are left for a new leader.
    pub(crate) fn has_stopped(&self) -> bool {
        self.0["tolerates"] == "not serving"
    }

    /// The node that leads the metadata.
    pub(crate) fn metadata_leader(&self) -> Option<NodeIndex> {
        self.0["raft"]["leader"].as_i64().and_then(NodeIndex::of_id)
    }

    /// In one line, what is not as it should be.
    pub(crate) fn complaint(&self) -> String {
        let nodes = self.0["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        let ill = nodes
            .iter()
            .filter(|it| it["liveness"] != "alive" || it["slot_state"] != "good")
            .map(|it| format!("{} {}/{}", it["rack"], it["liveness"], it["slot_state"]));
        format!(
            "tolerates {}, {} nodes, leaderless partitions {}; {}",
            self.0["tolerates"],
            nodes.len(),
            self.0["partitions"]["leaderless"],
            ill.collect::<Vec<_>>().join(", ")
        )
    }
}
