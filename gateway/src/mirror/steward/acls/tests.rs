use meridian_base::id::TopicId;
use meridian_consensus::command::{Command, ExpectedVersion, RowChange};
use meridian_mirror::rows::{MirrorTopic, Stage};
use meridian_mirror::rules::{Rule as MirrorRule, Subject};
use meridian_protocol::messages::AclDescription;

use super::*;
use crate::broker::Broker as _;
use crate::kafka::testing::FakeBroker;
use crate::mirror::steward::entries::put_all;
use crate::mirror::steward::follow::LEFT_OUT_COUNT_MAX;
use crate::mirror::testing::mirror;

const LITERAL: PatternType = PatternType::Literal;
const PREFIXED: PatternType = PatternType::Prefixed;

/// What a link has to follow that mirrors topics under these names, and the positions of
/// `billing-.*`.
fn duties(names: &[(&str, &str, Stage)]) -> Duties {
    let row = |(id, (there, here, stage)): (u128, &(&str, &str, Stage))| {
        let source_name = (*there).to_owned();
        let mirror = MirrorTopic { source_name, ..mirror(here, *stage) };
        (TopicId::new(id), mirror, 1)
    };
    let groups = MirrorRule {
        link: "west".to_owned(),
        subject: Subject::Groups,
        include: "billing-.*".to_owned(),
        exclude: None,
    };
    Duties { rules: vec![groups], mirrors: (1..).zip(names).map(row).collect() }
}

fn scope(names: &[(&str, &str)]) -> Scope {
    let names: Vec<_> =
        names.iter().map(|(there, here)| (*there, *here, Stage::Mirroring)).collect();
    Scope::of(&duties(&names), ["billing-eu".to_owned()].into())
}

fn resource(
    kind: ResourceType,
    sort: PatternType,
    name: &str,
    users: &[&str],
) -> DescribeAclsResource {
    let acl = |user: &&str| AclDescription {
        principal: (*user).into(),
        host: "*".into(),
        operation: Operation::Write.code(),
        permission_type: Permission::Allow.code(),
    };
    DescribeAclsResource {
        resource_type: kind.code(),
        resource_name: name.into(),
        pattern_type: sort.code(),
        acls: users.iter().map(acl).collect(),
    }
}

fn topic(sort: PatternType, name: &str) -> DescribeAclsResource {
    resource(ResourceType::Topic, sort, name, &["User:al"])
}

fn rule(kind: ResourceType, sort: PatternType, name: &str) -> Rule {
    Rule {
        pattern: Pattern { kind, pattern_type: sort, name: name.to_owned() },
        principal: Principal::user("al"),
        host: WILDCARD.to_owned(),
        operation: Operation::Write,
        permission: Permission::Allow,
    }
}

/// The patterns of the rules that are wanted here, and what is left out.
fn wanted(scope: &Scope, there: &[DescribeAclsResource]) -> (Vec<String>, Vec<String>) {
    let Wanted { rules, left_out, .. } = Wanted::of("west", scope, there);
    let mut patterns: Vec<String> =
        rules.iter().map(|key| Rule::decode(key).unwrap().pattern.to_string()).collect();
    patterns.sort();
    (patterns, left_out.into_named().into_keys().collect())
}

#[test]
fn rules_are_wanted_that_are_about_what_is_mirrored() {
    let scope = scope(&[("orders", "orders"), ("orders", "copy"), ("bills", "w.bills")]);
    let of_group = |sort, name: &str| resource(ResourceType::Group, sort, name, &["User:al"]);
    let there = [
        topic(LITERAL, "orders"),
        topic(LITERAL, "bills"),
        topic(LITERAL, "secrets"),
        topic(LITERAL, WILDCARD),
        topic(PREFIXED, "ord"),
        topic(PREFIXED, "secr"),
        of_group(LITERAL, "billing-us"),
        of_group(LITERAL, "other"),
        of_group(PREFIXED, "bill"),
        of_group(PREFIXED, "other"),
        resource(ResourceType::Cluster, LITERAL, "kafka-cluster", &["User:al"]),
        resource(ResourceType::TransactionalId, LITERAL, "orders", &["User:al"]),
    ];
    let (patterns, _) = wanted(&scope, &there);
    let expected = [
        "GROUP bill* (prefix)",
        "GROUP billing-us",
        "TOPIC *",
        "TOPIC copy",
        "TOPIC ord* (prefix)",
        "TOPIC orders",
        "TOPIC w.bills",
    ];
    assert_eq!(patterns, expected);
}

#[test]
fn what_can_not_be_set_here_is_named() {
    let scope = scope(&[("orders", "orders"), ("bills", "w.bills")]);
    let there = [
        topic(PREFIXED, "bill"),
        resource(ResourceType::Topic, LITERAL, "orders", &["Group:ops", "User:al", "Link:x"]),
        topic(PREFIXED, "o"),
    ];
    let (patterns, left_out) = wanted(&scope, &there);
    assert_eq!(patterns, ["TOPIC o* (prefix)", "TOPIC orders"]);
    let expected =
        ["TOPIC bill* (prefix) of User:al", "TOPIC orders of Group:ops", "TOPIC orders of Link:x"];
    assert_eq!(left_out, expected);

    let users: Vec<String> = (0..60).map(|number| format!("Group:{number}")).collect();
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    let (_, left_out) = wanted(&scope, &[resource(ResourceType::Topic, LITERAL, "orders", &users)]);
    assert_eq!(left_out.len(), LEFT_OUT_COUNT_MAX + 1);
    assert_eq!(left_out[0], "10 more");
}

