//! Long faults, crossed with what leaders and disks do by themselves.
//!
//! ```text
//! calm, work piles up -> the fault is there, and work is due -> it ends, all work is done -> all is read
//! ```
//!
//! Nothing is left to chance but what clients do: in each run of a fault all work is due while it lasts, or the cell is
//! not made, which counts as a failure. What is spent is bounded all the time, as everywhere ([`crate::cost`]).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use meridian_base::id::Incarnation;
use meridian_base::topology::{Geometry, Slot, SlotConfig, SlotState};
use meridian_storage::limits::SizeLimits;
use meridian_storage::mutation::Mutations;

use crate::check::{Promise, Verdict, Violation};
use crate::cost::{Bounds, Chore, Peaks};
use crate::objects::Trouble;
use crate::sim::Sim;
use crate::topics::Class;
use crate::trace::Detail;
use crate::world::{World, WorldConfig};

/// Until all partitions are served by one node; and then until work has piled up.
const SERVED: Duration = Duration::from_secs(5);
const CALM: Duration = Duration::from_secs(25);
/// What was on its way when the fault began is answered by then; writes stop after so many of these, if they do.
const BEFORE_IT_COUNTS: Duration = Duration::from_secs(2);
const STOPPED_AFTER_MAX: usize = 15;
/// How often clients are made busy.
const ROUSE_EVERY: Duration = Duration::from_millis(1_500);
const FAULT: Duration = Duration::from_secs(40);
/// Within this time after the fault all work is done.
const DONE_WITHIN: Duration = Duration::from_secs(40);
/// Records that are not deleted: there must be something to pack.
const KEPT_COUNT_MIN: usize = 5_000;
/// Who leads all partitions, a node beside it whose disk is lost, and the datacenter that goes away.
const LEADER: usize = 0;
const WIPED: usize = 1;
const AWAY: usize = 2;

/// What is wrong for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// The disks of a datacenter are full, and each record must be in three.
    DisksFull,
    /// The object store takes nothing.
    ObjectsAway,
    /// A datacenter is cut off, and each record must be in three (`min.insync.datacenters`).
    TooFewInSync,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::DisksFull, Self::ObjectsAway, Self::TooFewInSync];

    fn begin(self, world: &mut World) {
        match self {
            Self::TooFewInSync => {
                let side = world.network.endpoints_of(AWAY);
                world.network.isolate(&side);
            }
            Self::DisksFull => {
                for slot in world.geometry().slots_of(AWAY).iter() {
                    let node = world.node_of(slot);
                    world.nodes[node].disk.set_full(true);
                }
            }
            Self::ObjectsAway => {
                world.objects.set_trouble(Trouble { refused: 1_000, ..Trouble::NONE });
            }
        }
    }

    /// Whether no record is acknowledged while it lasts.
    fn stops_writes(self) -> bool {
        matches!(self, Self::DisksFull | Self::TooFewInSync)
    }
}

/// What is to be done meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Chore(Chore),
    /// A disk that was replaced is filled again.
    Healing,
}

impl Work {
    const ALL: [Self; 4] = [
        Self::Chore(Chore::Packing),
        Self::Chore(Chore::Compaction),
        Self::Chore(Chore::Shortening),
        Self::Healing,
    ];
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chore(chore) => write!(f, "{chore:?}"),
            Self::Healing => write!(f, "Healing"),
        }
    }
}

/// What a run has shown.
#[derive(Debug)]
pub struct Made {
    /// By kind of work, how often it was tried during the fault; and done since it began, or after it if it stops writes.
    tried_and_done: BTreeMap<Work, (u64, u64)>,
    /// The most that was needed of each bound on cost.
    peaks: Peaks,
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (work, (tried, done)) in &self.tried_and_done {
            write!(f, " {work} {tried} tries, {done} done;")?;
        }
        write!(f, " {:?}", self.peaks)
    }
}

/// All that has piled up is packed at once, and each manifest names all pieces, which are tiny here.
const BOUNDS: Bounds =
    Bounds { put_bytes_min: 8 << 20, written_bytes_min: 40 << 20, ..Bounds::USUAL };

fn config(seed: u64, fault: Fault, mutations: Mutations) -> WorldConfig {
    WorldConfig {
        seed,
        geometry: Geometry::Mirror3Dc,
        spare_count: 0,
        is_tiered: false,
        classes: &[Class::Objects],
        datacenter_count_min: if fault.stops_writes() { 3 } else { 1 },
        mutations,
        bounds: BOUNDS,
        sizes: SizeLimits::SMALL,
        partition_count: 2,
        producer_count: 1,
        source_count: 0,
        transactor_count: 0,
        keyed_count: 1,
        recreation_count: 0,
        has_applications: true,
        client_id_min: 0,
        is_asleep: false,
        foreign_count: 0,
        kept_count_min: KEPT_COUNT_MIN,
        metadata_mutation: None,
        mirror_mutation: None,
        detail: Detail::Count,
    }
}

/// One fault with all work, with every rule in force.
pub fn run(seed: u64, fault: Fault) -> Result<Made, Violation> {
    Matrix::new(seed, fault, Mutations::NONE)?.run()
}

/// `min.insync.datacenters=3` without a datacenter, with a broken rule.
pub fn too_few_in_sync(mutations: Mutations) -> Verdict {
    Matrix::new(1, Fault::TooFewInSync, mutations)?.run().map(drop)
}

struct Matrix {
    sim: Sim,
    fault: Fault,
}

