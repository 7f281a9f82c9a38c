//! The last offset of every key in a stretch of the log, in bounded memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use meridian_base::position::Offset;
use meridian_protocol::records::{Batch, Record};
use ring::digest::{SHA256, digest};

/// What an entry takes: digest, offset, and the table's slack.
const ENTRY_SIZE_BYTES: usize = 48;

/// The map holds as many keys as memory allows: the round ends before this record's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the map of keys is full; the rest of the log is left to the next round")]
pub struct MapFull;

/// Keys by digest, each with its last offset.
///
/// A digest is cut from SHA-256: two keys of one digest would be taken for one, and a client could
/// choose keys to that end if the hash were weak.
#[derive(Debug)]
pub struct KeyOffsets {
    last: HashMap<[u8; 16], Offset, Spread>,
    key_count_max: usize,
    end: Offset,
}

impl KeyOffsets {
    /// An empty map of the dirty part that begins at `start`; it takes at most about this memory.
    pub fn new(start: Offset, size_bytes_max: usize) -> Self {
        let key_count_max = (size_bytes_max / ENTRY_SIZE_BYTES).max(1);
        Self { last: HashMap::with_hasher(Spread), key_count_max, end: start }
    }

    /// Notes the keys of the next batch; all of them or none.
    ///
    /// Those of a batch that does not count are left out: a record that was aborted supersedes
    /// nothing. So are those of markers, and of a batch that can't be read.
    pub fn note(
        &mut self,
        batch: &Batch,
        counts: bool,
        batch_size_bytes_max: usize,
    ) -> Result<(), MapFull> {
        let header = batch.header();
        let counts = counts && !header.attributes.is_control();
        let records = counts.then(|| batch.records(batch_size_bytes_max)).and_then(Result::ok);
        let records: Option<Vec<Record>> = records.and_then(|it| it.collect::<Result<_, _>>().ok());
        let keyed = records
            .iter()
            .flatten()
            .filter_map(|record| Some((Offset::new(record.offset), record.key.as_deref()?)));
        self.note_keys(keyed, Offset::new(header.last_offset()))
    }

    fn note_keys<'a>(
        &mut self,
        keys: impl Iterator<Item = (Offset, &'a [u8])> + Clone,
        last_offset: Offset,
    ) -> Result<(), MapFull> {
        // Counted with repeats: at worst a round ends a batch early.
        if self.last.len() + keys.clone().count() > self.key_count_max && !self.last.is_empty() {
            return Err(MapFull);
        }
        for (offset, key) in keys {
            let last = self.last.entry(digest_of(key)).or_insert(offset);
            *last = offset.max(*last);
        }
        self.end = self.end.max(last_offset.advance(1));
        Ok(())
    }

    /// Offset after the last batch noted: what lies there or above is not judged in this round.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Number of keys.
    pub fn count(&self) -> usize {
        self.last.len()
    }

    /// The last offset noted of this key.
    pub fn last(&self, key: &[u8]) -> Option<Offset> {
        self.last.get(&digest_of(key)).copied()
    }

    /// Whether a later record of this key was noted.
    pub fn is_superseded(&self, key: &[u8], offset: Offset) -> bool {
        self.last(key).is_some_and(|last| offset < last)
    }
}

fn digest_of(key: &[u8]) -> [u8; 16] {
    let whole = digest(&SHA256, key);
    let mut cut = [0; 16];
    cut.copy_from_slice(&whole.as_ref()[..16]);
    cut
}

/// Digests are spread evenly as they are: eight of their bytes serve the table.
#[derive(Clone, Copy, Debug)]
struct Spread;

impl BuildHasher for Spread {
    type Hasher = FirstBytes;

    fn build_hasher(&self) -> FirstBytes {
        FirstBytes(0)
    }
}

#[derive(Debug)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: i64) -> Offset {
        Offset::new(offset)
    }

    #[test]
    fn the_last_offset_of_a_key_counts() {
        let mut map = KeyOffsets::new(at(5), 1 << 20);
        let batch: [(Offset, &[u8]); 3] = [(at(5), b"a"), (at(6), b"b"), (at(7), b"a")];
        map.note_keys(batch.into_iter(), at(7)).unwrap();
        assert!(map.is_superseded(b"a", at(5)));
        assert!(!map.is_superseded(b"a", at(7)));
        assert!(!map.is_superseded(b"b", at(6)));
        assert!(!map.is_superseded(b"c", at(0)));
        assert!(map.is_superseded(b"b", at(2)), "the clean part, below the dirty one");
        assert_eq!((map.end(), map.count()), (at(8), 2));
    }

    #[test]
    fn a_full_map_takes_no_part_of_a_batch() {
        let mut map = KeyOffsets::new(at(0), 2 * ENTRY_SIZE_BYTES);
        let first: [(Offset, &[u8]); 2] = [(at(0), b"a"), (at(1), b"b")];
        let second: [(Offset, &[u8]); 2] = [(at(2), b"a"), (at(3), b"c")];
        map.note_keys(first.into_iter(), at(1)).unwrap();
        assert_eq!(map.note_keys(second.into_iter(), at(3)), Err(MapFull));
        assert!(!map.is_superseded(b"a", at(0)));
        assert_eq!(map.end(), at(2));
    }

    #[test]
    fn one_batch_always_fits_so_that_rounds_come_to_an_end() {
        let mut map = KeyOffsets::new(at(0), 1);
        let batch: [(Offset, &[u8]); 2] = [(at(0), b"a"), (at(1), b"b")];
        map.note_keys(batch.into_iter(), at(1)).unwrap();
        assert_eq!(map.end(), at(2));
    }
}
