//! Topics, and their configurations as registers.

use std::net::SocketAddr;

use meridian_protocol::messages::{
    CreatableTopic, CreateTopicsRequest, DescribeConfigsRequest, DescribeConfigsResource,
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResource, IncrementalAlterableConfig,
};
use meridian_protocol::{ErrorCode, Str};

use super::cluster::CALL_TIMEOUT;
use super::{CallError, Client};
use crate::history::Value;

/// A topic's configuration, among resources.
const TOPIC: i8 = 2;
const SET: i8 = 0;
/// A configuration that takes any large number, and does nothing here.
const REGISTER: &str = "retention.bytes";

/// Creates a topic; that it exists is as good.
pub(crate) fn create_topic(
    client: &mut Client,
    name: &str,
    partition_count: i64,
) -> Result<(), CallError> {
    let topic = CreatableTopic {
        name: name.into(),
        num_partitions: i32::try_from(partition_count).unwrap_or(1),
        replication_factor: -1,
        ..CreatableTopic::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
    let response = client.call_any(&request)?;
    let code = response.topics.first().map_or(ErrorCode::InvalidRequest, |it| it.error_code);
    match code {
        ErrorCode::TopicAlreadyExists => Ok(()),
        code => CallError::check("create a topic", code),
    }
}

/// Sets the register of a topic, through a node.
pub(crate) fn write(
    client: &mut Client,
    node: SocketAddr,
    topic: &str,
    value: Value,
) -> Result<(), CallError> {
    let config = IncrementalAlterableConfig {
        name: REGISTER.into(),
        config_operation: SET,
        value: Some(value.to_string().into()),
    };
    let resource = IncrementalAlterConfigsResource {
        resource_type: TOPIC,
        resource_name: topic.into(),
        configs: vec![config],
    };
    let request =
        IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let response = client.call_at(node, &request, CALL_TIMEOUT)?;
    let code = response.responses.first().map_or(ErrorCode::InvalidRequest, |it| it.error_code);
    CallError::check("alter a configuration", code)
}

/// Reads the register of a topic, through a node; `None` while it was never set.
pub(crate) fn read(
    client: &mut Client,
    node: SocketAddr,
    topic: &str,
) -> Result<Option<Value>, CallError> {
    let resource = DescribeConfigsResource {
        resource_type: TOPIC,
        resource_name: topic.into(),
        configuration_keys: Some(vec![Str::from(REGISTER)]),
    };
    let request =
        DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() };
    let response = client.call_at(node, &request, CALL_TIMEOUT)?;
    let missing = CallError::Server { what: "describe", code: ErrorCode::InvalidRequest };
    let result = response.results.into_iter().next().ok_or(missing)?;
    CallError::check("describe a configuration", result.error_code)?;
    let config = result.configs.into_iter().find(|config| &*config.name == REGISTER);
    let value = config.filter(|it| it.config_source == DYNAMIC_TOPIC);
    Ok(value.and_then(|it| it.value).and_then(|text| text.parse().ok()))
}

/// Where a configuration comes from that was set on the topic itself.
const DYNAMIC_TOPIC: i8 = 1;
