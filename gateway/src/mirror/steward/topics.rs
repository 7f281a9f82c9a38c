//! Topics: those that a rule takes become mirrors; those that the source lost go as their policy says.

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_admin_api::mirror::{Create, Promote};
use meridian_base::id::TopicId;
use meridian_consensus::command::{Command, RowKind};
use meridian_mirror::rows::{MirrorTopic, Stage};
use meridian_mirror::rules::Subject;
use meridian_mirror::vigil::{Sight, Verdict};
use tokio::task::JoinHandle;

use super::{LookError, Steward};
use crate::client::ClientError;
use crate::client::metadata::ClusterView;
use crate::mirror::admin::AdminCall;
use crate::mirror::plan::MirrorRow;
use crate::mirror::rules::Matcher;
use crate::mirror::{replace, rules, succession, survey};
use crate::topic_config::{MIRROR_ON_DELETE, MIRROR_ON_RECREATE};

/// Mirrors that are created at the same time: on a long way each takes a while.
const CREATE_COUNT_MAX: usize = 16;
/// Topics of the source's own begin like this.
const INTERNAL_PREFIX: &str = "__";

impl Steward {
    /// Has mirrors follow whose creation was interrupted when their topics were there.
    pub(super) async fn finish_creations(&self, mirrors: &[MirrorRow]) {
        for (topic, ..) in mirrors.iter().filter(|(_, it, _)| it.stage == Stage::Creating) {
            if let Err(error) = succession::on_created(&*self.node, *topic).await {
                tracing::debug!(link = %self.link, %topic, %error, "its creation is not finished");
            }
        }
    }

    /// Adds what the source says of mirrored topics that a view lacks. An answer about all topics leaves out without a
    /// word those that the link may not see: only one about the topic tells that from a deletion.
    pub(super) async fn with_missing(
        &self,
        view: Arc<ClusterView>,
        mirrors: &[MirrorRow],
    ) -> Result<Arc<ClusterView>, ClientError> {
        let names = mirrors.iter().map(|(_, mirror, _)| mirror.source_name.as_str());
        let is_missing = |name: &&str| !view.topics.contains_key(*name);
        let missing: Vec<&str> = names.filter(is_missing).collect();
        if missing.is_empty() { Ok(view) } else { self.client.refresh(Some(&missing)).await }
    }

    /// Watches whether the sources of all mirrors are what they were.
    pub(super) async fn ask_vigils(&mut self, view: &ClusterView, mirrors: &[MirrorRow]) {
        let now = self.clock.now();
        self.vigils.retain(|topic, _| mirrors.iter().any(|(known, ..)| known == topic));
        let mut verdicts = Vec::new();
        for row in mirrors.iter().filter(|(_, it, _)| it.stage == Stage::Mirroring) {
            let (topic, mirror, _) = row;
            let sight = match view.topic(&mirror.source_name) {
                // Who may not see it does not know whether it is gone.
                Err(ClientError::RefusedTopic { .. }) => {
                    self.vigils.remove(topic);
                    continue;
                }
                Err(_) => Sight::Gone,
                Ok(found) => match TopicId::new(u128::from_be_bytes(found.id.0)) {
                    id if id == mirror.source_topic => Sight::Same,
                    id => Sight::Other(id),
                },
            };
            let policy = |name| replace::policy(&self.node, *topic, name);
            let (on_delete, on_recreate) = (policy(MIRROR_ON_DELETE), policy(MIRROR_ON_RECREATE));
            let vigil = self.vigils.entry(*topic).or_default();
            let verdict = vigil.look(now, sight, on_delete, on_recreate);
            if verdict != Verdict::Keep {
                self.vigils.remove(topic);
                verdicts.push((row, verdict));
            }
        }
        for (row, verdict) in verdicts {
            self.carry_out(row, verdict).await;
        }
    }

    async fn carry_out(&self, read: &MirrorRow, verdict: Verdict) {
        let (topic, mirror, _) = read;
        let name = &mirror.name;
        let (done, result) = match verdict {
            Verdict::Keep => return,
            Verdict::Promote => {
                let promote = Promote { topic: name.clone(), is_forced: false };
                let call = AdminCall::new(Arc::clone(&self.mirrors));
                let result = call.promote_mirror(promote).await.map(drop);
                (
                    "its source is gone: promoted, as its policy says",
                    result.map_err(|e| e.to_string()),
                )
            }
            Verdict::Delete => {
                let result = replace::delete_read(&*self.node, read).await;
                let result = result.map_err(|error| error.to_string());
                ("its source was deleted: deleted too, as its policy says", result)
            }
            Verdict::Replace => {
                let read = Some(read.clone());
                let result = replace::replace(&self.node, *topic, read, mirror, Vec::new()).await;
                let result = result.map_err(|error| error.to_string());
                ("its source was recreated: it begins anew, as its policy says", result)
            }
        };
        match result {
            Ok(()) => self.on_event(name, done.to_owned()),
            Err(error) => self.on_event(name, format!("not done: {done}: {error}")),
        }
    }

