//! Share groups.

use meridian_access::Operation::{Delete, Describe, Read};
use meridian_protocol::messages::{
    AcknowledgementBatch, AlterShareGroupOffsetsPartition, AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsTopic, DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsTopic,
    DescribeShareGroupOffsetsGroup, DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsTopic, ShareAcknowledgePartition, ShareAcknowledgeRequest,
    ShareAcknowledgeTopic, ShareFetchPartition, ShareFetchRequest, ShareFetchTopic,
    ShareGroupDescribeRequest, ShareGroupHeartbeatRequest,
};
use meridian_protocol::{ErrorCode, Uuid};

use super::super::{Case, ON_QUEUE, ON_SHARERS, ON_TOPIC, QUEUE, Refused, SHARERS, TOPIC};

const DENIED: Refused = Refused::With(ErrorCode::GroupAuthorizationFailed);

fn fetch(topic_id: Uuid) -> ShareFetchRequest {
    let topic = ShareFetchTopic { topic_id, partitions: vec![ShareFetchPartition::default()] };
    ShareFetchRequest {
        group_id: Some(QUEUE.into()),
        member_id: Some("alice".into()),
        max_records: 1,
        topics: vec![topic],
        ..Default::default()
    }
}

fn acknowledge(topic_id: Uuid) -> ShareAcknowledgeRequest {
    let batch = AcknowledgementBatch { acknowledge_types: vec![1], ..Default::default() };
    let partition =
        ShareAcknowledgePartition { acknowledgement_batches: vec![batch], ..Default::default() };
    ShareAcknowledgeRequest {
        group_id: Some(QUEUE.into()),
        member_id: Some("alice".into()),
        share_session_epoch: 1,
        topics: vec![ShareAcknowledgeTopic { topic_id, partitions: vec![partition] }],
        ..Default::default()
    }
}

pub(super) fn cases() -> Vec<Case> {
    let reads = [(Read, ON_QUEUE), (Read, ON_TOPIC)];
    vec![
        Case::new("", &[(Read, ON_SHARERS), (Describe, ON_TOPIC)], DENIED, |_| {
            ShareGroupHeartbeatRequest {
                group_id: SHARERS.into(),
                member_id: "alice".into(),
                subscribed_topic_names: Some(vec![TOPIC.into()]),
                ..Default::default()
            }
        }),
        Case::new("", &[(Describe, ON_SHARERS), (Describe, ON_TOPIC)], DENIED, |_| {
            ShareGroupDescribeRequest {
                group_ids: vec![SHARERS.into()],
                include_authorized_operations: true,
            }
        }),
        Case::new("", &reads, DENIED, fetch),
        Case::new("", &reads, DENIED, acknowledge),
        Case::new("", &[(Describe, ON_QUEUE), (Describe, ON_TOPIC)], DENIED, |_| {
            let topic =
                DescribeShareGroupOffsetsTopic { topic_name: TOPIC.into(), partitions: vec![0] };
            let topics = Some(vec![topic]);
            let group = DescribeShareGroupOffsetsGroup { group_id: QUEUE.into(), topics };
            DescribeShareGroupOffsetsRequest { groups: vec![group] }
        }),
        Case::new("", &reads, DENIED, |_| {
            let partitions = vec![AlterShareGroupOffsetsPartition::default()];
            let topic = AlterShareGroupOffsetsTopic { topic_name: TOPIC.into(), partitions };
            AlterShareGroupOffsetsRequest { group_id: QUEUE.into(), topics: vec![topic] }
        }),
        Case::new("", &[(Delete, ON_QUEUE), (Read, ON_TOPIC)], DENIED, |_| {
            let topic = DeleteShareGroupOffsetsTopic { topic_name: TOPIC.into() };
            DeleteShareGroupOffsetsRequest { group_id: QUEUE.into(), topics: vec![topic] }
        }),
    ]
}
