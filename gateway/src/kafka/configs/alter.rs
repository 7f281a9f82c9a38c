//! AlterConfigs and IncrementalAlterConfigs.

use std::collections::BTreeMap;

use meridian_access::{Operation, Resource};
use meridian_consensus::command::{Command, ConfigChange, ConfigResource, FeatureLevel};
use meridian_consensus::state::limits::VALUE_SIZE_BYTES_MAX;
use meridian_consensus::state::{Metadata, Topic};
use meridian_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResourceResponse, AlterConfigsResponse, AlterableConfig,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse, IncrementalAlterableConfig,
};
use meridian_protocol::{ErrorCode, Str};

use super::{
    RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_CLIENT_METRICS, RESOURCE_GROUP,
    RESOURCE_TOPIC, defaults, groups, owner, unknown_resource,
};
use crate::config::GroupConfig;
use crate::features::agree;
use crate::kafka::access::OPEN_RESOURCES;
use crate::kafka::dispatch::Call;
use crate::kafka::error::ApiError;
use crate::kafka::lookup::{self, TopicKey};
use crate::kafka::pace::Pace;
use crate::kafka::quotas::scope::QUOTA_SCOPE;
use crate::kafka::repeated::repeated;
use crate::kafka::topics;
use crate::topic_config::{self, Kind, TopicConfig, storage_class};

pub(super) const OPERATION_SET: i8 = 0;
pub(super) const OPERATION_DELETE: i8 = 1;
pub(super) const OPERATION_APPEND: i8 = 2;
pub(super) const OPERATION_SUBTRACT: i8 = 3;

/// Replaces all configs of resources: what is not in the request goes back to its default.
pub(in crate::kafka) async fn alter(
    call: Call,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let set = |config: AlterableConfig| IncrementalAlterableConfig {
        name: config.name,
        config_operation: OPERATION_SET,
        value: config.value,
    };
    let resources = request.resources.into_iter().map(|resource| IncrementalAlterConfigsResource {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        configs: resource.configs.into_iter().map(set).collect(),
    });
    let responses = alter_all(&call, resources.collect(), true, request.validate_only).await;
    AlterConfigsResponse { responses, ..Default::default() }
}

/// Changes some configs of resources.
pub(in crate::kafka) async fn alter_some(
    call: Call,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let responses = alter_all(&call, request.resources, false, request.validate_only).await;
    IncrementalAlterConfigsResponse { responses, ..Default::default() }
}

async fn alter_all(
    call: &Call,
    resources: Vec<IncrementalAlterConfigsResource>,
    replace: bool,
    validate_only: bool,
) -> Vec<AlterConfigsResourceResponse> {
    let name = |it: &IncrementalAlterConfigsResource| (it.resource_type, it.resource_name.clone());
    let repeated = repeated(resources.iter().map(name));
    let allowed = topics::check_change_count(resources.len());
    let mut responses = Vec::with_capacity(resources.len());
    let mut pace = Pace::default();
    for resource in resources {
        pace.steps(1 + resource.configs.len()).await;
        let plan = match &allowed {
            Err(error) => Err(error.clone()),
            Ok(()) if repeated.contains(&name(&resource)) => {
                Err(invalid("each resource must appear at most once"))
            }
            Ok(()) => {
                let group_config = &call.front.config.group;
                let plan = || plan(&call.front.broker.metadata(), group_config, &resource, replace);
                check_rights(call, &resource).and_then(|()| plan())
            }
        };
        responses.push(apply(call, resource, plan, validate_only).await);
    }
    responses
}

fn check_rights(call: &Call, resource: &IncrementalAlterConfigsResource) -> Result<(), ApiError> {
    let owner = owner(resource.resource_type, &resource.resource_name);
    call.check(Operation::AlterConfigs, owner)?;
    if resource.configs.iter().any(|config| *config.name == *OPEN_RESOURCES.name) {
        // It says what everybody may do, as access rules do.
        call.check(Operation::Alter, Resource::CLUSTER)?;
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, message)
}

async fn apply(
    call: &Call,
    resource: IncrementalAlterConfigsResource,
    plan: Result<Command, ApiError>,
    validate_only: bool,
) -> AlterConfigsResourceResponse {
    let result = match plan {
        Ok(Command::SetConfigs { changes, .. }) if changes.is_empty() => Ok(()),
        Ok(command) if !validate_only => propose(call, command).await,
        plan => plan.map(drop),
    };
    let mut response = AlterConfigsResourceResponse {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        ..Default::default()
    };
    if let Err(error) = result {
        call.front.metrics.on_error(error.code);
        response.error_code = error.code;
        response.error_message = error.message();
    }
    response
}

