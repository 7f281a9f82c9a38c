//! Space: what is freed, how files are emptied, what happens when the disk is full (rule T8).

use bytes::Bytes;
use meridian_base::env::memory::Crash;
use meridian_base::env::{Disk, DiskError};
use meridian_base::id::ConfigVersion;
use meridian_base::position::{Generation, Offset};
use meridian_storage::blob::{Blob, BlobKind};
use meridian_storage::journal::{DiskDone, DiskOp};
use meridian_storage::lineage::{Past, Start};
use meridian_storage::message::{Beacon, FenceResult, Put, PutResult, Refusal, StorageMessage};
use meridian_storage::store::StoreInput;

use crate::harness::{Node, blob, blob_of, key, mark, partition, point, put};

pub(crate) fn beacon(
    mark: meridian_storage::message::CommitMark,
    log_start: i64,
    low: u32,
) -> StorageMessage {
    StorageMessage::Beacons(vec![Beacon {
        partition: partition(1),
        mark,
        log_start_offset: Offset::new(log_start),
        free_below: Offset::new(log_start),
        clean_from: Default::default(),
        generation_min: Generation::new(low),
    }])
}

fn start_blob(generation: u32, base: i64, past: Vec<Past>) -> Blob {
    let start = Start {
        previous: past.last().map(|past| point(past.generation.get(), past.last_step.get())),
        base_offset: Offset::new(base),
        tail_length: 0,
        log_start_offset: Offset::ZERO,
        past,
        epochs: Vec::new(),
        checkpoint: None,
    };
    blob_of(key(1, generation, 0), BlobKind::Start, Offset::new(base), 0, start.encode())
}

fn checkpoint(generation: u32, step: u64, offset: i64) -> Blob {
    let bytes = Bytes::from_static(b"producers");
    blob_of(key(1, generation, step), BlobKind::Checkpoint, Offset::new(offset), 0, bytes)
}

pub(crate) fn large(id: u64, step: u64) -> Blob {
    blob(key(id, 1, step), &format!("{step:08}").repeat(1000))
}

fn store_all(node: &mut Node, blobs: &[Blob]) {
    for blob in blobs {
        assert_eq!(node.put(put(blob.clone())), PutResult::Stored);
    }
}

fn held_points(node: &mut Node) -> Vec<(u32, u64)> {
    let mut points: Vec<_> = Vec::new();
    for (generation, last) in [(1, 40), (2, 40), (3, 40)] {
        for step in 0..=last {
            let from = meridian_storage::message::ReadFrom::Step(point(0, step).step);
            let reply = node_read(node, generation, from, step);
            if reply {
                points.push((generation, step));
            }
        }
    }
    points
}

fn node_read(
    node: &mut Node,
    generation: u32,
    from: meridian_storage::message::ReadFrom,
    step: u64,
) -> bool {
    node.sent();
    let reply = node.read(1, generation, from, step);
    matches!(reply, meridian_storage::message::ReadReply::Blobs(_))
}

#[test]
fn what_lies_below_the_log_start_is_freed_but_not_what_a_takeover_needs() {
    let mut node = Node::alone();
    let mut blobs = vec![start_blob(1, 0, Vec::new())];
    blobs.extend((1..=3).map(|step| blob(key(1, 1, step), "old")));
    blobs.push(checkpoint(1, 4, 40));
    blobs.extend((5..=6).map(|step| blob(key(1, 1, step), "old")));
    blobs.push(checkpoint(1, 7, 70));
    blobs.push(checkpoint(1, 8, 70));
    blobs.extend((9..=12).map(|step| blob(key(1, 1, step), "new")));
    store_all(&mut node, &blobs);
    node.message(beacon(mark(1, 10), 100, 1));
    node.run();
    let expected = [(1, 0), (1, 7), (1, 8), (1, 10), (1, 11), (1, 12)];
    assert_eq!(held_points(&mut node), expected);
    let mut node = node.crash(Crash::LoseUnsynced);
    assert_eq!(held_points(&mut node), expected, "and they do not come back");
    assert_eq!(node.view(1, 60).log_start_offset, Offset::new(100));
}

