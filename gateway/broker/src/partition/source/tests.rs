use meridian_protocol::records::{Batch, BatchBuilder};
use proptest::prelude::*;

use super::*;

/// A batch of (source, seqno).
fn batch(records: &[(&str, u64)]) -> SourcedBatch {
    let mut builder = BatchBuilder::new();
    for (name, seqno) in records {
        let seqno = seqno.to_string();
        let headers =
            [(PRODUCER_ID_HEADER, Some(name.as_bytes())), (SEQNO_HEADER, Some(seqno.as_bytes()))];
        builder.append(1, None, None, &headers);
    }
    SourcedBatch::produced(&Batch::produced(Some(builder.build())).unwrap(), 1000).unwrap()
}

fn of_a(seqnos: impl IntoIterator<Item = u64>) -> SourcedBatch {
    let records: Vec<(&str, u64)> = seqnos.into_iter().map(|seqno| ("a", seqno)).collect();
    batch(&records)
}

/// A log that holds these batches.
fn with(batches: &[SourcedBatch]) -> Sources {
    let mut sources = Sources::default();
    let mut offset = Offset::ZERO;
    for batch in batches {
        assert_eq!(sources.check(batch), Ok(SourceVerdict::New));
        sources.apply(batch, offset);
        offset = offset.advance(batch.record_count() as u32);
    }
    sources
}

fn duplicate(base_offset: Option<i64>, end_offset: i64) -> Result<SourceVerdict, SourceError> {
    let (base_offset, end_offset) = (base_offset.map(Offset::new), Offset::new(end_offset));
    Ok(SourceVerdict::Duplicate { base_offset, end_offset })
}

#[test]
fn a_dense_source_is_remembered_whole() {
    let batches: Vec<_> = (0..100).map(|n| of_a(n * 10..n * 10 + 10)).collect();
    let sources = with(&batches);
    assert_eq!(sources.check(&of_a([0])), duplicate(Some(0), 1));
    assert_eq!(sources.check(&of_a(333..350)), duplicate(Some(333), 350));
    let mixed = SourceVerdict::Mixed { duplicates: vec![0, 1] };
    assert_eq!(sources.check(&of_a(998..1010)), Ok(mixed));
    assert_eq!(sources.check(&of_a([1000])), Ok(SourceVerdict::New));
    assert_eq!(sources.check(&of_a([5000])), Ok(SourceVerdict::New), "gaps are allowed");
    assert_eq!(sources.by_name["a"].stretches.len(), 1);
}

#[test]
fn the_last_sparse_batches_are_found_by_their_ends() {
    let batches: Vec<_> = (0..7).map(|n| of_a([n * 100 + 1, n * 100 + 7, n * 100 + 30])).collect();
    let sources = with(&batches);
    assert_eq!(sources.check(&batches[6]), duplicate(Some(18), 21));
    assert_eq!(sources.check(&batches[2]), duplicate(Some(6), 9));
    assert_eq!(sources.check(&of_a([607])), duplicate(None, 21), "somewhere in the batch");
    assert_eq!(sources.check(&batches[0]), duplicate(None, 7), "forgotten, but not written again");
}

#[test]
fn what_was_certainly_never_written_is_not_called_a_duplicate() {
    let sources = with(&[of_a(1..11), of_a(21..31)]);
    let never = |index, seqno| Err(SourceError::NeverWritten { index, seqno, last: 30 });
    assert_eq!(sources.check(&of_a([15])), never(0, 15));
    assert_eq!(sources.check(&of_a(10..22)), never(1, 11), "one of them is enough");
    assert_eq!(sources.check(&of_a([0])), never(0, 0), "before the first");
    let first = Sources::default();
    let never = SourceError::NeverWritten { index: 1, seqno: 3, last: 5 };
    assert_eq!(first.check(&of_a([5, 3])), Err(never), "descending in a batch");
}

#[test]
fn a_batch_may_repeat_itself() {
    let mixed = SourceVerdict::Mixed { duplicates: vec![1, 2] };
    assert_eq!(Sources::default().check(&of_a([5, 5, 5, 6])), Ok(mixed));
}

