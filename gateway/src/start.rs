//! One node, put together: metadata, logs, store, transport and what serves clients and operators.
//!
//! Start-up, in this order: lock the folders, mount the disk (its mount epoch is durable then), join or form the Raft
//! group, register, announce the mount, have this node's partitions decided anew, serve clients.

mod disk_format;
mod first_start;
mod folders;
mod listeners;
mod owner;
mod secret_key;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use meridian_base::env::{Rng, SplitMix};
use meridian_base::id::ClusterId;
use meridian_consensus::command::{Command, Endpoint, FeatureLevel, NodeRegistration, RequestId};
use meridian_consensus::config::Config as MetaConfig;
use meridian_consensus::error::Refusal;
use meridian_consensus::placement::plan_reclaim;
use meridian_consensus::state::Decision;
use tokio::sync::watch;

use self::folders::Opened;
use self::owner::{OwnFolder, OwnerError};
use crate::admin::{Admin, AdminBindError, AdminServer};
use crate::broker::Broker;
use crate::cluster_time::ClusterTime;
use crate::config::{FrontConfig, NodeConfig};
use crate::context::NodeContext;
use crate::kafka::first_start::{FirstStart, FirstStartError};
use crate::kafka::{
    Front, LinkServer, LinkServerError, Server, ServerError, TokenIssuer, TokenIssuerError,
    Verifier,
};
use crate::log::{BudgetLimits, LogSettings, Logs, StoreFailure, StoreListener};
use crate::meta::{EventSender, Events, Meta, MetaSettings, ProposeError};
use crate::node::{self, Node, Switch, path_to};
use crate::partition::PartitionLimits;
use crate::peers::{BoxFuture, Peers, Wire};
use crate::runtime::clock::{self, Clock};
use crate::runtime::folder::LockError;
use crate::runtime::mutation;
use crate::runtime::objects::ObjectError;
use crate::runtime::quic::{Transport, TransportConfig, TransportError};
use crate::runtime::secrets::SecretError;
use crate::runtime::tls::{ListenerCertificate, NodeIdentity, PeerTrust, TlsError};

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
        self.node.failed().await
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

/// Reads the files that a configuration names, as a start does; changes nothing.
pub fn check(config: &NodeConfig) -> Result<(), StartError> {
    check_identity(config)?;
    secret_key::find(config)?;
    config.first_start.as_deref().map(FirstStart::load).transpose()?;
    for listener in &config.listeners {
        listener.certificate.as_ref().map(ListenerCertificate::load).transpose()?;
        listener.oauth.as_ref().map(TokenIssuer::load).transpose()?;
    }
    config.admin_certificate.as_ref().map(ListenerCertificate::load).transpose()?;
    Ok(())
}

/// The certificate of the node must be this node's, of its cluster.
fn check_identity(config: &NodeConfig) -> Result<(), StartError> {
    if let (Some(folder), Some(cluster)) = (&config.tls, &config.cluster) {
        NodeIdentity::load(folder)?.check(config.node, cluster, clock::wall_time())?;
    }
    Ok(())
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
    let time = ClusterTime::start(clock, config.members.len().max(1), &logs);
    let context = Arc::new(NodeContext::new(config, logs, meta, peers, time, own_end, deleted));
    let node = Arc::new(Node::new(context, switch));
    node.connect();
    let trust = node::peer_trust(&node.config)?;
    start_transport(&node, own.cluster.clone(), trust.clone()).await?;
    if let Some(store) = node.logs.store() {
        store.listen(Arc::clone(&node) as Arc<dyn StoreListener>);
    }
    tokio::spawn(node::run_events(Arc::clone(&node), events));
    let admin = Arc::clone(&node) as Arc<dyn crate::admin_api::AdminHandler>;
    let broker = Arc::clone(&node.context) as Arc<dyn Broker>;
    let front_rng = Box::new(SplitMix::new(rng.next_u64()));
    let front = FrontConfig { mutations: mutation::active(), ..node.config.front.clone() };
    let front = Front::new(Arc::clone(&broker), front, front_rng, Some(admin));
    front.serve_peers();
    node.logs.set_verifier(Arc::new(Verifier::new(Arc::downgrade(&broker))));
    let mut server = Server::bind(Arc::clone(&front), node.config.kafka).await?;
    let kafka = server.local_address();
    let (endpoints, certificate) = listeners::open(&node, &mut server).await?;
    let links = link_server(&node, &front, &own.cluster, kafka, trust)?;
    let (shutdown, stop) = watch::channel(false);
    let shown = Admin::new(Arc::clone(&node), front);
    let admin = serve_operators(&shown, certificate, stop.clone()).await?;
    let joined = node.join(&own, registration, kafka, admin).await;
    joined.map_err(|error| node.failure().map_or(error, StartError::Failed))?;
    shown.on_joined();
    node::spawn_chores(&node);
    tokio::spawn(listeners::announce(Arc::clone(&node), endpoints));
    let server = tokio::spawn(serve(server, links, stop));
    Ok(RunningNode { node, kafka, admin, shutdown, server })
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

/// Listens for operators, if the configuration says where; they see the node join.
async fn serve_operators(
    admin: &Arc<Admin>,
    certificate: Option<Arc<ListenerCertificate>>,
    stop: watch::Receiver<bool>,
) -> Result<Option<SocketAddr>, StartError> {
    let Some(address) = admin.address() else { return Ok(None) };
    let server = AdminServer::bind(Arc::clone(admin), address, certificate).await?;
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
    tokio::spawn(node::run_names(Arc::clone(node)));
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
            self.on_registered(epoch);
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
}
