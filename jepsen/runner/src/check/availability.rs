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
    /// Longest gap of each partition, of which several may fail while others serve.
    pub(crate) longest_gap_of: BTreeMap<Key, (Duration, Duration)>,
    /// Latency of successful writes: half, 99 % and all of them took at most so long.
    pub(crate) latency: [Duration; 3],
}

/// When something was tried, and when that succeeded.
#[derive(Default)]
pub(super) struct Writes {
    pub(super) tries: Vec<Duration>,
    pub(super) acks: Vec<Duration>,
}

impl Writes {
    /// The waits from a try until the next success, and the last one without; nothing is missed while
    /// nobody tries.
    pub(super) fn waits(&self, until: Duration) -> Vec<(Duration, Duration)> {
        let (mut tries, mut acks) = (self.tries.clone(), self.acks.clone());
        tries.sort_unstable();
        acks.sort_unstable();
        let mut waits = Vec::new();
        let mut after = Duration::ZERO;
        for end in acks.into_iter().map(|ack| ack.min(until)).chain([until]) {
            // The first that was tried since the last success.
            let first = tries.partition_point(|at| *at < after);
            if let Some(begin) = tries.get(first).filter(|begin| **begin < end) {
                waits.push((*begin, end));
            }
            after = end;
        }
        waits
    }

    fn longest_gap(&self, until: Duration) -> (Duration, Duration) {
        let gaps = self.waits(until).into_iter().map(|(begin, end)| (end - begin, begin));
        gaps.max().unwrap_or_default()
    }
}

/// What was written to each partition.
pub(super) fn writes(facts: &Facts<'_>) -> BTreeMap<Key, Writes> {
    let mut writes: BTreeMap<Key, Writes> = BTreeMap::new();
    for span in &facts.spans {
        for key in written(&span.invoked.body) {
            let writes = writes.entry(key).or_default();
            writes.tries.push(span.begun_at());
            if let (Kind::Ok, Some(op)) = (span.kind(), span.completed) {
                writes.acks.push(op.time);
            }
        }
    }
    writes
}

/// When the reading of everything began, or the history ended.
pub(super) fn until(facts: &Facts<'_>) -> Duration {
    let last = facts.final_from().and_then(|line| facts.history.get(line));
    last.or_else(|| facts.history.last()).map(|op| op.time).unwrap_or_default()
}

pub(super) fn measure(facts: &Facts<'_>) -> Service {
    let mut service = Service::default();
    for span in &facts.spans {
        let counts = service.counts.entry(span.invoked.body.name().to_owned()).or_default();
        counts[0] += 1;
        counts[match span.kind() {
            Kind::Invoke | Kind::Info => 3,
            Kind::Ok => 1,
            Kind::Fail => 2,
        }] += 1;
    }
    let (until, mut all) = (until(facts), Writes::default());
    for (key, writes) in writes(facts) {
        service.longest_gap_of.insert(key, writes.longest_gap(until));
        all.tries.extend(writes.tries);
        all.acks.extend(writes.acks);
    }
    service.longest_gap = all.longest_gap(until);
    let mut latencies: Vec<Duration> = latencies(facts).into_iter().map(|(_, it)| it).collect();
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
        let is_write = !written(&span.invoked.body).is_empty();
        is_write.then(|| (span.begun_at(), op.time.saturating_sub(span.begun_at())))
    };
    facts.spans.iter().filter_map(write).collect()
}

/// What an operation writes.
fn written(body: &Body) -> Vec<Key> {
    match body {
        Body::Write { key, .. } => vec![*key],
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

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;

    #[test]
    fn waits_are_measured_from_the_first_try() {
        let ms = Duration::from_millis;
        let times = |times: &[u64]| times.iter().map(|at| ms(*at)).collect::<Vec<_>>();
        let longest = |tries: &[u64], acks: &[u64], until| {
            Writes { tries: times(tries), acks: times(acks) }.longest_gap(ms(until))
        };
        assert_eq!(longest(&[0, 5], &[1, 9], 10), (ms(4), ms(5)));
        // Nobody tried between 9 and 100.
        assert_eq!(longest(&[0, 5], &[1, 9], 100), (ms(4), ms(5)));
        assert_eq!(longest(&[0, 50], &[1], 100), (ms(50), ms(50)));
        assert_eq!(longest(&[], &[], 100).0, ms(0));
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
