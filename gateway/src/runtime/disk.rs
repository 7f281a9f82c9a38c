//! A folder of the host's file system as a [`Disk`].

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meridian_base::env::{Disk, DiskError, Instant};

use super::clock::Clock;

/// Written at once when a file is filled with zeros.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Synced at once then: a whole file in one go would hold up the syncs of batches meanwhile.
const ZEROS_SYNCED_BYTES: u64 = 1 << 20;
/// A larger new file is never filled with zeros.
const ZERO_FILL_SIZE_BYTES_MAX: u64 = 64 << 20;
/// Files that follow each other faster than this are only reserved: zeros would double what the
/// disk has to write just when it is busiest. Without haste they are filled with zeros, because the
/// first sync into reserved space costs the file system more than one over zeros.
const HASTE: Duration = Duration::from_secs(2);

/// The device begins to write once there is this much, before all of a large write is there.
const BEGUN_SIZE_BYTES: usize = 1 << 20;

/// What recycled files are called, which nobody is to see.
const RECYCLED: [&str; 2] = ["recycled-0", "recycled-1"];
/// A smaller file is removed rather than recycled.
const RECYCLED_SIZE_BYTES_MIN: u64 = 1 << 20;
/// So many times its size must be free for a file to be recycled: where room is short, it is given back.
const RECYCLED_FREE_MIN: u64 = 16;

/// A folder as a disk. Open files are kept open.
#[derive(Debug)]
pub struct FolderDisk {
    folder: PathBuf,
    files: HashMap<String, File>,
    clock: Clock,
    created_at: Option<Instant>,
    #[cfg(test)]
    folder_syncs: std::sync::atomic::AtomicU32,
}

impl FolderDisk {
    /// Uses `folder`, creating it if it does not exist.
    pub fn open(folder: &Path) -> Result<Self, DiskError> {
        let name = folder.display().to_string();
        make_folder(folder).map_err(|error| disk_error(&name, "mkdir", &error))?;
        Ok(Self {
            folder: folder.to_owned(),
            files: HashMap::new(),
            clock: Clock::start(),
            created_at: None,
            #[cfg(test)]
            folder_syncs: std::sync::atomic::AtomicU32::default(),
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Lets go of a file that is open: it goes, or is replaced.
    pub fn close(&mut self, name: &str) {
        self.files.remove(name);
    }

    /// Gives back the room of recycled files; says whether there was any. Whoever lacks room has it first.
    pub fn discard_recycled(&self) -> bool {
        let removed = RECYCLED.map(|name| fs::remove_file(self.folder.join(name)).is_ok());
        removed.contains(&true)
    }

    /// Keeps a large file for `create_recycled`, if there is a place for it and room enough.
    fn keep_recycled(&mut self, file: &str) -> Result<bool, DiskError> {
        let path = self.folder.join(file);
        let size_bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let is_roomy = self.free_bytes()? >= RECYCLED_FREE_MIN.saturating_mul(size_bytes);
        if size_bytes < RECYCLED_SIZE_BYTES_MIN || !is_roomy {
            return Ok(false);
        }
        let mut places = RECYCLED.iter().map(|name| self.folder.join(name));
        let Some(place) = places.find(|place| !place.exists()) else { return Ok(false) };
        Ok(fs::rename(path, place).is_ok())
    }

    fn file(&mut self, name: &str) -> Result<&File, DiskError> {
        if !self.files.contains_key(name) {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(self.folder.join(name))
                .map_err(|error| disk_error(name, "open", &error))?;
            self.files.insert(name.to_owned(), file);
        }
        self.files.get(name).ok_or_else(|| DiskError::NotFound { file: name.to_owned() })
    }

    /// Creates a file, or leaves nothing.
    fn try_create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.files.remove(file);
        let created = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.folder.join(file))
            .map_err(|error| disk_error(file, "create", &error))?;
        let now = self.clock.now();
        let in_haste = self.created_at.is_some_and(|last| now.since(last) < HASTE);
        self.created_at = Some(now);
        let allocated = if in_haste || size_bytes > ZERO_FILL_SIZE_BYTES_MAX {
            reserve(&created, size_bytes)
        } else {
            fill_with_zeros(&created, size_bytes, &self.clock)
        };
        let allocated = allocated.map_err(|error| disk_error(file, "allocate", &error));
        let synced = || created.sync_all().map_err(|error| disk_error(file, "fsync", &error));
        if let Err(error) = allocated.and_then(|()| synced()) {
            self.give_up(file);
            return Err(error);
        }
        self.files.insert(file.to_owned(), created);
        self.sync_folder(file)
    }

    /// Replaces a file, or leaves it as it was.
    fn try_replace(
        &mut self,
        file: &str,
        temporary: &str,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        let error = |operation| move |error: io::Error| disk_error(file, operation, &error);
        let path = self.folder.join(temporary);
        let written = File::create(&path).map_err(error("create")).and_then(|written| {
            write_all_at(&written, 0, parts).map_err(error("write"))?;
            written.sync_data().map_err(error("fdatasync"))?;
            fs::rename(&path, self.folder.join(file)).map_err(error("rename"))
        });
        if let Err(error) = written {
            self.give_up(temporary);
            return Err(error);
        }
        self.sync_folder(file)
    }

    /// What a file that could not be made has taken of a full disk is what the others lack.
    fn give_up(&self, file: &str) {
        let _it_may_not_be_there = fs::remove_file(self.folder.join(file));
    }

    /// Makes creations, removals and renames durable (rule 27).
    fn sync_folder(&self, name: &str) -> Result<(), DiskError> {
        File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| disk_error(name, "fsync of the folder", &error))?;
        #[cfg(test)]
        self.folder_syncs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }
}

