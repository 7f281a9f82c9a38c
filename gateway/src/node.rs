//! One node: wires metadata, logs, store, transport and the Kafka front together.
//!
//! Start-up, in this order: lock the folders, mount the disk (its mount epoch is durable then), join or form the Raft
//! group, register, announce the mount, have this node's partitions decided anew, serve clients.

mod chores;
mod cluster_time;
mod cold;
mod compaction;
mod copies;
mod disk_format;
mod disks;
mod expiry;
mod first_start;
mod folders;
mod health;
mod lifecycle;
mod listeners;
mod object_owner;
mod owner;
mod peer_names;
mod reclaim;
mod reload;
mod secret_key;
mod sources;
mod status;
mod sweep;
mod switch;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use meridian_base::env::{Rng, SplitMix};
use meridian_base::id::{ClusterId, Incarnation, NodeId, PartitionId, TopicId};
use meridian_base::sync::ReadGuard;
use meridian_base::topology::{Datacenter, SlotState};
use meridian_consensus::command::{
    Command, Endpoint, FeatureLevel, MountEpoch, NodeEpoch, NodeRegistration, RequestId,
};
use meridian_consensus::config::Config as MetaConfig;
use meridian_consensus::error::Refusal;
use meridian_consensus::placement::plan_reclaim;
use meridian_consensus::state::{Decision, Metadata, MountedAs};
use tokio::sync::{Notify, watch};

use self::cluster_time::ClusterTime;
use self::compaction::CompactionCounters;
pub(crate) use self::compaction::CompactionCounts;
use self::folders::Opened;
use self::health::Health;
pub(crate) use self::health::Known;
use self::owner::{OwnFolder, OwnerError};
use self::peer_names::PeerNames;
use self::switch::Switch;
use crate::admin::{Admin, AdminBindError, AdminServer};
use crate::broker::Broker;
use crate::config::{FrontConfig, NodeConfig};
use crate::kafka::first_start::FirstStartError;
use crate::kafka::{
    Front, LinkServer, LinkServerError, LinkUses, Server, ServerError, TokenIssuerError, Verifier,
};
use crate::log::{
    BudgetLimits, FollowerLog, LogSettings, Logs, PartitionLog, StoreFailure, StoreListener,
};
use crate::meta::{
    Deleted, EventSender, Events, Meta, MetaEvent, MetaSettings, ProposeError, ownership_of,
};
use crate::mirror::{Mirrors, OwnEnd};
use crate::partition::PartitionLimits;
use crate::peers::wire::Quorum;
use crate::peers::{BoxFuture, Peers, Wire};
use crate::runtime::clock::{self, Clock};
use crate::runtime::folder::LockError;
use crate::runtime::mutation;
use crate::runtime::objects::ObjectError;
use crate::runtime::quic::{PathClass, Transport, TransportConfig, TransportError};
use crate::runtime::secrets::{Keyring, SecretError};
use crate::runtime::tls::{NodeIdentity, PeerTrust, TlsError};

