//! The host's clocks.

#![expect(clippy::disallowed_methods, reason = "the one place that reads the host's clocks")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use meridian_base::env::Instant;

/// The node's monotonic clock, counted from the moment it was started.
///
/// Reads `CLOCK_BOOTTIME`, which unlike `CLOCK_MONOTONIC` goes on while the machine is suspended:
/// a node that slept must find its leases expired.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Duration,
}

impl Clock {
    /// A clock that reads [`Instant::ZERO`] now.
    pub fn start() -> Self {
        Self { start: since_boot() }
    }

    /// The time since the clock was started.
    pub fn now(&self) -> Instant {
        Instant::ZERO + since_boot().saturating_sub(self.start)
    }
}

/// Wall-clock time. Only for people, record timestamps and certificates: it may jump.
pub fn wall_time() -> SystemTime {
    SystemTime::now()
}

/// Wall-clock time in Kafka's unit, milliseconds since 1970.
pub fn wall_time_ms() -> i64 {
    let since_epoch = wall_time().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

#[expect(unsafe_code, reason = "the standard library does not read CLOCK_BOOTTIME")]
fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert_eq!(result, 0, "Linux has had CLOCK_BOOTTIME since 2.6.39");
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_at_zero_and_never_goes_back() {
        let clock = Clock::start();
        let mut last = clock.now();
        assert!(last.since(Instant::ZERO) < Duration::from_secs(60));
        for _ in 0..1000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn wall_time_is_after_the_project_began() {
        assert!(wall_time_ms() > 1_700_000_000_000);
    }
}
