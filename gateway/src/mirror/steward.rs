//! What follows a link's source as a whole: new topics, deletions, configs, positions of groups.
//!
//! ```text
//! source's metadata --every second--> topics: create what a rule takes, ask the vigils
//!                                     configs: set what the source has set
//! source's groups ------------------> groups: commit positions here, where nobody reads
//! source's quotas ------------------> quotas: set, where there are no others
//! ```
//!
//! One node does it for each link, chosen from those alive by the link's name; nothing is kept but
//! in the metadata log and the groups themselves, so another node goes on where one died. Two that
//! both believe to be chosen do no harm: whatever is created is created once.

mod configs;
mod groups;
mod quotas;
mod topics;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meridian_base::id::{ClusterId, TopicId};
use meridian_consensus::command::Liveness;
use meridian_consensus::state::Metadata;
use meridian_mirror::vigil::Vigil;
use serde::Serialize;
use tokio::task::JoinHandle;

pub(super) use self::configs::is_own as is_own_config;
use self::groups::{CarriedPosition, Groups};
use super::plan::{self, Source};
use crate::broker::ProposeError;
use crate::client::{Client, ClientError};
use crate::features::NotAgreed;
use crate::node::Node;
use crate::runtime::clock::Clock;

/// How often the source's topics are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(700);
/// Looks between two at configs, and two at groups.
const LOOKS_PER_CONFIGS: u64 = 3;
const LOOKS_PER_GROUPS: u64 = 2;
/// The same at quotas of clients.
const LOOKS_PER_QUOTAS: u64 = 5;
/// Events that are remembered.
const EVENT_COUNT_MAX: usize = 50;

/// Something that followed by itself, or could not.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Event {
    /// When, in milliseconds since 1970.
    at_ms: i64,
    topic: String,
    what: String,
}

/// What a steward has to tell operators.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct StewardReport {
    link: String,
    node: u32,
    /// Why the last look failed, if it did.
    failure: Option<String>,
    /// Topics that a rule takes and that cannot be mirrored, with the reason.
    refused: BTreeMap<String, String>,
    /// What happened, oldest first.
    events: VecDeque<Event>,
    groups: Vec<CarriedPosition>,
    /// Why positions were not carried in the last look, if they were not.
    groups_failure: Option<String>,
    /// For whom quotas are others at the source and this cluster's own here, and which they are.
    own_quotas: BTreeMap<String, String>,
    /// Why quotas were not followed in the last look, if they were not.
    quotas_failure: Option<String>,
}

/// The steward of a link, while this node is it.
pub(super) struct StewardHandle {
    pub(super) source: Source,
    report: Arc<Mutex<StewardReport>>,
    task: JoinHandle<()>,
}

impl Drop for StewardHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StewardHandle {
    pub(super) fn start(node: Arc<Node>, link: String, source: Source) -> Self {
        tracing::info!(%link, "this node looks after the link");
        let report = StewardReport {
            link: link.clone(),
            node: node.config.node.get(),
            ..StewardReport::default()
        };
        let report = Arc::new(Mutex::new(report));
        let steward = Steward {
            client: source.client(),
            source: source.clone(),
            clock: Clock::start(),
            vigils: BTreeMap::new(),
            groups: Groups::default(),
            report: Arc::clone(&report),
            node,
            link,
        };
        Self { source, report, task: tokio::spawn(steward.run()) }
    }

