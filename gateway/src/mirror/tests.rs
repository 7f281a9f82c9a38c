//! What clients of a mirror may do, asked of the real front.

use meridian_base::id::{ClusterId, TopicId};
use meridian_base::position::LeaderEpoch;
use meridian_consensus::command::{Command, ExpectedVersion, RowKind};
use meridian_mirror::rows::Stage;
use meridian_mirror::rules::Rule;
use meridian_mirror::succession::{LinkEpoch, Succession};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    CreatableTopic, CreateTopicsRequest, DeleteTopicState, DeleteTopicsRequest, MetadataRequest,
    MetadataRequestTopic, OffsetForLeaderEpochRequest, OffsetForLeaderPartition,
    OffsetForLeaderTopic, ProducePartition, ProduceRequest, ProduceTopic,
};

use super::testing::{anew, mirror, put_mirror, put_row};
use crate::broker::Broker;
use crate::kafka::testing::{FakeBroker, TestClient, batch_of, front_of, quick_config};

/// Says that topic `t` is a mirror in this stage.
fn put(broker: &FakeBroker, stage: Stage) -> TopicId {
    let topic = broker.state().topic_named("t").expect("exists").id;
    put_mirror(broker, topic, &mirror("t", stage));
    topic
}

async fn produce(client: &mut TestClient) -> ErrorCode {
    let partition = ProducePartition { index: 0, records: Some(batch_of(&["a", "b"])) };
    let topic =
        ProduceTopic { name: "t".into(), partition_data: vec![partition], ..Default::default() };
    let request = ProduceRequest {
        acks: -1,
        timeout_ms: 10_000,
        topic_data: vec![topic],
        ..Default::default()
    };
    let told = client.call(9, request).await.responses.remove(0).partition_responses.remove(0);
    told.error_code
}

async fn epoch_end(client: &mut TestClient, leader_epoch: i32) -> (i32, i64) {
    let partition = OffsetForLeaderPartition { leader_epoch, ..Default::default() };
    let topic = OffsetForLeaderTopic { topic: "t".into(), partitions: vec![partition] };
    let request = OffsetForLeaderEpochRequest { topics: vec![topic], ..Default::default() };
    let end = client.call(4, request).await.topics.remove(0).partitions.remove(0);
    (end.leader_epoch, end.end_offset)
}

#[tokio::test]
async fn only_the_link_writes_until_the_mirror_is_promoted() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 1).await;
    assert_eq!(produce(&mut client).await, ErrorCode::None);
    for stage in [Stage::Creating, Stage::Mirroring, Stage::Paused, Stage::Promoting] {
        let topic = put(&broker, stage);
        assert_eq!(produce(&mut client).await, ErrorCode::PolicyViolation, "{stage:?}");
        let message = crate::linked_topics::refuses_clients(&broker.state(), topic);
        assert!(matches!(message, Some(crate::linked_topics::Closed::Mirror(message))
            if message.contains("meridian mirror promote t")));
        // All that is there is valid under whatever epoch the source's leaders had.
        assert_eq!(epoch_end(&mut client, 40).await, (40, 2));
    }
    put(&broker, Stage::Promoted { epoch_floor: LeaderEpoch::new(6) });
    assert_eq!(produce(&mut client).await, ErrorCode::None);
}

#[tokio::test]
async fn a_deleted_mirror_leaves_nothing_behind() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 1).await;
    put(&broker, Stage::Mirroring);
    let state = DeleteTopicState { name: Some("t".into()), ..Default::default() };
    let request = DeleteTopicsRequest { topics: vec![state], ..Default::default() };
    assert_eq!(client.call(6, request).await.responses[0].error_code, ErrorCode::None);
    assert_eq!(broker.state().extra_rows(RowKind::MirrorTopic).count(), 0);
}

#[tokio::test]
async fn a_topic_that_moves_sends_its_clients_elsewhere_until_it_is_released() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 1).await;
    let topic = broker.state().topic_named("t").expect("exists").id;
    let (to, attempt) = (ClusterId::from_text("east"), LinkEpoch::new(1));
    let fenced = Succession::default().fence(&to, attempt, None);
    let fenced = fenced.expect("nothing is under way");
    let reversed = fenced.reverse(&to, attempt).expect("it was fenced");
    let giving_way = Succession::default().give_way(&to, attempt, None).expect("it was later");
    for row in [fenced.clone(), reversed, giving_way] {
        put_succession(&broker, topic, &row).await;
        assert_eq!(produce(&mut client).await, ErrorCode::NotLeaderOrFollower);
    }
    put_succession(&broker, topic, &fenced.release(attempt)).await;
    assert_eq!(produce(&mut client).await, ErrorCode::None);
}

async fn put_succession(broker: &FakeBroker, topic: TopicId, row: &Succession) {
    let expected = ExpectedVersion::Any;
    let change = super::succession::change(topic, row, expected);
    broker.propose(Command::PutRows(vec![change])).await.expect("no condition");
}

#[tokio::test]
async fn nobody_takes_the_name_of_a_mirror_that_begins_anew() {
    let broker = FakeBroker::single();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    let rule = Rule { include: "there".to_owned(), ..anew("a.b") };
    let put_rule = |value| put_row(&broker, RowKind::MirrorRule, &rule.key(), value);
    put_rule(Some(rule.encode()));
    let ask = |name: &str| MetadataRequest {
        topics: Some(vec![MetadataRequestTopic { name: Some(name.into()), ..Default::default() }]),
        allow_auto_topic_creation: true,
        ..Default::default()
    };
    // Of the one name the other could not be created any more.
    for name in ["a.b", "a_b"] {
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: 1,
            replication_factor: -1,
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let told = client.call(7, request).await.topics.remove(0);
        assert_eq!(told.error_code, ErrorCode::PolicyViolation);
        let message = told.error_message.unwrap_or_default();
        assert!(
            message.contains("over link west") && message.contains("--mirror a.b"),
            "{message}"
        );
        let told = client.call(12, ask(name)).await.topics.remove(0);
        assert_eq!(told.error_code, ErrorCode::UnknownTopicOrPartition);
    }
    assert!(broker.state().topic_named("a.b").is_none());
    assert_eq!(client.call(12, ask("there")).await.topics[0].error_code, ErrorCode::None);
    put_rule(None);
    assert_eq!(client.call(12, ask("a.b")).await.topics[0].error_code, ErrorCode::None);
}
