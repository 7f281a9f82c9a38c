//! Two clusters of real processes, one mirroring the other, both killed at random: the mirror is
//! always an exact prefix of its source.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use self::cluster::{Cluster, lines, produce, status, wait, wait_for_end, wait_for_state};
use self::common::{Scratch, json, meridian, ok, run, text};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

const PARTITIONS: usize = 3;

/// Records of each partition in order, each with all that a consumer sees of it.
fn records(bootstrap: &str, topic: &str) -> Vec<Vec<Value>> {
    let mut partitions = vec![Vec::new(); PARTITIONS];
    for line in ok(&["topic", "consume", topic, "-b", bootstrap, "-o", "json"]).lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let partition = usize::try_from(record["partition"].as_u64().unwrap()).unwrap();
        partitions[partition].push(record);
    }
    partitions
}

fn assert_prefix(mirror: &[Vec<Value>], source: &[Vec<Value>]) {
    for (mirror, source) in mirror.iter().zip(source) {
        assert!(mirror.len() <= source.len());
        for (mirror, source) in mirror.iter().zip(source) {
            assert_eq!(mirror, source);
        }
    }
}

#[test]
fn a_mirror_is_an_exact_prefix_through_kills_of_both_sides() {
    let folder = Scratch::new("federation");
    let mut source = Cluster::start_certified(folder.path(), "source");
    let mut mirror = Cluster::start(folder.path(), "mirror");
    let (from, to) = (source.address.clone(), mirror.address.clone());
    let (from, to) = (from.as_str(), to.as_str());
    let count = PARTITIONS.to_string();
    let retention = "retention.ms=-1";
    ok(&["topic", "create", "t", "-p", &count, "-c", retention, "-b", from]);
    produce(from, "t", &lines(0..500));

    // Over QUIC, with a certificate of the source's.
    let options = source.certify_link();
    let mut create = vec!["link", "create", "west", "--source", from, "-b", to];
    create.extend(options.iter().map(String::as_str));
    ok(&create);
    assert_eq!(json(&["link", "list", "-b", to, "-o", "json"])[0]["mirrors"], 0);
    ok(&["link", "test", "west", "-b", to]);
    ok(&["mirror", "create", "t", "--link", "west", "-b", to]);
    wait_for_end(from, "t", to, "t");
    assert_eq!(records(to, "t"), records(from, "t"));
    let configs = json(&["topic", "describe", "t", "-b", to, "-o", "json"])["configs"].clone();
    assert_eq!((&configs[0]["name"], &configs[0]["value"]), (&"retention.ms".into(), &"-1".into()));

    let mut written = 500;
    for round in 0..6 {
        match round % 3 {
            0 => mirror.kill(),
            1 => source.kill(),
            _ => {
                mirror.kill();
                source.kill();
                source.restart();
            }
        }
        if round % 3 == 1 {
            wait_for_state(to, "t", "source-unreachable");
            source.restart();
        } else {
            produce(from, "t", &lines(written..written + 300));
            written += 300;
            mirror.restart();
        }
        produce(from, "t", &lines(written..written + 300));
        written += 300;
        assert_prefix(&records(to, "t"), &records(from, "t"));
    }
    wait_for_end(from, "t", to, "t");
    let (there, here) = (records(from, "t"), records(to, "t"));
    assert_eq!(there.iter().map(Vec::len).sum::<usize>(), written as usize);
    assert_eq!(here, there);

    // Partitions are followed; only the link writes; a cluster that others mirror knows nothing of it.
    ok(&["topic", "alter", "t", "-p", "4", "-b", from]);
    wait("the mirror grows", || status(to, "t").len() == 4);
    let refused = meridian(&["topic", "produce", "t", "-b", to])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(|mut child| {
            child.stdin.take().unwrap().write_all(b"mine\n")?;
            child.wait_with_output()
        })
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("POLICY_VIOLATION"), "{}", text(&refused.stderr));
    assert_eq!(json(&["link", "list", "-b", from, "-o", "json"]), Value::Array(Vec::new()));
}

/// What is said to be equal was compared: the batch that holds the offset, and never nothing.
fn check_comparing(to: &str) {
    let of = |arguments: &[&str]| {
        run(&[&["mirror", "verify", "kept", "-b", to, "-o", "json"], arguments].concat())
    };
    let inside = of(&["--from", "50", "--to", "51"]);
    let inside: Value = serde_json::from_slice(&inside.stdout).unwrap();
    assert_ne!(inside["partitions"][0]["batches"], 0, "{inside}");
    assert_eq!(of(&["--from", "51", "--to", "51"]).status.code(), Some(1));
    assert_eq!(of(&["--from", "5000"]).status.code(), Some(1));
    for unknown in [["divergence", "none"], ["verify", "none"], ["repair", "none"]] {
        let refused = run(&[&["mirror"], &unknown[..], &["-b", to]].concat());
        assert_eq!(refused.status.code(), Some(1), "{unknown:?}");
        assert!(text(&refused.stderr).contains("is no mirror"), "{}", text(&refused.stderr));
    }
}

