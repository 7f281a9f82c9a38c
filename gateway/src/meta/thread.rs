//! The thread that owns the Raft member.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::NodeId;
use meridian_consensus::command::{Command, Proposal};
use meridian_consensus::log::{LogError, Opened, RaftLog};
use meridian_consensus::membership::{PeerStanding, RaftId, RaftLife, plan_change};
use meridian_consensus::node::{
    AppliedEntry, MetadataHandle, Node, NodeError, Outbound, Progress, ProposeError, StepError,
};
use meridian_consensus::state::Decision;
use meridian_consensus::store::SledStore;
use meridian_consensus::supervisor::Supervisor;

use super::inputs::{Input, Inputs};
use super::parts::{Incoming, Outgoing, Sent, has_room};
use super::{MetaFrame, MetaListener, MetaSettings, Shared, lock};
use crate::peers::wire::{Quorum, QuorumMember};
use crate::runtime::disk::FolderDisk;

/// Folder of the Raft log, and of one that is damaged: kept for inspection, and as a sign that this node was
/// a member once.
pub(super) const LOG: &str = "raft";
pub(super) const DAMAGED_LOG: &str = "raft-damaged";
/// How often the leader looks whether the members are what they should be.
const MEMBERSHIP_EVERY: Duration = Duration::from_secs(1);
/// A learner this many entries behind may become a voter.
const LEARNER_LAG_MAX: u64 = 100;
/// Most inputs taken before what they changed is written and sent.
const INPUTS_PER_TURN_MAX: usize = 256;

type Member = Node<FolderDisk, SledStore>;

pub(super) struct MetaThread {
    pub(super) settings: MetaSettings,
    pub(super) inputs: Inputs,
    pub(super) shared: Arc<Shared>,
    pub(super) listener: Arc<dyn MetaListener>,
    pub(super) metadata: Arc<OnceLock<MetadataHandle>>,
}

/// What happens from time to time.
struct Chores {
    heartbeat_at: Instant,
    membership_at: Instant,
    supervisor: Option<Supervisor>,
    /// Who led last, other than this node, and when it was last heard from.
    led: Option<(NodeId, Instant)>,
    /// Messages that no frame holds.
    outgoing: Vec<Outgoing<RaftId>>,
    incoming: Incoming,
}

impl MetaThread {
    pub(super) fn run(self) {
        let mut member = match self.start_member() {
            Ok(Some(member)) => member,
            Ok(None) => return,
            Err(reason) => return self.listener.on_fatal(reason),
        };
        if let Err(reason) = self.run_member(&mut member) {
            self.listener.on_fatal(reason);
            // Its store syncs when it closes, and panics if it cannot: the disk may be what failed.
            std::mem::forget(member);
        }
    }

