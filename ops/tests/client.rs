//! Who uses a real node: in `meridian client`, and in its metrics.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use meridian_protocol::frame;
use meridian_protocol::messages::ApiVersionsRequest;
use serde_json::Value;

use self::common::{Running, Scratch, free_port, json, ok, run, text};

#[allow(dead_code, reason = "each test file needs its own part of it")]
mod common;

/// Whatever is awaited has come by then, or the test has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node of its own cluster.
struct Node {
    _running: Running,
    _scratch: Scratch,
    kafka: String,
    admin: String,
}

impl Node {
    fn start(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let [kafka, admin] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let configuration = format!(
            "[node]\nid = 1\ndatacenter = \"A\"\nrack = \"A1\"\ndata = \"data\"\n[listen]\nkafka = \"{kafka}\"\n\
             admin = \"{admin}\"\n[cluster]\nid = \"hYPimP9IdGVheSABTQQQAA\"\ngeometry = \"none\"\n\
             [[cluster.nodes]]\nid = 1\ndatacenter = \"A\"\npeer = \"127.0.0.1:1\"\n\
             [storage]\ncapacity_bytes = 268435456\n"
        );
        fs::write(scratch.path().join("node.toml"), configuration).unwrap();
        let mut running = Running::start(&["serve", "--config", "node.toml"], scratch.path());
        running.wait_for("ready: serving Kafka clients on ");
        Self { _running: running, _scratch: scratch, kafka, admin }
    }

    /// A page for operators.
    fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// Connects a client that calls itself so, and asks something.
    fn connect(&self, client_id: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.kafka).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = ApiVersionsRequest {
            client_software_name: "shop".into(),
            client_software_version: "1.2".into(),
        };
        let request = frame::encode_request(3, 1, Some(client_id), &request).unwrap();
        stream.write_all(&request.into_bytes()).unwrap();
        let mut size = [0; 4];
        stream.read_exact(&mut size).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(size) as usize];
        stream.read_exact(&mut answer).unwrap();
        stream
    }
}

fn ids(found: &Value) -> Vec<&str> {
    found["clients"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["client_id"].as_str().unwrap())
        .collect()
}

#[test]
fn clients_are_seen_by_name_and_closed() {
    let node = Node::start("client");
    let mut shop = node.connect("shop-7");
    let _other = node.connect("bill\n-1\u{1b}[2J");
    let at = node.kafka.as_str();

    let found = json(&["client", "list", "-b", at, "-o", "json"]);
    assert!(ids(&found).contains(&"shop-7"), "{found}");
    assert!(ids(&found).contains(&"bill\u{fffd}-1\u{fffd}[2J"), "{found}");
    let mine = shop.local_addr().unwrap().to_string();
    let listed = ok(&["client", "list", "-b", at, "--address", &mine]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(listed.contains("User:ANONYMOUS  shop-7     shop 1.2"), "{listed}");
    let described = ok(&["client", "describe", "shop-7", "-b", at]);
    assert!(described.contains(&mine) && described.contains("shop 1.2"), "{described}");
    let nobody = run(&["client", "list", "-b", at, "--address", "10.9.9.9"]);
    assert_eq!(nobody.status.code(), Some(0));
    assert_eq!(text(&nobody.stderr), "no connection fits\n");
    let missing = run(&["client", "describe", "nope", "-b", at]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("no connection has the client id \"nope\""));
    let top = json(&["client", "top", "-b", at, "--interval", "1", "-o", "json"]);
    assert!(ids(&top).contains(&"shop-7"), "{top}");

    let metrics = node.page("/metrics");
    let requests = "meridian_client_requests_total{user=\"ANONYMOUS\",client_id=\"shop-7\"} 1";
    assert!(metrics.lines().any(|line| line == requests), "{metrics}");

    let refused = run(&["client", "kick", "--client-id", "shop-7", "-b", at]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    let dry = ok(&["client", "kick", "--client-id", "shop-7", "--dry-run", "-b", at]);
    assert_eq!(dry, "node 1: 1 would be closed\n");
    assert_eq!(run(&["client", "kick", "-b", at, "--yes"]).status.code(), Some(1));
    let closed = ok(&["client", "kick", "--client-id", "shop-7", "--yes", "-b", at]);
    assert_eq!(closed, "node 1: 1 closed\n");
    assert_eq!(shop.read(&mut [0]).unwrap(), 0, "the connection has ended");
    let none = ok(&["client", "kick", "--client-id", "shop-7", "--yes", "-b", at]);
    assert_eq!(none, "no connection fits\n");
    let closes = "meridian_kafka_closes_total{reason=\"kicked\"} 1";
    assert!(node.page("/metrics").lines().any(|line| line == closes));
}
