//! Records on a long way: batches that their producers did not compress are, all others are as they were.
//!
//! ```text
//! packed = piece*     piece = kind 1 | size 4 | bytes
//!                             kind 0: batches as they are
//!                             kind 1: batches in a Zstandard frame
//! ```
//!
//! No batch is taken apart or written anew: what comes out is what went in, byte for byte. How large a
//! piece becomes is said nowhere, so there is nothing to trust: whoever unpacks stops at a size of its own.

use std::io::Read;

use bytes::{Buf, Bytes};
use thiserror::Error;
use zstd::zstd_safe::DCtx;

use super::{Compression, batches};
use crate::wire::Records;

/// Zstandard's fastest but its negative levels: what goes over a link is packed while somebody waits for it.
const LEVEL: i32 = 1;
const AS_IT_IS: u8 = 0;
const ZSTANDARD: u8 = 1;
/// Kind and size.
const HEAD_SIZE_BYTES: usize = 5;
/// Batches in one frame: no larger, so that what is needed to pack and to unpack it is small.
const FRAME_SIZE_BYTES_MAX: usize = 1 << 20;
/// The largest window that a frame may ask for: 8 MiB.
const WINDOW_LOG_MAX: u32 = 23;

/// Why packed records cannot be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PackedError {
    /// They end within a piece.
    #[error("packed records end within a piece")]
    Truncated,
    /// A piece of a kind that a newer version knows.
    #[error("a piece of kind {0}, which this version does not know")]
    UnknownKind(u8),
    /// What is in a piece is no Zstandard frame.
    #[error("a piece cannot be decompressed: {0}")]
    Damaged(String),
    /// More came out than may be.
    #[error("packed records become more than {size_bytes_max} bytes")]
    TooLarge {
        /// How many may.
        size_bytes_max: usize,
    },
}

/// Batches in a row that are treated alike.
struct Run {
    size_bytes: usize,
    is_plain: bool,
}

/// Packs whole batches; `None` if that would not make them smaller.
pub fn pack(records: &Records) -> Option<Records> {
    let all = gathered(records);
    let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok()?;
    let mut packed = Records::default();
    let mut rest = all.clone();
    for Run { size_bytes, is_plain } in runs(&all) {
        let run = rest.split_to(size_bytes);
        let smaller = if is_plain { compressor.compress(&run).ok() } else { None };
        match smaller.filter(|smaller| smaller.len() < run.len()) {
            Some(smaller) => put(&mut packed, ZSTANDARD, smaller.into()),
            None => put(&mut packed, AS_IT_IS, run),
        }
    }
    (packed.size_bytes() < all.len()).then_some(packed)
}

/// What was packed. It may take `size_bytes_max` bytes.
pub fn unpack(mut packed: Bytes, size_bytes_max: usize) -> Result<Bytes, PackedError> {
    let mut records = Vec::new();
    let mut context = DCtx::create();
    while !packed.is_empty() {
        if packed.len() < HEAD_SIZE_BYTES {
            return Err(PackedError::Truncated);
        }
        let (kind, size_bytes) = (packed.get_u8(), packed.get_u32());
        let size_bytes = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        if size_bytes > packed.len() {
            return Err(PackedError::Truncated);
        }
        let piece = packed.split_to(size_bytes);
        // One byte more than allowed tells "exactly full" from "too large".
        let room = size_bytes_max.saturating_sub(records.len()).saturating_add(1);
        match kind {
            AS_IT_IS => records.extend_from_slice(piece.get(..room).unwrap_or(&piece)),
            ZSTANDARD => {
                let before_bytes = records.len();
                inflate(&mut context, &piece, &mut records, room)
                    .map_err(|cause| PackedError::Damaged(cause.to_string()))?;
                // As it is only packed if it becomes smaller: many frames of nothing would cost time and no room.
                if records.len() - before_bytes < piece.len().min(room) {
                    let detail = "it is larger than what is in it";
                    return Err(PackedError::Damaged(detail.to_owned()));
                }
            }
            kind => return Err(PackedError::UnknownKind(kind)),
        }
        if records.len() > size_bytes_max {
            return Err(PackedError::TooLarge { size_bytes_max });
        }
    }
    Ok(records.into())
}

