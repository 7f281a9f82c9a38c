//! The Kafka front: speaks the Kafka protocol to clients and asks the node for everything else.
//!
//! **Owns** connections, request limits, one file per family of APIs, and the groups and
//! transactions this node coordinates. **Never** touches disks or other nodes: partitions, metadata and proposals are
//! reached through [`Broker`] alone.
//!
//! ```text
//! server -> connection: reader -> dispatch -> handler -> Broker, PartitionLog
//!                       writer <- replies, in the order of the requests
//! ```
//!
//! Requests of a connection take effect one after another, in order, as Kafka has it. Two exceptions
//! keep pipelines full. Produce is started as soon as it is read, and commits and heartbeats of groups
//! as soon as all before them have been; only the answer waits for its turn.

mod access;
mod acls;
#[cfg(test)]
mod bad_input;
mod cluster;
mod configs;
mod connection;
mod connections;
mod consumer_groups;
mod coordinator;
mod delegation;
mod delete_records;
mod describe_producers;
mod dispatch;
mod durations;
mod elections;
pub(crate) mod error;
mod features;
mod fetch;
pub(crate) mod first_start;
mod group_lag;
mod groups;
mod internal_state;
#[cfg(test)]
mod large_requests;
mod link_rights;
mod link_uses;
mod links;
mod list_offsets;
pub(crate) mod listener;
mod log_dirs;
mod login;
mod lookup;
mod member_memory;
mod memory;
pub(crate) mod meridian;
mod metadata;
mod metrics;
mod offset_expiry;
mod offsets;
mod opening;
mod pace;
mod pages;
mod produce;
mod producer_id;
mod quorum;
pub(crate) mod quotas;
mod repeated;
mod server;
mod session;
mod share_groups;
mod share_offsets;
mod shares;
mod spread;
mod telemetry;
#[cfg(test)]
pub(crate) mod testing;
mod topics;
mod transactions;
mod txn_offsets;
mod usage;
pub(crate) mod users;
mod write_markers;

use std::sync::{Arc, Mutex};

use meridian_base::env::{Instant, Rng};
use meridian_base::id::TopicId;
use meridian_base::sync::lock;
use tokio::sync::Semaphore;

pub(crate) use self::access::Authorization;
pub use self::durations::DurationSample;
pub use self::link_uses::LinkUses;
pub use self::links::{LinkServer, LinkServerError};
pub(crate) use self::listener::Listener;
pub use self::listener::{TokenIssuer, TokenIssuerError};
pub use self::metrics::{Metrics, Sample};
pub(crate) use self::pages::{Admission, BasicLogin};
pub(crate) use self::produce::lag_limit;
pub use self::server::{Server, ServerError};
pub use self::transactions::Verifier;
pub use self::usage::NamedSample;
use crate::admin_api::AdminHandler;
use crate::background::ChoreCounters;
use crate::broker::Broker;
use crate::config::FrontConfig;
use crate::coordination::{group_state, offset_record};
use crate::runtime::clock::Clock;

/// Messages with markers on their way to leaders of partitions.
const MARKER_ASK_COUNT_MAX: usize = 256;

/// Passwords that are checked side by side.
const PASSWORD_COUNT_MAX: usize = 4;

/// What all connections share.
pub struct Front {
    broker: Arc<dyn Broker>,
    config: FrontConfig,
    metrics: Metrics,
    memory: Arc<memory::Memory>,
    clock: Clock,
    rng: Mutex<Box<dyn Rng + Send>>,
    sessions: fetch::Sessions,
    throttles: quotas::Throttles,
    producer_ids: producer_id::ProducerIds,
    coordinators: internal_state::InternalPartitions<coordinator::Groups>,
    groups_memory: member_memory::GroupsMemory,
    transactions: internal_state::InternalPartitions<transactions::Kept>,
    /// Bounds what coordinators ask the leaders of partitions at once.
    marker_asks: Semaphore,
    /// Bounds the answers to links that are packed at once.
    packing: Arc<Semaphore>,
    /// Bounds the large batches that are read at once.
    examining: Arc<Semaphore>,
    chores: ChoreCounters,
    admin: Option<Arc<dyn AdminHandler>>,
    link_grants: access::LinkGrants,
    access_rules: Arc<access::AccessRules>,
    freshness: access::Freshness,
    /// Bounds the passwords that are checked at once: each takes a processor for milliseconds.
    logins: Arc<Semaphore>,
    failures: login::Failures,
    shapes: users::Shapes,
    usage: usage::Usage,
    connections: connections::Connections,
    group_lags: group_lag::GroupLags,
    shares: shares::Shares,
}

