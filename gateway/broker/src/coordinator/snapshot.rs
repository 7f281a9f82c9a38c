//! How the log of a coordinator is made shorter: all that holds is written again piece by piece, and the log starts
//! where that began.
//!
//! ```text
//! log    a b a c  |1: a b|  b d  |2: c d|  a        snapshot of a, b, c, d in two pieces
//!                 ^ the log starts here once piece 2 is committed
//! ```
//!
//! One piece is in the queue at a time, behind all that was decided before it, and says all of that.

use std::collections::{BTreeSet, VecDeque};

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_storage::mutation::Mutation;

use super::queue::Entry;
use super::{Config, Coordinator, LogView, Output, State};
use crate::coordination::shortening::Rest;

/// How many times as long as what holds a log may get.
const LENGTH_RATIO_MAX: i64 = 4;

/// Why a log was not made shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotShortened {
    /// A piece, or the new start, was not written.
    #[error("the log did not take a part of the snapshot, or its new start")]
    Refused,
    /// What transactions have staged must stay.
    #[error("open transactions stage offsets that only the oldest records of the log hold")]
    Held,
}

#[derive(Debug)]
enum Next<P> {
    First,
    From(P),
    End,
}

#[derive(Debug)]
struct Running<P> {
    began_at: Offset,
    next: Next<P>,
    /// Whether a piece is in the queue, or on its way.
    is_out: bool,
    /// The broken rule: all pieces, as they were when the snapshot began.
    at_once: VecDeque<Vec<Entry>>,
}

#[derive(Debug)]
enum Stage<P> {
    Idle,
    /// The embedder looks which topics are gone.
    Asking,
    Ready(BTreeSet<TopicId>),
    Running(Running<P>),
    Trimming(Offset),
}

#[derive(Debug)]
pub(super) struct Snapshot<P> {
    stage: Stage<P>,
    rest: Rest,
    rests_until: Option<Instant>,
    /// The number of records from which on the log is worth a look.
    record_count_min: i64,
    is_of_one_moment: bool,
}

impl<P> Snapshot<P> {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            stage: Stage::Idle,
            rest: Rest::new(config.pause_min, config.pause_max, config.mutations),
            rests_until: None,
            record_count_min: config.record_count_min,
            is_of_one_moment: Mutation::SnapshotOfOneMoment.active(config.mutations),
        }
    }

    /// The broken rule: pieces are written as they were cut, whatever has changed since.
    pub(super) fn is_of_one_moment(&self) -> bool {
        self.is_of_one_moment
    }

    /// When a log that rests may be looked at again.
    pub(super) fn wake_at(&self, now: Instant) -> Option<Instant> {
        self.rests_until.filter(|until| now < *until)
    }

    pub(super) fn on_gone(&mut self, topics: BTreeSet<TopicId>) {
        if let Stage::Asking = self.stage {
            self.stage = Stage::Ready(topics);
        }
    }

    pub(super) fn on_piece_committed(&mut self) {
        if let Stage::Running(running) = &mut self.stage {
            running.is_out = false;
        }
    }
}

impl<S: State> Coordinator<S> {
    /// Goes on with a snapshot, or begins one, while no batch is on its way.
    pub(super) fn shorten(
        &mut self,
        now: Instant,
        log: LogView,
        out: &mut Vec<Output<S::Outcome>>,
    ) {
        if let Stage::Idle = self.snapshot.stage
            && !log.rests
            && !self.snapshot.rest.lasts(now)
            && self.freed_count(log).is_some()
        {
            let topics = self.state.topics();
            self.snapshot.stage = match topics.is_empty() {
                true => Stage::Ready(BTreeSet::new()),
                false => Stage::Asking,
            };
            if !topics.is_empty() {
                out.push(Output::Topics(topics));
            }
        }
        if let Stage::Ready(gone) = &mut self.snapshot.stage {
            let gone = std::mem::take(gone);
            self.snapshot.stage = Stage::Idle;
            self.begin_snapshot(log, gone, out);
        }
        self.cut_piece(now, log, out);
    }

    /// How many records a snapshot begun now may free, if it is worth a look.
    fn freed_count(&self, log: LogView) -> Option<i64> {
        let is_worth = |count: &i64| *count >= self.snapshot.record_count_min;
        let count = log.high_watermark.get() - log.start.get();
        Some(count).filter(is_worth)?;
        Some(self.state.start_max(log.high_watermark).get() - log.start.get()).filter(is_worth)
    }

    fn begin_snapshot(
        &mut self,
        log: LogView,
        gone: BTreeSet<TopicId>,
        out: &mut Vec<Output<S::Outcome>>,
    ) {
        let held = i64::try_from(self.state.held_count()).unwrap_or(i64::MAX);
        let worth = held.saturating_mul(LENGTH_RATIO_MAX);
        self.snapshot.record_count_min = worth.max(self.config.record_count_min);
        if self.freed_count(log).is_none() {
            return;
        }
        let began_at = log.high_watermark;
        self.state.begin_snapshot(began_at, gone);
        let mut at_once = VecDeque::new();
        if self.snapshot.is_of_one_moment {
            let mut from = None;
            loop {
                let piece = self.state.piece(from, self.config.piece_size_bytes);
                at_once.push_back(piece.records);
                from = piece.next;
                if from.is_none() {
                    break;
                }
            }
        }
        let next = Next::First;
        self.snapshot.stage = Stage::Running(Running { began_at, next, is_out: false, at_once });
        out.push(Output::SnapshotBegun);
        if Mutation::TrimmedBeforeSnapshot.active(self.config.mutations) {
            out.push(Output::Trim(began_at));
        }
    }

    /// Puts the next piece behind all that was decided, or has the log trimmed after the last one.
    fn cut_piece(&mut self, now: Instant, log: LogView, out: &mut Vec<Output<S::Outcome>>) {
        let Stage::Running(running) = &mut self.snapshot.stage else { return };
        if running.is_out {
            return;
        }
        let from = match std::mem::replace(&mut running.next, Next::End) {
            Next::First => None,
            Next::From(place) => Some(place),
            Next::End => {
                let start = self.state.start_of(running.began_at);
                if start <= log.start {
                    return self.give_up_snapshot(now, NotShortened::Held, out);
                }
                self.snapshot.stage = Stage::Trimming(start);
                return out.push(Output::Trim(start));
            }
        };
        let piece = self.state.piece(from, self.config.piece_size_bytes);
        if let Some(next) = piece.next {
            running.next = Next::From(next);
        }
        running.is_out = true;
        self.queue.push_piece(running.at_once.pop_front().unwrap_or(piece.records));
    }

    pub(super) fn give_up_snapshot(
        &mut self,
        now: Instant,
        why: NotShortened,
        out: &mut Vec<Output<S::Outcome>>,
    ) {
        self.queue.drop_piece();
        self.snapshot.stage = Stage::Idle;
        let pause = self.snapshot.rest.on_refused(now);
        self.snapshot.rests_until = Some(now + pause);
        out.push(Output::SnapshotRefused(why, pause));
    }

    pub(super) fn on_trimmed(
        &mut self,
        now: Instant,
        is_done: bool,
        out: &mut Vec<Output<S::Outcome>>,
    ) {
        let Stage::Trimming(start) = self.snapshot.stage else { return };
        if !is_done {
            return self.give_up_snapshot(now, NotShortened::Refused, out);
        }
        self.snapshot.stage = Stage::Idle;
        self.snapshot.rest.on_done();
        self.snapshot.rests_until = None;
        self.state.on_trimmed(start);
        out.push(Output::SnapshotDone(start));
    }
}