impl Disk for FolderDisk {
    fn create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        match self.try_create(file, size_bytes) {
            Err(DiskError::Full { .. }) if self.discard_recycled() => {
                self.try_create(file, size_bytes)
            }
            created => created,
        }
    }

    fn write_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        let handle = self.file(file)?;
        write_behind(handle, offset_bytes, parts).map_err(|error| disk_error(file, "write", &error))
    }

    fn sync(&mut self, file: &str) -> Result<(), DiskError> {
        self.file(file)?.sync_data().map_err(|error| disk_error(file, "fdatasync", &error))
    }

    fn read_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<usize, DiskError> {
        let handle = self.file(file)?;
        loop {
            match handle.read_at(buffer, offset_bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result.map_err(|error| disk_error(file, "read", &error)),
            }
        }
    }

    #[expect(unsafe_code, reason = "the standard library has no fadvise")]
    fn drop_cached(&mut self, file: &str, offset_bytes: u64, size_bytes: u64) {
        let (Ok(offset), Ok(length)) = (offset_bytes.try_into(), size_bytes.try_into()) else {
            return;
        };
        if let Ok(handle) = self.file(file) {
            let advice = libc::POSIX_FADV_DONTNEED;
            // SAFETY: the descriptor is open; the call reads no memory. A refused hint costs nothing.
            let _hint = unsafe { libc::posix_fadvise(handle.as_raw_fd(), offset, length, advice) };
        }
    }

    fn size_bytes(&mut self, file: &str) -> Result<u64, DiskError> {
        let handle = self.file(file)?;
        handle.metadata().map(|data| data.len()).map_err(|error| disk_error(file, "stat", &error))
    }

    fn list(&mut self) -> Result<Vec<String>, DiskError> {
        let error = |error: &io::Error| disk_error(".", "list", error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(|e| error(&e))? {
            let entry = entry.map_err(|e| error(&e))?;
            let is_file = entry.file_type().map_err(|e| error(&e))?.is_file();
            if let (true, Ok(name)) = (is_file, entry.file_name().into_string())
                && !RECYCLED.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&mut self, file: &str) -> Result<(), DiskError> {
        self.files.remove(file);
        fs::remove_file(self.folder.join(file))
            .map_err(|error| disk_error(file, "remove", &error))?;
        self.sync_folder(file)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.files.remove(from);
        self.files.remove(to);
        fs::rename(self.folder.join(from), self.folder.join(to))
            .map_err(|error| disk_error(from, "rename", &error))?;
        self.sync_folder(from)
    }

    /// Folder and file are synced once each, which the calls that it stands for would do twice.
    fn replace(
        &mut self,
        file: &str,
        temporary: &str,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        self.files.remove(file);
        match self.try_replace(file, temporary, parts) {
            Err(DiskError::Full { .. }) if self.discard_recycled() => {
                self.try_replace(file, temporary, parts)
            }
            replaced => replaced,
        }
    }

    fn recycle(&mut self, files: &[String]) -> Result<(), DiskError> {
        for file in files {
            self.files.remove(file);
            if self.keep_recycled(file)? {
                continue;
            }
            match fs::remove_file(self.folder.join(file)) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed.map_err(|error| disk_error(file, "remove", &error))?,
            }
        }
        files.first().map_or(Ok(()), |file| self.sync_folder(file))
    }

    /// A recycled file needs no commit of the file system for each sync, as one does that is new: its blocks are
    /// there, and were written.
    fn create_recycled(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.files.remove(file);
        for name in RECYCLED {
            if fs::rename(self.folder.join(name), self.folder.join(file)).is_ok()
                && self.size_bytes(file)? == size_bytes
            {
                return self.sync_folder(file);
            }
        }
        self.create(file, size_bytes)
    }

    #[expect(unsafe_code, reason = "the standard library has no statvfs")]
    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        let folder = File::open(&self.folder).map_err(|error| disk_error(".", "open", &error))?;
        // SAFETY: an all-zero statvfs is a valid value of that plain C struct.
        let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open and `stat` outlives the call.
        if unsafe { libc::fstatvfs(folder.as_raw_fd(), &raw mut stat) } != 0 {
            return Err(disk_error(".", "statvfs", &io::Error::last_os_error()));
        }
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Makes a folder and those that it is in, durably: what is in it would go with its name (rule 27).
fn make_folder(folder: &Path) -> io::Result<()> {
    let parent = folder.parent().unwrap_or(folder);
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let is_there = folder.is_dir();
    if !is_there {
        make_folder(parent)?;
        match fs::create_dir(folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    // That of an earlier start may have ended before this; but who may not read the parent did not make it.
    let synced = File::open(parent).and_then(|parent| parent.sync_all());
    if is_there { Ok(()) } else { synced }
}

/// Rests between stretches for as long as one took: a file is made ahead of need, but for a new disk's first, and others
/// wait for the processor and the disk.
#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own rests, and nothing is decided by it"
)]
fn fill_with_zeros(file: &File, size_bytes: u64, clock: &Clock) -> io::Result<()> {
    let mut written = 0;
    let mut began = clock.now();
    while written < size_bytes {
        let length = (size_bytes - written).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..length as usize], written)?;
        written += length;
        if written.is_multiple_of(ZEROS_SYNCED_BYTES) {
            file.sync_data()?;
            if written < size_bytes {
                std::thread::sleep(clock.now().since(began));
                began = clock.now();
            }
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "the standard library has no fallocate")]
fn reserve(file: &File, size_bytes: u64) -> io::Result<()> {
    if size_bytes == 0 {
        return Ok(());
    }
    let length = i64::try_from(size_bytes).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    loop {
        // SAFETY: the descriptor is open for writing.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Writes, and has the device write each stretch before the next is there: a sync that finds it all still to be
/// written keeps the device, and the processors that feed it, busy for as long, and others on the same machine waiting.
fn write_behind(file: &File, offset_bytes: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
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
        if !others.is_empty() {
            write_out(file, offset_bytes, stretch_bytes)?;
        }
        offset_bytes += stretch_bytes as u64;
        rest = others;
    }
    Ok(())
}

/// Waits until the device has a stretch. That makes nothing durable, the sync that follows does; but a failure told
/// here is not told there again.
#[expect(unsafe_code, reason = "the standard library has no sync_file_range")]
fn write_out(file: &File, offset_bytes: u64, size_bytes: usize) -> io::Result<()> {
    let (Ok(offset), Ok(length)) = (offset_bytes.try_into(), size_bytes.try_into()) else {
        return Ok(());
    };
    let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open; the call reads no memory.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(error),
        // Not every file system has it, and none has to.
        _ => Ok(()),
    }
}

