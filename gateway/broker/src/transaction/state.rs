//! One transactional id: who may write, and how far its last transaction is.

use std::collections::BTreeSet;

use meridian_base::id::PartitionId;

use super::{CoordinatorError, Ending, Producer};
use crate::partition::TransactionVersion;

/// A transaction that is not ended everywhere yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// When its first partition was added, by the coordinator's wall clock.
    pub started_at_ms: i64,
    /// How the producer's transactions are told apart.
    pub version: TransactionVersion,
    /// What it may have written to.
    pub partitions: BTreeSet<PartitionId>,
}

/// How far the last transaction of an id is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// None was begun since the producer was initialised: Kafka's `Empty`.
    Empty,
    /// The producer may write: `Ongoing`.
    Ongoing(Open),
    /// It is decided, and the partitions are being told: `PrepareCommit` and `PrepareAbort`.
    Ending {
        /// Whether its records count.
        commit: bool,
        /// Whom the markers are from.
        marker: Producer,
        /// The transaction.
        open: Open,
    },
    /// All partitions have been told: `CompleteCommit` and `CompleteAbort`.
    Ended {
        /// Whether its records count.
        commit: bool,
    },
}

impl Phase {
    /// What Kafka calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Ongoing(_) => "Ongoing",
            Self::Ending { commit: true, .. } => "PrepareCommit",
            Self::Ending { commit: false, .. } => "PrepareAbort",
            Self::Ended { commit: true } => "CompleteCommit",
            Self::Ended { commit: false } => "CompleteAbort",
        }
    }
}

/// One transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    pub(super) current: Producer,
    /// Whom the current one replaced at the wish of its holder, who may not have heard of it: a
    /// repeated request of it is answered once more. Nobody else may.
    pub(super) previous: Option<Producer>,
    pub(super) timeout_ms: i32,
    pub(super) updated_at_ms: i64,
    pub(super) phase: Phase,
}

impl Transaction {
    /// Any, for tests.
    #[cfg(test)]
    pub(crate) fn sample(
        current: Producer,
        timeout_ms: i32,
        updated_at_ms: i64,
        phase: Phase,
    ) -> Self {
        Self { current, previous: None, timeout_ms, updated_at_ms, phase }
    }

    /// An id that was not known.
    pub(super) fn new(now_ms: i64, current: Producer, timeout_ms: i32) -> Self {
        Self { current, previous: None, timeout_ms, updated_at_ms: now_ms, phase: Phase::Empty }
    }

    /// Who may write.
    pub fn current(&self) -> Producer {
        self.current
    }

    /// How far its last transaction is.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// After how long a transaction is aborted.
    pub fn timeout_ms(&self) -> i32 {
        self.timeout_ms
    }

    /// When it changed last, by its coordinator's clock.
    pub fn updated_at_ms(&self) -> i64 {
        self.updated_at_ms
    }

    /// The transaction that is not ended everywhere yet.
    pub fn open(&self) -> Option<&Open> {
        match &self.phase {
            Phase::Ongoing(open) | Phase::Ending { open, .. } => Some(open),
            Phase::Empty | Phase::Ended { .. } => None,
        }
    }

    /// What the partitions are to be told, if they are.
    pub(super) fn ending(&self, id: &str) -> Option<Ending> {
        let Phase::Ending { commit, marker, open } = &self.phase else { return None };
        Some(Ending {
            id: id.to_owned(),
            producer: *marker,
            version: open.version,
            commit: *commit,
            partitions: open.partitions.iter().copied().collect(),
        })
    }

    /// Whether the transaction has taken longer than it may.
    pub(super) fn is_late(&self, now_ms: i64) -> bool {
        let Phase::Ongoing(open) = &self.phase else { return false };
        open.started_at_ms.saturating_add(i64::from(self.timeout_ms)) < now_ms
    }

    /// Whether nothing is open and nothing happened since then.
    pub(super) fn is_unused_since(&self, since_ms: i64) -> bool {
        self.open().is_none() && self.updated_at_ms < since_ms
    }

    /// Gives the id to a producer whose last transaction has ended. False if it had this already.
    pub(super) fn init(
        &mut self,
        now_ms: i64,
        timeout_ms: i32,
        expected: Option<Producer>,
        fresh_id: Option<i64>,
    ) -> Result<bool, CoordinatorError> {
        if matches!(self.phase, Phase::Ending { .. }) {
            return Err(CoordinatorError::Concurrent);
        }
        match expected {
            Some(expected) if expected == self.current => {}
            Some(expected) if Some(expected) == self.previous => return Ok(false),
            Some(_) => return Err(CoordinatorError::Fenced),
            None => {}
        }
        let next = if self.current.is_exhausted() {
            Producer::first(fresh_id.ok_or(CoordinatorError::Concurrent)?)
        } else {
            self.current.fenced_by()
        };
        self.previous = expected;
        self.current = next;
        self.timeout_ms = timeout_ms;
        self.phase = Phase::Empty;
        self.updated_at_ms = now_ms;
        Ok(true)
    }

    /// Aborts the transaction of a producer that is being replaced.
    pub(super) fn fence(
        &mut self,
        now_ms: i64,
        expected: Option<Producer>,
    ) -> Result<(), CoordinatorError> {
        if expected.is_some_and(|expected| expected != self.current) {
            return Err(CoordinatorError::Fenced);
        }
        self.abort(now_ms);
        Ok(())
    }

