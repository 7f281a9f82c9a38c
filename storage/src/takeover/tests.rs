//! One test per rule. Slots 0-2 are datacenter A, 3-5 B, 6-8 C; the smallest fence quorum used here
//! is all of A and two racks of B, and slots 5-8 stay silent.

use bytes::Bytes;
use meridian_base::id::{ConfigVersion, GroupId};
use meridian_base::position::Step;
use meridian_base::topology::Geometry;

use super::*;
use crate::blob::{BlobKey, BlobKind};
use crate::lineage::Past;
use crate::message::{CommitMark, ViewPiece};
use crate::testing::whole_group;

const PARTITION: PartitionId = PartitionId::new(7);
const FENCE_QUORUM: [u8; 5] = [0, 1, 2, 3, 4];

fn group() -> GroupConfig {
    whole_group(Geometry::Mirror3Dc)
}

fn point(generation: u32, step: u64) -> LogPoint {
    LogPoint::new(Generation::new(generation), Step::new(step))
}

fn mark(generation: u32, step: u64, high_watermark: i64) -> Option<CommitMark> {
    Some(CommitMark { point: point(generation, step), high_watermark: Offset::new(high_watermark) })
}

/// A blob whose payload is its own key, so that no two are alike.
fn blob(at: LogPoint, kind: BlobKind, base_offset: i64, record_count: u32) -> Blob {
    let payload = match kind {
        BlobKind::Trim => Payload::default(),
        _ => Payload::from(Bytes::from(at.to_string())),
    };
    let header = BlobHeader::describe(kind, Offset::new(base_offset), record_count, -1, &payload);
    Blob { key: BlobKey { partition: PARTITION, point: at }, header, payload }
}

fn records(at: LogPoint, base_offset: i64) -> Blob {
    blob(at, BlobKind::Records, base_offset, 1)
}

fn info(blob: &Blob) -> BlobInfo {
    BlobInfo { point: blob.key.point, header: blob.header }
}

/// The `Start` of `generation`, whose log before it is `past`: (generation, base, last step).
fn start(past: &[(u32, i64, u64)], base_offset: i64, tail_length: u64) -> Start {
    let past: Vec<Past> = past
        .iter()
        .map(|&(generation, base, last)| Past {
            generation: Generation::new(generation),
            base_offset: Offset::new(base),
            last_step: Step::new(last),
        })
        .collect();
    Start {
        previous: past.last().map(|past| LogPoint::new(past.generation, past.last_step)),
        base_offset: Offset::new(base_offset),
        tail_length,
        log_start_offset: Offset::ZERO,
        past,
        epochs: vec![EpochStart { epoch: LeaderEpoch::new(1), start_offset: Offset::ZERO }],
        checkpoint: None,
    }
}

fn first_start() -> Start {
    TakeoverPlan::first(LeaderEpoch::new(1)).start
}

/// What one slot says.
fn view(mark: Option<CommitMark>, starts: &[(u32, Start)], blobs: &[Blob]) -> PartitionView {
    PartitionView {
        mark,
        starts: starts.iter().map(|(g, start)| (Generation::new(*g), start.clone())).collect(),
        blobs: blobs.iter().map(info).collect(),
        ..PartitionView::default()
    }
}

struct Bench {
    takeover: Takeover,
    now: Instant,
    out: Vec<TakeoverOutput>,
}

impl Bench {
    fn begin(generation: u32) -> Self {
        Self::with_mutation(generation, None)
    }

    fn with_mutation(generation: u32, mutation: Option<Mutation>) -> Self {
        let config = TakeoverConfig {
            partition: PARTITION,
            generation: Generation::new(generation),
            leader_epoch: LeaderEpoch::new(generation as i32),
            group: group(),
            former: Vec::new(),
            mutations: Mutations(mutation),
        };
        let mut out = Vec::new();
        let takeover = Takeover::begin(config, Instant::ZERO, &mut out);
        Self { takeover, now: Instant::ZERO, out }
    }

