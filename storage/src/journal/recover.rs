//! Mounting a disk: what its files hold, what was torn, what is corrupt.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

use bytes::Bytes;
use meridian_base::env::{Disk, DiskError};
use meridian_base::id::Incarnation;

use super::append::{FileState, Journal, Tail};
use super::disk_op::{read, replace, temporary_name};
use super::record::{
    Address, Batch, HEAD_SIZE_BYTES_MIN, Record, encode_heads, head_size_bytes, is_inline,
    named_file, parse_heads,
};
use super::superblock::{Identity, Loaded, Superblock};
use super::{BATCH_ALIGNMENT_BYTES, FileSequence, Location, aligned};
use super::{IDENTITY_PREFIX, JOURNAL_PREFIX};
use crate::config::StoreConfig;
use crate::mutation::{Mutation, Mutations};

/// Why a disk could not be mounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The disk failed.
    #[error("mounting the disk: {0}; check the device")]
    Disk(#[from] DiskError),
    /// The disk has a journal, but not who it belongs to.
    #[error(
        "both copies of the disk's identity are unreadable; remove the disk's files to rejoin \
         with it empty"
    )]
    IdentityUnreadable,
    /// The configuration does not fit the disk.
    #[error(
        "{file} is of {size_bytes} bytes, and the configuration says {configured_bytes}; a disk keeps the size of its \
         files for life: set storage.file_size_bytes = {size_bytes}. Nothing was changed"
    )]
    FileSize {
        /// The journal file.
        file: String,
        /// Its size.
        size_bytes: u64,
        /// What it should be.
        configured_bytes: u32,
    },
}

/// A mounted journal.
pub(crate) struct Recovered {
    pub(crate) journal: Journal,
    /// Durable records may be lost: the disk counts for nothing until it has synced.
    pub(crate) damaged: bool,
}

/// Mounts the journal, formatting an empty disk; hands every record to `apply`.
pub(crate) fn open(
    disk: &mut dyn Disk,
    config: &StoreConfig,
    apply: &mut dyn FnMut(Record, Location),
) -> Result<Recovered, OpenError> {
    let has_journal = disk.list()?.iter().any(|name| name.starts_with(JOURNAL_PREFIX));
    let mut superblock = match Superblock::load(disk)? {
        Loaded::Found(found) => found,
        Loaded::Absent if !has_journal => format(disk, config.fresh_incarnation)?,
        Loaded::Absent | Loaded::Unreadable => return Err(OpenError::IdentityUnreadable),
    };
    check_file_sizes(disk, &superblock.files, config.file_size_bytes)?;
    superblock.identity.mount_epoch += 1;
    remove_unlisted(disk, &superblock)?;
    let mut scanner = Scanner {
        disk,
        id: superblock.identity.disk,
        file_size_bytes: config.file_size_bytes,
        apply,
        files: BTreeMap::new(),
        repaired_below: superblock.repaired_below,
        damaged: false,
        read_failed: false,
        exhausted: None,
        mutations: config.mutations,
    };
    let tail = scanner.scan_all(&superblock.files)?;
    let Scanner { mut files, damaged, .. } = scanner;
    let unsure = damaged && !Mutation::UnsureIsEmpty.active(config.mutations);
    if unsure {
        superblock.identity.incarnation = config.fresh_incarnation;
    }
    // What is gone, or lost all it had, is to be noticed once; others go when what can be read in them is elsewhere.
    let stays = |file: &FileSequence| {
        files.get(file).is_some_and(|state| !unsure || state.usage.used_bytes > 0)
    };
    let (listed, gone): (Vec<_>, Vec<_>) = superblock.files.into_iter().partition(stays);
    superblock.files = listed;
    gone.iter().for_each(|file| _ = files.remove(file));
    if !files.values().any(|file| file.damaged) {
        superblock.repaired_below = FileSequence::FIRST;
    }
    // Behind damage a new file is begun, so that a sync can say which files it made good.
    let tail = match tail {
        Some(tail) if !unsure => tail,
        _ => first_file(disk, &mut superblock, config.file_size_bytes)?,
    };
    superblock.save(disk)?;
    remove(disk, &gone)?;
    let mut journal = Journal::new(superblock, files, tail, config);
    journal.files.entry(journal.active).or_default();
    for spare in &journal.spares.ready {
        journal.files.remove(spare);
    }
    journal.damaged_below = unsure.then_some(journal.active);
    prove_tail(disk, &mut journal)?;
    Ok(Recovered { journal, damaged })
}

