//! What the methods of the private API ask of users. What they ask of links is in `link_rights`.

use bytes::Bytes;
use meridian_access::{Operation, Resource, ResourceType};
use meridian_admin_api::Method;
use meridian_admin_api::methods::*;
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
    (AccessMode::NAME, LOOK),
    (AccessModeSet::NAME, CHANGE),
    (AccessCheck::NAME, LOOK),
    // It asks for more: see `users::carried`.
    (AccessCredentials::NAME, CHANGE),
    (ClientList::NAME, LOOK),
    (ClientKick::NAME, CHANGE),
    (QuotaHoldings::NAME, LOOK),
    (ClusterStatus::NAME, LOOK),
    (NodeStatus::NAME, LOOK),
    (DiskStatus::NAME, LOOK),
    (DiskScrub::NAME, CHANGE),
    (LifecycleStatus::NAME, LOOK),
    (LifecycleDrain::NAME, CHANGE),
    (LifecycleDecommission::NAME, CHANGE),
    (LifecycleEnd::NAME, CHANGE),
    (LifecycleReplace::NAME, CHANGE),
    (LinkList::NAME, LOOK),
    (LinkTraffic::NAME, LOOK),
    (LinkAllowed::NAME, LOOK),
    (LinkCreate::NAME, CHANGE),
    (LinkAlter::NAME, CHANGE),
    (LinkDelete::NAME, CHANGE),
    (LinkTest::NAME, CHANGE),
    (LinkReseal::NAME, CHANGE),
    (LinkAllow::NAME, CHANGE),
    (LinkDisallow::NAME, CHANGE),
    (TopicStorage::NAME, Topic(Operation::Describe)),
    (SourceList::NAME, Topic(Operation::Read)),
    (MirrorList::NAME, LOOK),
    (MirrorPartitions::NAME, LOOK),
    (MirrorStewards::NAME, LOOK),
    (MirrorAudits::NAME, LOOK),
    (MirrorLeases::NAME, LOOK),
    (MirrorContracts::NAME, LOOK),
    (MirrorRuleList::NAME, LOOK),
    (MirrorRulePut::NAME, CHANGE),
    (MirrorRuleDelete::NAME, CHANGE),
    (MirrorCreate::NAME, ClusterToCreate),
    (MirrorVerify::NAME, Topic(Operation::Read)),
    (MirrorRejoin::NAME, Topic(Operation::Read)),
    (MirrorPause::NAME, Topic(Operation::Alter)),
    (MirrorResume::NAME, Topic(Operation::Alter)),
    (MirrorPromote::NAME, Topic(Operation::Alter)),
    (MirrorSwitchover::NAME, Topic(Operation::Alter)),
    (MirrorRollback::NAME, Topic(Operation::Alter)),
    (MirrorRecreate::NAME, Topic(Operation::Alter)),
    (MirrorGiveWay::NAME, Topic(Operation::Alter)),
    (MirrorTakeBack::NAME, Topic(Operation::Alter)),
    (MirrorReplace::NAME, Topic(Operation::Alter)),
    (MirrorDropLease::NAME, Topic(Operation::Alter)),
    // The other cluster of a link calls these. A mirror may also log in as a user.
    (MirrorStanding::NAME, Topic(Operation::Read)),
    (MirrorSource::NAME, Topic(Operation::Read)),
    (MirrorDigest::NAME, TopicOfId(Operation::Read)),
    (MirrorPositions::NAME, Positions),
    (MirrorFence::NAME, Topic(Operation::Alter)),
    (MirrorRelease::NAME, Topic(Operation::Alter)),
    (MirrorReverse::NAME, Topic(Operation::Alter)),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_method_has_its_types_and_says_what_it_asks_for() {
        let table: BTreeSet<&str> = METHODS.iter().map(|(name, _)| *name).collect();
        assert_eq!(table.len(), METHODS.len(), "one line for each");
        let typed: BTreeSet<&str> = NAMES.iter().copied().collect();
        assert_eq!(table, typed);
    }
}
