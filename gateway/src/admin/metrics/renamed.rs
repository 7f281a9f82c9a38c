//! Names that metrics had before, served for one release beside those that they have. They are untyped, for not to
//! end in what only a histogram may end in is why they changed.

use std::fmt::Write as _;

/// The old name, and the new one.
pub(super) const RENAMED: &[(&str, &str)] = &[
    ("meridian_groups_short_count", "meridian_groups_short"),
    ("meridian_nodes_count", "meridian_nodes"),
    ("meridian_partitions_count", "meridian_partitions"),
    ("meridian_partitions_leaderless_count", "meridian_partitions_leaderless"),
    ("meridian_partitions_led_count", "meridian_partitions_led"),
    ("meridian_partitions_taking_over_count", "meridian_partitions_taking_over"),
    ("meridian_transactions_ongoing_count", "meridian_transactions_ongoing"),
    ("meridian_transactions_hanging_count", "meridian_transactions_hanging"),
    ("meridian_disk_unreadable_count", "meridian_disk_unreadable_blobs"),
    ("meridian_mirror_partitions_count", "meridian_mirror_partitions"),
    ("meridian_mirror_differences_count", "meridian_mirror_differences"),
    ("meridian_mirror_contract_partitions_count", "meridian_mirror_contract_partitions"),
    ("meridian_kafka_connections_count", "meridian_kafka_connections"),
    ("meridian_kafka_connections_limit_count", "meridian_kafka_connections_limit"),
    ("meridian_access_rules_count", "meridian_access_rules"),
    ("meridian_condition_count", "meridian_conditions"),
    ("meridian_raft_log_entry_count", "meridian_raft_log_entries"),
    ("meridian_oversize_checkpoints_count", "meridian_oversize_checkpoints"),
];

/// Repeats values in `text` under the names that they had before.
pub(super) fn render(text: &mut String) {
    let mut old = String::new();
    for (before, now) in RENAMED {
        let help = format!("The old name of {now}; gone in the next release.");
        let _infallible = writeln!(old, "# HELP {before} {help}\n# TYPE {before} untyped");
        let values = text.lines().filter_map(|line| line.strip_prefix(now));
        for value in values.filter(|rest| rest.starts_with(['{', ' '])) {
            let _infallible = writeln!(old, "{before}{value}");
        }
    }
    text.push_str(&old);
}
