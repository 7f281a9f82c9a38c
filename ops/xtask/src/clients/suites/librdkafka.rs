//! librdkafka's tests in C and C++, which a crate carries beside the library.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use super::cases::{Case, Verdict};
use super::go::field;
use super::{Nodes, Plan, Site, Suite, fetch};
use crate::command::{ok, output};

/// Its tests, by one of the protocols of groups.
pub(super) struct Librdkafka {
    name: &'static str,
    group_protocol: &'static str,
}

pub(super) const CLASSIC: Librdkafka = Librdkafka { name: "librdkafka", group_protocol: "classic" };
pub(super) const KIP_848: Librdkafka =
    Librdkafka { name: "librdkafka-848", group_protocol: "consumer" };

const CRATE: &str = "rdkafka-sys";
const VERSION: &str = "4.10.0+2.12.1";
/// The newest broker that its tests know of.
pub(in crate::clients) const KAFKA_VERSION: &str = "4.1.0";
/// Where Kafka's tools are, in the folder of its sources.
const TOOLS: &str = "kafka";
/// Each of its tests has a limit of its own below that, most of 30 s.
const TEST_TIME_MAX: Duration = Duration::from_secs(300);
/// Tests at a time.
const TEST_COUNT_MAX: usize = 3;

impl Suite for Librdkafka {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> &'static str {
        VERSION
    }

    fn source(&self) -> &'static str {
        CLASSIC.name
    }

    fn plan(&self, nodes: Nodes, base_port: u16) -> Plan {
        let mut plan = Plan::new(nodes, base_port);
        // As its own brokers are set.
        plan.more.extend(["--kafka", "num.partitions=4"].map(str::to_owned));
        plan
    }

    fn fetch(&self, folder: &Path) -> Result<(), String> {
        fetch::copy(&carried()?, folder)?;
        let run = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            ok(command.args(arguments).current_dir(folder).stdout(Stdio::null()))
        };
        run("./configure", &[])?;
        run("make", &["-j2", "libs"])?;
        run("make", &["-j2", "-C", "tests", "build"])?;
        bring_tools(&folder.join(TOOLS))
    }

    /// Each test in a process of its own: one that hangs or breaks an assertion ends all in it.
    fn run(&self, site: &Site, only: Option<&[String]>) -> Result<Vec<Case>, String> {
        let tests = site.source.join("tests");
        let list = tests.join("test.c");
        let list = std::fs::read_to_string(&list)
            .map_err(|error| format!("{}: {error}", list.display()))?;
        let config = site.folder.join("test.conf");
        std::fs::write(&config, format!("metadata.broker.list={}\n", site.seeds()))
            .map_err(|error| format!("{}: {error}", config.display()))?;
        let mut numbers = numbers(&list);
        if let Some(only) = only {
            numbers.retain(|number| only.iter().any(|test| test.starts_with(number)));
        }
        let next = Mutex::new(numbers.iter());
        let cases = Mutex::new(Vec::new());
        let work = || -> Result<(), String> {
            loop {
                let taken = next.lock().map_err(|_| "a test's thread failed")?.next();
                let Some(number) = taken else { return Ok(()) };
                let mut runner = Command::new("./test-runner");
                runner
                    // No tests without a broker; as its own CI runs them.
                    .args(["-L", "-Q", "-p1"])
                    .current_dir(&tests)
                    .env("TESTS", number)
                    .env("RDKAFKA_TEST_CONF", &config)
                    .env("TEST_KAFKA_VERSION", KAFKA_VERSION)
                    .env("KAFKA_PATH", site.source.join(TOOLS))
                    .env("BROKERS", site.seeds())
                    .env("TEST_CONSUMER_GROUP_PROTOCOL", self.group_protocol)
                    .env("LD_LIBRARY_PATH", "../src:../src-cpp");
                let read = read(&site.run(number, &mut runner, TEST_TIME_MAX)?);
                cases.lock().map_err(|_| "a test's thread failed")?.extend(read);
            }
        };
        thread::scope(|scope| -> Result<(), String> {
            let threads: Vec<_> = (0..TEST_COUNT_MAX).map(|_| scope.spawn(work)).collect();
            for thread in threads {
                thread.join().map_err(|_| "a test's thread failed")??;
            }
            Ok(())
        })?;
        let mut cases = cases.into_inner().map_err(|_| "a test's thread failed")?;
        cases.sort_by(|one: &Case, other| one.name.cmp(&other.name));
        Ok(cases)
    }
}

