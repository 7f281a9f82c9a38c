//! The QUIC listener: links of other clusters, each with a certificate that this cluster has issued. What a
//! link sends in a stream is what a Kafka client sends over a TCP connection.
//!
//! **Source**: RFC 9000, RFC 9001; quinn.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{IdleTimeout, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use super::Front;
use super::access;
use super::dispatch::Client;
use super::link_uses::{LinkUse, LinkUses};
use super::server::serve_stream;
use crate::background::ticks;
use crate::runtime::congestion::SteadyBbrConfig;
use crate::runtime::tls::{Credentials, ShownCertificate, TlsError, link_of};

/// Streams of one link on one node: a few for each of the things that must not wait for each other.
const STREAM_COUNT_MAX: u32 = 64;
/// Links, each of every node of a cluster that pulls.
const LINK_COUNT_MAX: usize = 1024;
/// With so many handshakes or links whoever comes has to prove its address first.
const UNPROVED_COUNT_MAX: usize = 32;
/// Handshakes under way at a time. Until one is done anybody can cause its work.
const HANDSHAKE_COUNT_MAX: usize = 256;
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// A link that is not heard of for so long is gone, and sooner if whoever dials says so: the lower one holds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// What may be on its way: bandwidth x round trip.
const SEND_WINDOW_BYTES: u64 = 64 << 20;
/// The requests of a link are small.
const RECEIVE_WINDOW_BYTES: u32 = 1 << 20;
/// A first guess, until the handshake has measured the way: it times its retransmissions.
const INITIAL_RTT: Duration = Duration::from_millis(150);

/// How often a link's certificate is looked at: whether the authority has revoked it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why the certificate was refused, as the other side is told.
const NOT_A_LINK: VarInt = VarInt::from_u32(2);
const REVOKED: &[u8] = b"the certificate of the link is revoked";
const SHUT_DOWN: VarInt = VarInt::from_u32(0);

/// Why links cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum LinkServerError {
    /// The address cannot be listened on.
    #[error("cannot listen for links on {address} (UDP): {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The node's own certificate is of no use for it.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Serves the links of other clusters.
pub struct LinkServer {
    front: Arc<Front>,
    endpoint: quinn::Endpoint,
    credentials: Credentials,
    uses: Arc<LinkUses>,
}

impl LinkServer {
    /// Listens on `address`, by UDP.
    pub fn bind(
        front: Arc<Front>,
        address: SocketAddr,
        credentials: Credentials,
        uses: Arc<LinkUses>,
    ) -> Result<Self, LinkServerError> {
        let crypto = QuicServerConfig::try_from(credentials.link_server_config()?)
            .map_err(|error| TlsError::Setup { detail: error.to_string() })?;
        // As TCP has it; the default of quinn is twenty times that.
        let bbr = SteadyBbrConfig::new(10 * 1200);
        let mut transport = quinn::TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(STREAM_COUNT_MAX))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .stream_receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
            .send_window(SEND_WINDOW_BYTES)
            .initial_rtt(INITIAL_RTT)
            .congestion_controller_factory(Arc::new(bbr))
            .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok());
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        config.transport_config(Arc::new(transport)).migration(false);
        let bind = |source| LinkServerError::Bind { address, source };
        let socket = UdpSocket::bind(address).map_err(bind)?;
        let runtime = Arc::new(quinn::TokioRuntime);
        let endpoint = quinn::Endpoint::new(
            credentials.endpoint_config("meridian link"),
            Some(config),
            socket,
            runtime,
        )
        .map_err(bind)?;
        Ok(Self { front, endpoint, credentials, uses })
    }

    /// Serves links until `shutdown` holds true, then answers what is due and returns.
    pub async fn run(self, shutdown: watch::Receiver<bool>) {
        let Self { front, endpoint, credentials, uses } = self;
        let shared = Arc::new(Shared { front, credentials, uses });
        let handshakes = Arc::new(Semaphore::new(HANDSHAKE_COUNT_MAX));
        let mut links = JoinSet::new();
        let mut stopped = shutdown.clone();
        loop {
            let incoming = tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => break,
                Some(_ended) = links.join_next() => continue,
                incoming = endpoint.accept() => incoming,
            };
            let Some(incoming) = incoming else {
                tracing::error!("the UDP socket of links is lost; restart the node to serve links");
                break;
            };
            if links.len() >= UNPROVED_COUNT_MAX && !incoming.remote_address_validated() {
                let _cannot_be = incoming.retry();
                continue;
            }
            match Arc::clone(&handshakes).try_acquire_owned() {
                Ok(handshake) if links.len() < LINK_COUNT_MAX => {
                    let serve = Arc::clone(&shared).serve(incoming, handshake, shutdown.clone());
                    links.spawn(serve);
                }
                _ => {
                    shared.front.metrics.on_refused();
                    incoming.refuse();
                }
            }
        }
        let drain = shared.front.config.drain_timeout + Duration::from_secs(1);
        let drained = async { while links.join_next().await.is_some() {} };
        let _stragglers = tokio::time::timeout(drain, drained).await;
        links.shutdown().await;
        endpoint.close(SHUT_DOWN, b"the node is shutting down");
        let _unheard = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
    }
}

