use meridian_admin_api::Besides;
use meridian_admin_api::cluster::Geometry;
use meridian_storage::store::ScrubStatus;

use super::*;
use crate::runtime::histogram::HistogramSample;

fn snapshot() -> Snapshot {
    Snapshot {
        identity: [
            ("node", "1".to_owned()),
            ("datacenter", "a \"b\" \\c".to_owned()),
            ("rack", "r".to_owned()),
            ("version", "0".to_owned()),
        ],
        groups: [
            (Tolerance::Datacenter, Tolerance::DatacenterAndRack, 1),
            (Tolerance::TwoRacks, Tolerance::TwoRacks, 2),
        ]
        .map(|(tolerates, built_for, id)| GroupStatus {
            id,
            geometry: Geometry::Mirror3Dc,
            tolerates,
            built_for,
            partitions: 0,
            besides: Besides::new(),
        })
        .into(),
        nodes_by_liveness: [2, 0, 1],
        partitions: 7,
        leaderless: 0,
        conditions: vec!["disk_full"],
        raft: Some(Leadership { term: 3, leader: None, is_self: false }),
        raft_counters: RaftCounters { snapshots_taken_total: 6, ..RaftCounters::default() },
        led: 4,
        taking_over: 1,
        transactions: OngoingCounts { ongoing: 3, hanging: 2 },
        sizes: sizes::SizeCounts::default(),
        disk: Some(Disk {
            standing: Standing::Good,
            capacity_bytes: 1 << 41,
            usage: DiskUsage { used_bytes: 1 << 40, ..DiskUsage::default() },
            tiers: Some(TierUsage { fast_used_bytes: 8, ..TierUsage::default() }),
            counters: Counters { refused_full: 5, ..Counters::default() },
            scrub: ScrubReport {
                status: ScrubStatus { unreadable: 3, ..ScrubStatus::default() },
                began_at_ms: None,
                ended_at_ms: 1_500,
                due_at_ms: None,
            },
        }),
        copies: CopiesCounts { made_bytes: 70, freed_bytes: 50 },
        copies_surplus_bytes: 20,
        cold: ColdCounts { repaired_parts: 6, ..ColdCounts::default() },
        compaction: CompactionCounts { dirty_bytes: 9, ..CompactionCounts::default() },
        failed_reads: 3,
        ahead: AheadCounts { hits: 21, dropped_bytes: 22, ..AheadCounts::default() },
        disk_reads_waiting: 23,
        chores: Chore::ALL.map(|_| ChoreCount { refused: 4, ..ChoreCount::default() }),
        transport: None,
        links: vec![link()],
        certificates: vec![ended()],
        contracts: vec![(1500, Verdict::Free), (200, Verdict::Refused)],
        kafka: kafka::Metrics::default().samples(),
        named: vec![named("a\nb\"c\\d")],
        throttled: Duration::from_millis(1500),
        histograms: histograms(),
        log_memory: (0, 0),
        process: Process {
            resident_bytes: Some(4096),
            cpu_seconds: Some(1.25),
            start_seconds: Some(17.5),
            open_fds: Some(12),
            max_fds: Some(1024),
        },
    }
}

fn link() -> Link {
    let metrics = LinkMetrics {
        partitions: [("mirroring", 3), ("gap", 1)].into(),
        lag: Duration::from_millis(1500),
        mirrored_bytes: 77,
        wire_bytes: 7,
        ..LinkMetrics::default()
    };
    Link { name: "west".to_owned(), metrics, differences: 2 }
}

fn histograms() -> Histograms {
    let cumulative = [1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3];
    let took = HistogramSample { cumulative, sum_s: 9.5 };
    Histograms {
        requests: vec![kafka::DurationSample { api: "Produce", took }],
        disk_syncs: Some(took),
        puts: [("west".to_owned(), took)].into(),
        takeovers: took,
    }
}

fn named(client_id: &str) -> kafka::NamedSample {
    let labels = vec![("user", "al".to_owned()), ("client_id", client_id.to_owned())];
    kafka::NamedSample { name: "meridian_client_throttled_seconds_total", labels, value: 0.5 }
}

fn ended() -> certificates::Certificate {
    let name = "secure".to_owned();
    certificates::Certificate { usage: "listener", name, left_seconds: -60.0 }
}

fn text() -> String {
    String::from_utf8(render(&snapshot()).to_vec()).unwrap()
}

