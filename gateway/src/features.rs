//! Whether all nodes know a feature, and have agreed to use it: what a node does not know it could not read.

use meridian_base::id::NodeId;
use meridian_consensus::command::{Command, FeatureLevel};
use meridian_consensus::state::Metadata;

use crate::broker::Broker;
use crate::meta::ProposeError;

/// How far the nodes are with the features of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The cluster has agreed on it: no node that does not know them is let in any more.
    Agreed,
    /// All nodes know them, and have yet to agree.
    ByAll,
    /// This node does not.
    NotBy(NodeId),
}

impl Known {
    fn to(metadata: &Metadata, level: FeatureLevel) -> Self {
        if metadata.feature_level() >= level {
            return Self::Agreed;
        }
        let mut nodes = metadata.nodes();
        match nodes.find(|(_, it)| it.registration.feature_level_max < level) {
            Some((node, _)) => Self::NotBy(node),
            None => Self::ByAll,
        }
    }
}

/// Whether every node knows the features of a level.
pub(crate) fn is_known_by_all(metadata: &Metadata, level: FeatureLevel) -> bool {
    !matches!(Known::to(metadata, level), Known::NotBy(_))
}

/// Why a feature can't be used yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAgreed {
    /// A node's binary does not know it.
    #[error(
        "node {node} does not know this yet (feature level {}): give it this binary, or remove it, first",
        .level.get()
    )]
    NotBy {
        /// The node.
        node: NodeId,
        /// The level that it does not know.
        level: FeatureLevel,
    },
    /// All know it, and there was no decision.
    #[error(transparent)]
    Undecided(#[from] ProposeError),
}

/// Has the cluster agree on a level, if all nodes know it: from then on none that does not is let in.
pub(crate) async fn agree(broker: &dyn Broker, level: FeatureLevel) -> Result<(), NotAgreed> {
    let known = Known::to(&broker.metadata(), level);
    match known {
        Known::Agreed => Ok(()),
        Known::ByAll => Ok(broker.propose(Command::SetFeatureLevel(level)).await.map(drop)?),
        Known::NotBy(node) => Err(NotAgreed::NotBy { node, level }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::testing::FakeBroker;

    #[tokio::test]
    async fn a_feature_waits_until_every_node_knows_it() {
        let level = FeatureLevel::OBJECTS;
        let broker = FakeBroker::three_datacenters();
        for (node, level) in
            [(1, FeatureLevel::LATEST), (2, FeatureLevel::LATEST), (3, FeatureLevel::STRIPES)]
        {
            broker.register(node, level).unwrap();
        }
        let refused = agree(&*broker, level).await.unwrap_err().to_string();
        assert!(
            refused.starts_with("node 3 does not know this yet (feature level 3)"),
            "{refused}"
        );
        assert!(broker.state().feature_level() < level);
        broker.register(3, FeatureLevel::LATEST).unwrap();
        agree(&*broker, level).await.expect("all know it");
        assert_eq!(broker.state().feature_level(), level);
        assert!(broker.register(4, FeatureLevel::FIRST).is_err(), "it comes too late");
        agree(&*broker, level).await.expect("agreed");
    }
}
