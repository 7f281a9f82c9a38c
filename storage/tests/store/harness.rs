//! A store with its disk: inputs go in, disk operations are carried out, answers come out.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::memory::{Crash, MemoryDisk};
use meridian_base::env::{Disk, Instant};
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::position::{Generation, LogPoint, Offset, Step};
use meridian_base::topology::{Geometry, GroupConfig, SlotConfig, SlotState};
use meridian_storage::blob::{Blob, BlobHeader, BlobKey, BlobKind, Payload};
use meridian_storage::config::StoreConfig;
use meridian_storage::journal::{DiskOp, execute};
use meridian_storage::limits::SizeLimits;
use meridian_storage::message::{
    CommitMark, FenceAnswer, FenceRead, FenceResult, PartitionView, Put, PutResult, Read, ReadFrom,
    ReadReply, StorageMessage,
};
use meridian_storage::mutation::Mutations;
use meridian_storage::store::{Origin, Store, StoreInput, StoreOutput};

pub(crate) const GROUP: GroupId = GroupId::new(1);
pub(crate) const CLIENT: Origin = Origin(7);
const FILE_SIZE_BYTES: u32 = 64 << 10;
const CAPACITY_BYTES: u64 = 16 * FILE_SIZE_BYTES as u64;

/// The configuration that every test store starts with.
pub(crate) fn store_config(node: u32, incarnation: u64) -> StoreConfig {
    StoreConfig {
        file_size_bytes: FILE_SIZE_BYTES,
        batch_size_bytes_max: 16 << 10,
        staged_bytes_max: 128 << 10,
        relocation_bytes_max: 16 << 10,
        cache_bytes_max: 0,
        sizes: SizeLimits::SMALL,
        ..StoreConfig::small(NodeId::new(node), Incarnation::new(incarnation), CAPACITY_BYTES)
    }
}

/// A group where node n + 1 fills slot n with incarnation n + 1.
pub(crate) fn group_config(geometry: Geometry, version: u64) -> GroupConfig {
    let slots = (1..=geometry.slot_count() as u32)
        .map(|node| SlotConfig {
            node: NodeId::new(node),
            incarnation: Incarnation::new(u64::from(node)),
            state: SlotState::Good,
        })
        .collect();
    GroupConfig { group: GROUP, version: ConfigVersion::new(version), geometry, slots }
}

pub(crate) fn partition(id: u64) -> PartitionId {
    PartitionId::new(id)
}

pub(crate) fn point(generation: u32, step: u64) -> LogPoint {
    LogPoint::new(Generation::new(generation), Step::new(step))
}

pub(crate) fn key(id: u64, generation: u32, step: u64) -> BlobKey {
    BlobKey { partition: partition(id), point: point(generation, step) }
}

/// A blob of 10 records at offset 10 x step.
pub(crate) fn blob(key: BlobKey, text: &str) -> Blob {
    let base_offset = Offset::new(10 * key.point.step.get() as i64);
    blob_of(key, BlobKind::Records, base_offset, 10, Bytes::copy_from_slice(text.as_bytes()))
}

pub(crate) fn blob_of(
    key: BlobKey,
    kind: BlobKind,
    base_offset: Offset,
    record_count: u32,
    bytes: Bytes,
) -> Blob {
    let payload = Payload::from(bytes);
    let header = BlobHeader::describe(kind, base_offset, record_count, 0, &payload);
    Blob { key, header, payload }
}

pub(crate) fn mark(generation: u32, step: u64) -> CommitMark {
    CommitMark {
        point: point(generation, step),
        high_watermark: Offset::new(10 * (step as i64 + 1)),
    }
}

pub(crate) fn put(blob: Blob) -> Put {
    Put { config_version: ConfigVersion::new(1), mark: None, blob }
}

/// A store, its disk, and what is under way between them.
pub(crate) struct Node {
    pub(crate) config: StoreConfig,
    pub(crate) disk: MemoryDisk,
    pub(crate) store: Store,
    pub(crate) now: Instant,
    pub(crate) ops: VecDeque<DiskOp>,
    /// Whatever came out beside disk operations.
    pub(crate) outputs: Vec<StoreOutput>,
}

impl Node {
    /// A new node of a group of one, ready to work.
    pub(crate) fn alone() -> Self {
        Self::alone_with(Mutations::NONE)
    }

    /// A new node of a group of one that breaks a rule.
    pub(crate) fn alone_with(mutations: Mutations) -> Self {
        let config = StoreConfig { mutations, ..store_config(1, 1) };
        let mut node = Self::mount(config, MemoryDisk::new(1));
        node.input(StoreInput::Config(group_config(Geometry::None, 1)));
        node.run();
        node
    }

    pub(crate) fn mount(config: StoreConfig, mut disk: MemoryDisk) -> Self {
        config.check().expect("a valid configuration");
        let store = Store::open(&mut disk, config).expect("a disk that mounts");
        let (ops, outputs) = (VecDeque::new(), Vec::new());
        let mut node = Self { config, disk, store, now: Instant::ZERO, ops, outputs };
        // The cluster takes note of the mount.
        if let Some(config) = node.store.group().cloned() {
            node.input(StoreInput::Config(config));
        }
        node
    }

