//! Sources in a checkpoint. Numbers are variable-length and relative, newest first: a source takes
//! about 20 bytes and its name, or 60 with five stretches.

use std::num::NonZeroU32;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::position::Offset;
use meridian_storage::codec::{self, DecodeError};

use super::{STRETCH_COUNT_MAX, Source, Sources, Stretch, reserved_bytes};
use crate::compact::{number, put_number};

const FORMAT: u8 = 1;
/// A name, a time, a count and a stretch, at a byte each but the time.
const SOURCE_SIZE_BYTES_MIN: usize = 15;
const OLDER: u8 = 0x80;

impl Sources {
    /// The state as a section of a checkpoint.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(16 + self.by_name.len() * 64);
        out.put_u8(FORMAT);
        out.put_u32(self.by_name.len() as u32);
        for (name, source) in &self.by_name {
            put_number(&mut out, name.len() as u64);
            out.put_slice(name.as_bytes());
            out.put_i64(source.last_seen_ms);
            let older = if source.older { OLDER } else { 0 };
            out.put_u8(source.stretches.len() as u8 | older);
            let mut above = None;
            for stretch in source.stretches.iter().rev() {
                put_stretch(&mut out, stretch, above.as_ref());
                above = Some(*stretch);
            }
        }
        out.freeze()
    }

    /// Reads a section of a checkpoint.
    pub fn decode(section: Bytes) -> Result<Self, DecodeError> {
        let mut from = codec::Source::new(section, "sources in a checkpoint");
        let format = from.u8()?;
        if format != FORMAT {
            return Err(from.invalid("format", u64::from(format)));
        }
        let by_name = from.list(SOURCE_SIZE_BYTES_MIN, |from| {
            let size_bytes = number(from)?;
            let name = from.take(usize::try_from(size_bytes).unwrap_or(usize::MAX))?;
            let name = std::str::from_utf8(&name).map_err(|_| from.invalid("name", size_bytes))?;
            Ok((Box::from(name), source(from)?))
        })?;
        from.finish()?;
        let size_bytes_max = by_name.iter().map(|(name, _): &(Box<str>, _)| reserved_bytes(name));
        Ok(Self {
            size_bytes_max: size_bytes_max.sum(),
            by_name: by_name.into_iter().collect(),
            replay_time_ms: 0,
        })
    }
}

fn source(from: &mut codec::Source) -> Result<Source, DecodeError> {
    let last_seen_ms = from.i64()?;
    let count = from.u8()?;
    let (older, count) = (count & OLDER != 0, usize::from(count & !OLDER));
    if !(1..=STRETCH_COUNT_MAX).contains(&count) {
        return Err(from.invalid("stretch count", count as u64));
    }
    let mut stretches: Vec<Stretch> = Vec::with_capacity(count);
    for _ in 0..count {
        let next = stretch(from, stretches.last())?;
        stretches.push(next);
    }
    stretches.reverse();
    Ok(Source { last_seen_ms, stretches, older })
}

/// The last number and the base offset, relative to the stretch above; then how long it is.
fn put_stretch(out: &mut BytesMut, stretch: &Stretch, above: Option<&Stretch>) {
    let (first, base_offset) = above.map_or((0, 0), |above| (above.first, above.base_offset.get()));
    put_number(out, first.abs_diff(stretch.last));
    put_number(out, base_offset.abs_diff(stretch.base_offset.get()));
    put_number(out, stretch.last - stretch.first);
    put_number(out, stretch.sparse_span.map_or(0, |span| u64::from(span.get())));
}

fn stretch(from: &mut codec::Source, above: Option<&Stretch>) -> Result<Stretch, DecodeError> {
    let (last, base_offset) = (number(from)?, number(from)?);
    let (length, span) = (number(from)?, number(from)?);
    let wrong = from.invalid("stretch", last);
    let (last, base_offset) = match above {
        None => (Some(last), i64::try_from(base_offset).ok()),
        Some(above) => (
            above.first.checked_sub(last),
            i64::try_from(base_offset).ok().and_then(|it| above.base_offset.get().checked_sub(it)),
        ),
    };
    let (Some(last), Some(base_offset @ 0..)) = (last, base_offset) else { return Err(wrong) };
    let (Some(first), Ok(span)) = (last.checked_sub(length), u32::try_from(span)) else {
        return Err(wrong);
    };
    let sparse_span = NonZeroU32::new(span);
    Ok(Stretch { first, last, base_offset: Offset::new(base_offset), sparse_span })
}
