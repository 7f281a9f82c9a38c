//! The transport between nodes: one-way frames over QUIC with mutual TLS.
//!
//! Each node dials every peer it sends to and accepts from all, so each connection has one owner, its
//! sender. There are three to a peer ([`lane`]): for what somebody waits for and for bulk, which go up and
//! down together, and for metadata, which goes by itself. On them the owner opens one stream per
//! [`Channel`]: a full channel does not hold up another. Frames of one channel arrive in order, but for metadata
//! while its connection comes or goes.
//! When a connection is lost, what was queued or in flight on it may be lost too; callers correlate
//! replies and send again. Nothing here waits for a slow peer: [`Transport::send`] puts the frame
//! in a queue bounded in bytes, or says at once why not.
//!
//! Wire format: the first byte of a stream is its channel's number; then frames, each a 4-byte
//! big-endian length and that many bytes.

mod config;
mod endpoint;
pub mod framing;
mod inbound;
mod lane;
mod outbound;
mod peer;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::NodeId;
use tokio::task::JoinHandle;

pub use self::config::TransportConfig;
use self::endpoint::{Endpoint, close_code};
use self::inbound::Acceptor;
pub use self::lane::hurry;
use self::lane::{Lane, LaneThreads};
use self::peer::{Peers, Target};
use crate::tls::TlsError;

/// How long [`Transport::close`] waits for the peers to hear of it.
const CLOSE_WAIT_MAX: Duration = Duration::from_millis(500);

/// A class of frames. Each has a stream and a send queue of its own, so none delays another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Channel {
    /// Fences, high watermarks: small and urgent; sent before puts and reads.
    Control = 0,
    /// Puts and their acks.
    Put = 1,
    /// Reads and what they return.
    Read = 2,
    /// Repair, scrub and mirroring.
    Bulk = 3,
    /// Raft and heartbeats; goes with [`Channel::Control`] to a peer without a connection for it.
    Metadata = 4,
}

impl Channel {
    /// All channels. The discriminants go over the wire: never renumber.
    pub const ALL: [Self; 5] = [Self::Control, Self::Put, Self::Read, Self::Bulk, Self::Metadata];

    fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|channel| *channel as u8 == number)
    }
}

/// One message, in parts that are sent one after another without being joined.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The parts; the receiver sees them as one.
    pub parts: Vec<Bytes>,
}

impl Frame {
    /// Length of all parts.
    pub fn len_bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }
}

impl From<Bytes> for Frame {
    fn from(part: Bytes) -> Self {
        Self { parts: vec![part] }
    }
}

impl From<Vec<Bytes>> for Frame {
    fn from(parts: Vec<Bytes>) -> Self {
        Self { parts }
    }
}

/// Where a peer is, seen from here. Chooses congestion control and windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathClass {
    /// In our datacenter: short round trips, losses mean congestion.
    SameDatacenter,
    /// In another: long round trips, where losses must not collapse the rate.
    CrossDatacenter,
}

/// Whether frames can be sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Connected; both sides have verified each other.
    Up,
    /// Not connected; being dialled.
    Down,
}

/// What the transport calls when something arrives. Called on its tasks: return at once.
pub trait Handler: Send + Sync + 'static {
    /// A frame has arrived. It may share memory with its packet's neighbours: copy what is small
    /// and kept for long.
    fn on_frame(&self, from: NodeId, channel: Channel, frame: Bytes);

    /// A peer named by [`Transport::set_peer`] went up or down. After `Down`, everything that was
    /// queued for or in flight to the peer may be lost.
    fn on_peer(&self, node: NodeId, state: PeerState);
}

/// Why a frame was not taken. It was not sent and will not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The peer takes frames slower than they come.
    #[error("the send queue of this peer and channel is full; slow down or try another node")]
    Full,
    /// The peer is not connected.
    #[error("the peer is down; try again once it is up, or another node")]
    Down,
    /// The peer was never named.
    #[error("the peer is unknown; it must be in the cluster's topology first")]
    UnknownPeer,
    /// The frame is larger than any peer accepts.
    #[error("the frame is longer than the configured maximum; split it")]
    TooLong,
}

