//! What the link of another cluster may take: nothing, until this cluster's operators grant it.

use std::collections::BTreeSet;
use std::ops::{Bound, Not};

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::{Operation, Pattern, PatternType, Resource, ResourceType, WILDCARD};

/// Memory that a pattern may take once it is compiled.
const PATTERN_SIZE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a pattern: a grant is one row of the metadata log.
const PATTERN_LENGTH_MAX: usize = 1024;
/// Topics of the cluster's own: they tell of every group and transaction, so no pattern means them.
const INTERNAL_TOPICS: [&str; 2] = ["__consumer_offsets", "__transaction_state"];

/// What operators grant to a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkGrant {
    /// Topics whose records and configs it may read: a regular expression over whole names.
    pub topics: Option<String>,
    /// Groups whose committed offsets it may read: a regular expression over whole names.
    pub groups: Option<String>,
    /// Whether it may read the quotas of clients.
    pub quotas: bool,
    /// Whether it may take over the topics: fence their producers, and grant leases for them.
    pub switchover: bool,
    /// Whether it may read the access rules about these topics and groups. An older binary, which
    /// does not know this, reads the grants that have it not.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub acls: bool,
    /// Whether it may read what the passwords of users are checked by.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub users: bool,
}

/// A grant can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// A pattern is none.
    #[error("the pattern {pattern:?} is not a regular expression that can be used: {detail}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        detail: String,
    },
    /// A grant that grants nothing.
    #[error(
        "a grant names topics, groups, quotas or users; to take all rights of a link away, use `meridian link disallow`"
    )]
    Nothing,
    /// Rights to take over no topic.
    #[error("a switchover is of topics: name them with --topics")]
    SwitchoverOfNothing,
    /// Rules about nothing.
    #[error("access rules are read of topics and groups: name them with --topics or --groups")]
    RulesAboutNothing,
    /// The bytes of a row are no grant.
    #[error("the row of the grant can't be read: {0}")]
    Malformed(String),
}

impl LinkGrant {
    /// The value of its row. The row's key is the name of the link.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a grant always encodes into memory")
    }

    /// Reads a row's value. A field that this binary does not know makes the grant unusable.
    pub fn decode(bytes: &[u8]) -> Result<Self, GrantError> {
        serde_json::from_slice(bytes).map_err(|error| GrantError::Malformed(error.to_string()))
    }

    /// Compiles it.
    pub fn compile(&self) -> Result<LinkRights, GrantError> {
        if self.topics.is_none() && self.switchover {
            return Err(GrantError::SwitchoverOfNothing);
        }
        if self.topics.is_none() && self.groups.is_none() && self.acls {
            return Err(GrantError::RulesAboutNothing);
        }
        let has_names = self.topics.is_some() || self.groups.is_some();
        if !has_names && !self.quotas && !self.users {
            return Err(GrantError::Nothing);
        }
        let topics = self.topics.as_deref().map(whole).transpose()?;
        let groups = self.groups.as_deref().map(whole).transpose()?;
        let Self { quotas, switchover, acls, users, .. } = *self;
        Ok(LinkRights { topics, groups, quotas, switchover, acls, users })
    }
}

/// A pattern that only whole names match.
fn whole(pattern: &str) -> Result<Regex, GrantError> {
    let error = |detail: String| GrantError::Pattern { pattern: pattern.to_owned(), detail };
    if pattern.len() > PATTERN_LENGTH_MAX {
        return Err(error(format!("it has more than {PATTERN_LENGTH_MAX} bytes")));
    }
    let compile = |pattern: &str| {
        RegexBuilder::new(pattern)
            .size_limit(PATTERN_SIZE_BYTES_MAX)
            .build()
            .map_err(|it| error(it.to_string()))
    };
    // First by itself: `a)(b` would be one in parentheses.
    compile(pattern).and_then(|_| compile(&format!("^(?:{pattern})$")))
}

/// The rights of a link, ready to be asked.
#[derive(Clone, Debug, Default)]
pub struct LinkRights {
    topics: Option<Regex>,
    groups: Option<Regex>,
    quotas: bool,
    switchover: bool,
    acls: bool,
    users: bool,
}

impl LinkRights {
    /// Whether the link may read the credentials of users.
    pub fn reads_users(&self) -> bool {
        self.users
    }

    /// Whether the link may read access rules.
    pub fn reads_rules(&self) -> bool {
        self.acls
    }