    /// Mirrors topics that a rule takes and that are not here yet. False if one of them could not be created.
    pub(super) async fn take_new(
        &mut self,
        view: &ClusterView,
        rules: &[Matcher],
    ) -> Result<bool, LookError> {
        let mut refused = BTreeMap::new();
        // By their names here.
        let mut wanted: BTreeMap<String, (&str, &Matcher)> = BTreeMap::new();
        for (name, topic) in &view.topics {
            if topic.is_internal || name.starts_with(INTERNAL_PREFIX) {
                continue;
            }
            for matcher in rules::taking(rules, name) {
                let here = matcher.name_of(name);
                match self.holder_of(&here, name) {
                    Holder::Nobody if matcher.is_for_one() || !wanted.contains_key(&here) => {
                        wanted.insert(here, (name, matcher));
                    }
                    Holder::Nobody => {}
                    Holder::ThisMirror => self.settle(matcher).await,
                    Holder::Other(reason) => drop(refused.insert(name.clone(), reason)),
                }
            }
        }
        // Who is named is meant: only patterns leave out what is a mirror itself.
        let is_by_pattern = |matcher: &Matcher| !matcher.is_for_one();
        let by_pattern = wanted.values().filter(|(_, matcher)| is_by_pattern(matcher));
        let names: Vec<String> = by_pattern.map(|(name, _)| (*name).to_owned()).collect();
        let mirrors = survey::mirrors(&self.client, &names).await?;
        let mut is_all_taken = true;
        let (theirs, wanted): (Vec<_>, Vec<_>) = wanted
            .into_values()
            .partition(|(name, matcher)| is_by_pattern(matcher) && mirrors.contains(*name));
        for (name, _) in theirs {
            let reason = "it is a mirror there: name it to mirror a mirror";
            refused.insert(name.to_owned(), reason.to_owned());
        }
        for wanted in wanted.chunks(CREATE_COUNT_MAX) {
            let begin = |(name, matcher): &(&str, &Matcher)| self.begin_to_create(name, matcher);
            let calls: Vec<JoinHandle<_>> = wanted.iter().map(begin).collect();
            for ((name, matcher), call) in wanted.iter().zip(calls) {
                match call.await.map_err(|error| error.to_string()).flatten() {
                    Ok(()) => self.on_created(name, matcher).await,
                    Err(reason) => {
                        is_all_taken = false;
                        refused.insert((*name).to_owned(), reason);
                    }
                }
            }
        }
        self.tell(|report| report.refused = refused);
        Ok(is_all_taken)
    }

    /// Who has a name here.
    fn holder_of(&self, name: &str, source_name: &str) -> Holder {
        let metadata = self.node.meta.metadata();
        let Some(topic) = metadata.topic_named(name) else { return Holder::Nobody };
        let row = metadata.extra_row(RowKind::MirrorTopic, &MirrorTopic::key(topic.id));
        let mirror = row.and_then(|row| MirrorTopic::decode(&row.value).ok());
        match mirror {
            Some(mirror)
                if (&mirror.link, mirror.source_name.as_str()) == (&self.link, source_name) =>
            {
                Holder::ThisMirror
            }
            Some(mirror) => {
                let MirrorTopic { source_name, link, .. } = mirror;
                Holder::Other(format!("{name} is a mirror of {source_name} over link {link}"))
            }
            None => Holder::Other(format!("{name} is a topic of this cluster")),
        }
    }

    fn begin_to_create(
        &self,
        source_name: &str,
        matcher: &Matcher,
    ) -> JoinHandle<Result<(), String>> {
        let (on_delete, on_recreate) = match &matcher.rule.subject {
            Subject::Topics { on_delete, on_recreate, .. } => {
                (Some((*on_delete).into()), Some((*on_recreate).into()))
            }
            Subject::Groups => (None, None),
        };
        let create = Create {
            topic: matcher.name_of(source_name),
            link: self.link.clone(),
            source_topic: Some(source_name.to_owned()),
            on_delete,
            on_recreate,
        };
        let call = AdminCall::new(Arc::clone(&self.mirrors));
        tokio::spawn(async move {
            let created = call.create_mirror(create).await;
            created.map(drop).map_err(|error| error.to_string())
        })
    }

    async fn on_created(&self, source_name: &str, matcher: &Matcher) {
        let (name, pattern) = (matcher.name_of(source_name), &matcher.rule.include);
        self.on_event(&name, format!("mirrors {source_name}, which the pattern {pattern} takes"));
        self.settle(matcher).await;
    }

    /// A rule for a single topic goes once it has done its work.
    async fn settle(&self, matcher: &Matcher) {
        let settled = rules::settled(&self.node.meta.metadata(), &matcher.rule);
        let Some(change) = settled else { return };
        if let Err(error) = self.node.meta.propose(Command::PutRows(vec![change])).await {
            tracing::debug!(link = %self.link, %error, "the rule stays until the next look");
        }
    }
}

/// Who has a name here.
enum Holder {
    Nobody,
    /// A mirror of the same topic: the one that the rule is to bring about, or the one that makes way for it.
    ThisMirror,
    Other(String),
}
