//! An append-only journal of frames over segment files, made to tell a torn tail from corruption.
//!
//! One frame is one fsync: everything before the last frame was synced, so only the last frame can
//! be torn. A frame's 32-byte header is aligned to 32 bytes and so lies within one disk sector,
//! which a disk writes whole or not at all; segments are preallocated with zeros. Hence, where
//! reading stops in the last segment:
//!
//! ```text
//! header zero, no valid frame after it                     the end, or a torn first sector
//! header valid, payload wrong, a sector of it still zero   torn
//! anything else                                            corruption: nothing is cut
//! ```
//!
//! Each header holds the previous header's checksum, its segment's number and its own offset, so a
//! stale or misdirected sector with a right checksum is noticed (rules 28, 29). After a torn tail
//! writing goes on in a new segment, whose first frame chains to the last good one: that link is
//! also what proves that an older segment lost nothing.
//!
//! The last frame may be read and yet be nowhere but in memory: its sync failed, or the process ended
//! before it. It is written again before it is believed, for a sync alone would find nothing to do
//! (rule 26).

use std::io::IoSlice;
use std::ops::Range;

use meridian_base::env::{Disk, DiskError};

use super::LogError;

const MAGIC: u32 = u32::from_le_bytes(*b"MRJ1");
const HEADER_SIZE_BYTES: usize = 32;
const SECTOR_SIZE_BYTES: usize = 512;

/// Number of a segment file; rises by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentNumber(u64);

impl SegmentNumber {
    /// The first segment of a new journal.
    pub(super) const FIRST: Self = Self(1);

    fn file(self) -> String {
        format!("raft-{:016x}.log", self.0)
    }

    fn parse(file: &str) -> Option<Self> {
        let digits = file.strip_prefix("raft-")?.strip_suffix(".log")?;
        u64::from_str_radix(digits, 16).ok().map(Self)
    }

    fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

pub(super) struct Journal<D> {
    disk: D,
    segment_size_bytes: u64,
    segment: SegmentNumber,
    /// Where the next frame goes.
    offset: usize,
    /// Header checksum of the last frame.
    chain: u32,
}

struct Header {
    payload_size: usize,
    previous: u32,
    payload_crc: u32,
    own_crc: u32,
}

enum End {
    Clean { offset: usize },
    Torn,
}

impl<D: Disk> Journal<D> {
    /// Starts a new journal. `payload` is its first frame; the disk holds no segment.
    pub(super) fn create(
        disk: D,
        segment_size_bytes: u64,
        payload: &[u8],
    ) -> Result<Self, LogError> {
        let segment = SegmentNumber(0);
        let mut journal = Self { disk, segment_size_bytes, segment, offset: 0, chain: 0 };
        journal.start_segment(SegmentNumber::FIRST, payload)?;
        Ok(journal)
    }

    /// Reads a journal back, giving each frame's payload to `replay` in order. Returns the disk if
    /// it holds none.
    pub(super) fn open(
        mut disk: D,
        segment_size_bytes: u64,
        mut replay: impl FnMut(SegmentNumber, &[u8]) -> Result<(), String>,
    ) -> Result<Result<Self, D>, LogError> {
        let mut segments = Self::segments(&mut disk)?;
        let mut last = None;
        while let Some(number) = segments.pop() {
            let contents = read_file(&mut disk, &number.file())?;
            if contents.iter().any(|byte| *byte != 0) {
                last = Some((number, contents));
                break;
            }
            // The crash came between the creation of this segment and its first frame.
            disk.remove(&number.file())?;
        }
        let Some((last, last_contents)) = last else { return Ok(Err(disk)) };
        let mut journal = Self { disk, segment_size_bytes, segment: last, offset: 0, chain: 0 };
        let first = segments.first().copied().unwrap_or(last);
        let mut is_oldest = true;
        for (number, expected) in segments.iter().zip(first.0..) {
            journal.check_number(*number, expected)?;
            let contents = read_file(&mut journal.disk, &number.file())?;
            journal.read_segment(*number, &contents, is_oldest, &mut replay)?;
            is_oldest = false;
        }
        journal.check_number(last, first.0 + segments.len() as u64)?;
        let last_frame = journal.read_segment(last, &last_contents, is_oldest, &mut replay)?;
        let end = judge_end(last, &last_contents, last_frame.end)?;
        journal.write_again(last_frame, &last_contents)?;
        match end {
            End::Clean { offset } if offset > 0 => journal.offset = offset,
            // The frame of the old segments' contents may be cut: writing goes on elsewhere.
            End::Clean { .. } | End::Torn => journal.offset = usize::MAX,
        }
        Ok(Ok(journal))
    }

    /// Removes every segment from the disk.
    pub(super) fn wipe(disk: &mut D) -> Result<(), LogError> {
        for number in Self::segments(disk)? {
            disk.remove(&number.file())?;
        }
        Ok(())
    }

