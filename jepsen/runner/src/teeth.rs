//! Proof of teeth: nodes that break a rule, each of which a named run must find out.
//!
//! The nodes run a binary with the feature `mutations`; the rule to break is named by their environment.
//! With `--intact` nodes keep all rules, and the same runs must show nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;

use crate::clock;
use crate::failure::Failure;

/// Anomalies that tell of bad service: who breaks a rule must be found out by what it does to data.
const NOT_OF_DATA: &[&str] = &[
    "availability",
    "demand",
    "not-again",
    "stable-held",
    "not-healed",
    "not-recovered",
    "process",
];
/// What a node's log says when it breaks a rule.
const CONFESSION: &str = "breaks a rule on purpose";
/// By it nodes know which rule to break.
const MUTATION: &str = "MERIDIAN_MUTATION";
/// The end of a run whose machine forbids it.
const FORBIDDEN: i32 = 3;

/// A broken rule, and the run that shows it.
struct Bite {
    mutation: &'static str,
    workload: &'static str,
    faults: &'static str,
    /// Other arguments of the run.
    how: &'static [&'static str],
}

/// So few that each always has something on its way.
const FEW: &[&str] = &["--partitions", "2"];

/// And often enough that some of it is sent again.
const FEW_AND_OFTEN: &[&str] = &["--partitions", "2", "--interval", "2", "--lasting", "3"];

const fn bite(mutation: &'static str, workload: &'static str, faults: &'static str) -> Bite {
    Bite { mutation, workload, faults, how: &[] }
}

impl Bite {
    fn name(&self) -> String {
        format!("{:<26} {} under {}", self.mutation, self.workload, self.faults)
    }

    const fn with(mut self, how: &'static [&'static str]) -> Self {
        self.how = how;
        self
    }
}

const BITES: &[Bite] = &[
    bite("AckBeforeSync", "log", "power-busy"),
    bite("NoFence", "log", "leader-unheard,slow-disks"),
    bite("SplitFenceRead", "log", "deposed").with(FEW),
    bite("KeepOnFenced", "log", "deposed").with(FEW),
    bite("ServeBeforeCommitted", "log", "early-leader"),
    bite("DropTail", "log", "kill-leader,pause-leader,slow-disks"),
    bite("PutQuorumIsTwoDatacenters", "log", "kill-dc-rack"),
    bite("ProducersForgotten", "dedupe", "kill-leader").with(FEW_AND_OFTEN),
    bite("StableOffsetIgnored", "txn", "kill-leader"),
    bite("TransactionsForgotten", "txn", "kill-leader"),
    bite("AbortedForgotten", "txn", "kill-leader"),
    bite("GenerationUnchecked", "groups", "pause"),
    bite("PositionsForgotten", "groups", "coordinator"),
];

