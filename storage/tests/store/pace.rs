//! Files go little by little, and give their room to those that come.

use std::time::Duration;

use meridian_base::env::Disk;
use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::position::{Generation, Offset};
use meridian_base::topology::Geometry;
use meridian_storage::blob::Blob;
use meridian_storage::config::StoreConfig;
use meridian_storage::message::{Beacon, PutResult, StorageMessage};
use meridian_storage::store::StoreInput;

use crate::harness::{Node, blob, group_config, key, mark, partition, put, store_config};

const SPREAD: Duration = Duration::from_secs(4);

fn spreading(node: u32) -> Node {
    spreading_over(StoreConfig { emptying_spread: SPREAD, ..store_config(node, 1) })
}

/// A node of its own number, that is alone in its group.
fn spreading_over(config: StoreConfig) -> Node {
    let mut group = group_config(Geometry::None, 1);
    group.slots[0].node = config.node;
    let mut node = Node::mount(config, MemoryDisk::new(1));
    node.input(StoreInput::Config(group));
    node.run();
    node
}

fn large(step: u64) -> Blob {
    blob(key(1, 1, step), &format!("{step:08}").repeat(1000))
}

fn store(node: &mut Node, steps: std::ops::RangeInclusive<u64>) {
    for step in steps {
        assert_eq!(node.put(put(large(step))), PutResult::Stored, "step {step}");
    }
}

/// Retention lets go of what lies below a step.
fn free_below(node: &mut Node, step: u64) {
    node.message(StorageMessage::Beacons(vec![Beacon {
        partition: partition(1),
        mark: mark(1, step),
        log_start_offset: Offset::new(10 * step as i64),
        free_below: Offset::new(10 * step as i64),
        clean_from: Default::default(),
        generation_min: Generation::new(1),
    }]));
    node.run();
}

fn removed(node: &Node) -> u64 {
    node.store.counters().files_removed
}

/// Ticks, each with a put, so that the disk is never quiet; gives when each file went.
fn removals(node: &mut Node, steps: std::ops::RangeInclusive<u64>) -> Vec<Duration> {
    let began = node.now;
    let mut times = Vec::new();
    for step in steps {
        let before = removed(node);
        node.rest(1);
        node.sent();
        let small = blob(key(2, 1, step), "goes on");
        assert_eq!(node.put(put(small)), PutResult::Stored, "step {step}");
        times.extend((before..removed(node)).map(|_| node.now.since(began)));
    }
    times
}

#[test]
fn files_that_retention_frees_at_once_go_one_by_one() {
    let mut node = spreading(8);
    store(&mut node, 1..=30);
    assert_eq!(removals(&mut node, 1..=3), []);
    free_below(&mut node, 30);
    let times = removals(&mut node, 4..=40);
    assert!(times.len() >= 3, "{times:?}");
    assert!(times[0] < SPREAD / 4, "its turn comes first: {times:?}");
    let rests = times.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(rests.clone().all(|rest| rest >= SPREAD / 8), "{times:?}");
    assert!(rests.clone().all(|rest| rest <= SPREAD + SPREAD / 8), "{times:?}");
}

#[test]
fn nodes_do_not_begin_at_once() {
    let begin = |number: u32| {
        let mut node = spreading(number);
        store(&mut node, 1..=30);
        assert_eq!(removals(&mut node, 1..=3), []);
        free_below(&mut node, 30);
        removals(&mut node, 4..=40)[0]
    };
    let (first, second, third) = (begin(8), begin(3), begin(6));
    assert!(
        first + SPREAD / 4 <= second && second + SPREAD / 4 <= third,
        "{first:?} {second:?} {third:?}"
    );
}

#[test]
fn a_disk_that_is_nearly_full_does_not_wait() {
    let mut node = spreading(7);
    store(&mut node, 1..=90);
    free_below(&mut node, 90);
    let times = removals(&mut node, 1..=8);
    assert!(times.len() >= 3 && times[2] < SPREAD / 2, "{times:?}");
}

#[test]
fn a_quiet_disk_does_not_wait() {
    let mut node = spreading(7);
    node.config.quiet_live_percent_min = 25;
    store(&mut node, 1..=30);
    free_below(&mut node, 30);
    node.rest((node.config.quiet_after.as_millis() / 200) as u32 + 10);
    assert!(removed(&node) >= 3, "{}", removed(&node));
}

/// The bytes of a recycled file are those of batches that were durable once.
#[test]
fn what_a_recycled_file_held_never_comes_back() {
    for crash in [Crash::LoseUnsynced, Crash::TearUnsynced] {
        for last in 31..=50 {
            let mut node = Node::alone();
            store(&mut node, 1..=30);
            free_below(&mut node, 30);
            node.rest(20);
            node.sent();
            assert!(removed(&node) >= 3);
            store(&mut node, 31..=last);
            // One more is torn.
            node.message(StorageMessage::Put(put(large(last + 1))));
            node.disk_step_cut();
            let mut node = node.crash(crash);
            assert_eq!(node.store.counters().corrupt, 0, "{crash:?} after {last}");
            assert!((1..30).all(|step| !node.holds(&large(step))), "{crash:?} after {last}");
            assert!((30..=last).all(|step| node.holds(&large(step))), "{crash:?} after {last}");
        }
    }
}

#[test]
fn the_room_of_a_file_that_goes_is_used_again() {
    let mut node = Node::alone();
    store(&mut node, 1..=30);
    free_below(&mut node, 30);
    node.rest(20);
    node.sent();
    store(&mut node, 31..=36);
    let mut disk = node.disk.clone();
    let names = disk.list().expect("a disk that works");
    assert!(names.iter().all(|name| name != "journal-00000004.log"), "{names:?}");
    let holds_old = |name: &String| {
        let mut bytes = vec![0; disk.size_bytes(name).expect("a file") as usize];
        disk.read_at(name, 0, &mut bytes).expect("a disk that works");
        let mut texts = (1..=20).map(|step| format!("{step:08}").repeat(2));
        texts.any(|old| bytes.windows(old.len()).any(|found| found == old.as_bytes()))
    };
    assert!(names.iter().any(holds_old), "{names:?}");
}

/// Many partitions of one small blob each: most bytes of the disk are heads and fences, not payloads.
#[test]
fn a_quiet_disk_comes_to_rest() {
    let usual = StoreConfig::new(store_config(7, 1).node, store_config(7, 1).fresh_incarnation, 1);
    let mut node = spreading_over(StoreConfig {
        capacity_bytes: 64 << 20,
        quiet_live_percent_min: usual.quiet_live_percent_min,
        ..store_config(7, 1)
    });
    for id in 1..=6_000 {
        node.fence(id, 1);
        assert_eq!(node.put(put(blob(key(id, 1, 1), "a small start"))), PutResult::Stored);
    }
    let used_bytes = node.store.usage().used_bytes;
    let batches = |node: &Node| node.store.counters().batches;
    for _ in 0..20 {
        let before = batches(&node);
        node.rest(100);
        if batches(&node) == before {
            assert!(node.store.usage().used_bytes < used_bytes / 10, "what is small lies packed");
            return;
        }
    }
    panic!("the disk writes for ever: {} files were emptied", removed(&node));
}
