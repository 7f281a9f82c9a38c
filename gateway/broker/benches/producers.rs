//! What many producers cost a takeover: their part of a checkpoint, written and read, and the replay
//! of what follows a checkpoint at most.
//!
//! `cargo bench --profile fast -p meridian-broker --bench producers -- [producers]`

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use meridian_base::position::Offset;
use meridian_broker::producer::{Producers, Sequenced};

/// Batches between two checkpoints: 16 MiB of batches with one small record each.
const REPLAYED_COUNT: i64 = 16 * 1024 * 1024 / 100;

fn batch(producer_id: i64, number: i64) -> Sequenced {
    Sequenced {
        producer_id: 1 << 40 | producer_id,
        epoch: 0,
        base_sequence: (number * 10) as i32,
        record_count: 10,
        max_timestamp_ms: 1_700_000_000_000 + number * 1000 + producer_id % 1000,
    }
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    println!("{what:<44} {:>8.1} ms", begun.elapsed().as_secs_f64() * 1000.0);
    result
}

/// Memory of this process; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0);
    kib * 1024
}

fn main() {
    let count = std::env::args().skip(1).find_map(|it| it.parse().ok()).unwrap_or(100_000i64);
    let before = resident_bytes();
    let mut producers = Producers::default();
    producers.set_time(1_700_000_000_000);
    let mut offset = Offset::ZERO;
    timed(&format!("five batches of {count} producers, applied"), || {
        for number in 0..5 {
            for producer_id in 0..count {
                producers.apply(&batch(producer_id, number), offset);
                offset = offset.advance(10);
            }
        }
    });
    let taken = resident_bytes().saturating_sub(before);
    println!("{:<44} {:>8.1} bytes", "  a producer, in memory", taken as f64 / count as f64);
    let encoded = timed("checkpoint written", || producers.encode());
    println!(
        "{:<44} {:>8.1} bytes",
        "  a producer, in the checkpoint",
        encoded.len() as f64 / count as f64
    );
    let mut decoded = timed("checkpoint read", || Producers::decode(encoded).unwrap_or_default());
    timed(&format!("{REPLAYED_COUNT} batches replayed"), || {
        for n in 0..REPLAYED_COUNT {
            decoded.apply(&batch(n * 7919 % count, 5 + n / count), offset);
            offset = offset.advance(10);
        }
    });
    timed("expiry looked for", || decoded.expire(1_700_000_000_000, |_| false));
    black_box(decoded);
}
