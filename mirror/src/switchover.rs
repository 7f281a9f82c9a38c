//! A switchover as its coordinator at the mirror's end drives it: a state machine without I/O.
//!
//! ```text
//! Fencing -> Draining -> CarryingOver -> Promoting -> Reversing -> done: the mirror is the writer
//!    |          |             |          ^ from here on only forward
//!    +----------+-------------+-> RollingBack -> done: the source is the writer
//! ```
//!
//! Each step is a row of the metadata log before anything of it is done, and written only if the row
//! is still what was read. So whoever coordinates, however often it dies, and whoever asks for a
//! rollback meanwhile: one of the two rows is written, and the other never is. All actions can be
//! repeated.

use std::time::Duration;

use meridian_base::env::Instant;
use serde::{Deserialize, Serialize};

use crate::mutation::Mutation;

/// Pause between two tries of an action.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// Longest pause.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(2);

/// How far a switchover is. Persisted: append only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Step {
    /// The source is to refuse its clients.
    Fencing,
    /// The mirror gets the rest; open transactions end.
    Draining,
    /// Consumer groups are told where to go on.
    CarryingOver,
    /// The mirror becomes the writer. It is decided.
    Promoting,
    /// The source becomes the mirror.
    Reversing,
    /// The source serves its clients again.
    RollingBack,
}

impl Step {
    /// Every step, in order.
    pub const ALL: [Self; 6] = [
        Self::Fencing,
        Self::Draining,
        Self::CarryingOver,
        Self::Promoting,
        Self::Reversing,
        Self::RollingBack,
    ];

    /// The name that operators see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fencing => "fencing",
            Self::Draining => "draining",
            Self::CarryingOver => "carrying-over",
            Self::Promoting => "promoting",
            Self::Reversing => "reversing",
            Self::RollingBack => "rolling-back",
        }
    }

    /// Whether it may still be rolled back.
    pub fn can_roll_back(self) -> bool {
        matches!(self, Self::Fencing | Self::Draining | Self::CarryingOver)
    }

    /// What comes after it; `None` after the last.
    fn next(self, mutation: Option<Mutation>) -> Option<Self> {
        match self {
            Self::Fencing if Mutation::SkipDrain.active(mutation) => Some(Self::Promoting),
            Self::Fencing => Some(Self::Draining),
            Self::Draining => Some(Self::CarryingOver),
            Self::CarryingOver => Some(Self::Promoting),
            Self::Promoting => Some(Self::Reversing),
            Self::Reversing | Self::RollingBack => None,
        }
    }
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The mirror is the writer, the source follows it.
    Switched,
    /// All is as it was.
    RolledBack,
}

/// What the machine is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The row says this step now.
    Persisted(Step),
    /// What this step asks for is done.
    Done(Step),
    /// It is not done.
    Failed {
        /// What was asked for.
        step: Step,
        /// Why.
        reason: String,
        /// Whether trying again is no use.
        is_final: bool,
    },
    /// Time has passed.
    Tick,
}

/// What the embedder is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write the row, if it is still what was read; otherwise this machine is over.
    Persist {
        /// The new step.
        step: Step,
        /// Why it is rolled back, if it is.
        reason: Option<String>,
    },
    /// Do what this step asks for, and say what came of it.
    Act(Step),
    /// It has ended: the row is to say that nothing is under way.
    Finish(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for an action.
    Acting,
    /// Waits for the row: whatever else is said belongs to what is behind it.
    Writing,
    /// Tries again then.
    Resting {
        until: Instant,
    },
    Ended,
}

/// One switchover, driven by one coordinator.
#[derive(Clone, Debug)]
pub struct Switchover {
    step: Step,
    phase: Phase,
    /// When it is rolled back unless it is decided.
    deadline: Instant,
    retry_after: Duration,
    mutation: Option<Mutation>,
}

impl Switchover {
    /// Goes on from the step that the row says.
    pub fn start(
        now: Instant,
        step: Step,
        within: Duration,
        mutation: Option<Mutation>,
        out: &mut Vec<Output>,
    ) -> Self {
        let deadline = now + within;
        let mut machine =
            Self { step, phase: Phase::Acting, deadline, retry_after: RETRY_AFTER, mutation };
        machine.act(out);
        machine
    }

    /// Takes an input; says what is to be done.
    pub fn step(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        match (input, self.phase) {
            (Input::Persisted(step), Phase::Writing) => {
                self.step = step;
                self.retry_after = RETRY_AFTER;
                self.act(out);
            }
            (Input::Tick, Phase::Resting { until }) if until <= now => self.act(out),
            // An answer that was given up may come late: it is one to its own step only.
            (Input::Done(step), Phase::Acting | Phase::Resting { .. }) if self.waits_for(step) => {
                self.on_done(out);
            }
            (Input::Failed { step, reason, is_final }, Phase::Acting) if self.waits_for(step) => {
                self.on_failed(now, reason, is_final, out);
            }
            _ => {}
        }
    }

