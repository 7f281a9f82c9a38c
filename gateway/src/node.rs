//! One node: what it does when the metadata log has decided something, and by itself.

mod chores;
mod cold;
mod compaction;
mod copies;
mod disks;
mod expiry;
mod health;
mod lifecycle;
mod object_owner;
mod peer_names;
mod reclaim;
mod reload;
mod sources;
mod status;
mod sweep;
mod switch;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use meridian_base::id::{Incarnation, NodeId, PartitionId, TopicId};
use meridian_base::topology::{Datacenter, SlotState};
use meridian_consensus::command::{Command, MountEpoch, NodeEpoch};
use meridian_consensus::placement::plan_reclaim;
use meridian_consensus::state::{Decision, MountedAs};
use tokio::sync::watch;

pub(crate) use self::chores::run_events;
use self::compaction::CompactionCounters;
pub(crate) use self::compaction::CompactionCounts;
use self::health::Health;
pub(crate) use self::health::Known;
use self::peer_names::PeerNames;
pub(crate) use self::peer_names::run_names;
pub(crate) use self::reload::{keep_issuer_current, keep_listener_current, peer_trust};
pub(crate) use self::switch::Switch;
use crate::broker::Broker;
use crate::config::NodeConfig;
use crate::context::{NodeContext, OwnFindings};
use crate::kafka::LinkUses;
use crate::log::StoreListener;
use crate::meta::{MetaEvent, ProposeError, ownership_of};
use crate::mirror::Mirrors;
use crate::peers::Wire;
use crate::runtime::quic::PathClass;

/// A node, with all its parts.
pub(crate) struct Node {
    pub(crate) context: Arc<NodeContext>,
    pub(crate) switch: Arc<Switch>,
    pub(crate) mirrors: Arc<Mirrors>,
    pub(crate) compaction: CompactionCounters,
    pub(crate) health: Health,
    pub(crate) link_uses: Arc<LinkUses>,
    names: PeerNames,
    /// Why the node must stop, once it must.
    fatal: watch::Sender<Option<String>>,
    sync_reported: AtomicBool,
    /// What the disk was found to be when it was mounted.
    mounted_as: OnceLock<MountedAs>,
    /// The registration of this process.
    registered_as: OnceLock<NodeEpoch>,
}

impl Node {
    /// One that has not joined yet.
    pub(crate) fn new(context: Arc<NodeContext>, switch: Arc<Switch>) -> Self {
        let (fatal, _) = watch::channel(None);
        Self {
            mirrors: Arc::new(Mirrors::new(Arc::clone(&context))),
            context,
            switch,
            compaction: CompactionCounters::default(),
            health: Health::default(),
            link_uses: Arc::default(),
            names: PeerNames::default(),
            fatal,
            sync_reported: AtomicBool::new(false),
            mounted_as: OnceLock::new(),
            registered_as: OnceLock::new(),
        }
    }

    /// Has frames of other nodes come to this one, and its findings be heard by them.
    pub(crate) fn connect(self: &Arc<Self>) {
        self.switch.connect(self);
        self.context.show(Arc::downgrade(self) as Weak<dyn OwnFindings>);
    }

    /// Waits until the node must stop by itself; returns why.
    pub(crate) async fn failed(&self) -> String {
        let mut fatal = self.fatal.subscribe();
        match fatal.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "the node is gone".to_owned(),
        }
    }

    pub(crate) fn on_registered(&self, epoch: NodeEpoch) {
        let _set_once_at_start = self.registered_as.set(epoch);
        self.check_registration(self.config.node);
    }
}

impl Deref for Node {
    type Target = NodeContext;

    fn deref(&self) -> &NodeContext {
        &self.context
    }
}

impl OwnFindings for Node {
    fn own_findings(&self) -> bytes::Bytes {
        Self::own_findings(self)
    }
}

