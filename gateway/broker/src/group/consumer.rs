//! A consumer group of the protocol of KIP-848, as its coordinator runs it. Pure: time and topics
//! come in, what to answer and what to record comes out.
//!
//! ```text
//! subscriptions, topics ---> group epoch     rises when what is to be shared out changes
//!                                |  assignor, at the next heartbeat of anyone
//!                                v
//!                           target epoch     who is to have what
//!                                |  each member's own heartbeats
//!                                v
//!                           member epoch     who has what
//! ```
//!
//! A partition is free for its next owner once its last one has said, by no longer naming it in a
//! heartbeat, that it has let go of it, or was removed from the group. So it has one owner at any
//! time, while everybody else goes on consuming.

mod assignor;
mod image;
mod member;
mod subscription;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;

pub use self::assignor::Assignor;
pub use self::image::{ConsumerChange, ConsumerGroupImage, ConsumerMemberImage};
pub use self::member::ConsumerMember;
use self::member::Progress;
use self::subscription::{Pattern, Subscriptions};
pub use self::subscription::{TopicCount, Topics, TopicsVersion};
use super::memory::{HELD_SIZE_BYTES, MEMBER_SIZE_BYTES};

/// A partition, as members own it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct TopicPartition {
    /// Its topic.
    pub topic: TopicId,
    /// Its index there.
    pub index: u32,
}

/// Partitions of any topics.
pub type Partitions = BTreeSet<TopicPartition>;

/// The epoch of a member that joins.
pub const JOIN_EPOCH: i32 = 0;
/// The epoch of a member that leaves for good.
pub const LEAVE_EPOCH: i32 = -1;
/// The epoch of a static member that leaves and is to come back.
pub const LEAVE_STATIC_EPOCH: i32 = -2;

/// Bounds of such a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerGroupLimits {
    /// Without a heartbeat for this long a member is removed.
    pub session_timeout: Duration,
    /// Most members.
    pub member_count_max: usize,
}

/// What a member says. `None`: as before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerHeartbeat {
    /// Who.
    pub member_id: String,
    /// The epoch it believes to be in, or one of the constants above.
    pub epoch: i32,
    /// What it is called across restarts, if it is static.
    pub instance_id: Option<String>,
    /// Where it is, for operators.
    pub rack_id: Option<String>,
    /// How long it may take to let go of partitions.
    pub rebalance_timeout: Option<Duration>,
    /// Topics it wants, by name.
    pub names: Option<BTreeSet<String>>,
    /// Topics it wants, by a regular expression that their whole name matches; empty for none.
    pub pattern: Option<String>,
    /// How it would have partitions shared out.
    pub assignor: Option<Assignor>,
    /// What it owns.
    pub owned: Option<Partitions>,
    /// What the client calls itself, for operators.
    pub client_id: String,
    /// Where it connects from, for operators.
    pub client_host: String,
}

impl ConsumerHeartbeat {
    /// What it makes its coordinator hold beyond what that has of the member already, about.
    pub fn brought_size_bytes(&self) -> usize {
        let names = self.names.iter().flatten().map(String::len).sum::<usize>();
        let pattern = self.pattern.as_ref().map_or(0, String::len);
        let joining = if self.epoch == JOIN_EPOCH { MEMBER_SIZE_BYTES } else { 0 };
        joining + names + pattern
    }

    /// Whether it says everything, as one does who wants to hear everything.
    fn is_full(&self) -> bool {
        self.epoch == JOIN_EPOCH
            || (self.rebalance_timeout.is_some()
                && (self.names.is_some() || self.pattern.is_some())
                && self.owned.is_some())
    }
}

/// What a member is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerReply {
    /// Its epoch from now on.
    pub epoch: i32,
    /// What it is to own from now on; `None`: as before.
    pub assignment: Option<Partitions>,
}

impl ConsumerReply {
    /// What its coordinator may hold for the assignment from now on, at most: it is named four times,
    /// as the member's own, as its target, by when it came, and with its owner.
    pub fn held_size_bytes(&self) -> usize {
        4 * HELD_SIZE_BYTES * self.assignment.as_ref().map_or(0, BTreeSet::len)
    }
}

