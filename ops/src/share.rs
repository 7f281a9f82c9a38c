//! `meridian share`: share groups, how far they are, and where they go on.

use std::collections::BTreeMap;

use clap::{ArgGroup, Args, Subcommand};
use meridian_protocol::messages::{DescribedShareGroupMember, ListOffsetsPartition};
use serde::Serialize;

use crate::client::share_groups::{self, Share as Shared};
use crate::client::{Client, admin, groups};
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::group::{TopicChoice, parse_topic};
use crate::output::{self, Format, Table};
use crate::target::Target;

/// Inspect share groups, and set where they go on
#[derive(Debug, Args)]
pub(crate) struct Share {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    Describe(Describe),
    Seek(Seek),
    DeleteOffsets(DeleteOffsets),
}

/// List the share groups
///
/// Example: meridian share list
#[derive(Debug, Args)]
struct List {
    /// Only groups in this state; may be repeated
    #[arg(long, ignore_case = true, value_parser = ["Empty", "Stable"])]
    state: Vec<String>,
}

/// Show a share group's members, and how far it is with each partition
///
/// Example: meridian share describe jobs
#[derive(Debug, Args)]
struct Describe {
    /// Its id
    group: String,
}

/// Set where a share group without members goes on
///
/// What it has not decided before is passed over, and what it has decided behind comes again.
///
/// Example: meridian share seek jobs --topic orders --to-earliest --yes
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("place").required(true))]
struct Seek {
    /// Its id
    group: String,
    /// A topic, or some of its partitions; may be repeated
    #[arg(long, short, required = true, value_name = "TOPIC[:PARTITION,...]", value_parser = parse_topic)]
    topic: Vec<TopicChoice>,
    /// To the first record
    #[arg(long, group = "place")]
    to_earliest: bool,
    /// To the end
    #[arg(long, group = "place")]
    to_latest: bool,
    /// To an offset
    #[arg(long, group = "place")]
    to_offset: Option<i64>,
    #[command(flatten)]
    consent: Consent,
}

/// Have a share group without members forget topics: it begins with them anew
///
/// Example: meridian share delete-offsets jobs --topic orders --yes
#[derive(Debug, Args)]
struct DeleteOffsets {
    /// Its id
    group: String,
    /// A topic; may be repeated
    #[arg(long, short, required = true)]
    topic: Vec<String>,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, Serialize)]
struct Summary {
    group: String,
    state: String,
}

#[derive(Debug, Serialize)]
struct Description {
    group: String,
    state: String,
    assignor: String,
    epoch: i32,
    coordinator: i32,
    /// Records that are not decided, where that is known.
    lag: i64,
    partitions: Vec<PartitionDescription>,
    members: Vec<MemberDescription>,
}

#[derive(Debug, Serialize)]
struct PartitionDescription {
    topic: String,
    partition: i32,
    start: Option<i64>,
    lag: Option<i64>,
}

#[derive(Debug, Serialize)]
struct MemberDescription {
    id: String,
    client_id: String,
    host: String,
    epoch: i32,
    partitions: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(share: Share) -> Result<Exit, Failure> {
    let Share { target, command } = share;
    let client = target.connect().await?;
    match command {
        Command::List(list) => list.run(&client, target.output).await?,
        Command::Describe(describe) => describe.run(&client, target.output).await?,
        Command::Seek(seek) => seek.run(&client, target.output).await?,
        Command::DeleteOffsets(delete) => delete.run(&client, target.output).await?,
    }
    Ok(Exit::Ok)
}

impl List {
    async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let listed = groups::list(client, &self.state, &["share".to_owned()]).await?;
        let summaries: Vec<Summary> = listed
            .into_iter()
            .map(|it| Summary { group: it.group_id.to_string(), state: it.group_state.to_string() })
            .collect();
        output::print(format, &summaries, |summaries| {
            let mut table = Table::new(&["GROUP", "STATE"]);
            summaries.iter().for_each(|it| table.row([it.group.clone(), it.state.clone()]));
            table.render()
        })
    }
}

