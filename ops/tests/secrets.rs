//! The secrets of links on real processes: they are found nowhere, not on the disks of three nodes, nor in what these
//! log, answer or show; and a node without the key says which link that stops.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]
#![allow(clippy::disallowed_methods, reason = "these tests watch real processes in real time")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::cluster::{Cluster, lines, produce, wait_for_end};
use self::common::{Scratch, meridian, ok, run, text};
use self::nodes::{Nodes, until};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "cluster/nodes.rs"]
mod nodes;

const WITHIN: Duration = Duration::from_secs(120);
const PASSWORD: &str = "canary-4d1f-password";
const NEXT_PASSWORD: &str = "canary-77ab-password";

/// Answers a broker's part of SASL and passes all else on to a cluster that knows none.
fn start_sasl_proxy(to: &str) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let to = to.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let to = to.clone();
            std::thread::spawn(move || relay(client, TcpStream::connect(to).ok()?));
        }
    });
    address
}

fn relay(mut client: TcpStream, mut broker: TcpStream) -> Option<()> {
    loop {
        let request = frame(&mut client)?;
        let (key, correlation) = (i16::from_be_bytes([request[0], request[1]]), &request[4..8]);
        let answer = match key {
            // No error; PLAIN.
            17 => [correlation, &[0, 0, 0, 0, 0, 1, 0, 5], b"PLAIN"].concat(),
            // No error, no message, nothing to say.
            36 => [correlation, &[0, 0, 0xff, 0xff, 0, 0, 0, 0]].concat(),
            _ => {
                send(&mut broker, &request)?;
                let mut answer = frame(&mut broker)?;
                // Of SaslAuthenticate only the version that is answered above.
                let all = [0, 36, 0, 0, 0, 2];
                let at = answer.windows(all.len()).position(|it| *it == all).filter(|_| key == 18);
                at.map(|at| answer.splice(at + 4..at + 6, [0, 0]).count());
                answer
            }
        };
        send(&mut client, &answer)?;
    }
}

fn frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut size = [0; 4];
    stream.read_exact(&mut size).ok()?;
    let mut body = vec![0; usize::try_from(u32::from_be_bytes(size)).ok()?];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

fn send(stream: &mut TcpStream, body: &[u8]) -> Option<()> {
    let size = u32::try_from(body.len()).ok()?.to_be_bytes();
    stream.write_all(&[&size, body].concat()).ok()
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

/// Fails if a secret is in one of the files that three nodes have written.
fn assert_nowhere(nodes: &Nodes, secrets: &[String], when: &str) {
    let mut found = Vec::new();
    files(nodes.data(), &mut found);
    let is_metadata = |path: &&PathBuf| path.components().any(|part| part.as_os_str() == "meta");
    assert!(found.iter().filter(is_metadata).count() >= 6, "the metadata was looked at: {found:?}");
    for file in found {
        // A file may go while it is looked at.
        let Ok(bytes) = fs::read(&file) else { continue };
        for secret in secrets {
            let is_in = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!is_in, "{when}: {} has {secret}", file.display());
        }
    }
}

/// What operators are shown, whatever they ask.
fn assert_not_shown(to: &str, secrets: &[String]) {
    for arguments in [
        &["link", "describe", "west", "-o", "json"][..],
        &["link", "describe", "sasl"],
        &["link", "list", "-o", "json"],
        &["link", "test", "sasl"],
        &["link", "test", "west"],
        &["link", "reseal", "-o", "json"],
        &["cluster", "status", "-o", "json"],
        &["mirror", "status", "-o", "json"],
        &["mirror", "rules", "-o", "json"],
        &["export"],
    ] {
        let output = run(&[arguments, &["-b", to]].concat());
        let said = text(&output.stdout) + &text(&output.stderr);
        let shown = secrets.iter().find(|secret| said.contains(*secret));
        assert!(shown.is_none(), "{arguments:?}: {said}");
    }
}

