//! What breaks the cluster: one file per kind of fault, each with a begin and an end.
//!
//! A fault *within* the promise claims the nodes that it takes away; all claims together stay in
//! what the cluster tolerates (a datacenter and a rack of another), so service must go on. A fault
//! *beyond* it has the stage to itself: nothing may be lost, but service may stop.

mod certificates;
mod clocks;
mod coordinator;
mod damage;
mod disk;
mod herd;
mod kill;
mod limits;
mod link;
mod membership;
mod overload;
mod partition;
mod pause;
mod power;
mod replaced;
mod replays;
mod rolling;
mod schedule;
mod starve;
mod takeover;
mod upgrade;

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_protocol::messages::ListOffsetsPartition;
use serde_json::json;

pub(crate) use overload::OVERLOAD;
pub(crate) use schedule::{Plan, drive};

use crate::chance::Chance;
use crate::check::Demand;
use crate::clock;
use crate::cluster::Cluster;
use crate::cluster::place::{self, NodeIndex};
use crate::failure::Failure;
use crate::history::{Body, Epoch, Key};
use crate::workload::Pen;

/// Above the number of calls that can fail, however these are counted.
const FIRST_CALL_MAX: usize = 10_000;
/// For a node that has lost its disk to fill it again.
const REFILLED_WITHIN: Duration = Duration::from_secs(30);

/// A fault that begins and ends.
pub(crate) trait Nemesis: Send {
    /// Begins; says what was hit. `None` if there is nothing it may hit now.
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure>;

    /// Ends what [`begin`](Self::begin) began, and brings back what it took.
    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure>;
}

/// Where faults play.
pub(crate) struct Scene<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) chance: Chance,
    pub(crate) keys: Vec<Key>,
    /// Records what a nemesis asks as a client.
    pub(crate) pen: Pen<'a>,
    /// How many faults have taken each node.
    claims: BTreeMap<NodeIndex, usize>,
    /// How far the rolling restart has come.
    restarted_count: usize,
    /// The next call of a disk that is to fail.
    next_call: usize,
}

/// Whether service must go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Within,
    Beyond,
}

/// What a fault needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// Hosts on a network of their own.
    Network,
    /// A second binary (`--other-binary`).
    OtherBinary,
    /// A tenth node, which holds no slot: it is started when a fault asks for it.
    Spare,
}

/// The newest epoch of each partition under test, as far as its leader told.
#[derive(Default)]
pub(crate) struct Epochs(BTreeMap<Key, Epoch>);

impl Epochs {
    /// Of all partitions, the most takeovers since then.
    pub(crate) fn most_since(&self, before: &Self) -> Epoch {
        let since = |(key, epoch)| before.0.get(key).map(|before| epoch - before);
        self.0.iter().filter_map(since).max().unwrap_or(0)
    }
}

/// A fault one can ask for.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) scope: Scope,
    pub(crate) needs: Needs,
    /// What is demanded of service, beside that it goes on at all.
    pub(crate) demand: Option<Demand>,
    pub(crate) make: fn() -> Box<dyn Nemesis>,
}

impl Entry {
    /// A fault under which service must go on.
    const fn within(
        name: &'static str,
        about: &'static str,
        make: fn() -> Box<dyn Nemesis>,
    ) -> Self {
        Self { name, about, scope: Scope::Within, needs: Needs::Nothing, demand: None, make }
    }

    /// A fault that may stop service, but must lose nothing.
    const fn beyond(
        name: &'static str,
        about: &'static str,
        make: fn() -> Box<dyn Nemesis>,
    ) -> Self {
        Self { name, about, scope: Scope::Beyond, needs: Needs::Nothing, demand: None, make }
    }

    /// Demands that writes succeed again so many seconds after its begin, or beyond the promise after
    /// its end.
    const fn back_within_s(mut self, seconds: u64) -> Self {
        let time = Duration::from_secs(seconds);
        self.demand = Some(match self.scope {
            Scope::Within => Demand::Throughout(time),
            Scope::Beyond => Demand::AfterIt(time),
        });
        self
    }

    /// Demands machines that have what it needs.
    const fn needing(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }
}

/// Sets of faults that are asked for by one name.
pub(crate) const MIXES: &[(&str, &[&str])] = &[
    ("none", &[]),
    ("partition", &["one-way", "halves", "ring", "dc", "dc-rack", "leader-apart"]),
    ("disk", &["eio-write", "eio-fsync", "eio-read", "any-call", "disk-full", "slow-disk"]),
    ("damaged", &["bit-flip", "zero-page", "misdirect", "truncate", "wipe"]),
    // Every fault on this list leaves a fence quorum and a put quorum of the others.
    (
        "nastiest",
        &[
            "kill",
            "kill-leader",
            "pause",
            "pause-leader",
            "one-way",
            "dc-rack",
            "leader-apart",
            "power",
            "eio-fsync",
            "disk-full",
            "clock",
            "loss",
        ],
    ),
    ("all-down", &["power-all", "kill-all", "power", "one-way", "eio-fsync", "pause"]),
];

/// All faults.
pub(crate) fn catalogue() -> Vec<Entry> {
    let mut all = kill::entries();
    for entries in [
        pause::entries(),
        starve::entries(),
        rolling::entries(),
        certificates::entries(),
        partition::entries(),
        link::entries(),
        clocks::entries(),
        power::entries(),
        disk::entries(),
        damage::entries(),
        replaced::entries(),
        limits::entries(),
        coordinator::entries(),
        upgrade::entries(),
        replays::entries(),
        overload::entries(),
        herd::entries(),
        takeover::entries(),
        membership::entries(),
    ] {
        all.extend(entries);
    }
    all
}

