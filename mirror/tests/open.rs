//! A mirror that comes back with a transaction open, whose source is compacted: the marker may be gone.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_mirror::mutation::Mutation;
use meridian_mirror::partition::{
    Answer, BatchId, Failure, Input, MirrorPartition, Output, OwnLog, Question, Settings,
    SourceBatch, SourceView,
};
use meridian_mirror::state::State;

const TOPIC: TopicId = TopicId::new(1);
const NOW: Instant = Instant::from_micros(1);
const END: i64 = 20;

/// A batch of two records.
fn batch(base: i64) -> SourceBatch {
    let id = BatchId {
        base_offset: Offset::new(base),
        last_offset: Offset::new(base + 1),
        leader_epoch: LeaderEpoch::new(0),
        crc: 0,
    };
    SourceBatch { id, bytes: Bytes::from_static(b"batch") }
}

struct Source {
    is_compacted: bool,
    start: i64,
    /// Batches that compaction has removed.
    missing: Vec<i64>,
}

impl Source {
    fn answer(&self, question: Question) -> Result<Answer, Failure> {
        let (start, high_watermark) = (Offset::new(self.start), Offset::new(END));
        match question {
            Question::EpochEnd { epoch } => Ok(Answer::EpochEnd(Some((epoch, high_watermark)))),
            Question::Bounds => Ok(Answer::Bounds { start, high_watermark }),
            Question::Fetch { from } if from < start => Err(Failure::OutOfRange),
            Question::Fetch { from } => {
                let all = (self.start / 2..END / 2).map(|it| it * 2);
                let wanted = all.filter(|it| it + 1 >= from.get() && !self.missing.contains(it));
                let batches = wanted.map(batch).collect();
                Ok(Answer::Fetched { from: None, goes_on: false, batches, start, high_watermark })
            }
        }
    }

    /// What becomes of a mirror that ends at 10, with transactions open that begin there; and whether
    /// it appends what comes next.
    fn comes_back(&self, open: &[i64], mutation: Option<Mutation>) -> (State, bool) {
        let own = OwnLog {
            start: Offset::ZERO,
            end: Offset::new(10),
            last: Some(batch(8).id),
            idle: Duration::ZERO,
        };
        let settings = Settings { mutation, ..Settings::new(TOPIC, LeaderEpoch::new(1)) };
        let view = SourceView {
            topic: TOPIC,
            leader_epoch: LeaderEpoch::new(1),
            is_compacted: self.is_compacted,
            delete_retention: None,
        };
        let mut out = Vec::new();
        let mut machine = MirrorPartition::start(settings, own, &mut out);
        let open = open.iter().map(|first| Offset::new(*first)).collect();
        machine.step(NOW, Input::Open(open), &mut out);
        let mut appends = false;
        for _ in 0..100 {
            let mut inputs = Vec::new();
            for output in out.drain(..) {
                match output {
                    Output::Refresh => inputs.push(Input::Source(Ok(view))),
                    Output::Ask { token, question, .. } => {
                        let answer = self.answer(question);
                        inputs.push(Input::Answered { token, asked_at: NOW, answer });
                    }
                    Output::Append { batches, .. } => {
                        appends = true;
                        let end = batches.last().unwrap().id.last_offset.advance(1);
                        inputs.push(Input::Committed { end, size_bytes: 5 });
                    }
                    Output::Begin(_) | Output::Trim(_) | Output::RaiseEpoch(_) => {}
                }
            }
            if inputs.is_empty() || machine.status(NOW).end == Offset::new(END) {
                break;
            }
            for input in inputs {
                machine.step(NOW, input, &mut out);
            }
        }
        (machine.status(NOW).state, appends)
    }
}

fn compacted(missing: &[i64]) -> Source {
    Source { is_compacted: true, start: 0, missing: missing.to_vec() }
}

#[test]
fn what_is_open_here_and_gone_at_the_source_is_a_gap() {
    let gap = State::Gap { from: Offset::new(6), to: Offset::new(10) };
    assert_eq!(compacted(&[6, 10, 12]).comes_back(&[6], None), (gap.clone(), false));
    assert_eq!(compacted(&[6]).comes_back(&[6, 4], None), (gap.clone(), false));
    assert_eq!(compacted(&[6]).comes_back(&[4, 6], None), (gap, false));
}

#[test]
fn what_the_source_has_still_is_decided_by_a_marker_to_come() {
    for open in [&[][..], &[6], &[7], &[4, 8]] {
        let (state, appends) = compacted(&[2, 10, 12]).comes_back(open, None);
        assert_eq!((state, appends), (State::Mirroring, true), "{open:?}");
    }
    let trimmed = Source { start: 8, ..compacted(&[]) };
    assert_eq!(trimmed.comes_back(&[6], None), (State::Mirroring, true), "nobody reads it");
    let plain = Source { is_compacted: false, ..compacted(&[]) };
    assert_eq!(plain.comes_back(&[6], None), (State::Mirroring, true));
}

#[test]
fn a_mirror_that_does_not_look_for_it_goes_on() {
    let broken = Some(Mutation::OpenUnverified);
    assert_eq!(compacted(&[6]).comes_back(&[6], broken), (State::Mirroring, true));
}
