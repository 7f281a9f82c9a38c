//! The metadata plane in the real world: one thread that owns the Raft member, its log and its
//! store, and talks to the other members through the node's transport.
//!
//! ```text
//! transport --raft, heartbeats, proposals--> [meta thread] --applied changes--> node
//! propose() --------------------------------------^  |
//!                                                    +-- raft messages --> transport
//! ```

mod deleted;
mod events;
mod forming;
mod inputs;
mod listener;
mod parts;
mod thread;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::env::Rng;
use meridian_base::id::NodeId;
use meridian_base::sync::{ReadGuard, RwLock, lock};
use meridian_consensus::command::{Command, Proposal, RequestId};
use meridian_consensus::config::Config;
use meridian_consensus::error::{Limit, Refusal};
use meridian_consensus::membership::PeerStanding;
use meridian_consensus::metrics::Metrics as Counters;
use meridian_consensus::node::{AppliedEntry, Leadership, MetadataHandle};
use meridian_consensus::state::{Decision, Metadata};
use tokio::sync::{Notify, oneshot, watch};

pub(crate) use self::deleted::Deleted;
pub(crate) use self::events::Events;
use self::inputs::{Input, InputSender};
pub(crate) use self::listener::{
    EventSender, MetaEvent, dedups_sources, is_compacted, layout_of, ownership_of,
};
use self::parts::Part;
use crate::peers::Wire;
use crate::peers::wire::Quorum;
use crate::runtime::clock::Clock;
use crate::runtime::quic::{Channel, hurry};

/// Snapshots larger than this yield to what somebody waits for.
const BULK_SIZE_BYTES: usize = 256 << 10;
/// A proposal that was not seen applied by then is sent again, under the same request id.
const PROPOSE_AGAIN_AFTER: Duration = Duration::from_millis(300);
/// Time a proposal has to be decided.
const PROPOSE_WITHIN: Duration = Duration::from_secs(20);
/// How often a node that waits to be taken in says so.
const SAY_WAITING_EVERY: Duration = Duration::from_secs(10);
/// A question that the leader did not answer by then is asked again, under a new id.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(300);
/// Time to hear how far decisions have come.
pub(crate) const CATCH_UP_WITHIN: Duration = Duration::from_secs(2);

/// Why a command was not decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The metadata log refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No decision in time: no majority of voters is reachable. It may still be decided later.
    #[error("no decision in time: a majority of the metadata voters can't be reached; retry later")]
    TimedOut,
    /// The node is shutting down.
    #[error("the node is shutting down; use another")]
    ShuttingDown,
}

/// What metadata threads say to each other. The first byte of the frame is its kind: stable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MetaFrame {
    /// A Raft message.
    Raft(Bytes),
    /// I am alive.
    Heartbeat,
    /// Propose this, if you lead.
    Propose(Bytes),
    /// Have you a log? Asked while a cluster forms.
    AskStanding,
    /// Whether I have a log.
    Standing(PeerStanding),
    /// Have a new Raft life decided for me, and tell me: my log is lost.
    AskLife(RequestId),
    /// Your new Raft life.
    Life(u32),
    /// A part of a Raft message that no frame holds.
    Part(Part),
}

impl MetaFrame {
    /// First byte of a Raft message; the others follow.
    pub(crate) const KIND_MIN: u8 = 16;
    /// First byte of the last kind.
    pub(crate) const KIND_MAX: u8 = 23;

    pub(crate) fn encode(&self) -> Vec<Bytes> {
        let mut head = BytesMut::with_capacity(17);
        head.put_u8(match self {
            Self::Raft(_) => 16,
            Self::Heartbeat => 17,
            Self::Propose(_) => 18,
            Self::AskStanding => 19,
            Self::Standing(_) => 20,
            Self::AskLife(_) => 21,
            Self::Life(_) => 22,
            Self::Part(_) => 23,
        });
        match self {
            Self::Raft(body) | Self::Propose(body) => return vec![head.freeze(), body.clone()],
            Self::Part(part) => {
                let mut frame = vec![head.freeze()];
                frame.extend(part.encode());
                return frame;
            }
            Self::Heartbeat | Self::AskStanding => {}
            Self::Standing(standing) => head.put_u8(match standing {
                PeerStanding::Empty => 0,
                PeerStanding::Forming => 1,
                PeerStanding::Formed => 2,
            }),
            Self::AskLife(request) => head.put_u128(request.get()),
            Self::Life(life) => head.put_u32(*life),
        }
        vec![head.freeze()]
    }

