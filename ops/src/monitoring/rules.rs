//! The alerts. Each has a section of its name in `docs/operating/alerts.md`.

use std::fmt::Write as _;

/// Whom an alert is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    /// Somebody has to act now.
    Page,
    /// Somebody has to act in days.
    Ticket,
}

impl Severity {
    const fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Ticket => "ticket",
        }
    }
}

/// An alert.
#[derive(Debug)]
struct Alert {
    name: &'static str,
    severity: Severity,
    /// For how long the expression has to hold.
    after: &'static str,
    expr: &'static str,
    summary: &'static str,
}

const fn page(
    name: &'static str,
    after: &'static str,
    expr: &'static str,
    summary: &'static str,
) -> Alert {
    Alert { name, severity: Severity::Page, after, expr, summary }
}

const fn ticket(
    name: &'static str,
    after: &'static str,
    expr: &'static str,
    summary: &'static str,
) -> Alert {
    Alert { name, severity: Severity::Ticket, after, expr, summary }
}

const ALERTS: &[Alert] = &[
    page(
        "MeridianWritesStop",
        "1m",
        "max by (condition) (meridian_conditions{severity=\"stops\"}) > 0",
        "Some records are refused or not acknowledged: {{ $labels.condition }}",
    ),
    ticket(
        "MeridianWritesThreatened",
        "10m",
        "max by (condition) (meridian_conditions{severity=\"threatens\"}) > 0",
        "One more loss, or time alone, stops writes: {{ $labels.condition }}",
    ),
    page(
        "MeridianGroupNotServing",
        "1m",
        "max by (group) (meridian_tolerates{failure=\"not serving\"}) == 1",
        "Storage group {{ $labels.group }} takes no writes",
    ),
    ticket(
        "MeridianGroupShort",
        "5m",
        "max(meridian_groups_short) > 0",
        "{{ $value }} storage groups can lose less than they were built for",
    ),
    page(
        "MeridianLeaderless",
        "30s",
        "max(meridian_partitions_leaderless) > 0",
        "{{ $value }} partitions have no live leader",
    ),
    page(
        "MeridianTakeoverSlow",
        "1m",
        "meridian_partitions_taking_over > 0",
        "{{ $labels.instance }} does not finish to take {{ $value }} partitions over",
    ),
    page(
        "MeridianNoMetadataLeader",
        "30s",
        "meridian_raft_leader_known == 0",
        "{{ $labels.instance }} sees no leader of the metadata log",
    ),
    ticket(
        "MeridianNodeDead",
        "5m",
        "max(meridian_nodes{liveness=\"dead\"}) > 0",
        "{{ $value }} nodes are dead",
    ),
    ticket(
        "MeridianPeerDown",
        "2m",
        "meridian_peer_up == 0",
        "{{ $labels.instance }} has no connection to node {{ $labels.peer }}",
    ),
    ticket(
        "MeridianDiskNotGood",
        "10m",
        "meridian_disk_standing{standing=\"good\"} == 0",
        "The disk of {{ $labels.instance }} does not count",
    ),
    ticket(
        "MeridianDiskSpaceLow",
        "10m",
        "meridian_disk_free_bytes / meridian_disk_capacity_bytes < 0.15",
        "The disk of {{ $labels.instance }} has {{ $value | humanizePercentage }} of its room left",
    ),
    page(
        "MeridianDiskFullInADay",
        "1h",
        "predict_linear(meridian_disk_free_bytes[6h], 86400) < 0",
        "The disk of {{ $labels.instance }} is full in a day if it goes on as in the last six hours",
    ),
    ticket(
        "MeridianDiskSlow",
        "10m",
        "histogram_quantile(0.99, sum by (le, instance) (rate(meridian_disk_sync_duration_seconds_bucket[5m]))) > 0.5",
        "One of a hundred writes to the disk of {{ $labels.instance }} takes {{ $value | humanizeDuration }}",
    ),
    ticket(
        "MeridianDiskDamaged",
        "10m",
        "meridian_disk_unreadable_blobs > 0",
        "{{ $value }} damaged blobs on {{ $labels.instance }} cannot be mended now",
    ),
    ticket(
        "MeridianDiskCorrupt",
        "0s",
        "increase(meridian_disk_corrupt_total[1h]) > 0",
        "The disk of {{ $labels.instance }} has returned wrong bytes",
    ),
    page(
        "MeridianDiskConflict",
        "0s",
        "increase(meridian_disk_conflicts_total[1d]) > 0",
        "Two leaders have written in one generation at {{ $labels.instance }}",
    ),
    ticket(
        "MeridianScrubLate",
        "1h",
        "time() - meridian_disk_scrub_ended_timestamp_seconds > 2419200",
        "The disk of {{ $labels.instance }} was not checked for four weeks",
    ),
    page(
        "MeridianReadsFail",
        "5m",
        "increase(meridian_reads_failed_total[10m]) > 0",
        "No slot could give records that {{ $labels.instance }} was asked for",
    ),
    ticket(
        "MeridianChoreStuck",
        "1h",
        "increase(meridian_chore_refused_total[1h]) > 0 and increase(meridian_chore_done_total[1h]) == 0",
        "The chore {{ $labels.chore }} of {{ $labels.instance }} is refused each time",
    ),
    ticket(
        "MeridianRequestsSlow",
        "10m",
        "histogram_quantile(0.99, sum by (le, instance) (rate(meridian_kafka_request_duration_seconds_bucket{api=\"Produce\"}[5m]))) > 1",
        "One of a hundred produce requests to {{ $labels.instance }} takes {{ $value | humanizeDuration }}",
    ),
    ticket(
        "MeridianConnectionsRefused",
        "0s",
        "increase(meridian_kafka_connections_refused_total[10m]) > 0",
        "{{ $labels.instance }} refuses connections of clients",
    ),
    ticket(
        "MeridianClientMemoryFull",
        "5m",
        "meridian_kafka_memory_bytes / meridian_kafka_memory_limit_bytes > 0.95",
        "Clients of {{ $labels.instance }} wait for memory: {{ $labels.kind }}",
    ),
    ticket(
        "MeridianDescriptorsLow",
        "10m",
        "process_open_fds / process_max_fds > 0.8",
        "{{ $labels.instance }} has {{ $value | humanizePercentage }} of its file descriptors open",
    ),
    ticket(
        "MeridianLoginsFail",
        "10m",
        "sum by (instance) (rate(meridian_kafka_logins_total{result=\"failed\"}[5m])) > 1",
        "More than one login a second fails at {{ $labels.instance }}",
    ),
    ticket(
        "MeridianGroupBehind",
        "15m",
        "max by (group) (meridian_group_lag_seconds{group!=\"other\"}) > 600",
        "Group {{ $labels.group }} is {{ $value | humanizeDuration }} behind",
    ),
    ticket(
        "MeridianCertificateEnds",
        "1h",
        "min by (use, name) (meridian_certificate_expires_seconds) < 2592000",
        "The certificate of {{ $labels.use }} {{ $labels.name }} ends in {{ $value | humanizeDuration }}",
    ),
    page(
        "MeridianMirrorStopped",
        "5m",
        "sum by (link, state) (meridian_mirror_partitions{state!~\"verifying|catching-up|mirroring\"}) > 0",
        "{{ $value }} partitions of link {{ $labels.link }} are not mirrored: {{ $labels.state }}",
    ),
    ticket(
        "MeridianMirrorBehind",
        "5m",
        "max by (link) (meridian_mirror_lag_seconds) > 60",
        "Link {{ $labels.link }} is {{ $value | humanizeDuration }} behind",
    ),
    page(
        "MeridianMirrorDiffers",
        "0s",
        "max by (link) (meridian_mirror_differences) > 0",
        "A mirror over link {{ $labels.link }} differs from its source",
    ),
    page(
        "MeridianMirrorLagRefuses",
        "1m",
        "sum(meridian_mirror_contract_partitions{verdict=\"refused\"}) > 0",
        "Producers of {{ $value }} partitions are refused because no mirror is near",
    ),
    ticket(
        "MeridianObjectStoreFails",
        "10m",
        "increase(meridian_object_errors_total[10m]) > 0",
        "The object store fails requests of {{ $labels.instance }}",
    ),
];

