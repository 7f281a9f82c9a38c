//! Users and access rules on a real node: who has a password gets in, who has a right does what it allows, and both end
//! when they are taken away.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]
#![allow(clippy::disallowed_methods, reason = "these tests watch real processes in real time")]

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::common::{Scratch, json, ok, run, text};
use self::secured::{SecuredNode, produce, refused};

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/secured.rs"]
mod secured;

const WITHIN: Duration = Duration::from_secs(30);

fn topics(as_whom: &[&str]) -> Vec<String> {
    let listed = json(&[&["topic", "list", "-o", "json"], as_whom].concat());
    let name =
        |topic: &Value| topic["topic"].as_str().or(topic["name"].as_str()).unwrap().to_owned();
    listed.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn who_logs_in_does_what_rules_allow_and_no_more() {
    let scratch = Scratch::new("security");
    let ca = scratch.path().join("ca");
    let mut node = SecuredNode::start(scratch.path(), &ca, false);
    let (admin, al) = (node.user("admin", &ca), node.user("al", &ca));
    let (admin, al) = (["--client-config", admin.as_str()], ["--client-config", al.as_str()]);
    for topic in ["orders", "bills"] {
        ok(&[&["topic", "create", topic], &admin[..]].concat());
    }

    // Off, and reported: everybody may do everything.
    assert_eq!(topics(&al), ["bills", "orders"]);
    ok(&[&["acl", "mode", "report"], &admin[..]].concat());
    produce("bills", &al).unwrap();

    ok(&[&["acl", "allow", "al", "read,write", "--topic", "orders"], &admin[..]].concat());
    ok(&[&["acl", "mode", "enforce", "--yes"], &admin[..]].concat());
    let holds = |node: &SecuredNode| {
        produce("orders", &al).unwrap();
        assert_eq!(topics(&al), ["orders"], "what al may not see is not there");
        let said = produce("bills", &al).unwrap_err();
        assert!(said.contains("TOPIC_AUTHORIZATION_FAILED"), "{said}");
        let said = refused(&[&["topic", "create", "more"], &al[..]].concat());
        assert!(said.contains("AUTHORIZATION_FAILED"), "{said}");
        let said = refused(&[&["user", "list"], &al[..]].concat());
        assert!(said.contains("CLUSTER_AUTHORIZATION_FAILED"), "{said}");
        let said = refused(&["topic", "create", "more", "-b", &node.open]);
        assert!(
            said.contains("AUTHORIZATION_FAILED"),
            "who does not log in is User:ANONYMOUS: {said}"
        );
        assert_eq!(topics(&["-b", &node.open]), Vec::<String>::new());
        assert_eq!(topics(&admin), ["bills", "orders"]);
    };
    holds(&node);
    node.restart();
    holds(&node);

    let checked =
        run(&[&["acl", "check", "--as", "al", "write", "--topic", "bills"], &admin[..]].concat());
    assert_eq!(checked.status.code(), Some(3), "{}", text(&checked.stdout));
    ok(&[&["acl", "check", "--as", "al", "write", "--topic", "orders"], &admin[..]].concat());
    ok(&[&["acl", "remove", "al", "write", "--topic", "orders"], &admin[..]].concat());
    let said = produce("orders", &al).unwrap_err();
    assert!(said.contains("AUTHORIZATION_FAILED"), "{said}");

    let said = refused(&[&["topic", "list", "-X", "sasl.password=wrong"], &al[..]].concat());
    assert!(said.contains("SASL_AUTHENTICATION_FAILED"), "{said}");
    let said = refused(&["topic", "list", "-b", &node.secure]);
    assert!(said.contains("set security.protocol"), "{said}");
    ok(&[&["user", "delete", "al", "--yes"], &admin[..]].concat());
    let said = refused(&[&["topic", "list"], &al[..]].concat());
    assert!(said.contains("SASL_AUTHENTICATION_FAILED"), "{said}");
}

#[test]
fn a_new_certificate_needs_no_restart() {
    let scratch = Scratch::new("security-certificates");
    let ca = scratch.path().join("ca");
    let node = SecuredNode::start(scratch.path(), &ca, false);
    let al = node.user("al", &ca);
    ok(&["topic", "list", "--client-config", &al]);

    // Another authority: clients that trust it alone are served once the node has seen the files.
    fs::rename(&ca, scratch.path().join("old-ca")).unwrap();
    ok(&["cert", "ca", "--out", ca.to_str().unwrap()]);
    let as_al = ["topic", "list", "--client-config", &al];
    let said = refused(&as_al);
    assert!(said.contains("no secure connection"), "{said}");
    node.certify(&ca);
    let due_at = Instant::now() + WITHIN;
    while !run(&as_al).status.success() {
        assert!(Instant::now() < due_at, "the certificate was not taken");
        std::thread::sleep(Duration::from_millis(200));
    }
}
