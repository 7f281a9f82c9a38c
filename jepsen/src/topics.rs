//! What the simulator's topics are: each has one partition, whose id says what it is for. The metadata counts ids up,
//! so that those of a kind which a run has none of are spent on a topic that is deleted at once.
//!
//! ```text
//! 1..         values of producers
//! KEYED_MIN   values with keys, compacted
//! GROUPS      __consumer_offsets
//! TRANSACTIONS  __transaction_state
//! RECREATED_MIN..  the lives of a topic that is deleted and created anew
//! ```

use meridian_base::id::{NodeId, PartitionId, TopicId};
use meridian_base::position::{Generation, LeaderEpoch};
use meridian_consensus::command::{
    Command, ConfigChange, ConfigResource, ExpectedVersion, RowChange, RowKind,
};
use meridian_consensus::state::{Metadata, Partition, STORAGE_CLASS, STORAGE_CLASS_PARTS};
use meridian_mirror::rows::{MirrorTopic, Stage};
use meridian_storage::deleted;
use meridian_storage::erasure::Code;
use meridian_storage::mutation::Mutations;

/// The first partition whose values have keys.
pub const KEYED_MIN: u64 = 9;
/// Where groups keep what they know.
pub const GROUPS: PartitionId = PartitionId::new(11);
/// Where transactions are kept.
pub const TRANSACTIONS: PartitionId = PartitionId::new(12);
/// Producer ids from here on are given out by the coordinator of transactions.
pub const PRODUCER_ID_MIN: u32 = 1 << 24;
/// The first life of the topic that is created anew.
pub const RECREATED_MIN: u64 = 13;

/// How records stay in copies, and where those go that are cold.
const COPIES: &str = "mirror-3-dc";
const COLD: &str = "mirror-3-dc,cold=";
const OBJECT: &str = "object";

/// The name of the link that mirrors come over.
const LINK: &str = "home";

/// The only partition of the topic's life with this number.
pub fn recreated(number: u64) -> PartitionId {
    PartitionId::new(RECREATED_MIN + number)
}

/// Whether a partition is of the topic that is deleted and created anew.
pub fn is_recreated(partition: PartitionId) -> bool {
    partition.hot().get() >= RECREATED_MIN
}

/// Whether a coordinator keeps its state in this partition.
pub fn is_internal(partition: PartitionId) -> bool {
    partition == GROUPS || partition == TRANSACTIONS
}

/// The topic of a partition.
pub fn topic_of(partition: PartitionId) -> TopicId {
    TopicId::new(u128::from(partition.get()))
}

/// Its name.
pub fn name_of(partition: PartitionId) -> String {
    match partition {
        GROUPS => "__consumer_offsets".to_owned(),
        TRANSACTIONS => "__transaction_state".to_owned(),
        _ if is_recreated(partition) => "recreated".to_owned(),
        _ => format!("topic-{partition}"),
    }
}

/// Who owns a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The leader's generation.
    pub generation: Generation,
    /// The epoch that its batches carry.
    pub leader_epoch: LeaderEpoch,
    /// The node.
    pub node: NodeId,
}

/// Who owns a partition, if it is there.
pub fn owner_of(metadata: &Metadata, partition: PartitionId) -> Option<Owner> {
    let Partition { generation, leader_epoch, leader, .. } = *metadata.partition(partition)?;
    Some(Owner { generation, leader_epoch, node: leader })
}

/// Whether a partition was, and is no more, as far as this metadata knows.
pub fn is_deleted(metadata: &Metadata, partition: PartitionId, mutations: Mutations) -> bool {
    let (given_out, _) = metadata.topics_version();
    let is_there = metadata.partition(partition).is_some();
    deleted::is_deleted(partition, given_out, is_there, mutations)
}

/// How the records of a partition are put from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// As whole copies.
    Copies,
    /// The larger blobs in parts.
    Parts,
    /// As copies, until they are packed into stripes of this code.
    Cold(Code),
    /// As copies, until they are put into the object store.
    Objects,
}

impl Class {
    /// What the topic's config says.
    fn name(self) -> String {
        match self {
            Self::Copies => COPIES.to_owned(),
            Self::Parts => STORAGE_CLASS_PARTS.to_owned(),
            Self::Cold(code) => format!("{COLD}{}", code.name()),
            Self::Objects => format!("{COLD}{OBJECT}"),
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        match name.strip_prefix(COLD) {
            Some(OBJECT) => Some(Self::Objects),
            Some(code) => Code::from_name(code).map(Self::Cold),
            None if name == STORAGE_CLASS_PARTS => Some(Self::Parts),
            None => (name == COPIES).then_some(Self::Copies),
        }
    }

    /// The config of a topic of this class.
    pub fn config(self) -> ConfigChange {
        ConfigChange { name: STORAGE_CLASS.to_owned(), value: Some(self.name()) }
    }
}

/// How the records of `partition` are put.
pub fn class_of(metadata: &Metadata, partition: PartitionId) -> Class {
    let topic = metadata.partition(partition).map(|it| ConfigResource::Topic(it.topic));
    let class = topic.and_then(|topic| Class::from_name(metadata.config(&topic, STORAGE_CLASS)?));
    class.unwrap_or(Class::Copies)
}

/// A partition that mirrors one of another cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorRow {
    /// The partition there.
    pub source: PartitionId,
    /// The topic that it was of when the mirror was made.
    pub topic: TopicId,
    /// Where the mirror is in its life.
    pub stage: Stage,
}

/// What a partition mirrors, or mirrored: the one with its own id.
pub fn mirror_of(metadata: &Metadata, partition: PartitionId) -> Option<MirrorRow> {
    let topic = metadata.partition(partition)?.topic;
    let row = metadata.extra_row(RowKind::MirrorTopic, &MirrorTopic::key(topic))?;
    let MirrorTopic { source_topic, stage, .. } = MirrorTopic::decode(&row.value).ok()?;
    Some(MirrorRow { source: partition, topic: source_topic, stage })
}

/// Makes a partition a mirror of the one with its own id, or moves it to another stage.
pub fn set_stage(metadata: &Metadata, partition: PartitionId, stage: Stage) -> Command {
    let (topic, name) = (topic_of(partition), name_of(partition));
    let row = MirrorTopic {
        link: LINK.to_owned(),
        source_name: name.clone(),
        name,
        source_topic: topic,
        stage,
    };
    let key = MirrorTopic::key(topic);
    let version = metadata.extra_row(RowKind::MirrorTopic, &key).map(|row| row.version);
    let expected = version.map_or(ExpectedVersion::Absent, ExpectedVersion::Exactly);
    let (kind, key, value) = (RowKind::MirrorTopic, key.to_vec(), Some(row.encode()));
    Command::PutRows(vec![RowChange { kind, key, value, expected }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_as_they_are_written() {
        let cold = [Code::Rs54, Code::Block42].map(Class::Cold);
        for class in cold.into_iter().chain([Class::Copies, Class::Parts, Class::Objects]) {
            assert_eq!(Class::from_name(&class.name()), Some(class));
        }
    }
}
