//! A coordinator of transactions that is told the end of one twice: when its producer sends it, and once
//! more, late, when the producer's next transaction is open.

use std::collections::BTreeSet;

use meridian_broker::partition::TransactionVersion;
use meridian_broker::transaction::{
    Answer, Decision, Input, Output, Phase, Producer, TransactionLimits, Transactions,
};
use meridian_storage::mutation::Mutations;

use super::PARTITION;
use crate::check::{Promise, Verdict, Violation};

const ID: &str = "late";
const VERSION: TransactionVersion = TransactionVersion::V2;

/// The coordinator, whose records and markers are written at once.
pub(super) struct Bench(Transactions<()>);

impl Bench {
    pub(super) fn new(mutations: Mutations) -> Self {
        Self(Transactions::new(TransactionLimits { mutations, ..TransactionLimits::default() }))
    }

    /// Initialises the producer, with this id if it needs another.
    pub(super) fn init(&mut self, fresh_id: i64) -> Option<Producer> {
        let (id, timeout_ms) = (ID.to_owned(), 60_000);
        let fresh_id = Some(fresh_id);
        self.ask(Input::Init { id, timeout_ms, expected: None, fresh_id })?.ok()
    }

    /// Begins a transaction and commits it; gives who goes on.
    pub(super) fn commit(&mut self, producer: Producer, fresh_id: i64) -> Option<Producer> {
        self.begin(producer);
        let (id, version, fresh_id) = (ID.to_owned(), VERSION, Some(fresh_id));
        self.ask(Input::End { id, producer, version, commit: true, fresh_id })?.ok()
    }

    fn ask(&mut self, input: Input) -> Option<Answer> {
        let decision = self.0.step(0, input, ());
        self.carry_out(decision)
    }

    /// Gives the answer, if there is one.
    fn carry_out(&mut self, decision: Decision<()>) -> Option<Answer> {
        let mut told = None;
        for output in decision.then {
            match output {
                Output::Answer { answer, .. } => told = Some(answer),
                Output::WriteMarkers(ending) => {
                    let ended = self.0.on_ended(0, &ending.id, ending.producer);
                    self.carry_out(ended);
                }
            }
        }
        told
    }

    fn begin(&mut self, producer: Producer) {
        let (id, partitions) = (ID.to_owned(), BTreeSet::from([PARTITION]));
        self.ask(Input::Add { id, producer, version: VERSION, partitions });
    }

    fn is_open(&self) -> bool {
        self.0.all().any(|(_, transaction)| matches!(transaction.phase(), Phase::Ongoing(_)))
    }
}

fn broken(promise: Promise, detail: String) -> Verdict {
    Err(Violation { promise, detail })
}

/// The end that comes late ends nothing.
pub fn late_end(mutations: Mutations) -> Verdict {
    let mut bench = Bench::new(mutations);
    let id = || ID.to_owned();
    let Some(first) = bench.init(9) else {
        return broken(Promise::Invariant, "no producer in a calm cluster".to_owned());
    };
    bench.begin(first);
    let end =
        Input::End { id: id(), producer: first, version: VERSION, commit: true, fresh_id: None };
    let Some(Ok(second)) = bench.ask(end.clone()) else {
        return broken(Promise::Invariant, "no end in a calm cluster".to_owned());
    };
    bench.begin(second);
    if !bench.is_open() {
        return broken(Promise::Invariant, "the second does not begin".to_owned());
    }
    let late = bench.ask(end);
    if bench.is_open() {
        return Ok(());
    }
    let detail = format!("the end of {first:?}, repeated, ended that of {second:?}: {late:?}");
    broken(Promise::AtomicTransactions, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_is_repeated_ends_nothing_else() {
        assert_eq!(late_end(Mutations::NONE), Ok(()));
    }
}
