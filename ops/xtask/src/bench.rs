//! `cargo xtask bench`: Meridian beside Apache Kafka at the same work, in turn, on this machine.
//!
//! Each run gives a row: figures of the client, processor time and context switches of all servers, and how much of the
//! machine others took meanwhile. Rows go to a file, from which `cargo xtask docs` makes the tables of
//! `docs/benchmarks.md`; `--baseline` compares the medians of two such files.

#![expect(clippy::disallowed_methods, reason = "real processes are measured in real time")]

mod meter;
pub(crate) mod rows;
mod systems;
mod works;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use self::meter::settle;
use self::rows::{Row, regressions};
use self::systems::{System, SystemKind};
use self::works::Work;
use crate::command::ok;
use crate::target;

const USAGE: &str = "usage: cargo xtask bench [--works NAME,...] [--systems nine,three,one,kafka,kafka-rf2] \
    [--turns N] [--seconds N] [--warm-mb N] [--out FILE] [--baseline FILE] [--profile NAME] [--built]";
/// Where rows go, unless another file is named.
pub(crate) const ROWS: &str = "docs/benchmarks.jsonl";

/// What is to be measured.
#[derive(Debug)]
struct Options {
    works: Vec<Work>,
    systems: Vec<SystemKind>,
    turns: u32,
    /// Of each run.
    seconds: u32,
    /// What each Kafka writes before anything counts: its compiler needs that.
    warm_mb: u64,
    out: PathBuf,
    baseline: Option<PathBuf>,
    /// What Meridian is built with: `release` is what figures are published of.
    profile: String,
    is_built: bool,
}

/// Measures, and appends rows.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let options = Options::parse(root, arguments)?;
    let meridian = target(root).join(&options.profile).join("meridian");
    if !options.is_built {
        let mut build = crate::cargo();
        build.args(["build", "-p", "meridian", "--profile", &options.profile]);
        ok(build.current_dir(root))?;
    }
    let folder = target(root).join("bench");
    let mut systems = Vec::new();
    for kind in &options.systems {
        println!("== start {}", kind.name());
        systems.push(System::start(*kind, root, &folder, &meridian)?);
    }
    for system in systems.iter().filter(|system| system.kind.is_kafka()) {
        println!("== warm {}: {} MB", system.kind.name(), options.warm_mb);
        works::warm(&meridian, system, options.warm_mb)?;
    }
    let mut rows = Vec::new();
    for turn in 1..=options.turns {
        for work in &options.works {
            // Nobody is always the one that comes after the same other one.
            systems.rotate_left(1);
            for system in &systems {
                let idle_cores = settle();
                let row = work.run(&meridian, system, turn, options.seconds)?;
                println!("{}  (before it: {idle_cores:.2} cores busy)", row.to_json());
                append(&options.out, &row)?;
                rows.push(row);
            }
        }
    }
    drop(systems);
    print!("\n{}", rows::table(&rows));
    match &options.baseline {
        Some(baseline) => compare(&rows, baseline),
        None => Ok(()),
    }
}

/// An error that names what has got worse than in an earlier file.
fn compare(rows: &[Row], baseline: &Path) -> Result<(), String> {
    let before = rows::read(baseline)?;
    let worse = regressions(&before, rows);
    if worse.is_empty() {
        println!("no figure is more than 10 % worse than in {}", baseline.display());
        return Ok(());
    }
    Err(format!("worse than in {}:\n{}", baseline.display(), worse.join("\n")))
}

fn append(file: &Path, row: &Row) -> Result<(), String> {
    let problem = |error| format!("{}: {error}", file.display());
    let mut open = OpenOptions::new().create(true).append(true).open(file).map_err(problem)?;
    writeln!(open, "{}", row.to_json()).map_err(problem)
}

impl Options {
    fn parse(root: &Path, arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            works: Work::ALL.to_vec(),
            systems: vec![SystemKind::Nine, SystemKind::Three, SystemKind::Kafka],
            turns: 5,
            seconds: 15,
            warm_mb: 5000,
            out: root.join(ROWS),
            baseline: None,
            profile: "release".to_owned(),
            is_built: false,
        };
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            if name == "--built" {
                options.is_built = true;
                continue;
            }
            let value = rest.next().ok_or(USAGE)?;
            let number = || value.parse::<u32>().ok().filter(|number| *number > 0).ok_or(USAGE);
            match name.as_str() {
                "--works" => options.works = list(value, Work::named)?,
                "--systems" => options.systems = list(value, SystemKind::named)?,
                "--turns" => options.turns = number()?,
                "--seconds" => options.seconds = number()?,
                "--warm-mb" => options.warm_mb = number()?.into(),
                "--out" => options.out = value.into(),
                "--profile" => options.profile.clone_from(value),
                "--baseline" => options.baseline = Some(value.into()),
                _ => return Err(USAGE.to_owned()),
            }
        }
        Ok(options)
    }
}

/// What the names between commas stand for.
fn list<T>(names: &str, named: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let one = |name: &str| named(name).ok_or_else(|| format!("{name} is unknown; {USAGE}"));
    names.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_what_is_unknown_is_refused() {
        let parse = |text: &str| {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            Options::parse(Path::new("/r"), &words)
        };
        let options = parse("").unwrap();
        assert_eq!((options.turns, options.out), (5, PathBuf::from("/r").join(ROWS)));
        let options = parse("--works rate-1k,chain-0 --systems kafka --turns 2 --built").unwrap();
        assert_eq!(options.works.len(), 2);
        assert_eq!(options.systems, [SystemKind::Kafka]);
        assert!(options.is_built && options.turns == 2);
        for wrong in ["--works nothing", "--turns 0", "--turns", "--what 1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
