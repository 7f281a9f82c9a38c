//! The quotas there are, what they may be set to, and what for.

use super::entity::{Entity, Part};
use super::invalid;
use crate::kafka::error::ApiError;

/// A quota of users and clients, or of addresses.
struct Kind {
    name: &'static str,
    of_addresses: bool,
    is_whole: bool,
    max: f64,
}

const LONG_MAX: f64 = i64::MAX as f64;
const INT_MAX: f64 = i32::MAX as f64;

/// All quotas of Kafka.
const ALL: &[Kind] = &[
    Kind { name: PRODUCED_BYTES, of_addresses: false, is_whole: true, max: LONG_MAX },
    Kind { name: FETCHED_BYTES, of_addresses: false, is_whole: true, max: LONG_MAX },
    Kind { name: MUTATIONS, of_addresses: false, is_whole: false, max: f64::MAX },
    Kind { name: REQUEST_TIME, of_addresses: false, is_whole: false, max: f64::MAX },
    Kind { name: CONNECTIONS, of_addresses: true, is_whole: true, max: INT_MAX },
];

/// Bytes of records that a client produces in a second.
pub(super) const PRODUCED_BYTES: &str = "producer_byte_rate";
/// Bytes of records that it fetches.
pub(super) const FETCHED_BYTES: &str = "consumer_byte_rate";
/// Partitions that it has created and deleted (KIP-599).
pub(super) const MUTATIONS: &str = "controller_mutation_rate";
/// Percent of the time of request threads: there are none here, so that it is kept and shown only.
pub(super) const REQUEST_TIME: &str = "request_percentage";
/// Connections that an address makes in a second (KIP-612).
pub(super) const CONNECTIONS: &str = "connection_creation_rate";

/// The kind of this name that an entity can have.
fn find(entity: &Entity, name: &str) -> Result<&'static Kind, ApiError> {
    let of_addresses = entity.ip != Part::Absent;
    let mut known = ALL.iter().filter(|kind| kind.of_addresses == of_addresses);
    known.clone().find(|kind| kind.name == name).ok_or_else(|| {
        let first = known.next().map(|kind| kind.name.to_owned()).unwrap_or_default();
        let names = known.fold(first, |names, kind| names + ", " + kind.name);
        invalid(format!("invalid configuration key {name}: there are {names}"))
    })
}

/// Whether an entity can have a quota of this name.
pub(super) fn check_name(entity: &Entity, name: &str) -> Result<(), ApiError> {
    find(entity, name).map(drop)
}

/// A quota, if an entity can have it.
pub(in crate::kafka::quotas) fn checked(
    entity: &Entity,
    name: &str,
    value: f64,
) -> Result<f64, ApiError> {
    let kind = find(entity, name)?;
    if !value.is_finite() || value <= 0.0 {
        return Err(invalid(format!("quota {name} must be greater than 0")));
    }
    if value > kind.max {
        return Err(invalid(format!("the proposed value for {name} is too large")));
    }
    if kind.is_whole && value.fract() != 0.0 {
        return Err(invalid(format!("{name} cannot be a fractional value")));
    }
    Ok(value)
}
