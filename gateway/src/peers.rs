//! Questions between nodes, and their answers, over QUIC.
//!
//! A question that gets no answer in time has no known outcome; whoever asks must be able to ask
//! again. Both directions are bounded: beyond, questions are refused here and dropped there.

pub mod wire;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::NodeId;
use meridian_base::sync::lock;
pub use meridian_runtime::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use self::wire::{CallId, PeerMessage, PeerReply, PeerRequest};
use crate::runtime::quic::Channel;

/// Questions of this node that wait for their answers.
const ASKED_COUNT_MAX: usize = 10_000;
/// Questions of others that are being answered.
const ANSWERING_COUNT_MAX: usize = 1_000;

/// How the node reaches others. The transport, in a node; a direct call, in tests.
pub trait Wire: Send + Sync + 'static {
    /// Sends a frame made of `parts`; false if it can't be sent now.
    fn send(&self, to: NodeId, channel: Channel, parts: Vec<Bytes>) -> bool;
}

/// Why a question was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It was not sent.
    #[error("the node can't be reached now; retry")]
    Unreachable,
    /// No answer came in time. What was asked for may have happened.
    #[error("the node did not answer in time; ask again")]
    TimedOut,
}

/// Who answers questions.
pub trait PeerService: Send + Sync + 'static {
    /// Answers one. Ends in bounded time.
    fn answer(self: Arc<Self>, request: PeerRequest) -> BoxFuture<'static, PeerReply>;
}

/// The other nodes, as this one asks them.
pub struct Peers {
    node: NodeId,
    wire: Arc<dyn Wire>,
    runtime: Handle,
    service: Mutex<Option<Weak<dyn PeerService>>>,
    asked: Mutex<HashMap<CallId, oneshot::Sender<PeerReply>>>,
    last_call: AtomicU64,
    answering: Arc<Semaphore>,
}

impl Peers {
    /// First byte of a frame with a question or an answer.
    pub const FRAME_KIND: u8 = 32;

    /// `node` is this one; call it on the node's runtime. Numbers of questions begin at `first_call`, so that an answer that was
    /// meant for this node's former life is nobody's.
    pub fn new(node: NodeId, wire: Arc<dyn Wire>, first_call: u64) -> Arc<Self> {
        Arc::new(Self {
            node,
            wire,
            runtime: Handle::current(),
            service: Mutex::default(),
            asked: Mutex::default(),
            last_call: AtomicU64::new(first_call),
            answering: Arc::new(Semaphore::new(ANSWERING_COUNT_MAX)),
        })
    }

    /// Names who answers. Until then nobody does.
    pub fn serve(&self, service: Weak<dyn PeerService>) {
        *lock(&self.service) = Some(service);
    }

    /// Asks a node, which may be this one.
    pub async fn ask(
        &self,
        to: NodeId,
        request: PeerRequest,
        timeout: Duration,
    ) -> Result<PeerReply, AskError> {
        if to == self.node {
            let service = self.service().ok_or(AskError::Unreachable)?;
            let answer = tokio::time::timeout(timeout, service.answer(request)).await;
            return answer.map_err(|_| AskError::TimedOut);
        }
        let call = CallId(self.last_call.fetch_add(1, Ordering::Relaxed));
        let (sender, answer) = oneshot::channel();
        {
            let mut asked = self.asked();
            if asked.len() >= ASKED_COUNT_MAX {
                return Err(AskError::Unreachable);
            }
            asked.insert(call, sender);
        }
        // Removed however this ends, also if whoever asks is dropped.
        let _forgotten = Forget { peers: self, call };
        if !self.send(to, &PeerMessage::Request(call, request)) {
            return Err(AskError::Unreachable);
        }
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) | Err(_) => Err(AskError::TimedOut),
        }
    }

    /// Takes a frame of [`Peers::FRAME_KIND`], without its first byte.
    pub fn on_frame(self: &Arc<Self>, from: NodeId, body: Bytes) {
        match PeerMessage::decode(body) {
            Ok(PeerMessage::Request(call, request)) => self.on_request(from, call, request),
            Ok(PeerMessage::Reply(call, reply)) => {
                if let Some(sender) = self.asked().remove(&call) {
                    let _nobody_waits = sender.send(reply);
                }
            }
            Err(error) => tracing::warn!(%from, %error, "message of a peer refused"),
        }
    }

    fn on_request(self: &Arc<Self>, from: NodeId, call: CallId, request: PeerRequest) {
        let Some(service) = self.service() else { return };
        let Ok(permit) = Arc::clone(&self.answering).try_acquire_owned() else {
            tracing::debug!(%from, "too many questions; one is dropped");
            return;
        };
        let peers = Arc::clone(self);
        self.runtime.spawn(async move {
            let reply = service.answer(request).await;
            drop(permit);
            let _asked_again_if_lost = peers.send(from, &PeerMessage::Reply(call, reply));
        });
    }

    fn send(&self, to: NodeId, message: &PeerMessage) -> bool {
        let kind = Bytes::from_static(&[Self::FRAME_KIND]);
        self.wire.send(to, Channel::Control, vec![kind, message.encode()])
    }

    fn service(&self) -> Option<Arc<dyn PeerService>> {
        lock(&self.service).as_ref()?.upgrade()
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<CallId, oneshot::Sender<PeerReply>>> {
        lock(&self.asked)
    }
}

