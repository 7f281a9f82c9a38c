//! What a scrub asks of the journal: which files there are, and what must stand in them.

use bytes::Bytes;

use super::append::{Journal, PendingChange, PendingWrite};
use super::record::{Batch, parse_heads};
use super::superblock::Superblock;
use super::{FileSequence, aligned};

/// What is known of a file's batches without reading the file.
#[derive(Debug)]
pub(crate) enum Heads {
    /// They are in the side file, which is of this size.
    SideFile(u32),
    /// There is no side file yet; these batches are durable.
    Known(Vec<Batch>),
}

impl Batch {
    /// Where the batch after it begins.
    pub(crate) fn end_bytes(&self) -> u32 {
        self.offset_bytes + aligned(self.size_bytes())
    }
}

impl Journal {
    /// The first file that is not below `from`.
    pub(crate) fn file_from(&self, from: FileSequence) -> Option<FileSequence> {
        self.files.range(from..).next().map(|(file, _)| *file)
    }

    /// Whether the file is still there.
    pub(crate) fn has_file(&self, file: FileSequence) -> bool {
        self.files.contains_key(&file)
    }

    /// The file being written, and how far.
    pub(crate) fn end(&self) -> (FileSequence, u32) {
        (self.active, self.offset_bytes)
    }

    /// The heads of a file's durable batches; `None` while its side file is being written.
    pub(crate) fn heads(&self, file: FileSequence) -> Option<Heads> {
        let state = self.files.get(&file)?;
        if state.index_size_bytes > 0 {
            return Some(Heads::SideFile(state.index_size_bytes));
        }
        let is_pending = |pending: &PendingChange| match pending {
            PendingChange::SideFile(written, _) => *written == file,
            _ => false,
        };
        if self.ending.contains(&file) || self.changes.iter().any(is_pending) {
            return None;
        }
        let in_flight = file == self.active && self.writes.contains(&PendingWrite::Batch);
        let durable = state.heads.len() - usize::from(in_flight);
        let disk = self.superblock.identity.disk;
        let reparse = |head: &Bytes| Batch::reparse(head, disk, file);
        state.heads[..durable].iter().map(reparse).collect::<Option<_>>().map(Heads::Known)
    }

    /// The batches that a side file describes; `None` if it is not what was written.
    pub(crate) fn read_heads(&self, file: FileSequence, side_file: &Bytes) -> Option<Vec<Batch>> {
        parse_heads(side_file, self.superblock.identity.disk, file)
    }

    /// The size and the version of the identity's copies; `None` while they are written.
    pub(crate) fn identity_version(&self) -> Option<(u32, u64)> {
        let size_bytes = self.superblock.encode().len() as u32;
        self.is_saved().then_some((size_bytes, self.superblock.version))
    }

    /// Takes note of what a copy of the identity of that version reads as; writes both copies again
    /// if it is not what was written. Says whether that is so.
    pub(crate) fn check_identity(&mut self, version: u64, copy: Option<Bytes>) -> bool {
        let is_whole = copy.is_some_and(|copy| Superblock::decode(copy).is_ok());
        let is_damaged = !is_whole && self.is_saved() && version == self.superblock.version;
        self.dirty |= is_damaged;
        is_damaged
    }
}
