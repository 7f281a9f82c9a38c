//! What follows a link's source as a whole: new topics, deletions, configs, positions of groups.
//!
//! ```text
//! source's metadata --at once------> topics: create what a rule takes, ask the vigils
//!                                     configs: set what the source has set
//! source's groups ------------------> groups: commit positions here, where nobody reads
//! source's quotas ------------------> quotas: set, where there are no others
//! source's access rules ------------> rules about what is mirrored: set, where there are none
//! source's users -------------------> users: set, where there are none of their names
//! ```
//!
//! One node does it for each link, chosen from those alive by the link's name; nothing is kept but
//! in the metadata log and the groups themselves, so another node goes on where one died. Two that
//! both believe to be chosen do no harm: whatever is created is created once.

mod acls;
mod configs;
mod entries;
mod follow;
mod groups;
mod notes;
mod quotas;
mod topics;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use meridian_admin_api::Besides;
use meridian_admin_api::mirror::{Event, StewardReport};
use meridian_base::env::Instant;
use meridian_base::id::{ClusterId, TopicId};
use meridian_base::sync::lock;
use meridian_consensus::command::Liveness;
use meridian_consensus::state::Metadata;
use meridian_mirror::rows::Stage;
use meridian_mirror::rules::Rule;
use meridian_mirror::vigil::Vigil;
use tokio::task::JoinHandle;

pub(super) use self::configs::is_own as is_own_config;
use self::groups::Groups;
use super::Mirrors;
use super::lookout::Lookout;
use super::plan::{self, MirrorRow, Source};
use super::said_of_source;
use crate::client::metadata::ClusterView;
use crate::client::{Client, ClientError};
use crate::context::NodeContext;
use crate::features::NotAgreed;
use crate::meta::ProposeError;
use crate::runtime::clock::Clock;
use crate::runtime::secrets::SecretError;
use crate::runtime::tls::ends_at;

/// How often the steward goes its round. The source's topics are looked at in each, unless the source tells when
/// they change.
const ROUND_EVERY: Duration = Duration::from_millis(700);
/// Rounds between two looks at configs, and two at groups.
const ROUNDS_PER_CONFIGS: u64 = 3;
const ROUNDS_PER_GROUPS: u64 = 2;
/// Rounds between two looks at quotas of clients.
const ROUNDS_PER_QUOTAS: u64 = 5;
/// Rounds between two looks at access rules, and two at users: there may be many.
const ROUNDS_PER_RIGHTS: u64 = 15;
/// Events that are remembered.
const EVENT_COUNT_MAX: usize = 50;

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
    pub(super) fn start(mirrors: Arc<Mirrors>, link: String, source: Source) -> Self {
        let node = Arc::clone(&mirrors.node);
        tracing::info!(%link, "this node looks after the link");
        let report = StewardReport {
            link: link.clone(),
            node: node.config.node.get(),
            ..StewardReport::default()
        };
        let report = Arc::new(Mutex::new(report));
        let client = source.client(&node.own_end);
        let steward = Steward {
            lookout: Lookout::new(client.clone()),
            client,
            source: source.clone(),
            clock: Clock::start(),
            looked: None,
            vigils: BTreeMap::new(),
            groups: Groups::default(),
            report: Arc::clone(&report),
            node,
            mirrors,
            link,
        };
        Self { source, report, task: tokio::spawn(steward.run()) }
    }

    pub(super) fn report(&self) -> StewardReport {
        lock(&self.report).clone()
    }

    /// When the certificate ends that the link shows its source, if it has one that can be read.
    pub(super) fn certificate_ends_at(&self) -> Option<SystemTime> {
        let chain = self.source.options.values.get("ssl.certificate.pem")?;
        ends_at("link's certificate", chain).ok()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

/// Why a look led to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookError {
    #[error("{}", said_of_source(.0))]
    Source(#[from] ClientError),
    #[error("the link is to cluster {expected}, now {found} answers")]
    OtherCluster { expected: ClusterId, found: String },
    #[error(transparent)]
    NotAgreed(#[from] NotAgreed),
    #[error(
        "the source is no meridian cluster, and nobody else tells what passwords are checked by: make the users here \
         with `meridian user create`, and take the option away with `meridian link alter NAME -c sync.users=`"
    )]
    NoMeridian,
    #[error(
        "the source's answer about users can't be read: one of the clusters has a newer binary"
    )]
    Credentials,
    #[error("a credential can't be sealed here: {0}")]
    Secret(#[from] SecretError),
    #[error("{what} {first} and {} more were not changed, and are tried again: {error}", count - 1)]
    Refused { what: &'static str, first: String, count: usize, error: ProposeError },
}

/// What a link has to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Duties {
    rules: Vec<Rule>,
    mirrors: Vec<MirrorRow>,
}

struct Steward {
    node: Arc<NodeContext>,
    mirrors: Arc<Mirrors>,
    link: String,
    source: Source,
    client: Client,
    lookout: Lookout,
    clock: Clock,
    /// When all was looked at, and what it was looked at for.
    looked: Option<(Instant, Duties)>,
    /// By the topic here.
    vigils: BTreeMap<TopicId, Vigil>,
    groups: Groups,
    report: Arc<Mutex<StewardReport>>,
}

