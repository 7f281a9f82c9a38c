use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::position::Generation;
use meridian_base::topology::{Geometry, SlotConfig, SlotState};
use meridian_protocol::records::BatchBuilder;
use meridian_storage::blob::BlobKind;
use meridian_storage::hot::Layout;
use meridian_storage::limits::SizeLimits;
use meridian_storage::message::PutResult;

use super::*;
use crate::producer::SequenceError;

mod clean;
mod mirrored;
mod sizes;
mod sources;
mod strangers;
mod transactions;
mod untimed;

const INCARNATION: Incarnation = Incarnation::new(7);

/// A partition whose puts wait until the test lets the disk answer.
struct Bench {
    partition: Partition<u32>,
    puts: VecDeque<Put>,
    answers: Vec<(u32, Result<i64, ProduceError>)>,
    verifications: VecDeque<(Ticket, Verification)>,
    health: SlotHealth,
}

impl Bench {
    fn new() -> Self {
        Self::with(SizeLimits::SMALL, Mutations::NONE)
    }

    fn with(sizes: SizeLimits, mutations: Mutations) -> Self {
        let slot =
            SlotConfig { node: NodeId::new(1), incarnation: INCARNATION, state: SlotState::Good };
        let group = GroupConfig {
            group: GroupId::new(1),
            version: ConfigVersion::new(1),
            geometry: Geometry::None,
            slots: vec![slot],
        };
        let config = LeaderConfig {
            partition: PartitionId::new(1),
            generation: Generation::FIRST,
            group,
            own_slot: Some(Slot::new(0)),
            datacenter_count_min: 1,
            layout: Layout::Copies,
            pending_size_bytes_max: 1 << 20,
            blob_size_bytes_max: sizes.blob_size_bytes_max,
            mutations,
        };
        let health = SlotHealth::all_alive(Duration::from_millis(5));
        let epoch = LeaderEpoch::new(3);
        let limits = PartitionLimits { eager_blob_count: 2, ..PartitionLimits::default() };
        let plan = TakeoverPlan::first(epoch);
        let mut out = Vec::new();
        let partition =
            Partition::start(config, epoch, limits, plan, Instant::ZERO, &health, &mut out);
        let mut bench = Self {
            partition,
            puts: VecDeque::new(),
            answers: Vec::new(),
            verifications: VecDeque::new(),
            health,
        };
        bench.take(out);
        bench.store_all();
        let mut out = Vec::new();
        assert_eq!(bench.partition.recover(PartitionState::default(), &mut out), Ok(()));
        assert!(bench.partition.is_serving());
        bench
    }

    fn take(&mut self, out: Vec<PartitionOutput<u32>>) {
        for output in out {
            match output {
                PartitionOutput::Put { put, .. } => self.puts.push_back(put),
                PartitionOutput::Answer { waiter, result } => {
                    self.answers.push((waiter, result.map(|done| done.base_offset.get())));
                }
                PartitionOutput::Verify { ticket, verification } => {
                    self.verifications.push_back((ticket, verification));
                }
                PartitionOutput::Progress(_)
                | PartitionOutput::Beacon(_)
                | PartitionOutput::Lost(_) => {}
            }
        }
    }

    fn produce(&mut self, waiter: u32, batch: RecordBatch) {
        let mut out = Vec::new();
        self.partition.produce(Instant::ZERO, &self.health, vec![batch], waiter, &mut out);
        self.take(out);
    }

    /// The disk answers the oldest put.
    fn store_one(&mut self) {
        let Some(put) = self.puts.pop_front() else { return };
        let reply =
            PutReply { key: put.blob.key, incarnation: INCARNATION, result: PutResult::Stored };
        let mut out = Vec::new();
        self.partition.on_reply(Instant::ZERO, &self.health, Slot::new(0), reply, &mut out);
        self.take(out);
    }

    fn store_all(&mut self) {
        while !self.puts.is_empty() {
            self.store_one();
        }
    }

    fn answers(&mut self) -> Vec<(u32, Result<i64, ProduceError>)> {
        std::mem::take(&mut self.answers)
    }
}

fn batch(base_sequence: i32, record_count: i32) -> RecordBatch {
    idempotent(9, base_sequence, record_count)
}

/// A batch of one record of this producer.
fn batch_of(producer_id: i64, base_sequence: i32) -> RecordBatch {
    idempotent(producer_id, base_sequence, 1)
}

fn idempotent(producer_id: i64, base_sequence: i32, record_count: i32) -> RecordBatch {
    let mut builder = BatchBuilder::new().producer(producer_id, 0, base_sequence);
    for n in 0..record_count {
        builder.append(1000 + i64::from(n), None, Some(&[0; 10]), &[]);
    }
    let record_count = record_count as u32;
    let max_timestamp_ms = 1000 + i64::from(record_count) - 1;
    let sequenced =
        Sequenced { producer_id, epoch: 0, base_sequence, record_count, max_timestamp_ms };
    RecordBatch {
        bytes: builder.build(),
        record_count,
        max_timestamp_ms,
        sequenced: Some(sequenced),
        transaction: None,
        sourced: None,
    }
}

