//! What runs came to: one line of JSON for each, and tables of their medians.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// A run beside which others took more does not count, if enough are left.
const OTHER_CORES_MAX: f64 = 0.3;
const COUNTED_MIN: usize = 3;
/// What is worse by more is named.
const WORSE_MAX: f64 = 1.1;
/// The system that others are compared with.
const PEER: &str = "kafka";
/// Keys of a row that are no figures.
const NOT_FIGURES: [&str; 4] = ["work", "system", "turn", "other_cores"];

/// A number, and the name that it has in tables and in JSON.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    name: String,
    value: f64,
}

impl Figure {
    pub(super) fn new(name: &str, value: f64) -> Self {
        Self { name: name.to_owned(), value }
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(super) work: String,
    pub(super) system: String,
    pub(super) turn: u32,
    pub(super) figures: Vec<Figure>,
    /// Cores that neither the servers nor their client took.
    pub(super) other_cores: f64,
}

impl Row {
    /// One line.
    pub(super) fn to_json(&self) -> String {
        let mut text = format!(
            "{{\"work\":\"{}\",\"system\":\"{}\",\"turn\":{},\"other_cores\":{:.2}",
            self.work, self.system, self.turn, self.other_cores
        );
        for Figure { name, value } in &self.figures {
            // A String takes all that is written to it.
            let _written = write!(text, ",\"{name}\":{}", rounded(*value));
        }
        text.push('}');
        text
    }

    fn of_json(line: &str) -> Option<Self> {
        let inner = line.trim().strip_prefix('{')?.strip_suffix('}')?;
        let pair = |pair: &str| {
            let (key, value) = pair.split_once(':')?;
            Some((key.trim().trim_matches('"').to_owned(), value.trim().to_owned()))
        };
        let pairs: BTreeMap<String, String> = inner.split(',').map(pair).collect::<Option<_>>()?;
        let text = |key: &str| pairs.get(key).map(|it| it.trim_matches('"').to_owned());
        let figures = pairs.iter().filter(|(key, _)| !NOT_FIGURES.contains(&key.as_str()));
        let figure = |(name, value): (&String, &String)| {
            Some(Figure { name: name.clone(), value: value.parse().ok()? })
        };
        Some(Self {
            work: text("work")?,
            system: text("system")?,
            turn: text("turn")?.parse().ok()?,
            other_cores: text("other_cores")?.parse().ok()?,
            figures: figures.map(figure).collect::<Option<_>>()?,
        })
    }
}

/// The rows of a file.
pub(crate) fn read(file: &Path) -> Result<Vec<Row>, String> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
    let row = |(number, line): (usize, &str)| {
        let place = || format!("{}:{}: this is no row of a benchmark", file.display(), number + 1);
        Row::of_json(line).ok_or_else(place)
    };
    text.lines().enumerate().map(row).collect()
}

/// The runs of one work and system.
#[derive(Debug, Default)]
struct Runs(Vec<f64>);

impl Runs {
    fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let upper = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        let lower = sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default();
        f64::midpoint(lower, upper)
    }

    fn spread(&self) -> (f64, f64) {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        (least, self.0.iter().copied().fold(0.0, f64::max))
    }
}

type BySystem = BTreeMap<String, Runs>;
/// By work and figure.
type Medians = BTreeMap<(String, String), BySystem>;

/// What counts, sorted.
fn counted(rows: &[Row]) -> Medians {
    let mut by_run: BTreeMap<(&str, &str), Vec<&Row>> = BTreeMap::new();
    for row in rows {
        by_run.entry((&row.work, &row.system)).or_default().push(row);
    }
    let mut medians = Medians::new();
    for ((work, system), rows) in by_run {
        let is_quiet = |row: &&&Row| row.other_cores <= OTHER_CORES_MAX;
        let quiet: Vec<&Row> = rows.iter().filter(is_quiet).copied().collect();
        let taken = if quiet.len() >= COUNTED_MIN { quiet } else { rows };
        for Figure { name, value } in taken.into_iter().flat_map(|row| &row.figures) {
            let key = (work.to_owned(), name.clone());
            medians.entry(key).or_default().entry(system.to_owned()).or_default().0.push(*value);
        }
    }
    medians
}

/// The medians as a table in Markdown: for each work a row of its figures, with spread and ratio to the peer.
pub(crate) fn table(rows: &[Row]) -> String {
    let medians = counted(rows);
    let systems: BTreeSet<&str> =
        medians.values().flat_map(BTreeMap::keys).map(String::as_str).collect();
    let mut works: BTreeMap<&str, Vec<(&str, &BySystem)>> = BTreeMap::new();
    for ((work, figure), by_system) in &medians {
        works.entry(work).or_default().push((figure, by_system));
    }
    let mut text = "| work | figure |".to_owned();
    for system in &systems {
        // A String takes all that is written to it.
        let _written = write!(text, " {system} |");
    }
    text.push_str("\n| --- | --- |");
    text.push_str(&" --- |".repeat(systems.len()));
    text.push('\n');
    for (work, figures) in works {
        let names: Vec<&str> = figures.iter().map(|(name, _)| *name).collect();
        let _written = write!(text, "| {work} | {} |", names.join("<br>"));
        for system in &systems {
            let cells: Vec<String> =
                figures.iter().map(|(_, by_system)| cell(by_system, system)).collect();
            let _written = write!(text, " {} |", cells.join("<br>"));
        }
        text.push('\n');
    }
    text
}