    fn segments(disk: &mut D) -> Result<Vec<SegmentNumber>, DiskError> {
        Ok(disk.list()?.iter().filter_map(|file| SegmentNumber::parse(file)).collect())
    }

    fn check_number(&self, number: SegmentNumber, expected: u64) -> Result<(), LogError> {
        if number.0 != expected {
            let file = SegmentNumber(expected).file();
            return Err(LogError::Corrupt { file, offset_bytes: 0, detail: "segment missing" });
        }
        Ok(())
    }

    /// Writes a frame of the last segment once more, durably.
    fn write_again(&mut self, frame: Range<usize>, contents: &[u8]) -> Result<(), DiskError> {
        let (file, offset_bytes) = (self.segment.file(), frame.start as u64);
        let Some(bytes) = contents.get(frame.start..frame.end.min(contents.len())) else {
            return Ok(());
        };
        if bytes.is_empty() {
            return Ok(());
        }
        self.disk.write_at(&file, offset_bytes, &[IoSlice::new(bytes)])?;
        self.disk.sync(&file)
    }

    /// Replays the good frames of one segment; returns where the last of them is: reading stopped at its end.
    fn read_segment(
        &mut self,
        number: SegmentNumber,
        contents: &[u8],
        is_oldest: bool,
        replay: &mut impl FnMut(SegmentNumber, &[u8]) -> Result<(), String>,
    ) -> Result<Range<usize>, LogError> {
        let corrupt = |offset: usize, detail| LogError::Corrupt {
            file: number.file(),
            offset_bytes: offset as u64,
            detail,
        };
        let mut last = 0..0;
        while let Some((header, payload)) = frame_at(number, contents, last.end) {
            let offset = last.end;
            // The oldest segment's first frame chains to a segment that is gone.
            let chained = header.previous == self.chain || (is_oldest && offset == 0);
            if !chained {
                return Err(corrupt(offset, "a frame does not follow the one before it"));
            }
            replay(number, payload).map_err(|detail| LogError::Meaningless {
                file: number.file(),
                offset_bytes: offset as u64,
                detail,
            })?;
            self.chain = header.own_crc;
            last = offset..frame_end(offset, payload.len());
        }
        Ok(last)
    }

    /// Whether the next frame of this size starts a new segment. The caller then makes it hold all
    /// that must be known without the older segments.
    pub(super) fn is_full(&self, payload_size: usize) -> bool {
        let end = self.offset.saturating_add(HEADER_SIZE_BYTES).saturating_add(payload_size);
        self.offset > 0 && end as u64 > self.segment_size_bytes
    }

    /// Appends one frame and makes it durable. After an error the journal must not be used again.
    pub(super) fn append(&mut self, payload: &[u8]) -> Result<SegmentNumber, LogError> {
        if self.is_full(payload.len()) {
            self.start_segment(self.segment.next(), payload)?;
        } else {
            self.write_frame(payload)?;
        }
        Ok(self.segment)
    }

    fn start_segment(&mut self, number: SegmentNumber, payload: &[u8]) -> Result<(), LogError> {
        let frame_size_bytes = frame_end(0, payload.len()) as u64;
        let size_bytes = self.segment_size_bytes.max(frame_size_bytes);
        self.disk.create(&number.file(), size_bytes)?;
        self.segment = number;
        self.offset = 0;
        self.write_frame(payload)
    }

    fn write_frame(&mut self, payload: &[u8]) -> Result<(), LogError> {
        let header = encode_header(self.segment, self.offset, self.chain, payload);
        let file = self.segment.file();
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        self.disk.write_at(&file, self.offset as u64, &parts)?;
        self.disk.sync(&file)?;
        self.chain = own_crc(&header);
        self.offset = frame_end(self.offset, payload.len());
        Ok(())
    }

    /// Removes a segment that nothing needs any more.
    pub(super) fn remove(&mut self, number: SegmentNumber) -> Result<(), LogError> {
        assert!(number < self.segment, "the segment being written cannot be removed");
        self.disk.remove(&number.file())?;
        Ok(())
    }

    pub(super) fn disk(&mut self) -> &mut D {
        &mut self.disk
    }

