//! One partition's blobs on one slot.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use meridian_base::position::{Generation, LogPoint, Offset, Step};

use super::entries::Entries;
use crate::blob::{BlobHeader, BlobInfo, BlobKind, PartOf};
use crate::journal::{FileSequence, Location, PartitionRecord, RECORD_SIZE_BYTES_USUAL};
use crate::lineage::Start;
use crate::message::{CommitMark, PartitionView};
use crate::mutation::Mutations;

/// Where a blob is and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) step: Step,
    base_offset: Offset,
    max_timestamp_ms: i64,
    record_count: u32,
    pub(crate) payload_size_bytes: u32,
    pub(crate) payload_crc: u32,
    whole_size_bytes: u32,
    whole_crc: u32,
    pub(crate) file: FileSequence,
    offset_bytes: u32,
    pub(crate) kind: BlobKind,
    /// [`NO_PART`] if the payload is whole.
    part_number: u8,
    /// Its bytes were found not to match; not forgotten while the process runs, until it is mended.
    pub(crate) unreadable: bool,
}

/// No part has this number.
const NO_PART: u8 = u8::MAX;
const _: () = assert!(size_of::<Entry>() <= 56);

impl Entry {
    pub(crate) fn new(step: Step, header: &BlobHeader, location: Location) -> Self {
        let whole = header.whole();
        Self {
            step,
            base_offset: header.base_offset,
            max_timestamp_ms: header.max_timestamp_ms,
            record_count: header.record_count,
            payload_size_bytes: header.payload_size_bytes,
            payload_crc: header.payload_crc,
            whole_size_bytes: whole.payload_size_bytes,
            whole_crc: whole.payload_crc,
            part_number: header.part.map_or(NO_PART, |part| part.number),
            file: location.file,
            offset_bytes: location.offset_bytes,
            kind: header.kind,
            unreadable: false,
        }
    }

    pub(crate) fn header(&self) -> BlobHeader {
        BlobHeader {
            kind: self.kind,
            base_offset: self.base_offset,
            record_count: self.record_count,
            max_timestamp_ms: self.max_timestamp_ms,
            payload_size_bytes: self.payload_size_bytes,
            payload_crc: self.payload_crc,
            part: (self.part_number != NO_PART).then_some(PartOf {
                number: self.part_number,
                size_bytes: self.whole_size_bytes,
                crc: self.whole_crc,
            }),
        }
    }

    pub(crate) fn location(&self) -> Location {
        Location { file: self.file, offset_bytes: self.offset_bytes }
    }

    pub(super) fn base_offset(&self) -> Offset {
        self.base_offset
    }

    pub(crate) fn next_offset(&self) -> Offset {
        self.base_offset.advance(self.record_count)
    }

    /// What the blob takes in its file.
    pub(crate) fn live_bytes(&self) -> i64 {
        i64::from(self.payload_size_bytes) + RECORD_SIZE_BYTES_USUAL
    }

    fn info(&self, generation: Generation) -> BlobInfo {
        BlobInfo { point: LogPoint::new(generation, self.step), header: self.header() }
    }
}

/// What a slot knows of one partition.
#[derive(Debug, Default)]
pub(crate) struct Partition {
    /// Puts of lower generations are refused; durable.
    pub(crate) fence: Generation,
    /// Highest fence that a batch under way will make durable.
    pub(crate) fence_in_flight: Generation,
    pub(crate) mark: Option<CommitMark>,
    pub(crate) log_start_offset: Offset,
    /// Records wholly below it are freed.
    pub(crate) free_below: Offset,
    /// Clean blobs and manifests below it are freed.
    pub(crate) clean_from: LogPoint,
    pub(crate) generation_min: Generation,
    pub(crate) forgotten: bool,
    /// File with the newest record of the fields above; `None` if there is no record.
    pub(crate) record_file: Option<FileSequence>,
    /// File with the newest blob whose header carried the mark.
    pub(crate) mark_file: Option<FileSequence>,
    /// Blobs were freed by what no record says yet. No file may go that has any of them: after a crash they would
    /// be missing above the mark, as if nobody had ever been told that they are safe.
    pub(crate) is_unrecorded: bool,
    pub(super) generations: BTreeMap<Generation, Entries>,
    pub(super) starts: BTreeMap<Generation, Bytes>,
    pub(super) checkpoints: BTreeSet<LogPoint>,
    /// Clean blobs and manifests.
    pub(super) clean: BTreeSet<LogPoint>,
}

