//! Turns applied entries into what the node is to do, in order.
//!
//! A node that restarts has forgotten how far it was in the generations it owned. It acts only on
//! ownership decided *after* its own registration, and has what it owned before decided anew
//! (rules 5, T1): no generation is ever led by two lives of a node.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use meridian_base::id::{NodeId, PartitionId, TopicId};
use meridian_base::topology::GroupConfig;
use meridian_consensus::command::{ConfigResource, RequestId};
use meridian_consensus::node::AppliedEntry;
use meridian_consensus::state::{Change, Metadata};
use meridian_storage::hot::Layout;
use tokio::sync::mpsc::UnboundedSender;

use super::{MetaListener, lock};
use crate::kafka::{DEDUP, DEDUP_SOURCE};
use crate::log::Ownership;
use crate::storage_class::{self, STORAGE_CLASS, STORAGE_CLASS_DEFAULT};

/// Topic config: datacenters a record must be in before it is acknowledged.
pub(crate) const MIN_INSYNC_DATACENTERS: &str = "min.insync.datacenters";

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
    /// The member failed.
    Fatal(String),
}

/// Sends [`MetaEvent`]s to the node.
pub(crate) struct EventSender {
    node: NodeId,
    /// The registration of this life of the node.
    registration: RequestId,
    is_registered: AtomicBool,
    events: Mutex<UnboundedSender<MetaEvent>>,
}

impl EventSender {
    pub(crate) fn new(
        node: NodeId,
        registration: RequestId,
        events: UnboundedSender<MetaEvent>,
    ) -> Self {
        Self {
            node,
            registration,
            is_registered: AtomicBool::new(false),
            events: Mutex::new(events),
        }
    }

    fn send(&self, event: MetaEvent) {
        let _node_is_gone = lock(&self.events).send(event);
    }

    /// Sends the ownership gathered so far, so that later events come after it.
    fn flush(&self, owned: &mut Vec<Ownership>, lost: &mut Vec<PartitionId>) {
        if !owned.is_empty() || !lost.is_empty() {
            let (owned, lost) = (std::mem::take(owned), std::mem::take(lost));
            self.send(MetaEvent::Ownership { owned, lost });
        }
    }
}

impl MetaListener for EventSender {
    fn on_applied(&self, metadata: &Metadata, entries: &[AppliedEntry]) {
        let (mut owned, mut lost) = (Vec::new(), Vec::new());
        for entry in entries {
            if entry.request_id == self.registration && entry.result.is_ok() {
                self.is_registered.store(true, Ordering::Relaxed);
            }
            let is_registered = self.is_registered.load(Ordering::Relaxed);
            for change in &entry.changes {
                match change {
                    Change::PartitionCreated(partition)
                    | Change::LeaderAssigned { partition, .. } => {
                        match ownership_of(metadata, *partition) {
                            Some((owner, ownership)) if owner == self.node => {
                                if is_registered {
                                    owned.push(ownership);
                                }
                            }
                            _ => lost.push(*partition),
                        }
                    }
                    Change::Group(group) => {
                        self.flush(&mut owned, &mut lost);
                        if let Some(config) = metadata.group(*group) {
                            self.send(MetaEvent::Group(config.clone()));
                        }
                    }
                    Change::TopicDeleted(topic) => {
                        self.flush(&mut owned, &mut lost);
                        self.send(MetaEvent::Forget(topic.partitions.clone()));
                    }
                    Change::Configs(ConfigResource::Topic(topic))
                    | Change::TopicSetAside(topic) => {
                        self.flush(&mut owned, &mut lost);
                        self.send(MetaEvent::TopicConfigs(*topic));
                    }
                    Change::Node(node) | Change::NodeRemoved(node) => {
                        self.send(MetaEvent::Node(*node));
                    }
                    Change::Configs(ConfigResource::Cluster) => {
                        self.flush(&mut owned, &mut lost);
                        for topic in metadata.topics() {
                            self.send(MetaEvent::TopicConfigs(topic.id));
                        }
                    }
                    Change::Cluster
                    | Change::TopicCreated(_)
                    | Change::Configs(ConfigResource::Node(_))
                    | Change::Row(..) => {}
                }
            }
        }
        self.flush(&mut owned, &mut lost);
    }

    fn on_replaced(&self, metadata: &Metadata) {
        if metadata.result_of(self.registration).is_some() {
            self.is_registered.store(true, Ordering::Relaxed);
        }
        for config in metadata.groups() {
            self.send(MetaEvent::Group(config.clone()));
        }
        for (node, _) in metadata.nodes() {
            self.send(MetaEvent::Node(node));
        }
        if self.is_registered.load(Ordering::Relaxed) {
            self.send(MetaEvent::Replaced);
        }
    }

    fn on_fatal(&self, reason: String) {
        self.send(MetaEvent::Fatal(reason));
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
        datacenter_count_min: datacenter_count_min(metadata, found.topic),
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

/// The topic's `min.insync.datacenters`; 1 asks for no more than the quorum.
pub(crate) fn datacenter_count_min(metadata: &Metadata, topic: TopicId) -> usize {
    metadata
        .config(&ConfigResource::Topic(topic), MIN_INSYNC_DATACENTERS)
        .or_else(|| metadata.config(&ConfigResource::Cluster, MIN_INSYNC_DATACENTERS))
        .and_then(|value| value.parse().ok())
        .unwrap_or(1)
}
