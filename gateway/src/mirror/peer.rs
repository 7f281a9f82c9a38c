//! What the two clusters of a link ask of each other: operators' methods, and offsets.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use meridian_admin_api::Method;
use meridian_base::position::{LeaderEpoch, Offset};
pub(super) use meridian_mirror::rejoin::End;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic, MeridianAdminRequest,
};

use super::survey;
use crate::client::{Client, ClientError, Lane};
use crate::context::NodeContext;

/// Time for one answer. Clients wait meanwhile: better ask another broker soon.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// What a consumer calls itself where a replica would say its id.
const CONSUMER: i32 = -1;

const NO_MERIDIAN: &str = "the source is no meridian cluster and can't be switched over: stop its producers, wait \
     until nothing is missing, then promote";

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
            ClientError::Server { code: ErrorCode::UnknownServerError, message, .. } => {
                Self::Never(message.unwrap_or_else(|| "refused without a reason".to_owned()))
            }
            error if error.is_retriable() => Self::Later(error.to_string()),
            error => Self::Never(error.to_string()),
        }
    }
}

/// Calls a method of the other cluster about one of its topics. All of them can be repeated. Apache Kafka is
/// not asked: it would close the connection, which says nothing.
pub(super) async fn call<M: Method>(
    client: &Client,
    topic: &str,
    arguments: &M::Request,
) -> Result<M::Answer, PeerError> {
    if !survey::is_meridian(client, topic).await? {
        return Err(PeerError::Never(NO_MERIDIAN.to_owned()));
    }
    let body =
        serde_json::to_vec(arguments).map_err(|error| PeerError::Never(error.to_string()))?;
    let request = MeridianAdminRequest { method: M::NAME.into(), body: Bytes::from(body) };
    let response = client.query(&request).await?;
    let what = || M::NAME.to_owned();
    ClientError::check(what, response.error_code, response.error_message.as_deref())?;
    serde_json::from_slice(&response.body)
        .map_err(|error| PeerError::Never(format!("{} of another version: {error}", M::NAME)))
}

/// Where Kafka clients find this cluster.
pub(super) fn own_bootstrap(node: &NodeContext) -> String {
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
    bounds(client, topic, ListOffsetsPartition::TIMESTAMP_LATEST, is_read_committed).await
}

/// Where the partitions of a topic begin, in index order.
pub(super) async fn starts(client: &Client, topic: &str) -> Result<Vec<Offset>, PeerError> {
    let starts = bounds(client, topic, ListOffsetsPartition::TIMESTAMP_EARLIEST, false).await?;
    Ok(starts.into_iter().map(|start| start.offset).collect())
}

async fn bounds(
    client: &Client,
    topic: &str,
    timestamp: i64,
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
        let bound = |partition_index: &i32| ListOffsetsPartition {
            partition_index: *partition_index,
            timestamp,
            ..Default::default()
        };
        let partitions = indexes.iter().map(bound).collect();
        let request = ListOffsetsRequest {
            replica_id: CONSUMER,
            isolation_level: i8::from(is_read_committed),
            topics: vec![ListOffsetsTopic { name: topic.into(), partitions }],
            ..Default::default()
        };
        let connection = client.node(leader, Lane::CONTROL).await?;
        let response = connection.call(&request, ANSWER_WITHIN).await?;
        for found in response.topics.iter().flat_map(|topic| &topic.partitions) {
            let what = || format!("an offset of {topic}-{}", found.partition_index);
            ClientError::check(what, found.error_code, None)?;
            let leader_epoch = LeaderEpoch::new(found.leader_epoch);
            let end = End { leader_epoch, offset: Offset::new(found.offset) };
            ends.insert(found.partition_index, end);
        }
    }
    if ends.len() != found.partitions.len() {
        return Err(PeerError::Later(format!("not all offsets of {topic} were told")));
    }
    Ok(ends.into_values().collect())
}

#[cfg(test)]
mod tests {
    use meridian_admin_api::OfTopic;
    use meridian_admin_api::methods::MirrorStanding;
    use meridian_protocol::messages::{
        ApiVersion, ApiVersionsResponse, DescribeConfigsResponse, DescribeConfigsResult,
        DescribedConfig, MetadataBroker, MetadataResponse,
    };
    use meridian_protocol::{ApiKey, Request, Response, frame};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// What a source that is no meridian answers, and `None` to what it has never heard of.
    fn answer(request: &Request, port: i32) -> Option<Response> {
        match request {
            Request::ApiVersions(_) => {
                let known = [ApiKey::ApiVersions, ApiKey::Metadata, ApiKey::DescribeConfigs];
                let api_keys = ApiVersion::advertise(&known);
                Some(ApiVersionsResponse { api_keys, ..Default::default() }.into())
            }
            Request::Metadata(_) => {
                let broker =
                    MetadataBroker { host: "127.0.0.1".into(), port, ..Default::default() };
                Some(MetadataResponse { brokers: vec![broker], ..Default::default() }.into())
            }
            Request::DescribeConfigs(request) => {
                let policy =
                    DescribedConfig { name: "cleanup.policy".into(), ..Default::default() };
                let result = |topic: &str| DescribeConfigsResult {
                    resource_name: topic.into(),
                    configs: vec![policy.clone()],
                    ..Default::default()
                };
                let results = request.resources.iter().map(|it| result(&it.resource_name));
                let results = results.collect();
                Some(DescribeConfigsResponse { results, ..Default::default() }.into())
            }
            _ => None,
        }
    }

    /// Serves one client as Kafka does: at a request that it does not know it closes the connection.
    async fn serve(mut client: TcpStream, port: i32) {
        while let Ok(size_bytes) = client.read_u32().await {
            let mut frame = vec![0; size_bytes as usize];
            client.read_exact(&mut frame).await.expect("a whole request");
            let (header, request) = frame::decode_request(frame.into()).expect("a request");
            let Some(response) = answer(&request, port) else { return };
            let answer = frame::encode_response(header.version, header.correlation_id, &response);
            client.write_all(&answer.expect("fits").into_bytes()).await.expect("is read");
        }
    }

    #[tokio::test]
    async fn a_source_that_is_no_meridian_is_not_asked_what_it_does_not_know() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, i32::from(address.port())));
            }
        });
        let client = Client::connect(&address.to_string()).await.expect("it serves");
        let ask = OfTopic { topic: "t".to_owned() };
        let called = call::<MirrorStanding>(&client, "t", &ask).await;
        assert_eq!(called, Err(PeerError::Never(NO_MERIDIAN.to_owned())));
    }
}
