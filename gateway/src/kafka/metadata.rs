//! Metadata and DescribeTopicPartitions: brokers, topics, leaders.

mod held;

use std::collections::BTreeSet;

use meridian_access::{Operation, Resource};
use meridian_base::id::{NodeId, TopicId};
use meridian_consensus::state::{Metadata, Partition, Topic};
use meridian_protocol::messages::{
    AUTHORIZED_OPERATIONS_OMITTED, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
    DescribedTopic, DescribedTopicPartition, MetadataBroker, MetadataPartition, MetadataRequest,
    MetadataRequestTopic, MetadataResponse, MetadataTopic, TopicPartitionCursor,
};
use meridian_protocol::{ErrorCode, Str, Uuid};

use super::dispatch::Call;
use super::lookup::{self, TopicKey};
use super::pace::{self, Pace};
use super::repeated::unique;
use super::topics;

/// From this version on topics have ids.
const IDS_FROM_VERSION: i16 = 10;
/// From this version on they can be asked for by them (KAFKA-12701).
const ASKED_BY_ID_FROM_VERSION: i16 = 12;
/// From this version on a client is told that a leader has no listener of the name of the one that it came by.
const LISTENERS_FROM_VERSION: i16 = 6;
/// Most partitions of one page.
const PAGE_PARTITION_COUNT_MAX: i32 = 2000;

/// Answers a Metadata request; creates topics that are asked for and may be.
pub(super) async fn metadata(call: Call, mut request: MetadataRequest) -> MetadataResponse {
    // Version 0 has no null, so that an empty list asks for all.
    request.topics = request.topics.filter(|topics| call.version > 0 || !topics.is_empty());
    // As in Kafka, one of them spoils the request.
    let is_too_early = call.version < ASKED_BY_ID_FROM_VERSION
        && request.topics.iter().flatten().any(|topic| is_by_id(call.version, topic));
    let wanted = Wanted {
        creates: request.allow_auto_topic_creation && call.front.config.auto_create_topics,
        operations: request.include_topic_authorized_operations,
    };
    if let Some(named) = &request.topics
        && !is_too_early
        && wanted.creates
    {
        create_missing(&call, named).await;
    }
    let is_held = request.hold_ms > 0;
    if is_held {
        held::wait_for_news(&call, &request).await;
    }
    // Of before the topics are looked at, so that what changes meanwhile is news the next time.
    let stamp =
        if is_held { held::stamp(&call, &call.front.broker.metadata(), &request) } else { 0 };
    let topics = match request.topics {
        _ if is_held && stamp == request.seen_stamp => Vec::new(),
        None => describe_all(&call, wanted).await,
        Some(named) if is_too_early => named.iter().map(refused).collect(),
        Some(named) => describe_named(&call, named, wanted).await,
    };
    let metadata = call.front.broker.metadata();
    let brokers = lookup::brokers(&metadata).filter_map(|(id, _)| {
        let endpoint = lookup::endpoint(&metadata, id, call.client.listener_name())?;
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
            call.cluster_operations()
        } else {
            AUTHORIZED_OPERATIONS_OMITTED
        },
        ..Default::default()
    }
}

/// What a request wants of each topic.
#[derive(Clone, Copy)]
struct Wanted {
    /// Those that are missing are to be created.
    creates: bool,
    /// Whether it asks what the client may do to them.
    operations: bool,
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
    let mut pace = Pace::default();
    for topic in wanted {
        pace.step().await;
        let Some(name) = &topic.name else { continue };
        let missing = call.front.broker.metadata().topic_named(name).is_none()
            && !call.front.broker.was_just_deleted(name);
        let may = || call.sees(Operation::Describe, Resource::topic(name)) && call.may_create(name);
        if missing && topics::is_legal_name(name) && may() {
            let created = topics::create_default(&call.front, name).await;
            if let Err(error) = created
                && error.code != ErrorCode::TopicAlreadyExists
            {
                tracing::debug!(topic = ?name, ?error, "topic was not created on first use");
            }
        }
    }
}

async fn describe_all(call: &Call, wanted: Wanted) -> Vec<MetadataTopic> {
    let ids: Vec<TopicId> = {
        let metadata = call.front.broker.metadata();
        let is_seen = |it: &&Topic| call.sees(Operation::Describe, Resource::topic(&it.name));
        metadata.topics().filter(is_seen).map(|topic| topic.id).collect()
    };
    let out_of_reach = Hidden::from(call, &call.front.broker.metadata());
    let mut topics = Vec::with_capacity(ids.len());
    let mut pace = Pace::default();
    for id in ids {
        topics.extend(describe(call, id, wanted.operations, &out_of_reach, &mut pace).await);
    }
    topics
}

