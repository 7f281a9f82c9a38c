//! DescribeAcls, CreateAcls and DeleteAcls: the access rules, each a row of the metadata log.
//!
//! Rules can be made in every mode of authorization, so that they are there before they hold. While a node of
//! the cluster does not know them, clients hear what Kafka without an authorizer says: MirrorMaker and the tools
//! take that for "there are none" and go on.
//!
//! **Source**: `kafka.server.AclApis` and `org.apache.kafka.controller.AclControlManager` of Kafka 4.

mod rules;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use meridian_access::{LinkRights, Operation, Pattern, Resource, Rule, RuleFilter};
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_consensus::state::limits::BATCH_COUNT_MAX;
use meridian_protocol::messages::{
    AclCreation, AclCreationResult, AclDescription, CreateAclsRequest, CreateAclsResponse,
    DeleteAclsFilter, DeleteAclsFilterResult, DeleteAclsMatchingAcl, DeleteAclsRequest,
    DeleteAclsResponse, DescribeAclsRequest, DescribeAclsResource, DescribeAclsResponse,
};
use meridian_protocol::{ErrorCode, Str};

use self::rules::{filter_of, key_of};
use super::access::Rights;
use super::dispatch::Call;
use super::error::ApiError;
use super::pace::Pace;
use crate::features::{NotAgreed, agree, is_known_by_all};

/// In Kafka's words: clients show them.
const NO_AUTHORIZER: &str = "No Authorizer is configured on the broker";
/// Bytes of rules that one entry of the metadata log takes: with what surrounds them, a proposal has room for them.
const ENTRY_SIZE_BYTES_MAX: usize = 768 << 10;

/// Describes rules, by the resources that they are about.
pub(super) async fn describe(call: Call, request: DescribeAclsRequest) -> DescribeAclsResponse {
    match described(&call, request).await {
        Ok(resources) => DescribeAclsResponse { resources, ..Default::default() },
        Err(error) => {
            let (error_code, error_message) = refused(&call, &error);
            DescribeAclsResponse { error_code, error_message, ..Default::default() }
        }
    }
}

async fn described(
    call: &Call,
    request: DescribeAclsRequest,
) -> Result<Vec<DescribeAclsResource>, ApiError> {
    let shown = shown(call)?;
    admit(call).await?;
    let filter = filter_of(&DeleteAclsFilter {
        resource_type_filter: request.resource_type_filter,
        resource_name_filter: request.resource_name_filter,
        pattern_type_filter: request.pattern_type_filter,
        principal_filter: request.principal_filter,
        host_filter: request.host_filter,
        operation: request.operation,
        permission_type: request.permission_type,
    })?;
    let mut by_pattern: BTreeMap<Pattern, Vec<AclDescription>> = BTreeMap::new();
    let is_shown = |rule: &Rule| shown.as_ref().is_none_or(|shown| shown.has(rule));
    let rules = all(call).await.into_iter();
    for rule in rules.filter(|rule| filter.matches(rule) && is_shown(rule)) {
        let described = AclDescription {
            principal: rule.principal.to_string().into(),
            host: rule.host.into(),
            operation: rule.operation.code(),
            permission_type: rule.permission.code(),
        };
        by_pattern.entry(rule.pattern).or_default().push(described);
    }
    let resource = |(pattern, acls): (Pattern, Vec<AclDescription>)| DescribeAclsResource {
        resource_type: pattern.kind.code(),
        resource_name: pattern.name.into(),
        pattern_type: pattern.pattern_type.code(),
        acls,
    };
    Ok(by_pattern.into_iter().map(resource).collect())
}

/// Adds rules, each for itself.
pub(super) async fn create(call: Call, request: CreateAclsRequest) -> CreateAclsResponse {
    let created = match admit_change(&call).await {
        Ok(()) => created(&call, &request.creations).await,
        Err(error) => vec![Err(error); request.creations.len()],
    };
    let result = |created: Result<(), ApiError>| {
        let Err(error) = created else { return AclCreationResult::default() };
        let (error_code, error_message) = refused(&call, &error);
        AclCreationResult { error_code, error_message }
    };
    let results = created.into_iter().map(result).collect();
    CreateAclsResponse { results, ..Default::default() }
}