#[test]
fn sources_in_a_batch_are_judged_apart() {
    let mut sources = with(&[batch(&[("a", 1), ("b", 10), ("a", 2), ("b", 20)])]);
    let again = batch(&[("b", 20), ("a", 3), ("c", 1), ("b", 21), ("a", 2)]);
    // The last is behind 3 of its own batch, but in the log: a duplicate all the same.
    let mixed = SourceVerdict::Mixed { duplicates: vec![0, 4] };
    assert_eq!(sources.check(&again), Ok(mixed));
    sources.apply(&again.without(&[0, 4]), Offset::new(4));
    let last = |name| sources.get(name).map(|it| (it.last_seqno.get(), it.last_offset.get()));
    assert_eq!(last("a"), Some((3, 5)));
    assert_eq!(last("b"), Some((21, 7)));
    assert_eq!(last("c"), Some((1, 6)));
    assert_eq!(last("d"), None);
    assert_eq!(sources.after("a").map(|it| it.name).collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn the_log_is_right_where_a_source_began_again() {
    let mut sources = with(&[of_a(1..11)]);
    sources.apply(&of_a([3]), Offset::new(10));
    assert_eq!(sources.get("a").map(|it| it.last_seqno.get()), Some(3));
    assert_eq!(sources.check(&of_a([4])), Ok(SourceVerdict::New));
    assert_eq!(sources.check(&of_a([2])), duplicate(None, 11));
}

#[test]
fn the_unused_expire() {
    let mut sources = with(&[of_a([1]), batch(&[("b", 1)])]);
    let mut later = batch(&[("b", 2)]);
    later.append_time_ms = 2000;
    sources.apply(&later, Offset::new(2));
    sources.expire(1000);
    assert_eq!(sources.count(), 2);
    sources.expire(1001);
    assert_eq!((sources.count(), sources.get("a")), (1, None));
    assert_eq!(sources.size_bytes_max, reserved_bytes("b"));
}

#[test]
fn what_was_seen_before_the_time_was_known_was_seen_now() {
    let mut sources = Sources::default();
    sources.set_replay_time(i64::MAX);
    // The host's clock is behind.
    sources.apply(&of_a([1]), Offset::new(0));
    sources.set_replay_time(5000);
    sources.expire(5000);
    assert_eq!(sources.count(), 1);
    sources.expire(5001);
    assert_eq!(sources.count(), 0, "not remembered for ever");
}

#[test]
fn their_number_is_bounded_and_a_checkpoint_fits() {
    let mut sources = Sources::default();
    let mut known = 0u64;
    loop {
        let names: Vec<String> = (known..known + 1000).map(|n| format!("source-{n:013}")).collect();
        let records: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1 << 60)).collect();
        let batch = batch(&records);
        match sources.check(&batch) {
            Ok(SourceVerdict::New) => {
                // The worst that a source can come to: five sparse stretches far apart.
                for part in 1..=5u64 {
                    let mut batch = batch.clone();
                    for record in &mut batch.records {
                        record.seqno = Seqno(part << 57);
                    }
                    sources.apply(&batch, Offset::new((part as i64) << 50));
                }
            }
            Err(error) => {
                assert_eq!(error, SourceError::TooMany { count: known as usize });
                break;
            }
            Ok(other) => panic!("{other:?}"),
        }
        known += 1000;
    }
    assert!(known >= 44_000, "{known}");
    let encoded = sources.encode();
    assert!(encoded.len() <= SIZE_BYTES_MAX, "{}", encoded.len());
    assert_eq!(Sources::decode(encoded), Ok(sources));
}

proptest! {
    /// Whatever a source does, what a replay rebuilds is what the leader had, and each number is in
    /// the log once.
    #[test]
    fn each_is_in_the_log_once_and_a_checkpoint_plus_replay_is_the_state(
        sends in prop::collection::vec((0usize..3, 0u64..40, 1u64..8, 1u64..4), 0..60),
        cut in 0usize..60,
    ) {
        let names = ["a", "b", "c"];
        let (mut direct, mut resumed) = (Sources::default(), Sources::default());
        let mut log: Vec<((&str, u64), Offset)> = Vec::new();
        let mut next = Offset::ZERO;
        for (index, (source, from, count, stride)) in sends.iter().enumerate() {
            if index == cut {
                resumed = Sources::decode(direct.encode()).expect("own encoding");
            }
            let records: Vec<(&str, u64)> =
                (0..*count).map(|n| (names[*source], from + n * stride)).collect();
            let sent = batch(&records);
            let at = |record| log.iter().find(|(known, _)| *known == record).map(|(_, at)| *at);
            let appended = match direct.check(&sent) {
                Ok(SourceVerdict::New) => sent,
                Ok(SourceVerdict::Mixed { duplicates }) => sent.without(&duplicates),
                Ok(SourceVerdict::Duplicate { base_offset, end_offset }) => {
                    prop_assert!(end_offset <= next);
                    prop_assert!(base_offset.is_none() || base_offset == at(records[0]));
                    let above = records.iter().all(|record| at(*record) < Some(end_offset));
                    prop_assert!(above, "acknowledged before its original is committed");
                    continue;
                }
                Err(SourceError::NeverWritten { index, .. }) => {
                    prop_assert_eq!(at(records[index as usize]), None);
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            for record in &appended.records {
                let name = names[*source];
                log.push(((name, record.seqno.get()), next.advance(record.offset_delta)));
            }
            direct.apply(&appended, next);
            if index >= cut {
                resumed.apply(&appended, next);
            }
            next = next.advance(*count as u32);
        }
        let mut once: Vec<(&str, u64)> = log.iter().map(|(record, _)| *record).collect();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), log.len());
        if cut < sends.len() {
            prop_assert_eq!(direct, resumed);
        }
    }

    #[test]
    fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        if let Some(format) = bytes.first_mut() {
            *format = 1;
        }
        if let Ok(sources) = Sources::decode(bytes.into()) {
            prop_assert!(sources.after("").count() <= sources.count());
        }
    }
}
