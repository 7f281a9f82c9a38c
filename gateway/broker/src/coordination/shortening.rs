//! How long a log is left alone that has refused to be made shorter: each attempt makes it longer (rule G8). Pure.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::retry::Backoff;
use meridian_storage::mutation::{Mutation, Mutations};

/// When a log may be looked at again.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    until: Option<Instant>,
    backoff: Backoff,
    mutations: Mutations,
}

impl Rest {
    /// None yet. After a refusal it lasts for `pause_min`, and for twice as long after each one that follows, up to
    /// `pause_max`.
    pub fn new(pause_min: Duration, pause_max: Duration, mutations: Mutations) -> Self {
        Self { until: None, backoff: Backoff::new(pause_min, pause_max), mutations }
    }

    /// Whether the log is to be left alone.
    pub fn lasts(&self, now: Instant) -> bool {
        let never = Mutation::NeverRests.active(self.mutations);
        self.until.is_some_and(|until| now < until) && !never
    }

    /// The log has refused; gives how long it is left alone.
    pub fn on_refused(&mut self, now: Instant) -> Duration {
        let pause = self.backoff.pause();
        self.until = Some(now + pause);
        pause
    }

    /// The log was made shorter.
    pub fn on_done(&mut self) {
        self.until = None;
        self.backoff.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_with_each_refusal_and_end_with_success() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(3));
        let mut rest = Rest::new(first, longest, Mutations::NONE);
        let now = Instant::from_micros(1_000_000);
        assert!(!rest.lasts(now));
        let pauses: Vec<Duration> = (0..3).map(|_| rest.on_refused(now)).collect();
        assert_eq!(pauses, [first, first * 2, longest]);
        assert!(rest.lasts(now + first * 2) && !rest.lasts(now + longest));
        rest.on_done();
        assert!(!rest.lasts(now));
        assert_eq!(rest.on_refused(now), first);
    }
}
