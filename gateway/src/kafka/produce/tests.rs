use meridian_protocol::messages::{
    DeleteTopicState, DeleteTopicsRequest, InitProducerIdRequest, ListOffsetsPartition,
    ProduceTopic,
};
use meridian_protocol::records::BatchBuilder;

use super::*;
use crate::kafka::connection::Close;
use crate::kafka::testing::{FakeBroker, TestClient, batch_of, front_of, quick_config};
use crate::log::BudgetLimits;

mod contract;
mod examined;
mod lease;
mod sources;

pub(super) fn request(topic: &str, partitions: &[(i32, Bytes)]) -> ProduceRequest {
    let partition = |(index, records): &(i32, Bytes)| ProducePartition {
        index: *index,
        records: Some(records.clone()),
    };
    ProduceRequest {
        acks: -1,
        timeout_ms: 10_000,
        topic_data: vec![ProduceTopic {
            name: topic.into(),
            partition_data: partitions.iter().map(partition).collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

pub(super) fn only(response: ProduceResponse) -> ProducePartitionResponse {
    let mut partitions = response.responses.into_iter().flat_map(|it| it.partition_responses);
    let first = partitions.next().expect("one partition");
    assert!(partitions.next().is_none());
    first
}

pub(super) async fn served() -> TestClient {
    let front = front_of(&FakeBroker::single(), quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 2).await;
    client
}

#[tokio::test]
async fn batches_get_offsets_in_every_version() {
    let mut client = served().await;
    let topic_id = {
        use meridian_protocol::messages::MetadataRequest;
        client.call(12, MetadataRequest::default()).await.topics[0].topic_id
    };
    for (base_offset, version) in (0..).step_by(2).zip(3..=13) {
        let mut request = request("t", &[(0, batch_of(&["a", "b"]))]);
        request.topic_data[0].topic_id = topic_id;
        let told = only(client.call(version, request).await);
        assert_eq!((told.error_code, told.base_offset), (ErrorCode::None, base_offset));
    }
}

#[tokio::test]
async fn pipelined_requests_of_one_producer_keep_their_order() {
    let mut client = served().await;
    let producer = client.call(4, InitProducerIdRequest::default()).await;
    assert_eq!(producer.error_code, ErrorCode::None);
    let batch = |sequence| {
        let mut builder = BatchBuilder::new().producer(producer.producer_id, 0, sequence);
        builder.append(1, None, Some(b"x"), &[]);
        request("t", &[(1, builder.build())])
    };
    let mut ids = Vec::new();
    for sequence in 0..50 {
        ids.push(client.send(9, &batch(sequence)).await);
    }
    for (offset, id) in (0..).zip(ids) {
        let told = only(client.receive::<ProduceRequest>(9, id).await);
        assert_eq!((told.error_code, told.base_offset), (ErrorCode::None, offset));
    }
    // A repeat gets the offset it has; what does not follow is refused.
    let told = only(client.call(9, batch(49)).await);
    assert_eq!((told.error_code, told.base_offset), (ErrorCode::None, 49));
    let told = only(client.call(9, batch(60)).await);
    assert_eq!(told.error_code, ErrorCode::OutOfOrderSequenceNumber);
}

/// Of two pipelined requests, a takeover must not refuse the first and judge the second.
#[tokio::test]
async fn requests_wait_in_order_for_a_takeover() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 1).await;
    let producer = client.call(4, InitProducerIdRequest::default()).await;
    let batch = |sequence| {
        let mut builder = BatchBuilder::new().producer(producer.producer_id, 0, sequence);
        builder.append(1, None, Some(b"x"), &[]);
        request("t", &[(0, builder.build())])
    };
    let told = only(client.call(9, batch(0)).await);
    assert_eq!(told.error_code, ErrorCode::None);
    broker.take_over("t", 0);
    let mut ids = Vec::new();
    for sequence in 1..20 {
        ids.push(client.send(9, &batch(sequence)).await);
    }
    for (offset, id) in (1..).zip(ids) {
        let told = only(client.receive::<ProduceRequest>(9, id).await);
        assert_eq!((told.error_code, told.base_offset), (ErrorCode::None, offset));
    }
}

#[tokio::test]
async fn what_must_not_be_appended_is_refused_by_its_own_code() {
    let mut client = served().await;
    let good = batch_of(&["value"]);
    let damaged = |at: usize, byte: u8| {
        let mut bytes = good.to_vec();
        bytes[at] ^= byte;
        Bytes::from(bytes)
    };
    let transactional = {
        let mut builder = BatchBuilder::new().producer(1, 0, 0).transactional();
        builder.append(1, None, None, &[]);
        builder.build()
    };
    let cases = [
        ("corrupt record", damaged(good.len() - 1, 1), ErrorCode::CorruptMessage),
        ("corrupt checksum", damaged(17, 1), ErrorCode::CorruptMessage),
        ("cut short", good.slice(..good.len() - 1), ErrorCode::CorruptMessage),
        ("old format", damaged(16, 3), ErrorCode::UnsupportedForMessageFormat),
        ("nothing", Bytes::new(), ErrorCode::InvalidRecord),
        ("two batches", [&good[..], &good[..]].concat().into(), ErrorCode::InvalidRecord),
        ("too large", batch_of(&[&"x".repeat(1_048_600)]), ErrorCode::MessageTooLarge),
        ("transactional", transactional, ErrorCode::TransactionalIdAuthorizationFailed),
    ];
    for (what, records, code) in cases {
        let told = only(client.call(9, request("t", &[(0, records)])).await);
        assert_eq!((told.error_code, told.base_offset), (code, -1), "{what}");
        assert!(told.error_message.is_some(), "{what} is explained");
        assert_eq!(told.log_start_offset, 0, "{what}");
    }
    for (index, topic) in [(2, "t"), (-1, "t"), (0, "nope")] {
        let told = only(client.call(9, request(topic, &[(index, good.clone())])).await);
        assert_eq!(told.error_code, ErrorCode::UnknownTopicOrPartition, "{topic}-{index}");
    }
    let told = only(client.call(13, request("t", &[(0, good.clone())])).await);
    assert_eq!(told.error_code, ErrorCode::UnknownTopicId);
    let acks = ProduceRequest { acks: 2, ..request("t", &[(0, good.clone())]) };
    assert_eq!(only(client.call(9, acks).await).error_code, ErrorCode::InvalidRequiredAcks);
    let told = only(client.call(9, request("t", &[(0, good)])).await);
    assert_eq!(told.base_offset, 0, "nothing of all that was appended");
}

/// A batch of one record of an idempotent producer.
fn numbered(producer_id: i64, sequence: i32) -> ProduceRequest {
    let mut builder = BatchBuilder::new().producer(producer_id, 0, sequence);
    let value = format!("{producer_id} {sequence}");
    builder.append(1, None, Some(value.as_bytes()), &[]);
    request("t", &[(0, builder.build())])
}

/// Rule P1: after a takeover nobody knows what the producer sent before.
#[tokio::test]
async fn an_unknown_producer_begins_at_zero_after_a_takeover() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 1).await;
    let told = only(client.call(9, numbered(1, 7)).await);
    assert_eq!(told.error_code, ErrorCode::None, "nobody has led the log before");
    broker.take_over("t", 0);
    let told = only(client.call(9, numbered(2, 7)).await);
    assert_eq!(told.error_code, ErrorCode::UnknownProducerId);
    // Java's producer waits for it before it recovers from `UNKNOWN_PRODUCER_ID`.
    assert_eq!(told.log_start_offset, 0);
    let told = only(client.call(9, numbered(1, 8)).await);
    assert_eq!(told.error_code, ErrorCode::None, "this one is known");
}

