//! Resources and operations, with the numbers and names that Kafka's protocol gives them.
//!
//! **Source**: `org.apache.kafka.common.resource.ResourceType`, `PatternType`, `acl.AclOperation`,
//! `acl.AclPermissionType` of Kafka 4.

macro_rules! coded {
    ($(#[$meta:meta])* $name:ident { $($(#[$item_meta:meta])* $item:ident = $code:literal $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$item_meta])* $item,)*
        }

        impl $name {
            /// All of them, by code.
            pub const ALL: &[Self] = &[$(Self::$item),*];

            /// The one with this code.
            pub const fn from_code(code: i8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$item),)*
                    _ => None,
                }
            }

            /// Its number on the wire.
            pub const fn code(self) -> i8 {
                match self {
                    $(Self::$item => $code,)*
                }
            }

            /// The one with this name, however its words are set apart: `DescribeConfigs` is `DESCRIBE_CONFIGS`.
            pub fn from_name(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| letters(it.name()).eq(letters(text)))
            }

            /// Its name in Kafka's tools.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$item => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// What names are compared by.
fn letters(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(|it| !matches!(it, '_' | '-')).map(|it| it.to_ascii_uppercase())
}

coded! {
    /// The kind of a resource.
    ResourceType {
        /// A topic.
        Topic = 2 "TOPIC",
        /// A group of consumers.
        Group = 3 "GROUP",
        /// The cluster, whose name is [`Resource::CLUSTER_NAME`].
        Cluster = 4 "CLUSTER",
        /// A transactional id.
        TransactionalId = 5 "TRANSACTIONAL_ID",
        /// A delegation token.
        DelegationToken = 6 "DELEGATION_TOKEN",
        /// A user, as the owner of tokens.
        User = 7 "USER",
    }
}

coded! {
    /// How a rule names resources.
    PatternType {
        /// By the whole name; `*` stands for every name.
        Literal = 3 "LITERAL",
        /// By how the name begins.
        Prefixed = 4 "PREFIXED",
    }
}

coded! {
    /// An operation on a resource.
    Operation {
        /// Each of the others.
        All = 2 "ALL",
        /// Read records or committed offsets.
        Read = 3 "READ",
        /// Write records.
        Write = 4 "WRITE",
        /// Create a topic.
        Create = 5 "CREATE",
        /// Delete it.
        Delete = 6 "DELETE",
        /// Change it.
        Alter = 7 "ALTER",
        /// Learn that it is there, and how it is.
        Describe = 8 "DESCRIBE",
        /// Act as a node of the cluster.
        ClusterAction = 9 "CLUSTER_ACTION",
        /// See its configs.
        DescribeConfigs = 10 "DESCRIBE_CONFIGS",
        /// Change its configs.
        AlterConfigs = 11 "ALTER_CONFIGS",
        /// Write as an idempotent producer.
        IdempotentWrite = 12 "IDEMPOTENT_WRITE",
        /// Create delegation tokens for the user.
        CreateTokens = 13 "CREATE_TOKENS",
        /// See the delegation tokens of the user.
        DescribeTokens = 14 "DESCRIBE_TOKENS",
        /// Act in two-phase commits.
        TwoPhaseCommit = 15 "TWO_PHASE_COMMIT",
    }
}

coded! {
    /// The effect of a rule.
    Permission {
        /// It forbids.
        Deny = 2 "DENY",
        /// It allows.
        Allow = 3 "ALLOW",
    }
}

/// The object of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource<'a> {
    /// Its kind.
    pub kind: ResourceType,
    /// Its name among those of its kind.
    pub name: &'a str,
}

impl<'a> Resource<'a> {
    /// The name of the cluster as a resource.
    pub const CLUSTER_NAME: &'static str = "kafka-cluster";
    /// The cluster.
    pub const CLUSTER: Resource<'static> =
        Resource { kind: ResourceType::Cluster, name: Self::CLUSTER_NAME };

    /// A topic.
    pub const fn topic(name: &'a str) -> Self {
        Self { kind: ResourceType::Topic, name }
    }

    /// A group of consumers.
    pub const fn group(name: &'a str) -> Self {
        Self { kind: ResourceType::Group, name }
    }

    /// A transactional id.
    pub const fn transactional_id(name: &'a str) -> Self {
        Self { kind: ResourceType::TransactionalId, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_protocol() {
        for operation in Operation::ALL {
            assert_eq!(Operation::from_code(operation.code()), Some(*operation));
        }
        for code in [-1, 0, 1, 16] {
            assert_eq!(Operation::from_code(code), None, "unknown and any are no operations");
        }
        assert_eq!(ResourceType::from_code(5), Some(ResourceType::TransactionalId));
        assert_eq!(PatternType::from_code(1), None, "any is for filters");
        assert_eq!(Permission::Allow.to_string(), "ALLOW");
    }

    #[test]
    fn names_are_read_as_kafkas_tools_write_them() {
        for name in ["DESCRIBE_CONFIGS", "DescribeConfigs", "describe-configs"] {
            assert_eq!(Operation::from_name(name), Some(Operation::DescribeConfigs), "{name}");
        }
        for name in ["", "any", "DESCRIBE CONFIGS", "describ"] {
            assert_eq!(Operation::from_name(name), None, "{name}");
        }
        let id = ResourceType::from_name("transactional-id");
        assert_eq!(id, Some(ResourceType::TransactionalId));
    }
}
