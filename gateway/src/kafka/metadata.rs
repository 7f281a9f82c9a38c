//! Metadata and DescribeTopicPartitions: brokers, topics, leaders.

mod held;

use meridian_base::id::NodeId;
use meridian_consensus::state::{Metadata, Partition, Topic};
use meridian_protocol::messages::{
    AUTHORIZED_OPERATIONS_OMITTED, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
    DescribedTopic, DescribedTopicPartition, MetadataBroker, MetadataPartition, MetadataRequest,
    MetadataRequestTopic, MetadataResponse, MetadataTopic, TopicPartitionCursor,
};
use meridian_protocol::{ErrorCode, Str, Uuid};

use super::dispatch::Call;
use super::lookup::{self, TopicKey};
use super::topics;

/// Bits of every operation on a topic: without access rules everybody may do all of them.
const TOPIC_OPERATIONS: i32 = 0b1101_1111_1000;
/// Bits of every operation on the cluster.
pub(super) const CLUSTER_OPERATIONS: i32 = 0b1_1111_1010_0000;
/// From this version on topics have ids.
const IDS_FROM_VERSION: i16 = 10;
/// From this version on they can be asked for by them (KAFKA-12701).
const ASKED_BY_ID_FROM_VERSION: i16 = 12;
/// Most partitions of one page.
const PAGE_PARTITION_COUNT_MAX: i32 = 2000;

/// Answers a Metadata request; creates topics that are asked for and may be.
pub(super) async fn metadata(call: Call, mut request: MetadataRequest) -> MetadataResponse {
    // Version 0 has no null, so that an empty list asks for all.
    request.topics = request.topics.filter(|topics| call.version > 0 || !topics.is_empty());
    // As in Kafka, one of them spoils the request.
    let is_too_early = call.version < ASKED_BY_ID_FROM_VERSION
        && request.topics.iter().flatten().any(|topic| is_by_id(call.version, topic));
    if let Some(wanted) = &request.topics
        && !is_too_early
        && request.allow_auto_topic_creation
        && call.front.config.auto_create_topics
    {
        create_missing(&call, wanted).await;
    }
    let operations = if request.include_topic_authorized_operations {
        TOPIC_OPERATIONS
    } else {
        AUTHORIZED_OPERATIONS_OMITTED
    };
    let is_held = request.hold_ms > 0;
    if is_held {
        held::wait_for_news(&call, &request).await;
    }
    let metadata = call.front.broker.metadata();
    let stamp = if is_held { held::stamp(&call, &metadata, &request) } else { 0 };
    let topics = match &request.topics {
        _ if is_held && stamp == request.seen_stamp => Vec::new(),
        None => metadata.topics().map(|topic| describe(&metadata, topic, operations)).collect(),
        Some(wanted) if is_too_early => wanted.iter().map(refused).collect(),
        Some(wanted) => {
            let by_id = |topic| is_by_id(call.version, topic);
            wanted.iter().map(|t| find(&metadata, t, by_id(t), operations)).collect()
        }
    };
    let brokers = lookup::brokers(&metadata).filter_map(|(id, _)| {
        let endpoint = lookup::endpoint(&metadata, id)?;
        Some(MetadataBroker {
            node_id: endpoint.node_id,
            host: endpoint.host,
            port: endpoint.port,
            rack: endpoint.rack,
        })
    });
    MetadataResponse {
        brokers: brokers.collect(),
        cluster_id: metadata.cluster_id().map(|id| id.as_str().into()),
        // Every node takes decisions to the metadata log, so any may be called the controller.
        controller_id: lookup::broker_id(call.front.broker.node()),
        topics,
        stamp,
        cluster_authorized_operations: if request.include_cluster_authorized_operations {
            CLUSTER_OPERATIONS
        } else {
            AUTHORIZED_OPERATIONS_OMITTED
        },
        ..Default::default()
    }
}

/// Who names an id may leave the name empty instead of null, as Java's consumers do.
fn is_by_id(version: i16, topic: &MetadataRequestTopic) -> bool {
    version >= IDS_FROM_VERSION && (topic.name.is_none() || topic.topic_id != Uuid::ZERO)
}

fn refused(wanted: &MetadataRequestTopic) -> MetadataTopic {
    MetadataTopic {
        error_code: ErrorCode::InvalidRequest,
        // Null is not legal yet.
        name: Some(wanted.name.clone().unwrap_or_default()),
        topic_id: wanted.topic_id,
        ..Default::default()
    }
}

async fn create_missing(call: &Call, wanted: &[MetadataRequestTopic]) {
    for topic in wanted {
        let Some(name) = &topic.name else { continue };
        let missing = call.front.broker.metadata().topic_named(name).is_none();
        if missing && topics::is_legal_name(name) {
            let created = topics::create_default(&call.front, name).await;
            if let Err(error) = created
                && error.code != ErrorCode::TopicAlreadyExists
            {
                tracing::debug!(topic = ?name, ?error, "topic was not created on first use");
            }
        }
    }
}

fn find(
    metadata: &Metadata,
    wanted: &MetadataRequestTopic,
    by_id: bool,
    operations: i32,
) -> MetadataTopic {
    let name = wanted.name.clone().unwrap_or_default();
    match TopicKey::new(by_id, &name, wanted.topic_id).find(metadata) {
        Ok(topic) => describe(metadata, topic, operations),
        Err(error_code) => {
            let illegal = !by_id && !topics::is_legal_name(&name);
            MetadataTopic {
                error_code: if illegal { ErrorCode::InvalidTopicException } else { error_code },
                name: wanted.name.clone(),
                topic_id: if by_id { wanted.topic_id } else { Uuid::ZERO },
                ..Default::default()
            }
        }
    }
}

