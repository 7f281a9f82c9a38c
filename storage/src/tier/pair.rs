//! Which capacity disk belongs to which fast one, and whether it is as the fast one left it: both carry one random
//! name, and how often they were mounted.
//!
//! ```text
//! mount    names differ, or one has none: refused      capacity counts fewer mounts than fast: it is an older copy
//!          count one more: on capacity -> on fast      an older fast disk is told by its identity, as any disk is
//! ```

use std::io::IoSlice;

use meridian_base::env::{Disk, DiskError};

use super::is_journal;
use crate::mutation::{Mutation, Mutations};

/// Says, on both disks, which capacity disk belongs to which fast one.
pub const NAME_FILE: &str = "tiers";
/// 128 bits in hexadecimal, and the end of the line.
const NAME_SIZE_BYTES: usize = 33;

/// How often the pair was mounted, as far as the fast disk knows, in the same form. Its name is not that of the file on
/// the capacity disk: of two files of one name only the one on the fast disk would count.
const MOUNTS_FILE_OF_FAST: &str = "tiers-fast";
/// The file with the count of mounts on the capacity disk, which is written first.
const MOUNTS_FILE_OF_CAPACITY: &str = "tiers-capacity";

/// Why two disks are not used as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairError {
    /// A disk failed.
    Disk(DiskError),
    /// The capacity disk is not the one that files were moved to.
    WrongPair,
    /// The capacity disk has what was moved there from another fast disk.
    OtherFast,
    /// The capacity disk is an older copy of the one that files were moved to.
    OlderCapacity,
}

impl From<DiskError> for PairError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

/// Whether a file belongs to the pair, and not to who uses it.
pub fn is_of_pair(file: &str) -> bool {
    [NAME_FILE, MOUNTS_FILE_OF_FAST, MOUNTS_FILE_OF_CAPACITY].contains(&file)
}

/// Whether a disk has been one of two.
pub fn is_one_of_two(disk: &mut impl Disk) -> Result<bool, DiskError> {
    Ok(read_name(disk)?.is_some())
}

/// Refuses a capacity disk that is not the one that belongs to the fast one, or an older copy of it. Two that are new
/// are given the name that was `drawn`.
pub fn join(
    fast: &mut impl Disk,
    capacity: &mut impl Disk,
    drawn: u128,
    mutations: Mutations,
) -> Result<(), PairError> {
    match (read_name(fast)?, read_name(capacity)?) {
        (Some(ours), Some(theirs)) if ours == theirs => {}
        (Some(_), _) if Mutation::OtherCapacityUsed.active(mutations) => return Ok(()),
        (Some(_), _) => return Err(PairError::WrongPair),
        // A fast disk that is new, or not mounted: only its owner knows.
        (None, _) if capacity.list()?.iter().any(|file| is_journal(file)) => {
            return Err(PairError::OtherFast);
        }
        (None, _) => {
            let name = encode(drawn);
            // The capacity disk first: a name that only it has, and no files, is replaced.
            replace(capacity, NAME_FILE, &name)?;
            replace(fast, NAME_FILE, &name)?;
        }
    }
    let ours = read_mounts(fast, MOUNTS_FILE_OF_FAST)?;
    let theirs = read_mounts(capacity, MOUNTS_FILE_OF_CAPACITY)?;
    if theirs < ours {
        return Err(PairError::OlderCapacity);
    }
    let mounts = encode(ours.max(theirs) + 1);
    // The capacity disk first: it may be ahead of the fast one after a crash, never behind.
    let counted = overwrite(capacity, MOUNTS_FILE_OF_CAPACITY, &mounts)
        .and_then(|()| overwrite(fast, MOUNTS_FILE_OF_FAST, &mounts));
    match counted {
        // The first time: from then on it takes no room.
        Err(DiskError::Full { .. }) => Ok(()),
        counted => Ok(counted?),
    }
}

/// The name that a disk was given with the other one; none if it has none, or a crash kept it from being written.
fn read_name(disk: &mut impl Disk) -> Result<Option<Vec<u8>>, DiskError> {
    Ok(read(disk, NAME_FILE)?.filter(|name| name.len() == NAME_SIZE_BYTES))
}

