//! What the tests of mirrors begin with: rows, and topics that they are about.

use meridian_base::id::TopicId;
use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
use meridian_mirror::rows::{MirrorTopic, Stage};
use meridian_mirror::rules::{Rule, Subject};
use meridian_mirror::vigil::Policy;

use crate::broker::Broker;
use crate::kafka::testing::FakeBroker;

/// What [`mirror`] is a mirror of.
pub(super) const SOURCE: TopicId = TopicId::new(5);

/// A mirror of topic `t` over link `west`.
pub(crate) fn mirror(name: &str, stage: Stage) -> MirrorTopic {
    let [link, name, source_name] = ["west", name, "t"].map(str::to_owned);
    MirrorTopic { link, name, source_name, source_topic: SOURCE, stage }
}

/// The rule by which a mirror of a topic of its own name begins anew over link `west`.
pub(super) fn anew(name: &str) -> Rule {
    Rule {
        link: "west".to_owned(),
        subject: Subject::Topics {
            prefix: String::new(),
            rename: Some(name.to_owned()),
            on_delete: Policy::Stop,
            on_recreate: Policy::Stop,
        },
        include: name.to_owned(),
        exclude: None,
    }
}

/// Decides that there is a topic, which this node leads.
pub(crate) fn create(broker: &FakeBroker, topic: TopicId, name: &str, partition_count: usize) {
    broker.decide(creation(broker, topic, name, partition_count));
}

/// The command that creates a topic, which this node leads.
pub(super) fn creation(
    broker: &FakeBroker,
    topic: TopicId,
    name: &str,
    partition_count: usize,
) -> Command {
    let leaders = vec![broker.node(); partition_count];
    let (name, configs) = (name.to_owned(), Vec::new());
    Command::CreateTopic { topic, name, leaders, configs, internal: false }
}

/// Writes a row, whatever was there.
pub(super) fn put_row(broker: &FakeBroker, kind: RowKind, key: &[u8], value: Option<Vec<u8>>) {
    let (key, expected) = (key.to_vec(), ExpectedVersion::Any);
    broker.decide(Command::PutRows(vec![RowChange { kind, key, value, expected }]));
}

/// Writes the row of a mirror, whatever was there.
pub(crate) fn put_mirror(broker: &FakeBroker, topic: TopicId, mirror: &MirrorTopic) {
    put_row(broker, RowKind::MirrorTopic, &MirrorTopic::key(topic), Some(mirror.encode()));
}
