//! The page of memory by which the runner tells a node's shim what to do.

#![expect(unsafe_code, reason = "memory is shared with the node's process")]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use crate::failure::Failure;

/// Same layout as in `shim.c`.
#[repr(C)]
struct PageFault {
    number: AtomicU32,
    per_mille: AtomicU32,
    skip: AtomicU32,
    left: AtomicU32,
    count: AtomicU64,
}

/// Same layout as in `shim.c`.
#[repr(C)]
struct Page {
    faults: [PageFault; Operation::ALL.len()],
    delay_us: [AtomicU32; 3],
    full: AtomicU32,
    clock_version: AtomicU32,
    _padding: u32,
    wall_offset_ns: i64,
    anchor_ns: i64,
    skew_ns: i64,
    rate_per_million: i64,
    full_count: AtomicU64,
}

/// A node's disk and clock.
pub(crate) struct Control {
    page: *mut Page,
    /// Held while the clock is set.
    clock: Mutex<()>,
    file: PathBuf,
}

// SAFETY: all but the clock's fields are atomics, and those are written under the lock.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

/// What a disk can refuse, in the order of `shim.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Write,
    Sync,
    Read,
    /// `sync_file_range`.
    WriteOut,
    Open,
    Create,
    Allocate,
    Remove,
    Rename,
    MakeFolder,
    Stat,
    List,
    Space,
}

impl Operation {
    pub(crate) const ALL: [Self; 13] = [
        Self::Write,
        Self::Sync,
        Self::Read,
        Self::WriteOut,
        Self::Open,
        Self::Create,
        Self::Allocate,
        Self::Remove,
        Self::Rename,
        Self::MakeFolder,
        Self::Stat,
        Self::List,
        Self::Space,
    ];
}

/// What block devices and file systems answer.
pub(crate) const ERRNOS: [i32; 11] = [
    libc::EIO,
    libc::ENODATA,
    libc::EILSEQ,
    libc::ETIMEDOUT,
    libc::EREMOTEIO,
    libc::ENOLINK,
    libc::ENOMEM,
    libc::EOPNOTSUPP,
    libc::ENOSPC,
    libc::EMFILE,
    libc::EINTR,
];

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// With this number.
    pub(crate) errno: i32,
    /// So many of a thousand.
    pub(crate) per_mille: u32,
    /// After so many that do not.
    pub(crate) skip: u32,
    /// So often, or for good.
    pub(crate) count_max: Option<u32>,
}

/// How often a shim did what it was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Injected {
    pub(crate) write: u64,
    pub(crate) sync: u64,
    pub(crate) read: u64,
    pub(crate) full: u64,
    /// All others.
    pub(crate) other: u64,
}

impl Control {
    /// Makes the page, as a file.
    pub(crate) fn create(file: &Path) -> Result<Self, Failure> {
        let handle = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(file)
            .map_err(Failure::file(file))?;
        handle.set_len(size_of::<Page>() as u64).map_err(Failure::file(file))?;
        // SAFETY: a new shared mapping of a file of that size.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                handle.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(Failure::file(file)(std::io::Error::last_os_error()));
        }
        Ok(Self { page: page.cast(), clock: Mutex::new(()), file: file.to_owned() })
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping lives as long as `self`; what changes under it are atomics, and the
        // clock, which is not read through this reference.
        unsafe { &*self.page }
    }

    fn fault(&self, operation: Operation) -> &PageFault {
        &self.page().faults[operation as usize]
    }

    /// Fails so many operations of a thousand with EIO.
    pub(crate) fn fail(&self, operation: Operation, per_mille: u32) {
        let fault = Fault { errno: libc::EIO, per_mille, skip: 0, count_max: None };
        self.fail_as(operation, fault);
    }

    /// Fails operations from now on.
    pub(crate) fn fail_as(&self, operation: Operation, fault: Fault) {
        let page = self.fault(operation);
        page.per_mille.store(fault.per_mille, Ordering::SeqCst);
        page.skip.store(fault.skip, Ordering::SeqCst);
        page.left.store(fault.count_max.unwrap_or(u32::MAX), Ordering::SeqCst);
        page.number.store(fault.errno.unsigned_abs(), Ordering::SeqCst);
    }

    /// How often an operation was made to fail.
    pub(crate) fn failed_count(&self, operation: Operation) -> u64 {
        self.fault(operation).count.load(Ordering::SeqCst)
    }

    /// Makes every write and sync, or every read, wait.
    pub(crate) fn slow(&self, operation: Operation, delay: Duration) {
        let delay_us = u32::try_from(delay.as_micros()).unwrap_or(u32::MAX);
        self.page().delay_us[operation as usize].store(delay_us, Ordering::SeqCst);
    }

    /// Lets nothing new be allocated, or lets it again.
    pub(crate) fn fill(&self, full: bool) {
        self.page().full.store(full.into(), Ordering::SeqCst);
    }

    /// A good disk again. The clock stays as it is.
    pub(crate) fn heal_disk(&self) {
        for operation in Operation::ALL {
            self.fault(operation).number.store(0, Ordering::SeqCst);
        }
        for operation in [Operation::Write, Operation::Sync, Operation::Read] {
            self.slow(operation, Duration::ZERO);
        }
        self.fill(false);
    }

    /// Moves the wall clock by `offset_ns`, and lets all clocks run at a rate from now on
    /// (1 000 000 is right). Steady clocks never go back.
    pub(crate) fn bend_clock(&self, offset_ns: i64, rate_per_million: i64) {
        let _one_at_a_time = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = monotonic_ns();
        let page = self.page;
        self.page().clock_version.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // SAFETY: the fields are within the mapping, and only written here, under the lock; the
        // shim reads them again when the version changed.
        unsafe {
            let rate = (&raw const (*page).rate_per_million).read_volatile();
            let anchor_ns = (&raw const (*page).anchor_ns).read_volatile();
            let skew_ns = (&raw const (*page).skew_ns).read_volatile();
            let gained = if rate == 0 {
                0
            } else {
                i128::from(now_ns - anchor_ns) * i128::from(rate - 1_000_000) / 1_000_000
            };
            let skew_ns = skew_ns + i64::try_from(gained).unwrap_or(0);
            (&raw mut (*page).skew_ns).write_volatile(skew_ns);
            (&raw mut (*page).anchor_ns).write_volatile(now_ns);
            (&raw mut (*page).rate_per_million).write_volatile(rate_per_million);
            (&raw mut (*page).wall_offset_ns).write_volatile(offset_ns);
        }
        fence(Ordering::SeqCst);
        self.page().clock_version.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn injected(&self) -> Injected {
        let of = [Operation::Write, Operation::Sync, Operation::WriteOut, Operation::Read];
        let others = Operation::ALL.into_iter().filter(|operation| !of.contains(operation));
        Injected {
            other: others.map(|operation| self.failed_count(operation)).sum(),
            write: self.failed_count(Operation::Write),
            sync: self.failed_count(Operation::Sync) + self.failed_count(Operation::WriteOut),
            read: self.failed_count(Operation::Read),
            full: self.page().full_count.load(Ordering::SeqCst),
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `create` and nobody uses it any more. That it stays if
        // this fails harms nobody.
        let _ = unsafe { libc::munmap(self.page.cast(), size_of::<Page>()) };
    }
}

fn monotonic_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
