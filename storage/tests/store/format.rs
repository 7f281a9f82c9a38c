//! The power goes while an empty disk is formatted: whatever is there then comes up as an empty disk, and is never
//! taken for one that holds something.

use std::io::IoSlice;

use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::env::{Disk, DiskError};
use meridian_base::id::Incarnation;
use meridian_base::topology::Geometry;
use meridian_storage::journal::OpenError;
use meridian_storage::message::PutResult;
use meridian_storage::store::{Standing, Store, StoreInput};

use crate::harness::{Node, blob, group_config, key, put, store_config};

/// A disk whose power goes at some step.
struct CutDisk {
    disk: MemoryDisk,
    /// Steps that are done before.
    left: u32,
    /// Whether what the power goes amid is done in part: a file that is made is shorter than it was to be.
    is_torn: bool,
}

impl CutDisk {
    /// Whether this step is done.
    fn step(&mut self, file: &str) -> Result<(), DiskError> {
        self.left = self.left.checked_sub(1).ok_or_else(|| DiskError::Io {
            file: file.to_owned(),
            operation: "any",
            detail: "the power is off".to_owned(),
        })?;
        Ok(())
    }
}

impl Disk for CutDisk {
    fn create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        if self.left == 0 && std::mem::take(&mut self.is_torn) {
            self.disk.create(file, size_bytes / 2)?;
        }
        self.step(file)?;
        self.disk.create(file, size_bytes)
    }

    fn write_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DiskError> {
        self.step(file)?;
        self.disk.write_at(file, offset_bytes, parts)
    }

    fn sync(&mut self, file: &str) -> Result<(), DiskError> {
        self.step(file)?;
        self.disk.sync(file)
    }

    fn read_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<usize, DiskError> {
        self.disk.read_at(file, offset_bytes, buffer)
    }

    fn size_bytes(&mut self, file: &str) -> Result<u64, DiskError> {
        self.disk.size_bytes(file)
    }

    fn list(&mut self) -> Result<Vec<String>, DiskError> {
        self.disk.list()
    }

    fn remove(&mut self, file: &str) -> Result<(), DiskError> {
        self.step(file)?;
        self.disk.remove(file)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.step(from)?;
        self.disk.rename(from, to)
    }

    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        self.disk.free_bytes()
    }
}

/// Formats an empty disk until the power goes at step `left`; what is left, and whether it was done before.
fn format_until(left: u32, is_torn: bool, crash: Crash) -> (MemoryDisk, bool) {
    let disk = MemoryDisk::new(u64::from(left));
    let mut cut = CutDisk { disk: disk.clone(), left, is_torn };
    let is_done = match Store::open(&mut cut, store_config(1, 77)) {
        Ok(_) => true,
        Err(OpenError::Disk(_)) => false,
        Err(other) => panic!("{other}"),
    };
    disk.crash(crash);
    (disk, is_done)
}

#[test]
fn a_disk_whose_format_was_cut_off_comes_up_empty() {
    let fates = [Crash::LoseUnsynced, Crash::KeepUnsynced, Crash::TearUnsynced];
    for (crash, is_torn) in fates.into_iter().flat_map(|crash| [(crash, false), (crash, true)]) {
        let mut step_count = 0;
        loop {
            let (disk, is_done) = format_until(step_count, is_torn, crash);
            let what = format!("{crash:?} at step {step_count}, torn: {is_torn}");
            let fresh = store_config(1, 1_000);
            let node = Store::open(&mut disk.clone(), fresh).map(|store| (store.identity(), store));
            let (identity, store) = node.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(store.counters().corrupt, 0, "{what}");
            assert!([77, 1_000].contains(&identity.incarnation.get()), "{what}");
            assert!(identity.mount_epoch <= 2, "{what}: {identity:?}");
            assert_eq!((store.standing(), store.group()), (Standing::Unknown, None), "{what}");
            drop(store);
            serves_as_an_empty_one(disk, &what);
            if is_done {
                break;
            }
            step_count += 1;
        }
        assert!(step_count > 8, "{step_count} steps");
    }
}

/// The disk takes puts once the cluster has given it a life, and has them after another power cut.
fn serves_as_an_empty_one(disk: MemoryDisk, what: &str) {
    let mut node = Node::mount(store_config(1, 2_000), disk);
    node.input(StoreInput::Config(group_config(Geometry::None, 1)));
    node.run();
    assert_eq!(node.store.standing(), Standing::OtherLife, "{what}: it was never in that life");
    node.input(StoreInput::Reincarnate(Incarnation::new(1)));
    node.run();
    let kept = blob(key(1, 1, 1), "kept");
    assert_eq!(node.put(put(kept.clone())), PutResult::Stored, "{what}");
    let mut node = node.crash(Crash::LoseUnsynced);
    assert!(node.holds(&kept), "{what}");
}
