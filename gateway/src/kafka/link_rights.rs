//! What a link may ask of its source: its certificate is for mirroring, and makes nobody a client or an operator.

use bytes::Bytes;
use meridian_access::{Operation, Resource};
use meridian_admin_api::Method;
use meridian_admin_api::methods::{
    AccessCredentials, MirrorDigest, MirrorFence, MirrorPositions, MirrorRelease, MirrorReverse,
    MirrorStanding,
};
use meridian_base::id::TopicId;
use meridian_consensus::state::Metadata;
use meridian_protocol::{ApiKey, Request};
use serde::Deserialize;
use serde_json::Value;

use super::access::{self, Rights};
use super::dispatch::{Call, Client};
use crate::admin_api::{AdminError, arguments, json};

/// What a mirror asks: records and their lineage, configs, quotas, access rules and committed
/// offsets, and, in a switchover, which transactions are open and that their producers are fenced.
pub(super) const APIS: &[ApiKey] = &[
    ApiKey::Fetch,
    ApiKey::ListOffsets,
    ApiKey::Metadata,
    ApiKey::OffsetFetch,
    ApiKey::FindCoordinator,
    ApiKey::ListGroups,
    ApiKey::ApiVersions,
    ApiKey::InitProducerId,
    ApiKey::OffsetForLeaderEpoch,
    ApiKey::DescribeAcls,
    ApiKey::DescribeConfigs,
    ApiKey::DescribeClientQuotas,
    ApiKey::DescribeCluster,
    ApiKey::DescribeTransactions,
    ApiKey::ListTransactions,
    ApiKey::MeridianAdmin,
];

/// Methods of the private API that a mirror calls at its source.
const METHODS: &[&str] = &[
    AccessCredentials::NAME,
    MirrorDigest::NAME,
    MirrorFence::NAME,
    MirrorPositions::NAME,
    MirrorRelease::NAME,
    MirrorReverse::NAME,
    MirrorStanding::NAME,
];

/// The arguments that say which topic a method is about.
#[derive(Deserialize)]
pub(super) struct Named {
    pub(super) topic: String,
}

/// By its id.
#[derive(Deserialize)]
pub(super) struct Identified {
    pub(super) topic: TopicId,
}

/// The arguments with which a client may call a method of the private API. Those of a link are about topics that it is
/// granted: a method about another is refused, and the positions of others are left out. Users are held to their rules.
pub(super) fn admitted(call: &Call, method: &str, body: Bytes) -> Result<Bytes, AdminError> {
    if !call.client.session.is_link() {
        return access::admitted(call, method, body);
    }
    if !METHODS.contains(&method) {
        let refused = format!("a link may not call {method}: it is for mirrors only");
        return Err(AdminError::Unsafe(refused));
    }
    let Rights::Link(rights) = &call.rights else { return Ok(body) };
    let metadata = call.front.broker.metadata();
    match method {
        MirrorPositions::NAME => return granted_positions(&call.rights, &metadata, &body),
        AccessCredentials::NAME if rights.reads_users() => {}
        AccessCredentials::NAME => return Err(no_users(call)),
        MirrorDigest::NAME => {
            let topic = metadata.topic(arguments::<Identified>(&body)?.topic);
            let name = topic.map(|topic| topic.name.as_str()).unwrap_or_default();
            check(call, Operation::Read, name)?;
        }
        MirrorStanding::NAME => {
            check(call, Operation::Describe, &arguments::<Named>(&body)?.topic)?;
        }
        // Each of the others makes the topic change hands.
        _ => check(call, Operation::Alter, &arguments::<Named>(&body)?.topic)?,
    }
    Ok(body)
}

fn no_users(call: &Call) -> AdminError {
    let link = &call.client.session.principal.name;
    AdminError::Unsafe(format!(
        "link {link} is not granted the credentials of users; operators of the source grant them with \
         `meridian link allow {link} --topics REGEX --users`"
    ))
}

fn check(call: &Call, operation: Operation, topic: &str) -> Result<(), AdminError> {
    if call.may(operation, Resource::topic(topic)) {
        return Ok(());
    }
    let link = &call.client.session.principal.name;
    let option = if operation == Operation::Alter { " --switchover" } else { "" };
    Err(AdminError::Unsafe(format!(
        "link {link} is not granted {operation} on topic {topic}; operators of the source grant it with \
         `meridian link allow {link} --topics REGEX{option}`"
    )))
}

/// The positions and leases of the partitions that a link is granted. Who may not take a topic over grants no lease
/// for it: the topic would stop at the lease's end.
pub(super) fn granted_positions(
    rights: &Rights,
    metadata: &Metadata,
    body: &[u8],
) -> Result<Bytes, AdminError> {
    let mut told: Value = arguments(body)?;
    let may = |partition: &Value, operation| {
        let id = partition["topic_id"].as_str().and_then(|id| u128::from_str_radix(id, 16).ok());
        let topic = id.and_then(|id| metadata.topic(TopicId::new(id)));
        topic.is_some_and(|topic| rights.allow(operation, Resource::topic(&topic.name)))
    };
    if let Some(positions) = told.get_mut("positions").and_then(Value::as_array_mut) {
        positions.retain(|it| may(it, Operation::Describe));
    }
    if let Some(leased) = told.pointer_mut("/lease/partitions").and_then(Value::as_array_mut) {
        leased.retain(|it| may(it, Operation::Alter));
    }
    json(&told)
}

/// Takes out of a request what a link may not have done by it.
pub(super) fn narrowed(client: &Client, mut request: Request) -> Request {
    if client.session.is_link()
        && let Request::Metadata(metadata) = &mut request
    {
        metadata.allow_auto_topic_creation = false;
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_changes_no_topic_and_is_no_operator() {
        for api in [
            ApiKey::Produce,
            ApiKey::CreateTopics,
            ApiKey::DeleteTopics,
            ApiKey::DeleteRecords,
            ApiKey::AlterConfigs,
            ApiKey::IncrementalAlterConfigs,
            ApiKey::OffsetCommit,
            ApiKey::DeleteGroups,
            ApiKey::WriteTxnMarkers,
            ApiKey::CreateAcls,
            ApiKey::DeleteAcls,
            ApiKey::DescribeUserScramCredentials,
        ] {
            assert!(!APIS.contains(&api), "{api:?}");
        }
        for method in ["node.decommission", "mirror.promote", "link.create", "disk.scrub", ""] {
            assert!(!METHODS.contains(&method), "{method}");
        }
    }
}
