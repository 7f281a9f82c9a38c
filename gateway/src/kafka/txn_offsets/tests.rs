use meridian_protocol::messages::{
    AddOffsetsToTxnRequest, DeleteGroupsRequest, EndTxnRequest, FindCoordinatorRequest,
    InitProducerIdRequest, OffsetCommitPartition, OffsetCommitRequest, OffsetCommitTopic,
    OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic, TxnOffsetCommitPartition,
    TxnOffsetCommitTopic,
};

use super::*;
use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, front_of, quick_config};

const ID: &str = "tx";
const GROUP: &str = "g";

struct Served {
    broker: Arc<FakeBroker>,
    front: Arc<Front>,
    client: TestClient,
    producer_id: i64,
    epoch: i16,
}

/// A front that coordinates everything, and a transactional producer; topic `t` has two partitions.
async fn served() -> Served {
    let broker = FakeBroker::single();
    let (front, mut client) = start(&broker);
    client.create_topic("t", 2).await;
    for (key_type, key) in [(0, GROUP), (1, ID)] {
        let coordinator_keys = vec![key.into()];
        let find = FindCoordinatorRequest { key_type, coordinator_keys, ..Default::default() };
        assert_eq!(client.call(4, find).await.coordinators[0].error_code, ErrorCode::None);
    }
    let init = InitProducerIdRequest {
        transactional_id: Some(ID.into()),
        transaction_timeout_ms: 60_000,
        ..Default::default()
    };
    let told = client.call(5, init).await;
    assert_eq!(told.error_code, ErrorCode::None);
    Served { broker, front, client, producer_id: told.producer_id, epoch: told.producer_epoch }
}

fn start(broker: &Arc<FakeBroker>) -> (Arc<Front>, TestClient) {
    let front = front_of(broker, quick_config());
    broker.serve_transactions(&front);
    tokio::spawn(Arc::clone(&front).tick_transactions());
    let client = TestClient::connect(&front);
    (front, client)
}

impl Served {
    fn request(&self, offset: i64) -> TxnOffsetCommitRequest {
        let partition = TxnOffsetCommitPartition {
            partition_index: 1,
            committed_offset: offset,
            committed_metadata: Some("note".into()),
            ..Default::default()
        };
        TxnOffsetCommitRequest {
            transactional_id: ID.into(),
            group_id: GROUP.into(),
            producer_id: self.producer_id,
            producer_epoch: self.epoch,
            topics: vec![TxnOffsetCommitTopic { name: "t".into(), partitions: vec![partition] }],
            ..Default::default()
        }
    }

    async fn try_commit(&mut self, version: i16, request: TxnOffsetCommitRequest) -> ErrorCode {
        self.client.call(version, request).await.topics[0].partitions[0].error_code
    }

    async fn commit(&mut self, version: i16, offset: i64) -> ErrorCode {
        let request = self.request(offset);
        self.try_commit(version, request).await
    }

    async fn end(&mut self, version: i16, committed: bool) {
        let request = EndTxnRequest {
            transactional_id: ID.into(),
            producer_id: self.producer_id,
            producer_epoch: self.epoch,
            committed,
        };
        let told = self.client.call(version, request).await;
        assert_eq!(told.error_code, ErrorCode::None);
        if version >= 5 {
            self.epoch = told.producer_epoch;
        }
    }

    async fn try_fetch(&mut self, require_stable: bool) -> Result<i64, ErrorCode> {
        let topic =
            OffsetFetchTopic { name: "t".into(), partition_indexes: vec![1], ..Default::default() };
        let group = OffsetFetchGroup {
            group_id: GROUP.into(),
            topics: Some(vec![topic]),
            ..Default::default()
        };
        let request =
            OffsetFetchRequest { groups: vec![group], require_stable, ..Default::default() };
        let told = self.client.call(9, request).await.groups[0].clone();
        if !told.error_code.is_none() {
            return Err(told.error_code);
        }
        let partition = told.topics[0].partitions[0].clone();
        match partition.error_code {
            ErrorCode::None => Ok(partition.committed_offset),
            code => Err(code),
        }
    }

