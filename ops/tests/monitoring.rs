//! Alerts and boards ask for what nodes serve: each metric, label and value of theirs is on a page of a real cluster.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;

use self::cluster::{Cluster, lines, produce, wait, wait_for_state};
use self::common::{Running, Scratch, base_port, ok, run, text};

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "common/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

/// Labels that Prometheus adds itself.
const OF_PROMETHEUS: &[&str] = &["instance", "job"];

/// Of each series the values of its labels.
#[derive(Default)]
struct Served(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Served {
    fn add(&mut self, page: &str) {
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let known = self.0.entry(name.to_owned()).or_default();
            for (key, value) in pairs(labels.trim_end_matches('}'), "=") {
                known.entry(key).or_default().insert(value);
            }
        }
    }

    /// What an expression asks for, with the labels in its text, that is not served.
    fn lacks(&self, expr: &str, texts: &[&str]) -> Vec<String> {
        let mut lacking = Vec::new();
        let mut labels: BTreeSet<&str> = OF_PROMETHEUS.iter().copied().collect();
        for (name, matchers) in selectors(expr) {
            let Some(known) = self.0.get(name) else {
                lacking.push(format!("{expr}: no {name}"));
                continue;
            };
            labels.extend(known.keys().map(String::as_str));
            for (key, operator, value) in matchers {
                let values = known.get(key).cloned().unwrap_or_default();
                if values.is_empty() || (operator == "=" && !values.contains(value)) {
                    lacking.push(format!("{expr}: no {key}={value} of {name}, but {values:?}"));
                }
            }
        }
        let by = expr.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
        let by = by.flat_map(|names| names.split(", "));
        let in_text = |text: &&'_ str| {
            let parts = text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
            let names = parts.map(|it| it.trim().trim_start_matches("$labels."));
            names.filter(|it| !it.starts_with("$value")).map(str::to_owned).collect::<Vec<_>>()
        };
        let asked = by.map(str::to_owned).chain(texts.iter().flat_map(in_text));
        let unknown = asked.filter(|label| !labels.contains(label.as_str()));
        lacking.extend(unknown.map(|label| format!("{expr}: no label {label}")));
        lacking
    }
}

/// `key="value"` and so on.
fn pairs(text: &str, operator: &str) -> Vec<(String, String)> {
    let parts = text.split("\",").filter_map(|part| part.split_once(&format!("{operator}\"")));
    parts.map(|(key, value)| (key.to_owned(), value.trim_end_matches('"').to_owned())).collect()
}

/// A label, an operator and a value.
type Matcher<'e> = (&'e str, &'e str, &'e str);

/// The metrics of an expression, each with its matchers.
fn selectors(expr: &str) -> Vec<(&str, Vec<Matcher<'_>>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = expr;
    while let Some(begin) = ["meridian_", "process_"].iter().filter_map(|it| rest.find(it)).min() {
        rest = &rest[begin..];
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let inside = after.strip_prefix('{').and_then(|it| it.split('}').next()).unwrap_or("");
        let matchers = inside.split("\",").filter_map(|part| {
            let (left, value) = part.split_once('"')?;
            let key = left.trim_end_matches(['=', '!', '~']);
            Some((key.trim(), &left[key.len()..], value.trim_end_matches('"')))
        });
        found.push((name, matchers.collect()));
        rest = after;
    }
    found
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: String,
    expr: String,
    annotations: BTreeMap<String, String>,
}

/// A cluster of three nodes that mirrors a topic, and is read by a group of it.
struct World {
    _dev: Running,
    _source: Cluster,
    pages: Vec<String>,
    _scratch: Scratch,
}

impl World {
    fn start() -> Self {
        let scratch = Scratch::new("monitoring");
        let source = Cluster::start(scratch.path(), "source");
        ok(&["topic", "create", "t", "-b", &source.address]);
        produce(&source.address, "t", &lines(0..100));
        let port = base_port();
        let arguments = ["dev", "--dcs", "3", "--racks", "1", "--base-port", &port, "--data", "d"];
        let mut dev = Running::start(&arguments, scratch.path());
        let at = dev.wait_for("bootstrap ");
        ok(&["link", "create", "west", "--source", &source.address, "-b", &at]);
        ok(&["mirror", "create", "t", "--link", "west", "-b", &at]);
        wait_for_state(&at, "t", "mirroring");
        ok(&["topic", "create", "own", "-b", &at]);
        produce(&at, "own", &lines(0..100));
        // So that an error was answered.
        assert!(!run(&["topic", "create", "own", "-b", &at]).status.success());
        let port: u16 = port.parse().unwrap();
        let scraped = || (0..3).map(|index| page(port + 200 + index)).collect::<Vec<String>>();
        let mut pages = scraped();
        wait("the worker of the link reports", || {
            pages = scraped();
            pages.iter().any(|page| page.contains("\nmeridian_mirror_partitions{"))
        });
        Self { _dev: dev, _source: source, pages, _scratch: scratch }
    }
}

fn page(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Has promtool check something, where there is one; our own rules hold everywhere.
fn promtool(arguments: &[&str], input: &str) {
    let spawned = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        return eprintln!("promtool {arguments:?}: there is none here");
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    eprintln!("promtool {arguments:?}: {said}");
}

#[test]
fn alerts_and_boards_ask_for_what_is_served() {
    let world = World::start();
    let mut served = Served::default();
    world.pages.iter().for_each(|page| served.add(page));

    let yaml = ok(&["alerts", "--runbooks", "https://example.com/alerts"]);
    let rules: Rules = serde_saphyr::from_str(&yaml).unwrap();
    let rules = &rules.groups[0].rules;
    assert!(rules.len() >= 30);
    let mut lacking = Vec::new();
    for Rule { alert, expr, annotations } in rules {
        let texts: Vec<&str> = annotations.values().map(String::as_str).collect();
        assert!(!selectors(expr).is_empty(), "{alert} asks for nothing");
        lacking.extend(served.lacks(expr, &texts));
    }
    let boards = ok(&["dashboards"]);
    for board in boards.lines() {
        let board: Value = serde_json::from_str(board).unwrap();
        for panel in board["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let (expr, legend) = (&target["expr"], &target["legendFormat"]);
                lacking.extend(served.lacks(expr.as_str().unwrap(), &[legend.as_str().unwrap()]));
            }
        }
    }
    assert!(lacking.is_empty(), "{lacking:#?}");

    let folder = world._scratch.path().join("boards");
    let written = ok(&["dashboards", "--out", folder.to_str().unwrap()]);
    assert_eq!(written.lines().count(), boards.lines().count());
    let file = world._scratch.path().join("rules.yml");
    std::fs::write(&file, &yaml).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()], "");
    promtool(&["check", "metrics"], &world.pages[0]);
}

#[test]
fn an_expression_that_asks_for_too_much_is_found() {
    let mut served = Served::default();
    served.add("# HELP meridian_a A.\nmeridian_a{b=\"c\",d=\"e\"} 1\n");
    for (expr, text, found) in [
        ("max by (b) (meridian_a{b=\"c\"}) > 0", "{{ $labels.b }} {{ $value }}", 0),
        ("meridian_a{b!~\"x|y\"}", "{{d}} {{instance}}", 0),
        ("meridian_b > 0 and meridian_a > 0", "", 1),
        ("meridian_a{b=\"x\"}", "", 1),
        ("meridian_a{x!=\"c\"}", "", 1),
        ("sum by (d, x) (meridian_a)", "{{y}}", 2),
    ] {
        assert_eq!(served.lacks(expr, &[text]).len(), found, "{expr}");
    }
}
