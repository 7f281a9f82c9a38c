//! A node for tests of the front: the real metadata state machine, and for a cluster of one the
//! real log on a disk of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, Bytes};
use meridian_access::Principal;
use meridian_base::env::SplitMix;
use meridian_base::id::{ClusterId, Incarnation, NodeId, PartitionId};
use meridian_base::position::LeaderEpoch;
use meridian_base::sync::{ReadGuard, RwLock};
use meridian_base::topology::{Datacenter, Geometry, Rack};
use meridian_broker::replica::ahead::AheadCounts;
use meridian_consensus::command::{
    Command, Endpoint, FeatureLevel, LeaderAssignment, Liveness, MountEpoch, NodeRegistration,
    Proposal, RequestId, Roles,
};
use meridian_consensus::error::Refusal;
use meridian_consensus::membership::RaftId;
use meridian_consensus::state::{Change, Decision, Metadata};
use meridian_protocol::messages::{
    ApiVersionsRequest, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use meridian_protocol::records::BatchBuilder;
use meridian_protocol::{ErrorCode, RequestMessage, Uuid, frame};
use meridian_storage::config::StoreConfig;
use meridian_storage::mutation::Mutations;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::connection::{self, Close};
use super::dispatch::Client;
use super::listener::Listener;
use super::server;
use super::session::Session;
use super::{Front, Verifier, lock, lookup};
use crate::broker::Broker;
use crate::config::{FrontConfig, GroupConfig, ScrubConfig, TransactionConfig};
use crate::log::{
    BudgetLimits, FollowerLog, LogSettings, Logs, Ownership, PartitionLog, StoreHandle,
    StoreSettings, TransactionVerifier,
};
use crate::meta::{Deleted, ProposeError};
use crate::partition::PartitionLimits;
use crate::peers::wire::{Quorum, QuorumMember};
use crate::peers::{BoxFuture, Peers, Wire};
use crate::runtime::clock::Clock;
use crate::runtime::quic::{Channel, PeerState};
use crate::runtime::secrets::Keyring;

/// Nothing takes longer than this, or the test has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A node as the front sees it.
pub(crate) struct FakeBroker {
    metadata: RwLock<Metadata>,
    applied: watch::Sender<u64>,
    logs: Option<Arc<Logs>>,
    folder: Option<PathBuf>,
    peers: Arc<Peers>,
    wall_time_ms: Arc<AtomicI64>,
    secrets: Keyring,
    deleted: Deleted,
    /// What the next proposals come to.
    pub(crate) refusal: Mutex<Option<ProposeError>>,
    /// How long it takes to hear of all that was decided.
    pub(crate) catch_up_takes: Mutex<Duration>,
}

/// No other nodes.
struct NoWire;

impl Wire for NoWire {
    fn send(&self, _: NodeId, _: Channel, _: Vec<Bytes>) -> bool {
        false
    }
}

impl FakeBroker {
    fn bootstrapped(geometry: Geometry, node_count: u32) -> Self {
        let broker = Self {
            metadata: RwLock::default(),
            applied: watch::Sender::new(0),
            logs: None,
            folder: None,
            peers: Peers::new(NodeId::new(1), Arc::new(NoWire), 1),
            wall_time_ms: Arc::new(AtomicI64::new(1_700_000_000_000)),
            secrets: Keyring::parse(&"a".repeat(64), "tests").expect("a key"),
            deleted: Deleted::default(),
            refusal: Mutex::default(),
            catch_up_takes: Mutex::default(),
        };
        let cluster_id = ClusterId::from_entropy(7);
        broker.decide(Command::Bootstrap { cluster_id, geometry });
        for node in 1..=node_count {
            broker.register(node, FeatureLevel::of_geometry(geometry)).expect("not refused");
        }
        broker
    }

    /// Node 1 of three datacenters with a node each. No partition is served.
    pub(crate) fn three_datacenters() -> Arc<Self> {
        Self::with_wire(Arc::new(NoWire))
    }

    /// Node 1 of three datacenters, which reaches the others over `wire`.
    pub(crate) fn with_wire(wire: Arc<dyn Wire>) -> Arc<Self> {
        let mut broker = Self::bootstrapped(Geometry::OnePerDc, 3);
        broker.peers = Peers::new(NodeId::new(1), wire, 1);
        for node in 1..=3 {
            broker.mount(node, Incarnation::new(u64::from(node)));
        }
        Arc::new(broker)
    }

    /// Node 1 of eight racks of one datacenter. No partition is served.
    pub(crate) fn eight_racks() -> Arc<Self> {
        let broker = Self::bootstrapped(Geometry::Block42, 8);
        for node in 1..=8 {
            broker.mount(node, Incarnation::new(u64::from(node)));
        }
        Arc::new(broker)
    }

    /// A cluster of one that serves all partitions.
    pub(crate) fn single() -> Arc<Self> {
        Self::single_with(BudgetLimits::default())
    }

    /// A cluster of one whose partitions share so much memory.
    pub(crate) fn single_with(budget: BudgetLimits) -> Arc<Self> {
        static FOLDERS: AtomicU64 = AtomicU64::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("meridian-kafka-front-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let mut broker = Self::bootstrapped(Geometry::None, 1);
        let clock = Clock::start();
        let node = NodeId::new(1);
        let fresh = Incarnation::new(99);
        let config = StoreConfig {
            batch_size_bytes_max: 4 << 20,
            file_size_bytes: 8 << 20,
            ..StoreConfig::small(node, fresh, 256 << 20)
        };
        let scrub = ScrubConfig::default();
        let settings = StoreSettings { folder: folder.clone(), capacity: None, config, scrub };
        let store = StoreHandle::open(settings, clock).expect("a disk in a temporary folder");
        let settings = LogSettings {
            node,
            limits: PartitionLimits::default(),
            pending_size_bytes_max: 64 << 20,
            sizes: meridian_storage::limits::SizeLimits::DEFAULT,
            budget,
            mutations: Mutations::NONE,
        };
        let logs = Logs::start(settings, clock, Arc::new(NoWire), Some(Arc::clone(&store)));
        let agreed_ms = Arc::clone(&broker.wall_time_ms);
        logs.set_agreed_time(Arc::new(move || Some(agreed_ms.load(Ordering::Relaxed))));
        store.confirm_mount(broker.mount(1, store.identity().incarnation));
        for group in broker.state().groups() {
            logs.on_group(group.clone());
        }
        broker.logs = Some(logs);
        broker.folder = Some(folder);
        Arc::new(broker)
    }

    /// Registers a node whose binary knows features up to this level.
    pub(crate) fn register(
        &self,
        node: u32,
        feature_level_max: FeatureLevel,
    ) -> Result<Decision, Refusal> {
        let geometry = self.state().geometry();
        self.apply(Command::RegisterNode(registration(node, geometry, feature_level_max))).0
    }

    fn mount(&self, node: u32, incarnation: Incarnation) -> Incarnation {
        let command = Command::MountDisk {
            node: NodeId::new(node),
            incarnation,
            mount_epoch: MountEpoch::new(1),
            found_data: false,
        };
        match self.decide(command) {
            Decision::Mounted { incarnation, .. } => incarnation,
            other => panic!("not mounted: {other:?}"),
        }
    }

    /// Has this node take a partition over from itself: it is owned at once, and served later.
    pub(crate) fn take_over(&self, topic: &str, index: i32) {
        // As in a cluster: the metadata says so first.
        let held = self.reassign(topic, index);
        self.begin_next(held);
    }

    /// Has this node hear that it owns the generation after this one.
    pub(crate) fn begin_next(&self, held: Ownership) {
        let next = Ownership {
            generation: held.generation.next(),
            leader_epoch: LeaderEpoch::new(held.leader_epoch.get() + 1),
            ..held
        };
        let logs = self.logs.as_ref().expect("a cluster of one has logs");
        logs.on_ownership(vec![next], &[]);
    }

    /// Decides that a partition has a new owner, which its log has not heard of yet; gives what that holds.
    pub(crate) fn reassign(&self, topic: &str, index: i32) -> Ownership {
        let id = {
            let metadata = self.state();
            let topic = metadata.topic_named(topic).expect("exists");
            lookup::partition(&metadata, topic, index).expect("exists").0
        };
        let logs = self.logs.as_ref().expect("a cluster of one has logs");
        let held = logs.owned(id).expect("led here").ownership().clone();
        self.decide(Command::AssignLeaders(vec![LeaderAssignment {
            partition: id,
            expected: held.generation,
            leader: self.node(),
            epoch_floor: LeaderEpoch::UNKNOWN,
        }]));
        held
    }

    /// Applies a command that cannot be refused.
    pub(crate) fn decide(&self, command: Command) -> Decision {
        self.apply(command).0.expect("not refused")
    }

    /// Has `front` coordinate transactions.
    pub(super) fn serve_transactions(self: &Arc<Self>, front: &Arc<Front>) {
        front.serve_peers();
        let broker = Arc::clone(self) as Arc<dyn Broker>;
        if let Some(logs) = &self.logs {
            logs.set_verifier(Arc::new(Verifier::new(Arc::downgrade(&broker))));
        }
    }

    /// Lets wall-clock time pass.
    pub(crate) fn pass_wall_time(&self, duration: Duration) {
        let ms = i64::try_from(duration.as_millis()).expect("not ages");
        self.wall_time_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// The metadata.
    #[track_caller]
    pub(crate) fn state(&self) -> ReadGuard<'_, Metadata> {
        self.metadata.read()
    }

    /// How many commands were applied.
    pub(super) fn applied_count(&self) -> u64 {
        *self.applied.borrow()
    }

    /// Judges a node's life.
    pub(crate) fn mark(&self, node: u32, liveness: Liveness) {
        let node = NodeId::new(node);
        let epoch = self.state().node(node).expect("registered").epoch;
        assert_eq!(self.decide(Command::MarkNode { node, epoch, liveness }), Decision::Done);
    }

    fn apply(&self, command: Command) -> (Result<Decision, Refusal>, Vec<Change>) {
        let mut metadata = self.metadata.write();
        let index = self.applied_count() + 1;
        let request_id = RequestId::new(u128::from(index));
        let applied = metadata.apply(index, &Proposal { request_id, command });
        self.applied.send_replace(index);
        for change in &applied.changes {
            if let Change::TopicDeleted(topic) = change {
                self.deleted.note(&topic.name);
            }
        }
        (applied.result, applied.changes)
    }

    /// Begins to lead new partitions and waits until they are served.
    async fn follow(&self, changes: Vec<Change>) {
        let Some(logs) = &self.logs else { return };
        let mut created = Vec::new();
        for change in changes {
            match change {
                Change::PartitionCreated(id) => created.push(id),
                Change::TopicDeleted(topic) => logs.on_ownership(Vec::new(), &topic.partitions),
                _ => {}
            }
        }
        let owned = {
            let metadata = self.state();
            let partition = |id: &PartitionId| {
                let known = metadata.partition(*id).expect("created just now");
                Ownership {
                    partition: *id,
                    group: known.group,
                    homes: Arc::from(metadata.homes(*id)),
                    generation: known.generation,
                    leader_epoch: known.leader_epoch,
                    datacenter_count_min: 1,
                    dedups_sources: crate::meta::dedups_sources(&metadata, known.topic),
                    layout: crate::meta::layout_of(&metadata, known.topic),
                }
            };
            created.iter().map(partition).collect()
        };
        logs.on_ownership(owned, &[]);
        let served = async {
            while created.iter().any(|id| logs.led(*id).is_none()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, served).await.expect("new partitions are served");
    }

    /// Takes the only slot for dead, or not: then no log takes anything.
    pub(crate) fn set_away(&self, is_away: bool) {
        let state = if is_away { PeerState::Down } else { PeerState::Up };
        self.logs.as_ref().expect("a cluster of one has logs").on_peer(self.node(), state);
    }

    /// What its partitions take of its memory.
    pub(crate) fn memory_bytes(&self) -> (usize, usize) {
        self.logs.as_ref().expect("a cluster of one has logs").memory_bytes()
    }

    /// What was read ahead of readers.
    pub(crate) fn ahead_counts(&self) -> AheadCounts {
        self.logs.as_ref().expect("a cluster of one has logs").ahead_counts()
    }

    /// The disk.
    pub(crate) fn store(&self) -> &Arc<StoreHandle> {
        self.logs.as_ref().and_then(|logs| logs.store()).expect("a cluster of one has a disk")
    }

    /// Frees a deleted topic's partition, as a node does when the metadata says so.
    pub(crate) fn forget(&self, partition: PartitionId) {
        self.logs.as_ref().expect("a cluster of one has logs").forget(partition);
    }

    /// What the disk's files take in the file system.
    pub(crate) fn disk_size_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let folder = self.folder.as_ref().expect("a cluster of one has a disk");
        let files = std::fs::read_dir(folder).expect("the disk's folder").flatten();
        files.filter_map(|file| file.metadata().ok()).map(|file| file.blocks() * 512).sum()
    }

    /// Names who vouches for transactions.
    pub(super) fn set_verifier(&self, verifier: Arc<dyn TransactionVerifier>) {
        self.logs.iter().for_each(|logs| logs.set_verifier(Arc::clone(&verifier)));
    }

    /// The id of a topic.
    pub(crate) fn topic_uuid(&self, name: &str) -> Uuid {
        lookup::uuid(self.state().topic_named(name).expect("exists").id)
    }
}

pub(crate) fn registration(
    node: u32,
    geometry: Option<Geometry>,
    feature_level_max: FeatureLevel,
) -> NodeRegistration {
    let datacenters: &[&str] = match geometry {
        Some(Geometry::Block42) => &["dc-a"],
        _ => &["dc-a", "dc-b", "dc-c"],
    };
    let datacenter = datacenters[(node as usize - 1) % datacenters.len()];
    let endpoint = |port| Endpoint { host: format!("host-{node}"), port };
    NodeRegistration {
        node: NodeId::new(node),
        datacenter: Datacenter(datacenter.to_owned()),
        rack: Rack(format!("rack-{node}")),
        roles: Roles::ALL,
        kafka: endpoint(9092),
        peer: endpoint(9093),
        admin: endpoint(9094),
        binary_version: "test".to_owned(),
        feature_level_min: FeatureLevel::FIRST,
        feature_level_max,
    }
}

impl Drop for FakeBroker {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _left_to_the_system = std::fs::remove_dir_all(folder);
        }
    }
}

