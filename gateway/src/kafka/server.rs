//! The TCP listener: accepts connections within their limits and winds them down at the end.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::Instant;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::{self, Close};
use super::dispatch::Client;
use super::listener::Listener;
use super::session::Session;
use super::{Front, lock, login, quotas};
use crate::config::FrontConfig;
use crate::runtime::descriptors;
use crate::runtime::tls::ShownCertificate;

/// Pause after the system refused a connection for lack of file descriptors or memory.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(100);

/// Time for the TLS handshake of a client.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// How often the log says that connections are refused.
const REFUSED_TOLD_EVERY: Duration = Duration::from_secs(10);

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen for Kafka clients on {address}: {source}; choose another address")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// The Kafka listeners of a node.
#[derive(Debug)]
pub struct Server {
    front: Arc<Front>,
    /// The first is the one that needs no name.
    bound: Vec<Bound>,
    local_address: SocketAddr,
}

/// A listener and its socket.
#[derive(Debug)]
struct Bound {
    listener: Arc<Listener>,
    socket: TcpListener,
}

/// A connection that was accepted, and the listener that it came by.
struct Accepted {
    stream: TcpStream,
    peer: SocketAddr,
    listener: Arc<Listener>,
}

impl Server {
    /// Listens on `address` for clients that need not log in; port 0 takes any free port.
    pub async fn bind(front: Arc<Front>, address: SocketAddr) -> Result<Self, ServerError> {
        let mut server = Self { front, bound: Vec::new(), local_address: address };
        server.local_address = server.listen(Listener::open(), address).await?;
        Ok(server)
    }

    /// Listens on one more address.
    pub async fn listen(
        &mut self,
        listener: Listener,
        address: SocketAddr,
    ) -> Result<SocketAddr, ServerError> {
        let bind = |source| ServerError::Bind { address, source };
        let socket = TcpListener::bind(address).await.map_err(bind)?;
        let local_address = socket.local_addr().map_err(bind)?;
        self.bound.push(Bound { listener: Arc::new(listener), socket });
        Ok(local_address)
    }

    /// Where clients reach it that need not log in.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Serves clients until `shutdown` holds true, then answers what is due and returns.
    pub async fn run(self, shutdown: watch::Receiver<bool>) {
        let Self { front, bound, .. } = self;
        let (sender, mut accepted) = mpsc::channel(1);
        let listening = bound.into_iter().map(|bound| bound.accept(sender.clone()));
        let mut accepting: JoinSet<()> = listening.collect();
        drop(sender);
        let by_ip = Arc::new(ConnectionCounts::default());
        let limits = Limits::of(&front.config, descriptors::limit().ok());
        limits.tell(&front.config);
        front.metrics.set_connection_limit(limits.total_count);
        let mut refused = Refused::default();
        let mut connections = JoinSet::new();
        let ticker = tokio::spawn(Arc::clone(&front).tick_groups());
        let sweeper = tokio::spawn(Arc::clone(&front).sweep_shares());
        let transactions = tokio::spawn(Arc::clone(&front).tick_transactions());
        let expiry = tokio::spawn(Arc::clone(&front).expire_offsets());
        let rules = tokio::spawn(Arc::clone(&front).confirm_rules());
        let lags = tokio::spawn(Arc::clone(&front).watch_lags());
        let quotas = tokio::spawn(Arc::clone(&front).share_quotas());
        let mut stopped = shutdown.clone();
        loop {
            let accepted = tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => break,
                Some(accepted) = accepted.recv() => accepted,
                Some(_ended) = connections.join_next() => continue,
            };
            let Accepted { stream, peer, listener } = accepted;
            let has_room = connections.len() < limits.total_count
                && quotas::takes_connection(&front, peer.ip());
            let admitted = has_room
                .then(|| ConnectionCounts::admit(&by_ip, peer.ip(), limits.per_ip_count))
                .flatten();
            let Some(admitted) = admitted else {
                front.metrics.on_refused();
                refused.tell(front.now(), peer, &limits);
                continue;
            };
            let front = Arc::clone(&front);
            let shutdown = shutdown.clone();
            connections.spawn(async move {
                serve(&front, stream, peer, &listener, shutdown).await;
                drop(admitted);
            });
        }
        accepting.shutdown().await;
        drop(accepted);
        let drain = front.config.drain_timeout + Duration::from_secs(1);
        let drained = async { while connections.join_next().await.is_some() {} };
        let _stragglers = timeout(drain, drained).await;
        connections.shutdown().await;
        ticker.abort();
        sweeper.abort();
        transactions.abort();
        expiry.abort();
        rules.abort();
        lags.abort();
        quotas.abort();
    }
}