/// Most bytes of one partition that wait for slots.
const PENDING_SIZE_BYTES_MAX: usize = 32 << 20;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder can't be used.
    #[error("data folder {folder}: {detail}")]
    Data {
        /// The folder.
        folder: String,
        /// What the operating system said.
        detail: String,
    },
    /// Another process has one of the folders.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// The data folder is another node's.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The configuration does not fit the disk.
    #[error(
        "{key} = {configured_bytes} is too little for a disk with files of {file_size_bytes} bytes, a size that it keeps \
         for life; set at least {needed_bytes}"
    )]
    TooSmall {
        /// The key.
        key: &'static str,
        /// Its value.
        configured_bytes: u64,
        /// Size of the disk's journal files.
        file_size_bytes: u32,
        /// The least that will do.
        needed_bytes: u64,
    },
    /// The disk can't be used.
    #[error(transparent)]
    Store(#[from] StoreFailure),
    /// The certificates can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The keys of who issues tokens can't be used.
    #[error(transparent)]
    TokenIssuer(#[from] TokenIssuerError),
    /// The keys for secrets can't be used.
    #[error(transparent)]
    Secrets(#[from] SecretError),
    /// What a new cluster is to have can't be used.
    #[error(transparent)]
    FirstStart(#[from] FirstStartError),
    /// The transport did not start.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The object store can't be used.
    #[error(transparent)]
    Objects(#[from] ObjectError),
    /// The Kafka listener did not start.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The operators' listener did not start.
    #[error(transparent)]
    Admin(#[from] AdminBindError),
    /// The node must not go on.
    #[error("{0}")]
    Failed(String),
    /// The cluster refused the node.
    #[error("the cluster did not take the node in: {0}")]
    Join(#[from] ProposeError),
    /// A thread could not be started.
    #[error("metadata thread: {0}")]
    Thread(std::io::Error),
    /// Chance can't be had.
    #[error("no entropy: {0}")]
    Entropy(std::io::Error),
}

/// What the parts of a node share.
pub(crate) struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) logs: Arc<Logs>,
    pub(crate) meta: Meta,
    pub(crate) switch: Arc<Switch>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) mirrors: Mirrors,
    pub(crate) time: Arc<ClusterTime>,
    pub(crate) compaction: CompactionCounters,
    pub(crate) health: Health,
    pub(crate) own_end: Arc<OwnEnd>,
    pub(crate) link_uses: Arc<LinkUses>,
    deleted: Arc<Deleted>,
    names: PeerNames,
    /// Why the node must stop, once it must.
    fatal: watch::Sender<Option<String>>,
    sync_reported: AtomicBool,
    /// What the disk was found to be when it was mounted.
    mounted_as: OnceLock<MountedAs>,
    /// The registration of this process.
    registered_as: OnceLock<NodeEpoch>,
}

/// A node that serves.
pub struct RunningNode {
    pub(crate) node: Arc<Node>,
    kafka: SocketAddr,
    admin: Option<SocketAddr>,
    shutdown: watch::Sender<bool>,
    server: tokio::task::JoinHandle<()>,
}

impl RunningNode {
    /// Where Kafka clients reach it.
    pub fn kafka_address(&self) -> SocketAddr {
        self.kafka
    }

    /// Where operators reach it, if anywhere.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Waits until the node must stop by itself; returns why.
    pub async fn failed(&self) -> String {
        let mut fatal = self.node.fatal.subscribe();
        match fatal.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "the node is gone".to_owned(),
        }
    }

    /// Stops serving and ends.
    pub async fn shutdown(self) {
        self.shutdown.send_replace(true);
        let _stopped = self.server.await;
        self.node.meta.stop();
    }
}

/// Starts a node and waits until it serves clients.
///
/// Boxed, because the crate that polls a future compiles it: the binary would compile the whole node again.
pub fn start(config: NodeConfig) -> BoxFuture<'static, Result<RunningNode, StartError>> {
    Box::pin(start_and_join(config))
}

fn fresh_request_id(rng: &mut SplitMix) -> RequestId {
    RequestId::new(u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()))
}

