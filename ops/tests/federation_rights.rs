//! Access rules and users that follow a link, on real processes: after a failover a client goes on
//! with the rights and the password that it had, and what operators made at the mirror's cluster is
//! as it was.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use meridian_client::Client;
use meridian_client::security::Security;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{MeridianAdminRequest, MeridianAdminResponse};

use self::cluster::{refused, wait};
use self::common::{Scratch, json, ok, run, text};
use self::secured::{SecuredNode, produce};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/secured.rs"]
mod secured;

/// Makes the certificate of a link to a cluster, and grants it everything that a link can
/// read.
fn certify_link(node: &SecuredNode) -> Vec<String> {
    let link = node.path("link");
    ok(&["cert", "link", "mirror", "--ca", &node.path("ca"), "--out", &link]);
    let rights = ["--topics", ".*", "--groups", ".*", "--acls", "--users"];
    ok(&[&["link", "allow", "mirror", "-b", &node.open], &rights[..]].concat());
    let options = [
        "security.protocol=QUIC".to_owned(),
        format!("ssl.ca.location={link}/ca.pem"),
        format!("ssl.certificate.location={link}/link.pem"),
        format!("ssl.key.location={link}/link-key.pem"),
        "sync.acls=true".to_owned(),
        "sync.users=true".to_owned(),
    ];
    options.into_iter().flat_map(|option| ["-c".to_owned(), option]).collect()
}

/// What a node answers a user who asks for the credentials of users.
fn credentials(file: &str) -> MeridianAdminResponse {
    let text = fs::read_to_string(file).unwrap();
    let mut options: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let bootstrap = options.remove("bootstrap.servers").unwrap();
    let authority = options.remove("ssl.ca.location").unwrap();
    options.insert("ssl.ca.pem".to_owned(), fs::read_to_string(authority).unwrap());
    let security = Arc::new(Security::parse(&options).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::secured(&bootstrap, security);
        let (method, body) = ("access.credentials".into(), Bytes::from_static(b"{}"));
        client.query(&MeridianAdminRequest { method, body }).await.unwrap()
    })
}

/// Who may read credentials at a node: super users, and nobody because rules are not enforced.
fn check_credentials(admin: &str, al: &str) {
    let answer = credentials(al);
    assert_eq!(answer.error_code, ErrorCode::PolicyViolation);
    let said = answer.error_message.unwrap();
    assert!(said.contains("User:al may not read credentials"), "{said}");
    let answer = credentials(admin);
    assert_eq!(answer.error_code, ErrorCode::None, "{:?}", answer.error_message);
    assert!(text(&answer.body).contains("stored_key"));
}

#[test]
fn a_client_goes_on_after_a_failover_with_the_rights_and_the_password_that_it_had() {
    let scratch = Scratch::new("federation-rights");
    let authority = scratch.path().join("clients-ca");
    ok(&["cert", "ca", "--out", authority.to_str().unwrap()]);
    let mut source = SecuredNode::start(&scratch.path().join("source"), &authority, true);
    let mirror = SecuredNode::start(&scratch.path().join("mirror"), &authority, true);

    // The source: one who produces, one whose right ends, one who goes.
    let from = ["-b", source.open.as_str()];
    let admin_there = source.user("admin", &authority);
    let al = source.user("al", &authority);
    source.user("guest", &authority);
    check_credentials(&admin_there, &al);
    ok(&[&["topic", "create", "orders", "-p", "1"], &from[..]].concat());
    ok(&[&["acl", "allow", "al", "read,write", "--topic", "orders"], &from[..]].concat());
    ok(&[&["acl", "allow", "bo", "read", "--topic", "ord", "--prefix"], &from[..]].concat());
    ok(&[&["acl", "allow", "dora", "read", "--topic", "other"], &from[..]].concat());

    // The mirror's cluster holds requests to its rules, and has one of its own.
    let admin = mirror.user("admin", &authority);
    let admin = ["--client-config", admin.as_str()];
    ok(&[&["acl", "mode", "enforce", "--yes"], &admin[..]].concat());
    ok(&[&["acl", "allow", "carol", "read", "--topic", "orders"], &admin[..]].concat());
    let options = certify_link(&source);
    let create = ["link", "create", "west", "--source", &source.open];
    let users_alone = ["-c", "sync.users=true"];
    let plain = refused(1, &[&create[..], &users_alone, &admin].concat());
    assert!(plain.contains("set security.protocol to QUIC, SSL, SASL_SSL"), "{plain}");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    ok(&[&create[..], &options, &admin].concat());
    ok(&[&["mirror", "create", "orders", "--link", "west"], &admin[..]].concat());

    let rules = || ok(&[&["acl", "list"], &admin[..]].concat());
    let users = || ok(&[&["user", "list"], &admin[..]].concat());
    wait("rules and users follow", || {
        let (rules, users) = (rules(), users());
        rules.contains("User:al") && rules.contains("User:bo") && users.contains("guest")
    });
    assert!(!rules().contains("User:dora"), "what is not mirrored is this cluster's own matter");
    let link = &json(&[&["link", "describe", "west", "-o", "json"], &admin[..]].concat())[0];
    assert_eq!(link["carried_rules"], 3, "{link}");
    assert!(link["carried_users"].as_u64() >= Some(2), "{link}");
    let here = ["--client-config", al.as_str(), "-b", mirror.secure.as_str()];
    let said = produce("orders", &here).unwrap_err();
    assert!(said.contains("POLICY_VIOLATION"), "it may write, but to no mirror: {said}");

    ok(&[&["acl", "remove", "bo", "read", "--topic", "ord", "--prefix"], &from[..]].concat());
    ok(&[&["user", "delete", "guest", "--yes"], &from[..]].concat());
    wait("what vanishes there vanishes here", || {
        !rules().contains("User:bo") && !users().contains("guest")
    });

    source.kill();
    wait("the failover is done", || {
        run(&[&["mirror", "failover", "orders", "--yes"], &admin[..]].concat()).status.success()
    });
    produce("orders", &here).unwrap();
    let (rules, users) = (rules(), users());
    assert!(rules.contains("User:carol") && rules.contains("User:al"), "{rules}");
    assert!(!rules.contains("User:bo") && users.contains("al") && !users.contains("guest"));
}