/// What is demanded of service, by fault.
pub(crate) fn demands() -> BTreeMap<&'static str, Demand> {
    catalogue().into_iter().filter_map(|entry| Some((entry.name, entry.demand?))).collect()
}

impl<'a> Scene<'a> {
    pub(crate) fn new(cluster: &'a Cluster, keys: Vec<Key>, chance: Chance, pen: Pen<'a>) -> Self {
        let (claims, restarted_count) = (BTreeMap::new(), 0);
        let mut scene = Self { cluster, chance, keys, pen, claims, restarted_count, next_call: 0 };
        // Other runs begin with others.
        scene.next_call = scene.chance.below(FIRST_CALL_MAX);
        scene
    }

    /// The number of the next call of a disk that is to fail: one after another.
    pub(crate) fn next_call(&mut self) -> usize {
        self.next_call += 1;
        self.next_call
    }

    /// Takes nodes, if the cluster must tolerate that, and they are not taken yet.
    pub(crate) fn claim(&mut self, nodes: &[NodeIndex]) -> bool {
        let mut all: Vec<NodeIndex> = self.claims.keys().copied().collect();
        // A spare stands for a node that is taken already.
        if nodes.iter().any(|node| all.contains(node) || *node == place::SPARE) {
            return false;
        }
        all.extend(nodes);
        let may = place::tolerated(&all);
        if may {
            self.claim_anyway(nodes);
        }
        may
    }

    /// Takes nodes beyond what is tolerated.
    pub(crate) fn claim_anyway(&mut self, nodes: &[NodeIndex]) {
        for node in nodes {
            *self.claims.entry(*node).or_default() += 1;
        }
    }

    pub(crate) fn release(&mut self, nodes: &[NodeIndex]) {
        for node in nodes {
            if let Some(count) = self.claims.get_mut(node) {
                *count -= 1;
                if *count == 0 {
                    self.claims.remove(node);
                }
            }
        }
    }

    /// A node that may be taken, and now is.
    pub(crate) fn claim_one(&mut self) -> Option<NodeIndex> {
        let mut candidates: Vec<NodeIndex> = NodeIndex::all().collect();
        while !candidates.is_empty() {
            let node = candidates.swap_remove(self.chance.below(candidates.len()));
            if self.claim(&[node]) {
                return Some(node);
            }
        }
        None
    }

    /// The next node in turn, if it may be taken now.
    pub(crate) fn claim_next(&mut self) -> Option<NodeIndex> {
        let node = NodeIndex(self.restarted_count % place::NODE_COUNT);
        let may = self.claim(&[node]);
        self.restarted_count += usize::from(may);
        may.then_some(node)
    }

    /// The leader of a partition picked by chance.
    pub(crate) fn some_leader(&mut self) -> Option<NodeIndex> {
        let key = self.chance.pick(&self.keys)?;
        self.cluster.leaders(&[key]).remove(&key)
    }

    /// The node that leads the metadata.
    pub(crate) fn metadata_leader(&self) -> Option<NodeIndex> {
        let mut client = self.cluster.client(0);
        self.cluster.status(&mut client)?.metadata_leader()
    }

    /// Records whether what a fault demands came true: if not, the run has failed.
    pub(crate) fn demand(&self, what: &str, met: bool) {
        let body = |met| Body::Demand { what: what.to_owned(), met };
        self.pen.invoke(body(None));
        self.pen.ok(body(Some(met)));
    }

    pub(crate) fn epochs(&self) -> Epochs {
        let mut client = self.cluster.client(0);
        Epochs(self.keys.iter().filter_map(|key| Some((*key, client.epoch(*key).ok()?))).collect())
    }

    /// Waits until every partition under test has a leader that knows where it ends.
    pub(crate) fn all_led_within(&self, patience: Duration) -> bool {
        let mut client = self.cluster.client(0);
        let latest = ListOffsetsPartition::TIMESTAMP_LATEST;
        let deadline = clock::now() + patience;
        self.keys.iter().all(|key| {
            let left = deadline.saturating_duration_since(clock::now());
            clock::until(left, || client.list_offset(*key, latest).ok()).is_some()
        })
    }

    /// Starts nodes again that have lost what they kept, as often as they end, as their supervisor would. They
    /// are given back when they serve and have it again; if that takes too long, never: until then the cluster
    /// can spare no more.
    pub(crate) fn bring_back_refilled(&mut self, nodes: &[NodeIndex]) -> Result<(), Failure> {
        self.cluster.start(nodes)?;
        let mut client = self.cluster.client(0);
        let refilled = clock::until(REFILLED_WITHIN, || {
            self.cluster.start(nodes).ok()?;
            // The others may not have noticed yet that it was away: it must say so itself.
            let mut serves = |node: &NodeIndex| {
                self.cluster.admin_of(&mut client, *node, "disk.status", &json!({})).is_some()
            };
            nodes.iter().all(&mut serves).then_some(())?;
            let status = self.cluster.status(&mut client)?;
            nodes.iter().all(|node| status.is_good(*node)).then_some(())
        });
        if refilled.is_some() {
            self.cluster.expect_no_end(nodes);
            self.release(nodes);
        }
        Ok(())
    }

    /// Starts nodes again that were taken, and gives them back.
    pub(crate) fn bring_back(&mut self, nodes: &[NodeIndex]) -> Result<(), Failure> {
        self.cluster.start(nodes)?;
        self.release(nodes);
        Ok(())
    }
}
