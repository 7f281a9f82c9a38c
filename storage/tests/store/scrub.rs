//! What rots on a disk in use is found and mended from its peers, whatever it is (rules S5, S6).

use meridian_base::env::Disk;
use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::position::Step;
use meridian_base::topology::Geometry;
use meridian_storage::blob::Blob;
use meridian_storage::config::StoreConfig;
use meridian_storage::message::{FenceResult, ReadFrom, ReadReply};
use meridian_storage::store::{
    ScrubOrder, ScrubPosition, ScrubState, ScrubStatus, Standing, StoreInput,
};

use crate::group::Group;
use crate::harness::{Node, blob, key};

const START: ScrubPosition = ScrubPosition { file: 0, offset_bytes: 0 };

/// `count` blobs of 3 KB, each on one rack of each datacenter.
pub(crate) fn filled(geometry: Geometry, count: u64) -> (Group, Vec<Blob>) {
    let mut group = Group::new(geometry);
    let blobs: Vec<Blob> =
        (1..=count).map(|step| blob(key(1, 1, step), &format!("{step:06}").repeat(500))).collect();
    for (index, blob) in blobs.iter().enumerate() {
        let racks = geometry.rack_count();
        let slots: Vec<usize> =
            (0..geometry.datacenter_count()).map(|dc| dc * racks + (index + dc) % racks).collect();
        group.put_on(&slots, blob);
    }
    group.rest(3);
    (group, blobs)
}

pub(crate) fn scrub_now(group: &mut Group, slot: usize) -> ScrubStatus {
    group.nodes[slot].input(StoreInput::Scrub(ScrubOrder::Now));
    group.settle();
    group.rest(12);
    group.nodes[slot].store.scrub_status()
}

/// Every place where the disk holds `needle`.
pub(crate) fn places_of(disk: &MemoryDisk, needle: &[u8]) -> Vec<(String, usize)> {
    let mut disk = disk.clone();
    let mut places = Vec::new();
    for file in disk.list().expect("a disk that works") {
        let mut bytes = vec![0; disk.size_bytes(&file).expect("a disk that works") as usize];
        disk.read_at(&file, 0, &mut bytes).expect("a disk that works");
        let at = bytes.windows(needle.len()).position(|window| window == needle);
        places.extend(at.map(|at| (file, at)));
    }
    places
}

/// Flips a bit in the middle of a blob's payload.
pub(crate) fn rot(group: &Group, slot: usize, blob: &Blob) {
    rot_at(group, slot, blob, &[blob.payload.size_bytes() / 2]);
}

/// Flips a bit in each of these bytes of a blob's payload.
pub(crate) fn rot_at(group: &Group, slot: usize, blob: &Blob, bytes: &[usize]) {
    let disk = &group.nodes[slot].disk;
    let places = places_of(disk, &blob.payload.to_contiguous());
    assert_eq!(places.len(), 1, "{:?} is on slot {slot}", blob.key);
    let (file, start) = &places[0];
    assert!(bytes.iter().all(|byte| disk.flip_bit(file, start + byte)));
}

#[test]
fn bits_flipped_on_four_disks_are_mended_in_one_scrub_of_each() {
    let (mut group, blobs) = filled(Geometry::Mirror3Dc, 60);
    for (index, blob) in blobs.iter().enumerate() {
        // One copy of each blob, on the disks of a datacenter and a rack of another.
        let (near, far) = (index % 3, 3 + (index + 1) % 3);
        rot(&group, if far == 3 { far } else { near }, blob);
    }
    for slot in 0..4 {
        let status = scrub_now(&mut group, slot);
        assert_eq!((status.state, status.passes), (ScrubState::Idle, 1));
        assert_eq!((status.unreadable, status.emptying, status.mending), (0, false, false));
    }
    let count = |of: fn(&Node) -> u64| group.nodes.iter().map(of).sum::<u64>();
    assert_eq!(count(|node| node.store.counters().corrupt), 60);
    assert_eq!(count(|node| node.store.counters().repaired), 60);
    for (index, blob) in blobs.iter().enumerate() {
        assert!(group.nodes[index % 3].holds(blob) && group.nodes[3 + (index + 1) % 3].holds(blob));
    }
}

