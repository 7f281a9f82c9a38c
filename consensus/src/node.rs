//! One member of the Raft group: raft-rs wrapped so that the order of its duties cannot be got
//! wrong. See the crate's documentation for the calling order.

mod drive;
mod start;

use std::sync::Arc;

use meridian_base::env::{Disk, Instant};
use meridian_base::id::NodeId;
use meridian_base::retry::{Outcome, Retry};
use meridian_base::sync::{ReadGuard, RwLock};
use protobuf::Message as _;
use raft::eraftpb::{ConfState, Message, MessageType};
use raft::{RawNode, SnapshotStatus, StateRole};

use crate::command::{Proposal, RequestId};
use crate::config::Config;
use crate::error::{DecodeError, Refusal};
use crate::log::{LogError, RaftLog};
use crate::membership::{MemberRole, Membership, RaftId};
use crate::metrics::Metrics;
use crate::state::{Change, Decision, Metadata};
use crate::store::{Store, StoreError};

/// Ticks that one call makes up for, at most: a process that was stopped for long must not hold an
/// election because of it.
const TICKS_PER_CALL_MAX: u32 = 2;

/// A Raft message for another member. The bytes are opaque to everyone but [`Node::step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// The member it is for; send it to `to.node`.
    pub to: RaftId,
    /// The encoded message.
    pub bytes: Vec<u8>,
    /// Whether it carries a snapshot: may be large, and [`Node::report_snapshot`] must follow.
    pub is_snapshot: bool,
}

/// An entry that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedEntry {
    /// Its index.
    pub index: u64,
    /// The request that asked for it. It may come more than once, always with the same result.
    pub request_id: RequestId,
    /// What the proposer is told.
    pub result: Result<Decision, Refusal>,
    /// What changed.
    pub changes: Vec<Change>,
}

/// Who leads, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The term.
    pub term: u64,
    /// The leader.
    pub leader: Option<RaftId>,
    /// Whether it is this node.
    pub is_self: bool,
}

/// What [`Node::process`] did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// A snapshot replaced the whole state: look everything up anew, then apply `applied`.
    pub state_replaced: bool,
    /// Entries applied, in order.
    pub applied: Vec<AppliedEntry>,
    /// Reads that may now be answered from the state.
    pub reads: Vec<RequestId>,
    /// Set when the leader or the term changed.
    pub leadership: Option<Leadership>,
    /// Set when the members changed.
    pub membership: Option<Membership>,
}

/// Why a proposal was not taken. Its fate is known: it was not proposed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another node leads, or none does.
    #[error("this node does not lead the metadata log; send the proposal to {leader:?}")]
    NotLeader {
        /// The leader, if one is known.
        leader: Option<NodeId>,
    },
    /// Too much is waiting to be committed, or the leader is about to change.
    #[error("the metadata log is busy; try again soon")]
    Busy,
    /// The proposal is too large.
    #[error("a proposal of {size_bytes} bytes exceeds {size_bytes_max}; split it")]
    TooLarge {
        /// Its size.
        size_bytes: usize,
        /// The limit.
        size_bytes_max: usize,
    },
    /// A change of members is under way, or this one is not possible.
    #[error("the members cannot be changed so now: {reason}")]
    Membership {
        /// What stands against it.
        reason: &'static str,
    },
    /// The node has failed and must be restarted.
    #[error("this node has failed; restart it")]
    Failed,
}

impl Outcome for ProposeError {
    fn retry(&self) -> Retry {
        match self {
            Self::NotLeader { .. } | Self::Failed => Retry::Elsewhere,
            Self::Busy | Self::Membership { .. } => Retry::Later,
            Self::TooLarge { .. } => Retry::Never,
        }
    }

    fn may_have_happened(&self) -> bool {
        match self {
            Self::NotLeader { .. }
            | Self::Busy
            | Self::TooLarge { .. }
            | Self::Membership { .. }
            | Self::Failed => false,
        }
    }
}

