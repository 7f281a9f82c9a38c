//! Topics whose mirrors are bound to be near (`mirror.max.lag.ms`): what mirrors tell, and how it stands.
//!
//! ```text
//! mirror's worker --5 times a second--> "mirror.positions" -> the partition's leader -> Contract
//!                                                              produce asks it <-------+
//! ```

use std::time::Duration;

use meridian_base::id::{ClusterId, PartitionId};
use meridian_base::position::Offset;
use meridian_consensus::state::Topic;
use serde::{Deserialize, Serialize};

use super::Mirrors;
use super::lease::{self, Granted, Told};
use super::switchover::millis;
use super::wire::TopicKey;
use crate::context::NodeContext;
use crate::kafka::lag_limit;

/// Up to where a cluster has partitions of this one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Positions {
    pub(super) cluster: String,
    pub(super) positions: Vec<Position>,
    /// What it grants, if its link has a lease.
    #[serde(default)]
    pub(super) lease: Option<Granted>,
}

/// Up to where one partition is mirrored.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Position {
    pub(super) topic_id: TopicKey,
    pub(super) partition: u32,
    /// Offset after the last durable record.
    pub(super) end_offset: i64,
}

/// How far the mirrors of a partition are.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ContractReport {
    topic: String,
    partition: u32,
    max_lag_ms: u64,
    pub(crate) lag_ms: u64,
    /// `free`, `throttled` or `refused`.
    pub(crate) verdict: &'static str,
    mirrors: Vec<MirrorPosition>,
}

/// What a mirror has told.
#[derive(Clone, Debug, Serialize)]
struct MirrorPosition {
    cluster: String,
    end_offset: i64,
    heard_ms_ago: u64,
}

/// Takes what a mirror tells. What this node does not lead, its leader hears of as soon as the mirror
/// follows that one.
pub(super) fn take(mirrors: &Mirrors, told: Positions) -> Told {
    let node = &mirrors.node;
    let cluster = ClusterId::from_text(told.cluster);
    for Position { topic_id, partition, end_offset } in told.positions {
        let found = {
            let metadata = node.meta.metadata();
            let topic = metadata.topic(topic_id.0);
            topic.and_then(|topic| topic.partitions.get(partition as usize).copied())
        };
        if let Some(log) = found.and_then(|partition| node.logs.led(partition)) {
            log.on_mirrored(cluster.clone(), Offset::new(end_offset));
        }
    }
    told.lease.map(|granted| lease::take(mirrors, &cluster, &granted)).unwrap_or_default()
}

/// How it stands with the partitions that this node leads.
pub(super) fn reports(node: &NodeContext) -> Vec<ContractReport> {
    let bound: Vec<(String, Duration, Vec<PartitionId>)> = {
        let metadata = node.meta.metadata();
        let of = |topic: &Topic| {
            let limit = lag_limit(&metadata, topic.id)?;
            Some((topic.name.clone(), limit, topic.partitions.clone()))
        };
        metadata.topics().filter(|topic| !topic.internal).filter_map(of).collect()
    };
    let mut reports = Vec::new();
    for (topic, limit, partitions) in bound {
        for (index, partition) in (0..).zip(partitions) {
            let Some(log) = node.logs.led(partition) else { continue };
            let view = log.contract_view(limit);
            let mirror = |(cluster, end, ago): (ClusterId, Offset, Duration)| {
                let (cluster, end_offset) = (cluster.to_string(), end.get());
                MirrorPosition { cluster, end_offset, heard_ms_ago: millis(ago) }
            };
            reports.push(ContractReport {
                topic: topic.clone(),
                partition: index,
                max_lag_ms: millis(limit),
                lag_ms: millis(view.lag),
                verdict: view.verdict.name(),
                mirrors: view.mirrors.into_iter().map(mirror).collect(),
            });
        }
    }
    reports
}
