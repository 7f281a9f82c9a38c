//! Metrics of what is too large to be sent or put. All are 0 unless a rule about sizes is broken, or data of an earlier
//! version is there.

use std::sync::Arc;

use super::{Family, Snapshot, gauge, one, one_u64, total};
use crate::log::PartitionLog;
use crate::node::Node;

pub(super) const FAMILIES: &[Family] = &[
    total(
        "meridian_oversize_frames_total",
        "Messages to other nodes that were longer than any frame and not sent.",
        |s: &Snapshot| one_u64(s.sizes.frames),
    ),
    gauge(
        "meridian_oversize_checkpoints",
        "Partitions led here whose state no blob holds: their log start does not move.",
        |s: &Snapshot| one(s.sizes.checkpoints),
    ),
];

#[derive(Default)]
pub(super) struct SizeCounts {
    frames: u64,
    checkpoints: usize,
}

impl SizeCounts {
    pub(super) fn take(node: &Node, owned: &[Arc<PartitionLog>]) -> Self {
        let checkpoints = owned.iter().filter(|log| log.has_oversize_checkpoint()).count();
        Self { frames: node.switch.oversize_count(), checkpoints }
    }
}
