//! The way between the two clusters: each on a network of its own, joined with the clients' by a switch
//! that delays and drops what goes from one cluster to the other.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::chance::Chance;
use crate::failure::Failure;
use crate::net::namespace::{self, Host};
use crate::net::switch::{Cable, Switch};
use crate::net::weather::{Effect, Port, Ports, Rule, RuleId};

/// The two clusters, and who uses both.
const HOSTS: [(&str, Ipv4Addr); 3] = [
    ("west", Ipv4Addr::new(10, 77, 1, 1)),
    ("east", Ipv4Addr::new(10, 77, 1, 2)),
    ("clients", Ipv4Addr::new(10, 77, 1, 3)),
];

/// How long the way is, and how bad.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distance {
    pub(super) rtt: Duration,
    pub(super) loss_per_mille: u32,
    /// Bytes a second in each direction; 0 is no limit.
    pub(super) rate_bytes: u64,
}

/// The way, as long as this lives.
pub(super) struct Wan {
    pub(super) distance: Distance,
    switch: Switch,
    hosts: Vec<Host>,
}

/// A cut of the way, until it is mended.
pub(super) struct Cut(RuleId);

impl Wan {
    /// Lays the way. The calling thread, and all that it starts from here on, are where the clients are.
    /// To be called while there is one thread.
    pub(super) fn lay(distance: Distance, chance: Chance) -> Result<Self, Failure> {
        namespace::prepare_process().map_err(Failure::system("a user namespace (try as root)"))?;
        let (mut hosts, mut cables) = (Vec::new(), Vec::new());
        for (name, address) in HOSTS {
            let (host, end) = Host::isolated(name, address)?;
            hosts.push(host);
            cables.push(Cable { address, end });
        }
        let wan = Self { distance, switch: Switch::start(cables, chance)?, hosts };
        wan.between(Effect {
            delay: distance.rtt / 2,
            loss_per_mille: distance.loss_per_mille,
            rate_bytes: distance.rate_bytes,
            ..Effect::default()
        });
        let clients = wan.hosts.last().map(Host::door);
        let entered = clients.map_or(Ok(()), |door| door.enter());
        entered.map_err(Failure::system("the clients' network namespace"))?;
        Ok(wan)
    }

    /// The host of a side.
    pub(super) fn host(&self, side: usize) -> &Host {
        &self.hosts[side]
    }

    /// The address of a side.
    pub(super) fn address(side: usize) -> Ipv4Addr {
        HOSTS[side].1
    }

    /// Nothing gets from one cluster to the other; clients reach both.
    pub(super) fn cut(&self) -> Cut {
        Cut(self.between(Effect::cut()))
    }

    pub(super) fn mend(&self, cut: Cut) {
        self.switch.remove(cut.0);
    }

    /// Bytes that have got from one side to the other.
    pub(super) fn passed_bytes(&self, from: usize, to: usize) -> u64 {
        self.switch.traffic().bytes(Port(from), Port(to))
    }

    fn between(&self, effect: Effect) -> RuleId {
        let both = Ports::of([Port(0), Port(1)]);
        self.switch.add(Rule { from: both, to: both, effect })
    }
}
