//! The peers: one task each keeps a connection up and its channels drained.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::{Rng, SplitMix};
use meridian_base::id::NodeId;
use meridian_base::sync::{RwLock, lock};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::endpoint::{ConnectError, Endpoint, close_code};
use super::inbound::GREETING;
use super::lane::{Lane, knows_lanes};
use super::outbound::{SendQueue, write_frames};
use super::{Channel, Frame, Handler, PathClass, PeerState, PeerStats, SendError, TransportConfig};
use crate::background::ticks;

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
    table: RwLock<HashMap<NodeId, Arc<Peer>>>,
}

impl Peers {
    /// An empty table.
    pub(super) fn new(
        config: Arc<TransportConfig>,
        endpoint: Endpoint,
        handler: Arc<dyn Handler>,
    ) -> Self {
        Self { config, endpoint, handler, table: RwLock::default() }
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
        let has_lane = channel != Channel::Metadata || peer.queue(channel).is_open();
        let channel = if has_lane { channel } else { Channel::Control };
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
            let tasks = [Lane::Foreground, Lane::Metadata].map(|lane| {
                let threads = self.endpoint.threads(lane);
                threads.spawn(dialler.clone().run(lane)).abort_handle()
            });
            lock(&peer.tasks).extend(tasks);
            peer
        });
        Arc::clone(peer)
    }

    pub(super) fn stats(&self) -> BTreeMap<NodeId, PeerStats> {
        let table = self.table.read();
        table.iter().map(|(node, peer)| (*node, peer.stats())).collect()
    }

    #[cfg(test)]
    pub(super) fn has_lane_for_metadata(&self, node: NodeId) -> bool {
        self.get_or_add(node).queue(Channel::Metadata).is_open()
    }

    /// Stops all dialling.
    pub(super) fn stop(&self) {
        let mut table = self.table.write();
        for (_, peer) in table.drain() {
            lock(&peer.tasks).drain(..).for_each(|task| task.abort());
        }
    }
}

