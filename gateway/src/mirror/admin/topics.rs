//! Methods about mirror topics.

use std::collections::BTreeSet;

use meridian_admin_api::methods::MirrorStanding;
use meridian_admin_api::mirror::{Create, MirrorReport, Policy, Promote};
use meridian_admin_api::{Besides, OfTopic};
use meridian_base::id::TopicId;
use meridian_consensus::command::{Command, ConfigChange, ExpectedVersion, RowKind};
use meridian_consensus::placement::{Placement, Preference};
use meridian_mirror::rows::{Link, MirrorTopic, Stage};
use meridian_mirror::succession::{LinkEpoch, Succession};

use super::succession::of_peer;
use super::{AdminCall, of_source};
use crate::admin_api::AdminError;
use crate::broker::Broker;
use crate::client::{Client, ClientError};
use crate::linked_topics::forget;
use crate::meta::ProposeError;
use crate::mirror::peer::{self, PeerError};
use crate::mirror::promotion::{self, Cause};
use crate::mirror::succession::{change, change_mirror, on_created, put};
use crate::mirror::{plan, replace, seed, steward, survey};
use crate::topic_config::storage_class::STORAGE_CLASS;
use crate::topic_config::{MIRROR_ON_DELETE, MIRROR_ON_RECREATE, check as check_topic_config};

/// A topic of the source that is to be mirrored.
struct Found {
    id: TopicId,
    partition_count: u32,
    configs: Vec<ConfigChange>,
    ignored: Vec<String>,
}

/// Looks a topic up at the source.
async fn find(client: &Client, link: &Link, name: &str) -> Result<Found, AdminError> {
    // At once: on a long way each answer that is waited for costs a round trip.
    let (topic, set) = tokio::join!(client.topic(name), survey::set_configs(client, name));
    let topic = topic.map_err(|error| match error {
        ClientError::UnknownTopic { topic } => {
            AdminError::Failed(format!("the source has no topic {topic}"))
        }
        ClientError::RefusedTopic { topic } => AdminError::Failed(format!(
            "the source does not let this link read topic {topic}; its operators grant it with \
             `meridian link allow`, or READ and DESCRIBE at Kafka"
        )),
        error => of_source(&error),
    })?;
    let cluster = client.view().cluster_id.clone().unwrap_or_default();
    if cluster != link.source.as_str() {
        let expected = &link.source;
        return Err(AdminError::Failed(format!(
            "the link is to cluster {expected}, now {cluster} answers at {}",
            link.bootstrap
        )));
    }
    if topic.id.is_zero() {
        let message = "the source gives its topics no ids: it must be Kafka 3.1 or newer";
        return Err(AdminError::Failed(message.to_owned()));
    }
    let mut set = set.map_err(|error| of_source(&error))?;
    set.retain(|(name, _)| !steward::is_own_config(name));
    let (known, ignored): (Vec<_>, Vec<_>) =
        set.into_iter().partition(|(name, value)| check_topic_config(name, value).is_ok());
    let change = |(name, value)| ConfigChange { name, value: Some(value) };
    Ok(Found {
        id: TopicId::new(u128::from_be_bytes(topic.id.0)),
        partition_count: u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX),
        configs: known.into_iter().map(change).collect(),
        ignored: ignored.into_iter().map(|(name, _)| name).collect(),
    })
}

/// The link epoch that a topic has at its source: one day its mirror is promoted under a later one.
async fn link_epoch_of(client: &Client, topic: &str) -> Result<LinkEpoch, AdminError> {
    let ask = OfTopic { topic: topic.to_owned() };
    match peer::call::<MirrorStanding>(client, topic, &ask).await {
        Ok(there) => Ok(LinkEpoch::new(there.link_epoch)),
        // A source that is no meridian cluster has none.
        Err(PeerError::Never(_)) => Ok(LinkEpoch::ZERO),
        Err(error @ PeerError::Later(_)) => Err(of_peer(error)),
    }
}

/// The configs of a mirror that say what becomes of it with its source.
fn policies(
    on_delete: Option<Policy>,
    on_recreate: Option<Policy>,
) -> Result<Vec<ConfigChange>, AdminError> {
    let given = [(MIRROR_ON_DELETE, on_delete), (MIRROR_ON_RECREATE, on_recreate)];
    // What is not set is `stop`.
    let set = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
    set.filter(|(_, policy)| *policy != Policy::Stop)
        .map(|(name, policy)| {
            let value = policy.to_string();
            check_topic_config(name, &value).map_err(AdminError::InvalidArguments)?;
            Ok(ConfigChange { name: name.to_owned(), value: Some(value) })
        })
        .collect()
}

