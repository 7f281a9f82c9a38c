//! Each record once, at one offset, for ever; nothing acknowledged is lost; nothing refused is there.

use std::collections::BTreeMap;

use super::{Anomaly, Facts};
use crate::history::{Body, Key, Kind, Offset, Value};

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut found = Vec::new();
    inconsistent_offsets(facts, &mut found);
    duplicates(facts, &mut found);
    strangers(facts, &mut found);
    lost(facts, &mut found);
    gaps(facts, &mut found);
    found
}

/// Two values at one offset.
fn inconsistent_offsets(facts: &Facts<'_>, found: &mut Vec<Anomaly>) {
    for (key, offsets) in &facts.seen {
        for (offset, values) in offsets.iter().filter(|(_, values)| values.len() > 1) {
            let seen: Vec<Value> = values.keys().copied().collect();
            let text = format!("partition {key} at {offset} has been {seen:?}");
            found.push(Anomaly::new("inconsistent-offsets", text, values.values().copied()));
        }
    }
}

/// One value at two offsets.
fn duplicates(facts: &Facts<'_>, found: &mut Vec<Anomaly>) {
    let mut places: BTreeMap<Value, Vec<(Key, Offset, usize)>> = BTreeMap::new();
    for (key, offsets) in &facts.seen {
        for (offset, values) in offsets {
            for (value, line) in values {
                places.entry(*value).or_default().push((*key, *offset, *line));
            }
        }
    }
    for (value, places) in places.iter().filter(|(_, places)| places.len() > 1) {
        let at: Vec<String> = places.iter().map(|(k, o, _)| format!("{k}:{o}")).collect();
        let text = format!("value {value} is at {}", at.join(" and "));
        found.push(Anomaly::new("duplicate", text, places.iter().map(|(_, _, line)| *line)));
    }
}

