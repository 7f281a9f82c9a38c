//! A client's quota holds at each node, whatever fails: never more than its rate, a second's worth after a pause,
//! and what was under way.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Anomaly, Facts};
use crate::cluster::NodeIndex;
use crate::history::{Body, Charge, Kind, Op};

/// What the workload's producers may write to each node.
pub(crate) const QUOTA_BYTES_PER_S: u32 = 10_000;
/// A full bucket. A node that was restarted has one, too.
const BURST: Duration = Duration::from_secs(1);
/// Each producer has a request under way when the others have used all there is; and how well clocks of nodes and
/// clients agree.
const UNDER_WAY_BYTES: f64 = 30_000.0;
const TOLERANCE: f64 = 1.05;

/// A write that a node took.
struct Taken {
    begun: Duration,
    ended: Duration,
    size_bytes: i64,
    line: usize,
}

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut by_node: BTreeMap<i64, Vec<Taken>> = BTreeMap::new();
    let mut was_slowed = false;
    for span in facts.spans.iter().filter(|span| span.kind() == Kind::Ok) {
        let (Some(Charge { node, size_bytes, throttle_ms }), Some(op)) =
            (span.notes().charge, span.completed)
        else {
            continue;
        };
        was_slowed |= throttle_ms > 0;
        let (begun, ended) = (span.begun_at(), op.time);
        by_node.entry(node).or_default().push(Taken { begun, ended, size_bytes, line: span.begin });
    }
    let mut found = Vec::new();
    if !by_node.is_empty() && !was_slowed {
        let text = "no producer with a quota was ever told to wait".to_owned();
        found.push(Anomaly::new("quota", text, []));
    }
    found.extend(
        by_node.into_iter().filter_map(|(node, taken)| excess(node, taken, &hits(facts, node))),
    );
    found
}

/// When faults began that name a node: it may have been started anew.
fn hits(facts: &Facts<'_>, node: i64) -> Vec<Duration> {
    let Some(name) = NodeIndex::of_id(node).map(NodeIndex::rack_name) else { return Vec::new() };
    let hit = |op: &Op| match &op.body {
        Body::Fault { begins: true, detail, .. } => {
            detail.split([' ', ',', ':']).any(|word| word == name).then_some(op.time)
        }
        _ => None,
    };
    facts.history.iter().filter_map(hit).collect()
}

/// Where most was taken beyond what is allowed, over all times from the begin of a write to the end of another.
fn excess(node: i64, mut taken: Vec<Taken>, hits: &[Duration]) -> Option<Anomaly> {
    taken.sort_by_key(|it| it.begun);
    let rate = f64::from(QUOTA_BYTES_PER_S);
    let mut worst: Option<(f64, Anomaly)> = None;
    for (index, first) in taken.iter().enumerate() {
        let mut later: Vec<&Taken> = taken.get(index..).unwrap_or_default().iter().collect();
        later.sort_by_key(|it| it.ended);
        let mut sum_bytes = 0;
        for last in later {
            sum_bytes += last.size_bytes;
            let lasted = last.ended.saturating_sub(first.begun);
            let fresh = hits.iter().filter(|at| (first.begun..last.ended).contains(*at)).count();
            let bursts = BURST.as_secs_f64() * (1 + fresh) as f64;
            let allowed = (rate * (lasted.as_secs_f64() + bursts) + UNDER_WAY_BYTES) * TOLERANCE;
            let beyond = sum_bytes as f64 - allowed;
            if beyond > 0.0 && worst.as_ref().is_none_or(|(most, _)| beyond > *most) {
                let text = format!(
                    "node {node} took {sum_bytes} bytes within {lasted:.1?} of producers that may write \
                     {QUOTA_BYTES_PER_S} a second"
                );
                worst = Some((beyond, Anomaly::new("quota", text, [first.line, last.line])));
            }
        }
    }
    worst.map(|(_, anomaly)| anomaly)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;
    use crate::history::Notes;

    /// Writes of so many kB to node 1, one a second, and how long each was told to wait.
    fn history(kilobytes: &[i64], throttle_ms: i64, fault: Option<&str>) -> usize {
        let mut script = Script::default();
        for (number, kilobytes) in (0..).zip(kilobytes) {
            let charge = Charge { node: 1, size_bytes: kilobytes * 1000, throttle_ms };
            let notes = Notes { charge: Some(charge), ..Notes::default() };
            script = script.acked(1, 5, number, number).noting(&notes);
        }
        for (at, op) in (0..).zip(&mut script.ops) {
            op.time = Duration::from_millis(500 * at);
        }
        let mut ops = script.ops;
        if let Some(detail) = fault {
            let mut hit = Script::default().fault("kill", detail).ops;
            hit.iter_mut().for_each(|op| op.time = Duration::from_millis(250));
            ops.splice(1..1, hit);
        }
        let found = super::super::anomalies(&ops);
        assert!(found.iter().all(|it| it.kind == "quota"), "{found:?}");
        found.len()
    }

    #[test]
    fn a_rate_is_kept_to() {
        assert_eq!(history(&[10; 60], 100, None), 0);
        assert_eq!(history(&[12; 60], 100, None), 1);
        // After a pause there is a second's worth more, and what is under way.
        assert_eq!(history(&[0, 0, 45, 10, 10], 100, None), 0);
        assert_eq!(history(&[0, 0, 50, 10, 10], 100, None), 1);
    }

    #[test]
    fn a_node_that_was_hit_begins_anew() {
        let much = [45, 10, 10];
        assert_eq!(history(&much, 100, None), 0);
        let more = [55, 10, 10];
        assert_eq!(history(&more, 100, None), 1);
        assert_eq!(history(&more, 100, Some("B2 A1")), 0);
        assert_eq!(history(&more, 100, Some("B2 A11")), 1);
    }

    #[test]
    fn somebody_must_have_been_slowed_down() {
        assert_eq!(history(&[1, 1], 0, None), 1);
        assert_eq!(history(&[1, 1], 1, None), 0);
        assert_eq!(history(&[], 0, None), 0);
    }
}
