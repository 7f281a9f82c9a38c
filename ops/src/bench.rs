//! `meridian bench`: a load generator that leaves the processor to the server.

mod batch;
mod chain;
mod consume;
mod groups;
mod meter;
mod produce;
mod report;
mod schedule;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use tokio::task::JoinSet;

use self::batch::Keys;
use self::meter::Meter;
use self::report::Report;
use crate::client::producer::{Acks, IDEMPOTENT_IN_FLIGHT_MAX};
use crate::client::{Client, ClientError, admin, clock};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::target::Target;
use crate::topic::AcksArg;

/// Time for consumers to read what producers wrote last.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(30);
/// Room for the time at which a record was due.
const SIZE_BYTES_MIN: usize = 8;

/// Measure throughput and latency
///
/// With --rate, records are due at fixed times whatever the server does, and latency counts from
/// then: a server that stalls cannot hide it.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write records
    ///
    /// Example: meridian bench produce --topic load --partitions 12 --size 1024 --duration 30
    Produce(Load),
    /// Read a topic from its beginning to its end
    ///
    /// Example: meridian bench consume --topic load
    Consume(Consume),
    /// Write and read at once, and measure the time from one end to the other
    ///
    /// Example: meridian bench full --topic load --rate 1000 --size 100 --duration 30
    Full(Load),
    /// Run many consumer groups (KIP-848), whose members commit at a rate
    ///
    /// Example: meridian bench groups --groups 1000 --members 10 --rate 20000 --duration 30
    Groups(groups::Groups),
    /// Run chains of services, each of which reads a topic and writes to the next one, and measure from end to end
    ///
    /// Ends with exit code 2 if a chain is not within the bar.
    ///
    /// Example: meridian bench chain --instances 2 --services 5 --rate 1000 --duration 30
    Chain(chain::Chain),
}

#[derive(Debug, Clone, Args)]
struct Consume {
    /// The topic
    #[arg(long, short, default_value = "bench")]
    topic: String,
    /// Stop after so many records
    #[arg(long)]
    records: Option<u64>,
    /// Stop after so many seconds
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
    /// Consumers, each with connections of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
}

#[derive(Debug, Clone, Args)]
struct Load {
    #[command(flatten)]
    consume: Consume,
    /// Partitions of the topic, if it must be created
    #[arg(long, short, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    partitions: u32,
    /// Bytes of each record's value
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Give records one of so many keys, in turn, spread over the partitions; without it they have none
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    keys: Option<u32>,
    /// Records a second, over all partitions; 0 writes as fast as the server takes them
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// When a record counts as written
    #[arg(long, value_enum, default_value = "all")]
    acks: AcksArg,
    /// Most bytes of a batch
    #[arg(long, default_value_t = 128 << 10)]
    batch_bytes: usize,
    /// With --rate: how long a batch waits for more records
    #[arg(long, default_value_t = 0)]
    linger_ms: u64,
    /// Batches of each partition that may wait for their answer
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    in_flight: u16,
    /// Write without producer ids, so that a retry may write twice
    #[arg(long)]
    no_idempotence: bool,
    /// Seconds at the start that do not count
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    warmup: u64,
}

/// When a run ends, and when it begins to count.
#[derive(Debug, Clone, Copy)]
struct Window {
    start: Instant,
    warm: Instant,
    end: Option<Instant>,
}

/// Runs the command.
pub(crate) async fn run(bench: Bench) -> Result<Exit, Failure> {
    let Bench { target, command } = bench;
    let client = target.connect().await?;
    let (report, failed) = match command {
        Command::Groups(config) => return run_groups(&target, &client, config).await,
        Command::Chain(config) => return run_chains(&target, &client, config).await,
        Command::Produce(load) => produce_only(&client, &load).await?,
        Command::Consume(consume) => consume_only(&client, &consume).await?,
        Command::Full(load) => full(&client, &load).await?,
    };
    output::print(target.output, &report, Report::render)?;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(Exit::Ok),
    }
}

async fn run_groups(
    target: &Target,
    client: &Client,
    config: groups::Groups,
) -> Result<Exit, Failure> {
    let (report, failed) = groups::run(client, config).await?;
    output::print(target.output, &report, groups::GroupsReport::render)?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    // Commits belong to the groups' own partitions: a metadata log that grows with them is a fault.
    Ok(if report.is_metadata_quiet() { Exit::Ok } else { Exit::Degraded })
}

async fn run_chains(
    target: &Target,
    client: &Client,
    config: chain::Chain,
) -> Result<Exit, Failure> {
    let (report, failed) = chain::run(client, config).await?;
    output::print(target.output, &report, chain::ChainReport::render)?;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(if report.holds() { Exit::Ok } else { Exit::Degraded }),
    }
}

type Outcome = Result<(Report, Option<ClientError>), Failure>;

async fn produce_only(client: &Client, load: &Load) -> Outcome {
    load.check()?;
    let partitions = load.ensure_topic(client).await?;
    let window = load.window();
    let meter = Arc::new(Meter::new("produce", window.warm));
    let progress = meter::show_progress(window.start, vec![Arc::clone(&meter)]);
    let lanes = produce::start(client, load, &partitions, window, &meter).await?;
    let failed = first_failure(lanes).await;
    progress.abort();
    let report = Report::new("produce", &load.consume.topic, partitions.len());
    Ok((report.with(&meter), failed))
}

