//! Parts that are damaged at different places still give what was cut into them.
//!
//! ```text
//! part 0   |    |    | x  |    |      the code works on columns of 64 bytes, each by itself: where the parts
//! part 1   | x  |    |    |    |      disagree, all but one of them agree, once the damaged one is left out
//! part 2   |    |    |    | x  |
//! ...
//! ```
//! As many parts as there are of data make up a column and one more tells whether they are right; to tell which one is
//! wrong takes another.

use bytes::{Bytes, BytesMut};

use super::{Part, SHARD_ALIGNMENT_BYTES as COLUMN_SIZE_BYTES, Shape, ShardEncoder, join};
use crate::blob::Payload;

/// With fewer beyond those of data it can't be told which one is damaged.
pub(crate) const SPARE_COUNT_MIN: usize = 2;

/// What was cut into these parts, with its padding, if no column is damaged in more than one of them. `None` if it can
/// be seen that this is not so; the rest is for the checksum of the whole to tell.
pub(crate) fn mend(shape: Shape, parts: &[Part]) -> Option<Bytes> {
    if parts.len() < shape.data_count + SPARE_COUNT_MIN {
        return None;
    }
    let (mut bytes, made) = make_all(shape, parts)?;
    let columns = 0..shape.shard_size_bytes / COLUMN_SIZE_BYTES;
    let mut doubtful: Vec<usize> = columns.filter(|it| !agree(&made, parts, *it)).collect();
    for suspect in 0..parts.len() {
        if doubtful.is_empty() {
            break;
        }
        let others = parts.iter().enumerate().filter(|(index, _)| *index != suspect);
        let others: Vec<Part> = others.map(|(_, part)| of_columns(part, &doubtful)).collect();
        let shard_size_bytes = doubtful.len() * COLUMN_SIZE_BYTES;
        let (_, made) = make_all(Shape { shard_size_bytes, ..shape }, &others)?;
        let mut left = Vec::new();
        for (index, known_as) in doubtful.into_iter().enumerate() {
            if !agree(&made, &others, index) {
                left.push(known_as);
                continue;
            }
            for (number, part) in made.iter().enumerate().take(shape.data_count) {
                let at = number * shape.shard_size_bytes + known_as * COLUMN_SIZE_BYTES;
                bytes[at..at + COLUMN_SIZE_BYTES].copy_from_slice(&column(part, index));
            }
        }
        doubtful = left;
    }
    doubtful.is_empty().then(|| bytes.freeze())
}

/// What these parts come to, and all parts of that.
fn make_all(shape: Shape, parts: &[Part]) -> Option<(BytesMut, Vec<Part>)> {
    let (bytes, _) = join(shape, parts).ok()?;
    let mut encoder = ShardEncoder::new(shape.data_count, shape.parity_count);
    let made = encoder.encode(&[bytes.clone().freeze()], shape.shard_size_bytes);
    Some((bytes, made))
}

/// Whether a column of each of these is what was made of them all.
fn agree(made: &[Part], parts: &[Part], index: usize) -> bool {
    parts.iter().all(|part| column(&made[usize::from(part.number)], index) == column(part, index))
}

fn of_columns(part: &Part, columns: &[usize]) -> Part {
    let bytes: Vec<u8> = columns.iter().flat_map(|index| column(part, *index)).collect();
    Part { number: part.number, shard: Payload::from(Bytes::from(bytes)), crc: part.crc }
}

fn column(part: &Part, index: usize) -> Bytes {
    let start = index * COLUMN_SIZE_BYTES;
    part.shard.to_contiguous().slice(start..start + COLUMN_SIZE_BYTES)
}
