//! What `promtool check metrics` asks of names, as rules of our own: CI has no promtool.

use std::collections::{BTreeMap, BTreeSet};

/// Parts of names that stand for a unit which is not a base unit, or for one in short.
const BAD_UNITS: &[&str] = &[
    "b",
    "bits",
    "celsius_degrees",
    "d",
    "days",
    "gb",
    "gigabytes",
    "h",
    "hours",
    "kb",
    "kilobytes",
    "m",
    "mb",
    "megabytes",
    "microseconds",
    "milliseconds",
    "minutes",
    "ms",
    "nanoseconds",
    "ns",
    "pb",
    "percent",
    "s",
    "sec",
    "tb",
    "us",
    "weeks",
];
/// Types that are no part of a name.
const TYPES: &[&str] = &["counter", "gauge", "histogram", "summary"];

/// What is wrong with a text of metrics.
pub(super) fn lint(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut families: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut series = BTreeSet::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|it| it.split_once(' ')) {
            if families.insert(name, (help, "")).is_some() {
                wrong.push(format!("{name} is there twice"));
            }
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' '))
        {
            match families.get_mut(name) {
                Some((_, known)) if known.is_empty() => *known = kind,
                _ => wrong.push(format!("the type of {name} does not come right after its help")),
            }
        } else if let Some((series_of, value)) = line.rsplit_once(' ') {
            if !series.insert(series_of) {
                wrong.push(format!("{series_of} is there twice"));
            }
            if value.parse::<f64>().is_err() {
                wrong.push(format!("{series_of} has the value {value}"));
            }
            lint_series(series_of, &families, &mut wrong);
        } else {
            wrong.push(format!("{line:?} is no line of metrics"));
        }
    }
    for (name, (help, kind)) in families {
        lint_family(name, help, kind, &mut wrong);
    }
    wrong
}

fn lint_series(series: &str, families: &BTreeMap<&str, (&str, &str)>, wrong: &mut Vec<String>) {
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
    let is_histogram = of_histogram
        .is_some_and(|it| families.get(it).is_some_and(|(_, kind)| *kind == "histogram"));
    if !is_histogram && !families.contains_key(name) {
        wrong.push(format!("{name} has no help"));
    }
    let is_bucket = is_histogram && name.ends_with("_bucket");
    if is_bucket != labels.contains("le=\"") || labels.contains("quantile=\"") {
        wrong.push(format!("{series}: a bucket has the label le, and nothing else has"));
    }
}

fn lint_family(name: &str, help: &str, kind: &str, wrong: &mut Vec<String>) {
    let mut say = |what: &str| wrong.push(format!("{name} {what}"));
    if help.is_empty() || kind.is_empty() {
        say("lacks a help or a type");
    }
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !name.chars().all(is_plain) {
        say("is not in snake case");
    }
    if name.split('_').any(|part| BAD_UNITS.contains(&part)) {
        say("has a unit that is no base unit, or one in short");
    }
    if name.split('_').any(|part| TYPES.contains(&part)) {
        say("says its type");
    }
    match kind {
        "untyped" => {}
        "counter" if !name.ends_with("_total") => say("is a counter without _total"),
        "gauge" | "histogram" if name.ends_with("_total") => say("is no counter and has _total"),
        "counter" | "gauge"
            if ["_bucket", "_sum", "_count"].iter().any(|end| name.ends_with(end)) =>
        {
            say("ends in what only a histogram may end in");
        }
        "counter" | "gauge" | "histogram" => {}
        _ => say("has a type that there is not"),
    }
}

#[test]
fn each_rule_finds_what_breaks_it() {
    let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{b=\"c\"} 1\n";
    assert_eq!(lint(good), [""; 0]);
    let family =
        |name: &str, kind: &str| format!("# HELP {name} A.\n# TYPE {name} {kind}\n{name} 1\n");
    for (text, what) in [
        (family("a", "counter"), "without _total"),
        (family("a_total", "gauge"), "has _total"),
        (family("a_count", "gauge"), "only a histogram"),
        (family("a_us_total", "counter"), "no base unit"),
        (family("a_percent", "gauge"), "no base unit"),
        (family("a_gauge", "gauge"), "says its type"),
        (family("aB", "gauge"), "snake case"),
        (family("a", "number"), "a type that there is not"),
        ("a 1\n".to_owned(), "has no help"),
        ("# HELP a A.\na 1\n".to_owned(), "lacks a help or a type"),
        (family("a", "gauge") + "a 2\n", "a is there twice"),
        (family("a", "gauge") + "a{le=\"1\"} 2\n", "a bucket has the label le"),
        (family("a", "gauge") + "a{b=\"1\"} x\n", "has the value x"),
        (family("a", "gauge") + &family("a", "gauge"), "a is there twice"),
        (family("a", "gauge") + "b\n", "no line of metrics"),
    ] {
        let found = lint(&text);
        assert!(found.iter().any(|it| it.contains(what)), "{text}: {found:?}");
    }
    assert_eq!(lint(&family("a_count", "untyped")), [""; 0]);
}
