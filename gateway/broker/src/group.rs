//! A consumer group of the classic protocol, as its coordinator runs it. Pure: time comes in, what
//! to answer comes out.
//!
//! ```text
//!            join                 all have joined              leader synced
//! Empty -------------> Preparing -----------------> Completing --------------> Stable
//!   ^                   |  ^ ^                          |                        |
//!   +-- nobody is left -+  | +--- join, leave, expiry --+                        |
//!                          +----------------- join, leave, expiry ---------------+
//! ```
//!
//! Each passage through Preparing makes a new generation. Members that did not join again in time
//! are dropped, unless they are static (KIP-345): those have until their session expires.

pub mod consumer;
mod image;
mod member;
pub mod memory;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;

pub use self::image::{ClassicImage, ClassicMemberImage};
pub use self::member::Member;
use self::member::Waiting;

/// Bounds of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// How long an empty group waits for more members before its first rebalance ends.
    pub initial_rebalance_delay: Duration,
    /// Most members.
    pub member_count_max: usize,
    /// What is to be remembered of a group is one record, which takes this much at most.
    pub image_size_bytes_max: usize,
}

/// A member's wish to take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The member; `None` if it has no id yet.
    pub member_id: Option<String>,
    /// The id it gets if it has none: drawn by the caller, never used before.
    pub new_member_id: String,
    /// Whether a member without id must come back with it (KIP-394), so that one that never comes
    /// back is not waited for.
    pub requires_member_id: bool,
    /// What it is called across restarts, if it is static.
    pub instance_id: Option<String>,
    /// What the client calls itself, for operators.
    pub client_id: String,
    /// Where it is, for operators.
    pub client_host: String,
    /// Without a heartbeat for this long it is dropped.
    pub session_timeout: Duration,
    /// How long others wait for it in a rebalance.
    pub rebalance_timeout: Duration,
    /// Kind of the group, such as `consumer`.
    pub protocol_type: String,
    /// Ways of assignment it can take part in, best first, with its subscription in each.
    pub protocols: Vec<(String, Bytes)>,
    /// Whether it understands that it leads but need not assign (KIP-814).
    pub can_skip_assignment: bool,
}

/// What a member that joined is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The member.
    pub member_id: String,
    /// The generation it is in.
    pub generation: i32,
    /// The way of assignment that was chosen.
    pub protocol: String,
    /// Who assigns.
    pub leader: String,
    /// For the leader: all members, their instance ids and subscriptions.
    pub members: Vec<(String, Option<String>, Bytes)>,
    /// For the leader: the assignment stands.
    pub skip_assignment: bool,
}

/// What a member asks when it wants its assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Who.
    pub caller: Caller,
    /// The protocol type it believes in; `None` if it did not say.
    pub protocol_type: Option<String>,
    /// The protocol it believes was chosen; `None` if it did not say.
    pub protocol: Option<String>,
    /// From the leader: what each member is to do.
    pub assignments: Vec<(String, Bytes)>,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The member.
    pub member_id: String,
    /// What it is called across restarts, if it is static.
    pub instance_id: Option<String>,
    /// The generation it believes to be in; negative for who is no member.
    pub generation: i32,
}

/// Why a group turns a caller away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// Not a member (any more).
    #[error("not a member of the group; join again without an id")]
    UnknownMember,
    /// It has to join again with this id.
    #[error("join again as {member_id}")]
    MemberIdRequired {
        /// Its id from now on.
        member_id: String,
    },
    /// Another process runs under this instance id.
    #[error("another member has taken over this instance id; stop one of them")]
    FencedInstance,
    /// Not the present generation.
    #[error("the group is in another generation; join again")]
    IllegalGeneration,
    /// A rebalance is under way.
    #[error("the group rebalances; join again")]
    RebalanceInProgress,
    /// No way of assignment that all members know.
    #[error("no protocol in common with the other members; configure a common assignor")]
    InconsistentProtocol,
    /// No room.
    #[error("the group has as many members as it may have")]
    TooManyMembers,
    /// No record holds it.
    #[error(
        "what the members want and are to do takes more than the group's record may; subscribe to less, or use several groups"
    )]
    TooLarge,
}

