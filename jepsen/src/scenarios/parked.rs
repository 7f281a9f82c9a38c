//! A producer pipelines batches to a partition that does not serve yet, and whose log is new: any sequence is taken
//! there, so that only the order in which they are appended keeps theirs.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::LeaderEpoch;
use meridian_broker::partition::{PartitionLimits, PartitionOutput, ProduceError};
use meridian_broker::replica::rebuild::Rebuild;
use meridian_broker::replica::{Replica, ReplicaConfig, ReplicaOutput};
use meridian_storage::leader::LeaderConfig;
use meridian_storage::message::{PutReply, PutResult};
use meridian_storage::mutation::Mutations;
use meridian_storage::placement::SlotHealth;

use super::{INCARNATION, alone};
use crate::check::{Promise, Verdict, Violation};
use crate::value::{Batch, Kind, Value};

const NOW: Instant = Instant::ZERO;
/// How many batches the producer pipelines.
const BATCH_COUNT: u32 = 4;

/// A replica whose disk answers at once, and what became of each batch.
struct Bench {
    replica: Replica<u32>,
    health: SlotHealth,
    answers: BTreeMap<u32, Result<i64, ProduceError>>,
}

impl Bench {
    fn take(&mut self, outputs: Vec<ReplicaOutput<u32>>) {
        for output in outputs {
            let mut out = Vec::new();
            match output {
                ReplicaOutput::Rebuild(plan) => {
                    let rebuilt = Rebuild::begin(&plan, 0);
                    self.replica.recover(NOW, &self.health, rebuilt, &mut out);
                    self.take(out);
                }
                ReplicaOutput::Led(PartitionOutput::Put { slot, put }) => {
                    let (key, result) = (put.blob.key, PutResult::Stored);
                    let reply = PutReply { key, incarnation: INCARNATION, result };
                    let mut led = Vec::new();
                    self.replica.act(NOW, &self.health, &mut led, |partition, led| {
                        partition.on_reply(NOW, &self.health, slot, reply, led)
                    });
                    self.take(led.into_iter().map(ReplicaOutput::Led).collect());
                }
                ReplicaOutput::Led(PartitionOutput::Answer { waiter, result }) => {
                    self.answers.insert(waiter, result.map(|done| done.base_offset.get()));
                }
                _ => {}
            }
        }
    }
}

/// Every batch is taken, in the order in which the producer sent them.
pub fn parked(mutations: Mutations) -> Verdict {
    let LeaderConfig { partition, generation, group, .. } = alone(1 << 20, mutations);
    let config = ReplicaConfig {
        partition,
        generation,
        leader_epoch: LeaderEpoch::new(1),
        node: group.slots[0].node,
        limits: PartitionLimits::default(),
        pending_size_bytes_max: 1 << 20,
        blob_size_bytes_max: 1 << 20,
        datacenter_count_min: 1,
        layout: meridian_storage::hot::Layout::Copies,
        tracks_sources: false,
        mutations,
    };
    let health = SlotHealth::all_alive(Duration::from_millis(5));
    let mut bench = Bench { replica: Replica::new(config), health, answers: BTreeMap::new() };
    let mut out = Vec::new();
    for sequence in 0..BATCH_COUNT {
        let first = Value { producer: 9, epoch: 0, sequence };
        let batches = vec![Batch { first, count: 1, kind: Kind::Plain }.to_record_batch()];
        bench.replica.produce(NOW, &bench.health, batches, sequence, &mut out);
    }
    assert!(out.is_empty(), "nothing is served yet");
    let mut out = Vec::new();
    bench.replica.begin(NOW, &bench.health, group, Vec::new(), &mut out);
    bench.take(out);
    let expected = (0..BATCH_COUNT).map(|sequence| (sequence, Ok(i64::from(sequence))));
    if bench.answers == expected.collect() {
        return Ok(());
    }
    let detail = format!("batches that were pipelined came to {:?}", bench.answers);
    Err(Violation { promise: Promise::ProducerOrder, detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_parked_keeps_its_order() {
        assert_eq!(parked(Mutations::NONE), Ok(()));
    }
}
