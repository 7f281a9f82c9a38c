//! Fuzz targets of this crate: what peers send and what the disk holds. See
//! [`meridian_base::fuzz`].

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::env::memory::MemoryDisk;
use meridian_base::env::{Disk, Instant};
use meridian_base::fuzz::Target;
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::position::{Generation, LeaderEpoch, LogPoint, Offset, Step};
use meridian_base::topology::{Geometry, GroupConfig, SlotConfig, SlotState};

use crate::blob::{Blob, BlobHeader, BlobInfo, BlobKey, BlobKind, Payload};
use crate::codec::Source;
use crate::config::StoreConfig;
use crate::journal;
use crate::lineage::{EpochStart, Lineage, Past, Start};
use crate::manifest::{Manifest, Piece, Place};
use crate::message::{
    Beacon, CommitMark, FenceAnswer, FenceRead, FenceReadReply, FenceResult, FreeCopies, FreeParts,
    ListCopies, ListParts, PartitionView, Put, PutReply, PutResult, Read, ReadFrom, ReadReply,
    Refusal, StorageMessage, SyncPage, SyncPartition, SyncPull, ViewPiece,
};
use crate::store::{Origin, Store, StoreInput, StoreOutput};

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "storage_message", run: message, seeds: message_seeds },
    Target { name: "start", run: start, seeds: || vec![a_start().encode().to_vec()] },
    Target { name: "manifest", run: manifest, seeds: || vec![a_manifest().encode().to_vec()] },
    Target { name: "store", run: store, seeds: store_seeds },
    Target { name: "journal_batch", run: journal::fuzz::batch, seeds: journal::fuzz::batch_seeds },
    Target {
        name: "journal_superblock",
        run: journal::fuzz::superblock,
        seeds: journal::fuzz::superblock_seeds,
    },
    Target { name: "journal_recovery", run: recovery, seeds: recovery_seeds },
];

const PARTITION: PartitionId = PartitionId::new(3);

