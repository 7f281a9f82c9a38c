//! Journal files that are emptied in turn and used again (ADR 0027): whenever the power fails, nothing is lost
//! by it and nothing comes back; and a file that is gone is missed.

use std::io::IoSlice;
use std::time::Duration;

use meridian_base::env::Disk;
use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::id::Incarnation;
use meridian_base::topology::Geometry;
use meridian_storage::blob::Blob;
use meridian_storage::config::StoreConfig;
use meridian_storage::journal::{DiskOp, Lane, execute};
use meridian_storage::message::{FenceResult, PutResult, ReadFrom, ReadReply, StorageMessage};
use meridian_storage::mutation::Mutations;
use meridian_storage::store::{Standing, StoreInput};

use crate::harness::{Node, blob, group_config, key, mark, partition, put, store_config};
use crate::scrub::places_of;
use crate::space::{beacon, large};

/// Blobs of partition 1, which are freed a while after they were put.
const LARGE_COUNT: u64 = 48;
/// Operations of the disk that a history has at least.
const OP_COUNT: usize = 260;

/// One disk, and what was promised of it.
struct History {
    node: Node,
    /// What is served first of what waits for the disk: one lane may be far behind another.
    lanes: [Lane; 3],
    kept: Vec<Blob>,
    stored: u64,
    freed_below: u64,
}

impl History {
    fn new(mutations: Mutations, first: Lane) -> Self {
        let config = StoreConfig { mutations, ..store_config(1, 1) };
        let mut node = Node::mount(config, MemoryDisk::new(1));
        node.input(StoreInput::Config(group_config(Geometry::None, 1)));
        node.run();
        node.fence(9, 3);
        let second = if first == Lane::Writes { Lane::Changes } else { Lane::Writes };
        let lanes = [first, second, Lane::Reads];
        Self { node, lanes, kept: Vec::new(), stored: 0, freed_below: 0 }
    }

    /// The next operation that the disk does. Where writes come first, the others are done when a put waits for them.
    fn next_op(&mut self, waits: bool) -> Option<DiskOp> {
        let ops = &mut self.node.ops;
        let is_held =
            |lane: &Lane| *lane == Lane::Changes && self.lanes[0] == Lane::Writes && !waits;
        let mut lanes = self.lanes.iter().filter(|lane| !is_held(lane));
        let next = lanes.find_map(|lane| ops.iter().position(|op| op.lane() == *lane));
        next.and_then(|index| ops.remove(index))
    }

    /// Carries out so many operations, while blobs are put and freed; the last of them only as far as a power cut
    /// may let it come.
    fn play(&mut self, op_count: usize) {
        let mut left = op_count;
        for step in self.stored + 1..=self.stored + LARGE_COUNT {
            let mut sent = vec![large(1, step)];
            if step % 5 == 1 {
                sent.push(blob(key(2, 1, step), "survivor"));
            }
            let mut waiting_count = sent.len();
            for blob in &sent {
                self.node.message(StorageMessage::Put(put(blob.clone())));
            }
            if step % 4 == 0 {
                self.freed_below = step - 1;
                let freed = beacon(mark(1, step - 1), 10 * (step - 1) as i64, 1);
                self.node.message(freed);
            }
            self.node.now = self.node.now + Duration::from_millis(200);
            self.node.input(StoreInput::Tick);
            while let Some(op) = self.next_op(waiting_count > 0) {
                if left == 0 {
                    return begin(&mut self.node.disk, op);
                }
                left -= 1;
                let done = execute(&mut self.node.disk, op);
                self.node.input(StoreInput::DiskDone(done));
                for (key, result) in self.node.put_results() {
                    assert_eq!(result, PutResult::Stored);
                    waiting_count = waiting_count.saturating_sub(1);
                    let large = key.partition == partition(1);
                    self.stored = if large { key.point.step.get() } else { self.stored };
                    self.kept.extend(sent.iter().filter(|it| !large && it.key == key).cloned());
                }
            }
        }
    }

