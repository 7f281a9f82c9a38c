//! With AVX2, by tables of what each nibble adds to a product: eight shuffles for 32 symbols. Checksums are
//! the processor's own instruction on what was just loaded or stored, by a unit that vectors leave idle.
//!
//! The library's code is a Fourier transform, so its matrix has little in it. For data a, b, c .. parity is
//! ```text
//! 4 + 2   first               (1+p) a +     p b + (1+q) c +     q d
//!         second - first          a +       b +       c +       d
//!
//! 5 + 4   first             (1+x+p) a +     p b + (x+q) c +     q d +     u e
//!         second - first      (1+x) a + (1+x) b +     x c +     x d +     v e
//!         third  - first      (1+s) a +     s b + (1+t) c +     t d +     w e
//!         fourth - third          x a +     x b + (1+x) c + (1+x) d + (1+v) e
//! ```
//! which takes two products of sums instead of eight, and nine instead of twenty.

use std::arch::x86_64::{
    __m256i, _mm_crc32_u64, _mm256_and_si256, _mm256_loadu_si256, _mm256_set1_epi8,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_storeu_si256,
    _mm256_xor_si256,
};
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;

use super::{
    Block, NOTHING, Restore, Room, SYMBOL_COUNT, append_blocks, products_of_given,
    products_of_powers,
};
use crate::erasure::coder::Coder;

/// Nibbles of a symbol, and values of a nibble.
const NIBBLE_COUNT: usize = 4;
const VALUE_COUNT: usize = 16;
/// The sum of no bytes, as it is before it is inverted.
const OF_NO_BYTES: u64 = !0 >> 32;

type CodeBlocks<T, const D: usize, const P: usize> =
    unsafe fn(&mut T, [&[Block]; D], [&mut [Room]; P]);

/// Codes `D` data shards into `P` parity shards by `F` factors.
struct Tables<const D: usize, const P: usize, const F: usize> {
    factors: [Factor; F],
    /// Writes the parity of all columns to the rooms, and adds both to the sums.
    code_blocks: CodeBlocks<Self, D, P>,
    data_crcs: [u64; D],
    parity_crcs: [u64; P],
}

/// `None` if the processor lacks the instructions.
pub(super) fn coder_4_2() -> Option<Box<dyn Coder>> {
    let [_, b, _, d] = products_of_powers::<4, 2>();
    let [p, q] = [b[0], d[0]];
    Some(Box::new(Tables::new([p, q], Tables::code_4_2)?))
}

/// `None` if the processor lacks the instructions.
pub(super) fn coder_5_4() -> Option<Box<dyn Coder>> {
    let [_, b, c, d, e] = products_of_powers::<5, 4>();
    let [x, p, q] = [sum(c[0], c[1]), b[0], d[0]];
    let [u, v, w] = [e[0], sum(e[0], e[1]), sum(e[0], e[2])];
    let [s, t] = [sum(b[0], b[2]), sum(d[0], d[2])];
    Some(Box::new(Tables::new([x, p, q, u, v, w, s, t], Tables::code_5_4)?))
}

impl Tables<4, 2, 2> {
    #[target_feature(enable = "avx2")]
    fn code_4_2(&mut self, columns: [&[Block]; 4], rooms: [&mut [Room]; 2]) {
        self.code_by(columns, rooms, |[p, q], [a, b, c, d]| {
            let (ab, cd) = (a.plus(b), c.plus(d));
            let first = a.plus(c).plus(ab.times(p)).plus(cd.times(q));
            [first, first.plus(ab).plus(cd)]
        });
    }
}

impl Tables<5, 4, 8> {
    #[target_feature(enable = "avx2")]
    fn code_5_4(&mut self, columns: [&[Block]; 5], rooms: [&mut [Room]; 4]) {
        self.code_by(columns, rooms, |[x, p, q, u, v, w, s, t], [a, b, c, d, e]| {
            let (ab, cd, ac) = (a.plus(b), c.plus(d), a.plus(c));
            let first = a.plus(ac.times(x)).plus(ab.times(p)).plus(cd.times(q)).plus(e.times(u));
            let common = ab.plus(cd).times(x).plus(e.times(v));
            let second = first.plus(ab).plus(common);
            let third = first.plus(ac).plus(ab.times(s)).plus(cd.times(t)).plus(e.times(w));
            [first, second, third, third.plus(cd).plus(e).plus(common)]
        });
    }
}

