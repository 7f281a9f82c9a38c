//! A mirror is an exact prefix: every batch that is committed in it is one that its source has served, byte for
//! byte, at the same offset.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;

use super::{Promise, Verdict, violation};
use crate::broker::RawBatch;

/// What a source has served, and how its mirrors compare.
#[derive(Debug, Default)]
pub(crate) struct Prefix {
    served: BTreeMap<PartitionId, BTreeMap<Offset, (Offset, Bytes)>>,
    overtaken: BTreeSet<PartitionId>,
    batch_count: u64,
}

impl Prefix {
    /// A source serves a batch that it has committed.
    pub(crate) fn served(&mut self, partition: PartitionId, raw: &RawBatch) -> Verdict {
        let batch = (raw.next_offset, raw.bytes.clone());
        let served = self.served.entry(partition).or_default();
        let known = served.entry(raw.base_offset).or_insert_with(|| batch.clone());
        if *known == batch {
            return Ok(());
        }
        let detail = format!("{partition:?}: the source serves {raw:?}, and has served {known:?}");
        violation(Promise::OneValuePerOffset, detail)
    }

    /// A batch is committed in the mirror.
    pub(crate) fn mirrored(&mut self, partition: PartitionId, raw: &RawBatch) -> Verdict {
        let served = self.served.entry(partition).or_default();
        let is_served = served.get(&raw.base_offset).is_some_and(|(next_offset, bytes)| {
            (*next_offset, bytes) == (raw.next_offset, &raw.bytes)
        });
        if !is_served {
            let there = served.range(..raw.next_offset).next_back();
            let detail = format!("{partition:?}: the mirror has {raw:?}, the source {there:?}");
            return violation(Promise::ExactPrefix, detail);
        }
        self.batch_count += 1;
        Ok(())
    }

    /// Home has let go of what a mirror needs next.
    pub(crate) fn overtaken(&mut self, partition: PartitionId) {
        self.overtaken.insert(partition);
    }

    /// Whether it has.
    pub(crate) fn is_overtaken(&self, partition: PartitionId) -> bool {
        self.overtaken.contains(&partition)
    }

    /// How many batches were compared.
    pub(crate) fn batch_count(&self) -> u64 {
        self.batch_count
    }
}
