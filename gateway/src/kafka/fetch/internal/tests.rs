//! What a client reads of the cluster's own topics.

use meridian_protocol::messages::{
    DeleteTopicState, DeleteTopicsRequest, FetchPartition, FetchRequest, FetchTopic,
    FindCoordinatorRequest, InitProducerIdRequest,
};
use meridian_protocol::{ErrorCode, Str};

use super::*;
use crate::kafka::coordinator::partition_index;
use crate::kafka::groups::tests::{commit_request, join_alone, served};
use crate::kafka::testing::TestClient;

/// All records of the partition that keeps what belongs to `key`, and where the log ends.
async fn read(client: &mut TestClient, topic: &str, count: usize, key: &str) -> (Vec<Record>, i64) {
    let index = partition_index(key, count).cast_signed();
    let partition =
        FetchPartition { partition: index, partition_max_bytes: 1 << 20, ..Default::default() };
    let topic =
        FetchTopic { topic: Str::from(topic), partitions: vec![partition], ..Default::default() };
    let request = FetchRequest { max_bytes: 1 << 20, topics: vec![topic], ..Default::default() };
    let answer = client.call(11, request).await.responses.remove(0).partitions.remove(0);
    assert_eq!(answer.error_code, ErrorCode::None);
    let mut records = Vec::new();
    let mut end = 0;
    for batch in batches(answer.records.unwrap_or_default().into_bytes()) {
        let batch = batch.expect("whole batches");
        batch.check_crc().expect("as it was written");
        assert!(batch.header().base_offset >= end, "batches follow each other");
        end = batch.header().last_offset() + 1;
        records.extend(batch.records(1 << 20).unwrap().map(|record| record.expect("readable")));
    }
    assert_eq!(end, answer.high_watermark, "nothing is left out at the end");
    (records, end)
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

#[tokio::test]
async fn committed_offsets_and_groups_are_as_in_kafka() {
    let (broker, _front, mut client) = served().await;
    let count = broker.state().topic_named(OFFSETS_TOPIC).expect("made").partitions.len();
    let joined = join_alone(&mut client).await;
    for offset in [41, 42] {
        let answer = client.call(9, commit_request(offset, Some(&joined))).await;
        assert_eq!(answer.topics[0].partitions[0].error_code, ErrorCode::None);
    }
    let (records, _) = read(&mut client, OFFSETS_TOPIC, count, "g").await;
    let offset_key = [vec![0, 1], string("g"), string("t"), vec![0, 0, 0, 1]].concat();
    let of = |wanted: &[u8]| {
        let found = records.iter().filter(|it| it.key.as_deref() == Some(wanted));
        found.filter_map(|it| it.value.clone()).collect::<Vec<_>>()
    };
    let offsets: Vec<i64> = of(&offset_key)
        .iter()
        .map(|value| {
            assert_eq!(value[..2], [0, 3], "OffsetCommitValue 3");
            assert_eq!(value[14..20], string("note"), "what the consumer noted");
            i64::from_be_bytes(value[2..10].try_into().expect("eight bytes"))
        })
        .collect();
    assert_eq!(offsets, [41, 42]);
    let groups = of(&[vec![0, 2], string("g")].concat());
    let last = groups.last().expect("a group with a member is recorded");
    assert_eq!(last[..2], [0, 3], "GroupMetadataValue 3");
    assert_eq!(last[2..12], string("consumer"));
    assert_eq!(groups.len() + offsets.len(), records.len(), "there is nothing else");

    // The log is as long when its topic is no more.
    let topics = vec![DeleteTopicState { name: Some("t".into()), ..Default::default() }];
    client.call(6, DeleteTopicsRequest { topics, ..Default::default() }).await;
    let (left, _) = read(&mut client, OFFSETS_TOPIC, count, "g").await;
    let is_offset = |record: &&Record| record.key.as_deref() == Some(&offset_key);
    assert_eq!(left.iter().filter(is_offset).count(), 0, "there is no name for it");
    assert!(left.len() >= groups.len());
}

#[tokio::test]
async fn transactions_are_as_in_kafka() {
    let (broker, _front, mut client) = served().await;
    let init = || InitProducerIdRequest {
        transactional_id: Some("tx".into()),
        transaction_timeout_ms: 60_000,
        ..Default::default()
    };
    let find = FindCoordinatorRequest {
        key_type: FindCoordinatorRequest::KEY_TYPE_TRANSACTION,
        coordinator_keys: vec!["tx".into()],
        ..Default::default()
    };
    client.call(4, find).await;
    let mut answer = client.call(4, init()).await;
    while answer.error_code.is_retriable() {
        tokio::task::yield_now().await;
        answer = client.call(4, init()).await;
    }
    assert_eq!(answer.error_code, ErrorCode::None);
    let count = broker.state().topic_named(TRANSACTIONS_TOPIC).expect("made").partitions.len();
    let (records, _) = read(&mut client, TRANSACTIONS_TOPIC, count, "tx").await;
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!(record.key.as_deref(), Some(&[vec![0, 0], string("tx")].concat()[..]));
    let value = record.value.as_deref().expect("not deleted");
    assert_eq!(value[..2], [0, 0], "TransactionLogValue 0");
    assert_eq!(value[2..10], answer.producer_id.to_be_bytes());
    assert_eq!(value[12..16], 60_000i32.to_be_bytes());
    assert_eq!(value[16], 0, "Empty");
}
