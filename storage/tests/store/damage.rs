//! Torn writes are cut, corruption is never taken for absence (rules 9, 26 and 28).

use std::collections::BTreeMap;

use meridian_base::env::Disk;
use meridian_base::env::memory::{Crash, MemoryDisk, SECTOR_SIZE_BYTES};
use meridian_base::id::Incarnation;
use meridian_base::position::Step;
use meridian_base::topology::Geometry;
use meridian_storage::blob::Blob;
use meridian_storage::config::StoreConfig;
use meridian_storage::journal::{DiskOp, OpenError};
use meridian_storage::message::{
    FenceResult, PutResult, ReadFrom, ReadReply, Refusal, StorageMessage,
};
use meridian_storage::store::{Standing, Store, StoreInput, StoreOutput};

use crate::harness::{Node, blob, group_config, key, put, store_config};

/// A node with `count` blobs of partition 1 and a fence of partition 2.
fn filled(count: u64) -> (Node, Vec<Blob>) {
    let mut node = Node::alone();
    node.fence(2, 4);
    let blobs: Vec<Blob> = (1..=count).map(|step| blob(key(1, 1, step), "payload")).collect();
    for blob in &blobs {
        assert_eq!(node.put(put(blob.clone())), PutResult::Stored);
    }
    (node, blobs)
}

#[test]
fn a_torn_write_is_cut_without_alarm() {
    for seed in 0..200 {
        let (mut node, blobs) = filled(3);
        node.disk = reseeded(node.disk, seed);
        for step in 4..=6 {
            let text = "x".repeat(700 * step as usize);
            node.message(StorageMessage::Put(put(blob(key(1, 1, step), &text))));
        }
        // The first of them is written, but its sync never returned.
        node.disk_step_cut();
        let mut node = node.crash(Crash::TearUnsynced);
        assert_eq!(node.store.standing(), Standing::Good);
        assert_eq!(node.store.counters().corrupt, 0);
        assert!(blobs.iter().all(|blob| node.holds(blob)));
        let again = blob(key(1, 1, 4), "other bytes, should the first have been lost");
        let held = node.view(1, 1).blobs.len() == 4;
        let expected = if held { PutResult::Conflict } else { PutResult::Stored };
        assert_eq!(node.put(put(again)), expected);
        let mut node = node.crash(Crash::LoseUnsynced);
        assert_eq!(node.view(1, 1).blobs.len(), 4);
    }
}

#[test]
fn another_file_size_is_refused_before_anything_is_changed() {
    let (mut node, blobs) = filled(3);
    let file_count = |disk: &mut MemoryDisk| {
        let files = disk.list().expect("a disk that works");
        files.iter().filter(|file| file.ends_with(".log")).count()
    };
    for step in 4.. {
        if file_count(&mut node.disk) > 1 {
            break;
        }
        let large = blob(key(1, 1, step), &"x".repeat(8000));
        assert_eq!(node.put(put(large)), PutResult::Stored);
    }
    let right = node.config;
    for file_size_bytes in [right.file_size_bytes / 2, right.file_size_bytes * 2] {
        let mut disk = node.disk.image();
        let before = contents(&mut disk);
        let wrong = StoreConfig { file_size_bytes, ..right };
        let refused = Store::open(&mut disk, wrong).map(drop);
        assert!(matches!(refused, Err(OpenError::FileSize { .. })), "{refused:?}");
        assert_eq!(contents(&mut disk), before);
        let mut again = Node::mount(right, disk);
        assert_eq!(again.store.standing(), Standing::Good);
        assert!(blobs.iter().all(|blob| again.holds(blob)));
    }
}

/// Every file, and what is in it.
fn contents(disk: &mut MemoryDisk) -> BTreeMap<String, Vec<u8>> {
    let files = disk.list().expect("a disk that works").into_iter();
    let read = |file: String| {
        let mut bytes = vec![0; disk.size_bytes(&file).expect("a disk that works") as usize];
        disk.read_at(&file, 0, &mut bytes).expect("a disk that works");
        (file, bytes)
    };
    files.map(read).collect()
}

fn reseeded(mut disk: MemoryDisk, seed: u64) -> MemoryDisk {
    let mut fresh = MemoryDisk::new(seed);
    for file in disk.list().expect("a disk that works") {
        let size = disk.size_bytes(&file).expect("a disk that works");
        let mut bytes = vec![0; size as usize];
        disk.read_at(&file, 0, &mut bytes).expect("a disk that works");
        fresh.create(&file, size).expect("a disk that works");
        fresh.write_at(&file, 0, &[std::io::IoSlice::new(&bytes)]).expect("a disk that works");
        fresh.sync(&file).expect("a disk that works");
    }
    fresh
}

