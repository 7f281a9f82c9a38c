//! What the APIs of transactions say to requests that cannot be: the errors that Kafka gives, a table for
//! each API.

use meridian_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction, DescribeProducersRequest, DescribeProducersTopic,
    DescribeTransactionsRequest, EndTxnRequest, InitProducerIdRequest, ListTransactionsRequest,
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};

use meridian_protocol::Str;

use super::tests::{ID, Served, served};
use super::*;
use crate::transaction::Producer;

/// A producer whose former self was fenced, and that former self.
async fn fenced(served: &mut Served) -> (Producer, Producer) {
    let old = served.init(60_000).await;
    let new = served.init(60_000).await;
    assert_eq!((new.id, new.epoch), (old.id, old.epoch + 1));
    (old, new)
}

const STRANGER: Producer = Producer { id: 999, epoch: 0 };

#[tokio::test]
async fn init_producer_id() {
    let mut served = served().await;
    let (old, new) = fenced(&mut served).await;
    let request = |id: Option<&str>, timeout_ms, producer: Producer| InitProducerIdRequest {
        transactional_id: id.map(Str::from),
        transaction_timeout_ms: timeout_ms,
        producer_id: producer.id,
        producer_epoch: producer.epoch,
    };
    let half = Producer { epoch: -1, ..STRANGER };
    let other_half = Producer { id: -1, epoch: 3 };
    let none = Producer::NONE;
    for (what, version, request, code) in [
        ("no name", 5, request(Some(""), 1000, none), ErrorCode::InvalidRequest),
        ("no time", 5, request(Some(ID), 0, none), ErrorCode::InvalidTransactionTimeout),
        ("negative", 5, request(Some(ID), -1, none), ErrorCode::InvalidTransactionTimeout),
        ("too long", 5, request(Some(ID), i32::MAX, none), ErrorCode::InvalidTransactionTimeout),
        ("no epoch", 5, request(Some(ID), 1000, half), ErrorCode::InvalidRequest),
        ("no id", 5, request(Some(ID), 1000, other_half), ErrorCode::InvalidRequest),
        ("idempotent, no epoch", 5, request(None, 0, half), ErrorCode::InvalidRequest),
        ("idempotent, no id", 5, request(None, 0, other_half), ErrorCode::InvalidRequest),
        ("idempotent", 5, request(None, 0, none), ErrorCode::None),
        ("another's id", 5, request(Some(ID), 1000, STRANGER), ErrorCode::ProducerFenced),
        ("a former self", 5, request(Some(ID), 1000, old), ErrorCode::ProducerFenced),
        ("that knows no better", 3, request(Some(ID), 1000, old), ErrorCode::InvalidProducerEpoch),
        ("itself", 5, request(Some(ID), 1000, new), ErrorCode::None),
    ] {
        let told = served.try_init(version, request).await;
        assert_eq!(told.error_code, code, "{what}");
        assert!(code.is_none() || (told.producer_id, told.producer_epoch) == (-1, -1), "{what}");
    }
}

