//! Users and access rules on a real node: who has a password gets in, who has a right does what it allows, and both end
//! when they are taken away.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]
#![allow(clippy::disallowed_methods, reason = "these tests watch real processes in real time")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use self::common::{Running, Scratch, free_port, json, meridian, ok, run, text};

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

const WITHIN: Duration = Duration::from_secs(30);

/// A node with an open listener for loopback, and one where clients log in by TLS.
struct Node {
    folder: PathBuf,
    open: String,
    secure: String,
    process: Option<Running>,
}

impl Node {
    fn start(folder: &Path) -> Self {
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let cluster = ok(&["cert", "ca", "--out", &path("ca")]);
        certify(folder);
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
            certificate = "tls/server.pem"
            key = "tls/server-key.pem"
            [security]
            super_users = ["User:admin"]
            [cluster]
            id = "{}"
            geometry = "none"
            nodes = [{{id = 1, datacenter = "A", rack = "A1", peer = "127.0.0.1:1"}}]
            "#,
            secure.rsplit(':').next().unwrap(),
            cluster.trim()
        );
        fs::write(folder.join("node.toml"), configuration).unwrap();
        let mut node = Self { folder: folder.to_owned(), open, secure, process: None };
        node.restart();
        node
    }

    fn restart(&mut self) {
        self.process = None;
        let file = self.folder.join("node.toml");
        let mut process =
            Running::start(&["serve", "--config", file.to_str().unwrap()], &self.folder);
        process.wait_for("ready: serving Kafka clients on ");
        self.process = Some(process);
    }

    /// Makes a user; gives its client's file.
    fn user(&self, name: &str, by: &[&str]) -> String {
        let created = json(&[&["user", "create", name, "-o", "json"], by].concat());
        let password = created[0]["password"].as_str().unwrap();
        let file = self.folder.join(format!("{name}.properties"));
        let options = format!(
            "bootstrap.servers={}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n\
             sasl.username={name}\nsasl.password={password}\nssl.ca.location={}\n",
            self.secure,
            self.folder.join("ca/ca.pem").display()
        );
        fs::write(&file, options).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

/// Makes the certificate of the listener, anew.
fn certify(folder: &Path) {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let hosts = ["--host", "localhost", "--host", "127.0.0.1"];
    ok(&[&["cert", "server", "--ca", &path("ca"), "--out", &path("tls")], &hosts[..]].concat());
}

/// What a command says if it fails.
fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?}: {}", text(&output.stdout));
    text(&output.stderr)
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

fn topics(as_whom: &[&str]) -> Vec<String> {
    let listed = json(&[&["topic", "list", "-o", "json"], as_whom].concat());
    let name =
        |topic: &Value| topic["topic"].as_str().or(topic["name"].as_str()).unwrap().to_owned();
    listed.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn who_logs_in_does_what_rules_allow_and_no_more() {
    let scratch = Scratch::new("security");
    let mut node = Node::start(scratch.path());
    let open = node.open.clone();
    let open = ["-b", open.as_str()];
    let (admin, al) = (node.user("admin", &open), node.user("al", &open));
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
    let holds = |node: &Node| {
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
    let node = Node::start(scratch.path());
    let open = ["-b", node.open.as_str()];
    let al = node.user("al", &open);
    ok(&["topic", "list", "--client-config", &al]);

    // Another authority: clients that trust it alone are served once the node has seen the files.
    fs::rename(scratch.path().join("ca"), scratch.path().join("old-ca")).unwrap();
    ok(&["cert", "ca", "--out", scratch.path().join("ca").to_str().unwrap()]);
    let as_al = ["topic", "list", "--client-config", &al];
    let said = refused(&as_al);
    assert!(said.contains("no secure connection"), "{said}");
    certify(scratch.path());
    let due_at = Instant::now() + WITHIN;
    while !run(&as_al).status.success() {
        assert!(Instant::now() < due_at, "the certificate was not taken");
        std::thread::sleep(Duration::from_millis(200));
    }
}
