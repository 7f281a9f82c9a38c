//! Groups as the log has them, for a coordinator that takes over.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_protocol::records::{BatchHeader, EndTxnMarker, Record};
use meridian_storage::codec::DecodeError;
use meridian_storage::mutation::Mutation;
use serde::de::DeserializeOwned;

use super::{GroupEntry, Groups};
use crate::coordination::Limits;
use crate::coordination::any_group::AnyGroup;
use crate::coordination::group_record::{self, ClassicRecord, ConsumerRecord, RecordKey};
use crate::coordination::offset_record;
use crate::coordination::pending_offsets::{PendingOffsets, Staged};
use crate::coordinator::queue::Entry;
use crate::group::Group;
use crate::group::consumer::ConsumerGroup;
use crate::share::{ShareGroup, ShareGroupImage, ShareState};

/// What a log says of its groups, as it is read.
#[derive(Debug, Default)]
pub(super) struct Loading {
    classic: BTreeMap<String, Bytes>,
    consumer: BTreeMap<String, Bytes>,
    members: BTreeMap<String, BTreeMap<String, Bytes>>,
    share: BTreeMap<String, Bytes>,
    share_members: BTreeMap<String, BTreeMap<String, Bytes>>,
}

impl Loading {
    /// Applies a record of the log.
    pub(super) fn apply<W>(
        &mut self,
        groups: &mut Groups<W>,
        batch: &BatchHeader,
        record: Record,
    ) -> Result<(), DecodeError> {
        let at = Offset::new(record.offset);
        if batch.attributes.is_control() {
            if let Some(marker) = EndTxnMarker::from_record(&record) {
                groups.on_marker(batch.producer_id, at, marker.committed);
            }
            return Ok(());
        }
        match group_record::decode_key(record.key.unwrap_or_default())? {
            RecordKey::Offset(group, key) => {
                let committed = record.value.map(offset_record::decode_value).transpose()?;
                if batch.attributes.is_transactional() {
                    groups.hear(at);
                    let staged = Staged { at, group: group.into(), key, committed };
                    groups.pending.on_found(batch.producer_id, staged);
                } else if !(Mutation::PositionsForgotten.active(groups.limits.mutations)
                    && groups.by_id.get(&group).is_some_and(|it| it.offset(key).is_some()))
                {
                    groups.apply(at, &group, key, committed);
                }
            }
            RecordKey::Classic(group) => put(&mut self.classic, group, record.value),
            RecordKey::Consumer(group) => put(&mut self.consumer, group, record.value),
            RecordKey::Member(group, member) => {
                put(self.members.entry(group).or_default(), member, record.value);
            }
            RecordKey::Share(group) => put(&mut self.share, group, record.value),
            RecordKey::ShareMember(group, member) => {
                put(self.share_members.entry(group).or_default(), member, record.value);
            }
            RecordKey::ShareState(group, key) => {
                let image = record.value.map(group_record::decode_value).transpose()?;
                groups.put_share(&group, key, image.as_ref().map(ShareState::restore));
            }
        }
        Ok(())
    }

    /// The log ends here: groups go on from what it says.
    pub(super) fn finish<W>(mut self, groups: &mut Groups<W>, now: Instant) {
        let limits = groups.limits;
        if Mutation::GroupsForgotten.active(limits.mutations) {
            self = Self::default();
        }
        if Mutation::PendingForgotten.active(limits.mutations) {
            groups.pending = PendingOffsets::default();
        }
        for (id, value) in std::mem::take(&mut self.classic) {
            let restored = restore_classic(limits, &id, value, now);
            add_restored(groups, id, restored);
        }
        for (id, value) in std::mem::take(&mut self.consumer) {
            let members = self.members.remove(&id).unwrap_or_default();
            let restored = restore_consumer(limits, &id, value, members, now);
            add_restored(groups, id, restored);
        }
        for (id, value) in std::mem::take(&mut self.share) {
            let members = self.share_members.remove(&id).unwrap_or_default();
            let restored = restore_share(limits, &id, value, members, now);
            add_restored(groups, id, restored);
        }
        // What is staged keeps its group, as it does where it was staged.
        let staged: Vec<String> = groups.pending.groups().map(str::to_owned).collect();
        for id in staged {
            groups.by_id.entry(id).or_insert_with(|| GroupEntry::new(limits));
        }
        let pending = &groups.pending;
        groups.by_id.retain(|id, entry| {
            !entry.is_bare() || entry.record.is_some() || pending.is_pending_of(id)
        });
    }
}

/// A group as its record has it, that record, and when it was written.
type Restored<W> = (AnyGroup<W>, Entry, i64);

fn put(map: &mut BTreeMap<String, Bytes>, key: String, value: Option<Bytes>) {
    match value {
        // Bytes of its own, not a view of all that was read.
        Some(value) => drop(map.insert(key, Bytes::copy_from_slice(&value))),
        None => drop(map.remove(&key)),
    }
}

fn restore_classic<W>(
    limits: Limits,
    id: &str,
    value: Bytes,
    now: Instant,
) -> Result<Restored<W>, DecodeError> {
    let record: ClassicRecord = group_record::decode_value(value.clone())?;
    let group = Group::restore(limits.classic, record.image, now);
    Ok((AnyGroup::Classic(group), (group_record::classic_key(id), Some(value)), record.at_ms))
}

fn restore_consumer<W>(
    limits: Limits,
    id: &str,
    value: Bytes,
    members: BTreeMap<String, Bytes>,
    now: Instant,
) -> Result<Restored<W>, DecodeError> {
    let record: ConsumerRecord = group_record::decode_value(value.clone())?;
    let group = ConsumerGroup::restore(limits.consumer, record.image, decoded(members)?, now);
    Ok((AnyGroup::Consumer(group), (group_record::consumer_key(id), Some(value)), record.at_ms))
}

/// Each member's record, by its id.
fn decoded<T: DeserializeOwned>(
    members: BTreeMap<String, Bytes>,
) -> Result<Vec<(String, T)>, DecodeError> {
    let member = |(id, value)| Ok((id, group_record::decode_value(value)?));
    members.into_iter().map(member).collect()
}

fn restore_share<W>(
    limits: Limits,
    id: &str,
    value: Bytes,
    members: BTreeMap<String, Bytes>,
    now: Instant,
) -> Result<Restored<W>, DecodeError> {
    let image: ShareGroupImage = group_record::decode_value(value.clone())?;
    let at_ms = image.at_ms;
    let group = ShareGroup::restore(limits.share, image, decoded(members)?, now);
    Ok((AnyGroup::Share(group), (group_record::share_key(id), Some(value)), at_ms))
}

fn add_restored<W>(groups: &mut Groups<W>, id: String, restored: Result<Restored<W>, DecodeError>) {
    match restored {
        Ok((group, record, at_ms)) => {
            let limits = groups.limits;
            let entry = groups.by_id.entry(id.clone()).or_insert_with(|| GroupEntry::new(limits));
            entry.group = group;
            entry.record = Some(record);
            entry.recorded_at_ms = at_ms;
            groups.active.insert(id);
        }
        Err(error) => tracing::error!(group = id, %error, "a group's record cannot be read"),
    }
}
