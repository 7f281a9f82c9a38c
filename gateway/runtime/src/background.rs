//! What loops in the background share, so that none of them has a price without a bound: ticks that do not pile up,
//! turns with everything else on the thread, a list of what has work and when, pauses that grow while work is
//! refused, and counts of both.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
pub use meridian_base::retry::Backoff;
use tokio::time::{Interval, MissedTickBehavior};

/// Items after which a loop lets others run.
const TURN_COUNT: u32 = 32;

/// Ticks that are `every` apart at least, however late one of them was.
pub fn ticks(every: Duration) -> Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Has a walk over many items let others run now and then.
#[derive(Debug, Default)]
pub struct Turns {
    count: u32,
}

impl Turns {
    /// Call before each item.
    pub async fn next(&mut self) {
        self.count += 1;
        if self.count.is_multiple_of(TURN_COUNT) {
            tokio::task::yield_now().await;
        }
    }
}

/// When one partition is to be looked at.
#[derive(Debug)]
struct Entry {
    due: Option<Instant>,
    backoff: Backoff,
    /// Its last work was refused: it is left alone until then, whatever comes.
    rests_until: Option<Instant>,
}

/// Which partitions have work, and when. Those without any are not in it.
#[derive(Debug)]
pub struct Agenda {
    backoff: Backoff,
    entries: HashMap<PartitionId, Entry>,
    /// Those that are due some time, the next one first.
    order: BTreeSet<(Instant, PartitionId)>,
}

impl Agenda {
    /// `backoff` is for each partition whose work is refused.
    pub fn new(backoff: Backoff) -> Self {
        Self { backoff, entries: HashMap::new(), order: BTreeSet::new() }
    }

    /// Has a partition looked at by `at`: sooner if that was wanted before, later if it rests.
    pub fn want(&mut self, partition: PartitionId, at: Instant) {
        let backoff = self.backoff;
        let fresh = || Entry { due: None, backoff, rests_until: None };
        let entry = self.entries.entry(partition).or_insert_with(fresh);
        let at = entry.rests_until.map_or(at, |until| at.max(until));
        match entry.due {
            Some(due) if due <= at => return,
            Some(due) => self.order.remove(&(due, partition)),
            None => false,
        };
        entry.due = Some(at);
        self.order.insert((at, partition));
    }

    /// The next partition that is due. It is in the list again only if it is wanted again.
    pub fn take_due(&mut self, now: Instant) -> Option<PartitionId> {
        let (due, partition) = self.order.first().copied()?;
        if due > now {
            return None;
        }
        self.order.pop_first();
        if let Some(entry) = self.entries.get_mut(&partition) {
            entry.due = None;
            entry.rests_until = None;
            if entry.backoff == self.backoff {
                self.entries.remove(&partition);
            }
        }
        Some(partition)
    }

    /// Its work was refused: it rests, and is due again then.
    pub fn on_refused(&mut self, partition: PartitionId, now: Instant) {
        self.want(partition, now);
        let Some(entry) = self.entries.get_mut(&partition) else { return };
        let until = now + entry.backoff.pause();
        entry.rests_until = Some(until);
        if let Some(due) = entry.due.replace(until) {
            self.order.remove(&(due, partition));
        }
        self.order.insert((until, partition));
    }

    /// Its work was done: the next refusal is the first one.
    pub fn on_done(&mut self, partition: PartitionId) {
        let Some(entry) = self.entries.get_mut(&partition) else { return };
        entry.backoff.reset();
        if entry.due.is_none() {
            self.entries.remove(&partition);
        }
    }

    /// It is not this node's any more.
    pub fn forget(&mut self, partition: PartitionId) {
        if let Some(due) = self.entries.remove(&partition).and_then(|entry| entry.due) {
            self.order.remove(&(due, partition));
        }
    }
}

/// What a node does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chore {
    /// Lets go of records that topics no longer keep.
    Retention,
    /// Packs and tends cold records.
    Cold,
    /// Compacts logs by key.
    Compaction,
    /// Frees copies that nobody needs.
    Copies,
    /// Rebuilds the state of partitions that were taken over.
    Rebuild,
    /// Shortens the logs of group offsets.
    OffsetCompaction,
    /// Has partitions decided anew that this node is to lead and does not.
    Reclaim,
}

