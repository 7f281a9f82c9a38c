//! The blobs of one generation, in step order.
//!
//! In chunks, so that one that comes late costs no more among millions than among few: files are read
//! back in the order in which they were written, and what was moved since lies behind what came after it.

use std::collections::VecDeque;

use meridian_base::position::{Offset, Step};

use super::partition::Entry;
use crate::blob::BlobKind;

/// Entries of a chunk, at most: one is found in a moment, and what follows it in its chunk is moved for it.
const CHUNK_LEN_MAX: usize = 512;

/// Entries in step order, each step once.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// None of them is empty.
    chunks: VecDeque<Vec<Entry>>,
}

impl Entries {
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(super) fn get(&self, step: Step) -> Option<&Entry> {
        let chunk = self.chunks.get(self.chunk_of(step))?;
        let index = chunk.binary_search_by_key(&step, |entry| entry.step).ok()?;
        chunk.get(index)
    }

    pub(super) fn get_mut(&mut self, step: Step) -> Option<&mut Entry> {
        let at = self.chunk_of(step);
        let chunk = self.chunks.get_mut(at)?;
        let index = chunk.binary_search_by_key(&step, |entry| entry.step).ok()?;
        chunk.get_mut(index)
    }

    /// Takes in an entry; gives the one of its step that it replaces.
    pub(super) fn insert(&mut self, entry: Entry) -> Option<Entry> {
        // What lies between two chunks goes to the end of the one before.
        let after = self.chunk_of(entry.step);
        let is_inside = self.chunks.get(after).is_some_and(|chunk| first_step(chunk) <= entry.step);
        let at = if is_inside { after } else { after.saturating_sub(1) };
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push_back(vec![entry]);
            return None;
        };
        let index = match chunk.binary_search_by_key(&entry.step, |entry| entry.step) {
            Ok(index) => return Some(std::mem::replace(&mut chunk[index], entry)),
            Err(index) => index,
        };
        if chunk.len() < CHUNK_LEN_MAX {
            chunk.insert(index, entry);
        } else if index == chunk.len() {
            // Entries mostly come in order, at the end or in the midst: full chunks stay full.
            self.chunks.insert(at + 1, vec![entry]);
        } else {
            let upper = chunk.split_off(index.max(CHUNK_LEN_MAX / 2));
            chunk.insert(index, entry);
            self.chunks.insert(at + 1, upper);
        }
        None
    }

    pub(super) fn remove(&mut self, step: Step) -> Option<Entry> {
        let at = self.chunk_of(step);
        let chunk = self.chunks.get_mut(at)?;
        let index = chunk.binary_search_by_key(&step, |entry| entry.step).ok()?;
        let removed = chunk.remove(index);
        if chunk.len() < chunk.capacity() / 4 {
            chunk.shrink_to(2 * chunk.len());
        }
        if chunk.is_empty() {
            self.chunks.remove(at);
        }
        Some(removed)
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.chunks.iter().flatten()
    }

    /// Those at `step` and above.
    pub(super) fn from(&self, step: Step) -> impl Iterator<Item = &Entry> {
        let at = self.chunk_of(step);
        let passed =
            self.chunks.get(at).map_or(0, |chunk| chunk.partition_point(|entry| entry.step < step));
        self.chunks.range(at..).flatten().skip(passed)
    }

    /// The last blob of records that begins at `offset` or below.
    pub(super) fn records_at(&self, offset: Offset) -> Option<&Entry> {
        self.begun_at(offset).find(|entry| is_records(entry))
    }

    /// The last blob of records that lies wholly below `offset`.
    pub(super) fn records_below(&self, offset: Offset) -> Option<&Entry> {
        self.begun_at(offset).find(|entry| is_records(entry) && entry.next_offset() <= offset)
    }

    /// From the last one back, those before the first blob of records that lies wholly above `offset`. Offsets of
    /// other blobs need not rise with the steps, so each of those goes with the records before it.
    fn begun_at(&self, offset: Offset) -> impl Iterator<Item = &Entry> {
        let (mut low, mut high) = (0, self.chunks.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let mut chunks = self.chunks.range(low..=middle).rev();
            let first = chunks.find_map(|chunk| chunk.iter().find(|entry| is_records(entry)));
            if first.is_some_and(|entry| entry.base_offset() > offset) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let chunks = self.chunks.range(..low).rev();
        chunks.flat_map(move |chunk| chunk[..first_above(chunk, offset)].iter().rev())
    }

    /// Takes out those up to `last` that `goes` names.
    pub(super) fn take_through(&mut self, last: Step, goes: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let mut taken = Vec::new();
        let passed = self.chunks.partition_point(|chunk| first_step(chunk) <= last);
        for chunk in self.chunks.range_mut(..passed) {
            chunk.retain(|entry| {
                let goes = entry.step <= last && goes(entry);
                if goes {
                    taken.push(*entry);
                }
                !goes
            });
        }
        if !taken.is_empty() {
            self.join_chunks(passed);
        }
        taken
    }

    /// Joins what is left of the first chunks, so that few entries do not take the room of many.
    fn join_chunks(&mut self, count: usize) {
        let mut joined: Vec<Vec<Entry>> = Vec::new();
        for mut chunk in self.chunks.drain(..count) {
            match joined.last_mut() {
                Some(last) if last.len() + chunk.len() <= CHUNK_LEN_MAX => last.append(&mut chunk),
                _ => joined.push(chunk),
            }
        }
        for mut chunk in joined.into_iter().rev().filter(|chunk| !chunk.is_empty()) {
            chunk.shrink_to_fit();
            self.chunks.push_front(chunk);
        }
    }

    /// The chunk that `step` would be in: the first that ends at it or above.
    fn chunk_of(&self, step: Step) -> usize {
        self.chunks.partition_point(|chunk| chunk.last().is_some_and(|last| last.step < step))
    }
}