async fn consume_only(client: &Client, consume: &Consume) -> Outcome {
    let count = client.topic(&consume.topic).await?.partitions.len();
    let partitions: Vec<i32> = (0..).take(count).collect();
    let ends = admin::offsets(client, &consume.topic, &partitions, consume::LATEST).await?;
    let starts = admin::offsets(client, &consume.topic, &partitions, consume::EARLIEST).await?;
    let start = clock::now();
    let end = consume.duration.map(|seconds| start + Duration::from_secs(seconds));
    let meter = Arc::new(Meter::new("consume", start));
    let progress = meter::show_progress(start, vec![Arc::clone(&meter)]);
    let plan = consume::Plan { starts, ends: Some(ends), end_to_end: None };
    let readers = consume::start(client, consume, plan, end, &meter);
    let failed = first_failure(readers).await;
    progress.abort();
    Ok((Report::new("consume", &consume.topic, count).with(&meter), failed))
}

async fn full(client: &Client, load: &Load) -> Outcome {
    load.check()?;
    let partitions = load.ensure_topic(client).await?;
    let topic = &load.consume.topic;
    let starts = admin::offsets(client, topic, &partitions, consume::LATEST).await?;
    let window = load.window();
    let written = Arc::new(Meter::new("produce", window.warm));
    let read = Arc::new(Meter::new("end to end", window.warm));
    let progress =
        meter::show_progress(window.start, vec![Arc::clone(&written), Arc::clone(&read)]);
    let plan = consume::Plan { starts, ends: None, end_to_end: Some(window.start) };
    let mut readers = consume::start(client, &load.consume, plan, None, &read);
    let lanes = produce::start(client, load, &partitions, window, &written).await?;
    let mut failed = first_failure(lanes).await;
    let caught_up = async {
        while read.total_count() < written.total_count() {
            tokio::select! {
                Some(Ok(Err(error))) = readers.join_next() => return Some(error),
                () = clock::sleep(Duration::from_millis(20)) => {}
            }
        }
        None
    };
    match tokio::time::timeout(CATCH_UP_TIMEOUT, caught_up).await {
        Ok(error) => failed = failed.or(error),
        Err(_late) => eprintln!(
            "{} of {} records were not read within {CATCH_UP_TIMEOUT:?}",
            written.total_count() - read.total_count(),
            written.total_count()
        ),
    }
    progress.abort();
    let report = Report::new("full", topic, partitions.len());
    Ok((report.with(&written).with(&read), failed))
}

/// Waits for all to end; why the first one failed, if any did.
async fn first_failure(mut tasks: JoinSet<Result<(), ClientError>>) -> Option<ClientError> {
    let mut failed = None;
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Err(error)) => failed = failed.or(Some(error)),
            Ok(Ok(())) => {}
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
    failed
}

impl Load {
    fn check(&self) -> Result<(), Failure> {
        let invalid = |text: String| Err(Failure::Invalid(text));
        if self.size < SIZE_BYTES_MIN || self.size > self.batch_bytes {
            return invalid(format!(
                "--size must be from {SIZE_BYTES_MIN} to --batch-bytes, {}",
                self.batch_bytes
            ));
        }
        if self.is_idempotent() && usize::from(self.in_flight) > IDEMPOTENT_IN_FLIGHT_MAX {
            return invalid(format!(
                "--in-flight is at most {IDEMPOTENT_IN_FLIGHT_MAX} for idempotent producers; add \
                 --no-idempotence for more"
            ));
        }
        Ok(())
    }

    /// The keys of records in so many partitions, if they are to have any.
    fn keys_over(&self, partitions_count: u32) -> Result<Option<Keys>, Failure> {
        if self.keys.is_some_and(|count| count < partitions_count) {
            return Err(Failure::Invalid(format!(
                "--keys must be at least {partitions_count}, one for each partition of the topic"
            )));
        }
        Ok(self.keys.map(|count| Keys::new(count, partitions_count)))
    }

    fn is_idempotent(&self) -> bool {
        Acks::from(self.acks) == Acks::All && !self.no_idempotence
    }

    async fn ensure_topic(&self, client: &Client) -> Result<Vec<i32>, ClientError> {
        let topic = &self.consume.topic;
        admin::ensure_topic(client, topic, Some(self.partitions)).await?;
        let count = client.topic(topic).await?.partitions.len();
        Ok((0..).take(count).collect())
    }

    /// Ten seconds, unless told otherwise.
    fn window(&self) -> Window {
        let start = clock::now();
        let warm = start + Duration::from_secs(self.warmup);
        let seconds = match (self.consume.duration, self.consume.records) {
            (Some(seconds), _) => Some(seconds),
            (None, Some(_)) => None,
            (None, None) => Some(10),
        };
        Window { start, warm, end: seconds.map(|seconds| warm + Duration::from_secs(seconds)) }
    }
}
