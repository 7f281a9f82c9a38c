//! The UDP socket and the QUIC settings of both directions.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{ClusterId, NodeId};
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::runtime::Handle;

use super::lane::Lane;
use super::peer::{LATE_COUNT_MAX, Target};
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

/// The QUIC endpoint of this node, for dialling and accepting.
#[derive(Clone)]
pub(super) struct Endpoint {
    quinn: quinn::Endpoint,
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
    same_datacenter: quinn::ClientConfig,
    cross_datacenter: quinn::ClientConfig,
    server: Arc<quinn::ServerConfig>,
}

impl Endpoint {
    /// The current runtime drives the foreground; the threads for metadata take packets off the socket.
    pub(super) fn open(
        config: &TransportConfig,
        background: Handle,
        metadata: Handle,
    ) -> Result<Self, TransportError> {
        let credentials =
            config.identity.check(config.node, &config.cluster, clock::wall_time())?;
        let credentials = credentials.letting_in(config.trust.clone());
        let listen = |source| TransportError::Listen { address: config.listen, source };
        let socket = UdpSocket::bind(config.listen).map_err(listen)?;
        set_buffers(&socket, config.socket_buffer_bytes);
        let local_address = socket.local_addr().map_err(listen)?;
        let lane = |lane, threads| {
            let client = |path| client_config(config, &credentials, lane, path);
            Ok::<_, TransportError>(LaneEnd {
                threads,
                same_datacenter: client(PathClass::SameDatacenter)?,
                cross_datacenter: client(PathClass::CrossDatacenter)?,
                server: Arc::new(server_config(config, &credentials, lane)?),
            })
        };
        let foreground = lane(Lane::Foreground, Handle::current())?;
        let background = lane(Lane::Background, background)?;
        let metadata = lane(Lane::Metadata, metadata)?;
        let _threads = metadata.threads.enter();
        let quinn = quinn::Endpoint::new(
            endpoint_config(config, &credentials)?,
            Some(foreground.server.as_ref().clone()),
            socket,
            Arc::new(quinn::TokioRuntime),
        )
        .map_err(listen)?;
        let (cluster, metadata) = (config.cluster.clone(), metadata.clone());
        Ok(Self { quinn, local_address, cluster, foreground, background, metadata })
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
        Ok(self.quinn.connect_with(config, address, &name)?)
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

    pub(super) async fn accept(&self) -> Option<quinn::Incoming> {
        self.quinn.accept().await
    }

    pub(super) fn close(&self, code: VarInt, reason: &str) {
        self.quinn.close(code, reason.as_bytes());
    }

    pub(super) async fn wait_idle(&self) {
        self.quinn.wait_idle().await;
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
) -> Result<quinn::EndpointConfig, TransportError> {
    let mut endpoint = credentials.endpoint_config("meridian");
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

/// Asks for large socket buffers: beyond the system's limit where we may (`CAP_NET_ADMIN`), else
/// up to it. Smaller ones only cost retransmissions, so failure is only logged.
fn set_buffers(socket: &UdpSocket, size_bytes: usize) {
    let size_bytes = libc::c_int::try_from(size_bytes).unwrap_or(libc::c_int::MAX);
    for (forced, limited) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if set_socket_option(socket, forced, size_bytes).is_err()
            && let Err(error) = set_socket_option(socket, limited, size_bytes)
        {
            tracing::warn!(%error, size_bytes, "cannot enlarge the UDP socket's buffers");
        }
    }
}

#[expect(unsafe_code, reason = "the standard library does not set socket buffers")]
fn set_socket_option(
    socket: &UdpSocket,
    option: libc::c_int,
    value: libc::c_int,
) -> Result<(), std::io::Error> {
    // SAFETY: the descriptor is open while `socket` is borrowed, and `value` is a live c_int of
    // the size given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
