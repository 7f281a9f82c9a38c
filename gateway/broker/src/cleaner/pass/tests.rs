//! Whole passes over random logs with transactions, read in random portions.

use meridian_base::position::{Generation, Step};
use meridian_protocol::records::{BatchBuilder, Record, batches};
use proptest::prelude::*;

use super::*;
use crate::partition::{AbortedTransaction, PartitionState};

const PRODUCER_COUNT: i64 = 3;

/// What happens next in a log: a producer writes keys in its transaction or without, or ends it.
#[derive(Clone, Debug)]
enum Event {
    Write { producer: i64, transactional: bool, keys: Vec<u8> },
    End { producer: i64, commit: bool },
}

fn event() -> impl Strategy<Value = Event> {
    let producer = 0..PRODUCER_COUNT;
    let keys = prop::collection::vec(0u8..5, 1..5);
    prop_oneof![
        4 => (producer.clone(), any::<bool>(), keys)
            .prop_map(|(producer, transactional, keys)| Event::Write { producer, transactional, keys }),
        1 => (producer, any::<bool>()).prop_map(|(producer, commit)| Event::End { producer, commit }),
    ]
}

#[derive(Default)]
struct Log {
    batches: Vec<Batch>,
    end: i64,
    sequences: BTreeMap<i64, i32>,
    last_batches: BTreeMap<i64, Offset>,
    open: BTreeMap<i64, Offset>,
    aborted: Vec<AbortedTransaction>,
    clean_end: i64,
}

impl Log {
    fn of(events: &[Event]) -> Self {
        let mut log = Self::default();
        for event in events {
            match event {
                Event::Write { producer, transactional, keys } => {
                    // A producer with an open transaction writes nothing else.
                    let transactional = *transactional || log.open.contains_key(producer);
                    log.write(*producer, transactional, keys);
                }
                Event::End { producer, commit } => log.end(*producer, *commit),
            }
        }
        log
    }

    fn write(&mut self, producer: i64, transactional: bool, keys: &[u8]) {
        let base_offset = Offset::new(self.end);
        let sequence = self.sequences.entry(producer).or_default();
        let mut builder =
            BatchBuilder::new().base_offset(self.end).producer(producer, 0, *sequence);
        if transactional {
            builder = builder.transactional();
            self.open.entry(producer).or_insert(base_offset);
        }
        for (index, key) in keys.iter().enumerate() {
            let value = (self.end + index as i64).to_be_bytes();
            builder.append(1000 + self.end, Some(&[*key]), Some(&value), &[]);
        }
        *sequence += keys.len() as i32;
        self.end += keys.len() as i64;
        self.last_batches.insert(producer, base_offset);
        self.batches.extend(batches(builder.build()).map(Result::unwrap));
    }

    fn end(&mut self, producer: i64, commit: bool) {
        let marker = EndTxnMarker { committed: commit, coordinator_epoch: 1 };
        let mut bytes = marker.to_batch(producer, 0, 1000 + self.end).to_vec();
        bytes[..8].copy_from_slice(&self.end.to_be_bytes());
        self.batches.extend(batches(bytes.into()).map(Result::unwrap));
        let offset = Offset::new(self.end);
        self.end += 1;
        let first = self.open.remove(&producer);
        if let Some(first_offset) = first.filter(|_| !commit) {
            self.aborted.push(AbortedTransaction {
                producer_id: producer,
                first_offset,
                last_offset: offset,
                last_stable_offset: offset,
            });
        }
    }

    fn plan(&self, now_ms: i64, blob_size_bytes: usize, keys_size_bytes_max: usize) -> Plan {
        let stable = self.open.values().min().map_or(self.end, |first| first.get());
        Plan {
            log_start_offset: Offset::ZERO,
            clean_end: Offset::new(self.clean_end),
            last_stable_offset: Offset::new(stable),
            high_watermark: Offset::new(self.end),
            last_batches: self.last_batches.clone(),
            aborted: Aborted::of(self.aborted.iter().copied()),
            times: LogTimes::default(),
            now_ms,
            timestamp_ms_max: i64::MAX,
            delete_retention_ms: 100,
            limits: PassLimits { keys_size_bytes_max, blob_size_bytes, ..PassLimits::default() },
            mutations: Mutations::NONE,
        }
    }

