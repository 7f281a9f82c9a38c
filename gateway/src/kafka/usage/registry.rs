//! Counters by a name that clients choose, for a bounded number of names: the others are counted together.
//!
//! Every name has counters of its own while there is room, so that a busy one can be shown later. Few are *shown*:
//! the first ones, and whichever is twice as busy between two looks as the idlest shown one takes its place. What is
//! not shown adds up to `other`, so that the sum over all labels is what was counted.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::kafka::lock;

/// The label of all that are not shown. A name that is this one is counted with them.
pub(in crate::kafka) const OTHER: &str = "other";
/// Names that have counters of their own; twice as many as are shown, if that is more.
const NAME_COUNT_MAX: usize = 4096;
/// Once nothing gave way to a new name, so many are counted with the others before it is tried again.
const MISS_COUNT: usize = 1024;
/// A name must be so many times as busy as the idlest shown one to take its place.
const BUSIER: u64 = 2;

/// Counters of one name.
#[derive(Debug)]
pub(in crate::kafka) struct Counters<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Counters<N> {
    /// Adds to one of them.
    pub(in crate::kafka) fn add(&self, index: usize, count: u64) {
        self.0[index].fetch_add(count, Ordering::Relaxed);
    }

    fn values(&self) -> [u64; N] {
        self.0.each_ref().map(|counter| counter.load(Ordering::Relaxed))
    }
}

/// What was counted under one name; `None` is all that are not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kafka) struct Counted<K, const N: usize> {
    pub(in crate::kafka) name: Option<K>,
    pub(in crate::kafka) values: [u64; N],
}

/// Counters by name.
#[derive(Debug)]
pub(super) struct Registry<K, const N: usize> {
    /// Names that are shown; with 0 nothing is counted by name.
    shown_count_max: usize,
    inner: Mutex<Inner<K, N>>,
}

#[derive(Debug)]
struct Inner<K, const N: usize> {
    entries: HashMap<K, Entry<N>>,
    name_count_max: usize,
    shown_count: usize,
    /// Counted under names that had no room.
    shared: Arc<Counters<N>>,
    /// Counted under names that are gone, or before they were shown.
    folded: [u64; N],
    /// New names that are still counted with the others.
    misses_left: usize,
}

#[derive(Debug)]
struct Entry<const N: usize> {
    counters: Arc<Counters<N>>,
    is_shown: bool,
    /// What is part of [`Inner::folded`].
    folded: [u64; N],
    /// All counters together, at the last look.
    seen: u64,
}

impl<const N: usize> Entry<N> {
    /// What `folded` of the registry lacks of it.
    fn own(&self) -> [u64; N] {
        minus(self.counters.values(), self.folded)
    }
}

impl<K: Clone + Eq + Hash + Ord, const N: usize> Registry<K, N> {
    pub(super) fn new(shown_count_max: usize) -> Self {
        let inner = Inner {
            entries: HashMap::new(),
            name_count_max: NAME_COUNT_MAX.max(2 * shown_count_max),
            shown_count: 0,
            shared: Arc::default(),
            folded: [0; N],
            misses_left: 0,
        };
        Self { shown_count_max, inner: Mutex::new(inner) }
    }

    /// Whether anything is counted by name.
    pub(super) fn is_on(&self) -> bool {
        self.shown_count_max > 0
    }

    /// The counters of what has no name of its own.
    pub(super) fn shared(&self) -> Arc<Counters<N>> {
        Arc::clone(&lock(&self.inner).shared)
    }

    /// The counters of a name. Keep them, and do not ask for each count.
    pub(super) fn of(&self, name: K) -> Arc<Counters<N>> {
        let mut inner = lock(&self.inner);
        if let Some(entry) = inner.entries.get(&name) {
            return Arc::clone(&entry.counters);
        }
        if !self.is_on() || !inner.make_room() {
            return Arc::clone(&inner.shared);
        }
        let counters = Arc::<Counters<N>>::default();
        let is_shown = inner.shown_count < self.shown_count_max;
        inner.shown_count += usize::from(is_shown);
        let entry = Entry { counters: Arc::clone(&counters), is_shown, folded: [0; N], seen: 0 };
        inner.entries.insert(name, entry);
        counters
    }

