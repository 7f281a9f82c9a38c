//! `meridian mirror verify|divergence|repair`: is a mirror equal to its source, and where not.

use clap::Args;
use meridian_admin_api::OfTopic;
use meridian_admin_api::methods::{MirrorAudits, MirrorRecreate, MirrorVerify};
use meridian_admin_api::mirror::{self, AuditReport, Difference, DifferenceKind};
use serde::Serialize;

use crate::client::{Client, api};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table, or_none};

/// Compare a mirror with its source, batch by batch
///
/// A meridian source digests its own log; the records of a Kafka source are fetched over the link.
/// Records that only one side has compacted differ. Exit code 2 if they differ.
///
/// Example: meridian mirror verify orders
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// Its name
    topic: String,
    /// Only this partition
    #[arg(long, short)]
    partition: Option<u32>,
    /// Only from the batch on that holds this offset
    #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..))]
    from: Option<i64>,
    /// Only batches that begin before this offset
    #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..))]
    to: Option<i64>,
}

/// Show what comparing mirrors with their sources has found so far
///
/// Mirrors of meridian clusters are compared all the time. Exit code 2 if something differs.
///
/// Example: meridian mirror divergence orders
#[derive(Debug, Args)]
pub(super) struct Divergence {
    /// Only this mirror
    topic: Option<String>,
}

/// Say how to mend a mirror that differs from its source, or mend it
///
/// A record that was acknowledged is never written again, so no range is mended in place: --recreate
/// deletes the mirror and mirrors its source anew, at the same offsets. Refuses (exit code 3)
/// without it.
///
/// Example: meridian mirror repair orders --recreate --yes
#[derive(Debug, Args)]
pub(super) struct Repair {
    /// Its name
    topic: String,
    /// Delete the mirror and begin anew
    #[arg(long)]
    recreate: bool,
    #[command(flatten)]
    consent: Consent,
}

/// A mirror compared with its source.
#[derive(Debug, Serialize)]
struct Report {
    topic: String,
    partitions: Vec<PartitionReport>,
}

/// One partition, over the offsets that were compared.
#[derive(Debug, Serialize)]
struct PartitionReport {
    partition: u32,
    from: i64,
    to: i64,
    batches: u64,
    bytes: u64,
    /// Whether the source digested its records, so that they did not cross the link.
    is_digested: bool,
    differences: Vec<Difference>,
}

impl Report {
    fn is_of_nothing(&self) -> bool {
        self.partitions.iter().all(|partition| partition.batches == 0) && self.is_equal()
    }

    fn is_equal(&self) -> bool {
        self.partitions.iter().all(|partition| partition.differences.is_empty())
    }
}

impl Verify {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from >= to
        {
            let message = format!("nothing is from offset {from} on and before {to}");
            return Err(Failure::Invalid(message));
        }
        super::known(client, &self.topic).await?;
        let partitions = match self.partition {
            Some(partition) => vec![partition],
            None => {
                let count = client.topic(&self.topic).await?.partitions.len();
                (0..u32::try_from(count).unwrap_or(u32::MAX)).collect()
            }
        };
        let report = verify(client, &self.topic, &partitions, self.from, self.to).await?;
        output::print(format, &report, render)?;
        if self.from.is_some() && report.is_of_nothing() {
            let message = format!("{} has no records there: nothing was compared", self.topic);
            return Err(Failure::Invalid(message));
        }
        Ok(if report.is_equal() { Exit::Ok } else { Exit::Degraded })
    }
}

async fn verify(
    client: &Client,
    topic: &str,
    partitions: &[u32],
    from: Option<i64>,
    to: Option<i64>,
) -> Result<Report, Failure> {
    let mut reports = Vec::new();
    for &partition in partitions {
        let mut whole: Option<PartitionReport> = None;
        let (mut next, mut end) = (from, to);
        loop {
            let request =
                mirror::Verify { topic: topic.to_owned(), partition, from: next, to: end };
            let index = i32::try_from(partition).unwrap_or(i32::MAX);
            let part = api::call_leader::<MirrorVerify>(client, topic, index, &request).await?;
            let whole = whole.get_or_insert_with(|| PartitionReport {
                partition,
                from: part.from,
                to: part.to,
                batches: 0,
                bytes: 0,
                is_digested: part.is_digested,
                differences: Vec::new(),
            });
            whole.batches += part.batches;
            whole.bytes += part.bytes;
            whole.differences.extend(part.differences);
            (next, end) = (Some(part.next), Some(whole.to));
            if part.next >= whole.to {
                break;
            }
        }
        reports.extend(whole);
    }
    Ok(Report { topic: topic.to_owned(), partitions: reports })
}

