//! A mirrored partition against a source that restarts, loses records, is recreated, compacts, lets
//! records go, and answers late, twice, out of order, and by whoever leads no more. Every broken rule must be caught.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../common/mod.rs"]
mod common;
mod source;
mod world;

use meridian_mirror::mutation::Mutation;
use proptest::prelude::*;
use proptest::test_runner::Config;

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
        1 => Just(Op::HideElection),
        1 => any::<u8>().prop_map(Op::Compact),
        1 => any::<u8>().prop_map(Op::LetGo),
        1 => prop_oneof![4 => Just(Op::Disconnect), 1 => Just(Op::Recreate), 1 => Just(Op::Delete)],
        12 => any::<u8>().prop_map(Op::Serve),
        4 => any::<u8>().prop_map(Op::ServeAndGoOn),
        10 => any::<u8>().prop_map(Op::Deliver),
        2 => any::<u8>().prop_map(Op::DeliverAgain),
        4 => Just(Op::CommitHere),
        1 => any::<u8>().prop_map(Op::RestartHere),
        6 => Just(Op::Time),
    ];
    // Answers to earlier questions come when the same leader was asked anew.
    let late = prop_oneof![
        4 => (1_u8..4).prop_map(Op::Produce),
        4 => Just(Op::CommitAtSource),
        2 => Just(Op::Disconnect),
        8 => any::<u8>().prop_map(Op::Serve),
        8 => any::<u8>().prop_map(Op::Deliver),
        2 => any::<u8>().prop_map(Op::DeliverAgain),
        4 => Just(Op::Time),
    ];
    prop_oneof![
        3 => prop::collection::vec(op, 0..OPS_MAX),
        1 => prop::collection::vec(late, 0..OPS_MAX),
    ]
}

fn holds(is_compacted: bool, ops: &[Op], mutation: Option<Mutation>) -> Result<(), String> {
    let has_deposed = ops.iter().any(|op| matches!(op, Op::HideElection));
    let mut world = World::new(is_compacted, has_deposed, mutation);
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

#[test]
fn an_answer_of_a_run_that_comes_twice_leaves_no_mirror_waiting() {
    let mut ops = vec![Op::Produce(1); 4];
    ops.push(Op::Restart);
    ops.extend([Op::Produce(1); 6]);
    ops.extend([Op::Serve(0), Op::Serve(0), Op::CommitAtSource, Op::Serve(0), Op::Deliver(0)]);
    ops.extend([Op::ServeAndGoOn(0), Op::DeliverAgain(0), Op::Serve(0)]);
    ops.extend([Op::Deliver(7), Op::Deliver(0), Op::UncleanElection(1)]);
    assert_eq!(holds(true, &ops, None), Ok(()));
}

#[test]
fn every_broken_rule_is_caught() {
    common::hunt(
        &Mutation::ALL,
        20_000,
        &(any::<bool>(), ops()),
        |(is_compacted, ops), mutation| holds(is_compacted, &ops, mutation),
    );
}