    /// What was counted under each name that is shown, in their order, and under all others; nothing if nothing is
    /// counted by name.
    pub(super) fn look(&self) -> Vec<Counted<K, N>> {
        if !self.is_on() {
            return Vec::new();
        }
        let mut inner = lock(&self.inner);
        inner.show_busiest(self.shown_count_max);
        let mut other = plus(inner.folded, inner.shared.values());
        let mut shown = Vec::with_capacity(inner.shown_count + 1);
        for (name, entry) in &inner.entries {
            match entry.is_shown {
                true => shown.push(Counted { name: Some(name.clone()), values: entry.own() }),
                false => other = plus(other, entry.own()),
            }
        }
        shown.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        shown.push(Counted { name: None, values: other });
        shown
    }

    /// Forgets the names that are no more; what was counted under them goes to the others.
    pub(super) fn retain(&self, mut stays: impl FnMut(&K) -> bool) {
        let mut inner = lock(&self.inner);
        let gone: Vec<K> = inner.entries.keys().filter(|name| !stays(name)).cloned().collect();
        for name in gone {
            inner.forget(&name);
        }
    }
}

impl<K: Clone + Eq + Hash, const N: usize> Inner<K, N> {
    /// Whether there is room for one more name: of those that nobody uses any more some give way.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < self.name_count_max {
            return true;
        }
        if self.misses_left > 0 {
            self.misses_left -= 1;
            return false;
        }
        let unused = |shown: bool| {
            move |(name, entry): (&K, &Entry<N>)| {
                let is_unused = entry.is_shown == shown && Arc::strong_count(&entry.counters) == 1;
                is_unused.then(|| name.clone())
            }
        };
        let mut gone: Vec<K> = self.entries.iter().filter_map(unused(false)).collect();
        if gone.is_empty() {
            gone = self.entries.iter().filter_map(unused(true)).collect();
        }
        for name in gone {
            self.forget(&name);
        }
        let has_room = self.entries.len() < self.name_count_max;
        self.misses_left = if has_room { 0 } else { MISS_COUNT };
        has_room
    }

    /// Takes a name out. Counters that somebody still has are counted no more.
    fn forget(&mut self, name: &K) {
        let Some(entry) = self.entries.remove(name) else { return };
        self.shown_count -= usize::from(entry.is_shown);
        self.folded = plus(self.folded, entry.own());
    }

    /// Shows those that have been the busiest since the last look.
    fn show_busiest(&mut self, shown_count_max: usize) {
        let (mut shown, mut hidden) = (Vec::new(), Vec::new());
        for (name, entry) in &mut self.entries {
            let all = entry.counters.values().into_iter().fold(0, u64::saturating_add);
            let busy = all - entry.seen;
            entry.seen = all;
            match entry.is_shown {
                true => shown.push((busy, name.clone())),
                false if busy > 0 => hidden.push((busy, name.clone())),
                false => {}
            }
        }
        shown.sort_unstable_by_key(|(busy, _)| *busy);
        hidden.sort_unstable_by_key(|(busy, _)| std::cmp::Reverse(*busy));
        let mut idlest = shown.into_iter();
        for (busy, name) in hidden {
            if self.shown_count < shown_count_max {
                self.shown_count += 1;
            } else {
                let Some((least, loser)) = idlest.next() else { return };
                if busy < least.saturating_mul(BUSIER) {
                    return;
                }
                if let Some(entry) = self.entries.get_mut(&loser) {
                    entry.is_shown = false;
                }
            }
            if let Some(entry) = self.entries.get_mut(&name) {
                let before = entry.own();
                (entry.is_shown, entry.folded) = (true, plus(entry.folded, before));
                self.folded = plus(self.folded, before);
            }
        }
    }
}

fn plus<const N: usize>(a: [u64; N], b: [u64; N]) -> [u64; N] {
    std::array::from_fn(|index| a[index].saturating_add(b[index]))
}

