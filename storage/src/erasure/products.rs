//! Sums of products in GF(2^16), by instructions that multiply bytes by matrices of bits.
#![expect(unsafe_code, reason = "vectors are loaded and stored by address")]

use std::arch::x86_64::{
    __m512i, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_set_epi64,
    _mm512_setzero_si512, _mm512_shuffle_i64x2, _mm512_storeu_si512, _mm512_xor_si512,
};

use super::coder::library;

/// What shards consist of: the low bytes of 32 symbols, then their high bytes.
type Block = [u8; 64];
const SYMBOL_COUNT: usize = 32;

/// Parity columns in the making.
pub(super) struct Products {
    /// What a data shard is multiplied with for a parity shard: those of the first data shard first.
    factors: Vec<Factor>,
    parity_count: usize,
    /// One parity shard after another.
    sums: Vec<Block>,
}

/// The 16 x 16 bits of multiplying by a number, in matrices of 8 x 8.
#[derive(Clone, Copy)]
struct Factor {
    /// Low bytes to low ones, high to high ones.
    straight: __m512i,
    /// High bytes to low ones, low to high ones.
    crossed: __m512i,
}

impl Factor {
    /// From the products of 1, 2, 4 .. 2^15, the first symbols of a block.
    #[target_feature(enable = "avx512f")]
    fn of_products(products: &[u8]) -> Self {
        let (low, high) = products.split_at(SYMBOL_COUNT);
        Self {
            straight: halves(matrix(&low[..8]), matrix(&high[8..16])),
            crossed: halves(matrix(&low[8..16]), matrix(&high[..8])),
        }
    }
}

/// The matrix of these columns, its rows from the highest byte on, as the instruction has it.
fn matrix(columns: &[u8]) -> u64 {
    let row = |bit: usize| {
        let bits = columns.iter().enumerate().map(|(column, byte)| (byte >> bit & 1) << column);
        u64::from(bits.sum::<u8>())
    };
    (0..8).map(|bit| row(bit) << (8 * (7 - bit))).sum()
}

impl Products {
    /// `None` if the processor lacks the instructions, or for a code of another shape.
    pub(super) fn new(data_count: usize, parity_count: usize) -> Option<Self> {
        let is_able = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("gfni");
        if !is_able || !matches!(parity_count, 2 | 4) {
            return None;
        }
        let mut powers = [0; size_of::<Block>()];
        for bit in 0..8 {
            powers[bit] = 1 << bit;
            powers[SYMBOL_COUNT + 8 + bit] = 1 << bit;
        }
        let mut library = library(data_count, parity_count);
        let mut factors = Vec::new();
        for number in 0..data_count {
            for other in 0..data_count {
                let shard = if other == number { powers } else { [0; size_of::<Block>()] };
                library.add_original_shard(shard).expect("a shard of that size");
            }
            let coded = library.encode().expect("all shards were added");
            // SAFETY: the processor has the instructions.
            factors.extend(coded.recovery_iter().map(|it| unsafe { Factor::of_products(it) }));
        }
        Some(Self { factors, parity_count, sums: Vec::new() })
    }

    /// The parity of one column of each data shard, in order.
    pub(super) fn code(&mut self, columns: &[&[u8]]) -> impl Iterator<Item = &[u8]> {
        let block_count = columns.first().map_or(0, |column| column.len()) / size_of::<Block>();
        self.sums.resize(block_count * self.parity_count, [0; size_of::<Block>()]);
        let columns: Vec<&[Block]> = columns.iter().map(|column| column.as_chunks().0).collect();
        assert!(columns.iter().all(|column| column.len() == block_count), "columns of one size");
        assert_eq!(self.factors.len(), columns.len() * self.parity_count, "as many as announced");
        // SAFETY: there is a `Products` only where the processor has the instructions.
        unsafe {
            match self.parity_count {
                2 => add_products::<2>(&self.factors, &columns, &mut self.sums),
                _ => add_products::<4>(&self.factors, &columns, &mut self.sums),
            }
        }
        self.sums.chunks(block_count.max(1)).map(<[Block]>::as_flattened)
    }
}

/// Writes to each of `P` runs of blocks the sum of the products of all columns.
#[target_feature(enable = "avx512f,gfni")]
fn add_products<const P: usize>(factors: &[Factor], columns: &[&[Block]], sums: &mut [Block]) {
    let block_count = sums.len() / P;
    for index in 0..block_count {
        let mut sum = [_mm512_setzero_si512(); P];
        for (column, factors) in columns.iter().zip(factors.chunks_exact(P)) {
            let symbols = load(&column[index]);
            // The low bytes where the high ones were.
            let swapped = _mm512_shuffle_i64x2::<0b01_00_11_10>(symbols, symbols);
            for (sum, factor) in sum.iter_mut().zip(factors) {
                let straight = _mm512_gf2p8affine_epi64_epi8::<0>(symbols, factor.straight);
                let crossed = _mm512_gf2p8affine_epi64_epi8::<0>(swapped, factor.crossed);
                *sum = _mm512_xor_si512(*sum, _mm512_xor_si512(straight, crossed));
            }
        }
        for (number, sum) in sum.iter().enumerate() {
            store(*sum, &mut sums[number * block_count + index]);
        }
    }
}

#[target_feature(enable = "avx512f")]
fn load(block: &Block) -> __m512i {
    // SAFETY: a block is as large as a vector; no alignment is asked for.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn store(vector: __m512i, block: &mut Block) {
    // SAFETY: a block is as large as a vector; no alignment is asked for.
    unsafe { _mm512_storeu_si512(block.as_mut_ptr().cast(), vector) }
}

/// One matrix for the first half of a vector, another for the second.
#[target_feature(enable = "avx512f")]
fn halves(first: u64, second: u64) -> __m512i {
    let (first, second) = (first.cast_signed(), second.cast_signed());
    _mm512_set_epi64(second, second, second, second, first, first, first, first)
}
