//! The peers: one task each keeps a connection up and its channels drained.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::{Rng, SplitMix};
use meridian_base::id::NodeId;
use meridian_base::sync::{RwLock, lock};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::endpoint::{ConnectError, Endpoint, close_code};
use super::inbound::GREETING;
use super::lane::{Lane, knows_lanes};
use super::outbound::{SendQueue, write_frames};
use super::{Channel, Frame, Handler, PathClass, PeerState, PeerStats, SendError, TransportConfig};

const DIAL_BACKOFF_MIN: Duration = Duration::from_millis(20);

/// Where a peer is to be dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    pub(super) path: PathClass,
}

/// All peers that were named or have connected.
pub(super) struct Peers {
    config: Arc<TransportConfig>,
    endpoint: Endpoint,
    handler: Arc<dyn Handler>,
    runtime: Handle,
    table: RwLock<HashMap<NodeId, Arc<Peer>>>,
}

impl Peers {
    /// An empty table. Peers' tasks run on the current tokio runtime.
    pub(super) fn new(
        config: Arc<TransportConfig>,
        endpoint: Endpoint,
        handler: Arc<dyn Handler>,
    ) -> Self {
        Self { config, endpoint, handler, runtime: Handle::current(), table: RwLock::default() }
    }

    pub(super) fn set_target(&self, node: NodeId, target: Option<Target>) {
        if node == self.config.node {
            return;
        }
        self.get_or_add(node).target.send_if_modified(|current| {
            let changed = *current != target;
            *current = target;
            changed
        });
    }

    /// A node that nobody has named has connected from `address`, where it listens as well: it is answered there until
    /// it is named. A spare that joins is in its own configuration only.
    pub(super) fn answer_at(&self, node: NodeId, address: SocketAddr) {
        let target = Target { address, path: PathClass::CrossDatacenter };
        self.get_or_add(node).target.send_if_modified(|current| {
            let is_unnamed = current.is_none();
            if is_unnamed {
                *current = Some(target);
            }
            is_unnamed
        });
    }

    pub(super) fn send(
        &self,
        to: NodeId,
        channel: Channel,
        frame: Frame,
        length_bytes: usize,
    ) -> Result<(), SendError> {
        let table = self.table.read();
        let peer = table.get(&to).ok_or(SendError::UnknownPeer)?;
        match peer.queue(channel).push(frame, length_bytes) {
            Err(SendError::Down) if peer.target.borrow().is_none() => Err(SendError::UnknownPeer),
            result => result,
        }
    }

    /// The peer, with its task started. Their number is bounded by the nodes of the cluster: it
    /// takes the topology or a certificate to get here.
    pub(super) fn get_or_add(&self, node: NodeId) -> Arc<Peer> {
        let mut table = self.table.write();
        let peer = table.entry(node).or_insert_with(|| {
            let peer = Arc::new(Peer::new(node, self.config.queue_bytes_max));
            let dialler = Dialler {
                config: Arc::clone(&self.config),
                endpoint: self.endpoint.clone(),
                handler: Arc::clone(&self.handler),
                peer: Arc::clone(&peer),
            };
            *lock(&peer.task) = Some(self.runtime.spawn(dialler.run()).abort_handle());
            peer
        });
        Arc::clone(peer)
    }

    pub(super) fn stats(&self) -> BTreeMap<NodeId, PeerStats> {
        let table = self.table.read();
        table.iter().map(|(node, peer)| (*node, peer.stats())).collect()
    }

    /// Stops all dialling.
    pub(super) fn stop(&self) {
        let mut table = self.table.write();
        for (_, peer) in table.drain() {
            if let Some(task) = lock(&peer.task).take() {
                task.abort();
            }
        }
    }
}

/// One peer: where to dial it, what waits for it, and what has come from it.
pub(super) struct Peer {
    node: NodeId,
    target: watch::Sender<Option<Target>>,
    queues: [SendQueue; Channel::ALL.len()],
    task: Mutex<Option<AbortHandle>>,
    /// Our connections to the peer while it is up, by lane.
    outbound: Mutex<Vec<quinn::Connection>>,
    /// The peer's connections to us, by lane.
    inbound: Mutex<[Option<quinn::Connection>; Lane::ALL.len()]>,
    /// Each held by the inbound connection of its lane that may deliver frames.
    pub(super) inbound_turns: [tokio::sync::Mutex<()>; Lane::ALL.len()],
    /// The peer shows signs of life: worth dialling at once.
    redial: Notify,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct Counters {
    sent_bytes: AtomicU64,
    lost_packets: AtomicU64,
    connects: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) bad_frames: AtomicU64,
}

