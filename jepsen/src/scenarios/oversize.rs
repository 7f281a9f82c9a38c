//! Batches that no frame holds together (rule Z2): the way to a slot drops a longer one without a word. A leader that put
//! them into one blob would put it again for ever, and all that comes after would wait.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::LeaderEpoch;
use meridian_base::topology::Slot;
use meridian_broker::partition::{
    Partition, PartitionLimits, PartitionOutput, PartitionState, RecordBatch,
};
use meridian_storage::message::{Put, PutReply, PutResult};
use meridian_storage::mutation::Mutations;
use meridian_storage::placement::SlotHealth;
use meridian_storage::takeover::TakeoverPlan;

use super::{INCARNATION, alone};
use crate::check::{Promise, Verdict, Violation};
use crate::cost::{Bounds, Cost};
use crate::net::Endpoint;
use crate::value::{Batch, Kind, Value};

const FRAME_SIZE_BYTES: usize = 1_500;
const BLOB_SIZE_BYTES_MAX: usize = 1_400;
/// Batches, and records of each: all of them are more than that.
const BATCH_COUNT: u32 = 40;
const RECORD_COUNT: u32 = 5;
const TICK: Duration = Duration::from_millis(10);
const TICK_COUNT: usize = 6_000;

struct Bench {
    partition: Partition<u32>,
    health: SlotHealth,
    now: Instant,
    cost: Cost,
    /// Those that were acknowledged, by their first sequence number.
    acknowledged: Vec<u32>,
}

impl Bench {
    fn new(mutations: Mutations) -> Result<Self, Violation> {
        let config = alone(BLOB_SIZE_BYTES_MAX, mutations);
        let (health, now) = (SlotHealth::all_alive(Duration::from_millis(5)), Instant::ZERO);
        let (epoch, limits) = (LeaderEpoch::new(3), PartitionLimits::default());
        let plan = TakeoverPlan::first(epoch);
        let mut out = Vec::new();
        let partition = Partition::start(config, epoch, limits, plan, now, &health, &mut out);
        let cost = Cost::new(Bounds::USUAL);
        let mut bench = Self { partition, health, now, cost, acknowledged: Vec::new() };
        bench.take(out)?;
        let mut out = Vec::new();
        let recovered = bench.partition.recover(PartitionState::default(), &mut out);
        bench.take(out)?;
        recovered.map_err(|error| Violation {
            promise: Promise::Invariant,
            detail: error.to_string(),
        })?;
        Ok(bench)
    }

    fn take(&mut self, outputs: Vec<PartitionOutput<u32>>) -> Verdict {
        for output in outputs {
            match output {
                PartitionOutput::Put { slot, put } => self.put(slot, &put)?,
                PartitionOutput::Answer { waiter, result: Ok(_) } => self.acknowledged.push(waiter),
                _ => {}
            }
        }
        Ok(())
    }

    fn put(&mut self, slot: Slot, put: &Put) -> Verdict {
        let (key, size_bytes) = (put.blob.key, put.blob.payload.size_bytes());
        let to = Endpoint(slot.index());
        self.cost.put(key, size_bytes, to, true)?;
        if size_bytes > FRAME_SIZE_BYTES {
            return Ok(());
        }
        self.cost.is_stored(key, to);
        let reply = PutReply { key, incarnation: INCARNATION, result: PutResult::Stored };
        let mut out = Vec::new();
        self.partition.on_reply(self.now, &self.health, slot, reply, &mut out);
        self.take(out)
    }

    fn produce(&mut self, producer: u32, batch_count: u32) -> Verdict {
        let batch = |number| {
            let first = Value { producer, epoch: 0, sequence: number * RECORD_COUNT };
            let batch = Batch { first, count: RECORD_COUNT, kind: Kind::Plain };
            RecordBatch { sequenced: None, ..batch.to_record_batch() }
        };
        let batches = (0..batch_count).map(batch).collect();
        let mut out = Vec::new();
        self.partition.produce(self.now, &self.health, batches, producer, &mut out);
        self.take(out)
    }
}

/// Many batches go in several blobs, and the next one is acknowledged too.
pub fn oversize(mutations: Mutations) -> Verdict {
    let mut bench = Bench::new(mutations)?;
    bench.produce(1, BATCH_COUNT)?;
    bench.produce(2, 1)?;
    for _ in 0..TICK_COUNT {
        bench.now = bench.now + TICK;
        let mut out = Vec::new();
        bench.partition.tick(bench.now, &bench.health, &mut out);
        bench.take(out)?;
    }
    if bench.acknowledged == [1, 2] {
        return Ok(());
    }
    let detail = format!("of 1 and 2 were acknowledged {:?}", bench.acknowledged);
    Err(Violation { promise: Promise::GoesOn, detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_frame_holds_together_goes_in_several() {
        assert_eq!(oversize(Mutations::NONE), Ok(()));
    }
}
