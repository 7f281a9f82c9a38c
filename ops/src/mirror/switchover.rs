//! `meridian mirror switchover`: the mirror becomes the writer and its source the mirror.

use std::time::Duration;

use clap::Args;
use meridian_admin_api::OfTopic;
use meridian_admin_api::methods::{MirrorRollback, MirrorSource, MirrorStanding, MirrorSwitchover};
use meridian_admin_api::mirror::{self, Act, StandingReport};
use serde::Serialize;

use super::report::Status;
use crate::client::{Client, api, clock};
use crate::failure::{Exit, Failure};
use crate::output::{self, Format};

/// How often it is asked how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long nobody may know how it stands, beyond the time that the switchover itself has.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to switch over, and how.
#[derive(Debug, Args)]
pub(super) struct Switchover {
    /// The mirror's name here
    topic: String,
    /// Only say what would happen, and what stands in the way
    #[arg(long)]
    dry_run: bool,
    /// Seconds within which it is decided, or rolled back
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    within_s: u64,
    /// Wait for the end of one that was started before, by whomever
    #[arg(long, conflicts_with_all = ["dry_run", "rollback"])]
    resume: bool,
    /// Roll one back that is under way, unless it is decided
    #[arg(long, conflicts_with = "dry_run")]
    rollback: bool,
}

impl Switchover {
    /// One that is started with the usual options, or that is under way.
    pub(super) fn of(topic: &str, within_s: u64, resume: bool) -> Self {
        Self { topic: topic.to_owned(), dry_run: false, within_s, resume, rollback: false }
    }
}

/// What a switchover would do.
#[derive(Debug, Serialize)]
struct Plan {
    topic: String,
    from_cluster: String,
    to_cluster: String,
    missing_records: u64,
    lag_ms: u64,
    /// What stands in the way; empty if nothing does.
    obstacles: Vec<String>,
}

/// How it ended.
#[derive(Debug, Serialize)]
struct Outcome {
    topic: String,
    /// `switched` or `rolled-back`.
    outcome: &'static str,
    writer_cluster: String,
    reason: Option<String>,
}

/// How the topic stands at this cluster.
pub(super) async fn here(client: &Client, topic: &str) -> Result<StandingReport, Failure> {
    api::call::<MirrorStanding>(client, &OfTopic { topic: topic.to_owned() }).await
}

/// How it stands at its source, as a node of this cluster is told.
pub(super) async fn at_source(client: &Client, topic: &str) -> Result<StandingReport, Failure> {
    api::call::<MirrorSource>(client, &OfTopic { topic: topic.to_owned() }).await
}

pub(super) fn is_under_way(standing: &StandingReport) -> bool {
    standing.act == Act::TakingOver
}

/// Runs the command.
pub(super) async fn run(
    client: &Client,
    format: Format,
    command: Switchover,
) -> Result<Exit, Failure> {
    let Switchover { topic, dry_run, within_s, resume, rollback } = command;
    if dry_run {
        return plan(client, format, &topic).await;
    }
    if rollback {
        api::command::<MirrorRollback>(client, &OfTopic { topic: topic.clone() }).await?;
    } else if !resume {
        let within_ms = Some(within_s.saturating_mul(1000));
        let request = mirror::Switchover { topic: topic.clone(), within_ms };
        api::command::<MirrorSwitchover>(client, &request).await?;
    }
    wait(client, format, &topic, Duration::from_secs(within_s) + PATIENCE, rollback).await
}

async fn plan(client: &Client, format: Format, topic: &str) -> Result<Exit, Failure> {
    let status = Status::ask(client, Some(topic)).await?;
    if status.is_promoted() {
        return Err(Failure::Invalid(format!(
            "{topic} is promoted: it takes records here, and nothing is to be switched over"
        )));
    }
    let here = here(client, topic).await?;
    let mut obstacles = status.obstacles();
    let from_cluster = match at_source(client, topic).await {
        Ok(there) if there.takes_records => there.cluster,
        Ok(there) => {
            obstacles.push("the source itself takes no records now".to_owned());
            there.cluster
        }
        Err(failure) => {
            obstacles.push(failure.to_string());
            here.mirrors.as_ref().map(|it| it.cluster.clone()).unwrap_or_default()
        }
    };
    let (missing_records, lag_ms) = status.lag();
    let plan = Plan {
        topic: topic.to_owned(),
        from_cluster,
        to_cluster: here.cluster,
        missing_records,
        lag_ms,
        obstacles,
    };
    output::print(format, &plan, Plan::render)?;
    Ok(if plan.obstacles.is_empty() { Exit::Ok } else { Exit::Degraded })
}

impl Plan {
    fn render(&self) -> String {
        let Self { topic, from_cluster, to_cluster, missing_records, lag_ms, obstacles } = self;
        let mut text = format!(
            "{topic}: cluster {from_cluster} would refuse producers until {missing_records} missing \
             records are here ({lag_ms} ms behind); then groups are carried over, cluster \
             {to_cluster} becomes the writer, and {from_cluster} its mirror. Nothing is lost.\n"
        );
        for obstacle in obstacles {
            text.push_str(&format!("in the way: {obstacle}\n"));
        }
        text
    }
}

/// Waits until nothing is under way, and says how it ended.
async fn wait(
    client: &Client,
    format: Format,
    topic: &str,
    patience: Duration,
    is_wanted_back: bool,
) -> Result<Exit, Failure> {
    let start = clock::now();
    loop {
        match here(client, topic).await {
            Ok(standing) if !is_under_way(&standing) => {
                return end(format, topic, standing, is_wanted_back);
            }
            Err(failure) if start.elapsed() >= patience => return Err(failure),
            // A node may be down, or a coordinator be followed by another.
            Err(_) => {}
            Ok(standing) if start.elapsed() >= patience => {
                let step = standing.step.map_or_else(String::new, |step| step.to_string());
                return Err(Failure::Invalid(format!(
                    "{topic} is still {step}: the other side does not answer; `meridian mirror \
                     switchover {topic} --resume` goes on waiting, --rollback gives up if it is \
                     not decided"
                )));
            }
            Ok(_) => {}
        }
        clock::sleep(LOOK_EVERY).await;
    }
}

fn end(
    format: Format,
    topic: &str,
    standing: StandingReport,
    is_wanted_back: bool,
) -> Result<Exit, Failure> {
    let Some(last) = standing.last else {
        return Err(Failure::Invalid(format!("{topic} was never switched over to this cluster")));
    };
    let source = standing.mirrors.map(|it| it.cluster).unwrap_or_default();
    let (outcome, writer_cluster) = match last.rolled_back {
        None => ("switched", standing.cluster),
        Some(_) => ("rolled-back", source),
    };
    let outcome =
        Outcome { topic: topic.to_owned(), outcome, writer_cluster, reason: last.rolled_back };
    output::print(format, &outcome, |outcome| {
        let Outcome { topic, outcome, writer_cluster, reason } = outcome;
        let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        format!("{topic}: {outcome}{reason}; cluster {writer_cluster} takes its records\n")
    })?;
    match outcome.reason {
        Some(reason) if !is_wanted_back => {
            Err(Failure::Refused(format!("{topic} was rolled back, all is as it was: {reason}")))
        }
        _ => Ok(Exit::Ok),
    }
}
