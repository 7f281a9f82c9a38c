use meridian_base::id::Incarnation;
use meridian_base::position::{LogPoint, Step};
use meridian_base::topology::SlotSet;
use meridian_storage::blob::BlobKey;
use meridian_storage::message::Refusal;

use super::*;
use crate::log::testing::Bench;

#[tokio::test]
async fn a_slot_that_refuses_is_asked_last_until_it_takes_one() {
    let bench = Bench::new().await;
    let Ownership { partition, generation, .. } = *bench.log.ownership();
    let key = BlobKey { partition, point: LogPoint::new(generation, Step::new(1)) };
    let result = PutResult::Refused { reason: Refusal::Syncing };
    bench
        .log
        .on_put_reply(NodeId::new(1), PutReply { key, incarnation: Incarnation::new(1), result });
    let group = &bench.log.group;
    let now = bench.log.logs.upgrade().expect("it is led").now();
    assert_eq!(group.health(now).declining, SlotSet::EMPTY.with(Slot::new(0)));
    bench.write(0..1, 1).await;
    assert_eq!(group.health(now).declining, SlotSet::EMPTY, "there was no other");
}

/// Of what a producer has pipelined, the second would be taken, and the first was refused.
#[tokio::test]
async fn what_comes_before_the_takeover_has_begun_waits_for_it() {
    let bench = Bench::new().await;
    let logs = bench.log.logs().expect("the node runs");
    let held = bench.log.ownership();
    let next = Ownership { generation: held.generation.next(), ..held.clone() };
    let log = PartitionLog::new(&logs, next).expect("its group is known");
    bench.log.stop();
    logs.owned.write().insert(held.partition, Arc::clone(&log));
    let mut answer = log.produce(vec![Bench::batch(0..1, 1)]);
    assert!(answer.try_recv().is_err(), "it is not answered yet");
    logs.begin_takeovers(&[Arc::clone(&log)]);
    assert!(answer.await.expect("it is answered").is_ok());
}

#[tokio::test]
async fn what_is_served_is_not_walked_over() {
    let mut bench = Bench::new().await;
    let logs = bench.log.logs().expect("the node runs");
    logs.tick_takeovers().await;
    assert!(lock(&logs.opening).is_empty());
    bench.take_over().await;
    assert_eq!(logs.opening_count(), 0);
    logs.tick_takeovers().await;
    assert!(lock(&logs.opening).is_empty());
}
