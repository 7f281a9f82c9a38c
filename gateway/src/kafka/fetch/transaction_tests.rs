//! Transactions as clients see them: written with markers by hand, read with both isolation levels.

use meridian_protocol::messages::{
    DescribeProducersRequest, DescribeProducersTopic, FetchPartition, FetchPartitionResponse,
    FetchRequest, FetchTopic, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
    ProducePartition, ProduceRequest, ProduceTopic, WritableTxnMarker, WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
};
use meridian_protocol::records::{BatchBuilder, batches};

use super::*;
use crate::kafka::Front;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
use crate::log::TransactionVerifier;
use crate::partition::{Verification, VerifyError};
use crate::peers::BoxFuture;

const READ_COMMITTED: i8 = 1;

/// A coordinator that vouches for one transactional id.
struct Vouches;

impl TransactionVerifier for Vouches {
    fn verify(&self, verification: Verification) -> BoxFuture<'_, Result<(), VerifyError>> {
        let known = &*verification.transaction.transactional_id == "known";
        Box::pin(async move { if known { Ok(()) } else { Err(VerifyError::NotInTransaction) } })
    }
}

async fn served() -> (Arc<Front>, TestClient) {
    let broker = FakeBroker::single();
    broker.set_verifier(Arc::new(Vouches));
    let front = front_of(&broker, quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 2).await;
    (front, client)
}

/// Writes one record of a producer, in its transaction if it has an id.
async fn write(
    client: &mut TestClient,
    transactional_id: Option<&str>,
    (producer_id, epoch, sequence): (i64, i16, i32),
    value: &str,
) -> (ErrorCode, i64) {
    let mut builder = BatchBuilder::new().producer(producer_id, epoch, sequence);
    if transactional_id.is_some() {
        builder = builder.transactional();
    }
    builder.append(1000, None, Some(value.as_bytes()), &[]);
    let partition = ProducePartition { index: 0, records: Some(builder.build()) };
    let topic =
        ProduceTopic { name: "t".into(), partition_data: vec![partition], ..Default::default() };
    let request = ProduceRequest {
        transactional_id: transactional_id.map(Into::into),
        acks: -1,
        timeout_ms: 10_000,
        topic_data: vec![topic],
    };
    let told = client.call(12, request).await.responses[0].partition_responses[0].clone();
    (told.error_code, told.base_offset)
}

fn end(producer_id: i64, producer_epoch: i16, commit: bool) -> WritableTxnMarker {
    let topic = WritableTxnMarkerTopic { name: "t".into(), partition_indexes: vec![0] };
    WritableTxnMarker {
        producer_id,
        producer_epoch,
        transaction_result: commit,
        topics: vec![topic],
        coordinator_epoch: 3,
        transaction_version: 2,
    }
}

async fn mark(client: &mut TestClient, marker: WritableTxnMarker) -> ErrorCode {
    let request = WriteTxnMarkersRequest { markers: vec![marker] };
    client.call(2, request).await.markers[0].topics[0].partitions[0].error_code
}

fn request(offset: i64, isolation_level: i8, max_wait_ms: i32) -> FetchRequest {
    let partition =
        FetchPartition { fetch_offset: offset, partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = FetchTopic { topic: "t".into(), partitions: vec![partition], ..Default::default() };
    FetchRequest {
        max_wait_ms,
        min_bytes: 1,
        max_bytes: 50 << 20,
        isolation_level,
        topics: vec![topic],
        ..Default::default()
    }
}

async fn fetch(client: &mut TestClient, offset: i64, isolation: i8) -> FetchPartitionResponse {
    let mut response = client.call(11, request(offset, isolation, 0)).await;
    response.responses.remove(0).partitions.remove(0)
}

/// The first offsets of the batches, without looking into them.
fn offsets(read: &FetchPartitionResponse) -> Vec<i64> {
    let bytes = read.records.clone().unwrap_or_default().into_bytes();
    batches(bytes).map(|batch| batch.expect("whole").header().base_offset).collect()
}

fn aborted(read: &FetchPartitionResponse) -> Option<Vec<(i64, i64)>> {
    let list = read.aborted_transactions.as_ref()?;
    Some(list.iter().map(|aborted| (aborted.producer_id, aborted.first_offset)).collect())
}

async fn latest(client: &mut TestClient, isolation_level: i8, timestamp: i64) -> i64 {
    let partition = ListOffsetsPartition { timestamp, ..Default::default() };
    let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![partition] };
    let request = ListOffsetsRequest { isolation_level, topics: vec![topic], ..Default::default() };
    client.call(7, request).await.topics[0].partitions[0].offset
}