/// Producers that write while their topic is deleted and created anew, again and again: each goes
/// on with the numbers that it has, which librdkafka's never recovers from if they are refused.
#[tokio::test]
async fn producers_go_on_in_a_topic_that_is_recreated_under_load() {
    const RECREATION_COUNT: i32 = 5;
    let front = front_of(&FakeBroker::single(), quick_config());
    let mut admin = TestClient::connect(&front);
    admin.create_topic("t", 1).await;
    let recreation = tokio::sync::watch::Sender::new(0);
    let (taken, mut all_taken) = tokio::sync::watch::channel(0);
    let produce = |producer_id: i64| {
        let mut client = TestClient::connect(&front);
        let (recreated, taken) = (recreation.subscribe(), taken.clone());
        async move {
            let (mut sequence, mut last_count) = (0, 0);
            // It goes on until it has written to the last one too.
            while last_count < 20 {
                let is_last = *recreated.borrow() == RECREATION_COUNT;
                match only(client.call(9, numbered(producer_id, sequence)).await).error_code {
                    ErrorCode::None => {
                        sequence += 1;
                        last_count += i32::from(is_last);
                        taken.send_modify(|count| *count += 1);
                    }
                    code if code.is_retriable() => tokio::task::yield_now().await,
                    code => panic!("{sequence} of {producer_id}: {code}"),
                }
            }
            sequence
        }
    };
    let producers: Vec<_> = (1..=4).map(|id| tokio::spawn(produce(id))).collect();
    for number in 1..=RECREATION_COUNT {
        let before = *all_taken.borrow();
        all_taken.wait_for(|count| *count >= before + 40).await.expect("producers are there");
        let topics = vec![DeleteTopicState { name: Some("t".into()), ..Default::default() }];
        let deleted = admin.call(6, DeleteTopicsRequest { topics, ..Default::default() }).await;
        assert_eq!(deleted.responses[0].error_code, ErrorCode::None);
        admin.create_topic("t", 1).await;
        recreation.send_replace(number);
    }
    for producer in producers {
        assert!(producer.await.expect("not refused") > 20, "it did not begin with the last one");
    }
}