fn difference(it: &Difference) -> String {
    let what = match &it.kind {
        DifferenceKind::OtherBytes => "other bytes than at the source",
        DifferenceKind::OnlyHere => "a batch that the source has not",
        DifferenceKind::OnlyAtSource => "no batch where the source has one",
        DifferenceKind::Unknown(kind) => kind,
    };
    format!("offsets {} to {}: {what}", it.from, it.to)
}

fn render(report: &Report) -> String {
    let header = ["PARTITION", "FROM", "TO", "BATCHES", "BYTES", "COMPARED BY", "DIFFERENCES"];
    let mut table = Table::new(&header);
    let mut notes = String::new();
    for it in &report.partitions {
        table.row([
            it.partition.to_string(),
            it.from.to_string(),
            it.to.to_string(),
            it.batches.to_string(),
            output::bytes(it.bytes),
            if it.is_digested { "digest" } else { "fetching" }.to_owned(),
            it.differences.len().to_string(),
        ]);
        for found in &it.differences {
            notes.push_str(&format!("{}-{}, {}\n", report.topic, it.partition, difference(found)));
        }
    }
    format!("{}{notes}", table.render())
}

impl Divergence {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let mut audits = api::call_all::<MirrorAudits, _>(client).await?;
        if let Some(topic) = &self.topic {
            super::known(client, topic).await?;
        }
        audits.retain(|it| self.topic.as_ref().is_none_or(|topic| it.topic == *topic));
        audits.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        let is_equal = audits.iter().all(|it| it.differences.is_empty());
        output::print(format, &audits, |audits| render_audits(audits))?;
        Ok(if is_equal { Exit::Ok } else { Exit::Degraded })
    }
}

fn render_audits(audits: &[AuditReport]) -> String {
    let header = ["TOPIC", "PARTITION", "EQUAL TO", "PASSES", "COMPARED", "DIFFERENCES"];
    let mut table = Table::new(&header);
    let mut notes = String::new();
    for it in audits {
        table.row([
            it.topic.clone(),
            it.partition.to_string(),
            or_none(it.verified_offset),
            it.passes_count.to_string(),
            output::bytes(it.compared_bytes),
            it.differences.len().to_string(),
        ]);
        let place = format!("{}-{}", it.topic, it.partition);
        for found in &it.differences {
            notes.push_str(&format!("{place}, {}\n", difference(found)));
        }
        if let Some(failure) = &it.failure {
            notes.push_str(&format!("{place} is not compared now: {failure}\n"));
        }
    }
    format!("{}{notes}", table.render())
}

impl Repair {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let Self { topic, recreate, consent } = self;
        super::known(client, &topic).await?;
        if !recreate {
            let count = client.topic(&topic).await?.partitions.len();
            let partitions: Vec<u32> = (0..u32::try_from(count).unwrap_or(u32::MAX)).collect();
            let report = verify(client, &topic, &partitions, None, None).await?;
            output::print(format, &report, render)?;
            return match report.is_equal() {
                true => Ok(Exit::Ok),
                false => Err(Failure::Refused(format!(
                    "{topic} differs from its source and no record is ever written again: \
                     `meridian mirror repair {topic} --recreate` deletes the mirror and mirrors \
                     its source anew; `meridian mirror promote {topic}` keeps what is here"
                ))),
            };
        }
        let loss = format!(
            "mirror {topic} is deleted here and mirrored anew: what the source has no more is lost"
        );
        if !consent.ask_or_show(format, &loss)? {
            return Ok(Exit::Ok);
        }
        let mirror = api::command::<MirrorRecreate>(client, &OfTopic { topic }).await?;
        output::print(format, &[mirror], |mirrors| super::render(mirrors))?;
        Ok(Exit::Ok)
    }
}

#[cfg(test)]
mod tests {
    use meridian_admin_api::Besides;

    use super::*;

    #[test]
    fn differences_are_named_below_the_table() {
        let besides = Besides::new();
        let found = Difference { from: 5, to: 9, kind: DifferenceKind::OtherBytes, besides };
        let partition = PartitionReport {
            partition: 1,
            from: 0,
            to: 20,
            batches: 4,
            bytes: 100,
            is_digested: true,
            differences: vec![found.clone()],
        };
        let report = Report { topic: "t".to_owned(), partitions: vec![partition] };
        assert!(!report.is_equal());
        let note = "t-1, offsets 5 to 9: other bytes than at the source\n";
        assert!(render(&report).ends_with(note));
        let audit = AuditReport {
            topic: "t".to_owned(),
            partition: 1,
            verified_offset: None,
            passes_count: 0,
            compared_bytes: 0,
            differences: vec![found],
            failure: None,
            besides: Besides::new(),
        };
        assert!(render_audits(&[audit]).ends_with(note));
    }
}