impl<const D: usize, const P: usize, const F: usize> Tables<D, P, F> {
    /// By factors with these products of 1, 2, 4 .. 2^15; `None` if the processor lacks the instructions.
    fn new(products: [Block; F], code_blocks: CodeBlocks<Self, D, P>) -> Option<Self> {
        if !is_x86_feature_detected!("avx2") {
            return None;
        }
        // SAFETY: the processor has the instructions.
        let factors = products.map(|products| unsafe { Factor::of_products(&products) });
        let (data_crcs, parity_crcs) = ([OF_NO_BYTES; D], [OF_NO_BYTES; P]);
        Some(Self { factors, code_blocks, data_crcs, parity_crcs })
    }

    // Loops, as closures that pass through code for all processors are not always inlined.
    #[target_feature(enable = "avx2")]
    fn code_by(
        &mut self,
        columns: [&[Block]; D],
        mut rooms: [&mut [Room]; P],
        parity_of: impl Fn(&[Factor; F], [Symbols; D]) -> [Symbols; P],
    ) {
        let (mut data_crcs, mut parity_crcs) = (self.data_crcs, self.parity_crcs);
        for index in 0..columns[0].len() {
            let (mut blocks, mut data) = ([&NOTHING; D], [Symbols::zero(); D]);
            for ((block, symbols), column) in blocks.iter_mut().zip(&mut data).zip(columns) {
                *block = &column[index];
                *symbols = Symbols::load(block);
            }
            append(&mut data_crcs, blocks);
            let parity = parity_of(&self.factors, data);
            let mut blocks = [&NOTHING; P];
            for ((block, symbols), room) in blocks.iter_mut().zip(parity).zip(&mut rooms) {
                *block = symbols.store(&mut room[index]);
            }
            append(&mut parity_crcs, blocks);
        }
        (self.data_crcs, self.parity_crcs) = (data_crcs, parity_crcs);
    }
}

impl<const D: usize, const P: usize, const F: usize> Coder for Tables<D, P, F> {
    fn code(&mut self, columns: &[&[u8]], parity: &mut [BytesMut]) {
        let code_blocks = self.code_blocks;
        // SAFETY: there are `Tables` only where the processor has the instructions, and every room is
        // written.
        unsafe {
            append_blocks(columns, parity, |columns, rooms| code_blocks(self, columns, rooms));
        }
    }

    fn finish(&mut self, _: usize) -> Vec<u32> {
        let crcs = self.data_crcs.iter_mut().chain(&mut self.parity_crcs);
        crcs.map(|crc| !std::mem::replace(crc, OF_NO_BYTES) as u32).collect()
    }
}

/// Makes missing data shards from `D` given ones.
struct Missing<const D: usize> {
    /// For the number of each, what given ones are multiplied with.
    factors: BTreeMap<usize, [Factor; D]>,
}

/// `None` if the processor lacks the instructions.
pub(super) fn restorer<const D: usize>(
    parity_count: usize,
    given: [usize; D],
) -> Option<Arc<dyn Restore>> {
    if !is_x86_feature_detected!("avx2") {
        return None;
    }
    let products = products_of_given(parity_count, given).into_iter();
    let factors = products.map(|(number, products)| {
        // SAFETY: the processor has the instructions.
        (number, products.map(|products| unsafe { Factor::of_products(&products) }))
    });
    Some(Arc::new(Missing { factors: factors.collect() }))
}

impl<const D: usize> Restore for Missing<D> {
    fn append(&self, number: usize, given: &[&[u8]], to: &mut BytesMut) {
        let factors = &self.factors[&number];
        let to = std::slice::from_mut(to);
        // SAFETY: there is a `Missing` only where the processor has the instructions, and every room is
        // written.
        unsafe { append_blocks(given, to, |given, [rooms]| combine(factors, given, rooms)) }
    }
}

