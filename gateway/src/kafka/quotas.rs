//! DescribeClientQuotas and AlterClientQuotas, and keeping clients to what they say.
//!
//! As in Kafka a quota holds at each node by itself, is charged when the bytes are known, and
//! whoever is over it is answered, told how long to wait and not read from before then (KIP-219).

mod bucket;
pub(crate) mod carried;
mod entity;

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_consensus::command::{Command, ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use meridian_protocol::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, AlteredQuota, DescribeClientQuotasRequest,
    DescribeClientQuotasResponse, QuotaAlteration, QuotaEntityPart, QuotaEntry,
    QuotaFilterComponent, QuotaOp, QuotaValue,
};
use meridian_protocol::{ErrorCode, Float64, Str};

use self::bucket::Bucket;
use self::entity::{Entity, Part, Values};
use super::dispatch::{Call, Client};
use super::error::ApiError;
use super::pace::Pace;
use super::{Front, lock};

const USER: &str = "user";
const CLIENT_ID: &str = "client-id";
const IP: &str = "ip";
/// Everybody, as long as nobody says who he is.
const ANONYMOUS: &str = "ANONYMOUS";
const MATCH_EXACT: i8 = 0;
const MATCH_DEFAULT: i8 = 1;
const MATCH_ANY: i8 = 2;
/// Buckets that are remembered. Clients choose their ids: those that find no room share one bucket, so that
/// an id for each request neither takes memory nor escapes the quota.
const BUCKET_COUNT_MAX: usize = 10_000;
/// How often buckets that are full again make room.
const FORGET_EVERY: Duration = Duration::from_secs(1);

/// What a quota is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Traffic {
    /// Bytes of produced records.
    Produce,
    /// Bytes of fetched records.
    Fetch,
}

impl Traffic {
    const ALL: [Self; 2] = [Self::Produce, Self::Fetch];

    /// Kafka's name of the quota.
    pub(super) const fn quota(self) -> &'static str {
        match self {
            Self::Produce => "producer_byte_rate",
            Self::Fetch => "consumer_byte_rate",
        }
    }
}

/// A quota that holds for a client.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Limit {
    traffic: Traffic,
    shared_by: Entity,
    bytes_per_second: f64,
}

impl Limit {
    /// Bytes that may be had at once after a pause.
    pub(super) fn burst_bytes(&self) -> usize {
        usize::try_from(bucket::burst(self.bytes_per_second)).unwrap_or(usize::MAX)
    }
}

/// How far those who have quotas are.
#[derive(Debug, Default)]
pub(super) struct Throttles(Mutex<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    by_entity: HashMap<(Traffic, Entity), Bucket>,
    /// Of all who found no room.
    shared: HashMap<Traffic, Bucket>,
    forgot_at: Option<Instant>,
}

impl Throttles {
    fn charge(&self, now: Instant, limit: &Limit, size_bytes: usize) -> Duration {
        let mut buckets = lock(&self.0);
        let bucket = buckets.of(now, limit);
        bucket.take(now, size_bytes as u64, limit.bytes_per_second)
    }
}

impl Buckets {
    fn of(&mut self, now: Instant, limit: &Limit) -> &mut Bucket {
        let key = (limit.traffic, limit.shared_by.clone());
        let is_due = self.forgot_at.is_none_or(|at| now.since(at) >= FORGET_EVERY);
        if self.by_entity.len() >= BUCKET_COUNT_MAX && is_due {
            self.forgot_at = Some(now);
            self.by_entity.retain(|_, bucket| !bucket.is_full(now));
        }
        if self.by_entity.len() >= BUCKET_COUNT_MAX && !self.by_entity.contains_key(&key) {
            return self.shared.entry(limit.traffic).or_default();
        }
        self.by_entity.entry(key).or_default()
    }
}

/// The quota that holds for whoever calls.
pub(super) fn limit(call: &Call, traffic: Traffic) -> Option<Limit> {
    let metadata = call.front.broker.metadata();
    if !entity::are_any(&metadata) {
        return None;
    }
    let client_id = call.client_id.as_deref().unwrap_or_default();
    let (shared_by, bytes_per_second) =
        entity::find(&metadata, ANONYMOUS, client_id, traffic.quota())?;
    Some(Limit { traffic, shared_by, bytes_per_second })
}