    /// One pass, reading `portion` batches at once; gives its manifest.
    fn compact(&mut self, plan: Plan, portion: usize) -> Option<Manifest> {
        let mut pass = Pass::begin(plan);
        let mut clean = Vec::new();
        let mut step = 1;
        while let Some(from) = pass.read_from() {
            let rest = self.batches.iter().filter(|it| it.header().last_offset() >= from.get());
            let read: Vec<Batch> = rest.take(portion).cloned().collect();
            for range in pass.take(&read) {
                clean.extend(batches(range.payload.to_contiguous()).map(Result::unwrap));
                pass.on_put(LogPoint::new(Generation::FIRST, Step::new(step)));
                step += 1;
            }
        }
        let manifest = pass.manifest()?;
        let end = manifest.end.get();
        let above = self.batches.iter().filter(|it| it.header().base_offset >= end);
        clean.extend(above.cloned());
        self.batches = clean;
        self.clean_end = end;
        Some(manifest)
    }

    /// The last record of every key, as a reader of committed records sees it, below `end`.
    fn latest(&self, end: i64) -> BTreeMap<Bytes, Record> {
        let aborted = Aborted::of(self.aborted.iter().copied());
        let shown = self.batches.iter().filter(|it| {
            !it.header().attributes.is_control()
                && !aborted.holds(it.header())
                && it.header().last_offset() < end
        });
        let records = shown.flat_map(|batch| batch.records(1 << 20).unwrap().map(Result::unwrap));
        records.filter_map(|record| Some((record.key.clone()?, record))).collect()
    }

    /// The log as a client finds it that reads everything at once: it hears of the aborted
    /// transactions that it is given a batch of, and looks for their markers.
    fn as_clients_see_it(&self, end: i64) -> BTreeMap<Bytes, Record> {
        let given = |aborted: &&AbortedTransaction| {
            let one = Aborted::of([**aborted]);
            self.batches.iter().any(|batch| one.holds(batch.header()))
        };
        let mut told: Vec<&AbortedTransaction> = self.aborted.iter().filter(given).collect();
        told.sort_by_key(|aborted| aborted.first_offset);
        let (mut told, mut aborting) = (told.into_iter().peekable(), BTreeSet::new());
        let mut latest = BTreeMap::new();
        for batch in self.batches.iter().filter(|it| it.header().last_offset() < end) {
            let header = batch.header();
            let has_begun =
                |it: &&AbortedTransaction| it.first_offset.get() <= header.last_offset();
            while let Some(begun) = told.next_if(has_begun) {
                aborting.insert(begun.producer_id);
            }
            if header.attributes.is_control() {
                if marker_of(batch, 1000).is_some_and(|marker| !marker.committed) {
                    aborting.remove(&header.producer_id);
                }
            } else if !header.attributes.is_transactional()
                || !aborting.contains(&header.producer_id)
            {
                let records = batch.records(1 << 20).unwrap().map(Result::unwrap);
                latest.extend(records.filter_map(|record| Some((record.key.clone()?, record))));
            }
        }
        latest
    }

    fn marker_count(&self, commit: bool) -> usize {
        let markers = self.batches.iter().filter_map(|batch| {
            batch.header().attributes.is_control().then(|| marker_of(batch, 1000)).flatten()
        });
        markers.filter(|marker| marker.committed == commit).count()
    }
}

proptest! {
    #[test]
    fn readers_of_committed_records_see_the_last_of_every_key(
        events in prop::collection::vec(event(), 1..40),
        portions in prop::collection::vec(1usize..9, 1..5),
        blob_size_bytes in 1usize..900,
        map_entries in 1usize..30,
    ) {
        let mut log = Log::of(&events);
        let stable = log.plan(0, 1, 1).last_stable_offset.get();
        let (expected, last) = (log.latest(stable), log.batches.last().cloned());
        for (round, portion) in portions.into_iter().enumerate() {
            let (before, plan) = (log.clean_end, log.plan(round as i64 * 60, blob_size_bytes, map_entries * 48));
            let Some(manifest) = log.compact(plan, portion) else { continue };
            prop_assert!(manifest.end.get() > before && manifest.end.get() < log.end);
            prop_assert_eq!(manifest.pieces.first().map(|it| it.base_offset), Some(Offset::ZERO));
            prop_assert_eq!(Manifest::decode(manifest.encode()), Ok(manifest));
            prop_assert_eq!(log.latest(stable), expected.clone());
            prop_assert_eq!(log.batches.last().cloned(), last.clone(), "readers come to the last batch");
            prop_assert_eq!(log.as_clients_see_it(stable), expected.clone());
            for (producer, base_offset) in &log.last_batches {
                let mut headers = log.batches.iter().map(Batch::header);
                let found = headers.any(|it| it.producer_id == *producer && it.base_offset == base_offset.get());
                prop_assert!(found, "the last batch of producer {} is gone", producer);
            }
        }
    }
}

fn write(producer: i64, transactional: bool, keys: &[u8]) -> Event {
    Event::Write { producer, transactional, keys: keys.to_vec() }
}

fn offsets(log: &Log) -> Vec<i64> {
    let data = log.batches.iter().filter(|batch| !batch.header().attributes.is_control());
    data.flat_map(|batch| batch.records(1000).unwrap().map(|it| it.unwrap().offset)).collect()
}

