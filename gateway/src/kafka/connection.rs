//! One connection: a reader that starts requests and a writer that answers them in order.
//!
//! Both halves run in one task. Requests take effect in order. One that takes time has its turn when
//! all before it are answered; those that only wait for the log (Produce, commits and heartbeats of
//! groups) are begun as soon as all before them are, so that they share its batches.
//!
//! Between the halves is a bounded queue of replies; when it is full, or there is no memory for more
//! requests ([`super::memory`]), the reader stops reading and TCP slows the client down. Requests without
//! records are decoded when their turn has come, and answers are made one at a time.

mod reader;
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use meridian_access::Principal;
use meridian_protocol::frame::RequestError;
use meridian_protocol::{ApiKey, EncodeError, ErrorCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, timeout};

use self::reader::Reader;
use self::writer::Writer;
use super::Front;
use super::dispatch::{Client, Reply};
use super::memory::Charge;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Close {
    /// The client closed it.
    #[error("closed by the client")]
    Client,
    /// The node is shutting down.
    #[error("the node is shutting down")]
    Shutdown,
    /// Nothing was asked for too long.
    #[error("idle for too long")]
    Idle,
    /// The first request did not come in time.
    #[error("no request came in time")]
    Silent,
    /// A request was begun but did not arrive in time.
    #[error("a request of {size_bytes} bytes did not arrive in time")]
    SlowRequest {
        /// Its size.
        size_bytes: usize,
    },
    /// The client does not read its answers.
    #[error("the client does not read its answers")]
    SlowReader,
    /// The client did not log in in time.
    #[error("the client did not log in in time")]
    SlowLogin,
    /// The client is not who it says.
    #[error(
        "no login as {user:?} with {mechanism}: no such user, another password, or no good token"
    )]
    LoginRefused {
        /// Who it says it is, if it came so far.
        user: String,
        /// How it tried.
        mechanism: &'static str,
    },
    /// The client asks before it has logged in, or logs in otherwise than by the protocol.
    #[error(
        "{api:?} does not come there in a login; set security.protocol and sasl.mechanism at the client"
    )]
    LoginOutOfTurn {
        /// What it sent.
        api: ApiKey,
    },
    /// The TLS handshake failed.
    #[error("no TLS connection: {detail}")]
    Tls {
        /// Why.
        detail: String,
    },
    /// The credential that the client has logged in with was changed or deleted, or its certificate was revoked.
    #[error(
        "the credential of {principal} was changed, deleted or revoked: it has to connect with one that holds"
    )]
    Revoked {
        /// The client.
        principal: Principal,
    },
    /// The login of the client has ended, and it has not logged in again.
    #[error("the login of {principal} has ended: it has to log in again, or to connect anew")]
    LoginEnded {
        /// The client.
        principal: Principal,
    },
    /// The node may not know that the client's rights were taken away.
    #[error(
        "this node is cut off from the metadata, and its access rules may be old: another node serves the client"
    )]
    CutOff,
    /// An operator closed it.
    #[error("an operator closed it (meridian client kick)")]
    Kicked,
    /// The client was slow, and others needed the memory.
    #[error("the client is slow, and others need the memory that its requests and answers take")]
    GaveWay,
    /// The size in front of a request is negative or over the limit.
    #[error("request size {stated} is out of range; the limit is {limit_bytes} bytes")]
    Oversized {
        /// What the prefix says.
        stated: i32,
        /// The limit.
        limit_bytes: usize,
    },
    /// An API or version we do not serve.
    #[error("{0}")]
    Unsupported(RequestError),
    /// Bytes that are not a request.
    #[error("{0}")]
    Malformed(RequestError),
    /// The only way to tell a producer without acknowledgements that something is wrong.
    #[error("an unacknowledged produce request failed: {0}")]
    Unacknowledged(ErrorCode),
    /// An answer cannot be said in the client's version.
    #[error("{0}")]
    Unencodable(#[from] EncodeError),
    /// The connection broke.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
}

