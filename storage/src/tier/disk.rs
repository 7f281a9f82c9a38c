//! A fast disk and a capacity disk as one [`Disk`]: the store sees one set of files.
//!
//! ```text
//! create    fast, or capacity where fast has no room      everything else   wherever the file is
//!           no room: files take `fast_bytes`, or others have filled the disk
//! ```
//! Only a sealed journal file moves, and those are never written again: so the copy is the file. In which order,
//! so that a crash loses nothing: [`files`]. Which file moves when: [`TierRules`]. That the two belong together:
//! [`pair`](super::pair).

use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use meridian_base::env::{Disk, DiskError, recycle_nothing, replace_step_by_step};
use meridian_base::sync::lock;

use super::files::{self, Room, SMALL_FILE_BYTES};
use super::{FastFile, TierRules, is_journal, pair, side_file, used_bytes};
use crate::mutation::Mutations;

/// A journal file that would leave less free than this, for side files and what says whose the disk is, finds no
/// room on the fast disk.
const LEFT_FREE_BYTES: u64 = 16 << 20;

/// One of the disks, and what is asked of it besides.
pub trait Tier: Disk + Sized {
    /// One more handle on the same disk.
    fn another(&self) -> Result<Self, DiskError>;

    /// Lets go of a file that is open: it goes, moves, or is replaced.
    fn close(&mut self, file: &str);

    /// Whether there is a file of this name.
    fn has(&self, file: &str) -> bool;

    /// The journal files there, none of which is said to be sealed.
    fn journal_files(&self) -> Vec<FastFile>;
}

/// What was moved since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Files moved to the capacity disk.
    pub moved_files: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Files begun on the capacity disk, because the fast one had no room.
    pub spilled_files: u64,
    /// Moves that failed, to be tried again.
    pub failed_moves: u64,
}

/// What lies where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierUsage {
    /// Bytes that files may take on the fast disk.
    pub fast_bytes: u64,
    /// Bytes of journal files there.
    pub fast_used_bytes: u64,
    /// Bytes of journal files on the capacity disk.
    pub capacity_used_bytes: u64,
    /// What was moved.
    pub counts: TierCounts,
}

/// What all handles on the same disks share.
#[derive(Debug)]
struct Shared {
    rules: TierRules,
    mutations: Mutations,
    /// Held while a file changes its disk or goes, so that none is in both because of both at once.
    placing: Mutex<()>,
    moved_files: AtomicU64,
    moved_bytes: AtomicU64,
    spilled_files: AtomicU64,
    failed_moves: AtomicU64,
}

/// One handle on the disks of a node: one, or a fast one and a capacity disk.
#[derive(Debug)]
pub struct TieredDisk<D> {
    fast: D,
    capacity: Option<(D, Arc<Shared>)>,
}

impl<D: Tier> TieredDisk<D> {
    /// A disk without a second one.
    pub const fn alone(fast: D) -> Self {
        Self { fast, capacity: None }
    }

    /// Two disks that were found to be a pair ([`pair::join`]). Puts right what a crash left of a move.
    pub fn join(
        mut fast: D,
        mut capacity: D,
        rules: TierRules,
        mutations: Mutations,
    ) -> Result<Self, DiskError> {
        files::put_right(&mut fast, &mut capacity, pair::NAME_FILE)?;
        let shared = Shared {
            rules,
            mutations,
            placing: Mutex::new(()),
            moved_files: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            spilled_files: AtomicU64::new(0),
            failed_moves: AtomicU64::new(0),
        };
        Ok(Self { fast, capacity: Some((capacity, Arc::new(shared))) })
    }

    /// One more handle on the same disks.
    pub fn another(&self) -> Result<Self, DiskError> {
        let fast = self.fast.another()?;
        let capacity = match &self.capacity {
            Some((disk, shared)) => Some((disk.another()?, Arc::clone(shared))),
            None => None,
        };
        Ok(Self { fast, capacity })
    }

    /// Lets go of a file that is open: it goes, moves, or is replaced.
    pub fn close(&mut self, file: &str) {
        self.fast.close(file);
        if let Some((capacity, _)) = &mut self.capacity {
            capacity.close(file);
        }
    }

    /// What lies where; `None` with one disk.
    pub fn usage(&self) -> Option<TierUsage> {
        let (capacity, shared) = self.capacity.as_ref()?;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Some(TierUsage {
            fast_bytes: shared.rules.fast_bytes,
            fast_used_bytes: used_bytes(&self.fast.journal_files()),
            capacity_used_bytes: used_bytes(&capacity.journal_files()),
            counts: TierCounts {
                moved_files: get(&shared.moved_files),
                moved_bytes: get(&shared.moved_bytes),
                spilled_files: get(&shared.spilled_files),
                failed_moves: get(&shared.failed_moves),
            },
        })
    }

    /// The file that is to move now, if any. One is sealed if its side file is on any of the disks: it is written
    /// once nothing more is written to the journal file (`journal`).
    pub fn next_move(&self) -> Option<String> {
        let (capacity, shared) = self.capacity.as_ref()?;
        let mut files = self.fast.journal_files();
        for file in &mut files {
            let side_file = side_file(&file.name);
            file.is_sealed = self.fast.has(&side_file) || capacity.has(&side_file);
        }
        shared.rules.next_move(&files, shared.mutations).map(|file| file.name.clone())
    }

