//! Topics come and go.

use std::net::SocketAddr;

use meridian_protocol::messages::{
    CreatableTopic, CreateTopicsRequest, DeleteTopicState, DeleteTopicsRequest, MetadataRequest,
};
use meridian_protocol::{ErrorCode, Uuid};

use super::cluster::CALL_TIMEOUT;
use super::{CallError, Client};

/// Creates a topic of one partition, through a node; returns its id.
pub(crate) fn create(
    client: &mut Client,
    node: SocketAddr,
    name: &str,
) -> Result<String, CallError> {
    let topic = CreatableTopic {
        name: name.into(),
        num_partitions: 1,
        replication_factor: -1,
        ..CreatableTopic::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
    let response = client.call_at(node, &request, CALL_TIMEOUT)?;
    let missing = CallError::Server { what: "create a topic", code: ErrorCode::InvalidRequest };
    let created = response.topics.into_iter().next().ok_or(missing)?;
    CallError::check("create a topic", created.error_code)?;
    Ok(created.topic_id.to_string())
}

/// Deletes a topic, through a node.
pub(crate) fn delete(client: &mut Client, node: SocketAddr, name: &str) -> Result<(), CallError> {
    let topic = DeleteTopicState { name: Some(name.into()), topic_id: Uuid::default() };
    let timeout_ms = i32::try_from(CALL_TIMEOUT.as_millis()).unwrap_or(i32::MAX);
    let request = DeleteTopicsRequest { topics: vec![topic], topic_names: Vec::new(), timeout_ms };
    let response = client.call_at(node, &request, CALL_TIMEOUT)?;
    let code = response.responses.first().map_or(ErrorCode::InvalidRequest, |it| it.error_code);
    CallError::check("delete a topic", code)
}

/// The names of all topics that a node knows.
pub(crate) fn list(client: &mut Client, node: SocketAddr) -> Result<Vec<String>, CallError> {
    let request = MetadataRequest { topics: None, ..MetadataRequest::default() };
    let response = client.call_at(node, &request, CALL_TIMEOUT)?;
    Ok(response.topics.into_iter().filter_map(|it| Some(it.name?.to_string())).collect())
}
