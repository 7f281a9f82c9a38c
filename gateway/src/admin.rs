//! What operators and their tools read over HTTP, at `listen.admin`: `/metrics`, `/health`,
//! `/status` and `/node`. Read-only, and up before the node has joined its cluster. A page asks for the right that
//! the method asks for that it shows; `listen.admin_open` names those that ask for none.

pub(crate) mod http;
mod metrics;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use meridian_admin_api::Method;
use meridian_admin_api::methods::{ClusterStatus, NodeStatus};
use meridian_consensus::command::Liveness;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use self::http::{Asked, Page, Status};
use self::metrics::Snapshot;
use crate::admin_api::AdminError;
use crate::config::OpenPage;
use crate::health::{Condition, Severity};
use crate::kafka::{Admission, Front};
use crate::node::{Known, Node};
use crate::runtime::tls::ListenerCertificate;

/// Connections served at once; a scraper and a few operators need no more.
const CONNECTION_COUNT_MAX: usize = 32;
/// Pause after the system refused a connection for lack of file descriptors or memory.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(100);
/// Time for a handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const INDEX: &str = "/metrics  Prometheus metrics\n\
                     /health   200 if this node can serve, 503 if not; with what stops or threatens writes\n\
                     /status   the cluster, as this node knows it\n\
                     /node     this node\n";

/// Why operators cannot be listened for.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for operators on {address}: {source}; choose another listen.admin")]
pub struct AdminBindError {
    /// The address.
    pub address: SocketAddr,
    /// What the system said.
    pub source: io::Error,
}

/// What is shown of a node.
pub(crate) struct Admin {
    node: Arc<Node>,
    front: Arc<Front>,
    /// One page of metrics is made at a time.
    rendering: Mutex<()>,
    is_joined: AtomicBool,
}

/// The listener for operators.
pub(crate) struct AdminServer {
    admin: Arc<Admin>,
    listener: TcpListener,
    local_address: SocketAddr,
    /// With TLS, its certificate.
    certificate: Option<Arc<ListenerCertificate>>,
}

impl Admin {
    pub(crate) fn new(node: Arc<Node>, front: Arc<Front>) -> Arc<Self> {
        let is_joined = AtomicBool::new(false);
        Arc::new(Self { node, front, is_joined, rendering: Mutex::default() })
    }