async fn start_and_join(config: NodeConfig) -> Result<RunningNode, StartError> {
    let clock = Clock::start();
    let mut rng =
        SplitMix::new(crate::runtime::entropy::entropy().map_err(StartError::Entropy)? as u64);
    let Opened { own, objects, store, own_end } = folders::open(&config, clock, &mut rng).await?;
    let switch = Arc::new(Switch::default());
    let wire: Arc<dyn Wire> = Arc::clone(&switch) as Arc<dyn Wire>;
    let logs = Logs::start(log_settings(&config), clock, Arc::clone(&wire), store);
    if let Some(objects) = objects {
        logs.set_objects(objects);
    }
    let events = Arc::new(Events::default());
    let registration = fresh_request_id(&mut rng);
    let meta_settings = meta_settings(&config, clock);
    let listener = Arc::new(EventSender::new(config.node, registration, Arc::clone(&events)));
    let deleted = listener.deleted();
    let meta_rng = Box::new(SplitMix::new(rng.next_u64()));
    let peers = Peers::new(config.node, Arc::clone(&wire), rng.next_u64());
    let meta = Meta::start(meta_settings, wire, meta_rng, listener).map_err(StartError::Thread)?;
    let (fatal, _) = watch::channel(None);
    let mirrors = Mirrors::default();
    let time = ClusterTime::start(clock, config.members.len().max(1), &logs);
    let node = Arc::new(Node {
        config,
        logs,
        meta,
        switch,
        peers,
        mirrors,
        time,
        compaction: CompactionCounters::default(),
        health: Health::default(),
        own_end,
        link_uses: Arc::default(),
        deleted,
        names: PeerNames::default(),
        fatal,
        sync_reported: AtomicBool::new(false),
        mounted_as: OnceLock::new(),
        registered_as: OnceLock::new(),
    });
    node.switch.connect(&node);
    let trust = reload::peer_trust(&node.config)?;
    start_transport(&node, own.cluster.clone(), trust.clone()).await?;
    if let Some(store) = node.logs.store() {
        store.listen(Arc::clone(&node) as Arc<dyn StoreListener>);
    }
    tokio::spawn(chores::run_events(Arc::clone(&node), events));
    let admin = Arc::clone(&node) as Arc<dyn crate::kafka::AdminHandler>;
    let broker = Arc::clone(&node) as Arc<dyn Broker>;
    let front_rng = Box::new(SplitMix::new(rng.next_u64()));
    let front = FrontConfig { mutations: mutation::active(), ..node.config.front.clone() };
    let front = Front::new(Arc::clone(&broker), front, front_rng, Some(admin));
    front.serve_peers();
    node.logs.set_verifier(Arc::new(Verifier::new(Arc::downgrade(&broker))));
    let mut server = Server::bind(Arc::clone(&front), node.config.kafka).await?;
    let kafka = server.local_address();
    let endpoints = listeners::open(&node, &mut server).await?;
    let links = link_server(&node, &front, &own.cluster, kafka, trust)?;
    let (shutdown, stop) = watch::channel(false);
    let shown = Admin::new(Arc::clone(&node), front);
    let admin = serve_operators(&shown, node.config.admin, stop.clone()).await?;
    let joined = node.join(&own, registration, kafka, admin).await;
    joined.map_err(|error| node.failure().map_or(error, StartError::Failed))?;
    shown.on_joined();
    spawn_chores(&node);
    tokio::spawn(listeners::announce(Arc::clone(&node), endpoints));
    let server = tokio::spawn(serve(server, links, stop));
    Ok(RunningNode { node, kafka, admin, shutdown, server })
}

/// Starts what a node does by itself once it has joined.
fn spawn_chores(node: &Arc<Node>) {
    tokio::spawn(cluster_time::run_clock(Arc::clone(node)));
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
    tokio::spawn(crate::mirror::run(Arc::clone(node)));
}

fn log_settings(config: &NodeConfig) -> LogSettings {
    LogSettings {
        node: config.node,
        limits: PartitionLimits::default(),
        pending_size_bytes_max: PENDING_SIZE_BYTES_MAX,
        budget: BudgetLimits::default(),
        sizes: meridian_storage::limits::SizeLimits::DEFAULT,
        mutations: mutation::active(),
    }
}

fn meta_settings(config: &NodeConfig, clock: Clock) -> MetaSettings {
    MetaSettings {
        node: config.node,
        voters: config.voters(),
        peers: config.peers().map(|member| member.node).collect(),
        folder: config.data.join("meta"),
        config: MetaConfig {
            heal_after: config.heal_after,
            further_groups: config.further_groups.clone(),
            ..MetaConfig::default()
        },
        frame_size_bytes_max: meridian_storage::limits::FRAME_SIZE_BYTES_MAX,
        clock,
    }
}