impl Close {
    /// All that [`Close::reason`] says.
    pub(super) const REASONS: &[&str] = &[
        "client",
        "shutdown",
        "idle",
        "silent",
        "slow-request",
        "slow-reader",
        "gave-way",
        "kicked",
        "slow-login",
        "login-refused",
        "login-out-of-turn",
        "tls",
        "revoked",
        "login-ended",
        "cut-off",
        "oversized",
        "unsupported",
        "malformed",
        "unacknowledged",
        "unencodable",
        "io",
    ];

    /// A fixed word for metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Shutdown => "shutdown",
            Self::Idle => "idle",
            Self::Silent => "silent",
            Self::SlowRequest { .. } => "slow-request",
            Self::SlowReader => "slow-reader",
            Self::GaveWay => "gave-way",
            Self::Kicked => "kicked",
            Self::SlowLogin => "slow-login",
            Self::LoginRefused { .. } => "login-refused",
            Self::LoginOutOfTurn { .. } => "login-out-of-turn",
            Self::Tls { .. } => "tls",
            Self::Revoked { .. } => "revoked",
            Self::LoginEnded { .. } => "login-ended",
            Self::CutOff => "cut-off",
            Self::Oversized { .. } => "oversized",
            Self::Unsupported(_) => "unsupported",
            Self::Malformed(_) => "malformed",
            Self::Unacknowledged(_) => "unacknowledged",
            Self::Unencodable(_) => "unencodable",
            Self::Io(_) => "io",
        }
    }

    /// Whether answers to earlier requests are still worth sending.
    fn is_goodbye(&self) -> bool {
        matches!(self, Self::Client | Self::Shutdown | Self::Unsupported(_) | Self::Malformed(_))
    }
}

/// Memory of a request in flight, given back when it is dropped.
struct Held {
    _own: OwnedSemaphorePermit,
    charge: Charge,
}

/// How many requests of a connection are in flight. Both of its halves count, in one task.
#[derive(Debug, Default)]
struct Counts {
    /// Those whose answers are due.
    in_flight: AtomicUsize,
    /// Those of them that are not on their way yet, because of their turn or by their nature.
    waiting: AtomicUsize,
}

/// A request that was started, and what its answer needs.
struct InFlight {
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    reply: Reply,
    held: Option<Held>,
    read_at: Instant,
}

impl InFlight {
    /// Decodes it, unless that was done.
    async fn open(&mut self) -> Result<(), Close> {
        let reply = std::mem::replace(&mut self.reply, Reply::None);
        let (reply, decoded_bytes) = reply.open().await.map_err(Close::Malformed)?;
        self.reply = reply;
        if let Some(held) = &mut self.held {
            held.charge.set(held.charge.size_bytes() + decoded_bytes);
        }
        Ok(())
    }

    /// Takes the first step of what is prompt.
    async fn begin(&mut self) -> Result<(), Close> {
        self.open().await?;
        let reply = std::mem::replace(&mut self.reply, Reply::None);
        self.reply = reply.begin().await;
        Ok(())
    }
}

/// Serves one connection to its end.
pub(super) async fn serve<S>(
    front: &Arc<Front>,
    stream: S,
    client: Client,
    shutdown: watch::Receiver<bool>,
) -> Close
where
    S: AsyncRead + AsyncWrite,
{
    let (read_half, write_half) = tokio::io::split(stream);
    let (sender, receiver) = mpsc::channel(front.config.in_flight_request_count_max);
    let (client, counts) = (Arc::new(client), Arc::new(Counts::default()));
    let reader = Reader::new(front, read_half, Arc::clone(&client), shutdown, Arc::clone(&counts));
    let writer = Writer::new(front, write_half, Arc::clone(&client), counts);
    let _listed = front.connections.list(&client, front.broker.wall_time_ms());
    let mut write = std::pin::pin!(writer.run(receiver));
    let close = tokio::select! {
        close = reader.run(sender) => close,
        result = &mut write => return result.err().unwrap_or(Close::Client),
        () = client.holder.gives_way() => return Close::GaveWay,
        () = client.presence.is_kicked() => return Close::Kicked,
    };
    if close.is_goodbye() {
        // The queue has no sender any more, so the writer ends after the answers that are due.
        let _unanswered = timeout(front.config.drain_timeout, write).await;
    }
    close
}

#[cfg(test)]
mod tests;
