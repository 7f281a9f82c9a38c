//! Rules and filters as requests have them.

use meridian_access::{
    Operation, Pattern, PatternFilter, PatternType, Permission, Principal, ResourceType, Rule,
    RuleError, RuleFilter,
};
use meridian_consensus::state::limits::VALUE_SIZE_BYTES_MAX;
use meridian_protocol::messages::{AclCreation, DeleteAclsFilter};
use meridian_protocol::{ErrorCode, Str};

use crate::kafka::error::ApiError;

/// The code that stands for each, in filters.
const ANY: i8 = 1;
/// The type of pattern that stands for all patterns that a resource matches, in filters.
const MATCH: i8 = 2;

/// The key of a new rule's row, if there can be such a rule.
pub(super) fn key_of(creation: &AclCreation) -> Result<Vec<u8>, ApiError> {
    let rule = rule_of(creation).map_err(|error| invalid(error.to_string()))?;
    let key = rule.encode();
    match key.len() {
        0..=VALUE_SIZE_BYTES_MAX => Ok(key),
        size_bytes => Err(invalid(format!(
            "the rule takes {size_bytes} bytes, and one has at most {VALUE_SIZE_BYTES_MAX}: \
             shorten its name, principal or host"
        ))),
    }
}

fn rule_of(creation: &AclCreation) -> Result<Rule, RuleError> {
    let unknown = |what, code| RuleError::Code { what, code };
    let AclCreation { resource_type, resource_pattern_type, operation, permission_type, .. } =
        *creation;
    let kind = ResourceType::from_code(resource_type);
    let pattern_type = PatternType::from_code(resource_pattern_type);
    let rule = Rule {
        pattern: Pattern {
            kind: kind.ok_or_else(|| unknown("resource type", resource_type))?,
            pattern_type: pattern_type
                .ok_or_else(|| unknown("pattern type", resource_pattern_type))?,
            name: creation.resource_name.to_string(),
        },
        principal: creation.principal.parse::<Principal>()?,
        host: creation.host.to_string(),
        operation: Operation::from_code(operation)
            .ok_or_else(|| unknown("operation", operation))?,
        permission: Permission::from_code(permission_type)
            .ok_or_else(|| unknown("permission type", permission_type))?,
    };
    rule.checked()
}

/// The rules that are meant.
pub(super) fn filter_of(filter: &DeleteAclsFilter) -> Result<RuleFilter, ApiError> {
    let pattern = match filter.pattern_type_filter {
        MATCH => PatternFilter::Match,
        code => part("pattern type", code, PatternType::from_code)?
            .map_or(PatternFilter::Any, PatternFilter::Exactly),
    };
    let text = |text: &Option<Str>| text.as_ref().map(Str::to_string);
    Ok(RuleFilter {
        kind: part("resource type", filter.resource_type_filter, ResourceType::from_code)?,
        pattern,
        name: text(&filter.resource_name_filter),
        principal: text(&filter.principal_filter),
        host: text(&filter.host_filter),
        operation: part("operation", filter.operation, Operation::from_code)?,
        permission: part("permission type", filter.permission_type, Permission::from_code)?,
    })
}

/// A part of a filter; `None` for each.
fn part<T>(what: &str, code: i8, read: fn(i8) -> Option<T>) -> Result<Option<T>, ApiError> {
    if code == ANY {
        return Ok(None);
    }
    let unknown =
        || invalid(format!("{what} {code} of the filter is unknown; {ANY} stands for any"));
    read(code).map(Some).ok_or_else(unknown)
}

fn invalid(message: String) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, message)
}
