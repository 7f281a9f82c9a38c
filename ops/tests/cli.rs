//! The binary as an operator uses it: one node, one development cluster, real processes.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json as literal};

use self::common::{Running, Scratch, base_port, json, meridian, ok, run, text};

mod common;

fn produce(bootstrap: &str, arguments: &[&str], lines: &str) -> Value {
    let mut child = meridian(&["topic", "produce", "-b", bootstrap, "-o", "json"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// As `Type=notify` of the service expects it.
#[test]
fn systemd_hears_when_a_node_serves_and_when_it_stops() {
    let folder = Scratch::new("notify");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let data = folder.path().join("data");
    let mut node = meridian(&["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .env("NOTIFY_SOCKET", &path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut heard = [0; 1024];
    let mut hear = || {
        let size_bytes = socket.recv(&mut heard).unwrap();
        text(&heard[..size_bytes])
    };
    let ready = hear();
    assert!(ready.contains("READY=1") && ready.contains("STATUS=serves clients on 127.0.0.1:"));
    let stop = Command::new("kill").arg(node.id().to_string()).status();
    assert!(stop.unwrap().success());
    assert!(hear().contains("STOPPING=1"));
    assert!(node.wait().unwrap().success());
}

#[test]
fn a_configuration_is_checked_without_a_start() {
    let folder = Scratch::new("check");
    let file = folder.path().join("node.toml");
    let data = folder.path().join("data");
    let configuration = |geometry: &str| {
        format!(
            "[node]\nid = 7\ndatacenter = \"fra\"\nrack = \"fra-1\"\ndata = {data:?}\n[listen]\nkafka = \
             \"127.0.0.1:9092\"\n[cluster]\nid = \"aaaaaaaaaaaaaaaaaaaaaa\"\ngeometry = {geometry:?}\n[[cluster.nodes]]\nid = 7\n\
             datacenter = \"fra\"\nrack = \"fra-1\"\npeer = \"127.0.0.1:9192\"\n"
        )
    };
    let file_name = file.to_str().unwrap();
    let check = ["serve", "--check", "--config", file_name];
    fs::write(&file, configuration("none")).unwrap();
    let said = ok(&check);
    assert!(said.contains("can be used") && said.contains("node 7 in fra, rack fra-1"), "{said}");
    let without = ["serve", "--check", "--data", data.to_str().unwrap()];
    for arguments in [&without[..], &["serve", "--check"]] {
        assert!(!run(arguments).status.success(), "there is no file to check: {arguments:?}");
    }
    assert!(!data.exists(), "nothing is made");
    fs::write(&file, configuration("circle")).unwrap();
    let refused = run(&check);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains(file_name), "{}", text(&refused.stderr));
    fs::write(&file, configuration("none") + "[tls]\nfolder = \"nowhere\"\n").unwrap();
    let refused = text(&run(&check).stderr);
    assert!(refused.contains("nowhere"), "{refused}");
    fs::write(&file, configuration("none") + "[security]\nsecret_key_file = \"no.key\"\n").unwrap();
    let refused = text(&run(&check).stderr);
    assert!(refused.contains("no.key"), "{refused}");
}

#[test]
fn a_single_node_serves_topics_and_records() {
    let folder = Scratch::new("single");
    let mut node = Running::start(&["serve", "--listen", "127.0.0.1:0"], folder.path());
    let at = &node.wait_for("ready: serving Kafka clients on ");

    let created = json(&["topic", "create", "t", "-p", "3", "-b", at, "-o", "json"]);
    assert_eq!(created["partitions"], 3);
    let again = run(&["topic", "create", "t", "-b", at]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("TOPIC_ALREADY_EXISTS"));

    let lines: String = (0..1000).map(|number| format!("k{}:v{number}\n", number % 7)).collect();
    let written = produce(at, &["t", "--key-separator", ":"], &lines);
    assert_eq!(written["records"], 1000);
    let read = ok(&["topic", "consume", "t", "-b", at, "--key-separator", ":"]);
    for key in 0..7 {
        // Records of a key stay in order.
        let of_key = |text: &str| -> Vec<String> {
            let prefix = format!("k{key}:");
            text.lines().filter(|line| line.starts_with(&prefix)).map(str::to_owned).collect()
        };
        assert_eq!(of_key(&read), of_key(&lines));
    }
    assert_eq!(read.lines().count(), 1000);

    let one = ["topic", "consume", "t", "-b", at, "-p", "0", "--offset", "2", "-n", "1"];
    let record: Value = json(&[&one[..], &["-o", "json"]].concat());
    assert_eq!((&record["partition"], &record["offset"]), (&0.into(), &2.into()));
    assert_eq!(run(&["topic", "consume", "none", "-b", at]).status.code(), Some(1));

    assert!(ok(&["topic", "alter", "t", "-b", at, "-c", "retention.ms=5000"]).contains("changed"));
    let described = json(&["topic", "describe", "t", "-b", at, "-o", "json"]);
    assert_eq!(described["configs"][0]["name"], "retention.ms");
    let refused = run(&["topic", "delete", "t", "-b", at]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    ok(&["topic", "delete", "t", "-b", at, "--yes"]);
    assert_eq!(json(&["topic", "list", "-b", at, "-o", "json"]), Value::Array(Vec::new()));

    // All that a single node can be; it is not degraded for having no second.
    let status = json(&["cluster", "status", "-b", at, "-o", "json"]);
    assert_eq!(status["tolerates"], "nothing");
    assert_eq!(json(&["node", "describe", "1", "-b", at, "-o", "json"])["id"], 1);
    assert!(node.interrupt().success());
}

#[test]
fn the_load_generator_counts_what_it_wrote_and_read() {
    let folder = Scratch::new("bench");
    let mut node = Running::start(&["serve", "--listen", "127.0.0.1:0"], folder.path());
    let at = &node.wait_for("ready: serving Kafka clients on ");
    let side = |report: &Value, index: usize| report["sides"][index].clone();

    let load = ["--records", "5000", "--partitions", "2", "--size", "100", "-o", "json", "-b", at];
    let full = json(&[&["bench", "full", "--topic", "f"], &load[..]].concat());
    for index in [0, 1] {
        assert_eq!(side(&full, index)["records"], 5000);
        assert_eq!(side(&full, index)["payload_bytes"], 500_000);
        assert_eq!(side(&full, index)["errors"], 0);
        assert!(side(&full, index)["latency_ms"]["p99"].as_f64().unwrap() > 0.0);
    }
    let paced = ["--rate", "2000", "--connections", "3"];
    let paced = json(&[&["bench", "produce", "--topic", "f"], &load[..], &paced].concat());
    assert_eq!(side(&paced, 0)["records"], 5000);
    // 5000 records at 2000 a second are due within 2.5 seconds, and not before.
    assert!(side(&paced, 0)["elapsed_s"].as_f64().unwrap() > 2.4);
    let read = json(&["bench", "consume", "--topic", "f", "-b", at, "-o", "json"]);
    assert_eq!(side(&read, 0)["records"], 10_000);
    // Twice, as the records of an earlier run must not count.
    for _ in 0..2 {
        let chain = ["--instances", "2", "--services", "2", "--rate", "100", "--duration", "1"];
        let bars = ["--warmup", "0", "--linger-ms", "3", "--bar-ms", "60000", "-o", "json"];
        let chain = json(&[&["bench", "chain", "-b", at][..], &chain, &bars].concat());
        assert_eq!(
            (&chain["records"], &chain["missing"]),
            (&literal!(200), &literal!(0)),
            "{chain}"
        );
        assert_eq!(chain["holds"], true);
    }
    let late = ["bench", "chain", "-b", at, "--duration", "1", "--warmup", "0", "--bar-ms", "0"];
    assert_eq!(run(&late).status.code(), Some(2));
    let many = ["bench", "produce", "-b", at, "--in-flight", "9"];
    assert!(text(&run(&many).stderr).contains("--no-idempotence"));
}

#[test]
fn a_development_cluster_can_be_broken_and_mended() {
    let folder = Scratch::new("dev");
    let port = base_port();
    let arguments = ["dev", "--dcs", "3", "--racks", "1", "--base-port", &port, "--data", "d"];
    let mut cluster = Running::start(&arguments, folder.path());
    let bootstrap = &cluster.wait_for("bootstrap ");
    let data = folder.path().join("d");
    let data = data.to_str().unwrap();
    let file = || -> Value {
        serde_json::from_slice(&fs::read(folder.path().join("d/dev.json")).unwrap()).unwrap()
    };
    let layout = file();
    assert_eq!(layout["nodes"].as_array().map(Vec::len), Some(3));

    ok(&["topic", "create", "t", "-p", "3", "-b", bootstrap]);
    assert_eq!(produce(bootstrap, &["t"], "before\n")["records"], 1);
    assert_eq!(ok(&["dev", "kill", "--data", data, "--dc", "A"]), "killed nodes 1\n");
    assert_eq!(file()["nodes"][0]["pid"], Value::Null);
    assert_eq!(produce(bootstrap, &["t"], "meanwhile\n")["records"], 1);
    let unknown = run(&["dev", "kill", "--data", data, "--rack", "Z9"]);
    assert!(text(&unknown.stderr).contains("there is no rack Z9; there are A1, B1, C1"));
    assert_eq!(ok(&["dev", "restart", "--data", data, "--dc", "A"]), "restarted nodes 1\n");
    assert_eq!(file()["nodes"][0]["state"], "up");
    ok(&["dev", "kill", "--data", data, "--dc", "A", "--dc", "B", "--dc", "C"]);
    let first = ok(&["dev", "restart", "--data", data, "--dc", "A"]);
    assert_eq!(first, "started nodes 1; they serve once a majority of the nodes runs\n");
    ok(&["dev", "restart", "--data", data, "--dc", "B", "--dc", "C"]);
    assert_eq!(produce(bootstrap, &["t"], "afterwards\n")["records"], 1);
    ok(&["dev", "pause", "--data", data, "--node", "2"]);
    ok(&["dev", "resume", "--data", data, "--rack", "B1"]);

    let twice = meridian(&arguments).current_dir(folder.path()).output().unwrap();
    assert!(text(&twice.stderr).contains("runs in"), "{}", text(&twice.stderr));
    assert!(cluster.interrupt().success());
    assert!(file()["nodes"].as_array().unwrap().iter().all(|node| node["pid"].is_null()));
    let gone = run(&["dev", "kill", "--data", data, "--node", "1"]);
    assert!(text(&gone.stderr).contains("no cluster runs in"));

    let mut again =
        Running::start(&["dev", "--dcs", "3", "--racks", "1", "--data", "d"], folder.path());
    let bootstrap = &again.wait_for("bootstrap ");
    assert_eq!(file()["cluster_id"], layout["cluster_id"]);
    let read = ok(&["topic", "consume", "t", "-b", bootstrap]);
    let mut lines: Vec<_> = read.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["afterwards", "before", "meanwhile"]);
}

#[test]
fn what_is_unsafe_or_wrong_is_refused_with_its_own_exit_code() {
    let exposed = run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(exposed.status.code(), Some(1));
    assert!(text(&exposed.stderr).contains("--listen needs a port"));
    assert_eq!(run(&["no-such-command"]).status.code(), Some(1));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    for (arguments, hint) in [
        (&["hardware", "--write", "0", "--retention", "7d"][..], "--write must be above 0"),
        (
            &["hardware", "--write", "2MB", "--peak", "1MB", "--retention", "7d"],
            "--peak 1.00 MB/s is below",
        ),
        (&["hardware", "--write", "1MB", "--retention", "7d", "--fan-out", "-1"], "0 or more"),
        (&["hardware", "--write", "1MB", "--retention", "0s"], "--retention must be above 0"),
        (
            &["hardware", "--write", "1MB", "--retention", "-7d"],
            "--retention <RETENTION>': -7d is below 0",
        ),
        (&["hardware", "--write", "-5", "--retention", "7d"], "--write <BYTES>': -5 is below 0"),
        (
            &["cost", "--write", "1MB", "--retention", "7d", "--network", "0"],
            "--network must be above 0",
        ),
        (
            &["cost", "--write", "1MB", "--retention", "7d", "--wan-price", "-1"],
            "--wan-price -1 must be 0",
        ),
        (&["tiering", "--fast", "0", "--drain", "1MB", "--burst", "2MB"], "--fast must be above 0"),
        (
            &["tiering", "--fast", "1GB", "--drain", "0", "--burst", "2MB"],
            "--drain must be above 0",
        ),
        (
            &["tiering", "--fast", "1GB", "--drain", "1MB", "--burst", "0"],
            "--burst must be above 0",
        ),
        (&["tiering", "--fast", "1GB", "--drain", "1MB", "--burst", "-2MB"], "-2MB is below 0"),
        (
            &["retention", "--write", "1MB", "--disk", "1TB", "--nodes", "-9"],
            "'-9' for '--nodes <NODES>'",
        ),
        (&["retention", "--write", "1MB", "--disk", "1TB", "--nodes", "5"], "has nine nodes"),
    ] {
        let refused = run(&[&["plan"], arguments].concat());
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        assert!(text(&refused.stderr).contains(hint), "{arguments:?}: {}", text(&refused.stderr));
    }
    for (arguments, hint) in [
        (&["topic", "create", "t", "-p", "-5"][..], "'-5' for '--partitions <"),
        (&["bench", "produce", "--topic", "t", "--rate", "-1"], "'-1' for '--rate <"),
        (&["node", "drain", "-4"], "'-4' for '<ID>'"),
        (&["disk", "drain", "-4"], "'-4' for '<DISK>'"),
    ] {
        let refused = run(arguments);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        assert!(text(&refused.stderr).contains(hint), "{arguments:?}: {}", text(&refused.stderr));
    }
    // Port 1 has no broker.
    let unreachable = run(&["topic", "list", "-b", "127.0.0.1:1"]);
    assert_eq!(unreachable.status.code(), Some(1));
    assert!(text(&unreachable.stderr).contains("meridian serve"));
}

#[test]
fn share_groups_are_shown_and_set_before_their_first_member_comes() {
    let folder = Scratch::new("shares");
    let mut node = Running::start(&["serve", "--listen", "127.0.0.1:0"], folder.path());
    let at = &node.wait_for("ready: serving Kafka clients on ");
    ok(&["topic", "create", "t", "-p", "2", "-b", at]);
    let lines: String = (0..100).map(|number| format!("{number}\n")).collect();
    produce(at, &["t", "--partition", "0"], &lines);

    let seek = ["share", "seek", "g", "--topic", "t:0", "--to-offset", "40", "-b", at];
    assert_eq!(run(&seek).status.code(), Some(3), "nobody said yes");
    ok(&[&seek[..], &["--yes"]].concat());
    let group = json(&["share", "describe", "g", "-b", at, "-o", "json"]);
    let partition = &group["partitions"][0];
    assert_eq!((&group["state"], &group["lag"]), (&"Empty".into(), &60.into()));
    assert_eq!((&partition["partition"], &partition["start"]), (&0.into(), &40.into()));
    ok(&["share", "seek", "g", "--topic", "t", "--to-latest", "--yes", "-b", at]);
    let group = json(&["share", "describe", "g", "-b", at, "-o", "json"]);
    assert_eq!((&group["partitions"][0]["start"], &group["lag"]), (&100.into(), &0.into()));
    let listed = json(&["share", "list", "-b", at, "-o", "json"]);
    assert_eq!((&listed[0]["group"], &listed[0]["state"]), (&"g".into(), &"Empty".into()));
    ok(&["share", "delete-offsets", "g", "--topic", "t", "--yes", "-b", at]);
    let group = json(&["share", "describe", "g", "-b", at, "-o", "json"]);
    assert_eq!(group["partitions"], Value::Array(Vec::new()));
    ok(&["group", "delete", "g", "--yes", "-b", at]);
    let gone = run(&["share", "describe", "g", "-b", at]);
    assert!(text(&gone.stderr).contains("GROUP_ID_NOT_FOUND"), "{}", text(&gone.stderr));
}

#[test]
fn groups_are_shown_moved_and_deleted() {
    let folder = Scratch::new("groups");
    let mut node = Running::start(&["serve", "--listen", "127.0.0.1:0"], folder.path());
    let at = &node.wait_for("ready: serving Kafka clients on ");
    ok(&["topic", "create", "t", "-p", "2", "-b", at]);
    let lines: String = (0..100).map(|number| format!("{number}\n")).collect();
    produce(at, &["t", "--partition", "0"], &lines);

    let reset = |arguments: &[&str]| {
        json(&[&["group", "reset-offsets", "g", "-b", at, "-o", "json"], arguments].concat())
    };
    let plan = reset(&["--topic", "t:0", "--to-offset", "40"]);
    assert_eq!((&plan["executed"], &plan["positions"][0]["to"]), (&false.into(), &40.into()));
    assert_eq!(ok(&["group", "list", "-b", at]).lines().count(), 1, "nothing was done");
    let done = reset(&["--topic", "t:0", "--to-offset", "40", "--execute"]);
    assert_eq!(done["executed"], true);

    let described = || json(&["group", "describe", "g", "-b", at, "-o", "json"]);
    let group = described();
    assert_eq!((&group["state"], &group["lag"]), (&"Empty".into(), &60.into()));
    assert_eq!(group["partitions"][0]["end"], 100);
    let listed = json(&["group", "list", "-b", at, "-o", "json", "--state", "Empty"]);
    assert_eq!((&listed[0]["group"], &listed[0]["type"]), (&"g".into(), &"classic".into()));

    // Never beyond the ends; relative to where it is.
    assert_eq!(reset(&["--all-topics", "--shift-by", "-50", "--execute"])["positions"][0]["to"], 0);
    assert_eq!(reset(&["--topic", "t", "--to-latest", "--execute"])["positions"][1]["to"], 0);
    assert_eq!(described()["lag"], 0);
    let ago = reset(&["--topic", "t:0", "--by-duration", "1h"]);
    assert_eq!(ago["positions"][0]["to"], 0);
    let place = run(&["group", "reset-offsets", "g", "-b", at, "--topic", "t"]);
    assert_eq!(place.status.code(), Some(1), "it must say where to");
    let stranger = ["group", "reset-offsets", "strange", "-b", at, "--all-topics", "--to-latest"];
    for (arguments, hint) in [
        (&stranger[..], "no position anywhere"),
        (&["group", "describe", "strange", "-b", at], "GROUP_ID_NOT_FOUND"),
        (
            &["group", "delete-offsets", "strange", "--topic", "t", "--yes", "-b", at],
            "GROUP_ID_NOT_FOUND",
        ),
        (&["group", "delete-offsets", "g", "--topic", "t:7", "--yes", "-b", at], "it has 2"),
    ] {
        let refused = run(arguments);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        assert!(text(&refused.stderr).contains(hint), "{arguments:?}: {}", text(&refused.stderr));
    }

    ok(&["group", "delete-offsets", "g", "--topic", "t:1", "--yes", "-b", at]);
    assert_eq!(described()["partitions"].as_array().map(Vec::len), Some(1));
    assert!(ok(&["group", "delete", "g", "--yes", "-b", at]).contains("deleted g"));
    let gone = run(&["group", "delete", "g", "--yes", "-b", at]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("GROUP_ID_NOT_FOUND"), "{}", text(&gone.stderr));
}

#[test]
fn access_rules_are_made_checked_and_removed() {
    let folder = Scratch::new("rules");
    let mut node = Running::start(&["serve", "--listen", "127.0.0.1:0"], folder.path());
    let at = &node.wait_for("ready: serving Kafka clients on ");
    let acl = |arguments: &[&str]| run(&[&["acl"], arguments, &["-b", at]].concat());

    ok(&["acl", "allow", "alice", "read,write", "--topic", "orders", "-b", at]);
    ok(&["acl", "deny", "User:*", "all", "--topic", "secret", "-b", at]);
    ok(&["acl", "grant", "bob", "consumer", "shop.", "--group", "g", "--prefix", "-b", at]);
    let listed = |arguments: &[&str]| {
        let rules = json(&[&["acl", "list"], arguments, &["-b", at, "-o", "json"]].concat());
        rules.as_array().unwrap().len()
    };
    assert_eq!(listed(&[]), 6);
    assert_eq!(listed(&["--topic", "shop.orders"]), 2);
    for (user, operation, topic, code, said) in [
        ("alice", "describe", "orders", 0, "ALLOWED by ALLOW READ on TOPIC orders"),
        ("alice", "read", "secret", 3, "DENIED by DENY ALL on TOPIC secret"),
        ("bob", "write", "shop.orders", 3, "DENIED: nothing allows it"),
    ] {
        let checked = acl(&["check", "--as", user, operation, "--topic", topic]);
        assert_eq!(checked.status.code(), Some(code), "{}", text(&checked.stderr));
        assert!(text(&checked.stdout).starts_with(said), "{}", text(&checked.stdout));
    }
    assert!(text(&acl(&["mode", "report"]).stdout).contains("report"));
    // A node without super users would shut everybody out.
    let refused = acl(&["mode", "enforce", "--yes"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("no super users"), "{}", text(&refused.stderr));
    assert_eq!(json(&["acl", "mode", "-b", at, "-o", "json"])[0]["mode"], "report");

    ok(&["acl", "remove", "alice", "any", "--topic", "orders", "-b", at]);
    assert_eq!(listed(&[]), 4);
    let gone = acl(&["remove", "alice", "any", "--topic", "orders"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(node.interrupt().success());
}

#[test]
fn what_cannot_be_meant_is_refused_before_anybody_is_asked() {
    let reset = ["group", "reset-offsets", "g", "--topic", "t"];
    let to = |arguments: &[&'static str]| [&reset[..], arguments].concat();
    for (arguments, hint) in [
        (vec!["group", "list", "--state", "Odd"], "PreparingRebalance"),
        (vec!["group", "list", "--type", "queue"], "classic"),
        (vec!["group", "delete"], "<GROUP>"),
        (vec!["group", "delete-offsets", "g", "--topic", ":0"], "name a topic"),
        (vec!["group", "delete-offsets", "g", "--topic", "t:x"], "TOPIC:0,1,2"),
        (to(&["--by-duration", "5\u{b5}"]), "such as 90m"),
        (to(&["--to-datetime", "2026-02-30T00:00:00Z"]), "is no time"),
        (to(&["--to-offset", "1", "--to-latest"]), "cannot be used with"),
        (to(&["--to-latest", "--execute", "--dry-run"]), "cannot be used with"),
        (vec!["producer", "seqno", "t", "--producer-id", ""], "1 to 256 bytes"),
        (vec!["producer", "describe", "t", "--producer-id", ""], "1 to 256 bytes"),
        (vec!["producer", "seqno", "t"], "--producer-id"),
        (vec!["topic", "produce", "t", "--producer-id", ""], "1 to 256 bytes"),
        (vec!["link", "alter", "west"], "--bytes-per-second"),
        (vec!["mirror", "switchover", "t", "--within-s", "0"], "0 is not in 1.."),
        (vec!["mirror", "verify", "t", "--from=-1"], "-1 is not in 0.."),
        (vec!["acl", "allow", "alice", "read"], "--topic <NAME>"),
        (vec!["acl", "allow", "alice", "fly", "--topic", "t"], "there are all, read"),
        (vec!["acl", "deny", "alice", "create-tokens", "--topic", "t"], "no operation on"),
        (vec!["acl", "grant", "alice", "consumer", "t"], "add --group ID"),
    ] {
        // Nobody is there.
        let refused = run(&[&arguments[..], &["-b", "127.0.0.1:1"]].concat());
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        let said = text(&refused.stderr);
        assert!(said.contains(hint), "{arguments:?}: {said}");
    }
}
