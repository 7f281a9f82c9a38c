//! Memory that all partitions of a node share: what waits to be committed, and the newest records of each, kept for
//! readers at its end. Each partition has bounds of its own; thousands of busy ones need one for all of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::{PartitionLog, lock};

/// Partitions that give up records at a time: whoever comes next goes on.
const SHRINK_COUNT_MAX: usize = 64;

/// Most bytes of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// What clients wrote and no quorum has yet.
    pub pending_size_bytes_max: usize,
    /// The newest records.
    pub tail_size_bytes_max: usize,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self { pending_size_bytes_max: 512 << 20, tail_size_bytes_max: 512 << 20 }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Budget {
    limits: BudgetLimits,
    pending_bytes: AtomicUsize,
    tail_bytes: AtomicUsize,
    /// Partitions that keep records: who has kept some for longest comes first.
    tails: Mutex<VecDeque<Weak<PartitionLog>>>,
}

impl Budget {
    pub(super) fn new(limits: BudgetLimits) -> Arc<Self> {
        let (pending_bytes, tail_bytes, tails) = Default::default();
        Arc::new(Self { limits, pending_bytes, tail_bytes, tails })
    }

    /// Whether a client may write so much more.
    pub(super) fn has_room(&self, size_bytes: usize) -> bool {
        self.pending_bytes() + size_bytes <= self.limits.pending_size_bytes_max
    }

    /// Bytes that no quorum has yet.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the newest records.
    pub(super) fn tail_bytes(&self) -> usize {
        self.tail_bytes.load(Ordering::Relaxed)
    }

    /// A partition keeps records that kept none before.
    pub(super) fn add(&self, log: Weak<PartitionLog>) {
        let mut tails = lock(&self.tails);
        if tails.len() == tails.capacity() {
            tails.retain(|log| log.strong_count() > 0);
        }
        tails.push_back(log);
    }

    /// Has partitions give up records while there are too many. No partition may be locked.
    pub(super) fn shrink(&self) {
        for _ in 0..SHRINK_COUNT_MAX {
            if self.tail_bytes() <= self.limits.tail_size_bytes_max {
                return;
            }
            let Some(oldest) = lock(&self.tails).pop_front() else { return };
            let Some(log) = oldest.upgrade() else { continue };
            if log.shrink_tail() {
                self.add(oldest);
            }
        }
    }
}

/// What one partition has of the budget; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    pending_bytes: usize,
    tail_bytes: usize,
}

impl Share {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, pending_bytes: 0, tail_bytes: 0 }
    }

    /// Says how much it is now; returns whether there are records where there were none.
    pub(super) fn set(&mut self, pending_bytes: usize, tail_bytes: usize) -> bool {
        replace(&self.budget.pending_bytes, &mut self.pending_bytes, pending_bytes);
        let had_none = self.tail_bytes == 0;
        replace(&self.budget.tail_bytes, &mut self.tail_bytes, tail_bytes);
        had_none && tail_bytes > 0
    }
}

fn replace(total: &AtomicUsize, old: &mut usize, new: usize) {
    // Wraps around and back: the sum is that of all shares.
    total.fetch_add(new.wrapping_sub(*old), Ordering::Relaxed);
    *old = new;
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_come_back() {
        let budget =
            Budget::new(BudgetLimits { pending_size_bytes_max: 10, tail_size_bytes_max: 10 });
        let (mut one, mut other) =
            (Share::new(Arc::clone(&budget)), Share::new(Arc::clone(&budget)));
        assert!(one.set(4, 5));
        assert!(!one.set(3, 6), "it had records before");
        assert!(!other.set(6, 0));
        assert_eq!((budget.pending_bytes(), budget.tail_bytes()), (9, 6));
        assert!(budget.has_room(1) && !budget.has_room(2));
        drop(one);
        other.set(1, 1);
        assert_eq!((budget.pending_bytes(), budget.tail_bytes()), (1, 1));
    }
}