/// Makes an empty disk one of this node's. It says whose it is before it has any other file: one with files that
/// does not say it has lost it, and is left to its operator.
fn format(disk: &mut dyn Disk, incarnation: Incarnation) -> Result<Superblock, DiskError> {
    let mut superblock = Superblock {
        identity: Identity { disk: incarnation.get(), incarnation, mount_epoch: 0 },
        version: 0,
        files: Vec::new(),
        next_file: FileSequence::FIRST,
        repaired_below: FileSequence::FIRST,
    };
    superblock.save(disk)?;
    Ok(superblock)
}

/// Refuses a configured size that is not that of the disk's files, before anything is changed. A file that is short
/// is damage; where all are of one other size, the configuration is what is wrong.
fn check_file_sizes(
    disk: &mut dyn Disk,
    files: &[FileSequence],
    configured_bytes: u32,
) -> Result<(), OpenError> {
    let mut found: Vec<(String, u64)> = Vec::new();
    for file in files {
        let name = file.log_name();
        match disk.size_bytes(&name) {
            Err(DiskError::NotFound { .. }) => {}
            size_bytes => found.push((name, size_bytes?)),
        }
    }
    let Some((file, size_bytes)) = found.iter().max_by_key(|(_, size_bytes)| *size_bytes) else {
        return Ok(());
    };
    let are_alike = found.len() > 1 && found.iter().all(|(_, other)| other == size_bytes);
    let is_configured = *size_bytes == u64::from(configured_bytes);
    if *size_bytes > u64::from(configured_bytes) || are_alike && !is_configured {
        let (file, size_bytes) = (file.clone(), *size_bytes);
        return Err(OpenError::FileSize { file, size_bytes, configured_bytes });
    }
    Ok(())
}

/// Removes what a crash left half made or half removed.
fn remove_unlisted(disk: &mut dyn Disk, superblock: &Superblock) -> Result<(), DiskError> {
    let listed = |name: &String| {
        superblock.files.iter().any(|file| *name == file.log_name() || *name == file.index_name())
    };
    let temporary = temporary_name("");
    for name in disk.list()?.iter().filter(|name| !listed(name)) {
        let half_made = name.starts_with(IDENTITY_PREFIX) && name.ends_with(&temporary);
        if name.starts_with(JOURNAL_PREFIX) || half_made {
            disk.remove(name)?;
        }
    }
    Ok(())
}

/// Removes files that are no longer in the list.
fn remove(disk: &mut dyn Disk, files: &[FileSequence]) -> Result<(), DiskError> {
    let names: Vec<String> =
        files.iter().flat_map(|file| [file.log_name(), file.index_name()]).collect();
    if names.is_empty() { Ok(()) } else { disk.recycle(&names) }
}

/// Creates a file to write to when there is none with room.
fn first_file(
    disk: &mut dyn Disk,
    superblock: &mut Superblock,
    file_size_bytes: u32,
) -> Result<Tail, DiskError> {
    let active = superblock.next_file;
    superblock.next_file = active.next();
    disk.create(&active.log_name(), u64::from(file_size_bytes))?;
    superblock.files.push(active);
    Ok(Tail {
        active,
        offset_bytes: 0,
        previous_crc: 0,
        spares: VecDeque::new(),
        ends_synced: true,
    })
}