/// Bytes all over the disk are flipped, one at a time, while it is in use. After one scrub a mount
/// finds nothing wrong, and every blob can be read: heads, side files and the identity were mended
/// too.
#[test]
fn a_flipped_bit_anywhere_is_gone_after_a_scrub() {
    let (group, _) = filled(Geometry::OnePerDc, 40);
    let mut disk = group.nodes[0].disk.clone();
    let files = disk.list().expect("a disk that works");
    assert!(files.iter().any(|file| file.ends_with(".idx")), "a file was sealed: {files:?}");
    let mut found_count = 0;
    for file in files {
        let size_bytes = disk.size_bytes(&file).expect("a disk that works") as usize;
        for offset in (0..size_bytes).step_by(if file.ends_with(".log") { 509 } else { 37 }) {
            found_count += u64::from(flip_and_scrub(&file, offset));
        }
    }
    assert!(found_count > 100, "{found_count}");
}

/// Says whether the scrub found something: there is nothing to find between the batches.
fn flip_and_scrub(file: &str, offset: usize) -> bool {
    let (mut group, blobs) = filled(Geometry::OnePerDc, 40);
    assert!(group.nodes[0].disk.flip_bit(file, offset));
    let status = scrub_now(&mut group, 0);
    let place = format!("{file} at {offset}: {status:?}");
    assert_eq!((status.passes, status.unreadable, status.emptying), (1, 0, false), "{place}");
    let found = group.nodes[0].store.counters().corrupt > 0;
    let node = std::mem::replace(&mut group.nodes[0], Node::alone());
    let mut node = node.crash(Crash::LoseUnsynced);
    assert_eq!(node.store.standing(), Standing::Good, "{place}");
    assert_eq!(node.store.counters().corrupt, 0, "{place}");
    assert!(blobs.iter().all(|blob| node.holds(blob)), "{place}");
    found
}

#[test]
fn a_read_that_finds_damage_has_it_mended_at_once() {
    let (mut group, blobs) = filled(Geometry::OnePerDc, 3);
    rot(&group, 1, &blobs[1]);
    let read = group.nodes[1].read(1, 1, ReadFrom::Step(Step::new(2)), 2);
    assert_eq!(read, ReadReply::Unreadable, "the reader turns to another slot");
    group.settle();
    assert!(group.nodes[1].holds(&blobs[1]), "no scrub was needed");
    assert_eq!(group.nodes[1].store.counters().repaired, 1);
}

/// Whichever is scrubbed first, and whoever else's damage is known by then.
#[test]
fn copies_damaged_at_different_places_mend_each_other() {
    for first in 0..3 {
        let (mut group, blobs) = filled(Geometry::OnePerDc, 20);
        for (slot, blob) in (0..3).flat_map(|slot| blobs.iter().map(move |blob| (slot, blob))) {
            rot_at(&group, slot, blob, &[100 * slot, 100 * slot + 1, 2900 - slot]);
        }
        let status = scrub_now(&mut group, first);
        assert_eq!((status.passes, status.unreadable, status.mending), (1, 0, false));
        assert!(blobs.iter().all(|blob| group.nodes[first].holds(blob)), "slot {first}");
        // They found their own damage when they were asked.
        group.rest(8);
        for node in &mut group.nodes {
            assert!(blobs.iter().all(|blob| node.holds(blob)));
            assert_eq!((node.store.counters().corrupt, node.store.counters().repaired), (20, 20));
        }
    }
}

#[test]
fn what_no_majority_of_copies_has_stays_unreadable() {
    let (mut group, blobs) = filled(Geometry::OnePerDc, 1);
    // Two agree on what was never put.
    for (slot, byte) in [(0, 700), (1, 700), (2, 5)] {
        rot_at(&group, slot, &blobs[0], &[byte]);
    }
    let read = |node: &mut Node| node.read(1, 1, ReadFrom::Step(Step::new(1)), 1);
    for slot in 0..3 {
        assert_eq!(scrub_now(&mut group, slot).unreadable, 1);
        assert_eq!(read(&mut group.nodes[slot]), ReadReply::Unreadable, "others are told nothing");
    }
    // A third copy that has it right is enough, damaged as it is elsewhere.
    group.put_on(&[1], &blobs[0]);
    rot_at(&group, 1, &blobs[0], &[3]);
    group.rest(8);
    assert!(group.nodes.iter_mut().all(|node| node.holds(&blobs[0])));
}

