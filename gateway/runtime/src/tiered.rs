//! The disks of a node: a folder, or one on a fast disk and one on a capacity disk. How two are one:
//! `meridian_storage::tier`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use meridian_base::env::DiskError;
use meridian_storage::mutation::Mutations;
pub use meridian_storage::tier::disk::{TierCounts, TierUsage};
use meridian_storage::tier::pair::{self, PairError};
use meridian_storage::tier::{self, FastFile, TierRules};

use super::clock::wall_time_ms;
use super::disk::FolderDisk;

/// One handle on the disks of a node.
pub type TieredDisk = tier::disk::TieredDisk<FolderDisk>;

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

/// Refuses a capacity folder that is not there, before anybody makes it.
pub fn check_capacity_folder(folder: &Path) -> Result<(), TierError> {
    let checked = fs::read_dir(folder).map(drop);
    checked.map_err(|error| TierError::Folder {
        folder: folder.display().to_string(),
        detail: error.to_string(),
    })
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
    /// The capacity disk is an older copy of the right one.
    #[error(
        "{capacity} is an older copy of the disk that the one in {fast} has moved files to; mount the newest one, or, if \
         it is lost, empty {capacity}, remove {fast} and let the node refill"
    )]
    OlderCapacity {
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

impl TierError {
    fn of(error: PairError, fast: &Path, capacity: &Path) -> Self {
        let (fast, capacity) = (fast.display().to_string(), capacity.display().to_string());
        match error {
            PairError::Disk(error) => Self::Disk(error),
            PairError::WrongPair => Self::WrongPair { fast, capacity },
            PairError::OtherFast => Self::OtherFast { fast, capacity },
            PairError::OlderCapacity => Self::OlderCapacity { fast, capacity },
        }
    }
}

/// Opens the disks of a node; puts right what a crash left of a move.
pub fn open(folder: &Path, capacity: Option<&CapacityTier>) -> Result<TieredDisk, TierError> {
    let mut fast = FolderDisk::open(folder)?;
    let Some(tier) = capacity else {
        return if pair::is_one_of_two(&mut fast)? {
            Err(TierError::NoCapacity { fast: folder.display().to_string() })
        } else {
            Ok(TieredDisk::alone(fast))
        };
    };
    check_capacity_folder(&tier.folder)?;
    let _room_given_back = fast.discard_recycled();
    let mut capacity = FolderDisk::open(&tier.folder)?;
    let drawn = crate::entropy::entropy().map_err(|error| DiskError::Io {
        file: pair::NAME_FILE.to_owned(),
        operation: "draw a name",
        detail: error.to_string(),
    })?;
    pair::join(&mut fast, &mut capacity, drawn, Mutations::NONE)
        .map_err(|error| TierError::of(error, folder, &tier.folder))?;
    Ok(TieredDisk::join(fast, capacity, tier.rules, Mutations::NONE)?)
}

impl tier::disk::Tier for FolderDisk {
    fn another(&self) -> Result<Self, DiskError> {
        Self::open(self.folder())
    }

    fn close(&mut self, file: &str) {
        Self::close(self, file);
    }

    fn has(&self, file: &str) -> bool {
        self.folder().join(file).exists()
    }

    fn journal_files(&self) -> Vec<FastFile> {
        let Ok(entries) = fs::read_dir(self.folder()) else { return Vec::new() };
        let now_ms = wall_time_ms();
        let file = |entry: fs::DirEntry| {
            let name =
                entry.file_name().into_string().ok().filter(|name| tier::is_journal(name))?;
            let metadata = entry.metadata().ok()?;
            let written_at = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            let age_ms = u64::try_from(now_ms).ok()?.saturating_sub(written_at.as_millis() as u64);
            let age = Duration::from_millis(age_ms);
            Some(FastFile { name, size_bytes: metadata.len(), is_sealed: false, age })
        };
        entries.flatten().filter_map(file).collect()
    }
}

#[cfg(test)]
mod tests;