impl Broker for FakeBroker {
    fn node(&self) -> NodeId {
        NodeId::new(1)
    }

    #[track_caller]
    fn metadata(&self) -> ReadGuard<'_, Metadata> {
        self.state()
    }

    fn was_just_deleted(&self, topic: &str) -> bool {
        self.deleted.has(topic)
    }

    fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Decision, ProposeError>> {
        Box::pin(async move {
            if let Some(refusal) = lock(&self.refusal).clone() {
                return Err(refusal);
            }
            let (result, changes) = self.apply(command);
            self.follow(changes).await;
            Ok(result?)
        })
    }

    fn catch_up_within(&self, within: Duration) -> BoxFuture<'_, Result<(), ProposeError>> {
        // A question decides nothing, so nothing of it is refused.
        let refusal =
            lock(&self.refusal).clone().filter(|it| !matches!(it, ProposeError::Refused(_)));
        let is_late = *lock(&self.catch_up_takes) > within;
        let refusal = refusal.or(is_late.then_some(ProposeError::TimedOut));
        Box::pin(std::future::ready(refusal.map_or(Ok(()), Err)))
    }

    fn secrets(&self) -> &Keyring {
        &self.secrets
    }

    fn metadata_leader(&self) -> Option<NodeId> {
        Some(self.node())
    }

    fn quorum(&self) -> BoxFuture<'_, Option<Quorum>> {
        let last_index = self.applied_count();
        let member = |id| QuorumMember { member: RaftId::first(id), last_index };
        let voters = self.state().nodes().map(|(id, _)| member(id)).collect();
        let quorum = Quorum { term: 7, committed_index: last_index, voters, observers: Vec::new() };
        Box::pin(std::future::ready(Some(quorum)))
    }

    fn owned(&self, partition: PartitionId) -> Option<Arc<PartitionLog>> {
        self.logs.as_ref()?.owned(partition)
    }

    fn led(&self, partition: PartitionId) -> Option<Arc<PartitionLog>> {
        self.logs.as_ref()?.led(partition)
    }

    fn notify_on_ownership(&self, bell: &Arc<Notify>) {
        self.logs.iter().for_each(|logs| logs.notify_on_ownership(bell));
    }

    fn followed(&self, _: PartitionId) -> Option<Arc<FollowerLog>> {
        None
    }

    fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    fn wall_time_ms(&self) -> i64 {
        self.wall_time_ms.load(Ordering::Relaxed)
    }

    fn agreed_time_ms(&self) -> Option<i64> {
        Some(self.wall_time_ms())
    }
}

