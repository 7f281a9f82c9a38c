//! What FindCoordinator and OffsetFetch say to requests that cannot be: the errors that Kafka gives.

use meridian_protocol::Uuid;
use meridian_protocol::messages::FindCoordinatorRequest;

use super::*;
use crate::kafka::groups::tests::{commit_request, join_alone, served};

#[tokio::test]
async fn coordinators() {
    let (_broker, _front, mut client) = served().await;
    let (group, transaction) =
        (FindCoordinatorRequest::KEY_TYPE_GROUP, FindCoordinatorRequest::KEY_TYPE_TRANSACTION);
    for (what, key_type, keys, codes) in [
        ("well", group, vec!["g"], vec![ErrorCode::None]),
        ("of the group without a name", group, vec![""], vec![ErrorCode::None]),
        ("of a transaction", transaction, vec!["t"], vec![ErrorCode::None]),
        ("of nothing", group, vec![], vec![]),
        ("of two", group, vec!["g", "h"], vec![ErrorCode::None; 2]),
        ("of shares, which are not served", 2, vec!["g:t:0"], vec![ErrorCode::InvalidRequest]),
        ("of what is not known", 7, vec!["g", "h"], vec![ErrorCode::InvalidRequest; 2]),
        ("of a negative kind", -1, vec!["g"], vec![ErrorCode::InvalidRequest]),
    ] {
        let coordinator_keys: Vec<Str> = keys.into_iter().map(Str::from).collect();
        let key = coordinator_keys.first().cloned().unwrap_or_default();
        let request = FindCoordinatorRequest { key_type, coordinator_keys, ..Default::default() };
        let told = client.call(4, request).await.coordinators;
        let seen: Vec<ErrorCode> = told.iter().map(|it| it.error_code).collect();
        assert_eq!(seen, codes, "{what}");
        let is_whole = |it: &meridian_protocol::messages::Coordinator| {
            (it.node_id == -1) == (it.error_code != ErrorCode::None)
        };
        assert!(told.iter().all(is_whole), "{what}: a node, or an error");
        let alone = FindCoordinatorRequest { key, key_type, ..Default::default() };
        let told = client.call(3, alone).await.error_code;
        assert_eq!(told, codes.first().copied().unwrap_or(ErrorCode::None), "{what}, alone");
    }
}

#[tokio::test]
async fn positions() {
    let (broker, _front, mut client) = served().await;
    let joined = join_alone(&mut client).await;
    let stored = client.call(9, commit_request(7, Some(&joined))).await;
    assert_eq!(stored.topics[0].partitions[0].error_code, ErrorCode::None);
    let none = ErrorCode::None;
    for (what, group, topic, partition, expected) in [
        ("well", "g", "t", 1, (none, 7)),
        ("nothing stored", "g", "t", 0, (none, -1)),
        ("no such partition", "g", "t", 9, (none, -1)),
        ("a negative one", "g", "t", -1, (none, -1)),
        ("no such topic", "g", "none", 0, (none, -1)),
        ("no such group", "new", "t", 1, (none, -1)),
        ("the group without a name", "", "t", 1, (none, -1)),
    ] {
        let topic = OffsetFetchTopic {
            name: topic.into(),
            partition_indexes: vec![partition],
            ..Default::default()
        };
        let topics = Some(vec![topic]);
        let wanted = OffsetFetchGroup { group_id: group.into(), topics, ..Default::default() };
        let request = OffsetFetchRequest { groups: vec![wanted.clone()], ..Default::default() };
        let mut told = client.call(9, request).await.groups.remove(0);
        assert_eq!(told.error_code, none, "{what}");
        let told = told.topics.remove(0).partitions.remove(0);
        assert_eq!((told.error_code, told.committed_offset), expected, "{what}");
        let OffsetFetchGroup { group_id, topics, .. } = wanted;
        let alone = OffsetFetchRequest { group_id, topics, ..Default::default() };
        for version in [1, 7] {
            let told = client.call(version, alone.clone()).await.topics[0].partitions[0].clone();
            let seen = (told.error_code, told.committed_offset);
            assert_eq!(seen, expected, "{what}, version {version}");
        }
    }
    for (what, id, expected) in [
        ("by its id", broker.topic_uuid("t"), (none, 7)),
        ("by another id", Uuid([9; 16]), (ErrorCode::UnknownTopicId, -1)),
        ("by none", Uuid::ZERO, (ErrorCode::UnknownTopicId, -1)),
    ] {
        let topic =
            OffsetFetchTopic { topic_id: id, partition_indexes: vec![1], ..Default::default() };
        let topics = Some(vec![topic]);
        let wanted = OffsetFetchGroup { group_id: "g".into(), topics, ..Default::default() };
        let request = OffsetFetchRequest { groups: vec![wanted], ..Default::default() };
        let told = client.call(10, request).await.groups[0].topics[0].partitions[0].clone();
        assert_eq!((told.error_code, told.committed_offset), expected, "{what}");
    }
    // Who says that it is a member, in groups of the new protocol, must be one.
    for (what, group, member, epoch, code) in [
        ("no member in particular", "g", None, -1, none),
        ("of no group", "new", Some("m"), 3, none),
    ] {
        let wanted = OffsetFetchGroup {
            group_id: group.into(),
            member_id: member.map(Str::from),
            member_epoch: epoch,
            ..Default::default()
        };
        let request = OffsetFetchRequest { groups: vec![wanted], ..Default::default() };
        assert_eq!(client.call(9, request).await.groups[0].error_code, code, "{what}");
    }
}