    pub(crate) fn decode(frame: &Bytes) -> Option<Self> {
        let kind = *frame.first()?;
        let body = frame.slice(1..);
        Some(match (kind, body.len()) {
            (16, _) => Self::Raft(body),
            (17, 0) => Self::Heartbeat,
            (18, _) => Self::Propose(body),
            (19, 0) => Self::AskStanding,
            (20, 1) => Self::Standing(match body[0] {
                0 => PeerStanding::Empty,
                1 => PeerStanding::Forming,
                2 => PeerStanding::Formed,
                _ => return None,
            }),
            (21, 16) => Self::AskLife(RequestId::new(u128::from_be_bytes(*body.first_chunk()?))),
            (22, 4) => Self::Life(u32::from_be_bytes(*body.first_chunk()?)),
            (23, _) => Self::Part(Part::decode(body)?),
            _ => return None,
        })
    }
}

/// What the metadata thread tells the node. Called on that thread: return at once.
pub(crate) trait MetaListener: Send + Sync + 'static {
    /// Entries were applied, in order.
    fn on_applied(&self, metadata: &Metadata, entries: &[AppliedEntry]);

    /// The whole state was replaced by a snapshot: look everything up anew.
    fn on_replaced(&self, metadata: &Metadata);

    /// The member can't go on: stop the process.
    fn on_fatal(&self, reason: String);
}

/// What the metadata plane needs.
pub(crate) struct MetaSettings {
    pub(crate) node: NodeId,
    /// Voters of the static configuration.
    pub(crate) voters: Vec<NodeId>,
    /// All other nodes of the static configuration.
    pub(crate) peers: Vec<NodeId>,
    /// Folder of the Raft log and the applied state.
    pub(crate) folder: PathBuf,
    pub(crate) config: Config,
    /// Longest frame between nodes.
    pub(crate) frame_size_bytes_max: usize,
    pub(crate) clock: Clock,
}

/// Decisions that somebody waits for, by request.
type Waiting = HashMap<RequestId, Vec<oneshot::Sender<AppliedEntry>>>;

/// Shared by the thread and everyone else.
struct Shared {
    waiting: Mutex<Waiting>,
    /// Who waits for this node to have applied what was decided before they asked.
    catching_up: Mutex<HashMap<RequestId, Arc<Notify>>>,
    leadership: Mutex<Option<Leadership>>,
    counters: Mutex<Counters>,
    /// The last entry that this node has applied since it started.
    applied_index: watch::Sender<u64>,
    /// Who votes, of late.
    voters: Mutex<Vec<NodeId>>,
    /// Rung when this member turns out to be of a cluster that is there.
    is_of_cluster: Notify,
    rng: Mutex<Box<dyn Rng + Send>>,
    wire: Arc<dyn Wire>,
    proposal_size_bytes_max: usize,
}

impl Shared {
    fn send(&self, to: NodeId, frame: &MetaFrame) -> bool {
        self.wire.send(to, Channel::Metadata, frame.encode())
    }

    /// Sends a message between members. Large snapshots alone are bulk: somebody waits for what is appended, however large it is.
    fn send_raft(&self, to: NodeId, message: Vec<u8>, is_snapshot: bool) -> bool {
        let is_bulk = is_snapshot && message.len() > BULK_SIZE_BYTES;
        let channel = if is_bulk { Channel::Bulk } else { Channel::Metadata };
        self.wire.send(to, channel, MetaFrame::Raft(Bytes::from(message)).encode())
    }

