//! Which copies go (rules K1 and K2).

use std::collections::BTreeMap;

use super::*;
use crate::leader::{Asked, Judged, Listed};
use crate::message::{CopyList, HeldCopy};

/// Steps 1 to 3 are committed, and this mark says so.
fn bench(mutation: Option<Mutation>) -> (Bench, CommitMark) {
    let mut plan = TakeoverPlan::first(LeaderEpoch::new(0));
    plan.start.previous = Some(LogPoint::new(Generation::FIRST, Step::new(3)));
    plan.start.past = vec![Past {
        generation: Generation::FIRST,
        base_offset: Offset::ZERO,
        last_step: Step::new(3),
    }];
    let mut bench = Bench::start_with(plan, mutation);
    bench.stored(0, [0, 3, 6]);
    for step in 1..=3 {
        bench.put(records(step - 1, b"a")).expect("admitted");
        bench.stored(step as u64, [0, 3, 6]);
    }
    let mark = bench.leader.mark().expect("it serves");
    (bench, mark)
}

fn point(generation: u32, step: u64) -> LogPoint {
    LogPoint::new(Generation::new(generation), Step::new(step))
}

/// What all slots say if each holds the blobs that `held` names it for, and knows this committed.
fn lists(held: &[(LogPoint, &[u8])], mark: CommitMark) -> BTreeMap<Slot, Listed> {
    let copies_of = |slot: u8| {
        let here = held.iter().filter(move |(_, holders)| holders.contains(&slot));
        here.map(|(point, _)| HeldCopy { point: *point, size_bytes: 10, is_part: false })
    };
    let listed = |slot: u8| {
        let list = CopyList {
            incarnation: Incarnation::new(100 + u64::from(slot)),
            config_version: group().version,
            mark: Some(mark),
            records_size_bytes: 0,
            copies: copies_of(slot).collect(),
            complete: true,
        };
        (Slot::new(slot), Listed { tag: u64::from(slot), list })
    };
    (0..9).map(listed).collect()
}

/// Which copies go, by slot and point.
fn freed(judged: Option<Judged>) -> Vec<(usize, LogPoint)> {
    let frees = judged.expect("all slots are well").frees;
    let points = frees.into_iter().flat_map(|(slot, freed)| {
        assert_eq!(freed.list, slot.index() as u64);
        freed.points.into_iter().map(move |point| (slot.index(), point))
    });
    points.collect()
}

#[test]
fn k1_of_each_blob_as_many_copies_stay_as_it_needs() {
    let (bench, mark) = bench(None);
    let (first, second, third) = (point(2, 1), point(2, 2), point(2, 3));
    let judge = |held: &[(LogPoint, &[u8])]| freed(bench.leader.judge_copies(&lists(held, mark)));
    assert_eq!(judge(&[(first, &[0, 3, 6]), (second, &[1, 4, 7])]), []);
    assert_eq!(judge(&[(first, &[0, 3, 4, 6])]), [(4, first)]);
    assert_eq!(judge(&[(first, &[1, 2, 4, 6, 8])]), [(2, first), (8, first)]);
    assert_eq!(judge(&[(first, &[0, 1, 3, 4])]), [], "two in each of two datacenters");
    assert_eq!(judge(&[(second, &[0, 1, 2, 3, 4])]), [(2, second)]);
    assert_eq!(judge(&[(third, &[0, 1, 2, 3])]), [], "it is on too few as it is");
    let (old, void) = (point(1, 3), point(1, 4));
    let of_past: [(LogPoint, &[u8]); 2] = [(old, &[0, 3, 4, 6]), (void, &[0, 3, 4, 6])];
    assert_eq!(judge(&of_past), [(4, old)], "what was cut off is not a matter of copies");
}

