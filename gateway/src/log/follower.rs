//! Serves a partition's committed records to readers near them (KIP-392): a node of the reader's
//! datacenter hears the high watermark from the leader and reads the blobs from disks nearby.
//!
//! A follower serves only what its leader told it is committed, by the lineage of that same
//! generation (rule 56): what it serves is always a committed prefix, at worst an old one.

mod aborted_page;

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
use meridian_storage::manifest::Manifest;
use meridian_storage::message::CommitMark;
use tokio::sync::Notify;

pub(super) use self::aborted_page::AbortedPage;
use super::bells::Bells;
use super::group::Homes;
use super::partition_log::{FetchError, Fetched, Ownership};
use super::reader::{Isolation, ReadView};
use super::{Logs, lock};
use crate::background::Turns;
use crate::partition::{AbortedTransaction, AbortedTransactions, Taken};

/// A leader forgets a follower that has not asked for this long.
const FOLLOW_LEASE: Duration = Duration::from_secs(15);
/// A follower asks anew this often.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// A follower that no reader used for this long goes.
const IDLE_AFTER: Duration = Duration::from_secs(60);

/// What a leader and a reader in another datacenter tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FollowMessage {
    /// Tell me of this partition's progress. I know this many of its aborted transactions.
    Follow { partition: PartitionId, aborted_count: u64 },
    /// How far the partition is; with the lineage if it was asked for.
    Progress(Box<Progress>),
}

/// How far a partition is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    partition: PartitionId,
    mark: CommitMark,
    log_start_offset: Offset,
    leader_epoch: LeaderEpoch,
    aborted: AbortedPage,
    /// If there is one, and it is new or comes with the lineage.
    manifest: Option<Arc<Manifest>>,
    lineage: Option<Lineage>,
}

impl FollowMessage {
    pub(super) fn progress(
        partition: PartitionId,
        view: &ReadView,
        aborted: AbortedPage,
        with_manifest: bool,
        with_lineage: bool,
    ) -> Self {
        Self::Progress(Box::new(Progress {
            partition,
            mark: view.mark,
            log_start_offset: view.log_start_offset,
            leader_epoch: view.leader_epoch,
            aborted,
            manifest: view.manifest.clone().filter(|_| with_manifest || with_lineage),
            lineage: with_lineage.then(|| view.lineage.clone()),
        }))
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        match self {
            Self::Follow { partition, aborted_count } => {
                out.put_u8(0);
                out.put_u64(partition.get());
                out.put_u64(*aborted_count);
            }
            Self::Progress(progress) => {
                let Progress { partition, mark, log_start_offset, leader_epoch, .. } = &**progress;
                let Progress { aborted, manifest, lineage, .. } = &**progress;
                out.put_u8(if manifest.is_some() { 2 } else { 1 });
                out.put_u64(partition.get());
                out.put_u32(mark.point.generation.get());
                out.put_u64(mark.point.step.get());
                out.put_i64(mark.high_watermark.get());
                out.put_i64(log_start_offset.get());
                out.put_i32(leader_epoch.get());
                aborted.encode(&mut out);
                if let Some(manifest) = manifest {
                    let manifest = manifest.encode();
                    out.put_u32(manifest.len() as u32);
                    out.put_slice(&manifest);
                }
                if let Some(lineage) = lineage {
                    // A lineage is what a `Start` of the same generation would say.
                    let start = Start {
                        previous: None,
                        base_offset: lineage.base_offset,
                        tail_length: 0,
                        log_start_offset: *log_start_offset,
                        past: lineage.past.clone(),
                        epochs: lineage.epochs.clone(),
                        checkpoint: None,
                    };
                    out.put_slice(&start.encode());
                }
            }
        }
        out.freeze()
    }

    pub(crate) fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(bytes, "follow message");
        let kind = source.u8()?;
        let partition = PartitionId::new(source.u64()?);
        match kind {
            0 => {
                let aborted_count = source.u64()?;
                source.finish()?;
                Ok(Self::Follow { partition, aborted_count })
            }
            // 1: without a manifest.
            1 | 2 => {
                let point = source.point()?;
                let high_watermark = Offset::new(source.i64()?);
                let log_start_offset = Offset::new(source.i64()?);
                let leader_epoch = LeaderEpoch::new(source.i32()?);
                let aborted = AbortedPage::decode(&mut source)?;
                let manifest = if kind == 2 {
                    Some(Arc::new(Manifest::decode(source.sized()?)?))
                } else {
                    None
                };
                let rest = source.rest();
                let lineage = if rest.is_empty() {
                    None
                } else {
                    Some(Lineage::from_start(point.generation, &Start::decode(rest)?))
                };
                let mark = CommitMark { point, high_watermark };
                Ok(Self::Progress(Box::new(Progress {
                    partition,
                    mark,
                    log_start_offset,
                    leader_epoch,
                    aborted,
                    manifest,
                    lineage,
                })))
            }
            _ => Err(source.invalid("kind", u64::from(kind))),
        }
    }
}