async fn propose(call: &Call, command: Command) -> Result<(), ApiError> {
    if let Command::SetConfigs { resource: ConfigResource::Group(_), .. } = &command {
        agree(&*call.front.broker, FeatureLevel::GROUP_CONFIGS).await?;
    }
    if let Command::SetConfigs { changes, .. } = &command
        && changes.iter().any(|it| it.name == OPEN_RESOURCES.name && it.value.is_some())
    {
        agree(&*call.front.broker, FeatureLevel::OPEN_RESOURCES).await?;
    }
    if let Command::SetConfigs { changes, .. } = &command
        && changes.iter().any(|it| it.name == QUOTA_SCOPE.name && it.value.is_some())
    {
        agree(&*call.front.broker, FeatureLevel::QUOTA_SHARES).await?;
    }
    Ok(call.front.broker.propose(command).await.map(drop)?)
}

/// What is altered: its name, the configs it can have, and what is said of a bad one.
struct Target {
    resource: ConfigResource,
    find: fn(&str) -> Option<&'static TopicConfig>,
    bad_config: ErrorCode,
}

impl Target {
    /// What has configs that follow the nodes' files.
    const FIXED: Self = Self {
        resource: ConfigResource::Cluster,
        find: |_| None,
        bad_config: ErrorCode::InvalidRequest,
    };

    fn of(
        metadata: &Metadata,
        resource_type: i8,
        name: &Str,
        replace: bool,
    ) -> Result<Self, ApiError> {
        match resource_type {
            RESOURCE_TOPIC if name.is_empty() => {
                Err(invalid("what all topics have is a config of all brokers"))
            }
            RESOURCE_TOPIC if !topics::is_legal_name(name) => {
                Err(ErrorCode::InvalidTopicException.into())
            }
            RESOURCE_TOPIC => Ok(Self {
                resource: ConfigResource::Topic(TopicKey::Name(name.clone()).find(metadata)?.id),
                find: topic_config::find,
                bad_config: ErrorCode::InvalidConfig,
            }),
            RESOURCE_BROKER if name.is_empty() => Ok(Self {
                resource: ConfigResource::Cluster,
                find: defaults::find,
                bad_config: ErrorCode::InvalidRequest,
            }),
            // None could be set, so that there are none to delete: Kafka's tools clear throttles
            // that nobody has set.
            RESOURCE_BROKER | RESOURCE_BROKER_LOGGER if !replace && is_broker(metadata, name) => {
                Ok(Self::FIXED)
            }
            RESOURCE_GROUP => Ok(Self {
                resource: groups::resource(metadata, name)?,
                find: groups::find,
                bad_config: ErrorCode::InvalidConfig,
            }),
            RESOURCE_CLIENT_METRICS if !replace && !name.is_empty() => Ok(Self::FIXED),
            RESOURCE_BROKER => {
                let message = "configs of single nodes are in their configuration file; only \
                               defaults of all nodes can be altered";
                Err(invalid(message))
            }
            _ => Err(unknown_resource()),
        }
    }
}

fn is_broker(metadata: &Metadata, name: &Str) -> bool {
    lookup::brokers(metadata).any(|(id, _)| lookup::broker_id(id).to_string() == **name)
}

fn plan(
    metadata: &Metadata,
    group_config: &GroupConfig,
    altered: &IncrementalAlterConfigsResource,
    replace: bool,
) -> Result<Command, ApiError> {
    check_operations(&altered.configs)?;
    let target = Target::of(metadata, altered.resource_type, &altered.resource_name, replace)?;
    let resource = target.resource.clone();
    let mut changes = BTreeMap::new();
    if replace {
        changes.extend(metadata.configs(&resource).map(|(name, _)| (name.to_owned(), None)));
    }
    let bad = |message| ApiError::new(target.bad_config, message);
    for operation in &altered.configs {
        let Some(config) = (target.find)(&operation.name) else {
            // What cannot be set is not set: as in Kafka, whose mirrors clear configs that only it has.
            if operation.config_operation == OPERATION_DELETE {
                continue;
            }
            let name = &operation.name;
            return Err(bad(format!(
                "{name} is unknown, or set in the nodes' files when they start"
            )));
        };
        let value = resolve(metadata, &target, config, operation)?;
        if let Some(value) = &value {
            config.check(value).map_err(bad)?;
        }
        changes.insert(config.name.to_owned(), value);
    }
    check_classes(metadata, &resource, &changes).map_err(bad)?;
    topic_config::keep_compacted(metadata, &resource, &mut changes);
    if let ConfigResource::Group(_) = &resource {
        // To delete what nobody has set asks nothing of the cluster.
        let is_set = |name: &str| metadata.config(&resource, name).is_some();
        changes.retain(|name, value| value.is_some() || is_set(name));
        groups::check(metadata, group_config, &resource, &changes)?;
    }
    let changes = changes.into_iter().map(|(name, value)| ConfigChange { name, value }).collect();
    Ok(Command::SetConfigs { resource, changes })
}

