//! Encoding a stripe into its parts.
//!
//! The stripe is coded in columns that fit the processor's cache, and each column is summed while it is
//! there. Blocks of 64 bytes are coded independently, so the bytes are those of coding it whole. Data
//! shards are slices of what was given: nothing is copied but by the code itself.

use bytes::{Bytes, BytesMut};
use meridian_base::position::LogPoint;

use super::coder::{self, Coder};
use super::crc::Shift;
use super::{Code, Part, SHARD_ALIGNMENT_BYTES, STRIPE_SIZE_BYTES_MAX, Stripe, shard_size_bytes};
use crate::blob::Payload;

/// Bytes of each shard that are coded at a time: all shards of a column stay in the second cache.
const COLUMN_SIZE_BYTES: usize = 16 << 10;
/// A shard of more pieces is copied into one: each costs wherever the part goes.
const SHARD_PIECES_MAX: usize = 16;
/// What shards are padded with.
static ZEROS: [u8; 16 * SHARD_ALIGNMENT_BYTES] = [0; 16 * SHARD_ALIGNMENT_BYTES];

/// A stripe and all its parts, in order.
#[derive(Clone, Debug)]
pub struct EncodedStripe {
    /// What the manifest says of it.
    pub stripe: Stripe,
    /// Its parts: data, then parity.
    pub parts: Vec<Part>,
}

/// Encodes stripe after stripe, reusing its working memory.
#[derive(Debug)]
pub struct StripeEncoder {
    code: Code,
    shards: ShardEncoder,
}

impl StripeEncoder {
    /// An encoder for this code.
    pub fn new(code: Code) -> Self {
        let shards = ShardEncoder::new(code.data_count(), code.parity_count());
        Self { code, shards }
    }

    /// Encodes `pieces`, one after another, as the stripe at `point`. The data parts share their
    /// memory.
    ///
    /// # Panics
    /// If the pieces are empty or larger than [`STRIPE_SIZE_BYTES_MAX`]: the packer's bounds.
    pub fn encode(&mut self, point: LogPoint, pieces: &[Bytes]) -> EncodedStripe {
        let size_bytes: usize = pieces.iter().map(Bytes::len).sum();
        assert!((1..=STRIPE_SIZE_BYTES_MAX).contains(&size_bytes), "a stripe of {size_bytes} B");
        let shard_size_bytes = shard_size_bytes(self.code.data_count(), size_bytes);
        let parts = self.shards.encode(pieces, shard_size_bytes);
        let shift = Shift::by(shard_size_bytes as u32);
        let data_crcs = parts.iter().take(self.code.data_count()).map(|part| part.crc);
        let crc = data_crcs.reduce(|all, crc| shift.join(all, crc)).unwrap_or_default();
        let stripe = Stripe { point, code: self.code, size_bytes: size_bytes as u32, crc };
        EncodedStripe { stripe, parts }
    }
}

/// Cuts and codes bytes into parts, reusing its working memory.
pub(crate) struct ShardEncoder {
    data_count: usize,
    parity_count: usize,
    coder: Box<dyn Coder>,
    /// The column of each data shard that lies in several pieces.
    scratch: Vec<Vec<u8>>,
}

impl std::fmt::Debug for ShardEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardEncoder").field("data_count", &self.data_count).finish_non_exhaustive()
    }
}

impl ShardEncoder {
    pub(crate) fn new(data_count: usize, parity_count: usize) -> Self {
        let coder = coder::fastest(data_count, parity_count);
        Self { data_count, parity_count, coder, scratch: vec![Vec::new(); data_count] }
    }

    /// All parts of `pieces`, one after another and padded with zeros, in order. The data parts share
    /// their memory.
    pub(crate) fn encode(&mut self, pieces: &[Bytes], shard_size_bytes: usize) -> Vec<Part> {
        let mut shards = cut(pieces, self.data_count, shard_size_bytes);
        let (parity, crcs) = self.code_columns(&shards, shard_size_bytes);
        shards.extend(parity.into_iter().map(|shard| Payload::from(shard.freeze())));
        let parts = (0..).zip(shards).zip(crcs);
        parts.map(|((number, shard), crc)| Part { number, shard, crc }).collect()
    }

    /// The parity shards, and the checksum of every shard.
    fn code_columns(
        &mut self,
        shards: &[Payload],
        shard_size_bytes: usize,
    ) -> (Vec<BytesMut>, Vec<u32>) {
        // One piece of memory, as the allocator gives some of many back to the system each time.
        let mut room = BytesMut::with_capacity(shard_size_bytes * self.parity_count);
        let mut shard = || {
            let rest = room.split_off(shard_size_bytes);
            std::mem::replace(&mut room, rest)
        };
        let mut parity: Vec<BytesMut> = (0..self.parity_count).map(|_| shard()).collect();
        let mut begin = 0;
        while begin < shard_size_bytes {
            let end = (begin + COLUMN_SIZE_BYTES).min(shard_size_bytes);
            let shards = shards.iter().zip(&mut self.scratch);
            let columns: Vec<&[u8]> =
                shards.map(|(shard, scratch)| column(shard, begin, end, scratch)).collect();
            self.coder.code(&columns, &mut parity);
            begin = end;
        }
        (parity, self.coder.finish(shard_size_bytes))
    }
}

/// Cuts the pieces into data shards, padded with zeros.
fn cut(pieces: &[Bytes], data_count: usize, shard_size_bytes: usize) -> Vec<Payload> {
    let mut pieces = pieces.iter().cloned();
    let mut rest = Bytes::new();
    let mut shard = || {
        let mut slices = Vec::new();
        let mut missing_bytes = shard_size_bytes;
        while missing_bytes > 0 {
            if rest.is_empty() {
                let padding = Bytes::from_static(&ZEROS[..missing_bytes.min(ZEROS.len())]);
                rest = pieces.next().unwrap_or(padding);
            }
            let slice = rest.split_to(missing_bytes.min(rest.len()));
            missing_bytes -= slice.len();
            slices.push(slice);
        }
        let shard = Payload::from_parts(slices);
        if shard.parts().len() > SHARD_PIECES_MAX {
            return Payload::from(shard.to_contiguous());
        }
        shard
    };
    (0..data_count).map(|_| shard()).collect()
}

/// The bytes of a shard from `begin` to `end`, copied if they lie in several pieces.
fn column<'a>(shard: &'a Payload, begin: usize, end: usize, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    scratch.clear();
    let mut piece_begin = 0;
    for piece in shard.parts() {
        let piece_end = piece_begin + piece.len();
        let (from, until) = (begin.max(piece_begin), end.min(piece_end));
        if from < until {
            let slice = &piece[from - piece_begin..until - piece_begin];
            if slice.len() == end - begin {
                return slice;
            }
            scratch.extend_from_slice(slice);
        }
        piece_begin = piece_end;
    }
    scratch
}
