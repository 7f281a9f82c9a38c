//! What a compacted partition must still hold: the last value of every key.

use std::collections::BTreeMap;

use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, Offset};

use super::{Checker, Promise, Verdict, violation};
use crate::keyed::key_of;
use crate::value::PlacedBatch;

impl Checker {
    /// The log of a compacted partition, read after everything healed: its batches ascend, each value is
    /// where it always was, and the last of each key that anyone was ever shown is there.
    pub(super) fn final_keyed_log(
        &mut self,
        partition: PartitionId,
        log_start_offset: Offset,
        log: &[PlacedBatch],
    ) -> Verdict {
        let mut end = Offset::ZERO;
        let mut read: BTreeMap<u32, Offset> = BTreeMap::new();
        for placed in log {
            if placed.base_offset < end {
                let detail = format!("{partition:?}: {} follows {end}", placed.base_offset);
                return violation(Promise::OneValuePerOffset, detail);
            }
            end = placed.next_offset();
            self.shown(partition, Generation::new(u32::MAX), *placed)?;
            read.extend(placed.values().map(|(offset, value)| (key_of(value), offset)));
        }
        self.nothing_is_missing(partition, end)?;
        let Some(history) = self.partitions.get(&partition) else { return Ok(()) };
        let mut last = BTreeMap::new();
        for (offset, (value, by)) in history.values.range(log_start_offset..) {
            last.insert(key_of(*value), (*offset, *value, *by));
        }
        for (key, (offset, value, by)) in last {
            if read.get(&key) != Some(&offset) {
                let promise = if history.acknowledged.contains_key(&value) {
                    Promise::AcknowledgedForEver
                } else {
                    Promise::VisibleForEver
                };
                let found = read.get(&key);
                return violation(
                    promise,
                    format!(
                        "{partition:?}: {by} showed {value} at {offset}, the last of key {key}; \
                         the log has {found:?}"
                    ),
                );
            }
        }
        Ok(())
    }
}
