//! Bounds and defaults of the Kafka front.

use std::time::Duration;

use meridian_access::Principal;
use meridian_storage::mutation::Mutations;

/// Bounds and defaults of the Kafka front. Names of the settings they come from are Kafka's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontConfig {
    /// `socket.request.max.bytes`: a larger request closes the connection.
    pub request_size_bytes_max: usize,
    /// `max.connections`: more are closed at once.
    pub connection_count_max: usize,
    /// `max.connections.per.ip`.
    pub connection_count_per_ip_max: usize,
    /// Requests of one connection that wait for their turn; more are not read meanwhile. As many
    /// again may be on their way.
    pub in_flight_request_count_max: usize,
    /// Bytes of those that have records, for one connection.
    pub in_flight_size_bytes_max: usize,
    /// Memory that requests and answers of all connections take.
    pub memory_size_bytes_max: usize,
    /// Time for the first request after the connection was made.
    pub first_request_timeout: Duration,
    /// `connections.max.idle.ms`.
    pub idle_timeout: Duration,
    /// Time for the rest of a request to arrive, once it has begun; large ones get more.
    pub request_timeout: Duration,
    /// Time without progress while a client does not read its answers.
    pub write_stall_timeout: Duration,
    /// Time for answers that are due when the client or the node says goodbye.
    pub drain_timeout: Duration,
    /// `fetch.max.bytes`: record bytes of one answer.
    pub fetch_size_bytes_max: usize,
    /// `max.incremental.fetch.session.cache.slots`.
    pub fetch_session_count_max: usize,
    /// `auto.create.topics.enable`.
    pub auto_create_topics: bool,
    /// `num.partitions`: partitions of a topic that does not say how many.
    pub partition_count_default: u32,
    /// `offsets.topic.num.partitions`. Fixed once `__consumer_offsets` exists.
    pub offsets_partition_count: u32,
    /// Bounds of consumer groups.
    pub group: GroupConfig,
    /// Bounds of transactions.
    pub transaction: TransactionConfig,
    /// What clients push about themselves.
    pub telemetry: TelemetryConfig,
    /// Metrics by names that clients choose.
    pub usage: UsageConfig,
    /// How old access rules may be: a node that is cut off from the metadata for longer serves super users alone.
    pub rules_age_max: Duration,
    /// `super.users`: they may do everything, whatever the access rules say.
    pub super_users: Vec<Principal>,
    /// Broken rules, for tests.
    pub mutations: Mutations,
}

/// Bounds of transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionConfig {
    /// `transaction.state.log.num.partitions`. Fixed once `__transaction_state` exists.
    pub partition_count: u32,
    /// `transaction.max.timeout.ms`.
    pub timeout_max: Duration,
    /// `transactional.id.expiration.ms`.
    pub id_expiration: Duration,
    /// Transactional ids of one coordinator partition.
    pub id_count_max: usize,
}

impl Default for TransactionConfig {
    fn default() -> Self {
        Self {
            partition_count: 50,
            timeout_max: Duration::from_secs(15 * 60),
            id_expiration: Duration::from_secs(7 * 24 * 3600),
            id_count_max: 100_000,
        }
    }
}

/// Which metrics clients are asked to push (KIP-714).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// Prefixes of the names of the metrics; an empty one stands for all.
    pub metrics: Vec<String>,
    /// How often.
    pub push_interval: Duration,
    /// `telemetry.max.bytes`: bytes of one push.
    pub push_size_bytes_max: usize,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            metrics: Vec::new(),
            push_interval: Duration::from_secs(300),
            push_size_bytes_max: 1 << 20,
        }
    }
}

/// How many names have metrics of their own; with 0 there are none of that kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageConfig {
    /// Pairs of a user and a client id.
    pub client_names_max: usize,
    /// Topics.
    pub topic_names_max: usize,
    /// Consumer groups.
    pub group_names_max: usize,
}

impl Default for UsageConfig {
    fn default() -> Self {
        Self { client_names_max: 500, topic_names_max: 500, group_names_max: 500 }
    }
}

/// Bounds of consumer groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_min: Duration,
    /// `group.max.session.timeout.ms`; also the longest rebalance timeout.
    pub session_timeout_max: Duration,
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for more members.
    pub initial_rebalance_delay: Duration,
    /// `group.max.size` and `group.consumer.max.size`.
    pub member_count_max: usize,
    /// `group.consumer.session.timeout.ms`: without a heartbeat for this long a member of a group
    /// of KIP-848 is removed.
    pub consumer_session_timeout: Duration,
    /// `group.consumer.heartbeat.interval.ms`: how often its members are to send heartbeats.
    pub consumer_heartbeat_interval: Duration,
    /// `offsets.retention.minutes`: how long positions of a group without members are kept.
    pub offsets_retention: Duration,
    /// Groups of one coordinator partition.
    pub group_count_max: usize,
    /// Bytes that the members of all groups of a node may take. More members are refused.
    pub memory_size_bytes_max: usize,
    /// Bytes of one member's subscription or assignment.
    pub member_size_bytes_max: usize,
    /// `offset.metadata.max.bytes`.
    pub offset_metadata_size_bytes_max: usize,
}

impl Default for FrontConfig {
    fn default() -> Self {
        Self {
            request_size_bytes_max: 100 << 20,
            connection_count_max: 20_000,
            connection_count_per_ip_max: 10_000,
            in_flight_request_count_max: 64,
            in_flight_size_bytes_max: 100 << 20,
            memory_size_bytes_max: 512 << 20,
            first_request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(600),
            request_timeout: Duration::from_secs(30),
            write_stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
            fetch_size_bytes_max: 55 << 20,
            fetch_session_count_max: 1_000,
            auto_create_topics: true,
            partition_count_default: 1,
            offsets_partition_count: 50,
            group: GroupConfig::default(),
            transaction: TransactionConfig::default(),
            telemetry: TelemetryConfig::default(),
            usage: UsageConfig::default(),
            rules_age_max: Duration::from_secs(60),
            super_users: Vec::new(),
            mutations: Mutations::NONE,
        }
    }
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            session_timeout_min: Duration::from_secs(6),
            session_timeout_max: Duration::from_secs(1800),
            initial_rebalance_delay: Duration::from_millis(500),
            member_count_max: 10_000,
            consumer_session_timeout: Duration::from_secs(45),
            consumer_heartbeat_interval: Duration::from_secs(5),
            offsets_retention: Duration::from_secs(7 * 24 * 3600),
            group_count_max: 100_000,
            memory_size_bytes_max: 256 << 20,
            member_size_bytes_max: 1 << 20,
            offset_metadata_size_bytes_max: 4096,
        }
    }
}

impl FrontConfig {
    /// With budgets that hold at least one request of the largest size.
    pub(crate) fn with_room(mut self) -> Self {
        let request = self.request_size_bytes_max;
        self.in_flight_size_bytes_max = self.in_flight_size_bytes_max.max(request);
        self.in_flight_request_count_max = self.in_flight_request_count_max.max(1);
        self
    }
}
