//! Cuts of the network between nodes. Clients reach all of them throughout.

use super::{Entry, Needs, Nemesis, Scene};
use crate::cluster::place::{self, NodeIndex, names, nodes_of};
use crate::failure::Failure;
use crate::net::weather::{Effect, Ports, Rule, RuleId};

enum Shape {
    /// A node hears all, and nobody hears it; or the other way round.
    OneWay,
    /// Random halves.
    Halves,
    /// Each node reaches only its neighbours in a ring: every majority is another.
    Ring,
    Datacenter,
    DatacenterAndRack,
    /// A partition's leader is alone, and clients still reach it.
    LeaderApart,
    /// The metadata leader and a partition's leader lose each other: it is taken for dead while all
    /// others still hear it, and it them.
    LeaderUnheard,
    /// All links between datacenters fail one by one, and come back in another order.
    Flapping,
}

struct Partition {
    shape: Shape,
    hit: Vec<NodeIndex>,
    rules: Vec<RuleId>,
}

pub(super) fn entries() -> Vec<Entry> {
    let all = [
        Entry::within("one-way", "a node is heard by nobody, or hears nobody", || {
            new(Shape::OneWay)
        }),
        Entry::beyond("halves", "random halves", || new(Shape::Halves)).back_within_s(10),
        Entry::beyond("ring", "each node reaches only two neighbours on either side", || {
            new(Shape::Ring)
        })
        .back_within_s(10),
        Entry::within("dc", "a datacenter is cut off", || new(Shape::Datacenter)).back_within_s(10),
        Entry::within("dc-rack", "a datacenter and a rack elsewhere are cut off", || {
            new(Shape::DatacenterAndRack)
        })
        .back_within_s(10),
        Entry::within("leader-apart", "a leader is cut off, but not from clients", || {
            new(Shape::LeaderApart)
        }),
        Entry::within("leader-unheard", "a leader and the metadata leader lose each other", || {
            new(Shape::LeaderUnheard)
        }),
        Entry::beyond("flapping", "random pairs of nodes lose each other", || new(Shape::Flapping))
            .back_within_s(10),
    ];
    all.map(|entry| entry.needing(Needs::Network)).into()
}

fn new(shape: Shape) -> Box<dyn Nemesis> {
    Box::new(Partition { shape, hit: Vec::new(), rules: Vec::new() })
}

fn ports(nodes: &[NodeIndex]) -> Ports {
    Ports::of(nodes.iter().map(|node| node.port()))
}

impl Partition {
    fn cut(&mut self, scene: &Scene<'_>, from: &[NodeIndex], to: &[NodeIndex]) {
        if let Some(switch) = scene.cluster.switch() {
            let rule = Rule { from: ports(from), to: ports(to), effect: Effect::cut() };
            self.rules.push(switch.add(rule));
        }
    }

    fn cut_off(&mut self, scene: &Scene<'_>, nodes: &[NodeIndex]) {
        let others: Vec<NodeIndex> = NodeIndex::all().filter(|it| !nodes.contains(it)).collect();
        self.cut(scene, nodes, &others);
        self.cut(scene, &others, nodes);
    }

    fn one_way(&mut self, scene: &mut Scene<'_>) -> Option<String> {
        let leader = if scene.chance.per_mille(500) { scene.some_leader() } else { None };
        let node = match leader {
            Some(leader) if scene.claim(&[leader]) => leader,
            _ => scene.claim_one()?,
        };
        self.hit = vec![node];
        let others: Vec<NodeIndex> = NodeIndex::all().filter(|it| *it != node).collect();
        let is_mute = scene.chance.per_mille(500);
        if is_mute {
            self.cut(scene, &[node], &others);
        } else {
            self.cut(scene, &others, &[node]);
        }
        Some(format!("{} is {}", node.rack_name(), if is_mute { "mute" } else { "deaf" }))
    }

    fn leader_unheard(&mut self, scene: &mut Scene<'_>) -> Option<String> {
        let judge = scene.metadata_leader()?;
        let leader = scene.some_leader().filter(|leader| *leader != judge)?;
        if !scene.claim(&[leader]) {
            return None;
        }
        self.hit = vec![leader];
        self.cut(scene, &[leader], &[judge]);
        self.cut(scene, &[judge], &[leader]);
        Some(format!("{} and {}", leader.rack_name(), judge.rack_name()))
    }

    fn ring(&mut self, scene: &mut Scene<'_>) -> String {
        let order = shuffled(scene);
        let count = order.len();
        for (at, node) in order.iter().enumerate() {
            let distance = |other: usize| (other + count - at).rem_euclid(count);
            let far: Vec<NodeIndex> = (0..count)
                .filter(|other| (3..=count - 3).contains(&distance(*other)))
                .map(|other| order[other])
                .collect();
            self.cut(scene, &[*node], &far);
        }
        names(&order)
    }

    fn flapping(&mut self, scene: &mut Scene<'_>) -> String {
        let mut cut = Vec::new();
        for from in NodeIndex::all() {
            for to in NodeIndex::all().filter(|to| *to > from) {
                if scene.chance.per_mille(250) {
                    self.cut(scene, &[from], &[to]);
                    self.cut(scene, &[to], &[from]);
                    cut.push(format!("{}-{}", from.rack_name(), to.rack_name()));
                }
            }
        }
        cut.join(" ")
    }
}

fn shuffled(scene: &mut Scene<'_>) -> Vec<NodeIndex> {
    let mut left: Vec<NodeIndex> = NodeIndex::all().collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        order.push(left.swap_remove(scene.chance.below(left.len())));
    }
    order
}

impl Nemesis for Partition {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let apart = match self.shape {
            Shape::OneWay => return Ok(self.one_way(scene)),
            Shape::Ring => return Ok(Some(self.ring(scene))),
            Shape::Flapping => return Ok(Some(self.flapping(scene))),
            Shape::LeaderUnheard => return Ok(self.leader_unheard(scene)),
            Shape::Halves => {
                let mut half = shuffled(scene);
                half.truncate(half.len() / 2);
                self.cut_off(scene, &half);
                return Ok(Some(names(&half)));
            }
            Shape::Datacenter => nodes_of(scene.chance.below(place::DATACENTER_COUNT)),
            Shape::DatacenterAndRack => super::kill::datacenter_and_rack(scene),
            Shape::LeaderApart => scene.some_leader().into_iter().collect(),
        };
        if apart.is_empty() || !scene.claim(&apart) {
            return Ok(None);
        }
        self.cut_off(scene, &apart);
        self.hit = apart;
        Ok(Some(names(&self.hit)))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        if let Some(switch) = scene.cluster.switch() {
            while !self.rules.is_empty() {
                let rule = self.rules.swap_remove(scene.chance.below(self.rules.len()));
                switch.remove(rule);
            }
        }
        scene.release(&std::mem::take(&mut self.hit));
        Ok(())
    }
}
