//! Emptying old files: what is live in them is written again at the head of the journal, then the
//! file goes. Little by little, behind the puts.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::{DiskError, Instant};
use meridian_base::id::PartitionId;

use super::read::Purpose;
use super::stage::Waiter;
use super::{Store, count_record};
use crate::blob::{BlobHeader, BlobKey, Payload};
use crate::config::StoreConfig;
use crate::journal::{
    BATCH_ALIGNMENT_BYTES, FileSequence, FileUsage, Location, Record, decode_heads,
};
use crate::mutation::Mutation;

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
        /// In the order in which they lie in the file.
        blobs: VecDeque<BlobKey>,
        partitions: VecDeque<PartitionId>,
        /// The longest run of the file that is read in one go.
        run_bytes_max: usize,
        /// A run is being read.
        reading: bool,
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

/// When the next file may be emptied. Each costs the file system some commits of its own journal, which every
/// sync waits for; and retention lets go of many files at once, on all nodes at once.
#[derive(Debug, Default)]
pub(super) struct Turns {
    next_at: Instant,
}

impl Turns {
    /// Nodes of one group do not all begin at once.
    fn none_waits(&mut self, now: Instant, config: &StoreConfig) {
        const PHASE_COUNT: u32 = 8;
        let phase = config.node.get() % PHASE_COUNT;
        self.next_at = now + config.emptying_spread * phase / PHASE_COUNT;
    }

    fn is_due(&self, now: Instant) -> bool {
        now >= self.next_at
    }

    /// Those that wait go over the whole spread: the more there are, the sooner comes the next.
    fn take(&mut self, now: Instant, waiting_count: usize, config: &StoreConfig) {
        let waiting_count = u32::try_from(waiting_count).unwrap_or(u32::MAX).max(1);
        self.next_at = now + config.emptying_spread / waiting_count;
    }
}

/// A stretch of a file that is read in order to write the live blobs in it again. Small blobs would cost
/// a read each, come back one by one and be written in as many small batches, to be moved again soon.
#[derive(Debug)]
pub(super) struct Run {
    blobs: Vec<Moving>,
    start_bytes: u32,
    end_bytes: u32,
}

#[derive(Clone, Copy, Debug)]
struct Moving {
    key: BlobKey,
    header: BlobHeader,
    location: Location,
}

impl Run {
    fn new(first: Moving) -> Self {
        let (start_bytes, end_bytes) = first.extent();
        Self { blobs: vec![first], start_bytes, end_bytes }
    }

    /// Takes in a blob that lies behind those before it, unless the run would get too long.
    fn extend(&mut self, next: Moving, size_bytes_max: usize) -> bool {
        let (start_bytes, end_bytes) = next.extent();
        let follows = self.end_bytes <= start_bytes;
        let fits = end_bytes.saturating_sub(self.start_bytes) as usize <= size_bytes_max;
        if follows && fits {
            self.blobs.push(next);
            self.end_bytes = end_bytes;
        }
        follows && fits
    }

    /// The bytes of one of its blobs.
    fn part(&self, read: &Bytes, blob: &Moving) -> Bytes {
        let (start_bytes, end_bytes) = blob.extent();
        let at = |bytes: u32| (bytes - self.start_bytes) as usize;
        read.slice(at(start_bytes)..at(end_bytes))
    }
}

