//! What of a group outlives its coordinator. Persisted through postcard: **append only**, and a
//! changed meaning needs a new version in `coordination/group_record.rs`.
//!
//! A group is one record, and one more for each member. They are written together; should only the
//! first of them be there after a fault, [`ConsumerGroup::restore`] sees that and has everything
//! shared out anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use serde::{Deserialize, Serialize};

use super::member::Progress;
use super::{
    Assignor, ConsumerGroup, ConsumerGroupLimits, ConsumerMember, Partitions, Subscriptions,
    TopicPartition,
};

/// A group, without its members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerGroupImage {
    /// The group epoch.
    pub epoch: i32,
    /// The group epoch that the target was made for.
    pub target_epoch: i32,
    /// The topics that were shared out, and how many partitions each had.
    pub topics: Vec<(TopicId, u32)>,
}

/// A member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerMemberImage {
    /// What it is called across restarts, if it is static.
    pub instance_id: Option<String>,
    /// Where it is.
    pub rack_id: Option<String>,
    /// What the client calls itself.
    pub client_id: String,
    /// Where it connects from.
    pub client_host: String,
    /// Topics it wants, by name.
    pub names: BTreeSet<String>,
    /// Topics it wants, by a regular expression.
    pub pattern: Option<String>,
    /// How it would have partitions shared out.
    pub assignor: Option<Assignor>,
    /// How long it may take to let go of partitions.
    pub rebalance_timeout_ms: u32,
    /// The epoch it is in.
    pub epoch: i32,
    /// The epoch before.
    pub previous_epoch: i32,
    /// How far it is on its way to its target.
    pub progress: Progress,
    /// What it has.
    pub assigned: Partitions,
    /// What it is to let go of.
    pub to_revoke: Partitions,
    /// What it is to have.
    pub target: Partitions,
}

/// Something of a group that is to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsumerChange {
    /// A member; `None` if it is gone.
    Member(String, Option<Box<ConsumerMemberImage>>),
    /// The group. Comes after its members.
    Group(ConsumerGroupImage),
}

impl ConsumerGroup {
    /// What changed since this was last asked for.
    pub fn take_changes(&mut self) -> Vec<ConsumerChange> {
        let changed = std::mem::take(&mut self.changed_members);
        let member = |id: String| {
            let image = self.members.get(&id).map(|member| Box::new(member.image()));
            ConsumerChange::Member(id, image)
        };
        let mut changes: Vec<ConsumerChange> = changed.into_iter().map(member).collect();
        if std::mem::take(&mut self.is_changed) {
            changes.push(ConsumerChange::Group(self.image()));
        }
        changes
    }

    /// All there is to record.
    pub fn all(&self) -> impl Iterator<Item = ConsumerChange> {
        let member = |(id, member): (&String, &ConsumerMember)| {
            ConsumerChange::Member(id.clone(), Some(Box::new(member.image())))
        };
        let group = std::iter::once_with(|| ConsumerChange::Group(self.image()));
        self.members.iter().map(member).chain(group)
    }

    fn image(&self) -> ConsumerGroupImage {
        ConsumerGroupImage {
            epoch: self.epoch,
            target_epoch: self.target_epoch,
            topics: self.subscriptions.topics().iter().map(|(it, count)| (*it, *count)).collect(),
        }
    }

    /// The group as another coordinator left it: members have a whole session to be heard from.
    pub fn restore(
        limits: ConsumerGroupLimits,
        image: ConsumerGroupImage,
        members: impl IntoIterator<Item = (String, ConsumerMemberImage)>,
        now: Instant,
    ) -> Self {
        let mut group = Self::new(limits, image.epoch);
        group.target_epoch = image.target_epoch;
        group.subscriptions = Subscriptions::restore(image.topics.into_iter().collect());
        for (id, image) in members {
            let mut member = ConsumerMember::restore(image, now, limits.session_timeout);
            // Never two owners, whatever the record says.
            member.assigned.retain(|partition| !group.owners.contains_key(partition));
            member.note_held();
            let owner = Arc::<str>::from(id.as_str());
            let owned = member.assigned.iter().chain(&member.to_revoke);
            group.owners.extend(owned.map(|partition| (*partition, Arc::clone(&owner))));
            if let Some(instance_id) = &member.instance_id {
                group.static_ids.insert(instance_id.clone(), id.clone());
            }
            group.members.insert(id, member);
        }
        if !group.is_consistent() {
            let latest = group.members.values().map(|member| member.epoch).max();
            group.epoch = group.epoch.max(latest.unwrap_or_default());
            group.rise();
        }
        group
    }

    /// Whether the target is whole, and no member is ahead of it.
    fn is_consistent(&self) -> bool {
        if self.members.is_empty() || self.epoch > self.target_epoch {
            return self.members.values().all(|member| member.epoch <= self.epoch);
        }
        let whole: Partitions = self
            .subscriptions
            .topics()
            .iter()
            .flat_map(|(&topic, &count)| {
                (0..count).map(move |index| TopicPartition { topic, index })
            })
            .collect();
        let mut targets: Vec<TopicPartition> =
            self.members.values().flat_map(|member| &member.target).copied().collect();
        targets.sort_unstable();
        targets.iter().eq(&whole)
            && self.members.values().all(|member| member.epoch <= self.target_epoch)
    }
}

impl ConsumerMember {
    fn image(&self) -> ConsumerMemberImage {
        let rebalance_timeout_ms = self.rebalance_timeout.as_millis();
        ConsumerMemberImage {
            instance_id: self.instance_id.clone(),
            rack_id: self.rack_id.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            names: self.names.clone(),
            pattern: self.pattern.clone(),
            assignor: self.assignor,
            rebalance_timeout_ms: u32::try_from(rebalance_timeout_ms).unwrap_or(u32::MAX),
            epoch: self.epoch,
            previous_epoch: self.previous_epoch,
            progress: self.progress,
            assigned: self.assigned.clone(),
            to_revoke: self.to_revoke.clone(),
            target: self.target.clone(),
        }
    }

    fn restore(image: ConsumerMemberImage, now: Instant, session_timeout: Duration) -> Self {
        let mut member = Self {
            instance_id: image.instance_id,
            rack_id: image.rack_id,
            client_id: image.client_id,
            client_host: image.client_host,
            names: image.names,
            pattern: image.pattern,
            assignor: image.assignor,
            hidden: BTreeSet::new(),
            sight: None,
            epoch: image.epoch,
            assigned: image.assigned,
            target: image.target,
            previous_epoch: image.previous_epoch,
            progress: image.progress,
            to_revoke: image.to_revoke,
            held_since: BTreeMap::new(),
            rebalance_timeout: Duration::from_millis(image.rebalance_timeout_ms.into()),
            session_deadline: now + session_timeout,
            revocation_deadline: None,
        };
        member.restart_revocation(now, true);
        member
    }
}