#[tokio::test]
async fn the_wrong_node_names_the_right_one() {
    let broker = FakeBroker::three_datacenters();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 3).await;
    let leader = |index| {
        let metadata = broker.state();
        let topic = metadata.topic_named("t").unwrap().id;
        metadata.partition_at(topic, index).unwrap().1.leader
    };
    let other = (0..3).find(|index| leader(*index).get() != 1).unwrap();
    let response = client.call(10, request("t", &[(other as i32, batch_of(&["x"]))])).await;
    let endpoint = response.node_endpoints[0].clone();
    let told = only(response);
    assert_eq!(told.error_code, ErrorCode::NotLeaderOrFollower);
    assert_eq!(told.current_leader.leader_id, lookup::broker_id(leader(other)));
    assert_eq!(told.current_leader.leader_id, endpoint.node_id);
    assert_eq!(&*endpoint.host, format!("host-{}", leader(other)).replace('N', ""));
}

#[tokio::test]
async fn without_acknowledgement_there_is_no_answer_and_errors_close() {
    let mut client = served().await;
    let silent = ProduceRequest { acks: 0, ..request("t", &[(0, batch_of(&["x"]))]) };
    client.send(9, &silent).await;
    let told = only(client.call(9, request("t", &[(0, batch_of(&["y"]))])).await);
    assert_eq!(told.base_offset, 1, "the silent one came first");
    let lost = ProduceRequest { acks: 0, ..request("nope", &[(0, batch_of(&["x"]))]) };
    client.send(9, &lost).await;
    let close = client.closed().await;
    assert!(matches!(close, Close::Unacknowledged(ErrorCode::UnknownTopicOrPartition)), "{close}");
}

#[tokio::test]
async fn log_append_time_is_stamped_where_the_topic_asks_for_it() {
    use meridian_protocol::messages::{
        CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, ListOffsetsRequest,
        ListOffsetsTopic,
    };
    let mut client = served().await;
    let config = CreatableTopicConfig {
        name: "message.timestamp.type".into(),
        value: Some("LogAppendTime".into()),
    };
    let topic = CreatableTopic {
        name: "stamped".into(),
        num_partitions: 1,
        replication_factor: 1,
        configs: vec![config],
        ..Default::default()
    };
    client.call(7, CreateTopicsRequest { topics: vec![topic], ..Default::default() }).await;
    let told = only(client.call(9, request("stamped", &[(0, batch_of(&["x"]))])).await);
    assert_eq!(told.log_append_time_ms, 1_700_000_000_000);
    let partition = ListOffsetsPartition {
        timestamp: ListOffsetsPartition::TIMESTAMP_MAX,
        ..Default::default()
    };
    let topic = ListOffsetsTopic { name: "stamped".into(), partitions: vec![partition] };
    let list = ListOffsetsRequest { topics: vec![topic], ..Default::default() };
    let found = client.call(7, list).await.topics[0].partitions[0].clone();
    assert_eq!((found.timestamp, found.offset), (1_700_000_000_000, 0));
}

