//! Serves a partition's committed records to readers near them (KIP-392): a node of the reader's
//! datacenter hears the high watermark from the leader and reads the blobs from disks nearby.
//!
//! A follower serves only what its leader told it is committed, by the lineage of that same
//! generation (rule 56): what it serves is always a committed prefix, at worst an old one.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_storage::codec::{DecodeError, Source};
use meridian_storage::lineage::{Lineage, Start};
use meridian_storage::message::CommitMark;
use tokio::sync::Notify;

use super::bells::Bells;
use super::group::Group;
use super::partition_log::{FetchError, Fetched, Ownership};
use super::reader::ReadView;
use super::{Logs, lock};

/// A leader forgets a follower that has not asked for this long.
const FOLLOW_LEASE: Duration = Duration::from_secs(15);
/// A follower asks anew this often.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// A follower that no reader used for this long goes.
const IDLE_AFTER: Duration = Duration::from_secs(60);

/// What a leader and a reader in another datacenter tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FollowMessage {
    /// Tell me of this partition's progress.
    Follow { partition: PartitionId },
    /// How far the partition is; with the lineage if it was asked for.
    Progress {
        partition: PartitionId,
        mark: CommitMark,
        log_start_offset: Offset,
        leader_epoch: LeaderEpoch,
        lineage: Option<Lineage>,
    },
}

impl FollowMessage {
    pub(super) fn progress(partition: PartitionId, view: &ReadView, with_lineage: bool) -> Self {
        Self::Progress {
            partition,
            mark: view.mark,
            log_start_offset: view.log_start_offset,
            leader_epoch: view.leader_epoch,
            lineage: with_lineage.then(|| view.lineage.clone()),
        }
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        match self {
            Self::Follow { partition } => {
                out.put_u8(0);
                out.put_u64(partition.get());
            }
            Self::Progress { partition, mark, log_start_offset, leader_epoch, lineage } => {
                out.put_u8(1);
                out.put_u64(partition.get());
                out.put_u32(mark.point.generation.get());
                out.put_u64(mark.point.step.get());
                out.put_i64(mark.high_watermark.get());
                out.put_i64(log_start_offset.get());
                out.put_i32(leader_epoch.get());
                if let Some(lineage) = lineage {
                    // A lineage is what a `Start` of the same generation would say.
                    let start = Start {
                        previous: None,
                        base_offset: lineage.base_offset,
                        tail_length: 0,
                        log_start_offset: *log_start_offset,
                        past: lineage.past.clone(),
                        epochs: lineage.epochs.clone(),
                    };
                    out.put_slice(&start.encode());
                }
            }
        }
        out.freeze()
    }

    pub(super) fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(bytes, "follow message");
        let kind = source.u8()?;
        let partition = PartitionId::new(source.u64()?);
        match kind {
            0 => {
                source.finish()?;
                Ok(Self::Follow { partition })
            }
            1 => {
                let point = source.point()?;
                let high_watermark = Offset::new(source.i64()?);
                let log_start_offset = Offset::new(source.i64()?);
                let leader_epoch = LeaderEpoch::new(source.i32()?);
                let rest = source.rest();
                let lineage = if rest.is_empty() {
                    None
                } else {
                    Some(Lineage::from_start(point.generation, &Start::decode(rest)?))
                };
                let mark = CommitMark { point, high_watermark };
                Ok(Self::Progress { partition, mark, log_start_offset, leader_epoch, lineage })
            }
            _ => Err(source.invalid("kind", u64::from(kind))),
        }
    }
}

/// The followers of one partition, as its leader knows them.
#[derive(Debug, Default)]
pub(super) struct FollowerSet(BTreeMap<NodeId, Instant>);

impl FollowerSet {
    pub(super) fn add(&mut self, now: Instant, follower: NodeId) {
        self.0.insert(follower, now);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that asked lately.
    pub(super) fn current(&mut self, now: Instant) -> Vec<NodeId> {
        self.0.retain(|_, asked| now.since(*asked) < FOLLOW_LEASE);
        self.0.keys().copied().collect()
    }
}

struct State {
    ownership: Ownership,
    leader: NodeId,
    view: Option<ReadView>,
    asked_at: Option<Instant>,
    used_at: Instant,
    readers: Bells,
}

/// A partition led elsewhere that this node serves to readers nearby.
pub struct FollowerLog {
    logs: Weak<Logs>,
    group: Arc<Group>,
    partition: PartitionId,
    state: Mutex<State>,
    last_slot: AtomicU8,
}

impl FollowerLog {
    /// Reads committed records from `from` on, as far as this node has heard of them.
    pub async fn fetch(&self, from: Offset, size_bytes_max: usize) -> Result<Fetched, FetchError> {
        let logs = self.logs.upgrade().ok_or(FetchError::NotLeader)?;
        let view = self.view().ok_or(FetchError::Unavailable)?;
        // A reader that was just sent here may be ahead of what the leader has told us.
        if from > view.mark.high_watermark {
            return Ok(view.fetched(Vec::new()));
        }
        view.check(from)?;
        let (partition, last) = (self.partition, &self.last_slot);
        let records =
            logs.read_records(&self.group, partition, &view, from, size_bytes_max, last).await?;
        Ok(view.fetched(records))
    }