impl Moving {
    fn extent(&self) -> (u32, u32) {
        let start_bytes = self.location.offset_bytes;
        (start_bytes, start_bytes + self.header.payload_size_bytes)
    }
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
        let share = |usage: &FileUsage, bytes| bytes * 100 / usage.used_bytes.max(1);
        // By the most that the move takes: else what is small would be moved for ever.
        let percent = |usage: &FileUsage| share(usage, usage.moved_bytes_max());
        let taken_bytes = self.config.capacity_bytes.saturating_sub(room_bytes);
        let when_filled = self.config.filled_live_percent(taken_bytes);
        let is_quiet = self.quiet.lasts(now, self.config.quiet_after);
        let usual = if is_quiet {
            self.config.quiet_live_percent_min
        } else {
            self.config.live_percent_min
        };
        // With what the move itself takes: else a full disk would move the same blobs for ever, and gain nothing.
        let gains = |usage: &FileUsage| {
            when_filled.is_some_and(|limit| share(usage, usage.live_bytes + ROOM_BYTES) < limit)
        };
        let is_worthwhile = |usage: &FileUsage| percent(usage) < usual.into() || gains(usage);
        let worthwhile = || self.journal.collectable().filter(|(_, usage)| is_worthwhile(usage));
        let Some((file, usage)) = worthwhile().min_by_key(|(file, usage)| (percent(usage), *file))
        else {
            return self.turns.none_waits(now, &self.config);
        };
        let is_due = when_filled.is_some() || is_quiet || self.turns.is_due(now);
        if !is_due || !fits(&usage, room_bytes) {
            return;
        }
        let waiting_count = worthwhile().count();
        self.turns.take(now, waiting_count, &self.config);
        match self.journal.contents(file) {
            Some(Ok(size_bytes)) => {
                self.relocation = Relocation::Reading;
                self.read_contents(file, size_bytes);
            }
            Some(Err(records)) => self.plan(file, records),
            None => {}
        }
    }

    pub(super) fn contents_read(&mut self, file: FileSequence, result: Result<Bytes, DiskError>) {
        if result.as_ref().is_err_and(|error| !error.is_of_the_file()) {
            // The next tick tries again.
            self.relocation = Relocation::Idle;
            return;
        }
        let disk = self.identity().disk;
        let records = result.ok().and_then(|bytes| decode_heads(&bytes, disk, file));
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
        let (mut blobs, mut partitions) = (Vec::new(), BTreeSet::new());
        for (id, partition) in self.index.after(None) {
            partitions.insert(id);
            let here = partition.blobs().filter(|(_, entry)| entry.file == file);
            blobs.extend(here.map(|(point, entry)| {
                (entry.location().offset_bytes, BlobKey { partition: id, point })
            }));
        }
        self.move_all(file, blobs, partitions);
    }

    /// Lists what is live of a file's records.
    fn plan(&mut self, file: FileSequence, records: Vec<Record>) {
        let (mut blobs, mut partitions) = (Vec::new(), BTreeSet::new());
        for record in records {
            match record {
                Record::Blob { key, .. } => {
                    partitions.insert(key.partition);
                    blobs.extend(self.lies_in(file, key).map(|offset_bytes| (offset_bytes, key)));
                }
                Record::Partition(record) => {
                    partitions.insert(record.partition);
                }
                Record::Config(_) | Record::Synced | Record::End => {}
            }
        }
        self.move_all(file, blobs, partitions);
    }

    /// Where a blob lies in `file`, if it does.
    fn lies_in(&self, file: FileSequence, key: BlobKey) -> Option<u32> {
        let entry = self.index.blob(key).filter(|entry| entry.file == file)?;
        Some(entry.location().offset_bytes)
    }

    fn move_all(
        &mut self,
        file: FileSequence,
        mut blobs: Vec<(u32, BlobKey)>,
        partitions: BTreeSet<PartitionId>,
    ) {
        blobs.sort_unstable_by_key(|(offset_bytes, _)| *offset_bytes);
        if self.group_file == Some(file)
            && let Some(group) = &self.group
        {
            self.staged.push_record(Record::Config(group.clone()));
        }
        self.relocation = Relocation::Moving {
            file,
            blobs: blobs.into_iter().map(|(_, key)| key).collect(),
            partitions: partitions.into_iter().collect(),
            run_bytes_max: self.config.relocation_bytes_max,
            reading: false,
        };
    }

    /// Moves some more, as far as the bound on bytes under way allows.
    pub(super) fn relocate(&mut self) {
        while let Relocation::Moving { file, reading, .. } = self.relocation {
            if reading || self.staged.size_bytes() > self.config.relocation_bytes_max {
                return;
            }
            if let Some(run) = self.next_run() {
                let location = Location { file, offset_bytes: run.start_bytes };
                let size_bytes = run.end_bytes - run.start_bytes;
                return self.read_disk(location, size_bytes, Purpose::Move(run));
            }
            let Relocation::Moving { partitions, .. } = &mut self.relocation else { return };
            if let Some(id) = partitions.pop_front() {
                self.move_partition(id, file);
            } else {
                self.relocation = Relocation::Settling(file);
                self.staged.push_waiter(Waiter::Relocated);
                if Mutation::EmptiedEarly.active(self.config.mutations) {
                    self.relocation = Relocation::Idle;
                    self.counters.files_removed += 1;
                    self.journal.remove(file);
                }
            }
        }
    }

    /// Takes the next live blobs that are read in one go, if any are left.
    fn next_run(&mut self) -> Option<Run> {
        let Relocation::Moving { file, blobs, run_bytes_max, reading, .. } = &mut self.relocation
        else {
            return None;
        };
        let mut run: Option<Run> = None;
        while let Some(&key) = blobs.front() {
            let live = self.index.blob(key).filter(|entry| entry.file == *file);
            if let Some(entry) = live {
                let next = Moving { key, header: entry.header(), location: entry.location() };
                match &mut run {
                    None => run = Some(Run::new(next)),
                    Some(run) => {
                        if !run.extend(next, *run_bytes_max) {
                            break;
                        }
                    }
                }
            }
            blobs.pop_front();
        }
        *reading = run.is_some();
        run
    }

    fn move_partition(&mut self, id: PartitionId, file: FileSequence) {
        let Some(partition) = self.index.get(id) else { return };
        let is_here = partition.record_file == Some(file) || partition.mark_file == Some(file);
        let is_unrecorded =
            partition.is_unrecorded && !Mutation::EmptiedUnrecorded.active(self.config.mutations);
        if !is_here && !is_unrecorded {
            return;
        }
        if partition.forgotten && self.journal.oldest() == file {
            count_record(&mut self.journal, partition.record_file, -1);
            self.index.drop_forgotten(id);
        } else {
            self.stage_partition(id);
        }
    }

    pub(super) fn run_read(&mut self, run: Run, result: Result<Bytes, DiskError>) {
        let Relocation::Moving { blobs, run_bytes_max, reading, .. } = &mut self.relocation else {
            return;
        };
        *reading = false;
        if result.as_ref().is_err_and(|error| !error.is_of_the_file()) {
            // What is moved already stays so; the next tick begins with the rest.
            self.relocation = Relocation::Idle;
            return;
        }
        let read = result.ok();
        if read.is_none() && run.blobs.len() > 1 {
            // Which of them it is shows when each is read alone.
            *run_bytes_max = 0;
            for blob in run.blobs.iter().rev() {
                blobs.push_front(blob.key);
            }
            return;
        }
        let mut given_up = false;
        for blob in &run.blobs {
            let found = read.as_ref().map(|read| run.part(read, blob));
            given_up |= !self.move_blob(*blob, found);
        }
        if given_up {
            self.relocation = Relocation::Idle;
        }
    }

    /// Writes a blob again. Returns whether it could be read.
    fn move_blob(&mut self, blob: Moving, found: Option<Bytes>) -> bool {
        let Moving { key, header, location } = blob;
        let stands = self.index.blob(key).is_some_and(|entry| entry.location() == location);
        // What is on its way under the key takes its place, which this would take back.
        if !stands || self.puts.contains_key(&key) {
            return true;
        }
        let payload = found.clone().map(Payload::from).filter(|bytes| header.matches(bytes));
        let Some(payload) = payload else {
            self.blob_unreadable(key, header, location, found);
            return false;
        };
        self.counters.relocated_bytes += u64::from(header.payload_size_bytes);
        self.stage_blob(key, header, None, payload);
        true
    }

    /// All that was live in the file is durable elsewhere: once that is proven the file goes,
    /// unless something in it could not be moved.
    pub(super) fn relocated(&mut self) {
        let is_proof_needed = !Mutation::EmptiedUnproven.active(self.config.mutations);
        let file = match self.relocation {
            Relocation::Settling(file) if is_proof_needed => {
                self.relocation = Relocation::Proving(file);
                self.staged.push_record(Record::Synced);
                self.staged.push_waiter(Waiter::Relocated);
                return;
            }
            Relocation::Settling(file) | Relocation::Proving(file) => file,
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
