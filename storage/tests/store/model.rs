//! Random histories with crashes at any point, against the simplest possible memory of what was
//! promised: what was acknowledged is there, what was fenced stays fenced, nothing cries wolf.

use std::collections::BTreeMap;

use meridian_base::env::Disk;
use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::id::Incarnation;
use meridian_base::position::{Generation, Offset};
use meridian_storage::blob::{Blob, BlobKey};
use meridian_storage::message::{
    Beacon, CommitMark, FenceResult, Put, PutResult, ReadFrom, ReadReply, StorageMessage,
};
use meridian_storage::store::{Standing, StoreInput, StoreOutput};
use proptest::prelude::*;

use crate::harness::{Node, blob, key, mark, partition, put, store_config};

const PARTITIONS: std::ops::Range<u64> = 1..4;

#[derive(Clone, Debug)]
enum Op {
    Put {
        id: u64,
        generation: u32,
        step: u64,
        variant: u8,
        repeat: usize,
        mark: Option<u64>,
    },
    Fence {
        ids: Vec<u64>,
        generation: u32,
    },
    Beacon {
        id: u64,
        generation: u32,
        step: u64,
        log_start: i64,
    },
    Disk {
        count: usize,
    },
    Rest,
    FailSync,
    /// The power fails; `cut` is whether an operation was under way.
    Crash {
        how: Crash,
        cut: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let id = || PARTITIONS;
    let put = (id(), 1u32..5, 0u64..12, 0u8..2, 0usize..600, proptest::option::of(0u64..12))
        .prop_map(|(id, generation, step, variant, repeat, mark)| Op::Put {
            id,
            generation,
            step,
            variant,
            repeat,
            mark: mark.filter(|mark| *mark < step),
        });
    let fence = (proptest::collection::vec(id(), 1..3), 1u32..5)
        .prop_map(|(ids, generation)| Op::Fence { ids, generation });
    let beacon = (id(), 1u32..5, 0u64..12, 0i64..12).prop_map(|(id, generation, step, part)| {
        Op::Beacon { id, generation, step, log_start: 10 * part.min(step as i64) }
    });
    let crash = prop_oneof![
        Just(Crash::LoseUnsynced),
        Just(Crash::KeepUnsynced),
        Just(Crash::TearUnsynced)
    ];
    prop_oneof![
        8 => put,
        2 => fence,
        1 => beacon,
        6 => (1usize..6).prop_map(|count| Op::Disk { count }),
        2 => Just(Op::Rest),
        1 => Just(Op::FailSync),
        1 => (crash, any::<bool>()).prop_map(|(how, cut)| Op::Crash { how, cut }),
    ]
}

/// What the store has promised.
#[derive(Default)]
struct Promises {
    /// The last bytes accepted under a key, acknowledged or not.
    accepted: BTreeMap<BlobKey, Blob>,
    stored: BTreeMap<BlobKey, Blob>,
    fences: BTreeMap<u64, Generation>,
    /// The highest mark and log start that leaders have named: what lies below both may go.
    marks: BTreeMap<u64, CommitMark>,
    log_starts: BTreeMap<u64, Offset>,
}

impl Promises {
    fn may_be_gone(&self, blob: &Blob) -> bool {
        let id = blob.key.partition.get();
        let committed = self.marks.get(&id).is_some_and(|mark| blob.key.point <= mark.point);
        let log_start = self.log_starts.get(&id).copied().unwrap_or_default();
        committed && blob.header.next_offset() <= log_start
    }

    fn mark(&mut self, id: u64, mark: CommitMark) {
        let known = self.marks.entry(id).or_insert(mark);
        *known = (*known).max(mark);
    }

