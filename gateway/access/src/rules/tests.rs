use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::Pattern;

/// Whether the rule names what begins with `__`, if the topic does.
fn names_reserved(rule: &Rule, resource: Resource<'_>) -> bool {
    let is_reserved = resource.kind == ResourceType::Topic && resource.name.starts_with("__");
    !is_reserved || rule.pattern.name.starts_with("__")
}

/// Kafka's decision, read off the rules one by one; but for topics whose names begin with `__`.
fn decide(
    rules: &BTreeSet<Rule>,
    principal: &Principal,
    host: &str,
    operation: Operation,
    resource: Resource<'_>,
) -> bool {
    use Operation::{All, Alter, AlterConfigs, Delete, Describe, DescribeConfigs, Read, Write};
    let about = |rule: &&Rule| {
        rule.pattern.matches(resource)
            && (rule.principal == *principal || rule.principal == Principal::user("*"))
            && (rule.host == host || rule.host == WILDCARD)
    };
    let mut is_allowed = false;
    for rule in rules.iter().filter(about) {
        let implied: &[Operation] = match operation {
            Describe => &[Read, Write, Delete, Alter],
            DescribeConfigs => &[AlterConfigs],
            _ => &[],
        };
        let is_same = rule.operation == All || rule.operation == operation;
        match rule.permission {
            Permission::Deny if is_same => return false,
            Permission::Deny => {}
            Permission::Allow if names_reserved(rule, resource) => {
                is_allowed |= is_same || implied.contains(&rule.operation);
            }
            Permission::Allow => {}
        }
    }
    is_allowed
}

/// Kafka's answer whether any resource of a type is open, read off the rules one by one.
fn decide_any(
    rules: &BTreeSet<Rule>,
    principal: &Principal,
    host: &str,
    operation: Operation,
    kind: ResourceType,
) -> bool {
    let about = |rule: &&Rule| {
        rule.pattern.kind == kind
            && (rule.principal == *principal || rule.principal == Principal::user("*"))
            && (rule.host == host || rule.host == WILDCARD)
            && (rule.operation == operation || rule.operation == Operation::All)
    };
    let with = |permission| {
        rules
            .iter()
            .filter(about)
            .filter(move |it| it.permission == permission)
            .map(|it| &it.pattern)
    };
    let is_wildcard = |it: &Pattern| it.pattern_type == PatternType::Literal && it.name == WILDCARD;
    if with(Permission::Deny).any(is_wildcard) {
        return false;
    }
    with(Permission::Allow).any(|allowed| {
        let dominates = |denied: &Pattern| match denied.pattern_type {
            PatternType::Prefixed => allowed.name.starts_with(&denied.name),
            PatternType::Literal => {
                allowed.pattern_type == PatternType::Literal && allowed.name == denied.name
            }
        };
        is_wildcard(allowed) || !with(Permission::Deny).any(dominates)
    })
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab]{1,4}",
        1 => Just("*".to_owned()),
        2 => "_{1,3}[ab]{0,1}",
        1 => select(vec!["aé".to_owned(), "aéb".to_owned(), "é".to_owned(), "aèb".to_owned()]),
    ]
}

fn principals() -> impl Strategy<Value = Principal> {
    select(vec!["alice", "bob", "*"]).prop_map(Principal::user)
}

