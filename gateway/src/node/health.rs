//! Observes what [`crate::health`] decides on, and carries it to the log, to operators and to other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::sync::lock;
use meridian_consensus::command::{FeatureLevel, Liveness};
use tokio::task::JoinSet;

use super::Node;
use crate::background::ticks;
use crate::health::own::{
    self, COMMITTED_WITHIN, DiskObserved, LINK_DOWN_AFTER, NotCommitting, OPENED_WITHIN, Observed,
    REACHED_WITHIN, REFUSAL_COUNTS_FOR, SERVED_WITHIN,
};
use crate::health::{
    Change, Condition, Finding, Monitor, Partitions, cluster, finding_of, merge, opening,
};
use crate::mirror::{LEASED_WITHIN, hours_until, leases_missing, observe_secrets};
use crate::peers::wire::{PeerReply, PeerRequest};
use crate::runtime::disk::free_bytes_of;
use crate::runtime::quic::PeerState;
use crate::runtime::tls::ListenerCertificate;

/// How often conditions are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often the room on the file systems is looked at.
const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_secs(10);
/// How long another node may take to say how it is: operators wait for it.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Lines of one answer to operators.
const FINDING_COUNT_MAX: usize = 200;

/// What is remembered from one look to the next.
#[derive(Default)]
pub(crate) struct Health {
    seen: Mutex<Seen>,
    /// Room on the file systems of the disk, once somebody has looked.
    free_bytes: Mutex<Option<u64>>,
    /// When the node's certificate ends, if it has one.
    certificate_ends_at: OnceLock<SystemTime>,
    /// The certificates of listeners, by the names of these.
    listeners: OnceLock<Vec<(String, Arc<ListenerCertificate>)>>,
}

#[derive(Default)]
struct Seen {
    /// Since when each peer that is alive has been away.
    away: BTreeMap<NodeId, Instant>,
    /// Since when each link has been down.
    down: BTreeMap<String, Instant>,
    /// How often the disk had refused for want of room, and when that rose last.
    refused_full: u64,
    refused_full_at: Option<Instant>,
    /// The conditions of the cluster, and the entry of the metadata log that they were found at.
    cluster: Option<((u64, bool), Vec<Condition>)>,
}

/// The conditions that a node knows of.
pub(crate) struct Known {
    /// Of the cluster: every node finds the same.
    pub(crate) cluster: Vec<Condition>,
    /// Of this node.
    pub(crate) own: Vec<Condition>,
}

impl Known {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Condition> {
        self.cluster.iter().chain(&self.own)
    }
}

/// Remembers since when something has been so; gives whether that is long enough.
fn is_long<K: Ord>(since: &mut BTreeMap<K, Instant>, key: K, now: Instant, long: Duration) -> bool {
    now.since(*since.entry(key).or_insert(now)) >= long
}

impl Health {
    /// The node's certificate ends then.
    pub(crate) fn set_certificate_end(&self, ends_at: SystemTime) {
        let _set_once_at_start = self.certificate_ends_at.set(ends_at);
    }

    /// The listeners show these certificates.
    pub(crate) fn set_listeners(&self, listeners: Vec<(String, Arc<ListenerCertificate>)>) {
        let _set_once_at_start = self.listeners.set(listeners);
    }

    /// When the node's certificate ends, if it has one.
    pub(crate) fn certificate_end(&self) -> Option<SystemTime> {
        self.certificate_ends_at.get().copied()
    }

    /// When the certificates of listeners end.
    pub(crate) fn listener_certificates(&self) -> Vec<(String, SystemTime)> {
        let listeners = self.listeners.get().map(Vec::as_slice).unwrap_or_default();
        listeners.iter().map(|(name, shown)| (name.clone(), shown.ends_at())).collect()
    }

    fn certificate_hours_left(&self) -> Option<i64> {
        self.certificate_end().map(hours_until)
    }

    fn listener_hours_left(&self) -> Vec<(String, i64)> {
        let listeners = self.listener_certificates().into_iter();
        listeners.map(|(name, ends_at)| (name, hours_until(ends_at))).collect()
    }
}

impl Node {
    /// The conditions that this node knows of now.
    pub(crate) fn conditions(&self) -> Known {
        let mut seen = lock(&self.health.seen);
        let own = own::conditions(&self.observe(&mut seen));
        let mut cluster = self.cluster_conditions(&mut seen);
        let is_full = own.iter().any(|it| matches!(it, Condition::DiskFull { .. }));
        let full = is_full.then_some(self.config.node).into_iter().collect();
        cluster.extend(cluster::full_groups(&self.meta.metadata(), &full));
        Known { cluster, own }
    }

