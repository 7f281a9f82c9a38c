//! The partitions of this node, in the real world: carries the decisions of leaders, takeovers and
//! the store to slots, disks and waiting clients.
//!
//! ```text
//! kafka front -> PartitionLog -> Partition (pure) -> puts -> slots: own store, or QUIC
//!                     ^                                        |
//!                     +---------- replies, by partition -------+
//! ```
//!
//! Every state machine sits behind a mutex that is held only while it decides; what it decided is
//! carried out after the mutex is released. No lock is held across an await.

#[cfg(test)]
mod agreed_time_tests;
mod ahead;
mod bells;
mod budget;
mod cold;
mod compaction;
mod contract;
mod copies;
pub(crate) mod follower;
mod group;
mod lease;
mod mirrored;
mod partition_log;
mod questions;
mod read_failed;
mod read_threads;
mod readable;
mod reader;
mod rebuild;
mod refusals;
mod rounds;
mod scrub;
mod store;
mod takeovers;
#[cfg(test)]
mod testing;
mod tiering;
mod transactions;
mod trouble;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::env::Instant;
use meridian_base::id::{GroupId, NodeId, PartitionId};
use meridian_base::sync::{RwLock, lock};
use meridian_base::topology::GroupConfig;
use meridian_storage::limits::SizeLimits;
use meridian_storage::message::{Beacon, StorageMessage};
use meridian_storage::mutation::Mutations;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use self::ahead::Ahead;
use self::bells::Bells;
use self::budget::Budget;
pub use self::budget::BudgetLimits;
use self::cold::Cold;
pub use self::cold::ColdCounts;
pub(crate) use self::cold::{ColdPolicy, Holding, ObjectHolding, ObjectsUnusable};
pub(crate) use self::compaction::CompactionRules;
use self::copies::Copies;
pub use self::copies::CopiesCounts;
pub(crate) use self::copies::{Look, NotNow};
pub use self::follower::FollowerLog;
use self::follower::{FollowMessage, Followers};
use self::group::Group;
pub use self::partition_log::{FetchError, Fetched, Ownership, PartitionLog, Waiter};
use self::readable::Readable;
use self::reader::Pending;
use self::rebuild::Rebuilds;
use self::rounds::Changed;
pub(crate) use self::rounds::Rounds;
pub(crate) use self::scrub::ScrubReport;
pub use self::store::{StoreFailure, StoreHandle, StoreListener, StoreSettings};
pub use self::transactions::{OngoingCounts, TransactionVerifier};
use self::trouble::Refusals;
pub(crate) use self::trouble::Waiting;
use crate::background::{ChoreCounters, Turns, ticks};
use crate::partition::PartitionLimits;
use crate::peers::Wire;
use crate::runtime::clock::Clock;
use crate::runtime::histogram::{Histogram, HistogramSample};
use crate::runtime::quic::{Channel, PeerState};
use meridian_broker::replica::ahead::ReadAhead;
pub(crate) use meridian_broker::replica::parked::WAIT_MAX as OPENING_WAIT_MAX;
pub use meridian_broker::replica::view::Isolation;

/// How often partitions with puts in flight look for late slots.
const TICK_EVERY: Duration = Duration::from_millis(5);
/// Beacons in one message.
const BEACON_COUNT_MAX: usize = 10_000;
/// First byte of a frame about storage.
const FRAME_STORAGE: u8 = 1;
/// First byte of a frame between a leader and a reader in another datacenter.
const FRAME_FOLLOW: u8 = 2;

/// What the logs need to know of their node.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// This node.
    pub node: NodeId,
    /// Bounds of each partition.
    pub limits: PartitionLimits,
    /// Most bytes put but not committed, for each partition.
    pub pending_size_bytes_max: usize,
    /// Longest message, and largest blob.
    pub sizes: SizeLimits,
    /// Bounds of all partitions together.
    pub budget: BudgetLimits,
    /// Broken rules, for tests.
    pub mutations: Mutations,
}

/// All partitions this node leads, follows or takes over, and its store.
pub struct Logs {
    settings: LogSettings,
    clock: Clock,
    runtime: Handle,
    wire: Arc<dyn Wire>,
    store: Option<Arc<StoreHandle>>,
    groups: RwLock<BTreeMap<GroupId, Arc<Group>>>,
    owned: RwLock<HashMap<PartitionId, Arc<PartitionLog>>>,
    followers: Followers,
    pending: Pending,
    readable: Readable,
    ahead: Ahead,
    budget: Arc<Budget>,
    cold: Cold,
    copies: Copies,
    verifier: OnceLock<Arc<dyn TransactionVerifier>>,
    agreed_time: OnceLock<AgreedTime>,
    /// Partitions with something in flight, and the bell that wakes the ticker for the first.
    active: Mutex<BTreeSet<PartitionId>>,
    activated: Notify,
    /// Partitions owned and not served yet.
    opening: Mutex<BTreeSet<PartitionId>>,
    /// From a partition's being this node's until it is served.
    takeovers_took: Histogram,
    /// Partitions that stopped though they are owned: a slot knows of a later owner, or their log contradicts itself.
    stopped: Mutex<BTreeSet<PartitionId>>,
    /// Who waits for partitions that this node is to own and does not know of yet.
    awaiting: Mutex<Bells>,
    changed: Changed,
    rebuilds: Rebuilds,
    pub(crate) chores: ChoreCounters,
    refusals: Mutex<Refusals>,
}

