//! DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.
//!
//! Topics can be configured at run time; nodes by their configuration file only, so their configs
//! are described read-only.

use std::collections::BTreeMap;

use meridian_base::id::TopicId;
use meridian_consensus::command::{Command, ConfigChange, ConfigResource};
use meridian_consensus::state::Metadata;
use meridian_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResourceResponse, AlterConfigsResponse,
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse,
    DescribeConfigsResult, DescribedConfig, DescribedConfigSynonym, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse, IncrementalAlterableConfig, ListConfigResourcesRequest,
    ListConfigResourcesResponse, ListedConfigResource,
};
use meridian_protocol::{ErrorCode, Str};

use super::dispatch::Call;
use super::error::ApiError;
use super::lookup::TopicKey;
use super::topic_config::{self, Kind, TopicConfig};
use super::{Front, lookup, settings, topics};
use crate::storage_class;

const RESOURCE_TOPIC: i8 = 2;
const RESOURCE_BROKER: i8 = 4;
const RESOURCE_BROKER_LOGGER: i8 = 8;
const RESOURCE_CLIENT_METRICS: i8 = 16;
const RESOURCE_GROUP: i8 = 32;
/// Set for the topic.
pub(super) const SOURCE_TOPIC: i8 = 1;
/// Set in the node's configuration file.
const SOURCE_NODE_FILE: i8 = 4;
/// Not set.
pub(super) const SOURCE_DEFAULT: i8 = 5;
const OPERATION_SET: i8 = 0;
const OPERATION_DELETE: i8 = 1;
const OPERATION_APPEND: i8 = 2;
const OPERATION_SUBTRACT: i8 = 3;

/// Names that Kafka gives to what topics have by default.
const TOPIC_DEFAULTS: &[(&str, &str)] = &[
    ("compression.type", "compression.type"),
    ("log.cleaner.delete.retention.ms", "delete.retention.ms"),
    ("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms"),
    ("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
    ("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
    ("log.cleanup.policy", "cleanup.policy"),
    ("log.message.timestamp.after.max.ms", topic_config::MESSAGE_TIMESTAMP_AFTER_MAX_MS),
    ("log.message.timestamp.before.max.ms", topic_config::MESSAGE_TIMESTAMP_BEFORE_MAX_MS),
    ("log.message.timestamp.type", topic_config::MESSAGE_TIMESTAMP_TYPE),
    ("log.retention.bytes", "retention.bytes"),
    ("log.retention.ms", "retention.ms"),
    ("message.max.bytes", topic_config::MAX_MESSAGE_BYTES),
    ("min.insync.replicas", "min.insync.replicas"),
    ("unclean.leader.election.enable", "unclean.leader.election.enable"),
];

/// Lists what has configs: topics and nodes. Version 0 asks for client metrics, which are configured in
/// files here.
pub(super) fn list(
    call: &Call,
    request: &ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    let known = [
        RESOURCE_TOPIC,
        RESOURCE_BROKER,
        RESOURCE_BROKER_LOGGER,
        RESOURCE_CLIENT_METRICS,
        RESOURCE_GROUP,
    ];
    if request.resource_types.iter().any(|kind| !known.contains(kind)) {
        call.front.metrics.on_error(ErrorCode::UnsupportedVersion);
        let error_code = ErrorCode::UnsupportedVersion;
        return ListConfigResourcesResponse { error_code, ..Default::default() };
    }
    let is_wanted = |kind: i8| {
        call.version > 0
            && (request.resource_types.is_empty() || request.resource_types.contains(&kind))
    };
    let metadata = call.front.broker.metadata();
    let mut config_resources = Vec::new();
    if is_wanted(RESOURCE_TOPIC) {
        let listed = |name: &str| ListedConfigResource {
            resource_name: name.into(),
            resource_type: RESOURCE_TOPIC,
        };
        config_resources.extend(metadata.topics().map(|topic| listed(&topic.name)));
    }
    if is_wanted(RESOURCE_BROKER) {
        config_resources.extend(lookup::brokers(&metadata).map(|(id, _)| ListedConfigResource {
            resource_name: lookup::broker_id(id).to_string().into(),
            resource_type: RESOURCE_BROKER,
        }));
    }
    ListConfigResourcesResponse { config_resources, ..Default::default() }
}

/// Describes configs.
pub(super) async fn describe(
    call: Call,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    // A topic's configuration is never older than the question.
    let has_topics = request.resources.iter().any(|it| it.resource_type == RESOURCE_TOPIC);
    let current = if has_topics { call.front.broker.catch_up().await } else { Ok(()) };
    let metadata = call.front.broker.metadata();
    let describe = |resource: DescribeConfigsResource| {
        let described = match resource.resource_type {
            RESOURCE_TOPIC => current
                .clone()
                .map_err(ApiError::from)
                .and_then(|()| describe_topic(&metadata, &resource.resource_name)),
            RESOURCE_BROKER => describe_node(&call.front, &resource.resource_name),
            _ => Err(unknown_resource()),
        };
        let wanted = |config: &DescribedConfig| match &resource.configuration_keys {
            Some(keys) => keys.contains(&config.name),
            None => true,
        };
        let mut result = DescribeConfigsResult {
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            ..Default::default()
        };
        match described {
            Ok(configs) => result.configs = configs.into_iter().filter(wanted).collect(),
            Err(error) => {
                call.front.metrics.on_error(error.code);
                result.error_code = error.code;
                result.error_message = error.message();
            }
        }
        for config in &mut result.configs {
            if !request.include_synonyms {
                config.synonyms.clear();
            }
            if !request.include_documentation {
                config.documentation = None;
            }
        }
        result
    };
    let results = request.resources.into_iter().map(describe).collect();
    DescribeConfigsResponse { results, ..Default::default() }
}

fn unknown_resource() -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, "only topics (2) and brokers (4) have configs")
}