    pub(super) fn into_disk(self) -> D {
        self.disk
    }
}

/// Decides whether the last segment, whose good frames end at `stop`, ends there for good.
fn judge_end(number: SegmentNumber, contents: &[u8], stop: usize) -> Result<End, LogError> {
    let corrupt = |detail| {
        let (file, offset_bytes) = (number.file(), stop as u64);
        Err(LogError::Corrupt { file, offset_bytes, detail })
    };
    let rest = contents.get(stop..).unwrap_or_default();
    let later_frame = (stop + HEADER_SIZE_BYTES..contents.len())
        .step_by(HEADER_SIZE_BYTES)
        .any(|offset| header_at(number, contents, offset).is_some());
    if later_frame {
        return corrupt("a valid frame follows a bad one");
    }
    let header_bytes = rest.get(..HEADER_SIZE_BYTES).unwrap_or(rest);
    if header_bytes.iter().all(|byte| *byte == 0) {
        let clean = rest.iter().all(|byte| *byte == 0);
        return Ok(if clean { End::Clean { offset: stop } } else { End::Torn });
    }
    let Some(header) = header_at(number, contents, stop) else {
        return corrupt("a frame header is damaged, which a torn write cannot do");
    };
    let payload_start = stop + HEADER_SIZE_BYTES;
    let payload_end = payload_start.saturating_add(header.payload_size);
    if payload_end > contents.len() || has_blank_sector(contents, payload_start, payload_end) {
        return Ok(End::Torn);
    }
    corrupt("a frame was written whole and is damaged")
}

/// Whether a sector after the header's own was not written.
fn has_blank_sector(contents: &[u8], start: usize, end: usize) -> bool {
    let first_boundary = start.next_multiple_of(SECTOR_SIZE_BYTES);
    (first_boundary..end)
        .step_by(SECTOR_SIZE_BYTES)
        .any(|at| contents[at..end.min(at + SECTOR_SIZE_BYTES)].iter().all(|byte| *byte == 0))
}

fn frame_end(offset: usize, payload_size: usize) -> usize {
    (offset + HEADER_SIZE_BYTES + payload_size).next_multiple_of(HEADER_SIZE_BYTES)
}

fn encode_header(
    segment: SegmentNumber,
    offset: usize,
    previous: u32,
    payload: &[u8],
) -> [u8; HEADER_SIZE_BYTES] {
    let mut header = [0; HEADER_SIZE_BYTES];
    header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[8..12].copy_from_slice(&previous.to_le_bytes());
    header[12..16].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    header[16..24].copy_from_slice(&segment.0.to_le_bytes());
    header[24..28].copy_from_slice(&(offset as u32).to_le_bytes());
    let crc = crc32c::crc32c(&header[..28]);
    header[28..32].copy_from_slice(&crc.to_le_bytes());
    header
}

fn own_crc(header: &[u8; HEADER_SIZE_BYTES]) -> u32 {
    let [.., a, b, c, d] = *header;
    u32::from_le_bytes([a, b, c, d])
}

/// The valid header at `offset`, if there is one.
fn header_at(number: SegmentNumber, contents: &[u8], offset: usize) -> Option<Header> {
    let bytes = contents.get(offset..)?.first_chunk::<HEADER_SIZE_BYTES>()?;
    let word = |at: usize| {
        let [a, b, c, d] = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        u32::from_le_bytes([a, b, c, d])
    };
    let segment = u64::from(word(16)) | u64::from(word(20)) << 32;
    let here = word(0) == MAGIC && segment == number.0 && word(24) as usize == offset;
    let own_crc = word(28);
    if !here || crc32c::crc32c(&bytes[..28]) != own_crc {
        return None;
    }
    Some(Header {
        payload_size: word(4) as usize,
        previous: word(8),
        payload_crc: word(12),
        own_crc,
    })
}

/// The valid frame at `offset`, if there is one.
fn frame_at(number: SegmentNumber, contents: &[u8], offset: usize) -> Option<(Header, &[u8])> {
    let header = header_at(number, contents, offset)?;
    let start = offset + HEADER_SIZE_BYTES;
    let payload = contents.get(start..start.checked_add(header.payload_size)?)?;
    (crc32c::crc32c(payload) == header.payload_crc).then_some((header, payload))
}

/// Reads a whole file.
pub(super) fn read_file(disk: &mut impl Disk, file: &str) -> Result<Vec<u8>, DiskError> {
    let size_bytes = disk.size_bytes(file)?;
    let mut contents = vec![0; size_bytes as usize];
    let mut filled = 0;
    while filled < contents.len() {
        let count = disk.read_at(file, filled as u64, &mut contents[filled..])?;
        if count == 0 {
            break;
        }
        filled += count;
    }
    contents.truncate(filled);
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use meridian_base::env::memory::{Crash, MemoryDisk};

    use super::*;

    const SEGMENT_SIZE_BYTES: u64 = 4096;

    fn open(disk: &MemoryDisk) -> Result<(Journal<MemoryDisk>, Vec<Vec<u8>>), LogError> {
        let mut frames = Vec::new();
        let journal = Journal::open(disk.clone(), SEGMENT_SIZE_BYTES, |_, payload| {
            frames.push(payload.to_vec());
            Ok(())
        })?;
        Ok((journal.unwrap_or_else(|_| panic!("no journal")), frames))
    }

    fn frame(number: u8, size: usize) -> Vec<u8> {
        vec![number + 1; size]
    }

    /// A journal of `count` synced frames of 700 bytes.
    fn written(seed: u64, count: u8) -> (MemoryDisk, Journal<MemoryDisk>) {
        let disk = MemoryDisk::new(seed);
        let mut journal =
            Journal::create(disk.clone(), SEGMENT_SIZE_BYTES, &frame(0, 700)).unwrap();
        for number in 1..count {
            journal.append(&frame(number, 700)).unwrap();
        }
        (disk, journal)
    }

    fn tear(disk: &MemoryDisk, mut journal: Journal<MemoryDisk>, payload: &[u8]) {
        disk.interrupt_syncs(1);
        assert!(journal.append(payload).is_err());
        disk.crash(Crash::TearUnsynced);
    }

    #[test]
    fn frames_come_back_over_segments() {
        let (disk, _) = written(0, 20);
        let (_, frames) = open(&disk).unwrap();
        assert_eq!(frames, (0..20).map(|number| frame(number, 700)).collect::<Vec<_>>());
    }

    #[test]
    fn a_torn_tail_is_cut_and_writing_goes_on() {
        let mut survived_count = 0;
        for seed in 0..200 {
            let count = 2 + (seed % 12) as u8;
            let (disk, journal) = written(seed, count);
            tear(&disk, journal, &frame(99, 1500));
            let (mut journal, frames) = open(&disk).unwrap();
            let survived = frames.len() - usize::from(count);
            assert!(survived <= 1, "seed {seed}");
            survived_count += survived;
            journal.append(b"next").unwrap();
            let (_, frames) = open(&disk).unwrap();
            assert_eq!(frames.last().unwrap(), b"next");
            assert_eq!(frames.len(), usize::from(count) + survived + 1);
        }
        assert!((1..100).contains(&survived_count), "{survived_count} of 200 frames were whole");
    }

    /// The first of a segment as well as one in its middle.
    #[test]
    fn a_frame_is_believed_only_once_it_is_durable() {
        for count in 1..7 {
            let (disk, mut journal) = written(0, count);
            disk.fail_syncs(1);
            assert!(journal.append(&frame(99, 700)).is_err());
            let (_, believed) = open(&disk).unwrap();
            assert_eq!(believed.last(), Some(&frame(99, 700)));
            disk.crash(Crash::LoseUnsynced);
            assert_eq!(open(&disk).unwrap().1, believed, "of {count} frames");
        }
    }

    #[test]
    fn a_flipped_bit_in_any_synced_frame_is_corruption() {
        let (disk, _) = written(0, 13);
        let used: Vec<(String, usize)> = (1..=3)
            .flat_map(|segment| (0..5 * 736).map(move |at| (SegmentNumber(segment).file(), at)))
            .step_by(61)
            .collect();
        let mut noticed = 0;
        for (file, at) in used {
            let mut byte = [0];
            disk.clone().read_at(&file, at as u64, &mut byte).unwrap();
            if byte[0] == 0 {
                continue;
            }
            let damaged = disk.image();
            assert!(damaged.flip_bit(&file, at));
            assert!(matches!(open(&damaged), Err(LogError::Corrupt { .. })), "{file} {at}");
            noticed += 1;
        }
        assert!(noticed > 100);
    }

    #[test]
    fn a_zeroed_frame_in_the_middle_is_corruption() {
        let (disk, _) = written(0, 3);
        let file = SegmentNumber(1).file();
        let mut damaged = disk.image();
        damaged.write_at(&file, 736, &[IoSlice::new(&[0; 736])]).unwrap();
        assert!(matches!(open(&damaged), Err(LogError::Corrupt { .. })));
    }

    #[test]
    fn a_missing_segment_is_corruption() {
        let (mut disk, _) = written(0, 13);
        disk.remove(&SegmentNumber(2).file()).unwrap();
        assert!(matches!(open(&disk), Err(LogError::Corrupt { detail: "segment missing", .. })));
    }

    #[test]
    fn a_frame_copied_elsewhere_is_not_believed() {
        let (disk, _) = written(0, 5);
        let file = SegmentNumber(1).file();
        let mut stale = vec![0; 736];
        let mut damaged = disk.image();
        damaged.read_at(&file, 0, &mut stale).unwrap();
        damaged.write_at(&file, 736, &[IoSlice::new(&stale)]).unwrap();
        assert!(matches!(open(&damaged), Err(LogError::Corrupt { .. })));
    }

    #[test]
    fn an_empty_disk_holds_no_journal() {
        let mut disk = MemoryDisk::new(0);
        disk.create(&SegmentNumber(1).file(), 4096).unwrap();
        let opened = Journal::open(disk, SEGMENT_SIZE_BYTES, |_, _| Ok(())).unwrap();
        assert!(opened.is_err());
    }
}
