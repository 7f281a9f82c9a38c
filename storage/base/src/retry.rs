//! Two questions every error of an operation answers, so that callers and histories are honest; and how long what was
//! refused is left alone.

use std::time::Duration;

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The request will fail again.
    Never,
    /// The request may work later at this node.
    Later,
    /// Another node is the right one.
    Elsewhere,
}

/// What a caller may conclude from an error.
pub trait Outcome {
    /// Whether trying again can help.
    fn retry(&self) -> Retry;

    /// Whether the operation may have taken effect nonetheless. An operation that may have is
    /// *unknown* to its caller, never *failed*.
    fn may_have_happened(&self) -> bool;
}

/// A pause before what was refused is tried again: twice as long after each refusal, up to a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pause_min: Duration,
    pause_max: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `pause_min`, doubled up to `pause_max`.
    pub fn new(pause_min: Duration, pause_max: Duration) -> Self {
        Self { pause_min, pause_max, next: pause_min }
    }

    /// How long to wait after one more refusal.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.pause_max);
        pause
    }

    /// It was not refused.
    pub fn reset(&mut self) {
        self.next = self.pause_min;
    }
}
