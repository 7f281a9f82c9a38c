//! Proof of teeth: nodes that break a rule, each of which a named run must find out.
//!
//! The nodes run a binary with the feature `mutations`; the rule to break is named by their environment.
//! A run of nodes that keep all rules is no news here: those are all other runs.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;

use crate::clock;
use crate::failure::Failure;

/// Anomalies that tell of bad service: who breaks a rule must be found out by what it does to data.
const NOT_OF_DATA: &[&str] = &["availability", "not-healed", "process"];
/// What a node's log says when it breaks a rule.
const CONFESSION: &str = "breaks a rule on purpose";
/// The end of a run whose machine forbids it.
const FORBIDDEN: i32 = 3;

/// A broken rule, and the run that shows it.
struct Bite {
    mutation: &'static str,
    workload: &'static str,
    faults: &'static str,
}

const fn bite(mutation: &'static str, workload: &'static str, faults: &'static str) -> Bite {
    Bite { mutation, workload, faults }
}

const BITES: &[Bite] = &[
    bite("AckBeforeSync", "log", "power-all"),
    bite("NoFence", "log", "leader-unheard,slow-disks"),
    bite("SplitFenceRead", "log", "leader-unheard,slow-disks"),
    bite("KeepOnFenced", "log", "leader-unheard,pause-leader"),
    bite("ServeBeforeCommitted", "log", "kill-leader,kill-all"),
    bite("DropTail", "log", "kill-leader,pause-leader,slow-disks"),
    bite("PutQuorumIsTwoDatacenters", "log", "kill-dc-rack"),
    bite("ProducersForgotten", "dedupe", "kill-leader"),
    bite("StableOffsetIgnored", "txn", "kill-leader"),
    bite("TransactionsForgotten", "txn", "kill-leader"),
    bite("AbortedForgotten", "txn", "kill-leader"),
    bite("GenerationUnchecked", "groups", "coordinator"),
    bite("PositionsForgotten", "groups", "coordinator"),
];

/// `teeth`
///
/// Nodes that break a rule, one rule after the other: each must be found out by the run that is named for it,
/// by what is wrong with data. Ends with 0 if all were, 1 if one was not.
///
/// Example: meridian-jepsen teeth --only NoFence --only DropTail
#[derive(Args, Clone, Debug)]
pub struct TeethArgs {
    /// A binary built with `--features mutations`.
    #[arg(long, default_value = "target/teeth/fast/meridian")]
    pub binary: PathBuf,
    /// Only this rule; can be given several times.
    #[arg(long, value_name = "MUTATION")]
    pub only: Vec<String>,
    /// Seconds of faults in each run; the start of a cluster, healing and reading come on top.
    #[arg(long, default_value_t = 40)]
    pub time: u64,
    /// Runs for each rule at most, with seeds from 1 on.
    #[arg(long, default_value_t = 3)]
    pub seeds: u64,
    /// Where everything is kept: a folder for each run.
    #[arg(long, default_value = "target/jepsen/teeth")]
    pub out: PathBuf,
}

/// What a run came to.
enum Found {
    /// The kinds of anomalies, those of data only.
    Caught(Vec<String>),
    Nothing,
    /// The machine does not allow such runs.
    Forbidden,
}

