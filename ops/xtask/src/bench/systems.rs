//! The clusters that are measured: Meridian's nodes, and brokers of Apache Kafka.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::meter::descendants;
use crate::command::{interrupt, ok};

const READY_WITHIN: Duration = Duration::from_secs(120);
/// Where the version of Kafka is pinned.
const KAFKA_MANIFEST: &str = "ops/tests/clients/apps/pom.xml";
const KAFKA_BROKERS: u16 = 3;
/// A controller's port is so much above its broker's.
const CONTROLLER_PORTS: u16 = 50;
/// Any: a cluster needs one.
const KAFKA_CLUSTER_ID: &str = "4L6g3nShT-eMCtK--X86sw";
const KAFKA_OPTIONS: &[&str] = &[
    "-Xms768m",
    "-Xmx768m",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-Djava.awt.headless=true",
];

/// A kind of cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SystemKind {
    /// Three racks in three datacenters: three copies, each synced.
    Nine,
    /// One rack in three datacenters: two copies.
    Three,
    One,
    /// Three brokers, three copies.
    Kafka,
    /// Three brokers, two copies.
    KafkaTwoCopies,
}

impl SystemKind {
    const ALL: [Self; 5] = [Self::Nine, Self::Three, Self::One, Self::Kafka, Self::KafkaTwoCopies];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nine => "nine",
            Self::Three => "three",
            Self::One => "one",
            Self::Kafka => "kafka",
            Self::KafkaTwoCopies => "kafka-rf2",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(super) fn is_kafka(self) -> bool {
        matches!(self, Self::Kafka | Self::KafkaTwoCopies)
    }

    /// The nodes of `meridian dev` also take ports some hundreds above it.
    fn base_port(self) -> u16 {
        match self {
            Self::Nine => 21_000,
            Self::Three => 22_000,
            Self::One => 23_000,
            Self::Kafka => 24_000,
            Self::KafkaTwoCopies => 25_000,
        }
    }

    /// Of `meridian dev`.
    fn shape(self) -> [&'static str; 4] {
        match self {
            Self::Three => ["--dcs", "3", "--racks", "1"],
            Self::One => ["--dcs", "1", "--racks", "1"],
            _ => ["--dcs", "3", "--racks", "3"],
        }
    }
}

/// A cluster that runs; it ends when this is dropped, and its records go.
pub(super) struct System {
    pub(super) kind: SystemKind,
    pub(super) bootstrap: String,
    processes: Vec<Child>,
    folder: PathBuf,
}

impl System {
    /// Starts it, and waits until records can be written.
    pub(super) fn start(
        kind: SystemKind,
        root: &Path,
        folder: &Path,
        meridian: &Path,
    ) -> Result<Self, String> {
        let here = folder.join(kind.name());
        let problem = |error| format!("{}: {error}", here.display());
        if here.exists() {
            fs::remove_dir_all(&here).map_err(problem)?;
        }
        fs::create_dir_all(&here).map_err(problem)?;
        let mut system = Self {
            kind,
            bootstrap: format!("127.0.0.1:{}", kind.base_port()),
            processes: Vec::new(),
            folder: here,
        };
        if kind.is_kafka() {
            system.start_kafka(&kafka_jars(root, folder)?)?;
        } else {
            let mut dev = Command::new(meridian);
            dev.arg("dev").args(kind.shape()).args(["--base-port", &kind.base_port().to_string()]);
            dev.arg("--data").arg(system.folder.join("data"));
            system.spawn("dev", &mut dev)?;
        }
        system.wait_until_ready(meridian)?;
        Ok(system)
    }

    /// All processes that serve.
    pub(super) fn servers(&self) -> Vec<u32> {
        let all = self.processes.iter().flat_map(|process| descendants(process.id()));
        // The supervisor of `meridian dev` serves nobody.
        let supervisor = (!self.kind.is_kafka()).then(|| self.processes.first().map(Child::id));
        all.filter(|id| Some(Some(*id)) != supervisor).collect()
    }

    fn start_kafka(&mut self, jars: &Path) -> Result<(), String> {
        let base_port = self.kind.base_port();
        let ids = 1..=KAFKA_BROKERS;
        let voter = |id: u16| format!("{id}@127.0.0.1:{}", base_port + id - 1 + CONTROLLER_PORTS);
        let voters = ids.clone().map(voter).collect::<Vec<_>>().join(",");
        let copies = if self.kind == SystemKind::Kafka { 3 } else { 2 };
        for id in ids {
            let port = base_port + id - 1;
            let file = self.folder.join(format!("{id}.properties"));
            let data = self.folder.join(format!("data-{id}"));
            let text = kafka_properties(id, port, &voters, copies, &data);
            fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
            let java = |main: &str| {
                let mut java = Command::new("java");
                java.args(KAFKA_OPTIONS).arg("-cp").arg(jars.join("*")).arg(main);
                java
            };
            let mut format = java("kafka.tools.StorageTool");
            format.args(["format", "-t", KAFKA_CLUSTER_ID, "-c"]).arg(&file);
            ok(format.stdout(Stdio::null()).stderr(Stdio::null()))?;
            self.spawn(&format!("broker-{id}"), java("kafka.Kafka").arg(&file))?;
        }
        Ok(())
    }

