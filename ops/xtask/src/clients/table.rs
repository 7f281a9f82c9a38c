//! What the clients said, and the table it makes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

const BEGIN: &str = "<!-- clients: made by `cargo xtask clients` -->\n";
const END: &str = "<!-- clients: end -->\n";
const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
/// The other checks, and what their columns are called.
const OTHERS: [(&str, &str); 9] = [
    ("group", "group"),
    ("consumer", "group, KIP-848"),
    ("transactions", "transactions"),
    ("admin", "admin"),
    ("kill", "killed: produce and consume"),
    ("group-kill", "killed: group"),
    ("consumer-kill", "killed: group, KIP-848"),
    ("transactions-kill", "killed: transactions"),
    ("admin-kill", "killed: admin"),
];
const APPS_BEGIN: &str = "<!-- applications: made by `cargo xtask clients --apps` -->\n";
const APPS_END: &str = "<!-- applications: end -->\n";

/// What became of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed,
    /// The client has no such thing.
    Lacking,
}

/// What one client said.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) name: &'static str,
    version: String,
    checks: BTreeMap<String, (Outcome, String)>,
    ended: String,
}

impl Report {
    /// Reads a program's output: lines `VERSION words` and `RESULT check outcome words`.
    pub(super) fn read(name: &'static str, output: &str, ended: &str) -> Self {
        let mut report =
            Self { name, version: String::new(), checks: BTreeMap::new(), ended: ended.to_owned() };
        for line in output.lines() {
            if let Some(version) = line.strip_prefix("VERSION ") {
                version.clone_into(&mut report.version);
            } else if let Some(result) = line.strip_prefix("RESULT ") {
                let (check, outcome, words) = parse(result);
                report.note(check, outcome, words);
            }
        }
        report
    }

    /// Adds a check; a failure is never overwritten.
    pub(super) fn note(&mut self, check: &str, outcome: Outcome, words: &str) {
        let known = self.checks.get(check).is_some_and(|(known, _)| *known == Outcome::Failed);
        if !known {
            self.checks.insert(check.to_owned(), (outcome, words.to_owned()));
        }
    }

    /// Adds the checks of another phase.
    pub(super) fn join(&mut self, other: Self) {
        self.checks.extend(other.checks);
        if self.ended.ends_with(": 0") {
            self.ended = other.ended;
        }
    }

    pub(super) fn is_of_same(&self, other: &Self) -> bool {
        self.name == other.name
    }

    pub(super) fn outcome(&self, check: &str) -> Option<Outcome> {
        self.checks.get(check).map(|(outcome, _)| *outcome)
    }

    /// One line.
    pub(super) fn summary(&self) -> String {
        let told = self.checks.iter().map(|(check, (outcome, words))| match outcome {
            Outcome::Passed => format!("{check} ok"),
            Outcome::Lacking => format!("{check} -"),
            Outcome::Failed => format!("{check} FAILED ({words})"),
        });
        format!("{}: {}", self.name, told.collect::<Vec<_>>().join(", "))
    }

    /// What keeps the run from passing: checks that failed or were never told.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for check in CODECS.into_iter().chain(OTHERS.map(|(check, _)| check)) {
            match self.checks.get(check) {
                Some((Outcome::Failed, words)) => {
                    failures.push(format!("{} {check}: {words}", self.name));
                }
                None => {
                    failures.push(format!("{} {check}: nothing said ({})", self.name, self.ended))
                }
                Some(_) => {}
            }
        }
        failures
    }

    /// What keeps a run of applications from passing: any check that failed, or none that was told.
    pub(super) fn failures_of_any(&self) -> Vec<String> {
        if self.checks.is_empty() {
            return vec![format!("{}: nothing said ({})", self.name, self.ended)];
        }
        let failed = self.checks.iter().filter(|(_, (outcome, _))| *outcome == Outcome::Failed);
        failed.map(|(check, (_, words))| format!("{} {check}: {words}", self.name)).collect()
    }

    /// The checks of a phase without kills, each of which a client has to tell of.
    pub(super) fn steady(&self) -> impl Iterator<Item = (&'static str, Option<Outcome>)> {
        let others = OTHERS.into_iter().map(|(check, _)| check);
        let steady = CODECS.into_iter().chain(others.filter(|check| !check.contains("kill")));
        steady.map(|check| (check, self.outcome(check)))
    }

    /// Every check that was told of.
    pub(super) fn checks(&self) -> impl Iterator<Item = (&str, Outcome)> {
        self.checks.iter().map(|(check, (outcome, _))| (check.as_str(), *outcome))
    }

    fn cell(&self, check: &str) -> &'static str {
        match self.checks.get(check) {
            Some((Outcome::Passed, _)) => "ok",
            Some((Outcome::Lacking, _)) => "-",
            Some((Outcome::Failed, _)) | None => "**failed**",
        }
    }

    /// Why the client was not asked for some checks, a line for each reason.
    fn lacking(&self) -> Vec<String> {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let titles = CODECS.map(|codec| (codec, codec)).into_iter().chain(OTHERS);
        for (check, title) in titles {
            if let Some((Outcome::Lacking, words)) = self.checks.get(check) {
                reasons.entry(words).or_default().push(title);
            }
        }
        let line = |(words, titles): (&str, Vec<&str>)| {
            format!("- {}, {}: {words}\n", self.name, titles.join("; "))
        };
        reasons.into_iter().map(line).collect()
    }

    fn compressions(&self) -> String {
        let all_passed = CODECS.iter().all(|codec| self.cell(codec) == "ok");
        if all_passed {
            return "all five".to_owned();
        }
        let told = |codec: &&str| match self.cell(codec) {
            "ok" => (*codec).to_owned(),
            cell => format!("{codec}: {cell}"),
        };
        CODECS.iter().map(told).collect::<Vec<_>>().join(", ")
    }
}

