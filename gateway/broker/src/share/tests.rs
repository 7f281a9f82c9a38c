//! A window against one that keeps each record by itself; what a coordinator keeps of it; and members.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::{LeaderEpoch, Offset};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;

const MEMBERS: [&str; 2] = ["a", "b"];
const OFFSET_COUNT: usize = 60;
const LIMITS: ShareLimits = ShareLimits {
    record_count_max: 12,
    delivery_count_max: 3,
    lock_duration: Duration::from_millis(30),
};
const EPOCH: LeaderEpoch = LeaderEpoch::new(4);

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        member: usize,
        batch_count: usize,
        record_count: u32,
        mode: AcquireMode,
    },
    /// What a member says of records from the start of the window on, that it may not hold.
    Acknowledge {
        member: usize,
        skip: usize,
        types: Vec<AckType>,
        is_one: bool,
    },
    /// What a member says of all that it holds.
    AcknowledgeHeld {
        member: usize,
        kind: AckType,
    },
    Release(usize),
    Expire,
    Delete(usize),
    /// The next delta is sent, twice perhaps.
    Send {
        is_repeated: bool,
    },
    Written,
    /// The leader is another; the delta on the way is kept, or not.
    Lose {
        is_kept: bool,
    },
}

fn ack_type() -> impl Strategy<Value = AckType> {
    prop::sample::select(vec![
        AckType::Gap,
        AckType::Accept,
        AckType::Accept,
        AckType::Release,
        AckType::Reject,
        AckType::Renew,
    ])
}

fn step() -> impl Strategy<Value = Step> {
    let member = 0..MEMBERS.len();
    let mode = prop::sample::select(vec![AcquireMode::Batches, AcquireMode::Records]);
    prop_oneof![
        8 => (member.clone(), 1usize..4, 1u32..9, mode).prop_map(
            |(member, batch_count, record_count, mode)| Step::Acquire {
                member, batch_count, record_count, mode,
            }
        ),
        4 => (member.clone(), 0usize..14, prop::collection::vec(ack_type(), 1..5), any::<bool>())
            .prop_map(|(member, skip, types, is_one)| Step::Acknowledge {
                member, skip, types, is_one,
            }),
        6 => (member.clone(), ack_type())
            .prop_map(|(member, kind)| Step::AcknowledgeHeld { member, kind }),
        1 => member.prop_map(Step::Release),
        2 => Just(Step::Expire),
        1 => (0..OFFSET_COUNT).prop_map(Step::Delete),
        8 => any::<bool>().prop_map(|is_repeated| Step::Send { is_repeated }),
        8 => Just(Step::Written),
        1 => any::<bool>().prop_map(|is_kept| Step::Lose { is_kept }),
    ]
}

/// The batches of a log: how many offsets, and whether they are records, dead, or not there.
fn layout() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((1usize..6, 0u8..6), 30)
}

/// A record, by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Single {
    Free(u16),
    Held { member: usize, count: u16, until: Instant },
    Done,
    Gone,
}

impl Single {
    fn lasting(&self) -> Delivery {
        match self {
            Self::Free(count) => Delivery::Available(*count),
            Self::Held { count, .. } => Delivery::Available(count - 1),
            Self::Done => Delivery::Acknowledged,
            Self::Gone => Delivery::Archived,
        }
    }
}

/// Who waits: the records that it has accepted.
type Waiter = Vec<usize>;

struct World {
    now: Instant,
    batches: Vec<ReadBatch>,
    window: SharePartition<Waiter>,
    singles: Vec<Single>,
    start: usize,
    end: usize,
    deleted_below: usize,
    state: ShareState,
    kept: Vec<Delivery>,
    opening: Opening,
    on_its_way: Option<Delta>,
    stale: Vec<(Opening, Delta)>,
    accepted: BTreeSet<usize>,
}

fn at(offset: usize) -> Offset {
    Offset::new(i64::try_from(offset).expect("a small one"))
}

fn index(offset: Offset) -> usize {
    usize::try_from(offset.get()).expect("not negative")
}

