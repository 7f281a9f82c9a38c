//! `cargo xtask clients`: real Kafka clients, from their registries, against nine nodes.
//!
//! ```text
//! install   each client, under target/clients/<kind>; once
//! steady    every program, a few at a time: compressions, group, admin, transactions
//! kill      all programs at once, while nodes die one after another and come back
//! takeover  groups, transactions and administrators, while what serves them dies: [`takeover`]
//! table     docs/compatibility.md, between its markers
//! ```
//! `cargo xtask clients --apps` does the same with applications, one after another: [`apps`].
//! `cargo xtask clients --suites` runs the clients' own tests: [`suites`].
//! `cargo xtask clients --security` tests logins, users and access rules: [`security`].
//! `cargo xtask clients --oracle` asks Kafka's own authorizer what access rules mean: [`oracle`].
//! What the programs check and how they say it: `ops/tests/clients/README.md`.

#![expect(clippy::disallowed_methods, reason = "real processes are watched in real time")]

mod apps;
mod cluster;
mod install;
mod ledger;
mod options;
mod oracle;
mod security;
mod suites;
mod table;
mod takeover;

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use self::cluster::{Cluster, Nodes, Plan};
use self::install::Kind;
use self::options::Options;
use self::table::{Outcome, Report};

/// A client, and how its program is started.
struct Client {
    /// Its name in the table and on the command line; it may be told a version by its program.
    name: &'static str,
    kind: Kind,
    /// The program, within its kind.
    program: &'static str,
}

const CLIENTS: &[Client] = &[
    Client { name: "java-4", kind: Kind::Java("4.3.1"), program: "Client" },
    Client { name: "java-2", kind: Kind::Java("2.8.2"), program: "Client" },
    Client { name: "librdkafka-python", kind: Kind::Python, program: "confluent.py" },
    Client { name: "librdkafka-rust", kind: Kind::Rust, program: "rdkafka_client" },
    Client { name: "kcat", kind: Kind::Kcat, program: "kcat.sh" },
    Client { name: "kafka-python", kind: Kind::Python, program: "kafka_python.py" },
    Client { name: "aiokafka", kind: Kind::Python, program: "aio.py" },
    Client { name: "kafkajs", kind: Kind::Node, program: "kafkajs.mjs" },
    Client { name: "franz-go", kind: Kind::Go, program: "franz" },
    Client { name: "sarama", kind: Kind::Go, program: "sarama" },
];

/// Programs at a time while nothing is killed: more would only wait for processors.
const STEADY_COUNT_MAX: usize = 3;
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(180);
/// How long the programs write while nodes are killed.
const WRITING: Duration = Duration::from_secs(24);
/// When a node is killed, after the start and after the one before came back.
const CALM: Duration = Duration::from_secs(4);
const DOWN: Duration = Duration::from_secs(3);
/// Partitions of the topics written to meanwhile: about as many as there are nodes to lead them.
const KILL_PARTITION_COUNT: u32 = 9;
/// Their nodes: one of each is killed, the one that leads for most clients not yet hit.
const DATACENTERS: [[u32; 3]; 3] = [[1, 2, 3], [4, 5, 6], [7, 8, 9]];

/// Runs the chosen clients, all of them if none is named.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    if options.suites {
        return suites::run(root, &options);
    }
    if options.security {
        return security::run(root, &options);
    }
    if options.oracle {
        return oracle::run(root, &options);
    }
    if options.apps {
        return apps::run(root, &options);
    }
    let chosen: Vec<&Client> = CLIENTS.iter().filter(|client| options.takes(client.name)).collect();
    let lab = Lab::new(root, options.base_port)?;
    let installed = Instant::now();
    for client in &chosen {
        lab.install(client.kind)?;
    }
    let program = lab.build_server(&options)?;
    println!("== installed and built in {} s", installed.elapsed().as_secs());
    let began = Instant::now();
    let cluster =
        Cluster::start(&program, &lab.folder, &Plan::new(Nodes::Nine, options.base_port))?;
    let mut reports = lab.steady(&chosen, &[])?;
    for (report, killed) in reports.iter_mut().zip(lab.kill(&chosen, &cluster)?) {
        report.join(killed);
    }
    for (report, taken_over) in reports.iter_mut().zip(lab.takeover(&chosen, &cluster)?) {
        report.join(taken_over);
    }
    drop(cluster);
    println!("== ran for {} s", began.elapsed().as_secs());
    print!("{}", table::render(&reports));
    if options.targets.is_empty() {
        table::publish(&root.join("docs/compatibility.md"), &reports)?;
    }
    let failures: Vec<String> = reports.iter().flat_map(Report::failures).collect();
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!("clients: {}; see {}/log", failures.join("; "), lab.folder.display()))
}