    /// Copies a sealed file to the capacity disk, where it does not count yet. `pace` is told how many bytes were
    /// copied, and may take its time. Gives the size; `None` if the file is not on the fast disk.
    pub fn copy(&mut self, file: &str, pace: impl FnMut(u64)) -> Result<Option<u64>, DiskError> {
        let Some((capacity, shared)) = &mut self.capacity else { return Ok(None) };
        let copied = files::copy(&mut self.fast, capacity, file, pace, shared.mutations);
        if copied.is_err() {
            shared.failed_moves.fetch_add(1, Ordering::Relaxed);
            self.close(file);
        }
        copied
    }

    /// Has the copy take the file's place. Gives whether it has: the file may have gone meanwhile.
    pub fn place(&mut self, file: &str, size_bytes: u64) -> Result<bool, DiskError> {
        let Some((capacity, shared)) = &mut self.capacity else { return Ok(false) };
        let placed = {
            let _placing = lock(&shared.placing);
            files::place(&mut self.fast, capacity, file, shared.mutations)
        };
        match placed {
            Ok(true) => {
                shared.moved_files.fetch_add(1, Ordering::Relaxed);
                shared.moved_bytes.fetch_add(size_bytes, Ordering::Relaxed);
            }
            Ok(false) => {}
            Err(_) => _ = shared.failed_moves.fetch_add(1, Ordering::Relaxed),
        }
        self.close(file);
        placed
    }

    /// Both: gives whether the file is on the capacity disk now.
    pub fn move_file(&mut self, file: &str, pace: impl FnMut(u64)) -> Result<bool, DiskError> {
        match self.copy(file, pace)? {
            Some(size_bytes) => self.place(file, size_bytes),
            None => Ok(false),
        }
    }

    /// Does something on the disk that has the file.
    fn on_holder<T>(
        &mut self,
        action: impl Fn(&mut D) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        match (action(&mut self.fast), &mut self.capacity) {
            (Err(DiskError::NotFound { .. }), Some((capacity, _))) => action(capacity),
            (result, _) => result,
        }
    }
}

impl<D: Tier> Disk for TieredDisk<D> {
    fn create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        let Some((capacity, shared)) = &mut self.capacity else {
            return self.fast.create(file, size_bytes);
        };
        let _placing = lock(&shared.placing);
        let free_bytes = self.fast.free_bytes()?;
        let room = if is_journal(file) {
            let fits = shared.rules.fits(&self.fast.journal_files(), size_bytes)
                && free_bytes >= size_bytes + LEFT_FREE_BYTES;
            if fits { Room::Enough } else { Room::None }
        } else if free_bytes >= SMALL_FILE_BYTES {
            Room::Enough
        } else {
            Room::Last
        };
        let begun = (file, size_bytes);
        let spilled = files::begin(&mut self.fast, capacity, begun, room, shared.mutations)?;
        if spilled && is_journal(file) {
            shared.spilled_files.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn write_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        self.on_holder(|disk| disk.write_at(file, offset_bytes, parts))
    }

    fn sync(&mut self, file: &str) -> Result<(), DiskError> {
        self.on_holder(|disk| disk.sync(file))
    }

    fn read_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<usize, DiskError> {
        match (self.fast.read_at(file, offset_bytes, buffer), &mut self.capacity) {
            (Err(DiskError::NotFound { .. }), Some((capacity, _))) => {
                capacity.read_at(file, offset_bytes, buffer)
            }
            (result, _) => result,
        }
    }

    fn drop_cached(&mut self, file: &str, offset_bytes: u64, size_bytes: u64) {
        self.fast.drop_cached(file, offset_bytes, size_bytes);
        if let Some((capacity, _)) = &mut self.capacity {
            capacity.drop_cached(file, offset_bytes, size_bytes);
        }
    }

    fn size_bytes(&mut self, file: &str) -> Result<u64, DiskError> {
        self.on_holder(|disk| disk.size_bytes(file))
    }

    fn list(&mut self) -> Result<Vec<String>, DiskError> {
        let mut names = self.fast.list()?;
        if let Some((capacity, _)) = &mut self.capacity {
            names.extend(capacity.list()?.into_iter().filter(|name| !files::is_moving(name)));
            names.retain(|name| !pair::is_of_pair(name));
            names.sort_unstable();
            names.dedup();
        }
        Ok(names)
    }

    fn remove(&mut self, file: &str) -> Result<(), DiskError> {
        let Some((capacity, shared)) = &mut self.capacity else { return self.fast.remove(file) };
        let _placing = lock(&shared.placing);
        files::remove(&mut self.fast, capacity, file, shared.mutations)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let Some((capacity, shared)) = &mut self.capacity else {
            return self.fast.rename(from, to);
        };
        files::rename(&mut self.fast, capacity, from, to, shared.mutations)
    }

    fn replace(
        &mut self,
        file: &str,
        temporary: &str,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        if self.capacity.is_some() {
            return replace_step_by_step(self, file, temporary, parts);
        }
        self.fast.replace(file, temporary, parts)
    }

    fn recycle(&mut self, files: &[String]) -> Result<(), DiskError> {
        match self.capacity {
            Some(_) => recycle_nothing(self, files),
            None => self.fast.recycle(files),
        }
    }

    fn create_recycled(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        match self.capacity {
            Some(_) => self.create(file, size_bytes),
            None => self.fast.create_recycled(file, size_bytes),
        }
    }

    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        let fast = self.fast.free_bytes()?;
        match &mut self.capacity {
            Some((capacity, _)) => Ok(fast + capacity.free_bytes()?),
            None => Ok(fast),
        }
    }
}
