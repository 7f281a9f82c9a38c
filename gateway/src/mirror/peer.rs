//! What the two clusters of a link ask of each other: operators' methods, and offsets.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::position::{LeaderEpoch, Offset};
pub(super) use meridian_mirror::rejoin::End;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic, MeridianAdminRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::{Client, ClientError, Lane};
use crate::node::Node;

/// Time for one answer. Clients wait meanwhile: better ask another broker soon.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// What a consumer calls itself where a replica would say its id.
const CONSUMER: i32 = -1;

/// Why the other side did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PeerError {
    /// It may do it later.
    #[error("{0}")]
    Later(String),
    /// It never will.
    #[error("{0}")]
    Never(String),
}

impl From<ClientError> for PeerError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Unsupported { .. } => Self::Never(format!(
                "{error}; a source that is no meridian cluster can't be switched over: stop its \
                 producers, wait until nothing is missing, then promote"
            )),
            ClientError::Server { code: ErrorCode::UnknownServerError, message, .. } => {
                Self::Never(message.unwrap_or_else(|| "refused without a reason".to_owned()))
            }
            error if error.is_retriable() => Self::Later(error.to_string()),
            error => Self::Never(error.to_string()),
        }
    }
}

/// Calls a method of the other cluster. All of them can be repeated.
pub(super) async fn call<R: DeserializeOwned>(
    client: &Client,
    method: &str,
    arguments: &impl Serialize,
) -> Result<R, PeerError> {
    let body =
        serde_json::to_vec(arguments).map_err(|error| PeerError::Never(error.to_string()))?;
    let request = MeridianAdminRequest { method: method.into(), body: Bytes::from(body) };
    let response = client.query(&request).await?;
    let what = || method.to_owned();
    ClientError::check(what, response.error_code, response.error_message.as_deref())?;
    serde_json::from_slice(&response.body)
        .map_err(|error| PeerError::Never(format!("{method} of another version: {error}")))
}

/// Where Kafka clients find this cluster.
pub(super) fn own_bootstrap(node: &Node) -> String {
    let metadata = node.meta.metadata();
    let addresses = metadata.nodes().map(|(_, it)| it.registration.kafka.to_string());
    addresses.collect::<Vec<_>>().join(",")
}

/// Where the partitions of a topic end, in index order: of what is committed, or of what is decided
/// too.
pub(super) async fn ends(
    client: &Client,
    topic: &str,
    is_read_committed: bool,
) -> Result<Vec<End>, PeerError> {
    let found = client.topic(topic).await?;
    let mut by_leader: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (index, partition) in (0..).zip(&found.partitions) {
        let none = || ClientError::NoLeader { topic: topic.to_owned(), partition: index };
        by_leader.entry(partition.leader.ok_or_else(none)?).or_default().push(index);
    }
    let mut ends = BTreeMap::new();
    for (leader, indexes) in by_leader {
        let latest = |partition_index: &i32| ListOffsetsPartition {
            partition_index: *partition_index,
            timestamp: ListOffsetsPartition::TIMESTAMP_LATEST,
            ..Default::default()
        };
        let partitions = indexes.iter().map(latest).collect();
        let request = ListOffsetsRequest {
            replica_id: CONSUMER,
            isolation_level: i8::from(is_read_committed),
            topics: vec![ListOffsetsTopic { name: topic.into(), partitions }],
            ..Default::default()
        };
        let connection = client.node(leader, Lane::CONTROL).await?;
        let response = connection.call(&request, ANSWER_WITHIN).await?;
        for found in response.topics.iter().flat_map(|topic| &topic.partitions) {
            let what = || format!("the end of {topic}-{}", found.partition_index);
            ClientError::check(what, found.error_code, None)?;
            let leader_epoch = LeaderEpoch::new(found.leader_epoch);
            let end = End { leader_epoch, offset: Offset::new(found.offset) };
            ends.insert(found.partition_index, end);
        }
    }
    if ends.len() != found.partitions.len() {
        return Err(PeerError::Later(format!("not all ends of {topic} were told")));
    }
    Ok(ends.into_values().collect())
}
