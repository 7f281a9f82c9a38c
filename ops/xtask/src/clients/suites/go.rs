//! Suites in Go: modules are served with their tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::cases::{Case, Verdict};
use super::{Nodes, Plan, Site, Suite, fetch, proxies};
use crate::command::{ok, output};

/// A module with tests.
pub(super) struct Module {
    name: &'static str,
    path: &'static str,
    version: &'static str,
    /// Those whose tests are run, from the module's folder.
    packages: &'static [&'static str],
    /// Tells from a file of tests whether these need a broker; all tests are run if absent.
    needs_broker: Option<fn(name: &str, text: &str) -> bool>,
    /// Tests that end the runner, and all that would come after them, whatever the broker does.
    skip: &'static str,
    /// Tags that its tests are built with.
    tags: &'static str,
    /// What tells it where its broker is.
    environment: fn(&Site) -> Vec<(&'static str, String)>,
    at: At,
    /// What its own brokers are set to, where Meridian's default is another.
    settings: &'static [&'static str],
    at_most: Duration,
}

/// Where a suite looks for its brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Wherever it is told.
    Anywhere,
    /// From this port on, by the name of this machine.
    Port(u16),
    /// Behind proxies that it controls itself, and whose nodes it ends and starts.
    Proxies,
}

pub(super) const FRANZ_GO: Module = Module {
    name: "franz-go",
    path: "github.com/twmb/franz-go",
    version: "v1.22.3",
    packages: &["./pkg/kgo"],
    needs_broker: Some(|_, text| text.contains("newTestClient(")),
    skip: "",
    tags: "",
    environment: |site| {
        vec![
            ("KGO_SEEDS", site.seeds()),
            ("KGO_TEST_RF", site.plan.nodes.count().to_string()),
            ("KGO_TEST_RECORDS", FRANZ_GO_RECORD_COUNT.to_string()),
            ("KGO_LOG_LEVEL", "none".to_owned()),
        ]
    },
    at: At::Anywhere,
    settings: &[],
    at_most: Duration::from_secs(1200),
};
/// Its default is ten times as many.
const FRANZ_GO_RECORD_COUNT: u32 = 50_000;

pub(super) const SARAMA: Module = Module {
    name: "sarama",
    path: "github.com/IBM/sarama",
    version: "v1.61.1",
    packages: &["."],
    needs_broker: Some(|name, _| name.starts_with("functional_")),
    skip: "",
    tags: "functional",
    environment: |_| {
        vec![
            ("TOXIPROXY_ADDR", format!("http://127.0.0.1:{}", proxies::CONTROL_PORT)),
            ("KAFKA_VERSION", "4.3.1".to_owned()),
        ]
    },
    at: At::Proxies,
    settings: &["auto.create.topics.enable=false", "group.initial.rebalance.delay.ms=0"],
    at_most: Duration::from_secs(1500),
};

pub(super) const KAFKA_GO: Module = Module {
    name: "kafka-go",
    path: "github.com/segmentio/kafka-go",
    version: "v0.4.51",
    packages: &["./..."],
    needs_broker: None,
    // These call a function that they have not set.
    skip: "^TestReaderConsumerGroup$/^(verify_offset_committed.*|consumer_group_commits_on_close)$",
    tags: "",
    // As its own CI runs it.
    environment: |_| {
        vec![("KAFKA_SKIP_NETTEST", "1".to_owned()), ("KAFKA_VERSION", "3.7.0".to_owned())]
    },
    at: At::Port(9092),
    settings: &[],
    at_most: Duration::from_secs(1200),
};

/// How long a run may take to end by itself after its time: it prints what hangs.
const AFTERWARDS: Duration = Duration::from_secs(30);

impl Module {
    fn go(&self, source: &Path, more: &[&str]) -> Command {
        let mut go = Command::new("go");
        // One package at a time: they share the cluster. Some modules' lists lack what only their
        // tests need.
        go.current_dir(source).args(["test", "-mod=mod", "-p", "1", "-count", "1"]);
        go.args(["-tags", self.tags]).args(more).args(self.packages);
        go
    }
}