    /// Generations up to 4 were in the group; from 5 on the partition is in another.
    fn of_moved(generation: u32) -> Self {
        let config = TakeoverConfig {
            partition: PARTITION,
            generation: Generation::new(generation),
            leader_epoch: LeaderEpoch::new(generation as i32),
            group: GroupConfig { group: GroupId::new(2), ..group() },
            former: vec![Former { last: Generation::new(4), group: group() }],
            mutations: Mutations::NONE,
        };
        let mut out = Vec::new();
        let takeover = Takeover::begin(config, Instant::ZERO, &mut out);
        Self { takeover, now: Instant::ZERO, out }
    }

    fn asked(&self) -> u32 {
        self.takeover.group().group.get()
    }

    fn answer_as(&mut self, slot: u8, incarnation: u64, result: FenceResult) {
        self.takeover.on_answer(
            self.now,
            Slot::new(slot),
            Incarnation::new(incarnation),
            result,
            &mut self.out,
        );
    }

    fn answer(&mut self, slot: u8, view: PartitionView) {
        self.answer_as(slot, 100 + u64::from(slot), FenceResult::Certain(view));
    }

    /// The fence quorum answers: slot 0 with `first`, the others with `rest`.
    fn answers(&mut self, first: PartitionView, rest: PartitionView) {
        self.out.clear();
        self.answer(FENCE_QUORUM[0], first);
        for slot in &FENCE_QUORUM[1..] {
            self.answer(*slot, rest.clone());
        }
    }

    fn read_gives(&mut self, slot: u8, reply: ReadReply) {
        self.takeover.on_read(self.now, Slot::new(slot), reply, &mut self.out);
    }

    fn wait(&mut self, by: Duration) {
        self.now = self.now + by;
        self.takeover.tick(self.now, &mut self.out);
    }

    fn plan(&self) -> Option<&TakeoverPlan> {
        self.out.iter().find_map(|output| match output {
            TakeoverOutput::Decided(plan) => Some(plan.as_ref()),
            _ => None,
        })
    }

    fn broken(&self) -> Option<Contradiction> {
        self.out.iter().find_map(|output| match output {
            TakeoverOutput::Broken(contradiction) => Some(*contradiction),
            _ => None,
        })
    }

    fn fenced_slots(&self) -> Vec<usize> {
        let asked = self.out.iter().filter_map(|output| match output {
            TakeoverOutput::FenceRead { slot, .. } => Some(slot.index()),
            _ => None,
        });
        asked.collect()
    }

    fn reads(&self) -> Vec<(usize, u64, u64)> {
        let asked = self.out.iter().filter_map(|output| match output {
            TakeoverOutput::Read { slot, request } => match request.from {
                ReadFrom::Step(step) => Some((slot.index(), step.get(), request.last_step.get())),
                ReadFrom::Offset(_) => None,
            },
            _ => None,
        });
        asked.collect()
    }
}

#[test]
fn t2_asks_all_nine_and_waits_for_a_fence_quorum() {
    let mut bench = Bench::begin(2);
    assert_eq!(bench.fenced_slots(), (0..9).collect::<Vec<_>>());
    // Two racks in each of two datacenters is a put quorum, not a fence quorum.
    for slot in [0, 1, 3, 4] {
        bench.answer(slot, PartitionView::default());
    }
    assert_eq!(bench.plan(), None);
    bench.answer(2, PartitionView::default());
    assert!(bench.plan().is_some());
}

#[test]
fn t2_asks_the_silent_again_and_only_them() {
    let mut bench = Bench::begin(2);
    bench.answer(0, PartitionView::default());
    bench.out.clear();
    bench.wait(Duration::from_millis(100));
    assert_eq!(bench.fenced_slots(), []);
    bench.wait(ASK_AGAIN_AFTER);
    assert_eq!(bench.fenced_slots(), (1..9).collect::<Vec<_>>());
}

#[test]
fn t2_unsure_counts_as_silent() {
    let mut bench = Bench::begin(2);
    for slot in 0..4 {
        bench.answer(slot, PartitionView::default());
    }
    bench.answer_as(4, 104, FenceResult::Unsure);
    assert_eq!(bench.plan(), None);
}

