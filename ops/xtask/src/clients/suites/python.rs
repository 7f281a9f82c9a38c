//! Suites in Python: some source distributions have their tests in them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::cases::{Case, Verdict};
use super::{Nodes, Plan, Site, Suite};
use crate::command::ok;

/// A distribution with tests.
pub(in crate::clients) struct Distribution {
    name: &'static str,
    version: &'static str,
    /// What its tests need beside it, pinned.
    requirements: &'static [&'static str],
    /// Which of its tests need a broker.
    tests: &'static str,
    /// Files that the distribution leaves out though its tests need them: path and text.
    shims: &'static [(&'static str, &'static str)],
    /// What its own brokers are set to, where Meridian's default is another.
    settings: &'static [&'static str],
    environment: fn(&Site) -> Vec<(&'static str, String)>,
    at_most: Duration,
}

pub(in crate::clients) const KAFKA_PYTHON: Distribution = Distribution {
    name: "kafka-python",
    version: "3.0.12",
    requirements: &[
        "pytest==8.4.2",
        "pytest-mock==3.15.1",
        "pytest-timeout==2.4.0",
        "py==1.11.0",
        "lz4==4.4.4",
        "python-snappy==0.7.3",
        "zstandard==0.25.0",
    ],
    tests: "test/integration",
    shims: &[("test/__init__.py", ""), ("test/service.py", RUNNING_SERVICE)],
    settings: &["num.partitions=4", "group.min.session.timeout.ms=1000"],
    environment: |site| {
        vec![
            ("KAFKA_VERSION", "4.2.0".to_owned()),
            ("KAFKA_URI", format!("plaintext://127.0.0.1:{}", site.plan.base_port)),
            // It wants a broker's folder to be there, also for one that it does not start.
            ("KAFKA_ROOT", site.folder.display().to_string()),
        ]
    },
    at_most: Duration::from_secs(1200),
};

/// How kafka-python's fixtures know of a broker that they did not start.
const RUNNING_SERVICE: &str = r#"class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def wait_for(self, pattern, timeout=None):
        return True

    def stop(self):
        pass

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, args=None, env=None):
        raise RuntimeError("no broker is started here: one runs")
"#;

impl Distribution {
    pub(in crate::clients) fn sources(&self) -> String {
        format!("{}-{}", self.name.replace('-', "_"), self.version)
    }
}

impl Suite for Distribution {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> &'static str {
        self.version
    }

    fn plan(&self, nodes: Nodes, base_port: u16) -> Plan {
        let mut plan = Plan::new(nodes, base_port);
        let settings = self.settings.iter().map(|setting| (*setting).to_owned());
        plan.more.extend(settings.flat_map(|setting| ["--kafka".to_owned(), setting]));
        plan
    }

    fn fetch(&self, folder: &Path) -> Result<(), String> {
        let venv = folder.join("venv");
        ok(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let pip = || Command::new(venv.join("bin/pip"));
        let pinned = format!("{}=={}", self.name, self.version);
        let mut download = pip();
        download.args(["-q", "download", "--no-deps", "--no-binary", self.name, "-d"]);
        ok(download.arg(folder).arg(pinned))?;
        let archive = folder.join(format!("{}.tar.gz", self.sources()));
        ok(Command::new("tar").arg("xzf").arg(archive).arg("-C").arg(folder))?;
        for (file, text) in self.shims {
            let file = folder.join(self.sources()).join(file);
            std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let mut install = pip();
        install.args(["-q", "install"]).arg(folder.join(self.sources()));
        ok(install.args(self.requirements))
    }

    fn run(&self, site: &Site, only: Option<&[String]>) -> Result<Vec<Case>, String> {
        let mut python = Command::new(site.source.join("venv/bin/python"));
        python
            .args(["-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider"])
            // By thread, the first test that hangs would end all.
            .arg("--timeout-method=signal")
            .current_dir(site.source.join(self.sources()))
            .envs((self.environment)(site));
        match only {
            Some(only) => python.args(only),
            None => python.arg(self.tests),
        };
        Ok(read(&site.run(self.name, &mut python, self.at_most)?))
    }
}

/// What `pytest -v` prints: a line for each test, without a verdict while it runs.
pub(in crate::clients) fn read(printed: &str) -> Vec<Case> {
    let mut cases: BTreeMap<&str, Option<Verdict>> = BTreeMap::new();
    for line in printed.lines() {
        let Some((test, verdict)) = line_of(line) else { continue };
        let known = cases.entry(test).or_default();
        // Set up, called, torn down: whatever fails makes it fail.
        if *known != Some(Verdict::Failed) {
            *known = verdict.or(*known);
        }
    }
    let cases = cases.into_iter();
    cases.map(|(test, verdict)| Case::new(test, verdict.unwrap_or(Verdict::Failed))).collect()
}

fn line_of(line: &str) -> Option<(&str, Option<Verdict>)> {
    let (file, _) = line.split_once("::")?;
    if !file.ends_with(".py") || file.contains(' ') {
        return None;
    }
    let (test, rest) = line.split_at(name_end(line));
    // What the test itself prints may stand between.
    let word = rest.split_whitespace().find_map(verdict);
    Some((test, word))
}

/// A test's name ends at a blank, unless that is within its parameters' brackets.
fn name_end(line: &str) -> usize {
    let mut depth = 0_i32;
    let end = line.find(|letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ' ' && depth <= 0
    });
    end.unwrap_or(line.len())
}

fn verdict(word: &str) -> Option<Verdict> {
    match word {
        "PASSED" | "XPASS" => Some(Verdict::Passed),
        "FAILED" | "ERROR" => Some(Verdict::Failed),
        // Its authors expect an `XFAIL`.
        "SKIPPED" | "XFAIL" => Some(Verdict::Skipped),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_counts_once_and_by_its_worst_verdict() {
        let printed = "============ test session starts ============\n\
            collecting ... collected 5 items\n\n\
            test/a.py::test_x[PLAIN 1] PASSED      [ 20%]\n\
            test/a.py::test_v Done! FAILED      [ 20%]\n\
            test/a.py::test_y SKIPPED (needs more than that)      [ 40%]\n\
            test/a.py::test_z PASSED      [ 60%]\n\
            test/a.py::test_z ERROR      [ 60%]\n\
            test/a.py::test_w FAILED      [ 80%]\n\
            test/a.py::test_hangs \n\
            =========== FAILURES ===========\n\
            FAILED test/a.py::test_w - AssertionError\n";
        let seen: Vec<(String, Verdict)> =
            read(printed).into_iter().map(|case| (case.name, case.verdict)).collect();
        let is = |name: &str, verdict| (format!("test/a.py::test_{name}"), verdict);
        assert_eq!(
            seen,
            [
                is("hangs", Verdict::Failed),
                is("v", Verdict::Failed),
                is("w", Verdict::Failed),
                is("x[PLAIN 1]", Verdict::Passed),
                is("y", Verdict::Skipped),
                is("z", Verdict::Failed),
            ]
        );
    }
}
