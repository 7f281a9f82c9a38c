//! The UDP socket and the QUIC settings of both directions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{ClusterId, NodeId};
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::runtime::Handle;

use super::lane::{Lane, MetadataIds};
use super::peer::{LATE_COUNT_MAX, Target};
use super::socket::{PacketSocket, Sockets};
use super::{Channel, PathClass, TransportConfig, TransportError};
use crate::clock;
use crate::congestion::SteadyBbrConfig;
use crate::tls::{self, Credentials, TlsError};

/// Why a connection was closed, as the peer is told.
pub(super) mod close_code {
    use quinn::VarInt;

    /// The node stops, or no longer wants the peer.
    pub(in super::super) const SHUT_DOWN: VarInt = VarInt::from_u32(0);
    /// A frame, stream or greeting broke the wire format.
    pub(in super::super) const BAD_FRAME: VarInt = VarInt::from_u32(1);
    /// The certificate is not that of another node of this cluster.
    pub(in super::super) const NOT_A_PEER: VarInt = VarInt::from_u32(2);
    /// The node has connected again.
    pub(in super::super) const REPLACED: VarInt = VarInt::from_u32(3);
    /// The accepting side no longer reads one of the channels.
    pub(in super::super) const CHANNEL_LOST: VarInt = VarInt::from_u32(4);
    /// Nothing was heard for too long.
    pub(in super::super) const SILENT: VarInt = VarInt::from_u32(5);
}

/// The UDP payload that every path of QUIC must carry.
pub(super) const DATAGRAM_BYTES_MIN: u16 = 1200;

/// quinn cuts up to ten packets out of one buffer, and the kernel refuses buffers over 64 KiB.
const GSO_DATAGRAM_BYTES_MAX: u16 = 6550;

// Windows are bandwidth x round trip: 16 MiB per stream carries 1.6 Gbit/s at 80 ms.
const STREAM_WINDOW_BYTES: u32 = 16 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// In a datacenter 4 MiB carries 32 Gbit/s at 1 ms, and fits the receiver's socket buffer: a
/// sender that is faster than the receiver does not cause losses.
const SAME_DATACENTER_SEND_WINDOW_BYTES: u64 = 4 << 20;

/// Acknowledgements travel alone, because answers go over the other direction's connection: each
/// costs a packet and two wake-ups. So they wait for this many packets, or this long.
const ACK_EVERY_PACKETS: u32 = 32;
const ACK_WITHIN: Duration = Duration::from_millis(10);
/// With acknowledgements that rare the first window must carry a large blob at once.
const INITIAL_WINDOW_BYTES: u64 = 2 << 20;

// First guesses, until the handshake has measured the path: they time its retransmissions.
const SAME_DATACENTER_INITIAL_RTT: Duration = Duration::from_millis(20);
const CROSS_DATACENTER_INITIAL_RTT: Duration = Duration::from_millis(150);

/// The QUIC endpoints of this node, for dialling and accepting.
#[derive(Clone)]
pub(super) struct Endpoint {
    local_address: SocketAddr,
    cluster: ClusterId,
    foreground: LaneEnd,
    background: LaneEnd,
    metadata: LaneEnd,
}

/// What differs between lanes.
#[derive(Clone)]
struct LaneEnd {
    /// What drives its connections.
    threads: Handle,
    /// What accepts its connections, and takes their packets.
    quinn: quinn::Endpoint,
    /// What dials its connections.
    dialler: quinn::Endpoint,
    same_datacenter: quinn::ClientConfig,
    cross_datacenter: quinn::ClientConfig,
    server: Arc<quinn::ServerConfig>,
}