    /// Where to listen, if that is configured.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.node.config.admin
    }

    /// The cluster has taken the node in.
    pub(crate) fn on_joined(&self) {
        self.is_joined.store(true, Ordering::Relaxed);
    }

    /// All metrics. Many names take a while: not on a thread that serves clients.
    async fn metrics(&self) -> Option<Bytes> {
        let _alone = self.rendering.lock().await;
        let (node, front) = (Arc::clone(&self.node), Arc::clone(&self.front));
        let render = move || metrics::render(&Snapshot::take(&node, &front));
        tokio::task::spawn_blocking(render).await.ok()
    }

    async fn page(&self, asked: &Asked, peer: SocketAddr) -> Page {
        if let Some(refusal) = self.refusal(asked, peer).await {
            return refusal;
        }
        match asked.path.as_str() {
            "/" => Page::ok(TEXT, INDEX.into()),
            "/metrics" => match self.metrics().await {
                Some(text) => Page::ok(PROMETHEUS, text),
                None => Page::new(Status::Unavailable, TEXT, "the node is going down\n".into()),
            },
            "/health" => self.health(),
            "/status" => json(self.node.answer(ClusterStatus::NAME, b"{}").await),
            "/node" => json(self.node.answer(NodeStatus::NAME, b"{}").await),
            _ => Page::new(Status::NotFound, TEXT, INDEX.into()),
        }
    }

    /// The refusal of a reader who may not see the page.
    async fn refusal(&self, asked: &Asked, peer: SocketAddr) -> Option<Page> {
        let is_open = |page| self.node.config.admin_open.contains(&page);
        let method = match asked.path.as_str() {
            "/metrics" if !is_open(OpenPage::Metrics) => NodeStatus::NAME,
            "/health" if !is_open(OpenPage::Health) => NodeStatus::NAME,
            "/status" => ClusterStatus::NAME,
            "/node" => NodeStatus::NAME,
            _ => return None,
        };
        let always = self.node.config.admin_certificate.is_some();
        let (status, text) =
            match self.front.admit_reader(peer, asked.login.as_ref(), always, method).await {
                Admission::Admitted => return None,
                Admission::LoginNeeded => (
                    Status::Unauthorized,
                    "log in as a user who has DESCRIBE on the cluster\n".to_owned(),
                ),
                Admission::Denied(user) => {
                    let rule =
                        format!("`meridian acl allow {user} describe --cluster` allows it\n");
                    (Status::Forbidden, format!("{user} may not read this; {rule}"))
                }
                Admission::Uncertain => {
                    let why = "this node does not hear of changes of access rules; ask another\n";
                    (Status::Unavailable, why.to_owned())
                }
            };
        Some(Page::new(status, TEXT, text.into()))
    }

    /// `ok`, or what is wrong: 503 if clients should turn to another node, or writes stop at this one.
    fn health(&self) -> Page {
        if let Some(reason) = self.ill() {
            return Page::new(Status::Unavailable, TEXT, format!("{reason}\n").into());
        }
        let Known { cluster, own } = self.node.conditions();
        let worst = own.iter().chain(&cluster).map(Condition::severity).min();
        let stops = own.iter().any(|it| it.severity() == Severity::Stops);
        let status = if stops { Status::Unavailable } else { Status::Ok };
        let is_well = worst.is_none_or(|worst| worst == Severity::Notes);
        let mut text = String::from(if is_well { "ok\n" } else { "degraded\n" });
        let mut all: Vec<&Condition> = own.iter().chain(&cluster).collect();
        all.sort_by_key(|condition| condition.severity());
        for condition in all {
            let (severity, mend) = (condition.severity().name(), condition.mend());
            text.push_str(&format!("{severity}: {condition}; {mend}\n"));
        }
        Page::new(status, TEXT, text.into())
    }

    /// Why clients should turn to another node.
    fn ill(&self) -> Option<String> {
        if let Some(reason) = self.node.failure() {
            return Some(format!("stopping: {reason}"));
        }
        if !self.is_joined.load(Ordering::Relaxed) {
            return Some("joining: the cluster has not taken the node in yet".to_owned());
        }
        if self.node.meta.leadership().and_then(|known| known.leader).is_none() {
            return Some("alone: no leader of the metadata log is known".to_owned());
        }
        let liveness = {
            let metadata = self.node.meta.metadata();
            metadata.node(self.node.config.node).map(|node| node.liveness)
        };
        match liveness {
            Some(Liveness::Dead) => Some("fenced: the cluster takes the node for dead".to_owned()),
            _ => None,
        }
    }
}

fn json(answer: Result<Bytes, AdminError>) -> Page {
    match answer {
        Ok(body) => Page::ok(JSON, body),
        Err(error) => Page::new(Status::Unavailable, TEXT, format!("{error}\n").into()),
    }
}

impl AdminServer {
    /// Listens on `address`; port 0 takes any free port.
    pub(crate) async fn bind(
        admin: Arc<Admin>,
        address: SocketAddr,
        certificate: Option<Arc<ListenerCertificate>>,
    ) -> Result<Self, AdminBindError> {
        let failed = |source| AdminBindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local_address = listener.local_addr().map_err(failed)?;
        Ok(Self { admin, listener, local_address, certificate })
    }

