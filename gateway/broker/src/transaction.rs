//! Transactions of producers, as their coordinator runs them, without I/O (KIP-98, KIP-890).
//!
//! ```text
//!                +-------- InitProducerId: epoch + 1 --------------------------+
//!                v                                                             |
//! (nothing) -> Empty -- first partition --> Ongoing -- EndTxn --> Prepare* -- markers --> Complete*
//!                                             ^  |  time-out, InitProducerId: PrepareAbort    |
//!                                             |  +--------------------------------------      |
//!                                             +-------------- first partition ----------------+
//! ```
//!
//! [`Transactions`] decides at once in memory and gives records to write down; what comes of a
//! decision (answers, markers) is to be carried out only when its records, and all before them, are
//! committed (rule 50). If they can't be, all of it is thrown away and loaded anew: the state is a
//! function of the records alone.
//!
//! With version 2 every end bumps the epoch: its markers carry the next epoch, so that nothing that
//! was sent before them can be written after them (rule 49).

pub(crate) mod record;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::PartitionId;
use meridian_protocol::ErrorCode;
use meridian_storage::codec::DecodeError;
use meridian_storage::mutation::{Mutation, Mutations};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::record::{fuzz as fuzz_record, fuzz_seeds as fuzz_record_seeds};
pub use self::state::{Open, Phase, Transaction};
use crate::coordinator::Piece;
use crate::coordinator::queue::entry_size_bytes;
use crate::partition::{TransactionVersion, VerifyError};

/// A producer id and its epoch: who may write. A higher epoch fences all lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Producer {
    /// The producer id.
    pub id: i64,
    /// The epoch.
    pub epoch: i16,
}

impl Producer {
    /// Kafka's "none" on the wire.
    pub const NONE: Self = Self { id: -1, epoch: -1 };
    /// The last epoch a client ever sees. The one after it serves only to fence.
    pub const EPOCH_MAX: i16 = i16::MAX - 1;

    /// A new producer.
    pub const fn first(id: i64) -> Self {
        Self { id, epoch: 0 }
    }

    /// Whether the next one must have another id.
    pub const fn is_exhausted(self) -> bool {
        self.epoch >= Self::EPOCH_MAX
    }

    /// The producer with the epoch that fences this one.
    const fn fenced_by(self) -> Self {
        Self { id: self.id, epoch: self.epoch.saturating_add(1) }
    }
}

/// Bounds of the transactions of one coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionLimits {
    /// `transactional.id.expiration.ms`: ids that were not used for this long are forgotten.
    pub id_expiration: Duration,
    /// Most ids.
    pub id_count_max: usize,
    /// Most partitions of one transaction.
    pub partition_count_max: usize,
    /// Most requests that wait for the last transaction of one id to end.
    pub waiting_count_max: usize,
    /// How long they wait.
    pub waiting_time_max: Duration,
    /// The broken rule, if any.
    pub mutations: Mutations,
}

impl Default for TransactionLimits {
    fn default() -> Self {
        Self {
            id_expiration: Duration::from_secs(7 * 24 * 3600),
            id_count_max: 100_000,
            partition_count_max: 50_000,
            waiting_count_max: 1_000,
            waiting_time_max: Duration::from_secs(1),
            mutations: Mutations::NONE,
        }
    }
}

/// Why a coordinator refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinatorError {
    /// The transactional id is not known, or belongs to another producer id.
    #[error("the transactional id is not that producer's; initialise the producer again")]
    UnknownProducer,
    /// A newer instance of the producer took over.
    #[error("a newer instance of the producer took over")]
    Fenced,
    /// The last transaction is still being ended.
    #[error("the producer's last transaction is still being ended; retry")]
    Concurrent,
    /// The transaction is in a state in which this can't be done.
    #[error("the transaction's state does not allow it")]
    InvalidState,
    /// The partition is not in the transaction.
    #[error("the partition is not in the producer's transaction; abort it and begin anew")]
    NotInTransaction,
    /// There are too many ids, or too many partitions in one transaction.
    #[error("too many transactional ids, or partitions in one transaction")]
    TooMany,
    /// The coordinator is elsewhere, or on its way there.
    #[error("this node does not coordinate the transaction (any more); look the coordinator up")]
    NotCoordinator,
    /// The coordinator reads its log.
    #[error("the coordinator is taking over; retry")]
    Loading,
    /// The coordinator can't write down what it decides.
    #[error("the coordinator can't make its decision durable now; retry")]
    Unavailable,
}