    /// Notes what was answered. `sent` is the put that the outputs answer, if they answer one.
    fn note(&mut self, outputs: &mut Vec<StoreOutput>, sent: Option<Blob>) -> bool {
        let mut fatal = false;
        let mut accepted = sent.is_some();
        let asked = sent.as_ref().map(|blob| blob.key);
        for output in outputs.drain(..) {
            match output {
                StoreOutput::Send { message: StorageMessage::PutReplies(replies), .. } => {
                    for reply in replies {
                        if reply.result == PutResult::Stored {
                            let same = sent.as_ref().filter(|blob| blob.key == reply.key);
                            let blob = same.unwrap_or_else(|| &self.accepted[&reply.key]);
                            if self.may_be_gone(blob) {
                                self.stored.remove(&reply.key);
                                continue;
                            }
                            let known = self.stored.entry(reply.key).or_insert(blob.clone());
                            assert!(known == blob, "two values under {:?}", reply.key);
                        } else if asked == Some(reply.key) {
                            accepted = false;
                        }
                    }
                }
                StoreOutput::Send {
                    message: StorageMessage::FenceReadReply { reply, .. }, ..
                } => {
                    for answer in reply.answers {
                        let id = answer.partition.get();
                        let fence = self.fences.entry(id).or_default();
                        match answer.result {
                            FenceResult::Certain(view) => {
                                *fence = (*fence).max(answer.generation);
                                self.check_view(id, &view);
                            }
                            FenceResult::Fenced { by } => assert!(by > answer.generation),
                            FenceResult::Unsure => panic!("unsure of {id}"),
                            FenceResult::Piece(piece) => panic!("{piece:?} of {id}"),
                        }
                    }
                }
                StoreOutput::Fatal { .. } => fatal = true,
                other => panic!("{other:?}"),
            }
        }
        if let Some(blob) = sent.filter(|_| accepted) {
            self.accepted.insert(blob.key, blob);
        }
        fatal
    }