    /// Whether the link may read the rules with this pattern: those about topics and groups that it
    /// is granted. `topics` are the topics here that it is granted. Of groups, a prefix is shown if
    /// the pattern of the grant takes it for a name.
    pub fn shows_rules_on(&self, pattern: &Pattern, topics: &BTreeSet<String>) -> bool {
        let Pattern { kind, pattern_type, name } = pattern;
        let is_of_all = *pattern_type == PatternType::Literal && name == WILDCARD;
        self.acls
            && match kind {
                ResourceType::Topic if is_of_all => self.topics.is_some(),
                ResourceType::Group if is_of_all => self.groups.is_some(),
                ResourceType::Topic if *pattern_type == PatternType::Prefixed => {
                    let from = (Bound::Included(name.as_str()), Bound::Unbounded);
                    let next = topics.range::<str, _>(from).next();
                    next.is_some_and(|topic| topic.starts_with(name))
                }
                ResourceType::Topic => self.allow(Operation::Describe, Resource::topic(name)),
                ResourceType::Group => self.allow(Operation::Describe, Resource::group(name)),
                _ => false,
            }
    }

    /// Whether the link may do this.
    pub fn allow(&self, operation: Operation, resource: Resource<'_>) -> bool {
        let matches = |pattern: &Option<Regex>| {
            pattern.as_ref().is_some_and(|pattern| pattern.is_match(resource.name))
        };
        match (resource.kind, operation) {
            (
                ResourceType::Topic,
                Operation::Read | Operation::Describe | Operation::DescribeConfigs,
            ) => !INTERNAL_TOPICS.contains(&resource.name) && matches(&self.topics),
            (ResourceType::Topic, Operation::Alter) => {
                self.switchover
                    && !INTERNAL_TOPICS.contains(&resource.name)
                    && matches(&self.topics)
            }
            (ResourceType::Group, Operation::Describe) => matches(&self.groups),
            (ResourceType::TransactionalId, Operation::Describe | Operation::Write) => {
                self.switchover
            }
            (ResourceType::Cluster, Operation::DescribeConfigs) => self.quotas,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(grant: LinkGrant) -> LinkRights {
        grant.compile().expect("a grant that can be used")
    }

    fn orders() -> LinkGrant {
        LinkGrant { topics: Some("orders|orders[.].*".to_owned()), ..LinkGrant::default() }
    }

    #[test]
    fn a_link_reads_the_topics_that_it_is_granted_and_no_others() {
        let rights = rights(orders());
        for operation in [Operation::Read, Operation::Describe, Operation::DescribeConfigs] {
            assert!(rights.allow(operation, Resource::topic("orders")));
            assert!(rights.allow(operation, Resource::topic("orders.eu")));
            for other in ["order", "orders2", "my-orders", "orders\nx", ""] {
                assert!(!rights.allow(operation, Resource::topic(other)), "{other:?}");
            }
        }
        assert!(!rights.allow(Operation::Describe, Resource::group("orders")));
    }

    #[test]
    fn a_grant_to_read_changes_nothing() {
        let all = LinkGrant {
            topics: Some(".*".to_owned()),
            groups: Some(".*".to_owned()),
            quotas: true,
            acls: true,
            users: true,
            switchover: false,
        };
        let rights = rights(all);
        for operation in Operation::ALL.iter().copied() {
            for kind in ResourceType::ALL.iter().copied() {
                let is_look = matches!(
                    (kind, operation),
                    (
                        ResourceType::Topic,
                        Operation::Read | Operation::Describe | Operation::DescribeConfigs
                    ) | (ResourceType::Group, Operation::Describe)
                        | (ResourceType::Cluster, Operation::DescribeConfigs)
                );
                let allowed = rights.allow(operation, Resource { kind, name: "a" });
                assert_eq!(allowed, is_look, "{operation} on {kind}");
            }
        }
    }

    #[test]
    fn a_switchover_is_granted_apart_and_for_the_topics_alone() {
        let rights = rights(LinkGrant { switchover: true, ..orders() });
        assert!(rights.allow(Operation::Alter, Resource::topic("orders")));
        assert!(!rights.allow(Operation::Alter, Resource::topic("bills")));
        assert!(!rights.allow(Operation::Write, Resource::topic("orders")));
        assert!(rights.allow(Operation::Write, Resource::transactional_id("billing")));
        assert!(!rights.allow(Operation::Alter, Resource::CLUSTER));
    }

    #[test]
    fn rules_are_shown_that_are_about_what_is_granted() {
        let of =
            |kind, pattern_type, name: &str| Pattern { kind, pattern_type, name: name.to_owned() };
        let literal = |kind, name: &str| of(kind, PatternType::Literal, name);
        let prefixed = |kind, name: &str| of(kind, PatternType::Prefixed, name);
        let topics = BTreeSet::from(["orders".to_owned(), "orders.eu".to_owned()]);
        let grant = LinkGrant { acls: true, groups: Some("bill.*".to_owned()), ..orders() };
        let all = rights(grant.clone());
        let (topic, group) = (ResourceType::Topic, ResourceType::Group);
        for (pattern, is_shown) in [
            (literal(topic, "orders"), true),
            (literal(topic, "orders.new"), true),
            (literal(topic, "bills"), false),
            (literal(topic, "__consumer_offsets"), false),
            (literal(topic, WILDCARD), true),
            (prefixed(topic, "ord"), true),
            (prefixed(topic, "orders.e"), true),
            (prefixed(topic, "orders.us"), false),
            (prefixed(topic, "p"), false),
            (literal(group, "billing"), true),
            (literal(group, "orders"), false),
            (literal(group, WILDCARD), true),
            (prefixed(group, "billing-"), true),
            (prefixed(group, "b"), false),
            (literal(ResourceType::Cluster, Resource::CLUSTER_NAME), false),
            (literal(ResourceType::TransactionalId, "orders"), false),
        ] {
            assert_eq!(all.shows_rules_on(&pattern, &topics), is_shown, "{pattern}");
        }
        let no_groups = rights(LinkGrant { groups: None, ..grant.clone() });
        assert!(!no_groups.shows_rules_on(&literal(group, WILDCARD), &topics));
        let none = rights(LinkGrant { acls: false, ..grant });
        assert!(!none.reads_rules() && !none.shows_rules_on(&literal(topic, "orders"), &topics));
    }

    /// A binary of before can read every grant that it knows.
    #[test]
    fn a_grant_without_rules_is_as_it_was() {
        let bytes = orders().encode();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("acls") && !text.contains("users"));
        let with_rules = LinkGrant { acls: true, users: true, ..orders() };
        assert_eq!(LinkGrant::decode(&with_rules.encode()), Ok(with_rules));
    }

    #[test]
    fn no_pattern_means_the_topics_of_the_cluster_itself() {
        let all = LinkGrant { topics: Some(".*".to_owned()), switchover: true, ..orders() };
        let rights = rights(all);
        for topic in INTERNAL_TOPICS {
            for operation in [Operation::Read, Operation::Describe, Operation::Alter] {
                assert!(!rights.allow(operation, Resource::topic(topic)), "{operation} {topic}");
            }
        }
        assert!(rights.allow(Operation::Read, Resource::topic("__heartbeat")));
    }

    #[test]
    fn without_a_grant_a_link_may_do_nothing() {
        let rights = LinkRights::default();
        for operation in Operation::ALL.iter().copied() {
            for kind in ResourceType::ALL.iter().copied() {
                assert!(!rights.allow(operation, Resource { kind, name: "" }));
            }
        }
    }

    #[test]
    fn a_grant_is_read_as_it_was_written_and_refused_if_it_can_not_be_used() {
        let grant = LinkGrant { groups: Some("g.*".to_owned()), quotas: true, ..orders() };
        assert_eq!(LinkGrant::decode(&grant.encode()), Ok(grant));
        for bytes in [&b""[..], b"{}", br#"{"quotas":true,"switchover":false,"more":1}"#] {
            assert!(LinkGrant::decode(bytes).is_err());
        }
        let of = |topics: &str| LinkGrant { topics: Some(topics.to_owned()), ..orders() };
        for pattern in ["(", "a)(b", "a{100}{100}{100}", &"x".repeat(PATTERN_LENGTH_MAX + 1)] {
            let refused = of(pattern).compile().map(drop);
            assert!(matches!(refused, Err(GrantError::Pattern { .. })), "{pattern}");
        }
        let nothing = LinkGrant::default().compile().map(drop);
        assert_eq!(nothing, Err(GrantError::Nothing));
        let of_nothing = LinkGrant { acls: true, ..LinkGrant::default() }.compile().map(drop);
        assert_eq!(of_nothing, Err(GrantError::RulesAboutNothing));
        let of_nothing = LinkGrant { switchover: true, quotas: true, ..LinkGrant::default() };
        assert_eq!(of_nothing.compile().map(drop), Err(GrantError::SwitchoverOfNothing));
    }
}