fn minus<const N: usize>(a: [u64; N], b: [u64; N]) -> [u64; N] {
    std::array::from_fn(|index| a[index].saturating_sub(b[index]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(counted: &[Counted<u32, 2>]) -> [u64; 2] {
        counted.iter().fold([0; 2], |sum, it| plus(sum, it.values))
    }

    fn shown(counted: &[Counted<u32, 2>]) -> Vec<u32> {
        counted.iter().filter_map(|it| it.name).collect()
    }

    #[test]
    fn few_names_are_shown_and_the_others_are_counted_together() {
        let registry = Registry::<u32, 2>::new(3);
        for name in 0..10 {
            registry.of(name).add(0, 1);
        }
        let counted = registry.look();
        assert_eq!(counted.len(), 4);
        assert_eq!(counted.last(), Some(&Counted { name: None, values: [7, 0] }));
        assert_eq!(sum(&counted), [10, 0]);
    }

    #[test]
    fn a_busy_name_takes_the_place_of_an_idle_one_from_then_on() {
        let registry = Registry::<u32, 2>::new(2);
        let [a, b, c] = [1, 2, 3].map(|name| registry.of(name));
        a.add(0, 100);
        b.add(0, 10);
        c.add(0, 15);
        assert_eq!(shown(&registry.look()), [1, 2], "15 is not twice 10");
        a.add(0, 100);
        b.add(0, 10);
        c.add(0, 20);
        let counted = registry.look();
        assert_eq!(shown(&counted), [1, 3]);
        assert_eq!(counted[1].values, [0, 0], "what is in `other` already is not counted again");
        assert_eq!(sum(&counted), [255, 0]);
        c.add(1, 4);
        let counted = registry.look();
        assert_eq!(counted[1].values, [0, 4]);
        assert_eq!(sum(&counted), [255, 4]);
    }

    #[test]
    fn any_number_of_names_takes_bounded_memory_and_none_is_lost() {
        let registry = Registry::<u32, 2>::new(500);
        let held: Vec<_> = (0..NAME_COUNT_MAX as u32).map(|name| registry.of(name)).collect();
        for name in 0..100_000 {
            registry.of(1_000_000 + name).add(1, 1);
        }
        held[NAME_COUNT_MAX - 1].add(1, 7);
        assert_eq!(lock(&registry.inner).entries.len(), NAME_COUNT_MAX);
        drop(held);
        for name in 0..100_000 {
            registry.of(name).add(0, 1);
        }
        let counted = registry.look();
        assert!(lock(&registry.inner).entries.len() <= NAME_COUNT_MAX);
        assert_eq!(counted.len(), 501);
        assert_eq!(sum(&counted), [100_000, 100_007]);
    }

    #[test]
    fn nothing_is_counted_by_name_if_that_is_switched_off() {
        let registry = Registry::<u32, 2>::new(0);
        registry.of(1).add(0, 1);
        assert_eq!(registry.look(), []);
        assert!(lock(&registry.inner).entries.is_empty());
    }

    #[test]
    fn a_name_that_is_no_more_is_counted_with_the_others() {
        let registry = Registry::<u32, 2>::new(5);
        registry.of(1).add(0, 1);
        registry.of(2).add(0, 2);
        registry.retain(|name| *name == 2);
        let counted = registry.look();
        assert_eq!((shown(&counted), sum(&counted)), (vec![2], [3, 0]));
    }

    proptest! {
        /// Whatever happens, the sum over all labels is what was counted.
        #[test]
        fn the_sum_over_labels_is_the_total(
            steps in prop::collection::vec((0u32..12, 0u64..9, 0u8..5), 0..80)
        ) {
            let registry = Registry::<u32, 2>::new(3);
            let mut total = [0, 0];
            for (name, count, step) in steps {
                match step {
                    0 => registry.retain(|it| it % 4 != name % 4),
                    1 => prop_assert_eq!(sum(&registry.look()), total),
                    step => {
                        let index = usize::from(step % 2);
                        registry.of(name).add(index, count);
                        total[index] += count;
                    }
                }
                prop_assert!(shown(&registry.look()).len() <= 3);
            }
            prop_assert_eq!(sum(&registry.look()), total);
        }
    }
}