    fn check_view(&self, id: u64, view: &meridian_storage::message::PartitionView) {
        let from = view.mark.map(|mark| mark.point).unwrap_or_default();
        for blob in self.stored.values() {
            let point = blob.key.point;
            if blob.key.partition == partition(id) && point >= from && !self.may_be_gone(blob) {
                let seen =
                    view.blobs.iter().any(|info| info.point == point && info.header == blob.header);
                assert!(seen, "{:?} is missing", blob.key);
            }
        }
    }
}

fn send_put(node: &mut Node, promises: &mut Promises, sent: Put) -> bool {
    let fenced_by = promises.fences.get(&sent.blob.key.partition.get()).copied();
    let sent_blob = sent.blob.clone();
    node.message(StorageMessage::Put(sent));
    if fenced_by.is_some_and(|by| sent_blob.key.point.generation < by) {
        let refused = node.outputs.iter().any(|output| {
            let StoreOutput::Send { message: StorageMessage::PutReplies(replies), .. } = output
            else {
                return false;
            };
            matches!(replies[0].result, PutResult::Fenced { .. })
        });
        assert!(refused, "{:?} passed a fence", sent_blob.key);
    }
    promises.note(&mut node.outputs, Some(sent_blob))
}

fn check(node: &mut Node, promises: &mut Promises) {
    assert_eq!(node.store.standing(), Standing::Good);
    assert_eq!(node.store.counters().corrupt, 0);
    for blob in promises.stored.values().filter(|blob| !promises.may_be_gone(blob)) {
        assert!(node.holds(blob), "{:?} is gone", blob.key);
    }
    for (id, fence) in promises.fences.clone() {
        let below = fence.get().saturating_sub(1);
        if below > 0 {
            assert!(matches!(node.fence(id, below), FenceResult::Fenced { .. }), "fence of {id}");
        }
    }
    // Nobody reads a value that was never sent under its key.
    for id in PARTITIONS {
        let view = node.view(id, 9);
        for info in &view.blobs {
            let step = info.point.step;
            let reply =
                node.read(id, info.point.generation.get(), ReadFrom::Step(step), step.get());
            let ReadReply::Blobs(read) = reply else { panic!("{reply:?}") };
            let known = promises.accepted.get(&read[0].key);
            assert!(known == Some(&read[0]) || promises.may_be_gone(&read[0]), "{:?}", read[0].key);
        }
        promises.check_view(id, &view);
    }
}

/// Plays a history; gives the node and what it has promised.
fn play(ops: Vec<Op>) -> (Node, Promises) {
    let mut node = Node::alone();
    let mut promises = Promises::default();
    for op in ops {
        let mut crash = None;
        let mut fatal = false;
        match op {
            Op::Put { id, generation, step, variant, repeat, mark: marked } => {
                let text = format!("{variant} of {id}.{generation}.{step} ").repeat(1 + repeat);
                let blob = blob(key(id, generation, step), &text);
                let mark = marked.map(|marked| mark(generation, marked));
                mark.into_iter().for_each(|mark| promises.mark(id, mark));
                fatal |= send_put(&mut node, &mut promises, Put { mark, ..put(blob) });
            }
            Op::Fence { ids, generation } => {
                let entries: Vec<_> = ids.into_iter().map(|id| (id, generation)).collect();
                node.message(Node::fence_message(&entries));
            }
            Op::Beacon { id, generation, step, log_start } => {
                let (mark, log_start_offset) = (mark(generation, step), Offset::new(log_start));
                promises.mark(id, mark);
                let log_start = promises.log_starts.entry(id).or_default();
                *log_start = (*log_start).max(log_start_offset);
                let generation_min = Generation::NONE;
                let partition = partition(id);
                node.message(StorageMessage::Beacons(vec![Beacon {
                    partition,
                    mark,
                    log_start_offset,
                    free_below: log_start_offset,
                    clean_from: Default::default(),
                    generation_min,
                }]));
            }
            Op::Disk { count } => {
                for _ in 0..count {
                    node.disk_step();
                    fatal |= promises.note(&mut node.outputs, None);
                    // A process that stops writes nothing behind what failed.
                    if fatal {
                        break;
                    }
                }
            }
            Op::Rest => {
                node.now = node.now + std::time::Duration::from_millis(600);
                node.input(StoreInput::Tick);
            }
            Op::FailSync => node.disk.fail_syncs(1),
            Op::Crash { how, cut } => {
                if cut {
                    node.disk_step_cut();
                }
                crash = Some(how);
            }
        }
        fatal |= promises.note(&mut node.outputs, None);
        if let Some(how) = crash.or(fatal.then_some(Crash::TearUnsynced)) {
            node.disk.fail_syncs(0);
            node = node.crash(how);
            forget_lost(&mut node, &mut promises);
        }
    }
    node.disk.fail_syncs(0);
    (node, promises)
}

/// Damage must show: as a blob that can't be read, or as a disk that is unsure of everything.
fn check_damaged(disk: MemoryDisk, promises: &Promises) {
    let mut node = Node::mount(store_config(1, 9_999), disk);
    if node.store.standing() != Standing::Good {
        assert_eq!(node.store.incarnation(), Incarnation::new(9_999));
        return;
    }
    for blob in promises.stored.values().filter(|blob| !promises.may_be_gone(blob)) {
        let point = blob.key.point;
        let from = ReadFrom::Step(point.step);
        let id = blob.key.partition.get();
        match node.read(id, point.generation.get(), from, point.step.get()) {
            ReadReply::Blobs(read) => assert!(read[0] == *blob, "{:?}", blob.key),
            ReadReply::Unreadable => {}
            other @ (ReadReply::NotHere | ReadReply::Damaged(_)) => {
                panic!("{:?}: {other:?}", blob.key)
            }
        }
    }
    for (id, fence) in &promises.fences {
        if let Some(below) = fence.get().checked_sub(1).filter(|below| *below > 0) {
            assert!(matches!(node.fence(*id, below), FenceResult::Fenced { .. }), "fence of {id}");
        }
    }
}

/// What was accepted but not acknowledged may have been lost by the crash: other bytes may follow.
fn forget_lost(node: &mut Node, promises: &mut Promises) {
    assert_eq!(node.store.standing(), Standing::Good, "a crash is no damage");
    for blob in promises.stored.values().filter(|blob| !promises.may_be_gone(blob)) {
        assert!(node.holds(blob), "{:?} is gone", blob.key);
    }
    let lost: Vec<BlobKey> =
        promises.accepted.values().filter(|blob| !node.holds(blob)).map(|blob| blob.key).collect();
    for key in lost {
        if !promises.stored.contains_key(&key) {
            promises.accepted.remove(&key);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn promises_outlive_crashes(ops in proptest::collection::vec(op(), 1..80)) {
        let (mut node, mut promises) = play(ops);
        node = node.crash(Crash::TearUnsynced);
        forget_lost(&mut node, &mut promises);
        check(&mut node, &mut promises);
    }

    #[test]
    fn damage_is_never_silent(
        ops in proptest::collection::vec(op(), 1..80),
        flips in proptest::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 20),
    ) {
        let (node, mut promises) = play(ops);
        let mut node = node.crash(Crash::TearUnsynced);
        forget_lost(&mut node, &mut promises);
        node.rest(20);
        for (file, offset) in flips {
            let mut disk = node.disk.image();
            let files = disk.list().expect("a disk that works");
            let file = file.get(&files);
            let size_bytes = disk.size_bytes(file).expect("a file that exists") as usize;
            disk.flip_bit(file, offset.index(size_bytes));
            check_damaged(disk, &promises);
        }
    }
}
