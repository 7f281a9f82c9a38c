//! Which broker a request goes to, and over which connection.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use meridian_base::sync::lock;
use meridian_protocol::messages::{MetadataRequest, MetadataRequestTopic, MetadataResponse};
use meridian_protocol::{RequestMessage, Str};
use meridian_runtime::BoxFuture;
use tokio::task::JoinSet;

use super::clock::{self, Backoff};
use super::metadata::{ClusterView, Topic};
use super::security::Security;
use super::{ClientError, Connection};

/// Time one request may take.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to find a broker, or a leader, before giving up.
const PATIENCE: Duration = Duration::from_secs(15);
/// A new topic takes a moment to be known everywhere; one that is unknown for longer is no topic.
const UNKNOWN_TOPIC_PATIENCE: Duration = Duration::from_secs(2);

/// Keeps apart what must not wait for each other: answers of a connection come in order, so a long
/// poll would hold up a produce behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(
    /// The number of the lane.
    pub u32,
);

impl Lane {
    /// Metadata and management.
    pub const CONTROL: Self = Self(0);
    /// Questions whose answers are held until there is news.
    const WATCH: Self = Self(5);
}

/// A cluster, as seen by a client. Clones share everything.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bootstrap: Vec<String>,
    security: Arc<Security>,
    view: Mutex<Arc<ClusterView>>,
    connections: Mutex<HashMap<(String, Lane), SharedPlace>>,
    /// When each topic's leaders were last asked for because one had moved.
    heard_at: tokio::sync::Mutex<HashMap<String, Instant>>,
    /// Addresses that failed when they were last tried: asked when no other answers.
    suspects: Mutex<BTreeSet<String>>,
    /// Whether it has turned out to be a meridian cluster.
    is_meridian: AtomicBool,
}

type SharedPlace = Arc<tokio::sync::Mutex<Place>>;

/// The connection to an address. Who finds it locked waits for another's attempt.
#[derive(Debug, Default)]
struct Place {
    connection: Option<Arc<Connection>>,
    /// When the last attempt failed, and how.
    failed: Option<(Instant, ErrorKind)>,
}

impl Client {
    /// Connects to the first of `bootstrap` (`host:port`, separated by commas) that answers.
    pub async fn connect(bootstrap: &str) -> Result<Self, ClientError> {
        let client = Self::unconnected(bootstrap);
        client.any().await?;
        Ok(client)
    }

    /// A client that connects when it is first used.
    pub fn unconnected(bootstrap: &str) -> Self {
        Self::secured(bootstrap, Security::plain())
    }

    /// A client that connects when it is first used, in a secured way.
    pub fn secured(bootstrap: &str, security: Arc<Security>) -> Self {
        let split = bootstrap.split(',').map(|address| with_port(address.trim()));
        Self {
            shared: Arc::new(Shared {
                bootstrap: split.collect(),
                security,
                view: Mutex::default(),
                connections: Mutex::default(),
                heard_at: tokio::sync::Mutex::default(),
                suspects: Mutex::default(),
                is_meridian: AtomicBool::new(false),
            }),
        }
    }

