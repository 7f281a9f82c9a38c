//! Batches and records: the journal's byte format.
//!
//! ```text
//! head    magic 4 | head size 4 | crc 4 | disk 8 | file 4 | offset 4 | previous head's crc 4
//!         | payload size 4 | record count 4 | records ...
//! payloads, one after another, in the order of their records
//! ```
//! The crc covers the head from `disk` on. The payload of a `Start` lies inside its record, because
//! a fence must answer it without reading the disk.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LogPoint, Offset};
use meridian_base::topology::GroupConfig;

use super::FileSequence;
use crate::blob::{BlobHeader, BlobKey, BlobKind};
use crate::codec::{DecodeError, Source};
use crate::message::CommitMark;
use crate::wire::parts;

const MAGIC: u32 = 0x4d4a_4231;
const CRC_FROM: usize = 12;
pub(super) const HEAD_SIZE_BYTES_MIN: usize = 40;

/// What a slot knows of a partition beside its blobs. Records of a partition merge by maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartitionRecord {
    pub(crate) partition: PartitionId,
    pub(crate) fence: Generation,
    pub(crate) log_start_offset: Offset,
    /// Records wholly below it were freed; at or above the log start.
    pub(crate) free_below: Offset,
    /// Clean blobs and manifests below it were freed.
    pub(crate) clean_from: LogPoint,
    pub(crate) generation_min: Generation,
    pub(crate) mark: Option<CommitMark>,
    /// The topic was deleted: no blob of the partition counts, wherever it stands.
    pub(crate) forgotten: bool,
}

/// One entry of the journal. The discriminants in `encode` are stored: stable for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A blob; its payload is inline for a `Start`, otherwise behind the head.
    Blob { key: BlobKey, header: BlobHeader, mark: Option<CommitMark>, inline: Bytes },
    /// A partition's fence, log start and mark.
    Partition(PartitionRecord),
    /// The group's configuration that this slot goes by.
    Config(GroupConfig),
    /// All before this is durable.
    Synced,
    /// The file ends here.
    End,
}

/// Whether a payload of this kind lies inside the head.
pub(crate) fn is_inline(kind: BlobKind) -> bool {
    kind == BlobKind::Start
}

/// About what a record takes in the head, beside what lies inline.
pub(crate) const RECORD_SIZE_BYTES_USUAL: i64 = 64;
/// The most.
pub(crate) const RECORD_SIZE_BYTES_MAX: usize = 192;

/// Upper bound of a record's size in the head.
pub(crate) fn record_size_bytes(record: &Record) -> usize {
    match record {
        Record::Blob { inline, .. } => RECORD_SIZE_BYTES_MAX + inline.len(),
        _ => RECORD_SIZE_BYTES_MAX,
    }
}

impl Record {
    fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Blob { key, header, mark, inline } => {
                out.put_u8(1);
                parts::put_key(out, *key);
                parts::put_header(out, header);
                parts::put_option(out, *mark, parts::put_mark);
                out.put_slice(inline);
            }
            Self::Partition(record) => {
                out.put_u8(6);
                out.put_u64(record.partition.get());
                out.put_u32(record.fence.get());
                out.put_i64(record.log_start_offset.get());
                out.put_i64(record.free_below.get());
                parts::put_point(out, record.clean_from);
                out.put_u32(record.generation_min.get());
                parts::put_option(out, record.mark, parts::put_mark);
                out.put_u8(u8::from(record.forgotten));
            }
            Self::Config(config) => {
                out.put_u8(3);
                parts::put_config(out, config);
            }
            Self::Synced => out.put_u8(4),
            Self::End => out.put_u8(5),
        }
    }

    fn decode(source: &mut Source) -> Result<Self, DecodeError> {
        Ok(match source.u8()? {
            1 => {
                let key = parts::key(source)?;
                let header = parts::header(source)?;
                let mark = parts::option(source, parts::mark)?;
                let inline = if is_inline(header.kind) {
                    source.take(header.payload_size_bytes as usize)?
                } else {
                    Bytes::new()
                };
                Self::Blob { key, header, mark, inline }
            }
            kind @ (2 | 6) => Self::Partition(partition_record(source, kind == 6)?),
            3 => Self::Config(parts::config(source)?),
            4 => Self::Synced,
            5 => Self::End,
            other => return Err(source.invalid("record kind", u64::from(other))),
        })
    }
}

