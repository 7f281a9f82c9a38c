//! The configuration of one node: a TOML file, parsed into checked values.
//!
//! What the whole cluster must agree on lives in the metadata log, not here.

mod file;
mod kafka_names;
mod listeners;
mod object_store;
mod server;
pub(crate) mod settings;
mod tiers;
mod upkeep;

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use meridian_access::{Principal, PrincipalError};
use meridian_base::id::{ClusterId, NodeId};
use meridian_base::topology::{Datacenter, Geometry, Rack};
use meridian_consensus::command::{Endpoint, Roles};
use meridian_consensus::state::limits;
use meridian_storage::config::{COPY_SHARE_PERCENT_MAX_DEFAULT, FILE_COUNT_MIN};
use serde::Deserialize;

use self::file::{
    File, HealTable, KafkaTable, LimitsTable, MemberTable, MetricsTable, ScrubTable, StorageTable,
};
pub use self::listeners::{ListenerConfig, OauthConfig, Protocol};
pub use self::server::{FrontConfig, GroupConfig, TelemetryConfig, TransactionConfig, UsageConfig};
pub(crate) use self::tiers::FAST_FILE_COUNT_MIN;
pub use self::tiers::TiersConfig;
pub use self::upkeep::{CompactionConfig, ScrubConfig};
use crate::runtime::objects::ObjectStoreConfig;
use crate::runtime::tls::ListenerFiles;

const MIB: u64 = 1 << 20;
/// A journal file of a small deployment; a server with a disk of its own sets more.
const FILE_SIZE_BYTES_DEFAULT: u32 = 16 << 20;
/// The largest record batch (8 MiB) and its head must fit, with room to spare.
pub(crate) const FILE_SIZE_BYTES_MIN: u32 = 16 << 20;
pub(crate) const FILE_SIZE_BYTES_MAX: u32 = 1 << 30;
const SYNC_REST_MAX_DEFAULT: Duration = Duration::from_millis(5);
const HEAL_AFTER_DEFAULT: Duration = Duration::from_secs(600);
/// Longer, and consumers would take the cluster for hung.
const INITIAL_REBALANCE_DELAY_MAX: Duration = Duration::from_secs(300);
/// More often, and clients would be busy with describing themselves.
const PUSH_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Names with metrics of their own, of each kind.
const METRIC_NAMES_MAX: usize = 10_000;

/// Why a configuration was refused. Names the key and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is not TOML, or a key is unknown or of the wrong type.
    #[error("configuration: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A value cannot be used.
    #[error("configuration: {key}: {problem}")]
    Value {
        /// The key.
        key: &'static str,
        /// What is wrong and what to write instead.
        problem: String,
    },
    /// A setting under Kafka's name cannot be used.
    #[error("configuration: kafka.{name}: {problem}")]
    Kafka {
        /// Kafka's name.
        name: String,
        /// What is wrong and what to write instead.
        problem: String,
    },
    /// Others than this machine could come in without proving who they are.
    #[error(
        "{key} = \"{address}\" is reachable from other machines, and nobody has to log in there; listen on \
         127.0.0.1 and give clients a [listener.NAME] with SASL_SSL, or accept that anybody may read and write with \
         listen.insecure = true"
    )]
    Exposed {
        /// The key.
        key: &'static str,
        /// Its value.
        address: SocketAddr,
    },
}

/// An initial member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// Its datacenter.
    pub datacenter: Datacenter,
    /// Its rack, if the list says so.
    pub rack: Option<Rack>,
    /// Where the others reach it (QUIC); its name is resolved while the node runs.
    pub peer: Endpoint,
    /// Whether it votes on metadata.
    pub voter: bool,
}

