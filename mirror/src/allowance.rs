//! How often a mirror is compared with its source: comparing takes a small part of what the link carries. A link
//! that carries next to nothing is compared seldom, but is.

use std::time::Duration;

/// What a comparison takes on the way, about: a question and its answer.
const QUESTION_SIZE_BYTES: u64 = 400;
/// One byte in so many is for comparing.
const PART: u64 = 200;
/// What may be saved up, in questions.
const SAVED_COUNT_MAX: u64 = 100;

/// The allowance of one link on one node.
#[derive(Clone, Debug, Default)]
pub struct Allowance {
    /// Bytes that the link had carried when it was looked at last.
    carried_bytes: u64,
    /// Bytes that may be spent, times [`PART`].
    saved: u64,
}

impl Allowance {
    /// How often a partition is compared if the link carries enough.
    pub const EVERY_MIN: Duration = Duration::from_secs(5);
    /// How often it is compared in any case.
    pub const EVERY_MAX: Duration = Duration::from_secs(20);

    /// The link has carried so many bytes by now.
    pub fn on_carried(&mut self, carried_bytes: u64) {
        self.saved += carried_bytes.saturating_sub(self.carried_bytes);
        self.saved = self.saved.min(SAVED_COUNT_MAX * QUESTION_SIZE_BYTES * PART);
        self.carried_bytes = carried_bytes;
    }

    /// Whether a partition that was compared so long ago is compared now.
    pub fn grants(&mut self, since: Duration) -> bool {
        let cost = QUESTION_SIZE_BYTES * PART;
        let is_due = since >= Self::EVERY_MAX || since >= Self::EVERY_MIN && self.saved >= cost;
        if is_due {
            self.saved = self.saved.saturating_sub(cost);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Comparisons within an hour of a link that carries this many bytes a second for each partition.
    fn comparisons(partition_count: usize, bytes_per_second: u64) -> u64 {
        let mut allowance = Allowance::default();
        let mut last = vec![0; partition_count];
        let mut count = 0;
        for second in (0..3600).step_by(5) {
            allowance.on_carried(second * bytes_per_second * partition_count as u64);
            for last in &mut last {
                if allowance.grants(Duration::from_secs(second - *last)) {
                    *last = second;
                    count += 1;
                }
            }
        }
        count
    }

    #[test]
    fn comparing_takes_less_than_one_byte_in_a_hundred() {
        for partition_count in [1, 12, 500] {
            for bytes_per_second in [4_000, 10_000, 30_000, 10_000_000] {
                let spent = comparisons(partition_count, bytes_per_second) * QUESTION_SIZE_BYTES;
                let carried = 3600 * bytes_per_second * partition_count as u64;
                assert!(
                    spent * 100 < carried,
                    "{spent} of {carried}, {partition_count} partitions"
                );
            }
        }
    }

    #[test]
    fn a_link_that_carries_nothing_is_compared_too_and_a_busy_one_often() {
        assert_eq!(comparisons(12, 0), 12 * 3600 / 20 - 12);
        assert_eq!(comparisons(12, 1_000_000), 12 * 3600 / 5 - 12);
    }
}
