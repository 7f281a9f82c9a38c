//! Appending at a source's offsets.

use super::*;

/// A batch as the source has it, under the source's leader epoch 40.
fn source_batch(base_offset: i64, record_count: i32) -> BatchSlice {
    let mut builder = BatchBuilder::new()
        .base_offset(base_offset)
        .partition_leader_epoch(40)
        .producer(9, 0, base_offset as i32);
    for n in 0..record_count {
        builder.append(1000 + i64::from(n), None, Some(&[7; 10]), &[]);
    }
    BatchSlice {
        base_offset: Offset::new(base_offset),
        last_offset: Offset::new(base_offset + i64::from(record_count) - 1),
        max_timestamp_ms: 1000 + i64::from(record_count) - 1,
        head: builder.build(),
        body: Bytes::new(),
    }
}

impl Bench {
    fn mirror(&mut self, expected: i64, batches: Vec<BatchSlice>) -> Result<(), MirrorError> {
        let (expected, mut out) = (Offset::new(expected), Vec::new());
        let (now, health) = (Instant::ZERO, self.health.clone());
        let appended = self.partition.append_mirrored(now, &health, expected, batches, 1, &mut out);
        self.take(out);
        appended
    }

    fn begin_at(&mut self, at: i64) -> Result<(), MirrorError> {
        let mut out = Vec::new();
        let (now, health) = (Instant::ZERO, self.health.clone());
        let begun = self.partition.begin_at(now, &health, Offset::new(at), 7, &mut out);
        self.take(out);
        begun
    }

    /// The bytes from `from` on, as a consumer gets them.
    fn read(&self, from: i64) -> Vec<u8> {
        self.partition.tail().read(Offset::new(from), usize::MAX).unwrap_or_default().concat()
    }
}

fn not_at_end(expected: i64, end: i64) -> Result<(), MirrorError> {
    Err(MirrorError::NotAtEnd { expected: Offset::new(expected), end: Offset::new(end) })
}

#[test]
fn bytes_epochs_and_offsets_are_the_sources() {
    let mut bench = Bench::new();
    let (first, second) = (source_batch(0, 3), source_batch(3, 2));
    assert_eq!(bench.mirror(0, vec![first.clone(), second.clone()]), Ok(()));
    assert_eq!(bench.answers(), [], "not before it is durable");
    bench.store_all();
    assert_eq!(bench.answers(), [(1, Ok(0))]);
    assert_eq!(bench.partition.high_watermark(), Offset::new(5));
    assert_eq!(bench.read(0), [first.head, second.head].concat());
}

#[test]
fn only_the_end_is_appended_to() {
    let mut bench = Bench::new();
    assert_eq!(bench.mirror(0, vec![source_batch(0, 3)]), Ok(()));
    assert_eq!(bench.mirror(0, vec![source_batch(0, 3)]), not_at_end(0, 3), "a repeat");
    assert_eq!(
        bench.mirror(4, vec![source_batch(4, 1)]),
        not_at_end(4, 3),
        "a gap nobody explained"
    );
    assert_eq!(bench.mirror(3, vec![source_batch(2, 2)]), not_at_end(2, 3), "an overlap");
    bench.store_all();
    assert_eq!(bench.partition.high_watermark(), Offset::new(3));
}

#[test]
fn gaps_are_kept_and_read_over() {
    let mut bench = Bench::new();
    let batches = [source_batch(0, 1), source_batch(10, 2), source_batch(20, 1)];
    assert_eq!(bench.mirror(0, batches.to_vec()), Ok(()));
    let put = bench.puts.front().expect("one blob").blob.clone();
    assert_eq!((put.header.base_offset, put.header.record_count), (Offset::ZERO, 21));
    bench.store_all();
    assert_eq!(bench.partition.high_watermark(), Offset::new(21));
    assert_eq!(bench.read(5), [&batches[1].head[..], &batches[2].head[..]].concat());

    // A new leader sees the same from the blob alone.
    let mut replayed = PartitionState::default();
    assert_eq!(replayed.apply_blob(&put.header, put.payload.to_contiguous()), Ok(()));
    assert_eq!(replayed, *bench.partition.state());
    let found = batches_in(Offset::ZERO, put.payload.to_contiguous()).unwrap_or_default();
    let bases: Vec<i64> = found.iter().map(|batch| batch.base_offset.get()).collect();
    assert_eq!(bases, [0, 10, 20]);
}

