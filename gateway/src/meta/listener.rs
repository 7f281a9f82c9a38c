//! Sends the node what applied entries ask of it, in order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use meridian_base::id::{NodeId, PartitionId, TopicId};
use meridian_base::sync::lock;
use meridian_base::topology::GroupConfig;
use meridian_consensus::command::{ConfigResource, RequestId};
use meridian_consensus::events::{NodeEvent, NodeEvents};
use meridian_consensus::node::AppliedEntry;
use meridian_consensus::state::Metadata;
use meridian_storage::hot::Layout;

use super::events::Events;
use super::{Deleted, MetaListener};
use crate::log::Ownership;
use crate::topic_config::storage_class::{self, STORAGE_CLASS, STORAGE_CLASS_DEFAULT};
use crate::topic_config::{DEDUP, DEDUP_SOURCE};

/// What the node is to do because of an applied entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetaEvent {
    /// A group has a new configuration.
    Group(GroupConfig),
    /// A node registered, or is gone.
    Node(NodeId),
    /// These partitions are this node's to take over; these are no longer.
    Ownership { owned: Vec<Ownership>, lost: Vec<PartitionId> },
    /// These partitions are gone with their topic.
    Forget(Vec<PartitionId>),
    /// A topic's configs changed.
    TopicConfigs(TopicId),
    /// A snapshot replaced everything: compare what is held with the metadata.
    Replaced,
    /// This node was removed from the cluster.
    Removed,
    /// The member failed.
    Fatal(String),
}

/// Sends [`MetaEvent`]s to the node.
pub(crate) struct EventSender {
    /// What this process has seen of the log.
    seen: Mutex<NodeEvents>,
    events: Arc<Events>,
    deleted: Arc<Deleted>,
    /// The node was too far behind, and is to go by the metadata as it is.
    is_behind: AtomicBool,
}

impl EventSender {
    pub(crate) fn new(node: NodeId, registration: RequestId, events: Arc<Events>) -> Self {
        Self {
            seen: Mutex::new(NodeEvents::new(node, registration)),
            events,
            deleted: Arc::default(),
            is_behind: AtomicBool::new(false),
        }
    }

    /// Topics that were deleted a moment ago.
    pub(crate) fn deleted(&self) -> Arc<Deleted> {
        Arc::clone(&self.deleted)
    }

    fn send(&self, event: MetaEvent) {
        if !self.events.push(event) {
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }

    fn send_all(&self, metadata: &Metadata, events: Vec<NodeEvent>) {
        for event in events {
            self.send(match event {
                NodeEvent::Group(config) => MetaEvent::Group(config),
                NodeEvent::Node(node) => MetaEvent::Node(node),
                NodeEvent::Ownership { owned, lost } => {
                    let owned = owned.into_iter().filter_map(|it| ownership_of(metadata, it));
                    let owned = owned.map(|(_, ownership)| ownership).collect();
                    MetaEvent::Ownership { owned, lost }
                }
                NodeEvent::TopicDeleted(topic) => {
                    self.deleted.note(&topic.name);
                    MetaEvent::Forget(topic.partitions)
                }
                NodeEvent::TopicConfigs(topic) => MetaEvent::TopicConfigs(topic),
                NodeEvent::Replaced => MetaEvent::Replaced,
                NodeEvent::Removed => MetaEvent::Removed,
            });
        }
    }
}

impl MetaListener for EventSender {
    fn on_applied(&self, metadata: &Metadata, entries: &[AppliedEntry]) {
        let mut events = Vec::new();
        lock(&self.seen).on_applied(metadata, entries, &mut events);
        self.send_all(metadata, events);
        if self.is_behind.swap(false, Ordering::Relaxed) {
            tracing::warn!("this node is behind with what the metadata asks of it, and catches up");
            self.on_replaced(metadata);
        }
    }

    fn on_replaced(&self, metadata: &Metadata) {
        let mut events = Vec::new();
        lock(&self.seen).on_replaced(metadata, &mut events);
        self.send_all(metadata, events);
    }