fn rules() -> impl Strategy<Value = Rule> {
    (
        select(vec![ResourceType::Topic, ResourceType::Group]),
        select(PatternType::ALL),
        names(),
        principals(),
        select(vec!["*", "10.0.0.1"]),
        select(Operation::ALL),
        prop_oneof![3 => Just(Permission::Allow), 1 => Just(Permission::Deny)],
    )
        .prop_map(|(kind, pattern_type, name, principal, host, operation, permission)| Rule {
            pattern: Pattern { kind, pattern_type, name },
            principal,
            host: host.to_owned(),
            operation,
            permission,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn decisions_are_those_of_the_rules_one_by_one(
        added in proptest::collection::vec(rules(), 0..24),
        removed in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        name in names(),
        host in select(vec!["10.0.0.1", "10.0.0.2"]),
    ) {
        let (mut index, mut model) = (Rules::default(), BTreeSet::new());
        for rule in &added {
            index.add(rule);
            model.insert(rule.clone());
        }
        for at in removed.iter().filter(|_| !added.is_empty()) {
            let rule = &added[at.index(added.len())];
            index.remove(rule);
            model.remove(rule);
        }
        prop_assert_eq!(index.count(), model.len());
        for principal in ["alice", "bob", "carol"].map(Principal::user) {
            for kind in [ResourceType::Topic, ResourceType::Group] {
                let resource = Resource { kind, name: &name };
                let verdict = index.verdict(&principal, host, resource);
                for operation in Operation::ALL.iter().copied().filter(|it| *it != Operation::All) {
                    let expected = decide(&model, &principal, host, operation, resource);
                    prop_assert_eq!(verdict.allows(operation), expected, "{}", operation);
                    let is_reserved = kind == ResourceType::Topic && name.starts_with("__");
                    let is_ruled = model.iter().any(|it| it.pattern.matches(resource));
                    let is_open = !is_reserved && !is_ruled;
                    prop_assert_eq!(is_open_to_all(&model, resource), is_open);
                    let if_open = verdict.allows_if_open(operation);
                    prop_assert_eq!(if_open, is_open || expected, "open: {}", operation);
                    let rule = deciding(&model, &principal, host, operation, resource);
                    let is_allowed = rule.is_some_and(|it| it.permission == Permission::Allow);
                    prop_assert_eq!(is_allowed, expected, "{}: {:?}", operation, rule);
                    let leaves_any = !model.iter().any(|it| {
                        it.pattern.kind == kind
                            && it.pattern.pattern_type == PatternType::Literal
                            && it.pattern.name == WILDCARD
                    });
                    prop_assert_eq!(index.leaves_any(kind), leaves_any);
                    let expected = decide_any(&model, &principal, host, operation, kind);
                    let any = index.allow_any(&principal, host, operation, kind);
                    prop_assert_eq!(any, expected, "any {}", operation);
                }
            }
        }
        for rule in &added {
            index.remove(rule);
        }
        prop_assert_eq!(index.count(), 0);
        prop_assert!(index.by_kind.values().all(|it| it.literal.is_empty() && it.prefixed.is_empty()));
    }
}

fn allow(operation: Operation, pattern_type: PatternType, name: &str) -> Rule {
    Rule {
        pattern: Pattern { kind: ResourceType::Topic, pattern_type, name: name.to_owned() },
        principal: Principal::user("alice"),
        host: WILDCARD.to_owned(),
        operation,
        permission: Permission::Allow,
    }
}

#[test]
fn without_a_rule_nobody_may_do_anything() {
    let verdict = Rules::default().verdict(&Principal::user("a"), "h", Resource::topic("t"));
    assert!(Operation::ALL.iter().all(|operation| !verdict.allows(*operation)));
}

#[test]
fn a_denial_beats_what_allows_and_implies_nothing() {
    let mut rules = Rules::default();
    rules.add(&allow(Operation::Write, PatternType::Prefixed, "shop."));
    let alice = Principal::user("alice");
    let verdict = |rules: &Rules| rules.verdict(&alice, "::1", Resource::topic("shop.orders"));
    assert!(
        verdict(&rules).allows(Operation::Write) && verdict(&rules).allows(Operation::Describe)
    );
    assert!(!verdict(&rules).allows(Operation::Read));
    let denied = allow(Operation::Write, PatternType::Literal, "shop.orders");
    rules.add(&Rule { permission: Permission::Deny, ..denied });
    assert!(!verdict(&rules).allows(Operation::Write));
    assert!(verdict(&rules).allows(Operation::Describe), "only WRITE is denied");
}

#[test]
fn rules_for_all_topics_do_not_open_those_that_begin_with_two_underscores() {
    let alice = Principal::user("alice");
    let may = |rules: &[&Rule], name: &str| {
        let mut index = Rules::default();
        rules.iter().for_each(|rule| index.add(rule));
        let verdict = index.verdict(&alice, "::1", Resource::topic(name));
        (verdict.allows(Operation::Read), verdict.allows_if_open(Operation::Read))
    };
    let offsets = "__consumer_offsets";
    let all = allow(Operation::All, PatternType::Literal, "*");
    assert_eq!(may(&[&all], "orders"), (true, true));
    assert_eq!(may(&[&all], offsets), (false, false));
    assert!(!may(&[&allow(Operation::Read, PatternType::Prefixed, "_")], offsets).0);
    assert_eq!(may(&[], offsets), (false, false), "they are never open to everybody");
    assert_eq!(may(&[], "orders"), (false, true));
    for (pattern_type, name) in [(PatternType::Literal, offsets), (PatternType::Prefixed, "__")] {
        let named = allow(Operation::Read, pattern_type, name);
        assert_eq!(may(&[&named], offsets), (true, true), "{name}");
        let denied = Rule { permission: Permission::Deny, ..all.clone() };
        assert_eq!(
            may(&[&named, &denied], offsets),
            (false, false),
            "a denial of all is one of it"
        );
    }
}

#[test]
fn one_rule_for_anybody_closes_a_resource() {
    let mut rules = Rules::default();
    let bob = Principal::user("bob");
    let if_open = |rules: &Rules, name: &str| {
        let verdict = rules.verdict(&bob, "::1", Resource::topic(name));
        verdict.allows_if_open(Operation::Write)
    };
    assert!(if_open(&rules, "shop.orders"));
    rules.add(&allow(Operation::Write, PatternType::Prefixed, "shop."));
    assert!(!if_open(&rules, "shop.orders"), "it is alice's now");
    assert!(if_open(&rules, "bills"));
    rules.remove(&allow(Operation::Write, PatternType::Prefixed, "shop."));
    assert!(if_open(&rules, "shop.orders"));
}