impl World {
    fn new(layout: &[(usize, u8)]) -> Self {
        let mut batches = Vec::new();
        let mut next = 0;
        for (count, kind) in layout {
            let end = (next + count).min(OFFSET_COUNT);
            if *kind > 0 && end > next {
                batches.push(ReadBatch { start: at(next), end: at(end), is_dead: *kind == 1 });
            }
            next = end;
        }
        let mut state = ShareState::default();
        state.open(EPOCH, Opening(1)).expect("the first");
        let window = SharePartition::restore(LIMITS, &state.image(), at(2));
        Self {
            now: Instant::from_micros(1_000_000),
            batches,
            window,
            singles: vec![Single::Free(0); OFFSET_COUNT],
            start: 2,
            end: 2,
            deleted_below: 0,
            state,
            kept: vec![Delivery::Available(0); OFFSET_COUNT],
            opening: Opening(1),
            on_its_way: None,
            stale: Vec::new(),
            accepted: BTreeSet::new(),
        }
    }

    fn limit(&self) -> usize {
        self.start + LIMITS.record_count_max as usize
    }

    fn free_from(&self) -> Option<usize> {
        let is_free = |offset: &usize| matches!(self.singles[*offset], Single::Free(_));
        let free = (self.start..self.end).find(is_free).unwrap_or(self.end);
        Some(free).filter(|free| *free < self.limit())
    }

    fn advance(&mut self) {
        let is_decided = |single: &Single| matches!(single, Single::Done | Single::Gone);
        while self.start < self.end && is_decided(&self.singles[self.start]) {
            self.start += 1;
        }
    }

    fn archive(&mut self, from: usize, to: usize) {
        for offset in from..to {
            if matches!(self.singles[offset], Single::Free(_)) {
                self.singles[offset] = Single::Gone;
            }
        }
        if from < to {
            self.end = self.end.max(to);
        }
    }

    fn acquire(
        &mut self,
        member: usize,
        batch_count: usize,
        record_count: u32,
        mode: AcquireMode,
    ) -> Result<(), TestCaseError> {
        let Some(from) = self.free_from() else { return Ok(()) };
        let behind = self.batches.iter().filter(|batch| batch.end > at(from));
        let read: Vec<ReadBatch> = behind.take(batch_count).copied().collect();
        let wanted = Wanted { record_count_max: record_count, piece_record_count: 2, mode };
        let id = Arc::from(MEMBERS[member]);
        let given = self.window.acquire(self.now, &id, at(from), &read, wanted);
        let mut expected = BTreeSet::new();
        let (mut next, mut left, limit) = (from, record_count, self.limit());
        for batch in &read {
            if next > self.end || left == 0 {
                break;
            }
            let (start, end) = (index(batch.start).max(next), index(batch.end));
            self.archive(next, start);
            next = start.max(end);
            if batch.is_dead {
                self.archive(start, end);
                continue;
            }
            for offset in start..end.min(limit) {
                let Single::Free(count) = self.singles[offset] else { continue };
                if mode == AcquireMode::Records && left == 0 {
                    break;
                }
                left = left.saturating_sub(1);
                let until = self.now + LIMITS.lock_duration;
                self.singles[offset] = Single::Held { member, count: count + 1, until };
                self.end = self.end.max(offset + 1);
                expected.insert((offset, count + 1));
            }
        }
        self.advance();
        let mut told = BTreeSet::new();
        for Acquired { start, end, delivery_count } in given {
            told.extend((index(start)..index(end)).map(|offset| (offset, delivery_count)));
        }
        for (offset, count) in &told {
            prop_assert!(!self.accepted.contains(offset), "{offset} was accepted, and comes again");
            prop_assert!(
                *count <= LIMITS.delivery_count_max,
                "{offset} comes for the {count}th time"
            );
            prop_assert!(*offset < limit);
        }
        prop_assert_eq!(told, expected);
        Ok(())
    }

    fn acknowledge(
        &mut self,
        member: usize,
        first: usize,
        types: &[AckType],
        is_one: bool,
        count: usize,
    ) -> Result<(), TestCaseError> {
        let last = first + count - 1;
        let kind = |offset: usize| if is_one { types[0] } else { types[offset - first] };
        let types = if is_one { types[..1].to_vec() } else { types.to_vec() };
        let range = AckRange { first: at(first), last: at(last), types };
        let is_held = |offset: usize| {
            offset < self.deleted_below
                || matches!(self.singles.get(offset), Some(Single::Held { member: it, .. }) if *it == member)
                    && (self.start..self.end).contains(&offset)
        };
        let is_right = (first..=last).all(is_held);
        let taken = self.window.acknowledge(self.now, MEMBERS[member], &[range], true);
        prop_assert_eq!(taken, if is_right { Ok(()) } else { Err(AckError::NotHeld) });
        if !is_right {
            return Ok(());
        }
        let mut accepted = Vec::new();
        for offset in first.max(self.start)..=last {
            let Single::Held { count, .. } = self.singles[offset] else { continue };
            self.singles[offset] = match kind(offset) {
                AckType::Accept => {
                    accepted.push(offset);
                    Single::Done
                }
                AckType::Gap | AckType::Reject => Single::Gone,
                AckType::Release if count >= LIMITS.delivery_count_max => Single::Gone,
                AckType::Release => Single::Free(count),
                AckType::Renew => {
                    Single::Held { member, count, until: self.now + LIMITS.lock_duration }
                }
            };
        }
        self.advance();
        if let Some(accepted) = self.window.when_kept(accepted) {
            prop_assert!(accepted.is_empty(), "answered before it is kept");
        }
        Ok(())
    }

