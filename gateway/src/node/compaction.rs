//! Compacts the partitions led here whose topics ask for it: one pass of a node at a time.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use meridian_base::id::{PartitionId, TopicId};
use meridian_base::position::Offset;
use meridian_consensus::command::ConfigResource;
use meridian_consensus::state::Metadata;

use super::Node;
use crate::cleaner::PassLimits;
use crate::log::{CompactionRules, PartitionLog};

/// How often partitions are looked at.
const COMPACT_EVERY: Duration = Duration::from_secs(3);
/// A partition in which nothing was to be judged, or that could not be read, is left alone for this
/// long (Kafka's `log.cleaner.backoff.ms`).
const REST_MS: i64 = 15_000;
/// Kafka's defaults.
const DIRTY_RATIO_MIN_DEFAULT: f64 = 0.5;
const DELETE_RETENTION_MS_DEFAULT: i64 = 24 * 3600 * 1000;

/// The bounds of a node's passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionConfig {
    /// Bytes read and put in a second.
    pub bytes_per_second: u64,
    /// Memory for keys: 48 bytes for each different one that a pass looks for.
    pub memory_bytes: usize,
}

impl Default for CompactionConfig {
    fn default() -> Self {
        Self { bytes_per_second: 8 << 20, memory_bytes: 64 << 20 }
    }
}

/// Compacts, one partition after another.
pub(super) async fn run_compaction(node: Arc<Node>) {
    let mut interval = tokio::time::interval(COMPACT_EVERY);
    let mut resting: HashMap<PartitionId, Rest> = HashMap::new();
    loop {
        interval.tick().await;
        resting.retain(|partition, _| node.logs.owned(*partition).is_some());
        for log in node.logs.owned_logs() {
            // Asked anew for each: a pass may take long.
            let Some(now_ms) = node.time.agreed_ms() else { break };
            let partition = log.ownership().partition;
            let rules = {
                let metadata = node.meta.metadata();
                let found = metadata.partition(partition);
                found.and_then(|found| rules_of(&metadata, found.topic, &node.config.compaction))
            };
            let Some(rules) = rules else { continue };
            let rests =
                resting.get(&partition).is_some_and(|rest| rest.lasts(&log, &rules, now_ms));
            if rests || !log.is_dirty(&rules, now_ms) {
                continue;
            }
            match compact(&log, &rules, now_ms).await {
                Some(rest) => resting.insert(partition, rest),
                None => resting.remove(&partition),
            };
        }
    }
}

/// Why a partition is left alone for now.
struct Rest {
    until_ms: i64,
    /// Where the log ended when nothing was to be judged.
    end: Option<Offset>,
}

impl Rest {
    /// Where nothing was to be judged nothing is before more is written, unless records must age.
    fn lasts(&self, log: &PartitionLog, rules: &CompactionRules, now_ms: i64) -> bool {
        let is_same = rules.lag_ms_min == 0 && self.end == Some(log.high_watermark());
        now_ms < self.until_ms || is_same
    }
}

/// One pass; a rest if it came to nothing.
async fn compact(log: &Arc<PartitionLog>, rules: &CompactionRules, now_ms: i64) -> Option<Rest> {
    let end = log.high_watermark();
    let rest = |end| Some(Rest { until_ms: now_ms.saturating_add(REST_MS), end });
    let partition = log.ownership().partition;
    match log.compact(rules, now_ms).await {
        Ok(None) => rest(Some(end)),
        Ok(Some(compacted)) => {
            let (end, keys) = (compacted.end, compacted.key_count);
            let (size_bytes, read_size_bytes) = (compacted.size_bytes, compacted.read_size_bytes);
            tracing::info!(?partition, %end, keys, size_bytes, read_size_bytes, "compacted");
            None
        }
        Err(error) => {
            tracing::info!(?partition, %error, "not compacted; tried again later");
            rest(None)
        }
    }
}

/// What a topic asks for; `None` if its logs are not compacted here. Internal topics are, by those
/// who know what their records mean; a mirror is, where it comes from.
fn rules_of(
    metadata: &Metadata,
    topic: TopicId,
    bounds: &CompactionConfig,
) -> Option<CompactionRules> {
    if !crate::meta::is_compacted(metadata, topic)
        || metadata.topic(topic).is_none_or(|topic| topic.internal)
        || crate::mirror::refuses_clients(metadata, topic).is_some()
    {
        return None;
    }
    let number = |name, otherwise| topic_config(metadata, topic, name).unwrap_or(otherwise);
    let dirty_ratio_min = topic_config(metadata, topic, "min.cleanable.dirty.ratio");
    Some(CompactionRules {
        dirty_ratio_min: dirty_ratio_min.unwrap_or(DIRTY_RATIO_MIN_DEFAULT),
        lag_ms_min: number("min.compaction.lag.ms", 0),
        lag_ms_max: number("max.compaction.lag.ms", i64::MAX),
        delete_retention_ms: number("delete.retention.ms", DELETE_RETENTION_MS_DEFAULT),
        limits: PassLimits { keys_size_bytes_max: bounds.memory_bytes, ..PassLimits::default() },
        bytes_per_second: bounds.bytes_per_second,
    })
}

fn topic_config<T: FromStr>(metadata: &Metadata, topic: TopicId, name: &str) -> Option<T> {
    metadata.config(&ConfigResource::Topic(topic), name).and_then(|value| value.parse().ok())
}
