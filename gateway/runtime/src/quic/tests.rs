mod congestion;
mod lanes;
mod trust;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use meridian_base::id::ClusterId;
use quinn::VarInt;
use quinn::crypto::rustls::QuicServerConfig;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::inbound::GREETING;
use super::lane::Lane;
use super::*;
use crate::clock;
use crate::tls::{ALPN, ClusterCa, Credentials, Validity};

const ONE: NodeId = NodeId::new(1);
const TWO: NodeId = NodeId::new(2);
const THREE: NodeId = NodeId::new(3);
const PATIENCE: Duration = Duration::from_secs(30);
/// What [`raw_server`] takes of a stream that is not read.
const RAW_WINDOW_BYTES: u32 = 10_000;

#[derive(Debug)]
enum Event {
    Frame(NodeId, Channel, Bytes),
    Peer(NodeId, PeerState),
}

struct Recorder(mpsc::UnboundedSender<Event>);

impl Handler for Recorder {
    fn on_frame(&self, from: NodeId, channel: Channel, frame: Bytes) {
        let _test_may_be_over = self.0.send(Event::Frame(from, channel, frame));
    }

    fn on_peer(&self, node: NodeId, state: PeerState) {
        let _test_may_be_over = self.0.send(Event::Peer(node, state));
    }
}

