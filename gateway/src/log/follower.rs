//! Serves a partition's committed records to readers near them (KIP-392); [`Follower`] decides what may be read.

use std::collections::HashMap;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, Weak};

use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::{LeaderEpoch, Offset};
pub(crate) use meridian_broker::replica::follow::FollowMessage;
use meridian_broker::replica::follow::{Follower, Progress, Renewal};
use meridian_broker::replica::view::{Isolation, ReadView};
use tokio::sync::Notify;

use super::ahead::ReadableLog;
use super::bells::Bells;
use super::group::Homes;
use super::partition_log::{FetchError, Fetched, Ownership};
use super::reader::{check, fetched};
use super::{Logs, lock};
use crate::background::Turns;
use crate::partition::{AbortedTransaction, Taken};

struct State {
    homes: Homes,
    follower: Follower,
    readers: Bells,
}

/// A partition led elsewhere that this node serves to readers nearby.
pub struct FollowerLog {
    logs: Weak<Logs>,
    partition: PartitionId,
    state: Mutex<State>,
    last_slot: Arc<AtomicU8>,
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
            (state.follower.view().cloned().ok_or(FetchError::Unavailable)?, state.homes.clone())
        };
        // A reader that was just sent here may be ahead of what the leader has told us.
        if from > view.mark.high_watermark {
            return Ok(fetched(&view, Taken::default(), Vec::new()));
        }
        check(&view, from)?;
        let (log, range) = (self.readable(homes), view.range(from, isolation));
        let read = || logs.read_records(&log, &view, range.clone(), size_bytes_max, range.end);
        let taken = logs.read_patiently(self.partition, read).await?;
        let aborted = match (isolation, taken.end_offset) {
            (Isolation::ReadCommitted, Some(end)) => self.aborted_between(&view, from, end)?,
            (Isolation::ReadCommitted, None) | (Isolation::ReadUncommitted, _) => Vec::new(),
        };
        Ok(fetched(&view, taken, aborted))
    }

    /// Whether there are records from `from` on, which only slots have.
    pub(crate) fn is_on_slots(&self, from: Offset) -> bool {
        self.high_watermark().is_some_and(|end| from < end)
    }

    /// Begins to read what [`FollowerLog::fetch_as`] will be asked for.
    pub(crate) fn begin_fetch(&self, isolation: Isolation, from: Offset, size_bytes_max: usize) {
        let Some(logs) = self.logs.upgrade() else { return };
        let (view, homes) = {
            let state = lock(&self.state);
            let Some(view) = state.follower.view().cloned() else { return };
            (view, state.homes.clone())
        };
        if view.check(from).is_ok() {
            let range = view.range(from, isolation);
            logs.begin_read(&self.readable(homes), &view, range, size_bytes_max);
        }
    }

    fn readable(&self, homes: Homes) -> ReadableLog {
        ReadableLog { partition: self.partition, homes, last_slot: Arc::clone(&self.last_slot) }
    }

    /// What a read from `from` on says of the log, without a record.
    pub fn peek(&self, from: Offset) -> Result<Fetched, FetchError> {
        let view = self.view().ok_or(FetchError::Unavailable)?;
        if from <= view.mark.high_watermark {
            check(&view, from)?;
        }
        Ok(fetched(&view, Taken::default(), Vec::new()))
    }

    /// The aborted transactions with records in `from..until`, unless what was heard of them is
    /// from another leader than `view`.
    fn aborted_between(
        &self,
        view: &ReadView,
        from: Offset,
        until: Offset,
    ) -> Result<Vec<AbortedTransaction>, FetchError> {
        let aborted = lock(&self.state).follower.aborted_between(view, from, until);
        aborted.ok_or(FetchError::Unavailable)
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
        lock(&self.state).follower.view().cloned()
    }

    fn on_progress(&self, logs: &Logs, from: NodeId, progress: Progress) {
        let renewal = {
            let mut state = lock(&self.state);
            let Some(renewal) = state.follower.on_progress(logs.now(), from, progress) else {
                return;
            };
            state.readers.ring();
            renewal
        };
        send(logs, &renewal);
    }

    fn is_idle(&self, now: Instant) -> bool {
        lock(&self.state).follower.is_idle(now)
    }

    /// Asks the leader, if it is time to; false if no reader has come for long.
    fn renew(&self, logs: &Logs, now: Instant) -> bool {
        let renewal = lock(&self.state).follower.renew(now);
        send(logs, &renewal);
        renewal != Renewal::Idle
    }
}

fn send(logs: &Logs, renewal: &Renewal) {
    if let Renewal::Ask(leader, message) = renewal {
        // Asked again at the next turn if it can't be sent.
        let _asked_again = logs.deliver_follow(*leader, message);
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
        let Ownership { partition, generation, .. } = ownership;
        let log = {
            let mut all = lock(&self.0);
            let log = all.entry(partition).or_insert_with(|| {
                Arc::new(FollowerLog {
                    logs: Arc::downgrade(logs),
                    partition,
                    state: Mutex::new(State {
                        homes: homes.clone(),
                        follower: Follower::new(now, partition, generation, leader),
                        readers: Bells::default(),
                    }),
                    last_slot: Arc::new(AtomicU8::new(u8::MAX)),
                })
            });
            // In here, so that it is not taken for idle and forgotten.
            lock(&log.state).follower.on_used(now);
            Arc::clone(log)
        };
        {
            let mut state = lock(&log.state);
            if state.follower.follow(generation, leader) {
                state.homes = homes;
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
