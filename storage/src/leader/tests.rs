//! One test per rule. Slots 0-2 are datacenter A, 3-5 B, 6-8 C; the leader sits at slot 0 and
//! prefers the first rack, so a healthy put goes to slots 0, 3 and 6.

mod copies;

use bytes::Bytes;
use meridian_base::id::{ConfigVersion, GroupId};
use meridian_base::position::LeaderEpoch;
use meridian_base::topology::Geometry;

use super::hedge::RESEND_AFTER;
use super::surplus::HEDGE_ANYHOW_AFTER;
use super::*;
use crate::lineage::Past;
use crate::manifest::{Manifest, Piece, Place};
use crate::message::Refusal;
use crate::testing::whole_group;

const PARTITION: PartitionId = PartitionId::new(3);
const GENERATION: Generation = Generation::new(2);
const HEDGE_AFTER: Duration = Duration::from_millis(5);

fn group() -> GroupConfig {
    whole_group(Geometry::Mirror3Dc)
}

/// The group after slot 3's disk was replaced: another incarnation, in `state`.
fn group_with_slot_3_replaced(version: u64, state: SlotState) -> GroupConfig {
    let mut config = group();
    config.version = ConfigVersion::new(version);
    config.slots[3].incarnation = Incarnation::new(999);
    config.slots[3].state = state;
    config
}

fn records(base_offset: i64, bytes: &'static [u8]) -> Draft {
    Draft {
        kind: BlobKind::Records,
        base_offset: Offset::new(base_offset),
        record_count: 1,
        max_timestamp_ms: -1,
        payload: Payload::from(Bytes::from_static(bytes)),
    }
}

fn tail_of(count: i64) -> Vec<(BlobHeader, Payload)> {
    let copy = |offset| {
        let draft = records(offset, b"copy");
        let kind = BlobKind::Records;
        let header = BlobHeader::describe(kind, draft.base_offset, 1, -1, &draft.payload);
        (header, draft.payload)
    };
    (0..count).map(copy).collect()
}

struct Bench {
    leader: Leader,
    health: SlotHealth,
    now: Instant,
    out: Vec<LeaderOutput>,
}

impl Bench {
    fn start(tail: Vec<(BlobHeader, Payload)>, mutation: Option<Mutation>) -> Self {
        let mut plan = TakeoverPlan::first(LeaderEpoch::new(0));
        plan.start.tail_length = tail.len() as u64;
        plan.tail = tail;
        Self::start_with(plan, mutation)
    }

    fn start_with(plan: TakeoverPlan, mutation: Option<Mutation>) -> Self {
        let config = LeaderConfig {
            partition: PARTITION,
            generation: GENERATION,
            group: group(),
            own_slot: Some(Slot::new(0)),
            datacenter_count_min: 1,
            layout: Layout::Copies,
            pending_size_bytes_max: 100,
            blob_size_bytes_max: 1000,
            mutations: Mutations(mutation),
        };
        let health = SlotHealth::all_alive(HEDGE_AFTER);
        let mut out = Vec::new();
        let leader = Leader::start(config, plan, Instant::ZERO, &health, &mut out);
        Self { leader, health, now: Instant::ZERO, out }
    }

    /// A leader that serves an empty partition.
    fn serving() -> Self {
        Self::serving_with(None)
    }

    fn serving_with(mutation: Option<Mutation>) -> Self {
        let mut bench = Self::start(Vec::new(), mutation);
        bench.stored(0, [0, 3, 6]);
        assert!(bench.leader.is_serving());
        bench.out.clear();
        bench
    }

    fn put(&mut self, draft: Draft) -> Result<Step, PutError> {
        self.leader.admit(&self.health)?;
        self.leader.put(self.now, &self.health, draft, &mut self.out)
    }

    /// Takes an answer; how long the slot took, if it stored the blob.
    fn reply(
        &mut self,
        slot: u8,
        step: u64,
        incarnation: u64,
        result: PutResult,
    ) -> Option<Duration> {
        let point = LogPoint::new(GENERATION, Step::new(step));
        let key = BlobKey { partition: PARTITION, point };
        let reply = PutReply { key, incarnation: Incarnation::new(incarnation), result };
        let slot = Slot::new(slot);
        self.leader.on_reply(self.now, &self.health, slot, reply, &mut self.out)
    }

