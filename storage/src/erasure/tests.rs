//! Any parts that suffice give the bytes back; any other bytes are noticed.

use meridian_base::position::{Generation, Step};
use proptest::prelude::*;

use super::*;

const PARTITION: PartitionId = PartitionId::new(7);

fn point(step: u64) -> LogPoint {
    LogPoint::new(Generation::new(3), Step::new(step))
}

fn bytes(size_bytes: usize, seed: u8) -> Bytes {
    let mut state = u32::from(seed) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..size_bytes).map(|_| next()).collect()
}

fn encode(code: Code, step: u64, pieces: &[Bytes]) -> EncodedStripe {
    StripeEncoder::new(code).encode(point(step), pieces)
}

/// What a slot would answer.
fn payload(encoded: &EncodedStripe, number: usize) -> Bytes {
    encoded.parts[number].to_blob(PARTITION, &encoded.stripe).payload.to_contiguous()
}

fn parse(stripe: &Stripe, number: usize, payload: Bytes) -> Result<Part, PartError> {
    Part::parse(PARTITION, stripe, number as u8, payload)
}

#[test]
fn every_choice_of_enough_parts_gives_the_stripe_back() {
    for code in Code::ALL {
        let data = bytes(10_007, 1);
        let encoded = encode(code, 1, &[data.slice(..4000), data.slice(4000..)]);
        for held in 0u32..1 << code.part_count() {
            let parts: Vec<Part> = (0..code.part_count())
                .filter(|number| held >> number & 1 == 1)
                .map(|number| parse(&encoded.stripe, number, payload(&encoded, number)).unwrap())
                .collect();
            let decoded = decode(&encoded.stripe, &parts);
            if parts.len() >= code.data_count() {
                assert_eq!(decoded, Ok(data.clone()), "{code:?} {held:09b}");
            } else {
                let needed = code.data_count();
                let error = DecodeStripeError::TooFew { found: parts.len(), needed };
                assert_eq!(decoded, Err(error));
            }
        }
    }
}

#[test]
fn columns_give_the_same_parity_as_the_bare_library() {
    let data = bytes(5 * 100_032, 2);
    let encoded = encode(Code::Rs54, 1, std::slice::from_ref(&data));
    let shards = data.chunks(100_032);
    let parity = reed_solomon_simd::encode(5, 4, shards).unwrap();
    for (number, shard) in parity.iter().enumerate() {
        assert_eq!(encoded.parts[5 + number].shard.to_contiguous(), shard);
    }
}

#[test]
fn a_blobs_checksum_is_that_of_its_bytes() {
    let encoded = encode(Code::Block42, 1, &[bytes(1000, 3)]);
    for part in &encoded.parts {
        let blob = part.to_blob(PARTITION, &encoded.stripe);
        assert!(blob.header.matches(&blob.payload));
        assert_eq!(blob.key, encoded.stripe.key(PARTITION));
    }
    let stored: usize = (0..6).map(|number| payload(&encoded, number).len()).sum();
    assert_eq!(stored as u64, encoded.stripe.stored_bytes());
}

#[test]
fn a_part_of_anything_else_is_refused() {
    let one = encode(Code::Rs54, 1, &[bytes(1000, 4)]);
    let refused = |stripe: &Stripe, number, payload| parse(stripe, number, payload).unwrap_err();
    let other = encode(Code::Rs54, 2, &[bytes(1000, 4)]);
    assert_eq!(refused(&one.stripe, 0, payload(&other, 0)), PartError::Other("stripe"));
    assert_eq!(refused(&one.stripe, 0, payload(&one, 1)), PartError::Other("part"));
    // Two writes under one point: what their parts say of the whole differs.
    let again = encode(Code::Rs54, 1, &[bytes(1000, 5)]);
    assert_eq!(refused(&one.stripe, 0, payload(&again, 0)), PartError::Other("content"));
    let elsewhere = one.parts[0].to_blob(PartitionId::new(8), &one.stripe).payload.to_contiguous();
    assert_eq!(refused(&one.stripe, 0, elsewhere), PartError::Other("partition"));
    let short = payload(&one, 0).slice(1..);
    assert!(matches!(refused(&one.stripe, 0, short), PartError::Size { .. }));
}

