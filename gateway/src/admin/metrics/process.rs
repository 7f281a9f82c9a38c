//! What the kernel says of this process; nothing where there is no `/proc`.

use super::{Family, Sample, Snapshot, gauge, one_u64, total};
use crate::runtime::descriptors;

/// Kernel ticks in a second, as Linux reports them to programs on every machine of today.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) const FAMILIES: &[Family] = &[
    gauge("process_resident_memory_bytes", "Resident memory.", |s| {
        s.process.resident_bytes.map(one_u64).unwrap_or_default()
    }),
    total("process_cpu_seconds_total", "User and system processor time.", |s| {
        seconds(s.process.cpu_seconds)
    }),
    gauge("process_start_time_seconds", "When the process began, since 1970.", |s| {
        seconds(s.process.start_seconds)
    }),
    gauge("process_open_fds", "File descriptors that are open.", |s: &Snapshot| {
        s.process.open_fds.map(one_u64).unwrap_or_default()
    }),
    gauge("process_max_fds", "File descriptors that may be open.", |s: &Snapshot| {
        s.process.max_fds.map(one_u64).unwrap_or_default()
    }),
];

fn seconds(value: Option<f64>) -> Vec<Sample> {
    value.map(|value| Sample { labels: Vec::new(), value }).into_iter().collect()
}

#[derive(Default)]
pub(super) struct Process {
    pub(super) resident_bytes: Option<u64>,
    pub(super) cpu_seconds: Option<f64>,
    pub(super) start_seconds: Option<f64>,
    pub(super) open_fds: Option<u64>,
    pub(super) max_fds: Option<u64>,
}

impl Process {
    pub(super) fn read() -> Self {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let stat = read("/proc/self/stat");
        let open = std::fs::read_dir("/proc/self/fd").ok();
        Self {
            resident_bytes: resident_bytes(&read("/proc/self/status")),
            cpu_seconds: cpu_seconds(&stat),
            start_seconds: start_seconds(&stat, &read("/proc/stat")),
            // One of them is the look at them.
            open_fds: open.map(|fds| (fds.count() as u64).saturating_sub(1)),
            max_fds: descriptors::limit().ok(),
        }
    }
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The fields after the 2nd, which is a name in parentheses; `number` counts from 1, as the kernel's manual does.
fn field(stat: &str, number: usize) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// `utime` and `stime`.
fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) as f64 / TICKS_PER_SECOND)
}

/// `starttime`, which is since the machine began.
fn start_seconds(stat: &str, machine: &str) -> Option<f64> {
    let began_at: u64 =
        machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(began_at as f64 + field(stat, 22)? as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_understood() {
        let stat = "7 (a) b) S 1 1 1 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 1250 7";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("7 (a) S 1"), None);
        assert_eq!(start_seconds(stat, "cpu 1\nbtime 1000\n"), Some(1012.5));
        assert_eq!(start_seconds(stat, ""), None);
        assert_eq!(resident_bytes("Name: x\nVmRSS:\t  2048 kB\n"), Some(2 << 20));
        let own = Process::read();
        assert!(own.resident_bytes.is_some_and(|bytes| bytes > 0) && own.cpu_seconds.is_some());
        assert!(own.start_seconds.is_some_and(|at| at > 1.5e9));
        assert!(own.open_fds > Some(2) && own.max_fds > own.open_fds);
    }
}
