//! Turns applied entries into what one node is to do, in order.
//!
//! A node that restarts has forgotten how far it was in the generations it owned. It acts only on
//! ownership decided *after* its own registration, and has what it owned before decided anew
//! (rules 5, T1): no generation is ever led by two lives of a node.

use meridian_base::id::{NodeId, PartitionId, TopicId};
use meridian_base::topology::GroupConfig;

use crate::command::{ConfigResource, RequestId};
use crate::node::AppliedEntry;
use crate::state::{Change, Metadata, Topic};

/// What a node is to do because of an applied entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// A group has a new configuration.
    Group(GroupConfig),
    /// A node registered, or is gone.
    Node(NodeId),
    /// Partitions have new leaders.
    Ownership {
        /// This node takes them over. Look them up at once: a later entry may change them again.
        owned: Vec<PartitionId>,
        /// This node leads them no longer.
        lost: Vec<PartitionId>,
    },
    /// A topic is gone, and with it its partitions.
    TopicDeleted(Topic),
    /// A topic's configs changed.
    TopicConfigs(TopicId),
    /// A snapshot replaced everything: compare what is held with the metadata.
    Replaced,
    /// This node was removed from the cluster.
    Removed,
}

/// What one process of a node has seen of the log.
#[derive(Clone, Debug)]
pub struct NodeEvents {
    node: NodeId,
    registration: RequestId,
    is_registered: bool,
    owned: Vec<PartitionId>,
    lost: Vec<PartitionId>,
}

impl NodeEvents {
    /// A process of `node` that registers by this request.
    pub fn new(node: NodeId, registration: RequestId) -> Self {
        Self { node, registration, is_registered: false, owned: Vec::new(), lost: Vec::new() }
    }

    /// Adds the ownership gathered so far, so that later events come after it.
    fn flush(&mut self, out: &mut Vec<NodeEvent>) {
        if !self.owned.is_empty() || !self.lost.is_empty() {
            let (owned, lost) = (std::mem::take(&mut self.owned), std::mem::take(&mut self.lost));
            out.push(NodeEvent::Ownership { owned, lost });
        }
    }

    /// Takes entries after which the metadata is as given.
    pub fn on_applied(
        &mut self,
        metadata: &Metadata,
        entries: &[AppliedEntry],
        out: &mut Vec<NodeEvent>,
    ) {
        for entry in entries {
            if entry.request_id == self.registration && entry.result.is_ok() {
                self.is_registered = true;
            }
            for change in &entry.changes {
                self.on_change(metadata, change, out);
            }
        }
        self.flush(out);
    }

    fn on_change(&mut self, metadata: &Metadata, change: &Change, out: &mut Vec<NodeEvent>) {
        match change {
            Change::PartitionCreated(partition) | Change::LeaderAssigned { partition, .. } => {
                let leader = metadata.partition(*partition).map(|it| it.leader);
                if leader != Some(self.node) {
                    self.lost.push(*partition);
                } else if self.is_registered {
                    self.owned.push(*partition);
                }
            }
            Change::Group(group) => {
                self.flush(out);
                out.extend(metadata.group(*group).cloned().map(NodeEvent::Group));
            }
            Change::TopicDeleted(topic) => {
                self.flush(out);
                out.push(NodeEvent::TopicDeleted(topic.clone()));
            }
            Change::Configs(ConfigResource::Topic(topic)) | Change::TopicSetAside(topic) => {
                self.flush(out);
                out.push(NodeEvent::TopicConfigs(*topic));
            }
            // What an earlier life of this node was is nothing to the one that has yet to register.
            Change::NodeRemoved(node) if *node == self.node => {
                if self.is_registered && metadata.node(*node).is_none() {
                    out.push(NodeEvent::Removed);
                }
            }
            Change::Node(node) | Change::NodeRemoved(node) => out.push(NodeEvent::Node(*node)),
            Change::Configs(ConfigResource::Cluster) => {
                self.flush(out);
                out.extend(metadata.topics().map(|topic| NodeEvent::TopicConfigs(topic.id)));
            }
            Change::Cluster
            | Change::TopicCreated(_)
            | Change::Configs(ConfigResource::Node(_) | ConfigResource::Group(_))
            | Change::Row(..) => {}
        }
    }

