//! Who failed to log in lately: the more often, the longer it waits for the answer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::sync::lock;

/// `connection.failed.authentication.delay.ms` of Kafka; it doubles with each failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// An address that fails no more for so long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Addresses that are remembered; more all wait the longest.
const ADDRESS_COUNT_MAX: usize = 10_000;

/// Failures of the last minute.
#[derive(Debug, Default)]
pub(in crate::kafka) struct Failures {
    failed: Mutex<HashMap<IpAddr, Failed>>,
    /// When the log last said so.
    said: Mutex<HashMap<IpAddr, Instant>>,
}

#[derive(Debug)]
struct Failed {
    count: u32,
    at: Instant,
}

impl Failures {
    /// Notes a failure; says how long its answer waits.
    pub(super) fn note(&self, now: Instant, address: IpAddr) -> Duration {
        let mut failed = lock(&self.failed);
        if failed.len() >= ADDRESS_COUNT_MAX && !failed.contains_key(&address) {
            failed.retain(|_, it| now.since(it.at) < FORGET_AFTER);
            if failed.len() >= ADDRESS_COUNT_MAX {
                return PAUSE_MAX;
            }
        }
        let known = failed.entry(address).or_insert(Failed { count: 0, at: now });
        if now.since(known.at) >= FORGET_AFTER {
            known.count = 0;
        }
        let pause = PAUSE_MIN.saturating_mul(1 << known.count.min(10)).min(PAUSE_MAX);
        *known = Failed { count: known.count + 1, at: now };
        pause
    }

    /// Whether the log says that this address failed: of many failures it says one in a minute.
    pub(in crate::kafka) fn is_news(&self, now: Instant, address: IpAddr) -> bool {
        let mut said = lock(&self.said);
        if said.len() >= ADDRESS_COUNT_MAX {
            said.retain(|_, at| now.since(*at) < FORGET_AFTER);
        }
        let is_news = said.get(&address).is_none_or(|at| now.since(*at) >= FORGET_AFTER);
        if is_news && said.len() < ADDRESS_COUNT_MAX {
            said.insert(address, now);
        }
        is_news
    }

    /// It has logged in.
    pub(super) fn forget(&self, address: IpAddr) {
        lock(&self.failed).remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_guesses_waits_longer_each_time() {
        let (failures, start) = (Failures::default(), Instant::from_micros(0));
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let pauses: Vec<u128> = (0..9).map(|_| failures.note(start, a).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(failures.note(start, b), PAUSE_MIN);
        let later = start + FORGET_AFTER;
        assert_eq!(failures.note(later, a), PAUSE_MIN);
        failures.note(later, a);
        failures.forget(a);
        assert_eq!(failures.note(later, a), PAUSE_MIN);
    }

    #[test]
    fn the_log_says_once_a_minute_that_an_address_fails() {
        let (failures, start) = (Failures::default(), Instant::from_micros(0));
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        assert!(failures.is_news(start, a) && failures.is_news(start, b));
        assert!(!failures.is_news(start, a));
        assert!(failures.is_news(start + FORGET_AFTER, a));
    }
}
