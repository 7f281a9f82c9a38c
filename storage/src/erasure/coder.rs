//! The parity of columns, and the checksums of all shards: by libraries, or at once where the processor
//! multiplies vectors. The bytes are the same.

use bytes::BytesMut;
use reed_solomon_simd::ReedSolomonEncoder;

use super::crc;
#[cfg(target_arch = "x86_64")]
use super::products;

/// Codes column after column of a stripe, and then those of the next, reusing its working memory.
pub(super) trait Coder: Send {
    /// Appends the parity of one column of each data shard to each parity shard. Columns are of one
    /// size, a multiple of 64.
    fn code(&mut self, columns: &[&[u8]], parity: &mut [BytesMut]);

    /// The checksums of all shards, each of so many bytes; what is coded next is another stripe.
    fn finish(&mut self, shard_size_bytes: usize) -> Vec<u32>;
}

/// What is not optimised loops over vectors too slowly; the library is optimised even then.
#[cfg(target_arch = "x86_64")]
pub(super) const IS_OPTIMISED: bool = !cfg!(debug_assertions);

/// The fastest that this processor has.
pub(super) fn fastest(data_count: usize, parity_count: usize) -> Box<dyn Coder> {
    #[cfg(target_arch = "x86_64")]
    if IS_OPTIMISED && let Some(coder) = products::coders(data_count, parity_count).next() {
        return coder;
    }
    Box::new(Library::new(data_count, parity_count))
}

/// Codes and sums with what others wrote, on any processor.
struct Library {
    inner: ReedSolomonEncoder,
    data_count: usize,
    parity_count: usize,
    /// Of each shard so far.
    crcs: Vec<u32>,
}

impl Library {
    fn new(data_count: usize, parity_count: usize) -> Self {
        let inner = library(data_count, parity_count);
        let crcs = vec![0; data_count + parity_count];
        Self { inner, data_count, parity_count, crcs }
    }
}

impl Coder for Library {
    fn code(&mut self, columns: &[&[u8]], parity: &mut [BytesMut]) {
        let Self { inner, data_count, parity_count, crcs } = self;
        let size_bytes = columns.first().map_or(0, |column| column.len());
        inner
            .reset(*data_count, *parity_count, size_bytes)
            .expect("shards are multiples of 64 bytes");
        let (data_crcs, parity_crcs) = crcs.split_at_mut(*data_count);
        for (column, crc) in columns.iter().zip(data_crcs) {
            *crc = crc::append(*crc, column);
            inner.add_original_shard(column).expect("as many as announced, of that size");
        }
        let coded = inner.encode().expect("all shards were added");
        for ((column, shard), crc) in coded.recovery_iter().zip(parity).zip(parity_crcs) {
            *crc = crc::append(*crc, column);
            shard.extend_from_slice(column);
        }
    }

    fn finish(&mut self, _: usize) -> Vec<u32> {
        let none = vec![0; self.crcs.len()];
        std::mem::replace(&mut self.crcs, none)
    }
}

/// The library's encoder, which grows to the columns that it is given.
pub(super) fn library(data_count: usize, parity_count: usize) -> ReedSolomonEncoder {
    ReedSolomonEncoder::new(data_count, parity_count, super::SHARD_ALIGNMENT_BYTES)
        .expect("every code is one that the library supports")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The parity of `shards`, coded in columns, and the checksums of all.
    fn coded(
        coder: &mut dyn Coder,
        column: usize,
        shards: &[Vec<u8>],
        parity_count: usize,
    ) -> (Vec<BytesMut>, Vec<u32>) {
        let size_bytes = shards[0].len();
        let mut parity = vec![BytesMut::with_capacity(size_bytes); parity_count];
        for begin in (0..size_bytes).step_by(column) {
            let end = (begin + column).min(size_bytes);
            let columns: Vec<&[u8]> = shards.iter().map(|shard| &shard[begin..end]).collect();
            coder.code(&columns, &mut parity);
        }
        let crcs = coder.finish(size_bytes);
        (parity, crcs)
    }

    proptest! {
        #[test]
        fn parity_and_checksums_are_those_of_libraries_on_whole_shards(
            (data_count, parity_count) in prop::sample::select(vec![(5, 4), (4, 2), (4, 4)]),
            block_count in 1usize..40,
            column_block_count in 1usize..40,
            seed: u64,
        ) {
            let mut state = seed | 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            };
            let shard = |_| (0..block_count * 64).map(|_| next()).collect();
            let shards: Vec<Vec<u8>> = (0..data_count).map(shard).collect();
            let bare = reed_solomon_simd::encode(data_count, parity_count, &shards).unwrap();
            let crcs: Vec<u32> = shards.iter().chain(&bare).map(|shard| crc32c::crc32c(shard)).collect();
            let library = Box::new(Library::new(data_count, parity_count)) as Box<dyn Coder>;
            let mut coders = vec![library];
            #[cfg(target_arch = "x86_64")]
            coders.extend(products::coders(data_count, parity_count));
            for mut coder in coders {
                // Once more, as nothing of a stripe may be left for the next.
                for _ in 0..2 {
                    let coded = coded(&mut *coder, column_block_count * 64, &shards, parity_count);
                    prop_assert_eq!(&coded.0, &bare);
                    prop_assert_eq!(&coded.1, &crcs);
                }
            }
        }
    }
}