    /// Aborts a transaction that takes too long. With version 2 its producer may go on with the
    /// next one after it has aborted, as if it had been quicker; with version 1 it is fenced.
    ///
    /// The broken rule: the latter `goes_on` as if nothing had happened.
    pub(super) fn time_out(&mut self, now_ms: i64, goes_on: bool) {
        let was = self.current;
        let is_v2 = self.open().is_some_and(|open| open.version == TransactionVersion::V2);
        if goes_on && !is_v2 {
            return self.decide(now_ms, false, was);
        }
        self.abort(now_ms);
        if is_v2 && self.current.epoch <= Producer::EPOCH_MAX {
            self.previous = Some(was);
        }
    }

    fn abort(&mut self, now_ms: i64) {
        let marker = self.current.fenced_by();
        self.previous = None;
        self.current = marker;
        self.decide(now_ms, false, marker);
    }

    /// Adds partitions. False if they were there already.
    pub(super) fn add(
        &mut self,
        now_ms: i64,
        producer: Producer,
        version: TransactionVersion,
        partitions: &BTreeSet<PartitionId>,
        count_max: usize,
    ) -> Result<bool, CoordinatorError> {
        self.check(producer)?;
        let opened = Open { started_at_ms: now_ms, version, partitions: BTreeSet::new() };
        let mut added = match &self.phase {
            Phase::Ending { .. } => return Err(CoordinatorError::Concurrent),
            Phase::Ongoing(open) if partitions.is_subset(&open.partitions) => return Ok(false),
            Phase::Ongoing(open) => open.clone(),
            Phase::Empty | Phase::Ended { .. } => opened,
        };
        added.partitions.extend(partitions);
        if added.partitions.len() > count_max {
            return Err(CoordinatorError::TooMany);
        }
        // Who has begun may still repeat what it asked for before, but no longer the last end.
        self.phase = Phase::Ongoing(added);
        self.updated_at_ms = now_ms;
        Ok(true)
    }

    /// Whether the producer may write to a partition.
    pub(super) fn verify(
        &self,
        producer: Producer,
        partition: PartitionId,
    ) -> Result<(), CoordinatorError> {
        self.check(producer)?;
        match &self.phase {
            Phase::Ending { .. } => Err(CoordinatorError::Concurrent),
            Phase::Ongoing(open) if open.partitions.contains(&partition) => Ok(()),
            Phase::Ongoing(_) | Phase::Empty | Phase::Ended { .. } => {
                Err(CoordinatorError::NotInTransaction)
            }
        }
    }

    /// Commits or aborts. False if that was decided already, by this same request sent before.
    pub(super) fn end(
        &mut self,
        now_ms: i64,
        producer: Producer,
        version: TransactionVersion,
        commit: bool,
        fresh_id: Option<i64>,
    ) -> Result<bool, CoordinatorError> {
        let is_current = producer == self.current;
        let is_repeated = self.previous == Some(producer);
        if producer.id != self.current.id && !is_repeated {
            return Err(CoordinatorError::UnknownProducer);
        }
        let is_v2 = version == TransactionVersion::V2;
        match &self.phase {
            Phase::Ongoing(_) if is_current => {}
            Phase::Empty if is_current && is_v2 && !commit => {}
            Phase::Empty if is_current => return Err(CoordinatorError::InvalidState),
            Phase::Ending { commit: decided, open, .. } => {
                let ends_this =
                    if open.version == TransactionVersion::V2 { is_repeated } else { is_current };
                return Err(match ends_this {
                    true if *decided == commit => CoordinatorError::Concurrent,
                    true => CoordinatorError::InvalidState,
                    // The next one, of which nothing has come here yet, is given up already.
                    false if is_current => CoordinatorError::Concurrent,
                    false => CoordinatorError::Fenced,
                });
            }
            Phase::Ended { commit: decided } if is_v2 && is_repeated || !is_v2 && is_current => {
                let is_same = *decided == commit;
                return if is_same { Ok(false) } else { Err(CoordinatorError::InvalidState) };
            }
            Phase::Ended { .. } if is_current && !commit => {}
            Phase::Ended { .. } if is_current => return Err(CoordinatorError::InvalidState),
            Phase::Empty | Phase::Ongoing(_) | Phase::Ended { .. } => {
                return Err(CoordinatorError::Fenced);
            }
        }
        let marker = if is_v2 { producer.fenced_by() } else { producer };
        if is_v2 {
            let next = if producer.is_exhausted() {
                Producer::first(fresh_id.ok_or(CoordinatorError::Concurrent)?)
            } else {
                marker
            };
            self.previous = Some(producer);
            self.current = next;
        }
        // The last word on how its transactions are told apart has whoever ends this one.
        if let Phase::Ongoing(open) = &mut self.phase {
            open.version = version;
        }
        self.decide(now_ms, commit, marker);
        Ok(true)
    }

    /// All markers are committed. False if another transaction is meant.
    pub(super) fn on_ended(&mut self, now_ms: i64, producer: Producer) -> bool {
        let commit = match &self.phase {
            Phase::Ending { commit, marker, .. } if *marker == producer => *commit,
            Phase::Ending { .. } | Phase::Empty | Phase::Ongoing(_) | Phase::Ended { .. } => {
                return false;
            }
        };
        self.phase = Phase::Ended { commit };
        self.updated_at_ms = now_ms;
        true
    }

    fn decide(&mut self, now_ms: i64, commit: bool, marker: Producer) {
        self.updated_at_ms = now_ms;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Empty) {
            Phase::Ongoing(open) => Phase::Ending { commit, marker, open },
            Phase::Empty | Phase::Ending { .. } | Phase::Ended { .. } => Phase::Ended { commit },
        };
    }

    fn check(&self, producer: Producer) -> Result<(), CoordinatorError> {
        if producer.id != self.current.id {
            return Err(CoordinatorError::UnknownProducer);
        }
        if producer != self.current {
            return Err(CoordinatorError::Fenced);
        }
        Ok(())
    }
}