/// Slot 4 tells two blobs piece by piece; gives the tail that the plan copies.
fn tail_of_pieces(mutation: Option<Mutation>) -> u64 {
    let mut bench = Bench::with_mutation(2, mutation);
    let (starts, blobs) =
        ([(1, first_start())], [records(point(1, 1), 0), records(point(1, 2), 1)]);
    let of = |blobs: &[Blob], starts| view(None, starts, blobs);
    for slot in 0..4 {
        bench.answer(slot, PartitionView::default());
    }
    let piece = |above, up_to, view| FenceResult::Piece(ViewPiece { above, up_to, view });
    let cut = point(1, 1);
    bench.out.clear();
    bench.answer_as(4, 104, piece(None, Some(cut), of(&blobs[..1], &starts)));
    let rest = TakeoverOutput::FenceRead { slot: Slot::new(4), above: Some(cut) };
    assert_eq!(bench.out.contains(&rest), mutation.is_none());
    // What is not answered is asked for again, from there on.
    bench.out.clear();
    bench.wait(ASK_AGAIN_AFTER);
    assert_eq!(bench.out.contains(&rest), mutation.is_none());
    bench.answer_as(4, 104, piece(Some(cut), None, of(&blobs[1..], &[])));
    bench.read_gives(4, ReadReply::Blobs(blobs.to_vec()));
    bench.plan().expect("decided").start.tail_length
}

#[test]
fn z5_a_view_in_pieces_counts_once_it_is_whole() {
    assert_eq!(tail_of_pieces(None), 2);
    if cfg!(feature = "mutations") {
        assert_eq!(tail_of_pieces(Some(Mutation::PieceIsView)), 1, "the test would see it");
    }
}

#[test]
fn t2_another_life_of_a_disk_counts_for_nothing_until_the_configuration_names_it() {
    let mut bench = Bench::begin(2);
    for slot in 0..4 {
        bench.answer(slot, PartitionView::default());
    }
    bench.answer_as(4, 999, FenceResult::Certain(PartitionView::default()));
    assert_eq!(bench.plan(), None);
    let mut config = group();
    config.version = ConfigVersion::new(2);
    config.slots[4].incarnation = Incarnation::new(999);
    bench.takeover.on_config(bench.now, config, &mut bench.out);
    assert!(bench.plan().is_some());
}

#[test]
fn t2_an_answer_of_a_disk_wiped_since_is_dropped() {
    let mut bench = Bench::begin(2);
    bench.answer(0, PartitionView::default());
    let mut config = group();
    config.version = ConfigVersion::new(2);
    config.slots[0].incarnation = Incarnation::new(999);
    bench.takeover.on_config(bench.now, config, &mut bench.out);
    for slot in 1..5 {
        bench.answer(slot, PartitionView::default());
    }
    assert_eq!(bench.plan(), None);
}

#[test]
fn s4_a_disk_that_lost_its_data_counts_for_nothing() {
    let mut bench = Bench::begin(2);
    let mut config = group();
    config.version = ConfigVersion::new(2);
    config.slots[4].state = SlotState::LostData;
    bench.takeover.on_config(bench.now, config, &mut bench.out);
    for slot in FENCE_QUORUM {
        bench.answer(slot, PartitionView::default());
    }
    assert_eq!(bench.plan(), None);
}

#[test]
fn a_newer_leader_ends_the_takeover() {
    let mut bench = Bench::begin(2);
    bench.out.clear();
    bench.answer_as(0, 100, FenceResult::Fenced { by: Generation::new(3) });
    assert_eq!(bench.out, [TakeoverOutput::Superseded { by: Generation::new(3) }]);
    for slot in 0..9 {
        bench.answer(slot, PartitionView::default());
    }
    bench.wait(ASK_AGAIN_AFTER * 2);
    assert_eq!(bench.out.len(), 1);
}

