//! The coordinator of transactions at its desk.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_broker::coordinator::{Coordinator, TransactionState};
use meridian_broker::partition::{Marker, TransactionVersion, Verification, VerifyError};
use meridian_broker::transaction::{
    Answer, CoordinatorError, Ending, Input, Output, Producer, TransactionLimits,
};
use meridian_storage::mutation::Mutations;

use super::{DeskOutput, DeskTime, Told, TransactionWaiter, config, settled};

/// How often deadlines are looked at.
const TICK_EVERY: Duration = Duration::from_millis(100);
/// After this long a leader is sent a marker again.
const MARK_AGAIN_AFTER: Duration = Duration::from_millis(150);

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
    pub(super) coordinator: Coordinator<TransactionState<TransactionWaiter>>,
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
            coordinator: Coordinator::new(TransactionState::new(limits), config(mutations)),
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

    pub(super) fn step(
        &mut self,
        time: DeskTime,
        mut input: Input,
        waiter: TransactionWaiter,
        out: &mut Vec<DeskOutput>,
    ) {
        let Ok(transactions) = self.coordinator.serving_mut() else { return };
        if transactions.wants_fresh_id(&input)
            && let Input::Init { fresh_id, .. } | Input::End { fresh_id, .. } = &mut input
        {
            out.push(DeskOutput::WantIds);
            if time.fresh_id.is_none() {
                return tell(waiter, Err(CoordinatorError::Unavailable), out);
            }
            *fresh_id = time.fresh_id;
        }
        transactions.step(time.now_ms(), input, waiter);
        let outcomes = settled(&mut self.coordinator);
        self.deliver(outcomes, out);
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

    pub(super) fn deliver(&mut self, outcomes: Outputs, out: &mut Vec<DeskOutput>) {
        for outcome in outcomes {
            match outcome {
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
            if let Ok(transactions) = self.coordinator.serving_mut() {
                transactions.on_ended(time.now_ms(), &id, producer);
            }
        }
    }

    pub(super) fn tick(&mut self, time: DeskTime, out: &mut Vec<DeskOutput>) {
        if self.coordinator.serving().is_err() {
            return;
        }
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
            if let Ok(transactions) = self.coordinator.serving_mut() {
                transactions.tick(time.now_ms());
            }
        }
        let outcomes = settled(&mut self.coordinator);
        self.deliver(outcomes, out);
    }

    pub(super) fn is_idle(&self) -> bool {
        let known = self.coordinator.serving();
        known.is_ok_and(|it| it.all().all(|(_, transaction)| transaction.open().is_none()))
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
