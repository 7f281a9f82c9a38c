//! Points at which a test has a real process panic. Only builds with debug assertions have them.

/// Panics if `MERIDIAN_FAILPOINT` names this point.
#[cfg(debug_assertions)]
#[track_caller]
pub fn reach(point: &str) {
    static NAMED: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("MERIDIAN_FAILPOINT").ok());
    assert!(NAMED.as_deref() != Some(point), "failpoint {point}");
}

/// Nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn reach(_: &str) {}
