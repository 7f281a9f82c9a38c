//! What of this node's links stops or threatens writes: observed for [`crate::health`].

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use meridian_base::id::{PartitionId, TopicId};
use meridian_consensus::command::RowKind;
use meridian_mirror::lease::{Need, Standing};
use meridian_mirror::rows::MirrorTopic;
use meridian_mirror::state::State;

use super::Mirrors;
use super::worker::LinkMetrics;
use crate::context::NodeContext;
use crate::health::Partitions;
use crate::health::own::{LinkObserved, StoppedObserved};
use crate::linked_topics::refuses_clients;
use crate::runtime::clock;

/// A new leader hears of its lease within this time.
pub(crate) const LEASED_WITHIN: Duration = Duration::from_secs(2);

impl Mirrors {
    /// The links that this node pulls over or looks after.
    pub(crate) fn observed(&self) -> Vec<LinkObserved> {
        let mut links: BTreeMap<String, LinkObserved> = BTreeMap::new();
        for (name, metrics, differences) in self.metrics(self.node.logs.now()) {
            let link = entry(&mut links, &name);
            of_metrics(&metrics, link);
            if differences > 0 {
                link.stopped.push(StoppedObserved {
                    state: "differs",
                    partitions: Partitions { count: differences, example: name },
                    why: "comparing found batches that differ from the source's".to_owned(),
                    mend: "`meridian mirror divergence` shows where, `meridian mirror repair` mends it"
                        .to_owned(),
                });
            }
        }
        for steward in self.stewards() {
            let link = entry(&mut links, &steward.link);
            if let Some(failure) = steward.failure {
                link.down = Some(failure);
            }
            link.groups_left_out = steward.groups_left_out;
        }
        for (name, ends_at) in self.link_certificates() {
            entry(&mut links, &name).certificate_hours_left = Some(hours_until(ends_at));
        }
        links.into_values().collect()
    }
}

/// Negative for what is over.
pub(crate) fn hours_until(at: SystemTime) -> i64 {
    let hours = |left: Duration| i64::try_from(left.as_secs() / 3600).unwrap_or(i64::MAX);
    match at.duration_since(clock::wall_time()) {
        Ok(left) => hours(left),
        Err(over) => -hours(over.duration()),
    }
}

fn entry<'l>(links: &'l mut BTreeMap<String, LinkObserved>, name: &str) -> &'l mut LinkObserved {
    let new = || LinkObserved { name: name.to_owned(), ..LinkObserved::default() };
    links.entry(name.to_owned()).or_insert_with(new)
}

fn of_metrics(metrics: &LinkMetrics, link: &mut LinkObserved) {
    for (state, trouble) in &metrics.troubles {
        let partitions = Partitions { count: trouble.count, example: trouble.example.clone() };
        let mend = trouble.advice.unwrap_or("`meridian mirror status` says more").to_owned();
        let why = trouble.why.clone();
        if matches!(trouble.kind, TroubleKind::SourceUnreachable) {
            link.down = Some(why);
        } else {
            link.stopped.push(StoppedObserved { state, partitions, why, mend });
        }
    }
}

/// Whether a state is the link's or the partition's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TroubleKind {
    SourceUnreachable,
    Stopped,
}

/// Partitions of a link that do not get on, all in one state.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    kind: TroubleKind,
    count: usize,
    /// One of them by name, why it does not get on, and what to do about it.
    example: String,
    why: String,
    advice: Option<&'static str>,
}

impl LinkMetrics {
    /// A partition is in `state`; nothing is noted of one that gets on.
    pub(super) fn note_state(&mut self, topic: &str, index: u32, state: &State) {
        let kind = match state {
            State::SourceUnreachable { .. } => TroubleKind::SourceUnreachable,
            State::Unreadable { .. } | State::SourceRefused { .. } => TroubleKind::Stopped,
            state if state.is_stopped() => TroubleKind::Stopped,
            _ => return,
        };
        let trouble = self.troubles.entry(state.name()).or_insert_with(|| Trouble {
            kind,
            count: 0,
            example: format!("{topic}-{index}"),
            why: state.to_string(),
            advice: state.advice(),
        });
        trouble.count += 1;
    }
}

/// Partitions led here whose topics are written under a lease only, and that have had none for longer than
/// `longer_than`; by the cluster that grants.
pub(crate) fn leases_missing(
    node: &NodeContext,
    longer_than: Duration,
) -> Vec<(String, Partitions)> {
    let needed: Vec<(String, Vec<PartitionId>)> = {
        let metadata = node.meta.metadata();
        let of = |key: &[u8], value: &[u8]| {
            let topic: TopicId = MirrorTopic::topic_of(key)?;
            // Nothing is missing to one that takes no records anyway.
            refuses_clients(&metadata, topic).is_none().then_some(())?;
            let cluster =
                Need::decode(value).map_or_else(|_| "unknown".to_owned(), |it| it.of.to_string());
            Some((cluster, metadata.topic(topic)?.partitions.clone()))
        };
        metadata
            .extra_rows(RowKind::WriterLease)
            .filter_map(|(key, row)| of(key, &row.value))
            .collect()
    };
    let mut missing: BTreeMap<String, Vec<PartitionId>> = BTreeMap::new();
    for (cluster, partitions) in needed {
        for partition in partitions {
            let Some(log) = node.logs.led(partition) else { continue };
            let is_long =
                |since: Option<Duration>| since.unwrap_or_else(|| log.led_for()) > longer_than;
            if let Standing::Missing(since) = log.lease()
                && is_long(since)
            {
                missing.entry(cluster.clone()).or_default().push(partition);
            }
        }
    }
    let metadata = node.meta.metadata();
    let named = |(cluster, ids): (String, Vec<PartitionId>)| {
        Some((cluster, Partitions::of(&metadata, &ids)?))
    };
    missing.into_iter().filter_map(named).collect()
}