    fn keep(&mut self, delta: &Delta) {
        for (start, end, delivery) in &delta.changed {
            self.kept[index(*start)..index(*end)].fill(*delivery);
        }
    }

    fn send(&mut self, is_repeated: bool) -> Result<(), TestCaseError> {
        let Some(delta) = self.window.take_delta() else { return Ok(()) };
        prop_assert!(self.on_its_way.is_none(), "one at a time");
        for _ in 0..=usize::from(is_repeated) {
            prop_assert!(self.state.write(self.opening, &delta).is_ok());
        }
        self.keep(&delta);
        self.on_its_way = Some(delta);
        Ok(())
    }

    fn written(&mut self) {
        let Some(delta) = self.on_its_way.take() else { return };
        for (accepted, told) in self.window.on_written(Ok(())) {
            assert_eq!(told, Ok(()));
            self.accepted.extend(accepted);
        }
        self.stale.push((self.opening, delta));
    }

    /// Another leader opens what is kept.
    fn lose(&mut self, is_kept: bool) -> Result<(), TestCaseError> {
        if self.on_its_way.is_none()
            && let Some(delta) = self.window.take_delta()
        {
            if is_kept {
                prop_assert!(self.state.write(self.opening, &delta).is_ok());
                self.keep(&delta);
            }
            self.stale.push((self.opening, delta));
        }
        self.on_its_way = None;
        self.opening = Opening(self.opening.0 + 1);
        prop_assert!(self.state.open(EPOCH, self.opening).is_ok());
        for (opening, delta) in &self.stale {
            let late = self.state.write(*opening, delta);
            prop_assert_eq!(late, Err(ShareError::FencedState), "of a former leader");
        }
        let image = self.state.image();
        prop_assert_eq!(&ShareState::restore(&image), &self.state);
        let begun = at(if image.start.is_some() { 0 } else { 2 });
        self.window = SharePartition::restore(LIMITS, &image, begun);
        self.start = index(self.window.start());
        self.deleted_below = 0;
        self.singles = self
            .kept
            .iter()
            .map(|delivery| match delivery {
                Delivery::Available(count) => Single::Free(*count),
                Delivery::Acknowledged => Single::Done,
                Delivery::Archived => Single::Gone,
            })
            .collect();
        let is_tracked = |offset: &usize| self.singles[*offset] != Single::Free(0);
        let last = (self.start..OFFSET_COUNT).rfind(is_tracked);
        self.end = last.map_or(self.start, |last| last + 1);
        self.advance();
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.now = self.now + Duration::from_millis(4);
        match step {
            Step::Acquire { member, batch_count, record_count, mode } => {
                self.acquire(*member, *batch_count, *record_count, *mode)?;
            }
            Step::Acknowledge { member, skip, types, is_one } => {
                let first = (self.start + skip).saturating_sub(1);
                self.acknowledge(*member, first, types, *is_one, types.len())?;
            }
            Step::AcknowledgeHeld { member, kind } => {
                let is_its = |single: &Single| matches!(single, Single::Held { member: it, .. } if it == member);
                let held: Vec<usize> = (self.start..self.end)
                    .filter(|offset| is_its(&self.singles[*offset]))
                    .collect();
                for offset in held {
                    self.acknowledge(*member, offset, &[*kind], true, 1)?;
                }
            }
            Step::Release(member) => {
                self.window.release(MEMBERS[*member]);
                for single in &mut self.singles {
                    if let Single::Held { member: it, count, .. } = single
                        && it == member
                    {
                        *single = match *count >= LIMITS.delivery_count_max {
                            true => Single::Gone,
                            false => Single::Free(*count),
                        };
                    }
                }
                self.advance();
            }
            Step::Expire => {
                self.window.expire(self.now);
                for single in &mut self.singles {
                    if let Single::Held { count, until, .. } = single
                        && *until <= self.now
                    {
                        *single = match *count >= LIMITS.delivery_count_max {
                            true => Single::Gone,
                            false => Single::Free(*count),
                        };
                    }
                }
                self.advance();
            }
            Step::Delete(below) => {
                self.window.on_log_start(at(*below));
                if *below > self.start {
                    self.deleted_below = *below;
                    self.start = *below;
                    self.end = self.end.max(*below);
                    self.advance();
                }
            }
            Step::Send { is_repeated } => self.send(*is_repeated)?,
            Step::Written => self.written(),
            Step::Lose { is_kept } => self.lose(*is_kept)?,
        }
        self.check()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.window.start(), at(self.start));
        prop_assert_eq!(self.window.next_fetch(), self.free_from().map(at));
        let is_held = |single: &&Single| matches!(single, Single::Held { .. });
        let held_count = self.singles[self.start..self.end].iter().filter(is_held).count();
        prop_assert_eq!(self.window.held_count(), held_count as u64);
        let is_read = self.window.run_count() <= 2 * LIMITS.record_count_max as usize + 1;
        prop_assert!(is_read, "the window is bounded");
        if self.window.is_settled() {
            prop_assert_eq!(self.state.start(), Some(at(self.start)));
            for offset in self.start..self.end {
                let kept = self.state.deliveries().over(at(offset), at(offset + 1));
                let kept = kept.first().and_then(|run| run.value);
                let lasting = self.singles[offset].lasting();
                prop_assert_eq!(kept.unwrap_or(Delivery::Available(0)), lasting, "of {}", offset);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_window_is_what_its_records_are_and_what_is_kept_of_it_is_enough(
        layout in layout(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(&layout);
        for step in &steps {
            world.step(step)?;
        }
    }
}

fn window() -> SharePartition<u32> {
    let mut window = SharePartition::restore(LIMITS, &ShareImage::default(), at(0));
    let delta = window.take_delta().expect("where the group begins is said at once");
    assert_eq!((delta.number, delta.start, delta.changed), (1, at(0), vec![]));
    assert_eq!(window.on_written(Ok(())), []);
    window
}

fn range(first: usize, last: usize, kind: AckType) -> AckRange {
    AckRange { first: at(first), last: at(last), types: vec![kind] }
}

fn take(window: &mut SharePartition<u32>, member: &str, count: usize) {
    let from = window.next_fetch().expect("not full");
    let end = Offset::new(from.get() + i64::try_from(count).expect("few"));
    let batch = ReadBatch { start: from, end, is_dead: false };
    let wanted =
        Wanted { record_count_max: 100, piece_record_count: 100, mode: AcquireMode::Batches };
    window.acquire(Instant::ZERO, &Arc::from(member), from, &[batch], wanted);
}

#[test]
fn what_a_member_does_not_hold_it_can_not_acknowledge() {
    use AckType::{Accept, Renew};
    let mut window = window();
    take(&mut window, "a", 4);
    take(&mut window, "b", 2);
    let types = |first, last, types: &[AckType]| AckRange {
        first: at(first),
        last: at(last),
        types: types.to_vec(),
    };
    for (what, ranges, error) in [
        ("another member's", vec![range(4, 5, Accept)], AckError::NotHeld),
        ("some of another's", vec![range(2, 4, Accept)], AckError::NotHeld),
        ("beyond the window", vec![range(6, 6, Accept)], AckError::NotHeld),
        ("far beyond", vec![range(0, usize::MAX / 4, Accept)], AckError::NotHeld),
        ("backwards", vec![range(2, 1, Accept)], AckError::Invalid),
        ("in no order", vec![range(2, 2, Accept), range(1, 1, Accept)], AckError::Invalid),
        ("twice in one request", vec![range(1, 2, Accept), range(2, 3, Accept)], AckError::Invalid),
        ("too few types", vec![types(0, 3, &[Accept; 2])], AckError::Invalid),
        ("no type", vec![types(0, 0, &[])], AckError::Invalid),
        ("a renewal in a request without", vec![range(0, 0, Renew)], AckError::Invalid),
        ("one right, one wrong", vec![range(0, 0, Accept), range(5, 5, Accept)], AckError::NotHeld),
    ] {
        let told = window.acknowledge(Instant::ZERO, "a", &ranges, false);
        assert_eq!(told, Err(error), "{what}");
        assert!(window.is_settled(), "{what}: nothing of it was taken");
    }
    window.acknowledge(Instant::ZERO, "a", &[range(0, 3, Accept)], false).expect("its own");
    let twice = window.acknowledge(Instant::ZERO, "a", &[range(0, 3, Accept)], false);
    assert_eq!(twice, Err(AckError::NotHeld), "it is done");
}

#[test]
fn an_acknowledgement_is_answered_when_its_delta_is_written() {
    let mut window = window();
    take(&mut window, "a", 4);
    window.acknowledge(Instant::ZERO, "a", &[range(0, 0, AckType::Accept)], false).expect("held");
    assert_eq!(window.when_kept(1), None);
    let delta = window.take_delta().expect("a change");
    assert_eq!((delta.number, delta.start), (2, at(1)));
    window.acknowledge(Instant::ZERO, "a", &[range(2, 2, AckType::Accept)], false).expect("held");
    assert_eq!(window.when_kept(2), None);
    assert_eq!(window.take_delta(), None, "one at a time");
    assert_eq!(window.on_written(Ok(())), [(1, Ok(()))]);
    let delta = window.take_delta().expect("the second change");
    assert_eq!(delta.changed, [(at(2), at(3), Delivery::Acknowledged)]);
    assert_eq!(window.when_kept(3), None, "what was said before is not kept yet");
    let lost = Err(ShareError::FencedState);
    assert_eq!(window.on_written(lost), [(2, lost), (3, lost)]);
    assert_eq!(window.when_kept(4), Some(4), "nothing is left to wait for");
}

#[test]
fn a_record_is_delivered_so_often_also_to_members_that_go() {
    let mut window = window();
    let count = |window: &mut SharePartition<u32>| {
        let batch = ReadBatch { start: at(0), end: at(1), is_dead: false };
        let wanted =
            Wanted { record_count_max: 1, piece_record_count: 1, mode: AcquireMode::Records };
        let acquired = window.acquire(Instant::ZERO, &Arc::from("a"), at(0), &[batch], wanted);
        acquired.first().map(|it| it.delivery_count)
    };
    assert_eq!(count(&mut window), Some(1));
    window.release("a");
    assert_eq!(count(&mut window), Some(2));
    assert!(!window.expire(Instant::ZERO), "it is held still");
    assert!(window.expire(Instant::ZERO + LIMITS.lock_duration));
    assert_eq!(count(&mut window), Some(3));
    window.acknowledge(Instant::ZERO, "a", &[range(0, 0, AckType::Release)], false).expect("held");
    assert_eq!(window.start(), at(1), "three times are enough");
    assert_eq!(window.redelivered_count(), 2);
}

#[test]
fn a_renewed_lock_ends_later() {
    let mut window = window();
    take(&mut window, "a", 2);
    let half = Instant::ZERO + LIMITS.lock_duration / 2;
    window.acknowledge(half, "a", &[range(0, 0, AckType::Renew)], true).expect("held");
    assert_eq!(window.when_kept(1), Some(1), "there is nothing to keep");
    assert!(window.expire(Instant::ZERO + LIMITS.lock_duration));
    assert_eq!(window.held_count(), 1, "the other is free");
}

#[test]
fn an_older_leader_does_not_open_what_a_later_one_has() {
    let mut state = ShareState::default();
    state.open(EPOCH, Opening(1)).expect("the first");
    assert_eq!(state.open(LeaderEpoch::new(3), Opening(2)), Err(ShareError::FencedLeader));
    let delta = |number| Delta { number, start: at(number as usize), changed: vec![] };
    assert_eq!(state.write(Opening(1), &delta(2)), Err(ShareError::FencedState), "one is missing");
    assert_eq!(state.write(Opening(1), &delta(1)), Ok(true));
    assert_eq!(state.write(Opening(1), &delta(1)), Ok(false), "it was heard of");
    state.seek(at(9));
    assert_eq!(state.write(Opening(1), &delta(2)), Err(ShareError::FencedState));
    assert_eq!(state.write(Opening(0), &delta(1)), Err(ShareError::FencedState));
    assert_eq!(state.start(), Some(at(9)));
}

#[test]
fn a_damaged_image_does_not_panic() {
    let image = ShareImage {
        start: Some(Offset::new(i64::MAX - 2)),
        deliveries: vec![(u64::MAX, 1, Delivery::Archived), (1, u64::MAX, Delivery::Archived)],
        ..ShareImage::default()
    };
    assert!(ShareState::restore(&image).deliveries().is_empty());
}

mod members;
