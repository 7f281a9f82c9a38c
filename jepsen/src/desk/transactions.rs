//! The coordinator of transactions at its desk.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_broker::coordination::journal::{Entry, Journal, Write};
use meridian_broker::coordination::records_in;
use meridian_broker::partition::{Marker, TransactionVersion, Verification, VerifyError};
use meridian_broker::transaction::{
    Answer, CoordinatorError, Decision, Ending, Input, Output, Producer, TransactionLimits,
    Transactions,
};
use meridian_storage::mutation::{Mutation, Mutations};

use super::{DeskOutput, DeskTime, Told, TransactionWaiter};

/// How often deadlines are looked at.
const TICK_EVERY: Duration = Duration::from_millis(100);
/// After this long a leader is sent a marker again.
const MARK_AGAIN_AFTER: Duration = Duration::from_millis(150);
/// Bytes of our own records written at once: less than may be in doubt.
const BATCH_SIZE_BYTES: usize = 1_500;

type Outputs = Vec<Output<TransactionWaiter>>;

/// A transaction whose partitions are being told.
struct Marking {
    id: String,
    producer: Producer,
    marker: Marker,
    left: BTreeSet<PartitionId>,
    again_at: Instant,
}

pub(super) struct TransactionDesk {
    transactions: Transactions<TransactionWaiter>,
    journal: Journal<Outputs>,
    taken: Vec<Write<Outputs>>,
    /// Decided, and to be told to partitions.
    ending: Vec<Ending>,
    marking: BTreeMap<u64, Marking>,
    next_number: u64,
    tick_at: Instant,
}

impl TransactionDesk {
    pub(super) fn new(mutations: Mutations) -> Self {
        let limits = TransactionLimits { mutations, ..TransactionLimits::default() };
        Self {
            transactions: Transactions::new(limits),
            journal: Journal::default(),
            taken: Vec::new(),
            ending: Vec::new(),
            marking: BTreeMap::new(),
            next_number: 0,
            tick_at: Instant::ZERO,
        }
    }

    /// One that has read nothing yet, and goes on with its numbers.
    pub(super) fn anew(&self, mutations: Mutations) -> Self {
        Self { next_number: self.next_number, ..Self::new(mutations) }
    }

    pub(super) fn replay(&mut self, bytes: Bytes, from: Offset) -> Offset {
        records_in(bytes, from, |_, record| {
            let read = self.transactions.replay(record.key.unwrap_or_default(), record.value);
            read.expect("a record of ours");
        })
    }

    pub(super) fn on_loaded(&mut self, _time: DeskTime) {
        self.ending = self.transactions.on_loaded();
    }

    pub(super) fn step(
        &mut self,
        time: DeskTime,
        mut input: Input,
        waiter: TransactionWaiter,
        out: &mut Vec<DeskOutput>,
    ) {
        if self.transactions.wants_fresh_id(&input)
            && let Input::Init { fresh_id, .. } | Input::End { fresh_id, .. } = &mut input
        {
            out.push(DeskOutput::WantIds);
            if time.fresh_id.is_none() {
                return tell(waiter, Err(CoordinatorError::Unavailable), out);
            }
            *fresh_id = time.fresh_id;
        }
        let decision = self.transactions.step(time.now_ms(), input, waiter);
        self.push(decision);
    }

    pub(super) fn verify(
        &mut self,
        time: DeskTime,
        Verification { transaction, partition }: Verification,
        waiter: TransactionWaiter,
        out: &mut Vec<DeskOutput>,
    ) {
        let id = transaction.transactional_id.to_string();
        let producer = Producer { id: transaction.producer_id, epoch: transaction.producer_epoch };
        let version = transaction.version;
        let input = match version {
            TransactionVersion::V1 => Input::Verify { id, producer, partition },
            TransactionVersion::V2 => {
                Input::Add { id, producer, version, partitions: BTreeSet::from([partition]) }
            }
        };
        self.step(time, input, waiter, out);
    }

