//! Batches whose records have no time: as old as their append, wherever that is needed.

use meridian_protocol::records::NO_TIMESTAMP;

use super::*;

const APPENDED_MS: i64 = 1_700_000_000_000;

fn untimed_bytes(base_offset: i64) -> Bytes {
    let mut builder = BatchBuilder::new().base_offset(base_offset);
    builder.append(NO_TIMESTAMP, None, Some(&[7; 10]), &[]);
    builder.build()
}

/// A batch as a producer sends it that knows no time.
fn untimed() -> RecordBatch {
    RecordBatch {
        bytes: untimed_bytes(0),
        record_count: 1,
        max_timestamp_ms: APPENDED_MS,
        sequenced: None,
        transaction: None,
        sourced: None,
    }
}

fn older_than(timestamp_ms_min: i64) -> Retention {
    Retention { size_bytes_max: None, timestamp_ms_min: Some(timestamp_ms_min) }
}

/// The state of the leader, and what its successor makes of its blobs.
fn leader_and_successor(bench: &mut Bench) -> [PartitionState; 2] {
    let mut replayed = PartitionState::default();
    for put in &bench.puts {
        let payload = put.blob.payload.to_contiguous();
        assert_eq!(replayed.apply_blob(&put.blob.header, payload), Ok(()));
    }
    bench.store_all();
    [bench.partition.state().clone(), replayed]
}

/// Asserts that the one record in the log goes when it is too old, and not before.
fn assert_kept_for_its_time(state: &PartitionState) {
    let end = Some(Offset::new(1));
    assert_eq!(state.expired_before(&older_than(APPENDED_MS), end), None);
    assert_eq!(state.expired_before(&older_than(APPENDED_MS + 1), end), end);
}

#[test]
fn retention_keeps_them_for_their_time() {
    let mut bench = Bench::new();
    bench.produce(1, untimed());
    for state in leader_and_successor(&mut bench) {
        assert_kept_for_its_time(&state);
        assert_eq!(PartitionState::decode(state.encode()), Ok(state));
    }
}

#[test]
fn mirrors_keep_them_for_their_time() {
    let mut bench = Bench::new();
    bench.partition.set_time(APPENDED_MS);
    let head = untimed_bytes(0);
    let batch = BatchSlice {
        base_offset: Offset::ZERO,
        last_offset: Offset::ZERO,
        max_timestamp_ms: NO_TIMESTAMP,
        head,
        body: Bytes::new(),
    };
    let (now, health, mut out) = (Instant::ZERO, bench.health.clone(), Vec::new());
    let appended =
        bench.partition.append_mirrored(now, &health, Offset::ZERO, vec![batch], 1, &mut out);
    assert_eq!(appended, Ok(()));
    bench.take(out);
    for state in leader_and_successor(&mut bench) {
        assert_kept_for_its_time(&state);
    }
}

#[test]
fn what_was_stored_without_any_time_stays() {
    let mut bench = Bench::new();
    bench.produce(1, untimed());
    let blob = &bench.puts.front().expect("one blob").blob;
    // As the leader put it before it knew better.
    let header = BlobHeader { max_timestamp_ms: NO_TIMESTAMP, ..blob.header };
    let mut state = PartitionState::default();
    assert_eq!(state.apply_blob(&header, blob.payload.to_contiguous()), Ok(()));
    let end = Some(Offset::new(1));
    assert_eq!(state.expired_before(&older_than(i64::MAX), end), None);
    let all = Retention { size_bytes_max: Some(0), timestamp_ms_min: None };
    assert_eq!(state.expired_before(&all, end), None, "the newest stays, as ever");
}
