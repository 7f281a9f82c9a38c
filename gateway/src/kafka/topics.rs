//! CreateTopics, DeleteTopics and CreatePartitions.

use std::collections::BTreeSet;
use std::time::Duration;

use meridian_access::{Operation, Resource};
use meridian_base::id::{NodeId, TopicId};
use meridian_consensus::command::{Command, ConfigChange, ConfigResource};
use meridian_consensus::placement::{PREFERRED_LEADER_DC, Placement, Preference};
use meridian_consensus::state::{Metadata, Topic, limits};
use meridian_mirror::seed::SET_ASIDE_PREFIX;
use meridian_protocol::messages::{
    CreatableTopic, CreatableTopicConfig, CreatableTopicResult, CreatePartitionsRequest,
    CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult,
    CreateTopicsRequest, CreateTopicsResponse, CreatedTopicConfig, DeletableTopicResult,
    DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};
use meridian_protocol::{ApiKey, ErrorCode, Str, Uuid};
use meridian_runtime::failpoint;

use super::coordinator::OFFSETS_TOPIC;
use super::dispatch::Call;
use super::error::{self, ApiError};
use super::lookup::{self, TopicKey};
use super::pace::Pace;
use super::quorum::METADATA_TOPIC;
use super::quotas::Mutations;
use super::repeated::repeated;
use super::transactions::TRANSACTIONS_TOPIC;
use super::{Front, configs, spread};
use crate::meta::CATCH_UP_WITHIN;
use crate::topic_config;
use crate::topic_config::storage_class::{self, STORAGE_CLASS};

/// Topics that the cluster keeps its own state in, and one that it only shows; clients may not create
/// them.
const RESERVED_NAMES: [&str; 3] = [OFFSETS_TOPIC, TRANSACTIONS_TOPIC, METADATA_TOPIC];

/// Longest that a request waits to hear of what was decided before it, whatever its timeout.
const CURRENT_WITHIN_MAX: Duration = Duration::from_secs(60);

/// Topics that one request may change, as in Kafka (`max.records.per.user.op`).
const CHANGE_COUNT_MAX: usize = 10_000;

/// Whether one request may change so many things.
pub(super) fn check_change_count(count: usize) -> Result<(), ApiError> {
    if count <= CHANGE_COUNT_MAX {
        return Ok(());
    }
    let message = format!("a request may change {CHANGE_COUNT_MAX} topics, not {count}: split it");
    Err(ApiError::new(ErrorCode::PolicyViolation, message))
}

/// Whether Kafka allows a topic of this name.
pub(super) fn is_legal_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=limits::TOPIC_NAME_SIZE_BYTES_MAX).contains(&name.len())
        && name.bytes().all(legal)
        && name != "."
        && name != ".."
}

/// Whether the cluster itself may need a topic of this name.
fn is_reserved(name: &str) -> bool {
    RESERVED_NAMES.contains(&name) || name.starts_with(SET_ASIDE_PREFIX)
}

/// Whether this node has heard of all that was decided before the request: no answer says that there is a
/// topic, or none, because another node has just created or deleted it. Or what else is wrong with the
/// whole request.
type Current = Result<(), ApiError>;

async fn current(call: &Call, changed_count: usize, timeout_ms: i32) -> Current {
    check_change_count(changed_count)?;
    // On a busy machine hearing of it takes long; the client says how long it waits.
    let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    let within = timeout.clamp(CATCH_UP_WITHIN, CURRENT_WITHIN_MAX);
    Ok(call.front.broker.catch_up_within(within).await?)
}

/// A topic that can be created.
struct Plan {
    topic: TopicId,
    name: String,
    leaders: Vec<NodeId>,
    configs: Vec<ConfigChange>,
    replication_factor: i16,
}

impl Plan {
    fn command(&self, internal: bool) -> Command {
        Command::CreateTopic {
            topic: self.topic,
            name: self.name.clone(),
            leaders: self.leaders.clone(),
            configs: self.configs.clone(),
            internal,
        }
    }
}

