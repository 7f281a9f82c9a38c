//! DescribeCluster, DescribeLogDirs and UnregisterBroker.

use std::collections::HashSet;

use meridian_access::{Operation, Resource};
use meridian_base::id::{NodeId, PartitionId};
use meridian_consensus::command::Command;
use meridian_consensus::error::Refusal;
use meridian_protocol::messages::{
    AUTHORIZED_OPERATIONS_OMITTED, DescribeClusterRequest, DescribeClusterResponse,
    DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsTopic, DescribedBroker,
    DescribedLogDir, DescribedLogDirPartition, DescribedLogDirTopic, UnregisterBrokerRequest,
    UnregisterBrokerResponse,
};
use meridian_protocol::{ErrorCode, Str};

use super::dispatch::Call;
use super::error::ApiError;
use super::lookup;
use super::pace::Pace;
use crate::log::PartitionLog;
use crate::meta::ProposeError;

/// `endpoint_type` of those who serve clients.
const ENDPOINT_BROKERS: i8 = 1;
/// And of those who lead the others, who in Kafka may be apart.
const ENDPOINT_CONTROLLERS: i8 = 2;
/// Kafka names directories; a node has one disk.
pub(super) const LOG_DIR: &str = "journal";

/// Describes the nodes.
pub(super) async fn describe(
    call: Call,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    if request.endpoint_type != ENDPOINT_BROKERS {
        let (error_code, message) = match request.endpoint_type {
            ENDPOINT_CONTROLLERS => {
                (ErrorCode::MismatchedEndpointType, "this is a broker, as every node is")
            }
            _ => (ErrorCode::UnsupportedEndpointType, "endpoints are brokers (1)"),
        };
        call.front.metrics.on_error(error_code);
        let error_message = Some(message.into());
        return DescribeClusterResponse { error_code, error_message, ..Default::default() };
    }
    let metadata = call.front.broker.metadata();
    let brokers = metadata.nodes().filter_map(|(id, node)| {
        let is_fenced = !lookup::is_serving(&metadata, id);
        let shown =
            node.registration.roles.gateway && (!is_fenced || request.include_fenced_brokers);
        let endpoint =
            lookup::endpoint(&metadata, id, call.client.listener_name()).filter(|_| shown)?;
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
            call.cluster_operations()
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
    let allowed = call.check(Operation::Alter, Resource::CLUSTER).map_err(ApiError::from);
    let result = match allowed {
        Ok(()) => try_unregister(&call, request.broker_id).await,
        Err(error) => Err(error),
    };
    match result {
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
    if let Err(error_code) = call.check(Operation::Describe, Resource::CLUSTER) {
        call.front.metrics.on_error(error_code);
        return DescribeLogDirsResponse { error_code, ..Default::default() };
    }
    let mut topics = Vec::new();
    let mut pace = Pace::default();
    for (name, led) in led_here(&call, request.topics.as_deref()) {
        let mut partitions = Vec::with_capacity(led.len());
        for (id, partition_index) in led {
            pace.step().await;
            partitions.push(DescribedLogDirPartition {
                partition_index,
                partition_size: size_bytes(call.front.broker.led(id).as_deref()),
                ..Default::default()
            });
        }
        topics.push(DescribedLogDirTopic { name, partitions });
    }
    let dir = DescribedLogDir { log_dir: LOG_DIR.into(), topics, ..Default::default() };
    DescribeLogDirsResponse { results: vec![dir], ..Default::default() }
}

/// The partitions that this node leads by topic, of those that are wanted; `None` wants all.
fn led_here(
    call: &Call,
    wanted: Option<&[DescribeLogDirsTopic]>,
) -> Vec<(Str, Vec<(PartitionId, i32)>)> {
    let wanted: Option<HashSet<(&str, i32)>> = wanted.map(|topics| {
        let named =
            topics.iter().flat_map(|it| it.partitions.iter().map(|index| (&*it.topic, *index)));
        named.collect()
    });
    let node = call.front.broker.node();
    let metadata = call.front.broker.metadata();
    let topics = metadata.topics().filter_map(|topic| {
        let partitions = topic.partitions.iter().filter_map(|id| {
            let partition = metadata.partition(*id).filter(|it| it.leader == node)?;
            let index = partition.index.cast_signed();
            let is_wanted =
                wanted.as_ref().is_none_or(|it| it.contains(&(topic.name.as_str(), index)));
            is_wanted.then_some((*id, index))
        });
        let partitions: Vec<_> = partitions.collect();
        (!partitions.is_empty()).then(|| (topic.name.as_str().into(), partitions))
    });
    topics.collect()
}

/// -1, Kafka's "not known", while the partition is still being taken over.
fn size_bytes(led: Option<&PartitionLog>) -> i64 {
    led.map_or(-1, |log| i64::try_from(log.size_bytes()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use meridian_protocol::messages::{
        DescribeLogDirsTopic, ProducePartition, ProduceRequest, ProduceTopic,
    };

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, batch_of, front_of, quick_config};

    #[tokio::test]
    async fn endpoints_that_are_not_brokers() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let mut client = TestClient::connect(&front);
        for (what, endpoint_type, code, count) in [
            ("well", ENDPOINT_BROKERS, ErrorCode::None, 3),
            ("controllers", ENDPOINT_CONTROLLERS, ErrorCode::MismatchedEndpointType, 0),
            ("nothing", 0, ErrorCode::UnsupportedEndpointType, 0),
            ("what is to come", 3, ErrorCode::UnsupportedEndpointType, 0),
            ("less than nothing", -1, ErrorCode::UnsupportedEndpointType, 0),
        ] {
            for version in [1, 2] {
                let request = DescribeClusterRequest { endpoint_type, ..Default::default() };
                let told = client.call(version, request).await;
                assert_eq!((told.error_code, told.brokers.len()), (code, count), "{what}");
                assert_eq!(told.error_message.is_some(), code != ErrorCode::None, "{what}");
            }
        }
    }

    /// As in Kafka, who names what is not there is told of what is.
    #[tokio::test]
    async fn partitions_that_are_not_on_any_disk() {
        let mut client = TestClient::connect(&front_of(&FakeBroker::single(), quick_config()));
        client.create_topic("t", 2).await;
        let long = "x".repeat(250);
        for (what, topics, expected) in [
            ("all", None, vec![("t", vec![0, 1])]),
            ("none", Some(vec![]), vec![]),
            ("well", Some(vec![("t", vec![1])]), vec![("t", vec![1])]),
            ("no such topic", Some(vec![("none", vec![0])]), vec![]),
            ("an illegal name", Some(vec![("a/b", vec![0])]), vec![]),
            ("no name", Some(vec![("", vec![0])]), vec![]),
            ("too long a name", Some(vec![(&*long, vec![0])]), vec![]),
            ("no partition", Some(vec![("t", vec![])]), vec![]),
            ("no such partition", Some(vec![("t", vec![2])]), vec![]),
            ("a negative one", Some(vec![("t", vec![-1])]), vec![]),
            ("one that is there", Some(vec![("t", vec![7, 0])]), vec![("t", vec![0])]),
            ("twice the same", Some(vec![("t", vec![1, 1])]), vec![("t", vec![1])]),
            ("in two parts", Some(vec![("t", vec![1]), ("t", vec![0])]), vec![("t", vec![0, 1])]),
        ] {
            let topic = |(name, partitions): (&str, Vec<i32>)| DescribeLogDirsTopic {
                topic: name.into(),
                partitions,
            };
            let topics = topics.map(|topics| topics.into_iter().map(topic).collect());
            for version in 1..=5 {
                let request = DescribeLogDirsRequest { topics: topics.clone() };
                let told = client.call(version, request).await;
                let [dir] = &*told.results else { panic!("{what}: {told:?}") };
                assert_eq!((told.error_code, dir.error_code), (ErrorCode::None, ErrorCode::None));
                let index = |it: &DescribedLogDirPartition| it.partition_index;
                let seen: Vec<(&str, Vec<i32>)> = dir
                    .topics
                    .iter()
                    .map(|topic| (&*topic.name, topic.partitions.iter().map(index).collect()))
                    .collect();
                assert_eq!(seen, expected, "{what}, version {version}");
            }
        }
    }

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
