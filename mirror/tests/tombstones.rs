//! A mirror of a compacted topic that was away for longer than its source keeps tombstones: what was deleted meanwhile
//! would stay in it for good.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_mirror::mutation::Mutation;
use meridian_mirror::partition::{
    Answer, BatchId, Input, MirrorPartition, Output, OwnLog, Question, Settings, SourceBatch,
    SourceView,
};
use meridian_mirror::state::State;

const TOPIC: TopicId = TopicId::new(1);
const RETENTION: Duration = Duration::from_secs(3600);
const END: i64 = 20;

/// A batch of two offsets with this many records, at the place where its header has that.
fn batch(base: i64, record_count: i32) -> SourceBatch {
    let id = BatchId {
        base_offset: Offset::new(base),
        last_offset: Offset::new(base + 1),
        leader_epoch: LeaderEpoch::new(0),
        crc: 0,
    };
    let bytes = [&[0; 57][..], &record_count.to_be_bytes(), &[0; 9]].concat();
    SourceBatch { id, bytes: Bytes::from(bytes) }
}

struct World {
    machine: MirrorPartition,
    out: Vec<Output>,
    batches: Vec<SourceBatch>,
    delete_retention: Option<Duration>,
    now: Instant,
}

impl World {
    /// A mirror that ends at 10, whose last records are that old.
    fn new(idle: Duration, mutation: Option<Mutation>) -> Self {
        let last = Some(batch(8, 2).id);
        let own = OwnLog { start: Offset::ZERO, end: Offset::new(10), last, idle };
        let settings = Settings { mutation, ..Settings::new(TOPIC, LeaderEpoch::new(1)) };
        let mut out = Vec::new();
        let machine = MirrorPartition::start(settings, own, &mut out);
        let batches = (0..END / 2).map(|it| batch(it * 2, 2)).collect();
        let delete_retention = Some(RETENTION);
        Self { machine, out, batches, delete_retention, now: Instant::from_micros(1) }
    }

    fn without(mut self, base: i64) -> Self {
        self.batches.retain(|it| it.id.base_offset.get() != base);
        self
    }

    /// Lets the source answer all that is asked; says how the mirror is then.
    fn run(&mut self) -> State {
        for _ in 0..20 {
            let inputs: Vec<Input> = std::mem::take(&mut self.out)
                .into_iter()
                .filter_map(|output| match output {
                    Output::Refresh => Some(Input::Source(Ok(self.view()))),
                    Output::Ask { token, question, .. } => {
                        let (answer, asked_at) = (Ok(self.answer(question)), self.now);
                        Some(Input::Answered { token, asked_at, answer })
                    }
                    Output::Append { batches, .. } => {
                        let end = batches.last().unwrap().id.last_offset.advance(1);
                        Some(Input::Committed { end, size_bytes: 70 * batches.len() as u64 })
                    }
                    Output::Begin(_) | Output::Trim(_) | Output::RaiseEpoch(_) => None,
                })
                .collect();
            for input in inputs {
                self.machine.step(self.now, input, &mut self.out);
            }
        }
        self.machine.status(self.now).state
    }

    fn view(&self) -> SourceView {
        SourceView {
            topic: TOPIC,
            leader_epoch: LeaderEpoch::new(1),
            is_compacted: true,
            delete_retention: self.delete_retention,
        }
    }

    fn answer(&self, question: Question) -> Answer {
        let (start, high_watermark) = (Offset::ZERO, self.end());
        match question {
            Question::EpochEnd { epoch } => Answer::EpochEnd(Some((epoch, high_watermark))),
            Question::Bounds => Answer::Bounds { start, high_watermark },
            Question::Fetch { from } => {
                let wanted = self.batches.iter().filter(|it| it.id.last_offset >= from);
                let batches = wanted.cloned().collect();
                Answer::Fetched { from: None, goes_on: false, batches, start, high_watermark }
            }
        }
    }

    fn end(&self) -> Offset {
        self.batches.last().unwrap().id.last_offset.advance(1)
    }
}

fn long() -> Duration {
    RETENTION + Duration::from_secs(1)
}

#[test]
fn a_mirror_that_was_away_for_too_long_says_that_deletions_may_be_missing() {
    let gap = State::Gap { from: Offset::new(12), to: Offset::new(14) };
    assert_eq!(World::new(long(), None).without(12).run(), gap);
    // A record that was removed from a batch that is there still.
    let mut sparse = World::new(long(), None);
    sparse.batches[6] = batch(12, 1);
    assert_eq!(sparse.run(), gap);
}

#[test]
fn one_that_was_away_for_less_goes_on_and_so_does_one_that_misses_nothing() {
    assert_eq!(World::new(RETENTION, None).without(12).run(), State::Mirroring);
    assert_eq!(World::new(long(), None).run(), State::Mirroring);
    let mut once = World::new(long(), None).without(12);
    once.delete_retention = None;
    assert_eq!(once.run(), State::Mirroring, "it is not compacted now");
}

#[test]
fn a_mirror_that_follows_has_seen_each_tombstone() {
    let mut world = World::new(Duration::ZERO, None);
    assert_eq!(world.run(), State::Mirroring);
    // It asks again and again, and there is nothing; then the source writes, and compacts at once.
    for _ in 0..3 {
        world.now = world.now + long();
        let is_asked = world.out.iter().any(|it| matches!(it, Output::Ask { .. }));
        assert_eq!((world.run(), is_asked), (State::Mirroring, true));
    }
    world.batches.push(batch(END + 2, 2));
    assert_eq!(world.run(), State::Mirroring);
}

#[test]
fn a_mirror_that_does_not_look_keeps_what_was_deleted() {
    let broken = Some(Mutation::MissTombstones);
    assert_eq!(World::new(long(), broken).without(12).run(), State::Mirroring);
}
