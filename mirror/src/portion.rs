//! How much is asked for at once: what the way brings within a second or so. More would be lost whole with a
//! connection, and keep what it says of the source's end; less would wait for round trips.

use std::time::Duration;

const SIZE_BYTES_MIN: u64 = 64 << 10;
const SIZE_BYTES_FIRST: u64 = 512 << 10;
const SIZE_BYTES_MAX: u64 = 16 << 20;
/// An answer that took less could have been larger.
const QUICK: Duration = Duration::from_millis(700);
/// One that took more should have been smaller.
const SLOW: Duration = Duration::from_millis(2500);

/// The size of the answers of a link on one node.
#[derive(Clone, Debug)]
pub struct Portion {
    size_bytes: u64,
}

impl Default for Portion {
    fn default() -> Self {
        Self { size_bytes: SIZE_BYTES_FIRST }
    }
}

impl Portion {
    /// What to ask for.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// An answer of this size has come, or none (0), in a time, that of the way to the source left out: on a way of a
    /// second nothing would be quick.
    pub fn on_answer(&mut self, size_bytes: u64, took: Duration) {
        let next = if took > SLOW {
            self.size_bytes / 2
        } else if took < QUICK && size_bytes > self.size_bytes / 2 {
            self.size_bytes * 2
        } else {
            self.size_bytes
        };
        self.size_bytes = next.clamp(SIZE_BYTES_MIN, SIZE_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::env::Instant;

    use super::*;
    use crate::{Answered, Pipeline};

    /// The size after many answers over a way of this many bytes a second, on which a round trip takes a while.
    fn settled(rate: u64, round_trip: Duration) -> u64 {
        let (mut portion, mut pipeline) = (Portion::default(), Pipeline::new(round_trip));
        let mut now = Instant::ZERO;
        for _ in 0..20 {
            let (asked_at, size_bytes) = (now, portion.size_bytes());
            now = now + round_trip + Duration::from_secs_f64(size_bytes as f64 / rate as f64);
            let answered = Answered { asked_at, size_bytes, can_run: false };
            portion.on_answer(size_bytes, pipeline.on_answer(now, answered));
        }
        portion.size_bytes()
    }

    #[test]
    fn an_answer_takes_about_a_second() {
        for round_trip in [0, 100, 800, 2000].map(Duration::from_millis) {
            assert_eq!(settled(1000, round_trip), SIZE_BYTES_MIN);
            assert_eq!(settled(1 << 40, round_trip), SIZE_BYTES_MAX);
            for rate in [100_000, 1_000_000, 10_000_000] {
                let seconds = settled(rate, round_trip) as f64 / rate as f64;
                assert!((0.3..=2.5).contains(&seconds), "{seconds} s at {rate} bytes/s");
            }
        }
    }

    #[test]
    fn small_answers_say_nothing_of_the_way() {
        let mut portion = Portion::default();
        portion.on_answer(100, Duration::from_millis(1));
        portion.on_answer(0, Duration::from_secs(1));
        assert_eq!(portion.size_bytes(), SIZE_BYTES_FIRST);
    }
}