async fn created(call: &Call, creations: &[AclCreation]) -> Vec<Result<(), ApiError>> {
    let mut keys = Vec::with_capacity(creations.len());
    let mut pace = Pace::default();
    for creation in creations {
        pace.step().await;
        keys.push(key_of(creation));
    }
    let new: BTreeSet<Vec<u8>> = {
        let metadata = call.front.broker.metadata();
        let is_new = |key: &&Vec<u8>| metadata.extra_row(RowKind::Acl, key).is_none();
        keys.iter().flatten().filter(is_new).cloned().collect()
    };
    let failed = put(call, new).await;
    let created = |key: Result<Vec<u8>, ApiError>| match failed.get(&key?) {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    };
    keys.into_iter().map(created).collect()
}

/// Writes rules in as few entries as take them. Gives those that were not written, and why.
async fn put(call: &Call, mut left: BTreeSet<Vec<u8>>) -> HashMap<Vec<u8>, ApiError> {
    if left.is_empty() {
        return HashMap::new();
    }
    let agreed = agree(&*call.front.broker, FeatureLevel::RULES).await;
    let mut error = agreed.map_err(not_agreed).err();
    while error.is_none() && !left.is_empty() {
        let rest = beyond_one_entry(&mut left);
        let changes = left.iter().map(|key| change(key.clone(), Some(Vec::new()))).collect();
        match call.front.broker.propose(Command::PutRows(changes)).await {
            Ok(_) => left = rest,
            Err(undecided) => {
                error = Some(undecided.into());
                left.extend(rest);
            }
        }
    }
    let Some(error) = error else { return HashMap::new() };
    left.into_iter().map(|key| (key, error.clone())).collect()
}

/// Takes what one entry has no room for.
fn beyond_one_entry(keys: &mut BTreeSet<Vec<u8>>) -> BTreeSet<Vec<u8>> {
    let mut size_bytes = 0;
    let mut is_beyond = |(index, key): (usize, &Vec<u8>)| {
        size_bytes += key.len();
        index >= BATCH_COUNT_MAX || size_bytes > ENTRY_SIZE_BYTES_MAX
    };
    let first_beyond =
        keys.iter().enumerate().find(|it| is_beyond(*it)).map(|(_, key)| key.clone());
    first_beyond.map(|key| keys.split_off(&key)).unwrap_or_default()
}

/// Removes the rules that filters mean: all of them at once, or none.
pub(super) async fn delete(call: Call, request: DeleteAclsRequest) -> DeleteAclsResponse {
    let deleted = match deleted(&call, &request.filters).await {
        Ok(deleted) => deleted,
        Err(error) => request.filters.iter().map(|_| Err(error.clone())).collect(),
    };
    let result = |deleted: Result<Vec<Rule>, ApiError>| match deleted {
        Ok(rules) => {
            let matching_acls = rules.into_iter().map(matching).collect();
            DeleteAclsFilterResult { matching_acls, ..Default::default() }
        }
        Err(error) => {
            let (error_code, error_message) = refused(&call, &error);
            DeleteAclsFilterResult { error_code, error_message, ..Default::default() }
        }
    };
    let filter_results = deleted.into_iter().map(result).collect();
    DeleteAclsResponse { filter_results, ..Default::default() }
}

/// What went, by filter.
type Deleted = Vec<Result<Vec<Rule>, ApiError>>;

async fn deleted(call: &Call, filters: &[DeleteAclsFilter]) -> Result<Deleted, ApiError> {
    admit_change(call).await?;
    let rules = all(call).await;
    let (mut deleted, mut count) = (Vec::with_capacity(filters.len()), 0);
    let mut keys = BTreeSet::new();
    let mut pace = Pace::default();
    for filter in filters {
        let meant = match filter_of(filter) {
            Ok(filter) => Ok(meant(&rules, &filter, &mut pace).await),
            Err(error) => Err(error),
        };
        count += meant.as_ref().map_or(0, Vec::len);
        if count > BATCH_COUNT_MAX {
            return Err(too_many(&format!("more than {BATCH_COUNT_MAX}")));
        }
        keys.extend(meant.iter().flatten().map(Rule::encode));
        deleted.push(meant);
    }
    if keys.is_empty() {
        return Ok(deleted);
    }
    let size_bytes: usize = keys.iter().map(Vec::len).sum();
    if size_bytes > ENTRY_SIZE_BYTES_MAX {
        return Err(too_many(&format!("{size_bytes} bytes (at most {ENTRY_SIZE_BYTES_MAX}) of")));
    }
    let changes = keys.into_iter().map(|key| change(key, None)).collect();
    call.front.broker.propose(Command::PutRows(changes)).await?;
    Ok(deleted)
}

