//! What it costs a leader to read the records of a batch before it appends them, beside the checksum
//! that it computes anyway.
//!
//! `cargo bench --profile fast -p meridian-protocol --features compression --bench examine`

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use meridian_protocol::records::{
    Batch, BatchBuilder, BatchHeader, Compression, RecordRules, batches,
};

const SIZE_BYTES_MAX: usize = 64 << 20;
const RUN_FOR: Duration = Duration::from_millis(500);
/// As many times at once, so that reading the clock counts for little, too.
const RUN_COUNT: u32 = 5;
const COMPRESSIONS: [Compression; 5] = [
    Compression::None,
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];

/// Lines as a service logs them: some of it differs from record to record.
fn line(number: u64) -> String {
    let mut line = String::new();
    for field in 0..8 {
        let noise = (number * 8 + field).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
        line += &format!("{{\"level\":\"info\",\"request\":{noise},\"path\":\"/api/v1/items\"}} ");
    }
    line
}

fn batch(record_count: u64, value_size_bytes: usize, compression: Compression) -> Batch {
    let mut builder = BatchBuilder::new().producer(7, 0, 0);
    for number in 0..record_count {
        let mut value = line(number).into_bytes();
        value.resize(value_size_bytes, b'.');
        builder.append(1_700_000_000_000 + number as i64, Some(b"key"), Some(&value), &[]);
    }
    let bytes = builder.build_compressed(compression).expect("compressed");
    batches(bytes).next().expect("one").expect("whole")
}

/// The time of the fastest run in half a second: what else the machine does counts for little then.
fn timed(work: impl Fn()) -> Duration {
    let (begun, mut fastest) = (Instant::now(), Duration::MAX);
    while begun.elapsed() < RUN_FOR {
        let run = Instant::now();
        for _ in 0..RUN_COUNT {
            work();
        }
        fastest = fastest.min(run.elapsed() / RUN_COUNT);
    }
    fastest
}

fn main() {
    println!(
        "records x value    compression     batch      checksum       records   MB/s of records"
    );
    for (record_count, value_size_bytes) in [(1, 100), (16, 1000), (100, 100), (1000, 500)] {
        for compression in COMPRESSIONS {
            let batch = batch(record_count, value_size_bytes, compression);
            let plain_bytes = record_count as usize * (value_size_bytes + 12);
            let rules = RecordRules {
                timestamps_ms: Some(0..=2_000_000_000_000),
                ..RecordRules::default()
            };
            let checksum = timed(|| black_box(&batch).check_crc().expect("right"));
            let records = timed(|| {
                black_box(black_box(&batch).examine(&rules, SIZE_BYTES_MAX).expect("good"));
            });
            println!(
                "{record_count:>7} x {value_size_bytes:<6} {:<11} {:>9} {:>10.2} us {:>10.2} us {:>10.0}",
                format!("{compression:?}"),
                batch.bytes().len() - BatchHeader::SIZE_BYTES,
                checksum.as_secs_f64() * 1e6,
                records.as_secs_f64() * 1e6,
                plain_bytes as f64 / records.as_secs_f64() / 1e6,
            );
        }
    }
}