/// The configuration of one node, checked.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Which node this is.
    pub node: NodeId,
    /// Its datacenter.
    pub datacenter: Datacenter,
    /// Its rack.
    pub rack: Rack,
    /// What it does.
    pub roles: Roles,
    /// Folder of everything it keeps.
    pub data: PathBuf,
    /// Where it listens for Kafka clients.
    pub kafka: SocketAddr,
    /// Where it tells Kafka clients to go; `None` is where it listens.
    pub kafka_advertised: Option<Endpoint>,
    /// Where else it listens for Kafka clients.
    pub listeners: Vec<ListenerConfig>,
    /// Where it listens for other nodes; `None` in a cluster of one.
    pub peer: Option<SocketAddr>,
    /// Where it listens for operators; `None` is nowhere.
    pub admin: Option<SocketAddr>,
    /// With TLS, the files of the certificate that they are shown.
    pub admin_certificate: Option<ListenerFiles>,
    /// The pages there that anybody may read.
    pub admin_open: Vec<OpenPage>,
    /// The cluster's id; `None` draws one at the first start of a cluster of one.
    pub cluster: Option<ClusterId>,
    /// The first storage group's shape.
    pub geometry: Geometry,
    /// Shapes of groups to be made, beside the first, of nodes that fill no slot.
    pub further_groups: Vec<Geometry>,
    /// The initial members, this node among them.
    pub members: Vec<Member>,
    /// Folder with `ca.pem`, `node.pem` and `node-key.pem`; needed if there are other members.
    pub tls: Option<PathBuf>,
    /// File with the keys that seal secrets; `None` is a usual place.
    pub secret_key_file: Option<PathBuf>,
    /// What a new cluster has from its first start on; `None` is no users, and everybody may do everything.
    pub first_start: Option<PathBuf>,
    /// Size of a journal file.
    pub file_size_bytes: u32,
    /// Bytes the journal may take; `None` takes nine tenths of what is free at the start.
    pub capacity_bytes: Option<u64>,
    /// A second, larger disk for what is old.
    pub tiers: Option<TiersConfig>,
    /// Longest rest of the disk between two syncs under load: more gives larger writes and less
    /// processor time for each byte, for up to that much latency.
    pub sync_rest_max: Duration,
    /// Bounds of key compaction.
    pub compaction: CompactionConfig,
    /// How often, and how fast, every byte of the disk is checked.
    pub scrub: ScrubConfig,
    /// Where cold records of topics with `cold=object` go; the same on all nodes.
    pub object_store: Option<ObjectStoreConfig>,
    /// How long a node is dead before its slot moves to a spare disk; `None` leaves it to operators.
    pub heal_after: Option<Duration>,
    /// Most bytes that a disk which lost its data asks its peers for in a second.
    pub heal_bytes_per_second_max: Option<u64>,
    /// Most of what the way to such a disk gives that it asks for; 100 leaves nothing to others.
    pub heal_share_percent_max: u8,
    /// Bounds and defaults for Kafka clients.
    pub front: FrontConfig,
    /// Threads that serve clients and peers; 1 is best where many nodes share few cores.
    pub worker_threads: usize,
    /// One-way delay to other datacenters, to try a far-away cluster on one machine.
    pub emulated_one_way_delay: Duration,
}

/// A page for operators that may be open to anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpenPage {
    /// `/health`
    Health,
    /// `/metrics`
    Metrics,
}

impl OpenPage {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Health, Self::Metrics];
}

impl NodeConfig {
    /// A cluster of one that needs no configuration.
    pub fn single(data: PathBuf, kafka: SocketAddr) -> Self {
        Self {
            node: NodeId::new(1),
            datacenter: Datacenter("dc1".to_owned()),
            rack: Rack("rack1".to_owned()),
            roles: Roles::ALL,
            data,
            kafka,
            kafka_advertised: None,
            listeners: Vec::new(),
            peer: None,
            admin: None,
            admin_certificate: None,
            admin_open: OpenPage::ALL.to_vec(),
            cluster: None,
            geometry: Geometry::None,
            further_groups: Vec::new(),
            members: Vec::new(),
            tls: None,
            secret_key_file: None,
            first_start: None,
            file_size_bytes: FILE_SIZE_BYTES_DEFAULT,
            capacity_bytes: None,
            tiers: None,
            sync_rest_max: SYNC_REST_MAX_DEFAULT,
            compaction: CompactionConfig::default(),
            scrub: ScrubConfig::default(),
            object_store: None,
            heal_after: Some(HEAL_AFTER_DEFAULT),
            heal_bytes_per_second_max: None,
            heal_share_percent_max: COPY_SHARE_PERCENT_MAX_DEFAULT,
            front: FrontConfig::default(),
            worker_threads: default_worker_threads(),
            emulated_one_way_delay: Duration::ZERO,
        }
    }

