//! How many fetches are under way over one connection, and when the next is sent.
//!
//! On a long way one at a time would leave what is new waiting at the source for up to a round trip, and a packet that
//! is lost with nothing after it is missed late. So the source is to have a fetch at hand whenever something is new:
//!
//! ```text
//!   one at a time:  ask ------> <------ answer, ask ------> <------ answer      new records wait for the next fetch
//!   a run:          ask -> ask -> ask -> ...  <- answer <- answer <- answer     there is one already
//! ```
//!
//! As many as are used up in two round trips: one for the way, one for a packet that is lost and sent again.

use std::time::Duration;

use meridian_base::env::Instant;

/// Shortest time between two fetches: a way that is shorter than this needs no more than one at a time.
const PACE_MIN: Duration = Duration::from_millis(12);
/// Fetches under way.
const COUNT_MAX: u32 = 24;
/// Fetches under way for large answers: while one comes the next is asked for.
const BULK_COUNT: u32 = 2;
/// Partitions that all fetches under way name together.
const NAMED_COUNT_MAX: usize = 512;
/// What each of many fetches asks for.
const SIZE_BYTES_SMALL: u64 = 64 << 10;
/// About how long a source holds a fetch for which there is nothing.
const QUIET: Duration = Duration::from_millis(250);

/// The fetches over one connection.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The shortest time in which anything was answered.
    round_trip: Duration,
    /// Time between two answers with records, lately.
    interval: Duration,
    asked_at: Instant,
    answered_at: Instant,
    /// Whether the source goes on where an answer ends.
    can_run: bool,
    /// Whether there is more than goes into small answers.
    is_bulk: bool,
}

/// An answer to a fetch.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// When it was asked for.
    pub asked_at: Instant,
    /// How much has come.
    pub size_bytes: u64,
    /// Whether the source can go on where it ends.
    pub can_run: bool,
}

impl Pipeline {
    /// Of a connection whose first request was answered in this time.
    pub fn new(round_trip: Duration) -> Self {
        Self {
            round_trip,
            interval: QUIET,
            asked_at: Instant::ZERO,
            answered_at: Instant::ZERO,
            can_run: false,
            is_bulk: false,
        }
    }

    /// How much the next fetch is to ask for.
    pub fn size_bytes(&self, portion_size_bytes: u64) -> u64 {
        let is_small = self.can_run && !self.is_bulk;
        if is_small { portion_size_bytes.min(SIZE_BYTES_SMALL) } else { portion_size_bytes }
    }

    /// When the next fetch may be sent, while there are `count` under way. It would name so many partitions.
    pub fn next_at(&self, count: usize, named_count: usize) -> Option<Instant> {
        if count == 0 {
            return Some(Instant::ZERO);
        }
        let named_max = NAMED_COUNT_MAX / named_count.max(1);
        let count_max = (self.count_max() as usize).min(named_max);
        (count < count_max).then(|| self.asked_at + self.pace())
    }

    fn pace(&self) -> Duration {
        PACE_MIN.max(2 * self.round_trip / COUNT_MAX)
    }

    fn count_max(&self) -> u32 {
        if !self.can_run || self.round_trip < PACE_MIN {
            return 1;
        }
        if self.is_bulk {
            return BULK_COUNT;
        }
        let every = self.interval.max(self.pace());
        let in_two_round_trips = 2 * self.round_trip.as_micros() / every.as_micros().max(1);
        1 + u32::try_from(in_two_round_trips).unwrap_or(COUNT_MAX).min(COUNT_MAX - 1)
    }

    /// A fetch was sent.
    pub fn on_asked(&mut self, now: Instant) {
        self.asked_at = now;
    }