/// Reads a partition's record; the form before there were clean blobs had one log start for all.
fn partition_record(source: &mut Source, has_clean: bool) -> Result<PartitionRecord, DecodeError> {
    let partition = PartitionId::new(source.u64()?);
    let fence = Generation::new(source.u32()?);
    let log_start_offset = parts::offset(source)?;
    let (free_below, clean_from) = if has_clean {
        (parts::offset(source)?, source.point()?)
    } else {
        (log_start_offset, LogPoint::default())
    };
    Ok(PartitionRecord {
        partition,
        fence,
        log_start_offset,
        free_below,
        clean_from,
        generation_min: Generation::new(source.u32()?),
        mark: parts::option(source, parts::mark)?,
        forgotten: parts::flag(source)?,
    })
}

/// Where a batch stands: what its head must say to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) disk: u64,
    pub(super) file: FileSequence,
    pub(super) offset_bytes: u32,
}

/// A batch as its head describes it.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) offset_bytes: u32,
    pub(crate) head: Bytes,
    pub(super) crc: u32,
    pub(super) previous_crc: u32,
    pub(super) payload_size_bytes: u32,
    /// Each record with the file offset of its payload.
    pub(crate) records: Vec<(Record, u32)>,
}

impl Batch {
    pub(crate) fn size_bytes(&self) -> u32 {
        self.head.len() as u32 + self.payload_size_bytes
    }

    pub(super) fn ends_file(&self) -> bool {
        matches!(self.records.last(), Some((Record::End, _)))
    }

    /// Encodes a batch's head.
    pub(super) fn build(address: Address, previous_crc: u32, records: Vec<Record>) -> Self {
        let size_bytes_max =
            HEAD_SIZE_BYTES_MIN + records.iter().map(record_size_bytes).sum::<usize>();
        let mut out = BytesMut::with_capacity(size_bytes_max);
        out.put_u32(MAGIC);
        out.put_u64(0); // head size and crc, below
        out.put_u64(address.disk);
        out.put_u32(address.file.get());
        out.put_u32(address.offset_bytes);
        out.put_u32(previous_crc);
        out.put_u32(0); // payload size, below
        out.put_u32(records.len() as u32);
        let mut placed = Vec::with_capacity(records.len());
        for record in records {
            record.encode(&mut out);
            placed.push((record, out.len() as u32));
        }
        let head_size_bytes = out.len() as u32;
        let payload_size_bytes =
            place(&mut placed, address.offset_bytes, head_size_bytes).expect("batch below 4 GiB");
        out[4..8].copy_from_slice(&head_size_bytes.to_be_bytes());
        out[32..36].copy_from_slice(&payload_size_bytes.to_be_bytes());
        let crc = crc32c::crc32c(&out[CRC_FROM..]);
        out[8..12].copy_from_slice(&crc.to_be_bytes());
        Self {
            offset_bytes: address.offset_bytes,
            head: out.freeze(),
            crc,
            previous_crc,
            payload_size_bytes,
            records: placed,
        }
    }

    /// Decodes a head that was built or checked before.
    pub(super) fn reparse(head: &Bytes, disk: u64, file: FileSequence) -> Option<Self> {
        let offset_bytes = u32::from_be_bytes(head.get(24..28)?.try_into().ok()?);
        Self::parse(head, Address { disk, file, offset_bytes })
    }

    /// Decodes the head at the start of `bytes`, if it is whole and belongs at `address`.
    pub(super) fn parse(bytes: &Bytes, address: Address) -> Option<Self> {
        let head_size_bytes = head_size_bytes(bytes)?;
        let head = bytes.get(..head_size_bytes as usize).map(|head| bytes.slice_ref(head))?;
        let mut source = Source::new(head.slice(8..), "journal batch");
        let crc = source.u32().ok()?;
        if crc != crc32c::crc32c(&head[CRC_FROM..]) {
            return None;
        }
        let named = Address {
            disk: source.u64().ok()?,
            file: FileSequence::new(source.u32().ok()?),
            offset_bytes: source.u32().ok()?,
        };
        if named != address {
            return None;
        }
        let previous_crc = source.u32().ok()?;
        let payload_size_bytes = source.u32().ok()?;
        let mut records = source
            .list(1, |source| {
                let record = Record::decode(source)?;
                Ok((record, head_size_bytes - source.left() as u32))
            })
            .ok()?;
        source.finish().ok()?;
        let placed_bytes = place(&mut records, address.offset_bytes, head_size_bytes)?;
        (placed_bytes == payload_size_bytes).then_some(Self {
            offset_bytes: address.offset_bytes,
            head,
            crc,
            previous_crc,
            payload_size_bytes,
            records,
        })
    }
}

