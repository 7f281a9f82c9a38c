use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

fn parse(line: &str) -> Result<Command, clap::Error> {
    Line::try_parse_from(std::iter::once("acl").chain(line.split(' '))).map(|it| it.command)
}

#[track_caller]
fn rules(line: &str) -> Vec<String> {
    let rules = match parse(line).expect("a good line") {
        Command::Allow(change) => change.rules(Permission::Allow),
        Command::Deny(change) => change.rules(Permission::Deny),
        other => panic!("no rules: {other:?}"),
    };
    rules.into_iter().map(|it| it.checked().expect("a good rule").to_string()).collect()
}

#[test]
fn rules_are_read_off_the_command_line() {
    assert_eq!(
        rules("allow alice read,Write --topic orders"),
        [
            "ALLOW READ on TOPIC orders to User:alice from host *",
            "ALLOW WRITE on TOPIC orders to User:alice from host *"
        ]
    );
    assert_eq!(
        rules("deny User:* ALL --group bill --prefix --host 10.0.0.7"),
        ["DENY ALL on GROUP bill* (prefix) to User:* from host 10.0.0.7"]
    );
    assert_eq!(
        rules("allow alice idempotent-write --cluster"),
        ["ALLOW IDEMPOTENT_WRITE on CLUSTER kafka-cluster to User:alice from host *"]
    );
    assert_eq!(
        rules("allow alice write --transactional-id *"),
        ["ALLOW WRITE on TRANSACTIONAL_ID * to User:alice from host *"]
    );
    for bad in [
        "allow alice read",
        "allow alice --topic orders",
        "allow alice read --topic a --group b",
        "allow alice fly --topic a",
        "allow alice any --topic a",
        "allow Role:x read --topic a",
        "allow alice alter --cluster --prefix",
        "check read --topic a",
        "check --as alice read",
        "check --as alice read,write --topic a",
        "grant alice reader a",
        "mode on",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_list_of_a_resource_has_all_rules_about_it() {
    let filter = |line: &str| match parse(line).expect("a good line") {
        Command::List(list) => list.filter(),
        other => panic!("no list: {other:?}"),
    };
    assert_eq!(filter("list"), RuleFilter::ALL);
    let orders = filter("list --topic orders");
    assert_eq!((orders.pattern, orders.name.as_deref()), (PatternFilter::Match, Some("orders")));
    let prefix = filter("list --topic ord --prefix --principal alice --operation read");
    assert_eq!(prefix.pattern, PatternFilter::Exactly(PatternType::Prefixed));
    assert_eq!(prefix.principal.as_deref(), Some("User:alice"));
    assert_eq!(prefix.operation, Some(Operation::Read));
}

#[test]
fn what_is_removed_is_just_what_is_named() {
    let filters = |line: &str| match parse(line).expect("a good line") {
        Command::Remove(remove) => remove.filters(),
        other => panic!("removes nothing: {other:?}"),
    };
    let rule = |permission, operation, pattern_type| Rule {
        pattern: meridian_access::Pattern {
            kind: meridian_access::ResourceType::Topic,
            pattern_type,
            name: "orders".to_owned(),
        },
        principal: Principal::user("alice"),
        host: WILDCARD.to_owned(),
        operation,
        permission,
    };
    let (allow, deny) = (Permission::Allow, Permission::Deny);
    let (literal, prefixed) = (PatternType::Literal, PatternType::Prefixed);
    let all = [
        rule(allow, Operation::Read, literal),
        rule(allow, Operation::Write, literal),
        rule(deny, Operation::Read, literal),
        rule(allow, Operation::Read, prefixed),
    ];
    for (line, expected) in [
        ("remove alice read --topic orders", [true, false, false, false]),
        ("remove alice read,write --topic orders", [true, true, false, false]),
        ("remove alice any --topic orders", [true, true, false, false]),
        ("remove alice any --topic orders --deny", [false, false, true, false]),
        ("remove alice any --topic orders --prefix", [false, false, false, true]),
        ("remove alice any --topic orders --host ::1", [false; 4]),
        ("remove bob any --topic orders", [false; 4]),
        ("remove alice any --group orders", [false; 4]),
    ] {
        let filters = filters(line);
        let removed = all.each_ref().map(|it| filters.iter().any(|filter| filter.matches(it)));
        assert_eq!(removed, expected, "{line}");
    }
}

#[test]
fn a_decision_says_by_what() {
    let decision = |allowed: bool, decided_by: DecidedBy, mode: access::Mode| {
        let rule = Some("ALLOW READ on TOPIC a to User:b from host *".to_owned());
        let besides = meridian_admin_api::Besides::new();
        render_decision(&Decision { allowed, decided_by, rule, mode, besides })
    };
    use access::Mode::{Enforce, Report};
    assert_eq!(
        decision(true, DecidedBy::Rule, Enforce),
        "ALLOWED by ALLOW READ on TOPIC a to User:b from host *\n"
    );
    assert_eq!(decision(false, DecidedBy::Nothing, Enforce), "DENIED: nothing allows it\n");
    assert_eq!(
        decision(true, DecidedBy::SuperUser, Report),
        "ALLOWED: it is a super user\nrules are not enforced: the mode is report\n"
    );
}
