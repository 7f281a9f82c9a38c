//! How fast a node looks after its disk and its partitions.

use std::time::Duration;

/// The bounds of a node's passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionConfig {
    /// Bytes read and put in a second.
    pub bytes_per_second: u64,
    /// Memory for keys: 48 bytes for each different one that a pass looks for.
    pub memory_bytes: usize,
}

impl Default for CompactionConfig {
    fn default() -> Self {
        Self { bytes_per_second: 8 << 20, memory_bytes: 64 << 20 }
    }
}

/// How often, and how fast, a disk is scrubbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubConfig {
    /// Time from the end of one pass to the next; `None` leaves it to operators.
    pub cycle: Option<Duration>,
    /// Bytes read in a second.
    pub bytes_per_second_max: u64,
}

impl Default for ScrubConfig {
    fn default() -> Self {
        let cycle = Some(Duration::from_secs(14 * 24 * 3600));
        Self { cycle, bytes_per_second_max: 64 << 20 }
    }
}
