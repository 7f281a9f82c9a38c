//! Nine nodes as real processes: how to break and mend them, and what they say of themselves.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Running, Scratch, base_port, ok, run, text};

/// Between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// For every slot to be good again, on a slow machine.
const WHOLE_WITHIN: Duration = Duration::from_secs(120);

/// The cluster. It ends with the test.
pub(crate) struct Nodes {
    pub(crate) bootstrap: String,
    data: PathBuf,
    supervisor: Running,
    // Last: it is removed when nobody uses it any more.
    _folder: Scratch,
}

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) id: i32,
    pub(crate) dc: String,
    pub(crate) rack: String,
    pub(crate) kafka: SocketAddr,
    pub(crate) pid: Option<u64>,
}

/// Waits for a condition.
pub(crate) fn until(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

impl Nodes {
    /// Starts three racks in each of three datacenters.
    pub(crate) fn start() -> Self {
        Self::start_with("cluster", &[])
    }

    /// Starts nodes in a folder of this name, with further options of `meridian dev`.
    pub(crate) fn start_with(name: &str, options: &[&str]) -> Self {
        let nodes = Self::start_ready(name, options);
        nodes.wait_until_whole();
        nodes
    }

    /// Starts nodes, and does not wait after they say that they are ready.
    pub(crate) fn start_ready(name: &str, options: &[&str]) -> Self {
        let folder = Scratch::new(name);
        let data = folder.path().join("d");
        let port = base_port();
        let arguments = ["dev", "--base-port", &port, "--data", data.to_str().unwrap()];
        let arguments: Vec<&str> = arguments.iter().chain(options).copied().collect();
        let mut supervisor = Running::start(&arguments, folder.path());
        let bootstrap = supervisor.wait_for("bootstrap ");
        Self { bootstrap, data, supervisor, _folder: folder }
    }

    /// Ends all nodes in good order.
    pub(crate) fn stop(self) {
        assert!(self.supervisor.interrupt().success());
    }

    /// The folder of their data and logs.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn kill(&self, selection: &[impl AsRef<str>]) {
        self.command("kill", selection);
    }

    pub(crate) fn pause(&self, selection: &[impl AsRef<str>]) {
        self.command("pause", selection);
    }

    pub(crate) fn resume(&self, selection: &[impl AsRef<str>]) {
        self.command("resume", selection);
    }

    /// Starts nodes, and waits until they serve.
    pub(crate) fn restart(&self, selection: &[impl AsRef<str>]) {
        self.command("restart", selection);
    }

    fn command(&self, action: &str, selection: &[impl AsRef<str>]) {
        let arguments = ["dev", action, "--data", self.data.to_str().unwrap()];
        let selection = selection.iter().map(AsRef::as_ref);
        ok(&arguments.into_iter().chain(selection).collect::<Vec<_>>());
    }

    /// All nodes, in the order of their ids.
    pub(crate) fn places(&self) -> Vec<Place> {
        let file = std::fs::read(self.data.join("dev.json")).unwrap();
        let file: Value = serde_json::from_slice(&file).unwrap();
        let place = |node: &Value| Place {
            id: i32::try_from(node["id"].as_i64().unwrap()).unwrap(),
            dc: node["dc"].as_str().unwrap().to_owned(),
            rack: node["rack"].as_str().unwrap().to_owned(),
            kafka: node["kafka"].as_str().unwrap().parse().unwrap(),
            pid: node["pid"].as_u64(),
        };
        file["nodes"].as_array().unwrap().iter().map(place).collect()
    }

    pub(crate) fn place(&self, id: i32) -> Place {
        self.places().into_iter().find(|place| place.id == id).unwrap()
    }

    /// A rack of another datacenter.
    pub(crate) fn rack_elsewhere(&self, dc: &str) -> String {
        self.places().into_iter().find(|place| place.dc != dc).unwrap().rack
    }

    /// What the cluster says of itself, if it answers.
    pub(crate) fn status(&self) -> Option<Value> {
        let output = run(&["cluster", "status", "-b", &self.bootstrap, "-o", "json"]);
        // Degraded is an answer too.
        let is_answer = matches!(output.status.code(), Some(0 | 2));
        is_answer.then(|| serde_json::from_str(&text(&output.stdout)).unwrap())
    }

    /// What a node says of its own disk; nothing while others do not know that it is there.
    pub(crate) fn disk(&self, id: i32) -> Value {
        let id = id.to_string();
        let output = run(&["node", "describe", &id, "-b", &self.bootstrap, "-o", "json"]);
        let described: Option<Value> = serde_json::from_str(&text(&output.stdout)).ok();
        described.map_or(Value::Null, |node| node["disk"].clone())
    }

    /// Loses what a node has stored of partitions' logs. The node must be down.
    pub(crate) fn wipe_disk(&self, id: i32) {
        assert_eq!(self.place(id).pid, None, "node {id} still runs");
        std::fs::remove_dir_all(self.data.join(format!("node-{id}/data/disk"))).unwrap();
    }

    /// The node that leads the metadata.
    pub(crate) fn metadata_leader(&self) -> i32 {
        let mut leader = None;
        until("the metadata has a leader", WHOLE_WITHIN, || {
            leader = self.status().and_then(|status| status["raft"]["leader"].as_i64());
            leader.is_some()
        });
        i32::try_from(leader.unwrap()).unwrap()
    }

    /// Waits until the cluster again tolerates all that it was built for.
    pub(crate) fn wait_until_whole(&self) {
        let is_whole = |status: &Value| {
            let nodes = status["nodes"].as_array().unwrap().iter();
            let is_well =
                |node: &&Value| node["liveness"] == "alive" && node["slot_state"] == "good";
            let slots_of = |group: &Value| match group["geometry"].as_str() {
                Some("block-4-2") => 8,
                Some("one-per-dc") => 3,
                _ => 9,
            };
            let groups = status["groups"].as_array().unwrap();
            let slot_count: usize = groups.iter().map(slots_of).sum();
            !groups.is_empty()
                && groups.iter().all(|group| group["tolerates"] == group["built_for"])
                && nodes.filter(is_well).count() == slot_count
        };
        let mut last = None;
        let deadline = Instant::now() + WHOLE_WITHIN;
        while !last.as_ref().is_some_and(is_whole) {
            assert!(Instant::now() < deadline, "not whole within {WHOLE_WITHIN:?}: {last:?}");
            last = self.status();
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
