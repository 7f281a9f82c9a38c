//! Everything a node measures, as Prometheus text: [`FAMILIES`], and those of its sizes, tiers and chores.
//!
//! Labels are bounded: nodes of the cluster, links, names from this program, and of the names that clients choose
//! the busiest ones (see [`clients`]).

mod ahead;
mod certificates;
mod chores;
mod clients;
mod conditions;
mod copies;
mod histograms;
mod process;
mod raft;
mod renamed;
mod sizes;
mod tiers;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_admin_api::cluster::{GroupStatus, Tolerance};
use meridian_admin_api::mirror::Verdict;
use meridian_broker::replica::ahead::AheadCounts;
use meridian_consensus::command::Liveness;
use meridian_consensus::metrics::Metrics as RaftCounters;
use meridian_consensus::node::Leadership;
use meridian_storage::store::{Counters, DiskUsage, ScrubState, Standing};

use self::histograms::Histograms;
use self::process::Process;
use crate::background::{Chore, ChoreCount};
use crate::health::Condition;
use crate::health::tolerance::is_short;
use crate::kafka;
use crate::log::{ColdCounts, CopiesCounts, OngoingCounts, PartitionLog, ScrubReport};
use crate::mirror::{LinkMetrics, Mirrors};
use crate::node::{CompactionCounts, Node};
use crate::runtime::clock;
use crate::runtime::quic::{PeerState, PeerStats, TransportStats};
use crate::runtime::tiered::TierUsage;

/// Kafka's largest `transaction.timeout.ms`, 15 minutes, and 5 for the coordinator to end it.
const HANGING_AFTER_MS: i64 = 20 * 60 * 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

/// One value of a family.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: f64,
}

/// All values of one name.
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    source: Source,
}

enum Source {
    /// Counted by the Kafka front under the same name.
    Kafka,
    /// Counted by the Kafka front by names that clients choose, under the same name.
    Named,
    Of(fn(&Snapshot) -> Vec<Sample>),
}

const fn gauge(name: &'static str, help: &'static str, of: fn(&Snapshot) -> Vec<Sample>) -> Family {
    Family { name, kind: Kind::Gauge, help, source: Source::Of(of) }
}

const fn total(name: &'static str, help: &'static str, of: fn(&Snapshot) -> Vec<Sample>) -> Family {
    Family { name, kind: Kind::Counter, help, source: Source::Of(of) }
}

const fn kafka(name: &'static str, kind: Kind, help: &'static str) -> Family {
    Family { name, kind, help, source: Source::Kafka }
}

