//! The CRC-32C of shards, and of bytes put one after another, from their own checksums.
//!
//! A checksum is a polynomial over GF(2) modulo Castagnoli's; that of `a` followed by `n` bytes is that
//! of `a` times x^(8n), plus that of the bytes. The factor depends on `n` alone: a few multiplications,
//! where `crc32c::crc32c_combine` squares matrices for 30 us each time it is called.

use crc_fast::{CrcAlgorithm, Digest};

/// Castagnoli's polynomial, its lowest power in the highest bit, as in all constants here.
const POLYNOMIAL: u32 = 0x82F6_3B78;
/// The polynomial 1.
const ONE: u32 = 1 << 31;
/// x^(2^i), for each bit `i` of eight times a length.
const POWERS: [u32; 35] = {
    let mut powers = [ONE >> 1; 35];
    let mut bit = 1;
    while bit < powers.len() {
        powers[bit] = multiply(powers[bit - 1], powers[bit - 1]);
        bit += 1;
    }
    powers
};

/// What a checksum is before it is inverted, all zero: to begin with it sums bytes as a plain polynomial.
#[cfg(target_arch = "x86_64")]
pub(super) const OF_ZERO_REGISTER: u32 = !0;
/// What each 16 bytes are multiplied with, carry-less, when 64 more follow: their last eight, and their
/// first. A product of 64 bits and 32, lowest powers highest, stands 33 powers too high among 128.
#[cfg(target_arch = "x86_64")]
pub(super) const FOLD: (u32, u32) = (power(8 * 64 - 33), power(8 * 64 + 64 - 33));

/// The checksum of bytes with checksum `before` and of these behind them. For shards: what is small `crc32c` sums as fast.
pub(super) fn append(before: u32, bytes: &[u8]) -> u32 {
    // A state is not inverted yet.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!before));
    digest.update(bytes);
    digest.finalize() as u32
}

/// What a checksum is multiplied with when this many bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shift(u32);

impl Shift {
    pub(super) fn by(size_bytes: u32) -> Self {
        Self(power(8 * u64::from(size_bytes)))
    }

    /// The checksum of bytes with checksum `before`, and of those after them with checksum `after`.
    pub(super) fn join(self, before: u32, after: u32) -> u32 {
        multiply(self.0, before) ^ after
    }
}

/// x^exponent.
const fn power(exponent: u64) -> u32 {
    let (mut product, mut bit) = (ONE, 0);
    while exponent >> bit > 0 {
        if exponent >> bit & 1 == 1 {
            product = multiply(product, POWERS[bit]);
        }
        bit += 1;
    }
    product
}

const fn multiply(left: u32, mut right: u32) -> u32 {
    let (mut product, mut bit) = (0, ONE);
    while bit != 0 {
        // Bits of checksums are as good as random: masks, where branches would be mispredicted.
        product ^= right & mask(left & bit);
        right = right >> 1 ^ POLYNOMIAL & mask(right & 1);
        bit >>= 1;
    }
    product
}

/// All bits set, if any is.
const fn mask(bits: u32) -> u32 {
    0u32.wrapping_sub((bits != 0) as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn joined_checksums_are_that_of_the_bytes_joined(
            before in prop::collection::vec(any::<u8>(), 0..3000),
            after in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let joined = Shift::by(after.len() as u32)
                .join(crc32c::crc32c(&before), crc32c::crc32c(&after));
            prop_assert_eq!(joined, crc32c::crc32c(&[before, after].concat()));
        }

        #[test]
        fn appended_checksums_are_those_of_the_other_library(
            before in prop::collection::vec(any::<u8>(), 0..3000),
            after in prop::collection::vec(any::<u8>(), 0..70_000),
        ) {
            let appended = append(append(0, &before), &after);
            prop_assert_eq!(appended, crc32c::crc32c(&[before, after].concat()));
        }

        #[test]
        fn lengths_of_all_bits_are_those_of_the_library(size_bytes: u32, before: u32, after: u32) {
            let known = crc32c::crc32c_combine(before, after, size_bytes as usize);
            let known = if size_bytes == 0 { before ^ after } else { known };
            prop_assert_eq!(Shift::by(size_bytes).join(before, after), known);
        }
    }
}
