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

use std::collections::BTreeMap;

use meridian_consensus::command::RowKind;
use meridian_consensus::state::Metadata;
use serde::{Deserialize, Serialize};

/// First byte of keys and values.
const VERSION: u8 = 1;

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

/// Whom a quota is for. Persisted through postcard: append only.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct Entity {
    /// Who somebody is.
    pub(super) user: Part,
    /// What a client calls itself.
    pub(super) client_id: Part,
}

/// The quotas of an entity, by Kafka's names.
pub(super) type Values = BTreeMap<String, f64>;

impl Entity {
    /// The key of its row.
    pub(super) fn key(&self) -> Vec<u8> {
        encode(self)
    }

    /// Its quotas, and the version of their row.
    pub(super) fn values(&self, metadata: &Metadata) -> Option<(Values, u64)> {
        let row = metadata.extra_row(RowKind::Quota, &self.key())?;
        Some((decode(&row.value)?, row.version))
    }
}

/// The value of a row.
pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![VERSION]).expect("a quota always encodes into memory")
}

pub(super) fn decode<T: for<'v> Deserialize<'v>>(bytes: &[u8]) -> Option<T> {
    let body = bytes.strip_prefix(&[VERSION])?;
    postcard::from_bytes(body)
        .inspect_err(|error| tracing::error!(%error, "a quota cannot be read"))
        .ok()
}

/// All quotas.
pub(super) fn all(metadata: &Metadata) -> impl Iterator<Item = (Entity, Values)> {
    let rows = metadata.extra_rows(RowKind::Quota);
    rows.filter_map(|(key, row)| Some((decode(key)?, decode(&row.value)?)))
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
            let entity = Entity { user: user_part.clone(), client_id: client_part.clone() };
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
            };
            return Some((shared_by, value));
        }
    }
    None
}