/// A check, which may be of several words, what became of it, and words.
fn parse(result: &str) -> (&str, Outcome, &str) {
    let outcomes = [("ok", Outcome::Passed), ("none", Outcome::Lacking), ("fail", Outcome::Failed)];
    let split = result.match_indices(' ').find_map(|(at, _)| {
        let (word, words) = result[at + 1..].split_once(' ').unwrap_or((&result[at + 1..], ""));
        let (_, outcome) = outcomes.iter().find(|(name, _)| *name == word)?;
        Some((&result[..at], *outcome, words))
    });
    split.unwrap_or((result, Outcome::Failed, "the outcome is not told"))
}

/// The table, in Markdown, and why its dashes are there.
pub(super) fn render(reports: &[Report]) -> String {
    let titles = OTHERS.map(|(_, title)| title).join(" | ");
    let lines = "--- | ".repeat(OTHERS.len() + 2);
    let mut table =
        format!("| client | version | produce and consume | {titles} |\n| {lines}--- |\n");
    for report in reports {
        let cells = OTHERS.map(|(check, _)| report.cell(check)).join(" | ");
        let (name, version) = (report.name, &report.version);
        let _infallible =
            writeln!(table, "| {name} | {version} | {} | {cells} |", report.compressions());
    }
    let lacking: Vec<String> = reports.iter().flat_map(Report::lacking).collect();
    if !lacking.is_empty() {
        let _infallible = write!(table, "\nDashes:\n\n{}", lacking.concat());
    }
    table
}

/// The table of applications, in Markdown: a row for each check.
pub(super) fn render_apps(reports: &[(&str, Report)]) -> String {
    let mut table =
        "| application | what | result | seen |\n| --- | --- | --- | --- |\n".to_owned();
    for (title, report) in reports {
        let version = &report.version;
        for (check, (outcome, words)) in &report.checks {
            let result = report.cell(check);
            let seen = if *outcome == Outcome::Failed { "" } else { words };
            let _infallible =
                writeln!(table, "| {title} {version} | {check} | {result} | {seen} |");
        }
    }
    table
}

/// Puts the clients' table between its markers.
pub(super) fn publish(page: &Path, reports: &[Report]) -> Result<(), String> {
    put(page, BEGIN, END, &render(reports))
}

/// Puts the applications' table between its markers.
pub(super) fn publish_apps(page: &Path, reports: &[(&str, Report)]) -> Result<(), String> {
    put(page, APPS_BEGIN, APPS_END, &render_apps(reports))
}

fn put(page: &Path, begin: &str, end: &str, table: &str) -> Result<(), String> {
    let problem = |error| format!("{}: {error}", page.display());
    let text = std::fs::read_to_string(page).map_err(problem)?;
    let parts = text.split_once(begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(end)?;
        Some((before, after))
    });
    let Some((before, after)) = parts else {
        return Err(format!("{}: the markers of the table are gone", page.display()));
    };
    let made = format!("{before}{begin}{table}{end}{after}");
    std::fs::write(page, made).map_err(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "VERSION 1.2\nRESULT none ok 5 records\nRESULT gzip ok\nnoise\n\
        RESULT snappy ok\nRESULT lz4 ok\nRESULT zstd none not built in\nRESULT group ok\n\
        RESULT consumer none too old\nRESULT admin ok\nRESULT transactions ok\nRESULT kill ok 7 records\n\
        RESULT group-kill ok\nRESULT consumer-kill none too old\nRESULT transactions-kill ok\n\
        RESULT admin-kill ok\n";

    #[test]
    fn a_report_is_read_and_shown() {
        let report = Report::read("x", GOOD, "exit status: 0");
        assert_eq!(report.failures(), Vec::<String>::new());
        let table = render(&[report]);
        let row = "| x | 1.2 | none, gzip, snappy, lz4, zstd: - | ok | - | ok | ok | ok | ok | - | ok | ok |";
        assert_eq!(table.lines().nth(2), Some(row));
        let dashes =
            "- x, zstd: not built in\n- x, group, KIP-848; killed: group, KIP-848: too old\n";
        assert!(table.ends_with(dashes), "{table}");
    }

    #[test]
    fn a_failure_and_a_silence_fail_the_run() {
        let report = Report::read("x", &GOOD.replace("group ok", "group fail lost"), "");
        assert_eq!(report.failures(), ["x group: lost"]);
        let report =
            Report::read("x", &GOOD.replace("RESULT kill ok 7 records\n", ""), "signal: 9");
        assert_eq!(report.failures(), ["x kill: nothing said (signal: 9)"]);
    }

    #[test]
    fn checks_of_applications_have_names_of_several_words() {
        let report =
            Report::read("x", "VERSION 4\nRESULT a b, c ok 7 and all ok\nRESULT d fail why\n", "");
        assert_eq!(report.failures_of_any(), ["x d: why"]);
        let table = render_apps(&[("X", report)]);
        assert!(table.contains("| X 4 | a b, c | ok | 7 and all ok |"), "{table}");
        assert!(table.contains("| X 4 | d | **failed** |  |"), "{table}");
        assert_eq!(Report::read("x", "", "signal: 9").failures_of_any().len(), 1);
    }

    #[test]
    fn a_failure_outlives_a_later_success() {
        let mut report = Report::read("x", GOOD, "");
        report.note("kill", Outcome::Failed, "no leader was killed");
        report.note("kill", Outcome::Passed, "7 records");
        assert_eq!(report.failures(), ["x kill: no leader was killed"]);
    }
}
