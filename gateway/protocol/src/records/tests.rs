//! Batches there and back, and against another implementation.

use bytes::{Bytes, BytesMut};
use kafka_protocol::records as theirs;
use proptest::prelude::*;

use super::*;

type Fields = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Option<Vec<u8>>)>);

fn fields() -> impl Strategy<Value = Fields> {
    let bytes = || prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
    // Keys of headers differ, because the other implementation keeps them in a map.
    let headers = prop::collection::btree_map("[a-zé]{0,5}", bytes(), 0..3)
        .prop_map(|headers| headers.into_iter().collect());
    (0..i64::MAX / 2, bytes(), bytes(), headers)
}

fn builder(records: &[Fields]) -> BatchBuilder {
    let mut builder = BatchBuilder::new().base_offset(100).partition_leader_epoch(4);
    for (timestamp_ms, key, value, headers) in records {
        let headers: Vec<_> =
            headers.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
        builder.append(*timestamp_ms, key.as_deref(), value.as_deref(), &headers);
    }
    builder
}

fn read(bytes: Bytes, size_bytes_max: usize) -> Result<Vec<Record>, BatchError> {
    let mut records = Vec::new();
    for batch in batches(bytes) {
        let batch = batch?;
        batch.check_crc()?;
        for record in batch.records(size_bytes_max)? {
            records.push(record?);
        }
    }
    Ok(records)
}

fn assert_same(records: &[Record], fields: &[Fields]) {
    assert_eq!(records.len(), fields.len());
    for (i, (record, (timestamp_ms, key, value, headers))) in records.iter().zip(fields).enumerate()
    {
        assert_eq!(record.offset, 100 + i as i64);
        assert_eq!(record.timestamp_ms, *timestamp_ms);
        assert_eq!(record.key.as_deref(), key.as_deref());
        assert_eq!(record.value.as_deref(), value.as_deref());
        let read: Vec<_> = record
            .headers
            .iter()
            .map(|header| (header.key.to_string(), header.value.as_deref().map(<[u8]>::to_vec)))
            .collect();
        assert_eq!(&read, headers);
    }
}

/// The records as the other implementation has them.
fn as_theirs(fields: &[Fields]) -> Vec<theirs::Record> {
    let record = |(i, (timestamp, key, value, headers)): (usize, &Fields)| theirs::Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: 4,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: theirs::TimestampType::Creation,
        offset: 100 + i as i64,
        sequence: i as i32,
        timestamp: *timestamp,
        key: key.clone().map(Bytes::from),
        value: value.clone().map(Bytes::from),
        headers: headers
            .iter()
            .map(|(key, value)| (key.clone().into(), value.clone().map(Bytes::from)))
            .collect(),
    };
    fields.iter().enumerate().map(record).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn batches_survive_a_round_trip(fields in prop::collection::vec(fields(), 1..20)) {
        let batch = builder(&fields).build();
        assert_same(&read(batch.clone(), batch.len()).unwrap(), &fields);
        prop_assert!(Batch::produced(Some(batch)).is_ok());
    }

    #[test]
    fn another_implementation_reads_our_batches(fields in prop::collection::vec(fields(), 1..20)) {
        let mut batch = builder(&fields).build();
        let set = theirs::RecordBatchDecoder::decode(&mut batch).unwrap();
        prop_assert_eq!(set.records.len(), fields.len());
        for (theirs, expected) in set.records.iter().zip(as_theirs(&fields)) {
            prop_assert_eq!(theirs.offset, expected.offset);
            prop_assert_eq!(theirs.timestamp, expected.timestamp);
            prop_assert_eq!(&theirs.key, &expected.key);
            prop_assert_eq!(&theirs.value, &expected.value);
            prop_assert_eq!(&theirs.headers, &expected.headers);
        }
    }

    #[test]
    fn we_read_the_batches_of_another_implementation(
        fields in prop::collection::vec(fields(), 1..20),
    ) {
        let mut bytes = BytesMut::new();
        let options = theirs::RecordEncodeOptions {
            version: 2,
            compression: theirs::Compression::None,
        };
        theirs::RecordBatchEncoder::encode(&mut bytes, &as_theirs(&fields), &options).unwrap();
        let bytes = bytes.freeze();
        assert_same(&read(bytes.clone(), bytes.len()).unwrap(), &fields);
    }

    #[test]
    fn records_of_arbitrary_bytes_never_panic(
        count in 1..5i32,
        compression in 0..5i16,
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut header = BatchHeader {
            attributes: Attributes(compression),
            records_count: count,
            size_bytes: BatchHeader::SIZE_BYTES + payload.len(),
            ..Default::default()
        };
        header.crc = header.compute_crc(&payload);
        let bytes: Bytes = [&header.to_bytes()[..], &payload].concat().into();
        let _ = read(bytes, 1 << 16);
    }
}

