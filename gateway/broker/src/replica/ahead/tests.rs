use bytes::Bytes;
use meridian_base::position::{Generation, LogPoint};
use meridian_storage::blob::BlobKey;
use meridian_storage::erasure::Code;
use meridian_storage::manifest::{Piece as ManifestPiece, Place};
use meridian_storage::message::ReadFrom;

use super::*;

const PARTITION: PartitionId = PartitionId::new(1);
const NOW: Instant = Instant::ZERO;
/// Every batch holds ten records in so many bytes.
const BATCH_BYTES: usize = 100;

fn limits() -> AheadLimits {
    AheadLimits {
        reader_bytes_max: 16 * BATCH_BYTES,
        bytes_max: 40 * BATCH_BYTES,
        reader_count_max: 2,
        idle_after: Duration::from_secs(2),
    }
}

fn read_ahead() -> ReadAhead<&'static str> {
    ReadAhead::new(limits())
}

/// Batches from an offset on.
fn batches(from: i64, count: usize) -> Arc<Vec<BatchSlice>> {
    let batch = |number: usize| {
        let base_offset = from + 10 * number as i64;
        BatchSlice {
            base_offset: Offset::new(base_offset),
            last_offset: Offset::new(base_offset + 9),
            max_timestamp_ms: 0,
            head: Bytes::from(vec![0; BATCH_BYTES]),
            body: Bytes::new(),
        }
    };
    Arc::new((0..count).map(batch).collect())
}

/// What a leader of this generation put, up to this step.
fn put_by(generation: u32, last_step: u64) -> Source {
    Source::Log(Read {
        partition: PARTITION,
        generation: Generation::new(generation),
        from: ReadFrom::Offset(Offset::ZERO),
        last_step: Step::new(last_step),
        size_bytes_max: 1,
    })
}

impl ReadAhead<&'static str> {
    /// A reader is given ten records.
    fn answer(&mut self, from: i64) -> Option<(i64, usize, Ticket)> {
        let (from, end) = (Offset::new(from), Offset::new(from + 10));
        let ask = self.on_answer(NOW, PARTITION, from, end, BATCH_BYTES)?;
        Some((ask.from.get(), ask.size_bytes / BATCH_BYTES, ask.ticket))
    }

    /// What a reader finds at an offset: offset and count of the batches.
    fn look_at(&mut self, from: i64, source: Source) -> Option<(i64, usize)> {
        match self.find(NOW, PARTITION, Offset::new(from), &source) {
            Found::Here(batches) => Some((batches[0].base_offset.get(), batches.len())),
            Found::Coming(_) | Found::Nothing => None,
        }
    }

    /// Has 20..100 read ahead for a reader that has read 0..20, from `source`.
    fn filled(source: Source) -> Self {
        let mut ahead = read_ahead();
        assert_eq!(ahead.answer(0), None);
        let (from, _, ticket) = ahead.answer(10).expect("it reads in order");
        assert!(ahead.on_read(ticket, Some((source, batches(from, 8)))).is_empty());
        assert_eq!(ahead.look_at(20, source), Some((20, 8)));
        ahead
    }
}

#[test]
fn who_reads_in_order_is_read_ahead_of_twice_as_much_each_time() {
    let mut ahead = read_ahead();
    assert_eq!(ahead.answer(0), None, "one read says nothing");
    let mut asks = Vec::new();
    for from in (10..1000).step_by(10) {
        if let Some((at, count, ticket)) = ahead.answer(from) {
            asks.push((at, count));
            ahead.on_read(ticket, Some((put_by(1, 1), batches(at, count))));
        }
    }
    assert_eq!(asks[..4], [(20, 1), (30, 2), (50, 4), (90, 8)], "up to half the bound of a reader");
    assert!(asks[3..].windows(2).all(|pair| pair[0].0 + 80 == pair[1].0), "no gap: {asks:?}");
    assert!(ahead.counts().held_bytes <= limits().reader_bytes_max);
    assert_eq!(ahead.counts().refused, 0);
}

#[test]
fn nothing_more_is_asked_for_while_enough_is_here_or_coming() {
    let mut ahead = read_ahead();
    assert_eq!(ahead.answer(0), None);
    let (_, _, ticket) = ahead.answer(10).expect("it reads in order");
    assert_eq!(ahead.answer(20), None, "it is coming");
    ahead.on_read(ticket, Some((put_by(1, 1), batches(20, 8))));
    assert_eq!(ahead.answer(30), None, "60 records are here");
}

#[test]
fn a_reader_waits_for_what_is_coming_and_is_woken_whatever_becomes_of_it() {
    for read in [Some((put_by(1, 1), batches(20, 1))), None] {
        let mut ahead = read_ahead();
        ahead.answer(0);
        let (_, _, ticket) = ahead.answer(10).expect("it reads in order");
        let found = ahead.find(NOW, PARTITION, Offset::new(20), &put_by(1, 1));
        assert!(matches!(found, Found::Coming(it) if it == ticket), "{found:?}");
        assert_eq!(ahead.wait(ticket, "reader"), None);
        assert_eq!(ahead.on_read(ticket, read), ["reader"]);
        assert_eq!(ahead.wait(ticket, "late"), Some("late"), "it has ended");
    }
}

#[test]
fn partitions_of_one_fetch_are_read_at_once_and_each_once() {
    let mut ahead = read_ahead();
    let other = PartitionId::new(2);
    let begin = |ahead: &mut ReadAhead<_>, partition| {
        ahead.begin(NOW, partition, Offset::ZERO, BATCH_BYTES).map(|ask| ask.ticket)
    };
    let ticket = begin(&mut ahead, PARTITION).expect("nothing is here");
    assert!(begin(&mut ahead, other).is_some());
    assert_eq!(begin(&mut ahead, PARTITION), None, "it is coming");
    ahead.on_read(ticket, Some((put_by(1, 1), batches(0, 1))));
    assert_eq!(begin(&mut ahead, PARTITION), None, "it is here");
    assert!(ahead.answer(0).is_some(), "who was read for first is read ahead of from then on");
}

