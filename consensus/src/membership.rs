//! Who votes: identities in Raft and changes of the set of voters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use meridian_base::id::NodeId;
use meridian_base::topology::Datacenter;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState};
use serde::{Deserialize, Serialize};

use crate::command::Liveness;
use crate::state::{Metadata, Node};

/// One life of a node's Raft log. A voter that lost its log comes back in a new life, because it
/// may have voted or acknowledged what it does not remember (rules M3, 36; KIP-853).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RaftLife(u32);

impl RaftLife {
    /// The life of the voters the cluster is bootstrapped with.
    pub const FIRST: Self = Self(1);

    /// Wraps a raw number.
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// The raw number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The life after this one.
    ///
    /// # Panics
    /// After 2^32 lives of one node.
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("raft life overflow"))
    }
}

/// A member of the Raft group: a node in one of its lives. Unique for all time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RaftId {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub life: RaftLife,
}

impl RaftId {
    /// The id of `node` among the voters of a new cluster.
    pub const fn first(node: NodeId) -> Self {
        Self { node, life: RaftLife::FIRST }
    }

    /// Builds the id from Raft's number, unless it is none.
    pub const fn from_raft(raw: u64) -> Option<Self> {
        let life = (raw >> 32) as u32;
        if life == 0 {
            return None;
        }
        Some(Self { node: NodeId::new(raw as u32), life: RaftLife(life) })
    }

    /// The number Raft knows the member by; never 0.
    pub const fn to_raft(self) -> u64 {
        (self.life.0 as u64) << 32 | self.node.get() as u64
    }
}

impl fmt::Debug for RaftId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}.{}", self.node, self.life.0)
    }
}

impl fmt::Display for RaftId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.life.0)
    }
}

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberRole {
    /// Votes, and its copy counts.
    Voter,
    /// Follows the log.
    Learner,
    /// Is no member.
    Removed,
}

/// The members of the Raft group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Those who vote.
    pub voters: BTreeSet<RaftId>,
    /// Those who follow.
    pub learners: BTreeSet<RaftId>,
    /// Those whose majority is needed as well while the voters change.
    pub voters_outgoing: BTreeSet<RaftId>,
}

impl Membership {
    pub(crate) fn from_conf_state(conf_state: &ConfState) -> Self {
        let members = |raw: &[u64]| raw.iter().copied().filter_map(RaftId::from_raft).collect();
        let mut learners: BTreeSet<RaftId> = members(&conf_state.learners);
        learners.extend(members(&conf_state.learners_next));
        Self {
            voters: members(&conf_state.voters),
            learners,
            voters_outgoing: members(&conf_state.voters_outgoing),
        }
    }

    /// Whether a change of voters is under way.
    pub fn is_joint(&self) -> bool {
        !self.voters_outgoing.is_empty()
    }

    /// What `member` may do.
    pub fn role(&self, member: RaftId) -> MemberRole {
        if self.voters.contains(&member) {
            MemberRole::Voter
        } else if self.learners.contains(&member) {
            MemberRole::Learner
        } else {
            MemberRole::Removed
        }
    }

    fn all(&self) -> impl Iterator<Item = RaftId> {
        self.voters.iter().chain(&self.learners).copied()
    }
}

pub(crate) fn to_conf_change(changes: &[(RaftId, MemberRole)]) -> ConfChangeV2 {
    let steps = changes.iter().map(|(member, role)| {
        let mut step = ConfChangeSingle { node_id: member.to_raft(), ..Default::default() };
        step.set_change_type(match role {
            MemberRole::Voter => ConfChangeType::AddNode,
            MemberRole::Learner => ConfChangeType::AddLearnerNode,
            MemberRole::Removed => ConfChangeType::RemoveNode,
        });
        step
    });
    let mut change = ConfChangeV2::default();
    change.set_changes(steps.collect::<Vec<_>>().into());
    change
}