/// The time that the cluster's clocks agree on, in milliseconds since 1970, while it is known.
pub(crate) type AgreedTime = Arc<dyn Fn() -> Option<i64> + Send + Sync>;

impl Logs {
    /// Names the clock that rules about age go by; the first one named stays.
    pub(crate) fn set_agreed_time(&self, agreed_time: AgreedTime) {
        let _named_already = self.agreed_time.set(agreed_time);
    }

    /// When what is replayed counts as seen. While the agreed time is not known that is later than
    /// any: the host's clock may be behind, and what is stamped by it would be forgotten too early.
    fn replay_time_ms(&self) -> i64 {
        self.agreed_time.get().and_then(|agreed_ms| agreed_ms()).unwrap_or(i64::MAX)
    }

    /// Starts with no partitions. `store` is the disk of this node, if it has the storage role.
    pub fn start(
        settings: LogSettings,
        clock: Clock,
        wire: Arc<dyn Wire>,
        store: Option<Arc<StoreHandle>>,
    ) -> Arc<Self> {
        let budget = Budget::new(settings.budget);
        let mut ahead = ReadAhead::default();
        ahead.break_rules(settings.mutations);
        let logs = Arc::new(Self {
            settings,
            clock,
            runtime: Handle::current(),
            wire,
            store,
            groups: RwLock::default(),
            owned: RwLock::default(),
            followers: Followers::default(),
            pending: Pending::default(),
            readable: Readable::default(),
            ahead: Mutex::new(ahead),
            budget,
            cold: Cold::default(),
            copies: Copies::default(),
            verifier: OnceLock::new(),
            agreed_time: OnceLock::new(),
            active: Mutex::default(),
            activated: Notify::new(),
            opening: Mutex::default(),
            takeovers_took: Histogram::default(),
            stopped: Mutex::default(),
            awaiting: Mutex::default(),
            changed: Changed::default(),
            rebuilds: Rebuilds::default(),
            chores: ChoreCounters::default(),
            refusals: Mutex::default(),
        });
        if let Some(store) = &logs.store {
            store.attach(&logs);
        }
        let ticker = Arc::downgrade(&logs);
        logs.runtime.spawn(async move {
            while let Some(logs) = ticker.upgrade() {
                logs.tick_active().await;
            }
        });
        let takeovers = Arc::downgrade(&logs);
        logs.runtime.spawn(async move {
            let mut ticks = ticks(takeovers::TICK_EVERY);
            loop {
                ticks.tick().await;
                let Some(logs) = takeovers.upgrade() else { return };
                logs.tick_takeovers().await;
                logs.followers.renew(&logs).await;
                lock(&logs.ahead).expire(logs.now());
            }
        });
        logs
    }

    /// Bytes that wait to be committed, and of the newest records in memory, of all partitions.
    pub fn memory_bytes(&self) -> (usize, usize) {
        (self.budget.pending_bytes(), self.budget.tail_bytes())
    }

    /// Takes a group's configuration from the metadata log.
    pub fn on_group(self: &Arc<Self>, config: GroupConfig) {
        let group = self.group_entry(&config);
        if !group.adopt(&config) {
            return;
        }
        // Also one without a slot of this node: its disk may have had one, or get it later.
        if let Some(store) = &self.store {
            store.on_config(config.clone());
        }
        for log in self.owned_logs() {
            if log.homes.every().contains_key(&config.group) {
                self.on_group_changed(&log, &config);
            }
        }
    }

    /// Takes partitions over, or stops leading them, as the metadata log decided (rule T1).
    pub fn on_ownership(self: &Arc<Self>, owned: Vec<Ownership>, lost: &[PartitionId]) {
        for partition in lost {
            let log = self.owned.write().remove(partition);
            if let Some(log) = log {
                log.stop();
            }
            self.followers.wake(*partition);
        }
        let mut begun = Vec::with_capacity(owned.len());
        for ownership in owned {
            let previous = self.owned(ownership.partition);
            if previous
                .as_ref()
                .is_some_and(|log| log.ownership().generation >= ownership.generation)
            {
                continue;
            }
            let Some(log) = PartitionLog::new(self, ownership) else { continue };
            if let Some(previous) = previous {
                previous.stop();
            }
            self.owned.write().insert(log.ownership().partition, Arc::clone(&log));
            lock(&self.opening).insert(log.ownership().partition);
            self.followers.wake(log.ownership().partition);
            begun.push(log);
        }
        self.begin_takeovers(&begun);
        lock(&self.awaiting).ring();
    }

