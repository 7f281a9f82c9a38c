//! What burst the fast tier absorbs: Pafka's question, asked of the whole cluster.
//!
//! ```text
//!  fast tier full |        /|
//!                 |      /  |  \
//!                 |    /    |    \        length   = reserved / (burst - drain)
//!  reserved below |__/______|______\__    interval = reserved / (drain - base)
//!                    length   interval
//! ```

use serde::Serialize;

use super::plot;
use super::units::{Bytes, time};
use crate::failure::Failure;
use crate::output::Table;

/// Two tiers and a burst. Bytes are stored bytes of all nodes: copies and parts counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tier {
    /// The fast disks.
    pub(super) fast: Bytes,
    /// Share of them kept free for bursts, above 0 and at most 1.
    pub(super) reserved_share: f64,
    /// Bytes each second that the capacity disks take.
    pub(super) drain: Bytes,
    /// Bytes each second in a burst.
    pub(super) burst: Bytes,
    /// Bytes each second between bursts.
    pub(super) base: Bytes,
}

/// What it absorbs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Tiering {
    /// Bytes of the fast tier that are free before a burst.
    pub(super) reserved: Bytes,
    /// Longest burst that is absorbed; null if the capacity disks keep up with it for ever.
    pub(super) burst_length_s: Option<f64>,
    /// Shortest rest until the next such burst.
    pub(super) interval_s: f64,
    /// Bytes used of the reserve, from the beginning of a burst to the end of the rest after it,
    /// at equal steps.
    pub(super) used: Vec<Bytes>,
    /// Seconds between them.
    pub(super) step_s: f64,
}

/// Points of the plot.
const STEPS: u32 = 60;

/// What a tier absorbs.
pub(super) fn plan(tier: &Tier) -> Result<Tiering, Failure> {
    if tier.base >= tier.drain {
        return Err(Failure::Invalid(format!(
            "the capacity disks take {}/s (--drain), and {}/s come in between bursts (--base): the \
             fast disks never empty; use more or faster capacity disks",
            tier.drain, tier.base
        )));
    }
    let reserved = tier.fast.0 * tier.reserved_share;
    let growth = tier.burst.0 - tier.drain.0;
    let shrink = tier.drain.0 - tier.base.0;
    let interval_s = reserved / shrink;
    let burst_length_s = (growth > 0.0).then(|| reserved / growth);
    let all_s = burst_length_s.map_or(0.0, |length| length + interval_s);
    let step_s = all_s / f64::from(STEPS);
    let used_at = |at_s: f64| match burst_length_s {
        Some(length) if at_s <= length => at_s * growth,
        Some(length) => (reserved - (at_s - length) * shrink).max(0.0),
        None => 0.0,
    };
    let used = match burst_length_s {
        Some(_) => (0..=STEPS).map(|step| Bytes(used_at(f64::from(step) * step_s))).collect(),
        None => Vec::new(),
    };
    Ok(Tiering { reserved: Bytes(reserved), burst_length_s, interval_s, used, step_s })
}

/// As a table and a plot.
pub(super) fn render(plan: &Tiering) -> String {
    let mut table = Table::new(&["", ""]);
    table.row(["reserved for bursts".into(), plan.reserved.to_string()]);
    table.row([
        "longest burst".into(),
        plan.burst_length_s.map_or("any: the capacity disks keep up".into(), time),
    ]);
    table.row(["shortest rest after it".into(), time(plan.interval_s)]);
    let plot = plot::area("reserve in use", &plan.used, plan.step_s);
    format!("{}{plot}", table.render().trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(burst: f64, base: f64) -> Tier {
        Tier {
            fast: Bytes(1e12),
            reserved_share: 0.5,
            drain: Bytes(5e8),
            burst: Bytes(burst),
            base: Bytes(base),
        }
    }

    /// By hand: 500 GB / (2 GB/s - 0.5) = 333.3 s; 500 GB / 0.5 GB/s = 1000 s.
    #[test]
    fn a_burst_is_as_long_as_the_reserve_allows() {
        let plan = plan(&tier(2e9, 0.0)).unwrap();
        assert!((plan.burst_length_s.unwrap() - 1000.0 / 3.0).abs() < 1e-6);
        assert_eq!(plan.interval_s, 1000.0);
        assert_eq!((plan.used.len(), plan.used[0]), (61, Bytes(0.0)));
        let most = plan.used.iter().map(|bytes| bytes.0).fold(0.0, f64::max);
        assert!((most - 5e11).abs() < 1e10, "{most}");
        assert!(plan.used[60].0 < 1.0);
    }

    /// By hand: with 0.1 GB/s between bursts only 0.4 GB/s of the drain is left: 1250 s.
    #[test]
    fn what_comes_between_bursts_lengthens_the_rest() {
        assert_eq!(plan(&tier(2e9, 1e8)).unwrap().interval_s, 1250.0);
    }

    #[test]
    fn a_low_burst_goes_on_for_ever() {
        let plan = plan(&tier(5e8, 0.0)).unwrap();
        assert_eq!((plan.burst_length_s, plan.used.len()), (None, 0));
        assert!(render(&plan).contains("keep up"));
    }

    #[test]
    fn a_tier_that_never_empties_is_refused() {
        let error = plan(&tier(2e9, 5e8)).unwrap_err().to_string();
        assert!(error.contains("--drain"), "{error}");
    }
}