/// What is said of a program that had to be ended.
const UNENDED: &str = "it did not end within";

/// A client's program that runs, and ends with this: left behind, it would write into the log of the next run.
struct Program {
    child: Child,
    /// What it tells.
    log: PathBuf,
}

impl Program {
    fn spawn(name: &str, command: &mut Command, log: PathBuf) -> Result<Self, String> {
        let problem = |error| format!("{}: {error}", log.display());
        let file = File::create(&log).map_err(problem)?;
        let child = command
            .stdin(Stdio::null())
            .stderr(file.try_clone().map_err(problem)?)
            .stdout(file)
            .spawn()
            .map_err(|error| format!("{name} could not be started: {error}"))?;
        Ok(Self { child, log })
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it ends, or ends it; says how it ended.
    fn wait(&mut self, at_most: Duration) -> String {
        let deadline = Instant::now() + at_most;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.to_string(),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
                _ => {
                    self.end();
                    return format!("{UNENDED} {} s", at_most.as_secs());
                }
            }
        }
    }

    fn end(&mut self) {
        if !self.has_ended() {
            // Scripts start others, which would be left.
            let _has_none =
                Command::new("pkill").args(["-KILL", "-P", &self.child.id().to_string()]).status();
        }
        let _already_gone = self.child.kill();
        let _already_gone = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}

