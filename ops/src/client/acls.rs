//! Access rules, by Kafka's APIs: these work at Apache Kafka too.

use meridian_access::{
    Operation, PatternFilter, PatternType, Permission, ResourceType, Rule, RuleFilter,
};
use meridian_protocol::messages::{
    AclCreation, CreateAclsRequest, DeleteAclsFilter, DeleteAclsRequest, DescribeAclsRequest,
};
use meridian_protocol::{ErrorCode, Str};
use serde::Serialize;

use super::{Client, ClientError};
use crate::failure::Failure;

/// The code that stands for each, in filters.
const ANY: i8 = 1;
/// The type of pattern that stands for all patterns that a resource matches, in filters.
const MATCH: i8 = 2;

/// A rule as the cluster shows it: one of Apache Kafka may have a principal that is none here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Listed {
    pub(crate) principal: String,
    pub(crate) permission: String,
    pub(crate) operation: String,
    pub(crate) resource_type: String,
    pub(crate) pattern_type: String,
    pub(crate) resource: String,
    pub(crate) host: String,
}

impl Listed {
    /// A rule of ours.
    pub(crate) fn of(rule: &Rule) -> Self {
        Self {
            principal: rule.principal.to_string(),
            permission: rule.permission.to_string(),
            operation: rule.operation.to_string(),
            resource_type: rule.pattern.kind.to_string(),
            pattern_type: rule.pattern.pattern_type.to_string(),
            resource: rule.pattern.name.clone(),
            host: rule.host.clone(),
        }
    }
}

/// The name of a code, or the code itself if we have no name for it.
fn named<T: ToString>(code: i8, read: fn(i8) -> Option<T>) -> String {
    read(code).map_or_else(|| code.to_string(), |it| it.to_string())
}

/// The rules that a filter means, in order.
pub(crate) async fn list(client: &Client, filter: &RuleFilter) -> Result<Vec<Listed>, Failure> {
    let filter = wire_filter(filter);
    let request = DescribeAclsRequest {
        resource_type_filter: filter.resource_type_filter,
        resource_name_filter: filter.resource_name_filter,
        pattern_type_filter: filter.pattern_type_filter,
        principal_filter: filter.principal_filter,
        host_filter: filter.host_filter,
        operation: filter.operation,
        permission_type: filter.permission_type,
    };
    let described = client.query(&request).await?;
    check("access rules", described.error_code, described.error_message.as_deref())?;
    let mut rules = Vec::new();
    for resource in described.resources {
        rules.extend(resource.acls.into_iter().map(|acl| Listed {
            principal: acl.principal.to_string(),
            permission: named(acl.permission_type, Permission::from_code),
            operation: named(acl.operation, Operation::from_code),
            resource_type: named(resource.resource_type, ResourceType::from_code),
            pattern_type: named(resource.pattern_type, PatternType::from_code),
            resource: resource.resource_name.to_string(),
            host: acl.host.to_string(),
        }));
    }
    rules.sort();
    Ok(rules)
}

/// Creates rules. Those that are there already stay.
pub(crate) async fn create(client: &Client, rules: &[Rule]) -> Result<(), Failure> {
    let creation = |rule: &Rule| AclCreation {
        resource_type: rule.pattern.kind.code(),
        resource_name: rule.pattern.name.as_str().into(),
        resource_pattern_type: rule.pattern.pattern_type.code(),
        principal: rule.principal.to_string().into(),
        host: rule.host.as_str().into(),
        operation: rule.operation.code(),
        permission_type: rule.permission.code(),
    };
    let request = CreateAclsRequest { creations: rules.iter().map(creation).collect() };
    let created = client.command(&request).await?;
    for (rule, result) in rules.iter().zip(&created.results) {
        let what = format!("the rule {rule:?} is not made", rule = rule.to_string());
        check(&what, result.error_code, result.error_message.as_deref())?;
    }
    Ok(())
}

/// Deletes the rules that filters mean; gives those that went.
pub(crate) async fn delete(
    client: &Client,
    filters: &[RuleFilter],
) -> Result<Vec<Listed>, Failure> {
    let request = DeleteAclsRequest { filters: filters.iter().map(wire_filter).collect() };
    let mut rules = Vec::new();
    for result in client.command(&request).await?.filter_results {
        check("rules are not removed", result.error_code, result.error_message.as_deref())?;
        rules.extend(result.matching_acls.into_iter().map(|acl| Listed {
            principal: acl.principal.to_string(),
            permission: named(acl.permission_type, Permission::from_code),
            operation: named(acl.operation, Operation::from_code),
            resource_type: named(acl.resource_type, ResourceType::from_code),
            pattern_type: named(acl.pattern_type, PatternType::from_code),
            resource: acl.resource_name.to_string(),
            host: acl.host.to_string(),
        }));
    }
    rules.sort();
    rules.dedup();
    Ok(rules)
}

fn wire_filter(filter: &RuleFilter) -> DeleteAclsFilter {
    let text = |text: &Option<String>| text.as_deref().map(Str::from);
    DeleteAclsFilter {
        resource_type_filter: filter.kind.map_or(ANY, ResourceType::code),
        resource_name_filter: text(&filter.name),
        pattern_type_filter: match filter.pattern {
            PatternFilter::Any => ANY,
            PatternFilter::Match => MATCH,
            PatternFilter::Exactly(pattern_type) => pattern_type.code(),
        },
        principal_filter: text(&filter.principal),
        host_filter: text(&filter.host),
        operation: filter.operation.map_or(ANY, Operation::code),
        permission_type: filter.permission.map_or(ANY, Permission::code),
    }
}

fn check(what: &str, code: ErrorCode, message: Option<&str>) -> Result<(), Failure> {
    if code == ErrorCode::SecurityDisabled {
        let message = message.unwrap_or("there is no authorizer");
        return Err(Failure::Invalid(format!(
            "{what}: {message}; either a node's binary is too old to know access rules (`meridian cluster status` \
             shows the versions), or this is Apache Kafka without an authorizer"
        )));
    }
    Ok(ClientError::check(|| what.to_owned(), code, message)?)
}