impl Front {
    /// The front of the node behind `broker`. `rng` draws topic, member and session ids; `admin`
    /// answers operators.
    pub fn new(
        broker: Arc<dyn Broker>,
        config: FrontConfig,
        mut rng: Box<dyn Rng + Send>,
        admin: Option<Arc<dyn AdminHandler>>,
    ) -> Arc<Self> {
        let clock = Clock::start();
        let life = rng.next_u64().max(1);
        let throttles = quotas::Throttles::new(clock.now(), broker.node(), life, config.mutations);
        let config = config.with_room();
        let group_memory_bytes_max = config.group.memory_size_bytes_max;
        Arc::new(Self {
            broker,
            sessions: fetch::Sessions::new(config.fetch_session_count_max),
            memory: memory::Memory::new(config.memory_size_bytes_max),
            usage: usage::Usage::new(&config.usage),
            connections: connections::Connections::default(),
            group_lags: group_lag::GroupLags::default(),
            config,
            metrics: Metrics::default(),
            clock,
            rng: Mutex::new(rng),
            throttles,
            producer_ids: producer_id::ProducerIds::default(),
            coordinators: internal_state::InternalPartitions::default(),
            groups_memory: member_memory::GroupsMemory::new(group_memory_bytes_max),
            transactions: internal_state::InternalPartitions::default(),
            marker_asks: Semaphore::new(MARKER_ASK_COUNT_MAX),
            packing: Arc::new(Semaphore::new(fetch::PACK_COUNT_MAX)),
            examining: Arc::new(Semaphore::new(produce::examine_count_max())),
            chores: ChoreCounters::default(),
            admin,
            link_grants: access::LinkGrants::default(),
            access_rules: Arc::default(),
            freshness: access::Freshness::default(),
            logins: Arc::new(Semaphore::new(PASSWORD_COUNT_MAX)),
            failures: login::Failures::default(),
            shapes: users::Shapes::default(),
            shares: shares::Shares::default(),
        })
    }

    /// What has been counted since the start.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// What the front has done by itself since the start.
    pub(crate) fn chores(&self) -> &ChoreCounters {
        &self.chores
    }

    /// All that is published: what was counted, and the memory that clients take.
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = self.metrics.samples();
        let count = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        let (members_bytes, members_limit_bytes) = self.groups_memory.usage();
        let members = ("group-members", members_bytes, members_limit_bytes);
        for (kind, used_bytes, limit_bytes) in self.memory.usage().into_iter().chain([members]) {
            let label = Some(("kind", kind));
            let used = ("meridian_kafka_memory_bytes", used_bytes);
            let limit = ("meridian_kafka_memory_limit_bytes", limit_bytes);
            let both = [used, limit];
            samples.extend(both.map(|(name, bytes)| Sample { name, label, value: count(bytes) }));
        }
        samples.extend(self.access_samples());
        samples.extend(self.quota_samples());
        samples.extend(self.shares.samples());
        samples
    }

    /// What is published under names that clients choose.
    pub(crate) fn named_samples(&self) -> Vec<NamedSample> {
        let mut samples = self.usage.samples(&self.broker.metadata());
        samples.extend(self.group_lags.samples(self.config.usage.group_names_max));
        samples
    }

    /// Does what takes milliseconds of a processor, such as to hash a password, not on a thread that serves clients, and
    /// few at once; `None` if the node goes down. The turn lasts for as long as the work, also where nobody waits for it
    /// any more.
    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turn = Arc::clone(&self.logins).acquire_owned().await.ok()?;
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        done.await.ok()
    }

    /// The counters of a topic. Hold no guard of the metadata.
    fn topic_usage(&self, topic: TopicId) -> usage::TopicUsage {
        let name = || self.broker.metadata().topic(topic).map(|topic| topic.name.clone());
        self.usage.topic(topic, name)
    }

    /// How the access rules are used.
    fn access_samples(&self) -> [Sample; 2] {
        let sample = |name, value| Sample { name, label: None, value };
        let (denied_count, rule_count) =
            (self.access_rules.denied_count(), self.access_rules.count());
        [
            sample("meridian_access_denied_total", i64::try_from(denied_count).unwrap_or(i64::MAX)),
            sample("meridian_access_rules", i64::try_from(rule_count).unwrap_or(i64::MAX)),
        ]
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn random_u128(&self) -> u128 {
        let mut rng = lock(&self.rng);
        u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())
    }

    /// A topic id that no other topic has. Zero and one mean something else to Kafka clients.
    fn random_topic_id(&self) -> TopicId {
        TopicId::new(self.random_u128().max(2))
    }
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").field("config", &self.config).finish_non_exhaustive()
    }
}
