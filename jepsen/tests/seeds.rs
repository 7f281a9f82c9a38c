//! Fixed seeds, run with every commit.

use std::time::Duration;

use meridian_jepsen::sim::{Shape, SimConfig, Workload, run};
use meridian_jepsen::trace::Detail;

#[test]
fn no_seed_breaks_a_promise() {
    for seed in 1..=6 {
        let report = run(SimConfig::new(seed, Workload::Log, Duration::from_secs(60)));
        assert_eq!(report.violation, None, "sim replay {seed} --time 60s --verbose");
        assert!(report.counters.acknowledged_count > 500, "{report:?}");
        assert!(report.counters.transaction_count > 20, "{report:?}");
        assert!(report.counters.takeover_count > 5, "{report:?}");
    }
}

#[test]
fn no_seed_breaks_a_promise_of_coordinators() {
    for seed in 1..=3 {
        let report = run(SimConfig::new(seed, Workload::Groups, Duration::from_secs(60)));
        assert_eq!(report.violation, None, "sim replay {seed} --time 60s --workload groups");
        assert!(report.counters.position_count > 100, "{report:?}");
        assert!(report.counters.transaction_count > 20, "{report:?}");
        assert!(report.counters.takeover_count > 5, "{report:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let runs = [
        (Workload::Log, Shape::Mirror3Dc),
        (Workload::Groups, Shape::Mirror3Dc),
        (Workload::Log, Shape::Block42),
        (Workload::Log, Shape::Cold),
        (Workload::Log, Shape::Object),
        (Workload::Log, Shape::Federation),
    ];
    for (workload, shape) in runs {
        let digest = |seed| {
            let config = SimConfig::new(seed, workload, Duration::from_secs(30));
            run(SimConfig { shape, detail: Detail::Digest, ..config }).digest
        };
        let first: Vec<u64> = (1..=4).map(digest).collect();
        let second: Vec<u64> = (1..=4).map(digest).collect();
        assert_eq!(first, second);
        assert_ne!(first[0], first[1]);
    }
}

#[test]
fn no_seed_breaks_a_promise_of_records_in_parts() {
    for seed in 1..=3 {
        let config = SimConfig::new(seed, Workload::Log, Duration::from_secs(60));
        let report = run(SimConfig { shape: Shape::Block42, ..config });
        assert_eq!(report.violation, None, "sim replay {seed} --time 60s --shape block-4-2");
        assert!(report.counters.acknowledged_count > 500, "{report:?}");
        assert!(report.counters.decoded_count > 20, "{report:?}");
        assert!(report.counters.conversion_count >= 1, "{report:?}");
    }
}

#[test]
fn no_seed_breaks_a_promise_of_stripes() {
    for seed in 1..=3 {
        let config = SimConfig::new(seed, Workload::Log, Duration::from_secs(60));
        let report = run(SimConfig { shape: Shape::Cold, ..config });
        assert_eq!(report.violation, None, "sim replay {seed} --time 60s --shape cold");
        assert!(report.counters.acknowledged_count > 500, "{report:?}");
        assert!(report.counters.packed_count > 10, "{report:?}");
        assert!(report.counters.decoded_count > 20, "{report:?}");
    }
}

#[test]
fn no_seed_breaks_a_promise_of_objects() {
    for seed in 1..=3 {
        let config = SimConfig::new(seed, Workload::Log, Duration::from_secs(60));
        let report = run(SimConfig { shape: Shape::Object, ..config });
        assert_eq!(report.violation, None, "sim replay {seed} --time 60s --shape object");
        assert!(report.counters.acknowledged_count > 500, "{report:?}");
        assert!(report.counters.object_count > 10, "{report:?}");
        assert!(report.counters.object_deletion_count > 3, "{report:?}");
    }
}

#[test]
fn no_seed_breaks_a_promise_of_mirrors() {
    for seed in 1..=3 {
        let config = SimConfig::new(seed, Workload::Log, Duration::from_secs(60));
        let report = run(SimConfig { shape: Shape::Federation, ..config });
        assert_eq!(report.violation, None, "sim replay {seed} --time 60s --shape federation");
        assert!(report.counters.acknowledged_count > 500, "{report:?}");
        assert!(report.counters.mirrored_count > 100, "{report:?}");
    }
}