    /// Takes a state that came as a whole: at a start, or as a snapshot.
    pub fn on_replaced(&mut self, metadata: &Metadata, out: &mut Vec<NodeEvent>) {
        self.is_registered |= metadata.result_of(self.registration).is_some();
        out.extend(metadata.groups().cloned().map(NodeEvent::Group));
        out.extend(metadata.nodes().map(|(node, _)| NodeEvent::Node(node)));
        if self.is_registered {
            let is_there = metadata.node(self.node).is_some();
            out.push(if is_there { NodeEvent::Replaced } else { NodeEvent::Removed });
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::ClusterId;
    use meridian_base::topology::{Datacenter, Geometry, Rack};

    use super::*;
    use crate::command::{
        Command, Endpoint, FeatureLevel, LeaderAssignment, NodeRegistration, Proposal, Roles,
    };
    use meridian_base::position::LeaderEpoch;

    const NODE: NodeId = NodeId::new(2);
    const THIS_LIFE: RequestId = RequestId::new(77);
    const TOPIC: TopicId = TopicId::new(9);
    const PARTITION: PartitionId = PartitionId::new(1);

    struct Bench {
        metadata: Metadata,
        events: NodeEvents,
    }

    impl Bench {
        fn new() -> Self {
            let events = NodeEvents::new(NODE, THIS_LIFE);
            let mut bench = Self { metadata: Metadata::default(), events };
            let cluster_id = ClusterId::from_text("c");
            bench.apply(1, Command::Bootstrap { cluster_id, geometry: Geometry::None });
            bench
        }

        fn apply(&mut self, id: u128, command: Command) -> Vec<NodeEvent> {
            let (index, request_id) = (id as u64, RequestId::new(id));
            let applied = self.metadata.apply(index, &Proposal { request_id, command });
            applied.result.as_ref().expect("not refused");
            let (result, changes) = (applied.result, applied.changes);
            let entry = AppliedEntry { index, request_id, result, changes };
            let mut out = Vec::new();
            self.events.on_applied(&self.metadata, &[entry], &mut out);
            out
        }

        fn register(&mut self, id: u128, node: NodeId) {
            let endpoint = Endpoint { host: "h".to_owned(), port: 1 };
            self.apply(
                id,
                Command::RegisterNode(NodeRegistration {
                    node,
                    datacenter: Datacenter("A".to_owned()),
                    rack: Rack("A1".to_owned()),
                    roles: Roles::ALL,
                    kafka: endpoint.clone(),
                    peer: endpoint.clone(),
                    admin: endpoint,
                    binary_version: String::new(),
                    feature_level_min: FeatureLevel::FIRST,
                    feature_level_max: FeatureLevel::LATEST,
                }),
            );
        }

        fn mount_and_create(&mut self) -> Vec<NodeEvent> {
            let mount = Command::MountDisk {
                node: NODE,
                incarnation: meridian_base::id::Incarnation::new(0),
                mount_epoch: crate::command::MountEpoch::new(1),
                found_data: false,
            };
            self.apply(10, mount);
            let create = Command::CreateTopic {
                topic: TOPIC,
                name: "t".to_owned(),
                leaders: vec![NODE],
                configs: Vec::new(),
                internal: false,
            };
            self.apply(11, create)
        }

        fn assign(&mut self, id: u128, leader: NodeId) -> Vec<NodeEvent> {
            let expected = self.metadata.partition(PARTITION).expect("created").generation;
            let (partition, epoch_floor) = (PARTITION, LeaderEpoch::UNKNOWN);
            let assignment = LeaderAssignment { partition, expected, leader, epoch_floor };
            self.apply(id, Command::AssignLeaders(vec![assignment]))
        }
    }

    fn owned() -> NodeEvent {
        NodeEvent::Ownership { owned: vec![PARTITION], lost: Vec::new() }
    }

    fn lost() -> NodeEvent {
        NodeEvent::Ownership { owned: Vec::new(), lost: vec![PARTITION] }
    }

    #[test]
    fn a_process_acts_on_nothing_that_was_decided_before_it_registered() {
        let mut bench = Bench::new();
        bench.register(2, NODE);
        assert_eq!(bench.mount_and_create(), [], "of an earlier life of the node");
        bench.register(THIS_LIFE.get(), NODE);
        assert_eq!(bench.assign(78, NODE), [owned()]);
        bench.register(79, NodeId::new(3));
        assert_eq!(bench.assign(80, NodeId::new(3)), [lost()]);
    }

    #[test]
    fn what_is_deleted_comes_after_what_was_owned() {
        let mut bench = Bench::new();
        bench.register(THIS_LIFE.get(), NODE);
        assert_eq!(bench.mount_and_create(), [owned()]);
        let deleted = bench.apply(79, Command::DeleteTopic { topic: TOPIC });
        assert!(matches!(&deleted[..], [NodeEvent::TopicDeleted(topic)] if topic.id == TOPIC));
    }
}
