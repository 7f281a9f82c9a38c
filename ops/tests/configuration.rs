//! A table over the configuration: each key is changed on a node that has records, which is started again. Either
//! the start is refused and nothing was written, or all is there. And two processes that are started in one folder,
//! at any point of each other's start-up.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]
#![allow(clippy::disallowed_methods, reason = "these tests stop real processes at real times")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use meridian_client::clock;
use toml::Value;

use self::cluster::{Cluster, said};
use self::common::{Scratch, free_port, meridian, ok, run, text};

#[allow(dead_code, reason = "shared with other tests")]
#[path = "common/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "shared with other tests")]
mod common;

const READY: &str = "ready: serving Kafka clients on ";
const RECORD_COUNT: u32 = 300;
/// Whatever is awaited has come by then, or the test has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// What becomes of a node whose configuration was changed.
enum Outcome {
    /// It does not start, says this, and has written nothing.
    Refused(&'static str),
    /// It starts, and has all that was there.
    Kept,
    /// It starts and has all that was there; later changes are made to this configuration.
    Stays,
    /// It starts as a new node, and leaves what was there as it was.
    Anew,
}

use Outcome::{Anew, Kept, Refused, Stays};

/// A node that runs, and is killed when this is dropped.
struct Node {
    child: Child,
    address: String,
}

impl Node {
    /// Starts a node; what it said if it ended instead.
    fn start(folder: &Path, configuration: &toml::Table) -> Result<Self, String> {
        let file = folder.join("node.toml");
        fs::write(&file, toml::to_string(configuration).unwrap()).unwrap();
        Self::start_with(&["serve", "--config", file.to_str().unwrap()])
    }

    fn start_with(arguments: &[&str]) -> Result<Self, String> {
        Self::serving(spawn(arguments))
    }

    /// Waits until a process serves.
    fn serving(mut child: Child) -> Result<Self, String> {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        match lines.find_map(|line| line.strip_prefix(READY).map(str::to_owned)) {
            Some(address) => Ok(Self { child, address }),
            None => Err(text(&child.wait_with_output().unwrap().stderr)),
        }
    }

    fn stop(mut self) {
        signal(&self.child, "TERM");
        assert!(self.child.wait().unwrap().success());
    }