#[test]
fn values_are_under_their_names() {
    let text = text();
    for line in [
        "meridian_mirror_partitions{link=\"west\",state=\"gap\"} 1",
        "meridian_mirror_lag_seconds{link=\"west\"} 1.5",
        "meridian_mirror_contract_lag_seconds 1.5",
        "meridian_mirror_contract_partitions{verdict=\"refused\"} 1",
        "meridian_mirror_contract_partitions{verdict=\"throttled\"} 0",
        "meridian_mirror_bytes_total{link=\"west\"} 77",
        "meridian_link_wire_bytes_total{link=\"west\"} 7",
        "meridian_mirror_differences{link=\"west\"} 2",
        "# TYPE meridian_tolerates gauge",
        "meridian_tolerates{group=\"1\",built_for=\"DC + rack\",failure=\"DC\"} 1",
        "meridian_tolerates{group=\"1\",built_for=\"DC + rack\",failure=\"DC + rack\"} 0",
        "meridian_tolerates{group=\"2\",built_for=\"2 racks\",failure=\"2 racks\"} 1",
        "meridian_groups_short 1",
        "meridian_conditions{condition=\"disk_full\",severity=\"threatens\"} 1",
        "meridian_conditions{condition=\"not_committing\",severity=\"stops\"} 0",
        "meridian_nodes{liveness=\"dead\"} 1",
        "meridian_certificate_expires_seconds{use=\"listener\",name=\"secure\"} -60",
        "meridian_raft_is_leader 0",
        "meridian_raft_snapshots_taken_total 6",
        "meridian_transactions_ongoing 3",
        "meridian_transactions_hanging 2",
        "meridian_disk_used_bytes 1099511627776",
        "meridian_disk_refusals_total{reason=\"full\"} 5",
        "meridian_disk_standing{standing=\"good\"} 1",
        "meridian_disk_unreadable_blobs 3",
        "meridian_disk_scrub_ended_timestamp_seconds 1.5",
        "meridian_cold_repaired_parts_total 6",
        "meridian_tier_used_bytes{tier=\"fast\"} 8",
        "meridian_compaction_dirty_bytes 9",
        "meridian_reads_failed_total 3",
        "meridian_read_ahead_total{found=\"here\"} 21",
        "meridian_read_ahead_dropped_bytes_total 22",
        "meridian_disk_reads_waiting 23",
        "meridian_chore_refused_total{chore=\"offset_compaction\"} 4",
        "meridian_kafka_connections 0",
        "process_cpu_seconds_total 1.25",
        "process_start_time_seconds 17.5",
        "process_open_fds 12",
        "process_max_fds 1024",
        "meridian_disk_capacity_bytes 2199023255552",
        "meridian_kafka_throttled_seconds_total 1.5",
        "meridian_disk_sync_duration_seconds_bucket{le=\"0.001\"} 1",
        "meridian_disk_sync_duration_seconds_count 3",
        "meridian_put_duration_seconds_bucket{datacenter=\"west\",le=\"+Inf\"} 3",
        "meridian_takeover_duration_seconds_sum 9.5",
        r#"meridian_client_throttled_seconds_total{user="al",client_id="a\nb\"c\\d"} 0.5"#,
        "# TYPE meridian_kafka_request_duration_seconds histogram",
        "meridian_kafka_request_duration_seconds_bucket{api=\"Produce\",le=\"0.002\"} 2",
        "meridian_kafka_request_duration_seconds_bucket{api=\"Produce\",le=\"+Inf\"} 3",
        "meridian_kafka_request_duration_seconds_sum{api=\"Produce\"} 9.5",
        "meridian_kafka_request_duration_seconds_count{api=\"Produce\"} 3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(text.contains(r#"datacenter="a \"b\" \\c""#));
}

#[test]
fn names_are_unique_and_end_in_their_unit() {
    let mut names: Vec<&str> = families().map(|family| family.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), families().count());
    for family in families() {
        assert_eq!(family.name.ends_with("_total"), family.kind == Kind::Counter);
        assert!(family.help.ends_with('.'), "{}", family.name);
    }
    for histogram in histograms::FAMILIES {
        assert!(histogram.name.ends_with("_seconds") && histogram.help.ends_with('.'));
    }
}

#[test]
fn the_whole_text_is_as_prometheus_wants_it() {
    assert_eq!(lint::lint(&text()), [""; 0]);
}

/// For one release: then they go, and this test with them.
#[test]
fn old_names_have_the_values_of_the_new_ones() {
    let text = text();
    for line in [
        "# TYPE meridian_nodes_count untyped",
        "meridian_nodes_count{liveness=\"dead\"} 1",
        "meridian_partitions_count 7",
        "meridian_condition_count{condition=\"disk_full\",severity=\"threatens\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    for (before, now) in renamed::RENAMED {
        assert!(families().any(|family| family.name == *now), "{now}");
        let count = |name: &str| {
            let of = |line: &&str| line.split(['{', ' ']).next() == Some(name);
            text.lines().filter(of).count()
        };
        assert_eq!(count(before), count(now), "{before}");
    }
}

#[test]
fn all_that_the_front_counts_is_listed() {
    for sample in snapshot().kafka {
        assert!(families().any(|family| family.name == sample.name), "{}", sample.name);
    }
}