/// All metrics of a node, but those of its [`sizes`], [`tiers`], [`chores`] and of what it reads [`ahead`].
const FAMILIES: &[Family] = &[
    // The cluster, as this node knows it.
    gauge(
        "meridian_tolerates",
        "1 for what a storage group can lose right now without losing records or service, 0 for the others.",
        |s| s.groups.iter().flat_map(tolerates).collect(),
    ),
    gauge(
        "meridian_groups_short",
        "Storage groups of which less can be lost right now than they were built for.",
        |s| one(s.groups.iter().filter(|group| is_short(group)).count()),
    ),
    gauge("meridian_nodes", "Nodes of the cluster by liveness.", |s| {
        let [alive, draining, dead] = s.nodes_by_liveness;
        [("alive", alive), ("draining", draining), ("dead", dead)]
            .map(|(liveness, count)| labelled("liveness", liveness, count as f64))
            .into()
    }),
    gauge("meridian_partitions", "Partitions of the cluster.", |s| one(s.partitions)),
    gauge(
        "meridian_partitions_leaderless",
        "Partitions of the cluster whose leader is dead or gone.",
        |s| one(s.leaderless),
    ),
    gauge("meridian_raft_leader_known", "1 if a leader of the metadata log is known.", |s| {
        one(usize::from(s.raft.is_some_and(|raft| raft.leader.is_some())))
    }),
    gauge("meridian_raft_is_leader", "1 if this node leads the metadata log.", |s| {
        one(usize::from(s.raft.is_some_and(|raft| raft.is_self)))
    }),
    gauge("meridian_raft_term", "Term of the metadata log.", |s| {
        one_u64(s.raft.map_or(0, |raft| raft.term))
    }),
    // This node.
    gauge("meridian_node_info", "1, with what this node is.", |s| {
        vec![Sample { labels: s.identity.to_vec(), value: 1.0 }]
    }),
    gauge("meridian_partitions_led", "Partitions this node leads and serves.", |s| one(s.led)),
    gauge(
        "meridian_partitions_taking_over",
        "Partitions this node is taking over and does not serve yet.",
        |s| one(s.taking_over),
    ),
    gauge(
        "meridian_transactions_ongoing",
        "Transactions open in the partitions this node leads, once for each partition.",
        |s| one(s.transactions.ongoing),
    ),
    gauge(
        "meridian_transactions_hanging",
        "Those among them that began longer ago than any coordinator lets one last.",
        |s| one(s.transactions.hanging),
    ),
    gauge("meridian_log_pending_bytes", "Written, and with no quorum yet.", |s| {
        one(s.log_memory.0)
    }),
    gauge("meridian_log_tail_bytes", "Newest records in memory.", |s| one(s.log_memory.1)),
    // Its disk.
    gauge("meridian_disk_standing", "1 for what this node's disk is in its group.", |s| {
        let standing = |disk: &Disk| standing_name(disk.standing);
        s.disk
            .as_ref()
            .map(|disk| states("standing", &STANDINGS, standing(disk)))
            .unwrap_or_default()
    }),
    gauge("meridian_disk_used_bytes", "Bytes of all batches in the journal.", |s| {
        usage(s, |usage| usage.used_bytes)
    }),
    gauge("meridian_disk_live_bytes", "Bytes of blobs that can still be read.", |s| {
        usage(s, |usage| usage.live_bytes)
    }),
    gauge(
        "meridian_disk_free_bytes",
        "Bytes that can still be written, the reserve included.",
        |s| usage(s, |usage| usage.free_bytes),
    ),
    gauge("meridian_disk_capacity_bytes", "Bytes that the journal may take.", |s| {
        s.disk.as_ref().map(|disk| one_u64(disk.capacity_bytes)).unwrap_or_default()
    }),
    total("meridian_disk_puts_total", "Blobs made durable.", |s| counter(s, |c| c.puts)),
    total("meridian_disk_put_bytes_total", "Payload bytes of these blobs.", |s| {
        counter(s, |c| c.put_bytes)
    }),
    total("meridian_disk_duplicate_puts_total", "Puts of a blob that was there already.", |s| {
        counter(s, |c| c.duplicates)
    }),
    total("meridian_disk_syncs_total", "Batches written, each with one fdatasync.", |s| {
        counter(s, |c| c.batches)
    }),
    total("meridian_disk_sync_records_total", "Journal records in these batches.", |s| {
        counter(s, |c| c.batch_records)
    }),
    total("meridian_disk_fences_total", "Fences raised by new leaders.", |s| {
        counter(s, |c| c.fences)
    }),
    total("meridian_disk_refusals_total", "Puts and fences refused, by reason.", |s| {
        let of = |disk: &Disk| {
            let c = &disk.counters;
            [
                ("busy", c.refused_busy),
                ("fenced", c.fenced),
                ("full", c.refused_full),
                ("not_mine", c.refused_not_mine),
                ("stale", c.stale),
                ("syncing", c.refused_syncing),
            ]
            .map(|(reason, count)| labelled("reason", reason, count as f64))
            .into()
        };
        s.disk.as_ref().map(of).unwrap_or_default()
    }),
    total(
        "meridian_disk_conflicts_total",
        "Puts of other bytes under a taken key: never, unless two leaders share a generation.",
        |s| counter(s, |c| c.conflicts),
    ),
    total("meridian_disk_corrupt_total", "Checksum failures and failed reads.", |s| {
        counter(s, |c| c.corrupt)
    }),
    total("meridian_disk_repaired_total", "Damaged blobs written anew.", |s| {
        counter(s, |c| c.repaired)
    }),
    gauge("meridian_disk_unreadable_blobs", "Damaged blobs that are not mended yet.", |s| {
        scrub(s, |scrub| f64::from(scrub.status.unreadable))
    }),
    total("meridian_disk_scrubbed_bytes_total", "Bytes checked by scrubs.", |s| {
        counter(s, |c| c.scrubbed_bytes)
    }),
    total("meridian_disk_scrubs_total", "Scrubs that came to their end.", |s| {
        counter(s, |c| c.scrubs)
    }),
    gauge("meridian_disk_scrub_running", "1 while the disk is being scrubbed.", |s| {
        scrub(s, |scrub| f64::from(u8::from(scrub.status.state == ScrubState::Running)))
    }),
    gauge(
        "meridian_disk_scrub_ended_timestamp_seconds",
        "When the last scrub ended, or the disk was first seen.",
        |s| scrub(s, |scrub| scrub.ended_at_ms as f64 / 1e3),
    ),
    total("meridian_disk_reads_total", "Reads answered.", |s| counter(s, |c| c.reads)),
    total("meridian_disk_read_bytes_total", "Payload bytes read.", |s| {
        counter(s, |c| c.read_bytes)
    }),
    total("meridian_disk_cache_hits_total", "Blobs read from memory.", |s| {
        counter(s, |c| c.cache_hits)
    }),
    total("meridian_disk_relocated_bytes_total", "Bytes moved out of old files.", |s| {
        counter(s, |c| c.relocated_bytes)
    }),
    total("meridian_disk_files_removed_total", "Files emptied and removed.", |s| {
        counter(s, |c| c.files_removed)
    }),
    total("meridian_disk_synced_blobs_total", "Blobs copied from peers by a resync.", |s| {
        counter(s, |c| c.synced_blobs)
    }),
    // Key compaction.
    total("meridian_compaction_passes_total", "Passes over compacted partitions led here.", |s| {
        one_u64(s.compaction.passes)
    }),
    total("meridian_compaction_failed_passes_total", "Passes given up, to be tried again.", |s| {
        one_u64(s.compaction.failed_passes)
    }),
    total("meridian_compaction_read_bytes_total", "Record bytes that passes read.", |s| {
        one_u64(s.compaction.read_bytes)
    }),
    total("meridian_compaction_kept_bytes_total", "Record bytes that passes left.", |s| {
        one_u64(s.compaction.kept_bytes)
    }),
    gauge(
        "meridian_compaction_dirty_bytes",
        "Record bytes that no pass has judged yet, in compacted partitions led here.",
        |s| one_u64(s.compaction.dirty_bytes),
    ),
    // Its connections to other nodes.
    gauge("meridian_peer_up", "1 if the other node is connected.", |s| {
        peers(s, |peer| f64::from(u8::from(peer.state == PeerState::Up)))
    }),
    gauge("meridian_peer_rtt_seconds", "Smoothed round trip; 0 while down.", |s| {
        peers(s, |peer| peer.rtt.as_secs_f64())
    }),
    gauge("meridian_peer_queued_bytes", "Bytes waiting to be sent.", |s| {
        peers(s, |peer| peer.queued_bytes as f64)
    }),
    total("meridian_peer_sent_bytes_total", "Bytes of frames sent.", |s| {
        peers(s, |peer| peer.sent_bytes as f64)
    }),
    total("meridian_peer_received_bytes_total", "Bytes of frames received.", |s| {
        peers(s, |peer| peer.received_bytes as f64)
    }),
    total("meridian_peer_lost_packets_total", "Packets sent and lost on the way.", |s| {
        peers(s, |peer| peer.lost_packets as f64)
    }),
    total("meridian_peer_connects_total", "Times the connection came up.", |s| {
        peers(s, |peer| peer.connects as f64)
    }),
    total("meridian_peer_bad_frames_total", "Connections closed for breaking the format.", |s| {
        peers(s, |peer| peer.bad_frames as f64)
    }),
    total(
        "meridian_transport_refused_connections_total",
        "Connections of who did not prove to be a node of this cluster.",
        |s| s.transport.as_ref().map(|it| one_u64(it.refused_connections)).unwrap_or_default(),
    ),
    // The links it pulls over.
    gauge("meridian_mirror_partitions", "Partitions mirrored here, by state.", |s| {
        let of = |link: &Link| {
            let states = link.metrics.partitions.iter();
            let sample = |(state, count): (&&'static str, &u64)| {
                link.sample(Some(("state", (*state).to_owned())), *count as f64)
            };
            states.map(sample).collect::<Vec<_>>()
        };
        s.links.iter().flat_map(of).collect()
    }),
    gauge("meridian_mirror_lag_records", "Offsets the source has and the mirrors have not.", |s| {
        links(s, |link| link.metrics.lag_records as f64)
    }),
    gauge("meridian_mirror_lag_bytes", "Their size, as far as it can be guessed.", |s| {
        links(s, |link| link.metrics.lag_bytes as f64)
    }),
    gauge(
        "meridian_mirror_lag_seconds",
        "How long the oldest of them has been known to be missing.",
        |s| links(s, |link| link.metrics.lag.as_secs_f64()),
    ),
    gauge(
        "meridian_mirror_differences",
        "Batches found to differ from the source's: never, unless a log was damaged.",
        |s| links(s, |link| link.differences as f64),
    ),
    gauge(
        "meridian_mirror_contract_lag_seconds",
        "Age of the oldest record without a mirror, of topics that bound it (mirror.max.lag.ms).",
        |s| {
            let lag_ms = s.contracts.iter().map(|(lag_ms, _)| *lag_ms).max().unwrap_or(0);
            vec![Sample { labels: Vec::new(), value: lag_ms as f64 / 1000.0 }]
        },
    ),
    gauge(
        "meridian_mirror_contract_partitions",
        "Partitions of those topics, by what becomes of their producers.",
        |s| {
            let count =
                |verdict: &Verdict| s.contracts.iter().filter(|(_, it)| it == verdict).count();
            let sample = |it: &Verdict| labelled("verdict", it.as_str(), count(it) as f64);
            Verdict::KNOWN.iter().map(sample).collect()
        },
    ),
    total("meridian_mirror_offsets_total", "Offsets mirrored since the link started here.", |s| {
        links(s, |link| link.metrics.mirrored_offsets as f64)
    }),
    total("meridian_mirror_bytes_total", "Bytes of the batches mirrored.", |s| {
        links(s, |link| link.metrics.mirrored_bytes as f64)
    }),
    total("meridian_link_fetched_bytes_total", "Bytes of the batches that came over it.", |s| {
        links(s, |link| link.metrics.fetched_bytes as f64)
    }),
    total(
        "meridian_link_wire_bytes_total",
        "Bytes that these took on the way: fewer, if the source has compressed them.",
        |s| links(s, |link| link.metrics.wire_bytes as f64),
    ),
    // Its Kafka clients.
    kafka("meridian_kafka_connections", Kind::Gauge, "Open connections of clients."),
    kafka(
        "meridian_kafka_connections_refused_total",
        Kind::Counter,
        "Connections closed at once because there were too many.",
    ),
    kafka("meridian_kafka_connections_limit", Kind::Gauge, "Most that may be open."),
    kafka("meridian_kafka_memory_bytes", Kind::Gauge, "What clients make the node hold."),
    kafka("meridian_kafka_memory_limit_bytes", Kind::Gauge, "Above it, clients wait."),
    kafka("meridian_kafka_closes_total", Kind::Counter, "Connections closed, by reason."),
    kafka("meridian_kafka_requests_total", Kind::Counter, "Requests, by API."),
    kafka("meridian_kafka_errors_total", Kind::Counter, "Errors answered, by code."),
    kafka("meridian_kafka_received_bytes_total", Kind::Counter, "Bytes of requests."),
    kafka("meridian_kafka_sent_bytes_total", Kind::Counter, "Bytes of responses."),
    kafka("meridian_kafka_produced_bytes_total", Kind::Counter, "Record bytes produced."),
    kafka("meridian_kafka_fetched_bytes_total", Kind::Counter, "Record bytes fetched."),
    kafka(
        "meridian_kafka_telemetry_pushes_total",
        Kind::Counter,
        "Pushes of metrics by clients (KIP-714).",
    ),
    kafka("meridian_kafka_telemetry_bytes_total", Kind::Counter, "Bytes of those."),
    kafka(
        "meridian_kafka_throttled_requests_total",
        Kind::Counter,
        "Requests whose clients were told to wait because of a quota.",
    ),
    total("meridian_kafka_throttled_seconds_total", "How long those were to wait.", |s| {
        vec![Sample { labels: Vec::new(), value: s.throttled.as_secs_f64() }]
    }),
    kafka("meridian_kafka_logins_total", Kind::Counter, "Logins of clients, by result."),
    kafka(
        "meridian_kafka_tokens_refused_total",
        Kind::Counter,
        "Tokens with which clients could not log in, by reason.",
    ),
    kafka("meridian_quota_entities", Kind::Gauge, "Users and clients with quotas in use here."),
    kafka("meridian_quota_leases", Kind::Gauge, "Those that have a share lent by another node."),
    kafka(
        "meridian_quota_homed_entities",
        Kind::Gauge,
        "Those whose rate this node divides among all nodes.",
    ),
    kafka(
        "meridian_quota_share",
        Kind::Gauge,
        "What this node may use of quotas in a second: bytes, or partitions.",
    ),
    kafka("meridian_quota_demand", Kind::Gauge, "What clients would use here in a second."),
    kafka("meridian_access_rules", Kind::Gauge, "Access rules."),
    kafka(
        "meridian_access_denied_total",
        Kind::Counter,
        "What users tried and no rule allows, also while rules are reported only.",
    ),
    kafka(
        "meridian_share_records_in_flight",
        Kind::Gauge,
        "Records that members of share groups hold, of partitions led here.",
    ),
    kafka(
        "meridian_share_redelivered_total",
        Kind::Counter,
        "Records that share groups were given again.",
    ),
    kafka("meridian_share_sessions", Kind::Gauge, "Members of share groups that fetch here."),
];

