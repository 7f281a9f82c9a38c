//! One partition on one node whose disk answers at once: schedules that would take a cluster two
//! thousand million records, or producers of an older protocol than the workloads have.

use std::collections::VecDeque;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_broker::partition::{
    Marker, Partition, PartitionLimits, PartitionOutput, PartitionState, ProduceError,
    TransactionVersion,
};
use meridian_broker::producer::Sequenced;
use meridian_broker::transaction::Producer;
use meridian_storage::message::{PutReply, PutResult};
use meridian_storage::mutation::Mutations;
use meridian_storage::placement::SlotHealth;
use meridian_storage::takeover::TakeoverPlan;

use super::late_end::Bench as Coordinator;
use super::{INCARNATION, alone};
use crate::check::{Promise, Verdict, Violation};
use crate::value::{Batch, Kind, Value};

const PRODUCER: u32 = 9;
/// How long a silent producer is remembered.
const DAY_MS: i64 = 24 * 3600 * 1000;

/// The partition, and what it has answered.
struct Bench {
    partition: Partition<()>,
    health: SlotHealth,
    answers: VecDeque<Result<Offset, ProduceError>>,
}

impl Bench {
    /// A partition that goes on from `state`.
    fn new(mutations: Mutations, state: PartitionState) -> Self {
        let config = alone(1 << 20, mutations);
        let health = SlotHealth::all_alive(Duration::from_millis(5));
        let (epoch, limits) = (LeaderEpoch::new(3), PartitionLimits::default());
        let plan = TakeoverPlan::first(epoch);
        let mut out = Vec::new();
        let partition =
            Partition::start(config, epoch, limits, plan, Instant::ZERO, &health, &mut out);
        let mut bench = Self { partition, health, answers: VecDeque::new() };
        bench.take(out);
        let mut out = Vec::new();
        bench.partition.recover(state, &mut out).expect("the state of an empty log");
        bench.take(out);
        bench
    }

    /// Carries everything out: the disk stores, the coordinator vouches.
    fn take(&mut self, outputs: Vec<PartitionOutput<()>>) {
        for output in outputs {
            let mut out = Vec::new();
            match output {
                PartitionOutput::Put { slot, put } => {
                    let (key, result) = (put.blob.key, PutResult::Stored);
                    let reply = PutReply { key, incarnation: INCARNATION, result };
                    self.partition.on_reply(Instant::ZERO, &self.health, slot, reply, &mut out);
                }
                PartitionOutput::Verify { ticket, .. } => {
                    let health = &self.health;
                    self.partition.on_verified(Instant::ZERO, health, ticket, Ok(()), &mut out);
                }
                PartitionOutput::Answer { result, .. } => {
                    self.answers.push_back(result.map(|appended| appended.base_offset));
                }
                PartitionOutput::Progress(_)
                | PartitionOutput::Beacon(_)
                | PartitionOutput::Lost(_) => {}
            }
            self.take(out);
        }
    }

    /// Writes a value.
    fn produce(&mut self, first: Value, kind: Kind) -> Option<Result<Offset, ProduceError>> {
        let batch = Batch { first, count: 1, kind }.to_record_batch();
        let mut out = Vec::new();
        self.partition.produce(Instant::ZERO, &self.health, vec![batch], (), &mut out);
        self.take(out);
        self.answers.pop_front()
    }

    fn mark(&mut self, marker: Marker) -> Option<Result<Offset, ProduceError>> {
        let mut out = Vec::new();
        self.partition.write_marker(Instant::ZERO, &self.health, &marker, 0, (), &mut out);
        self.take(out);
        self.answers.pop_front()
    }
}

/// The first value of an epoch.
fn first_of(producer: Producer) -> Value {
    let (producer, epoch) = (producer.id as u32, producer.epoch as u16);
    Value { producer, epoch, sequence: 0 }
}

fn value(sequence: u32) -> Value {
    Value { producer: PRODUCER, epoch: 0, sequence }
}

fn expect(promise: Promise, holds: bool, detail: String) -> Verdict {
    if holds { Ok(()) } else { Err(Violation { promise, detail }) }
}

