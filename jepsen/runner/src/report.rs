//! What is left of a run for people and tools: a verdict on the terminal, `report.json`,
//! `report.edn`, and `report.html` with plots.

mod html;
mod plot;

use std::collections::BTreeMap;

use crate::check::{AfterOverload, Anomaly};
use crate::edn::{Edn, keyword};
use crate::failure::Failure;
use crate::history::Op;
use crate::run::Outcome;

/// Anomalies of one kind that are shown whole.
const SHOWN_COUNT: usize = 5;

/// Writes all files, and gives the verdict for the terminal.
pub(crate) fn write(outcome: &Outcome) -> Result<String, Failure> {
    let folder = &outcome.config.folder;
    let save = |name: &str, text: String| {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(Failure::file(&file))
    };
    save("report.json", format!("{:#}\n", json(outcome)))?;
    save("report.edn", format!("{}\n", edn(outcome)))?;
    save("report.html", html::page(outcome))?;
    Ok(text(outcome))
}

/// Anomalies by kind.
fn by_kind(anomalies: &[Anomaly]) -> BTreeMap<&'static str, Vec<&Anomaly>> {
    let mut kinds: BTreeMap<&'static str, Vec<&Anomaly>> = BTreeMap::new();
    for anomaly in anomalies {
        kinds.entry(anomaly.kind).or_default().push(anomaly);
    }
    kinds
}

/// Anomalies with the lines that show them, for the terminal.
pub(crate) fn describe(anomalies: &[Anomaly], history: &[Op]) -> String {
    let mut text = String::new();
    for (kind, of_kind) in by_kind(anomalies) {
        text += &format!("  {kind}: {}\n", of_kind.len());
        for anomaly in of_kind.iter().take(SHOWN_COUNT) {
            text += &format!("    {}\n", anomaly.text);
            for line in anomaly.ops.iter().take(SHOWN_COUNT) {
                if let Some(op) = history.get(*line) {
                    text += &format!("      {}\n", shortened(&op.to_edn(*line).to_string()));
                }
            }
        }
    }
    text
}

fn shortened(line: &str) -> String {
    const LENGTH_MAX: usize = 240;
    match line.char_indices().nth(LENGTH_MAX) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line.to_owned(),
    }
}

fn text(outcome: &Outcome) -> String {
    let config = &outcome.config;
    let service = &outcome.service;
    let mut text = format!(
        "{} under {}, {:?}, seed {}: {}\n",
        config.workload,
        config.nemesis,
        config.time,
        config.seed,
        if outcome.is_valid() { "valid" } else { "INVALID" }
    );
    for (name, [all, ok, fail, info]) in &service.counts {
        text += &format!("  {name}: {all} ({ok} ok, {fail} failed, {info} in doubt)\n");
    }
    let [half, most, longest] = service.latency;
    text += &format!("  writes took {half:.1?} (p50), {most:.1?} (p99), {longest:.1?} (max)\n");
    let (gap, at) = service.longest_gap;
    let (worst, since) = service.longest_gap_of.values().copied().max().unwrap_or_default();
    text += &format!(
        "  longest without any write {gap:.1?} (at {at:.0?}), in one partition {worst:.1?} (at {since:.0?})\n"
    );
    let after = outcome.longest_after.iter().map(|(name, it)| format!("{name} {it:.1?}"));
    let after = after.collect::<Vec<_>>().join(", ");
    if !after.is_empty() {
        text += &format!("  longest without a write in one partition after {after}\n");
    }
    let faults = fault_counts(&outcome.history);
    let faults: Vec<String> = faults.iter().map(|(name, n)| format!("{name} {n}")).collect();
    text += &format!("  faults: {}\n", faults.join(", "));
    if !outcome.lacking.is_empty() {
        text += &format!("  not to be had in this mode: {}\n", outcome.lacking.join(", "));
    }
    if !outcome.injected.is_empty() {
        text += &format!("  by the shims: {}\n", outcome.injected.join("; "));
    }
    text += &match outcome.healed_after {
        Some(after) => format!("  whole {after:.1?} after the last fault\n"),
        None => "  NOT whole after the last fault\n".to_owned(),
    };
    if let AfterOverload::Calm(after) = outcome.after_overload {
        text += &format!("  writes as quick as before {after:.1?} after the overload\n");
    }
    text += &format!("  spent: {}\n", outcome.spent);
    text += &describe(&outcome.anomalies, &outcome.history);
    text
}

/// How often each fault began.
fn fault_counts(history: &[Op]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for op in history {
        if let crate::history::Body::Fault { name, begins: true, .. } = &op.body
            && name != crate::check::FINAL
        {
            *counts.entry(&name[..]).or_default() += 1;
        }
    }
    counts
}

fn json(outcome: &Outcome) -> serde_json::Value {
    let config = &outcome.config;
    let service = &outcome.service;
    let worst = service.longest_gap_of.values().map(|(gap, _)| *gap).max().unwrap_or_default();
    let anomaly = |it: &&Anomaly| serde_json::json!({ "text": it.text, "lines": it.ops });
    let anomalies: BTreeMap<_, _> = by_kind(&outcome.anomalies)
        .into_iter()
        .map(|(kind, of)| {
            let shown: Vec<_> = of.iter().take(SHOWN_COUNT).map(anomaly).collect();
            (kind, serde_json::json!({ "count": of.len(), "shown": shown }))
        })
        .collect();
    let longest_after: BTreeMap<_, _> =
        outcome.longest_after.iter().map(|(name, it)| (name, it.as_millis())).collect();
    serde_json::json!({
        "valid": outcome.is_valid(),
        "workload": config.workload,
        "nemesis": config.nemesis,
        "seed": config.seed,
        "time_s": config.time.as_secs(),
        "operations": service.counts,
        "latency_ms": service.latency.map(|it| it.as_millis()),
        "longest_gap_ms": service.longest_gap.0.as_millis(),
        "longest_gap_of_a_partition_ms": worst.as_millis(),
        "longest_after_ms": longest_after,
        "healed_after_ms": outcome.healed_after.map(|it| it.as_millis()),
        "faults": fault_counts(&outcome.history),
        "lacking": outcome.lacking,
        "injected": outcome.injected,
        "packets_passed": outcome.packets.0,
        "packets_dropped": outcome.packets.1,
        "anomalies": anomalies,
    })
}

fn edn(outcome: &Outcome) -> Edn {
    let lines = |it: &Anomaly| {
        Edn::Vector(it.ops.iter().map(|op| Edn::Int(i64::try_from(*op).unwrap_or(0))).collect())
    };
    let anomaly =
        |it: &&Anomaly| Edn::map([("text", Edn::Text(it.text.clone())), ("lines", lines(it))]);
    let kinds = by_kind(&outcome.anomalies);
    let kinds = kinds.iter().map(|(kind, of)| {
        (keyword(kind), Edn::Vector(of.iter().take(SHOWN_COUNT).map(anomaly).collect()))
    });
    Edn::map([
        ("valid?", Edn::Bool(outcome.is_valid())),
        ("workload", keyword(&outcome.config.workload)),
        ("nemesis", Edn::Text(outcome.config.nemesis.clone())),
        ("seed", Edn::Int(i64::try_from(outcome.config.seed).unwrap_or(i64::MAX))),
        ("anomalies", Edn::Map(kinds.collect())),
    ])
}
