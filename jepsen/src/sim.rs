//! One run from its seed to its verdict: trouble, then healing, then the final read of everything.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::topology::Geometry;
use meridian_storage::erasure::Code;
use meridian_storage::limits::SizeLimits;
use meridian_storage::message::CommitMark;
use meridian_storage::mutation::Mutations;

use crate::check::{Promise, Verdict, Violation};
use crate::cost::Bounds;
use crate::faults::Nemesis;
use crate::federation;
use crate::report::{Counters, Report};
use crate::topics::{Class, is_internal};
use crate::trace::Detail;
use crate::world::{Event, World, WorldConfig};
use meridian_jepsen_runner::chance::Chance;

/// How often it is looked for partitions that are not served, or do not go on.
const CONTROL_EVERY: Duration = Duration::from_millis(250);
/// How long a partition may be without service before it gets another leader.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// Within this time after everything has healed all partitions serve and all is answered.
pub(crate) const CONVERGE_WITHIN: Duration = Duration::from_secs(30);

/// What a page, a view or a checkpoint of five minutes outgrows.
const TIGHT: SizeLimits =
    SizeLimits { message_size_bytes_max: 6 << 10, blob_size_bytes_max: 5 << 10 };
/// Records that are kept where there is to be much.
const KEPT_COUNT_MIN: usize = 1_500;
/// How long a partition may stand still that could go on.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Who uses the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Producers of all kinds, and readers: what the log promises.
    #[default]
    Log,
    /// Members of groups, with transactions and without: what coordinators promise.
    Groups,
}

/// What the cluster is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// Nine racks in three datacenters, with copies.
    #[default]
    #[value(name = "mirror-3-dc")]
    Mirror3Dc,
    /// Eight racks in one datacenter, with records in parts while their class says so.
    #[value(name = "block-4-2")]
    Block42,
    /// Nine racks in three datacenters, with stripes of what is old, while the class says so.
    Cold,
    /// Nine racks in three datacenters, and an object store that takes what is old, while the class says so.
    Object,
    /// Nine racks in three datacenters, each node with a fast disk and a capacity disk.
    Tiers,
    /// Nine racks in three datacenters, and a second cluster of three that mirrors all of it.
    Federation,
    /// Nine racks in three datacenters, with much of everything in logs that are hardly shortened, and room for little in
    /// a message.
    Sizes,
}

impl Shape {
    fn geometry(self) -> Geometry {
        match self {
            Self::Block42 => Geometry::Block42,
            Self::Mirror3Dc
            | Self::Cold
            | Self::Object
            | Self::Tiers
            | Self::Federation
            | Self::Sizes => Geometry::Mirror3Dc,
        }
    }

    fn spare_count(self) -> usize {
        match self {
            Self::Mirror3Dc | Self::Object | Self::Tiers | Self::Federation | Self::Sizes => 0,
            Self::Block42 => 2,
            Self::Cold => 1,
        }
    }

    fn sizes(self) -> SizeLimits {
        match self {
            Self::Sizes => TIGHT,
            _ => SizeLimits::SMALL,
        }
    }

    fn classes(self) -> &'static [Class] {
        match self {
            Self::Mirror3Dc | Self::Tiers | Self::Federation | Self::Sizes => &[],
            Self::Block42 => &[Class::Parts, Class::Copies],
            Self::Object => &[Class::Objects, Class::Copies, Class::Cold(Code::Rs54)],
            Self::Cold => &[Class::Cold(Code::Rs54), Class::Cold(Code::Block42), Class::Copies],
        }
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct SimConfig {
    /// Decides everything.
    pub seed: u64,
    /// Who uses the cluster.
    pub workload: Workload,
    /// What the cluster is made of.
    pub shape: Shape,
    /// How long trouble lasts, in virtual time.
    pub duration: Duration,
    /// The broken rule, if any.
    pub mutations: Mutations,
    /// The broken rule of the metadata, if any.
    pub metadata_mutation: Option<meridian_consensus::mutation::Mutation>,
    /// The broken rule of mirrors, if any.
    pub mirror_mutation: Option<meridian_mirror::mutation::Mutation>,
    /// What is kept of every event.
    pub detail: Detail,
}

impl SimConfig {
    /// A run of `duration` with every rule in force, which counts its events.
    pub fn new(seed: u64, workload: Workload, duration: Duration) -> Self {
        let (shape, mutations, detail) = (Shape::default(), Mutations::NONE, Detail::Count);
        let (metadata_mutation, mirror_mutation) = (None, None);
        Self {
            seed,
            workload,
            shape,
            duration,
            mutations,
            metadata_mutation,
            mirror_mutation,
            detail,
        }
    }