/// Why such a group turns a caller away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConsumerGroupError {
    /// Not a member (any more).
    #[error("{member_id} is not a member of the group; join again with epoch 0")]
    UnknownMember {
        /// Who.
        member_id: String,
    },
    /// It must give up what it owns and join again.
    #[error(
        "the member is in epoch {ours}, not in {theirs}; give up all partitions and join again"
    )]
    FencedEpoch {
        /// The member's epoch.
        ours: i32,
        /// What it said.
        theirs: i32,
    },
    /// It must not commit or read positions with this epoch.
    #[error(
        "the member is in epoch {ours}, not in {theirs}; repeat it with the epoch of the last heartbeat"
    )]
    StaleEpoch {
        /// The member's epoch.
        ours: i32,
        /// What it said.
        theirs: i32,
    },
    /// Another process runs under this instance id.
    #[error("another member has taken over the instance id {instance_id}; stop one of them")]
    FencedInstance {
        /// The id.
        instance_id: String,
    },
    /// The instance id is in use.
    #[error(
        "{member_id} still uses the instance id {instance_id}; stop it, or wait until its session ends"
    )]
    UnreleasedInstance {
        /// The id.
        instance_id: String,
        /// Who uses it.
        member_id: String,
    },
    /// No room.
    #[error("the group has {count_max} members, as many as it may have")]
    TooManyMembers {
        /// How many it may have.
        count_max: usize,
    },
    /// Not a regular expression, or too large a one.
    #[error("the regular expression is refused: {reason}")]
    InvalidPattern {
        /// Why.
        reason: String,
    },
}

/// What such a group is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerGroupState {
    /// It has no members.
    Empty,
    /// The target is older than the group.
    Assigning,
    /// Members are on their way to the target.
    Reconciling,
    /// All members have what they are to have.
    Stable,
}

impl ConsumerGroupState {
    /// Kafka's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Assigning => "Assigning",
            Self::Reconciling => "Reconciling",
            Self::Stable => "Stable",
        }
    }
}

/// A consumer group of KIP-848.
#[derive(Debug)]
pub struct ConsumerGroup {
    limits: ConsumerGroupLimits,
    epoch: i32,
    target_epoch: i32,
    members: BTreeMap<String, ConsumerMember>,
    static_ids: BTreeMap<String, String>,
    /// Who has a partition, or has not let go of it yet.
    owners: BTreeMap<TopicPartition, Arc<str>>,
    subscriptions: Subscriptions,
    /// Members to record, or to delete from the record.
    changed_members: BTreeSet<String>,
    is_changed: bool,
}

impl ConsumerGroup {
    /// A group without members, whose epochs rise from `epoch`.
    pub fn new(limits: ConsumerGroupLimits, epoch: i32) -> Self {
        Self {
            limits,
            epoch,
            target_epoch: epoch,
            members: BTreeMap::new(),
            static_ids: BTreeMap::new(),
            owners: BTreeMap::new(),
            subscriptions: Subscriptions::default(),
            changed_members: BTreeSet::new(),
            is_changed: false,
        }
    }

    /// What the group is doing.
    pub fn state(&self) -> ConsumerGroupState {
        if self.members.is_empty() {
            ConsumerGroupState::Empty
        } else if self.epoch > self.target_epoch {
            ConsumerGroupState::Assigning
        } else if self.members.values().any(|member| !member.is_settled(self.target_epoch)) {
            ConsumerGroupState::Reconciling
        } else {
            ConsumerGroupState::Stable
        }
    }

    /// Rises when what is to be shared out changes.
    pub fn epoch(&self) -> i32 {
        self.epoch
    }

    /// The group epoch that the target was made for.
    pub fn target_epoch(&self) -> i32 {
        self.target_epoch
    }

    /// How partitions are shared out: as most members want it.
    pub fn assignor(&self) -> Assignor {
        Assignor::preferred(self.members.values().filter_map(|member| member.assignor))
    }

