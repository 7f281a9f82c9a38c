//! Metrics of what a node does by itself.

use super::{Family, Sample, Snapshot, labelled, one_u64, total};
use crate::background::{Chore, ChoreCount};

pub(super) const FAMILIES: &[Family] = &[
    total("meridian_chore_looks_total", "Partitions that a chore looked at for work.", |s| {
        by_chore(s, |count| count.looked)
    }),
    total("meridian_chore_done_total", "Pieces of work that a chore did.", |s| {
        by_chore(s, |count| count.done)
    }),
    total(
        "meridian_chore_refused_total",
        "Pieces of work that a chore could not do, and tries again after a pause.",
        |s| by_chore(s, |count| count.refused),
    ),
    total(
        "meridian_reads_failed_total",
        "Reads of records that no slot could serve; the log says which slots and why.",
        |s| one_u64(s.failed_reads),
    ),
];

fn by_chore(snapshot: &Snapshot, of: fn(&ChoreCount) -> u64) -> Vec<Sample> {
    let sample =
        |chore: Chore| labelled("chore", chore.name(), of(&snapshot.chores[chore.index()]) as f64);
    Chore::ALL.map(sample).into()
}
