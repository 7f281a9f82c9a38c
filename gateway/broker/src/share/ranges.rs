//! Values of offsets, kept as runs of equal ones.

use std::collections::BTreeMap;

use meridian_base::position::Offset;

/// Offsets from `start` up to `end`, which is not one of them, and their value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run<T> {
    /// The first.
    pub start: Offset,
    /// The one after the last.
    pub end: Offset,
    /// What they have.
    pub value: T,
}

impl<T> Run<T> {
    /// How many offsets.
    pub fn count(&self) -> u64 {
        self.end.get().abs_diff(self.start.get())
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges<T> {
    /// By start: the end and the value. Neighbours differ.
    runs: BTreeMap<Offset, (Offset, T)>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { runs: BTreeMap::new() }
    }
}

impl<T: Clone + PartialEq> Ranges<T> {
    /// Whether no offset has a value.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many runs there are.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// All runs, in order.
    pub fn iter(&self) -> impl Iterator<Item = Run<&T>> {
        self.runs.iter().map(|(start, (end, value))| Run { start: *start, end: *end, value })
    }

    /// The first run.
    pub fn first(&self) -> Option<Run<&T>> {
        self.iter().next()
    }

    /// The offset after the last one that has a value.
    pub fn end(&self) -> Option<Offset> {
        self.runs.last_key_value().map(|(_, (end, _))| *end)
    }

    /// What lies from `start` up to `end`, piece by piece, `None` where no offset has a value.
    pub fn over(&self, start: Offset, end: Offset) -> Vec<Run<Option<T>>> {
        let mut pieces = Vec::new();
        if start >= end {
            return pieces;
        }
        let mut at = start;
        let before = self.runs.range(..=start).next_back();
        let within = self.runs.range(start..end).filter(|(first, _)| **first > start);
        for (first, (last, value)) in before.into_iter().chain(within) {
            let (from, to) = ((*first).max(at), (*last).min(end));
            if from >= to {
                continue;
            }
            if at < from {
                pieces.push(Run { start: at, end: from, value: None });
            }
            pieces.push(Run { start: from, end: to, value: Some(value.clone()) });
            at = to;
        }
        if at < end {
            pieces.push(Run { start: at, end, value: None });
        }
        pieces
    }

    /// Gives a value to the offsets from `start` up to `end`.
    pub fn set(&mut self, start: Offset, end: Offset, value: T) {
        if start >= end {
            return;
        }
        self.remove(start, end);
        let (mut start, mut end) = (start, end);
        if let Some((first, (last, before))) = self.runs.range(..start).next_back()
            && *last == start
            && *before == value
        {
            start = *first;
        }
        if let Some((last, after)) = self.runs.get(&end)
            && *after == value
        {
            let last = *last;
            self.runs.remove(&end);
            end = last;
        }
        self.runs.insert(start, (end, value));
    }

    /// Takes the value of the offsets from `start` up to `end` away.
    pub fn remove(&mut self, start: Offset, end: Offset) {
        if start >= end {
            return;
        }
        self.cut(start);
        self.cut(end);
        // One by one: to split the map and join it again costs as much as the whole map.
        while let Some((first, _)) = self.runs.range(start..end).next() {
            let first = *first;
            self.runs.remove(&first);
        }
    }

    /// Takes the value of all offsets below `start` away.
    pub fn remove_below(&mut self, start: Offset) {
        self.cut(start);
        self.runs = self.runs.split_off(&start);
    }

    /// Has a run begin at `at`, if it lies within one.
    fn cut(&mut self, at: Offset) {
        let Some((_, (end, value))) = self.runs.range_mut(..at).next_back() else { return };
        if *end > at {
            let run = (*end, value.clone());
            *end = at;
            self.runs.insert(at, run);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(offset: usize) -> Offset {
        Offset::new(i64::try_from(offset).expect("a small one"))
    }

    proptest! {
        #[test]
        fn runs_say_what_single_offsets_would(
            steps in prop::collection::vec((0usize..40, 0usize..40, 0u8..4), 0..40),
        ) {
            let mut ranges = Ranges::default();
            let mut naive = [None; 40];
            for (start, end, value) in steps {
                let single = naive.iter_mut().enumerate().filter(|(it, _)| (start..end).contains(it));
                match value {
                    0 => {
                        ranges.remove(at(start), at(end.max(start)));
                        single.for_each(|(_, it)| *it = None);
                    }
                    1 => {
                        ranges.remove_below(at(start));
                        naive[..start].fill(None);
                    }
                    value => {
                        ranges.set(at(start), at(end), value);
                        single.for_each(|(_, it)| *it = Some(value));
                    }
                }
            }
            let mut told = [None; 40];
            for run in ranges.iter() {
                for offset in run.start.get()..run.end.get() {
                    told[usize::try_from(offset).expect("small")] = Some(*run.value);
                }
            }
            prop_assert_eq!(told, naive);
            let runs: Vec<_> = ranges.iter().collect();
            for pair in runs.windows(2) {
                let touches = pair[0].end == pair[1].start && pair[0].value == pair[1].value;
                prop_assert!(pair[0].end <= pair[1].start && !touches, "{pair:?}");
            }
            let pieces = ranges.over(at(5), at(33));
            prop_assert_eq!(pieces.first().map(|it| it.start), Some(at(5)));
            prop_assert_eq!(pieces.last().map(|it| it.end), Some(at(33)));
            for piece in pieces {
                for offset in piece.start.get()..piece.end.get() {
                    let offset = usize::try_from(offset).expect("small");
                    prop_assert_eq!(piece.value, naive[offset]);
                }
            }
        }
    }
}