/// The next change of members that brings the group nearer to what it should be, for
/// [`crate::node::Node::change_membership`]; empty when there is none. Ask the leader regularly.
///
/// Every registered node is a member in its present life; members of past lives and of removed
/// nodes go. The voters are nodes with the `meta` role, as many as 9, 5, 3 or 1 allow, but never so many that
/// one of several datacenters has half of the votes: with a second group in it, it has most of the nodes. A voter
/// stays one, so that nothing moves without need, unless it is dead and has lost its slot: then a
/// learner votes in its place. A learner is promoted when `is_caught_up`.
pub fn plan_change(
    metadata: &Metadata,
    membership: &Membership,
    leader: RaftId,
    is_caught_up: impl Fn(RaftId) -> bool,
) -> Vec<(RaftId, MemberRole)> {
    if membership.is_joint() {
        return Vec::new();
    }
    let present: BTreeMap<RaftId, &Node> = metadata
        .nodes()
        .map(|(node, known)| (RaftId { node, life: metadata.raft_life(node) }, known))
        .collect();
    // A voter that has not registered yet is not forgotten: only its later life replaces it.
    let gone = membership.all().find(|member| {
        let is_past_life = metadata.raft_life(member.node) > member.life;
        *member != leader && is_past_life
    });
    if let Some(gone) = gone {
        return vec![(gone, MemberRole::Removed)];
    }
    let missing = present.keys().find(|member| membership.role(**member) == MemberRole::Removed);
    if let Some(missing) = missing {
        return vec![(*missing, MemberRole::Learner)];
    }
    let candidates = present.iter().filter(|(member, node)| {
        node.registration.roles.meta && membership.role(**member) == MemberRole::Learner
    });
    let ready: Vec<RaftId> =
        candidates.map(|(member, _)| *member).filter(|member| is_caught_up(*member)).collect();
    let voters = &membership.voters;
    let heirs: Vec<RaftId> = spread(metadata, membership, ready.clone()).collect();
    let with_heirs = |count: usize| {
        let heirs = heirs.iter().take(count.saturating_sub(voters.len()));
        voters.iter().chain(heirs).copied()
    };
    let target = [9, 5, 3, 1]
        .into_iter()
        .filter(|count| *count <= voters.len() + heirs.len())
        .find(|count| survives_each_datacenter(metadata, with_heirs(*count), *count))
        .unwrap_or(1);
    let wanted = target.saturating_sub(voters.len());
    if wanted == 0 {
        return plan_succession(metadata, membership, ready);
    }
    heirs.into_iter().take(wanted).map(|heir| (heir, MemberRole::Voter)).collect()
}

/// Whether a majority of `count` votes is left whichever datacenter is lost, if there are several.
fn survives_each_datacenter(
    metadata: &Metadata,
    voters: impl Iterator<Item = RaftId>,
    count: usize,
) -> bool {
    let mut votes: BTreeMap<&Datacenter, usize> = BTreeMap::new();
    for node in voters.filter_map(|voter| metadata.node(voter.node)) {
        *votes.entry(&node.registration.datacenter).or_default() += 1;
    }
    let is_wide = metadata.geometry().is_some_and(|geometry| geometry.datacenter_count() > 1);
    !is_wide || votes.values().all(|lost| 2 * lost < count)
}

/// Gives the vote of a node that is lost for good to a learner that lives: votes must survive what slots
/// survive, and a dead voter is one that does not.
fn plan_succession(
    metadata: &Metadata,
    membership: &Membership,
    mut ready: Vec<RaftId>,
) -> Vec<(RaftId, MemberRole)> {
    let has_slots = metadata.groups().next().is_some();
    let is_lost = |voter: &RaftId| {
        metadata
            .node(voter.node)
            .is_some_and(|node| node.liveness == Liveness::Dead && node.registration.roles.storage)
            && metadata.slot_filled_by(voter.node).is_none()
    };
    let Some(lost) = membership.voters.iter().copied().find(|it| has_slots && is_lost(it)) else {
        return Vec::new();
    };
    ready.retain(|heir| {
        metadata.node(heir.node).is_some_and(|node| node.liveness != Liveness::Dead)
    });
    let mut others = membership.clone();
    others.voters.remove(&lost);
    let heir = spread(metadata, &others, ready).next();
    heir.map_or_else(Vec::new, |heir| vec![(heir, MemberRole::Voter), (lost, MemberRole::Learner)])
}

