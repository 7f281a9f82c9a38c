//! Between the transport and the parts of a node: frames go to logs, metadata or peers by their
//! first byte.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::NodeId;
use meridian_base::sync::lock;
use tokio::time::Instant;

use super::Node;
use crate::cluster_time::ClusterTime;
use crate::meta::MetaFrame;
use crate::peers::Peers;
use crate::peers::Wire;
use crate::runtime::quic::{
    Channel, Frame, Handler, PathClass, PeerState, SendError, Transport, TransportStats,
};

/// The transport may be absent: in a cluster of one, and while the node starts.
#[derive(Default)]
pub(crate) struct Switch {
    transport: OnceLock<Transport>,
    node: OnceLock<Weak<Node>>,
    oversize: Oversize,
}

/// Frames that were too long to be sent. Whoever makes one goes by its limit, so there should be none.
#[derive(Default)]
struct Oversize {
    count: AtomicU64,
    said_at: Mutex<Option<Instant>>,
}

/// How often it is said that there are.
const SAY_OVERSIZE_EVERY: Duration = Duration::from_secs(10);

impl Oversize {
    fn note(&self, to: NodeId, channel: Channel, kind: Option<u8>, size_bytes: usize) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut said_at = lock(&self.said_at);
        if said_at.is_none_or(|said_at| said_at.elapsed() >= SAY_OVERSIZE_EVERY) {
            *said_at = Some(Instant::now());
            tracing::error!(
                %to, ?channel, ?kind, size_bytes, count,
                "a message longer than any frame cannot be sent; what waits for it stands still: report this"
            );
        }
    }
}

impl Switch {
    pub(super) fn connect(&self, node: &Arc<Node>) {
        let _set_once_at_start = self.node.set(Arc::downgrade(node));
    }

    pub(crate) fn plug(&self, transport: Transport) {
        let _set_once_at_start = self.transport.set(transport);
    }

    pub(super) fn node(&self) -> Option<Arc<Node>> {
        self.node.get().and_then(Weak::upgrade)
    }

    pub(super) fn set_peer(&self, node: NodeId, address: SocketAddr, path: PathClass) {
        if let Some(transport) = self.transport.get() {
            transport.set_peer(node, address, path);
        }
    }

    pub(super) fn remove_peer(&self, node: NodeId) {
        if let Some(transport) = self.transport.get() {
            transport.remove_peer(node);
        }
    }

    /// How many frames were too long to be sent.
    pub(crate) fn oversize_count(&self) -> u64 {
        self.oversize.count.load(Ordering::Relaxed)
    }

    /// The transport's counters.
    pub(crate) fn stats(&self) -> Option<TransportStats> {
        self.transport.get().map(Transport::stats)
    }
}

impl Wire for Switch {
    fn send(&self, to: NodeId, channel: Channel, parts: Vec<Bytes>) -> bool {
        let Some(transport) = self.transport.get() else { return false };
        let kind = parts.first().and_then(|part| part.first()).copied();
        let frame = Frame::from(parts);
        let size_bytes = frame.len_bytes();
        match transport.send(to, channel, frame) {
            Ok(()) => true,
            Err(SendError::TooLong) => {
                self.oversize.note(to, channel, kind, size_bytes);
                false
            }
            Err(error) => {
                tracing::trace!(%to, ?channel, %error, "not sent");
                false
            }
        }
    }
}

impl Handler for Switch {
    fn on_frame(&self, from: NodeId, _channel: Channel, frame: Bytes) {
        let Some(node) = self.node() else { return };
        if frame.first() == Some(&Peers::FRAME_KIND) {
            return node.peers.on_frame(from, frame.slice(1..));
        }
        if frame.first() == Some(&ClusterTime::FRAME_KIND) {
            return node.time.on_frame(from, &frame[1..]);
        }
        let is_meta = frame
            .first()
            .is_some_and(|kind| (MetaFrame::KIND_MIN..=MetaFrame::KIND_MAX).contains(kind));
        if !is_meta {
            node.logs.on_frame(from, frame);
            return;
        }
        match MetaFrame::decode(&frame) {
            Some(frame) => node.meta.on_frame(from, frame),
            None => tracing::warn!(%from, "metadata frame refused"),
        }
    }

    fn on_peer(&self, node: NodeId, state: PeerState) {
        if let Some(own) = self.node() {
            own.logs.on_peer(node, state);
        }
    }
}