    fn stored<const N: usize>(&mut self, step: u64, slots: [u8; N]) {
        for slot in slots {
            self.reply(slot, step, 100 + u64::from(slot), PutResult::Stored);
        }
    }

    fn config(&mut self, config: GroupConfig) {
        self.leader.on_config(self.now, &self.health, config, &mut self.out);
    }

    fn wait(&mut self, by: Duration) {
        self.now = self.now + by;
        self.leader.tick(self.now, &self.health, &mut self.out);
    }

    /// Drains the outputs: which (slot, step) were sent to.
    fn puts(&mut self) -> Vec<(usize, u64)> {
        let puts = self.out.iter().filter_map(|output| match output {
            LeaderOutput::Put { slot, put } => Some((slot.index(), put.blob.key.point.step.get())),
            _ => None,
        });
        let puts = puts.collect();
        self.out.clear();
        puts
    }

    fn committed(&self) -> Option<(u64, i64)> {
        self.leader.mark().map(|mark| (mark.point.step.get(), mark.high_watermark.get()))
    }
}

#[test]
fn a_put_goes_to_one_slot_in_every_datacenter() {
    let mut bench = Bench::serving();
    assert_eq!(bench.put(records(0, b"a")), Ok(Step::new(1)));
    assert_eq!(bench.puts(), [(0, 1), (3, 1), (6, 1)]);
}

#[test]
fn l1_a_step_is_committed_by_a_put_quorum_and_by_nothing_less() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0, 3]);
    assert_eq!(bench.committed(), Some((0, 0)));
    bench.stored(1, [3, 0, 0]);
    assert_eq!(bench.committed(), Some((0, 0)), "an ack counts once");
    bench.stored(1, [6]);
    assert_eq!(bench.committed(), Some((1, 1)));
}

#[test]
fn l1_two_racks_in_each_of_two_datacenters_are_a_put_quorum_too() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0, 3, 4]);
    assert_eq!(bench.committed(), Some((0, 0)));
    bench.stored(1, [1]);
    assert_eq!(bench.committed(), Some((1, 1)));
}

#[test]
fn l1_steps_commit_in_order() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.put(records(1, b"b")).expect("admitted");
    bench.stored(2, [0, 3, 6]);
    assert_eq!(bench.committed(), Some((0, 0)));
    bench.stored(1, [0, 3, 6]);
    assert_eq!(bench.committed(), Some((2, 2)));
}

#[test]
fn l1_an_ack_of_another_life_of_the_disk_does_not_count() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0, 6]);
    bench.reply(3, 1, 99, PutResult::Stored);
    assert_eq!(bench.committed(), Some((0, 0)));
}

#[test]
fn l1_answers_for_another_generation_are_ignored() {
    let mut bench = Bench::serving();
    let key =
        BlobKey { partition: PARTITION, point: LogPoint::new(Generation::new(1), Step::new(1)) };
    let reply = PutReply {
        key,
        incarnation: Incarnation::new(100),
        result: PutResult::Fenced { by: GENERATION },
    };
    let slot = Slot::new(0);
    bench.leader.on_reply(bench.now, &bench.health, slot, reply, &mut bench.out);
    assert!(bench.leader.is_serving());
}

#[test]
fn l2_a_new_configuration_drops_the_acks_of_disks_whose_life_changed_and_sends_again() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0, 3]);
    bench.puts();
    bench.config(group_with_slot_3_replaced(2, SlotState::Good));
    let again = bench.puts();
    assert!(again.contains(&(3, 1)) && again.contains(&(6, 1)), "{again:?}");
    assert!(!again.contains(&(0, 1)), "what is acked is not sent again: {again:?}");
    bench.stored(1, [6]);
    assert_eq!(bench.committed(), Some((0, 0)));
    bench.reply(3, 1, 999, PutResult::Stored);
    assert_eq!(bench.committed(), Some((1, 1)));
}