impl Peer {
    fn new(node: NodeId, queue_bytes_max: usize) -> Self {
        Self {
            node,
            target: watch::Sender::new(None),
            queues: Channel::ALL.map(|_| SendQueue::new(queue_bytes_max)),
            task: Mutex::new(None),
            outbound: Mutex::default(),
            inbound: Mutex::default(),
            inbound_turns: Default::default(),
            redial: Notify::new(),
            counters: Counters::default(),
        }
    }

    /// Whether the peer was named as being in another datacenter.
    pub(super) fn is_cross_datacenter(&self) -> bool {
        self.target.borrow().is_some_and(|target| target.path == PathClass::CrossDatacenter)
    }

    /// Notes the peer's connection to us and closes its earlier one, so that frames of the two do
    /// not mix. Also has the peer dialled now, in case we are waiting to try again.
    ///
    /// False for one for bulk that comes too late: the one beside it, which is dialled first, has ended.
    pub(super) fn replace_inbound(&self, lane: Lane, connection: &quinn::Connection) -> bool {
        let mut inbound = lock(&self.inbound);
        if lane == Lane::Background && inbound[Lane::Foreground as usize].is_none() {
            return false;
        }
        // The foreground is dialled first: what is there of the background is of the last time.
        close_from(lane, &mut *inbound, close_code::REPLACED, b"the node has connected again");
        inbound[lane as usize] = Some(connection.clone());
        drop(inbound);
        // Kept if nobody waits yet: writers of the last connection may still be ending.
        self.redial.notify_one();
        true
    }

    /// Has the background go with the foreground, whose loss alone is noticed.
    pub(super) fn end_inbound(&self, lane: Lane, connection: &quinn::Connection) {
        let mut inbound = lock(&self.inbound);
        let current = inbound[lane as usize].as_ref();
        if current.is_some_and(|current| current.stable_id() == connection.stable_id()) {
            let reason: &[u8] = b"the other connection has ended";
            close_from(lane, &mut *inbound, close_code::SHUT_DOWN, reason);
        }
    }

    fn queue(&self, channel: Channel) -> &SendQueue {
        &self.queues[channel as usize]
    }

    fn stats(&self) -> PeerStats {
        let outbound = lock(&self.outbound);
        let foreground = outbound.first();
        let lost_packets: u64 =
            outbound.iter().map(|connection| connection.stats().path.lost_packets).sum();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PeerStats {
            state: if foreground.is_some() { PeerState::Up } else { PeerState::Down },
            rtt: foreground.map_or(Duration::ZERO, quinn::Connection::rtt),
            queued_bytes: self.queues.iter().map(SendQueue::queued_bytes).sum(),
            sent_bytes: load(&self.counters.sent_bytes),
            received_bytes: load(&self.counters.received_bytes),
            lost_packets: load(&self.counters.lost_packets) + lost_packets,
            connects: load(&self.counters.connects),
            bad_frames: load(&self.counters.bad_frames),
        }
    }
}

/// Closes the connection of a lane, and of those that go with it.
fn close_from(
    lane: Lane,
    inbound: &mut [Option<quinn::Connection>],
    code: quinn::VarInt,
    reason: &[u8],
) {
    for connection in inbound.iter_mut().skip(lane as usize).filter_map(Option::take) {
        connection.close(code, reason);
    }
}

/// The task of one peer.
struct Dialler {
    config: Arc<TransportConfig>,
    endpoint: Endpoint,
    handler: Arc<dyn Handler>,
    peer: Arc<Peer>,
}

