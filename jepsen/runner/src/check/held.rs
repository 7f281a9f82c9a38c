//! What is decided goes on: an open transaction ends, by its producer or by its coordinator, and the last
//! stable offset passes it. When nothing is written any more, it is where the partition ends.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Anomaly, Facts};
use crate::history::{Body, Key, Kind, Micro, Offset};

/// The timeout of transactions, after which their coordinators abort them, and 20 s for a coordinator that
/// was taken over, perhaps twice, to do so.
const HELD_MAX: Duration = Duration::from_secs(30);

/// Once the faults are over: whether all is decided.
pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let Some(from) = facts.final_from() else { return Vec::new() };
    let mut last: BTreeMap<Key, (Offset, Offset, usize)> = BTreeMap::new();
    for span in facts.spans.iter().filter(|span| span.begin > from && span.kind() == Kind::Ok) {
        let Body::Stable(Some(told)) = span.body() else { continue };
        last.extend(told.iter().map(|(key, (stable, high))| (*key, (*stable, *high, span.begin))));
    }
    let behind = last.into_iter().filter(|(_, (stable, high, _))| stable < high);
    let anomaly = |(key, (stable, high, line))| {
        let text = format!(
            "partition {key} is decided up to {stable} and goes up to {high}, long after the last write"
        );
        Anomaly::new("stable-behind", text, [line])
    };
    behind.map(anomaly).collect()
}

/// Under faults within the promise: whether what is decided was held up for too long.
pub(super) fn too_long(facts: &Facts<'_>) -> Vec<Anomaly> {
    // How far partitions went, and since when that is known.
    let mut known: BTreeMap<Key, Vec<(Duration, Offset, usize)>> = BTreeMap::new();
    for span in facts.spans.iter().filter(|span| span.kind() == Kind::Ok) {
        let (Some(line), Some(op)) = (span.end, span.completed) else { continue };
        let mut add = |key, end| known.entry(key).or_default().push((op.time, end, line));
        if let Body::Stable(Some(told)) = span.body() {
            told.iter().for_each(|(key, (_, high))| add(*key, *high));
        }
        for micro in span.body().micros() {
            if let Micro::Send { key, offset: Some(offset), .. } = micro {
                add(*key, offset + 1);
            }
        }
    }
    let mut found = Vec::new();
    for span in facts.spans.iter().filter(|span| span.kind() == Kind::Ok) {
        let Body::Stable(Some(told)) = span.body() else { continue };
        for (key, (stable, _)) in told {
            let of_key = known.get(key).map_or(&[][..], Vec::as_slice);
            let is_due = |at: &Duration| *at + HELD_MAX < span.begun_at();
            let due = of_key.iter().filter(|(at, end, _)| is_due(at) && end > stable);
            if let Some((at, end, line)) = due.min_by_key(|(at, ..)| *at) {
                let text = format!(
                    "partition {key} is decided up to {stable} only, {:.1?} after it went up to {end}",
                    span.begun_at().saturating_sub(*at)
                );
                found.push(Anomaly::new("stable-held", text, span.ops().chain([*line])));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;

    #[test]
    fn all_is_decided_in_the_end() {
        Script::default().last().stable(90, 5, (3, 3)).finds(&[]);
        // It took a moment.
        Script::default().last().stable(90, 5, (3, 4)).stable(90, 5, (4, 4)).finds(&[]);
        Script::default().last().stable(90, 5, (3, 4)).finds(&["stable-behind"]);
        // Before that it may be behind.
        Script::default().stable(1, 5, (3, 4)).last().stable(90, 5, (4, 4)).finds(&[]);
    }

    /// An answer, and one so many seconds later.
    fn later(first: (Offset, Offset), seconds: u64, second: (Offset, Offset)) -> usize {
        let mut ops = Script::default().stable(1, 5, first).stable(1, 5, second).ops;
        ops[2..].iter_mut().for_each(|op| op.time += Duration::from_secs(seconds));
        super::super::held_too_long(&ops).len()
    }

    #[test]
    fn nothing_is_held_for_long() {
        assert_eq!(later((3, 9), 40, (9, 12)), 0);
        assert_eq!(later((3, 9), 40, (8, 12)), 1);
        assert_eq!(later((3, 9), 20, (3, 12)), 0);
        assert_eq!(later((9, 9), 40, (9, 9)), 0);
    }

    #[test]
    fn what_was_acknowledged_is_decided_in_time() {
        let mut ops = Script::default().acked(1, 5, 7, 10).stable(1, 5, (7, 8)).ops;
        assert!(super::super::held_too_long(&ops).is_empty());
        ops[2..].iter_mut().for_each(|op| op.time += Duration::from_secs(40));
        assert_eq!(super::super::held_too_long(&ops).len(), 1);
    }
}