    /// Parses a configuration file; relative paths are relative to `folder`, where it lies.
    pub fn from_toml(text: &str, folder: &Path) -> Result<Self, ConfigError> {
        let mut file: File = toml::from_str(text)?;
        let named = kafka_names::take_out(&mut file.kafka);
        let mut front = front(&file.kafka.try_into()?, &file.limits, &file.metrics);
        kafka_names::apply(named, &mut front)?;
        front.super_users = super_users(&file.security.super_users)?;
        let kafka = address("listen.kafka", &file.listen.kafka)?;
        let admin = file.listen.admin.map(|text| address("listen.admin", &text)).transpose()?;
        let admin_certificate =
            operators(admin, file.listen.admin_certificate, file.listen.admin_key, folder)?;
        let open_admin = admin.filter(|_| admin_certificate.is_none());
        for (key, address) in [("listen.kafka", Some(kafka)), ("listen.admin", open_admin)] {
            if let Some(address) = address.filter(|address| !address.ip().is_loopback())
                && !file.listen.insecure
            {
                return Err(ConfigError::Exposed { key, address });
            }
        }
        let members = members(&file.cluster.nodes)?;
        let node = NodeId::new(file.node.id);
        let config = Self {
            node,
            datacenter: Datacenter(file.node.datacenter),
            rack: Rack(file.node.rack),
            roles: roles(&file.node.roles)?,
            data: folder.join(file.node.data),
            kafka,
            kafka_advertised: file
                .listen
                .kafka_advertised
                .map(|text| endpoint("listen.kafka_advertised", &text))
                .transpose()?,
            listeners: listeners::listeners(file.listener, file.listen.insecure, folder)?,
            peer: file.listen.peer.map(|text| address("listen.peer", &text)).transpose()?,
            admin,
            admin_certificate,
            admin_open: file.listen.admin_open.unwrap_or_else(|| OpenPage::ALL.to_vec()),
            cluster: Some(ClusterId::from_text(file.cluster.id)),
            geometry: file.cluster.geometry,
            further_groups: file.cluster.further_groups,
            members,
            tls: file.tls.map(|tls| folder.join(tls.folder)),
            secret_key_file: file.security.secret_key_file.map(|file| folder.join(file)),
            first_start: file.security.first_start.map(|file| folder.join(file)),
            file_size_bytes: file.storage.file_size_bytes.unwrap_or(FILE_SIZE_BYTES_DEFAULT),
            capacity_bytes: file.storage.capacity_bytes,
            tiers: file.storage.tiers.as_ref().map(|it| it.config(folder)).transpose()?,
            sync_rest_max: file
                .storage
                .sync_rest_ms_max
                .map_or(SYNC_REST_MAX_DEFAULT, Duration::from_millis),
            compaction: compaction(&file.storage),
            scrub: scrub(&file.scrub),
            object_store: file.object_store.map(|table| table.config(folder)).transpose()?,
            heal_after: heal_after(&file.heal),
            heal_bytes_per_second_max: file.heal.bytes_per_second_max,
            heal_share_percent_max: file
                .heal
                .share_percent_max
                .unwrap_or(COPY_SHARE_PERCENT_MAX_DEFAULT),
            front,
            worker_threads: file.limits.worker_threads.unwrap_or_else(default_worker_threads),
            emulated_one_way_delay: Duration::from_secs_f64(file.dev.wan_rtt_ms.max(0.0) / 2e3),
        };
        config.check()?;
        Ok(config)
    }

