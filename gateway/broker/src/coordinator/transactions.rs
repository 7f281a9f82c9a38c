//! Transactions as a coordinator keeps them.

use std::ops::Deref;

use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_protocol::records::{BatchHeader, Record};
use meridian_storage::codec::DecodeError;
use meridian_storage::mutation::Mutation;

use super::queue::Write;
use super::state::{Piece, State};
use crate::transaction::{
    CoordinatorError, Decision, Input, Output, Producer, TransactionLimits, Transactions,
};

/// The transactions of one coordinator, and what was decided of them. `W` names whoever waits for an answer.
#[derive(Debug)]
pub struct TransactionState<W> {
    transactions: Transactions<W>,
    limits: TransactionLimits,
    decided: Vec<Write<Vec<Output<W>>>>,
    outcomes: Vec<Output<W>>,
}

impl<W> TransactionState<W> {
    /// What an empty log says.
    pub fn new(limits: TransactionLimits) -> Self {
        let transactions = Transactions::new(limits);
        Self { transactions, limits, decided: Vec::new(), outcomes: Vec::new() }
    }

    /// Decides; see [`Transactions::step`].
    pub fn step(&mut self, now_ms: i64, input: Input, waiter: W) {
        let decision = self.transactions.step(now_ms, input, waiter);
        self.on_decided(decision);
    }

    /// All markers of a transaction are committed.
    pub fn on_ended(&mut self, now_ms: i64, id: &str, producer: Producer) {
        let decision = self.transactions.on_ended(now_ms, id, producer);
        self.on_decided(decision);
    }

    /// Looks at deadlines; see [`Transactions::tick`].
    pub fn tick(&mut self, now_ms: i64) {
        let decision = self.transactions.tick(now_ms);
        self.on_decided(decision);
    }

    fn on_decided(&mut self, decision: Decision<W>) {
        if decision.is_empty() {
            return;
        }
        let Decision { records, then: mut effect } = decision;
        if Mutation::MarkerBeforeRecord.active(self.limits.mutations) {
            self.outcomes.append(&mut effect);
        }
        self.decided.push(Write { records, effect });
    }
}

impl<W> Deref for TransactionState<W> {
    type Target = Transactions<W>;

    fn deref(&self) -> &Transactions<W> {
        &self.transactions
    }
}

impl<W> State for TransactionState<W> {
    type Effect = Vec<Output<W>>;
    type Outcome = Output<W>;
    /// After this transactional id.
    type Place = String;

    fn replay(&mut self, _batch: &BatchHeader, record: Record) -> Result<(), DecodeError> {
        self.transactions.replay(record.key.unwrap_or_default(), record.value)
    }

    fn on_loaded(&mut self, _now: Instant) {
        let endings = self.transactions.on_loaded();
        self.outcomes.extend(endings.into_iter().map(Output::WriteMarkers));
    }

    fn take_decisions(&mut self) -> Vec<Write<Self::Effect>> {
        std::mem::take(&mut self.decided)
    }

    fn on_committed(&mut self, _at: Offset, effect: Self::Effect) {
        self.outcomes.extend(effect);
    }

    fn refuse(&mut self, effect: Self::Effect, code: ErrorCode) {
        self.outcomes.extend(effect.into_iter().filter_map(|output| match output {
            Output::Answer { waiter, .. } => {
                Some(Output::Answer { waiter, answer: Err(CoordinatorError::of_code(code)) })
            }
            // Whoever reads the log next goes by what it says.
            Output::WriteMarkers(_) => None,
        }));
    }

    fn take_outcomes(&mut self) -> Vec<Output<W>> {
        std::mem::take(&mut self.outcomes)
    }

    fn clear(&mut self) {
        self.transactions = Transactions::new(self.limits);
    }

    fn held_count(&self) -> usize {
        self.transactions.count()
    }

    fn piece(&self, from: Option<String>, size_bytes_max: usize) -> Piece<String> {
        self.transactions.piece(from, size_bytes_max)
    }
}