fn describe_topic(metadata: &Metadata, name: &Str) -> Result<Vec<DescribedConfig>, ApiError> {
    let topic = TopicKey::Name(name.clone()).find(metadata)?;
    let resource = ConfigResource::Topic(topic.id);
    let describe = |config: &TopicConfig| {
        let set = metadata.config(&resource, config.name);
        described(config.name, config_type(config.kind), set, config.default, config.doc)
    };
    let mut configs: Vec<DescribedConfig> = topic_config::ALL.iter().map(describe).collect();
    configs.extend(mirror_source(metadata, topic.id));
    Ok(configs)
}

/// Where a mirror comes from; who mirrors by pattern leaves mirrors out by this.
fn mirror_source(metadata: &Metadata, topic: TopicId) -> Option<DescribedConfig> {
    let source = crate::mirror::source_of(metadata, topic)?;
    let doc = "The link and the topic at the source that this is a mirror of.";
    Some(DescribedConfig {
        name: topic_config::MIRROR_SOURCE.into(),
        value: Some(source.into()),
        read_only: true,
        config_source: SOURCE_NODE_FILE,
        config_type: config_type(Kind::Text),
        documentation: Some(doc.into()),
        ..Default::default()
    })
}

fn described(
    name: &str,
    config_type: i8,
    set: Option<&str>,
    default: &str,
    doc: &str,
) -> DescribedConfig {
    let synonym = |value: &str, source| DescribedConfigSynonym {
        name: name.into(),
        value: Some(value.into()),
        source,
    };
    let mut synonyms: Vec<_> = set.map(|value| synonym(value, SOURCE_TOPIC)).into_iter().collect();
    synonyms.push(synonym(default, SOURCE_DEFAULT));
    DescribedConfig {
        name: name.into(),
        value: Some(set.unwrap_or(default).into()),
        is_default: set.is_none(),
        config_source: if set.is_some() { SOURCE_TOPIC } else { SOURCE_DEFAULT },
        synonyms,
        config_type,
        documentation: Some(doc.into()),
        ..Default::default()
    }
}

/// The protocol's number for what a value is.
fn config_type(kind: Kind) -> i8 {
    match kind {
        Kind::Bool => 1,
        Kind::OneOf(_) | Kind::Text => 2,
        Kind::Int { .. } => 3,
        Kind::Long { .. } => 5,
        Kind::Ratio => 6,
        Kind::ListOf(_) => 7,
    }
}

