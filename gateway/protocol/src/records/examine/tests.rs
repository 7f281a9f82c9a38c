use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

use super::super::{BatchBuilder, BatchHeader, batches};
use super::*;

const ALL: [Compression; 5] = [
    Compression::None,
    Compression::Gzip,
    Compression::Snappy,
    Compression::Lz4,
    Compression::Zstd,
];
const SIZE_BYTES_MAX: usize = 1 << 20;

/// Records of these times, every other one with a key.
fn records(timestamps_ms: &[i64], value_size_bytes: usize) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    for (index, timestamp_ms) in timestamps_ms.iter().enumerate() {
        let key = (index % 2 == 0).then_some(b"key".as_slice());
        let value = vec![index as u8; value_size_bytes];
        builder.append(*timestamp_ms, key, Some(&value), &[("h", Some(b"x")), ("null", None)]);
    }
    builder
}

fn compressed(timestamps_ms: &[i64], compression: Compression) -> Batch {
    whole(records(timestamps_ms, 100).build_compressed(compression).unwrap())
}

fn whole(bytes: Bytes) -> Batch {
    batches(bytes).next().unwrap().unwrap()
}

/// A batch with this header, but for its size and checksum, and these bytes behind it.
fn with_records(header: &BatchHeader, records: &[u8]) -> Batch {
    let size_bytes = BatchHeader::SIZE_BYTES + records.len();
    let mut header = BatchHeader { size_bytes, ..*header };
    header.crc = header.compute_crc(records);
    let mut bytes = BytesMut::from(&header.to_bytes()[..]);
    bytes.put_slice(records);
    whole(bytes.freeze())
}

fn examine(batch: &Batch) -> Result<Examined, BatchError> {
    batch.check_crc().unwrap();
    batch.examine(&RecordRules::default(), SIZE_BYTES_MAX)
}

#[test]
fn the_largest_time_is_that_of_the_records() {
    for compression in ALL {
        for (timestamps_ms, expected) in [
            (&[1000, 3000, 2000][..], 3000),
            (&[-1, -1], -1),
            (&[-1, 7], 7),
            (&[-9, -5], NO_TIMESTAMP),
            (&[0], 0),
        ] {
            let batch = compressed(timestamps_ms, compression);
            for stated_ms in [-1, 0, 5000, batch.header().max_timestamp_ms] {
                let header = BatchHeader { max_timestamp_ms: stated_ms, ..*batch.header() };
                let found = examine(&with_records(&header, &batch.record_bytes())).unwrap();
                assert_eq!(found.max_timestamp_ms, expected, "{compression:?} {timestamps_ms:?}");
                assert_eq!(found.refused, []);
            }
        }
    }
}

#[test]
fn a_batch_that_its_readers_could_not_read_is_refused() {
    for compression in ALL {
        let batch = compressed(&[1, 2, 3], compression);
        let (header, bytes) = (*batch.header(), batch.record_bytes());
        let refused = |what: &str, header: BatchHeader, bytes: &[u8]| {
            let examined = examine(&with_records(&header, bytes));
            assert!(examined.is_err(), "{compression:?}: {what}: {examined:?}");
        };
        for records_count in [1, 2, 4, 5, i32::MAX] {
            let last_offset_delta = records_count - 1;
            let counted = BatchHeader { records_count, last_offset_delta, ..header };
            refused("a count that does not match", counted, &bytes);
        }
        refused("nothing", header, b"");
        refused("cut short", header, &bytes[..bytes.len() - 1]);
        refused("something behind", header, &[&bytes[..], &[0; 20]].concat());
        refused("rubbish", header, &[0x5a; 300]);
        let beyond = BatchHeader { base_timestamp_ms: i64::MAX, ..header };
        refused("a time beyond all time", beyond, &bytes);
    }
}

#[test]
fn a_record_must_be_what_it_says() {
    let batch = compressed(&[1], Compression::None);
    let good = batch.record_bytes().to_vec();
    let refused = |what: &str, at: usize, bytes: &[u8]| {
        let record = [&good[..at], bytes, &good[at + 1..]].concat();
        let length = (record.len() as u64 - 2) * 2;
        let record = [&[length as u8 & 0x7f | 0x80, (length >> 7) as u8], &record[2..]].concat();
        let examined = examine(&with_records(batch.header(), &record));
        assert!(examined.is_err(), "{what}: {examined:?}");
    };
    let longer = [&[good[0] + 2], &good[1..]].concat();
    assert!(examine(&with_records(batch.header(), &longer)).is_err(), "longer than its batch");
    // length (2) | attributes | timestamp delta | offset delta | key length ...
    refused("an offset that is not its own", 4, &[2]);
    refused("an offset before the batch", 4, &[1]);
    refused("a varint that Java does not read", 4, &[0x80, 0x80, 0x80, 0x80, 0x80, 0]);
    refused("a key longer than its record", 5, &[0xfe, 0x0f]);
    refused("a key of less than none", 5, &[3]);
    refused("a record that ends early", good.len() - 1, &[]);
    refused("a record that ends late", good.len() - 1, &[1, 0]);
}

