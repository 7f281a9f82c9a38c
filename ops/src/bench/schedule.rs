//! When records are due.

use std::time::{Duration, Instant};

/// Records due at a fixed rate, whatever happens to those before.
#[derive(Debug)]
pub(super) struct Schedule {
    start: Instant,
    interval: Duration,
    end: Option<Instant>,
    taken_count: u64,
}

impl Schedule {
    /// `rate` records a second over `lanes_count` lanes that take turns; this is lane `index`.
    pub(super) fn new(
        start: Instant,
        end: Option<Instant>,
        rate: u64,
        lanes_count: u32,
        index: u32,
    ) -> Self {
        let turn = Duration::from_secs(1).as_nanos() / u128::from(rate.max(1));
        let turn = Duration::from_nanos(u64::try_from(turn).unwrap_or(u64::MAX).max(1));
        let interval = turn.saturating_mul(lanes_count.max(1));
        Self { start: start + turn.saturating_mul(index), interval, end, taken_count: 0 }
    }

    /// When the next record is due; `None` after the end.
    pub(super) fn next(&self) -> Option<Instant> {
        let due = self.due(self.taken_count);
        (self.end.is_none_or(|end| due < end)).then_some(due)
    }

    /// How many records are due at `now`.
    pub(super) fn due_count(&self, now: Instant) -> u64 {
        let until = self.end.map_or(now, |end| now.min(end));
        let Some(elapsed) = until.checked_duration_since(self.start) else { return 0 };
        let all = elapsed.as_nanos() / self.interval.as_nanos().max(1) + 1;
        u64::try_from(all).unwrap_or(u64::MAX).saturating_sub(self.taken_count)
    }

    /// Takes the next `count` records; when each was due.
    pub(super) fn take(&mut self, count: u64) -> impl Iterator<Item = Instant> + use<> {
        let first = self.taken_count;
        self.taken_count += count;
        let (start, interval) = (self.start, self.interval);
        (first..first + count).map(move |index| start + nth(interval, index))
    }

    fn due(&self, index: u64) -> Instant {
        self.start + nth(self.interval, index)
    }
}

fn nth(interval: Duration, index: u64) -> Duration {
    let nanos = interval.as_nanos().saturating_mul(u128::from(index));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::clock;

    #[test]
    fn lanes_take_turns_and_late_records_keep_their_time() {
        let start = clock::now();
        let mut first = Schedule::new(start, None, 1000, 2, 0);
        let second = Schedule::new(start, None, 1000, 2, 1);
        let ms = |count| start + Duration::from_millis(count);
        assert_eq!((first.next(), second.next()), (Some(start), Some(ms(1))));
        assert_eq!((first.due_count(start), second.due_count(start)), (1, 0));
        assert_eq!(first.due_count(ms(5)), 3);
        assert_eq!(first.take(2).collect::<Vec<_>>(), [start, ms(2)]);
        assert_eq!(first.due_count(ms(5)), 1);
        assert_eq!(first.next(), Some(ms(4)));
    }

    #[test]
    fn nothing_is_due_after_the_end() {
        let start = clock::now();
        let end = start + Duration::from_millis(3);
        let mut schedule = Schedule::new(start, Some(end), 1000, 1, 0);
        let late = start + Duration::from_secs(9);
        let count = schedule.due_count(late);
        assert_eq!(count, 4);
        assert!(schedule.take(count).all(|due| due <= end));
        assert_eq!((schedule.next(), schedule.due_count(late)), (None, 0));
    }
}