/// Starts what a node does by itself once it has joined.
pub(crate) fn spawn_chores(node: &Arc<Node>) {
    let wire = Arc::clone(&node.switch) as Arc<dyn Wire>;
    let broker = Arc::clone(&node.context) as Arc<dyn Broker>;
    tokio::spawn(Arc::clone(&node.time).run(broker, wire));
    tokio::spawn(chores::run_retention(Arc::clone(node)));
    tokio::spawn(cold::run_cold(Arc::clone(node)));
    tokio::spawn(copies::run_copies(Arc::clone(node)));
    tokio::spawn(object_owner::run_claim(Arc::clone(node)));
    tokio::spawn(sweep::run_object_sweep(Arc::clone(node)));
    tokio::spawn(sweep::run_disk_sweep(Arc::clone(node)));
    tokio::spawn(expiry::run_expiry(Arc::clone(node)));
    tokio::spawn(compaction::run_compaction(Arc::clone(node)));
    tokio::spawn(health::run_health(Arc::clone(node)));
    tokio::spawn(health::run_room(Arc::clone(node)));
    tokio::spawn(Arc::clone(&node.mirrors).run());
}

pub(crate) fn path_to(config: &NodeConfig, datacenter: &Datacenter) -> PathClass {
    if *datacenter == config.datacenter {
        PathClass::SameDatacenter
    } else {
        PathClass::CrossDatacenter
    }
}

impl Node {
    /// Tells the cluster what the disk is, and the disk which life it is in (rules S4, 12).
    pub(crate) async fn mount(&self) -> Result<(), ProposeError> {
        let Some(store) = self.logs.store() else { return Ok(()) };
        let identity = store.identity();
        let mount_epoch = MountEpoch::new(identity.mount_epoch);
        let found =
            self.meta.metadata().judge_mount(self.config.node, identity.incarnation, mount_epoch);
        let _set_once_at_start = self.mounted_as.set(found);
        let command = Command::MountDisk {
            node: self.config.node,
            incarnation: identity.incarnation,
            mount_epoch,
            found_data: true,
        };
        if let Decision::Mounted { incarnation, state, .. } =
            self.meta.propose_patiently(command).await?
        {
            if state == SlotState::LostData {
                tracing::warn!(
                    ?found,
                    ?incarnation,
                    "the disk lost its data, or was never filled: it counts for nothing until it is filled from \
                     its peers"
                );
            } else {
                tracing::info!(?found, ?incarnation, ?state, "disk mounted");
            }
            store.confirm_mount(incarnation);
            self.begin_life();
        }
        Ok(())
    }

    /// Has the disk take on the life that it was given with its slot. What is asked for before the mount is
    /// confirmed is asked for again then.
    fn begin_life(&self) {
        let known = self.meta.metadata().disk(self.config.node);
        if let (Some(store), Some(known)) = (self.logs.store(), known) {
            store.begin_life(known);
        }
    }

    /// Why the node must stop, if it must.
    pub(crate) fn failure(&self) -> Option<String> {
        self.fatal.borrow().clone()
    }

    pub(crate) fn fail(&self, reason: String) {
        tracing::error!(%reason, "the node must stop");
        self.fatal.send_replace(Some(reason));
    }

    /// Does what an applied entry asks of this node.
    pub(crate) fn on_event(self: &Arc<Self>, event: MetaEvent) {
        match event {
            MetaEvent::Group(config) => {
                self.begin_life();
                self.logs.on_group(config);
            }
            MetaEvent::Ownership { owned, lost } => self.logs.on_ownership(owned, &lost),
            MetaEvent::Forget(partitions) => {
                self.logs.on_ownership(Vec::new(), &partitions);
                for partition in partitions {
                    self.logs.forget(partition);
                }
            }
            MetaEvent::Node(node) => {
                self.check_registration(node);
                self.on_node(node);
            }
            MetaEvent::TopicConfigs(topic) => self.on_topic_configs(topic),
            MetaEvent::Replaced => self.on_replaced(),
            MetaEvent::Removed => self.fail(
                "this node was removed from the cluster (`meridian node decommission`), and ends; without what is in \
                 node.data it would join as a new node"
                    .to_owned(),
            ),
            MetaEvent::Fatal(reason) => self.fail(reason),
        }
    }

    /// Stops this process if another has registered as the same node since: one of a copied folder, or with this
    /// node's id in its configuration. Both would lead and store what only one may.
    pub(crate) fn check_registration(&self, node: NodeId) {
        let Some(own) = self.registered_as.get().filter(|_| node == self.config.node) else {
            return;
        };
        let newer = {
            let metadata = self.meta.metadata();
            let known = metadata.node(node).filter(|known| known.epoch > *own);
            known.map(|known| known.registration.kafka.to_string())
        };
        if let Some(kafka) = newer {
            self.fail(format!(
                "another process has registered as node {node}, and serves Kafka clients on {kafka}: two processes with \
                 one node.id, or a copy of its folder; stop the one that is not to be"
            ));
        }
    }

