//! How well the cluster served: how many operations, how fast, and how long it did not.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Facts;
use crate::history::{Body, Key, Kind, Micro};

/// What clients got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Service {
    /// Operations by name, and of them those that succeeded, were refused, and are in doubt.
    pub(crate) counts: BTreeMap<String, [usize; 4]>,
    /// Of the operations that write: the longest time in which none succeeded, and its begin.
    pub(crate) longest_gap: (Duration, Duration),
    /// The same for each partition, of which several may fail while others serve.
    pub(crate) longest_gap_of: BTreeMap<Key, (Duration, Duration)>,
    /// Latency of successful writes: half, 99 % and all of them took at most so long.
    pub(crate) latency: [Duration; 3],
}

pub(super) fn measure(facts: &Facts<'_>) -> Service {
    let mut service = Service::default();
    let mut acks: Vec<Duration> = Vec::new();
    let mut acks_of: BTreeMap<Key, Vec<Duration>> = BTreeMap::new();
    let mut tries_of: BTreeMap<Key, Vec<Duration>> = BTreeMap::new();
    let mut latencies = Vec::new();
    let until = facts.final_from().and_then(|line| facts.history.get(line)).map(|op| op.time);
    let until = until.or_else(|| facts.history.last().map(|op| op.time)).unwrap_or_default();
    for span in &facts.spans {
        let counts = service.counts.entry(span.invoked.body.name().to_owned()).or_default();
        counts[0] += 1;
        counts[match span.kind() {
            Kind::Invoke | Kind::Info => 3,
            Kind::Ok => 1,
            Kind::Fail => 2,
        }] += 1;
        let keys = written(span.invoked.body.clone());
        for key in &keys {
            tries_of.entry(*key).or_default().push(span.begun_at());
        }
        if let (Kind::Ok, Some(op), false) = (span.kind(), span.completed, keys.is_empty()) {
            latencies.push(op.time.saturating_sub(span.begun_at()));
            acks.push(op.time);
            for key in keys {
                acks_of.entry(key).or_default().push(op.time);
            }
        }
    }
    let tries: Vec<Duration> = tries_of.values().flatten().copied().collect();
    service.longest_gap = longest_gap(tries, acks, until);
    for (key, tries) in tries_of {
        let acks = acks_of.remove(&key).unwrap_or_default();
        service.longest_gap_of.insert(key, longest_gap(tries, acks, until));
    }
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = (latencies.len() as f64 * share) as usize;
        latencies.get(index.min(latencies.len().saturating_sub(1))).copied().unwrap_or_default()
    };
    service.latency = [at(0.5), at(0.99), at(1.0)];
    service
}

/// Of each successful write, when it began and how long it took.
pub(super) fn latencies(facts: &Facts<'_>) -> Vec<(Duration, Duration)> {
    let write = |span: &super::Span<'_>| {
        let op = span.completed.filter(|op| op.kind == Kind::Ok)?;
        let is_write = !written(span.invoked.body.clone()).is_empty();
        is_write.then(|| (span.begun_at(), op.time.saturating_sub(span.begun_at())))
    };
    facts.spans.iter().filter_map(write).collect()
}

/// What an operation writes.
fn written(body: Body) -> Vec<Key> {
    match body {
        Body::Write { key, .. } => vec![key],
        // All go to one place, whatever their names.
        Body::CreateTopic { .. } | Body::DeleteTopic { .. } => vec![0],
        Body::Send(micros) | Body::Txn(micros) => {
            let key = |micro: &Micro| match micro {
                Micro::Send { key, .. } => Some(*key),
                Micro::Poll(_) => None,
            };
            let mut keys: Vec<Key> = micros.iter().filter_map(key).collect();
            keys.dedup();
            keys
        }
        _ => Vec::new(),
    }
}

/// The longest wait from a try until the next success; nothing is missed while nobody tries.
fn longest_gap(
    mut tries: Vec<Duration>,
    mut acks: Vec<Duration>,
    until: Duration,
) -> (Duration, Duration) {
    tries.sort_unstable();
    acks.sort_unstable();
    let mut longest = (Duration::ZERO, Duration::ZERO);
    let mut after = Duration::ZERO;
    for end in acks.into_iter().map(|ack| ack.min(until)).chain([until]) {
        // The first that was tried since the last success.
        let first = tries.partition_point(|at| *at < after);
        if let Some(begin) = tries.get(first).filter(|begin| **begin < end) {
            longest = longest.max((end - *begin, *begin));
        }
        after = end;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;

    #[test]
    fn waits_are_measured_from_the_first_try() {
        let ms = Duration::from_millis;
        let times = |times: &[u64]| times.iter().map(|at| ms(*at)).collect::<Vec<_>>();
        assert_eq!(longest_gap(times(&[0, 5]), times(&[1, 9]), ms(10)), (ms(4), ms(5)));
        // Nobody tried between 9 and 100.
        assert_eq!(longest_gap(times(&[0, 5]), times(&[1, 9]), ms(100)), (ms(4), ms(5)));
        assert_eq!(longest_gap(times(&[0, 50]), times(&[1]), ms(100)), (ms(50), ms(50)));
        assert_eq!(longest_gap(Vec::new(), Vec::new(), ms(100)).0, ms(0));
    }

    #[test]
    fn outcomes_are_counted() {
        let script = Script::default().acked(1, 5, 0, 10).sent(1, Kind::Fail, 5, None, 11).sent(
            1,
            Kind::Info,
            5,
            None,
            12,
        );
        let service = super::super::service(&script.ops);
        assert_eq!(service.counts["send"], [3, 1, 1, 1]);
        assert_eq!(service.latency[2], Duration::from_millis(1));
    }
}
