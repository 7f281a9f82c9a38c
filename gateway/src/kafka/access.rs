//! What the client of a connection may do. Handlers ask here, and decide nothing by themselves.

mod freshness;
mod methods;
pub(super) mod operators;
mod rules;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use meridian_access::{LinkGrant, LinkRights, Operation, Operations, Resource, ResourceType};
use meridian_consensus::command::{FeatureLevel, RowKind};
use meridian_consensus::state::{Metadata, Topic};
use meridian_protocol::ErrorCode;

pub(super) use self::freshness::Freshness;
pub(super) use self::methods::{admitted, may_call};
pub(crate) use self::rules::Authorization;
use self::rules::UserRights;
pub(super) use self::rules::{AccessRules, OPEN_RESOURCES};
use super::dispatch::{Call, Client};
use super::lookup::TopicKey;
use super::{Front, lock};
use crate::features;

/// Links whose compiled grants are kept.
const LINK_COUNT_MAX: usize = 1024;

/// What a client may do.
#[derive(Clone, Debug)]
pub(super) enum Rights {
    /// Everything that its listener serves.
    All,
    /// What a link is granted.
    Link(Arc<LinkRights>),
    /// What the access rules say of a user.
    User(UserRights),
}

impl Rights {
    /// Whether it may do this.
    pub(super) fn allow(&self, operation: Operation, resource: Resource<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Link(rights) => rights.allow(operation, resource),
            Self::User(rights) => rights.allow(operation, resource),
        }
    }

    /// Whether the client has this right, enforced or not. Where another right will do, not having this one is no
    /// denial.
    pub(super) fn has(&self, operation: Operation, resource: Resource<'_>) -> bool {
        match self {
            Self::User(rights) => rights.has(operation, resource),
            _ => self.allow(operation, resource),
        }
    }

    /// Whether the client may do this to some resource of the type.
    pub(super) fn allow_any(&self, operation: Operation, kind: ResourceType) -> bool {
        match self {
            Self::All => true,
            Self::Link(_) => false,
            Self::User(rights) => rights.allow_any(operation, kind),
        }
    }

    /// What the client may do to a resource: the bits that Kafka's clients are shown. Looking is no try, so that
    /// no denial is counted.
    pub(super) fn operations(&self, resource: Resource<'_>) -> Operations {
        let all = resource.kind.operations();
        match self {
            Self::User(rights) => rights.operations(resource, all),
            _ => all
                .iter()
                .copied()
                .filter(|it| self.allow(*it, resource))
                .fold(Operations::NONE, Operations::with),
        }
    }

    /// Changes whenever what the client sees may have changed; `None` if it sees everything.
    pub(super) fn sight(&self) -> Option<u64> {
        match self {
            Self::User(rights) => rights.sight(),
            Self::All | Self::Link(_) => None,
        }
    }

    /// Whether the client may see the resource in a list. Not seeing it is no denial.
    pub(super) fn shows(&self, operation: Operation, resource: Resource<'_>) -> bool {
        match self {
            Self::User(rights) => rights.says(operation, resource),
            _ => self.allow(operation, resource),
        }
    }
}

/// The compiled grants of links.
#[derive(Debug, Default)]
pub(super) struct LinkGrants(Mutex<HashMap<Arc<str>, Compiled>>);

#[derive(Debug)]
struct Compiled {
    row_version: u64,
    rights: Arc<LinkRights>,
}

impl LinkGrants {
    /// The rights of a link by the metadata of now, so that a grant that is taken away ends with the next request.
    fn of(&self, metadata: &Metadata, link: &Arc<str>) -> Arc<LinkRights> {
        let Some(row) = metadata.extra_row(RowKind::LinkGrant, link.as_bytes()) else {
            lock(&self.0).remove(link);
            return Arc::default();
        };
        let mut compiled = lock(&self.0);
        let known = compiled.get(link).filter(|it| it.row_version == row.version);
        if let Some(known) = known {
            return Arc::clone(&known.rights);
        }
        let rights = LinkGrant::decode(&row.value).and_then(|grant| grant.compile());
        let rights = rights.unwrap_or_else(|error| {
            tracing::warn!(%link, %error, "the link may do nothing: its grant can't be used; grant it again");
            LinkRights::default()
        });
        if compiled.len() >= LINK_COUNT_MAX {
            compiled.clear();
        }
        let rights = Arc::new(rights);
        let row_version = row.version;
        let current = Compiled { row_version, rights: Arc::clone(&rights) };
        compiled.insert(Arc::clone(link), current);
        rights
    }
}