#[test]
fn gaps_that_compaction_leaves_are_kept() {
    let mut builder = BatchBuilder::new().base_offset(10);
    builder.append_at(3, 1, None, Some(b"a"), &[]);
    builder.append_at(5, 1, None, Some(b"b"), &[]);
    builder.keep_offsets_to(9);
    let batch = batches(builder.build()).next().unwrap().unwrap();
    assert_eq!(batch.header().last_offset(), 19);
    assert_eq!(batch.header().records_count, 2);
    let offsets: Vec<_> =
        batch.records(1000).unwrap().map(|record| record.unwrap().offset).collect();
    assert_eq!(offsets, [13, 15]);
}

#[test]
fn records_that_do_not_fill_their_batch_are_an_error() {
    let mut builder = BatchBuilder::new();
    builder.append(1, None, Some(b"a"), &[]);
    builder.append(1, None, Some(b"b"), &[]);
    let batch = batches(builder.build()).next().unwrap().unwrap();
    for (records_count, expected_ok) in [(1, 1), (3, 2)] {
        let header = BatchHeader { records_count, ..*batch.header() };
        let records: Vec<_> =
            RecordIter::new(&header, batch.record_bytes(), 1000).unwrap().collect();
        assert_eq!(records.iter().filter(|record| record.is_ok()).count(), expected_ok);
        assert!(records.last().unwrap().is_err());
    }
}

#[test]
fn log_append_time_is_the_time_of_every_record() {
    let mut builder = BatchBuilder::new();
    builder.append(1, None, None, &[]);
    builder.append(2, None, None, &[]);
    let mut bytes = builder.build().to_vec();
    let values = Stamp { base_offset: 0, partition_leader_epoch: 0, log_append_time_ms: Some(50) };
    stamp(&mut bytes, &values).unwrap();
    let times: Vec<_> =
        read(bytes.into(), 1000).unwrap().iter().map(|record| record.timestamp_ms).collect();
    assert_eq!(times, [50, 50]);
}

#[cfg(feature = "compression")]
mod compressed {
    use super::*;

    const ALL: [(Compression, theirs::Compression); 4] = [
        (Compression::Gzip, theirs::Compression::Gzip),
        (Compression::Snappy, theirs::Compression::Snappy),
        (Compression::Lz4, theirs::Compression::Lz4),
        (Compression::Zstd, theirs::Compression::Zstd),
    ];

    fn large() -> Vec<Fields> {
        (0..200i64).map(|i| (i, None, Some(vec![i.to_le_bytes()[0]; 1000]), vec![])).collect()
    }

    #[test]
    fn both_implementations_read_each_others_compressed_batches() {
        let fields = large();
        for (ours, theirs) in ALL {
            let batch = builder(&fields).build_compressed(ours).unwrap();
            assert!(batch.len() < 100_000, "{ours:?}: {} bytes", batch.len());
            assert_same(&read(batch.clone(), 1 << 20).unwrap(), &fields);
            let set = theirs::RecordBatchDecoder::decode(&mut batch.clone()).unwrap();
            assert_eq!(set.records.len(), fields.len(), "{ours:?}");

            let mut bytes = BytesMut::new();
            let options = theirs::RecordEncodeOptions { version: 2, compression: theirs };
            theirs::RecordBatchEncoder::encode(&mut bytes, &as_theirs(&fields), &options).unwrap();
            assert_same(&read(bytes.freeze(), 1 << 20).unwrap(), &fields);
        }
    }

    #[test]
    fn decompression_stops_at_its_limit() {
        let fields = large();
        let plain_bytes = builder(&fields).size_bytes() - BatchHeader::SIZE_BYTES;
        for (compression, _) in ALL {
            let batch = builder(&fields).build_compressed(compression).unwrap();
            assert!(read(batch.clone(), plain_bytes).is_ok());
            let size_bytes_max = plain_bytes - 1;
            assert_eq!(
                read(batch, size_bytes_max),
                Err(BatchError::TooLarge { size_bytes_max }),
                "{compression:?}"
            );
        }
    }

    #[test]
    fn a_bare_snappy_block_is_read_too() {
        let fields = large();
        let plain = batches(builder(&fields).build()).next().unwrap().unwrap();
        let block = snap::raw::Encoder::new().compress_vec(&plain.record_bytes()).unwrap();
        let attributes = Attributes::default().with_compression(Compression::Snappy);
        let header = BatchHeader { attributes, ..*plain.header() };
        let records: Result<Vec<_>, _> =
            RecordIter::new(&header, block.into(), 1 << 20).unwrap().collect();
        assert_same(&records.unwrap(), &fields);
    }

    #[test]
    fn a_snappy_block_cannot_claim_more_than_it_can_hold() {
        // A length of 2^26 - 1 in front of nothing.
        let result = compression::decompress(
            Compression::Snappy,
            &Bytes::from_static(&[0xff, 0xff, 0xff, 0x1f]),
            usize::MAX,
        );
        assert!(matches!(result, Err(BatchError::Compressed { .. })));
    }
}