    /// An answer has come. Gives how long it took, without the way of its fetch.
    pub fn on_answer(&mut self, now: Instant, answer: Answered) -> Duration {
        let before = self.answered_at;
        let since_asked = now.since(answer.asked_at);
        self.round_trip = self.round_trip.min(since_asked);
        self.can_run = answer.can_run;
        self.is_bulk = answer.size_bytes > SIZE_BYTES_SMALL / 2;
        self.answered_at = now;
        if answer.size_bytes == 0 {
            self.interval = QUIET;
        } else {
            let gap = now.since(before).min(QUIET);
            let weight = if gap < self.interval { 2 } else { 8 };
            self.interval = (self.interval * (weight - 1) + gap) / weight;
        }
        // It was begun when the one before it had ended, or when its fetch had come to the source.
        since_asked.saturating_sub(self.round_trip).min(now.since(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(100);

    fn at(millis: u64) -> Instant {
        Instant::from_micros(1_000_000 + millis * 1000)
    }

    fn answer(asked_at: Instant, size_bytes: u64) -> Answered {
        Answered { asked_at, size_bytes, can_run: true }
    }

    /// One that was given an answer every so often.
    fn steady(round_trip: Duration, every_ms: u64) -> Pipeline {
        let mut pipeline = Pipeline::new(round_trip);
        for count in 0..50 {
            let now = at(count * every_ms);
            pipeline.on_answer(now, answer(now - round_trip, 100));
        }
        pipeline
    }

    /// How many may be under way.
    fn count(pipeline: &Pipeline, named_count: usize) -> usize {
        (0..).find(|count| pipeline.next_at(*count, named_count).is_none()).unwrap_or(0)
    }

    #[test]
    fn as_many_are_under_way_as_are_used_up_in_two_round_trips() {
        let counts = [1, 12, 50, 250].map(|every_ms| count(&steady(LONG, every_ms), 1));
        assert_eq!(counts, [17, 17, 5, 1]);
        assert_eq!(count(&steady(3 * LONG, 1), 1), COUNT_MAX as usize);
    }

    #[test]
    fn one_is_under_way_where_more_would_be_of_no_use() {
        assert_eq!(count(&steady(Duration::from_millis(1), 1), 1), 1, "the way is short");
        assert_eq!(count(&steady(LONG, 12), NAMED_COUNT_MAX + 1), 1, "they would be large");
        assert_eq!(count(&steady(LONG, 12), NAMED_COUNT_MAX / 3), 3);
        let mut unable = steady(LONG, 12);
        let last = Answered { can_run: false, ..answer(at(600), 100) };
        unable.on_answer(at(700), last);
        assert_eq!(count(&unable, 1), 1, "the source does not go on");
        let mut quiet = steady(LONG, 12);
        quiet.on_answer(at(900), answer(at(600), 0));
        assert_eq!(count(&quiet, 1), 1, "nothing is new");
    }

    #[test]
    fn fetches_are_many_and_small_or_few_and_large() {
        let mut pipeline = steady(LONG, 12);
        pipeline.on_asked(at(1000));
        assert_eq!(pipeline.next_at(0, 1), Some(Instant::ZERO));
        assert_eq!(pipeline.next_at(1, 1), Some(at(1012)));
        assert_eq!(pipeline.size_bytes(1 << 20), SIZE_BYTES_SMALL);
        pipeline.on_answer(at(1100), answer(at(1000), SIZE_BYTES_SMALL));
        assert_eq!((count(&pipeline, 1), pipeline.next_at(1, 1)), (2, Some(at(1012))));
        assert_eq!(pipeline.size_bytes(1 << 20), 1 << 20);
    }

    #[test]
    fn the_way_of_a_fetch_is_no_time_of_its_answer() {
        let long = Duration::from_secs(1);
        let mut pipeline = Pipeline::new(long);
        let took = pipeline.on_answer(at(1300), answer(at(0), 1 << 20));
        assert_eq!(took, Duration::from_millis(300));
        // The next was under way already.
        let took = pipeline.on_answer(at(1800), answer(at(100), 1 << 20));
        assert_eq!(took, Duration::from_millis(500));
    }
}