#[test]
fn l2_a_stale_answer_brings_the_configuration_and_the_blob_is_sent_again_under_it() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.out.clear();
    let config = group_with_slot_3_replaced(2, SlotState::Good);
    bench.reply(6, 1, 106, PutResult::Stale { config });
    let versions: Vec<ConfigVersion> = bench
        .out
        .iter()
        .filter_map(|output| match output {
            LeaderOutput::Put { put, .. } => Some(put.config_version),
            _ => None,
        })
        .collect();
    assert!(!versions.is_empty());
    assert!(versions.iter().all(|version| *version == ConfigVersion::new(2)));
}

#[test]
fn l2_a_slot_that_goes_by_another_group_still_brings_no_configuration() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.out.clear();
    let mut config = group_with_slot_3_replaced(40, SlotState::Good);
    config.group = GroupId::new(2);
    bench.reply(6, 1, 106, PutResult::Stale { config: config.clone() });
    bench.config(config);
    let is_again_there = |output: &LeaderOutput| matches!(output, LeaderOutput::Put { slot, .. } if slot.index() == 6);
    assert!(!bench.out.iter().any(is_again_there), "not before it can have heard");
    bench.stored(1, [0, 3, 7]);
    assert_eq!(bench.committed(), Some((1, 1)), "its own group's disks count as before");
}

#[test]
fn l2_an_older_configuration_changes_nothing() {
    let mut bench = Bench::serving();
    bench.config(group_with_slot_3_replaced(2, SlotState::Good));
    bench.config(group());
    assert_eq!(bench.leader.group().version, ConfigVersion::new(2));
}

#[test]
fn s4_a_disk_that_has_yet_to_sync_counts_for_nothing() {
    let mut bench = Bench::serving();
    bench.config(group_with_slot_3_replaced(2, SlotState::LostData));
    bench.put(records(0, b"a")).expect("admitted");
    assert_eq!(bench.puts(), [(0, 1), (4, 1), (6, 1)], "nothing is sent to it");
    bench.stored(1, [0, 6]);
    bench.reply(3, 1, 999, PutResult::Stored);
    bench.config(group_with_slot_3_replaced(3, SlotState::Good));
    assert_eq!(bench.committed(), Some((0, 0)), "its ack may be older than its fence");
}

#[test]
fn l3_one_fenced_answer_ends_the_leader() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0, 3]);
    bench.out.clear();
    let by = Generation::new(3);
    bench.reply(8, 1, 108, PutResult::Fenced { by });
    assert_eq!(bench.out, [LeaderOutput::Lost(LossCause::Fenced { by })]);
    assert_eq!(bench.put(records(1, b"b")), Err(PutError::Lost));
    bench.stored(1, [6]);
    bench.wait(RESEND_AFTER);
    assert_eq!(bench.out.len(), 1, "nothing is acknowledged or sent any more");
    assert!(!bench.leader.has_work());
}

#[test]
fn s2_other_bytes_under_a_key_end_the_leader() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.reply(0, 1, 100, PutResult::Conflict);
    let point = LogPoint::new(GENERATION, Step::new(1));
    assert!(bench.out.contains(&LeaderOutput::Lost(LossCause::Conflict { point })));
}

/// A disk that was given the slot may hold another's part under the key until it has begun its life there.
#[test]
fn s7_what_a_disk_holds_in_another_life_is_no_conflict() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.reply(0, 1, 7, PutResult::Conflict);
    let is_lost = |out: &LeaderOutput| matches!(out, LeaderOutput::Lost(_));
    assert!(!bench.out.iter().any(is_lost), "{:?}", bench.out);
}

#[test]
fn l4_a_late_slot_is_hedged_by_the_next_rack_of_its_datacenter() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0, 6]);
    bench.puts();
    bench.wait(HEDGE_AFTER);
    assert_eq!(bench.puts(), []);
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.puts(), [(4, 1)]);
    bench.stored(1, [4]);
    assert_eq!(bench.committed(), Some((1, 1)));
}

#[test]
fn l4_a_silent_datacenter_is_hedged_by_two_racks_in_each_other() {
    let mut bench = Bench::serving();
    bench.health.suspect = Geometry::Mirror3Dc.slots_of(1);
    bench.put(records(0, b"a")).expect("admitted");
    assert_eq!(bench.puts(), [(0, 1), (1, 1), (6, 1), (7, 1)]);
}