#[tokio::test]
async fn add_partitions_to_txn() {
    let mut served = served().await;
    let (old, new) = fenced(&mut served).await;
    let ahead = Producer { epoch: new.epoch + 1, ..new };
    let unknown = ErrorCode::UnknownTopicOrPartition;
    for (what, version, producer, topic, index, code) in [
        ("a stranger", 3, STRANGER, "t", 0, ErrorCode::InvalidProducerIdMapping),
        ("a former self", 3, old, "t", 0, ErrorCode::ProducerFenced),
        ("that knows no better", 1, old, "t", 0, ErrorCode::InvalidProducerEpoch),
        ("a self to come", 3, ahead, "t", 0, ErrorCode::ProducerFenced),
        ("no topic", 3, new, "none", 0, unknown),
        ("no partition", 3, new, "t", 9, unknown),
        ("a negative partition", 3, new, "t", -1, unknown),
        ("an internal topic", 3, new, TRANSACTIONS_TOPIC, 0, ErrorCode::TopicAuthorizationFailed),
        ("well", 3, new, "t", 0, ErrorCode::None),
        ("once more", 3, new, "t", 0, ErrorCode::None),
    ] {
        assert_eq!(served.add(version, producer, topic, index).await, code, "{what}");
    }
    let asked = |id: &str, producer: Producer, partition: i32| AddPartitionsToTxnTransaction {
        transactional_id: id.into(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        verify_only: true,
        topics: vec![AddPartitionsToTxnTopic { name: "t".into(), partitions: vec![partition] }],
    };
    for (what, transaction, code) in [
        ("no name", asked("", new, 0), ErrorCode::InvalidRequest),
        ("an unknown name", asked("none", new, 0), ErrorCode::InvalidProducerIdMapping),
        ("a stranger", asked(ID, STRANGER, 0), ErrorCode::InvalidProducerIdMapping),
        ("a former self", asked(ID, old, 0), ErrorCode::ProducerFenced),
        ("a partition not in it", asked(ID, new, 1), ErrorCode::TransactionAbortable),
        ("one in it", asked(ID, new, 0), ErrorCode::None),
    ] {
        let request =
            AddPartitionsToTxnRequest { transactions: vec![transaction], ..Default::default() };
        let told = served.client.call(5, request).await.results_by_transaction.remove(0);
        let told = told.topic_results[0].results_by_partition[0].partition_error_code;
        assert_eq!(told, code, "verify {what}");
    }
}

#[tokio::test]
async fn add_offsets_to_txn() {
    let mut served = served().await;
    let (old, new) = fenced(&mut served).await;
    for (what, version, id, producer, code) in [
        ("no name", 3, "", new, ErrorCode::InvalidRequest),
        ("an unknown name", 3, "none", new, ErrorCode::InvalidProducerIdMapping),
        ("a stranger", 3, ID, STRANGER, ErrorCode::InvalidProducerIdMapping),
        ("a former self", 3, ID, old, ErrorCode::ProducerFenced),
        ("that knows no better", 1, ID, old, ErrorCode::InvalidProducerEpoch),
        ("well", 3, ID, new, ErrorCode::None),
    ] {
        let request = AddOffsetsToTxnRequest {
            transactional_id: id.into(),
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            group_id: "g".into(),
        };
        assert_eq!(served.client.call(version, request).await.error_code, code, "{what}");
    }
}

#[tokio::test]
async fn end_txn() {
    let mut served = served().await;
    let (old, new) = fenced(&mut served).await;
    let mapping = ErrorCode::InvalidProducerIdMapping;
    for (what, version, id, producer, committed, code) in [
        ("no name", 3, "", new, true, ErrorCode::InvalidRequest),
        ("an unknown name", 3, "none", new, true, mapping),
        ("a stranger", 3, ID, STRANGER, true, mapping),
        ("a former self", 3, ID, old, true, ErrorCode::ProducerFenced),
        ("that knows no better", 1, ID, old, true, ErrorCode::InvalidProducerEpoch),
        ("nothing to commit", 3, ID, new, true, ErrorCode::InvalidTxnState),
        ("nothing to abort", 3, ID, new, false, ErrorCode::InvalidTxnState),
        ("nothing to commit, version 2", 5, ID, new, true, ErrorCode::InvalidTxnState),
    ] {
        let request = EndTxnRequest {
            transactional_id: id.into(),
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            committed,
        };
        assert_eq!(served.client.call(version, request).await.error_code, code, "{what}");
    }
    // Once it is committed, it can be committed once more, but not aborted.
    assert_eq!(served.add(3, new, "t", 0).await, ErrorCode::None);
    assert_eq!(served.end(3, new, true).await.error_code, ErrorCode::None);
    served.reaches("CompleteCommit").await;
    assert_eq!(served.end(3, new, true).await.error_code, ErrorCode::None);
    assert_eq!(served.end(3, new, false).await.error_code, ErrorCode::InvalidTxnState);
    // And the other way round.
    assert_eq!(served.add(3, new, "t", 0).await, ErrorCode::None);
    assert_eq!(served.end(3, new, false).await.error_code, ErrorCode::None);
    served.reaches("CompleteAbort").await;
    assert_eq!(served.end(3, new, true).await.error_code, ErrorCode::InvalidTxnState);
}

#[tokio::test]
async fn write_txn_markers() {
    let mut served = served().await;
    let producer = served.init(60_000).await;
    let producer = Producer { epoch: producer.epoch + 1, ..producer };
    assert_eq!(served.init(60_000).await, producer);
    assert_eq!(served.produce(13, producer, 0, "one").await, ErrorCode::None);
    let none = ErrorCode::None;
    // With version 2 markers carry the epoch after their transaction's.
    let epoch = producer.epoch + 1;
    for (what, topic, index, producer_epoch, coordinator_epoch, code) in [
        ("no topic", "none", 0, epoch, 9, ErrorCode::UnknownTopicOrPartition),
        ("no partition", "t", 9, epoch, 9, ErrorCode::UnknownTopicOrPartition),
        ("a former self", "t", 0, producer.epoch - 1, 9, ErrorCode::InvalidProducerEpoch),
        ("well", "t", 0, epoch, 9, none),
        ("a former coordinator", "t", 0, epoch + 1, 8, ErrorCode::TransactionCoordinatorFenced),
        ("where nothing was written", "t", 1, epoch, 9, none),
    ] {
        let topics =
            vec![WritableTxnMarkerTopic { name: topic.into(), partition_indexes: vec![index] }];
        let marker = WritableTxnMarker {
            producer_id: producer.id,
            producer_epoch,
            transaction_result: false,
            topics,
            coordinator_epoch,
            transaction_version: 2,
        };
        let request = WriteTxnMarkersRequest { markers: vec![marker] };
        let told = served.client.call(2, request).await.markers.remove(0);
        assert_eq!(told.topics[0].partitions[0].error_code, code, "{what}");
    }
}

#[tokio::test]
async fn describe_producers() {
    let mut served = served().await;
    for (topic, index, code) in [
        ("t", 0, ErrorCode::None),
        ("t", 9, ErrorCode::UnknownTopicOrPartition),
        ("t", -1, ErrorCode::UnknownTopicOrPartition),
        ("none", 0, ErrorCode::UnknownTopicOrPartition),
        ("", 0, ErrorCode::InvalidTopicException),
        ("not/a/topic", 0, ErrorCode::InvalidTopicException),
    ] {
        let topics =
            vec![DescribeProducersTopic { name: topic.into(), partition_indexes: vec![index] }];
        let told = served.client.call(0, DescribeProducersRequest { topics }).await;
        assert_eq!(told.topics[0].partitions[0].error_code, code, "{topic:?} {index}");
    }
}

#[tokio::test]
async fn describe_transactions() {
    let mut served = served().await;
    let producer = served.init(60_000).await;
    for (what, id, code) in [
        ("well", ID, ErrorCode::None),
        ("no name", "", ErrorCode::InvalidRequest),
        ("an unknown name", "none", ErrorCode::TransactionalIdNotFound),
    ] {
        let request = DescribeTransactionsRequest { transactional_ids: vec![id.into()] };
        let told = served.client.call(0, request).await.transaction_states.remove(0);
        assert_eq!((told.error_code, &*told.transactional_id), (code, id), "{what}");
        let producer_id = if code.is_none() { producer.id } else { 0 };
        assert_eq!(told.producer_id, producer_id, "{what}");
    }
    let none = DescribeTransactionsRequest::default();
    assert_eq!(served.client.call(0, none).await.transaction_states, []);
}

#[tokio::test]
async fn list_transactions() {
    let mut served = served().await;
    let producer = served.init(60_000).await;
    let all = ListTransactionsRequest::default;
    let of_state =
        |state: &str| ListTransactionsRequest { state_filters: vec![state.into()], ..all() };
    let of_pattern = |pattern: &str| ListTransactionsRequest {
        transactional_id_pattern: Some(pattern.into()),
        ..all()
    };
    let of_producer = |id| ListTransactionsRequest { producer_id_filters: vec![id], ..all() };
    let (none, bad) = (ErrorCode::None, ErrorCode::InvalidRegularExpression);
    let huge = "(?:a{1000}){1000}";
    for (what, request, code, count, unknown) in [
        ("all", all(), none, 1, None),
        ("of its state", of_state("Empty"), none, 1, None),
        ("of an unknown state", of_state("Odd"), none, 0, Some("Odd")),
        ("of a state in small letters", of_state("empty"), none, 0, Some("empty")),
        ("of no state", of_state(""), none, 0, Some("")),
        ("of those that are never shown", of_state("Dead"), none, 0, None),
        ("of its producer", of_producer(producer.id), none, 1, None),
        ("of a stranger", of_producer(999), none, 0, None),
        ("of nobody", of_producer(-1), none, 0, None),
        ("of a pattern", of_pattern("t."), none, 1, None),
        ("of half its name", of_pattern("t"), none, 0, None),
        ("of no pattern", of_pattern(""), none, 1, None),
        ("of half a pattern", of_pattern("(t"), bad, 0, None),
        ("of a pattern that closes ours", of_pattern("t)|(x"), bad, 0, None),
        ("of too large a pattern", of_pattern(huge), bad, 0, None),
    ] {
        let told = served.client.call(2, request).await;
        assert_eq!((told.error_code, told.transaction_states.len()), (code, count), "{what}");
        let unknown: Vec<Str> = unknown.into_iter().map(Str::from).collect();
        assert_eq!(told.unknown_state_filters, unknown, "{what}");
    }
}
