//! Two clusters and the way between them: one mirrors all that the other has.
//!
//! ```text
//!  home: nine nodes, producers, readers         abroad: three nodes, readers
//!  leaders  <---- questions over the way -----  leaders with the product's machine
//!           ----- answers: late, lost, cut -->  append at the source's offsets
//! ```
//!
//! Each is a world of its own with its own nemesis; both have one clock. Whatever is committed abroad is compared,
//! byte for byte, with what home has served.

mod promotion;
mod way;

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_base::topology::Geometry;
use meridian_jepsen_runner::chance::Chance;
use meridian_mirror::mutation::Mutation;
use meridian_mirror::rows::Stage;
use meridian_mirror::state::State;

use self::promotion::Promotion;
use self::way::Way;
use crate::check::{Prefix, Promise, Verdict, Violation};
use crate::net::Endpoint;
use crate::node::Packet;
use crate::report::{Counters, Report};
use crate::sim::{CONVERGE_WITHIN, Sim, SimConfig};
use crate::value::PlacedBatch;
use crate::world::{Event, World, WorldConfig};

/// How often mirrors are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Mean time from one fault of the way, or of those at its ends, to the next.
const INTERVAL: Duration = Duration::from_secs(3);
/// Records that home's readers leave at least: mirrors that are cut off for long should not be overtaken.
const KEPT_COUNT_MIN: usize = 2_500;
/// How many runs end with a failover of each partition.
const FAILS_OVER_PER_MILLE: u32 = 500;
/// Numbers of clients abroad begin here.
const ABROAD_CLIENT_ID_MIN: u32 = 1_000;

/// The cluster that is mirrored.
const HOME: usize = 0;
/// The one that mirrors it.
const ABROAD: usize = 1;

/// Runs one seed.
pub(crate) fn run(config: SimConfig) -> Report {
    match Federation::new(config) {
        Ok(federation) => federation.run(config),
        Err(violation) => {
            let counters = Counters::default();
            Report { seed: config.seed, counters, digest: 0, violation: Some(violation) }
        }
    }
}

struct Federation {
    sides: [Sim; 2],
    way: Way,
    chance: Chance,
    now: Instant,
    begun_at: Instant,
    faults_at: Option<Instant>,
    looks_at: Instant,
    /// The end of the next append abroad, or of the next answer from home, kills whoever makes it.
    armed: [bool; 2],
    prefix: Prefix,
    promotions: Vec<Promotion>,
    mutation: Option<Mutation>,
}

impl Federation {
    fn new(config: SimConfig) -> Result<Self, Violation> {
        let mut chance = Chance::new(config.seed ^ 0xfede_7a7e);
        let home = WorldConfig { kept_count_min: KEPT_COUNT_MIN, ..config.world() };
        let fails_over = chance.per_mille(FAILS_OVER_PER_MILLE);
        // What is open at a failover is aborted abroad, and may be committed at home.
        let transactor_count = if fails_over { 0 } else { home.transactor_count };
        let home = WorldConfig { transactor_count, ..home };
        let home =
            WorldConfig { keyed_count: 0, foreign_count: Geometry::OnePerDc.slot_count(), ..home };
        let abroad = WorldConfig {
            seed: chance.bits(),
            geometry: Geometry::OnePerDc,
            is_asleep: true,
            client_id_min: ABROAD_CLIENT_ID_MIN,
            source_count: 0,
            transactor_count: 0,
            foreign_count: home.geometry.slot_count(),
            ..home
        };
        let sides =
            [Sim::new(home.seed, World::new(home)?), Sim::new(abroad.seed, World::new(abroad)?)];
        let now = sides[HOME].world.now;
        let way = Way::new(chance.branch());
        let faults_at = Some(now + INTERVAL);
        let (begun_at, looks_at) = (now, now);
        let (armed, prefix, mutation) = ([false; 2], Prefix::default(), config.mirror_mutation);
        let mut federation = Self {
            sides,
            way,
            chance,
            now,
            begun_at,
            faults_at,
            looks_at,
            armed,
            prefix,
            promotions: Vec::new(),
            mutation,
        };
        if fails_over {
            federation.plan_promotions(config.duration);
        }
        for partition in federation.partitions() {
            federation.sides[ABROAD].world.mirror(partition, Stage::Mirroring);
        }
        federation.sides.iter_mut().for_each(Sim::begin);
        Ok(federation)
    }

