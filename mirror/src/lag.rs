//! How far a mirror is behind its source: in records, bytes and time.

use std::collections::VecDeque;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::Offset;

/// Sightings of the source's end that are remembered; older ones merge, which only overstates lag.
const SIGHTINGS_MAX: usize = 64;

/// How far a mirror is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Offsets the source has committed and the mirror has not.
    pub records: u64,
    /// Their size, as the records mirrored so far let expect.
    pub bytes: u64,
    /// How long the oldest of them has been known to be missing.
    pub time: Duration,
}

/// How many offsets a source took lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// So many.
    pub records: u64,
    /// Within this time.
    pub within: Duration,
}

/// Time over which the pace is taken.
const PACE_WINDOW: Duration = Duration::from_secs(10);
/// Shortest time that says anything of it.
const PACE_WINDOW_MIN: Duration = Duration::from_secs(1);

/// Measures the lag of one partition.
#[derive(Clone, Debug, Default)]
pub(crate) struct LagMeter {
    source_end: Option<Offset>,
    /// When it was asked for the last time: what the source took since may not be in its answer.
    asked_at: Option<Instant>,
    /// Ends of the source that are not mirrored yet, and when each was first seen.
    sightings: VecDeque<(Offset, Instant)>,
    records_count: u64,
    size_bytes: u64,
    /// Where the source ended when the window of its pace began.
    window: Option<(Offset, Instant)>,
    pace: Option<Pace>,
}

impl LagMeter {
    /// The source, asked at `asked_at`, was seen to end at `source_end`.
    pub(crate) fn on_source(
        &mut self,
        now: Instant,
        asked_at: Instant,
        end: Offset,
        source_end: Offset,
    ) {
        self.source_end = Some(source_end);
        self.asked_at = self.asked_at.max(Some(asked_at));
        self.on_pace(now, source_end);
        // What the source has lost since is not missing any more.
        self.sightings.iter_mut().for_each(|(offset, _)| *offset = (*offset).min(source_end));
        let last = self.sightings.back().map_or(end, |(offset, _)| *offset);
        if source_end > last.max(end) {
            if self.sightings.len() == SIGHTINGS_MAX {
                // The last sighting now stands for this end too, with its earlier time.
                if let Some(last) = self.sightings.back_mut() {
                    last.0 = source_end;
                }
            } else {
                self.sightings.push_back((source_end, now));
            }
        }
        self.on_end(end);
    }

    fn on_pace(&mut self, now: Instant, source_end: Offset) {
        let (from, since) = *self.window.get_or_insert((source_end, now));
        let within = now.since(since);
        if within < PACE_WINDOW_MIN {
            return;
        }
        let records = u64::try_from(source_end.get().saturating_sub(from.get())).unwrap_or(0);
        if self.pace.is_none() || within >= PACE_WINDOW {
            self.pace = Some(Pace { records, within });
        }
        if within >= PACE_WINDOW {
            self.window = Some((source_end, now));
        }
    }

    /// How fast the source grew when it was last heard of; `None` if it was not heard for long enough.
    pub(crate) fn pace(&self) -> Option<Pace> {
        self.pace
    }

    /// The mirror now ends at `end`.
    pub(crate) fn on_end(&mut self, end: Offset) {
        while self.sightings.front().is_some_and(|(offset, _)| *offset <= end) {
            self.sightings.pop_front();
        }
    }

    /// Records were mirrored.
    pub(crate) fn on_mirrored(&mut self, records_count: u64, size_bytes: u64) {
        self.records_count += records_count;
        self.size_bytes += size_bytes;
    }

    /// Where the source was last seen to end.
    pub(crate) fn source_end(&self) -> Option<Offset> {
        self.source_end
    }

    /// How long ago that was, at most: an answer is as old as its question may be.
    pub(crate) fn source_seen_ago(&self, now: Instant) -> Option<Duration> {
        self.asked_at.map(|asked_at| now.since(asked_at))
    }

    /// Bytes mirrored since the meter was made.
    pub(crate) fn mirrored_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The lag of a mirror that ends at `end`.
    pub(crate) fn lag(&self, now: Instant, end: Offset) -> Lag {
        let source_end = self.source_end.unwrap_or(end);
        let records = u64::try_from(source_end.get().saturating_sub(end.get())).unwrap_or(0);
        let bytes = match self.records_count {
            0 => 0,
            count => {
                let bytes = u128::from(records) * u128::from(self.size_bytes) / u128::from(count);
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        };
        let time = self.sightings.front().map_or(Duration::ZERO, |(_, seen)| now.since(*seen));
        Lag { records, bytes, time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn time_counts_from_the_first_sight_of_what_is_missing() {
        let mut meter = LagMeter::default();
        let end = Offset::new;
        meter.on_source(at(1), at(1), end(0), end(10));
        meter.on_source(at(2), at(2), end(0), end(20));
        meter.on_mirrored(10, 1000);
        assert_eq!(
            meter.lag(at(5), end(0)),
            Lag { records: 20, bytes: 2000, time: Duration::from_secs(4) }
        );
        meter.on_end(end(10));
        assert_eq!(meter.lag(at(5), end(10)).time, Duration::from_secs(3));
        meter.on_end(end(20));
        assert_eq!(meter.lag(at(5), end(20)), Lag::default());
    }

    #[test]
    fn the_pace_is_that_of_the_last_whole_window() {
        let mut meter = LagMeter::default();
        let mut hear = |second: u64, end: i64| {
            meter.on_source(at(second), at(second), Offset::ZERO, Offset::new(end));
            meter.pace().map(|pace| (pace.records, pace.within.as_secs()))
        };
        assert_eq!(hear(0, 1000), None, "all that was there before is no pace");
        assert_eq!(hear(2, 1020), Some((20, 2)));
        assert_eq!(hear(10, 1100), Some((100, 10)));
        assert_eq!(hear(15, 1100), Some((100, 10)));
        assert_eq!(hear(20, 1100), Some((0, 10)));
    }

    #[test]
    fn what_a_source_said_is_as_old_as_the_question() {
        let mut meter = LagMeter::default();
        assert_eq!(meter.source_seen_ago(at(9)), None);
        meter.on_source(at(3), at(1), Offset::ZERO, Offset::ZERO);
        assert_eq!(meter.source_seen_ago(at(4)), Some(Duration::from_secs(3)));
        // A question that was asked earlier is answered later.
        meter.on_source(at(5), at(0), Offset::ZERO, Offset::ZERO);
        assert_eq!(meter.source_seen_ago(at(6)), Some(Duration::from_secs(5)));
    }

    #[test]
    fn many_sightings_take_bounded_memory_and_never_understate() {
        let mut meter = LagMeter::default();
        for second in 0..10_000 {
            let end = Offset::new(second as i64 + 1);
            meter.on_source(at(second), at(second), Offset::ZERO, end);
        }
        assert_eq!(meter.sightings.len(), SIGHTINGS_MAX);
        let lag = meter.lag(at(10_000), Offset::new(9_999));
        assert!(lag.time >= Duration::from_secs(1));
    }
}