    pub(super) fn report(&self) -> StewardReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

/// Why a look led to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookError {
    #[error(transparent)]
    Source(#[from] ClientError),
    #[error("the link is to cluster {expected}, now {found} answers")]
    OtherCluster { expected: ClusterId, found: String },
    #[error(transparent)]
    NotAgreed(#[from] NotAgreed),
    #[error("quotas of {first} and {} more were not changed, and are tried again: {error}", count - 1)]
    QuotasRefused { first: String, count: usize, error: ProposeError },
}

struct Steward {
    node: Arc<Node>,
    link: String,
    source: Source,
    client: Client,
    clock: Clock,
    /// By the topic here.
    vigils: BTreeMap<TopicId, Vigil>,
    groups: Groups,
    report: Arc<Mutex<StewardReport>>,
}

impl Steward {
    async fn run(mut self) {
        let mut interval = tokio::time::interval(LOOK_EVERY);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for count in 0u64.. {
            interval.tick().await;
            let looked = self.look(count).await;
            let failure = looked.as_ref().err().map(ToString::to_string);
            self.tell(|report| report.failure = failure);
            if looked.is_ok() && count % LOOKS_PER_GROUPS == 0 {
                let carried = self.carry_groups().await;
                let failure = carried.err().map(|error| error.to_string());
                self.tell(|report| report.groups_failure = failure);
            }
            if looked.is_ok() && self.follows_quotas() && count % LOOKS_PER_QUOTAS == 0 {
                let followed = self.follow_quotas().await;
                let failure = followed.err().map(|error| error.to_string());
                self.tell(|report| report.quotas_failure = failure);
            }
        }
    }

    fn follows_quotas(&self) -> bool {
        self.source.options.follows_quotas()
    }

    /// Looks at the source's topics.
    async fn look(&mut self, count: u64) -> Result<(), LookError> {
        let (rules, mirrors) = {
            let metadata = self.node.meta.metadata();
            let rules = super::rules::matchers(&metadata, &self.link);
            let mut mirrors = plan::mirrors(&metadata);
            mirrors.retain(|(topic, mirror, _)| {
                mirror.link == self.link && metadata.topic(*topic).is_some()
            });
            (rules, mirrors)
        };
        let takes_new = rules.iter().any(super::rules::Matcher::is_of_topics);
        if mirrors.is_empty() && !takes_new && !self.follows_quotas() {
            return Ok(());
        }
        let names: Vec<&str> = mirrors.iter().map(|(_, it, _)| it.source_name.as_str()).collect();
        let view = self.client.refresh(if takes_new { None } else { Some(&names) }).await?;
        if view.cluster_id.as_deref() != Some(self.source.link.source.as_str()) {
            let expected = self.source.link.source.clone();
            let found = view.cluster_id.clone().unwrap_or_default();
            return Err(LookError::OtherCluster { expected, found });
        }
        self.watch(&view, &mirrors).await;
        self.take_new(&view, &rules).await?;
        if count.is_multiple_of(LOOKS_PER_CONFIGS) {
            self.follow_configs(&view, &mirrors).await?;
        }
        Ok(())
    }

    fn tell(&self, change: impl FnOnce(&mut StewardReport)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Remembers and logs something that happened.
    fn on_event(&self, topic: &str, what: String) {
        tracing::warn!(link = %self.link, %topic, "{what}");
        let at_ms = crate::client::clock::wall_time_ms();
        let event = Event { at_ms, topic: topic.to_owned(), what };
        self.tell(|report| {
            if report.events.len() == EVENT_COUNT_MAX {
                report.events.pop_front();
            }
            report.events.push_back(event);
        });
    }
}

/// The links that this node is the steward of: each link has one of the nodes that are alive.
pub(super) fn duties(node: &Node) -> BTreeMap<String, Source> {
    let metadata = node.meta.metadata();
    let links = plan::links(&metadata);
    let own = links.into_iter().filter(|(name, link)| {
        !link.is_paused && steward_of(&metadata, name) == Some(node.config.node)
    });
    own.map(|(name, link)| {
        let options = plan::options(&metadata, &name);
        (name, Source { link, options })
    })
    .collect()
}

/// By rendezvous hashing: when a node comes or goes, only the links move that must.
fn steward_of(metadata: &Metadata, link: &str) -> Option<meridian_base::id::NodeId> {
    let alive = metadata
        .nodes()
        .filter(|(_, node)| node.registration.roles.gateway && node.liveness == Liveness::Alive);
    alive.map(|(id, _)| id).max_by_key(|id| weight(link, id.get()))
}

/// FNV-1a.
fn weight(link: &str, node: u32) -> u64 {
    let bytes = link.bytes().chain(node.to_be_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_spread_over_the_nodes() {
        let steward = |link: &str| (1..=9).max_by_key(|node| weight(link, *node));
        let mut counts = BTreeMap::new();
        for number in 0..900 {
            *counts.entry(steward(&format!("link-{number}"))).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 9);
        assert!(counts.values().all(|count| (50..200).contains(count)), "{counts:?}");
    }
}
