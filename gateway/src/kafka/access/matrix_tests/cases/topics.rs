//! Creating, changing and deleting topics.

use meridian_access::Operation::{Alter, Create, Delete, DescribeConfigs};
use meridian_access::Resource;
use meridian_protocol::ErrorCode::TopicAuthorizationFailed;
use meridian_protocol::Uuid;
use meridian_protocol::messages::{
    CreatableTopic, CreatePartitionsRequest, CreatePartitionsTopic, CreateTopicsRequest,
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic, DeleteTopicState,
    DeleteTopicsRequest,
};

use super::super::{Case, ON_CLUSTER, ON_TOPIC, Refused, TOPIC};

const NEW: &str = "invoices";

fn create(_: Uuid) -> CreateTopicsRequest {
    let topic = CreatableTopic {
        name: NEW.into(),
        num_partitions: 1,
        replication_factor: -1,
        ..Default::default()
    };
    CreateTopicsRequest { topics: vec![topic], validate_only: true, ..Default::default() }
}

fn delete(name: Option<&str>, topic_id: Uuid) -> DeleteTopicsRequest {
    let topic = DeleteTopicState { name: name.map(Into::into), topic_id };
    DeleteTopicsRequest { topics: vec![topic], timeout_ms: 5000, ..Default::default() }
}

pub(super) fn cases() -> Vec<Case> {
    let denied = Refused::With(TopicAuthorizationFailed);
    let new = Resource::topic(NEW);
    let deletes = [(Delete, ON_TOPIC)];
    vec![
        Case::new("by name", &[(Create, new), (DescribeConfigs, new)], denied, create),
        Case::new("any", &[(Create, ON_CLUSTER), (DescribeConfigs, new)], denied, create),
        Case::new("by name", &deletes, denied, |_| delete(Some(TOPIC), Uuid::ZERO)),
        Case::new("by id", &deletes, denied, |id| delete(None, id)),
        Case::of_version(5, "of old", &deletes, denied, |_| DeleteTopicsRequest {
            topic_names: vec![TOPIC.into()],
            timeout_ms: 5000,
            ..Default::default()
        }),
        Case::new("", &deletes, denied, |_| {
            let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset: 0 }];
            let topics = vec![DeleteRecordsTopic { name: TOPIC.into(), partitions }];
            DeleteRecordsRequest { topics, timeout_ms: 5000 }
        }),
        Case::new("", &[(Alter, ON_TOPIC)], denied, |_| {
            let topic =
                CreatePartitionsTopic { name: TOPIC.into(), count: 2, ..Default::default() };
            let topics = vec![topic];
            CreatePartitionsRequest { topics, timeout_ms: 5000, validate_only: true }
        }),
    ]
}
