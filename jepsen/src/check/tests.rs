//! Each promise is broken once by a doctored history; the checker must say which.

use super::*;
use crate::value::Batch;

const PARTITION: PartitionId = PartitionId::new(1);

fn generation(raw: u32) -> Generation {
    Generation::new(raw)
}

fn placed(offset: i64, producer: u32, sequence: u32, count: u32) -> PlacedBatch {
    let first = Value { producer, epoch: 0, sequence };
    PlacedBatch::whole(Offset::new(offset), Batch { first, count, kind: Kind::Plain })
}

fn sourced(sequence: u32, count: u32) -> Batch {
    Batch {
        first: Value { producer: 3, epoch: Value::SOURCED, sequence },
        count,
        kind: Kind::Plain,
    }
}

#[test]
fn a_source_is_told_what_is_not_so() {
    let at =
        |offset, sequence, count| PlacedBatch::whole(Offset::new(offset), sourced(sequence, count));
    let mut checker = Checker::new();
    checker.told(PARTITION, Offset::new(0), sourced(0, 2)).unwrap();
    checker.shown(PARTITION, generation(1), at(0, 0, 2)).unwrap();
    let holed = PlacedBatch { holes: 0b001, ..at(2, 1, 3) };
    checker.told(PARTITION, Offset::new(2), sourced(1, 3)).unwrap();
    checker.told(PARTITION, Offset::new(1), sourced(1, 1)).unwrap();
    let elsewhere = checker.told(PARTITION, Offset::new(0), sourced(1, 1));
    assert_eq!(promise(elsewhere), Some(Promise::OneValuePerOffset));
    let log = [at(0, 0, 2), holed];
    checker.final_log(PARTITION, Offset::ZERO, &log).unwrap();
    checker.told(PARTITION, Offset::UNKNOWN, sourced(4, 1)).unwrap();
    let lost = checker.final_log(PARTITION, Offset::ZERO, &log);
    assert_eq!(promise(lost), Some(Promise::AcknowledgedForEver));
    let twice = checker.shown(PARTITION, generation(2), at(5, 1, 1));
    assert_eq!(promise(twice), Some(Promise::ExactlyOnce));
}

fn promise(verdict: Verdict) -> Option<Promise> {
    verdict.err().map(|violation| violation.promise)
}

#[test]
fn a_true_history_passes() {
    let mut checker = Checker::new();
    checker.serving(PARTITION, generation(1), Offset::ZERO).unwrap();
    checker.acknowledged(PARTITION, generation(1), placed(0, 1, 0, 2)).unwrap();
    checker.high_watermark(PARTITION, generation(1), Offset::new(2)).unwrap();
    checker.serving(PARTITION, generation(2), Offset::new(3)).unwrap();
    checker.shown(PARTITION, generation(2), placed(2, 2, 0, 1)).unwrap();
    checker.shown(PARTITION, generation(1), placed(0, 1, 0, 2)).unwrap();
    let log = [placed(0, 1, 0, 2), placed(2, 2, 0, 1), placed(3, 1, 2, 1)];
    checker.final_log(PARTITION, Offset::ZERO, &log).unwrap();
    assert_eq!(checker.acknowledged_count(), 2);
    assert_eq!(checker.visible_end(PARTITION), Offset::new(3));
}

#[test]
fn two_values_at_one_offset() {
    let mut checker = Checker::new();
    checker.shown(PARTITION, generation(1), placed(0, 1, 0, 2)).unwrap();
    let verdict = checker.shown(PARTITION, generation(2), placed(1, 2, 0, 1));
    assert_eq!(promise(verdict), Some(Promise::OneValuePerOffset));
}

#[test]
fn one_value_at_two_offsets() {
    let mut checker = Checker::new();
    checker.acknowledged(PARTITION, generation(1), placed(0, 1, 0, 1)).unwrap();
    let verdict = checker.acknowledged(PARTITION, generation(2), placed(4, 1, 0, 1));
    assert_eq!(promise(verdict), Some(Promise::ExactlyOnce));
}

#[test]
fn a_new_leader_that_lost_the_tail() {
    let mut checker = Checker::new();
    checker.high_watermark(PARTITION, generation(1), Offset::new(5)).unwrap();
    let verdict = checker.serving(PARTITION, generation(2), Offset::new(4));
    assert_eq!(promise(verdict), Some(Promise::VisibleForEver));
}

