//! One access rule: who may, or may not, do something to the resources that a pattern means.
//!
//! **Source**: `org.apache.kafka.common.acl.AclBinding`, `AclBindingFilter` and
//! `org.apache.kafka.controller.AclControlManager` of Kafka 4.

use std::fmt;
use std::str::FromStr;

use crate::{Operation, PatternType, Permission, Principal, Resource, ResourceType};

/// The host, name or pattern that stands for all.
pub const WILDCARD: &str = "*";
/// Bytes of a name, principal or host in a rule: a rule is one row of the metadata log.
const TEXT_LENGTH_MAX: usize = 4096;
/// The version of the encoded form.
const FORMAT: u8 = 1;

/// How the names of topics begin that are the cluster's own business.
const RESERVED: &str = "__";

/// Whether it is a topic that no rule for all topics opens.
pub(crate) fn is_reserved(resource: Resource<'_>) -> bool {
    resource.kind == ResourceType::Topic && resource.name.starts_with(RESERVED)
}

/// Whether rules with this name in their pattern, which the resource matches, can allow something: for topics whose
/// names begin with `__` those alone that begin so too. Kafka has no such exception.
pub(crate) fn allows_by(pattern: &str, resource: Resource<'_>) -> bool {
    !is_reserved(resource) || pattern.starts_with(RESERVED)
}

/// The resources that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    /// Their kind.
    pub kind: ResourceType,
    /// How `name` means them.
    pub pattern_type: PatternType,
    /// A whole name, [`WILDCARD`], or how names begin.
    pub name: String,
}

impl Pattern {
    /// Whether the resource is one of them.
    pub fn matches(&self, resource: Resource<'_>) -> bool {
        self.kind == resource.kind && self.matches_name(resource.name)
    }

    /// Whether a name among those of its kind is one of them.
    pub fn matches_name(&self, name: &str) -> bool {
        match self.pattern_type {
            PatternType::Literal => self.name == WILDCARD || self.name == name,
            PatternType::Prefixed => name.starts_with(&self.name),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, pattern_type, name } = self;
        match pattern_type {
            PatternType::Literal => write!(f, "{kind} {name}"),
            PatternType::Prefixed => write!(f, "{kind} {name}* (prefix)"),
        }
    }
}

/// An access rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// The resources.
    pub pattern: Pattern,
    /// The principal; `User:*` is everybody.
    pub principal: Principal,
    /// The address of the client as text, or [`WILDCARD`].
    pub host: String,
    /// The operation.
    pub operation: Operation,
    /// Whether the principal may or may not.
    pub permission: Permission,
}

/// A rule that Kafka does not take either.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A number that stands for none of the things that a rule can have there.
    #[error("{what} {code} can't be in a rule")]
    Code {
        /// The field.
        what: &'static str,
        /// The number.
        code: i8,
    },
    /// The pattern has no name.
    #[error("the resource of a rule has a name; use * for all resources of its type")]
    NoName,
    /// The cluster has one name.
    #[error("the only resource of type CLUSTER is {}", Resource::CLUSTER_NAME)]
    Cluster,
    /// The principal can't be read.
    #[error(transparent)]
    Principal(#[from] crate::PrincipalError),
    /// Rules are about users: a link's rights are its grant.
    #[error("rules are about users; grant a link its rights with `meridian link allow`")]
    Link,
    /// The host is missing.
    #[error("the host of a rule is an IP address, or * for all")]
    Host,
    /// A text is too long.
    #[error("the {what} of a rule has at most {TEXT_LENGTH_MAX} bytes")]
    TooLong {
        /// The field.
        what: &'static str,
    },
    /// The bytes of a row are no rule.
    #[error("the row of an access rule can't be read")]
    Malformed,
}

impl ResourceType {
    /// The operations that there are on a resource of this type.
    ///
    /// **Source**: `org.apache.kafka.security.authorizer.AclEntry.supportedOperations`.
    pub const fn operations(self) -> &'static [Operation] {
        use Operation::{
            Alter, AlterConfigs, ClusterAction, Create, CreateTokens, Delete, Describe,
            DescribeConfigs, DescribeTokens, IdempotentWrite, Read, TwoPhaseCommit, Write,
        };
        match self {
            Self::Topic => {
                &[Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs]
            }
            Self::Group => &[Read, Delete, Describe, DescribeConfigs, AlterConfigs],
            Self::Cluster => &[
                Create,
                Alter,
                Describe,
                ClusterAction,
                DescribeConfigs,
                AlterConfigs,
                IdempotentWrite,
            ],
            Self::TransactionalId => &[Write, Describe, TwoPhaseCommit],
            Self::DelegationToken => &[Describe],
            Self::User => &[CreateTokens, DescribeTokens],
        }
    }
}