    /// When [`Input::Tick`] is needed.
    pub fn wake_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Resting { until } => Some(until),
            Phase::Acting | Phase::Writing | Phase::Ended => None,
        }
    }

    fn act(&mut self, out: &mut Vec<Output>) {
        self.phase = Phase::Acting;
        let skips = self.step == Step::Fencing && Mutation::SkipFence.active(self.mutation);
        if skips {
            return self.on_done(out);
        }
        out.push(Output::Act(self.step));
    }

    fn waits_for(&self, step: Step) -> bool {
        step == self.step || Mutation::TakeAnyAnswer.active(self.mutation)
    }

    fn on_done(&mut self, out: &mut Vec<Output>) {
        match self.step.next(self.mutation) {
            Some(step) => {
                self.phase = Phase::Writing;
                out.push(Output::Persist { step, reason: None });
            }
            None => {
                self.phase = Phase::Ended;
                out.push(Output::Finish(match self.step {
                    Step::RollingBack => End::RolledBack,
                    _ => End::Switched,
                }));
            }
        }
    }

    fn on_failed(&mut self, now: Instant, reason: String, is_final: bool, out: &mut Vec<Output>) {
        let is_over = is_final || now >= self.deadline;
        let may_roll_back = self.step.can_roll_back()
            || Mutation::RollBackDecided.active(self.mutation) && self.step != Step::RollingBack;
        if is_over && may_roll_back {
            self.phase = Phase::Writing;
            let reason = format!("{}: {reason}", self.step.name());
            out.push(Output::Persist { step: Step::RollingBack, reason: Some(reason) });
            return;
        }
        self.phase = Phase::Resting { until: now + self.retry_after };
        // A drain is looked at often: each look is a pause for clients.
        if self.step != Step::Draining {
            self.retry_after = (self.retry_after * 2).min(RETRY_AFTER_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    fn failed(step: Step, is_final: bool) -> Input {
        Input::Failed { step, reason: "why".to_owned(), is_final }
    }

    #[test]
    fn steps_follow_each_other_and_each_is_a_row_first() {
        let mut out = Vec::new();
        let mut machine = Switchover::start(at(0), Step::Fencing, WITHIN, None, &mut out);
        for (step, next) in Step::ALL.into_iter().zip(&Step::ALL[1..5]) {
            assert_eq!(out, [Output::Act(step)]);
            out.clear();
            machine.step(at(1), Input::Done(step), &mut out);
            // Said twice, and too late: it changes nothing.
            machine.step(at(1), Input::Done(step), &mut out);
            machine.step(at(1), failed(step, true), &mut out);
            assert_eq!(out, [Output::Persist { step: *next, reason: None }]);
            out.clear();
            machine.step(at(1), Input::Persisted(*next), &mut out);
        }
        out.clear();
        machine.step(at(1), Input::Done(Step::Reversing), &mut out);
        assert_eq!(out, [Output::Finish(End::Switched)]);
    }

    #[test]
    fn what_fails_is_tried_again_until_time_is_up_and_then_rolled_back() {
        for step in [Step::Fencing, Step::Draining, Step::CarryingOver] {
            let mut out = Vec::new();
            let mut machine = Switchover::start(at(0), step, WITHIN, None, &mut out);
            out.clear();
            machine.step(at(1), failed(step, false), &mut out);
            assert_eq!(out, []);
            machine.step(machine.wake_at().unwrap(), Input::Tick, &mut out);
            assert_eq!(out, [Output::Act(step)]);
            for (now, is_final) in [(at(1), true), (at(11), false)] {
                out.clear();
                machine.clone().step(now, failed(step, is_final), &mut out);
                let reason = Some(format!("{}: why", step.name()));
                assert_eq!(out, [Output::Persist { step: Step::RollingBack, reason }]);
            }
        }
    }

    /// The source's answer to a fence that was asked for twice comes when the drain is under way.
    #[test]
    fn a_late_answer_is_not_one_to_the_next_step() {
        let mut out = Vec::new();
        let mut machine = Switchover::start(at(0), Step::Fencing, WITHIN, None, &mut out);
        machine.step(at(1), failed(Step::Fencing, false), &mut out);
        machine.step(at(1), Input::Done(Step::Fencing), &mut out);
        machine.step(at(1), Input::Persisted(Step::Draining), &mut out);
        out.clear();
        machine.step(at(1), Input::Done(Step::Fencing), &mut out);
        machine.step(at(1), failed(Step::Fencing, true), &mut out);
        assert_eq!(out, []);
        machine.step(at(1), Input::Done(Step::Draining), &mut out);
        assert_eq!(out, [Output::Persist { step: Step::CarryingOver, reason: None }]);
    }

    #[test]
    fn what_is_decided_is_never_rolled_back() {
        for step in [Step::Promoting, Step::Reversing, Step::RollingBack] {
            let mut out = Vec::new();
            let mut machine = Switchover::start(at(0), step, WITHIN, None, &mut out);
            out.clear();
            machine.step(at(99), failed(step, true), &mut out);
            assert_eq!(out, []);
            machine.step(machine.wake_at().unwrap(), Input::Tick, &mut out);
            assert_eq!(out, [Output::Act(step)]);
        }
    }
}
