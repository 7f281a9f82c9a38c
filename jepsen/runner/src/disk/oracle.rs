//! What a disk has acknowledged can be read after the power was cut, or the disk says that it is unsure: whichever call
//! of the kernel fails, with whatever number, once or for good.
//!
//! A child process runs the store on a folder under the shim, and notes what is acknowledged. When it has ended the
//! power is cut, and the store is mounted again without the shim.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::position::{Generation, LogPoint, Offset, Step};
use meridian_base::topology::{Geometry, GroupConfig, SlotConfig, SlotState};
use meridian_runtime::disk::FolderDisk;
use meridian_storage::blob::{Blob, BlobHeader, BlobKey, BlobKind, Payload};
use meridian_storage::config::StoreConfig;
use meridian_storage::journal::{DiskOp, OpenError, execute};
use meridian_storage::message::{
    Beacon, CommitMark, Put, PutResult, Read, ReadFrom, ReadReply, StorageMessage,
};
use meridian_storage::store::{Origin, Standing, Store, StoreInput, StoreOutput};

use super::control::{Control, ERRNOS, Fault, Operation};
use super::undo::{self, Cut};
use crate::chance::Chance;

const CHILD: &str = "disk::oracle::a_store_under_the_shim";
const DATA: &str = "MERIDIAN_ORACLE_DATA";
const ACKS: &str = "MERIDIAN_ORACLE_ACKS";
/// Four of them in a batch are written in two stretches.
const PAYLOAD_SIZE_BYTES: usize = 500_000;
const ROUND_COUNT: u64 = 6;
const PUTS_PER_ROUND: u64 = 5;
/// Steps that a leader lets go in the midst: their files are emptied, and go.
const FREED_STEPS: u64 = 8;
/// One of each meaning that they have.
const FEW_ERRNOS: [i32; 3] = [libc::EIO, libc::EMFILE, libc::ENOSPC];

fn config(incarnation: u64) -> StoreConfig {
    StoreConfig {
        file_size_bytes: 4 << 20,
        batch_size_bytes_max: 2 << 20,
        staged_bytes_max: 8 << 20,
        cache_bytes_max: 0,
        ..StoreConfig::small(NodeId::new(1), Incarnation::new(incarnation), 128 << 20)
    }
}

fn group() -> GroupConfig {
    let slot = SlotConfig {
        node: NodeId::new(1),
        incarnation: Incarnation::new(1),
        state: SlotState::Good,
    };
    GroupConfig {
        group: GroupId::new(1),
        version: ConfigVersion::new(1),
        geometry: Geometry::None,
        slots: vec![slot],
    }
}

fn point(step: u64) -> LogPoint {
    LogPoint::new(Generation::FIRST, Step::new(step))
}

fn blob(step: u64) -> Blob {
    let payload = Payload::from(Bytes::from(vec![step as u8 + 1; PAYLOAD_SIZE_BYTES]));
    let base_offset = Offset::new(10 * step as i64);
    let header = BlobHeader::describe(BlobKind::Records, base_offset, 10, 0, &payload);
    Blob { key: BlobKey { partition: PartitionId::new(1), point: point(step) }, header, payload }
}

fn mark(step: u64) -> CommitMark {
    CommitMark { point: point(step), high_watermark: Offset::new(10 * (step as i64 + 1)) }
}

/// A store on a folder.
struct Node {
    store: Store,
    disk: FolderDisk,
    now: Instant,
    ops: VecDeque<DiskOp>,
    sent: Vec<StorageMessage>,
    is_stopped: bool,
}

impl Node {
    fn open(data: &Path, incarnation: u64) -> Result<Self, OpenError> {
        let mut disk = FolderDisk::open(&data.join("disk"))?;
        let store = Store::open(&mut disk, config(incarnation))?;
        let (ops, sent) = (VecDeque::new(), Vec::new());
        let mut node = Self { store, disk, now: Instant::ZERO, ops, sent, is_stopped: false };
        node.run(StoreInput::Config(group()));
        Ok(node)
    }

