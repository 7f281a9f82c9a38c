//! Accepting connections and reading frames from them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::NodeId;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::endpoint::{Endpoint, close_code, peer_node};
use super::framing::{FrameReader, FrameTooLong, HEADER_BYTES};
use super::lane::Lane;
use super::peer::{LATE_COUNT_MAX, Peer, Peers};
use super::{Channel, Handler, TransportConfig};
use crate::tls::TlsError;

/// What the accepting side sends first, once it has verified the dialler: the wire version.
pub(super) const GREETING: [u8; 4] = *b"MRD1";

/// Handshakes of a lane under way at a time. Until one is done anybody can cause its work, and those of bulk may take long.
pub(super) const HANDSHAKES_MAX: usize = 256;

/// Chunks taken from a stream at a time.
const CHUNKS_MAX: usize = 64;

/// Bytes that emulated delay holds back per channel before it stops reading.
const DELAYED_BYTES_MAX: usize = 64 << 20;

/// Accepts connections, proves whose they are, and reads them.
pub(super) struct Acceptor {
    config: Arc<TransportConfig>,
    endpoint: Endpoint,
    peers: Arc<Peers>,
    handler: Arc<dyn Handler>,
    /// By lane: whoever keeps those of one busy keeps nobody from the other.
    handshakes: [Arc<Semaphore>; Lane::ALL.len()],
    refused_connections: AtomicU64,
}

