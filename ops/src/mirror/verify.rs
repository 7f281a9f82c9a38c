//! `meridian mirror verify|divergence|repair`: is a mirror equal to its source, and where not.

use bytes::Bytes;
use clap::Args;
use meridian_protocol::messages::MeridianAdminRequest;
use serde::Serialize;
use serde_json::{Value, json};

use crate::client::clock::Backoff;
use crate::client::{Client, ClientError, Lane, REQUEST_TIMEOUT, admin};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::link::cell;
use crate::output::{self, Format, Table};

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
    differences: Vec<Value>,
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
            let arguments = json!({
                "topic": topic, "partition": partition, "from": next, "to": end,
            });
            let part = ask_leader(client, topic, partition, "mirror.verify", &arguments).await?;
            let number = |name: &str| part[name].as_i64().unwrap_or(0);
            let whole = whole.get_or_insert_with(|| PartitionReport {
                partition,
                from: number("from"),
                to: number("to"),
                batches: 0,
                bytes: 0,
                is_digested: part["is_digested"] == true,
                differences: Vec::new(),
            });
            whole.batches += part["batches"].as_u64().unwrap_or(0);
            whole.bytes += part["bytes"].as_u64().unwrap_or(0);
            whole.differences.extend(part["differences"].as_array().into_iter().flatten().cloned());
            (next, end) = (Some(number("next")), Some(whole.to));
            if number("next") >= whole.to {
                break;
            }
        }
        reports.extend(whole);
    }
    Ok(Report { topic: topic.to_owned(), partitions: reports })
}

/// Calls a method on the node that leads a partition; finds it again while it moves.
async fn ask_leader(
    client: &Client,
    topic: &str,
    partition: u32,
    method: &str,
    arguments: &Value,
) -> Result<Value, Failure> {
    let mut backoff = Backoff::until(REQUEST_TIMEOUT);
    let index = i32::try_from(partition).unwrap_or(i32::MAX);
    loop {
        let leader = client.leader(topic, index).await?;
        let connection = client.node(leader, Lane::CONTROL).await?;
        let body = Bytes::from(arguments.to_string());
        let request = MeridianAdminRequest { method: method.into(), body };
        let result = connection.call(&request, REQUEST_TIMEOUT).await.and_then(|response| {
            let what = || format!("{topic}-{partition}");
            ClientError::check(what, response.error_code, response.error_message.as_deref())?;
            Ok(response.body)
        });
        match result {
            Ok(body) => {
                return serde_json::from_slice(&body).map_err(|error| {
                    let text = format!("the answer to {method} is not of this version: {error}");
                    Failure::Invalid(text)
                });
            }
            Err(error) if error.is_retriable() && backoff.pause().await => {
                client.leader_moved(topic).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn difference(it: &Value) -> String {
    let what = match it["kind"].as_str() {
        Some("other-bytes") => "other bytes than at the source",
        Some("only-here") => "a batch that the source has not",
        Some("only-at-source") => "no batch where the source has one",
        _ => "different",
    };
    format!("offsets {} to {}: {what}", cell(&it["from"]), cell(&it["to"]))
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
        let mut audits = super::from_all_nodes(client, "mirror.audits").await?;
        if let Some(topic) = &self.topic {
            super::known(client, topic).await?;
        }
        audits.retain(|it| self.topic.as_ref().is_none_or(|topic| it["topic"] == *topic));
        audits.sort_by_key(|it| (cell(&it["topic"]), it["partition"].as_u64()));
        let has = |it: &Value| it["differences"].as_array().is_some_and(|found| !found.is_empty());
        let is_equal = !audits.iter().any(has);
        output::print(format, &Value::from(audits), render_audits)?;
        Ok(if is_equal { Exit::Ok } else { Exit::Degraded })
    }
}

fn render_audits(audits: &Value) -> String {
    let header = ["TOPIC", "PARTITION", "EQUAL TO", "PASSES", "COMPARED", "DIFFERENCES"];
    let mut table = Table::new(&header);
    let mut notes = String::new();
    for it in audits.as_array().into_iter().flatten() {
        let differences = it["differences"].as_array().map(Vec::as_slice).unwrap_or_default();
        table.row([
            cell(&it["topic"]),
            cell(&it["partition"]),
            cell(&it["verified_offset"]),
            cell(&it["passes_count"]),
            output::bytes(it["compared_bytes"].as_u64().unwrap_or(0)),
            differences.len().to_string(),
        ]);
        let place = format!("{}-{}", cell(&it["topic"]), cell(&it["partition"]));
        for found in differences {
            notes.push_str(&format!("{place}, {}\n", difference(found)));
        }
        if let Some(failure) = it["failure"].as_str() {
            notes.push_str(&format!("{place} is not compared now: {failure}\n"));
        }
    }
    format!("{}{notes}", table.render())
}

impl Repair {
    pub(super) async fn run(
        self,
        client: &Client,
        format: Format,
        render_mirrors: fn(&Value) -> String,
    ) -> Result<Exit, Failure> {
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
        let answer = admin::command(client, "mirror.recreate", &json!({"topic": topic})).await?;
        output::print(format, &json!([answer]), render_mirrors)?;
        Ok(Exit::Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_below_the_table() {
        let found = json!({"from": 5, "to": 9, "kind": "other-bytes"});
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
        let audits = json!([{"topic": "t", "partition": 1, "differences": [found]}]);
        assert!(render_audits(&audits).ends_with(note));
    }
}
