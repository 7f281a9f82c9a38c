//! The configs a topic can have: what each may be set to, its default and what it does here.

pub(crate) mod storage_class;

use std::collections::BTreeMap;

use meridian_base::id::TopicId;
use meridian_consensus::command::ConfigResource;
use meridian_consensus::placement::PREFERRED_LEADER_DC;
pub(crate) use meridian_consensus::state::MIN_INSYNC_DATACENTERS;
use meridian_consensus::state::Metadata;
use meridian_mirror::vigil::Policy;

use self::storage_class::{
    COLD_AFTER_BYTES, COLD_AFTER_MS, STORAGE_CLASS, STORAGE_CLASS_DEFAULT, STORAGE_CLASSES,
};

/// Largest record batch a client may produce.
pub(crate) const MAX_MESSAGE_BYTES: &str = "max.message.bytes";
pub(crate) const MAX_MESSAGE_BYTES_DEFAULT: usize = 1_048_588;
/// A batch travels in one frame between nodes and lies in one journal file: both hold 16 MiB. What is
/// set above this counts as this.
pub(crate) const MAX_MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Whose clock stamps records.
pub(crate) const MESSAGE_TIMESTAMP_TYPE: &str = "message.timestamp.type";
pub(crate) const LOG_APPEND_TIME: &str = "LogAppendTime";

/// How far a record's time may be ahead of the leader's, or behind it.
pub(crate) const MESSAGE_TIMESTAMP_AFTER_MAX_MS: &str = "message.timestamp.after.max.ms";
pub(crate) const MESSAGE_TIMESTAMP_AFTER_MAX_MS_DEFAULT: i64 = 3600 * 1000;
pub(crate) const MESSAGE_TIMESTAMP_BEFORE_MAX_MS: &str = "message.timestamp.before.max.ms";

/// What makes a batch a repeat: nothing but its producer's sequence, or the source of its records.
pub(crate) const DEDUP: &str = "meridian.dedup";
pub(crate) const DEDUP_SOURCE: &str = "source";
/// How long sources are remembered.
pub(crate) const DEDUP_RETENTION_MS: &str = "meridian.dedup.retention.ms";
pub(crate) const DEDUP_RETENTION_MS_DEFAULT: i64 = 14 * 24 * 3600 * 1000;

/// How long a compacted topic keeps tombstones.
pub(crate) const DELETE_RETENTION_MS: &str = "delete.retention.ms";
/// Whether records may be missing between others, though the topic is not compacted now. Set when it ceases to be.
pub(crate) const COMPACTED_ONCE: &str = "meridian.compacted.once";
const CLEANUP_POLICY: &str = "cleanup.policy";

/// Configs of mirrors begin like this. They belong to this cluster, whatever the source has set.
pub(crate) const MIRROR_PREFIX: &str = "meridian.mirror.";
/// Whether a mirror's configs are those of its source.
pub(crate) const MIRROR_CONFIGS: &str = "meridian.mirror.configs";
/// What becomes of a mirror whose source is deleted, or recreated.
pub(crate) const MIRROR_ON_DELETE: &str = "meridian.mirror.on.delete";
pub(crate) const MIRROR_ON_RECREATE: &str = "meridian.mirror.on.recreate";
/// The link and the topic that a mirror comes from. Shown, never set.
pub(crate) const MIRROR_SOURCE: &str = "meridian.mirror.source";

/// How far the mirrors of a topic may be behind before its producers are refused.
pub(crate) const MIRROR_MAX_LAG_MS: &str = "mirror.max.lag.ms";

/// Whether a topic was compacted once, or its mirror was.
pub(crate) fn was_compacted(metadata: &Metadata, topic: TopicId) -> bool {
    metadata.topic_config(topic, COMPACTED_ONCE) == Some("true")
}

