//! Secrets that are planted in a real node are found nowhere: not in its files, its log, or what it answers. A name that
//! is no secret is found, so that the search is known to look.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json as value;

use self::common::{Scratch, free_port, json, meridian, ok, run, text};
use self::secured::SecuredNode;

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/secured.rs"]
mod secured;

const PASSWORD: &str = "canary-81c3-password";
const NEXT_PASSWORD: &str = "canary-2e77-password";
/// Of a link: of the user that it logs in as at the source, and that user's name, which is no secret.
const LINK_PASSWORD: &str = "canary-c90a-password";
const LINK_USER: &str = "canary-user-of-a-link";

/// A secret, in each form that it may be written in.
struct Secret {
    what: &'static str,
    forms: Vec<Vec<u8>>,
}

impl Secret {
    fn text(what: &'static str, text: &str) -> Self {
        Self { what, forms: vec![text.as_bytes().to_vec(), STANDARD.encode(text).into_bytes()] }
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        self.forms.iter().any(|form| contains(bytes, form))
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Every file below a folder.
fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files(&entry.path(), into),
            kind if kind.is_file() => into.push(entry.path()),
            _ => {}
        }
    }
}

fn set_password(command: &str, user: &str, password: &str, to: &[&str]) {
    let arguments = [&["user", command, user, "--password-stdin"], to].concat();
    let mut child = meridian(&arguments);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{arguments:?}");
}

fn page(address: &str, path: &str, login: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    let login = STANDARD.encode(login);
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {login}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// A token of an identity provider, and the file of keys that the node goes by.
fn signed_token() -> (String, String) {
    let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap();
    let (x, y) = key.public_key().as_ref()[1..].split_at(32);
    let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
    let keys = value!({"keys": [{"kty": "EC", "crv": "P-256", "x": x, "y": y}]}).to_string();
    let claims = value!({"iss": "issuer", "aud": "kafka", "sub": "al", "exp": 4_000_000_000_u64});
    let parts = [value!({"alg": "ES256"}), claims];
    let message = parts.map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let signature = key.sign(&random, message.as_bytes()).unwrap();
    (format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)), keys)
}

/// What the node answers to operators, each in its own form.
fn answers(node: &SecuredNode, admin: &[&str], pages: &str) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for arguments in [
        &["user", "list", "-o", "json"][..],
        &["token", "list", "-o", "json"],
        &["token", "list"],
        &["link", "list", "-o", "json"],
        &["link", "describe", "there", "-o", "json"],
        &["link", "test", "there"],
        &["acl", "list", "-o", "json"],
        &["cluster", "status", "-o", "json"],
        &["node", "describe", "1", "-o", "json"],
        &["export"],
        &["user", "list", "-X", "sasl.password=wrong"],
    ] {
        let output = run(&[arguments, admin].concat());
        all.push((arguments.join(" "), [output.stdout, output.stderr].concat()));
    }
    for path in ["/status", "/node", "/metrics", "/health"] {
        let answer = page(pages, path, &format!("admin:{PASSWORD}"));
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{path}: {}", text(&answer));
        all.push((path.to_owned(), answer));
    }
    all.push(("the log".to_owned(), fs::read(node.path("node.log")).unwrap()));
    all
}

/// A node whose log has all that is said of requests and logins, and that takes such tokens.
fn start_node(folder: &Path, pages: &str, keys: String) -> SecuredNode {
    let mut node = SecuredNode::start(folder, &folder.join("ca"), false);
    node.configure("[listen]\n", &format!("admin = \"{pages}\"\n"));
    fs::write(node.path("jwks.json"), keys).unwrap();
    node.configure_listener(
        "oauth_jwks = \"jwks.json\"\noauth_issuer = \"issuer\"\noauth_audience = [\"kafka\"]\n",
    );
    node.log_as("debug");
    node.restart();
    node
}

