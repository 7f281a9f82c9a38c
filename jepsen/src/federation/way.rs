//! The way between two clusters: long, and at times lossy, cut or flapping.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_jepsen_runner::chance::Chance;

/// How long it is at least, one way, and how much longer it may be.
const DELAY_MIN: Duration = Duration::from_millis(2);
const DELAY_RANGE: Duration = Duration::from_millis(60);
/// How long a cut lasts on average, and one in so many is a long one.
const CUT: Duration = Duration::from_secs(3);
const LONG_CUT: Duration = Duration::from_secs(25);
const LONG_CUT_ONE_IN: usize = 8;
/// How long it lasts between two flaps, on average.
const FLAP: Duration = Duration::from_millis(250);

/// The way.
#[derive(Debug)]
pub(super) struct Way {
    chance: Chance,
    delay: Duration,
    loss_per_mille: u32,
    late_max: Duration,
    is_cut: bool,
    changes_at: Option<Instant>,
    /// How often it changes after that.
    flaps: usize,
}

impl Way {
    pub(super) fn new(mut chance: Chance) -> Self {
        let delay = chance.between(DELAY_MIN, DELAY_MIN + DELAY_RANGE);
        let late_max = Duration::ZERO;
        Self {
            chance,
            delay,
            loss_per_mille: 0,
            late_max,
            is_cut: false,
            changes_at: None,
            flaps: 0,
        }
    }

    /// When a packet that is sent now arrives, if it does; perhaps twice.
    pub(super) fn send(&mut self) -> Vec<Duration> {
        if self.is_cut || self.chance.per_mille(self.loss_per_mille) {
            return Vec::new();
        }
        let count = 1 + usize::from(self.chance.per_mille(self.loss_per_mille / 4));
        (0..count)
            .map(|_| {
                let late = self.chance.between(Duration::ZERO, self.late_max);
                self.delay + self.chance.around(self.delay / 16) + late
            })
            .collect()
    }

    /// Worsens, or is itself again.
    pub(super) fn worsen(&mut self, now: Instant) {
        match self.chance.below(4) {
            0 => self.heal(),
            1 => {
                let is_long = self.chance.below(LONG_CUT_ONE_IN) == 0;
                let lasts = self.chance.around(if is_long { LONG_CUT } else { CUT });
                (self.is_cut, self.changes_at, self.flaps) = (true, Some(now + lasts), 0);
            }
            2 => {
                (self.changes_at, self.flaps) = (Some(now), 4 + self.chance.below(16));
            }
            _ => {
                self.loss_per_mille = 5 + self.chance.below(250) as u32;
                self.late_max = Duration::from_millis(self.chance.below(150) as u64);
            }
        }
    }

    /// Does what is due of a cut, or of flapping.
    pub(super) fn flap(&mut self, now: Instant) {
        if self.changes_at.is_none_or(|at| at > now) {
            return;
        }
        self.is_cut = self.flaps > 0 && !self.is_cut;
        self.changes_at = (self.flaps > 0 || self.is_cut).then(|| now + self.chance.around(FLAP));
        self.flaps = self.flaps.saturating_sub(1);
    }

    pub(super) fn heal(&mut self) {
        (self.is_cut, self.changes_at, self.flaps) = (false, None, 0);
        (self.loss_per_mille, self.late_max) = (0, Duration::ZERO);
    }
}