    fn partitions(&self) -> Vec<PartitionId> {
        self.sides[ABROAD].world.partitions.clone()
    }

    fn run(mut self, config: SimConfig) -> Report {
        let violation = self.live(config.duration).err();
        let mirrored_count = self.prefix.batch_count();
        let promotion_count = self.promotions.iter().filter(|it| it.end().is_some()).count() as u64;
        let [home, abroad] = self.sides;
        let home = home.report(config.seed, None);
        let abroad = abroad.report(config.seed, None);
        let simulated = home.counters.simulated;
        let mut counters = home.counters;
        counters.add(&abroad.counters);
        let counters = Counters { simulated, mirrored_count, promotion_count, ..counters };
        let digest = home.digest.rotate_left(1) ^ abroad.digest;
        Report { seed: config.seed, counters, digest, violation }
    }

    fn live(&mut self, duration: Duration) -> Verdict {
        let end = self.begun_at + duration;
        while self.now < end {
            self.step()?;
        }
        self.faults_at = None;
        self.armed = [false; 2];
        self.way.heal();
        self.sides.iter_mut().try_for_each(Sim::heal)?;
        self.converge("all is answered, served and mirrored", |it| {
            it.has_promoted()
                && it.sides.iter().all(Sim::is_settled)
                && it.partitions().into_iter().all(|of| it.is_equal(of))
        })?;
        self.sides.iter_mut().for_each(Sim::begin_final_reads);
        self.converge("every log is read to its end", |it| it.sides.iter().all(Sim::is_read))?;
        let ends = self.partitions().into_iter().map(|it| (it, self.promoted_end(it)));
        let ends: Vec<_> = ends.collect();
        let [home, abroad] = &mut self.sides;
        for (partition, end) in ends {
            abroad.world.checker.inherit(partition, &home.world.checker, end);
        }
        home.conclude(|_| true)?;
        // What was overtaken may end amid a transaction.
        abroad.conclude(|partition| !self.prefix.is_overtaken(partition))?;
        self.compare_final_logs()
    }

