//! Who is let in, and what gets a peer cut off.

use quinn::ConnectionError;
use quinn::crypto::rustls::QuicClientConfig;

use super::*;
use crate::tls::{NodeIdentity, PeerTrust, Serial, node_name};

/// Shows no certificate.
#[derive(Debug)]
struct Anonymous;

impl rustls::client::ResolvesClientCert for Anonymous {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Connects to `to` with bare QUIC and waits for its verdict: the connection, or why it closed.
pub(super) async fn raw_connect(
    tls: rustls::ClientConfig,
    to: &Node,
) -> Result<(quinn::Endpoint, quinn::Connection), ConnectionError> {
    raw_connect_with(tls, to, quinn::TransportConfig::default()).await
}

pub(super) async fn raw_connect_with(
    tls: rustls::ClientConfig,
    to: &Node,
    transport: quinn::TransportConfig,
) -> Result<(quinn::Endpoint, quinn::Connection), ConnectionError> {
    let crypto = QuicClientConfig::try_from(tls).unwrap();
    let endpoint = quinn::Endpoint::client(loopback()).unwrap();
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    let name = node_name(to.id, &cluster()).unwrap();
    let address = to.transport.local_address();
    let connection = within(endpoint.connect_with(config, address, &name).unwrap()).await?;
    let mut stream = within(connection.accept_uni()).await?;
    let mut greeting = [0; GREETING.len()];
    match within(stream.read_exact(&mut greeting)).await {
        Ok(()) => Ok((endpoint, connection)),
        Err(_) => Err(within(connection.closed()).await),
    }
}

fn closed_with(error: &ConnectionError) -> Option<VarInt> {
    match error {
        ConnectionError::ApplicationClosed(close) => Some(close.error_code),
        _ => None,
    }
}

#[tokio::test]
async fn who_is_not_another_node_of_the_cluster_is_refused() {
    let ca = ca();
    let other_cluster = ClusterId::from_text("cluster-B");
    let other_ca = ClusterCa::create(&other_cluster, validity()).unwrap();
    let mut config = config(&ca, ONE);
    // Node 1 trusts both authorities, so that only the name can give the other cluster away.
    config.identity.ca_pem += &other_ca.issue(TWO, validity()).unwrap().ca_pem;
    let trusted = config.identity.ca_pem.clone();
    let node = Node::start_with(config).await;

    let foreign = NodeIdentity { ca_pem: trusted, ..other_ca.issue(TWO, validity()).unwrap() };
    let foreign = foreign.check(TWO, &other_cluster, clock::wall_time()).unwrap();
    let error = raw_connect(foreign.client_config().unwrap(), &node).await.unwrap_err();
    assert_eq!(closed_with(&error), Some(close_code::NOT_A_PEER), "{error}");

    let own = credentials(&ca, ONE).client_config().unwrap();
    let error = raw_connect(own, &node).await.unwrap_err();
    assert_eq!(closed_with(&error), Some(close_code::NOT_A_PEER), "{error}");

    let mut anonymous = credentials(&ca, TWO).client_config().unwrap();
    anonymous.client_auth_cert_resolver = Arc::new(Anonymous);
    let error = raw_connect(anonymous, &node).await.unwrap_err();
    assert!(matches!(error, ConnectionError::ConnectionClosed(_)), "{error}");

    let mut other_protocol = credentials(&ca, TWO).client_config().unwrap();
    other_protocol.alpn_protocols = vec![b"other/1".to_vec()];
    let error = raw_connect(other_protocol, &node).await.unwrap_err();
    assert!(matches!(error, ConnectionError::ConnectionClosed(_)), "{error}");

    eventually(|| node.transport.stats().refused_connections == 4).await;
    assert!(node.transport.stats().peers.is_empty());
    raw_connect(credentials(&ca, TWO).client_config().unwrap(), &node).await.unwrap();
}

#[tokio::test]
async fn a_revoked_node_is_not_let_in_again() {
    let folder = std::env::temp_dir().join(format!("meridian-quic-trust-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let ca = ca();
    let lost = ca.issue(TWO, validity()).unwrap();
    lost.save(&folder).unwrap();
    let trust = Arc::new(PeerTrust::load(&folder).unwrap());
    let node =
        Node::start_with(TransportConfig { trust: Some(Arc::clone(&trust)), ..config(&ca, ONE) });
    let node = node.await;
    let lost = lost.check(TWO, &cluster(), clock::wall_time()).unwrap();
    drop(raw_connect(lost.client_config().unwrap(), &node).await.unwrap());

    let serial = Serial::of_file(&folder.join("node.pem")).unwrap();
    ca.revoke(&folder, &[serial], clock::wall_time()).unwrap();
    assert!(trust.reload().unwrap());
    let error = raw_connect(lost.client_config().unwrap(), &node).await.unwrap_err();
    assert!(matches!(error, ConnectionError::ConnectionClosed(_)), "{error}");
    raw_connect(credentials(&ca, TWO).client_config().unwrap(), &node).await.unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn nodes_of_different_authorities_never_go_up() {
    let mut nodes = Vec::new();
    for id in [ONE, TWO] {
        nodes.push(Node::start(&ca(), id).await);
    }
    nodes[0].dials(&nodes[1]);
    nodes[1].dials(&nodes[0]);
    // The dialler finds the other's certificate wrong, so the other sees its handshake fail.
    eventually(|| nodes.iter().all(|node| node.transport.stats().refused_connections > 2)).await;
    for node in &mut nodes {
        assert!(node.events.try_recv().is_err());
        assert_eq!(node.send(THREE, Channel::Put, b""), Err(SendError::UnknownPeer));
    }
    assert_eq!(nodes[0].send(TWO, Channel::Put, b""), Err(SendError::Down));
}

#[tokio::test]
async fn a_transport_starts_only_with_its_own_identity_and_sound_limits() {
    let ca = ca();
    let start = async |change: fn(&mut TransportConfig)| {
        let mut config = config(&ca, ONE);
        change(&mut config);
        let (sender, _events) = mpsc::unbounded_channel();
        Transport::start(config, Arc::new(Recorder(sender))).await.err()
    };
    assert!(start(|_| {}).await.is_none());
    let error = start(|config| config.node = TWO).await;
    assert!(matches!(error, Some(TransportError::Tls(TlsError::WrongNode { .. }))));
    let changes: [fn(&mut TransportConfig); 5] = [
        |config| config.queue_bytes_max = config.frame_bytes_max,
        |config| config.frame_bytes_max = 1 << 32,
        |config| config.datagram_bytes_max = 1199,
        |config| config.datagram_bytes_max = u16::MAX,
        |config| config.keep_alive_interval = config.idle_timeout,
    ];
    for change in changes {
        assert!(matches!(start(change).await, Some(TransportError::Config(_))));
    }
    let error = start(|config| config.listen = SocketAddr::from(([192, 0, 2, 1], 0))).await;
    assert!(matches!(error, Some(TransportError::Listen { .. })));
}

#[tokio::test]
async fn a_peer_that_breaks_the_wire_format_is_cut_off() {
    let ca = ca();
    let mut node = Node::start(&ca, ONE).await;
    let too_long = (16u32 << 20) + 1;
    let stream = |channel: u8, rest: &[u8]| [&[channel], rest].concat();
    for (broken, streams) in [
        vec![stream(1, &too_long.to_be_bytes())],
        vec![stream(9, b"")],
        vec![stream(2, &[0, 0, 0, 0]), stream(2, &[0, 0, 0, 0])],
    ]
    .into_iter()
    .enumerate()
    {
        let tls = credentials(&ca, TWO).client_config().unwrap();
        let (_endpoint, connection) = raw_connect(tls, &node).await.unwrap();
        let mut open = Vec::new();
        for bytes in streams {
            let mut stream = connection.open_uni().await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            open.push(stream);
        }
        let error = within(connection.closed()).await;
        assert_eq!(closed_with(&error), Some(close_code::BAD_FRAME), "{error}");
        assert_eq!(node.peer(TWO).bad_frames, broken as u64 + 1);
    }
    let too_long = Frame::from(Bytes::from(vec![0; (16 << 20) + 1]));
    node.dials_at(THREE, loopback());
    assert_eq!(node.transport.send(THREE, Channel::Put, too_long), Err(SendError::TooLong));
    while let Ok(event) = node.events.try_recv() {
        assert!(matches!(event, Event::Frame(TWO, Channel::Read, _)), "{event:?}");
    }
}

#[tokio::test]
async fn a_node_that_connects_again_replaces_its_earlier_connection() {
    let ca = ca();
    let node = Node::start(&ca, ONE).await;
    let tls = || credentials(&ca, TWO).client_config().unwrap();
    let (_endpoint, first) = raw_connect(tls(), &node).await.unwrap();
    let (_endpoint_two, second) = raw_connect(tls(), &node).await.unwrap();
    let error = within(first.closed()).await;
    assert_eq!(closed_with(&error), Some(close_code::REPLACED), "{error}");
    assert!(second.close_reason().is_none());
}
