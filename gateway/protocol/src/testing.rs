//! Arbitrary messages for the tests of this crate.

use crate::wire::{Encoding, Wire};

/// A small deterministic source of values.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "part of a public trait, in tests only")]
pub struct Sampler {
    state: u64,
    /// How deep in nested arrays the value is: inner arrays are kept short.
    values: u32,
}

/// Tags from here on are no other implementation's.
pub(crate) const OWN_TAG_MIN: u32 = 10_000;
/// After this many values all arrays are empty, so that messages stay small.
const VALUES_MAX: u32 = 2000;

impl Sampler {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed, values: 0 }
    }

    /// A message of type `T` in this form.
    pub(crate) fn message<T: Wire>(seed: u64, encoding: Encoding) -> T {
        T::sample(&mut Self::new(seed), encoding)
    }

    fn next(&mut self) -> u64 {
        self.values += 1;
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    pub(crate) fn count(&mut self) -> usize {
        if self.values > VALUES_MAX { 0 } else { (self.next() % 4) as usize }
    }

    pub(crate) fn choose<'a, T>(&mut self, values: &'a [T]) -> &'a T {
        &values[(self.next() % values.len() as u64) as usize]
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let small = self.coin();
        let mut bytes = [0; N];
        for byte in bytes.iter_mut().skip(if small { N - 1 } else { 0 }) {
            *byte = self.next().to_le_bytes()[0];
        }
        bytes
    }

    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        // Now and then large enough to be sent without a copy.
        let length = if self.next().is_multiple_of(16) { 1500 } else { self.next() % 40 };
        (0..length).map(|i| i.to_le_bytes()[0]).collect()
    }

    pub(crate) fn string(&mut self) -> String {
        let length = if self.next().is_multiple_of(16) { 200 } else { self.next() % 12 };
        (0..length).map(|_| *self.choose(&['a', 'Z', '0', '.', 'é', '漢'])).collect()
    }
}
