//! A machine that lacks descriptors or memory says nothing of the disk: nothing counts as damaged, and all is there again
//! once it has them.

use meridian_base::env::memory::MemoryDisk;
use meridian_base::env::{Disk, DiskError};
use meridian_base::position::Step;
use meridian_base::topology::Geometry;
use meridian_storage::blob::Blob;
use meridian_storage::journal::OpenError;
use meridian_storage::message::{PutResult, ReadFrom, ReadReply};
use meridian_storage::store::{ScrubOrder, ScrubState, Standing, Store, StoreInput, StoreOutput};

use crate::harness::{Node, blob, key, put, store_config};
use crate::scrub::filled;

/// A node with so many blobs of 9 KB: some files are sealed.
fn node_with(count: u64) -> (Node, Vec<Blob>) {
    let mut node = Node::alone();
    let text = "x".repeat(9_000);
    let blobs: Vec<Blob> = (1..=count).map(|step| blob(key(1, 1, step), &text)).collect();
    for blob in &blobs {
        assert_eq!(node.put(put(blob.clone())), PutResult::Stored);
    }
    (node, blobs)
}

fn is_well(node: &Node) -> bool {
    let is_fatal = |output: &StoreOutput| matches!(output, StoreOutput::Fatal { .. });
    node.store.standing() == Standing::Good
        && node.store.counters().corrupt == 0
        && !node.outputs.iter().any(is_fatal)
}

#[test]
fn a_blob_that_no_descriptor_is_left_for_is_not_damaged() {
    let (mut node, blobs) = node_with(3);
    node.disk.set_exhausted(true);
    assert_eq!(node.read(1, 1, ReadFrom::Step(Step::new(1)), 1), ReadReply::Unreadable);
    assert!(is_well(&node));
    assert_eq!(node.store.scrub_status().unreadable, 0);
    node.disk.set_exhausted(false);
    assert!(blobs.iter().all(|blob| node.holds(blob)));
}

#[test]
fn a_scrub_waits_for_descriptors() {
    let (mut group, blobs) = filled(Geometry::Mirror3Dc, 30);
    let disk = group.nodes[0].disk.clone();
    disk.set_exhausted(true);
    group.nodes[0].input(StoreInput::Scrub(ScrubOrder::Now));
    group.settle();
    group.rest(12);
    let status = group.nodes[0].store.scrub_status();
    assert_eq!((status.state, status.passes), (ScrubState::Running, 0));
    disk.set_exhausted(false);
    group.rest(12);
    let status = group.nodes[0].store.scrub_status();
    assert_eq!((status.state, status.passes), (ScrubState::Idle, 1));
    assert_eq!((status.unreadable, status.emptying, status.mending), (0, false, false));
    assert!(is_well(&group.nodes[0]));
    assert!(blobs.iter().step_by(3).all(|blob| group.nodes[0].holds(blob)));
}

/// Files can be neither made nor read nor emptied meanwhile; what is written goes to the one that is open.
#[test]
fn a_store_outlives_that_no_file_can_be_opened() {
    let (mut node, mut blobs) = node_with(12);
    node.disk.set_exhausted(true);
    let text = "y".repeat(9_000);
    for step in 13..=60 {
        let blob = blob(key(1, 1, step), &text);
        match node.put(put(blob.clone())) {
            PutResult::Stored => blobs.push(blob),
            _refused => break,
        }
        node.rest(1);
        assert!(is_well(&node));
    }
    assert!((13..60).contains(&blobs.len()), "{} blobs", blobs.len());
    node.disk.set_exhausted(false);
    node.rest(5);
    let next = blob(key(1, 1, 61), &text);
    assert_eq!(node.put(put(next)), PutResult::Stored);
    assert!(blobs.iter().all(|blob| node.holds(blob)));
    assert!(is_well(&node));
}

#[test]
fn a_disk_is_not_mounted_while_no_file_can_be_opened() {
    let (node, blobs) = node_with(40);
    let mut refused_count = 0;
    // Exhausted from the start, and from any later call on.
    for healthy_count in 0.. {
        let disk = node.disk.image();
        let mut failing = ExhaustedAfter { disk: disk.clone(), left_count: healthy_count };
        let opened = Store::open(&mut failing, store_config(1, 99));
        if failing.left_count > 0 {
            assert!(opened.is_ok() && refused_count > 20);
            return;
        }
        match opened {
            // What failed last is done later.
            Ok(store) => assert_eq!(store.counters().corrupt, 0),
            Err(OpenError::Disk(DiskError::Exhausted { .. })) => refused_count += 1,
            Err(error) => panic!("after {healthy_count} calls: {error:?}"),
        }
        drop(failing);
        let mut node = Node::mount(store_config(1, 99), disk);
        assert!(is_well(&node), "after {healthy_count} calls");
        assert!(blobs.iter().all(|blob| node.holds(blob)), "after {healthy_count} calls");
    }
}

/// A disk of which so many calls find a descriptor, and one no more.
struct ExhaustedAfter {
    disk: MemoryDisk,
    left_count: u32,
}

impl ExhaustedAfter {
    fn disk(&mut self) -> &mut MemoryDisk {
        self.disk.set_exhausted(self.left_count == 0);
        self.left_count = self.left_count.saturating_sub(1);
        &mut self.disk
    }
}

impl Drop for ExhaustedAfter {
    fn drop(&mut self) {
        self.disk.set_exhausted(false);
    }
}

impl Disk for ExhaustedAfter {
    fn create(&mut self, file: &str, size_bytes: u64) -> Result<(), DiskError> {
        self.disk().create(file, size_bytes)
    }

    fn write_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        parts: &[std::io::IoSlice<'_>],
    ) -> Result<(), DiskError> {
        self.disk.write_at(file, offset_bytes, parts)
    }

    fn sync(&mut self, file: &str) -> Result<(), DiskError> {
        self.disk.sync(file)
    }

    fn read_at(
        &mut self,
        file: &str,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<usize, DiskError> {
        self.disk().read_at(file, offset_bytes, buffer)
    }

    fn size_bytes(&mut self, file: &str) -> Result<u64, DiskError> {
        self.disk().size_bytes(file)
    }

    fn list(&mut self) -> Result<Vec<String>, DiskError> {
        self.disk().list()
    }

    fn remove(&mut self, file: &str) -> Result<(), DiskError> {
        self.disk.remove(file)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn free_bytes(&mut self) -> Result<u64, DiskError> {
        self.disk.free_bytes()
    }
}
