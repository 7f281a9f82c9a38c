//! Answers of nodes, for tests.

use meridian_admin_api::Besides;
use meridian_admin_api::mirror::{MirrorReport, PartitionReport, PartitionState, Stage};

/// A mirror over link `l`.
pub(super) fn mirror(topic: &str, stage: Stage, partitions: usize) -> MirrorReport {
    MirrorReport {
        topic: topic.to_owned(),
        link: "l".to_owned(),
        source_topic: topic.to_owned(),
        source_topic_id: "1".to_owned(),
        stage,
        is_link_paused: false,
        partitions,
        ignored_configs: Vec::new(),
        besides: Besides::new(),
    }
}

/// A partition that ends at 5, whose source ends at 7.
pub(super) fn partition(topic: &str, partition: u32, state: PartitionState) -> PartitionReport {
    PartitionReport {
        topic: topic.to_owned(),
        partition,
        node: 3,
        state,
        reason: "because".to_owned(),
        advice: Some("do it".to_owned()),
        end_offset: Some(5),
        source_end_offset: Some(7),
        source_seen_ms_ago: None,
        lag_records: 0,
        lag_bytes: 20,
        lag_ms: 30,
        mirrored_bytes: 1,
        source_lag_max_ms: None,
        source_lease: None,
        source_records_per_second: None,
        besides: Besides::new(),
    }
}