#[test]
fn a_trim_that_is_still_replayed_stays() {
    let mut node = Node::alone();
    let past = Past {
        generation: Generation::new(1),
        base_offset: Offset::ZERO,
        last_step: point(1, 2).step,
    };
    let trim = blob_of(key(1, 2, 1), BlobKind::Trim, Offset::new(20), 0, Bytes::new());
    store_all(&mut node, &[start_blob(1, 0, Vec::new()), blob(key(1, 1, 1), "x")]);
    store_all(&mut node, &[checkpoint(1, 2, 20)]);
    // A takeover copied the trim, which was in doubt: it comes after the newest checkpoint.
    store_all(&mut node, &[start_blob(2, 20, vec![past]), trim, blob(key(1, 2, 2), "y")]);
    node.message(beacon(mark(2, 2), 20, 1));
    node.run();
    assert_eq!(held_points(&mut node), [(1, 2), (2, 0), (2, 1), (2, 2)]);
}

#[test]
fn a_fenced_leaders_late_beacon_frees_nothing() {
    let mut node = Node::alone();
    store_all(&mut node, &[start_blob(1, 0, Vec::new()), blob(key(1, 1, 1), "x")]);
    store_all(&mut node, &[blob(key(1, 1, 2), "y")]);
    node.fence(1, 2);
    node.message(beacon(mark(1, 2), 20, 1));
    node.run();
    assert_eq!(held_points(&mut node), [(1, 0), (1, 1), (1, 2)]);
}

#[test]
fn nothing_above_the_mark_is_freed() {
    let mut node = Node::alone();
    let past = Past {
        generation: Generation::new(1),
        base_offset: Offset::ZERO,
        last_step: point(1, 2).step,
    };
    store_all(&mut node, &[start_blob(1, 0, Vec::new()), blob(key(1, 1, 2), "x")]);
    // The successor's Start is on its way: all records lie below its base offset.
    store_all(&mut node, &[start_blob(2, 30, vec![past])]);
    node.message(beacon(mark(1, 2), 30, 1));
    node.run();
    assert_eq!(held_points(&mut node), [(1, 0), (1, 2), (2, 0)]);
    // Once it is committed, the old generation goes.
    node.message(beacon(mark(2, 0), 30, 2));
    node.run();
    assert_eq!(held_points(&mut node), [(2, 0)]);
}

#[test]
fn a_checkpoint_that_was_cut_off_does_not_push_out_one_that_counts() {
    let mut node = Node::alone();
    let past = Past {
        generation: Generation::new(1),
        base_offset: Offset::ZERO,
        last_step: point(1, 2).step,
    };
    let void = [checkpoint(1, 5, 50), checkpoint(1, 6, 60)];
    store_all(&mut node, &[start_blob(1, 0, Vec::new()), checkpoint(1, 2, 20)]);
    store_all(&mut node, &void);
    store_all(&mut node, &[start_blob(2, 100, vec![past]), blob(key(1, 2, 10), "x")]);
    node.message(beacon(mark(2, 10), 100, 2));
    node.run();
    assert_eq!(held_points(&mut node), [(1, 2), (2, 0), (2, 10)]);
}

fn journal_count(node: &mut Node) -> usize {
    node.disk
        .list()
        .expect("a disk that works")
        .iter()
        .filter(|name| name.ends_with(".log"))
        .count()
}

#[test]
fn emptied_files_go_and_take_no_fence_with_them() {
    let mut node = Node::alone();
    node.fence(9, 3);
    let kept = blob(key(2, 1, 1), "survivor");
    store_all(&mut node, std::slice::from_ref(&kept));
    let start = start_blob(1, 0, Vec::new());
    store_all(&mut node, std::slice::from_ref(&start));
    for step in 1..=60 {
        assert_eq!(node.put(put(large(1, step))), PutResult::Stored, "step {step}");
        node.message(beacon(mark(1, step), 10 * step as i64, 1));
        node.rest(3);
        node.sent();
    }
    assert!(node.store.counters().files_removed >= 5, "{:?}", node.store.counters());
    assert!(journal_count(&mut node) <= 4);
    let mut node = node.crash(Crash::LoseUnsynced);
    assert!(node.holds(&kept) && node.holds(&start) && node.holds(&large(1, 60)));
    assert!(matches!(node.fence(9, 2), FenceResult::Fenced { .. }));
    assert_eq!(node.store.group().map(|group| group.version), Some(ConfigVersion::new(1)));
    assert_eq!(node.view(1, 2).mark.map(|mark| mark.point), Some(point(1, 60)));
}

/// A node that is about to empty files full of small blobs, each of them a batch of its own.
fn with_small_blobs() -> (Node, Vec<Blob>) {
    let mut node = Node::alone();
    let small: Vec<Blob> = (1..=40).map(|step| blob(key(2, 1, step), "survivor")).collect();
    store_all(&mut node, &small);
    (node, small)
}

