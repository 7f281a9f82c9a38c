//! Rounds over random logs, against what the records themselves say.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_protocol::records::{Batch, BatchBuilder, Compression, Record, batches};
use meridian_storage::mutation::Mutations;
use proptest::prelude::*;

use super::*;

const DELETE_RETENTION_MS: i64 = 1000;

/// A record of a batch to be: its key and, unless it is a tombstone, its value.
type Draft = (Option<u8>, Option<u16>);

#[derive(Clone, Debug)]
struct BatchDraft {
    producer: i64,
    compression: Compression,
    records: Vec<Draft>,
}

fn batch_draft() -> impl Strategy<Value = BatchDraft> {
    use Compression::{Gzip, Lz4, None, Snappy, Zstd};
    let compression = prop::sample::select(vec![None, None, Gzip, Snappy, Lz4, Zstd]);
    let key = prop_oneof![9 => (0u8..6).prop_map(Some), 1 => Just(Option::None)];
    let value = prop_oneof![4 => any::<u16>().prop_map(Some), 1 => Just(Option::None)];
    (-1..3i64, compression, prop::collection::vec((key, value), 1..6))
        .prop_map(|(producer, compression, records)| BatchDraft { producer, compression, records })
}

/// A log as readers see it.
struct Log {
    batches: Vec<Batch>,
    /// Base offset of each producer's last batch.
    last_batches: BTreeMap<i64, Offset>,
    end: i64,
}

fn log_of(drafts: &[BatchDraft]) -> Log {
    let mut log = Log { batches: Vec::new(), last_batches: BTreeMap::new(), end: 0 };
    let mut sequences = BTreeMap::new();
    for draft in drafts {
        let mut builder = BatchBuilder::new().base_offset(log.end).partition_leader_epoch(3);
        if draft.producer >= 0 {
            let sequence: &mut i32 = sequences.entry(draft.producer).or_default();
            builder = builder.producer(draft.producer, 1, *sequence);
            *sequence += draft.records.len() as i32;
            log.last_batches.insert(draft.producer, Offset::new(log.end));
        }
        for (number, (key, value)) in draft.records.iter().enumerate() {
            let (key, value) = (key.map(|key| [key]), value.map(u16::to_be_bytes));
            let (key, value) = (key.as_ref().map(|it| &it[..]), value.as_ref().map(|it| &it[..]));
            builder.append(500 + log.end - number as i64, key, value, &[("h", Some(b"1"))]);
        }
        log.end += draft.records.len() as i64;
        let bytes = builder.build_compressed(draft.compression).unwrap();
        log.batches.extend(batches(bytes).map(Result::unwrap));
    }
    log
}

impl Log {
    fn records(&self) -> Vec<Record> {
        self.batches.iter().flat_map(records_of).collect()
    }

    /// One round from `dirty` on; returns where it ended.
    fn clean(&mut self, dirty: Offset, map_size_bytes: usize, now_ms: i64) -> Offset {
        let mut keys = KeyOffsets::new(dirty, map_size_bytes);
        for batch in &self.batches {
            if batch.header().last_offset() < dirty.get() {
                continue;
            }
            if keys.note(batch, true, 1 << 20).is_err() {
                break;
            }
        }
        let round = Round {
            keys: &keys,
            last_batches: &self.last_batches,
            now_ms,
            delete_retention_ms: DELETE_RETENTION_MS,
            aborted: &Aborted::default(),
            batch_size_bytes_max: 1 << 20,
            mutations: Mutations::NONE,
        };
        let mut cleaned = Vec::new();
        for batch in &self.batches {
            match round.clean(batch).unwrap() {
                Cleaned::Same => cleaned.push(batch.clone()),
                Cleaned::Smaller(bytes) => {
                    let written: Vec<Batch> = batches(bytes).map(Result::unwrap).collect();
                    assert_eq!(written.len(), 1);
                    assert_same_place(&written[0], batch);
                    cleaned.extend(written);
                }
                Cleaned::Gone => {}
            }
        }
        self.batches = cleaned;
        keys.end()
    }
}

fn records_of(batch: &Batch) -> Vec<Record> {
    batch.records(1 << 20).unwrap().map(Result::unwrap).collect()
}

fn assert_same_place(new: &Batch, old: &Batch) {
    new.check_crc().unwrap();
    let place = |batch: &Batch| {
        let header = *batch.header();
        let is_empty = new.header().records_count == 0;
        let compression = (!is_empty).then(|| header.attributes.compression().unwrap());
        (
            (header.base_offset, header.last_offset(), header.partition_leader_epoch),
            (header.producer_id, header.producer_epoch, header.base_sequence),
            compression,
        )
    };
    assert_eq!(place(new), place(old));
    assert_eq!(new.header().last_sequence(), old.header().last_sequence());
}

/// The last record of each key.
fn latest(records: &[Record]) -> BTreeMap<Bytes, Record> {
    let keyed = records.iter().filter_map(|record| Some((record.key.clone()?, record.clone())));
    keyed.collect()
}

