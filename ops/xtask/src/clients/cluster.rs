//! The nodes: `meridian dev` in the background.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::interrupt;

const READY_WITHIN: Duration = Duration::from_secs(90);

/// How many nodes a cluster has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nodes {
    One,
    /// In three datacenters.
    Three,
    /// In three racks of three datacenters.
    Nine,
}

impl Nodes {
    pub(super) fn count(self) -> u16 {
        match self {
            Self::One => 1,
            Self::Three => 3,
            Self::Nine => 9,
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::One => &["--dcs", "1", "--racks", "1"],
            Self::Three => &["--dcs", "3", "--racks", "1"],
            Self::Nine => &["--dcs", "3", "--racks", "3"],
        }
    }
}

/// What a new cluster is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) nodes: Nodes,
    /// Kafka clients find the first node there, the others at the next ports.
    pub(super) base_port: u16,
    /// Options of `meridian dev` on top of these.
    pub(super) more: Vec<String>,
}

impl Plan {
    pub(super) fn new(nodes: Nodes, base_port: u16) -> Self {
        Self { nodes, base_port, more: Vec::new() }
    }

    fn options(&self) -> Vec<String> {
        let mut options: Vec<String> =
            self.nodes.options().iter().map(|option| (*option).to_owned()).collect();
        options.extend(["--base-port".to_owned(), self.base_port.to_string()]);
        options.extend(self.more.iter().cloned());
        options
    }

    /// Two nodes of different datacenters, so that one may be down; the only one if there is one.
    fn bootstrap(&self) -> String {
        let indexes: &[u16] = match self.nodes {
            Nodes::One => &[0],
            Nodes::Three => &[1, 2],
            Nodes::Nine => &[3, 7],
        };
        let address = |index: &u16| format!("127.0.0.1:{}", self.base_port + index);
        indexes.iter().map(address).collect::<Vec<_>>().join(",")
    }
}

/// A cluster; it ends when this is dropped.
pub(super) struct Cluster {
    program: PathBuf,
    data: PathBuf,
    bootstrap: String,
    supervisor: Child,
}

impl Cluster {
    /// Starts new nodes and waits until they serve.
    pub(super) fn start(program: &Path, folder: &Path, plan: &Plan) -> Result<Self, String> {
        let data = folder.join("cluster");
        if data.exists() {
            std::fs::remove_dir_all(&data)
                .map_err(|error| format!("{}: {error}", data.display()))?;
        }
        let log = folder.join("log/cluster.txt");
        let problem = |error| format!("{}: {error}", log.display());
        let file = File::create(&log).map_err(problem)?;
        let supervisor = Command::new(program)
            .arg("dev")
            .args(plan.options())
            .arg("--data")
            .arg(&data)
            .stdin(Stdio::null())
            .stderr(file.try_clone().map_err(problem)?)
            .stdout(file)
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let bootstrap = plan.bootstrap();
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
        interrupt(std::slice::from_mut(&mut self.supervisor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_how_to_start_and_where_to_ask() {
        let options = |plan: &Plan| plan.options().join(" ");
        let one = Plan::new(Nodes::One, 9092);
        assert_eq!(options(&one), "--dcs 1 --racks 1 --base-port 9092");
        assert_eq!(one.bootstrap(), "127.0.0.1:9092");
        let mut three = Plan::new(Nodes::Three, 9092);
        three.more.extend(["--spares".to_owned(), "2".to_owned()]);
        assert_eq!(options(&three), "--dcs 3 --racks 1 --base-port 9092 --spares 2");
        assert_eq!(three.bootstrap(), "127.0.0.1:9093,127.0.0.1:9094");
        let nine = Plan::new(Nodes::Nine, 29300);
        assert_eq!(nine.bootstrap(), "127.0.0.1:29303,127.0.0.1:29307");
    }
}