/// A client's file, outside of what the node has.
fn client_file(folder: &Path, node: &SecuredNode, login: [&str; 3]) -> String {
    let [user, password, mechanism] = login;
    let file = folder.join(format!("{user}-{mechanism}.properties")).to_str().unwrap().to_owned();
    let options = format!(
        "bootstrap.servers={}\nsecurity.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n\
         sasl.username={user}\nsasl.password={password}\nssl.ca.location={}/ca.pem\n",
        node.secure,
        node.path("ca")
    );
    fs::write(&file, options).unwrap();
    file
}

fn create_link(there: &SecuredNode, admin: &[&str]) {
    let authority = format!("ssl.ca.location={}/ca.pem", there.path("ca"));
    let (user, password) =
        (format!("sasl.username={LINK_USER}"), format!("sasl.password={LINK_PASSWORD}"));
    let create = ["link", "create", "there", "--source", &there.secure];
    let security = ["-c", "security.protocol=SASL_SSL", "-c", "sasl.mechanism=SCRAM-SHA-512"];
    let options = ["-c", &user, "-c", &password, "-c", &authority];
    ok(&[&create[..], &security, &options, admin].concat());
}

#[test]
fn planted_secrets_are_found_nowhere() {
    let scratch = Scratch::new("canary");
    let source = scratch.path().join("source");
    let there = SecuredNode::start(&source, &source.join("ca"), false);
    set_password("create", LINK_USER, LINK_PASSWORD, &["-b", &there.open]);
    let pages = format!("127.0.0.1:{}", free_port());
    let (bearer, keys) = signed_token();
    let mut node = start_node(&scratch.path().join("node"), &pages, keys);

    set_password("create", "admin", PASSWORD, &["-b", &node.open]);
    let admin = client_file(scratch.path(), &node, ["admin", PASSWORD, "SCRAM-SHA-512"]);
    let admin = ["--client-config", admin.as_str()];
    ok(&[&["acl", "mode", "enforce", "--yes"], &admin[..]].concat());
    set_password("create", "al", NEXT_PASSWORD, &admin);
    set_password("passwd", "al", PASSWORD, &admin);
    let made = json(&[&["token", "create", "-o", "json"], &admin[..]].concat());
    let [id, token] = ["id", "secret"].map(|key| made[0][key].as_str().unwrap().to_owned());
    for (login, more) in [
        ([&*id, &*token, "SCRAM-SHA-256"], &["-X", "sasl.tokenauth=true"][..]),
        (["al", PASSWORD, "PLAIN"], &[]),
        (["", &*bearer, "OAUTHBEARER"], &[]),
    ] {
        let file = client_file(scratch.path(), &node, login);
        ok(&[&["topic", "list", "--client-config", &file], more].concat());
    }
    create_link(&there, &admin);

    let secret = STANDARD.decode(&token).unwrap();
    let secrets = [
        Secret::text("the password of a user", PASSWORD),
        Secret::text("the password that a user had", NEXT_PASSWORD),
        Secret::text("the password of a link", LINK_PASSWORD),
        Secret { what: "a delegation token", forms: vec![token.into_bytes(), secret] },
        Secret::text("a token of an identity provider", bearer.rsplit_once('.').unwrap().1),
    ];
    for (what, answer) in answers(&node, &admin, &pages) {
        let shown = secrets.iter().find(|secret| secret.is_in(&answer));
        assert!(shown.is_none(), "{what} shows {}: {}", shown.unwrap().what, text(&answer));
    }
    node.restart();
    assert_nowhere(&node, &secrets);
}

/// Nothing that the node has written has a secret.
fn assert_nowhere(node: &SecuredNode, secrets: &[Secret]) {
    let mut found = vec![node.path("node.log").into()];
    files(Path::new(&node.path("data")), &mut found);
    let mut has_name = false;
    for file in found {
        // A file may go while it is looked at.
        let Ok(bytes) = fs::read(&file) else { continue };
        has_name |= contains(&bytes, LINK_USER.as_bytes());
        let shown = secrets.iter().find(|secret| secret.is_in(&bytes));
        assert!(shown.is_none(), "{} has {}", file.display(), shown.unwrap().what);
    }
    assert!(has_name, "what is no secret is found");
}