async fn describe_named(
    call: &Call,
    named: Vec<MetadataRequestTopic>,
    wanted: Wanted,
) -> Vec<MetadataTopic> {
    // As in Kafka, a topic that is named twice is described once.
    let named = unique(named, |topic| (topic.name.clone(), topic.topic_id));
    let out_of_reach = Hidden::from(call, &call.front.broker.metadata());
    let mut topics = Vec::with_capacity(named.len());
    let mut pace = Pace::default();
    for topic in named {
        let by_id = is_by_id(call.version, &topic);
        let name = topic.name.clone().unwrap_or_default();
        let key = TopicKey::new(by_id, &name, topic.topic_id);
        let found = {
            let metadata = call.front.broker.metadata();
            call.find(&metadata, &key, Operation::Describe).map(|topic| topic.id)
        };
        let described = match found {
            Ok(id) => describe(call, id, wanted.operations, &out_of_reach, &mut pace).await,
            Err(ErrorCode::TopicAuthorizationFailed) => Some(hidden(&topic, by_id)),
            // It is not there because the client may not create it.
            Err(_) if wanted.creates && !by_id && !sees_creation(call, &name) => {
                Some(hidden(&topic, by_id))
            }
            Err(_) => {
                pace.step().await;
                None
            }
        };
        topics.push(described.unwrap_or_else(|| unknown(topic, by_id)));
    }
    topics
}

/// Whether the client may create a topic of this name, once it has tried.
fn sees_creation(call: &Call, name: &str) -> bool {
    call.sees(Operation::Create, Resource::CLUSTER)
        || call.sees(Operation::Create, Resource::topic(name))
}

/// The answer for a topic that the client may not see: whether or not it is there.
fn hidden(wanted: &MetadataRequestTopic, by_id: bool) -> MetadataTopic {
    MetadataTopic {
        error_code: ErrorCode::TopicAuthorizationFailed,
        topic_id: if by_id { wanted.topic_id } else { Uuid::ZERO },
        name: wanted.name.clone().filter(|_| !by_id),
        ..Default::default()
    }
}

/// The answer for a topic that is not there.
fn unknown(wanted: MetadataRequestTopic, by_id: bool) -> MetadataTopic {
    let is_legal = || topics::is_legal_name(wanted.name.as_deref().unwrap_or_default());
    let error_code = match by_id {
        true => ErrorCode::UnknownTopicId,
        false if is_legal() => ErrorCode::UnknownTopicOrPartition,
        false => ErrorCode::InvalidTopicException,
    };
    MetadataTopic {
        error_code,
        topic_id: if by_id { wanted.topic_id } else { Uuid::ZERO },
        name: wanted.name,
        ..Default::default()
    }
}

/// Describes a topic, so many partitions at a time that neither other clients nor changes of the metadata
/// wait for long; `None` if it is not there any more.
async fn describe(
    call: &Call,
    id: TopicId,
    with_operations: bool,
    hidden: &Hidden,
    pace: &mut Pace,
) -> Option<MetadataTopic> {
    let mut described = {
        let metadata = call.front.broker.metadata();
        let topic = metadata.topic(id)?;
        MetadataTopic {
            name: Some(topic.name.as_str().into()),
            topic_id: lookup::uuid(topic.id),
            is_internal: topic.internal,
            partitions: Vec::with_capacity(topic.partitions.len()),
            topic_authorized_operations: match with_operations {
                true => operations(call, topic),
                false => AUTHORIZED_OPERATIONS_OMITTED,
            },
            ..Default::default()
        }
    };
    for first in (0..).step_by(pace::STEP_COUNT_MAX) {
        let looked_at = {
            let metadata = call.front.broker.metadata();
            let Some(topic) = metadata.topic(id) else { break };
            let page = topic.partitions.iter().skip(first).take(pace::STEP_COUNT_MAX);
            let partitions = page.clone().filter_map(|id| metadata.partition(*id));
            described.partitions.extend(partitions.map(|it| describe_one(&metadata, it, hidden)));
            page.len()
        };
        pace.steps(1 + looked_at).await;
        if looked_at < pace::STEP_COUNT_MAX {
            break;
        }
    }
    Some(described)
}

/// The bits of what the client may do to a topic.
fn operations(call: &Call, topic: &Topic) -> i32 {
    call.rights.operations(Resource::topic(&topic.name)).bits()
}

