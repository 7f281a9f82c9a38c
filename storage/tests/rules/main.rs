//! Models of rules that no store sees whole: what is cold, and two disks that are one. Random histories must hold,
//! and every broken rule must be noticed.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cold;
mod tiers;

use meridian_storage::mutation::{Mutation, Mutations};
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Histories that are tried until one shows a broken rule.
const HISTORIES_MAX: u32 = 20_000;

/// Breaks one rule after the other, and demands for each a history in which the model notices it. The same
/// histories are tried each time.
#[cfg_attr(not(feature = "mutations"), expect(dead_code, reason = "rules can't be broken then"))]
fn hunt<S: Strategy>(
    mutations: &[Mutation],
    histories: &S,
    holds: impl Fn(&S::Value, Mutations) -> Result<(), String>,
) {
    for mutation in mutations {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let found = (1..=HISTORIES_MAX).find_map(|tried| {
            let history = histories.new_tree(&mut runner).ok()?.current();
            Some((tried, holds(&history, Mutations(Some(*mutation))).err()?))
        });
        println!("{mutation:?}: {found:?}");
        assert!(found.is_some(), "{mutation:?} is not noticed");
    }
}