    fn check(&self, because: &str) {
        let found = ok(&["topic", "consume", "t", "-b", &self.address]);
        assert!(found == lines(), "{because}: {} of {RECORD_COUNT} records", found.lines().count());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn spawn(arguments: &[&str]) -> Child {
    let mut command = meridian(arguments);
    command.env("MERIDIAN_LOG", "warn").stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
}

fn lines() -> String {
    (0..RECORD_COUNT).map(|number| format!("record {number}\n")).collect()
}

fn write_records(node: &Node) {
    write_topic(node, &lines());
}

fn write_topic(node: &Node, lines: &str) {
    ok(&["topic", "create", "t", "-b", &node.address]);
    let mut child = meridian(&["topic", "produce", "t", "-b", &node.address])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The checksum of every file below a folder but locks, and of files that are kept only for their room.
fn contents(folder: &Path, into: &mut BTreeMap<PathBuf, u32>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if path.is_dir() {
            contents(&path, into);
        } else if name != "lock" && !name.starts_with("recycled-") {
            into.insert(path.clone(), crc32c::crc32c(&fs::read(&path).unwrap()));
        }
    }
}

/// Sets a key of a configuration, such as `storage.tiers.fast_bytes`; nothing takes it out.
fn changed(base: &toml::Table, key: &str, value: Option<Value>) -> toml::Table {
    let mut configuration = base.clone();
    let (folder, name) = key.rsplit_once('.').unwrap();
    let mut table = &mut configuration;
    for part in folder.split('.') {
        let empty = || Value::Table(toml::Table::new());
        table = table.entry(part).or_insert_with(empty).as_table_mut().unwrap();
    }
    match value {
        Some(value) => table.insert(name.to_owned(), value),
        None => table.remove(name),
    };
    configuration
}

fn base(address: &str) -> toml::Table {
    let text = format!(
        r#"
        [node]
        id = 1
        datacenter = "A"
        rack = "A1"
        data = "data"
        [listen]
        kafka = "{address}"
        [cluster]
        id = "hYPimP9IdGVheSABTQQQAA"
        geometry = "none"
        [[cluster.nodes]]
        id = 1
        datacenter = "A"
        peer = "127.0.0.1:1"
        [storage]
        capacity_bytes = 268435456
        "#
    );
    text.parse().unwrap()
}

/// Each key of `docs/operating/configuration.md`, another value, and what is to become of it.
fn table(folder: &Path) -> Vec<(&'static str, Option<Value>, Outcome)> {
    let path = |name: &str| Value::from(folder.join(name).to_str().unwrap());
    let text = |text: &str| Some(Value::from(text));
    let number = |number: i64| Some(Value::from(number));
    let names =
        |names: &[&str]| Some(Value::Array(names.iter().map(|name| Value::from(*name)).collect()));
    let url = |name: &str| Some(Value::from(format!("file://{}", folder.join(name).display())));
    let member = |id: i64, datacenter: &str| -> Value {
        let table = format!("id = {id}\ndatacenter = \"{datacenter}\"\npeer = \"127.0.0.1:2\"");
        Value::Table(table.parse().unwrap())
    };
    let nodes = |nodes: &[Value]| Some(Value::Array(nodes.to_vec()));
    let port = || text(&format!("127.0.0.1:{}", free_port()));
    vec![
        ("node.id", number(2), Refused("cluster.nodes")),
        ("node.datacenter", text("B"), Refused("node.datacenter")),
        ("node.rack", text("A2"), Refused("node.rack")),
        ("node.roles", names(&["meta", "gateway"]), Refused("node.roles")),
        ("node.data", text("another"), Anew),
        ("listen.kafka", port(), Kept),
        ("listen.kafka_advertised", text("127.0.0.1:1"), Kept),
        ("listen.peer", port(), Kept),
        ("listen.admin", port(), Kept),
        ("listen.admin_certificate", text("a.pem"), Refused("there is no listen.admin")),
        ("listen.admin_key", text("a-key.pem"), Refused("there is no listen.admin")),
        ("listen.admin_open", names(&["health"]), Kept),
        ("listen.insecure", Some(Value::from(true)), Kept),
        ("cluster.id", text("aaaaaaaaaaaaaaaaaaaaaa"), Refused("cluster.id")),
        ("cluster.geometry", text("one-per-dc"), Refused("cluster.geometry")),
        ("cluster.further_groups", names(&["block-4-2"]), Kept),
        ("cluster.nodes", nodes(&[member(1, "A")]), Kept),
        ("cluster.nodes", nodes(&[member(1, "B")]), Refused("node.datacenter")),
        ("cluster.nodes", nodes(&[member(1, "A"), member(1, "A")]), Refused("lists node 1 twice")),
        ("cluster.nodes", nodes(&[member(2, "A")]), Refused("must list this node")),
        ("tls.folder", text("no-such-tls"), Refused("no-such-tls")),
        ("security.secret_key_file", text("no-such-key"), Refused("no-such-key")),
        ("storage.file_size_bytes", number(32 << 20), Kept),
        ("storage.capacity_bytes", number(512 << 20), Kept),
        ("storage.capacity_bytes", number(80 << 20), Kept),
        ("storage.capacity_bytes", number(79 << 20), Refused("storage.capacity_bytes")),
        ("storage.sync_rest_ms_max", number(0), Kept),
        ("storage.compaction_bytes_per_second", number(1 << 20), Kept),
        ("storage.compaction_memory_bytes", number(1 << 20), Kept),
        ("storage.tiers.capacity_folder", Some(path("nothing-there")), Refused("nothing-there")),
        ("storage.tiers.capacity_folder", Some(path("capacity")), Stays),
        ("storage.tiers.fast_bytes", number(64 << 20), Kept),
        ("storage.tiers.migrate_threshold", Some(Value::from(0.9)), Kept),
        ("storage.tiers.migrate_after_s", number(0), Kept),
        ("storage.tiers.migrate_bytes_per_second", number(1 << 20), Kept),
        ("storage.tiers.capacity_folder", Some(path("other")), Refused("mount the right one")),
        ("storage.tiers", None, Refused("there is no [storage.tiers]")),
        ("scrub.cycle_s", number(0), Kept),
        ("scrub.bytes_per_second_max", number(1 << 20), Kept),
        ("object_store.url", url("nothing-there"), Refused("object_store.url")),
        ("object_store.url", url("bucket"), Stays),
        ("object_store.endpoint", text("http://127.0.0.1:1"), Kept),
        ("object_store.region", text("eu-west-1"), Kept),
        ("object_store.access_key_id", text("key"), Refused("object_store.access_key_id")),
        ("object_store.secret_access_key", text("hush"), Refused("object_store.access_key_id")),
        ("object_store.ca", text("no-such-ca"), Kept),
        ("object_store.bytes_per_second", number(1 << 20), Kept),
        ("object_store.url", url("other"), Kept),
    ]
}

/// Where clients come in, and who may do everything.
fn table_of_clients() -> Vec<(&'static str, Option<Value>, Outcome)> {
    let text = |text: &str| Some(Value::from(text));
    let port = || text(&format!("127.0.0.1:{}", free_port()));
    let names =
        |names: &[&str]| Some(Value::Array(names.iter().map(|name| Value::from(*name)).collect()));
    let listener = || -> Value {
        let address = format!("address = \"127.0.0.1:{}\"", free_port());
        Value::Table(format!("{address}\nprotocol = \"SASL_PLAINTEXT\"").parse().unwrap())
    };
    vec![
        ("listener.NAME", Some(listener()), Stays),
        ("listener.NAME.address", port(), Kept),
        ("listener.NAME.address", text("0.0.0.0:0"), Refused("listener.NAME.protocol")),
        ("listener.NAME.advertised", text("127.0.0.1:1"), Kept),
        ("listener.NAME.protocol", text("PLAINTEXT"), Kept),
        ("listener.NAME.protocol", text("SASL_SSL"), Refused("name certificate and key")),
        ("listener.NAME.certificate", text("server.pem"), Refused("uses no certificate")),
        ("listener.NAME.key", text("server-key.pem"), Refused("uses no certificate")),
        ("listener.NAME.client_ca", text("ca.pem"), Refused("show no certificate")),
        ("listener.NAME.client_auth", text("required"), Refused("name client_ca")),
        ("listener.NAME.client_crl", text("crl.pem"), Refused("has no client_ca")),
        ("listener.NAME.principal", text("CN"), Refused("with SSL alone")),
        ("listener.NAME.principal_rules", names(&["DEFAULT"]), Refused("by a subject")),
        ("listener.NAME.oauth_jwks", text("keys.json"), Refused("listener.NAME.oauth_issuer")),
        ("listener.NAME.oauth_issuer", text("issuer"), Refused("without oauth_jwks")),
        ("listener.NAME.oauth_audience", names(&["kafka"]), Refused("without oauth_jwks")),
        ("listener.NAME.oauth_user_claim", text("sub"), Refused("without oauth_jwks")),
        (
            "listener.NAME.oauth_clock_skew_ms",
            Some(Value::from(1000)),
            Refused("without oauth_jwks"),
        ),
        ("listener.NAME.session_ms_max", Some(Value::from(3_600_000)), Kept),
        ("listener.NAME.session_ms_max", Some(Value::from(0)), Refused("at least")),
        ("security.first_start", text("no-such-file"), Refused("security.super_users")),
        ("security.super_users", names(&["User:admin"]), Stays),
        ("security.first_start", text("no-such-file"), Kept),
        ("security.super_users", names(&["admin"]), Refused("security.super_users")),
    ]
}

/// Changes that take effect on clients and peers, and on nothing that is kept.
fn table_of_limits() -> Vec<(&'static str, Option<Value>, Outcome)> {
    let number = |number: i64| Some(Value::from(number));
    let any = Some(Value::Array(vec![Value::from("")]));
    vec![
        ("heal.after_s", number(0), Kept),
        ("heal.bytes_per_second_max", number(1 << 20), Kept),
        ("heal.share_percent_max", number(10), Kept),
        ("kafka.auto_create_topics", Some(Value::from(false)), Kept),
        ("kafka.partition_count_default", number(7), Kept),
        ("kafka.group_initial_rebalance_delay_ms", number(0), Kept),
        ("kafka.group_size_max", number(1), Kept),
        ("kafka.group_consumer_session_timeout_ms", number(60_000), Kept),
        ("kafka.group_consumer_heartbeat_interval_ms", number(100), Kept),
        ("kafka.offsets_retention_minutes", number(1), Kept),
        ("kafka.client_metrics", any, Kept),
        ("kafka.client_metrics_interval_ms", number(100), Kept),
        ("kafka.offsets.topic.num.partitions", number(3), Kept),
        ("limits.connection_count_max", number(100), Kept),
        ("limits.connection_count_per_ip_max", number(100), Kept),
        ("limits.group_memory_bytes_max", number(1 << 20), Kept),
        ("limits.request_size_bytes_max", number(1 << 20), Kept),
        ("limits.worker_threads", number(1), Kept),
        ("metrics.client_names_max", number(0), Kept),
        ("metrics.topic_names_max", number(0), Kept),
        ("metrics.group_names_max", number(0), Kept),
        ("dev.wan_rtt_ms", Some(Value::from(5.0)), Kept),
    ]
}

/// The keys of the table there.
fn documented() -> BTreeSet<String> {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/configuration.md");
    let document = fs::read_to_string(document).unwrap();
    let mut rows = document.lines().skip_while(|line| !line.starts_with("| key | default |"));
    let rows = rows.by_ref().skip(2).take_while(|line| line.starts_with('|'));
    let mut keys = BTreeSet::new();
    for row in rows {
        keys.extend(row.split('`').nth(1).map(str::to_owned));
    }
    keys
}

#[test]
fn whatever_is_changed_is_refused_or_loses_nothing() {
    let scratch = Scratch::new("configuration");
    let folder = scratch.path();
    for name in ["capacity", "other", "bucket"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    let mut base = base(&format!("127.0.0.1:{}", free_port()));
    let node = Node::start(folder, &base).unwrap();
    write_records(&node);
    node.check("as it was written");
    node.stop();
    let data = folder.join("data");
    let snapshot = || {
        let mut files = BTreeMap::new();
        contents(&data, &mut files);
        files
    };
    let mut table = table(folder);
    table.extend(table_of_clients());
    table.extend(table_of_limits());
    let covered: BTreeSet<&str> = table.iter().map(|(key, ..)| *key).collect();
    let is_covered = |key: &String| covered.contains(&**key);
    let missing: Vec<String> = documented().into_iter().filter(|key| !is_covered(key)).collect();
    assert!(missing.is_empty(), "keys that the table lacks: {missing:?}");
    for (key, value, outcome) in table {
        let configuration = changed(&base, key, value.clone());
        let change = format!("{key} = {value:?}");
        let before = snapshot();
        match (Node::start(folder, &configuration), outcome) {
            (Err(said), Refused(why)) => {
                assert!(said.contains(why), "{change}: {said}");
                assert!(snapshot() == before, "{change} was refused, and something was written");
            }
            (Ok(_), Refused(_)) => panic!("{change} was taken without a word"),
            (Err(said), _) => panic!("{change}: {said}"),
            (Ok(node), Anew) => {
                node.stop();
                assert!(snapshot() == before, "{change} has changed the old folder");
            }
            (Ok(node), outcome) => {
                // Where clients are sent elsewhere they are not served here.
                if key != "listen.kafka_advertised" {
                    node.check(&change);
                }
                node.stop();
                if matches!(outcome, Stays) {
                    base = configuration;
                }
            }
        }
    }
    let node = Node::start(folder, &base).unwrap();
    node.check("after everything was put back");
    node.stop();
    of_an_older_binary(folder, &base);
}

/// A folder that does not say whose it is: the cluster's own metadata says what it was bootstrapped with.
fn of_an_older_binary(folder: &Path, base: &toml::Table) {
    let owner = folder.join("data").join("owner.toml");
    for (key, value) in
        [("cluster.id", "aaaaaaaaaaaaaaaaaaaaaa"), ("cluster.geometry", "one-per-dc")]
    {
        fs::remove_file(&owner).unwrap();
        let configuration = changed(base, key, Some(Value::from(value)));
        let said = Node::start(folder, &configuration).err().unwrap();
        assert!(said.contains("was bootstrapped with") && said.contains(key), "{said}");
        assert!(!owner.exists(), "it is not marked as what it is not");
        Node::start(folder, base).unwrap().check("without its mark");
        assert!(owner.exists(), "it says whose it is from now on");
    }
}

#[test]
fn of_two_processes_in_one_folder_one_serves_whenever_the_other_was_started() {
    let scratch = Scratch::new("twice");
    let data = scratch.path().join("data");
    let data = data.to_str().unwrap();
    let mut written = false;
    for pause_ms in [0, 3, 10, 30, 60, 100, 200, 400, 1000] {
        let serve = || {
            let address = format!("127.0.0.1:{}", free_port());
            spawn(&["serve", "--data", data, "--listen", &address])
        };
        let first = serve();
        std::thread::sleep(Duration::from_millis(pause_ms));
        signal(&first, "STOP");
        let second = Node::serving(serve());
        signal(&first, "CONT");
        let first_pid = first.id();
        let first = Node::serving(first);
        let (node, said) = match (first, second) {
            (Ok(node), Err(said)) => {
                assert!(said.contains(&format!("is in use by process {first_pid} on")), "{said}");
                (node, said)
            }
            (Err(said), Ok(node)) => (node, said),
            (first, second) => {
                let (first, second) = (first.is_ok(), second.is_ok());
                panic!(
                    "stopped after {pause_ms} ms: the first serves: {first}, the second: {second}"
                )
            }
        };
        assert!(said.contains("two processes in one folder"), "{said}");
        if !written {
            write_records(&node);
            written = true;
        }
        node.check(&format!("stopped after {pause_ms} ms"));
        // Killed, as by a power cut of the process.
    }
}

/// Two clusters, bootstrapped apart, whose configuration names one id and one bucket: a restore drill.
#[test]
fn of_two_clusters_of_one_id_and_bucket_only_the_first_deletes_there() {
    const LINE_COUNT: usize = 60_000;
    let scratch = Scratch::new("bucket");
    let bucket = scratch.path().join("bucket");
    fs::create_dir(&bucket).unwrap();
    let start = |name: &str| {
        let folder = scratch.path().join(name);
        fs::create_dir(&folder).unwrap();
        let base = base(&format!("127.0.0.1:{}", free_port()));
        let url = Value::from(format!("file://{}", bucket.display()));
        Node::start(&folder, &changed(&base, "object_store.url", Some(url))).unwrap()
    };
    let first = start("first");
    let lines = "x".repeat(99) + "\n";
    write_topic(&first, &lines.repeat(LINE_COUNT));
    let at = first.address.as_str();
    ok(&["topic", "storage", "convert", "t", "--class", "object", "--after-ms", "0", "-b", at]);
    let objects = || {
        let mut files = BTreeMap::new();
        contents(&bucket, &mut files);
        files.retain(|path, _| !path.ends_with("owner"));
        files
    };
    let packed = |at: &str| {
        let described = run(&["topic", "storage", "describe", "t", "-b", at, "-o", "json"]);
        let described: serde_json::Value =
            serde_json::from_slice(&described.stdout).unwrap_or_default();
        described["partitions"][0]["to_pack_bytes"] == 0 && !objects().is_empty()
    };
    let deadline = clock::now() + PATIENCE;
    while !packed(at) {
        assert!(clock::now() < deadline, "nothing was packed");
        std::thread::sleep(Duration::from_millis(200));
    }
    let before = objects();

    let mut second = start("second");
    ok(&["topic", "create", "t", "-b", &second.address]);
    ok(&["topic", "delete", "t", "-b", &second.address, "--yes"]);
    let of_its_id = run(&["link", "create", "west", "--source", at, "-b", &second.address]);
    assert!(!of_its_id.status.success(), "a link to a cluster of the same id");
    // It says so at its first sweep, and again half a minute later, when it knows of the deleted topic.
    let said = BufReader::new(second.child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let refused = |line: &String| {
        line.contains("objects of deleted topics stay")
            && line.contains("belongs to another cluster of this id")
    };
    let count = said.filter(refused).take(2).count();
    assert_eq!(count, 2, "the second cluster says whose the store is");
    assert!(objects() == before, "the second cluster has changed what the first has put");
    assert_eq!(ok(&["topic", "consume", "t", "-b", at]).lines().count(), LINE_COUNT);
}

/// Two clusters of different ids in one bucket keep apart: each deletes what is its own and nothing else.
#[test]
fn two_clusters_of_different_ids_share_a_bucket_and_keep_apart() {
    const LINE_COUNT: usize = 30_000;
    let scratch = Scratch::new("shared-bucket");
    let bucket = scratch.path().join("bucket");
    fs::create_dir(&bucket).unwrap();
    let lines = ("x".repeat(99) + "\n").repeat(LINE_COUNT);
    let ids = ["hYPimP9IdGVheSABTQQQAA", "bYPimP9IdGVheSABTQQQBB"];
    let objects = |id: &str| {
        let mut files = BTreeMap::new();
        let folder = bucket.join(id);
        if folder.exists() {
            contents(&folder, &mut files);
        }
        files.retain(|path, _| !path.ends_with("owner"));
        files
    };
    let start = |id: &str| {
        let folder = scratch.path().join(id);
        fs::create_dir(&folder).unwrap();
        let base = base(&format!("127.0.0.1:{}", free_port()));
        let base = changed(&base, "cluster.id", Some(Value::from(id)));
        let url = Value::from(format!("file://{}", bucket.display()));
        let node = Node::start(&folder, &changed(&base, "object_store.url", Some(url))).unwrap();
        write_topic(&node, &lines);
        let class = ["topic", "storage", "convert", "t", "--class", "object", "--after-ms", "0"];
        ok(&[&class[..], &["-b", &node.address]].concat());
        node
    };
    let nodes = ids.map(start);
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = clock::now() + PATIENCE;
        while !is_so() {
            assert!(clock::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    wait("both have packed", &|| ids.iter().all(|id| !objects(id).is_empty()));
    let of_first = objects(ids[0]);
    ok(&["topic", "delete", "t", "-b", &nodes[1].address, "--yes"]);
    wait("the second has deleted its own", &|| objects(ids[1]).is_empty());
    let left = objects(ids[0]);
    assert!(of_first.keys().all(|path| left.contains_key(path)), "and none of the first's");
    let consumed = ok(&["topic", "consume", "t", "-b", &nodes[0].address]);
    assert_eq!(consumed.lines().count(), LINE_COUNT);
}

/// Two clusters with one link key: the source names both.
#[test]
fn two_clusters_with_one_link_key_are_named_at_the_source() {
    let scratch = Scratch::new("link-key");
    let source = Cluster::start_certified(scratch.path(), "source");
    ok(&["topic", "create", "t", "-b", &source.address]);
    let options = source.certify_link();
    let mirrors = ["first", "second"].map(|name| Cluster::start(scratch.path(), name));
    let shared = || {
        let status = said(&["cluster", "status", "-b", &source.address]);
        let found = status["conditions"].as_array().cloned().unwrap_or_default();
        let mut found = found.into_iter().filter(|it| it["condition"] == "link_key_shared");
        found.next().map(|it| it["what"].as_str().unwrap().to_owned())
    };
    let mut ids = Vec::new();
    for mirror in &mirrors {
        assert_eq!(shared(), None, "one cluster uses it");
        let at = mirror.address.as_str();
        let mut create = vec!["link", "create", "west", "--source", &source.address, "-b", at];
        create.extend(options.iter().map(String::as_str));
        ok(&create);
        ok(&["mirror", "create", "t", "--link", "west", "-b", at]);
        let status = said(&["cluster", "status", "-b", at]);
        ids.push(status["cluster_id"].as_str().unwrap().to_owned());
    }
    let deadline = clock::now() + PATIENCE;
    let named = loop {
        if let Some(named) = shared() {
            break named;
        }
        assert!(clock::now() < deadline, "the source has not noticed");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(ids.iter().all(|id| named.contains(id)), "{named}, of {ids:?}");
    assert!(named.contains("link mirror: its private key was copied"), "{named}");
}

/// Whether it is a task that panics or whoever holds a lock: others would go on with what it left half changed.
#[test]
fn a_panic_ends_the_node_which_says_where_and_keeps_what_it_acknowledged() {
    let scratch = Scratch::new("panic");
    let data = scratch.path().join("data");
    let data = data.to_str().unwrap();
    let serve = |failpoint: &str| {
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = meridian(&["serve", "--data", data, "--listen", &address]);
        command.env("MERIDIAN_FAILPOINT", failpoint).env("MERIDIAN_LOG", "warn");
        command.env_remove("RUST_BACKTRACE").stdout(Stdio::piped()).stderr(Stdio::piped());
        Node::serving(command.spawn().unwrap()).unwrap()
    };
    let node = serve("");
    write_records(&node);
    node.stop();
    for (failpoint, file) in [("request", "kafka/topics.rs"), ("lock", "kafka/memory.rs")] {
        let mut node = serve(failpoint);
        let refused = run(&["topic", "create", "u", "-b", &node.address]);
        assert!(!refused.status.success(), "{failpoint}: a topic was created");
        let deadline = clock::now() + Duration::from_secs(20);
        while node.child.try_wait().unwrap().is_none() {
            assert!(clock::now() < deadline, "{failpoint}: the node lives on");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut said = String::new();
        node.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let line = said.lines().find(|line| line.contains("panicked at")).unwrap_or_default();
        assert!(line.starts_with("error: the node ends") && line.contains(file), "{said}");
        assert!(line.contains(&format!("failpoint {failpoint}")), "{said}");
        serve("").check(failpoint);
    }
}

#[test]
fn nobody_else_may_read_what_a_node_keeps() {
    let scratch = Scratch::new("rights");
    let data = scratch.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let node = Node::start_with(&["serve", "--data", data.to_str().unwrap(), "--listen", &address]);
    let node = node.unwrap();
    write_records(&node);
    let mut open = Vec::new();
    let mut folders = vec![data];
    while let Some(folder) = folders.pop() {
        let mode = fs::metadata(&folder).unwrap().permissions().mode() & 0o777;
        if mode != 0o700 {
            open.push(format!("{} {mode:o}", folder.display()));
        }
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let about = entry.metadata().unwrap();
            let mode = about.permissions().mode() & 0o777;
            match about.is_dir() {
                true => folders.push(entry.path()),
                false if mode != 0o600 => open.push(format!("{} {mode:o}", entry.path().display())),
                false => {}
            }
        }
    }
    assert!(open.is_empty(), "{open:#?}");
    node.stop();
}
