//! The parity of columns: by the library, or at once where the processor multiplies by matrices of bits.
//!
//! Parity is a sum of products: each data shard times a number of GF(2^16) that depends on the two
//! shards alone. To multiply by a number is linear over bits, so it is a matrix of 16 x 16 of them,
//! which the library tells: the products of 1, 2, 4 .. 2^15 are its columns. With GFNI and AVX-512 a
//! product of 32 symbols is two instructions; the library takes some sixteen, and goes over its
//! memory several times. The bytes are the same.

use reed_solomon_simd::ReedSolomonEncoder;

#[cfg(target_arch = "x86_64")]
use super::products::Products;

/// Codes column after column, reusing its working memory.
pub(super) enum Coder {
    /// On any processor.
    Library { inner: ReedSolomonEncoder, data_count: usize, parity_count: usize },
    /// On one with GFNI and AVX-512.
    #[cfg(target_arch = "x86_64")]
    Products(Products),
}

impl Coder {
    /// The fastest that this processor has.
    pub(super) fn new(data_count: usize, parity_count: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(products) = Products::new(data_count, parity_count) {
            return Self::Products(products);
        }
        Self::library(data_count, parity_count)
    }

    /// The library's.
    pub(super) fn library(data_count: usize, parity_count: usize) -> Self {
        Self::Library { inner: library(data_count, parity_count), data_count, parity_count }
    }

    /// Gives the parity of one column of each data shard, in order. Columns are of one size, a multiple of 64.
    pub(super) fn code(&mut self, columns: &[&[u8]], take: impl FnMut(&[u8])) {
        match self {
            Self::Library { inner, data_count, parity_count } => {
                let size_bytes = columns.first().map_or(0, |column| column.len());
                inner
                    .reset(*data_count, *parity_count, size_bytes)
                    .expect("shards are multiples of 64 bytes");
                for column in columns {
                    inner.add_original_shard(column).expect("as many as announced, of that size");
                }
                let coded = inner.encode().expect("all shards were added");
                coded.recovery_iter().for_each(take);
            }
            #[cfg(target_arch = "x86_64")]
            Self::Products(products) => products.code(columns).for_each(take),
        }
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

    fn parity_of(coder: &mut Coder, column: usize, shards: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let size_bytes = shards[0].len();
        let mut parity = Vec::new();
        for begin in (0..size_bytes).step_by(column) {
            let end = (begin + column).min(size_bytes);
            let columns: Vec<&[u8]> = shards.iter().map(|shard| &shard[begin..end]).collect();
            let mut number = 0;
            coder.code(&columns, |column| {
                parity.resize(parity.len().max(number + 1), Vec::new());
                parity[number].extend_from_slice(column);
                number += 1;
            });
        }
        parity
    }

    proptest! {
        #[test]
        fn parity_is_that_of_the_library_on_whole_shards(
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
            for mut coder in
                [Coder::new(data_count, parity_count), Coder::library(data_count, parity_count)]
            {
                let parity = parity_of(&mut coder, column_block_count * 64, &shards);
                prop_assert_eq!(&parity, &bare);
            }
        }
    }
}
