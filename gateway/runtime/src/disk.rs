//! A folder of the host's file system as a [`Disk`].

mod calls;
mod errors;
mod open_files;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meridian_base::env::{Disk, DiskError, Instant};

use self::calls::{fill_with_zeros, reserve, write_behind};
use self::errors::{Call, CallError, call};
use self::open_files::{OpenFile, OpenFiles};
use super::clock::Clock;
use super::folder::{FORMAT_FILE, LOCK_FILE};

/// A larger new file is never filled with zeros.
const ZERO_FILL_SIZE_BYTES_MAX: u64 = 64 << 20;
/// Files that follow each other faster than this are only reserved: zeros would double what the
/// disk has to write just when it is busiest. Without haste they are filled with zeros, because the
/// first sync into reserved space costs the file system more than one over zeros.
const HASTE: Duration = Duration::from_secs(2);

/// What recycled files are called, which nobody is to see.
const RECYCLED: [&str; 2] = ["recycled-0", "recycled-1"];
/// A smaller file is removed rather than recycled.
const RECYCLED_SIZE_BYTES_MIN: u64 = 1 << 20;
/// So many times its size must be free for a file to be recycled: where room is short, it is given back.
const RECYCLED_FREE_MIN: u64 = 16;

/// A folder as a disk. What an error of the kernel means is decided in [`errors`].
#[derive(Debug)]
pub struct FolderDisk {
    folder: PathBuf,
    /// Open for as long as the disk is: where descriptors are short, syncing the folder needs none.
    handle: File,
    files: OpenFiles,
    /// The system has `sync_file_range`.
    writes_out: bool,
    clock: Clock,
    created_at: Option<Instant>,
    #[cfg(test)]
    folder_syncs: std::sync::atomic::AtomicU32,
}

/// Room on the file system of a folder that is there, for this user.
pub fn free_bytes_of(folder: &Path) -> io::Result<u64> {
    let open = File::open(folder)?;
    calls::free_bytes(&open).map_err(|error| io::Error::other(error.of(".").to_string()))
}

