//! DescribeClientQuotas and AlterClientQuotas, and keeping clients to what they say.
//!
//! A quota is charged when the bytes are known, and whoever is over it is answered, told how long to wait and not read
//! from before then (KIP-219). It holds at each node by itself, as in Kafka, or over all nodes together: see [`scope`].

pub(crate) mod carried;
mod entity;
mod kind;
mod lending;
mod mutations;
pub(super) mod operators;
pub(crate) mod scope;
mod throttles;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use meridian_access::{Operation, Resource};
use meridian_broker::quota::node::Charged;
use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use meridian_protocol::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, AlteredQuota, DescribeClientQuotasRequest,
    DescribeClientQuotasResponse, QuotaAlteration, QuotaEntityPart, QuotaEntry,
    QuotaFilterComponent, QuotaOp, QuotaValue,
};
use meridian_protocol::{ErrorCode, Float64, Str};

use self::entity::{Entity, Part, Values};
use self::kind::checked;
pub(super) use self::mutations::Mutations;
pub(super) use self::throttles::{Limit, Throttles};
use super::Front;
use super::dispatch::{Call, Client};
use super::error::ApiError;
use super::pace::Pace;

const USER: &str = "user";
const CLIENT_ID: &str = "client-id";
const IP: &str = "ip";
const MATCH_EXACT: i8 = 0;
const MATCH_DEFAULT: i8 = 1;
const MATCH_ANY: i8 = 2;
/// What a quota is for. Nodes name it to each other by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(super) enum Traffic {
    /// Bytes of produced records.
    Produce = 1,
    /// Bytes of fetched records.
    Fetch = 2,
    /// Partitions that are created and deleted.
    Mutations = 3,
    /// Connections that are made.
    Connections = 4,
}

impl Traffic {
    /// Kafka's name of the quota.
    const fn quota(self) -> &'static str {
        match self {
            Self::Produce => kind::PRODUCED_BYTES,
            Self::Fetch => kind::FETCHED_BYTES,
            Self::Mutations => kind::MUTATIONS,
            Self::Connections => kind::CONNECTIONS,
        }
    }
}

/// The quota that holds for whoever calls.
pub(super) fn limit(call: &Call, traffic: Traffic) -> Option<Limit> {
    let metadata = call.front.broker.metadata();
    if !entity::are_any(&metadata) {
        return None;
    }
    let client_id = call.client_id.as_deref().unwrap_or_default();
    let user = call.client.session.user();
    let (shared_by, per_second) = entity::find(&metadata, user, client_id, traffic.quota())?;
    Some(Limit::new(traffic, shared_by, per_second))
}

/// Whether an address may make another connection now; if so, it is charged.
pub(super) fn takes_connection(front: &Front, ip: IpAddr) -> bool {
    let traffic = Traffic::Connections;
    let found = {
        let metadata = front.broker.metadata();
        if !entity::are_any(&metadata) {
            return true;
        }
        entity::find_address(&metadata, ip, traffic.quota())
    };
    let Some((shared_by, per_second)) = found else { return true };
    let limit = Limit::new(traffic, shared_by, per_second);
    let now = front.now();
    let is_free = front.throttles.charge(now, &limit, 0).told.is_zero();
    if is_free {
        front.throttles.charge(now, &limit, 1);
    }
    is_free
}

/// Charges what was produced or fetched. The connection is not read from for as long as its client is
/// told to wait: that many milliseconds.
pub(super) fn charge(call: &Call, limit: Option<&Limit>, size_bytes: usize) -> i32 {
    let Some(limit) = limit else { return 0 };
    pause(call, call.front.throttles.charge(call.front.now(), limit, size_bytes))
}

/// What may be had at once after a pause.
pub(super) fn burst(call: &Call, limit: &Limit) -> usize {
    call.front.throttles.burst(call.front.now(), limit)
}