impl CoordinatorError {
    /// Why a coordinator can't be asked.
    pub fn of_code(code: ErrorCode) -> Self {
        match code {
            ErrorCode::CoordinatorLoadInProgress => Self::Loading,
            ErrorCode::NotCoordinator => Self::NotCoordinator,
            _ => Self::Unavailable,
        }
    }
}

impl From<CoordinatorError> for VerifyError {
    fn from(error: CoordinatorError) -> Self {
        match error {
            CoordinatorError::UnknownProducer => Self::UnknownProducer,
            CoordinatorError::Fenced => Self::Fenced,
            CoordinatorError::Concurrent => Self::Concurrent,
            CoordinatorError::InvalidState
            | CoordinatorError::NotInTransaction
            | CoordinatorError::TooMany => Self::NotInTransaction,
            CoordinatorError::NotCoordinator
            | CoordinatorError::Loading
            | CoordinatorError::Unavailable => Self::Unavailable,
        }
    }
}

/// What a coordinator is asked or told.
#[derive(Clone, Debug)]
pub enum Input {
    /// Give the producer of a transactional id its identity, and fence whoever had it before.
    Init {
        /// The id.
        id: String,
        /// After how long a transaction of it is aborted.
        timeout_ms: i32,
        /// Who the caller says it is: it goes on from there, or is fenced (KIP-360).
        expected: Option<Producer>,
        /// A producer id that nobody has.
        fresh_id: Option<i64>,
    },
    /// Add partitions to the transaction; the first ones begin it.
    Add {
        /// The id.
        id: String,
        /// Whose.
        producer: Producer,
        /// How its transactions are told apart.
        version: TransactionVersion,
        /// The partitions.
        partitions: BTreeSet<PartitionId>,
    },
    /// Say whether a partition is in the transaction.
    Verify {
        /// The id.
        id: String,
        /// Whose.
        producer: Producer,
        /// The partition.
        partition: PartitionId,
    },
    /// Commit or abort.
    End {
        /// The id.
        id: String,
        /// Whose.
        producer: Producer,
        /// How its transactions are told apart.
        version: TransactionVersion,
        /// Whether the records count.
        commit: bool,
        /// A producer id that nobody has.
        fresh_id: Option<i64>,
    },
}

impl Input {
    /// The transactional id.
    pub fn id(&self) -> &str {
        let (Self::Init { id, .. } | Self::Add { id, .. } | Self::Verify { id, .. }) = self else {
            let Self::End { id, .. } = self else { unreachable!("all inputs have an id") };
            return id;
        };
        id
    }
}

/// What a coordinator says to whoever asked.
pub type Answer = Result<Producer, CoordinatorError>;

/// The end of a transaction, to be told to its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The transactional id.
    pub id: String,
    /// Whom the markers are from. With version 2 its epoch is the one after the transaction's.
    pub producer: Producer,
    /// How the producer's transactions are told apart.
    pub version: TransactionVersion,
    /// Whether the records count.
    pub commit: bool,
    /// Where markers are to be written.
    pub partitions: Vec<PartitionId>,
}

/// What is to be done once the records of a decision, and all before it, are committed.
#[derive(Debug)]
pub enum Output<W> {
    /// Answer whoever asked.
    Answer {
        /// Who.
        waiter: W,
        /// What.
        answer: Answer,
    },
    /// Write markers, and tell [`Transactions::on_ended`] when they are all committed.
    WriteMarkers(Ending),
}

/// What was decided.
#[derive(Debug)]
pub struct Decision<W> {
    /// Keys and values to write down, in order; `None` deletes.
    pub records: Vec<(Bytes, Option<Bytes>)>,
    /// What to do then.
    pub then: Vec<Output<W>>,
}

impl<W> Default for Decision<W> {
    fn default() -> Self {
        Self { records: Vec::new(), then: Vec::new() }
    }
}

impl<W> Decision<W> {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.then.is_empty()
    }

    fn answer(&mut self, waiter: W, answer: Answer) {
        self.then.push(Output::Answer { waiter, answer });
    }
}

/// A request that waits for the last transaction of its id to end.
#[derive(Debug)]
struct Waiting<W> {
    input: Input,
    waiter: W,
    until_ms: i64,
}

/// The transactions of one coordinator. `W` names whoever waits for an answer.
#[derive(Debug)]
pub struct Transactions<W> {
    limits: TransactionLimits,
    by_id: BTreeMap<String, Transaction>,
    waiting: BTreeMap<String, Vec<Waiting<W>>>,
}

