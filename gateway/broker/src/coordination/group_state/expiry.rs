//! What nobody has come back to is forgotten (`offsets.retention.minutes`). Pure.
//!
//! | group | an offset expires |
//! | --- | --- |
//! | without members | when it was committed, and the last member left, that long ago |
//! | that never had members | when it was committed that long ago |
//! | of consumers | when it was committed that long ago in a topic that none of them reads |
//! | whose members' topics are not known | never |
//!
//! Nothing is removed while a transaction has something staged in its place, which would go with it.
//! A group without members and offsets goes.

use meridian_base::id::TopicId;
use meridian_storage::mutation::Mutation;

use super::{Changes, GroupEntry, Groups};
use crate::coordination::offset_record::OffsetKey;

impl<W> Groups<W> {
    /// Removes expired offsets, and groups that have none; returns how many offsets.
    pub fn expire(
        &mut self,
        now_ms: i64,
        retention_ms: i64,
        topic_name: impl Fn(TopicId) -> Option<String>,
    ) -> usize {
        let settled = self.by_id.iter().filter(|(id, _)| self.is_settled(id));
        let due = settled.filter_map(|(id, entry)| {
            if entry.is_bare() && !self.pending.is_pending_of(id) {
                return Some((id.clone(), Vec::new()));
            }
            let mut keys = entry.expired(now_ms, retention_ms, &topic_name);
            if !Mutation::ExpiredWhilePending.active(self.limits.mutations) {
                keys.retain(|key| !self.pending.is_pending(id, *key));
            }
            (!keys.is_empty()).then(|| (id.clone(), keys))
        });
        let due: Vec<(String, Vec<OffsetKey>)> = due.collect();
        let mut count = 0;
        for (id, keys) in due {
            if keys.is_empty() {
                self.forget(&id);
                continue;
            }
            count += keys.len();
            let changes: Changes = keys.into_iter().map(|key| (key, None)).collect();
            self.write_offsets(&id, changes, None);
        }
        count
    }
}

impl<W> GroupEntry<W> {
    fn expired(
        &self,
        now_ms: i64,
        retention_ms: i64,
        topic_name: impl Fn(TopicId) -> Option<String>,
    ) -> Vec<OffsetKey> {
        let is_old = |at_ms: i64| now_ms.saturating_sub(at_ms) >= retention_ms;
        let is_empty = self.group.is_empty();
        if is_empty && !is_old(self.recorded_at_ms) {
            return Vec::new();
        }
        let is_read = |topic: TopicId| {
            let names = topic_name(topic).into_iter();
            !is_empty && !self.group.subscribed(names).is_empty()
        };
        if !is_empty && !self.group.knows_topics() {
            return Vec::new();
        }
        let old = self.offsets().filter(|(_, committed)| is_old(committed.committed_at_ms));
        old.map(|(key, _)| key).filter(|key| !is_read(key.topic)).collect()
    }
}