    /// Cuts the power and mounts the disk again.
    pub(crate) fn crash(self, crash: Crash) -> Self {
        self.disk.crash(crash);
        let config = StoreConfig {
            fresh_incarnation: Incarnation::new(self.config.fresh_incarnation.get() + 1000),
            ..self.config
        };
        Self::mount(config, self.disk)
    }

    pub(crate) fn input(&mut self, input: StoreInput) {
        let mut outputs = Vec::new();
        self.store.step(self.now, input, &mut outputs);
        for output in outputs {
            match output {
                StoreOutput::Disk(op) => self.ops.push_back(op),
                other => self.outputs.push(other),
            }
        }
    }

    pub(crate) fn message(&mut self, message: StorageMessage) {
        self.input(StoreInput::Message { origin: CLIENT, message });
    }

    /// Carries out the next disk operation.
    pub(crate) fn disk_step(&mut self) -> bool {
        let Some(op) = self.ops.pop_front() else { return false };
        let done = execute(&mut self.disk, op);
        self.input(StoreInput::DiskDone(done));
        true
    }

    /// Begins the next disk operation; the power will fail before it is synced.
    pub(crate) fn disk_step_cut(&mut self) {
        if let Some(DiskOp::Write { file, offset_bytes, parts }) = self.ops.pop_front() {
            let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            self.disk.write_at(&file, offset_bytes, &slices).expect("a disk that works");
        }
    }

    /// Carries out disk operations until there are none.
    pub(crate) fn run(&mut self) {
        while self.disk_step() {}
    }

    /// Lets time pass, with ticks.
    pub(crate) fn rest(&mut self, tick_count: u32) {
        for _ in 0..tick_count {
            self.now = self.now + Duration::from_millis(200);
            self.input(StoreInput::Tick);
            self.run();
        }
    }

    /// Takes the messages that were sent.
    pub(crate) fn sent(&mut self) -> Vec<StorageMessage> {
        let (sent, rest) = std::mem::take(&mut self.outputs)
            .into_iter()
            .partition(|output| matches!(output, StoreOutput::Send { .. }));
        self.outputs = rest;
        sent.into_iter()
            .filter_map(|output: StoreOutput| match output {
                StoreOutput::Send { message, .. } => Some(message),
                _ => None,
            })
            .collect()
    }

    /// Results of the puts answered since, in order.
    pub(crate) fn put_results(&mut self) -> Vec<(BlobKey, PutResult)> {
        self.sent()
            .into_iter()
            .flat_map(|message| match message {
                StorageMessage::PutReplies(replies) => replies,
                other => panic!("{other:?}"),
            })
            .map(|reply| (reply.key, reply.result))
            .collect()
    }

    /// Puts one blob and waits for the answer.
    pub(crate) fn put(&mut self, put: Put) -> PutResult {
        self.message(StorageMessage::Put(put));
        self.run();
        let mut results = self.put_results();
        assert_eq!(results.len(), 1, "{results:?}");
        results.remove(0).1
    }

    pub(crate) fn fence_message(entries: &[(u64, u32)]) -> StorageMessage {
        let entries =
            entries.iter().map(|(id, by)| (partition(*id), Generation::new(*by))).collect();
        let config_version = ConfigVersion::new(1);
        let request = FenceRead { group: GROUP, config_version, entries, above: None };
        StorageMessage::FenceRead { tag: 5, request }
    }

    /// The fence answers sent since.
    pub(crate) fn fence_answers(&mut self) -> Vec<FenceAnswer> {
        self.sent()
            .into_iter()
            .flat_map(|message| match message {
                StorageMessage::FenceReadReply { reply, .. } => reply.answers,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    /// Fences one partition and waits for the answer.
    pub(crate) fn fence(&mut self, id: u64, by: u32) -> FenceResult {
        self.message(Self::fence_message(&[(id, by)]));
        self.run();
        let mut answers = self.fence_answers();
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.remove(0).result
    }

    pub(crate) fn view(&mut self, id: u64, by: u32) -> PartitionView {
        match self.fence(id, by) {
            FenceResult::Certain(view) => view,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn read(
        &mut self,
        id: u64,
        generation: u32,
        from: ReadFrom,
        last: u64,
    ) -> ReadReply {
        let request = Read {
            partition: partition(id),
            generation: Generation::new(generation),
            from,
            last_step: Step::new(last),
            size_bytes_max: 1 << 20,
        };
        self.message(StorageMessage::Read { tag: 9, request });
        self.run();
        let mut sent = self.sent();
        match sent.pop() {
            Some(StorageMessage::ReadReply { tag: 9, reply }) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Whether this very blob can be read.
    pub(crate) fn holds(&mut self, blob: &Blob) -> bool {
        let step = blob.key.point.step;
        let reply = self.read(
            blob.key.partition.get(),
            blob.key.point.generation.get(),
            ReadFrom::Step(step),
            step.get(),
        );
        reply == ReadReply::Blobs(vec![blob.clone()])
    }
}