    /// Where Kafka clients are told to go.
    pub fn advertised(&self, listening: SocketAddr) -> Endpoint {
        listeners::advertised(self.kafka_advertised.as_ref(), listening)
    }

    /// The initial voters; this node alone in a cluster of one.
    pub fn voters(&self) -> Vec<NodeId> {
        if self.members.is_empty() {
            return vec![self.node];
        }
        self.members.iter().filter(|member| member.voter).map(|member| member.node).collect()
    }

    /// Where other nodes are told to reach this one: as the configuration names it, or where it listens.
    pub(crate) fn peer_endpoint(&self) -> Option<Endpoint> {
        let own = self.members.iter().find(|member| member.node == self.node);
        let listening = self
            .peer
            .map(|address| Endpoint { host: address.ip().to_string(), port: address.port() });
        own.map(|member| member.peer.clone()).or(listening)
    }

    /// The other initial members.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.node != self.node)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let value =
            |key, problem: &str| Err(ConfigError::Value { key, problem: problem.to_owned() });
        self.check_members()?;
        if self.members.len() > 1 && (self.tls.is_none() || self.peer.is_none()) {
            return value("tls.folder", "a node with peers needs tls.folder and listen.peer");
        }
        if self.first_start.is_some() && self.front.super_users.is_empty() {
            let problem = "nobody could make access rules in the new cluster: name its first user in \
                           security.super_users";
            return value("security.first_start", problem);
        }
        if !matches!(self.voters().len(), 1 | 3 | 5 | 9) {
            return value("cluster.nodes", "1, 3, 5 or 9 of the nodes must have voter = true");
        }
        if !(FILE_SIZE_BYTES_MIN..=FILE_SIZE_BYTES_MAX).contains(&self.file_size_bytes) {
            return value("storage.file_size_bytes", "must be between 16 MiB and 1 GiB");
        }
        let capacity_bytes_min = FILE_COUNT_MIN * u64::from(self.file_size_bytes);
        if self.capacity_bytes.is_some_and(|bytes| bytes < capacity_bytes_min) {
            let problem = format!("must be at least {FILE_COUNT_MIN} x storage.file_size_bytes");
            return value("storage.capacity_bytes", &problem);
        }
        if let Some(tiers) = &self.tiers {
            tiers.check(self.file_size_bytes)?;
        }
        if self.compaction.bytes_per_second == 0 {
            return value("storage.compaction_bytes_per_second", "must be at least 1");
        }
        if self.compaction.memory_bytes < 1 << 20 {
            return value("storage.compaction_memory_bytes", "must be at least 1 MiB");
        }
        if self.scrub.bytes_per_second_max < MIB {
            return value("scrub.bytes_per_second_max", "must be at least 1 MiB");
        }
        if self.heal_bytes_per_second_max.is_some_and(|rate| rate < MIB) {
            return value("heal.bytes_per_second_max", "must be at least 1 MiB");
        }
        if !(10..=100).contains(&self.heal_share_percent_max) {
            return value("heal.share_percent_max", "must be 10 to 100");
        }
        if self.worker_threads == 0 {
            return value("limits.worker_threads", "must be at least 1");
        }
        self.check_front()
    }

    /// What the list says of this node must be what the node says of itself.
    fn check_members(&self) -> Result<(), ConfigError> {
        let value = |key, problem: String| Err(ConfigError::Value { key, problem });
        let mut ids = BTreeSet::new();
        if let Some(twice) = self.members.iter().find(|member| !ids.insert(member.node)) {
            return value("cluster.nodes", format!("lists node {} twice", twice.node));
        }
        let Some(own) = self.members.iter().find(|member| member.node == self.node) else {
            let problem = "must list this node (node.id) among the others";
            return value("cluster.nodes", problem.to_owned());
        };
        let (node, own_rack) = (self.node, own.rack.as_ref().unwrap_or(&self.rack));
        for (key, here, listed) in [
            ("node.datacenter", &self.datacenter.0, &own.datacenter.0),
            ("node.rack", &self.rack.0, &own_rack.0),
        ] {
            if here != listed {
                let problem = format!(
                    "is \"{here}\", and cluster.nodes has node {node} in \"{listed}\"; write one of them"
                );
                return value(key, problem);
            }
        }
        Ok(())
    }

    fn check_front(&self) -> Result<(), ConfigError> {
        let value = |key, problem: String| Err(ConfigError::Value { key, problem });
        let front = &self.front;
        let partition_count_max = limits::PARTITIONS_PER_TOPIC_MAX;
        if !(1..=partition_count_max).contains(&front.partition_count_default) {
            let problem = format!("must be from 1 to {partition_count_max}");
            return value("kafka.partition_count_default", problem);
        }
        if front.group.initial_rebalance_delay > INITIAL_REBALANCE_DELAY_MAX {
            let max = INITIAL_REBALANCE_DELAY_MAX.as_millis();
            let problem = format!("must be at most {max}");
            return value("kafka.group_initial_rebalance_delay_ms", problem);
        }
        let group = &front.group;
        if group.consumer_heartbeat_interval.is_zero()
            || group.consumer_session_timeout <= group.consumer_heartbeat_interval
        {
            let problem = "must be at least 1, and less than group_consumer_session_timeout_ms";
            return value("kafka.group_consumer_heartbeat_interval_ms", problem.to_owned());
        }
        if front.telemetry.push_interval < PUSH_INTERVAL_MIN {
            let problem = format!("must be at least {}", PUSH_INTERVAL_MIN.as_millis());
            return value("kafka.client_metrics_interval_ms", problem);
        }
        for (key, count) in [
            ("kafka.group_size_max", group.member_count_max),
            ("limits.connection_count_max", front.connection_count_max),
            ("limits.connection_count_per_ip_max", front.connection_count_per_ip_max),
            ("limits.group_memory_bytes_max", group.memory_size_bytes_max),
            ("limits.request_size_bytes_max", front.request_size_bytes_max),
        ] {
            if count == 0 {
                return value(key, "must be at least 1".to_owned());
            }
        }
        for (key, count) in [
            ("metrics.client_names_max", front.usage.client_names_max),
            ("metrics.topic_names_max", front.usage.topic_names_max),
            ("metrics.group_names_max", front.usage.group_names_max),
        ] {
            if count > METRIC_NAMES_MAX {
                return value(key, format!("must be at most {METRIC_NAMES_MAX}"));
            }
        }
        Ok(())
    }
}

