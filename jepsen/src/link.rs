//! What travels between two clusters: a mirror's questions, and what its source says.

use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LeaderEpoch};
use meridian_mirror::partition::{Answer, Failure, NoView, Question, SourceView};

/// A process of the other cluster. A connection is to one of them, and ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node's number there.
    pub node: usize,
    /// Which of its processes.
    pub boot: u64,
}

/// Who asks, and which of its questions it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAsker {
    /// The node's number in its cluster.
    pub node: usize,
    /// The mirror.
    pub partition: PartitionId,
    /// The generation of its leader.
    pub generation: Generation,
    /// Its number for the question; no other of this leader has it.
    pub number: u64,
}

/// What goes over a link.
#[derive(Clone, Debug)]
pub enum LinkPacket {
    /// What is there of this partition, and who leads it?
    Look {
        /// Who asks.
        asker: LinkAsker,
        /// The partition.
        partition: PartitionId,
    },
    /// What the metadata of the node that was asked says.
    Seen {
        /// Who asked.
        asker: LinkAsker,
        /// The partition and its leader.
        found: Result<(SourceView, Peer), NoView>,
    },
    /// A question to a leader.
    Ask {
        /// Who asks.
        asker: LinkAsker,
        /// The process that the connection is to.
        to: Peer,
        /// The partition.
        partition: PartitionId,
        /// The epoch that its leader must have.
        leader_epoch: LeaderEpoch,
        /// The question.
        question: Question,
        /// Whether it is to go on where the answer before ended.
        goes_on: bool,
    },
    /// The answer.
    Answer {
        /// Who asked.
        asker: LinkAsker,
        /// The answer.
        answer: Result<Answer, Failure>,
    },
}