#[test]
fn every_failure_of_an_append_has_its_code() {
    use crate::producer::SequenceError;
    use meridian_storage::leader::PutError;
    for (cause, code) in [
        (ProduceError::Put(PutError::NotEnoughDatacenters), ErrorCode::NotEnoughReplicas),
        (ProduceError::Put(PutError::Lost), ErrorCode::NotLeaderOrFollower),
        (ProduceError::InDoubt, ErrorCode::NotLeaderOrFollower),
        (
            ProduceError::Sequence(SequenceError::OldEpoch { epoch: 0, current: 1 }),
            ErrorCode::InvalidProducerEpoch,
        ),
    ] {
        assert_eq!(error::of_produce(&cause), code, "{cause}");
    }
    // What may be in the log, and what only waits, must be repeated by the client, not given up.
    for cause in [ProduceError::InDoubt, ProduceError::Put(PutError::Busy)] {
        assert!(error::of_produce(&cause).is_retriable(), "{cause}");
    }
}

#[test]
fn what_a_coordinator_says_of_a_batch_depends_on_what_the_client_knows() {
    use crate::partition::VerifyError;
    for (cause, old, abortable, concurrent) in [
        (
            VerifyError::NotInTransaction,
            ErrorCode::InvalidTxnState,
            ErrorCode::TransactionAbortable,
            ErrorCode::TransactionAbortable,
        ),
        (
            VerifyError::Concurrent,
            ErrorCode::NotEnoughReplicas,
            ErrorCode::NotEnoughReplicas,
            ErrorCode::ConcurrentTransactions,
        ),
        (
            VerifyError::Unavailable,
            ErrorCode::NotEnoughReplicas,
            ErrorCode::NotEnoughReplicas,
            ErrorCode::NotEnoughReplicas,
        ),
    ] {
        let told = [10, 11, 12].map(|version| error::of_verify(cause, version));
        assert_eq!(told, [old, abortable, concurrent], "{cause}");
    }
}

#[test]
fn a_small_batch_does_not_keep_its_request() {
    let request = Bytes::from(vec![0; 1 << 20]);
    let batch = request.slice(..300 << 10);
    assert_eq!(kept(batch.clone(), request.len()).as_ptr(), batch.as_ptr());
    for size_bytes in [100, 200 << 10] {
        let batch = request.slice(..size_bytes);
        assert_ne!(kept(batch.clone(), request.len()).as_ptr(), batch.as_ptr());
    }
}

#[tokio::test]
async fn what_is_more_than_the_node_has_memory_for_is_refused() {
    let limits = BudgetLimits { pending_size_bytes_max: 1000, ..BudgetLimits::default() };
    let mut client =
        TestClient::connect(&front_of(&FakeBroker::single_with(limits), quick_config()));
    client.create_topic("t", 1).await;
    let mut produce = async |size_bytes: usize| {
        let batch = batch_of(&["x".repeat(size_bytes).as_str()]);
        only(client.call(9, request("t", &[(0, batch)])).await).error_code
    };
    assert_eq!(produce(2000).await, ErrorCode::RequestTimedOut);
    assert_eq!(produce(500).await, ErrorCode::None);
}

#[tokio::test]
async fn the_newest_records_of_all_partitions_together_take_so_much() {
    const PARTITION_COUNT: i32 = 20;
    let limits = BudgetLimits { tail_size_bytes_max: 512 << 10, ..BudgetLimits::default() };
    let broker = FakeBroker::single_with(limits);
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", PARTITION_COUNT).await;
    for round in 0..2 {
        for index in 0..PARTITION_COUNT {
            let batch = batch_of(&["x".repeat(100_000).as_str()]);
            let told = only(client.call(9, request("t", &[(index, batch)])).await);
            assert_eq!((told.error_code, told.base_offset), (ErrorCode::None, round));
            let (pending_bytes, tail_bytes) = broker.memory_bytes();
            assert!(tail_bytes <= 512 << 10, "{tail_bytes}");
            assert_eq!(pending_bytes, 0);
        }
    }
    let (_, tail_bytes) = broker.memory_bytes();
    assert!(tail_bytes > 256 << 10, "{tail_bytes}");
}
