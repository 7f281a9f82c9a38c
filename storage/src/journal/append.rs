//! The journal's head: where batches go, and how files come and go.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use meridian_base::env::DiskError;

use super::disk_op::{DiskDone, DiskOp};
use super::record::{
    Address, Batch, HEAD_SIZE_BYTES_MIN, RECORD_SIZE_BYTES_MAX, Record, encode_heads,
    record_size_bytes, records_of,
};
use super::superblock::{Identity, Superblock};
use super::{BATCH_ALIGNMENT_BYTES, FileSequence, Location, aligned};
use crate::config::StoreConfig;
use crate::mutation::{Mutation, Mutations};

/// How much of a journal file is used, and how much of that is still needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileUsage {
    /// Bytes of all batches.
    pub(crate) used_bytes: u64,
    /// Bytes of blobs that can still be read, and of the newest record of each partition.
    pub(crate) live_bytes: u64,
    /// How many these are.
    pub(crate) live_count: u64,
}

impl FileUsage {
    /// Most that emptying the file writes elsewhere.
    pub(crate) fn moved_bytes_max(&self) -> u64 {
        self.live_bytes + self.live_count * RECORD_SIZE_BYTES_MAX as u64
    }
}

#[derive(Debug, Default)]
pub(super) struct FileState {
    pub(super) usage: FileUsage,
    /// Size of the side file, 0 while there is none.
    pub(super) index_size_bytes: u32,
    /// Heads of the batches, kept until the side file is durable.
    pub(super) heads: Vec<Bytes>,
    /// Blobs in it that can be read no more: while there are any it stays, so that they are never
    /// taken for absent.
    pub(super) unreadable_count: u32,
    /// Its heads are not what they were: it is emptied as soon as it can be.
    pub(super) damaged: bool,
}

/// The next files, created ahead of need. In rising order: those that are ready, those that are not in the list
/// of files yet and must not be used, those that are being created.
#[derive(Debug, Default)]
pub(super) struct Spares {
    pub(super) ready: VecDeque<FileSequence>,
    unlisted: Vec<FileSequence>,
    creating: VecDeque<FileSequence>,
}

impl Spares {
    fn count(&self) -> usize {
        self.ready.len() + self.unlisted.len() + self.creating.len()
    }
}

/// How many bytes of files are created ahead when much is about to be written: each time the list of files is
/// saved costs the file system as much as a file.
const AHEAD_SIZE_BYTES: u32 = 128 << 20;

/// Writes under way, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PendingWrite {
    Batch,
    End,
}

/// What changes whole files and is under way, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PendingChange {
    SideFile(FileSequence, u32),
    Spare,
    IdentityFirst,
    IdentitySecond,
    Removal(FileSequence),
}

/// What a finished operation means to the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// The batch in flight is durable.
    Batch,
    /// Nothing the store needs to know.
    Other,
}

/// The records of a batch, each with the place of its payload.
pub(crate) type Placed = Vec<(Record, Location)>;

/// The journal of one disk.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(super) superblock: Superblock,
    pub(super) files: BTreeMap<FileSequence, FileState>,
    pub(super) active: FileSequence,
    pub(super) offset_bytes: u32,
    pub(super) previous_crc: u32,
    pub(super) spares: Spares,
    pub(super) file_size_bytes: u32,
    pub(super) file_count_max: usize,
    mutations: Mutations,
    /// The last batch says that all before it is durable.
    pub(super) ends_synced: bool,
    /// Set if the files below were found damaged, until the disk has synced.
    pub(super) damaged_below: Option<FileSequence>,
    /// The last change of a file failed for want of space (or of descriptors, or of memory).
    disk_full: bool,
    /// What failed for want of them may be tried again.
    retry: bool,
    /// Much is about to be written.
    is_filling: bool,
    pub(super) dirty: bool,
    saving: bool,
    /// The first copy was written; whether the second also is decides.
    first_copy_saved: bool,
    removals: Vec<FileSequence>,
    removals_saving: Vec<FileSequence>,
    pub(super) writes: VecDeque<PendingWrite>,
    pub(super) changes: VecDeque<PendingChange>,
    /// Files whose end is being written: what they hold is told in a side file once it is durable.
    pub(super) ending: VecDeque<FileSequence>,
}

