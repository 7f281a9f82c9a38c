//! A transactional producer with its coordinator, in one place: what the partitions' leaders are
//! asked to do and what they ask is the real protocol over the bad network; the decisions are made here
//! and never lost, as a coordinator's are once its log has them.
//!
//! ```text
//! begin -> batches to several partitions, again until answered -> commit, or abort at any time
//!              ^ leaders ask: is this partition in the transaction?  (it is added then)
//!       -> markers with the next epoch to all partitions added, again until answered -> begin ...
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_broker::partition::VerifyError;
use meridian_jepsen_runner::chance::Chance;

use crate::broker::ClientReply;
use crate::check::{Promise, Verdict, Violation};
use crate::value::{Batch, Kind, Value};
use crate::workload::{Action, BACKOFF, ClientRequest, Decision, TIMEOUT};

/// Most batches under way, in all partitions.
const IN_FLIGHT_COUNT_MAX: usize = 4;
/// Most batches of a transaction.
const BATCH_COUNT_MAX: usize = 6;
/// How long it rests between transactions, on average.
const REST: Duration = Duration::from_millis(300);
/// How often a transaction is aborted in the middle, per thousand steps.
const GIVE_UP_PER_MILLE: u32 = 25;
/// How often a marker of the transaction before is sent once more, by a coordinator that does not
/// know that it was written (KIP-1228), per thousand steps.
const LATE_MARKER_PER_MILLE: u32 = 40;
/// How often a transaction that has all its answers commits, per thousand.
const COMMIT_PER_MILLE: u32 = 700;

/// A batch or a marker that has not been answered, or has.
struct Write {
    request: u64,
    partition: PartitionId,
    batch: Batch,
    done: bool,
}

/// What the transactor is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Resting {
        until: Instant,
    },
    /// So many batches are still to be sent.
    Writing {
        left: usize,
    },
    Ending,
}

/// See the module.
pub(crate) struct Transactor {
    id: u32,
    epoch: u16,
    partitions: Vec<PartitionId>,
    phase: Phase,
    /// The partitions of the transaction.
    added: BTreeSet<PartitionId>,
    next_sequence: BTreeMap<PartitionId, u32>,
    writes: Vec<Write>,
    /// The markers of the transaction before.
    ended: Vec<Write>,
    next_request: u64,
    send_again_at: Instant,
}

impl Transactor {
    pub(crate) fn new(id: u32, partitions: Vec<PartitionId>) -> Self {
        Self {
            id,
            epoch: 0,
            partitions,
            phase: Phase::Resting { until: Instant::ZERO },
            added: BTreeSet::new(),
            next_sequence: BTreeMap::new(),
            writes: Vec::new(),
            ended: Vec::new(),
            next_request: 0,
            send_again_at: Instant::ZERO,
        }
    }