impl Dialler {
    async fn run(self) {
        let mut target = self.peer.target.subscribe();
        let mut backoff =
            Backoff::new(self.config.node, self.peer.node, self.config.dial_backoff_max);
        loop {
            let Some(dialling) = *target.borrow_and_update() else {
                if target.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let patience = Lane::Foreground.dial_timeout(&self.config);
            let dialled = tokio::select! {
                dialled = timeout(patience, self.dial(dialling, Lane::Foreground)) => dialled,
                _ = target.changed() => continue,
            };
            let address = dialling.address;
            match dialled.unwrap_or(Err(DialError::Timeout)) {
                Ok(foreground) => {
                    let up = Instant::now();
                    self.serve(foreground, dialling, &mut target).await;
                    // A peer that accepts and hangs up at once is not dialled in a tight loop.
                    if up.elapsed() > self.config.dial_backoff_max {
                        backoff.reset();
                    }
                }
                Err(error) if backoff.is_fresh() => {
                    tracing::warn!(peer = %self.peer.node, %address, %error, "cannot connect");
                }
                Err(error) => {
                    tracing::debug!(peer = %self.peer.node, %address, %error, "cannot connect");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = self.peer.redial.notified() => {}
                _ = target.changed() => {}
            }
        }
    }

    /// Connects a lane, waits for the greeting that says that the peer has verified us too, and opens the channels.
    async fn dial(&self, target: Target, lane: Lane) -> Result<Dialled, DialError> {
        let connection = self.endpoint.connect(self.peer.node, target, lane)?.await?;
        let mut greeting = [0; GREETING.len()];
        connection.accept_uni().await?.read_exact(&mut greeting).await?;
        if greeting != GREETING {
            connection.close(close_code::BAD_FRAME, b"unknown greeting");
            return Err(DialError::Greeting(greeting));
        }
        let has_all = lane == Lane::Foreground && !knows_lanes(&connection);
        let mut streams = Vec::with_capacity(Channel::ALL.len());
        for channel in Channel::ALL.into_iter().filter(|it| has_all || Lane::of(*it) == lane) {
            let mut stream = connection.open_uni().await?;
            // Not a ladder: strict priorities would let puts starve reads for good.
            stream.set_priority(i32::from(channel == Channel::Control))?;
            stream.write_all(&[channel as u8]).await?;
            streams.push((channel, stream));
        }
        Ok(Dialled { connection, lane, streams })
    }

    /// Drains the queues until a connection is lost or no longer wanted.
    async fn serve(
        &self,
        foreground: Dialled,
        dialled: Target,
        target: &mut watch::Receiver<Option<Target>>,
    ) {
        let node = self.peer.node;
        let connection = foreground.connection.clone();
        *lock(&self.peer.outbound) = vec![connection.clone()];
        self.peer.counters.connects.fetch_add(1, Ordering::Relaxed);
        self.peer.queues.iter().for_each(SendQueue::open);
        tracing::info!(peer = %node, address = %connection.remote_address(), "peer up");
        self.handler.on_peer(node, PeerState::Up);

        let (mut channels, mut bulk_channels) = (JoinSet::new(), JoinSet::new());
        tokio::select! {
            error = self.drain(foreground, &mut channels) => {
                tracing::warn!(peer = %node, %error, "peer down");
            }
            error = self.drain_bulk(&connection, dialled, &mut bulk_channels) => {
                tracing::warn!(peer = %node, %error, "peer down: its connection for bulk is lost");
            }
            _ = target.changed() => tracing::info!(peer = %node, "peer moved or removed"),
        }

        let mut lost_packets = 0;
        // What is left of them: both go up and down together.
        for connection in lock(&self.peer.outbound).drain(..) {
            connection.close(close_code::SHUT_DOWN, b"no longer wanted");
            lost_packets += connection.stats().path.lost_packets;
        }
        self.peer.counters.lost_packets.fetch_add(lost_packets, Ordering::Relaxed);
        self.peer.queues.iter().for_each(SendQueue::close);
        self.handler.on_peer(node, PeerState::Down);
        // The writers must be gone before the queues open for the next connection. Those of bulk may need a while to
        // see it, which is why the handler is told before.
        channels.shutdown().await;
        bulk_channels.shutdown().await;
    }

    /// Sends what the queues of a connection's channels hold; returns why it was lost.
    async fn drain(&self, dialled: Dialled, channels: &mut JoinSet<()>) -> quinn::ConnectionError {
        let Dialled { connection, lane, streams } = dialled;
        let threads = self.endpoint.threads(lane);
        for (channel, mut stream) in streams {
            let stopped = stream.stopped();
            let until_stopped = async move {
                let _why_does_not_matter = stopped.await;
            };
            channels.spawn_on(until_stopped, threads);
            let peer = Arc::clone(&self.peer);
            let writing = async move {
                let count = |bytes| {
                    peer.counters.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                };
                let _connection_says_why =
                    write_frames(peer.queue(channel), &mut stream, count).await;
            };
            channels.spawn_on(writing, threads);
        }
        tokio::select! {
            error = connection.closed() => error,
            _ = channels.join_next() => {
                // The peer no longer reads one channel: its reader has failed.
                tracing::warn!(peer = %self.peer.node, "the peer no longer reads a channel");
                connection.close(close_code::CHANNEL_LOST, b"a channel is no longer read");
                connection.closed().await
            }
        }
    }

    /// Connects the background too, if the peer knows of it, and sends bulk; returns why that was lost.
    ///
    /// Nothing else waits for it: its threads may get little of a busy processor.
    async fn drain_bulk(
        &self,
        foreground: &quinn::Connection,
        target: Target,
        channels: &mut JoinSet<()>,
    ) -> quinn::ConnectionError {
        if !knows_lanes(foreground) {
            return std::future::pending().await;
        }
        let mut backoff =
            Backoff::new(self.config.node, self.peer.node, self.config.dial_backoff_max);
        loop {
            let patience = Lane::Background.dial_timeout(&self.config);
            let dialled = timeout(patience, self.dial(target, Lane::Background)).await;
            match dialled.unwrap_or(Err(DialError::Timeout)) {
                Ok(background) => {
                    lock(&self.peer.outbound).push(background.connection.clone());
                    return self.drain(background, channels).await;
                }
                Err(error) if backoff.is_fresh() => {
                    tracing::warn!(peer = %self.peer.node, %error, "cannot connect for bulk");
                }
                Err(error) => {
                    tracing::debug!(peer = %self.peer.node, %error, "cannot connect for bulk");
                }
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }
}

/// A connection that the peer has greeted, with a stream for each channel.
struct Dialled {
    connection: quinn::Connection,
    lane: Lane,
    streams: Vec<(Channel, quinn::SendStream)>,
}

/// Why an attempt to connect failed.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("no answer in time")]
    Timeout,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    #[error("no greeting: {0}")]
    NoGreeting(#[from] quinn::ReadExactError),
    #[error("greeting {0:?} is of another version; upgrade the older node")]
    Greeting([u8; GREETING.len()]),
    #[error(transparent)]
    Write(#[from] quinn::WriteError),
    #[error(transparent)]
    Stream(#[from] quinn::ClosedStream),
}

/// Pauses between attempts: doubling, and jittered so that nodes do not dial in step.
struct Backoff {
    next: Duration,
    max: Duration,
    jitter: SplitMix,
}

impl Backoff {
    fn new(from: NodeId, to: NodeId, max: Duration) -> Self {
        let seed = u64::from(from.get()) << 32 | u64::from(to.get());
        Self { next: DIAL_BACKOFF_MIN, max, jitter: SplitMix::new(seed) }
    }

    fn reset(&mut self) {
        self.next = DIAL_BACKOFF_MIN;
    }

    fn is_fresh(&self) -> bool {
        self.next == DIAL_BACKOFF_MIN
    }

    /// Between half of the pause and all of it.
    fn next(&mut self) -> Duration {
        let pause = self.next.min(self.max);
        self.next = (pause * 2).min(self.max);
        let half_micros = u64::try_from(pause.as_micros() / 2).unwrap_or(u64::MAX);
        pause / 2 + Duration::from_micros(self.jitter.below(half_micros + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_its_maximum_and_starts_over() {
        let max = Duration::from_millis(100);
        let mut backoff = Backoff::new(NodeId::new(1), NodeId::new(2), max);
        assert!(backoff.is_fresh());
        for pause in [20, 40, 80, 100, 100].map(Duration::from_millis) {
            let next = backoff.next();
            assert!(next >= pause / 2 && next <= pause, "{next:?} of {pause:?}");
        }
        assert!(!backoff.is_fresh());
        backoff.reset();
        assert!(backoff.is_fresh());
    }
}