    fn send_part(&self, to: NodeId, part: Part) -> bool {
        self.wire.send(to, Channel::Bulk, MetaFrame::Part(part).encode())
    }

    fn new_request(&self) -> RequestId {
        let mut rng = lock(&self.rng);
        RequestId::new(u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()))
    }
}

/// Who waits for a decision: nobody any more when this is dropped, also by a caller that is gone.
struct Waits<'a> {
    shared: &'a Shared,
    request_id: RequestId,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        lock(&self.shared.waiting).remove(&self.request_id);
    }
}

/// Questions how far decisions have come, forgotten likewise.
struct Asked<'a> {
    shared: &'a Shared,
    ids: Vec<RequestId>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut catching_up = lock(&self.shared.catching_up);
        for id in &self.ids {
            catching_up.remove(id);
        }
    }
}

/// The metadata plane of this node.
pub(crate) struct Meta {
    inputs: InputSender,
    shared: Arc<Shared>,
    metadata: Arc<OnceLock<MetadataHandle>>,
    /// Stands in until the cluster has formed.
    unformed: RwLock<Metadata>,
}

impl Meta {
    /// Starts the thread. Nothing is known before the cluster has formed.
    pub(crate) fn start(
        settings: MetaSettings,
        wire: Arc<dyn Wire>,
        rng: Box<dyn Rng + Send>,
        listener: Arc<dyn MetaListener>,
    ) -> std::io::Result<Self> {
        let (inputs, receiver) = inputs::channel();
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            catching_up: Mutex::default(),
            leadership: Mutex::default(),
            counters: Mutex::default(),
            applied_index: watch::Sender::new(0),
            voters: Mutex::default(),
            is_of_cluster: Notify::new(),
            rng: Mutex::new(rng),
            wire,
            proposal_size_bytes_max: settings.config.proposal_size_bytes_max,
        });
        let metadata = Arc::new(OnceLock::new());
        let thread = thread::MetaThread {
            settings,
            inputs: receiver,
            shared: Arc::clone(&shared),
            listener,
            metadata: Arc::clone(&metadata),
        };
        std::thread::Builder::new().name("meta".to_owned()).spawn(move || {
            hurry();
            let listener = Arc::clone(&thread.listener);
            // Without this thread a node hears of nothing any more, and would not know it.
            if catch_unwind(AssertUnwindSafe(|| thread.run())).is_err() {
                listener.on_fatal("the metadata thread panicked".to_owned());
            }
        })?;
        Ok(Self { inputs, shared, metadata, unformed: RwLock::default() })
    }

    /// Takes a frame of another node.
    pub(crate) fn on_frame(&self, from: NodeId, frame: MetaFrame) {
        let _thread_is_gone = self.inputs.send(Input::Frame(from, frame));
    }

    /// The applied metadata; empty before the cluster has formed.
    #[track_caller]
    pub(crate) fn metadata(&self) -> ReadGuard<'_, Metadata> {
        match self.metadata.get() {
            Some(handle) => handle.read(),
            None => self.unformed.read(),
        }
    }

    /// Who leads the metadata log, as far as this node knows.
    pub(crate) fn leadership(&self) -> Option<Leadership> {
        *lock(&self.shared.leadership)
    }

    /// What this member of the metadata log has counted.
    pub(crate) fn counters(&self) -> Counters {
        *lock(&self.shared.counters)
    }

    /// The nodes that vote on metadata, as this node has heard; empty before it has.
    pub(crate) fn voters(&self) -> Vec<NodeId> {
        lock(&self.shared.voters).clone()
    }

    /// How far the members of the metadata log are; `None` unless this node leads.
    pub(crate) async fn quorum(&self) -> Option<Quorum> {
        let (sender, answer) = oneshot::channel();
        self.inputs.send(Input::Describe(sender)).ok()?;
        answer.await.ok().flatten()
    }

    /// The last entry that this node has applied since it started.
    pub(crate) fn applied_index(&self) -> u64 {
        *self.shared.applied_index.borrow()
    }

    /// The applied index, as it changes.
    pub(crate) fn applied(&self) -> watch::Receiver<u64> {
        self.shared.applied_index.subscribe()
    }

    /// Has `command` decided, and waits until this node has applied the decision.
    pub(crate) async fn propose(&self, command: Command) -> Result<Decision, ProposeError> {
        let request_id = self.shared.new_request();
        let decided = self.decide(Proposal { request_id, command });
        let decided = tokio::time::timeout(PROPOSE_WITHIN, decided).await;
        decided.unwrap_or(Err(ProposeError::TimedOut))
    }

    /// Like [`Meta::propose`], for as long as it takes: a node may be started long before a majority of the
    /// voters is.
    pub(crate) async fn propose_patiently(
        &self,
        command: Command,
    ) -> Result<Decision, ProposeError> {
        let request_id = self.shared.new_request();
        self.propose_patiently_as(request_id, command).await
    }

    /// Like [`Meta::propose_patiently`], under a request id of the caller's.
    pub(crate) async fn propose_patiently_as(
        &self,
        request_id: RequestId,
        command: Command,
    ) -> Result<Decision, ProposeError> {
        let mut decided = std::pin::pin!(self.decide(Proposal { request_id, command }));
        loop {
            match tokio::time::timeout(SAY_WAITING_EVERY, &mut decided).await {
                Ok(decided) => return decided,
                Err(_) => tracing::warn!(
                    "waiting for a majority of the metadata voters: start more nodes of the cluster, \
                     or see whether they reach each other"
                ),
            }
        }
    }

    async fn decide(&self, proposal: Proposal) -> Result<Decision, ProposeError> {
        // No leader would ever take it, and none would say so.
        let limit = self.shared.proposal_size_bytes_max;
        if proposal.encode().len() > limit {
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            return Err(Refusal::TooLarge { what: Limit::Command, limit }.into());
        }
        let (sender, mut answer) = oneshot::channel();
        let proposal = Arc::new(proposal);
        lock(&self.shared.waiting).entry(proposal.request_id).or_default().push(sender);
        let _forgotten = Waits { shared: &self.shared, request_id: proposal.request_id };
        loop {
            self.inputs
                .send(Input::Propose(Arc::clone(&proposal)))
                .map_err(|_| ProposeError::ShuttingDown)?;
            match tokio::time::timeout(PROPOSE_AGAIN_AFTER, &mut answer).await {
                Ok(Ok(entry)) => return entry.result.map_err(ProposeError::Refused),
                Ok(Err(_)) => return Err(ProposeError::ShuttingDown),
                Err(_) => {}
            }
        }
    }

    /// Waits until it is known that there is a cluster: its own state says so, or this member is in a
    /// later life than its first. In the second case it hears of no decision before it has registered.
    /// Never comes in a cluster that is new.
    pub(crate) async fn is_of_cluster(&self) {
        self.shared.is_of_cluster.notified().await;
    }

    /// Waits until this node has applied everything that was decided before the call, for so long at most.
    pub(crate) async fn catch_up(&self, within: Duration) -> Result<(), ProposeError> {
        let caught_up = tokio::time::timeout(within, async {
            // Late answers count: on a busy machine all of them are late.
            let mut asked = Asked { shared: &self.shared, ids: Vec::new() };
            let bell = Arc::new(Notify::new());
            loop {
                let id = self.shared.new_request();
                asked.ids.push(id);
                lock(&self.shared.catching_up).insert(id, Arc::clone(&bell));
                self.inputs.send(Input::Ask(id)).map_err(|_| ProposeError::ShuttingDown)?;
                if tokio::time::timeout(ASK_AGAIN_AFTER, bell.notified()).await.is_ok() {
                    return Ok(());
                }
            }
        });
        caught_up.await.unwrap_or(Err(ProposeError::TimedOut))
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        let _thread_is_gone = self.inputs.send(Input::Stop);
    }
}

#[cfg(test)]
mod tests;