/// Why a received message was dropped. Harmless but for [`StepError::LogLost`] and
/// [`StepError::LifeOver`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// Not a Raft message.
    #[error("dropped a raft message: {0}")]
    Malformed(DecodeError),
    /// Meant for an earlier life of this node, or sent by another node than it says.
    #[error("dropped a raft message from {from} to member {to:#x}: not this member, or forged")]
    WrongMember {
        /// The node that sent it.
        from: NodeId,
        /// The member it names.
        to: u64,
    },
    /// A kind of message that members do not send each other.
    #[error("dropped a raft message of a kind that is not sent between nodes")]
    WrongKind,
    /// Raft did not take it.
    #[error("raft refused a message: {detail}")]
    Refused {
        /// What it said.
        detail: String,
    },
    /// The leader knows that this member held entries which it does not hold: its log was lost.
    /// The node must rejoin in a new life (rule 36).
    #[error(
        "this voter lost its log: the leader saw entry {leader_saw}, it holds {held}; \
         started again, it rejoins with an empty log"
    )]
    LogLost {
        /// Highest entry the leader knows this member acknowledged.
        leader_saw: u64,
        /// Highest entry it holds.
        held: u64,
    },
    /// The cluster knows a later life of this node: it was removed, or its disk was put back as it
    /// once was. What this member holds counts for nothing any more.
    #[error(
        "this node is member {own} of the metadata log, and the cluster knows it as {later}: it was \
         removed, or its data is an old copy; to let it join anew, start it without the folder \
         `meta` of its data"
    )]
    LifeOver {
        /// Who it takes itself for.
        own: RaftId,
        /// Whom the leader writes to.
        later: RaftId,
    },
    /// The node has failed and must be restarted.
    #[error("this node has failed; restart it")]
    Failed,
}

/// Why a node cannot start or go on. The process stops.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The log failed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A committed entry or snapshot cannot be read by this binary.
    #[error("metadata entry {index}: {error}; run a binary at least as new as the cluster's")]
    Unreadable {
        /// Its index.
        index: u64,
        /// What the decoder said.
        error: DecodeError,
    },
    /// Raft did not start.
    #[error("raft did not start: {detail}; check the configuration")]
    Start {
        /// What it said.
        detail: String,
    },
    /// An earlier call failed.
    #[error("this node has failed before; restart it")]
    Failed,
}

/// Read access to the applied state from other threads. Hold the guard shortly.
#[derive(Clone, Debug)]
pub struct MetadataHandle(Arc<RwLock<Metadata>>);

impl MetadataHandle {
    fn new(metadata: Metadata) -> Self {
        Self(Arc::new(RwLock::new(metadata)))
    }

    /// The state after the last entry that was applied, or a later one.
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, Metadata> {
        self.0.read()
    }

    fn update<R>(&self, change: impl FnOnce(&mut Metadata) -> R) -> R {
        change(&mut self.0.write())
    }
}

/// The member.
pub struct Node<D: Disk, S: Store> {
    raw: RawNode<RaftLog<D>>,
    store: S,
    config: Config,
    raft_id: RaftId,
    seed: u64,
    metadata: MetadataHandle,
    applied_index: u64,
    conf_state: ConfState,
    /// Granted by Raft, waiting for the state to reach the index.
    reads_waiting: Vec<(u64, RequestId)>,
    leadership: Leadership,
    next_tick: Instant,
    ticks: u64,
    failed: bool,
    metrics: Metrics,
}

impl<D: Disk, S: Store> Node<D, S> {
    /// Lets time pass. Call it at [`Node::next_tick`] or later.
    pub fn tick(&mut self, now: Instant) {
        let mut ticks = 0;
        while self.next_tick <= now && ticks < TICKS_PER_CALL_MAX {
            self.next_tick = self.next_tick + self.config.tick;
            self.ticks += 1;
            ticks += 1;
            let was_candidate = self.is_candidate();
            self.with_raft(RawNode::tick);
            self.metrics.campaigns_total += u64::from(!was_candidate && self.is_candidate());
            self.leave_joint_configuration();
        }
        if self.next_tick <= now {
            self.next_tick = now + self.config.tick;
        }
    }

    fn is_candidate(&self) -> bool {
        matches!(self.raw.raft.state, StateRole::Candidate | StateRole::PreCandidate)
    }

    /// When [`Node::tick`] is due.
    pub fn next_tick(&self) -> Instant {
        self.next_tick
    }

    /// Takes a message that node `from` sent.
    pub fn step(&mut self, from: NodeId, bytes: &[u8]) -> Result<(), StepError> {
        if self.failed {
            return Err(StepError::Failed);
        }
        self.metrics.messages_received_total += 1;
        let stepped = self.try_step(from, bytes);
        self.metrics.messages_rejected_total += u64::from(stepped.is_err());
        if matches!(stepped, Err(StepError::LogLost { .. } | StepError::LifeOver { .. })) {
            self.failed = true;
        }
        stepped
    }

