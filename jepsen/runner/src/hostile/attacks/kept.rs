//! Attacks on memory that outlives a request: names that a node has heard once and may keep, and records that it keeps
//! at hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use meridian_protocol::messages::{
    ConsumerGroupHeartbeatRequest, FetchPartition, FetchRequest, InitProducerIdRequest,
    JoinGroupProtocol, JoinGroupRequest, ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::records::BatchBuilder;

use super::{
    BULK, BULK_PARTITION_COUNT, CLIENT_ID, PAUSE, Target, clock, create_topic, drain_one, encode,
    encode_as, fetch, side_by_side,
};

/// Requests that are sent before their answers are read.
const BURST_COUNT: usize = 100;
/// Of large ones, so that the disk has time for others.
const LARGE_BURST_COUNT: usize = 4;
const CONNECTION_COUNT: usize = 4;
const TAILS: &str = "tails";
const TAIL_COUNT: i32 = 1_000;
const TAIL_SIZE_BYTES: usize = 300 << 10;

/// Sends requests that have a number each, in bursts, and reads the answers.
fn numbered(target: &Target, until: Instant, request: impl Fn(u64) -> Bytes + Sync) {
    in_bursts(BURST_COUNT, target, until, request);
}

fn in_bursts(count: usize, target: &Target, until: Instant, request: impl Fn(u64) -> Bytes + Sync) {
    let next = AtomicU64::new(0);
    side_by_side(CONNECTION_COUNT, || {
        let Ok(mut stream) = target.connect() else { return clock::sleep(PAUSE) };
        while clock::now() < until {
            let frames = (0..count).map(|_| request(next.fetch_add(1, Ordering::Relaxed)));
            let burst = frames.collect::<Vec<_>>().concat();
            let sent = std::io::Write::write_all(&mut stream, &burst);
            let answered = (0..count).try_for_each(|_| drain_one(&mut stream, until));
            if sent.and(answered).is_err() {
                return;
            }
        }
    });
    println!("{:<22} {} requests", "", next.into_inner());
}

fn record(size_bytes: usize) -> BatchBuilder {
    let mut batch = BatchBuilder::new();
    batch.append(clock::wall_ms(), None, Some(&vec![7; size_bytes]), &[]);
    batch
}

fn produce(name: &str, index: i32, records: Bytes) -> ProduceRequest {
    let partition_data = vec![ProducePartition { index, records: Some(records) }];
    let topic = ProduceTopic { name: name.into(), partition_data, ..Default::default() };
    ProduceRequest { acks: 1, timeout_ms: 5_000, topic_data: vec![topic], ..Default::default() }
}

/// Quotas are kept by client id.
pub(super) fn clients(target: &Target, until: Instant) {
    let request = produce(BULK, BULK_PARTITION_COUNT - 3, record(1).build());
    numbered(target, until, |number| {
        encode_as(&format!("client-{number}-{}", "x".repeat(200)), 9, &request)
    });
}

/// Each begins a fetch session.
pub(super) fn sessions(target: &Target, until: Instant) {
    let partition = |partition| FetchPartition {
        partition,
        fetch_offset: 1 << 40,
        partition_max_bytes: 1,
        ..Default::default()
    };
    let partitions: Vec<_> = (0..BULK_PARTITION_COUNT).map(partition).collect();
    let begin = FetchRequest { session_epoch: 0, ..fetch(partitions, 0) };
    let begin = encode(11, &begin);
    numbered(target, until, |_| begin.clone());
}

/// Members that ask for a name and never come back, each of a group of its own.
pub(super) fn members(target: &Target, until: Instant) {
    numbered(target, until, |number| {
        let protocol = JoinGroupProtocol { name: "range".into(), metadata: Bytes::new() };
        let request = JoinGroupRequest {
            group_id: format!("group-{number}").into(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 10_000,
            protocol_type: "consumer".into(),
            protocols: vec![protocol],
            ..Default::default()
        };
        encode(5, &request)
    });
}

/// Members of KIP-848 that join once, each a group of its own.
pub(super) fn groups(target: &Target, until: Instant) {
    numbered(target, until, |number| {
        let request = ConsumerGroupHeartbeatRequest {
            group_id: format!("modern-{number}").into(),
            rebalance_timeout_ms: 10_000,
            subscribed_topic_names: Some(vec![BULK.into()]),
            topic_partitions: Some(Vec::new()),
            ..Default::default()
        };
        encode(0, &request)
    });
}

/// Producers that write one record each; and transactional ids that are never used again.
pub(super) fn producers(target: &Target, until: Instant) {
    numbered(target, until, |number| {
        if number % 10 == 0 {
            let request = InitProducerIdRequest {
                transactional_id: Some(format!("transactional-{number}").into()),
                transaction_timeout_ms: 1_000,
                ..Default::default()
            };
            return encode(4, &request);
        }
        let id = i64::try_from(number).unwrap_or(i64::MAX);
        let batch = record(1).producer(id, 0, 0).build();
        encode(9, &produce(BULK, BULK_PARTITION_COUNT - 4, batch))
    });
}

/// Records in a thousand partitions, whose last ones a node keeps at hand for readers.
pub(super) fn tails(target: &Target, until: Instant) {
    if let Err(failure) = create_topic(target, TAILS, TAIL_COUNT) {
        return println!("{:<22} {failure}", "");
    }
    let batch = record(TAIL_SIZE_BYTES).build();
    in_bursts(LARGE_BURST_COUNT, target, until, |number| {
        let index = i32::try_from(number % TAIL_COUNT as u64).unwrap_or_default();
        encode_as(CLIENT_ID, 9, &produce(TAILS, index, batch.clone()))
    });
}