/// The rules. Strings in double quotes are YAML as well as JSON.
pub(super) fn render(runbooks: &str) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut yaml = String::from("groups:\n  - name: meridian\n    rules:\n");
    for Alert { name, severity, after, expr, summary } in ALERTS {
        let runbook = format!("{runbooks}#{}", name.to_lowercase());
        let _infallible = write!(
            yaml,
            "      - alert: {name}\n        expr: {}\n        for: {after}\n        labels:\n          severity: {}\n        \
             annotations:\n          summary: {}\n          runbook_url: {}\n",
            quoted(expr),
            severity.name(),
            quoted(summary),
            quoted(&runbook)
        );
    }
    yaml
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/operating/alerts.md");

    #[test]
    fn each_alert_has_a_section_of_its_name_and_no_other_has_one() {
        let sections = PAGE.lines().filter_map(|line| line.strip_prefix("## Meridian"));
        let sections: BTreeSet<String> = sections.map(|name| format!("Meridian{name}")).collect();
        let names: BTreeSet<String> = ALERTS.iter().map(|it| it.name.to_owned()).collect();
        assert_eq!(names.len(), ALERTS.len(), "a name is there twice");
        assert_eq!(sections, names);
    }

    #[test]
    fn rules_say_what_is_wrong_and_where_to_read_on() {
        let yaml = render("https://example.com/alerts");
        assert_eq!(yaml.matches("- alert: ").count(), ALERTS.len());
        assert!(yaml.contains(
            "      - alert: MeridianWritesStop\n        \
             expr: \"max by (condition) (meridian_conditions{severity=\\\"stops\\\"}) > 0\"\n        for: 1m\n"
        ));
        assert!(yaml.contains("runbook_url: \"https://example.com/alerts#meridianwritesstop\"\n"));
    }
}