/// Charges what was produced or fetched. The connection is not read from for as long as its client is
/// told to wait: that many milliseconds.
pub(super) fn charge(call: &Call, limit: Option<&Limit>, size_bytes: usize) -> i32 {
    let Some(limit) = limit else { return 0 };
    let now = call.front.now();
    let pause = call.front.throttles.charge(now, limit, size_bytes);
    if pause.is_zero() {
        return 0;
    }
    call.client.pause_until(now + pause);
    call.front.metrics.on_throttled(pause);
    i32::try_from(pause.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Describes quotas.
pub(super) async fn describe(
    call: Call,
    request: DescribeClientQuotasRequest,
) -> DescribeClientQuotasResponse {
    match filter(&request) {
        Ok(filter) => {
            let metadata = call.front.broker.metadata();
            let entries = match filter {
                // There are no quotas of addresses.
                None => Vec::new(),
                Some(filter) => {
                    entity::all(&metadata).filter(|(it, _)| filter.takes(it)).map(entry).collect()
                }
            };
            DescribeClientQuotasResponse { entries: Some(entries), ..Default::default() }
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
        fits(&self.user, &entity.user) && fits(&self.client_id, &entity.client_id)
    }
}

/// `None` if addresses are asked for.
fn filter(request: &DescribeClientQuotasRequest) -> Result<Option<Filter>, ApiError> {
    let mut filter = Filter { user: None, client_id: None, is_strict: request.strict };
    let mut asks_for_addresses = false;
    for component in &request.components {
        let wanted = wanted(component)?;
        let part = match &*component.entity_type {
            USER => &mut filter.user,
            CLIENT_ID => &mut filter.client_id,
            IP => {
                asks_for_addresses = true;
                continue;
            }
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
    if asks_for_addresses && has_others {
        return Err(invalid("an ip cannot be combined with a user or client-id"));
    }
    Ok((!asks_for_addresses).then_some(filter))
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
    let parts = [part(USER, entity.user), part(CLIENT_ID, entity.client_id)];
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
    let mut entries = Vec::with_capacity(request.entries.len());
    let mut pace = Pace::default();
    for alteration in request.entries {
        pace.step().await;
        let altered = alter_one(&call, &alteration, request.validate_only).await;
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
    let changes = changes_of(&alteration.ops)?;
    let command = plan(&call.front.broker.metadata(), &entity, changes);
    match command.filter(|_| !validate_only) {
        Some(command) => Ok(call.front.broker.propose(command).await.map(drop)?),
        None => Ok(()),
    }
}

fn entity_of(parts: &[QuotaEntityPart]) -> Result<Entity, ApiError> {
    let mut entity = Entity::default();
    for QuotaEntityPart { entity_type, entity_name } in parts {
        let part = match &**entity_type {
            USER => &mut entity.user,
            CLIENT_ID => &mut entity.client_id,
            IP => {
                let message = "there are no quotas of addresses; bound their connections with \
                               max.connections.per.ip in the nodes' configuration files";
                return Err(invalid(message));
            }
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
    Ok(entity)
}

/// The changes by name; `None` removes.
fn changes_of(ops: &[QuotaOp]) -> Result<BTreeMap<String, Option<f64>>, ApiError> {
    let mut changes = BTreeMap::new();
    for QuotaOp { key, value: Float64(value), remove } in ops {
        let known = Traffic::ALL.map(Traffic::quota);
        if !known.contains(&&**key) {
            let message =
                format!("invalid configuration key {key}: here there are {}", known.join(", "));
            return Err(invalid(message));
        }
        let change = if *remove { None } else { Some(checked(key, *value)?) };
        if changes.insert(key.to_string(), change).is_some() {
            return Err(invalid(format!("duplicate quota key {key}")));
        }
    }
    Ok(changes)
}

fn checked(key: &str, value: f64) -> Result<f64, ApiError> {
    if !value.is_finite() || value <= 0.0 {
        return Err(invalid(format!("quota {key} must be greater than 0")));
    }
    if value.fract() != 0.0 {
        return Err(invalid(format!("{key} cannot be a fractional value")));
    }
    Ok(value)
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
    let value = (!values.is_empty()).then(|| entity::encode(&values));
    let change = RowChange { kind: RowKind::Quota, key: entity.key(), value, expected };
    (values != before).then(|| Command::PutRows(vec![change]))
}

impl Front {
    /// How long not to read from a client yet.
    pub(super) fn pause_of(&self, client: &Client) -> Duration {
        client.paused_until().map(|until| until.since(self.now())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
