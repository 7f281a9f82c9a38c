//! Which partitions led here a chore looks at: those in which something has changed since it looked last, and those
//! that it wants to look at by now. A partition in which nothing happens costs nothing.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use tokio::time::Interval;

use super::{Logs, PartitionLog, lock};
use crate::background::{Agenda, Backoff, Chore, Turns, ticks};

/// How often all partitions are looked at all the same: some of what work depends on changes without a word to the
/// partition, as the state of a mirror does.
const RESCAN_EVERY: Duration = Duration::from_secs(600);

/// By chore, the partitions that have changed since it looked.
#[derive(Debug, Default)]
pub(super) struct Changed([Mutex<Vec<PartitionId>>; Chore::OF_PARTITIONS.len()]);

/// Which chores have yet to look at a change, a bit for each.
#[derive(Debug, Default)]
pub(super) struct Unseen(AtomicU8);

impl Unseen {
    const ALL: u8 = (1 << Chore::OF_PARTITIONS.len()) - 1;

    fn set_all(&self) -> u8 {
        Self::ALL & !self.0.fetch_or(Self::ALL, Ordering::AcqRel)
    }

    fn clear(&self, chore: Chore) {
        self.0.fetch_and(!(1 << chore.index()), Ordering::AcqRel);
    }
}

impl PartitionLog {
    /// Has all chores look at the partition.
    pub(crate) fn note_change(&self) {
        let newly = self.unseen.set_all();
        if newly == 0 {
            return;
        }
        let Some(logs) = self.logs() else { return };
        for chore in Chore::OF_PARTITIONS {
            if newly & (1 << chore.index()) != 0 {
                lock(&logs.changed.0[chore.index()]).push(self.ownership().partition);
            }
        }
    }
}

/// The rounds of one chore over the partitions led here.
pub(crate) struct Rounds {
    chore: Chore,
    agenda: Agenda,
    ticks: Interval,
    turns: Turns,
    began_at: Instant,
    scanned_at: Option<Instant>,
}

impl Rounds {
    /// A round each `every` at most; `backoff` is for partitions whose work is refused.
    pub(crate) fn new(chore: Chore, every: Duration, backoff: Backoff) -> Self {
        Self {
            chore,
            agenda: Agenda::new(backoff),
            ticks: ticks(every),
            turns: Turns::default(),
            began_at: Instant::ZERO,
            scanned_at: None,
        }
    }

    /// Waits for the next round.
    pub(crate) async fn begin(&mut self, logs: &Logs) {
        self.ticks.tick().await;
        self.gather(logs);
    }

    fn gather(&mut self, logs: &Logs) {
        let now = logs.now();
        self.began_at = now;
        for partition in std::mem::take(&mut *lock(&logs.changed.0[self.chore.index()])) {
            self.agenda.want(partition, now);
        }
        if self.scanned_at.is_none_or(|last| now.since(last) >= RESCAN_EVERY) {
            self.scanned_at = Some(now);
            for log in logs.owned_logs() {
                self.agenda.want(log.ownership().partition, now);
            }
        }
    }

    /// The next partition of this round; `None` when it is over.
    pub(crate) async fn next(&mut self, logs: &Logs) -> Option<Arc<PartitionLog>> {
        loop {
            let partition = self.agenda.take_due(self.began_at)?;
            self.turns.next().await;
            match logs.owned(partition) {
                Some(log) => {
                    // Before it is looked at: what changes from here on is for the next round.
                    log.unseen.clear(self.chore);
                    logs.chores.on_looked(self.chore);
                    return Some(log);
                }
                None => self.agenda.forget(partition),
            }
        }
    }

    /// Looks at a partition again after a while, or sooner if it changes.
    pub(crate) fn again_in(&mut self, logs: &Logs, partition: PartitionId, after: Duration) {
        self.agenda.want(partition, logs.now() + after);
    }

    /// Work on a partition was done.
    pub(crate) fn on_done(&mut self, logs: &Logs, partition: PartitionId) {
        logs.chores.on_done(self.chore);
        self.agenda.on_done(partition);
    }

    /// Work on a partition was refused: it rests for longer each time.
    pub(crate) fn on_refused(&mut self, logs: &Logs, partition: PartitionId) {
        logs.chores.on_refused(self.chore);
        self.agenda.on_refused(partition, logs.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::testing::Bench;

    async fn looked_at(rounds: &mut Rounds, logs: &Logs) -> usize {
        rounds.gather(logs);
        let mut count = 0;
        while rounds.next(logs).await.is_some() {
            count += 1;
        }
        count
    }

    #[tokio::test]
    async fn a_partition_is_looked_at_when_it_has_changed_and_not_otherwise() {
        let bench = Bench::new().await;
        let logs = bench.log.logs().expect("the node runs");
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
        let mut rounds = Rounds::new(Chore::Retention, Duration::from_secs(1), backoff);
        assert_eq!(looked_at(&mut rounds, &logs).await, 1);
        assert_eq!(looked_at(&mut rounds, &logs).await, 0, "nothing has happened");
        for round in 0..3 {
            bench.write(0..1, round).await;
        }
        assert_eq!(looked_at(&mut rounds, &logs).await, 1, "once for all of it");
        let partition = bench.log.ownership().partition;
        rounds.again_in(&logs, partition, Duration::ZERO);
        assert_eq!(looked_at(&mut rounds, &logs).await, 1);
        bench.write(0..1, 3).await;
        rounds.on_refused(&logs, partition);
        assert_eq!(looked_at(&mut rounds, &logs).await, 0, "it rests");
        assert_eq!(logs.chores.count(Chore::Retention).refused, 1);
    }
}