    fn on_fatal(&self, reason: String) {
        self.send(MetaEvent::Fatal(reason));
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.events.close();
    }
}

/// Who owns a partition, and what its owner needs to know.
pub(crate) fn ownership_of(
    metadata: &Metadata,
    partition: PartitionId,
) -> Option<(NodeId, Ownership)> {
    let found = metadata.partition(partition)?;
    let ownership = Ownership {
        partition,
        group: found.group,
        homes: Arc::from(metadata.homes(partition)),
        generation: found.generation,
        leader_epoch: found.leader_epoch,
        datacenter_count_min: metadata.datacenter_count_min(found.topic),
        dedups_sources: dedups_sources(metadata, found.topic),
        layout: layout_of(metadata, found.topic),
    };
    Some((found.leader, ownership))
}

/// Whether the topic's `meridian.dedup` is `source`.
pub(crate) fn dedups_sources(metadata: &Metadata, topic: TopicId) -> bool {
    metadata.config(&ConfigResource::Topic(topic), DEDUP) == Some(DEDUP_SOURCE)
}

/// How the topic's records are put, by its `meridian.storage.class`.
pub(crate) fn layout_of(metadata: &Metadata, topic: TopicId) -> Layout {
    let class = metadata.config(&ConfigResource::Topic(topic), STORAGE_CLASS);
    storage_class::layout(class.unwrap_or(STORAGE_CLASS_DEFAULT))
}

/// Whether the topic's `cleanup.policy` has `compact` in it.
pub(crate) fn is_compacted(metadata: &Metadata, topic: TopicId) -> bool {
    let policy = metadata.topic_config(topic, "cleanup.policy");
    policy.is_some_and(|policy| policy.split(',').any(|policy| policy.trim() == "compact"))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use meridian_base::id::ClusterId;
    use meridian_base::topology::Geometry;
    use meridian_consensus::command::{Command, FeatureLevel, Proposal};
    use meridian_consensus::state::Change;

    use super::*;
    use crate::kafka::testing::{FakeBroker, registration};

    #[tokio::test]
    async fn a_node_that_is_behind_goes_by_the_metadata_as_it_is() {
        let broker = FakeBroker::three_datacenters();
        let registration = RequestId::new(7);
        let events = Arc::new(Events::default());
        let sender = EventSender::new(NodeId::new(1), registration, Arc::clone(&events));
        let entry = |changes| AppliedEntry {
            index: 1,
            request_id: registration,
            result: Ok(meridian_consensus::state::Decision::Done),
            changes,
        };
        broker.decide(Command::CreateTopic {
            topic: TopicId::new(9),
            name: "t".to_owned(),
            leaders: vec![NodeId::new(1)],
            configs: Vec::new(),
            internal: false,
        });
        let configs = vec![Change::Configs(ConfigResource::Topic(TopicId::new(9)))];
        for _ in 0..25_000 {
            sender.on_applied(&broker.state(), &[entry(configs.clone())]);
        }
        drop(sender);
        let mut told = Vec::new();
        while let Some(event) = events.next().await {
            told.push(event);
        }
        assert!(told.len() <= 10_000, "{}", told.len());
        assert!(told.contains(&MetaEvent::Replaced), "it catches up");
    }

    const NODE: NodeId = NodeId::new(2);
    const THIS_LIFE: RequestId = RequestId::new(77);

    /// Applies a command, and has the listener hear of it.
    fn apply(metadata: &mut Metadata, listener: &EventSender, id: u128, command: Command) {
        let (index, request_id) = (id as u64, RequestId::new(id));
        let applied = metadata.apply(index, &Proposal { request_id, command });
        applied.result.as_ref().expect("not refused");
        let (result, changes) = (applied.result, applied.changes);
        listener.on_applied(metadata, &[AppliedEntry { index, request_id, result, changes }]);
    }

    /// Whether the node is to end, after what has come so far.
    fn is_ended(events: &Events) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let next = || match pin!(events.next()).poll(&mut context) {
            Poll::Ready(event) => event,
            Poll::Pending => None,
        };
        let events: Vec<MetaEvent> = std::iter::from_fn(next).collect();
        events.contains(&MetaEvent::Removed)
    }

    fn register() -> Command {
        Command::RegisterNode(registration(2, None, FeatureLevel::LATEST))
    }

    #[test]
    fn a_node_that_is_removed_ends_and_one_that_joins_anew_does_not() {
        let events = Arc::new(Events::default());
        let listener = EventSender::new(NODE, THIS_LIFE, Arc::clone(&events));
        let mut metadata = Metadata::default();
        let cluster_id = ClusterId::from_text("c");
        let bootstrap = Command::Bootstrap { cluster_id, geometry: Geometry::OnePerDc };
        apply(&mut metadata, &listener, 1, bootstrap);
        // In an earlier life, of which it reads in the log.
        apply(&mut metadata, &listener, 2, register());
        apply(&mut metadata, &listener, 3, Command::RemoveNode { node: NODE });
        assert!(!is_ended(&events));
        apply(&mut metadata, &listener, THIS_LIFE.get(), register());
        assert!(!is_ended(&events));
        listener.on_replaced(&metadata);
        assert!(!is_ended(&events));
        apply(&mut metadata, &listener, 78, Command::RemoveNode { node: NODE });
        assert!(is_ended(&events));
        listener.on_replaced(&metadata);
        assert!(is_ended(&events), "a snapshot hid it");
    }
}