fn conditions(nodes: &Nodes, name: &str) -> Vec<String> {
    let status = nodes.status().unwrap_or_default();
    let found = status["conditions"].as_array().cloned().unwrap_or_default();
    let named = found.iter().filter(|condition| condition["condition"] == name);
    named.map(|condition| condition["what"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_a_link_is_given_in_secret_is_found_nowhere() {
    let folder = Scratch::new("secrets-source");
    let source = Cluster::start_certified(folder.path(), "source");
    let from = source.address.as_str();
    ok(&["topic", "create", "t", "-b", from]);
    produce(from, "t", &lines(0..100));
    let nodes = Nodes::start_ready("secrets", &["--dcs", "3", "--racks", "1"]);
    nodes.wait_until_whole();
    let to = nodes.bootstrap.as_str();

    let options = source.certify_link();
    let mut create = vec!["link", "create", "west", "--source", from, "-b", to];
    create.extend(options.iter().map(String::as_str));
    ok(&create);
    let proxy = start_sasl_proxy(from);
    let sasl = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=mirror"];
    let password = format!("sasl.password={PASSWORD}");
    let mut create = vec!["link", "create", "sasl", "--source", &proxy, "-b", to, "-c", &password];
    create.extend(sasl.iter().flat_map(|option| ["-c", option]));
    ok(&create);
    let password = format!("sasl.password={NEXT_PASSWORD}");
    ok(&["link", "alter", "sasl", "-c", &password, "-b", to]);
    ok(&["link", "pause", "sasl", "-b", to]);
    ok(&["link", "resume", "sasl", "-b", to]);
    ok(&["mirror", "create", "t", "--link", "west", "-b", to]);
    wait_for_end(from, "t", to, "t");

    let key = options.iter().find_map(|option| option.strip_prefix("ssl.key.location=")).unwrap();
    let key = fs::read_to_string(key).unwrap();
    let longest = key.lines().filter(|line| !line.starts_with('-')).max_by_key(|line| line.len());
    let secrets = [PASSWORD, NEXT_PASSWORD, longest.unwrap()].map(str::to_owned);
    assert_nowhere(&nodes, &secrets, "as they run");
    assert_not_shown(to, &secrets);

    let all = ["--dc", "A", "--dc", "B", "--dc", "C"];
    nodes.kill(&all);
    assert_nowhere(&nodes, &secrets, "as they were killed");
    for dc in ["A", "B", "C"] {
        nodes.restart(&["--dc", dc]);
    }
    produce(from, "t", &lines(100..200));
    wait_for_end(from, "t", to, "t");
    assert_nowhere(&nodes, &secrets, "after a restart");
    assert_not_shown(to, &secrets);
    assert!(conditions(&nodes, "secrets_in_clear").is_empty());

    // A node that has lost the key.
    let file = nodes.data().join("node-2/tls/secrets.key");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    fs::rename(&file, file.with_extension("away")).unwrap();
    nodes.kill(&["--node", "2"]);
    nodes.restart(&["--node", "2"]);
    until("the node says which links it can't use", WITHIN, || {
        conditions(&nodes, "secrets_unopened").len() == 2
    });
    for said in conditions(&nodes, "secrets_unopened") {
        assert!(
            said.contains("can't be used on this node") && said.contains("has no key"),
            "{said}"
        );
    }
    fs::rename(file.with_extension("away"), &file).unwrap();
    nodes.kill(&["--node", "2"]);
    nodes.restart(&["--node", "2"]);
    until("the node has its key again", WITHIN, || {
        conditions(&nodes, "secrets_unopened").is_empty()
    });
    nodes.stop();
}

/// Keys are replaced one after the other; nothing of it stops a link.
#[test]
fn a_key_is_replaced_while_links_go_on() {
    let folder = Scratch::new("secret-keys");
    let source = Cluster::start_certified(folder.path(), "source");
    let mut mirror = Cluster::start_certified(folder.path(), "mirror");
    let (from, to) = (source.address.clone(), mirror.address.clone());
    let (from, to) = (from.as_str(), to.as_str());
    let options = source.certify_link();
    let mut create = vec!["link", "create", "west", "--source", from, "-b", to];
    create.extend(options.iter().map(String::as_str));
    ok(&create);
    let file = folder.path().join("mirror/tls/secrets.key");
    let add = ["cert", "secret-key", "--add", "--out", file.to_str().unwrap()];
    let ids = ok(&add);
    let (old, new) = ids.trim().split_once(", ").unwrap();

    let keys = fs::read_to_string(&file).unwrap();
    let mut keys: Vec<&str> = keys.lines().filter(|line| line.len() == 64).collect();
    keys.reverse();
    fs::write(&file, keys.join("\n")).unwrap();
    mirror.kill();
    mirror.restart();
    ok(&["link", "test", "west", "-b", to]);
    assert!(ok(&["link", "reseal", "-b", to]).contains("sealed"));
    assert!(ok(&["link", "reseal", "-b", to]).contains("as it was"));

    // Without the old key all is well; without the new one nothing is.
    fs::write(&file, keys[0]).unwrap();
    mirror.kill();
    mirror.restart();
    ok(&["link", "test", "west", "-b", to]);
    fs::write(&file, keys[1]).unwrap();
    mirror.kill();
    mirror.restart();
    let said = text(&run(&["link", "test", "west", "-b", to]).stderr);
    let why = format!("sealed under key {new}, and this node has {old}");
    assert!(said.contains(&why), "{said}");
    let status = text(&meridian(&["cluster", "status", "-b", to]).output().unwrap().stdout);
    assert!(status.contains(&why), "{status}");
}