impl Describe {
    async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let group = share_groups::describe(client, &self.group).await?;
        let shares = share_groups::shares(client, &self.group).await?;
        let description = Description {
            group: self.group.clone(),
            state: group.group_state.to_string(),
            assignor: group.assignor_name.to_string(),
            epoch: group.group_epoch,
            coordinator: groups::coordinator(client, &self.group).await?,
            lag: shares.iter().filter_map(|share| share.lag).sum(),
            partitions: shares.into_iter().map(partition).collect(),
            members: group.members.iter().map(member).collect(),
        };
        output::print(format, &description, render)
    }
}

fn partition(share: Shared) -> PartitionDescription {
    let Shared { topic, partition, start, lag } = share;
    PartitionDescription { topic, partition, start, lag }
}

fn member(it: &DescribedShareGroupMember) -> MemberDescription {
    let topics = it.assignment.topic_partitions.iter();
    let partitions = topics.flat_map(|topic| {
        topic.partitions.iter().map(|index| format!("{}-{index}", topic.topic_name))
    });
    MemberDescription {
        id: it.member_id.to_string(),
        client_id: it.client_id.to_string(),
        host: it.client_host.to_string(),
        epoch: it.member_epoch,
        partitions: partitions.collect(),
    }
}

fn render(it: &Description) -> String {
    let mut text = format!(
        "{}: {}, assignor {}, epoch {}, {} members, coordinator {}, lag {}\n\n",
        it.group,
        it.state,
        it.assignor,
        it.epoch,
        it.members.len(),
        it.coordinator,
        it.lag
    );
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let mut table = Table::new(&["TOPIC", "PARTITION", "START", "LAG"]);
    for it in &it.partitions {
        table.row([it.topic.clone(), it.partition.to_string(), number(it.start), number(it.lag)]);
    }
    text.push_str(&table.render());
    if it.members.is_empty() {
        return text;
    }
    let mut table = Table::new(&["MEMBER", "CLIENT", "HOST", "EPOCH", "PARTITIONS"]);
    for it in &it.members {
        table.row([
            it.id.clone(),
            it.client_id.clone(),
            it.host.clone(),
            it.epoch.to_string(),
            it.partitions.join(" "),
        ]);
    }
    format!("{text}\n{}", table.render())
}

impl Seek {
    async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let mut starts: BTreeMap<String, Vec<(i32, i64)>> = BTreeMap::new();
        for choice in &self.topic {
            for (topic, index) in choice.resolve(client).await? {
                starts.entry(topic).or_default().push((index, 0));
            }
        }
        for (topic, starts) in &mut starts {
            let indexes: Vec<i32> = starts.iter().map(|(index, _)| *index).collect();
            let timestamp = match self.to_latest {
                true => ListOffsetsPartition::TIMESTAMP_LATEST,
                false => ListOffsetsPartition::TIMESTAMP_EARLIEST,
            };
            let found = admin::offsets(client, topic, &indexes, timestamp).await?;
            for (index, start) in starts {
                *start = self.to_offset.or_else(|| found.get(index).copied()).unwrap_or_default();
            }
        }
        let count = starts.values().map(Vec::len).sum::<usize>();
        let loss = format!(
            "share group {} goes on elsewhere in {count} partitions: what is passed over is not delivered, what it \
             has decided may be delivered again",
            self.group
        );
        if !self.consent.ask_or_show(format, &loss)? {
            return Ok(());
        }
        for (topic, starts) in &starts {
            share_groups::seek(client, &self.group, topic, starts).await?;
        }
        output::print(format, &starts, |starts| {
            let line = |(topic, starts): (&String, &Vec<(i32, i64)>)| {
                let line = |(index, start): &(i32, i64)| format!("{topic}-{index}: {start}\n");
                starts.iter().map(line).collect::<String>()
            };
            starts.iter().map(line).collect()
        })
    }
}

impl DeleteOffsets {
    async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let topics = self.topic.join(", ");
        let loss = format!("share group {} forgets how far it is with {topics}", self.group);
        if !self.consent.ask_or_show(format, &loss)? {
            return Ok(());
        }
        share_groups::forget(client, &self.group, &self.topic).await?;
        output::print(format, &self.topic, |topics| {
            topics.iter().map(|topic| format!("forgot {topic}\n")).collect()
        })
    }
}