/// Bounds that make tests quick.
pub(crate) fn quick_config() -> FrontConfig {
    FrontConfig {
        request_size_bytes_max: 2 << 20,
        first_request_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(10),
        request_timeout: Duration::from_secs(5),
        write_stall_timeout: Duration::from_secs(5),
        drain_timeout: Duration::from_millis(500),
        offsets_partition_count: 2,
        transaction: TransactionConfig { partition_count: 2, ..TransactionConfig::default() },
        group: GroupConfig {
            session_timeout_min: Duration::from_millis(1),
            initial_rebalance_delay: Duration::ZERO,
            ..GroupConfig::default()
        },
        ..FrontConfig::default()
    }
}

/// A front before `broker`.
pub(crate) fn front_of(broker: &Arc<FakeBroker>, config: FrontConfig) -> Arc<Front> {
    let broker = Arc::clone(broker) as Arc<dyn Broker>;
    Front::new(broker, config, Box::new(SplitMix::new(1)), None)
}

/// The client's end of a connection.
pub(crate) struct TestClient {
    pub(crate) stream: DuplexStream,
    pub(super) closed: JoinHandle<Close>,
    /// Stops the server's end.
    pub(crate) stop: watch::Sender<bool>,
    correlation_id: i32,
}

impl TestClient {
    /// Connects, without a network between.
    pub(crate) fn connect(front: &Arc<Front>) -> Self {
        Self::connect_as(front, &Principal::anonymous())
    }