#[test]
fn what_must_stop_a_mirror_stops_it_and_a_promoted_one_takes_records() {
    let folder = Scratch::new("promotion");
    let mut source = Cluster::start(folder.path(), "source");
    let mirror = Cluster::start(folder.path(), "mirror");
    let from = source.address.clone();
    let (from, to) = (from.as_str(), mirror.address.as_str());
    ok(&["link", "create", "west", "--source", from, "-b", to]);
    let itself = run(&["link", "create", "self", "--source", to, "-b", to]);
    assert!(text(&itself.stderr).contains("this very cluster"));
    for topic in ["kept", "recreated"] {
        ok(&["topic", "create", topic, "-p", "1", "-b", from]);
        produce(from, topic, &lines(0..100));
        ok(&["mirror", "create", topic, "--link", "west", "-b", to]);
        wait_for_end(from, topic, to, topic);
    }
    let busy = run(&["link", "delete", "west", "--yes", "-b", to]);
    assert!(text(&busy.stderr).contains("2 topics still mirror"));
    assert!(!text(&busy.stderr).contains("UNKNOWN_SERVER_ERROR"));

    // The same name, the same number of records, but not the same topic.
    ok(&["topic", "delete", "recreated", "--yes", "-b", from]);
    wait_for_state(to, "recreated", "source-deleted");
    ok(&["topic", "create", "recreated", "-p", "1", "-b", from]);
    produce(from, "recreated", &lines(100..400));
    wait_for_state(to, "recreated", "source-recreated");
    let degraded = run(&["mirror", "status", "recreated", "-b", to]);
    assert_eq!(degraded.status.code(), Some(2));
    assert!(text(&degraded.stdout).contains("`meridian mirror repair --recreate`"));
    // Its cluster answers, but there is nothing to switch over with.
    let refused = run(&["mirror", "failover", "recreated", "-b", to]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("source-recreated"), "{}", text(&refused.stderr));
    ok(&["mirror", "repair", "recreated", "--recreate", "--yes", "-b", to]);
    wait_for_end(from, "recreated", to, "recreated");

    check_comparing(to);

    // A paused mirror does not follow; a resumed one does.
    ok(&["mirror", "pause", "kept", "-b", to]);
    wait_for_state(to, "kept", "paused");
    produce(from, "kept", &lines(100..200));
    ok(&["mirror", "resume", "kept", "-b", to]);
    wait_for_end(from, "kept", to, "kept");

    // With the source gone, nobody knows what is missing.
    source.kill();
    wait_for_state(to, "kept", "source-unreachable");
    let refused = run(&["mirror", "promote", "kept", "-b", to]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    ok(&["mirror", "promote", "kept", "--dry-run", "-b", to]);
    ok(&["mirror", "promote", "kept", "--accept-loss", "--yes", "-b", to]);
    // What its node said of it before counts no more.
    ok(&["mirror", "status", "kept", "-b", to]);
    let again = run(&["mirror", "failover", "kept", "-b", to]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("kept is promoted"), "{}", text(&again.stderr));
    produce(to, "kept", &lines(200..300));
    let output = ok(&["topic", "consume", "kept", "-b", to]);
    let expected: Vec<String> = (0..300).map(|number| format!("record {number}")).collect();
    assert_eq!(output.lines().collect::<Vec<_>>(), expected);

    // Its source comes back, and changes nothing.
    source.restart();
    produce(from, "kept", &lines(900..950));
    assert_eq!(json(&["mirror", "list", "-b", to, "-o", "json"])[0]["stage"], "promoted");
    assert_eq!(ok(&["topic", "consume", "kept", "-b", to]), output);
}

/// What has come over a link: bytes of batches, and of what these took on the way.
fn traffic(bootstrap: &str, link: &str) -> (u64, u64) {
    let link = &json(&["link", "status", link, "-b", bootstrap, "-o", "json"])[0];
    (link["fetched_bytes"].as_u64().unwrap(), link["wire_bytes"].as_u64().unwrap())
}

#[test]
fn what_producers_left_uncompressed_is_compressed_on_the_way_and_arrives_as_it_was() {
    let folder = Scratch::new("compression");
    let source = Cluster::start_certified(folder.path(), "source");
    let mirror = Cluster::start(folder.path(), "mirror");
    let (from, to) = (source.address.as_str(), mirror.address.as_str());
    ok(&["topic", "create", "t", "-p", &PARTITIONS.to_string(), "-b", from]);
    produce(from, "t", &lines(0..20_000));

    let quic = source.certify_link();
    let quic: Vec<&str> = quic.iter().map(String::as_str).collect();
    let plain = ["-c", "compression.type=none"];
    for (link, options) in [("quic", quic.as_slice()), ("tcp", &[]), ("plain", &plain)] {
        ok(&[&["link", "create", link, "--source", from, "-b", to][..], options].concat());
        let topic = format!("over-{link}");
        ok(&["mirror", "create", &topic, "--source-topic", "t", "--link", link, "-b", to]);
        wait_for_end(from, "t", to, &topic);
        assert_eq!(records(to, &topic), records(from, "t"));
        wait("all of it is counted", || traffic(to, link).0 > 20_000 * 10);
    }
    for link in ["quic", "tcp"] {
        let (fetched_bytes, wire_bytes) = traffic(to, link);
        assert!(wire_bytes * 3 < fetched_bytes, "{link}: {wire_bytes} for {fetched_bytes}");
    }
    let (fetched_bytes, wire_bytes) = traffic(to, "plain");
    assert_eq!(wire_bytes, fetched_bytes);
    let told = ok(&["link", "status", "tcp", "-b", to]);
    assert!(told.contains("bytes of batches fetched, "), "{told}");
    let refused = run(&["link", "alter", "tcp", "-c", "compression.type=gzip", "-b", to]);
    assert!(text(&refused.stderr).contains("zstd or none"), "{}", text(&refused.stderr));
}

/// The stage of a mirror: `mirroring`, `promoted`...
fn stage(bootstrap: &str, topic: &str) -> Value {
    let mirrors = json(&["mirror", "list", "-b", bootstrap, "-o", "json"]);
    let mut mirrors = mirrors.as_array().unwrap().iter();
    mirrors.find(|mirror| mirror["topic"] == topic).unwrap()["stage"].clone()
}

/// Both mirrors are to be promoted when their sources are deleted: only one source is.
#[test]
fn a_topic_that_the_source_hides_is_not_taken_for_one_that_is_deleted() {
    let folder = Scratch::new("grants");
    let source = Cluster::start_certified(folder.path(), "source");
    let mut mirror = Cluster::start(folder.path(), "mirror");
    let (from, to) = (source.address.clone(), mirror.address.clone());
    let (from, to) = (from.as_str(), to.as_str());
    let options = source.certify_link();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let create = ["link", "create", "west", "--source", from, "-b", to];
    ok(&[&create[..], &options].concat());
    for topic in ["hidden", "deleted"] {
        ok(&["topic", "create", topic, "-p", "1", "-b", from]);
        produce(from, topic, &lines(0..10));
        let policy = ["--on-delete", "promote"];
        ok(&[&["mirror", "create", topic, "--link", "west", "-b", to][..], &policy].concat());
        wait_for_end(from, topic, to, topic);
    }
    ok(&["link", "allow", "mirror", "--topics", "deleted", "-b", from]);
    wait_for_state(to, "hidden", "source-refused");
    let degraded = run(&["mirror", "status", "hidden", "-b", to]);
    assert_eq!(degraded.status.code(), Some(2));
    assert!(text(&degraded.stdout).contains("`meridian link allow` there"));
    let refused = run(&["mirror", "create", "other", "--link", "west", "-b", to]);
    let told = "does not let this link read topic other";
    assert!(text(&refused.stderr).contains(told), "{}", text(&refused.stderr));

    // It knows nothing of the source from before.
    mirror.kill();
    mirror.restart();
    ok(&["topic", "delete", "deleted", "--yes", "-b", from]);
    wait("the deleted topic's mirror is promoted", || stage(to, "deleted") == "promoted");
    wait_for_state(to, "hidden", "source-refused");
    assert_eq!(stage(to, "hidden"), "mirroring");

    ok(&["link", "allow", "mirror", "--topics", "hidden", "-b", from]);
    produce(from, "hidden", &lines(10..20));
    wait_for_end(from, "hidden", to, "hidden");
    ok(&["link", "disallow", "mirror", "--yes", "-b", from]);
    wait_for_state(to, "hidden", "source-refused");
}