/// Every byte of every file is flipped in turn: what was acknowledged is read as it was, or the
/// slot says that it can't; it never says that it has nothing.
#[test]
fn a_flipped_bit_anywhere_is_never_taken_for_absence() {
    let (mut node, blobs) = filled(6);
    node.rest(5);
    let mut outcomes: BTreeMap<&str, u32> = BTreeMap::new();
    for file in node.disk.list().expect("a disk that works") {
        // What lies behind the last batch is never written.
        let size = node.disk.size_bytes(&file).expect("a disk that works").min(12 * 4096);
        for offset in (0..size as usize).filter(|offset| offset % 4096 < 300) {
            let disk = node.disk.image();
            disk.flip_bit(&file, offset);
            let outcome = check_flipped(disk, &blobs);
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    for outcome in ["whole", "unreadable", "unsure"] {
        assert!(outcomes.contains_key(outcome), "{outcomes:?}");
    }
}

/// A sector that can't be read may have held what was acknowledged last: it is not taken for a torn write.
#[test]
fn a_bad_sector_anywhere_is_never_taken_for_absence() {
    let (node, blobs) = filled(6);
    let mut outcomes: BTreeMap<&str, u32> = BTreeMap::new();
    let mut disk = node.disk;
    for file in disk.list().expect("a disk that works") {
        let size = disk.size_bytes(&file).expect("a disk that works").min(12 * 4096);
        for offset in (0..size as usize).step_by(SECTOR_SIZE_BYTES) {
            let disk = disk.image();
            assert!(disk.spoil_sector(&file, offset));
            *outcomes.entry(check_flipped(disk, &blobs)).or_default() += 1;
        }
    }
    for outcome in ["whole", "unsure"] {
        assert!(outcomes.contains_key(outcome), "{outcomes:?}");
    }
}

fn check_flipped(disk: MemoryDisk, blobs: &[Blob]) -> &'static str {
    let mut node = Node::mount(store_config(1, 99), disk);
    if node.store.standing() != Standing::Good {
        assert_eq!(node.store.incarnation(), Incarnation::new(99));
        assert_eq!(node.fence(1, 1), FenceResult::Unsure);
        return "unsure";
    }
    let mut outcome = "whole";
    for blob in blobs {
        let step = blob.key.point.step;
        match node.read(1, 1, ReadFrom::Step(step), step.get()) {
            ReadReply::Blobs(read) => assert!(read.len() == 1 && read[0] == *blob),
            ReadReply::Unreadable => outcome = "unreadable",
            other @ (ReadReply::NotHere | ReadReply::Damaged(_)) => {
                panic!("{:?}: {other:?}", blob.key)
            }
        }
    }
    assert_eq!(node.view(1, 1).blobs.len(), blobs.len());
    assert!(matches!(node.fence(2, 3), FenceResult::Fenced { .. }));
    outcome
}

#[test]
fn an_unreadable_blob_is_mended_by_the_same_put() {
    let (node, blobs) = filled(3);
    let disk = node.disk.image();
    let found = find(&disk, b"payload");
    disk.flip_bit(&found.0, found.1);
    let mut node = Node::mount(store_config(1, 1), disk);
    assert_eq!(node.read(1, 1, ReadFrom::Step(Step::new(1)), 1), ReadReply::Unreadable);
    assert_eq!(node.store.counters().corrupt, 1);
    assert_eq!(node.put(put(blobs[0].clone())), PutResult::Stored);
    assert!(node.holds(&blobs[0]));
    let mut node = node.crash(Crash::LoseUnsynced);
    assert!(blobs.iter().all(|blob| node.holds(blob)));
}

fn find(disk: &MemoryDisk, needle: &[u8]) -> (String, usize) {
    let mut disk = disk.clone();
    for file in disk.list().expect("a disk that works") {
        let mut bytes = vec![0; disk.size_bytes(&file).expect("a disk that works") as usize];
        disk.read_at(&file, 0, &mut bytes).expect("a disk that works");
        if let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
            return (file, at);
        }
    }
    panic!("not on the disk");
}