    /// Connects as a user who has logged in.
    pub(crate) fn connect_as(front: &Arc<Front>, principal: &Principal) -> Self {
        let peer = ([127, 0, 0, 1], 1234).into();
        let session = Session::new(principal.clone(), peer);
        let (stream, theirs) = tokio::io::duplex(16 << 10);
        let (stop, stopped) = watch::channel(false);
        let front = Arc::clone(front);
        let closed = tokio::spawn(async move {
            let client = Client::new(peer, front.memory.holder(), session);
            connection::serve(&front, theirs, client, stopped).await
        });
        Self { stream, closed, stop, correlation_id: 0 }
    }

    /// Connects to a listener where clients log in.
    pub(crate) fn connect_by_login(front: &Arc<Front>) -> Self {
        Self::connect_by(front, Listener { has_login: true, ..Listener::open() })
    }

    /// Connects to a listener.
    pub(crate) fn connect_by(front: &Arc<Front>, listener: Listener) -> Self {
        let (stream, theirs) = tokio::io::duplex(16 << 10);
        let (stop, stopped) = watch::channel(false);
        let front = Arc::clone(front);
        let closed = tokio::spawn(async move {
            let peer = ([127, 0, 0, 1], 1234).into();
            server::admit(&front, theirs, peer, &Arc::new(listener), None, stopped).await
        });
        Self { stream, closed, stop, correlation_id: 0 }
    }

