//! A consumer goes forward, and leaves nothing out.

use std::collections::BTreeMap;

use super::{Anomaly, Facts};
use crate::history::{Body, Key, Kind, Micro, Offset, Process};

/// How far a consumer is: after its first poll of each partition since it was assigned.
type Positions = BTreeMap<(Process, Key), (Offset, usize)>;

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut positions = Positions::new();
    let mut found = Vec::new();
    for span in facts.spans.iter().filter(|span| span.kind() != Kind::Invoke) {
        let process = span.invoked.process;
        match span.body() {
            Body::Assign { .. } | Body::Subscribe | Body::Assigned { .. } => {
                positions.retain(|(other, _), _| *other != process);
            }
            body => {
                let line = span.end.unwrap_or(span.begin);
                for micro in body.micros() {
                    if let Micro::Poll(Some(polled)) = micro {
                        for (key, records) in polled {
                            let offsets = records.iter().map(|(offset, _)| *offset);
                            let place = (process, *key);
                            follow(facts, &mut positions, place, offsets, line, &mut found);
                        }
                    }
                }
            }
        }
    }
    found
}

fn follow(
    facts: &Facts<'_>,
    positions: &mut Positions,
    (process, key): (Process, Key),
    offsets: impl Iterator<Item = Offset>,
    line: usize,
    found: &mut Vec<Anomaly>,
) {
    for offset in offsets {
        let before = positions.insert((process, key), (offset, line));
        let Some((last, last_line)) = before else { continue };
        if offset <= last {
            let text = format!("partition {key} was read at {offset} after {last}");
            found.push(Anomaly::new("nonmonotonic-poll", text, [last_line, line]));
            continue;
        }
        // Offsets in between that hold a record, as others know.
        let seen = facts.seen.get(&key);
        let skipped = seen.and_then(|seen| seen.range(last + 1..offset).next());
        if let Some((skipped, _)) = skipped {
            let text = format!("partition {key} was read at {last} and {offset}, not at {skipped}");
            found.push(Anomaly::new("poll-skip", text, [last_line, line]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;

    #[test]
    fn consumers_go_forward() {
        let script = || Script::default().acked(1, 5, 0, 10).acked(1, 5, 1, 11).assign(3, 5);
        script().poll(3, 5, &[(0, 10)]).poll(3, 5, &[(1, 11)]).finds(&[]);
        script().poll(3, 5, &[(1, 11)]).poll(3, 5, &[(0, 10)]).finds(&["nonmonotonic-poll"]);
        script().poll(3, 5, &[(0, 10), (0, 10)]).finds(&["nonmonotonic-poll"]);
        // After it was assigned anew it may begin anywhere.
        script().poll(3, 5, &[(1, 11)]).assign(3, 5).poll(3, 5, &[(0, 10)]).finds(&[]);
    }

    #[test]
    fn consumers_leave_nothing_out() {
        let script = Script::default().acked(1, 5, 0, 10).acked(1, 5, 1, 11).acked(1, 5, 2, 12);
        script.assign(3, 5).poll(3, 5, &[(0, 10), (2, 12)]).finds(&["poll-skip"]);
        // What nobody knows to hold a record may be a marker.
        let script = Script::default().acked(1, 5, 0, 10).acked(1, 5, 2, 12);
        script.assign(3, 5).poll(3, 5, &[(0, 10), (2, 12)]).finds(&[]);
    }
}
