//! The operators' methods about access rules: `access.*` of the private API. The rules themselves come and go by
//! CreateAcls and DeleteAcls.

use bytes::Bytes;
use meridian_access::{
    Operation, Permission, Principal, PrincipalKind, Resource, ResourceType, Rule, deciding,
    is_open_to_all,
};
use meridian_admin_api::access::{Check, DecidedBy, Decision, Mode, ModeReport, SetMode};
use meridian_admin_api::methods::{AccessCheck, AccessCredentials, AccessMode, AccessModeSet};
use meridian_admin_api::{Besides, Method, NoArguments};
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};

use super::Authorization;
use super::rules::opens_resources;
use crate::admin_api::{AdminError, answered, answered_now};
use crate::features::agree;
use crate::kafka::dispatch::Call;
use crate::kafka::users::carried;

/// How the names of these methods begin.
pub(in crate::kafka) const FAMILY: &str = "access.";

/// Answers a method.
pub(in crate::kafka) async fn answer(
    call: &Call,
    method: &str,
    body: &[u8],
) -> Result<Bytes, AdminError> {
    match method {
        AccessMode::NAME => answered_now::<AccessMode>(body, |NoArguments {}| Ok(mode(call))),
        AccessModeSet::NAME => answered::<AccessModeSet, _>(body, |set| set_mode(call, set)).await,
        AccessCheck::NAME => answered::<AccessCheck, _>(body, |it| check(call, it)).await,
        AccessCredentials::NAME => {
            answered::<AccessCredentials, _>(body, |NoArguments {}| carried::answer(call)).await
        }
        _ => Err(AdminError::UnknownMethod(method.to_owned())),
    }
}

fn mode(call: &Call) -> ModeReport {
    let front = &call.front;
    let mode = front.access_rules.current(&front.broker.metadata());
    ModeReport {
        mode: shown(mode),
        rules: front.access_rules.count(),
        denied: front.access_rules.denied_count(),
        super_users: front.config.super_users.iter().map(Principal::to_string).collect(),
        besides: Besides::new(),
    }
}

fn shown(mode: Authorization) -> Mode {
    match mode {
        Authorization::Off => Mode::Off,
        Authorization::Report => Mode::Report,
        Authorization::Enforce => Mode::Enforce,
    }
}

fn authorization(mode: &Mode) -> Result<Authorization, AdminError> {
    match mode {
        Mode::Off => Ok(Authorization::Off),
        Mode::Report => Ok(Authorization::Report),
        Mode::Enforce => Ok(Authorization::Enforce),
        Mode::Unknown(text) => Err(AdminError::InvalidArguments(format!(
            "{text:?} is no mode of authorization; there are off, report and enforce"
        ))),
    }
}

async fn set_mode(call: &Call, set: SetMode) -> Result<ModeReport, AdminError> {
    let front = &call.front;
    let to = authorization(&set.mode)?;
    if to == Authorization::Enforce && front.config.super_users.is_empty() {
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
        value: Some(to.encode()),
        expected: ExpectedVersion::Any,
    };
    let principal = &call.client.session.principal;
    tracing::info!(mode = ?to, %principal, "the mode of authorization is changed");
    front.broker.propose(Command::PutRows(vec![change])).await?;
    Ok(mode(call))
}

async fn check(call: &Call, check: Check) -> Result<Decision, AdminError> {
    call.front.broker.catch_up().await?;
    let invalid = AdminError::InvalidArguments;
    let principal: Principal =
        check.principal.parse().map_err(|error| invalid(format!("{error}")))?;
    if principal.kind == PrincipalKind::Link {
        let advice =
            "access rules are about users; `meridian link allowed` shows what a link may do";
        return Err(invalid(advice.to_owned()));
    }
    let Check { host, operation, resource_type, resource, .. } = &check;
    let kind = ResourceType::from_name(resource_type)
        .ok_or_else(|| invalid(format!("{resource_type} is no type of resource")))?;
    let operation = Operation::from_name(operation)
        .filter(|it| *it == Operation::All || kind.operations().contains(it))
        .ok_or_else(|| {
            invalid(format!("{operation} is no operation on a resource of type {kind}"))
        })?;
    let front = &call.front;
    let metadata = front.broker.metadata();
    let mode = shown(Authorization::of(&metadata));
    if front.config.super_users.contains(&principal) {
        return Ok(Decision {
            allowed: true,
            decided_by: DecidedBy::SuperUser,
            rule: None,
            mode,
            besides: Besides::new(),
        });
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
    let rule = rule.map(Rule::to_string);
    Ok(Decision { allowed, decided_by, rule, mode, besides: Besides::new() })
}

#[cfg(test)]
mod tests;
