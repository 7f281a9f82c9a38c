//! Fault tests of simulated clusters, `cargo xtask jepsen --simulate`, and on real processes: `--smoke`, `--nightly`,
//! `--teeth` and `--pair`.

mod nightly;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A run: workload, faults and seed.
type Run = (String, String, u64);

/// Workloads of the simulator, and how many seeds of each every change must survive.
const SIMULATED: [(&str, &str); 2] = [("log", "300"), ("groups", "60")];
const SIMULATED_TIME: &str = "300s";
const SMOKE_SECONDS: u32 = 60;
const USAGE: &str = "usage: cargo xtask jepsen --simulate | --smoke | --nightly [--seconds N] [--hours N] \
    [--seed N] | --teeth [--intact] [MUTATION ...] | --pair [OPTION ...]";

/// What a run came to.
enum Verdict {
    Valid,
    Invalid,
    NotMade,
    /// The operating system does not allow what a run needs.
    Forbidden,
}

/// Does what the first argument says.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    match arguments.split_first() {
        Some((option, [])) if option == "--simulate" => simulate(root),
        Some((option, [])) if option == "--smoke" => smoke(root),
        Some((option, rest)) if option == "--nightly" => nightly::run(root, rest),
        Some((option, mutations)) if option == "--teeth" => teeth(root, mutations),
        Some((option, rest)) if option == "--pair" => pair(root, rest),
        _ => Err(USAGE.to_owned()),
    }
}

/// Many simulated clusters.
pub(crate) fn simulate(root: &Path) -> Result<(), String> {
    build_all(root)?;
    for (workload, seeds) in SIMULATED {
        let status = runner(root)
            .args(["sim", "run", "--workload", workload])
            .args(["--seeds", seeds, "--time", SIMULATED_TIME])
            .status()
            .map_err(|error| not_started(&error))?;
        if !status.success() {
            return Err(format!("jepsen: simulate, workload {workload} ({status})"));
        }
    }
    Ok(())
}

/// Three workloads under everything at random.
pub(crate) fn smoke(root: &Path) -> Result<(), String> {
    build_all(root)?;
    let runs = [("log", 1), ("dedupe", 2), ("groups", 3)];
    let mut failed = Vec::new();
    for (workload, seed) in runs {
        let run = (workload.to_owned(), "nastiest".to_owned(), seed);
        match make(root, &run, SMOKE_SECONDS, &folder(root))? {
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

/// Builds nodes that break a rule, and demands that each is found out. With `--intact`, the same runs of
/// nodes that keep all rules, which must show nothing.
fn teeth(root: &Path, arguments: &[String]) -> Result<(), String> {
    let (is_intact, mutations) = match arguments.split_first() {
        Some((option, mutations)) if option == "--intact" => (true, mutations),
        _ => (false, arguments),
    };
    let target = if is_intact { root.join("target") } else { root.join("target").join("teeth") };
    if is_intact {
        build_all(root)?;
    } else {
        build(root, &["-p", "meridian-jepsen"])?;
        // Beside the binary that keeps the rules: nobody must take one for the other.
        let target_name = target.display().to_string();
        build(root, &["-p", "meridian", "--features", "mutations", "--target-dir", &target_name])?;
    }
    let mut command = runner(root);
    command.arg("teeth").arg("--binary").arg(target.join("fast").join("meridian"));
    command.arg("--out").arg(folder(root).join("teeth"));
    if is_intact {
        command.arg("--intact");
    }
    for mutation in mutations {
        command.args(["--only", mutation]);
    }
    let status = command.status().map_err(|error| not_started(&error))?;
    if status.success() { Ok(()) } else { Err(format!("jepsen: teeth ({status})")) }
}

/// Moves a topic between two clusters under load, as often as is promised, unless told otherwise.
fn pair(root: &Path, options: &[String]) -> Result<(), String> {
    build_all(root)?;
    let mut command = runner(root);
    command.args(["pair", "--failovers", "50", "--switchovers", "20", "--binary"]);
    command.arg(fast(root).join("meridian")).args(options);
    let status = command.status().map_err(|error| not_started(&error))?;
    if status.success() { Ok(()) } else { Err(format!("jepsen: pair ({status})")) }
}

fn folder(root: &Path) -> PathBuf {
    root.join("target").join("jepsen")
}

/// What simulates, and what runs real processes; in one go, so that what they share is compiled once.
fn build_all(root: &Path) -> Result<(), String> {
    build(root, &["-p", "meridian", "-p", "meridian-jepsen"])
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

fn fast(root: &Path) -> PathBuf {
    root.join("target").join("fast")
}

fn runner(root: &Path) -> Command {
    let mut command = Command::new(fast(root).join("meridian-jepsen"));
    command.current_dir(root);
    command
}

fn not_started(error: &std::io::Error) -> String {
    format!("meridian-jepsen could not be started: {error}")
}

/// Makes a run; what it leaves is in a folder of its own in `out`.
fn make(
    root: &Path,
    (workload, faults, seed): &Run,
    seconds: u32,
    out: &Path,
) -> Result<Verdict, String> {
    let status = runner(root)
        .args(["run", "--workload", workload, "--nemesis", faults, "--seed", &seed.to_string()])
        .args(["--time", &seconds.to_string(), "--out"])
        .arg(out)
        .arg("--binary")
        .arg(fast(root).join("meridian"))
        .status()
        .map_err(|error| not_started(&error))?;
    Ok(match status.code() {
        Some(0) => Verdict::Valid,
        Some(1) => Verdict::Invalid,
        Some(3) => Verdict::Forbidden,
        _ => Verdict::NotMade,
    })
}
