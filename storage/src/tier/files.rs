//! How a file gets onto one of two disks, and from one to the other, so that a crash at any moment leaves all
//! that was promised: the rules that hold two disks together as one.
//!
//! ```text
//! begin    fast; no room: gone from fast for good -> capacity; none there either: a small file fast after all
//! move     copy to capacity as NAME.moving -> synced -> rename -> remove from fast
//! remove   from capacity -> from fast
//! mount    both have it: the one on the fast disk counts      NAME.moving: goes
//! ```

use std::io::IoSlice;

use meridian_base::env::{Disk, DiskError};

use crate::mutation::{Mutation, Mutations};

/// What a file is called on the capacity disk until all of it is there.
const MOVING: &str = ".moving";
/// Copied at once.
const CHUNK_SIZE_BYTES: usize = 1 << 20;
/// The file system is not left with more than this to write.
const SYNC_EVERY_BYTES: u64 = 8 << 20;

/// Whether a file on the capacity disk is a copy under way, which nobody is to see.
pub fn is_moving(file: &str) -> bool {
    file.ends_with(MOVING)
}

/// How much room the fast disk has for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Enough.
    Enough,
    /// What is left there is for when the capacity disk has none.
    Last,
    /// None.
    None,
}

/// A small file grows to this at most. Where a disk has less, it has no room for one.
pub const SMALL_FILE_BYTES: u64 = 4 << 20;

/// Begins a file on the fast disk if there is `room`, or else on the capacity disk; says whether it was spilled there.
pub fn begin(
    fast: &mut impl Disk,
    capacity: &mut impl Disk,
    (file, size_bytes): (&str, u64),
    room: Room,
    mutations: Mutations,
) -> Result<bool, DiskError> {
    let on_fast = match room {
        Room::Enough => true,
        // A file that is begun empty grows: a full disk would refuse it only then.
        Room::Last => {
            let left_bytes = capacity.free_bytes()?;
            left_bytes < SMALL_FILE_BYTES && left_bytes < fast.free_bytes()?
        }
        Room::None => false,
    };
    if on_fast {
        match fast.create(file, size_bytes) {
            // Others have filled it.
            Err(DiskError::Full { .. }) => {}
            created => {
                created?;
                return remove_if_there(capacity, file).map(|()| false);
            }
        }
    }
    // Gone for good before the other is begun: after a crash the one on the fast disk counts.
    if !Mutation::SpilledOverRemainder.active(mutations) {
        remove_if_there(fast, file)?;
    }
    match capacity.create(file, size_bytes) {
        // It has bytes, and no room for one file more.
        Err(DiskError::Full { .. }) if room == Room::Last => {
            remove_if_there(capacity, file)?;
            fast.create(file, size_bytes).map(|()| false)
        }
        created => created.map(|()| true),
    }
}

/// Removes a file for good, from whichever disk has it: both, if a move or a replacement failed halfway.
pub fn remove(
    fast: &mut impl Disk,
    capacity: &mut impl Disk,
    file: &str,
    mutations: Mutations,
) -> Result<(), DiskError> {
    if Mutation::RemovedOnOneDisk.active(mutations) {
        return match fast.remove(file) {
            Err(DiskError::NotFound { .. }) => capacity.remove(file),
            removed => removed,
        };
    }
    // That of the fast disk counts, so it goes last: what comes back after a crash is what was there.
    let was_there = match capacity.remove(file) {
        Err(DiskError::NotFound { .. }) => false,
        removed => removed.map(|()| true)?,
    };
    match fast.remove(file) {
        Err(DiskError::NotFound { .. }) if was_there => Ok(()),
        removed => removed,
    }
}

/// Copies a file to the capacity disk, where it does not count yet; `pace` is told how many bytes were copied.
/// Gives its size, or `None` if it is not on the fast disk. What can't be copied takes no room.
pub fn copy(
    fast: &mut impl Disk,
    capacity: &mut impl Disk,
    file: &str,
    pace: impl FnMut(u64),
    mutations: Mutations,
) -> Result<Option<u64>, DiskError> {
    let copy = name_of_copy(file);
    let size_bytes = match fast.size_bytes(file) {
        Err(DiskError::NotFound { .. }) => return Ok(None),
        size_bytes => size_bytes?,
    };
    if capacity.free_bytes()? < size_bytes {
        return Err(DiskError::Full { file: copy });
    }
    let copied = copy_bytes(fast, capacity, (file, &copy, size_bytes), pace, mutations);
    if copied.is_err() {
        // The file may be gone before it is tried again.
        let _it_goes_at_the_next_mount = capacity.remove(&copy);
    }
    copied.map(|()| Some(size_bytes))
}