/// Creates a topic with all defaults, for who uses it before it exists.
pub(super) async fn create_default(front: &Front, name: &str) -> Result<(), ApiError> {
    if is_reserved(name) {
        return Err(ErrorCode::InvalidTopicException.into());
    }
    check_awaited(&front.broker.metadata(), name)?;
    create_with(front, name, front.config.partition_count_default, Vec::new(), false).await
}

/// A mirror that begins anew gets its name back.
fn check_awaited(metadata: &Metadata, name: &str) -> Result<(), ApiError> {
    let refused = crate::linked_topics::refuses_creation(metadata, name);
    refused.map_or(Ok(()), |message| Err(ApiError::new(ErrorCode::PolicyViolation, message)))
}

/// Creates a topic of the cluster's own, if there is none yet.
pub(super) async fn create_internal(
    front: &Front,
    name: &str,
    partition_count: u32,
    configs: Vec<ConfigChange>,
) -> Result<(), ApiError> {
    match create_with(front, name, partition_count, configs, true).await {
        Err(error) if error.code == ErrorCode::TopicAlreadyExists => Ok(()),
        result => result,
    }
}

async fn create_with(
    front: &Front,
    name: &str,
    partition_count: u32,
    configs: Vec<ConfigChange>,
    internal: bool,
) -> Result<(), ApiError> {
    let command = {
        let metadata = front.broker.metadata();
        Plan {
            topic: front.random_topic_id(),
            name: name.to_owned(),
            leaders: choose_leaders(&metadata, partition_count, None, None)?,
            configs,
            replication_factor: replication_factor(&metadata),
        }
        .command(internal)
    };
    front.broker.propose(command).await?;
    Ok(())
}

/// In how many datacenters each record is: what Kafka calls the replication factor.
pub(super) fn replication_factor(metadata: &Metadata) -> i16 {
    metadata.geometry().map_or(1, |geometry| geometry.datacenter_count() as i16)
}

fn choose_leaders(
    metadata: &Metadata,
    count: u32,
    preferred: Option<&str>,
    class: Option<&str>,
) -> Result<Vec<NodeId>, ApiError> {
    if count == 0 || count > limits::PARTITIONS_PER_TOPIC_MAX {
        let max = limits::PARTITIONS_PER_TOPIC_MAX;
        let message = format!("a topic has 1 to {max} partitions");
        return Err(ApiError::new(ErrorCode::InvalidPartitions, message));
    }
    let preferred =
        preferred.or_else(|| metadata.config(&ConfigResource::Cluster, PREFERRED_LEADER_DC));
    let preference = preferred.map(Preference::parse).unwrap_or_default();
    let leaders =
        Placement::new(metadata, &BTreeSet::new()).initial_leaders(count, &preference, class);
    leaders.ok_or_else(|| {
        let message = "no node that could lead partitions is alive; retry when one is back";
        ApiError::new(ErrorCode::BrokerNotAvailable, message)
    })
}

/// What the configs of one topic cost, as steps.
const COST_STEP_COUNT: usize = 8;

