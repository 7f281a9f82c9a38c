//! DescribeCluster, DescribeLogDirs and UnregisterBroker.

use meridian_base::id::NodeId;
use meridian_consensus::command::Command;
use meridian_consensus::error::Refusal;
use meridian_protocol::messages::{
    AUTHORIZED_OPERATIONS_OMITTED, DescribeClusterRequest, DescribeClusterResponse,
    DescribeLogDirsRequest, DescribeLogDirsResponse, DescribedBroker, DescribedLogDir,
    DescribedLogDirPartition, DescribedLogDirTopic, UnregisterBrokerRequest,
    UnregisterBrokerResponse,
};
use meridian_protocol::{ErrorCode, Str};

use super::dispatch::Call;
use super::error::ApiError;
use super::{lookup, metadata};
use crate::broker::ProposeError;
use crate::log::PartitionLog;

/// `endpoint_type` of those who serve clients.
const ENDPOINT_BROKERS: i8 = 1;
/// Kafka names directories; a node has one disk.
const LOG_DIR: &str = "journal";

/// Describes the nodes.
pub(super) async fn describe(
    call: Call,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    if request.endpoint_type != ENDPOINT_BROKERS {
        call.front.metrics.on_error(ErrorCode::UnsupportedEndpointType);
        return DescribeClusterResponse {
            error_code: ErrorCode::UnsupportedEndpointType,
            error_message: Some("there are no controllers apart from the brokers".into()),
            endpoint_type: request.endpoint_type,
            ..Default::default()
        };
    }
    let metadata = call.front.broker.metadata();
    let brokers = metadata.nodes().filter_map(|(id, node)| {
        let is_fenced = !lookup::is_serving(&metadata, id);
        let shown =
            node.registration.roles.gateway && (!is_fenced || request.include_fenced_brokers);
        let endpoint = lookup::endpoint(&metadata, id).filter(|_| shown)?;
        Some(DescribedBroker {
            broker_id: endpoint.node_id,
            host: endpoint.host,
            port: endpoint.port,
            rack: endpoint.rack,
            is_fenced,
        })
    });
    DescribeClusterResponse {
        cluster_id: metadata.cluster_id().map(|id| Str::from(id.as_str())).unwrap_or_default(),
        controller_id: lookup::broker_id(call.front.broker.node()),
        brokers: brokers.collect(),
        cluster_authorized_operations: if request.include_cluster_authorized_operations {
            metadata::CLUSTER_OPERATIONS
        } else {
            AUTHORIZED_OPERATIONS_OMITTED
        },
        ..Default::default()
    }
}

/// Has a node forgotten that fills no slot and leads no partition.
pub(super) async fn unregister(
    call: Call,
    request: UnregisterBrokerRequest,
) -> UnregisterBrokerResponse {
    match try_unregister(&call, request.broker_id).await {
        Ok(()) => UnregisterBrokerResponse::default(),
        Err(error) => {
            call.front.metrics.on_error(error.code);
            UnregisterBrokerResponse {
                error_code: error.code,
                error_message: error.message(),
                ..Default::default()
            }
        }
    }
}

async fn try_unregister(call: &Call, broker_id: i32) -> Result<(), ApiError> {
    let unknown = || {
        let message = format!("broker {broker_id} is not registered");
        ApiError::new(ErrorCode::BrokerIdNotRegistered, message)
    };
    let node = u32::try_from(broker_id).map(NodeId::new).map_err(|_| unknown())?;
    match call.front.broker.propose(Command::RemoveNode { node }).await {
        Ok(_) => Ok(()),
        Err(ProposeError::Refused(Refusal::UnknownNode(_))) => Err(unknown()),
        Err(error) => Err(error.into()),
    }
}

/// Lists the partitions this node leads, with the bytes of their records. Copies that it keeps for
/// leaders elsewhere are not listed: any of them may lie on any rack.
pub(super) async fn log_dirs(
    call: Call,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    let metadata = call.front.broker.metadata();
    let wanted = |name: &str, index: i32| match &request.topics {
        None => true,
        Some(topics) => {
            topics.iter().any(|topic| *topic.topic == *name && topic.partitions.contains(&index))
        }
    };
    let node = call.front.broker.node();
    let topics = metadata.topics().filter_map(|topic| {
        let partitions: Vec<DescribedLogDirPartition> = topic
            .partitions
            .iter()
            .filter_map(|id| Some((*id, metadata.partition(*id)?)))
            .filter(|(_, p)| p.leader == node && wanted(&topic.name, p.index.cast_signed()))
            .map(|(id, partition)| DescribedLogDirPartition {
                partition_index: partition.index.cast_signed(),
                partition_size: size_bytes(call.front.broker.led(id).as_deref()),
                ..Default::default()
            })
            .collect();
        let name = topic.name.as_str().into();
        (!partitions.is_empty()).then_some(DescribedLogDirTopic { name, partitions })
    });
    let dir =
        DescribedLogDir { log_dir: LOG_DIR.into(), topics: topics.collect(), ..Default::default() };
    DescribeLogDirsResponse { results: vec![dir], ..Default::default() }
}

/// -1, Kafka's "not known", while the partition is still being taken over.
fn size_bytes(led: Option<&PartitionLog>) -> i64 {
    led.map_or(-1, |log| i64::try_from(log.size_bytes()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use meridian_protocol::messages::{ProducePartition, ProduceRequest, ProduceTopic};

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, batch_of, front_of, quick_config};

    async fn sizes(client: &mut TestClient) -> Vec<i64> {
        let request = DescribeLogDirsRequest { topics: None };
        let dirs = client.call(4, request).await.results;
        let topics = dirs.iter().flat_map(|dir| &dir.topics);
        topics.flat_map(|topic| &topic.partitions).map(|p| p.partition_size).collect()
    }

    #[tokio::test]
    async fn sizes_are_those_of_the_records() {
        let mut client = TestClient::connect(&front_of(&FakeBroker::single(), quick_config()));
        client.create_topic("t", 2).await;
        let records = batch_of(&["a", "b"]);
        let size_bytes = i64::try_from(records.len()).unwrap();
        let partitions = vec![ProducePartition { index: 1, records: Some(records) }];
        let topics = vec![ProduceTopic {
            name: "t".into(),
            partition_data: partitions,
            ..Default::default()
        }];
        let request = ProduceRequest {
            acks: -1,
            timeout_ms: 10_000,
            topic_data: topics,
            ..Default::default()
        };
        client.call(9, request).await;
        assert_eq!(sizes(&mut client).await, [0, size_bytes]);
    }

    #[tokio::test]
    async fn a_node_is_forgotten_when_nothing_depends_on_it() {
        let broker = FakeBroker::three_datacenters();
        let mut client = TestClient::connect(&front_of(&broker, quick_config()));
        for (broker_id, code) in [
            (2, ErrorCode::InvalidRequest),
            (9, ErrorCode::BrokerIdNotRegistered),
            (-1, ErrorCode::BrokerIdNotRegistered),
        ] {
            let told = client.call(0, UnregisterBrokerRequest { broker_id }).await;
            assert_eq!(told.error_code, code, "{broker_id}");
            assert!(told.error_message.is_some(), "{broker_id} is explained");
        }
    }

    #[tokio::test]
    async fn a_partition_that_is_not_served_yet_has_no_size() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let mut client = TestClient::connect(&front);
        client.create_topic("t", 3).await;
        assert_eq!(sizes(&mut client).await, [-1], "one of three is led here");
    }
}