    fn try_step(&mut self, from: NodeId, bytes: &[u8]) -> Result<(), StepError> {
        let message = Message::parse_from_bytes(bytes)
            .map_err(|error| StepError::Malformed(DecodeError::malformed(error)))?;
        let sender = RaftId::from_raft(message.from).map(|sender| sender.node);
        let (own, receiver) = (self.raft_id, RaftId::from_raft(message.to));
        let later = receiver.filter(|it| it.node == own.node && it.life > own.life);
        if let Some(later) = later.filter(|_| sender == Some(from)) {
            return Err(StepError::LifeOver { own, later });
        }
        if receiver != Some(own) || sender != Some(from) {
            return Err(StepError::WrongMember { from, to: message.to });
        }
        match message.msg_type {
            MessageType::MsgPropose | MessageType::MsgTransferLeader => {
                return Err(StepError::WrongKind);
            }
            MessageType::MsgHeartbeat if message.term >= self.raw.raft.term => {
                let held = self.raw.raft.raft_log.last_index();
                if message.commit > held {
                    return Err(StepError::LogLost { leader_saw: message.commit, held });
                }
            }
            _ => {}
        }
        self.with_raft(|raw| raw.step(message))
            .map_err(|error| StepError::Refused { detail: error.to_string() })
    }

    /// Proposes a command, if this node leads. `Ok` says only that it was taken: it has succeeded
    /// when its request id is seen applied, and may then have been refused (rule 37).
    pub fn propose(&mut self, proposal: &Proposal) -> Result<(), ProposeError> {
        let proposed = self.try_propose(proposal);
        self.metrics.proposals_total += u64::from(proposed.is_ok());
        self.metrics.proposals_refused_total += u64::from(proposed.is_err());
        proposed
    }

    fn try_propose(&mut self, proposal: &Proposal) -> Result<(), ProposeError> {
        self.require_leader()?;
        let bytes = proposal.encode();
        let size_bytes_max = self.config.proposal_size_bytes_max;
        if bytes.len() > size_bytes_max {
            return Err(ProposeError::TooLarge { size_bytes: bytes.len(), size_bytes_max });
        }
        self.with_raft(|raw| raw.propose(Vec::new(), bytes)).map_err(|_dropped| ProposeError::Busy)
    }

    fn require_leader(&self) -> Result<(), ProposeError> {
        if self.failed {
            return Err(ProposeError::Failed);
        }
        if self.raw.raft.state != StateRole::Leader {
            let leader = RaftId::from_raft(self.raw.raft.leader_id).map(|leader| leader.node);
            return Err(ProposeError::NotLeader { leader });
        }
        Ok(())
    }

    /// Asks the leader for a point at which a read is linearizable. Appears in
    /// [`Progress::reads`], or never: ask again with a new id after a while (rule 38).
    /// `read` must be unique in the cluster for all time.
    pub fn read_index(&mut self, read: RequestId) {
        if !self.failed {
            self.with_raft(|raw| raw.read_index(read.get().to_le_bytes().to_vec()));
        }
    }

    /// Proposes a change of members, if this node leads and no other change is under way. Learners
    /// may be added one by one; several changes at once go through joint consensus.
    pub fn change_membership(
        &mut self,
        changes: &[(RaftId, MemberRole)],
    ) -> Result<(), ProposeError> {
        self.require_leader()?;
        if changes.is_empty() {
            return Err(ProposeError::Membership { reason: "nothing is to be changed" });
        }
        if self.raw.raft.has_pending_conf() || self.membership().is_joint() {
            return Err(ProposeError::Membership { reason: "another change is under way" });
        }
        if changes
            .iter()
            .any(|(member, role)| *member == self.raft_id && *role != MemberRole::Voter)
        {
            let reason = "the leader does not remove itself; transfer leadership first";
            return Err(ProposeError::Membership { reason });
        }
        let change = crate::membership::to_conf_change(changes);
        self.with_raft(|raw| raw.propose_conf_change(Vec::new(), change))
            .map_err(|_dropped| ProposeError::Busy)
    }

