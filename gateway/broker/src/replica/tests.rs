use std::time::Duration;

use meridian_base::id::{ConfigVersion, GroupId};
use meridian_base::topology::{Geometry, SlotConfig, SlotState};
use meridian_protocol::records::BatchBuilder;
use meridian_storage::message::{FenceResult, PartitionView, Put, PutReply, PutResult};

use super::*;
use crate::partition::ProduceError;
use crate::producer::{SequenceError, Sequenced};

const INCARNATION: Incarnation = Incarnation::new(7);
const NODE: NodeId = NodeId::new(1);
const NOW: Instant = Instant::ZERO;
const LATER: Generation = Generation::new(4);

/// A replica whose one disk answers when the test lets it.
struct Bench {
    replica: Replica<u32>,
    health: SlotHealth,
    geometry: Geometry,
    puts: Vec<(Slot, Put)>,
    fences: Vec<Fence>,
    plan: Option<RebuildPlan>,
    stopped: Option<StopCause>,
    answers: Vec<(u32, Result<i64, ProduceError>)>,
}

impl Bench {
    fn of(generation: Generation) -> Self {
        let config = ReplicaConfig {
            partition: PartitionId::new(1),
            generation,
            leader_epoch: LeaderEpoch::new(3),
            node: NODE,
            limits: PartitionLimits::default(),
            pending_size_bytes_max: 1 << 20,
            blob_size_bytes_max: 1 << 20,
            datacenter_count_min: 1,
            layout: Layout::Copies,
            tracks_sources: false,
            mutations: Mutations::NONE,
        };
        Self {
            replica: Replica::new(config),
            health: SlotHealth::all_alive(Duration::from_millis(5)),
            geometry: Geometry::None,
            puts: Vec::new(),
            fences: Vec::new(),
            plan: None,
            stopped: None,
            answers: Vec::new(),
        }
    }

    fn step(
        &mut self,
        decide: impl FnOnce(&mut Replica<u32>, &SlotHealth, &mut Vec<ReplicaOutput<u32>>),
    ) {
        let mut out = Vec::new();
        decide(&mut self.replica, &self.health, &mut out);
        for output in out {
            match output {
                ReplicaOutput::Fence(fence) => self.fences.push(fence),
                ReplicaOutput::Rebuild(plan) => self.plan = Some(plan),
                ReplicaOutput::Stopped(cause) => self.stopped = Some(cause),
                ReplicaOutput::Led(output) => self.take(vec![output]),
                ReplicaOutput::ReadTail { .. } => panic!("there is no tail"),
            }
        }
    }

    fn take(&mut self, out: Vec<PartitionOutput<u32>>) {
        for output in out {
            match output {
                PartitionOutput::Put { slot, put } => self.puts.push((slot, put)),
                PartitionOutput::Answer { waiter, result } => {
                    self.answers.push((waiter, result.map(|done| done.base_offset.get())));
                }
                _ => {}
            }
        }
    }

    fn begin(&mut self) {
        let group = group(self.geometry);
        self.step(|replica, health, out| replica.begin(NOW, health, group, Vec::new(), out));
    }

    /// The disks hold nothing of the partition.
    fn answer_fence(&mut self, generation: Generation) {
        for slot in group(self.geometry).slots {
            let result = FenceResult::Certain(PartitionView::default());
            let answer = FenceAnswer { partition: PartitionId::new(1), generation, result };
            self.step(|replica, health, out| {
                replica.on_fence_answer(NOW, health, (slot.node, INCARNATION), answer, out);
            });
        }
    }

    fn recover(&mut self) {
        let plan = self.plan.take().expect("the state is to be rebuilt");
        let rebuilt = Rebuild::begin(&plan, 0);
        assert_eq!(rebuilt.wanted(1), None);
        self.step(|replica, health, out| replica.recover(NOW, health, rebuilt, out));
    }

    fn produce(&mut self, waiter: u32, base_sequence: i32) {
        let mut out = Vec::new();
        self.replica.produce(NOW, &self.health, vec![batch(base_sequence)], waiter, &mut out);
        self.take(out);
    }

    /// The disk answers all puts.
    fn answer_puts(&mut self, result: &PutResult) {
        while !self.puts.is_empty() {
            let (slot, put) = self.puts.remove(0);
            let key = put.blob.key;
            let reply = PutReply { key, incarnation: INCARNATION, result: result.clone() };
            let mut out = Vec::new();
            self.replica.act(NOW, &self.health, &mut out, |partition, out| {
                partition.on_reply(NOW, &self.health, slot, reply, out)
            });
            self.take(out);
        }
    }

    fn answers(&mut self) -> Vec<(u32, Result<i64, ProduceError>)> {
        std::mem::take(&mut self.answers)
    }
}

fn group(geometry: Geometry) -> GroupConfig {
    let slot = |index| SlotConfig {
        node: NodeId::new(NODE.get() + index),
        incarnation: INCARNATION,
        state: SlotState::Good,
    };
    GroupConfig {
        group: GroupId::new(1),
        version: ConfigVersion::new(1),
        geometry,
        slots: (0..geometry.slot_count() as u32).map(slot).collect(),
    }
}

