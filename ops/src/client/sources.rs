//! What partitions know of persistent source ids: asked of each partition's leader.

use std::collections::BTreeMap;

use meridian_admin_api::methods::SourceList;
use meridian_admin_api::topic::{ListSources, Source};

use super::{Client, api};
use crate::failure::Failure;

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
        let request = ListSources {
            topic: topic.to_owned(),
            partition: u32::try_from(partition).unwrap_or(u32::MAX),
            producer_id: producer_id.map(str::to_owned),
            after: sources.last().map(|last| last.producer_id.clone()),
            limit: None,
        };
        let page = api::call_leader::<SourceList>(client, topic, partition, &request).await?;
        sources.extend(page.sources);
        if !page.more {
            return Ok(sources);
        }
    }
}