#[test]
fn an_answer_waits_for_the_disk() {
    let mut bench = Bench::new();
    bench.produce(1, batch(0, 5));
    assert_eq!(bench.answers(), []);
    bench.store_all();
    assert_eq!(bench.answers(), [(1, Ok(0))]);
    assert_eq!(bench.partition.high_watermark(), Offset::new(5));
}

#[test]
fn a_duplicate_of_what_is_in_flight_shares_its_fate() {
    let mut bench = Bench::new();
    bench.produce(1, batch(0, 5));
    bench.produce(2, batch(0, 5));
    assert_eq!(bench.answers(), [], "not acknowledged before its original (rule 45)");
    assert_eq!(bench.puts.len(), 1);
    bench.store_all();
    assert_eq!(bench.answers(), [(1, Ok(0)), (2, Ok(0))]);
    bench.produce(3, batch(0, 5));
    assert_eq!(bench.answers(), [(3, Ok(0))]);
    assert_eq!(bench.partition.high_watermark(), Offset::new(5));
}

#[test]
fn a_gap_is_refused_and_leaves_no_trace() {
    let mut bench = Bench::new();
    bench.produce(1, batch(0, 1));
    bench.store_all();
    bench.answers();
    bench.produce(2, batch(5, 5));
    let error = SequenceError::OutOfOrder { found: 5, last: 0 };
    assert_eq!(bench.answers(), [(2, Err(ProduceError::Sequence(error)))]);
    assert!(bench.puts.is_empty());
}

#[test]
fn batches_gather_while_blobs_are_in_flight() {
    let mut bench = Bench::new();
    for n in 0..10 {
        bench.produce(n as u32, batch(n, 1));
    }
    assert_eq!(bench.puts.len(), 2, "two go at once, the rest gather");
    bench.store_one();
    assert_eq!(bench.puts.len(), 2, "a commit makes room for all that gathered");
    bench.store_all();
    let expected: Vec<_> = (0..10).map(|n| (n, Ok(i64::from(n)))).collect();
    assert_eq!(bench.answers(), expected);
}

#[test]
fn committed_records_can_be_read_with_their_offsets() {
    let mut bench = Bench::new();
    bench.produce(1, batch(0, 5));
    bench.store_all();
    bench.produce(2, batch(5, 5));
    assert!(bench.partition.tail().read(Offset::new(5), 1000).is_none(), "not committed yet");
    bench.store_all();
    let pieces = bench.partition.tail().read(Offset::new(7), 1000).unwrap_or_default();
    let bytes = Bytes::from(pieces.concat());
    let batches = batches_in(Offset::new(5), bytes.clone()).unwrap_or_default();
    assert_eq!(batches.len(), 1);
    assert_eq!(bytes[..8], 5i64.to_be_bytes(), "the base offset is the log's");
    assert_eq!(bytes[12..16], 3i32.to_be_bytes(), "the epoch is the leader's");
}

#[test]
fn losing_the_partition_leaves_waiters_in_doubt() {
    let mut bench = Bench::new();
    bench.produce(1, batch(0, 5));
    let mut out = Vec::new();
    bench.partition.stop(&mut out);
    bench.take(out);
    assert_eq!(bench.answers(), [(1, Err(ProduceError::InDoubt))]);
    assert!(!bench.partition.is_serving());
}

#[test]
fn trimming_puts_a_checkpoint_first() {
    let mut bench = Bench::new();
    bench.produce(1, batch(0, 5));
    bench.store_all();
    let mut out = Vec::new();
    let before = Offset::new(3);
    let trimmed = bench.partition.trim(Instant::ZERO, &bench.health, before, &mut out);
    assert_eq!(trimmed, Ok(()));
    bench.take(out);
    let kinds: Vec<BlobKind> = bench.puts.iter().map(|put| put.blob.header.kind).collect();
    assert_eq!(kinds, [BlobKind::Checkpoint, BlobKind::Trim]);
    assert_eq!(bench.partition.leader().log_start_offset(), Offset::ZERO);
    bench.store_all();
    assert_eq!(bench.partition.leader().log_start_offset(), before);
    let beyond = Offset::new(6);
    let refused = bench.partition.trim(Instant::ZERO, &bench.health, beyond, &mut Vec::new());
    assert_eq!(refused, Err(ProduceError::OutOfRange(beyond)));
}

#[test]
fn replay_of_the_log_gives_the_leaders_state() {
    let mut bench = Bench::new();
    let mut replayed = PartitionState::default();
    for n in 0..20 {
        bench.produce(n as u32, batch(n * 3, 3));
        while let Some(put) = bench.puts.front().cloned() {
            let payload = put.blob.payload.to_contiguous();
            assert_eq!(replayed.apply_blob(&put.blob.header, payload), Ok(()));
            bench.store_one();
        }
    }
    assert_eq!(&replayed, bench.partition.state());
    assert_eq!(PartitionState::decode(replayed.encode()), Ok(replayed));
}