impl Steward {
    async fn run(mut self) {
        let mut interval = crate::background::ticks(ROUND_EVERY);
        let mut count = 0u64;
        loop {
            tokio::select! {
                _ = interval.tick() => count += 1,
                news = self.lookout.news() => {
                    let looked = self.look(Some(news), true).await;
                    self.on_looked(&looked);
                    continue;
                }
            }
            let looked = self.look(None, count.is_multiple_of(ROUNDS_PER_CONFIGS)).await;
            self.on_looked(&looked);
            if looked.is_ok() && count.is_multiple_of(ROUNDS_PER_GROUPS) {
                let carried = self.carry_groups().await;
                let failure = carried.err().map(|error| error.to_string());
                self.tell(|report| report.groups_failure = failure);
            }
            if looked.is_ok() && self.follows_quotas() && count.is_multiple_of(ROUNDS_PER_QUOTAS) {
                let followed = self.follow_quotas().await;
                let failure = followed.err().map(|error| error.to_string());
                self.tell(|report| report.quotas_failure = failure);
            }
            if looked.is_ok() && count % ROUNDS_PER_RIGHTS == 1 {
                self.follow_rights().await;
            }
        }
    }

    /// Has access rules and users follow, as far as they are to.
    async fn follow_rights(&self) {
        if self.source.options.follows_acls() {
            let failure = self.follow_acls().await.err().map(|error| error.to_string());
            self.tell(|report| report.acls_failure = failure);
        }
        if self.source.options.follows_users() {
            let failure = self.follow_users().await.err().map(|error| error.to_string());
            self.tell(|report| report.users_failure = failure);
        }
    }

    fn follows_quotas(&self) -> bool {
        self.source.options.follows_quotas()
    }

    fn on_looked(&self, looked: &Result<(), LookError>) {
        let failure = looked.as_ref().err().map(ToString::to_string);
        self.tell(|report| report.failure = failure);
    }

    /// What is to be looked at here.
    fn duties(&self) -> Duties {
        let metadata = self.node.meta.metadata();
        let rules = super::rules::rules(&metadata, Some(&self.link));
        let mut mirrors = plan::mirrors(&metadata);
        mirrors.retain(|(topic, mirror, _)| {
            mirror.link == self.link && metadata.topic(*topic).is_some()
        });
        Duties { rules, mirrors }
    }

    /// Whether nothing can be other than it was when it was looked at last: neither side has changed anything, and
    /// the source would have told.
    fn is_as_it_was(&self, duties: &Duties) -> bool {
        let Some((at, known)) = &self.looked else { return false };
        let is_recent = self.clock.now().since(*at) < self.lookout.look_every();
        is_recent && known == duties && self.vigils.values().all(Vigil::is_calm)
    }

    /// Looks at the source's topics, unless they are known to be as they were.
    async fn look(
        &mut self,
        news: Option<Arc<ClusterView>>,
        is_with_configs: bool,
    ) -> Result<(), LookError> {
        let duties = self.duties();
        self.finish_creations(&duties.mirrors).await;
        let rules = super::rules::compiled(duties.rules.clone());
        let takes_new = rules.iter().any(super::rules::Matcher::is_of_topics);
        if duties.mirrors.is_empty() && !takes_new && !self.follows_quotas() {
            self.lookout.turn_to(Some(BTreeSet::new()));
            return Ok(());
        }
        let names: BTreeSet<&str> =
            duties.mirrors.iter().map(|(_, it, _)| it.source_name.as_str()).collect();
        let all_names = || names.iter().map(|name| (*name).to_owned()).collect();
        self.lookout.turn_to((!takes_new).then(all_names));
        if news.is_none() && self.is_as_it_was(&duties) {
            return Ok(());
        }
        // Until this look has ended well.
        self.looked = None;
        let view = match news {
            Some(news) => news,
            None => {
                let names: Vec<&str> = names.into_iter().collect();
                self.client.refresh(if takes_new { None } else { Some(&names) }).await?
            }
        };
        let view = self.with_missing(view, &duties.mirrors).await?;
        if view.cluster_id.as_deref() != Some(self.source.link.source.as_str()) {
            let expected = self.source.link.source.clone();
            let found = view.cluster_id.clone().unwrap_or_default();
            return Err(LookError::OtherCluster { expected, found });
        }
        let looked_at = self.clock.now();
        let mirrors = &duties.mirrors;
        self.ask_vigils(&view, mirrors).await;
        let is_all_taken = self.take_new(&view, &rules).await?;
        if is_with_configs || self.lookout.is_told() {
            self.follow_configs(&view, mirrors).await?;
        }
        self.looked = is_all_taken.then_some((looked_at, duties));
        Ok(())
    }

    fn tell(&self, change: impl FnOnce(&mut StewardReport)) {
        change(&mut lock(&self.report));
    }

    /// Remembers and logs something that happened.
    fn on_event(&self, topic: &str, what: String) {
        tracing::warn!(link = %self.link, %topic, "{what}");
        let at_ms = crate::client::clock::wall_time_ms();
        let event = Event { at_ms, topic: topic.to_owned(), what, besides: Besides::new() };
        self.tell(|report| {
            if report.events.len() == EVENT_COUNT_MAX {
                report.events.pop_front();
            }
            report.events.push_back(event);
        });
    }
}

/// Whether a mirror follows its source, or will when it is resumed.
fn follows(stage: Stage) -> bool {
    matches!(stage, Stage::Creating | Stage::Mirroring | Stage::Paused)
}

/// The links that this node is the steward of: each link has one of the nodes that are alive.
pub(super) fn duties(node: &NodeContext) -> BTreeMap<String, Source> {
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
pub(super) fn steward_of(metadata: &Metadata, link: &str) -> Option<meridian_base::id::NodeId> {
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

    /// The address is the link's, not one that somebody typed.
    #[test]
    fn a_source_that_does_not_answer_is_told_without_advice_for_typed_addresses() {
        let last = ClientError::ConnectTimeout {
            address: "west:9092".to_owned(),
            after: Duration::from_secs(5),
        };
        let addresses = "west:9092,west:9093".to_owned();
        let error = LookError::from(ClientError::Unreachable { addresses, last: Box::new(last) });
        assert_eq!(error.to_string(), "cannot connect to west:9092: no answer within 5s");
    }

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
