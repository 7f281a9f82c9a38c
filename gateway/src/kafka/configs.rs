//! DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.
//!
//! Topics can be configured at run time, and what they have by default for all of them ([`defaults`]).
//! So can groups of KIP-848 ([`groups`]) and share groups ([`share`]). Nodes by themselves are configured in their files only, so
//! their configs ([`node`]), and those of loggers and client metrics ([`others`]), are described
//! read-only.

mod alter;
pub(super) mod defaults;
pub(super) mod groups;
mod node;
mod others;
pub(super) mod share;

use meridian_access::{Operation, Resource};
use meridian_base::id::TopicId;
use meridian_consensus::command::ConfigResource;
use meridian_consensus::state::{Metadata, Topic};
use meridian_protocol::messages::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse,
    DescribeConfigsResult, DescribedConfig, DescribedConfigSynonym, ListConfigResourcesRequest,
    ListConfigResourcesResponse, ListedConfigResource,
};
use meridian_protocol::{ErrorCode, Str};

pub(super) use self::alter::{alter, alter_some};
use super::dispatch::Call;
use super::error::ApiError;
use super::lookup::TopicKey;
use super::pace::Pace;
use super::repeated::unique;
use super::{lookup, topics};
use crate::topic_config::{self, Kind, TopicConfig};

const RESOURCE_TOPIC: i8 = 2;
const RESOURCE_BROKER: i8 = 4;
const RESOURCE_BROKER_LOGGER: i8 = 8;
const RESOURCE_CLIENT_METRICS: i8 = 16;
const RESOURCE_GROUP: i8 = 32;
/// Configs of one answer: all that 10 000 topics have.
const CONFIG_COUNT_MAX: usize = 400_000;
/// What the configs of one resource cost, as steps.
const CONFIGS_STEP_COUNT: usize = 8;
/// Set for the topic.
pub(super) const SOURCE_TOPIC: i8 = 1;
/// Set in the node's configuration file.
const SOURCE_NODE_FILE: i8 = 4;
/// Not set.
pub(super) const SOURCE_DEFAULT: i8 = 5;

