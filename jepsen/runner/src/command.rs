//! What the command line does: `run`, `check` and `list`.

use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::failure::Failure;
use crate::run::Config;
use crate::{check, history, nemesis, report, run, workload};

/// `run`
///
/// Nine processes of the real binary, broken under real clients. Ends with 0 if no promise was broken, 1 if
/// one was, 2 if the run could not be made.
///
/// Example: meridian-jepsen run --workload log --nemesis kill,one-way --time 120 --seed 7
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// What clients do (see `list`).
    #[arg(long, default_value = "log")]
    pub workload: String,
    /// Faults and mixes of them, separated by commas (see `list`).
    #[arg(long, default_value = "nastiest")]
    pub nemesis: String,
    /// Seconds of faults; healing and reading everything come on top.
    #[arg(long, default_value_t = 120)]
    pub time: u64,
    /// Where all chance grows from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Operations a second of all clients together.
    #[arg(long, default_value_t = 150.0)]
    pub rate: f64,
    /// Clients.
    #[arg(long, default_value_t = 12)]
    pub concurrency: usize,
    /// Partitions of the topic under test.
    #[arg(long, default_value_t = 12)]
    pub partitions: u32,
    /// The binary under test.
    #[arg(long, env = "MERIDIAN_BINARY", default_value = "target/fast/meridian")]
    pub binary: PathBuf,
    /// A binary of another version, for the nemesis `upgrade`.
    #[arg(long)]
    pub other_binary: Option<PathBuf>,
    /// Where everything is kept: a folder for each run.
    #[arg(long, default_value = "target/jepsen")]
    pub out: PathBuf,
    /// Without network namespaces: all nodes on 127.0.0.1 from this port on, and no faults of the
    /// network.
    #[arg(long, value_name = "PORT")]
    pub loopback: Option<u16>,
    /// Milliseconds of a round trip between datacenters.
    #[arg(long, default_value_t = 6)]
    pub wan_rtt_ms: u64,
    /// Seconds without a successful write to a partition that fail the run, unless a fault beyond the
    /// promise was asked for.
    #[arg(long, default_value_t = 15)]
    pub gap_max: u64,
    /// Times what the catalogue of faults demands for writes to succeed again after a fault (the README has it):
    /// it is for machines with nothing else to do.
    #[arg(long, default_value_t = 2.0)]
    pub slack: f64,
    /// Seconds between the begins of faults, on average.
    #[arg(long, default_value_t = 5.0)]
    pub interval: f64,
    /// Seconds that a fault lasts, on average.
    #[arg(long, default_value_t = 6.0)]
    pub lasting: f64,
    /// End when the standard input does: with whoever started this, however that ended.
    #[arg(long)]
    pub until_stdin_ends: bool,
}

/// More is no demand.
const SLACK_MAX: f64 = 1000.0;

/// Reads until there is no more.
fn wait_for_end(input: &mut impl Read) {
    let mut ignored = [0; 64];
    loop {
        match input.read(&mut ignored) {
            Ok(0) => return,
            Err(error) if error.kind() != ErrorKind::Interrupted => return,
            Ok(_) | Err(_) => {}
        }
    }
}

/// `check`
///
/// Example: meridian-jepsen check target/jepsen/log-nastiest-7/history.edn
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// A history, as `run` leaves it.
    pub history: PathBuf,
}

/// Makes a run and prints its verdict.
pub fn run(args: &RunArgs) -> ExitCode {
    if args.until_stdin_ends {
        // Nodes end with this process.
        std::thread::spawn(|| {
            wait_for_end(&mut std::io::stdin());
            eprintln!("given up: whoever started this has ended");
            std::process::exit(2);
        });
    }
    finish(config(args).and_then(run::run).and_then(|outcome| {
        let text = report::write(&outcome)?;
        println!("{text}  {}", outcome.config.folder.join("report.html").display());
        Ok(outcome.is_valid())
    }))
}

/// Judges a history again.
pub fn check(args: &CheckArgs) -> ExitCode {
    finish(history::load(&args.history).map(|history| {
        let anomalies = check::anomalies(&history);
        print!("{}", report::describe(&anomalies, &history));
        println!("{} lines, {} anomalies", history.len(), anomalies.len());
        anomalies.is_empty()
    }))
}

/// Prints what workloads and faults there are.
pub fn list() -> ExitCode {
    println!("workloads:");
    for workload in workload::catalogue() {
        println!("  {:<14} {}", workload.name, workload.about);
    }
    println!("faults (those marked * may stop service, but must lose nothing):");
    for fault in nemesis::catalogue() {
        let mark = if fault.scope == nemesis::Scope::Beyond { "*" } else { " " };
        let needs = match fault.needs {
            nemesis::Needs::Nothing => "",
            nemesis::Needs::Spare => " (starts a tenth node)",
            nemesis::Needs::Network => " (not with --loopback)",
            nemesis::Needs::OtherBinary => " (needs --other-binary)",
        };
        println!(" {mark}{:<14} {}{needs}", fault.name, fault.about);
    }
    println!("mixes:");
    for (name, faults) in nemesis::MIXES {
        println!("  {name:<14} {}", faults.join(", "));
    }
    ExitCode::SUCCESS
}

pub(crate) fn finish(result: Result<bool, Failure>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("{failure}");
            // A machine that forbids namespaces or TUN devices is no fault of the cluster's.
            ExitCode::from(if matches!(failure, Failure::System { .. }) { 3 } else { 2 })
        }
    }
}

fn config(args: &RunArgs) -> Result<Config, Failure> {
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(Failure::file(path));
    let binary = absolute(&args.binary)?;
    if !binary.exists() {
        return Err(Failure::Invalid(format!(
            "there is no {}; build it with: cargo build --profile fast -p meridian",
            binary.display()
        )));
    }
    let name = format!("{}-{}-{}", args.workload, args.nemesis.replace(',', "+"), args.seed);
    let folder = absolute(&args.out)?.join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(Failure::file(&folder))?;
    }
    Ok(Config {
        workload: args.workload.clone(),
        nemesis: args.nemesis.clone(),
        time: Duration::from_secs(args.time),
        seed: args.seed,
        rate: args.rate,
        concurrency: args.concurrency.max(1),
        partition_count: args.partitions.max(1).into(),
        binary,
        other_binary: args.other_binary.as_ref().map(absolute).transpose()?,
        folder,
        loopback: args.loopback,
        wan_rtt: Duration::from_millis(args.wan_rtt_ms),
        gap_max: Duration::from_secs(args.gap_max),
        slack: args.slack.clamp(0.0, SLACK_MAX),
        interval: Duration::from_secs_f64(args.interval.max(0.1)),
        lasting: Duration::from_secs_f64(args.lasting.max(0.1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_read_to_its_end() {
        wait_for_end(&mut [7; 1000].as_slice());
        wait_for_end(&mut std::io::empty());
    }
}
