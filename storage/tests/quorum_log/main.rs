//! The real leader and takeover machines over a model of nine slots, under random schedules: lost,
//! doubled and reordered messages, leaders that die or do not know that they are replaced, slots
//! that stop, and disks that are wiped and synced again, always inside the failure model.

mod oracle;
mod slot;
mod world;

use std::cell::Cell;

use meridian_storage::mutation::Mutation;
use proptest::test_runner::{Config, TestCaseError, TestRng, TestRunner};

use world::World;

/// Runs one schedule; the number of records it acknowledged, or the promise it broke.
fn run(seed: u64, step_count: usize, mutation: Option<Mutation>) -> Result<usize, String> {
    let mut world = World::new(seed, mutation);
    world.run(step_count)?;
    Ok(world.acknowledged_count())
}

#[test]
fn the_promise_holds_under_random_schedules() {
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let acknowledged_count = Cell::new(0);
    let schedules = (proptest::num::u64::ANY, 100_usize..3000);
    let result = runner.run(&schedules, |(seed, step_count)| {
        let count = run(seed, step_count, None).map_err(TestCaseError::fail)?;
        acknowledged_count.set(acknowledged_count.get() + count);
        Ok(())
    });
    result.unwrap();
    let count = acknowledged_count.get();
    assert!(count > 2000, "only {count} records were acknowledged");
}

/// Each broken rule, with a number of schedules within which it is caught.
///
/// Not here: `KeepOnFenced`, because a leader that goes on can't gather a put quorum, which would
/// meet its successor's fence quorum, so it acknowledges nothing new; `IncarnationIgnored` and
/// `WipedCounts`, because a disk must be wiped and synced within the life of one put. Each has a
/// directed test in `leader/tests.rs` or `takeover/tests.rs`.
#[cfg(feature = "mutations")]
#[test]
fn every_broken_rule_is_caught() {
    let broken_rules = [
        (Mutation::PutQuorumIsTwoDatacenters, 10),
        (Mutation::AckOutOfOrder, 20),
        (Mutation::ServeBeforeCommitted, 10),
        (Mutation::FenceQuorumIsPutQuorum, 100),
        (Mutation::DropTail, 20),
        (Mutation::HalfStartEstablished, 400),
        (Mutation::LinkInDoubt, 20),
        (Mutation::SilenceIsGap, 400),
        (Mutation::CheckpointInDoubt, 2000),
    ];
    for (mutation, schedule_count) in broken_rules {
        let caught = (0..schedule_count).any(|seed| run(seed, 1500, Some(mutation)).is_err());
        assert!(caught, "{mutation:?} passed {schedule_count} schedules");
    }
}
