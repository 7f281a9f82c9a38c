//! Hostile clients against one real node: legal requests of maximal size, count and wait, slow senders, readers
//! that never read, pipelines, half-open and thousands of connections.
//!
//! ```text
//!   attacks, one after another --> meridian serve <-- witness: produce, metadata, /health
//!                                  memory, files  <-- watch
//!   witness's latencies and records, what the process took  -> verdict
//! ```
//!
//! Everything stays on loopback, and each attack is bounded in connections, bytes and time.

mod attacks;
mod judge;
mod node;
mod watch;
mod witness;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use self::attacks::ATTACKS;
use self::judge::Findings;
use self::node::Node;
use self::watch::Watch;
use self::witness::Witness;
use crate::clock;
use crate::command::finish;
use crate::failure::Failure;

/// `hostile`
///
/// One node under clients that mean it no good, and another client that must not notice. Ends with 0 if it did
/// not, 1 if it did, 2 if the run could not be made.
///
/// Example: meridian-jepsen hostile --time 60
#[derive(Args, Clone, Debug)]
pub struct HostileArgs {
    /// Seconds of attacks, all together.
    #[arg(long, default_value_t = 60)]
    pub time: u64,
    /// Attacks by name, separated by commas; all if there are none.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Connections of the attack that opens many.
    #[arg(long, default_value_t = 5000)]
    pub connections: usize,
    /// Milliseconds that the slowest of a hundred requests of the other client may take.
    #[arg(long, default_value_t = 1000)]
    pub p99_ms_max: u64,
    /// MiB that the node may take at any time.
    #[arg(long, default_value_t = 1280)]
    pub memory_mib_max: u64,
    /// The binary under test.
    #[arg(long, env = "MERIDIAN_BINARY", default_value = "target/fast/meridian")]
    pub binary: PathBuf,
    /// Where the node's folder is.
    #[arg(long, default_value = "target/jepsen")]
    pub out: PathBuf,
}

/// Rest after each attack, in which its connections end.
const REST: Duration = Duration::from_millis(500);

/// Makes a run and prints its verdict.
pub fn hostile(args: &HostileArgs) -> ExitCode {
    finish(run(args))
}

fn run(args: &HostileArgs) -> Result<bool, Failure> {
    let is_wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|it| it == name);
    let attacks: Vec<_> = ATTACKS.iter().filter(|attack| is_wanted(attack.name)).collect();
    if attacks.is_empty() {
        let names: Vec<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
        return Err(Failure::Invalid(format!("there are the attacks {}", names.join(", "))));
    }
    let mut node = Node::start(&args.binary, &args.out)?;
    let target = node.target(args.connections);
    let witness = Witness::start(&target)?;
    attacks::prepare(&target)?;
    let watch = Watch::start(node.id());
    let share = Duration::from_secs(args.time) / u32::try_from(attacks.len()).unwrap_or(1);
    for attack in attacks {
        println!("{:<22} {}", attack.name, attack.about);
        witness.begin(attack.name);
        let until = clock::now() + share.saturating_sub(REST).max(REST);
        (attack.run)(&target, until);
        clock::sleep(REST);
        println!("{:<22} {} MiB of memory", "", watch.memory_bytes() >> 20);
        if let Some(status) = node.ended() {
            println!("the node ended: {status}");
            break;
        }
    }
    let watched = watch.end();
    let findings = Findings {
        p99_max: Duration::from_millis(args.p99_ms_max),
        memory_bytes_max: args.memory_mib_max << 20,
        ended: node.ended().map(|status| status.to_string()),
        alarms: node.alarms(),
        memory_bytes: watched.memory_bytes,
        descriptor_count: watched.descriptor_count,
        descriptor_limit: watched.descriptor_limit,
        witness: witness.end(&target),
    };
    let anomalies = findings.anomalies();
    print!("{}", findings.describe());
    for anomaly in &anomalies {
        println!("INVALID {anomaly}");
    }
    println!("{} anomalies  {}", anomalies.len(), node.folder().display());
    Ok(anomalies.is_empty())
}