/// Creates topics, each for itself.
pub(super) async fn create(call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse {
    failpoint::reach("request");
    let current = current(&call, request.topics.len(), request.timeout_ms).await;
    let repeated = repeated(request.topics.iter().map(|topic| topic.name.clone()));
    let mut mutations = Mutations::of(&call, ApiKey::CreateTopics);
    let mut topics = Vec::with_capacity(request.topics.len());
    let mut pace = Pace::default();
    for topic in request.topics {
        pace.steps(COST_STEP_COUNT).await;
        let name = topic.name.clone();
        let result = if repeated.contains(&name) {
            Err(ApiError::new(ErrorCode::InvalidRequest, "the request names this topic twice"))
        } else {
            create_one(&call, &current, &mut mutations, topic, request.validate_only).await
        };
        topics.push(match result {
            Ok(plan) => created(&call, &name, &plan, request.validate_only),
            Err(error) => {
                call.front.metrics.on_error(error.code);
                CreatableTopicResult {
                    name,
                    error_code: error.code,
                    error_message: error.message(),
                    ..Default::default()
                }
            }
        });
    }
    if !request.validate_only && topics.iter().any(|topic| topic.error_code.is_none()) {
        spread::wait(&call.front).await;
    }
    let throttle_time_ms = mutations.throttle(&call);
    CreateTopicsResponse { throttle_time_ms, topics }
}

async fn create_one(
    call: &Call,
    current: &Current,
    mutations: &mut Mutations,
    topic: CreatableTopic,
    validate_only: bool,
) -> Result<Plan, ApiError> {
    if !call.may_create(&topic.name) {
        return Err(ErrorCode::TopicAuthorizationFailed.into());
    }
    current.clone()?;
    let plan = plan(&call.front, &call.front.broker.metadata(), topic)?;
    if !validate_only {
        mutations.charge(call, plan.leaders.len())?;
        call.front.broker.propose(plan.command(false)).await?;
    }
    Ok(plan)
}

fn plan(front: &Front, metadata: &Metadata, topic: CreatableTopic) -> Result<Plan, ApiError> {
    let name = topic.name.to_string();
    if !is_legal_name(&name) || is_reserved(&name) {
        let message = "topic names are 1 to 249 of [a-zA-Z0-9._-], not `.` or `..`; \
                       __consumer_offsets, __transaction_state, __cluster_metadata and what begins \
                       with `__seed.` are the cluster's own";
        return Err(ApiError::new(ErrorCode::InvalidTopicException, message));
    }
    if metadata.topic_named(&name).is_some() {
        let message = format!("topic {name} exists already");
        return Err(ApiError::new(ErrorCode::TopicAlreadyExists, message));
    }
    if let Some(other) = metadata.name_shown_as(&name) {
        let message = format!("{name} collides with topic {other}: `.` and `_` are one");
        return Err(ApiError::new(ErrorCode::InvalidTopicException, message));
    }
    check_awaited(metadata, &name)?;
    let replication_factor = replication_factor(metadata);
    if topic.replication_factor == 0
        || topic.replication_factor < -1
        || topic.replication_factor > replication_factor
    {
        let message = format!(
            "replication factor {} is not possible: here it is {replication_factor} for all topics",
            topic.replication_factor
        );
        return Err(ApiError::new(ErrorCode::InvalidReplicationFactor, message));
    }
    let partition_count = partition_count(front, &topic)?;
    let configs = config_changes(metadata, &topic.configs)?;
    let value = |name: &str| {
        let set = configs.iter().find(|change| change.name == name)?;
        set.value.as_deref()
    };
    let (preferred, class) = (value(PREFERRED_LEADER_DC), value(STORAGE_CLASS));
    let mut leaders = choose_leaders(metadata, partition_count, preferred, class)?;
    assign(metadata, &topic, &mut leaders)?;
    Ok(Plan { topic: front.random_topic_id(), name, leaders, configs, replication_factor })
}

fn partition_count(front: &Front, topic: &CreatableTopic) -> Result<u32, ApiError> {
    match (topic.assignments.len(), topic.num_partitions) {
        (0, -1) => Ok(front.config.partition_count_default),
        (0, count) => u32::try_from(count).map_err(|_| {
            ApiError::new(ErrorCode::InvalidPartitions, "the number of partitions is negative")
        }),
        (assigned, -1) => Ok(u32::try_from(assigned).unwrap_or(u32::MAX)),
        _ => Err(ApiError::new(
            ErrorCode::InvalidRequest,
            "give either assignments or a number of partitions",
        )),
    }
}

/// Takes the first broker of each assignment as leader. Where the copies are is not for clients to say, and the order of
/// the others means nothing; but all must be brokers, as in Kafka.
fn assign(
    metadata: &Metadata,
    topic: &CreatableTopic,
    leaders: &mut [NodeId],
) -> Result<(), ApiError> {
    let invalid = |message: &str| Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message));
    let mut assigned = BTreeSet::new();
    for assignment in &topic.assignments {
        let index = usize::try_from(assignment.partition_index).unwrap_or(usize::MAX);
        let Some(leader) = leaders.get_mut(index) else {
            return invalid("partition indexes must be dense from 0");
        };
        if !assigned.insert(index) {
            return invalid("a partition is assigned twice");
        }
        *leader = assigned_leader(metadata, &assignment.broker_ids)?;
    }
    Ok(())
}