impl Matrix {
    fn new(seed: u64, fault: Fault, mutations: Mutations) -> Result<Self, Violation> {
        let world = World::new(config(seed, fault, mutations))?;
        let mut sim = Sim::new(seed, world);
        sim.begin();
        Ok(Self { sim, fault })
    }

    /// Goes on with busy clients.
    fn go_on(&mut self, duration: Duration) -> Verdict {
        let end = self.sim.world.now + duration;
        while self.sim.world.now < end {
            self.sim.world.rouse_producers();
            let next = end.min(self.sim.world.now + ROUSE_EVERY);
            while self.sim.world.now < next {
                self.sim.step(false)?;
            }
        }
        Ok(())
    }

    fn run(mut self) -> Result<Made, Violation> {
        self.sim.world.set_chores(false);
        self.sim.world.keep_leaders();
        self.go_on(SERVED)?;
        for partition in self.sim.world.partitions.clone() {
            self.sim.world.assign(partition, LEADER);
        }
        self.go_on(CALM)?;
        let made = self.during()?;
        self.sim.heal()?;
        self.sim.converge("every batch is answered and every partition served", Sim::is_settled)?;
        self.sim.begin_final_reads();
        self.sim.converge("every log is read to its end", Sim::is_read)?;
        self.sim.conclude(|_| true)?;
        Ok(made)
    }

    /// The fault, and until all work is done.
    fn during(&mut self) -> Result<Made, Violation> {
        let life = self.life();
        let world = &mut self.sim.world;
        world.stop_node(WIPED);
        world.nodes[WIPED].disk.wipe();
        self.fault.begin(world);
        world.set_chores(true);
        let (begun, done_at_first) = (self.tried(life), self.done(life));
        self.go_on(BEFORE_IT_COUNTS)?;
        self.sim.world.start_node(WIPED)?;
        let acknowledged_count = self.acknowledged_before_it_counts()?;
        self.go_on(FAULT)?;
        let tried = self.tried(life);
        let since = self.sim.world.checker.acknowledged_count() - acknowledged_count;
        if self.fault.stops_writes() != (since == 0) {
            return self.not_made(format!("{since} records were acknowledged during it"));
        }
        let done = if self.fault.stops_writes() { self.done(life) } else { done_at_first };
        self.sim.end_faults()?;
        let deadline = self.sim.world.now + DONE_WITHIN;
        let is_over = |now: &BTreeMap<Work, u64>| {
            now.iter().all(|(work, it)| *it > if *work == Work::Healing { 0 } else { done[work] })
        };
        while !is_over(&self.done(life)) && self.sim.world.now < deadline {
            self.go_on(Duration::from_millis(500))?;
        }
        let (done_before, done) = (done, self.done(life));
        let mut tried_and_done = BTreeMap::new();
        for work in Work::ALL {
            let tried = tried[&work] - begun[&work];
            if tried == 0 {
                return self.not_made(format!("{work} was not due"));
            }
            // A disk may be whole again while the fault lasts.
            let before = if work == Work::Healing { 0 } else { done_before[&work] };
            let done = done[&work] - before;
            if done == 0 {
                let seen = Made { tried_and_done, peaks: self.sim.world.cost.peaks() };
                let fault = self.fault;
                let detail =
                    format!("{fault:?}: {work} is not done {DONE_WITHIN:?} after it;{seen}");
                return Err(Violation { promise: Promise::GoesOn, detail });
            }
            tried_and_done.insert(work, (tried, done));
        }
        Ok(Made { tried_and_done, peaks: self.sim.world.cost.peaks() })
    }

    /// Waits, if the fault stops writes, until it does: a full disk has room in the files that there are.
    fn acknowledged_before_it_counts(&mut self) -> Result<u64, Violation> {
        let count = |matrix: &Self| matrix.sim.world.checker.acknowledged_count();
        let mut known = count(self);
        for _ in 0..STOPPED_AFTER_MAX {
            self.go_on(BEFORE_IT_COUNTS)?;
            let before = std::mem::replace(&mut known, count(self));
            if !self.fault.stops_writes() || before == known {
                break;
            }
        }
        Ok(known)
    }

    fn not_made(&self, what: String) -> Result<Made, Violation> {
        let detail = format!("{:?}: {what}", self.fault);
        Err(Violation { promise: Promise::IsMade, detail })
    }

    /// How often each kind of work was tried.
    fn tried(&self, life: Option<Incarnation>) -> BTreeMap<Work, u64> {
        let tried = |work| match work {
            Work::Chore(chore) => self.sim.world.cost.tried_count(chore),
            Work::Healing => u64::from(self.life() != life),
        };
        Work::ALL.into_iter().map(|work| (work, tried(work))).collect()
    }

    /// How often it was done.
    fn done(&self, life: Option<Incarnation>) -> BTreeMap<Work, u64> {
        let done = |work| match work {
            Work::Chore(chore) => self.sim.world.cost.done_count(chore),
            Work::Healing => u64::from(self.life() != life && self.is_whole()),
        };
        Work::ALL.into_iter().map(|work| (work, done(work))).collect()
    }

    fn slot(&self) -> Option<SlotConfig> {
        self.sim.world.group().slot(Slot::new(WIPED as u8)).copied()
    }

    /// The life of the disk that is replaced.
    fn life(&self) -> Option<Incarnation> {
        self.slot().map(|slot| slot.incarnation)
    }

    /// Whether the metadata calls it good.
    fn is_whole(&self) -> bool {
        self.slot().is_some_and(|slot| slot.state == SlotState::Good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_work_costs_little_and_is_done_whatever_was_wrong_for_long() {
        for fault in Fault::ALL {
            run(1, fault).unwrap_or_else(|violation| panic!("{violation}"));
        }
    }
}
