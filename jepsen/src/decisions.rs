//! The metadata log: real proposals in one order, which stands in for Raft's. Each node applies them
//! to a state machine of its own, in its own time. A node that is slow, paused or cut off goes on with
//! what it knew: that is where zombie leaders come from (rule T1).

use std::sync::Arc;

use meridian_base::id::{GroupId, NodeId};
use meridian_consensus::command::{Command, Proposal, RequestId};
use meridian_consensus::error::Refusal;
use meridian_consensus::mutation::Mutation;
use meridian_consensus::state::{Decision, Metadata};

/// The only storage group of a simulation.
pub const GROUP: GroupId = GroupId::new(1);

/// Bits of a request's id below its process, and below its node.
const PROCESS_SHIFT: u32 = 32;
const NODE_SHIFT: u32 = 96;

/// What a process of a node proposes once, however often it repeats it.
#[derive(Clone, Copy, Debug)]
pub enum Once {
    /// Its registration.
    Register,
    /// The mount of its disk.
    Mount,
}

/// The request by which the process with this number does it.
pub fn request_of(node: NodeId, boot: u64, what: Once) -> RequestId {
    let node = (u128::from(node.get()) + 1) << NODE_SHIFT;
    RequestId::new(node | u128::from(boot) << PROCESS_SHIFT | what as u128)
}

/// A state machine to which nothing has been applied yet, and its broken rule, if any.
pub fn state_machine(mutation: Option<Mutation>) -> Metadata {
    match mutation {
        #[cfg(feature = "mutations")]
        Some(mutation) => Metadata::breaking(mutation),
        _ => Metadata::default(),
    }
}

/// The log, and the state after all of it.
#[derive(Debug)]
pub struct Decisions {
    log: Vec<Arc<Proposal>>,
    latest: Metadata,
    request_count: u128,
}

impl Decisions {
    /// Nothing is decided yet.
    pub fn new(mutation: Option<Mutation>) -> Self {
        Self { log: Vec::new(), latest: state_machine(mutation), request_count: 0 }
    }

    /// The state after every decision.
    pub fn latest(&self) -> &Metadata {
        &self.latest
    }

    /// The index of the last entry.
    pub fn last_index(&self) -> u64 {
        self.log.len() as u64
    }

    /// The entries that a node which applied those up to `index` has yet to apply.
    pub fn after(&self, index: u64) -> &[Arc<Proposal>] {
        self.log.get(index as usize..).unwrap_or_default()
    }

    /// A proposal that is new.
    pub fn proposal(&mut self, command: Command) -> Arc<Proposal> {
        self.request_count += 1;
        Arc::new(Proposal { request_id: RequestId::new(self.request_count), command })
    }

    /// Takes a proposal into the log.
    pub fn decide(&mut self, proposal: Arc<Proposal>) -> Result<Decision, Refusal> {
        let index = self.last_index() + 1;
        let applied = self.latest.apply(index, &proposal);
        self.log.push(proposal);
        applied.result
    }
}
