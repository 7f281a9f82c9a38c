//! The journal: what one disk keeps, shared by all partitions of its slot.
//!
//! ```text
//! identity-a, identity-b     who this disk is and which files it has (superblock.rs)
//! journal-<sequence>.log     preallocated; batches, each at a 4 KiB boundary (record.rs)
//! journal-<sequence>.idx     the heads of a sealed file's batches, so that a restart is fast
//! ```
//!
//! A *batch* is what one write and one fdatasync make durable together: a head with all its
//! records, under one checksum, and then the payloads of its blobs. A head names the disk, the file
//! and its own offset, and holds the checksum of the head before it, so that a stale or misdirected
//! sector is never taken for a batch.
//!
//! At most one batch is in flight, which tells torn writes from corruption after a crash: only the
//! last batch can be torn. A bad head with a good one behind it was durable once: that is
//! corruption, and the disk counts for nothing until it has synced (rules S4 and 28). While the
//! disk idles a `Synced` batch is added, so that corruption of the last real one is recognised too.
//!
//! Recovery does not depend on the order of records: fences, marks and log starts merge by maximum
//! and a key is written once. So records may be moved to the head of the journal and files may go
//! in any order.

mod append;
mod disk_op;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod record;
mod recover;
mod scrub;
mod superblock;

pub(crate) use append::{FileUsage, Finished, Journal, Placed, staged_size_bytes};
pub use disk_op::{DiskDone, DiskOp, Lane, execute};
pub(crate) use record::{
    Batch, PartitionRecord, RECORD_SIZE_BYTES_USUAL, Record, decode_heads, is_inline,
};
pub use recover::OpenError;
pub(crate) use recover::open;
pub(crate) use scrub::Heads;
pub(crate) use superblock::COPIES as IDENTITY_COPIES;
pub use superblock::Identity;

use std::fmt;

const JOURNAL_PREFIX: &str = "journal-";
const IDENTITY_PREFIX: &str = "identity-";

/// Batches begin at multiples of this, so that writing one never touches a sector of another.
pub(crate) const BATCH_ALIGNMENT_BYTES: u32 = 4096;

/// Number of a journal file; never reused on a disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileSequence(u32);

impl FileSequence {
    pub(crate) const FIRST: Self = Self(1);

    pub(crate) const fn new(raw: u32) -> Self {
        Self(raw)
    }

    pub(crate) const fn get(self) -> u32 {
        self.0
    }

    fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("fewer than 2^32 journal files in a disk's life"))
    }

    /// Name of the file with the batches.
    pub(crate) fn log_name(self) -> String {
        format!("journal-{:08x}.log", self.0)
    }

    /// Name of the file with the heads of the batches.
    pub(crate) fn index_name(self) -> String {
        format!("journal-{:08x}.idx", self.0)
    }
}

impl fmt::Debug for FileSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file{}", self.0)
    }
}

/// Where a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) file: FileSequence,
    pub(crate) offset_bytes: u32,
}

fn aligned(size_bytes: u32) -> u32 {
    size_bytes.next_multiple_of(BATCH_ALIGNMENT_BYTES)
}