    /// What every node finds: looked for anew only if something was decided.
    fn cluster_conditions(&self, seen: &mut Seen) -> Vec<Condition> {
        let leader = self.meta.leadership().and_then(|known| known.leader);
        let key = (self.meta.applied_index(), leader.is_some());
        match &seen.cluster {
            Some((known, found)) if *known == key => found.clone(),
            _ => {
                let status = self.cluster_status().ok();
                let groups = status.map_or_else(Vec::new, |status| status.groups);
                let mut found = cluster::conditions(&self.meta.metadata(), &groups);
                if leader.is_none() {
                    found.push(Condition::NoMetadataLeader);
                }
                seen.cluster = Some((key, found.clone()));
                found
            }
        }
    }

    fn observe(&self, seen: &mut Seen) -> Observed {
        let now = self.logs.now();
        let (unserved, opening): (Vec<_>, Vec<_>) =
            self.logs.unserved(OPENED_WITHIN).into_iter().partition(|it| it.1 > SERVED_WITHIN);
        let opening: Vec<PartitionId> = opening.into_iter().map(|(id, _)| id).collect();
        let longest = unserved.iter().map(|(_, lasts)| *lasts).max();
        let unserved: Vec<PartitionId> = unserved.into_iter().map(|(id, _)| id).collect();
        let refused = self.logs.refusals(REFUSAL_COUNTS_FOR);
        let mut links = self.mirrors.observed();
        seen.down.retain(|name, _| links.iter().any(|it| it.name == *name && it.down.is_some()));
        for link in links.iter_mut().filter(|link| link.down.is_some()) {
            if !is_long(&mut seen.down, link.name.clone(), now, LINK_DOWN_AFTER) {
                link.down = None;
            }
        }
        let (leases_missing, not_committing) =
            (leases_missing(self, LEASED_WITHIN), self.not_committing(COMMITTED_WITHIN));
        let (disk, unreachable) = (self.observe_disk(seen, now), self.unreachable(seen, now));
        // Last: who reads the metadata twice at a time waits for a writer that waits for it.
        let metadata = self.meta.metadata();
        Observed {
            disk,
            unreachable,
            not_committing,
            not_serving: Partitions::of(&metadata, &unserved).zip(longest),
            opening: Partitions::of(&metadata, &opening),
            objects_failing: self.logs.objects_failing(),
            refused: refused
                .into_iter()
                .filter_map(|(reason, ids)| Some((reason, Partitions::of(&metadata, &ids)?)))
                .collect(),
            leases_missing,
            links,
            links_shared: self.link_uses.shared(now),
            secrets: observe_secrets(&metadata, &self.own_end.keys),
            certificate_hours_left: self.health.certificate_hours_left(),
            listeners_hours_left: self.health.listener_hours_left(),
            clock_ahead_ms: self.time.ahead_ms(),
        }
    }

    fn observe_disk(&self, seen: &mut Seen, now: Instant) -> Option<DiskObserved> {
        let store = self.logs.store()?;
        let refused_full = store.counters().refused_full;
        if refused_full > seen.refused_full {
            seen.refused_full_at = Some(now);
        }
        seen.refused_full = refused_full;
        Some(DiskObserved {
            usage: store.usage(),
            has_refused: seen.refused_full_at.is_some_and(|at| now.since(at) < REFUSAL_COUNTS_FOR),
            unreadable: u64::from(store.scrub_report().status.unreadable),
            free_bytes: *lock(&self.health.free_bytes),
        })
    }

    fn unreachable(&self, seen: &mut Seen, now: Instant) -> Vec<NodeId> {
        let Some(stats) = self.switch.stats() else { return Vec::new() };
        let alive: BTreeSet<NodeId> = {
            let metadata = self.meta.metadata();
            let others = metadata.nodes().filter(|(id, _)| *id != self.config.node);
            others.filter(|(_, it)| it.liveness == Liveness::Alive).map(|(id, _)| id).collect()
        };
        let is_up = |id: &NodeId| stats.peers.get(id).is_some_and(|it| it.state == PeerState::Up);
        let away: BTreeSet<NodeId> = alive.into_iter().filter(|id| !is_up(id)).collect();
        seen.away.retain(|id, _| away.contains(id));
        let long = away.into_iter().filter(|id| is_long(&mut seen.away, *id, now, REACHED_WITHIN));
        long.collect()
    }

    fn not_committing(&self, longer_than: Duration) -> Option<NotCommitting> {
        let waiting = self.logs.waiting(longer_than);
        let ids: Vec<PartitionId> = waiting.iter().map(|it| it.partition).collect();
        let nodes = |of: fn(&crate::log::Waiting) -> &Vec<NodeId>| {
            let nodes: BTreeSet<NodeId> = waiting.iter().flat_map(of).copied().collect();
            nodes.into_iter().collect()
        };
        Some(NotCommitting {
            partitions: Partitions::of(&self.meta.metadata(), &ids)?,
            longest: waiting.iter().map(|it| it.lasts).max()?,
            refused: nodes(|it| &it.refused),
            silent: nodes(|it| &it.silent),
        })
    }

