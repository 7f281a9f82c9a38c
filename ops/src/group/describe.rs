//! `meridian group describe`: members, positions and lag of a group.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use meridian_protocol::messages::ListOffsetsPartition;
use serde::Serialize;

use crate::client::groups::{self, TopicPartition};
use crate::client::{Client, ClientError, admin};
use crate::failure::Failure;
use crate::output::{self, Format, Table};

/// Show a group's positions, how far they are behind, and who reads what
///
/// Example: meridian group describe reports
#[derive(Debug, Args)]
pub(super) struct Describe {
    /// Its id
    group: String,
    /// Members instead of partitions
    #[arg(long)]
    members: bool,
}

#[derive(Debug, Serialize)]
struct Description {
    group: String,
    state: String,
    #[serde(rename = "type")]
    kind: String,
    assignor: String,
    epoch: Option<i32>,
    coordinator: i32,
    /// Records that are not read yet, where that is known.
    lag: i64,
    partitions: Vec<PartitionDescription>,
    members: Vec<MemberDescription>,
}

#[derive(Debug, Serialize)]
struct PartitionDescription {
    topic: String,
    partition: i32,
    committed: Option<i64>,
    end: Option<i64>,
    lag: Option<i64>,
    member: Option<String>,
    host: Option<String>,
    /// The link that the position is carried over, and what was done about it.
    mirrored: Option<String>,
}

#[derive(Debug, Serialize)]
struct MemberDescription {
    id: String,
    instance_id: Option<String>,
    client_id: String,
    host: String,
    epoch: Option<i32>,
    partitions: Vec<String>,
}

/// The end of each of these partitions that is there.
pub(super) async fn ends(
    client: &Client,
    partitions: impl IntoIterator<Item = &TopicPartition>,
    timestamp: i64,
) -> Result<BTreeMap<TopicPartition, i64>, ClientError> {
    let mut by_topic: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, index) in partitions {
        by_topic.entry(topic).or_default().push(*index);
    }
    let mut ends = BTreeMap::new();
    for (topic, indexes) in by_topic {
        let found = admin::offsets(client, topic, &indexes, timestamp).await?;
        ends.extend(found.into_iter().map(|(index, end)| ((topic.to_owned(), index), end)));
    }
    Ok(ends)
}

/// Which positions of a group are carried over a link: `west: carried`.
async fn mirrored(
    client: &Client,
    group: &str,
) -> Result<BTreeMap<TopicPartition, String>, Failure> {
    let mut mirrored = BTreeMap::new();
    for steward in crate::mirror::stewards(client).await? {
        for it in steward.groups.into_iter().filter(|it| it.group == group) {
            let state = format!("{}: {}", steward.link, it.state);
            mirrored.insert((it.topic, it.partition), state);
        }
    }
    Ok(mirrored)
}

impl Describe {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let description = self.describe(client).await?;
        output::print(format, &description, |it| render(it, self.members))
    }

    async fn describe(&self, client: &Client) -> Result<Description, Failure> {
        let group = groups::describe(client, &self.group).await?;
        let coordinator = groups::coordinator(client, &self.group).await?;
        let positions = groups::positions(client, &self.group).await?;
        let readers: BTreeMap<&TopicPartition, &groups::Member> = group
            .members
            .iter()
            .flat_map(|member| member.partitions.iter().map(move |it| (it, member)))
            .collect();
        let known: BTreeSet<&TopicPartition> =
            positions.keys().chain(readers.keys().copied()).collect();
        let latest = ListOffsetsPartition::TIMESTAMP_LATEST;
        let ends = ends(client, known.iter().copied(), latest).await?;
        let mirrored = mirrored(client, &self.group).await?;
        let describe = |key: &TopicPartition| {
            let committed = positions.get(key).map(|position| position.offset);
            let end = ends.get(key).copied();
            let reader = readers.get(key);
            PartitionDescription {
                topic: key.0.clone(),
                partition: key.1,
                committed,
                end,
                lag: committed.zip(end).map(|(committed, end)| (end - committed).max(0)),
                member: reader.map(|member| member.id.clone()),
                host: reader.map(|member| member.host.clone()),
                mirrored: mirrored.get(key).cloned(),
            }
        };
        let partitions: Vec<PartitionDescription> = known.into_iter().map(describe).collect();
        let member = |it: &groups::Member| MemberDescription {
            id: it.id.clone(),
            instance_id: it.instance_id.clone(),
            client_id: it.client_id.clone(),
            host: it.host.clone(),
            epoch: it.epoch,
            partitions: it
                .partitions
                .iter()
                .map(|(name, index)| format!("{name}-{index}"))
                .collect(),
        };
        Ok(Description {
            group: self.group.clone(),
            state: group.state.clone(),
            kind: group.kind.clone(),
            assignor: group.assignor.clone(),
            epoch: group.epoch,
            coordinator,
            lag: partitions.iter().filter_map(|partition| partition.lag).sum(),
            members: group.members.iter().map(member).collect(),
            partitions,
        })
    }
}

fn render(it: &Description, members: bool) -> String {
    let epoch = it.epoch.map(|epoch| format!(", epoch {epoch}")).unwrap_or_default();
    let assignor = Some(&it.assignor).filter(|name| !name.is_empty());
    let assignor = assignor.map(|name| format!(", assignor {name}")).unwrap_or_default();
    let mut text = format!(
        "{}: {}, {} protocol{assignor}{epoch}, {} members, coordinator {}, lag {}\n\n",
        it.group,
        it.state,
        it.kind,
        it.members.len(),
        it.coordinator,
        it.lag
    );
    text.push_str(&if members { render_members(it) } else { render_partitions(it) });
    text
}

fn render_partitions(it: &Description) -> String {
    let mut table = Table::new(&[
        "TOPIC",
        "PARTITION",
        "COMMITTED",
        "END",
        "LAG",
        "MEMBER",
        "HOST",
        "MIRRORED",
    ]);
    let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    for partition in &it.partitions {
        table.row([
            partition.topic.clone(),
            partition.partition.to_string(),
            number(partition.committed),
            number(partition.end),
            number(partition.lag),
            text(&partition.member),
            text(&partition.host),
            text(&partition.mirrored),
        ]);
    }
    table.render()
}

fn render_members(it: &Description) -> String {
    let mut table = Table::new(&["MEMBER", "INSTANCE", "CLIENT", "HOST", "EPOCH", "PARTITIONS"]);
    for member in &it.members {
        table.row([
            member.id.clone(),
            member.instance_id.clone().unwrap_or_else(|| "-".to_owned()),
            member.client_id.clone(),
            member.host.clone(),
            member.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
            member.partitions.join(","),
        ]);
    }
    table.render()
}
