//! The nine nodes: `meridian dev` in the background.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const READY_WITHIN: Duration = Duration::from_secs(90);
const END_WITHIN: Duration = Duration::from_secs(20);

/// A cluster; it ends when this is dropped.
pub(super) struct Cluster {
    program: PathBuf,
    data: PathBuf,
    bootstrap: String,
    supervisor: Child,
}

impl Cluster {
    /// Starts nine new nodes and waits until they serve.
    pub(super) fn start(program: &Path, folder: &Path, base_port: u16) -> Result<Self, String> {
        let data = folder.join("cluster");
        if data.exists() {
            std::fs::remove_dir_all(&data)
                .map_err(|error| format!("{}: {error}", data.display()))?;
        }
        let log = folder.join("log/cluster.txt");
        let problem = |error| format!("{}: {error}", log.display());
        let file = File::create(&log).map_err(problem)?;
        let supervisor = Command::new(program)
            .args(["dev", "--base-port", &base_port.to_string(), "--data"])
            .arg(&data)
            .stdin(Stdio::null())
            .stderr(file.try_clone().map_err(problem)?)
            .stdout(file)
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let bootstrap = [3, 7].map(|node| format!("127.0.0.1:{}", base_port + node)).join(",");
        let mut cluster = Self { program: program.to_owned(), data, bootstrap, supervisor };
        let deadline = Instant::now() + READY_WITHIN;
        while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready:")) {
            let ended = cluster.supervisor.try_wait().is_ok_and(|status| status.is_some());
            if ended || Instant::now() > deadline {
                return Err(format!("the cluster does not serve; see {}", log.display()));
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(cluster)
    }

    /// The nodes that lead the partitions of a topic, in the order of the partitions.
    pub(super) fn leaders(&self, topic: &str) -> Vec<Option<u32>> {
        let told = self.ask(&["topic", "describe", topic]);
        told.split("\"leader\":").skip(1).map(leading_number).collect()
    }

    /// The node that leads the consensus about the metadata.
    pub(super) fn metadata_leader(&self) -> Option<u32> {
        let told = self.ask(&["cluster", "status"]);
        leading_number(told.split("\"raft\":{\"leader\":").nth(1)?)
    }

    /// What a command prints as JSON.
    fn ask(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.program)
            .args(arguments)
            .args(["-o", "json", "-b", &self.bootstrap])
            .output();
        let told = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&told).into_owned()
    }

    /// Creates a topic.
    pub(super) fn create(&self, topic: &str, partition_count: u32) -> Result<(), String> {
        let status = Command::new(&self.program)
            .args(["topic", "create", topic, "-b", &self.bootstrap, "--partitions"])
            .arg(partition_count.to_string())
            .stdout(Stdio::null())
            .status()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        if status.success() { Ok(()) } else { Err(format!("{topic} could not be created")) }
    }

    /// Ends a node without warning.
    pub(super) fn kill(&self, node: u32) -> Result<(), String> {
        self.dev("kill", node)
    }

    /// Starts a node again, and waits until it serves.
    pub(super) fn restart(&self, node: u32) -> Result<(), String> {
        self.dev("restart", node)
    }

    /// Ends it and frees its disks.
    pub(super) fn discard(self) -> Result<(), String> {
        let data = self.data.clone();
        drop(self);
        std::fs::remove_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))
    }

    fn dev(&self, action: &str, node: u32) -> Result<(), String> {
        let status = Command::new(&self.program)
            .args(["dev", action, "--node", &node.to_string(), "--data"])
            .arg(&self.data)
            .stdout(Stdio::null())
            .status()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        if status.success() { Ok(()) } else { Err(format!("dev {action} of node {node} failed")) }
    }
}

/// The number that a text begins with.
fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // As Ctrl-C does: the supervisor ends its nodes.
        let pid = self.supervisor.id().to_string();
        let _already_gone = Command::new("kill").args(["-INT", &pid]).status();
        let deadline = Instant::now() + END_WITHIN;
        while self.supervisor.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > deadline {
                let _already_gone = self.supervisor.kill();
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}
