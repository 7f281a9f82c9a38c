//! DeleteRecords: moving the start of logs forward.

use std::time::Duration;

use meridian_access::Operation;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    DeleteRecordsPartition, DeleteRecordsPartitionResult, DeleteRecordsRequest,
    DeleteRecordsResponse, DeleteRecordsTopicResult,
};

use super::dispatch::Call;
use super::error;
use super::lookup::{self, TopicKey};
use super::opening::{self, Patience};
use super::pace::Pace;

/// Time for the log to take a deletion, whatever the client says: a deletion that was begun is done,
/// and Kafka says so at once to whoever gives it no time.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Moves the start of logs.
pub(super) async fn delete_records(
    call: Call,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let limit = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let mut time_is_up = std::pin::pin!(tokio::time::sleep(limit.max(TIMEOUT_MIN)));
    let mut topics = Vec::with_capacity(request.topics.len());
    let mut pace = Pace::default();
    for topic in request.topics {
        let key = TopicKey::Name(topic.name.clone());
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for wanted in topic.partitions {
            pace.step().await;
            let mut result = DeleteRecordsPartitionResult {
                partition_index: wanted.partition_index,
                low_watermark: -1,
                ..Default::default()
            };
            let deleted = tokio::select! {
                biased;
                deleted = delete_before(&call, &key, &wanted) => deleted,
                () = &mut time_is_up => Err(ErrorCode::RequestTimedOut),
            };
            match deleted {
                Ok(start) => result.low_watermark = start.get(),
                Err(code) => {
                    call.front.metrics.on_error(code);
                    result.error_code = code;
                }
            }
            partitions.push(result);
        }
        topics.push(DeleteRecordsTopicResult { name: topic.name, partitions });
    }
    DeleteRecordsResponse { topics, ..Default::default() }
}

async fn delete_before(
    call: &Call,
    key: &TopicKey,
    wanted: &DeleteRecordsPartition,
) -> Result<Offset, ErrorCode> {
    let partition = {
        let metadata = call.front.broker.metadata();
        let topic = call.find(&metadata, key, Operation::Delete)?;
        if topic.internal {
            return Err(ErrorCode::InvalidTopicException);
        }
        // A log that only compaction may shorten must keep the last record of each key.
        let policy: Option<String> = lookup::topic_config(&metadata, topic.id, "cleanup.policy");
        let policy = policy.as_deref().unwrap_or("delete");
        if !policy.split(',').any(|policy| policy.trim() == "delete") {
            return Err(ErrorCode::PolicyViolation);
        }
        error::mirror(&metadata, topic.id).map_err(|refused| refused.code)?;
        lookup::partition(&metadata, topic, wanted.partition_index)?.0
    };
    let log = opening::led(&*call.front.broker, partition, Patience::begin()).await?;
    let before = match wanted.offset {
        -1 => log.high_watermark(),
        offset if offset >= 0 => Offset::new(offset),
        _ => return Err(ErrorCode::OffsetOutOfRange),
    };
    log.delete_records(before).await.map_err(|cause| error::of_produce(&cause))
}

#[cfg(test)]
mod tests {
    use meridian_protocol::messages::{
        CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, DeleteRecordsTopic,
        FindCoordinatorRequest, ProducePartition, ProduceRequest, ProduceTopic,
    };

    use super::*;
    use crate::kafka::coordinator::OFFSETS_TOPIC;
    use crate::kafka::testing::{FakeBroker, TestClient, batch_of, front_of, quick_config};

    async fn deleted(client: &mut TestClient, topic: &str, offset: i64) -> (ErrorCode, i64) {
        deleted_within(client, topic, offset, 10_000).await
    }

    async fn deleted_within(
        client: &mut TestClient,
        topic: &str,
        offset: i64,
        timeout_ms: i32,
    ) -> (ErrorCode, i64) {
        let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset }];
        let topic = DeleteRecordsTopic { name: topic.into(), partitions };
        let topics = vec![topic];
        let request = DeleteRecordsRequest { topics, timeout_ms };
        let answer = client.call(2, request).await.topics[0].partitions[0].clone();
        (answer.error_code, answer.low_watermark)
    }

    #[tokio::test]
    async fn the_log_start_moves_as_in_kafka() {
        let mut client = TestClient::connect(&front_of(&FakeBroker::single(), quick_config()));
        for (name, policy) in [("t", "delete"), ("both", "compact,delete"), ("keyed", "compact")] {
            let config =
                CreatableTopicConfig { name: "cleanup.policy".into(), value: Some(policy.into()) };
            let topic = CreatableTopic {
                name: name.into(),
                num_partitions: 1,
                replication_factor: -1,
                configs: vec![config],
                ..Default::default()
            };
            client.call(7, CreateTopicsRequest { topics: vec![topic], ..Default::default() }).await;
        }
        let find =
            FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
        assert_eq!(client.call(4, find).await.coordinators[0].error_code, ErrorCode::None);
        let records = Some(batch_of(&["a", "b", "c"]));
        let partition_data = vec![ProducePartition { index: 0, records }];
        let topic_data =
            vec![ProduceTopic { name: "t".into(), partition_data, ..Default::default() }];
        let request =
            ProduceRequest { acks: -1, timeout_ms: 9000, topic_data, ..Default::default() };
        let produced = client.call(9, request).await;
        assert_eq!(produced.responses[0].partition_responses[0].error_code, ErrorCode::None);
        let refused = |code| (code, -1);
        assert_eq!(deleted_within(&mut client, "t", 1, 0).await, (ErrorCode::None, 1), "no time");
        for (what, topic, offset, expected) in [
            ("amid a batch", "t", 2, (ErrorCode::None, 2)),
            ("what is deleted already", "t", 1, (ErrorCode::None, 2)),
            ("beyond the end", "t", 4, refused(ErrorCode::OffsetOutOfRange)),
            ("negative", "t", -2, refused(ErrorCode::OffsetOutOfRange)),
            ("all", "t", -1, (ErrorCode::None, 3)),
            ("no such topic", "nope", 0, refused(ErrorCode::UnknownTopicOrPartition)),
            ("the cluster's own", OFFSETS_TOPIC, 0, refused(ErrorCode::InvalidTopicException)),
            ("compacted and deleted", "both", -1, (ErrorCode::None, 0)),
            ("compacted only", "keyed", -1, refused(ErrorCode::PolicyViolation)),
        ] {
            assert_eq!(deleted(&mut client, topic, offset).await, expected, "{what}");
        }
        for partition_index in [1, -1] {
            let partitions = vec![DeleteRecordsPartition { partition_index, offset: 0 }];
            let topics = vec![DeleteRecordsTopic { name: "t".into(), partitions }];
            let request = DeleteRecordsRequest { topics, timeout_ms: 10_000 };
            let told = client.call(2, request).await.topics[0].partitions[0].error_code;
            assert_eq!(told, ErrorCode::UnknownTopicOrPartition, "partition {partition_index}");
        }
    }
}