#[test]
fn a_trace_of_a_newer_leader_ends_the_takeover_too() {
    // A slot that the newer leader has not fenced answers, but it has heard the newer mark.
    let by = Generation::new(3);
    for trace in [view(mark(3, 0, 4), &[], &[]), view(None, &[], &[records(point(3, 1), 0)])] {
        let mut bench = Bench::begin(2);
        bench.out.clear();
        bench.answer(0, trace);
        assert_eq!(bench.out, [TakeoverOutput::Superseded { by }]);
    }
}

#[test]
fn an_empty_partition_begins_at_offset_0() {
    let mut bench = Bench::begin(2);
    bench.answers(PartitionView::default(), PartitionView::default());
    assert_eq!(bench.plan(), Some(&TakeoverPlan::first(LeaderEpoch::new(2))));
}

#[test]
fn t3_a_first_start_in_doubt_is_taken_up() {
    let mut bench = Bench::begin(2);
    bench.answers(view(None, &[(1, first_start())], &[]), PartitionView::default());
    let start = &bench.plan().expect("decided").start;
    assert_eq!((start.previous, start.base_offset, start.tail_length), (None, Offset::ZERO, 0));
    assert_eq!(start.past, []);
}

#[test]
fn t3_a_start_without_its_whole_tail_is_void() {
    // Generation 2 copied two records, but only the second copy arrived.
    let mut bench = Bench::begin(3);
    let second = start(&[(1, 0, 4)], 4, 2);
    bench.answers(
        view(None, &[(2, second)], &[records(point(2, 2), 5)]),
        view(mark(1, 4, 4), &[(1, first_start())], &[]),
    );
    let start = &bench.plan().expect("decided").start;
    assert_eq!(start.previous, Some(point(1, 4)));
}

#[test]
fn t3_a_start_with_its_whole_tail_is_established() {
    let mut bench = Bench::begin(3);
    let second = start(&[(1, 0, 4)], 4, 1);
    let copy = records(point(2, 1), 4);
    bench.answers(
        view(None, &[(2, second)], std::slice::from_ref(&copy)),
        view(mark(1, 4, 4), &[(1, first_start())], &[]),
    );
    bench.read_gives(0, ReadReply::Blobs(vec![copy.clone()]));
    let plan = bench.plan().expect("decided");
    // The copy is still in doubt, so the link goes to generation 1 and the copy is copied again.
    assert_eq!(plan.start.previous, Some(point(1, 4)));
    assert_eq!(plan.tail, [(copy.header, copy.payload)]);
}

#[test]
fn t3_a_mark_establishes_a_generation_whose_tail_is_no_longer_listed() {
    let mut bench = Bench::begin(3);
    let second = start(&[(1, 0, 4)], 4, 2);
    bench.answers(view(mark(2, 5, 9), &[(2, second)], &[]), PartitionView::default());
    let start = &bench.plan().expect("decided").start;
    assert_eq!(start.previous, Some(point(2, 5)));
    assert_eq!(start.base_offset, Offset::new(9));
    assert_eq!(start.past.len(), 2);
}

#[test]
fn t3_never_falls_back_behind_a_mark() {
    let mut bench = Bench::begin(4);
    let second = start(&[(1, 0, 4)], 4, 0);
    bench.answers(view(mark(3, 2, 9), &[], &[]), view(mark(2, 1, 5), &[(2, second)], &[]));
    assert_eq!(bench.broken(), Some(Contradiction::StartMissing(Generation::new(3))));
}

#[test]
fn t4_links_to_the_highest_mark_anyone_knows() {
    let mut bench = Bench::begin(2);
    bench.answers(
        view(mark(1, 3, 3), &[(1, first_start())], &[]),
        view(mark(1, 2, 2), &[(1, first_start())], &[records(point(1, 3), 2)]),
    );
    let start = &bench.plan().expect("decided").start;
    assert_eq!(start.previous, Some(point(1, 3)));
    assert_eq!(start.base_offset, Offset::new(3));
    assert_eq!(start.tail_length, 0);
}