/// Does not read from a client before it has paid; gives how long it is told to wait, in milliseconds.
fn pause(call: &Call, charged: Charged) -> i32 {
    let Charged { owed, told } = charged;
    if told.is_zero() {
        return 0;
    }
    call.client.owes(owed);
    call.front.metrics.on_throttled(told);
    call.client.presence.on_throttled(told);
    i32::try_from(told.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Describes quotas.
pub(super) async fn describe(
    call: Call,
    request: DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    let allowed = call.check(Operation::DescribeConfigs, Resource::CLUSTER).map_err(ApiError::from);
    match allowed.and_then(|()| filter(&request)) {
        Ok(filter) => {
            let metadata = call.front.broker.metadata();
            let entries = entity::all(&metadata).filter(|(it, _)| filter.takes(it)).map(entry);
            DescribeClientQuotasResponse { entries: Some(entries.collect()), ..Default::default() }
        }
        Err(error) => {
            call.front.metrics.on_error(error.code);
            DescribeClientQuotasResponse {
                error_code: error.code,
                error_message: error.message(),
                entries: None,
                ..Default::default()
            }
        }
    }
}

/// What parts entities must have; `None` for a part that is not looked at.
struct Filter {
    user: Option<Wanted>,
    client_id: Option<Wanted>,
    ip: Option<Wanted>,
    is_strict: bool,
}

enum Wanted {
    Exactly(Part),
    Any,
}

impl Filter {
    fn takes(&self, entity: &Entity) -> bool {
        let fits = |wanted: &Option<Wanted>, part: &Part| match wanted {
            None => !self.is_strict || *part == Part::Absent,
            Some(Wanted::Any) => *part != Part::Absent,
            Some(Wanted::Exactly(wanted)) => part == wanted,
        };
        fits(&self.user, &entity.user)
            && fits(&self.client_id, &entity.client_id)
            && fits(&self.ip, &entity.ip)
    }
}

fn filter(request: &DescribeClientQuotasRequest) -> Result<Filter, ApiError> {
    let mut filter = Filter { user: None, client_id: None, ip: None, is_strict: request.strict };
    for component in &request.components {
        let wanted = wanted(component)?;
        let part = match &*component.entity_type {
            USER => &mut filter.user,
            CLIENT_ID => &mut filter.client_id,
            IP => &mut filter.ip,
            "" => return Err(invalid("unexpected empty filter component entity type")),
            other => {
                let message = format!("custom entity type {other} is not supported");
                return Err(ApiError::new(ErrorCode::UnsupportedVersion, message));
            }
        };
        if part.replace(wanted).is_some() {
            let message = format!("duplicate {} filter component", component.entity_type);
            return Err(invalid(message));
        }
    }
    let has_others = filter.user.is_some() || filter.client_id.is_some();
    if filter.ip.is_some() && has_others {
        return Err(invalid("an ip cannot be combined with a user or client-id"));
    }
    Ok(filter)
}

fn wanted(component: &QuotaFilterComponent) -> Result<Wanted, ApiError> {
    let name = component.matched.as_deref();
    match (component.match_type, name) {
        (MATCH_EXACT, Some(name)) => Ok(Wanted::Exactly(Part::Named(name.to_owned()))),
        (MATCH_EXACT, None) => Err(invalid("unexpected null match for filter type exact")),
        (MATCH_DEFAULT, None) => Ok(Wanted::Exactly(Part::Default)),
        (MATCH_ANY, None) => Ok(Wanted::Any),
        (MATCH_DEFAULT | MATCH_ANY, Some(_)) => {
            Err(invalid("a match is not expected with filter types default and any"))
        }
        (unknown, _) => Err(invalid(format!("unexpected match type {unknown}"))),
    }
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, message)
}

fn entry((entity, values): (Entity, Values)) -> QuotaEntry {
    let part = |entity_type: &str, part: Part| {
        let entity_name = match part {
            Part::Absent => return None,
            Part::Default => None,
            Part::Named(name) => Some(Str::from(name)),
        };
        Some(QuotaEntityPart { entity_type: entity_type.into(), entity_name })
    };
    let parts = [part(USER, entity.user), part(CLIENT_ID, entity.client_id), part(IP, entity.ip)];
    let value = |(key, value): (String, f64)| QuotaValue { key: key.into(), value: Float64(value) };
    QuotaEntry {
        entity: parts.into_iter().flatten().collect(),
        values: values.into_iter().map(value).collect(),
    }
}

/// Changes quotas, each entity's for itself.
pub(super) async fn alter(
    call: Call,
    request: AlterClientQuotasRequest,
) -> AlterClientQuotasResponse {
    let allowed = call.check(Operation::AlterConfigs, Resource::CLUSTER).map_err(ApiError::from);
    let mut entries = Vec::with_capacity(request.entries.len());
    let mut pace = Pace::default();
    for alteration in request.entries {
        pace.step().await;
        let altered = match allowed.clone() {
            Ok(()) => alter_one(&call, &alteration, request.validate_only).await,
            Err(error) => Err(error),
        };
        let mut entry = AlteredQuota { entity: alteration.entity, ..Default::default() };
        if let Err(error) = altered {
            call.front.metrics.on_error(error.code);
            entry.error_code = error.code;
            entry.error_message = error.message();
        }
        entries.push(entry);
    }
    AlterClientQuotasResponse { entries, ..Default::default() }
}

async fn alter_one(
    call: &Call,
    alteration: &QuotaAlteration,
    validate_only: bool,
) -> Result<(), ApiError> {
    let entity = entity_of(&alteration.entity)?;
    let changes = changes_of(&entity, &alteration.ops)?;
    let command = plan(&call.front.broker.metadata(), &entity, changes);
    let Some(command) = command.filter(|_| !validate_only) else { return Ok(()) };
    scope::begin(&*call.front.broker).await?;
    Ok(call.front.broker.propose(command).await.map(drop)?)
}

fn entity_of(parts: &[QuotaEntityPart]) -> Result<Entity, ApiError> {
    let mut entity = Entity::default();
    for QuotaEntityPart { entity_type, entity_name } in parts {
        let part = match &**entity_type {
            USER => &mut entity.user,
            CLIENT_ID => &mut entity.client_id,
            IP => &mut entity.ip,
            other => return Err(invalid(format!("unhandled client quota entity type: {other}"))),
        };
        if *part != Part::Absent {
            return Err(invalid(format!("duplicate entity entry {entity_type}")));
        }
        *part = match entity_name {
            Some(name) => Part::Named(name.to_string()),
            None => Part::Default,
        };
    }
    if entity == Entity::default() {
        return Err(invalid("invalid empty client quota entity"));
    }
    if let Part::Named(name) = &entity.ip {
        let ip: IpAddr = name.parse().map_err(|_| invalid(format!("{name} is no address")))?;
        entity.ip = Part::Named(ip.to_string());
    }
    let has_others = entity.user != Part::Absent || entity.client_id != Part::Absent;
    if entity.ip != Part::Absent && has_others {
        return Err(invalid("an ip cannot be combined with a user or client-id"));
    }
    Ok(entity)
}

/// The changes by name; `None` removes.
fn changes_of(entity: &Entity, ops: &[QuotaOp]) -> Result<BTreeMap<String, Option<f64>>, ApiError> {
    let mut changes = BTreeMap::new();
    for QuotaOp { key, value: Float64(value), remove } in ops {
        kind::check_name(entity, key)?;
        let change = if *remove { None } else { Some(checked(entity, key, *value)?) };
        if &**key == kind::REQUEST_TIME && !remove {
            tracing::warn!(
                "the quota request_percentage is kept, and has no effect: see docs/kafka.md"
            );
        }
        if changes.insert(key.to_string(), change).is_some() {
            return Err(invalid(format!("duplicate quota key {key}")));
        }
    }
    Ok(changes)
}

/// What the metadata log is to decide, if anything.
fn plan(
    metadata: &Metadata,
    entity: &Entity,
    changes: BTreeMap<String, Option<f64>>,
) -> Option<Command> {
    let found = entity.values(metadata);
    let expected = match &found {
        Some((_, version)) => ExpectedVersion::Exactly(*version),
        None => ExpectedVersion::Absent,
    };
    let before = found.map(|(values, _)| values).unwrap_or_default();
    let mut values = before.clone();
    for (name, value) in changes {
        match value {
            Some(value) => values.insert(name, value),
            None => values.remove(&name),
        };
    }
    let value = (!values.is_empty()).then(|| entity::encode_values(&values));
    let change = RowChange { kind: RowKind::Quota, key: entity.key(), value, expected };
    (values != before).then(|| Command::PutRows(vec![change]))
}

impl Front {
    /// How long not to read from a client yet. Look again after that: zero when it has paid.
    pub(super) fn pause_of(&self, client: &Client) -> Duration {
        client.pause(|owed| self.throttles.pause(self.now(), owed))
    }
}

#[cfg(test)]
mod tests;
