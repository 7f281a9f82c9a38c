//! The real leader and takeover machines over a model of nine slots, under random schedules: lost,
//! doubled and reordered messages, leaders that die or do not know that they are replaced, slots
//! that stop, and disks that are wiped and synced again, always inside the failure model.

mod oracle;
mod slot;
mod world;

use meridian_storage::mutation::Mutation;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

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
    let mut runner = TestRunner::new_with_rng(
        config.clone(),
        proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm),
    );
    let mut acknowledged_count = 0;
    let schedules = (proptest::num::u64::ANY, 100_usize..3000);
    let counter = std::cell::RefCell::new(&mut acknowledged_count);
    runner
        .run(&schedules, |(seed, step_count)| {
            **counter.borrow_mut() += run(seed, step_count, None).map_err(TestCaseError::fail)?;
            Ok(())
        })
        .unwrap();
    assert!(acknowledged_count > 2000, "only {acknowledged_count} records were acknowledged");
}