    /// All members, by id.
    pub fn members(&self) -> impl Iterator<Item = (&str, &ConsumerMember)> {
        self.members.iter().map(|(id, member)| (id.as_str(), member))
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether any member wants this topic.
    pub fn is_subscribed(&self, name: &str) -> bool {
        self.members.values().any(|member| self.subscriptions.wants(member, name))
    }

    /// Takes a member in, hears from it or lets it go.
    pub fn heartbeat(
        &mut self,
        now: Instant,
        beat: ConsumerHeartbeat,
        topics: &dyn Topics,
    ) -> Result<ConsumerReply, ConsumerGroupError> {
        match beat.epoch {
            LEAVE_EPOCH | LEAVE_STATIC_EPOCH => self.leave(&beat),
            JOIN_EPOCH => {
                let pattern = self.pattern(&beat)?;
                let is_new = self.admit(now, &beat)?;
                Ok(self.go_on(now, beat, pattern, is_new, topics))
            }
            _ => {
                self.check_instance(&beat)?;
                let member = self.member(&beat.member_id)?;
                member.check_epoch(beat.epoch, beat.owned.as_ref())?;
                let pattern = self.pattern(&beat)?;
                Ok(self.go_on(now, beat, pattern, false, topics))
            }
        }
    }

    fn pattern(&self, beat: &ConsumerHeartbeat) -> Result<Option<Pattern>, ConsumerGroupError> {
        match beat.pattern.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => self.subscriptions.pattern(text).map(Some),
        }
    }

    fn member(&self, member_id: &str) -> Result<&ConsumerMember, ConsumerGroupError> {
        let unknown = || ConsumerGroupError::UnknownMember { member_id: member_id.to_owned() };
        self.members.get(member_id).ok_or_else(unknown)
    }

    /// A static member must be the one that runs under its instance id.
    fn check_instance(&self, beat: &ConsumerHeartbeat) -> Result<(), ConsumerGroupError> {
        let Some(instance_id) = &beat.instance_id else { return Ok(()) };
        match self.static_ids.get(instance_id) {
            None => Err(ConsumerGroupError::UnknownMember { member_id: beat.member_id.clone() }),
            Some(holder) if *holder != beat.member_id => {
                Err(ConsumerGroupError::FencedInstance { instance_id: instance_id.clone() })
            }
            Some(_) => Ok(()),
        }
    }

    /// Makes sure that whoever joins is a member; whether it was none before.
    fn admit(
        &mut self,
        now: Instant,
        beat: &ConsumerHeartbeat,
    ) -> Result<bool, ConsumerGroupError> {
        let holder = beat.instance_id.as_ref().and_then(|id| self.static_ids.get(id)).cloned();
        match holder {
            Some(holder) if holder != beat.member_id => {
                self.replace_static(&holder, beat).map(|()| false)
            }
            _ if self.members.contains_key(&beat.member_id) => Ok(false),
            _ => self.add(now, beat).map(|()| true),
        }
    }

    fn add(&mut self, now: Instant, beat: &ConsumerHeartbeat) -> Result<(), ConsumerGroupError> {
        let count_max = self.limits.member_count_max;
        if self.members.len() >= count_max {
            return Err(ConsumerGroupError::TooManyMembers { count_max });
        }
        let member = ConsumerMember::new(now + self.limits.session_timeout);
        self.members.insert(beat.member_id.clone(), member);
        Ok(())
    }

    /// A static member came back under a new id: its place and what it had stay.
    fn replace_static(
        &mut self,
        holder: &str,
        beat: &ConsumerHeartbeat,
    ) -> Result<(), ConsumerGroupError> {
        if self.member(holder)?.epoch != LEAVE_STATIC_EPOCH {
            return Err(ConsumerGroupError::UnreleasedInstance {
                instance_id: beat.instance_id.clone().unwrap_or_default(),
                member_id: holder.to_owned(),
            });
        }
        let Some(mut member) = self.members.remove(holder) else { return Ok(()) };
        member.epoch = JOIN_EPOCH;
        member.previous_epoch = LEAVE_STATIC_EPOCH;
        let owner = Arc::<str>::from(beat.member_id.as_str());
        self.owners.extend(member.assigned.iter().map(|owned| (*owned, Arc::clone(&owner))));
        self.members.insert(beat.member_id.clone(), member);
        self.changed_members.insert(holder.to_owned());
        self.changed_members.insert(beat.member_id.clone());
        Ok(())
    }

