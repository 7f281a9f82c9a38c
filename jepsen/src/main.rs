//! The command line: `sim` breaks simulated clusters, `run` real processes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use meridian_jepsen::command::{MatrixArgs, MetaArgs, ReplayArgs, RunArgs};
use meridian_jepsen_runner::command as runner;
use meridian_jepsen_runner::hostile::{HostileArgs, hostile};
use meridian_jepsen_runner::pair::{PairArgs, pair};
use meridian_jepsen_runner::scale::{ScaleArgs, scale};
use meridian_jepsen_runner::teeth::{TeethArgs, teeth};

/// Simulation and fault injection for Meridian.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The deterministic simulation of a whole cluster.
    #[command(subcommand)]
    Sim(Sim),
    /// Break nine real processes under real clients, and judge what those saw.
    Run(runner::RunArgs),
    /// Break rules on purpose, one after the other, and demand that each is found out.
    Teeth(TeethArgs),
    /// Move a topic between two clusters under load, and judge every record.
    Pair(PairArgs),
    /// Attack a node with hostile clients, and demand that another client does not notice.
    Hostile(HostileArgs),
    /// Run many partitions on nodes that get little of a processor, and demand that all are served in time.
    Scale(ScaleArgs),
    /// Judge a history again.
    Check(runner::CheckArgs),
    /// Tell which workloads and faults there are.
    List,
}

#[derive(Subcommand)]
enum Sim {
    /// Run many seeds; fail on the first broken promise.
    Run(RunArgs),
    /// Run one seed again, printing what happens.
    Replay(ReplayArgs),
    /// Run seeds twice and demand the same trace, byte for byte.
    Meta(MetaArgs),
    /// Cross long faults with the work that leaders do by themselves.
    Matrix(MatrixArgs),
    /// Break one rule at a time and demand that each is found within its bound.
    #[cfg(feature = "mutations")]
    Mutations(meridian_jepsen::command::MutationsArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Sim(Sim::Run(args)) => meridian_jepsen::command::run(&args),
        Command::Sim(Sim::Replay(args)) => meridian_jepsen::command::replay(&args),
        Command::Sim(Sim::Meta(args)) => meridian_jepsen::command::meta(&args),
        Command::Sim(Sim::Matrix(args)) => meridian_jepsen::command::matrix(&args),
        #[cfg(feature = "mutations")]
        Command::Sim(Sim::Mutations(args)) => meridian_jepsen::command::mutations(&args),
        Command::Run(args) => runner::run(&args),
        Command::Teeth(args) => teeth(&args),
        Command::Pair(args) => pair(&args),
        Command::Hostile(args) => hostile(&args),
        Command::Scale(args) => scale(&args),
        Command::Check(args) => runner::check(&args),
        Command::List => runner::list(),
    }
}
