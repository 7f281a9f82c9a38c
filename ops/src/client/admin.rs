//! Managing topics, asking for offsets.

use std::collections::BTreeMap;

use meridian_protocol::messages::{
    CreatableTopic, CreatableTopicConfig, CreatePartitionsRequest, CreatePartitionsTopic,
    CreateTopicsRequest, DeleteTopicState, DeleteTopicsRequest, DescribeConfigsRequest,
    DescribeConfigsResource, DescribedConfig, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource, IncrementalAlterableConfig, ListOffsetsPartition,
    ListOffsetsRequest, ListOffsetsTopic,
};
use meridian_protocol::{ApiKey, ErrorCode, Str};

use super::clock::Backoff;
use super::{Client, ClientError, Lane, REQUEST_TIMEOUT};

/// The kind of resource that a topic is, for its configuration.
const RESOURCE_TOPIC: i8 = 2;
const OPERATION_SET: i8 = 0;
const OPERATION_DELETE: i8 = 1;

/// Creates a topic, and waits until its partitions have leaders.
pub(crate) async fn create_topic(
    client: &Client,
    topic: &str,
    partitions: Option<u32>,
    configs: &[(String, String)],
) -> Result<(), ClientError> {
    let config = |(name, value): &(String, String)| CreatableTopicConfig {
        name: name.as_str().into(),
        value: Some(value.as_str().into()),
    };
    let created = CreatableTopic {
        name: topic.into(),
        num_partitions: partitions.map_or(-1, |count| i32::try_from(count).unwrap_or(i32::MAX)),
        replication_factor: -1,
        configs: configs.iter().map(config).collect(),
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![created], ..Default::default() };
    let response = client.command(&request).await?;
    for result in &response.topics {
        let what = || format!("topic {topic} cannot be created");
        ClientError::check(what, result.error_code, result.error_message.as_deref())?;
    }
    wait_for_leaders(client, topic).await
}

async fn wait_for_leaders(client: &Client, topic: &str) -> Result<(), ClientError> {
    let mut backoff = Backoff::until(REQUEST_TIMEOUT);
    loop {
        let view = client.refresh(Some(&[topic])).await?;
        let leaderless = match view.topic(topic) {
            Ok(found) => found.partitions.iter().position(|partition| partition.leader.is_none()),
            Err(_) => Some(0),
        };
        match leaderless {
            None => return Ok(()),
            Some(partition) if !backoff.pause().await => {
                let partition = i32::try_from(partition).unwrap_or(i32::MAX);
                return Err(ClientError::NoLeader { topic: topic.to_owned(), partition });
            }
            Some(_) => {}
        }
    }
}

/// Creates a topic unless it is there.
pub(crate) async fn ensure_topic(
    client: &Client,
    topic: &str,
    partitions: Option<u32>,
) -> Result<(), ClientError> {
    let mut backoff = Backoff::until(REQUEST_TIMEOUT);
    loop {
        if client.refresh(Some(&[topic])).await?.topic(topic).is_ok() {
            return wait_for_leaders(client, topic).await;
        }
        let Err(error) = create_topic(client, topic, partitions, &[]).await else { return Ok(()) };
        // It may have been created nonetheless, or by somebody else just now.
        let exists =
            matches!(error, ClientError::Server { code: ErrorCode::TopicAlreadyExists, .. });
        if !(exists || error.is_retriable()) || !backoff.pause().await {
            return Err(error);
        }
    }
}

/// Deletes a topic.
pub(crate) async fn delete_topic(client: &Client, topic: &str) -> Result<(), ClientError> {
    let name: Str = topic.into();
    let request = DeleteTopicsRequest {
        topics: vec![DeleteTopicState { name: Some(name.clone()), ..Default::default() }],
        topic_names: vec![name],
        timeout_ms: timeout_ms(),
    };
    for result in &client.command(&request).await?.responses {
        let what = || format!("topic {topic} cannot be deleted");
        ClientError::check(what, result.error_code, result.error_message.as_deref())?;
    }
    Ok(())
}

/// Gives a topic more partitions.
pub(crate) async fn add_partitions(
    client: &Client,
    topic: &str,
    count: u32,
) -> Result<(), ClientError> {
    let grown = CreatePartitionsTopic {
        name: topic.into(),
        count: i32::try_from(count).unwrap_or(i32::MAX),
        assignments: None,
    };
    let request = CreatePartitionsRequest {
        topics: vec![grown],
        timeout_ms: timeout_ms(),
        validate_only: false,
    };
    for result in &client.command(&request).await?.results {
        let what = || format!("topic {topic} cannot have {count} partitions");
        ClientError::check(what, result.error_code, result.error_message.as_deref())?;
    }
    wait_for_leaders(client, topic).await
}