/// A batch of one record of producer 9.
fn batch(base_sequence: i32) -> RecordBatch {
    let mut builder = BatchBuilder::new().producer(9, 0, base_sequence);
    builder.append(1000, None, Some(&[0; 10]), &[]);
    let sequenced = Sequenced {
        producer_id: 9,
        epoch: 0,
        base_sequence,
        record_count: 1,
        max_timestamp_ms: 1000,
    };
    RecordBatch {
        bytes: builder.build(),
        record_count: 1,
        max_timestamp_ms: 1000,
        sequenced: Some(sequenced),
        transaction: None,
        sourced: None,
    }
}

#[test]
fn a_first_generation_leads_at_once_and_appends_in_order_what_was_parked() {
    let mut bench = Bench::of(Generation::FIRST);
    // In a new log a producer begins with any sequence: what comes first counts.
    bench.produce(1, 5);
    bench.begin();
    assert!(bench.fences.is_empty());
    bench.produce(2, 6);
    bench.answer_puts(&PutResult::Stored);
    assert!(bench.replica.is_opening() && bench.replica.is_waited_for());
    bench.produce(3, 7);
    assert_eq!(bench.answers(), [], "its state is not known yet");
    bench.recover();
    assert!(bench.replica.is_serving());
    bench.produce(4, 8);
    bench.answer_puts(&PutResult::Stored);
    assert_eq!(bench.answers(), [(1, Ok(0)), (2, Ok(1)), (3, Ok(2)), (4, Ok(3))]);
}

#[test]
fn a_later_generation_leads_once_it_has_fenced() {
    let mut bench = Bench::of(LATER);
    bench.begin();
    bench.begin();
    assert_eq!(bench.fences.len(), 1, "it begins once");
    assert_eq!((bench.fences[0].node, bench.fences[0].generation), (NODE, LATER));
    bench.answer_fence(Generation::new(3));
    assert!(bench.plan.is_none(), "an answer to an earlier generation is late");
    bench.answer_fence(LATER);
    bench.recover();
    assert!(bench.replica.is_opening(), "its start is not committed");
    bench.answer_puts(&PutResult::Stored);
    assert!(bench.replica.is_serving());
}

#[test]
fn what_is_configured_while_it_is_taken_over_holds_for_its_leader() {
    let mut bench = Bench::of(LATER);
    bench.geometry = Geometry::OnePerDc;
    bench.begin();
    bench.replica.set_datacenter_count_min(3);
    bench.answer_fence(LATER);
    bench.replica.track_sources(true, 0);
    bench.recover();
    bench.answer_puts(&PutResult::Stored);
    let partition = bench.replica.partition().expect("led");
    assert!(partition.state().sources.is_some());
    bench.health.suspect.insert(Slot::new(2));
    bench.produce(1, 0);
    let refused = ProduceError::Put(PutError::NotEnoughDatacenters);
    assert_eq!(bench.answers(), [(1, Err(refused))]);
}

#[test]
fn who_is_fenced_refuses_what_it_has_parked_and_whatever_comes() {
    let lost = || Err(ProduceError::Put(PutError::Lost));
    let mut bench = Bench::of(LATER);
    bench.begin();
    bench.answer_fence(LATER);
    bench.produce(1, 0);
    bench.answer_puts(&PutResult::Fenced { by: Generation::new(5) });
    assert!(!bench.replica.is_opening());
    bench.produce(2, 1);
    assert_eq!(bench.answers(), [(1, lost()), (2, lost())]);
}

#[test]
fn a_takeover_that_a_newer_leader_has_overtaken_stops() {
    let mut bench = Bench::of(LATER);
    bench.begin();
    bench.produce(1, 0);
    let by = Generation::new(5);
    let answer = FenceAnswer {
        partition: PartitionId::new(1),
        generation: LATER,
        result: FenceResult::Fenced { by },
    };
    bench.step(|replica, health, out| {
        replica.on_fence_answer(NOW, health, (NODE, INCARNATION), answer, out);
    });
    assert_eq!(bench.stopped, Some(StopCause::Superseded(by)));
    assert_eq!(bench.answers(), [(1, Err(ProduceError::Put(PutError::Lost)))]);
    bench.begin();
    assert!(!bench.replica.is_opening(), "it does not begin again");
}

/// Rule P1: its first batch may come again, and must not come after the second.
#[test]
fn who_was_refused_before_it_served_begins_anew() {
    let mut bench = Bench::of(Generation::FIRST);
    bench.replica.note_refused(9);
    bench.begin();
    bench.produce(1, 6);
    bench.answer_puts(&PutResult::Stored);
    bench.recover();
    let unknown = SequenceError::UnknownProducer { producer_id: 9 };
    assert_eq!(bench.answers(), [(1, Err(unknown.into()))]);
}
