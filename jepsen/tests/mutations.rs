//! Every broken rule that a few seeds find is found. Long: run it with `--profile fast`. The rare ones take a
//! quarter of an hour of two cores: `sim mutations` hunts them all.

use meridian_jepsen::mutations::{Hunt, Method, hunt, method};
use meridian_storage::mutation::Mutation;

/// Seeds up to which a hunt is short.
const SHORT_HUNT_SEEDS: u64 = 10;

#[test]
fn every_mutation_of_a_short_hunt_is_found() {
    let is_short = |mutation: &Mutation| !matches!(method(*mutation), Method::Seeds(bound) if bound > SHORT_HUNT_SEEDS);
    let missed: Vec<Mutation> = Mutation::ALL
        .into_iter()
        .filter(is_short)
        .filter(|mutation| matches!(hunt(*mutation, 2), Hunt::NotFound))
        .collect();
    assert_eq!(missed, []);
}
