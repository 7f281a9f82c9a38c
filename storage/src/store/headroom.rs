//! How fast a disk asks its peers for copies: at a share of what the way here gives, so that what is left serves those
//! who wait.
//!
//! [`Window`](super::window) asks for as much as comes without a queue, which is all that the link, the disk or the
//! processor gives that is short. Then whoever else needs the same finds it taken most of the time. So every now and
//! then the disk asks for all that comes, for a moment, to see how much that is, and for a share of it in between.

use std::time::Duration;

use meridian_base::env::Instant;

/// What comes is counted over so long: over less, it tells of chance.
const COUNTED_FOR: Duration = Duration::from_millis(125);
/// And over so many answers at the least.
const COUNTED_MIN: u32 = 16;
/// From one measurement to the next at first, when a node has just started and its peers are busy with that, too;
const MEASURED_AFTER_MIN: Duration = Duration::from_secs(4);
/// twice as long each time, up to this.
const MEASURED_AFTER_MAX: Duration = Duration::from_secs(16);

/// What the way gives, and when that is to be seen next.
#[derive(Debug)]
pub(super) struct Headroom {
    /// 100 leaves nothing.
    share_percent_max: u8,
    /// While all is asked for.
    measuring: Option<Measuring>,
    /// What came in a second when all was asked for.
    full_bytes_per_second: Option<u64>,
    measured_at: Instant,
    /// How long that counts.
    counts_for: Duration,
}

/// All is asked for until no more comes than before: what is on its way has to become enough first.
#[derive(Debug)]
struct Measuring {
    since: Instant,
    came_bytes: u64,
    came_count: u32,
    /// The most that came in a second so far.
    most_bytes_per_second: u64,
}

impl Measuring {
    fn new(now: Instant) -> Self {
        Self { since: now, came_bytes: 0, came_count: 0, most_bytes_per_second: 0 }
    }

    /// An answer has come; what the way gives, once that is known.
    fn on_answer(&mut self, now: Instant, size_bytes: u64) -> Option<u64> {
        self.came_bytes += size_bytes;
        self.came_count += 1;
        let took = now.since(self.since);
        if took < COUNTED_FOR || self.came_count < COUNTED_MIN {
            return None;
        }
        let bytes_per_second = self.came_bytes.saturating_mul(1_000_000) / took.as_micros() as u64;
        let before = self.most_bytes_per_second;
        let most_bytes_per_second = before.max(bytes_per_second);
        // A tenth more may be chance.
        if before > 0 && bytes_per_second <= before + before / 10 {
            return Some(most_bytes_per_second);
        }
        *self = Self { most_bytes_per_second, ..Self::new(now) };
        None
    }
}

impl Headroom {
    pub(super) fn new(share_percent_max: u8) -> Self {
        let (measured_at, counts_for) = (Instant::default(), Duration::ZERO);
        Self {
            share_percent_max,
            measuring: None,
            full_bytes_per_second: None,
            measured_at,
            counts_for,
        }
    }

    /// Most bytes to be asked for in a second now; none while what the way gives is not known.
    pub(super) fn bytes_per_second_max(&self) -> Option<u64> {
        if self.share_percent_max >= 100 || self.measuring.is_some() {
            return None;
        }
        let share = self.full_bytes_per_second? * u64::from(self.share_percent_max) / 100;
        Some(share.max(1))
    }