/// The size a head claims, if there is a head.
pub(super) fn head_size_bytes(bytes: &[u8]) -> Option<u32> {
    let word = |from: usize| bytes.get(from..from + 4)?.try_into().ok().map(u32::from_be_bytes);
    let is_head = word(0)? == MAGIC;
    word(4).filter(|size| is_head && *size as usize >= HEAD_SIZE_BYTES_MIN)
}

/// The file that a head says it is in.
pub(super) fn named_file(head: &[u8]) -> Option<FileSequence> {
    let raw = head.get(20..24)?.try_into().ok()?;
    Some(FileSequence::new(u32::from_be_bytes(raw)))
}

/// Turns each record's end in the head into the file offset of its payload; gives the size of all
/// payloads, `None` if they pass 4 GiB.
fn place(records: &mut [(Record, u32)], offset_bytes: u32, head_size_bytes: u32) -> Option<u32> {
    let payload_start = offset_bytes.checked_add(head_size_bytes)?;
    let mut next = payload_start;
    for (record, position) in records {
        let Record::Blob { header, .. } = record else { continue };
        if is_inline(header.kind) {
            *position = offset_bytes + *position - header.payload_size_bytes;
        } else {
            *position = next;
            next = next.checked_add(header.payload_size_bytes)?;
        }
    }
    Some(next - payload_start)
}

/// Records of a sealed file, from its side file.
pub(crate) fn decode_heads(
    side_file: &Bytes,
    disk: u64,
    file: FileSequence,
) -> Option<Vec<Record>> {
    Some(records_of(parse_heads(side_file, disk, file)?))
}

pub(super) fn records_of(batches: Vec<Batch>) -> Vec<Record> {
    batches.into_iter().flat_map(|batch| batch.records).map(|(record, _)| record).collect()
}

/// Contents of a side file.
pub(super) fn encode_heads(heads: &[Bytes]) -> Vec<Bytes> {
    let crc = heads.iter().fold(0, |crc, head| crc32c::crc32c_append(crc, head));
    let mut parts = Vec::with_capacity(heads.len() + 1);
    parts.push(Bytes::copy_from_slice(&crc.to_be_bytes()));
    parts.extend_from_slice(heads);
    parts
}

/// Reads a side file; `None` unless it is whole, chained and ends with `End`.
pub(super) fn parse_heads(side_file: &Bytes, disk: u64, file: FileSequence) -> Option<Vec<Batch>> {
    let crc = u32::from_be_bytes(side_file.get(..4)?.try_into().ok()?);
    let mut rest = side_file.slice(4..);
    if crc != crc32c::crc32c(&rest) {
        return None;
    }
    let mut batches: Vec<Batch> = Vec::new();
    let mut offset_bytes = 0;
    while !rest.is_empty() {
        let batch = Batch::parse(&rest, Address { disk, file, offset_bytes })?;
        if batches.last().is_some_and(|previous| previous.crc != batch.previous_crc) {
            return None;
        }
        offset_bytes = offset_bytes.checked_add(super::aligned(batch.size_bytes()))?;
        rest = rest.slice(batch.head.len()..);
        batches.push(batch);
    }
    batches.last()?.ends_file().then_some(batches)
}

