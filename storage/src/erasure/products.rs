//! Parity, and data shards that are missing, as sums of products in GF(2^16), with checksums of what is at
//! hand for that: each byte is loaded once, where the library goes over its memory several times.
//!
//! Each given shard is multiplied by a number that depends on the given ones and the one to be made alone.
//! That is linear over bits, so the library tells all of it by the products of 1, 2, 4 .. 2^15. How a vector
//! is multiplied and summed depends on the processor: by [`matrices`] of bits, or by [`tables`] of nibbles.
#![expect(unsafe_code, reason = "vectors are loaded and stored by address")]

mod matrices;
mod tables;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use meridian_base::sync::lock;
use reed_solomon_simd::ReedSolomonDecoder;

use super::coder::{Coder, library};

/// What shards consist of: the low bytes of 32 symbols, then their high bytes.
type Block = [u8; 64];
/// Where a block is to be.
type Room = [MaybeUninit<u8>; size_of::<Block>()];
const SYMBOL_COUNT: usize = 32;
/// Stands for no bytes, and for zeros.
const NOTHING: Block = [0; size_of::<Block>()];

/// `None` if the processor lacks the instructions.
type MakeCoder = fn() -> Option<Box<dyn Coder>>;

/// All that the processor has the instructions for, fastest first; none for a code of another shape. Each is made when
/// it is asked for, as the library has to code for it.
pub(super) fn coders(
    data_count: usize,
    parity_count: usize,
) -> impl Iterator<Item = Box<dyn Coder>> {
    let coders: &[MakeCoder] = match (data_count, parity_count) {
        (4, 2) => &[matrices::coder::<4, 2>, tables::coder_4_2],
        (5, 4) => &[matrices::coder::<5, 4>, tables::coder_5_4],
        _ => &[],
    };
    coders.iter().filter_map(|coder| coder())
}

/// Makes missing data shards from given ones.
pub(super) trait Restore: Send + Sync {
    /// Appends data shard `number`, which is missing, as it follows from those given, in the order of their numbers.
    /// Shards are of one size, a multiple of 64.
    fn append(&self, number: usize, given: &[&[u8]], to: &mut BytesMut);
}

/// By the number of all parts, and the numbers of those given.
type Known = BTreeMap<(usize, Vec<usize>), Arc<dyn Restore>>;

/// What makes the data shards that are not among the given ones, as many as there are of data; `None` if the processor
/// lacks the instructions, or for a code of another shape. What the library takes milliseconds to tell is kept.
pub(super) fn restorer(
    data_count: usize,
    parity_count: usize,
    given: &[usize],
) -> Option<Arc<dyn Restore>> {
    static KNOWN: Mutex<Known> = Mutex::new(Known::new());
    let mut known = lock(&KNOWN);
    let key = (data_count + parity_count, given.to_vec());
    if let Some(restorer) = known.get(&key) {
        return Some(restorer.clone());
    }
    let restorer = match (data_count, parity_count) {
        (4, 2) => tables::restorer::<4>(2, given.try_into().ok()?),
        (5, 4) => tables::restorer::<5>(4, given.try_into().ok()?),
        _ => None,
    };
    restorer.inspect(|restorer| {
        known.insert(key, restorer.clone());
    })
}

/// The numbers 1, 2, 4 .. 2^15 as the first symbols of a block.
fn powers() -> Block {
    let mut powers = NOTHING;
    for bit in 0..8 {
        powers[bit] = 1 << bit;
        powers[SYMBOL_COUNT + 8 + bit] = 1 << bit;
    }
    powers
}

/// Their products for each data shard and each parity shard.
fn products_of_powers<const D: usize, const P: usize>() -> [[Block; P]; D] {
    let mut library = library(D, P);
    std::array::from_fn(|number| {
        for other in 0..D {
            let shard = if other == number { powers() } else { NOTHING };
            library.add_original_shard(shard).expect("a shard of that size");
        }
        let coded = library.encode().expect("all shards were added");
        std::array::from_fn(|parity| {
            let products = coded.recovery(parity).expect("as many as announced");
            products.try_into().expect("one block")
        })
    })
}

/// Their products for each given shard and each data shard that is not among them, with the number of that.
fn products_of_given<const D: usize>(
    parity_count: usize,
    given: [usize; D],
) -> Vec<(usize, [Block; D])> {
    let mut library = ReedSolomonDecoder::new(D, parity_count, size_of::<Block>())
        .expect("every code is one that the library supports");
    let missing = (0..D).filter(|number| !given.contains(number));
    let mut products: Vec<_> = missing.map(|number| (number, [NOTHING; D])).collect();
    for (index, number) in given.into_iter().enumerate() {
        for other in given {
            let shard = if other == number { powers() } else { NOTHING };
            let added = match other.checked_sub(D) {
                None => library.add_original_shard(other, shard),
                Some(parity) => library.add_recovery_shard(parity, shard),
            };
            added.expect("a shard of that size, given once");
        }
        let decoded = library.decode().expect("as many shards as there are of data");
        for (missing, products) in &mut products {
            let restored = decoded.restored_original(*missing).expect("it was missing");
            products[index] = restored.try_into().expect("one block");
        }
    }
    products
}

/// Appends to each parity shard the blocks that `code` writes to its rooms, one for each of a column.
///
/// # Safety
/// `code` must write every room.
unsafe fn append_blocks<const D: usize, const P: usize>(
    columns: &[&[u8]],
    parity: &mut [BytesMut],
    code: impl FnOnce([&[Block]; D], [&mut [Room]; P]),
) {
    let columns: [&[u8]; D] = columns.try_into().expect("as many as announced");
    let parity: &mut [BytesMut; P] = parity.try_into().expect("as many as announced");
    let columns = columns.map(|column| column.as_chunks().0);
    let block_count = columns[0].len();
    let size_bytes = columns[0].as_flattened().len();
    parity.iter_mut().for_each(|shard| shard.reserve(size_bytes));
    let rooms = parity.each_mut().map(|shard| shard.spare_capacity_mut().as_chunks_mut().0);
    code(columns.map(|column| &column[..block_count]), rooms.map(|room| &mut room[..block_count]));
    for shard in parity {
        // SAFETY: there was room, and it is written.
        unsafe { shard.set_len(shard.len() + size_bytes) };
    }
}