    /// What this node finds of itself, for another one: JSON.
    pub(crate) fn own_findings(&self) -> Bytes {
        let mut findings = self.findings_of(&self.conditions().own);
        findings.truncate(FINDING_COUNT_MAX);
        serde_json::to_vec(&findings).map(Bytes::from).unwrap_or_default()
    }

    /// What operators are told of this node: also what is so only for a moment, if they wait for it.
    pub(super) fn findings_of(&self, own: &[Condition]) -> Vec<Finding> {
        let node = self.config.node;
        let opening = opening(node, self.logs.opening_count());
        opening.into_iter().chain(own.iter().map(|it| finding_of(it, Some(node)))).collect()
    }

    /// What all nodes find: each that is alive is asked.
    pub(crate) async fn findings(&self) -> Vec<Finding> {
        let known = self.conditions();
        let own_node = self.config.node;
        let mut findings = self.findings_of(&known.own);
        let mut asked = JoinSet::new();
        let others: Vec<NodeId> = {
            let metadata = self.meta.metadata();
            // One of an older binary would not answer.
            let alive = metadata.nodes().filter(|(_, node)| {
                node.liveness != Liveness::Dead
                    && node.registration.feature_level_max >= FeatureLevel::HEALTH
            });
            alive.map(|(id, _)| id).filter(|id| *id != own_node).collect()
        };
        for node in others {
            let peers = Arc::clone(&self.peers);
            asked.spawn(async move {
                let answer = peers.ask(node, PeerRequest::Health, ANSWER_WITHIN).await;
                (node, answer)
            });
        }
        let mut silent = Vec::new();
        while let Some(Ok((node, answer))) = asked.join_next().await {
            match answer {
                Ok(PeerReply::Health(said)) => {
                    let said: Vec<Finding> = serde_json::from_slice(&said).unwrap_or_default();
                    findings.extend(said.into_iter().take(FINDING_COUNT_MAX));
                }
                _ => silent.push(node),
            }
        }
        let is_full = |finding: &&Finding| finding.condition == Condition::DISK_FULL;
        let full = findings.iter().filter(is_full).flat_map(|it| &it.nodes).copied();
        let full: BTreeSet<NodeId> = full.map(NodeId::new).collect();
        let full_groups = cluster::full_groups(&self.meta.metadata(), &full);
        let silent = silent.into_iter().map(|node| Condition::NodeSilent { node });
        let of_cluster = known.cluster.into_iter().chain(full_groups).chain(silent);
        findings.extend(of_cluster.map(|it| finding_of(&it, None)));
        let mut findings = merge(findings);
        findings.truncate(FINDING_COUNT_MAX);
        findings
    }
}

/// Looks now and then how much room the file systems of the disk have. One that hangs holds up nothing else.
pub(super) async fn run_room(node: Arc<Node>) {
    let tiers = node.config.tiers.as_ref().map(|tiers| tiers.capacity_folder.clone());
    let folders: Vec<PathBuf> =
        [Some(node.config.data.join("disk")), tiers].into_iter().flatten().collect();
    let mut interval = ticks(LOOK_FOR_ROOM_EVERY);
    while node.logs.store().is_some() {
        interval.tick().await;
        let folders = folders.clone();
        let looking = tokio::task::spawn_blocking(move || {
            let room = |folder: &PathBuf| free_bytes_of(folder);
            folders.iter().map(room).sum::<std::io::Result<u64>>()
        });
        match looking.await {
            Ok(Ok(bytes)) => *lock(&node.health.free_bytes) = Some(bytes),
            Ok(Err(error)) => tracing::warn!(%error, "how much room the disk has is not known"),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
}

/// Logs when conditions begin and end.
pub(super) async fn run_health(node: Arc<Node>) {
    let mut interval = ticks(LOOK_EVERY);
    let mut monitor = Monitor::default();
    loop {
        interval.tick().await;
        let known = node.conditions();
        let all: Vec<Condition> = known.all().cloned().collect();
        for change in monitor.step(node.logs.now(), &all) {
            log(&change);
        }
    }
}

fn log(change: &Change) {
    match change {
        Change::Began(condition) => tracing::warn!(
            condition = condition.name(),
            severity = condition.severity().name(),
            mend = %condition.mend(),
            "{condition}"
        ),
        Change::Ended { condition, lasted } => tracing::info!(
            condition = condition.name(),
            lasted_s = lasted.as_secs(),
            "ended: {condition}"
        ),
    }
}

#[cfg(test)]
mod tests;
