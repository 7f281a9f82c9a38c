//! The members of a share group (KIP-932), and which partitions each is to fetch from. Pure.
//!
//! A partition may have many members, so nobody has to let go of anything: an assignment follows from the members,
//! their subscriptions and the topics alone, and is not recorded. Members of a topic, in the order of their ids, take
//! its partitions in turn, and partitions members, until each has had one: no partition is without a member, and no
//! member without a partition. Topics begin at different members.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use serde::{Deserialize, Serialize};

use crate::group::consumer::{
    ConsumerGroupError, ConsumerReply, JOIN_EPOCH, LEAVE_EPOCH, Partitions, TopicCount,
    TopicPartition, Topics, TopicsVersion,
};
use crate::group::memory::{HELD_SIZE_BYTES, MEMBER_SIZE_BYTES};

/// Bounds of a share group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareGroupLimits {
    /// Without a heartbeat for this long a member is removed.
    pub session_timeout: Duration,
    /// Most members.
    pub member_count_max: usize,
}

/// What a member says. `None`: as before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareHeartbeat {
    /// Who.
    pub member_id: String,
    /// The epoch it believes to be in; 0 to join, -1 to leave.
    pub epoch: i32,
    /// Where it is, for operators.
    pub rack_id: Option<String>,
    /// Topics it wants.
    pub names: Option<BTreeSet<String>>,
    /// What the client calls itself, for operators.
    pub client_id: String,
    /// Where it connects from, for operators.
    pub client_host: String,
}

impl ShareHeartbeat {
    /// What it makes its coordinator hold beyond what that has of the member already, about.
    pub fn brought_size_bytes(&self) -> usize {
        let names = self.names.iter().flatten().map(String::len).sum::<usize>();
        if self.epoch == JOIN_EPOCH { MEMBER_SIZE_BYTES + names } else { names }
    }
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareMember {
    /// As it is recorded.
    pub image: ShareMemberImage,
    /// What it is to fetch from.
    pub assigned: Partitions,
    session_deadline: Instant,
}

/// A group as it is recorded, without its members. Persisted through postcard: **append only**.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareGroupImage {
    /// The group epoch.
    pub epoch: i32,
    /// The topics that were shared out, and how many partitions each had.
    pub topics: Vec<(TopicId, u32)>,
    /// When that was so.
    pub at_ms: i64,
}

/// A member as it is recorded. Persisted through postcard: **append only**.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareMemberImage {
    /// Where it is.
    pub rack_id: Option<String>,
    /// What the client calls itself.
    pub client_id: String,
    /// Where it connects from.
    pub client_host: String,
    /// Topics it wants.
    pub names: BTreeSet<String>,
    /// The epoch it is in.
    pub epoch: i32,
    /// The epoch before, in which a member may still be whose answer was lost.
    pub previous_epoch: i32,
}

/// See the module.
#[derive(Debug)]
pub struct ShareGroup {
    limits: ShareGroupLimits,
    epoch: i32,
    members: BTreeMap<String, ShareMember>,
    /// The topics that members want and that are there.
    topics: BTreeMap<TopicId, u32>,
    /// As of when; `None` if assignments are to be made anew.
    version: Option<TopicsVersion>,
    changed_members: BTreeSet<String>,
    is_changed: bool,
}

impl ShareGroup {
    /// A group without members.
    pub fn new(limits: ShareGroupLimits) -> Self {
        Self {
            limits,
            epoch: 0,
            members: BTreeMap::new(),
            topics: BTreeMap::new(),
            version: None,
            changed_members: BTreeSet::new(),
            is_changed: true,
        }
    }

