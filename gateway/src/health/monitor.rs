//! When conditions begin and end, for the log.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_base::env::Instant;

use super::Condition;

/// A condition that was away for so long has ended: one that comes and goes is one line, not many.
const ENDED_AFTER: Duration = Duration::from_secs(10);

/// What to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is there since now.
    Began(Condition),
    /// It is there no more.
    Ended {
        /// As it was last.
        condition: Condition,
        /// From when it was seen first until it was seen last.
        lasted: Duration,
    },
}

/// The conditions that were logged as begun.
#[derive(Debug, Default)]
pub(crate) struct Monitor(BTreeMap<(&'static str, String), Seen>);

#[derive(Debug)]
struct Seen {
    condition: Condition,
    first_at: Instant,
    last_at: Instant,
}

impl Monitor {
    /// These are the conditions at `now`; gives what began and what ended.
    pub(crate) fn step(&mut self, now: Instant, conditions: &[Condition]) -> Vec<Change> {
        let mut changes = Vec::new();
        for condition in conditions {
            let key = (condition.name(), condition.subject());
            let seen = self.0.entry(key).or_insert_with(|| {
                changes.push(Change::Began(condition.clone()));
                Seen { condition: condition.clone(), first_at: now, last_at: now }
            });
            seen.last_at = now;
            seen.condition = condition.clone();
        }
        self.0.retain(|_, seen| {
            let is_there = now.since(seen.last_at) < ENDED_AFTER;
            if !is_there {
                let (condition, lasted) =
                    (seen.condition.clone(), seen.last_at.since(seen.first_at));
                changes.push(Change::Ended { condition, lasted });
            }
            is_there
        });
        changes
    }
}
