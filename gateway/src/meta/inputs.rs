//! What waits for the metadata thread, bounded by bytes. What finds no room is dropped, as if it had been lost between
//! two nodes: Raft, and whoever proposes or asks, sends it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use meridian_base::id::NodeId;
use meridian_consensus::command::{Proposal, RequestId};
use tokio::sync::oneshot;

use super::MetaFrame;
use crate::peers::wire::Quorum;

/// Most bytes that wait for the thread: a few of the largest frames.
const QUEUED_SIZE_BYTES_MAX: usize = 64 << 20;
/// What an input takes beside the bytes in it.
const INPUT_SIZE_BYTES: usize = 256;

/// What the metadata thread is to take.
pub(super) enum Input {
    Frame(NodeId, MetaFrame),
    Propose(Arc<Proposal>),
    /// Ask how far decisions have come.
    Ask(RequestId),
    /// Say how far the members are, if this node leads.
    Describe(oneshot::Sender<Option<Quorum>>),
    Stop,
}

impl Input {
    fn size_bytes(&self) -> usize {
        INPUT_SIZE_BYTES
            + match self {
                Self::Frame(_, MetaFrame::Raft(bytes) | MetaFrame::Propose(bytes)) => bytes.len(),
                Self::Frame(_, MetaFrame::Part(part)) => part.size_bytes(),
                // Whoever proposes holds the command, however often it is sent.
                Self::Frame(..) | Self::Propose(_) | Self::Ask(_) => 0,
                Self::Describe(_) | Self::Stop => 0,
            }
    }
}

/// The metadata thread has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ThreadIsGone;

/// The end that the thread takes from.
pub(super) struct Inputs {
    receiver: Receiver<Input>,
    queued_bytes: Arc<AtomicUsize>,
}

/// The end that all others put into.
pub(super) struct InputSender {
    sender: Sender<Input>,
    queued_bytes: Arc<AtomicUsize>,
}

/// Both ends.
pub(super) fn channel() -> (InputSender, Inputs) {
    let (sender, receiver) = mpsc::channel();
    let queued_bytes = Arc::new(AtomicUsize::new(0));
    (
        InputSender { sender, queued_bytes: Arc::clone(&queued_bytes) },
        Inputs { receiver, queued_bytes },
    )
}

impl InputSender {
    pub(super) fn send(&self, input: Input) -> Result<(), ThreadIsGone> {
        let size_bytes = input.size_bytes();
        let queued_bytes = self.queued_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        let is_stop = matches!(input, Input::Stop);
        if queued_bytes + size_bytes > QUEUED_SIZE_BYTES_MAX && !is_stop {
            self.queued_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
            tracing::debug!(queued_bytes, "the metadata thread is behind; something is dropped");
            return Ok(());
        }
        self.sender.send(input).map_err(|_| ThreadIsGone)
    }
}

impl Inputs {
    pub(super) fn recv_timeout(&self, timeout: Duration) -> Result<Input, RecvTimeoutError> {
        self.receiver.recv_timeout(timeout).map(|input| self.taken(input))
    }

    pub(super) fn try_recv(&self) -> Option<Input> {
        self.receiver.try_recv().ok().map(|input| self.taken(input))
    }

    fn taken(&self, input: Input) -> Input {
        self.queued_bytes.fetch_sub(input.size_bytes(), Ordering::Relaxed);
        input
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn frames_that_nobody_takes_have_a_bound_and_a_stop_always_gets_through() {
        let (sender, inputs) = channel();
        let frame = Bytes::from(vec![0; 1 << 20]);
        for _ in 0..200 {
            let raft = MetaFrame::Raft(frame.clone());
            assert_eq!(sender.send(Input::Frame(NodeId::new(2), raft)), Ok(()));
        }
        assert_eq!(sender.send(Input::Stop), Ok(()));
        let taken: Vec<Input> = std::iter::from_fn(|| inputs.try_recv()).collect();
        assert_eq!(taken.len(), 63 + 1);
        assert!(matches!(taken.last(), Some(Input::Stop)));
        assert_eq!(inputs.queued_bytes.load(Ordering::Relaxed), 0);
        drop(inputs);
        assert_eq!(sender.send(Input::Stop), Err(ThreadIsGone));
    }
}
