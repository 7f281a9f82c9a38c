//! Which broker a request goes to, and over which connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meridian_protocol::messages::{MetadataRequest, MetadataRequestTopic, MetadataResponse};
use meridian_protocol::{RequestMessage, Str};

use super::clock::Backoff;
use super::metadata::ClusterView;
use super::{ClientError, Connection};

/// Time one request may take.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to find a broker, or a leader, before giving up.
const PATIENCE: Duration = Duration::from_secs(15);
/// A new topic takes a moment to be known everywhere; one that is unknown for longer is no topic.
const UNKNOWN_TOPIC_PATIENCE: Duration = Duration::from_secs(2);

/// Keeps apart what must not wait for each other: answers of a connection come in order, so a long
/// poll would hold up a produce behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lane(pub(crate) u32);

impl Lane {
    /// Metadata and management.
    pub(crate) const CONTROL: Self = Self(0);
}

/// A cluster, as seen by a client. Clones share everything.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bootstrap: Vec<String>,
    view: Mutex<Arc<ClusterView>>,
    connections: Mutex<HashMap<(String, Lane), Arc<Place>>>,
}

/// Where the connection to an address is, or is being made by the first who needs it.
type Place = tokio::sync::Mutex<Option<Arc<Connection>>>;

impl Client {
    /// Connects to the first of `bootstrap` (`host:port`, separated by commas) that answers.
    pub(crate) async fn connect(bootstrap: &str) -> Result<Self, ClientError> {
        let client = Self::unconnected(bootstrap);
        client.any().await?;
        Ok(client)
    }

    /// A client that connects when it is first used.
    pub(crate) fn unconnected(bootstrap: &str) -> Self {
        let split = bootstrap.split(',').map(|address| with_port(address.trim()));
        Self {
            shared: Arc::new(Shared {
                bootstrap: split.collect(),
                view: Mutex::default(),
                connections: Mutex::default(),
            }),
        }
    }

    /// What was last heard of the cluster.
    pub(crate) fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&lock(&self.shared.view))
    }

    /// Asks for the cluster and these topics, or all topics.
    pub(crate) async fn refresh(
        &self,
        topics: Option<&[&str]>,
    ) -> Result<Arc<ClusterView>, ClientError> {
        let named = |name: &&str| MetadataRequestTopic {
            name: Some(Str::from(*name)),
            ..Default::default()
        };
        let request = MetadataRequest {
            topics: topics.map(|names| names.iter().map(named).collect()),
            allow_auto_topic_creation: false,
            ..Default::default()
        };
        let response: MetadataResponse = self.query(&request).await?;
        let mut view = ClusterView::clone(&self.view());
        if topics.is_none() {
            view.topics.clear();
        }
        view.merge(response);
        let view = Arc::new(view);
        *lock(&self.shared.view) = Arc::clone(&view);
        Ok(view)
    }

    /// Calls any broker; if it fails to answer, another one. For requests that change nothing.
    pub(crate) async fn query<R: RequestMessage>(
        &self,
        request: &R,
    ) -> Result<R::Response, ClientError> {
        let mut backoff = Backoff::until(PATIENCE);
        loop {
            let result = match self.any().await {
                Ok(connection) => connection.call(request, QUERY_TIMEOUT).await,
                Err(error) => return Err(error),
            };
            match result {
                Err(error) if error.is_retriable() && backoff.pause().await => {}
                result => return result,
            }
        }
    }

    /// Calls any broker, once: if the answer does not come, what happened is unknown.
    pub(crate) async fn command<R: RequestMessage>(
        &self,
        request: &R,
    ) -> Result<R::Response, ClientError> {
        self.any().await?.call(request, REQUEST_TIMEOUT).await
    }

    /// The connection to a broker.
    pub(crate) async fn node(&self, node: i32, lane: Lane) -> Result<Arc<Connection>, ClientError> {
        let view = self.view();
        self.connection(view.address(node)?, lane).await
    }

    /// The leader of a partition; waits a while if there is none.
    pub(crate) async fn leader(&self, topic: &str, partition: i32) -> Result<i32, ClientError> {
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

    /// Forgets who leads a partition, so that the next to ask hears the news.
    pub(crate) async fn leader_moved(&self, topic: &str) {
        // If nobody answers now, whoever needs the leader finds out.
        let _unreachable = self.refresh(Some(&[topic])).await;
    }

    async fn any(&self) -> Result<Arc<Connection>, ClientError> {
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
    }

    async fn first_that_answers(&self) -> Result<Arc<Connection>, ClientError> {
        let view = self.view();
        let known = view.brokers.values().map(|broker| &broker.address);
        let mut addresses: Vec<&String> = self.shared.bootstrap.iter().chain(known).collect();
        // Those with an open connection first.
        addresses.sort_by_key(|address| !self.is_open(address));
        let mut last = None;
        for address in addresses {
            match self.connection(address, Lane::CONTROL).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        let addresses = self.shared.bootstrap.join(",");
        let none =
            || ClientError::ConnectTimeout { address: addresses.clone(), after: Duration::ZERO };
        let last = Box::new(last.unwrap_or_else(none));
        Err(ClientError::Unreachable { addresses, last })
    }

    fn is_open(&self, address: &str) -> bool {
        let place =
            lock(&self.shared.connections).get(&(address.to_owned(), Lane::CONTROL)).cloned();
        place.is_some_and(|place| {
            place.try_lock().is_ok_and(|open| open.as_ref().is_some_and(|open| !open.is_closed()))
        })
    }

    async fn connection(&self, address: &str, lane: Lane) -> Result<Arc<Connection>, ClientError> {
        let key = (address.to_owned(), lane);
        let place = Arc::clone(lock(&self.shared.connections).entry(key).or_default());
        let mut open = place.lock().await;
        if let Some(connection) = open.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::new(Connection::open(address).await?);
        *open = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

/// Time for a request that another broker can answer as well.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for at least one broker to be reachable: a cluster that just started may need it.
const REACH_PATIENCE: Duration = Duration::from_secs(2);

/// Kafka's port, unless another is given.
fn with_port(address: &str) -> String {
    const PORT: u16 = 9092;
    let host_end = address.rfind(']').unwrap_or(0);
    match address.get(host_end..).is_some_and(|rest| rest.contains(':')) {
        true => address.to_owned(),
        false => format!("{address}:{PORT}"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_gets_kafkas() {
        assert_eq!(with_port("localhost"), "localhost:9092");
        assert_eq!(with_port("localhost:1"), "localhost:1");
        assert_eq!(with_port("[::1]"), "[::1]:9092");
        assert_eq!(with_port("[::1]:1"), "[::1]:1");
    }
}