#[test]
fn z1_a_blob_that_no_slot_takes_gets_no_step() {
    let large = || Draft { payload: Payload::from(Bytes::from(vec![7; 1001])), ..records(0, b"") };
    let mut bench = Bench::serving();
    let refused = PutError::TooLarge { size_bytes: 1001, size_bytes_max: 1000 };
    assert_eq!(bench.put(large()), Err(refused));
    assert_eq!(bench.puts(), []);
    assert_eq!(bench.put(records(0, b"next")), Ok(Step::new(1)));
    let mut broken = Bench::serving_with(Some(Mutation::OversizeStep));
    assert_eq!(broken.put(large()), Ok(Step::new(1)), "the test would see it");
}

#[test]
fn l4_a_slot_that_refuses_is_replaced_at_once() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.puts();
    bench.reply(3, 1, 103, PutResult::Refused { reason: Refusal::Full });
    assert_eq!(bench.puts(), [(4, 1)]);
}

#[test]
fn what_a_blob_waits_for_is_known_until_it_is_committed() {
    let mut bench = Bench::serving();
    assert_eq!(bench.leader.waiting(), None);
    bench.now = bench.now + Duration::from_secs(1);
    let since = bench.now;
    bench.put(records(0, b"a")).expect("admitted");
    bench.reply(3, 1, 103, PutResult::Refused { reason: Refusal::Full });
    bench.stored(1, [0]);
    bench.wait(Duration::from_secs(7));
    let waiting = bench.leader.waiting().expect("one rack of A is no quorum");
    assert_eq!((waiting.since, waiting.refused), (since, SlotSet::EMPTY.with(Slot::new(3))));
    assert!(waiting.silent.contains(Slot::new(6)), "{waiting:?}");
    assert!(!waiting.silent.contains(Slot::new(0)), "it has answered: {waiting:?}");
    bench.stored(1, [4, 6]);
    assert_eq!(bench.leader.waiting(), None);
}

#[test]
fn l4_a_slot_that_refused_a_moment_ago_is_not_asked_first() {
    let mut bench = Bench::serving();
    bench.health.declining = SlotSet::EMPTY.with(Slot::new(3));
    bench.put(records(0, b"a")).expect("admitted");
    assert_eq!(bench.puts(), [(0, 1), (4, 1), (6, 1)]);
}

#[test]
fn l4_what_counts_is_the_set_of_acks_whatever_attempt_they_belong_to() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.wait(HEDGE_AFTER * 2);
    bench.wait(HEDGE_AFTER * 2);
    bench.stored(1, [5, 8, 2]);
    assert_eq!(bench.committed(), Some((1, 1)));
}

#[test]
fn l4_hedging_and_resending_are_bounded() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    for _ in 0..1000 {
        bench.wait(Duration::from_millis(1));
    }
    // Nine first sends and, in a second, at most two resends to each slot.
    let puts = bench.puts();
    assert!(puts.len() <= 27, "{}", puts.len());
    let slots: SlotSet = puts.iter().map(|(slot, _)| Slot::new(*slot as u8)).collect();
    assert_eq!(slots, Geometry::Mirror3Dc.slots(), "a lost message is made good");
}

#[test]
fn l4_a_put_that_is_sent_again_is_no_less_late_for_that() {
    let mut bench = Bench::serving();
    let (usual, late) = (Duration::from_millis(800), Duration::from_millis(801));
    bench.health = SlotHealth::all_alive(usual);
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0, 6]);
    bench.wait(RESEND_AFTER);
    bench.wait(usual - RESEND_AFTER);
    assert_eq!(bench.puts(), [(0, 1), (3, 1), (6, 1), (3, 1)]);
    bench.wait(late - usual);
    assert_eq!(bench.puts(), [(4, 1)]);
    let reply = bench.reply(3, 1, 103, PutResult::Stored);
    assert_eq!(reply, Some(late), "and it took that long");
}

#[test]
fn l4_a_slot_that_refused_takes_as_long_as_it_does_from_then_on() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0]);
    bench.reply(3, 1, 103, PutResult::Refused { reason: Refusal::Busy });
    bench.wait(RESEND_AFTER);
    bench.now = bench.now + HEDGE_AFTER;
    assert_eq!(bench.reply(3, 1, 103, PutResult::Stored), Some(HEDGE_AFTER));
}