    fn leave(&mut self, beat: &ConsumerHeartbeat) -> Result<ConsumerReply, ConsumerGroupError> {
        self.check_instance(beat)?;
        self.member(&beat.member_id)?;
        if beat.epoch == LEAVE_EPOCH {
            self.remove(&beat.member_id);
        } else if let Some(member) = self.members.get_mut(&beat.member_id) {
            // What it has stays its own, for as long as its session.
            for released in std::mem::take(&mut member.to_revoke) {
                self.owners.remove(&released);
            }
            member.epoch = LEAVE_STATIC_EPOCH;
            member.progress = Progress::Settled;
            member.revocation_deadline = None;
            self.changed_members.insert(beat.member_id.clone());
        }
        Ok(ConsumerReply { epoch: beat.epoch, assignment: None })
    }

    /// Removes a member at an operator's wish: by id, or if that is empty by instance.
    pub fn remove_member(
        &mut self,
        member_id: &str,
        instance_id: Option<&str>,
    ) -> Result<(), ConsumerGroupError> {
        let holder = instance_id.and_then(|id| self.static_ids.get(id)).cloned();
        let id = match (instance_id, holder) {
            (None, _) => member_id.to_owned(),
            (Some(_), Some(holder)) if member_id.is_empty() || holder == member_id => holder,
            (Some(id), Some(_)) => {
                return Err(ConsumerGroupError::FencedInstance { instance_id: id.to_owned() });
            }
            (Some(_), None) => member_id.to_owned(),
        };
        self.member(&id)?;
        self.remove(&id);
        Ok(())
    }

    /// Removes members that have not been heard from, or do not let go of what they must.
    pub fn tick(&mut self, now: Instant) {
        let late: Vec<String> = self
            .members
            .iter()
            .filter(|(_, member)| member.has_expired(now))
            .map(|(id, _)| id.clone())
            .collect();
        for id in late {
            self.remove(&id);
        }
    }

    /// How long members may be silent, from their next heartbeats on.
    pub fn set_session_timeout(&mut self, session_timeout: Duration) {
        self.limits.session_timeout = session_timeout;
    }

    /// What its members make their coordinator hold, about.
    pub fn members_size_bytes(&self) -> usize {
        let members = self.members.values().map(ConsumerMember::held_size_bytes);
        members.sum::<usize>() + self.owners.len() * HELD_SIZE_BYTES
    }