/// Writes the sum of the products.
#[target_feature(enable = "avx2")]
fn combine<const D: usize>(factors: &[Factor; D], shards: [&[Block]; D], rooms: &mut [Room]) {
    for (index, room) in rooms.iter_mut().enumerate() {
        let mut sum = Symbols::zero();
        for (factor, shard) in factors.iter().zip(shards) {
            sum = sum.plus(Symbols::load(&shard[index]).times(factor));
        }
        sum.store(room);
    }
}

/// The products with a number: for each nibble of a symbol, lowest first, those of its values.
#[derive(Clone, Copy)]
struct Factor {
    /// Their low bytes, and their high ones.
    tables: [[__m256i; 2]; NIBBLE_COUNT],
}

impl Factor {
    /// From the products of 1, 2, 4 .. 2^15.
    #[target_feature(enable = "avx2")]
    fn of_products(products: &Block) -> Self {
        let (low, high) = products.split_at(SYMBOL_COUNT);
        let table = |bytes: &[u8]| {
            let product = |value: usize| {
                let bits = (0..4).filter(|bit| value >> bit & 1 == 1);
                bits.fold(0, |product, bit| product ^ bytes[bit])
            };
            // Twice, as a shuffle looks up within 16 bytes.
            let table: [u8; 2 * VALUE_COUNT] = std::array::from_fn(|at| product(at % VALUE_COUNT));
            load(&table)
        };
        let tables = |nibble: usize| [low, high].map(|bytes| table(&bytes[4 * nibble..]));
        Self { tables: std::array::from_fn(tables) }
    }
}

/// What products with the sum of two numbers are.
fn sum(products: Block, others: Block) -> Block {
    std::array::from_fn(|at| products[at] ^ others[at])
}

/// A block in registers: low bytes, and high ones.
#[derive(Clone, Copy)]
struct Symbols {
    low: __m256i,
    high: __m256i,
}

impl Symbols {
    #[target_feature(enable = "avx2")]
    fn zero() -> Self {
        Self { low: _mm256_setzero_si256(), high: _mm256_setzero_si256() }
    }

    #[target_feature(enable = "avx2")]
    fn load(block: &Block) -> Self {
        let (halves, _) = block.as_chunks();
        Self { low: load(&halves[0]), high: load(&halves[1]) }
    }

    #[target_feature(enable = "avx2")]
    fn store(self, room: &mut Room) -> &Block {
        let to: *mut __m256i = room.as_mut_ptr().cast();
        // SAFETY: a block is as large as two vectors; no alignment is asked for. It is written when it is
        // read.
        unsafe {
            _mm256_storeu_si256(to, self.low);
            _mm256_storeu_si256(to.add(1), self.high);
            &*to.cast()
        }
    }

    #[target_feature(enable = "avx2")]
    fn plus(self, other: Self) -> Self {
        let low = _mm256_xor_si256(self.low, other.low);
        Self { low, high: _mm256_xor_si256(self.high, other.high) }
    }

    #[target_feature(enable = "avx2")]
    fn times(self, factor: &Factor) -> Self {
        let mut product = Self::zero();
        for (nibbles, [low, high]) in self.nibbles().into_iter().zip(factor.tables) {
            let low = _mm256_shuffle_epi8(low, nibbles);
            product = product.plus(Self { low, high: _mm256_shuffle_epi8(high, nibbles) });
        }
        product
    }

    /// Lowest first.
    #[target_feature(enable = "avx2")]
    fn nibbles(self) -> [__m256i; NIBBLE_COUNT] {
        let mask = _mm256_set1_epi8(0x0f);
        [
            _mm256_and_si256(self.low, mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(self.low), mask),
            _mm256_and_si256(self.high, mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(self.high), mask),
        ]
    }
}

/// Adds a block to each sum, word by word: each waits for its own sum before it, not for the others.
#[target_feature(enable = "sse4.2")]
fn append<const N: usize>(crcs: &mut [u64; N], blocks: [&Block; N]) {
    for word in 0..size_of::<Block>() / size_of::<u64>() {
        for (crc, block) in crcs.iter_mut().zip(blocks) {
            *crc = _mm_crc32_u64(*crc, u64::from_le_bytes(block.as_chunks().0[word]));
        }
    }
}

#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: they are as large as a vector; no alignment is asked for.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}