/// Values that nobody sent, that were refused, or that went elsewhere.
fn strangers(facts: &Facts<'_>, found: &mut Vec<Anomaly>) {
    let fenced = fenced(facts);
    for (key, offsets) in &facts.seen {
        for (offset, values) in offsets {
            for (value, line) in values {
                let place = format!("value {value} in partition {key} at {offset}");
                match facts.sends.get(value) {
                    None if fenced.contains_key(value) => {}
                    None => {
                        let text = format!("{place} was never sent");
                        found.push(Anomaly::new("phantom", text, [*line]));
                    }
                    Some(sent) if sent.key != *key => {
                        let text = format!("{place} was sent to partition {}", sent.key);
                        found.push(Anomaly::new("phantom", text, [*line, sent.begin]));
                    }
                    Some(sent) if sent.outcome == Kind::Fail => {
                        let text = format!("{place} was refused");
                        let ops = [Some(*line), Some(sent.begin), sent.end];
                        found.push(Anomaly::new("G1a", text, ops.into_iter().flatten()));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}

/// Values of zombies: another checker looks at them.
pub(super) fn fenced(facts: &Facts<'_>) -> BTreeMap<Value, usize> {
    let zombie = |(line, op): (usize, &crate::history::Op)| match op.body {
        Body::Zombie { value, .. } => Some((value, line)),
        _ => None,
    };
    facts.history.iter().enumerate().filter_map(zombie).collect()
}

/// What was acknowledged, or read, and is not there at the end.
fn lost(facts: &Facts<'_>, found: &mut Vec<Anomaly>) {
    let Some(last) = &facts.last else { return };
    for (key, end) in &facts.last_ends {
        let read_to = last.get(key).and_then(|it| it.last_key_value()).map_or(0, |(o, _)| o + 1);
        // Beyond the last record there may be ends of transactions, and what was aborted.
        let read_to = facts.last_read_to.get(key).copied().unwrap_or(0).max(read_to);
        if read_to < *end && facts.seen.get(key).is_some_and(|seen| !seen.is_empty()) {
            let text = format!("partition {key} was read only to {read_to} of {end} at the end");
            found.push(Anomaly::new("unseen", text, []));
        }
    }
    for (key, offsets) in &facts.seen {
        let Some(read) = last.get(key) else { continue };
        for (offset, values) in offsets {
            for (value, line) in values {
                if read.get(offset) == Some(value) {
                    continue;
                }
                let sent = facts.sends.get(value);
                let is_acked = sent.is_some_and(|sent| sent.offset.is_some());
                let what = if is_acked { "acknowledged" } else { "read" };
                let text = format!("value {value} was {what} in partition {key} at {offset}");
                let ops = [Some(*line), sent.map(|it| it.begin), sent.and_then(|it| it.end)];
                found.push(Anomaly::new("lost-write", text, ops.into_iter().flatten()));
            }
        }
    }
}

/// Offsets that no record has and no reader was told to skip. Of a log without transactions.
fn gaps(facts: &Facts<'_>, found: &mut Vec<Anomaly>) {
    for (line, op) in facts.history.iter().enumerate() {
        for (key, from, to) in &op.notes.gaps {
            let text = format!("partition {key} has nothing from {from} up to {to}");
            found.push(Anomaly::new("gap", text, [line]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;
    use crate::history::Notes;

    #[test]
    fn a_good_log_is_good() {
        Script::default()
            .acked(1, 5, 0, 10)
            .sent(2, Kind::Info, 5, None, 11)
            .sent(3, Kind::Fail, 5, None, 12)
            .whole(5, &[(0, 10), (1, 11)])
            .finds(&[]);
    }

    #[test]
    fn another_value_at_an_offset_is_found() {
        Script::default()
            .acked(1, 5, 0, 10)
            .sent(2, Kind::Info, 5, None, 11)
            .assign(3, 5)
            .poll(3, 5, &[(0, 11)])
            .finds(&["inconsistent-offsets"]);
    }

    #[test]
    fn a_value_twice_is_found() {
        let script = Script::default().acked(1, 5, 0, 10).whole(5, &[(0, 10), (1, 10)]);
        script.finds(&["duplicate"]);
        assert!(script.anomalies()[0].text.contains("5:0 and 5:1"));
    }

    #[test]
    fn a_lost_value_is_found() {
        Script::default()
            .acked(1, 5, 0, 10)
            .acked(1, 5, 1, 11)
            .whole(5, &[(0, 10)])
            .finds(&["lost-write", "watermark"]);
        // Also when all of a partition is gone.
        Script::default().acked(1, 5, 0, 10).whole(5, &[]).finds(&["lost-write", "watermark"]);
    }

    #[test]
    fn a_value_that_was_read_and_is_gone_is_found() {
        Script::default()
            .sent(1, Kind::Info, 5, None, 10)
            .assign(3, 5)
            .poll(3, 5, &[(0, 10)])
            .whole(5, &[])
            .finds(&["lost-write", "watermark"]);
    }

    #[test]
    fn refused_and_unknown_values_are_found() {
        Script::default().sent(1, Kind::Fail, 5, None, 10).whole(5, &[(0, 10)]).finds(&["G1a"]);
        Script::default().whole(5, &[(0, 10)]).finds(&["phantom"]);
        Script::default()
            .acked(1, 4, 0, 10)
            .assign(3, 5)
            .poll(3, 5, &[(0, 10)])
            .finds(&["duplicate", "phantom"]);
    }

    #[test]
    fn what_could_not_be_read_is_told() {
        Script::default()
            .acked(1, 5, 0, 10)
            .last()
            .assign(9, 5)
            .ends(9, 5, 1)
            .finds(&["lost-write", "unseen"]);
    }

    #[test]
    fn ends_of_transactions_are_read_too() {
        // The record's transaction ends at offset 1.
        let script = || Script::default().acked(1, 5, 0, 10).last().assign(9, 5).ends(9, 5, 2);
        let read_to = |to| Notes { read_to: vec![(5, to)], ..Notes::default() };
        script().poll(9, 5, &[(0, 10)]).noting(&read_to(2)).finds(&[]);
        script().poll(9, 5, &[(0, 10)]).noting(&read_to(1)).finds(&["unseen"]);
    }

    #[test]
    fn a_gap_is_found() {
        let mut script = Script::default().acked(1, 5, 0, 10);
        script.ops.last_mut().unwrap().notes.gaps.push((5, 1, 3));
        script.finds(&["gap"]);
    }
}
