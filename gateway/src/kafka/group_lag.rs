//! How far the groups of this node are behind: every few seconds it asks the leaders of what they read where their logs
//! end. The positions come from memory, and nothing waits for this.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::Offset;
use meridian_broker::coordination::lag::LagClock;
use meridian_consensus::command::FeatureLevel;
use tokio::task::JoinSet;

use super::coordinator::GroupCoordinator;
use super::pace::Pace;
use super::usage::{NamedSample, OTHER, shown};
use super::{Front, lock};
use crate::peers::wire::{PeerReply, PeerRequest};

/// How often.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Partitions in a question: the answer is a small frame.
const PARTITION_COUNT_MAX: usize = 4096;
/// Committed offsets that are looked at; those of the last groups by name are left out.
const POSITION_COUNT_MAX: usize = 100_000;
/// Groups that are gone through without a pause, under the lock of their coordinator.
const GROUP_COUNT_MAX: usize = 256;

/// How far a group is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Lag {
    /// Over all its partitions.
    records: u64,
    /// The most of any of them.
    time: Duration,
}

/// What was found at the last look.
#[derive(Debug, Default)]
pub(super) struct GroupLags(Mutex<BTreeMap<Arc<str>, Lag>>);

/// Where a group goes on.
struct Position {
    group: Arc<str>,
    partition: PartitionId,
    leader: NodeId,
    next: Offset,
}

impl GroupLags {
    /// The lags of the groups that are behind the most, and of all others together.
    pub(super) fn samples(&self, shown_count_max: usize) -> Vec<NamedSample> {
        let lags = lock(&self.0);
        if shown_count_max == 0 {
            return Vec::new();
        }
        let is_other = |name: &Arc<str>| **name == *OTHER;
        let mut all: Vec<(&Arc<str>, Lag)> = lags.iter().map(|(name, lag)| (name, *lag)).collect();
        all.sort_by_key(|(name, lag)| (is_other(name), std::cmp::Reverse(lag.records)));
        let named = all.iter().take_while(|(name, _)| !is_other(name)).count().min(shown_count_max);
        let (named, rest) = all.split_at(named);
        let mut samples: Vec<NamedSample> =
            named.iter().flat_map(|(name, lag)| lag.samples(name)).collect();
        let sum = |sum: Lag, (_, lag): &(&Arc<str>, Lag)| Lag {
            records: sum.records.saturating_add(lag.records),
            time: sum.time.max(lag.time),
        };
        samples.extend(rest.iter().fold(Lag::default(), sum).samples(OTHER));
        samples
    }
}

impl Lag {
    fn samples(self, group: &str) -> [NamedSample; 2] {
        let sample = |name, value| {
            let labels = vec![("group", group.to_owned())];
            NamedSample { name, labels, value }
        };
        [
            sample("meridian_group_lag_records", self.records as f64),
            sample("meridian_group_lag_seconds", self.time.as_secs_f64()),
        ]
    }
}

impl Front {
    /// Looks at the lags of groups now and then; never returns.
    pub(super) async fn watch_lags(self: Arc<Self>) {
        if self.config.usage.group_names_max == 0 {
            return;
        }
        let mut clock = LagClock::default();
        let mut interval = crate::background::ticks(LOOK_EVERY);
        loop {
            interval.tick().await;
            self.look_at_lags(&mut clock).await;
        }
    }

    pub(super) async fn look_at_lags(self: &Arc<Self>, clock: &mut LagClock) {
        let mut positions = Vec::new();
        for coordinator in self.coordinators.serving() {
            self.positions(&coordinator, &mut positions).await;
        }
        let ends = self.ends(positions.iter().map(|it| (it.leader, it.partition))).await;
        let now = self.now();
        clock.retain(|partition| ends.contains_key(&partition));
        for (partition, end) in &ends {
            clock.note(now, *partition, *end);
        }
        let mut lags: BTreeMap<Arc<str>, Lag> = BTreeMap::new();
        for Position { group, partition, next, .. } in positions {
            let Some(end) = ends.get(&partition) else { continue };
            let lag = lags.entry(group).or_default();
            let behind = u64::try_from(end.get().saturating_sub(next.get())).unwrap_or(0);
            lag.records = lag.records.saturating_add(behind);
            lag.time = lag.time.max(clock.age(now, partition, next));
        }
        *lock(&self.group_lags.0) = lags;
    }

    /// Adds where the groups of a coordinator go on.
    async fn positions(&self, coordinator: &Arc<GroupCoordinator>, into: &mut Vec<Position>) {
        let mut pace = Pace::default();
        let mut after: Option<String> = None;
        loop {
            pace.steps(GROUP_COUNT_MAX).await;
            // In this order everywhere: the metadata, then groups.
            let metadata = self.broker.metadata();
            let Ok(groups) = coordinator.state() else { return };
            let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let mut count = 0;
            let page = groups.by_id.range::<str, _>((from, Bound::Unbounded)).take(GROUP_COUNT_MAX);
            let mut last = None;
            for (id, entry) in page {
                count += 1;
                last = Some(id.clone());
                let group = shown(id);
                for (key, committed) in entry.offsets() {
                    let found = metadata.partition_at(key.topic, key.index);
                    let Some((partition, state)) = found else { continue };
                    if into.len() >= POSITION_COUNT_MAX {
                        return;
                    }
                    let (group, next) = (Arc::clone(&group), Offset::new(committed.offset));
                    into.push(Position { group, partition, leader: state.leader, next });
                }
            }
            if count < GROUP_COUNT_MAX {
                return;
            }
            after = last;
        }
    }

    /// Where the logs end, as far as their leaders say.
    pub(super) async fn ends(
        &self,
        led: impl IntoIterator<Item = (NodeId, PartitionId)>,
    ) -> BTreeMap<PartitionId, Offset> {
        let mut by_leader: BTreeMap<NodeId, BTreeSet<PartitionId>> = BTreeMap::new();
        for (leader, partition) in led {
            by_leader.entry(leader).or_default().insert(partition);
        }
        {
            // One of an earlier build would not understand the question.
            let metadata = self.broker.metadata();
            by_leader.retain(|leader, _| {
                let known = metadata.node(*leader);
                known.is_some_and(|it| it.registration.feature_level_max >= FeatureLevel::TOKENS)
            });
        }
        let mut asking = JoinSet::new();
        for (leader, partitions) in by_leader {
            let partitions: Vec<PartitionId> = partitions.into_iter().collect();
            for some in partitions.chunks(PARTITION_COUNT_MAX).map(<[PartitionId]>::to_vec) {
                let peers = Arc::clone(self.broker.peers());
                asking.spawn(async move {
                    let request = PeerRequest::Ends(some.clone());
                    match peers.ask(leader, request, ANSWER_WITHIN).await {
                        Ok(PeerReply::Ends(ends)) => some.into_iter().zip(ends).collect(),
                        Ok(_) | Err(_) => Vec::new(),
                    }
                });
            }
        }
        let mut known = BTreeMap::new();
        while let Some(ends) = asking.join_next().await {
            let ends = ends.unwrap_or_default().into_iter();
            known.extend(ends.filter_map(|(partition, end)| Some((partition, end?))));
        }
        known
    }
}

#[cfg(test)]
mod tests;
