//! Fault tests of simulated clusters, `cargo xtask jepsen --mutations` and `--simulate`, and on real processes: `--smoke`,
//! `--nightly`, `--hostile`, `--scale`, `--teeth` and `--pair`.

mod behind;
mod nightly;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) use self::behind::Behind;
use crate::target;

/// A run: workload, faults and seed.
type Run = (String, String, u64);

/// Workloads and shapes of the simulator, and how many seeds of each every change must survive.
const SIMULATED: [(&str, &str, &str); 8] = [
    ("log", "mirror-3-dc", "70"),
    ("log", "block-4-2", "28"),
    ("log", "cold", "36"),
    ("log", "object", "28"),
    ("log", "tiers", "20"),
    ("log", "federation", "32"),
    ("log", "sizes", "16"),
    ("groups", "mirror-3-dc", "40"),
];
const SIMULATED_TIME: &str = "300s";
/// The runner's arguments for long faults, crossed with all that nodes do by themselves.
const MATRIX: [&str; 4] = ["sim", "matrix", "--seeds", "6"];
/// The runner's arguments for the hunt for broken rules.
const MUTATIONS: [&str; 2] = ["sim", "mutations"];
const SMOKE_SECONDS: u32 = 60;
/// Times what faults demand: runs share their machine with each other, and in CI with whatever else is on it.
const SLACK: &str = "6";
const SHARED_FEATURES: &str = "meridian-jepsen/mutations";
const USAGE: &str = "usage: cargo xtask jepsen --mutations | --simulate | --smoke | --nightly [--seconds N] \
    [--hours N] [--seed N] [--lanes N] | --hostile [OPTION ...] | --scale [OPTION ...] | --teeth [--intact] [MUTATION ...] | --pair [OPTION ...]";

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
        Some((option, [])) if option == "--mutations" => mutations(root),
        Some((option, [])) if option == "--simulate" => simulate(root),
        Some((option, [])) if option == "--smoke" => smoke(root),
        Some((option, rest)) if option == "--nightly" => nightly::run(root, rest),
        Some((option, rest)) if option == "--hostile" => hostile(root, rest),
        Some((option, rest)) if option == "--scale" => on_binary(root, "scale", rest),
        Some((option, mutations)) if option == "--teeth" => teeth(root, mutations),
        Some((option, rest)) if option == "--pair" => pair(root, rest),
        _ => Err(USAGE.to_owned()),
    }
}

/// Simulated clusters that break a rule each: all must be found.
pub(crate) fn mutations(root: &Path) -> Result<(), String> {
    build_all(root)?;
    let status = runner(root).args(MUTATIONS).status().map_err(|error| not_started(&error))?;
    if status.success() { Ok(()) } else { Err(format!("jepsen: mutations ({status})")) }
}

/// Many simulated clusters.
pub(crate) fn simulate(root: &Path) -> Result<(), String> {
    build_all(root)?;
    for (workload, shape, seeds) in SIMULATED {
        let status = runner(root)
            .args(simulation(workload, shape, seeds))
            .status()
            .map_err(|error| not_started(&error))?;
        if !status.success() {
            return Err(format!("jepsen: simulate, workload {workload}, {shape} ({status})"));
        }
    }
    let status = runner(root).args(MATRIX).status().map_err(|error| not_started(&error))?;
    if status.success() { Ok(()) } else { Err(format!("jepsen: simulate, matrix ({status})")) }
}

