//! Whom a quota is for, and which of several holds (KIP-55, KIP-546).
//!
//! Quotas are rows of the metadata log: a row has all quotas of one entity. Of those that fit a client
//! the most specific one holds:
//!
//! ```text
//! user + client   user + any client   user
//! any user + client   any user + any client   any user
//! client   any client
//! ```
//!
//! Addresses have quotas of their own.

use std::collections::BTreeMap;
use std::net::IpAddr;

use meridian_consensus::command::RowKind;
use meridian_consensus::state::Metadata;
use serde::{Deserialize, Serialize};

/// First byte of values, and of the keys of users and clients.
const VERSION: u8 = 1;
/// First byte of the keys of addresses, which older binaries pass over.
const ADDRESS_VERSION: u8 = 2;

/// One part of an entity.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) enum Part {
    /// The quota does not look at it.
    #[default]
    Absent,
    /// Whoever has no quota by name.
    Default,
    /// Who has this name.
    Named(String),
}

/// Whom a quota is for: a user, a client or both, or else an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Entity {
    /// Who somebody is.
    pub(super) user: Part,
    /// What a client calls itself.
    pub(super) client_id: Part,
    /// Where it comes from.
    pub(super) ip: Part,
}

/// A key without its version. Persisted through postcard: it never changes.
#[derive(Serialize, Deserialize)]
struct ClientKey {
    user: Part,
    client_id: Part,
}

/// The quotas of an entity, by Kafka's names.
pub(super) type Values = BTreeMap<String, f64>;

impl Entity {
    /// The key of its row.
    pub(super) fn key(&self) -> Vec<u8> {
        let Self { user, client_id, ip } = self.clone();
        match ip {
            Part::Absent => encode(VERSION, &ClientKey { user, client_id }),
            ip => encode(ADDRESS_VERSION, &ip),
        }
    }

    /// Whose row has this key.
    pub(super) fn of_key(key: &[u8]) -> Option<Self> {
        if key.first() == Some(&ADDRESS_VERSION) {
            return Some(Self { ip: decode(ADDRESS_VERSION, key)?, ..Self::default() });
        }
        let ClientKey { user, client_id } = decode(VERSION, key)?;
        Some(Self { user, client_id, ip: Part::Absent })
    }

    /// Its quotas, and the version of their row.
    pub(super) fn values(&self, metadata: &Metadata) -> Option<(Values, u64)> {
        let row = metadata.extra_row(RowKind::Quota, &self.key())?;
        Some((decode_values(&row.value)?, row.version))
    }
}

fn encode<T: Serialize>(version: u8, value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![version]).expect("a quota always encodes into memory")
}

/// The value of a row.
pub(super) fn encode_values(values: &Values) -> Vec<u8> {
    encode(VERSION, values)
}

/// Reads the value of a row.
pub(super) fn decode_values(bytes: &[u8]) -> Option<Values> {
    decode(VERSION, bytes)
}

fn decode<T: for<'v> Deserialize<'v>>(version: u8, bytes: &[u8]) -> Option<T> {
    let body = bytes.strip_prefix(&[version])?;
    postcard::from_bytes(body)
        .inspect_err(|error| tracing::error!(%error, "a quota cannot be read"))
        .ok()
}

/// All quotas.
pub(super) fn all(metadata: &Metadata) -> impl Iterator<Item = (Entity, Values)> {
    let rows = metadata.extra_rows(RowKind::Quota);
    rows.filter_map(|(key, row)| Some((Entity::of_key(key)?, decode_values(&row.value)?)))
}

/// Whether there are any: asked for every request.
pub(super) fn are_any(metadata: &Metadata) -> bool {
    metadata.extra_rows(RowKind::Quota).next().is_some()
}

/// The quota of this name that holds for a client, and who shares it.
pub(super) fn find(
    metadata: &Metadata,
    user: &str,
    client_id: &str,
    name: &str,
) -> Option<(Entity, f64)> {
    let [user, client_id] = [user, client_id].map(|name| Part::Named(name.to_owned()));
    for user_part in [&user, &Part::Default, &Part::Absent] {
        for client_part in [&client_id, &Part::Default, &Part::Absent] {
            let (user_part, client_part) = (user_part.clone(), client_part.clone());
            let entity = Entity { user: user_part, client_id: client_part, ip: Part::Absent };
            let Some(value) = entity.values(metadata).and_then(|(it, _)| it.get(name).copied())
            else {
                continue;
            };
            // What is for anybody is for each by himself.
            let shared = |part: Part, own: &Part| match part {
                Part::Absent => Part::Absent,
                Part::Default | Part::Named(_) => own.clone(),
            };
            let shared_by = Entity {
                user: shared(entity.user, &user),
                client_id: shared(entity.client_id, &client_id),
                ip: Part::Absent,
            };
            return Some((shared_by, value));
        }
    }
    None
}

/// The quota of this name that holds for an address, which shares it with nobody.
pub(super) fn find_address(metadata: &Metadata, ip: IpAddr, name: &str) -> Option<(Entity, f64)> {
    let own = Entity { ip: Part::Named(ip.to_string()), ..Entity::default() };
    let any = Entity { ip: Part::Default, ..Entity::default() };
    let of = |entity: &Entity| entity.values(metadata)?.0.get(name).copied();
    let value = of(&own).or_else(|| of(&any))?;
    Some((own, value))
}
