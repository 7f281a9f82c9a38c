//! Emptying old files: what is live in them is written again at the head of the journal, then the
//! file goes. Little by little, behind the puts.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::{DiskError, Instant};
use meridian_base::id::PartitionId;

use super::Store;
use super::read::Purpose;
use super::stage::Waiter;
use crate::blob::{BlobHeader, BlobKey, Payload};
use crate::journal::{
    BATCH_ALIGNMENT_BYTES, FileSequence, FileUsage, Location, Record, decode_heads,
};

/// The file that is being emptied, if any.
#[derive(Debug, Default)]
pub(super) enum Relocation {
    #[default]
    Idle,
    /// The side file of the one chosen is being read.
    Reading,
    /// Its live records are on their way.
    Moving {
        file: FileSequence,
        blobs: VecDeque<BlobKey>,
        partitions: VecDeque<PartitionId>,
        reading_count: usize,
        reading_bytes: usize,
        /// A blob could not be read: it ends once the reads under way have.
        given_up: bool,
    },
    /// All of them are staged.
    Settling(FileSequence),
    /// They are durable; one more batch proves it, should they ever look torn.
    Proving(FileSequence),
}

/// Since when nothing was put.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    put_count: u64,
    since: Instant,
}

impl Quiet {
    /// Takes note of how many puts there were until now.
    pub(super) fn note(&mut self, now: Instant, put_count: u64) {
        if self.put_count != put_count {
            *self = Self { put_count, since: now };
        }
    }

    fn lasts(&self, now: Instant, at_least: Duration) -> bool {
        now.since(self.since) >= at_least
    }
}

/// A blob that is being read in order to be written again.
#[derive(Debug)]
pub(super) struct Moving {
    key: BlobKey,
    header: BlobHeader,
    location: Location,
}

/// Room for the batches that moved records go in, beside the payloads.
const ROOM_BYTES: u64 = 4 * BATCH_ALIGNMENT_BYTES as u64;

impl Store {
    /// Picks the file with the smallest live share, if it is worth it.
    pub(super) fn choose_relocation(&mut self, now: Instant) {
        if !matches!(self.relocation, Relocation::Idle) {
            return;
        }
        let fits = |usage: &FileUsage, room_bytes| 2 * usage.live_bytes + ROOM_BYTES <= room_bytes;
        let room_bytes = self.journal.room_bytes();
        let damaged = self.journal.damaged().find(|(_, usage)| fits(usage, room_bytes));
        if let Some((file, _)) = damaged {
            return self.plan_by_index(file);
        }
        let percent = |usage: &FileUsage| usage.live_bytes * 100 / usage.used_bytes.max(1);
        let Some((file, usage)) =
            self.journal.collectable().min_by_key(|(file, usage)| (percent(usage), *file))
        else {
            return;
        };
        let taken_bytes = self.config.capacity_bytes.saturating_sub(self.journal.room_bytes());
        let filled = taken_bytes * 100
            > self.config.capacity_bytes * u64::from(self.config.fill_percent_max);
        const WORTHWHILE_PERCENT: u64 = 50;
        let usual = if self.quiet.lasts(now, self.config.quiet_after) {
            self.config.quiet_live_percent_min
        } else {
            self.config.live_percent_min
        };
        let limit = if filled { WORTHWHILE_PERCENT.max(usual.into()) } else { usual.into() };
        if percent(&usage) >= limit || !fits(&usage, room_bytes) {
            return;
        }
        match self.journal.contents(file) {
            Some(Ok(size_bytes)) => {
                self.relocation = Relocation::Reading;
                self.read_contents(file, size_bytes);
            }
            Some(Err(records)) => self.plan(file, records),
            None => {}
        }
    }

    pub(super) fn contents_read(&mut self, file: FileSequence, side_file: Option<Bytes>) {
        let disk = self.identity().disk;
        let records = side_file.and_then(|bytes| decode_heads(&bytes, disk, file));
        match records {
            Some(records) => self.plan(file, records),
            None => {
                self.file_damaged(file);
                self.relocation = Relocation::Idle;
            }
        }
    }

    /// A file's heads are not what they were: all that is live in it moves, then it goes.
    pub(super) fn file_damaged(&mut self, file: FileSequence) {
        if self.journal.mark_damaged(file) {
            self.counters.corrupt += 1;
        }
    }

    /// Lists what is live in a file whose own word can't be taken for it. Looks at every blob of the
    /// disk, so it is kept for damage.
    fn plan_by_index(&mut self, file: FileSequence) {
        let (mut blobs, mut partitions) = (VecDeque::new(), BTreeSet::new());
        for (id, partition) in self.index.after(None) {
            partitions.insert(id);
            let here = partition.blobs().filter(|(_, entry)| entry.file == file);
            blobs.extend(here.map(|(point, _)| BlobKey { partition: id, point }));
        }
        self.move_all(file, blobs, partitions);
    }