impl FolderDisk {
    /// Uses `folder`, creating it if it does not exist.
    pub fn open(folder: &Path) -> Result<Self, DiskError> {
        let name = folder.display().to_string();
        make_folder(folder).map_err(|error| error.of(&name))?;
        let open = || call(Call::Open, || File::open(folder)).map_err(|error| error.of(&name));
        let handle = open()?;
        // By another descriptor, so that this one still reports all that comes.
        let writes_out = calls::has_write_out(&open()?);
        Ok(Self {
            folder: folder.to_owned(),
            handle,
            files: OpenFiles::default(),
            writes_out,
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
        self.files.close(name);
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
        // What could not be kept is removed.
        Ok(fs::rename(path, place).is_ok())
    }

    fn file(&mut self, name: &str) -> Result<&mut OpenFile, DiskError> {
        self.files.get(&self.folder, name).map_err(|error| error.of(name))
    }

    /// Creates a file, or leaves nothing.
    fn try_create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.files.close(file);
        let path = self.folder.join(file);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let created = call(Call::Create, || options.open(&path)).map_err(|error| error.of(file))?;
        let now = self.clock.now();
        let in_haste = self.created_at.is_some_and(|last| now.since(last) < HASTE);
        self.created_at = Some(now);
        let allocated = if in_haste || size_bytes > ZERO_FILL_SIZE_BYTES_MAX {
            reserve(&created, size_bytes)
        } else {
            fill_with_zeros(&created, size_bytes, &self.clock)
        };
        let synced = || calls::sync_all(&created, Call::SyncNew);
        if let Err(error) = allocated.and_then(|()| synced()) {
            self.give_up(file);
            return Err(error.of(file));
        }
        self.files.add(file, created);
        self.sync_folder(file)
    }

    /// Replaces a file, or leaves it as it was.
    fn try_replace(
        &mut self,
        file: &str,
        temporary: &str,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        let path = self.folder.join(temporary);
        let write = |written: File| {
            write_behind(&written, 0, parts, self.writes_out)?;
            calls::sync_data(&written, Call::SyncNew)?;
            call(Call::Rename, || fs::rename(&path, self.folder.join(file)))
        };
        if let Err(error) = call(Call::Create, || File::create(&path)).and_then(write) {
            self.give_up(temporary);
            return Err(error.of(file));
        }
        self.sync_folder(file)
    }

    /// What a file that could not be made has taken of a full disk is what the others lack.
    fn give_up(&self, file: &str) {
        let _it_may_not_be_there = fs::remove_file(self.folder.join(file));
    }

    fn remove_file(&self, file: &str) -> Result<(), DiskError> {
        let path = self.folder.join(file);
        call(Call::Remove, || fs::remove_file(&path)).map_err(|error| error.of(file))
    }

    /// Makes creations, removals and renames durable (rule 27).
    fn sync_folder(&self, name: &str) -> Result<(), DiskError> {
        calls::sync_all(&self.handle, Call::SyncFolder).map_err(|error| error.of(name))?;
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
        let writes_out = self.writes_out;
        let open = self.file(file)?;
        open.is_unsynced = true;
        write_behind(&open.file, offset_bytes, parts, writes_out).map_err(|error| error.of(file))
    }

    fn sync(&mut self, file: &str) -> Result<(), DiskError> {
        let open = self.file(file)?;
        calls::sync_data(&open.file, Call::Sync).map_err(|error| error.of(file))?;
        open.is_unsynced = false;
        Ok(())
    }

    fn read_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<usize, DiskError> {
        let open = self.file(file)?;
        call(Call::Read, || open.file.read_at(buffer, offset_bytes)).map_err(|error| error.of(file))
    }

    fn drop_cached(&mut self, file: &str, offset_bytes: u64, size_bytes: u64) {
        if let Ok(open) = self.file(file) {
            calls::drop_cached(&open.file, offset_bytes, size_bytes);
        }
    }

    fn size_bytes(&mut self, file: &str) -> Result<u64, DiskError> {
        let open = self.file(file)?;
        let metadata = call(Call::Size, || open.file.metadata()).map_err(|error| error.of(file))?;
        Ok(metadata.len())
    }

    fn list(&mut self) -> Result<Vec<String>, DiskError> {
        // After the end `readdir` says that there is no more: each list is made anew.
        let entries =
            call(Call::List, || fs::read_dir(&self.folder)?.collect::<Result<Vec<_>, _>>());
        let mut names = Vec::new();
        for entry in entries.map_err(|error| error.of("."))? {
            let kind = call(Call::List, || entry.file_type()).map_err(|error| error.of("."))?;
            if let (true, Ok(name)) = (kind.is_file(), entry.file_name().into_string())
                && !RECYCLED.contains(&name.as_str())
                && ![LOCK_FILE, FORMAT_FILE].contains(&name.as_str())
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&mut self, file: &str) -> Result<(), DiskError> {
        self.files.close(file);
        self.remove_file(file)?;
        self.sync_folder(file)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let (old, new) = (self.folder.join(from), self.folder.join(to));
        call(Call::Rename, || fs::rename(&old, &new)).map_err(|error| error.of(from))?;
        self.files.rename(from, to);
        self.sync_folder(from)
    }

    /// Folder and file are synced once each, which the calls that it stands for would do twice.
    fn replace(
        &mut self,
        file: &str,
        temporary: &str,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        self.files.close(file);
        match self.try_replace(file, temporary, parts) {
            Err(DiskError::Full { .. }) if self.discard_recycled() => {
                self.try_replace(file, temporary, parts)
            }
            replaced => replaced,
        }
    }

    fn recycle(&mut self, files: &[String]) -> Result<(), DiskError> {
        for file in files {
            self.files.close(file);
            if self.keep_recycled(file)? {
                continue;
            }
            match self.remove_file(file) {
                Err(DiskError::NotFound { .. }) => {}
                removed => removed?,
            }
        }
        files.first().map_or(Ok(()), |file| self.sync_folder(file))
    }

    /// A recycled file needs no commit of the file system for each sync, as one does that is new: its blocks are
    /// there, and were written.
    fn create_recycled(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.files.close(file);
        for name in RECYCLED {
            if fs::rename(self.folder.join(name), self.folder.join(file)).is_ok()
                && self.size_bytes(file)? == size_bytes
            {
                return self.sync_folder(file);
            }
        }
        self.create(file, size_bytes)
    }

    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        calls::free_bytes(&self.handle).map_err(|error| error.of("."))
    }
}

/// Makes a folder and those that it is in, durably: what is in it would go with its name (rule 27).
fn make_folder(folder: &Path) -> Result<(), CallError> {
    let parent = folder.parent().unwrap_or(folder);
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let is_there = folder.is_dir();
    if !is_there {
        make_folder(parent)?;
        call(Call::MakeFolder, || match fs::create_dir(folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        })?;
    }
    // An earlier start may have ended before this.
    let opened = call(Call::Open, || File::open(parent));
    match opened.and_then(|parent| calls::sync_all(&parent, Call::SyncFolder)) {
        Err(error) if is_there && error.is_of_a_folder_of_others() => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests;