#[test]
fn what_a_topic_does_not_take_is_named() {
    for compression in ALL {
        let batch = compressed(&[50, 99, 100, 200, 201, -1], compression);
        let rules = |timestamps_ms, needs_key| RecordRules { timestamps_ms, needs_key };
        let refused = |rules| batch.examine(&rules, SIZE_BYTES_MAX).unwrap().refused;
        assert_eq!(refused(rules(None, false)), []);
        let time = Refusal::Timestamp;
        assert_eq!(
            refused(rules(Some(100..=200), false)),
            [(0, time(50)), (1, time(99)), (4, time(201))]
        );
        let keyless = Refusal::NoKey;
        assert_eq!(refused(rules(None, true)), [(1, keyless), (3, keyless), (5, keyless)]);
        assert_eq!(
            refused(rules(Some(0..=99), true)),
            [(1, keyless), (2, time(100)), (3, keyless), (4, time(201)), (5, keyless)]
        );
    }
    let many = compressed(&[5; 3000], Compression::Lz4);
    let rules = RecordRules { timestamps_ms: Some(9..=9), needs_key: false };
    assert_eq!(many.examine(&rules, SIZE_BYTES_MAX).unwrap().refused.len(), REFUSED_COUNT_MAX);
}

#[test]
fn more_than_allowed_is_not_decompressed() {
    for compression in ALL.into_iter().skip(1) {
        let bomb = whole(records(&[1; 4], 1 << 20).build_compressed(compression).unwrap());
        assert!(bomb.bytes().len() < 1 << 18, "{compression:?}");
        let size_bytes_max = 3 << 20;
        let examined = bomb.examine(&RecordRules::default(), size_bytes_max);
        assert_eq!(examined, Err(BatchError::TooLarge { size_bytes_max }), "{compression:?}");
        assert!(bomb.examine(&RecordRules::default(), 5 << 20).is_ok(), "{compression:?}");
    }
}

#[test]
fn bare_snappy_is_read_and_linked_lz4_is_not() {
    let batch = compressed(&[1, 2], Compression::None);
    let framed = compressed(&[1, 2], Compression::Snappy);
    let bare = snap::raw::Encoder::new().compress_vec(&batch.record_bytes()).unwrap();
    assert!(examine(&with_records(framed.header(), &bare)).is_ok());

    let lz4 = compressed(&[1, 2], Compression::Lz4);
    let info = lz4_flex::frame::FrameInfo::new().block_mode(lz4_flex::frame::BlockMode::Linked);
    let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    std::io::Write::write_all(&mut encoder, &batch.record_bytes()).unwrap();
    let linked = with_records(lz4.header(), &encoder.finish().unwrap());
    assert!(linked.records(SIZE_BYTES_MAX).is_ok());
    assert!(matches!(examine(&linked), Err(BatchError::Compressed { .. })));
}

proptest! {
    /// What is taken can be read: by the reader of whole batches, with the times that were found.
    #[test]
    fn what_passes_can_be_read(
        compression in prop::sample::select(ALL.to_vec()),
        timestamps_ms in prop::collection::vec(-2i64..100, 1..20),
        count_by in -1i32..=1,
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let batch = compressed(&timestamps_ms, compression);
        let mut bytes = batch.record_bytes().to_vec();
        if let Some((at, byte)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let header = *batch.header();
        let header = BatchHeader {
            records_count: header.records_count + count_by,
            last_offset_delta: header.last_offset_delta + count_by,
            ..header
        };
        let batch = with_records(&header, &bytes);
        let examined = batch.examine(&RecordRules::default(), SIZE_BYTES_MAX);
        prop_assert!(examined.is_ok() || damage.is_some() || count_by != 0);
        if let Ok(examined) = examined {
            let raw = batch.raw_records(SIZE_BYTES_MAX).unwrap();
            let times: Vec<i64> = raw.iter().map(|record| {
                header.base_timestamp_ms + record.unwrap().timestamp_delta_ms
            }).collect();
            prop_assert_eq!(times.len(), header.records_count as usize);
            prop_assert_eq!(examined.max_timestamp_ms, times.into_iter().fold(-1, i64::max));
        }
    }
}
