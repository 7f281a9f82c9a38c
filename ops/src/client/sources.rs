//! What partitions know of persistent source ids: asked of each partition's leader.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use meridian_protocol::messages::MeridianAdminRequest;
use serde::Deserialize;
use serde_json::json;

use super::clock::Backoff;
use super::{Client, ClientError, Lane, REQUEST_TIMEOUT};
use crate::failure::Failure;

/// Time to find a partition's leader, through a takeover.
const PATIENCE: Duration = Duration::from_secs(30);

/// A source in a partition.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Source {
    pub(crate) producer_id: String,
    /// Its last record that is in the log for good.
    pub(crate) last_seqno: u64,
    pub(crate) last_offset: i64,
    pub(crate) last_seen_ms: i64,
}

#[derive(Debug, Deserialize)]
struct Page {
    sources: Vec<Source>,
    more: bool,
}

/// The sources of each partition of a topic, or only the one of this name.
pub(crate) async fn list(
    client: &Client,
    topic: &str,
    producer_id: Option<&str>,
) -> Result<BTreeMap<i32, Vec<Source>>, Failure> {
    let count = client.topic(topic).await?.partitions.len();
    let mut by_partition = BTreeMap::new();
    for partition in (0..).take(count) {
        by_partition
            .insert(partition, list_partition(client, topic, partition, producer_id).await?);
    }
    Ok(by_partition)
}

async fn list_partition(
    client: &Client,
    topic: &str,
    partition: i32,
    producer_id: Option<&str>,
) -> Result<Vec<Source>, Failure> {
    let mut sources: Vec<Source> = Vec::new();
    loop {
        let after = sources.last().map(|last| last.producer_id.as_str());
        let arguments = json!({
            "topic": topic, "partition": partition, "producer_id": producer_id, "after": after,
        });
        let answer = ask_leader(client, "source.list", topic, partition, &arguments).await?;
        let page: Page = serde_json::from_slice(&answer).map_err(|error| {
            Failure::Invalid(format!("the answer to source.list is not of this version: {error}"))
        })?;
        sources.extend(page.sources);
        if !page.more {
            return Ok(sources);
        }
    }
}

/// Calls a method of the admin API at whoever leads the partition, until that one answers.
pub(crate) async fn ask_leader(
    client: &Client,
    method: &'static str,
    topic: &str,
    partition: i32,
    arguments: &serde_json::Value,
) -> Result<Bytes, ClientError> {
    let body = Bytes::from(arguments.to_string());
    let request = MeridianAdminRequest { method: method.into(), body };
    let mut backoff = Backoff::until(PATIENCE);
    loop {
        let asked = async {
            let leader = client.leader(topic, partition).await?;
            let connection = client.node(leader, Lane::CONTROL).await?;
            let response = connection.call(&request, REQUEST_TIMEOUT).await?;
            let what = || format!("{method} of {topic}-{partition}");
            ClientError::check(what, response.error_code, response.error_message.as_deref())?;
            Ok(response.body)
        };
        match asked.await {
            Err(error) if ClientError::is_retriable(&error) && backoff.pause().await => {
                client.leader_moved(topic).await;
            }
            outcome => return outcome,
        }
    }
}