impl Suite for Module {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> &'static str {
        self.version
    }

    fn refuses(&self, nodes: Nodes) -> Option<&'static str> {
        match (self.at, nodes) {
            (At::Proxies, Nodes::One) => {
                Some("its topics have three replicas, which one node refuses, as Kafka does")
            }
            (At::Port(_), Nodes::Three) => {
                Some("its tests take the broker they dial for leader and coordinator of all")
            }
            _ => None,
        }
    }

    fn plan(&self, nodes: Nodes, base_port: u16) -> Plan {
        let mut plan = Plan::new(nodes, base_port);
        let mut add = |option: &str, value: String| plan.more.extend([option.to_owned(), value]);
        match self.at {
            At::Anywhere => {}
            At::Port(port) => {
                add("--advertise", format!("localhost:{port}"));
                plan.base_port = port;
            }
            At::Proxies => add("--advertise", format!("127.0.0.1:{}", proxies::FIRST_PORT)),
        }
        for setting in self.settings {
            add("--kafka", (*setting).to_owned());
        }
        plan
    }

    fn fetch(&self, folder: &Path) -> Result<(), String> {
        let module = format!("{}@{}", self.path, self.version);
        // Outside of any module, which would have a say in the version.
        let mut download = Command::new("go");
        download.args(["mod", "download", "-json", &module]).current_dir(folder);
        let printed = output(&mut download)?;
        let served = printed.lines().find_map(|line| field(line, "Dir"));
        let served = served.ok_or_else(|| format!("{module}: where it is was not printed"))?;
        fetch::copy(&PathBuf::from(served), folder)?;
        if self.at == At::Proxies {
            proxies::fetch(folder)?;
        }
        ok(self.go(folder, &["-exec", "true"]).stdout(Stdio::null()))
    }

    fn run(&self, site: &Site, only: Option<&[String]>) -> Result<Vec<Case>, String> {
        let timeout = format!("{}s", self.at_most.as_secs());
        let mut go = self.go(&site.source, &["-json", "-timeout", &timeout]);
        if !self.skip.is_empty() {
            go.args(["-skip", self.skip]);
        }
        match (only, self.needs_broker) {
            (Some(only), _) => {
                go.args(["-run", &pattern(only.iter().filter_map(|name| outermost(name)))]);
            }
            (None, Some(needs_broker)) => {
                let tests = tests(&site.source, self.packages, needs_broker)?;
                go.args(["-run", &pattern(tests.iter().map(String::as_str))]);
            }
            (None, None) => {}
        }
        go.envs((self.environment)(site));
        let _proxies = match self.at {
            At::Proxies => {
                go.env("PATH", proxies::path_with_docker(site)?);
                Some(proxies::start(site)?)
            }
            At::Anywhere | At::Port(_) => None,
        };
        let printed = site.run(self.name, &mut go, self.at_most + AFTERWARDS)?;
        Ok(read(&printed, self.path))
    }
}

/// What `-run` takes for tests.
fn pattern<'a>(tests: impl Iterator<Item = &'a str>) -> String {
    let mut tests: Vec<&str> = tests.collect();
    tests.sort_unstable();
    tests.dedup();
    format!("^({})$", tests.join("|"))
}

/// The test that a case is within, by its name here; none for a package.
fn outermost(case: &str) -> Option<&str> {
    let start = if case.starts_with("Test") { 0 } else { case.find(".Test")? + 1 };
    case[start..].split('/').next()
}

/// The tests of the files that need a broker.
fn tests(
    source: &Path,
    packages: &[&str],
    needs_broker: fn(&str, &str) -> bool,
) -> Result<Vec<String>, String> {
    let mut tests = Vec::new();
    for package in packages {
        let folder = source.join(package);
        let problem = |error| format!("{}: {error}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(problem)? {
            let file = entry.map_err(problem)?.path();
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !name.ends_with("_test.go") {
                continue;
            }
            let text = std::fs::read_to_string(&file)
                .map_err(|error| format!("{}: {error}", file.display()))?;
            if needs_broker(&name, &text) {
                tests.extend(tests_of(&text));
            }
        }
    }
    Ok(tests)
}

/// The tests that a file declares.
fn tests_of(text: &str) -> Vec<String> {
    let declared = text.lines().filter_map(|line| line.strip_prefix("func Test"));
    let named = declared.filter_map(|rest| rest.split_once("(t *testing.T)"));
    // What the runner itself calls is no test.
    named.map(|(name, _)| format!("Test{name}")).filter(|name| name != "TestMain").collect()
}

/// What `go test -json` prints, of tests that have none within them.
pub(in crate::clients) fn read(printed: &str, module: &str) -> Vec<Case> {
    // By package and test; a package itself has an empty name.
    let mut verdicts: BTreeMap<(String, String), Option<Verdict>> = BTreeMap::new();
    for line in printed.lines().filter(|line| line.starts_with('{')) {
        let (Some(action), Some(package)) = (field(line, "Action"), field(line, "Package")) else {
            continue;
        };
        let verdict = match action.as_str() {
            "run" | "start" => None,
            "pass" => Some(Verdict::Passed),
            "fail" => Some(Verdict::Failed),
            "skip" => Some(Verdict::Skipped),
            _ => continue,
        };
        verdicts.insert((package, field(line, "Test").unwrap_or_default()), verdict);
    }
    let has_failed =
        |verdict: &Option<Verdict>| !matches!(verdict, Some(Verdict::Passed | Verdict::Skipped));
    let mut cases = Vec::new();
    for ((package, test), verdict) in &verdicts {
        let is_within = |(other_package, other): &(String, String)| {
            let rest = other.strip_prefix(test.as_str());
            other_package == package
                && rest.is_some_and(|rest| {
                    if test.is_empty() { !rest.is_empty() } else { rest.starts_with('/') }
                })
        };
        let within: Vec<_> = verdicts.iter().filter(|(other, _)| is_within(other)).collect();
        let explained = within.iter().any(|(_, verdict)| has_failed(verdict));
        let is_leaf = within.is_empty() && !test.is_empty();
        if is_leaf || has_failed(verdict) && !explained {
            cases.push(Case::new(name(package, test, module), verdict.unwrap_or(Verdict::Failed)));
        }
    }
    cases
}