#[test]
fn a_failed_sync_stops_the_store_for_good() {
    let mut node = Node::alone();
    node.message(StorageMessage::Put(put(blob(key(1, 1, 1), "x"))));
    node.disk.fail_syncs(1);
    node.run();
    assert!(matches!(node.outputs.as_slice(), [StoreOutput::Fatal { .. }]));
    node.outputs.clear();
    node.message(StorageMessage::Put(put(blob(key(1, 1, 2), "y"))));
    node.rest(3);
    assert!(node.outputs.is_empty() && node.ops.is_empty());
    // What the failed sync left in the page cache is made durable before it is believed.
    let disk = node.disk;
    let mut node = Node::mount(store_config(1, 1), disk.clone());
    assert_eq!(node.view(1, 1).blobs.len(), 1);
    disk.crash(Crash::LoseUnsynced);
    let mut node = Node::mount(store_config(1, 1), disk);
    assert_eq!(node.view(1, 1).blobs.len(), 1);
}

/// The end of a file is a batch like others: what its failed sync left in the page cache is made durable before
/// the next file is written to. Here nothing else tells of it, for there is no room for the side file.
#[test]
fn the_end_of_a_file_is_durable_before_it_is_believed() {
    let mut node = Node::alone();
    let text = "x".repeat(9_000);
    let mut step = 0;
    let is_ending = |node: &Node| {
        let file = |op: &DiskOp| match op {
            DiskOp::Write { file, .. } => Some(file.clone()),
            _ => None,
        };
        let files: Vec<String> = node.ops.iter().filter_map(file).collect();
        files.len() == 2 && files[0] != files[1]
    };
    while !is_ending(&node) {
        node.run();
        step += 1;
        node.message(StorageMessage::Put(put(blob(key(1, 1, step), &text))));
    }
    node.disk.fail_syncs(1);
    node.disk_step();
    assert!(node.outputs.iter().any(|output| matches!(output, StoreOutput::Fatal { .. })));
    let mut disk = node.disk;
    let used_bytes = (1 << 30) - disk.free_bytes().expect("a disk that works");
    disk.set_capacity_bytes(used_bytes + 200);
    let mut node = Node::mount(node.config, disk.clone());
    assert!(disk.list().expect("a disk that works").iter().all(|file| !file.ends_with(".idx")));
    assert_eq!(node.put(put(blob(key(1, 1, step), &text))), PutResult::Stored);
    let mut node = node.crash(Crash::LoseUnsynced);
    assert_eq!((node.store.standing(), node.store.counters().corrupt), (Standing::Good, 0));
    assert!((1..=step).all(|step| node.holds(&blob(key(1, 1, step), &text))));
}

#[test]
fn a_missing_journal_file_is_damage() {
    let (node, _) = filled(2);
    let mut disk = node.disk.image();
    let log = disk
        .list()
        .expect("a disk that works")
        .into_iter()
        .find(|name| name.ends_with(".log"))
        .expect("a disk that works");
    disk.remove(&log).expect("a disk that works");
    let mut node = Node::mount(store_config(1, 42), disk);
    assert_eq!(node.store.incarnation(), Incarnation::new(42));
    node.input(StoreInput::Config(group_config(Geometry::None, 1)));
    node.run();
    assert_eq!(node.store.standing(), Standing::OtherLife);
    assert_eq!(node.fence(1, 9), FenceResult::Unsure);
}

#[test]
fn a_disk_without_a_readable_identity_is_not_mounted() {
    let (node, _) = filled(1);
    let mut disk = node.disk.image();
    disk.flip_bit("identity-a", 9);
    let config: StoreConfig = store_config(1, 1);
    assert!(Store::open(&mut disk.image(), config).is_ok(), "one copy is enough");
    disk.flip_bit("identity-b", 9);
    assert_eq!(Store::open(&mut disk, config).err(), Some(OpenError::IdentityUnreadable));
}

#[test]
fn a_disk_counts_for_nothing_until_the_cluster_has_noted_its_mount() {
    let (node, blobs) = filled(1);
    let mut node = Node {
        store: Store::open(&mut node.disk.clone(), node.config).expect("a disk that mounts"),
        ..node
    };
    assert_eq!(node.store.standing(), Standing::Unknown);
    assert_eq!(node.fence(1, 1), FenceResult::Unsure);
    let refused = PutResult::Refused { reason: Refusal::Syncing };
    assert_eq!(node.put(put(blobs[0].clone())), refused);
    node.input(StoreInput::Config(group_config(Geometry::None, 1)));
    assert_eq!(node.view(1, 1).blobs.len(), 1);
}

#[test]
fn every_mount_is_counted() {
    let (node, _) = filled(1);
    let before = node.store.identity();
    let node = node.crash(Crash::LoseUnsynced);
    let after = node.store.identity();
    assert_eq!(after.mount_epoch, before.mount_epoch + 1);
    assert_eq!(after.incarnation, before.incarnation);
}
