//! Clusters of one node that are mirrored, and what is asked of mirrors.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use meridian_client::clock;
use serde_json::Value;

use super::common::{Running, free_port, json, meridian, ok, run, text};

/// Whatever is awaited has come by then, or the test has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of one node that keeps its address and data when it is killed.
pub(crate) struct Cluster {
    pub(crate) address: String,
    arguments: Vec<String>,
    folder: PathBuf,
    process: Option<Running>,
}

impl Cluster {
    pub(crate) fn start(folder: &Path, name: &str) -> Self {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let arguments = ["serve", "--listen", &address].map(str::to_owned).to_vec();
        let mut cluster = Self { address, arguments, folder, process: None };
        cluster.restart();
        cluster
    }

    /// One with a certificate, that serves links over QUIC too.
    pub(crate) fn start_certified(folder: &Path, name: &str) -> Self {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).unwrap();
        let (ca, tls) = (folder.join("ca"), folder.join("tls"));
        let (ca, tls) = (ca.to_str().unwrap(), tls.to_str().unwrap());
        let cluster = ok(&["cert", "ca", "--out", ca]);
        ok(&["cert", "node", "1", "--ca", ca, "--out", tls]);
        let address = format!("127.0.0.1:{}", free_port());
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
            id = "{}"
            geometry = "none"
            nodes = [{{id = 1, datacenter = "A", rack = "A1", peer = "127.0.0.1:1", voter = true}}]
            [tls]
            folder = "tls"
            "#,
            cluster.trim()
        );
        let file = folder.join("node.toml");
        fs::write(&file, text).unwrap();
        let arguments = ["serve", "--config", file.to_str().unwrap()].map(str::to_owned).to_vec();
        let mut cluster = Self { address, arguments, folder, process: None };
        cluster.restart();
        cluster
    }

    /// Makes the certificate of a link to this cluster; gives the options for it.
    pub(crate) fn certify_link(&self) -> Vec<String> {
        let (ca, link) = (self.folder.join("ca"), self.folder.join("link"));
        let (ca, link) = (ca.to_str().unwrap(), link.to_str().unwrap());
        ok(&["cert", "link", "mirror", "--ca", ca, "--out", link]);
        let all = ["--topics", ".*", "--groups", ".*", "--quotas", "--switchover"];
        let allow = ["link", "allow", "mirror", "-b", self.address.as_str()];
        ok(&[&allow[..], &all[..]].concat());
        let options = [
            "security.protocol=QUIC".to_owned(),
            format!("ssl.ca.location={link}/ca.pem"),
            format!("ssl.certificate.location={link}/link.pem"),
            format!("ssl.key.location={link}/link-key.pem"),
        ];
        options.into_iter().flat_map(|option| ["-c".to_owned(), option]).collect()
    }

    pub(crate) fn restart(&mut self) {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let mut process = Running::start(&arguments, &self.folder);
        process.wait_for("ready: serving Kafka clients on ");
        self.process = Some(process);
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// SIGSTOP: it sleeps, and its clock goes on.
    pub(crate) fn pause(&self) {
        self.process.as_ref().unwrap().signal("STOP");
    }

    /// It wakes up where it was.
    pub(crate) fn wake(&self) {
        self.process.as_ref().unwrap().signal("CONT");
    }

    /// What is on its disk now: the node must not run.
    pub(crate) fn save(&self) -> PathBuf {
        assert!(self.process.is_none(), "a disk is copied while nobody writes to it");
        let saved = self.folder.with_extension("saved");
        copy(&self.folder, &saved);
        saved
    }

    /// Puts an older state of its disk back: the node must not run.
    pub(crate) fn restore(&self, saved: &Path) {
        assert!(self.process.is_none(), "a disk is put back while nobody writes to it");
        fs::remove_dir_all(&self.folder).unwrap();
        copy(saved, &self.folder);
    }
}

fn copy(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp")
        .args(["-r", "--sparse=always", "--reflink=auto"])
        .args([from, to])
        .status()
        .unwrap();
    assert!(status.success());
}

/// `record <number>` in lines.
pub(crate) fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|number| format!("record {number}\n")).collect()
}

pub(crate) fn produce(bootstrap: &str, topic: &str, lines: &str) {
    let mut child = meridian(&["topic", "produce", topic, "-b", bootstrap, "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// What a command says in JSON, whatever its exit code; null if it says nothing.
pub(crate) fn said(arguments: &[&str]) -> Value {
    let mut arguments = arguments.to_vec();
    arguments.extend(["-o", "json"]);
    serde_json::from_slice(&run(&arguments).stdout).unwrap_or_default()
}

/// Waits until it is so; says how long it took.
pub(crate) fn wait(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = clock::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
    }
    start.elapsed()
}

/// The partitions of a mirror.
pub(crate) fn status(bootstrap: &str, topic: &str) -> Vec<Value> {
    let status = said(&["mirror", "status", topic, "-b", bootstrap]);
    status["mirrors"][0]["partitions"].as_array().cloned().unwrap_or_default()
}

/// Waits until every partition of a mirror is in this state.
pub(crate) fn wait_for_state(bootstrap: &str, topic: &str, state: &str) -> Duration {
    wait_for_states(bootstrap, topic, &[state])
}

/// Waits until every partition of a mirror is in one of these states.
pub(crate) fn wait_for_states(bootstrap: &str, topic: &str, states: &[&str]) -> Duration {
    let start = clock::now();
    loop {
        let all = status(bootstrap, topic);
        let is_so = |partition: &Value| states.iter().any(|state| partition["state"] == *state);
        if !all.is_empty() && all.iter().all(is_so) {
            return start.elapsed();
        }
        assert!(start.elapsed() < PATIENCE, "{topic} is not {states:?}, but {all:?}");
    }
}

/// The end of each partition.
pub(crate) fn ends(bootstrap: &str, topic: &str) -> Vec<i64> {
    let described = said(&["topic", "describe", topic, "-b", bootstrap]);
    let partitions = described["partition"].as_array().cloned().unwrap_or_default();
    partitions.iter().filter_map(|partition| partition["end_offset"].as_i64()).collect()
}

/// Waits until a mirror has as many records as its source.
pub(crate) fn wait_for_end(from: &str, source: &str, to: &str, mirror: &str) -> Duration {
    let mut wanted = Vec::new();
    wait("the source says where it ends", || {
        wanted = ends(from, source);
        !wanted.is_empty()
    });
    wait(&format!("{mirror} at {wanted:?}"), || ends(to, mirror) == wanted)
}

/// The records of a topic, as text.
pub(crate) fn consumed(bootstrap: &str, topic: &str) -> String {
    ok(&["topic", "consume", topic, "-b", bootstrap])
}

/// A config that is set on a topic.
pub(crate) fn config(bootstrap: &str, topic: &str, name: &str) -> Option<String> {
    let described = json(&["topic", "describe", topic, "-b", bootstrap, "-o", "json"]);
    let set = described["configs"].as_array()?.iter().find(|config| config["name"] == name)?;
    set["value"].as_str().map(str::to_owned)
}

/// The error of a command that must fail with this exit code.
pub(crate) fn refused(code: i32, arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stderr)
}