/// Hunts for all broken rules, and prints how each was found.
pub fn teeth(args: &TeethArgs) -> ExitCode {
    let is_known = |name: &&String| BITES.iter().any(|bite| bite.mutation == *name);
    if let Some(unknown) = args.only.iter().find(|name| !is_known(name)) {
        let known: Vec<_> = BITES.iter().map(|bite| bite.mutation).collect();
        eprintln!("no run is named for {unknown:?}; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    let is_wanted =
        |bite: &&Bite| args.only.is_empty() || args.only.iter().any(|name| name == bite.mutation);
    let mut free = 0;
    for bite in BITES.iter().filter(is_wanted) {
        match hunt(args, bite) {
            Ok(Found::Caught(_)) => {}
            Ok(Found::Nothing) => free += 1,
            Ok(Found::Forbidden) => return ExitCode::from(3),
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::from(2);
            }
        }
    }
    println!("{} broken rules, {free} not caught", BITES.iter().filter(is_wanted).count());
    if free == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn hunt(args: &TeethArgs, bite: &Bite) -> Result<Found, Failure> {
    let Bite { mutation, workload, faults } = bite;
    let start = clock::now();
    let name = format!("{mutation:<26} {workload} under {faults}");
    for seed in 1..=args.seeds {
        match run(args, bite, seed)? {
            Found::Nothing => {}
            Found::Forbidden => {
                println!("{name}: NOT TESTED, this machine forbids it");
                return Ok(Found::Forbidden);
            }
            Found::Caught(kinds) => {
                let (took, kinds_told) = (start.elapsed().as_secs(), kinds.join(", "));
                println!("{name}: caught after {took} s, by seed {seed}: {kinds_told}");
                return Ok(Found::Caught(kinds));
            }
        }
    }
    println!("{name}: NOT CAUGHT in {} s, by {} seeds", start.elapsed().as_secs(), args.seeds);
    Ok(Found::Nothing)
}

/// Makes one run, in a process of its own.
fn run(args: &TeethArgs, bite: &Bite, seed: u64) -> Result<Found, Failure> {
    let out = args.out.join(bite.mutation);
    std::fs::create_dir_all(&out).map_err(Failure::file(&out))?;
    let output_file = out.join("output");
    let output = std::fs::File::create(&output_file).map_err(Failure::file(&output_file))?;
    let errors = output.try_clone().map_err(Failure::file(&output_file))?;
    let itself = std::env::current_exe().map_err(Failure::system("the path of this program"))?;
    let status = Command::new(itself)
        .args(["run", "--workload", bite.workload, "--nemesis", bite.faults])
        .args(["--seed", &seed.to_string(), "--time", &args.time.to_string(), "--out"])
        .arg(&out)
        .arg("--binary")
        .arg(&args.binary)
        .env("MERIDIAN_MUTATION", bite.mutation)
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors))
        .status()
        .map_err(Failure::system("to run this program again"))?;
    let folder = out.join(format!("{}-{}-{seed}", bite.workload, bite.faults.replace(',', "+")));
    match status.code() {
        Some(0 | 1) => {}
        Some(FORBIDDEN) => return Ok(Found::Forbidden),
        _ => {
            let output = std::fs::read_to_string(&output_file).unwrap_or_default();
            let program = format!("the run of {}", bite.mutation);
            return Err(Failure::Program { program, output });
        }
    }
    if !confesses(&folder) {
        return Err(Failure::Invalid(format!(
            "{} keeps all rules; build it with: cargo build --profile fast -p meridian --features \
             mutations --target-dir target/teeth",
            args.binary.display()
        )));
    }
    let kinds = kinds(&folder)?;
    Ok(if kinds.is_empty() { Found::Nothing } else { Found::Caught(kinds) })
}

/// Whether the nodes of a run broke a rule.
fn confesses(folder: &Path) -> bool {
    let log = std::fs::read(folder.join("node-1").join("log")).unwrap_or_default();
    String::from_utf8_lossy(&log).contains(CONFESSION)
}

/// The kinds of anomalies that a run has shown in data.
fn kinds(folder: &Path) -> Result<Vec<String>, Failure> {
    let file = folder.join("report.json");
    let text = std::fs::read_to_string(&file).map_err(Failure::file(&file))?;
    let nonsense = |error| Failure::Invalid(format!("{}: {error}", file.display()));
    let report: serde_json::Value = serde_json::from_str(&text).map_err(nonsense)?;
    let anomalies = report["anomalies"].as_object();
    let kinds = anomalies.into_iter().flat_map(serde_json::Map::keys);
    Ok(kinds.filter(|kind| !NOT_OF_DATA.contains(&kind.as_str())).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nemesis::Plan;
    use crate::workload;

    #[test]
    fn every_run_can_be_made() {
        for bite in BITES {
            assert!(workload::catalogue().iter().any(|it| it.name == bite.workload));
            let (plan, lacking) = Plan::parse(bite.faults, true, false).unwrap();
            assert!(!plan.faults.is_empty() && lacking.is_empty(), "{}", bite.mutation);
        }
    }

    #[test]
    fn only_what_is_wrong_with_data_counts() {
        let folder = std::env::temp_dir().join(format!("meridian-teeth-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let report = r#"{"anomalies": {"availability": {}, "lost-write": {}}}"#;
        std::fs::write(folder.join("report.json"), report).unwrap();
        assert_eq!(kinds(&folder).unwrap(), ["lost-write"]);
        assert!(!confesses(&folder));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
