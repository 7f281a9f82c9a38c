//! What makes no sense in ShareFetch and ShareAcknowledge, and what Kafka says of it.

use meridian_protocol::messages::{
    AcknowledgementBatch, ShareAcknowledgeRequest, ShareFetchPartition, ShareFetchRequest,
    ShareFetchTopic,
};

use super::tests::{ACCEPT, served};
use super::*;

#[tokio::test]
async fn fetches() {
    let mut served = served().await;
    let good = served.request("m", 0);
    let good = || good.clone();
    let batch = AcknowledgementBatch { acknowledge_types: vec![ACCEPT], ..Default::default() };
    let acknowledging = vec![ShareFetchTopic {
        topic_id: good().topics[0].topic_id,
        partitions: vec![ShareFetchPartition {
            acknowledgement_batches: vec![batch],
            ..Default::default()
        }],
    }];
    for (what, request, code) in [
        ("no group", ShareFetchRequest { group_id: None, ..good() }, ErrorCode::InvalidRequest),
        (
            "an empty one",
            ShareFetchRequest { group_id: Some("".into()), ..good() },
            ErrorCode::InvalidRequest,
        ),
        ("no member", ShareFetchRequest { member_id: None, ..good() }, ErrorCode::InvalidRequest),
        (
            "a long one",
            ShareFetchRequest { member_id: Some("m".repeat(256).into()), ..good() },
            ErrorCode::InvalidRequest,
        ),
        (
            "no session",
            ShareFetchRequest { share_session_epoch: 3, ..good() },
            ErrorCode::ShareSessionNotFound,
        ),
        (
            "the end of no session",
            ShareFetchRequest { share_session_epoch: -1, ..good() },
            ErrorCode::ShareSessionNotFound,
        ),
        (
            "acknowledgements before the first fetch",
            ShareFetchRequest { topics: acknowledging, ..good() },
            ErrorCode::InvalidRequest,
        ),
        (
            "no such mode",
            ShareFetchRequest { share_acquire_mode: 2, ..good() },
            ErrorCode::InvalidRequest,
        ),
        (
            "a renewal that asks for records",
            ShareFetchRequest { is_renew_ack: true, ..good() },
            ErrorCode::InvalidRequest,
        ),
    ] {
        let told = served.client.call(2, request).await;
        assert_eq!(told.error_code, code, "{what}");
    }
}

#[tokio::test]
async fn partitions_that_are_not_there() {
    let mut served = served().await;
    let partition = |index| ShareFetchPartition { partition_index: index, ..Default::default() };
    let mut request = served.request("m", 0);
    request.topics[0].partitions = vec![partition(7), partition(-1)];
    request
        .topics
        .push(ShareFetchTopic { topic_id: Uuid([7; 16]), partitions: vec![partition(0)] });
    let told = served.client.call(2, request).await;
    let mut codes: Vec<(i32, ErrorCode)> = Vec::new();
    for topic in told.responses {
        codes.extend(topic.partitions.iter().map(|it| (it.partition_index, it.error_code)));
    }
    codes.sort_by_key(|(index, _)| *index);
    let unknown = ErrorCode::UnknownTopicOrPartition;
    assert_eq!(codes, [(-1, unknown), (0, ErrorCode::UnknownTopicId), (7, unknown)]);
    let told = served.client.call(2, served.request("m", 2)).await;
    assert_eq!(told.error_code, ErrorCode::InvalidShareSessionEpoch, "the epoch after the next");
}

#[tokio::test]
async fn acknowledgements() {
    let mut served = served().await;
    served.produce(&["a", "b"]).await;
    let good = ShareAcknowledgeRequest {
        share_session_epoch: 1,
        ..served.acknowledgement("m", 0, 0, ACCEPT)
    };
    let good = || good.clone();
    for (what, request, code) in [
        (
            "no group",
            ShareAcknowledgeRequest { group_id: None, ..good() },
            ErrorCode::InvalidRequest,
        ),
        (
            "the first of a session",
            ShareAcknowledgeRequest { share_session_epoch: 0, ..good() },
            ErrorCode::InvalidShareSessionEpoch,
        ),
        ("no session", good(), ErrorCode::ShareSessionNotFound),
    ] {
        let told = served.client.call(2, request).await;
        assert_eq!(told.error_code, code, "{what}");
    }
    assert_eq!(served.acknowledge(0, 0, ACCEPT).await, ErrorCode::InvalidShareSessionEpoch);
    loop {
        let told = served.fetch().await;
        if !told.responses.is_empty() {
            break;
        }
    }
    for (what, first, last, kind, code) in [
        ("beyond the window", 2, 2, ACCEPT, ErrorCode::InvalidRecordState),
        ("far beyond", 0, i64::MAX, ACCEPT, ErrorCode::InvalidRecordState),
        ("backwards", 1, 0, ACCEPT, ErrorCode::InvalidRequest),
        ("below zero", -2, -1, ACCEPT, ErrorCode::InvalidRequest),
        ("no such type", 0, 0, 9, ErrorCode::InvalidRequest),
        ("held", 0, 0, ACCEPT, ErrorCode::None),
        ("twice", 0, 0, ACCEPT, ErrorCode::InvalidRecordState),
        ("one of both twice", 0, 1, ACCEPT, ErrorCode::InvalidRecordState),
    ] {
        assert_eq!(served.acknowledge(first, last, kind).await, code, "{what}");
    }
    let request = ShareAcknowledgeRequest {
        share_session_epoch: served.epoch + 3,
        ..served.acknowledgement("m", 1, 1, ACCEPT)
    };
    let told = served.client.call(2, request).await;
    assert_eq!(told.error_code, ErrorCode::InvalidShareSessionEpoch);
    // Another member does not hold what this one holds.
    assert_eq!(served.client.call(2, served.request("n", 0)).await.error_code, ErrorCode::None);
    let request = ShareAcknowledgeRequest {
        share_session_epoch: 1,
        ..served.acknowledgement("n", 1, 1, ACCEPT)
    };
    let told = served.client.call(2, request).await;
    assert_eq!(told.responses[0].partitions[0].error_code, ErrorCode::InvalidRecordState);
}
