//! What DeleteTopics and CreatePartitions say to requests that cannot be: the errors that Kafka gives.
//! CreateTopics has its table among its tests.

use meridian_protocol::Uuid;
use meridian_protocol::messages::{CreatePartitionsAssignment, FindCoordinatorRequest};

use super::*;
use crate::kafka::coordinator::OFFSETS_TOPIC;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

/// Topics `t` and `u` of two partitions each, and those of groups.
async fn served() -> (std::sync::Arc<FakeBroker>, TestClient) {
    let broker = FakeBroker::three_datacenters();
    let mut client = TestClient::connect(&front_of(&broker, quick_config()));
    client.create_topic("t", 2).await;
    client.create_topic("u", 2).await;
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    client.call(4, find).await;
    (broker, client)
}

#[tokio::test]
async fn deletions() {
    let (broker, mut client) = served().await;
    let (t, own) = (broker.topic_uuid("t"), broker.topic_uuid(OFFSETS_TOPIC));
    let unknown = ErrorCode::UnknownTopicOrPartition;
    let (invalid, none) = (ErrorCode::InvalidRequest, Uuid::ZERO);
    for (what, named, code) in [
        ("nothing", vec![], None),
        ("a name and an id", vec![(Some("t"), t)], Some(invalid)),
        ("a name and another id", vec![(Some("t"), Uuid([9; 16]))], Some(invalid)),
        ("neither name nor id", vec![(None, none)], Some(invalid)),
        ("no name", vec![(Some(""), none)], Some(unknown)),
        ("an illegal name", vec![(Some("a/b"), none)], Some(unknown)),
        ("no such topic", vec![(Some("none"), none)], Some(unknown)),
        ("no such id", vec![(None, Uuid([9; 16]))], Some(ErrorCode::UnknownTopicId)),
        ("twice by name", vec![(Some("t"), none); 2], Some(invalid)),
        ("twice by id", vec![(None, t); 2], Some(invalid)),
        ("by name and by id", vec![(Some("t"), none), (None, t)], Some(invalid)),
        ("the cluster's own", vec![(None, own)], Some(ErrorCode::InvalidTopicException)),
    ] {
        let topic = |(name, topic_id): (Option<&str>, Uuid)| DeleteTopicState {
            name: name.map(Str::from),
            topic_id,
        };
        let topics = named.into_iter().map(topic).collect();
        let request = DeleteTopicsRequest { topics, ..Default::default() };
        let told = client.call(6, request).await.responses;
        assert!(told.iter().all(|it| Some(it.error_code) == code), "{what}: {told:?}");
        assert_eq!(told.is_empty(), code.is_none(), "{what}");
    }
    // Before topics had ids.
    for (what, names, code) in [
        ("no such topic", vec!["none"], unknown),
        ("no name", vec![""], unknown),
        ("twice", vec!["t", "t"], invalid),
        ("the cluster's own", vec![OFFSETS_TOPIC], ErrorCode::InvalidTopicException),
    ] {
        let topic_names = names.into_iter().map(Str::from).collect();
        let request = DeleteTopicsRequest { topic_names, ..Default::default() };
        let told = client.call(5, request).await.responses;
        assert!(told.iter().all(|it| it.error_code == code), "{what}: {told:?}");
    }
    assert_eq!(broker.topic_uuid("t"), t, "nothing was deleted");
}

#[tokio::test]
async fn growth() {
    let (broker, mut client) = served().await;
    let assigned = |brokers: &[&[i32]]| {
        let assign = |ids: &&[i32]| CreatePartitionsAssignment { broker_ids: ids.to_vec() };
        Some(brokers.iter().map(assign).collect::<Vec<_>>())
    };
    let (count, assignment) = (ErrorCode::InvalidPartitions, ErrorCode::InvalidReplicaAssignment);
    let unknown = ErrorCode::UnknownTopicOrPartition;
    for (what, name, to, assignments, code) in [
        ("no such topic", "none", 9, None, unknown),
        ("no name", "", 9, None, unknown),
        ("an illegal name", "a/b", 9, None, unknown),
        ("the cluster's own", OFFSETS_TOPIC, 9, None, ErrorCode::InvalidTopicException),
        ("as many", "t", 2, None, count),
        ("fewer", "t", 1, None, count),
        ("none", "t", 0, None, count),
        ("less than none", "t", -1, None, count),
        ("the fewest", "t", i32::MIN, None, count),
        ("too many", "t", i32::MAX, None, count),
        ("too few assigned", "t", 4, assigned(&[&[1]]), assignment),
        ("too many assigned", "t", 3, assigned(&[&[1], &[2]]), assignment),
        ("none assigned", "t", 3, assigned(&[]), assignment),
        ("to nobody", "t", 3, assigned(&[&[]]), assignment),
        ("to a stranger", "t", 3, assigned(&[&[9]]), assignment),
        ("to less than nobody", "t", 3, assigned(&[&[-1]]), assignment),
        ("copies to a stranger", "t", 3, assigned(&[&[1, 9]]), assignment),
        ("to the same twice", "t", 3, assigned(&[&[2, 1, 2]]), assignment),
    ] {
        for validate_only in [true, false] {
            let topic = CreatePartitionsTopic {
                name: name.into(),
                count: to,
                assignments: assignments.clone(),
            };
            let topics = vec![topic];
            let request = CreatePartitionsRequest { topics, validate_only, ..Default::default() };
            let told = client.call(3, request).await.results.remove(0);
            assert_eq!(told.error_code, code, "{what}");
        }
    }
    let topics = vec![CreatePartitionsTopic {
        name: "t".into(),
        count: 3,
        assignments: assigned(&[&[3, 2, 1]]),
    }];
    let request = CreatePartitionsRequest { topics, validate_only: true, ..Default::default() };
    assert_eq!(client.call(3, request).await.results[0].error_code, ErrorCode::None);
    let to = |count| CreatePartitionsTopic { name: "t".into(), count, assignments: None };
    let request = CreatePartitionsRequest { topics: vec![to(3), to(4)], ..Default::default() };
    let told = client.call(3, request).await.results;
    assert!(told.iter().all(|it| it.error_code == ErrorCode::InvalidRequest), "twice: {told:?}");
    assert_eq!(broker.state().topic_named("t").unwrap().partitions.len(), 2, "none was added");
}
