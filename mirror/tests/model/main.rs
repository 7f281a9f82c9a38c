//! A mirrored partition against a source that restarts, loses records, is recreated, compacts, lets
//! records go, and answers late, twice and out of order. Every broken rule must be caught.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod source;
mod world;

use meridian_mirror::mutation::Mutation;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use world::{Op, World};

/// Operations of one history.
const OPS_MAX: usize = 120;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (1_u8..4).prop_map(Op::Produce),
        6 => Just(Op::CommitAtSource),
        1 => Just(Op::Restart),
        1 => (0_u8..6).prop_map(Op::HighWatermarkLags),
        1 => (1_u8..4).prop_map(Op::UncleanElection),
        1 => (1_u8..4).prop_map(Op::RestoreOldDisk),
        1 => any::<u8>().prop_map(Op::Compact),
        1 => any::<u8>().prop_map(Op::LetGo),
        1 => prop_oneof![4 => Just(Op::Disconnect), 1 => Just(Op::Recreate), 1 => Just(Op::Delete)],
        12 => any::<u8>().prop_map(Op::Serve),
        10 => any::<u8>().prop_map(Op::Deliver),
        2 => any::<u8>().prop_map(Op::DeliverAgain),
        4 => Just(Op::CommitHere),
        1 => any::<u8>().prop_map(Op::RestartHere),
        6 => Just(Op::Time),
    ];
    prop::collection::vec(op, 0..OPS_MAX)
}

fn holds(is_compacted: bool, ops: &[Op], mutation: Option<Mutation>) -> Result<(), String> {
    let mut world = World::new(is_compacted, mutation);
    for op in ops {
        world.act(*op)?;
    }
    world.settle()?;
    world.check_at_the_end()
}

proptest! {
    #![proptest_config(Config { cases: 1000, ..Config::default() })]

    #[test]
    fn a_mirror_is_a_prefix_of_its_source_or_says_why_not(
        is_compacted in any::<bool>(),
        ops in ops(),
    ) {
        prop_assert_eq!(holds(is_compacted, &ops, None), Ok(()));
    }
}

/// A history that shows that the rule was broken, if there is one among so many.
fn caught(mutation: Mutation) -> Option<String> {
    const HISTORIES_MAX: u32 = 5_000;
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = (any::<bool>(), ops());
    (0..HISTORIES_MAX).find_map(|_| {
        let (is_compacted, ops) = strategy.new_tree(&mut runner).unwrap().current();
        holds(is_compacted, &ops, Some(mutation)).err()
    })
}

#[test]
fn every_broken_rule_is_caught() {
    for mutation in Mutation::ALL {
        let reason = caught(mutation);
        println!("{mutation:?}: {reason:?}");
        assert!(reason.is_some(), "{mutation:?} is not noticed");
    }
}
