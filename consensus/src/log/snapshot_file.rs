//! Snapshot files: written under another name, synced, then renamed, so that a file with the right
//! name is whole.

use std::io::IoSlice;

use meridian_base::env::Disk;
use protobuf::Message as _;
use raft::eraftpb::Snapshot;

use super::LogError;
use super::journal::read_file;

const MAGIC: [u8; 4] = *b"MRS1";
const UNFINISHED: &str = "snapshot.unfinished";

fn file_name(index: u64) -> String {
    format!("snapshot-{index:016x}")
}

/// Writes a snapshot: magic, checksum, protobuf.
pub(super) fn write(disk: &mut impl Disk, snapshot: &Snapshot) -> Result<(), LogError> {
    let body = snapshot.write_to_bytes().expect("a snapshot always encodes into memory");
    let crc = crc32c::crc32c(&body).to_le_bytes();
    disk.create(UNFINISHED, 0)?;
    let parts = [IoSlice::new(&MAGIC), IoSlice::new(&crc), IoSlice::new(&body)];
    disk.write_at(UNFINISHED, 0, &parts)?;
    disk.sync(UNFINISHED)?;
    disk.rename(UNFINISHED, &file_name(snapshot.get_metadata().index))?;
    Ok(())
}

/// Reads the snapshot at `index` back.
pub(super) fn read(disk: &mut impl Disk, index: u64) -> Result<Snapshot, LogError> {
    let file = file_name(index);
    let contents = read_file(disk, &file)?;
    let body = contents.split_first_chunk::<8>().and_then(|(head, body)| {
        let [a, b, c, d, crc @ ..] = *head;
        let sound = [a, b, c, d] == MAGIC && u32::from_le_bytes(crc) == crc32c::crc32c(body);
        sound.then_some(body)
    });
    let snapshot = body.and_then(|body| Snapshot::parse_from_bytes(body).ok());
    snapshot.filter(|snapshot| snapshot.get_metadata().index == index).ok_or(LogError::Corrupt {
        file,
        offset_bytes: 0,
        detail: "the snapshot's checksum or index is wrong",
    })
}

/// Indexes of all snapshots on the disk, rising.
pub(super) fn list(disk: &mut impl Disk) -> Result<Vec<u64>, LogError> {
    let files = disk.list()?;
    let digits = files.iter().filter_map(|file| file.strip_prefix("snapshot-"));
    Ok(digits.filter_map(|digits| u64::from_str_radix(digits, 16).ok()).collect())
}

/// Removes the snapshot at `index`.
pub(super) fn remove(disk: &mut impl Disk, index: u64) -> Result<(), LogError> {
    disk.remove(&file_name(index))?;
    Ok(())
}

/// The error for a snapshot that should be there.
pub(super) fn missing(index: u64) -> LogError {
    LogError::Corrupt {
        file: file_name(index),
        offset_bytes: 0,
        detail: "the snapshot that the log builds on is missing",
    }
}