    /// Where operators reach it.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Answers until `shutdown` holds true or its sender is gone.
    pub(crate) async fn run(self, mut shutdown: watch::Receiver<bool>) {
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let accepted = tokio::select! {
                _ = shutdown.wait_for(|stop| *stop) => return,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "an operator's connection could not be accepted");
                    tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
                    continue;
                }
            };
            open.retain(|connection| !connection.is_finished());
            // Who has been open for longest has had its time: slow ones must not keep a probe of health out.
            if open.len() >= CONNECTION_COUNT_MAX
                && let Some(oldest) = open.pop_front()
            {
                tracing::debug!(%peer, "the oldest connection of an operator made room for another");
                oldest.abort();
            }
            let (admin, certificate) = (Arc::clone(&self.admin), self.certificate.clone());
            let serving = tokio::spawn(async move {
                let page = |asked: Asked| {
                    let admin = Arc::clone(&admin);
                    async move { admin.page(&asked, peer).await }
                };
                let served = match &certificate {
                    None => http::serve(stream, page).await,
                    Some(own) => match timeout(HANDSHAKE_WITHIN, own.accept(stream)).await {
                        Ok(Ok((stream, _))) => http::serve(stream, page).await,
                        Ok(Err(error)) => Err(error),
                        Err(late) => Err(late.into()),
                    },
                };
                if let Err(error) = served {
                    tracing::debug!(%peer, %error, "an operator's connection broke");
                }
            });
            open.push_back(serving.abort_handle());
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;
    use meridian_access::{
        Credential, ITERATION_COUNT_DEFAULT, Operation, Pattern, PatternType, Permission,
        Principal, Resource, ResourceType, Rule, ScramHash,
    };
    use meridian_base::env::SplitMix;
    use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::broker::Broker;
    use crate::config::FrontConfig;
    use crate::config::NodeConfig;
    use crate::kafka::{Authorization, users};

    /// ApiVersions, version 0.
    const ASK: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff];

    async fn get(address: SocketAddr, path: &str) -> String {
        get_as(address, path, "").await
    }

    /// `user:password`, if that is not empty.
    async fn get_as(address: SocketAddr, path: &str, login: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let login = match login {
            "" => String::new(),
            login => format!("Authorization: Basic {}\r\n", BASE64.encode(login)),
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{login}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    fn config(name: &str) -> NodeConfig {
        let name = format!("meridian-admin-{name}-{}", std::process::id());
        let data = std::env::temp_dir().join(name);
        let free_port = SocketAddr::from(([127, 0, 0, 1], 0));
        NodeConfig {
            admin: Some(free_port),
            capacity_bytes: Some(512 << 20),
            ..NodeConfig::single(data, free_port)
        }
    }

    /// The metadata thread may still be writing its last file.
    fn remove(data: &std::path::Path) {
        while std::fs::remove_dir_all(data)
            .is_err_and(|error| error.kind() == io::ErrorKind::DirectoryNotEmpty)
        {}
    }

    #[tokio::test]
    async fn a_node_shows_what_it_does() {
        let config = config("shows");
        let data = config.data.clone();
        let running = crate::start(config.clone()).await.unwrap();
        let mut client = TcpStream::connect(running.kafka_address()).await.unwrap();
        client.write_all(&ASK).await.unwrap();
        client.read_i32().await.unwrap();

        let admin = running.admin_address().unwrap();
        let metrics = get(admin, "/metrics").await;
        for line in [
            "meridian_kafka_requests_total{api=\"ApiVersions\"} 1",
            "meridian_raft_is_leader 1",
            "meridian_disk_standing{standing=\"good\"} 1",
            "meridian_tolerates{group=\"1\",built_for=\"nothing\",failure=\"nothing\"} 1",
            "meridian_nodes{liveness=\"alive\"} 1",
        ] {
            assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
        }
        assert!(get(admin, "/health").await.ends_with("\r\n\r\nok\n"));
        assert!(get(admin, "/status").await.contains("\"tolerates\":\"nothing\""));
        assert!(get(admin, "/node").await.contains("\"standing\":\"Good\""));
        assert!(get(admin, "/other").await.starts_with("HTTP/1.1 404 "));

        let taken = NodeConfig { admin: Some(admin), data: data.join("second"), ..config };
        let error = crate::start(taken).await.err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains(&admin.to_string())));
        running.shutdown().await;
        remove(&data);
    }

    /// Users al and bo, rules that are enforced, and one that lets al look at the cluster.
    async fn enforce_rules(node: &Node) {
        let put = |kind, key: Vec<u8>, value: Vec<u8>| RowChange {
            kind,
            key,
            value: Some(value),
            expected: ExpectedVersion::Any,
        };
        let mut changes = Vec::new();
        for user in ["al", "bo"] {
            let (hash, salt) = (ScramHash::Sha256, b"salt");
            let salted = hash.salted(user, salt, ITERATION_COUNT_DEFAULT);
            let iterations = ITERATION_COUNT_DEFAULT.get().cast_signed();
            let credential = Credential::new(hash, salt, iterations, &salted).unwrap();
            let sealed = users::sealed(node.secrets(), user, &credential).unwrap();
            changes.push(put(RowKind::ScramUser, users::key(hash, user), sealed));
        }
        let rule = Rule {
            pattern: Pattern {
                kind: ResourceType::Cluster,
                pattern_type: PatternType::Literal,
                name: Resource::CLUSTER.name.to_owned(),
            },
            principal: Principal::user("al"),
            host: "127.0.0.1".to_owned(),
            operation: Operation::Describe,
            permission: Permission::Allow,
        };
        changes.push(put(RowKind::Acl, rule.encode(), Vec::new()));
        let enforce = Authorization::Enforce.encode();
        changes.push(put(RowKind::Authorization, Authorization::KEY.to_vec(), enforce));
        node.propose(Command::PutRows(changes)).await.unwrap();
    }

    #[tokio::test]
    async fn pages_ask_for_the_rights_of_the_methods_that_they_show() {
        let config = config("rights");
        let data = config.data.clone();
        let running = crate::start(config.clone()).await.unwrap();
        let admin = running.admin_address().unwrap();
        let status = async |path: &str, login: &str| {
            let answer = get_as(admin, path, login).await;
            answer.split(' ').nth(1).unwrap_or_default().to_owned()
        };
        assert_eq!(status("/status", "").await, "200", "rules are off");
        enforce_rules(&running.node).await;
        for path in ["/health", "/metrics"] {
            assert_eq!(status(path, "").await, "200", "{path} is open");
        }
        for path in ["/status", "/node"] {
            assert_eq!(status(path, "").await, "401", "{path}");
            assert_eq!(status(path, "al:al").await, "200", "{path}");
            assert_eq!(status(path, "al:wrong").await, "401", "{path}");
            assert_eq!(status(path, "nobody:al").await, "401", "{path}");
            assert_eq!(status(path, "bo:bo").await, "403", "{path}");
        }
        assert!(get(admin, "/node").await.contains("WWW-Authenticate: Basic "));
        running.shutdown().await;

        let admin_open = vec![OpenPage::Health];
        let closed = NodeConfig { admin_open, data: data.join("second"), ..config };
        let running = crate::start(closed).await.unwrap();
        let admin = running.admin_address().unwrap();
        enforce_rules(&running.node).await;
        assert!(get(admin, "/health").await.starts_with("HTTP/1.1 200 "));
        assert!(get(admin, "/metrics").await.starts_with("HTTP/1.1 401 "));
        assert!(get_as(admin, "/metrics", "al:al").await.starts_with("HTTP/1.1 200 "));
        running.shutdown().await;
        remove(&data);
    }

    #[tokio::test]
    async fn slow_connections_make_room_for_others() {
        let config = config("slow");
        let data = config.data.clone();
        let running = crate::start(config).await.unwrap();
        let admin = running.admin_address().unwrap();
        let mut slow = Vec::new();
        for _ in 0..2 * CONNECTION_COUNT_MAX {
            let mut stream = TcpStream::connect(admin).await.unwrap();
            stream.write_all(b"GET /hea").await.unwrap();
            slow.push(stream);
        }
        assert!(get(admin, "/health").await.ends_with("ok\n"));
        running.shutdown().await;
        remove(&data);
    }

    #[tokio::test]
    async fn health_says_what_is_wrong() {
        let config = config("health");
        let data = config.data.clone();
        let running = crate::start(config).await.unwrap();
        let broker = Arc::clone(&running.node.context) as Arc<dyn Broker>;
        let front = Front::new(broker, FrontConfig::default(), Box::new(SplitMix::new(1)), None);
        let admin = Admin::new(Arc::clone(&running.node), front);
        assert!(admin.ill().is_some_and(|reason| reason.starts_with("joining: ")));
        admin.on_joined();
        assert_eq!(admin.ill(), None);
        running.node.fail("the disk is broken".to_owned());
        assert_eq!(admin.ill().as_deref(), Some("stopping: the disk is broken"));
        running.shutdown().await;
        remove(&data);
    }
}
