//! Delegation tokens on a real node: who has one acts for its owner, until it ends.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::fs;

use self::common::{Scratch, json, ok};
use self::secured::{SecuredNode, produce, refused};

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/secured.rs"]
mod secured;

#[test]
fn who_has_a_token_does_what_its_owner_may_until_it_ends() {
    let scratch = Scratch::new("delegation");
    let ca = scratch.path().join("ca");
    let mut node = SecuredNode::start(scratch.path(), &ca, false);
    let [admin, al, bo] = ["admin", "al", "bo"].map(|name| node.user(name, &ca));
    let [admin, al, bo] = [&admin, &al, &bo].map(|file| ["--client-config", file.as_str()]);
    for topic in ["orders", "bills"] {
        ok(&[&["topic", "create", topic], &admin[..]].concat());
    }
    ok(&[&["acl", "allow", "al", "read,write", "--topic", "orders"], &admin[..]].concat());
    ok(&[&["acl", "mode", "enforce", "--yes"], &admin[..]].concat());

    let made = json(&[&["token", "create", "--renewer", "bo", "-o", "json"], &al[..]].concat());
    let [id, secret] = ["id", "secret"].map(|key| made[0][key].as_str().unwrap().to_owned());
    let file = node.path("token.properties");
    let jaas = format!(
        "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"{id}\" \
         password=\"{secret}\" tokenauth=\"true\";"
    );
    let options = format!(
        "bootstrap.servers={}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n\
         sasl.jaas.config={jaas}\nssl.ca.location={}\n",
        node.secure,
        ca.join("ca.pem").display()
    );
    fs::write(&file, options).unwrap();
    let by_token = ["--client-config", file.as_str()];
    let holds = |node: &SecuredNode| {
        produce("orders", &by_token).unwrap();
        let said = produce("bills", &by_token).unwrap_err();
        assert!(said.contains("TOPIC_AUTHORIZATION_FAILED"), "{said}");
        for command in [&["create"][..], &["list"], &["renew", &id], &["expire", &id, "--yes"]] {
            let said = refused(&[&["token"], command, &by_token[..]].concat());
            assert!(said.contains("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"), "{command:?}: {said}");
        }
        let said = refused(&["token", "create", "-b", &node.open]);
        assert!(said.contains("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"), "nobody: {said}");
    };
    holds(&node);
    node.restart();
    holds(&node);

    let listed = ok(&[&["token", "list", "-o", "json"], &bo[..]].concat());
    assert!(listed.contains(&id) && !listed.contains(&secret), "{listed}");
    ok(&[&["token", "renew", &id, "--hours", "1"], &bo[..]].concat());
    ok(&[&["token", "expire", &id, "--yes"], &al[..]].concat());
    let said = produce("orders", &by_token).unwrap_err();
    assert!(said.contains("SASL_AUTHENTICATION_FAILED"), "{said}");
    assert_eq!(json(&[&["token", "list", "-o", "json"], &al[..]].concat()), serde_json::json!([]));
}
