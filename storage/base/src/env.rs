//! The seams to the world: clock, chance and disk. The real ones live in `gateway/runtime/src`,
//! the simulated ones in `jepsen/src`; nothing else touches the world.

use std::io::IoSlice;
use std::ops::{Add, Sub};
use std::time::Duration;

#[cfg(feature = "test-support")]
pub mod conformance;
#[cfg(feature = "test-support")]
pub mod memory;

/// A point on a node's monotonic clock, in microseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The clock's start.
    pub const ZERO: Self = Self(0);

    /// Builds an instant from microseconds since the clock's start.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the clock's start.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`, zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// Chance. Seeded, so that a simulation replays.
pub trait Rng {
    /// 64 random bits.
    fn next_u64(&mut self) -> u64;

    /// A number below `bound`; 0 if `bound` is 0.
    fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }
}

/// SplitMix64: small, fast, and good enough for jitter and simulation; not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// A generator that always gives the same numbers for the same seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl Rng for SplitMix {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Why a disk operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// No file of that name.
    #[error("{file}: no such file")]
    NotFound {
        /// The file's name.
        file: String,
    },
    /// No space for the write.
    #[error("{file}: disk full; free space or add a disk")]
    Full {
        /// The file's name.
        file: String,
    },
    /// The machine lacks what the call needs: it was not carried out, and says nothing of the file.
    #[error(
        "{file}: {operation} failed: {detail}; the process lacks descriptors or memory, and the disk is well: raise \
         their limits (LimitNOFILE, MemoryMax)"
    )]
    Exhausted {
        /// The file's name.
        file: String,
        /// Which call failed.
        operation: &'static str,
        /// The operating system's words.
        detail: String,
    },
    /// The device failed. After a failed `sync` what was written must be taken as lost.
    #[error("{file}: {operation} failed: {detail}")]
    Io {
        /// The file's name.
        file: String,
        /// Which call failed.
        operation: &'static str,
        /// The operating system's words.
        detail: String,
    },
}

impl DiskError {
    /// Whether what failed may be done later, when others have given back what it lacked: nothing is lost or damaged.
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Exhausted { .. })
    }

    /// Whether this says that a file's bytes can't be had, rather than that the machine lacks what reading takes.
    pub const fn is_of_the_file(&self) -> bool {
        !matches!(self, Self::Exhausted { .. })
    }
}

/// A storage engine: a flat folder of files on one disk, below all that the store decides. Calls
/// block; the real one runs on a thread of its own. An engine is what passes the suite in `conformance`.
///
/// Nothing is durable before `sync` of the same file has returned `Ok`; `create`, `remove` and
/// `rename` are durable when they return (the implementation syncs the folder). What fails may have been done all the
/// same, and be seen, and be lost in a crash; but of a file that could not be made nothing is left.
pub trait Disk: Send {
    /// Creates (or truncates) `file` with `size_bytes` preallocated zero bytes, or leaves none.
    fn create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError>;

    /// Writes `parts` one after another at `offset_bytes`; grows the file when it is longer.
    fn write_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError>;

    /// Makes all earlier writes to `file` durable (fdatasync).
    fn sync(&mut self, file: &str) -> Result<(), DiskError>;

    /// Reads up to `buffer.len()` bytes at `offset_bytes`; returns how many there were.
    fn read_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<usize, DiskError>;

    /// Forgets what is in memory of a part of `file` that is durable, so that the next read comes
    /// from the device. A hint; by default there is nothing to forget.
    fn drop_cached(&mut self, _file: &str, _offset_bytes: u64, _size_bytes: u64) {}

    /// Size of `file` in bytes.
    fn size_bytes(&mut self, file: &str) -> Result<u64, DiskError>;

    /// Names of all files, sorted.
    fn list(&mut self) -> Result<Vec<String>, DiskError>;

    /// Removes `file`.
    fn remove(&mut self, file: &str) -> Result<(), DiskError>;

    /// Renames `from` to `to`, replacing it.
    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Replaces `file` as a whole by `parts`, atomically; durable when it returns. Meanwhile there is a file
    /// of the name `temporary`, which a crash may leave.
    fn replace(
        &mut self,
        file: &str,
        temporary: &str,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        replace_step_by_step(self, file, temporary, parts)
    }

    /// Removes those of `files` that are there, and may keep their room for `create_recycled`, until anything else
    /// needs it.
    fn recycle(&mut self, files: &[String]) -> Result<(), DiskError> {
        recycle_nothing(self, files)
    }

    /// As `create`, but there may be anything in the file that a recycled one of this size held: who reads
    /// it must know what is its own.
    fn create_recycled(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.create(file, size_bytes)
    }

    /// Bytes that can still be allocated on this disk.
    fn free_bytes(&mut self) -> Result<u64, DiskError>;
}

/// [`Disk::replace`] by the other calls.
pub fn replace_step_by_step<D: Disk + ?Sized>(
    disk: &mut D,
    file: &str,
    temporary: &str,
    parts: &[IoSlice<'_>],
) -> Result<(), DiskError> {
    let mut written = disk.create(temporary, 0);
    written = written.and_then(|()| disk.write_at(temporary, 0, parts));
    written = written.and_then(|()| disk.sync(temporary));
    if let Err(error) = written {
        // What it has taken of a full disk is what the others lack.
        let _it_may_not_be_there = disk.remove(temporary);
        return Err(error);
    }
    disk.rename(temporary, file)
}

/// [`Disk::recycle`] of a disk that keeps no room.
pub fn recycle_nothing<D: Disk + ?Sized>(disk: &mut D, files: &[String]) -> Result<(), DiskError> {
    files.iter().try_for_each(|file| match disk.remove(file) {
        Err(DiskError::NotFound { .. }) => Ok(()),
        removed => removed,
    })
}
