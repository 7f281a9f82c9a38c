//! What a run over two clusters came to, as lines.

use std::fmt::Write as _;
use std::time::Duration;

use super::alarms::Alarms;
use super::broken::Broken;
use super::troubles::Troubled;

/// A failover.
pub(super) struct Failover {
    pub(super) from: &'static str,
    /// Whether the link was capped below the load before.
    pub(super) is_behind: bool,
    /// Whether the clusters are far from each other: what is on its way cannot be known.
    pub(super) is_far: bool,
    /// Records that the mirror knew to be missing when its source was gone.
    pub(super) forecast_records: u64,
    /// What it guessed that the source took after it was last heard of.
    pub(super) forecast_unseen_records: Option<u64>,
    /// Records that the source had and the promoted mirror had not.
    pub(super) cut_off_records: usize,
    /// Batches that were cut off, of the partition that had most.
    pub(super) cut_off_batches_max: usize,
    /// Records that were acknowledged and that no producer sent again.
    pub(super) lost_records: usize,
    pub(super) judged_records: usize,
    /// From the kill until every producer writes again.
    pub(super) down: Duration,
    /// What the way back took.
    pub(super) rejoined: Duration,
}

/// A switchover.
pub(super) struct Switchover {
    pub(super) from: &'static str,
    pub(super) took: Duration,
    /// Of each producer: the longest time between two acknowledgements.
    pub(super) pauses: Vec<Duration>,
    pub(super) judged_records: usize,
}

/// Everything.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) failovers: Vec<Failover>,
    pub(super) switchovers: Vec<Switchover>,
    pub(super) lags: Vec<Duration>,
    pub(super) troubles: Vec<Troubled>,
    pub(super) broken: Vec<Broken>,
    pub(super) alarms: Option<Alarms>,
    pub(super) findings: Vec<String>,
}

impl Failover {
    /// What was forecast: the least and the most. A mirror whose link is held back looks now and then where
    /// its source ends, and one that is far hears of it when it is no longer so: such a mirror says what it
    /// saw, and what may have come since.
    fn range(&self) -> (u64, u64) {
        let has_unseen = self.is_behind || self.is_far;
        let unseen = if has_unseen { self.forecast_unseen_records } else { None };
        (self.forecast_records, self.forecast_records.saturating_add(unseen.unwrap_or(0)))
    }

    /// By how many records the forecast was wrong.
    pub(super) fn error_records(&self) -> u64 {
        let (least, most) = self.range();
        let cut_off = self.cut_off_records as u64;
        cut_off.abs_diff(cut_off.clamp(least, most))
    }

    /// What it left open.
    pub(super) fn open_records(&self) -> u64 {
        let (least, most) = self.range();
        most - least
    }

    pub(super) fn line(&self) -> String {
        let behind = if self.is_behind { ", link capped" } else { "" };
        let unseen = self.forecast_unseen_records.map_or("?".to_owned(), |it| it.to_string());
        format!(
            "failover from {}{behind}: forecast {} (unseen {unseen}), cut off {} records in at most {} \
             batches of a partition, {} lost so far, writing after {:.1?}, rejoined in {:.1?}; {} \
             records judged",
            self.from,
            self.forecast_records,
            self.cut_off_records,
            self.cut_off_batches_max,
            self.lost_records,
            self.down,
            self.rejoined,
            self.judged_records
        )
    }
}

impl Switchover {
    pub(super) fn line(&self) -> String {
        let longest = self.pauses.iter().max().copied().unwrap_or_default();
        format!(
            "switchover from {}: {:.1?}, longest pause of a producer {longest:.1?}; {} records judged",
            self.from, self.took, self.judged_records
        )
    }
}

impl Outcome {
    /// The last lines.
    pub(super) fn summary(&self) -> String {
        let mut text = String::new();
        let mut line = |it: String| {
            let _in_memory = writeln!(text, "{it}");
        };
        if !self.failovers.is_empty() {
            let downs: Vec<Duration> = self.failovers.iter().map(|it| it.down).collect();
            let of = |number: fn(&Failover) -> u64| -> Vec<u64> {
                self.failovers.iter().map(number).collect()
            };
            let (errors, open) = (of(Failover::error_records), of(Failover::open_records));
            line(format!(
                "{} failovers: forecast right in {}, else wrong by {} records at most; ranges of {} records \
                 (p50), {} at most; {} records cut off and kept; down p50 {:.1?}, p99 {:.1?}",
                self.failovers.len(),
                errors.iter().filter(|error| **error == 0).count(),
                quantile(&errors, 100),
                quantile(&open, 50),
                quantile(&open, 100),
                self.failovers.iter().map(|it| it.cut_off_records).sum::<usize>(),
                quantile(&downs, 50),
                quantile(&downs, 99)
            ));
        }
        let pauses: Vec<Duration> =
            self.switchovers.iter().flat_map(|it| it.pauses.iter().copied()).collect();
        if !pauses.is_empty() {
            line(format!(
                "{} switchovers: pause of a producer p50 {:.2?}, p99 {:.2?}",
                self.switchovers.len(),
                quantile(&pauses, 50),
                quantile(&pauses, 99)
            ));
        }
        if !self.lags.is_empty() {
            line(format!(
                "lag of {} records, from their acknowledgement to a consumer of the mirror: p50 {:.1?}, \
                 p99 {:.1?}",
                self.lags.len(),
                quantile(&self.lags, 50),
                quantile(&self.lags, 99)
            ));
        }
        if let Some(slowest) = self.troubles.iter().map(|it| it.caught_up).max() {
            line(format!(
                "{} troubles of the link: caught up in {slowest:.2?} at most",
                self.troubles.len()
            ));
        }
        if !self.broken.is_empty() {
            line(Broken::summary(&self.broken));
        }
        if let Some(alarms) = &self.alarms {
            line(alarms.line());
        }
        for finding in self.findings.iter().take(20) {
            line(format!("FOUND: {finding}"));
        }
        line(match self.findings.len() {
            0 => "0 lost of what was mirrored, 0 doubled".to_owned(),
            count => format!("{count} findings"),
        });
        text
    }
}

/// The value that `percent` of all do not exceed; 0 of none.
pub(super) fn quantile<T: Copy + Default + Ord>(values: &[T], percent: usize) -> T {
    let mut values = values.to_vec();
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100);
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_of_a_mirror_that_is_far_is_a_range() {
        let of = |is_far, cut_off_records| Failover {
            from: "west",
            is_behind: false,
            is_far,
            forecast_records: 100,
            forecast_unseen_records: Some(50),
            cut_off_records,
            cut_off_batches_max: 0,
            lost_records: 0,
            judged_records: 0,
            down: Duration::ZERO,
            rejoined: Duration::ZERO,
        };
        let wrong: Vec<u64> =
            [90, 100, 150, 170].map(|cut_off| of(true, cut_off).error_records()).into();
        assert_eq!(wrong, [10, 0, 0, 20]);
        assert_eq!((of(true, 0).open_records(), of(false, 0).open_records()), (50, 0));
        assert_eq!(of(false, 150).error_records(), 50);
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&times, 50), Duration::from_millis(50));
        assert_eq!(quantile(&times, 99), Duration::from_millis(99));
        assert_eq!(quantile(&times[..3], 99), Duration::from_millis(100));
        assert_eq!(quantile::<Duration>(&[], 99), Duration::ZERO);
    }
}