impl Endpoint {
    /// The current runtime drives the foreground, and takes its packets and those of the background off their socket.
    pub(super) fn open(
        config: &TransportConfig,
        background: Handle,
        metadata: Handle,
    ) -> Result<Self, TransportError> {
        let credentials =
            config.identity.check(config.node, &config.cluster, clock::wall_time())?;
        let credentials = credentials.letting_in(config.trust.clone());
        let listen = |source| TransportError::Listen { address: config.listen, source };
        let sockets = Sockets::bind(config.listen, config.socket_buffer_bytes).map_err(listen)?;
        let local_address = sockets.main.local_addr().map_err(listen)?;
        let server = |lane| server_config(config, &credentials, lane).map(Arc::new);
        let foreground_server = server(Lane::Foreground)?;
        let open_quinn = |lane, threads: &Handle, socket, server: Option<&quinn::ServerConfig>| {
            let _threads = threads.enter();
            quinn::Endpoint::new_with_abstract_socket(
                endpoint_config(config, &credentials, lane)?,
                server.cloned(),
                PacketSocket::new(socket).map_err(listen)?,
                Arc::new(quinn::TokioRuntime),
            )
            .map_err(listen)
        };
        let accepting = Some(foreground_server.as_ref());
        // Without a socket of its own, metadata must not wait for the foreground's threads to take its packets.
        let (main_lane, main_threads) = match sockets.metadata {
            Some(_) => (Lane::Foreground, Handle::current()),
            None => (Lane::Metadata, metadata.clone()),
        };
        let main = open_quinn(main_lane, &main_threads, sockets.main, accepting)?;
        let metadata_quinn = match sockets.metadata {
            Some(socket) => open_quinn(Lane::Metadata, &metadata, socket, accepting)?,
            None => main.clone(),
        };
        let dialler = open_quinn(Lane::Metadata, &metadata, sockets.metadata_dialler, None)?;
        let lane = |lane, threads, [quinn, dialler]: [&quinn::Endpoint; 2], server| {
            let client = |path| client_config(config, &credentials, lane, path);
            Ok::<_, TransportError>(LaneEnd {
                threads,
                quinn: quinn.clone(),
                dialler: dialler.clone(),
                same_datacenter: client(PathClass::SameDatacenter)?,
                cross_datacenter: client(PathClass::CrossDatacenter)?,
                server,
            })
        };
        Ok(Self {
            local_address,
            cluster: config.cluster.clone(),
            foreground: lane(
                Lane::Foreground,
                Handle::current(),
                [&main, &main],
                foreground_server.clone(),
            )?,
            background: lane(
                Lane::Background,
                background,
                [&main, &main],
                server(Lane::Background)?,
            )?,
            metadata: lane(
                Lane::Metadata,
                metadata,
                [&metadata_quinn, &dialler],
                server(Lane::Metadata)?,
            )?,
        })
    }

    /// What drives the connections of a lane, and is to work on them.
    pub(super) fn threads(&self, lane: Lane) -> &Handle {
        &self.end(lane).threads
    }

    fn end(&self, lane: Lane) -> &LaneEnd {
        match lane {
            Lane::Foreground => &self.foreground,
            Lane::Background => &self.background,
            Lane::Metadata => &self.metadata,
        }
    }

    pub(super) fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Starts a handshake with `node`, and no other, at `address`.
    pub(super) fn connect(
        &self,
        node: NodeId,
        Target { address, path }: Target,
        lane: Lane,
    ) -> Result<quinn::Connecting, ConnectError> {
        let end = self.end(lane);
        let config = match path {
            PathClass::SameDatacenter => end.same_datacenter.clone(),
            PathClass::CrossDatacenter => end.cross_datacenter.clone(),
        };
        let name = tls::node_name(node, &self.cluster)?;
        // The connection's driver is spawned where this is called.
        let _threads = end.threads.enter();
        Ok(end.dialler.connect_with(config, address, &name)?)
    }

    /// Goes on with a handshake that a peer has started.
    pub(super) fn take(
        &self,
        incoming: quinn::Incoming,
    ) -> Result<quinn::Connecting, quinn::ConnectionError> {
        let end = self.end(Lane::of_incoming(&incoming));
        let _threads = end.threads.enter();
        incoming.accept_with(Arc::clone(&end.server))
    }

    /// The next connection that comes in by the packets of this lane; none once the endpoint is closed.
    pub(super) async fn accept(&self, lane: Lane) -> Option<quinn::Incoming> {
        self.end(lane).quinn.accept().await
    }

    pub(super) fn close(&self, code: VarInt, reason: &str) {
        for quinn in self.all() {
            quinn.close(code, reason.as_bytes());
        }
    }

    pub(super) async fn wait_idle(&self) {
        for quinn in self.all() {
            quinn.wait_idle().await;
        }
    }

    fn all(&self) -> [&quinn::Endpoint; 3] {
        [&self.foreground.quinn, &self.metadata.quinn, &self.metadata.dialler]
    }
}