    /// Lists what is live of a file's records.
    fn plan(&mut self, file: FileSequence, records: Vec<Record>) {
        let mut blobs = VecDeque::new();
        let mut partitions = BTreeSet::new();
        for record in records {
            match record {
                Record::Blob { key, .. } => {
                    partitions.insert(key.partition);
                    if self.index.blob(key).is_some_and(|entry| entry.file == file) {
                        blobs.push_back(key);
                    }
                }
                Record::Partition(record) => {
                    partitions.insert(record.partition);
                }
                Record::Config(_) | Record::Synced | Record::End => {}
            }
        }
        self.move_all(file, blobs, partitions);
    }

    fn move_all(
        &mut self,
        file: FileSequence,
        blobs: VecDeque<BlobKey>,
        partitions: BTreeSet<PartitionId>,
    ) {
        if self.group_file == Some(file)
            && let Some(group) = &self.group
        {
            self.staged.push_record(Record::Config(group.clone()));
        }
        self.relocation = Relocation::Moving {
            file,
            blobs,
            partitions: partitions.into_iter().collect(),
            reading_count: 0,
            reading_bytes: 0,
            given_up: false,
        };
    }

    /// Moves some more, as far as the bound on bytes under way allows.
    pub(super) fn relocate(&mut self) {
        let budget_bytes = self.config.relocation_bytes_max;
        while let Relocation::Moving {
            file,
            blobs,
            partitions,
            reading_count,
            reading_bytes,
            given_up,
        } = &mut self.relocation
        {
            let file = *file;
            if *reading_bytes + self.staged.size_bytes() > budget_bytes {
                return;
            }
            if let Some(key) = blobs.pop_front() {
                let entry = self.index.blob(key).filter(|entry| entry.file == file).copied();
                let Some(entry) = entry else { continue };
                *reading_count += 1;
                *reading_bytes += entry.payload_size_bytes as usize;
                let (header, location) = (entry.header(), entry.location());
                let purpose = Purpose::Move(Moving { key, header, location });
                self.read_disk(location, header.payload_size_bytes, purpose);
            } else if let Some(id) = partitions.pop_front() {
                self.move_partition(id, file);
            } else {
                if *reading_count == 0 && *given_up {
                    self.relocation = Relocation::Idle;
                } else if *reading_count == 0 {
                    self.relocation = Relocation::Settling(file);
                    self.staged.push_waiter(Waiter::Relocated);
                }
                return;
            }
        }
    }

    fn move_partition(&mut self, id: PartitionId, file: FileSequence) {
        let Some(partition) = self.index.get(id) else { return };
        let here = partition.record_file == Some(file) || partition.mark_file == Some(file);
        if !here {
            return;
        }
        if partition.forgotten && self.journal.oldest() == file {
            self.index.drop_forgotten(id);
        } else {
            self.stage_partition(id);
        }
    }

    pub(super) fn move_read(&mut self, moving: Moving, result: Result<Bytes, DiskError>) {
        let Moving { key, header, location } = moving;
        let Relocation::Moving { reading_count, reading_bytes, .. } = &mut self.relocation else {
            return;
        };
        *reading_count -= 1;
        *reading_bytes -= header.payload_size_bytes as usize;
        let stands = self.index.blob(key).is_some_and(|entry| entry.location() == location);
        if !stands {
            return;
        }
        let found = result.ok();
        let payload = found.clone().map(Payload::from).filter(|bytes| header.matches(bytes));
        match payload {
            Some(payload) => {
                self.counters.relocated_bytes += u64::from(header.payload_size_bytes);
                self.stage_blob(key, header, None, payload);
            }
            None => {
                self.blob_unreadable(key, header, location, found);
                if let Relocation::Moving { blobs, partitions, given_up, .. } = &mut self.relocation
                {
                    (*blobs, *partitions) = Default::default();
                    *given_up = true;
                }
            }
        }
    }

    /// All that was live in the file is durable elsewhere: once that is proven the file goes,
    /// unless something in it could not be moved.
    pub(super) fn relocated(&mut self) {
        let file = match self.relocation {
            Relocation::Settling(file) => {
                self.relocation = Relocation::Proving(file);
                self.staged.push_record(Record::Synced);
                self.staged.push_waiter(Waiter::Relocated);
                return;
            }
            Relocation::Proving(file) => file,
            Relocation::Idle | Relocation::Reading | Relocation::Moving { .. } => return,
        };
        self.relocation = Relocation::Idle;
        let empty = self
            .journal
            .collectable()
            .any(|(candidate, usage)| candidate == file && usage.live_bytes == 0);
        if empty {
            self.counters.files_removed += 1;
            self.journal.remove(file);
        }
    }
}
