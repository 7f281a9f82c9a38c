//! `meridian group`: consumer groups, how far they are, and where they go on.

mod describe;
mod reset;

use clap::{Args, Subcommand};
use meridian_protocol::ErrorCode;
use serde::Serialize;

use crate::client::{Client, ClientError, groups};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table};
use crate::target::Target;

/// Inspect consumer groups, move or forget their positions, delete them
#[derive(Debug, Args)]
pub(crate) struct Group {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    Describe(describe::Describe),
    Delete(Delete),
    ResetOffsets(reset::ResetOffsets),
    DeleteOffsets(DeleteOffsets),
}

/// The states that groups of either protocol can be in.
const STATES: [&str; 7] = [
    "Empty",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
];

/// List the groups
///
/// Example: meridian group list --state Stable --type consumer
#[derive(Debug, Args)]
struct List {
    /// Only groups in this state; may be repeated
    #[arg(long, ignore_case = true, value_parser = STATES)]
    state: Vec<String>,
    /// Only groups of this protocol: consumer is that of KIP-848, share that of KIP-932; may be repeated
    #[arg(long = "type", ignore_case = true, value_parser = ["classic", "consumer", "share"])]
    kind: Vec<String>,
}

/// Delete groups that have no members, and their positions
///
/// Refuses (exit code 3) if one of them has members, and without a terminal unless --yes is given.
///
/// Example: meridian group delete reports audits --yes
#[derive(Debug, Args)]
struct Delete {
    /// Their ids
    #[arg(required = true)]
    group: Vec<String>,
    #[command(flatten)]
    consent: Consent,
}

/// Forget a group's positions in topics that none of its members reads
///
/// Example: meridian group delete-offsets reports --topic orders:0,1 --yes
#[derive(Debug, Args)]
struct DeleteOffsets {
    /// Its id
    group: String,
    /// A topic, or some of its partitions; may be repeated
    #[arg(long, short, required = true, value_name = "TOPIC[:PARTITION,...]", value_parser = parse_topic)]
    topic: Vec<TopicChoice>,
    #[command(flatten)]
    consent: Consent,
}

/// A topic, or some of its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicChoice {
    name: String,
    /// All if empty.
    partitions: Vec<i32>,
}

/// A topic, or some of its partitions: `TOPIC[:PARTITION,...]`.
pub(crate) fn parse_topic(text: &str) -> Result<TopicChoice, String> {
    let (name, list) = text.split_once(':').unwrap_or((text, ""));
    if name.is_empty() {
        return Err("name a topic, as TOPIC or TOPIC:0,1,2".to_owned());
    }
    let numbers = list.split(',').filter(|number| !number.is_empty());
    let partitions: Result<Vec<i32>, _> = numbers.map(str::parse).collect();
    let partitions = partitions.map_err(|_| "write it as TOPIC or TOPIC:0,1,2".to_owned())?;
    Ok(TopicChoice { name: name.to_owned(), partitions })
}

impl TopicChoice {
    /// The partitions that are meant.
    pub(crate) async fn resolve(
        &self,
        client: &Client,
    ) -> Result<Vec<groups::TopicPartition>, Failure> {
        let count = client.topic(&self.name).await?.partitions.len();
        let all: Vec<i32> = (0..).take(count).collect();
        let wanted = if self.partitions.is_empty() { &all } else { &self.partitions };
        if let Some(&partition) = wanted.iter().find(|index| !all.contains(index)) {
            let topic = self.name.clone();
            return Err(ClientError::UnknownPartition { topic, partition, count }.into());
        }
        Ok(wanted.iter().map(|index| (self.name.clone(), *index)).collect())
    }
}

#[derive(Debug, Serialize)]
struct Summary {
    group: String,
    #[serde(rename = "type")]
    kind: String,
    protocol_type: String,
    state: String,
}

/// Runs the command.
pub(crate) async fn run(group: Group) -> Result<Exit, Failure> {
    let Group { target, command } = group;
    let client = target.connect().await?;
    match command {
        Command::List(list) => list.run(&client, target.output).await?,
        Command::Describe(describe) => describe.run(&client, target.output).await?,
        Command::Delete(delete) => delete.run(&client, target.output).await?,
        Command::ResetOffsets(reset) => reset.run(&client, target.output).await?,
        Command::DeleteOffsets(delete) => delete.run(&client, target.output).await?,
    }
    Ok(Exit::Ok)
}

impl List {
    async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let listed = groups::list(client, &self.state, &self.kind).await?;
        let summary = |group: meridian_protocol::messages::ListedGroup| Summary {
            group: group.group_id.to_string(),
            kind: group.group_type.to_string(),
            protocol_type: group.protocol_type.to_string(),
            state: group.group_state.to_string(),
        };
        let summaries: Vec<Summary> = listed.into_iter().map(summary).collect();
        output::print(format, &summaries, |summaries| {
            let mut table = Table::new(&["GROUP", "TYPE", "PROTOCOL TYPE", "STATE"]);
            for it in summaries {
                table.row([
                    it.group.clone(),
                    it.kind.clone(),
                    it.protocol_type.clone(),
                    it.state.clone(),
                ]);
            }
            table.render()
        })
    }
}

impl Delete {
    async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        for group in &self.group {
            refuse_if_active(client, group).await?;
        }
        let mut losses = Vec::new();
        for group in &self.group {
            let count = match groups::positions(client, group).await {
                // A share group has none.
                Err(ClientError::Server { code: ErrorCode::GroupIdNotFound, .. }) => 0,
                positions => positions?.len(),
            };
            losses
                .push(format!("group {group} is deleted with its positions in {count} partitions"));
        }
        if !self.consent.ask_or_show(format, &losses.join("; "))? {
            return Ok(());
        }
        for group in &self.group {
            groups::delete(client, group).await?;
        }
        output::print(format, &self.group, |names| {
            names.iter().map(|name| format!("deleted {name}\n")).collect()
        })
    }
}

/// What is to be done would take the work away under members that are at it. A group that is not
/// there has none: positions may be set for one before its first member comes.
async fn refuse_if_active(client: &Client, group: &str) -> Result<(), Failure> {
    let described = match groups::describe(client, group).await {
        Err(ClientError::Server { code: ErrorCode::GroupIdNotFound, .. }) => return Ok(()),
        described => described?,
    };
    if described.members.is_empty() {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "group {group} is {} with {} members; stop them first (`meridian group describe {group}` \
         shows where they run)",
        described.state,
        described.members.len()
    )))
}

impl DeleteOffsets {
    async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let mut partitions = Vec::new();
        for topic in &self.topic {
            partitions.extend(topic.resolve(client).await?);
        }
        let (group, count) = (&self.group, partitions.len());
        let loss = format!("group {group} forgets its positions in {count} partitions");
        if !self.consent.ask_or_show(format, &loss)? {
            return Ok(());
        }
        groups::delete_positions(client, &self.group, &partitions).await?;
        output::print(format, &partitions, |partitions| {
            let line =
                |(topic, index): &groups::TopicPartition| format!("forgot {topic}-{index}\n");
            partitions.iter().map(line).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_may_have_partitions_behind_it() {
        let choice = |name: &str, partitions: &[i32]| TopicChoice {
            name: name.to_owned(),
            partitions: partitions.to_vec(),
        };
        assert_eq!(parse_topic("t"), Ok(choice("t", &[])));
        assert_eq!(parse_topic("t:0,2"), Ok(choice("t", &[0, 2])));
        for bad in ["t:x", "", ":0", "t:0.5", "t:99999999999"] {
            assert!(parse_topic(bad).is_err(), "{bad:?}");
        }
    }
}
