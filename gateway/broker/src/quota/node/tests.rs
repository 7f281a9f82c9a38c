use super::*;

const NODE: NodeId = NodeId::new(1);
const RATE: f64 = 9_000.0;

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(1_000_000 + ms)
}

fn nodes(count: u32) -> Vec<NodeId> {
    (1..=count).map(NodeId::new).collect()
}

fn quota(number: u8) -> Quota {
    let [entity, overflow] = [EntityId::of(1, &[number]), EntityId::of(1, b"overflow")];
    Quota { entity, overflow, per_second: RATE, scope: Scope::Cluster }
}

fn of(count: u32) -> NodeShares<u8> {
    let mut shares = NodeShares::new(NODE, 7, Mutations::NONE);
    shares.set_nodes(&nodes(count));
    shares
}

fn share(shares: &NodeShares<u8>, now: Instant) -> f64 {
    shares.holdings(now).next().map(|it| it.share).unwrap_or_default()
}

/// The home of the only entity, and what it would answer.
fn answer(
    shares: &mut NodeShares<u8>,
    now: Instant,
    number: u64,
    share: Share,
) -> (NodeId, Shares) {
    let (home, report) = shares.report(now, 1).remove(0);
    (home, Shares { life: 3, number, shares: vec![(report.wants[0].entity, share)] })
}

#[test]
fn where_quotas_hold_at_each_node_all_of_the_rate_is_there() {
    for count in [0, 1] {
        let mut shares = of(count);
        let charge = shares.charge(at(0), &quota(1), 9_000, || 1);
        assert_eq!(charge.told, Duration::ZERO, "a burst is free");
        let charge = shares.charge(at(0), &quota(1), 900, || 1);
        assert_eq!(charge.told, Duration::from_millis(100));
        assert_eq!(shares.pause(at(0), charge.owed), Duration::from_millis(100));
        assert_eq!(shares.pause(at(100), charge.owed), Duration::ZERO);
        assert_eq!(shares.report(at(100), 1), []);
    }
    let mut shares = of(9);
    let own = Quota { scope: Scope::Node, ..quota(1) };
    assert_eq!(shares.charge(at(0), &own, 9_000, || 1).told, Duration::ZERO);
    assert!(shares.is_quiet(), "nobody hears of it");
}

#[test]
fn who_begins_has_a_floor_and_then_what_the_home_lends() {
    let mut shares = of(9);
    let charged = shares.charge(at(0), &quota(1), 1_000, || 1);
    assert_eq!(share(&shares, at(0)), RATE / 180.0);
    // It would be 19 s at the floor, and 105 ms at the whole rate.
    assert_eq!(charged.told, WAIT_IN_DOUBT_MAX);
    let looks_again = shares.pause(at(0), charged.owed);
    assert!(looks_again < Duration::from_secs(5), "{looks_again:?}");
    let (home, lent) = answer(&mut shares, at(10), 1, Share::Lease(RATE));
    shares.on_shares(at(50), home, at(10), &lent);
    assert_eq!(share(&shares, at(50)), RATE);
    assert!(shares.pause(at(50), charged.owed) > Duration::ZERO);
    assert_eq!(shares.pause(at(160), charged.owed), Duration::ZERO, "the debt is paid at once");
    let holding = shares.holdings(at(50)).next().unwrap();
    assert_eq!(holding.lease_left, Some(Duration::from_millis(960)), "it counts from the question");
    assert_eq!(holding.home, Some(home));
}

#[test]
fn a_node_whose_home_is_silent_goes_over_to_its_part() {
    let mut shares = of(9);
    shares.charge(at(0), &quota(1), 100_000, || 1);
    assert_eq!(share(&shares, at(1_000)), RATE / 180.0);
    assert_eq!(share(&shares, at(3_000)), RATE / 9.0);
    let (home, lent) = answer(&mut shares, at(3_000), 1, Share::Lease(4_000.0));
    shares.on_shares(at(3_050), home, at(3_000), &lent);
    for (ms, expected) in [(3_999, 4_000.0), (5_000, 2_500.0), (6_000, 1_000.0), (9_000, 1_000.0)] {
        assert_eq!(share(&shares, at(ms)).round(), expected, "{ms}");
    }
    let (home, wait) = answer(&mut shares, at(9_000), 2, Share::Wait);
    shares.on_shares(at(9_050), home, at(9_000), &wait);
    assert_eq!(share(&shares, at(9_050)), RATE / 180.0, "the home is there, and has lent all");
}

