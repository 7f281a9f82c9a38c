//! The two connections from a node to a peer: one for what somebody waits for, one for bulk.
//!
//! Bulk is as much work for the processor as a link has bytes, and on the same threads each put would wait behind what
//! is being encrypted. So its connection is driven by threads of its own, which yield to all others: they get about a
//! tenth of a processor that others want whole, and all that others leave.
//!
//! A dialler marks the connection for bulk in the first packet (the destination connection id, which it chooses, RFC
//! 9000 section 7.2), so that the accepting side drives it by the right threads from its handshake on. What a
//! connection is for is said by the protocol that both sides agree on, under TLS.

use std::time::Duration;

use quinn::crypto::rustls::HandshakeData;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, RandomConnectionIdGenerator};
use tokio::runtime::{Handle, Runtime};

use super::{Channel, TransportConfig};
use crate::tls;

/// By how much `nice` is more than that of other threads: a weight of 110 beside their 1024.
const BACKGROUND_NICE: libc::c_int = 10;

/// How a connection id begins that a dialler chose for bulk.
const BACKGROUND_MARK: [u8; 4] = *b"bulk";
/// Its length, of which all but the mark is random.
const MARKED_ID_BYTES: usize = 20;

/// What yields to all others takes longer.
const BACKGROUND_PATIENCE: u32 = 5;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Everything that somebody waits for; to peers that know no other, all channels.
    Foreground,
    /// [`Channel::Bulk`].
    Background,
}

impl Lane {
    pub(super) const ALL: [Self; 2] = [Self::Foreground, Self::Background];

    /// Of a channel, to a peer that knows both.
    pub(super) fn of(channel: Channel) -> Self {
        if channel == Channel::Bulk { Self::Background } else { Self::Foreground }
    }

    /// How long an attempt to connect may take.
    pub(super) fn dial_timeout(self, config: &TransportConfig) -> Duration {
        match self {
            Self::Foreground => config.dial_timeout,
            Self::Background => config.dial_timeout * BACKGROUND_PATIENCE,
        }
    }

    /// What a verified connection is for.
    pub(super) fn of_connection(connection: &quinn::Connection) -> Self {
        match protocol(connection) {
            Some(name) if name == tls::BACKGROUND_ALPN => Self::Background,
            _ => Self::Foreground,
        }
    }

    /// What a connection claims to be for before its handshake.
    pub(super) fn of_incoming(incoming: &quinn::Incoming) -> Self {
        let is_marked = incoming.orig_dst_cid().starts_with(&BACKGROUND_MARK);
        if is_marked { Self::Background } else { Self::Foreground }
    }
}

/// Whether the accepting side of this connection knows [`Lane::Background`].
pub(super) fn knows_lanes(connection: &quinn::Connection) -> bool {
    protocol(connection).is_some_and(|name| name == tls::LANES_ALPN)
}

fn protocol(connection: &quinn::Connection) -> Option<Vec<u8>> {
    connection.handshake_data()?.downcast::<HandshakeData>().ok()?.protocol
}

/// A connection id for the first packet of a connection for bulk.
pub(super) fn marked_id() -> ConnectionId {
    let mut id = [0; MARKED_ID_BYTES];
    let (mark, random) = id.split_at_mut(BACKGROUND_MARK.len());
    mark.copy_from_slice(&BACKGROUND_MARK);
    random.copy_from_slice(&RandomConnectionIdGenerator::new(random.len()).generate_cid());
    ConnectionId::new(&id)
}

/// The threads that drive connections for bulk.
pub(super) struct BackgroundThreads {
    /// Until this is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
}

impl BackgroundThreads {
    /// As many as the current runtime has.
    pub(super) fn start() -> Result<Self, std::io::Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(Handle::current().metrics().num_workers())
            .thread_name("bulk")
            .on_thread_start(yield_to_others)
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        Ok(Self { runtime: Some(runtime), handle })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for BackgroundThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It may be a task of another runtime that drops this, and that must not wait.
            runtime.shutdown_background();
        }
    }
}

#[expect(unsafe_code, reason = "the standard library does not set priorities of threads")]
fn yield_to_others() {
    // SAFETY: only a number is passed. On Linux it is the calling thread whose priority changes, and one that is lowered is
    // never refused.
    unsafe { libc::nice(BACKGROUND_NICE) };
}
