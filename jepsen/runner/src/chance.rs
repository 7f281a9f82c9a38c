//! Chance: one seeded generator per part of the world, all grown from the run's seed.
//!
//! Each part (network, disks, nemesis, every client) draws from a branch of its own, so that a
//! change in one does not shift what the others draw.

use std::time::Duration;

use meridian_base::env::{Rng, SplitMix};

/// A branch of the run's tree of random numbers.
#[derive(Clone, Debug)]
pub struct Chance(SplitMix);

impl Chance {
    /// The root for `seed`.
    pub fn new(seed: u64) -> Self {
        let mut root = SplitMix::new(seed ^ 0x6d65_7269_6469_616e);
        root.next_u64();
        Self(root)
    }

    /// A branch that draws on its own from here on.
    pub fn branch(&mut self) -> Self {
        Self(SplitMix::new(self.0.next_u64()))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// So many random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.bits().to_le_bytes()).flatten().take(count).collect()
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound as u64) as usize
    }

    /// True `per_mille` times in a thousand.
    pub fn per_mille(&mut self, per_mille: u32) -> bool {
        self.0.below(1000) < u64::from(per_mille)
    }

    /// A duration from `low` up to, not including, `high`.
    pub fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let width_us = high.saturating_sub(low).as_micros() as u64;
        low + Duration::from_micros(self.0.below(width_us))
    }

    /// A duration around `mean`: often short, now and then several times longer.
    pub fn around(&mut self, mean: Duration) -> Duration {
        let (a, b) = (self.0.below(1000) + 1, self.0.below(1000) + 1);
        let mean_us = mean.as_micros() as u64;
        Duration::from_micros(mean_us * a / b.max(125))
    }

    /// One of `choices`, `None` if there is none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        choices.get(self.below(choices.len())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_do_not_disturb_each_other() {
        let mut a = Chance::new(5);
        let mut b = Chance::new(5);
        let mut first = a.branch();
        first.bits();
        b.branch();
        assert_eq!(a.branch().bits(), b.branch().bits());
    }

    #[test]
    fn durations_stay_in_their_range() {
        let mut chance = Chance::new(1);
        let (low, high) = (Duration::from_millis(2), Duration::from_millis(3));
        for _ in 0..1000 {
            let drawn = chance.between(low, high);
            assert!(low <= drawn && drawn < high);
        }
    }
}
