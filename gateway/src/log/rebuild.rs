//! Rebuilds what the partitions hold that were taken over: newest checkpoint, and replay of what comes after it. A few
//! at a time, those first that somebody waits for; all of them at once would only make each other late.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::id::PartitionId;
use meridian_base::topology::Slot;
use meridian_broker::replica::rebuild::{Rebuild, RebuildError, RebuildPlan};

use super::partition_log::PartitionLog;
use super::reader::ReadFailed;
use super::{Logs, lock};
use crate::background::{Backoff, Chore};

/// Partitions that are rebuilt at a time: enough to keep nine disks busy.
const REBUILD_COUNT_MAX: usize = 16;
/// Most bytes of the log read at once on replay.
const READ_SIZE_BYTES: u32 = 4 << 20;
/// Pauses before a partition whose records could not be read has its next turn.
const PAUSE_MIN: Duration = Duration::from_millis(300);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Why a partition's state could not be rebuilt yet.
#[derive(Debug, thiserror::Error)]
enum NotRebuilt {
    #[error(transparent)]
    Read(#[from] ReadFailed),
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    #[error("the node is going down")]
    GoingDown,
}

/// A partition whose state is to be rebuilt.
pub(super) struct Job {
    pub(super) log: Arc<PartitionLog>,
    pub(super) plan: RebuildPlan,
}

impl Job {
    fn partition(&self) -> PartitionId {
        self.log.ownership().partition
    }
}

/// What waits for its turn. Pure.
struct Queue<J> {
    jobs: HashMap<PartitionId, (Turn, J)>,
    order: BTreeSet<(Turn, PartitionId)>,
    running_count: usize,
    next_number: u64,
}

/// When a job has its turn: those that somebody waits for come first, each kind in the order in which it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    is_idle: bool,
    number: u64,
}

impl<J> Default for Queue<J> {
    fn default() -> Self {
        Self { jobs: HashMap::new(), order: BTreeSet::new(), running_count: 0, next_number: 0 }
    }
}

impl<J> Queue<J> {
    fn turn(&mut self, is_idle: bool) -> Turn {
        self.next_number += 1;
        Turn { is_idle, number: self.next_number }
    }

    /// Adds a job; one of an earlier leader of the partition goes.
    fn push(&mut self, partition: PartitionId, is_idle: bool, job: J) {
        let turn = self.turn(is_idle);
        if let Some((earlier, _)) = self.jobs.insert(partition, (turn, job)) {
            self.order.remove(&(earlier, partition));
        }
        self.order.insert((turn, partition));
    }

    /// Somebody waits for a partition.
    fn urge(&mut self, partition: PartitionId) {
        if !self.jobs.get(&partition).is_some_and(|(turn, _)| turn.is_idle) {
            return;
        }
        let urgent = self.turn(false);
        if let Some((turn, _)) = self.jobs.get_mut(&partition) {
            let idle = std::mem::replace(turn, urgent);
            self.order.remove(&(idle, partition));
            self.order.insert((urgent, partition));
        }
    }

    /// The next job, unless enough are running.
    fn begin(&mut self) -> Option<J> {
        if self.running_count >= REBUILD_COUNT_MAX {
            return None;
        }
        let (_, partition) = self.order.pop_first()?;
        let (_, job) = self.jobs.remove(&partition)?;
        self.running_count += 1;
        Some(job)
    }

    fn end(&mut self) {
        self.running_count -= 1;
    }
}

/// What is to be rebuilt.
#[derive(Default)]
pub(super) struct Rebuilds(Mutex<Queue<(Job, Backoff)>>);

impl Logs {
    /// Somebody waits for a partition: its state is rebuilt before that of those that nobody asks for.
    pub(super) fn urge(&self, partition: PartitionId) {
        lock(&self.rebuilds.0).urge(partition);
    }

    /// Has a partition's state rebuilt when it is its turn; one of which there is nothing to read, at once.
    pub(super) fn rebuild(self: &Arc<Self>, job: Job) {
        if job.plan.is_empty() {
            let rebuilt = Rebuild::begin(&job.plan, self.replay_time_ms());
            return self.finish_recovery(&job.log, rebuilt);
        }
        self.rebuild_after(job, Backoff::new(PAUSE_MIN, PAUSE_MAX));
    }

