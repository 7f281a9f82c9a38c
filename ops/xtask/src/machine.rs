//! What the whole machine does (proc_stat(5)).

use std::fs;

/// Of all processors, in ticks.
pub(crate) struct ProcessorTime {
    pub(crate) used: f64,
    pub(crate) stolen: f64,
    pub(crate) all: f64,
}

/// What all processors have done since the system was started.
pub(crate) fn processor_time() -> ProcessorTime {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let times: Vec<f64> =
        line.split_whitespace().skip(1).take(8).filter_map(|time| time.parse().ok()).collect();
    let all: f64 = times.iter().sum();
    // Neither idle nor waiting for a disk, nor with somebody else.
    let unused: f64 = times.iter().skip(3).take(2).sum();
    let stolen = times.get(7).copied().unwrap_or_default();
    ProcessorTime { used: all - unused - stolen, stolen, all }
}