/// Where recovery left off.
pub(super) struct Tail {
    pub(super) active: FileSequence,
    pub(super) offset_bytes: u32,
    pub(super) previous_crc: u32,
    /// Blank files.
    pub(super) spares: VecDeque<FileSequence>,
    pub(super) ends_synced: bool,
}

impl Journal {
    pub(super) fn new(
        superblock: Superblock,
        files: BTreeMap<FileSequence, FileState>,
        tail: Tail,
        config: &StoreConfig,
    ) -> Self {
        Self {
            superblock,
            files,
            active: tail.active,
            offset_bytes: tail.offset_bytes,
            previous_crc: tail.previous_crc,
            spares: Spares { ready: tail.spares, ..Spares::default() },
            file_size_bytes: config.file_size_bytes,
            file_count_max: config.file_count_max(),
            mutations: config.mutations,
            ends_synced: tail.ends_synced,
            damaged_below: None,
            disk_full: false,
            retry: true,
            is_filling: false,
            dirty: false,
            saving: false,
            first_copy_saved: false,
            removals: Vec::new(),
            removals_saving: Vec::new(),
            writes: VecDeque::new(),
            changes: VecDeque::new(),
            ending: VecDeque::new(),
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        self.superblock.identity
    }

    /// Begins a new life of the disk's contents.
    pub(crate) fn set_incarnation(&mut self, incarnation: meridian_base::id::Incarnation) {
        self.superblock.identity.incarnation = incarnation;
        self.dirty = true;
    }

    /// Whether a batch of this size can be written now; goes to the next file if it must.
    pub(crate) fn make_room(&mut self, size_bytes: usize, ops: &mut Vec<DiskOp>) -> bool {
        if size_bytes <= self.active_room_bytes() {
            return true;
        }
        let Some(next) = self.spares.ready.pop_front() else { return false };
        self.seal(next, ops);
        size_bytes <= self.active_room_bytes()
    }

    /// Largest batch that a file can hold.
    pub(crate) fn batch_size_bytes_max(&self) -> usize {
        (self.file_size_bytes - BATCH_ALIGNMENT_BYTES) as usize
    }

    /// What is left for batches before the disk is full, files yet to be created included.
    pub(crate) fn room_bytes(&self) -> u64 {
        let spare_bytes = self.spares.count() as u64 * u64::from(self.file_size_bytes);
        self.active_room_bytes() as u64 + spare_bytes + self.creatable_bytes()
    }

    /// What of that is in files that are yet to be created.
    pub(crate) fn creatable_bytes(&self) -> u64 {
        let creatable_count = if self.disk_full { 0 } else { self.creatable_count() };
        creatable_count as u64 * u64::from(self.file_size_bytes)
    }

    /// How many records a large batch should have, in bytes: what fills the file, or the next if next to nothing
    /// fits in.
    pub(crate) fn filling_size_bytes(&self) -> usize {
        let (room_bytes, whole_bytes) = (self.active_room_bytes(), self.batch_size_bytes_max());
        let is_full = room_bytes < whole_bytes / 16;
        let batch_bytes = if is_full { whole_bytes } else { room_bytes };
        batch_bytes.saturating_sub(HEAD_SIZE_BYTES_MIN)
    }

    /// Says whether much is about to be written, for which files are created several at a time.
    pub(crate) fn set_filling(&mut self, is_filling: bool) {
        self.is_filling = is_filling;
    }

    fn creatable_count(&self) -> usize {
        self.file_count_max.saturating_sub(self.files.len() + self.spares.count())
    }

    /// How many files are to be created now.
    fn wanted_count(&self) -> usize {
        let ahead_count =
            if self.is_filling { (AHEAD_SIZE_BYTES / self.file_size_bytes).clamp(1, 8) } else { 1 };
        let (count, ahead_count) = (self.spares.count(), ahead_count as usize);
        let half_full = self.offset_bytes > self.file_size_bytes / 2;
        let is_due = self.is_filling || half_full || self.is_active_damaged();
        let is_low = self.spares.creating.is_empty() && 2 * count <= ahead_count;
        if is_due && is_low { (ahead_count - count).min(self.creatable_count()) } else { 0 }
    }

    /// Upper bound of the bytes a batch of these takes in the file.
    pub(crate) fn batch_size_bytes(record_bytes: usize, payload_bytes: usize) -> usize {
        HEAD_SIZE_BYTES_MIN + record_bytes + payload_bytes
    }

    /// Writes one batch. There must be room, and none may be in flight.
    pub(crate) fn append(
        &mut self,
        records: Vec<Record>,
        payloads: Vec<Bytes>,
        ops: &mut Vec<DiskOp>,
    ) -> Placed {
        assert!(!self.writes.contains(&PendingWrite::Batch), "one batch in flight");
        let batch = self.write(records, payloads, PendingWrite::Batch, ops);
        let file = self.active;
        batch
            .records
            .into_iter()
            .map(|(record, offset_bytes)| (record, Location { file, offset_bytes }))
            .collect()
    }

    /// Whether what was written last could be mistaken for a torn write after a crash.
    pub(crate) fn wants_synced_mark(&self) -> bool {
        !self.ends_synced
    }

    /// Whether the active file has room for a batch without blobs.
    pub(super) fn has_room(&self) -> bool {
        self.active_room_bytes() >= BATCH_ALIGNMENT_BYTES as usize
    }

    /// Creates the next file ahead of need and saves the list of files; called at every step.
    pub(crate) fn maintain(&mut self, ops: &mut Vec<DiskOp>) {
        let may_try = self.retry || !self.disk_full;
        for _ in 0..if may_try { self.wanted_count() } else { 0 } {
            let next = self.superblock.next_file;
            self.superblock.next_file = next.next();
            self.spares.creating.push_back(next);
            self.changes.push_back(PendingChange::Spare);
            ops.push(DiskOp::Create {
                file: next.log_name(),
                size_bytes: u64::from(self.file_size_bytes),
            });
        }
        // Files that are created together are listed together; on a full disk those that go make room for them.
        let may_list = self.spares.creating.is_empty() || self.disk_full;
        if self.dirty && !self.saving && may_list && may_try {
            self.dirty = false;
            self.saving = true;
            self.removals_saving = std::mem::take(&mut self.removals);
            ops.extend(self.superblock.save_ops());
            self.changes.push_back(PendingChange::IdentityFirst);
            self.changes.push_back(PendingChange::IdentitySecond);
        }
        self.retry = false;
    }

    /// Tries again what failed because the disk was full.
    pub(crate) fn retry_full(&mut self) {
        self.retry = true;
    }

    /// Takes note of a finished operation; an error means that the process must stop.
    pub(crate) fn finish(
        &mut self,
        done: DiskDone,
        ops: &mut Vec<DiskOp>,
    ) -> Result<Finished, DiskError> {
        if let DiskDone::Write { result } = done {
            return self.finish_write(result, ops);
        }
        let Some(pending) = self.changes.pop_front() else { return Ok(Finished::Other) };
        match (pending, done) {
            (PendingChange::SideFile(file, size_bytes), DiskDone::Replace { result }) => {
                if !may_pass(&result)
                    && let Some(state) = self.files.get_mut(&file)
                {
                    result?;
                    state.index_size_bytes = size_bytes;
                    state.heads = Vec::new();
                }
            }
            (PendingChange::Spare, DiskDone::Create { result }) => self.spare_created(result)?,
            (PendingChange::IdentityFirst, DiskDone::Replace { result }) => {
                self.first_copy_saved = !may_pass(&result);
                if self.first_copy_saved {
                    result?;
                }
            }
            (PendingChange::IdentitySecond, DiskDone::Replace { result }) => {
                self.identity_saved(result, ops)?;
            }
            (PendingChange::Removal(file), DiskDone::Remove { result }) => {
                if may_pass(&result) {
                    self.removals.push(file);
                    self.dirty = true;
                    self.disk_full = true;
                } else {
                    result?;
                }
            }
            (pending, done) => panic!("{done:?} finished while {pending:?} was next"),
        }
        Ok(Finished::Other)
    }

    fn finish_write(
        &mut self,
        result: Result<(), DiskError>,
        ops: &mut Vec<DiskOp>,
    ) -> Result<Finished, DiskError> {
        let Some(pending) = self.writes.pop_front() else { return Ok(Finished::Other) };
        result?;
        match pending {
            PendingWrite::Batch => Ok(Finished::Batch),
            PendingWrite::End => {
                if let Some(ended) = self.ending.pop_front() {
                    self.write_side_file(ended, ops);
                }
                Ok(Finished::Other)
            }
        }
    }

    fn spare_created(&mut self, result: Result<(), DiskError>) -> Result<(), DiskError> {
        let Some(created) = self.spares.creating.pop_front() else { return Ok(()) };
        if may_pass(&result) {
            self.disk_full = true;
            return Ok(());
        }
        result?;
        self.disk_full = false;
        if Mutation::UnlistedFileUsed.active(self.mutations) {
            self.spares.ready.push_back(created);
        } else {
            self.spares.unlisted.push(created);
        }
        self.superblock.files.push(created);
        self.dirty = true;
        Ok(())
    }

    fn identity_saved(
        &mut self,
        result: Result<(), DiskError>,
        ops: &mut Vec<DiskOp>,
    ) -> Result<(), DiskError> {
        self.saving = false;
        let removals = std::mem::take(&mut self.removals_saving);
        if may_pass(&result) || !self.first_copy_saved {
            self.dirty = true;
            self.disk_full = true;
            self.removals.extend(removals);
            return Ok(());
        }
        result?;
        if !self.dirty {
            self.spares.ready.extend(self.spares.unlisted.drain(..));
        }
        for file in removals {
            ops.push(DiskOp::Remove { files: vec![file.log_name(), file.index_name()] });
            self.changes.push_back(PendingChange::Removal(file));
            self.disk_full = false;
        }
        Ok(())
    }

    /// Forgets a file that nothing needs any more.
    pub(crate) fn remove(&mut self, file: FileSequence) {
        assert!(file != self.active, "the active file is never removed");
        self.files.remove(&file);
        self.superblock.files.retain(|listed| *listed != file);
        if self.damaged_below.is_none() && !self.has_damage() {
            self.superblock.repaired_below = FileSequence::FIRST;
        }
        self.removals.push(file);
        self.dirty = true;
    }

    fn seal(&mut self, next: FileSequence, ops: &mut Vec<DiskOp>) {
        self.write(vec![Record::End], Vec::new(), PendingWrite::End, ops);
        self.ending.push_back(self.active);
        self.active = next;
        self.offset_bytes = 0;
        self.files.entry(next).or_default();
    }

    fn write_side_file(&mut self, file: FileSequence, ops: &mut Vec<DiskOp>) {
        let Some(ended) = self.files.get(&file) else { return };
        let parts = encode_heads(&ended.heads);
        let size_bytes = parts.iter().map(Bytes::len).sum::<usize>() as u32;
        self.changes.push_back(PendingChange::SideFile(file, size_bytes));
        ops.push(DiskOp::Replace { file: file.index_name(), parts });
    }

    fn write(
        &mut self,
        records: Vec<Record>,
        payloads: Vec<Bytes>,
        pending: PendingWrite,
        ops: &mut Vec<DiskOp>,
    ) -> Batch {
        let address = Address {
            disk: self.superblock.identity.disk,
            file: self.active,
            offset_bytes: self.offset_bytes,
        };
        self.ends_synced = matches!(records.as_slice(), [Record::Synced]);
        let batch = Batch::build(address, self.previous_crc, records);
        let taken_bytes = aligned(batch.size_bytes());
        let mut parts = Vec::with_capacity(payloads.len() + 1);
        parts.push(batch.head.clone());
        parts.extend(payloads);
        ops.push(DiskOp::Write {
            file: self.active.log_name(),
            offset_bytes: u64::from(self.offset_bytes),
            parts,
        });
        self.writes.push_back(pending);
        self.previous_crc = batch.crc;
        self.offset_bytes += taken_bytes;
        let state = self.files.entry(self.active).or_default();
        state.usage.used_bytes += u64::from(taken_bytes);
        state.heads.push(batch.head.clone());
        batch
    }

    /// Keeps room for the batch that ends the file.
    fn active_room_bytes(&self) -> usize {
        (self.file_size_bytes - self.offset_bytes).saturating_sub(BATCH_ALIGNMENT_BYTES) as usize
    }

    /// Usage of each file, the active one last.
    pub(crate) fn usage(&self) -> impl Iterator<Item = (FileSequence, FileUsage)> {
        self.files.iter().map(|(file, state)| (*file, state.usage))
    }

    /// Files that may be emptied: sealed, with nothing unreadable in them.
    pub(crate) fn collectable(&self) -> impl Iterator<Item = (FileSequence, FileUsage)> {
        self.collectable_states().map(|(file, state)| (file, state.usage))
    }

    /// Those among them that must be.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = (FileSequence, FileUsage)> {
        self.collectable_states()
            .filter(|(_, state)| state.damaged)
            .map(|(file, state)| (file, state.usage))
    }