    /// Whether everything that was begun has ended.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Resting { .. })
    }

    pub(crate) fn wake(&mut self, now: Instant, chance: &mut Chance, stopping: bool) -> Action {
        let mut action = Action { requests: Vec::new(), decision: None, wake_after: BACKOFF / 8 };
        match self.phase {
            Phase::Resting { until } if stopping || now < until => {
                action.wake_after = until.since(now).max(BACKOFF);
                return action;
            }
            Phase::Resting { .. } => {
                self.phase = Phase::Writing { left: 1 + chance.below(BATCH_COUNT_MAX) };
            }
            Phase::Writing { left } => {
                let under_way = self.writes.iter().filter(|write| !write.done).count();
                if chance.per_mille(GIVE_UP_PER_MILLE) {
                    action.decision = Some(self.decide(false));
                } else if left > 0 && under_way < IN_FLIGHT_COUNT_MAX {
                    self.phase = Phase::Writing { left: left - 1 };
                    self.begin_batch(now, chance, &mut action);
                } else if left == 0 && under_way == 0 {
                    action.decision = Some(self.decide(chance.per_mille(COMMIT_PER_MILLE)));
                }
            }
            Phase::Ending if self.writes.iter().all(|write| write.done) => {
                self.epoch += 1;
                self.added.clear();
                self.next_sequence.clear();
                self.ended = std::mem::take(&mut self.writes);
                self.phase = Phase::Resting { until: now + chance.around(REST) };
            }
            Phase::Ending => {}
        }
        if now >= self.send_again_at {
            self.send_again_at = now + TIMEOUT;
            let open = self.writes.iter().filter(|write| !write.done);
            action.requests = open.map(Write::request).collect();
        }
        if !self.ended.is_empty()
            && matches!(self.phase, Phase::Writing { .. })
            && chance.per_mille(LATE_MARKER_PER_MILLE)
        {
            let late = &self.ended[chance.below(self.ended.len())];
            action.requests.push(late.request());
        }
        action.wake_after = chance.around(Duration::from_millis(8));
        action
    }

    fn begin_batch(&mut self, now: Instant, chance: &mut Chance, action: &mut Action) {
        let Some(partition) = chance.pick(&self.partitions) else { return };
        let sequence = self.next_sequence.entry(partition).or_insert(0);
        let first = Value { producer: self.id, epoch: self.epoch, sequence: *sequence };
        let kind = Kind::Transactional { number: 0 };
        let batch = Batch { first, count: 1 + chance.below(2) as u32, kind };
        *sequence = batch.next_sequence();
        if self.writes.iter().all(|write| write.done) {
            self.send_again_at = now + TIMEOUT;
        }
        action.requests.push(self.write(partition, batch).request());
    }

    fn write(&mut self, partition: PartitionId, batch: Batch) -> &Write {
        let request = self.next_request;
        self.next_request += 1;
        self.writes.push(Write { request, partition, batch, done: false });
        &self.writes[self.writes.len() - 1]
    }

    /// Ends the transaction, whatever of it is under way.
    fn decide(&mut self, commit: bool) -> Decision {
        self.phase = Phase::Ending;
        self.writes.clear();
        self.send_again_at = Instant::ZERO;
        let marker = Batch::marker(self.id, self.epoch + 1, commit);
        for partition in self.added.clone() {
            self.write(partition, marker);
        }
        Decision { producer: self.id, epoch: self.epoch, commit }
    }

    /// A leader asks on behalf of a batch: the partition is added to the transaction, if it is
    /// open still.
    pub(crate) fn on_verify(
        &mut self,
        partition: PartitionId,
        epoch: u16,
    ) -> Result<(), VerifyError> {
        if epoch != self.epoch {
            return Err(VerifyError::Fenced);
        }
        if !matches!(self.phase, Phase::Writing { .. }) {
            return Err(VerifyError::NotInTransaction);
        }
        self.added.insert(partition);
        Ok(())
    }

    pub(crate) fn on_reply(&mut self, now: Instant, request: u64, reply: &ClientReply) -> Verdict {
        let Some(write) = self.writes.iter_mut().find(|write| write.request == request) else {
            return Ok(());
        };
        match reply {
            ClientReply::Acknowledged(_) => write.done = true,
            ClientReply::Retry => self.send_again_at = self.send_again_at.min(now + BACKOFF),
            // Another copy of the request was acknowledged, and what came of it has ended.
            ClientReply::Fenced if write.done => {}
            ClientReply::Fenced
            | ClientReply::OutOfOrder
            | ClientReply::Fetched { .. }
            | ClientReply::Deleted { .. } => {
                let batch = write.batch;
                let detail = format!("{batch:?}, of the newest epoch, was answered {reply:?}");
                return Err(Violation { promise: Promise::ProducerOrder, detail });
            }
        }
        Ok(())
    }
}

impl Write {
    fn request(&self) -> (PartitionId, u64, ClientRequest) {
        (self.partition, self.request, ClientRequest::Produce(self.batch))
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::position::Offset;

    use super::*;

    const PARTITION: PartitionId = PartitionId::new(1);

    /// Wakes it until it decides; all that it sends before is answered.
    fn decide(it: &mut Transactor, chance: &mut Chance, now: &mut Instant) -> Action {
        loop {
            *now = *now + Duration::from_millis(10);
            let action = it.wake(*now, chance, false);
            if action.decision.is_some() {
                return action;
            }
            for (partition, request, _) in action.requests {
                assert_eq!(it.on_verify(partition, it.epoch), Ok(()));
                it.on_reply(*now, request, &ClientReply::Acknowledged(Offset::ZERO)).unwrap();
            }
        }
    }

    #[test]
    fn a_transaction_ends_with_markers_of_the_next_epoch_in_all_its_partitions() {
        let (mut chance, mut now) = (Chance::new(3), Instant::ZERO);
        let mut it = Transactor::new(7, vec![PARTITION]);
        let action = decide(&mut it, &mut chance, &mut now);
        let decision = action.decision.unwrap();
        assert_eq!((decision.producer, decision.epoch), (7, 0));
        assert_eq!(it.on_verify(PARTITION, 0), Err(VerifyError::NotInTransaction));
        let marker = ClientRequest::Produce(Batch::marker(7, 1, decision.commit));
        let sent: Vec<_> = action.requests.iter().map(|(_, _, request)| *request).collect();
        assert_eq!(sent, [marker]);
        assert!(!it.is_idle());
        let request = action.requests[0].1;
        it.on_reply(now, request, &ClientReply::Acknowledged(Offset::ZERO)).unwrap();
        it.wake(now, &mut chance, true);
        assert!(it.is_idle());
        assert_eq!(it.on_verify(PARTITION, 0), Err(VerifyError::Fenced));
    }

    #[test]
    fn an_open_transaction_is_never_fenced() {
        let (mut chance, mut now) = (Chance::new(3), Instant::ZERO);
        let mut it = Transactor::new(7, vec![PARTITION]);
        let sent = loop {
            now = now + Duration::from_millis(10);
            if let Some(sent) = it.wake(now, &mut chance, false).requests.pop() {
                break sent;
            }
        };
        assert!(it.on_reply(now, sent.1, &ClientReply::Fenced).is_err());
    }
}