fn inflate(
    context: &mut DCtx<'static>,
    frame: &[u8],
    into: &mut Vec<u8>,
    size_bytes_max: usize,
) -> std::io::Result<()> {
    let mut decoder = zstd::stream::read::Decoder::with_context(frame, context);
    decoder.window_log_max(WINDOW_LOG_MAX)?;
    let limit = u64::try_from(size_bytes_max).unwrap_or(u64::MAX);
    decoder.take(limit).read_to_end(into).map(|_| ())
}

fn gathered(records: &Records) -> Bytes {
    let mut pieces = records.pieces();
    match (pieces.next(), pieces.next()) {
        (Some(only), None) => only.clone(),
        _ => {
            let mut all = Vec::with_capacity(records.size_bytes());
            records.pieces().for_each(|piece| all.extend_from_slice(piece));
            all.into()
        }
    }
}

/// The runs that all bytes are made of. What is no whole batch is one that is left as it is.
fn runs(all: &Bytes) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut add = |size_bytes: usize, is_plain: bool| match runs.last_mut() {
        Some(last)
            if last.is_plain == is_plain
                && (!is_plain || last.size_bytes + size_bytes <= FRAME_SIZE_BYTES_MAX) =>
        {
            last.size_bytes += size_bytes;
        }
        _ => runs.push(Run { size_bytes, is_plain }),
    };
    let mut known_bytes = 0;
    for batch in batches(all.clone()).flatten() {
        let size_bytes = batch.bytes().len();
        known_bytes += size_bytes;
        add(size_bytes, batch.header().attributes.compression() == Ok(Compression::None));
    }
    if known_bytes < all.len() {
        add(all.len() - known_bytes, false);
    }
    runs
}

