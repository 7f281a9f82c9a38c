//! How long things take. A histogram is several names in one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Snapshot, escaped};
use crate::kafka;
use crate::node::Node;
use crate::runtime::histogram::{BOUNDS_S, HistogramSample};

/// All values of one histogram, each under its label.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    of: fn(&Histograms) -> Vec<Labelled>,
}

type Label = (&'static str, String);
type Labelled = (Option<Label>, HistogramSample);

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "meridian_kafka_request_duration_seconds",
        help: "Time from a request's last byte read to its answer made; long polls wait.",
        of: |it| {
            let label = |api: &'static str| Some(("api", api.to_owned()));
            it.requests.iter().map(|sample| (label(sample.api), sample.took)).collect()
        },
    },
    Family {
        name: "meridian_disk_sync_duration_seconds",
        help: "Time to write a batch to the journal and to make it durable.",
        of: |it| it.disk_syncs.iter().map(|sample| (None, *sample)).collect(),
    },
    Family {
        name: "meridian_put_duration_seconds",
        help: "Time from sending a blob to a disk until that has it durably, by the disk's datacenter.",
        of: |it| {
            let label = |name: &String| Some(("datacenter", name.clone()));
            it.puts.iter().map(|(name, sample)| (label(name), *sample)).collect()
        },
    },
    Family {
        name: "meridian_takeover_duration_seconds",
        help: "Time from a partition's being given to this node until it serves it; new ones count too.",
        of: |it| vec![(None, it.takeovers)],
    },
];

/// The histograms at one moment.
#[derive(Debug, Default)]
pub(super) struct Histograms {
    pub(super) requests: Vec<kafka::DurationSample>,
    pub(super) disk_syncs: Option<HistogramSample>,
    /// By datacenter.
    pub(super) puts: BTreeMap<String, HistogramSample>,
    pub(super) takeovers: HistogramSample,
}

impl Histograms {
    pub(super) fn take(node: &Node, front: &kafka::Front) -> Self {
        let mut puts = BTreeMap::<String, HistogramSample>::new();
        let by_node = node.logs.put_durations();
        let metadata = node.meta.metadata();
        for (id, sample) in by_node {
            let Some(known) = metadata.node(id) else { continue };
            let sum = puts.entry(known.registration.datacenter.to_string()).or_default();
            *sum = sum.plus(&sample);
        }
        Self {
            requests: front.metrics().durations(),
            disk_syncs: node.logs.store().map(|store| store.sync_durations()),
            puts,
            takeovers: node.logs.takeover_durations(),
        }
    }
}

/// Adds all histograms to the text that Prometheus reads.
pub(super) fn render(snapshot: &Snapshot, text: &mut String) {
    for Family { name, help, of } in FAMILIES {
        let _infallible = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (label, sample) in of(&snapshot.histograms) {
            render_one(name, label, &sample, text);
        }
    }
}

fn render_one(name: &str, label: Option<Label>, sample: &HistogramSample, text: &mut String) {
    let (own, before) = match label {
        Some((key, value)) => {
            let own = format!("{key}=\"{}\"", escaped(&value));
            (format!("{{{own}}}"), format!("{own},"))
        }
        None => (String::new(), String::new()),
    };
    for (bound_s, count) in BOUNDS_S.iter().zip(sample.cumulative) {
        let _infallible = writeln!(text, "{name}_bucket{{{before}le=\"{bound_s}\"}} {count}");
    }
    let total = sample.count();
    let _infallible = writeln!(text, "{name}_bucket{{{before}le=\"+Inf\"}} {total}");
    let _infallible = writeln!(text, "{name}_sum{own} {}", sample.sum_s);
    let _infallible = writeln!(text, "{name}_count{own} {total}");
}
