//! The host's clock, and waiting: the runner lives in real time.

#![expect(clippy::disallowed_methods, reason = "the one place of the runner that reads the clock")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Now, for measuring.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Milliseconds since 1970: what records are stamped with.
pub(crate) fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Lets time pass: a nemesis holds its fault, a client keeps its pace.
pub(crate) fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Looks again and again until `look` finds something; `None` after `patience`.
pub(crate) fn until<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    const LOOK_EVERY: Duration = Duration::from_millis(100);
    let deadline = now() + patience;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if now() >= deadline {
            return None;
        }
        sleep(LOOK_EVERY);
    }
}
