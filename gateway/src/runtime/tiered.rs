//! A fast disk and a capacity disk as one [`Disk`]: the store sees one set of files.
//!
//! ```text
//! create    fast, or capacity where fast has no room      everything else   wherever the file is
//!           no room: files take `fast_bytes`, or others have filled the disk
//! ```
//! Only a sealed journal file moves, and those are never written again: so the copy is the file. In which order,
//! so that a crash loses nothing: `meridian_storage::tier::files`. Which file moves when: `meridian_storage::tier`.

use std::fs;
use std::io::{ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use meridian_base::env::{Disk, DiskError, recycle_nothing, replace_step_by_step};
use meridian_storage::mutation::Mutations;
use meridian_storage::tier::files::{self, Room, SMALL_FILE_BYTES};
use meridian_storage::tier::{FastFile, TierRules, used_bytes};

use super::clock::wall_time_ms;
use super::disk::FolderDisk;

/// A journal file that would leave less free than this, for side files and what says whose the disk is, finds no
/// room on the fast disk.
const LEFT_FREE_BYTES: u64 = 16 << 20;
/// Says, on both disks, which capacity disk belongs to which fast one.
const PAIR_FILE: &str = "tiers";
/// 128 bits in hexadecimal, and the end of the line.
const PAIR_NAME_SIZE_BYTES: usize = 33;
/// A second disk, and when files go there.
#[derive(Clone, Debug)]
pub struct CapacityTier {
    /// The folder that is the disk. It must be there: one that is not may be a disk that is not mounted.
    pub folder: PathBuf,
    /// When files go there.
    pub rules: TierRules,
    /// Bytes copied in a second, at most.
    pub bytes_per_second: u64,
}

impl CapacityTier {
    /// Refuses a folder that is not there, before anybody makes it.
    pub fn check_folder(&self) -> Result<(), TierError> {
        let checked = fs::read_dir(&self.folder).map(drop);
        checked.map_err(|error| TierError::Folder {
            folder: self.folder.display().to_string(),
            detail: error.to_string(),
        })
    }
}

/// Why a pair of disks can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// A disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The folder is not there.
    #[error("storage.tiers.capacity_folder {folder}: {detail}; mount the disk, or make the folder")]
    Folder {
        /// The folder.
        folder: String,
        /// What the operating system said.
        detail: String,
    },
    /// The capacity disk is not the one that files were moved to.
    #[error(
        "the disk in {fast} has moved files to a capacity disk, and {capacity} is not that one; mount the right \
         one, or, if it is lost, remove {fast} and let the node refill"
    )]
    WrongPair {
        /// The fast disk.
        fast: String,
        /// What was configured as capacity disk.
        capacity: String,
    },
    /// The capacity disk has what was moved there from another fast disk.
    #[error(
        "{capacity} has files that another fast disk than the one in {fast} moved there; mount the right one, or, \
         if it is lost, empty {capacity} and let the node refill"
    )]
    OtherFast {
        /// The fast disk.
        fast: String,
        /// The capacity disk.
        capacity: String,
    },
    /// No capacity disk is configured any more.
    #[error(
        "the disk in {fast} has moved files to a capacity disk, and there is no [storage.tiers]; configure it again, \
         or, if that disk is lost, remove {fast} and let the node refill"
    )]
    NoCapacity {
        /// The fast disk.
        fast: String,
    },
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

#[derive(Debug)]
struct Tier {
    fast: PathBuf,
    capacity: CapacityTier,
    /// Held while a file changes its disk or goes, so that none is in both because of both at once.
    placing: Mutex<()>,
    moved_files: AtomicU64,
    moved_bytes: AtomicU64,
    spilled_files: AtomicU64,
    failed_moves: AtomicU64,
}

/// One handle on the disks of a node.
#[derive(Debug)]
pub struct TieredDisk {
    fast: FolderDisk,
    capacity: Option<(FolderDisk, Arc<Tier>)>,
}

