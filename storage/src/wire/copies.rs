//! What is said of copies that nobody needs, as bytes.

use bytes::{BufMut, BytesMut};
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, PartitionId};
use meridian_base::position::Generation;

use super::parts::{POINT_SIZE_BYTES, flag, mark, option, put_mark, put_option, put_point};
use super::{put_kind, put_list};
use crate::codec::{DecodeError, Source};
use crate::message::{CopyList, FreeCopies, HeldCopy, ListCopies};

const HELD_COPY_SIZE_BYTES: usize = POINT_SIZE_BYTES + 4 + 1;
/// What a list takes besides the copies.
const COPY_LIST_OVERHEAD_BYTES: usize = 64;

/// How many copies one list has room for.
pub(crate) fn listed_count_max(size_bytes_max: usize) -> usize {
    size_bytes_max.saturating_sub(COPY_LIST_OVERHEAD_BYTES) / HELD_COPY_SIZE_BYTES
}

pub(super) fn put_list_copies(out: &mut BytesMut, tag: u64, request: &ListCopies) {
    put_kind(out, 18, tag);
    out.put_u64(request.partition.get());
    out.put_u32(request.group.get());
    out.put_u64(request.config_version.get());
    out.put_u32(request.generation.get());
    put_option(out, request.after, put_point);
    out.put_u32(request.count_max);
}

pub(super) fn list_copies(source: &mut Source) -> Result<ListCopies, DecodeError> {
    Ok(ListCopies {
        partition: PartitionId::new(source.u64()?),
        group: GroupId::new(source.u32()?),
        config_version: ConfigVersion::new(source.u64()?),
        generation: Generation::new(source.u32()?),
        after: option(source, Source::point)?,
        count_max: source.u32()?,
    })
}

pub(super) fn put_copy_list(out: &mut BytesMut, tag: u64, list: &CopyList) {
    put_kind(out, 19, tag);
    out.put_u64(list.incarnation.get());
    out.put_u64(list.config_version.get());
    put_option(out, list.mark, put_mark);
    out.put_u64(list.records_size_bytes);
    out.put_u8(u8::from(list.complete));
    put_list(out, &list.copies, |out, copy| {
        put_point(out, copy.point);
        out.put_u32(copy.size_bytes);
        out.put_u8(u8::from(copy.is_part));
    });
}

pub(super) fn copy_list(source: &mut Source) -> Result<CopyList, DecodeError> {
    Ok(CopyList {
        incarnation: Incarnation::new(source.u64()?),
        config_version: ConfigVersion::new(source.u64()?),
        mark: option(source, mark)?,
        records_size_bytes: source.u64()?,
        complete: flag(source)?,
        copies: source.list(HELD_COPY_SIZE_BYTES, |source| {
            Ok(HeldCopy {
                point: source.point()?,
                size_bytes: source.u32()?,
                is_part: flag(source)?,
            })
        })?,
    })
}

/// The list's tag comes first, as that of every message that has one.
pub(super) fn put_free_copies(out: &mut BytesMut, freed: &FreeCopies) {
    put_kind(out, 20, freed.list);
    out.put_u64(freed.partition.get());
    out.put_u64(freed.config_version.get());
    out.put_u32(freed.generation.get());
    put_mark(out, freed.mark);
    put_list(out, &freed.points, |out, point| put_point(out, *point));
}

pub(super) fn free_copies(source: &mut Source) -> Result<FreeCopies, DecodeError> {
    let list = source.u64()?;
    Ok(FreeCopies {
        partition: PartitionId::new(source.u64()?),
        config_version: ConfigVersion::new(source.u64()?),
        generation: Generation::new(source.u32()?),
        mark: mark(source)?,
        list,
        points: source.list(POINT_SIZE_BYTES, Source::point)?,
    })
}
