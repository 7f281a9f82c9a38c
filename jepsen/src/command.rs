//! What the command line does.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;

use crate::broken::Broken;
use crate::matrix::{self, Fault};
use crate::report::{Counters, Report};
use crate::sim::{self, Shape, SimConfig, Workload};
use crate::trace::Detail;

/// How many reports between two lines of progress.
const PROGRESS_EVERY: u64 = 20;

/// What every run needs to know.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Virtual time of each run, such as 300s or 10m.
    #[arg(long, default_value = "300s", value_parser = parse_duration)]
    pub time: Duration,
    /// Who uses the cluster.
    #[arg(long, value_enum, default_value_t)]
    pub workload: Workload,
    /// What the cluster is made of.
    #[arg(long, value_enum, default_value_t)]
    pub shape: Shape,
    /// The rule to break (needs the `mutations` feature).
    #[arg(long, value_parser = parse_mutation)]
    pub mutation: Option<Broken>,
}

/// `sim run`
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// How many seeds.
    #[arg(long, default_value_t = 300)]
    pub seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 1)]
    pub start: u64,
    /// How many run at once.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened into the command's own help")]
    pub common: Common,
}

/// `sim replay`
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The seed.
    pub seed: u64,
    /// Print every event.
    #[arg(long)]
    pub verbose: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened into the command's own help")]
    pub common: Common,
}

/// `sim meta`
#[derive(Args, Clone, Debug)]
pub struct MetaArgs {
    /// How many seeds.
    #[arg(long, default_value_t = 5)]
    pub seeds: u64,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened into the command's own help")]
    pub common: Common,
}

/// `sim matrix`
#[derive(Args, Clone, Debug)]
pub struct MatrixArgs {
    /// What clients do grows from it; of the first run.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// Only these faults.
    #[arg(long, value_enum)]
    pub fault: Vec<Fault>,
}

/// `sim mutations`
#[cfg(feature = "mutations")]
#[derive(Args, Clone, Debug)]
pub struct MutationsArgs {
    /// How many seeds run at once.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Only these.
    #[arg(long, value_parser = parse_mutation)]
    pub only: Vec<Broken>,
}

/// Crosses long faults with all work, and prints what each cell came to.
pub fn matrix(args: &MatrixArgs) -> ExitCode {
    let faults = if args.fault.is_empty() { Fault::ALL.to_vec() } else { args.fault.clone() };
    let mut failed_count = 0;
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        for fault in &faults {
            match matrix::run(seed, *fault) {
                Ok(made) => println!("seed {seed}, {fault:?}:{made}"),
                Err(violation) => {
                    failed_count += 1;
                    println!("seed {seed}, {violation}");
                }
            }
        }
    }
    if failed_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Looks for every mutation and prints what it took.