#[test]
fn l4_what_hedging_may_put_beside_what_is_needed_is_bounded() {
    let mut bench = Bench::serving();
    let payload = || Payload::from(Bytes::from(vec![7; 60]));
    let put = |bench: &mut Bench, offset| {
        let draft = Draft { payload: payload(), ..records(offset, b"") };
        bench.put(draft).expect("admitted").get()
    };
    let step = put(&mut bench, 0);
    bench.stored(step, [0, 6]);
    bench.puts();
    bench.wait(HEDGE_AFTER * 2);
    assert_eq!(bench.puts(), [(4, 1)], "100 bytes are allowed, as many as may be pending");
    bench.stored(step, [4]);
    assert_eq!(bench.leader.surplus_made_bytes(), 60);
    let step = put(&mut bench, 1);
    bench.stored(step, [0, 6]);
    bench.puts();
    bench.wait(HEDGE_AFTER * 2);
    assert_eq!(bench.puts(), [], "43 are left");
    bench.wait(HEDGE_ANYHOW_AFTER - HEDGE_AFTER * 2 + Duration::from_millis(1));
    assert_eq!(bench.puts(), [(4, 2)], "it may be gone");
    bench.stored(step, [4]);
    put(&mut bench, 2);
    bench.puts();
    bench.reply(3, 3, 103, PutResult::Refused { reason: Refusal::Full });
    assert_eq!(bench.puts(), [(4, 3)], "one that is known to store nothing is no matter of bytes");
    bench.health.suspect = SlotSet::EMPTY.with(Slot::new(6));
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.puts(), [(7, 3)]);
}

#[test]
fn l4_how_long_a_slot_takes_is_known_though_nobody_waited_for_it() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.wait(HEDGE_AFTER * 2);
    bench.stored(1, [0, 6, 4]);
    assert_eq!(bench.committed(), Some((1, 1)));
    bench.now = bench.now + Duration::from_millis(40);
    let late = HEDGE_AFTER * 2 + Duration::from_millis(40);
    assert_eq!(bench.leader.first_awaited(bench.now), Some(Step::new(1)));
    assert_eq!(bench.leader.first_awaited(bench.now + Duration::from_secs(60)), None);
    assert_eq!(bench.reply(3, 1, 103, PutResult::Stored), Some(late));
    assert_eq!(bench.leader.first_awaited(bench.now), Some(Step::new(1)), "by 1 and 7");
    bench.stored(1, [1, 7]);
    assert_eq!(bench.leader.first_awaited(bench.now), None);
    assert_eq!(bench.reply(3, 1, 103, PutResult::Stored), None, "once");
    assert_eq!(bench.reply(0, 1, 100, PutResult::Stored), None, "it had answered");
}

#[test]
fn t6_nothing_is_served_before_start_and_the_whole_tail_are_committed() {
    let mut bench = Bench::start(tail_of(2), None);
    assert_eq!(bench.puts().len(), 9);
    assert_eq!(bench.put(records(2, b"a")), Err(PutError::NotServing));
    bench.stored(0, [0, 3, 6]);
    bench.stored(1, [0, 3, 6]);
    bench.stored(2, [0, 3]);
    assert!(!bench.leader.is_serving() && bench.leader.mark().is_none());
    assert_eq!(bench.leader.beacon(), None);
    bench.stored(2, [6]);
    let point = LogPoint::new(GENERATION, Step::new(2));
    let mark = CommitMark { point, high_watermark: Offset::new(2) };
    assert_eq!(bench.out, [LeaderOutput::Serving { mark }]);
    assert_eq!(bench.put(records(2, b"a")), Ok(Step::new(3)));
}

#[test]
fn t6_a_put_tells_no_mark_before_the_partition_is_served() {
    let mut bench = Bench::start(tail_of(1), None);
    bench.stored(0, [0, 3, 6]);
    bench.wait(RESEND_AFTER);
    let marks = bench.out.iter().filter(|output| match output {
        LeaderOutput::Put { put, .. } => put.mark.is_some(),
        LeaderOutput::Beacon(_) => true,
        _ => false,
    });
    assert_eq!(marks.count(), 0);
}

