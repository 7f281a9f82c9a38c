//! `cargo xtask clients --security`: logins, users and access rules, as clients, Kafka's tools and
//! suites of others see them.
//!
//! ```text
//! start   a new node for each part: a listener of each kind, and users
//! run     a part against it
//! judge   a failure is in `security/known.toml` with its reason, or it fails the run
//! ```

mod matrix;
mod node;
mod strangers;
mod tools;

use std::path::{Path, PathBuf};
use std::time::Instant;

use self::node::Node;
use super::suites::cases::{Case, Tally};
use super::suites::fetch;
use super::suites::known::Known;
use super::{Lab, Options};

const KNOWN: &str = include_str!("security/known.toml");

/// What is run against a node of its own.
struct Part {
    /// On the command line and in the table of known differences.
    name: &'static str,
    run: fn(&Bench<'_>) -> Result<Vec<Case>, String>,
    /// The port that it looks for the node at, if it can't be told.
    base_port: Option<u16>,
}

const PARTS: &[Part] = &[
    Part { name: "clients", run: matrix::run, base_port: None },
    Part { name: "tools", run: tools::run, base_port: None },
    Part { name: "franz-go", run: strangers::franz_go, base_port: None },
    Part { name: "kafka-go", run: strangers::kafka_go, base_port: Some(9092) },
    Part { name: "kafka-python", run: strangers::kafka_python, base_port: None },
    Part { name: "librdkafka", run: strangers::librdkafka, base_port: None },
];

/// Tests of logins and rules that can't be run here, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("sarama", "its tests of SASL and ACLs have brokers that are mocks; its client is one of ours"),
    ("kadm", "its tests of ACLs decode bits and have no broker"),
    ("aiokafka", "its source distribution leaves its tests out; its client is one of ours"),
    ("kafkajs", "its package has the library only; its client is one of ours"),
    ("librdkafka-rust", "the crate is built without TLS, and its SCRAM comes with it"),
];

/// Names on the command line.
pub(super) fn names() -> Vec<&'static str> {
    PARTS.iter().map(|part| part.name).collect()
}

/// Where a part runs.
struct Bench<'a> {
    lab: &'a Lab,
    node: &'a Node,
    /// What this run leaves.
    folder: PathBuf,
}

/// Runs the chosen parts, all of them if none is named.
pub(super) fn run(root: &Path, options: &Options) -> Result<(), String> {
    let lab = Lab::new(root, options.base_port)?;
    let known = known()?;
    let program = lab.build_server(options)?;
    let mut failures = Vec::new();
    let mut table = String::new();
    for part in PARTS.iter().filter(|part| options.takes(part.name)) {
        let folder = lab.folder.join("security").join(part.name);
        fetch::empty(&folder)?;
        let began = Instant::now();
        let node = Node::start(
            &program,
            &folder.join("node"),
            part.base_port.unwrap_or(options.base_port),
        )?;
        let cases = (part.run)(&Bench { lab: &lab, node: &node, folder: folder.clone() })?;
        let tally = Tally::of(&cases, &known.of(part.name, 1));
        let told = tally.render(part.name, began.elapsed().as_secs());
        println!("{told}   see {}", folder.display());
        table.push_str(&told);
        failures.extend(tally.failed.iter().map(|test| format!("{}: {test}", part.name)));
    }
    println!("\n{table}");
    for (name, why) in NOT_RUN {
        println!("== {name}: not run: {why}");
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!("security: {} failed that are not known:\n{}", failures.len(), failures.join("\n")))
}

fn known() -> Result<Known, String> {
    Known::parse(KNOWN).map_err(|problem| format!("security/known.toml:{problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_known_differences_is_about_parts_that_there_are() {
        let known = known().unwrap();
        for suite in known.suites() {
            assert!(names().contains(&suite), "{suite}");
        }
    }
}
