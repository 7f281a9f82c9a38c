//! Metrics of copies that nobody needs.

use super::{Family, gauge, one_u64, total};

pub(super) const FAMILIES: &[Family] = &[
    gauge(
        "meridian_copies_surplus_bytes",
        "Bytes that leaders here have put beside what was needed, and not looked for yet.",
        |s| one_u64(s.copies_surplus_bytes),
    ),
    total(
        "meridian_copies_made_bytes_total",
        "Bytes that leaders here have put beside what was needed, as far as they looked for them.",
        |s| one_u64(s.copies.made_bytes),
    ),
    total(
        "meridian_copies_freed_bytes_total",
        "Bytes of copies that leaders here had freed because nobody needs them.",
        |s| one_u64(s.copies.freed_bytes),
    ),
    total(
        "meridian_disk_freed_copies_bytes_total",
        "Bytes of copies that this disk has freed because nobody needs them.",
        |s| super::counter(s, |c| c.freed_copies_bytes),
    ),
];