/// Why a handshake could not even start.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error(transparent)]
    Name(#[from] TlsError),
    #[error(transparent)]
    Quic(#[from] quinn::ConnectError),
}

/// The node that the handshake has proved the other side to be.
pub(super) fn peer_node(
    connection: &quinn::Connection,
    cluster: &ClusterId,
) -> Result<NodeId, TlsError> {
    let chain = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    match chain.as_deref().and_then(|chain| chain.first()) {
        Some(leaf) => tls::node_of(leaf, cluster),
        None => Err(TlsError::NotANode { detail: "no certificate was shown".to_owned() }),
    }
}

fn endpoint_config(
    config: &TransportConfig,
    credentials: &Credentials,
    lane: Lane,
) -> Result<quinn::EndpointConfig, TransportError> {
    let mut endpoint = credentials.endpoint_config("meridian");
    if lane == Lane::Metadata {
        endpoint.cid_generator(|| Box::new(MetadataIds));
    }
    endpoint
        .max_udp_payload_size(config.datagram_bytes_max.max(DATAGRAM_BYTES_MIN))
        .map_err(|_| TransportError::Config("datagram_bytes_max must be from 1200 to 65527"))?;
    Ok(endpoint)
}

fn server_config(
    config: &TransportConfig,
    credentials: &Credentials,
    lane: Lane,
) -> Result<quinn::ServerConfig, TransportError> {
    let crypto = QuicServerConfig::try_from(credentials.server_config()?)
        .map_err(|error| TlsError::Setup { detail: error.to_string() })?;
    let mut transport = transport_config(config, lane)?;
    let channel_count = Channel::ALL.len() as u32;
    transport
        .max_concurrent_uni_streams(VarInt::from_u32(channel_count))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES));
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    server.transport_config(Arc::new(transport)).migration(false);
    Ok(server)
}

fn client_config(
    config: &TransportConfig,
    credentials: &Credentials,
    lane: Lane,
    path: PathClass,
) -> Result<quinn::ClientConfig, TransportError> {
    let mut crypto = credentials.client_config()?;
    match lane {
        Lane::Foreground => {}
        Lane::Background => crypto.alpn_protocols = vec![tls::BACKGROUND_ALPN.to_vec()],
        Lane::Metadata => crypto.alpn_protocols = vec![tls::METADATA_ALPN.to_vec()],
    }
    let crypto = QuicClientConfig::try_from(crypto)
        .map_err(|error| TlsError::Setup { detail: error.to_string() })?;
    let mut transport = transport_config(config, lane)?;
    // One stream comes back: the greeting.
    transport.max_concurrent_uni_streams(VarInt::from_u32(1));
    if lane != Lane::Background {
        transport.keep_alive_interval(Some(config.keep_alive_interval));
    }
    let mut cubic = CubicConfig::default();
    cubic.initial_window(INITIAL_WINDOW_BYTES);
    let bbr = SteadyBbrConfig::new(INITIAL_WINDOW_BYTES);
    match path {
        PathClass::SameDatacenter => transport
            .initial_rtt(SAME_DATACENTER_INITIAL_RTT)
            .send_window(SAME_DATACENTER_SEND_WINDOW_BYTES)
            .congestion_controller_factory(Arc::new(cubic)),
        PathClass::CrossDatacenter => transport
            .initial_rtt(CROSS_DATACENTER_INITIAL_RTT)
            .send_window(CONNECTION_WINDOW_BYTES.into())
            .congestion_controller_factory(Arc::new(bbr)),
    };
    let mut client = quinn::ClientConfig::new(Arc::new(crypto));
    client.transport_config(Arc::new(transport));
    if let Some(marked_ids) = lane.marked_ids() {
        client.initial_dst_cid_provider(Arc::new(marked_ids));
    }
    Ok(client)
}

/// What both directions have in common.
fn transport_config(
    config: &TransportConfig,
    lane: Lane,
) -> Result<quinn::TransportConfig, TransportError> {
    // It holds for handshakes too, which take long where processors are short: the dialling side looks for silence itself.
    let idle_timeout = IdleTimeout::try_from(config.idle_timeout * 2_u32.pow(LATE_COUNT_MAX))
        .map_err(|_| TransportError::Config("idle_timeout is out of range"))?;
    let mut mtu_discovery = MtuDiscoveryConfig::default();
    mtu_discovery.upper_bound(config.datagram_bytes_max);
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements
        .ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY_PACKETS))
        .max_ack_delay(Some(ACK_WITHIN));
    let mut transport = quinn::TransportConfig::default();
    transport
        .ack_frequency_config(Some(acknowledgements))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        // That of the background goes with the foreground, which is probed: two probes would find out the same.
        .max_idle_timeout((lane != Lane::Background).then_some(idle_timeout))
        .mtu_discovery_config(Some(mtu_discovery))
        .enable_segmentation_offload(config.datagram_bytes_max <= GSO_DATAGRAM_BYTES_MAX);
    Ok(transport)
}
