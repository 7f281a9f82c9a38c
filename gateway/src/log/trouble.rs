//! What keeps partitions from taking records: blobs that do not commit, takeovers that do not end, and requests that
//! are refused at once.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_storage::leader::PutError;

use super::partition_log::PartitionLog;
use super::{Logs, lock};
use crate::health::RefusedFor;
use crate::partition::{Partition, ProduceError};

/// Partitions whose refusals are remembered, for each reason: the count that operators see ends there.
const REFUSED_COUNT_MAX: usize = 1024;

/// When produce requests were refused last.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<RefusedFor, BTreeMap<PartitionId, Instant>>);

/// A partition whose oldest blob has waited for long.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) partition: PartitionId,
    pub(crate) lasts: Duration,
    pub(crate) refused: Vec<NodeId>,
    pub(crate) silent: Vec<NodeId>,
}

impl Refusals {
    fn note(&mut self, now: Instant, reason: RefusedFor, partition: PartitionId) {
        let known = self.0.entry(reason).or_default();
        if known.len() < REFUSED_COUNT_MAX || known.contains_key(&partition) {
            known.insert(partition, now);
        }
    }

    fn since(&mut self, since: Instant) -> Vec<(RefusedFor, Vec<PartitionId>)> {
        self.0.retain(|_, known| {
            known.retain(|_, at| *at >= since);
            !known.is_empty()
        });
        self.0.iter().map(|(reason, known)| (*reason, known.keys().copied().collect())).collect()
    }
}

impl PartitionLog {
    /// A produce request was refused at once.
    pub(crate) fn note_refusal(&self, reason: RefusedFor) {
        if let Some(logs) = self.logs() {
            lock(&logs.refusals).note(logs.now(), reason, self.ownership().partition);
        }
    }

    pub(crate) fn note_error(&self, error: &ProduceError) {
        let ProduceError::Put(error) = error else { return };
        match error {
            PutError::NotEnoughDatacenters => self.note_refusal(RefusedFor::TooFewDatacenters),
            PutError::Busy => self.note_refusal(RefusedFor::Busy),
            PutError::NotServing => self.note_refusal(RefusedFor::NotServing),
            PutError::TooLarge { .. } | PutError::Lost => {}
        }
    }

    /// What its oldest blob waits for, if it has waited for longer than `longer_than`.
    fn waiting(&self, now: Instant, longer_than: Duration) -> Option<Waiting> {
        let waiting = self.with(None, |partition: &Partition<_>| partition.leader().waiting())?;
        let lasts = now.since(waiting.since);
        let nodes = |slots: meridian_base::topology::SlotSet| {
            slots.iter().filter_map(|slot| self.group.node_of(slot)).collect()
        };
        (lasts > longer_than).then(|| Waiting {
            partition: self.ownership().partition,
            lasts,
            refused: nodes(waiting.refused),
            silent: nodes(waiting.silent),
        })
    }

    /// For how long it has been owned without being served.
    fn unserved_for(&self, now: Instant) -> Option<Duration> {
        (!self.is_serving()).then(|| now.since(self.begun_at))
    }
}

impl Logs {
    /// Partitions whose oldest blob has waited for longer than `longer_than`.
    pub(crate) fn waiting(&self, longer_than: Duration) -> Vec<Waiting> {
        let now = self.now();
        let active: Vec<PartitionId> = lock(&self.active).iter().copied().collect();
        let logs = active.into_iter().filter_map(|partition| self.owned(partition));
        logs.filter_map(|log| log.waiting(now, longer_than)).collect()
    }

    /// Partitions that this node has owned for longer than `longer_than` and does not serve, and for how long.
    pub(crate) fn unserved(&self, longer_than: Duration) -> Vec<(PartitionId, Duration)> {
        let now = self.now();
        let unserved_for = |partition: &PartitionId| self.owned(*partition)?.unserved_for(now);
        let mut unserved = lock(&self.opening).clone();
        let mut stopped = lock(&self.stopped);
        // What is not owned any more, or has another log, is forgotten here.
        stopped.retain(|partition| unserved_for(partition).is_some());
        unserved.extend(stopped.iter());
        drop(stopped);
        let of = |partition| Some((partition, unserved_for(&partition)?));
        unserved.into_iter().filter_map(of).filter(|(_, lasts)| *lasts > longer_than).collect()
    }

    /// Partitions that refused produce requests at once, in this last while.
    pub(crate) fn refusals(&self, within: Duration) -> Vec<(RefusedFor, Vec<PartitionId>)> {
        let since = Instant::ZERO + self.now().since(Instant::ZERO).saturating_sub(within);
        lock(&self.refusals).since(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::testing::Bench;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_that_stopped_is_unserved_until_another_takes_its_place() {
        let bench = Bench::new().await;
        let logs = bench.log.logs.upgrade().expect("not dropped");
        let ownership = bench.log.ownership();
        let unserved = || logs.unserved(Duration::ZERO).into_iter().map(|(id, _)| id);
        assert!(!unserved().any(|id| id == ownership.partition));
        bench.log.stop();
        assert!(unserved().any(|id| id == ownership.partition));
        logs.on_ownership(Vec::new(), &[ownership.partition]);
        assert!(!unserved().any(|id| id == ownership.partition));
        assert!(lock(&logs.stopped).is_empty(), "what is not owned is forgotten");
    }

    #[test]
    fn a_refusal_counts_for_a_while_and_their_number_is_bounded() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut refusals = Refusals::default();
        refusals.note(at(1), RefusedFor::Busy, PartitionId::new(1));
        refusals.note(at(5), RefusedFor::Busy, PartitionId::new(2));
        refusals.note(at(5), RefusedFor::TooFewDatacenters, PartitionId::new(1));
        let (one, two) = (PartitionId::new(1), PartitionId::new(2));
        assert_eq!(
            refusals.since(at(2)),
            [(RefusedFor::TooFewDatacenters, vec![one]), (RefusedFor::Busy, vec![two])]
        );
        assert!(refusals.since(at(6)).is_empty());
        for number in 0..2 * REFUSED_COUNT_MAX as u64 {
            refusals.note(at(7), RefusedFor::Busy, PartitionId::new(number));
        }
        assert_eq!(refusals.since(at(7))[0].1.len(), REFUSED_COUNT_MAX);
    }
}
