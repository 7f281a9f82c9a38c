//! `meridian mirror`: topics that follow one of another cluster, offset for offset.

mod contract;
mod create;
mod export;
mod failover;
mod groups;
mod lease;
mod pause;
mod rejoin;
mod report;
mod switchover;
#[cfg(test)]
mod testing;
mod verify;

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use meridian_admin_api::methods::{MirrorDropLease, MirrorList, MirrorPromote, MirrorResume};
use meridian_admin_api::mirror::{MirrorReport, Promote};
use meridian_admin_api::{NoArguments, OfTopic};

use self::create::{Create, Forget, Rules};
use self::failover::Failover;
use self::groups::Groups;
pub(crate) use self::groups::stewards;
use self::rejoin::{Failback, Rejoin};
use self::report::{Forecast, Status};
use self::switchover::Switchover;
use self::verify::{Divergence, Repair, Verify};
use crate::client::{Client, api, clock};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table};
use crate::target::Target;
use crate::topic::manage;

/// How often `--watch` looks.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Mirror topics of other clusters, watch them, promote them
#[derive(Debug, Args)]
pub(crate) struct Mirror {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
    Rules(Rules),
    Forget(Forget),
    Groups(Groups),
    Verify(Verify),
    Divergence(Divergence),
    Repair(Repair),
    /// Delete a mirror with the records that are here; its source keeps its own
    ///
    /// Asks first; without a terminal it refuses (exit code 3) unless --yes is given. A rule that takes its source's
    /// topic mirrors it anew: `meridian mirror forget` ends that.
    ///
    /// Example: meridian mirror delete orders --yes
    Delete {
        /// Its name
        topic: String,
        #[command(flatten)]
        consent: Consent,
    },
    /// List the mirrors
    ///
    /// Example: meridian mirror list
    List,
    /// Show what each partition does, how far it is behind, how fast it follows, and what to do about it
    ///
    /// Exit code 2 if a partition has stopped or its source cannot be reached.
    ///
    /// Example: meridian mirror status orders --watch
    #[command(alias = "describe", alias = "lag")]
    Status {
        /// Only this mirror
        topic: Option<String>,
        /// Look again every second, until interrupted: only then is it seen how fast bytes come
        #[arg(long)]
        watch: bool,
    },
    /// Stop following the source, until resumed
    ///
    /// Ends when the leaders of its partitions fetch nothing more. If that takes longer than 10 s, says what has not
    /// stopped, with exit code 2.
    ///
    /// Example: meridian mirror pause orders
    Pause {
        /// Its name
        topic: String,
    },
    /// Go on following the source
    ///
    /// Example: meridian mirror resume orders
    Resume {
        /// Its name
        topic: String,
    },
    /// Make a mirror writable; it follows its source no more
    ///
    /// Says first what would be lost if the source is gone. Refuses (exit code 3) if records are
    /// missing, or if that cannot be known, unless --accept-loss is given. Asks first; without a terminal it
    /// refuses (exit code 3) unless --yes is given. Does not stop producers at the source: what they write from
    /// now on stays there.
    ///
    /// Example: meridian mirror promote orders --dry-run
    Promote {
        /// Its name
        topic: String,
        #[command(flatten)]
        consent: Consent,
        /// Promote even if records of the source are missing here
        #[arg(long)]
        accept_loss: bool,
        /// Even if the link has `lease.ms` and nothing keeps the source from taking records
        #[arg(long)]
        force: bool,
    },
    /// Make the mirror the writer and its source the mirror, without losing or doubling a record
    ///
    /// The source refuses producers until all of its records are here, for a second or so. If any step
    /// fails before that, everything is as it was (exit code 3). Both sides are meridian.
    ///
    /// Example: meridian mirror switchover orders --dry-run
    Switchover(Switchover),
    /// Make a mirror writable because its source is gone
    ///
    /// Says what is lost: what the source had taken and the mirror had not. Refuses (exit code 3) if
    /// the source answers, unless --force is given. Asks first; without a terminal it refuses unless --yes is
    /// given.
    ///
    /// Example: meridian mirror failover orders --dry-run
    Failover(Failover),
    /// Let producers write without the lease of the mirror's cluster, which is gone
    ///
    /// Run at the writer's side. Only if no mirror was promoted: otherwise both sides take records. A
    /// mirror whose link has `lease.ms`, once it is heard of again, has the topic need its lease anew.
    ///
    /// Example: meridian mirror drop-lease orders --yes
    DropLease {
        /// The topic's name here
        topic: String,
        #[command(flatten)]
        consent: Consent,
    },
    /// Make the old side of a failover a mirror of the promoted side, and keep what only it has
    ///
    /// Run at the old side. It refuses producers from then on; records that the promoted side does not
    /// have go to TOPIC.diverged, each with its old offset and producer in headers; then the topic is
    /// deleted and mirrored anew. Interrupted anywhere, it can be run again.
    ///
    /// Example: meridian mirror rejoin orders --link east --dry-run
    Rejoin(Rejoin),
    /// Rejoin, catch up, and switch over: the old side of a failover becomes the writer again
    ///
    /// Run at the old side. Interrupted anywhere, it can be run again.
    ///
    /// Example: meridian mirror failback orders --link east --dry-run
    Failback(Failback),
}

