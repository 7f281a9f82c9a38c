//! What the store asks of its disk, and how it is carried out.

use std::io::IoSlice;

use bytes::Bytes;
use meridian_base::env::{Disk, DiskError};

/// One operation. It goes by one of three ways ([`DiskOp::lane`]): writes and changes are carried out in the
/// order given, reads and those of different lanes in any order or at once. So no write waits for a file that is made,
/// which takes a file system several journal commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskOp {
    /// Writes `parts` one after another at `offset_bytes`, then makes the file durable.
    Write {
        /// The file.
        file: String,
        /// Where to write.
        offset_bytes: u64,
        /// What to write.
        parts: Vec<Bytes>,
    },
    /// Reads exactly `size_bytes`.
    Read {
        /// Comes back with the answer.
        token: u64,
        /// The file.
        file: String,
        /// Where to begin.
        offset_bytes: u64,
        /// How much.
        size_bytes: u32,
        /// Read what is on the device, not what the system remembers of it; and leave no trace in
        /// its memory.
        past_cache: bool,
    },
    /// Creates a file of anything, durably.
    Create {
        /// The file.
        file: String,
        /// Its size.
        size_bytes: u64,
    },
    /// Replaces a whole file by `parts`, atomically and durably.
    Replace {
        /// The file.
        file: String,
        /// Its new contents.
        parts: Vec<Bytes>,
    },
    /// Removes files, those that are there.
    Remove {
        /// The files.
        files: Vec<String>,
    },
}

/// What is carried out one after another, but for reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Batches of the journal.
    Writes,
    /// What changes whole files.
    Changes,
    /// What changes nothing.
    Reads,
}

impl DiskOp {
    /// Which way it goes.
    pub fn lane(&self) -> Lane {
        match self {
            Self::Write { .. } => Lane::Writes,
            Self::Create { .. } | Self::Replace { .. } | Self::Remove { .. } => Lane::Changes,
            Self::Read { .. } => Lane::Reads,
        }
    }
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskDone {
    /// Of `Write`.
    Write {
        /// Durable, or why not.
        result: Result<(), DiskError>,
    },
    /// Of `Read`.
    Read {
        /// The operation's token.
        token: u64,
        /// The bytes, or why there are none.
        result: Result<Bytes, DiskError>,
    },
    /// Of `Create`.
    Create {
        /// Durable, or why not.
        result: Result<(), DiskError>,
    },
    /// Of `Replace`.
    Replace {
        /// Durable, or why not.
        result: Result<(), DiskError>,
    },
    /// Of `Remove`.
    Remove {
        /// Gone, or why not.
        result: Result<(), DiskError>,
    },
}

/// Carries `op` out. Blocks; the node does this on the disk's own thread.
pub fn execute(disk: &mut dyn Disk, op: DiskOp) -> DiskDone {
    match op {
        DiskOp::Write { file, offset_bytes, parts } => {
            let result = write(disk, &file, offset_bytes, &parts).and_then(|()| disk.sync(&file));
            DiskDone::Write { result }
        }
        DiskOp::Read { token, file, offset_bytes, size_bytes, past_cache } => {
            let size = u64::from(size_bytes);
            if past_cache {
                disk.drop_cached(&file, offset_bytes, size);
            }
            let result = read(disk, &file, offset_bytes, size_bytes);
            if past_cache {
                disk.drop_cached(&file, offset_bytes, size);
            }
            DiskDone::Read { token, result }
        }
        DiskOp::Create { file, size_bytes } => {
            DiskDone::Create { result: disk.create_recycled(&file, size_bytes) }
        }
        DiskOp::Replace { file, parts } => {
            DiskDone::Replace { result: replace(disk, &file, &parts) }
        }
        DiskOp::Remove { files } => DiskDone::Remove { result: disk.recycle(&files) },
    }
}

/// Name under which a file is written before it takes its place.
pub(super) fn temporary_name(file: &str) -> String {
    format!("{file}.new")
}

fn write(
    disk: &mut dyn Disk,
    file: &str,
    offset_bytes: u64,
    parts: &[Bytes],
) -> Result<(), DiskError> {
    disk.write_at(file, offset_bytes, &slices(parts))
}

fn slices(parts: &[Bytes]) -> Vec<IoSlice<'_>> {
    parts.iter().map(|part| IoSlice::new(part)).collect()
}

pub(super) fn replace(disk: &mut dyn Disk, file: &str, parts: &[Bytes]) -> Result<(), DiskError> {
    disk.replace(file, &temporary_name(file), &slices(parts))
}

/// Reads exactly `size_bytes`, in pieces, so that a short file never costs a large allocation.
pub(super) fn read(
    disk: &mut dyn Disk,
    file: &str,
    offset_bytes: u64,
    size_bytes: u32,
) -> Result<Bytes, DiskError> {
    let short = |detail: String| DiskError::Io { file: file.to_owned(), operation: "read", detail };
    let available = disk.size_bytes(file)?.saturating_sub(offset_bytes);
    if available < u64::from(size_bytes) {
        return Err(short(format!("{available} of {size_bytes} bytes at {offset_bytes}")));
    }
    let mut buffer = vec![0; size_bytes as usize];
    let mut filled = 0;
    while filled < buffer.len() {
        let count = disk.read_at(file, offset_bytes + filled as u64, &mut buffer[filled..])?;
        if count == 0 {
            return Err(short(format!("{filled} of {size_bytes} bytes at {offset_bytes}")));
        }
        filled += count;
    }
    Ok(buffer.into())
}