/// Has a topic that ceases to be compacted say so from then on, unless the change itself says otherwise.
pub(crate) fn keep_compacted(
    metadata: &Metadata,
    resource: &ConfigResource,
    changes: &mut BTreeMap<String, Option<String>>,
) {
    let ConfigResource::Topic(topic) = resource else { return };
    let has_compact = |policy: Option<&str>| policy.is_some_and(|it| it.contains("compact"));
    let policy = match changes.get(CLEANUP_POLICY) {
        Some(Some(policy)) => Some(policy.as_str()),
        // What holds for all topics, then.
        Some(None) => metadata.config(&ConfigResource::Cluster, CLEANUP_POLICY),
        None => return,
    };
    let is_given = changes.get(COMPACTED_ONCE).is_some_and(Option::is_some);
    let was = has_compact(metadata.topic_config(*topic, CLEANUP_POLICY))
        || was_compacted(metadata, *topic);
    if was && !has_compact(policy) && !is_given {
        changes.insert(COMPACTED_ONCE.to_owned(), Some("true".to_owned()));
    }
}

/// What a config's value must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int {
        min: i64,
        max: i64,
    },
    Long {
        min: i64,
    },
    Bool,
    /// A number from 0 to 1.
    Ratio,
    OneOf(&'static [&'static str]),
    ListOf(&'static [&'static str]),
    Text,
}

/// A config that a topic, or a group, can have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopicConfig {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: &'static str,
    pub(crate) doc: &'static str,
}

const ANY_INT: Kind = Kind::Int { min: 0, max: i32::MAX as i64 };
const NO_EFFECT: &str = "Accepted for compatibility; the storage engine chooses by itself.";
const NO_COMPRESSION: &str = "No effect: batches are kept as the producer compressed them.";
const NO_THROTTLE: &str = "No effect: refills are bounded by heal.bytes_per_second_max.";
const NO_REMOTE_STORAGE: &str = "No effect: see meridian.storage.class.";
const NO_CONVERSION: &str = "No effect: batches have format 2.";

pub(crate) const fn config(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    doc: &'static str,
) -> TopicConfig {
    TopicConfig { name, kind, default, doc }
}