/// What the embedder is to do. `W` names whoever waits for an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<W> {
    /// Answer a join.
    Joined(W, Result<Joined, GroupError>),
    /// Answer a sync with an assignment.
    Synced(W, Result<Bytes, GroupError>),
}

/// What a group is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// It has no members.
    Empty,
    /// Members are joining.
    PreparingRebalance,
    /// The leader is assigning.
    CompletingRebalance,
    /// Members are working.
    Stable,
}

impl GroupState {
    /// Kafka's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
        }
    }
}

/// A consumer group.
#[derive(Debug)]
pub struct Group<W> {
    limits: GroupLimits,
    state: GroupState,
    generation: i32,
    protocol_type: String,
    protocol: String,
    leader: Option<String>,
    members: BTreeMap<String, Member<W>>,
    static_ids: BTreeMap<String, String>,
    /// Ids that were given out and not used yet, and when they lapse.
    promised: BTreeMap<String, Instant>,
    /// When the rebalance ends even if not all have joined.
    join_deadline: Instant,
    /// While an empty group waits for more members: the latest end of that.
    initial_until: Option<Instant>,
    /// When members that have not fetched their assignment are dropped.
    sync_deadline: Instant,
    /// Whether the image differs from the last one taken.
    is_changed: bool,
}

impl<W> Group<W> {
    /// A group without members.
    pub fn new(limits: GroupLimits) -> Self {
        Self {
            limits,
            state: GroupState::Empty,
            generation: 0,
            protocol_type: String::new(),
            protocol: String::new(),
            leader: None,
            members: BTreeMap::new(),
            static_ids: BTreeMap::new(),
            promised: BTreeMap::new(),
            join_deadline: Instant::ZERO,
            initial_until: None,
            sync_deadline: Instant::ZERO,
            is_changed: false,
        }
    }

    /// The group as another coordinator left it: members have a whole session to be heard from.
    pub fn restore(limits: GroupLimits, image: ClassicImage, now: Instant) -> Self {
        let mut group = Self::new(limits);
        group.generation = image.generation;
        group.protocol_type = image.protocol_type;
        for member in image.members {
            if let Some(instance_id) = &member.instance_id {
                group.static_ids.insert(instance_id.clone(), member.member_id.clone());
            }
            let id = member.member_id.clone();
            group.members.insert(id, Member::restore(&image.protocol, member, now));
        }
        if !group.members.is_empty() {
            group.state = GroupState::Stable;
            group.protocol = image.protocol;
            group.leader = image.leader.filter(|leader| group.members.contains_key(leader));
        }
        group
    }

    /// What is to be remembered of the group: as of its last assignment, or that it is empty.
    /// `None` unless that changed since it was last asked for.
    pub fn take_changed(&mut self) -> Option<ClassicImage> {
        std::mem::take(&mut self.is_changed).then(|| self.image())
    }

    /// What there is to remember while the group is stable or empty.
    pub fn image(&self) -> ClassicImage {
        let image = |(id, member): (&String, &Member<W>)| member.image(id, &self.protocol);
        ClassicImage {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            members: self.members.iter().map(image).collect(),
        }
    }

    /// What the group is doing.
    pub fn state(&self) -> GroupState {
        self.state
    }

    /// The present generation; grows with each rebalance.
    pub fn generation(&self) -> i32 {
        self.generation
    }

    /// Kind of the group; empty before its first member.
    pub fn protocol_type(&self) -> &str {
        &self.protocol_type
    }

    /// The way of assignment that was chosen.
    pub fn protocol(&self) -> &str {
        &self.protocol
    }

    /// The member that assigns.
    pub fn leader(&self) -> Option<&str> {
        self.leader.as_deref()
    }

    /// All members, by id.
    pub fn members(&self) -> impl Iterator<Item = (&str, &Member<W>)> {
        self.members.iter().map(|(id, member)| (id.as_str(), member))
    }

    /// What its members make their coordinator hold, about.
    pub fn members_size_bytes(&self) -> usize {
        let promised = self.promised.len() * memory::MEMBER_SIZE_BYTES;
        self.members.values().map(Member::held_size_bytes).sum::<usize>() + promised
    }

