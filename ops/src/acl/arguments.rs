//! Principals, operations and resources as arguments.

use clap::Args;
use meridian_access::{Operation, Pattern, PatternType, Principal, Resource, ResourceType};

/// The resource that a rule is about, one of these.
#[derive(Debug, Clone, Default, Args)]
#[group(multiple = false)]
pub(super) struct Named {
    /// A topic; `*` for all
    #[arg(long, short, value_name = "NAME")]
    pub(super) topic: Option<String>,
    /// A group of consumers; `*` for all
    #[arg(long, short, value_name = "ID")]
    pub(super) group: Option<String>,
    /// A transactional id; `*` for all
    #[arg(long, value_name = "ID")]
    pub(super) transactional_id: Option<String>,
    /// The cluster itself
    #[arg(long)]
    pub(super) cluster: bool,
}

/// The arguments of [`Named`], for commands that need one.
pub(super) const NAMED: [&str; 4] = ["topic", "group", "transactional_id", "cluster"];

impl Named {
    /// Its type and name.
    pub(super) fn resource(&self) -> Option<Resource<'_>> {
        let Self { topic, group, transactional_id, cluster } = self;
        let topic = topic.as_deref().map(Resource::topic);
        let group = group.as_deref().map(Resource::group);
        let id = transactional_id.as_deref().map(Resource::transactional_id);
        topic.or(group).or(id).or(cluster.then_some(Resource::CLUSTER))
    }

    /// The pattern that it is, or begins.
    pub(super) fn pattern(&self, is_prefix: bool) -> Option<Pattern> {
        self.resource().map(|resource| pattern(resource.kind, resource.name, is_prefix))
    }
}

/// The pattern of this name.
pub(super) fn pattern(kind: ResourceType, name: &str, is_prefix: bool) -> Pattern {
    let pattern_type = if is_prefix { PatternType::Prefixed } else { PatternType::Literal };
    Pattern { kind, pattern_type, name: name.to_owned() }
}

/// A principal; a name alone is a user's.
pub(crate) fn parse_principal(text: &str) -> Result<Principal, String> {
    match text {
        "" => Err("a principal looks like User:alice; User:* is everybody".to_owned()),
        name if !name.contains(':') => Ok(Principal::user(name)),
        text => text.parse().map_err(|error| format!("{error}")),
    }
}

/// An operation by its name.
pub(super) fn parse_operation(text: &str) -> Result<Operation, String> {
    Operation::from_name(text).ok_or_else(|| {
        let names: Vec<String> =
            Operation::ALL.iter().map(|it| it.name().to_ascii_lowercase()).collect();
        format!("there are {}", names.join(", "))
    })
}

/// Operations whose rules are meant: one, or each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meant {
    /// Rules for each operation.
    Any,
    /// Rules for this one.
    Of(Operation),
}

/// An operation by its name, or `any`.
pub(super) fn parse_meant(text: &str) -> Result<Meant, String> {
    if text.eq_ignore_ascii_case("any") {
        return Ok(Meant::Any);
    }
    let names = |error: String| format!("{error}, and any, which means rules for each of them");
    parse_operation(text).map(Meant::Of).map_err(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_is_a_users() {
        for (text, expected) in [
            ("alice", "User:alice"),
            ("User:alice", "User:alice"),
            ("*", "User:*"),
            ("User:CN=a:b", "User:CN=a:b"),
        ] {
            let principal = parse_principal(text).expect(text);
            assert_eq!(principal.to_string(), expected);
        }
        for text in ["", "User:", "Role:ops", "user:alice"] {
            assert!(parse_principal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn operations_have_kafkas_names() {
        assert_eq!(parse_operation("alterconfigs"), Ok(Operation::AlterConfigs));
        assert_eq!(parse_operation("Alter-Configs"), Ok(Operation::AlterConfigs));
        let error = parse_operation("any").expect_err("for removing alone");
        assert!(error.starts_with("there are all, read, write, create"), "{error}");
        assert_eq!(parse_meant("ANY"), Ok(Meant::Any));
        assert_eq!(parse_meant("all"), Ok(Meant::Of(Operation::All)));
        assert!(parse_meant("fly").expect_err("none").contains("and any"));
    }
}
