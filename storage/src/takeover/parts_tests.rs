//! Taking over a partition of eight racks whose records are in parts: slots 6 and 7 stay silent.

use bytes::Bytes;
use meridian_base::position::Step;
use meridian_base::topology::Geometry;

use super::*;
use crate::blob::{BlobKey, BlobKind};
use crate::hot::{cut, number_on};
use crate::testing::whole_group;

const PARTITION: PartitionId = PartitionId::new(8);
const POINT: LogPoint = LogPoint::new(Generation::new(1), Step::new(1));

struct Bench {
    takeover: Takeover,
    now: Instant,
    out: Vec<TakeoverOutput>,
}

fn payload(byte: u8) -> Payload {
    Payload::from(Bytes::from(vec![byte; 700]))
}

/// What `slot` holds of a blob of this payload.
fn part(payload: &Payload, slot: u8) -> Blob {
    let header = BlobHeader::describe(BlobKind::Records, Offset::ZERO, 1, -1, payload);
    let number = usize::from(number_on(PARTITION, Slot::new(slot)));
    let (header, payload) = cut(&header, payload).swap_remove(number);
    Blob { key: BlobKey { partition: PARTITION, point: POINT }, header, payload }
}

impl Bench {
    /// Slots 0 to 5 answer, each with what it holds beside the first `Start`.
    fn with_answers(held: impl Fn(u8) -> Option<Blob>) -> Self {
        let config = TakeoverConfig {
            partition: PARTITION,
            generation: Generation::new(2),
            leader_epoch: LeaderEpoch::new(2),
            group: whole_group(Geometry::Block42),
            former: Vec::new(),
            mutations: Mutations::NONE,
        };
        let mut out = Vec::new();
        let takeover = Takeover::begin(config, Instant::ZERO, &mut out);
        out.clear();
        let mut bench = Self { takeover, now: Instant::ZERO, out };
        bench.answer(0..6, held);
        bench
    }

    /// These slots answer, each with what it holds beside the first `Start`.
    fn answer(&mut self, slots: std::ops::Range<u8>, held: impl Fn(u8) -> Option<Blob>) {
        let start = TakeoverPlan::first(LeaderEpoch::new(1)).start;
        for slot in slots {
            let info = |blob: Blob| BlobInfo { point: blob.key.point, header: blob.header };
            let view = PartitionView {
                starts: vec![(Generation::new(1), start.clone())],
                blobs: held(slot).map(info).into_iter().collect(),
                ..PartitionView::default()
            };
            let (answer, life) =
                (FenceResult::Certain(view), Incarnation::new(100 + u64::from(slot)));
            self.takeover.on_answer(self.now, Slot::new(slot), life, answer, &mut self.out);
        }
    }

    fn wait(&mut self, by: Duration) {
        self.now = self.now + by;
        self.takeover.tick(self.now, &mut self.out);
    }

    /// Gives what is read of `whole`, until nobody is asked any more. The part on slot 2 has rotted.
    fn give_but_2(&mut self, whole: &Payload) {
        while let Some(slot) = self.asked().pop() {
            let blob = part(whole, slot);
            let rotted = slot == 2;
            let reply = if rotted { ReadReply::Unreadable } else { ReadReply::Blobs(vec![blob]) };
            self.read_gives(slot, reply);
        }
    }

    /// Drains the outputs: whom it asks for its part.
    fn asked(&mut self) -> Vec<u8> {
        let asked = self.out.iter().filter_map(|output| match output {
            TakeoverOutput::Read { slot, .. } => Some(slot.index() as u8),
            _ => None,
        });
        let asked = asked.collect();
        self.out.retain(|output| !matches!(output, TakeoverOutput::Read { .. }));
        asked
    }

    fn read_gives(&mut self, slot: u8, reply: ReadReply) {
        self.takeover.on_read(self.now, Slot::new(slot), reply, &mut self.out);
    }

