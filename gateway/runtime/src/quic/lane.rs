//! The three connections from a node to a peer: one for what somebody waits for, one for bulk, one for metadata.
//!
//! Bulk is as much work for the processor as a link has bytes, and on the same threads each put would wait behind what
//! is being encrypted. So its connection is driven by threads of its own, which yield to all others: they get about a
//! tenth of a processor that others want whole, and all that others leave.
//!
//! Raft and heartbeats say who is alive, so they must not wait behind anything: a node that is short of processor time
//! would be taken for dead, and each takeover is more work for those that are short of it already. They have a
//! connection, a socket ([`socket`](super::socket)) and a thread that does nothing else.
//!
//! A dialler marks the other two in the first packet (the destination connection id, which it chooses, RFC 9000
//! section 7.2), so that the accepting side drives them by the right threads from their handshake on. What a
//! connection is for is said by the protocol that both sides agree on, under TLS.

use std::time::Duration;

use quinn::crypto::rustls::HandshakeData;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid, RandomConnectionIdGenerator};
use tokio::runtime::{Handle, Runtime};

use super::{Channel, TransportConfig};
use crate::tls;

/// By how much `nice` is more than that of other threads: a weight of 110 beside their 1024.
const BACKGROUND_NICE: libc::c_int = 10;

/// By how much `nice` is less than that of other threads, where the system allows it.
const METADATA_NICE: libc::c_int = -5;

/// How a connection id begins that a dialler chose for bulk, or for metadata.
const BACKGROUND_MARK: [u8; MARK_BYTES] = *b"bulk";
pub(super) const METADATA_MARK: [u8; MARK_BYTES] = *b"meta";
const MARK_BYTES: usize = 4;
/// The length of one that a dialler chose, of which all but the mark is random.
const MARKED_ID_BYTES: usize = 20;
/// The length of one that is chosen for the packets that come back, or that the accepting side chose.
const METADATA_ID_BYTES: usize = 12;

/// What yields to all others takes longer.
const BACKGROUND_PATIENCE: u32 = 5;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Everything that somebody waits for; to peers that know no other, all channels.
    Foreground,
    /// [`Channel::Bulk`].
    Background,
    /// [`Channel::Metadata`].
    Metadata,
}

impl Lane {
    pub(super) const ALL: [Self; 3] = [Self::Foreground, Self::Background, Self::Metadata];

    /// Of a channel, to a peer that knows all of them.
    pub(super) fn of(channel: Channel) -> Self {
        match channel {
            Channel::Control | Channel::Put | Channel::Read => Self::Foreground,
            Channel::Bulk => Self::Background,
            Channel::Metadata => Self::Metadata,
        }
    }

    /// The lanes whose connections end with one of this lane.
    pub(super) fn ends_with_it(self) -> &'static [Self] {
        match self {
            Self::Foreground => &[Self::Foreground, Self::Background],
            Self::Background => &[Self::Background],
            Self::Metadata => &[Self::Metadata],
        }
    }

    /// How long an attempt to connect may take.
    pub(super) fn dial_timeout(self, config: &TransportConfig) -> Duration {
        match self {
            Self::Foreground | Self::Metadata => config.dial_timeout,
            Self::Background => config.dial_timeout * BACKGROUND_PATIENCE,
        }
    }

    /// What a verified connection is for.
    pub(super) fn of_connection(connection: &quinn::Connection) -> Self {
        match protocol(connection) {
            Some(name) if name == tls::BACKGROUND_ALPN => Self::Background,
            Some(name) if name == tls::METADATA_ALPN => Self::Metadata,
            _ => Self::Foreground,
        }
    }

    /// What a connection claims to be for before its handshake.
    pub(super) fn of_incoming(incoming: &quinn::Incoming) -> Self {
        let id = incoming.orig_dst_cid();
        let is_marked = |lane: &Self| lane.mark().is_some_and(|mark| id.starts_with(&mark));
        Self::ALL.into_iter().find(is_marked).unwrap_or(Self::Foreground)
    }

    fn mark(self) -> Option<[u8; MARK_BYTES]> {
        match self {
            Self::Foreground => None,
            Self::Background => Some(BACKGROUND_MARK),
            Self::Metadata => Some(METADATA_MARK),
        }
    }

    /// What the first packet of a connection of this lane is marked with, made anew for each; the foreground's is not.
    pub(super) fn marked_ids(self) -> Option<impl Fn() -> ConnectionId + Send + Sync + 'static> {
        self.mark().map(|mark| move || marked_id::<MARKED_ID_BYTES>(mark))
    }
}

/// Whether the accepting side of this connection knows [`Lane::Background`].
pub(super) fn knows_lanes(connection: &quinn::Connection) -> bool {
    protocol(connection).is_some_and(|name| name == tls::LANES_ALPN)
}

fn protocol(connection: &quinn::Connection) -> Option<Vec<u8>> {
    connection.handshake_data()?.downcast::<HandshakeData>().ok()?.protocol
}

/// The ids of this node's connections for metadata, by which the kernel knows their packets.
pub(super) struct MetadataIds;

impl ConnectionIdGenerator for MetadataIds {
    fn generate_cid(&mut self) -> ConnectionId {
        marked_id::<METADATA_ID_BYTES>(METADATA_MARK)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        if id.starts_with(&METADATA_MARK) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        METADATA_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// A connection id that begins with this mark.
fn marked_id<const LENGTH_BYTES: usize>(mark: [u8; MARK_BYTES]) -> ConnectionId {
    let mut id = [0; LENGTH_BYTES];
    let (head, random) = id.split_at_mut(MARK_BYTES);
    head.copy_from_slice(&mark);
    random.copy_from_slice(&RandomConnectionIdGenerator::new(random.len()).generate_cid());
    ConnectionId::new(&id)
}

/// Threads that drive the connections of one lane.
pub(super) struct LaneThreads {
    /// Until this is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
}

impl LaneThreads {
    /// As many as the current runtime has, for bulk.
    pub(super) fn background() -> Result<Self, std::io::Error> {
        let count = Handle::current().metrics().num_workers();
        Self::start("bulk", count, || renice(BACKGROUND_NICE))
    }

    /// One, for metadata.
    pub(super) fn metadata() -> Result<Self, std::io::Error> {
        Self::start("meta-net", 1, hurry)
    }

    fn start(
        name: &str,
        count: usize,
        begin: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, std::io::Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(count)
            .thread_name(name)
            .on_thread_start(begin)
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        Ok(Self { runtime: Some(runtime), handle })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for LaneThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It may be a task of another runtime that drops this, and that must not wait.
            runtime.shutdown_background();
        }
    }
}

/// Has the calling thread go before others, where the system allows that: it decides who is alive, and does little else.
pub fn hurry() {
    renice(METADATA_NICE);
}

#[expect(unsafe_code, reason = "the standard library does not set priorities of threads")]
fn renice(by: libc::c_int) {
    // SAFETY: only a number is passed. On Linux it is the calling thread whose priority changes, one that is lowered is
    // never refused, and where one may not be raised it stays as it is.
    unsafe { libc::nice(by) };
}
