//! What Fetch says to requests that cannot be: the errors that Kafka gives.

use meridian_protocol::messages::FetchPartition;

use super::tests::{partition, partitions, produce, request, served};
use super::*;
use crate::kafka::Front;
use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, front_of, quick_config};

/// The epoch of the leader of partition 0 of `t`.
fn epoch(front: &Front) -> i32 {
    let metadata = front.broker.metadata();
    let topic = metadata.topic_named("t").expect("created");
    metadata.partition_at(topic.id, 0).expect("created").1.leader_epoch.get()
}

fn with_epoch(current_leader_epoch: i32) -> FetchPartition {
    FetchPartition { current_leader_epoch, ..partition(0, 0) }
}

#[tokio::test]
async fn of_partitions() {
    let (front, mut client) = served().await;
    produce(&mut client, 0, &["a", "b"]).await;
    let epoch = epoch(&front);
    let unknown = ErrorCode::UnknownTopicOrPartition;
    for (what, version, asked, code) in [
        ("well", 12, with_epoch(epoch), ErrorCode::None),
        ("after the end", 12, partition(0, 3), ErrorCode::OffsetOutOfRange),
        ("before the start", 12, partition(0, -1), ErrorCode::OffsetOutOfRange),
        ("no partition", 12, partition(9, 0), unknown),
        ("a negative partition", 12, partition(-1, 0), unknown),
        ("a leader to come", 12, with_epoch(epoch + 1), ErrorCode::UnknownLeaderEpoch),
        ("no topic of this id", 13, partition(0, 0), ErrorCode::UnknownTopicId),
    ] {
        let response = client.call(version, request(vec![asked])).await;
        assert_eq!(partitions(&response)[0].error_code, code, "{what}");
    }
    let mut nowhere = request(vec![partition(0, 0)]);
    nowhere.topics[0].topic = "none".into();
    assert_eq!(partitions(&client.call(12, nowhere).await)[0].error_code, unknown);
}

#[tokio::test]
async fn of_former_leaders() {
    let broker = FakeBroker::single();
    let front = front_of(&broker, quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 1).await;
    // Where there is nothing to read a fetch would wait for something.
    produce(&mut client, 0, &["a"]).await;
    broker.take_over("t", 0);
    let epoch = epoch(&front);
    let served = async {
        while !partitions(&client.call(12, request(vec![with_epoch(epoch)])).await)[0]
            .error_code
            .is_none()
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, served).await.expect("taken over in time");
    for version in [9, 12] {
        let told = client.call(version, request(vec![with_epoch(epoch - 1)])).await;
        assert_eq!(partitions(&told)[0].error_code, ErrorCode::FencedLeaderEpoch, "{version}");
    }
}

#[tokio::test]
async fn of_sessions() {
    let (_front, mut client) = served().await;
    produce(&mut client, 0, &["a"]).await;
    let with = |session_id, session_epoch| FetchRequest {
        session_id,
        session_epoch,
        ..request(vec![partition(0, 0)])
    };
    let opened = client.call(12, with(0, 0)).await;
    let id = opened.session_id;
    assert_ne!(id, 0);
    for (what, version, session_id, session_epoch, code) in [
        ("an unknown session", 12, id ^ 1, 1, ErrorCode::FetchSessionIdNotFound),
        ("an epoch to come", 12, id, 2, ErrorCode::InvalidFetchSessionEpoch),
        ("the next epoch", 12, id, 1, ErrorCode::None),
        ("a former epoch", 12, id, 1, ErrorCode::InvalidFetchSessionEpoch),
        ("by ids, having begun by names", 13, id, 2, ErrorCode::FetchSessionTopicIdError),
    ] {
        let told = client.call(version, with(session_id, session_epoch)).await;
        assert_eq!(told.error_code, code, "{what}");
    }
}
