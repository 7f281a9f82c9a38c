//! Bulk and metadata have connections and threads of their own, with peers that know of them.

use quinn::crypto::rustls::QuicClientConfig;

use super::super::inbound::HANDSHAKES_MAX;
use super::trust::raw_connect;
use super::*;
use crate::tls::{BACKGROUND_ALPN, LANES_ALPN, node_name};

const LANES: [&[u8]; 2] = [LANES_ALPN, BACKGROUND_ALPN];

/// What `nice` says of the calling thread.
fn niceness() -> i32 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // Behind the name in parentheses, which may hold anything, it is the 17th (proc_pid_stat(5)).
    stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().parse().unwrap()
}

/// Tells of the threads that handle frames.
struct Niceness(mpsc::UnboundedSender<(Channel, i32)>);

impl Handler for Niceness {
    fn on_frame(&self, _: NodeId, channel: Channel, _: Bytes) {
        let _test_may_be_over = self.0.send((channel, niceness()));
    }

    fn on_peer(&self, _: NodeId, _: PeerState) {}
}

/// A large part of a frame, which tells of the thread that drops it: the one that drives its connection, once it has arrived.
struct Sent(Vec<u8>, mpsc::UnboundedSender<i32>);

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let _test_may_be_over = self.1.send(niceness());
    }
}

/// A connection to `to` that says by its protocol what it is for.
async fn connect_as(
    ca: &ClusterCa,
    to: &Node,
    protocol: &[u8],
) -> (quinn::Endpoint, quinn::Connection) {
    try_connect_as(ca, to, protocol).await.unwrap()
}

async fn try_connect_as(
    ca: &ClusterCa,
    to: &Node,
    protocol: &[u8],
) -> Result<(quinn::Endpoint, quinn::Connection), quinn::ConnectionError> {
    let mut tls = credentials(ca, TWO).client_config().unwrap();
    tls.alpn_protocols = vec![protocol.to_vec()];
    raw_connect(tls, to).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_of_bulk_yield_to_all_others() {
    let ca = ca();
    let (sender, mut delivered) = mpsc::unbounded_channel();
    let far = Transport::start(config(&ca, TWO), Arc::new(Niceness(sender))).await.unwrap();
    let mut node = Node::start(&ca, ONE).await;
    node.dials_at(TWO, far.local_address());
    node.until(TWO, PeerState::Up).await;
    let (sender, mut sent) = mpsc::unbounded_channel();
    let usual = niceness();
    for channel in Channel::ALL.into_iter().filter(|it| *it != Channel::Metadata) {
        let part = Bytes::from_owner(Sent(vec![7; 64 << 10], sender.clone()));
        node.transport.send(TWO, channel, part.into()).unwrap();
        let bulk = (usual + 10).min(19);
        let driven = if channel == Channel::Bulk { bulk } else { usual };
        assert_eq!(within(sent.recv()).await.unwrap(), driven, "{channel:?}");
        // A handler takes locks that puts wait for.
        assert_eq!(within(delivered.recv()).await.unwrap(), (channel, usual));
    }
}

/// Lets the one thread go on that all else waits for.
struct Rescue(std::sync::mpsc::Sender<Channel>);

impl Handler for Rescue {
    fn on_frame(&self, _: NodeId, channel: Channel, _: Bytes) {
        let _test_may_be_over = self.0.send(channel);
    }

    fn on_peer(&self, _: NodeId, _: PeerState) {}
}

/// A node that has no processor to spare must not be taken for dead, nor take others for it.
#[test]
fn metadata_arrives_while_all_other_threads_are_busy() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (near, far) = (runtime().unwrap(), runtime().unwrap());
    let ca = ca();
    let (arrived, rescue) = std::sync::mpsc::channel();
    let transport = far.block_on(Transport::start(config(&ca, TWO), Arc::new(Rescue(arrived))));
    let transport = transport.unwrap();
    let mut node = near.block_on(Node::start(&ca, ONE));
    near.block_on(async {
        node.dials_at(TWO, transport.local_address());
        node.until(TWO, PeerState::Up).await;
        eventually(|| node.transport.peers.has_lane_for_metadata(TWO)).await;
    });
    let (begun, busy) = std::sync::mpsc::channel();
    let rescued = far.spawn(async move {
        begun.send(()).unwrap();
        rescue.recv_timeout(Duration::from_secs(10))
    });
    busy.recv().unwrap();
    node.send(TWO, Channel::Metadata, b"I am alive").unwrap();
    assert_eq!(near.block_on(rescued).unwrap(), Ok(Channel::Metadata));
}

#[tokio::test]
async fn a_peer_of_an_older_binary_hears_metadata_all_the_same() {
    let ca = ca();
    let server = raw_server_of(&ca, TWO, &LANES);
    let mut node = Node::start(&ca, ONE).await;
    node.dials_at(TWO, server.local_addr().unwrap());
    let connection = raw_accept(&server).await;
    node.until(TWO, PeerState::Up).await;
    node.send(TWO, Channel::Metadata, b"beat").unwrap();
    let mut received = [0; 9];
    let mut stream = within(connection.accept_uni()).await.unwrap();
    within(stream.read_exact(&mut received)).await.unwrap();
    assert_eq!(&received, &[&[Channel::Control as u8][..], b"\0\0\0\x04beat"].concat()[..]);
}

