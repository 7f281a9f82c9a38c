//! What can be set on a transport.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{ClusterId, NodeId};
use meridian_storage::limits::FRAME_SIZE_BYTES_MAX;

use super::TransportError;
use super::framing::HEADER_BYTES;
use crate::tls::{NodeIdentity, PeerTrust};

/// Settings of a [`Transport`](super::Transport); start from [`new`](Self::new).
#[derive(Clone)]
pub struct TransportConfig {
    /// This node; the identity must be its own.
    pub node: NodeId,
    /// The cluster; certificates of others are refused.
    pub cluster: ClusterId,
    /// Certificate, key and authority.
    pub identity: NodeIdentity,
    /// Which nodes are let in; `None` is all of the authority.
    pub trust: Option<Arc<PeerTrust>>,
    /// UDP address to listen on.
    pub listen: SocketAddr,
    /// Longest frame sent or accepted.
    pub frame_bytes_max: usize,
    /// Size of each send queue; there is one per peer and channel.
    pub queue_bytes_max: usize,
    /// Send and receive buffer of the UDP socket. Small ones lose packets under load.
    pub socket_buffer_bytes: usize,
    /// Largest UDP payload that path MTU discovery tries. Up to 6550 the kernel cuts ten packets
    /// out of one buffer (GSO); above, each packet is a system call, which only pays on loopback.
    pub datagram_bytes_max: u16,
    /// A peer not heard from for so long is down.
    pub idle_timeout: Duration,
    /// How often an idle connection is probed; well below `idle_timeout`.
    pub keep_alive_interval: Duration,
    /// Time one attempt to connect may take.
    pub dial_timeout: Duration,
    /// Longest pause between two attempts to connect.
    pub dial_backoff_max: Duration,
    /// Delays frames from peers in other datacenters, to try a far-away cluster on one machine.
    pub emulated_one_way_delay: Duration,
}

impl TransportConfig {
    /// The defaults.
    pub fn new(
        node: NodeId,
        cluster: ClusterId,
        identity: NodeIdentity,
        listen: SocketAddr,
    ) -> Self {
        Self {
            node,
            cluster,
            identity,
            trust: None,
            listen,
            frame_bytes_max: FRAME_SIZE_BYTES_MAX,
            queue_bytes_max: 32 << 20,
            socket_buffer_bytes: 4 << 20,
            datagram_bytes_max: 6500,
            idle_timeout: Duration::from_secs(2),
            keep_alive_interval: Duration::from_millis(400),
            dial_timeout: Duration::from_secs(2),
            dial_backoff_max: Duration::from_secs(1),
            emulated_one_way_delay: Duration::ZERO,
        }
    }

    pub(super) fn check(&self) -> Result<(), TransportError> {
        let rules = [
            (self.frame_bytes_max < u32::MAX as usize, "frame_bytes_max must be below 4 GiB"),
            (
                self.queue_bytes_max >= self.frame_bytes_max.saturating_add(HEADER_BYTES),
                "queue_bytes_max must hold a frame of frame_bytes_max and its header",
            ),
            (
                self.datagram_bytes_max >= super::endpoint::DATAGRAM_BYTES_MIN,
                "datagram_bytes_max must be at least 1200, which QUIC requires of every path",
            ),
            (
                self.keep_alive_interval * 2 < self.idle_timeout,
                "keep_alive_interval must be below half of idle_timeout",
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, broken)) => Err(TransportError::Config(broken)),
            None => Ok(()),
        }
    }
}
