//! What processes take of the machine, by `/proc` (proc(5)).

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::machine::{ProcessorTime, processor_time};

/// Of `utime` and the like: the kernel's `USER_HZ`, which is 100 wherever Linux runs.
const TICKS_PER_SECOND: f64 = 100.0;
const SETTLE_WITHIN: Duration = Duration::from_secs(30);
const SETTLE_EVERY: Duration = Duration::from_millis(1500);
/// The machine counts as idle below.
const IDLE_CORES: f64 = 0.25;

/// What was taken since some moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Taken {
    pub(super) servers_cpu_s: f64,
    pub(super) switches: u64,
    /// Cores that neither servers nor client took.
    pub(super) other_cores: f64,
    pub(super) wall_s: f64,
}

/// Measures from its creation on.
pub(super) struct Meter {
    processes: Vec<u32>,
    servers_cpu_s: f64,
    client_cpu_s: f64,
    busy_s: f64,
    switches: u64,
    begun: Instant,
}

impl Meter {
    /// Measures these processes, and what ends of this one's children meanwhile: the client.
    pub(super) fn start(processes: &[u32]) -> Self {
        Self {
            processes: processes.to_vec(),
            servers_cpu_s: cpu_of(processes),
            client_cpu_s: cpu_of_ended_children(),
            busy_s: busy(),
            switches: switches_of(processes),
            begun: Instant::now(),
        }
    }

    pub(super) fn end(self) -> Taken {
        let wall_s = self.begun.elapsed().as_secs_f64();
        let servers_cpu_s = cpu_of(&self.processes) - self.servers_cpu_s;
        let client_cpu_s = cpu_of_ended_children() - self.client_cpu_s;
        let others_s = busy() - self.busy_s - servers_cpu_s - client_cpu_s;
        let switches = switches_of(&self.processes).saturating_sub(self.switches);
        Taken { servers_cpu_s, switches, other_cores: (others_s / wall_s).max(0.0), wall_s }
    }
}

/// Waits until the machine is idle, or for as long as is reasonable; how many cores are busy then.
pub(super) fn settle() -> f64 {
    let begun = Instant::now();
    loop {
        let (before_s, looked) = (busy(), Instant::now());
        thread::sleep(SETTLE_EVERY);
        let cores = (busy() - before_s) / looked.elapsed().as_secs_f64();
        if cores < IDLE_CORES || begun.elapsed() > SETTLE_WITHIN {
            return cores;
        }
    }
}

/// A process and all that it has started, which run.
pub(super) fn descendants(process: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for id in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let parent = fields(&format!("/proc/{id}/stat")).and_then(|it| it.get(1)?.parse().ok());
        children.entry(parent.unwrap_or_default()).or_default().push(id);
    }
    let mut found = vec![process];
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children.remove(parent).unwrap_or_default());
        next += 1;
    }
    found
}

/// The fields of a `stat` file from the third on: the second may hold blanks.
fn fields(file: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(file).ok()?;
    let rest = text.rsplit(')').next()?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn seconds(fields: &[String], places: [usize; 2]) -> f64 {
    let ticks = |place: usize| fields.get(place).and_then(|it| it.parse::<f64>().ok());
    places.into_iter().filter_map(ticks).sum::<f64>() / TICKS_PER_SECOND
}

fn cpu_of(processes: &[u32]) -> f64 {
    let stats = processes.iter().filter_map(|id| fields(&format!("/proc/{id}/stat")));
    stats.map(|fields| seconds(&fields, [11, 12])).sum()
}

fn cpu_of_ended_children() -> f64 {
    fields("/proc/self/stat").map_or(0.0, |fields| seconds(&fields, [13, 14]))
}

/// Processor time that the whole machine has used, and the host has given to others, in seconds.
fn busy() -> f64 {
    let ProcessorTime { used, stolen, .. } = processor_time();
    (used + stolen) / TICKS_PER_SECOND
}

fn switches_of(processes: &[u32]) -> u64 {
    let threads = processes.iter().flat_map(|id| {
        let entries = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join("status"))
    });
    let of_thread = |status: std::path::PathBuf| {
        let text = fs::read_to_string(status).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains("ctxt_switches:"));
        lines.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>()
    };
    threads.map(of_thread).sum()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_time_of_children_that_ended_is_the_clients() {
        let meter = Meter::start(&[]);
        let loops = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", loops]).status().unwrap().success());
        let taken = meter.end();
        assert_eq!((taken.servers_cpu_s, taken.switches), (0.0, 0));
        assert!(cpu_of_ended_children() > 0.0 && taken.wall_s > 0.0);
    }

    #[test]
    fn descendants_are_found_with_what_they_take() {
        let mut child = Command::new("sh").args(["-c", "sleep 30 & wait"]).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while descendants(child.id()).len() < 2 {
            assert!(Instant::now() < deadline, "the child starts another process");
            thread::yield_now();
        }
        let found = descendants(child.id());
        assert!(switches_of(&found) > 0 && descendants(std::process::id()).len() > found.len());
        for id in found.iter().rev() {
            let _gone = Command::new("kill").args(["-9", &id.to_string()]).status();
        }
        child.wait().unwrap();
    }
}