impl TieredDisk {
    /// Opens the disks of a node; puts right what a crash left of a move.
    pub fn open(folder: &Path, capacity: Option<&CapacityTier>) -> Result<Self, TierError> {
        let fast = FolderDisk::open(folder)?;
        let Some(capacity) = capacity else {
            return match read_pair_name(folder)? {
                Some(_) => Err(TierError::NoCapacity { fast: folder.display().to_string() }),
                None => Ok(Self { fast, capacity: None }),
            };
        };
        capacity.check_folder()?;
        let _room_given_back = fast.discard_recycled();
        let tier = Tier {
            fast: folder.to_owned(),
            capacity: capacity.clone(),
            placing: Mutex::new(()),
            moved_files: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            spilled_files: AtomicU64::new(0),
            failed_moves: AtomicU64::new(0),
        };
        let second = FolderDisk::open(&capacity.folder)?;
        let mut disk = Self { fast, capacity: Some((second, Arc::new(tier))) };
        disk.pair()?;
        if let Some((capacity, _)) = &mut disk.capacity {
            files::put_right(&mut disk.fast, capacity, PAIR_FILE)?;
        }
        Ok(disk)
    }

    /// One more handle on the same disks.
    pub fn another(&self) -> Result<Self, DiskError> {
        let fast = FolderDisk::open(self.fast.folder())?;
        let capacity = match &self.capacity {
            Some((disk, tier)) => Some((FolderDisk::open(disk.folder())?, Arc::clone(tier))),
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

    /// The second disk's bounds, if there is one.
    pub fn tier(&self) -> Option<&CapacityTier> {
        self.capacity.as_ref().map(|(_, tier)| &tier.capacity)
    }

    /// What lies where; `None` with one disk.
    pub fn usage(&self) -> Option<TierUsage> {
        let (_, tier) = self.capacity.as_ref()?;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Some(TierUsage {
            fast_bytes: tier.capacity.rules.fast_bytes,
            fast_used_bytes: used_bytes(&tier.fast_files()),
            capacity_used_bytes: used_bytes(&tier.files_in(&tier.capacity.folder)),
            counts: TierCounts {
                moved_files: get(&tier.moved_files),
                moved_bytes: get(&tier.moved_bytes),
                spilled_files: get(&tier.spilled_files),
                failed_moves: get(&tier.failed_moves),
            },
        })
    }

    /// The file that is to move now, if any.
    pub fn next_move(&self) -> Option<String> {
        let (_, tier) = self.capacity.as_ref()?;
        let files = tier.fast_files();
        tier.capacity.rules.next_move(&files, Mutations::NONE).map(|file| file.name.clone())
    }

    /// Moves a sealed file to the capacity disk. `pace` is told how many bytes were copied, and may take
    /// its time. Gives whether the file is there now: it may have gone meanwhile.
    pub fn move_file(&mut self, file: &str, pace: impl FnMut(u64)) -> Result<bool, DiskError> {
        let moved = self.copy_and_place(file, pace);
        if let Some((_, tier)) = &self.capacity {
            match &moved {
                Ok(Some(size_bytes)) => {
                    tier.moved_files.fetch_add(1, Ordering::Relaxed);
                    tier.moved_bytes.fetch_add(*size_bytes, Ordering::Relaxed);
                }
                Ok(None) => {}
                Err(_) => _ = tier.failed_moves.fetch_add(1, Ordering::Relaxed),
            }
        }
        self.close(file);
        moved.map(|moved| moved.is_some())
    }

    fn copy_and_place(
        &mut self,
        file: &str,
        pace: impl FnMut(u64),
    ) -> Result<Option<u64>, DiskError> {
        let Some((capacity, tier)) = &mut self.capacity else { return Ok(None) };
        let copied = files::copy(&mut self.fast, capacity, file, pace, Mutations::NONE)?;
        let Some(size_bytes) = copied else { return Ok(None) };
        let _placing = tier.placing.lock().unwrap_or_else(PoisonError::into_inner);
        let placed = files::place(&mut self.fast, capacity, file, Mutations::NONE)?;
        Ok(placed.then_some(size_bytes))
    }

    /// Refuses a capacity disk that is not the one that belongs to the fast one.
    fn pair(&mut self) -> Result<(), TierError> {
        let Some((capacity, tier)) = &mut self.capacity else { return Ok(()) };
        let shown =
            || (tier.fast.display().to_string(), tier.capacity.folder.display().to_string());
        match (read_pair_name(&tier.fast)?, read_pair_name(&tier.capacity.folder)?) {
            (Some(ours), Some(theirs)) if ours == theirs => Ok(()),
            (Some(_), _) => {
                let (fast, capacity) = shown();
                Err(TierError::WrongPair { fast, capacity })
            }
            // A fast disk that is new, or not mounted: only its owner knows.
            (None, _) if capacity.list()?.iter().any(|file| is_journal(file)) => {
                let (fast, capacity) = shown();
                Err(TierError::OtherFast { fast, capacity })
            }
            (None, _) => {
                let drawn = crate::node::entropy().map_err(|error| DiskError::Io {
                    file: PAIR_FILE.to_owned(),
                    operation: "draw a name",
                    detail: error.to_string(),
                })?;
                let name = format!("{drawn:032x}\n");
                // The capacity disk first: a name that only it has, and no files, is replaced.
                for disk in [capacity, &mut self.fast] {
                    disk.create(PAIR_FILE, 0)?;
                    disk.write_at(PAIR_FILE, 0, &[IoSlice::new(name.as_bytes())])?;
                    disk.sync(PAIR_FILE)?;
                }
                Ok(())
            }
        }
    }

    /// Does something on the disk that has the file.
    fn on_holder<T>(
        &mut self,
        action: impl Fn(&mut FolderDisk) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        match (action(&mut self.fast), &mut self.capacity) {
            (Err(DiskError::NotFound { .. }), Some((capacity, _))) => action(capacity),
            (result, _) => result,
        }
    }
}

impl Disk for TieredDisk {
    fn create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        let Some((capacity, tier)) = &mut self.capacity else {
            return self.fast.create(file, size_bytes);
        };
        let _placing = tier.placing.lock().unwrap_or_else(PoisonError::into_inner);
        let free_bytes = self.fast.free_bytes()?;
        let room = if is_journal(file) {
            let fits = tier.capacity.rules.fits(&tier.fast_files(), size_bytes)
                && free_bytes >= size_bytes + LEFT_FREE_BYTES;
            if fits { Room::Enough } else { Room::None }
        } else if free_bytes >= SMALL_FILE_BYTES {
            Room::Enough
        } else {
            Room::Last
        };
        let begun = (file, size_bytes);
        let spilled = files::begin(&mut self.fast, capacity, begun, room, Mutations::NONE)?;
        if spilled && is_journal(file) {
            tier.spilled_files.fetch_add(1, Ordering::Relaxed);
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
            names.retain(|name| name != PAIR_FILE);
            names.sort_unstable();
            names.dedup();
        }
        Ok(names)
    }

    fn remove(&mut self, file: &str) -> Result<(), DiskError> {
        let Some((capacity, tier)) = &mut self.capacity else { return self.fast.remove(file) };
        let _placing = tier.placing.lock().unwrap_or_else(PoisonError::into_inner);
        files::remove(&mut self.fast, capacity, file, Mutations::NONE)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let Some((capacity, _)) = &mut self.capacity else { return self.fast.rename(from, to) };
        files::rename(&mut self.fast, capacity, from, to, Mutations::NONE)
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

/// The name that a disk was given with the other one; none if it has none, or a crash kept it from being written.
fn read_pair_name(folder: &Path) -> Result<Option<Vec<u8>>, DiskError> {
    match fs::read(folder.join(PAIR_FILE)) {
        Ok(name) => Ok(Some(name).filter(|name| name.len() == PAIR_NAME_SIZE_BYTES)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DiskError::Io {
            file: PAIR_FILE.to_owned(),
            operation: "read",
            detail: error.to_string(),
        }),
    }
}

fn is_journal(file: &str) -> bool {
    file.starts_with("journal-") && file.ends_with(".log")
}

impl Tier {
    fn fast_files(&self) -> Vec<FastFile> {
        self.files_in(&self.fast)
    }

    /// The journal files in a folder. One is sealed if its side file is on any of the disks: it is written once
    /// nothing more is written to the journal file (`meridian_storage::journal`).
    fn files_in(&self, folder: &Path) -> Vec<FastFile> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let now_ms = wall_time_ms();
        let file = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok().filter(|name| is_journal(name))?;
            let metadata = entry.metadata().ok()?;
            let written_at = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            let age_ms = u64::try_from(now_ms).ok()?.saturating_sub(written_at.as_millis() as u64);
            let side_file = Path::new(&name).with_extension("idx");
            let disks = [&self.fast, &self.capacity.folder];
            Some(FastFile {
                is_sealed: disks.iter().any(|disk| disk.join(&side_file).exists()),
                name,
                size_bytes: metadata.len(),
                age: Duration::from_millis(age_ms),
            })
        };
        entries.flatten().filter_map(file).collect()
    }
}

#[cfg(test)]
mod tests;
