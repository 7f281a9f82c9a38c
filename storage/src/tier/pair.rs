//! Which capacity disk belongs to which fast one: both carry one random name.

use std::io::IoSlice;

use meridian_base::env::{Disk, DiskError};

use super::is_journal;

/// Says, on both disks, which capacity disk belongs to which fast one.
pub const NAME_FILE: &str = "tiers";
/// 128 bits in hexadecimal, and the end of the line.
const NAME_SIZE_BYTES: usize = 33;

/// Why two disks are not used as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairError {
    /// A disk failed.
    Disk(DiskError),
    /// The capacity disk is not the one that files were moved to.
    WrongPair,
    /// The capacity disk has what was moved there from another fast disk.
    OtherFast,
}

impl From<DiskError> for PairError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

/// Whether a file belongs to the pair, and not to who uses it.
pub fn is_of_pair(file: &str) -> bool {
    file == NAME_FILE
}

/// Whether a disk has been one of two.
pub fn is_one_of_two(disk: &mut impl Disk) -> Result<bool, DiskError> {
    Ok(read_name(disk)?.is_some())
}

/// Refuses a capacity disk that is not the one that belongs to the fast one. Two that are new are given the name
/// that was `drawn`.
pub fn join(fast: &mut impl Disk, capacity: &mut impl Disk, drawn: u128) -> Result<(), PairError> {
    match (read_name(fast)?, read_name(capacity)?) {
        (Some(ours), Some(theirs)) if ours == theirs => Ok(()),
        (Some(_), _) => Err(PairError::WrongPair),
        // A fast disk that is new, or not mounted: only its owner knows.
        (None, _) if capacity.list()?.iter().any(|file| is_journal(file)) => {
            Err(PairError::OtherFast)
        }
        (None, _) => {
            let name = format!("{drawn:032x}\n");
            // The capacity disk first: a name that only it has, and no files, is replaced.
            write(capacity, NAME_FILE, name.as_bytes())?;
            write(fast, NAME_FILE, name.as_bytes())?;
            Ok(())
        }
    }
}

/// The name that a disk was given with the other one; none if it has none, or a crash kept it from being written.
fn read_name(disk: &mut impl Disk) -> Result<Option<Vec<u8>>, DiskError> {
    Ok(read(disk, NAME_FILE)?.filter(|name| name.len() == NAME_SIZE_BYTES))
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

fn write(disk: &mut impl Disk, file: &str, bytes: &[u8]) -> Result<(), DiskError> {
    disk.create(file, 0)?;
    disk.write_at(file, 0, &[IoSlice::new(bytes)])?;
    disk.sync(file)
}
