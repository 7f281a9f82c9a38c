//! What nodes take and spend while they are broken, and after: memory, descriptors, queues, bytes put and written for
//! what clients produce, work that is refused. Each has a bound, whatever the fault.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::Anomaly;

/// Bytes are compared, and refusals counted, over this time.
const WINDOW: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// What a node said, or what the system says of its process, at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Since the run's begin.
    pub(crate) at: Duration,
    pub(crate) node: usize,
    /// Its process: what a process has counted ends with it.
    pub(crate) process: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) descriptor_count: u64,
    /// Since the process began.
    pub(crate) written_bytes: u64,
    /// If it answered.
    pub(crate) told: Option<Told>,
}

/// From a node's metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) produced_bytes: u64,
    pub(crate) put_bytes: u64,
    pub(crate) refused_count: u64,
    /// Of records that are not committed, and what waits for peers.
    pub(crate) queued_bytes: u64,
}

impl Told {
    /// Reads what `/metrics` answers.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let sum = |name: &str| -> Option<u64> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(name));
            let of_name = lines.filter(|rest| rest.starts_with([' ', '{']));
            let values = of_name.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok());
            let values: Vec<f64> = values.collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() as u64)
        };
        Some(Self {
            produced_bytes: sum("meridian_kafka_produced_bytes_total")?,
            put_bytes: sum("meridian_disk_put_bytes_total")?,
            refused_count: sum("meridian_chore_refused_total")?,
            queued_bytes: sum("meridian_log_pending_bytes")?
                + sum("meridian_peer_queued_bytes").unwrap_or_default(),
        })
    }
}

/// What may be taken and spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) memory_bytes: u64,
    pub(crate) descriptor_count: u64,
    pub(crate) queued_bytes: u64,
    /// Bytes put to disks for each byte produced, in a window and the one before; and besides, in a window.
    pub(crate) put_ratio: u64,
    pub(crate) put_bytes: u64,
    /// Bytes written, likewise.
    pub(crate) written_ratio: u64,
    pub(crate) written_bytes: u64,
    /// Pieces of work that one node's chores are refused in a window.
    pub(crate) refused_count: u64,
}

impl Bounds {
    /// Of nine nodes under the load of a run. `README.md` says how they were found.
    pub(crate) const OF_RUNS: Self = Self {
        memory_bytes: 1024 * MIB,
        descriptor_count: 5_000,
        queued_bytes: 128 * MIB,
        put_ratio: 12,
        put_bytes: 256 * MIB,
        written_ratio: 40,
        written_bytes: 1024 * MIB,
        refused_count: 600,
    };
}

/// The most of each that was needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Most {
    pub(crate) sample_count: usize,
    pub(crate) told_count: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) descriptor_count: u64,
    pub(crate) queued_bytes: u64,
    /// In a window, beyond the ratio.
    pub(crate) put_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) refused_count: u64,
    /// Of the whole run.
    pub(crate) produced_in_all_bytes: u64,
    pub(crate) put_in_all_bytes: u64,
    pub(crate) written_in_all_bytes: u64,
}

impl fmt::Display for Most {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_byte = |bytes: u64| bytes as f64 / self.produced_in_all_bytes.max(1) as f64;
        write!(
            f,
            "{} MiB of memory, {} descriptors, {} KiB queued; {} KiB produced, {:.1} bytes put and {:.1} written for each; \
             at most {} MiB put and {} MiB written beyond, and {} refusals, in {WINDOW:?} ({} looks, {} answers)",
            self.memory_bytes / MIB,
            self.descriptor_count,
            self.queued_bytes >> 10,
            self.produced_in_all_bytes >> 10,
            per_byte(self.put_in_all_bytes),
            per_byte(self.written_in_all_bytes),
            self.put_bytes / MIB,
            self.written_bytes / MIB,
            self.refused_count,
            self.sample_count,
            self.told_count,
        )
    }
}

/// Bytes of all nodes in one window.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    produced_bytes: u64,
    put_bytes: u64,
    written_bytes: u64,
}

/// What a counter has gained since another look at the same process; all of it if that is a new one.
fn gained(before: Option<&Sample>, now: &Sample, of: impl Fn(&Sample) -> Option<u64>) -> u64 {
    let known = before.filter(|before| before.process == now.process).and_then(&of);
    of(now).map_or(0, |value| value.saturating_sub(known.unwrap_or_default()))
}

/// Judges what was seen, oldest first.
pub(crate) fn check(samples: &[Sample], bounds: &Bounds) -> (Vec<Anomaly>, Most) {
    let mut most = Most { sample_count: samples.len(), ..Most::default() };
    let mut windows: BTreeMap<u64, Spent> = BTreeMap::new();
    let mut refused: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    let mut last: BTreeMap<usize, Sample> = BTreeMap::new();
    let mut last_told: BTreeMap<usize, Sample> = BTreeMap::new();
    for sample in samples {
        let window = sample.at.as_secs() / WINDOW.as_secs();
        let spent = windows.entry(window).or_default();
        most.memory_bytes = most.memory_bytes.max(sample.memory_bytes);
        most.descriptor_count = most.descriptor_count.max(sample.descriptor_count);
        let written = |it: &Sample| Some(it.written_bytes);
        spent.written_bytes += gained(last.get(&sample.node), sample, written);
        last.insert(sample.node, *sample);
        let Some(told) = sample.told else { continue };
        most.told_count += 1;
        most.queued_bytes = most.queued_bytes.max(told.queued_bytes);
        let before = last_told.get(&sample.node);
        spent.produced_bytes += gained(before, sample, |it| Some(it.told?.produced_bytes));
        spent.put_bytes += gained(before, sample, |it| Some(it.told?.put_bytes));
        *refused.entry((sample.node, window)).or_default() +=
            gained(before, sample, |it| Some(it.told?.refused_count));
        last_told.insert(sample.node, *sample);
    }
    most.refused_count = refused.into_values().max().unwrap_or_default();
    for (window, spent) in &windows {
        let before = window.checked_sub(1).and_then(|before| windows.get(&before));
        let produced = spent.produced_bytes + before.map_or(0, |before| before.produced_bytes);
        let beyond = |bytes: u64, ratio: u64| bytes.saturating_sub(produced * ratio);
        most.put_bytes = most.put_bytes.max(beyond(spent.put_bytes, bounds.put_ratio));
        most.written_bytes =
            most.written_bytes.max(beyond(spent.written_bytes, bounds.written_ratio));
        most.produced_in_all_bytes += spent.produced_bytes;
        most.put_in_all_bytes += spent.put_bytes;
        most.written_in_all_bytes += spent.written_bytes;
    }
    (anomalies(&most, bounds), most)
}