    /// The group as another coordinator left it: members have a whole session to be heard from.
    pub fn restore(
        limits: ShareGroupLimits,
        image: ShareGroupImage,
        members: impl IntoIterator<Item = (String, ShareMemberImage)>,
        now: Instant,
    ) -> Self {
        let session_deadline = now + limits.session_timeout;
        let member = |(id, image): (String, ShareMemberImage)| {
            (id, ShareMember { image, assigned: Partitions::new(), session_deadline })
        };
        let members: BTreeMap<_, _> = members.into_iter().map(member).collect();
        // Should only members be in the log after a fault, no epoch is used twice.
        let latest = members.values().map(|member| member.image.epoch).max();
        let epoch = latest.map_or(image.epoch, |latest| latest.max(image.epoch));
        let topics = image.topics.into_iter().collect();
        Self { epoch, members, topics, is_changed: false, ..Self::new(limits) }
    }

    /// Rises when what is to be shared out changes.
    pub fn epoch(&self) -> i32 {
        self.epoch
    }

    /// All members, by id.
    pub fn members(&self) -> impl Iterator<Item = (&str, &ShareMember)> {
        self.members.iter().map(|(id, member)| (id.as_str(), member))
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Kafka's name for what it is doing.
    pub fn state_name(&self) -> &'static str {
        if self.members.is_empty() { "Empty" } else { "Stable" }
    }

    /// Whether any member wants this topic.
    pub fn is_subscribed(&self, name: &str) -> bool {
        self.members.values().any(|member| member.image.names.contains(name))
    }

    /// Sets how long members may be silent, from their next heartbeat on.
    pub fn set_limits(&mut self, limits: ShareGroupLimits) {
        self.limits = limits;
    }

    /// What its members make their coordinator hold, about.
    pub fn members_size_bytes(&self) -> usize {
        let size = |member: &ShareMember| {
            let names = member.image.names.iter().map(String::len).sum::<usize>();
            MEMBER_SIZE_BYTES + names + member.assigned.len() * HELD_SIZE_BYTES
        };
        self.members.values().map(size).sum()
    }

    /// Takes a member in, hears from it or lets it go.
    pub fn heartbeat(
        &mut self,
        now: Instant,
        beat: ShareHeartbeat,
        topics: &dyn Topics,
    ) -> Result<ConsumerReply, ConsumerGroupError> {
        let known = self.members.get(&beat.member_id);
        let unknown = || ConsumerGroupError::UnknownMember { member_id: beat.member_id.clone() };
        match (beat.epoch, known) {
            (LEAVE_EPOCH, None) => return Err(unknown()),
            (LEAVE_EPOCH, Some(_)) => {
                self.remove(&beat.member_id);
                return Ok(ConsumerReply { epoch: LEAVE_EPOCH, assignment: None });
            }
            (JOIN_EPOCH, None) if self.members.len() >= self.limits.member_count_max => {
                let count_max = self.limits.member_count_max;
                return Err(ConsumerGroupError::TooManyMembers { count_max });
            }
            (JOIN_EPOCH, _) => {}
            (_, None) => return Err(unknown()),
            (theirs, Some(member)) => {
                let ShareMemberImage { epoch: ours, previous_epoch, .. } = member.image;
                if theirs != ours && theirs != previous_epoch {
                    return Err(ConsumerGroupError::FencedEpoch { ours, theirs });
                }
            }
        }
        let (id, theirs) = (beat.member_id.clone(), beat.epoch);
        self.update(now, beat);
        self.share_out(topics);
        let unknown = || ConsumerGroupError::UnknownMember { member_id: id.clone() };
        let member = self.members.get_mut(&id).ok_or_else(unknown)?;
        if member.image.epoch != self.epoch {
            member.image.previous_epoch = member.image.epoch;
            member.image.epoch = self.epoch;
            self.changed_members.insert(id);
        }
        let is_news = theirs != member.image.epoch;
        let assignment = is_news.then(|| member.assigned.clone());
        Ok(ConsumerReply { epoch: member.image.epoch, assignment })
    }