    /// An answer has come; `is_full` if the way is known to give no more than is asked for, were there no bound.
    pub(super) fn on_answer(&mut self, now: Instant, size_bytes: u64, is_full: bool) {
        let Some(measuring) = &mut self.measuring else {
            let is_due = now.since(self.measured_at) >= self.counts_for;
            self.measuring = (is_full && is_due).then(|| Measuring::new(now));
            return;
        };
        if !is_full {
            *measuring = Measuring::new(now);
        } else if let Some(bytes_per_second) = measuring.on_answer(now, size_bytes) {
            self.full_bytes_per_second = Some(bytes_per_second);
            self.measuring = None;
            self.measured_at = now;
            self.counts_for = (self.counts_for * 2).clamp(MEASURED_AFTER_MIN, MEASURED_AFTER_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;
    use crate::store::allowance::Allowance;

    /// Which share is taken of a way that gives so much, from then to then.
    fn share_taken(
        headroom: &mut Headroom,
        ms: Range<u64>,
        full_bytes_per_ms: u64,
        blob_size_bytes: u64,
    ) -> f64 {
        let (mut now, end) = (Instant::from_micros(ms.start * 1000), ms.end * 1000);
        let mut allowance = Allowance::new(now);
        let takes = Duration::from_micros(blob_size_bytes * 1000 / full_bytes_per_ms);
        let mut came_bytes = 0;
        while now.as_micros() < end {
            let rate = headroom.bytes_per_second_max();
            allowance.earn_if_bound(now, rate);
            if let Some(rate) = rate
                && !allowance.is_left()
            {
                now = allowance.left_at(now, rate);
                continue;
            }
            allowance.spend(blob_size_bytes);
            now = now + takes;
            came_bytes += blob_size_bytes;
            headroom.on_answer(now, blob_size_bytes, true);
        }
        came_bytes as f64 / (full_bytes_per_ms * (ms.end - ms.start)) as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]
        #[test]
        fn a_quarter_of_the_way_is_left(
            full_bytes_per_ms in 4_000..400_000_u64,
            blob_size_bytes in 1_000..1_000_000_u64,
        ) {
            let mut headroom = Headroom::new(75);
            let share = share_taken(&mut headroom, 0..60_000, full_bytes_per_ms, blob_size_bytes);
            // The longest blobs take a quarter of a second on the slowest way: a measurement sees few of them.
            prop_assert!((0.70..0.87).contains(&share), "{share}");
        }
    }

    #[test]
    fn what_the_way_gives_is_seen_again_when_that_changes() {
        let mut headroom = Headroom::new(75);
        let mut share_of = |ms, full| share_taken(&mut headroom, ms, full, 64_000);
        // Nodes that have just started are slow.
        share_of(0..1_000, 20_000);
        share_of(1_000..5_000, 100_000);
        let soon = share_of(5_000..8_000, 100_000);
        assert!(soon > 0.7, "{soon}");
        share_of(8_000..60_000, 100_000);
        share_of(60_000..80_000, 50_000);
        let after = share_of(80_000..100_000, 50_000);
        assert!((0.7..0.8).contains(&after), "{after}");
    }

    /// What is on its way grows while it is measured.
    #[test]
    fn all_is_asked_for_until_no_more_comes() {
        let mut headroom = Headroom::new(75);
        let at = |ms: u64| Instant::from_micros(ms * 1000);
        let known_at = (0..10_000).find(|ms| {
            headroom.on_answer(at(*ms), 1_000 * (ms / 100 + 1).min(8), true);
            headroom.bytes_per_second_max().is_some()
        });
        assert!(known_at.is_some_and(|ms| ms < 1_250), "{known_at:?}");
        let taken = headroom.bytes_per_second_max();
        assert!(taken.is_some_and(|it| (5_800_000..6_100_000).contains(&it)), "{taken:?}");
    }

    #[test]
    fn a_way_that_is_not_full_tells_nothing() {
        let mut headroom = Headroom::new(75);
        let at = |ms: u64| Instant::from_micros(ms * 1000);
        (0..1_000).for_each(|ms| headroom.on_answer(at(ms), 1_000, false));
        assert_eq!(headroom.bytes_per_second_max(), None);
        (1_000..1_200).for_each(|ms| headroom.on_answer(at(ms), 1_000, true));
        // Little is asked for on purpose: none of that counts.
        (1_200..1_400).for_each(|ms| headroom.on_answer(at(ms), 1, false));
        (1_400..1_650).for_each(|ms| headroom.on_answer(at(ms), 1_000, true));
        assert_eq!(headroom.bytes_per_second_max(), Some(750_000));
        assert_eq!(Headroom { share_percent_max: 100, ..headroom }.bytes_per_second_max(), None);
    }
}