/// The followers of one partition, as its leader knows them.
#[derive(Debug, Default)]
pub(super) struct FollowerSet {
    asked_at: BTreeMap<NodeId, Instant>,
    /// How many aborted transactions all of them were told of, if nothing was lost on its way.
    told_count: u64,
    /// The end of the manifest that they were told of, likewise.
    told_end: Offset,
}

impl FollowerSet {
    pub(super) fn add(&mut self, now: Instant, follower: NodeId) {
        self.asked_at.insert(follower, now);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked_at.is_empty()
    }

    pub(super) fn told_count(&self) -> u64 {
        self.told_count
    }

    /// They are about to be told of the first `count` aborted transactions.
    pub(super) fn tell(&mut self, count: u64) {
        self.told_count = count;
    }

    /// They are about to be told of a manifest that ends here; whether it is news.
    pub(super) fn tell_manifest(&mut self, end: Offset) -> bool {
        std::mem::replace(&mut self.told_end, end) != end
    }

    /// Those that asked lately.
    pub(super) fn current(&mut self, now: Instant) -> Vec<NodeId> {
        self.asked_at.retain(|_, asked| now.since(*asked) < FOLLOW_LEASE);
        self.asked_at.keys().copied().collect()
    }
}

struct State {
    ownership: Ownership,
    homes: Homes,
    leader: NodeId,
    view: Option<ReadView>,
    aborted: AbortedTransactions,
    asked_at: Option<Instant>,
    used_at: Instant,
    readers: Bells,
}

/// A partition led elsewhere that this node serves to readers nearby.
pub struct FollowerLog {
    logs: Weak<Logs>,
    partition: PartitionId,
    state: Mutex<State>,
    last_slot: AtomicU8,
}

impl FollowerLog {
    /// Reads committed records from `from` on, as far as this node has heard of them.
    pub async fn fetch_as(
        &self,
        isolation: Isolation,
        from: Offset,
        size_bytes_max: usize,
    ) -> Result<Fetched, FetchError> {
        let logs = self.logs.upgrade().ok_or(FetchError::NotLeader)?;
        let (view, homes) = {
            let state = lock(&self.state);
            (state.view.clone().ok_or(FetchError::Unavailable)?, state.homes.clone())
        };
        // A reader that was just sent here may be ahead of what the leader has told us.
        if from > view.mark.high_watermark {
            return Ok(view.fetched(Taken::default(), Vec::new()));
        }
        view.check(from)?;
        let (partition, last) = (self.partition, &self.last_slot);
        let range = view.range(from, isolation);
        let taken =
            logs.read_records(&homes, partition, &view, range, size_bytes_max, last).await?;
        let aborted = match (isolation, taken.end_offset) {
            (Isolation::ReadCommitted, Some(end)) => self.aborted_between(&view, from, end)?,
            (Isolation::ReadCommitted, None) | (Isolation::ReadUncommitted, _) => Vec::new(),
        };
        Ok(view.fetched(taken, aborted))
    }

    /// What a read from `from` on says of the log, without a record.
    pub fn peek(&self, from: Offset) -> Result<Fetched, FetchError> {
        let view = self.view().ok_or(FetchError::Unavailable)?;
        if from <= view.mark.high_watermark {
            view.check(from)?;
        }
        Ok(view.fetched(Taken::default(), Vec::new()))
    }

