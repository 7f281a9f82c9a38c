//! The boards of Grafana: rows of graphs, each of one expression or a few.

use serde_json::{Value, json};

/// Of the JSON that is written: Grafana 10 and newer read it, and bring it up to date.
const SCHEMA_VERSION: u32 = 39;
const COLUMNS: usize = 2;
const WIDTH: usize = 24 / COLUMNS;
const HEIGHT: usize = 8;

/// A board.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) name: &'static str,
    title: &'static str,
    graphs: &'static [Graph],
}

#[derive(Debug)]
struct Graph {
    title: &'static str,
    unit: Unit,
    /// Expressions, each with the legend of its lines.
    lines: &'static [(&'static str, &'static str)],
}

#[derive(Debug, Clone, Copy)]
enum Unit {
    Count,
    PerSecond,
    Bytes,
    BytesPerSecond,
    Seconds,
    Share,
}

impl Unit {
    /// What Grafana calls it.
    const fn name(self) -> &'static str {
        match self {
            Self::Count => "short",
            Self::PerSecond => "ops",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "Bps",
            Self::Seconds => "s",
            Self::Share => "percentunit",
        }
    }
}

const fn graph(
    title: &'static str,
    unit: Unit,
    lines: &'static [(&'static str, &'static str)],
) -> Graph {
    Graph { title, unit, lines }
}

/// All boards.
pub(super) const ALL: &[Board] = &[
    Board {
        name: "cluster",
        title: "Meridian: cluster",
        graphs: &[
            graph(
                "What stops or threatens writes",
                Unit::Count,
                &[(
                    "max by (severity, condition) (meridian_conditions) > 0",
                    "{{severity}}: {{condition}}",
                )],
            ),
            graph(
                "What each storage group can lose",
                Unit::Count,
                &[(
                    "max by (group, failure) (meridian_tolerates) == 1",
                    "group {{group}}: {{failure}}",
                )],
            ),
            graph("Nodes", Unit::Count, &[("max by (liveness) (meridian_nodes)", "{{liveness}}")]),
            graph(
                "Partitions led",
                Unit::Count,
                &[
                    ("meridian_partitions_led", "{{instance}}"),
                    ("max(meridian_partitions_leaderless)", "leaderless"),
                ],
            ),
            graph(
                "Produced",
                Unit::BytesPerSecond,
                &[(
                    "sum by (instance) (rate(meridian_kafka_produced_bytes_total[$__rate_interval]))",
                    "{{instance}}",
                )],
            ),
            graph(
                "Fetched",
                Unit::BytesPerSecond,
                &[(
                    "sum by (instance) (rate(meridian_kafka_fetched_bytes_total[$__rate_interval]))",
                    "{{instance}}",
                )],
            ),
            graph(
                "Produce requests, 99 of 100",
                Unit::Seconds,
                &[(
                    "histogram_quantile(0.99, sum by (le, instance) (rate(meridian_kafka_request_duration_seconds_bucket{api=\"Produce\"}[$__rate_interval])))",
                    "{{instance}}",
                )],
            ),
            graph(
                "Errors answered",
                Unit::PerSecond,
                &[(
                    "sum by (code) (rate(meridian_kafka_errors_total[$__rate_interval]))",
                    "{{code}}",
                )],
            ),
        ],
    },
    Board {
        name: "clients",
        title: "Meridian: topics, clients, groups",
        graphs: &[
            graph(
                "Produced by topic",
                Unit::BytesPerSecond,
                &[(
                    "topk(10, sum by (topic) (rate(meridian_topic_produced_bytes_total[$__rate_interval])))",
                    "{{topic}}",
                )],
            ),
            graph(
                "Fetched by topic",
                Unit::BytesPerSecond,
                &[(
                    "topk(10, sum by (topic) (rate(meridian_topic_fetched_bytes_total[$__rate_interval])))",
                    "{{topic}}",
                )],
            ),
            graph(
                "Records produced by topic",
                Unit::PerSecond,
                &[(
                    "topk(10, sum by (topic) (rate(meridian_topic_produced_records_total[$__rate_interval])))",
                    "{{topic}}",
                )],
            ),
            graph(
                "Refused by topic",
                Unit::PerSecond,
                &[(
                    "topk(10, sum by (topic) (rate(meridian_topic_refused_total[$__rate_interval])))",
                    "{{topic}}",
                )],
            ),
            graph(
                "Sent by clients",
                Unit::BytesPerSecond,
                &[(
                    "topk(10, sum by (user, client_id) (rate(meridian_client_received_bytes_total[$__rate_interval])))",
                    "{{user}} {{client_id}}",
                )],
            ),
            graph(
                "Sent to clients",
                Unit::BytesPerSecond,
                &[(
                    "topk(10, sum by (user, client_id) (rate(meridian_client_sent_bytes_total[$__rate_interval])))",
                    "{{user}} {{client_id}}",
                )],
            ),
            graph(
                "Requests of clients",
                Unit::PerSecond,
                &[(
                    "topk(10, sum by (user, client_id) (rate(meridian_client_requests_total[$__rate_interval])))",
                    "{{user}} {{client_id}}",
                )],
            ),
            graph(
                "Clients over their quotas",
                Unit::Share,
                &[(
                    "topk(10, sum by (user, client_id) (rate(meridian_client_throttled_seconds_total[$__rate_interval])))",
                    "{{user}} {{client_id}}",
                )],
            ),
            graph(
                "Lag of groups in records",
                Unit::Count,
                &[("topk(10, sum by (group) (meridian_group_lag_records))", "{{group}}")],
            ),
            graph(
                "Lag of groups in time",
                Unit::Seconds,
                &[("topk(10, max by (group) (meridian_group_lag_seconds))", "{{group}}")],
            ),
            graph("Connections", Unit::Count, &[("meridian_kafka_connections", "{{instance}}")]),
            graph(
                "Logins",
                Unit::PerSecond,
                &[(
                    "sum by (result) (rate(meridian_kafka_logins_total[$__rate_interval]))",
                    "{{result}}",
                )],
            ),
        ],
    },
    Board {
        name: "nodes",
        title: "Meridian: nodes and disks",
        graphs: &[
            graph(
                "Room on disks",
                Unit::Share,
                &[("meridian_disk_free_bytes / meridian_disk_capacity_bytes", "{{instance}}")],
            ),
            graph(
                "Written to disks",
                Unit::BytesPerSecond,
                &[("rate(meridian_disk_put_bytes_total[$__rate_interval])", "{{instance}}")],
            ),
            graph(
                "Writes to disks, 99 of 100",
                Unit::Seconds,
                &[(
                    "histogram_quantile(0.99, sum by (le, instance) (rate(meridian_disk_sync_duration_seconds_bucket[$__rate_interval])))",
                    "{{instance}}",
                )],
            ),
            graph(
                "Round trips to other nodes",
                Unit::Seconds,
                &[("meridian_peer_rtt_seconds", "{{instance}} to {{peer}}")],
            ),
            graph(
                "Processor time",
                Unit::Share,
                &[("rate(process_cpu_seconds_total[$__rate_interval])", "{{instance}}")],
            ),
            graph("Memory", Unit::Bytes, &[("process_resident_memory_bytes", "{{instance}}")]),
            graph("Open files", Unit::Count, &[("process_open_fds", "{{instance}}")]),
            graph(
                "Memory of clients",
                Unit::Bytes,
                &[("sum by (kind) (meridian_kafka_memory_bytes)", "{{kind}}")],
            ),
            graph(
                "Background work",
                Unit::PerSecond,
                &[
                    (
                        "sum by (chore) (rate(meridian_chore_done_total[$__rate_interval]))",
                        "{{chore}}",
                    ),
                    (
                        "sum by (chore) (rate(meridian_chore_refused_total[$__rate_interval]))",
                        "{{chore}} refused",
                    ),
                ],
            ),
            graph(
                "Certificates end in",
                Unit::Seconds,
                &[(
                    "min by (use, name) (meridian_certificate_expires_seconds)",
                    "{{use}} {{name}}",
                )],
            ),
        ],
    },
    Board {
        name: "links",
        title: "Meridian: links and mirrors",
        graphs: &[
            graph(
                "Lag in time",
                Unit::Seconds,
                &[("max by (link) (meridian_mirror_lag_seconds)", "{{link}}")],
            ),
            graph(
                "Lag in records",
                Unit::Count,
                &[("sum by (link) (meridian_mirror_lag_records)", "{{link}}")],
            ),
            graph(
                "Partitions by state",
                Unit::Count,
                &[("sum by (link, state) (meridian_mirror_partitions)", "{{link}}: {{state}}")],
            ),
            graph(
                "Fetched over links",
                Unit::BytesPerSecond,
                &[
                    (
                        "sum by (link) (rate(meridian_link_fetched_bytes_total[$__rate_interval]))",
                        "{{link}}",
                    ),
                    (
                        "sum by (link) (rate(meridian_link_wire_bytes_total[$__rate_interval]))",
                        "{{link}} on the way",
                    ),
                ],
            ),
        ],
    },
];