#[test]
fn a_quiet_leader_tells_its_mark_once() {
    let mut bench = Bench::serving();
    assert!(bench.leader.has_work());
    bench.wait(HEDGE_AFTER);
    bench.wait(HEDGE_AFTER);
    let beacons = bench.out.iter().filter(|output| matches!(output, LeaderOutput::Beacon(_)));
    assert_eq!(beacons.count(), 1);
    assert!(!bench.leader.has_work());
}

#[test]
fn t8_a_beacon_keeps_the_generation_of_the_newest_checkpoint() {
    let mut plan = TakeoverPlan::first(LeaderEpoch::new(1));
    plan.start.base_offset = Offset::new(5);
    plan.start.past = vec![Past {
        generation: Generation::new(1),
        base_offset: Offset::ZERO,
        last_step: Step::new(6),
    }];
    let payload = Payload::from(Bytes::from_static(b"state"));
    let header = BlobHeader::describe(BlobKind::Checkpoint, Offset::new(5), 0, -1, &payload);
    let point = LogPoint::new(Generation::new(1), Step::new(6));
    plan.checkpoint = Some(BlobInfo { point, header });
    let mut bench = Bench::start_with(plan, None);
    bench.stored(0, [0, 3, 6]);
    let generation_min =
        |bench: &Bench| bench.leader.beacon().expect("serving").generation_min.get();
    bench.leader.set_log_start(Offset::new(5));
    assert_eq!(generation_min(&bench), 1);

    let draft = Draft { kind: BlobKind::Checkpoint, record_count: 0, ..records(5, b"state") };
    bench.put(draft).expect("admitted");
    bench.leader.set_log_start(Offset::new(5));
    assert_eq!(generation_min(&bench), 1, "its own checkpoint is not committed yet");
    bench.stored(1, [0, 3, 6]);
    bench.put(records(5, b"a")).expect("admitted");
    bench.stored(2, [0, 3, 6]);
    assert_eq!(generation_min(&bench), 2);
}

#[test]
fn t9_slots_free_nothing_that_no_checkpoint_covers() {
    let mut bench = Bench::serving();
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0, 3, 6]);
    bench.leader.set_log_start(Offset::new(1));
    assert_eq!(bench.leader.log_start_offset(), Offset::new(1));
    let told = |bench: &Bench| bench.leader.beacon().expect("serving").log_start_offset.get();
    assert_eq!(told(&bench), 0);
    let draft = Draft { kind: BlobKind::Checkpoint, record_count: 0, ..records(1, b"state") };
    bench.put(draft).expect("admitted");
    bench.stored(2, [0, 3, 6]);
    assert_eq!(told(&bench), 0, "a takeover may not know the checkpoint committed");
    bench.put(records(1, b"b")).expect("admitted");
    bench.stored(3, [0, 3, 6]);
    assert_eq!(told(&bench), 1);
}

/// A partition with two records, both replaced by a clean blob at step 3; the manifest is step 4.
fn compacted(mutation: Option<Mutation>) -> Bench {
    let mut bench = Bench::serving_with(mutation);
    for offset in 0..2 {
        bench.put(records(offset, b"a")).expect("admitted");
    }
    let clean = Draft { kind: BlobKind::Clean, record_count: 2, ..records(0, b"b") };
    bench.put(clean).expect("admitted");
    (1..4).for_each(|step| bench.stored(step, [0, 3, 6]));
    let piece = Piece {
        base_offset: Offset::ZERO,
        max_timestamp_ms: -1,
        size_bytes: 1,
        place: Place::Clean(LogPoint::new(GENERATION, Step::new(3))),
    };
    let manifest = Manifest { end: Offset::new(2), replaced_size_bytes: 2, pieces: vec![piece] };
    let Bench { leader, health, now, out } = &mut bench;
    let put = leader.put_manifest(*now, health, &manifest, out);
    assert_eq!(put, Ok(LogPoint::new(GENERATION, Step::new(4))));
    bench
}

/// What slots may free: records below, and clean blobs below.
fn freed(bench: &Bench) -> (i64, u64) {
    let beacon = bench.leader.beacon().expect("serving");
    assert_eq!(beacon.log_start_offset, Offset::ZERO, "clients see no other log start");
    (beacon.free_below.get(), beacon.clean_from.step.get())
}

