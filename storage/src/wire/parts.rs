//! Pieces that the wire format and the journal share, field by field, big-endian.

use bytes::{BufMut, BytesMut};
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::position::{LogPoint, Offset, Step};
use meridian_base::topology::{Geometry, GroupConfig, SLOT_COUNT_MAX, SlotConfig, SlotState};

use crate::blob::{BlobHeader, BlobInfo, BlobKey, BlobKind, PartOf};
use crate::codec::{DecodeError, Source};
use crate::hot;
use crate::message::{CommitMark, HeldPart, ListParts, PartList};

pub(crate) const POINT_SIZE_BYTES: usize = 12;
pub(crate) const INFO_SIZE_BYTES: usize = POINT_SIZE_BYTES + 29;
const PART_OF_SIZE_BYTES: usize = 1 + 4 + 4;
const HELD_PART_SIZE_BYTES: usize = POINT_SIZE_BYTES + 4 + 1;

/// What a blob's line takes.
pub(crate) fn info_size_bytes(info: &BlobInfo) -> usize {
    INFO_SIZE_BYTES + info.header.part.map_or(0, |_| PART_OF_SIZE_BYTES)
}

/// What a blob takes: its key, header and payload.
pub(crate) fn blob_size_bytes(header: &BlobHeader) -> usize {
    let part = header.part.map_or(0, |_| PART_OF_SIZE_BYTES);
    8 + INFO_SIZE_BYTES + part + header.payload_size_bytes as usize
}

pub(crate) fn put_point(out: &mut BytesMut, point: LogPoint) {
    out.put_u32(point.generation.get());
    out.put_u64(point.step.get());
}

pub(crate) fn put_key(out: &mut BytesMut, key: BlobKey) {
    out.put_u64(key.partition.get());
    put_point(out, key.point);
}

pub(crate) fn key(source: &mut Source) -> Result<BlobKey, DecodeError> {
    Ok(BlobKey { partition: PartitionId::new(source.u64()?), point: source.point()? })
}

/// Bit of a header's kind: what the payload is a part of follows the header.
const IS_PART: u8 = 1 << 7;

pub(crate) fn put_header(out: &mut BytesMut, header: &BlobHeader) {
    let is_part = if header.part.is_some() { IS_PART } else { 0 };
    out.put_u8(header.kind as u8 | is_part);
    out.put_i64(header.base_offset.get());
    out.put_u32(header.record_count);
    out.put_i64(header.max_timestamp_ms);
    out.put_u32(header.payload_size_bytes);
    out.put_u32(header.payload_crc);
    if let Some(part) = header.part {
        out.put_u8(part.number);
        out.put_u32(part.size_bytes);
        out.put_u32(part.crc);
    }
}

pub(crate) fn header(source: &mut Source) -> Result<BlobHeader, DecodeError> {
    let raw = source.u8()?;
    let kind = BlobKind::from_u8(raw & !IS_PART);
    let kind = kind.ok_or_else(|| source.invalid("kind", u64::from(raw)))?;
    let mut header = BlobHeader {
        kind,
        base_offset: offset(source)?,
        record_count: source.u32()?,
        max_timestamp_ms: source.i64()?,
        payload_size_bytes: source.u32()?,
        payload_crc: source.u32()?,
        part: None,
    };
    if raw & IS_PART != 0 {
        header.part = Some(part_of(source, kind)?);
    }
    // `next_offset` must not overflow on what a stranger sent.
    if header.base_offset.get().checked_add(i64::from(header.record_count)).is_none() {
        return Err(source.invalid("base_offset", header.base_offset.get() as u64));
    }
    Ok(header)
}

fn part_of(source: &mut Source, kind: BlobKind) -> Result<PartOf, DecodeError> {
    let number = source.u8()?;
    if kind != BlobKind::Records || usize::from(number) >= hot::PART_COUNT {
        return Err(source.invalid("part", u64::from(number)));
    }
    Ok(PartOf { number, size_bytes: source.u32()?, crc: source.u32()? })
}

/// Reads an offset; there are none below 0.
pub(crate) fn offset(source: &mut Source) -> Result<Offset, DecodeError> {
    let raw = source.i64()?;
    if raw < 0 {
        return Err(source.invalid("offset", raw as u64));
    }
    Ok(Offset::new(raw))
}

pub(crate) fn put_info(out: &mut BytesMut, info: &BlobInfo) {
    put_point(out, info.point);
    put_header(out, &info.header);
}

pub(crate) fn info(source: &mut Source) -> Result<BlobInfo, DecodeError> {
    let (point, header) = (source.point()?, header(source)?);
    check_kind(source, point, header.kind)?;
    Ok(BlobInfo { point, header })
}