struct Forget<'p> {
    peers: &'p Peers,
    call: CallId,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.peers.asked().remove(&self.call);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::peers::wire::MarkerOutcome;

    /// Carries frames straight to the other node.
    #[derive(Default)]
    struct Direct {
        other: OnceLock<(NodeId, Weak<Peers>)>,
    }

    impl Wire for Direct {
        fn send(&self, _: NodeId, _: Channel, parts: Vec<Bytes>) -> bool {
            let Some((from, other)) = self.other.get() else { return false };
            let frame = Bytes::from(parts.concat());
            assert_eq!(frame[0], Peers::FRAME_KIND);
            other.upgrade().map(|other| other.on_frame(*from, frame.slice(1..))).is_some()
        }
    }

    struct Writer;

    impl PeerService for Writer {
        fn answer(self: Arc<Self>, request: PeerRequest) -> BoxFuture<'static, PeerReply> {
            let PeerRequest::WriteMarkers { partitions, .. } = request else {
                return Box::pin(std::future::pending());
            };
            let outcomes = vec![MarkerOutcome::Written; partitions.len()];
            Box::pin(async { PeerReply::MarkersWritten(outcomes) })
        }
    }

    fn pair() -> (Arc<Peers>, Arc<Peers>, Arc<Writer>) {
        let wires = [Arc::new(Direct::default()), Arc::new(Direct::default())];
        let [one, two] = [1, 2].map(|number| {
            let wire = Arc::clone(&wires[number as usize - 1]);
            Peers::new(NodeId::new(number), wire, u64::from(number) * 1000)
        });
        let _once = wires[0].other.set((NodeId::new(1), Arc::downgrade(&two)));
        let _once = wires[1].other.set((NodeId::new(2), Arc::downgrade(&one)));
        let service = Arc::new(Writer);
        let weak: Weak<dyn PeerService> = Arc::downgrade(&service) as Weak<dyn PeerService>;
        two.serve(weak);
        (one, two, service)
    }

    fn markers() -> PeerRequest {
        let marker = crate::partition::Marker {
            producer_id: 1,
            producer_epoch: 0,
            coordinator_epoch: 0,
            commit: true,
            version: crate::partition::TransactionVersion::V2,
            number: 1,
        };
        PeerRequest::WriteMarkers {
            marker,
            partitions: vec![meridian_base::id::PartitionId::new(1)],
        }
    }

    #[tokio::test]
    async fn a_question_is_answered() {
        let (one, _two, _service) = pair();
        let answer = one.ask(NodeId::new(2), markers(), Duration::from_secs(20)).await;
        assert_eq!(answer, Ok(PeerReply::MarkersWritten(vec![MarkerOutcome::Written])));
        assert!(one.asked().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_without_answer_ends_and_is_forgotten() {
        let (one, _two, service) = pair();
        drop(service);
        let answer = one.ask(NodeId::new(2), markers(), Duration::from_secs(1)).await;
        assert_eq!(answer, Err(AskError::TimedOut));
        assert!(one.asked().is_empty());
    }
}
