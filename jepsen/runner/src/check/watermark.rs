//! The end that a leader tells never goes back, and lies above all that was known before it was asked.

use std::collections::BTreeMap;

use super::{Anomaly, Facts};
use crate::history::{Body, Key, Kind, Micro, Offset};

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    // What was known by when: the line of the end of an operation.
    let mut known: BTreeMap<Key, Vec<(usize, Offset)>> = BTreeMap::new();
    for span in &facts.spans {
        let Some(line) = span.end else { continue };
        let mut add = |key: Key, end| known.entry(key).or_default().push((line, end));
        for micro in span.body().micros() {
            match micro {
                // What is in a transaction is visible only when all before it is decided.
                Micro::Send { .. } if matches!(span.body(), Body::Txn(_)) => {}
                Micro::Send { key, offset: Some(offset), .. } => add(*key, offset + 1),
                Micro::Send { .. } | Micro::Poll(None) => {}
                Micro::Poll(Some(polled)) => polled.iter().for_each(|(key, records)| {
                    records.iter().map(|(o, _)| *o).max().into_iter().for_each(|o| add(*key, o + 1))
                }),
            }
        }
        told(span.body()).for_each(|(key, end)| add(key, end));
    }
    known.values_mut().for_each(|of_key| highest_so_far(of_key));
    let mut found = Vec::new();
    for span in facts.spans.iter().filter(|span| span.kind() == Kind::Ok) {
        for (key, end) in told(span.body()) {
            let of_key = known.get(&key).map_or(&[][..], Vec::as_slice);
            let count = of_key.partition_point(|(line, _)| *line < span.begin);
            let Some((line, highest)) = count.checked_sub(1).and_then(|at| of_key.get(at)) else {
                continue;
            };
            if *highest > end {
                let text = format!("partition {key} ended at {end}, though {highest} was known");
                let ops = span.ops().chain([*line]);
                found.push(Anomaly::new("watermark", text, ops));
            }
        }
    }
    found
}

/// How far partitions can be read, as leaders tell it.
fn told(body: &Body) -> impl Iterator<Item = (Key, Offset)> {
    let ends = if let Body::Ends(Some(ends)) = body { Some(ends) } else { None };
    let stable = if let Body::Stable(Some(stable)) = body { Some(stable) } else { None };
    let ends = ends.into_iter().flatten().map(|(key, end)| (*key, *end));
    ends.chain(stable.into_iter().flatten().map(|(key, (stable, _))| (*key, *stable)))
}

/// Sorts by line, and turns each end into the highest up to there.
fn highest_so_far(of_key: &mut [(usize, Offset)]) {
    of_key.sort_unstable();
    for at in 1..of_key.len() {
        if of_key[at].1 < of_key[at - 1].1 {
            of_key[at].1 = of_key[at - 1].1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use crate::history::{Body, Kind};

    #[test]
    fn ends_never_go_back() {
        Script::default().ends(1, 5, 3).ends(2, 5, 3).finds(&[]);
        Script::default().ends(1, 5, 3).ends(2, 5, 2).finds(&["watermark"]);
        Script::default().acked(1, 5, 0, 10).ends(2, 5, 1).finds(&[]);
        Script::default().acked(1, 5, 0, 10).ends(2, 5, 0).finds(&["watermark"]);
    }

    #[test]
    fn what_is_decided_never_goes_back() {
        Script::default().ends(1, 5, 3).stable(2, 5, (3, 9)).ends(1, 5, 3).finds(&[]);
        Script::default().ends(1, 5, 3).stable(2, 5, (2, 9)).finds(&["watermark"]);
        Script::default().stable(2, 5, (3, 3)).ends(1, 5, 2).finds(&["watermark"]);
    }

    #[test]
    fn only_what_was_known_before_the_question_counts() {
        let later = Script::default()
            .line(2, Kind::Invoke, Body::Ends(None))
            .acked(1, 5, 0, 10)
            .line(2, Kind::Ok, Body::Ends(Some([(5, 0)].into())));
        later.finds(&[]);
    }
}