    /// Takes an input, and carries out all that comes of it.
    fn run(&mut self, input: StoreInput) {
        self.input(input);
        while let Some(op) = self.ops.pop_front() {
            let done = execute(&mut self.disk, op);
            self.input(StoreInput::DiskDone(done));
        }
    }

    fn input(&mut self, input: StoreInput) {
        let mut outputs = Vec::new();
        self.store.step(self.now, input, &mut outputs);
        for output in outputs {
            match output {
                StoreOutput::Disk(op) => self.ops.push_back(op),
                StoreOutput::Send { message, .. } => self.sent.push(message),
                StoreOutput::Fatal { .. } => self.is_stopped = true,
                StoreOutput::SendToSlot { .. } | StoreOutput::Synced { .. } => {}
            }
        }
        if self.is_stopped {
            self.ops.clear();
        }
    }

    fn message(message: StorageMessage) -> StoreInput {
        StoreInput::Message { origin: Origin(7), message }
    }

    /// Puts these steps at once; gives those that are acknowledged.
    fn put(&mut self, steps: std::ops::Range<u64>) -> Vec<u64> {
        for step in steps {
            let mark = step.checked_sub(PUTS_PER_ROUND).map(mark);
            let put = Put { config_version: ConfigVersion::new(1), mark, blob: blob(step) };
            self.input(Self::message(StorageMessage::Put(put)));
        }
        self.run(StoreInput::Wake);
        let replies = self.sent.drain(..).filter_map(|message| match message {
            StorageMessage::PutReplies(replies) => Some(replies),
            _ => None,
        });
        let stored = replies.flatten().filter(|reply| reply.result == PutResult::Stored);
        stored.map(|reply| reply.key.point.step.get()).collect()
    }

    fn rest(&mut self) {
        for _ in 0..5 {
            self.now = self.now + Duration::from_millis(200);
            self.run(StoreInput::Tick);
        }
    }

    /// The leader lets the first steps go.
    fn free(&mut self, committed: u64) {
        let free_below = Offset::new(10 * (FREED_STEPS as i64 + 1));
        let beacon = Beacon {
            partition: PartitionId::new(1),
            mark: mark(committed),
            log_start_offset: free_below,
            free_below,
            clean_from: LogPoint::default(),
            generation_min: Generation::FIRST,
        };
        self.run(Self::message(StorageMessage::Beacons(vec![beacon])));
        self.rest();
    }

    fn holds(&mut self, step: u64) -> bool {
        let request = Read {
            partition: PartitionId::new(1),
            generation: Generation::FIRST,
            from: ReadFrom::Step(Step::new(step)),
            last_step: Step::new(step),
            size_bytes_max: 1 << 20,
        };
        self.run(Self::message(StorageMessage::Read { tag: 9, request }));
        let reply = self.sent.pop();
        let expected = ReadReply::Blobs(vec![blob(step)]);
        reply == Some(StorageMessage::ReadReply { tag: 9, reply: expected })
    }
}

/// The child's part.
#[test]
fn a_store_under_the_shim() {
    let (Some(data), Some(acks)) = (std::env::var_os(DATA), std::env::var_os(ACKS)) else { return };
    let mut acks = OpenOptions::new().append(true).create(true).open(acks).unwrap();
    let Ok(mut node) = Node::open(Path::new(&data), 1) else { return };
    for round in 0..ROUND_COUNT {
        let first = 1 + round * PUTS_PER_ROUND;
        for step in node.put(first..first + PUTS_PER_ROUND) {
            writeln!(acks, "{step}").unwrap();
        }
        if round == ROUND_COUNT / 2 {
            node.free(first - 1);
        }
        for step in [1, FREED_STEPS + 1, first] {
            let _as_may_be = node.holds(step);
        }
        if node.is_stopped {
            break;
        }
    }
    // Nothing closes in order: the power goes.
    std::process::exit(0);
}

struct Case {
    folder: PathBuf,
    shim: PathBuf,
    control: Control,
}