fn assigned_leader(metadata: &Metadata, broker_ids: &[i32]) -> Result<NodeId, ApiError> {
    let invalid = |message| Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message));
    let node_of = |id: &i32| u32::try_from(*id).ok().map(NodeId::new);
    let is_broker = |id: &i32| node_of(id).is_some_and(|node| metadata.node(node).is_some());
    if let Some(stranger) = broker_ids.iter().find(|id| !is_broker(id)) {
        return invalid(format!(
            "a partition is assigned to broker {stranger}, which is not there"
        ));
    }
    if let Some(twice) = twice(broker_ids) {
        return invalid(format!("a partition is assigned to broker {twice} twice"));
    }
    let first = broker_ids.first().and_then(node_of);
    match first.filter(|node| lookup::is_serving(metadata, *node)) {
        Some(leader) => Ok(leader),
        None => invalid("the first broker of an assignment is not alive".to_owned()),
    }
}

/// The first id that is there more than once.
fn twice(broker_ids: &[i32]) -> Option<i32> {
    let mut seen = BTreeSet::new();
    broker_ids.iter().copied().find(|id| !seen.insert(*id))
}

fn config_changes(
    metadata: &Metadata,
    configs: &[CreatableTopicConfig],
) -> Result<Vec<ConfigChange>, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidConfig, message);
    let mut changes = Vec::with_capacity(configs.len());
    for config in configs {
        let name = config.name.to_string();
        let Some(value) = &config.value else {
            return Err(invalid(format!("null value for {name}")));
        };
        let value = topic_config::trimmed(value);
        topic_config::check(&name, &value).map_err(invalid)?;
        changes.push(ConfigChange { name, value: Some(value) });
    }
    let value = |name: &str| match changes.iter().find(|change| change.name == name) {
        Some(set) => set.value.as_deref(),
        None => metadata.config(&ConfigResource::Cluster, name),
    };
    storage_class::check(value, &storage_class::geometries(metadata)).map_err(invalid)?;
    Ok(changes)
}

fn created(call: &Call, name: &Str, plan: &Plan, validate_only: bool) -> CreatableTopicResult {
    let topic_id = if validate_only { Default::default() } else { lookup::uuid(plan.topic) };
    if !call.sees(Operation::DescribeConfigs, Resource::topic(name)) {
        return CreatableTopicResult {
            name: name.clone(),
            topic_id,
            topic_config_error_code: ErrorCode::TopicAuthorizationFailed,
            ..Default::default()
        };
    }
    let metadata = call.front.broker.metadata();
    let configs = topic_config::ALL.iter().map(|config| {
        let set = plan.configs.iter().find(|change| change.name == config.name);
        let set = set.and_then(|change| change.value.as_deref());
        let (value, config_source) = match set {
            Some(value) => (value, configs::SOURCE_TOPIC),
            None => configs::defaults::value(&metadata, config),
        };
        CreatedTopicConfig {
            name: config.name.into(),
            value: Some(value.into()),
            read_only: false,
            config_source,
            is_sensitive: false,
        }
    });
    CreatableTopicResult {
        name: name.clone(),
        topic_id,
        num_partitions: plan.leaders.len() as i32,
        replication_factor: plan.replication_factor,
        configs: Some(configs.collect()),
        ..Default::default()
    }
}

