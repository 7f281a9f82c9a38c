//! What stops or threatens writes, as a metric.

use super::{Family, Sample, gauge};
use crate::health::{Condition, Severity};

pub(super) const FAMILIES: &[Family] = &[gauge(
    "meridian_conditions",
    "What stops or threatens writes, of the cluster and of this node; 0 for what does not hold.",
    |s| {
        let of = |(name, severity): (&'static str, Severity)| {
            let count = s.conditions.iter().filter(|it| **it == name).count();
            let severity = ("severity", severity.name().to_owned());
            let labels = vec![("condition", name.to_owned()), severity];
            Sample { labels, value: count as f64 }
        };
        Condition::NAMES.map(of).into()
    },
)];