impl Rule {
    /// The rule, if Kafka's controller would take it.
    pub fn checked(self) -> Result<Self, RuleError> {
        let Self { pattern, principal, host, .. } = &self;
        let texts = [("name", &*pattern.name), ("principal", &*principal.name), ("host", host)];
        if let Some((what, _)) = texts.into_iter().find(|(_, text)| text.len() > TEXT_LENGTH_MAX) {
            return Err(RuleError::TooLong { what });
        }
        if pattern.name.is_empty() {
            return Err(RuleError::NoName);
        }
        if pattern.kind == ResourceType::Cluster && pattern.name != Resource::CLUSTER_NAME {
            return Err(RuleError::Cluster);
        }
        if principal.kind == crate::PrincipalKind::Link {
            return Err(RuleError::Link);
        }
        if host.is_empty() {
            return Err(RuleError::Host);
        }
        Ok(self)
    }

    /// What it says of a principal that comes from `host` and would do this, if it is about that at all.
    pub fn says(
        &self,
        principal: &Principal,
        host: &str,
        operation: Operation,
        resource: Resource<'_>,
    ) -> Option<Permission> {
        let is_meant = self.pattern.matches(resource)
            && (self.principal == *principal || self.principal.is_everybody())
            && (self.host == host || self.host == WILDCARD);
        let is_about = match self.permission {
            Permission::Deny => self.operation == Operation::All || self.operation == operation,
            Permission::Allow => {
                operation.allowed_by().contains(self.operation)
                    && allows_by(&self.pattern.name, resource)
            }
        };
        (is_meant && is_about).then_some(self.permission)
    }

