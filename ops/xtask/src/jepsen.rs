//! Fault tests on real processes: `cargo xtask jepsen --smoke`, `--nightly` and `--teeth`.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A run: workload, faults and seed.
type Run = (&'static str, String, u64);

const SMOKE_SECONDS: u32 = 60;
const NIGHTLY_SECONDS: u32 = 300;
const TEETH_SECONDS: u32 = 60;
const WORKLOADS: &[&str] = &["log", "dedupe", "groups", "registers"];
/// Alone, then mixed. Each is also run with every workload.
const FAULTS: &[&str] = &[
    "kill",
    "kill-leader",
    "kill-metadata",
    "kill-dc",
    "kill-dc-rack",
    "kill-all",
    "pause",
    "pause-leader",
    "pause-all",
    "rolling",
    "one-way",
    "halves",
    "ring",
    "dc",
    "dc-rack",
    "leader-apart",
    "flapping",
    "slow-link",
    "loss",
    "thin-link",
    "clock",
    "power",
    "power-dc-rack",
    "power-all",
    "eio-write",
    "eio-fsync",
    "eio-read",
    "slow-disk",
    "disk-full",
    "bit-flip",
    "zero-page",
    "misdirect",
    "truncate",
    "wipe",
    "stale-disk",
    "swap-disks",
    "no-files",
    "no-memory",
    "coordinator",
    "nastiest",
    "all-down",
];
/// Rules that a test build breaks, and the faults that must show it within [`TEETH_SECONDS`].
const TEETH: &[(&str, &str, &str)] = &[
    ("AckBeforeSync", "log", "power-all"),
    ("NoFence", "log", "leader-apart,pause-leader"),
    ("FenceNotPersisted", "log", "leader-apart,kill-all"),
    ("ServeBeforeCommitted", "log", "kill-leader,kill-all"),
    ("DropTail", "log", "kill-leader,pause-leader"),
    ("PutQuorumIsTwoDatacenters", "log", "kill-dc-rack"),
];

/// What a run came to.
enum Verdict {
    Valid,
    Invalid,
    NotMade,
    /// The operating system does not allow what a run needs.
    Forbidden,
}

/// Does what the option says.
pub(crate) fn run(root: &Path, option: &str) -> Result<(), String> {
    match option {
        "--smoke" => smoke(root),
        "--nightly" => nightly(root),
        "--teeth" => teeth(root),
        _ => Err("usage: cargo xtask jepsen --smoke | --nightly | --teeth".to_owned()),
    }
}

fn smoke(root: &Path) -> Result<(), String> {
    build(root, &["-p", "meridian", "-p", "meridian-jepsen"])?;
    let runs = [("log", 1), ("dedupe", 2), ("groups", 3)];
    let mut failed = Vec::new();
    for (workload, seed) in runs {
        let run = (workload, "nastiest".to_owned(), seed);
        match make(root, &run, SMOKE_SECONDS, None)? {
            Verdict::Valid => {}
            Verdict::Invalid => failed.push(format!("{workload}, seed {seed}")),
            Verdict::NotMade => failed.push(format!("{workload}, seed {seed} (not made)")),
            Verdict::Forbidden => {
                println!("== NOT TESTED: {workload}, seed {seed}: this machine forbids it");
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("jepsen: {}", failed.join("; "))) }
}

/// The whole matrix. What was run before is not run again, until the file of results is removed.
fn nightly(root: &Path) -> Result<(), String> {
    build(root, &["-p", "meridian", "-p", "meridian-jepsen"])?;
    let file = folder(root).join("nightly.tsv");
    let known = fs::read_to_string(&file).unwrap_or_default();
    let done: BTreeSet<&str> =
        known.lines().filter_map(|line| line.rsplit_once('\t')).map(|it| it.0).collect();
    let runs = matrix();
    let mut failed: Vec<String> = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let (workload, faults, seed) = run;
        let name = format!("{workload}\t{faults}\t{seed}");
        if done.contains(&name[..]) {
            continue;
        }
        println!("== {} of {}: {workload} under {faults}, seed {seed}", number + 1, runs.len());
        let verdict = match make(root, run, NIGHTLY_SECONDS, None)? {
            Verdict::Valid => "valid",
            Verdict::Invalid => "INVALID",
            Verdict::NotMade => "not made",
            Verdict::Forbidden => return Err("jepsen: this machine forbids such runs".to_owned()),
        };
        append(&file, &format!("{name}\t{verdict}\n"))?;
    }
    let all = fs::read_to_string(&file).unwrap_or_default();
    println!("== summary ({})", file.display());
    for line in all.lines() {
        println!("{line}");
        if !line.ends_with("\tvalid") {
            failed.push(line.replace('\t', " "));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("jepsen: {}", failed.join("; "))) }
}

fn matrix() -> Vec<Run> {
    let mut runs = Vec::new();
    for (seed, faults) in (1..).zip(FAULTS) {
        for workload in WORKLOADS {
            runs.push((*workload, (*faults).to_owned(), seed));
        }
    }
    runs
}

/// Builds nodes that break a rule, and demands that each is found out.
fn teeth(root: &Path) -> Result<(), String> {
    build(root, &["-p", "meridian-jepsen"])?;
    // Beside the binary that keeps the rules: nobody must take one for the other.
    let target = root.join("target").join("teeth");
    let target = target.display().to_string();
    build(root, &["-p", "meridian", "--features", "mutations", "--target-dir", &target])?;
    let binary = PathBuf::from(target).join("fast").join("meridian");
    let mut unseen = Vec::new();
    for (mutation, workload, faults) in TEETH {
        let run = (*workload, (*faults).to_owned(), 1);
        let verdict = make(root, &run, TEETH_SECONDS, Some((mutation, &binary)))?;
        let found = matches!(verdict, Verdict::Invalid);
        println!("== {mutation}: {}", if found { "found" } else { "NOT FOUND" });
        if !found {
            unseen.push(*mutation);
        }
    }
    if unseen.is_empty() {
        Ok(())
    } else {
        Err(format!("jepsen: not found: {}", unseen.join(", ")))
    }
}

fn folder(root: &Path) -> PathBuf {
    root.join("target").join("jepsen")
}

fn build(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--profile", "fast"])
        .args(arguments)
        .current_dir(root)
        .status()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("jepsen: the build failed ({status})")) }
}

/// Makes a run, with a binary that breaks a rule if so.
fn make(
    root: &Path,
    (workload, faults, seed): &Run,
    seconds: u32,
    mutant: Option<(&str, &Path)>,
) -> Result<Verdict, String> {
    let fast = root.join("target").join("fast");
    let mut command = Command::new(fast.join("meridian-jepsen"));
    command.args(["run", "--workload", workload, "--nemesis", faults, "--seed", &seed.to_string()]);
    command.args(["--time", &seconds.to_string(), "--out"]).arg(folder(root));
    match mutant {
        None => command.arg("--binary").arg(fast.join("meridian")),
        Some((mutation, binary)) => {
            command.arg("--binary").arg(binary).env("MERIDIAN_MUTATION", mutation)
        }
    };
    let status = command
        .current_dir(root)
        .status()
        .map_err(|error| format!("meridian-jepsen could not be started: {error}"))?;
    Ok(match status.code() {
        Some(0) => Verdict::Valid,
        Some(1) => Verdict::Invalid,
        Some(3) => Verdict::Forbidden,
        _ => Verdict::NotMade,
    })
}

fn append(file: &Path, line: &str) -> Result<(), String> {
    let wrote = OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    wrote.map_err(|error| format!("{}: {error}", file.display()))
}
