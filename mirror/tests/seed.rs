//! A mirrored partition that takes from a seed: exactly what it is to take, and else it says why not.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_mirror::partition::{
    Answer, BatchId, Input, MirrorPartition, Output, OwnLog, Question, Settings, SourceBatch,
    SourceView, Token,
};
use meridian_mirror::seed::Part;
use meridian_mirror::state::State;

const TOPIC: TopicId = TopicId::new(1);
const NOW: Instant = Instant::from_micros(1);

/// Batches of two records each, but for those that are missing.
struct Seed {
    start: i64,
    end: i64,
    missing: Vec<i64>,
}

fn batch(base: i64) -> SourceBatch {
    let id = BatchId {
        base_offset: Offset::new(base),
        last_offset: Offset::new(base + 1),
        leader_epoch: LeaderEpoch::new(0),
        crc: 0,
    };
    SourceBatch { id, bytes: Bytes::from_static(b"batch") }
}

impl Seed {
    fn answer(&self, question: Question) -> Answer {
        let (start, high_watermark) = (Offset::new(self.start), Offset::new(self.end));
        match question {
            Question::EpochEnd { epoch } => Answer::EpochEnd(Some((epoch, high_watermark))),
            Question::Bounds => Answer::Bounds { start, high_watermark },
            Question::Fetch { from } => {
                let all = (self.start / 2..self.end / 2).map(|it| it * 2);
                let wanted = all.filter(|it| it + 1 >= from.get() && !self.missing.contains(it));
                let batches = wanted.map(batch).collect();
                Answer::Fetched { from: None, goes_on: false, batches, start, high_watermark }
            }
        }
    }
}

/// Answers everything that is asked; gives where the mirror begins and ends, what was let go of, and its state.
fn take(seed: &Seed, part: (i64, i64), own: OwnLog) -> (Option<i64>, i64, Option<i64>, State) {
    let part = Part { from: Offset::new(part.0), until: Offset::new(part.1) };
    let settings = Settings { seed: Some(part), ..Settings::new(TOPIC, LeaderEpoch::new(1)) };
    let mut out = Vec::new();
    let mut machine = MirrorPartition::start(settings, own, &mut out);
    let (mut begun, mut trimmed) = (None, None);
    let view = SourceView {
        topic: TOPIC,
        leader_epoch: LeaderEpoch::new(1),
        is_compacted: true,
        delete_retention: Some(Duration::ZERO),
    };
    for _ in 0..100 {
        let mut inputs = Vec::new();
        for output in out.drain(..) {
            match output {
                Output::Refresh => inputs.push(Input::Source(Ok(view))),
                Output::Ask { token, question, .. } => inputs.push(answered(seed, token, question)),
                Output::Begin(at) => begun = Some(at.get()),
                Output::Append { batches, .. } => {
                    let end = batches.last().unwrap().id.last_offset.advance(1);
                    inputs.push(Input::Committed { end, size_bytes: 5 * batches.len() as u64 });
                }
                Output::Trim(before) => trimmed = Some(before.get()),
                Output::RaiseEpoch(_) => {}
            }
        }
        if inputs.is_empty() {
            let status = machine.status(NOW);
            return (begun, status.end.get(), trimmed, status.state);
        }
        for input in inputs {
            machine.step(NOW, input, &mut out);
        }
    }
    panic!("it asks on and on: {:?}", machine.status(NOW));
}

fn answered(seed: &Seed, token: Token, question: Question) -> Input {
    Input::Answered { token, asked_at: NOW, answer: Ok(seed.answer(question)) }
}

fn seed(start: i64, end: i64) -> Seed {
    Seed { start, end, missing: Vec::new() }
}

#[test]
fn what_both_sides_have_is_taken_and_no_record_more() {
    let (begun, end, _, state) = take(&seed(0, 20), (0, 12), OwnLog::default());
    assert_eq!((begun, end, state), (None, 12, State::Mirroring));
    // What the promoted side let go of stays out.
    let (begun, end, trimmed, _) = take(&seed(0, 20), (4, 12), OwnLog::default());
    assert_eq!((begun, end, trimmed), (Some(4), 12, None));
    // It goes on where it was, and lets go of nothing that the promoted side may have.
    let own = OwnLog { end: Offset::new(6), last: Some(batch(4).id), ..OwnLog::default() };
    let (begun, end, trimmed, state) = take(&seed(4, 20), (0, 12), own);
    assert_eq!((begun, end, trimmed, state), (None, 12, None, State::Mirroring));
}

#[test]
fn a_seed_that_lacks_something_is_left() {
    let gap = |from, to| State::Gap { from: Offset::new(from), to: Offset::new(to) };
    // Records of the beginning are gone.
    let (_, end, _, state) = take(&seed(2, 20), (0, 12), OwnLog::default());
    assert_eq!((end, state), (0, gap(0, 2)));
    // Or were compacted away: what has overwritten them may be only there.
    let missing = |at| Seed { start: 0, end: 20, missing: vec![at] };
    let (begun, end, _, state) = take(&missing(0), (0, 12), OwnLog::default());
    assert_eq!((begun, end, state), (None, 0, gap(0, 2)));
    let (_, end, _, state) = take(&missing(6), (0, 12), OwnLog::default());
    assert_eq!((end, state), (6, gap(6, 8)));
    let (_, end, _, state) = take(&missing(10), (0, 12), OwnLog::default());
    assert_eq!((end, state), (10, gap(10, 12)));
    // A batch that does not end where the logs part.
    let (_, end, _, state) = take(&seed(0, 20), (0, 11), OwnLog::default());
    assert_eq!((end, state), (10, gap(10, 11)));
}