#[test]
fn late_and_old_answers_count_for_nothing() {
    let mut shares = of(9);
    shares.charge(at(0), &quota(1), 1, || 1);
    let (home, first) = answer(&mut shares, at(0), 1, Share::Lease(100.0));
    let (_, second) = answer(&mut shares, at(100), 2, Share::Lease(200.0));
    shares.on_shares(at(150), home, at(100), &second);
    shares.on_shares(at(160), home, at(0), &first);
    assert_eq!(share(&shares, at(160)), 200.0);
    let (_, third) = answer(&mut shares, at(200), 3, Share::Lease(300.0));
    shares.on_shares(at(1_200), home, at(200), &third);
    assert_ne!(share(&shares, at(1_200)), 300.0, "its lease has ended");
    assert_eq!(shares.report(at(1_200), 1)[0].1.held, Held { life: 3, number: 2 });
    let (_, fourth) = answer(&mut shares, at(1_200), 4, Share::Lease(400.0));
    shares.on_shares(at(1_220), home, at(1_200), &fourth);
    shares.set_nodes(&nodes(9).into_iter().filter(|node| *node != home).collect::<Vec<_>>());
    shares.report(at(1_230), 1);
    shares.set_nodes(&nodes(9));
    let late = Shares { number: 3, ..third.clone() };
    shares.on_shares(at(1_240), home, at(1_200), &late);
    assert_eq!(share(&shares, at(1_240)), 400.0, "also of a home that was none for a moment");
    let again = Shares { life: 4, number: 1, ..third };
    shares.on_shares(at(1_250), home, at(1_200), &again);
    assert_eq!(share(&shares, at(1_250)), 300.0, "the home was started anew");
}

#[test]
fn a_debt_is_reported_kept_and_paid_out_of_the_share() {
    let mut shares = of(9);
    shares.charge(at(0), &quota(1), 20_000, || 1);
    let (home, lent) = answer(&mut shares, at(100), 1, Share::Lease(1_000.0));
    assert!(shares.holdings(at(100)).next().unwrap().demand > RATE);
    shares.on_shares(at(100), home, at(100), &lent);
    // Idle clients, and nothing forgotten: 20 s at this rate.
    for second in 1..=15 {
        let (home, lent) =
            answer(&mut shares, at(second * 1_000), second + 1, Share::Lease(1_000.0));
        shares.on_shares(at(second * 1_000), home, at(second * 1_000), &lent);
    }
    let debt = shares.holdings(at(15_000)).next().unwrap().debt;
    assert!((4_900.0..5_300.0).contains(&debt), "{debt}");
}

#[test]
fn what_is_idle_is_forgotten_when_it_owes_nothing() {
    let mut shares = of(9);
    shares.charge(at(0), &quota(1), 1, || 1);
    assert_eq!(shares.report(at(1_900), 1).len(), 1);
    assert_eq!(shares.report(at(2_100), 1), []);
    assert!(shares.is_quiet() && shares.holdings(at(2_100)).next().is_none());
}

#[test]
fn an_entity_for_each_request_takes_no_memory_and_gets_no_more() {
    let mut shares = of(0);
    let quota =
        |number: usize| Quota { entity: EntityId::of(2, &number.to_be_bytes()), ..quota(0) };
    for number in 0..ENTITY_COUNT_MAX {
        shares.charge(at(0), &quota(number), 9_001, || 0);
    }
    let told = |shares: &mut NodeShares<u8>, number| {
        shares.charge(at(0), &quota(number), 18_000, || 0).told
    };
    assert_eq!(told(&mut shares, ENTITY_COUNT_MAX), Duration::from_secs(1));
    assert_eq!(told(&mut shares, ENTITY_COUNT_MAX + 1), Duration::from_secs(3), "they share one");
    assert!(told(&mut shares, 0) < Duration::from_secs(3), "who was there before does not");
    shares.set_nodes(&nodes(9));
    let wants = |report: Vec<(NodeId, Report)>| {
        report.into_iter().map(|(_, it)| it.wants.len()).sum::<usize>()
    };
    assert_eq!(wants(shares.report(at(0), 1)), SHARED_COUNT_MAX);
    shares.set_nodes(&[]);
    assert_eq!(told(&mut shares, ENTITY_COUNT_MAX + 2), Duration::from_secs(5));
    shares.report(at(4_000), 1);
    shares.report(at(9_000), 1);
    assert!(shares.is_quiet(), "those that are shared and idle are gone");
    for number in 0..2_000 {
        shares.charge(at(9_000), &quota(2 * ENTITY_COUNT_MAX + number), 9_000, || 0);
    }
    assert!(shares.held.len() < 3_000, "those that are full make room: {}", shares.held.len());
}
