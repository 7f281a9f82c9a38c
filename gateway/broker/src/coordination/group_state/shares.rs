//! Share groups among the groups of a coordinator, and what they keep of partitions. As decisions of groups, a change
//! takes effect when it is decided, and is answered when its record is committed.

use std::collections::BTreeMap;

use meridian_base::position::{LeaderEpoch, Offset};
use meridian_protocol::ErrorCode;

use super::{Effect, GroupEntry, Groups};
use crate::coordination::AnyGroup;
use crate::coordination::group_record;
use crate::coordination::offset_record::OffsetKey;
use crate::coordinator::queue::{Entry, Write};
use crate::share::{Delta, Opening, ShareError, ShareGroup, ShareImage, ShareState};

/// Partitions that one group may share.
const SHARE_COUNT_MAX: usize = 100_000;

/// The record of what a group keeps of a partition.
pub(super) fn share_entry(id: &str, key: OffsetKey, state: &ShareState) -> Entry {
    let value = group_record::encode_value(&state.image());
    (group_record::share_state_key(id, key), Some(value))
}

impl<W> GroupEntry<W> {
    /// What a share group keeps of partitions.
    pub fn shares(&self) -> &BTreeMap<OffsetKey, ShareState> {
        &self.shares
    }
}

impl<W> Groups<W> {
    /// The share group of this name, made if nothing has that name.
    pub fn share_group(&mut self, id: &str) -> Result<&mut ShareGroup, ErrorCode> {
        let is_free = self.existing(id).is_none();
        let limits = self.limits.share;
        let entry = self.entry(id)?;
        if is_free && !matches!(entry.group, AnyGroup::Share(_)) {
            entry.become_another(AnyGroup::Share(ShareGroup::new(limits)));
        }
        match &mut entry.group {
            AnyGroup::Share(group) => Ok(group),
            AnyGroup::Classic(_) | AnyGroup::Consumer(_) => Err(ErrorCode::GroupIdNotFound),
        }
    }

    /// A leader opens what a group keeps of its partition.
    pub fn open_share(
        &mut self,
        id: &str,
        key: OffsetKey,
        epoch: LeaderEpoch,
        opening: Opening,
    ) -> Result<ShareImage, ShareError> {
        let state = self.share_state(id, key)?;
        state.open(epoch, opening)?;
        let image = state.image();
        self.record_share(id, key);
        Ok(image)
    }

    /// A leader writes what has changed in its window.
    pub fn write_share(
        &mut self,
        id: &str,
        key: OffsetKey,
        opening: Opening,
        delta: &Delta,
    ) -> Result<(), ShareError> {
        let state = self.share_entry(id)?.shares.get_mut(&key).ok_or(ShareError::FencedState)?;
        if state.write(opening, delta)? {
            self.record_share(id, key);
        }
        Ok(())
    }

    /// Sets where an empty group goes on with a partition.
    pub fn seek_share(
        &mut self,
        id: &str,
        key: OffsetKey,
        start: Offset,
    ) -> Result<(), ShareError> {
        self.share_state(id, key)?.seek(start);
        self.record_share(id, key);
        Ok(())
    }

    /// Forgets what a group keeps of a partition. Gives whether it kept anything.
    pub fn forget_share(&mut self, id: &str, key: OffsetKey) -> bool {
        let Some(entry) = self.by_id.get_mut(id) else { return false };
        if entry.shares.remove(&key).is_none() {
            return false;
        }
        let records = vec![(group_record::share_state_key(id, key), None)];
        self.push(id, Write { records, effect: Effect::Nothing });
        true
    }

    /// Applies a record of the log.
    pub(super) fn put_share(&mut self, id: &str, key: OffsetKey, state: Option<ShareState>) {
        let limits = self.limits;
        let entry = self.by_id.entry(id.to_owned()).or_insert_with(|| GroupEntry::new(limits));
        match state {
            Some(state) => drop(entry.shares.insert(key, state)),
            None => drop(entry.shares.remove(&key)),
        }
    }

    fn share_entry(&mut self, id: &str) -> Result<&mut GroupEntry<W>, ShareError> {
        let entry = self.by_id.get_mut(id);
        let is_share = |entry: &&mut GroupEntry<W>| matches!(entry.group, AnyGroup::Share(_));
        entry.filter(is_share).ok_or(ShareError::UnknownGroup)
    }

    /// What a group keeps of a partition, from now on if it kept nothing.
    fn share_state(&mut self, id: &str, key: OffsetKey) -> Result<&mut ShareState, ShareError> {
        let entry = self.share_entry(id)?;
        if !entry.shares.contains_key(&key) && entry.shares.len() >= SHARE_COUNT_MAX {
            return Err(ShareError::TooMany);
        }
        Ok(entry.shares.entry(key).or_default())
    }

    fn record_share(&mut self, id: &str, key: OffsetKey) {
        let state = self.by_id.get(id).and_then(|entry| entry.shares.get(&key));
        let records = state.map(|state| share_entry(id, key, state)).into_iter().collect();
        self.push(id, Write { records, effect: Effect::Nothing });
    }
}