/// The rights of a client at this moment.
pub(super) fn rights_of(front: &Front, client: &Client) -> Rights {
    let metadata = front.broker.metadata();
    if !client.session.is_link() {
        return front.access_rules.of(&metadata, &front.config.super_users, client);
    }
    // Grants can't be made before all nodes know them: until then links have what they had.
    match features::is_known_by_all(&metadata, FeatureLevel::ACCESS) {
        true => Rights::Link(front.link_grants.of(&metadata, &client.session.principal.name)),
        false => Rights::All,
    }
}

/// Whether a link is granted anything.
pub(super) fn has_grant(front: &Front, link: &str) -> bool {
    let metadata = front.broker.metadata();
    !features::is_known_by_all(&metadata, FeatureLevel::ACCESS)
        || metadata.extra_row(RowKind::LinkGrant, link.as_bytes()).is_some()
}

/// The error of a client that may not do something.
pub(super) const fn refusal(kind: ResourceType) -> ErrorCode {
    match kind {
        ResourceType::Topic => ErrorCode::TopicAuthorizationFailed,
        ResourceType::Group => ErrorCode::GroupAuthorizationFailed,
        ResourceType::TransactionalId => ErrorCode::TransactionalIdAuthorizationFailed,
        ResourceType::Cluster | ResourceType::User => ErrorCode::ClusterAuthorizationFailed,
        ResourceType::DelegationToken => ErrorCode::DelegationTokenAuthorizationFailed,
    }
}

impl Call {
    /// Whether the client may do this.
    pub(super) fn may(&self, operation: Operation, resource: Resource<'_>) -> bool {
        self.rights.allow(operation, resource)
    }

    /// Whether the client may see this in a list: what it may not see is left out, and no denial is counted.
    pub(super) fn sees(&self, operation: Operation, resource: Resource<'_>) -> bool {
        self.rights.shows(operation, resource)
    }

    /// Nothing if the client may do this, and else the error that Kafka has for it.
    pub(super) fn check(
        &self,
        operation: Operation,
        resource: Resource<'_>,
    ) -> Result<(), ErrorCode> {
        if self.may(operation, resource) { Ok(()) } else { Err(refusal(resource.kind)) }
    }

    /// Whether the client is a super user, or has ALTER on the cluster by an access rule.
    pub(super) fn operates_cluster(&self) -> bool {
        self.front.config.super_users.contains(&self.client.session.principal)
            || matches!(self.rights, Rights::User(_))
                && self.rights.has(Operation::Alter, Resource::CLUSTER)
    }

    /// Whether the client may create a topic of this name.
    pub(super) fn may_create(&self, topic: &str) -> bool {
        self.rights.has(Operation::Create, Resource::CLUSTER)
            || self.may(Operation::Create, Resource::topic(topic))
    }

    /// The bits of what the client may do to the cluster: none if it may not look at it.
    pub(super) fn cluster_operations(&self) -> i32 {
        let operations = self.rights.operations(Resource::CLUSTER);
        if operations.contains(Operation::Describe) { operations.bits() } else { 0 }
    }

    /// Whether the client may do this to a topic, if there is a topic of this id.
    pub(super) fn check_topic(
        &self,
        metadata: &Metadata,
        key: &TopicKey,
        operation: Operation,
    ) -> Result<(), ErrorCode> {
        match self.find(metadata, key, operation) {
            Err(code @ ErrorCode::TopicAuthorizationFailed) => Err(code),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// A topic that the client may do this to. Of one that it may not name it does not learn whether it is there.
    pub(super) fn find<'m>(
        &self,
        metadata: &'m Metadata,
        key: &TopicKey,
        operation: Operation,
    ) -> Result<&'m Topic, ErrorCode> {
        if let TopicKey::Name(name) = key {
            self.check(operation, Resource::topic(name))?;
            return key.find(metadata);
        }
        let topic = key.find(metadata)?;
        self.check(operation, Resource::topic(&topic.name))?;
        Ok(topic)
    }
}

#[cfg(test)]
mod matrix_tests;