proptest! {
    #[test]
    fn every_key_keeps_its_last_value_and_nothing_moves(
        drafts in prop::collection::vec(batch_draft(), 1..25),
        map_entries in 1usize..20,
        steps in prop::collection::vec(0i64..800, 1..12),
    ) {
        let mut log = log_of(&drafts);
        let before = log.records();
        let expected = latest(&before);
        let (mut now_ms, mut dirty) = (10_000, Offset::ZERO);
        for step_ms in steps {
            now_ms += step_ms;
            // Now and then from the beginning, as after a takeover that knows of no clean part.
            dirty = log.clean(dirty, map_entries * 48, now_ms);
            if dirty.get() == log.end {
                dirty = Offset::ZERO;
            }
            let after = log.records();
            let mut rest = before.iter();
            for record in &after {
                prop_assert!(rest.any(|sent| sent == record), "{record:?} was not sent, or moved");
            }
            let kept = latest(&after);
            for (key, last) in &expected {
                // A tombstone may go; then the key must be gone as a whole.
                let is_right = kept.get(key) == Some(last) || last.value.is_none() && !kept.contains_key(key);
                prop_assert!(is_right, "{last:?} became {:?}", kept.get(key));
            }
            let unkeyed = |records: &[Record]| records.iter().filter(|it| it.key.is_none()).count();
            prop_assert_eq!(unkeyed(&after), unkeyed(&before));
            for (producer, base_offset) in &log.last_batches {
                let mut headers = log.batches.iter().map(|batch| batch.header());
                let found = headers.any(|it| it.producer_id == *producer && it.base_offset == base_offset.get());
                prop_assert!(found, "the last batch of producer {} is gone", producer);
            }
        }
    }

    #[test]
    fn a_whole_round_leaves_one_record_of_a_key(
        drafts in prop::collection::vec(batch_draft(), 1..25),
    ) {
        let mut log = log_of(&drafts);
        log.clean(Offset::ZERO, 1 << 20, 10_000);
        let after = log.records();
        let keyed = after.iter().filter(|record| record.key.is_some()).count();
        prop_assert_eq!(keyed, latest(&after).len());
        // Nothing is written anew without need.
        let bytes: Vec<Bytes> = log.batches.iter().map(|batch| batch.bytes().clone()).collect();
        log.clean(Offset::ZERO, 1 << 20, 10_500);
        prop_assert_eq!(bytes, log.batches.iter().map(|batch| batch.bytes().clone()).collect::<Vec<_>>());
    }
}

fn plain(records: &[Draft]) -> BatchDraft {
    BatchDraft { producer: -1, compression: Compression::None, records: records.to_vec() }
}

#[test]
fn a_tombstone_goes_when_its_time_is_over_and_not_before() {
    let mut log =
        log_of(&[plain(&[(Some(1), Some(7)), (Some(2), Some(7))]), plain(&[(Some(1), None)])]);
    log.clean(Offset::ZERO, 1 << 20, 10_000);
    let offsets = |log: &Log| log.records().iter().map(|record| record.offset).collect::<Vec<_>>();
    assert_eq!(offsets(&log), [1, 2], "the value that it deletes is gone");
    log.clean(Offset::ZERO, 1 << 20, 10_999);
    assert_eq!(offsets(&log), [1, 2]);
    log.clean(Offset::ZERO, 1 << 20, 11_000);
    assert_eq!(offsets(&log), [1]);
}

#[test]
fn what_lies_above_the_round_is_not_judged() {
    let mut log = log_of(&[
        plain(&[(Some(1), Some(1))]),
        plain(&[(Some(1), Some(2))]),
        plain(&[(Some(1), Some(3))]),
    ]);
    // The map is full with the first batch: the later values are unknown to this round.
    assert_eq!(log.clean(Offset::ZERO, 48, 10_000), Offset::new(1));
    assert_eq!(log.records().len(), 3);
}

#[test]
fn records_that_contradict_their_batch_are_left_alone() {
    let good = log_of(&[plain(&[(Some(1), Some(1)), (Some(1), Some(2)), (Some(3), Some(3))])]);
    let mut bytes = good.batches[0].bytes().to_vec();
    // Each record is: length, attributes, timestamp delta, offset delta, ...
    let second = 61 + 1 + usize::from(bytes[61] / 2);
    bytes[second + 3] = 8; // the offset delta 4, beyond the batch's last
    let crc = crc_of(&bytes);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    let broken = batches(bytes.into()).next().unwrap().unwrap();
    broken.check_crc().unwrap();
    let mut keys = KeyOffsets::new(Offset::ZERO, 1 << 20);
    keys.note(&good.batches[0], true, 1 << 20).unwrap();
    let round = Round {
        keys: &keys,
        last_batches: &BTreeMap::new(),
        now_ms: 0,
        delete_retention_ms: 0,
        aborted: &Aborted::default(),
        batch_size_bytes_max: 1 << 20,
        mutations: Mutations::NONE,
    };
    assert_eq!(round.clean(&broken), Err(CleanError::OutOfOrder { offset: 0 }));
}

/// The batch's checksum, by way of a builder: the header covers everything from byte 21 on.
fn crc_of(bytes: &[u8]) -> u32 {
    let table: Vec<u32> = (0..256u32)
        .map(|byte| {
            (0..8).fold(byte, |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
        })
        .collect();
    !bytes[21..].iter().fold(!0u32, |crc, byte| crc >> 8 ^ table[usize::from(crc as u8 ^ byte)])
}
