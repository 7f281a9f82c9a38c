//! With GFNI and AVX-512, by matrices of bits: two instructions for 32 symbols. Checksums are of what is in
//! registers for that.

use std::arch::x86_64::{
    __m512i, _mm512_clmulepi64_epi128, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512,
    _mm512_set_epi64, _mm512_setzero_si512, _mm512_shuffle_i64x2, _mm512_storeu_si512,
    _mm512_ternarylogic_epi64,
};

use bytes::BytesMut;

use super::{Block, NOTHING, Room, SYMBOL_COUNT, append_blocks, products_of_powers};
use crate::erasure::coder::Coder;
use crate::erasure::crc::{self, Shift};

/// Codes `D` data shards into `P` parity shards.
struct Matrices<const D: usize, const P: usize> {
    /// What each data shard is multiplied with for each parity shard.
    factors: [[Factor; P]; D],
    /// What stands for all bytes of a shard so far: has their checksum, if the register is zero before.
    data_sums: [Block; D],
    parity_sums: [Block; P],
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
    /// From the products of 1, 2, 4 .. 2^15.
    #[target_feature(enable = "avx512f")]
    fn of_products(products: &Block) -> Self {
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

/// `None` if the processor lacks the instructions.
pub(super) fn coder<const D: usize, const P: usize>() -> Option<Box<dyn Coder>> {
    let is_able = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("gfni")
        && is_x86_feature_detected!("vpclmulqdq");
    if !is_able {
        return None;
    }
    let products = products_of_powers::<D, P>();
    // SAFETY: the processor has the instructions.
    let factor = |products: &Block| unsafe { Factor::of_products(products) };
    let factors = products.each_ref().map(|products| products.each_ref().map(factor));
    Some(Box::new(Matrices { factors, data_sums: [NOTHING; D], parity_sums: [NOTHING; P] }))
}

impl<const D: usize, const P: usize> Matrices<D, P> {
    /// Writes the parity of all columns to the rooms, and adds both to the sums.
    #[target_feature(enable = "avx512f,gfni,vpclmulqdq")]
    fn code_blocks(&mut self, columns: [&[Block]; D], rooms: [&mut [Room]; P]) {
        let mut data_sums = self.data_sums.each_ref().map(|sum| load(sum));
        let mut parity_sums = self.parity_sums.each_ref().map(|sum| load(sum));
        for index in 0..columns[0].len() {
            let mut parity = [_mm512_setzero_si512(); P];
            for number in 0..D {
                let symbols = load(&columns[number][index]);
                data_sums[number] = fold(data_sums[number], symbols);
                // The low bytes where the high ones were.
                let swapped = _mm512_shuffle_i64x2::<0b01_00_11_10>(symbols, symbols);
                for (parity, factor) in parity.iter_mut().zip(&self.factors[number]) {
                    let straight = _mm512_gf2p8affine_epi64_epi8::<0>(symbols, factor.straight);
                    let crossed = _mm512_gf2p8affine_epi64_epi8::<0>(swapped, factor.crossed);
                    *parity = xor(*parity, straight, crossed);
                }
            }
            for number in 0..P {
                parity_sums[number] = fold(parity_sums[number], parity[number]);
                store(parity[number], &mut rooms[number][index]);
            }
        }
        self.data_sums = data_sums.map(|sum| bytes(sum));
        self.parity_sums = parity_sums.map(|sum| bytes(sum));
    }
}

impl<const D: usize, const P: usize> Coder for Matrices<D, P> {
    fn code(&mut self, columns: &[&[u8]], parity: &mut [BytesMut]) {
        // SAFETY: there are `Matrices` only where the processor has the instructions, and every room is
        // written.
        unsafe {
            append_blocks(columns, parity, |columns, rooms| self.code_blocks(columns, rooms));
        }
    }

    fn finish(&mut self, shard_size_bytes: usize) -> Vec<u32> {
        let shift = Shift::by(shard_size_bytes as u32);
        let sums = self.data_sums.iter_mut().chain(&mut self.parity_sums);
        let blocks = sums.map(|sum| std::mem::replace(sum, NOTHING));
        let zero = crc::OF_ZERO_REGISTER;
        blocks.map(|block| shift.join(zero, crc32c::crc32c_append(zero, &block))).collect()
    }
}

/// The sum with these bytes behind it.
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(sum: __m512i, block: __m512i) -> __m512i {
    let (last, first) = (crc::FOLD.0.into(), crc::FOLD.1.into());
    let factors = _mm512_set_epi64(last, first, last, first, last, first, last, first);
    let low = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
    let high = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
    xor(low, high, block)
}

#[target_feature(enable = "avx512f")]
fn xor(first: __m512i, second: __m512i, third: __m512i) -> __m512i {
    const XOR: i32 = 0b1001_0110;
    _mm512_ternarylogic_epi64::<XOR>(first, second, third)
}

#[target_feature(enable = "avx512f")]
fn load(block: &Block) -> __m512i {
    // SAFETY: a block is as large as a vector; no alignment is asked for.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn store(vector: __m512i, room: &mut Room) {
    // SAFETY: a block is as large as a vector; no alignment is asked for.
    unsafe { _mm512_storeu_si512(room.as_mut_ptr().cast(), vector) }
}

#[target_feature(enable = "avx512f")]
fn bytes(vector: __m512i) -> Block {
    // SAFETY: all bytes of a vector are initialised.
    unsafe { std::mem::transmute::<__m512i, Block>(vector) }
}

/// One matrix for the first half of a vector, another for the second.
#[target_feature(enable = "avx512f")]
fn halves(first: u64, second: u64) -> __m512i {
    let (first, second) = (first.cast_signed(), second.cast_signed());
    _mm512_set_epi64(second, second, second, second, first, first, first, first)
}