impl<W> Transactions<W> {
    /// A coordinator of no transactions.
    pub fn new(limits: TransactionLimits) -> Self {
        Self { limits, by_id: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    /// One transaction.
    pub fn get(&self, id: &str) -> Option<&Transaction> {
        self.by_id.get(id)
    }

    /// All transactions.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Transaction)> {
        self.by_id.iter().map(|(id, transaction)| (id.as_str(), transaction))
    }

    /// The number of transactional ids.
    pub fn count(&self) -> usize {
        self.by_id.len()
    }

    /// Whether an answer to this may need a producer id that nobody has.
    pub fn wants_fresh_id(&self, input: &Input) -> bool {
        let known = self.by_id.get(input.id());
        match input {
            Input::Init { .. } => known.is_none_or(|known| known.current().is_exhausted()),
            Input::End { version: TransactionVersion::V2, .. } => {
                known.is_some_and(|known| known.current().is_exhausted())
            }
            Input::End { .. } | Input::Add { .. } | Input::Verify { .. } => false,
        }
    }

    /// Applies a record of the log.
    pub fn replay(&mut self, key: Bytes, value: Option<Bytes>) -> Result<(), DecodeError> {
        let id = record::decode_key(key)?;
        match value {
            Some(value) => {
                self.by_id.insert(id, record::decode_value(value)?);
            }
            None => {
                self.by_id.remove(&id);
            }
        }
        Ok(())
    }

    /// The log has been replayed: what was being ended must be ended (rule 50).
    pub fn on_loaded(&self) -> Vec<Ending> {
        let endings = self.by_id.iter().filter_map(|(id, transaction)| transaction.ending(id));
        endings.collect()
    }

    /// Records of what holds after this id, or of all; the id after which the next ones begin.
    pub(crate) fn piece(&self, after: Option<String>, size_bytes_max: usize) -> Piece<String> {
        let after = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let (mut records, mut size_bytes) = (Vec::new(), 0);
        let mut rest = self.by_id.range::<str, _>((after, Bound::Unbounded)).peekable();
        while let Some((id, transaction)) = rest.next() {
            let entry = (record::encode_key(id), Some(record::encode_value(transaction)));
            size_bytes += entry_size_bytes(&entry);
            records.push(entry);
            if size_bytes >= size_bytes_max && rest.peek().is_some() {
                return Piece { records, next: Some(id.clone()) };
            }
        }
        Piece { records, next: None }
    }

    /// Decides. `now_ms` is wall-clock time: it says when transactions time out and ids expire, on
    /// this coordinator and the next, and nothing else depends on it.
    pub fn step(&mut self, now_ms: i64, input: Input, waiter: W) -> Decision<W> {
        let mut decision = Decision::default();
        self.decide(now_ms, input, waiter, &mut decision);
        decision
    }

    /// All markers of a transaction are committed.
    pub fn on_ended(&mut self, now_ms: i64, id: &str, producer: Producer) -> Decision<W> {
        let mut decision = Decision::default();
        let ended = self.by_id.get_mut(id).is_some_and(|known| known.on_ended(now_ms, producer));
        if !ended {
            return decision;
        }
        self.write_down(id, &mut decision);
        for Waiting { input, waiter, .. } in self.waiting.remove(id).unwrap_or_default() {
            self.decide(now_ms, input, waiter, &mut decision);
        }
        decision
    }

    /// Aborts what takes too long, forgets what nobody uses, and answers those who waited in vain.
    pub fn tick(&mut self, now_ms: i64) -> Decision<W> {
        let mut decision = Decision::default();
        let late = |transaction: &Transaction| transaction.is_late(now_ms);
        let late = self.by_id.iter().filter(|(_, it)| late(it)).map(|(id, _)| id.clone());
        for id in late.collect::<BTreeSet<String>>() {
            tracing::info!(transactional_id = id, "transaction timed out; it is aborted");
            if let Some(transaction) = self.by_id.get_mut(&id) {
                let goes_on = Mutation::TimeOutUnfenced.active(self.limits.mutations);
                transaction.time_out(now_ms, goes_on);
            }
            self.end(&id, &mut decision);
        }
        let unused_since_ms = now_ms.saturating_sub(millis(self.limits.id_expiration));
        let expired: BTreeSet<String> = self
            .by_id
            .iter()
            .filter(|(_, transaction)| transaction.is_unused_since(unused_since_ms))
            .map(|(id, _)| id.clone())
            .collect();
        for id in expired {
            self.by_id.remove(&id);
            decision.records.push((record::encode_key(&id), None));
        }
        self.waiting.retain(|_, waiting| {
            for late in waiting.extract_if(.., |waiting| waiting.until_ms <= now_ms) {
                decision.answer(late.waiter, Err(CoordinatorError::Concurrent));
            }
            !waiting.is_empty()
        });
        decision
    }

    fn decide(&mut self, now_ms: i64, input: Input, waiter: W, decision: &mut Decision<W>) {
        let answer = match &input {
            Input::Init { id, timeout_ms, expected, fresh_id } => {
                self.init(now_ms, id, *timeout_ms, *expected, *fresh_id, decision)
            }
            Input::Add { id, producer, version, partitions } => {
                match self.add(now_ms, id, *producer, *version, partitions, decision) {
                    Err(CoordinatorError::Concurrent) => {
                        return self.wait(now_ms, input, waiter, decision);
                    }
                    answer => answer,
                }
            }
            Input::Verify { id, producer, partition } => {
                let known = self.by_id.get(id).ok_or(CoordinatorError::UnknownProducer);
                known.and_then(|known| known.verify(*producer, *partition)).map(|()| *producer)
            }
            Input::End { id, producer, version, commit, fresh_id } => {
                let takes_late = Mutation::LateEndAccepted.active(self.limits.mutations);
                let fresh_id = self.fresh_id(id, *fresh_id);
                let known = self.by_id.get_mut(id).ok_or(CoordinatorError::UnknownProducer);
                let ended = known.and_then(|known| {
                    let is_late = known.previous == Some(*producer) && known.open().is_some();
                    let of = if takes_late && is_late { known.current() } else { *producer };
                    known.end(now_ms, of, *version, *commit, fresh_id)
                });
                ended.map(|is_new| {
                    if is_new {
                        self.end(id, decision);
                    }
                    self.by_id.get(id).map_or(*producer, Transaction::current)
                })
            }
        };
        decision.answer(waiter, answer);
    }

    /// The producer id for who needs another.
    fn fresh_id(&self, id: &str, given: Option<i64>) -> Option<i64> {
        if Mutation::EpochWraps.active(self.limits.mutations) {
            return self.by_id.get(id).map(|known| known.current().id).or(given);
        }
        given
    }

    fn init(
        &mut self,
        now_ms: i64,
        id: &str,
        timeout_ms: i32,
        expected: Option<Producer>,
        fresh_id: Option<i64>,
        decision: &mut Decision<W>,
    ) -> Answer {
        let fresh_id = self.fresh_id(id, fresh_id);
        let Some(known) = self.by_id.get_mut(id) else {
            if self.by_id.len() >= self.limits.id_count_max {
                return Err(CoordinatorError::TooMany);
            }
            let producer = Producer::first(fresh_id.ok_or(CoordinatorError::Concurrent)?);
            self.by_id.insert(id.to_owned(), Transaction::new(now_ms, producer, timeout_ms));
            self.write_down(id, decision);
            return Ok(producer);
        };
        if matches!(known.phase(), Phase::Ongoing(_)) {
            // The caller comes again when the transaction of whoever it replaces has ended.
            known.fence(now_ms, expected)?;
            self.end(id, decision);
            return Err(CoordinatorError::Concurrent);
        }
        let is_new = known.init(now_ms, timeout_ms, expected, fresh_id)?;
        let producer = known.current();
        if is_new {
            self.write_down(id, decision);
        }
        Ok(producer)
    }

    fn add(
        &mut self,
        now_ms: i64,
        id: &str,
        producer: Producer,
        version: TransactionVersion,
        partitions: &BTreeSet<PartitionId>,
        decision: &mut Decision<W>,
    ) -> Answer {
        let known = self.by_id.get_mut(id).ok_or(CoordinatorError::UnknownProducer)?;
        let count_max = self.limits.partition_count_max;
        if known.add(now_ms, producer, version, partitions, count_max)? {
            self.write_down(id, decision);
        }
        Ok(producer)
    }

    /// Lets a request wait until the id's last transaction has ended.
    fn wait(&mut self, now_ms: i64, input: Input, waiter: W, decision: &mut Decision<W>) {
        let waiting = self.waiting.entry(input.id().to_owned()).or_default();
        if waiting.len() >= self.limits.waiting_count_max {
            return decision.answer(waiter, Err(CoordinatorError::Concurrent));
        }
        let until_ms = now_ms.saturating_add(millis(self.limits.waiting_time_max));
        waiting.push(Waiting { input, waiter, until_ms });
    }

    /// Writes a transaction down that has just begun to end, and has its partitions told.
    fn end(&mut self, id: &str, decision: &mut Decision<W>) {
        self.write_down(id, decision);
        let ending = self.by_id.get(id).and_then(|transaction| transaction.ending(id));
        decision.then.extend(ending.map(Output::WriteMarkers));
    }

    fn write_down(&self, id: &str, decision: &mut Decision<W>) {
        let value = self.by_id.get(id).map(record::encode_value);
        decision.records.push((record::encode_key(id), value));
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