    /// What was last heard of the cluster.
    pub fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&lock(&self.shared.view))
    }

    /// Whether it is known to be a meridian cluster, which stays one.
    pub fn is_known_meridian(&self) -> bool {
        self.shared.is_meridian.load(Ordering::Relaxed)
    }

    /// It has turned out to be one: nobody has to ask again.
    pub fn remember_meridian(&self) {
        self.shared.is_meridian.store(true, Ordering::Relaxed);
    }

    /// Whether any broker can be reached now. Each is tried once: who asks this does not want to wait
    /// for one that may be about to start.
    pub async fn reach(&self) -> Result<(), ClientError> {
        self.first_that_answers().await.map(drop)
    }

    /// Asks for the cluster and these topics, or all topics.
    pub async fn refresh(&self, topics: Option<&[&str]>) -> Result<Arc<ClusterView>, ClientError> {
        let response = self.query(&question(topics)).await?;
        Ok(self.take(topics, response))
    }

    /// Asks for them when something is other than it was at `seen_stamp` (0 for never), for so long at most: a
    /// broker that knows of this holds the answer until then. Gives the new stamp, 0 from one that does not, and
    /// what there is unless all is as it was.
    pub async fn watch(
        &self,
        topics: Option<&[&str]>,
        seen_stamp: i64,
        hold: Duration,
    ) -> Result<(i64, Option<Arc<ClusterView>>), ClientError> {
        let hold_ms = i32::try_from(hold.as_millis()).unwrap_or(i32::MAX);
        let request = MetadataRequest { seen_stamp, hold_ms, ..question(topics) };
        let any = self.any().await?;
        let connection = self.connection(any.address(), Lane::WATCH).await?;
        let response = connection.call(&request, hold + QUERY_TIMEOUT).await?;
        let stamp = response.stamp;
        let is_news = stamp == 0 || stamp != seen_stamp;
        Ok((stamp, is_news.then(|| self.take(topics, response))))
    }

    fn take(&self, topics: Option<&[&str]>, response: MetadataResponse) -> Arc<ClusterView> {
        let mut known = lock(&self.shared.view);
        let mut view = ClusterView::clone(&known);
        if topics.is_none() {
            view.topics.clear();
            view.refused.clear();
        }
        view.merge(response);
        *known = Arc::new(view);
        Arc::clone(&known)
    }

    /// What is known of a topic; waits a while for one that was just created.
    pub async fn topic(&self, topic: &str) -> Result<Topic, ClientError> {
        let mut backoff = Backoff::until(UNKNOWN_TOPIC_PATIENCE);
        loop {
            match self.refresh(Some(&[topic])).await?.topic(topic) {
                Err(ClientError::UnknownTopic { .. }) if backoff.pause().await => {}
                known => return known.cloned(),
            }
        }
    }

    /// Calls any broker; if it fails to answer, another one. For requests that change nothing.
    pub async fn query<R: RequestMessage>(&self, request: &R) -> Result<R::Response, ClientError> {
        let mut backoff = Backoff::until(PATIENCE);
        loop {
            let connection = self.any().await?;
            match connection.call(request, QUERY_TIMEOUT).await {
                Err(error) if error.is_retriable() && backoff.pause().await => {
                    lock(&self.shared.suspects).insert(connection.address().to_owned());
                }
                result => return result,
            }
        }
    }

    /// Calls any broker, once: if the answer does not come, what happened is unknown.
    pub async fn command<R: RequestMessage>(
        &self,
        request: &R,
    ) -> Result<R::Response, ClientError> {
        self.any().await?.call(request, REQUEST_TIMEOUT).await
    }

    /// The connection to a broker.
    pub async fn node(&self, node: i32, lane: Lane) -> Result<Arc<Connection>, ClientError> {
        let view = self.view();
        self.connection(view.address(node)?, lane).await
    }

    /// The leader of a partition; waits a while if there is none.
    pub async fn leader(&self, topic: &str, partition: i32) -> Result<i32, ClientError> {
        let mut leaderless = Backoff::until(PATIENCE);
        let mut unknown = Backoff::until(UNKNOWN_TOPIC_PATIENCE);
        loop {
            let error = match self.view().leader(topic, partition) {
                Ok(leader) => return Ok(leader),
                Err(error) => error,
            };
            let patience = match &error {
                ClientError::UnknownTopic { .. } => &mut unknown,
                ClientError::NoLeader { .. } => &mut leaderless,
                _ => return Err(error),
            };
            self.refresh(Some(&[topic])).await?;
            let found = self.view().leader(topic, partition).is_ok();
            if !found && !patience.pause().await {
                return Err(error);
            }
        }
    }

    /// Hears again who leads the partitions of a topic. Those who ask at once ask together.
    pub async fn leader_moved(&self, topic: &str) {
        let asked_at = clock::now();
        let mut heard_at = self.shared.heard_at.lock().await;
        let heard = heard_at.get(topic).copied();
        // If nobody answers now, whoever needs the leader finds out.
        if heard.is_none_or(|at| at < asked_at) && self.refresh(Some(&[topic])).await.is_ok() {
            heard_at.insert(topic.to_owned(), clock::now());
        }
    }

    fn any(&self) -> BoxFuture<'_, Result<Arc<Connection>, ClientError>> {
        Box::pin(async {
            let mut backoff = Backoff::until(REACH_PATIENCE);
            loop {
                let error = match self.first_that_answers().await {
                    Ok(connection) => return Ok(connection),
                    Err(error) => error,
                };
                if !backoff.pause().await {
                    return Err(error);
                }
            }
        })
    }

    /// Tries one address after the other; a silent one only delays the next a little.
    async fn first_that_answers(&self) -> Result<Arc<Connection>, ClientError> {
        let mut addresses = VecDeque::from(self.addresses());
        if let Some(open) = addresses.front().and_then(|first| self.open_connection(first)) {
            return Ok(open);
        }
        let mut attempts = JoinSet::new();
        let mut last = None;
        loop {
            if let Some(address) = addresses.pop_front() {
                let client = self.clone();
                let attempt = async move { client.connection(&address, Lane::CONTROL).await };
                attempts.spawn(attempt);
            }
            tokio::select! {
                ended = attempts.join_next() => match ended {
                    Some(Ok(Ok(connection))) => return Ok(connection),
                    Some(Ok(Err(error))) => last = Some(error),
                    Some(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
                    None => return Err(self.unreachable(last)),
                },
                () = clock::sleep(NEXT_ADDRESS_AFTER), if !addresses.is_empty() => {}
            }
        }
    }

    /// All known addresses: those with an open connection first, those that failed last.
    fn addresses(&self) -> Vec<String> {
        let view = self.view();
        let known = view.brokers.values().map(|broker| &broker.address);
        let mut addresses: Vec<String> =
            self.shared.bootstrap.iter().chain(known).cloned().collect();
        addresses.sort_by_cached_key(|address| {
            let is_suspect = lock(&self.shared.suspects).contains(address);
            (is_suspect, self.open_connection(address).is_none())
        });
        addresses
    }

    fn unreachable(&self, last: Option<ClientError>) -> ClientError {
        let addresses = self.shared.bootstrap.join(",");
        let none =
            || ClientError::ConnectTimeout { address: addresses.clone(), after: Duration::ZERO };
        let last = Box::new(last.unwrap_or_else(none));
        ClientError::Unreachable { addresses, last }
    }

    fn open_connection(&self, address: &str) -> Option<Arc<Connection>> {
        let key = (address.to_owned(), Lane::CONTROL);
        let place = Arc::clone(lock(&self.shared.connections).get(&key)?);
        let open = place.try_lock().ok()?.connection.clone();
        open.filter(|connection| !connection.is_closed())
    }

    fn connection<'a>(
        &'a self,
        address: &'a str,
        lane: Lane,
    ) -> BoxFuture<'a, Result<Arc<Connection>, ClientError>> {
        Box::pin(self.connect_once(address, lane))
    }

    /// The open connection, or a new one: those who want it at once share an attempt.
    async fn connect_once(
        &self,
        address: &str,
        lane: Lane,
    ) -> Result<Arc<Connection>, ClientError> {
        let asked_at = clock::now();
        let key = (address.to_owned(), lane);
        let place = Arc::clone(lock(&self.shared.connections).entry(key).or_default());
        let mut place = place.lock().await;
        if let Some(connection) = place.connection.as_ref().filter(|open| !open.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        if let Some((_, kind)) = place.failed.filter(|(failed_at, _)| *failed_at > asked_at) {
            // Another's attempt failed while we waited for it: ours would too.
            return Err(ClientError::Connect { address: address.to_owned(), source: kind.into() });
        }
        match Connection::open_secured(address, &self.shared.security).await {
            Ok(connection) => {
                lock(&self.shared.suspects).remove(address);
                let connection = Arc::new(connection);
                place.connection = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(error) => {
                lock(&self.shared.suspects).insert(address.to_owned());
                let kind = match &error {
                    ClientError::Connect { source, .. } => source.kind(),
                    ClientError::Tls { .. } | ClientError::Authentication { .. } => {
                        ErrorKind::PermissionDenied
                    }
                    _ => ErrorKind::TimedOut,
                };
                place.failed = Some((clock::now(), kind));
                Err(error)
            }
        }
    }
}

/// Time for a request that another broker can answer as well.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a silent address holds up the attempt at the next.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);
/// Time for at least one broker to be reachable: a cluster that just started may need it.
const REACH_PATIENCE: Duration = Duration::from_secs(2);

fn question(topics: Option<&[&str]>) -> MetadataRequest {
    let named =
        |name: &&str| MetadataRequestTopic { name: Some(Str::from(*name)), ..Default::default() };
    MetadataRequest {
        topics: topics.map(|names| names.iter().map(named).collect()),
        allow_auto_topic_creation: false,
        ..Default::default()
    }
}

/// Kafka's port, unless another is given.
fn with_port(address: &str) -> String {
    const PORT: u16 = 9092;
    let host_end = address.rfind(']').unwrap_or(0);
    match address.get(host_end..).is_some_and(|rest| rest.contains(':')) {
        true => address.to_owned(),
        false => format!("{address}:{PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cluster_that_is_down_is_found_out_at_once() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let client = Client::unconnected(&format!("127.0.0.1:{port}"));
        let begun = clock::now();
        assert!(matches!(client.reach().await, Err(ClientError::Unreachable { .. })));
        assert!(begun.elapsed() < REACH_PATIENCE / 2, "{:?}", begun.elapsed());
    }

    #[test]
    fn an_address_without_a_port_gets_kafkas() {
        assert_eq!(with_port("localhost"), "localhost:9092");
        assert_eq!(with_port("localhost:1"), "localhost:1");
        assert_eq!(with_port("[::1]"), "[::1]:9092");
        assert_eq!(with_port("[::1]:1"), "[::1]:1");
    }
}