#[test]
fn c2_what_a_manifest_replaces_goes_when_no_takeover_can_cut_it() {
    let mut bench = compacted(None);
    assert_eq!(freed(&bench), (0, 0));
    bench.stored(4, [0, 3, 6]);
    assert_eq!(freed(&bench), (0, 0), "a takeover may know only an older checkpoint");
    let draft = Draft { kind: BlobKind::Checkpoint, record_count: 0, ..records(2, b"state") };
    bench.put(draft).expect("admitted");
    bench.stored(5, [0, 3, 6]);
    assert_eq!(freed(&bench), (0, 0), "a takeover may not know the checkpoint committed");
    bench.put(records(2, b"c")).expect("admitted");
    bench.stored(6, [0, 3, 6]);
    assert_eq!(freed(&bench), (2, 3), "the run in force stays");
    assert!(bench.leader.lineage().holder_of(Offset::new(2)).is_some());
    bench.leader.set_log_start(Offset::new(2));
    let beacon = bench.leader.beacon().expect("serving");
    assert_eq!(beacon.clean_from.step.get(), 4, "all that the run held was deleted");
}

#[test]
#[should_panic(expected = "in doubt")]
fn c1_a_manifest_of_blobs_in_doubt_is_not_put() {
    let mut bench = compacted(None);
    let piece = Piece {
        base_offset: Offset::ZERO,
        max_timestamp_ms: -1,
        size_bytes: 1,
        place: Place::Clean(LogPoint::new(GENERATION, Step::new(5))),
    };
    let manifest = Manifest { end: Offset::new(2), replaced_size_bytes: 2, pieces: vec![piece] };
    let Bench { leader, health, now, out } = &mut bench;
    let _refused = leader.put_manifest(*now, health, &manifest, out);
}

#[test]
fn too_much_in_flight_is_refused() {
    let mut bench = Bench::serving();
    bench.put(records(0, &[0; 101])).expect("admitted");
    assert_eq!(bench.put(records(1, b"b")), Err(PutError::Busy));
    bench.stored(1, [0, 3, 6]);
    assert!(bench.put(records(1, b"b")).is_ok());
}

#[test]
fn too_few_datacenters_are_refused_before_anything_is_put() {
    let mut bench = Bench::serving();
    bench.health.suspect = Geometry::Mirror3Dc.slots_of(1);
    bench.leader.set_datacenter_count_min(3);
    assert_eq!(bench.put(records(0, b"a")), Err(PutError::NotEnoughDatacenters));
    bench.leader.set_datacenter_count_min(1);
    assert!(bench.put(records(0, b"a")).is_ok());
}

#[test]
fn min_insync_datacenters_holds_back_the_acknowledgement() {
    let mut bench = Bench::serving();
    bench.leader.set_datacenter_count_min(3);
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0, 1, 3, 4]);
    assert_eq!(bench.committed(), Some((0, 0)));
    bench.stored(1, [8]);
    assert_eq!(bench.committed(), Some((1, 1)));
}

/// KeepOnFenced can't break the log: a put quorum of acks for a fenced generation can't exist, as
/// it would meet the fence quorum. What it breaks is rule L3 itself, which is seen here.
#[cfg(feature = "mutations")]
#[test]
fn l3_mutation_keep_on_fenced_is_caught() {
    let mut bench = Bench::serving_with(Some(Mutation::KeepOnFenced));
    bench.put(records(0, b"a")).expect("admitted");
    bench.reply(0, 1, 100, PutResult::Fenced { by: Generation::new(3) });
    assert!(bench.put(records(1, b"b")).is_ok(), "the broken rule must show");
}

#[cfg(feature = "mutations")]
#[test]
fn l2_mutation_incarnation_ignored_is_caught() {
    let mut bench = Bench::serving_with(Some(Mutation::IncarnationIgnored));
    bench.put(records(0, b"a")).expect("admitted");
    bench.stored(1, [0, 3]);
    bench.config(group_with_slot_3_replaced(2, SlotState::Good));
    bench.stored(1, [6]);
    // The blob lies on slots 0 and 6 only.
    assert_eq!(bench.committed(), Some((1, 1)), "the broken rule must show");
}