#[cfg(feature = "mutations")]
pub fn mutations(args: &MutationsArgs) -> ExitCode {
    use crate::mutations::{Hunt, Method, hunt, method};
    let mut not_found = 0;
    let is_wanted = |it: &Broken| args.only.is_empty() || args.only.contains(it);
    let mutations = Broken::all().filter(|it| !matches!(method(*it), Method::Elsewhere));
    let mutations = mutations.filter(is_wanted);
    let count = mutations.clone().count();
    for mutation in mutations {
        let name = mutation.to_string();
        let outcome = match (hunt(mutation, args.threads), method(mutation)) {
            (
                Hunt::BySeed(seed, violation),
                Method::Seeds(bound)
                | Method::Groups(bound)
                | Method::Parts(bound)
                | Method::Object(bound)
                | Method::Tiers(bound)
                | Method::Federation(bound),
            ) => {
                format!("found, {seed} of {bound} seeds: {:?}", violation.promise)
            }
            (Hunt::BySeed(seed, violation), _) => format!("found, seed {seed}: {violation}"),
            (Hunt::ByScenario(violation), _) => {
                format!("found by its scenario: {:?}", violation.promise)
            }
            (Hunt::NotFound, method) => {
                not_found += 1;
                format!("NOT FOUND by {method:?}")
            }
        };
        println!("{name:<26} {outcome:<52} {}", mutation.describe());
    }
    println!("{count} mutations, {not_found} not found");
    if not_found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Common {
    fn sim(&self, seed: u64) -> SimConfig {
        let config = SimConfig::new(seed, self.workload, self.time);
        SimConfig {
            shape: self.shape,
            mutations: Broken::of_log(self.mutation),
            metadata_mutation: Broken::of_metadata(self.mutation),
            mirror_mutation: Broken::of_mirrors(self.mutation),
            ..config
        }
    }

    fn replay_command(&self, seed: u64) -> String {
        let features = if self.mutation.is_some() { " --features mutations" } else { "" };
        let mutation =
            self.mutation.map(|mutation| format!(" --mutation {mutation}")).unwrap_or_default();
        let workload = match self.workload {
            Workload::Log => "",
            Workload::Groups => " --workload groups",
        };
        let shape = match self.shape {
            Shape::Mirror3Dc => "",
            Shape::Block42 => " --shape block-4-2",
            Shape::Cold => " --shape cold",
            Shape::Object => " --shape object",
            Shape::Tiers => " --shape tiers",
            Shape::Federation => " --shape federation",
            Shape::Sizes => " --shape sizes",
        };
        format!(
            "cargo run -p meridian-jepsen{features} -- sim replay {seed} --time {}s{workload}{shape}{mutation} \
             --verbose",
            self.time.as_secs()
        )
    }
}

/// Runs seeds until one breaks a promise or all are done.
pub fn run(args: &RunArgs) -> ExitCode {
    let mut total = Counters::default();
    let mut done_count = 0;
    let broken = for_each_seed(args.start, args.seeds, args.threads, &args.common, |report| {
        total.add(&report.counters);
        done_count += 1;
        if done_count % PROGRESS_EVERY == 0 {
            println!("{done_count} of {} seeds: {total}", args.seeds);
        }
    });
    match broken {
        None => {
            println!("{done_count} seeds, no promise broken: {total}");
            ExitCode::SUCCESS
        }
        Some(report) => fail(&report, &args.common),
    }
}

/// Runs one seed again.
pub fn replay(args: &ReplayArgs) -> ExitCode {
    let detail = if args.verbose { Detail::Print } else { Detail::Digest };
    let report = sim::run(SimConfig { detail, ..args.common.sim(args.seed) });
    println!("seed {}: {}; trace {:016x}", report.seed, report.counters, report.digest);
    if report.violation.is_some() { fail(&report, &args.common) } else { ExitCode::SUCCESS }
}

/// Runs seeds twice and compares their traces.
pub fn meta(args: &MetaArgs) -> ExitCode {
    let mut digests = BTreeMap::new();
    for _ in 0..2 {
        for seed in 1..=args.seeds {
            let report = sim::run(SimConfig { detail: Detail::Digest, ..args.common.sim(seed) });
            let first = digests.entry(seed).or_insert(report.digest);
            if *first != report.digest {
                println!("seed {seed}: trace {first:016x}, then {:016x}", report.digest);
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{} seeds, each twice: every trace repeats", args.seeds);
    ExitCode::SUCCESS
}

fn fail(report: &Report, common: &Common) -> ExitCode {
    if let Some(violation) = &report.violation {
        println!("seed {} broke a promise after {}", report.seed, report.counters);
        println!("{violation}");
        println!("replay: {}", common.replay_command(report.seed));
    }
    ExitCode::FAILURE
}

/// Runs `count` seeds from `start` on in threads; stops early when one breaks a promise, and gives
/// that one (of several, the lowest).
pub fn for_each_seed(
    start: u64,
    count: u64,
    thread_count: usize,
    common: &Common,
    mut each: impl FnMut(&Report),
) -> Option<Report> {
    let next = AtomicU64::new(start);
    let stop = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel();
    let mut broken: Option<Report> = None;
    std::thread::scope(|scope| {
        for _ in 0..thread_count.max(1) {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= start + count || sender.send(sim::run(common.sim(seed))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for report in receiver {
            each(&report);
            if report.violation.is_some() {
                stop.store(true, Ordering::Relaxed);
                if broken.as_ref().is_none_or(|known| report.seed < known.seed) {
                    broken = Some(report);
                }
            }
        }
    });
    broken
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no duration, try 300s"))?;
    let seconds_per_unit = match unit {
        "s" | "" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(format!("{unit:?} is no unit of time; use s, m or h")),
    };
    Ok(Duration::from_secs(number * seconds_per_unit))
}

fn parse_mutation(name: &str) -> Result<Broken, String> {
    if !cfg!(feature = "mutations") {
        return Err("this build keeps every rule; add --features mutations".to_owned());
    }
    let found = Broken::all().find(|mutation| mutation.to_string() == name);
    found.ok_or_else(|| {
        let names: Vec<String> = Broken::all().map(|each| each.to_string()).collect();
        format!("no such mutation; there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("300s"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_duration("7"), Ok(Duration::from_secs(7)));
        assert!(parse_duration("10d").is_err());
        assert!(parse_duration("s").is_err());
    }
}
