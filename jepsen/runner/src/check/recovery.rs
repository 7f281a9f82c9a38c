//! After an overload writes take again what they took before it: nothing keeps the cluster busy with itself.

use std::time::Duration;

use super::{Facts, availability};
use crate::history::{Body, Op};
use crate::nemesis::OVERLOAD;

/// What is looked at together.
const WINDOW: Duration = Duration::from_secs(5);
/// Fewer say nothing.
const WRITE_COUNT_MIN: usize = 20;
/// Times the latency before; never less than so much, which is noise.
const FACTOR_MAX: u32 = 3;
const NOISE: Duration = Duration::from_millis(200);

/// How the cluster is after the last overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterOverload {
    /// There was none, or nothing was written before it.
    Unknown,
    /// As before, since so long after its end.
    Calm(Duration),
    NotYet,
}

pub(super) fn measure(facts: &Facts<'_>) -> AfterOverload {
    let fault = |op: &Op, begin: bool| match &op.body {
        Body::Fault { name, begins, .. } => name == OVERLOAD && *begins == begin,
        _ => false,
    };
    let first = facts.history.iter().find(|op| fault(op, true)).map(|op| op.time);
    let last = facts.history.iter().rfind(|op| fault(op, false)).map(|op| op.time);
    let (Some(first), Some(last)) = (first, last) else { return AfterOverload::Unknown };
    let writes = availability::latencies(facts);
    let among = |from: Duration, to: Duration| {
        let begun = writes.iter().filter(|(begun, _)| (from..to).contains(begun));
        let mut took: Vec<Duration> = begun.map(|(_, took)| *took).collect();
        took.sort_unstable();
        let enough = took.len() >= WRITE_COUNT_MIN;
        took.get(took.len() * 99 / 100).copied().filter(|_| enough)
    };
    let Some(before) = among(Duration::ZERO, first) else { return AfterOverload::Unknown };
    let bound = (before * FACTOR_MAX).max(NOISE);
    let Some(end) = facts.history.last().map(|op| op.time) else { return AfterOverload::Unknown };
    let mut from = last;
    while from + WINDOW <= end {
        if among(from, from + WINDOW).is_some_and(|p99| p99 <= bound) {
            return AfterOverload::Calm(from - last);
        }
        from += Duration::from_secs(1);
    }
    AfterOverload::NotYet
}

#[cfg(test)]
mod tests {
    use super::super::after_overload;
    use super::super::testing::Script;
    use super::*;
    use crate::history::{Kind, Process};

    /// Writes, an overload, and writes that take so long each.
    fn history(after: &[u64]) -> Vec<Op> {
        let script = |count: usize, from: i64| {
            (0..count).fold(Script::default(), |script, at| {
                let number = from + at as i64;
                script.acked(1, 5, number, number)
            })
        };
        let mut now = Duration::ZERO;
        let mut ops = Vec::new();
        let add = |ops: &mut Vec<Op>, now: &mut Duration, took: Duration, from: i64| {
            for (at, mut op) in script(30, from).ops.into_iter().enumerate() {
                *now += if at % 2 == 0 { Duration::from_millis(150) } else { took };
                op.time = *now;
                ops.push(op);
            }
        };
        add(&mut ops, &mut now, Duration::from_millis(2), 0);
        for begins in [true, false] {
            now += Duration::from_secs(1);
            let body = Body::Fault { name: OVERLOAD.to_owned(), begins, detail: String::new() };
            let line = Script::default().line(0, Kind::Info, body).ops;
            ops.extend(line.into_iter().map(|op| Op {
                time: now,
                process: Process::Nemesis,
                ..op
            }));
        }
        for (from, took) in (1..).zip(after) {
            add(&mut ops, &mut now, Duration::from_millis(*took), from * 100);
        }
        ops
    }

    #[test]
    fn calm_returns_or_does_not() {
        assert_eq!(after_overload(&history(&[2, 2])), AfterOverload::Calm(Duration::ZERO));
        let AfterOverload::Calm(after) = after_overload(&history(&[300, 2, 2])) else {
            unreachable!("the last writes are as quick as the first")
        };
        assert!(after > Duration::from_secs(10), "{after:?}");
        assert_eq!(after_overload(&history(&[300, 300])), AfterOverload::NotYet);
        assert_eq!(after_overload(&Script::default().ops), AfterOverload::Unknown);
    }
}
