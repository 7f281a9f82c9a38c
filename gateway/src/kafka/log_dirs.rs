//! AlterReplicaLogDirs (KIP-113). A node has one directory, in which everything is already: who
//! asks for that is done, and nothing else can be asked for.

use meridian_access::{Operation, Resource};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse,
    AlteredReplicaLogDirPartition, AlteredReplicaLogDirTopic,
};

use super::cluster::LOG_DIR;
use super::dispatch::Call;
use super::lookup::{self, TopicKey};
use super::pace::Pace;

/// Answers for each partition, as Kafka does where it moves nothing.
pub(super) async fn alter(
    call: Call,
    request: AlterReplicaLogDirsRequest,
) -> AlterReplicaLogDirsResponse {
    let allowed = call.check(Operation::Alter, Resource::CLUSTER);
    let mut results = Vec::new();
    let mut pace = Pace::default();
    for dir in request.dirs {
        let is_known = &*dir.path == LOG_DIR;
        for AlterReplicaLogDirTopic { name, partitions } in dir.topics {
            let key = TopicKey::Name(name.clone());
            let mut altered = Vec::with_capacity(partitions.len());
            for partition_index in partitions {
                pace.step().await;
                let checked = || match is_known {
                    true => check(&call, &key, partition_index),
                    false => Err(ErrorCode::LogDirNotFound),
                };
                let error_code = allowed.and_then(|()| checked()).err().unwrap_or_default();
                if !error_code.is_none() {
                    call.front.metrics.on_error(error_code);
                }
                altered.push(AlteredReplicaLogDirPartition { partition_index, error_code });
            }
            results.push(AlteredReplicaLogDirTopic { topic_name: name, partitions: altered });
        }
    }
    AlterReplicaLogDirsResponse { results, ..Default::default() }
}

/// Whether a partition is among those that DescribeLogDirs lists here.
fn check(call: &Call, topic: &TopicKey, index: i32) -> Result<(), ErrorCode> {
    let metadata = call.front.broker.metadata();
    let topic = topic.find(&metadata).map_err(|_| ErrorCode::UnknownTopicOrPartition)?;
    let (_, partition) = lookup::partition(&metadata, topic, index)?;
    match partition.leader == call.front.broker.node() {
        true => Ok(()),
        false => Err(ErrorCode::ReplicaNotAvailable),
    }
}

#[cfg(test)]
mod tests {
    use meridian_protocol::messages::AlterReplicaLogDir;

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

    async fn altered(client: &mut TestClient, path: &str, topic: &str, index: i32) -> ErrorCode {
        let topics = vec![AlterReplicaLogDirTopic { name: topic.into(), partitions: vec![index] }];
        let dirs = vec![AlterReplicaLogDir { path: path.into(), topics }];
        let answer = client.call(2, AlterReplicaLogDirsRequest { dirs }).await.results;
        assert_eq!(&*answer[0].topic_name, topic);
        assert_eq!(answer[0].partitions[0].partition_index, index);
        answer[0].partitions[0].error_code
    }

    #[tokio::test]
    async fn everything_is_in_the_one_directory() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let mut client = TestClient::connect(&front);
        client.create_topic("t", 3).await;
        let mut codes = Vec::new();
        for index in 0..3 {
            codes.push(altered(&mut client, LOG_DIR, "t", index).await);
        }
        codes.sort_by_key(|code| code.code());
        let elsewhere = ErrorCode::ReplicaNotAvailable;
        assert_eq!(codes, [ErrorCode::None, elsewhere, elsewhere], "one of three is led here");
        for (path, topic, index, code) in [
            ("/var/lib/kafka", "t", 0, ErrorCode::LogDirNotFound),
            ("", "t", 0, ErrorCode::LogDirNotFound),
            (LOG_DIR, "t", 3, ErrorCode::UnknownTopicOrPartition),
            (LOG_DIR, "t", -1, ErrorCode::UnknownTopicOrPartition),
            (LOG_DIR, "none", 0, ErrorCode::UnknownTopicOrPartition),
            (LOG_DIR, "a/b", 0, ErrorCode::UnknownTopicOrPartition),
        ] {
            assert_eq!(
                altered(&mut client, path, topic, index).await,
                code,
                "{path} {topic} {index}"
            );
        }
        let nothing = client.call(1, AlterReplicaLogDirsRequest::default()).await;
        assert_eq!(nothing, AlterReplicaLogDirsResponse::default());
    }
}