    /// Offset after the last record known to be committed; `None` before the leader has answered.
    pub fn high_watermark(&self) -> Option<Offset> {
        self.view().map(|view| view.mark.high_watermark)
    }

    /// The leader's epoch; `None` before the leader has answered.
    pub fn leader_epoch(&self) -> Option<LeaderEpoch> {
        self.view().map(|view| view.leader_epoch)
    }

    /// Rings `bell` whenever more can be read.
    pub fn notify_on_progress(&self, bell: &Arc<Notify>) {
        lock(&self.state).readers.add(bell);
    }

    fn view(&self) -> Option<ReadView> {
        lock(&self.state).view.clone()
    }

    fn on_progress(
        &self,
        from: NodeId,
        mark: CommitMark,
        log_start_offset: Offset,
        leader_epoch: LeaderEpoch,
        lineage: Option<Lineage>,
    ) {
        let mut state = lock(&self.state);
        if from != state.leader || mark.point.generation != state.ownership.generation {
            return;
        }
        let known = state.view.take();
        let Some(lineage) = lineage.or_else(|| known.as_ref().map(|view| view.lineage.clone()))
        else {
            return;
        };
        let mark = known.map_or(mark, |known| known.mark.max(mark));
        state.view = Some(ReadView { lineage, mark, log_start_offset, leader_epoch });
        state.readers.ring();
    }

    /// Asks the leader, if it is time to; false if no reader has come for long.
    fn renew(&self, logs: &Logs, now: Instant) -> bool {
        let mut state = lock(&self.state);
        if now.since(state.used_at) > IDLE_AFTER {
            return false;
        }
        let every = if state.view.is_some() { RENEW_EVERY } else { Duration::from_millis(200) };
        if state.asked_at.is_none_or(|asked| now.since(asked) >= every) {
            state.asked_at = Some(now);
            let message = FollowMessage::Follow { partition: self.partition };
            // Asked again at the next turn if it can't be sent.
            let _asked_again = logs.deliver_follow(state.leader, &message);
        }
        true
    }
}

/// All partitions this node serves to readers nearby.
#[derive(Default)]
pub(super) struct Followers(Mutex<HashMap<PartitionId, Arc<FollowerLog>>>);

impl Followers {
    pub(super) fn get(
        &self,
        logs: &Arc<Logs>,
        group: Arc<Group>,
        ownership: Ownership,
        leader: NodeId,
    ) -> Arc<FollowerLog> {
        let now = logs.now();
        let log = {
            let mut all = lock(&self.0);
            let log = all.entry(ownership.partition).or_insert_with(|| {
                Arc::new(FollowerLog {
                    logs: Arc::downgrade(logs),
                    group,
                    partition: ownership.partition,
                    state: Mutex::new(State {
                        ownership,
                        leader,
                        view: None,
                        asked_at: None,
                        used_at: now,
                        readers: Bells::default(),
                    }),
                    last_slot: AtomicU8::new(u8::MAX),
                })
            });
            Arc::clone(log)
        };
        {
            let mut state = lock(&log.state);
            state.used_at = now;
            if ownership.generation > state.ownership.generation {
                state.ownership = ownership;
                state.leader = leader;
                state.view = None;
                state.asked_at = None;
            }
        }
        log.renew(logs, now);
        log
    }

    /// Has readers look again: the partition has another leader, or is gone.
    pub(super) fn wake(&self, partition: PartitionId) {
        let log = lock(&self.0).get(&partition).cloned();
        if let Some(log) = log {
            lock(&log.state).readers.ring();
        }
    }

    pub(super) fn forget(&self, partition: PartitionId) {
        lock(&self.0).remove(&partition);
    }