#[test]
fn an_old_leader_that_goes_on() {
    let mut checker = Checker::new();
    checker.serving(PARTITION, generation(2), Offset::new(5)).unwrap();
    checker.high_watermark(PARTITION, generation(1), Offset::new(5)).unwrap();
    let verdict = checker.high_watermark(PARTITION, generation(1), Offset::new(6));
    assert_eq!(promise(verdict), Some(Promise::VisibleForEver));
}

#[test]
fn a_high_watermark_that_goes_back() {
    let mut checker = Checker::new();
    checker.high_watermark(PARTITION, generation(1), Offset::new(5)).unwrap();
    let verdict = checker.high_watermark(PARTITION, generation(1), Offset::new(4));
    assert_eq!(promise(verdict), Some(Promise::VisibleForEver));
}

#[test]
fn a_final_log_without_what_was_acknowledged() {
    let mut checker = Checker::new();
    checker.acknowledged(PARTITION, generation(1), placed(0, 1, 0, 2)).unwrap();
    let verdict = checker.final_log(PARTITION, Offset::ZERO, &[placed(0, 1, 0, 1)]);
    assert_eq!(promise(verdict), Some(Promise::AcknowledgedForEver));
}

#[test]
fn a_final_log_without_what_was_visible() {
    let mut checker = Checker::new();
    checker.shown(PARTITION, generation(1), placed(0, 1, 0, 1)).unwrap();
    let verdict = checker.final_log(PARTITION, Offset::ZERO, &[]);
    assert_eq!(promise(verdict), Some(Promise::VisibleForEver));
}

#[test]
fn a_final_log_with_a_gap() {
    let mut checker = Checker::new();
    let verdict =
        checker.final_log(PARTITION, Offset::ZERO, &[placed(0, 1, 0, 1), placed(2, 1, 1, 1)]);
    assert_eq!(promise(verdict), Some(Promise::OneValuePerOffset));
}

#[test]
fn a_final_log_where_a_producers_value_is_missing() {
    let mut checker = Checker::new();
    let verdict =
        checker.final_log(PARTITION, Offset::ZERO, &[placed(0, 1, 0, 1), placed(1, 1, 2, 1)]);
    assert_eq!(promise(verdict), Some(Promise::ProducerOrder));
}

#[test]
fn a_fence_that_shrinks_in_one_life_of_a_disk() {
    let mut checker = Checker::new();
    let (node, first) = (NodeId::new(3), Incarnation::new(1));
    checker.fenced(node, first, PARTITION, generation(4)).unwrap();
    checker.fenced(node, Incarnation::new(2), PARTITION, generation(1)).unwrap();
    let verdict = checker.fenced(node, first, PARTITION, generation(3));
    assert_eq!(promise(verdict), Some(Promise::FencesGrow));
}

#[test]
fn a_leader_that_goes_on_after_it_was_refused() {
    let mut checker = Checker::new();
    let node = NodeId::new(4);
    checker.put(node, PARTITION, generation(1)).unwrap();
    checker.refused(node, PARTITION, generation(1));
    checker.put(node, PARTITION, generation(2)).unwrap();
    let verdict = checker.put(node, PARTITION, generation(1));
    assert_eq!(promise(verdict), Some(Promise::StopsWhenFenced));
}

#[test]
fn a_log_may_begin_behind_what_was_deleted() {
    let mut checker = Checker::new();
    checker.shown(PARTITION, generation(1), placed(0, 1, 0, 2)).unwrap();
    checker.deleted(PARTITION, Offset::new(2));
    let log = [placed(2, 1, 2, 1)];
    checker.final_log(PARTITION, Offset::new(2), &log).unwrap();
}

#[test]
fn a_deleted_value_does_not_hide_a_missing_one() {
    let mut checker = Checker::new();
    checker.shown(PARTITION, generation(1), placed(0, 1, 0, 2)).unwrap();
    let verdict = checker.final_log(PARTITION, Offset::new(2), &[placed(2, 1, 3, 1)]);
    assert_eq!(promise(verdict), Some(Promise::ProducerOrder));
}

#[test]
fn what_was_deleted_comes_back() {
    let mut checker = Checker::new();
    checker.deleted(PARTITION, Offset::new(2));
    let verdict = checker.final_log(PARTITION, Offset::ZERO, &[placed(0, 1, 0, 3)]);
    assert_eq!(promise(verdict), Some(Promise::DeletedForEver));
}