/// A test's name, with its package unless that is the module itself.
fn name(package: &str, test: &str, module: &str) -> String {
    let package = package.strip_prefix(module).unwrap_or(package).trim_start_matches('/');
    match (package, test) {
        ("", "") => module.to_owned(),
        ("", test) => test.to_owned(),
        (package, "") => package.to_owned(),
        (package, test) => format!("{package}.{test}"),
    }
}

/// The text that a key has in an object of JSON, which is written on one line or on one a key.
pub(super) fn field(line: &str, key: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!("\"{key}\":"))?;
    let mut letters = rest.trim_start().strip_prefix('"')?.chars();
    let mut text = String::new();
    loop {
        match letters.next()? {
            '"' => return Some(text),
            '\\' => match letters.next()? {
                'u' => {
                    let code: String = letters.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&code, 16).ok()?;
                    text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                }
                'n' => text.push('\n'),
                't' => text.push('\t'),
                other => text.push(other),
            },
            letter => text.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = r#"{"Action":"start","Package":"m/p"}
{"Action":"run","Package":"m/p","Test":"A"}
{"Action":"output","Package":"m/p","Test":"A","Output":"says \"Action\":\"fail\"\n"}
{"Action":"pass","Package":"m/p","Test":"A","Elapsed":0.1}
{"Action":"run","Package":"m/p","Test":"B"}
{"Action":"run","Package":"m/p","Test":"B/x_\u003c1"}
{"Action":"fail","Package":"m/p","Test":"B/x_\u003c1","Elapsed":0}
{"Action":"run","Package":"m/p","Test":"B/y"}
{"Action":"pass","Package":"m/p","Test":"B/y","Elapsed":0}
{"Action":"fail","Package":"m/p","Test":"B","Elapsed":0}
{"Action":"skip","Package":"m/p","Test":"C","Elapsed":0}
{"Action":"fail","Package":"m/p","Elapsed":1}
not JSON
"#;

    fn seen(printed: &str) -> Vec<(String, Verdict)> {
        read(printed, "m").into_iter().map(|case| (case.name, case.verdict)).collect()
    }

    fn is(name: &str, verdict: Verdict) -> (String, Verdict) {
        (name.to_owned(), verdict)
    }

    #[test]
    fn tests_without_tests_within_them_count() {
        let expected = [
            is("p.A", Verdict::Passed),
            is("p.B/x_<1", Verdict::Failed),
            is("p.B/y", Verdict::Passed),
            is("p.C", Verdict::Skipped),
        ];
        assert_eq!(seen(PRINTED), expected);
        assert_eq!(seen(&PRINTED.replace("m/p", "m"))[0], is("A", Verdict::Passed));
    }

    #[test]
    fn a_test_that_hangs_or_fails_around_those_within_it_failed() {
        let hung = PRINTED.replace("{\"Action\":\"pass\",\"Package\":\"m/p\",\"Test\":\"A\"", "{");
        assert_eq!(seen(&hung)[0], is("p.A", Verdict::Failed));
        let around = PRINTED.replace(
            "fail\",\"Package\":\"m/p\",\"Test\":\"B/",
            "pass\",\"Package\":\"m/p\",\"Test\":\"B/",
        );
        assert_eq!(seen(&around)[1], is("p.B", Verdict::Failed));
    }

    #[test]
    fn a_package_that_does_not_build_failed() {
        let printed = "{\"Action\":\"start\",\"Package\":\"m/q\"}\n\
            {\"Action\":\"fail\",\"Package\":\"m/q\",\"Elapsed\":0}\n";
        assert_eq!(seen(printed), [is("q", Verdict::Failed)]);
        assert_eq!(seen(&printed.replace("m/q", "m")), [is("m", Verdict::Failed)]);
    }

    #[test]
    fn tests_are_found_by_their_declarations() {
        let text = "func TestMain(m *testing.M) {\nfunc TestA(t *testing.T) {\n\
            // func TestB(t *testing.T)\nfunc helper(t *testing.T) {}\n";
        assert_eq!(tests_of(text), ["TestA"]);
    }

    #[test]
    fn a_case_is_run_again_with_the_test_around_it() {
        assert_eq!(outermost("TestA"), Some("TestA"));
        assert_eq!(outermost("TestA/version_1.2"), Some("TestA"));
        assert_eq!(outermost("pkg/kgo.TestB/x"), Some("TestB"));
        assert_eq!(outermost("sasl.TestC/1.2"), Some("TestC"));
        assert_eq!(outermost("pkg/kgo"), None);
        assert_eq!(pattern(["TestB", "TestA", "TestB"].into_iter()), "^(TestA|TestB)$");
    }

    #[test]
    fn where_a_module_is_is_read() {
        let printed = "{\n\t\"Path\": \"m\",\n\t\"Dir\": \"/go/m@v1\",\n}";
        let dir = printed.lines().find_map(|line| field(line, "Dir"));
        assert_eq!(dir.as_deref(), Some("/go/m@v1"));
    }
}