    /// Rings `bell` whenever this node has become the owner of partitions, or is no longer.
    pub(crate) fn notify_on_ownership(&self, bell: &Arc<Notify>) {
        lock(&self.awaiting).add(bell);
    }

    /// How many partitions this node owns and does not serve: their logs are being taken over, or what they hold is
    /// being rebuilt.
    pub(crate) fn opening_count(&self) -> usize {
        let opening: Vec<PartitionId> = lock(&self.opening).iter().copied().collect();
        let is_opening =
            |partition: &PartitionId| self.owned(*partition).is_some_and(|log| log.is_opening());
        opening.iter().filter(|partition| is_opening(partition)).count()
    }

    /// The partitions that this node's disk has anything of.
    pub fn stored_partitions(&self) -> BTreeSet<PartitionId> {
        self.store.as_ref().map(|store| store.partitions()).unwrap_or_default()
    }

    /// Frees a deleted topic's partition on this node's disk.
    pub fn forget(&self, partition: PartitionId) {
        if let Some(store) = &self.store {
            store.forget(partition);
        }
        self.followers.forget(partition);
    }

    /// The log of a partition that this node leads and serves.
    pub fn led(&self, partition: PartitionId) -> Option<Arc<PartitionLog>> {
        let log = self.owned(partition)?;
        if log.is_serving() {
            return Some(log);
        }
        self.urge(partition);
        None
    }

    /// All partitions owned by this node, served or being taken over.
    pub fn owned_logs(&self) -> Vec<Arc<PartitionLog>> {
        self.owned.read().values().cloned().collect()
    }

    /// A partition led by `leader` whose committed records this node serves to readers nearby.
    pub fn followed(
        self: &Arc<Self>,
        ownership: Ownership,
        leader: NodeId,
    ) -> Option<Arc<FollowerLog>> {
        self.followers.get(self, ownership, leader)
    }

    /// Runs `task` on the node's runtime, from whatever thread.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// The disk of this node.
    pub fn store(&self) -> Option<&Arc<StoreHandle>> {
        self.store.as_ref()
    }

    /// Slots of `group` that are taken for dead here, and their latencies.
    pub fn group(&self, group: GroupId) -> Option<Arc<Group>> {
        self.groups.read().get(&group).cloned()
    }

    /// How long puts took, by node and group.
    pub(crate) fn put_durations(&self) -> Vec<(NodeId, HistogramSample)> {
        self.groups.read().values().flat_map(|group| group.put_durations()).collect()
    }

    /// How long it took until partitions were served here.
    pub(crate) fn takeover_durations(&self) -> HistogramSample {
        self.takeovers_took.sample()
    }

    /// Takes a frame from another node.
    pub fn on_frame(self: &Arc<Self>, from: NodeId, frame: Bytes) {
        let Some((&kind, _)) = frame.split_first() else { return };
        let body = frame.slice(1..);
        match kind {
            FRAME_STORAGE => match StorageMessage::decode(body) {
                Ok(message) => self.on_message(from, message),
                Err(error) => tracing::warn!(%from, %error, "storage message refused"),
            },
            FRAME_FOLLOW => match FollowMessage::decode(body) {
                Ok(message) => self.on_follow_message(from, message),
                Err(error) => tracing::warn!(%from, %error, "follow message refused"),
            },
            _ => tracing::warn!(%from, kind, "frame of unknown kind refused"),
        }
    }

    /// Learns that a node can or cannot be reached.
    pub fn on_peer(&self, node: NodeId, state: PeerState) {
        for group in self.groups.read().values() {
            group.on_peer(self.now(), node, state == PeerState::Up);
        }
        if state == PeerState::Up {
            self.readable.ring();
        }
    }

    /// Takes a message about storage, from another node or from this one.
    fn on_message(self: &Arc<Self>, from: NodeId, message: StorageMessage) {
        match message {
            StorageMessage::PutReplies(replies) => {
                for reply in replies {
                    if reply.key.partition.is_cold() {
                        self.cold.on_reply(from, reply);
                    } else if let Some(log) = self.owned(reply.key.partition) {
                        log.on_put_reply(from, reply);
                    }
                }
            }
            StorageMessage::FenceReadReply { reply, .. } => self.on_fence_reply(from, reply),
            StorageMessage::ReadReply { tag, reply } if !StoreHandle::owns_tag(tag) => {
                self.on_read_reply(from, tag, reply);
            }
            StorageMessage::PartList { tag, list } => self.cold.lists.on_answer(tag, list),
            StorageMessage::CopyList { tag, list } => self.copies.lists.on_answer(tag, list),
            request => {
                if let Some(store) = &self.store {
                    store.on_message(from, request);
                }
            }
        }
    }