    fn spawn(&mut self, name: &str, command: &mut Command) -> Result<(), String> {
        let log = self.folder.join(format!("{name}.log"));
        let problem = |error| format!("{}: {error}", log.display());
        let file = File::create(&log).map_err(problem)?;
        command.stdin(Stdio::null()).stderr(file.try_clone().map_err(problem)?).stdout(file);
        let process = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        self.processes.push(process);
        Ok(())
    }

    /// A broker answers long before all are registered, and then a topic with copies on each is refused.
    fn wait_until_ready(&mut self, meridian: &Path) -> Result<(), String> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let mut probe = Command::new(meridian);
            probe.args(["bench", "produce", "--topic", "probe", "--records", "1", "-b"]);
            probe.arg(&self.bootstrap).stdout(Stdio::null()).stderr(Stdio::null());
            if probe.status().is_ok_and(|status| status.success()) {
                return Ok(());
            }
            let has_ended =
                self.processes.iter_mut().any(|it| it.try_wait().is_ok_and(|it| it.is_some()));
            if has_ended || Instant::now() > deadline {
                return Err(format!(
                    "{} does not serve; see its logs in {}",
                    self.kind.name(),
                    self.folder.display()
                ));
            }
            thread::sleep(Duration::from_secs(1));
        }
    }
}

impl Drop for System {
    fn drop(&mut self) {
        interrupt(&mut self.processes);
        // Logs stay, for who looks for what went wrong.
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for folder in entries.map(|entry| entry.path()).filter(|path| path.is_dir()) {
            let _gone = fs::remove_dir_all(folder);
        }
    }
}

/// Kafka's jars, as its manifest pins them.
fn kafka_jars(root: &Path, folder: &Path) -> Result<PathBuf, String> {
    let jars = folder.join("kafka-jars");
    if !jars.exists() {
        println!("== fetch Apache Kafka");
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "dependency:copy-dependencies", "-f"]);
        maven.arg(root.join(KAFKA_MANIFEST));
        ok(maven.arg(format!("-DoutputDirectory={}", jars.display())))?;
    }
    Ok(jars)
}

fn kafka_properties(id: u16, port: u16, voters: &str, copies: u16, data: &Path) -> String {
    let address = format!("127.0.0.1:{port}");
    let in_sync = 2;
    [
        "process.roles=broker,controller".to_owned(),
        format!("node.id={id}"),
        format!("broker.rack=dc{id}"),
        format!(
            "listeners=PLAINTEXT://{address},CONTROLLER://127.0.0.1:{}",
            port + CONTROLLER_PORTS
        ),
        format!("advertised.listeners=PLAINTEXT://{address}"),
        "controller.listener.names=CONTROLLER".to_owned(),
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
        format!("controller.quorum.voters={voters}"),
        format!("log.dirs={}", data.display()),
        format!("default.replication.factor={copies}"),
        format!("min.insync.replicas={in_sync}"),
        "offsets.topic.replication.factor=3".to_owned(),
        "transaction.state.log.replication.factor=3".to_owned(),
        "transaction.state.log.min.isr=2".to_owned(),
        "log.segment.delete.delay.ms=1000".to_owned(),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_is_named_and_has_ports_of_its_own() {
        for kind in SystemKind::ALL {
            assert_eq!(SystemKind::named(kind.name()), Some(kind));
        }
        let ports: std::collections::BTreeSet<u16> =
            SystemKind::ALL.into_iter().map(SystemKind::base_port).collect();
        assert_eq!(ports.len(), SystemKind::ALL.len());
        assert_eq!(SystemKind::named("redis"), None);
    }

    #[test]
    fn a_broker_is_told_its_voters_and_how_many_copies_to_keep() {
        let text = kafka_properties(2, 29_401, "1@127.0.0.1:29450", 2, Path::new("/d"));
        for line in ["node.id=2", "default.replication.factor=2", "log.dirs=/d"] {
            assert!(text.lines().any(|it| it == line), "{line}");
        }
        assert!(text.contains("PLAINTEXT://127.0.0.1:29401,CONTROLLER://127.0.0.1:29451"));
    }
}
