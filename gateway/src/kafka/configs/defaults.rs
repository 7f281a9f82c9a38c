//! What topics have that say nothing, for the whole cluster: Kafka's dynamic defaults of brokers (KIP-226),
//! under the names that Kafka gives these for a broker.
//!
//! They are configs of [`ConfigResource::Cluster`], by the names they have for topics. The cluster's own topics
//! don't follow them. [`OPEN_RESOURCES`] and [`QUOTA_SCOPE`] are no defaults of topics, and are kept there too.

use meridian_consensus::command::ConfigResource;
use meridian_consensus::placement::PREFERRED_LEADER_DC;
use meridian_consensus::state::Metadata;
use meridian_protocol::messages::{DescribedConfig, DescribedConfigSynonym};

use super::{SOURCE_DEFAULT, config_type};
use crate::kafka::access::OPEN_RESOURCES;
use crate::kafka::quotas::scope::QUOTA_SCOPE;
use crate::topic_config::{self, TopicConfig};

/// Set for the whole cluster.
pub(super) const SOURCE_CLUSTER: i8 = 3;

/// Configs that are the cluster's alone.
static OF_CLUSTER: [&TopicConfig; 2] = [&OPEN_RESOURCES, &QUOTA_SCOPE];

/// Names for a broker, and for a topic.
const NAMES: &[(&str, &str)] = &[
    ("compression.type", "compression.type"),
    ("log.cleaner.delete.retention.ms", "delete.retention.ms"),
    ("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms"),
    ("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
    ("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
    ("log.cleanup.policy", "cleanup.policy"),
    ("log.flush.interval.messages", "flush.messages"),
    ("log.flush.interval.ms", "flush.ms"),
    ("log.index.interval.bytes", "index.interval.bytes"),
    ("log.index.size.max.bytes", "segment.index.bytes"),
    ("log.local.retention.bytes", "local.retention.bytes"),
    ("log.local.retention.ms", "local.retention.ms"),
    ("log.message.timestamp.after.max.ms", topic_config::MESSAGE_TIMESTAMP_AFTER_MAX_MS),
    ("log.message.timestamp.before.max.ms", topic_config::MESSAGE_TIMESTAMP_BEFORE_MAX_MS),
    ("log.message.timestamp.type", topic_config::MESSAGE_TIMESTAMP_TYPE),
    ("log.preallocate", "preallocate"),
    ("log.retention.bytes", "retention.bytes"),
    ("log.retention.ms", "retention.ms"),
    ("log.roll.jitter.ms", "segment.jitter.ms"),
    ("log.roll.ms", "segment.ms"),
    ("log.segment.bytes", "segment.bytes"),
    ("log.segment.delete.delay.ms", "file.delete.delay.ms"),
    (PREFERRED_LEADER_DC, PREFERRED_LEADER_DC),
    ("message.max.bytes", topic_config::MAX_MESSAGE_BYTES),
    ("min.insync.datacenters", "min.insync.datacenters"),
    ("min.insync.replicas", "min.insync.replicas"),
    ("unclean.leader.election.enable", "unclean.leader.election.enable"),
];

/// The topic config that a broker's config is the default of, or one that is the cluster's alone.
pub(super) fn find(broker_name: &str) -> Option<&'static TopicConfig> {
    if let Some(own) = OF_CLUSTER.into_iter().find(|config| config.name == broker_name) {
        return Some(own);
    }
    let (_, name) = NAMES.iter().find(|(known, _)| *known == broker_name)?;
    topic_config::find(name)
}

/// What a broker calls the default of a topic's config.
fn broker_name(config: &TopicConfig) -> Option<&'static str> {
    NAMES.iter().find(|(_, name)| *name == config.name).map(|(known, _)| *known)
}

/// The value that topics have that say nothing, and where it comes from.
pub(in crate::kafka) fn value<'m>(
    metadata: &'m Metadata,
    config: &'static TopicConfig,
) -> (&'m str, i8) {
    match metadata.config(&ConfigResource::Cluster, config.name) {
        Some(set) => (set, SOURCE_CLUSTER),
        None => (config.default, SOURCE_DEFAULT),
    }
}

/// Where a topic's config can come from if it is not set for the topic, nearest first.
pub(super) fn synonyms(
    metadata: &Metadata,
    config: &'static TopicConfig,
) -> Vec<DescribedConfigSynonym> {
    let name = broker_name(config).unwrap_or(config.name);
    let synonym = |(value, source): (&str, i8)| DescribedConfigSynonym {
        name: name.into(),
        value: Some(value.into()),
        source,
    };
    let nearest = value(metadata, config);
    let last = (config.default, SOURCE_DEFAULT);
    let mut synonyms = vec![synonym(nearest)];
    synonyms.extend((nearest != last).then(|| synonym(last)));
    synonyms
}

/// The defaults as a broker has them: all, or only those that were set.
pub(super) fn describe(metadata: &Metadata, only_set: bool) -> Vec<DescribedConfig> {
    let described = |(name, config): (&str, &'static TopicConfig)| {
        let (value, config_source) = value(metadata, config);
        let is_set = config_source == SOURCE_CLUSTER;
        (is_set || !only_set).then(|| DescribedConfig {
            name: name.into(),
            value: Some(value.into()),
            // Of a broker alone nothing can be set.
            read_only: !only_set,
            is_default: !is_set,
            config_source,
            synonyms: synonyms(metadata, config),
            config_type: config_type(config.kind),
            documentation: Some(config.doc.into()),
            ..Default::default()
        })
    };
    let of_topics = NAMES.iter().filter_map(|(name, of)| Some((*name, topic_config::find(of)?)));
    let own = OF_CLUSTER.iter().map(|config| (config.name, *config));
    of_topics.chain(own).filter_map(described).collect()
}
