use super::*;
use crate::quota::VIEW_AGE_MAX;
use crate::quota::message::Held;

const RATE: f64 = 9_000.0;

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(1_000_000 + ms)
}

fn nodes(count: u32) -> Vec<NodeId> {
    (1..=count).map(NodeId::new).collect()
}

/// An entity whose home is node 1 of three.
fn entity() -> EntityId {
    let all = (0u32..).map(|number| EntityId::of(1, &number.to_be_bytes()));
    all.into_iter().find(|it| home_of(*it, &nodes(3)) == Some(NodeId::new(1))).unwrap()
}

/// A home that may lend from 3 s on, and what nodes have asked it.
struct Bench {
    home: Home,
    numbers: u64,
}

impl Bench {
    fn new() -> Self {
        let mut home = Home::new(at(0), NodeId::new(1), 5, Mutations::NONE);
        home.note_nodes(at(0), &nodes(3), Some(at(0)));
        Self { home, numbers: 0 }
    }

    fn confirm(&mut self, ms: u64) {
        self.home.note_nodes(at(ms), &nodes(3), Some(at(ms)));
    }

    fn report(&mut self, node: u32, demand: f64, held: u64) -> Report {
        self.numbers += 1;
        Report {
            node: NodeId::new(node),
            life: 1,
            number: self.numbers,
            applied_index: 1,
            held: Held { life: 5, number: held },
            wants: vec![Want { entity: entity(), per_second: RATE, demand }],
        }
    }

    /// The number of the answer, and the share in it.
    fn ask(&mut self, ms: u64, node: u32, demand: f64, held: u64) -> (u64, Option<Share>) {
        let report = self.report(node, demand, held);
        match self.home.on_report(at(ms), &report) {
            Some(shares) => (shares.number, shares.shares.first().map(|(_, share)| *share)),
            None => (0, None),
        }
    }
}

/// One that has confirmed its view each second up to this time.
fn settled() -> Bench {
    let mut bench = Bench::new();
    (0..=6).for_each(|half| bench.confirm(half * 500));
    bench
}

#[test]
fn a_new_home_lends_nothing_before_the_leases_of_others_have_ended() {
    let mut bench = Bench::new();
    for ms in (0..=2_500).step_by(100) {
        bench.confirm(ms);
        let (_, share) = bench.ask(ms, 2, RATE, 0);
        assert_eq!(share.is_some(), ms > 2_100, "{ms}");
    }
    let mut bench = settled();
    assert_eq!(bench.ask(3_000, 2, RATE, 0).1, Some(Share::Lease(RATE)));
    let stale = 3_000 + VIEW_AGE_MAX.as_millis() as u64 + 1;
    assert_eq!(bench.ask(stale, 2, RATE, 0), (0, None), "it may have been replaced");
}

#[test]
fn a_share_grows_by_what_others_are_known_to_have_given_up() {
    let mut bench = settled();
    let (first, share) = bench.ask(3_000, 2, RATE, 0);
    assert_eq!(share, Some(Share::Lease(RATE)));
    assert_eq!(bench.ask(3_010, 3, RATE, 0).1, Some(Share::Wait));
    bench.confirm(3_100);
    let (second, share) = bench.ask(3_100, 2, RATE, first);
    assert_eq!(share, Some(Share::Lease(RATE / 2.0)));
    assert_eq!(bench.ask(3_110, 3, RATE, 0).1, Some(Share::Wait), "it may not have come there");
    bench.ask(3_200, 2, RATE, second);
    assert_eq!(bench.ask(3_210, 3, RATE, 0).1, Some(Share::Lease(RATE / 2.0)));
    assert_eq!(bench.home.lent(at(3_210), entity()), RATE);
}

#[test]
fn what_a_silent_node_has_is_lent_again_when_its_lease_has_ended() {
    let mut bench = settled();
    bench.ask(3_000, 2, RATE, 0);
    for ms in (3_100..=4_000).step_by(100) {
        bench.confirm(ms);
        assert_eq!(bench.ask(ms, 3, RATE, 0).1, Some(Share::Wait), "{ms}");
    }
    bench.confirm(4_100);
    assert_eq!(bench.ask(4_100, 3, RATE, 0).1, Some(Share::Lease(RATE)));
}

#[test]
fn old_reports_and_those_that_come_too_soon_are_passed_over() {
    let mut bench = settled();
    let old = bench.report(2, 1.0, 0);
    assert!(bench.ask(3_000, 2, RATE, 0).1.is_some());
    assert_eq!(bench.home.on_report(at(3_100), &old), None);
    assert_eq!(bench.ask(3_001, 2, RATE, 0), (0, None));
    let stranger = Report { node: NodeId::new(9), ..bench.report(2, 1.0, 0) };
    assert_eq!(bench.home.on_report(at(3_200), &stranger), None);
    // As many leases as are remembered of a node that never says which it goes by.
    for ms in (3_100..6_000).step_by(10) {
        bench.confirm(ms);
        bench.ask(ms, 2, RATE, 0);
    }
    let leases = bench.home.entities[&entity()].members[&NodeId::new(2)].leases.len();
    assert!(leases <= 28, "{leases}");
}

#[test]
fn a_lower_rate_holds_at_once_and_old_news_of_it_does_not() {
    let mut bench = settled();
    let (held, _) = bench.ask(3_000, 2, RATE, 0);
    let mut lower = bench.report(2, RATE, held);
    (lower.wants[0].per_second, lower.applied_index) = (900.0, 2);
    let answer = bench.home.on_report(at(3_100), &lower).unwrap();
    assert_eq!(answer.shares[0].1, Share::Lease(900.0));
    bench.confirm(3_200);
    let (_, share) = bench.ask(3_200, 2, RATE, answer.number);
    assert_eq!(share, Some(Share::Lease(900.0)), "the node has not heard of it yet");
}

#[test]
fn entities_that_nobody_uses_are_forgotten() {
    let mut bench = settled();
    bench.ask(3_000, 2, RATE, 0);
    assert_eq!(bench.home.entity_count(), 1);
    bench.confirm(4_900);
    assert_eq!(bench.home.entity_count(), 1);
    bench.confirm(5_100);
    assert_eq!(bench.home.entity_count(), 0);
}
