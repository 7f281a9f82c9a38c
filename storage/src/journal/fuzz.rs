//! Fuzz targets of the journal's formats. Checksums are made to fit first: they are there against
//! the disk's mistakes, and would keep everything else from being reached.

use bytes::Bytes;
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, PartitionId};
use meridian_base::position::{Generation, LogPoint, Offset, Step};
use meridian_base::topology::{Geometry, GroupConfig};

use super::FileSequence;
use super::record::{Address, Batch, encode_heads, parse_heads};
use super::record::{PartitionRecord, Record};
use super::superblock::{Identity, Superblock};
use crate::blob::{BlobHeader, BlobKey, BlobKind, Payload};
use crate::message::CommitMark;

const DISK: u64 = 7;
const FILE: FileSequence = FileSequence::FIRST;
const ADDRESS: Address = Address { disk: DISK, file: FILE, offset_bytes: 0 };
/// Where a head's checksum stands, and from where on it covers the head.
const HEAD_SIZE_AT: usize = 4;
const HEAD_CRC_AT: usize = 8;
const HEAD_CRC_FROM: usize = 12;

fn put_word(bytes: &mut [u8], at: usize, word: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

fn crc_from(bytes: &[u8], from: usize) -> u32 {
    crc32c::crc32c(bytes.get(from..).unwrap_or_default())
}

/// The head of a batch, alone and in the side file of a sealed file.
pub(crate) fn batch(data: &[u8]) {
    let raw = Bytes::copy_from_slice(data);
    let _ = Batch::parse(&raw, ADDRESS);
    let _ = parse_heads(&raw, DISK, FILE);
    let mut fitted = data.to_vec();
    put_word(&mut fitted, HEAD_SIZE_AT, data.len() as u32);
    let crc = crc_from(&fitted, HEAD_CRC_FROM);
    put_word(&mut fitted, HEAD_CRC_AT, crc);
    let head = Bytes::from(fitted);
    let Some(batch) = Batch::parse(&head, ADDRESS) else { return };
    let again = Batch::reparse(&batch.head, DISK, FILE).map(|again| again.records);
    assert_eq!(again.as_ref(), Some(&batch.records));
    let side_file = Bytes::from(encode_heads(&[head]).concat());
    assert_eq!(parse_heads(&side_file, DISK, FILE).is_some(), batch.ends_file());
}

pub(crate) fn batch_seeds() -> Vec<Vec<u8>> {
    let point = LogPoint::new(Generation::new(2), Step::new(1));
    let mark = CommitMark { point, high_watermark: Offset::new(7) };
    let blob = |kind, inline: Bytes| {
        let header =
            BlobHeader::describe(kind, Offset::ZERO, 0, -1, &Payload::from(inline.clone()));
        let key = BlobKey { partition: PartitionId::new(3), point };
        Record::Blob { key, header, mark: Some(mark), inline }
    };
    let partition = PartitionRecord {
        partition: PartitionId::new(3),
        fence: Generation::new(2),
        log_start_offset: Offset::new(1),
        free_below: Offset::new(1),
        clean_from: Default::default(),
        generation_min: Generation::new(1),
        mark: Some(mark),
        forgotten: false,
    };
    let group = GroupConfig {
        group: GroupId::new(1),
        version: ConfigVersion::new(1),
        geometry: Geometry::None,
        slots: Vec::new(),
    };
    let records = vec![
        blob(BlobKind::Start, Bytes::from_static(b"inline")),
        blob(BlobKind::Records, Bytes::new()),
        Record::Partition(partition),
        Record::Config(group),
        Record::Synced,
        Record::End,
    ];
    vec![
        Batch::build(ADDRESS, 0, records).head.to_vec(),
        Batch::build(ADDRESS, 0, vec![Record::End]).head.to_vec(),
    ]
}

/// Who a disk is.
pub(crate) fn superblock(data: &[u8]) {
    let _ = Superblock::decode(Bytes::copy_from_slice(data));
    let mut fitted = data.to_vec();
    let crc = crc_from(&fitted, 4);
    put_word(&mut fitted, 0, crc);
    if let Ok(found) = Superblock::decode(Bytes::from(fitted.clone())) {
        assert_eq!(found.encode(), fitted);
    }
}

pub(crate) fn superblock_seeds() -> Vec<Vec<u8>> {
    let identity = Identity { disk: DISK, incarnation: Incarnation::new(4), mount_epoch: 2 };
    let superblock = Superblock {
        identity,
        version: 9,
        files: vec![FILE, FileSequence::new(2)],
        next_file: FileSequence::new(3),
        repaired_below: FILE,
    };
    vec![superblock.encode().to_vec()]
}