/// What becomes of producers of a topic whose mirrors are bound to be near.
const STANDINGS: [&str; 5] = ["good", "lost_data", "not_member", "other_life", "unknown"];

fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Good => "good",
        Standing::LostData => "lost_data",
        Standing::NotMember => "not_member",
        Standing::OtherLife => "other_life",
        Standing::Unknown => "unknown",
    }
}

/// Everything that is measured, at one moment.
pub(super) struct Snapshot {
    identity: [(&'static str, String); 4],
    /// Empty before the cluster has formed.
    groups: Vec<GroupStatus>,
    nodes_by_liveness: [usize; 3],
    partitions: usize,
    leaderless: usize,
    /// The names of the conditions that hold, each as often as it does.
    conditions: Vec<&'static str>,
    certificates: Vec<certificates::Certificate>,
    raft: Option<Leadership>,
    raft_counters: RaftCounters,
    led: usize,
    taking_over: usize,
    transactions: OngoingCounts,
    sizes: sizes::SizeCounts,
    disk: Option<Disk>,
    cold: ColdCounts,
    copies: CopiesCounts,
    copies_surplus_bytes: u64,
    compaction: CompactionCounts,
    /// By [`Chore::index`].
    chores: [ChoreCount; Chore::ALL.len()],
    failed_reads: u64,
    ahead: AheadCounts,
    disk_reads_waiting: usize,
    transport: Option<TransportStats>,
    links: Vec<Link>,
    /// Of each partition whose mirrors are bound to be near: their lag in milliseconds, and what
    /// becomes of its producers.
    contracts: Vec<(u64, Verdict)>,
    kafka: Vec<kafka::Sample>,
    named: Vec<kafka::NamedSample>,
    throttled: Duration,
    histograms: Histograms,
    /// Bytes that wait for a quorum, and of the newest records.
    log_memory: (usize, usize),
    process: Process,
}

struct Disk {
    standing: Standing,
    capacity_bytes: u64,
    usage: DiskUsage,
    /// What lies on which disk, if there are two.
    tiers: Option<TierUsage>,
    counters: Counters,
    scrub: ScrubReport,
}

/// A link that this node pulls over. There are few, and operators name them.
struct Link {
    name: String,
    metrics: LinkMetrics,
    differences: usize,
}

impl Link {
    fn sample(&self, more: Option<(&'static str, String)>, value: f64) -> Sample {
        let labels = std::iter::once(("link", self.name.clone())).chain(more);
        Sample { labels: labels.collect(), value }
    }
}

fn links(snapshot: &Snapshot, of: impl Fn(&Link) -> f64) -> Vec<Sample> {
    snapshot.links.iter().map(|link| link.sample(None, of(link))).collect()
}

impl Snapshot {
    pub(super) fn take(node: &Node, front: &kafka::Front) -> Self {
        let config = &node.config;
        let identity = [
            ("node", config.node.get().to_string()),
            ("datacenter", config.datacenter.to_string()),
            ("rack", config.rack.to_string()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        let mut status = node.cluster_status().ok();
        let owned = node.logs.owned_logs();
        let led = owned.iter().filter(|log| log.is_serving()).count();
        let disk = node.logs.store().map(|store| Disk {
            standing: store.standing(),
            capacity_bytes: store.capacity_bytes(),
            usage: store.usage(),
            tiers: store.tiers(),
            counters: store.counters(),
            scrub: store.scrub_report(),
        });
        Self {
            identity,
            groups: status.as_mut().map_or_else(Vec::new, |it| std::mem::take(&mut it.groups)),
            nodes_by_liveness: [Liveness::Alive, Liveness::Draining, Liveness::Dead].map(|state| {
                let metadata = node.meta.metadata();
                metadata.nodes().filter(|(_, node)| node.liveness == state).count()
            }),
            partitions: status.as_ref().map_or(0, |status| status.partitions.total),
            leaderless: status.as_ref().map_or(0, |status| status.partitions.leaderless),
            conditions: node.conditions().all().map(Condition::name).collect(),
            certificates: Self::certificates_of(node),
            raft: node.meta.leadership(),
            raft_counters: node.meta.counters(),
            led,
            taking_over: owned.len() - led,
            transactions: ongoing_counts(&owned),
            sizes: sizes::SizeCounts::take(node, &owned),
            disk,
            cold: node.logs.cold_counts(),
            copies: node.logs.copies_counts(),
            copies_surplus_bytes: owned.iter().map(|log| log.surplus_bytes()).sum(),
            compaction: node.compaction.counts(),
            failed_reads: node.logs.failed_reads(),
            ahead: node.logs.ahead_counts(),
            disk_reads_waiting: node.logs.store().map_or(0, |store| store.waiting_reads()),
            chores: Chore::ALL
                .map(|chore| node.logs.chores.count(chore) + front.chores().count(chore)),
            transport: node.switch.stats(),
            links: node
                .mirrors
                .metrics(node.logs.now())
                .into_iter()
                .map(|(name, metrics, differences)| Link { name, metrics, differences })
                .collect(),
            contracts: Mirrors::contracts(node)
                .into_iter()
                .map(|contract| (contract.lag_ms, contract.verdict))
                .collect(),
            kafka: front.samples(),
            named: front.named_samples(),
            throttled: front.metrics().throttled(),
            histograms: Histograms::take(node, front),
            log_memory: node.logs.memory_bytes(),
            process: Process::read(),
        }
    }
}

fn families() -> impl Iterator<Item = &'static Family> {
    let more = [
        certificates::FAMILIES,
        chores::FAMILIES,
        clients::FAMILIES,
        ahead::FAMILIES,
        conditions::FAMILIES,
        copies::FAMILIES,
        process::FAMILIES,
        raft::FAMILIES,
    ];
    let more = more.into_iter().chain([sizes::FAMILIES, tiers::FAMILIES]);
    FAMILIES.iter().chain(more.flatten())
}

fn ongoing_counts(logs: &[Arc<PartitionLog>]) -> OngoingCounts {
    let hanging_before_ms = clock::wall_time_ms() - HANGING_AFTER_MS;
    logs.iter().map(|log| log.ongoing_counts(hanging_before_ms)).fold(
        OngoingCounts::default(),
        |sum, of| OngoingCounts {
            ongoing: sum.ongoing + of.ongoing,
            hanging: sum.hanging + of.hanging,
        },
    )
}

fn labelled(key: &'static str, label: &str, value: f64) -> Sample {
    Sample { labels: vec![(key, label.to_owned())], value }
}

fn one(count: usize) -> Vec<Sample> {
    one_u64(count as u64)
}

fn one_u64(count: u64) -> Vec<Sample> {
    vec![Sample { labels: Vec::new(), value: count as f64 }]
}

/// What a group can lose. With what it was built for, so that one rule tells of the groups of each shape.
fn tolerates(group: &GroupStatus) -> Vec<Sample> {
    let names: Vec<&str> = Tolerance::KNOWN.iter().map(Tolerance::as_str).collect();
    let mut samples = states("failure", &names, group.tolerates.as_str());
    let of = [("group", group.id.to_string()), ("built_for", group.built_for.to_string())];
    for sample in &mut samples {
        sample.labels.splice(0..0, of.clone());
    }
    samples
}

/// 1 for the state that is, 0 for all others.
fn states(key: &'static str, names: &[&str], current: &str) -> Vec<Sample> {
    let is = |name: &str| f64::from(u8::from(name == current));
    names.iter().map(|name| labelled(key, name, is(name))).collect()
}

fn usage(snapshot: &Snapshot, of: fn(&DiskUsage) -> u64) -> Vec<Sample> {
    snapshot.disk.as_ref().map(|disk| one_u64(of(&disk.usage))).unwrap_or_default()
}

fn counter(snapshot: &Snapshot, of: fn(&Counters) -> u64) -> Vec<Sample> {
    snapshot.disk.as_ref().map(|disk| one_u64(of(&disk.counters))).unwrap_or_default()
}

fn scrub(snapshot: &Snapshot, of: fn(&ScrubReport) -> f64) -> Vec<Sample> {
    let disk = snapshot.disk.iter();
    disk.map(|disk| Sample { labels: Vec::new(), value: of(&disk.scrub) }).collect()
}

fn peers(snapshot: &Snapshot, of: fn(&PeerStats) -> f64) -> Vec<Sample> {
    let peers = snapshot.transport.iter().flat_map(|transport| &transport.peers);
    peers.map(|(id, stats)| labelled("peer", &id.get().to_string(), of(stats))).collect()
}

fn counted_by_front(snapshot: &Snapshot, name: &str) -> Vec<Sample> {
    let samples = snapshot.kafka.iter().filter(|sample| sample.name == name);
    let labels = |sample: &kafka::Sample| {
        sample.label.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
    };
    samples.map(|sample| Sample { labels: labels(sample), value: sample.value as f64 }).collect()
}

/// The text that Prometheus reads.
pub(super) fn render(snapshot: &Snapshot) -> Bytes {
    let mut text = String::with_capacity(16 << 10);
    for family in families() {
        let Family { name, help, .. } = family;
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let samples = match family.source {
            Source::Kafka => counted_by_front(snapshot, name),
            Source::Named => clients::samples(snapshot, name),
            Source::Of(of) => of(snapshot),
        };
        let _infallible = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for sample in samples {
            text.push_str(name);
            for (index, (key, value)) in sample.labels.iter().enumerate() {
                let open = if index == 0 { '{' } else { ',' };
                let _infallible = write!(text, "{open}{key}=\"{}\"", escaped(value));
            }
            let close = if sample.labels.is_empty() { "" } else { "}" };
            let _infallible = writeln!(text, "{close} {}", sample.value);
        }
    }
    renamed::render(&mut text);
    histograms::render(snapshot, &mut text);
    text.into()
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod lint;
#[cfg(test)]
mod tests;
