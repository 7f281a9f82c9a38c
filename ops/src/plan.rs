//! `meridian plan`: how many nodes and disks, for how long, for how much.
//!
//! Talks to no cluster. The formulae, and what they leave out, are in `docs/planner.md`; each of
//! [`hardware`], [`tiering`], [`retention`] and [`cost`] is a pure function of its inputs.

mod codec;
mod cost;
mod hardware;
mod plot;
mod retention;
mod tiering;
mod units;

use std::time::Duration;

use clap::{Args, Subcommand};

use self::codec::Layout;
use self::units::Bytes;
use crate::failure::{Exit, Failure};
use crate::output::{self, Format};

/// Plan a cluster: nodes, disks, bursts, retention, cost, compared with Kafka at RF 3
///
/// Bytes are payload bytes, as producers send them. Sizes are written 500MB or 2TiB, times 90s or
/// 7d. The formulae are in docs/planner.md.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Form of the output
    #[arg(long, short, global = true, value_enum, default_value = "table")]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Nodes and disks for a load, also while a datacenter and a rack are lost
    ///
    /// Example: meridian plan hardware --write 500MB --fan-out 3 --retention 7d
    Hardware(Hardware),
    /// What burst the fast disks absorb while the capacity disks take what they can
    ///
    /// Example: meridian plan tiering --fast 1TB --reserved 0.5 --drain 500MB --burst 2GB
    Tiering(Tiering),
    /// For how long given disks keep everything, by layout
    ///
    /// Example: meridian plan retention --write 500MB --nodes 9 --disk 16TB
    Retention(Retention),
    /// What it costs a month, by layout
    ///
    /// Example: meridian plan cost --write 500MB --retention 7d --node-price 400 --wan-price 0.02
    Cost(Cost),
}

/// What producers and consumers do.
#[derive(Debug, Clone, Copy, Args)]
struct Load {
    /// Payload bytes written each second, on average
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    write: Bytes,
    /// Bytes a second in the worst hour; the average otherwise
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    peak: Option<Bytes>,
    /// How many times each record is read
    #[arg(long, default_value_t = 1.0)]
    fan_out: f64,
}

impl Load {
    /// What it asks of a cluster that keeps it for so long.
    fn kept_for(self, retention: Duration) -> Result<hardware::Need, Failure> {
        let (write, peak) = (above_zero("--write", self.write)?, self.peak.unwrap_or(self.write));
        if peak < write {
            return Err(Failure::Invalid(format!(
                "--peak {peak}/s is below the average that --write says, {write}/s"
            )));
        }
        let fan_out = not_negative("--fan-out", self.fan_out)?;
        if retention.is_zero() {
            return Err(Failure::Invalid("--retention must be above 0, not 0 s".to_owned()));
        }
        Ok(hardware::Need { write, peak, fan_out, retention })
    }
}

/// What a node is.
#[derive(Debug, Clone, Copy, Args)]
struct Machine {
    /// A node's disk
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, default_value = "4TB")]
    disk: Bytes,
    /// What a node's disk writes each second
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, default_value = "1GB")]
    disk_write: Bytes,
    /// What a node's network carries each second, each way
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, default_value = "1.25GB")]
    network: Bytes,
}

impl Machine {
    fn node(self) -> Result<hardware::Node, Failure> {
        Ok(hardware::Node {
            disk: above_zero("--disk", self.disk)?,
            disk_write: above_zero("--disk-write", self.disk_write)?,
            network: above_zero("--network", self.network)?,
        })
    }
}

#[derive(Debug, Args)]
struct Hardware {
    #[command(flatten)]
    load: Load,
    /// How long records are kept
    #[arg(long, value_parser = units::duration, allow_hyphen_values = true)]
    retention: Duration,
    /// How they are laid out
    #[arg(long, value_enum, default_value = "mirror-3-dc")]
    layout: Layout,
    #[command(flatten)]
    machine: Machine,
}

#[derive(Debug, Args)]
struct Tiering {
    /// Fast disks of all nodes together
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    fast: Bytes,
    /// Share of the fast disks that is kept free for bursts
    #[arg(long, default_value_t = 0.5)]
    reserved: f64,
    /// What all capacity disks together take from the fast ones each second
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    drain: Bytes,
    /// Height of the burst: stored bytes each second, all copies counted
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    burst: Bytes,
    /// Stored bytes each second between bursts
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, default_value = "0B")]
    base: Bytes,
}

#[derive(Debug, Args)]
struct Retention {
    /// Payload bytes written each second, on average
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    write: Bytes,
    /// Nodes, all alike
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// A node's disk
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    disk: Bytes,
}

#[derive(Debug, Args)]
struct Cost {
    #[command(flatten)]
    load: Load,
    /// How long records are kept
    #[arg(long, value_parser = units::duration, allow_hyphen_values = true)]
    retention: Duration,
    #[command(flatten)]
    machine: Machine,
    /// A node without its disk, a month
    #[arg(long, default_value_t = 0.0)]
    node_price: f64,
    /// A gigabyte of disk, a month
    #[arg(long, default_value_t = 0.0)]
    disk_price: f64,
    /// A gigabyte from one datacenter to another
    #[arg(long, default_value_t = 0.0)]
    wan_price: f64,
}

/// Runs the command.
pub(crate) fn run(plan: &Plan) -> Result<Exit, Failure> {
    let format = plan.output;
    match &plan.command {
        Command::Hardware(given) => {
            let need = given.load.kept_for(given.retention)?;
            let plan = hardware::compare(&need, &given.machine.node()?, given.layout)?;
            output::print(format, &plan, hardware::render)?;
        }
        Command::Tiering(given) => {
            let plan = tiering::plan(&tiering::Tier {
                fast: above_zero("--fast", given.fast)?,
                reserved_share: share("--reserved", given.reserved)?,
                drain: above_zero("--drain", given.drain)?,
                burst: above_zero("--burst", given.burst)?,
                base: given.base,
            })?;
            output::print(format, &plan, tiering::render)?;
        }
        Command::Retention(given) => {
            let (write, disk) =
                (above_zero("--write", given.write)?, above_zero("--disk", given.disk)?);
            let rows = retention::plan(write, given.nodes, disk)?;
            output::print(format, &rows, |rows| retention::render(rows))?;
        }
        Command::Cost(given) => {
            let need = given.load.kept_for(given.retention)?;
            let prices = cost::Prices {
                node: not_negative("--node-price", given.node_price)?,
                disk_gigabyte: not_negative("--disk-price", given.disk_price)?,
                wan_gigabyte: not_negative("--wan-price", given.wan_price)?,
            };
            let rows = cost::plan(&need, &given.machine.node()?, &prices)?;
            output::print(format, &rows, |rows| cost::render(rows))?;
        }
    }
    Ok(Exit::Ok)
}

fn above_zero(option: &str, bytes: Bytes) -> Result<Bytes, Failure> {
    match bytes.0 > 0.0 {
        true => Ok(bytes),
        false => Err(Failure::Invalid(format!("{option} must be above 0, not {bytes}"))),
    }
}

fn not_negative(option: &str, value: f64) -> Result<f64, Failure> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(value),
        false => Err(Failure::Invalid(format!("{option} {value} must be 0 or more"))),
    }
}

fn share(option: &str, value: f64) -> Result<f64, Failure> {
    match value > 0.0 && value <= 1.0 {
        true => Ok(value),
        false => Err(Failure::Invalid(format!("{option} {value} must be above 0, and at most 1"))),
    }
}