/// Runs the command.
pub(crate) async fn run(mirror: Mirror) -> Result<Exit, Failure> {
    let Mirror { target, command } = mirror;
    let client = target.connect().await?;
    let format = target.output;
    let mirror = match command {
        Command::Create(create) => return create.run(&client, format).await,
        Command::Rules(rules) => return rules.run(&client, format).await,
        Command::Forget(forget) => return forget.run(&client, format).await,
        Command::Groups(groups) => return groups.run(&client, format).await,
        Command::Verify(verify) => return verify.run(&client, format).await,
        Command::Divergence(it) => return it.run(&client, format).await,
        Command::Repair(repair) => return repair.run(&client, format).await,
        Command::List => {
            let mirrors = api::call::<MirrorList>(&client, &NoArguments {}).await?;
            output::print(format, &mirrors, |mirrors| render(mirrors))?;
            return Ok(Exit::Ok);
        }
        Command::Status { topic, watch } => {
            return status(&client, format, topic.as_deref(), watch).await;
        }
        Command::Delete { topic, consent } => {
            known(&client, &topic).await?;
            let more = "; its source keeps its own records";
            manage::delete(&client, format, &topic, consent, more).await?;
            return Ok(Exit::Ok);
        }
        Command::DropLease { topic, consent } => {
            return drop_lease(&client, format, topic, consent).await;
        }
        Command::Pause { topic } => return pause::run(&client, format, &topic).await,
        Command::Resume { topic } => {
            api::command::<MirrorResume>(&client, &OfTopic { topic }).await?
        }
        Command::Switchover(command) => return switchover::run(&client, format, command).await,
        Command::Failover(command) => return failover::run(&client, format, command).await,
        Command::Rejoin(command) => return command.run(&client, format).await,
        Command::Failback(command) => return command.run(&client, format).await,
        Command::Promote { topic, consent, accept_loss, force } => {
            let forecast = Forecast::of(&Status::ask(&client, Some(&topic)).await?, true);
            if consent.dry_run || forecast.is_risky() && !accept_loss {
                output::print(format, &forecast, Forecast::render)?;
                return match consent.dry_run {
                    true => Ok(Exit::Ok),
                    false => Err(forecast.refusal(&topic)),
                };
            }
            let lost = forecast.render().trim().replace('\n', "; ");
            consent
                .ask(&format!("{topic} takes records and follows its source no more; {lost}"))?;
            api::command::<MirrorPromote>(&client, &Promote { topic, is_forced: force }).await?
        }
    };
    output::print(format, &[mirror], |mirrors| render(mirrors))?;
    Ok(Exit::Ok)
}

async fn drop_lease(
    client: &Client,
    format: Format,
    topic: String,
    consent: Consent,
) -> Result<Exit, Failure> {
    let loss = format!(
        "{topic} takes records without a lease: if its mirror was promoted, both sides take records and diverge"
    );
    if !consent.ask_or_show(format, &loss)? {
        return Ok(Exit::Ok);
    }
    let request = OfTopic { topic };
    let done = api::command::<MirrorDropLease>(client, &request).await?;
    output::print(format, &done, |_| {
        format!("{} takes records without a lease, until a mirror grants one\n", request.topic)
    })?;
    Ok(Exit::Ok)
}

/// Fails unless a mirror has this name.
async fn known(client: &Client, topic: &str) -> Result<(), Failure> {
    let mirrors = api::call::<MirrorList>(client, &NoArguments {}).await?;
    match mirrors.iter().any(|it| it.topic == topic) {
        true => Ok(()),
        false => Err(no_mirror(topic)),
    }
}

fn no_mirror(topic: &str) -> Failure {
    Failure::Invalid(format!("topic {topic} is no mirror; `meridian mirror list` shows which are"))
}

async fn status(
    client: &Client,
    format: Format,
    topic: Option<&str>,
    watch: bool,
) -> Result<Exit, Failure> {
    let mut before: Option<(Status, Instant)> = None;
    loop {
        let (mut status, now) = (Status::ask(client, topic).await?, clock::now());
        if let Some((before, then)) = &before {
            status.measure(before, now.duration_since(*then));
            if matches!(format, Format::Table) {
                output::text("\n")?;
            }
        }
        output::print(format, &status, Status::render)?;
        if !watch {
            return Ok(if status.is_well() { Exit::Ok } else { Exit::Degraded });
        }
        before = Some((status, now));
        clock::sleep(WATCH_EVERY).await;
    }
}

fn render(mirrors: &[MirrorReport]) -> String {
    let mut table =
        Table::new(&["TOPIC", "LINK", "SOURCE TOPIC", "STAGE", "PARTITIONS", "IGNORED CONFIGS"]);
    for mirror in mirrors {
        let ignored = mirror.ignored_configs.join(",");
        table.row([
            mirror.topic.clone(),
            mirror.link.clone(),
            mirror.source_topic.clone(),
            mirror.stage.to_string(),
            mirror.partitions.to_string(),
            if ignored.is_empty() { "-".to_owned() } else { ignored },
        ]);
    }
    table.render()
}
