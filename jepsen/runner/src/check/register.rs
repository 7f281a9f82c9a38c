//! Registers are linearizable. Every value is written once, so the check is quick and complete.
//!
//! The operations on one value, its write and all its reads, form a cluster. From the earliest end
//! to the latest begin in it is its zone. If the end comes first, the register held the value all
//! that time, and no other zone of that kind may overlap; if the begin comes first, all of them can
//! take effect at one moment, which must not lie wholly within another value's time.
//!
//! Source: Gibbons and Korach, *Testing shared memories*, SIAM J. Comput. 26 (1997).

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Anomaly, Facts, Span};
use crate::history::{Body, Key, Kind, Value};

/// All that was done with one value of a register.
struct Cluster<'a> {
    value: Option<Value>,
    write: Option<&'a Span<'a>>,
    earliest_end: Duration,
    latest_begin: Duration,
    lines: Vec<usize>,
}

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut found = Vec::new();
    let mut registers: BTreeMap<Key, BTreeMap<Option<Value>, Cluster<'_>>> = BTreeMap::new();
    for span in &facts.spans {
        let (key, value, is_write) = match (span.body(), span.notes().position) {
            (Body::Write { key, value }, _) if span.kind() != Kind::Fail => {
                (*key, Some(*value), true)
            }
            (Body::Read { key, value }, _) if span.kind() == Kind::Ok => (*key, *value, false),
            // A position that a transaction commits.
            (Body::Txn(_), Some((key, value))) if span.kind() != Kind::Fail => {
                (key, Some(value), true)
            }
            _ => continue,
        };
        let cluster = registers.entry(key).or_default().entry(value).or_insert(Cluster {
            value,
            write: None,
            earliest_end: Duration::MAX,
            latest_begin: Duration::ZERO,
            lines: Vec::new(),
        });
        if is_write {
            cluster.write = Some(span);
        }
        cluster.earliest_end = cluster.earliest_end.min(span.ended_at());
        cluster.latest_begin = cluster.latest_begin.max(span.begun_at());
        cluster.lines.extend(span.ops());
    }
    for (key, clusters) in registers {
        let mut clusters: Vec<Cluster<'_>> = clusters.into_values().collect();
        for cluster in &mut clusters {
            match (cluster.value, cluster.write) {
                // The register was empty since before everything.
                (None, _) => cluster.earliest_end = Duration::ZERO,
                (Some(value), None) => {
                    let text = format!("register {key} was read as {value}, which nobody wrote");
                    found.push(Anomaly::new("register", text, cluster.lines.clone()));
                }
                (Some(value), Some(write)) if cluster.earliest_end < write.begun_at() => {
                    let text =
                        format!("register {key} was read as {value} before that was written");
                    found.push(Anomaly::new("register", text, cluster.lines.clone()));
                }
                _ => {}
            }
        }
        // A write in doubt that nobody has seen may never have been.
        clusters.retain(|it| it.earliest_end != Duration::MAX);
        overlaps(key, &clusters, &mut found);
    }
    found
}

fn overlaps(key: Key, clusters: &[Cluster<'_>], found: &mut Vec<Anomaly>) {
    let holds = |it: &&Cluster<'_>| it.earliest_end < it.latest_begin;
    let mut lasting: Vec<&Cluster<'_>> = clusters.iter().filter(holds).collect();
    lasting.sort_by_key(|it| it.earliest_end);
    let mut report = |one: &Cluster<'_>, other: &Cluster<'_>| {
        let name = |value: Option<Value>| value.map_or("nothing".to_owned(), |it| it.to_string());
        let (one_name, other_name) = (name(one.value), name(other.value));
        let text = format!("register {key} held {one_name} and {other_name} at the same time");
        let lines = one.lines.iter().chain(&other.lines).copied();
        found.push(Anomaly::new("register", text, lines));
    };
    for pair in lasting.windows(2) {
        if let [one, other] = pair
            && other.earliest_end < one.latest_begin
        {
            report(one, other);
        }
    }
    for moment in clusters.iter().filter(|it| !holds(it)) {
        let within = lasting.iter().find(|it| {
            it.earliest_end < moment.latest_begin && moment.earliest_end < it.latest_begin
        });
        if let Some(within) = within {
            report(moment, within);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;

    fn write(script: Script, kind: Kind, value: Value) -> Script {
        let body = Body::Write { key: 1, value };
        script.op(1, kind, body.clone(), body)
    }

    fn read(script: Script, value: Option<Value>) -> Script {
        script.op(2, Kind::Ok, Body::Read { key: 1, value: None }, Body::Read { key: 1, value })
    }

    #[test]
    fn what_was_written_last_is_read() {
        read(write(read(Script::default(), None), Kind::Ok, 7), Some(7)).finds(&[]);
        read(write(Script::default(), Kind::Ok, 7), None).finds(&["register"]);
        let two = || write(write(Script::default(), Kind::Ok, 7), Kind::Ok, 8);
        read(two(), Some(8)).finds(&[]);
        read(two(), Some(7)).finds(&["register"]);
    }

    #[test]
    fn what_is_in_doubt_may_happen_late() {
        let doubt = || write(write(Script::default(), Kind::Info, 7), Kind::Ok, 8);
        read(doubt(), Some(8)).finds(&[]);
        read(doubt(), Some(7)).finds(&[]);
        read(read(doubt(), Some(8)), Some(7)).finds(&[]);
        read(read(read(doubt(), Some(8)), Some(7)), Some(8)).finds(&["register"]);
    }

    #[test]
    fn values_from_nowhere_and_from_the_future_are_found() {
        read(Script::default(), Some(7)).finds(&["register"]);
        read(write(Script::default(), Kind::Fail, 7), Some(7)).finds(&["register"]);
        write(read(Script::default(), Some(7)), Kind::Ok, 7).finds(&["register"]);
    }

    #[test]
    fn writes_at_the_same_time_may_take_effect_in_any_order() {
        let (seven, eight) = (Body::Write { key: 1, value: 7 }, Body::Write { key: 1, value: 8 });
        let both = Script::default()
            .line(1, Kind::Invoke, seven.clone())
            .line(3, Kind::Invoke, eight.clone())
            .line(1, Kind::Ok, seven)
            .line(3, Kind::Ok, eight);
        read(both, Some(7)).finds(&[]);
    }
}