fn anomalies(most: &Most, bounds: &Bounds) -> Vec<Anomaly> {
    let of = |bytes: u64| format!("{} MiB", bytes / MIB);
    let judged = [
        (
            "resident memory of a node",
            of(most.memory_bytes),
            most.memory_bytes <= bounds.memory_bytes,
        ),
        (
            "descriptors of a node",
            most.descriptor_count.to_string(),
            most.descriptor_count <= bounds.descriptor_count,
        ),
        ("queued in a node", of(most.queued_bytes), most.queued_bytes <= bounds.queued_bytes),
        ("put beyond what was produced", of(most.put_bytes), most.put_bytes <= bounds.put_bytes),
        (
            "written beyond what was produced",
            of(most.written_bytes),
            most.written_bytes <= bounds.written_bytes,
        ),
        (
            "pieces of work of a node refused",
            most.refused_count.to_string(),
            most.refused_count <= bounds.refused_count,
        ),
    ];
    let broken = judged.into_iter().filter(|(_, _, holds)| !holds);
    let anomaly = |(what, most, _)| {
        let text =
            format!("{what}: {most}; allowed are {bounds:?}, of bytes and refusals in {WINDOW:?}");
        Anomaly { kind: "cost", text, ops: Vec::new() }
    };
    broken.map(anomaly).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        memory_bytes: 100,
        descriptor_count: 10,
        queued_bytes: 50,
        put_ratio: 3,
        put_bytes: 100,
        written_ratio: 4,
        written_bytes: 100,
        refused_count: 5,
    };

    fn sample(at_s: u64, process: u32, written_bytes: u64, told: [u64; 4]) -> Sample {
        let [produced_bytes, put_bytes, refused_count, queued_bytes] = told;
        let told = Some(Told { produced_bytes, put_bytes, refused_count, queued_bytes });
        let (memory_bytes, descriptor_count) = (100, 10);
        let at = Duration::from_secs(at_s);
        Sample { at, node: 3, process, memory_bytes, descriptor_count, written_bytes, told }
    }

    fn kinds(samples: &[Sample]) -> Vec<String> {
        check(samples, &BOUNDS).0.into_iter().map(|it| it.text).collect()
    }

    #[test]
    fn what_is_spent_for_what_is_produced_passes() {
        let samples = [
            sample(1, 7, 0, [0; 4]),
            sample(9, 7, 500, [100, 400, 5, 50]),
            // A new process counts from nothing.
            sample(21, 8, 500, [0, 400, 5, 0]),
            sample(30, 8, 500, [0, 400, 5, 0]),
        ];
        let (anomalies, most) = check(&samples, &BOUNDS);
        assert_eq!(anomalies.len(), 0);
        assert_eq!((most.put_bytes, most.written_bytes, most.refused_count), (100, 100, 5));
        assert_eq!((most.produced_in_all_bytes, most.put_in_all_bytes), (100, 800));
    }

    #[test]
    fn each_bound_is_judged() {
        let calm = sample(1, 7, 0, [0; 4]);
        let told = calm.told;
        assert_eq!(kinds(&[calm, Sample { memory_bytes: 101, ..calm }]).len(), 1);
        assert_eq!(kinds(&[calm, Sample { descriptor_count: 11, ..calm }]).len(), 1);
        assert_eq!(kinds(&[calm, Sample { written_bytes: 101, told: None, ..calm }]).len(), 1);
        for spent in [[0, 101, 0, 0], [0, 0, 6, 0], [0, 0, 0, 51]] {
            assert_eq!(kinds(&[calm, sample(2, 7, 0, spent)]).len(), 1, "{spent:?}, {told:?}");
        }
    }

    #[test]
    fn metrics_are_summed_over_their_labels() {
        let text = "# TYPE meridian_chore_refused_total counter\n\
            meridian_chore_refused_total{chore=\"cold\"} 3\nmeridian_chore_refused_total{chore=\"x\"} 4\n\
            meridian_kafka_produced_bytes_total 12\nmeridian_disk_put_bytes_total 1e3\n\
            meridian_log_pending_bytes 5\nmeridian_peer_queued_bytes{peer=\"2\"} 6\n\
            meridian_log_pending_bytes_max 100\n";
        let told = Told { produced_bytes: 12, put_bytes: 1000, refused_count: 7, queued_bytes: 11 };
        assert_eq!(Told::parse(text), Some(told));
        assert_eq!(Told::parse("meridian_log_pending_bytes 5\n"), None, "no node says only that");
    }
}
