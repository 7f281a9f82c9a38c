//! Sizes and times as people write them.

use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

/// A number of bytes, or of bytes each second. A plan is an estimate: halves of bytes do no harm.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub(super) struct Bytes(pub(super) f64);

const UNITS: [(&str, f64); 10] = [
    ("KIB", 1024.0),
    ("MIB", 1048576.0),
    ("GIB", 1073741824.0),
    ("TIB", 1099511627776.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("PB", 1e15),
    ("B", 1.0),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.trim().to_ascii_uppercase();
        let (number, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((upper.strip_suffix(unit)?, *factor)))
            .unwrap_or((&upper, 1.0));
        match number.trim().parse::<f64>().map(|number| number * factor) {
            Ok(bytes) if bytes < 0.0 => Err(format!("{text} is below 0")),
            Ok(bytes) if bytes.is_finite() => Ok(Self(bytes)),
            _ => Err(format!("{text:?} is no size; write for example 500MB or 2TiB")),
        }
    }
}

impl std::fmt::Display for Bytes {
    /// Three digits and a decimal unit, as disks are sold.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (unit, factor) = [("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)]
            .into_iter()
            .find(|(_, factor)| self.0 >= *factor)
            .unwrap_or(("B", 1.0));
        write!(f, "{} {unit}", three_digits(self.0 / factor))
    }
}

/// A number with about three digits.
pub(super) fn three_digits(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

const TIMES: [(&str, f64); 5] =
    [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// A time such as 90s, 12h or 7d.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write for example 90s, 12h or 7d");
    let (number, factor) = TIMES
        .iter()
        .find_map(|(unit, factor)| Some((text.trim().strip_suffix(unit)?, *factor)))
        .ok_or_else(wrong)?;
    let seconds = number.trim().parse::<f64>().map_err(|_| wrong())? * factor;
    if seconds < 0.0 {
        return Err(format!("{text} is below 0"));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Seconds as people say them.
pub(super) fn time(seconds: f64) -> String {
    let (unit, factor) = [("d", 86_400.0), ("h", 3600.0), ("min", 60.0)]
        .into_iter()
        .find(|(_, factor)| seconds >= *factor)
        .unwrap_or(("s", 1.0));
    format!("{} {unit}", three_digits(seconds / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in
            [("0", 0.0), ("500MB", 5e8), ("2 TiB", 2_199_023_255_552.0), ("1.5gb", 1.5e9)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "MB", "-1GB", "12 apples", "NaN", "inf", "1e300TB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!("-1GB".parse::<Bytes>(), Err("-1GB is below 0".to_owned()));
    }

    #[test]
    fn times_are_read_with_units_only() {
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for text in ["", "7", "d", "-1s", "1w", "NaNs"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(duration("-1s"), Err("-1s is below 0".to_owned()));
    }

    #[test]
    fn figures_are_shown_with_three_digits() {
        assert_eq!(Bytes(302.4e12).to_string(), "302 TB");
        assert_eq!(Bytes(1.5e6).to_string(), "1.50 MB");
        assert_eq!(Bytes(12.0).to_string(), "12.0 B");
        assert_eq!(time(5400.0), "1.50 h");
        assert_eq!(time(604_800.0), "7.00 d");
        assert_eq!(time(0.5), "0.50 s");
    }
}