/// That peers do not have a blob proves nothing: it may be the only copy of one in doubt.
#[test]
fn what_no_peer_can_give_is_held_but_unreadable() {
    let mut group = Group::new(Geometry::OnePerDc);
    let lone = blob(key(1, 1, 1), "only here");
    group.put_on(&[0], &lone);
    group.rest(3);
    rot(&group, 0, &lone);
    let status = scrub_now(&mut group, 0);
    assert_eq!((status.passes, status.unreadable), (1, 1));
    let read = |node: &mut Node| node.read(1, 1, ReadFrom::Step(Step::new(1)), 1);
    assert_eq!(read(&mut group.nodes[0]), ReadReply::Unreadable);
    let FenceResult::Certain(view) = group.nodes[0].fence(1, 1) else { panic!() };
    assert_eq!(view.blobs.len(), 1);
    // A peer gets it after all: the next round of asking mends it.
    group.put_on(&[2], &lone);
    group.rest(8);
    assert!(group.nodes[0].holds(&lone));
    assert_eq!(group.nodes[0].store.scrub_status().unreadable, 0);
}

#[test]
fn disks_of_a_group_take_turns() {
    let (mut group, _) = filled(Geometry::Mirror3Dc, 90);
    let running = |group: &Group| {
        let is_running = |node: &&Node| node.store.scrub_status().state == ScrubState::Running;
        group.nodes.iter().filter(is_running).count()
    };
    let mut most = 0;
    for _ in 0..200 {
        for slot in (0..9).rev() {
            if group.nodes[slot].store.scrub_status().passes == 0 {
                let order = ScrubOrder::InTurn { from: START };
                group.nodes[slot].input(StoreInput::Scrub(order));
                most = most.max(running(&group));
            }
        }
        group.settle();
        most = most.max(running(&group));
        group.rest(1);
    }
    assert_eq!(most, 1);
    assert!(group.nodes.iter().all(|node| node.store.scrub_status().passes >= 1));
}

#[test]
fn a_scrub_reads_no_more_in_a_second_than_it_may() {
    const RATE_BYTES: u64 = 20_000;
    /// All of a file's batches are read in one go.
    const READ_SIZE_BYTES_MAX: u64 = 64 << 10;
    let (mut group, _) = filled(Geometry::OnePerDc, 40);
    let node = &group.nodes[0];
    let config = StoreConfig { scrub_bytes_per_second_max: RATE_BYTES, ..node.config };
    group.nodes[0] = Node::mount(config, node.disk.clone());
    group.nodes[0].input(StoreInput::Scrub(ScrubOrder::Now));
    let mut half_seconds = 0;
    while group.nodes[0].store.scrub_status().passes == 0 {
        let scrubbed_bytes = group.nodes[0].store.counters().scrubbed_bytes;
        let earned_bytes = half_seconds * RATE_BYTES / 2;
        assert!(scrubbed_bytes <= earned_bytes + READ_SIZE_BYTES_MAX, "{scrubbed_bytes}");
        group.rest(1);
        half_seconds += 1;
        assert!(half_seconds < 60);
    }
    assert!(half_seconds >= 6, "it took {half_seconds} half seconds");
}

#[test]
fn a_scrub_goes_on_where_it_was_interrupted() {
    let (mut group, blobs) = filled(Geometry::OnePerDc, 40);
    rot(&group, 0, &blobs[0]);
    rot(&group, 0, &blobs[39]);
    let from = ScrubPosition { file: 2, offset_bytes: 0 };
    group.nodes[0].input(StoreInput::Scrub(ScrubOrder::InTurn { from }));
    group.settle();
    group.rest(12);
    let counters = *group.nodes[0].store.counters();
    assert_eq!((counters.scrubs, counters.repaired), (1, 1), "the first file was checked before");
    assert_eq!(scrub_now(&mut group, 0).passes, 2);
    assert_eq!(group.nodes[0].store.counters().repaired, 2);
}

#[test]
fn a_disk_that_does_not_count_is_not_scrubbed() {
    let (mut group, _) = filled(Geometry::OnePerDc, 3);
    let other_life = meridian_base::id::Incarnation::new(77);
    group.nodes[0].input(StoreInput::Reincarnate(other_life));
    group.nodes[0].input(StoreInput::Scrub(ScrubOrder::Now));
    assert_eq!(group.nodes[0].store.scrub_status().state, ScrubState::Idle);
}