fn default_worker_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().min(4))
}

/// A cycle of 0 leaves scrubs to operators.
fn scrub(table: &ScrubTable) -> ScrubConfig {
    let default = ScrubConfig::default();
    let cycle = |cycle_s| (cycle_s > 0).then_some(Duration::from_secs(cycle_s));
    ScrubConfig {
        cycle: table.cycle_s.map_or(default.cycle, cycle),
        bytes_per_second_max: table.bytes_per_second_max.unwrap_or(default.bytes_per_second_max),
    }
}

/// 0 leaves it to operators.
fn heal_after(table: &HealTable) -> Option<Duration> {
    let given = |after_s| (after_s > 0).then_some(Duration::from_secs(after_s));
    table.after_s.map_or(Some(HEAL_AFTER_DEFAULT), given)
}

fn compaction(storage: &StorageTable) -> CompactionConfig {
    let defaults = CompactionConfig::default();
    CompactionConfig {
        bytes_per_second: storage.compaction_bytes_per_second.unwrap_or(defaults.bytes_per_second),
        memory_bytes: storage.compaction_memory_bytes.unwrap_or(defaults.memory_bytes),
    }
}

fn front(kafka: &KafkaTable, limits: &LimitsTable, metrics: &MetricsTable) -> FrontConfig {
    let defaults = FrontConfig::default();
    let or = |value: Option<usize>, default| value.unwrap_or(default);
    let millis = |ms: Option<u64>, default| ms.map_or(default, Duration::from_millis);
    let group = GroupConfig {
        initial_rebalance_delay: millis(
            kafka.group_initial_rebalance_delay_ms,
            defaults.group.initial_rebalance_delay,
        ),
        member_count_max: or(kafka.group_size_max, defaults.group.member_count_max),
        consumer_session_timeout: millis(
            kafka.group_consumer_session_timeout_ms,
            defaults.group.consumer_session_timeout,
        ),
        consumer_heartbeat_interval: millis(
            kafka.group_consumer_heartbeat_interval_ms,
            defaults.group.consumer_heartbeat_interval,
        ),
        memory_size_bytes_max: or(
            limits.group_memory_bytes_max,
            defaults.group.memory_size_bytes_max,
        ),
        offsets_retention: kafka
            .offsets_retention_minutes
            .map_or(defaults.group.offsets_retention, |minutes| {
                Duration::from_secs(minutes.saturating_mul(60))
            }),
        ..defaults.group
    };
    let telemetry = TelemetryConfig {
        metrics: kafka.client_metrics.clone(),
        push_interval: millis(kafka.client_metrics_interval_ms, defaults.telemetry.push_interval),
        ..defaults.telemetry
    };
    FrontConfig {
        auto_create_topics: kafka.auto_create_topics.unwrap_or(defaults.auto_create_topics),
        partition_count_default: kafka
            .partition_count_default
            .unwrap_or(defaults.partition_count_default),
        connection_count_max: or(limits.connection_count_max, defaults.connection_count_max),
        connection_count_per_ip_max: or(
            limits.connection_count_per_ip_max,
            defaults.connection_count_per_ip_max,
        ),
        request_size_bytes_max: or(limits.request_size_bytes_max, defaults.request_size_bytes_max),
        group,
        telemetry,
        usage: usage(metrics),
        ..defaults
    }
}

