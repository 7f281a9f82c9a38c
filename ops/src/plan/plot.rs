//! A plot in text.

use std::fmt::Write as _;

use super::units::{Bytes, time};

const ROWS: u32 = 8;

/// The area below values at equal steps of time; nothing if there are none.
pub(super) fn area(title: &str, values: &[Bytes], step_s: f64) -> String {
    let max = values.iter().map(|bytes| bytes.0).fold(0.0, f64::max);
    if max <= 0.0 {
        return String::new();
    }
    let mut text = format!("\n{title}, at most {}\n", Bytes(max));
    for row in (0..ROWS).rev() {
        let level = (f64::from(row) + 0.5) / f64::from(ROWS) * max;
        let line: String =
            values.iter().map(|bytes| if bytes.0 >= level { '#' } else { ' ' }).collect();
        let _infallible = writeln!(text, "|{}", line.trim_end());
    }
    let end = time(step_s * f64::from(u32::try_from(values.len() - 1).unwrap_or(u32::MAX)));
    let dashes = "-".repeat(values.len());
    let _infallible = writeln!(text, "+{dashes} {end}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_column_reaches_the_top() {
        let plot = area("x", &[Bytes(0.0), Bytes(4.0), Bytes(8.0), Bytes(4.0)], 20.0);
        let rows: Vec<&str> = plot.lines().collect();
        assert_eq!(rows[1], "x, at most 8.00 B");
        assert_eq!((rows[2], rows[5], rows[6], rows[9]), ("|  #", "|  #", "| ###", "| ###"));
        assert_eq!(rows[10], "+---- 1.00 min");
    }

    #[test]
    fn nothing_is_no_plot() {
        assert_eq!(area("x", &[], 1.0), "");
        assert_eq!(area("x", &[Bytes(0.0)], 1.0), "");
    }
}