fn too_many(how_many: &str) -> ApiError {
    let message = format!(
        "the filters mean {how_many} rules, and all of them go at once: nothing was deleted; use narrower filters"
    );
    ApiError::new(ErrorCode::InvalidRequest, message)
}

/// The rules that a filter means.
async fn meant(rules: &[Rule], filter: &RuleFilter, pace: &mut Pace) -> Vec<Rule> {
    let mut meant = Vec::new();
    for rule in rules {
        pace.step().await;
        if filter.matches(rule) {
            meant.push(rule.clone());
        }
    }
    meant
}

fn matching(rule: Rule) -> DeleteAclsMatchingAcl {
    DeleteAclsMatchingAcl {
        resource_type: rule.pattern.kind.code(),
        resource_name: rule.pattern.name.into(),
        pattern_type: rule.pattern.pattern_type.code(),
        principal: rule.principal.to_string().into(),
        host: rule.host.into(),
        operation: rule.operation.code(),
        permission_type: rule.permission.code(),
        ..Default::default()
    }
}

/// The rules that a link may read.
struct Shown {
    rights: Arc<LinkRights>,
    /// The topics here that it is granted.
    topics: BTreeSet<String>,
}

impl Shown {
    fn has(&self, rule: &Rule) -> bool {
        self.rights.shows_rules_on(&rule.pattern, &self.topics)
    }
}

/// The rules that a client may read; `None` for all. A link may be granted those about its topics
/// and groups, and nothing else that asks for DESCRIBE on the cluster.
fn shown(call: &Call) -> Result<Option<Shown>, ApiError> {
    let Rights::Link(rights) = &call.rights else {
        return Ok(call.check(Operation::Describe, Resource::CLUSTER).map(|()| None)?);
    };
    if !rights.reads_rules() {
        let link = &call.client.session.principal.name;
        let message = format!(
            "link {link} is not granted access rules; operators of the source grant them with \
             `meridian link allow {link} --topics REGEX --acls`"
        );
        return Err(ApiError::new(ErrorCode::ClusterAuthorizationFailed, message));
    }
    let metadata = call.front.broker.metadata();
    let names = metadata.topics().map(|topic| topic.name.as_str());
    let is_granted = |name: &&str| rights.allow(Operation::Describe, Resource::topic(name));
    let topics = names.filter(is_granted).map(str::to_owned).collect();
    Ok(Some(Shown { rights: Arc::clone(rights), topics }))
}

/// Lets a client in that may change the rules.
async fn admit_change(call: &Call) -> Result<(), ApiError> {
    call.check(Operation::Alter, Resource::CLUSTER)?;
    admit(call).await
}

/// Waits until this node has heard of all earlier changes.
async fn admit(call: &Call) -> Result<(), ApiError> {
    if !is_known_by_all(&call.front.broker.metadata(), FeatureLevel::RULES) {
        return Err(ApiError::new(ErrorCode::SecurityDisabled, NO_AUTHORIZER));
    }
    Ok(call.front.broker.catch_up().await?)
}

/// All rules.
async fn all(call: &Call) -> Vec<Rule> {
    let keys: Vec<Vec<u8>> = {
        let metadata = call.front.broker.metadata();
        metadata.extra_rows(RowKind::Acl).map(|(key, _)| key.to_vec()).collect()
    };
    let mut rules = Vec::with_capacity(keys.len());
    let mut pace = Pace::default();
    for key in keys {
        pace.step().await;
        // The index of the rules warns of those that can't be read.
        rules.extend(Rule::decode(&key));
    }
    rules
}

fn change(key: Vec<u8>, value: Option<Vec<u8>>) -> RowChange {
    RowChange { kind: RowKind::Acl, key, value, expected: ExpectedVersion::Any }
}

fn not_agreed(error: NotAgreed) -> ApiError {
    match error {
        NotAgreed::NotBy { .. } => ApiError::new(ErrorCode::SecurityDisabled, error.to_string()),
        NotAgreed::Undecided(error) => error.into(),
    }
}

fn refused(call: &Call, error: &ApiError) -> (ErrorCode, Option<Str>) {
    call.front.metrics.on_error(error.code);
    (error.code, error.message())
}

#[cfg(test)]
mod tests;
