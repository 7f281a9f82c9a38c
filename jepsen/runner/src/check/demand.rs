//! What the catalogue of faults demands beside safety: that service is back in time, and what the nemesis of a
//! fault looked at itself.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Anomaly, FINAL, Facts, availability};
use crate::history::{Body, Kind, Op};

/// After the last fault, for every partition to be written to again.
pub(crate) const AGAIN_WITHIN: Duration = Duration::from_secs(30);

/// When a fault lets writes succeed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// So long after it began, while it goes on, and so long after its end.
    Throughout(Duration),
    /// So long after its end; before it may be as it is.
    AfterIt(Duration),
}

/// How service came back after faults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Returns {
    /// By fault, the longest wait for a write to a partition, from when it began or ended.
    pub(crate) longest: BTreeMap<String, Duration>,
    pub(crate) anomalies: Vec<Anomaly>,
}

/// A time between two begins or ends of faults.
struct Window<'a> {
    /// The line of the begin or end from which waits count.
    line: usize,
    /// What began or ended there.
    name: &'a str,
    from: Duration,
    to: Duration,
    /// The longest of what is demanded of all that goes on; `None` if something may take as long as it does.
    within: Option<Duration>,
}

/// What nemeses saw.
pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut found = Vec::new();
    for span in facts.spans.iter().filter(|span| span.kind() == Kind::Ok) {
        if let Body::Demand { what, met: Some(false) } = span.body() {
            found.push(Anomaly::new("demand", format!("it is not so that {what}"), span.ops()));
        }
    }
    found
}

/// Whether writes waited longer than is demanded, times `slack`.
pub(super) fn returns(
    facts: &Facts<'_>,
    demand_of: impl Fn(&str) -> Option<Demand>,
    slack: f64,
) -> Returns {
    let until = availability::until(facts);
    let windows = windows(facts, until, demand_of);
    let mut returns = Returns::default();
    for (key, writes) in availability::writes(facts) {
        for (begin, end) in writes.waits(until) {
            let hit = windows.iter().filter(|window| begin < window.to && window.from < end);
            for window in hit {
                let waited = end.min(window.to).saturating_sub(begin.max(window.from));
                let longest = returns.longest.entry(window.name.to_owned()).or_default();
                *longest = waited.max(*longest);
                if let Some(within) = window.within.filter(|it| waited > it.mul_f64(slack)) {
                    let text = format!(
                        "no write to partition {key} succeeded for {waited:.1?} after {} of {:.1?}; \
                         {within:?} are demanded, times {slack}",
                        window.name, window.from
                    );
                    returns.anomalies.push(Anomaly::new("demand", text, [window.line]));
                }
            }
        }
    }
    returns
}

/// From each begin or end of a fault to the next.
fn windows<'a>(
    facts: &Facts<'a>,
    until: Duration,
    demand_of: impl Fn(&str) -> Option<Demand>,
) -> Vec<Window<'a>> {
    let mut windows: Vec<Window<'a>> = Vec::new();
    let mut active: Vec<&str> = Vec::new();
    for (line, op) in facts.history.iter().enumerate() {
        let Body::Fault { name, begins, .. } = &op.body else { continue };
        if let Some(last) = windows.last_mut() {
            last.to = op.time;
        }
        if name == FINAL {
            break;
        }
        // What ended counts, too.
        let ended = if *begins {
            active.push(name);
            Some(Duration::ZERO)
        } else {
            active.retain(|it| it != name);
            demand_of(name).map(|demand| match demand {
                Demand::Throughout(within) | Demand::AfterIt(within) => within,
            })
        };
        let going_on = active.iter().map(|name| match demand_of(name) {
            Some(Demand::Throughout(within)) => Some(within),
            Some(Demand::AfterIt(_)) | None => None,
        });
        let within =
            going_on.chain([ended]).try_fold(Duration::ZERO, |most, it| Some(most.max(it?)));
        windows.push(Window { line, name, from: op.time, to: until, within });
    }
    windows
}