    /// The key of its row: all of the rule, so that a rule is there once.
    pub fn encode(&self) -> Vec<u8> {
        let Self { pattern, principal, host, operation, permission } = self;
        let principal = principal.to_string();
        let mut bytes = vec![FORMAT];
        let codes = [pattern.kind.code(), pattern.pattern_type.code()];
        let codes = codes.into_iter().chain([operation.code(), permission.code()]);
        bytes.extend(codes.map(i8::cast_unsigned));
        for text in [pattern.name.as_str(), &principal, host] {
            // Checked rules have short texts.
            let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
            bytes.extend(length.to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    }

    /// Reads the key of a row.
    pub fn decode(bytes: &[u8]) -> Result<Self, RuleError> {
        Self::read(bytes).ok_or(RuleError::Malformed)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (&[format, kind, pattern_type, operation, permission], mut texts) =
            bytes.split_first_chunk()?;
        let mut text = || {
            let (length, rest) = texts.split_first_chunk()?;
            let (text, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
            texts = rest;
            std::str::from_utf8(text).ok().map(str::to_owned)
        };
        let (name, principal, host) = (text()?, text()?, text()?);
        if format != FORMAT || !texts.is_empty() {
            return None;
        }
        Some(Self {
            pattern: Pattern {
                kind: ResourceType::from_code(kind.cast_signed())?,
                pattern_type: PatternType::from_code(pattern_type.cast_signed())?,
                name,
            },
            principal: Principal::from_str(&principal).ok()?,
            host,
            operation: Operation::from_code(operation.cast_signed())?,
            permission: Permission::from_code(permission.cast_signed())?,
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, principal, host, operation, permission } = self;
        write!(f, "{permission} {operation} on {pattern} to {principal} from host {host}")
    }
}

/// How a filter names resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternFilter {
    /// Whatever the type of the pattern is, with this very name.
    Any,
    /// Each pattern that a resource of this name matches.
    Match,
    /// Patterns of this type, with this very name.
    Exactly(PatternType),
}

/// Which rules are meant. `None` means each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFilter {
    /// Their type of resource.
    pub kind: Option<ResourceType>,
    /// Their type of pattern.
    pub pattern: PatternFilter,
    /// The name of the resource.
    pub name: Option<String>,
    /// Their principal, as text: a principal that can't be read has no rules.
    pub principal: Option<String>,
    /// Their host.
    pub host: Option<String>,
    /// Their operation.
    pub operation: Option<Operation>,
    /// Their permission.
    pub permission: Option<Permission>,
}

impl RuleFilter {
    /// All rules.
    pub const ALL: Self = Self {
        kind: None,
        pattern: PatternFilter::Any,
        name: None,
        principal: None,
        host: None,
        operation: None,
        permission: None,
    };

    /// Whether the rule is meant.
    pub fn matches(&self, rule: &Rule) -> bool {
        let Rule { pattern, principal, host, operation, permission } = rule;
        let pattern_matches = match self.pattern {
            PatternFilter::Any => self.names(&pattern.name),
            PatternFilter::Match => {
                self.name.as_deref().is_none_or(|name| pattern.matches_name(name))
            }
            PatternFilter::Exactly(wanted) => {
                pattern.pattern_type == wanted && self.names(&pattern.name)
            }
        };
        pattern_matches
            && self.kind.is_none_or(|it| it == pattern.kind)
            && self.principal.as_deref().is_none_or(|it| it == principal.to_string())
            && self.host.as_ref().is_none_or(|it| it == host)
            && self.operation.is_none_or(|it| it == *operation)
            && self.permission.is_none_or(|it| it == *permission)
    }

    fn names(&self, name: &str) -> bool {
        self.name.as_deref().is_none_or(|it| it == name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(kind: ResourceType, pattern_type: PatternType, name: &str) -> Rule {
        Rule {
            pattern: Pattern { kind, pattern_type, name: name.to_owned() },
            principal: Principal::user("alice"),
            host: WILDCARD.to_owned(),
            operation: Operation::Describe,
            permission: Permission::Allow,
        }
    }

    #[test]
    fn what_no_controller_takes_is_refused() {
        let topic = |name| rule(ResourceType::Topic, PatternType::Literal, name);
        let good = topic("orders");
        assert_eq!(good.clone().checked(), Ok(good.clone()));
        for (bad, error) in [
            (topic(""), RuleError::NoName),
            (rule(ResourceType::Topic, PatternType::Prefixed, ""), RuleError::NoName),
            (rule(ResourceType::Cluster, PatternType::Literal, "mine"), RuleError::Cluster),
            (Rule { principal: Principal::link("east"), ..good.clone() }, RuleError::Link),
            (Rule { host: String::new(), ..good.clone() }, RuleError::Host),
            (topic(&"x".repeat(TEXT_LENGTH_MAX + 1)), RuleError::TooLong { what: "name" }),
        ] {
            assert_eq!(bad.checked(), Err(error));
        }
        for operation in [Operation::All, Operation::ClusterAction] {
            let taken = Rule { operation, ..good.clone() };
            assert!(
                taken.checked().is_ok(),
                "{operation}: one without effect is taken, as Kafka does"
            );
        }
    }

    #[test]
    fn a_filter_means_the_rules_that_kafka_says() {
        let literal = rule(ResourceType::Topic, PatternType::Literal, "orders");
        let prefixed = rule(ResourceType::Topic, PatternType::Prefixed, "ord");
        let every = rule(ResourceType::Topic, PatternType::Literal, "*");
        let all = [&literal, &prefixed, &every];
        let meant = |pattern, name: &str| {
            let filter = RuleFilter { pattern, name: Some(name.to_owned()), ..RuleFilter::ALL };
            all.map(|rule| filter.matches(rule))
        };
        assert_eq!(meant(PatternFilter::Any, "orders"), [true, false, false]);
        assert_eq!(meant(PatternFilter::Match, "orders"), [true, true, true]);
        assert_eq!(meant(PatternFilter::Match, "ore"), [false, false, true]);
        assert_eq!(
            meant(PatternFilter::Exactly(PatternType::Prefixed), "ord"),
            [false, true, false]
        );
        assert_eq!(meant(PatternFilter::Exactly(PatternType::Literal), "ord"), [false; 3]);
        let of = |principal: &str| RuleFilter {
            principal: Some(principal.to_owned()),
            ..RuleFilter::ALL
        };
        assert!(of("User:alice").matches(&literal) && !of("alice").matches(&literal));
        let denying = RuleFilter { permission: Some(Permission::Deny), ..RuleFilter::ALL };
        assert!(!denying.matches(&literal) && RuleFilter::ALL.matches(&literal));
    }

    proptest! {
        #[test]
        fn a_rule_is_read_as_it_was_written(
            kind in proptest::sample::select(ResourceType::ALL),
            pattern_type in proptest::sample::select(PatternType::ALL),
            operation in proptest::sample::select(Operation::ALL),
            permission in proptest::sample::select(Permission::ALL),
            name in ".{0,20}",
            user in ".{1,20}",
            host in ".{0,20}",
        ) {
            let pattern = Pattern { kind, pattern_type, name };
            let principal = Principal::user(&user);
            let rule = Rule { pattern, principal, host, operation, permission };
            let bytes = rule.encode();
            prop_assert_eq!(Rule::decode(&bytes), Ok(rule));
            for length in 0..bytes.len() {
                prop_assert!(Rule::decode(&bytes[..length]).is_err());
            }
        }

        #[test]
        fn no_bytes_end_the_process(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(rule) = Rule::decode(&bytes) {
                prop_assert_eq!(rule.encode(), bytes);
            }
        }
    }
}
