//! Topics whose mirrors are bound to be near (`mirror.max.lag.ms`): what mirrors tell, and how it stands.
//!
//! ```text
//! mirror's worker --5 times a second--> "mirror.positions" -> the partition's leader -> Contract
//!                                                              produce asks it <-------+
//! ```

use std::time::Duration;

use meridian_admin_api::Besides;
use meridian_admin_api::mirror::{ContractReport, Heard, MirrorPosition, Position, Positions};
use meridian_base::id::{ClusterId, PartitionId};
use meridian_base::position::Offset;
use meridian_consensus::state::Topic;

use super::Mirrors;
use super::lease;
use super::switchover::millis;
use crate::context::NodeContext;
use crate::kafka::lag_limit;

/// Takes what a mirror tells. What this node does not lead, its leader hears of as soon as the mirror
/// follows that one.
pub(super) fn take(mirrors: &Mirrors, told: Positions) -> Heard {
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
                MirrorPosition {
                    cluster,
                    end_offset,
                    heard_ms_ago: millis(ago),
                    besides: Besides::new(),
                }
            };
            reports.push(ContractReport {
                topic: topic.clone(),
                partition: index,
                max_lag_ms: millis(limit),
                lag_ms: millis(view.lag),
                verdict: view.verdict.into(),
                mirrors: view.mirrors.into_iter().map(mirror).collect(),
                besides: Besides::new(),
            });
        }
    }
    reports
}
