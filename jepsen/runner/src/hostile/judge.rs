//! The verdict, from what was seen.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

/// The node opens files, too: connections leave it some descriptors.
const DESCRIPTORS_FREE_MIN: u64 = 16;
/// Fewer requests of the other client say nothing.
const REQUEST_COUNT_MIN: usize = 50;

/// What the other client saw during one attack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) attack: &'static str,
    /// How long its requests took.
    pub(super) took: Vec<Duration>,
    /// What became of those that failed.
    pub(super) failures: Vec<String>,
}

impl Seen {
    fn p99(&self) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        let index = (took.len() * 99).div_ceil(100).saturating_sub(1);
        took.get(index).copied().unwrap_or_default()
    }
}

/// What the other client has to say at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Testimony {
    pub(super) seen: Vec<Seen>,
    pub(super) acked: BTreeSet<u64>,
    /// In the order of the log.
    pub(super) read: Vec<u64>,
    /// Why not all could be read, if so.
    pub(super) unread: Option<String>,
}

/// Everything that a verdict needs.
#[derive(Clone, Debug)]
pub(super) struct Findings {
    pub(super) p99_max: Duration,
    pub(super) memory_bytes_max: u64,
    pub(super) ended: Option<String>,
    pub(super) alarms: Vec<String>,
    pub(super) memory_bytes: u64,
    pub(super) descriptor_count: u64,
    pub(super) descriptor_limit: u64,
    pub(super) witness: Testimony,
}

impl Findings {
    /// What broke the promise.
    pub(super) fn anomalies(&self) -> Vec<String> {
        let mut anomalies = Vec::new();
        anomalies
            .extend(self.ended.iter().map(|status| format!("process: the node ended: {status}")));
        anomalies.extend(self.alarms.iter().map(|line| format!("process: {line}")));
        if self.memory_bytes > self.memory_bytes_max {
            let (took, max) = (self.memory_bytes >> 20, self.memory_bytes_max >> 20);
            anomalies.push(format!("memory: the node took {took} MiB; {max} MiB are allowed"));
        }
        if self.descriptor_count + DESCRIPTORS_FREE_MIN > self.descriptor_limit {
            let (count, limit) = (self.descriptor_count, self.descriptor_limit);
            anomalies.push(format!("descriptors: {count} of {limit} were open"));
        }
        for seen in &self.witness.seen {
            let attack = seen.attack;
            if seen.p99() > self.p99_max {
                anomalies.push(format!("slow: under {attack} p99 was {:?}", seen.p99()));
            }
            if let Some(failure) = seen.failures.first() {
                let count = seen.failures.len();
                anomalies
                    .push(format!("failed: under {attack} {count} requests, first: {failure}"));
            }
        }
        let count: usize = self.witness.seen.iter().map(|seen| seen.took.len()).sum();
        if count < REQUEST_COUNT_MIN {
            anomalies.push(format!("slow: the other client got {count} answers in all"));
        }
        anomalies.extend(self.witness.anomalies());
        anomalies
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for seen in &self.witness.seen {
            let (attack, count, p99) = (seen.attack, seen.took.len(), seen.p99());
            let max = seen.took.iter().max().copied().unwrap_or_default();
            let _infallible =
                writeln!(text, "  {attack:<22} {count:>5} answers, p99 {p99:.1?}, max {max:.1?}");
        }
        let _infallible = writeln!(
            text,
            "  memory {} MiB, descriptors {} of {}, {} records acknowledged",
            self.memory_bytes >> 20,
            self.descriptor_count,
            self.descriptor_limit,
            self.witness.acked.len()
        );
        text
    }
}

impl Testimony {
    fn anomalies(&self) -> Vec<String> {
        if let Some(reason) = &self.unread {
            return vec![format!("unseen: the log could not be read: {reason}")];
        }
        let read: BTreeSet<u64> = self.read.iter().copied().collect();
        let lost: Vec<&u64> = self.acked.difference(&read).collect();
        let mut anomalies = Vec::new();
        if let Some(first) = lost.first() {
            anomalies.push(format!("lost-write: {} records, first {first}", lost.len()));
        }
        anomalies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Findings {
        let took = vec![Duration::from_millis(3); 100];
        let seen = vec![Seen { attack: "names", took, failures: Vec::new() }];
        Findings {
            p99_max: Duration::from_secs(1),
            memory_bytes_max: 100,
            ended: None,
            alarms: Vec::new(),
            memory_bytes: 100,
            descriptor_count: 900,
            descriptor_limit: 1024,
            witness: Testimony {
                seen,
                acked: BTreeSet::from([1, 2]),
                read: vec![1, 2, 3],
                unread: None,
            },
        }
    }

    #[test]
    fn a_good_run_is_valid() {
        assert_eq!(good().anomalies(), Vec::<String>::new());
    }

    #[test]
    fn each_bad_run_is_not() {
        type Doctor = fn(&mut Findings);
        let doctors: [(&str, Doctor); 9] = [
            ("process", |it| it.ended = Some("signal 9".to_owned())),
            ("process", |it| it.alarms.push("panicked at".to_owned())),
            ("memory", |it| it.memory_bytes += 1 << 20),
            ("descriptors", |it| it.descriptor_count = 1024),
            ("slow", |it| it.witness.seen[0].took[..2].fill(Duration::from_secs(2))),
            ("slow", |it| it.witness.seen[0].took.truncate(3)),
            ("failed", |it| it.witness.seen[0].failures.push("no answer".to_owned())),
            ("lost-write", |it| it.witness.acked.extend([9])),
            ("unseen", |it| it.witness.unread = Some("no answer".to_owned())),
        ];
        for (name, doctor) in doctors {
            let mut findings = good();
            doctor(&mut findings);
            let anomalies = findings.anomalies();
            assert_eq!(anomalies.len(), 1, "{name}: {anomalies:?}");
            assert!(anomalies[0].starts_with(name), "{anomalies:?}");
        }
    }
}
