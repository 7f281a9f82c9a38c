//! What was measured, each beside its bar.

use std::fmt;
use std::time::Duration;

/// One measured value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    phase: &'static str,
    what: String,
    value: f64,
    unit: &'static str,
    /// The most that it may be.
    bar: Option<f64>,
}

impl Figure {
    pub(super) fn new(phase: &'static str, what: &str, value: f64, unit: &'static str) -> Self {
        Self { phase, what: what.to_owned(), value, unit, bar: None }
    }

    pub(super) fn seconds(phase: &'static str, what: &str, value: Duration) -> Self {
        Self::new(phase, what, value.as_secs_f64(), "s")
    }

    pub(super) fn at_most(self, bar: f64) -> Self {
        Self { bar: Some(bar), ..self }
    }

    pub(super) fn is_over(&self) -> bool {
        self.bar.is_some_and(|bar| self.value > bar)
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, what, value, unit, bar } = self;
        // The value as a name, so that it is in a column.
        let value = format!("{value:.3} {unit}");
        write!(f, "{phase:<10} {what:<44} {value:>16}")?;
        match bar {
            Some(bar) if self.is_over() => write!(f, "   OVER {bar} {unit}"),
            Some(bar) => write!(f, "   at most {bar} {unit}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_above_its_bar_is_over() {
        let figure = Figure::seconds("kill", "all served", Duration::from_secs(11));
        assert!(!figure.is_over());
        assert!(!figure.clone().at_most(11.0).is_over());
        let over = figure.at_most(10.0);
        assert!(over.is_over());
        assert!(over.to_string().ends_with("11.000 s   OVER 10 s"), "{over}");
    }
}