/// Step 0 of a generation is its `Start`, and no other step is one: what frees blobs relies on it.
pub(crate) fn check_kind(
    source: &Source,
    point: LogPoint,
    kind: BlobKind,
) -> Result<(), DecodeError> {
    if (point.step == Step::START) == (kind == BlobKind::Start) {
        return Ok(());
    }
    Err(source.invalid("kind at its step", point.step.get()))
}

pub(crate) fn put_option<T>(
    out: &mut BytesMut,
    value: Option<T>,
    put: impl FnOnce(&mut BytesMut, T),
) {
    match value {
        None => out.put_u8(0),
        Some(value) => {
            out.put_u8(1);
            put(out, value);
        }
    }
}

pub(crate) fn option<T>(
    source: &mut Source,
    read: impl FnOnce(&mut Source) -> Result<T, DecodeError>,
) -> Result<Option<T>, DecodeError> {
    Ok(if flag(source)? { Some(read(source)?) } else { None })
}

pub(crate) fn flag(source: &mut Source) -> Result<bool, DecodeError> {
    match source.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(source.invalid("flag", u64::from(other))),
    }
}

pub(crate) fn put_mark(out: &mut BytesMut, mark: CommitMark) {
    put_point(out, mark.point);
    out.put_i64(mark.high_watermark.get());
}

pub(crate) fn mark(source: &mut Source) -> Result<CommitMark, DecodeError> {
    Ok(CommitMark { point: source.point()?, high_watermark: offset(source)? })
}

pub(crate) fn put_config(out: &mut BytesMut, config: &GroupConfig) {
    out.put_u32(config.group.get());
    out.put_u64(config.version.get());
    out.put_u8(match config.geometry {
        Geometry::None => 0,
        Geometry::OnePerDc => 1,
        Geometry::Mirror3Dc => 2,
        Geometry::Block42 => 3,
    });
    out.put_u8(config.slots.len() as u8);
    for slot in &config.slots {
        out.put_u32(slot.node.get());
        out.put_u64(slot.incarnation.get());
        out.put_u8(match slot.state {
            SlotState::Good => 0,
            SlotState::LostData => 1,
        });
    }
}

pub(crate) fn config(source: &mut Source) -> Result<GroupConfig, DecodeError> {
    let group = GroupId::new(source.u32()?);
    let version = ConfigVersion::new(source.u64()?);
    let geometry = match source.u8()? {
        0 => Geometry::None,
        1 => Geometry::OnePerDc,
        2 => Geometry::Mirror3Dc,
        3 => Geometry::Block42,
        other => return Err(source.invalid("geometry", u64::from(other))),
    };
    let slot_count = usize::from(source.u8()?);
    if slot_count > SLOT_COUNT_MAX {
        return Err(source.invalid("slot count", slot_count as u64));
    }
    let mut slots = Vec::with_capacity(slot_count);
    for _ in 0..slot_count {
        let node = NodeId::new(source.u32()?);
        let incarnation = Incarnation::new(source.u64()?);
        let state = match source.u8()? {
            0 => SlotState::Good,
            1 => SlotState::LostData,
            other => return Err(source.invalid("slot state", u64::from(other))),
        };
        slots.push(SlotConfig { node, incarnation, state });
    }
    Ok(GroupConfig { group, version, geometry, slots })
}

pub(crate) fn put_list_parts(out: &mut BytesMut, request: &ListParts) {
    out.put_u64(request.partition.get());
    put_option(out, request.after, put_point);
}

pub(crate) fn list_parts(source: &mut Source) -> Result<ListParts, DecodeError> {
    let partition = PartitionId::new(source.u64()?);
    Ok(ListParts { partition, after: option(source, Source::point)? })
}

pub(crate) fn put_part_list(out: &mut BytesMut, list: &PartList) {
    out.put_u64(list.incarnation.get());
    out.put_u64(list.copies_size_bytes);
    out.put_u8(u8::from(list.complete));
    out.put_u32(list.parts.len() as u32);
    for part in &list.parts {
        put_point(out, part.point);
        out.put_u32(part.size_bytes);
        out.put_u8(u8::from(part.is_readable));
    }
}

pub(crate) fn part_list(source: &mut Source) -> Result<PartList, DecodeError> {
    Ok(PartList {
        incarnation: Incarnation::new(source.u64()?),
        copies_size_bytes: source.u64()?,
        complete: flag(source)?,
        parts: source.list(HELD_PART_SIZE_BYTES, |source| {
            Ok(HeldPart {
                point: source.point()?,
                size_bytes: source.u32()?,
                is_readable: flag(source)?,
            })
        })?,
    })
}