/// Creates the topic of a mirror whose rows are there. They are forgotten if it is certain that there is no topic: one
/// that comes about all the same would be everybody's to write to.
async fn create_topic(
    broker: &dyn Broker,
    topic: TopicId,
    create: Command,
) -> Result<(), AdminError> {
    let Err(error) = broker.propose(create).await else { return Ok(()) };
    if let ProposeError::Refused(_) = error {
        let forget = forget(&broker.metadata(), topic);
        if let Some(forget) = forget {
            broker.propose(forget).await?;
        }
    }
    Err(error.into())
}

impl AdminCall {
    pub(in crate::mirror) async fn create_mirror(
        &self,
        create: Create,
    ) -> Result<MirrorReport, AdminError> {
        let Create { topic: name, link: link_name, source_topic, on_delete, on_recreate } = create;
        let policies = policies(on_delete, on_recreate)?;
        let source_name = source_topic.unwrap_or_else(|| name.clone());
        let source = self.found_source(&link_name)?;
        if self.node.meta.metadata().topic_named(&name).is_some() {
            return Err(AdminError::Failed(format!(
                "topic {name} exists here already: a mirror begins as a new topic"
            )));
        }
        let client = self.mirrors.client(&link_name, &source);
        let (found, link_epoch) = tokio::join!(
            find(&client, &source.link, &source_name),
            link_epoch_of(&client, &source_name)
        );
        let mut found = found?;
        found.configs.extend(policies);
        let leaders = {
            let metadata = self.node.meta.metadata();
            let class = found.configs.iter().rfind(|change| change.name == STORAGE_CLASS);
            let class = class.and_then(|change| change.value.as_deref());
            Placement::new(&metadata, &BTreeSet::new()).initial_leaders(
                found.partition_count,
                &Preference::default(),
                class,
            )
        };
        let none = || AdminError::Unavailable("no node that could lead is alive".to_owned());
        let leaders = leaders.ok_or_else(none)?;
        let link_epoch = link_epoch?;
        let topic = TopicId::new(crate::runtime::entropy::entropy().map_err(failed)?);
        let mut mirror = MirrorTopic {
            link: link_name,
            name: name.clone(),
            source_name,
            source_topic: found.id,
            stage: Stage::Creating,
        };
        // The rows come first: no client ever writes to the topic, whatever fails in between.
        let row = Succession { link_epoch, ..Succession::default() };
        let mut rows = vec![change_mirror(topic, &mirror, ExpectedVersion::Absent)];
        if link_epoch > LinkEpoch::ZERO {
            rows.push(change(topic, &row, ExpectedVersion::Absent));
        }
        put(&self.node, rows).await?;
        let create =
            Command::CreateTopic { topic, name, leaders, configs: found.configs, internal: false };
        create_topic(&*self.node, topic, create).await?;
        on_created(&*self.node, topic).await?;
        mirror.stage = Stage::Mirroring;
        self.mirrors.look();
        let mut report = self.mirror_report(topic, mirror);
        report.ignored_configs = found.ignored;
        Ok(report)
    }

    pub(super) fn list_mirrors(&self) -> Vec<MirrorReport> {
        let rows = plan::mirrors(&self.node.meta.metadata());
        let mut reports: Vec<MirrorReport> = rows
            .into_iter()
            .filter(|(topic, ..)| {
                // One that was set aside may have been a mirror once.
                self.node.meta.metadata().topic(*topic).is_some_and(|topic| !topic.internal)
            })
            .map(|(topic, mirror, _)| self.mirror_report(topic, mirror))
            .collect();
        reports.sort_by(|a, b| a.topic.cmp(&b.topic));
        reports
    }

    /// Stops or goes on mirroring. Resuming a mirror that a crash left half created or half
    /// promoted brings it back.
    pub(super) async fn pause_mirror(
        &self,
        OfTopic { topic: name }: OfTopic,
        is_paused: bool,
    ) -> Result<MirrorReport, AdminError> {
        let (topic, mut mirror, version) = self.found_mirror(&name)?;
        mirror.stage = match mirror.stage {
            Stage::Promoted { .. } | Stage::Detached { .. } => {
                return Err(no_mirror_any_more(&mirror.name));
            }
            _ if is_paused => Stage::Paused,
            _ => Stage::Mirroring,
        };
        self.put_mirror(topic, &mirror, ExpectedVersion::Exactly(version)).await?;
        Ok(self.mirror_report(topic, mirror))
    }