#[test]
fn an_empty_log_begins_wherever_its_source_does() {
    let far = 3 * i64::from(u32::MAX) + 5;
    let mut bench = Bench::new();
    assert_eq!(bench.begin_at(far), Ok(()));
    assert_eq!(bench.partition.end_offset(), Offset::new(far));
    assert_eq!(bench.answers(), [], "not before it is durable");
    bench.store_all();
    assert_eq!(bench.answers(), [(7, Ok(0))]);
    assert_eq!(bench.mirror(far, vec![source_batch(far, 2)]), Ok(()));
    bench.store_all();
    assert_eq!(bench.partition.high_watermark(), Offset::new(far + 2));
    assert_eq!(bench.begin_at(far + 9), not_at_end(far + 9, far + 2), "it has records now");
}

#[test]
fn a_source_that_begins_absurdly_far_on_is_refused() {
    let mut bench = Bench::new();
    let at = Offset::new(1 << 60);
    assert_eq!(bench.begin_at(at.get()), Err(MirrorError::BeginsTooFar { at }));
    assert_eq!(bench.partition.end_offset(), Offset::ZERO, "nothing was put");
}

#[test]
fn a_gap_that_no_blob_can_span_is_an_error() {
    let mut bench = Bench::new();
    let offsets = i64::from(u32::MAX);
    let result = bench.mirror(0, vec![source_batch(offsets, 1)]);
    assert_eq!(result, Err(MirrorError::GapTooLarge { offsets }));
}

#[test]
fn a_promoted_log_knows_the_producers_of_its_source() {
    let mut bench = Bench::new();
    assert_eq!(bench.mirror(0, vec![source_batch(0, 3)]), Ok(()));
    bench.store_all();
    bench.answers();
    bench.produce(2, batch(0, 3));
    assert_eq!(bench.answers(), [(2, Ok(0))], "a resend of what was mirrored is a duplicate");
    bench.produce(3, batch(3, 1));
    bench.store_all();
    assert_eq!(bench.answers(), [(3, Ok(3))]);
}

#[test]
fn what_the_source_left_open_is_aborted_and_readers_go_on() {
    let mut bench = Bench::new();
    let mut builder = BatchBuilder::new().producer(9, 3, 0).transactional();
    builder.append(1000, None, Some(&[7; 10]), &[]);
    let open = BatchSlice {
        base_offset: Offset::ZERO,
        last_offset: Offset::ZERO,
        max_timestamp_ms: 1000,
        head: builder.build(),
        body: Bytes::new(),
    };
    assert_eq!(bench.mirror(0, vec![open, source_batch(1, 2)]), Ok(()));
    bench.store_all();
    bench.answers();
    assert_eq!(bench.partition.last_stable_offset(), Offset::ZERO);

    let abort = |bench: &mut Bench, waiter| {
        let (mut out, health) = (Vec::new(), bench.health.clone());
        bench.partition.abort_open_transactions(Instant::ZERO, &health, 2000, waiter, &mut out);
        bench.take(out);
    };
    abort(&mut bench, 2);
    assert_eq!(bench.answers(), [], "not before the marker is durable");
    bench.store_all();
    assert_eq!(bench.answers(), [(2, Ok(3))]);
    assert_eq!(bench.partition.last_stable_offset(), Offset::new(4));
    let aborted = bench.partition.state().transactions.aborted();
    let aborted = aborted.between(Offset::ZERO, Offset::new(4)).unwrap_or_default();
    assert_eq!(aborted.iter().map(|it| it.producer_id).collect::<Vec<_>>(), [9]);

    // Repeated, it writes nothing: there is nothing open.
    abort(&mut bench, 3);
    assert_eq!(bench.answers(), [(3, Ok(4))]);
    assert_eq!(bench.partition.end_offset(), Offset::new(4));
}
