//! Fuzz targets of the log's formats.

use meridian_base::env::Disk;
use meridian_base::env::memory::MemoryDisk;
use meridian_base::id::NodeId;
use raft::eraftpb::{Entry, HardState};

use super::items::{self, Item, LogPosition, Replay};
use super::journal::SegmentNumber;
use super::{Opened, RaftLog};
use crate::fuzz::disk_with;
use crate::membership::RaftId;

const SEGMENT_SIZE_BYTES: u64 = 4096;

/// The items of a frame, whose checksum was found right.
pub(crate) fn frames(data: &[u8]) {
    let mut replay = Replay::default();
    let _ = replay.frame(SegmentNumber::FIRST, data);
    let _ = replay.check();
}

pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    let entry = Entry { index: 2, term: 1, data: vec![7; 9].into(), ..Entry::default() };
    let hard_state = HardState { term: 1, vote: 1, commit: 2, ..HardState::default() };
    let at = LogPosition { index: 1, term: 1 };
    let mut payload = Vec::new();
    let items = [
        Item::Identity(RaftId::first(NodeId::new(1))),
        Item::Reset(at),
        Item::Entry(entry),
        Item::HardState(hard_state),
        Item::Compacted(at),
    ];
    for item in &items {
        items::push(&mut payload, item);
    }
    vec![payload]
}

/// A segment and a snapshot with these contents, each as large as the first two bytes say.
pub(crate) fn files(data: &[u8]) {
    let Some(([high, low], contents)) = data.split_first_chunk() else { return };
    let segment_size = usize::from(u16::from_be_bytes([*high, *low])).min(contents.len());
    let (segment, snapshot) = contents.split_at(segment_size);
    let disk = disk_with(&[
        ("raft-0000000000000001.log".to_owned(), segment),
        ("snapshot-0000000000000001".to_owned(), snapshot),
    ]);
    if let Ok(Opened::Log(log)) = RaftLog::open(disk.clone(), SEGMENT_SIZE_BYTES) {
        drop(log);
        assert!(
            matches!(RaftLog::open(disk, SEGMENT_SIZE_BYTES), Ok(Opened::Log(_))),
            "a log opens again once it did"
        );
    }
}

pub(crate) fn file_seeds() -> Vec<Vec<u8>> {
    let mut disk = MemoryDisk::new(1);
    let own = RaftId::first(NodeId::new(1));
    let state = crate::snapshot::encode(&crate::state::Metadata::default());
    let created = RaftLog::bootstrap(disk.clone(), SEGMENT_SIZE_BYTES, own, &[own], state);
    drop(created);
    let mut contents = |file: &str| {
        let mut bytes = vec![0; disk.size_bytes(file).unwrap_or_default() as usize];
        let _ = disk.read_at(file, 0, &mut bytes);
        bytes
    };
    let segment = contents("raft-0000000000000001.log");
    let snapshot = contents("snapshot-0000000000000001");
    let mut seed = (segment.len() as u16).to_be_bytes().to_vec();
    seed.extend(segment);
    seed.extend(snapshot);
    vec![seed]
}