    /// Learns where a node that is not in the static configuration, or has moved, can be reached.
    fn on_node(&self, node: NodeId) {
        let found = self.meta.metadata().node(node).map(|node| node.registration.clone());
        match found {
            Some(registration) if node != self.config.node => {
                let path = path_to(&self.config, &registration.datacenter);
                self.reach(node, registration.peer, path);
            }
            Some(_) => {}
            // A voter that has left and comes as a new node asks the others what it is, before it is
            // registered: they must be able to answer.
            None => match self.config.peers().find(|member| member.node == node) {
                Some(member) => {
                    let path = path_to(&self.config, &member.datacenter);
                    self.reach(node, member.peer.clone(), path);
                }
                None => {
                    self.names.remove(node);
                    self.switch.remove_peer(node);
                }
            },
        }
    }

    fn on_topic_configs(&self, topic: TopicId) {
        let (count_min, dedups_sources, layout, partitions) = {
            let metadata = self.meta.metadata();
            let partitions =
                metadata.topic(topic).map(|topic| topic.partitions.clone()).unwrap_or_default();
            let dedups_sources = crate::meta::dedups_sources(&metadata, topic);
            let layout = crate::meta::layout_of(&metadata, topic);
            let count_min = metadata.datacenter_count_min(topic);
            (count_min, dedups_sources, layout, partitions)
        };
        for partition in partitions {
            // Also one that is being taken over: it is to begin with what holds by then.
            if let Some(log) = self.logs.owned(partition) {
                log.set_datacenter_count_min(count_min);
                log.track_sources(dedups_sources, self.agreed_time_ms().unwrap_or(i64::MAX));
                log.set_layout(layout);
                log.note_change();
            }
        }
    }

    /// A snapshot hid what was decided meanwhile: keeps what is still owned under the same
    /// generation, and has the rest of what is this node's decided anew.
    fn on_replaced(self: &Arc<Self>) {
        let (lost, topics, reclaims) = {
            let metadata = self.meta.metadata();
            let owned = self.logs.owned_logs();
            let (kept, lost): (Vec<_>, Vec<_>) =
                owned.iter().map(|log| log.ownership()).partition(|held| {
                    ownership_of(&metadata, held.partition).is_some_and(|(owner, current)| {
                        owner == self.config.node && current.generation == held.generation
                    })
                });
            let kept: BTreeSet<PartitionId> = kept.iter().map(|held| held.partition).collect();
            let lost: Vec<PartitionId> = lost.iter().map(|held| held.partition).collect();
            let topic = |id: &PartitionId| metadata.partition(*id).map(|found| found.topic);
            let topics: BTreeSet<TopicId> = kept.iter().filter_map(topic).collect();
            (lost, topics, plan_reclaim(&metadata, self.config.node, &kept))
        };
        self.logs.on_ownership(Vec::new(), &lost);
        topics.into_iter().for_each(|topic| self.on_topic_configs(topic));
        let node = Arc::clone(self);
        tokio::spawn(async move {
            let broker = Arc::clone(&node.context) as Arc<dyn Broker>;
            reclaim::reclaim(broker, &node.logs.chores, reclaims).await;
        });
    }
}

impl StoreListener for Node {
    fn on_synced(&self, incarnation: Incarnation) {
        if self.sync_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        let found = self.meta.metadata().slot_filled_by(self.config.node);
        let node = self.switch.node();
        if let (Some((group, slot)), Some(node)) = (found, node) {
            let logs = Arc::clone(&node.logs);
            logs.spawn(async move {
                let synced = Command::SlotSynced { group, slot, incarnation };
                if let Err(error) = node.meta.propose(synced).await {
                    tracing::warn!(%error, "the synced disk does not count yet");
                }
                node.sync_reported.store(false, Ordering::Relaxed);
            });
        } else {
            self.sync_reported.store(false, Ordering::Relaxed);
        }
    }

    fn on_fatal(&self, reason: String) {
        self.fail(reason);
    }
}