    fn run_member(&self, member: &mut Member) -> Result<(), String> {
        let _set_once = self.metadata.set(member.metadata());
        let is_later_life = member.raft_id().life != RaftLife::FIRST;
        if is_later_life || member.metadata().read().cluster_id().is_some() {
            self.shared.is_of_cluster.notify_one();
        }
        self.listener.on_replaced(&member.metadata().read());
        if self.settings.voters == [self.settings.node] {
            member.campaign();
        }
        let now = self.settings.clock.now();
        let mut chores = Chores {
            heartbeat_at: now,
            membership_at: now,
            supervisor: None,
            led: None,
            outgoing: Vec::new(),
            incoming: Incoming::default(),
        };
        loop {
            let now = self.settings.clock.now();
            if now >= member.next_tick() {
                member.tick(now);
            }
            self.do_chores(member, &mut chores, now);
            self.process(member, &mut chores).map_err(|error| error.to_string())?;
            self.send_parts(member, &mut chores);
            let due = member.next_tick().min(chores.heartbeat_at);
            let wait = due.since(self.settings.clock.now());
            let mut next = match self.inputs.recv_timeout(wait) {
                Ok(input) => Some(input),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            for _ in 0..INPUTS_PER_TURN_MAX {
                match next {
                    Some(Input::Stop) => return Ok(()),
                    Some(input) => self.take(member, &mut chores, input)?,
                    None => break,
                }
                next = self.inputs.try_recv();
            }
        }
    }

    fn start_member(&self) -> Result<Option<Member>, String> {
        let settings = &self.settings;
        let config = &settings.config;
        let fail = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let open = || {
            let disk = FolderDisk::open(&settings.folder.join(LOG))?;
            RaftLog::open(disk, config.segment_size_bytes)
        };
        let opened = match open() {
            Err(error @ LogError::Corrupt { .. }) if self.has_peers() => {
                tracing::error!(%error, "this node rejoins in a new life");
                self.set_log_aside().and_then(|()| open().map_err(|error| error.to_string()))?
            }
            opened => opened.map_err(|error| error.to_string())?,
        };
        let log = match opened {
            Opened::Log(log) if log.raft_id().node != settings.node => {
                return Err(format!(
                    "{} is the metadata log of node {}, and the configuration says node.id = {}; start with the \
                     folder of this node, or put the configuration back",
                    settings.folder.join(LOG).display(),
                    log.raft_id().node,
                    settings.node
                ));
            }
            Opened::Log(log) => *log,
            Opened::Empty(disk) => {
                match self.form(disk).map_err(|error| fail("raft log", &error))? {
                    Some(log) => log,
                    None => return Ok(None),
                }
            }
        };
        let cache_size_bytes = config.store_cache_size_bytes;
        let store = SledStore::open(&settings.folder.join("state"), cache_size_bytes)
            .map_err(|error| fail("metadata store", &error))?;
        let seed = lock(&self.shared.rng).next_u64();
        Node::start(log, store, config.clone(), seed, settings.clock.now())
            .map(Some)
            .map_err(|error| fail("metadata", &error))
    }

    /// Whether others know what this node has forgotten.
    fn has_peers(&self) -> bool {
        !self.settings.peers.is_empty()
    }

    /// Moves the log out of the way: the next start finds none, and rejoins in a new life (rule 36).
    fn set_log_aside(&self) -> Result<(), String> {
        let folder = &self.settings.folder;
        let (log, damaged) = (folder.join(LOG), folder.join(DAMAGED_LOG));
        let moved = match fs::remove_dir_all(&damaged) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => fs::rename(&log, &damaged).and_then(|()| File::open(folder)?.sync_all()),
        };
        moved.map_err(|error| format!("raft log: moving it to {}: {error}", damaged.display()))
    }

    fn take(&self, member: &mut Member, chores: &mut Chores, input: Input) -> Result<(), String> {
        let now = self.settings.clock.now();
        match input {
            Input::Propose(proposal) => self.propose(member, &proposal),
            Input::Ask(id) => member.read_index(id),
            Input::Describe(asker) => {
                let _gave_up = asker.send(quorum_of(member));
            }
            Input::Frame(from, MetaFrame::Part(part)) => {
                if let Some(bytes) = chores.incoming.take(from, part) {
                    return self.take(member, chores, Input::Frame(from, MetaFrame::Raft(bytes)));
                }
            }
            Input::Frame(from, MetaFrame::Raft(bytes)) => {
                // A Raft leader's heartbeats would do; any message proves the sender alive.
                if let Some(supervisor) = &mut chores.supervisor {
                    supervisor.heard(now, from);
                }
                if member.leadership().leader.is_some_and(|leader| leader.node == from) {
                    chores.led = Some((from, now));
                }
                match member.step(from, &bytes) {
                    Ok(()) => {}
                    Err(error @ StepError::LogLost { .. }) => {
                        self.set_log_aside()?;
                        return Err(error.to_string());
                    }
                    Err(error @ StepError::LifeOver { .. }) => return Err(error.to_string()),
                    Err(error) => tracing::debug!(%from, %error, "raft message dropped"),
                }
            }
            Input::Frame(from, MetaFrame::Heartbeat) => {
                if let Some(supervisor) = &mut chores.supervisor {
                    supervisor.heard(now, from);
                }
            }
            Input::Frame(from, MetaFrame::Propose(bytes)) => match Proposal::decode(&bytes) {
                Ok(proposal) => self.take_proposal(member, from, &proposal),
                Err(error) => tracing::warn!(%from, %error, "proposal refused"),
            },
            Input::Frame(from, MetaFrame::AskStanding) => {
                let formed = member.metadata().read().cluster_id().is_some();
                let standing = if formed { PeerStanding::Formed } else { PeerStanding::Forming };
                // The asker asks again if it can't be sent.
                let _asked_again = self.shared.send(from, &MetaFrame::Standing(standing));
            }
            Input::Frame(from, MetaFrame::AskLife(request_id)) => {
                let known = member.metadata().read().result_of(request_id).cloned();
                if let Some(Ok(Decision::RaftLife(life))) = known {
                    // The asker asks again if it can't be sent.
                    let _asked_again = self.shared.send(from, &MetaFrame::Life(life.get()));
                } else {
                    let command = Command::AllocateRaftLife { node: from };
                    self.take_proposal(member, from, &Proposal { request_id, command });
                }
            }
            Input::Frame(_, MetaFrame::Standing(_) | MetaFrame::Life(_)) | Input::Stop => {}
        }
        Ok(())
    }

