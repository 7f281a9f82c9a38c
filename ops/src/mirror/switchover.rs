//! `meridian mirror switchover`: the mirror becomes the writer and its source the mirror.

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::report::Status;
use crate::client::{Client, admin, clock};
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

/// How a topic stands at one of its clusters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Standing {
    pub(super) cluster: String,
    pub(super) topic_id: String,
    pub(super) takes_records: bool,
    pub(super) link_epoch: u64,
    /// The cluster without whose lease it takes no records.
    #[serde(default)]
    pub(super) needs_lease_of: Option<String>,
    act: String,
    step: Option<String>,
    reason: Option<String>,
    last: Option<Last>,
    pub(super) mirrors: Option<Mirrors>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Last {
    attempt: u64,
    rolled_back: Option<String>,
}

/// What a topic mirrors, or mirrored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Mirrors {
    pub(super) cluster: String,
    pub(super) topic_id: String,
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

impl Standing {
    async fn ask(client: &Client, method: &str, topic: &str) -> Result<Self, Failure> {
        let answer = admin::call(client, method, &json!({"topic": topic})).await?;
        serde_json::from_value(answer).map_err(|error| {
            Failure::Invalid(format!("the answer to {method} is not of this version: {error}"))
        })
    }

    /// How the topic stands at this cluster.
    pub(super) async fn here(client: &Client, topic: &str) -> Result<Self, Failure> {
        Self::ask(client, "mirror.standing", topic).await
    }

    /// How it stands at its source, as a node of this cluster is told.
    pub(super) async fn at_source(client: &Client, topic: &str) -> Result<Self, Failure> {
        Self::ask(client, "mirror.source", topic).await
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.act == "taking-over"
    }
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
    let arguments = json!({"topic": topic, "within_ms": within_s.saturating_mul(1000)});
    if rollback {
        admin::command(client, "mirror.rollback", &arguments).await?;
    } else if !resume {
        admin::command(client, "mirror.switchover", &arguments).await?;
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
    let here = Standing::here(client, topic).await?;
    let mut obstacles = status.obstacles();
    let from_cluster = match Standing::at_source(client, topic).await {
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
        match Standing::here(client, topic).await {
            Ok(standing) if !standing.is_under_way() => {
                return end(format, topic, standing, is_wanted_back);
            }
            Err(failure) if start.elapsed() >= patience => return Err(failure),
            // A node may be down, or a coordinator be followed by another.
            Err(_) => {}
            Ok(standing) if start.elapsed() >= patience => {
                let step = standing.step.unwrap_or_default();
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
    standing: Standing,
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
