//! What coding stripes costs, beside the bare library on the same bytes: encoding with part heads and
//! checksums, and reading with whatever is missing. One thread; the bytes are a function of a seed.
//! Times are those that the processor worked for this thread, so that a busy machine changes them little.

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LogPoint, Step};
use meridian_storage::erasure::{Code, Part, StripeEncoder, decode};
use reed_solomon_simd::ReedSolomonEncoder;

const PARTITION: PartitionId = PartitionId::new(1);
const ROUND_COUNT: usize = 5;
/// Time is counted in steps of some milliseconds: a round must take many of them.
const ENCODED_SIZE_BYTES: usize = 2 << 30;
const READ_SIZE_BYTES: usize = 256 << 20;

fn main() {
    for code in Code::ALL {
        for size_bytes in [256 << 10, 1 << 20, 4 << 20, 8 << 20] {
            measure(code, size_bytes);
        }
    }
}

fn measure(code: Code, size_bytes: usize) {
    let data = random(size_bytes);
    let pieces: Vec<Bytes> = data.chunks(512 << 10).map(|piece| data.slice_ref(piece)).collect();
    let shard_size_bytes = size_bytes.div_ceil(code.data_count()).next_multiple_of(64);
    let mut bare =
        ReedSolomonEncoder::new(code.data_count(), code.parity_count(), shard_size_bytes)
            .expect("a code that the library supports");
    let mut padded = data.to_vec();
    padded.resize(shard_size_bytes * code.data_count(), 0);
    let bare_rate = rate(ENCODED_SIZE_BYTES, size_bytes, || {
        for shard in padded.chunks(shard_size_bytes) {
            bare.add_original_shard(shard).expect("a shard of that size");
        }
        let coded = bare.encode().expect("all shards");
        black_box(coded.recovery_iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
    });
    let mut encoder = StripeEncoder::new(code);
    let point = LogPoint::new(Generation::FIRST, Step::new(9));
    let encode_rate = rate(ENCODED_SIZE_BYTES, size_bytes, || {
        let encoded = encoder.encode(point, &pieces);
        for part in &encoded.parts {
            black_box(part.to_blob(PARTITION, &encoded.stripe));
        }
    });
    let encoded = encoder.encode(point, &pieces);
    let payloads: Vec<Bytes> = encoded
        .parts
        .iter()
        .map(|part| part.to_blob(PARTITION, &encoded.stripe).payload.to_contiguous())
        .collect();
    let read = |lost_count: usize| {
        rate(READ_SIZE_BYTES, size_bytes, || {
            let numbers = lost_count..lost_count + code.data_count();
            let parts: Vec<Part> = numbers
                .map(|number| {
                    let payload = payloads[number].clone();
                    Part::parse(PARTITION, &encoded.stripe, number as u8, payload)
                        .expect("a part that is whole")
                })
                .collect();
            let decoded = decode(&encoded.stripe, &parts).expect("parts enough");
            assert_eq!(decoded.len(), size_bytes);
        })
    };
    let reads: Vec<String> = (0..=code.parity_count())
        .map(|lost_count| format!("{lost_count} lost {:.2}", read(lost_count)))
        .collect();
    println!(
        "{} {:>5} KiB: encode {encode_rate:.2} GB/s, bare library {bare_rate:.2} ({:.0} %); read, \
         GB/s: {}",
        code.name(),
        size_bytes >> 10,
        100.0 * encode_rate / bare_rate,
        reads.join(", ")
    );
}

/// GB/s of the median round.
fn rate(round_size_bytes: usize, size_bytes: usize, mut work: impl FnMut()) -> f64 {
    let repeat_count = round_size_bytes / size_bytes;
    let mut rounds: Vec<Duration> = (0..ROUND_COUNT)
        .map(|_| {
            let began = worked();
            (0..repeat_count).for_each(|_| work());
            worked() - began
        })
        .collect();
    rounds.sort();
    (repeat_count * size_bytes) as f64 / rounds[ROUND_COUNT / 2].as_secs_f64() / 1e9
}

/// How long the processor has worked for this thread, as Linux counts it.
fn worked() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.expect("a number comes first"))
}

fn random(size_bytes: usize) -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..size_bytes).map(|_| next()).collect()
}