/// Why a connection of a link is not served on.
enum Ended {
    Gone(quinn::ConnectionError),
    ShutDown,
    Revoked,
}

struct Shared {
    front: Arc<Front>,
    credentials: Credentials,
    uses: Arc<LinkUses>,
}

impl Shared {
    async fn serve(
        self: Arc<Self>,
        incoming: quinn::Incoming,
        handshake: OwnedSemaphorePermit,
        shutdown: watch::Receiver<bool>,
    ) {
        let peer = incoming.remote_address();
        let accepted = async { incoming.accept()?.await };
        let connection = match tokio::time::timeout(HANDSHAKE_WITHIN, accepted).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return tracing::info!(%peer, %error, "no link"),
            Err(_) => return tracing::info!(%peer, "no link: the handshake was not completed"),
        };
        let link = match self.link_of(&connection) {
            Ok(link) => link,
            Err(error) => {
                tracing::warn!(%peer, %error, "a link was refused");
                return connection.close(NOT_A_LINK, error.to_string().as_bytes());
            }
        };
        drop(handshake);
        tracing::info!(%peer, %link, "a link has connected");
        if !access::has_grant(&self.front, &link) {
            tracing::warn!(%peer, %link, "the link may do nothing: grant it topics with `meridian link allow`");
        }
        let shown = self.credentials.shown(&connection);
        let mut looks = ticks(LOOK_EVERY);
        let mut streams = JoinSet::new();
        let mut stopped = shutdown.clone();
        let ended = loop {
            let accepted = tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => break Ended::ShutDown,
                Some(_ended) = streams.join_next() => continue,
                _ = looks.tick() => match shown.as_ref().is_none_or(ShownCertificate::holds) {
                    true => continue,
                    false => break Ended::Revoked,
                },
                accepted = connection.accept_bi() => accepted,
            };
            let (send, receive) = match accepted {
                Ok(stream) => stream,
                Err(error) => break Ended::Gone(error),
            };
            let (shared, shutdown) = (Arc::clone(&self), shutdown.clone());
            let link = LinkUse { link: link.as_str().into(), uses: Arc::clone(&self.uses) };
            streams.spawn(async move {
                let stream = tokio::io::join(receive, send);
                let client = Client::of_link(peer, shared.front.memory.holder(), link);
                serve_stream(&shared.front, stream, client, shutdown).await;
            });
        };
        if matches!(ended, Ended::Revoked) {
            tracing::warn!(%peer, %link, "the certificate of a link is revoked: its connection is closed");
            // Before what is under way has ended: nothing more is answered.
            connection.close(NOT_A_LINK, REVOKED);
        }
        while streams.join_next().await.is_some() {}
        match ended {
            Ended::Gone(error) => tracing::info!(%peer, %link, %error, "a link has gone"),
            Ended::ShutDown => connection.close(SHUT_DOWN, b"the node is shutting down"),
            Ended::Revoked => {}
        }
    }

    /// The link that the handshake has proved the other side to be.
    fn link_of(&self, connection: &quinn::Connection) -> Result<String, TlsError> {
        let chain = connection
            .peer_identity()
            .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
        let leaf = chain.as_deref().and_then(|chain| chain.first()).ok_or(TlsError::NotALink)?;
        link_of(leaf, self.credentials.cluster())
    }
}

#[cfg(test)]
mod tests;