    fn push(&mut self, Decision { records, then }: Decision<TransactionWaiter>) {
        if !records.is_empty() || !then.is_empty() {
            self.journal.push(Write { records, effect: then });
        }
    }

    pub(super) fn take(
        &mut self,
        mutations: Mutations,
        out: &mut Vec<DeskOutput>,
    ) -> Option<Vec<Entry>> {
        self.taken = self.journal.take(BATCH_SIZE_BYTES);
        if self.taken.is_empty() {
            return None;
        }
        if Mutation::MarkerBeforeRecord.active(mutations) {
            let effects: Outputs =
                self.taken.iter_mut().flat_map(|it| std::mem::take(&mut it.effect)).collect();
            self.carry_out(effects, out);
        }
        Some(self.taken.iter().flat_map(|write| write.records.iter().cloned()).collect())
    }

    pub(super) fn on_written(&mut self, out: &mut Vec<DeskOutput>) {
        self.journal.on_committed();
        for write in std::mem::take(&mut self.taken) {
            self.carry_out(write.effect, out);
        }
    }

    fn carry_out(&mut self, outputs: Outputs, out: &mut Vec<DeskOutput>) {
        for output in outputs {
            match output {
                Output::Answer { waiter, answer } => tell(waiter, answer, out),
                Output::WriteMarkers(ending) => self.ending.push(ending),
            }
        }
    }

    fn begin_marking(&mut self, time: DeskTime) {
        for ending in std::mem::take(&mut self.ending) {
            self.next_number += 1;
            let marker = Marker {
                producer_id: ending.producer.id,
                producer_epoch: ending.producer.epoch,
                coordinator_epoch: time.leader_epoch.get(),
                commit: ending.commit,
                version: ending.version,
                number: self.next_number,
            };
            let Ending { id, producer, partitions, .. } = ending;
            let left = partitions.into_iter().collect();
            let marking = Marking { id, producer, marker, left, again_at: Instant::ZERO };
            self.marking.insert(self.next_number, marking);
        }
    }

    pub(super) fn on_marked(&mut self, time: DeskTime, number: u64, partition: PartitionId) {
        if let Some(marking) = self.marking.get_mut(&number) {
            marking.left.remove(&partition);
        }
        self.end_marking(time);
    }

    fn end_marking(&mut self, time: DeskTime) {
        let is_done = |(number, it): (&u64, &Marking)| it.left.is_empty().then_some(*number);
        let done: Vec<u64> = self.marking.iter().filter_map(is_done).collect();
        for number in done {
            let Some(Marking { id, producer, .. }) = self.marking.remove(&number) else { continue };
            let decision = self.transactions.on_ended(time.now_ms(), &id, producer);
            self.push(decision);
        }
    }

    pub(super) fn tick(&mut self, time: DeskTime, out: &mut Vec<DeskOutput>) {
        self.begin_marking(time);
        self.end_marking(time);
        for (number, marking) in &mut self.marking {
            if time.now >= marking.again_at {
                marking.again_at = time.now + MARK_AGAIN_AFTER;
                let mark = |of: &PartitionId| DeskOutput::Mark(*of, marking.marker, *number);
                out.extend(marking.left.iter().map(mark));
            }
        }
        if time.now >= self.tick_at {
            self.tick_at = time.now + TICK_EVERY;
            let decision = self.transactions.tick(time.now_ms());
            self.push(decision);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.transactions.all().all(|(_, transaction)| transaction.open().is_none())
    }
}

fn tell(waiter: TransactionWaiter, answer: Answer, out: &mut Vec<DeskOutput>) {
    out.push(match waiter {
        TransactionWaiter::Client(asker) => DeskOutput::Tell(asker, Told::Producer(answer)),
        TransactionWaiter::Leader { node, partition, generation, ticket } => {
            let result = answer.map(drop).map_err(VerifyError::from);
            DeskOutput::Vouch(node, partition, generation, ticket, result)
        }
    });
}