impl Partition {
    pub(crate) fn merge(&mut self, record: &PartitionRecord, file: FileSequence) {
        self.fence = self.fence.max(record.fence);
        self.log_start_offset = self.log_start_offset.max(record.log_start_offset);
        self.free_below = self.free_below.max(record.free_below);
        self.clean_from = self.clean_from.max(record.clean_from);
        self.generation_min = self.generation_min.max(record.generation_min);
        if record.mark.is_some() && record.mark >= self.mark {
            self.mark = record.mark;
            self.mark_file = Some(file);
        }
        self.record_file = self.record_file.max(Some(file));
    }

    /// The lowest generation that may put here now.
    pub(crate) fn fence_effective(&self) -> Generation {
        self.fence.max(self.fence_in_flight)
    }

    pub(crate) fn at(&self, point: LogPoint) -> Option<&Entry> {
        self.generations.get(&point.generation)?.get(point.step)
    }

    pub(super) fn at_mut(&mut self, point: LogPoint) -> Option<&mut Entry> {
        self.generations.get_mut(&point.generation)?.get_mut(point.step)
    }

    /// Adds a blob, or moves it; gives the entry that it replaces.
    pub(crate) fn insert(
        &mut self,
        generation: Generation,
        entry: Entry,
        inline: &Bytes,
    ) -> Option<Entry> {
        let point = LogPoint::new(generation, entry.step);
        match entry.kind {
            BlobKind::Start => {
                self.starts.insert(generation, Bytes::copy_from_slice(inline));
            }
            BlobKind::Checkpoint => {
                self.checkpoints.insert(point);
            }
            BlobKind::Clean | BlobKind::Manifest => {
                self.clean.insert(point);
            }
            BlobKind::Records | BlobKind::Trim | BlobKind::Part => {}
        }
        self.generations.entry(generation).or_default().insert(entry)
    }

    /// Gives up every blob: the topic was deleted.
    pub(super) fn forget(&mut self) -> Vec<Entry> {
        self.forgotten = true;
        self.fence_in_flight = Generation::new(u32::MAX);
        self.starts.clear();
        self.checkpoints.clear();
        self.clean.clear();
        std::mem::take(&mut self.generations).into_values().flatten().collect()
    }

    /// The step of the blob of records that holds `offset`.
    pub(crate) fn step_of(&self, generation: Generation, offset: Offset) -> Option<Step> {
        let entry = self.generations.get(&generation)?.records_at(offset)?;
        (offset < entry.next_offset()).then_some(entry.step)
    }

    /// Blobs of one generation at consecutive steps, from `from` on.
    pub(crate) fn run(
        &self,
        generation: Generation,
        from: Step,
        last: Step,
    ) -> impl Iterator<Item = &Entry> {
        let entries = self.generations.get(&generation);
        entries
            .into_iter()
            .flat_map(move |entries| entries.from(from))
            .zip(from.get()..=last.get())
            .take_while(|(entry, step)| entry.step.get() == *step)
            .map(|(entry, _)| entry)
    }