/// All of them, by name.
pub(crate) const ALL: &[TopicConfig] = &[
    config(
        "cleanup.policy",
        Kind::ListOf(&["delete", "compact"]),
        "delete",
        "Whether old records are deleted by age and size, or all but the last of each key.",
    ),
    config("compression.gzip.level", Kind::Int { min: -1, max: 9 }, "-1", NO_COMPRESSION),
    config("compression.lz4.level", Kind::Int { min: 1, max: 17 }, "9", NO_COMPRESSION),
    config(
        "compression.type",
        Kind::OneOf(&["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
        "producer",
        "Batches are kept as the producer compressed them, whatever this says.",
    ),
    config("compression.zstd.level", Kind::Int { min: -131_072, max: 22 }, "3", NO_COMPRESSION),
    config(
        "delete.retention.ms",
        Kind::Long { min: 0 },
        "86400000",
        "How long a compacted topic keeps tombstones.",
    ),
    config("file.delete.delay.ms", Kind::Long { min: 0 }, "60000", NO_EFFECT),
    config("flush.messages", Kind::Long { min: 1 }, "1", "Every record is flushed before its ack."),
    config("flush.ms", Kind::Long { min: 0 }, "0", "Every record is flushed before its ack."),
    config("follower.replication.throttled.replicas", Kind::Text, "", NO_THROTTLE),
    config("index.interval.bytes", ANY_INT, "4096", NO_EFFECT),
    config("leader.replication.throttled.replicas", Kind::Text, "", NO_THROTTLE),
    config("local.retention.bytes", Kind::Long { min: -2 }, "-2", NO_REMOTE_STORAGE),
    config("local.retention.ms", Kind::Long { min: -2 }, "-2", NO_REMOTE_STORAGE),
    config(
        "max.compaction.lag.ms",
        Kind::Long { min: 1 },
        "9223372036854775807",
        "Longest time a record stays uncompacted.",
    ),
    config(
        MAX_MESSAGE_BYTES,
        ANY_INT,
        "1048588",
        "Largest record batch that may be produced, as compressed by the producer; more than 8388608 \
         counts as that.",
    ),
    config(
        COLD_AFTER_BYTES,
        Kind::Long { min: -1 },
        "-1",
        "Newest bytes of a partition that stay in copies, if its storage class has a cold tier; \
         -1 goes by age alone.",
    ),
    config(
        COLD_AFTER_MS,
        Kind::Long { min: -1 },
        "86400000",
        "Age at which records are packed, if the storage class has a cold tier; -1 never by age.",
    ),
    config(
        COMPACTED_ONCE,
        Kind::Bool,
        "false",
        "Whether the topic was compacted before: mirrors then expect offsets to be missing.",
    ),
    config(
        DEDUP,
        Kind::OneOf(&["none", DEDUP_SOURCE]),
        "none",
        "source: each record names its source and number in headers, and is in the log once.",
    ),
    config(
        DEDUP_RETENTION_MS,
        Kind::Long { min: -1 },
        "1209600000",
        "How long a source is remembered after its last record; -1 for ever.",
    ),
    config(
        MIRROR_CONFIGS,
        Kind::OneOf(&["follow", "own"]),
        "follow",
        "Whether a mirror's configs follow those of its source, or are its own.",
    ),
    config(
        MIRROR_ON_DELETE,
        Kind::OneOf(Policy::NAMES),
        "stop",
        "When the source of a mirror is deleted: stop and wait for an operator, delete the mirror \
         too (follow), or make it a topic of its own (promote).",
    ),
    config(
        MIRROR_ON_RECREATE,
        Kind::OneOf(Policy::NAMES),
        "stop",
        "When the source of a mirror is recreated: stop and wait for an operator, begin anew with \
         the new topic (follow), or become a topic of its own (promote).",
    ),
    config(
        STORAGE_CLASS,
        Kind::OneOf(STORAGE_CLASSES),
        STORAGE_CLASS_DEFAULT,
        "How records are stored: in copies, and what is cold in erasure-coded stripes or an object store.",
    ),
    config("message.downconversion.enable", Kind::Bool, "true", NO_CONVERSION),
    config("message.format.version", Kind::Text, "3.0-IV1", NO_CONVERSION),
    config(
        MESSAGE_TIMESTAMP_AFTER_MAX_MS,
        Kind::Long { min: 0 },
        "3600000",
        "How far the producer's time of a record may be ahead of the leader's.",
    ),
    config(
        MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
        Kind::Long { min: 0 },
        "9223372036854775807",
        "How far the producer's time of a record may be behind the leader's.",
    ),
    config(
        "message.timestamp.difference.max.ms",
        Kind::Long { min: 0 },
        "9223372036854775807",
        "No effect: see message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
    ),
    config(
        MESSAGE_TIMESTAMP_TYPE,
        Kind::OneOf(&["CreateTime", LOG_APPEND_TIME]),
        "CreateTime",
        "Whether records have the producer's time or that of their append.",
    ),
    config(
        "min.cleanable.dirty.ratio",
        Kind::Ratio,
        "0.5",
        "Part of a compacted log that may be uncompacted before a pass is made.",
    ),
    config(
        "min.compaction.lag.ms",
        Kind::Long { min: 0 },
        "0",
        "Shortest time a record stays uncompacted.",
    ),
    config(
        "min.insync.datacenters",
        Kind::Int { min: 1, max: 3 },
        "1",
        "Datacenters a record must be durable in before its ack; 3 refuses writes while one is away.",
    ),
    config(
        "min.insync.replicas",
        Kind::Int { min: 1, max: i32::MAX as i64 },
        "1",
        "No effect: every ack waits for a quorum of disks. See min.insync.datacenters.",
    ),
    config(
        MIRROR_MAX_LAG_MS,
        Kind::Long { min: -1 },
        "-1",
        "How old a record may be that no mirror has: producers are slowed down from half of it on, and \
         refused then; -1 or 0 for any age.",
    ),
    config("preallocate", Kind::Bool, "false", NO_EFFECT),
    config(
        PREFERRED_LEADER_DC,
        Kind::Text,
        "",
        "Datacenters that should lead the topic's partitions, best first, separated by commas.",
    ),
    config("remote.log.copy.disable", Kind::Bool, "false", NO_REMOTE_STORAGE),
    config("remote.log.delete.on.disable", Kind::Bool, "false", NO_REMOTE_STORAGE),
    config("remote.storage.enable", Kind::OneOf(&["false"]), "false", NO_REMOTE_STORAGE),
    config(
        "retention.bytes",
        Kind::Long { min: -1 },
        "-1",
        "Bytes of a partition that are kept; -1 for all.",
    ),
    config(
        "retention.ms",
        Kind::Long { min: -1 },
        "604800000",
        "How long records are kept; -1 for ever.",
    ),
    config("segment.bytes", ANY_INT, "1073741824", NO_EFFECT),
    config("segment.index.bytes", ANY_INT, "10485760", NO_EFFECT),
    config("segment.jitter.ms", Kind::Long { min: 0 }, "0", NO_EFFECT),
    config("segment.ms", Kind::Long { min: 1 }, "604800000", NO_EFFECT),
    config(
        "unclean.leader.election.enable",
        Kind::Bool,
        "false",
        "No effect: a leader never loses acknowledged records here, so there is nothing to enable.",
    ),
];

/// The config of this name.
pub(crate) fn find(name: &str) -> Option<&'static TopicConfig> {
    ALL.iter().find(|config| config.name == name)
}

/// A value as it is kept: Kafka's parsers, too, take no notice of blanks around it.
pub(crate) fn trimmed(value: &str) -> String {
    value.trim().to_owned()
}

/// Whether a topic may have this value; if not, why.
pub(crate) fn check(name: &str, value: &str) -> Result<(), String> {
    let config = find(name).ok_or_else(|| format!("unknown topic config {name}"))?;
    config.check(value)
}

impl TopicConfig {
    /// Whether it may have this value; if not, why.
    pub(crate) fn check(&self, value: &str) -> Result<(), String> {
        check_kind(self.name, self.kind, value)
    }
}

fn check_kind(name: &str, kind: Kind, value: &str) -> Result<(), String> {
    let invalid = |what: &str| Err(format!("invalid value {value:?} for {name}: {what}"));
    match kind {
        Kind::Int { min, max } => match value.parse::<i64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(()),
            _ => invalid(&format!("must be a number from {min} to {max}")),
        },
        Kind::Long { min } => match value.parse::<i64>() {
            Ok(number) if number >= min => Ok(()),
            _ => invalid(&format!("must be a number of at least {min}")),
        },
        Kind::Ratio => match value.parse::<f64>() {
            Ok(number) if (0.0..=1.0).contains(&number) => Ok(()),
            _ => invalid("must be a number from 0 to 1"),
        },
        Kind::Bool if value == "true" || value == "false" => Ok(()),
        Kind::Bool => invalid("must be true or false"),
        Kind::OneOf(values) if values.contains(&value) => Ok(()),
        Kind::OneOf(values) => invalid(&format!("must be one of {}", values.join(", "))),
        Kind::ListOf(values) => {
            if value.split(',').all(|item| values.contains(&item.trim())) {
                Ok(())
            } else {
                invalid(&format!("must be a list of {}", values.join(", ")))
            }
        }
        Kind::Text => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use meridian_consensus::command::{Command, ConfigChange};

    use super::*;
    use crate::broker::Broker as _;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

    #[test]
    fn defaults_are_valid_and_names_sorted() {
        for config in ALL {
            assert_eq!(check(config.name, config.default), Ok(()), "{}", config.name);
            assert!(!config.doc.is_empty());
        }
        assert!(ALL.is_sorted_by_key(|config| config.name));
        let size = find(MAX_MESSAGE_BYTES).map(|config| config.default);
        assert_eq!(size, Some(MAX_MESSAGE_BYTES_DEFAULT.to_string().as_str()));
        let after = find(MESSAGE_TIMESTAMP_AFTER_MAX_MS).map(|config| config.default);
        assert_eq!(after, Some(MESSAGE_TIMESTAMP_AFTER_MAX_MS_DEFAULT.to_string().as_str()));
        let retention = find(DEDUP_RETENTION_MS).map(|config| config.default);
        assert_eq!(retention, Some(DEDUP_RETENTION_MS_DEFAULT.to_string().as_str()));
    }

    /// The offsets that compaction has taken out stay away, and mirrors are to know why.
    #[tokio::test]
    async fn a_topic_that_ceases_to_be_compacted_says_so_from_then_on() {
        let broker = FakeBroker::single();
        let mut operator = TestClient::connect(&front_of(&broker, quick_config()));
        operator.create_topic("t", 1).await;
        let topic = broker.state().topic_named("t").expect("exists").id;
        let resource = ConfigResource::Topic(topic);
        let set = async |policy: Option<&str>, once: Option<&str>| {
            let value = policy.map(str::to_owned);
            let mut changes = BTreeMap::from([(CLEANUP_POLICY.to_owned(), value)]);
            changes.extend(once.map(|once| (COMPACTED_ONCE.to_owned(), Some(once.to_owned()))));
            keep_compacted(&broker.state(), &resource, &mut changes);
            let changes = changes.into_iter().map(|(name, value)| ConfigChange { name, value });
            let (resource, changes) = (resource.clone(), changes.collect());
            broker.propose(Command::SetConfigs { resource, changes }).await.expect("legal");
            was_compacted(&broker.state(), topic)
        };
        assert!(!set(Some("delete"), None).await, "it never was");
        assert!(!set(Some("compact,delete"), None).await, "it is, and mirrors see that");
        assert!(set(Some("delete"), None).await);
        assert!(set(None, None).await, "and stays so");
        assert!(!set(None, Some("false")).await, "unless an operator knows better");
        assert!(!set(Some("compact"), None).await && set(None, None).await);
    }

    #[test]
    fn bad_values_are_refused() {
        for (name, value) in [
            ("no.such.config", "1"),
            ("retention.ms", "soon"),
            ("retention.ms", "-2"),
            ("max.message.bytes", "-1"),
            ("max.message.bytes", "99999999999999999999"),
            ("cleanup.policy", "shred"),
            ("cleanup.policy", ""),
            ("preallocate", "yes"),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("min.cleanable.dirty.ratio", "NaN"),
            ("min.insync.datacenters", "4"),
            ("remote.storage.enable", "true"),
            ("compression.gzip.level", "10"),
        ] {
            assert!(check(name, value).is_err(), "{name}={value}");
        }
        assert_eq!(check("cleanup.policy", "compact,delete"), Ok(()));
    }

    /// Copied from Kafka by MirrorMaker 2 or Terraform, all or none.
    #[test]
    fn what_does_nothing_here_is_taken_and_says_so() {
        for (name, value) in [
            ("compression.zstd.level", "-7"),
            ("follower.replication.throttled.replicas", "0:1,1:2"),
            ("leader.replication.throttled.replicas", "*"),
            ("local.retention.ms", "-2"),
            ("message.format.version", "2.8-IV1"),
            ("remote.storage.enable", "false"),
            ("unclean.leader.election.enable", "true"),
        ] {
            assert_eq!(check(name, value), Ok(()), "{name}={value}");
            let doc = find(name).map(|config| config.doc).unwrap_or_default();
            assert!(doc.contains("No effect"), "{name}: {doc}");
        }
        assert_eq!(check(MAX_MESSAGE_BYTES, "104857600"), Ok(()));
    }
}