/// Lists what has configs: topics and nodes. Version 0 asks for client metrics, which are configured in
/// files here.
pub(super) fn list(
    call: &Call,
    request: &ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    if let Err(error_code) = call.check(Operation::DescribeConfigs, Resource::CLUSTER) {
        call.front.metrics.on_error(error_code);
        return ListConfigResourcesResponse { error_code, ..Default::default() };
    }
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
    if is_wanted(RESOURCE_GROUP) {
        config_resources.extend(metadata.configured_groups().map(|group| ListedConfigResource {
            resource_name: group.into(),
            resource_type: RESOURCE_GROUP,
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
    let resources = unique(request.resources, |it| (it.resource_type, it.resource_name.clone()));
    let mut config_count = 0;
    let describe = |resource: &DescribeConfigsResource, config_count: usize| {
        let metadata = call.front.broker.metadata();
        let described = check_rights(&call, resource).and_then(|()| match resource.resource_type {
            _ if config_count > CONFIG_COUNT_MAX => Err(too_many_configs()),
            RESOURCE_TOPIC => current
                .clone()
                .map_err(ApiError::from)
                .and_then(|()| describe_topic(&metadata, &resource.resource_name)),
            RESOURCE_BROKER if resource.resource_name.is_empty() => {
                Ok(defaults::describe(&metadata, true))
            }
            RESOURCE_BROKER => node::describe(&call.front, &metadata, &resource.resource_name),
            RESOURCE_BROKER_LOGGER => others::loggers(&call.front, &resource.resource_name),
            RESOURCE_CLIENT_METRICS => others::metrics(&call.front, &resource.resource_name),
            RESOURCE_GROUP => {
                groups::describe(&metadata, &call.front.config.group, &resource.resource_name)
            }
            _ => Err(unknown_resource()),
        });
        // Who names none wants all, as in Kafka.
        let keys = resource.configuration_keys.as_deref().unwrap_or_default();
        let wanted = |config: &DescribedConfig| keys.is_empty() || keys.contains(&config.name);
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
    let mut results = Vec::with_capacity(resources.len());
    let mut pace = Pace::default();
    for resource in &resources {
        pace.steps(CONFIGS_STEP_COUNT).await;
        let result = describe(resource, config_count);
        config_count += result.configs.len();
        results.push(result);
    }
    DescribeConfigsResponse { results, ..Default::default() }
}

/// What a client needs a right on to see or change configs: nodes, loggers and metrics are of the cluster.
fn owner(resource_type: i8, name: &Str) -> Resource<'_> {
    match resource_type {
        RESOURCE_TOPIC => Resource::topic(name),
        RESOURCE_GROUP => Resource::group(name),
        _ => Resource::CLUSTER,
    }
}

fn check_rights(call: &Call, resource: &DescribeConfigsResource) -> Result<(), ApiError> {
    let owner = owner(resource.resource_type, &resource.resource_name);
    Ok(call.check(Operation::DescribeConfigs, owner)?)
}

fn too_many_configs() -> ApiError {
    let message = format!(
        "an answer has room for {CONFIG_COUNT_MAX} configs: describe fewer resources at once, or name \
         the configs you want"
    );
    ApiError::new(ErrorCode::PolicyViolation, message)
}

fn unknown_resource() -> ApiError {
    let message =
        "configs are of topics (2), brokers (4), loggers (8), client metrics (16) or groups (32)";
    ApiError::new(ErrorCode::InvalidRequest, message)
}

fn describe_topic(metadata: &Metadata, name: &Str) -> Result<Vec<DescribedConfig>, ApiError> {
    if !topics::is_legal_name(name) {
        return Err(ErrorCode::InvalidTopicException.into());
    }
    let topic = TopicKey::Name(name.clone()).find(metadata)?;
    let describe = |config: &'static TopicConfig| described(metadata, topic, config);
    let mut configs: Vec<DescribedConfig> = topic_config::ALL.iter().map(describe).collect();
    configs.extend(mirror_source(metadata, topic.id));
    Ok(configs)
}

/// Where a mirror comes from; who mirrors by pattern leaves mirrors out by this.
fn mirror_source(metadata: &Metadata, topic: TopicId) -> Option<DescribedConfig> {
    let source = crate::linked_topics::source_of(metadata, topic)?;
    let doc = "The link and the topic at the source that this is a mirror of.";
    Some(read_only(topic_config::MIRROR_SOURCE, config_type(Kind::Text), source, doc))
}

fn described(metadata: &Metadata, topic: &Topic, config: &'static TopicConfig) -> DescribedConfig {
    let set = metadata.config(&ConfigResource::Topic(topic.id), config.name);
    let own = |value: &str| DescribedConfigSynonym {
        name: config.name.into(),
        value: Some(value.into()),
        source: SOURCE_TOPIC,
    };
    let mut synonyms: Vec<_> = set.map(own).into_iter().collect();
    let (default, source) = if topic.internal {
        (config.default, SOURCE_DEFAULT)
    } else {
        synonyms.extend(defaults::synonyms(metadata, config));
        defaults::value(metadata, config)
    };
    DescribedConfig {
        name: config.name.into(),
        value: Some(set.unwrap_or(default).into()),
        is_default: set.is_none(),
        config_source: if set.is_some() { SOURCE_TOPIC } else { source },
        synonyms,
        config_type: config_type(config.kind),
        documentation: Some(config.doc.into()),
        ..Default::default()
    }
}

/// A config that is in a node's file, if it is not what every node has.
fn read_only(name: &str, config_type: i8, value: impl Into<Str>, doc: &str) -> DescribedConfig {
    DescribedConfig {
        name: name.into(),
        value: Some(value.into()),
        read_only: true,
        config_source: SOURCE_NODE_FILE,
        config_type,
        documentation: Some(doc.into()),
        ..Default::default()
    }
}

/// The protocol's number for what a value is.
const fn config_type(kind: Kind) -> i8 {
    match kind {
        Kind::Bool => 1,
        Kind::OneOf(_) | Kind::Text => 2,
        Kind::Int { .. } => 3,
        Kind::Long { .. } => 5,
        Kind::Ratio => 6,
        Kind::ListOf(_) => 7,
    }
}

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod tests;
