use bytes::Bytes;
use meridian_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction, DescribeTransactionsRequest, DescribedTransaction,
    EndTxnRequest, EndTxnResponse, FetchPartition, FetchRequest, FetchTopic,
    FindCoordinatorRequest, InitProducerIdRequest, InitProducerIdResponse, ListTransactionsRequest,
    ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::records::{self, BatchBuilder, EndTxnMarker};
use meridian_protocol::{ErrorCode, Str};

use super::*;
use crate::config::FrontConfig;
use crate::kafka::lock;
use crate::kafka::testing::{
    FakeBroker, PATIENCE, TestClient, front_of, quick_config, versions_request,
};
use crate::meta::ProposeError;
use crate::transaction::Producer;

pub(super) const ID: &str = "tx";

pub(super) struct Served {
    broker: Arc<FakeBroker>,
    front: Arc<Front>,
    pub(super) client: TestClient,
}

/// A front that coordinates all transactions, and a client of it; topic `t` has two partitions.
async fn served_with(config: FrontConfig) -> Served {
    let broker = FakeBroker::single();
    let front = front_of(&broker, config);
    broker.serve_transactions(&front);
    tokio::spawn(Arc::clone(&front).tick_transactions());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 2).await;
    let find = FindCoordinatorRequest {
        key_type: FindCoordinatorRequest::KEY_TYPE_TRANSACTION,
        coordinator_keys: vec![ID.into()],
        ..Default::default()
    };
    let found = client.call(4, find).await.coordinators[0].clone();
    assert_eq!((found.error_code, found.node_id), (ErrorCode::None, 1));
    Served { broker, front, client }
}

pub(super) async fn served() -> Served {
    served_with(quick_config()).await
}

impl Served {
    /// The next life of the node: it knows only what is in the log.
    fn restart(&mut self) {
        self.front = front_of(&self.broker, quick_config());
        self.broker.serve_transactions(&self.front);
        tokio::spawn(Arc::clone(&self.front).tick_transactions());
        self.client = TestClient::connect(&self.front);
    }

    pub(super) async fn try_init(
        &mut self,
        version: i16,
        request: InitProducerIdRequest,
    ) -> InitProducerIdResponse {
        self.client.call(version, request).await
    }