impl Case {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("meridian-oracle-{name}-{}", std::process::id()));
        let _of_another_run = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let shim = super::compile(&folder).unwrap();
        let control = Control::create(&folder.join("control")).unwrap();
        Self { folder, shim, control }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs a store on a new disk while `operation` fails; cuts the power. Gives what was acknowledged, and whether the
    /// operation did fail.
    fn run(&self, operation: Operation, fault: Fault) -> (Vec<u64>, bool) {
        let (data, kept, log) = (self.path("data"), self.path("kept"), self.path("undo"));
        let acks = self.path("acks");
        let _of_another_case = std::fs::remove_dir_all(&data);
        std::fs::create_dir(&data).unwrap();
        undo::forget(&log, &kept).unwrap();
        File::create(&acks).unwrap();
        let failed_before = self.control.failed_count(operation);
        self.control.fail_as(operation, fault);
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CHILD, "--nocapture"])
            .env("LD_PRELOAD", &self.shim)
            .env("MERIDIAN_SHIM_CONTROL", self.control.file())
            .env("MERIDIAN_SHIM_UNDO", &log)
            .env("MERIDIAN_SHIM_KEPT", &kept)
            .env("MERIDIAN_SHIM_DATA", &data)
            .env(DATA, &data)
            .env(ACKS, &acks)
            .output()
            .unwrap();
        self.control.heal_disk();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{operation:?} {fault:?}: {errors}");
        undo::cut(&log, &kept, &data, Cut::Whole, &mut Chance::new(1)).unwrap();
        let acked = std::fs::read_to_string(&acks).unwrap();
        let acked = acked.lines().map(|line| line.parse().unwrap()).collect();
        (acked, self.control.failed_count(operation) > failed_before)
    }

    /// What the disk has lost, though it says that it is sure.
    fn lost(&self, acked: &[u64]) -> Vec<u64> {
        let mut node = match Node::open(&self.path("data"), 99) {
            Ok(node) => node,
            // It knows that it does not know: the node does not serve.
            Err(OpenError::IdentityUnreadable) => return Vec::new(),
            Err(error) => panic!("{error}"),
        };
        if node.store.standing() != Standing::Good {
            return Vec::new();
        }
        let held = acked.iter().copied().filter(|step| *step > FREED_STEPS);
        held.filter(|step| !node.holds(*step)).collect()
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_dir_all(&self.folder);
    }
}

/// Each call, each number, once and for good.
fn check(operation: Operation, errnos: &[i32], skips: &[u32]) {
    let case = Case::new(&format!("{operation:?}"));
    let (mut failed_count, mut acked_count) = (0, 0);
    for (index, errno) in errnos.iter().copied().enumerate() {
        for count_max in [Some(1), None] {
            let skip = skips[index % skips.len()];
            let fault = Fault { errno, per_mille: 1000, skip, count_max };
            let (acked, has_failed) = case.run(operation, fault);
            failed_count += u32::from(has_failed);
            acked_count += acked.len();
            let lost = case.lost(&acked);
            assert!(lost.is_empty(), "{operation:?} {fault:?}: {lost:?} of {acked:?} are lost");
        }
    }
    assert!(failed_count > 0, "{operation:?} never failed");
    assert!(acked_count > 0, "nothing was acknowledged under {operation:?}");
}

#[test]
fn what_is_acknowledged_outlives_a_lost_write_back() {
    check(Operation::WriteOut, &ERRNOS, &[0, 1, 3]);
}

#[test]
fn what_is_acknowledged_outlives_a_failed_sync() {
    check(Operation::Sync, &ERRNOS, &[20, 27, 31, 36, 44]);
}

#[test]
fn what_is_acknowledged_outlives_failed_writes_and_reads() {
    check(Operation::Write, &FEW_ERRNOS, &[90, 100, 110, 120]);
    check(Operation::Read, &FEW_ERRNOS, &[0, 5, 11]);
}

#[test]
fn what_is_acknowledged_outlives_names_that_cannot_be_changed() {
    for operation in [Operation::Create, Operation::Rename, Operation::Open] {
        check(operation, &FEW_ERRNOS, &[4, 5, 7]);
    }
    for operation in [Operation::Allocate, Operation::Remove, Operation::Stat, Operation::Space] {
        check(operation, &FEW_ERRNOS, &[0, 1]);
    }
}
