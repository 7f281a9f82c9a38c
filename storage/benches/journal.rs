//! What the store costs beside the disk: puts through group commit, and mounting a full journal. A number as argument is
//! how many small blobs a single journal is to have: `cargo bench -p meridian-storage --bench journal -- 10000000`.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

use std::time::{Duration, Instant as Clock};

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::env::memory::MemoryDisk;
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::position::{Generation, LogPoint, Offset, Step};
use meridian_base::topology::{Geometry, GroupConfig, SlotConfig, SlotState};
use meridian_storage::blob::{Blob, BlobHeader, BlobKey, BlobKind, Payload};
use meridian_storage::config::StoreConfig;
use meridian_storage::journal::execute;
use meridian_storage::message::{Put, StorageMessage};
use meridian_storage::store::{Origin, Store, StoreInput, StoreOutput};

const CAPACITY_BYTES: u64 = 4 << 30;
const PARTITION_COUNT: u64 = 1000;
const BATCH_PUT_COUNT: u64 = 64;
const SMALL_SIZE_BYTES: usize = 64;
/// Of the kernel, towards programs.
const TICKS_A_SECOND: u64 = 100;

fn main() {
    let count = std::env::args().filter_map(|argument| argument.parse().ok()).next();
    if let Some(put_count) = count {
        return measure(put_count, SMALL_SIZE_BYTES);
    }
    for (put_count, payload_size_bytes) in [(200_000, 256), (40_000, 4 << 10), (2_000, 128 << 10)] {
        measure(put_count, payload_size_bytes);
    }
}

fn measure(put_count: u64, payload_size_bytes: usize) {
    let mut disk = MemoryDisk::new(1);
    disk.set_capacity_bytes(CAPACITY_BYTES);
    let config = StoreConfig::new(NodeId::new(1), Incarnation::new(1), CAPACITY_BYTES);
    let mut store = Store::open(&mut disk, config).expect("an empty disk");
    store_step(&mut store, &mut disk, StoreInput::Config(group()));
    let payload = Payload::from(Bytes::from(vec![7; payload_size_bytes]));
    let mut disk_time = Duration::ZERO;
    let began = Clock::now();
    for batch in 0..put_count / BATCH_PUT_COUNT {
        let mut outputs = Vec::new();
        for number in 0..BATCH_PUT_COUNT {
            let input = put(batch * BATCH_PUT_COUNT + number, &payload);
            store.step(Instant::ZERO, input, &mut outputs);
        }
        disk_time += drain(&mut store, &mut disk, outputs);
    }
    let put_ns = (began.elapsed() - disk_time).as_nanos() / u128::from(put_count);
    let usage = store.usage();
    drop(store);
    let (began, cpu) = (Clock::now(), cpu_time());
    let store = Store::open(&mut disk, config).expect("a disk that mounts");
    let (open_ms, cpu_ms) = (began.elapsed().as_millis(), (cpu_time() - cpu).as_millis());
    assert_eq!(store.usage().live_bytes, usage.live_bytes);
    println!(
        "{put_count} puts of {payload_size_bytes} B: {put_ns} ns each beside the disk; mount of \
         {} MiB: {open_ms} ms, {cpu_ms} ms of a processor",
        usage.used_bytes >> 20
    );
}

/// Processor time of this process so far.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok());
    Duration::from_millis(ticks.sum::<u64>() * 1000 / TICKS_A_SECOND)
}

fn group() -> GroupConfig {
    let slot = SlotConfig {
        node: NodeId::new(1),
        incarnation: Incarnation::new(1),
        state: SlotState::Good,
    };
    GroupConfig {
        group: GroupId::new(1),
        version: ConfigVersion::new(1),
        geometry: Geometry::None,
        slots: vec![slot],
    }
}

fn put(number: u64, payload: &Payload) -> StoreInput {
    let step = number / PARTITION_COUNT;
    let point = LogPoint::new(Generation::FIRST, Step::new(step));
    let key = BlobKey { partition: PartitionId::new(number % PARTITION_COUNT), point };
    let header = BlobHeader::describe(BlobKind::Records, Offset::new(step as i64), 1, -1, payload);
    let blob = Blob { key, header, payload: payload.clone() };
    let put = Put { config_version: ConfigVersion::new(1), mark: None, blob };
    StoreInput::Message { origin: Origin(1), message: StorageMessage::Put(put) }
}

fn store_step(store: &mut Store, disk: &mut MemoryDisk, input: StoreInput) {
    let mut outputs = Vec::new();
    store.step(Instant::ZERO, input, &mut outputs);
    drain(store, disk, outputs);
}

/// Carries out what the store wants; gives the time that the disk took.
fn drain(store: &mut Store, disk: &mut MemoryDisk, outputs: Vec<StoreOutput>) -> Duration {
    let mut disk_time = Duration::ZERO;
    let mut outputs = std::collections::VecDeque::from(outputs);
    while let Some(output) = outputs.pop_front() {
        if let StoreOutput::Disk(op) = output {
            let began = Clock::now();
            let done = execute(disk, op);
            disk_time += began.elapsed();
            let mut more = Vec::new();
            store.step(Instant::ZERO, StoreInput::DiskDone(done), &mut more);
            outputs.extend(more);
        }
    }
    disk_time
}