    pub(super) async fn init(&mut self, timeout_ms: i32) -> Producer {
        let init = async {
            loop {
                let told = self.try_init(5, init_request(timeout_ms)).await;
                match told.error_code {
                    ErrorCode::None => {
                        return Producer { id: told.producer_id, epoch: told.producer_epoch };
                    }
                    ErrorCode::ConcurrentTransactions | ErrorCode::CoordinatorLoadInProgress => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    code => panic!("{code}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, init).await.expect("in time")
    }

    pub(super) async fn produce(
        &mut self,
        version: i16,
        producer: Producer,
        sequence: i32,
        value: &str,
    ) -> ErrorCode {
        let records = transactional(producer, sequence, value);
        let partition_data = vec![ProducePartition { index: 0, records: Some(records) }];
        let topic_id = self.broker.topic_uuid("t");
        let topic = ProduceTopic { name: "t".into(), topic_id, partition_data };
        let request = ProduceRequest {
            transactional_id: Some(ID.into()),
            acks: -1,
            timeout_ms: 10_000,
            topic_data: vec![topic],
        };
        let told = self.client.call(version, request).await;
        told.responses[0].partition_responses[0].error_code
    }

    pub(super) async fn end(
        &mut self,
        version: i16,
        producer: Producer,
        committed: bool,
    ) -> EndTxnResponse {
        let request = EndTxnRequest {
            transactional_id: ID.into(),
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            committed,
        };
        self.client.call(version, request).await
    }

    pub(super) async fn add(
        &mut self,
        version: i16,
        producer: Producer,
        topic: &str,
        index: i32,
    ) -> ErrorCode {
        let topics = vec![AddPartitionsToTxnTopic { name: topic.into(), partitions: vec![index] }];
        let request = AddPartitionsToTxnRequest {
            transactional_id: ID.into(),
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            topics,
            ..Default::default()
        };
        let told = self.client.call(version, request).await;
        told.results_by_topic[0].results_by_partition[0].partition_error_code
    }

    async fn describe(&mut self, id: &str) -> DescribedTransaction {
        let request = DescribeTransactionsRequest { transactional_ids: vec![id.into()] };
        self.client.call(0, request).await.transaction_states[0].clone()
    }

    /// Waits until the transaction has this state.
    pub(super) async fn reaches(&mut self, state: &str) {
        let reached = async {
            while *self.describe(ID).await.transaction_state != *state {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect(state);
    }

    /// The values of committed transactions in partition 0, by the markers in it.
    async fn committed(&mut self) -> Vec<String> {
        let partition =
            FetchPartition { partition_max_bytes: 1 << 20, ..FetchPartition::default() };
        let topic =
            FetchTopic { topic: "t".into(), partitions: vec![partition], ..Default::default() };
        let request =
            FetchRequest { max_bytes: 1 << 20, topics: vec![topic], ..Default::default() };
        let told = self.client.call(8, request).await.responses[0].partitions[0].clone();
        assert_eq!(told.error_code, ErrorCode::None);
        let mut open = Vec::new();
        let mut committed = Vec::new();
        for batch in records::batches(told.records.unwrap_or_default().into_bytes()) {
            let batch = batch.expect("whole batches");
            let record = batch.records(1 << 20).unwrap().next().unwrap().unwrap();
            if !batch.header().attributes.is_control() {
                let value = String::from_utf8(record.value.unwrap_or_default().to_vec()).unwrap();
                open.push(value);
            } else if EndTxnMarker::from_record(&record).expect("a marker").committed {
                committed.append(&mut open);
            } else {
                open.clear();
            }
        }
        committed
    }
}

fn init_request(timeout_ms: i32) -> InitProducerIdRequest {
    InitProducerIdRequest {
        transactional_id: Some(ID.into()),
        transaction_timeout_ms: timeout_ms,
        ..Default::default()
    }
}

fn transactional(producer: Producer, sequence: i32, value: &str) -> Bytes {
    let mut builder =
        BatchBuilder::new().producer(producer.id, producer.epoch, sequence).transactional();
    builder.append(1_700_000_000_000, None, Some(value.as_bytes()), &[]);
    builder.build()
}

#[tokio::test]
async fn a_version_2_producer_commits_and_aborts() {
    let mut served = served().await;
    let first = served.init(60_000).await;
    assert_eq!(served.produce(13, first, 0, "one").await, ErrorCode::None);
    assert_eq!(served.committed().await, Vec::<String>::new(), "open");
    let told = served.end(5, first, true).await;
    let second = Producer { epoch: first.epoch + 1, ..first };
    assert_eq!(told.error_code, ErrorCode::None);
    assert_eq!((told.producer_id, told.producer_epoch), (second.id, second.epoch));
    // The next one begins while markers of the last are on their way.
    assert_eq!(served.produce(13, second, 0, "aborted").await, ErrorCode::None);
    assert_eq!(served.committed().await, ["one"]);
    let told = served.end(5, second, false).await;
    assert_eq!((told.error_code, told.producer_epoch), (ErrorCode::None, second.epoch + 1));
    served.reaches("CompleteAbort").await;
    let again = served.end(5, second, false).await;
    assert_eq!((again.error_code, again.producer_epoch), (ErrorCode::None, second.epoch + 1));
    let third = Producer { epoch: second.epoch + 1, ..first };
    assert_eq!(served.produce(13, third, 0, "two").await, ErrorCode::None);
    assert_eq!(served.end(5, third, true).await.error_code, ErrorCode::None);
    served.reaches("CompleteCommit").await;
    assert_eq!(served.committed().await, ["one", "two"]);
    assert_eq!(served.produce(13, first, 1, "late").await, ErrorCode::InvalidProducerEpoch);
}

#[tokio::test]
async fn a_version_1_producer_adds_partitions_first() {
    let mut served = served().await;
    let producer = served.init(60_000).await;
    let code = served.produce(11, producer, 0, "early").await;
    assert_eq!(code, ErrorCode::TransactionAbortable, "nobody knows of it");
    assert_eq!(served.add(3, producer, "t", 0).await, ErrorCode::None);
    *lock(&served.broker.refusal) = Some(ProposeError::TimedOut);
    let code = served.produce(11, producer, 0, "unsure").await;
    assert_ne!(code, ErrorCode::None, "a coordinator that may have been replaced does not vouch");
    *lock(&served.broker.refusal) = None;
    assert_eq!(served.produce(11, producer, 0, "one").await, ErrorCode::None);
    let told = served.end(3, producer, true).await;
    assert_eq!((told.error_code, told.producer_epoch), (ErrorCode::None, -1));
    served.reaches("CompleteCommit").await;
    assert_eq!(served.end(3, producer, true).await.error_code, ErrorCode::None, "repeated");
    assert_eq!(served.end(3, producer, false).await.error_code, ErrorCode::InvalidTxnState);
    assert_eq!(served.committed().await, ["one"]);
}

#[tokio::test]
async fn a_new_instance_fences_the_old_one() {
    let mut served = served().await;
    let old = served.init(60_000).await;
    assert_eq!(served.produce(13, old, 0, "aborted").await, ErrorCode::None);
    let told = served.try_init(5, init_request(60_000)).await;
    assert_eq!(told.error_code, ErrorCode::ConcurrentTransactions);
    let new = served.init(60_000).await;
    assert!(new.id == old.id && new.epoch > old.epoch);
    assert_eq!(served.produce(13, old, 1, "zombie").await, ErrorCode::InvalidProducerEpoch);
    for (version, code) in [
        (5, ErrorCode::ProducerFenced),
        (2, ErrorCode::ProducerFenced),
        (1, ErrorCode::InvalidProducerEpoch),
    ] {
        assert_eq!(served.end(version, old, true).await.error_code, code);
    }
    assert_eq!(served.add(1, old, "t", 0).await, ErrorCode::InvalidProducerEpoch);
    assert_eq!(served.add(2, old, "t", 0).await, ErrorCode::ProducerFenced);
    let back = |producer: Producer| InitProducerIdRequest {
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        ..init_request(60_000)
    };
    assert_eq!(served.try_init(4, back(old)).await.error_code, ErrorCode::ProducerFenced);
    assert_eq!(served.try_init(3, back(old)).await.error_code, ErrorCode::InvalidProducerEpoch);
    assert_eq!(served.produce(13, new, 0, "one").await, ErrorCode::None);
    assert_eq!(served.end(5, new, true).await.error_code, ErrorCode::None);
    served.reaches("CompleteCommit").await;
    assert_eq!(served.committed().await, ["one"]);
}

#[tokio::test]
async fn what_takes_too_long_is_aborted() {
    let mut served = served().await;
    let producer = served.init(1).await;
    assert_eq!(served.produce(13, producer, 0, "aborted").await, ErrorCode::None);
    served.broker.pass_wall_time(Duration::from_secs(2));
    served.reaches("CompleteAbort").await;
    assert_eq!(served.committed().await, Vec::<String>::new());
    assert_eq!(served.end(5, producer, true).await.error_code, ErrorCode::InvalidTxnState);
    assert_eq!(served.produce(13, producer, 1, "late").await, ErrorCode::InvalidProducerEpoch);
}

#[tokio::test]
async fn the_next_coordinator_goes_on_where_the_log_ends() {
    let mut served = served().await;
    let producer = served.init(60_000).await;
    assert_eq!(served.produce(13, producer, 0, "one").await, ErrorCode::None);
    served.restart();
    served.reaches("Ongoing").await;
    assert_eq!(served.end(5, producer, true).await.error_code, ErrorCode::None);
    // Maybe before its markers are written.
    served.restart();
    served.reaches("CompleteCommit").await;
    assert_eq!(served.committed().await, ["one"]);
    let next = Producer { epoch: producer.epoch + 1, ..producer };
    assert_eq!(served.produce(13, next, 0, "two").await, ErrorCode::None);
}

#[tokio::test]
async fn the_positions_of_a_group_are_a_partition_of_the_transaction() {
    let mut served = served().await;
    let producer = served.init(60_000).await;
    let request = AddOffsetsToTxnRequest {
        transactional_id: ID.into(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        group_id: "g".into(),
    };
    assert_eq!(served.client.call(3, request).await.error_code, ErrorCode::None);
    let described = served.describe(ID).await;
    assert_eq!(&*described.topics[0].topic, "__consumer_offsets");
}

#[tokio::test]
async fn partitions_are_added_all_or_none() {
    let mut served = served().await;
    let producer = served.init(60_000).await;
    let topics =
        |partitions: Vec<i32>| vec![AddPartitionsToTxnTopic { name: "t".into(), partitions }];
    let request = AddPartitionsToTxnRequest {
        transactional_id: ID.into(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        topics: topics(vec![0, 9]),
        ..Default::default()
    };
    let told = served.client.call(3, request).await.results_by_topic;
    let codes: Vec<ErrorCode> =
        told[0].results_by_partition.iter().map(|it| it.partition_error_code).collect();
    assert_eq!(codes, [ErrorCode::OperationNotAttempted, ErrorCode::UnknownTopicOrPartition]);
    assert_eq!(&*served.describe(ID).await.transaction_state, "Empty");

    // As brokers ask: several transactions, and whether a partition is in one.
    let transaction = |verify_only, partitions| AddPartitionsToTxnTransaction {
        transactional_id: ID.into(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        verify_only,
        topics: topics(partitions),
    };
    let transactions =
        vec![transaction(false, vec![0]), transaction(true, vec![0]), transaction(true, vec![1])];
    let request = AddPartitionsToTxnRequest { transactions, ..Default::default() };
    let told = served.client.call(5, request).await.results_by_transaction;
    let codes: Vec<ErrorCode> = told
        .iter()
        .map(|it| it.topic_results[0].results_by_partition[0].partition_error_code)
        .collect();
    assert_eq!(codes, [ErrorCode::None, ErrorCode::None, ErrorCode::TransactionAbortable]);
}

#[tokio::test]
async fn transactions_are_described_and_listed() {
    let mut served = served().await;
    let producer = served.init(60_000).await;
    served.produce(13, producer, 0, "one").await;
    let described = served.describe(ID).await;
    assert_eq!(described.error_code, ErrorCode::None);
    assert_eq!(&*described.transaction_state, "Ongoing");
    assert_eq!((described.producer_id, described.producer_epoch), (producer.id, producer.epoch));
    assert_eq!((&*described.topics[0].topic, &described.topics[0].partitions[..]), ("t", &[0][..]));
    assert_eq!(served.describe("none").await.error_code, ErrorCode::TransactionalIdNotFound);
    assert_eq!(served.describe("").await.error_code, ErrorCode::InvalidRequest);

    served.broker.pass_wall_time(Duration::from_secs(10));
    let all = ListTransactionsRequest::default();
    let with = |change: fn(&mut ListTransactionsRequest)| {
        let mut request = ListTransactionsRequest::default();
        change(&mut request);
        request
    };
    for (request, count, code) in [
        (all.clone(), 1, ErrorCode::None),
        (with(|it| it.state_filters = vec!["Ongoing".into()]), 1, ErrorCode::None),
        (with(|it| it.state_filters = vec!["Empty".into()]), 0, ErrorCode::None),
        (with(|it| it.producer_id_filters = vec![12345]), 0, ErrorCode::None),
        (with(|it| it.duration_filter = 5_000), 1, ErrorCode::None),
        (with(|it| it.duration_filter = 50_000), 0, ErrorCode::None),
        (with(|it| it.transactional_id_pattern = Some("t.*".into())), 1, ErrorCode::None),
        (with(|it| it.transactional_id_pattern = Some("t".into())), 0, ErrorCode::None),
        (
            with(|it| it.transactional_id_pattern = Some("(".into())),
            0,
            ErrorCode::InvalidRegularExpression,
        ),
    ] {
        let told = served.client.call(2, request.clone()).await;
        assert_eq!((told.transaction_states.len(), told.error_code), (count, code), "{request:?}");
    }
    let odd = with(|it| it.state_filters = vec!["Odd".into(), "Dead".into()]);
    let told = served.client.call(1, odd).await;
    assert_eq!(told.unknown_state_filters, [Str::from("Odd")]);
}

#[tokio::test]
async fn clients_are_told_of_version_2() {
    let mut served = served().await;
    let told = served.client.call(3, versions_request()).await;
    let feature = told.finalized_features.iter().find(|it| &*it.name == "transaction.version");
    assert_eq!(feature.map(|it| it.max_version_level), Some(2));
    assert!(told.finalized_features_epoch >= 0);
}