fn put(packed: &mut Records, kind: u8, piece: Bytes) {
    let size_bytes = u32::try_from(piece.len()).unwrap_or(u32::MAX).to_be_bytes();
    let head = [&[kind], size_bytes.as_slice()].concat();
    packed.push(head.into());
    packed.push(piece);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::BatchBuilder;
    use super::*;

    const ROOM: usize = 4 << 20;

    fn batch(text: &[u8], count: i32, compression: Compression) -> Bytes {
        let mut builder = BatchBuilder::new();
        for number in 0..count {
            builder.append(1000 + i64::from(number), Some(b"key"), Some(text), &[]);
        }
        builder.build_compressed(compression).unwrap()
    }

    fn noise(size_bytes: usize) -> Vec<u8> {
        let mut state = 7_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        };
        (0..size_bytes).map(|_| next()).collect()
    }

    fn unpacked(packed: Records, size_bytes_max: usize) -> Result<Bytes, PackedError> {
        unpack(packed.into_bytes(), size_bytes_max)
    }

    #[test]
    fn what_producers_left_uncompressed_shrinks_and_comes_out_as_it_was() {
        let plain = batch(b"the same again", 500, Compression::None);
        let records: Records = [plain.clone(), plain].into_iter().collect();
        let packed = pack(&records).unwrap();
        assert!(packed.size_bytes() * 5 < records.size_bytes(), "{}", packed.size_bytes());
        assert_eq!(unpacked(packed, ROOM), Ok(records.into_bytes()));
    }

    #[test]
    fn what_would_not_become_smaller_is_left_alone() {
        assert_eq!(pack(&Records::default()), None);
        assert_eq!(pack(&batch(&noise(5000), 1, Compression::None).into()), None);
        assert_eq!(pack(&batch(b"the same again", 500, Compression::Gzip).into()), None);
        assert_eq!(pack(&Bytes::from(vec![0; 5000]).into()), None, "no batches");
    }

    #[test]
    fn what_producers_compressed_is_passed_on_untouched() {
        let plain = batch(b"the same again", 500, Compression::None);
        let gzip = batch(b"the same again", 500, Compression::Gzip);
        let records: Records = [gzip.clone(), plain, gzip.clone()].into_iter().collect();
        let packed = pack(&records).unwrap();
        let whole = packed.clone().into_bytes();
        let copies = whole.windows(gzip.len()).filter(|it| *it == gzip).count();
        assert_eq!(copies, 2);
        assert_eq!(unpacked(packed, ROOM), Ok(records.into_bytes()));
    }

    #[test]
    fn nothing_becomes_larger_than_it_may() {
        let records = Records::from(batch(&[7; 1000], 2000, Compression::None));
        let (packed, size_bytes) = (pack(&records).unwrap(), records.size_bytes());
        assert_eq!(unpacked(packed.clone(), size_bytes).map(|it| it.len()), Ok(size_bytes));
        let size_bytes_max = size_bytes - 1;
        assert_eq!(unpacked(packed, size_bytes_max), Err(PackedError::TooLarge { size_bytes_max }));
        // 64 MiB of zeros in some kilobytes, and one piece more.
        let zeros = zstd::stream::encode_all(std::io::repeat(0).take(1 << 26), 1).unwrap();
        let mut bomb = Records::default();
        put(&mut bomb, AS_IT_IS, Bytes::from_static(b"first"));
        put(&mut bomb, ZSTANDARD, zeros.into());
        put(&mut bomb, AS_IT_IS, Bytes::from_static(b"last"));
        assert_eq!(unpacked(bomb, 9), Err(PackedError::TooLarge { size_bytes_max: 9 }));
    }

    #[test]
    fn what_cannot_be_unpacked_says_why() {
        let read = |bytes: &'static [u8]| unpack(Bytes::from_static(bytes), ROOM);
        assert_eq!(read(&[]), Ok(Bytes::new()));
        assert_eq!(read(&[0, 0, 0, 0]), Err(PackedError::Truncated));
        assert_eq!(read(&[0, 0xff, 0xff, 0xff, 0xff, 1]), Err(PackedError::Truncated));
        assert_eq!(read(&[9, 0, 0, 0, 0]), Err(PackedError::UnknownKind(9)));
        assert!(matches!(read(&[1, 0, 0, 0, 2, 7, 7]), Err(PackedError::Damaged(_))));
    }

    #[test]
    fn frames_of_nothing_are_not_read_one_by_one() {
        let nothing = zstd::stream::encode_all(&[][..], LEVEL).unwrap();
        let mut frames = Records::default();
        (0..1000).for_each(|_| put(&mut frames, ZSTANDARD, nothing.clone().into()));
        assert!(matches!(unpacked(frames, ROOM), Err(PackedError::Damaged(_))));
    }

    fn any_batch() -> impl Strategy<Value = Bytes> {
        let text = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            any::<u8>().prop_map(|byte| vec![byte; 2000]),
        ];
        let compression = prop_oneof![
            4 => Just(Compression::None),
            1 => Just(Compression::Zstd),
            1 => Just(Compression::Lz4),
        ];
        (text, 1..30, compression).prop_map(|(text, count, it)| batch(&text, count, it))
    }

    proptest! {
        #[test]
        fn any_batches_come_out_as_they_went_in(
            pieces in prop::collection::vec(any_batch(), 0..8),
            left_over in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let pieces = pieces.into_iter().chain([Bytes::from(left_over)]);
            let records: Records = pieces.collect();
            if let Some(packed) = pack(&records) {
                prop_assert!(packed.size_bytes() < records.size_bytes());
                prop_assert_eq!(unpacked(packed, records.size_bytes()), Ok(records.into_bytes()));
            }
        }

        #[test]
        fn damage_is_an_error_or_bytes_within_bounds(
            at in any::<prop::sample::Index>(),
            byte: u8,
            size_bytes_max in 0..20_000_usize,
        ) {
            let records = Records::from(batch(b"the same again", 500, Compression::None));
            let mut packed = pack(&records).unwrap().into_bytes().to_vec();
            let at = at.index(packed.len());
            packed[at] = byte;
            if let Ok(unpacked) = unpack(packed.into(), size_bytes_max) {
                prop_assert!(unpacked.len() <= size_bytes_max);
            }
        }
    }
}