impl Chore {
    /// Those that look at partitions in which something has changed.
    pub const OF_PARTITIONS: [Self; 4] =
        [Self::Retention, Self::Cold, Self::Compaction, Self::Copies];
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Retention,
        Self::Cold,
        Self::Compaction,
        Self::Copies,
        Self::Rebuild,
        Self::OffsetCompaction,
        Self::Reclaim,
    ];

    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retention => "retention",
            Self::Cold => "cold",
            Self::Compaction => "compaction",
            Self::Copies => "copies",
            Self::Rebuild => "rebuild",
            Self::OffsetCompaction => "offset_compaction",
            Self::Reclaim => "reclaim",
        }
    }

    /// Place in the counts.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// How often a chore found work, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChoreCount {
    /// Partitions looked at.
    pub looked: u64,
    /// Pieces of work done.
    pub done: u64,
    /// Pieces of work that were refused, and are tried again later.
    pub refused: u64,
}

impl std::ops::Add for ChoreCount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            looked: self.looked + other.looked,
            done: self.done + other.done,
            refused: self.refused + other.refused,
        }
    }
}

/// What chores have done since the node began.
#[derive(Debug, Default)]
pub struct ChoreCounters([[AtomicU64; 3]; Chore::ALL.len()]);

impl ChoreCounters {
    fn add(&self, chore: Chore, counter: usize) {
        self.0[chore.index()][counter].fetch_add(1, Ordering::Relaxed);
    }

    /// The chore has looked at one item.
    pub fn on_looked(&self, chore: Chore) {
        self.add(chore, 0);
    }

    /// The chore has done the work of one item.
    pub fn on_done(&self, chore: Chore) {
        self.add(chore, 1);
    }

    /// The work of one item was refused.
    pub fn on_refused(&self, chore: Chore) {
        self.add(chore, 2);
    }

    /// The counts of one chore now.
    pub fn count(&self, chore: Chore) -> ChoreCount {
        let get = |counter: usize| self.0[chore.index()][counter].load(Ordering::Relaxed);
        ChoreCount { looked: get(0), done: get(1), refused: get(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn agenda() -> Agenda {
        Agenda::new(Backoff::new(Duration::from_secs(1), Duration::from_secs(4)))
    }

    const ONE: PartitionId = PartitionId::new(1);
    const TWO: PartitionId = PartitionId::new(2);

    #[test]
    fn what_has_no_work_is_not_looked_at() {
        let mut agenda = agenda();
        assert_eq!(agenda.take_due(at(9)), None);
        agenda.want(ONE, at(5));
        agenda.want(TWO, at(7));
        agenda.want(TWO, at(3));
        agenda.want(TWO, at(8));
        assert_eq!(agenda.take_due(at(2)), None);
        assert_eq!(agenda.take_due(at(6)), Some(TWO), "the earliest wish counts");
        assert_eq!(agenda.take_due(at(6)), Some(ONE));
        assert_eq!(agenda.take_due(at(99)), None);
        assert!(agenda.entries.is_empty(), "what nobody wants takes no memory");
        agenda.want(ONE, at(1));
        agenda.forget(ONE);
        assert_eq!(agenda.take_due(at(99)), None);
    }

    #[test]
    fn what_is_refused_rests_longer_each_time_whatever_is_wanted_meanwhile() {
        let mut agenda = agenda();
        let mut now = at(0);
        for pause in [1, 2, 4, 4] {
            agenda.on_refused(ONE, now);
            agenda.want(ONE, now);
            let until = now + Duration::from_secs(pause);
            let before = Instant::from_micros(until.as_micros() - 1);
            assert_eq!(agenda.take_due(before), None);
            assert_eq!(agenda.take_due(until), Some(ONE));
            now = until;
        }
        agenda.on_done(ONE);
        agenda.on_refused(ONE, now);
        assert_eq!(agenda.take_due(now + Duration::from_secs(1)), Some(ONE));
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_that_were_missed_do_not_come_all_at_once() {
        let mut ticks = ticks(Duration::from_secs(1));
        ticks.tick().await;
        tokio::time::advance(Duration::from_secs(10)).await;
        ticks.tick().await;
        let begun = tokio::time::Instant::now();
        ticks.tick().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(1));
    }
}