    /// When [`Self::tick`] has something to do, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = |member: &ConsumerMember| {
            [Some(member.session_deadline), member.revocation_deadline].into_iter().flatten()
        };
        self.members.values().flat_map(deadlines).min()
    }

    fn remove(&mut self, member_id: &str) {
        let Some(member) = self.members.remove(member_id) else { return };
        for released in member.assigned.iter().chain(&member.to_revoke) {
            self.owners.remove(released);
        }
        if let Some(instance_id) = &member.instance_id {
            self.static_ids.remove(instance_id);
        }
        self.changed_members.insert(member_id.to_owned());
        self.rise();
    }

    fn rise(&mut self) {
        self.epoch = self.epoch.saturating_add(1);
        self.is_changed = true;
    }

    /// A member that is in the group, and in the right epoch, goes on.
    fn go_on(
        &mut self,
        now: Instant,
        beat: ConsumerHeartbeat,
        pattern: Option<Pattern>,
        is_new: bool,
        topics: &dyn Topics,
    ) -> ConsumerReply {
        let (member_id, owned, is_full) =
            (beat.member_id.clone(), beat.owned.clone(), beat.is_full());
        let Some(member) = self.members.get_mut(&member_id) else {
            return ConsumerReply { epoch: LEAVE_EPOCH, assignment: None };
        };
        member.session_deadline = now + self.limits.session_timeout;
        let before = member.assigned.clone();
        let update = member.update(beat);
        if let Some(instance_id) = &member.instance_id {
            self.static_ids.insert(instance_id.clone(), member_id.clone());
        }
        if update.is_changed || is_new {
            self.changed_members.insert(member_id.clone());
        }
        self.subscriptions.remember(pattern);
        let sees_others = self.look(&member_id, update.is_resubscribed, topics);
        let is_other = is_new || update.is_resubscribed || sees_others;
        let is_behind = self.epoch > self.target_epoch;
        // Members may have gone since, and what only they wanted with them.
        let is_due = is_other || is_behind || !self.subscriptions.is_as_of(topics.version());
        let is_resolved_anew = is_due && self.subscriptions.resolve(self.members.values(), topics);
        if is_other || (is_resolved_anew && !is_behind) {
            self.rise();
        }
        if self.epoch > self.target_epoch {
            self.assign();
        }
        self.reconcile(now, &member_id, owned.as_ref());
        let Some(member) = self.members.get(&member_id) else {
            return ConsumerReply { epoch: LEAVE_EPOCH, assignment: None };
        };
        let assignment = (is_full || member.assigned != before).then(|| member.assigned.clone());
        ConsumerReply { epoch: member.epoch, assignment }
    }

    /// Looks which topics a member may not see; whether those are others than before.
    fn look(&mut self, member_id: &str, is_resubscribed: bool, topics: &dyn Topics) -> bool {
        let Some(member) = self.members.get_mut(member_id) else { return false };
        let sight = Some((topics.version(), topics.sight()));
        if member.sight == sight && !is_resubscribed {
            return false;
        }
        member.sight = sight;
        // Of a group that was restored it may not be known yet.
        let pattern = member.pattern.as_deref().map(|text| self.subscriptions.pattern(text));
        self.subscriptions.remember(pattern.and_then(Result::ok));
        let hidden = self.subscriptions.hidden(member, topics);
        let before = std::mem::replace(&mut member.hidden, hidden);
        before != member.hidden
    }

    /// Makes the target for the present group epoch.
    fn assign(&mut self) {
        let targets = self.subscriptions.assign(self.assignor(), &self.members);
        for ((id, member), target) in self.members.iter_mut().zip(targets) {
            if member.target != target {
                member.target = target;
                self.changed_members.insert(id.clone());
            }
        }
        self.target_epoch = self.epoch;
        self.is_changed = true;
    }

    /// Brings a member as near to its target as others allow.
    fn reconcile(&mut self, now: Instant, member_id: &str, owned: Option<&Partitions>) {
        let Some(member) = self.members.get_mut(member_id) else { return };
        let owners = &self.owners;
        let is_free = |partition: &TopicPartition| {
            owners.get(partition).is_none_or(|owner| &**owner == member_id)
        };
        let Some(next) = member.next(self.target_epoch, owned, is_free) else { return };
        let held: Partitions = &member.assigned | &member.to_revoke;
        let holds = &next.assigned | &next.to_revoke;
        for released in held.difference(&holds) {
            self.owners.remove(released);
        }
        let owner = Arc::<str>::from(member_id);
        let taken = holds.difference(&held).map(|taken| (*taken, Arc::clone(&owner)));
        self.owners.extend(taken);
        member.advance(now, next);
        self.changed_members.insert(member_id.to_owned());
    }

    /// Whether the caller may commit offsets of these partitions. Who is no member may if nobody is.
    /// A member may in an earlier epoch, if it had all of them then and has them still: a heartbeat may
    /// raise its epoch while a commit is on its way (KIP-1251).
    pub fn check_commit(
        &self,
        member_id: &str,
        epoch: i32,
        mut partitions: impl Iterator<Item = TopicPartition>,
    ) -> Result<(), ConsumerGroupError> {
        if epoch < 0 && self.members.is_empty() {
            return Ok(());
        }
        let member = self.member(member_id)?;
        if partitions.all(|partition| member.may_commit(epoch, partition)) {
            // Without a partition there is nothing to be late with.
            return Ok(());
        }
        self.check_member(member_id, epoch)
    }

    /// Whether the caller may read offsets. Who does not claim to be a member always may.
    pub fn check_fetch(&self, member_id: &str, epoch: i32) -> Result<(), ConsumerGroupError> {
        if epoch < 0 && member_id.is_empty() {
            return Ok(());
        }
        self.check_member(member_id, epoch)
    }

    fn check_member(&self, member_id: &str, epoch: i32) -> Result<(), ConsumerGroupError> {
        let ours = self.member(member_id)?.epoch;
        if ours == epoch {
            Ok(())
        } else {
            Err(ConsumerGroupError::StaleEpoch { ours, theirs: epoch })
        }
    }
}
