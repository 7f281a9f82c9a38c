//! Share groups on one node: what members get, what is kept when partition and coordinator move, and when fetches
//! wait.

use meridian_consensus::command::FeatureLevel;
use meridian_protocol::messages::{
    AcknowledgementBatch, AcquiredRecords, AlterShareGroupOffsetsPartition,
    AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsTopic, FindCoordinatorRequest,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResource, IncrementalAlterableConfig,
    ProducePartition, ProduceRequest, ProduceTopic, ShareAcknowledgePartition,
    ShareAcknowledgeRequest, ShareAcknowledgeTopic, ShareFetchPartition,
    ShareFetchPartitionResponse, ShareFetchRequest, ShareFetchResponse, ShareFetchTopic,
    ShareGroupHeartbeatRequest,
};

use super::*;
use crate::kafka::testing::{
    FakeBroker, PATIENCE, TestClient, batch_of, front_of, quick_config, values_of,
};

pub(super) const GROUP: &str = "g";
const RELEASE: i8 = 2;
pub(super) const ACCEPT: i8 = 1;
const RENEW: i8 = 4;

pub(super) struct Served {
    pub(super) broker: Arc<FakeBroker>,
    pub(super) front: Arc<Front>,
    pub(super) client: TestClient,
    pub(super) epoch: i32,
}

/// A front that leads topic `t` of one partition and coordinates group `g`, which begins at the start.
pub(super) async fn served() -> Served {
    let broker = FakeBroker::single();
    broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
    let front = front_of(&broker, quick_config());
    front.serve_peers();
    tokio::spawn(Arc::clone(&front).sweep_shares());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 1).await;
    let find =
        FindCoordinatorRequest { coordinator_keys: vec![GROUP.into()], ..Default::default() };
    assert_eq!(client.call(4, find).await.coordinators[0].error_code, ErrorCode::None);
    let mut served = Served { broker, front, client, epoch: 0 };
    served.set("share.auto.offset.reset", "earliest").await;
    served.join("m").await;
    served
}

impl Served {
    pub(super) async fn set(&mut self, name: &str, value: &str) {
        let config = IncrementalAlterableConfig {
            name: name.into(),
            config_operation: 0,
            value: Some(value.into()),
        };
        let resource = IncrementalAlterConfigsResource {
            resource_type: 32,
            resource_name: GROUP.into(),
            configs: vec![config],
        };
        let request =
            IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
        let told = self.client.call(1, request).await;
        assert_eq!(told.responses[0].error_code, ErrorCode::None, "{name}");
    }

    pub(super) async fn join(&mut self, member: &str) {
        let request = ShareGroupHeartbeatRequest {
            group_id: GROUP.into(),
            member_id: member.into(),
            subscribed_topic_names: Some(vec!["t".into()]),
            ..Default::default()
        };
        let told = self.client.call(1, request).await;
        assert_eq!(told.error_code, ErrorCode::None, "{:?}", told.error_message);
        let assigned = told.assignment.expect("its assignment").topic_partitions;
        assert_eq!(assigned[0].partitions, [0]);
    }

    pub(super) async fn produce(&mut self, values: &[&str]) {
        let partition = ProducePartition { records: Some(batch_of(values)), ..Default::default() };
        let topic = ProduceTopic {
            name: "t".into(),
            partition_data: vec![partition],
            ..Default::default()
        };
        let request = ProduceRequest {
            acks: -1,
            timeout_ms: 1000,
            topic_data: vec![topic],
            ..Default::default()
        };
        let told = self.client.call(9, request).await;
        assert_eq!(told.responses[0].partition_responses[0].error_code, ErrorCode::None);
    }

    pub(super) fn request(&self, member: &str, epoch: i32) -> ShareFetchRequest {
        let partition = ShareFetchPartition::default();
        let topic =
            ShareFetchTopic { topic_id: self.broker.topic_uuid("t"), partitions: vec![partition] };
        ShareFetchRequest {
            group_id: Some(GROUP.into()),
            member_id: Some(member.into()),
            share_session_epoch: epoch,
            max_records: 100,
            batch_size: 100,
            max_wait_ms: 500,
            topics: vec![topic],
            ..Default::default()
        }
    }

