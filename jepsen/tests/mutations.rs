//! Every broken rule is found within its bound. Long: run it with `--profile fast`.

use meridian_jepsen::mutations::{Hunt, hunt};
use meridian_storage::mutation::Mutation;

#[test]
fn every_mutation_is_found() {
    let missed: Vec<Mutation> = Mutation::ALL
        .into_iter()
        .filter(|mutation| matches!(hunt(*mutation, 2), Hunt::NotFound))
        .collect();
    assert_eq!(missed, []);
}