    fn tail(&self) -> Option<Vec<Payload>> {
        self.out.iter().find_map(|output| match output {
            TakeoverOutput::Decided(plan) => {
                Some(plan.tail.iter().map(|(_, payload)| payload.clone()).collect())
            }
            _ => None,
        })
    }
}

#[test]
fn h2_four_parts_are_read_one_after_another_and_kept_as_the_whole_blob() {
    let whole = payload(1);
    let mut bench = Bench::with_answers(|slot| (slot >= 2).then(|| part(&whole, slot)));
    for slot in 2..6 {
        assert_eq!(bench.tail(), None);
        assert_eq!(bench.asked(), [slot]);
        bench.read_gives(slot, ReadReply::Blobs(vec![part(&whole, slot)]));
    }
    assert_eq!((bench.asked(), bench.tail()), (vec![], Some(vec![whole])));
}

#[test]
fn h2_three_parts_of_six_certain_answers_are_a_gap() {
    let whole = payload(1);
    let bench = Bench::with_answers(|slot| (slot >= 3).then(|| part(&whole, slot)));
    assert_eq!(bench.tail(), Some(Vec::new()));
}

#[test]
fn h2_a_part_that_cannot_be_read_is_made_up_for_by_another() {
    let whole = payload(1);
    let mut bench = Bench::with_answers(|slot| Some(part(&whole, slot)));
    let replies = [
        (0, ReadReply::Unreadable),
        (1, ReadReply::Blobs(vec![part(&whole, 1)])),
        (2, ReadReply::Blobs(vec![part(&payload(9), 2)])),
        (3, ReadReply::Blobs(vec![part(&whole, 3)])),
        (4, ReadReply::Blobs(vec![part(&whole, 4)])),
        (5, ReadReply::Blobs(vec![part(&whole, 5)])),
    ];
    for (slot, reply) in replies {
        assert_eq!(bench.asked(), [slot]);
        bench.read_gives(slot, reply);
    }
    assert_eq!(bench.tail(), Some(vec![whole]));
}

#[test]
fn h4_parts_of_two_writes_under_one_key_are_reported() {
    let bench = Bench::with_answers(|slot| Some(part(&payload(slot % 2), slot)));
    assert_eq!(bench.out, [TakeoverOutput::Broken(Contradiction::TwoValues(POINT))]);
}

/// Four parts, one of which rots. The slots that were silent first are heard, too: nobody acknowledged it.
#[test]
fn t5_what_cannot_be_read_and_was_never_acknowledged_is_a_gap() {
    let whole = payload(1);
    let held = |slot| (2..6).contains(&slot).then(|| part(&whole, slot));
    let mut bench = Bench::with_answers(held);
    bench.give_but_2(&whole);
    bench.wait(ASK_AGAIN_AFTER / 3);
    bench.answer(0..6, held);
    assert_eq!((bench.asked(), bench.tail()), (vec![], None), "the others are waited for");
    bench.answer(6..8, held);
    assert_eq!(bench.tail(), Some(vec![]));
}

/// Six parts, one of which rots: six slots may have acknowledged the blob, as two are silent.
#[test]
fn t5_what_cannot_be_read_and_may_have_been_acknowledged_is_waited_for() {
    let whole = payload(1);
    let held = |slot| (2..8).contains(&slot).then(|| part(&whole, slot));
    let mut bench = Bench::with_answers(held);
    for _ in 0..3 {
        bench.give_but_2(&whole);
        bench.wait(ASK_AGAIN_AFTER / 3);
        bench.answer(0..6, held);
        bench.wait(ASK_AGAIN_AFTER * 4);
        assert_eq!(bench.tail(), None);
    }
    bench.give_but_2(&whole);
    bench.wait(ASK_AGAIN_AFTER / 3);
    bench.answer(0..7, held);
    bench.wait(ASK_AGAIN_AFTER * 5);
    bench.give_but_2(&whole);
    assert_eq!(bench.tail(), Some(vec![whole]));
}