/// The runner's arguments for simulated clusters of one shape.
fn simulation(
    workload: &'static str,
    shape: &'static str,
    seeds: &'static str,
) -> [&'static str; 10] {
    let (sim, run, time) = ("sim", "run", SIMULATED_TIME);
    [sim, run, "--workload", workload, "--shape", shape, "--seeds", seeds, "--time", time]
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

/// A node under hostile clients for a minute: another client must not notice.
pub(crate) fn hostile(root: &Path, options: &[String]) -> Result<(), String> {
    on_binary(root, "hostile", options)
}

/// Has the runner do something with the binary that is shipped.
fn on_binary(root: &Path, name: &str, options: &[String]) -> Result<(), String> {
    build_all(root)?;
    let mut command = runner(root);
    command.arg(name).arg("--out").arg(folder(root)).arg("--binary");
    command.arg(fast(root).join("meridian")).args(options);
    let status = command.status().map_err(|error| not_started(&error))?;
    if status.success() { Ok(()) } else { Err(format!("jepsen: {name} ({status})")) }
}

/// Builds nodes that break a rule, and demands that each is found out. With `--intact`, the same runs of
/// nodes that keep all rules, which must show nothing.
fn teeth(root: &Path, arguments: &[String]) -> Result<(), String> {
    let (is_intact, mutations) = match arguments.split_first() {
        Some((option, mutations)) if option == "--intact" => (true, mutations),
        _ => (false, arguments),
    };
    let broken = if is_intact { None } else { Some(build_broken(root)?) };
    build_all(root)?;
    let binary = broken.unwrap_or_else(|| fast(root).join("meridian"));
    let mut command = runner(root);
    command.arg("teeth").arg("--binary").arg(binary);
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
    target(root).join("jepsen")
}

const BUILD: [&str; 3] = ["build", "--profile", "fast"];
/// What simulates, what hunts broken rules and what runs real processes, in one go and with the same features: each
/// set of features is minutes of compiling. The nodes have storage's questions for a broken rule in them, and no
/// way to name one: that takes `meridian/mutations`, which only `--teeth` builds.
const ALL: [&str; 6] = ["-p", "meridian", "-p", "meridian-jepsen", "--features", SHARED_FEATURES];

fn build_all(root: &Path) -> Result<(), String> {
    build(root, &ALL)
}

/// Nodes that break the rule that their environment names. Their binary is put beside the one that keeps all rules,
/// which takes its old place with the next [`build_all`]: nobody must take one for the other.
fn build_broken(root: &Path) -> Result<PathBuf, String> {
    let features = format!("meridian/mutations,{SHARED_FEATURES}");
    build(root, &["-p", "meridian", "-p", "meridian-jepsen", "--features", &features])?;
    let beside = target(root).join("teeth").join("fast");
    let binary = beside.join("meridian");
    std::fs::create_dir_all(&beside)
        .and_then(|()| std::fs::copy(fast(root).join("meridian"), &binary))
        .map_err(|error| format!("{}: {error}", binary.display()))?;
    Ok(binary)
}

fn build(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let status = crate::cargo()
        .args(BUILD)
        .args(arguments)
        .current_dir(root)
        .status()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("jepsen: the build failed ({status})")) }
}

fn fast(root: &Path) -> PathBuf {
    target(root).join("fast")
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
    let mut run = runner(root)
        .args(["run", "--workload", workload, "--nemesis", faults, "--seed", &seed.to_string()])
        .args(["--time", &seconds.to_string(), "--slack", SLACK, "--out"])
        .arg(out)
        .arg("--binary")
        .arg(fast(root).join("meridian"))
        .arg("--until-stdin-ends")
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| not_started(&error))?;
    // Taken, for waiting would close it: it closes when this process ends, and the run ends with it.
    let _open = run.stdin.take();
    let status = run.wait().map_err(|error| not_started(&error))?;
    Ok(match status.code() {
        Some(0) => Verdict::Valid,
        Some(1) => Verdict::Invalid,
        Some(3) => Verdict::Forbidden,
        _ => Verdict::NotMade,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_say_how_many_clusters_ci_simulates() {
        let count: u32 = SIMULATED.iter().map(|(_, _, seeds)| seeds.parse::<u32>().unwrap()).sum();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (file, text) in [
            ("README.md", format!("{count} simulated clusters")),
            ("CONTRIBUTING.md", format!("{count} seeds x 5 simulated minutes")),
        ] {
            let found = std::fs::read_to_string(root.join(file)).unwrap();
            assert!(found.contains(&text), "{file} does not say \"{text}\"");
        }
    }
}