    pub(crate) fn world(self) -> WorldConfig {
        let log = WorldConfig {
            seed: self.seed,
            geometry: self.shape.geometry(),
            spare_count: self.shape.spare_count(),
            is_tiered: self.shape == Shape::Tiers,
            classes: self.shape.classes(),
            datacenter_count_min: 1,
            mutations: self.mutations,
            bounds: Bounds::USUAL,
            sizes: self.shape.sizes(),
            partition_count: 3,
            producer_count: 2,
            source_count: 1,
            transactor_count: if self.shape == Shape::Sizes { 4 } else { 2 },
            keyed_count: 1,
            recreation_count: if self.shape == Shape::Object { 6 } else { 0 },
            has_applications: false,
            client_id_min: 0,
            is_asleep: false,
            foreign_count: 0,
            kept_count_min: if self.shape == Shape::Sizes { KEPT_COUNT_MIN } else { 0 },
            metadata_mutation: self.metadata_mutation,
            mirror_mutation: self.mirror_mutation,
            detail: self.detail,
        };
        match self.workload {
            Workload::Log => log,
            Workload::Groups => WorldConfig {
                partition_count: 2,
                producer_count: 0,
                source_count: 0,
                transactor_count: 0,
                keyed_count: 0,
                has_applications: true,
                ..log
            },
        }
    }
}

/// Runs one seed.
pub fn run(config: SimConfig) -> Report {
    if config.shape == Shape::Federation {
        return federation::run(config);
    }
    let mut sim = match World::new(config.world()) {
        Ok(world) => Sim::new(config.seed, world),
        Err(violation) => {
            let counters = Counters::default();
            return Report { seed: config.seed, counters, digest: 0, violation: Some(violation) };
        }
    };
    let violation = sim.run(config.duration).err();
    sim.report(config.seed, violation)
}

/// One cluster and what breaks it.
pub(crate) struct Sim {
    pub(crate) world: World,
    nemesis: Nemesis,
    chance: Chance,
    begun_at: Instant,
    /// Since when each partition has not been served.
    unserved_since: BTreeMap<PartitionId, Instant>,
    /// Where each partition stands still, as what it waits for, and since when.
    still_since: BTreeMap<PartitionId, (Option<CommitMark>, Instant)>,
}

impl Sim {
    pub(crate) fn new(seed: u64, world: World) -> Self {
        let mut root = Chance::new(!seed);
        let nemesis = Nemesis::new(root.branch());
        let unserved_since = BTreeMap::new();
        let begun_at = world.now;
        let still_since = BTreeMap::new();
        Self { world, nemesis, chance: root.branch(), begun_at, unserved_since, still_since }
    }

    /// From now on faults come.
    pub(crate) fn begin(&mut self) {
        self.world.schedule(Duration::ZERO, Event::Controller);
        self.world.begin_supervision();
        self.world.schedule(Duration::from_secs(2), Event::Nemesis);
    }

