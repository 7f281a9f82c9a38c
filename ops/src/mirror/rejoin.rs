//! `meridian mirror rejoin` and `failback`: after a failover, the old side becomes a mirror of the
//! promoted one, and its writer again.
//!
//! The old side says what comes next, so that nothing is kept here: whatever was done when a run was
//! interrupted, the next run finds done.

use std::time::{Duration, Instant};

use clap::Args;
use meridian_admin_api::OfTopic;
use meridian_admin_api::methods::{MirrorGiveWay, MirrorRejoin, MirrorReplace, MirrorTakeBack};
use meridian_admin_api::mirror::{self, Divergent, Progress, RejoinReport, WhatNext};
use serde::Serialize;

use super::export;
use super::report::Status;
use super::switchover::{self, Switchover};
use crate::client::{Client, api, clock};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table};

/// How often it is asked how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long nothing may change.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is to rejoin, and whom.
#[derive(Debug, Args)]
pub(super) struct Rejoin {
    /// The topic
    topic: String,
    /// The link to the cluster that was promoted
    #[arg(long)]
    link: String,
    #[command(flatten)]
    consent: Consent,
    /// Serve producers here again instead, as long as the topic was not deleted; what was exported
    /// stays
    #[arg(long, conflicts_with = "dry_run")]
    take_back: bool,
    /// Have all of the topic cross the link again, instead of taking what both sides have from what
    /// is here: it needs no room for that part twice
    #[arg(long)]
    over_link: bool,
}

/// What is to become the writer again.
#[derive(Debug, Args)]
pub(super) struct Failback {
    /// The topic
    topic: String,
    /// The link to the cluster that was promoted
    #[arg(long)]
    link: String,
    #[command(flatten)]
    consent: Consent,
    /// Have all of the topic cross the link again
    #[arg(long)]
    over_link: bool,
    /// Seconds within which the switchover is decided, or rolled back
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    within_s: u64,
}

/// What was done, or would be.
#[derive(Debug, Serialize)]
struct Outcome {
    topic: String,
    /// The promoted side.
    cluster: String,
    /// How far it was when it was last looked at.
    progress: Progress,
    diverged_topic: String,
    /// Records exported; before that, offsets that may hold some. `null` if this run found it done.
    records: Option<u64>,
    is_done: bool,
    partitions: Vec<Divergent>,
}

/// A topic that takes records here again.
#[derive(Debug, Serialize)]
struct TakenBack {
    topic: String,
    takes_records: bool,
}

async fn look(
    client: &Client,
    topic: &str,
    link: &str,
    exported: Option<&[i64]>,
) -> Result<RejoinReport, Failure> {
    let request = request(topic, link, exported, false);
    api::call::<MirrorRejoin>(client, &request).await
}

fn request(topic: &str, link: &str, exported: Option<&[i64]>, over_link: bool) -> mirror::Rejoin {
    let exported = exported.map(<[i64]>::to_vec);
    mirror::Rejoin { topic: topic.to_owned(), link: link.to_owned(), exported, over_link }
}

impl Outcome {
    fn of(look: RejoinReport, topic: &str, records: Option<u64>) -> Self {
        Self {
            topic: topic.to_owned(),
            is_done: look.next == WhatNext::Done,
            diverged_topic: export::topic_of(topic),
            cluster: look.cluster,
            progress: look.progress,
            partitions: look.partitions,
            records,
        }
    }
}

impl Rejoin {
    /// Runs the command.
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let Self { topic, link, consent, take_back, over_link } = self;
        if take_back {
            let request = OfTopic { topic: topic.clone() };
            api::command::<MirrorTakeBack>(client, &request).await?;
            output::print(format, &TakenBack { topic, takes_records: true }, |it| {
                format!("{} takes records here again\n", it.topic)
            })?;
            return Ok(Exit::Ok);
        }
        let outcome = match consent.dry_run {
            true => forecast(client, &topic, &link).await?,
            false => {
                agree(client, consent, &topic, &link).await?;
                rejoin(client, &topic, &link, over_link).await?
            }
        };
        if outcome.progress == Progress::Writing {
            let Outcome { topic, cluster, .. } = outcome;
            return Err(Failure::Invalid(format!(
                "{topic} takes records here, and cluster {cluster} mirrors it: nothing is to rejoin"
            )));
        }
        output::print(format, &outcome, Outcome::render)?;
        Ok(Exit::Ok)
    }
}

impl Failback {
    /// Runs the command.
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let Self { topic, link, consent, over_link, within_s } = self;
        if consent.dry_run {
            let outcome = forecast(client, &topic, &link).await?;
            output::print(format, &outcome, |outcome| {
                format!(
                    "{}then it would be switched over: no record is lost by that\n",
                    outcome.render()
                )
            })?;
            return Ok(Exit::Ok);
        }
        agree(client, consent, &topic, &link).await?;
        let outcome = rejoin(client, &topic, &link, over_link).await?;
        if outcome.progress == Progress::Writing {
            output::print(format, &outcome, |it| {
                format!(
                    "{} takes records here already; cluster {} mirrors it\n",
                    it.topic, it.cluster
                )
            })?;
            return Ok(Exit::Ok);
        }
        if matches!(format, Format::Table) {
            output::print(format, &outcome, Outcome::render)?;
        }
        let is_under_way = switchover::is_under_way(&switchover::here(client, &topic).await?);
        if !is_under_way {
            catch_up(client, &topic).await?;
        }
        switchover::run(client, format, Switchover::of(&topic, within_s, is_under_way)).await
    }
}