#[test]
fn an_aborted_record_supersedes_nothing_and_goes() {
    let mut log = Log::of(&[
        write(0, false, &[1]),
        write(1, true, &[1]),
        Event::End { producer: 1, commit: false },
        write(1, false, &[2]),
        write(0, false, &[3]),
    ]);
    let plan = log.plan(0, 1 << 20, 1 << 20);
    log.compact(plan, 9).unwrap();
    assert_eq!(offsets(&log), [0, 3, 4]);
}

#[test]
fn a_marker_goes_when_its_records_are_gone_and_its_time_is_over() {
    for commit in [true, false] {
        let mut log = Log::of(&[
            write(0, true, &[1]),
            Event::End { producer: 0, commit },
            write(0, false, &[1]),
            write(0, false, &[2]),
            write(0, false, &[3]),
        ]);
        let plan = log.plan(0, 1 << 20, 1 << 20);
        log.compact(plan, 9).unwrap();
        assert_eq!((offsets(&log), log.marker_count(commit)), (vec![2, 3, 4], 1));
        log.write(0, false, &[4]);
        let plan = log.plan(99, 1 << 20, 1 << 20);
        log.compact(plan, 9).unwrap();
        assert_eq!(log.marker_count(commit), 1, "whoever read the record may still look for it");
        log.write(0, false, &[5]);
        let plan = log.plan(100, 1 << 20, 1 << 20);
        log.compact(plan, 9).unwrap();
        assert_eq!(log.marker_count(commit), 0);
    }
}

#[test]
fn the_marker_of_an_abort_stays_with_the_last_batch_of_its_producer() {
    let mut log = Log::of(&[
        write(1, true, &[1]),
        Event::End { producer: 1, commit: false },
        write(0, false, &[2]),
        write(0, false, &[3]),
    ]);
    for now_ms in [0, 1000, 2000] {
        let plan = log.plan(now_ms, 1 << 20, 1 << 20);
        log.compact(plan, 9).unwrap();
        // Nothing is left in the batch, but it is there, and so is its end.
        assert_eq!((offsets(&log)[0], log.marker_count(false)), (2, 1));
        log.write(0, false, &[4]);
    }
}

#[test]
fn what_is_too_young_or_undecided_is_left_for_another_pass() {
    let events = [write(0, false, &[1]), write(0, false, &[1]), write(0, false, &[1])];
    let mut log = Log::of(&events);
    let plan = Plan { timestamp_ms_max: 1000, ..log.plan(0, 1 << 20, 1 << 20) };
    assert_eq!(log.compact(plan, 9).map(|manifest| manifest.end.get()), Some(1));
    let mut log = Log::of(&[write(1, true, &[1]), write(0, false, &[1]), write(0, false, &[2])]);
    let plan = log.plan(0, 1 << 20, 1 << 20);
    assert_eq!(log.compact(plan, 9), None, "the transaction at offset 0 is open");
}

#[test]
fn what_has_no_time_is_as_young_as_its_append() {
    let mut state = PartitionState::default();
    let mut log = Log::default();
    for (offset, appended_ms) in [(0, 500), (1, 2000), (2, 2000)] {
        let mut builder = BatchBuilder::new().base_offset(offset);
        builder.append(-1, Some(b"key"), Some(b"value"), &[]);
        log.batches.extend(batches(builder.build()).map(Result::unwrap));
        // So large that each has a line of its own.
        state.note(Offset::new(offset), 8 << 20, -1, appended_ms);
        log.end = offset + 1;
    }
    let plan =
        Plan { timestamp_ms_max: 1000, times: state.times(), ..log.plan(0, 1 << 20, 1 << 20) };
    let manifest = log.compact(plan, 9).expect("one is old enough");
    assert_eq!((manifest.end.get(), manifest.pieces[0].max_timestamp_ms), (1, 500));
}

#[test]
fn what_was_deleted_meanwhile_is_passed_over() {
    let keys: Vec<Event> = (0..6).map(|key| write(0, false, &[key])).collect();
    let log = Log::of(&keys);
    let mut pass = Pass::begin(log.plan(0, 1 << 20, 1 << 20));
    assert!(pass.take(&log.batches).is_empty());
    assert_eq!(pass.read_from(), Some(Offset::ZERO));
    assert!(pass.skip_to(Offset::new(3)).is_empty());
    assert_eq!(pass.read_from(), Some(Offset::new(3)));
    let ranges = pass.skip_to(Offset::new(9));
    assert_eq!(ranges.len(), 1);
    assert_eq!((ranges[0].base_offset, ranges[0].offset_count), (Offset::ZERO, 5));
    assert_eq!(pass.read_from(), None);
}