#[test]
fn small_blobs_are_moved_many_at_a_time() {
    let (mut node, small) = with_small_blobs();
    let batches_before = node.store.counters().batches;
    let mut reads = 0;
    for _ in 0..50 {
        node.now = node.now + std::time::Duration::from_millis(200);
        node.input(StoreInput::Tick);
        while let Some(op) = node.ops.front() {
            reads += u32::from(matches!(op, DiskOp::Read { file, .. } if file.ends_with(".log")));
            node.disk_step();
        }
    }
    let counters = node.store.counters();
    assert!(counters.files_removed >= 2, "{counters:?}");
    assert!(counters.relocated_bytes >= 30 * 8, "{counters:?}");
    assert!(reads <= 4 * counters.files_removed as u32, "{reads} reads, {counters:?}");
    let batches = counters.batches - batches_before;
    assert!(batches <= 8 * counters.files_removed, "{batches} batches, {counters:?}");
    assert!(small.iter().all(|blob| node.holds(blob)));
    let mut node = node.crash(Crash::LoseUnsynced);
    assert!(small.iter().all(|blob| node.holds(blob)));
}

#[test]
fn a_run_that_cannot_be_read_is_read_blob_by_blob() {
    let (mut node, small) = with_small_blobs();
    let mut failed = 0;
    for _ in 0..50 {
        node.now = node.now + std::time::Duration::from_millis(200);
        node.input(StoreInput::Tick);
        while let Some(op) = node.ops.front() {
            match op {
                DiskOp::Read { token, file, size_bytes, .. }
                    if file.ends_with(".log") && *size_bytes > 8 =>
                {
                    let error = DiskError::Io {
                        file: file.clone(),
                        operation: "read",
                        detail: "bad sector".into(),
                    };
                    let done = DiskDone::Read { token: *token, result: Err(error) };
                    node.ops.pop_front();
                    node.input(StoreInput::DiskDone(done));
                    failed += 1;
                }
                _ => drop(node.disk_step()),
            }
        }
    }
    let counters = node.store.counters();
    assert!(failed > 0 && counters.files_removed >= 1, "{failed} failed, {counters:?}");
    assert_eq!(counters.corrupt, 0, "every blob could be read by itself");
    assert!(small.iter().all(|blob| node.holds(blob)));
}

#[test]
fn a_crash_at_any_point_of_relocation_loses_nothing() {
    for crash_at in 0..120 {
        let mut node = Node::alone();
        let kept: Vec<Blob> = (1..=4).map(|step| blob(key(2, 1, step), "survivor")).collect();
        store_all(&mut node, &kept);
        for step in 1..=16 {
            assert_eq!(node.put(put(large(1, step))), PutResult::Stored);
        }
        node.message(beacon(mark(1, 16), 160, 1));
        for step in 0.. {
            if step == crash_at || (!node.disk_step() && step > 110) {
                break;
            }
            if node.ops.is_empty() {
                node.now = node.now + std::time::Duration::from_millis(200);
                node.input(StoreInput::Tick);
            }
        }
        let mut node = node.crash(Crash::TearUnsynced);
        assert_eq!(node.store.counters().corrupt, 0, "crash at {crash_at}");
        assert!(kept.iter().all(|blob| node.holds(blob)), "crash at {crash_at}");
        assert!(node.holds(&large(1, 16)), "crash at {crash_at}");
        node.rest(20);
        node.sent();
        assert!(kept.iter().all(|blob| node.holds(blob)), "crash at {crash_at}");
    }
}

#[test]
fn a_full_disk_refuses_puts_but_fences() {
    let mut node = Node::alone();
    let mut stored = 0;
    let refusal = loop {
        match node.put(put(large(1, stored + 1))) {
            PutResult::Stored => stored += 1,
            other => break other,
        }
        node.rest(1);
        assert!(stored < 1000);
    };
    assert_eq!(refusal, PutResult::Refused { reason: Refusal::Full });
    for generation in 2..7 {
        assert!(matches!(node.fence(2, generation), FenceResult::Certain(_)));
        node.rest(3);
    }
    // Room comes back when the log start moves.
    node.message(beacon(mark(1, stored), 10 * stored as i64, 1));
    node.rest(100);
    node.sent();
    let blob = blob(key(1, 1, stored + 1), "room again");
    assert_eq!(node.put(put(blob)), PutResult::Stored);
    assert!(node.holds(&large(1, stored)));
}

