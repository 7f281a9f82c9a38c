//! Fuzz targets of this crate and of record batches: what clients send, and what the log gives back. See
//! [`meridian_base::fuzz`].

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_base::fuzz::Target;
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_protocol::Records;
use meridian_protocol::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, ConsumerProtocolTopic,
};
use meridian_protocol::records::{
    Batch, BatchBuilder, BatchHeader, Compression, NO_TIMESTAMP, RecordRules, Stamp, batches, pack,
    stamp, unpack,
};
use meridian_storage::blob::{BlobHeader, BlobKind, Payload};
use meridian_storage::mutation::Mutations;

use crate::cleaner::{Aborted, Cleaned, KeyOffsets, Round};
use crate::coordination::group_record::{self, ClassicRecord};
use crate::coordination::offset_record::{self, Committed, OffsetKey};
use crate::partition::{BatchSlice, PartitionState, batches_in};
use crate::quota::message;
use crate::share::{ShareImage, ShareState};
use crate::transaction;

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "record_batch", run: record_batch, seeds: record_batch_seeds },
    Target { name: "packed_records", run: packed_records, seeds: packed_records_seeds },
    Target { name: "cleaner", run: cleaner, seeds: record_batch_seeds },
    Target { name: "consumer_protocol", run: consumer_protocol, seeds: consumer_protocol_seeds },
    Target { name: "records_blob", run: records_blob, seeds: record_batch_seeds },
    Target { name: "partition_checkpoint", run: checkpoint, seeds: checkpoint_seeds },
    Target { name: "group_offset", run: group_offset, seeds: group_offset_seeds },
    Target { name: "group_record", run: group_record, seeds: group_record_seeds },
    Target {
        name: "transaction_record",
        run: transaction::fuzz_record,
        seeds: transaction::fuzz_record_seeds,
    },
    Target { name: "quota_message", run: message::fuzz, seeds: message::fuzz_seeds },
];

/// What a batch may decompress to.
const DECOMPRESSED_SIZE_BYTES_MAX: usize = 1 << 20;

/// Record batches as a client sends or fetches them, and as the cleaner rewrites them.
fn record_batch(data: &[u8]) {
    for batch in batches(Bytes::copy_from_slice(data)).flatten() {
        let _ = batch.check_produced();
        let rules = RecordRules { timestamps_ms: Some(0..=7), needs_key: true };
        if let Ok(examined) = batch.examine(&rules, DECOMPRESSED_SIZE_BYTES_MAX) {
            let records = batch.raw_records(DECOMPRESSED_SIZE_BYTES_MAX);
            assert!(records.is_ok_and(|it| it.iter().all(|record| record.is_ok())));
            assert!(examined.max_timestamp_ms >= NO_TIMESTAMP);
        }
        if let Ok(records) = batch.records(DECOMPRESSED_SIZE_BYTES_MAX) {
            for record in records.flatten() {
                let size_bytes = record.value.map_or(0, |value| value.len());
                assert!(size_bytes <= DECOMPRESSED_SIZE_BYTES_MAX);
            }
        }
        let values =
            Stamp { base_offset: 7, partition_leader_epoch: 1, log_append_time_ms: Some(5) };
        let mut stamped = batch.bytes().to_vec();
        assert_eq!(stamp(&mut stamped, &values), Ok(()));
        assert_eq!(BatchHeader::parse(&stamped).map(|header| header.base_offset), Ok(7));
        assert_eq!(batch.stamped(&values).into_bytes(), stamped);
    }
}

/// What a source sends to a link.
fn packed_records(data: &[u8]) {
    if let Ok(unpacked) = unpack(Bytes::copy_from_slice(data), DECOMPRESSED_SIZE_BYTES_MAX) {
        assert!(unpacked.len() <= DECOMPRESSED_SIZE_BYTES_MAX);
    }
    let records = Records::from(Bytes::copy_from_slice(data));
    if let Some(packed) = pack(&records) {
        assert_eq!(unpack(packed.into_bytes(), data.len()), Ok(records.into_bytes()));
    }
}

fn packed_records_seeds() -> Vec<Vec<u8>> {
    let packed = record_batch_seeds().into_iter().filter_map(|batches| {
        let many: Records = (0..20).map(|_| Bytes::from(batches.clone())).collect();
        Some(pack(&many)?.into_bytes().to_vec())
    });
    packed.chain(record_batch_seeds()).collect()
}

/// What the cleaner makes of batches that a leader took: their records may still be nonsense.
fn cleaner(data: &[u8]) {
    let mut keys = KeyOffsets::new(Offset::ZERO, 1 << 16);
    let values = Stamp { base_offset: 7, partition_leader_epoch: 1, log_append_time_ms: Some(5) };
    let taken = batches(Bytes::copy_from_slice(data)).flatten().filter_map(|batch| {
        let stamped = batches(batch.stamped(&values).into_bytes()).next()?.ok()?;
        stamped.check_produced().is_ok().then_some(stamped)
    });
    let taken: Vec<Batch> = taken.collect();
    for batch in &taken {
        let _full = keys.note(batch, true, DECOMPRESSED_SIZE_BYTES_MAX);
    }
    let last_batches = BTreeMap::from([(9, Offset::new(7))]);
    let round = Round {
        keys: &keys,
        last_batches: &last_batches,
        now_ms: 10,
        delete_retention_ms: 0,
        aborted: &Aborted::default(),
        batch_size_bytes_max: DECOMPRESSED_SIZE_BYTES_MAX,
        mutations: Mutations::NONE,
    };
    for batch in &taken {
        if let Ok(Cleaned::Smaller(bytes)) = round.clean(batch) {
            let header = BatchHeader::parse(&bytes);
            assert_eq!(header.map(|header| header.last_offset()), Ok(batch.header().last_offset()));
        }
    }
}

