//! Creating, listing, describing, changing and deleting topics.

use meridian_protocol::messages::ListOffsetsPartition;
use serde::Serialize;

use crate::client::metadata::Topic;
use crate::client::{Client, admin};
use crate::consent::Consent;
use crate::failure::Failure;
use crate::output::{self, Format, Table};

/// Kafka's code for "set on this topic", in answers about configuration.
const SOURCE_TOPIC: i8 = 1;

/// Create a topic
///
/// Example: meridian topic create orders --partitions 12 --config retention.ms=86400000
#[derive(Debug, clap::Args)]
pub(super) struct Create {
    /// Its name
    name: String,
    /// Its partitions; the cluster's default if not given
    #[arg(long, short, value_parser = clap::value_parser!(u32).range(1..))]
    partitions: Option<u32>,
    /// A config to set; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_config)]
    config: Vec<(String, String)>,
}

/// List the topics
///
/// Example: meridian topic list -o json
#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// Also those the cluster made for itself
    #[arg(long)]
    internal: bool,
}

/// Show a topic's partitions, leaders, offsets and configs
///
/// Example: meridian topic describe orders
#[derive(Debug, clap::Args)]
pub(super) struct Describe {
    /// Its name
    name: String,
    /// Also configs that have their default
    #[arg(long)]
    all_configs: bool,
}

/// Add partitions to a topic, or change its configs
///
/// Example: meridian topic alter orders --partitions 24 --config retention.ms=-1
#[derive(Debug, clap::Args)]
pub(super) struct Alter {
    /// Its name
    name: String,
    /// How many partitions it shall have; keys then map to other partitions
    #[arg(long, short)]
    partitions: Option<u32>,
    /// A config to set; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_config)]
    config: Vec<(String, String)>,
    /// A config to set back to its default; may be repeated
    #[arg(long, value_name = "NAME")]
    reset: Vec<String>,
}

/// Delete a topic and its records for ever
///
/// If the topic holds records it asks first; without a terminal it refuses (exit code 3) unless --yes is given.
///
/// Example: meridian topic delete orders --yes
#[derive(Debug, clap::Args)]
pub(super) struct Delete {
    /// Its name
    name: String,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, Serialize)]
struct Summary {
    name: String,
    id: String,
    partitions: usize,
    leaderless: usize,
    internal: bool,
}

#[derive(Debug, Serialize)]
struct Description {
    #[serde(flatten)]
    summary: Summary,
    partition: Vec<PartitionDescription>,
    configs: Vec<ConfigDescription>,
}

#[derive(Debug, Serialize)]
struct PartitionDescription {
    partition: i32,
    leader: Option<i32>,
    leader_epoch: i32,
    start_offset: Option<i64>,
    end_offset: Option<i64>,
    replicas: Vec<i32>,
}

#[derive(Debug, Serialize)]
struct ConfigDescription {
    name: String,
    value: Option<String>,
    is_default: bool,
}

fn parse_config(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl Create {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        admin::create_topic(client, &self.name, self.partitions, &self.config).await?;
        print_summary(client, &self.name, format, "created").await
    }
}

impl List {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let view = client.refresh(None).await?;
        let shown = view.topics.iter().filter(|(_, topic)| self.internal || !topic.is_internal);
        let topics: Vec<Summary> = shown.map(|(name, topic)| Summary::of(name, topic)).collect();
        output::print(format, &topics, |topics| {
            let mut table = Table::new(&["TOPIC", "PARTITIONS", "LEADERLESS", "ID"]);
            for topic in topics {
                table.row([
                    topic.name.clone(),
                    topic.partitions.to_string(),
                    topic.leaderless.to_string(),
                    topic.id.clone(),
                ]);
            }
            table.render()
        })
    }
}

impl Describe {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let topic = &client.topic(&self.name).await?;
        let description = Description {
            summary: Summary::of(&self.name, topic),
            partition: describe_partitions(client, &self.name, topic).await?,
            configs: self.configs(client).await?,
        };
        output::print(format, &description, render)
    }

    async fn configs(&self, client: &Client) -> Result<Vec<ConfigDescription>, Failure> {
        let configs = admin::describe_configs(client, &self.name).await?;
        let described = configs.into_iter().map(|config| ConfigDescription {
            name: config.name.to_string(),
            value: config.value.map(|value| value.to_string()),
            is_default: config.config_source != SOURCE_TOPIC,
        });
        Ok(described.filter(|config| self.all_configs || !config.is_default).collect())
    }
}

async fn describe_partitions(
    client: &Client,
    name: &str,
    topic: &Topic,
) -> Result<Vec<PartitionDescription>, Failure> {
    let numbered = || (0..).zip(&topic.partitions);
    let led: Vec<i32> = numbered()
        .filter(|(_, partition)| partition.leader.is_some())
        .map(|(index, _)| index)
        .collect();
    let starts =
        admin::offsets(client, name, &led, ListOffsetsPartition::TIMESTAMP_EARLIEST).await?;
    let ends = admin::offsets(client, name, &led, ListOffsetsPartition::TIMESTAMP_LATEST).await?;
    let describe =
        |(index, partition): (i32, &crate::client::metadata::Partition)| PartitionDescription {
            partition: index,
            leader: partition.leader,
            leader_epoch: partition.leader_epoch,
            start_offset: starts.get(&index).copied(),
            end_offset: ends.get(&index).copied(),
            replicas: partition.replicas.clone(),
        };
    Ok(numbered().map(describe).collect())
}