/// Adds a `Synced` batch, so that from here on nothing before it can pass for a torn write.
fn prove_tail(disk: &mut dyn Disk, journal: &mut Journal) -> Result<(), DiskError> {
    if !journal.wants_synced_mark() || !journal.has_room() {
        return Ok(());
    }
    let mut ops = Vec::new();
    journal.append(vec![Record::Synced], Vec::new(), &mut ops);
    for op in ops {
        let done = super::execute(disk, op);
        journal.finish(done, &mut Vec::new())?;
    }
    Ok(())
}

struct Scanner<'a> {
    disk: &'a mut dyn Disk,
    id: u64,
    file_size_bytes: u32,
    repaired_below: FileSequence,
    apply: &'a mut dyn FnMut(Record, Location),
    files: BTreeMap<FileSequence, FileState>,
    damaged: bool,
    /// A read has failed since this was last looked at.
    read_failed: bool,
    /// A read failed for want of descriptors or memory: what was not read is not damaged, and the mount fails.
    exhausted: Option<DiskError>,
    mutations: Mutations,
}

/// How far a file's batches go.
#[derive(Default)]
struct End {
    offset_bytes: u32,
    crc: u32,
    batch_count: usize,
    ends_file: bool,
    ends_synced: bool,
}

impl Scanner<'_> {
    /// Scans every listed file; gives where to write on, `None` if a new file is needed.
    fn scan_all(&mut self, listed: &[FileSequence]) -> Result<Option<Tail>, OpenError> {
        // The last file with batches that lacks its end, and the blank files behind it.
        let mut tail: Option<(FileSequence, End)> = None;
        let mut blank = Vec::new();
        let written =
            listed.iter().rposition(|file| !self.is_blank(*file)).map_or(0, |last| last + 1);
        self.check_exhausted()?;
        for (index, &file) in listed.iter().enumerate() {
            let end = if self.read_side_file(file)? {
                End { batch_count: 1, ends_file: true, ..End::default() }
            } else {
                let end = self.scan_file(file, index + 1 >= written)?;
                self.check_exhausted()?;
                let Some(end) = end else { continue };
                end
            };
            if end.batch_count == 0 {
                blank.push(file);
                continue;
            }
            // Files are filled in order: those before one with batches had some too.
            blank.drain(..).for_each(|emptied| self.gone(emptied));
            if let Some((unended, _)) = tail.take() {
                self.damage(unended, true);
            }
            if !end.ends_file {
                tail = Some((file, end));
            } else if self.files.get(&file).is_some_and(|state| state.index_size_bytes == 0) {
                self.write_side_file(file)?;
            }
        }
        let mut blank = blank.into_iter();
        let (active, end) = match tail {
            Some(tail) => tail,
            None => match blank.next() {
                Some(file) => (file, End { ends_synced: true, ..End::default() }),
                None => return Ok(None),
            },
        };
        Ok(Some(Tail {
            active,
            offset_bytes: end.offset_bytes,
            previous_crc: end.crc,
            spares: blank.collect(),
            ends_synced: end.ends_synced,
        }))
    }

    fn read_side_file(&mut self, file: FileSequence) -> Result<bool, OpenError> {
        let name = file.index_name();
        let size_bytes = match self.disk.size_bytes(&name) {
            Ok(size_bytes) if size_bytes <= u64::from(self.file_size_bytes) => size_bytes as u32,
            _ => return Ok(false),
        };
        let whole = self.size_is_right(file)?;
        let side_file = read(self.disk, &name, 0, size_bytes);
        let batches = side_file.ok().and_then(|bytes| parse_heads(&bytes, self.id, file));
        let (true, Some(batches)) = (whole, batches) else { return Ok(false) };
        let mut state = FileState { index_size_bytes: size_bytes, ..FileState::default() };
        for batch in batches {
            state.usage.used_bytes += u64::from(aligned(batch.size_bytes()));
            self.deliver(file, batch);
        }
        self.files.insert(file, state);
        Ok(true)
    }

    fn write_side_file(&mut self, file: FileSequence) -> Result<(), DiskError> {
        let Some(state) = self.files.get_mut(&file) else { return Ok(()) };
        let parts = encode_heads(&state.heads);
        let size_bytes = parts.iter().map(Bytes::len).sum::<usize>() as u32;
        match replace(self.disk, &file.index_name(), &parts) {
            Ok(()) => {
                state.index_size_bytes = size_bytes;
                state.heads = Vec::new();
                Ok(())
            }
            Err(DiskError::Full { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the journal file exists in its full size; a listed file that is gone is damage.
    fn size_is_right(&mut self, file: FileSequence) -> Result<bool, OpenError> {
        let name = file.log_name();
        let size_bytes = match self.disk.size_bytes(&name) {
            Err(DiskError::NotFound { .. }) => {
                self.gone(file);
                return Ok(false);
            }
            size_bytes => size_bytes?,
        };
        self.damage(file, size_bytes < u64::from(self.file_size_bytes));
        Ok(true)
    }

    /// Takes note of damage: it makes the disk unsure, unless that was made good, and the file goes.
    fn damage(&mut self, file: FileSequence, found: bool) {
        self.damaged |= found && file >= self.repaired_below;
        if let Some(state) = self.files.get_mut(&file) {
            state.damaged |= found;
        }
    }

    /// Takes note that a file is gone, or all that it had.
    fn gone(&mut self, file: FileSequence) {
        self.damage(file, !Mutation::GoneFileIgnored.active(self.mutations));
    }

    fn is_blank(&mut self, file: FileSequence) -> bool {
        self.batch_at(file, 0).is_none() && self.next_batch(file, 0).is_none()
    }

    /// Walks a file batch by batch; `None` if the file is gone.
    fn scan_file(&mut self, file: FileSequence, is_last: bool) -> Result<Option<End>, OpenError> {
        self.files.insert(file, FileState::default());
        if !self.size_is_right(file)? {
            self.files.remove(&file);
            return Ok(None);
        }
        let mut end = End::default();
        let mut last: Option<Batch> = None;
        loop {
            self.read_failed = false;
            let mut found = self.batch_at(file, end.offset_bytes);
            if found.is_none() {
                // A batch further on was written after this one was durable: corruption. And what can't be read
                // may have been one.
                found = self.next_batch(file, end.offset_bytes);
                self.damage(file, found.is_some() || self.read_failed);
            }
            let Some(batch) = found else { break };
            self.damage(file, end.batch_count > 0 && batch.previous_crc != end.crc);
            if let Some(previous) = last.take() {
                self.keep(file, previous);
            }
            end.offset_bytes = batch.offset_bytes + aligned(batch.size_bytes());
            end.crc = batch.crc;
            end.batch_count += 1;
            end.ends_file = batch.ends_file();
            end.ends_synced = matches!(batch.records.as_slice(), [(Record::Synced, _)]);
            last = Some(batch);
        }
        if let Some(batch) = last {
            self.keep_last(file, batch, is_last, &mut end)?;
        }
        Ok(Some(end))
    }

    /// Keeps a file's last batch if it is whole, else cuts it: it was never acknowledged.
    fn keep_last(
        &mut self,
        file: FileSequence,
        batch: Batch,
        is_last: bool,
        end: &mut End,
    ) -> Result<(), OpenError> {
        if !end.ends_file && !self.payloads_are_whole(file, &batch) {
            // With a later file behind it, it was durable once; and what can't be read may have been whole.
            self.damage(file, !is_last || self.read_failed);
            end.offset_bytes = batch.offset_bytes;
            end.crc = batch.previous_crc;
            end.batch_count -= 1;
            end.ends_synced = false;
            return Ok(());
        }
        if is_last {
            self.write_again(file, &batch)?;
        }
        self.keep(file, batch);
        Ok(())
    }

    /// Writes a batch once more. It may never have reached the disk: after a failed fsync its
    /// pages are clean, and a second fsync would say that all is well (rule 26).
    fn write_again(&mut self, file: FileSequence, batch: &Batch) -> Result<(), DiskError> {
        let name = file.log_name();
        let offset_bytes = u64::from(batch.offset_bytes);
        let bytes = read(self.disk, &name, offset_bytes, batch.size_bytes())?;
        self.disk.write_at(&name, offset_bytes, &[IoSlice::new(&bytes)])?;
        self.disk.sync(&name)
    }

    fn payloads_are_whole(&mut self, file: FileSequence, batch: &Batch) -> bool {
        batch.records.iter().all(|(record, offset_bytes)| {
            let Record::Blob { header, .. } = record else { return true };
            is_inline(header.kind)
                || self
                    .bytes(file, *offset_bytes, header.payload_size_bytes)
                    .is_some_and(|payload| crc32c::crc32c(&payload) == header.payload_crc)
        })
    }

    fn keep(&mut self, file: FileSequence, batch: Batch) {
        let state = self.files.entry(file).or_default();
        state.usage.used_bytes += u64::from(aligned(batch.size_bytes()));
        state.heads.push(batch.head.clone());
        self.deliver(file, batch);
    }

    fn deliver(&mut self, file: FileSequence, batch: Batch) {
        for (record, offset_bytes) in batch.records {
            (self.apply)(record, Location { file, offset_bytes });
        }
    }

    fn batch_at(&mut self, file: FileSequence, offset_bytes: u32) -> Option<Batch> {
        let left = self.file_size_bytes.checked_sub(offset_bytes)?;
        let first_size_bytes = left.min(BATCH_ALIGNMENT_BYTES);
        if (first_size_bytes as usize) < HEAD_SIZE_BYTES_MIN {
            return None;
        }
        let first = self.bytes(file, offset_bytes, first_size_bytes)?;
        let size_bytes = head_size_bytes(&first).filter(|size_bytes| *size_bytes <= left)?;
        let head = if size_bytes <= first_size_bytes {
            first
        } else {
            self.bytes(file, offset_bytes, size_bytes)?
        };
        let mut address = Address { disk: self.id, file, offset_bytes };
        if Mutation::OldHeadsBelieved.active(self.mutations) {
            address.file = named_file(&head)?;
        }
        let batch = Batch::parse(&head, address)?;
        (batch.size_bytes() <= left).then_some(batch)
    }

    /// The next batch at a boundary above `offset_bytes`.
    fn next_batch(&mut self, file: FileSequence, offset_bytes: u32) -> Option<Batch> {
        const WINDOW_SIZE_BYTES: u32 = 1 << 20;
        let step = BATCH_ALIGNMENT_BYTES;
        let mut window_start = aligned(offset_bytes + 1);
        while window_start < self.file_size_bytes && self.exhausted.is_none() {
            let size_bytes = WINDOW_SIZE_BYTES.min(self.file_size_bytes - window_start);
            // What can't be read at once is tried piece by piece.
            let window = self.bytes(file, window_start, size_bytes);
            for inner in (0..size_bytes).step_by(step as usize) {
                let maybe = window
                    .as_ref()
                    .is_none_or(|bytes| head_size_bytes(&bytes[inner as usize..]).is_some());
                if maybe && let Some(batch) = self.batch_at(file, window_start + inner) {
                    return Some(batch);
                }
            }
            window_start += size_bytes;
        }
        None
    }

    /// These bytes of a file, if they can be read.
    fn bytes(&mut self, file: FileSequence, offset_bytes: u32, size_bytes: u32) -> Option<Bytes> {
        let bytes = read(self.disk, &file.log_name(), u64::from(offset_bytes), size_bytes);
        self.note_failure(&bytes);
        bytes.ok()
    }

    fn check_exhausted(&mut self) -> Result<(), OpenError> {
        self.exhausted.take().map_or(Ok(()), |error| Err(error.into()))
    }

    fn note_failure(&mut self, bytes: &Result<Bytes, DiskError>) {
        let Err(error) = bytes else { return };
        self.read_failed = true;
        if !error.is_of_the_file() {
            self.exhausted.get_or_insert_with(|| error.clone());
        }
    }
}