#[tokio::test]
async fn readers_of_committed_records_stop_at_the_first_open_transaction() {
    let (_front, mut client) = served().await;
    let ok = |offset| (ErrorCode::None, offset);
    assert_eq!(write(&mut client, None, (1, 0, 0), "plain").await, ok(0));
    assert_eq!(write(&mut client, Some("known"), (2, 0, 0), "a").await, ok(1));
    assert_eq!(write(&mut client, Some("known"), (3, 0, 0), "b").await, ok(2));
    assert_eq!(write(&mut client, None, (1, 0, 1), "plain").await, ok(3));

    let all = fetch(&mut client, 0, 0).await;
    assert_eq!((offsets(&all), aborted(&all)), (vec![0, 1, 2, 3], None));
    assert_eq!((all.high_watermark, all.last_stable_offset), (4, 1));
    let committed = fetch(&mut client, 0, READ_COMMITTED).await;
    assert_eq!((offsets(&committed), aborted(&committed)), (vec![0], Some(vec![])));
    assert_eq!((committed.high_watermark, committed.last_stable_offset), (4, 1));
    let latest_offset = ListOffsetsPartition::TIMESTAMP_LATEST;
    assert_eq!(latest(&mut client, 0, latest_offset).await, 4);
    assert_eq!(latest(&mut client, READ_COMMITTED, latest_offset).await, 1);
    assert_eq!(latest(&mut client, READ_COMMITTED, 1000).await, 0);

    // The later one aborts: its records become visible only behind the earlier one.
    assert_eq!(mark(&mut client, end(3, 1, false)).await, ErrorCode::None);
    let committed = fetch(&mut client, 0, READ_COMMITTED).await;
    assert_eq!((offsets(&committed), committed.last_stable_offset), (vec![0], 1));
    assert_eq!(mark(&mut client, end(2, 1, true)).await, ErrorCode::None);
    let committed = fetch(&mut client, 0, READ_COMMITTED).await;
    assert_eq!(offsets(&committed), [0, 1, 2, 3, 4, 5]);
    assert_eq!(aborted(&committed), Some(vec![(3, 2)]));
    assert_eq!((committed.high_watermark, committed.last_stable_offset), (6, 6));
    let behind = fetch(&mut client, 5, READ_COMMITTED).await;
    assert_eq!((offsets(&behind), aborted(&behind)), (vec![5], Some(vec![])));
    assert_eq!(latest(&mut client, READ_COMMITTED, latest_offset).await, 6);
}

#[tokio::test]
async fn a_long_poll_wakes_when_the_transaction_ends() {
    let (front, mut writer) = served().await;
    write(&mut writer, Some("known"), (2, 0, 0), "a").await;
    let mut reader = TestClient::connect(&front);
    let id = reader.send(11, &request(0, READ_COMMITTED, 15_000)).await;
    assert_eq!(mark(&mut writer, end(2, 1, true)).await, ErrorCode::None);
    let begun = Duration::from_secs(10);
    let answer = tokio::time::timeout(begun, reader.receive::<FetchRequest>(11, id)).await;
    let read = answer.expect("long before its time").responses.remove(0).partitions.remove(0);
    assert_eq!(offsets(&read), [0, 1]);
}

#[tokio::test]
async fn only_what_a_coordinator_vouches_for_is_written() {
    let (_front, mut client) = served().await;
    let refused = write(&mut client, Some("unknown"), (2, 0, 0), "a").await;
    assert_eq!(refused, (ErrorCode::TransactionAbortable, -1));
    write(&mut client, Some("known"), (2, 0, 0), "a").await;
    let beside = write(&mut client, None, (2, 0, 1), "not transactional").await;
    assert_eq!(beside, (ErrorCode::InvalidTxnState, -1));
    assert_eq!(mark(&mut client, end(2, 1, true)).await, ErrorCode::None);
    let late = write(&mut client, Some("known"), (2, 0, 1), "late").await;
    assert_eq!(late, (ErrorCode::InvalidProducerEpoch, -1));
}

#[tokio::test]
async fn markers_are_judged_in_every_partition() {
    let (_front, mut client) = served().await;
    write(&mut client, Some("known"), (2, 0, 0), "a").await;
    assert_eq!(mark(&mut client, end(2, 1, true)).await, ErrorCode::None);
    let fenced = WritableTxnMarker { coordinator_epoch: 2, ..end(2, 2, true) };
    assert_eq!(mark(&mut client, fenced).await, ErrorCode::TransactionCoordinatorFenced);
    assert_eq!(mark(&mut client, end(2, 0, true)).await, ErrorCode::InvalidProducerEpoch);
    write(&mut client, Some("known"), (2, 1, 0), "b").await;
    assert_eq!(mark(&mut client, end(2, 1, false)).await, ErrorCode::InvalidProducerEpoch);
    let mut two = end(2, 2, true);
    two.topics[0].partition_indexes = vec![1, 7, 0];
    let request = WriteTxnMarkersRequest { markers: vec![two] };
    let told = client.call(1, request).await.markers[0].topics[0].partitions.clone();
    let codes: Vec<_> = told.iter().map(|it| (it.partition_index, it.error_code)).collect();
    let none = ErrorCode::None;
    assert_eq!(codes, [(1, none), (7, ErrorCode::UnknownTopicOrPartition), (0, none)]);
}

#[tokio::test]
async fn producers_are_described() {
    let (_front, mut client) = served().await;
    write(&mut client, None, (1, 4, 0), "plain").await;
    write(&mut client, Some("known"), (2, 0, 0), "a").await;
    mark(&mut client, end(2, 1, true)).await;
    write(&mut client, Some("known"), (2, 1, 0), "b").await;
    let topic = DescribeProducersTopic { name: "t".into(), partition_indexes: vec![0, 9] };
    let request = DescribeProducersRequest { topics: vec![topic] };
    let told = client.call(0, request).await.topics.remove(0).partitions;
    assert_eq!(told[1].error_code, ErrorCode::UnknownTopicOrPartition);
    let described: Vec<_> = told[0]
        .active_producers
        .iter()
        .map(|it| {
            let start = it.current_txn_start_offset;
            (it.producer_id, it.producer_epoch, it.last_sequence, it.coordinator_epoch, start)
        })
        .collect();
    assert_eq!(described, [(1, 4, 0, -1, -1), (2, 1, 0, 3, 3)]);
}
