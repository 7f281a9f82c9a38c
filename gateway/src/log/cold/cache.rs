//! Stripes decoded of late: a reader that goes through a stripe batch by batch has it read once, and so
//! have those beside it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use meridian_storage::blob::BlobKey;
use tokio::sync::OnceCell;

use crate::log::lock;
use crate::partition::BatchSlice;

/// Stripes kept, each a few MiB.
const STRIPE_COUNT_MAX: usize = 8;

/// A stripe's batches.
pub(super) type Batches = Arc<Vec<BatchSlice>>;
type Cell = Arc<OnceCell<Batches>>;

/// The newest few stripes read, newest last.
#[derive(Default)]
pub(super) struct StripeCache(Mutex<VecDeque<(BlobKey, Cell)>>);

impl StripeCache {
    /// The place of a stripe: empty if nobody has read it, being filled if someone is.
    pub(super) fn cell(&self, key: BlobKey) -> Cell {
        let mut cells = lock(&self.0);
        let known = cells.iter().position(|(known, _)| *known == key);
        let cell = match known.and_then(|index| cells.remove(index)) {
            Some((_, cell)) => cell,
            None => Cell::default(),
        };
        cells.push_back((key, Arc::clone(&cell)));
        if cells.len() > STRIPE_COUNT_MAX {
            cells.pop_front();
        }
        cell
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::PartitionId;
    use meridian_base::position::{Generation, LogPoint, Step};

    use super::*;

    fn key(step: u64) -> BlobKey {
        let point = LogPoint::new(Generation::FIRST, Step::new(step));
        BlobKey { partition: PartitionId::new(1).cold(), point }
    }

    #[test]
    fn keeps_those_that_were_used_last() {
        let cache = StripeCache::default();
        let first = cache.cell(key(0));
        for step in 1..STRIPE_COUNT_MAX as u64 {
            cache.cell(key(step));
        }
        assert!(Arc::ptr_eq(&first, &cache.cell(key(0))));
        let second = cache.cell(key(1));
        for step in 100..99 + STRIPE_COUNT_MAX as u64 {
            cache.cell(key(step));
        }
        assert!(Arc::ptr_eq(&second, &cache.cell(key(1))), "it was used after the first");
        assert!(!Arc::ptr_eq(&first, &cache.cell(key(0))));
    }
}
