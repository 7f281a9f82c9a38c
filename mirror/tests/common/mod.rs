//! What every model of a rule needs.

use meridian_mirror::mutation::Mutation;
use proptest::strategy::{Strategy, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Breaks one rule after the other, and demands for each a history in which the model notices it. The
/// same histories are tried each time.
pub(crate) fn hunt<S: Strategy>(
    mutations: &[Mutation],
    histories_max: u32,
    histories: &S,
    holds: impl Fn(S::Value, Option<Mutation>) -> Result<(), String>,
) {
    for mutation in mutations {
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let reason = (0..histories_max).find_map(|_| {
            let history = histories.new_tree(&mut runner).ok()?.current();
            holds(history, Some(*mutation)).err()
        });
        println!("{mutation:?}: {reason:?}");
        assert!(reason.is_some(), "{mutation:?} is not noticed");
    }
}