    /// The position, once no transaction is about to change it.
    async fn stable(&mut self) -> i64 {
        let stable = async {
            loop {
                match self.try_fetch(true).await {
                    Ok(offset) => return offset,
                    Err(ErrorCode::UnstableOffsetCommit | ErrorCode::CoordinatorLoadInProgress) => {
                        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                    }
                    Err(code) => panic!("{code}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, stable).await.expect("in time")
    }
}

#[tokio::test]
async fn positions_hold_when_the_transaction_commits() {
    let mut served = served().await;
    assert_eq!(served.commit(5, 7).await, ErrorCode::None);
    assert_eq!(served.try_fetch(false).await, Ok(-1));
    assert_eq!(served.try_fetch(true).await, Err(ErrorCode::UnstableOffsetCommit));
    served.end(5, true).await;
    assert_eq!(served.stable().await, 7);
    assert_eq!(served.commit(5, 9).await, ErrorCode::None);
    served.end(5, false).await;
    assert_eq!(served.stable().await, 7);
}

#[tokio::test]
async fn a_version_1_producer_adds_its_group_first() {
    let mut served = served().await;
    let early = served.commit(3, 7).await;
    assert_eq!(early, ErrorCode::InvalidTxnState, "nobody knows of it");
    let add = AddOffsetsToTxnRequest {
        transactional_id: ID.into(),
        producer_id: served.producer_id,
        producer_epoch: served.epoch,
        group_id: GROUP.into(),
    };
    assert_eq!(served.client.call(3, add).await.error_code, ErrorCode::None);
    assert_eq!(served.commit(3, 7).await, ErrorCode::None);
    served.end(3, true).await;
    assert_eq!(served.stable().await, 7);
}

#[tokio::test]
async fn the_next_coordinator_finds_what_is_pending_in_the_log() {
    let mut served = served().await;
    assert_eq!(served.commit(5, 7).await, ErrorCode::None);
    served.end(5, true).await;
    assert_eq!(served.stable().await, 7);
    assert_eq!(served.commit(5, 9).await, ErrorCode::None);
    for expected in [Err(ErrorCode::UnstableOffsetCommit), Ok(9)] {
        served.client = start(&served.broker).1;
        if expected.is_ok() {
            served.client = start(&served.broker).1;
        }
        let answered = async {
            loop {
                match served.try_fetch(true).await {
                    Err(ErrorCode::CoordinatorLoadInProgress) => tokio::task::yield_now().await,
                    answer => return answer,
                }
            }
        };
        let answer = tokio::time::timeout(PATIENCE, answered).await.expect("in time");
        match expected {
            Err(code) => {
                assert_eq!(answer, Err(code));
                loaded(&mut served).await;
                served.end(5, true).await;
                // Two fronts of one node do not hear of each other's markers: this one is to be done.
                assert_eq!(served.stable().await, 9);
            }
            Ok(offset) => assert_eq!(served.stable().await, offset),
        }
    }
}

/// Waits until the transaction's coordinator has read its log.
async fn loaded(served: &mut Served) {
    let load = async {
        let request = || meridian_protocol::messages::DescribeTransactionsRequest {
            transactional_ids: vec![ID.into()],
        };
        while !served.client.call(0, request()).await.transaction_states[0].error_code.is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, load).await.expect("in time");
}

impl Served {
    async fn commit_plainly(&mut self, offset: i64) {
        let partition = OffsetCommitPartition {
            partition_index: 1,
            committed_offset: offset,
            ..Default::default()
        };
        let topic = OffsetCommitTopic {
            name: "t".into(),
            partitions: vec![partition],
            ..Default::default()
        };
        let plain = OffsetCommitRequest {
            group_id: GROUP.into(),
            generation_id_or_member_epoch: -1,
            topics: vec![topic],
            ..Default::default()
        };
        let told = self.client.call(9, plain).await.topics[0].partitions[0].error_code;
        assert_eq!(told, ErrorCode::None);
    }

    fn expire(&self, after_ms: i64) -> usize {
        let coordinator = self.front.coordinator_of(GROUP).expect("here");
        let now_ms = self.front.broker.wall_time_ms() + after_ms;
        let name = |_| Some("t".to_owned());
        coordinator.state().expect("it serves").expire(now_ms, 1000, name)
    }

    /// What another coordinator tells, which reads the log.
    async fn replayed(&mut self) -> i64 {
        let (front, client) = start(&self.broker);
        (self.front, self.client) = (front, client);
        self.stable().await
    }
}

#[tokio::test]
async fn an_old_offset_does_not_expire_while_a_transaction_replaces_it() {
    let mut served = served().await;
    served.commit_plainly(5).await;
    assert_eq!(served.commit(5, 100).await, ErrorCode::None);
    assert_eq!(served.expire(5000), 0);
    served.end(5, true).await;
    assert_eq!(served.stable().await, 100);
    assert_eq!(served.replayed().await, 100);
    assert_eq!(served.expire(5000), 1);
}

#[tokio::test]
async fn what_a_transaction_staged_goes_with_its_group() {
    let mut served = served().await;
    assert_eq!(served.commit(5, 100).await, ErrorCode::None);
    let delete = DeleteGroupsRequest { groups_names: vec![GROUP.into()] };
    let told = served.client.call(2, delete.clone()).await.results[0].error_code;
    assert_eq!(told, ErrorCode::None);
    assert_eq!(served.try_fetch(true).await, Ok(-1), "nothing is about to change");
    let again = served.client.call(2, delete).await.results[0].error_code;
    assert_eq!(again, ErrorCode::GroupIdNotFound);
    served.end(5, true).await;
    assert_eq!(served.stable().await, -1);
    assert_eq!(served.replayed().await, -1);
}

#[tokio::test]
async fn the_next_coordinator_of_a_log_waits_for_what_the_one_before_has_staged() {
    let mut served = served().await;
    served.commit_plainly(5).await;
    let coordinator = served.front.coordinator_of(GROUP).expect("here");
    let staging = coordinator.around();
    coordinator.close(ErrorCode::NotCoordinator);
    let told = coordinator.state().err();
    assert_eq!(told, Some(ErrorCode::NotCoordinator), "it stages nothing more");
    // Its task forgets it.
    tokio::task::yield_now().await;
    for _ in 0..20 {
        assert_eq!(served.try_fetch(true).await, Err(ErrorCode::CoordinatorLoadInProgress));
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    drop(staging);
    assert_eq!(served.stable().await, 5);
}

#[tokio::test]
async fn a_plain_commit_after_a_pending_one_is_not_undone() {
    let mut served = served().await;
    assert_eq!(served.commit(5, 7).await, ErrorCode::None);
    served.commit_plainly(20).await;
    served.end(5, true).await;
    assert_eq!(served.stable().await, 20);
}

#[tokio::test]
async fn bad_commits_are_told_so() {
    let mut served = served().await;
    let good = served.request(7);
    let with = |change: fn(&mut TxnOffsetCommitRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    for (version, request, code) in [
        (5, with(|it| it.generation_id = 0), ErrorCode::IllegalGeneration),
        (5, with(|it| it.transactional_id = "".into()), ErrorCode::InvalidRequest),
        (5, with(|it| it.group_id = "".into()), ErrorCode::InvalidGroupId),
        (5, with(|it| it.producer_id += 1), ErrorCode::InvalidProducerIdMapping),
        (5, with(|it| it.producer_epoch += 1), ErrorCode::InvalidProducerEpoch),
        (5, with(|it| it.topics[0].name = "none".into()), ErrorCode::UnknownTopicOrPartition),
        (
            5,
            with(|it| it.topics[0].partitions[0].partition_index = 9),
            ErrorCode::UnknownTopicOrPartition,
        ),
        (
            5,
            with(|it| it.topics[0].partitions[0].partition_index = -1),
            ErrorCode::UnknownTopicOrPartition,
        ),
        (
            5,
            with(|it| {
                it.topics[0].partitions[0].committed_metadata = Some("x".repeat(5000).into())
            }),
            ErrorCode::OffsetMetadataTooLarge,
        ),
        (4, good.clone(), ErrorCode::TransactionAbortable),
        (3, good.clone(), ErrorCode::InvalidTxnState),
        (5, good.clone(), ErrorCode::None),
    ] {
        let told = served.try_commit(version, request.clone()).await;
        assert_eq!(told, code, "{version}: {request:?}");
    }
}
