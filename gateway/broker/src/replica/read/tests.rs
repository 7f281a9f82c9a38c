use bytes::Bytes;
use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LogPoint, Offset, Step};
use meridian_storage::blob::{BlobHeader, BlobKey, BlobKind, Payload};
use meridian_storage::hot::cut;

use super::*;

const PARTITION: PartitionId = PartitionId::new(1);

/// What a slot answers, and after how many milliseconds; `None` is silence.
type Answer = Option<(u64, ReadReply)>;

fn whole() -> Blob {
    let point = LogPoint::new(Generation::new(1), Step::new(1));
    let key = BlobKey { partition: PARTITION, point };
    let payload = Payload::from(Bytes::from(vec![7; 9000]));
    let header = BlobHeader::describe(BlobKind::Records, Offset::ZERO, 1, 1, &payload);
    Blob { key, header, payload }
}

/// The parts of one blob, by the slot that holds each.
fn parts() -> Vec<Blob> {
    let Blob { key, header, payload } = whole();
    let blob = |(header, payload)| Blob { key, header, payload };
    let mut parts: Vec<Blob> = cut(&header, &payload).into_iter().map(blob).collect();
    let turn = PARTITION.get() as usize % parts.len();
    parts.rotate_right(turn);
    parts
}

fn has_it(after_ms: u64) -> Answer {
    Some((after_ms, ReadReply::Blobs(vec![whole()])))
}

fn has_nothing(after_ms: u64) -> Answer {
    Some((after_ms, ReadReply::NotHere))
}

/// How a read ended.
struct Ended {
    outcome: Result<Slot, BlobReadFailed>,
    blobs: Vec<Blob>,
    asked: Vec<usize>,
    took: Duration,
}

/// Reads from slots that answer so.
fn read(answers: &[Answer]) -> Ended {
    let (mut now, mut out, mut asked) = (Instant::ZERO, Vec::new(), Vec::new());
    let mut coming: Vec<(Instant, Slot, ReadReply)> = Vec::new();
    let order = (0..answers.len() as u8).map(Slot::new).collect();
    let request = Read::one(whole().key);
    let mut read = BlobRead::begin(request, order, SlotSet::EMPTY, now, &mut out);
    loop {
        for output in std::mem::take(&mut out) {
            let took = now.since(Instant::ZERO);
            match output {
                BlobReadOutput::Ask(slot, _) => {
                    asked.push(slot.index());
                    let Some((after_ms, reply)) = answers[slot.index()].clone() else { continue };
                    coming.push((now + Duration::from_millis(after_ms), slot, reply));
                }
                BlobReadOutput::Late(slot) => assert!(asked.contains(&slot.index())),
                BlobReadOutput::Given(slot, given) => {
                    let blobs = blobs_of(given).expect("what was put");
                    return Ended { outcome: Ok(slot), blobs, asked, took };
                }
                BlobReadOutput::Failed(failed) => {
                    return Ended { outcome: Err(failed), blobs: Vec::new(), asked, took };
                }
            }
        }
        coming.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
        match coming.pop_if(|(at, ..)| *at <= read.deadline()) {
            Some((at, slot, reply)) => {
                now = at;
                read.on_reply(now, slot, reply, &mut out);
            }
            None => {
                now = read.deadline();
                read.tick(now, &mut out);
            }
        }
    }
}

/// Which slot gave the blob, and how many were asked.
fn given(answers: &[Answer]) -> (Option<usize>, usize) {
    let ended = read(answers);
    assert!(ended.outcome.is_err() || ended.blobs == [whole()]);
    (ended.outcome.ok().map(Slot::index), ended.asked.len())
}

#[test]
fn a_late_answer_counts() {
    assert_eq!(given(&[has_it(10), has_it(10)]), (Some(0), 1));
    assert_eq!(given(&[has_nothing(10), has_it(10)]), (Some(1), 2));
    assert_eq!(given(&[has_it(9_000), has_it(10)]), (Some(1), 2), "hedged around");
    let all_late = [has_it(1_700), has_it(1_900), has_it(1_900)];
    assert_eq!(given(&all_late), (Some(0), 3), "none is asked twice");
    assert_eq!(given(&[has_nothing(10), has_nothing(20)]), (None, 2));
    assert_eq!(given(&[None, None, has_it(3_000)]), (Some(2), 3));
}

#[test]
fn what_failed_says_why_of_each_slot() {
    let unreadable = Some((10, ReadReply::Unreadable));
    let ended = read(&[has_nothing(10), unreadable, None]);
    let failed = ended.outcome.expect_err("nobody has it");
    let why = [NotGiven::NotHere, NotGiven::Unreadable, NotGiven::Silent];
    assert_eq!(failed.slots, (0..3).map(Slot::new).zip(why).collect::<Vec<_>>());
    assert!(ended.took < ANSWER_WITHIN * 2);
    let text = failed.to_string();
    assert!(
        text.ends_with("slot 1 can't read it from its disk, slot 2 has not answered"),
        "{text}"
    );
}

#[test]
fn a_slot_that_is_not_connected_costs_no_time() {
    let (now, mut out) = (Instant::ZERO, Vec::new());
    let order = vec![Slot::new(3), Slot::new(5)];
    let mut read = BlobRead::begin(Read::one(whole().key), order, SlotSet::EMPTY, now, &mut out);
    out.clear();
    read.on_nothing(now, Slot::new(3), NotGiven::NotConnected, &mut out);
    assert!(matches!(out[..], [BlobReadOutput::Ask(slot, _)] if slot.index() == 5), "{out:?}");
    out.clear();
    read.on_nothing(now, Slot::new(5), NotGiven::NotConnected, &mut out);
    assert!(matches!(out[..], [BlobReadOutput::Failed(_)]), "{out:?}");
}

/// Reads a blob that is kept in parts when these slots are silent; how long it took, and which were asked.
fn read_parts_without(silent: &[usize]) -> Option<(Duration, Vec<usize>)> {
    let answer = |(slot, part): (usize, Blob)| {
        let is_silent = silent.contains(&slot);
        (!is_silent).then(|| (1, ReadReply::Blobs(vec![part])))
    };
    let answers: Vec<Answer> = parts().into_iter().enumerate().map(answer).collect();
    let ended = read(&answers);
    ended.outcome.ok()?;
    assert_eq!(ended.blobs, [whole()]);
    Some((ended.took, ended.asked))
}

#[test]
fn a_slow_slot_that_holds_parts_is_hedged_around() {
    let late = PART_LATE_AFTER + Duration::from_millis(5);
    let (took, asked) = read_parts_without(&[]).expect("all are there");
    assert!(took < PART_LATE_AFTER);
    assert_eq!(asked, [0, 1, 2, 3], "one is asked, and then those that hold data");
    assert!(read_parts_without(&[1]).is_some_and(|(took, _)| took < late));
    assert!(read_parts_without(&[1, 2]).is_some_and(|(took, _)| took < late * 2));
    assert!(read_parts_without(&[1, 2, 4, 5, 6]).is_none(), "three parts are too few");
}