/// A producer whose last record had the highest sequence number there is goes on with 0, and sends
/// that again.
pub fn wrapped_sequence(mutations: Mutations) -> Verdict {
    let mut state = PartitionState::default();
    let last = Sequenced {
        producer_id: i64::from(PRODUCER),
        epoch: 0,
        base_sequence: i32::MAX,
        record_count: 1,
        max_timestamp_ms: 0,
    };
    state.producers.apply(&last, Offset::ZERO);
    let mut bench = Bench::new(mutations, state);
    let (first, again) =
        (bench.produce(value(0), Kind::Plain), bench.produce(value(0), Kind::Plain));
    let is_once = matches!((&first, &again), (Some(Ok(at)), Some(Ok(twice))) if at == twice);
    let detail = format!("after {}, 0 was answered {first:?}, then {again:?}", i32::MAX);
    expect(Promise::ProducerOrder, is_once, detail)
}

/// The topic of a producer was recreated: its first batch there is in the midst of its sequence.
/// Then it is silent for so long that it is forgotten, and sends its last batch again, whose answer
/// it never had.
pub fn forgotten_producer(mutations: Mutations) -> Verdict {
    let mut bench = Bench::new(mutations, PartitionState::default());
    let first = bench.produce(value(7), Kind::Plain);
    let last = bench.produce(value(8), Kind::Plain);
    let is_taken = matches!((&first, &last), (Some(Ok(_)), Some(Ok(_))));
    let detail = format!("in a new log, 7 was answered {first:?}, and 8 {last:?}");
    expect(Promise::ProducerOrder, is_taken, detail)?;
    bench.partition.set_time(DAY_MS);
    bench.partition.expire(DAY_MS, 0);
    let again = bench.produce(value(8), Kind::Plain);
    let is_refused = matches!(again, Some(Err(_)));
    expect(Promise::ExactlyOnce, is_refused, format!("8 was {last:?}, and is again {again:?}"))
}

/// A producer whose epoch was the highest there is goes on after its transaction has ended.
pub fn wrapped_epoch(mutations: Mutations) -> Verdict {
    let mut coordinator = Coordinator::new(mutations);
    let last = std::iter::repeat_with(|| coordinator.init(i64::from(PRODUCER)))
        .take(1 + Producer::EPOCH_MAX as usize)
        .last()
        .flatten();
    let at_last = last.filter(|last| last.is_exhausted());
    let Some(last) = at_last else {
        return expect(Promise::Invariant, false, format!("after all epochs comes {last:?}"));
    };
    let next = coordinator.commit(last, i64::from(PRODUCER) + 1);
    let mut bench = Bench::new(mutations, PartitionState::default());
    let kind = Kind::Transactional { number: 0 };
    let written = bench.produce(first_of(last), kind);
    let ended = bench.mark(Marker {
        producer_id: last.id,
        // Nobody writes with this one.
        producer_epoch: i16::MAX,
        coordinator_epoch: 5,
        commit: true,
        version: TransactionVersion::V2,
        number: 0,
    });
    let goes_on = next.and_then(|next| bench.produce(first_of(next), kind));
    let all = [&written, &ended, &goes_on].map(|it| matches!(it, Some(Ok(_))));
    let detail = format!(
        "{last:?} was answered {written:?}, its marker {ended:?}; it goes on as {next:?} and is \
         answered {goes_on:?}"
    );
    expect(Promise::ProducerOrder, all == [true; 3], detail)
}

/// A coordinator that was replaced while it told a partition of the end of a transaction tells it
/// once more, when the producer's next transaction is open: with version 1 both have one epoch.
pub fn late_coordinator(mutations: Mutations) -> Verdict {
    let mut bench = Bench::new(mutations, PartitionState::default());
    let mark = |coordinator_epoch| Marker {
        producer_id: i64::from(PRODUCER),
        producer_epoch: 0,
        coordinator_epoch,
        commit: true,
        version: TransactionVersion::V1,
        // The partition has moved since, and does not know the endings of its last leader.
        number: 0,
    };
    bench.produce(value(0), Kind::Transactional { number: 1 });
    bench.mark(mark(5));
    bench.produce(value(1), Kind::Transactional { number: 2 });
    let late = bench.mark(mark(4));
    let producer_id = i64::from(PRODUCER);
    let is_open = bench.partition.state().transactions.ongoing(producer_id).is_some();
    let detail = format!("the marker of coordinator 4, after one of 5, was answered {late:?}");
    expect(Promise::AtomicTransactions, is_open, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_follows_the_highest_sequence() {
        assert_eq!(wrapped_sequence(Mutations::NONE), Ok(()));
    }

    #[test]
    fn another_producer_id_follows_the_highest_epoch() {
        assert_eq!(wrapped_epoch(Mutations::NONE), Ok(()));
    }

    #[test]
    fn a_replaced_coordinator_ends_nothing() {
        assert_eq!(late_coordinator(Mutations::NONE), Ok(()));
    }
}