/// How often a disk was mounted as one of two.
fn read_mounts(disk: &mut impl Disk, file: &str) -> Result<u128, DiskError> {
    let text = read(disk, file)?.and_then(|bytes| String::from_utf8(bytes).ok());
    Ok(text.and_then(|text| u128::from_str_radix(text.trim_end(), 16).ok()).unwrap_or_default())
}

fn encode(number: u128) -> String {
    format!("{number:032x}\n")
}

/// A small file, if there is one.
fn read(disk: &mut impl Disk, file: &str) -> Result<Option<Vec<u8>>, DiskError> {
    // One byte more: a file that is too long is none of ours.
    let mut bytes = vec![0; NAME_SIZE_BYTES + 1];
    match disk.read_at(file, 0, &mut bytes) {
        Err(DiskError::NotFound { .. }) => Ok(None),
        count => {
            bytes.truncate(count?);
            Ok(Some(bytes))
        }
    }
}

fn replace(disk: &mut impl Disk, file: &str, text: &str) -> Result<(), DiskError> {
    disk.create(file, 0)?;
    write(disk, file, text)
}

/// Writes in place: a crash leaves what was there before, or all that is new, for it is within one sector.
fn overwrite(disk: &mut impl Disk, file: &str, text: &str) -> Result<(), DiskError> {
    if read(disk, file)?.is_none() {
        disk.create(file, 0)?;
    }
    write(disk, file, text)
}

fn write(disk: &mut impl Disk, file: &str, text: &str) -> Result<(), DiskError> {
    disk.write_at(file, 0, &[IoSlice::new(text.as_bytes())])?;
    disk.sync(file)
}

#[cfg(test)]
mod tests {
    use meridian_base::env::memory::{Crash, MemoryDisk};

    use super::*;

    fn joined(fast: &MemoryDisk, capacity: &MemoryDisk) -> Result<(), PairError> {
        join(&mut fast.clone(), &mut capacity.clone(), 7, Mutations::NONE)
    }

    #[test]
    fn an_older_copy_of_the_capacity_disk_is_refused() {
        let (fast, capacity) = (MemoryDisk::new(1), MemoryDisk::new(2));
        assert_eq!(joined(&fast, &capacity), Ok(()));
        let (old_fast, old) = (fast.image(), capacity.image());
        assert_eq!(joined(&fast, &old), Ok(()), "it was not mounted since");
        let old = capacity.image();
        assert_eq!(joined(&fast, &capacity), Err(PairError::OlderCapacity));
        capacity.wipe();
        assert_eq!(joined(&fast, &capacity), Err(PairError::WrongPair));
        assert_eq!(joined(&old_fast, &old), Ok(()), "of two old ones the identity tells");
    }

    #[test]
    fn a_mount_that_was_cut_short_is_no_reason_to_refuse_the_next() {
        for fate in [Crash::LoseUnsynced, Crash::KeepUnsynced, Crash::TearUnsynced] {
            let (fast, capacity) = (MemoryDisk::new(1), MemoryDisk::new(2));
            for failing in [&fast, &capacity, &fast, &capacity] {
                assert_eq!(joined(&fast, &capacity), Ok(()));
                failing.interrupt_syncs(1);
                assert!(matches!(joined(&fast, &capacity), Err(PairError::Disk(_))));
                [&fast, &capacity].into_iter().for_each(|disk| disk.crash(fate));
            }
            assert_eq!(joined(&fast, &capacity), Ok(()));
        }
    }

    #[test]
    fn full_disks_are_mounted() {
        let (fast, capacity) = (MemoryDisk::new(1), MemoryDisk::new(2));
        for disk in [&fast, &capacity] {
            replace(&mut disk.clone(), NAME_FILE, &encode(7)).expect("there is room");
            disk.set_capacity_bytes(0);
        }
        assert_eq!(joined(&fast, &capacity), Ok(()), "by who did not count them");
        [&fast, &capacity].into_iter().for_each(|disk| disk.set_capacity_bytes(1000));
        assert_eq!(joined(&fast, &capacity), Ok(()));
        [&fast, &capacity].into_iter().for_each(|disk| disk.set_capacity_bytes(0));
        assert_eq!(joined(&fast, &capacity), Ok(()));
    }
}