    /// Every blob, in order.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = (LogPoint, &Entry)> {
        self.generations.iter().flat_map(|(generation, entries)| {
            entries.iter().map(|entry| (LogPoint::new(*generation, entry.step), entry))
        })
    }

    /// Every blob above `after`, in order.
    pub(crate) fn blobs_after(
        &self,
        after: Option<LogPoint>,
    ) -> impl Iterator<Item = (LogPoint, &Entry)> {
        let from = after.map_or(Generation::NONE, |point| point.generation);
        let entries = self.generations.range(from..).flat_map(|(generation, entries)| {
            entries.iter().map(|entry| (LogPoint::new(*generation, entry.step), entry))
        });
        entries.filter(move |(point, _)| Some(*point) > after)
    }

    /// Takes out one blob that is neither a `Start` nor a checkpoint.
    pub(crate) fn remove(&mut self, point: LogPoint) -> Option<Entry> {
        let entries = self.generations.get_mut(&point.generation)?;
        let removed = entries.remove(point.step);
        if entries.is_empty() {
            self.generations.remove(&point.generation);
        }
        removed
    }

    /// The lines of every blob above `after`, in order.
    pub(crate) fn infos_after(&self, after: Option<LogPoint>) -> impl Iterator<Item = BlobInfo> {
        self.blobs_after(after).map(|(point, entry)| entry.info(point.generation))
    }

    /// What a takeover needs to know; `None` if a `Start` can't be read.
    pub(crate) fn view(&self, mutations: Mutations) -> Option<PartitionView> {
        let from = self.mark.map_or(LogPoint::default(), |mark| mark.point);
        let mut blobs = Vec::new();
        for (generation, entries) in self.generations.range(from.generation..) {
            let first = if *generation == from.generation { from.step } else { Step::new(0) };
            blobs.extend(entries.from(first).map(|entry| entry.info(*generation)));
        }
        let starts = self
            .starts
            .range(from.generation..)
            .map(|(generation, payload)| Some((*generation, Start::decode(payload.clone()).ok()?)))
            .collect::<Option<_>>()?;
        let checkpoints = self
            .checkpoints
            .range(self.first_checkpoint_needed(mutations)..)
            .filter_map(|point| self.at(*point).map(|entry| entry.info(point.generation)))
            .collect();
        Some(PartitionView {
            mark: self.mark,
            log_start_offset: self.log_start_offset,
            blobs,
            starts,
            checkpoints,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: BlobKind, step: u64, base_offset: i64, record_count: u32) -> Entry {
        let header = BlobHeader {
            kind,
            base_offset: Offset::new(base_offset),
            record_count,
            max_timestamp_ms: -1,
            payload_size_bytes: 1,
            payload_crc: 0,
            part: None,
        };
        let location = Location { file: FileSequence::FIRST, offset_bytes: step as u32 };
        Entry::new(Step::new(step), &header, location)
    }

    fn partition(entries: &[Entry]) -> Partition {
        let mut partition = Partition::default();
        for entry in entries {
            assert_eq!(partition.insert(Generation::FIRST, *entry, &Bytes::new()), None);
        }
        partition
    }

    #[test]
    fn offsets_are_found_past_checkpoints_that_lag_behind() {
        let partition = partition(&[
            entry(BlobKind::Records, 1, 0, 10),
            entry(BlobKind::Records, 2, 10, 10),
            entry(BlobKind::Checkpoint, 3, 5, 0),
            entry(BlobKind::Checkpoint, 4, 5, 0),
            entry(BlobKind::Records, 6, 20, 10),
        ]);
        let step_of =
            |offset| partition.step_of(Generation::FIRST, Offset::new(offset)).map(Step::get);
        let found: Vec<_> = [0, 9, 10, 19, 20, 29, 30].map(step_of).into();
        assert_eq!(found, [Some(1), Some(1), Some(2), Some(2), Some(6), Some(6), None]);
    }

    #[test]
    fn a_run_stops_at_the_first_hole() {
        let late_first = [2, 1, 4].map(|step| entry(BlobKind::Records, step, 10 * step as i64, 10));
        let partition = partition(&late_first);
        let run = |from, last| {
            partition
                .run(Generation::FIRST, Step::new(from), Step::new(last))
                .map(|entry| entry.step.get())
                .collect::<Vec<_>>()
        };
        assert_eq!(run(1, 9), [1, 2]);
        assert_eq!(run(1, 1), [1]);
        assert_eq!(run(3, 9), Vec::<u64>::new());
        assert_eq!(run(4, 9), [4]);
    }

    #[test]
    fn a_blob_written_again_replaces_its_entry() {
        let mut partition = partition(&[entry(BlobKind::Records, 1, 0, 10)]);
        let mut moved = entry(BlobKind::Records, 1, 0, 10);
        moved.offset_bytes = 99;
        let old = partition.insert(Generation::FIRST, moved, &Bytes::new());
        assert_eq!(old.map(|entry| entry.offset_bytes), Some(1));
        assert_eq!(partition.blobs().count(), 1);
    }
}