    /// The aborted transactions with records in `from..until`, unless what was heard of them is
    /// from another leader than `view`.
    fn aborted_between(
        &self,
        view: &ReadView,
        from: Offset,
        until: Offset,
    ) -> Result<Vec<AbortedTransaction>, FetchError> {
        let state = lock(&self.state);
        let generation = state.view.as_ref().map(|known| known.mark.point.generation);
        if generation != Some(view.mark.point.generation) {
            return Err(FetchError::Unavailable);
        }
        state.aborted.between(from, until).ok_or(FetchError::Unavailable)
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

    fn on_progress(&self, logs: &Logs, from: NodeId, progress: Progress) {
        let Progress { mark, log_start_offset, leader_epoch, aborted, .. } = progress;
        let Progress { manifest, lineage, .. } = progress;
        let mut state = lock(&self.state);
        if from != state.leader || mark.point.generation != state.ownership.generation {
            return;
        }
        let known = state.view.take();
        let is_answer = lineage.is_some();
        let Some(lineage) = lineage.or_else(|| known.as_ref().map(|view| view.lineage.clone()))
        else {
            return;
        };
        let known_manifest = known.as_ref().and_then(|view| view.manifest.clone());
        let manifest = manifest.or(known_manifest);
        if known.is_none() {
            state.aborted = AbortedTransactions::default();
        }
        let heard = aborted.add_to(&mut state.aborted, is_answer);
        let last_stable_offset = heard.unwrap_or(log_start_offset);
        let (mark, last_stable_offset) = match known {
            Some(known) => (known.mark.max(mark), known.last_stable_offset.max(last_stable_offset)),
            None => (mark, last_stable_offset),
        };
        state.view = Some(ReadView {
            lineage,
            manifest,
            mark,
            last_stable_offset,
            log_start_offset,
            leader_epoch,
        });
        state.readers.ring();
        if state.aborted.count() < aborted.total_count() {
            self.ask(logs, logs.now(), &mut state);
        }
    }

    fn ask(&self, logs: &Logs, now: Instant, state: &mut State) {
        state.asked_at = Some(now);
        let aborted_count = if state.view.is_some() { state.aborted.count() } else { 0 };
        let message = FollowMessage::Follow { partition: self.partition, aborted_count };
        // Asked again at the next turn if it can't be sent.
        let _asked_again = logs.deliver_follow(state.leader, &message);
    }

    fn is_idle(&self, now: Instant) -> bool {
        now.since(lock(&self.state).used_at) > IDLE_AFTER
    }

    /// Asks the leader, if it is time to; false if no reader has come for long.
    fn renew(&self, logs: &Logs, now: Instant) -> bool {
        if self.is_idle(now) {
            return false;
        }
        let mut state = lock(&self.state);
        let every = if state.view.is_some() { RENEW_EVERY } else { Duration::from_millis(200) };
        if state.asked_at.is_none_or(|asked| now.since(asked) >= every) {
            self.ask(logs, now, &mut state);
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
        ownership: Ownership,
        leader: NodeId,
    ) -> Option<Arc<FollowerLog>> {
        let now = logs.now();
        let homes = Homes::new(&ownership, |group| logs.group(group))?;
        let log = {
            let mut all = lock(&self.0);
            let log = all.entry(ownership.partition).or_insert_with(|| {
                Arc::new(FollowerLog {
                    logs: Arc::downgrade(logs),
                    partition: ownership.partition,
                    state: Mutex::new(State {
                        ownership: ownership.clone(),
                        homes: homes.clone(),
                        leader,
                        view: None,
                        aborted: AbortedTransactions::default(),
                        asked_at: None,
                        used_at: now,
                        readers: Bells::default(),
                    }),
                    last_slot: AtomicU8::new(u8::MAX),
                })
            });
            // In here, so that it is not taken for idle and forgotten.
            lock(&log.state).used_at = now;
            Arc::clone(log)
        };
        {
            let mut state = lock(&log.state);
            if ownership.generation > state.ownership.generation {
                state.ownership = ownership;
                state.homes = homes;
                state.leader = leader;
                state.view = None;
                state.asked_at = None;
            }
        }
        log.renew(logs, now);
        Some(log)
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
    pub(super) async fn renew(&self, logs: &Logs) {
        let now = logs.now();
        let all: Vec<Arc<FollowerLog>> = lock(&self.0).values().cloned().collect();
        let mut turns = Turns::default();
        for log in all {
            turns.next().await;
            if !log.renew(logs, now) {
                let mut known = lock(&self.0);
                // A reader may have come for it meanwhile.
                if known.get(&log.partition).is_some_and(|it| it.is_idle(now)) {
                    known.remove(&log.partition);
                }
            }
        }
    }
}

impl Logs {
    pub(super) fn on_follow_message(self: &Arc<Self>, from: NodeId, message: FollowMessage) {
        match message {
            FollowMessage::Follow { partition, aborted_count } => {
                let log = self.owned(partition);
                let answer = log.and_then(|log| log.follow(self.now(), from, aborted_count));
                if let Some(answer) = answer {
                    self.deliver_follow(from, &answer);
                }
            }
            FollowMessage::Progress(progress) => {
                let log = lock(&self.followers.0).get(&progress.partition).cloned();
                if let Some(log) = log {
                    log.on_progress(self, from, *progress);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