    /// Cuts the power, and looks whether all is as it was promised.
    fn crash(self, crash: Crash) -> Result<Self, String> {
        let Self { node, lanes, kept, mut stored, freed_below } = self;
        let mut node = node.crash(crash);
        if node.store.standing() != Standing::Good || node.store.counters().corrupt > 0 {
            return Err("a power cut is no damage".to_owned());
        }
        if let Some(blob) = kept.iter().find(|blob| !node.holds(blob)) {
            return Err(format!("{:?} is gone", blob.key));
        }
        for step in freed_below.max(1)..=stored {
            if !node.holds(&large(1, step)) {
                return Err(format!("{step} is gone"));
            }
        }
        // Stored, but not acknowledged.
        while node.holds(&large(1, stored + 1)) {
            stored += 1;
        }
        if !matches!(node.fence(9, 2), FenceResult::Fenced { .. }) {
            return Err("a fence is gone".to_owned());
        }
        is_takeover_safe(&mut node)?;
        Ok(Self { node, lanes, kept, stored, freed_below })
    }
}

/// Does what a power cut may let happen of an operation that is under way.
fn begin(disk: &mut MemoryDisk, op: DiskOp) {
    match op {
        DiskOp::Write { file, offset_bytes, parts } => {
            let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            disk.write_at(&file, offset_bytes, &slices).expect("a disk that works");
        }
        op => {
            // A replacement is made under another name first.
            let healthy_count = u64::from(matches!(op, DiskOp::Replace { .. }));
            disk.fail_folder_syncs_after(healthy_count, 1);
            drop(execute(disk, op));
            disk.fail_folder_syncs(0);
        }
    }
}

/// What a takeover is told of partition 1 has no gap, and what its record says is freed does not come back.
fn is_takeover_safe(node: &mut Node) -> Result<(), String> {
    let view = node.view(1, 1);
    let marked = view.mark.map_or(1, |mark| mark.point.step.get());
    let steps: Vec<u64> = view.blobs.iter().map(|info| info.point.step.get()).collect();
    let unbroken: Vec<u64> = (marked..).take(steps.len()).collect();
    if steps != unbroken {
        return Err(format!("from {marked} on there are {steps:?}: a gap"));
    }
    let freed_count = view.log_start_offset.get() as u64 / 10;
    for step in 1..freed_count.min(marked) {
        let from = ReadFrom::Step(large(1, step).key.point.step);
        if node.read(1, 1, from, step) != ReadReply::NotHere {
            return Err(format!("{step} came back"));
        }
    }
    Ok(())
}

/// The power fails after every operation in turn, and once more a while later.
fn files_go_in_turn(mutations: Mutations) -> Result<(), String> {
    const CRASHES: [Crash; 3] = [Crash::LoseUnsynced, Crash::KeepUnsynced, Crash::TearUnsynced];
    for op_count in 0..OP_COUNT {
        let first = [Lane::Writes, Lane::Changes][op_count % 2];
        let mut history = History::new(mutations, first);
        history.play(op_count);
        let crash = CRASHES[op_count % 3];
        let told = |error| format!("{error}, after {op_count} operations and {crash:?}");
        let mut history = history.crash(crash).map_err(told)?;
        history.play(usize::MAX);
        history.crash(Crash::LoseUnsynced).map_err(told)?;
    }
    Ok(())
}

/// On a disk that has no room for a record left, what is freed makes room; then the power fails.
fn a_full_disk_empties_files(mutations: Mutations) -> Result<(), String> {
    let mut node = History::new(mutations, Lane::Writes).node;
    let mut stored = 0;
    while node.put(put(large(1, stored + 1))) == PutResult::Stored {
        stored += 1;
        node.rest(1);
    }
    let mut fenced = 4;
    while matches!(node.fence(9, fenced), FenceResult::Certain(_)) {
        fenced += 1;
    }
    let before = node.store.usage();
    node.message(beacon(mark(1, stored), 10 * stored as i64, 1));
    // Until the first files are gone.
    let files_removed = |node: &Node| node.store.counters().files_removed;
    (0..200).for_each(|_| {
        if files_removed(&node) < 2 {
            node.rest(1)
        }
    });
    node.sent();
    assert!(files_removed(&node) >= 2);
    assert!(node.store.usage().free_bytes > before.free_bytes);
    let mut node = node.crash(Crash::LoseUnsynced);
    is_takeover_safe(&mut node)?;
    let is_whole = node.store.standing() == Standing::Good && node.holds(&large(1, stored));
    if is_whole { Ok(()) } else { Err(format!("{stored} is gone")) }
}