    /// Takes over what a member says about itself.
    fn update(&mut self, now: Instant, beat: ShareHeartbeat) {
        let session_deadline = now + self.limits.session_timeout;
        let is_new = !self.members.contains_key(&beat.member_id);
        let member = self.members.entry(beat.member_id.clone()).or_insert_with(|| ShareMember {
            image: ShareMemberImage::default(),
            assigned: Partitions::new(),
            session_deadline,
        });
        member.session_deadline = session_deadline;
        let before = member.image.clone();
        member.image.client_id = beat.client_id;
        member.image.client_host = beat.client_host;
        if beat.rack_id.is_some() {
            member.image.rack_id = beat.rack_id;
        }
        if let Some(names) = beat.names {
            member.image.names = names;
        }
        let is_resubscribed = is_new || member.image.names != before.names;
        if is_new || member.image != before {
            self.changed_members.insert(beat.member_id);
        }
        if is_resubscribed {
            self.rise();
        }
    }

    fn rise(&mut self) {
        self.epoch = self.epoch.saturating_add(1);
        self.version = None;
        self.is_changed = true;
    }

    /// Makes the assignments anew if members or topics have changed.
    fn share_out(&mut self, topics: &dyn Topics) {
        let version = topics.version();
        if self.version == Some(version) {
            return;
        }
        let names: BTreeSet<&String> =
            self.members.values().flat_map(|member| &member.image.names).collect();
        let found: BTreeMap<String, TopicCount> =
            names.into_iter().filter_map(|name| Some((name.clone(), topics.find(name)?))).collect();
        let counts = found.values().map(|it| (it.topic, it.partition_count)).collect();
        if counts != self.topics {
            self.topics = counts;
            self.rise();
        }
        self.version = Some(version);
        self.members.values_mut().for_each(|member| member.assigned.clear());
        let mut offset = 0;
        for (name, count) in &found {
            let is_its = |member: &&mut ShareMember| member.image.names.contains(name);
            let mut members: Vec<&mut ShareMember> =
                self.members.values_mut().filter(is_its).collect();
            assign(&mut members, *count, offset);
            offset += count.partition_count as usize;
        }
    }

    /// Removes members who have not been heard from.
    pub fn tick(&mut self, now: Instant) {
        let is_silent = |member: &ShareMember| now >= member.session_deadline;
        let silent = self.members.iter().filter(|(_, member)| is_silent(member));
        let silent: Vec<String> = silent.map(|(id, _)| id.clone()).collect();
        silent.iter().for_each(|id| self.remove(id));
    }

    /// When [`Self::tick`] has something to do, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.members.values().map(|member| member.session_deadline).min()
    }

    fn remove(&mut self, id: &str) {
        if self.members.remove(id).is_some() {
            self.changed_members.insert(id.to_owned());
            self.rise();
        }
    }

    /// The members that changed since this was last asked for, `None` for one that is gone; and the group.
    pub fn take_changes(
        &mut self,
        now_ms: i64,
    ) -> (Vec<(String, Option<ShareMemberImage>)>, Option<ShareGroupImage>) {
        let changed = std::mem::take(&mut self.changed_members);
        let image = |id: String| {
            let image = self.members.get(&id).map(|member| member.image.clone());
            (id, image)
        };
        let members = changed.into_iter().map(image).collect();
        let is_changed = std::mem::take(&mut self.is_changed);
        let topics = || self.topics.iter().map(|(topic, count)| (*topic, *count)).collect();
        let group = is_changed.then(|| ShareGroupImage {
            epoch: self.epoch,
            topics: topics(),
            at_ms: now_ms,
        });
        (members, group)
    }
}

/// Gives the partitions of a topic to the members that want it.
fn assign(members: &mut [&mut ShareMember], topic: TopicCount, offset: usize) {
    let (member_count, partition_count) = (members.len(), topic.partition_count as usize);
    if member_count == 0 || partition_count == 0 {
        return;
    }
    for turn in 0..member_count.max(partition_count) {
        let index = u32::try_from(turn % partition_count).unwrap_or_default();
        if let Some(member) = members.get_mut((offset + turn) % member_count) {
            member.assigned.insert(TopicPartition { topic: topic.topic, index });
        }
    }
}