    /// Whether nobody is in it or about to be.
    pub fn is_vacant(&self) -> bool {
        self.members.is_empty() && self.promised.is_empty()
    }

    /// Takes a member in, or back.
    pub fn join(&mut self, now: Instant, join: Join, waiter: W, out: &mut Vec<Output<W>>) {
        if let Err((waiter, error)) = self.try_join(now, join, waiter, out) {
            out.push(Output::Joined(waiter, Err(error)));
        }
        self.settle(now, out);
    }

    fn try_join(
        &mut self,
        now: Instant,
        join: Join,
        waiter: W,
        out: &mut Vec<Output<W>>,
    ) -> Result<(), (W, GroupError)> {
        if !self.has_common_protocol(&join) {
            return Err((waiter, GroupError::InconsistentProtocol));
        }
        let holder = join.instance_id.as_ref().and_then(|id| self.static_ids.get(id)).cloned();
        if !self.has_room_for(&join, holder.as_ref().or(join.member_id.as_ref())) {
            return Err((waiter, GroupError::TooLarge));
        }
        let Some(member_id) = join.member_id.clone() else {
            return match holder {
                Some(holder) => {
                    self.replace_static(now, holder, join, waiter, out);
                    Ok(())
                }
                None => self.admit_stranger(now, join, waiter, out),
            };
        };
        if join.instance_id.is_some() {
            match holder {
                None => return Err((waiter, GroupError::UnknownMember)),
                Some(holder) if holder != member_id => {
                    return Err((waiter, GroupError::FencedInstance));
                }
                Some(_) => {}
            }
        }
        if self.promised.remove(&member_id).is_some() {
            return self.add(now, member_id, join, waiter, out);
        }
        if !self.members.contains_key(&member_id) {
            return Err((waiter, GroupError::UnknownMember));
        }
        self.rejoin(now, member_id, join, waiter, out);
        Ok(())
    }

    fn has_common_protocol(&self, join: &Join) -> bool {
        if join.protocol_type.is_empty() || join.protocols.is_empty() {
            return false;
        }
        let others: Vec<&Member<W>> = self
            .members
            .iter()
            .filter(|(id, _)| Some(*id) != join.member_id.as_ref())
            .map(|(_, member)| member)
            .collect();
        let is_common = |name: &str| others.iter().all(|member| member.supports(name));
        others.is_empty()
            || (join.protocol_type == self.protocol_type
                && join.protocols.iter().any(|(name, _)| is_common(name)))
    }

    fn admit_stranger(
        &mut self,
        now: Instant,
        join: Join,
        waiter: W,
        out: &mut Vec<Output<W>>,
    ) -> Result<(), (W, GroupError)> {
        let member_id = join.new_member_id.clone();
        if !join.requires_member_id || join.instance_id.is_some() {
            return self.add(now, member_id, join, waiter, out);
        }
        if self.members.len() + self.promised.len() >= self.limits.member_count_max {
            return Err((waiter, GroupError::TooManyMembers));
        }
        self.promised.insert(member_id.clone(), now + join.session_timeout);
        Err((waiter, GroupError::MemberIdRequired { member_id }))
    }

    fn add(
        &mut self,
        now: Instant,
        member_id: String,
        join: Join,
        waiter: W,
        out: &mut Vec<Output<W>>,
    ) -> Result<(), (W, GroupError)> {
        if self.members.len() >= self.limits.member_count_max {
            return Err((waiter, GroupError::TooManyMembers));
        }
        self.protocol_type.clone_from(&join.protocol_type);
        if let Some(instance_id) = &join.instance_id {
            self.static_ids.insert(instance_id.clone(), member_id.clone());
        }
        let member = Member::new(now, join, Waiting::Join(waiter));
        self.members.insert(member_id, member);
        self.prepare(now, out);
        if let Some(until) = self.initial_until {
            self.join_deadline = until.min(now + self.limits.initial_rebalance_delay);
        }
        Ok(())
    }

    /// Whether what is remembered of the members leaves as much for what they are to do.
    fn has_room_for(&self, join: &Join, own_id: Option<&String>) -> bool {
        let others = self.members.iter().filter(|(id, _)| Some(*id) != own_id);
        let wanted: usize = others.map(|(_, member)| member.wanted_size_bytes()).sum();
        wanted + join.wanted_size_bytes() <= self.limits.image_size_bytes_max / 2
    }