#[test]
fn t5_the_tail_ends_at_the_first_gap() {
    let mut bench = Bench::begin(2);
    let kept = records(point(1, 1), 0);
    let void = records(point(1, 3), 2);
    bench.answers(
        view(None, &[(1, first_start())], &[kept.clone(), void]),
        PartitionView::default(),
    );
    bench.read_gives(0, ReadReply::Blobs(vec![kept.clone()]));
    assert_eq!(bench.plan().expect("decided").tail, [(kept.header, kept.payload)]);
}

#[test]
fn t5_a_record_seen_on_one_slot_is_kept() {
    let mut bench = Bench::begin(2);
    let lone = records(point(1, 1), 0);
    bench.answers(
        view(None, &[(1, first_start())], &[]),
        view(None, &[(1, first_start())], std::slice::from_ref(&lone)),
    );
    bench.read_gives(1, ReadReply::Blobs(vec![lone]));
    let plan = bench.plan().expect("decided");
    assert_eq!(plan.start.tail_length, 1);
    assert_eq!(plan.start.epochs.last().map(|e| e.start_offset), Some(Offset::new(1)));
}

#[test]
fn t6_checkpoints_are_left_out_of_the_copied_tail() {
    let mut bench = Bench::begin(2);
    let first = records(point(1, 1), 0);
    let checkpoint = blob(point(1, 2), BlobKind::Checkpoint, 1, 0);
    let second = records(point(1, 3), 1);
    let held = [first.clone(), checkpoint, second.clone()];
    bench.answers(view(None, &[(1, first_start())], &held), PartitionView::default());
    assert_eq!(bench.reads(), [(0, 1, 1), (0, 3, 3)]);
    bench.read_gives(0, ReadReply::Blobs(vec![first.clone()]));
    bench.read_gives(0, ReadReply::Blobs(vec![second.clone()]));
    let plan = bench.plan().expect("decided");
    assert_eq!(plan.start.tail_length, 2);
    assert_eq!(plan.tail, [(first.header, first.payload), (second.header, second.payload)]);
}

#[test]
fn t5_offsets_that_do_not_continue_are_reported() {
    let mut bench = Bench::begin(2);
    let odd = records(point(1, 1), 5);
    bench.answers(view(None, &[(1, first_start())], &[odd]), PartitionView::default());
    assert_eq!(bench.broken(), Some(Contradiction::OffsetGap(point(1, 1))));
}

#[test]
fn s2_two_values_under_one_key_are_reported() {
    let mut bench = Bench::begin(2);
    let other = blob(point(1, 1), BlobKind::Records, 0, 2);
    bench.answers(
        view(None, &[(1, first_start())], &[records(point(1, 1), 0)]),
        view(None, &[(1, first_start())], &[other]),
    );
    assert_eq!(bench.broken(), Some(Contradiction::TwoValues(point(1, 1))));
}

#[test]
fn a_trim_in_the_tail_moves_the_log_start() {
    let mut bench = Bench::begin(2);
    let trim = blob(point(1, 4), BlobKind::Trim, 2, 0);
    bench.answers(
        view(mark(1, 3, 3), &[(1, first_start())], std::slice::from_ref(&trim)),
        PartitionView::default(),
    );
    bench.read_gives(0, ReadReply::Blobs(vec![trim]));
    assert_eq!(bench.plan().expect("decided").start.log_start_offset, Offset::new(2));
}

#[test]
fn a_committed_trim_moves_the_log_start_even_if_no_beacon_told_of_it() {
    // Slot 0 knows step 4 committed; the trim at step 3 is listed only by slots with an older mark.
    let mut bench = Bench::begin(2);
    let trim = blob(point(1, 3), BlobKind::Trim, 2, 0);
    bench.answers(
        view(mark(1, 4, 3), &[(1, first_start())], &[]),
        view(mark(1, 2, 2), &[(1, first_start())], &[trim]),
    );
    assert_eq!(bench.plan().expect("decided").start.log_start_offset, Offset::new(2));
}