    /// Sends raw bytes.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the server reads");
    }

    /// Sends a request; returns its correlation id.
    pub(crate) async fn send<R: RequestMessage>(&mut self, version: i16, request: &R) -> i32 {
        self.correlation_id += 1;
        let id = self.correlation_id;
        let frame = frame::encode_request(version, id, Some("test"), request);
        self.write(&frame.expect("encodes").into_bytes()).await;
        id
    }

    /// Receives the answer to the request with this correlation id.
    pub(crate) async fn receive<R: RequestMessage>(
        &mut self,
        version: i16,
        id: i32,
    ) -> R::Response {
        let receive = async {
            let size = self.stream.read_i32().await.expect("an answer");
            let mut bytes = vec![0; usize::try_from(size).expect("positive")];
            self.stream.read_exact(&mut bytes).await.expect("a whole answer");
            Bytes::from(bytes)
        };
        let bytes = tokio::time::timeout(PATIENCE, receive).await.expect("an answer in time");
        assert_eq!(frame::response_correlation_id(&bytes), Some(id), "answers are in order");
        frame::decode_response::<R>(version, bytes).expect("decodes")
    }

    /// Sends a request and receives its answer.
    pub(crate) async fn call<R: RequestMessage>(
        &mut self,
        version: i16,
        request: R,
    ) -> R::Response {
        let id = self.send(version, &request).await;
        self.receive::<R>(version, id).await
    }

    /// Waits for the server to close the connection.
    pub(super) async fn closed(mut self) -> Close {
        let close = tokio::time::timeout(PATIENCE, self.closed).await.expect("closed in time");
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await.expect("the end");
        close.expect("no panic")
    }

    /// Creates a topic of this many partitions.
    pub(crate) async fn create_topic(&mut self, name: &str, partition_count: i32) {
        self.create_topic_with(name, partition_count, &[]).await;
    }

    pub(crate) async fn create_topic_with(
        &mut self,
        name: &str,
        partition_count: i32,
        configs: &[(&str, &str)],
    ) {
        let config = |(name, value): &(&str, &str)| CreatableTopicConfig {
            name: (*name).into(),
            value: Some((*value).into()),
        };
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partition_count,
            replication_factor: -1,
            configs: configs.iter().map(config).collect(),
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let response = self.call(7, request).await;
        assert_eq!(response.topics[0].error_code, ErrorCode::None, "{:?}", response.topics[0]);
    }
}

/// Asks what the server speaks, as a client that says who it is.
pub(crate) fn versions_request() -> ApiVersionsRequest {
    ApiVersionsRequest {
        client_software_name: "test".into(),
        client_software_version: "1.0".into(),
    }
}

/// A batch of one record per value.
pub(crate) fn batch_of(values: &[&str]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for (index, value) in values.iter().enumerate() {
        builder.append(1000 + index as i64, None, Some(value.as_bytes()), &[]);
    }
    builder.build()
}

/// The values of all records, with their offsets.
pub(crate) fn values_of(mut records: Bytes) -> Vec<(i64, String)> {
    let mut values = Vec::new();
    for batch in meridian_protocol::records::batches(records.copy_to_bytes(records.remaining())) {
        for record in batch.expect("whole batches").records(1 << 20).expect("uncompressed") {
            let record = record.expect("a record");
            let value = String::from_utf8(record.value.unwrap_or_default().to_vec());
            values.push((record.offset, value.expect("text")));
        }
    }
    values
}