/// Sets some configs of a topic (`None`: back to the default).
pub(crate) async fn alter_configs(
    client: &Client,
    topic: &str,
    changes: &[(String, Option<String>)],
) -> Result<(), ClientError> {
    let change = |(name, value): &(String, Option<String>)| IncrementalAlterableConfig {
        name: name.as_str().into(),
        config_operation: if value.is_some() { OPERATION_SET } else { OPERATION_DELETE },
        value: value.as_deref().map(Str::from),
    };
    let resource = IncrementalAlterConfigsResource {
        resource_type: RESOURCE_TOPIC,
        resource_name: topic.into(),
        configs: changes.iter().map(change).collect(),
    };
    let request =
        IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    for result in &client.command(&request).await?.responses {
        if result.error_code == ErrorCode::UnknownTopicOrPartition {
            return Err(ClientError::UnknownTopic { topic: topic.to_owned() });
        }
        let what = || format!("configs of topic {topic} cannot be changed");
        ClientError::check(what, result.error_code, result.error_message.as_deref())?;
    }
    Ok(())
}

/// All configs of a topic.
pub(crate) async fn describe_configs(
    client: &Client,
    topic: &str,
) -> Result<Vec<DescribedConfig>, ClientError> {
    let resource = DescribeConfigsResource {
        resource_type: RESOURCE_TOPIC,
        resource_name: topic.into(),
        configuration_keys: None,
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let mut configs = Vec::new();
    for result in client.query(&request).await?.results {
        let what = || format!("configs of topic {topic}");
        ClientError::check(what, result.error_code, result.error_message.as_deref())?;
        configs.extend(result.configs);
    }
    Ok(configs)
}

/// The offset of each of these partitions at a time, or at one of the protocol's named points.
pub(crate) async fn offsets(
    client: &Client,
    topic: &str,
    partitions: &[i32],
    timestamp: i64,
) -> Result<BTreeMap<i32, i64>, ClientError> {
    let mut backoff = Backoff::until(REQUEST_TIMEOUT);
    let mut offsets = BTreeMap::new();
    loop {
        let missing: Vec<i32> =
            partitions.iter().copied().filter(|index| !offsets.contains_key(index)).collect();
        match offsets_once(client, topic, &missing, timestamp, &mut offsets).await {
            Err(error) if error.is_retriable() && backoff.pause().await => {
                client.leader_moved(topic).await;
            }
            Err(error) => return Err(error),
            Ok(()) => return Ok(offsets),
        }
    }
}

async fn offsets_once(
    client: &Client,
    topic: &str,
    partitions: &[i32],
    timestamp: i64,
    offsets: &mut BTreeMap<i32, i64>,
) -> Result<(), ClientError> {
    let mut by_leader: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for &partition in partitions {
        by_leader.entry(client.leader(topic, partition).await?).or_default().push(partition);
    }
    for (leader, partitions) in by_leader {
        let ask = |&partition_index: &i32| ListOffsetsPartition {
            partition_index,
            timestamp,
            ..Default::default()
        };
        let topics = vec![ListOffsetsTopic {
            name: topic.into(),
            partitions: partitions.iter().map(ask).collect(),
        }];
        let request = ListOffsetsRequest { topics, ..Default::default() };
        let connection = client.node(leader, Lane::CONTROL).await?;
        let response = connection.call(&request, REQUEST_TIMEOUT).await?;
        for found in response.topics.iter().flat_map(|topic| &topic.partitions) {
            let what = || format!("offsets of {topic}-{}", found.partition_index);
            ClientError::check(what, found.error_code, None)?;
            offsets.insert(found.partition_index, found.offset);
        }
        if let Some(partition) = partitions.iter().find(|index| !offsets.contains_key(index)) {
            return Err(ClientError::Incomplete {
                address: connection.address().to_owned(),
                api: ApiKey::ListOffsets,
                what: format!("{topic}-{partition}"),
            });
        }
    }
    Ok(())
}

fn timeout_ms() -> i32 {
    i32::try_from(REQUEST_TIMEOUT.as_millis()).unwrap_or(i32::MAX)
}