/// A batch of some records of one idempotent producer.
pub fn a_batch(compression: Compression) -> Bytes {
    let mut builder = BatchBuilder::new().producer(9, 1, 0);
    for value in ["one", "two", "two", "three three three three"] {
        builder.append(1_700_000_000_000, Some(b"key"), Some(value.as_bytes()), &[]);
    }
    builder.build_compressed(compression).expect("a small batch compresses")
}

fn record_batch_seeds() -> Vec<Vec<u8>> {
    use Compression::{Gzip, Lz4, None, Snappy, Zstd};
    let all = [None, Gzip, Snappy, Lz4, Zstd];
    let mut seeds: Vec<Vec<u8>> =
        all.into_iter().map(|compression| a_batch(compression).to_vec()).collect();
    seeds.push(seeds.concat());
    seeds
}

fn consumer_protocol(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(subscription) = ConsumerProtocolSubscription::from_bytes(bytes.clone()) {
        let _ = subscription.to_bytes();
    }
    if let Ok(assignment) = ConsumerProtocolAssignment::from_bytes(bytes) {
        let _ = assignment.to_bytes();
    }
}

fn consumer_protocol_seeds() -> Vec<Vec<u8>> {
    let topic = ConsumerProtocolTopic { topic: "orders".into(), partitions: vec![0, 1, 2] };
    let subscription = ConsumerProtocolSubscription {
        topics: vec!["orders".into()],
        owned_partitions: vec![topic.clone()],
        ..Default::default()
    };
    let assignment =
        ConsumerProtocolAssignment { assigned_partitions: vec![topic], ..Default::default() };
    [subscription.to_bytes(), assignment.to_bytes()].into_iter().flatten().map(Into::into).collect()
}

/// The payload of a records blob, as replay and readers cut it.
fn records_blob(data: &[u8]) {
    let payload = Bytes::copy_from_slice(data);
    let base_offset = Offset::ZERO;
    if let Ok(slices) = batches_in(base_offset, payload.clone()) {
        let size_bytes: usize = slices.iter().map(BatchSlice::size_bytes).sum();
        assert_eq!(size_bytes, data.len());
    }
    let described = Payload::from(payload.clone());
    let header = BlobHeader::describe(BlobKind::Records, base_offset, 1, 0, &described);
    let mut state = PartitionState::default();
    if state.apply_blob(&header, payload).is_ok() {
        assert_eq!(PartitionState::decode(state.encode()), Ok(state));
    }
}

fn checkpoint(data: &[u8]) {
    let Ok(state) = PartitionState::decode(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(PartitionState::decode(state.encode()), Ok(state.clone()));
    let _ = (state.size_bytes(), state.seek_timestamp(0, Offset::ZERO), state.producers.count());
}

fn checkpoint_seeds() -> Vec<Vec<u8>> {
    let mut state = PartitionState::default();
    let payload = a_batch(Compression::None);
    let described = Payload::from(payload.clone());
    let header = BlobHeader::describe(BlobKind::Records, Offset::ZERO, 4, 0, &described);
    let empty = state.encode().to_vec();
    state.apply_blob(&header, payload).expect("a good batch is replayed");
    vec![empty, state.encode().to_vec()]
}

/// A record of `__consumer_offsets`: the same bytes as its key and as its value.
fn group_offset(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok((group, key)) = offset_record::decode_key(bytes.clone()) {
        assert_eq!(offset_record::encode_key(&group, key), bytes);
    }
    if let Ok(committed) = offset_record::decode_value(bytes.clone()) {
        assert_eq!(offset_record::encode_value(&committed), bytes);
    }
}

/// A record about a group: the same bytes as its key and as its value.
fn group_record(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let _ = group_record::decode_key(bytes.clone());
    if let Ok(image) = group_record::decode_value::<ShareImage>(bytes.clone()) {
        // What is too much is left out, and what is kept is read as written.
        let state = ShareState::restore(&image);
        assert_eq!(ShareState::restore(&state.image()), state);
    }
    if let Ok(record) = group_record::decode_value::<ClassicRecord>(bytes) {
        let encoded = group_record::encode_value(&record);
        assert_eq!(group_record::decode_value(encoded), Ok(record));
    }
}

fn group_record_seeds() -> Vec<Vec<u8>> {
    let head = [1, 14, 1, b't', 1, b'p', 0, 1];
    let member = [1, b'm', 1, 1, b'i', 1, b'c', 1, b'h', 1, 2, 1, 3, 2, 4, 5, 2];
    let mut seeds = group_offset_seeds();
    seeds.extend([group_record::classic_key("g").to_vec(), [&head[..], &member].concat()]);
    seeds.push(vec![1, 2, 9, 2, 1, 8, 2, 1, 3, 0, 2, 0, 1, 2]);
    seeds
}

fn group_offset_seeds() -> Vec<Vec<u8>> {
    let key = OffsetKey { topic: TopicId::new(77), index: 3 };
    let committed = Committed {
        offset: 5,
        leader_epoch: 1,
        metadata: "from here".to_owned(),
        committed_at_ms: 9,
    };
    vec![
        offset_record::encode_key("group", key).into(),
        offset_record::encode_value(&committed).into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_bears_any_bytes() {
        meridian_base::fuzz::exercise_all(TARGETS, 1500);
    }
}