    /// A leader that finds itself in a joint configuration nobody is leaving leaves it: the leader
    /// that entered it may be gone.
    fn leave_joint_configuration(&mut self) {
        let is_due = self.ticks.is_multiple_of(u64::from(self.config.election_ticks));
        let raft = &self.raw.raft;
        if is_due
            && raft.state == StateRole::Leader
            && self.membership().is_joint()
            && !raft.has_pending_conf()
        {
            let leave = raft::eraftpb::ConfChangeV2::default();
            // Dropped means busy: the next round tries again.
            let _dropped = self.with_raft(|raw| raw.propose_conf_change(Vec::new(), leave));
        }
    }

    /// Hands leadership over to another voter, if this node leads.
    pub fn transfer_leadership(&mut self, to: RaftId) {
        if !self.failed {
            self.with_raft(|raw| raw.transfer_leader(to.to_raft()));
        }
    }

    /// Starts an election now: for a cluster of one voter, and for tests.
    pub fn campaign(&mut self) {
        if !self.failed {
            // Refused while a change of members is not applied yet: the timeout tries again.
            let _refused = self.with_raft(RawNode::campaign);
        }
    }

    /// Says that a message could not be sent.
    pub fn report_unreachable(&mut self, member: RaftId) {
        self.with_raft(|raw| raw.report_unreachable(member.to_raft()));
    }

    /// Says whether a snapshot was delivered. Must follow every [`Outbound::is_snapshot`], or that
    /// member is sent nothing more (rule 39).
    pub fn report_snapshot(&mut self, member: RaftId, delivered: bool) {
        let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.with_raft(|raw| raw.report_snapshot(member.to_raft(), status));
    }

    /// Calls Raft and then replaces the election timeout it may have drawn by chance with one that
    /// is derived, so that a simulation replays.
    fn with_raft<R>(&mut self, call: impl FnOnce(&mut RawNode<RaftLog<D>>) -> R) -> R {
        let result = call(&mut self.raw);
        let raft = &mut self.raw.raft;
        let role = match raft.state {
            StateRole::Follower => 0,
            StateRole::PreCandidate => 1,
            StateRole::Candidate => 2,
            StateRole::Leader => 3,
        };
        let ticks = u64::from(self.config.election_ticks);
        let extra = start::mix(&[self.seed, self.raft_id.to_raft(), raft.term, role]) % ticks;
        raft.set_randomized_election_timeout((ticks + extra) as usize);
        result
    }

    /// The applied state, for this and other threads.
    pub fn metadata(&self) -> MetadataHandle {
        self.metadata.clone()
    }

    /// This member.
    pub fn raft_id(&self) -> RaftId {
        self.raft_id
    }

    /// Who leads, as of the last [`Node::process`].
    pub fn leadership(&self) -> Leadership {
        self.leadership
    }

    /// The members, as applied.
    pub fn membership(&self) -> Membership {
        Membership::from_conf_state(&self.conf_state)
    }

    /// Whether `member` holds all that is committed but for `lag_max` entries. Known to the leader.
    pub fn is_caught_up(&self, member: RaftId, lag_max: u64) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader
            && raft.prs().get(member.to_raft()).is_some_and(|progress| {
                progress.recent_active && progress.matched + lag_max >= raft.raft_log.committed
            })
    }

    /// Index of the last entry that each member is known to hold, and of the last committed one. Known
    /// to the leader.
    pub fn positions(&self) -> Option<(Vec<(RaftId, u64)>, u64)> {
        let raft = &self.raw.raft;
        let position = |(id, progress): (&u64, &raft::Progress)| {
            Some((RaftId::from_raft(*id)?, progress.matched))
        };
        (raft.state == StateRole::Leader)
            .then(|| (raft.prs().iter().filter_map(position).collect(), raft.raft_log.committed))
    }

    /// Index of the last applied entry.
    pub fn applied_index(&self) -> u64 {
        self.applied_index
    }

    /// The counters.
    pub fn metrics(&self) -> Metrics {
        let raft = &self.raw.raft;
        let log = self.raw.store();
        Metrics {
            term: raft.term,
            commit_index: raft.raft_log.committed,
            applied_index: self.applied_index,
            log_entry_count: log.last_index_held() - log.compacted_index(),
            log_size_bytes: log.entries_size_bytes(),
            ..self.metrics
        }
    }

    /// The log, for inspection.
    pub fn log(&self) -> &RaftLog<D> {
        self.raw.store()
    }
}