#[test]
fn k1_what_min_insync_datacenters_asks_for_stays() {
    let (mut bench, mark) = bench(None);
    let held: [(LogPoint, &[u8]); 1] = [(point(2, 1), &[0, 1, 3, 4, 5])];
    assert_eq!(freed(bench.leader.judge_copies(&lists(&held, mark))), [(5, point(2, 1))]);
    bench.leader.set_datacenter_count_min(3);
    assert_eq!(freed(bench.leader.judge_copies(&lists(&held, mark))), []);
}

#[test]
fn k1_nothing_goes_while_a_slot_is_not_heard_or_not_well() {
    let held: [(LogPoint, &[u8]); 1] = [(point(2, 1), &[0, 3, 4, 6])];
    let (mut bench, mark) = bench(None);
    let mut without_one = lists(&held, mark);
    without_one.remove(&Slot::new(8));
    assert!(bench.leader.judge_copies(&without_one).is_none());
    bench.config(group_with_slot_3_replaced(2, SlotState::LostData));
    assert!(bench.leader.judge_copies(&lists(&held, mark)).is_none(), "lists of before");
    assert!(bench.leader.list_copies(Asked::Size).is_some());
}

#[test]
fn k1_what_a_disk_held_in_a_former_life_counts_for_nothing() {
    let held: [(LogPoint, &[u8]); 1] = [(point(2, 1), &[0, 3, 4, 6])];
    let of_former_life = |mark| {
        let mut lists = lists(&held, mark);
        let listed = lists.get_mut(&Slot::new(3)).expect("listed");
        listed.list.incarnation = Incarnation::new(9);
        lists
    };
    let (sound, mark) = bench(None);
    assert!(sound.leader.judge_copies(&of_former_life(mark)).is_none());
    let (broken, mark) = bench(Some(Mutation::FormerLifeListed));
    let judged = broken.leader.judge_copies(&of_former_life(mark));
    assert_eq!(freed(judged), [(4, point(2, 1))], "the test would see it");
}

#[test]
fn k2_nothing_goes_that_a_takeover_might_find_in_doubt() {
    let held: [(LogPoint, &[u8]); 2] = [(point(2, 2), &[0, 3, 4, 6]), (point(2, 3), &[0, 3, 4, 6])];
    let early = CommitMark { point: point(2, 2), high_watermark: Offset::new(2) };
    let told = |mark: CommitMark| {
        // Only two datacenters know of the third step, by one slot each.
        let mut lists = lists(&held, early);
        for slot in [0, 3] {
            lists.get_mut(&Slot::new(slot)).expect("listed").list.mark = Some(mark);
        }
        lists
    };
    let (sound, mark) = bench(None);
    assert_eq!(freed(sound.leader.judge_copies(&told(mark))), [(4, point(2, 2))]);
    let (broken, mark) = bench(Some(Mutation::FreedInDoubtCopies));
    assert_eq!(freed(broken.leader.judge_copies(&told(mark))).len(), 2, "the test would see it");
}

#[test]
fn what_not_all_slots_have_listed_waits_for_the_next_page() {
    let held: [(LogPoint, &[u8]); 2] = [(point(2, 1), &[0, 3, 4, 6]), (point(2, 2), &[0, 3, 4, 6])];
    let (bench, mark) = bench(None);
    let mut lists = lists(&held, mark);
    let cut = lists.get_mut(&Slot::new(3)).expect("listed");
    cut.list.copies.pop();
    cut.list.complete = false;
    let judged = bench.leader.judge_copies(&lists).expect("all slots are well");
    assert_eq!((judged.next, judged.freed_bytes), (Some(point(2, 1)), 10));
    assert_eq!(freed(Some(judged)), [(4, point(2, 1))]);
}

#[test]
fn whether_there_may_be_surplus_is_seen_by_the_bytes_of_all() {
    let (bench, _) = bench(None);
    let (gib, kib) = (1 << 30, 1 << 10);
    assert!(!bench.leader.may_be_surplus(3 * gib + gib / 50, gib));
    assert!(bench.leader.may_be_surplus(3 * gib + gib / 20, gib));
    assert!(!bench.leader.may_be_surplus(kib * 40, kib));
}