/// Most parts one `pwritev` takes (IOV_MAX on Linux).
const PART_COUNT_MAX: usize = 1024;

#[expect(unsafe_code, reason = "the standard library has no stable pwritev")]
fn write_all_at(file: &File, offset_bytes: u64, parts: &[IoSlice<'_>]) -> io::Result<()> {
    let mut offset_bytes = offset_bytes;
    let mut parts = parts.to_vec();
    let mut parts = parts.as_mut_slice();
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        let count = parts.len().min(PART_COUNT_MAX) as libc::c_int;
        let at = i64::try_from(offset_bytes).map_err(|_| ErrorKind::InvalidInput)?;
        // SAFETY: `IoSlice` has the layout of `iovec`; the slices outlive the call.
        let written = unsafe { libc::pwritev(file.as_raw_fd(), parts.as_ptr().cast(), count, at) };
        match usize::try_from(written) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset_bytes += written as u64;
                IoSlice::advance_slices(&mut parts, written);
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

fn disk_error(file: &str, operation: &'static str, error: &io::Error) -> DiskError {
    let file = file.to_owned();
    match error.kind() {
        ErrorKind::NotFound => DiskError::NotFound { file },
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskError::Full { file },
        _ => DiskError::Io { file, operation, detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("meridian-{name}-{}", std::process::id()));
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _best_effort = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn it_does_what_every_disk_must() -> Result<(), DiskError> {
        for seed in 0..3 {
            let scratch = Scratch::new(&format!("folder-disk-conformance-{seed}"));
            FolderDisk::open(&scratch.0)?;
            meridian_base::env::conformance::check(seed, &mut || {
                Box::new(FolderDisk::open(&scratch.0).expect("a folder that is there"))
            });
        }
        Ok(())
    }

    #[test]
    fn a_folder_is_made_with_those_that_it_is_in() -> Result<(), DiskError> {
        let scratch = Scratch::new("folder-disk-nested");
        let folder = scratch.0.join("data").join("disk");
        for _ in 0..2 {
            FolderDisk::open(&folder)?.create("a", 10)?;
        }
        fs::write(scratch.0.join("file"), "").expect("room for a file");
        assert!(FolderDisk::open(&scratch.0.join("file").join("disk")).is_err());
        Ok(())
    }

    /// No test cuts the power under a folder, so that none would miss its sync.
    #[test]
    fn every_change_of_the_folder_is_synced() -> Result<(), DiskError> {
        type Change = fn(&mut FolderDisk) -> Result<(), DiskError>;
        let scratch = Scratch::new("folder-disk-folder-syncs");
        let mut disk = FolderDisk::open(&scratch.0)?;
        let changes: [Change; 7] = [
            |disk| disk.create("a", RECYCLED_SIZE_BYTES_MIN),
            |disk| disk.rename("a", "b"),
            |disk| disk.recycle(&["b".to_owned()]),
            |disk| disk.create_recycled("c", RECYCLED_SIZE_BYTES_MIN),
            |disk| disk.remove("c"),
            |disk| disk.create_recycled("d", 10),
            |disk| disk.replace("e", "e.new", &[IoSlice::new(b"whole")]),
        ];
        for (index, change) in changes.iter().enumerate() {
            change(&mut disk)?;
            assert_eq!(*disk.folder_syncs.get_mut(), index as u32 + 1, "change {index}");
        }
        Ok(())
    }

    #[test]
    fn a_large_write_goes_in_stretches() -> Result<(), DiskError> {
        let scratch = Scratch::new("folder-disk-stretches");
        let mut disk = FolderDisk::open(&scratch.0)?;
        disk.create("a", 0)?;
        let sizes = [1, BEGUN_SIZE_BYTES - 1, 0, 3 * BEGUN_SIZE_BYTES, 7, BEGUN_SIZE_BYTES, 5];
        let parts = sizes.iter().zip(1..).map(|(size, byte)| vec![byte; *size]);
        let parts: Vec<Vec<u8>> = parts.collect();
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        disk.write_at("a", 3, &slices)?;
        disk.sync("a")?;
        let expected = [vec![0; 3], parts.concat()].concat();
        assert_eq!(fs::read(scratch.0.join("a")).ok(), Some(expected));
        Ok(())
    }

    #[test]
    fn a_recycled_file_is_used_again() -> Result<(), DiskError> {
        let scratch = Scratch::new("folder-disk-recycled");
        let mut disk = FolderDisk::open(&scratch.0)?;
        let size_bytes = RECYCLED_SIZE_BYTES_MIN;
        let old: Vec<String> = (0..3).map(|number| format!("old-{number}")).collect();
        for name in &old {
            disk.create(name, size_bytes)?;
            disk.write_at(name, 5, &[IoSlice::new(name.as_bytes())])?;
        }
        disk.create("small", 100)?;
        disk.recycle(&[&old[..], &["small".to_owned()]].concat())?;
        let kept = |name: &str| scratch.0.join(name).exists();
        assert!(kept("recycled-0") && kept("recycled-1") && !kept("recycled-2"));
        let mut found = [0; 5];
        for name in &old[..2] {
            disk.create_recycled(name, size_bytes)?;
            disk.read_at(name, 5, &mut found)?;
            assert_eq!(&found, name.as_bytes());
        }
        disk.create_recycled(&old[2], size_bytes)?;
        disk.read_at(&old[2], 5, &mut found)?;
        assert_eq!(found, [0; 5], "there was none left");
        disk.recycle(&old[..1])?;
        assert!(disk.discard_recycled() && !disk.discard_recycled());
        assert_eq!(disk.list()?, old[1..]);
        Ok(())
    }

    #[test]
    fn a_file_that_cannot_be_made_leaves_nothing() -> Result<(), DiskError> {
        let scratch = Scratch::new("folder-disk-failed");
        let mut disk = FolderDisk::open(&scratch.0)?;
        disk.create("kept", 3)?;
        // More than any file can have.
        assert!(disk.create("too-large", u64::MAX).is_err());
        fs::create_dir(scratch.0.join("folder")).expect("a folder that is there");
        assert!(disk.replace("folder", "folder.new", &[IoSlice::new(b"x")]).is_err());
        assert_eq!(disk.list()?, ["kept"]);
        Ok(())
    }

    #[test]
    fn keeps_what_is_written_in_parts() -> Result<(), DiskError> {
        let scratch = Scratch::new("folder-disk");
        let mut disk = FolderDisk::open(&scratch.0)?;
        disk.create("a", 8192)?;
        assert_eq!(disk.size_bytes("a")?, 8192);
        let many = vec![[7u8; 3]; 2000];
        let parts: Vec<IoSlice<'_>> = many.iter().map(|part| IoSlice::new(part)).collect();
        disk.write_at("a", 100, &parts)?;
        disk.sync("a")?;
        let mut buffer = vec![0; 6002];
        assert_eq!(disk.read_at("a", 99, &mut buffer)?, 6002);
        assert_eq!((buffer[0], buffer[1], buffer[6000], buffer[6001]), (0, 7, 7, 0));
        disk.rename("a", "b")?;
        assert_eq!(disk.list()?, ["b"]);
        disk.remove("b")?;
        assert_eq!(disk.list()?, Vec::<String>::new());
        assert!(matches!(disk.sync("b"), Err(DiskError::NotFound { .. })));
        assert!(disk.free_bytes()? > 0);
        Ok(())
    }
}