fn copy_bytes(
    fast: &mut impl Disk,
    capacity: &mut impl Disk,
    (file, copy, size_bytes): (&str, &str, u64),
    mut pace: impl FnMut(u64),
    mutations: Mutations,
) -> Result<(), DiskError> {
    capacity.create(copy, 0)?;
    let mut buffer = vec![0; CHUNK_SIZE_BYTES];
    let mut copied_bytes = 0;
    while copied_bytes < size_bytes {
        let count = fast.read_at(file, copied_bytes, &mut buffer)?;
        if count == 0 {
            if Mutation::ShortCopyPlaced.active(mutations) {
                break;
            }
            return Err(DiskError::Io {
                file: file.to_owned(),
                operation: "read",
                detail: format!("the file ended after {copied_bytes} of {size_bytes} bytes"),
            });
        }
        capacity.write_at(copy, copied_bytes, &[IoSlice::new(&buffer[..count])])?;
        copied_bytes += count as u64;
        if copied_bytes.is_multiple_of(SYNC_EVERY_BYTES) {
            capacity.sync(copy)?;
            capacity.drop_cached(copy, 0, copied_bytes);
        }
        pace(copied_bytes);
    }
    if !Mutation::MovedBeforeSync.active(mutations) {
        capacity.sync(copy)?;
    }
    Ok(())
}

/// Has the copy take the file's place; says whether it has: the file may have gone meanwhile. Nothing else may
/// change the file's disk, or remove it, at the same time.
pub fn place(
    fast: &mut impl Disk,
    capacity: &mut impl Disk,
    file: &str,
    mutations: Mutations,
) -> Result<bool, DiskError> {
    let copy = name_of_copy(file);
    let is_there = fast.list()?.iter().any(|name| name == file);
    if !is_there && !Mutation::MovedAfterRemoval.active(mutations) {
        capacity.remove(&copy)?;
        return Ok(false);
    }
    let is_early = Mutation::RemovedBeforePlaced.active(mutations);
    if is_early {
        remove_if_there(fast, file)?;
    }
    capacity.rename(&copy, file)?;
    if !is_early {
        remove_if_there(fast, file)?;
    }
    Ok(true)
}

/// Renames a file on the disk that has it. Where the other one has a file of the new name, that is replaced too.
pub fn rename(
    fast: &mut impl Disk,
    capacity: &mut impl Disk,
    from: &str,
    to: &str,
    mutations: Mutations,
) -> Result<(), DiskError> {
    match fast.rename(from, to) {
        Err(DiskError::NotFound { .. }) => {
            capacity.rename(from, to)?;
            if Mutation::ReplacedOnOneDisk.active(mutations) {
                return Ok(());
            }
            remove_if_there(fast, to)
        }
        renamed => {
            renamed?;
            remove_if_there(capacity, to)
        }
    }
}

/// Puts right what a crash left, before anything is read. `kept` is on both disks.
pub fn put_right(
    fast: &mut impl Disk,
    capacity: &mut impl Disk,
    kept: &str,
) -> Result<(), DiskError> {
    let on_fast = fast.list()?;
    for file in capacity.list()? {
        let is_double = file != kept && on_fast.contains(&file);
        if is_moving(&file) || is_double {
            capacity.remove(&file)?;
        }
    }
    Ok(())
}

fn name_of_copy(file: &str) -> String {
    format!("{file}{MOVING}")
}

/// Removes a file for good, if the disk has it.
fn remove_if_there(disk: &mut impl Disk, file: &str) -> Result<(), DiskError> {
    match disk.remove(file) {
        Err(DiskError::NotFound { .. }) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::env::memory::MemoryDisk;

    use super::*;

    #[test]
    fn a_copy_that_fails_takes_no_room() {
        let capacity = MemoryDisk::new(2);
        let (mut from, mut to) = (MemoryDisk::new(1), capacity.clone());
        from.create("a", 10).expect("there is room");
        capacity.fail_syncs(1);
        let copied = copy(&mut from, &mut to, "a", |_| (), Mutations::NONE);
        assert!(matches!(copied, Err(DiskError::Io { operation: "sync", .. })));
        assert_eq!(to.list(), Ok(Vec::new()));
        assert_eq!(copy(&mut from, &mut to, "a", |_| (), Mutations::NONE), Ok(Some(10)));
    }

    #[test]
    fn a_small_file_takes_the_last_room_on_the_fast_disk() {
        let (fast, capacity) = (MemoryDisk::new(1), MemoryDisk::new(2));
        let begin = |file, room| {
            let (mut fast, mut capacity) = (fast.clone(), capacity.clone());
            begin(&mut fast, &mut capacity, (file, 10), room, Mutations::NONE)
        };
        assert_eq!(begin("a", Room::Last), Ok(true), "the other disk's goes first");
        capacity.set_capacity_bytes(10);
        assert_eq!(begin("b", Room::Last), Ok(false));
        let mut grown = (fast.clone(), capacity.clone());
        let empty = ("grown", 0);
        let begun = super::begin(&mut grown.0, &mut grown.1, empty, Room::Last, Mutations::NONE);
        assert_eq!(begun, Ok(false), "an empty file would find room anywhere");
        assert_eq!(grown.0.remove("grown"), Ok(()));
        let full = Err(DiskError::Full { file: "c".to_owned() });
        assert_eq!(begin("c", Room::None), full);
        fast.set_capacity_bytes(10);
        assert_eq!(begin("c", Room::Last), full);
        assert_eq!(capacity.clone().list(), Ok(vec!["a".to_owned()]));
    }
}
