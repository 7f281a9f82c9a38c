//! Parity as sums of products in GF(2^16), and checksums of what is at hand for that: each byte is loaded
//! once, where the library goes over its memory several times.
//!
//! Each data shard is multiplied by a number that depends on it and the parity shard alone. That is linear
//! over bits, so the library tells all of it by the products of 1, 2, 4 .. 2^15. How a vector is multiplied
//! and summed depends on the processor: by [`matrices`] of bits, or by [`tables`] of nibbles.
#![expect(unsafe_code, reason = "vectors are loaded and stored by address")]

mod matrices;
mod tables;

use std::mem::MaybeUninit;

use bytes::BytesMut;

use super::coder::{Coder, library};

/// What shards consist of: the low bytes of 32 symbols, then their high bytes.
type Block = [u8; 64];
/// Where a block is to be.
type Room = [MaybeUninit<u8>; size_of::<Block>()];
const SYMBOL_COUNT: usize = 32;
/// Stands for no bytes, and for zeros.
const NOTHING: Block = [0; size_of::<Block>()];

/// All that the processor has the instructions for, fastest first; none for a code of another shape.
pub(super) fn coders(data_count: usize, parity_count: usize) -> Vec<Box<dyn Coder>> {
    let (by_matrices, by_tables) = match (data_count, parity_count) {
        (4, 2) => (matrices::coder::<4, 2>(), tables::coder_4_2()),
        (5, 4) => (matrices::coder::<5, 4>(), tables::coder_5_4()),
        _ => (None, None),
    };
    by_matrices.into_iter().chain(by_tables).collect()
}

/// For each data shard and each parity shard, the products of 1, 2, 4 .. 2^15 as the first symbols of a block.
fn products_of_powers<const D: usize, const P: usize>() -> [[Block; P]; D] {
    let mut powers = NOTHING;
    for bit in 0..8 {
        powers[bit] = 1 << bit;
        powers[SYMBOL_COUNT + 8 + bit] = 1 << bit;
    }
    let mut library = library(D, P);
    std::array::from_fn(|number| {
        for other in 0..D {
            let shard = if other == number { powers } else { NOTHING };
            library.add_original_shard(shard).expect("a shard of that size");
        }
        let coded = library.encode().expect("all shards were added");
        std::array::from_fn(|parity| {
            let products = coded.recovery(parity).expect("as many as announced");
            products.try_into().expect("one block")
        })
    })
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
