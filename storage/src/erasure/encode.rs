//! Encoding a stripe into its parts.
//!
//! The stripe is coded in columns that fit the processor's cache, and each column is summed while it is
//! there. Blocks of 64 bytes are coded independently, so the bytes are those of coding it whole.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::position::LogPoint;
use reed_solomon_simd::ReedSolomonEncoder;

use super::{Code, Part, STRIPE_SIZE_BYTES_MAX, Stripe, shard_size_bytes};

/// Bytes of each shard that are coded at a time.
const COLUMN_SIZE_BYTES: usize = 32 << 10;

/// A stripe and all its parts, in order.
#[derive(Clone, Debug)]
pub struct EncodedStripe {
    /// What the manifest says of it.
    pub stripe: Stripe,
    /// Its parts: data, then parity.
    pub parts: Vec<Part>,
}

/// Encodes stripe after stripe, reusing its working memory.
pub struct StripeEncoder {
    code: Code,
    inner: ReedSolomonEncoder,
}

impl std::fmt::Debug for StripeEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StripeEncoder").field("code", &self.code).finish_non_exhaustive()
    }
}

impl StripeEncoder {
    /// An encoder for this code.
    pub fn new(code: Code) -> Self {
        let inner =
            ReedSolomonEncoder::new(code.data_count(), code.parity_count(), COLUMN_SIZE_BYTES)
                .expect("every code is one that the library supports");
        Self { code, inner }
    }

    /// Encodes `pieces`, one after another, as the stripe at `point`.
    ///
    /// # Panics
    /// If the pieces are empty or larger than [`STRIPE_SIZE_BYTES_MAX`]: the packer's bounds.
    pub fn encode(&mut self, point: LogPoint, pieces: &[Bytes]) -> EncodedStripe {
        let size_bytes: usize = pieces.iter().map(Bytes::len).sum();
        assert!((1..=STRIPE_SIZE_BYTES_MAX).contains(&size_bytes), "a stripe of {size_bytes} B");
        let shard_size_bytes = shard_size_bytes(self.code, size_bytes);
        let data = join(pieces, shard_size_bytes * self.code.data_count());
        let (parity, crcs) = self.code_columns(&data, shard_size_bytes);
        let (data_crcs, _) = crcs.split_at(self.code.data_count());
        let crc = data_crcs
            .iter()
            .copied()
            .reduce(|all, crc| crc32c::crc32c_combine(all, crc, shard_size_bytes))
            .unwrap_or_default();
        let size_bytes = size_bytes as u32;
        let code = self.code;
        let stripe = Stripe { point, code, size_bytes, crc };
        let cut = |bytes: Bytes, count: usize| {
            (0..count).map(move |n| bytes.slice(n * shard_size_bytes..(n + 1) * shard_size_bytes))
        };
        let shards = cut(data, code.data_count()).chain(cut(parity, code.parity_count()));
        let parts = (0..).zip(shards).zip(crcs);
        let parts = parts.map(|((number, shard), crc)| Part { number, shard, crc }).collect();
        EncodedStripe { stripe, parts }
    }

    /// The parity shards, one after another, and the checksum of every shard.
    fn code_columns(&mut self, data: &Bytes, shard_size_bytes: usize) -> (Bytes, Vec<u32>) {
        let (data_count, parity_count) = (self.code.data_count(), self.code.parity_count());
        let mut crcs = vec![0; data_count + parity_count];
        let mut parity = BytesMut::zeroed(parity_count * shard_size_bytes);
        let mut begin = 0;
        while begin < shard_size_bytes {
            let end = (begin + COLUMN_SIZE_BYTES).min(shard_size_bytes);
            self.inner
                .reset(data_count, parity_count, end - begin)
                .expect("shards are multiples of 64 bytes");
            for (number, shard) in data.chunks_exact(shard_size_bytes).enumerate() {
                let column = &shard[begin..end];
                crcs[number] = crc32c::crc32c_append(crcs[number], column);
                self.inner.add_original_shard(column).expect("as many as announced, of that size");
            }
            let coded = self.inner.encode().expect("all shards were added");
            for (number, column) in coded.recovery_iter().enumerate() {
                let crc = &mut crcs[data_count + number];
                *crc = crc32c::crc32c_append(*crc, column);
                let at = number * shard_size_bytes;
                parity[at + begin..at + end].copy_from_slice(column);
            }
            begin = end;
        }
        (parity.freeze(), crcs)
    }
}

/// The pieces in one, padded with zeros.
fn join(pieces: &[Bytes], padded_size_bytes: usize) -> Bytes {
    let mut joined = BytesMut::with_capacity(padded_size_bytes);
    pieces.iter().for_each(|piece| joined.put_slice(piece));
    joined.put_bytes(0, padded_size_bytes - joined.len());
    joined.freeze()
}