/// Anybody can begin handshakes, and those of bulk may take long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_keeps_bulk_from_connecting_keeps_nobody_else_from_it() {
    let ca = ca();
    let node = Node::start(&ca, ONE).await;
    let dark = tokio::net::UdpSocket::bind(loopback()).await.unwrap();
    let mut tls = credentials(&ca, TWO).client_config().unwrap();
    tls.alpn_protocols = vec![BACKGROUND_ALPN.to_vec()];
    let crypto = Arc::new(QuicClientConfig::try_from(tls).unwrap());
    let endpoint = quinn::Endpoint::client(loopback()).unwrap();
    let mut config = quinn::ClientConfig::new(crypto);
    config.initial_dst_cid_provider(Arc::new(Lane::Background.marked_ids().unwrap()));
    let name = node_name(ONE, &cluster()).unwrap();
    let mut packet = [0; 2048];
    let mut connecting = Vec::new();
    // First packets come to where nobody answers, and go from there to the node: each begins a handshake that never ends.
    for _ in 0..2 * HANDSHAKES_MAX {
        let to = dark.local_addr().unwrap();
        connecting.push(endpoint.connect_with(config.clone(), to, &name).unwrap());
        let (size_bytes, _) = within(dark.recv_from(&mut packet)).await.unwrap();
        dark.send_to(&packet[..size_bytes], node.transport.local_address()).await.unwrap();
    }
    within(async {
        while node.transport.acceptor.refused_connections() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (_endpoint, connection) = connect_as(&ca, &node, LANES_ALPN).await;
    assert!(connection.close_reason().is_none());
}

#[tokio::test]
async fn a_peer_is_up_before_bulk_is_connected_and_down_when_bulk_is_lost() {
    let ca = ca();
    let server = raw_server_of(&ca, TWO, &LANES);
    let mut node = Node::start(&ca, ONE).await;
    node.dials_at(TWO, server.local_addr().unwrap());
    let incoming = next_incoming(&server).await;
    assert_eq!(Lane::of_incoming(&incoming), Lane::Foreground);
    let foreground = raw_greet(incoming).await;
    node.until(TWO, PeerState::Up).await;
    node.send(TWO, Channel::Bulk, b"bulk").unwrap();

    let incoming = next_incoming(&server).await;
    assert_eq!(Lane::of_incoming(&incoming), Lane::Background, "known before the handshake");
    let background = raw_greet(incoming).await;
    let mut stream = within(background.accept_uni()).await.unwrap();
    let mut received = [0; 9];
    within(stream.read_exact(&mut received)).await.unwrap();
    assert_eq!(&received, &[&[Channel::Bulk as u8][..], b"\0\0\0\x04bulk"].concat()[..]);
    for _ in 0..3 {
        let mut channel = [0];
        let mut stream = within(foreground.accept_uni()).await.unwrap();
        within(stream.read_exact(&mut channel)).await.unwrap();
        assert_ne!(channel, [Channel::Bulk as u8]);
    }

    background.close(VarInt::from_u32(0), b"");
    node.until(TWO, PeerState::Down).await;
    within(foreground.closed()).await;
    let _foreground = raw_accept(&server).await;
    node.until(TWO, PeerState::Up).await;
}

#[tokio::test]
async fn a_node_of_an_older_binary_sends_all_on_one_connection() {
    let ca = ca();
    let mut node = Node::start(&ca, ONE).await;
    let (_endpoint, connection) = connect_as(&ca, &node, ALPN).await;
    for channel in Channel::ALL {
        let mut stream = within(connection.open_uni()).await.unwrap();
        stream.write_all(&[channel as u8, 0, 0, 0, 1, 7]).await.unwrap();
        assert_eq!(node.frame().await, (TWO, channel, Bytes::from_static(&[7])));
    }
}

#[tokio::test]
async fn accepted_bulk_goes_with_the_connection_beside_it() {
    let ca = ca();
    let node = Node::start(&ca, ONE).await;
    // Both of an earlier life end when the peer connects again, also if it does not for bulk.
    let (_endpoint, earlier) = connect_as(&ca, &node, LANES_ALPN).await;
    let (_endpoint, earlier_bulk) = connect_as(&ca, &node, BACKGROUND_ALPN).await;
    let (_endpoint, foreground) = connect_as(&ca, &node, LANES_ALPN).await;
    within(earlier.closed()).await;
    within(earlier_bulk.closed()).await;
    // A second connection for bulk takes the place of the first, and of nothing else.
    let (_endpoint, replaced) = connect_as(&ca, &node, BACKGROUND_ALPN).await;
    let (_endpoint, background) = connect_as(&ca, &node, BACKGROUND_ALPN).await;
    within(replaced.closed()).await;
    assert!(foreground.close_reason().is_none() && background.close_reason().is_none());
    foreground.close(VarInt::from_u32(0), b"");
    within(background.closed()).await;
    // One that comes too late would be there for good: nothing notices that its peer has gone.
    assert!(try_connect_as(&ca, &node, BACKGROUND_ALPN).await.is_err());
}
