//! The system calls that the standard library lacks, and what is made of them.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsRawFd;

use super::super::clock::Clock;
use super::errors::{Call, CallError, call};

/// Written at once when a file is filled with zeros.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Synced at once then: a whole file in one go would hold up the syncs of batches meanwhile.
const ZEROS_SYNCED_BYTES: u64 = 1 << 20;
/// The device begins to write once there is this much, before all of a large write is there.
pub(super) const BEGUN_SIZE_BYTES: usize = 1 << 20;
/// Most parts one `pwritev` takes (IOV_MAX on Linux).
const PART_COUNT_MAX: usize = 1024;

/// Rests between stretches for as long as one took: a file is made ahead of need, but for a new disk's first, and others
/// wait for the processor and the disk.
#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own rests, and nothing is decided by it"
)]
pub(super) fn fill_with_zeros(
    file: &File,
    size_bytes: u64,
    clock: &Clock,
) -> Result<(), CallError> {
    let mut written = 0;
    let mut began = clock.now();
    while written < size_bytes {
        let length = (size_bytes - written).min(ZEROS.len() as u64);
        let zeros = [IoSlice::new(&ZEROS[..length as usize])];
        write_all_at(file, written, &zeros)?;
        written += length;
        if written.is_multiple_of(ZEROS_SYNCED_BYTES) {
            sync_data(file, Call::SyncNew)?;
            if written < size_bytes {
                std::thread::sleep(clock.now().since(began));
                began = clock.now();
            }
        }
    }
    Ok(())
}

/// Reserves the room of a whole file.
#[expect(unsafe_code, reason = "the standard library has no fallocate")]
pub(super) fn reserve(file: &File, size_bytes: u64) -> Result<(), CallError> {
    if size_bytes == 0 {
        return Ok(());
    }
    call(Call::Allocate, || {
        let length = i64::try_from(size_bytes).map_err(|_| ErrorKind::InvalidInput)?;
        // SAFETY: the descriptor is open for writing.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    })
}

/// Writes, and has the device write each stretch before the next is there, if `writes_out`: a sync that finds it all
/// still to be written keeps the device, and the processors that feed it, busy for as long, and others on the same
/// machine waiting.
pub(super) fn write_behind(
    file: &File,
    offset_bytes: u64,
    parts: &[IoSlice<'_>],
    writes_out: bool,
) -> Result<(), CallError> {
    let mut offset_bytes = offset_bytes;
    let mut rest = parts;
    while !rest.is_empty() {
        let mut stretch_bytes = 0;
        let is_full = |part: &IoSlice<'_>| {
            let fits = stretch_bytes < BEGUN_SIZE_BYTES;
            stretch_bytes += if fits { part.len() } else { 0 };
            !fits
        };
        let count = rest.iter().position(is_full).unwrap_or(rest.len());
        let (stretch, others) = rest.split_at(count);
        write_all_at(file, offset_bytes, stretch)?;
        if writes_out && !others.is_empty() {
            write_out(file, offset_bytes, stretch_bytes)?;
        }
        offset_bytes += stretch_bytes as u64;
        rest = others;
    }
    Ok(())
}

/// Whether the system has `sync_file_range`: the folder has no writes that could have failed. A
/// sandbox may refuse it, and an error of it after a write always means that the write is lost.
pub(super) fn has_write_out(folder: &File) -> bool {
    write_out(folder, 0, 1).is_ok()
}

/// Waits until the device has a stretch. That makes nothing durable, the sync that follows does; but a failure that is
/// reported here is not reported there again.
#[expect(unsafe_code, reason = "the standard library has no sync_file_range")]
fn write_out(file: &File, offset_bytes: u64, size_bytes: usize) -> Result<(), CallError> {
    let (Ok(offset), Ok(length)) = (offset_bytes.try_into(), size_bytes.try_into()) else {
        return Ok(());
    };
    let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    call(Call::WriteOut, || {
        // SAFETY: the descriptor is open; the call reads no memory.
        zero_or_error(unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, flags) })
    })
}

/// Makes what was written to a file durable. The standard library makes the call again after EINTR: then a failure
/// that it reports is not reported again.
#[expect(unsafe_code, reason = "the standard library asks again")]
pub(super) fn sync_data(file: &File, sync: Call) -> Result<(), CallError> {
    // SAFETY: the descriptor is open.
    call(sync, || zero_or_error(unsafe { libc::fdatasync(file.as_raw_fd()) }))
}

/// Makes a new file durable with all that is known of it, or the names in a folder.
#[expect(unsafe_code, reason = "the standard library asks again")]
pub(super) fn sync_all(file: &File, sync: Call) -> Result<(), CallError> {
    // SAFETY: the descriptor is open.
    call(sync, || zero_or_error(unsafe { libc::fsync(file.as_raw_fd()) }))
}

fn zero_or_error(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes `parts` one after another.
#[expect(unsafe_code, reason = "the standard library has no stable pwritev")]
fn write_all_at(file: &File, offset_bytes: u64, parts: &[IoSlice<'_>]) -> Result<(), CallError> {
    let mut offset_bytes = offset_bytes;
    let mut parts = parts.to_vec();
    let mut parts = parts.as_mut_slice();
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        let count = parts.len().min(PART_COUNT_MAX) as libc::c_int;
        let written = call(Call::Write, || {
            let at = i64::try_from(offset_bytes).map_err(|_| ErrorKind::InvalidInput)?;
            // SAFETY: `IoSlice` has the layout of `iovec`; the slices outlive the call.
            let written =
                unsafe { libc::pwritev(file.as_raw_fd(), parts.as_ptr().cast(), count, at) };
            match usize::try_from(written) {
                Ok(0) => Err(ErrorKind::WriteZero.into()),
                Ok(written) => Ok(written),
                Err(_) => Err(io::Error::last_os_error()),
            }
        })?;
        offset_bytes += written as u64;
        IoSlice::advance_slices(&mut parts, written);
    }
    Ok(())
}

/// Room on the file system of a folder, for this user.
#[expect(unsafe_code, reason = "the standard library has no statvfs")]
pub(super) fn free_bytes(folder: &File) -> Result<u64, CallError> {
    call(Call::FreeSpace, || {
        // SAFETY: an all-zero statvfs is a valid value of that plain C struct.
        let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open and `stat` outlives the call.
        match unsafe { libc::fstatvfs(folder.as_raw_fd(), &raw mut stat) } {
            0 => Ok(stat.f_bavail.saturating_mul(stat.f_frsize)),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

/// Has the system forget what it has in memory of a part of a file. A hint: that it fails changes nothing.
#[expect(unsafe_code, reason = "the standard library has no fadvise")]
pub(super) fn drop_cached(file: &File, offset_bytes: u64, size_bytes: u64) {
    let (Ok(offset), Ok(length)) = (offset_bytes.try_into(), size_bytes.try_into()) else {
        return;
    };
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    let _a_hint =
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, length, libc::POSIX_FADV_DONTNEED) };
}