fn render(description: &Description) -> String {
    let Summary { name, id, partitions, leaderless, .. } = &description.summary;
    let mut text = format!("{name}: {partitions} partitions, {leaderless} leaderless, id {id}\n\n");
    let mut table = Table::new(&["PARTITION", "LEADER", "EPOCH", "START", "END", "REPLICAS"]);
    let or_dash = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
    for partition in &description.partition {
        let replicas: Vec<String> = partition.replicas.iter().map(i32::to_string).collect();
        table.row([
            partition.partition.to_string(),
            or_dash(partition.leader.map(|leader| leader.to_string())),
            partition.leader_epoch.to_string(),
            or_dash(partition.start_offset.map(|offset| offset.to_string())),
            or_dash(partition.end_offset.map(|offset| offset.to_string())),
            replicas.join(","),
        ]);
    }
    text.push_str(&table.render());
    if !description.configs.is_empty() {
        text.push('\n');
        let mut table = Table::new(&["CONFIG", "VALUE"]);
        for config in &description.configs {
            table.row([config.name.clone(), config.value.clone().unwrap_or_default()]);
        }
        text.push_str(&table.render());
    }
    text
}

impl Alter {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let set = self.config.into_iter().map(|(name, value)| (name, Some(value)));
        let reset = self.reset.into_iter().map(|name| (name, None));
        let changes: Vec<_> = set.chain(reset).collect();
        if changes.is_empty() && self.partitions.is_none() {
            let text = "nothing to change: give --partitions, --config or --reset";
            return Err(Failure::Invalid(text.to_owned()));
        }
        if !changes.is_empty() {
            admin::alter_configs(client, &self.name, &changes).await?;
        }
        if let Some(count) = self.partitions {
            admin::add_partitions(client, &self.name, count).await?;
        }
        print_summary(client, &self.name, format, "changed").await
    }
}

impl Delete {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        delete(client, format, &self.name, self.consent, "").await
    }
}

/// Deletes a topic, or a mirror, once that is meant; `more` is what else that leads to.
pub(crate) async fn delete(
    client: &Client,
    format: Format,
    name: &str,
    consent: Consent,
    more: &str,
) -> Result<(), Failure> {
    let topic = &client.topic(name).await?;
    if !consent.is_given() {
        let partitions = describe_partitions(client, name, topic).await?;
        let records = |p: &PartitionDescription| Some(p.end_offset? - p.start_offset?);
        let count: Option<i64> = partitions.iter().map(records).sum();
        let held = count.map_or_else(
            || "records that cannot be counted now".to_owned(),
            |count| format!("{count} records"),
        );
        let loss = format!("topic {name} holds {held}, and deleting it is for ever{more}");
        let is_empty = count == Some(0) && !consent.dry_run;
        if !is_empty && !consent.ask_or_show(format, &loss)? {
            return Ok(());
        }
    }
    admin::delete_topic(client, name).await?;
    let summary = Summary::of(name, topic);
    output::print(format, &summary, |topic| format!("deleted {}\n", topic.name))
}

async fn print_summary(
    client: &Client,
    name: &str,
    format: Format,
    done: &str,
) -> Result<(), Failure> {
    let summary = Summary::of(name, &client.topic(name).await?);
    output::print(format, &summary, |topic| {
        format!("{done} {} with {} partitions\n", topic.name, topic.partitions)
    })
}

impl Summary {
    fn of(name: &str, topic: &Topic) -> Self {
        Self {
            name: name.to_owned(),
            id: topic.id.to_string(),
            partitions: topic.partitions.len(),
            leaderless: topic.partitions.iter().filter(|p| p.leader.is_none()).count(),
            internal: topic.is_internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs_are_split_at_the_first_equals_sign() {
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(parse_config("retention.ms=1"), pair("retention.ms", "1"));
        assert_eq!(parse_config("a = b=c"), pair("a", "b=c"));
        assert!(parse_config("retention.ms").is_err());
    }

    #[test]
    fn a_description_shows_partitions_and_configs() {
        let description = Description {
            summary: Summary {
                name: "t".to_owned(),
                id: "AAA".to_owned(),
                partitions: 1,
                leaderless: 1,
                internal: false,
            },
            partition: vec![PartitionDescription {
                partition: 0,
                leader: None,
                leader_epoch: 3,
                start_offset: None,
                end_offset: None,
                replicas: vec![1, 4, 7],
            }],
            configs: vec![ConfigDescription {
                name: "retention.ms".to_owned(),
                value: Some("1".to_owned()),
                is_default: false,
            }],
        };
        assert_eq!(
            render(&description),
            "t: 1 partitions, 1 leaderless, id AAA\n\n\
             PARTITION  LEADER  EPOCH  START  END  REPLICAS\n        \
                     0       -      3      -    -  1,4,7\n\n\
             CONFIG        VALUE\n\
             retention.ms      1\n"
        );
    }
}