fn read(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

/// Where the clients are and what they talk to.
#[derive(Clone)]
struct Lab {
    root: PathBuf,
    /// `target/clients`.
    folder: PathBuf,
    bootstrap: String,
    /// Tells the topics of this run from those of another against the same cluster.
    run: u32,
    /// Tells runs of one program from each other; empty if there is one.
    tag: String,
}

impl Lab {
    fn new(root: &Path, base_port: u16) -> Result<Self, String> {
        let folder = crate::target(root).join("clients");
        let log = folder.join("log");
        std::fs::create_dir_all(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let ports = [base_port, base_port + 4, base_port + 8];
        let bootstrap = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
        Ok(Self {
            root: root.to_owned(),
            folder,
            bootstrap,
            run: std::process::id(),
            tag: String::new(),
        })
    }

    fn prefix(&self, client: &Client) -> String {
        format!("{}{}-{}-", client.name, self.tag, self.run)
    }

    /// Starts a client's program in a phase, with more in its environment.
    fn start(
        &self,
        client: &Client,
        phase: &str,
        more: &[(&str, &OsStr)],
    ) -> Result<Program, String> {
        let log = self.folder.join("log").join(format!("{}-{phase}{}.txt", client.name, self.tag));
        let mut command = self.command(client);
        command
            .env("BOOTSTRAP", &self.bootstrap)
            .env("PREFIX", self.prefix(client))
            .env("PHASE", phase)
            .env("DURATION", WRITING.as_secs().to_string())
            .envs(more.iter().copied());
        Program::spawn(client.name, &mut command, log)
    }

    fn command(&self, client: &Client) -> Command {
        client.kind.command(&self.root, &self.folder, client.program)
    }

    /// Waits for a program and reads what it says.
    fn finish(client: &Client, program: &mut Program, at_most: Duration) -> Report {
        let ended = program.wait(at_most);
        Report::read(client.name, &read(&program.log), &ended)
    }

    fn steady(&self, clients: &[&Client], more: &[(&str, &OsStr)]) -> Result<Vec<Report>, String> {
        let next = Mutex::new(0..clients.len());
        let reports = Mutex::new(Vec::new());
        let work = || -> Result<(), String> {
            loop {
                let taken = next.lock().map_err(|_| "a client's thread failed")?.next();
                let Some(index) = taken else { return Ok(()) };
                let client = clients[index];
                let mut program = self.start(client, "steady", more)?;
                let report = Self::finish(client, &mut program, PROGRAM_TIME_MAX);
                println!("== {}", report.summary());
                reports.lock().map_err(|_| "a client's thread failed")?.push((index, report));
            }
        };
        thread::scope(|scope| -> Result<(), String> {
            let threads: Vec<_> = (0..STEADY_COUNT_MAX).map(|_| scope.spawn(work)).collect();
            for thread in threads {
                thread.join().map_err(|_| "a client's thread failed")??;
            }
            Ok(())
        })?;
        let mut reports = reports.into_inner().map_err(|_| "a client's thread failed")?;
        reports.sort_by_key(|(index, _)| *index);
        Ok(reports.into_iter().map(|(_, report)| report).collect())
    }

    /// All clients write while one node after another dies; each client must lose a leader.
    fn kill(&self, clients: &[&Client], cluster: &Cluster) -> Result<Vec<Report>, String> {
        let topics: Vec<String> =
            clients.iter().map(|client| format!("{}kill", self.prefix(client))).collect();
        for topic in &topics {
            cluster.create(topic, KILL_PARTITION_COUNT)?;
        }
        let mut running = Vec::new();
        for client in clients {
            running.push(self.start(client, "kill", &[])?);
        }
        let mut leaders_lost = vec![false; clients.len()];
        for datacenter in DATACENTERS {
            thread::sleep(CALM);
            let leaders: Vec<Vec<Option<u32>>> =
                topics.iter().map(|topic| cluster.leaders(topic)).collect();
            let hit = |node: &u32| {
                let spared = leaders.iter().zip(&leaders_lost).filter(|(_, lost)| !**lost);
                spared.filter(|(leaders, _)| leaders.contains(&Some(*node))).count()
            };
            let victim = datacenter.into_iter().max_by_key(hit).unwrap_or_default();
            println!("== kill node {victim}");
            cluster.kill(victim)?;
            for (lost, leaders) in leaders_lost.iter_mut().zip(&leaders) {
                *lost |= leaders.contains(&Some(victim));
            }
            thread::sleep(DOWN);
            cluster.restart(victim)?;
        }
        let mut reports = Vec::new();
        for ((client, program), lost) in clients.iter().zip(&mut running).zip(leaders_lost) {
            let mut report = Self::finish(client, program, PROGRAM_TIME_MAX);
            if !lost {
                let words = "none of the nodes killed led a partition of its topic";
                report.note("kill", Outcome::Failed, words);
            }
            println!("== {}", report.summary());
            reports.push(report);
        }
        Ok(reports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_ends_with_its_handle_and_so_does_what_it_started() {
        let folder = std::env::temp_dir().join(format!("meridian-clients-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let mut program = Program::spawn("sh", &mut command, folder.join("log")).unwrap();
        let started = loop {
            if let Some(number) = read(&program.log).strip_suffix('\n') {
                break number.to_owned();
            }
            assert!(!program.has_ended());
            thread::yield_now();
        };
        // One that is dead is listed until somebody asks how it ended.
        let runs = || {
            let state = read(Path::new(&format!("/proc/{started}/stat")));
            !state.is_empty() && !state.contains(") Z ")
        };
        assert!(runs());
        assert_eq!(program.wait(Duration::ZERO), "it did not end within 0 s");
        let deadline = Instant::now() + Duration::from_secs(10);
        while runs() {
            assert!(Instant::now() < deadline, "what it started is left");
            thread::yield_now();
        }
        drop(program);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