/// Nodes that clients of a listener can't reach, because these have none of its name.
struct Hidden {
    nodes: BTreeSet<NodeId>,
    error_code: ErrorCode,
}

impl Hidden {
    fn from(call: &Call, metadata: &Metadata) -> Self {
        let listener = call.client.listener_name();
        let is_hidden = |id: &NodeId| lookup::endpoint(metadata, *id, listener).is_none();
        let nodes = match listener {
            // Each node has the one that has no name.
            None => BTreeSet::new(),
            Some(_) => lookup::brokers(metadata).map(|(id, _)| id).filter(is_hidden).collect(),
        };
        let error_code = match call.version >= LISTENERS_FROM_VERSION {
            true => ErrorCode::ListenerNotFound,
            false => ErrorCode::LeaderNotAvailable,
        };
        Self { nodes, error_code }
    }
}

fn describe_one(metadata: &Metadata, partition: &Partition, hidden: &Hidden) -> MetadataPartition {
    let mut owners = Owners::of(metadata, partition);
    if owners.error_code.is_none() && hidden.nodes.contains(&partition.leader) {
        (owners.error_code, owners.leader_id) = (hidden.error_code, -1);
    }
    MetadataPartition {
        error_code: owners.error_code,
        partition_index: partition.index.cast_signed(),
        leader_id: owners.leader_id,
        leader_epoch: partition.leader_epoch.get(),
        replica_nodes: owners.replicas,
        isr_nodes: owners.in_sync,
        offline_replicas: owners.offline,
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
pub(super) async fn partitions(
    call: Call,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
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
    let are_named = !names.is_empty();
    if !are_named {
        let metadata = call.front.broker.metadata();
        let is_seen = |it: &&Topic| call.sees(Operation::Describe, Resource::topic(&it.name));
        let seen = metadata.topics().filter(is_seen);
        names = seen.map(|topic| topic.name.as_str().into()).collect();
    }
    names.sort_unstable();
    names.dedup();
    let start = request.cursor.unwrap_or_default();
    let mut room = request.response_partition_limit.clamp(1, PAGE_PARTITION_COUNT_MAX) as usize;
    let mut response = DescribeTopicPartitionsResponse::default();
    let mut pace = Pace::default();
    for name in names.into_iter().filter(|name| *name >= start.topic_name) {
        let first = if name == start.topic_name { start.partition_index } else { 0 } as usize;
        if room == 0 {
            response.next_cursor =
                Some(TopicPartitionCursor { topic_name: name, partition_index: first as i32 });
            break;
        }
        let (described, partition_count) = describe_page(&call, &name, are_named, first, room);
        pace.steps(1 + described.partitions.len()).await;
        room -= described.partitions.len();
        let next = first + described.partitions.len();
        response.topics.push(described);
        if partition_count > next {
            let partition_index = next as i32;
            response.next_cursor = Some(TopicPartitionCursor { topic_name: name, partition_index });
            break;
        }
    }
    response
}

/// Some partitions of a topic, and how many it has. One that the client has not named is one that it sees.
fn describe_page(
    call: &Call,
    name: &Str,
    is_named: bool,
    first: usize,
    count: usize,
) -> (DescribedTopic, usize) {
    let metadata = call.front.broker.metadata();
    let key = TopicKey::Name(name.clone());
    let found = match is_named {
        true => call.find(&metadata, &key, Operation::Describe),
        false => key.find(&metadata),
    };
    let topic = match found {
        Ok(topic) => topic,
        Err(code) => {
            let is_unknown = code != ErrorCode::TopicAuthorizationFailed;
            let illegal = is_unknown && !topics::is_legal_name(name);
            let described = DescribedTopic {
                error_code: if illegal { ErrorCode::InvalidTopicException } else { code },
                name: Some(name.clone()),
                ..Default::default()
            };
            return (described, 0);
        }
    };
    let ids = topic.partitions.iter().skip(first).take(count);
    let partitions = ids.filter_map(|id| metadata.partition(*id)).map(|partition| {
        let owners = Owners::of(&metadata, partition);
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
    let described = DescribedTopic {
        name: Some(name.clone()),
        topic_id: lookup::uuid(topic.id),
        is_internal: topic.internal,
        partitions: partitions.collect(),
        topic_authorized_operations: operations(call, topic),
        ..Default::default()
    };
    (described, topic.partitions.len())
}

#[cfg(test)]
mod bad_input;