#[cfg(test)]
mod tests {
    use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId};
    use meridian_base::position::Step;
    use meridian_base::topology::{Geometry, SlotConfig, SlotState};
    use proptest::prelude::*;

    use super::*;
    use crate::blob::Payload;

    const ADDRESS: Address =
        Address { disk: 77, file: FileSequence::new(3), offset_bytes: 3 * 4096 };

    fn blob(kind: BlobKind, bytes: &'static [u8]) -> Record {
        let payload = Payload::from(Bytes::from_static(bytes));
        let header = BlobHeader::describe(kind, Offset::new(5), 0, -1, &payload);
        let point = LogPoint::new(Generation::new(2), Step::new(9));
        let key = BlobKey { partition: PartitionId::new(1), point };
        let mark = CommitMark { point, high_watermark: Offset::new(5) };
        let inline = if is_inline(kind) { Bytes::from_static(bytes) } else { Bytes::new() };
        Record::Blob { key, header, mark: Some(mark), inline }
    }

    fn records() -> Vec<Record> {
        let slot = SlotConfig {
            node: NodeId::new(4),
            incarnation: Incarnation::new(8),
            state: SlotState::Good,
        };
        vec![
            blob(BlobKind::Records, b"first"),
            blob(BlobKind::Start, b"inline"),
            blob(BlobKind::Checkpoint, b"second one"),
            Record::Partition(PartitionRecord {
                partition: PartitionId::new(6),
                fence: Generation::new(7),
                log_start_offset: Offset::new(8),
                free_below: Offset::new(9),
                clean_from: LogPoint::new(Generation::new(1), Step::new(3)),
                generation_min: Generation::new(1),
                mark: None,
                forgotten: true,
            }),
            Record::Config(GroupConfig {
                group: GroupId::new(1),
                version: ConfigVersion::new(2),
                geometry: Geometry::None,
                slots: vec![slot],
            }),
            Record::Synced,
            Record::End,
        ]
    }

    #[test]
    fn a_batch_round_trips_and_knows_where_its_payloads_are() {
        let built = Batch::build(ADDRESS, 99, records());
        let parsed = Batch::parse(&built.head, ADDRESS).expect("what was built");
        assert_eq!(parsed.records, built.records);
        assert_eq!((parsed.crc, parsed.previous_crc), (built.crc, 99));
        assert_eq!(parsed.payload_size_bytes, 15);
        assert!(parsed.ends_file());
        let head_end = ADDRESS.offset_bytes + built.head.len() as u32;
        let place_of = |index: usize| parsed.records[index].1;
        assert_eq!((place_of(0), place_of(2)), (head_end, head_end + 5));
        let inline = (place_of(1) - ADDRESS.offset_bytes) as usize;
        assert_eq!(built.head.get(inline..inline + 6), Some(b"inline".as_slice()));
        let bound: usize = records().iter().map(record_size_bytes).sum();
        assert!(built.head.len() <= HEAD_SIZE_BYTES_MIN + bound);
    }

    #[test]
    fn a_partition_of_the_form_before_clean_blobs_is_read() {
        let mut out = BytesMut::new();
        out.put_u8(2);
        out.put_u64(6);
        out.put_u32(7);
        out.put_i64(8);
        out.put_u32(1);
        out.put_u8(0);
        out.put_u8(1);
        let record = Record::decode(&mut Source::new(out.freeze(), "test")).unwrap();
        let expected = PartitionRecord {
            partition: PartitionId::new(6),
            fence: Generation::new(7),
            log_start_offset: Offset::new(8),
            free_below: Offset::new(8),
            clean_from: LogPoint::default(),
            generation_min: Generation::new(1),
            mark: None,
            forgotten: true,
        };
        assert_eq!(record, Record::Partition(expected));
    }

    #[test]
    fn a_batch_elsewhere_is_not_believed() {
        let head = Batch::build(ADDRESS, 0, records()).head;
        let elsewhere = [
            Address { disk: 78, ..ADDRESS },
            Address { file: FileSequence::new(4), ..ADDRESS },
            Address { offset_bytes: 4096, ..ADDRESS },
        ];
        assert!(elsewhere.iter().all(|address| Batch::parse(&head, *address).is_none()));
    }

    #[test]
    fn heads_without_an_end_or_out_of_order_are_refused() {
        let address = Address { offset_bytes: 0, ..ADDRESS };
        let first = Batch::build(address, 0, vec![Record::Synced]);
        let next = Address { offset_bytes: 4096, ..ADDRESS };
        let last = Batch::build(next, first.crc, vec![Record::End]);
        let unchained = Batch::build(next, first.crc + 1, vec![Record::End]);
        let parse = |heads: &[&Batch]| {
            let heads: Vec<Bytes> = heads.iter().map(|batch| batch.head.clone()).collect();
            let side_file = encode_heads(&heads).concat().into();
            decode_heads(&side_file, ADDRESS.disk, ADDRESS.file)
        };
        assert_eq!(parse(&[&first, &last]), Some(vec![Record::Synced, Record::End]));
        assert_eq!(parse(&[&first]), None);
        assert_eq!(parse(&[&first, &unchained]), None);
        assert_eq!(parse(&[&last]), None);
    }

    proptest! {
        #[test]
        fn a_head_with_a_valid_checksum_but_broken_fields_never_panics(
            at in any::<prop::sample::Index>(),
            value in any::<u8>(),
        ) {
            let mut head = Batch::build(ADDRESS, 0, records()).head.to_vec();
            let at = at.index(head.len());
            head[at] = value;
            let crc = crc32c::crc32c(&head[CRC_FROM..]).to_be_bytes();
            head[8..12].copy_from_slice(&crc);
            let _ = Batch::parse(&head.into(), ADDRESS);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Batch::parse(&bytes.into(), ADDRESS).is_none());
        }
    }
}
