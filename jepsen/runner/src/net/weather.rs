//! What the network does to packets: rules, each from some ports to some ports, that add up.

use std::collections::BTreeMap;
use std::time::Duration;

/// A plug of the switch: nodes from 0, then the hosts of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port(pub(crate) usize);

/// Some ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports(u32);

/// What befalls a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Effect {
    /// Nothing gets through.
    pub(crate) cut: bool,
    pub(crate) delay: Duration,
    /// Up to so much more; packets overtake each other.
    pub(crate) jitter: Duration,
    pub(crate) loss_per_mille: u32,
    pub(crate) duplicate_per_mille: u32,
    /// Bytes a second of each pair of ports; 0 is no limit.
    pub(crate) rate_bytes: u64,
}

/// An effect from any of some ports to any of others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) from: Ports,
    pub(crate) to: Ports,
    pub(crate) effect: Effect,
}

/// Names a rule, to take it away again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuleId(u64);

/// All rules in force.
#[derive(Debug, Default)]
pub(crate) struct Weather {
    rules: BTreeMap<RuleId, Rule>,
    next: u64,
}

impl Ports {
    pub(crate) fn of(ports: impl IntoIterator<Item = Port>) -> Self {
        Self(ports.into_iter().fold(0, |bits, port| bits | 1 << port.0))
    }

    pub(crate) fn contains(self, port: Port) -> bool {
        self.0 >> port.0 & 1 == 1
    }
}

impl Effect {
    pub(crate) fn cut() -> Self {
        Self { cut: true, ..Self::default() }
    }

    /// Both at once.
    fn and(self, other: Self) -> Self {
        let slower = |a: u64, b: u64| if a == 0 || (b != 0 && b < a) { b } else { a };
        Self {
            cut: self.cut || other.cut,
            delay: self.delay + other.delay,
            jitter: self.jitter + other.jitter,
            loss_per_mille: self.loss_per_mille.max(other.loss_per_mille),
            duplicate_per_mille: self.duplicate_per_mille.max(other.duplicate_per_mille),
            rate_bytes: slower(self.rate_bytes, other.rate_bytes),
        }
    }
}

impl Weather {
    pub(crate) fn add(&mut self, rule: Rule) -> RuleId {
        let id = RuleId(self.next);
        self.next += 1;
        self.rules.insert(id, rule);
        id
    }

    pub(crate) fn remove(&mut self, id: RuleId) {
        self.rules.remove(&id);
    }

    /// What all rules together do to packets of a pair.
    pub(crate) fn between(&self, from: Port, to: Port) -> Effect {
        self.rules
            .values()
            .filter(|rule| rule.from.contains(from) && rule.to.contains(to))
            .fold(Effect::default(), |effect, rule| effect.and(rule.effect))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_add_up_and_go_one_by_one() {
        let (a, b) = (Port(0), Port(1));
        let mut weather = Weather::default();
        let slow = Effect {
            delay: Duration::from_millis(5),
            rate_bytes: 1000,
            loss_per_mille: 10,
            ..Effect::default()
        };
        let both = Ports::of([a, b]);
        let lasting = weather.add(Rule { from: both, to: both, effect: slow });
        let slower = Effect { rate_bytes: 500, loss_per_mille: 5, ..slow };
        weather.add(Rule { from: both, to: both, effect: slower });
        let one_way =
            weather.add(Rule { from: Ports::of([a]), to: Ports::of([b]), effect: Effect::cut() });
        assert!(weather.between(a, b).cut);
        assert!(!weather.between(b, a).cut);
        let sum = weather.between(b, a);
        assert_eq!(sum.delay, Duration::from_millis(10));
        assert_eq!((sum.rate_bytes, sum.loss_per_mille), (500, 10));
        weather.remove(one_way);
        weather.remove(lasting);
        assert_eq!(weather.between(a, b), slower);
    }
}
