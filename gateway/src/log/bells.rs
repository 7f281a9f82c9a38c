//! Readers that wait for more of a partition.

use std::sync::{Arc, Weak};

use tokio::sync::Notify;

/// The bells of those who wait; one that nobody holds any more is forgotten.
#[derive(Debug, Default)]
pub(super) struct Bells(Vec<Weak<Notify>>);

impl Bells {
    /// Adds `bell`, once.
    pub(super) fn add(&mut self, bell: &Arc<Notify>) {
        let same = |known: &Weak<Notify>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(bell));
        if !self.0.iter().any(same) {
            self.0.retain(|known| known.strong_count() > 0);
            self.0.push(Arc::downgrade(bell));
        }
    }

    /// Rings them all.
    pub(super) fn ring(&self) {
        self.0.iter().filter_map(Weak::upgrade).for_each(|bell| bell.notify_one());
    }
}