/// A median with its spread, and how it stands to the peer's.
fn cell(by_system: &BySystem, system: &str) -> String {
    let Some(runs) = by_system.get(system) else { return String::new() };
    let (median, (least, most)) = (runs.median(), runs.spread());
    let cell = format!("{} ({}..{})", rounded(median), rounded(least), rounded(most));
    match by_system.get(PEER).map(Runs::median) {
        Some(peer) if system != PEER && peer > 0.0 => format!("{cell} **{:.2}x**", median / peer),
        _ => cell,
    }
}

/// What is worse by more than a tenth, beside the peer where both files have it.
pub(crate) fn regressions(before: &[Row], now: &[Row]) -> Vec<String> {
    let (before, now) = (counted(before), counted(now));
    let mut worse = Vec::new();
    for ((work, figure), by_system) in &now {
        let Some(earlier) = before.get(&(work.clone(), figure.clone())) else { continue };
        let peers = by_system.get(PEER).zip(earlier.get(PEER));
        for (system, runs) in by_system.iter().filter(|(system, _)| *system != PEER) {
            let Some(earlier) = earlier.get(system) else { continue };
            let (mut is, mut was) = (runs.median(), earlier.median());
            if let Some((peer_is, peer_was)) = peers {
                is /= peer_is.median();
                was /= peer_was.median();
            }
            let (is_more, was_more) = if is_better_high(figure) { (was, is) } else { (is, was) };
            if is_more > was_more * WORSE_MAX {
                worse.push(format!("{work} {figure} of {system}: {is:.3}, was {was:.3}"));
            }
        }
    }
    worse
}

fn is_better_high(figure: &str) -> bool {
    figure.ends_with("per_s") || figure == "chains"
}

/// With three digits that mean something.
fn rounded(value: f64) -> String {
    let decimals = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, value: f64, other_cores: f64) -> Row {
        let figures = vec![Figure::new("cpu_s_per_gb", 2.0), Figure::new("mb_per_s", value)];
        let (work, system) = ("read".to_owned(), system.to_owned());
        Row { work, system, turn: 1, figures, other_cores }
    }

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let row = row("nine", 101.0, 0.25);
        assert_eq!(
            row.to_json(),
            "{\"work\":\"read\",\"system\":\"nine\",\"turn\":1,\"other_cores\":0.25,\
             \"cpu_s_per_gb\":2.00,\"mb_per_s\":101}"
        );
        assert_eq!(Row::of_json(&row.to_json()), Some(row));
        for wrong in ["", "{}", "{\"work\":\"a\"}", "work,system"] {
            assert_eq!(Row::of_json(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn runs_beside_which_others_worked_count_only_where_there_are_few() {
        let quiet = [10.0, 30.0, 20.0].map(|value| row("nine", value, 0.1));
        let busy = row("nine", 1.0, 0.9);
        let table_of = |rows: &[Row]| table(rows).lines().last().unwrap().to_owned();
        let all = [&quiet[..], std::slice::from_ref(&busy)].concat();
        assert!(table_of(&all).contains("20.0 (10.0..30.0)"), "{}", table_of(&all));
        let few = [&quiet[..2], std::slice::from_ref(&busy)].concat();
        assert!(table_of(&few).contains("10.0 (1.00..30.0)"), "{}", table_of(&few));
    }

    #[test]
    fn a_table_says_how_a_system_stands_beside_the_peer() {
        let rows = [row("kafka", 50.0, 0.0), row("nine", 100.0, 0.0)];
        let row = "| read | cpu_s_per_gb<br>mb_per_s | 2.00 (2.00..2.00)<br>50.0 (50.0..50.0) | \
                   2.00 (2.00..2.00) **1.00x**<br>100 (100..100) **2.00x** |\n";
        assert!(table(&rows).ends_with(row), "{}", table(&rows));
    }

    #[test]
    fn what_is_worse_beside_the_peer_is_named_in_both_directions() {
        let before = [row("kafka", 50.0, 0.0), row("nine", 100.0, 0.0)];
        // Half as fast as before, as the peer is: the machine was busy.
        let slow = [row("kafka", 25.0, 0.0), row("nine", 50.0, 0.0)];
        assert!(regressions(&before, &slow).is_empty());
        let worse = regressions(&before, &[row("kafka", 50.0, 0.0), row("nine", 80.0, 0.0)]);
        assert_eq!(worse, ["read mb_per_s of nine: 1.600, was 2.000"]);
        let dear = Row { figures: vec![Figure::new("cpu_s_per_gb", 3.0)], ..row("nine", 0.0, 0.0) };
        assert_eq!(regressions(&before, &[dear]), ["read cpu_s_per_gb of nine: 3.000, was 2.000"]);
    }
}