#[test]
fn parts_that_are_not_of_one_write_never_give_bytes() {
    let one = encode(Code::Rs54, 1, &[bytes(1000, 6)]);
    let other = encode(Code::Rs54, 1, &[bytes(1000, 7)]);
    let mut parts = one.parts[1..5].to_vec();
    parts.push(other.parts[7].clone());
    assert_eq!(decode(&one.stripe, &parts), Err(DecodeStripeError::NotTheStripe));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn stripes_come_back_whatever_is_lost(
        code in prop::sample::select(Code::ALL.to_vec()),
        sizes in prop::collection::vec(1_usize..90_000, 1..5),
        seed in any::<u8>(),
        order in Just((0..9_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let pieces: Vec<Bytes> = sizes.iter().map(|size| bytes(*size, seed)).collect();
        let encoded = encode(code, 5, &pieces);
        let numbers = order.into_iter().filter(|number| *number < code.part_count());
        let parts: Vec<Part> = numbers
            .take(code.data_count())
            .map(|number| parse(&encoded.stripe, number, payload(&encoded, number)).unwrap())
            .collect();
        prop_assert_eq!(decode(&encoded.stripe, &parts), Ok(Bytes::from(pieces.concat())));
        // What was lost is made again, bit by bit.
        let again = encode(code, 5, &[decode(&encoded.stripe, &parts).unwrap()]);
        prop_assert_eq!(again.stripe, encoded.stripe);
        prop_assert_eq!(again.parts, encoded.parts);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed(
        number in 0_usize..9,
        at in any::<prop::sample::Index>(),
        bit in 0_u32..8,
    ) {
        let encoded = encode(Code::Rs54, 9, &[bytes(3000, 8)]);
        let mut damaged = payload(&encoded, number).to_vec();
        let at = at.index(damaged.len());
        damaged[at] ^= 1 << bit;
        prop_assert!(parse(&encoded.stripe, number, damaged.into()).is_err());
    }

    #[test]
    fn whatever_is_read_as_a_part_does_no_harm(raw in any::<Vec<u8>>()) {
        let stripe = encode(Code::Rs54, 9, &[bytes(300, 8)]).stripe;
        prop_assert!(parse(&stripe, 0, raw.into()).is_err());
    }
}

mod gathering {
    use std::time::Duration;

    use meridian_base::env::Instant;
    use meridian_base::topology::Slot;

    use super::*;

    struct Bench {
        encoded: EncodedStripe,
        gather: Gather,
        out: Vec<GatherOutput>,
    }

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    impl Bench {
        fn new() -> Self {
            let encoded = encode(Code::Rs54, 9, &[bytes(3000, 8)]);
            let slots: Vec<Slot> = (0..9).map(Slot::new).collect();
            let mut out = Vec::new();
            let hedge_after = Duration::from_millis(10);
            let gather =
                Gather::begin(PARTITION, encoded.stripe, &slots, hedge_after, at(0), &mut out);
            Self { encoded, gather, out }
        }

        /// Slot `index` holds part `index`, as the step is a multiple of nine.
        fn answer(&mut self, index: u8) -> Result<(), PartError> {
            let payload = payload(&self.encoded, usize::from(index));
            self.gather.on_answer(at(1), Slot::new(index), Some(payload), &mut self.out)
        }

        fn asked(&mut self) -> Vec<usize> {
            let slots = self.out.drain(..).filter_map(|output| match output {
                GatherOutput::Ask(slot) => Some(slot.index()),
                GatherOutput::Enough | GatherOutput::Failed => None,
            });
            slots.collect()
        }
    }

    #[test]
    fn asks_for_as_many_parts_as_it_needs() {
        let mut bench = Bench::new();
        assert_eq!(bench.asked(), [0, 1, 2, 3, 4]);
        (0..5).for_each(|index| bench.answer(index).unwrap());
        assert_eq!(bench.out, [GatherOutput::Enough]);
        assert!(decode(&bench.encoded.stripe, bench.gather.parts()).is_ok());
    }

    #[test]
    fn asks_another_for_one_that_is_late_missing_or_wrong() {
        let mut bench = Bench::new();
        bench.asked();
        bench.gather.on_answer(at(1), Slot::new(0), None, &mut bench.out).unwrap();
        assert_eq!(bench.asked(), [5]);
        let wrong = payload(&bench.encoded, 2);
        let refused = bench.gather.on_answer(at(1), Slot::new(1), Some(wrong), &mut bench.out);
        assert_eq!(refused, Err(PartError::Other("part")));
        assert_eq!(bench.asked(), [6]);
        assert_eq!(bench.gather.failed(), [Slot::new(0), Slot::new(1)]);
        [2, 3].into_iter().for_each(|index| bench.answer(index).unwrap());
        bench.gather.tick(at(12), &mut bench.out);
        assert_eq!(bench.asked(), [7, 8], "slots 4, 5 and 6 are late, and two are left");
        [6, 8, 4].into_iter().for_each(|index| bench.answer(index).unwrap());
        assert_eq!(bench.out, [GatherOutput::Enough]);
    }

    #[test]
    fn parts_that_are_all_damaged_at_different_places_give_the_stripe() {
        // With two that do not answer at all, seven are left, as many as it takes.
        let answers = |bench: &mut Bench, place: fn(u8) -> usize| {
            for index in 0..7 {
                let mut part = payload(&bench.encoded, usize::from(index)).to_vec();
                part[PART_HEAD_SIZE_BYTES + place(index)] ^= 1;
                let answer = Some(Bytes::from(part));
                let slot = Slot::new(index);
                let refused = bench.gather.on_answer(at(1), slot, answer, &mut bench.out);
                assert_eq!(refused, Err(PartError::Checksum("shard")));
            }
        };
        let mut bench = Bench::new();
        answers(&mut bench, |index| 64 * usize::from(index));
        assert_eq!(bench.out.pop(), Some(GatherOutput::Enough));
        assert_eq!(bench.gather.failed().len(), 7);
        assert!(decode(&bench.encoded.stripe, bench.gather.parts()).is_ok());

        let mut bench = Bench::new();
        answers(&mut bench, |index| 64 * usize::from(index / 2));
        assert!(!bench.out.contains(&GatherOutput::Enough), "two are damaged at each place");
        assert!(!bench.out.contains(&GatherOutput::Failed), "two have yet to answer");
        for index in [7, 8] {
            bench.gather.on_answer(at(2), Slot::new(index), None, &mut bench.out).unwrap();
        }
        assert_eq!(bench.out.pop(), Some(GatherOutput::Failed));
    }

    #[test]
    fn fails_when_too_few_are_left() {
        let mut bench = Bench::new();
        for index in 0..5 {
            assert!(!bench.out.contains(&GatherOutput::Failed));
            bench.gather.on_answer(at(1), Slot::new(index), None, &mut bench.out).unwrap();
        }
        assert!(bench.out.contains(&GatherOutput::Failed));
    }
}

mod spreading {
    use std::time::Duration;

    use meridian_base::env::Instant;
    use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId};
    use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotConfig, SlotState};

    use super::*;
    use crate::message::{PutReply, PutResult, Refusal};
    use crate::mutation::Mutations;

    fn group(version: u64, lives: [u64; 9]) -> GroupConfig {
        let slot = |(node, life): (u32, u64)| SlotConfig {
            node: NodeId::new(node),
            incarnation: Incarnation::new(life),
            state: SlotState::Good,
        };
        GroupConfig {
            group: GroupId::new(1),
            version: ConfigVersion::new(version),
            geometry: Geometry::Mirror3Dc,
            slots: (1..).zip(lives).map(slot).collect(),
        }
    }

    struct Bench {
        spread: Spread,
        out: Vec<SpreadOutput>,
    }

    impl Bench {
        fn new() -> Self {
            let EncodedStripe { stripe, parts } = encode(Code::Rs54, 9, &[bytes(3000, 8)]);
            let mut out = Vec::new();
            let (group, mutations) = (group(1, [1; 9]), Mutations::NONE);
            let now = Instant::ZERO;
            let spread = Spread::begin(PARTITION, stripe, parts, group, mutations, now, &mut out);
            Self { spread, out }
        }

        fn reply(&mut self, slot: u8, life: u64, result: PutResult) {
            let incarnation = Incarnation::new(life);
            let reply = PutReply { key: self.spread.key(), incarnation, result };
            self.spread.on_reply(Instant::ZERO, Slot::new(slot), reply, &mut self.out);
        }

        fn put_to(&mut self) -> Vec<usize> {
            let slots = self.out.drain(..).filter_map(|output| match output {
                SpreadOutput::Put { slot, .. } => Some(slot.index()),
                SpreadOutput::Durable | SpreadOutput::Conflict(_) | SpreadOutput::Fenced => None,
            });
            slots.collect()
        }
    }

    #[test]
    fn is_durable_when_every_slot_holds_its_part() {
        let mut bench = Bench::new();
        assert_eq!(bench.put_to(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        (0..8).for_each(|slot| bench.reply(slot, 1, PutResult::Stored));
        bench.reply(8, 2, PutResult::Stored);
        assert_eq!(bench.out, [], "an ack of another life does not count");
        bench.reply(8, 1, PutResult::Stored);
        assert_eq!(bench.out, [SpreadOutput::Durable]);
    }

    #[test]
    fn a_wiped_disk_is_asked_again_in_its_new_life() {
        let mut bench = Bench::new();
        bench.put_to();
        (0..8).for_each(|slot| bench.reply(slot, 1, PutResult::Stored));
        let mut lives = [1; 9];
        lives[2] = 7;
        bench.reply(8, 1, PutResult::Stale { config: group(2, lives) });
        assert_eq!(bench.put_to(), [2, 8]);
        bench.reply(8, 1, PutResult::Stored);
        assert_eq!(bench.out, []);
        bench.reply(2, 7, PutResult::Stored);
        assert_eq!(bench.out, [SpreadOutput::Durable]);
    }

    #[test]
    fn a_slot_that_goes_by_another_group_still_brings_no_configuration() {
        let mut bench = Bench::new();
        bench.put_to();
        let mut other = group(40, [7; 9]);
        other.group = GroupId::new(9);
        bench.reply(3, 1, PutResult::Stale { config: other });
        (0..9).filter(|slot| *slot != 3).for_each(|slot| bench.reply(slot, 1, PutResult::Stored));
        assert_eq!(bench.put_to(), [], "not before it can have heard");
        bench.spread.tick(Instant::ZERO + Duration::from_millis(500), &mut bench.out);
        assert_eq!(bench.put_to(), [3]);
        bench.reply(3, 1, PutResult::Stored);
        assert_eq!(bench.out, [SpreadOutput::Durable], "its own group's disks count as before");
    }

    #[test]
    fn what_is_refused_is_sent_again_later() {
        let mut bench = Bench::new();
        bench.put_to();
        bench.reply(3, 1, PutResult::Refused { reason: Refusal::Busy });
        (0..9).filter(|slot| *slot != 3).for_each(|slot| bench.reply(slot, 1, PutResult::Stored));
        bench.spread.tick(Instant::ZERO + Duration::from_millis(499), &mut bench.out);
        assert_eq!(bench.put_to(), []);
        bench.spread.tick(Instant::ZERO + Duration::from_millis(500), &mut bench.out);
        assert_eq!(bench.put_to(), [3]);
    }

    #[test]
    fn nothing_more_is_put_once_the_partition_was_deleted() {
        let mut bench = Bench::new();
        bench.put_to();
        let by = Generation::new(u32::MAX);
        bench.reply(3, 1, PutResult::Fenced { by });
        assert_eq!(std::mem::take(&mut bench.out), [SpreadOutput::Fenced]);
        bench.spread.tick(Instant::ZERO + Duration::from_secs(5), &mut bench.out);
        bench.reply(4, 1, PutResult::Stored);
        assert_eq!(bench.out, []);
    }

    #[test]
    fn two_writes_under_one_point_are_noticed() {
        let mut bench = Bench::new();
        bench.put_to();
        bench.reply(3, 1, PutResult::Conflict);
        assert_eq!(bench.out, [SpreadOutput::Conflict(Slot::new(3))]);
    }
}
