//! Configs of single groups. Those of consumer groups of KIP-848: how often members send heartbeats, and how long
//! they may be silent; a group that has none of its own follows the nodes' files. Those of share groups: [`share`].

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_consensus::command::ConfigResource;
use meridian_consensus::state::Metadata;
use meridian_protocol::messages::DescribedConfig;
use meridian_protocol::{ErrorCode, Str};

use super::{SOURCE_DEFAULT, config_type, share};
use crate::config::GroupConfig;
use crate::kafka::error::ApiError;
use crate::topic_config::{Kind, TopicConfig, config};

/// Set for the group.
pub(super) const SOURCE_GROUP: i8 = 8;
/// Longest name of a group that has configs: they are kept by every node.
const NAME_SIZE_BYTES_MAX: usize = 1024;
/// Groups that have configs.
const GROUP_COUNT_MAX: usize = 10_000;
const HEARTBEAT_INTERVAL_MS: &str = "consumer.heartbeat.interval.ms";
const SESSION_TIMEOUT_MS: &str = "consumer.session.timeout.ms";
/// Longest of both.
const MS: Kind = Kind::Int { min: 1, max: 1_800_000 };

/// What a consumer group can have. Defaults are in the nodes' files.
const ALL: &[TopicConfig] = &[
    config(
        HEARTBEAT_INTERVAL_MS,
        MS,
        "",
        "How often members send heartbeats; by default group.consumer.heartbeat.interval.ms.",
    ),
    config(
        SESSION_TIMEOUT_MS,
        MS,
        "",
        "How long members may be silent; by default group.consumer.session.timeout.ms.",
    ),
];

/// The config of this name.
pub(super) fn find(name: &str) -> Option<&'static TopicConfig> {
    all().find(|config| config.name == name)
}

/// What groups of any kind can have, by name.
fn all() -> impl Iterator<Item = &'static TopicConfig> {
    ALL.iter().chain(share::ALL)
}

/// What holds for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kafka) struct Timeouts {
    pub(in crate::kafka) heartbeat_interval: Duration,
    pub(in crate::kafka) session_timeout: Duration,
}

impl Timeouts {
    pub(in crate::kafka) fn of(metadata: &Metadata, config: &GroupConfig, group: &str) -> Self {
        let resource = ConfigResource::Group(group.to_owned());
        Self::from(config, |name| metadata.config(&resource, name))
    }

    fn from<'v>(config: &GroupConfig, set: impl Fn(&str) -> Option<&'v str>) -> Self {
        let ms = |name: &str, default: Duration| {
            let set = set(name).and_then(|value| value.parse().ok());
            set.map_or(default, Duration::from_millis)
        };
        Self {
            heartbeat_interval: ms(HEARTBEAT_INTERVAL_MS, config.consumer_heartbeat_interval),
            session_timeout: ms(SESSION_TIMEOUT_MS, config.consumer_session_timeout),
        }
    }
}

/// The configs of a group, whether or not there is one of this name.
pub(super) fn describe(
    metadata: &Metadata,
    config: &GroupConfig,
    group: &Str,
) -> Result<Vec<DescribedConfig>, ApiError> {
    check_name(group)?;
    let resource = ConfigResource::Group(group.to_string());
    let Timeouts { heartbeat_interval, session_timeout } = Timeouts::of(metadata, config, group);
    let described = |config: &TopicConfig| {
        let set = metadata.config(&resource, config.name);
        let value = match config.name {
            HEARTBEAT_INTERVAL_MS => heartbeat_interval.as_millis().to_string(),
            SESSION_TIMEOUT_MS => session_timeout.as_millis().to_string(),
            _ => set.unwrap_or(config.default).to_owned(),
        };
        let is_set = set.is_some();
        DescribedConfig {
            name: config.name.into(),
            value: Some(value.into()),
            is_default: !is_set,
            config_source: if is_set { SOURCE_GROUP } else { SOURCE_DEFAULT },
            config_type: config_type(config.kind),
            documentation: Some(config.doc.into()),
            ..Default::default()
        }
    };
    Ok(all().map(described).collect())
}

/// The resource to alter, if there is room for it.
pub(super) fn resource(metadata: &Metadata, group: &Str) -> Result<ConfigResource, ApiError> {
    check_name(group)?;
    let resource = ConfigResource::Group(group.to_string());
    let is_new = metadata.configs(&resource).next().is_none();
    if is_new && metadata.configured_groups().count() >= GROUP_COUNT_MAX {
        let message = format!("{GROUP_COUNT_MAX} groups have configs: delete some first");
        return Err(ApiError::new(ErrorCode::PolicyViolation, message));
    }
    Ok(resource)
}

/// Whether what a group would have then goes together.
pub(super) fn check(
    metadata: &Metadata,
    config: &GroupConfig,
    resource: &ConfigResource,
    changes: &BTreeMap<String, Option<String>>,
) -> Result<(), ApiError> {
    let set = |name: &str| match changes.get(name) {
        Some(change) => change.as_deref(),
        None => metadata.config(resource, name),
    };
    share::check(set).map_err(|message| ApiError::new(ErrorCode::InvalidConfig, message))?;
    let timeouts = Timeouts::from(config, set);
    if timeouts.heartbeat_interval < timeouts.session_timeout {
        return Ok(());
    }
    let message = format!("{HEARTBEAT_INTERVAL_MS} must be less than {SESSION_TIMEOUT_MS}");
    Err(ApiError::new(ErrorCode::InvalidConfig, message))
}

fn check_name(group: &Str) -> Result<(), ApiError> {
    if (1..=NAME_SIZE_BYTES_MAX).contains(&group.len()) {
        return Ok(());
    }
    let message = format!("the name of a group with configs has 1 to {NAME_SIZE_BYTES_MAX} bytes");
    Err(ApiError::new(ErrorCode::InvalidRequest, message))
}
