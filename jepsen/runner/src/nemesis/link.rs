//! Bad links: slow, lossy, thin. Nobody is gone, so nothing is claimed.

use std::time::Duration;

use super::{Entry, Needs, Nemesis, Scene};
use crate::cluster::place::{self, NodeIndex, datacenter_name, nodes_of};
use crate::failure::Failure;
use crate::net::weather::{Effect, Ports, Rule, RuleId};

enum Kind {
    Slow,
    Loss,
    Thin,
}

struct Link {
    kind: Kind,
    rules: Vec<RuleId>,
}

pub(super) fn entries() -> Vec<Entry> {
    let all = [
        Entry::within("slow-link", "100 ms more, with jitter, to and from a datacenter", || {
            new(Kind::Slow)
        }),
        Entry::within("loss", "2 % loss, 1 % doubles and jitter between all nodes", || {
            new(Kind::Loss)
        }),
        Entry::within(
            "thin-link",
            "1 Mbit/s for each pair of nodes with one end in a datacenter",
            || new(Kind::Thin),
        ),
    ];
    all.map(|entry| entry.needing(Needs::Network)).into()
}

fn new(kind: Kind) -> Box<dyn Nemesis> {
    Box::new(Link { kind, rules: Vec::new() })
}

impl Nemesis for Link {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(switch) = scene.cluster.switch() else { return Ok(None) };
        let datacenter = scene.chance.below(place::DATACENTER_COUNT);
        let all = Ports::of(NodeIndex::all().map(NodeIndex::port));
        let inside = Ports::of(nodes_of(datacenter).into_iter().map(NodeIndex::port));
        let outside = NodeIndex::all().filter(|node| node.datacenter() != datacenter);
        let outside = Ports::of(outside.map(NodeIndex::port));
        let (pairs, effect) = match self.kind {
            Kind::Slow => {
                let delay = Duration::from_millis(100);
                let jitter = Duration::from_millis(50);
                let effect = Effect { delay, jitter, ..Effect::default() };
                (vec![(inside, outside), (outside, inside)], effect)
            }
            Kind::Loss => {
                let effect = Effect {
                    loss_per_mille: 20,
                    duplicate_per_mille: 10,
                    jitter: Duration::from_millis(5),
                    ..Effect::default()
                };
                (vec![(all, all)], effect)
            }
            Kind::Thin => {
                let effect = Effect { rate_bytes: 125_000, ..Effect::default() };
                (vec![(inside, outside), (outside, inside)], effect)
            }
        };
        for (from, to) in pairs {
            self.rules.push(switch.add(Rule { from, to, effect }));
        }
        Ok(Some(match self.kind {
            Kind::Loss => "all links".to_owned(),
            Kind::Slow | Kind::Thin => format!("links of {}", datacenter_name(datacenter)),
        }))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        if let Some(switch) = scene.cluster.switch() {
            self.rules.drain(..).for_each(|rule| switch.remove(rule));
        }
        Ok(())
    }
}
