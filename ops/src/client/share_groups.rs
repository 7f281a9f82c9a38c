//! Share groups: their members, and where they are.

use meridian_protocol::messages::{
    AlterShareGroupOffsetsPartition, AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsTopic, DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsTopic, DescribeShareGroupOffsetsGroup, DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse, DescribedShareGroup, ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
};
use meridian_protocol::{ErrorCode, Str};

use super::groups::ask;
use super::{Client, ClientError};

/// Where a group is in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    /// The first offset that is not decided; `None` until the group has begun with the partition.
    pub(crate) start: Option<i64>,
    /// Records that are not decided, if the partition's leader can be reached.
    pub(crate) lag: Option<i64>,
}

/// A group and its members.
pub(crate) async fn describe(
    client: &Client,
    group: &str,
) -> Result<DescribedShareGroup, ClientError> {
    let request = ShareGroupDescribeRequest { group_ids: vec![group.into()], ..Default::default() };
    let code = |it: &ShareGroupDescribeResponse| {
        it.groups.first().map_or(ErrorCode::UnknownServerError, |group| group.error_code)
    };
    let response = ask(client, group, &request, code).await?;
    let found = response.groups.into_iter().next().unwrap_or_default();
    let message = found.error_message.as_deref();
    ClientError::check(|| format!("share group {group}"), found.error_code, message)?;
    Ok(found)
}

/// Where a group is in all partitions that it shares.
pub(crate) async fn shares(client: &Client, group: &str) -> Result<Vec<Share>, ClientError> {
    let wanted = DescribeShareGroupOffsetsGroup { group_id: group.into(), topics: None };
    let request = DescribeShareGroupOffsetsRequest { groups: vec![wanted] };
    let code = |it: &DescribeShareGroupOffsetsResponse| {
        it.groups.first().map_or(ErrorCode::UnknownServerError, |group| group.error_code)
    };
    let response = ask(client, group, &request, code).await?;
    let found = response.groups.into_iter().next().unwrap_or_default();
    let message = found.error_message.as_deref();
    ClientError::check(|| format!("offsets of share group {group}"), found.error_code, message)?;
    let known = |offset: i64| Some(offset).filter(|offset| *offset >= 0);
    let mut shares: Vec<Share> = Vec::new();
    for topic in found.topics {
        shares.extend(topic.partitions.iter().map(|it| Share {
            topic: topic.topic_name.to_string(),
            partition: it.partition_index,
            start: known(it.start_offset),
            lag: known(it.lag),
        }));
    }
    Ok(shares)
}

/// Sets where a group without members goes on with partitions of a topic: index and offset.
pub(crate) async fn seek(
    client: &Client,
    group: &str,
    topic: &str,
    starts: &[(i32, i64)],
) -> Result<(), ClientError> {
    let partition =
        |(partition_index, start_offset): &(i32, i64)| AlterShareGroupOffsetsPartition {
            partition_index: *partition_index,
            start_offset: *start_offset,
        };
    let partitions = starts.iter().map(partition).collect();
    let topic = AlterShareGroupOffsetsTopic { topic_name: topic.into(), partitions };
    let request = AlterShareGroupOffsetsRequest { group_id: group.into(), topics: vec![topic] };
    let code = |it: &AlterShareGroupOffsetsResponse| {
        let partitions = it.responses.iter().flat_map(|topic| &topic.partitions);
        first_error(it.error_code, partitions.map(|it| it.error_code))
    };
    let response = ask(client, group, &request, code).await?;
    let message = response.error_message.as_deref();
    ClientError::check(|| format!("offsets of share group {group}"), code(&response), message)
}

/// Has a group without members forget topics.
pub(crate) async fn forget(
    client: &Client,
    group: &str,
    topics: &[String],
) -> Result<(), ClientError> {
    let topic = |name: &String| DeleteShareGroupOffsetsTopic { topic_name: Str::from(&**name) };
    let request = DeleteShareGroupOffsetsRequest {
        group_id: group.into(),
        topics: topics.iter().map(topic).collect(),
    };
    let code = |it: &DeleteShareGroupOffsetsResponse| {
        first_error(it.error_code, it.responses.iter().map(|it| it.error_code))
    };
    let response = ask(client, group, &request, code).await?;
    let message = response.error_message.as_deref();
    ClientError::check(|| format!("offsets of share group {group}"), code(&response), message)
}

fn first_error(of_all: ErrorCode, of_each: impl Iterator<Item = ErrorCode>) -> ErrorCode {
    std::iter::once(of_all).chain(of_each).find(|code| !code.is_none()).unwrap_or_default()
}
