//! Metrics of where records are: stripes, objects, and the two disks of a node.

use super::{Family, Sample, Snapshot, gauge, labelled, one_u64, total};
use crate::runtime::tiered::TierUsage;

pub(super) const FAMILIES: &[Family] = &[
    // Cold storage.
    total("meridian_cold_packed_stripes_total", "Stripes packed by leaders here.", |s| {
        one_u64(s.cold.packed_stripes)
    }),
    total("meridian_cold_packed_bytes_total", "Bytes of the record batches in them.", |s| {
        one_u64(s.cold.packed_bytes)
    }),
    total("meridian_cold_read_stripes_total", "Stripes read for clients and repairs.", |s| {
        one_u64(s.cold.read_stripes)
    }),
    total("meridian_cold_read_bytes_total", "Bytes of the record batches in them.", |s| {
        one_u64(s.cold.read_bytes)
    }),
    total(
        "meridian_cold_decoded_stripes_total",
        "Stripes read without some of their data parts, which were decoded from parity.",
        |s| one_u64(s.cold.decoded_stripes),
    ),
    total("meridian_cold_repaired_parts_total", "Parts missing or damaged, made again.", |s| {
        one_u64(s.cold.repaired_parts)
    }),
    total("meridian_cold_freed_parts_total", "Parts freed because no manifest names them.", |s| {
        one_u64(s.cold.freed_parts)
    }),
    total("meridian_object_puts_total", "Objects put by leaders here.", |s| {
        one_u64(s.cold.put_objects)
    }),
    total("meridian_object_put_bytes_total", "Bytes of the record batches in them.", |s| {
        one_u64(s.cold.put_object_bytes)
    }),
    total("meridian_object_reads_total", "Objects read for clients.", |s| {
        one_u64(s.cold.read_objects)
    }),
    total("meridian_object_read_bytes_total", "Bytes of the record batches in them.", |s| {
        one_u64(s.cold.read_object_bytes)
    }),
    total("meridian_object_deletes_total", "Objects deleted because nobody needs them.", |s| {
        one_u64(s.cold.deleted_objects)
    }),
    total("meridian_object_errors_total", "Requests that the object store failed.", |s| {
        one_u64(s.cold.object_errors)
    }),
    // Disks of two speeds.
    gauge("meridian_tier_used_bytes", "Bytes of journal files on each of two disks.", |s| {
        let both = |it: &TierUsage| {
            vec![
                labelled("tier", "fast", it.fast_used_bytes as f64),
                labelled("tier", "capacity", it.capacity_used_bytes as f64),
            ]
        };
        tiers(s).map(both).unwrap_or_default()
    }),
    gauge("meridian_tier_fast_bytes", "Bytes that they may take on the fast disk.", |s| {
        of(s, |it| it.fast_bytes)
    }),
    total("meridian_tier_moved_files_total", "Files moved to the capacity disk.", |s| {
        of(s, |it| it.counts.moved_files)
    }),
    total("meridian_tier_moved_bytes_total", "Their bytes.", |s| of(s, |it| it.counts.moved_bytes)),
    total(
        "meridian_tier_spilled_files_total",
        "Files begun on the capacity disk, because the fast one was full.",
        |s| of(s, |it| it.counts.spilled_files),
    ),
    total("meridian_tier_failed_moves_total", "Moves that failed, to be tried again.", |s| {
        of(s, |it| it.counts.failed_moves)
    }),
];

fn tiers(snapshot: &Snapshot) -> Option<&TierUsage> {
    snapshot.disk.as_ref()?.tiers.as_ref()
}

fn of(snapshot: &Snapshot, value: fn(&TierUsage) -> u64) -> Vec<Sample> {
    tiers(snapshot).map(|usage| one_u64(value(usage))).unwrap_or_default()
}