/// One peer: where to dial it, what waits for it, and what has come from it.
pub(super) struct Peer {
    node: NodeId,
    target: watch::Sender<Option<Target>>,
    queues: [SendQueue; Channel::ALL.len()],
    tasks: Mutex<Vec<AbortHandle>>,
    /// Our connections to the peer while it is up, by lane.
    outbound: Mutex<Vec<quinn::Connection>>,
    /// The peer's connections to us, by lane.
    inbound: Mutex<[Option<quinn::Connection>; Lane::ALL.len()]>,
    /// Each held by the inbound connection of its lane that may deliver frames.
    pub(super) inbound_turns: [tokio::sync::Mutex<()>; Lane::ALL.len()],
    /// The peer shows signs of life: worth dialling at once. By lane.
    redial: [Notify; Lane::ALL.len()],
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
            tasks: Mutex::default(),
            outbound: Mutex::default(),
            inbound: Mutex::default(),
            inbound_turns: Default::default(),
            redial: Lane::ALL.map(|_| Notify::new()),
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
        close_with(lane, &mut inbound, close_code::REPLACED, b"the node has connected again");
        inbound[lane as usize] = Some(connection.clone());
        drop(inbound);
        // Kept if nobody waits yet: writers of the last connection may still be ending.
        self.redial[lane as usize].notify_one();
        if lane == Lane::Background {
            self.redial[Lane::Foreground as usize].notify_one();
        }
        true
    }

    /// Has the background go with the foreground, whose loss alone is noticed.
    pub(super) fn end_inbound(&self, lane: Lane, connection: &quinn::Connection) {
        let mut inbound = lock(&self.inbound);
        let current = inbound[lane as usize].as_ref();
        if current.is_some_and(|current| current.stable_id() == connection.stable_id()) {
            let reason: &[u8] = b"the other connection has ended";
            close_with(lane, &mut inbound, close_code::SHUT_DOWN, reason);
        }
    }

    fn queue(&self, channel: Channel) -> &SendQueue {
        &self.queues[channel as usize]
    }

    fn queues_of(&self, lanes: &[Lane]) -> impl Iterator<Item = &SendQueue> {
        let channels =
            Channel::ALL.into_iter().filter(|channel| lanes.contains(&Lane::of(*channel)));
        channels.map(|channel| self.queue(channel))
    }

    fn open_queues(&self, lanes: &[Lane]) {
        self.queues_of(lanes).for_each(SendQueue::open);
    }

    fn close_queues(&self, lanes: &[Lane]) {
        self.queues_of(lanes).for_each(SendQueue::close);
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
fn close_with(
    lane: Lane,
    inbound: &mut [Option<quinn::Connection>; Lane::ALL.len()],
    code: quinn::VarInt,
    reason: &[u8],
) {
    for lane in lane.ends_with_it() {
        if let Some(connection) = inbound[*lane as usize].take() {
            connection.close(code, reason);
        }
    }
}

/// The tasks of one peer: one for the foreground and the background, one for metadata.
#[derive(Clone)]
struct Dialler {
    config: Arc<TransportConfig>,
    endpoint: Endpoint,
    handler: Arc<dyn Handler>,
    peer: Arc<Peer>,
}

impl Dialler {
    async fn run(self, lane: Lane) {
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
            let patience = backoff.patience(lane.dial_timeout(&self.config));
            let dialled = tokio::select! {
                dialled = timeout(patience, self.dial(dialling, lane)) => dialled,
                _ = target.changed() => continue,
            };
            let address = dialling.address;
            if dialled.is_err() {
                backoff.note_late();
            }
            match dialled.unwrap_or(Err(DialError::Timeout)) {
                Ok(dialled) => {
                    let up = Instant::now();
                    let looks_max = backoff.looks_max(&self.config);
                    let lost = match lane {
                        Lane::Metadata => {
                            self.serve_metadata(dialled, looks_max, &mut target).await
                        }
                        Lane::Foreground | Lane::Background => {
                            self.serve(dialled, looks_max, dialling, &mut target).await
                        }
                    };
                    if up.elapsed() > SETTLED_AFTER {
                        backoff.late_count = 0;
                    }
                    if matches!(lost, Some(quinn::ConnectionError::TimedOut)) {
                        backoff.note_late();
                    }
                    // A peer that accepts and hangs up at once is not dialled in a tight loop.
                    if up.elapsed() > self.config.dial_backoff_max {
                        backoff.reset();
                    }
                }
                // One of an older binary: what is for this lane goes with the foreground.
                Err(error) if lane == Lane::Metadata && error.is_of_protocol() => backoff.rest(),
                Err(error) if backoff.is_fresh() => {
                    tracing::warn!(peer = %self.peer.node, ?lane, %address, %error, "cannot connect");
                }
                Err(error) => {
                    tracing::debug!(peer = %self.peer.node, ?lane, %address, %error, "cannot connect");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = self.peer.redial[lane as usize].notified() => {}
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
        let has_bulk = lane == Lane::Foreground && !knows_lanes(&connection);
        let is_here =
            |channel: &Channel| Lane::of(*channel) == lane || has_bulk && *channel == Channel::Bulk;
        let mut streams = Vec::with_capacity(Channel::ALL.len());
        for channel in Channel::ALL.into_iter().filter(is_here) {
            let mut stream = connection.open_uni().await?;
            // Not a ladder: strict priorities would let puts starve reads for good.
            stream.set_priority(i32::from(channel == Channel::Control))?;
            stream.write_all(&[channel as u8]).await?;
            streams.push((channel, stream));
        }
        Ok(Dialled { connection, lane, streams })
    }

    /// Drains the queue for metadata until its connection is lost or no longer wanted.
    /// Returns why it was lost.
    async fn serve_metadata(
        &self,
        dialled: Dialled,
        looks_max: u32,
        target: &mut watch::Receiver<Option<Target>>,
    ) -> Option<quinn::ConnectionError> {
        let connection = dialled.connection.clone();
        self.peer.open_queues(&[Lane::Metadata]);
        let mut channels = JoinSet::new();
        let node = self.peer.node;
        let lost = tokio::select! {
            error = self.drain(dialled, Some(looks_max), &mut channels) => {
                tracing::info!(peer = %node, %error, "the connection for metadata is lost");
                Some(error)
            }
            _ = target.changed() => None,
        };
        connection.close(close_code::SHUT_DOWN, b"no longer wanted");
        self.peer.close_queues(&[Lane::Metadata]);
        channels.shutdown().await;
        lost
    }

    /// Drains the queues until a connection is lost or no longer wanted; returns why the foreground was lost.
    async fn serve(
        &self,
        foreground: Dialled,
        looks_max: u32,
        dialled: Target,
        target: &mut watch::Receiver<Option<Target>>,
    ) -> Option<quinn::ConnectionError> {
        let node = self.peer.node;
        let connection = foreground.connection.clone();
        *lock(&self.peer.outbound) = vec![connection.clone()];
        self.peer.counters.connects.fetch_add(1, Ordering::Relaxed);
        self.peer.open_queues(Lane::Foreground.ends_with_it());
        tracing::info!(peer = %node, address = %connection.remote_address(), "peer up");
        self.handler.on_peer(node, PeerState::Up);

        let (mut channels, mut bulk_channels) = (JoinSet::new(), JoinSet::new());
        let lost = tokio::select! {
            error = self.drain(foreground, Some(looks_max), &mut channels) => {
                tracing::warn!(peer = %node, %error, "peer down");
                Some(error)
            }
            error = self.drain_bulk(&connection, dialled, &mut bulk_channels) => {
                tracing::warn!(peer = %node, %error, "peer down: its connection for bulk is lost");
                None
            }
            _ = target.changed() => {
                tracing::info!(peer = %node, "peer moved or removed");
                None
            }
        };

        let mut lost_packets = 0;
        // What is left of them: both go up and down together.
        for connection in lock(&self.peer.outbound).drain(..) {
            connection.close(close_code::SHUT_DOWN, b"no longer wanted");
            lost_packets += connection.stats().path.lost_packets;
        }
        self.peer.counters.lost_packets.fetch_add(lost_packets, Ordering::Relaxed);
        self.peer.close_queues(Lane::Foreground.ends_with_it());
        self.handler.on_peer(node, PeerState::Down);
        // The writers must be gone before the queues open for the next connection. Those of bulk may need a while to
        // see it, which is why the handler is told before.
        channels.shutdown().await;
        bulk_channels.shutdown().await;
        lost
    }

    /// Sends what the queues of a connection's channels hold; returns why it was lost. After so many looks at which nothing has
    /// come it is taken for lost; the bulk's goes with the foreground's.
    async fn drain(
        &self,
        dialled: Dialled,
        looks_max: Option<u32>,
        channels: &mut JoinSet<()>,
    ) -> quinn::ConnectionError {
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
            () = until_silent(&connection, looks_max, self.config.keep_alive_interval) => {
                connection.close(close_code::SILENT, b"nothing was heard");
                quinn::ConnectionError::TimedOut
            }
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
                    return self.drain(background, None, channels).await;
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

impl DialError {
    /// Whether the peer does not know what this connection is for.
    fn is_of_protocol(&self) -> bool {
        let no_application_protocol = quinn::TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL);
        matches!(
            self,
            Self::Connection(quinn::ConnectionError::ConnectionClosed(closed))
                if closed.error_code == no_application_protocol
        )
    }
}

/// Whether anything comes from a peer, which is probed all the time. In looks and not by the clock: one who gets no
/// processor looks rarely, and must not take that for the silence of others.
#[derive(Debug, Default)]
struct Silence {
    seen_count: u64,
    looks: u32,
}

impl Silence {
    /// So many packets have come in all; whether none has at `looks_max` looks in a row.
    fn look(&mut self, count: u64, looks_max: u32) -> bool {
        let is_news = std::mem::replace(&mut self.seen_count, count) != count;
        self.looks = if is_news { 0 } else { self.looks + 1 };
        self.looks >= looks_max
    }
}

/// Ends when nothing has come at so many looks in a row; never without a number.
async fn until_silent(connection: &quinn::Connection, looks_max: Option<u32>, every: Duration) {
    let Some(looks_max) = looks_max else { return std::future::pending().await };
    let mut silence = Silence::default();
    let mut looks = ticks(every);
    loop {
        looks.tick().await;
        if silence.look(connection.stats().udp_rx.datagrams, looks_max) {
            return;
        }
    }
}

/// A connection that was there for so long says that the peer is well: what was late before is forgotten.
const SETTLED_AFTER: Duration = Duration::from_secs(30);
/// After so many late attempts the next one may take no longer.
pub(super) const LATE_COUNT_MAX: u32 = 3;

/// An alert of TLS (RFC 7301).
const NO_APPLICATION_PROTOCOL: u8 = 120;
/// How long a peer is left alone that does not know what a connection is for: it may be upgraded.
const UNKNOWN_REST: Duration = Duration::from_secs(60);

/// Pauses between attempts: doubling, and jittered so that nodes do not dial in step.
struct Backoff {
    next: Duration,
    max: Duration,
    jitter: SplitMix,
    rests: bool,
    /// Attempts that took too long, one after another.
    late_count: u32,
}

impl Backoff {
    fn new(from: NodeId, to: NodeId, max: Duration) -> Self {
        let seed = u64::from(from.get()) << 32 | u64::from(to.get());
        Self {
            next: DIAL_BACKOFF_MIN,
            max,
            jitter: SplitMix::new(seed),
            rests: false,
            late_count: 0,
        }
    }

    fn reset(&mut self) {
        self.next = DIAL_BACKOFF_MIN;
    }

    fn is_fresh(&self) -> bool {
        self.next == DIAL_BACKOFF_MIN
    }

    /// An attempt took too long, or the peer was silent for too long.
    fn note_late(&mut self) {
        self.late_count = (self.late_count + 1).min(LATE_COUNT_MAX);
    }

    /// At how many looks in a row nothing may have come.
    fn looks_max(&self, config: &TransportConfig) -> u32 {
        let patience = self.patience(config.idle_timeout).as_millis();
        let every = config.keep_alive_interval.as_millis().max(1);
        u32::try_from(patience / every).unwrap_or(u32::MAX).max(1)
    }

    /// How long the next attempt may take. Twice as long after each that took too long: where processors are short, all
    /// of them are late, and what is given up half-way is done for nothing.
    fn patience(&self, usual: Duration) -> Duration {
        usual * 2_u32.pow(self.late_count)
    }

    /// Has the next pause be a long one.
    fn rest(&mut self) {
        self.rests = true;
    }

    /// Between half of the pause and all of it.
    fn next(&mut self) -> Duration {
        if std::mem::take(&mut self.rests) {
            return UNKNOWN_REST;
        }
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

    #[test]
    fn attempts_that_are_late_are_given_more_time_up_to_a_bound() {
        let mut backoff = Backoff::new(NodeId::new(1), NodeId::new(2), Duration::from_secs(1));
        let usual = Duration::from_secs(2);
        let mut given = Vec::new();
        for _ in 0..5 {
            given.push(backoff.patience(usual).as_secs());
            backoff.note_late();
        }
        assert_eq!(given, [2, 4, 8, 16, 16]);
    }

    #[test]
    fn a_peer_is_silent_when_nothing_came_at_so_many_looks_in_a_row() {
        let mut silence = Silence::default();
        let silent: Vec<bool> =
            [1, 1, 1, 2, 2, 2, 2].into_iter().map(|count| silence.look(count, 3)).collect();
        assert_eq!(silent, [false, false, false, false, false, false, true]);
    }
}