fn describe_node(front: &Front, name: &Str) -> Result<Vec<DescribedConfig>, ApiError> {
    let own = lookup::broker_id(front.broker.node()).to_string();
    if !name.is_empty() && **name != *own {
        let message = format!("ask broker {name} itself; this is broker {own}");
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    let read_only = |name: &str, config_type, value: String, doc: &str| DescribedConfig {
        name: name.into(),
        value: Some(value.into()),
        read_only: true,
        config_source: SOURCE_NODE_FILE,
        config_type,
        documentation: Some(doc.into()),
        ..Default::default()
    };
    let set = settings::ALL.iter().map(|setting| {
        read_only(setting.name, setting.config_type(), setting.value(&front.config), setting.doc)
    });
    let number = config_type(Kind::Int { min: 0, max: 0 });
    let replication_factor = topics::replication_factor(&front.broker.metadata()).to_string();
    let mut configs: Vec<DescribedConfig> = set.collect();
    configs.extend([
        read_only("broker.id", number, own.clone(), "The node."),
        read_only("node.id", number, own, "The node."),
        read_only(
            "default.replication.factor",
            number,
            replication_factor,
            "Datacenters that each record is in; the same for all topics.",
        ),
    ]);
    // What topics have that say nothing, under the names that Kafka gives these for a broker.
    let defaults = TOPIC_DEFAULTS.iter().filter_map(|(name, of)| {
        let config = topic_config::find(of)?;
        let default = config.default.to_owned();
        Some(read_only(name, config_type(config.kind), default, config.doc))
    });
    configs.extend(defaults);
    configs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(configs)
}

/// Replaces all configs of topics: what is not in the request goes back to its default.
pub(super) async fn alter(call: Call, request: AlterConfigsRequest) -> AlterConfigsResponse {
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in request.resources {
        let sets: Vec<IncrementalAlterableConfig> = resource
            .configs
            .into_iter()
            .map(|config| IncrementalAlterableConfig {
                name: config.name,
                config_operation: OPERATION_SET,
                value: config.value,
            })
            .collect();
        let (kind, name) = (resource.resource_type, resource.resource_name);
        let plan = plan(&call.front.broker.metadata(), kind, &name, &sets, true);
        responses.push(apply(&call, kind, name, plan, request.validate_only).await);
    }
    AlterConfigsResponse { responses, ..Default::default() }
}

/// Changes some configs of topics.
pub(super) async fn alter_some(
    call: Call,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let mut responses = Vec::with_capacity(request.resources.len());
    for resource in request.resources {
        let (kind, name) = (resource.resource_type, resource.resource_name);
        let plan = plan(&call.front.broker.metadata(), kind, &name, &resource.configs, false);
        responses.push(apply(&call, kind, name, plan, request.validate_only).await);
    }
    IncrementalAlterConfigsResponse { responses, ..Default::default() }
}

async fn apply(
    call: &Call,
    resource_type: i8,
    resource_name: Str,
    plan: Result<Command, ApiError>,
    validate_only: bool,
) -> AlterConfigsResourceResponse {
    let result = match plan {
        Ok(command) if !validate_only => match call.front.broker.propose(command).await {
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        },
        plan => plan.map(drop),
    };
    let mut response =
        AlterConfigsResourceResponse { resource_type, resource_name, ..Default::default() };
    if let Err(error) = result {
        call.front.metrics.on_error(error.code);
        response.error_code = error.code;
        response.error_message = error.message();
    }
    response
}

fn plan(
    metadata: &Metadata,
    resource_type: i8,
    name: &Str,
    operations: &[IncrementalAlterableConfig],
    replace: bool,
) -> Result<Command, ApiError> {
    match resource_type {
        RESOURCE_TOPIC => {}
        RESOURCE_BROKER => {
            let message = "configs of nodes are in their configuration file";
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        }
        _ => return Err(unknown_resource()),
    }
    let topic = TopicKey::Name(name.clone()).find(metadata)?.id;
    let mut changes = BTreeMap::new();
    if replace {
        let resource = ConfigResource::Topic(topic);
        changes.extend(metadata.configs(&resource).map(|(name, _)| (name.to_owned(), None)));
    }
    for operation in operations {
        // What cannot be set is not set: as in Kafka, whose mirrors clear configs that only it has.
        let is_known = topic_config::find(&operation.name).is_some();
        if operation.config_operation == OPERATION_DELETE && !is_known {
            continue;
        }
        let value = resolve(metadata, topic, operation)?;
        if let Some(value) = &value {
            topic_config::check(&operation.name, value)
                .map_err(|message| ApiError::new(ErrorCode::InvalidConfig, message))?;
        }
        changes.insert(operation.name.to_string(), value);
    }
    let resource = ConfigResource::Topic(topic);
    let together = |name: &str| match changes.get(name) {
        Some(value) => value.as_deref(),
        None => metadata.config(&resource, name),
    };
    storage_class::check(together, metadata.geometry())
        .map_err(|message| ApiError::new(ErrorCode::InvalidConfig, message))?;
    let changes = changes.into_iter().map(|(name, value)| ConfigChange { name, value }).collect();
    Ok(Command::SetConfigs { resource, changes })
}

/// The value that an operation leads to; `None` for the default.
fn resolve(
    metadata: &Metadata,
    topic: TopicId,
    operation: &IncrementalAlterableConfig,
) -> Result<Option<String>, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidConfig, message);
    let name: &str = &operation.name;
    let config =
        topic_config::find(name).ok_or_else(|| invalid(format!("unknown topic config {name}")))?;
    let value = operation.value.as_deref();
    let needed = || value.ok_or_else(|| invalid(format!("null value for {name}")));
    let is_list = matches!(config.kind, Kind::ListOf(_));
    match operation.config_operation {
        OPERATION_SET => Ok(Some(needed()?.to_owned())),
        OPERATION_DELETE => Ok(None),
        OPERATION_APPEND | OPERATION_SUBTRACT if is_list => {
            let value = needed()?;
            let set = metadata.config(&ConfigResource::Topic(topic), name);
            let mut items: Vec<&str> = set.unwrap_or(config.default).split(',').collect();
            items.retain(|item| value.split(',').all(|other| other != *item));
            if operation.config_operation == OPERATION_APPEND {
                items.extend(value.split(','));
            }
            Ok(Some(items.join(",")))
        }
        OPERATION_APPEND | OPERATION_SUBTRACT => {
            Err(invalid(format!("{name} is not a list; it can only be set or deleted")))
        }
        unknown => {
            let message = format!("unknown config operation {unknown}");
            Err(ApiError::new(ErrorCode::InvalidRequest, message))
        }
    }
}

#[cfg(test)]
mod tests;
