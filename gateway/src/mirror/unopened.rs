//! Mirrors' partitions that this node is to lead and does not serve: nobody else would speak of them.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_admin_api::mirror::PartitionReport;
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_mirror::state::State;

use super::worker::report::bare;

/// How long a takeover may go on before operators are told. Most take less than a second.
const OPENED_WITHIN: Duration = Duration::from_secs(5);

/// A partition, as operators know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) link: String,
    pub(super) topic: String,
    pub(super) index: u32,
}

/// Since when each has been waited for.
#[derive(Debug, Default)]
pub(super) struct Unopened(BTreeMap<PartitionId, (Place, Instant)>);

impl Unopened {
    /// These are not served at `now`.
    pub(super) fn look(&mut self, now: Instant, unopened: BTreeMap<PartitionId, Place>) {
        self.0.retain(|partition, _| unopened.contains_key(partition));
        for (partition, place) in unopened {
            self.0.entry(partition).or_insert((place, now));
        }
    }

    /// What is said of those that have not been served for long.
    pub(super) fn reports(&self, node: u32, now: Instant) -> Vec<PartitionReport> {
        let report = |(place, since): &(Place, Instant)| {
            let detail = format!("node {node} {}", opening_for(now.since(*since)));
            let place = (place.topic.clone(), place.index);
            bare(node, place, &State::Unreadable { detail })
        };
        self.overdue(now).map(report).collect()
    }

    /// The topics, indexes and states of those of a link that have not been served for long.
    pub(super) fn states(&self, link: &str, now: Instant) -> Vec<(String, u32, State)> {
        let of_link = self.overdue(now).filter(|(place, _)| place.link == link);
        let state = |(place, since): &(Place, Instant)| {
            let detail = format!("this node {}", opening_for(now.since(*since)));
            (place.topic.clone(), place.index, State::Unreadable { detail })
        };
        of_link.map(state).collect()
    }

    /// How many of a link's have not been served for long.
    pub(super) fn count(&self, link: &str, now: Instant) -> usize {
        self.overdue(now).filter(|(place, _)| place.link == link).count()
    }

    fn overdue(&self, now: Instant) -> impl Iterator<Item = &(Place, Instant)> {
        self.0.values().filter(move |(_, since)| now.since(*since) >= OPENED_WITHIN)
    }
}

fn opening_for(lasts: Duration) -> String {
    let seconds = lasts.as_secs();
    format!("has been taking its log over for {seconds} s, and too few disks answer")
}

#[cfg(test)]
mod tests {
    use meridian_admin_api::mirror::PartitionState;

    use super::*;

    #[test]
    fn a_log_that_does_not_open_is_told_of_after_a_while() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let partitions = |ids: &[u64]| {
            let place = |id: &u64| Place {
                link: "west".to_owned(),
                topic: "t".to_owned(),
                index: u32::try_from(*id).expect("small"),
            };
            ids.iter().map(|id| (PartitionId::new(*id), place(id))).collect::<BTreeMap<_, _>>()
        };
        let mut unopened = Unopened::default();
        unopened.look(at(1), partitions(&[4, 5]));
        assert!(unopened.reports(2, at(5)).is_empty(), "a takeover takes a moment");
        unopened.look(at(5), partitions(&[5]));
        let reports = unopened.reports(2, at(6));
        let told: Vec<_> = reports.iter().map(|it| (it.partition, it.state.clone())).collect();
        assert_eq!(told, [(5, PartitionState::Unreadable)]);
        assert!(reports[0].reason.contains("for 5 s"), "{}", reports[0].reason);
        assert_eq!((unopened.count("west", at(6)), unopened.count("east", at(6))), (1, 0));
        unopened.look(at(7), BTreeMap::new());
        unopened.look(at(8), partitions(&[5]));
        assert!(unopened.reports(2, at(9)).is_empty(), "another takeover");
    }
}
