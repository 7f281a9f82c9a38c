//! `meridian mirror failover`: the source is gone, the mirror becomes the writer with what it has.

use std::collections::BTreeMap;

use clap::Args;
use meridian_admin_api::link::Reached;
use meridian_admin_api::methods::{LinkList, LinkTest, MirrorPromote};
use meridian_admin_api::mirror::Promote;
use meridian_admin_api::{NoArguments, OfLink};
use serde::Serialize;

use super::report::{Forecast, Status};
use crate::client::{Client, api, clock, groups};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table};

/// What to fail over, and how.
#[derive(Debug, Args)]
pub(super) struct Failover {
    /// The mirror's name here
    topic: String,
    #[command(flatten)]
    consent: Consent,
    /// Even if the source answers, or may take records without a lease: both sides diverge then
    #[arg(long)]
    force: bool,
}

/// What a failover means for those who use the topic.
#[derive(Debug, Serialize)]
struct Consequences {
    topic: String,
    /// Whether a broker of the source cluster answers.
    is_source_reachable: bool,
    /// What would keep it from being switched over instead.
    obstacles: Vec<String>,
    lost: Forecast,
    groups: Vec<GroupForecast>,
    /// How long the promotion waits until the source's lease has ended, if its link has one.
    lease_wait_ms: Option<u64>,
    /// Whether it takes --force, because the link has `lease.ms` and its source never heard of it.
    needs_force: bool,
    is_promoted: bool,
}

/// What a group would see again.
#[derive(Debug, Serialize)]
struct GroupForecast {
    group: String,
    /// Records between its positions here and the end of the mirror: those that its members had
    /// consumed at the source are seen once more, and nobody here knows how many that is.
    duplicates_max: u64,
}

/// Runs the command.
pub(super) async fn run(
    client: &Client,
    format: Format,
    command: Failover,
) -> Result<Exit, Failure> {
    let Failover { topic, consent, force } = command;
    let dry_run = consent.dry_run;
    let begun = clock::now();
    let mut status = Status::ask(client, Some(&topic)).await?;
    if status.is_promoted() {
        return Err(Failure::Invalid(format!(
            "{topic} is promoted: it takes records here, and nothing is to fail over"
        )));
    }
    let is_source_reachable = is_reachable(client, status.link()).await?;
    if !is_source_reachable {
        // What it had sent before it was gone was on its way meanwhile.
        let waited = begun.elapsed();
        status = Status::ask(client, Some(&topic)).await?.asked_before(waited);
    }
    let mut consequences = Consequences {
        obstacles: status.obstacles(),
        lost: Forecast::of(&status, is_source_reachable),
        groups: duplicates(client, &topic, &status.ends()).await?,
        lease_wait_ms: lease_wait_ms(client, status.link()).await?,
        needs_force: !status.is_covered(),
        topic,
        is_source_reachable,
        is_promoted: false,
    };
    if !dry_run && (!is_source_reachable || force) {
        consent.ask(&consequences.loss())?;
        let request = Promote { topic: consequences.topic.clone(), is_forced: force };
        api::command::<MirrorPromote>(client, &request).await?;
        consequences.is_promoted = true;
    }
    output::print(format, &consequences, Consequences::render)?;
    match dry_run || consequences.is_promoted {
        true => Ok(Exit::Ok),
        false => Err(consequences.refusal()),
    }
}

async fn lease_wait_ms(client: &Client, link: &str) -> Result<Option<u64>, Failure> {
    let links = api::call::<LinkList>(client, &NoArguments {}).await?;
    Ok(links.into_iter().find(|it| it.link == link).and_then(|it| it.promotion_waits_ms))
}

/// Whether any broker of a link's source answers, as the cluster that the link is to.
async fn is_reachable(client: &Client, link: &str) -> Result<bool, Failure> {
    let request = OfLink { link: link.to_owned() };
    let Ok(report) = api::call::<LinkTest>(client, &request).await else {
        return Ok(false);
    };
    let answers = report.brokers.iter().any(|broker| broker.result == Reached::Ok);
    Ok(answers && report.is_expected_cluster)
}

/// What each group that has positions in the topic here may see again.
async fn duplicates(
    client: &Client,
    topic: &str,
    ends: &BTreeMap<u32, i64>,
) -> Result<Vec<GroupForecast>, Failure> {
    let mut forecasts = Vec::new();
    for group in groups::list(client, &[], &[]).await? {
        let group = group.group_id.to_string();
        let positions = groups::positions(client, &group).await?;
        let of_topic = positions.iter().filter(|((name, _), _)| name == topic);
        let between = of_topic.clone().map(|((_, partition), position)| {
            let end = u32::try_from(*partition).ok().and_then(|index| ends.get(&index));
            let count = end.map_or(0, |end| end.saturating_sub(position.offset));
            u64::try_from(count).unwrap_or(0)
        });
        let duplicates_max = between.sum();
        if of_topic.count() > 0 {
            forecasts.push(GroupForecast { group, duplicates_max });
        }
    }
    Ok(forecasts)
}

impl Consequences {
    /// What a failover does and loses, in one line.
    fn loss(&self) -> String {
        let lost = self.render().trim().replace('\n', "; ");
        format!("{} takes records here and follows its source no more; {lost}", self.topic)
    }

    /// Why it is not promoted although nothing but that was asked for.
    fn refusal(&self) -> Failure {
        let Self { topic, obstacles, .. } = self;
        Failure::Refused(match obstacles.first() {
            None => format!(
                "{topic} is not promoted: its source answers. `meridian mirror switchover {topic}` loses \
                 nothing; --force promotes all the same"
            ),
            Some(obstacle) => format!(
                "{topic} is not promoted: a cluster answers where its source is, though a switchover is not \
                 possible now ({obstacle}). See `meridian mirror status {topic}`; --force promotes all the \
                 same"
            ),
        })
    }

    fn render(&self) -> String {
        let mut text = self.lost.render();
        match (self.is_source_reachable, self.obstacles.first()) {
            (true, None) => text.push_str("the source answers: a switchover would lose nothing\n"),
            (true, Some(obstacle)) => text.push_str(&format!(
                "the source's cluster answers, but a switchover is not possible now: {obstacle}\n"
            )),
            (false, _) => {}
        }
        if self.needs_force {
            text.push_str(
                "refused without --force: the source does not write under a lease of this cluster, and may \
                 take records afterwards\n",
            );
        } else if let Some(ms) = self.lease_wait_ms {
            text.push_str(&format!(
                "the promotion waits {ms} ms: then the source, if it lives, takes no more records for want \
                 of a lease\n"
            ));
        }
        if !self.groups.is_empty() {
            let mut table = Table::new(&["GROUP", "SEEN AGAIN AT MOST"]);
            for GroupForecast { group, duplicates_max } in &self.groups {
                table.row([group.clone(), duplicates_max.to_string()]);
            }
            text.push_str(&table.render());
        }
        if self.is_promoted {
            text.push_str(&format!("{} is promoted: it takes records now\n", self.topic));
        }
        text
    }
}
