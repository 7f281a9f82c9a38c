//! The configuration file as it is written: each table, with its keys.
//!
//! `cargo xtask docs` makes the reference in `docs/operating/configuration.md` of these comments. A
//! key without `Default:` is required.

use std::collections::BTreeMap;
use std::path::PathBuf;

use meridian_base::topology::Geometry;
use serde::Deserialize;

use super::OpenPage;
use super::listeners::ListenerTable;
use super::object_store::ObjectStoreTable;
use super::tiers::TiersTable;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) node: NodeTable,
    pub(super) listen: ListenTable,
    #[serde(default)]
    pub(super) listener: BTreeMap<String, ListenerTable>,
    pub(super) cluster: ClusterTable,
    pub(super) tls: Option<TlsTable>,
    #[serde(default)]
    pub(super) security: SecurityTable,
    #[serde(default)]
    pub(super) storage: StorageTable,
    #[serde(default)]
    pub(super) scrub: ScrubTable,
    pub(super) object_store: Option<ObjectStoreTable>,
    #[serde(default)]
    pub(super) heal: HealTable,
    #[serde(default)]
    pub(super) kafka: toml::Table,
    #[serde(default)]
    pub(super) limits: LimitsTable,
    #[serde(default)]
    pub(super) metrics: MetricsTable,
    #[serde(default)]
    pub(super) dev: DevTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeTable {
    /// Number of the node, from 1. Kafka clients see it as broker id.
    pub(super) id: u32,
    /// Datacenter of the node; clients see it as `broker.rack`.
    pub(super) datacenter: String,
    /// Rack of the node: what fails together with it.
    pub(super) rack: String,
    /// Any of `meta`, `storage`, `gateway`.
    /// Default: all.
    #[serde(default)]
    pub(super) roles: Vec<String>,
    /// Folder of all files: `disk` (journal) and `meta` (metadata log).
    pub(super) data: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListenTable {
    /// TCP address for Kafka clients.
    pub(super) kafka: String,
    /// Host and port that clients connect to. Set it if `listen.kafka` is `0.0.0.0`.
    /// Default: `listen.kafka`.
    pub(super) kafka_advertised: Option<String>,
    /// UDP address for other nodes. Required if there are other nodes.
    /// Default: none.
    pub(super) peer: Option<String>,
    /// TCP address of the operators' HTTP pages.
    /// Default: none.
    pub(super) admin: Option<String>,
    /// PEM file with the certificate chain that readers of `listen.admin` are shown: with it pages that are not open
    /// always take a login. It and the key are read anew when they change.
    /// Default: none; the pages are not encrypted.
    pub(super) admin_certificate: Option<PathBuf>,
    /// PEM file with the key of that certificate, mode 0600.
    /// Default: none.
    pub(super) admin_key: Option<PathBuf>,
    /// Pages of `listen.admin` that anybody may read: `health`, `metrics`. The others, and these too if they are not
    /// named, take DESCRIBE on the cluster: by HTTP Basic with a user's password, or as `User:ANONYMOUS`.
    /// Default: `["health", "metrics"]`.
    pub(super) admin_open: Option<Vec<OpenPage>>,
    /// Allows addresses beyond loopback where clients need not log in, or where others can read
    /// what is sent.
    /// Default: `false`.
    #[serde(default)]
    pub(super) insecure: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterTable {
    /// Id from `meridian cert ca`, the same on all nodes.
    pub(super) id: String,
    /// `mirror-3-dc`, `one-per-dc`, `block-4-2` or `none`, the same on all nodes.
    pub(super) geometry: Geometry,
    /// Shapes of storage groups to make beside the first, of nodes without a slot:
    /// `["block-4-2"]`. The same on all nodes.
    /// Default: none.
    #[serde(default)]
    pub(super) further_groups: Vec<Geometry>,
    /// `id`, `datacenter`, `rack`, `peer` and `voter` (default `true`) of each node. 1, 3, 5 or 9
    /// of them vote.
    pub(super) nodes: Vec<MemberTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemberTable {
    pub(super) id: u32,
    pub(super) datacenter: String,
    pub(super) rack: Option<String>,
    pub(super) peer: String,
    #[serde(default = "yes")]
    pub(super) voter: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsTable {
    /// Folder with `ca.pem`, `node.pem` and `node-key.pem`. Required if there are other nodes.
    /// Default: none.
    pub(super) folder: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SecurityTable {
    /// File, mode 0600, with the keys that seal secrets of links, the same on all nodes.
    /// Default: `secrets.key` in `tls.folder`, else in `node.data`, where a cluster of one draws it.
    pub(super) secret_key_file: Option<PathBuf>,
    /// File of `meridian init` with the first users of a new cluster and its mode of authorization. A
    /// cluster that has decided a mode, or has users or topics, pays no heed to it.
    /// Default: none.
    pub(super) first_start: Option<PathBuf>,
    /// Principals that may do everything, whatever the access rules say: `["User:admin"]`.
    /// Default: none.
    #[serde(default)]
    pub(super) super_users: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StorageTable {
    /// Size of a journal file, 16 MiB to 1 GiB. A disk keeps its first size for life; another
    /// value holds for new disks.
    /// Default: 16 MiB.
    pub(super) file_size_bytes: Option<u32>,
    /// Size of the whole journal, on both disks if there are two; at least 5 x
    /// `storage.file_size_bytes`.
    /// Default: 9/10 of what is free at the start, and what it has.
    pub(super) capacity_bytes: Option<u64>,
    /// Longest pause of the disk between two syncs under load, in milliseconds.
    /// Default: 5.
    pub(super) sync_rest_ms_max: Option<u64>,
    /// Bound on what key compaction reads and writes for this node's partitions, at least 1.
    /// Default: 8 MiB.
    pub(super) compaction_bytes_per_second: Option<u64>,
    /// Memory for keys of a compaction pass, 48 bytes each, at least 1 MiB. More keys take more
    /// passes.
    /// Default: 64 MiB.
    pub(super) compaction_memory_bytes: Option<usize>,
    pub(super) tiers: Option<TiersTable>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScrubTable {
    /// Time in which every byte of the disk is checked once. 0 leaves it to `disk scrub`.
    /// Default: 1 209 600 (14 days).
    pub(super) cycle_s: Option<u64>,
    /// Bound on the rate of a scrub, at least 1 MiB.
    /// Default: 64 MiB.
    pub(super) bytes_per_second_max: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HealTable {
    /// A node that is dead for this long loses its slot to a spare. 0 leaves it to `node
    /// replace`. The same on all nodes.
    /// Default: 600.
    pub(super) after_s: Option<u64>,
    /// Bound on what a refilling disk of this node requests from its peers, at least 1 MiB.
    /// Refill threads yield to clients' (`nice` 10).
    /// Default: none.
    pub(super) bytes_per_second_max: Option<u64>,
    /// Share of the measured refill bandwidth to use, in percent, 10 to 100. Lower values slow
    /// the refill and protect producers; 100 is a quarter faster.
    /// Default: 75.
    pub(super) share_percent_max: Option<u8>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KafkaTable {
    /// Creates a topic when a client first asks for it.
    /// Default: `true`.
    pub(super) auto_create_topics: Option<bool>,
    /// Partitions of a topic that does not set a number, at least 1.
    /// Default: 1.
    pub(super) partition_count_default: Option<u32>,
    /// How long an empty group waits for more members, at most 300 000.
    /// Default: 500.
    pub(super) group_initial_rebalance_delay_ms: Option<u64>,
    /// Largest number of members of a group, at least 1.
    /// Default: 10 000.
    pub(super) group_size_max: Option<usize>,
    /// A member of a KIP-848 group is removed after this long without a heartbeat.
    /// Default: 45 000.
    pub(super) group_consumer_session_timeout_ms: Option<u64>,
    /// How often members of KIP-848 groups send heartbeats; less than the session timeout.
    /// Default: 5 000.
    pub(super) group_consumer_heartbeat_interval_ms: Option<u64>,
    /// How long committed offsets of a group without members are kept.
    /// Default: 10 080.
    pub(super) offsets_retention_minutes: Option<u64>,
    /// Prefixes of metrics that clients push (KIP-714); `[""]` for all.
    /// Default: none.
    #[serde(default)]
    pub(super) client_metrics: Vec<String>,
    /// How often clients push metrics, at least 100.
    /// Default: 300 000.
    pub(super) client_metrics_interval_ms: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsTable {
    /// Client connections, and no more than half of the files that may be open. More are closed
    /// at once.
    /// Default: 20 000.
    pub(super) connection_count_max: Option<usize>,
    /// Client connections from one address. More are closed at once.
    /// Default: 10 000.
    pub(super) connection_count_per_ip_max: Option<usize>,
    /// Memory that the members of all groups that a node coordinates may take. More members are
    /// refused.
    /// Default: 256 MiB.
    pub(super) group_memory_bytes_max: Option<usize>,
    /// Longest request.
    /// Default: 100 MiB.
    pub(super) request_size_bytes_max: Option<usize>,
    /// Threads that serve clients and peers.
    /// Default: cores, at most 4.
    pub(super) worker_threads: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MetricsTable {
    /// Pairs of user and client id with metrics of their own, the busiest; the rest is `other`. At
    /// most 10 000; 0 for no such metrics.
    /// Default: 500.
    pub(super) client_names_max: Option<usize>,
    /// Topics with metrics of their own, likewise.
    /// Default: 500.
    pub(super) topic_names_max: Option<usize>,
    /// Groups with metrics of their own, those that lag the most.
    /// Default: 500.
    pub(super) group_names_max: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DevTable {
    /// Emulated round trip to other datacenters; for tests only.
    /// Default: 0.
    #[serde(default)]
    pub(super) wan_rtt_ms: f64,
}

fn yes() -> bool {
    true
}