/// The partitions that were written to, and are not again after the last fault.
pub(super) fn not_again(facts: &Facts<'_>) -> Vec<Anomaly> {
    let is_end = |op: &Op| matches!(op.body, Body::Fault { begins: false, .. });
    let last = facts.history.iter().enumerate().rfind(|(_, op)| is_end(op));
    let Some((line, end)) = last else { return Vec::new() };
    let in_time = end.time..=end.time + AGAIN_WITHIN;
    let mut found = Vec::new();
    for (key, writes) in availability::writes(facts) {
        if !writes.acks.iter().any(|at| in_time.contains(at)) {
            let text = format!(
                "no write to partition {key} succeeded in {AGAIN_WITHIN:?} after the last fault"
            );
            found.push(Anomaly::new("not-again", text, [line]));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;
    use crate::history::Process;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn what_is_demanded_comes_true() {
        let demand = |met| Body::Demand { what: "it goes on".to_owned(), met };
        let script = |met| Script::default().op(1, Kind::Ok, demand(None), demand(Some(met)));
        script(true).finds(&[]);
        script(false).finds(&["demand"]);
    }

    /// Faults begin and end, and partitions are written to: each write from when to when.
    fn history(faults: &[(u64, bool, &str)], writes: &[(i64, u64, u64)]) -> Vec<Op> {
        let mut ops = Vec::new();
        for (at, begins, name) in faults {
            let (name, detail) = ((*name).to_owned(), String::new());
            let body = Body::Fault { name, begins: *begins, detail };
            let lines = Script::default().line(0, Kind::Info, body).ops;
            ops.extend(lines.into_iter().map(|op| Op {
                time: S(*at),
                process: Process::Nemesis,
                ..op
            }));
        }
        for (process, (key, from, to)) in (1..).zip(writes) {
            let lines = Script::default().acked(process, *key, process, process).ops;
            ops.extend(lines.into_iter().zip([from, to]).map(|(op, at)| Op { time: S(*at), ..op }));
        }
        ops.sort_by_key(|op| op.time);
        ops
    }

    fn of(name: &str) -> Option<Demand> {
        match name {
            "kill" => Some(Demand::Throughout(S(5))),
            "dc" => Some(Demand::Throughout(S(10))),
            "all" => Some(Demand::AfterIt(S(5))),
            _ => None,
        }
    }

    /// How many waits are too long, at twice what is demanded.
    fn late(faults: &[(u64, bool, &str)], writes: &[(i64, u64, u64)]) -> usize {
        let history = history(faults, writes);
        let found = returns(&Facts::of(&history), of, 2.0).anomalies;
        assert!(found.iter().all(|it| it.kind == "demand"));
        found.len()
    }

    #[test]
    fn service_is_back_in_time() {
        let kill = [(10, true, "kill"), (30, false, "kill")];
        assert_eq!(late(&kill, &[(1, 10, 20)]), 0);
        assert_eq!(late(&kill, &[(1, 10, 21)]), 1);
        // One partition serves, another does not.
        assert_eq!(late(&kill, &[(1, 10, 11), (2, 10, 21)]), 1);
        // Nobody wrote for a long time; a wait before the fault is not its own.
        assert_eq!(late(&kill, &[(1, 9, 10), (1, 28, 31)]), 0);
        assert_eq!(late(&kill, &[(1, 1, 15)]), 0);
        // A write that never ends.
        let mut ops = history(&kill, &[(1, 11, 12), (1, 12, 40)]);
        ops.pop();
        assert_eq!(returns(&Facts::of(&ops), of, 2.0).anomalies.len(), 1);
        // After its end the same time is given once more.
        assert_eq!(late(&kill, &[(1, 25, 40)]), 0);
        assert_eq!(late(&kill, &[(1, 25, 41)]), 1);
    }

    #[test]
    fn what_may_stop_service_is_judged_from_its_end() {
        let all = [(10, true, "all"), (30, false, "all")];
        assert_eq!(late(&all, &[(1, 10, 40)]), 0);
        assert_eq!(late(&all, &[(1, 10, 41)]), 1);
    }

    #[test]
    fn faults_at_the_same_time_have_the_longest_of_their_times() {
        let both = [(10, true, "kill"), (11, true, "dc"), (40, false, "kill"), (60, false, "dc")];
        assert_eq!(late(&both, &[(1, 10, 31)]), 0);
        assert_eq!(late(&both, &[(1, 10, 32)]), 1);
        // Nothing is demanded of one of them.
        let other = [(10, true, "kill"), (11, true, "clock"), (60, false, "kill")];
        assert_eq!(late(&other, &[(1, 10, 90)]), 0);
    }

    #[test]
    fn the_longest_waits_are_told_by_fault() {
        let ops = history(&[(10, true, "kill"), (30, false, "kill")], &[(1, 11, 14), (2, 12, 13)]);
        let told = returns(&Facts::of(&ops), of, 2.0).longest;
        assert_eq!(told, [("kill".to_owned(), S(3))].into());
    }

    #[test]
    fn all_is_written_again() {
        let kill = [(10, true, "kill"), (30, false, "kill")];
        let count =
            |writes: &[(i64, u64, u64)]| not_again(&Facts::of(&history(&kill, writes))).len();
        assert_eq!(count(&[(1, 1, 2), (1, 31, 32)]), 0);
        assert_eq!(count(&[(1, 1, 2), (2, 31, 32)]), 1);
        assert_eq!(count(&[(1, 31, 60)]), 0);
        assert_eq!(count(&[(1, 31, 61)]), 1);
        assert!(not_again(&Facts::of(&history(&[], &[(1, 1, 2)]))).is_empty());
    }
}
