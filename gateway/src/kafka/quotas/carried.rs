//! Quotas as links see them: those that a source tells of, and those that are here.

use std::collections::BTreeMap;

use meridian_consensus::command::{ExpectedVersion, RowChange, RowKind};
use meridian_consensus::state::Metadata;
use meridian_mirror::quotas::Quotas;
use meridian_protocol::Float64;
use meridian_protocol::messages::{QuotaEntry, QuotaValue};

use super::entity::{self, Entity, Part};
use super::{CLIENT_ID, IP, USER, checked, entity_of};

/// The quotas that a source tells of, by the keys of their rows here. Kinds that there are not here
/// are left out, and those of addresses, which mean something in one network only.
pub(crate) fn told(entries: &[QuotaEntry]) -> BTreeMap<Vec<u8>, Quotas> {
    let told = |entry: &QuotaEntry| {
        let entity = entity_of(&entry.entity).ok().filter(|it| it.ip == Part::Absent)?;
        let value = |QuotaValue { key, value: Float64(value) }: &QuotaValue| {
            Some((key.to_string(), checked(&entity, key, *value).ok()?))
        };
        let quotas: Quotas = entry.values.iter().filter_map(value).collect();
        (!quotas.is_empty()).then(|| (entity.key(), quotas))
    };
    entries.iter().filter_map(told).collect()
}

/// The quotas here, by the keys of their rows, and the rows' versions. `None` for what a newer binary wrote.
pub(crate) fn here(metadata: &Metadata) -> BTreeMap<Vec<u8>, (Option<Quotas>, u64)> {
    let rows = metadata.extra_rows(RowKind::Quota);
    rows.map(|(key, row)| (key.to_vec(), (entity::decode_values(&row.value), row.version)))
        .collect()
}

/// The change after which these are the quotas of an entity, if its row is still as it was read.
pub(crate) fn change(key: &[u8], quotas: &Quotas, expected: ExpectedVersion) -> RowChange {
    let value = (!quotas.is_empty()).then(|| entity::encode_values(quotas));
    RowChange { kind: RowKind::Quota, key: key.to_vec(), value, expected }
}

/// Whom quotas are for, in the words of Kafka's tools.
pub(crate) fn name(key: &[u8]) -> String {
    let Some(Entity { user, client_id, ip }) = Entity::of_key(key) else { return "?".to_owned() };
    let part = |kind: &str, part: Part| match part {
        Part::Absent => None,
        Part::Default => Some(format!("{kind}-default")),
        Part::Named(name) => Some(format!("{kind} {name}")),
    };
    let parts = [part(USER, user), part(CLIENT_ID, client_id), part(IP, ip)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
