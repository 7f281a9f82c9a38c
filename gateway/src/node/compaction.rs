//! Compacts the partitions led here whose topics ask for it: one pass of a node at a time.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use meridian_base::id::{PartitionId, TopicId};
use meridian_consensus::state::Metadata;

use super::Node;
use crate::background::{Backoff, Chore};
use crate::cleaner::PassLimits;
use crate::config::CompactionConfig;
use crate::log::{CompactionRules, PartitionLog, Rounds};

/// How often partitions that have changed are looked at.
const COMPACT_EVERY: Duration = Duration::from_secs(3);
/// A partition in which nothing was to be judged, or whose pass was given up, is left alone for this long at least
/// (Kafka's `log.cleaner.backoff.ms`).
const REST: Duration = Duration::from_secs(15);
/// One whose passes are given up again and again is for no longer than this.
const REFUSED_REST_MAX: Duration = Duration::from_secs(600);
/// Kafka's defaults.
const DIRTY_RATIO_MIN_DEFAULT: f64 = 0.5;
const DELETE_RETENTION_MS_DEFAULT: i64 = 24 * 3600 * 1000;

/// What was compacted since the node began.
#[derive(Debug, Default)]
pub(crate) struct CompactionCounters {
    passes: AtomicU64,
    failed_passes: AtomicU64,
    read_bytes: AtomicU64,
    kept_bytes: AtomicU64,
    dirty_bytes: AtomicU64,
}

/// The values of [`CompactionCounters`] at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactionCounts {
    /// Passes that were brought to their end.
    pub(crate) passes: u64,
    /// Passes that were given up.
    pub(crate) failed_passes: u64,
    /// Bytes that passes read.
    pub(crate) read_bytes: u64,
    /// Bytes that they left.
    pub(crate) kept_bytes: u64,
    /// Bytes that no pass has judged yet, in the compacted partitions led here.
    pub(crate) dirty_bytes: u64,
}

impl CompactionCounters {
    fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }

    /// The values now.
    pub(crate) fn counts(&self) -> CompactionCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CompactionCounts {
            passes: get(&self.passes),
            failed_passes: get(&self.failed_passes),
            read_bytes: get(&self.read_bytes),
            kept_bytes: get(&self.kept_bytes),
            dirty_bytes: get(&self.dirty_bytes),
        }
    }
}

/// Compacts, one partition after another.
pub(super) async fn run_compaction(node: Arc<Node>) {
    let backoff = Backoff::new(REST, REFUSED_REST_MAX);
    let mut rounds = Rounds::new(Chore::Compaction, COMPACT_EVERY, backoff);
    let mut dirty_bytes = HashMap::new();
    let logs = &node.logs;
    loop {
        rounds.begin(logs).await;
        while let Some(log) = rounds.next(logs).await {
            look(&node, &log, &mut rounds, &mut dirty_bytes).await;
        }
        dirty_bytes.retain(|partition, _| logs.owned(*partition).is_some());
        let dirty_bytes = dirty_bytes.values().sum();
        node.compaction.dirty_bytes.store(dirty_bytes, Ordering::Relaxed);
    }
}

/// Looks at one partition, and compacts it if it is worth it.
async fn look(
    node: &Node,
    log: &Arc<PartitionLog>,
    rounds: &mut Rounds,
    dirty_bytes: &mut HashMap<PartitionId, u64>,
) {
    let partition = log.ownership().partition;
    dirty_bytes.remove(&partition);
    let (rules, is_compacted) = {
        let metadata = node.meta.metadata();
        let Some(topic) = metadata.partition(partition).map(|found| found.topic) else { return };
        let is_compacted = crate::meta::is_compacted(&metadata, topic);
        (rules_of(&metadata, topic, &node.config.compaction), is_compacted)
    };
    let logs = &node.logs;
    let (Some(rules), Some(now_ms)) = (rules, node.time.agreed_ms()) else {
        if is_compacted {
            rounds.again_in(logs, partition, REST);
        }
        return;
    };
    if !log.is_serving() {
        return;
    }
    dirty_bytes.insert(partition, log.dirty_size_bytes());
    if !log.is_dirty(&rules, now_ms) {
        if let Some(rest) = log.until_late(&rules, now_ms) {
            rounds.again_in(logs, partition, rest.max(REST));
        }
        return;
    }
    match compact(log, &rules, now_ms, &node.compaction).await {
        Ok(true) => rounds.on_done(logs, partition),
        // Nothing will be to be judged before more is written, unless records must age.
        Ok(false) if rules.lag_ms_min == 0 => {}
        Ok(false) => rounds.again_in(logs, partition, REST),
        Err(NotCompacted) => rounds.on_refused(logs, partition),
    }
}

/// A pass that was given up.
struct NotCompacted;

/// One pass; whether anything was to be judged.
async fn compact(
    log: &Arc<PartitionLog>,
    rules: &CompactionRules,
    now_ms: i64,
    counters: &CompactionCounters,
) -> Result<bool, NotCompacted> {
    let partition = log.ownership().partition;
    match log.compact(rules, now_ms).await {
        Ok(None) => Ok(false),
        Ok(Some(compacted)) => {
            let (end, keys) = (compacted.end, compacted.key_count);
            let (size_bytes, read_size_bytes) = (compacted.size_bytes, compacted.read_size_bytes);
            tracing::info!(?partition, %end, keys, size_bytes, read_size_bytes, "compacted");
            CompactionCounters::add(&counters.passes, 1);
            CompactionCounters::add(&counters.read_bytes, read_size_bytes);
            CompactionCounters::add(&counters.kept_bytes, size_bytes);
            Ok(true)
        }
        Err(error) => {
            tracing::info!(?partition, %error, "not compacted; tried again later");
            CompactionCounters::add(&counters.failed_passes, 1);
            Err(NotCompacted)
        }
    }
}

/// What a topic asks for; `None` if its logs are not compacted here. Internal topics are, by those
/// who know what their records mean. A mirror is compacted as its source is, on its own: what a pass
/// leaves of a batch has its offsets.
fn rules_of(
    metadata: &Metadata,
    topic: TopicId,
    bounds: &CompactionConfig,
) -> Option<CompactionRules> {
    if !crate::meta::is_compacted(metadata, topic)
        || metadata.topic(topic).is_none_or(|topic| topic.internal)
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
    metadata.topic_config(topic, name).and_then(|value| value.parse().ok())
}

#[cfg(test)]
mod tests {
    use meridian_consensus::command::{Command, ConfigChange, ConfigResource};
    use meridian_mirror::rows::Stage;

    use super::*;
    use crate::kafka::testing::FakeBroker;
    use crate::mirror::testing::{create, mirror, put_mirror};

    #[tokio::test]
    async fn a_mirror_of_a_compacted_topic_is_compacted_too() {
        let broker = FakeBroker::three_datacenters();
        let topic = TopicId::new(1);
        create(&broker, topic, "t", 1);
        put_mirror(&broker, topic, &mirror("t", Stage::Mirroring));
        let rules = || rules_of(&broker.state(), topic, &CompactionConfig::default());
        assert!(rules().is_none(), "it deletes by age");
        let value = Some("compact".to_owned());
        let changes = vec![ConfigChange { name: "cleanup.policy".to_owned(), value }];
        broker.decide(Command::SetConfigs { resource: ConfigResource::Topic(topic), changes });
        assert!(rules().is_some());
    }
}