    /// Carries out the next event. Without faults, those that were planned do not come.
    pub(crate) fn step(&mut self, with_faults: bool) -> Verdict {
        match self.world.take_event()? {
            // Most faults fall into a moment when much is under way.
            Some(Event::Nemesis) if with_faults => {
                let busy = self.chance.per_mille(700);
                if busy {
                    self.world.rouse_producers();
                }
                let delay = Duration::from_millis(if busy { 12 } else { 0 });
                let delay = self.chance.around(delay);
                self.world.schedule(delay, Event::Strike);
            }
            Some(Event::Strike) if with_faults => {
                let next = self.nemesis.act(&mut self.world)?;
                self.world.schedule(next, Event::Nemesis);
            }
            Some(Event::Controller) => {
                self.control();
                self.goes_on()?;
                self.world.look_at_costs()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn run(&mut self, duration: Duration) -> Verdict {
        self.begin();
        let end = self.begun_at + duration;
        while self.world.now < end {
            self.step(true)?;
        }
        self.heal()?;
        self.converge("every batch is answered and every partition served", Self::is_settled)?;
        self.begin_final_reads();
        self.converge("every log is read to its end", Self::is_read)?;
        self.conclude(|_| true)?;
        self.converge("nothing is left behind", |sim| sim.world.left_behind().is_none()).map_err(
            |violation| Violation {
                promise: Promise::NothingIsLeftBehind,
                detail: self.world.left_behind().unwrap_or(violation.detail),
            },
        )?;
        self.settle_copies()
    }

    /// Goes on until there are no more copies of anything than it needs.
    fn settle_copies(&mut self) -> Verdict {
        let deadline = self.world.now + CONVERGE_WITHIN;
        loop {
            match self.world.held() {
                Ok(Some(held)) => {
                    self.world.counters.record_bytes = held.record_bytes;
                    self.world.counters.held_bytes = held.held_bytes;
                    return Ok(());
                }
                Ok(None) if self.world.now >= deadline => return Ok(()),
                Err(detail) if self.world.now >= deadline => {
                    return Err(Violation { promise: Promise::CopiesAreEnoughAndFew, detail });
                }
                Ok(None) | Err(_) => {}
            }
            let next = self.world.now + CONTROL_EVERY;
            while self.world.now < next {
                self.step(false)?;
            }
        }
    }

    /// Ends every fault.
    pub(crate) fn end_faults(&mut self) -> Verdict {
        self.nemesis.heal_all(&mut self.world)
    }

    /// Ends every fault, and has clients begin nothing more.
    pub(crate) fn heal(&mut self) -> Verdict {
        self.end_faults()?;
        self.world.clients.iter_mut().for_each(crate::workload::Client::stop);
        self.world.stop_applications();
        Ok(())
    }

    /// Whether all is answered and served.
    pub(crate) fn is_settled(&self) -> bool {
        let world = &self.world;
        world.clients.iter().all(|client| client.in_flight_count() == 0)
            && world.partitions.iter().all(|partition| world.is_served(*partition))
            && world.is_coordination_idle()
    }

    /// Has every log be read from its start.
    pub(crate) fn begin_final_reads(&mut self) {
        for client in 0..self.world.clients.len() {
            let until = self.world.checker.visible_end(self.world.clients[client].partition);
            self.world.clients[client].begin_final_read(until);
            self.world.wake_client(client, Duration::ZERO);
        }
    }

    /// Whether that is done.
    pub(crate) fn is_read(&self) -> bool {
        let partitions = self.world.partitions.iter();
        let reader_count = partitions.filter(|partition| !is_internal(**partition)).count();
        let clients = self.world.clients.iter();
        clients.filter(|client| client.final_log().is_some()).count() == reader_count
    }

    /// Judges what was read of the partitions that are to be judged.
    pub(crate) fn conclude(&mut self, is_judged: impl Fn(PartitionId) -> bool) -> Verdict {
        self.world.nothing_old_is_seen()?;
        let World { clients, checker, .. } = &mut self.world;
        clients
            .iter()
            .filter_map(|client| Some((client.partition, client.final_log()?)))
            .filter(|(partition, _)| is_judged(*partition))
            .try_for_each(|(partition, (start, log))| checker.final_log(partition, start, log))?;
        checker.final_groups()
    }

    /// Goes on, without new faults, until `done`.
    pub(crate) fn converge(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Verdict {
        let deadline = self.world.now + CONVERGE_WITHIN;
        while !done(self) {
            if self.world.now >= deadline {
                let detail = format!("not within {CONVERGE_WITHIN:?}: {what}; {}", self.state());
                return Err(Violation { promise: Promise::ServesAgain, detail });
            }
            self.step(false)?;
        }
        Ok(())
    }

    /// No partition stands still for long that could go on: one that is served and whose leader reaches a put quorum
    /// commits, and one whose appointed leader reaches a fence quorum comes to be served.
    fn goes_on(&mut self) -> Verdict {
        for partition in self.world.partitions.clone() {
            let waits = self.world.waits(partition).filter(|_| self.world.could_go_on(partition));
            let Some(waits) = waits else {
                self.still_since.remove(&partition);
                continue;
            };
            let now = self.world.now;
            let (after, since) = self.still_since.entry(partition).or_insert((waits, now));
            if *after != waits {
                (*after, *since) = (waits, now);
            }
            if now.since(*since) >= STALL_MAX {
                let what = waits.map_or("is not served".to_owned(), |mark| {
                    format!("commits nothing after {}", mark.point)
                });
                let detail = format!("{partition:?} {what} for {STALL_MAX:?}; {}", self.state());
                return Err(Violation { promise: Promise::GoesOn, detail });
            }
        }
        Ok(())
    }

    /// A partition that is not served for long, though its leader lives, gets another one.
    fn control(&mut self) {
        self.world.schedule(CONTROL_EVERY, Event::Controller);
        for partition in self.world.partitions.clone() {
            if self.world.is_served(partition) {
                self.unserved_since.remove(&partition);
                continue;
            }
            let now = self.world.now;
            let since = *self.unserved_since.entry(partition).or_insert(now);
            if now.since(since) < PATIENCE {
                continue;
            }
            let candidates: Vec<usize> = (0..self.world.nodes.len())
                .filter(|&node| self.world.is_running(node) && self.world.reaches_majority(node))
                .collect();
            if let Some(node) = self.chance.pick(&candidates) {
                self.world.appoint(partition, node);
                self.unserved_since.remove(&partition);
            }
        }
    }

    /// What every partition and client is at, for a liveness report.
    pub(crate) fn state(&self) -> String {
        let world = &self.world;
        let partitions = world.partitions.iter().map(|partition| {
            let owner = world.owner(*partition);
            let phase = owner.and_then(|owner| {
                let node = &world.nodes[owner.node.get() as usize];
                Some(node.broker(*partition, owner.generation)?.phase_name())
            });
            format!("{partition:?} {owner:?} {phase:?}")
        });
        let waiting: usize = world.clients.iter().map(|client| client.in_flight_count()).sum();
        let group = world.group();
        format!(
            "{}; {waiting} batches unanswered; slots {:?}",
            partitions.collect::<Vec<_>>().join(", "),
            group.slots.iter().map(|slot| slot.state).collect::<Vec<_>>()
        )
    }

    pub(crate) fn report(self, seed: u64, violation: Option<Violation>) -> Report {
        let world = self.world;
        let (client_bytes, put_bytes, written_bytes) = world.cost.totals();
        let counters = Counters {
            acknowledged_count: world.checker.acknowledged_count(),
            transaction_count: world.checker.transaction_count(),
            position_count: world.checker.position_count(),
            simulated: world.now.since(self.begun_at),
            event_count: world.trace.event_count(),
            peaks: world.cost.peaks(),
            client_bytes,
            put_bytes,
            written_bytes,
            ..world.counters
        };
        Report { seed, counters, digest: world.trace.digest(), violation }
    }
}
