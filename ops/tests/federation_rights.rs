//! Access rules and users that follow a link, on real processes: after a failover a client goes on
//! with the rights and the password that it had, and what operators made at the mirror's cluster is
//! as it was.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use bytes::Bytes;
use meridian_client::Client;
use meridian_client::security::Security;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{MeridianAdminRequest, MeridianAdminResponse};

use self::cluster::{refused, wait};
use self::common::{Running, Scratch, free_port, json, meridian, ok, run, text};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

/// A cluster of one node with an open listener for loopback, one where clients log in by TLS, and
/// links over QUIC.
struct Node {
    folder: PathBuf,
    open: String,
    secure: String,
    process: Option<Running>,
}

impl Node {
    /// `authority` is the folder of the authority that the clients trust.
    fn start(folder: &Path, authority: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let cluster = ok(&["cert", "ca", "--out", &path("ca")]);
        ok(&["cert", "node", "1", "--ca", &path("ca"), "--out", &path("tls")]);
        let authority = authority.to_str().unwrap();
        let hosts = ["--host", "localhost", "--host", "127.0.0.1"];
        let certify = ["cert", "server", "--ca", authority, "--out", &path("server")];
        ok(&[&certify, &hosts[..]].concat());
        let [open, secure] = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
        let configuration = format!(
            r#"
            [node]
            id = 1
            datacenter = "A"
            rack = "A1"
            data = "data"
            [listen]
            kafka = "{open}"
            [listener.secure]
            address = "{secure}"
            advertised = "localhost:{}"
            protocol = "SASL_SSL"
            certificate = "server/server.pem"
            key = "server/server-key.pem"
            [security]
            super_users = ["User:admin"]
            [cluster]
            id = "{}"
            geometry = "none"
            nodes = [{{id = 1, datacenter = "A", rack = "A1", peer = "127.0.0.1:1", voter = true}}]
            [tls]
            folder = "tls"
            "#,
            secure.rsplit(':').next().unwrap(),
            cluster.trim()
        );
        let file = folder.join("node.toml");
        fs::write(&file, configuration).unwrap();
        let mut process = Running::start(&["serve", "--config", file.to_str().unwrap()], folder);
        process.wait_for("ready: serving Kafka clients on ");
        let folder = folder.to_owned();
        Self { folder, open, secure, process: Some(process) }
    }

    /// Makes a user; gives its client's file.
    fn user(&self, name: &str, authority: &Path) -> String {
        let created = json(&["user", "create", name, "-o", "json", "-b", &self.open]);
        let password = created[0]["password"].as_str().unwrap();
        let file = self.folder.join(format!("{name}.properties"));
        let options = format!(
            "bootstrap.servers={}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n\
             sasl.username={name}\nsasl.password={password}\nssl.ca.location={}\n",
            self.secure,
            authority.join("ca.pem").display()
        );
        fs::write(&file, options).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// Makes the certificate of a link to this cluster, and grants it everything that a link can
    /// read.
    fn certify_link(&self) -> Vec<String> {
        let path = |name: &str| self.folder.join(name).to_str().unwrap().to_owned();
        let link = path("link");
        ok(&["cert", "link", "mirror", "--ca", &path("ca"), "--out", &link]);
        let rights = ["--topics", ".*", "--groups", ".*", "--acls", "--users"];
        ok(&[&["link", "allow", "mirror", "-b", &self.open], &rights[..]].concat());
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
}

fn produce(topic: &str, as_whom: &[&str]) -> Result<(), String> {
    let mut child = meridian(&[&["topic", "produce", topic], as_whom].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _it_may_have_ended = child.stdin.take().unwrap().write_all(b"a record\n");
    let output = child.wait_with_output().unwrap();
    if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
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
    let mut source = Node::start(&scratch.path().join("source"), &authority);
    let mirror = Node::start(&scratch.path().join("mirror"), &authority);

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
    let options = source.certify_link();
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

    source.process = None;
    wait("the failover is done", || {
        run(&[&["mirror", "failover", "orders", "--yes"], &admin[..]].concat()).status.success()
    });
    produce("orders", &here).unwrap();
    let (rules, users) = (rules(), users());
    assert!(rules.contains("User:carol") && rules.contains("User:al"), "{rules}");
    assert!(!rules.contains("User:bo") && users.contains("al") && !users.contains("guest"));
}