impl Board {
    /// The JSON that Grafana imports.
    pub(super) fn render(&self) -> Value {
        let panels: Vec<Value> =
            self.graphs.iter().enumerate().map(|(index, graph)| graph.render(index)).collect();
        json!({
            "uid": format!("meridian-{}", self.name),
            "title": self.title,
            "tags": ["meridian"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": true,
            "refresh": "30s",
            "time": { "from": "now-6h", "to": "now" },
            "templating": { "list": [{
                "name": "datasource",
                "label": "Prometheus",
                "type": "datasource",
                "query": "prometheus",
            }] },
            "panels": panels,
        })
    }
}

impl Graph {
    fn render(&self, index: usize) -> Value {
        let datasource = json!({ "type": "prometheus", "uid": "${datasource}" });
        let target = |(at, (expr, legend)): (usize, &(&str, &str))| {
            let ref_id = char::from(b'A' + u8::try_from(at).unwrap_or_default());
            json!({
                "refId": ref_id.to_string(),
                "datasource": datasource,
                "expr": expr,
                "legendFormat": legend,
            })
        };
        let targets: Vec<Value> = self.lines.iter().enumerate().map(target).collect();
        let (row, column) = (index / COLUMNS, index % COLUMNS);
        json!({
            "id": index + 1,
            "type": "timeseries",
            "title": self.title,
            "datasource": datasource,
            "gridPos": { "x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT },
            "fieldConfig": { "defaults": { "unit": self.unit.name(), "min": 0 }, "overrides": [] },
            "targets": targets,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn graphs_do_not_lie_on_each_other_and_have_lines() {
        for board in ALL {
            let json = board.render();
            let panels = json["panels"].as_array().unwrap();
            let places: BTreeSet<String> =
                panels.iter().map(|it| it["gridPos"].to_string()).collect();
            assert_eq!((places.len(), panels.len()), (board.graphs.len(), board.graphs.len()));
            assert!(panels.iter().all(|it| it["targets"][0]["expr"].is_string()), "{}", board.name);
        }
        let names: BTreeSet<&str> = ALL.iter().map(|board| board.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