/// A log of which less counts than when it was read ahead, or that another leader has put, or compaction replaced.
#[test]
fn what_the_log_no_longer_has_is_not_shown() {
    let then = put_by(3, 7);
    let read = Read::one(BlobKey {
        partition: PARTITION,
        point: LogPoint::new(Generation::new(3), Step::new(7)),
    });
    let clean = Source::Clean { read, end: Offset::new(100) };
    for (now, is_shown) in [
        (put_by(3, 7), true),
        (put_by(3, 8), true),
        (put_by(3, 6), false),
        (put_by(4, 7), false),
        (put_by(2, 9), false),
        (clean, false),
    ] {
        let mut ahead = ReadAhead::filled(then);
        assert_eq!(ahead.look_at(30, now).is_some(), is_shown, "{now:?}");
        if !is_shown {
            assert_eq!(ahead.look_at(30, then), None, "it is dropped");
            assert_eq!(ahead.counts().held_bytes, 0);
        }
    }
}

#[test]
fn what_is_packed_or_compacted_is_shown_while_it_lies_in_that_place() {
    let point = |step| LogPoint::new(Generation::new(1), Step::new(step));
    let clean = |step| {
        let read = Read::one(BlobKey { partition: PARTITION, point: point(step) });
        Source::Clean { read, end: Offset::new(100) }
    };
    let cold = |step| {
        let place = Place::Stripe { point: point(step), code: Code::Rs54, crc: 0 };
        let (base_offset, size_bytes) = (Offset::new(20), 800);
        let piece = ManifestPiece { base_offset, max_timestamp_ms: 0, size_bytes, place };
        Source::Cold { piece, end: Offset::new(100) }
    };
    let places: [&dyn Fn(u64) -> Source; 2] = [&clean, &cold];
    for place in places {
        assert!(ReadAhead::filled(place(5)).look_at(30, place(5)).is_some());
        assert!(ReadAhead::filled(place(5)).look_at(30, place(6)).is_none());
        assert!(ReadAhead::filled(place(5)).look_at(30, put_by(1, 9)).is_none());
    }
}

#[test]
fn what_is_read_ahead_of_readers_that_go_is_dropped() {
    let mut ahead = ReadAhead::filled(put_by(1, 1));
    let begun = ahead.begin(NOW, PartitionId::new(2), Offset::ZERO, BATCH_BYTES);
    let ticket = begun.expect("there is room").ticket;
    ahead.expire(NOW + limits().idle_after / 2);
    assert!(ahead.look_at(30, put_by(1, 1)).is_some());
    ahead.expire(NOW + limits().idle_after);
    assert!(ahead.look_at(30, put_by(1, 1)).is_none());
    assert_eq!(ahead.counts().held_bytes, BATCH_BYTES, "what is under way is still to come");
    ahead.on_read(ticket, Some((put_by(1, 1), batches(0, 3))));
    ahead.expire(NOW + limits().idle_after);
    let counts = ahead.counts();
    assert_eq!((counts.held_bytes, counts.dropped_bytes), (0, 3 * BATCH_BYTES as u64));
    assert!(ahead.readers.is_empty());
}

#[test]
fn who_seeks_loses_what_was_read_ahead_once_others_need_the_place() {
    let mut ahead = ReadAhead::filled(put_by(1, 1));
    assert_eq!(ahead.answer(500), None, "a second reader, or the first elsewhere");
    assert!(ahead.look_at(90, put_by(1, 1)).is_some(), "two are known");
    let later = NOW + Duration::from_millis(1);
    ahead.on_answer(later, PARTITION, Offset::new(510), Offset::new(520), BATCH_BYTES);
    ahead.on_answer(later, PARTITION, Offset::new(700), Offset::new(710), BATCH_BYTES);
    assert!(ahead.look_at(90, put_by(1, 1)).is_none());
    assert_eq!(ahead.readers[&PARTITION].len(), limits().reader_count_max);
}

#[test]
fn no_more_is_held_than_the_node_has_room_for() {
    let mut ahead = read_ahead();
    let begin = |ahead: &mut ReadAhead<_>, partition, count| {
        ahead.begin(NOW, PartitionId::new(partition), Offset::ZERO, count * BATCH_BYTES)
    };
    let first = begin(&mut ahead, 1, 30).expect("there is room");
    assert!(begin(&mut ahead, 2, 11).is_none());
    let second = begin(&mut ahead, 3, 10).expect("there is room");
    assert_eq!(ahead.counts().held_bytes, limits().bytes_max);
    ahead.on_read(first.ticket, Some((put_by(1, 1), batches(0, 30))));
    ahead.on_read(second.ticket, Some((put_by(1, 1), batches(0, 11))));
    let counts = ahead.counts();
    assert_eq!(counts.held_bytes, 30 * BATCH_BYTES, "more came than was asked for");
    assert_eq!((counts.refused, counts.dropped_bytes), (1, 11 * BATCH_BYTES as u64));
}

#[test]
fn a_reader_that_asks_again_finds_the_same() {
    let mut ahead = ReadAhead::filled(put_by(1, 1));
    assert_eq!(ahead.answer(20), None);
    assert_eq!(ahead.look_at(20, put_by(1, 1)), Some((20, 8)));
    let counts = ahead.counts();
    assert_eq!((counts.hits, counts.misses, counts.dropped_bytes), (2, 0, 0));
}
