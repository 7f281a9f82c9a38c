//! Two clusters of real processes, and a topic that moves between them under load, again and again.
//!
//! ```text
//!  idempotent producers --> west: nine nodes <== links ==> east: three nodes
//!                              kill -9, failover, rejoin; switchover
//!  each producer's acknowledgements  vs  every record of both logs  -> verdict
//! ```
//!
//! It runs what operators run: `meridian dev --clusters 2` and the commands of `meridian mirror`.

mod alarms;
mod broken;
mod clusters;
mod firsts;
mod judge;
mod report;
mod rounds;
mod troubles;
mod wan;
mod writers;

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use self::clusters::{Pair, Setup};
use self::report::Outcome;
use self::rounds::Mover;
use self::troubles::Trouble;
use self::wan::{Distance, Wan};
use self::writers::{BATCH_RECORD_COUNT, Desk, Writer};
use crate::chance::Chance;
use crate::clock;
use crate::command::finish;
use crate::failure::Failure;
use crate::history::Key;

const TOPIC: &str = "moved";
/// Where a rejoin keeps what only the old side has.
const DIVERGED: &str = "moved.diverged";

/// `pair`
///
/// Two clusters side by side; a topic is failed over and switched over between them under load, and every
/// record is judged. Ends with 0 if no promise was broken, 1 if one was, 2 if the run could not be made.
///
/// Example: meridian-jepsen pair --failovers 50 --switchovers 20 --seed 7
#[derive(Args, Clone, Debug)]
pub struct PairArgs {
    /// Failovers: the writer's cluster is killed whole, and rejoins as the mirror.
    #[arg(long, default_value_t = 10)]
    pub failovers: usize,
    /// Switchovers; they come first.
    #[arg(long, default_value_t = 5)]
    pub switchovers: usize,
    /// Seconds for which the lag of the mirror is measured before; 0 for not at all.
    #[arg(long, default_value_t = 10)]
    pub lag_seconds: u64,
    /// Times that it is measured how soon the first record of a new mirror, topic and partition is mirrored.
    #[arg(long, default_value_t = 0)]
    pub firsts: usize,
    /// Topics of each kind of loss that mirrors must tell of; they come last.
    #[arg(long, default_value_t = 0)]
    pub alarms: usize,
    /// Where all chance grows from.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Records a second of all producers together.
    #[arg(long, default_value_t = 1000.0)]
    pub rate: f64,
    /// Bytes that each record has beside its number; nothing can compress them.
    #[arg(long, default_value_t = 0)]
    pub padding_bytes: usize,
    /// Producers.
    #[arg(long, default_value_t = 6)]
    pub producers: usize,
    /// Partitions of the topic.
    #[arg(long, default_value_t = 3)]
    pub partitions: u32,
    /// Racks in each datacenter of the first cluster: 3 or 1.
    #[arg(long, default_value_t = 3)]
    pub racks: usize,
    /// Milliseconds of a round trip between the clusters, each of which gets a network of its own then; 0 has
    /// both on loopback.
    #[arg(long, default_value_t = 0)]
    pub rtt_ms: u64,
    /// Packets of a thousand that are lost between the clusters.
    #[arg(long, default_value_t = 0, requires = "rtt_ms")]
    pub loss_per_mille: u32,
    /// Bytes a second that get from one cluster to the other; 0 is no limit.
    #[arg(long, default_value_t = 0, requires = "rtt_ms")]
    pub rate_bytes: u64,
    /// Links over QUIC, with certificates on both sides.
    #[arg(long)]
    pub quic: bool,
    /// Options that links are created with; may be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub link_config: Vec<String>,
    /// Cuts of the way between the clusters, kills of a node that pulls, ways that flap, and kills of a leader
    /// of the source, in turns.
    #[arg(long, default_value_t = 0, requires = "rtt_ms")]
    pub troubles: usize,
    /// Seconds that the shortest of them may take.
    #[arg(long, default_value_t = 1)]
    pub trouble_min: u64,
    /// Seconds that the longest of them may take.
    #[arg(long, default_value_t = 60)]
    pub trouble_max: u64,
    /// Switchovers whose coordinator is killed on the way, in each step in turns.
    #[arg(long, default_value_t = 0)]
    pub broken_switchovers: usize,
    /// Milliseconds that p99 of the lag may be [default: twice the round trip, and 250].
    #[arg(long)]
    pub lag_max_ms: Option<u64>,
    /// Seconds that p99 of a producer's pause in a switchover may be.
    #[arg(long, default_value_t = 5)]
    pub pause_max: u64,
    /// The first of the ports, on loopback.
    #[arg(long, default_value_t = 19_092)]
    pub base_port: u16,
    /// The binary under test.
    #[arg(long, env = "MERIDIAN_BINARY", default_value = "target/fast/meridian")]
    pub binary: PathBuf,
    /// Where everything is kept: a folder for each run.
    #[arg(long, default_value = "target/jepsen")]
    pub out: PathBuf,
}

/// Makes a run and prints what it came to.
pub fn pair(args: &PairArgs) -> ExitCode {
    finish(run(args).map(|outcome| {
        print!("{}", outcome.summary());
        outcome.findings.is_empty()
    }))
}