/// The files of the certificate of `listen.admin`.
fn operators(
    admin: Option<SocketAddr>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    folder: &Path,
) -> Result<Option<ListenerFiles>, ConfigError> {
    let refused = |problem: &str| {
        let problem = problem.to_owned();
        Err(ConfigError::Value { key: "listen.admin_certificate", problem })
    };
    match (admin, certificate, key) {
        (_, None, None) => Ok(None),
        (None, ..) => refused("there is no listen.admin"),
        (Some(_), Some(certificate), Some(key)) => {
            let (certificate, key) = (folder.join(certificate), folder.join(key));
            Ok(Some(ListenerFiles { certificate, key, clients: None }))
        }
        (Some(_), ..) => refused(
            "name listen.admin_certificate and listen.admin_key; `meridian cert server` makes both",
        ),
    }
}

fn usage(metrics: &MetricsTable) -> UsageConfig {
    let defaults = UsageConfig::default();
    UsageConfig {
        client_names_max: metrics.client_names_max.unwrap_or(defaults.client_names_max),
        topic_names_max: metrics.topic_names_max.unwrap_or(defaults.topic_names_max),
        group_names_max: metrics.group_names_max.unwrap_or(defaults.group_names_max),
    }
}

fn roles(names: &[String]) -> Result<Roles, ConfigError> {
    if names.is_empty() {
        return Ok(Roles::ALL);
    }
    let mut roles = Roles { meta: false, storage: false, gateway: false };
    for name in names {
        match name.as_str() {
            "meta" => roles.meta = true,
            "storage" => roles.storage = true,
            "gateway" => roles.gateway = true,
            other => {
                let problem = format!("unknown role \"{other}\"; use meta, storage and gateway");
                return Err(ConfigError::Value { key: "node.roles", problem });
            }
        }
    }
    Ok(roles)
}