impl IntoIterator for Entries {
    type Item = Entry;
    type IntoIter = std::iter::Flatten<std::collections::vec_deque::IntoIter<Vec<Entry>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.chunks.into_iter().flatten()
    }
}

fn first_step(chunk: &[Entry]) -> Step {
    chunk.first().map_or(Step::new(0), |entry| entry.step)
}

/// Index of the first entry whose records, or the records before it, begin above `offset`.
fn first_above(chunk: &[Entry], offset: Offset) -> usize {
    let (mut low, mut high) = (0, chunk.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let records = chunk[low..=middle].iter().rfind(|entry| is_records(entry));
        if records.is_some_and(|entry| entry.base_offset() > offset) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

fn is_records(entry: &Entry) -> bool {
    entry.kind == BlobKind::Records
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::blob::BlobHeader;
    use crate::journal::{FileSequence, Location};

    fn entry(kind: BlobKind, step: u64, base_offset: i64, offset_bytes: u32) -> Entry {
        let header = BlobHeader {
            kind,
            base_offset: Offset::new(base_offset),
            record_count: 10,
            max_timestamp_ms: -1,
            payload_size_bytes: 1,
            payload_crc: 0,
            part: None,
        };
        Entry::new(Step::new(step), &header, Location { file: FileSequence::FIRST, offset_bytes })
    }

    /// Records of 10 each at every third step; what lies between them has an offset of its own.
    fn entry_at(step: u64, offset_bytes: u32) -> Entry {
        match step % 3 {
            0 => entry(BlobKind::Records, step, 10 * step as i64, offset_bytes),
            _ => entry(BlobKind::Checkpoint, step, (step * 7 % 50) as i64, offset_bytes),
        }
    }

    #[derive(Clone, Debug)]
    enum Change {
        Insert(u64),
        InsertRun(u64, u64),
        Remove(u64),
        Take(u64, u64),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let step = || 0..6_000_u64;
        let change = prop_oneof![
            4 => step().prop_map(Change::Insert),
            4 => (step(), 1..1_500_u64).prop_map(|(from, count)| Change::InsertRun(from, count)),
            4 => step().prop_map(Change::Remove),
            1 => (step(), 2..5_u64).prop_map(|(last, every)| Change::Take(last, every)),
        ];
        prop::collection::vec(change, 1..40)
    }

    fn check(entries: &Entries, model: &BTreeMap<u64, Entry>) {
        assert!(entries.iter().eq(model.values()));
        assert!(entries.iter().rev().eq(model.values().rev()));
        assert_eq!(entries.is_empty(), model.is_empty());
        for chunk in &entries.chunks {
            assert!((1..=CHUNK_LEN_MAX).contains(&chunk.len()));
        }
        for step in (0..6_000).step_by(97) {
            assert_eq!(entries.get(Step::new(step)), model.get(&step));
            let above = model.range(step..).map(|(_, entry)| entry);
            assert!(entries.from(Step::new(step)).eq(above));
            let offset = Offset::new(10 * step as i64 + 4);
            let mut records = model.values().rev().filter(|entry| is_records(entry));
            let at = records.clone().find(|entry| entry.base_offset() <= offset);
            assert_eq!(entries.records_at(offset), at);
            let below = records.find(|entry| entry.next_offset() <= offset);
            assert_eq!(entries.records_below(offset), below);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn they_are_what_a_map_is(changes in changes()) {
            let (mut entries, mut model) = (Entries::default(), BTreeMap::new());
            for (change, place) in changes.into_iter().zip(1..) {
                let mut insert = |step| {
                    let entry = entry_at(step, place);
                    assert_eq!(entries.insert(entry), model.insert(step, entry));
                };
                match change {
                    Change::Insert(step) => insert(step),
                    Change::InsertRun(from, count) => (from..from + count).for_each(insert),
                    Change::Remove(step) => {
                        assert_eq!(entries.remove(Step::new(step)), model.remove(&step));
                    }
                    Change::Take(last, every) => {
                        let goes = |entry: &Entry| !entry.step.get().is_multiple_of(every);
                        let taken = entries.take_through(Step::new(last), goes);
                        let gone = model.extract_if(..=last, |_, entry| goes(entry));
                        assert!(taken.into_iter().eq(gone.map(|(_, entry)| entry)));
                    }
                }
            }
            check(&entries, &model);
        }
    }

    /// Counts the entries that are moved to make room, in place of the time that takes.
    #[test]
    fn what_comes_late_is_taken_in_at_the_cost_of_a_chunk() {
        let mut entries = Entries::default();
        // Every other step, then those between them: each late one has as many before as behind it at last.
        let steps = (0..200_000).step_by(2).chain((1..200_000).step_by(2));
        steps.for_each(|step| assert_eq!(entries.insert(entry_at(step, 1)), None));
        assert_eq!(entries.iter().count(), 200_000);
        assert!(entries.chunks.iter().all(|chunk| chunk.capacity() <= 2 * CHUNK_LEN_MAX));
        assert!(entries.chunks.len() <= 2 * 200_000 / CHUNK_LEN_MAX + 1);
    }

    #[test]
    fn runs_in_the_midst_fill_their_chunks() {
        let mut entries = Entries::default();
        for step in (0..10_000).chain(20_000..30_000).chain(10_000..20_000) {
            entries.insert(entry_at(step, 1));
        }
        assert!(entries.chunks.len() <= 30_000 / CHUNK_LEN_MAX + 3, "{}", entries.chunks.len());
    }
}