/// `teeth`
///
/// Nodes that break a rule, one rule after the other: each must be found out by the run that is named for it,
/// by what is wrong with data. Ends with 0 if all were, 1 if one was not.
///
/// Example: meridian-jepsen teeth --only NoFence --only DropTail
/// Example: meridian-jepsen teeth --intact --binary target/fast/meridian
#[derive(Args, Clone, Debug)]
pub struct TeethArgs {
    /// A binary built with `--features mutations`.
    #[arg(long, default_value = "target/teeth/fast/meridian")]
    pub binary: PathBuf,
    /// Only this rule; can be given several times.
    #[arg(long, value_name = "MUTATION")]
    pub only: Vec<String>,
    /// Nodes keep all rules: no run may show anything.
    #[arg(long)]
    pub intact: bool,
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
struct Found {
    /// The kinds of anomalies, those of data only.
    in_data: Vec<String>,
    is_valid: bool,
}

/// What the runs for one rule came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hunt {
    AsItShould,
    /// A broken rule was not found out; or something was found though all rules were kept.
    Not,
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
    let mut wanted: Vec<&Bite> = BITES.iter().filter(is_wanted).collect();
    if args.intact {
        // Some runs are named for several rules.
        wanted.dedup_by_key(|bite| (bite.workload, bite.faults, bite.how));
    }
    let mut not = 0;
    for bite in &wanted {
        match if args.intact { intact(args, bite) } else { hunt(args, bite) } {
            Ok(Hunt::AsItShould) => {}
            Ok(Hunt::Not) => not += 1,
            Ok(Hunt::Forbidden) => return ExitCode::from(3),
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::from(2);
            }
        }
    }
    let count = wanted.len();
    if args.intact {
        println!("{count} runs with all rules kept, {not} not valid");
    } else {
        println!("{count} broken rules, {not} not caught");
    }
    if not == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn hunt(args: &TeethArgs, bite: &Bite) -> Result<Hunt, Failure> {
    let start = clock::now();
    for seed in 1..=args.seeds {
        let Some((found, folder)) = run(args, bite, seed)? else { return Ok(forbidden(bite)) };
        if !confesses(&folder) {
            return Err(Failure::Invalid(format!(
                "{} keeps all rules; build it with: cargo build --profile fast -p meridian \
                 --features mutations --target-dir target/teeth",
                args.binary.display()
            )));
        }
        if !found.in_data.is_empty() {
            let (took, kinds) = (start.elapsed().as_secs(), found.in_data.join(", "));
            println!("{}: caught after {took} s, by seed {seed}: {kinds}", bite.name());
            return Ok(Hunt::AsItShould);
        }
    }
    let took = start.elapsed().as_secs();
    println!("{}: NOT CAUGHT in {took} s, by {} seeds", bite.name(), args.seeds);
    Ok(Hunt::Not)
}

/// Runs once with nodes that keep all rules.
fn intact(args: &TeethArgs, bite: &Bite) -> Result<Hunt, Failure> {
    let Some((found, folder)) = run(args, bite, 1)? else { return Ok(forbidden(bite)) };
    if found.is_valid {
        println!("{}: valid, with all rules kept", bite.name());
        return Ok(Hunt::AsItShould);
    }
    println!("{}: NOT VALID, with all rules kept: {}", bite.name(), folder.display());
    Ok(Hunt::Not)
}

fn forbidden(bite: &Bite) -> Hunt {
    println!("{}: NOT TESTED, this machine forbids it", bite.name());
    Hunt::Forbidden
}

/// Makes one run, in a process of its own: what it came to, and what it left. `None` if the machine forbids it.
fn run(args: &TeethArgs, bite: &Bite, seed: u64) -> Result<Option<(Found, PathBuf)>, Failure> {
    let out = args.out.join(if args.intact { "intact" } else { "broken" }).join(bite.mutation);
    std::fs::create_dir_all(&out).map_err(Failure::file(&out))?;
    let output_file = out.join("output");
    let output = std::fs::File::create(&output_file).map_err(Failure::file(&output_file))?;
    let errors = output.try_clone().map_err(Failure::file(&output_file))?;
    let itself = std::env::current_exe().map_err(Failure::system("the path of this program"))?;
    let mut command = Command::new(itself);
    command
        .args(["run", "--workload", bite.workload, "--nemesis", bite.faults])
        .args(["--seed", &seed.to_string(), "--time", &args.time.to_string(), "--out"])
        .arg(&out)
        .arg("--binary")
        .arg(&args.binary)
        .args(bite.how)
        .env_remove(MUTATION)
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors));
    if !args.intact {
        command.env(MUTATION, bite.mutation);
    }
    let status = command.status().map_err(Failure::system("to run this program again"))?;
    let is_valid = match status.code() {
        Some(0) => true,
        Some(1) => false,
        Some(FORBIDDEN) => return Ok(None),
        _ => {
            let output = std::fs::read_to_string(&output_file).unwrap_or_default();
            let program = format!("the run of {}", bite.mutation);
            return Err(Failure::Program { program, output });
        }
    };
    let folder = out.join(format!("{}-{}-{seed}", bite.workload, bite.faults.replace(',', "+")));
    Ok(Some((Found { in_data: kinds(&folder)?, is_valid }, folder)))
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