    fn rebuild_after(self: &Arc<Self>, job: Job, backoff: Backoff) {
        let is_idle = !job.log.is_waited_for();
        lock(&self.rebuilds.0).push(job.partition(), is_idle, (job, backoff));
        self.begin_rebuilds();
    }

    fn begin_rebuilds(self: &Arc<Self>) {
        loop {
            let Some((job, backoff)) = lock(&self.rebuilds.0).begin() else { return };
            let logs = Arc::clone(self);
            self.runtime.spawn(async move { logs.run_rebuild(job, backoff).await });
        }
    }

    async fn run_rebuild(self: Arc<Self>, job: Job, mut backoff: Backoff) {
        let mut woken = std::pin::pin!(self.readable.comes_back());
        // A slot that comes back before the read has failed counts.
        woken.as_mut().enable();
        let rebuilt = match job.log.is_opening() {
            true => Some(self.rebuild_state(&job).await),
            false => None,
        };
        lock(&self.rebuilds.0).end();
        self.begin_rebuilds();
        match rebuilt {
            None => {}
            Some(Ok(rebuilt)) => {
                self.chores.on_done(Chore::Rebuild);
                self.finish_recovery(&job.log, rebuilt);
            }
            Some(Err(error)) => {
                self.chores.on_refused(Chore::Rebuild);
                let (partition, pause) = (job.partition(), backoff.pause());
                tracing::warn!(?partition, %error, ?pause, "state not rebuilt yet; trying again");
                if let NotRebuilt::Read(failed) = &error {
                    self.readable.note(partition, failed);
                }
                // A slot that is back ends the pause, but for its shortest part: nodes come back
                // one by one, and each late answer counts.
                let shortest = PAUSE_MIN.min(pause);
                tokio::time::sleep(shortest).await;
                let _back_or_over = tokio::time::timeout(pause - shortest, woken).await;
                self.rebuild_after(job, backoff);
            }
        }
    }

    /// Reads all that is wanted.
    async fn rebuild_state(self: &Arc<Self>, job: &Job) -> Result<Rebuild, NotRebuilt> {
        let mut rebuild = Rebuild::begin(&job.plan, self.replay_time_ms());
        let mut last: Option<Slot> = None;
        while let Some(request) = rebuild.wanted(READ_SIZE_BYTES) {
            let home = job.log.homes.of(request.generation)?;
            let (slot, blobs) = self.read_blobs(home, request, last).await?;
            last = Some(slot);
            let took = off_thread(move || rebuild.take(blobs).map(|()| rebuild));
            rebuild = took.await??;
        }
        Ok(rebuild)
    }
}

/// Decodes on a thread that may take its time: those that serve carry heartbeats too.
async fn off_thread<R: Send + 'static>(
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, NotRebuilt> {
    tokio::task::spawn_blocking(work).await.map_err(|_| NotRebuilt::GoingDown)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(number: u64) -> PartitionId {
        PartitionId::new(number)
    }

    #[test]
    fn what_somebody_waits_for_comes_first_and_no_more_than_so_many_run() {
        let mut queue = Queue::default();
        let count = REBUILD_COUNT_MAX as u64 + 9;
        for number in 0..count {
            queue.push(id(number), true, number);
        }
        queue.urge(id(20));
        queue.urge(id(7));
        queue.urge(id(20));
        queue.urge(id(999));
        let begun: Vec<u64> = std::iter::from_fn(|| queue.begin()).collect();
        assert_eq!(begun.len(), REBUILD_COUNT_MAX);
        assert_eq!(begun[..4], [20, 7, 0, 1]);
        queue.end();
        assert_eq!(queue.begin(), Some(15));
        assert_eq!(queue.begin(), None, "one has ended, and one has begun");
    }

    #[test]
    fn the_job_of_an_earlier_leader_is_replaced() {
        let mut queue = Queue::default();
        queue.push(id(1), true, "earlier");
        queue.push(id(1), true, "later");
        assert_eq!(queue.begin(), Some("later"));
        assert_eq!(queue.begin(), None);
    }
}