/// Listens for operators, if `address` says where; they see the node join.
async fn serve_operators(
    admin: &Arc<Admin>,
    address: Option<SocketAddr>,
    stop: watch::Receiver<bool>,
) -> Result<Option<SocketAddr>, StartError> {
    let Some(address) = address else { return Ok(None) };
    let server = AdminServer::bind(Arc::clone(admin), address).await?;
    let address = server.local_address();
    tokio::spawn(server.run(stop));
    Ok(Some(address))
}

async fn start_transport(
    node: &Arc<Node>,
    cluster: ClusterId,
    trust: Option<Arc<PeerTrust>>,
) -> Result<(), StartError> {
    let config = &node.config;
    let (Some(folder), Some(listen)) = (&config.tls, config.peer) else { return Ok(()) };
    let identity = NodeIdentity::load(folder)?;
    node.health.set_certificate_end(identity.ends_at()?);
    let settings = TransportConfig {
        emulated_one_way_delay: config.emulated_one_way_delay,
        trust,
        ..TransportConfig::new(config.node, cluster, identity, listen)
    };
    let handler = Arc::clone(&node.switch) as Arc<dyn crate::runtime::quic::Handler>;
    let transport = Transport::start(settings, handler).await?;
    node.switch.plug(transport);
    for member in config.peers() {
        node.reach(member.node, member.peer.clone(), path_to(config, &member.datacenter));
    }
    tokio::spawn(peer_names::run_names(Arc::clone(node)));
    Ok(())
}

/// Serves clients and links until `stop` holds true.
async fn serve(server: Server, links: Option<LinkServer>, stop: watch::Receiver<bool>) {
    let links = links.map(|links| tokio::spawn(links.run(stop.clone())));
    server.run(stop).await;
    if let Some(links) = links {
        let _it_has_ended = links.await;
    }
}

/// What serves the links of other clusters: by UDP, where clients are served by TCP.
fn link_server(
    node: &Node,
    front: &Arc<Front>,
    cluster: &ClusterId,
    address: SocketAddr,
    trust: Option<Arc<PeerTrust>>,
) -> Result<Option<LinkServer>, StartError> {
    let Some(folder) = &node.config.tls else { return Ok(None) };
    let identity = NodeIdentity::load(folder)?;
    let credentials = identity.check(node.config.node, cluster, clock::wall_time())?;
    let credentials = credentials.letting_in(trust);
    let uses = Arc::clone(&node.link_uses);
    match LinkServer::bind(Arc::clone(front), address, credentials, uses) {
        Ok(links) => Ok(Some(links)),
        Err(LinkServerError::Tls(error)) => Err(error.into()),
        Err(error @ LinkServerError::Bind { .. }) => {
            tracing::warn!(%error, "links of other clusters are not served over QUIC");
            Ok(None)
        }
    }
}

fn path_to(config: &NodeConfig, datacenter: &Datacenter) -> PathClass {
    if *datacenter == config.datacenter {
        PathClass::SameDatacenter
    } else {
        PathClass::CrossDatacenter
    }
}

