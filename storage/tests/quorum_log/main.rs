//! The real leader and takeover machines over a model of nine slots in three datacenters, and of eight in one, there with
//! copies and with records in parts, under random schedules: lost, doubled and reordered messages, leaders that die or do not know that they are replaced,
//! slots that stop, and disks that are wiped and synced again, always inside the failure model.

mod oracle;
mod slot;
mod world;

use std::cell::Cell;

use meridian_base::topology::Geometry;
use meridian_storage::hot::Layout;
use meridian_storage::mutation::Mutation;
use proptest::test_runner::{Config, TestCaseError, TestRng, TestRunner};

use oracle::VALUE_SIZE_BYTES;
use world::World;

/// What a group is, and how records are put into it.
#[derive(Clone, Copy, Debug)]
struct Shape {
    geometry: Geometry,
    layout: Layout,
}

/// Blobs of one record are copies, those of two are in parts.
const IN_PARTS: Shape = Shape {
    geometry: Geometry::Block42,
    layout: Layout::Parts { blob_size_bytes_min: 2 * VALUE_SIZE_BYTES },
};
const SHAPES: [Shape; 3] = [
    Shape { geometry: Geometry::Mirror3Dc, layout: Layout::Copies },
    Shape { geometry: Geometry::Block42, layout: Layout::Copies },
    IN_PARTS,
];

/// The groups of a cluster of which the partition is in the first; if there are two it moves to and fro.
const CLUSTERS: [&[Shape]; 5] =
    [&[SHAPES[0]], &[SHAPES[1]], &[IN_PARTS], &[SHAPES[0], IN_PARTS], &[IN_PARTS, SHAPES[0]]];

/// Runs one schedule; the number of records it acknowledged, or the promise it broke.
fn run(
    shapes: &[Shape],
    seed: u64,
    step_count: usize,
    mutation: Option<Mutation>,
) -> Result<usize, String> {
    let mut world = World::new(shapes, seed, mutation);
    world.run(step_count)?;
    Ok(world.acknowledged_count())
}

#[test]
fn the_promise_holds_under_random_schedules() {
    for shapes in CLUSTERS {
        run_random_schedules(shapes);
    }
}

fn run_random_schedules(shapes: &[Shape]) {
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let acknowledged_count = Cell::new(0);
    let schedules = (proptest::num::u64::ANY, 100_usize..3000);
    let result = runner.run(&schedules, |(seed, step_count)| {
        let count = run(shapes, seed, step_count, None).map_err(TestCaseError::fail)?;
        acknowledged_count.set(acknowledged_count.get() + count);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{shapes:?}: {error}");
    }
    let count = acknowledged_count.get();
    assert!(count > 2000, "{shapes:?}: only {count} records were acknowledged");
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
    for shapes in CLUSTERS {
        hunt(shapes, &broken_rules);
    }
    let broken_rules_of_parts = Mutation::PARTS.map(|mutation| (mutation, 100));
    hunt(&[IN_PARTS], &broken_rules_of_parts);
    let broken_rules_of_moves = Mutation::MOVES.map(|mutation| (mutation, 400));
    hunt(&[SHAPES[0], IN_PARTS], &broken_rules_of_moves);
}

#[cfg(feature = "mutations")]
fn hunt(shapes: &[Shape], broken_rules: &[(Mutation, u64)]) {
    for (mutation, schedule_count) in broken_rules {
        let broken = |seed: u64| run(shapes, seed, 1500, Some(*mutation)).err();
        let caught = (0..*schedule_count).find_map(|seed| Some((seed, broken(seed)?)));
        println!("{shapes:?} {mutation:?}: {caught:?}");
        assert!(caught.is_some(), "{shapes:?}: {mutation:?} passed {schedule_count} schedules");
    }
}