    /// Proposes what another node asks for, or passes it on to the leader. A node that joins or comes back
    /// asks the nodes of its configuration; the leader may be none of these. To a leader that is known, and
    /// to nobody else: what goes to all would come back, from a node that knows no members yet.
    fn take_proposal(&self, member: &mut Member, from: NodeId, proposal: &Proposal) {
        let leadership = member.leadership();
        if leadership.is_self {
            return self.propose(member, proposal);
        }
        if let Some(leader) = leadership.leader.filter(|leader| leader.node != from) {
            self.send_proposal(leader.node, proposal);
        }
    }

    /// Whoever waits sends it again.
    fn send_proposal(&self, to: NodeId, proposal: &Proposal) {
        let frame = MetaFrame::Propose(proposal.encode().into());
        let _sent_again = self.shared.send(to, &frame);
    }

    /// Proposes here if this node leads, else sends the proposal to the leader. Whoever waits
    /// sends it again.
    fn propose(&self, member: &mut Member, proposal: &Proposal) {
        let applied = member.metadata().read().result_of(proposal.request_id).cloned();
        if let Some(result) = applied {
            let request_id = proposal.request_id;
            let index = member.applied_index();
            self.answer(AppliedEntry { index, request_id, result, changes: Vec::new() });
            return;
        }
        match member.propose(proposal) {
            Ok(()) => {}
            // A node that is new hears of no leader before it is registered: one of the voters leads.
            Err(ProposeError::NotLeader { leader: None }) => {
                let own = self.settings.node;
                let frame = MetaFrame::Propose(proposal.encode().into());
                for voter in self.settings.voters.iter().filter(|voter| **voter != own) {
                    let _sent_again = self.shared.send(*voter, &frame);
                }
            }
            Err(ProposeError::NotLeader { leader: Some(leader) }) => {
                self.send_proposal(leader, proposal);
            }
            Err(error) => tracing::debug!(%error, "proposal not taken now"),
        }
    }

    fn do_chores(&self, member: &mut Member, chores: &mut Chores, now: Instant) {
        if now < chores.heartbeat_at {
            return;
        }
        chores.heartbeat_at = now + self.settings.config.node_heartbeat;
        let voters = member.membership().voters;
        *lock(&self.shared.voters) = voters.into_iter().map(|voter| voter.node).collect();
        let leadership = member.leadership();
        if !leadership.is_self {
            chores.supervisor = None;
            if let Some(leader) = leadership.leader {
                let _sent_again = self.shared.send(leader.node, &MetaFrame::Heartbeat);
            }
            return;
        }
        let metadata = member.metadata();
        let led = chores.led;
        let supervisor = chores.supervisor.get_or_insert_with(|| {
            Supervisor::new(&self.settings.config, now, &metadata.read(), led)
        });
        supervisor.heard(now, self.settings.node);
        let commands = supervisor.poll(now, self.settings.node, &metadata.read());
        for command in commands {
            tracing::info!(command = ?Brief(&command), "the supervisor decides");
            let request_id = self.shared.new_request();
            self.propose(member, &Proposal { request_id, command });
        }
        if now >= chores.membership_at {
            chores.membership_at = now + MEMBERSHIP_EVERY;
            self.mend_membership(member);
        }
    }