/// Orders candidates so that places without a voter come first.
fn spread(
    metadata: &Metadata,
    membership: &Membership,
    mut candidates: Vec<RaftId>,
) -> impl Iterator<Item = RaftId> {
    let place = |member: RaftId| {
        let registration = &metadata.node(member.node)?.registration;
        Some((registration.datacenter.clone(), registration.rack.clone()))
    };
    let mut chosen: Vec<_> = membership.voters.iter().filter_map(|voter| place(*voter)).collect();
    let mut ordered = Vec::new();
    while !candidates.is_empty() {
        let crowd = |member: &RaftId| {
            let here = place(*member);
            let datacenter = here.as_ref().map(|(datacenter, _)| datacenter);
            let same_rack = chosen.iter().filter(|other| Some(*other) == here.as_ref()).count();
            let same_datacenter =
                chosen.iter().filter(|(other, _)| Some(other) == datacenter).count();
            (same_rack, same_datacenter, *member)
        };
        let best = candidates.iter().enumerate().min_by_key(|(_, member)| crowd(member));
        let Some(position) = best.map(|(position, _)| position) else { break };
        let member = candidates.swap_remove(position);
        chosen.extend(place(member));
        ordered.push(member);
    }
    ordered.into_iter()
}

/// What another voter says about itself while a cluster forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerStanding {
    /// It has no log.
    Empty,
    /// It has a log that holds no decision yet.
    Forming,
    /// It is a member of a cluster that has decided something.
    Formed,
}

/// What a node without a log is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormationStep {
    /// Go on asking.
    Wait,
    /// Call [`crate::log::RaftLog::bootstrap`]: there is no cluster yet.
    Bootstrap,
    /// There is a cluster: have [`crate::command::Command::AllocateRaftLife`] decided and call
    /// [`crate::log::RaftLog::join`] with the life it gives.
    Rejoin,
}

/// Decides for a node whose disk holds no log whether it is new, or was a voter and forgot.
///
/// A voter that forgot may have voted and acknowledged; if it voted again, two leaders could have
/// one term. So it takes part under its first life only when every other voter has said that there
/// is no cluster; one that says otherwise is enough to rejoin in a new life. The first start of a
/// cluster hence needs all of its configured voters.
#[derive(Clone, Debug)]
pub struct Formation {
    is_voter: bool,
    unheard: BTreeSet<NodeId>,
    is_formed: bool,
}

impl Formation {
    /// For node `own`, with the voters of the static configuration.
    pub fn new(own: NodeId, voters: &[NodeId]) -> Self {
        Self {
            is_voter: voters.contains(&own),
            unheard: voters.iter().copied().filter(|voter| *voter != own).collect(),
            is_formed: false,
        }
    }

    /// For a node that was a member once, whose log is damaged: it never begins a cluster, whatever the
    /// others say of themselves.
    pub fn of_former_member(own: NodeId, voters: &[NodeId]) -> Self {
        Self { is_voter: false, ..Self::new(own, voters) }
    }

    /// Takes what another node says about itself.
    pub fn hear(&mut self, peer: NodeId, standing: PeerStanding) -> FormationStep {
        match standing {
            PeerStanding::Empty | PeerStanding::Forming => {
                self.unheard.remove(&peer);
            }
            PeerStanding::Formed => self.is_formed = true,
        }
        self.step()
    }

    /// What to do now.
    pub fn step(&self) -> FormationStep {
        if self.is_formed {
            FormationStep::Rejoin
        } else if self.is_voter && self.unheard.is_empty() {
            FormationStep::Bootstrap
        } else {
            FormationStep::Wait
        }
    }

    /// The voters to ask.
    pub fn unheard(&self) -> impl Iterator<Item = NodeId> {
        self.unheard.iter().copied()
    }
}
