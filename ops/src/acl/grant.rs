//! The rules that an application needs, all at once.

use clap::{Args, ValueEnum};
use meridian_access::{Operation, Pattern, Permission, Principal, ResourceType, Rule, WILDCARD};

use super::arguments::{parse_principal, pattern};
use crate::failure::Failure;

/// Make the rules that a producer or a consumer needs
///
/// A producer may write to the topics, see them and create them, and use the transactional id if one is given. A
/// consumer may read and see the topics, and read with the group. These are the rules of `kafka-acls --producer`
/// and `kafka-acls --consumer`.
///
/// Example: meridian acl grant alice producer orders stock
///
/// Example: meridian acl grant bob consumer shop. --group billing- --prefix
#[derive(Debug, Args)]
pub(super) struct Grant {
    /// The principal: User:NAME, or NAME alone
    #[arg(value_parser = parse_principal)]
    principal: Principal,
    /// What it is
    #[arg(value_enum)]
    role: Role,
    /// The topics
    #[arg(required = true, value_name = "TOPIC")]
    topics: Vec<String>,
    /// The group of a consumer
    #[arg(long, short, value_name = "ID")]
    group: Option<String>,
    /// The transactional id of a producer
    #[arg(long, value_name = "ID")]
    transactional_id: Option<String>,
    /// The names are how those that are meant begin
    #[arg(long)]
    prefix: bool,
    /// The address that it comes from
    #[arg(long, default_value = WILDCARD)]
    host: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Producer,
    Consumer,
}

impl Grant {
    /// The rules.
    pub(super) fn rules(&self) -> Result<Vec<Rule>, Failure> {
        use Operation::{Create, Describe, Read, Write};
        let invalid = |text: &str| Err(Failure::Invalid(text.to_owned()));
        let (of_topic, of_other): (&[Operation], _) =
            match (self.role, &self.group, &self.transactional_id) {
                (Role::Consumer, _, Some(_)) => {
                    return invalid("--transactional-id is for producers");
                }
                (Role::Consumer, None, None) => {
                    return invalid("a consumer has a group: add --group ID");
                }
                (Role::Producer, Some(_), _) => return invalid("--group is for consumers"),
                (Role::Consumer, Some(group), None) => {
                    (&[Read, Describe], Some((ResourceType::Group, group, &[Read][..])))
                }
                (Role::Producer, None, id) => {
                    let of_id = |id| (ResourceType::TransactionalId, id, &[Write, Describe][..]);
                    (&[Write, Describe, Create], id.as_ref().map(of_id))
                }
            };
        let mut rules = Vec::new();
        for topic in &self.topics {
            let pattern = pattern(ResourceType::Topic, topic, self.prefix);
            rules.extend(of_topic.iter().map(|operation| self.rule(&pattern, *operation)));
        }
        if let Some((kind, name, operations)) = of_other {
            let pattern = pattern(kind, name, self.prefix);
            rules.extend(operations.iter().map(|operation| self.rule(&pattern, *operation)));
        }
        Ok(rules)
    }

    fn rule(&self, pattern: &Pattern, operation: Operation) -> Rule {
        Rule {
            pattern: pattern.clone(),
            principal: self.principal.clone(),
            host: self.host.clone(),
            operation,
            permission: Permission::Allow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(role: Role, group: Option<&str>, transactional_id: Option<&str>) -> Grant {
        Grant {
            principal: Principal::user("alice"),
            role,
            topics: vec!["orders".to_owned()],
            group: group.map(str::to_owned),
            transactional_id: transactional_id.map(str::to_owned),
            prefix: false,
            host: WILDCARD.to_owned(),
        }
    }

    fn texts(grant: &Grant) -> Vec<String> {
        let rules = grant.rules().expect("a good grant");
        rules.into_iter().map(|it| it.checked().expect("a good rule").to_string()).collect()
    }

    #[test]
    fn producers_and_consumers_get_what_kafkas_tool_gives_them() {
        let rule = |operation: &str, resource: &str| {
            format!("ALLOW {operation} on {resource} to User:alice from host *")
        };
        let producing = ["WRITE", "DESCRIBE", "CREATE"].map(|it| rule(it, "TOPIC orders"));
        assert_eq!(texts(&grant(Role::Producer, None, None)), producing);
        let with_id = texts(&grant(Role::Producer, None, Some("tx")));
        let of_id = ["WRITE", "DESCRIBE"].map(|it| rule(it, "TRANSACTIONAL_ID tx"));
        assert_eq!(with_id[3..], of_id);
        let consuming = texts(&grant(Role::Consumer, Some("g"), None));
        assert_eq!(
            consuming,
            [
                rule("READ", "TOPIC orders"),
                rule("DESCRIBE", "TOPIC orders"),
                rule("READ", "GROUP g")
            ]
        );
        let prefixed = Grant { prefix: true, ..grant(Role::Consumer, Some("g"), None) };
        assert_eq!(texts(&prefixed)[2], rule("READ", "GROUP g* (prefix)"));
        for bad in [
            grant(Role::Consumer, None, None),
            grant(Role::Consumer, Some("g"), Some("tx")),
            grant(Role::Producer, Some("g"), None),
        ] {
            assert!(bad.rules().is_err(), "{bad:?}");
        }
    }
}