fn run(args: &PairArgs) -> Result<Outcome, Failure> {
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(Failure::file(path));
    let binary = absolute(&args.binary)?;
    let folder = absolute(&args.out)?.join(format!("pair-{}", args.seed));
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(Failure::file(&folder))?;
    }
    std::fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
    let (base_port, racks) = (args.base_port, args.racks);
    let mut chance = Chance::new(args.seed);
    let distance = Distance {
        rtt: Duration::from_millis(args.rtt_ms),
        loss_per_mille: args.loss_per_mille,
        rate_bytes: args.rate_bytes,
    };
    let wan = (args.rtt_ms > 0).then(|| Wan::lay(distance, chance.branch())).transpose()?;
    let setup = Setup { binary: &binary, folder: &folder, base_port, racks, wan };
    let pair = Pair::start(setup)?;
    federate(&pair, args)?;

    let desk = Desk::new(args.producers, args.padding_bytes);
    let keys: Vec<Key> = (0..Key::from(args.partitions)).collect();
    let batches_per_second = args.rate.max(0.1) / BATCH_RECORD_COUNT as f64;
    let pause = Duration::from_secs_f64(args.producers as f64 / batches_per_second);
    std::thread::scope(|scope| {
        for number in 0..args.producers {
            let key = keys[number % keys.len()];
            let writer = Writer::new(&pair, &desk, TOPIC, number, key, chance.branch());
            scope.spawn(move || writer.run(pause));
        }
        let mover = Mover::new(pair, &desk, keys.clone(), chance.branch());
        let outcome = play(args, mover);
        desk.end();
        outcome
    })
}

/// A link in each direction, and a topic in the first cluster that the second mirrors.
fn federate(pair: &Pair, args: &PairArgs) -> Result<(), Failure> {
    let count = args.partitions.to_string();
    // A cluster whose nodes serve may still lack leaders.
    let is_created = |said: &serde_json::Value| !said.is_null();
    pair.command_until(0, &["topic", "create", TOPIC, "-p", &count], is_created)?;
    for side in [0, 1] {
        let source = &pair.sides[1 - side];
        let bootstrap = source.bootstrap();
        let mut arguments = vec!["link", "create", source.name, "--source", &bootstrap];
        let mut options = if args.quic { pair.certify_link(1 - side)? } else { Vec::new() };
        options.extend(args.link_config.iter().cloned());
        arguments.extend(options.iter().flat_map(|option| ["-c", option.as_str()]));
        pair.command(side, &arguments)?;
    }
    pair.command(1, &["mirror", "create", TOPIC, "--link", pair.sides[0].name])?;
    Ok(())
}

/// Everything that happens to the topic, in order.
fn play(args: &PairArgs, mut mover: Mover<'_>) -> Result<Outcome, Failure> {
    let started = clock::now();
    let say = |line: &dyn Display| println!("{:>6.1?} {line}", started.elapsed());
    let mut outcome = Outcome::default();
    if args.lag_seconds > 0 {
        outcome.lags = mover.lags(Duration::from_secs(args.lag_seconds))?;
        say(&format!("lag p99 {:.1?}", report::quantile(&outcome.lags, 99)));
    }
    if args.firsts > 0 {
        let firsts = firsts::run(&mover.pair, args.firsts)?;
        say(&firsts.line());
        mover.findings.extend(firsts.findings());
    }
    for number in 0..args.troubles {
        let bounds = [args.trouble_min, args.trouble_max].map(Duration::from_secs);
        let time = mover.chance.between(bounds[0], bounds[1]);
        let done = mover.trouble(Trouble::ALL[number % Trouble::ALL.len()], time)?;
        say(&done.line());
        outcome.troubles.push(done);
    }
    for number in 0..args.broken_switchovers {
        let done = mover.break_switchover(number)?;
        say(&done.line());
        outcome.broken.push(done);
    }
    for _ in 0..args.switchovers {
        let done = mover.switch_over()?;
        say(&done.line());
        outcome.switchovers.push(done);
    }
    for number in 0..args.failovers {
        let done = mover.fail_over(number % 2 == 1)?;
        say(&done.line());
        outcome.failovers.push(done);
    }
    if args.alarms > 0 {
        mover.rest();
        let alarms = alarms::run(&mut mover.pair, args.alarms)?;
        mover.findings.extend(alarms.findings.iter().cloned());
        say(&alarms.line());
        outcome.alarms = Some(alarms);
    }
    outcome.findings = mover.findings;
    judge_times(args, &mut outcome);
    Ok(outcome)
}

/// What is promised of times and forecasts.
fn judge_times(args: &PairArgs, outcome: &mut Outcome) {
    let mut findings = Vec::new();
    let lag = report::quantile(&outcome.lags, 99);
    if lag > Duration::from_millis(args.lag_max_ms.unwrap_or(2 * args.rtt_ms + 250)) {
        findings.push(format!("p99 of the lag is {lag:.1?}"));
    }
    let pauses: Vec<Duration> =
        outcome.switchovers.iter().flat_map(|it| it.pauses.iter().copied()).collect();
    let pause = report::quantile(&pauses, 99);
    if pause > Duration::from_secs(args.pause_max) {
        findings.push(format!("p99 of a producer's pause in a switchover is {pause:.1?}"));
    }
    // A batch of each producer may have been taken, and its mirror not told of it.
    let allowed = (args.producers * BATCH_RECORD_COUNT) as u64;
    for failover in &outcome.failovers {
        if failover.error_records() > allowed {
            findings
                .push(format!("the forecast was wrong by more than a batch: {}", failover.line()));
        }
    }
    outcome.findings.extend(findings);
}