impl Bound {
    /// Hands on what connects, as fast as it is taken.
    async fn accept(self, to: mpsc::Sender<Accepted>) {
        let Self { listener, socket } = self;
        loop {
            match socket.accept().await {
                Ok((stream, peer)) => {
                    let listener = Arc::clone(&listener);
                    if to.send(Accepted { stream, peer, listener }).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
                }
            }
        }
    }
}

async fn serve(
    front: &Arc<Front>,
    stream: TcpStream,
    peer: SocketAddr,
    listener: &Arc<Listener>,
    shutdown: watch::Receiver<bool>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        return tracing::debug!(%peer, %error, "a connection was lost at once");
    }
    front.metrics.on_connected();
    let close = match &listener.certificate {
        None => admit(front, stream, peer, listener, None, shutdown).await,
        Some(own) => match timeout(HANDSHAKE_WITHIN, own.accept(stream)).await {
            Ok(Ok((stream, shown))) => admit(front, stream, peer, listener, shown, shutdown).await,
            Ok(Err(error)) => Close::Tls { detail: error.to_string() },
            Err(_) => Close::Tls { detail: "the handshake was not completed in time".to_owned() },
        },
    };
    ended(front, peer, &close);
}

/// Has a client log in, if it has to, and serves it. `shown` is its certificate.
pub(super) async fn admit<S: AsyncRead + AsyncWrite + Unpin>(
    front: &Arc<Front>,
    mut stream: S,
    peer: SocketAddr,
    listener: &Arc<Listener>,
    shown: Option<Arc<ShownCertificate>>,
    shutdown: watch::Receiver<bool>,
) -> Close {
    let user = match shown.as_deref().map(|shown| listener.user_of(shown)).transpose() {
        Ok(user) => user.flatten(),
        Err(error) => return Close::Tls { detail: error.to_string() },
    };
    let session = match (listener.has_login, user) {
        (true, _) => login::log_in(front, &mut stream, peer, listener, shutdown.clone()).await,
        (false, Some(user)) => Ok(Session::new(user, peer)),
        (false, None) => Ok(Session::anonymous(peer)),
    };
    let session = match session {
        Ok(session) => session.with_certificate(shown),
        Err(close) => return close,
    };
    let client = Client::new(peer, front.memory.holder(), session).by(listener);
    connection::serve(front, stream, client, shutdown).await
}

/// Serves one connection, whatever it is made of, to its end.
pub(super) async fn serve_stream<S: AsyncRead + AsyncWrite>(
    front: &Arc<Front>,
    stream: S,
    client: Client,
    shutdown: watch::Receiver<bool>,
) {
    let peer = client.peer;
    front.metrics.on_connected();
    let close = connection::serve(front, stream, client, shutdown).await;
    ended(front, peer, &close);
}

fn ended(front: &Front, peer: SocketAddr, close: &Close) {
    front.metrics.on_closed(close);
    match close {
        Close::Client | Close::Shutdown | Close::Idle | Close::Io(_) => {
            tracing::debug!(%peer, reason = %close, "connection closed");
        }
        // Anybody can cause these, as often as it likes.
        Close::Tls { .. }
        | Close::LoginRefused { .. }
        | Close::LoginOutOfTurn { .. }
        | Close::SlowLogin
        | Close::Oversized { .. }
        | Close::Unsupported(_)
        | Close::Malformed(_)
            if !front.failures.is_news(front.now(), peer.ip()) =>
        {
            tracing::debug!(%peer, reason = %close, "connection closed");
        }
        _ => tracing::warn!(%peer, reason = %close, "connection closed"),
    }
}

/// How many connections there may be: fewer than the process may have descriptors open, for a node that can
/// open no file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    total_count: usize,
    per_ip_count: usize,
}

impl Limits {
    fn of(config: &FrontConfig, descriptor_limit: Option<u64>) -> Self {
        let (total_count, per_ip_count) =
            (config.connection_count_max, config.connection_count_per_ip_max);
        let descriptors = descriptor_limit.and_then(|limit| usize::try_from(limit).ok());
        // Files and other nodes have the other half.
        let room = descriptors.map_or(total_count, |count| count / 2).max(1);
        if room >= total_count {
            return Self { total_count, per_ip_count };
        }
        // One address leaves some to the others.
        Self { total_count: room, per_ip_count: per_ip_count.min((room * 3 / 4).max(1)) }
    }

    fn tell(&self, config: &FrontConfig) {
        let Self { total_count, per_ip_count } = *self;
        if total_count < config.connection_count_max {
            tracing::warn!(
                total_count,
                per_ip_count,
                "there may be fewer connections of clients than limits.connection_count_max says: half of the \
                 files that may be open; raise the limit of open files (LimitNOFILE in systemd)"
            );
        }
    }
}

