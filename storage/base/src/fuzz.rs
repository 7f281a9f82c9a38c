//! Fuzz targets: what every decoder must bear.
//!
//! A [`Target`] is one entry function for any bytes and a few valid inputs to begin from. Ordinary
//! tests [`exercise`](Target::exercise) it with mutants of those; `cargo xtask fuzz` lets libFuzzer
//! look for better ones. Each crate lists its own targets; `gateway/fuzz` joins the lists.

use std::fmt::Write as _;
use std::panic::catch_unwind;

use crate::env::{Rng, SplitMix};

/// One decoder under attack.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Takes any bytes. It panics if the decoder breaks a promise, and only then.
    pub run: fn(&[u8]),
    /// Inputs that decode.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    /// Runs the seeds, every beginning of them, and `mutant_count` mutants drawn from `seed`.
    ///
    /// # Panics
    /// When the target does; says for which input.
    pub fn exercise(&self, seed: u64, mutant_count: u32) {
        let mut rng = SplitMix::new(seed);
        let seeds = (self.seeds)();
        assert!(!seeds.is_empty(), "{}: without seeds little is reached", self.name);
        for bytes in &seeds {
            let stride = bytes.len() / PREFIX_COUNT_MAX + 1;
            for end in (0..bytes.len()).step_by(stride).chain([bytes.len()]) {
                self.attempt(&bytes[..end]);
            }
        }
        for _ in 0..mutant_count {
            let mut bytes = match rng.below(8) {
                0 => (0..rng.below(200)).map(|_| rng.next_u64() as u8).collect(),
                _ => seeds[rng.below(seeds.len() as u64) as usize].clone(),
            };
            for _ in 0..=rng.below(4) {
                mutate(&mut bytes, &mut rng);
            }
            self.attempt(&bytes);
        }
    }

    fn attempt(&self, bytes: &[u8]) {
        if catch_unwind(|| (self.run)(bytes)).is_err() {
            let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
                let _infallible = write!(hex, "{byte:02x}");
                hex
            });
            panic!("{}: the panic above came of the input {hex}", self.name);
        }
    }
}

/// Exercises every target of a list; for a crate's own test.
///
/// # Panics
/// When a target does.
pub fn exercise_all(targets: &[Target], mutant_count: u32) {
    for (seed, target) in (1..).zip(targets) {
        target.exercise(seed, mutant_count);
    }
}

/// Beginnings of a seed that are tried.
const PREFIX_COUNT_MAX: usize = 500;
/// Values that lengths, counts and offsets go wrong at.
const EDGES: [u64; 8] =
    [0, 1, 0x7f, u8::MAX as u64, i32::MAX as u64, u32::MAX as u64, i64::MAX as u64, u64::MAX];

fn mutate(bytes: &mut Vec<u8>, rng: &mut SplitMix) {
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    let rest = bytes.len() - at;
    let run = rng.below(rest.min(16) as u64 + 1) as usize;
    match rng.below(6) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = rng.next_u64() as u8;
            }
        }
        2 | 3 => {
            let edge = EDGES[rng.below(EDGES.len() as u64) as usize].to_be_bytes();
            let width = [1, 2, 4, 8][rng.below(4) as usize].min(rest);
            bytes[at..at + width].copy_from_slice(&edge[8 - width..]);
        }
        4 => drop(bytes.drain(at..at + run)),
        _ => {
            let copied = bytes[at..at + run].to_vec();
            bytes.splice(at..at, copied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRITTLE: Target = Target {
        name: "brittle",
        run: |bytes| assert_ne!(bytes.first(), Some(&0xff), "cannot bear this"),
        seeds: || vec![vec![1, 2, 3]],
    };

    #[test]
    fn a_decoder_that_panics_is_found() {
        let found = catch_unwind(|| BRITTLE.exercise(1, 1000)).unwrap_err();
        let message = found.downcast_ref::<String>().unwrap();
        assert!(message.starts_with("brittle: the panic above came of the input ff"), "{message}");
    }

    #[test]
    fn the_same_seed_tries_the_same_inputs() {
        let mutants = |seed| -> Vec<Vec<u8>> {
            let mut rng = SplitMix::new(seed);
            let one = |rng: &mut SplitMix| {
                let mut bytes = vec![7; 20];
                mutate(&mut bytes, rng);
                bytes
            };
            (0..50).map(|_| one(&mut rng)).collect()
        };
        assert_eq!(mutants(3), mutants(3));
        assert_ne!(mutants(3), mutants(4));
    }
}