/// What was moved rots in its new place as soon as the file it was in has gone: that is no torn write.
fn what_was_moved_is_proven(mutations: Mutations) -> Result<(), String> {
    let mut node = History::new(mutations, Lane::Writes).node;
    let kept = blob(key(2, 1, 1), "it was acknowledged");
    assert_eq!(node.put(put(kept.clone())), PutResult::Stored);
    (1..=10).for_each(|step| assert_eq!(node.put(put(large(1, step))), PutResult::Stored));
    node.message(beacon(mark(1, 10), 100, 1));
    for _ in 0..1000 {
        // No time passes behind the last move, in which more would be written.
        if node.store.counters().files_removed > 0 || node.disk_step() {
            continue;
        }
        node.now = node.now + Duration::from_millis(200);
        node.input(StoreInput::Tick);
    }
    node.run();
    let disk = node.disk.image();
    let places = places_of(&disk, &kept.payload.to_contiguous());
    assert_eq!(places.len(), 1, "it was moved: {places:?}");
    assert!(disk.flip_bit(&places[0].0, places[0].1));
    let config = StoreConfig { fresh_incarnation: Incarnation::new(77), ..node.config };
    let mut node = Node::mount(config, disk);
    let from = ReadFrom::Step(kept.key.point.step);
    let is_sure = node.store.standing() == Standing::Good;
    let is_absent = is_sure && node.read(2, 1, from, 1) == ReadReply::NotHere;
    if is_absent { Err(format!("{:?} was never there", kept.key)) } else { Ok(()) }
}

/// Each journal file in turn is gone, or has nothing in it any more, when the disk is mounted.
fn what_is_gone_is_missed(mutations: Mutations) -> Result<(), String> {
    let mut node = History::new(mutations, Lane::Writes).node;
    (1..=30).for_each(|step| assert_eq!(node.put(put(large(1, step))), PutResult::Stored));
    let mut disk = node.disk;
    let logs: Vec<String> = disk.list().expect("a disk that works");
    let logs = logs.into_iter().filter(|name| name.ends_with(".log")).collect::<Vec<_>>();
    assert!(logs.len() > 2, "{logs:?}");
    let config = StoreConfig { fresh_incarnation: Incarnation::new(77), ..node.config };
    for (index, log) in logs.iter().enumerate() {
        for is_blank in [false, true] {
            let mut disk = disk.image();
            let size_bytes = disk.size_bytes(log).expect("a disk that works");
            // Of the last one it can't be told whether it ever had anything, nor of the spare behind it.
            if is_blank && index + 2 >= logs.len() {
                continue;
            }
            disk.remove(log).expect("a disk that works");
            if is_blank {
                disk.create(log, size_bytes).expect("a disk that works");
                disk.recycle(&[log.replace(".log", ".idx")]).expect("a disk that works");
            }
            let node = Node::mount(config, disk);
            if node.store.incarnation() != Incarnation::new(77) {
                return Err(format!("nobody misses {log}, blank: {is_blank}"));
            }
            // It is noticed once.
            let node = node.crash(Crash::LoseUnsynced);
            assert_eq!(node.store.incarnation(), Incarnation::new(77), "{log}");
            assert_eq!(node.store.counters().corrupt, 0, "{log}");
        }
    }
    Ok(())
}

#[test]
fn a_crash_at_any_step_loses_nothing_and_brings_nothing_back() {
    assert_eq!(files_go_in_turn(Mutations::NONE), Ok(()));
}

#[test]
fn files_that_a_full_disk_empties_leave_no_gap() {
    assert_eq!(a_full_disk_empties_files(Mutations::NONE), Ok(()));
}

#[test]
fn what_was_moved_does_not_look_torn() {
    assert_eq!(what_was_moved_is_proven(Mutations::NONE), Ok(()));
}

#[test]
fn a_file_that_is_gone_is_missed_once() {
    assert_eq!(what_is_gone_is_missed(Mutations::NONE), Ok(()));
}

#[cfg(feature = "mutations")]
#[test]
fn every_broken_rule_of_files_is_found() {
    use meridian_storage::mutation::Mutation;

    let checks = [
        a_full_disk_empties_files,
        what_was_moved_is_proven,
        what_is_gone_is_missed,
        files_go_in_turn,
    ];
    for mutation in Mutation::FILES {
        let found = checks.iter().any(|check| check(Mutations(Some(mutation))).is_err());
        assert!(found, "{mutation:?}: {}", mutation.describe());
    }
}