/// Who may do everything.
fn super_users(texts: &[String]) -> Result<Vec<Principal>, ConfigError> {
    let parse = |text: &String| {
        text.parse().map_err(|error: PrincipalError| ConfigError::Value {
            key: "security.super_users",
            problem: error.to_string(),
        })
    };
    texts.iter().map(parse).collect()
}

fn members(tables: &[MemberTable]) -> Result<Vec<Member>, ConfigError> {
    tables
        .iter()
        .map(|table| {
            Ok(Member {
                node: NodeId::new(table.id),
                datacenter: Datacenter(table.datacenter.clone()),
                rack: table.rack.clone().map(Rack),
                peer: endpoint("cluster.nodes.peer", &table.peer)?,
                voter: table.voter,
            })
        })
        .collect()
}

fn address(key: &'static str, text: &str) -> Result<SocketAddr, ConfigError> {
    let problem = |detail: String| ConfigError::Value {
        key,
        problem: format!("\"{text}\" is no address ({detail}); write host:port"),
    };
    text.to_socket_addrs()
        .map_err(|error| problem(error.to_string()))?
        .next()
        .ok_or_else(|| problem("it resolves to nothing".to_owned()))
}

fn endpoint(key: &'static str, text: &str) -> Result<Endpoint, ConfigError> {
    let parsed = text.rsplit_once(':').and_then(|(host, port)| {
        Some(Endpoint { host: host.to_owned(), port: port.parse().ok()? })
    });
    parsed
        .ok_or_else(|| ConfigError::Value { key, problem: format!("\"{text}\" is not host:port") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [node]
        id = 1
        datacenter = "A"
        rack = "A1"
        data = "node-1"
        [listen]
        kafka = "127.0.0.1:9092"
        peer = "127.0.0.1:19092"
        [cluster]
        id = "abcdefghijklmnopqrstuv"
        geometry = "one-per-dc"
        [[cluster.nodes]]
        id = 1
        datacenter = "A"
        peer = "127.0.0.1:19092"
        [[cluster.nodes]]
        id = 2
        datacenter = "B"
        peer = "127.0.0.1:19093"
        [[cluster.nodes]]
        id = 3
        datacenter = "C"
        peer = "127.0.0.1:19094"
        [tls]
        folder = "tls"
    "#;

    fn parse(text: &str) -> Result<NodeConfig, ConfigError> {
        NodeConfig::from_toml(text, Path::new("/etc/meridian"))
    }

    fn message(text: &str) -> String {
        parse(text).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_member_of_three_parses() -> Result<(), ConfigError> {
        let config = parse(FILE)?;
        assert_eq!(config.voters().len(), 3);
        assert_eq!(config.data, Path::new("/etc/meridian/node-1"));
        assert_eq!(config.tls.as_deref(), Some(Path::new("/etc/meridian/tls")));
        assert_eq!(config.roles, Roles::ALL);
        Ok(())
    }

    #[test]
    fn what_clients_get_can_be_set() -> Result<(), ConfigError> {
        let config = parse(&format!(
            "{FILE}\n[kafka]\nauto_create_topics = false\npartition_count_default = 6\n\
             group_initial_rebalance_delay_ms = 3000\n[limits]\nconnection_count_max = 100\n\
             connection_count_per_ip_max = 10\nrequest_size_bytes_max = 2000000\n"
        ))?;
        let front = config.front;
        assert!(!front.auto_create_topics);
        assert_eq!(front.partition_count_default, 6);
        assert_eq!(front.group.initial_rebalance_delay, Duration::from_secs(3));
        assert_eq!((front.connection_count_max, front.connection_count_per_ip_max), (100, 10));
        assert_eq!(front.request_size_bytes_max, 2_000_000);
        assert_eq!(parse(FILE)?.front, FrontConfig::default());
        for (line, key) in [
            ("[kafka]\npartition_count_default = 0", "kafka.partition_count_default"),
            (
                "[kafka]\ngroup_initial_rebalance_delay_ms = 300001",
                "kafka.group_initial_rebalance_delay_ms",
            ),
            ("[limits]\nconnection_count_max = 0", "limits.connection_count_max"),
            ("[metrics]\nclient_names_max = 10001", "metrics.client_names_max"),
            ("[metrics]\ntopic_names_max = 10001", "metrics.topic_names_max"),
            ("[metrics]\ngroup_names_max = 10001", "metrics.group_names_max"),
            ("[heal]\nshare_percent_max = 9", "heal.share_percent_max"),
            ("[heal]\nshare_percent_max = 101", "heal.share_percent_max"),
        ] {
            assert!(message(&format!("{FILE}\n{line}")).contains(key), "{key}");
        }
        Ok(())
    }

    #[test]
    fn a_peer_whose_name_does_not_resolve_yet_is_no_mistake() -> Result<(), ConfigError> {
        let config = parse(&FILE.replace("127.0.0.1:19093", "b.not-yet.invalid:19093"))?;
        let expected = Endpoint { host: "b.not-yet.invalid".to_owned(), port: 19093 };
        assert_eq!(config.members[1].peer, expected);
        let own = Endpoint { host: "127.0.0.1".to_owned(), port: 19092 };
        assert_eq!(config.peer_endpoint(), Some(own));
        Ok(())
    }

    #[test]
    fn mistakes_name_their_key() {
        let exposed = FILE.replace("kafka = \"127.0.0.1", "kafka = \"0.0.0.0");
        assert!(message(&exposed).contains("listen.insecure = true"));
        let exposed = FILE.replace("[listen]", "[listen]\nadmin = \"0.0.0.0:9644\"");
        assert!(message(&exposed).starts_with("listen.admin = \"0.0.0.0:9644\""));
        let files = "\nadmin_certificate = \"a.pem\"\nadmin_key = \"/k.pem\"";
        let with_tls = exposed.replace("0.0.0.0:9644\"", &format!("0.0.0.0:9644\"{files}"));
        let config = NodeConfig::from_toml(&with_tls, Path::new("/etc")).expect("with TLS");
        let files = config.admin_certificate.expect("a certificate");
        assert_eq!(
            (&*files.certificate, &*files.key),
            (Path::new("/etc/a.pem"), Path::new("/k.pem"))
        );
        let half = with_tls.replace("\nadmin_key = \"/k.pem\"", "");
        assert!(message(&half).contains("name listen.admin_certificate and listen.admin_key"));
        assert!(parse(&exposed.replace("[listen]", "[listen]\ninsecure = true")).is_ok());
        assert!(message(&FILE.replace("rack = ", "rak = ")).contains("rak"));
        assert!(
            message(&FILE.replace(
                "id = 1\n        datacenter = \"A\"\n        rack",
                "id = 7\n        datacenter = \"A\"\n        rack"
            ))
            .contains("cluster.nodes")
        );
        assert!(
            message(&FILE.replace("[tls]\n        folder = \"tls\"", "")).contains("tls.folder")
        );
        assert!(message(&FILE.replace("127.0.0.1:19093", "nonsense")).contains("host:port"));
        let moved = FILE.replacen("datacenter = \"A\"", "datacenter = \"B\"", 1);
        assert!(message(&moved).contains("node.datacenter: is \"B\""), "{}", message(&moved));
        let listed = FILE.replace(
            "peer = \"127.0.0.1:19092\"\n        [[",
            "rack = \"A2\"\n        peer = \"127.0.0.1:19092\"\n        [[",
        );
        assert!(message(&listed).contains("node.rack: is \"A1\""), "{}", message(&listed));
        assert!(message(&FILE.replace("id = 3", "id = 2")).contains("lists node 2 twice"));
        let two =
            FILE.replace("peer = \"127.0.0.1:19094\"", "peer = \"127.0.0.1:19094\"\nvoter = false");
        assert!(message(&two).contains("voter"));
    }
}