    fn converge(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Verdict {
        let deadline = self.now + CONVERGE_WITHIN;
        while !done(self) {
            if self.now >= deadline {
                let [home, abroad] = [&self.sides[HOME], &self.sides[ABROAD]].map(Sim::state);
                let mirrors: Vec<_> =
                    self.partitions().into_iter().map(|it| self.status(it)).collect();
                let detail = format!(
                    "not within {CONVERGE_WITHIN:?}: {what}; home {home}; abroad {abroad}; {mirrors:?}"
                );
                return Err(Violation { promise: Promise::ServesAgain, detail });
            }
            self.step()?;
        }
        Ok(())
    }

    /// The next event of either side.
    fn step(&mut self) -> Verdict {
        let next = |side: &Sim| side.world.next_at().unwrap_or(Instant::from_micros(u64::MAX));
        let side = usize::from(next(&self.sides[ABROAD]) < next(&self.sides[HOME]));
        self.now = self.now.max(next(&self.sides[side]));
        if self.faults_at.is_some_and(|at| at <= self.now) {
            self.break_something();
        }
        self.way.flap(self.now);
        self.sides[side].step(self.faults_at.is_some())?;
        self.carry_over(side)?;
        if self.now >= self.looks_at {
            self.looks_at = self.now + LOOK_EVERY;
            self.partitions().into_iter().try_for_each(|partition| self.look(partition))?;
            self.promote();
        }
        Ok(())
    }

    /// What has left one cluster goes to the other, and what was shown is compared.
    fn carry_over(&mut self, side: usize) -> Verdict {
        let mut abroad = std::mem::take(&mut self.sides[side].world.abroad);
        let other = &mut self.sides[1 - side].world;
        for (from, to, packet) in std::mem::take(&mut abroad.packets) {
            for delay in self.way.send() {
                let from = other.foreign_endpoint(from);
                let packet = Box::new(Packet::Link(packet.clone()));
                let arrived = Event::Packet { from, to: Endpoint(to), packet };
                other.queue.push(self.now + delay, arrived);
            }
        }
        for (producer, epoch, commit) in &abroad.decided {
            other.checker.decided((*producer, *epoch, 0), *commit);
        }
        for (partition, raw) in &abroad.raw {
            // What either has written since a promotion is its own.
            if self.promoted_end(*partition).is_some_and(|end| raw.next_offset > end) {
                continue;
            }
            match side {
                HOME => self.prefix.served(*partition, raw)?,
                _ => self.prefix.mirrored(*partition, raw)?,
            }
        }
        match side {
            HOME => self.check_rejoined(&abroad)?,
            _ => self.check_promoted(&abroad)?,
        }
        let owner = match side {
            HOME => abroad.raw.first().and_then(|(of, _)| self.leader(HOME, *of)),
            _ => abroad.mirroring.first().map(|(node, ..)| *node),
        };
        if let Some(node) = owner
            && std::mem::take(&mut self.armed[side])
        {
            self.kill(side, node);
        }
        Ok(())
    }

    fn leader(&self, side: usize, partition: PartitionId) -> Option<usize> {
        let owner = self.sides[side].world.owner(partition)?;
        Some(owner.node.get() as usize)
    }

    fn kill(&mut self, side: usize, node: usize) {
        let world = &mut self.sides[side].world;
        world.now = world.now.max(self.now);
        world.counters.fault_count += 1;
        world.stop_node(node);
        let delay = self.chance.around(Duration::from_secs(1));
        world.schedule(delay, Event::Restart { node });
    }

    fn break_something(&mut self) {
        self.faults_at = Some(self.now + self.chance.around(INTERVAL));
        match self.chance.below(6) {
            0 => self.armed[HOME] = true,
            1 => self.armed[ABROAD] = true,
            _ => self.way.worsen(self.now),
        }
        self.sides[HOME].world.counters.fault_count += 1;
    }

    fn status(&self, partition: PartitionId) -> Option<meridian_mirror::partition::Status> {
        self.sides[ABROAD].world.mirror_status(partition)
    }

    /// Whether a mirror has all that home has committed, or home has let go of what it needs.
    fn is_equal(&self, partition: PartitionId) -> bool {
        let ends = [HOME, ABROAD].map(|it| self.sides[it].world.bounds(partition));
        let status = self.status(partition);
        let [Some((_, home)), Some((_, abroad))] = ends else { return false };
        self.prefix.is_overtaken(partition)
            || self.promoted_end(partition).is_some() && self.is_apart(partition)
            || home == abroad && status.is_some_and(|status| status.state == State::Mirroring)
    }

    /// A mirror that has stopped has a reason to.
    fn look(&mut self, partition: PartitionId) -> Verdict {
        if self.is_leaving(partition) {
            return Ok(());
        }
        let stopped = self.sides[ABROAD].world.stopped_mirror(partition);
        let Some(status) = stopped else { return Ok(()) };
        // Without a leader nobody knows now where home begins.
        let Some((start, _)) = self.sides[HOME].world.bounds(partition) else { return Ok(()) };
        if matches!(status.state, State::Gap { .. }) && start > status.end {
            self.prefix.overtaken(partition);
            return Ok(());
        }
        let detail = format!("{partition:?} has stopped: {status:?}; home starts at {start}");
        Err(Violation { promise: Promise::MirrorsOn, detail })
    }

    /// Both logs are one as far as both go back.
    fn compare_final_logs(&self) -> Verdict {
        for partition in self.partitions() {
            let logs = [HOME, ABROAD].map(|side| {
                let clients = self.sides[side].world.clients.iter();
                clients.filter(|it| it.partition == partition).find_map(|it| it.final_log())
            });
            let [Some((home_start, home)), Some((abroad_start, abroad))] = logs else { continue };
            if self.prefix.is_overtaken(partition) {
                continue;
            }
            let start = home_start.max(abroad_start);
            let end = self.promoted_end(partition).unwrap_or(Offset::new(i64::MAX));
            let is_common = |it: &&PlacedBatch| it.base_offset >= start && it.next_offset() <= end;
            let [home, abroad] = [home, abroad].map(|log| log.iter().filter(is_common));
            if !home.clone().eq(abroad.clone()) {
                let differ = home.clone().zip(abroad.clone()).find(|(home, abroad)| home != abroad);
                let counts = (home.count(), abroad.count());
                let detail = format!("{partition:?}: {counts:?} batches, first other: {differ:?}");
                return Err(Violation { promise: Promise::ExactPrefix, detail });
            }
        }
        Ok(())
    }
}
