//! Deletes a mirror, alone or to begin anew.

use meridian_base::id::TopicId;
use meridian_consensus::command::{Command, ConfigResource, ExpectedVersion, RowChange, RowKind};
use meridian_consensus::error::Refusal;
use meridian_mirror::rows::MirrorTopic;
use meridian_mirror::rules::{Rule, Subject};
use meridian_mirror::seed::{Part, Seed};
use meridian_mirror::vigil::Policy;

use super::plan::MirrorRow;
use super::seed;
use super::succession::change_mirror;
use crate::admin_api::AdminError;
use crate::broker::Broker;
use crate::context::NodeContext;
use crate::meta::ProposeError;
use crate::topic_config::{MIRROR_ON_DELETE, MIRROR_ON_RECREATE};

/// Why a mirror was not deleted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReplaceError {
    /// It is not what was read: somebody has promoted or paused it, or it is another.
    #[error("the mirror changed meanwhile; look at it, and ask again")]
    Changed,
    #[error(transparent)]
    Undecided(#[from] ProposeError),
}

impl From<ReplaceError> for AdminError {
    fn from(error: ReplaceError) -> Self {
        match error {
            ReplaceError::Changed => Self::Failed(error.to_string()),
            ReplaceError::Undecided(_) => Self::Unavailable(error.to_string()),
        }
    }
}

/// What a topic's config says is to become of it.
pub(super) fn policy(node: &NodeContext, topic: TopicId, config: &str) -> Policy {
    let metadata = node.meta.metadata();
    let value = metadata.config(&ConfigResource::Topic(topic), config);
    value.and_then(Policy::parse).unwrap_or_default()
}

/// Deletes what is or was a mirror.
pub(super) async fn delete(broker: &dyn Broker, topic: TopicId) -> Result<(), ProposeError> {
    let forget = crate::linked_topics::forget(&broker.metadata(), topic);
    for command in std::iter::once(Command::DeleteTopic { topic }).chain(forget) {
        broker.propose(command).await?;
    }
    Ok(())
}

/// Deletes a mirror, if it is still what was read.
pub(super) async fn delete_read(broker: &dyn Broker, read: &MirrorRow) -> Result<(), ReplaceError> {
    begin(broker, None, Some(read)).await?;
    Ok(delete(broker, read.0).await?)
}

/// Writes what comes before a deletion: the rule, and the mirror's row over what was read. Whoever has changed the
/// mirror since then wins, and there is no rule. Both rows have one version: the rule is not done by that.
async fn begin(
    broker: &dyn Broker,
    rule: Option<&Rule>,
    read: Option<&MirrorRow>,
) -> Result<(), ReplaceError> {
    let rule = rule.map(|rule| RowChange {
        kind: RowKind::MirrorRule,
        key: rule.key(),
        value: Some(rule.encode()),
        expected: ExpectedVersion::Any,
    });
    let mirror = read.map(|(topic, mirror, version)| {
        change_mirror(*topic, mirror, ExpectedVersion::Exactly(*version))
    });
    let changes = rule.into_iter().chain(mirror).collect();
    match broker.propose(Command::PutRows(changes)).await {
        Err(ProposeError::Refused(Refusal::StaleRow { .. })) => Err(ReplaceError::Changed),
        written => Ok(written.map(drop)?),
    }
}

/// Deletes a topic, if it is no mirror or still the one that was read, and leaves a rule that mirrors what the source
/// of `wanted` is now in its place. The rule comes first: whatever fails after it, the topic is mirrored again. What
/// both sides are known to have is set aside for the new mirror to take.
pub(super) async fn replace(
    node: &NodeContext,
    topic: TopicId,
    read: Option<MirrorRow>,
    wanted: &MirrorTopic,
    both: Vec<(u32, Part)>,
) -> Result<(), ReplaceError> {
    let rule = Rule {
        link: wanted.link.clone(),
        subject: Subject::Topics {
            prefix: String::new(),
            rename: Some(wanted.name.clone()),
            on_delete: policy(node, topic, MIRROR_ON_DELETE),
            on_recreate: policy(node, topic, MIRROR_ON_RECREATE),
        },
        include: regex::escape(&wanted.source_name),
        exclude: None,
    };
    if both.is_empty() {
        begin(node, Some(&rule), read.as_ref()).await?;
        return Ok(delete(node, topic).await?);
    }
    // The topic may have been a mirror once: that it was one is how its epochs are read.
    let set_aside = |(topic, mirror, version)| {
        (topic, MirrorTopic { name: Seed::topic_name(topic), ..mirror }, version)
    };
    begin(node, Some(&rule), read.map(set_aside).as_ref()).await?;
    Ok(seed::set_aside(node, topic, wanted, both).await?)
}

#[cfg(test)]
mod tests {
    use meridian_base::position::LeaderEpoch;
    use meridian_mirror::rows::Stage;

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
    use crate::mirror::{plan, rules, testing};

    fn put_mirror(broker: &FakeBroker, topic: TopicId, stage: Stage) -> MirrorRow {
        testing::put_mirror(broker, topic, &testing::mirror("t", stage));
        plan::mirror_named(&broker.state(), "t").expect("just written")
    }

    #[tokio::test]
    async fn who_has_changed_the_mirror_meanwhile_wins() {
        let broker = FakeBroker::single();
        TestClient::connect(&front_of(&broker, quick_config())).create_topic("t", 1).await;
        let topic = broker.state().topic_named("t").expect("exists").id;
        let rule = testing::anew("t");
        let old = put_mirror(&broker, topic, Stage::Mirroring);
        let promoted = Stage::Promoted { epoch_floor: LeaderEpoch::new(3) };
        for stage in [Stage::Paused, promoted] {
            put_mirror(&broker, topic, stage);
            assert_eq!(delete_read(&*broker, &old).await, Err(ReplaceError::Changed));
            let begun = begin(&*broker, Some(&rule), Some(&old)).await;
            assert_eq!(begun, Err(ReplaceError::Changed));
            let (_, mirror, _) = plan::mirror_named(&broker.state(), "t").expect("not deleted");
            assert_eq!(mirror.stage, stage);
            assert!(!rules::is_awaited(&broker.state(), "west", "t"));
        }
        let read = put_mirror(&broker, topic, Stage::Mirroring);
        begin(&*broker, Some(&rule), Some(&read)).await.expect("it is as it was read");
        assert!(rules::is_awaited(&broker.state(), "west", "t"));
        assert_eq!(rules::settled(&broker.state(), &rule), None, "the old one is no new one");
        let read = plan::mirror_named(&broker.state(), "t").expect("not deleted yet");
        delete_read(&*broker, &read).await.expect("it is as it was read");
        assert!(broker.state().topic_named("t").is_none());
        assert_eq!(broker.state().extra_rows(RowKind::MirrorTopic).count(), 0);
    }
}