/// Why a transport did not start.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Some setting contradicts another.
    #[error("transport configuration: {0}")]
    Config(&'static str),
    /// The node's certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There are no threads for bulk or metadata.
    #[error("cannot start the threads that carry bulk and metadata between nodes: {0}")]
    Threads(#[source] std::io::Error),
    /// The UDP socket could not be opened.
    #[error("cannot listen on UDP {address}: {source}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// Counters of one peer; all count from the transport's start.
#[derive(Clone, Copy, Debug)]
pub struct PeerStats {
    /// Whether frames can be sent.
    pub state: PeerState,
    /// Smoothed round-trip time; zero while down.
    pub rtt: Duration,
    /// Bytes in the send queues of all channels.
    pub queued_bytes: usize,
    /// Bytes of frames, with their length prefixes, handed to QUIC.
    pub sent_bytes: u64,
    /// Bytes of frames, with their length prefixes, received.
    pub received_bytes: u64,
    /// Packets we sent that were lost on the way.
    pub lost_packets: u64,
    /// Times the peer went up.
    pub connects: u64,
    /// Connections from the peer that were closed for breaking the wire format.
    pub bad_frames: u64,
}

/// Counters of a transport.
#[derive(Clone, Debug)]
pub struct TransportStats {
    /// By peer: all that were named or have connected.
    pub peers: BTreeMap<NodeId, PeerStats>,
    /// Connections refused because the other side did not prove to be a node of this cluster.
    pub refused_connections: u64,
}

/// The node's end of all its connections. Dropping it closes them.
pub struct Transport {
    endpoint: Endpoint,
    peers: Arc<Peers>,
    acceptor: Arc<Acceptor>,
    accept_tasks: [JoinHandle<()>; 2],
    frame_bytes_max: usize,
    _threads: [LaneThreads; 2],
}

impl Transport {
    /// Checks the identity, opens the socket and starts to accept. Peers are dialled once
    /// [`set_peer`](Self::set_peer) names them.
    pub async fn start(
        config: TransportConfig,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, TransportError> {
        config.check()?;
        let background = LaneThreads::background().map_err(TransportError::Threads)?;
        let metadata = LaneThreads::metadata().map_err(TransportError::Threads)?;
        let endpoint = Endpoint::open(&config, background.handle(), metadata.handle())?;
        let frame_bytes_max = config.frame_bytes_max;
        let config = Arc::new(config);
        let peers =
            Arc::new(Peers::new(Arc::clone(&config), endpoint.clone(), Arc::clone(&handler)));
        let acceptor =
            Arc::new(Acceptor::new(config, endpoint.clone(), Arc::clone(&peers), handler));
        let accept_tasks = [Lane::Foreground, Lane::Metadata]
            .map(|lane| endpoint.threads(lane).spawn(Arc::clone(&acceptor).run(lane)));
        Ok(Self {
            endpoint,
            peers,
            acceptor,
            accept_tasks,
            frame_bytes_max,
            _threads: [background, metadata],
        })
    }

    /// The address others reach us at, with the real port if 0 was configured.
    pub fn local_address(&self) -> SocketAddr {
        self.endpoint.local_address()
    }

    /// Keeps a connection to `node` at `address` from now on; replaces an earlier address.
    ///
    /// The own node is not a peer: what it sends itself stays in process.
    pub fn set_peer(&self, node: NodeId, address: SocketAddr, path: PathClass) {
        self.peers.set_target(node, Some(Target { address, path }));
    }

    /// Drops the connection to `node` and stops dialling it.
    pub fn remove_peer(&self, node: NodeId) {
        self.peers.set_target(node, None);
    }

    /// Queues `frame` for `to`. Never blocks.
    pub fn send(&self, to: NodeId, channel: Channel, frame: Frame) -> Result<(), SendError> {
        let length_bytes = frame.len_bytes();
        if length_bytes > self.frame_bytes_max {
            return Err(SendError::TooLong);
        }
        self.peers.send(to, channel, frame, length_bytes)
    }

    /// A snapshot of all counters.
    pub fn stats(&self) -> TransportStats {
        TransportStats {
            peers: self.peers.stats(),
            refused_connections: self.acceptor.refused_connections(),
        }
    }

    /// Closes all connections and tells the peers; what is queued is dropped.
    pub async fn close(self) {
        self.endpoint.close(close_code::SHUT_DOWN, "node shuts down");
        let _closed_in_time = tokio::time::timeout(CLOSE_WAIT_MAX, self.endpoint.wait_idle()).await;
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.accept_tasks.iter().for_each(JoinHandle::abort);
        self.peers.stop();
        self.endpoint.close(close_code::SHUT_DOWN, "node shuts down");
    }
}
