//! The only place of the client that reads clocks or waits.

#![expect(clippy::disallowed_methods, reason = "the one place of the client that reads clocks")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time.
pub fn now() -> Instant {
    Instant::now()
}

/// Wall-clock time in Kafka's unit, milliseconds since 1970.
pub fn wall_time_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

/// Wall-clock time, for certificates.
pub fn wall_time() -> SystemTime {
    SystemTime::now()
}

/// Waits. Rounds up to whole milliseconds.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Pauses that grow until a deadline: how every retry of the client waits.
#[derive(Debug)]
pub struct Backoff {
    deadline: Instant,
    pause: Duration,
}

impl Backoff {
    const PAUSE_MIN: Duration = Duration::from_millis(10);
    const PAUSE_MAX: Duration = Duration::from_millis(500);

    /// Retries for `patience` from now on.
    pub fn until(patience: Duration) -> Self {
        Self { deadline: now() + patience, pause: Self::PAUSE_MIN }
    }

    /// Waits before the next try; false if there is no time for another.
    pub async fn pause(&mut self) -> bool {
        if now() + self.pause > self.deadline {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Self::PAUSE_MAX);
        true
    }
}