/// Deletes topics, each for itself.
pub(super) async fn delete(call: Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse {
    let by_name = |name| DeleteTopicState { name: Some(name), ..Default::default() };
    let topics = request.topics.into_iter().chain(request.topic_names.into_iter().map(by_name));
    let topics: Vec<DeleteTopicState> = topics.collect();
    let current = current(&call, topics.len(), request.timeout_ms).await;
    let keys = keys_of(&call, &topics);
    let repeated = repeated(&keys);
    let mut mutations = Mutations::of(&call, ApiKey::DeleteTopics);
    let mut responses = Vec::new();
    let mut pace = Pace::default();
    for (wanted, key) in topics.iter().zip(&keys) {
        pace.step().await;
        let mut result = DeletableTopicResult {
            name: wanted.name.clone(),
            topic_id: wanted.topic_id,
            ..Default::default()
        };
        let deleted = if repeated.contains(key) {
            Err(ApiError::new(ErrorCode::InvalidRequest, "the request names this topic twice"))
        } else {
            delete_one(&call, &current, &mut mutations, wanted, &mut result).await
        };
        if let Err(error) = deleted {
            call.front.metrics.on_error(error.code);
            result.error_code = error.code;
            result.error_message = error.message();
        }
        responses.push(result);
    }
    if responses.iter().any(|result| result.error_code.is_none()) {
        spread::wait(&call.front).await;
    }
    let throttle_time_ms = mutations.throttle(&call);
    DeleteTopicsResponse { throttle_time_ms, responses }
}

/// Each topic that a request names, as its id where there is such a topic that the client may know of, so that a topic
/// that is named in two ways is found twice.
fn keys_of(call: &Call, topics: &[DeleteTopicState]) -> Vec<(Option<Str>, Uuid)> {
    let metadata = call.front.broker.metadata();
    let key = |named: &DeleteTopicState| {
        let found = match &named.name {
            Some(name) if named.topic_id.is_zero() => metadata.topic_named(name),
            Some(_) => None,
            None => metadata.topic(lookup::topic_id(named.topic_id)),
        };
        let is_seen = |it: &&Topic| call.sees(Operation::Describe, Resource::topic(&it.name));
        match found.filter(is_seen) {
            Some(topic) => (None, lookup::uuid(topic.id)),
            None => (named.name.clone(), named.topic_id),
        }
    };
    topics.iter().map(key).collect()
}

async fn delete_one(
    call: &Call,
    current: &Current,
    mutations: &mut Mutations,
    wanted: &DeleteTopicState,
    result: &mut DeletableTopicResult,
) -> Result<(), ApiError> {
    let key = match &wanted.name {
        Some(_) if !wanted.topic_id.is_zero() => {
            return Err(ApiError::new(ErrorCode::InvalidRequest, "give a name or an id, not both"));
        }
        Some(name) => TopicKey::Name(name.clone()),
        None if wanted.topic_id.is_zero() => {
            return Err(ApiError::new(ErrorCode::InvalidRequest, "give a name or an id"));
        }
        None => TopicKey::Id(wanted.topic_id),
    };
    let (topic, mirror) = {
        let metadata = call.front.broker.metadata();
        // Who may look at a topic, and not delete it, learns its name.
        if let Ok(seen) = key.find(&metadata)
            && call.sees(Operation::Describe, Resource::topic(&seen.name))
        {
            result.name = Some(seen.name.as_str().into());
        }
        call.check_topic(&metadata, &key, Operation::Delete)?;
        current.clone()?;
        let topic = key.find(&metadata)?;
        if topic.internal {
            let message = "the cluster's own topics cannot be deleted";
            return Err(ApiError::new(ErrorCode::InvalidTopicException, message));
        }
        result.topic_id = lookup::uuid(topic.id);
        mutations.charge(call, topic.partitions.len())?;
        (topic.id, crate::linked_topics::forget(&metadata, topic.id))
    };
    call.front.broker.propose(Command::DeleteTopic { topic }).await?;
    if let Some(forget) = mirror {
        call.front.broker.propose(forget).await?;
    }
    Ok(())
}

/// Adds partitions to topics, to each for itself.
pub(super) async fn create_partitions(
    call: Call,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let current = current(&call, request.topics.len(), request.timeout_ms).await;
    let repeated = repeated(request.topics.iter().map(|topic| &topic.name));
    let mut mutations = Mutations::of(&call, ApiKey::CreatePartitions);
    let mut results = Vec::with_capacity(request.topics.len());
    let mut pace = Pace::default();
    for topic in &request.topics {
        pace.step().await;
        let mut result =
            CreatePartitionsTopicResult { name: topic.name.clone(), ..Default::default() };
        let grown = if repeated.contains(&topic.name) {
            Err(ApiError::new(ErrorCode::InvalidRequest, "the request names this topic twice"))
        } else {
            grow(&call, &current, &mut mutations, topic, request.validate_only).await
        };
        if let Err(error) = grown {
            call.front.metrics.on_error(error.code);
            result.error_code = error.code;
            result.error_message = error.message();
        }
        results.push(result);
    }
    if !request.validate_only && results.iter().any(|result| result.error_code.is_none()) {
        spread::wait(&call.front).await;
    }
    let throttle_time_ms = mutations.throttle(&call);
    CreatePartitionsResponse { throttle_time_ms, results }
}

async fn grow(
    call: &Call,
    current: &Current,
    mutations: &mut Mutations,
    wanted: &CreatePartitionsTopic,
    validate_only: bool,
) -> Result<(), ApiError> {
    call.check(Operation::Alter, Resource::topic(&wanted.name))?;
    current.clone()?;
    let (command, added_count) = plan_growth(&call.front.broker.metadata(), wanted)?;
    if !validate_only {
        mutations.charge(call, added_count)?;
        call.front.broker.propose(command).await?;
    }
    Ok(())
}

/// What adds partitions, and how many.
fn plan_growth(
    metadata: &Metadata,
    wanted: &CreatePartitionsTopic,
) -> Result<(Command, usize), ApiError> {
    let topic = TopicKey::Name(wanted.name.clone()).find(metadata)?;
    if topic.internal {
        let message = "the cluster's own topics keep their partitions";
        return Err(ApiError::new(ErrorCode::InvalidTopicException, message));
    }
    error::mirror(metadata, topic.id)?;
    let expected_count = topic.partitions.len() as u32;
    let added =
        u32::try_from(wanted.count).ok().and_then(|count| count.checked_sub(expected_count));
    let Some(added) = added.filter(|added| *added > 0) else {
        let message = format!("the topic has {expected_count} partitions already");
        return Err(ApiError::new(ErrorCode::InvalidPartitions, message));
    };
    let preferred: Option<String> = lookup::topic_config(metadata, topic.id, PREFERRED_LEADER_DC);
    let class: Option<String> = lookup::topic_config(metadata, topic.id, STORAGE_CLASS);
    let mut leaders = choose_leaders(metadata, added, preferred.as_deref(), class.as_deref())?;
    if let Some(assignments) = &wanted.assignments {
        if assignments.len() != leaders.len() {
            let message = format!("{added} partitions are added, and as many must be assigned");
            return Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message));
        }
        for (leader, assignment) in leaders.iter_mut().zip(assignments) {
            *leader = assigned_leader(metadata, &assignment.broker_ids)?;
        }
    }
    let added_count = leaders.len();
    Ok((Command::CreatePartitions { topic: topic.id, expected_count, leaders }, added_count))
}

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod tests;