/// A blob that fills a batch of three blocks, so that next to nothing of a file is padding.
fn dense(id: u64, step: u64) -> Blob {
    blob(key(id, 1, step), &format!("{step:08}").repeat(1480))
}

#[test]
fn a_full_disk_gives_back_what_is_freed_everywhere_at_once() {
    let mut node = Node::alone();
    let (mut kept, mut freed) = (0, 0);
    let mut rounds = 0;
    // Three of five blobs of every file are for good, and the two between them only for now.
    loop {
        let is_kept = (kept + freed) % 5 < 3;
        let blob = if is_kept { dense(2, kept + 1) } else { dense(1, freed + 1) };
        match node.put(put(blob)) {
            PutResult::Stored if is_kept => kept += 1,
            PutResult::Stored => freed += 1,
            PutResult::Refused { reason: Refusal::Full } => {
                node.message(beacon(mark(1, freed), 10 * freed as i64, 1));
                node.rest(200);
                node.sent();
                assert!(matches!(node.fence(3, rounds + 1), FenceResult::Certain(_)));
                rounds += 1;
                let kept_bytes = kept * 12_288;
                if kept_bytes * 100 > node.config.usable_bytes() * 65 {
                    break;
                }
                assert!(node.store.counters().relocated_bytes < 2 * node.config.capacity_bytes);
                assert!(rounds < 20, "{kept} blobs kept take {kept_bytes} bytes, and it is full");
            }
            other => panic!("{other:?}"),
        }
        node.rest(1);
    }
    for step in 1..=kept {
        assert!(node.holds(&dense(2, step)), "{step} of {kept}");
    }
}

#[test]
fn a_disk_smaller_than_its_configuration_refuses_and_recovers_every_time() {
    let mut node = Node::alone();
    // Of what is recycled nothing but a file has room, once there is a file of it.
    let spare_bytes = 10_000;
    node.disk.set_capacity_bytes(5 * u64::from(node.config.file_size_bytes) + spare_bytes);
    let mut stored = 0;
    for round in 1..=5 {
        let begun = stored;
        while fits(&mut node, stored + 1) {
            stored += 1;
            assert!(stored < 1000);
        }
        assert!(stored > begun, "round {round}: emptied files are room");
        assert!(node.outputs.is_empty(), "a full disk is no reason to stop: {:?}", node.outputs);
        node.message(beacon(mark(1, stored), 10 * stored as i64, 1));
        node.rest(100);
        node.sent();
    }
    let mut node = node.crash(Crash::LoseUnsynced);
    assert!(node.holds(&large(1, stored)));
}

/// Puts a large blob; whether the disk has room for it.
fn fits(node: &mut Node, step: u64) -> bool {
    node.message(StorageMessage::Put(put(large(1, step))));
    node.rest(2);
    match node.put_results().pop() {
        Some((_, PutResult::Stored)) => true,
        Some((_, PutResult::Refused { reason: Refusal::Full })) | None => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn too_much_at_once_is_refused_as_busy() {
    let mut node = Node::alone();
    for step in 1..=40 {
        node.message(StorageMessage::Put(put(large(1, step))));
    }
    let busy = PutResult::Refused { reason: Refusal::Busy };
    assert!(node.put_results().iter().any(|(_, result)| *result == busy));
    node.run();
    assert!(node.put_results().iter().all(|(_, result)| *result == PutResult::Stored));
}

#[test]
fn a_deleted_topic_frees_its_blobs_for_good() {
    let mut node = Node::alone();
    store_all(&mut node, &[large(1, 1), large(2, 1)]);
    let live_before = node.store.usage().live_bytes;
    assert_eq!(node.store.partitions(), [partition(1), partition(2)].into());
    node.input(StoreInput::Forget(partition(1)));
    node.run();
    assert_eq!(node.store.partitions(), [partition(2)].into());
    // A record says that it is deleted.
    assert!(node.store.usage().live_bytes <= live_before / 2 + 64);
    assert!(!node.holds(&large(1, 1)));
    let refused = node.put(Put { ..put(large(1, 2)) });
    assert!(matches!(refused, PutResult::Fenced { .. }));
    let mut node = node.crash(Crash::LoseUnsynced);
    assert!(!node.holds(&large(1, 1)) && node.holds(&large(2, 1)));
}