/// Asks whether the topic is to be deleted here; there is nothing to ask where it writes already.
async fn agree(client: &Client, consent: Consent, topic: &str, link: &str) -> Result<(), Failure> {
    if consent.is_given() {
        return Ok(());
    }
    let outcome = forecast(client, topic, link).await?;
    if outcome.is_done || outcome.progress == Progress::Writing {
        return Ok(());
    }
    let only_here = outcome.records.map_or_else(
        || "what only it has goes".to_owned(),
        |count| format!("{count} offsets that only it may have go"),
    );
    let (cluster, diverged) = (&outcome.cluster, &outcome.diverged_topic);
    consent.ask(&format!(
        "{topic} takes no records here from now on, {only_here} to {diverged}, and it is deleted and mirrored anew \
         from cluster {cluster}"
    ))?;
    Ok(())
}

/// What would be done.
async fn forecast(client: &Client, topic: &str, link: &str) -> Result<Outcome, Failure> {
    let look = look(client, topic, link, None).await?;
    let offsets = look.partitions.iter().map(|it| it.end_offset - it.from_offset);
    let offsets = offsets.map(|count| u64::try_from(count).unwrap_or(0)).sum();
    let records = (look.next != WhatNext::Done).then_some(offsets);
    Ok(Outcome::of(look, topic, records))
}

/// One run of the command.
struct Run<'r> {
    client: &'r Client,
    topic: &'r str,
    link: &'r str,
    over_link: bool,
    /// Up to where each partition was exported.
    exported: Option<Vec<i64>>,
    /// What was exported.
    records: Option<u64>,
    partitions: Vec<Divergent>,
    /// What came next when it was last looked at, and since when that is so.
    last: Option<WhatNext>,
    since: Instant,
}

/// Does what comes next until nothing does. What fails for a while is tried again.
async fn rejoin(
    client: &Client,
    topic: &str,
    link: &str,
    over_link: bool,
) -> Result<Outcome, Failure> {
    let (exported, records, partitions) = (None, None, Vec::new());
    let (last, since) = (None, clock::now());
    let mut run =
        Run { client, topic, link, over_link, exported, records, partitions, last, since };
    loop {
        match run.advance().await {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => {}
            Err(Failure::Client(error)) if error.is_retriable() && !run.is_stuck() => {
                clock::sleep(LOOK_EVERY).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}

impl Run<'_> {
    fn is_stuck(&self) -> bool {
        self.since.elapsed() >= PATIENCE
    }

    async fn advance(&mut self) -> Result<Option<Outcome>, Failure> {
        let &mut Self { client, topic, link, .. } = self;
        let look = look(client, topic, link, self.exported.as_deref()).await?;
        if self.last.as_ref() != Some(&look.next) {
            (self.last, self.since) = (Some(look.next.clone()), clock::now());
        } else if self.is_stuck() {
            return Err(Failure::Invalid(format!(
                "{topic} is still {}, and nothing has changed for {} s: `meridian link test {link}` \
                 shows whether the link works; run this again, it goes on",
                look.progress,
                PATIENCE.as_secs()
            )));
        } else {
            clock::sleep(LOOK_EVERY).await;
        }
        let request = request(topic, link, self.exported.as_deref(), self.over_link);
        match &look.next {
            WhatNext::GiveWay => {
                api::command::<MirrorGiveWay>(client, &request).await?;
            }
            WhatNext::Export => {
                self.records = Some(export::export(client, topic, &look.partitions).await?);
                self.exported = Some(look.partitions.iter().map(|it| it.end_offset).collect());
                self.partitions = look.partitions;
            }
            WhatNext::Replace => {
                api::command::<MirrorReplace>(client, &request).await?;
            }
            WhatNext::Wait => {}
            WhatNext::Done => {
                let partitions = std::mem::take(&mut self.partitions);
                let look = RejoinReport { partitions, ..look };
                return Ok(Some(Outcome::of(look, topic, self.records)));
            }
            WhatNext::Unknown(other) => {
                let message = format!("the node wants {other}: use the tool of its version");
                return Err(Failure::Invalid(message));
            }
        }
        Ok(None)
    }
}

/// Waits until the mirror has all but what came just now.
async fn catch_up(client: &Client, topic: &str) -> Result<(), Failure> {
    let mut well_at = clock::now();
    loop {
        let status = Status::ask(client, Some(topic)).await?;
        if status.is_up_to_date() {
            return Ok(());
        }
        if status.is_well() {
            well_at = clock::now();
        } else if well_at.elapsed() >= PATIENCE {
            return Err(Failure::Invalid(format!(
                "{topic} does not catch up: {}; see `meridian mirror status {topic}`, and run this \
                 again",
                status.obstacles().join("; ")
            )));
        }
        clock::sleep(LOOK_EVERY).await;
    }
}

impl Outcome {
    fn render(&self) -> String {
        let Self { topic, cluster, diverged_topic, records, .. } = self;
        let Some(records) = records else {
            return format!("{topic} is a mirror of cluster {cluster}: nothing is left to do\n");
        };
        let mut table = Table::new(&["PARTITION", "FROM", "END"]);
        for Divergent { partition, from_offset, end_offset, .. } in &self.partitions {
            table.row([partition.to_string(), from_offset.to_string(), end_offset.to_string()]);
        }
        let end = match self.is_done {
            true => format!(
                "{records} records that cluster {cluster} does not have are in {diverged_topic}; \
                 {topic} is its mirror now, and is filled anew\n"
            ),
            false => format!(
                "up to {records} records that cluster {cluster} does not have would go to \
                 {diverged_topic}; {topic} would be filled anew\n"
            ),
        };
        format!("{}\n{end}", table.render())
    }
}