#[test]
fn the_source_has_no_say_in_what_is_not_mirrored_any_more() {
    let names = [("orders", "orders", Stage::Mirroring), ("bills", "w.bills", Stage::Promoting)];
    let scope = Scope::of(&duties(&names), BTreeSet::new());
    let of = |sort, name: &str| scope.governs(&rule(ResourceType::Topic, sort, name).pattern);
    assert!(of(LITERAL, "orders") && of(LITERAL, WILDCARD) && of(PREFIXED, "ord"));
    assert!(!of(LITERAL, "w.bills") && !of(LITERAL, "bills") && !of(PREFIXED, "w"));
    let scope = Scope::of(&duties(&names[1..]), BTreeSet::new());
    let of = |sort, name: &str| scope.governs(&rule(ResourceType::Topic, sort, name).pattern);
    assert!(!of(LITERAL, WILDCARD) && !of(PREFIXED, "bills"));
}

/// Follows rules on topics of these names; gives how many were set and removed.
async fn follow_names(
    broker: &FakeBroker,
    link: &str,
    scope: &Scope,
    names: &[&str],
) -> (usize, usize) {
    let keys = names.iter().map(|name| rule(ResourceType::Topic, LITERAL, name).encode());
    let items = changes(&broker.state(), link, scope, &keys.collect());
    let (done, failure) = put_all(broker, FOLLOWED.one, &items).await;
    assert!(failure.is_none(), "{failure:?}");
    let count = |told: &str| done.iter().filter(|it| it.told == told).count();
    (count("set"), count("removed"))
}

fn here(broker: &FakeBroker) -> Vec<String> {
    let state = broker.state();
    let rules = state.extra_rows(RowKind::Acl).map(|(key, _)| Rule::decode(key).unwrap());
    rules.map(|rule| rule.pattern.name).collect()
}

async fn make(broker: &FakeBroker, name: &str) {
    let change = RowChange {
        kind: RowKind::Acl,
        key: rule(ResourceType::Topic, LITERAL, name).encode(),
        value: Some(Vec::new()),
        expected: ExpectedVersion::Any,
    };
    broker.propose(Command::PutRows(vec![change])).await.expect("no condition");
}

#[tokio::test]
async fn rules_come_and_go_as_at_the_source_and_own_ones_stay() {
    let broker = FakeBroker::single();
    let scope = scope(&[("a", "a"), ("b", "b"), ("own", "own")]);
    make(&broker, "own").await;
    assert_eq!(follow_names(&broker, "west", &scope, &["a", "b", "own"]).await, (2, 0));
    assert_eq!(follow_names(&broker, "west", &scope, &["a", "b", "own"]).await, (0, 0));
    assert_eq!(here(&broker), ["a", "b", "own"]);
    // Another link has set it too: it stays until both have let go of it.
    assert_eq!(follow_names(&broker, "north", &scope, &["a"]).await, (0, 0));
    assert_eq!(follow_names(&broker, "west", &scope, &["b"]).await, (0, 0));
    assert_eq!(here(&broker), ["a", "b", "own"]);
    assert_eq!(follow_names(&broker, "north", &scope, &[]).await, (0, 1));
    assert_eq!(follow_names(&broker, "west", &scope, &[]).await, (0, 1));
    assert_eq!(here(&broker), ["own"]);
    assert_eq!(broker.state().extra_rows(RowKind::CarriedAcl).count(), 0);
}

#[tokio::test]
async fn two_links_that_let_go_of_a_rule_at_once_do_not_leave_it_behind() {
    let broker = FakeBroker::single();
    let scope = scope(&[("a", "a")]);
    follow_names(&broker, "west", &scope, &["a"]).await;
    follow_names(&broker, "north", &scope, &["a"]).await;
    let of = |link| changes(&broker.state(), link, &scope, &BTreeSet::new());
    let (west, north) = (of("west"), of("north"));
    assert!(put_all(&*broker, FOLLOWED.one, &west).await.1.is_none());
    let failure = put_all(&*broker, FOLLOWED.one, &north).await.1.expect("it was read before");
    assert!(failure.to_string().starts_with("access rule ALLOW WRITE on TOPIC a"), "{failure}");
    assert_eq!(follow_names(&broker, "north", &scope, &[]).await, (0, 1));
    assert_eq!(here(&broker), [""; 0]);
}

#[tokio::test]
async fn rules_of_a_promoted_mirror_stay_and_follow_again_when_it_is_a_mirror_again() {
    let broker = FakeBroker::single();
    let mirrored = scope(&[("a", "a")]);
    follow_names(&broker, "west", &mirrored, &["a"]).await;
    let promoted = scope(&[]);
    assert_eq!(follow_names(&broker, "west", &promoted, &[]).await, (0, 0));
    assert_eq!(here(&broker), ["a"]);
    assert_eq!(follow_names(&broker, "west", &mirrored, &[]).await, (0, 1));
    assert_eq!(here(&broker), [""; 0]);
}

#[tokio::test]
async fn many_rules_follow_by_few_entries() {
    let broker = FakeBroker::single();
    let names: Vec<String> = (0..2000).map(|number| format!("t{number}")).collect();
    let pairs: Vec<(&str, &str)> = names.iter().map(|it| (it.as_str(), it.as_str())).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(follow_names(&broker, "west", &scope(&pairs), &names).await, (2000, 0));
    assert_eq!(follow_names(&broker, "west", &scope(&pairs), &names).await, (0, 0));
}
