//! One byte of a record is another, and nothing on the disk tells: all checksums are made good.
//!
//! ```text
//! head     magic 4 | size 4 | crc 4 | ... 16 | crc of the head before 4 | payload size 4 | ... size, crc of each blob ...
//! payloads one blob after another                                        (storage/src/journal/record.rs)
//! ```

use std::fs;
use std::ops::Range;
use std::path::Path;

use crate::failure::Failure;

const MAGIC: u32 = 0x4d4a_4231;
const HEAD_SIZE_BYTES_MIN: usize = 40;
/// Batches begin at multiples of this.
const ALIGNMENT_BYTES: usize = 4096;
const CRC_AT: usize = 8;
/// What the checksum of a head covers begins here.
const CRC_FROM: usize = 12;
const PREVIOUS_CRC_AT: usize = 28;
const PAYLOAD_SIZE_AT: usize = 32;

/// Flips a bit of the first byte of each of these texts, wherever the journals in a folder have them; gives how
/// many it found.
pub(crate) fn flip(folder: &Path, texts: &[Vec<u8>]) -> Result<usize, Failure> {
    let mut flipped_count = 0;
    for entry in fs::read_dir(folder).map_err(Failure::file(folder))? {
        let path = entry.map_err(Failure::file(folder))?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let mut journal = fs::read(&path).map_err(Failure::file(&path))?;
        let count = flip_in(&mut journal, texts);
        if count > 0 {
            fs::write(&path, &journal).map_err(Failure::file(&path))?;
            // Heads that were copied from a full file are read from it again.
            let _there_was_none = fs::remove_file(path.with_extension("idx"));
        }
        flipped_count += count;
    }
    Ok(flipped_count)
}

fn flip_in(journal: &mut [u8], texts: &[Vec<u8>]) -> usize {
    let (mut at, mut count) = (0, 0);
    let mut previous_crc = None;
    while let Some(batch) = Batch::at(journal, at) {
        for blob in batch.blobs(journal) {
            let found: Vec<usize> = texts
                .iter()
                .filter_map(|text| find(&journal[blob.payload.clone()], text))
                .collect();
            for place in &found {
                journal[blob.payload.start + place] ^= 1;
            }
            count += found.len();
            let crc = crc32c::crc32c(&journal[blob.payload]);
            put(journal, blob.crc_at, crc);
        }
        if let Some(previous_crc) = previous_crc {
            put(journal, at + PREVIOUS_CRC_AT, previous_crc);
        }
        let crc = crc32c::crc32c(&journal[at + CRC_FROM..batch.payload.start]);
        put(journal, at + CRC_AT, crc);
        previous_crc = Some(crc);
        at = batch.payload.end.next_multiple_of(ALIGNMENT_BYTES);
    }
    count
}

/// A head and the payloads behind it, in a file.
struct Batch {
    head: Range<usize>,
    payload: Range<usize>,
}

/// A payload, and where its checksum is.
struct Blob {
    payload: Range<usize>,
    crc_at: usize,
}

impl Batch {
    fn at(journal: &[u8], at: usize) -> Option<Self> {
        let is_head = word(journal, at)? == MAGIC;
        let size = word(journal, at + 4)? as usize;
        let payload_size = word(journal, at + PAYLOAD_SIZE_AT)? as usize;
        let (end, payload_end) = (at + size, at + size + payload_size);
        let is_whole = is_head && size >= HEAD_SIZE_BYTES_MIN && payload_end <= journal.len();
        is_whole.then_some(Self { head: at..end, payload: end..payload_end })
    }

    /// In a head the size of each payload stands before its checksum, in the order of the payloads: where both
    /// are right, that is it.
    fn blobs(&self, journal: &[u8]) -> Vec<Blob> {
        let (mut blobs, mut start) = (Vec::new(), self.payload.start);
        for size_at in self.head.start + HEAD_SIZE_BYTES_MIN..self.head.end {
            let (Some(size), Some(crc)) = (word(journal, size_at), word(journal, size_at + 4))
            else {
                break;
            };
            let end = start.saturating_add(size as usize);
            let is_blob = size > 0 && end <= self.payload.end;
            if is_blob && crc32c::crc32c(&journal[start..end]) == crc {
                blobs.push(Blob { payload: start..end, crc_at: size_at + 4 });
                start = end;
            }
        }
        blobs
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

fn put(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of a blob each.
    fn batch(at: usize, previous_crc: u32, payloads: &[&[u8]]) -> Vec<u8> {
        let mut head = vec![0; HEAD_SIZE_BYTES_MIN];
        for payload in payloads {
            head.extend([7; 9]);
            head.extend(u32::try_from(payload.len()).unwrap_or(0).to_be_bytes());
            head.extend(crc32c::crc32c(payload).to_be_bytes());
        }
        let head_size = u32::try_from(head.len()).unwrap_or(0);
        let payload = payloads.concat();
        put(&mut head, 0, MAGIC);
        put(&mut head, 4, head_size);
        put(&mut head, 24, u32::try_from(at).unwrap_or(0));
        put(&mut head, PREVIOUS_CRC_AT, previous_crc);
        put(&mut head, PAYLOAD_SIZE_AT, u32::try_from(payload.len()).unwrap_or(0));
        let crc = crc32c::crc32c(&head[CRC_FROM..]);
        put(&mut head, CRC_AT, crc);
        let mut bytes = [head, payload].concat();
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT_BYTES), 0);
        bytes
    }

    fn journal(payloads: [&[&[u8]]; 3]) -> Vec<u8> {
        let mut journal = Vec::new();
        let mut previous_crc = 0;
        for payloads in payloads {
            let bytes = batch(journal.len(), previous_crc, payloads);
            previous_crc = word(&bytes, CRC_AT).unwrap_or(0);
            journal.extend(bytes);
        }
        journal.resize(journal.len() + 2 * ALIGNMENT_BYTES, 0);
        journal
    }

    #[test]
    fn a_forged_journal_is_one_that_was_written_so() {
        let before: [&[&[u8]]; 3] = [&[b"one"], &[b"two", b"a record", b"three"], &[b"four"]];
        let after: [&[&[u8]]; 3] = [&[b"one"], &[b"two", b"a secord", b"three"], &[b"four"]];
        let mut forged = journal(before);
        assert_eq!(flip_in(&mut forged, &[b"record".to_vec(), b"elsewhere".to_vec()]), 1);
        assert_eq!(forged, journal(after));
    }
}
