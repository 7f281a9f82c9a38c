//! Users and access rules on a real node: who has a password gets in, who has a right does what it allows, and both end
//! when they are taken away.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]
#![allow(clippy::disallowed_methods, reason = "these tests watch real processes in real time")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as BASE64};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json as value};

use self::common::{Scratch, free_port, json, ok, run, text};
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

/// Who issues tokens.
struct Issuer(EcdsaKeyPair);

impl Issuer {
    fn new() -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap())
    }

    fn jwks(&self) -> String {
        let (x, y) = self.0.public_key().as_ref()[1..].split_at(32);
        let (x, y) = (BASE64.encode(x), BASE64.encode(y));
        value!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "one", "x": x, "y": y}]}).to_string()
    }

    fn token(&self, audience: &str, ends_in_s: i64) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let ends_at = now.cast_signed() + ends_in_s;
        let claims = value!({"iss": "issuer", "aud": audience, "sub": "al", "exp": ends_at});
        let parts = [value!({"alg": "ES256", "kid": "one"}), claims];
        let message = parts.map(|part| BASE64.encode(part.to_string())).join(".");
        let signature = self.0.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", BASE64.encode(signature))
    }
}

#[test]
fn who_has_a_token_is_the_user_that_it_names() {
    let scratch = Scratch::new("security-tokens");
    let ca = scratch.path().join("ca");
    let mut node = SecuredNode::start(scratch.path(), &ca, false);
    let admin = node.user("admin", &ca);
    let admin = ["--client-config", admin.as_str()];
    let issuer = Issuer::new();
    fs::write(node.path("jwks.json"), Issuer::new().jwks()).unwrap();
    node.configure_listener(
        "oauth_jwks = \"jwks.json\"\noauth_issuer = \"issuer\"\noauth_audience = [\"kafka\"]\n",
    );
    node.restart();
    for topic in ["orders", "bills"] {
        ok(&[&["topic", "create", topic], &admin[..]].concat());
    }
    ok(&[&["acl", "allow", "al", "read,write", "--topic", "orders"], &admin[..]].concat());
    ok(&[&["acl", "mode", "enforce", "--yes"], &admin[..]].concat());

    let client = node.path("token.properties");
    let with = |token: &str| {
        let (secure, ca) = (&node.secure, ca.join("ca.pem"));
        let options = format!(
            "bootstrap.servers={secure}\nsecurity.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n\
             sasl.password={token}\nssl.ca.location={}\n",
            ca.display()
        );
        fs::write(&client, options).unwrap();
        ["--client-config", client.as_str()]
    };
    let good = issuer.token("kafka", 600);
    let said = refused(&[&["topic", "list"], &with(&good)[..]].concat());
    assert!(said.contains("SASL_AUTHENTICATION_FAILED"), "the file has another key: {said}");
    fs::write(node.path("jwks.json"), issuer.jwks()).unwrap();
    let due_at = Instant::now() + WITHIN;
    while !run(&[&["topic", "list"], &with(&good)[..]].concat()).status.success() {
        assert!(Instant::now() < due_at, "the new key was not taken");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(topics(&with(&good)), ["orders"]);
    produce("orders", &with(&good)).unwrap();
    let said = produce("bills", &with(&good)).unwrap_err();
    assert!(said.contains("TOPIC_AUTHORIZATION_FAILED"), "{said}");

    let (expired, foreign) = (issuer.token("kafka", -31), issuer.token("others", 600));
    for token in [&expired, &foreign] {
        let said = refused(&[&["topic", "list"], &with(token)[..]].concat());
        assert!(said.contains("invalid_token"), "{said}");
    }
    node.kill();
    let log = fs::read_to_string(node.path("node.log")).unwrap();
    assert!(log.contains("a client's token is refused"), "{log}");
    for token in [&good, &expired, &foreign] {
        let parts = token.split('.').filter(|part| log.contains(part));
        assert_eq!(parts.count(), 0, "a part of a token is in the log");
    }
}

/// The status of a page's answer, read over TLS.
fn page(address: &str, authority: &Path, path: &str, login: &str) -> String {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority.join("ca.pem")).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address).unwrap());
    let login = match login {
        "" => String::new(),
        login => format!("Authorization: Basic {}\r\n", STANDARD.encode(login)),
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{login}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn operators_log_in_over_tls_whatever_the_rules_say() {
    let scratch = Scratch::new("security-pages");
    let ca = scratch.path().join("ca");
    let mut node = SecuredNode::start(scratch.path(), &ca, false);
    let al = fs::read_to_string(node.user("al", &ca)).unwrap();
    let password = al.lines().find_map(|line| line.strip_prefix("sasl.password=")).unwrap();
    let pages = format!("127.0.0.1:{}", free_port());
    node.configure(
        "[listen]\n",
        &format!(
            "admin = \"{pages}\"\nadmin_certificate = \"server/server.pem\"\n\
             admin_key = \"server/server-key.pem\"\n"
        ),
    );
    node.restart();
    let status = |path: &str, login: &str| page(&pages, &ca, path, login);
    assert_eq!(status("/health", ""), "200");
    assert_eq!(status("/status", ""), "401", "rules are off, and yet it takes a login");
    assert_eq!(status("/status", &format!("al:{password}")), "200");
    assert_eq!(status("/status", "al:wrong"), "401");
    let mut clear = TcpStream::connect(&pages).unwrap();
    clear.write_all(b"GET /health HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _it_may_be_reset = clear.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "it answers no clear text");
}