/// Whether what topics would have then goes together with their storage classes: of one topic, or, when defaults
/// change, of all. If not, why.
fn check_classes(
    metadata: &Metadata,
    altered: &ConfigResource,
    changes: &BTreeMap<String, Option<String>>,
) -> Result<(), String> {
    if !storage_class::CHECKED.iter().any(|name| changes.contains_key(*name)) {
        return Ok(());
    }
    let geometries = storage_class::geometries(metadata);
    // What a resource would have then of its own.
    let own = |resource: &ConfigResource, name: &str| match changes.get(name) {
        Some(change) if resource == altered => change.clone(),
        _ => metadata.config(resource, name).map(str::to_owned),
    };
    let topics: Box<dyn Iterator<Item = &Topic>> = match altered {
        ConfigResource::Topic(id) => Box::new(metadata.topic(*id).into_iter()),
        ConfigResource::Cluster => Box::new(metadata.topics()),
        ConfigResource::Node(_) | ConfigResource::Group(_) => Box::new(std::iter::empty()),
    };
    for topic in topics.filter(|topic| !topic.internal) {
        let resource = ConfigResource::Topic(topic.id);
        let set: BTreeMap<&str, String> = storage_class::CHECKED
            .iter()
            .filter_map(|name| {
                let value = own(&resource, name).or_else(|| own(&ConfigResource::Cluster, name));
                Some((*name, value?))
            })
            .collect();
        let config = |name: &str| set.get(name).map(String::as_str);
        storage_class::check(config, &geometries)
            .map_err(|text| format!("topic {}: {text}", topic.name))?;
    }
    Ok(())
}

/// What Kafka refuses before it looks at the resource.
fn check_operations(operations: &[IncrementalAlterableConfig]) -> Result<(), ApiError> {
    let repeated = repeated(operations.iter().map(|operation| &operation.name));
    for operation in operations {
        let name = &operation.name;
        if repeated.contains(name) {
            return Err(invalid(format!("{name} is altered twice")));
        }
        if operation.config_operation != OPERATION_DELETE && operation.value.is_none() {
            return Err(invalid(format!("null value for {name}")));
        }
        if operation.value.as_ref().is_some_and(|value| value.len() > VALUE_SIZE_BYTES_MAX) {
            let message = format!("the value of {name} is over {VALUE_SIZE_BYTES_MAX} bytes");
            return Err(ApiError::new(ErrorCode::InvalidConfig, message));
        }
    }
    Ok(())
}

/// The value that an operation leads to; `None` for the default.
fn resolve(
    metadata: &Metadata,
    target: &Target,
    config: &'static TopicConfig,
    operation: &IncrementalAlterableConfig,
) -> Result<Option<String>, ApiError> {
    let value = operation.value.as_deref().unwrap_or_default();
    let is_list = matches!(config.kind, Kind::ListOf(_));
    match operation.config_operation {
        OPERATION_SET => Ok(Some(topic_config::trimmed(value))),
        OPERATION_DELETE => Ok(None),
        OPERATION_APPEND | OPERATION_SUBTRACT if is_list => {
            let set = metadata.config(&target.resource, config.name);
            let set = set.unwrap_or_else(|| defaults::value(metadata, config).0);
            let mut items: Vec<&str> = set.split(',').collect();
            items.retain(|item| value.split(',').all(|other| other != *item));
            if operation.config_operation == OPERATION_APPEND {
                items.extend(value.split(','));
            }
            Ok(Some(items.join(",")))
        }
        OPERATION_APPEND | OPERATION_SUBTRACT => {
            let message =
                format!("{} is not a list; it can only be set or deleted", operation.name);
            Err(ApiError::new(ErrorCode::InvalidConfig, message))
        }
        unknown => Err(invalid(format!("unknown config operation {unknown}"))),
    }
}