/// Connections that were refused since the log last said so.
#[derive(Debug, Default)]
struct Refused {
    count: u64,
    told_at: Option<Instant>,
}

impl Refused {
    fn tell(&mut self, now: Instant, peer: SocketAddr, limits: &Limits) {
        self.count += 1;
        if self.told_at.is_some_and(|at| now.since(at) < REFUSED_TOLD_EVERY) {
            return;
        }
        let Limits { total_count, per_ip_count } = *limits;
        let refused_count = std::mem::take(&mut self.count);
        self.told_at = Some(now);
        tracing::warn!(
            %peer,
            refused_count,
            total_count,
            per_ip_count,
            "connections were refused: too many are open, of all or of this address, or it makes them too \
             fast; see limits.connection_count_max, limits.connection_count_per_ip_max and the quota \
             connection_creation_rate"
        );
    }
}

/// Connections of each address.
#[derive(Debug, Default)]
struct ConnectionCounts(Mutex<HashMap<IpAddr, usize>>);

/// A connection that counts for its address until it is dropped.
#[derive(Debug)]
struct Admitted {
    counts: Arc<ConnectionCounts>,
    address: IpAddr,
}

impl ConnectionCounts {
    fn admit(counts: &Arc<Self>, address: IpAddr, count_max: usize) -> Option<Admitted> {
        let mut by_address = lock(&counts.0);
        let count = by_address.entry(address).or_default();
        if *count >= count_max {
            return None;
        }
        *count += 1;
        Some(Admitted { counts: Arc::clone(counts), address })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut by_address = lock(&self.counts.0);
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::kafka::testing::{FakeBroker, PATIENCE, front_of, quick_config};

    /// ApiVersions, version 0.
    const ASK: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff];

    async fn is_served(stream: &mut TcpStream) -> bool {
        let asked = async {
            stream.write_all(&ASK).await?;
            let size = stream.read_i32().await?;
            let mut answer = vec![0; usize::try_from(size).unwrap_or(0)];
            stream.read_exact(&mut answer).await
        };
        timeout(PATIENCE, asked).await.expect("an answer or the end").is_ok()
    }

    #[tokio::test]
    async fn connections_are_limited_and_a_stop_closes_them() {
        let config = FrontConfig {
            connection_count_max: 3,
            connection_count_per_ip_max: 2,
            ..quick_config()
        };
        let front = front_of(&FakeBroker::three_datacenters(), config);
        let server = Server::bind(Arc::clone(&front), ([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = server.local_address();
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(server.run(stopped));

        let mut first = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        assert!(is_served(&mut first).await && is_served(&mut second).await);
        let mut third = TcpStream::connect(address).await.unwrap();
        assert!(!is_served(&mut third).await, "the third from one address");
        drop(first);
        let freed = async {
            loop {
                let mut next = TcpStream::connect(address).await.unwrap();
                if is_served(&mut next).await {
                    return next;
                }
            }
        };
        let _fourth = timeout(PATIENCE, freed).await.expect("room again");

        stop.send_replace(true);
        timeout(PATIENCE, running).await.expect("stops in time").unwrap();
        assert!(!is_served(&mut second).await);
        let samples = front.metrics().samples();
        let refused = samples.iter().find(|it| it.name.contains("refused")).map(|it| it.value);
        assert!(refused.is_some_and(|count| count > 0));
        assert_eq!(samples[0].value, 0, "no connection is left");
    }

    #[test]
    fn there_are_fewer_connections_than_descriptors() {
        let config = FrontConfig::default();
        let of = |limit| {
            let Limits { total_count, per_ip_count } = Limits::of(&config, limit);
            (total_count, per_ip_count)
        };
        let configured = (config.connection_count_max, config.connection_count_per_ip_max);
        assert_eq!(of(None), configured);
        assert_eq!(of(Some(1 << 20)), configured);
        assert_eq!(of(Some(u64::MAX)), configured);
        assert_eq!(of(Some(1024)), (512, 384));
        assert_eq!(of(Some(1)), (1, 1));
        let few = FrontConfig { connection_count_per_ip_max: 10, ..FrontConfig::default() };
        assert_eq!(Limits::of(&few, Some(1024)).per_ip_count, 10);
    }

    #[tokio::test]
    async fn an_address_in_use_is_named() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let first = Server::bind(Arc::clone(&front), ([127, 0, 0, 1], 0).into()).await.unwrap();
        let error = Server::bind(front, first.local_address()).await.unwrap_err();
        assert!(error.to_string().contains(&first.local_address().to_string()), "{error}");
    }
}