    fn collectable_states(&self) -> impl Iterator<Item = (FileSequence, &FileState)> {
        self.files
            .iter()
            .filter(|(file, state)| **file != self.active && state.unreadable_count == 0)
            .map(|(file, state)| (*file, state))
    }

    /// The oldest file.
    pub(crate) fn oldest(&self) -> FileSequence {
        self.files.first_key_value().map_or(self.active, |(file, _)| *file)
    }

    /// Counts a blob, or a partition's newest record, in (or out) of what is live in its file.
    pub(crate) fn count_live(&mut self, file: FileSequence, count: i64, bytes_each: i64) {
        if let Some(FileState { usage, .. }) = self.files.get_mut(&file) {
            usage.live_count = usage.live_count.saturating_add_signed(count);
            usage.live_bytes = usage.live_bytes.saturating_add_signed(count * bytes_each);
        }
    }

    /// Counts a blob in (or out) of those of `file` that can't be read.
    pub(crate) fn count_unreadable(&mut self, file: FileSequence, change: i32) {
        if let Some(state) = self.files.get_mut(&file) {
            state.unreadable_count = state.unreadable_count.saturating_add_signed(change);
        }
    }

    /// Blobs that can't be read now.
    pub(crate) fn unreadable_count(&self) -> u32 {
        self.files.values().map(|state| state.unreadable_count).sum()
    }