    /// A static member came back under a new id: its place and its assignment stay.
    fn replace_static(
        &mut self,
        now: Instant,
        old_id: String,
        join: Join,
        waiter: W,
        out: &mut Vec<Output<W>>,
    ) {
        let Some(mut member) = self.members.remove(&old_id) else { return };
        let new_id = join.new_member_id.clone();
        member.fail(GroupError::FencedInstance, out);
        if let Some(instance_id) = &join.instance_id {
            self.static_ids.insert(instance_id.clone(), new_id.clone());
        }
        let led = self.leader.as_ref() == Some(&old_id);
        if led {
            self.leader = Some(new_id.clone());
        }
        let unchanged = member.subscription(&self.protocol) == join.subscription(&self.protocol);
        let can_skip = join.can_skip_assignment;
        member.update(now, join);
        self.members.insert(new_id.clone(), member);
        if self.state == GroupState::Stable && unchanged {
            self.is_changed = true;
            let mut joined = self.joined(&new_id);
            if led && can_skip {
                joined.skip_assignment = true;
            } else if led {
                // It must not assign; told that its former self leads, it takes what there is.
                joined.leader = old_id;
                joined.members.clear();
            }
            return out.push(Output::Joined(waiter, Ok(joined)));
        }
        self.await_join(now, &new_id, waiter, out);
    }

    fn rejoin(
        &mut self,
        now: Instant,
        member_id: String,
        join: Join,
        waiter: W,
        out: &mut Vec<Output<W>>,
    ) {
        let leads = self.leader.as_ref() == Some(&member_id);
        let Some(member) = self.members.get_mut(&member_id) else { return };
        let unchanged = member.protocols == join.protocols;
        member.update(now, join);
        let answered_now = match self.state {
            // The answer to its last join was lost.
            GroupState::CompletingRebalance => unchanged,
            // A leader that joins again has seen something change.
            GroupState::Stable => unchanged && !leads,
            GroupState::Empty | GroupState::PreparingRebalance => false,
        };
        if answered_now {
            return out.push(Output::Joined(waiter, Ok(self.joined(&member_id))));
        }
        self.await_join(now, &member_id, waiter, out);
    }

    fn await_join(&mut self, now: Instant, id: &str, waiter: W, out: &mut Vec<Output<W>>) {
        if let Some(member) = self.members.get_mut(id) {
            member.fail(GroupError::RebalanceInProgress, out);
            member.waiting = Waiting::Join(waiter);
        }
        self.prepare(now, out);
    }

    /// Gives a member its assignment; the leader brings all of them.
    pub fn sync(&mut self, now: Instant, sync: Sync, waiter: W, out: &mut Vec<Output<W>>) {
        if let Err(error) = self.check_sync(now, &sync) {
            return out.push(Output::Synced(waiter, Err(error)));
        }
        let Some(member) = self.members.get_mut(&sync.caller.member_id) else { return };
        member.has_synced = true;
        if self.state == GroupState::Stable {
            let assignment = member.assignment.clone();
            return out.push(Output::Synced(waiter, Ok(assignment)));
        }
        member.fail(GroupError::RebalanceInProgress, out);
        member.waiting = Waiting::Sync(waiter);
        if self.leader.as_deref() != Some(sync.caller.member_id.as_str()) {
            return;
        }
        let assigned: usize = sync.assignments.iter().map(|(_, it)| it.len()).sum();
        if assigned > self.limits.image_size_bytes_max / 2 {
            // All are told, and come back: the leader may assign otherwise then.
            for member in self.members.values_mut() {
                member.fail(GroupError::TooLarge, out);
            }
            return self.prepare(now, out);
        }
        let mut assignments: BTreeMap<String, Bytes> = sync.assignments.into_iter().collect();
        self.state = GroupState::Stable;
        self.is_changed = true;
        for (id, member) in &mut self.members {
            member.assignment = assignments.remove(id).unwrap_or_default();
            member.answer_sync(now, out);
        }
    }