#[test]
fn t7_a_trim_beyond_the_cut_of_its_generation_is_void() {
    let mut bench = Bench::begin(3);
    let second = start(&[(1, 0, 4)], 4, 0);
    let void = blob(point(1, 6), BlobKind::Trim, 4, 0);
    bench.answers(
        view(mark(2, 0, 4), &[(2, second)], &[]),
        view(mark(1, 2, 2), &[(1, first_start())], &[void]),
    );
    assert_eq!(bench.plan().expect("decided").start.log_start_offset, Offset::ZERO);
}

#[test]
fn t9_the_newest_checkpoint_at_or_below_the_cut_is_used() {
    let mut bench = Bench::begin(2);
    let good = info(&blob(point(1, 2), BlobKind::Checkpoint, 2, 0));
    let in_doubt = info(&blob(point(1, 4), BlobKind::Checkpoint, 3, 0));
    let mut first = view(mark(1, 3, 3), &[(1, first_start())], &[]);
    first.checkpoints = vec![good, in_doubt];
    bench.answers(first, PartitionView::default());
    assert_eq!(bench.plan().expect("decided").checkpoint, Some(good));
}

#[test]
fn t9_a_checkpoint_outlives_the_records_it_covers() {
    // Everything below the checkpoint has been trimmed; generation 2 must still reach it, and so
    // must generation 3 if generation 2 dies before it has written its own.
    let checkpoint = info(&blob(point(1, 5), BlobKind::Checkpoint, 4, 0));
    let mut bench = Bench::begin(2);
    let mut first = view(mark(1, 6, 4), &[(1, first_start())], &[]);
    first.checkpoints = vec![checkpoint];
    first.log_start_offset = Offset::new(4);
    bench.answers(first, PartitionView::default());
    let second = bench.plan().expect("decided").clone();
    assert_eq!(second.checkpoint, Some(checkpoint));

    let mut bench = Bench::begin(3);
    let mut first = view(mark(2, 0, 4), &[(2, second.start)], &[]);
    first.checkpoints = vec![checkpoint];
    bench.answers(first, PartitionView::default());
    assert_eq!(bench.plan().expect("decided").checkpoint, Some(checkpoint));
}

/// A takeover in its reading phase: slots 0 and 1 hold the only blob of the tail.
fn reading() -> (Bench, Blob) {
    let mut bench = Bench::begin(2);
    let lone = records(point(1, 1), 0);
    let holds = view(None, &[(1, first_start())], std::slice::from_ref(&lone));
    bench.out.clear();
    bench.answer(0, holds.clone());
    bench.answer(1, holds);
    for slot in 2..5 {
        bench.answer(slot, view(None, &[(1, first_start())], &[]));
    }
    assert_eq!(bench.reads(), [(0, 1, 1)]);
    bench.out.clear();
    (bench, lone)
}

#[test]
fn the_tail_is_read_from_the_next_holder_if_one_cannot_give_it() {
    let (mut bench, lone) = reading();
    bench.read_gives(0, ReadReply::Unreadable);
    assert_eq!(bench.reads(), [(1, 1, 1)]);
    bench.read_gives(1, ReadReply::Blobs(vec![lone]));
    assert!(bench.plan().is_some());
}

#[test]
fn a_damaged_payload_is_not_taken() {
    let (mut bench, lone) = reading();
    let mut damaged = lone.clone();
    damaged.payload = Payload::from(Bytes::from_static(b"other"));
    bench.read_gives(0, ReadReply::Blobs(vec![damaged]));
    assert_eq!(bench.plan(), None);
    bench.read_gives(1, ReadReply::Blobs(vec![lone]));
    assert!(bench.plan().is_some());
}

#[test]
fn holders_that_answer_at_once_are_not_asked_in_a_tight_loop() {
    let (mut bench, _) = reading();
    for _ in 0..100 {
        bench.read_gives(0, ReadReply::NotHere);
        bench.read_gives(1, ReadReply::NotHere);
    }
    assert!(bench.reads().len() <= 2, "{:?}", bench.reads());
    assert_eq!(bench.plan(), None);
}