impl Node {
    /// Becomes part of the cluster: until this returns, the node leads nothing.
    async fn join(
        &self,
        own: &OwnFolder,
        registration: RequestId,
        kafka: SocketAddr,
        admin: Option<SocketAddr>,
    ) -> Result<(), StartError> {
        let config = &self.config;
        let cluster_id = own.cluster.clone();
        let bootstrap = Command::Bootstrap { cluster_id, geometry: config.geometry };
        tokio::select! {
            bootstrapped = self.meta.propose_patiently(bootstrap) => match bootstrapped {
                Ok(_) | Err(ProposeError::Refused(Refusal::AlreadyBootstrapped)) => {}
                Err(error) => return Err(error.into()),
            },
            // Who joins a cluster that is there hears of nothing before it has registered.
            () = self.meta.is_of_cluster() => {}
        }
        own.check_bootstrapped(&self.meta.metadata())?;
        let endpoint = |address: Option<SocketAddr>| {
            let address = address.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
            Endpoint { host: address.ip().to_string(), port: address.port() }
        };
        let node = NodeRegistration {
            node: config.node,
            datacenter: config.datacenter.clone(),
            rack: config.rack.clone(),
            roles: config.roles,
            kafka: config.advertised(kafka),
            peer: config.peer_endpoint().unwrap_or_else(|| endpoint(None)),
            admin: endpoint(admin),
            binary_version: env!("CARGO_PKG_VERSION").to_owned(),
            feature_level_min: FeatureLevel::FIRST,
            feature_level_max: FeatureLevel::LATEST,
        };
        let registered =
            self.meta.propose_patiently_as(registration, Command::RegisterNode(node)).await?;
        if let Decision::Registered { epoch } = registered {
            let _set_once_at_start = self.registered_as.set(epoch);
            self.check_registration(config.node);
        }
        // One that was new to the cluster has heard of it now.
        own.check_bootstrapped(&self.meta.metadata())?;
        self.decide_first_start().await?;
        self.mount().await?;
        let reclaims = plan_reclaim(&self.meta.metadata(), config.node, &BTreeSet::new());
        for command in reclaims {
            self.meta.propose_patiently(command).await?;
        }
        Ok(own.mark(&config.data)?)
    }

    /// Tells the cluster what the disk is, and the disk which life it is in (rules S4, 12).
    async fn mount(&self) -> Result<(), ProposeError> {
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
    fn check_registration(&self, node: NodeId) {
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
            let count_min = crate::meta::datacenter_count_min(&metadata, topic);
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
            let broker = Arc::clone(&node) as Arc<dyn Broker>;
            reclaim::reclaim(broker, &node.logs.chores, reclaims).await;
        });
    }
}

impl Broker for Node {
    fn node(&self) -> NodeId {
        self.config.node
    }

    #[track_caller]
    fn metadata(&self) -> ReadGuard<'_, Metadata> {
        self.meta.metadata()
    }

    fn applied(&self) -> watch::Receiver<u64> {
        self.meta.applied()
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Decision, ProposeError>> {
        Box::pin(self.meta.propose(command))
    }

    fn catch_up_within(&self, within: Duration) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(self.meta.catch_up(within))
    }

    fn metadata_leader(&self) -> Option<NodeId> {
        Some(self.meta.leadership()?.leader?.node)
    }

    fn quorum(&self) -> BoxFuture<'_, Option<Quorum>> {
        Box::pin(self.meta.quorum())
    }

    fn owned(&self, partition: PartitionId) -> Option<Arc<PartitionLog>> {
        self.logs.owned(partition)
    }

    fn led(&self, partition: PartitionId) -> Option<Arc<PartitionLog>> {
        self.logs.led(partition)
    }

    fn notify_on_ownership(&self, bell: &Arc<Notify>) {
        self.logs.notify_on_ownership(bell);
    }

    fn followed(&self, partition: PartitionId) -> Option<Arc<FollowerLog>> {
        let (leader, ownership) = ownership_of(&self.meta.metadata(), partition)?;
        (leader != self.config.node).then(|| self.logs.followed(ownership, leader)).flatten()
    }

    fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    fn wall_time_ms(&self) -> i64 {
        self.agreed_time_ms().unwrap_or_else(clock::wall_time_ms)
    }

    fn agreed_time_ms(&self) -> Option<i64> {
        self.time.agreed_ms()
    }

    fn secrets(&self) -> &Keyring {
        &self.own_end.keys
    }

    fn was_just_deleted(&self, topic: &str) -> bool {
        self.deleted.has(topic)
    }

    fn own_findings(&self) -> bytes::Bytes {
        Self::own_findings(self)
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