/// A transport and what has reached its handler.
struct Node {
    id: NodeId,
    transport: Transport,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Node {
    async fn start(ca: &ClusterCa, id: NodeId) -> Self {
        Self::start_with(config(ca, id)).await
    }

    async fn start_with(config: TransportConfig) -> Self {
        let id = config.node;
        let (sender, events) = mpsc::unbounded_channel();
        let transport = Transport::start(config, Arc::new(Recorder(sender))).await.unwrap();
        Self { id, transport, events }
    }

    fn dials(&self, other: &Self) {
        self.dials_at(other.id, other.transport.local_address());
    }

    fn dials_at(&self, node: NodeId, address: SocketAddr) {
        self.transport.set_peer(node, address, PathClass::SameDatacenter);
    }

    async fn event(&mut self) -> Event {
        within(self.events.recv()).await.unwrap()
    }

    /// The next change of state must be this one.
    async fn until(&mut self, node: NodeId, state: PeerState) {
        loop {
            if let Event::Peer(found_node, found) = self.event().await {
                assert_eq!((found_node, found), (node, state));
                return;
            }
        }
    }

    async fn frame(&mut self) -> (NodeId, Channel, Bytes) {
        loop {
            if let Event::Frame(from, channel, frame) = self.event().await {
                return (from, channel, frame);
            }
        }
    }

    fn send(&self, to: NodeId, channel: Channel, bytes: &[u8]) -> Result<(), SendError> {
        self.transport.send(to, channel, Frame::from(Bytes::copy_from_slice(bytes)))
    }

    fn peer(&self, node: NodeId) -> PeerStats {
        self.transport.stats().peers[&node]
    }
}

fn cluster() -> ClusterId {
    ClusterId::from_text("cluster-A")
}

fn ca() -> ClusterCa {
    ClusterCa::create(&cluster(), validity()).unwrap()
}

fn validity() -> Validity {
    Validity::days(clock::wall_time(), 1)
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn config(ca: &ClusterCa, id: NodeId) -> TransportConfig {
    let identity = ca.issue(id, validity()).unwrap();
    TransportConfig::new(id, cluster(), identity, loopback())
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// Waits for something that has no event of its own.
async fn eventually(condition: impl Fn() -> bool) {
    within(async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Ends a node as `kill -9` would: without its runtime it says goodbye to nobody.
fn kill(life: Runtime, node: Node) {
    let address = node.transport.local_address();
    tokio::task::block_in_place(|| {
        life.shutdown_timeout(PATIENCE);
        drop(node);
        // The thread that takes packets off the socket ends by itself, and the socket with it.
        let until = Instant::now() + PATIENCE;
        while std::net::UdpSocket::bind(address).is_err() {
            assert!(Instant::now() < until, "the socket stays open");
            std::thread::yield_now();
        }
    });
}

fn pattern(length_bytes: usize, seed: usize) -> Bytes {
    (0..length_bytes).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8).collect()
}

fn credentials(ca: &ClusterCa, id: NodeId) -> Credentials {
    ca.issue(id, validity()).unwrap().check(id, &cluster(), clock::wall_time()).unwrap()
}

/// A node that only the test speaks for, of a binary that knows one lane.
fn raw_server(ca: &ClusterCa, id: NodeId) -> quinn::Endpoint {
    raw_server_of(ca, id, &[ALPN])
}

fn raw_server_of(ca: &ClusterCa, id: NodeId, protocols: &[&[u8]]) -> quinn::Endpoint {
    let mut tls = credentials(ca, id).server_config().unwrap();
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let crypto = QuicServerConfig::try_from(tls).unwrap();
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(RAW_WINDOW_BYTES));
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    server.transport_config(Arc::new(transport));
    quinn::Endpoint::server(server, loopback()).unwrap()
}

/// Accepts and greets one connection, and reads nothing.
async fn raw_accept(server: &quinn::Endpoint) -> quinn::Connection {
    raw_greet(next_incoming(server).await).await
}

/// The next connection that is dialled, but for one for metadata, which is refused as by an older binary.
async fn next_incoming(server: &quinn::Endpoint) -> quinn::Incoming {
    loop {
        let incoming = within(server.accept()).await.unwrap();
        match Lane::of_incoming(&incoming) {
            Lane::Foreground | Lane::Background => return incoming,
            Lane::Metadata => incoming.refuse(),
        }
    }
}

async fn raw_greet(incoming: quinn::Incoming) -> quinn::Connection {
    let connection = within(incoming.accept().unwrap()).await.unwrap();
    let mut greeting = within(connection.open_uni()).await.unwrap();
    greeting.write_all(&GREETING).await.unwrap();
    connection
}

/// A queue takes what fits; the rest waits until there is room.
async fn send_patiently(node: &Node, to: NodeId, channel: Channel, frame: &Bytes) {
    loop {
        let half = frame.len() / 2;
        let parts = vec![frame.slice(..half), frame.slice(half..)];
        match node.transport.send(to, channel, Frame::from(parts)) {
            Ok(()) => return,
            Err(SendError::Full) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_all_sizes_arrive_in_order_on_all_channels() {
    const SIZES_BYTES: [usize; 11] =
        [0, 1, 3, 4, 1000, 6500, 8192, 8193, 100_000, 1 << 20, 3 << 20];
    let ca = ca();
    let mut nodes = Vec::new();
    for id in [ONE, TWO, THREE] {
        nodes.push(Node::start(&ca, id).await);
    }
    for node in &nodes {
        nodes.iter().filter(|other| other.id != node.id).for_each(|other| node.dials(other));
    }
    for node in &mut nodes {
        let mut up = HashSet::new();
        while up.len() < 2 {
            match node.event().await {
                Event::Peer(peer, PeerState::Up) => up.insert(peer),
                event => panic!("{event:?}"),
            };
        }
    }
    for node in &nodes {
        for peer in [ONE, TWO, THREE].into_iter().filter(|peer| *peer != node.id) {
            eventually(|| node.transport.peers.has_lane_for_metadata(peer)).await;
        }
    }
    let sending = async {
        for (round, size_bytes) in SIZES_BYTES.into_iter().enumerate() {
            for (node, to) in nodes.iter().flat_map(|node| [ONE, TWO, THREE].map(|to| (node, to))) {
                for channel in Channel::ALL.into_iter().filter(|_| to != node.id) {
                    let seed = round ^ channel as usize ^ node.id.get() as usize;
                    send_patiently(node, to, channel, &pattern(size_bytes, seed)).await;
                }
            }
        }
    };
    within(sending).await;
    for node in &mut nodes {
        let mut rounds: HashMap<(NodeId, Channel), usize> = HashMap::new();
        for _ in 0..2 * Channel::ALL.len() * SIZES_BYTES.len() {
            let (from, channel, frame) = node.frame().await;
            let round = rounds.entry((from, channel)).or_default();
            let seed = *round ^ channel as usize ^ from.get() as usize;
            assert_eq!(frame.len(), SIZES_BYTES[*round], "{from:?} {channel:?} {round}");
            assert!(frame == pattern(frame.len(), seed), "{from:?} {channel:?} {round}");
            *round += 1;
        }
    }
    let bytes: usize = SIZES_BYTES.iter().map(|size_bytes| size_bytes + 4).sum();
    let bytes = (bytes * Channel::ALL.len()) as u64;
    for node in &nodes {
        for peer in [ONE, TWO, THREE].into_iter().filter(|peer| *peer != node.id) {
            eventually(|| node.peer(peer).sent_bytes == bytes).await;
            let stats = node.peer(peer);
            assert_eq!((stats.received_bytes, stats.queued_bytes), (bytes, 0));
            assert_eq!((stats.state, stats.connects), (PeerState::Up, 1));
            assert!(stats.rtt > Duration::ZERO);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_is_not_read_fills_only_its_own_queue() {
    let ca = ca();
    let stalled = raw_server(&ca, TWO);
    let mut healthy = Node::start(&ca, THREE).await;
    let mut config = config(&ca, ONE);
    config.frame_bytes_max = 64 << 10;
    config.queue_bytes_max = 1 << 20;
    let mut node = Node::start_with(config).await;
    node.dials_at(TWO, stalled.local_addr().unwrap());
    let connection = raw_accept(&stalled).await;
    node.until(TWO, PeerState::Up).await;
    node.dials(&healthy);
    node.until(THREE, PeerState::Up).await;

    // Nobody reads, and the first frame alone is more than the stream takes.
    let frame = pattern(60_000, 1);
    let taken = (0..100).take_while(|_| node.send(TWO, Channel::Put, &frame).is_ok()).count();
    assert_eq!(taken, (1 << 20) / (60_000 + 4));
    assert_eq!(node.send(TWO, Channel::Put, &frame), Err(SendError::Full));

    node.send(THREE, Channel::Put, &frame).unwrap();
    assert_eq!(healthy.frame().await, (ONE, Channel::Put, frame));
    node.send(TWO, Channel::Control, b"urgent").unwrap();
    let mut streams = Vec::new();
    for _ in 0..Channel::ALL.len() - 1 {
        let mut stream = within(connection.accept_uni()).await.unwrap();
        let mut channel = [0];
        within(stream.read_exact(&mut channel)).await.unwrap();
        if channel == [Channel::Control as u8] {
            let mut frame = [0; 10];
            within(stream.read_exact(&mut frame)).await.unwrap();
            assert_eq!(&frame, b"\0\0\0\x06urgent");
        }
        streams.push(stream);
    }
    assert_eq!(node.send(TWO, Channel::Put, &pattern(60_000, 1)), Err(SendError::Full));
}

#[tokio::test]
async fn a_peer_that_stops_reading_a_channel_is_dialled_anew() {
    let ca = ca();
    let broken = raw_server(&ca, TWO);
    let mut node = Node::start(&ca, ONE).await;
    node.dials_at(TWO, broken.local_addr().unwrap());
    let connection = raw_accept(&broken).await;
    node.until(TWO, PeerState::Up).await;
    within(connection.accept_uni()).await.unwrap().stop(VarInt::from_u32(0)).unwrap();
    node.until(TWO, PeerState::Down).await;
    let _connection = raw_accept(&broken).await;
    node.until(TWO, PeerState::Up).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_peer_is_down_soon_and_dialled_until_it_is_back() {
    let ca = ca();
    let mut node = Node::start(&ca, ONE).await;
    let own_address = node.transport.local_address();
    let life = Runtime::new().unwrap();
    let mut peer_config = config(&ca, TWO);
    let peer = life.spawn(Node::start_with(peer_config.clone())).await.unwrap();
    peer_config.listen = peer.transport.local_address();
    node.dials(&peer);
    node.until(TWO, PeerState::Up).await;
    node.send(TWO, Channel::Put, b"first").unwrap();

    kill(life, peer);
    let killed = Instant::now();
    node.until(TWO, PeerState::Down).await;
    assert!(killed.elapsed() < Duration::from_secs(4), "{:?}", killed.elapsed());
    assert_eq!(node.send(TWO, Channel::Put, b"lost"), Err(SendError::Down));

    let mut peer = Node::start_with(peer_config).await;
    peer.dials_at(ONE, own_address);
    node.until(TWO, PeerState::Up).await;
    node.send(TWO, Channel::Put, b"second").unwrap();
    assert_eq!(peer.frame().await, (ONE, Channel::Put, Bytes::from_static(b"second")));
    assert_eq!(node.peer(TWO).connects, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_restarts_at_once_resets_the_old_connection() {
    let ca = ca();
    let mut node_config = config(&ca, ONE);
    node_config.idle_timeout = PATIENCE * 10;
    let mut node = Node::start_with(node_config).await;
    let life = Runtime::new().unwrap();
    let mut peer_config = config(&ca, TWO);
    peer_config.idle_timeout = PATIENCE * 10;
    let peer = life.spawn(Node::start_with(peer_config.clone())).await.unwrap();
    peer_config.listen = peer.transport.local_address();
    node.dials(&peer);
    node.until(TWO, PeerState::Up).await;

    kill(life, peer);
    let _restarted = Node::start_with(peer_config).await;
    // Far sooner than the idle timeout: the restarted peer does not know the connection.
    node.until(TWO, PeerState::Down).await;
    node.until(TWO, PeerState::Up).await;
}

#[tokio::test]
async fn peers_come_and_go_as_they_are_named() {
    let ca = ca();
    let mut node = Node::start(&ca, ONE).await;
    let here = Node::start(&ca, TWO).await;
    assert_eq!(node.send(TWO, Channel::Put, b""), Err(SendError::UnknownPeer));
    node.dials(&here);
    node.until(TWO, PeerState::Up).await;

    let mut there = Node::start(&ca, TWO).await;
    node.dials(&there);
    node.until(TWO, PeerState::Down).await;
    node.until(TWO, PeerState::Up).await;
    node.send(TWO, Channel::Bulk, b"moved").unwrap();
    assert_eq!(there.frame().await, (ONE, Channel::Bulk, Bytes::from_static(b"moved")));

    node.transport.remove_peer(TWO);
    node.until(TWO, PeerState::Down).await;
    assert_eq!(node.send(TWO, Channel::Put, b""), Err(SendError::UnknownPeer));

    node.dials(&there);
    node.until(TWO, PeerState::Up).await;
    there.transport.close().await;
    node.until(TWO, PeerState::Down).await;

    node.dials_at(ONE, here.transport.local_address());
    assert_eq!(node.send(ONE, Channel::Put, b""), Err(SendError::UnknownPeer));
}

#[tokio::test]
async fn a_node_that_nobody_named_is_answered_where_it_came_from() {
    let ca = ca();
    let mut member = Node::start(&ca, ONE).await;
    let mut spare = Node::start(&ca, TWO).await;
    spare.dials(&member);
    spare.until(ONE, PeerState::Up).await;
    spare.send(ONE, Channel::Control, b"what am I?").unwrap();
    assert_eq!(member.frame().await.0, TWO);
    eventually(|| member.peer(TWO).state == PeerState::Up).await;
    member.send(TWO, Channel::Control, b"a spare").unwrap();
    assert_eq!(spare.frame().await, (ONE, Channel::Control, Bytes::from_static(b"a spare")));
    // Once it is named it is dialled there, whatever it came from.
    let moved = Node::start(&ca, TWO).await;
    member.dials(&moved);
    eventually(|| member.peer(TWO).connects == 2).await;
}

/// Answers every frame on `Control` and counts the others.
#[derive(Default)]
struct Echo {
    transport: std::sync::OnceLock<Transport>,
    received: AtomicU64,
}

impl Handler for Echo {
    fn on_frame(&self, from: NodeId, channel: Channel, frame: Bytes) {
        if channel == Channel::Control {
            let transport = self.transport.get().expect("set before anybody sends");
            transport.send(from, channel, Frame::from(frame)).expect("the caller is up");
        } else {
            self.received.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn on_peer(&self, _: NodeId, _: PeerState) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emulated_long_line_delays_each_frame_but_not_one_after_another() {
    const ONE_WAY: Duration = Duration::from_millis(40);
    const COUNT: u64 = 2000;
    let ca = ca();
    let delayed = |id| {
        let mut config = config(&ca, id);
        config.emulated_one_way_delay = ONE_WAY;
        config
    };
    let echo = Arc::new(Echo::default());
    let far = Transport::start(delayed(TWO), Arc::<Echo>::clone(&echo)).await.unwrap();
    let mut near = Node::start_with(delayed(ONE)).await;
    let mut same_datacenter = Node::start_with(delayed(THREE)).await;
    let far_address = far.local_address();
    far.set_peer(ONE, near.transport.local_address(), PathClass::CrossDatacenter);
    assert!(echo.transport.set(far).is_ok());
    near.transport.set_peer(TWO, far_address, PathClass::CrossDatacenter);
    near.until(TWO, PeerState::Up).await;
    eventually(|| {
        echo.transport.get().is_some_and(|far| far.stats().peers[&ONE].state == PeerState::Up)
    })
    .await;

    let start = Instant::now();
    near.send(TWO, Channel::Control, b"ping").unwrap();
    assert_eq!(near.frame().await, (TWO, Channel::Control, Bytes::from_static(b"ping")));
    assert!(start.elapsed() >= ONE_WAY * 2, "{:?}", start.elapsed());

    let start = Instant::now();
    let frame = pattern(16 << 10, 5);
    for _ in 0..COUNT {
        send_patiently(&near, TWO, Channel::Put, &frame).await;
    }
    eventually(|| echo.received.load(Ordering::Relaxed) == COUNT).await;
    let elapsed = start.elapsed();
    assert!(elapsed >= ONE_WAY && elapsed < ONE_WAY * COUNT as u32 / 4, "{elapsed:?}");

    // Within a datacenter nothing is delayed.
    near.dials(&same_datacenter);
    near.until(THREE, PeerState::Up).await;
    near.send(THREE, Channel::Control, b"ping").unwrap();
    assert_eq!(same_datacenter.frame().await.0, ONE);
}