    /// Keeps the leaders' leases alive; drops what no reader uses.
    pub(super) fn renew(&self, logs: &Logs) {
        let now = logs.now();
        lock(&self.0).retain(|_, log| log.renew(logs, now));
    }
}

impl Logs {
    pub(super) fn on_follow_message(self: &Arc<Self>, from: NodeId, message: FollowMessage) {
        match message {
            FollowMessage::Follow { partition } => {
                let answer = self.owned(partition).and_then(|log| log.follow(self.now(), from));
                if let Some(answer) = answer {
                    self.deliver_follow(from, &answer);
                }
            }
            FollowMessage::Progress {
                partition,
                mark,
                log_start_offset,
                leader_epoch,
                lineage,
            } => {
                let log = lock(&self.followers.0).get(&partition).cloned();
                if let Some(log) = log {
                    log.on_progress(from, mark, log_start_offset, leader_epoch, lineage);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::{ConfigVersion, GroupId, Incarnation};
    use meridian_base::position::{Generation, LogPoint, Step};
    use meridian_base::topology::{Geometry, GroupConfig, SlotConfig, SlotState};
    use meridian_storage::lineage::EpochStart;
    use meridian_storage::mutation::Mutations;

    use super::*;
    use crate::log::{LogSettings, Wire};
    use crate::partition::PartitionLimits;
    use crate::runtime::clock::Clock;
    use crate::runtime::quic::Channel;

    struct NoWire;

    impl Wire for NoWire {
        fn send(&self, _: NodeId, _: Channel, _: Vec<Bytes>) -> bool {
            true
        }
    }

    const PARTITION: PartitionId = PartitionId::new(1);
    const LEADER: NodeId = NodeId::new(2);

    fn ownership(generation: u32) -> Ownership {
        Ownership {
            partition: PARTITION,
            group: GroupId::new(0),
            generation: Generation::new(generation),
            leader_epoch: LeaderEpoch::new(0),
            datacenter_count_min: 1,
        }
    }

    /// A node that leads nothing, in a group of one disk that is elsewhere.
    fn bystander() -> Arc<Logs> {
        let settings = LogSettings {
            node: NodeId::new(1),
            limits: PartitionLimits::default(),
            pending_size_bytes_max: 1 << 20,
            mutations: Mutations::NONE,
        };
        let logs = Logs::start(settings, Clock::start(), Arc::new(NoWire), None);
        logs.on_group(GroupConfig {
            group: GroupId::new(0),
            version: ConfigVersion::new(1),
            geometry: Geometry::None,
            slots: vec![SlotConfig {
                node: LEADER,
                incarnation: Incarnation::new(1),
                state: SlotState::Good,
            }],
        });
        logs
    }

    fn progress(generation: u32, high_watermark: i64) -> FollowMessage {
        let generation = Generation::new(generation);
        let lineage = Lineage {
            past: Vec::new(),
            generation,
            base_offset: Offset::new(0),
            epochs: vec![EpochStart { epoch: LeaderEpoch::new(0), start_offset: Offset::new(0) }],
        };
        FollowMessage::Progress {
            partition: PARTITION,
            mark: CommitMark {
                point: LogPoint::new(generation, Step::new(1)),
                high_watermark: Offset::new(high_watermark),
            },
            log_start_offset: Offset::new(0),
            leader_epoch: LeaderEpoch::new(0),
            lineage: Some(lineage),
        }
    }

    /// Whether the bell was rung since it was last looked at.
    fn rang(bell: &Notify) -> bool {
        std::pin::pin!(bell.notified()).as_mut().enable()
    }

    #[tokio::test]
    async fn readers_are_woken_by_progress_and_by_a_change_of_leader() {
        let logs = bystander();
        let follower = logs.followed(ownership(3), LEADER).expect("the group is known");
        let bell = Arc::new(Notify::new());
        follower.notify_on_progress(&bell);
        assert!(!rang(&bell));

        logs.on_follow_message(NodeId::new(9), progress(3, 5));
        logs.on_follow_message(LEADER, progress(2, 5));
        assert!(!rang(&bell), "only the leader's word for its own generation counts");
        logs.on_follow_message(LEADER, progress(3, 7));
        assert!(rang(&bell));
        assert_eq!(follower.high_watermark(), Some(Offset::new(7)));

        logs.on_ownership(Vec::new(), &[PARTITION]);
        assert!(rang(&bell), "or readers would wait for a leader that is gone");
        let again = logs.followed(ownership(4), NodeId::new(3)).expect("the group is known");
        assert!(Arc::ptr_eq(&follower, &again));
        assert_eq!(again.high_watermark(), None, "until the new leader has said it");
        logs.on_follow_message(NodeId::new(3), progress(4, 8));
        assert!(rang(&bell));
        assert_eq!(again.high_watermark(), Some(Offset::new(8)));
    }

    #[test]
    fn messages_round_trip() {
        let epoch = LeaderEpoch::new(3);
        let lineage = Lineage {
            past: Vec::new(),
            generation: Generation::new(4),
            base_offset: Offset::new(10),
            epochs: vec![EpochStart { epoch, start_offset: Offset::new(10) }],
        };
        let mark = CommitMark {
            point: LogPoint::new(Generation::new(4), Step::new(9)),
            high_watermark: Offset::new(20),
        };
        for lineage in [None, Some(lineage)] {
            let message = FollowMessage::Progress {
                partition: PartitionId::new(1),
                mark,
                log_start_offset: Offset::new(5),
                leader_epoch: epoch,
                lineage,
            };
            assert_eq!(FollowMessage::decode(message.encode()), Ok(message));
        }
        let follow = FollowMessage::Follow { partition: PartitionId::new(1) };
        assert_eq!(FollowMessage::decode(follow.encode()), Ok(follow));
    }
}