/// Why a connection was refused.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the handshake was not done in time")]
    Timeout,
    #[error(transparent)]
    Handshake(#[from] quinn::ConnectionError),
    #[error(transparent)]
    NotAPeer(#[from] TlsError),
    #[error("it shows this node's own certificate; each node needs its own")]
    OwnCertificate,
}

/// Why reading a channel ended.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    TooLong(#[from] FrameTooLong),
    #[error("a stream names channel {0}, which is unknown or already open")]
    Channel(u8),
    #[error("a stream ended before it named its channel")]
    NoChannel,
    #[error(transparent)]
    Lost(#[from] quinn::ReadError),
}

impl Acceptor {
    pub(super) fn new(
        config: Arc<TransportConfig>,
        endpoint: Endpoint,
        peers: Arc<Peers>,
        handler: Arc<dyn Handler>,
    ) -> Self {
        Self {
            config,
            endpoint,
            peers,
            handler,
            handshakes: Lane::ALL.map(|_| Arc::new(Semaphore::new(HANDSHAKES_MAX))),
            refused_connections: AtomicU64::new(0),
        }
    }

    pub(super) fn refused_connections(&self) -> u64 {
        self.refused_connections.load(Ordering::Relaxed)
    }

    /// Accepts the connections that come in by the packets of one lane, until the endpoint closes.
    pub(super) async fn run(self: Arc<Self>, packets_of: Lane) {
        while let Some(incoming) = self.endpoint.accept(packets_of).await {
            let lane = Lane::of_incoming(&incoming);
            let permits = &self.handshakes[lane as usize];
            let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
                incoming.refuse();
                self.refused_connections.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let acceptor = Arc::clone(&self);
            // Frames of the background are handled by the threads of the foreground, and so is its connection.
            let threads = match lane {
                Lane::Foreground | Lane::Background => Lane::Foreground,
                Lane::Metadata => Lane::Metadata,
            };
            self.endpoint.threads(threads).spawn(async move {
                let address = incoming.remote_address();
                let verified = acceptor.verify(incoming).await;
                drop(permit);
                match verified {
                    Ok((connection, node)) => acceptor.serve(connection, node).await,
                    Err(error) => {
                        acceptor.refused_connections.fetch_add(1, Ordering::Relaxed);
                        tracing::warn!(%address, %error, "connection refused");
                    }
                }
            });
        }
    }

    async fn verify(
        &self,
        incoming: quinn::Incoming,
    ) -> Result<(quinn::Connection, NodeId), Refusal> {
        // As long as the other side may wait, at the most.
        let patience = Lane::of_incoming(&incoming).dial_timeout(&self.config);
        let patience = patience * 2_u32.pow(LATE_COUNT_MAX);
        let connection = timeout(patience, self.endpoint.take(incoming)?)
            .await
            .map_err(|_| Refusal::Timeout)??;
        let node = match peer_node(&connection, &self.config.cluster) {
            Ok(node) if node == self.config.node => Err(Refusal::OwnCertificate),
            Ok(node) => Ok(node),
            Err(error) => Err(error.into()),
        };
        if let Err(refusal) = &node {
            connection.close(close_code::NOT_A_PEER, refusal.to_string().as_bytes());
        }
        Ok((connection, node?))
    }

    /// Reads the connection's channels until it closes.
    async fn serve(&self, connection: quinn::Connection, node: NodeId) {
        let peer = self.peers.get_or_add(node);
        let lane = Lane::of_connection(&connection);
        if !peer.replace_inbound(lane, &connection) {
            connection.close(close_code::SHUT_DOWN, b"the other connection has ended");
            return;
        }
        // Metadata is dialled from a port at which nobody listens.
        if lane != Lane::Metadata {
            self.peers.answer_at(node, connection.remote_address());
        }
        let _turn = peer.inbound_turns[lane as usize].lock().await;
        let Ok(mut greeting) = connection.open_uni().await else { return };
        if greeting.write_all(&GREETING).await.is_err() {
            return;
        }
        let open_channels = Arc::new(AtomicU8::new(0));
        let hands_over =
            (lane == Lane::Background).then(|| self.endpoint.threads(Lane::Foreground).clone());
        let mut readers = JoinSet::new();
        while let Ok(stream) = connection.accept_uni().await {
            let reader = ChannelReader {
                node,
                peer: Arc::clone(&peer),
                handler: Arc::clone(&self.handler),
                hands_over_to: hands_over.clone(),
                frame_bytes_max: self.config.frame_bytes_max,
                delay: self.config.emulated_one_way_delay,
                open_channels: Arc::clone(&open_channels),
            };
            let connection = connection.clone();
            let reading = async move {
                match reader.run(stream).await {
                    Ok(()) | Err(ReadError::Lost(_)) => {}
                    Err(error) => {
                        reader.peer.counters.bad_frames.fetch_add(1, Ordering::Relaxed);
                        tracing::warn!(peer = %node, %error, "peer breaks the wire format");
                        connection.close(close_code::BAD_FRAME, error.to_string().as_bytes());
                    }
                }
            };
            readers.spawn_on(reading, self.endpoint.threads(lane));
        }
        peer.end_inbound(lane, &connection);
        // The next connection of this node must not deliver before the last frame of this one.
        while readers.join_next().await.is_some() {}
    }
}

/// Reads one stream.
struct ChannelReader {
    node: NodeId,
    peer: Arc<Peer>,
    handler: Arc<dyn Handler>,
    /// The threads that frames are handled by, if those that read yield to others. A handler takes locks that puts wait for: who
    /// holds one must not have to wait for everybody else to be done.
    hands_over_to: Option<Handle>,
    frame_bytes_max: usize,
    delay: Duration,
    /// A bit per channel that the connection has opened.
    open_channels: Arc<AtomicU8>,
}

impl ChannelReader {
    async fn run(&self, mut stream: quinn::RecvStream) -> Result<(), ReadError> {
        let channel = self.read_channel(&mut stream).await?;
        let mut frames = FrameReader::new(self.frame_bytes_max);
        let mut delayed = DelayLine::default();
        let mut chunks = [const { Bytes::new() }; CHUNKS_MAX];
        let mut ready = Vec::new();
        loop {
            let read = if let Some(due) = delayed.next_due() {
                tokio::select! {
                    biased;
                    () = sleep_until(due) => {
                        delayed.release(Instant::now(), |frame| ready.push(frame));
                        self.deliver(channel, &mut ready).await;
                        continue;
                    }
                    read = stream.read_chunks(&mut chunks), if delayed.has_room() => read?,
                }
            } else {
                stream.read_chunks(&mut chunks).await?
            };
            let Some(count) = read else { return Ok(()) };
            let due = (!self.delay.is_zero() && self.peer.is_cross_datacenter())
                .then(|| Instant::now() + self.delay);
            for chunk in chunks.iter_mut().take(count) {
                frames.push(std::mem::take(chunk), &mut |frame| match due {
                    Some(due) => delayed.push(due, frame),
                    None => ready.push(frame),
                })?;
            }
            self.deliver(channel, &mut ready).await;
        }
    }

    async fn read_channel(&self, stream: &mut quinn::RecvStream) -> Result<Channel, ReadError> {
        let mut number = [0];
        if stream.read(&mut number).await?.is_none() {
            return Err(ReadError::NoChannel);
        }
        let [number] = number;
        let channel = Channel::from_wire(number).ok_or(ReadError::Channel(number))?;
        let bit = 1 << number;
        if self.open_channels.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return Err(ReadError::Channel(number));
        }
        Ok(channel)
    }

    /// Has these frames handled, in order, before any more are read.
    async fn deliver(&self, channel: Channel, frames: &mut Vec<Bytes>) {
        if frames.is_empty() {
            return;
        }
        let received_bytes: usize = frames.iter().map(|frame| HEADER_BYTES + frame.len()).sum();
        self.peer.counters.received_bytes.fetch_add(received_bytes as u64, Ordering::Relaxed);
        match &self.hands_over_to {
            Some(threads) => {
                let (node, handler) = (self.node, Arc::clone(&self.handler));
                let frames = std::mem::take(frames);
                let handling = async move {
                    frames.into_iter().for_each(|frame| handler.on_frame(node, channel, frame));
                };
                if let Err(error) = threads.spawn(handling).await
                    && let Ok(panic) = error.try_into_panic()
                {
                    std::panic::resume_unwind(panic);
                }
            }
            None => {
                frames.drain(..).for_each(|frame| self.handler.on_frame(self.node, channel, frame))
            }
        }
    }
}

/// Frames on their way through an emulated long line, in order of arrival.
#[derive(Default)]
struct DelayLine {
    frames: VecDeque<(Instant, Bytes)>,
    held_bytes: usize,
}

impl DelayLine {
    fn push(&mut self, due: Instant, frame: Bytes) {
        self.held_bytes += HEADER_BYTES + frame.len();
        self.frames.push_back((due, frame));
    }

    fn next_due(&self) -> Option<Instant> {
        self.frames.front().map(|(due, _)| *due)
    }

    fn has_room(&self) -> bool {
        self.held_bytes < DELAYED_BYTES_MAX
    }

    /// Delivers all frames due at `now`.
    fn release(&mut self, now: Instant, mut deliver: impl FnMut(Bytes)) {
        while self.next_due().is_some_and(|due| due <= now)
            && let Some((_, frame)) = self.frames.pop_front()
        {
            self.held_bytes -= HEADER_BYTES + frame.len();
            deliver(frame);
        }
    }
}
