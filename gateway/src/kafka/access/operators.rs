//! The operators' methods about access rules: `access.*` of the private API. The rules themselves come and go by
//! CreateAcls and DeleteAcls.

use bytes::Bytes;
use meridian_access::{
    Operation, Permission, Principal, PrincipalKind, Resource, ResourceType, Rule, deciding,
    is_open_to_all,
};
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use serde::{Deserialize, Serialize};

use super::Authorization;
use super::rules::opens_resources;
use crate::admin_api::{AdminError, arguments, json};
use crate::features::agree;
use crate::kafka::dispatch::Call;
use crate::kafka::users::carried;

/// How the names of these methods begin.
pub(in crate::kafka) const FAMILY: &str = "access.";

/// Answer of `access.mode` and `access.mode.set`.
#[derive(Debug, Serialize)]
struct ModeReport {
    mode: Authorization,
    /// Access rules.
    rules: usize,
    /// What users have tried at this node since its start, and no rule allows.
    denied: u64,
    /// Those that this node's configuration names.
    super_users: Vec<String>,
}

/// Arguments of `access.mode.set`.
#[derive(Debug, Deserialize)]
struct SetMode {
    mode: Authorization,
}

/// Arguments of `access.check`.
#[derive(Debug, Deserialize)]
struct Check {
    principal: String,
    host: String,
    operation: String,
    resource_type: String,
    resource: String,
}

/// Answer of `access.check`.
#[derive(Debug, Serialize)]
struct Decision {
    /// What is decided while rules are enforced.
    allowed: bool,
    decided_by: DecidedBy,
    /// The rule that decides.
    rule: Option<String>,
    /// Whether that holds now.
    mode: Authorization,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum DecidedBy {
    SuperUser,
    Rule,
    /// No rule is about the resource, and those are open to everybody.
    OpenResource,
    /// Nothing allows it.
    Nothing,
}

/// Answers a method.
pub(in crate::kafka) async fn answer(
    call: &Call,
    method: &str,
    body: &[u8],
) -> Result<Bytes, AdminError> {
    match method {
        "access.mode" => json(&mode(call)),
        "access.mode.set" => {
            set_mode(call, arguments(body)?).await?;
            json(&mode(call))
        }
        "access.check" => {
            call.front.broker.catch_up().await?;
            json(&check(call, &arguments(body)?)?)
        }
        "access.credentials" => json(&carried::answer(call).await?),
        _ => Err(AdminError::UnknownMethod(method.to_owned())),
    }
}

fn mode(call: &Call) -> ModeReport {
    let front = &call.front;
    let mode = front.access_rules.current(&front.broker.metadata());
    ModeReport {
        mode,
        rules: front.access_rules.count(),
        denied: front.access_rules.denied_count(),
        super_users: front.config.super_users.iter().map(Principal::to_string).collect(),
    }
}

async fn set_mode(call: &Call, SetMode { mode }: SetMode) -> Result<(), AdminError> {
    let front = &call.front;
    if mode == Authorization::Enforce && front.config.super_users.is_empty() {
        return Err(AdminError::Unsafe(
            "this node has no super users, and nobody else may change rules while none allows it: name some in \
             `security.super_users` in the configuration of every node, restart them, then enforce the rules"
                .to_owned(),
        ));
    }
    agree(&*front.broker, FeatureLevel::RULES).await?;
    let change = RowChange {
        kind: RowKind::Authorization,
        key: Authorization::KEY.to_vec(),
        value: Some(mode.encode()),
        expected: ExpectedVersion::Any,
    };
    let principal = &call.client.session.principal;
    tracing::info!(?mode, %principal, "the mode of authorization is changed");
    Ok(front.broker.propose(Command::PutRows(vec![change])).await.map(drop)?)
}

fn check(call: &Call, check: &Check) -> Result<Decision, AdminError> {
    let invalid = AdminError::InvalidArguments;
    let principal: Principal =
        check.principal.parse().map_err(|error| invalid(format!("{error}")))?;
    if principal.kind == PrincipalKind::Link {
        let advice =
            "access rules are about users; `meridian link allowed` shows what a link may do";
        return Err(invalid(advice.to_owned()));
    }
    let Check { host, operation, resource_type, resource, .. } = check;
    let kind = ResourceType::from_name(resource_type)
        .ok_or_else(|| invalid(format!("{resource_type} is no type of resource")))?;
    let operation = Operation::from_name(operation)
        .filter(|it| *it == Operation::All || kind.operations().contains(it))
        .ok_or_else(|| {
            invalid(format!("{operation} is no operation on a resource of type {kind}"))
        })?;
    let front = &call.front;
    let metadata = front.broker.metadata();
    let mode = Authorization::of(&metadata);
    if front.config.super_users.contains(&principal) {
        return Ok(Decision { allowed: true, decided_by: DecidedBy::SuperUser, rule: None, mode });
    }
    let rules = metadata.extra_rows(RowKind::Acl).filter_map(|(key, _)| Rule::decode(key).ok());
    let rules: Vec<Rule> = rules.collect();
    let is_open = opens_resources(&metadata);
    drop(metadata);
    let resource = Resource { kind, name: resource };
    let rule = deciding(&rules, &principal, host, operation, resource);
    let (allowed, decided_by) = match rule {
        Some(rule) => (rule.permission == Permission::Allow, DecidedBy::Rule),
        None if is_open && is_open_to_all(&rules, resource) => (true, DecidedBy::OpenResource),
        None => (false, DecidedBy::Nothing),
    };
    Ok(Decision { allowed, decided_by, rule: rule.map(Rule::to_string), mode })
}

#[cfg(test)]
mod tests;
