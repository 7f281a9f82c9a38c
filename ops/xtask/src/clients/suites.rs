//! `cargo xtask clients --suites`: what the authors of clients test them with, against one and
//! three nodes.
//!
//! ```text
//! fetch   each suite from its registry, at the version that is named here; once
//! run     one after another, each on a new cluster, within its time
//! judge   a failure is in `suites/known.toml` with its reason, or it fails the run
//! ```
//! A suite finds its broker by its environment; what it asserts is not changed.

pub(super) mod cases;
pub(super) mod fetch;
pub(super) mod go;
pub(super) mod known;
pub(super) mod librdkafka;
mod proxies;
pub(super) mod python;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use self::cases::{Case, Tally};
use self::known::Known;
use super::cluster::{Cluster, Nodes, Plan};
use super::{Lab, Options, Program, UNENDED};

/// What is tested with.
trait Suite {
    /// On the command line and in the table of known differences.
    fn name(&self) -> &'static str;

    /// Pinned, so that a failure is news.
    fn version(&self) -> &'static str;

    /// Suites that are one when fetched have one name for that.
    fn source(&self) -> &'static str {
        self.name()
    }

    /// The cluster that it needs.
    fn plan(&self, nodes: Nodes, base_port: u16) -> Plan {
        Plan::new(nodes, base_port)
    }

    /// Why it can't be run against so many nodes.
    fn refuses(&self, _nodes: Nodes) -> Option<&'static str> {
        None
    }

    /// Brings it into an empty folder, built as far as can be.
    fn fetch(&self, folder: &Path) -> Result<(), String>;

    /// Runs it, or these of its tests and perhaps others, and reads what its runner says.
    fn run(&self, site: &Site, only: Option<&[String]>) -> Result<Vec<Case>, String>;
}

const SUITES: &[&dyn Suite] = &[
    &go::FRANZ_GO,
    &go::SARAMA,
    &go::KAFKA_GO,
    &python::KAFKA_PYTHON,
    &librdkafka::CLASSIC,
    &librdkafka::KIP_848,
];

/// Failures that nobody knew are run again if there are no more than this.
const AGAIN_COUNT_MAX: usize = 12;

/// Suites that exist, but that no registry serves, and what it serves instead.
const NOT_SERVED: &[(&str, &str)] = &[
    ("aiokafka", "its source distribution leaves its tests out"),
    ("kafkajs", "its package has the library only"),
    ("platformatic", "its package has the library only"),
];

/// Names on the command line.
pub(super) fn names() -> Vec<&'static str> {
    let served = SUITES.iter().map(|suite| suite.name());
    served.chain(NOT_SERVED.iter().map(|(name, _)| *name)).collect()
}

/// The folder of what a suite is made of, which is fetched unless it is there.
pub(super) fn source(lab: &Lab, name: &str) -> Result<PathBuf, String> {
    let suite = SUITES.iter().find(|suite| suite.name() == name);
    fetch::once(*suite.ok_or_else(|| format!("{name}: no such suite"))?, &lab.folder.join("suites"))
}

/// Where a suite runs.
struct Site {
    /// It, as fetched.
    source: PathBuf,
    /// What this run leaves.
    folder: PathBuf,
    /// The nodes' binary.
    program: PathBuf,
    plan: Plan,
}

impl Site {
    /// Every node, as clients are told.
    fn seeds(&self) -> String {
        let ports = self.plan.base_port..self.plan.base_port + self.plan.nodes.count();
        ports.map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
    }

    /// A new file for what a command prints.
    fn log(&self, name: &str) -> PathBuf {
        let first = self.folder.join(format!("{name}.txt"));
        if first.exists() { self.folder.join(format!("{name}-again.txt")) } else { first }
    }

    /// Runs a command to its end, or ends it; gives what it printed.
    fn run(&self, name: &str, command: &mut Command, at_most: Duration) -> Result<String, String> {
        let log = self.log(name);
        let ended = Program::spawn(name, command, log.clone())?.wait(at_most);
        if ended.starts_with(UNENDED) {
            println!("   {name}: {ended}");
        }
        // Tests print what they like.
        let printed = std::fs::read(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }
}

/// Runs the chosen suites, all of them if none is named.
pub(super) fn run(root: &Path, options: &Options) -> Result<(), String> {
    let lab = Lab::new(root, options.base_port)?;
    let known = Known::shipped()?;
    let program = lab.build_server(options)?;
    let mut failures = Vec::new();
    for suite in SUITES.iter().filter(|suite| options.takes(suite.name())) {
        let source = fetch::once(*suite, &lab.folder.join("suites"))?;
        for nodes in [Nodes::One, Nodes::Three] {
            if options.nodes.is_some_and(|chosen| chosen != nodes) {
                continue;
            }
            if let Some(why) = suite.refuses(nodes) {
                println!("== {}-{}: not run: {why}", suite.name(), nodes.count());
                continue;
            }
            let tally = run_one(*suite, nodes, &source, &program, (options, &lab), &known)?;
            let new = tally.failed.iter();
            failures.extend(new.map(|test| format!("{}-{}: {test}", suite.name(), nodes.count())));
        }
    }
    for (name, why) in NOT_SERVED.iter().filter(|(name, _)| options.takes(name)) {
        println!("== {name}: not served by a registry: {why}");
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!("suites: {} failed that are not known:\n{}", failures.len(), failures.join("\n")))
}

fn run_one(
    suite: &dyn Suite,
    nodes: Nodes,
    source: &Path,
    program: &Path,
    (options, lab): (&Options, &Lab),
    known: &Known,
) -> Result<Tally, String> {
    let run = format!("{}-{}", suite.name(), nodes.count());
    let folder = lab.folder.join("suites/run").join(&run);
    fetch::empty(&folder)?;
    fetch::make(&folder.join("log"))?;
    println!("== {} {} at {} nodes", suite.name(), suite.version(), nodes.count());
    let plan = suite.plan(nodes, options.base_port);
    let cluster = Cluster::start(program, &folder, &plan)?;
    let program = program.to_owned();
    let site = Site { source: source.to_owned(), folder, program, plan };
    let began = Instant::now();
    let known = known.of(suite.name(), nodes.count());
    let mut tally = Tally::of(&suite.run(&site, None)?, &known);
    // On a busy machine one or another is late; all of them at once are no accident.
    if (1..=AGAIN_COUNT_MAX).contains(&tally.failed.len()) {
        tally.forgive(&suite.run(&site, Some(&tally.failed))?);
    }
    print!("{}", tally.render(&run, began.elapsed().as_secs()));
    println!("   see {}", site.folder.display());
    // What failed is looked into on the disks.
    if tally.failed.is_empty() {
        cluster.discard()?;
    }
    Ok(tally)
}
