//! Leaves seeds that have not what they should, or do not answer: the link has it all.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_mirror::partition::MirrorPartition;

use super::LinkWorker;

/// How long nothing may come from a seed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where each partition that takes from a seed was when it last got on, and when that was.
#[derive(Default)]
pub(super) struct Stalls(BTreeMap<PartitionId, (Offset, Instant)>);

impl Stalls {
    /// Whether a partition that is so far now has not got on for too long.
    fn is_stuck(&mut self, partition: PartitionId, end: Offset, now: Instant) -> bool {
        let seen = self.0.entry(partition).or_insert((end, now));
        if seen.0 != end {
            *seen = (end, now);
        }
        now.since(seen.1) >= PATIENCE
    }
}

impl LinkWorker {
    /// Has partitions go on over the link whose seed is of no use any more.
    pub(super) fn leave_seeds(&mut self) {
        let now = self.clock.now();
        self.stalls.0.retain(|partition, _| self.partitions.contains_key(partition));
        for (partition, mirrored) in &self.partitions {
            let Some(part) = mirrored.target.seed else { continue };
            let end = mirrored.target.log.high_watermark();
            let is_stuck = self.stalls.is_stuck(*partition, end, now);
            let has_stopped = mirrored.machine.as_ref().is_some_and(MirrorPartition::has_stopped);
            let is_useless = end < part.until && (is_stuck || has_stopped);
            if is_useless && !self.mirrors.is_unseeded(*partition) {
                let state = mirrored.machine.as_ref().map(|machine| machine.status(now).state);
                let reason = state.map_or_else(String::new, |state| state.to_string());
                let (target, until) = (&mirrored.target, part.until);
                tracing::warn!(?target, %end, %until, reason, "the seed is left: the rest comes over the link");
                self.mirrors.leave_seed(*partition);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_left_once_nothing_has_come_from_it_for_long() {
        let mut stalls = Stalls::default();
        let at = |second: u64| Instant::from_micros(second * 1_000_000);
        let mut look =
            |end, second| stalls.is_stuck(PartitionId::new(1), Offset::new(end), at(second));
        assert!(!look(0, 1));
        assert!(!look(0, 30));
        assert!(!look(5, 31), "something came");
        assert!(!look(5, 60));
        assert!(look(5, 61));
    }
}
