//! Metrics of what is read before readers ask for it.

use super::{Family, Snapshot, gauge, labelled, one, one_u64, total};

pub(super) const FAMILIES: &[Family] = &[
    total(
        "meridian_read_ahead_total",
        "Reads of records that are not in the leader's memory, by whether they had been read ahead.",
        |s: &Snapshot| {
            let counts = &s.ahead;
            let by_found =
                [("here", counts.hits), ("coming", counts.waits), ("nothing", counts.misses)];
            by_found.map(|(found, count)| labelled("found", found, count as f64)).into()
        },
    ),
    total(
        "meridian_read_ahead_refused_total",
        "Times when nothing was read ahead, as what is held for other readers filled its memory.",
        |s| one_u64(s.ahead.refused),
    ),
    total("meridian_read_ahead_bytes_total", "Bytes read ahead.", |s| one_u64(s.ahead.read_bytes)),
    total(
        "meridian_read_ahead_dropped_bytes_total",
        "Bytes read ahead that no reader asked for: readers went, or read elsewhere.",
        |s| one_u64(s.ahead.dropped_bytes),
    ),
    gauge("meridian_read_ahead_held_bytes", "Bytes read ahead in memory, or on their way.", |s| {
        one(s.ahead.held_bytes)
    }),
    gauge("meridian_disk_reads_waiting", "Reads that wait for the disk.", |s| {
        one(s.disk_reads_waiting)
    }),
];