    fn check_sync(&mut self, now: Instant, sync: &Sync) -> Result<(), GroupError> {
        self.check(&sync.caller)?;
        let differs =
            |said: &Option<String>, ours: &str| said.as_ref().is_some_and(|it| it != ours);
        if differs(&sync.protocol_type, &self.protocol_type)
            || differs(&sync.protocol, &self.protocol)
        {
            return Err(GroupError::InconsistentProtocol);
        }
        self.touch(now, &sync.caller.member_id);
        match self.state {
            GroupState::PreparingRebalance => Err(GroupError::RebalanceInProgress),
            GroupState::Empty => Err(GroupError::UnknownMember),
            GroupState::CompletingRebalance | GroupState::Stable => Ok(()),
        }
    }

    /// A member says it is alive.
    pub fn heartbeat(&mut self, now: Instant, caller: &Caller) -> Result<(), GroupError> {
        self.check(caller)?;
        self.touch(now, &caller.member_id);
        match self.state {
            GroupState::PreparingRebalance => Err(GroupError::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Removes a member at its own or an operator's wish: by id, or if that is empty by instance.
    pub fn leave(
        &mut self,
        now: Instant,
        member_id: &str,
        instance_id: Option<&str>,
        out: &mut Vec<Output<W>>,
    ) -> Result<String, GroupError> {
        let holder = instance_id.and_then(|id| self.static_ids.get(id)).cloned();
        let id = match (instance_id, holder) {
            (None, _) => member_id.to_owned(),
            (Some(_), None) => return Err(GroupError::UnknownMember),
            (Some(_), Some(holder)) if member_id.is_empty() || holder == member_id => holder,
            (Some(_), Some(_)) => return Err(GroupError::FencedInstance),
        };
        if self.promised.remove(&id).is_none() {
            if !self.members.contains_key(&id) {
                return Err(GroupError::UnknownMember);
            }
            self.remove(now, &id, out);
        }
        self.settle(now, out);
        Ok(id)
    }

    /// Whether the caller may commit offsets. Who is no member may if nobody is.
    pub fn check_commit(&mut self, now: Instant, caller: &Caller) -> Result<(), GroupError> {
        if caller.generation < 0 && self.state == GroupState::Empty {
            return Ok(());
        }
        self.check(caller)?;
        self.touch(now, &caller.member_id);
        match self.state {
            GroupState::CompletingRebalance => Err(GroupError::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Drops those who have not been heard from, and ends what has taken too long.
    pub fn tick(&mut self, now: Instant, out: &mut Vec<Output<W>>) {
        self.promised.retain(|_, lapses_at| now < *lapses_at);
        let sync_is_late =
            matches!(self.state, GroupState::CompletingRebalance | GroupState::Stable)
                && now >= self.sync_deadline;
        let late: Vec<String> = self
            .members
            .iter()
            .filter(|(_, member)| member.has_expired(now) || (sync_is_late && !member.has_synced))
            .map(|(id, _)| id.clone())
            .collect();
        for id in late {
            self.remove(now, &id, out);
        }
        self.settle(now, out);
    }

    /// When [`Self::tick`] has something to do, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let sessions = self.members.values().filter_map(Member::expires_at);
        let unsynced = || self.members.values().any(|member| !member.has_synced);
        let phase = match self.state {
            GroupState::Empty => None,
            GroupState::PreparingRebalance => Some(self.join_deadline),
            GroupState::CompletingRebalance | GroupState::Stable => {
                unsynced().then_some(self.sync_deadline)
            }
        };
        sessions.chain(phase).chain(self.promised.values().copied()).min()
    }

    fn check(&self, caller: &Caller) -> Result<(), GroupError> {
        if let Some(instance_id) = &caller.instance_id {
            match self.static_ids.get(instance_id) {
                None => return Err(GroupError::UnknownMember),
                Some(holder) if *holder != caller.member_id => {
                    return Err(GroupError::FencedInstance);
                }
                Some(_) => {}
            }
        }
        if !self.members.contains_key(&caller.member_id) {
            return Err(GroupError::UnknownMember);
        }
        if caller.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        Ok(())
    }

    fn touch(&mut self, now: Instant, member_id: &str) {
        if let Some(member) = self.members.get_mut(member_id) {
            member.touch(now);
        }
    }

    fn remove(&mut self, now: Instant, member_id: &str, out: &mut Vec<Output<W>>) {
        let Some(mut member) = self.members.remove(member_id) else { return };
        member.fail(GroupError::UnknownMember, out);
        if let Some(instance_id) = &member.instance_id {
            self.static_ids.remove(instance_id);
        }
        if self.leader.as_deref() == Some(member_id) {
            self.leader = None;
        }
        if matches!(self.state, GroupState::CompletingRebalance | GroupState::Stable) {
            self.prepare(now, out);
        }
    }

    /// Starts a rebalance, unless one is being prepared.
    fn prepare(&mut self, now: Instant, out: &mut Vec<Output<W>>) {
        match self.state {
            GroupState::PreparingRebalance => return,
            GroupState::Empty => {
                self.initial_until = Some(now + self.longest_rebalance());
                self.join_deadline = now + self.limits.initial_rebalance_delay;
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                for member in self.members.values_mut() {
                    member.fail_sync(now, out);
                }
                self.initial_until = None;
                self.join_deadline = now + self.longest_rebalance();
            }
        }
        self.state = GroupState::PreparingRebalance;
    }

    fn longest_rebalance(&self) -> Duration {
        self.members.values().map(|member| member.rebalance_timeout).max().unwrap_or_default()
    }

    /// Ends the rebalance if all have joined, or time is up.
    fn settle(&mut self, now: Instant, out: &mut Vec<Output<W>>) {
        if self.state != GroupState::PreparingRebalance {
            return;
        }
        let all_joined = self.members.values().all(Member::is_joining)
            && self.promised.is_empty()
            && self.initial_until.is_none();
        let gone = self.members.is_empty();
        if all_joined || gone || now >= self.join_deadline {
            self.complete(now, out);
        }
    }

    fn complete(&mut self, now: Instant, out: &mut Vec<Output<W>>) {
        let dropped: Vec<String> = self
            .members
            .iter()
            .filter(|(_, member)| !member.is_joining() && member.instance_id.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        for id in dropped {
            self.remove(now, &id, out);
        }
        let joining = |id: &String| self.members.get(id).is_some_and(Member::is_joining);
        let leader = self.leader.take().filter(joining);
        self.leader = leader.or_else(|| self.members.keys().find(|id| joining(id)).cloned());
        self.initial_until = None;
        if self.leader.is_none() && !self.members.is_empty() {
            // Static members only, none of which is back yet: wait on, until their sessions end.
            self.join_deadline = now + self.longest_rebalance();
            return;
        }
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        if self.members.is_empty() {
            self.state = GroupState::Empty;
            self.is_changed = true;
            self.protocol.clear();
            return;
        }
        self.protocol = self.choose_protocol();
        self.state = GroupState::CompletingRebalance;
        self.sync_deadline = now + self.longest_rebalance();
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let joined = self.joined(&id);
            if let Some(member) = self.members.get_mut(&id) {
                // A static member that is not back keeps its place, for as long as its session.
                member.has_synced = !member.is_joining();
                member.answer_join(now, joined, out);
            }
        }
    }

    /// Of the protocols that all members know, the one most of them like best.
    fn choose_protocol(&self) -> String {
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            let all_know = |name: &&str| self.members.values().all(|other| other.supports(name));
            let vote = member.protocols.iter().map(|(name, _)| name.as_str()).find(all_know);
            *votes.entry(vote.unwrap_or_default()).or_default() += 1;
        }
        let best = votes.into_iter().max_by_key(|(name, count)| (*count, std::cmp::Reverse(*name)));
        best.map(|(name, _)| name.to_owned()).unwrap_or_default()
    }

    fn joined(&self, member_id: &str) -> Joined {
        let leader = self.leader.clone().unwrap_or_default();
        let members = if leader == member_id {
            let member = |(id, member): (&String, &Member<W>)| {
                (id.clone(), member.instance_id.clone(), member.subscription(&self.protocol))
            };
            self.members.iter().map(member).collect()
        } else {
            Vec::new()
        };
        Joined {
            member_id: member_id.to_owned(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader,
            members,
            skip_assignment: false,
        }
    }
}
