//! What the methods of the private API ask of users. What they ask of links is in `link_rights`.

use bytes::Bytes;
use meridian_access::{Operation, Resource, ResourceType};
use meridian_base::id::TopicId;

use self::Asks::{Cluster, ClusterToCreate, Positions, Topic, TopicOfId};
use super::{Rights, refusal};
use crate::admin_api::{AdminError, arguments};
use crate::kafka::dispatch::Call;
use crate::kafka::link_rights::{Identified, Named, granted_positions};

/// The right that a method asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// On the cluster.
    Cluster(Operation),
    /// ALTER on the cluster, and CREATE on the topic that its argument `topic` names.
    ClusterToCreate,
    /// On the topic that its argument `topic` names.
    Topic(Operation),
    /// On the topic whose id is its argument `topic`.
    TopicOfId(Operation),
    /// On each topic that it is about: the others are left out.
    Positions,
}

const LOOK: Asks = Cluster(Operation::Describe);
const CHANGE: Asks = Cluster(Operation::Alter);

/// What each method asks for.
pub(super) const METHODS: &[(&str, Asks)] = &[
    ("access.mode", LOOK),
    ("access.mode.set", CHANGE),
    ("access.check", LOOK),
    // It asks for more: see `users::carried`.
    ("access.credentials", CHANGE),
    ("client.list", LOOK),
    ("client.kick", CHANGE),
    ("cluster.status", LOOK),
    ("node.status", LOOK),
    ("disk.status", LOOK),
    ("disk.scrub", CHANGE),
    ("lifecycle.status", LOOK),
    ("lifecycle.drain", CHANGE),
    ("lifecycle.decommission", CHANGE),
    ("lifecycle.end", CHANGE),
    ("lifecycle.replace", CHANGE),
    ("link.list", LOOK),
    ("link.traffic", LOOK),
    ("link.allowed", LOOK),
    ("link.create", CHANGE),
    ("link.alter", CHANGE),
    ("link.delete", CHANGE),
    ("link.test", CHANGE),
    ("link.reseal", CHANGE),
    ("link.allow", CHANGE),
    ("link.disallow", CHANGE),
    ("topic.storage", Topic(Operation::Describe)),
    ("source.list", Topic(Operation::Read)),
    ("mirror.list", LOOK),
    ("mirror.partitions", LOOK),
    ("mirror.stewards", LOOK),
    ("mirror.audits", LOOK),
    ("mirror.leases", LOOK),
    ("mirror.contracts", LOOK),
    ("mirror.rule.list", LOOK),
    ("mirror.rule.put", CHANGE),
    ("mirror.rule.delete", CHANGE),
    ("mirror.create", ClusterToCreate),
    ("mirror.verify", Topic(Operation::Read)),
    ("mirror.rejoin", Topic(Operation::Read)),
    ("mirror.pause", Topic(Operation::Alter)),
    ("mirror.resume", Topic(Operation::Alter)),
    ("mirror.promote", Topic(Operation::Alter)),
    ("mirror.switchover", Topic(Operation::Alter)),
    ("mirror.rollback", Topic(Operation::Alter)),
    ("mirror.recreate", Topic(Operation::Alter)),
    ("mirror.give-way", Topic(Operation::Alter)),
    ("mirror.take-back", Topic(Operation::Alter)),
    ("mirror.replace", Topic(Operation::Alter)),
    ("mirror.drop-lease", Topic(Operation::Alter)),
    // The other cluster of a link calls these. A mirror may also log in as a user.
    ("mirror.standing", Topic(Operation::Read)),
    ("mirror.source", Topic(Operation::Read)),
    ("mirror.digest", TopicOfId(Operation::Read)),
    ("mirror.positions", Positions),
    ("mirror.fence", Topic(Operation::Alter)),
    ("mirror.release", Topic(Operation::Alter)),
    ("mirror.reverse", Topic(Operation::Alter)),
];

/// The right that a method asks for. One that is not in the table is for operators.
fn asks(method: &str) -> Asks {
    let known = METHODS.iter().find(|(name, _)| *name == method);
    known.map_or(CHANGE, |(_, asks)| *asks)
}

/// Whether a client may call a method that is about the cluster.
pub(in crate::kafka) fn may_call(rights: &Rights, method: &str) -> bool {
    match asks(method) {
        Cluster(operation) => rights.allow(operation, Resource::CLUSTER),
        _ => false,
    }
}

/// The arguments with which a user may call a method of the private API.
pub(in crate::kafka) fn admitted(
    call: &Call,
    method: &str,
    body: Bytes,
) -> Result<Bytes, AdminError> {
    if matches!(call.rights, Rights::All) {
        return Ok(body);
    }
    match asks(method) {
        Cluster(operation) => check(call, operation, Resource::CLUSTER)?,
        ClusterToCreate => {
            check(call, Operation::Alter, Resource::CLUSTER)?;
            check(call, Operation::Create, Resource::topic(&arguments::<Named>(&body)?.topic))?;
        }
        Topic(operation) => {
            check(call, operation, Resource::topic(&arguments::<Named>(&body)?.topic))?;
        }
        TopicOfId(operation) => check_id(call, operation, arguments::<Identified>(&body)?.topic)?,
        Positions => {
            return granted_positions(&call.rights, &call.front.broker.metadata(), &body);
        }
    }
    Ok(body)
}

fn check(call: &Call, operation: Operation, resource: Resource<'_>) -> Result<(), AdminError> {
    if call.may(operation, resource) {
        return Ok(());
    }
    let (principal, Resource { kind, name }) = (&call.client.session.principal, resource);
    let option = match kind {
        ResourceType::Cluster => "--cluster".to_owned(),
        _ => format!("--topic {name}"),
    };
    let message = format!(
        "no access rule allows {principal} {operation} on {kind} {name}; one who may change rules allows it with \
         `meridian acl allow {principal} {operation} {option}`"
    );
    Err(AdminError::Denied { code: refusal(kind), message })
}

/// As [`check`]; a client that may not do this learns neither the name nor whether there is such a topic.
fn check_id(call: &Call, operation: Operation, id: TopicId) -> Result<(), AdminError> {
    let metadata = call.front.broker.metadata();
    let topic = metadata.topic(id).map(|it| Resource::topic(&it.name));
    let topic = topic.unwrap_or(Resource::topic(""));
    check(call, operation, topic).map_err(|_| {
        let principal = &call.client.session.principal;
        let message = format!("no access rule allows {principal} {operation} on the topic");
        AdminError::Denied { code: refusal(topic.kind), message }
    })
}