    /// Sends a message to a node, which may be this one.
    fn deliver(self: &Arc<Self>, to: NodeId, message: StorageMessage) -> bool {
        if to == self.settings.node {
            self.on_message(to, message);
            return true;
        }
        let channel = match &message {
            // A part is large, and nobody waits for it.
            StorageMessage::Put(put) if put.blob.key.partition.is_cold() => Channel::Bulk,
            StorageMessage::Put(_) | StorageMessage::PutReplies(_) | StorageMessage::Beacons(_) => {
                Channel::Put
            }
            StorageMessage::FenceRead { .. } | StorageMessage::FenceReadReply { .. } => {
                Channel::Control
            }
            // For a disk that is mended or refilled, which readers must not wait behind.
            StorageMessage::Read { tag, .. } | StorageMessage::ReadReply { tag, .. }
                if StoreHandle::owns_tag(*tag) =>
            {
                Channel::Bulk
            }
            StorageMessage::Read { .. } | StorageMessage::ReadReply { .. } => Channel::Read,
            StorageMessage::SyncPull { .. }
            | StorageMessage::SyncPage { .. }
            | StorageMessage::ListParts { .. }
            | StorageMessage::PartList { .. }
            | StorageMessage::FreeParts(_)
            | StorageMessage::ListCopies { .. }
            | StorageMessage::CopyList { .. }
            | StorageMessage::FreeCopies(_) => Channel::Bulk,
            StorageMessage::ScrubAsk { .. } | StorageMessage::ScrubAnswer { .. } => {
                Channel::Control
            }
        };
        self.wire.send(to, channel, tagged(FRAME_STORAGE, message.encode()))
    }

    fn deliver_follow(&self, to: NodeId, message: &FollowMessage) -> bool {
        self.wire.send(to, Channel::Control, tagged(FRAME_FOLLOW, vec![message.encode()]))
    }

    /// Tells every slot of a group how far its partitions are.
    fn send_beacons(self: &Arc<Self>, group: &Group, beacons: Vec<Beacon>) {
        if beacons.is_empty() {
            return;
        }
        for slot in &group.config().slots {
            for beacons in beacons.chunks(BEACON_COUNT_MAX) {
                self.deliver(slot.node, StorageMessage::Beacons(beacons.to_vec()));
            }
        }
    }

    fn activate(&self, partition: PartitionId) {
        if lock(&self.active).insert(partition) {
            self.activated.notify_one();
        }
    }

    /// Ticks all active partitions, or waits until there is one.
    async fn tick_active(self: &Arc<Self>) {
        let active: Vec<PartitionId> = lock(&self.active).iter().copied().collect();
        if active.is_empty() {
            self.activated.notified().await;
            return;
        }
        tokio::time::sleep(TICK_EVERY).await;
        let mut turns = Turns::default();
        let mut beacons: BTreeMap<GroupId, Vec<Beacon>> = BTreeMap::new();
        for partition in active {
            turns.next().await;
            let log = self.owned(partition);
            let busy = log.as_ref().is_some_and(|log| {
                let mut out = Vec::new();
                let busy = log.tick(&mut out);
                if !out.is_empty() {
                    // What a group holds of it from before a move is freed by the same word.
                    for group in log.homes.every().into_keys() {
                        beacons.entry(group).or_default().extend(&out);
                    }
                }
                busy
            });
            if !busy {
                lock(&self.active).remove(&partition);
                // Work that came between the tick and the removal has rung the bell for nothing.
                if log.is_some_and(|log| log.has_work()) {
                    self.activate(partition);
                }
            }
        }
        for (group, beacons) in beacons {
            if let Some(group) = self.group(group) {
                self.send_beacons(&group, beacons);
            }
        }
    }

    /// The log of a partition that this node owns, served or being taken over.
    pub fn owned(&self, partition: PartitionId) -> Option<Arc<PartitionLog>> {
        self.owned.read().get(&partition).cloned()
    }

    fn group_entry(&self, config: &GroupConfig) -> Arc<Group> {
        let mut groups = self.groups.write();
        let node = self.settings.node;
        Arc::clone(groups.entry(config.group).or_insert_with(|| Arc::new(Group::new(node, config))))
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }
}

fn tagged(kind: u8, parts: Vec<Bytes>) -> Vec<Bytes> {
    let mut tagged = Vec::with_capacity(parts.len() + 1);
    let mut head = BytesMut::with_capacity(1);
    head.put_u8(kind);
    tagged.push(head.freeze());
    tagged.extend(parts);
    tagged
}