fn message(data: &[u8]) {
    let Ok(message) = StorageMessage::decode(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(message.encode().concat(), data, "{message:?}");
}

fn start(data: &[u8]) {
    let Ok(start) = Start::decode(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(Start::decode(start.encode()), Ok(start.clone()));
    let mut lineage = Lineage::from_start(Generation::new(9), &start);
    let _ = lineage.holder_of(start.base_offset);
    let _ = lineage.segments_after(start.previous);
    let _ = lineage.end_of_epoch(LeaderEpoch::new(1), start.base_offset);
    lineage.trim(start.log_start_offset, start.log_start_offset, None);
}

fn manifest(data: &[u8]) {
    let Ok(manifest) = Manifest::decode(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(manifest.encode(), data);
    let _ = (manifest.piece_at(Offset::ZERO), manifest.size_bytes());
}

/// Messages from peers, each behind its length, meet a store that works.
fn store(data: &[u8]) {
    let mut disk = MemoryDisk::new(1);
    let Some(mut store) = mounted(&mut disk) else { return };
    let mut source = Source::new(Bytes::copy_from_slice(data), "messages");
    while let Ok(bytes) = source.sized() {
        let Ok(message) = StorageMessage::decode(bytes) else { continue };
        feed(&mut store, &mut disk, StoreInput::Message { origin: Origin(1), message });
        feed(&mut store, &mut disk, StoreInput::Tick);
    }
    drop(store);
    assert!(Store::open(&mut disk, config()).is_ok(), "what a store wrote can be mounted");
}

/// Mounts a disk that was written over: `file 1 | offset 2 | length 1 | bytes`, again and again.
fn recovery(data: &[u8]) {
    let mut disk = MemoryDisk::new(1);
    let Some(mut store) = mounted(&mut disk) else { return };
    for message in some_messages() {
        feed(&mut store, &mut disk, StoreInput::Message { origin: Origin(1), message });
    }
    drop(store);
    let files = disk.list().unwrap_or_default();
    let mut rest = data;
    while let [file, high, low, length, tail @ ..] = rest {
        let bytes = &tail[..tail.len().min(usize::from(*length))];
        rest = &tail[bytes.len()..];
        let offset_bytes = u64::from(u16::from_be_bytes([*high, *low]));
        let Some(file) = files.get(usize::from(*file)) else { continue };
        let inside = disk.size_bytes(file).is_ok_and(|size_bytes| offset_bytes < size_bytes);
        if inside {
            let _ = disk.write_at(file, offset_bytes, &[IoSlice::new(bytes)]);
        }
    }
    if Store::open(&mut disk, config()).is_ok() {
        assert!(Store::open(&mut disk, config()).is_ok(), "a disk mounts again once it did");
    }
}

fn config() -> StoreConfig {
    const FILE_SIZE_BYTES: u32 = 64 << 10;
    StoreConfig {
        file_size_bytes: FILE_SIZE_BYTES,
        batch_size_bytes_max: 16 << 10,
        ..StoreConfig::small(NodeId::new(1), Incarnation::new(1), 8 * u64::from(FILE_SIZE_BYTES))
    }
}

fn a_group() -> GroupConfig {
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

fn mounted(disk: &mut MemoryDisk) -> Option<Store> {
    let mut store = Store::open(disk, config()).ok()?;
    feed(&mut store, disk, StoreInput::Config(a_group()));
    Some(store)
}

fn feed(store: &mut Store, disk: &mut MemoryDisk, input: StoreInput) {
    let now = Instant::from_micros(1_000_000);
    // In order, as a disk thread ends them.
    let mut inputs = VecDeque::from([input]);
    while let Some(input) = inputs.pop_front() {
        let mut outputs = Vec::new();
        store.step(now, input, &mut outputs);
        for output in outputs {
            if let StoreOutput::Disk(op) = output {
                inputs.push_back(StoreInput::DiskDone(journal::execute(disk, op)));
            }
        }
    }
}

fn point(generation: u32, step: u64) -> LogPoint {
    LogPoint::new(Generation::new(generation), Step::new(step))
}

fn a_mark() -> CommitMark {
    CommitMark { point: point(2, 1), high_watermark: Offset::new(7) }
}

fn a_blob(kind: BlobKind, step: u64, bytes: Bytes) -> Blob {
    let payload = Payload::from(bytes);
    let record_count = if kind == BlobKind::Records { 7 } else { 0 };
    let header = BlobHeader::describe(kind, Offset::new(0), record_count, 5, &payload);
    Blob { key: BlobKey { partition: PARTITION, point: point(2, step) }, header, payload }
}

fn a_manifest() -> Manifest {
    let piece = |base, step| Piece {
        base_offset: Offset::new(base),
        max_timestamp_ms: 5,
        size_bytes: 13,
        place: Place::Clean(LogPoint::new(Generation::FIRST, Step::new(step))),
    };
    Manifest {
        end: Offset::new(7),
        replaced_size_bytes: 40,
        pieces: vec![piece(0, 4), piece(3, 6)],
    }
}

fn a_start() -> Start {
    Start {
        previous: Some(point(1, 4)),
        base_offset: Offset::new(0),
        tail_length: 1,
        log_start_offset: Offset::new(0),
        past: vec![Past {
            generation: Generation::new(1),
            base_offset: Offset::new(0),
            last_step: Step::new(4),
        }],
        epochs: vec![EpochStart { epoch: LeaderEpoch::new(2), start_offset: Offset::new(0) }],
        checkpoint: None,
    }
}

/// Requests that a store of this group carries out.
fn some_messages() -> Vec<StorageMessage> {
    let put = |blob| {
        let config_version = ConfigVersion::new(1);
        StorageMessage::Put(Put { config_version, mark: Some(a_mark()), blob })
    };
    let read = |from| Read {
        partition: PARTITION,
        generation: Generation::new(2),
        from,
        last_step: Step::new(9),
        size_bytes_max: 1000,
    };
    let point = LogPoint::new(Generation::new(2), Step::new(1));
    vec![
        put(a_blob(BlobKind::Start, 0, a_start().encode())),
        put(a_blob(BlobKind::Records, 1, Bytes::from_static(b"batches"))),
        put(a_blob(BlobKind::Checkpoint, 2, Bytes::from_static(b"state"))),
        put(a_blob(BlobKind::Trim, 3, Bytes::new())),
        put(a_blob(BlobKind::Clean, 4, Bytes::from_static(b"fewer batches"))),
        put(a_blob(BlobKind::Manifest, 5, a_manifest().encode())),
        StorageMessage::Beacons(vec![Beacon {
            partition: PARTITION,
            mark: a_mark(),
            log_start_offset: Offset::new(1),
            free_below: Offset::new(2),
            clean_from: LogPoint::default(),
            generation_min: Generation::new(1),
        }]),
        StorageMessage::Read { tag: 1, request: read(ReadFrom::Offset(Offset::ZERO)) },
        StorageMessage::Read { tag: 2, request: read(ReadFrom::Step(Step::START)) },
        StorageMessage::SyncPull {
            tag: 3,
            request: SyncPull {
                group: GroupId::new(1),
                config: a_group(),
                after: None,
                resume: None,
            },
        },
        StorageMessage::ListParts {
            tag: 5,
            request: ListParts { partition: PARTITION, after: Some(point) },
        },
        StorageMessage::FreeParts(FreeParts { partition: PARTITION, points: vec![point] }),
        StorageMessage::ListCopies {
            tag: 7,
            request: ListCopies {
                partition: PARTITION,
                group: GroupId::new(1),
                config_version: ConfigVersion::new(1),
                generation: Generation::new(3),
                after: Some(point),
                count_max: 5,
            },
        },
        StorageMessage::FreeCopies(FreeCopies {
            partition: PARTITION,
            config_version: ConfigVersion::new(1),
            generation: Generation::new(3),
            mark: a_mark(),
            list: 7,
            points: vec![point],
        }),
        StorageMessage::FenceRead { tag: 4, request: a_fence(None) },
        StorageMessage::FenceRead { tag: 6, request: a_fence(Some(point)) },
    ]
}

fn a_fence(above: Option<LogPoint>) -> FenceRead {
    FenceRead {
        group: GroupId::new(1),
        config_version: ConfigVersion::new(1),
        entries: vec![(PARTITION, Generation::new(3))],
        above,
    }
}

fn some_answers() -> Vec<StorageMessage> {
    let blob = a_blob(BlobKind::Records, 1, Bytes::from_static(b"batches"));
    let info = BlobInfo { point: blob.key.point, header: blob.header };
    let key = blob.key;
    let incarnation = Incarnation::new(1);
    let results = [
        PutResult::Stored,
        PutResult::Fenced { by: Generation::new(3) },
        PutResult::Stale { config: a_group() },
        PutResult::Conflict,
        PutResult::Refused { reason: Refusal::Busy },
    ];
    let view = PartitionView {
        mark: Some(a_mark()),
        log_start_offset: Offset::ZERO,
        blobs: vec![info],
        starts: vec![(Generation::new(2), a_start())],
        checkpoints: vec![info],
    };
    let piece = ViewPiece { above: None, up_to: Some(info.point), view: view.clone() };
    let results_of_fence = [
        FenceResult::Certain(view),
        FenceResult::Fenced { by: Generation::new(9) },
        FenceResult::Piece(piece),
    ];
    let answers = results_of_fence.map(|result| FenceAnswer {
        partition: PARTITION,
        generation: Generation::new(3),
        result,
    });
    let reply = FenceReadReply { incarnation, stale: Some(a_group()), answers: answers.into() };
    let partition = SyncPartition {
        partition: PARTITION,
        fence: Generation::new(2),
        mark: Some(a_mark()),
        log_start_offset: Offset::ZERO,
        blobs: vec![info],
    };
    let partitions = vec![partition];
    vec![
        StorageMessage::PutReplies(
            results.map(|result| PutReply { key, incarnation, result }).into(),
        ),
        StorageMessage::FenceReadReply { tag: 1, reply },
        StorageMessage::ReadReply { tag: 2, reply: ReadReply::Blobs(vec![blob.clone()]) },
        StorageMessage::ReadReply { tag: 5, reply: ReadReply::Damaged(blob) },
        StorageMessage::ReadReply { tag: 3, reply: ReadReply::NotHere },
        StorageMessage::SyncPage {
            tag: 4,
            page: SyncPage {
                incarnation,
                partitions,
                complete: true,
                unsure: false,
                is_cut: false,
            },
        },
    ]
}

fn message_seeds() -> Vec<Vec<u8>> {
    some_messages().iter().chain(&some_answers()).map(|message| message.encode().concat()).collect()
}

fn store_seeds() -> Vec<Vec<u8>> {
    let mut all = BytesMut::new();
    for bytes in message_seeds() {
        all.put_u32(bytes.len() as u32);
        all.put_slice(&bytes);
    }
    vec![all.to_vec()]
}

fn recovery_seeds() -> Vec<Vec<u8>> {
    // Nothing; a torn head of the first batch; a payload; both identities.
    vec![
        vec![],
        vec![2, 0, 10, 2, 0xff, 0xff],
        vec![2, 0x10, 0, 4, 0, 0, 0, 0, 2, 0x20, 40, 1, 7],
        vec![0, 0, 4, 1, 9, 1, 0, 4, 1, 9],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_bears_any_bytes() {
        meridian_base::fuzz::exercise_all(TARGETS, 1500);
    }
}