#[test]
fn when_all_holders_of_a_tail_blob_are_gone_the_slots_are_fenced_again() {
    // Slots 0 and 1 answered the fence and then died with their datacenter. The others must be
    // able to finish: what no fence quorum of them holds was never acknowledged.
    let (mut bench, _) = reading();
    bench.wait(ASK_AGAIN_AFTER);
    bench.wait(ASK_AGAIN_AFTER);
    bench.wait(ASK_AGAIN_AFTER);
    assert!(bench.fenced_slots().len() >= 9, "{:?}", bench.out);
    for slot in [3, 4, 6, 7, 8] {
        bench.answer(slot, view(None, &[(1, first_start())], &[]));
    }
    assert_eq!(bench.plan().expect("decided").tail, []);
}

#[test]
fn a_late_payload_still_ends_a_takeover_that_fences_again() {
    let (mut bench, lone) = reading();
    for _ in 0..3 {
        bench.wait(ASK_AGAIN_AFTER);
    }
    bench.read_gives(0, ReadReply::Blobs(vec![lone.clone()]));
    assert_eq!(bench.plan().expect("decided").tail, [(lone.header, lone.payload)]);
}

#[test]
fn a_long_tail_is_asked_for_in_runs_that_fit_one_answer() {
    let mut bench = Bench::begin(2);
    let half = Payload::from(Bytes::from(vec![1; READ_SIZE_BYTES_MAX as usize / 2]));
    let big = |step| {
        let offset = Offset::new(step as i64 - 1);
        let header = BlobHeader::describe(BlobKind::Records, offset, 1, -1, &half);
        let key = BlobKey { partition: PARTITION, point: point(1, step) };
        Blob { key, header, payload: half.clone() }
    };
    let tail: Vec<Blob> = (1..=5).map(big).collect();
    bench.answers(view(None, &[(1, first_start())], &tail), PartitionView::default());
    assert_eq!(bench.reads(), [(0, 1, 2), (0, 3, 4), (0, 5, 5)]);
}

#[cfg(feature = "mutations")]
#[test]
fn t9_mutation_checkpoint_in_doubt_is_caught() {
    let mut bench = Bench::with_mutation(2, Some(Mutation::CheckpointInDoubt));
    let mut first = view(mark(1, 3, 3), &[(1, first_start())], &[]);
    first.checkpoints = vec![info(&blob(point(1, 4), BlobKind::Checkpoint, 3, 0))];
    bench.answers(first, PartitionView::default());
    assert!(bench.plan().expect("decided").checkpoint.is_some(), "the broken rule must show");
}

#[cfg(feature = "mutations")]
#[test]
fn s4_mutation_wiped_counts_is_caught() {
    let mut bench = Bench::with_mutation(2, Some(Mutation::WipedCounts));
    let mut config = group();
    config.version = ConfigVersion::new(2);
    config.slots[4].state = SlotState::LostData;
    bench.takeover.on_config(bench.now, config, &mut bench.out);
    for slot in FENCE_QUORUM {
        bench.answer(slot, PartitionView::default());
    }
    assert!(bench.plan().is_some(), "the broken rule must show");
}

#[test]
fn t5_a_manifest_in_doubt_is_kept_and_clean_blobs_are_not() {
    let mut bench = Bench::begin(2);
    let first = records(point(1, 1), 0);
    let clean = blob(point(1, 2), BlobKind::Clean, 0, 1);
    let manifest = blob(point(1, 3), BlobKind::Manifest, 1, 0);
    let after = records(point(1, 4), 1);
    let of_next_pass = blob(point(1, 5), BlobKind::Clean, 0, 1);
    let starts = [(1, first_start())];
    // The put of the manifest carried a mark that covers what it names.
    let tail = [clean, manifest.clone(), after.clone(), of_next_pass];
    let holder = view(mark(1, 2, 1), &starts, &tail);
    bench.answers(holder, view(None, &starts, &[first]));
    bench.read_gives(0, ReadReply::Blobs(vec![manifest.clone(), after.clone()]));
    let plan = bench.plan().expect("decided");
    let kept: Vec<BlobHeader> = plan.tail.iter().map(|(header, _)| *header).collect();
    assert_eq!(kept, [manifest.header, after.header]);
    assert_eq!(plan.start.previous, Some(point(1, 2)));
}