fn describe(metadata: &Metadata, topic: &Topic, operations: i32) -> MetadataTopic {
    let partitions = topic.partitions.iter().filter_map(|id| metadata.partition(*id));
    MetadataTopic {
        name: Some(topic.name.as_str().into()),
        topic_id: lookup::uuid(topic.id),
        is_internal: topic.internal,
        partitions: partitions
            .map(|partition| {
                let owners = Owners::of(metadata, partition);
                MetadataPartition {
                    error_code: owners.error_code,
                    partition_index: partition.index.cast_signed(),
                    leader_id: owners.leader_id,
                    leader_epoch: partition.leader_epoch.get(),
                    replica_nodes: owners.replicas,
                    isr_nodes: owners.in_sync,
                    offline_replicas: owners.offline,
                }
            })
            .collect(),
        topic_authorized_operations: operations,
        ..Default::default()
    }
}

/// Who leads and replicates a partition, as clients are told.
struct Owners {
    error_code: ErrorCode,
    leader_id: i32,
    replicas: Vec<i32>,
    in_sync: Vec<i32>,
    offline: Vec<i32>,
}

impl Owners {
    fn of(metadata: &Metadata, partition: &Partition) -> Self {
        let ids = |nodes: &[NodeId]| nodes.iter().copied().map(lookup::broker_id).collect();
        let replicas = lookup::replicas(metadata, partition);
        let (in_sync, offline): (Vec<NodeId>, Vec<NodeId>) =
            replicas.iter().copied().partition(|node| lookup::is_serving(metadata, *node));
        let led = lookup::is_serving(metadata, partition.leader);
        Self {
            error_code: if led { ErrorCode::None } else { ErrorCode::LeaderNotAvailable },
            leader_id: if led { lookup::broker_id(partition.leader) } else { -1 },
            replicas: ids(&replicas),
            in_sync: ids(&in_sync),
            offline: ids(&offline),
        }
    }
}

/// Describes the partitions of topics, in order of name and index, one page at a time (KIP-966).
pub(super) async fn describe_partitions(
    call: Call,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let metadata = call.front.broker.metadata();
    let mut names: Vec<Str> = request.topics.into_iter().map(|topic| topic.name).collect();
    // Who names topics goes on with one of them.
    let is_possible = |cursor: &TopicPartitionCursor| {
        cursor.partition_index >= 0 && (names.is_empty() || names.contains(&cursor.topic_name))
    };
    if !request.cursor.as_ref().is_none_or(is_possible) {
        let topics = names.into_iter().map(|name| DescribedTopic {
            error_code: ErrorCode::InvalidRequest,
            name: Some(name),
            ..Default::default()
        });
        return DescribeTopicPartitionsResponse { topics: topics.collect(), ..Default::default() };
    }
    if names.is_empty() {
        names = metadata.topics().map(|topic| topic.name.as_str().into()).collect();
    }
    names.sort_unstable();
    names.dedup();
    let start = request.cursor.unwrap_or_default();
    let mut room = request.response_partition_limit.clamp(1, PAGE_PARTITION_COUNT_MAX) as usize;
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names.into_iter().filter(|name| *name >= start.topic_name) {
        let first = if name == start.topic_name { start.partition_index } else { 0 } as usize;
        if room == 0 {
            response.next_cursor =
                Some(TopicPartitionCursor { topic_name: name, partition_index: first as i32 });
            break;
        }
        let described = describe_page(&metadata, &name, first, room);
        room -= described.partitions.len();
        let next = first + described.partitions.len();
        response.topics.push(described);
        if metadata.topic_named(&name).is_some_and(|topic| topic.partitions.len() > next) {
            let partition_index = next as i32;
            response.next_cursor = Some(TopicPartitionCursor { topic_name: name, partition_index });
            break;
        }
    }
    response
}

fn describe_page(metadata: &Metadata, name: &Str, first: usize, count: usize) -> DescribedTopic {
    let Some(topic) = metadata.topic_named(name) else {
        let illegal = !topics::is_legal_name(name);
        let unknown = ErrorCode::UnknownTopicOrPartition;
        return DescribedTopic {
            error_code: if illegal { ErrorCode::InvalidTopicException } else { unknown },
            name: Some(name.clone()),
            ..Default::default()
        };
    };
    let ids = topic.partitions.iter().skip(first).take(count);
    let partitions = ids.filter_map(|id| metadata.partition(*id)).map(|partition| {
        let owners = Owners::of(metadata, partition);
        DescribedTopicPartition {
            error_code: owners.error_code,
            partition_index: partition.index.cast_signed(),
            leader_id: owners.leader_id,
            leader_epoch: partition.leader_epoch.get(),
            replica_nodes: owners.replicas,
            isr_nodes: owners.in_sync,
            // Null is legal here, but Java's admin client fails on it.
            eligible_leader_replicas: Some(Vec::new()),
            last_known_elr: Some(Vec::new()),
            offline_replicas: owners.offline,
        }
    });
    DescribedTopic {
        name: Some(name.clone()),
        topic_id: lookup::uuid(topic.id),
        is_internal: topic.internal,
        partitions: partitions.collect(),
        topic_authorized_operations: TOPIC_OPERATIONS,
        ..Default::default()
    }
}

#[cfg(test)]
mod bad_input;