    /// Deletes a mirror and mirrors its source anew, under the same name.
    pub(super) async fn recreate(
        &self,
        OfTopic { topic: name }: OfTopic,
    ) -> Result<MirrorReport, AdminError> {
        let read = self.found_mirror(&name)?;
        let (topic, mirror, _) = read.clone();
        if let Stage::Promoted { .. } = mirror.stage {
            return Err(no_mirror_any_more(&mirror.name));
        }
        let report = self.mirror_report(topic, mirror.clone());
        // A mirror that is no good may owe that to its seed.
        let discarded = seed::discard(&self.node, &mirror).await;
        discarded.map_err(|error| AdminError::Unavailable(error.to_string()))?;
        replace::replace(&self.node, topic, Some(read), &mirror, Vec::new()).await?;
        Ok(report)
    }

    /// Makes a mirror a topic like any other (rule F6).
    pub(in crate::mirror) async fn promote_mirror(
        &self,
        promote: Promote,
    ) -> Result<MirrorReport, AdminError> {
        let Promote { topic: name, is_forced } = promote;
        let (topic, mirror, _) = self.found_mirror(&name)?;
        if let Stage::Promoted { .. } = mirror.stage {
            return Err(no_mirror_any_more(&mirror.name));
        }
        promotion::promote(&self.node, topic, Cause::Operator { is_forced }).await?;
        let (topic, mirror, _) = self.found_mirror(&name)?;
        Ok(self.mirror_report(topic, mirror))
    }

    async fn put_mirror(
        &self,
        topic: TopicId,
        mirror: &MirrorTopic,
        expected: ExpectedVersion,
    ) -> Result<(), AdminError> {
        let key = MirrorTopic::key(topic);
        self.put(RowKind::MirrorTopic, &key, Some(mirror.encode()), expected).await
    }

    fn found_mirror(&self, topic: &str) -> Result<plan::MirrorRow, AdminError> {
        plan::mirror_named(&self.node.meta.metadata(), topic).ok_or_else(|| {
            AdminError::Failed(format!(
                "topic {topic} is no mirror; `meridian mirror list` shows which are"
            ))
        })
    }

    fn mirror_report(&self, topic: TopicId, mirror: MirrorTopic) -> MirrorReport {
        let metadata = self.node.meta.metadata();
        let link = plan::link(&metadata, &mirror.link);
        MirrorReport {
            topic: mirror.name,
            link: mirror.link,
            source_topic: mirror.source_name,
            source_topic_id: mirror.source_topic.to_string(),
            stage: mirror.stage.into(),
            is_link_paused: link.is_none_or(|(link, _)| link.is_paused),
            partitions: metadata.topic(topic).map_or(0, |topic| topic.partitions.len()),
            ignored_configs: Vec::new(),
            besides: Besides::new(),
        }
    }
}

fn no_mirror_any_more(name: &str) -> AdminError {
    AdminError::Failed(format!("{name} is promoted: it is no mirror any more"))
}

fn failed(error: std::io::Error) -> AdminError {
    AdminError::Failed(format!("no entropy: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::testing::FakeBroker;
    use crate::mirror::testing::{creation, mirror, put_mirror};

    #[tokio::test]
    async fn what_may_yet_become_a_mirror_is_not_forgotten() {
        let broker = FakeBroker::three_datacenters();
        let topic = TopicId::new(1);
        put_mirror(&broker, topic, &mirror("t", Stage::Creating));
        let create = |name| creation(&broker, topic, name, 1);
        let row_count = || broker.state().extra_rows(RowKind::MirrorTopic).count();
        *broker.refusal.lock().expect("not poisoned") = Some(ProposeError::TimedOut);
        let undecided = create_topic(&*broker, topic, create("t")).await;
        assert!(matches!(undecided, Err(AdminError::Unavailable(_))), "{undecided:?}");
        assert_eq!(row_count(), 1, "the topic may come about later");
        *broker.refusal.lock().expect("not poisoned") = None;
        let refused = create_topic(&*broker, topic, create("no name")).await;
        assert!(matches!(refused, Err(AdminError::Failed(_))), "{refused:?}");
        assert_eq!(row_count(), 0);
    }
}