/// What a slot of the former group holds: a log that is committed up to step 9, with a checkpoint at 5.
fn left_behind() -> PartitionView {
    let mut left = view(mark(4, 9, 9), &[(4, start(&[], 0, 0))], &[records(point(4, 9), 8)]);
    left.checkpoints = vec![info(&blob(point(4, 5), BlobKind::Checkpoint, 5, 0))];
    left
}

#[test]
fn h5_a_move_fences_and_reads_the_group_that_is_left_and_tells_of_its_checkpoint() {
    let mut bench = Bench::of_moved(5);
    assert_eq!((bench.asked(), bench.fenced_slots().len()), (1, 9));
    bench.answers(left_behind(), left_behind());
    let plan = bench.plan().unwrap();
    assert_eq!(plan.start.previous, Some(point(4, 9)));
    assert_eq!(plan.start.base_offset, Offset::new(9));
    assert_eq!(plan.start.checkpoint, plan.checkpoint);
    assert_eq!(plan.checkpoint.map(|info| info.point), Some(point(4, 5)));
}

#[test]
fn h5_a_move_that_was_never_established_is_made_again_from_the_group_before() {
    let mut bench = Bench::of_moved(6);
    assert_eq!(bench.asked(), 2);
    // Its leader died with half of the tail put; what a former stay has left here is none of its log.
    let half = view(None, &[(5, start(&[(4, 0, 9)], 9, 2)), (2, first_start())], &[]);
    bench.answers(half, view(mark(2, 3, 3), &[(2, first_start())], &[]));
    assert_eq!((bench.asked(), bench.fenced_slots().len()), (1, 9));
    assert_eq!(bench.plan(), None);
    bench.answers(left_behind(), left_behind());
    let past = &bench.plan().unwrap().start.past;
    assert_eq!(past.iter().map(|past| past.generation.get()).collect::<Vec<_>>(), [4]);
}

#[test]
fn h5_after_a_move_only_the_new_group_is_asked_and_the_checkpoint_is_not_forgotten() {
    let checkpoint = left_behind().checkpoints[0];
    let moved = Start { checkpoint: Some(checkpoint), ..start(&[(4, 0, 9)], 9, 0) };
    let established = view(mark(5, 3, 12), &[(5, moved)], &[records(point(5, 3), 11)]);
    let mut bench = Bench::of_moved(6);
    bench.answers(established.clone(), established.clone());
    let plan = bench.plan().unwrap();
    assert_eq!(plan.checkpoint, Some(checkpoint));
    assert_eq!(plan.start.checkpoint, Some(checkpoint), "the next one is told as well");

    // One of its own is newer.
    let mut later = established.clone();
    later.checkpoints = vec![info(&blob(point(5, 2), BlobKind::Checkpoint, 10, 0))];
    let mut bench = Bench::of_moved(6);
    bench.answers(later, established);
    assert_eq!(bench.plan().unwrap().checkpoint.map(|info| info.point), Some(point(5, 2)));
}

#[test]
fn h5_a_group_that_does_not_answer_is_waited_for_wherever_it_is() {
    let mut bench = Bench::of_moved(6);
    bench.answer(0, PartitionView::default());
    bench.wait(ASK_AGAIN_AFTER);
    assert_eq!((bench.asked(), bench.plan()), (2, None));
    bench.answers(PartitionView::default(), PartitionView::default());
    assert_eq!(bench.asked(), 1);
    // A configuration of the group that is asked counts, and of no other.
    let renewed = GroupConfig { version: ConfigVersion::new(2), ..group() };
    bench.out.clear();
    bench.takeover.on_config(bench.now, renewed.clone(), &mut bench.out);
    assert_eq!((bench.takeover.group(), bench.fenced_slots().len()), (&renewed, 9));
}