    fn mend_membership(&self, member: &mut Member) {
        let changes = {
            let metadata = member.metadata();
            let metadata = metadata.read();
            let caught_up = |it: RaftId| member.is_caught_up(it, LEARNER_LAG_MAX);
            plan_change(&metadata, &member.membership(), member.raft_id(), caught_up)
        };
        if changes.is_empty() {
            return;
        }
        match member.change_membership(&changes) {
            Ok(()) => tracing::info!(?changes, "raft members change"),
            Err(error) => tracing::debug!(%error, "raft members not changed now"),
        }
    }

    fn process(&self, member: &mut Member, chores: &mut Chores) -> Result<(), NodeError> {
        let mut undelivered = Vec::new();
        let mut snapshots = Vec::new();
        let progress = member.process(|Outbound { to, bytes, is_snapshot }| {
            let frame_size_bytes_max = self.settings.frame_size_bytes_max;
            if is_snapshot && !has_room(&bytes, frame_size_bytes_max) {
                let (now, number) = (self.settings.clock.now(), lock(&self.shared.rng).next_u64());
                // Raft asks for the next one when it has heard what became of the last.
                chores.outgoing.retain(|outgoing| outgoing.to != to);
                let bytes = Bytes::from(bytes);
                let outgoing = Outgoing::new(to, number, bytes, frame_size_bytes_max, now);
                chores.outgoing.push(outgoing);
                return;
            }
            let sent = self.shared.send_raft(to.node, bytes, is_snapshot);
            if is_snapshot {
                snapshots.push((to, sent));
            } else if !sent {
                undelivered.push(to);
            }
        })?;
        for (to, delivered) in snapshots {
            member.report_snapshot(to, delivered);
        }
        for to in undelivered {
            member.report_unreachable(to);
        }
        self.tell(member, progress);
        Ok(())
    }

    /// Sends what the transport takes of messages that no frame holds.
    fn send_parts(&self, member: &mut Member, chores: &mut Chores) {
        let now = self.settings.clock.now();
        chores.outgoing.retain_mut(|outgoing| {
            let to = outgoing.to;
            match outgoing.send(now, |part| self.shared.send_part(to.node, part)) {
                Sent::Partly => return true,
                Sent::Whole => member.report_snapshot(to, true),
                Sent::Never => {
                    tracing::warn!(%to, "a snapshot of the metadata could not be sent; sent again");
                    member.report_snapshot(to, false);
                }
            }
            false
        });
    }

    fn tell(&self, member: &Member, progress: Progress) {
        if let Some(leadership) = progress.leadership {
            *lock(&self.shared.leadership) = Some(leadership);
        }
        *lock(&self.shared.counters) = member.metrics();
        self.shared.applied_index.send_if_modified(|known| {
            let applied = member.applied_index();
            std::mem::replace(known, applied) != applied
        });
        let metadata = member.metadata();
        if progress.state_replaced {
            self.listener.on_replaced(&metadata.read());
        }
        if !progress.applied.is_empty() {
            self.listener.on_applied(&metadata.read(), &progress.applied);
        }
        for id in &progress.reads {
            if let Some(bell) = lock(&self.shared.catching_up).remove(id) {
                bell.notify_one();
            }
        }
        for entry in progress.applied {
            self.answer(entry);
        }
    }

    fn answer(&self, entry: AppliedEntry) {
        let waiting = lock(&self.shared.waiting).remove(&entry.request_id);
        for waiter in waiting.into_iter().flatten() {
            let _gave_up = waiter.send(entry.clone());
        }
    }
}

/// How far the members are, if this one leads.
fn quorum_of(member: &Member) -> Option<Quorum> {
    let (positions, committed_index) = member.positions()?;
    let members = member.membership();
    let (voters, observers): (Vec<_>, Vec<_>) = positions
        .into_iter()
        .map(|(member, last_index)| QuorumMember { member, last_index })
        .partition(|it| members.voters.contains(&it.member));
    Some(Quorum { term: member.leadership().term, committed_index, voters, observers })
}

/// A command without its lists, for the log.
struct Brief<'a>(&'a Command);

impl std::fmt::Debug for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Command::AssignLeaders(assignments) => {
                write!(f, "AssignLeaders of {} partitions", assignments.len())
            }
            other => write!(f, "{other:?}"),
        }
    }
}
