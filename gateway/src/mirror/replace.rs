//! Deletes a mirror, alone or to begin anew.

use meridian_base::id::TopicId;
use meridian_consensus::command::{Command, ConfigResource, ExpectedVersion, RowChange, RowKind};
use meridian_mirror::rows::MirrorTopic;
use meridian_mirror::rules::{Rule, Subject};
use meridian_mirror::seed::Part;
use meridian_mirror::vigil::Policy;

use super::seed;
use crate::broker::ProposeError;
use crate::node::Node;

/// What a topic's config says is to become of it.
pub(super) fn policy(node: &Node, topic: TopicId, config: &str) -> Policy {
    let metadata = node.meta.metadata();
    let value = metadata.config(&ConfigResource::Topic(topic), config);
    value.and_then(Policy::parse).unwrap_or_default()
}

/// Deletes a mirror.
pub(super) async fn delete(node: &Node, topic: TopicId) -> Result<(), ProposeError> {
    let forget = super::forget(&node.meta.metadata(), topic);
    for command in std::iter::once(Command::DeleteTopic { topic }).chain(forget) {
        node.meta.propose(command).await?;
    }
    Ok(())
}

async fn put_rule(node: &Node, rule: &Rule) -> Result<(), ProposeError> {
    let change = RowChange {
        kind: RowKind::MirrorRule,
        key: rule.key(),
        value: Some(rule.encode()),
        expected: ExpectedVersion::Any,
    };
    node.meta.propose(Command::PutRows(vec![change])).await.map(drop)
}

/// Deletes a mirror, and leaves a rule that mirrors what its source is now in its place. The rule
/// comes first: whatever fails after it, the topic is mirrored again. What both sides are known to have is set
/// aside for the new mirror to take.
pub(super) async fn replace(
    node: &Node,
    topic: TopicId,
    mirror: &MirrorTopic,
    both: Vec<(u32, Part)>,
) -> Result<(), ProposeError> {
    let rule = Rule {
        link: mirror.link.clone(),
        subject: Subject::Topics {
            prefix: String::new(),
            rename: Some(mirror.name.clone()),
            on_delete: policy(node, topic, crate::kafka::MIRROR_ON_DELETE),
            on_recreate: policy(node, topic, crate::kafka::MIRROR_ON_RECREATE),
        },
        include: regex::escape(&mirror.source_name),
        exclude: None,
    };
    put_rule(node, &rule).await?;
    if both.is_empty() {
        delete(node, topic).await
    } else {
        seed::set_aside(node, topic, mirror, both).await
    }
}