    /// The next fetch of the session of `m`.
    pub(super) async fn fetch(&mut self) -> ShareFetchResponse {
        let request = self.request("m", self.epoch);
        let told = self.client.call(2, request).await;
        assert_eq!(told.error_code, ErrorCode::None, "{:?}", told.error_message);
        self.epoch += 1;
        told
    }

    /// Fetches until records come, as clients do while something moves.
    async fn fetch_some(&mut self) -> ShareFetchPartitionResponse {
        let fetch = async {
            loop {
                let told = self.fetch().await;
                let partition = told.responses.first().map(|it| it.partitions[0].clone());
                match partition {
                    Some(partition) if !partition.acquired_records.is_empty() => return partition,
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, fetch).await.expect("records in time")
    }

    /// Waits until the group has begun with the partition.
    async fn opened(&self) {
        let is_open = |window: &Arc<Window>| matches!(window.with(|_| ()), Ok(Some(())));
        let opened = async {
            while !self.front.shares.windows_of(GROUP).iter().any(is_open) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, opened).await.expect("opened in time");
    }

    /// What becomes of an acknowledgement.
    pub(super) async fn acknowledge(&mut self, first: i64, last: i64, kind: i8) -> ErrorCode {
        let request = ShareAcknowledgeRequest {
            share_session_epoch: self.epoch,
            is_renew_ack: kind == RENEW,
            ..self.acknowledgement("m", first, last, kind)
        };
        let told = self.client.call(2, request).await;
        if !told.error_code.is_none() {
            return told.error_code;
        }
        self.epoch += 1;
        told.responses[0].partitions[0].error_code
    }

    pub(super) fn acknowledgement(
        &self,
        member: &str,
        first_offset: i64,
        last_offset: i64,
        kind: i8,
    ) -> ShareAcknowledgeRequest {
        let batch =
            AcknowledgementBatch { first_offset, last_offset, acknowledge_types: vec![kind] };
        let partition =
            ShareAcknowledgePartition { partition_index: 0, acknowledgement_batches: vec![batch] };
        let topic = ShareAcknowledgeTopic {
            topic_id: self.broker.topic_uuid("t"),
            partitions: vec![partition],
        };
        ShareAcknowledgeRequest {
            group_id: Some(GROUP.into()),
            member_id: Some(member.into()),
            topics: vec![topic],
            ..Default::default()
        }
    }

    /// Another node takes everything over: it knows only what is in the logs.
    fn restart(&mut self) {
        self.front = front_of(&self.broker, quick_config());
        self.front.serve_peers();
        self.client = TestClient::connect(&self.front);
        self.epoch = 0;
    }
}

fn acquired(partition: &ShareFetchPartitionResponse) -> Vec<(i64, i64, i16)> {
    let told = |it: &AcquiredRecords| (it.first_offset, it.last_offset, it.delivery_count);
    partition.acquired_records.iter().map(told).collect()
}

fn values(partition: &ShareFetchPartitionResponse) -> Vec<i64> {
    let records = partition.records.clone().unwrap_or_default().into_bytes();
    values_of(records).into_iter().map(|(offset, _)| offset).collect()
}

#[tokio::test]
async fn what_is_accepted_never_comes_again_and_the_rest_does() {
    let mut served = served().await;
    served.produce(&["a", "b", "c", "d"]).await;
    let given = served.fetch_some().await;
    assert_eq!(acquired(&given), [(0, 3, 1)]);
    assert_eq!(values(&given), [0, 1, 2, 3]);
    assert_eq!(served.acknowledge(0, 1, ACCEPT).await, ErrorCode::None);
    assert_eq!(served.acknowledge(3, 3, ACCEPT).await, ErrorCode::None);

    served.restart();
    let given = served.fetch_some().await;
    assert_eq!(acquired(&given), [(2, 2, 1)], "the delivery whose leader is gone does not count");
    assert_eq!(served.acknowledge(2, 2, RELEASE).await, ErrorCode::None);

    served.restart();
    let given = served.fetch_some().await;
    assert_eq!(acquired(&given), [(2, 2, 2)], "one that was released does");
    assert_eq!(served.acknowledge(2, 2, ACCEPT).await, ErrorCode::None);
    served.produce(&["e"]).await;
    let given = served.fetch_some().await;
    assert_eq!(acquired(&given), [(4, 4, 1)]);
}

#[tokio::test]
async fn a_partition_that_moves_voids_the_window_and_not_what_is_kept() {
    let mut served = served().await;
    served.produce(&["a", "b"]).await;
    served.fetch_some().await;
    assert_eq!(served.acknowledge(0, 0, ACCEPT).await, ErrorCode::None);
    served.broker.take_over("t", 0);
    let code = served.acknowledge(1, 1, ACCEPT).await;
    let is_refused = [ErrorCode::NotLeaderOrFollower, ErrorCode::InvalidRecordState];
    assert!(is_refused.contains(&code), "{code}");
    let given = served.fetch_some().await;
    assert_eq!(acquired(&given), [(1, 1, 1)]);
}

/// A log that has stopped knows neither its start nor its end.
#[tokio::test]
async fn a_window_whose_log_has_stopped_writes_nothing() {
    let mut served = served().await;
    served.produce(&["a", "b"]).await;
    served.fetch_some().await;
    assert_eq!(served.acknowledge(0, 0, ACCEPT).await, ErrorCode::None);
    let log = Arc::clone(served.front.shares.windows_of(GROUP)[0].log());
    served.broker.take_over("t", 0);
    let topic = lookup::topic_id(served.broker.topic_uuid("t"));
    let partition = TopicPartition { topic, index: 0 };
    let late = Window::open(&served.front, &Arc::from(GROUP), partition, &log);
    let closed = async {
        while !late.is_closed() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("closed in time");
    let given = served.fetch_some().await;
    assert_eq!(acquired(&given), [(1, 1, 1)], "what was accepted does not come again");
}

#[tokio::test]
async fn the_latest_group_begins_with_its_first_fetch_whoever_leads_later() {
    let mut served = served().await;
    served.produce(&["a", "b"]).await;
    served.set("share.auto.offset.reset", "latest").await;
    assert_eq!(served.fetch().await.responses, [], "nothing is new");
    served.opened().await;
    served.produce(&["c"]).await;
    served.restart();
    let given = served.fetch_some().await;
    assert_eq!(acquired(&given), [(2, 2, 1)]);
}

#[tokio::test]
async fn members_share_a_partition_and_what_one_leaves_is_the_others() {
    let mut served = served().await;
    served.produce(&["a"]).await;
    served.produce(&["b"]).await;
    let strict = |request: ShareFetchRequest| ShareFetchRequest {
        max_records: 1,
        share_acquire_mode: 1,
        ..request
    };
    let fetch = async {
        let mut epoch = 0;
        loop {
            let request = strict(served.request("m", epoch));
            let told = served.client.call(2, request).await;
            assert_eq!(told.error_code, ErrorCode::None);
            epoch += 1;
            if let Some(topic) = told.responses.first() {
                return acquired(&topic.partitions[0]);
            }
        }
    };
    let first = tokio::time::timeout(PATIENCE, fetch).await.expect("in time");
    assert_eq!(first, [(0, 0, 1)]);
    let mut other = TestClient::connect(&served.front);
    let told = other.call(2, served.request("n", 0)).await;
    assert_eq!(acquired(&told.responses[0].partitions[0]), [(1, 1, 1)]);
    // It waits for what the first one gives back when it closes its session.
    let id =
        other.send(2, &ShareFetchRequest { max_wait_ms: 20_000, ..served.request("n", 1) }).await;
    let leave = ShareFetchRequest { topics: vec![], ..served.request("m", -1) };
    let left = served.client.call(2, leave).await;
    assert_eq!(left.error_code, ErrorCode::None);
    let told = other.receive::<ShareFetchRequest>(2, id).await;
    assert_eq!(acquired(&told.responses[0].partitions[0]), [(0, 0, 2)]);
}

#[tokio::test]
async fn a_connection_that_is_closed_frees_what_its_member_holds() {
    let mut served = served().await;
    served.produce(&["a"]).await;
    served.fetch_some().await;
    let mut other = TestClient::connect(&served.front);
    let waits = ShareFetchRequest { max_wait_ms: 20_000, ..served.request("n", 0) };
    let id = other.send(2, &waits).await;
    served.client = TestClient::connect(&served.front);
    let told = other.receive::<ShareFetchRequest>(2, id).await;
    assert_eq!(acquired(&told.responses[0].partitions[0]), [(0, 0, 2)]);
}

#[tokio::test]
async fn a_group_that_is_set_anew_goes_on_there_and_not_beyond_the_end() {
    let mut served = served().await;
    served.produce(&["a", "b"]).await;
    served.fetch_some().await;
    let leave = ShareFetchRequest { topics: vec![], ..served.request("m", -1) };
    assert_eq!(served.client.call(2, leave).await.error_code, ErrorCode::None);
    let left = ShareGroupHeartbeatRequest {
        group_id: GROUP.into(),
        member_id: "m".into(),
        member_epoch: -1,
        ..Default::default()
    };
    assert_eq!(served.client.call(1, left).await.error_code, ErrorCode::None);
    for (start_offset, expected) in [(1, (1, 2, 1)), (i64::MAX, (3, 3, 1))] {
        let partition = AlterShareGroupOffsetsPartition { partition_index: 0, start_offset };
        let topic =
            AlterShareGroupOffsetsTopic { topic_name: "t".into(), partitions: vec![partition] };
        let request = AlterShareGroupOffsetsRequest { group_id: GROUP.into(), topics: vec![topic] };
        assert_eq!(served.client.call(0, request).await.error_code, ErrorCode::None);
        served.epoch = 0;
        if start_offset == i64::MAX {
            assert_eq!(served.fetch().await.responses, [], "it begins at the end");
            served.opened().await;
        }
        served.produce(&["c"]).await;
        let mut given = acquired(&served.fetch_some().await);
        while given.last().map(|it| it.1) < Some(expected.1) {
            given.extend(acquired(&served.fetch_some().await));
        }
        let (first, last) = (given[0], given[given.len() - 1]);
        assert_eq!((first.0, last.1, first.2), expected);
        let leave = ShareFetchRequest { topics: vec![], ..served.request("m", -1) };
        assert_eq!(served.client.call(2, leave).await.error_code, ErrorCode::None);
    }
}

#[tokio::test]
async fn locks_end_and_a_record_comes_so_often() {
    let mut served = served().await;
    served.set("share.record.lock.duration.ms", "1000").await;
    served.set("share.delivery.count.limit", "2").await;
    served.produce(&["a"]).await;
    assert_eq!(acquired(&served.fetch_some().await), [(0, 0, 1)]);
    assert_eq!(served.acknowledge(0, 0, RENEW).await, ErrorCode::None);
    assert_eq!(acquired(&served.fetch_some().await), [(0, 0, 2)]);
    assert_eq!(served.acknowledge(0, 0, RELEASE).await, ErrorCode::None);
    served.produce(&["b"]).await;
    assert_eq!(acquired(&served.fetch_some().await), [(1, 1, 1)], "twice was enough");
    let samples = served.front.shares.samples();
    let of = |name: &str| samples.iter().find(|it| it.name == name).map(|it| it.value);
    assert_eq!(of("meridian_share_redelivered_total"), Some(1));
    assert_eq!(of("meridian_share_records_in_flight"), Some(1));
    assert_eq!(of("meridian_share_sessions"), Some(1));
}