    /// Wants `file` emptied; says whether that is news. Should it be the active one, the next file
    /// is begun first.
    pub(crate) fn mark_damaged(&mut self, file: FileSequence) -> bool {
        self.files.get_mut(&file).is_some_and(|state| !std::mem::replace(&mut state.damaged, true))
    }

    /// Whether some file still waits to be emptied because of damage.
    pub(crate) fn has_damage(&self) -> bool {
        self.files.values().any(|state| state.damaged)
    }

    fn is_active_damaged(&self) -> bool {
        self.files.get(&self.active).is_some_and(|state| state.damaged)
    }

    /// Goes on in the next file if the active one is damaged. No batch may be in flight.
    pub(crate) fn leave_damaged(&mut self, ops: &mut Vec<DiskOp>) {
        if self.is_active_damaged()
            && let Some(next) = self.spares.ready.pop_front()
        {
            self.seal(next, ops);
        }
    }

    /// What was written to a file: its side file's size, or the records if there is none yet.
    pub(crate) fn contents(&self, file: FileSequence) -> Option<Result<u32, Vec<Record>>> {
        let state = self.files.get(&file)?;
        if state.index_size_bytes > 0 {
            return Some(Ok(state.index_size_bytes));
        }
        let disk = self.superblock.identity.disk;
        let batches: Option<Vec<Batch>> =
            state.heads.iter().map(|head| Batch::reparse(head, disk, file)).collect();
        Some(Err(records_of(batches?)))
    }

    /// Notes that the disk has synced: what was corrupt when it was mounted matters no more. It holds until
    /// the damaged files are gone: what is found in others from then on is news.
    pub(crate) fn set_repaired(&mut self) {
        if let Some(file) = self.damaged_below.take() {
            self.superblock.repaired_below =
                if self.has_damage() { file } else { FileSequence::FIRST };
            self.dirty = true;
        }
    }

    /// Whether the identity on the disk is up to date.
    pub(crate) fn is_saved(&self) -> bool {
        !self.dirty && !self.saving
    }
}

/// Room that `record` and its payload take, for admission.
pub(crate) fn staged_size_bytes(record: &Record, payload_bytes: usize) -> usize {
    record_size_bytes(record) + payload_bytes
}

/// Whether it failed and is to be done later.
fn may_pass(result: &Result<(), DiskError>) -> bool {
    result.as_ref().is_err_and(DiskError::may_pass)
}