/// Where the crate has the library's sources.
fn carried() -> Result<PathBuf, String> {
    let mut cargo = crate::cargo();
    cargo.args(["metadata", "--format-version", "1", "--locked"]);
    let printed = output(&mut cargo)?;
    let package = format!("{{\"name\":\"{CRATE}\",\"version\":\"{VERSION}\"");
    let manifest = printed
        .split_once(&package)
        .and_then(|(_, rest)| field(rest, "manifest_path"))
        .ok_or_else(|| format!("the workspace does not depend on {CRATE} {VERSION}"))?;
    Ok(PathBuf::from(manifest).with_file_name("librdkafka"))
}

/// Brings Kafka's tool for topics, which some of the tests call, under its own name.
fn bring_tools(folder: &Path) -> Result<(), String> {
    let jars = folder.join("jars");
    let bin = folder.join("bin");
    fetch::make(&bin)?;
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "dependency:copy-dependencies", "-f"]);
    maven.arg(crate::root().join("ops/tests/clients/apps/pom.xml"));
    ok(maven.arg(format!("-DoutputDirectory={}", jars.display())))?;
    let java = format!(
        "#!/bin/sh\nexec java -Xmx256m -XX:TieredStopAtLevel=1 -cp '{}/*' \
         org.apache.kafka.tools.TopicCommand \"$@\"\n",
        jars.display()
    );
    fetch::script(&bin.join("kafka-topics.sh"), &java)
}

/// The numbers of the tests that need a broker and nobody's hand.
fn numbers(list: &str) -> Vec<String> {
    let mut numbers: Vec<String> = list
        .split("_TEST(")
        .skip(1)
        .filter_map(|declared| {
            let (declared, _) = declared.split_once(')')?;
            let number = declared.split_once('_')?.0;
            let is_number = number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit());
            let is_other =
                ["TEST_F_LOCAL", "TEST_F_MANUAL"].iter().any(|flag| declared.contains(flag));
            (is_number && !is_other).then(|| number.to_owned())
        })
        .collect();
    numbers.sort();
    numbers.dedup();
    numbers
}

/// What a runner prints of its tests: one that began and did not end failed.
pub(in crate::clients) fn read(printed: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in printed.lines().filter(|line| line.contains("=================")) {
        let words: Vec<&str> = line
            .split_whitespace()
            .skip_while(|word| !matches!(*word, "Running" | "Test"))
            .collect();
        let (name, verdict) = match words.as_slice() {
            ["Running", "test", name, ..] => (*name, None),
            ["Test", name, "PASSED", ..] => (*name, Some(Verdict::Passed)),
            ["Test", name, "SKIPPED", ..] => (*name, Some(Verdict::Skipped)),
            ["Test", name, "FAILED", ..] => (*name, Some(Verdict::Failed)),
            _ => continue,
        };
        match cases.iter_mut().find(|case| case.name == name) {
            Some(case) => case.verdict = verdict.unwrap_or(case.verdict),
            None => cases.push(Case::new(name, verdict.unwrap_or(Verdict::Failed))),
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_need_a_broker_are_found() {
        let list = "#define _TEST(NAME, FLAGS) \\\n    _TEST(0001_multiobj, 0),\n    \
            _TEST(0004_conf, TEST_F_LOCAL),\n    \
            _TEST(0009_mock_cluster,\n          TEST_F_LOCAL),\n    \
            _TEST(0022_consume_batch, 0),\n    _TEST(0022_consume_batch_local, TEST_F_LOCAL),\n    \
            _TEST(0018_cgrp_term, 0, TEST_BRKVER(0, 9, 0, 0)),\n    \
            _TEST(8000_idle, TEST_F_MANUAL),\n";
        assert_eq!(numbers(list), ["0001", "0018", "0022"]);
    }

    #[test]
    fn a_test_without_an_end_failed() {
        let began = |name: &str| {
            format!("[{name}  / 0.1s] ================= Running test {name} =================\n")
        };
        let ended = |name: &str, word: &str| {
            format!("[x / 2s] \u{1b}[32m================= Test {name} {word} =================\n")
        };
        let printed = [
            began("0001_a"),
            ended("0001_a", "PASSED"),
            began("0002_b"),
            ended("0002_b", "SKIPPED"),
            began("0003_c"),
        ]
        .concat();
        assert_eq!(
            read(&printed),
            [
                Case::new("0001_a", Verdict::Passed),
                Case::new("0002_b", Verdict::Skipped),
                Case::new("0003_c", Verdict::Failed),
            ]
        );
        assert_eq!(read(&ended("0001_a", "FAILED"))[0].verdict, Verdict::Failed);
    }
}
